//! Tubes with a policy: which one has which, what a policy holds back, and which deliveries have failed.
//!
//! The queue holds back what `max-reserved` and `rate` say, as it does for a pause: such a tube is
//! *closed* for a while. It notes deliveries that end without a command (time, disconnect) for the
//! caller, who decides what becomes of their jobs ([`Queue::take_failure`]); until then they are ready.
//! It says when the ready jobs of a tube are to be looked through for those that have expired
//! ([`Queue::take_sweep`]). Nothing of this is recorded: policies are settings of the log, and the
//! caller tells of them.
//!
//! A tube without a policy costs a test of a pointer.

use std::sync::Arc;

use super::Queue;
use super::groups::INDEXED_AT_ONCE;
use super::handle::{JobHandle, TubeHandle};
use super::policed::{Policed, TubeFailures};
use super::tube::Tube;
use super::tubes::TubeRef;
use crate::attributes::{Attributes, Reason};
use crate::pattern::Pattern;
use crate::policy::Policy;
use crate::types::{JobId, Time};

impl Tube {
    /// No job is handed out now, because of a pause or of its policy.
    pub(super) fn is_closed(&self, now: Time) -> bool {
        self.is_paused(now) || self.is_held_back(|until| until > now)
    }

    /// The same of what has not been dealt with yet, at whatever time.
    pub(super) fn is_closed_still(&self) -> bool {
        self.pause.is_some() || self.is_held_back(|_| true)
    }

    #[inline]
    fn is_held_back(&self, is_ahead: impl FnOnce(Time) -> bool) -> bool {
        let Some(policed) = &self.policed else {
            return false;
        };
        let most = policed.policy.max_reserved;
        policed.closed_until.is_some_and(is_ahead)
            || most.is_some_and(|most| self.counts.reserved >= u64::from(most))
    }

    pub(super) fn note_reserve(&mut self, now: Time) {
        if let Some(policed) = &mut self.policed {
            policed.note_reserve(now);
        }
    }

    pub(super) fn note_ready(&mut self, created: Time) {
        if let Some(policed) = &mut self.policed {
            policed.note_ready(created);
        }
    }

    fn failures_mut(&mut self) -> &mut TubeFailures {
        self.failures.get_or_insert_default()
    }
}

/// Policies.
impl Queue {
    /// The tubes that `name` means have this policy from now on, or with `None` what others say. A tube
    /// with a policy of its own exists as long as that does. Looks at every tube if the name is a
    /// pattern.
    pub fn set_policy(&mut self, name: &Pattern, policy: Option<Policy>, now: Time) {
        let has = policy.is_some();
        self.tubes.policies.set(name, policy);
        let Some(tube) = name.name() else {
            // At the end of replay all are looked at.
            if self.is_replaying {
                return;
            }
            self.visit(self.tubes.len());
            let tubes = self.tubes.handles().collect::<Vec<_>>();
            self.resolve_policies(tubes, now);
            return;
        };
        if has {
            let pin = self.pin_tube(tube);
            self.resolve_policies(vec![pin.handle()], now);
            let before = self.policy_pins.insert(tube.into(), pin);
            before.into_iter().for_each(|pin| self.unpin(pin, now));
        } else if let Some(pin) = self.policy_pins.remove(tube) {
            self.resolve_policies(vec![pin.handle()], now);
            self.unpin(pin, now);
        }
    }

    /// Each of these tubes has the policy that its name has.
    fn resolve_policies(&mut self, mut tubes: Vec<TubeHandle>, now: Time) {
        let mut left = INDEXED_AT_ONCE;
        tubes.retain(|tube| self.resolve_policy(*tube, &mut left, now));
        self.count_reserved(&tubes);
    }

