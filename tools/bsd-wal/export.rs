//! `bsd-wal export`: a log of bsd's as a directory that beanstalkd starts on.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::beanstalkd::export::{self, BODY_SIZE_DEFAULT, Exported};
use bsd::storage::fs::Fs;
use clap::Args;

use crate::human::{Meter, count};
use crate::repair::refuse_inside;
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, Source, exit_code, inspect};

const AFTER_HELP: &str = concat!(
    "\
DIR is only read. beanstalkd's log has no room for pauses, nor for jobs of more than 1073741822 bytes:
both are named, and where a job is left out the exit code is 1. Interrupted, the command can simply be
run again.

Examples:
  bsd-wal export bsd-data --output binlogs

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// The directory to be made; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
}

pub(crate) fn run(args: &ExportArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let ExportArgs { source, output } = args;
    refuse_inside(&source.dir, output)?;
    let old = inspect(&source.dir)?;
    let mut meter = Meter::counting("writing", "jobs");
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let now = Clock::start().now();
    let exported = export::write(&old, &fs, output, now.wall_ns, &mut |done, all| {
        meter.show(done, all);
    })?;
    drop(meter);
    print_left_out(&exported, out)?;
    writeln!(
        out,
        "{}: {} in {}; {} is as it was\nstart with\n  beanstalkd -b {}{}",
        output.display(),
        count(exported.jobs, "job"),
        count(exported.files.into(), "file"),
        source.dir.display(),
        output.display(),
        size_flag(&exported),
    )?;
    let is_all = exported.too_large.is_empty() && exported.unreadable.is_empty();
    match exit_code(&old) {
        EXIT_OK if !is_all => Ok(EXIT_DAMAGED),
        code => Ok(code),
    }
}

/// At a start beanstalkd drops jobs that are larger than its `-z`, and counts two bytes more than at
/// a put.
fn size_flag(exported: &Exported) -> String {
    match exported.body_size_max > BODY_SIZE_DEFAULT {
        true => format!(" -z {}", exported.body_size_max + 2),
        false => String::new(),
    }
}

fn print_left_out(exported: &Exported, out: &mut dyn Write) -> Result<(), Failure> {
    for id in &exported.too_large {
        writeln!(
            out,
            "left out: job {id} is larger than beanstalkd can be told to take"
        )?;
    }
    for (id, why) in &exported.unreadable {
        writeln!(out, "lost: job {id} could not be read again: {why}")?;
    }
    for tube in &exported.pauses {
        writeln!(
            out,
            "left out: tube {tube} is paused, which beanstalkd forgets"
        )?;
    }
    Ok(())
}
