//! Clears of tubes: all jobs that are in some states go at once, however many they are.
//!
//! A clear takes the orders and the list of its tube as they are; to find what is in them is left for
//! later. The jobs are *doomed* from then on: [`Jobs::find`](super::job::Jobs::find) does not find them,
//! and they are in no count. The caller deletes them one by one, as any job, when there is time:
//! [`Queue::next_doomed`] says which one comes next. Until then their bodies count for `max-bytes`, and
//! their tube stays.
//!
//! Which jobs are doomed is said by a set that does not depend on what happens later
//! ([`ClearedJobs`]): the caller records it, and after a restart tells it again
//! ([`Queue::doom_again`]).

use super::Queue;
use super::doomed::DoomedSet;
use super::handle::{ClientHandle, JobHandle, TubeHandle};
use super::job::{DueKey, Jobs, List, ReadyKey};
use super::order::Order;
use super::tubes::TubeRef;
use crate::clearing::{ClearedJobs, ClearedStates};
use crate::types::{JobId, JobState, Time};

/// Jobs that were doomed by one clear and are not freed.
pub(super) struct Clearing {
    /// Their tube still has the bytes of their bodies.
    tube: TubeRef,
    ready: Order<ReadyKey>,
    delayed: Order<DueKey>,
    buried: List,
    /// Those that were found one by one, after a restart.
    listed: Vec<JobId>,
    left: u64,
}

impl Clearing {
    fn new(tube: TubeRef) -> Clearing {
        Clearing {
            tube,
            ready: Order::new(),
            delayed: Order::new(),
            buried: List::new(),
            listed: Vec::new(),
            left: 0,
        }
    }

    /// The next one to be freed.
    fn next(&self, jobs: &Jobs) -> Option<JobId> {
        let ready = || self.ready.first().map(ReadyKey::id);
        let delayed = || self.delayed.first().map(|(_, id)| id);
        let buried = || self.buried.first().map(|job| jobs[job].id);
        let listed = || self.listed.last().copied();
        ready().or_else(delayed).or_else(buried).or_else(listed)
    }

    /// Takes out the one that [`Clearing::next`] names.
    fn take_next(&mut self, jobs: &mut Jobs) {
        self.left -= 1;
        if let Some(key) = self.ready.first() {
            self.ready.remove(&key);
        } else if let Some(key) = self.delayed.first() {
            self.delayed.remove(&key);
        } else if let Some(job) = self.buried.first() {
            self.buried.unlink(jobs, job);
        } else {
            self.listed.pop();
        }
    }

    /// A buried job has moved.
    pub(super) fn follow(&mut self, jobs: &mut Jobs, from: JobHandle, to: JobHandle) {
        // One that was found after a restart is in no list.
        if self.listed.is_empty() {
            self.buried.follow(jobs, from, to);
        }
    }

    /// Bytes of memory, about.
    pub(super) fn memory(&self) -> usize {
        self.left as usize * size_of::<DueKey>()
    }
}

/// Clears.
impl Queue {
    /// How many jobs a clear of a tube would take.
    #[must_use]
    pub fn clearable(&self, tube: &str, states: ClearedStates) -> u64 {
        let tube = self.tubes.find(tube);
        tube.map_or(0, |tube| self.clearable_of(tube, states))
    }

    fn clearable_of(&self, tube: TubeHandle, states: ClearedStates) -> u64 {
        let counts = self.tubes[tube].counts;
        let of = |state, count| if states.has(state) { count } else { 0 };
        of(JobState::Ready, counts.ready)
            + of(JobState::Delayed, counts.delayed)
            + of(JobState::Buried, counts.buried)
    }

    /// The jobs that a clear of a tube takes, in no order.
    #[must_use]
    pub(crate) fn cleared_ids(&self, tube: &str, states: ClearedStates) -> Vec<JobId> {
        let mut ids = Vec::new();
        if let Some(tube) = self.tubes.find(tube) {
            self.visit_jobs(tube, |state| states.has(state), &mut |id| ids.push(id));
        }
        ids
    }

    /// The jobs that a clear of a tube takes, as a set that stays the same. Takes time in proportion to
    /// those of the tube that are taken or to those that are left, whichever are fewer, to all
    /// reserved jobs, and to all jobs that were moved from the tubes that they were put into.
    pub(crate) fn cleared_jobs(&self, name: &str, states: ClearedStates) -> ClearedJobs {
        let Some(tube) = self.tubes.find(name) else {
            return ClearedJobs::these(name, Vec::new());
        };
        let taken = self.clearable_of(tube, states);
        let left = self.tubes[tube].counts.total() - taken;
        let moved = self.jobs.attributed.moved();
        if taken <= left + moved.len() as u64 {
            return ClearedJobs::these(name, self.cleared_ids(name, states));
        }
        let mut kept = Vec::new();
        for id in moved {
            let Some(handle) = self.jobs.find(id) else {
                continue;
            };
            let job = &self.jobs[handle];
            if job.tube == tube && states.has(job.state) {
                // The tube that it was put into does not tell that it is taken.
                return ClearedJobs::these(name, self.cleared_ids(name, states));
            }
            // More may be listed than must be: they stay, whatever tube they were put into.
            kept.push(id);
        }
        self.visit_jobs(tube, |state| !states.has(state), &mut |id| kept.push(id));
        if self.tubes[tube].counts.reserved > 0 {
            self.visit_reserved(tube, &mut |id| kept.push(id));
        }
        kept.sort_unstable();
        kept.dedup();
        ClearedJobs::all_but(name, self.next_id(), kept)
    }

