//! How numbers are said: counts, bytes, times, rates; and names in addresses.

/// `1,234,567`
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 job`, `2 jobs`
pub(super) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(number))
}

/// `512 B`, `1.5 MiB`
pub(super) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `250 µs`, `1.5 s`, `3 min 20 s`, `2 d 3 h`
pub(super) fn time(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0 if seconds <= 0.0 => "0 s".to_owned(),
        0 if seconds < 0.001 => format!("{:.0} µs", seconds * 1e6),
        0 => format!("{:.1} ms", seconds * 1e3),
        1..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Whole seconds, nothing for none.
pub(super) fn seconds(seconds: u64) -> String {
    time(seconds as f64)
}

/// Nanoseconds.
pub(super) fn ns(ns: i64) -> String {
    time(ns as f64 / 1e9)
}

/// `0`, `0.3`, `12`, `4,500`: a rate per second.
pub(super) fn rate(value: f64) -> String {
    match value {
        value if value < 0.05 => "0".to_owned(),
        value if value < 9.95 => format!("{value:.1}"),
        value => count(value.round() as u64),
    }
}

/// A name as it stands in an address.
pub(super) fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(byte.into());
            }
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_commas() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (12_345_678, "12,345,678"),
        ] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "job"), "1 job");
        assert_eq!(counted(0, "job"), "0 jobs");
    }

    #[test]
    fn bytes_have_units() {
        for (number, text) in [
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536 << 10, "1.5 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(number), text);
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
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn names_are_escaped_for_addresses() {
        assert_eq!(escaped("a/b+c;d$e_(f)"), "a%2Fb%2Bc%3Bd%24e_%28f%29");
    }
}
