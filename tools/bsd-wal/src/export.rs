//! `bsd-wal export`: a log of bsd as a directory on which beanstalkd starts.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::convert::beanstalkd::export::{self, BODY_SIZE_DEFAULT, Exported};
use bsd::storage::disk::Fs;
use bsd::storage::inspect::{Access, Inspection};
use clap::Args;
use serde::Serialize;

use crate::human::{Meter, count};
use crate::repair::refuse_inside;
use crate::report::{Report, Unreadable, ids, unreadable};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, Source, exit_code, inspect};

const AFTER_HELP: &str = concat!(
    "\
DIR is only read. beanstalkd's log has no room for pauses, settings and the attributes of jobs, nor for
jobs of more than 1073741822 bytes: these are named, and where a job is left out the exit code is 1.
Interrupted, the command can simply be run again.

Examples:
  bsd-wal export bsd-data --output binlogs
  bsd-wal export bsd-data --output binlogs-counted --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// The directory to create; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ExportArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let ExportArgs {
        source,
        output,
        json,
    } = args;
    refuse_inside(&source.dir, output)?;
    let old = inspect(&source.dir, Access::Shared)?;
    let mut meter = Meter::counting("writing", "jobs");
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let now = Clock::start().now();
    let exported = export::write(&old, &fs, output, now.wall_ns, &mut |done, all| {
        meter.show(done, all);
    })?;
    drop(meter);
    let is_all = exported.too_large.is_empty() && exported.unreadable.is_empty();
    Done::new(&old, exported, output).tell(*json, out)?;
    match exit_code(&old) {
        EXIT_OK if !is_all => Ok(EXIT_DAMAGED),
        code => Ok(code),
    }
}

/// A log, exported.
#[derive(Serialize)]
struct Done {
    source: String,
    output: String,
    intact: bool,
    files: u32,
    jobs: u64,
    next_id: u64,
    /// The largest body, bytes.
    body_size_max: u32,
    /// The command to start beanstalkd with.
    start: String,
    /// Jobs that beanstalkd cannot hold.
    too_large: Vec<u64>,
    unreadable: Vec<Unreadable>,
    /// Tubes whose pause beanstalkd forgets.
    pauses: Vec<String>,
    /// Jobs that are plain jobs for beanstalkd.
    attributed: u64,
    /// Policies and schedules, which beanstalkd does not have.
    settings: Vec<String>,
}

impl Done {
    fn new(old: &Inspection, exported: Exported, output: &Path) -> Done {
        let output = output.display().to_string();
        Done {
            source: old.dir.display().to_string(),
            intact: old.is_intact(),
            files: exported.files,
            jobs: exported.jobs,
            next_id: exported.next_id.0,
            body_size_max: exported.body_size_max,
            start: format!("beanstalkd -b {output}{}", size_flag(&exported)),
            output,
            too_large: ids(&exported.too_large),
            unreadable: unreadable(&exported.unreadable),
            pauses: exported.pauses,
            attributed: exported.attributed,
            settings: (exported.settings.iter())
                .map(|(class, name)| format!("{} {name}", class.word()))
                .collect(),
        }
    }
}

impl Report for Done {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        for id in &self.too_large {
            writeln!(
                out,
                "left out: job {id} is larger than beanstalkd can accept"
            )?;
        }
        for Unreadable { job, why } in &self.unreadable {
            writeln!(out, "lost: job {job} could not be read again: {why}")?;
        }
        for tube in &self.pauses {
            writeln!(
                out,
                "left out: tube {tube} is paused, which beanstalkd forgets"
            )?;
        }
        for setting in &self.settings {
            let setting = setting.escape_debug();
            writeln!(out, "left out: {setting}, which beanstalkd does not have")?;
        }
        if self.attributed > 0 {
            let jobs = count(self.attributed, "job");
            writeln!(
                out,
                "left out: the attributes of {jobs}: to beanstalkd they are plain jobs"
            )?;
        }
        let Done {
            source,
            output,
            start,
            ..
        } = self;
        writeln!(
            out,
            "{output}: {} in {}; {source} is as it was\nstart with\n  {start}",
            count(self.jobs, "job"),
            count(self.files.into(), "file"),
        )
    }
}

/// At a start beanstalkd drops jobs that are larger than its `-z`, and counts two bytes more than
/// at a put.
fn size_flag(exported: &Exported) -> String {
    if exported.body_size_max > BODY_SIZE_DEFAULT {
        format!(" -z {}", exported.body_size_max + 2)
    } else {
        String::new()
    }
}
