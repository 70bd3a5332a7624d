//! The state of the loop, for other threads to read at any time: how far the start has come, and
//! when the last turn was. The loop only stores numbers here and never waits.

use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::time::Duration;

use bsd::histogram::{Histogram, Reading, SHORT};
use bsd::types::Time;

/// While the loop is awake, `asleep_until` has this value.
const AWAKE: i64 = i64::MIN;

/// The stage of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The loop does not run yet: the log is being replayed.
    Starting,
    /// The loop runs.
    Running,
    /// It is paused: a member of a cluster reads its log again.
    Reading,
    /// It was asked to stop.
    Stopping,
    /// It ends because the disk failed.
    Failed,
}

/// The pulse of one loop.
#[derive(Debug)]
pub struct Pulse {
    stage: AtomicU8,
    /// When the current turn began; during sleep, the last one.
    turned_at: AtomicI64,
    /// The latest time at which the loop wakes by itself: `AWAKE` while it is awake, the largest
    /// number when only an event wakes it.
    asleep_until: AtomicI64,
    turns: Histogram,
    calls: Histogram,
    syncs: Histogram,
    /// When the certificates of each [`CertificateOf`] end; `UNKNOWN` without one.
    certificate_ends: [AtomicI64; 2],
}

/// The end of a certificate that there is not, or that cannot be read.
const UNKNOWN: i64 = i64::MIN;

/// Who is shown a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateOf {
    /// Clients, of the protocol and over HTTP.
    Clients,
    /// Members of the cluster.
    Members,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse {
            stage: AtomicU8::new(Stage::Starting as u8),
            turned_at: AtomicI64::new(0),
            asleep_until: AtomicI64::new(i64::MAX),
            turns: Histogram::new(SHORT),
            calls: Histogram::new(SHORT),
            syncs: Histogram::new(SHORT),
            certificate_ends: [const { AtomicI64::new(UNKNOWN) }; 2],
        }
    }
}

/// The state of the loop at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// How long ago the loop should have begun another turn.
    pub late: Duration,
}

