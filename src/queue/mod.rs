//! The queue: jobs, tubes and clients in memory, and the rules by which jobs move between them.
//!
//! It is pure: no log, no file, no socket and no clock. `now` is an argument. A job is represented
//! by numbers; the queue knows only the size of its body, and only opaque [`Place`]s of its
//! records.
//!
//! *Durable* state (which jobs exist, and each one's state, priority, delay, counters and attributes;
//! pauses) changes in one way only: the caller decides on a [`Change`], often with one of the `decide_`
//! methods here, logs it, and passes it to [`Queue::apply`]. Replay passes the same changes to the
//! same method, and so arrives at the same state. *Volatile* state (which clients exist, and what
//! they use, watch, wait for and have reserved) has its own methods and is gone after a restart; a
//! reserved job is ready again then. Changes caused by time alone happen in [`Queue::tick`] and are
//! never recorded.
//!
//! # Invariants
//!
//! * A job is in exactly one place, according to its state: among its tube's ready, delayed or
//!   buried jobs, or among the jobs that a client has reserved.
//! * No method takes time in proportion to the number of jobs or tubes, except those that return an
//!   iterator and [`Queue::finish_replay`]; some take time in proportion to the length of one
//!   client's watch list. Growing never copies anything large.
//! * Two queues with the same calls do the same: nothing is random.
//!
//! # Where things are
//!
//! Data: `job` jobs · `attributed` what some have beyond others · `claims` their claims of keys ·
//! `tube`, `tube_list` tubes · `ready_seconds` when their ready jobs were put · `policed` what policies
//! hold back · `fair` whose turn it is · `client` sessions · `handle` their numbers · `order`, `tree`,
//! `slab`, `ids`, `dirty` the data structures.
//! None of these knows the queue.
//!
//! Operations: `apply` changes · `attributes` those of attributes · `keys` which job has a key ·
//! `policies` policies of tubes and deliveries that fail · `groups` fair tubes · `sessions` used and
//! watched tubes · `reservations` · `delivery` what is told of one · `waiting` and `wide` the choice
//! of the next worker · `tubes` tubes and their pauses · `timer` timed events · `listing` jobs page by
//! page · `stats` counts · `tally` what happens in tubes · `events` events for watchers.

mod apply;
mod attributed;
mod attributes;
mod claims;
mod clearing;
mod client;
mod delivery;
mod departed;
mod dirty;
mod doomed;
mod events;
mod fair;
mod groups;
mod handle;
mod ids;
mod job;
mod keys;
mod listing;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_runs;
mod order;
mod policed;
mod policies;
mod ready_seconds;
mod reservations;
mod sessions;
mod slab;
mod stats;
mod tally;
#[cfg(test)]
mod tests;
mod timer;
mod tree;
mod tube;
mod tube_list;
mod tubes;
mod waiting;
mod wide;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub use self::apply::{Applied, ApplyError, RecordDims};
pub use self::client::{Terms, WaitEnd};
pub use self::delivery::Delivery;
pub use self::departed::TubeTotals;
#[cfg(test)]
pub(crate) use self::events::EVENTS_MAX;
pub use self::events::{Event, Happened};
pub use self::listing::{ClientView, Lost, Mark};
pub use self::policed::TubeFailures;
pub use self::stats::{QueueStats, TubeStats};
pub use self::tally::{JobEvents, TubeTally};
pub use self::tube::DEFAULT_TUBE;
pub use self::tube_list::TubeList;
pub use self::tubes::{LapsedPause, TubeRef};

use self::claims::Claims;
use self::clearing::Clearing;
use self::client::Client;
use self::events::Watched;
use self::fair::Fair;
use self::handle::{ClientHandle, OfClient, TubeHandle};
use self::job::{DueKey, Durable, Jobs, ReadyKey};
use self::order::Order;
use self::slab::Slab;
use self::tube::{SECOND_SIZE, Tubes};
use crate::attributes::Reason;
use crate::histogram::{Histogram, LONG, Reading};
use crate::types::{Change, ClientId, Counters, JobCounts, JobId, JobState, Place, Time};

