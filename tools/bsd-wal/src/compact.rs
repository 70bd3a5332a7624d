//! `bsd-wal compact`: removes the garbage of a log that no server uses.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::convert::offline::{Compacted, compact};
use bsd::storage::disk::Fs;
use clap::Args;
use serde::Serialize;

use crate::human::{Meter, Size, count};
use crate::report::Report;
use crate::{EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
No job changes. Interrupted at any point the directory is one that a server starts on, and the command
can simply be run again. A server compacts by itself: this is for a directory to be copied or kept.
The archive of a log that was compacted goes on with a new base. What it lacked before, no moment of it
can be restored: a server says at its end whether its archive has everything.

Examples:
  bsd-wal compact bsd-data
  bsd-wal compact bsd-data --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CompactArgs {
    /// The data directory; no server may be running on it
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &CompactArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let meter = RefCell::new(Meter::start("compacting"));
    let now = Clock::start().now();
    let done = compact(&fs, &args.dir, now, &|done, total| {
        meter.borrow_mut().show(done, total);
    })?;
    drop(meter);
    Done::new(&args.dir, done).tell(args.json, out)?;
    Ok(EXIT_OK)
}

/// A log that was compacted.
#[derive(Serialize)]
struct Done {
    dir: String,
    jobs: u64,
    files_before: u64,
    bytes_before: u64,
    files_after: u64,
    bytes_after: u64,
    freed_bytes: u64,
    /// Files that could not be rewritten for lack of room, or that could not be read.
    left_alone: u64,
    torn: Option<Torn>,
}

/// The write that a crash interrupted at the end of the log.
#[derive(Serialize)]
struct Torn {
    size: u64,
    /// The file in which it was saved.
    saved: Option<String>,
}

impl Done {
    fn new(dir: &Path, done: Compacted) -> Done {
        Done {
            dir: dir.display().to_string(),
            jobs: done.jobs,
            files_before: done.files_before,
            bytes_before: done.bytes_before,
            files_after: done.files_after,
            bytes_after: done.bytes_after,
            freed_bytes: done.bytes_before.saturating_sub(done.bytes_after),
            left_alone: done.left_alone,
            torn: done.recovery.torn.map(|(size, saved)| Torn { size, saved }),
        }
    }
}

impl Report for Done {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(Torn { size, saved }) = &self.torn {
            let place = saved
                .as_deref()
                .unwrap_or("nowhere, because there was no room");
            writeln!(
                out,
                "the log ended in a torn tail of {size} bytes, never acknowledged: saved as {place}"
            )?;
        }
        writeln!(
            out,
            "{}: {}; {} in {} before, {} in {} now: {} freed",
            self.dir,
            count(self.jobs, "job"),
            Size(self.bytes_before),
            count(self.files_before, "file"),
            Size(self.bytes_after),
            count(self.files_after, "file"),
            Size(self.freed_bytes),
        )?;
        if self.left_alone > 0 {
            writeln!(
                out,
                "{} left as they are: the disk had no room for what is alive in them, or did not \
                 give it; free space and run this again",
                count(self.left_alone, "file"),
            )?;
        }
        Ok(())
    }
}
