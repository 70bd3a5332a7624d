//! `bsd-ctl`: a queue from a shell, over beanstalkd's protocol, so with any server that speaks it;
//! and over bsd's API, for what the protocol has no command for.
//!
//! A thin shell over `bsd_tools::client`: it parses the command line, asks the server, prints, and
//! chooses the exit code. It reserves no job but where a command's help says so.

/// Meanings of the exit codes, for the end of each command's help.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0  done; or help or version shown
  1  nothing was found, or not all was done: no such job or tube, refused by the server or by you
  2  the server cannot be reached, or does not answer as one; or the output cannot be written
  5  the command line is wrong

With --json the output is JSON, with -q it is empty; what is said beside it goes to the standard
error. Where no one reads the output any more (tubes | head) a command ends by SIGPIPE, as cat does."
    };
}

mod api;
mod archive;
mod change;
mod clear;
mod client;
mod cluster;
mod confirm;
mod doctor;
mod drain;
mod history;
mod job;
mod json;
mod listing;
#[cfg(feature = "man")]
mod man;
mod many;
mod names;
mod note;
mod pause;
mod pick;
mod policy;
mod promote;
mod put;
mod schedule;
mod shown;
mod stats;
mod table;
mod tail;
mod tls;
mod top;
mod transfer;
mod tubes;
mod why;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use bsd::UsageError;
use bsd_tools::address::Address;
use bsd_tools::client::{Client, ClientError};
use bsd_tools::human;
use clap::{Parser, Subcommand};
use signal_hook::consts::SIGPIPE;

/// All is done.
const EXIT_OK: u8 = 0;
/// Nothing was found, or not all was done.
const EXIT_NOT_DONE: u8 = 1;
/// The server cannot be reached, or does not answer as one.
const EXIT_CANNOT: u8 = 2;
/// The command line is wrong.
const EXIT_USAGE: u8 = 5;

const AFTER_HELP: &str = concat!(
    "\
Jobs are looked at where they are. Only bury and release reserve one, where the server has no API.

Examples:
  bsd-ctl why mail
  bsd-ctl stats
  bsd-ctl -a 127.0.0.1:11300 tubes --sort buried
  bsd-ctl put mail 'to: ann'
  bsd-ctl peek mail
  bsd-ctl top --batch 1

",
    exit_codes!()
);

#[derive(Parser)]
#[command(
    name = "bsd-ctl",
    version,
    about = "Looks at and steers a server that speaks beanstalkd's protocol",
    after_help = AFTER_HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

#[derive(clap::Args)]
struct Global {
    #[arg(
        short,
        long,
        global = true,
        value_name = "ADDRESS",
        help = "The server: HOST, HOST:PORT, [IPV6]:PORT or unix:PATH",
        env = "BSD_CTL_ADDRESS",
        hide_env_values = true,
        default_value = "127.0.0.1:11300"
    )]
    address: Address,
    /// Wait no longer than this for a connection, and for each reply
    #[arg(long, global = true, value_name = "SECONDS", default_value = "10", value_parser = parse_timeout)]
    timeout: Duration,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Print errors only: the exit code says the rest
    #[arg(short, long, global = true)]
    quiet: bool,
}

fn parse_timeout(text: &str) -> Result<Duration, UsageError> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|seconds| (0.001..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "a number of seconds from 0.001 to 86400 is expected".into())
}

