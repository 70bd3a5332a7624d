//! The loop's side: which call is run when, which callers wait, which answer may be given.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Shared;
use super::message::{Asked, Batch, Call, Note};
use super::seats::{Replies, Seats};
use super::work::{NO_CLIENT, Running, Slice, Step};
use crate::engine::{Engine, ReplySink};
use crate::storage::StoreError;
use crate::types::{ClientId, Now, Ticket, Time};

/// The side of the thread that owns the engine. In each turn of its loop the thread calls, in this
/// order: [`Desk::serve`]; [`Engine::tick`] and everything else that makes replies, with
/// [`Desk::replies`] as the sink; [`Engine::commit`]; [`Desk::acknowledge`].
///
/// Dropping it ends all calls: [`JobError::Closed`](super::JobError::Closed).
pub struct Desk {
    shared: Arc<Shared>,
    /// Taken from the channel and not run.
    calls: VecDeque<Call>,
    /// The calls of sessions in which a kick is under way, until it is over.
    held: HashMap<ClientId, VecDeque<Call>>,
    notes: VecDeque<Note>,
    sessions: HashMap<u64, ClientId>,
    seats: Seats,
    works: VecDeque<Underway>,
    /// Every second turn begins with a step of long work.
    is_turn_of_works: bool,
    taken: u64,
}

/// Long work that is not done.
struct Underway {
    session: u64,
    size: usize,
    work: Box<dyn Running>,
    not_before: Option<Time>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk")
            .field("calls", &self.calls.len())
            .field("sessions", &self.sessions.len())
            .field("works", &self.works.len())
            .finish_non_exhaustive()
    }
}

