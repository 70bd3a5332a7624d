//! `bsd-wal history`: the life of one job, in words.

use std::io::Write;

use bsd::storage::inspect::history::{Fate, History, HistoryEntry};
use bsd::types::JobId;
use clap::Args;

use crate::human::{Meter, note, timestamp};
use crate::shown::Shown;
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, json, open};

const AFTER_HELP: &str = concat!(
    "\
The log knows the time of puts only. Of what happened to a job later it is said between which puts, of
any jobs, that was. What compaction has merged into one record is told together.

Examples:
  bsd-wal history bsd-data 17
  bsd-wal history bsd-data 17 --json
  bsd-wal history bsd-data 17 --live

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    shown: Shown,
    /// The id of the job
    job: u64,
    /// Print JSON Lines: an object for each record, and one with the outcome of the job
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &HistoryArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let job = JobId(args.job);
    let source = args.shown.place()?;
    let opened = open(&source.dir, source.access)?;
    let mut meter = Meter::start("reading");
    let history = opened.history(job, &mut |done, all| meter.show(done, all))?;
    drop(meter);
    for entry in &history.entries {
        let words = entry.event.in_words(&timestamp);
        if args.json {
            json::print_history(entry, &words, out)?
        } else {
            writeln!(out, "{}: {words} ({})", when(entry), place(entry))?
        }
    }
    let end = tell_end(&history, job);
    match (args.json, &end) {
        (true, _) => json::print_history_end(&history, end.as_deref(), out)?,
        (false, Some(end)) => writeln!(out, "{end}")?,
        (false, None) => {}
    }
    for damage in &history.damages {
        note(format_args!(
            "damage: {damage}; more about job {job} may have been there"
        ));
    }
    Ok(source.exit_code(if history.damages.is_empty() {
        EXIT_OK
    } else {
        EXIT_DAMAGED
    }))
}

fn place(entry: &HistoryEntry) -> String {
    let salvaged = if entry.is_salvaged {
        ", out of a damaged frame"
    } else {
        ""
    };
    format!(
        "{} at byte {}, {} bytes{salvaged}",
        entry.file,
        entry.position.offset(),
        entry.size
    )
}

fn when(entry: &HistoryEntry) -> String {
    match (entry.after_wall_ns, entry.before_wall_ns) {
        (Some(after), Some(before)) if after == before => timestamp(after),
        (Some(after), Some(before)) => {
            format!("between {} and {}", timestamp(after), timestamp(before))
        }
        (Some(after), None) => format!("after {}", timestamp(after)),
        (None, Some(before)) => format!("before {}", timestamp(before)),
        (None, None) => "at an unknown time".to_owned(),
    }
}

/// The outcome of the job, if its records do not tell it.
fn tell_end(history: &History, job: JobId) -> Option<String> {
    let words = match history.fate {
        Fate::There | Fate::Deleted => return None,
        Fate::Kicked => {
            "a kick of several jobs was interrupted: the next start finishes it, and the job is ready"
        }
        Fate::Older => "the record of its last state is damaged: it is back in an older one",
        Fate::Again => "the record that deletes it is damaged: it is back, and would run again",
        Fate::Lost => "it is lost in the damage",
        Fate::PerhapsLost => {
            "it is lost in the damage, unless it had been deleted before, or never was"
        }
        Fate::Dropped => {
            return Some(format!(
                "nothing of job {job} is left in the log: it was deleted, and compaction has dropped \
                 its records"
            ));
        }
        Fate::Unknown => {
            return Some(format!(
                "nothing of job {job} is left in the log: it was deleted, and compaction has dropped \
                 its records; or it was put in the part that is lost; or it was never put. Ids were left \
                 out after a restore, a promotion or a repair, so the log does not say which: look for \
                 the job in a backup, an archive or the directory that was lost"
            ));
        }
        Fate::NeverPut => {
            let next_id = history.next_id;
            return Some(format!("job {job} was never put: the next id is {next_id}"));
        }
    };
    Some(format!("job {job}: {words}"))
}
