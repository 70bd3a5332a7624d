//! `bsd-wal`: shows the content of a log, checks it, and saves everything that can be saved.
//!
//! A thin shell over `bsd::storage::inspect`: it parses the command line, prints, and chooses the
//! exit code. It opens the log for reading only, except for `compact`.

/// The exit codes, for the end of each command's help.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0  the log is intact, the work is done; or help or version shown
  1  acknowledged data is damaged, or an archive lacks its end: it is reported, and the rest was done
  2  it could not be done: in use, not a log, cannot be read or written; damaged, for backup, restore
     and compact; or no such tube or job, for dump, which did the rest
  5  the command line is wrong

With --json the output is JSON, with -q it is empty; what is said beside it goes to the standard
error. Where no one reads the output any more (dump | head) a command ends by SIGPIPE, as cat does.
A torn tail, which a crash leaves and no one was told of, is not damage."
    };
}

mod archive;
mod backup;
mod beyond;
mod compact;
mod dump;
mod export;
mod history;
mod human;
mod import;
mod info;
mod json;
mod ledger;
mod load;
#[cfg(feature = "man")]
mod man;
mod picture;
mod repair;
mod report;
mod restore;
mod shown;
mod verify;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use bsd::storage::inspect::{Access, Inspection, Opened};
use bsd::storage::{OpenError, RealFs};
use clap::{Args, Parser, Subcommand};
use signal_hook::consts::SIGPIPE;

use crate::human::{Meter, complain, note};

/// Nothing is wrong.
const EXIT_OK: u8 = 0;
/// Acknowledged data is damaged, or an archive lacks its end; the rest was done.
const EXIT_DAMAGED: u8 = 1;
/// The command could not do its work.
const EXIT_CANNOT: u8 = 2;
/// The command line is wrong.
const EXIT_USAGE: u8 = 5;

const AFTER_HELP: &str = concat!(
    "\
DIR is what bsd-server's -b names, or a backup of it. It is only ever read, but by compact. Commands
that read may run at the same time; a server is not started meanwhile, unless they were given --live.

Examples:
  bsd-wal verify bsd-data
  bsd-wal info bsd-data
  bsd-wal dump bsd-data --json > jobs.jsonl
  bsd-wal repair bsd-data --output bsd-data-repaired
  bsd-wal verify bsd-data --live
  bsd-wal backup bsd-data --output bsd-backup
  bsd-wal restore bsd-backup --output bsd-data-restored
  bsd-wal compact bsd-data
  bsd-wal import /var/lib/beanstalkd --output bsd-data

",
    exit_codes!()
);

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
    /// Print errors only: the exit code tells the rest
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Read every byte of a log and report all damage, and its meaning for jobs
    Verify(verify::VerifyArgs),
    /// Show what a log holds: jobs by tube and state, bytes, segments
    Info(info::InfoArgs),
    /// List the jobs of a log, or its records
    Dump(dump::DumpArgs),
    /// Show the life of one job, as far as the log holds it
    History(history::HistoryArgs),
    /// Write everything that survives into a new directory
    Repair(repair::RepairArgs),
    /// Make a data directory from the output of `dump --json`
    Load(load::LoadArgs),
    /// Rewrite a log that no server uses, so that only live records are left
    Compact(compact::CompactArgs),
    /// Copy a log that a server may be using, or update such a copy
    Backup(backup::BackupArgs),
    /// Make a data directory from a backup
    Restore(restore::RestoreArgs),
    /// List, check, restore and expire an archive that bsd-server writes
    Archive(archive::ArchiveArgs),
    /// Show the ledger of a member of a cluster, and make a server of the last one that is left
    Ledger(ledger::LedgerArgs),
    /// Make a log from beanstalkd's log
    Import(import::ImportArgs),
    /// Write a log as files on which beanstalkd starts
    Export(export::ExportArgs),
    /// Write manual pages and shell completions
    #[cfg(feature = "man")]
    #[command(hide = true)]
    Man(man::ManArgs),
}

#[derive(Args)]
struct Source {
    /// The data directory, or a backup of one
    dir: PathBuf,
}

