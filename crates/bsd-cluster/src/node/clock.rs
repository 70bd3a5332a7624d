//! By how much the wall clock of a leader is ahead of the one here, as its heartbeats tell.
//!
//! The time travels in `commit_term`, milliseconds since 1970, which raft leaves at 0 in heartbeats and
//! does not read there: 0 is what an older version says. A heartbeat that was late makes the clock look
//! as much behind, so the largest of the differences of some time counts.

use raft::eraftpb::{Message, MessageType};

use super::Node;
use bsd::types::{Now, SECOND_NS, Time};

/// Differences below this are not told from late heartbeats.
const APART_NS: i64 = SECOND_NS;
/// The largest difference of one or two of these counts.
const WINDOW_NS: i64 = SECOND_NS;
const MS_NS: u64 = 1_000_000;

/// Knowledge of the clock of the leader of one term.
#[derive(Debug, Default)]
pub(super) struct LeaderClock {
    term: u64,
    begun: Time,
    /// The largest difference in this window, nanoseconds, and in the one before it.
    now_ns: i64,
    before_ns: i64,
}

impl LeaderClock {
    /// A leader of this term says what its wall clock shows.
    fn note(&mut self, term: u64, wall_ms: u64, now: Now) {
        let theirs = i128::from(wall_ms) * i128::from(MS_NS);
        let ahead = theirs - i128::from(now.wall_ns);
        let ahead = i64::try_from(ahead).unwrap_or(if ahead > 0 { i64::MAX } else { i64::MIN });
        if self.term != term {
            *self = LeaderClock {
                term,
                begun: now.mono,
                now_ns: ahead,
                before_ns: i64::MIN,
            };
        } else if now.mono.since(self.begun) >= WINDOW_NS {
            (self.before_ns, self.now_ns) = (self.now_ns, ahead);
            self.begun = now.mono;
        } else {
            self.now_ns = self.now_ns.max(ahead);
        }
    }

    /// See [`Node::clock_ahead`].
    fn ahead(&self, term: u64) -> i64 {
        let ahead = self.now_ns.max(self.before_ns);
        let is_apart = ahead.unsigned_abs() >= APART_NS.unsigned_abs();
        match term == self.term && is_apart {
            true => ahead,
            false => 0,
        }
    }
}

/// Say in a heartbeat what the wall clock shows.
pub(super) fn put(message: &mut Message, wall_ns: u64) {
    if message.get_msg_type() == MessageType::MsgHeartbeat {
        message.commit_term = wall_ns / MS_NS;
    }
}

impl Node {
    /// Set the time of the clocks in this turn.
    pub fn set_clock(&mut self, now: Now) {
        self.clock = now;
    }

    /// By how much the wall clock of the leader of `term` was ahead of the one here when it was last heard,
    /// nanoseconds; below 0 it was behind. 0 if that is not known, or less than a second.
    #[must_use]
    pub(crate) fn clock_ahead(&self, term: u64) -> i64 {
        self.leader_clock.ahead(term)
    }

    pub(super) fn note_clock(&mut self, message: &Message) {
        let is_heartbeat = message.get_msg_type() == MessageType::MsgHeartbeat;
        if is_heartbeat && message.commit_term > 0 && message.term >= self.term() {
            self.leader_clock
                .note(message.term, message.commit_term, self.clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: i64 = 3600 * SECOND_NS;
    const WALL_NS: u64 = 1_800_000_000_000_000_000;

    fn now(ms: i64) -> Now {
        Now::new(
            Time(ms * MS_NS as i64),
            WALL_NS.saturating_add_signed(ms * MS_NS as i64),
        )
    }

    /// Time of the leader's clock at that time, if it is ahead by `ahead_ns`.
    fn shown(ms: i64, ahead_ns: i64) -> u64 {
        now(ms).wall_ns.saturating_add_signed(ahead_ns) / MS_NS
    }

    #[test]
    fn g10_the_clock_of_the_leader_is_known_by_its_heartbeats_as_long_as_they_come() {
        let mut clock = LeaderClock::default();
        assert_eq!(clock.ahead(0), 0);
        for ahead in [HOUR_NS, -HOUR_NS] {
            let term = 5 + u64::from(ahead > 0);
            clock.note(term, shown(0, ahead), now(0));
            assert_eq!((clock.ahead(term), clock.ahead(4)), (ahead, 0));
            // One that was two seconds late says less than the others.
            clock.note(term, shown(-1900, ahead), now(100));
            assert_eq!(clock.ahead(term), ahead);
            // The clock is set: after two windows nothing is known of the time before.
            clock.note(term, shown(1200, 0), now(1200));
            clock.note(term, shown(2300, 0), now(2300));
            assert_eq!(clock.ahead(term), 0);
        }
    }

    #[test]
    fn a_clock_that_shows_anything_is_taken_for_far_away_and_no_more() {
        let mut clock = LeaderClock::default();
        for shown in [1, u64::MAX] {
            clock.note(shown, shown, now(0));
            assert!(clock.ahead(shown).unsigned_abs() > HOUR_NS.unsigned_abs());
        }
    }
}
