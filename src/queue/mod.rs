//! The queue: jobs, tubes and clients in memory, and the rules by which jobs pass between them.
//!
//! It is pure. There is no log here, no file, no socket and no clock: `now` is an argument, and a
//! job is known by its numbers; of its body only the size, of its records only opaque [`Place`]s.
//!
//! *Durable* state (which jobs exist, and each one's state, priority, delay and counters; pauses)
//! changes in one way only: somebody decides on a [`Change`], often with one of the `decide_` methods
//! here, logs it, and gives it to [`Queue::apply`]. Replay gives the same changes to the same method,
//! and so arrives at the same state. *Volatile* state (who is there, uses, watches and waits; what
//! is reserved) has its own methods and is gone after a restart; a reserved job is ready again then.
//! What time alone brings about is done in [`Queue::tick`] and never recorded.
//!
//! # Invariants
//!
//! * A job is in exactly one place, by its state: among its tube's ready, delayed or buried ones, or
//!   among those that a client has reserved.
//! * No method takes time in proportion to the number of jobs or of tubes, but for those that
//!   return an iterator and for [`Queue::finish_replay`]; some do to the length of one client's watch
//!   list. Growing moves nothing that is large.
//! * Two queues that are told the same things do the same things: nothing is random.
//!
//! # Where things are
//!
//! `apply` changes · `job` what is known of a job · `tube` tubes, pauses, `list-tubes` · `client` sessions,
//! reservations, waiting · `wide` those that watch many tubes · `timer` everything that happens by itself · `order`, `tree`, `slab`, `ids` what they
//! are kept in · `stats` counts · `listing` jobs
//! page by page.

mod apply;
mod client;
mod ids;
mod job;
mod listing;
#[cfg(test)]
mod model;
mod order;
#[cfg(test)]
mod random;
mod slab;
mod stats;
#[cfg(test)]
mod tests;
mod timer;
mod tree;
mod tube;
mod wide;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use self::apply::{Applied, ApplyError, RecordDims};
pub use self::client::WaitEnd;
pub use self::listing::{Lost, Mark};
pub use self::stats::{QueueStats, TubeStats};
pub use self::tube::{DEFAULT_TUBE, LapsedPause, TubeList, TubeRef};

use self::client::Client;
use self::job::{DueKey, Jobs, ReadyKey};
use self::order::Order;
use self::slab::{Handle, Slab};
use self::tube::{Tube, Tubes};
use crate::histogram::{Histogram, LONG, Reading};
use crate::types::{Change, ClientId, Counters, JobCounts, JobId, JobState, Place, Time};

/// The queue. See the [module](self).
pub struct Queue {
    jobs: Jobs,
    tubes: Tubes,
    default_tube: Handle<Tube>,
    clients: Slab<Client>,
    /// Clients that left, whose jobs are still to be made ready.
    ghosts: VecDeque<Handle<Client>>,
    is_ghosts_turn: bool,
    /// Tubes by when each next has something due.
    tube_timers: Order<(Time, Handle<Tube>)>,
    /// Clients by the same.
    client_timers: Order<(Time, Handle<Client>)>,
    /// Tubes that have both a ready job and a waiting client and are not paused, by the job.
    matches: Order<(ReadyKey, Handle<Tube>)>,
    /// Tubes that wide clients watch and that have a ready job, be they paused, by the job.
    stocked: BTreeSet<(ReadyKey, Handle<Tube>)>,
    /// Wide clients that wait, by their tickets.
    wide_waiters: BTreeMap<u64, ClientId>,
    /// The tickets of those of them for whom what is there is still being looked through; of clients
    /// that wait no more too.
    searches: VecDeque<u64>,
    /// A client that watches more tubes is wide.
    wide_len: usize,
    /// A wide client's search of at most so many tubes is done at once.
    search_len: usize,
    /// Entries of all watch lists.
    watches: usize,
    lapsed: VecDeque<LapsedPause>,
    next_id: u64,
    next_ticket: u64,
    is_replaying: bool,
    counts: JobCounts,
    connections: u64,
    producers: u64,
    workers: u64,
    waiting: u64,
    total_connections: u64,
    total_jobs: u64,
    timeouts: u64,
    waits: Histogram,
    holds: Histogram,
    visits: Cell<usize>,
}

/// What an entry of a watch list may take, bytes: it is there twice, and a client that waits stands
/// in a queue for it.
const WATCH_SIZE: usize = 48;

