//! The desk's state for each session, and the answers that are parked until the log has caught up
//! with them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::call::{Answer, JobError, Outcome, check, size_of_outcome};
use super::handover::{Giver, Load};
use crate::engine::{Engine, Flow, Link, ReplySink, TubeDocument};
use crate::protocol::{Command, Op, Reply, Request, Shown};
use crate::queue::{Delivery, Terms};
use crate::storage::Body;
use crate::types::{ClientId, JobId, Now, Ticket, Time};

/// A session that has made a call.
#[derive(Default)]
struct Seat {
    token: u64,
    /// The callers that wait for a job, in the order in which they came. The engine's client waits
    /// for the first one.
    waiting: VecDeque<Waiting>,
    /// The caller that waits for a kick that takes more than a turn. No other call of the session
    /// runs meanwhile.
    kick: Option<Giver<Outcome>>,
}

/// A caller that waits for a job.
struct Waiting {
    timer: Option<Timer>,
    /// Jobs that it takes at most, if it asks for several.
    most: Option<u16>,
    giver: Giver<Outcome>,
}

/// When a caller's wait ends, in which session, and a unique number, because several waits may end
/// at the same time.
type Timer = (Time, ClientId, u64);

/// An answer that may be given when its ticket is acknowledged.
struct Parked {
    after: Ticket,
    load: Load,
    answer: Given,
}

enum Given {
    Outcome(u64, Giver<Outcome>, Outcome),
    /// Returns work that is done to its caller.
    Work(Box<dyn FnOnce() + Send>),
}

/// Sessions by the engine's id for them, which is small and reused.
#[derive(Default)]
pub(super) struct Seats {
    seats: Vec<Option<Seat>>,
    /// In the order of tickets.
    parked: VecDeque<Parked>,
    /// How many there were in total.
    answers: u64,
    timers: BTreeSet<Timer>,
    next_timer: u64,
    /// The session whose command is running, and its answer.
    running: Option<ClientId>,
    answered: Option<(Ticket, Outcome)>,
    /// Of the jobs that the next reply hands out.
    deliveries: Vec<Delivery>,
    /// Sessions that may continue: a caller in them has got the answer that was waited for.
    ready: Vec<ClientId>,
    /// Size of calls beyond what the channel counts, and the size to subtract.
    more: Load,
    less: Load,
}

impl Seats {
    /// A new session.
    pub(super) fn seat(&mut self, client: ClientId, token: u64) {
        let at = client.0 as usize;
        if self.seats.len() <= at {
            self.seats.resize_with(at + 1, || None);
        }
        self.seats[at] = Some(Seat {
            token,
            ..Seat::default()
        });
    }

    /// The session is over. No caller waits in it any more.
    pub(super) fn unseat(&mut self, client: ClientId) {
        let Some(seat) = self.seats.get_mut(client.0 as usize).and_then(Option::take) else {
            return;
        };
        for waiting in seat.waiting {
            self.forget_timer(waiting.timer);
        }
        self.ready.retain(|other| *other != client);
    }

    /// All sessions are over, and no answer that is parked is given: anyone who waits is told that there
    /// will be none.
    pub(super) fn clear(&mut self) {
        self.seats.clear();
        for parked in std::mem::take(&mut self.parked) {
            self.less.calls += parked.load.calls;
            self.less.bytes += parked.load.bytes;
        }
        self.timers.clear();
        self.ready.clear();
        (self.running, self.answered) = (None, None);
    }

    pub(super) fn has(&self, client: ClientId) -> bool {
        matches!(self.seats.get(client.0 as usize), Some(Some(_)))
    }

    fn of(&mut self, client: ClientId) -> &mut Seat {
        match self.seats.get_mut(client.0 as usize) {
            Some(Some(seat)) => seat,
            _ => unreachable!("{client:?} has no seat"),
        }
    }

    /// True while a kick keeps all other calls of the session waiting.
    pub(super) fn is_kicking(&mut self, client: ClientId) -> bool {
        self.of(client).kick.is_some()
    }

    /// A call of `size` bytes no longer occupies anything.
    pub(super) fn release(&mut self, size: usize) {
        self.less.calls += 1;
        self.less.bytes += size;
    }

