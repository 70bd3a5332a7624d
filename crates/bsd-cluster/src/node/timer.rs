//! When raft's clock ticks, and how long a follower waits for a leader.
//!
//! raft draws the time to wait from a generator of the thread, out of our reach; so the time is drawn
//! here, from the seed, and raft is told before every tick: the same seed gives the same run.

use raft::{Raft, StateRole, Storage};

use bsd::random::Random;
use bsd::types::Time;

/// raft's unit of time, nanoseconds.
pub(super) const TICK_NS: i64 = 10_000_000;
/// A leader says that it lives as often, in ticks.
pub(super) const HEARTBEAT_TICKS: usize = 5;
/// A node that has not heard of a leader for this time, and up to twice as long, starts an
/// election.
pub(super) const ELECTION_TICKS: usize = 30;
/// The owner wakes at least this often. A wake that is later by more was not waiting: the process
/// was paused, and others may have spoken meanwhile.
const NAP_TICKS: usize = 10;

pub(super) struct Timer {
    random: Random,
    /// A leader is waited for this long, in ticks.
    timeout: usize,
    /// Ticks that raft has waited if it has heard nothing since the last one.
    waited: usize,
    /// Up to when it was ticked.
    pub(super) now: Time,
}

impl Timer {
    pub(super) fn new(seed: u64, now: Time) -> Timer {
        let mut timer = Timer {
            random: Random::new(seed),
            timeout: 0,
            waited: 0,
            now,
        };
        timer.draw();
        timer
    }

    fn draw(&mut self) {
        self.timeout = ELECTION_TICKS + self.random.below(ELECTION_TICKS);
    }

    /// How many ticks are due; they count as done.
    pub(super) fn take(&mut self, now: Time, role: StateRole) -> usize {
        let due = usize::try_from(now.since(self.now) / TICK_NS).unwrap_or(0);
        let most = match role {
            StateRole::Leader => ELECTION_TICKS,
            _ => NAP_TICKS + HEARTBEAT_TICKS,
        };
        match due <= most {
            true => self.now.0 += due as i64 * TICK_NS,
            false => self.now = now,
        }
        due.min(most)
    }

    /// One tick of raft's clock.
    pub(super) fn tick<S: Storage>(&mut self, raft: &mut Raft<S>) {
        if raft.election_elapsed < self.waited {
            self.draw();
        }
        raft.set_randomized_election_timeout(self.timeout);
        // raft cannot lead while it has entries that are not durable: it waits for the sync.
        let wants_lead = raft.election_elapsed + 1 >= self.timeout;
        let is_durable = raft.raft_log.last_index() == raft.raft_log.persisted;
        if raft.state == StateRole::Leader || is_durable || !wants_lead {
            self.waited = raft.election_elapsed + 1;
            raft.tick();
        }
    }

    /// Not later than when something is to be done.
    pub(super) fn next<S: Storage>(&self, raft: &Raft<S>) -> Time {
        let ticks = match raft.state {
            StateRole::Leader => raft
                .heartbeat_timeout()
                .saturating_sub(raft.heartbeat_elapsed()),
            _ if !raft.promotable() => NAP_TICKS,
            _ if raft.election_elapsed < self.waited => ELECTION_TICKS - 1,
            _ => self.timeout.saturating_sub(raft.election_elapsed),
        };
        let ticks = ticks.clamp(1, NAP_TICKS) as i64;
        Time(self.now.0.saturating_add(ticks * TICK_NS))
    }
}
