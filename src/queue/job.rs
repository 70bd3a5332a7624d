//! The jobs: the state of each, and where it is.
//!
//! Most jobs of a long queue are ready and were never touched. So a job has two parts: a [`Job`],
//! which every job has, and a [`JobExtra`], which only those jobs have that are reserved or buried,
//! or that have changed since they were put. Nothing here moves between states; `apply` and the
//! timers do that.
//!
//! A `JobExtra` has links for the list of its tube's buried jobs. What a job has beyond a plain job is
//! in a side table: see `attributed`.

use std::cmp::Ordering;
use std::hint::black_box;

use super::attributed::{Attributed, AttributedJobs};
use super::dirty::DirtyList;
use super::doomed::Doomed;
use super::handle::{ClientHandle, JobExtraHandle, JobHandle, OfJob, OfJobExtra, TubeHandle};
use super::ids::IdTable;
use super::slab::Slab;
use crate::types::{Counters, JobId, JobState, Place, Time};

/// The durable state in an update.
#[derive(Clone, Copy)]
pub(super) struct Durable {
    pub(super) state: JobState,
    pub(super) pri: u32,
    pub(super) delay: u32,
    pub(super) deadline: Time,
    pub(super) counters: Counters,
}

/// The part that every job has. Packed, its size is a multiple of 4 bytes and not of 8.
#[repr(Rust, packed(4))]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) created: Time,
    /// Its put record.
    pub(super) place: Place,
    pub(super) pri: u32,
    /// Seconds, as last requested.
    pub(super) delay: u32,
    /// Seconds.
    pub(super) ttr: u32,
    /// Bytes.
    pub(super) body_size: u32,
    pub(super) tube: TubeHandle,
    extra: Option<JobExtraHandle>,
    pub(super) state: JobState,
    /// See [`DirtyList`].
    dirty: bool,
    listed: bool,
    /// It has an entry in the table of attributes.
    pub(super) has_attributes: bool,
}

impl Job {
    pub(super) fn new(id: JobId, tube: TubeHandle, place: Place) -> Job {
        Job {
            id,
            created: Time::default(),
            place,
            pri: 0,
            delay: 0,
            ttr: 0,
            body_size: 0,
            tube,
            extra: None,
            state: JobState::Ready,
            dirty: false,
            listed: false,
            has_attributes: false,
        }
    }

    /// When it becomes due, if it is delayed since its put.
    pub(super) fn put_deadline(&self) -> Time {
        self.created.plus_seconds(self.delay)
    }

    /// The key of the order in which ready jobs are handed out.
    pub(super) fn ready_key(&self) -> ReadyKey {
        ReadyKey::new(self.pri, self.id)
    }
}

/// The part of a job that is not simply ready.
#[derive(Clone)]
#[repr(Rust, packed(4))]
pub(super) struct JobExtra {
    /// When a delayed job becomes due, or when a reservation runs out.
    pub(super) deadline: Time,
    pub(super) counters: Counters,
    /// The last record of the job's state.
    pub(super) update_place: Place,
    pub(super) reserver: Option<ClientHandle>,
    previous: Option<JobHandle>,
    next: Option<JobHandle>,
}

/// The values of a job without a `JobExtra`.
const UNTOUCHED: JobExtra = JobExtra {
    deadline: Time(0),
    counters: Counters {
        reserves: 0,
        timeouts: 0,
        releases: 0,
        buries: 0,
        kicks: 0,
    },
    update_place: Place::NONE,
    reserver: None,
    previous: None,
    next: None,
};

/// Smallest priority first, then oldest. Storing the id in two halves keeps it at 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadyKey {
    pri: u32,
    id_high: u32,
    id_low: u32,
}

impl ReadyKey {
    /// That of the job with this priority and this id.
    pub(super) fn new(pri: u32, id: JobId) -> ReadyKey {
        ReadyKey {
            pri,
            id_high: (id.0 >> 32) as u32,
            id_low: id.0 as u32,
        }
    }

