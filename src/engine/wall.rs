//! How far the wall clock was set ahead while this server runs: that makes no job older.
//!
//! A list and not a sum: what was written after the clock was set says so already. Where a clock is set
//! back, or set ahead very often, jobs seem younger than they are, never older. So they do where the clock
//! of a follower or a standby was set, which looks at it only when it comes to lead.

use crate::types::{Now, SECOND_NS, Time};

/// How often a running server looks at the clock, ns.
const LOOK_EVERY_NS: i64 = SECOND_NS;
/// A clock that is slewed differs by less from one look to the next, ns.
const SET_MIN_NS: u64 = SECOND_NS as u64;
/// Older changes are taken together.
const CHANGES_MAX: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Change {
    /// What the clock would have shown.
    before_ns: u64,
    by_ns: u64,
}

#[derive(Debug)]
pub(super) struct WallClock {
    last: Now,
    look_at: Time,
    changes: Vec<Change>,
}

impl WallClock {
    pub(super) fn at(now: Now) -> WallClock {
        WallClock {
            last: now,
            look_at: now.mono,
            changes: Vec::new(),
        }
    }

    /// How the clock was set since the last look.
    fn change(&self, now: Now) -> Option<Change> {
        let before_ns = self.last.to_wall(now.mono);
        let by_ns = now.wall_ns.saturating_sub(before_ns);
        (by_ns >= SET_MIN_NS).then_some(Change { before_ns, by_ns })
    }

    /// A turn of the loop.
    #[inline(always)]
    pub(super) fn note(&mut self, now: Now) {
        // Most turns have nothing to look at.
        if now.mono.0 >= self.look_at.0 {
            self.look(now);
        }
    }

    #[cold]
    fn look(&mut self, now: Now) {
        if let Some(change) = self.change(now) {
            self.changes.push(change);
            if self.changes.len() > CHANGES_MAX {
                let oldest = self.changes.remove(0);
                self.changes[0].by_ns = self.changes[0].by_ns.saturating_add(oldest.by_ns);
            }
        }
        self.last = now;
        self.look_at = Time(now.mono.0.saturating_add(LOOK_EVERY_NS));
    }

    /// What this clock, as it is set now, would have shown when it showed `wall_ns`.
    pub(super) fn as_set_now(&self, wall_ns: u64, now: Now) -> u64 {
        let changes = self.changes.iter().copied().chain(self.change(now));
        let later = changes.filter(|change| change.before_ns >= wall_ns);
        later.fold(wall_ns, |at, change| at.saturating_add(change.by_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600 * SECOND_NS as u64;

    #[test]
    fn what_was_before_a_clock_was_set_ahead_is_moved_and_what_came_later_is_not() {
        let at = |hours: i64, wall_ns| Now::new(Time(hours * HOUR as i64), wall_ns);
        let mut clock = WallClock::at(at(0, HOUR));
        clock.note(at(1, 2 * HOUR));
        // Ahead by three hours: known before the loop turns, too.
        let now = at(2, 6 * HOUR);
        for _ in 0..2 {
            assert_eq!(clock.as_set_now(HOUR, now), 4 * HOUR);
            assert_eq!(clock.as_set_now(6 * HOUR, now), 6 * HOUR);
            clock.note(now);
        }
        // Back: nothing is older than it was.
        clock.note(at(3, 2 * HOUR));
        assert_eq!(clock.as_set_now(6 * HOUR, at(3, 2 * HOUR)), 6 * HOUR);
    }

    #[test]
    fn a_clock_that_is_set_again_and_again_takes_no_more_memory_and_makes_nothing_older() {
        let mut clock = WallClock::at(Now::new(Time(0), HOUR));
        for times in 1..=100 {
            clock.note(Now::new(
                Time(times as i64 * SECOND_NS),
                HOUR + times * HOUR,
            ));
        }
        assert_eq!(clock.changes.len(), CHANGES_MAX);
        let now = Now::new(Time(100 * SECOND_NS), 101 * HOUR);
        let steady = now.wall_ns - 100 * SECOND_NS as u64;
        assert_eq!(clock.as_set_now(HOUR, now), steady);
        assert!(clock.as_set_now(50 * HOUR, now) >= steady);
    }
}
