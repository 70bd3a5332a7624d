//! `bsd-wal import`: beanstalkd's log as a log of bsd, in a new directory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage;
use bsd::storage::convert::beanstalkd::{Binlogs, import};
use bsd::storage::{RealFs, SEGMENT_SIZE_DEFAULT};
use clap::Args;
use serde::Serialize;

use crate::human::{Meter, count, note};
use crate::repair::refuse_inside;
use crate::report::{Report, Unreadable, ids, unreadable};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
BEANSTALKD_DIR is only read. Kept are ids, tubes, states (a reserved job is ready), priorities,
delays, times to run, ages, counters and the order of buried jobs; beanstalkd's log knows of no
pauses. What is damaged is reported, and the rest imported. Interrupted, the command can simply
be run again.

Examples:
  bsd-wal import binlogs --output bsd-data-imported
  bsd-wal import binlogs --output bsd-data-counted --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ImportArgs {
    /// The directory that beanstalkd's -b names; no beanstalkd may be running on it
    #[arg(value_name = "BEANSTALKD_DIR")]
    dir: PathBuf,
    /// The directory to create; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ImportArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let ImportArgs { dir, output, json } = args;
    refuse_inside(dir, output)?;
    let fs = Arc::new(RealFs);
    let mut meter = Meter::start("reading");
    let old = Binlogs::read(fs.clone(), dir, &mut |done, all| meter.show(done, all))?;
    meter = Meter::counting("writing", "jobs");
    let (now, size) = (Clock::start().now(), SEGMENT_SIZE_DEFAULT);
    let imported = import::write(&old, fs, output, size, now, &mut |done, all| {
        meter.show(done, all);
    })?;
    drop(meter);
    if !old.is_locked {
        note(format_args!(
            "cannot tell whether {} is in use: it cannot be locked, or its lock file cannot be \
             read; if a beanstalkd is running on it, import again when it has stopped",
            dir.display()
        ));
    }
    let done = Done::new(&old, &imported, output);
    done.tell(*json, out)?;
    let is_all = old.is_intact() && imported.unreadable.is_empty();
    Ok(if is_all { EXIT_OK } else { EXIT_DAMAGED })
}

/// An imported log of beanstalkd.
#[derive(Serialize)]
struct Done {
    source: String,
    output: String,
    intact: bool,
    files: usize,
    jobs: u64,
    next_id: u64,
    damages: Vec<Damage>,
    /// Work of beanstalkd that a crash has interrupted, and other remarks.
    notes: Vec<String>,
    unreadable: Vec<Unreadable>,
}

/// Damage in one of beanstalkd's files.
#[derive(Serialize)]
struct Damage {
    file: String,
    offset: Option<u64>,
    size: Option<u64>,
    what: String,
    /// The affected jobs, as far as they are known.
    hit: Vec<u64>,
    #[serde(skip)]
    words: String,
}

impl From<&storage::Damage> for Damage {
    fn from(damage: &storage::Damage) -> Damage {
        Damage {
            file: damage.file.clone(),
            offset: damage.range.map(|(offset, _)| offset),
            size: damage.range.map(|(_, size)| size),
            what: damage.what.clone(),
            hit: ids(&damage.jobs),
            words: damage.to_string(),
        }
    }
}

impl Done {
    fn new(old: &Binlogs, imported: &import::Imported, output: &Path) -> Done {
        Done {
            source: old.dir.display().to_string(),
            output: output.display().to_string(),
            intact: old.is_intact(),
            files: old.files.len(),
            jobs: imported.jobs,
            next_id: imported.next_id.0,
            damages: old.damages.iter().map(Damage::from).collect(),
            notes: old.notes.clone(),
            unreadable: unreadable(&imported.unreadable),
        }
    }
}

impl Report for Done {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        for damage in &self.damages {
            writeln!(out, "damage: {}", damage.words)?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        for Unreadable { job, why } in &self.unreadable {
            writeln!(out, "lost: job {job} could not be read again: {why}")?;
        }
        let Done {
            source,
            output,
            next_id,
            ..
        } = self;
        writeln!(
            out,
            "{output}: {} from {}, the next id is {next_id}; {source} is as it was\nstart with\n  \
             bsd-server -b {output}",
            count(self.jobs, "job"),
            count(self.files as u64, "file"),
        )
    }
}