    /// No job has a greater one.
    pub(super) const LAST: ReadyKey = ReadyKey {
        pri: u32::MAX,
        id_high: u32::MAX,
        id_low: u32::MAX,
    };

    /// The priority of the job.
    pub(super) fn pri(self) -> u32 {
        self.pri
    }

    /// The id of the job.
    pub(super) fn id(self) -> JobId {
        JobId(u64::from(self.id_high) << 32 | u64::from(self.id_low))
    }
}

// Written by hand: comparing two numbers is faster than comparing the fields one by one.
impl Ord for ReadyKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let number = |key: &Self| u128::from(key.pri) << 64 | u128::from(key.id().0);
        number(self).cmp(&number(other))
    }
}

impl PartialOrd for ReadyKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Soonest deadline first, then oldest.
pub(super) type DueKey = (Time, JobId);

/// All jobs.
pub(super) struct Jobs {
    slab: Slab<OfJob, Job>,
    extras: Slab<OfJobExtra, JobExtra>,
    pub(super) attributed: AttributedJobs,
    ids: IdTable<OfJob>,
    dirty: DirtyList,
    pub(super) doomed: Doomed,
    /// Changed counters are noted.
    has_log: bool,
}

impl Jobs {
    pub(super) fn new() -> Jobs {
        Jobs {
            slab: Slab::new(),
            extras: Slab::new(),
            attributed: AttributedJobs::new(),
            ids: IdTable::new(),
            dirty: DirtyList::default(),
            doomed: Doomed::default(),
            has_log: true,
        }
    }

    /// The job with this id, unless it is doomed.
    #[inline]
    pub(super) fn find(&self, id: JobId) -> Option<JobHandle> {
        let found = self.ids.get(id)?;
        match self.doomed.is_empty() || self.doom_of(found).is_none() {
            true => Some(found),
            false => None,
        }
    }

    /// The job with this id, also if it is doomed: for what is about its records.
    pub(super) fn find_any(&self, id: JobId) -> Option<JobHandle> {
        self.ids.get(id)
    }

    /// Which of the clears that go on has doomed a job.
    pub(super) fn doom_of(&self, handle: JobHandle) -> Option<usize> {
        let job = &self.slab[handle];
        let home = match job.has_attributes {
            true => self.attributed.get(job.id).and_then(Attributed::home),
            false => None,
        };
        self.doomed.position(job.id, |set| match home {
            Some(home) => home == set.jobs.tube(),
            None => job.tube == set.tube,
        })
    }

    /// The ids of all jobs, in no order.
    pub(super) fn ids(&self) -> impl Iterator<Item = JobId> {
        self.ids.iter()
    }

    /// The least id that is there.
    pub(super) fn first(&self) -> Option<JobId> {
        self.ids.first()
    }

    /// The job with an id that was found in one of the orders.
    pub(super) fn expect(&self, id: JobId) -> JobHandle {
        let job = self.find(id);
        job.unwrap_or_else(|| panic!("job {id} is in an order, and gone"))
    }

    /// `None` if there is a job with this id.
    pub(super) fn insert(&mut self, job: Job) -> Option<JobHandle> {
        let id = job.id;
        let handle = self.slab.insert(job);
        if !self.ids.insert(id, handle) {
            self.slab.remove(handle);
            return None;
        }
        Some(handle)
    }

    /// Removes what a job has beyond a plain one.
    pub(super) fn take_attributes(&mut self, handle: JobHandle) -> Option<Attributed> {
        let job = &mut self.slab[handle];
        match std::mem::take(&mut job.has_attributes) {
            true => self.attributed.remove(job.id),
            false => None,
        }
    }

    /// Removes a job that is in no order, not buried, and without attributes.
    pub(super) fn remove(&mut self, handle: JobHandle) -> Job {
        self.clear_dirty(handle);
        let job = self.slab.remove(handle);
        self.ids.remove(job.id);
        if let Some(extra) = job.extra {
            self.extras.remove(extra);
        }
        job
    }

