//! `bsd-wal backup`: a consistent copy of a log that a server may be using.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::convert::backup::{BackedUp, back_up};
use bsd::storage::disk::Fs;
use bsd::types::Position;
use clap::Args;
use serde::Serialize;

use crate::human::{Meter, Size, count, note};
use crate::repair::refuse_inside;
use crate::report::Report;
use crate::{EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
The copy is of one instant: everything acknowledged before the command began is in it. With the same
--output again only what has changed is copied; what is there is read back, and copied again where it
has gone bad. Until that is complete the backup before it can be restored. Interrupted, the command can
simply be run again.

Examples:
  bsd-wal backup bsd-data --output bsd-backup
  bsd-wal backup bsd-data --output bsd-backup --json
  bsd-wal backup bsd-data --output bsd-backup && bsd-wal verify bsd-backup
  bsd-wal backup bsd-data --output bsd-backup && bsd-wal restore bsd-backup --output bsd-data-tried

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BackupArgs {
    /// The data directory; a server may be running on it
    dir: PathBuf,
    /// The directory of the backup: a new one, or an earlier backup of the same log, which is
    /// updated
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &BackupArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let BackupArgs { dir, output, json } = args;
    refuse_inside(dir, output)?;
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let mut meter = Meter::start("copying");
    let now = Clock::start().now();
    let done = back_up(&fs, dir, output, now, &mut |done, total| {
        meter.show(done, total);
    })?;
    drop(meter);
    for name in &done.healed {
        note(format_args!(
            "{name} in {} had gone bad and was copied again; watch the disk that it is on",
            output.display()
        ));
    }
    name_strangers(output, &done.strangers);
    Done::new(dir, output, done).tell(*json, out)?;
    Ok(EXIT_OK)
}

/// Report files that are not part of a backup.
pub(crate) fn name_strangers(backup: &Path, strangers: &[String]) {
    for name in strangers {
        note(format_args!(
            "{name:?} in {} is no part of the backup and was left out",
            backup.display()
        ));
    }
}

/// A finished backup.
#[derive(Serialize)]
struct Done {
    source: String,
    output: String,
    /// Where the log ended, `SEGMENT:OFFSET`.
    end: String,
    files: u64,
    bytes: u64,
    copied_files: u64,
    copied_bytes: u64,
    /// Files that existed, had gone bad, and were copied again.
    healed: Vec<String>,
    removed_files: u64,
    strangers: Vec<String>,
    #[serde(skip)]
    place: Position,
}

impl Done {
    fn new(dir: &Path, output: &Path, done: BackedUp) -> Done {
        Done {
            source: dir.display().to_string(),
            output: output.display().to_string(),
            end: done.end.to_string(),
            files: done.files,
            bytes: done.bytes,
            copied_files: done.copied_files,
            copied_bytes: done.copied_bytes,
            healed: done.healed,
            removed_files: done.removed_files,
            strangers: done.strangers,
            place: done.end,
        }
    }
}

impl Report for Done {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let show = &self.output;
        writeln!(
            out,
            "{show}: the log up to segment {} byte {}, {} ({}); copied {} ({}), {} of earlier \
             backups removed\nrestore with\n  bsd-wal restore {show} --output NEW",
            self.place.segment(),
            self.place.offset(),
            count(self.files, "file"),
            Size(self.bytes),
            self.copied_files,
            Size(self.copied_bytes),
            self.removed_files,
        )
    }
}
