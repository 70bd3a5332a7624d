//! `bsd-wal verify`: every file of the log and how it ends, then all damage, then the verdict and a
//! picture.

use std::io::Write;

use bsd::storage::inspect::{Access, Inspection, SegmentReport};
use bsd::storage::read::scan::End;
use bsd::types::Position;
use clap::Args;

use crate::human::{Look, Size, count, timestamp};
use crate::report::{Totals, Verdict};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, Source, inspect, json, picture};

const AFTER_HELP: &str = concat!(
    "\
Examples:
  bsd-wal verify bsd-data
  bsd-wal verify bsd-data --live
  bsd-wal backup bsd-data --output bsd-backup && bsd-wal verify bsd-backup
  bsd-wal verify bsd-data --json > verdict.json
  bsd-wal -q verify bsd-data && echo intact

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Read the state at one instant, up to the last write, without a lock: a server may be using
    /// the directory, or may start meanwhile
    #[arg(long)]
    live: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &VerifyArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    // A verdict covers the whole directory: one in use is judged only on request.
    let access = if args.live {
        Access::Live
    } else {
        Access::Shared
    };
    let inspection = inspect(&args.source.dir, access)?;
    if args.json {
        json::print(&Verdict::from(&inspection), out)?
    } else {
        print(&inspection, out)?
    }
    Ok(if inspection.is_intact() {
        EXIT_OK
    } else {
        EXIT_DAMAGED
    })
}

fn print(inspection: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    let look = Look::of_stdout();
    for segment in &inspection.segments {
        writeln!(out, "{}", describe(segment, look))?;
    }
    for loss in &inspection.losses {
        writeln!(out, "{}: {loss}", look.bad("damage"))?;
    }
    print_other_files(inspection, out)?;
    print_verdict(inspection, look, out)?;
    writeln!(out)?;
    Ok(picture::draw(inspection, look, out)?)
}

fn describe(segment: &SegmentReport, look: Look) -> String {
    let entry = &segment.entry;
    let covers = if entry.first == entry.last {
        format!("segment {}", entry.first)
    } else {
        format!("segments {} to {}", entry.first, entry.last)
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
        ending(segment, look)
    )
}

fn ending(segment: &SegmentReport, look: Look) -> String {
    let ending = match segment.end {
        Some(End::Whole) => "whole",
        Some(End::Clean) => "ends clean",
        Some(End::Torn) => "ends in a torn tail",
        Some(End::Corrupt) => return look.bad("CORRUPT"),
        None => "not read: it follows a torn tail, and nothing in it was acknowledged",
    };
    ending.to_owned()
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
            "other file: {}: {}",
            leftover.name.escape_debug(),
            leftover.what
        )?;
    }
    for stranger in &inspection.strangers {
        writeln!(
            out,
            "other file: {}: not of this log",
            stranger.escape_debug()
        )?;
    }
    Ok(())
}

fn print_verdict(inspection: &Inspection, look: Look, out: &mut dyn Write) -> Result<(), Failure> {
    let dir = inspection.dir.display();
    if let Some(live) = inspection.live {
        let place = |at: Position| format!("segment {} byte {}", at.segment(), at.offset());
        let attested = match live.durable {
            Position::ZERO => "it does not say yet what is on stable storage".to_owned(),
            durable => format!(
                "it says that all before {} is on stable storage",
                place(durable)
            ),
        };
        writeln!(
            out,
            "{dir}: read while in use, up to {}; {attested}; what was written since is not judged",
            place(live.end),
        )?;
    }
    if let Some(backup) = &inspection.backup {
        writeln!(
            out,
            "{dir}: a backup of the log as it was at {}, up to segment {} byte {}",
            timestamp(backup.taken_wall_ns),
            backup.end.segment(),
            backup.end.offset(),
        )?;
    }
    let jobs = count(inspection.job_count() as u64, "job");
    if inspection.is_intact() {
        writeln!(out, "{dir}: {}, {jobs}", look.good("intact"))?;
        return Ok(());
    }
    writeln!(
        out,
        "{dir}: {} in {}: as far as can be known {}; {jobs} can be read\n\
         {}",
        look.bad("damaged"),
        count(inspection.losses.len() as u64, "place"),
        Totals::of(inspection).phrases().join(", "),
        if inspection.is_backup {
            format!(
                "it cannot be restored as it is; take the backup again, or get back what can be got \
                 back with\n  bsd-wal restore {dir} --partial --output NEW"
            )
        } else {
            format!(
                "a server does not start on it; keep it as it is, and get back what can be got back \
                 with\n  bsd-wal repair {dir} --output NEW"
            )
        }
    )?;
    Ok(())
}
