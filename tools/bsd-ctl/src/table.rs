//! Tables for people: columns as wide as their content, names to the left, numbers to the right. At a
//! terminal no line is wider than that.

use std::io::{self, IsTerminal, Write};

use bsd_tools::human::Look;

/// The least width to which the first column is cut.
const FIRST_MIN: usize = 12;
/// Blanks between two columns.
const GAP: &str = "  ";

/// Rows below their titles. The first column is text, all others are numbers.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// The last column is text too, as long as it is.
    has_text_last: bool,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Table {
        Table {
            rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()],
            has_text_last: false,
        }
    }

    /// The last column is text.
    pub(crate) fn with_text_last(mut self) -> Table {
        self.has_text_last = true;
        self
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = io::stdout()
            .is_terminal()
            .then(|| Look::of_stdout().width)
            .filter(|width| *width > 0);
        self.print_in(width, out)
    }

    /// With lines of at most this number of characters.
    fn print_in(&self, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows[0].len();
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..columns).map(width_of).collect();
        if let Some(width) = width {
            let all = widths.iter().sum::<usize>() + GAP.len() * (columns - 1);
            let room = widths[0].saturating_sub(all.saturating_sub(width));
            if !self.has_text_last {
                widths[0] = room.max(widths[0].min(FIRST_MIN));
            }
        }
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| match column {
                0 => format!("{:<width$}", fitted(cell, *width)),
                _ if self.has_text_last && column + 1 == columns => cell.clone(),
                _ => format!("{cell:>width$}"),
            });
            let line = cells.collect::<Vec<_>>().join(GAP);
            let line = line.trim_end();
            match width {
                Some(width) => writeln!(out, "{}", cut(line, width))?,
                None => writeln!(out, "{line}")?,
            }
        }
        Ok(())
    }
}

/// The beginning and the end of a text that is too long.
pub(crate) fn fitted(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width {
        return text.to_owned();
    }
    let end = width.saturating_sub(1) / 2;
    let begin = width.saturating_sub(1) - end;
    let (begin, end) = (&letters[..begin], &letters[letters.len() - end..]);
    begin.iter().chain(&['~']).chain(end).collect()
}

/// The beginning of a text that is too long; a mark says so.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let begin = text.chars().take(width.saturating_sub(1));
    begin.chain(['~']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(table: &Table, width: Option<usize>) -> String {
        let mut out = Vec::new();
        table.print_in(width, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_stand_below_each_other() {
        let mut table = Table::new(&["TUBE", "READY"]);
        table.push(vec!["a-long-name".to_owned(), "7".to_owned()]);
        let expected = "TUBE         READY\na-long-name      7\n";
        assert_eq!(printed(&table, None), expected);
        assert_eq!(printed(&table, Some(80)), expected);
    }

    #[test]
    fn at_a_terminal_names_are_cut_first_and_then_lines() {
        let mut table = Table::new(&["TUBE", "READY", "OLDEST"]);
        let row = ["a-name-of-many-letters", "7", "3 h 12 min"];
        table.push(row.map(str::to_owned).to_vec());
        let lines = printed(&table, Some(36));
        assert!(
            lines.contains('~') && lines.contains("3 h 12 min"),
            "{lines}"
        );
        for width in 1..60 {
            let lines = printed(&table, Some(width));
            assert!(
                lines.lines().all(|line| line.chars().count() <= width),
                "{width}: {lines}"
            );
        }
    }

    #[test]
    fn a_text_at_the_end_is_cut_at_its_end() {
        let mut table = Table::new(&["ID", "BODY"]).with_text_last();
        table.push(vec!["1".to_owned(), "x".repeat(50)]);
        assert_eq!(printed(&table, Some(10)), "ID  BODY\n1   xxxxx~\n");
    }
}
