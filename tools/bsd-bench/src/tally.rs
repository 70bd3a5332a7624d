//! Counts of a load while it runs, and its result.

use std::time::Duration;

use crate::connection::Pending;
use crate::latency::Latency;
use crate::wire::Op;

/// A load that is busy for this share of its time may be slower than the server.
const BUSY_MAX: f64 = 0.95;

/// How often a command was answered, and the time of the batches that ended with it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Total {
    pub(crate) count: u64,
    pub(crate) nanos: u64,
}

impl Total {
    /// The time per command, if a single connection sent them in batches of one kind.
    pub(crate) fn each(self) -> Duration {
        Duration::from_nanos(self.nanos / self.count.max(1))
    }
}

/// The result of a load.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) commands: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latency: Latency,
    pub(crate) probe: Latency,
    pub(crate) totals: [Total; Op::COUNT],
    /// The share of time in which this program was busy, 0 to 1.
    pub(crate) busy: f64,
}

impl Outcome {
    /// Commands per second.
    pub(crate) fn rate(&self) -> f64 {
        self.commands as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(crate) fn total(&self, op: Op) -> Total {
        self.totals[op as usize]
    }

    /// True if the load may have been slower than the server.
    pub(crate) fn is_bottleneck(&self) -> bool {
        self.busy >= BUSY_MAX
    }
}

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Answered commands, without the probe's.
    pub(crate) commands: u64,
    pub(crate) latency: Latency,
    pub(crate) probe: Latency,
    pub(crate) totals: [Total; Op::COUNT],
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally {
            commands: 0,
            latency: Latency::new(),
            probe: Latency::new(),
            totals: [Total::default(); Op::COUNT],
        }
    }

    pub(crate) fn record(&mut self, run: Run, at: u64, is_probe: bool) {
        let nanos = at.saturating_sub(run.first.at);
        if is_probe {
            self.probe.record(nanos, run.count);
            return;
        }
        self.commands += run.count;
        self.latency.record(nanos, run.count);
        self.totals[run.first.op as usize].count += run.count;
    }

    /// A connection has all the replies it waited for.
    pub(crate) fn end_batch(&mut self, last: Run, at: u64) {
        self.totals[last.first.op as usize].nanos += at.saturating_sub(last.first.at);
    }
}

/// Replies to commands of one kind that were sent together and answered together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    first: Pending,
    pub(crate) count: u64,
}

impl Run {
    pub(crate) fn begin(first: Pending) -> Run {
        Run { first, count: 1 }
    }

    pub(crate) fn goes_on_with(&self, next: Pending) -> bool {
        (self.first.at, self.first.op) == (next.at, next.op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(op: Op, at: u64, count: u64) -> Run {
        let first = Pending { op, at };
        Run { first, count }
    }

    #[test]
    fn a_batch_of_one_kind_is_divided_among_its_commands() {
        let mut tally = Tally::new();
        // A hundred replies, in two reads.
        tally.record(run(Op::Put, 1000, 60), 3000, false);
        tally.record(run(Op::Put, 1000, 40), 6000, false);
        tally.end_batch(run(Op::Put, 1000, 40), 6000);
        assert_eq!(tally.commands, 100);
        assert_eq!(
            tally.totals[Op::Put as usize].each(),
            Duration::from_nanos(50)
        );
        assert_eq!(Total::default().each(), Duration::ZERO);
    }

    #[test]
    fn what_the_probe_feels_is_kept_apart() {
        let mut tally = Tally::new();
        tally.record(run(Op::Put, 0, 1), 5000, true);
        tally.record(run(Op::Put, 0, 3), 9000, false);
        assert_eq!(
            (tally.commands, tally.latency.count(), tally.probe.count()),
            (3, 3, 1)
        );
    }
}
