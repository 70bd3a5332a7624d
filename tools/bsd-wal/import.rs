//! `bsd-wal import`: beanstalkd's log as a log of bsd's, in a new directory.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::config::SEGMENT_SIZE_DEFAULT;
use bsd::storage::RealFs;
use bsd::storage::beanstalkd::{Binlogs, import};
use clap::Args;

use crate::human::{Meter, count};
use crate::repair::refuse_inside;
use crate::{EXIT_DAMAGED, EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
BEANSTALKD_DIR is only read. Kept are ids, tubes, states (a reserved job is ready), priorities,
delays, times to run, ages, counters and the order of buried jobs; beanstalkd's log knows of no
pauses. What is damaged is reported, and the rest imported. Interrupted, the command can simply
be run again.

Examples:
  bsd-wal import binlogs --output bsd-data-imported

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ImportArgs {
    /// The directory that beanstalkd's -b names; no beanstalkd may be running on it
    #[arg(value_name = "BEANSTALKD_DIR")]
    dir: PathBuf,
    /// The directory to be made; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
}

pub(crate) fn run(args: &ImportArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let ImportArgs { dir, output } = args;
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
        eprintln!(
            "bsd-wal: whether {} is in use cannot be told: its lock file is missing or belongs to \
             somebody else; if a beanstalkd is running on it, import again when it has stopped",
            dir.display()
        );
    }
    for damage in &old.damages {
        writeln!(out, "damage: {damage}")?;
    }
    for note in &old.notes {
        writeln!(out, "note: {note}")?;
    }
    for (id, why) in &imported.unreadable {
        writeln!(out, "lost: job {id} could not be read again: {why}")?;
    }
    writeln!(
        out,
        "{}: {} from {}, the next id is {}; {} is as it was\nstart with\n  bsd-server -b {}",
        output.display(),
        count(imported.jobs, "job"),
        count(old.files.len() as u64, "file"),
        imported.next_id,
        dir.display(),
        output.display(),
    )?;
    let is_all = old.is_intact() && imported.unreadable.is_empty();
    Ok(if is_all { EXIT_OK } else { EXIT_DAMAGED })
}
