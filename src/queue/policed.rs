//! What a tube with a policy needs to know to keep it. The operations are in `policies`.

use std::sync::Arc;

use super::fair::Fair;
use crate::attributes::Reason;
use crate::policy::Policy;
use crate::types::{SECOND_NS, Time};

/// A tube is looked through for expired jobs once in this part of the time after which they expire, at
/// most …
const SWEEPS_A_TIME: i64 = 16;
/// … and no more often than this.
const SWEEP_NS: i64 = SECOND_NS;
/// For this many times as long as a look has taken there is no other one.
const PAUSE_A_SWEEP: i64 = 8;

/// What has become of deliveries of a tube and of puts into it, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TubeFailures {
    /// Deliveries that failed and jobs that expired, by [`Reason`].
    pub by_reason: [u64; Reason::ALL.len()],
    /// Jobs whose limit was reached or that expired: buried, moved to a dead-letter tube or deleted.
    pub set_aside: u64,
    /// Puts that were refused by `max-jobs` or `max-bytes`.
    pub puts_refused: u64,
}

/// A tube's policy, and what it needs to know to keep it.
pub(super) struct Policed {
    pub(super) policy: Arc<Policy>,
    /// By the rate, the time of the next reserve if all were as far apart as they can be. `None`: there
    /// was no reserve yet.
    pub(super) next_at: Option<Time>,
    /// No job is handed out before, because of the rate.
    pub(super) closed_until: Option<Time>,
    /// The ready jobs are looked through then.
    pub(super) sweep_at: Option<Time>,
    pub(super) swept_at: Time,
    /// Whose turn it is, if it is fair.
    pub(super) fair: Option<Box<Fair>>,
}

impl Policed {
    /// That of a tube without jobs.
    pub(super) fn new(policy: Arc<Policy>) -> Box<Policed> {
        Box::new(Policed {
            fair: policy.fair.then(|| Box::new(Fair::new())),
            policy,
            next_at: None,
            closed_until: None,
            sweep_at: None,
            swept_at: Time(i64::MIN),
        })
    }

    /// The same where another policy was: the rate goes on if it stays.
    pub(super) fn behind(policy: Arc<Policy>, before: Option<Box<Policed>>) -> Box<Policed> {
        let mut new = Policed::new(policy);
        if let Some(before) = before.filter(|before| before.policy.rate == new.policy.rate) {
            (new.next_at, new.closed_until) = (before.next_at, before.closed_until);
        }
        new
    }

    /// A job of the tube is reserved. What was not used is saved up for one burst; a rate begins
    /// without one.
    pub(super) fn note_reserve(&mut self, now: Time) {
        let Some(rate) = self.policy.rate else { return };
        let interval = rate.interval_ns();
        let saved = interval.saturating_mul(rate.burst() as i64 - 1);
        let begin = match self.next_at {
            None => now.0.saturating_add(saved),
            Some(next) => next.0.max(now.0),
        };
        let next = begin.saturating_add(interval);
        self.next_at = Some(Time(next));
        let opens = Time(next.saturating_sub(saved));
        self.closed_until = (opens > now).then_some(opens);
    }

    /// A job that was put at `created` is ready.
    pub(super) fn note_ready(&mut self, created: Time) {
        if let (Some(seconds), None) = (self.policy.expire_after, self.sweep_at) {
            self.sweep_at = Some(
                created
                    .plus_seconds(seconds)
                    .max(self.may_sweep_at(seconds)),
            );
        }
    }

    fn may_sweep_at(&self, seconds: u32) -> Time {
        let pause = (i64::from(seconds) * SECOND_NS / SWEEPS_A_TIME).max(SWEEP_NS);
        Time(self.swept_at.0.saturating_add(pause))
    }

    /// The jobs of the tube were looked through from `begun` on: the longer that has taken, the later they
    /// are again.
    pub(super) fn note_sweep(&mut self, begun: Time, now: Time) {
        let pause = now.since(begun).saturating_mul(PAUSE_A_SWEEP);
        self.swept_at = Time(now.0.saturating_add(pause));
    }

    /// When something happens to the tube because of its policy.
    pub(super) fn due(&self) -> Option<Time> {
        let events = self.closed_until.into_iter().chain(self.sweep_at);
        events.chain(self.next_slice()).min()
    }

    /// When the next slice of its ready jobs is to be taken in.
    pub(super) fn next_slice(&self) -> Option<Time> {
        self.fair.as_ref().and_then(|fair| fair.next_slice)
    }

    /// The tube must not be forgotten: it would begin with a reserve that the rate does not allow.
    pub(super) fn is_needed(&self) -> bool {
        self.closed_until.is_some()
    }
}