impl Pulse {
    /// The stage of the server.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let stages = [
            Stage::Starting,
            Stage::Running,
            Stage::Reading,
            Stage::Stopping,
        ];
        let stage = self.stage.load(Ordering::Relaxed);
        let found = stages.into_iter().find(|it| *it as u8 == stage);
        found.unwrap_or(Stage::Failed)
    }

    /// How late the loop is. A loop that sleeps because there is nothing to do is not late, nor is
    /// one that has not begun.
    #[must_use]
    pub fn beat(&self, now: Time) -> Beat {
        let asleep_until = self.asleep_until.load(Ordering::Acquire);
        let since = match asleep_until {
            AWAKE => self.turned_at.load(Ordering::Relaxed),
            until => until,
        };
        let late = u64::try_from(now.since(Time(since))).unwrap_or(0);
        Beat {
            late: Duration::from_nanos(late),
        }
    }

    /// How far the server has come.
    pub fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// In the middle of a turn the loop begins to read the log again, however long that takes: it
    /// is not late. [`Stage::Running`] ends it.
    pub fn read_again(&self, now: Time) {
        self.set_stage(Stage::Reading);
        self.sleep(now, None);
    }

    /// When the certificate ends that these are shown, seconds since 1970; `None` without one, or
    /// that cannot be read.
    #[must_use]
    pub fn certificate_end(&self, of: CertificateOf) -> Option<i64> {
        let end = self.certificate_ends[of as usize].load(Ordering::Relaxed);
        (end != UNKNOWN).then_some(end)
    }

    /// When this certificate expires, seconds since 1970; `None`: it says nothing that is understood.
    pub fn set_certificate_end(&self, of: CertificateOf, end: Option<i64>) {
        let end = end.unwrap_or(UNKNOWN);
        self.certificate_ends[of as usize].store(end, Ordering::Relaxed);
    }

    /// How long turns took, waits for the disk included.
    #[must_use]
    pub fn turns(&self) -> Reading {
        self.turns.read()
    }

    /// How long calls of other threads took in a turn.
    #[must_use]
    pub fn calls(&self) -> Reading {
        self.calls.read()
    }

    /// How long it took until written data was known to be durable, if the policy requires that.
    #[must_use]
    pub fn syncs(&self) -> Reading {
        self.syncs.read()
    }

    /// Calls took this many nanoseconds of a turn.
    pub fn note_calls(&self, ns: i64) {
        self.calls.note(ns);
    }

    /// A sync took this many nanoseconds.
    pub fn note_sync(&self, ns: i64) {
        self.syncs.note(ns);
    }

    /// A turn begins. This ends the turn before, unless the loop slept.
    pub fn wake(&self, now: Time) {
        if self.asleep_until.load(Ordering::Relaxed) == AWAKE {
            self.note_turn(now);
        }
        self.turned_at.store(now.0, Ordering::Relaxed);
        self.asleep_until.store(AWAKE, Ordering::Release);
    }

    fn note_turn(&self, now: Time) {
        let begun = Time(self.turned_at.load(Ordering::Relaxed));
        self.turns.note(now.since(begun));
    }

    /// The turn is over. Without an event the next one begins at this time, or never.
    pub fn sleep(&self, now: Time, until: Option<Time>) {
        if self.asleep_until.load(Ordering::Relaxed) == AWAKE {
            self.note_turn(now);
        }
        let until = until.map_or(i64::MAX, |until| until.0.max(AWAKE + 1));
        self.asleep_until.store(until, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bsd::types::SECOND_NS;

    fn late(pulse: &Pulse, second: i64) -> u64 {
        pulse.beat(Time(second * SECOND_NS)).late.as_secs()
    }

    #[test]
    fn a_loop_is_late_when_a_turn_takes_long() {
        let pulse = Pulse::default();
        assert_eq!(late(&pulse, 1000), 0, "it has not begun");
        pulse.wake(Time(SECOND_NS));
        assert_eq!(late(&pulse, 11), 10);
        pulse.wake(Time(11 * SECOND_NS));
        assert_eq!(late(&pulse, 11), 0);
    }

    #[test]
    fn a_loop_that_sleeps_is_late_only_when_it_oversleeps() {
        let pulse = Pulse::default();
        pulse.wake(Time(SECOND_NS));
        pulse.sleep(Time(SECOND_NS), None);
        assert_eq!(late(&pulse, 1000), 0);
        pulse.wake(Time(1000 * SECOND_NS));
        pulse.sleep(Time(1000 * SECOND_NS), Some(Time(1010 * SECOND_NS)));
        assert_eq!(late(&pulse, 1010), 0);
        assert_eq!(late(&pulse, 1015), 5);
    }

    #[test]
    fn a_turn_lasts_until_the_loop_sleeps_or_turns_again() {
        let pulse = Pulse::default();
        pulse.wake(Time(0));
        pulse.wake(Time(1_000));
        pulse.sleep(Time(3_000), None);
        pulse.wake(Time(1_000_000));
        let turns = pulse.turns();
        assert_eq!((turns.counts.iter().sum::<u64>(), turns.sum_ns), (2, 3_000));
    }

    #[test]
    fn g07_a_loop_that_reads_its_log_again_is_not_late() {
        let pulse = Pulse::default();
        pulse.set_stage(Stage::Running);
        pulse.wake(Time(SECOND_NS));
        pulse.read_again(Time(SECOND_NS));
        assert_eq!((pulse.stage(), late(&pulse, 1000)), (Stage::Reading, 0));
        pulse.set_stage(Stage::Running);
        assert_eq!(late(&pulse, 1000), 0);
        pulse.wake(Time(1000 * SECOND_NS));
        assert_eq!(late(&pulse, 1003), 3);
    }

    #[test]
    fn each_stage_is_told_from_the_others() {
        let pulse = Pulse::default();
        assert_eq!(pulse.stage(), Stage::Starting);
        for stage in [
            Stage::Running,
            Stage::Reading,
            Stage::Stopping,
            Stage::Failed,
        ] {
            pulse.set_stage(stage);
            assert_eq!(pulse.stage(), stage);
        }
    }
}