/// A job as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobView<'a> {
    /// Its id.
    pub id: JobId,
    /// The name of its tube.
    pub tube: &'a str,
    /// Its state.
    pub state: JobState,
    /// Its priority.
    pub pri: u32,
    /// The last delay asked for, in seconds.
    pub delay: u32,
    /// Seconds.
    pub ttr: u32,
    /// When it was put.
    pub created: Time,
    /// When a delayed job falls due or a reservation runs out; `None` in other states.
    pub deadline: Option<Time>,
    /// What has happened to it.
    pub counters: Counters,
    /// Bytes.
    pub body_size: u32,
    /// Its put record.
    pub place: Place,
    /// The last record of its state, or [`Place::NONE`].
    pub update_place: Place,
    /// Who has reserved it; `None` also if that client is gone.
    pub reserver: Option<ClientId>,
}

/// Beginning, ids and counts.
impl Queue {
    /// An empty queue, ready for replay. [`Queue::finish_replay`] comes next, after the log's changes
    /// if there is a log.
    #[must_use]
    pub fn new() -> Queue {
        let mut tubes = Tubes::new();
        let default_tube = tubes.create_pinned(DEFAULT_TUBE);
        Queue {
            jobs: Jobs::new(),
            tubes,
            default_tube,
            clients: Slab::new(),
            ghosts: VecDeque::new(),
            is_ghosts_turn: false,
            tube_timers: Order::new(),
            client_timers: Order::new(),
            matches: Order::new(),
            stocked: BTreeSet::new(),
            wide_waiters: BTreeMap::new(),
            searches: VecDeque::new(),
            wide_len: wide::WIDE_LEN,
            search_len: wide::SEARCH_LEN,
            watches: 0,
            lapsed: VecDeque::new(),
            next_id: 1,
            next_ticket: 1,
            is_replaying: true,
            counts: JobCounts::default(),
            connections: 0,
            producers: 0,
            workers: 0,
            waiting: 0,
            total_connections: 0,
            total_jobs: 0,
            timeouts: 0,
            waits: Histogram::new(LONG),
            holds: Histogram::new(LONG),
            visits: Cell::new(0),
        }
    }

    /// The log has been replayed: totals begin at 0, pauses that are over lapse, and those that are
    /// not keep their tubes until they end, even if nothing else does. What fell due meanwhile is
    /// left to [`Queue::tick`]. Takes time in proportion to the number of tubes.
    pub fn finish_replay(&mut self, now: Time) {
        self.is_replaying = false;
        self.total_jobs = 0;
        for tube in self.tubes.handles().collect::<Vec<_>>() {
            self.tubes[tube].forget_totals();
            if !self.tubes[tube].is_paused(now) {
                self.end_pause(tube, now);
            }
            self.settle(tube, now);
        }
    }

    /// The id of the next job, which is then given out; `None` when all 2^64 − 2 ids have been: none
    /// is ever given out twice.
    pub fn take_id(&mut self) -> Option<JobId> {
        let id = JobId(self.next_id);
        self.next_id = id.0.checked_add(1)?;
        Some(id)
    }

    /// The id that [`Queue::take_id`] would give out; 2^64 − 1 when there is none.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        JobId(self.next_id)
    }

    /// Gives out no id below this one. It never goes back.
    pub fn set_next_id(&mut self, next: JobId) {
        self.next_id = self.next_id.max(next.0);
    }

    /// How many tubes and clients were looked at since the last call, beyond the one or two that any
    /// command needs: what work has cost that is not the same for all. One takes about 100 ns.
    pub fn take_visits(&mut self) -> usize {
        self.visits.take()
    }

    fn visit(&self, count: usize) {
        self.visits.set(self.visits.get() + count);
    }

    /// What `stats` tells of the queue.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        QueueStats {
            jobs: self.counts,
            tubes: self.tubes.len() as u64,
            connections: self.connections,
            producers: self.producers,
            workers: self.workers,
            waiting: self.waiting,
            total_connections: self.total_connections,
            total_jobs: self.total_jobs,
            timeouts: self.timeouts,
        }
    }

    /// How long jobs waited, from when they were due by their put to their first reservation.
    #[must_use]
    pub fn waits(&self) -> Reading {
        self.waits.read()
    }

    /// How long jobs were reserved, or since they were touched last, when they were deleted, released
    /// or buried.
    #[must_use]
    pub fn holds(&self) -> Reading {
        self.holds.read()
    }

    /// The memory that what lives here takes, in bytes, roughly: memory kept for later use is not
    /// counted.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let ready = self.counts.ready as usize * size_of::<ReadyKey>();
        let due = (self.counts.delayed + self.counts.reserved) as usize;
        let due = due * size_of::<DueKey>();
        let lapsed = self.lapsed.len() * size_of::<LapsedPause>();
        let orders = ready + due + lapsed;
        (self.jobs.memory() + self.tubes.memory() + self.sessions_memory() + orders) as u64
    }

    /// The part of [`Queue::memory`] that is there because of clients and not of jobs: the clients,
    /// their watch lists, what they take while they wait, and the tubes without jobs.
    #[must_use]
    pub fn clients_memory(&self) -> u64 {
        (self.sessions_memory() + self.tubes.vacant_memory()) as u64
    }

    fn sessions_memory(&self) -> usize {
        self.clients.len() * Slab::<Client>::entry_size() + self.watches * WATCH_SIZE
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new()
    }
}

