//! The commands: decide, log, apply, reply.

use std::time::Duration;

use super::large::{Awaited, Wanted, is_in_pieces};
use super::outcome::{Handed, Logged};
use super::pauses::Owner;
use super::{Engine, Flow, ReplySink};
use crate::attributes::Reason;
use crate::protocol::{Command, Op, Refusal, Reply, Request};
use crate::queue::Terms;
use crate::storage::{AppendError, Begun, BodyError, NO_KICK, Purpose, StoreError};
use crate::types::{Change, ClientId, JobId, JobState, Now, Place, Time};

impl Engine {
    pub(super) fn dispatch(
        &mut self,
        client: ClientId,
        (request, begun): (&Request<'_>, Option<&Begun>),
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Flow, StoreError> {
        let command = match request {
            Request::Command(command) => command,
            Request::Auth(_) => {
                let unknown = Reply::Refused(Refusal::UnknownCommand);
                sink.reply(client, self.after(), unknown);
                return Ok(Flow::Next);
            }
            Request::Quit => {
                self.count(Op::Quit);
                return Ok(Flow::Close);
            }
            Request::Refused { refusal, counted } => {
                if let Some(op) = *counted {
                    self.count(op);
                }
                let is_put = matches!(counted, Some(Op::Put | Op::PutWith));
                if is_put && *refusal == Refusal::ExpectedCrlf {
                    self.queue.set_producer(client);
                }
                if is_put && *refusal == Refusal::OutOfMemory {
                    // The reader of the request refused it by what is left. Of its size no more is
                    // known than that it may have been as large as any.
                    self.has_memory_for(self.job_size_max.into(), now);
                }
                sink.reply(client, self.after(), Reply::Refused(*refusal));
                return Ok(Flow::Next);
            }
        };
        let mut turn = Turn {
            engine: self,
            client,
            now,
            sink,
        };
        match command {
            Command::Put {
                tube,
                pri,
                delay,
                ttr,
                body,
            } => {
                let tube = tube.as_deref();
                turn.put(Op::Put, tube, (*pri, *delay, *ttr), (begun, body))
            }
            Command::Reserve { timeout, op } => turn.reserve(*timeout, None, *op),
            Command::ReserveJob(id) => turn.reserve_job(*id),
            Command::Delete(id) => turn.delete(*id),
            Command::Release { id, pri, delay } => turn.release(*id, *pri, *delay),
            Command::Bury { id, pri } => turn.bury(*id, *pri),
            Command::Touch(id) => turn.touch(*id),
            Command::Kick { tube, bound } => turn.kick(tube.as_deref(), *bound),
            Command::KickJob(id) => turn.kick_job(*id),
            Command::Peek(_) => turn.peek(Op::Peek, command),
            Command::PeekReady(_) => turn.peek(Op::PeekReady, command),
            Command::PeekDelayed(_) => turn.peek(Op::PeekDelayed, command),
            Command::PeekBuried(_) => turn.peek(Op::PeekBuried, command),
            Command::Use(tube) => turn.use_tube(tube),
            Command::Watch(tube) => turn.watch(tube),
            Command::Ignore(tube) => turn.ignore(tube),
            Command::PauseTube { tube, delay } => turn.pause_tube(tube, *delay),
            Command::PutWith(_)
            | Command::Abort
            | Command::ListJobs(_)
            | Command::Batch { .. }
            | Command::ReserveBatch { .. }
            | Command::Fail { .. }
            | Command::BuryWithReason { .. }
            | Command::MoveJob { .. }
            | Command::ClearTube { .. }
            | Command::SetPolicy(_)
            | Command::ScheduleSet(_)
            | Command::ScheduleDelete(_) => turn.extended(command, begun),
            Command::Stats
            | Command::StatsJob(_)
            | Command::StatsTube(_)
            | Command::ListTubes
            | Command::ListTubeUsed
            | Command::ListTubesWatched
            | Command::StatsJobExtended(_)
            | Command::StatsPolicy(_)
            | Command::StatsSchedule(_)
            | Command::Capabilities(_) => {
                turn.engine.report(client, command, now, turn.sink);
                Ok(Flow::Next)
            }
        }
    }

    pub(super) fn count(&mut self, op: Op) {
        self.commands[op as usize] += 1;
    }

    /// Log and apply an update of a job that exists.
    pub(super) fn update(
        &mut self,
        change: &Change<'_>,
        purpose: Purpose,
        now: Now,
    ) -> Result<Logged, StoreError> {
        self.update_of_kick(change, NO_KICK, purpose, now)
    }

    /// Log and apply an update that belongs to the kick under way of this number.
    pub(super) fn update_of_kick(
        &mut self,
        change: &Change<'_>,
        kick: u16,
        purpose: Purpose,
        now: Now,
    ) -> Result<Logged, StoreError> {
        self.make_way(purpose, now)?;
        self.log_update(change, kick, purpose, now)
    }

    /// The same, without making way.
    pub(super) fn log_update(
        &mut self,
        change: &Change<'_>,
        kick: u16,
        purpose: Purpose,
        now: Now,
    ) -> Result<Logged, StoreError> {
        let place = match self.store.append_update(change, kick, purpose, now) {
            Ok(place) => place,
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        };
        let applied = match self.queue.apply(change, place, now.mono) {
            Ok(applied) => applied,
            Err(error) => unreachable!("the queue decided on a change it refuses: {error}"),
        };
        assert!(
            !applied.orphan,
            "an update is decided for a job that exists"
        );
        self.store.keep_update(place);
        if let Some(freed) = applied.update_freed {
            self.store.free_update(freed);
        }
        Ok(Logged::Done)
    }

    /// Log and apply the put of a new job.
    #[inline(always)]
    pub(super) fn log_put(
        &mut self,
        put: &Change<'_>,
        tube: &str,
        body: &[u8],
        now: Now,
    ) -> Result<Logged, StoreError> {
        let place = match self.store.append(put, body, Purpose::Put, now) {
            Ok(place) => place,
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        };
        self.apply_put(put, place, (tube, body.len()), now);
        Ok(Logged::Done)
    }

    /// The same with a body that was begun. `None`: its beginning could not be read, and nothing
    /// happened.
    pub(super) fn log_begun(
        &mut self,
        put: &Change<'_>,
        tube: &str,
        (begun, rest): (&Begun, &[u8]),
        now: Now,
    ) -> Result<Option<Logged>, StoreError> {
        let place = match self.store.append_begun(put, (begun, rest), now) {
            Ok(Some(place)) => place,
            Ok(None) => return Ok(None),
            Err(AppendError::NoRoom(_)) => return Ok(Some(Logged::Full)),
            Err(AppendError::Failed(error)) => return Err(error),
        };
        self.apply_put(put, place, (tube, begun.size() + rest.len()), now);
        Ok(Some(Logged::Done))
    }

    #[inline(always)]
    fn apply_put(
        &mut self,
        put: &Change<'_>,
        place: Place,
        (tube, body_size): (&str, usize),
        now: Now,
    ) {
        if let Err(error) = self.queue.apply(put, place, now.mono) {
            unreachable!("a new job is refused: {error}");
        }
        self.store.keep_put(place, tube.len(), body_size);
    }

    /// Make way for the delete of a job that exists, log and apply it.
    #[inline(always)]
    pub(super) fn delete(&mut self, id: JobId, now: Now) -> Result<Logged, StoreError> {
        self.make_way(Purpose::Delete, now)?;
        self.log_delete(id, now)
    }

    /// Log and apply the delete of a job that exists. It has several callers, and a call costs the
    /// command `delete` 30 instructions.
    #[inline(always)]
    pub(super) fn log_delete(&mut self, id: JobId, now: Now) -> Result<Logged, StoreError> {
        let Some(place) = self.queue.place(id) else {
            unreachable!("job {id} is deleted and does not exist")
        };
        match self.store.append_delete(id, place, now) {
            Ok(_) => {}
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        let delete = Change::Delete { id };
        let applied = match self.queue.apply(&delete, Place::NONE, now.mono) {
            Ok(applied) => applied,
            Err(error) => unreachable!("a job that exists cannot be deleted: {error}"),
        };
        if let Some((place, dims)) = applied.put_freed {
            let (tube_size, body_size) = (dims.tube_len as usize, dims.body_size as usize);
            self.store.free_put(place, tube_size, body_size);
        }
        if let Some(place) = applied.update_freed {
            self.store.free_update(place);
        }
        if let Some((place, list_size)) = applied.attributes_freed {
            self.store.free_attributes(place, list_size as usize);
        }
        Ok(Logged::Done)
    }

    /// Hand ready jobs to clients that wait for them, this many or some more if they are in a batch. Says
    /// whether no more are left to hand out.
    pub(super) fn serve_waiting(
        &mut self,
        mut budget: usize,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<bool, StoreError> {
        while budget > 0 {
            if self.queue.has_failures() {
                return Ok(true);
            }
            let Some((client, job)) = self.queue.next_match() else {
                return Ok(true);
            };
            let count = match self.is_over(job, now) {
                Some(reason) => match self.set_aside(job, reason, now)? {
                    Logged::Done => 1,
                    Logged::Full if self.has_to_wait() => return Ok(true),
                    Logged::Full => self.refuse_waiting(client, sink),
                },
                None => {
                    let terms = self.queue.terms(client);
                    match self.hand_out(client, job, terms, now, sink)? {
                        Handed::NotNow if self.has_to_wait() => return Ok(true),
                        Handed::NotNow => self.refuse_waiting(client, sink),
                        Handed::Batch(count) => count,
                        Handed::Out | Handed::Later | Handed::Lost => 1,
                    }
                }
            };
            budget = budget.saturating_sub(count);
        }
        Ok(self.queue.next_match().is_none())
    }

    /// A client waits for a job that cannot be handed out now: it is told so, as if it asked now. Else no
    /// one who waits would be served, and no wait would end, until that job can be.
    fn refuse_waiting(&mut self, client: ClientId, sink: &mut dyn ReplySink) -> usize {
        self.queue.stop_waiting(client);
        sink.reply(client, self.after(), Reply::OutOfMemory);
        1
    }

    /// Reserve a ready job for a client and send it, with others if the terms say so. If its body is
    /// lost and that is found out later, the client waits for another one on these terms.
    fn hand_out(
        &mut self,
        client: ClientId,
        id: JobId,
        terms: Terms,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Handed, StoreError> {
        let Some((place, dims)) = self.queue.put_record(id) else {
            unreachable!("job {id} is ready and does not exist")
        };
        let (tube_size, body_size) = (dims.tube_len as usize, dims.body_size as usize);
        if is_in_pieces(client, body_size, sink) {
            self.note_reserved(client, id, now)?;
            let what = Wanted::Job { terms };
            let awaited = Awaited { client, id, what };
            return Ok(match self.give_out(awaited, now, sink)? {
                Flow::Blocked => Handed::Later,
                Flow::Next | Flow::Close => Handed::Out,
            });
        }
        if let Some(most) = terms.most {
            return self.hand_out_batch(client, id, most, now, sink);
        }
        if self.is_counted(id) || self.queue.frees_key_when_reserved(id) {
            return self.hand_out_recorded(client, (id, place, dims), now, sink);
        }
        let after = self.after();
        match self.store.read_body(place, id, tube_size, body_size) {
            Ok(body) => {
                if sink.is_inside(client) {
                    sink.note_delivery(self.queue.delivery(id, now.mono));
                }
                sink.reply(client, after, Reply::Reserved(id, body));
                self.note_reserved(client, id, now)?;
                Ok(Handed::Out)
            }
            Err(error) => self.not_read(id, &error, now),
        }
    }

    /// A body could not be read: the job is buried where that is because the body is lost.
    pub(super) fn not_read(
        &mut self,
        id: JobId,
        error: &BodyError,
        now: Now,
    ) -> Result<Handed, StoreError> {
        if let BodyError::NoDescriptor { .. } = error {
            tracing::debug!("job {id}: {error}");
            return Ok(Handed::NotNow);
        }
        self.quarantine(id, error, now)
    }

    /// The body of a job is lost. The job is buried, so that it harms no one and can be looked
    /// into, and the server goes on.
    fn quarantine(&mut self, id: JobId, error: &BodyError, now: Now) -> Result<Handed, StoreError> {
        let Some(job) = self.queue.job(id) else {
            return Ok(Handed::Lost);
        };
        let (pri, is_buried) = (job.pri, job.state == JobState::Buried);
        if !is_buried
            && let Some(change) = self.queue.decide_bury(id, pri)
            && let Logged::Full = self.update(&change, Purpose::Update, now)?
        {
            // It would be found again at once, and again: anyone who asks is told to come later.
            let missing = crate::storage::format::update::SIZE as u64;
            if self.burials_shortage.note_refused(missing, now.wall_ns) {
                tracing::error!(
                    "job {id} cannot be buried on a full disk: {error}; clients that ask for it get \
                     OUT_OF_MEMORY, and it is buried once there is room: make some"
                );
            }
            return Ok(Handed::NotNow);
        }
        self.burials_shortage.note_room(now.wall_ns);
        tracing::error!(
            "job {id} is buried: {error}; the next start refuses this log (exit code 3), unless \
             the job is deleted and its file could be rewritten by then; stop the server when it \
             suits, and write all other jobs to a new directory with `bsd-wal repair`"
        );
        Ok(Handed::Lost)
    }
}

impl Engine {
    /// Whether the bound of memory leaves room for a body; where that changes, it is said.
    pub(super) fn has_memory_for(&mut self, size: u64, now: Now) -> bool {
        let left = self.memory_left();
        if left >= size {
            if self.memory_shortage.is_on() && self.memory_shortage.note_room(now.wall_ns) {
                tracing::warn!("there is room below --max-memory again");
            }
            return true;
        }
        let missing = size - left;
        if self.memory_shortage.note_refused(missing, now.wall_ns) {
            tracing::warn!(
                "--max-memory is reached: puts are refused until {missing} bytes of it are free; \
                 delete jobs, or give more"
            );
        }
        false
    }
}

/// This many clients that wait are served after a command.
pub(super) const SERVED: usize = 16;
/// Jobs that must not be handed out and are set aside in one reserve, at most.
const SET_ASIDE_MAX: usize = 16;
/// Watch lists of more tubes than this grow only while half of what is for clients is free, so that
/// those who watch many leave room for those who watch a few.
const LONG_WATCH_LIST: usize = 64;
/// Entries that each `watch` takes off the lists of clients that have left: more than it adds.
const TAKEN_APART_A_WATCH: usize = 2;

impl Engine {
    /// Whether the bound of what clients take leaves room for one tube, watch or pause more, of a
    /// client that watches this many tubes; where that changes, it is said.
    pub(super) fn has_room_for_client(&mut self, watched: usize, now: Now) -> bool {
        let Some(all) = self.clients_memory_max else {
            return true;
        };
        let bound = match watched > LONG_WATCH_LIST {
            true => all / 2,
            false => all,
        };
        let taken = self.queue.clients_memory();
        if taken < bound {
            if self.clients_shortage.is_on() && self.clients_shortage.note_room(now.wall_ns) {
                tracing::warn!("there is room for watch lists and tubes again");
            }
            return true;
        }
        let missing = taken - bound + 1;
        if self.clients_shortage.note_refused(missing, now.wall_ns) {
            tracing::warn!(
                "watch lists and tubes without jobs take {taken} bytes, of which {all} are \
                 for them: clients that watch more than {LONG_WATCH_LIST} tubes may watch no more \
                 at half of it, and others at all of it; have clients watch fewer, or give more \
                 with --max-memory"
            );
        }
        false
    }
}

impl Engine {
    /// The id of a new job; where no id is left, that is said.
    #[inline]
    pub(super) fn take_id(&mut self) -> Option<JobId> {
        let id = self.queue.take_id();
        if id.is_none() {
            tracing::error!(
                "no job can be put: the log holds a job with the largest id there is, and none is \
                 given out twice; begin a new log once this one is empty"
            );
        }
        id
    }

    /// Whether a tube is there, or there is room for one tube more.
    pub(super) fn has_room_for_tube(&mut self, tube: &str, now: Now) -> bool {
        self.queue.tube_exists(tube) || self.has_room_for_client(0, now)
    }

    /// Whether the share of pauses leaves room for one more of this owner; where that changes, it is
    /// said.
    fn has_room_for_pause(&mut self, owner: &Owner, now: Now) -> bool {
        if self.pauses.has_room_for(owner) {
            if self.pauses_shortage.is_on() && self.pauses_shortage.note_room(now.wall_ns) {
                tracing::warn!("there is room for pauses again");
            }
            return true;
        }
        let (taken, share) = (self.pauses.memory(), self.pauses.share());
        if self.pauses_shortage.note_refused(1, now.wall_ns) {
            tracing::warn!(
                "pauses take {taken} bytes, and their limit is {share}: clients {owner} may pause no \
                 further tubes until some of their pauses have ended; pause fewer tubes, for a shorter \
                 time, or raise --max-memory"
            );
        }
        false
    }

    /// Whether pausing this tube, or lifting its pause, only changes what is held already.
    fn has_pause(&self, tube: &str, now: Now) -> bool {
        let stats = self.queue.tube_stats(tube, now.mono);
        self.pauses.has(tube) || stats.is_some_and(|stats| stats.pause_left_ns > 0)
    }

    /// The size of the body that a command of this client only looks at, bytes; 0 if it does something
    /// else, or no such job exists.
    #[must_use]
    pub fn peeked_size(&self, client: ClientId, request: &Request<'_>) -> usize {
        let Request::Command(command) = request else {
            return 0;
        };
        let id = self.peeked(client, command);
        let job = id.and_then(|id| self.queue.job(id));
        job.map_or(0, |job| job.body_size as usize)
    }

    /// The job that a command looks at.
    fn peeked(&self, client: ClientId, command: &Command<'_>) -> Option<JobId> {
        let (queue, used) = (&self.queue, self.queue.used_tube(client));
        let tube = command.tube().unwrap_or(used);
        match command {
            Command::Peek(id) => Some(*id),
            Command::PeekReady(_) => queue.peek_ready(tube),
            Command::PeekDelayed(_) => queue.peek_delayed(tube),
            Command::PeekBuried(_) => queue.peek_buried(tube),
            _ => None,
        }
    }
}

/// One command of one client.
pub(super) struct Turn<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) client: ClientId,
    pub(super) now: Now,
    pub(super) sink: &'a mut dyn ReplySink,
}

impl Turn<'_> {
    pub(super) fn reply(&mut self, reply: Reply<'_>) -> Result<Flow, StoreError> {
        let after = self.engine.after();
        self.sink.reply(self.client, after, reply);
        Ok(Flow::Next)
    }

    fn reply_unless_out(&mut self, outcome: &Handed) -> Result<Flow, StoreError> {
        match outcome.refusal() {
            None => Ok(Flow::Next),
            Some(reply) => self.reply(reply),
        }
    }

    /// Reply, then serve clients that wait for what this command made ready.
    pub(super) fn reply_and_serve(&mut self, reply: Reply<'_>) -> Result<Flow, StoreError> {
        self.reply(reply)?;
        if self.engine.queue.has_match() {
            self.engine.serve_waiting(SERVED, self.now, self.sink)?;
        }
        Ok(Flow::Next)
    }

    /// A new job in this tube, or in the one that the client uses, for `put` or `put-with`. Of its body
    /// `rest` comes behind what was begun.
    pub(super) fn put(
        &mut self,
        op: Op,
        tube: Option<&str>,
        (pri, delay, ttr): (u32, u32, u32),
        (begun, rest): (Option<&Begun>, &[u8]),
    ) -> Result<Flow, StoreError> {
        let body_size = begun.map_or(0, Begun::size) + rest.len();
        if let Some(refusal) = self.refuses_put(op, tube, body_size) {
            return self.reply(refusal);
        }
        if self.policy_refuses(tube, body_size, None) {
            return self.reply(Reply::OutOfMemory);
        }
        let engine = &mut *self.engine;
        let used = engine.queue.used_tube(self.client).clone();
        let tube = tube.unwrap_or(&used);
        let Some(id) = engine.take_id() else {
            return self.reply(Reply::OutOfMemory);
        };
        let change = Change::Put {
            id,
            tube,
            pri,
            delay,
            ttr,
            created: self.now.mono,
            body_size: body_size as u32,
        };
        let logged = match begun {
            None => engine.log_put(&change, tube, rest, self.now)?,
            Some(begun) => match engine.log_begun(&change, tube, (begun, rest), self.now)? {
                Some(logged) => logged,
                None => return self.reply(Reply::InternalError),
            },
        };
        match logged {
            Logged::Done => self.reply_and_serve(Reply::Inserted(id)),
            Logged::Full => self.reply(Reply::OutOfMemory),
        }
    }

    /// Why the server takes no job of this size, for this tube or the one that the client uses.
    #[inline(always)]
    pub(super) fn refuses_put(
        &mut self,
        op: Op,
        tube: Option<&str>,
        body_size: usize,
    ) -> Option<Reply<'static>> {
        let engine = &mut *self.engine;
        engine.count(op);
        engine.queue.set_producer(self.client);
        if engine.draining {
            return Some(Reply::Draining);
        }
        if engine.is_archive_late(self.now) {
            return Some(Reply::OutOfMemory);
        }
        if engine.memory_max.is_some() && !engine.has_memory_for(body_size as u64, self.now) {
            return Some(Reply::OutOfMemory);
        }
        if tube.is_some_and(|tube| !engine.has_room_for_tube(tube, self.now)) {
            return Some(Reply::OutOfMemory);
        }
        None
    }

    /// Whether the policy of a tube, or of the one that the client uses, refuses a job of this size, in the
    /// place of another one if that is said. Counts what is refused.
    #[inline(always)]
    pub(super) fn policy_refuses(
        &mut self,
        tube: Option<&str>,
        body_size: usize,
        replaced: Option<JobId>,
    ) -> bool {
        let queue = &mut self.engine.queue;
        if !queue.has_policies() {
            return false;
        }
        let used = queue.used_tube(self.client).clone();
        let tube = tube.unwrap_or(&used);
        let is_full = queue.is_full(tube, body_size as u64, replaced);
        if is_full {
            queue.note_put_refused(tube);
        }
        is_full
    }

    /// One job, or at most this many in a batch.
    pub(super) fn reserve(
        &mut self,
        timeout: Option<Duration>,
        most: Option<u16>,
        op: Op,
    ) -> Result<Flow, StoreError> {
        let engine = &mut *self.engine;
        engine.count(op);
        engine.queue.set_worker(self.client);
        let (client, now) = (self.client, self.now);
        let until = timeout.map(|timeout| now.mono.plus(timeout));
        let terms = Terms { until, most };
        if engine.queue.takes_long(client) || engine.queue.has_failures() {
            engine.queue.wait(client, terms);
            engine.is_busy = true;
            return Ok(Flow::Blocked);
        }
        if engine.queue.deadline_soon(client, now.mono) && !engine.queue.has_ready(client) {
            return self.reply(Reply::DeadlineSoon);
        }
        let mut set_aside = 0;
        while let Some(id) = engine.queue.best_ready(client, now.mono) {
            if let Some(reason) = engine.is_over(id, now) {
                if set_aside == SET_ASIDE_MAX {
                    // It gets the next one that is left, if only now.
                    engine.queue.wait(client, terms);
                    engine.is_busy = true;
                    return Ok(Flow::Blocked);
                }
                set_aside += 1;
                match engine.set_aside(id, reason, now)? {
                    Logged::Done => continue,
                    Logged::Full if engine.has_to_wait() => {
                        engine.queue.wait(client, terms);
                        engine.is_busy = true;
                        return Ok(Flow::Blocked);
                    }
                    Logged::Full => return self.reply(Reply::OutOfMemory),
                }
            }
            match engine.hand_out(client, id, terms, now, self.sink)? {
                Handed::Out | Handed::Batch(_) => return Ok(Flow::Next),
                Handed::Later => return Ok(Flow::Blocked),
                Handed::Lost => {}
                Handed::NotNow => return self.reply(Reply::OutOfMemory),
            }
        }
        if timeout == Some(Duration::ZERO) {
            return self.reply(Reply::TimedOut);
        }
        self.engine.queue.wait(client, terms);
        Ok(Flow::Blocked)
    }

    fn reserve_job(&mut self, id: JobId) -> Result<Flow, StoreError> {
        let engine = &mut *self.engine;
        engine.count(Op::ReserveJob);
        let Some(job) = engine
            .queue
            .job(id)
            .filter(|job| job.state != JobState::Reserved)
        else {
            return self.reply(Reply::NotFound);
        };
        let (place, tube_size, body_size) = (job.place, job.put_tube_size, job.body_size as usize);
        engine.queue.set_worker(self.client);
        if is_in_pieces(self.client, body_size, self.sink) {
            return self.give_out(id, Wanted::ThisJob);
        }
        if let Err(error) = engine.store.read_body(place, id, tube_size, body_size) {
            let outcome = engine.not_read(id, &error, self.now)?;
            return self.reply_unless_out(&outcome);
        }
        // A job that was set aside is ready after a restart, not set aside again.
        if let Some(change) = engine.queue.decide_reserve_job(id)
            && let Logged::Full = engine.update(&change, Purpose::Update, self.now)?
        {
            return self.reply(Reply::OutOfMemory);
        }
        let outcome = engine.hand_out(self.client, id, Terms::default(), self.now, self.sink)?;
        self.reply_unless_out(&outcome)
    }

    fn delete(&mut self, id: JobId) -> Result<Flow, StoreError> {
        let engine = &mut *self.engine;
        engine.count(Op::Delete);
        if !engine.queue.deletable(self.client, id) {
            return self.reply(Reply::NotFound);
        }
        match engine.delete(id, self.now)? {
            Logged::Done => self.reply(Reply::Deleted),
            Logged::Full => self.reply(Reply::OutOfMemory),
        }
    }

    fn release(&mut self, id: JobId, pri: u32, delay: u32) -> Result<Flow, StoreError> {
        self.engine.count(Op::Release);
        if self.engine.acts_on_failures(id) {
            let wish = Some((pri, delay));
            return self.fail_job(id, Reason::Released, wish, None);
        }
        let change = self
            .engine
            .queue
            .decide_release(id, pri, delay, self.now.mono);
        self.let_go(id, change, Reply::Released)
    }

    fn bury(&mut self, id: JobId, pri: u32) -> Result<Flow, StoreError> {
        self.engine.count(Op::Bury);
        if self.engine.has_deliveries(id) {
            return self.bury_with(id, pri, None);
        }
        let change = self.engine.queue.decide_bury(id, pri);
        self.let_go(id, change, Reply::Buried)
    }

    /// A client gives a reserved job back.
    fn let_go(
        &mut self,
        id: JobId,
        change: Option<Change<'_>>,
        reply: Reply<'_>,
    ) -> Result<Flow, StoreError> {
        let Some(change) = change.filter(|_| self.engine.queue.is_reserved_by(self.client, id))
        else {
            return self.reply(Reply::NotFound);
        };
        match self.engine.update(&change, Purpose::Update, self.now)? {
            Logged::Done => self.reply_and_serve(reply),
            Logged::Full => self.reply(Reply::OutOfMemory),
        }
    }

    fn touch(&mut self, id: JobId) -> Result<Flow, StoreError> {
        self.engine.count(Op::Touch);
        match self.engine.queue.touch(self.client, id, self.now.mono) {
            true => self.reply(Reply::Touched),
            false => self.reply(Reply::NotFound),
        }
    }

    /// Kick jobs of this tube, or of the one that the client uses.
    fn kick(&mut self, tube: Option<&str>, bound: u32) -> Result<Flow, StoreError> {
        let (client, now) = (self.client, self.now);
        self.engine.count(Op::Kick);
        let used = self.engine.queue.used_tube(client).clone();
        let kick = (tube.unwrap_or(&used), bound);
        match self.engine.kick(client, kick, now, self.sink)? {
            Some(kicked) => self.reply(Reply::KickedCount(kicked)),
            None => Ok(Flow::Blocked),
        }
    }

    fn kick_job(&mut self, id: JobId) -> Result<Flow, StoreError> {
        self.engine.count(Op::KickJob);
        let Some(change) = self.engine.queue.decide_kick(id) else {
            return self.reply(Reply::NotFound);
        };
        match self.engine.log_kick(&change, id, NO_KICK, self.now)? {
            Logged::Done => self.reply_and_serve(Reply::Kicked),
            Logged::Full => self.reply(Reply::OutOfMemory),
        }
    }

    fn peek(&mut self, op: Op, command: &Command<'_>) -> Result<Flow, StoreError> {
        let engine = &mut *self.engine;
        engine.count(op);
        let id = engine.peeked(self.client, command);
        let Some(job) = id.and_then(|id| engine.queue.job(id)) else {
            return self.reply(Reply::NotFound);
        };
        let (id, tube_size, body_size) = (job.id, job.put_tube_size, job.body_size as usize);
        if is_in_pieces(self.client, body_size, self.sink) {
            return self.give_out(id, Wanted::Look);
        }
        let after = engine.after();
        match engine.store.read_body(job.place, id, tube_size, body_size) {
            Ok(body) => self.sink.reply(self.client, after, Reply::Found(id, body)),
            Err(error) => {
                let outcome = engine.not_read(id, &error, self.now)?;
                return self.reply_unless_out(&outcome);
            }
        }
        Ok(Flow::Next)
    }

    fn give_out(&mut self, id: JobId, what: Wanted) -> Result<Flow, StoreError> {
        let client = self.client;
        let awaited = Awaited { client, id, what };
        self.engine.give_out(awaited, self.now, self.sink)
    }

    fn use_tube(&mut self, tube: &str) -> Result<Flow, StoreError> {
        self.engine.count(Op::Use);
        if !self.engine.has_room_for_tube(tube, self.now) {
            return self.reply(Reply::OutOfMemory);
        }
        self.engine.queue.use_tube(self.client, tube, self.now.mono);
        self.reply(Reply::Using(tube))
    }

    fn watch(&mut self, tube: &str) -> Result<Flow, StoreError> {
        self.engine.count(Op::Watch);
        self.engine
            .queue
            .take_apart(TAKEN_APART_A_WATCH, self.now.mono);
        self.engine.settle_failures(self.now)?;
        let watched = self.engine.queue.watched(self.client).len();
        if !self.engine.has_room_for_client(watched, self.now)
            && !self.engine.queue.watches(self.client, tube)
        {
            return self.reply(Reply::OutOfMemory);
        }
        let count = self.engine.queue.watch(self.client, tube);
        self.reply(Reply::Watching(count))
    }

    fn ignore(&mut self, tube: &str) -> Result<Flow, StoreError> {
        self.engine.count(Op::Ignore);
        match self.engine.queue.ignore(self.client, tube, self.now.mono) {
            Some(count) => self.reply(Reply::Watching(count)),
            None => self.reply(Reply::NotIgnored),
        }
    }

    fn pause_tube(&mut self, tube: &str, delay: u32) -> Result<Flow, StoreError> {
        self.engine.count(Op::PauseTube);
        if !self.engine.queue.tube_exists(tube) {
            return self.reply(Reply::NotFound);
        }
        let owner = Owner::of(self.sink.link(self.client));
        let may_begin = |engine: &mut Engine, now| {
            engine.has_room_for_client(0, now) && engine.has_room_for_pause(&owner, now)
        };
        if !self.engine.has_pause(tube, self.now) && !may_begin(self.engine, self.now) {
            return self.reply(Reply::OutOfMemory);
        }
        // A pause of 0 seconds is over at once: it lifts the one that is on.
        let until = match delay {
            0 => Time(self.now.mono.0.saturating_add(1)),
            seconds => self.now.mono.plus_seconds(seconds),
        };
        match self.engine.pause((tube, &owner), delay, until, self.now)? {
            Logged::Done => self.reply_and_serve(Reply::Paused),
            Logged::Full => self.reply(Reply::OutOfMemory),
        }
    }
}
