//! A turn of a loop that has calls and no sockets.

use crate::clock::Clock;
use crate::door::{Desk, Door};
use crate::engine::{Engine, ReplySink};
use crate::protocol::Reply;
use crate::storage::StoreError;
use crate::types::{ClientId, JobCounts, Now, Position, Time};

/// How long calls may be run before they are committed, nanoseconds, give or take one call.
const SLICE_NS: i64 = 1_000_000;
/// So often others are let go first before a sync, as long as they bring more calls.
const GATHERS_MAX: usize = 8;

/// An engine with a desk.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) engine: Engine,
    pub(super) door: Door,
    desk: Desk,
    clock: Clock,
}

/// All clients are the desk's.
struct Nobody;

impl ReplySink for Nobody {
    fn reply(&mut self, client: ClientId, _: Position, reply: Reply<'_>) {
        unreachable!("{reply:?} for {client:?}, who is nobody");
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

    /// Run what has come, and what comes while others are let go first; commit; answer.
    ///
    /// # Errors
    /// When the disk failed. All callers have been told.
    pub(super) fn turn(&mut self) -> Result<(), StoreError> {
        self.serve();
        self.gather();
        self.settle()
    }

    /// Run what has come.
    pub(super) fn serve(&mut self) {
        let (clock, now) = (self.clock, self.clock.now());
        let end = Time(now.mono.0 + SLICE_NS);
        let mut is_over = || clock.now().mono >= end;
        self.desk
            .serve(&mut self.engine, now, &mut Nobody, &mut is_over);
    }

    /// Those who were just answered are about to call again, and a sync is long: whoever calls
    /// before it shares it.
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

    /// Let time pass, commit, and give the answers that may be given.
    ///
    /// # Errors
    /// When the disk failed. All callers have been told.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        self.tick()?;
        self.commit()
    }

    /// What is due happens.
    ///
    /// # Errors
    /// When the disk failed. All callers have been told.
    pub(super) fn tick(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut nobody = Nobody;
        let ticked = self.engine.tick(now, &mut self.desk.replies(&mut nobody));
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

    /// A clean stop: everything is durable, and all that was done is answered. Who still waits is
    /// told that the queue is closed. Returns what is kept.
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
        desk.acknowledge(Position::from_bits(u64::MAX));
        Ok(kept)
    }
}