    /// If most of the memory of jobs is vacant, moves a job, so that some of it is freed: see
    /// [`Slab::move_down`]. Returns where the job was and where it is now. If it is buried, the list
    /// of its tube must follow with [`List::follow`].
    pub(super) fn move_down(&mut self) -> Option<(JobHandle, JobHandle)> {
        let (from, to) = self.slab.move_down()?;
        let job = &mut self.slab[to];
        self.ids.replace(job.id, to);
        if let Some(extra) = job.extra {
            let value = self.extras.remove(extra);
            job.extra = Some(self.extras.insert(value));
        }
        if job.has_attributes {
            self.attributed.move_down(job.id);
        }
        Some((from, to))
    }

    /// Reads a job from its first byte to its last, only to bring it into the cache.
    pub(super) fn read(&self, handle: JobHandle) {
        let job = &self.slab[handle];
        black_box((job.id, job.state));
    }

    /// The job's extra part, or its default.
    #[inline]
    pub(super) fn extra(&self, handle: JobHandle) -> &JobExtra {
        self.slab[handle]
            .extra
            .map_or(&UNTOUCHED, |extra| &self.extras[extra])
    }

    /// The job's extra part, which is created if necessary.
    #[inline]
    pub(super) fn extra_mut(&mut self, handle: JobHandle) -> &mut JobExtra {
        let extra = match self.slab[handle].extra {
            Some(extra) => extra,
            None => self.add_extra(handle),
        };
        &mut self.extras[extra]
    }

    fn add_extra(&mut self, handle: JobHandle) -> JobExtraHandle {
        let job = &mut self.slab[handle];
        let extra = self.extras.insert(JobExtra {
            deadline: job.put_deadline(),
            ..UNTOUCHED
        });
        job.extra = Some(extra);
        extra
    }

    /// Frees the extra part of a ready job if all its values are the default.
    #[inline]
    pub(super) fn trim(&mut self, handle: JobHandle) {
        if let Some(extra) = self.slab[handle].extra {
            self.trim_extra(handle, extra);
        }
    }

    fn trim_extra(&mut self, handle: JobHandle, extra: JobExtraHandle) {
        let job = &mut self.slab[handle];
        let known = &self.extras[extra];
        let untouched = known.counters == UNTOUCHED.counters && known.update_place.is_none();
        if job.state == JobState::Ready && untouched && !job.dirty {
            job.extra = None;
            self.extras.remove(extra);
        }
    }

    /// The state of a job that a record has. Only a delayed or reserved job has a deadline.
    pub(super) fn durable(&self, handle: JobHandle) -> Durable {
        let job = &self.slab[handle];
        let extra = job.extra.map(|extra| &self.extras[extra]);
        let deadline = match job.state {
            JobState::Ready | JobState::Buried => Time::default(),
            _ => extra.map_or_else(|| job.put_deadline(), |extra| extra.deadline),
        };
        Durable {
            state: job.state,
            pri: job.pri,
            delay: job.delay,
            deadline,
            counters: extra.unwrap_or(&UNTOUCHED).counters,
        }
    }

    /// When a delayed job becomes due, or when a reservation runs out.
    pub(super) fn deadline(&self, handle: JobHandle) -> Time {
        let job = &self.slab[handle];
        let extra = job.extra.map(|extra| self.extras[extra].deadline);
        extra.unwrap_or_else(|| job.put_deadline())
    }

    /// The key of a delayed or reserved job.
    pub(super) fn due_key(&self, handle: JobHandle) -> DueKey {
        (self.deadline(handle), self.slab[handle].id)
    }

    pub(super) fn record_no_counters(&mut self) {
        self.has_log = false;
    }

    /// Notes that the job's counters have changed and no record has them yet.
    pub(super) fn mark_dirty(&mut self, handle: JobHandle) {
        if !self.has_log {
            return;
        }
        let job = &mut self.slab[handle];
        if !std::mem::replace(&mut job.dirty, true) {
            self.dirty.note_dirty();
            if !std::mem::replace(&mut job.listed, true) {
                self.dirty.push(job.id);
            }
        }
    }

