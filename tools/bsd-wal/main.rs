//! `bsd-wal`: what is in a log, is it sound, and what can be saved of it.
//!
//! A thin shell over `bsd::storage::inspect`: it parses the command line, prints, and chooses the
//! exit code. Whatever it looks at is opened for reading only.

mod dump;
mod human;
mod info;
mod json;
mod repair;
mod verify;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use bsd::storage::inspect::Inspection;
use bsd::storage::{OpenError, RealFs};
use clap::{Args, Parser, Subcommand};

use crate::human::Meter;

/// Nothing is wrong.
const EXIT_OK: u8 = 0;
/// Acknowledged data is damaged; the command has done what can be done.
const EXIT_DAMAGED: u8 = 1;
/// The command could not do its work.
const EXIT_CANNOT: u8 = 2;
/// The command line is wrong.
const EXIT_USAGE: u8 = 5;

const AFTER_HELP: &str = "\
DIR is what bsd-server's -b names. It is only ever read.

Exit codes:
  0  the log is intact, or help or version shown
  1  acknowledged data is damaged: it is reported, and the rest was done
  2  nothing could be done: in use, not a log, cannot be read or written
  5  the command line is wrong

A torn tail, which a crash leaves and nobody was told of, is not damage.

Examples:
  bsd-wal verify bsd-data
  bsd-wal dump bsd-data --json > jobs.jsonl
  bsd-wal repair bsd-data --output bsd-data-repaired";

#[derive(Parser)]
#[command(
    name = "bsd-wal",
    version,
    about = "Looks into a log of bsd-server's, checks it, and saves what can be saved",
    after_help = AFTER_HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read every byte of a log and report all damage, and what it means for jobs
    Verify(Source),
    /// Show what a log holds: jobs by tube and state, bytes, segments
    Info(Source),
    /// List the jobs of a log, or its records
    Dump(DumpArgs),
    /// Write everything that survives into a new directory
    Repair(RepairArgs),
}

#[derive(Args)]
struct Source {
    /// The data directory
    dir: PathBuf,
}

#[derive(Args)]
struct DumpArgs {
    #[command(flatten)]
    source: Source,
    /// Print JSON Lines: an object for each job or record
    #[arg(long)]
    json: bool,
    /// List the log itself, record by record, in the order of history
    #[arg(long)]
    records: bool,
}

#[derive(Args)]
struct RepairArgs {
    #[command(flatten)]
    source: Source,
    /// The directory to be made; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
}

/// Why a command could not do its work.
enum Failure {
    Open(OpenError),
    /// The output cannot be written; nobody listens where the pipe is closed.
    Output(io::Error),
    Refused(String),
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::Open(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody is left to tell if the terminal is gone.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                EXIT_USAGE
            } else {
                EXIT_OK
            });
        }
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let done = run(&cli.command, &mut out).and_then(|code| Ok(out.flush().map(|()| code)?));
    ExitCode::from(done.unwrap_or_else(|failure| report(&failure)))
}

fn run(command: &Command, out: &mut dyn Write) -> Result<u8, Failure> {
    match command {
        Command::Verify(source) => verify::run(&source.dir, out),
        Command::Info(source) => info::run(&source.dir, out),
        Command::Dump(DumpArgs {
            source,
            json,
            records,
        }) => match records {
            true => dump::records(&source.dir, *json, out),
            false => dump::jobs(&source.dir, *json, out),
        },
        Command::Repair(RepairArgs { source, output }) => repair::run(&source.dir, output, out),
    }
}

fn report(failure: &Failure) -> u8 {
    match failure {
        Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Failure::Output(error) => eprintln!("bsd-wal: the output cannot be written: {error}"),
        Failure::Refused(why) => eprintln!("bsd-wal: {why}"),
        Failure::Open(OpenError::InUse { dir, pid }) => {
            let by = pid.map_or("another process".to_owned(), |pid| format!("process {pid}"));
            eprintln!(
                "bsd-wal: {} is in use by {by}; stop it first",
                dir.display()
            );
        }
        Failure::Open(error) => eprintln!("bsd-wal: {error}"),
    }
    EXIT_CANNOT
}

/// Read a log, showing on a terminal how far it is.
fn inspect(dir: &Path) -> Result<Inspection, Failure> {
    let mut meter = Meter::start("reading");
    let inspection = Inspection::read(Arc::new(RealFs), dir, &mut |done, total| {
        meter.show(done, total)
    })?;
    drop(meter);
    if !inspection.is_locked {
        eprintln!(
            "bsd-wal: whether {} is in use cannot be told: its lock file is missing or belongs to \
             somebody else; if a server is running on it, what follows is not to be relied on",
            dir.display()
        );
    }
    Ok(inspection)
}

/// The exit code for a log, after a word to those who only look at what a command prints.
fn exit_code(inspection: &Inspection) -> u8 {
    if inspection.is_intact() {
        return EXIT_OK;
    }
    eprintln!(
        "bsd-wal: the log is damaged and this is what survives; `bsd-wal verify {}` says what does \
         not",
        inspection.dir.display()
    );
    EXIT_DAMAGED
}
