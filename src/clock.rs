//! The only clock of the process. All code below the server and the library's interface gets a
//! [`Now`] from its caller.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::types::{Now, Time};

/// A monotonic clock that starts at 0, and the system's wall clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
    #[cfg(any(test, feature = "sim"))]
    stopped: Option<Now>,
}

#[allow(clippy::disallowed_methods)] // this is the room of the clock
impl Clock {
    /// Starts the clock at 0.
    #[must_use]
    pub fn start() -> Clock {
        Clock {
            origin: Instant::now(),
            #[cfg(any(test, feature = "sim"))]
            stopped: None,
        }
    }

    /// It is always `now`: for a test in which it must not depend on the machine how late it is.
    #[cfg(any(test, feature = "sim"))]
    #[must_use]
    pub fn stopped(now: Now) -> Clock {
        Clock {
            stopped: Some(now),
            ..Clock::start()
        }
    }

    /// The current time. A wall clock before 1970 counts as 1970.
    #[must_use]
    pub fn now(&self) -> Now {
        #[cfg(any(test, feature = "sim"))]
        if let Some(now) = self.stopped {
            return now;
        }
        let mono = i64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            mono: Time(mono),
            wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// A wall time, nanoseconds since 1970, as RFC 3339 has it: in UTC, to the millisecond.
#[must_use]
pub fn utc(wall_ns: u64) -> String {
    let (ms, seconds) = (wall_ns / 1_000_000 % 1000, wall_ns / 1_000_000_000);
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // Years begin in March, so that the leap day is the last; 400 of them are an era.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + u64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_time_is_said_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_800, "2000-03-01T00:00:00.007Z"),
            (1_704_067_199, "2023-12-31T23:59:59.007Z"),
            (1_795_372_217, "2026-11-22T18:30:17.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000 + 7_654_321), text);
        }
    }
}
