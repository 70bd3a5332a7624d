//! A picture of the log: one line per file, or one for several files if there are many.
//!
//! ```text
//! ################################  full, as dense as its live records are
//! **++--..                          less and less of it alive
//! ____                              written ahead, nothing in it yet
//! X                                 damaged
//! ```

use std::io::{self, Write};

use bsd::storage::inspect::{Cell, Inspection, Strip};

use crate::human::{Look, Size};

/// The most lines, without the missing files.
const LINES_MAX: usize = 40;
/// Characters of a line in addition to the cells: the name of a file, numbers, borders.
const NON_CELLS: usize = 52;
/// The least cells of a line, however narrow the terminal is.
const CELLS_MIN: usize = 12;
/// Missing files that are named at most.
const MISSING_MAX: usize = 10;

/// Draw the log, as wide as the terminal.
pub(crate) fn draw(inspection: &Inspection, look: Look, out: &mut dyn Write) -> io::Result<()> {
    let cells = look.width.saturating_sub(NON_CELLS).max(CELLS_MIN);
    let strips = inspection.picture(LINES_MAX, cells);
    let ink = Ink::new(look);
    writeln!(out, "{}", ink.legend())?;
    for strip in &strips {
        let drawn: String = strip
            .cells
            .iter()
            .map(|cell| ink.cell(cell, look))
            .collect();
        let name = name(inspection, strip);
        writeln!(
            out,
            "{name:<25} |{drawn}| {}",
            numbers(inspection, strip, look)
        )?;
    }
    let missing: Vec<&str> = inspection.missing_files().collect();
    for name in missing.iter().take(MISSING_MAX) {
        writeln!(
            out,
            "{name:<25} |{}|",
            look.bad(format!("{:-^cells$}", " MISSING "))
        )?;
    }
    match missing.len().saturating_sub(MISSING_MAX) {
        0 => Ok(()),
        more => writeln!(out, "and {more} more are missing"),
    }
}

fn name(inspection: &Inspection, strip: &Strip) -> String {
    let segments = &inspection.segments[strip.segments.clone()];
    match segments {
        [one] => one.file.clone(),
        [first, .., last] => {
            let (first, last) = (first.entry.first, last.entry.last);
            format!("{} files, {first} to {last}", segments.len())
        }
        [] => String::new(),
    }
}

fn numbers(inspection: &Inspection, strip: &Strip, look: Look) -> String {
    let segments = &inspection.segments[strip.segments.clone()];
    let live: u64 = segments.iter().map(|segment| segment.live_bytes).sum();
    let total = strip.total();
    let percent = |part: u64, all: u64| (part * 100).checked_div(all).unwrap_or(0);
    let held = format!(
        "{:>3} % full, {:>3} % live",
        percent(total.used, total.size),
        percent(live, total.used)
    );
    let damaged = segments.iter().any(|segment| !segment.damaged.is_empty());
    if damaged {
        look.bad(format!("{:>9} DAMAGED", Size(total.size).to_string()))
    } else {
        held
    }
}

/// The characters for cells.
struct Ink {
    /// By the live share: none, up to a quarter, half, three quarters, all.
    shades: [char; 5],
    free: char,
    damaged: char,
}

impl Ink {
    fn new(look: Look) -> Ink {
        if look.unicode {
            Ink {
                shades: ['·', '░', '▒', '▓', '█'],
                free: ' ',
                damaged: '✗',
            }
        } else {
            Ink {
                shades: ['.', '-', '+', '*', '#'],
                free: ' ',
                damaged: 'X',
            }
        }
    }

    fn legend(&self) -> String {
        let [none, .., all] = self.shades;
        let shades: String = self.shades.iter().collect();
        format!(
            "\"{shades}\": from all dead ({none}) to all alive ({all}); blank: free; {}: damaged",
            self.damaged
        )
    }

    fn cell(&self, cell: &Cell, look: Look) -> String {
        if cell.is_damaged {
            return look.bad(self.damaged);
        }
        if cell.used * 2 < cell.size.max(1) {
            return self.free.to_string();
        }
        // A frame's own bytes belong to no job: a cell is full when all other bytes are live.
        let quarters = (cell.live * 4).div_ceil(cell.used.max(1)).min(4);
        self.shades[quarters as usize].to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_as_dark_as_it_is_alive() {
        let ink = Ink::new(Look::PLAIN);
        let cell = |used, live| Cell {
            size: 100,
            used,
            live,
            is_damaged: false,
        };
        let drawn = [
            cell(0, 0),
            cell(100, 0),
            cell(100, 1),
            cell(100, 50),
            cell(100, 51),
            cell(60, 60),
        ];
        let drawn = drawn.map(|cell| ink.cell(&cell, Look::PLAIN)).concat();
        assert_eq!(drawn, " .-+*#");
        let damaged = Cell {
            is_damaged: true,
            ..cell(0, 0)
        };
        assert_eq!(ink.cell(&damaged, Look::PLAIN), "X");
    }
}
