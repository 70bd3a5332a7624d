//! `bsd-wal load`: a data directory from the output of `bsd-wal dump --json`.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::convert::load::{Load, LoadError};
use bsd::storage::inspect::PauseRecord;
use bsd::storage::{RealFs, SEGMENT_SIZE_DEFAULT};
use bsd::types::JobId;
use clap::Args;
use serde::Serialize;

use crate::human::{Meter, count};
use crate::json::{Line, parse_line};
use crate::report::Report;
use crate::{EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
Ids, states, priorities, delays, deadlines, counters, the order of buried jobs, pauses and the next id
are kept. The jobs must come in the order of their ids. A line that is wrong is named, and nothing is
built; nor is anything of a dump whose end is missing, or that has another number of jobs than its end
says, unless --partial is given.

Examples:
  bsd-wal dump bsd-data --json > jobs.jsonl; bsd-wal load jobs.jsonl --output bsd-data-loaded
  bsd-wal dump bsd-data --json --tube mail | bsd-wal load - --output bsd-data-mail
  head -n 2 jobs.jsonl | bsd-wal load - --partial --output bsd-data-part
  bsd-wal dump bsd-data --json | bsd-wal load - --output bsd-data-copy --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LoadArgs {
    /// The output of `bsd-wal dump --json`; - for the standard input
    file: PathBuf,
    /// The directory to create; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
    /// Accept a dump from which lines were removed
    #[arg(long)]
    partial: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &LoadArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let (mut input, size) = open(&args.file)?;
    let now = Clock::start().now();
    let mut loading = Loading {
        load: Load::begin(Arc::new(RealFs), &args.output, SEGMENT_SIZE_DEFAULT, now)?,
        is_partial: args.partial,
        is_ended: false,
    };
    let mut meter = size.map(|size| (Meter::start("loading"), size));
    let (mut line, mut number, mut done) = (Vec::new(), 0, 0);
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line);
        if read.map_err(|error| unreadable(&args.file, &error))? == 0 {
            break;
        }
        number += 1;
        done += line.len() as u64;
        loading
            .line(&line)
            .map_err(|wrong| args.locate(number, wrong))?;
        if let Some((meter, size)) = &mut meter {
            meter.show(done, *size);
        }
    }
    drop(meter);
    loading.end().map_err(|wrong| args.locate(number, wrong))?;
    let loaded = loading.load.finish()?;
    let done = Done {
        output: args.output.display().to_string(),
        jobs: loaded.jobs,
        next_id: loaded.next_id.0,
    };
    done.tell(args.json, out)?;
    Ok(EXIT_OK)
}

/// A loaded dump.
#[derive(Serialize)]
struct Done {
    output: String,
    jobs: u64,
    next_id: u64,
}

impl Report for Done {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let Done {
            output, next_id, ..
        } = self;
        writeln!(
            out,
            "{output}: {}, the next id is {next_id}\nstart with\n  bsd-server -b {output}",
            count(self.jobs, "job"),
        )
    }
}

impl LoadArgs {
    /// The fault of a line, with its place.
    fn locate(&self, number: u64, wrong: LoadError) -> Failure {
        match wrong {
            LoadError::Open(error) => Failure::Open(error),
            LoadError::Refused(why) => {
                let todo = if why.contains("--partial") {
                    ""
                } else {
                    ": correct the line and run the command again"
                };
                let file = if self.file == Path::new("-") {
                    "the standard input".to_owned()
                } else {
                    self.file.display().to_string()
                };
                Failure::Refused(format!(
                    "line {number} of {file}: {why}; nothing was loaded{todo}"
                ))
            }
        }
    }
}

/// The input, and its size if it has one. A pipe has none, and cannot be read at an offset like the
/// log's files.
fn open(path: &Path) -> Result<(Box<dyn BufRead>, Option<u64>), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let open = || {
        let file = OpenOptions::new().read(true).open(path)?;
        let metadata = file.metadata()?;
        let size = metadata.is_file().then_some(metadata.len());
        Ok((Box::new(BufReader::new(file)) as Box<dyn BufRead>, size))
    };
    open().map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::Refused(format!(
        "cannot read {}: {error}; give a file that `bsd-wal dump --json` wrote, or - for the \
         standard input",
        path.display()
    ))
}

struct Loading {
    load: Load,
    is_partial: bool,
    is_ended: bool,
}

impl Loading {
    fn line(&mut self, bytes: &[u8]) -> Result<(), LoadError> {
        if bytes.trim_ascii().is_empty() {
            return Ok(());
        }
        let line = parse_line(bytes).map_err(|error| LoadError::Refused(error.to_string()))?;
        if self.is_ended && !self.is_partial {
            let why = "something follows the end of the dump; --partial takes it all the same";
            return Err(LoadError::Refused(why.to_owned()));
        }
        match line {
            Line::Job(job, buried_order) => self.load.job(&job, buried_order),
            Line::Pause {
                tube,
                until_wall_ns,
                duration,
            } => self.load.pause(&PauseRecord {
                tube: &tube,
                until_wall_ns,
                duration,
            }),
            Line::Setting(setting) => self.load.setting(&setting),
            Line::End(end) => {
                self.is_ended = true;
                let jobs = self.load.jobs();
                if jobs != end.jobs && !self.is_partial {
                    let (had, here) = (count(end.jobs, "job"), count(jobs, "job"));
                    let why = format!(
                        "the dump had {had} and {here} came before this line; --partial takes it \
                         all the same"
                    );
                    return Err(LoadError::Refused(why));
                }
                self.load.next_id(JobId(end.next_id))
            }
        }
    }

    /// Check the end of the input.
    fn end(&self) -> Result<(), LoadError> {
        if self.is_ended || self.is_partial {
            Ok(())
        } else {
            Err(LoadError::Refused(
                "the input ends without the end of a dump, {\"end\":…}: it may have been cut; \
                 --partial takes it all the same"
                    .to_owned(),
            ))
        }
    }
}
