//! A turn of a loop that has calls and no sockets.

use crate::clock::Clock;
use crate::door::{Desk, Door};
use crate::engine::{Engine, ReplySink};
use crate::protocol::Reply;
use crate::storage::StoreError;
use crate::types::{ClientId, JobCounts, Now, Ticket, Time};

/// How long calls may run before they are committed, in nanoseconds, more or less by one call.
const SLICE_NS: i64 = 1_000_000;
/// How many times other threads may run before a sync, as long as they send more calls.
const GATHERS_MAX: usize = 8;

/// An engine with a desk.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) engine: Engine,
    pub(super) door: Door,
    desk: Desk,
    clock: Clock,
}

/// All clients belong to the desk.
struct NoOne;

impl ReplySink for NoOne {
    fn reply(&mut self, client: ClientId, _: Ticket, reply: Reply<'_>) {
        unreachable!("{reply:?} for {client:?}, which did not ask");
    }
}

impl Turns {
    pub(super) fn new(engine: Engine, (door, desk): (Door, Desk), clock: Clock) -> Turns {
        Turns {
            engine,
            door,
            desk,
            clock,
        }
    }

    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Run the calls that have come, and those that come while other threads may run; commit;
    /// answer.
    ///
    /// # Errors
    /// When the disk failed. All callers have been told.
    pub(super) fn turn(&mut self) -> Result<(), StoreError> {
        self.serve();
        self.gather();
        self.settle()
    }

    /// Run the calls that have come.
    pub(super) fn serve(&mut self) {
        let (clock, now) = (self.clock, self.clock.now());
        let end = Time(now.mono.0 + SLICE_NS);
        let mut is_over = || clock.now().mono >= end;
        self.desk
            .serve(&mut self.engine, now, &mut NoOne, &mut is_over);
    }

    /// Callers that just got an answer are about to call again, and a sync is long: their calls
    /// share it if they come before it.
    fn gather(&mut self) {
        for _ in 0..GATHERS_MAX {
            if !self.engine.will_wait() {
                return;
            }
            let before = self.desk.taken();
            std::thread::yield_now();
            self.serve();
            if self.desk.taken() == before {
                return;
            }
        }
    }

    /// Do what is due, commit, and give the answers that may be given.
    ///
    /// # Errors
    /// When the disk failed. All callers have been told.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        self.tick()?;
        self.commit()
    }

    /// Do what is due.
    ///
    /// # Errors
    /// When the disk failed. All callers have been told.
    pub(super) fn tick(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut no_one = NoOne;
        let ticked = self.engine.tick(now, &mut self.desk.replies(&mut no_one));
        ticked.inspect_err(|error| self.desk.fail(error))
    }

    /// Make what was done durable, as the policy says, and give the answers that may be given.
    ///
    /// # Errors
    /// When the disk failed. All callers have been told.
    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        let committed = self.engine.commit(self.clock.now());
        committed.inspect_err(|error| self.desk.fail(error))?;
        self.desk.acknowledge(self.engine.acknowledged());
        Ok(())
    }

    /// When there is something to do without a call; a time that is not after `now` means at once.
    pub(super) fn next_deadline(&self, now: Now) -> Option<Time> {
        if self.desk.has_more(now) {
            return Some(now.mono);
        }
        let deadlines = [self.engine.next_deadline(now), self.desk.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// A clean stop: everything is durable, and everything that was done is answered. Callers that
    /// still wait are told that the queue is closed. Returns the number of jobs that are kept.
    ///
    /// # Errors
    /// When the disk failed. All callers have been told.
    pub(super) fn close(self) -> Result<JobCounts, StoreError> {
        let Turns {
            engine,
            mut desk,
            clock,
            ..
        } = self;
        let kept = engine.queue().stats().jobs;
        engine
            .close(clock.now())
            .inspect_err(|error| desk.fail(error))?;
        desk.acknowledge(Ticket::LAST);
        Ok(kept)
    }
}