    /// Notes that a record has the job's counters.
    pub(super) fn clear_dirty(&mut self, handle: JobHandle) {
        if std::mem::take(&mut self.slab[handle].dirty) {
            self.dirty.note_clean();
            if self.dirty.is_stale() {
                self.drop_stale();
            }
        }
    }

    fn drop_stale(&mut self) {
        for _ in 0..2 {
            let Some(id) = self.dirty.pop() else { return };
            let Some(job) = self.find(id) else { continue };
            let job = &mut self.slab[job];
            job.listed = job.dirty;
            if job.dirty {
                self.dirty.push(id);
            }
        }
    }

    /// A dirty job, which is dirty no more on return; more or less the one that has been for longest.
    pub(super) fn take_dirty(&mut self) -> Option<JobHandle> {
        while let Some(id) = self.dirty.pop() {
            let Some(handle) = self.find(id) else {
                continue;
            };
            let job = &mut self.slab[handle];
            job.listed = false;
            if std::mem::take(&mut job.dirty) {
                self.dirty.note_clean();
                return Some(handle);
            }
        }
        None
    }

    pub(super) fn dirty_count(&self) -> u64 {
        self.dirty.count()
    }

    /// The job that was buried next after one that is buried, in the same tube.
    pub(super) fn buried_behind(&self, job: JobHandle) -> Option<JobHandle> {
        self.extra(job).next
    }

    /// The memory of jobs, their extra parts and the table of ids, in bytes; without the orders.
    pub(super) fn memory(&self) -> usize {
        self.slab.len() * Slab::<OfJob, Job>::entry_size()
            + self.extras.len() * Slab::<OfJobExtra, JobExtra>::entry_size()
            + self.attributed.memory()
            + self.ids.memory()
            + self.dirty.memory()
            + self.doomed.memory()
    }
}

impl std::ops::Index<JobHandle> for Jobs {
    type Output = Job;

    #[inline]
    fn index(&self, handle: JobHandle) -> &Job {
        &self.slab[handle]
    }
}

impl std::ops::IndexMut<JobHandle> for Jobs {
    #[inline]
    fn index_mut(&mut self, handle: JobHandle) -> &mut Job {
        &mut self.slab[handle]
    }
}

/// Jobs in the order in which they were added, linked through their extra parts.
#[derive(Clone, Copy)]
pub(super) struct List {
    first: Option<JobHandle>,
    last: Option<JobHandle>,
}

impl List {
    pub(super) fn new() -> List {
        List {
            first: None,
            last: None,
        }
    }

    pub(super) fn first(&self) -> Option<JobHandle> {
        self.first
    }

    pub(super) fn push_back(&mut self, jobs: &mut Jobs, job: JobHandle) {
        let extra = jobs.extra_mut(job);
        extra.previous = self.last;
        extra.next = None;
        match self.last {
            Some(last) => jobs.extra_mut(last).next = Some(job),
            None => self.first = Some(job),
        }
        self.last = Some(job);
    }

    /// A job that is in this list has moved.
    pub(super) fn follow(&mut self, jobs: &mut Jobs, from: JobHandle, to: JobHandle) {
        let JobExtra { previous, next, .. } = *jobs.extra(to);
        match previous {
            Some(previous) => jobs.extra_mut(previous).next = Some(to),
            None => self.first = Some(to),
        }
        match next {
            Some(next) => jobs.extra_mut(next).previous = Some(to),
            None => self.last = Some(to),
        }
        debug_assert!(self.first != Some(from) && self.last != Some(from));
    }

