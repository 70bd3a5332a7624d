//! `bsd-wal restore`: a data directory from a backup.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use bsd::storage::RealFs;
use bsd::storage::backup::restore;
use bsd::storage::fs::Fs;
use clap::Args;

use crate::human::{Meter, Size, count, timestamp};
use crate::repair::refuse_inside;
use crate::{EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
Every byte is checked. The new directory takes the place of the one that was backed up: it goes by the
same identity, and files of the two must not be mixed. BACKUP is only read. Interrupted, the command
can simply be run again.

Examples:
  bsd-wal restore bsd-backup --output bsd-data-restored

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RestoreArgs {
    /// The directory that `bsd-wal backup` wrote
    backup: PathBuf,
    /// The data directory to be made; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
}

pub(crate) fn run(args: &RestoreArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let RestoreArgs { backup, output } = args;
    refuse_inside(backup, output)?;
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let mut meter = Meter::start("restoring");
    let restored = restore(&fs, backup, output, &mut |done, total| {
        meter.show(done, total);
    })?;
    drop(meter);
    let show = output.display();
    writeln!(
        out,
        "{show}: the log as it was at {}, up to segment {} byte {}; {} ({}), every byte \
         checked\nstart with\n  bsd-server -b {show}",
        timestamp(restored.taken_wall_ns),
        restored.end.segment(),
        restored.end.offset(),
        count(restored.files, "file"),
        Size(restored.bytes),
    )?;
    Ok(EXIT_OK)
}