/// The queue. See the [module](self).
pub struct Queue {
    jobs: Jobs,
    claims: Claims,
    tubes: Tubes,
    default_tube: TubeHandle,
    clients: Slab<OfClient, Client>,
    /// Disconnected clients whose jobs have not been released yet.
    ghosts: VecDeque<ClientHandle>,
    is_ghosts_turn: bool,
    /// Tubes in the order of their next events.
    tube_timers: Order<(Time, TubeHandle)>,
    /// Clients in the order of their next events.
    client_timers: Order<(Time, ClientHandle)>,
    /// Tubes that have both a ready job and a waiting client and are not paused, ordered by the
    /// job.
    matches: Order<(ReadyKey, TubeHandle)>,
    /// Seconds in which ready jobs were put, those of all tubes together.
    ready_seconds: usize,
    /// Tubes, paused or not, that wide clients watch and that have a ready job, ordered by the job.
    stocked: BTreeSet<(ReadyKey, TubeHandle)>,
    /// Waiting wide clients, by their tickets.
    wide_waiters: BTreeMap<u64, ClientId>,
    /// The tickets of waiting wide clients whose search is not finished; also tickets of clients
    /// that no longer wait.
    searches: VecDeque<u64>,
    /// A client that watches more tubes than this is wide.
    wide_len: usize,
    /// Tubes up to which a wide client's search is done at once.
    search_len: usize,
    /// Entries of all watch lists together.
    watches: usize,
    lapsed: VecDeque<LapsedPause>,
    /// Keeps the tubes that have a policy of their own.
    policy_pins: BTreeMap<Box<str>, TubeRef>,
    /// Deliveries that have ended by themselves, and why.
    failed: VecDeque<(JobId, Reason)>,
    /// Tubes whose ready jobs are to be looked through.
    sweeps: VecDeque<TubeRef>,
    /// Clears that are not over: as many as there are sets of doomed jobs, in the same order.
    clears: VecDeque<Clearing>,
    /// Indexes of tubes that are fair no more.
    unused_fair: Vec<Fair>,
    /// Bytes of all indexes of fair tubes.
    fair_memory: usize,
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
    failures: TubeFailures,
    waits: Histogram,
    holds: Histogram,
    visits: Cell<usize>,
    /// Events, if there is a watcher.
    watched: Option<Box<Watched>>,
}

/// An upper bound for the bytes of a watch list entry: it is stored twice, and a waiting client is
/// in a queue because of it.
const WATCH_SIZE: usize = 48;

/// The current state of a job.
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
    /// The last delay requested, in seconds.
    pub delay: u32,
    /// Seconds.
    pub ttr: u32,
    /// When it was put.
    pub created: Time,
    /// When a delayed job becomes due or a reservation runs out; `None` in other states.
    pub deadline: Option<Time>,
    /// How often each event has happened to it.
    pub counters: Counters,
    /// Bytes.
    pub body_size: u32,
    /// Its put record.
    pub place: Place,
    /// The last record of its state, or [`Place::NONE`].
    pub update_place: Place,
    /// The client that has reserved it; `None` also if that client is gone.
    pub reserver: Option<ClientId>,
    /// Bytes of the name of the tube in its put record: a job that was moved is in another one.
    pub(crate) put_tube_size: usize,
}

/// Start, ids and counts.
impl Queue {
    /// An empty queue, ready for replay. [`Queue::finish_replay`] comes next, after the log's
    /// changes if there is a log.
    #[must_use]
    pub fn new() -> Queue {
        let mut tubes = Tubes::new();
        let default_tube = tubes.create_pinned(DEFAULT_TUBE);
        Queue {
            jobs: Jobs::new(),
            claims: Claims::new(),
            tubes,
            default_tube,
            clients: Slab::new(),
            ghosts: VecDeque::new(),
            is_ghosts_turn: false,
            tube_timers: Order::new(),
            client_timers: Order::new(),
            matches: Order::new(),
            ready_seconds: 0,
            stocked: BTreeSet::new(),
            wide_waiters: BTreeMap::new(),
            searches: VecDeque::new(),
            wide_len: wide::WIDE_LEN,
            search_len: wide::SEARCH_LEN,
            watches: 0,
            lapsed: VecDeque::new(),
            policy_pins: BTreeMap::new(),
            failed: VecDeque::new(),
            sweeps: VecDeque::new(),
            clears: VecDeque::new(),
            unused_fair: Vec::new(),
            fair_memory: 0,
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
            failures: TubeFailures::default(),
            waits: Histogram::new(LONG),
            holds: Histogram::new(LONG),
            visits: Cell::new(0),
            watched: None,
        }
    }

    /// Ends replay: totals begin at 0, expired pauses lapse, and other pauses keep their tubes
    /// until they end, even if nothing else does. [`Queue::tick`] handles what fell due meanwhile.
    /// Takes time in proportion to the number of tubes.
    pub fn finish_replay(&mut self, now: Time) {
        self.is_replaying = false;
        self.total_jobs = 0;
        for tube in self.tubes.handles().collect::<Vec<_>>() {
            self.tubes[tube].forget_totals();
            // It may have one that was removed later.
            if !self.tubes.policies.is_empty() || self.tubes[tube].policed.is_some() {
                self.begin_policy(tube, now);
            }
            if !self.tubes[tube].is_paused(now) {
                self.end_pause(tube, now);
            }
            self.reindex_or_remove(tube, now);
        }
    }