    /// Removes a job that is in this list.
    pub(super) fn unlink(&mut self, jobs: &mut Jobs, job: JobHandle) {
        let extra = jobs.extra_mut(job);
        let (previous, next) = (extra.previous.take(), extra.next.take());
        match previous {
            Some(previous) => jobs.extra_mut(previous).next = next,
            None => self.first = next,
        }
        match next {
            Some(next) => jobs.extra_mut(next).previous = previous,
            None => self.last = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(count: u64) -> (Jobs, Vec<JobHandle>) {
        let mut jobs = Jobs::new();
        let tube = TubeHandle::from_index(0).unwrap();
        let add = |id| jobs.insert(Job::new(JobId(id), tube, Place::NONE)).unwrap();
        let handles = (1..=count).map(add).collect();
        (jobs, handles)
    }

    /// The table of `docs/limits.md`: a job, its id, its side and its place in an order.
    #[test]
    fn f27_what_a_job_costs_in_each_state() {
        let (jobs, _) = jobs(100_000);
        let job = Slab::<OfJob, Job>::entry_size() + jobs.ids.memory().div_ceil(100_000);
        let extra = Slab::<OfJobExtra, JobExtra>::entry_size();
        let (ready, due) = (size_of::<ReadyKey>(), size_of::<DueKey>());
        for (state, size, size_max) in [
            ("ready, untouched", job + ready, 72),
            ("delayed since it was put", job + due, 76),
            ("buried", job + extra, 110),
            ("ready, with a history", job + extra + ready, 122),
            ("reserved, or released with a delay", job + extra + due, 126),
        ] {
            assert!(size <= size_max, "{state}: {size} bytes");
        }
    }

    #[test]
    fn a_job_in_the_slab_is_no_larger_than_the_job() {
        assert_eq!(Slab::<OfJob, Job>::entry_size(), size_of::<Job>());
    }

    #[test]
    fn ready_keys_order_by_priority_then_by_the_whole_id() {
        let key = |pri, id| {
            let (mut jobs, handles) = jobs(1);
            jobs[handles[0]].pri = pri;
            jobs[handles[0]].id = JobId(id);
            jobs[handles[0]].ready_key()
        };
        assert!(key(1, 9) < key(2, 1));
        assert!(key(1, 1) < key(1, 2));
        assert!(key(1, u64::from(u32::MAX)) < key(1, 1 << 32));
    }

    #[test]
    fn a_list_keeps_its_order_when_any_job_leaves() {
        for leaver in 0..4 {
            let (mut jobs, handles) = jobs(4);
            let mut list = List::new();
            handles
                .iter()
                .for_each(|job| list.push_back(&mut jobs, *job));
            list.unlink(&mut jobs, handles[leaver]);
            let mut seen = Vec::new();
            while let Some(job) = list.first() {
                seen.push(job);
                list.unlink(&mut jobs, job);
            }
            let expected: Vec<_> = handles
                .iter()
                .copied()
                .filter(|job| *job != handles[leaver])
                .collect();
            assert_eq!(seen, expected);
            assert_eq!(list.last, None);
        }
    }

    #[test]
    fn a_side_is_kept_as_long_as_it_says_something() {
        let (mut jobs, handles) = jobs(1);
        let job = handles[0];
        jobs.extra_mut(job).counters.kicks = 1;
        jobs.trim(job);
        assert_eq!(jobs.extra(job).counters.kicks, 1);
        jobs.extra_mut(job).counters.kicks = 0;
        jobs.mark_dirty(job);
        jobs.trim(job);
        assert_eq!(jobs.extras.len(), 1);
        jobs.clear_dirty(job);
        jobs.trim(job);
        assert_eq!(jobs.extras.len(), 0);
    }

    #[test]
    fn jobs_that_are_dirty_again_and_again_take_no_memory_for_it() {
        let (mut jobs, handles) = jobs(1000);
        jobs.mark_dirty(handles[0]);
        for _ in 0..3 {
            for job in &handles[1..900] {
                jobs.mark_dirty(*job);
            }
            for job in &handles[1..900] {
                jobs.clear_dirty(*job);
            }
            assert!(jobs.dirty.memory() < 8 * 64, "{}", jobs.dirty.memory());
        }
        jobs.mark_dirty(handles[1]);
        jobs.remove(handles[1]);
        assert_eq!(jobs.dirty_count(), 1);
        assert_eq!(jobs.take_dirty(), Some(handles[0]));
        assert_eq!((jobs.take_dirty(), jobs.dirty_count()), (None, 0));
    }
}
