//! Tables for people: columns as wide as their content, names to the left, numbers to the right.

use std::io::{self, Write};

/// Rows below their titles. The first column is text, all others are numbers.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Table {
        Table {
            rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()],
        }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let mut table = Table::new(&["TUBE", "READY"]);
        table.push(vec!["a-long-name".to_owned(), "7".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(out, b"TUBE         READY\na-long-name      7\n");
    }
}
