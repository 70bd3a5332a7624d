//! Output: tables that read as text and as Markdown, numbers with units, medians.

use std::fmt;
use std::time::Duration;

/// Printed in place of a missing number.
pub(crate) const NONE: &str = "—";

/// A table: a head, and rows of the same length. All columns except the first are numbers.
#[derive(Debug)]
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    pub(crate) fn new<S: ToString>(head: impl IntoIterator<Item = S>) -> Table {
        Table(vec![
            head.into_iter().map(|cell| cell.to_string()).collect(),
        ])
    }

    pub(crate) fn push<S: ToString>(&mut self, row: impl IntoIterator<Item = S>) {
        self.0
            .push(row.into_iter().map(|cell| cell.to_string()).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.0.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
                .max(3)
        };
        (0..columns).map(width).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for (index, row) in self.0.iter().enumerate() {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "| {cell:<width$} ")?,
                    _ => write!(f, "| {cell:>width$} ")?,
                }
            }
            writeln!(f, "|")?;
            if index == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let colon = if column == 0 { "-" } else { ":" };
                    write!(f, "|{:-<1$}{colon}", "", width + 1)?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// Three digits and a unit: `1.53 M`, `112 k`, `98.2`.
pub(crate) fn count(number: f64) -> String {
    match number {
        _ if number >= 999.5e3 => format!("{} M", digits(number / 1e6)),
        _ if number >= 999.5 => format!("{} k", digits(number / 1e3)),
        _ => digits(number),
    }
}

/// A parameter: `20 k`, `1 M`, and unchanged if that would not be exact.
pub(crate) fn chosen(number: u64) -> String {
    match number {
        0 => "0".into(),
        _ if number.is_multiple_of(1_000_000) => format!("{} M", number / 1_000_000),
        _ if number.is_multiple_of(1000) => format!("{} k", number / 1000),
        _ => number.to_string(),
    }
}

/// A time: `853 ns`, `12.0 µs`, `4.56 ms`, `2.10 s`.
pub(crate) fn time(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    match nanos {
        _ if nanos >= 999.5e6 => format!("{} s", digits(nanos / 1e9)),
        _ if nanos >= 999.5e3 => format!("{} ms", digits(nanos / 1e6)),
        _ if nanos >= 999.5 => format!("{} µs", digits(nanos / 1e3)),
        _ => format!("{nanos:.0} ns"),
    }
}

/// A ratio: `1.53×`, `112×`.
pub(crate) fn ratio(number: f64) -> String {
    if number.is_finite() {
        format!("{}×", digits(number))
    } else {
        NONE.into()
    }
}

/// The median of ratios, and in brackets the smallest and the largest: `1.53× (1.20–1.61)`.
pub(crate) fn ratios(numbers: &[f64]) -> String {
    if numbers.is_empty() {
        return NONE.into();
    }
    let min = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let max = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{} ({min:.2}–{max:.2})", ratio(median(numbers)))
}

fn digits(number: f64) -> String {
    match number.abs() {
        size if size >= 99.95 => format!("{number:.0}"),
        size if size >= 9.995 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// The middle number; for an even count, the mean of the two in the middle.
pub(crate) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

/// The median of times.
pub(crate) fn median_time(times: &[Duration]) -> Duration {
    let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    Duration::try_from_secs_f64(median(&seconds)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_markdown() {
        let mut table = Table::new(["load", "a"]);
        table.push(["1x1", "1.00 µs"]);
        let expected = "\
| load |       a |
|------|--------:|
| 1x1  | 1.00 µs |
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(
            [999.0, 999.6, 15_234.0, 999_600.0, 2.7e6].map(count),
            ["999", "1.00 k", "15.2 k", "1.00 M", "2.70 M"]
        );
        assert_eq!(
            [0, 999, 20_000, 1_000_000, 1_001].map(chosen),
            ["0", "999", "20 k", "1 M", "1001"]
        );
        let nanos = |nanos| time(Duration::from_nanos(nanos));
        assert_eq!(nanos(853), "853 ns");
        assert_eq!(nanos(12_000), "12.0 µs");
        assert_eq!(nanos(2_100_000_000), "2.10 s");
        assert_eq!(
            [0.5, 12.34, 112.3, f64::NAN].map(ratio),
            ["0.50×", "12.3×", "112×", NONE]
        );
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(ratios(&[3.0, 1.0, 2.0]), "2.00× (1.00–3.00)");
        assert_eq!(ratios(&[]), NONE);
    }
}