    /// How much more, and how much less, calls occupy since the last time.
    pub(super) fn take_loads(&mut self) -> (Load, Load) {
        (
            std::mem::take(&mut self.more),
            std::mem::take(&mut self.less),
        )
    }

    /// Park an answer to a call that has occupied `size` bytes so far.
    pub(super) fn park(
        &mut self,
        client: ClientId,
        after: Ticket,
        giver: Giver<Outcome>,
        outcome: Outcome,
        size: usize,
    ) {
        let bytes = size_of_outcome(&outcome).max(size);
        self.more.bytes += bytes - size;
        let token = self.of(client).token;
        self.answers += 1;
        self.parked.push_back(Parked {
            after,
            load: Load { calls: 1, bytes },
            answer: Given::Outcome(token, giver, outcome),
        });
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    /// Park the answer to a call that was not counted while it waited.
    fn park_uncounted(
        &mut self,
        client: ClientId,
        after: Ticket,
        giver: Giver<Outcome>,
        outcome: Outcome,
    ) {
        self.more.calls += 1;
        self.park(client, after, giver, outcome, 0);
    }

    /// Park work that is done, and occupies `size` bytes; `finish` returns it to its caller.
    pub(super) fn park_work(
        &mut self,
        after: Ticket,
        finish: Box<dyn FnOnce() + Send>,
        size: usize,
    ) {
        self.answers += 1;
        self.parked.push_back(Parked {
            after,
            load: Load {
                calls: 1,
                bytes: size,
            },
            answer: Given::Work(finish),
        });
    }

    /// Give all answers that wait for `upto` or an earlier ticket. Jobs that no caller takes are
    /// passed to `unwanted`, with the session's token.
    pub(super) fn give(&mut self, upto: Ticket, mut unwanted: impl FnMut(u64, JobId)) {
        while self
            .parked
            .front()
            .is_some_and(|parked| parked.after <= upto)
            && let Some(parked) = self.parked.pop_front()
        {
            self.less.calls += parked.load.calls;
            self.less.bytes += parked.load.bytes;
            match parked.answer {
                Given::Work(finish) => finish(),
                Given::Outcome(token, giver, outcome) => {
                    if let Err(Ok(answer)) = giver.give(outcome) {
                        answer.reserved().for_each(|id| unwanted(token, id));
                    }
                }
            }
        }
    }

    /// Run a command that does not wait, for a session that is not kicking. Callers in it that wait
    /// for a job continue to wait afterwards.
    pub(super) fn run(
        &mut self,
        client: ClientId,
        command: Command<'_>,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
    ) -> (Ticket, Outcome) {
        assert!(!command.may_wait(), "{command:?} is no call of its own");
        let answered = self.begin(client, command, engine, now, others);
        answered.unwrap_or_else(unanswered)
    }

    /// Run a call that occupies `size` bytes, for a session that is not kicking, and park its answer,
    /// now or when it comes.
    #[allow(clippy::too_many_arguments, reason = "who, what, for whom, and where")]
    pub(super) fn call(
        &mut self,
        client: ClientId,
        command: Command<'static>,
        giver: Giver<Outcome>,
        size: usize,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
    ) {
        let waits = match command {
            Command::Reserve { timeout, .. } => Some((timeout, None)),
            Command::ReserveBatch { most, timeout } => Some((timeout, Some(most))),
            _ => None,
        };
        if let Some((timeout, most)) = waits {
            self.release(size);
            let until = timeout.map(|timeout| now.mono.plus(timeout));
            return self.reserve(client, Terms { until, most }, giver, engine, now, others);
        }
        match self.begin(client, command, engine, now, others) {
            Some((after, outcome)) => self.park(client, after, giver, outcome, size),
            None => {
                self.release(size);
                self.of(client).kick = Some(giver);
            }
        }
    }

    /// The answer to a command, unless it comes later.
    fn begin(
        &mut self,
        client: ClientId,
        command: Command<'_>,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
    ) -> Option<(Ticket, Outcome)> {
        if let Err(error) = check(&command, engine.job_size_max()) {
            return Some((engine.after(), Err(error)));
        }
        if engine.is_following() {
            return Some((engine.after(), Err(JobError::NotLeader)));
        }
        let was_waiting = engine.stop_waiting(client);
        let answered = self.run_command(client, command, engine, now, others);
        if was_waiting && answered.is_some() {
            self.wait_on(client, engine, now, others);
        }
        answered
    }

    /// The answer; `None` when it comes later, or the log has failed.
    fn run_command(
        &mut self,
        client: ClientId,
        command: Command<'_>,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
    ) -> Option<(Ticket, Outcome)> {
        self.running = Some(client);
        let mut replies = Replies::new(self, others);
        let flow = engine.run(client, Request::Command(command), now, &mut replies);
        self.running = None;
        let answered = self.answered.take();
        debug_assert!(flow == Flow::Blocked || answered.is_some());
        answered
    }

    /// Reserve a job for a caller that waits on these terms.
    fn reserve(
        &mut self,
        client: ClientId,
        Terms { until, most }: Terms,
        giver: Giver<Outcome>,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
    ) {
        let is_behind = !self.of(client).waiting.is_empty();
        if is_behind && until.is_some_and(|until| until <= now.mono) {
            // If another caller waits already, there is no job.
            return self.park_uncounted(client, engine.after(), giver, Ok(Answer::NoJob));
        }
        let timer = until.map(|until| self.set_timer(client, until));
        self.of(client)
            .waiting
            .push_back(Waiting { timer, most, giver });
        if !is_behind {
            self.wait_on(client, engine, now, others);
        }
    }

    /// Let the engine's client wait for a job: for the first waiting caller, then for the next one.
    fn wait_on(
        &mut self,
        client: ClientId,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
    ) {
        while !self.is_kicking(client)
            && !engine.queue().is_waiting(client)
            && let Some(first) = self.of(client).waiting.front()
        {
            let (timeout, op) = match first.timer {
                None => (None, Op::Reserve),
                Some((until, ..)) if until > now.mono => (None, Op::ReserveWithTimeout),
                Some(_) => (Some(Duration::ZERO), Op::ReserveWithTimeout),
            };
            let command = match first.most {
                None => Command::Reserve { timeout, op },
                Some(most) => Command::ReserveBatch { most, timeout },
            };
            match self.run_command(client, command, engine, now, others) {
                Some((after, outcome)) => self.answer_first(client, after, outcome),
                None => return,
            }
        }
    }

    /// Answer the first caller that still waits in a session.
    fn answer_first(&mut self, client: ClientId, after: Ticket, outcome: Outcome) {
        let Some(first) = self.of(client).waiting.pop_front() else {
            return;
        };
        self.forget_timer(first.timer);
        self.park_uncounted(client, after, first.giver, outcome);
    }

    fn set_timer(&mut self, client: ClientId, until: Time) -> Timer {
        self.next_timer += 1;
        let timer = (until, client, self.next_timer);
        self.timers.insert(timer);
        timer
    }

    fn forget_timer(&mut self, timer: Option<Timer>) {
        if let Some(timer) = timer {
            self.timers.remove(&timer);
        }
    }

    /// When the next wait ends.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(until, ..)| *until)
    }