#[derive(Subcommand)]
enum Command {
    /// Say what is wrong now, why, and what to do
    Doctor(doctor::DoctorArgs),
    /// Say why the jobs of a tube are not done
    Why(why::WhyArgs),
    /// Show the server's counters
    Stats(stats::StatsArgs),
    /// Show all tubes, or those of a pattern, a line each
    Tubes(tubes::TubesArgs),
    /// Show the counters of one tube
    Tube(tubes::TubeArgs),
    /// Show one job: its state, its counters and its body
    Job(job::JobArgs),
    /// Show what has happened to a job
    History(history::HistoryArgs),
    /// Show which client has reserved a job
    Holder(why::HolderArgs),
    /// Take a job from the client that has reserved it
    Free(why::FreeArgs),
    /// Show the job of a tube that is next, without reserving it
    Peek(job::PeekArgs),
    /// Put a job into a tube, or a job for each line of the standard input
    Put(put::PutArgs),
    /// Write the jobs of a tube as lines of JSON, with all that is known of them
    Export(transfer::ExportArgs),
    /// Put the jobs of an export into a running server
    Import(transfer::ImportArgs),
    /// Make buried jobs of a tube ready; where none are buried, delayed ones
    Kick(change::KickArgs),
    /// Make jobs ready that are buried or delayed
    KickJob(change::KickJobArgs),
    /// Delete jobs, by their ids or by what they are
    Delete(change::DeleteArgs),
    /// Bury a job, or those of a tube
    Bury(change::BuryArgs),
    /// Make a job ready, or delay it, with another priority
    Release(change::ReleaseArgs),
    /// Delete all jobs of a tube that are in some state
    Clear(clear::ClearArgs),
    /// Stop the reserving of jobs from tubes for a while
    Pause(pause::PauseArgs),
    /// End the pause of tubes
    Unpause(pause::UnpauseArgs),
    /// Set, show and remove policies of tubes: retries, dead letters, bounds, rates
    Policy(policy::PolicyArgs),
    /// Set, show, run, pause and delete schedules: what is put by itself, and when
    Schedule(schedule::ScheduleArgs),
    /// List jobs of a tube
    Jobs(listing::JobsArgs),
    /// Look for jobs by a text in their bodies
    Search(listing::SearchArgs),
    /// Move the jobs of a tube to another one
    Move(many::MoveArgs),
    /// Send the dead letters of a tube back, and make its buried jobs ready, at a rate
    Redrive(many::RedriveArgs),
    /// List what the server does to many jobs at once
    Tasks(many::TasksArgs),
    /// End a task
    Cancel(many::CancelArgs),
    /// Bring back the jobs that a delete holds back
    Undo(many::UndoArgs),
    /// Have the server refuse puts, and wait until its jobs are done with
    Drain(drain::DrainArgs),
    /// Have the server take puts again
    Undrain(drain::UndrainArgs),
    /// Show the state of the log's archive, and its faults
    Archive(archive::ArchiveArgs),
    /// Tell the server that its log was backed up or verified
    Note(note::NoteArgs),
    /// Have a standby take over from the server that it follows
    Promote(promote::PromoteArgs),
    /// Show how far a standby is
    Standby(promote::StandbyArgs),
    /// Begin a cluster of servers, add and remove members, show the leader
    Cluster(cluster::ClusterArgs),
    /// List the clients that are connected
    Clients(listing::ClientsArgs),
    /// Show one client, or close its connection
    Client(client::ClientArgs),
    /// Show what happens to jobs, as it happens
    Tail(tail::TailArgs),
    /// Watch the server live: rates, and the busiest tubes
    Top(top::TopArgs),
    /// Write manual pages and shell completions
    #[cfg(feature = "man")]
    #[command(hide = true)]
    Man(man::ManArgs),
}

/// Why a command could not do its work.
#[derive(Debug)]
enum Failure {
    Client(ClientError),
    /// The output cannot be written; no one listens where the pipe is closed.
    Output(io::Error),
    /// The standard input, the terminal, a file or the API cannot be used.
    Input(String),
    /// Nothing was found, or it was refused.
    NotDone(String),
    /// A mistake in the command line that clap cannot see.
    Usage(String),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Client(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

/// Context of every command.
struct Context<'a> {
    global: &'a Global,
    out: &'a mut dyn Write,
}

impl Context<'_> {
    fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.global.address, self.global.timeout)
    }

    /// One JSON value for programs, or one sentence for people.
    fn tell(&mut self, json: serde_json::Value, people: impl fmt::Display) -> io::Result<()> {
        match self.global.json {
            true => writeln!(self.out, "{json}"),
            false => writeln!(self.out, "{people}"),
        }
    }
}