    /// Gives out the id of the next job; `None` after all 2^64 − 2 ids: none is ever given out
    /// twice.
    pub fn take_id(&mut self) -> Option<JobId> {
        let id = JobId(self.next_id);
        self.next_id = id.0.checked_add(1)?;
        Some(id)
    }

    /// The job that was put before all others that are there. Takes some hundred nanoseconds.
    #[must_use]
    pub fn oldest_job(&self) -> Option<JobView<'_>> {
        self.job(self.jobs.first()?)
    }

    /// The id that [`Queue::take_id`] would give out; 2^64 − 1 if no id is left.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        JobId(self.next_id)
    }

    /// Gives out no id below `next` from now on. The next id never decreases.
    pub(crate) fn set_next_id(&mut self, next: JobId) {
        self.next_id = self.next_id.max(next.0);
    }

    /// The number of tubes and clients examined since the last call, beyond the one or two that any
    /// command needs: the cost of commands that vary. One takes about 100 ns.
    pub fn take_visits(&mut self) -> usize {
        self.visits.take()
    }

    /// Count tubes or clients that were looked at.
    pub fn visit(&self, count: usize) {
        self.visits.set(self.visits.get() + count);
    }

    /// The values of `stats` about the queue.
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
            failures: self.failures,
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

    /// The memory of the queue's content, in bytes, roughly; memory kept for later use is not
    /// counted.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let ready = self.counts.ready as usize * size_of::<ReadyKey>();
        let due = (self.counts.delayed + self.counts.reserved) as usize;
        let due = due * size_of::<DueKey>();
        let lapsed = self.lapsed.len() * size_of::<LapsedPause>();
        let doomed: usize = self.clears.iter().map(Clearing::memory).sum();
        let beyond = self.claims.memory() + self.fair_memory + doomed;
        let orders = ready + due + lapsed + beyond + self.ready_seconds * SECOND_SIZE;
        (self.jobs.memory() + self.tubes.memory() + self.sessions_memory() + orders) as u64
    }

    /// The part of [`Queue::memory`] caused by clients and not by jobs: the clients, their watch
    /// lists, their waits, and the tubes without jobs.
    #[must_use]
    pub fn clients_memory(&self) -> u64 {
        (self.sessions_memory() + self.tubes.vacant_memory()) as u64
    }

    fn sessions_memory(&self) -> usize {
        self.clients.len() * Slab::<OfClient, Client>::entry_size() + self.watches * WATCH_SIZE
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new()
    }
}

