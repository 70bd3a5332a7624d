//! `bsd-wal backup`: a consistent copy of a log that a server may be using.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::backup::back_up;
use bsd::storage::fs::Fs;
use clap::Args;

use crate::human::{Meter, Size, count};
use crate::repair::refuse_inside;
use crate::{EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
The copy is of one instant: everything acknowledged before the command began is in it. With the same
--output again only what has changed is copied; until that is complete the backup before it can be
restored. Interrupted, the command can simply be run again.

Examples:
  bsd-wal backup bsd-data --output bsd-backup
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
    /// brought up to date
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
}

pub(crate) fn run(args: &BackupArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let BackupArgs { dir, output } = args;
    refuse_inside(dir, output)?;
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let mut meter = Meter::start("copying");
    let now = Clock::start().now();
    let done = back_up(&fs, dir, output, now, &mut |done, total| {
        meter.show(done, total);
    })?;
    drop(meter);
    let show = output.display();
    writeln!(
        out,
        "{show}: the log up to segment {} byte {}, {} ({}); copied {} ({}), {} of earlier backups \
         removed\nrestore with\n  bsd-wal restore {show} --output NEW",
        done.end.segment(),
        done.end.offset(),
        count(done.files, "file"),
        Size(done.bytes),
        done.copied_files,
        Size(done.copied_bytes),
        done.removed_files,
    )?;
    Ok(EXIT_OK)
}