fn main() -> ExitCode {
    let cli = match human::parse::<Cli>(EXIT_USAGE) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let mut out = human::output(cli.global.quiet);
    let mut context = Context {
        global: &cli.global,
        out: &mut out,
    };
    let done = run(&cli.command, &mut context);
    let flushed = out.flush().map_err(Failure::Output);
    let done = done.and_then(|code| flushed.map(|()| code));
    ExitCode::from(done.unwrap_or_else(|failure| report(&failure)))
}

fn run(command: &Command, context: &mut Context<'_>) -> Result<u8, Failure> {
    match command {
        Command::Doctor(args) => doctor::run(args, context),
        Command::Why(args) => why::run(args, context),
        Command::Stats(args) => stats::run(args, context),
        Command::Tubes(args) => tubes::run(args, context),
        Command::Tube(args) => tubes::run_one(args, context),
        Command::Job(args) => job::run(args, context),
        Command::History(args) => history::run(args, context),
        Command::Holder(args) => why::run_holder(args, context),
        Command::Free(args) => why::run_free(args, context),
        Command::Peek(args) => job::run_peek(args, context),
        Command::Put(args) => put::run(args, context),
        Command::Export(args) => transfer::run_export(args, context),
        Command::Import(args) => transfer::run_import(args, context),
        Command::Kick(args) => change::run_kick(args, context),
        Command::KickJob(args) => change::run_kick_job(args, context),
        Command::Delete(args) => change::run_delete(args, context),
        Command::Bury(args) => change::run_bury(args, context),
        Command::Release(args) => change::run_release(args, context),
        Command::Clear(args) => clear::run(args, context),
        Command::Pause(args) => pause::run(args, context),
        Command::Unpause(args) => pause::run_unpause(args, context),
        Command::Policy(args) => policy::run(args, context),
        Command::Schedule(args) => schedule::run(args, context),
        Command::Jobs(args) => listing::run_jobs(args, context),
        Command::Search(args) => listing::run_search(args, context),
        Command::Move(args) => many::run_move(args, context),
        Command::Redrive(args) => many::run_redrive(args, context),
        Command::Tasks(args) => many::run_tasks(args, context),
        Command::Cancel(args) => many::run_cancel(args, context),
        Command::Undo(args) => many::run_undo(args, context),
        Command::Drain(args) => drain::run(args, context),
        Command::Undrain(args) => drain::run_undrain(args, context),
        Command::Archive(args) => archive::run(args, context),
        Command::Note(args) => note::run(args, context),
        Command::Promote(args) => promote::run(args, context),
        Command::Standby(args) => promote::show(args, context),
        Command::Cluster(args) => cluster::run(args, context),
        Command::Clients(args) => listing::run_clients(args, context),
        Command::Client(args) => client::run(args, context),
        Command::Tail(args) => tail::run(args, context),
        Command::Top(args) => top::run(args, context),
        #[cfg(feature = "man")]
        Command::Man(args) => man::run(args, context),
    }
}

fn report(failure: &Failure) -> u8 {
    match failure {
        Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            // Ends the process; an error where the system does not let it.
            let _ = signal_hook::low_level::emulate_default_handler(SIGPIPE);
            EXIT_CANNOT
        }
        Failure::Output(error) => {
            complain(format_args!(
                "the output cannot be written: {error}; send it elsewhere, and look with `bsd-ctl \
                 stats` what was done"
            ));
            EXIT_CANNOT
        }
        Failure::Client(error @ ClientError::Connect(..)) => {
            complain(format_args!("{error} with -a or BSD_CTL_ADDRESS"));
            EXIT_CANNOT
        }
        Failure::Client(error) => {
            complain(error);
            EXIT_CANNOT
        }
        Failure::Input(why) => {
            complain(why);
            EXIT_CANNOT
        }
        Failure::NotDone(why) => {
            complain(why);
            EXIT_NOT_DONE
        }
        Failure::Usage(why) => {
            complain(why);
            EXIT_USAGE
        }
    }
}

/// Say why something could not be done.
fn complain(what: impl fmt::Display) {
    // No one is left to tell where that cannot be written.
    let _ = writeln!(io::stderr(), "bsd-ctl: {what}");
}

/// Say something that is no error, beside the output.
fn note(what: impl fmt::Display) {
    if !human::is_quiet() {
        complain(what);
    }
}