    /// Shows the jobs of a tube in some states, without reserved ones.
    fn visit_jobs(
        &self,
        tube: TubeHandle,
        has: impl Fn(JobState) -> bool,
        visit: &mut dyn FnMut(JobId),
    ) {
        let tube = &self.tubes[tube];
        if has(JobState::Ready) {
            tube.ready.visit_all(&mut |key| visit(key.id()));
        }
        if has(JobState::Delayed) {
            tube.delayed.visit_all(&mut |(_, id)| visit(id));
        }
        if has(JobState::Buried) {
            let first = tube.buried.first();
            let buried = std::iter::successors(first, |job| self.jobs.buried_behind(*job));
            buried.for_each(|job| visit(self.jobs[job].id));
        }
    }

    /// Shows the reserved jobs of a tube.
    fn visit_reserved(&self, tube: TubeHandle, visit: &mut dyn FnMut(JobId)) {
        let handles = (0..self.clients.bound()).filter_map(ClientHandle::from_index);
        for client in handles.filter_map(|handle| self.clients.get(handle)) {
            client.reserved.visit_all(&mut |(_, id)| {
                if self.jobs[self.jobs.expect(id)].tube == tube {
                    visit(id);
                }
            });
        }
    }

    /// A clear of a tube takes the jobs of this set, which [`Queue::cleared_jobs`] has returned a moment
    /// ago for these states.
    pub(crate) fn doom(&mut self, jobs: ClearedJobs, states: ClearedStates, now: Time) {
        let pin = self.pin_tube(jobs.tube());
        let handle = pin.handle();
        let left = self.clearable_of(handle, states);
        let mut clearing = Clearing::new(pin);
        clearing.left = left;
        let tube = &mut self.tubes[handle];
        let all = &mut self.counts;
        if states.has(JobState::Ready) {
            clearing.ready = std::mem::replace(&mut tube.ready, Order::new());
            self.ready_seconds -= std::mem::take(&mut tube.ready_seconds).len();
        }
        let counts = &mut tube.counts;
        if states.has(JobState::Ready) {
            all.ready -= std::mem::take(&mut counts.ready);
            all.urgent -= std::mem::take(&mut counts.urgent);
        }
        if states.has(JobState::Delayed) {
            clearing.delayed = std::mem::replace(&mut tube.delayed, Order::new());
            all.delayed -= std::mem::take(&mut counts.delayed);
        }
        if states.has(JobState::Buried) {
            clearing.buried = std::mem::replace(&mut tube.buried, List::new());
            all.buried -= std::mem::take(&mut counts.buried);
        }
        if states.has(JobState::Ready) {
            self.forget_ready_groups(handle, now);
        }
        self.begin_clearing(jobs, clearing, now);
    }

    /// After a restart, before anything is reserved: the jobs of a set that are still there are taken.
    /// Looks at all jobs. Returns how many they are.
    pub(crate) fn doom_again(&mut self, jobs: ClearedJobs, now: Time) -> u64 {
        let mut clearing = Clearing::new(self.pin_tube(jobs.tube()));
        let ids: Vec<JobId> = self.jobs.ids().collect();
        for id in ids {
            let Some(job) = self.jobs.find(id) else {
                continue;
            };
            let tube = self.jobs[job].tube;
            let home = self.attributed(job).and_then(|found| found.home());
            let is_of = || home.unwrap_or(&self.tubes[tube].name) == jobs.tube();
            if jobs.has(id, is_of) {
                self.detach(job);
                self.reindex_or_remove(tube, now);
                clearing.listed.push(id);
            }
        }
        clearing.left = clearing.listed.len() as u64;
        let left = clearing.left;
        self.begin_clearing(jobs, clearing, now);
        left
    }

    fn begin_clearing(&mut self, jobs: ClearedJobs, clearing: Clearing, now: Time) {
        let tube = clearing.tube.handle();
        self.clears.push_back(clearing);
        self.jobs.doomed.push(DoomedSet { jobs, tube });
        self.reindex_or_remove(tube, now);
    }

    /// How many clears are not over.
    #[must_use]
    pub fn clears(&self) -> usize {
        self.clears.len()
    }

    /// The job to be deleted next, of the first clear that is not over. `None`: it has none left;
    /// then the clear is ended.
    #[must_use]
    pub fn next_doomed(&self) -> Option<JobId> {
        self.clears.front()?.next(&self.jobs)
    }

    /// Ends the first clear, all jobs of which are deleted.
    pub(crate) fn end_clear(&mut self, now: Time) {
        let Some(clearing) = self.clears.pop_front() else {
            return;
        };
        assert_eq!(clearing.left, 0, "a clear ends before its jobs");
        self.jobs.doomed.pop();
        self.unpin(clearing.tube, now);
    }

    /// A job is being deleted. Says whether it was doomed: then it is in no order of its tube.
    ///
    /// # Panics
    /// If it is not the one that [`Queue::next_doomed`] names.
    pub(super) fn leave_doom(&mut self, job: JobHandle) -> bool {
        if self.jobs.doom_of(job).is_none() {
            return false;
        }
        assert_eq!(
            self.next_doomed(),
            Some(self.jobs[job].id),
            "what is doomed is deleted in its order"
        );
        self.clears[0].take_next(&mut self.jobs);
        true
    }
}
