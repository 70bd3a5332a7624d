//! Long work, in steps: listings, searches, actions on many jobs.
//!
//! A step is a part of a turn of the loop. It has the engine to itself, and returns it when its
//! slice is over. Between two steps any job may change in any way.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::call::{Answer, JobError, Outcome};
use super::handover::Giver;
use super::seats::{Replies, Seats};
use crate::engine::{
    Altered, Engine, Feed, HeldJob, JobAction, Link, ReplySink, Returned, ScheduleChange,
    ScheduleRun,
};
use crate::protocol::{Command, SetSchedule};
use crate::storage::StoreError;
use crate::types::{ClientId, JobId, Now, Time};

/// Who looks at a queue that follows: it has no clients before it leads.
pub(super) const NO_CLIENT: ClientId = ClientId(u32::MAX);

/// Something that is done in steps, on the engine's thread.
pub trait Work: Send + 'static {
    /// Do a part: continue until [`Slice::is_over`], or until all is done. Do not wait here, and do
    /// nothing that takes time in proportion to the number of jobs: the loop stops meanwhile.
    fn step(&mut self, slice: &mut Slice<'_>) -> Step;
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// There is more to do, but not before this time.
    NotBefore(Time),
    /// All is done.
    Done,
}

/// The parts of the server that a step may use, and its time.
pub struct Slice<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) now: Now,
    pub(super) client: ClientId,
    pub(super) seats: &'a mut Seats,
    pub(super) others: &'a mut dyn ReplySink,
    pub(super) is_over: &'a mut dyn FnMut() -> bool,
}

impl std::fmt::Debug for Slice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slice")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Slice<'_> {
    /// The engine, for reading.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// The time of this turn.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// True when the step must end.
    pub fn is_over(&mut self) -> bool {
        (self.is_over)()
    }

    /// The connection of a client; `None` for sessions of this door.
    #[must_use]
    pub fn link(&self, client: ClientId) -> Option<Link> {
        if self.seats.has(client) {
            return None;
        }
        self.others.link(client)
    }

    /// Run one command, in a session that belongs to the work. It is done when this returns, and is
    /// durable, as the policy says, when the task is over.
    ///
    /// # Errors
    /// As for a call.
    ///
    /// # Panics
    /// If it [may wait](Command::may_wait).
    pub fn run(&mut self, command: Command<'_>) -> Result<Answer, JobError> {
        let Slice {
            engine,
            now,
            client,
            seats,
            others,
            ..
        } = self;
        let (_, outcome) = seats.run(*client, command, engine, *now, *others);
        outcome
    }
}

/// The body of a job, for those who look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peeked {
    /// All of it.
    Body(Vec<u8>),
    /// There is no such job.
    Gone,
    /// The copy of this server has it, and it cannot be read from there: says why. The job is left as it
    /// is.
    Unreadable(String),
}

impl Slice<'_> {
    /// The body of a job. A queue that follows reads its own copy, which may be behind; one that leads
    /// counts it as a peek, and buries a job whose body is damaged.
    ///
    /// # Errors
    /// As for a call.
    pub fn peek(&mut self, id: JobId) -> Result<Peeked, JobError> {
        if self.engine.is_following() {
            return Ok(match self.engine.look_at_body(id) {
                None => Peeked::Gone,
                Some(Ok(body)) => Peeked::Body(body.to_vec()),
                Some(Err(error)) => Peeked::Unreadable(error.to_string()),
            });
        }
        match self.run(Command::Peek(id)) {
            Ok(Answer::Found(job)) => Ok(Peeked::Body(job.body)),
            Ok(_) | Err(JobError::NotFound) => Ok(Peeked::Gone),
            Err(error) => Err(error),
        }
    }

    /// Do this to a job that no client has reserved, or take it from its client. It is done when this
    /// returns, and is durable, as the policy says, when the task is over.
    ///
    /// # Errors
    /// [`JobError::NotLeader`]: this queue follows. [`JobError::Store`]: the disk failed, now or earlier.
    pub fn alter(&mut self, id: JobId, action: &JobAction) -> Result<Altered, JobError> {
        if self.engine.is_following() {
            return Err(JobError::NotLeader);
        }
        let mut replies = Replies::new(self.seats, self.others);
        let altered = self.engine.alter(id, action, self.now, &mut replies);
        altered.map_err(JobError::Store)
    }

    /// Hold a job back: [`Engine::hold_back`]. Durable, as the policy says, when the task is over.
    ///
    /// # Errors
    /// [`JobError::NotLeader`]: this queue follows. [`JobError::Store`]: the disk failed, now or earlier.
    pub fn hold_back(
        &mut self,
        id: JobId,
        why: &str,
    ) -> Result<(Altered, Option<HeldJob>), JobError> {
        let now = self.now;
        self.decide(|engine| engine.hold_back(id, why, now))
    }

    /// Bring a held job back: [`Engine::bring_back`]. Durable, as the policy says, when the task is
    /// over.
    ///
    /// # Errors
    /// As for [`Slice::hold_back`].
    pub fn bring_back(&mut self, held: &HeldJob) -> Result<Returned, JobError> {
        if self.engine.is_following() {
            return Err(JobError::NotLeader);
        }
        let mut replies = Replies::new(self.seats, self.others);
        let returned = self.engine.bring_back(held, self.now, &mut replies);
        returned.map_err(JobError::Store)
    }

    /// Close the connection of a client: its jobs are ready again soon after. `false` if there is no
    /// such connection.
    ///
    /// # Errors
    /// [`JobError::NotLeader`]: this queue follows, and has no clients.
    pub fn close(&mut self, client: ClientId) -> Result<bool, JobError> {
        if self.engine.is_following() {
            return Err(JobError::NotLeader);
        }
        Ok(!self.seats.has(client) && self.others.close(client))
    }

    /// From now on events are written into this feed: [`Engine::listen`]. Returns the number of the
    /// next one.
    pub fn listen(&mut self, feed: &Arc<Feed>) -> u64 {
        self.engine.listen(feed, self.now)
    }

    /// Refuse puts from now on, or take them again. Nothing durable.
    pub fn drain(&mut self, is_on: bool) {
        match is_on {
            true => self.engine.drain(),
            false => self.engine.undrain(),
        }
    }
}