/// Why a command could not do its work.
enum Failure {
    Open(OpenError),
    /// The output cannot be written; for a closed pipe that is no error.
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
    let cli = match human::parse::<Cli>(EXIT_USAGE) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let mut out = human::output(cli.quiet);
    // A log in use, and one that is being written, have all files open.
    bsd::rlimit::raise_descriptor_limit();
    let done = run(&cli.command, &mut out).and_then(|code| Ok(out.flush().map(|()| code)?));
    ExitCode::from(done.unwrap_or_else(|failure| report(&failure, cli.command.log())))
}

fn run(command: &Command, out: &mut dyn Write) -> Result<u8, Failure> {
    match command {
        Command::Verify(args) => verify::run(args, out),
        Command::Info(args) => info::run(args, out),
        Command::Dump(args) => dump::run(args, out),
        Command::History(args) => history::run(args, out),
        Command::Repair(args) => repair::run(args, out),
        Command::Load(args) => load::run(args, out),
        Command::Compact(args) => compact::run(args, out),
        Command::Backup(args) => backup::run(args, out),
        Command::Restore(args) => restore::run(args, out),
        Command::Archive(args) => archive::run(args, out),
        Command::Ledger(args) => ledger::run(args, out),
        Command::Import(args) => import::run(args, out),
        Command::Export(args) => export::run(args, out),
        #[cfg(feature = "man")]
        Command::Man(args) => man::run(args, out),
    }
}

impl Command {
    /// The log that the command only reads.
    fn log(&self) -> Option<&Path> {
        match self {
            Command::Verify(verify::VerifyArgs { source, .. })
            | Command::Repair(repair::RepairArgs { source, .. })
            | Command::Export(export::ExportArgs { source, .. }) => Some(&source.dir),
            _ => None,
        }
    }
}

fn report(failure: &Failure, log: Option<&Path>) -> u8 {
    match failure {
        Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            // Ends the process; returns an error if the system does not allow it.
            let _ = signal_hook::low_level::emulate_default_handler(SIGPIPE);
        }
        Failure::Output(error) => complain(format_args!(
            "the output cannot be written: {error}; send it elsewhere, and run the command again"
        )),
        Failure::Refused(why) => complain(why),
        Failure::Open(error) => {
            complain(error);
            if let OpenError::InUse { dir, .. } = error
                && log == Some(dir)
            {
                let show = dir.display();
                complain(format_args!(
                    "or leave it running: `bsd-wal verify {show} --live` checks the log, `bsd-wal \
                     backup {show} --output NEW` copies it, and any command that reads takes the copy"
                ));
            }
        }
    }
    EXIT_CANNOT
}

/// Open a log or a backup, which reads a backup, and show the progress on a terminal.
fn open(dir: &Path, access: Access) -> Result<Opened, Failure> {
    shown::refuse_url(dir)?;
    let mut meter = Meter::start("checking");
    let opened = Opened::new(Arc::new(RealFs), dir, access, &mut |done, total| {
        meter.show(done, total)
    })?;
    drop(meter);
    let show = dir.display();
    match (opened.is_in_use, opened.live) {
        (true, None) => note(format_args!(
            "{show} was read as it is, for its list of files does not say where it ends; if a server \
             is writing to it, what is said of its end may be a write under way"
        )),
        (true, Some(_)) if access == Access::Either => note(format_args!(
            "{show} is in use, and was read as it was at one instant, as with --live"
        )),
        (false, _) if !opened.is_locked => note(format_args!(
            "cannot tell whether {show} is in use: it cannot be locked, or its lock file cannot be \
             read; if a server is running on it, what follows is not to be relied on"
        )),
        _ => {}
    }
    Ok(opened)
}

/// Read a log, and show the progress on a terminal.
fn inspect(dir: &Path, access: Access) -> Result<Inspection, Failure> {
    let opened = open(dir, access)?;
    let mut meter = Meter::start("reading");
    Ok(opened.inspect(&mut |done, total| meter.show(done, total))?)
}

/// The exit code for a log, after a note to those who only read the output of a command.
fn exit_code(inspection: &Inspection) -> u8 {
    if inspection.is_intact() {
        return EXIT_OK;
    }
    note(format_args!(
        "the log is damaged and this is what survives; `bsd-wal verify {}` says what does not",
        inspection.dir.display()
    ));
    EXIT_DAMAGED
}
