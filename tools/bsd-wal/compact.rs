//! `bsd-wal compact`: a log that no server uses, without what is dead in it.

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::fs::Fs;
use bsd::storage::offline::compact;
use clap::Args;

use crate::human::{Meter, Size, count};
use crate::{EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
No job changes. Interrupted at any point the directory is one that a server starts on, and the command
can simply be run again. A server compacts by itself: this is for a directory to be copied or kept.

Examples:
  bsd-wal compact bsd-data

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CompactArgs {
    /// The data directory; no server may be running on it
    dir: PathBuf,
}

pub(crate) fn run(args: &CompactArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let meter = RefCell::new(Meter::start("compacting"));
    let now = Clock::start().now();
    let done = compact(&fs, &args.dir, now, &|done, total| {
        meter.borrow_mut().show(done, total);
    })?;
    drop(meter);
    if let Some((bytes, saved)) = &done.recovery.torn {
        let place = saved.as_deref().unwrap_or("nowhere, for want of room");
        writeln!(
            out,
            "the log ended in a torn tail of {bytes} bytes, never acknowledged: saved as {place}"
        )?;
    }
    writeln!(
        out,
        "{}: {}; {} in {} before, {} in {} now: {} freed",
        args.dir.display(),
        count(done.jobs, "job"),
        Size(done.bytes_before),
        count(done.files_before, "file"),
        Size(done.bytes_after),
        count(done.files_after, "file"),
        Size(done.bytes_before.saturating_sub(done.bytes_after)),
    )?;
    if done.left_alone > 0 {
        writeln!(
            out,
            "{} left as they are: the disk had no room for what is alive in them, or did not give \
             it; free space and run this again",
            count(done.left_alone, "file"),
        )?;
    }
    Ok(EXIT_OK)
}