/// Schedules. What is changed is durable, as the policy says, when the task is over.
///
/// # Errors
/// [`JobError::NotLeader`]: this queue follows. [`JobError::Store`]: the disk failed, now or earlier.
impl Slice<'_> {
    /// Set one: [`Engine::set_schedule`].
    ///
    /// # Errors
    /// As for all of them.
    pub fn set_schedule(&mut self, set: &SetSchedule) -> Result<ScheduleChange, JobError> {
        let now = self.now;
        self.decide(|engine| engine.set_schedule(set, now))
    }

    /// Delete one: [`Engine::delete_schedule`].
    ///
    /// # Errors
    /// As for all of them.
    pub fn delete_schedule(&mut self, name: &str) -> Result<ScheduleChange, JobError> {
        let now = self.now;
        self.decide(|engine| engine.delete_schedule(name, now))
    }

    /// Pause one, or have it go on: [`Engine::pause_schedule`].
    ///
    /// # Errors
    /// As for all of them.
    pub fn pause_schedule(
        &mut self,
        name: &str,
        is_paused: bool,
    ) -> Result<ScheduleChange, JobError> {
        let now = self.now;
        self.decide(|engine| engine.pause_schedule(name, is_paused, now))
    }

    /// Put the job of one now: [`Engine::run_schedule_now`].
    ///
    /// # Errors
    /// As for all of them.
    pub fn run_schedule_now(&mut self, name: &str) -> Result<ScheduleRun, JobError> {
        let now = self.now;
        self.decide(|engine| engine.run_schedule_now(name, now))
    }

    /// Do this, unless another queue decides.
    fn decide<T>(
        &mut self,
        run: impl FnOnce(&mut Engine) -> Result<T, StoreError>,
    ) -> Result<T, JobError> {
        match self.engine.is_following() {
            true => Err(JobError::NotLeader),
            false => run(self.engine).map_err(JobError::Store),
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Slice<'_> {
    /// One without an end, for the only client of an engine.
    pub fn alone<R>(engine: &mut Engine, now: Now, run: impl FnOnce(&mut Slice<'_>) -> R) -> R {
        struct NoOne;
        impl ReplySink for NoOne {
            fn reply(
                &mut self,
                _: ClientId,
                _: crate::types::Ticket,
                _: crate::protocol::Reply<'_>,
            ) {
            }
        }
        let mut seats = Seats::default();
        let client = match engine.is_following() {
            true => NO_CLIENT,
            false => engine.connect(),
        };
        if client != NO_CLIENT {
            seats.seat(client, 0);
        }
        run(&mut Slice {
            engine,
            now,
            client,
            seats: &mut seats,
            others: &mut NoOne,
            is_over: &mut || false,
        })
    }
}

/// A task as the desk sees it.
pub(super) trait Running: Send {
    fn is_abandoned(&self) -> bool;
    /// The rest is not wanted: the result is what was done so far.
    fn is_cancelled(&self) -> bool;
    fn step(&mut self, slice: &mut Slice<'_>) -> Step;
    /// Return the work to the caller that started it.
    fn finish(self: Box<Self>);
}

/// Work of one step, whose result is an answer.
pub(super) struct Once<F> {
    run: Option<F>,
    outcome: Option<Outcome>,
    giver: Giver<Outcome>,
}

impl<F> Once<F> {
    pub(super) fn new(run: F, giver: Giver<Outcome>) -> Once<F> {
        Once {
            run: Some(run),
            outcome: None,
            giver,
        }
    }
}

impl<F: FnOnce(&mut Slice<'_>) -> Outcome + Send> Running for Once<F> {
    fn is_abandoned(&self) -> bool {
        self.giver.is_abandoned()
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.outcome = self.run.take().map(|run| run(slice));
        Step::Done
    }

    fn finish(self: Box<Self>) {
        if let Some(outcome) = self.outcome {
            // If the caller no longer waits for it, it ends here.
            let _ = self.giver.give(outcome);
        }
    }
}

/// Work of several steps, whose result is an answer.
pub(super) struct Steps<F> {
    step: F,
    outcome: Option<Outcome>,
    giver: Giver<Outcome>,
}

impl<F> Steps<F> {
    pub(super) fn new(step: F, giver: Giver<Outcome>) -> Steps<F> {
        Steps {
            step,
            outcome: None,
            giver,
        }
    }
}

impl<F: FnMut(&mut Slice<'_>) -> ControlFlow<Outcome, Step> + Send> Running for Steps<F> {
    fn is_abandoned(&self) -> bool {
        self.giver.is_abandoned()
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        match (self.step)(slice) {
            ControlFlow::Continue(step) => step,
            ControlFlow::Break(outcome) => {
                self.outcome = Some(outcome);
                Step::Done
            }
        }
    }

    fn finish(self: Box<Self>) {
        if let Some(outcome) = self.outcome {
            // If the caller no longer waits for it, it ends here.
            let _ = self.giver.give(outcome);
        }
    }
}
