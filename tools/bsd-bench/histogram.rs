//! How long things took, in little memory: log buckets, each within one part in 64.

use std::time::Duration;

/// Times in nanoseconds, each kept to within one part in 64.
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

const SUB_BITS: u32 = 6;

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram {
            buckets: vec![0; (65 - SUB_BITS as usize) << SUB_BITS],
            count: 0,
            max: 0,
        }
    }

    pub(crate) fn record(&mut self, time: Duration, count: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)] += count;
        self.count += count;
        self.max = if count > 0 {
            self.max.max(nanos)
        } else {
            self.max
        };
    }

    /// The time that a `fraction` of all did not exceed.
    pub(crate) fn quantile(&self, fraction: f64) -> u64 {
        let wanted = ((self.count as f64 * fraction).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return bucket_end(index).min(self.max);
            }
        }
        self.max
    }
}

/// Numbers below 64 have a bucket each; above, each power of two is cut into 64.
fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(SUB_BITS + 1);
    ((shift as usize) << SUB_BITS) + (nanos >> shift) as usize
}

/// The largest number in a bucket.
fn bucket_end(index: usize) -> u64 {
    let shift = (index >> SUB_BITS).saturating_sub(1);
    let first = (index - (shift << SUB_BITS)) as u64;
    (first << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_that_ends_at_or_just_after_it() {
        for nanos in (0..10_000).chain([1 << 40, u64::MAX / 3, u64::MAX]) {
            let end = bucket_end(bucket(nanos));
            assert!(end >= nanos && end - nanos <= nanos / 64, "{nanos} {end}");
        }
        assert!(bucket(u64::MAX) < Histogram::new().buckets.len());
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), 0);
        for nanos in 1..=60 {
            histogram.record(Duration::from_nanos(nanos), 1);
        }
        assert_eq!(histogram.quantile(0.5), 30);
        assert_eq!(histogram.quantile(1.0), 60);
    }
}