    /// Answer the callers whose wait has ended.
    pub(super) fn expire(&mut self, engine: &mut Engine, now: Now, others: &mut dyn ReplySink) {
        while let Some(timer) = self.timers.first().copied()
            && timer.0 <= now.mono
        {
            let (_, client, _) = timer;
            self.timers.remove(&timer);
            self.expire_in(client, engine, now, others);
        }
    }

    fn expire_in(
        &mut self,
        client: ClientId,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
    ) {
        let is_due = |waiting: &Waiting| waiting.timer.is_some_and(|(until, ..)| until <= now.mono);
        let waiting = &mut self.of(client).waiting;
        let is_first_due = waiting.front().is_some_and(is_due);
        let behind = waiting.split_off(waiting.len().min(1));
        let (due, rest): (VecDeque<_>, VecDeque<_>) = behind.into_iter().partition(is_due);
        waiting.extend(rest);
        for one in due {
            self.park_uncounted(client, engine.after(), one.giver, Ok(Answer::NoJob));
        }
        if is_first_due {
            // The engine's client waits on its terms, of one job or of several: it starts again for the
            // next caller. If the client watches very many tubes, the search may not have examined all
            // of them yet.
            engine.half_closed(client, now, &mut Replies::new(self, others));
        }
    }

    /// A caller in the session may be gone.
    pub(super) fn look(&mut self, client: ClientId, engine: &mut Engine) {
        let mut gone = Vec::new();
        let seat = self.of(client);
        seat.waiting.retain(|waiting| {
            let is_gone = waiting.giver.is_abandoned();
            gone.extend(is_gone.then_some(waiting.timer));
            !is_gone
        });
        for timer in &gone {
            self.forget_timer(*timer);
        }
        // The engine's client may have waited for one of those: it starts again for the callers
        // that are left.
        if !gone.is_empty() && engine.stop_waiting(client) {
            self.ready.push(client);
        }
    }

