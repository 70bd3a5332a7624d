//! Fair tubes: which jobs are in which group, and how a tube becomes fair and ceases to be.
//!
//! A tube whose policy says `fair` has an index of its ready jobs by their groups (see `fair`). It
//! follows every change of a job's state, tube and attributes. A tube that has jobs when it becomes
//! fair is indexed in slices, by time like all that is due; until that is done, what is in the index
//! goes first. So is an index taken apart that is not needed any more.
//!
//! During replay there is no index. At its end no job is reserved, and the ready ones are indexed in
//! slices.

use super::Queue;
use super::attributed::Attributed;
use super::fair::Fair;
use super::handle::{ClientHandle, JobHandle, TubeHandle};
use super::job::{Jobs, ReadyKey};
use super::policed::Policed;
use super::timer::VISITS_PER_ITEM;
use super::tube::Tube;
use crate::attributes::group_of;
use crate::types::{JobState, Time};

/// Ready jobs up to which a tube is fair at once: about a millisecond.
pub(super) const INDEXED_AT_ONCE: usize = 1024;
/// Ready jobs that one step takes in.
const STEP_LEN: usize = 64;

impl Tube {
    /// The ready job that is handed out first.
    #[inline]
    pub(super) fn first_ready(&self) -> Option<ReadyKey> {
        match &self.policed {
            None => self.ready.first(),
            Some(policed) => self.first_of_policed(policed),
        }
    }

    #[inline(never)]
    fn first_of_policed(&self, policed: &Policed) -> Option<ReadyKey> {
        let fair = policed.fair.as_ref().and_then(|fair| fair.first());
        fair.or_else(|| self.ready.first())
    }

    fn fair_mut(&mut self) -> Option<&mut Fair> {
        self.policed.as_mut()?.fair.as_deref_mut()
    }
}

/// The group in a job's attributes.
fn group(jobs: &Jobs, handle: JobHandle) -> Option<&[u8]> {
    let job = &jobs[handle];
    match job.has_attributes {
        true => jobs
            .attributed
            .get(job.id)
            .map(Attributed::list)
            .and_then(group_of),
        false => None,
    }
}

/// Changes of jobs.
impl Queue {
    /// A job of a tube with a policy is in its state and its tube from now on.
    pub(super) fn enter_group(&mut self, job: JobHandle) {
        self.change_fair(job, Fair::enter);
    }

    /// It leaves its state, or its tube, or gets another group.
    pub(super) fn leave_group(&mut self, job: JobHandle) {
        self.change_fair(job, Fair::leave);
    }

    fn change_fair(
        &mut self,
        handle: JobHandle,
        change: impl FnOnce(&mut Fair, Option<&[u8]>, JobState, ReadyKey),
    ) {
        let job = &self.jobs[handle];
        if let Some(fair) = self.tubes[job.tube].fair_mut()
            && !self.is_replaying
        {
            let before = fair.memory();
            let group = group(&self.jobs, handle);
            change(fair, group, job.state, job.ready_key());
            self.fair_memory = self.fair_memory + fair.memory() - before;
        }
    }

    /// True if another group in this list would give the job another turn.
    pub(super) fn regroups(&self, job: JobHandle, list: &[u8]) -> bool {
        let policed = &self.tubes[self.jobs[job].tube].policed;
        let is_fair = policed.as_ref().is_some_and(|it| it.policy.fair);
        is_fair && group(&self.jobs, job) != group_of(list)
    }
}

/// Changes of policies.
impl Queue {
    /// All ready jobs of a tube are gone.
    pub(super) fn forget_ready_groups(&mut self, handle: TubeHandle, now: Time) {
        let policed = self.tubes[handle].policed.as_mut();
        let Some(before) = policed.and_then(|policed| policed.fair.take()) else {
            return;
        };
        self.unused_fair.push(*before);
        self.free_unused_fair(INDEXED_AT_ONCE);
        if self.change_fairness(handle, None, &mut 0, now) {
            self.count_reserved(&[handle]);
        }
    }

