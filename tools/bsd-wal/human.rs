//! Sizes, times and names as people read them.

use std::fmt;
use std::io::{self, IsTerminal};

use bsd::clock::Clock;
use bsd::types::SECOND_NS;

/// A number of bytes.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64 / 1024.0;
        if value < 1.0 {
            return write!(f, "{} B", self.0);
        }
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// A span of time, to about two digits.
pub(crate) struct Age(pub(crate) u64);

impl Age {
    /// From a wall time in nanoseconds to a later one.
    pub(crate) fn between(from_wall_ns: u64, to_wall_ns: u64) -> Age {
        Age(to_wall_ns.saturating_sub(from_wall_ns) / SECOND_NS as u64)
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds @ 0..120 => write!(f, "{seconds} s"),
            seconds @ 120..7200 => write!(f, "{} min", seconds / 60),
            seconds @ 7200..172_800 => write!(f, "{} h", seconds / 3600),
            seconds => write!(f, "{} d", seconds / 86_400),
        }
    }
}

/// A wall time in nanoseconds since 1970, as RFC 3339 has it, in UTC.
pub(crate) fn timestamp(wall_ns: u64) -> String {
    // 64 bits of nanoseconds end in 2554, long before what the type can show.
    let time = jiff::Timestamp::from_nanosecond(i128::from(wall_ns));
    time.map_or_else(|_| format!("{wall_ns} ns"), |time| time.to_string())
}

/// A number with the noun that it counts.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Shows how far a long task is: on a terminal, from the first second on.
pub(crate) struct Meter {
    doing: &'static str,
    clock: Clock,
    /// When to show next; `None`: nobody looks.
    next_ns: Option<i64>,
    is_shown: bool,
}

impl Meter {
    pub(crate) fn start(doing: &'static str) -> Meter {
        let is_watched = io::stderr().is_terminal();
        let next_ns = is_watched.then_some(SECOND_NS);
        Meter {
            doing,
            clock: Clock::start(),
            next_ns,
            is_shown: false,
        }
    }

    /// So much of all is done.
    pub(crate) fn show(&mut self, done: u64, all: u64) {
        let Some(next_ns) = self.next_ns else { return };
        let now = self.clock.now().mono.0;
        if now < next_ns {
            return;
        }
        self.next_ns = Some(now + SECOND_NS / 4);
        self.is_shown = true;
        let percent = (done.min(all) * 100).checked_div(all).unwrap_or(100);
        eprint!("\r{} … {percent} % ", self.doing);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_are_short() {
        let sizes = [0, 1023, 1024, 1536, 64 << 20, 5 << 40].map(|size| Size(size).to_string());
        assert_eq!(
            sizes,
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "64.0 MiB", "5.0 TiB"]
        );
        let ages = [5, 119, 120, 7200, 172_800].map(|age| Age(age).to_string());
        assert_eq!(ages, ["5 s", "119 s", "2 min", "2 h", "2 d"]);
    }

    #[test]
    fn a_time_is_exact() {
        assert_eq!(timestamp(1_000_000_001), "1970-01-01T00:00:01.000000001Z");
        assert_eq!(timestamp(u64::MAX), "2554-07-21T23:34:33.709551615Z");
    }
}