/// Jobs, seen from outside.
impl Queue {
    /// The job with this id.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobView<'_>> {
        let handle = self.jobs.find(id)?;
        let (job, side) = (&self.jobs[handle], self.jobs.side(handle));
        let timed = matches!(job.state, JobState::Delayed | JobState::Reserved);
        Some(JobView {
            id,
            tube: &self.tubes[job.tube].name,
            state: job.state,
            pri: job.pri,
            delay: job.delay,
            ttr: job.ttr,
            created: job.created,
            deadline: timed.then(|| self.jobs.deadline(handle)),
            counters: side.counters,
            body_size: job.body_size,
            place: job.place,
            update_place: side.update_place,
            reserver: self.reserver(handle),
        })
    }

    /// The update that says what is durable of a job as it is now: a reserved one is ready.
    #[must_use]
    pub fn snapshot(&self, id: JobId) -> Option<Change<'static>> {
        self.decide(id, |job| {
            if job.state == JobState::Reserved {
                job.state = JobState::Ready;
            }
        })
    }

    /// What kicking a job means; `None` if it is neither buried nor delayed.
    #[must_use]
    pub fn decide_kick(&self, id: JobId) -> Option<Change<'static>> {
        self.job(id).filter(|job| is_set_aside(job.state))?;
        self.decide(id, |job| {
            job.state = JobState::Ready;
            job.counters.kicks = job.counters.kicks.saturating_add(1);
        })
    }

    /// What has to happen before a job can be reserved by its id: `None` if it is ready already,
    /// and also if it does not exist or is reserved.
    #[must_use]
    pub fn decide_reserve_job(&self, id: JobId) -> Option<Change<'static>> {
        self.job(id).filter(|job| is_set_aside(job.state))?;
        self.decide(id, |job| job.state = JobState::Ready)
    }

    /// What releasing a job means, with a delay in seconds from `now`; `None` if it does not exist.
    #[must_use]
    pub fn decide_release(
        &self,
        id: JobId,
        pri: u32,
        delay: u32,
        now: Time,
    ) -> Option<Change<'static>> {
        self.decide(id, |job| {
            job.state = if delay == 0 {
                JobState::Ready
            } else {
                JobState::Delayed
            };
            job.pri = pri;
            job.delay = delay;
            job.deadline = Some(now.plus_seconds(delay));
            job.counters.releases = job.counters.releases.saturating_add(1);
        })
    }

    /// What burying a job means; `None` if it does not exist.
    #[must_use]
    pub fn decide_bury(&self, id: JobId, pri: u32) -> Option<Change<'static>> {
        self.decide(id, |job| {
            job.state = JobState::Buried;
            job.pri = pri;
            job.counters.buries = job.counters.buries.saturating_add(1);
        })
    }

    /// The update that makes a job what `edit` makes of it.
    fn decide(&self, id: JobId, edit: impl FnOnce(&mut JobView<'_>)) -> Option<Change<'static>> {
        let mut job = self.job(id)?;
        edit(&mut job);
        let deadline = job.deadline.unwrap_or_default();
        let JobView {
            state,
            pri,
            delay,
            counters,
            ..
        } = job;
        Some(Change::Update {
            id,
            state,
            pri,
            delay,
            deadline,
            counters,
        })
    }

    /// Takes the job that has waited longest of those whose counters changed since they were last
    /// recorded. Log its [`Queue::snapshot`] and say so with [`Queue::note_update`].
    pub fn next_dirty(&mut self) -> Option<JobId> {
        let job = self.jobs.first_dirty()?;
        self.jobs.clear_dirty(job);
        self.jobs.trim(job);
        Some(self.jobs[job].id)
    }

    /// How many jobs [`Queue::next_dirty`] has to give.
    #[must_use]
    pub fn dirty_count(&self) -> u64 {
        self.jobs.dirty_count()
    }
}

/// Whether a job is in a state that `kick` and `reserve-job` take it out of.
fn is_set_aside(state: JobState) -> bool {
    matches!(state, JobState::Buried | JobState::Delayed)
}