    /// Says whether its reserved jobs are to be counted: see [`Queue::change_fairness`].
    fn resolve_policy(&mut self, handle: TubeHandle, left: &mut usize, now: Time) -> bool {
        let tube = &self.tubes[handle];
        let found = self.tubes.policies.of(&tube.name);
        let found = found.map(|(_, policy)| policy.clone());
        let is_same = match (&tube.policed, &found) {
            (None, None) => true,
            (Some(policed), Some(found)) => policed.policy == *found,
            _ => false,
        };
        if is_same {
            return false;
        }
        let oldest = tube.ready_seconds.oldest();
        let tube = &mut self.tubes[handle];
        let mut before = tube.policed.take();
        let fair = before.as_mut().and_then(|before| before.fair.take());
        tube.policed = found.map(|policy| Policed::behind(policy, before));
        oldest
            .into_iter()
            .for_each(|created| tube.note_ready(created));
        let is_uncounted = self.change_fairness(handle, fair, left, now);
        self.reindex_or_remove(handle, now);
        is_uncounted
    }

    /// True if any tube may have a policy.
    #[must_use]
    pub(crate) fn has_policies(&self) -> bool {
        !self.tubes.policies.is_empty()
    }

    /// Whether there is room for a policy of this name.
    #[must_use]
    pub fn has_room_for_policy(&self, name: &Pattern) -> bool {
        self.tubes.policies.has_room_for(name)
    }

    /// The policy of a tube, which need not exist, and the name or pattern under which it was set.
    #[must_use]
    pub fn policy_of(&self, tube: &str) -> Option<(&str, &Arc<Policy>)> {
        self.tubes.policies.of(tube)
    }

    /// All policies, by the names and patterns under which they were set.
    pub fn policies(&self) -> impl Iterator<Item = (&str, &Policy)> {
        self.tubes.policies.iter()
    }

    /// The policy of the tube that a job is in.
    #[must_use]
    #[inline]
    pub(crate) fn policy_of_job(&self, id: JobId) -> Option<&Arc<Policy>> {
        if self.tubes.policies.is_empty() {
            return None;
        }
        self.policy_at(self.jobs.find(id)?)
    }

    fn policy_at(&self, job: JobHandle) -> Option<&Arc<Policy>> {
        let policed = self.tubes[self.jobs[job].tube].policed.as_ref()?;
        Some(&policed.policy)
    }

    /// Deliveries of a job that its tube's policy counts: its reserves since its put, or since they were
    /// last set to 0. The one under way counts.
    #[must_use]
    pub fn deliveries(&self, id: JobId) -> u32 {
        let Some(job) = self.jobs.find(id) else {
            return 0;
        };
        let attributes = self.attributes(id).and_then(Attributes::decode);
        let before = attributes.and_then(|it| it.counted_from).unwrap_or(0);
        self.jobs
            .extra(job)
            .counters
            .reserves
            .saturating_sub(before)
    }

    /// Whether a policy has no room in a tube for another job of this size, in the place of one of its jobs
    /// if that is said.
    #[must_use]
    pub fn is_full(&self, tube: &str, body_size: u64, replaced: Option<JobId>) -> bool {
        let found = self.tubes.find(tube).map(|tube| &self.tubes[tube]);
        let policy = match found {
            Some(tube) => tube.policed.as_ref().map(|policed| &policed.policy),
            None => self.policy_of(tube).map(|(_, policy)| policy),
        };
        let Some(policy) = policy else { return false };
        let (jobs, bytes) = found.map_or((0, 0), |tube| (tube.counts.total(), tube.body_bytes));
        let freed = replaced.and_then(|id| self.job(id));
        let (jobs, bytes) = freed.map_or((jobs, bytes), |job| {
            (jobs - 1, bytes - u64::from(job.body_size))
        });
        let is_over = |most: u64| bytes.saturating_add(body_size) > most;
        policy.max_jobs.is_some_and(|most| jobs >= most) || policy.max_bytes.is_some_and(is_over)
    }

    /// Jobs of a tube.
    #[must_use]
    pub fn job_count(&self, tube: &str) -> u64 {
        let tube = self.tubes.find(tube);
        tube.map_or(0, |tube| self.tubes[tube].counts.total())
    }

    /// Bytes of the bodies of a tube's jobs.
    #[must_use]
    pub fn body_bytes(&self, tube: &str) -> u64 {
        let tube = self.tubes.find(tube);
        tube.map_or(0, |tube| self.tubes[tube].body_bytes)
    }
}