/// Queries about jobs.
impl Queue {
    /// The job with this id.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobView<'_>> {
        let handle = self.jobs.find(id)?;
        let (job, extra) = (&self.jobs[handle], self.jobs.extra(handle));
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
            counters: extra.counters,
            body_size: job.body_size,
            place: job.place,
            update_place: extra.update_place,
            reserver: self.reserver(extra),
            put_tube_size: self.put_tube_size(job),
        })
    }

    /// The place of a job's put record, also if the job is doomed.
    #[must_use]
    pub fn place(&self, id: JobId) -> Option<Place> {
        Some(self.jobs[self.jobs.find_any(id)?].place)
    }

    /// The place of a job's put record, and what the size of that depends on.
    #[must_use]
    #[inline]
    pub(crate) fn put_record(&self, id: JobId) -> Option<(Place, RecordDims)> {
        let handle = self.jobs.find(id)?;
        let job = &self.jobs[handle];
        let dims = RecordDims {
            tube_len: self.put_tube_size(job) as u32,
            body_size: job.body_size,
        };
        Some((job.place, dims))
    }

    /// The update with the current durable state of a job: a reserved job is ready in it.
    #[must_use]
    pub fn snapshot(&self, id: JobId) -> Option<Change<'static>> {
        self.decide(id, |job| {
            if job.state == JobState::Reserved {
                job.state = JobState::Ready;
            }
        })
    }

    /// The change that kicks a job; `None` if it is neither buried nor delayed.
    #[must_use]
    pub(crate) fn decide_kick(&self, id: JobId) -> Option<Change<'static>> {
        self.state_of(id).filter(|state| is_set_aside(*state))?;
        self.decide(id, |job| {
            job.state = JobState::Ready;
            job.counters.kicks = job.counters.kicks.saturating_add(1);
        })
    }

    /// The change that brings a buried job back: delayed until `due`, or ready, which counts as a kick;
    /// `None` if it is not buried.
    #[must_use]
    pub(crate) fn decide_return(&self, id: JobId, due: Option<Time>) -> Option<Change<'static>> {
        self.state_of(id)
            .filter(|state| *state == JobState::Buried)?;
        self.decide(id, |job| match due {
            Some(due) => (job.state, job.deadline) = (JobState::Delayed, due),
            None => {
                job.state = JobState::Ready;
                job.counters.kicks = job.counters.kicks.saturating_add(1);
            }
        })
    }

    /// The change that is necessary before a job can be reserved by its id; `None` if it is already
    /// ready, and also if it does not exist or is reserved.
    #[must_use]
    pub(crate) fn decide_reserve_job(&self, id: JobId) -> Option<Change<'static>> {
        self.state_of(id).filter(|state| is_set_aside(*state))?;
        self.decide(id, |job| job.state = JobState::Ready)
    }

    /// The change that releases a job, with a delay in seconds from `now`; `None` if it does not
    /// exist.
    #[must_use]
    pub fn decide_release(
        &self,
        id: JobId,
        pri: u32,
        delay: u32,
        now: Time,
    ) -> Option<Change<'static>> {
        let delay = Duration::from_secs(delay.into());
        self.decide_again(id, (pri, delay), true, now)
    }

    /// The change that makes a job ready with this priority, after a delay from `now`; `None` if it does
    /// not exist. `is_release`: it counts as a release.
    #[must_use]
    pub(crate) fn decide_again(
        &self,
        id: JobId,
        (pri, delay): (u32, Duration),
        is_release: bool,
        now: Time,
    ) -> Option<Change<'static>> {
        self.decide(id, |job| {
            job.state = match delay.is_zero() {
                true => JobState::Ready,
                false => JobState::Delayed,
            };
            job.pri = pri;
            job.delay = seconds_of(delay);
            job.deadline = now.plus(delay);
            let releases = &mut job.counters.releases;
            *releases = releases.saturating_add(is_release.into());
        })
    }

    /// The change that buries a job; `None` if it does not exist.
    #[must_use]
    pub fn decide_bury(&self, id: JobId, pri: u32) -> Option<Change<'static>> {
        self.decide(id, |job| {
            job.state = JobState::Buried;
            job.pri = pri;
            job.counters.buries = job.counters.buries.saturating_add(1);
        })
    }

    /// The change that gives a job another priority and leaves it in its state; `None` if it does
    /// not exist or is reserved.
    #[must_use]
    pub(crate) fn decide_priority(&self, id: JobId, pri: u32) -> Option<Change<'static>> {
        self.state_of(id)
            .filter(|state| *state != JobState::Reserved)?;
        self.decide(id, |job| job.pri = pri)
    }

    /// The change that makes a job delayed for `delay` seconds from `now`; `None` if it does not
    /// exist or is reserved.
    #[must_use]
    pub(crate) fn decide_delay(&self, id: JobId, delay: u32, now: Time) -> Option<Change<'static>> {
        self.state_of(id)
            .filter(|state| *state != JobState::Reserved)?;
        self.decide(id, |job| {
            job.state = JobState::Delayed;
            job.delay = delay;
            job.deadline = now.plus_seconds(delay);
        })
    }

    fn state_of(&self, id: JobId) -> Option<JobState> {
        Some(self.jobs[self.jobs.find(id)?].state)
    }

    /// The update with the state of a job after `edit`.
    fn decide(&self, id: JobId, edit: impl FnOnce(&mut Durable)) -> Option<Change<'static>> {
        let mut job = self.jobs.durable(self.jobs.find(id)?);
        edit(&mut job);
        let Durable {
            state,
            pri,
            delay,
            deadline,
            counters,
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

    /// From now on no record is made of counters: there is no log.
    pub(crate) fn record_no_counters(&mut self) {
        self.jobs.record_no_counters();
    }

    /// Takes a job whose changed counters wait for a record, more or less the one that has waited
    /// longest. Log its [`Queue::snapshot`] and report that with [`Queue::note_update`].
    pub fn next_dirty(&mut self) -> Option<JobId> {
        let job = self.jobs.take_dirty()?;
        self.jobs.trim(job);
        Some(self.jobs[job].id)
    }

    /// The number of jobs that [`Queue::next_dirty`] has to return.
    #[must_use]
    pub fn dirty_count(&self) -> u64 {
        self.jobs.dirty_count()
    }
}

/// Rounded up.
fn seconds_of(delay: Duration) -> u32 {
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// True for the states from which `kick` and `reserve-job` take a job.
fn is_set_aside(state: JobState) -> bool {
    matches!(state, JobState::Buried | JobState::Delayed)
}
