//! The schedule of an open loop: when commands are due, and which connections have room for them.

use std::collections::VecDeque;
use std::time::Duration;

/// Commands are due at fixed times from the start, whatever happened to earlier ones.
#[derive(Debug)]
pub(crate) struct Pace {
    interval_ns: f64,
    issued: u64,
    /// Connections that can send, the one that has waited longest first.
    ready: VecDeque<usize>,
    is_ready: Vec<bool>,
    /// Time spent looking for something to do.
    pub(crate) spun: Duration,
}

/// For less than this time it waits actively: `epoll` is precise to a millisecond at best.
const AWAKE: Duration = Duration::from_millis(2);

impl Pace {
    /// `rate` commands per second, over connections with numbers below `connections`.
    pub(crate) fn new(rate: f64, connections: usize) -> Pace {
        Pace {
            interval_ns: 1e9 / rate,
            issued: 0,
            ready: VecDeque::with_capacity(connections),
            is_ready: vec![false; connections],
            spun: Duration::ZERO,
        }
    }

    /// When the next command is due, in nanoseconds from the start.
    pub(crate) fn due(&self) -> u64 {
        (self.issued as f64 * self.interval_ns) as u64
    }

    /// Note that this command was sent.
    pub(crate) fn issue(&mut self) {
        self.issued += 1;
    }

    /// Note that a connection can send.
    pub(crate) fn list(&mut self, index: usize) {
        if !std::mem::replace(&mut self.is_ready[index], true) {
            self.ready.push_back(index);
        }
    }

    /// The connection that sends the next command, if any can. It must be listed again afterwards.
    pub(crate) fn take(&mut self) -> Option<usize> {
        let index = self.ready.pop_front()?;
        self.is_ready[index] = false;
        Some(index)
    }

    /// How long the loop may sleep if nothing is due before [`Pace::due`].
    pub(crate) fn wait(&self, at: u64) -> Duration {
        let left = Duration::from_nanos(self.due().saturating_sub(at));
        if left < AWAKE {
            Duration::ZERO
        } else {
            left - AWAKE / 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_due_evenly_however_late_they_are_sent() {
        let mut pace = Pace::new(1000.0, 1);
        for number in 0..5 {
            assert_eq!(pace.due(), number * 1_000_000);
            pace.issue();
        }
        assert_eq!(pace.wait(4_500_000), Duration::ZERO);
        assert_eq!(pace.wait(6_000_000), Duration::ZERO);
        pace.issued = 100;
        assert_eq!(pace.wait(0), Duration::from_millis(99));
    }

    #[test]
    fn a_connection_is_listed_once_and_in_its_turn() {
        let mut pace = Pace::new(1.0, 3);
        [2, 0, 2].into_iter().for_each(|index| pace.list(index));
        assert_eq!(pace.take(), Some(2));
        pace.list(2);
        assert_eq!(
            [pace.take(), pace.take(), pace.take()],
            [Some(0), Some(2), None]
        );
    }
}
