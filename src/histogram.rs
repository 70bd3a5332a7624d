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

/// For the times of the jobs of one tube: the first of [`LONG`], to an hour.
pub const OF_TUBE: &[i64] = LONG.split_at(12).0;

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

    /// Record a time of `ns` nanoseconds; a negative time counts as 0. Returns the number of its
    /// bucket. Only one thread may call this.
    pub fn note(&self, ns: i64) -> usize {
        let ns = ns.max(0);
        // Most times are short.
        let bucket = match self.bounds.first() {
            Some(least) if ns <= *least => 0,
            _ => self.bounds.partition_point(|bound| *bound < ns),
        };
        add(&self.counts[bucket], 1);
        add(&self.sum_ns, ns as u64);
        bucket
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

/// Times in the buckets of [`OF_TUBE`], for one thread: some 100 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buckets {
    counts: [u64; OF_TUBE.len() + 1],
    sum_ns: u64,
}

impl Buckets {
    /// Record a time of `ns` nanoseconds, of which this is the bucket in [`LONG`].
    #[inline]
    pub fn note(&mut self, bucket: usize, ns: i64) {
        self.counts[bucket.min(OF_TUBE.len())] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(ns.max(0) as u64);
    }

    /// Add the times of another one.
    pub fn add(&mut self, other: &Buckets) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// How many times there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The times recorded so far.
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading {
            bounds: OF_TUBE,
            counts: self.counts.to_vec(),
            sum_ns: self.sum_ns,
        }
    }
}

/// The time that this part of them took at most, seconds: in the bucket where it is, in proportion, as
/// Prometheus estimates it. Times past the last of the `bounds` count as that; 0 without times.
#[must_use]
pub fn quantile(bounds: &[i64], counts: &[u64], part: f64) -> f64 {
    let all: u64 = counts.iter().sum();
    let (rank, mut below) = (part * all as f64, 0);
    let seconds = |ns: i64| ns as f64 / S as f64;
    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        if (below + count) as f64 >= rank {
            let Some(upper) = bounds.get(at) else { break };
            let lower = at.checked_sub(1).map_or(0, |before| bounds[before]);
            let inside = (rank - below as f64) / *count as f64;
            return seconds(lower) + seconds(upper - lower) * inside.max(0.0);
        }
        below += count;
    }
    match (all, bounds.last()) {
        (1.., Some(last)) => seconds(*last),
        _ => 0.0,
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
    fn times_of_a_tube_are_those_of_all_up_to_an_hour() {
        assert_eq!(OF_TUBE.last(), Some(&HOUR));
        let (all, mut one) = (Histogram::new(LONG), Buckets::default());
        for ns in [-1, MS, MS + 1, HOUR, HOUR + 1, 24 * HOUR, 365 * 24 * HOUR] {
            one.note(all.note(ns), ns);
        }
        let (all, read) = (all.read(), one.read());
        let (below, above) = all.counts.split_at(OF_TUBE.len());
        assert_eq!(read.counts[..OF_TUBE.len()], *below);
        assert_eq!(read.counts[OF_TUBE.len()], above.iter().sum::<u64>());
        assert_eq!((read.sum_ns, one.count()), (all.sum_ns, 7));
        one.add(&one.clone());
        assert_eq!((one.read().sum_ns, one.count()), (2 * all.sum_ns, 14));
    }

    fn quantile_of(times_ns: &[i64], part: f64) -> f64 {
        let histogram = Histogram::new(LONG);
        for ns in times_ns {
            histogram.note(*ns);
        }
        quantile(LONG, &histogram.read().counts, part)
    }

    #[test]
    fn a_quantile_is_in_its_bucket_in_proportion() {
        // 90 of at most a millisecond, 10 of up to five.
        let mut times = vec![MS; 90];
        times.extend([4 * MS; 10]);
        for (part, wanted) in [(0.45, 0.0005), (0.9, 0.001), (0.95, 0.003), (1.0, 0.005)] {
            let found = quantile_of(&times, part);
            assert!((found - wanted).abs() < 1e-9, "{part}: {found}");
        }
        assert_eq!(quantile_of(&[], 0.5), 0.0);
        assert_eq!(quantile_of(&[i64::MAX], 0.5), 7.0 * 86_400.0);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [SHORT, LONG, OF_TUBE] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
            let _ = Histogram::new(bounds);
        }
    }
}
