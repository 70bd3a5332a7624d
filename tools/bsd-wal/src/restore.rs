//! `bsd-wal restore`: a data directory from a backup.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::convert::backup::{Restored, restore};
use bsd::storage::disk::Fs;
use bsd::storage::inspect::Access;
use bsd::types::Position;
use clap::Args;
use serde::Serialize;

use crate::backup::name_strangers;
use crate::human::{Meter, Size, count, timestamp};
use crate::repair::{refuse_inside, repair};
use crate::report::Report;
use crate::{EXIT_OK, Failure, inspect};

const AFTER_HELP: &str = concat!(
    "\
Every byte is checked, and nothing is made of a backup that is damaged, unless --partial is given. The
new directory takes the place of the one that was backed up: it goes by the
same identity, and files of the two must not be mixed. Its next id is past all that
can have been given out since the backup. BACKUP is only read. Interrupted, the command
can simply be run again.

Examples:
  bsd-wal restore bsd-backup --output bsd-data-restored
  bsd-wal restore bsd-backup --output bsd-data-saved --partial --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RestoreArgs {
    /// The directory that `bsd-wal backup` wrote
    backup: PathBuf,
    /// The data directory to create; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
    /// Save as much as possible of a damaged backup, as `repair` does: a log of its own
    #[arg(long)]
    partial: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &RestoreArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let RestoreArgs {
        backup,
        output,
        partial,
        json,
    } = args;
    refuse_inside(backup, output)?;
    if *partial {
        let old = inspect(backup, Access::Shared)?;
        if !old.is_backup {
            return Err(Failure::Refused(format!(
                "{} is no backup; `bsd-wal repair` saves what can be of a data directory",
                backup.display()
            )));
        }
        if !old.is_intact() {
            let done = repair(&old, output)?;
            done.tell(*json, out)?;
            return Ok(done.exit_code());
        }
    }
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let mut meter = Meter::start("restoring");
    let now = Clock::start().now();
    let restored = restore(&fs, backup, output, now, &mut |done, total| {
        meter.show(done, total);
    })?;
    drop(meter);
    name_strangers(backup, &restored.strangers);
    Done::new(backup, output, restored).tell(*json, out)?;
    Ok(EXIT_OK)
}

/// A completely restored backup.
#[derive(Serialize)]
struct Done {
    source: String,
    output: String,
    intact: bool,
    /// When the backup was taken.
    taken: String,
    /// Where the log ended then, `SEGMENT:OFFSET`.
    end: String,
    files: u64,
    bytes: u64,
    strangers: Vec<String>,
    #[serde(skip)]
    place: Position,
}

impl Done {
    fn new(backup: &Path, output: &Path, restored: Restored) -> Done {
        Done {
            source: backup.display().to_string(),
            output: output.display().to_string(),
            intact: true,
            taken: timestamp(restored.taken_wall_ns),
            end: restored.end.to_string(),
            files: restored.files,
            bytes: restored.bytes,
            strangers: restored.strangers,
            place: restored.end,
        }
    }
}

impl Report for Done {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let show = &self.output;
        writeln!(
            out,
            "{show}: the log as it was at {}, up to segment {} byte {}; {} ({}), every byte \
             checked\nstart with\n  bsd-server -b {show}",
            self.taken,
            self.place.segment(),
            self.place.offset(),
            count(self.files, "file"),
            Size(self.bytes),
        )
    }
}
