//! Bytes and times as people read them.

use std::fmt;

use crate::types::SECOND_NS;

/// A number of bytes: `512 B`, `1.5 MiB`.
#[derive(Debug, Clone, Copy)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // What would be rounded to 1024.0 is one of the next unit.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// Whole seconds: `5 s`, `3 min 20 s`, `2 d 3 h`.
#[derive(Debug, Clone, Copy)]
pub struct Age(pub u64);

impl Age {
    /// The time between two wall times in nanoseconds.
    #[must_use]
    pub fn between(from_wall_ns: u64, to_wall_ns: u64) -> Age {
        Age(to_wall_ns.saturating_sub(from_wall_ns) / SECOND_NS as u64)
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds @ 0..60 => write!(f, "{seconds} s"),
            seconds @ 60..3600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            seconds @ 3600..86_400 => {
                write!(f, "{} h {} min", seconds / 3600, seconds % 3600 / 60)
            }
            seconds => write!(f, "{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
        }
    }
}

/// Seconds that were measured: `250 µs`, `12.3 ms`, `1.5 s`, from ten seconds on as [`Age`].
#[derive(Debug, Clone, Copy)]
pub struct Span(pub f64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds if seconds <= 0.0 => f.write_str("0 s"),
            seconds if seconds < 0.001 => write!(f, "{:.0} µs", seconds * 1e6),
            seconds if seconds < 1.0 => write!(f, "{:.1} ms", seconds * 1e3),
            seconds if seconds < 10.0 => write!(f, "{seconds:.1} s"),
            seconds => Age(seconds as u64).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536 << 10, "1.5 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 40, "5.0 TiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(Size(number).to_string(), text);
        }
    }

    #[test]
    fn times_have_two_units_at_most() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.000_25, "250 µs"),
            (0.0123, "12.3 ms"),
            (1.5, "1.5 s"),
            (59.9, "59 s"),
            (200.0, "3 min 20 s"),
            (7_300.0, "2 h 1 min"),
            (180_000.0, "2 d 2 h"),
        ] {
            assert_eq!(Span(seconds).to_string(), text);
        }
        assert_eq!(Age(5).to_string(), "5 s");
        assert_eq!(Age::between(2_000_000_000, 1).to_string(), "0 s");
    }
}
