//! `bsd-wal verify`: every file of the log and how it ends, then all damage, then the verdict.

use std::io::Write;
use std::path::Path;

use bsd::storage::inspect::{Inspection, SegmentReport};
use bsd::storage::scan::End;

use crate::human::{Size, count};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, inspect};

pub(crate) fn run(dir: &Path, out: &mut dyn Write) -> Result<u8, Failure> {
    let inspection = inspect(dir)?;
    for segment in &inspection.segments {
        writeln!(out, "{}", describe(segment))?;
    }
    for loss in &inspection.losses {
        writeln!(out, "damage: {loss}")?;
    }
    print_other_files(&inspection, out)?;
    print_verdict(&inspection, out)?;
    Ok(if inspection.is_intact() {
        EXIT_OK
    } else {
        EXIT_DAMAGED
    })
}

fn describe(segment: &SegmentReport) -> String {
    let entry = &segment.entry;
    let covers = match entry.first == entry.last {
        true => format!("segment {}", entry.first),
        false => format!("segments {} to {}", entry.first, entry.last),
    };
    let rewritten = match entry.generation {
        0 => String::new(),
        times => format!(", rewritten {}", count(times.into(), "time")),
    };
    let held = format!(
        "{}, {}, {} live, {} dead",
        count(segment.frames, "frame"),
        count(segment.records, "record"),
        Size(segment.live_bytes),
        Size(segment.dead_bytes()),
    );
    format!(
        "{}: {covers}{rewritten}; {held}; {}",
        segment.file,
        ending(segment)
    )
}

fn ending(segment: &SegmentReport) -> &'static str {
    match segment.end {
        Some(End::Whole) => "whole",
        Some(End::Clean) => "ends clean",
        Some(End::Torn) => "ends in a torn tail",
        Some(End::Corrupt) => "CORRUPT",
        None => "not read: it lies behind a torn tail, nothing in it was ever acknowledged",
    }
}

fn print_other_files(inspection: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(torn) = &inspection.torn {
        writeln!(
            out,
            "torn tail: {} at byte {} ({} bytes): a crash interrupted a write that was never \
             acknowledged; the next start saves it in a cut-… file and goes on",
            torn.file, torn.offset, torn.size
        )?;
    }
    for leftover in &inspection.leftovers {
        writeln!(
            out,
            "beside the log: {}: {}",
            leftover.name.escape_debug(),
            leftover.what
        )?;
    }
    for stranger in &inspection.strangers {
        writeln!(
            out,
            "beside the log: {}: not of this log",
            stranger.escape_debug()
        )?;
    }
    Ok(())
}

fn print_verdict(inspection: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    let dir = inspection.dir.display();
    let jobs = count(inspection.job_count() as u64, "job");
    if inspection.is_intact() {
        writeln!(out, "{dir}: intact, {jobs}")?;
        return Ok(());
    }
    let missing: u64 = inspection
        .losses
        .iter()
        .map(|loss| loss.missing_count())
        .sum();
    let older: usize = inspection.losses.iter().map(|loss| loss.older.len()).sum();
    let again: usize = inspection.losses.iter().map(|loss| loss.again.len()).sum();
    writeln!(
        out,
        "{dir}: damaged in {}: as far as can be known {} missing, {older} in an older state, \
         {again} back that had been deleted; {jobs} can be read\n\
         a server does not start on it; keep it as it is, and get back what can be got back with\n  \
         bsd-wal repair {dir} --output NEW",
        count(inspection.losses.len() as u64, "place"),
        count(missing, "job"),
    )?;
    Ok(())
}
