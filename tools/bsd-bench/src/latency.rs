//! Latencies: an HDR histogram, and the quantiles that are reported.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Times are precise to one part in 128 …
const DIGITS: u8 = 2;
/// … up to an hour; longer times count as an hour.
const MAX_NS: u64 = 3_600_000_000_000;

/// The quantiles that are reported, and their names.
pub(crate) const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];

/// Times, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, DIGITS);
        Latency(histogram.expect("the bounds are in order"))
    }

    /// Record `nanos` `count` times.
    pub(crate) fn record(&mut self, nanos: u64, count: u64) {
        self.0.saturating_record_n(nanos.max(1), count);
    }

    pub(crate) fn add(&mut self, other: &Latency) {
        self.0 += &other.0;
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that this `fraction` did not exceed; 0 without times.
    pub(crate) fn quantile(&self, fraction: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(fraction))
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// Points of the curve from the fastest to the slowest: fraction, and time in microseconds.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        if self.count() == 0 {
            return Vec::new();
        }
        // At each step a tenth of the rest, as far as there are values.
        let steps = (self.count() as f64).log10() * 8.0;
        let fractions = (0..=steps as u32).map(|step| 1.0 - 10f64.powf(-f64::from(step) / 8.0));
        let point = |fraction| (fraction, self.quantile(fraction).as_secs_f64() * 1e6);
        fractions.map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::new();
        assert_eq!(latency.quantile(0.5), Duration::ZERO);
        (1..=100).for_each(|nanos| latency.record(nanos, 1));
        assert_eq!(latency.quantile(0.5), Duration::from_nanos(50));
        assert_eq!(latency.quantile(1.0), Duration::from_nanos(100));
        latency.record(1_000_000, 9_900);
        let median = latency.quantile(0.5).as_nanos();
        assert!((1_000_000..1_008_000).contains(&median), "{median}");
    }

    #[test]
    fn what_takes_too_long_counts_as_an_hour() {
        let mut latency = Latency::new();
        latency.record(u64::MAX, 1);
        let hours = latency.max().as_secs_f64() / 3600.0;
        assert!((1.0..1.02).contains(&hours), "{hours}");
    }

    #[test]
    fn a_curve_rises_and_ends_where_the_values_end() {
        let mut latency = Latency::new();
        assert!(latency.curve().is_empty());
        (1..=1000).for_each(|micros| latency.record(micros * 1000, 1));
        let curve = latency.curve();
        assert!(curve.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        assert!(curve.last().unwrap().0 >= 0.999);
    }
}
