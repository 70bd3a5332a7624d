//! How long things took: counts in fixed buckets.
//!
//! One thread adds, any thread may read, and no thread waits: the counts are atomic numbers, and
//! only one thread stores them. A reader may see one of two related sums earlier than the other.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of buckets, including the one for times above all bounds.
const LEN: usize = 20;

const US: i64 = 1_000;
const MS: i64 = 1_000 * US;
const S: i64 = 1_000 * MS;
const HOUR: i64 = 3600 * S;

/// For times of machines: 10 µs to 10 s.
pub const SHORT: &[i64] = &[
    10 * US,
    25 * US,
    50 * US,
    100 * US,
    250 * US,
    500 * US,
    MS,
    2 * MS + 500 * US,
    5 * MS,
    10 * MS,
    25 * MS,
    50 * MS,
    100 * MS,
    250 * MS,
    500 * MS,
    S,
    2 * S + 500 * MS,
    5 * S,
    10 * S,
];

/// For waiting times of people: 1 ms to a week.
pub const LONG: &[i64] = &[
    MS,
    5 * MS,
    25 * MS,
    100 * MS,
    500 * MS,
    S,
    5 * S,
    15 * S,
    60 * S,
    300 * S,
    900 * S,
    HOUR,
    6 * HOUR,
    24 * HOUR,
    7 * 24 * HOUR,
];

/// Times in buckets.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [i64],
    counts: [AtomicU64; LEN],
    sum_ns: AtomicU64,
}

/// A histogram as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The upper bounds of all buckets except the last, which has none: nanoseconds, ascending.
    pub bounds: &'static [i64],
    /// How many times fell into each bucket; one more element than there are bounds.
    pub counts: Vec<u64>,
    /// The sum of all times, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// A histogram without any times.
    ///
    /// # Panics
    /// If there are more bounds than buckets.
    #[must_use]
    pub fn new(bounds: &'static [i64]) -> Histogram {
        assert!(bounds.len() < LEN, "{} bounds", bounds.len());
        Histogram {
            bounds,
            counts: [const { AtomicU64::new(0) }; LEN],
            sum_ns: AtomicU64::new(0),
        }
    }

    /// Record a time of `ns` nanoseconds; a negative time counts as 0. Only one thread may call
    /// this.
    pub fn note(&self, ns: i64) {
        let ns = ns.max(0);
        let bucket = self.bounds.partition_point(|bound| *bound < ns);
        add(&self.counts[bucket], 1);
        add(&self.sum_ns, ns as u64);
    }

    /// The times recorded so far.
    #[must_use]
    pub fn read(&self) -> Reading {
        let counts = self.counts[..=self.bounds.len()].iter();
        Reading {
            bounds: self.bounds,
            counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// Cheaper than an addition that several threads may make.
fn add(number: &AtomicU64, more: u64) {
    number.store(
        number.load(Ordering::Relaxed).wrapping_add(more),
        Ordering::Relaxed,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::new(SHORT);
        for ns in [-1, 0, 10 * US, 10 * US + 1, 10 * S, 10 * S + 1, i64::MAX] {
            histogram.note(ns);
        }
        let reading = histogram.read();
        assert_eq!(reading.counts.len(), SHORT.len() + 1);
        assert_eq!(reading.counts[..2], [3, 1]);
        assert_eq!(reading.counts[SHORT.len() - 1..], [1, 2]);
        assert_eq!(reading.counts.iter().sum::<u64>(), 7);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [SHORT, LONG] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
            let _ = Histogram::new(bounds);
        }
    }
}
