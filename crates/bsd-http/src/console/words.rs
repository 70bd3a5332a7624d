//! How numbers are said: counts, bytes, times, rates; and names in addresses.

use bsd::human::{Age, Size, Span};

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
    Size(number).to_string()
}

/// `250 µs`, `1.5 s`, `3 min 20 s`, `2 d 3 h`
pub(super) fn time(seconds: f64) -> String {
    Span(seconds).to_string()
}

/// Whole seconds.
pub(super) fn seconds(seconds: u64) -> String {
    Age(seconds).to_string()
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
    crate::query::encode(name)
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
    fn names_are_escaped_for_addresses() {
        assert_eq!(escaped("a/b+c;d$e_(f)"), "a%2Fb%2Bc%3Bd%24e_%28f%29");
    }
}