    /// The tube has another policy; `before` is the index that it had. Up to `left` jobs are indexed at
    /// once. Says whether [`Queue::count_reserved`] is needed.
    pub(super) fn change_fairness(
        &mut self,
        handle: TubeHandle,
        before: Option<Box<Fair>>,
        left: &mut usize,
        now: Time,
    ) -> bool {
        let tube = &mut self.tubes[handle];
        let policed = tube.policed.as_mut();
        let fair = policed.filter(|policed| policed.policy.fair && !self.is_replaying);
        match (fair, before) {
            (Some(policed), Some(before)) => policed.fair = Some(before),
            (Some(policed), None) => {
                let is_uncounted = tube.counts.reserved > 0;
                policed.fair = Some(Box::new(Fair::behind(is_uncounted, now)));
                if tube.counts.ready <= *left as u64 {
                    *left -= self.index_some(handle, *left + 1, now);
                }
                return is_uncounted;
            }
            (None, Some(before)) => {
                self.unused_fair.push(*before);
                self.free_unused_fair(INDEXED_AT_ONCE);
            }
            (None, None) => {}
        }
        false
    }

    /// Jobs that are reserved in tubes that have just become fair count for their groups. Looks at all
    /// reserved jobs, in some microseconds each.
    pub(super) fn count_reserved(&mut self, tubes: &[TubeHandle]) {
        if tubes.is_empty() {
            return;
        }
        for client in (0..self.clients.bound()).filter_map(ClientHandle::from_index) {
            let client = self.clients.get(client);
            let Some(reserved) = client.map(|client| &client.reserved) else {
                continue;
            };
            let mut next = reserved.first();
            while let Some(due) = next {
                let handle = self.jobs.expect(due.1);
                let job = &self.jobs[handle];
                let fair = self.tubes[job.tube].fair_mut();
                if let Some(fair) = fair.filter(|fair| fair.is_uncounted) {
                    let before = fair.memory();
                    fair.enter(group(&self.jobs, handle), job.state, job.ready_key());
                    self.fair_memory = self.fair_memory + fair.memory() - before;
                }
                self.visit(1);
                next = reserved.after(&due);
            }
        }
        for tube in tubes {
            if let Some(fair) = self.tubes[*tube].fair_mut() {
                fair.is_uncounted = false;
            }
            self.reindex(*tube);
        }
    }

    /// The next slice of the ready jobs of a tube that has become fair. Each takes as long as an event.
    pub(super) fn index_slice(&mut self, tube: TubeHandle, now: Time) {
        let count = self.index_some(tube, STEP_LEN, now);
        self.visit(count * VISITS_PER_ITEM);
    }

    /// Takes in the next ready jobs. Returns how many.
    fn index_some(&mut self, handle: TubeHandle, most: usize, now: Time) -> usize {
        let tube = &mut self.tubes[handle];
        let Some(fair) = tube.policed.as_mut().and_then(|it| it.fair.as_mut()) else {
            return 0;
        };
        let before = fair.memory();
        fair.next_slice = Some(now);
        let mut count = 0;
        while count < most {
            let Some(key) = fair.next_to_index(&tube.ready) else {
                fair.end_indexing();
                break;
            };
            let job = self.jobs.expect(key.id());
            fair.index(group(&self.jobs, job), key);
            count += 1;
        }
        self.fair_memory = self.fair_memory + fair.memory() - before;
        count
    }

    /// Removes some entries of indexes that are not needed any more.
    pub(super) fn free_unused_fair(&mut self, most: usize) {
        if let Some(fair) = self.unused_fair.last_mut() {
            let before = fair.memory();
            let is_empty = fair.take_apart(most);
            self.fair_memory = self.fair_memory + fair.memory() - before;
            if is_empty {
                self.unused_fair.pop();
            }
        }
    }

    /// Checks that the indexes of all fair tubes are those that follow from the states of all jobs.
    ///
    /// # Panics
    /// If they are not.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn assert_groups(&self) {
        let mut memory: usize = self.unused_fair.iter().map(Fair::memory).sum();
        for handle in self.tubes.handles() {
            let Some(policed) = &self.tubes[handle].policed else {
                continue;
            };
            let Some(fair) = &policed.fair else {
                assert!(!policed.policy.fair || self.is_replaying);
                continue;
            };
            if self.is_replaying {
                continue;
            }
            let jobs = self.jobs.ids().filter_map(|id| self.jobs.find(id));
            let here = jobs.filter(|job| self.jobs[*job].tube == handle);
            fair.assert_is_of(here.map(|handle| {
                let job = &self.jobs[handle];
                (group(&self.jobs, handle), job.state, job.ready_key())
            }));
            memory += fair.memory();
        }
        assert_eq!(self.fair_memory, memory, "memory of groups");
    }
}

#[cfg(test)]
mod tests;
