//! The policies of tubes: setting them, and looking for jobs that have expired.
//!
//! A policy is a setting of the log (see `settings`). The queue knows the policies too, and so knows
//! that of each tube. Here they are handed on, whether they are set now, replayed, or come from another
//! server.
//!
//! A job that has expired is never handed out. So that it does not take memory for ever either, the
//! ready jobs of its tube are looked through from time to time, in slices. A delayed job is found when
//! it is ready.

use std::sync::Arc;

use super::Engine;
use super::outcome::Logged;
use crate::attributes::Reason;
use crate::pattern::Pattern;
use crate::policy::{self, Policy};
use crate::queue::{Mark, Queue, TubeRef};
use crate::storage::StoreError;
use crate::types::{JobId, JobState, Now, SettingClass, Time};

/// Jobs that are looked at in one call, and jobs that are set aside in it, at most.
const LOOKED_AT_A_TICK: usize = 512;
const SET_ASIDE_A_TICK: usize = 64;

/// A look through the ready jobs of a tube.
#[derive(Debug)]
pub(super) struct Sweep {
    tube: TubeRef,
    begun: Time,
    behind: Option<Mark>,
}

/// Result of setting a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicySet {
    /// It is set, and durable as the policy of syncs says once [`Engine::after`] is acknowledged.
    Done,
    /// There are too many, or there is no room on the disk. Nothing has changed.
    NoRoom,
}

impl Engine {
    /// Set the policy of a tube, or of the tubes that match a pattern and have none of their own. One that
    /// says nothing removes it.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn set_policy(
        &mut self,
        name: &Pattern,
        policy: &Policy,
        now: Now,
    ) -> Result<PolicySet, StoreError> {
        let value = policy.to_string();
        if !value.is_empty() && !self.has_room_for_policy(name, now) {
            return Ok(PolicySet::NoRoom);
        }
        self.is_busy = true;
        match self.set(SettingClass::Policy, name.text(), value.as_bytes(), now)? {
            true => Ok(PolicySet::Done),
            false => Ok(PolicySet::NoRoom),
        }
    }

    /// A tube that has a policy of its own exists as long as that.
    fn has_room_for_policy(&mut self, name: &Pattern, now: Now) -> bool {
        let has_room = |tube| self.has_room_for_tube(tube, now);
        name.name().is_none_or(has_room) && self.queue.has_room_for_policy(name)
    }

    /// Whether the policy of a job's tube says what becomes of a delivery that fails.
    pub(super) fn acts_on_failures(&self, id: JobId) -> bool {
        let policy = self.queue.policy_of_job(id);
        policy.is_some_and(|policy| policy.acts_on_failures())
    }

    /// Whether a reserve of a job is logged before its reply leaves: a policy acts on it. Of one that
    /// expires it is the first that counts.
    #[inline]
    pub(super) fn is_counted(&self, id: JobId) -> bool {
        let is_counted = |policy: &Arc<Policy>| {
            let expires = policy.expire_after.is_some();
            policy.delivery_limit.is_some() || expires && self.queue.deliveries(id) <= 1
        };
        self.queue.policy_of_job(id).is_some_and(is_counted)
    }

    /// A slice of looking for jobs that have expired. Says whether there is more to do at once.
    pub(super) fn sweep_expired(&mut self, now: Now) -> Result<bool, StoreError> {
        let next = self.sweep.take();
        let next = next.or_else(|| {
            let tube = self.queue.take_sweep()?;
            Some(Sweep {
                tube,
                begun: now.mono,
                behind: None,
            })
        });
        let Some(mut sweep) = next else {
            return Ok(false);
        };
        if self.sweep_some(&mut sweep, now)? {
            self.sweep = Some(sweep);
        } else {
            self.queue.end_sweep(sweep.tube, sweep.begun, now.mono);
        }
        Ok(true)
    }

    /// `false`: there is nothing more to look at, or no room to set a job aside.
    fn sweep_some(&mut self, sweep: &mut Sweep, now: Now) -> Result<bool, StoreError> {
        let mut left = SET_ASIDE_A_TICK;
        for _ in 0..LOOKED_AT_A_TICK {
            let tube = self.queue.pinned_name(&sweep.tube);
            let next = self.queue.job_behind(tube, JobState::Ready, sweep.behind);
            let Ok(Some(next)) = next else {
                return Ok(false);
            };
            sweep.behind = Some(next);
            let policy = self.queue.policy_of_job(next.id);
            if policy.is_none_or(|policy| !self.is_expired(next.id, policy, now)) {
                continue;
            }
            if let Logged::Full = self.set_aside(next.id, Reason::Expired, now)? {
                return Ok(false);
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        Ok(true)
    }
}

/// A setting has this value from now on: if it is a policy, the queue keeps it.
pub(super) fn hand_on(
    queue: &mut Queue,
    (class, name, value): (SettingClass, &str, &[u8]),
    now: Now,
) {
    if class != SettingClass::Policy {
        return;
    }
    let Ok(pattern) = policy::tubes(name) else {
        tracing::error!(
            "the log has a policy of {name:?}, which is no name of tubes: it is not applied; it may be \
             that of a newer bsd: use that one"
        );
        return;
    };
    let text = std::str::from_utf8(value).unwrap_or("not text");
    match text.parse::<Policy>() {
        Ok(policy) => {
            let policy = (policy != Policy::default()).then_some(policy);
            queue.set_policy(&pattern, policy, now.mono);
        }
        Err(error) => {
            queue.set_policy(&pattern, None, now.mono);
            tracing::error!(
                "the policy of {name:?} in the log is not understood, and not applied: {error}; it may \
                 be that of a newer bsd: use that one, or set the policy again"
            );
        }
    }
}