/// Failures.
impl Queue {
    /// The next delivery that has ended without a command, and why. Its job is ready, and must not be
    /// handed out before it was decided what becomes of it: take all of them after whatever may end a
    /// delivery, before anyone is served.
    pub fn take_failure(&mut self) -> Option<(JobId, Reason)> {
        self.failed.pop_front()
    }

    /// It cannot be decided yet: it will be the next one taken.
    pub(crate) fn put_back_failure(&mut self, id: JobId, reason: Reason) {
        self.failed.push_front((id, reason));
    }

    /// True if [`Queue::take_failure`] has more.
    #[must_use]
    pub(crate) fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// A reservation of the job ends without a command: the job is ready again.
    pub(super) fn fail(&mut self, job: JobHandle, reason: Reason, now: Time) {
        let policy = self.policy_at(job);
        if policy.is_some_and(|policy| policy.acts_on_failures()) {
            self.failed.push_back((self.jobs[job].id, reason));
        }
        self.return_to_ready(job, now);
    }

    /// A delivery of a job has failed, or the job has expired: count it for its tube. `set_aside`: the
    /// job is set aside with it.
    pub fn note_failure(&mut self, id: JobId, reason: Reason, set_aside: bool) {
        if let Some(job) = self.jobs.find(id) {
            let of_tube = self.tubes[self.jobs[job].tube].failures_mut();
            for failures in [of_tube, &mut self.failures] {
                failures.by_reason[reason as usize] += 1;
                failures.set_aside += u64::from(set_aside);
            }
        }
    }

    /// A put into a tube was refused by its policy.
    pub(crate) fn note_put_refused(&mut self, tube: &str) {
        if let Some(tube) = self.tubes.find(tube) {
            self.tubes[tube].failures_mut().puts_refused += 1;
            self.failures.puts_refused += 1;
        }
    }
}

/// Time.
impl Queue {
    /// The rate of a tube allows the next reserve, or its ready jobs are to be looked through, or indexed:
    /// what was due first.
    pub(super) fn tick_policy(&mut self, handle: TubeHandle, now: Time) {
        let tube = &mut self.tubes[handle];
        let Some(policed) = &mut tube.policed else {
            return;
        };
        let due = policed.due();
        if policed.closed_until.is_some() && due == policed.closed_until {
            policed.closed_until = None;
        } else if policed.next_slice().is_some() && due == policed.next_slice() {
            self.index_slice(handle, now);
        } else {
            (policed.sweep_at, policed.swept_at) = (None, now);
            let name = tube.name.clone();
            let pin = self.pin_tube(&name);
            self.sweeps.push_back(pin);
        }
        self.reindex_or_remove(handle, now);
    }

    /// A tube whose ready jobs are to be looked through for those that have expired. Give it back to
    /// [`Queue::end_sweep`] when that is done.
    pub fn take_sweep(&mut self) -> Option<TubeRef> {
        self.sweeps.pop_front()
    }

    /// A tube's jobs have been looked through. They are again when the oldest one that is ready may
    /// have expired.
    /// The longer the look has taken since `begun`, the later the next one is.
    pub fn end_sweep(&mut self, tube: TubeRef, begun: Time, now: Time) {
        let of_tube = &mut self.tubes[tube.handle()];
        if let Some(policed) = &mut of_tube.policed {
            policed.note_sweep(begun, now);
        }
        if let Some(created) = of_tube.ready_seconds.oldest() {
            of_tube.note_ready(created);
        }
        self.unpin(tube, now);
    }

    /// At the end of replay: the policies are known, and reserves of just before are not, so a rate
    /// begins from the start.
    pub(super) fn begin_policy(&mut self, handle: TubeHandle, now: Time) {
        let found = self.tubes.policies.of(&self.tubes[handle].name);
        let found = found.map(|(_, policy)| policy.clone());
        let tube = &mut self.tubes[handle];
        tube.policed = found.map(Policed::new);
        tube.note_reserve(now);
        let oldest = tube.ready_seconds.oldest();
        oldest
            .into_iter()
            .for_each(|created| tube.note_ready(created));
        self.change_fairness(handle, None, &mut 0, now);
    }
}
