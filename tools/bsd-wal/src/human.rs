//! Times for people, and notes separate from the output. What all tools share of this kind is in
//! `bsd_tools::human`.

use std::fmt;
use std::io::{self, Write};

use bsd::UsageError;
pub(crate) use bsd::human::{Age, Size};
pub(crate) use bsd_tools::human::{Look, Meter, count, output, parse, parse_age};

/// A wall time in nanoseconds since 1970, in RFC 3339 format, in UTC.
pub(crate) fn timestamp(wall_ns: u64) -> String {
    // 64 bits of nanoseconds end in 2554, long before what the type can show.
    let time = jiff::Timestamp::from_nanosecond(i128::from(wall_ns));
    time.map_or_else(|_| format!("{wall_ns} ns"), |time| time.to_string())
}

/// The inverse of [`timestamp`].
pub(crate) fn parse_timestamp(text: &str) -> Result<u64, UsageError> {
    let wrong = || {
        UsageError::new(format_args!(
            "{text:?} is no time such as 2026-01-31T12:00:00Z"
        ))
    };
    // RFC 3339 has offsets of less than a day; the parser takes more.
    let offset = text
        .rfind(['+', '-'])
        .filter(|at| text[..*at].contains([':']));
    let hours = offset.map(|at| text[at + 1..].chars().take(2).collect::<String>());
    if hours.is_some_and(|hours| hours.parse::<u8>().is_ok_and(|hours| hours > 23)) {
        return Err(wrong());
    }
    let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    u64::try_from(time.as_nanosecond())
        .map_err(|_| format!("{text:?} is not between 1970 and 2554").into())
}

/// Print a note that is no error, separate from the output.
pub(crate) fn note(what: impl fmt::Display) {
    if !bsd_tools::human::is_quiet() {
        complain(what);
    }
}

/// Print why something failed.
pub(crate) fn complain(what: impl fmt::Display) {
    // If that cannot be written, there is no one to report it to.
    let _ = writeln!(io::stderr(), "bsd-wal: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_exact() {
        assert_eq!(timestamp(1_000_000_001), "1970-01-01T00:00:01.000000001Z");
        assert_eq!(timestamp(u64::MAX), "2554-07-21T23:34:33.709551615Z");
        for time in [0, 1, 1_800_000_000_000_000_000, u64::MAX] {
            assert_eq!(parse_timestamp(&timestamp(time)), Ok(time));
        }
        assert!(parse_timestamp("1969-12-31T23:59:59Z").is_err());
        assert!(parse_timestamp("yesterday").is_err());
    }

    #[test]
    fn g22_a_time_has_an_offset_of_less_than_a_day() {
        let noon = parse_timestamp("2026-01-31T12:00:00Z").unwrap();
        for same in ["2026-01-31T13:30:00+01:30", "2026-01-30T12:01:00-23:59"] {
            assert_eq!(parse_timestamp(same), Ok(noon), "{same}");
        }
        for wrong in ["+24:00", "-24:00", "+25:59", "+99:00", "+2400"] {
            let text = format!("2026-01-31T12:00:00{wrong}");
            assert!(parse_timestamp(&text).is_err(), "{text}");
        }
    }
}