/// The parts of the server that a call may use while it runs.
struct Turn<'a> {
    engine: &'a mut Engine,
    now: Now,
    others: &'a mut dyn ReplySink,
    is_over: &'a mut dyn FnMut() -> bool,
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>) -> Desk {
        Desk {
            shared,
            calls: VecDeque::new(),
            held: HashMap::new(),
            notes: VecDeque::new(),
            sessions: HashMap::new(),
            seats: Seats::default(),
            works: VecDeque::new(),
            is_turn_of_works: false,
            taken: 0,
        }
    }

    /// Run the calls that have arrived, one at a time, until none is left or the slice is over; if
    /// there are any, at least one. Replies to clients that do not belong to this desk go to
    /// `others`.
    pub fn serve(
        &mut self,
        engine: &mut Engine,
        now: Now,
        others: &mut dyn ReplySink,
        is_over: &mut dyn FnMut() -> bool,
    ) {
        let before = self.calls.len();
        self.shared.channel.take(&mut self.calls, &mut self.notes);
        self.taken += (self.calls.len() - before) as u64;
        let mut turn = Turn {
            engine,
            now,
            others,
            is_over,
        };
        self.read_notes(&mut turn);
        self.seats.expire(turn.engine, now, turn.others);
        let (calls, held) = (&mut self.calls, &mut self.held);
        self.seats.go_on(turn.engine, now, turn.others, |client| {
            for call in held.remove(&client).into_iter().flatten().rev() {
                calls.push_front(call);
            }
        });
        self.is_turn_of_works = !self.is_turn_of_works;
        if self.is_turn_of_works {
            self.step(&mut turn);
        }
        while self.run_next(&mut turn) && !(turn.is_over)() {}
    }

    /// Where the engine must put replies: replies to sessions of this desk are kept here, and all
    /// others go to `others`.
    pub fn replies<'a, S: ReplySink + ?Sized>(&'a mut self, others: &'a mut S) -> Replies<'a, S> {
        Replies::new(&mut self.seats, others)
    }

    /// Give all answers that wait for this ticket or an earlier one.
    pub fn acknowledge(&mut self, upto: Ticket) {
        let notes = &mut self.notes;
        self.seats
            .give(upto, |token, id| notes.push_back(Note::GiveBack(token, id)));
        let (more, less) = self.seats.take_loads();
        self.shared.channel.settle(more, less);
    }

    /// The disk has failed: all callers are told so, those that wait for an answer and those that
    /// come later.
    pub fn fail(&mut self, error: &StoreError) {
        // It is set once: the first failure counts.
        let _ = self.shared.failed.set(error.clone());
        self.end();
    }

    /// The engine is about to be another one: all sessions, answers and works of the earlier one are
    /// over. Sessions that call again begin again.
    pub fn start_over(&mut self) {
        for underway in std::mem::take(&mut self.works) {
            self.seats.release(underway.size);
        }
        for call in std::mem::take(&mut self.held).into_values().flatten() {
            self.seats.release(call.size);
        }
        self.seats.clear();
        self.sessions.clear();
        let (more, less) = self.seats.take_loads();
        self.shared.channel.settle(more, less);
    }

    /// How many calls have arrived in total.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many answers have waited for a ticket in total.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.seats.answers()
    }

    /// True when [`Desk::serve`] has something to do at once.
    #[must_use]
    pub fn has_more(&self, now: Now) -> bool {
        !self.calls.is_empty()
            || !self.notes.is_empty()
            || self.seats.may_go_on()
            || self.works.iter().any(|underway| underway.is_due(now))
    }

    /// When [`Desk::serve`] must be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let works = self.works.iter().filter_map(|underway| underway.not_before);
        works.chain(self.seats.next_deadline()).min()
    }

    /// A call or answer that is dropped here tells its caller that there will be no answer.
    fn end(&mut self) {
        drop(self.shared.channel.close());
        self.calls.clear();
        self.held.clear();
        self.works.clear();
        self.seats = Seats::default();
        self.sessions.clear();
    }

    /// Read notes as far as the slice allows. They come before the calls: they may free what the
    /// calls need.
    fn read_notes(&mut self, turn: &mut Turn<'_>) {
        while let Some(note) = self.notes.pop_front() {
            self.read(note, turn);
            if (turn.is_over)() {
                return;
            }
        }
    }

    fn read(&mut self, note: Note, turn: &mut Turn<'_>) {
        let (Note::End(token) | Note::Look(token) | Note::GiveBack(token, _)) = note else {
            return self.look_at_works();
        };
        let Some(client) = self.sessions.get(&token).copied() else {
            return;
        };
        match note {
            Note::Look(_) => self.seats.look(client, turn.engine),
            Note::GiveBack(_, id) => _ = turn.engine.give_back(client, id, turn.now),
            Note::End(_) => {
                self.sessions.remove(&token);
                for call in self.held.remove(&client).into_iter().flatten() {
                    self.seats.release(call.size);
                }
                self.seats.unseat(client);
                turn.engine.disconnect(client, turn.now);
            }
            Note::Works => unreachable!("it is about no session"),
        }
    }

    /// Drop work that has no caller any more, and check the rest: one may be cancelled.
    fn look_at_works(&mut self) {
        let seats = &mut self.seats;
        self.works.retain_mut(|underway| {
            underway.not_before = None;
            let is_wanted = !underway.work.is_abandoned();
            if !is_wanted {
                seats.release(underway.size);
            }
            is_wanted
        });
    }

    /// The engine's id for a session.
    fn client(&mut self, token: u64, engine: &mut Engine) -> ClientId {
        let seats = &mut self.seats;
        *self.sessions.entry(token).or_insert_with(|| {
            let client = engine.connect();
            seats.seat(client, token);
            client
        })
    }

    /// Run a call, or a step; `false` when there is neither.
    fn run_next(&mut self, turn: &mut Turn<'_>) -> bool {
        match self.calls.pop_front() {
            Some(call) => self.run(call, turn),
            None => return self.step(turn),
        }
        true
    }

    fn run(&mut self, call: Call, turn: &mut Turn<'_>) {
        let Call {
            session,
            size,
            what,
        } = call;
        if what.is_abandoned() {
            return self.seats.release(size);
        }
        if let Asked::Work(work) = what {
            return self.works.push_back(Underway {
                session,
                size,
                work,
                not_before: None,
            });
        }
        if turn.engine.is_following() {
            self.seats.release(size);
            return what.refuse();
        }
        let client = self.client(session, turn.engine);
        if self.seats.is_kicking(client) {
            let call = Call {
                session,
                size,
                what,
            };
            return self.held.entry(client).or_default().push_back(call);
        }
        let Turn {
            engine,
            now,
            others,
            ..
        } = turn;
        match what {
            Asked::Command(command, giver) => {
                self.seats
                    .call(client, command, giver, size, engine, *now, *others);
            }
            Asked::Batch(batch) => self.run_batch(client, session, size, batch, turn),
            Asked::Work(_) => unreachable!("dealt with above"),
        }
    }

    /// Run the commands of a batch as far as the slice allows; the rest comes first in the next
    /// slice.
    fn run_batch(
        &mut self,
        client: ClientId,
        session: u64,
        size: usize,
        mut batch: Batch,
        turn: &mut Turn<'_>,
    ) {
        let mut after = turn.engine.after();
        while let Some(command) = batch.commands.next() {
            let (upto, outcome) =
                self.seats
                    .run(client, command, turn.engine, turn.now, turn.others);
            after = upto;
            batch.outcomes.push(outcome);
            if (turn.is_over)() && batch.commands.len() > 0 {
                return self.calls.push_front(Call {
                    session,
                    size,
                    what: Asked::Batch(batch),
                });
            }
        }
        let outcome = Ok(super::Answer::Batch(batch.outcomes));
        self.seats.park(client, after, batch.giver, outcome, size);
    }

    /// Run a step of the due work that has waited longest; `false` when all of it is done.
    fn step(&mut self, turn: &mut Turn<'_>) -> bool {
        let now = turn.now;
        let due = self.works.iter().position(|underway| underway.is_due(now));
        let Some(mut underway) = due.and_then(|at| self.works.remove(at)) else {
            return false;
        };
        if underway.work.is_abandoned() {
            self.seats.release(underway.size);
            return true;
        }
        let step = match underway.work.is_cancelled() {
            true => Step::Done,
            false => {
                let client = match turn.engine.is_following() {
                    true => NO_CLIENT,
                    false => self.client(underway.session, turn.engine),
                };
                underway.work.step(&mut Slice {
                    engine: turn.engine,
                    now,
                    client,
                    seats: &mut self.seats,
                    others: turn.others,
                    is_over: turn.is_over,
                })
            }
        };
        underway.not_before = match step {
            Step::More => None,
            Step::NotBefore(time) => Some(time),
            Step::Done => {
                let after = turn.engine.after();
                let Underway { work, size, .. } = underway;
                self.seats
                    .park_work(after, Box::new(|| work.finish()), size);
                return true;
            }
        };
        self.works.push_back(underway);
        true
    }
}

impl Underway {
    fn is_due(&self, now: Now) -> bool {
        self.not_before.is_none_or(|time| time <= now.mono)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.end();
    }
}