    /// Continue with sessions in which a caller has got the answer that was waited for. `resumed` is
    /// told of each.
    pub(super) fn go_on(
        &mut self,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
        mut resumed: impl FnMut(ClientId),
    ) {
        while let Some(client) = self.ready.pop() {
            resumed(client);
            self.wait_on(client, engine, now, others);
        }
    }

    pub(super) fn may_go_on(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The engine has a reply for one of these sessions.
    fn reply(&mut self, client: ClientId, after: Ticket, reply: Reply<'_>) {
        let outcome = Answer::of(reply, &mut self.deliveries);
        self.answer(client, after, outcome);
    }

    fn answer(&mut self, client: ClientId, after: Ticket, outcome: Outcome) {
        if self.running == Some(client) {
            self.answered = Some((after, outcome));
            return;
        }
        match self.of(client).kick.take() {
            Some(giver) => self.park_uncounted(client, after, giver, outcome),
            None => self.answer_first(client, after, outcome),
        }
        self.ready.push(client);
    }
}

/// The log has failed inside a command. Nothing is acknowledged after that, so this answer is never
/// given.
fn unanswered() -> (Ticket, Outcome) {
    (Ticket::LAST, Err(JobError::Closed))
}

/// Replies on their way: to the sessions of a desk, or to the loop's other clients.
pub struct Replies<'a, S: ?Sized = dyn ReplySink + 'a> {
    seats: &'a mut Seats,
    others: &'a mut S,
}

impl<S: ?Sized> std::fmt::Debug for Replies<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replies").finish_non_exhaustive()
    }
}

impl<'a, S: ReplySink + ?Sized> Replies<'a, S> {
    pub(super) fn new(seats: &'a mut Seats, others: &'a mut S) -> Replies<'a, S> {
        Replies { seats, others }
    }
}

impl<S: ReplySink + ?Sized> ReplySink for Replies<'_, S> {
    fn link(&self, client: ClientId) -> Option<Link> {
        match self.seats.has(client) {
            true => None,
            false => self.others.link(client),
        }
    }

    fn close(&mut self, client: ClientId) -> bool {
        !self.seats.has(client) && self.others.close(client)
    }

    fn reply(&mut self, client: ClientId, after: Ticket, reply: Reply<'_>) {
        match self.seats.has(client) {
            true => self.seats.reply(client, after, reply),
            false => self.others.reply(client, after, reply),
        }
    }

    fn is_inside(&self, client: ClientId) -> bool {
        self.seats.has(client)
    }

    fn note_delivery(&mut self, delivery: Delivery) {
        self.seats.deliveries.push(delivery);
    }

    fn takes_pieces(&self, client: ClientId) -> bool {
        !self.seats.has(client) && self.others.takes_pieces(client)
    }

    fn room(&self, client: ClientId) -> usize {
        match self.seats.has(client) {
            true => usize::MAX,
            false => self.others.room(client),
        }
    }

    fn reply_body(&mut self, client: ClientId, after: Ticket, job: (Shown<'_>, JobId), body: Body) {
        self.others.reply_body(client, after, job, body);
    }

    fn reply_in_parts(&mut self, client: ClientId, after: Ticket, document: TubeDocument) {
        match self.seats.has(client) {
            true => {
                let tubes = Answer::Tubes(document.into_list());
                self.seats.answer(client, after, Ok(tubes));
            }
            false => self.others.reply_in_parts(client, after, document),
        }
    }
}
