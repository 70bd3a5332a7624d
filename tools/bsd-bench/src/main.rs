//! `bsd-bench`: how many commands per second a server of beanstalkd's protocol runs, how long one
//! command takes, what it costs, and how long one client can delay another.
//!
//! | where | what |
//! |---|---|
//! | `load` | a load on a server that runs |
//! | `compare` | several servers side by side under the same loads |
//! | `stall` | the longest wait of one client while the server does one heavy thing |
//! | `cluster` | three servers as one beside a single one: rates, time without a leader, catching up |
//! | `http`, `site` | what looking at a server over HTTP costs its clients; its pages as a client asks for them |
//! | `library` | threads that put into a queue in their own process, beside the server |
//! | `instructions` | the instructions that a server runs for one command |
//! | `restart`, `memory`, `scale` | time to serve again; bytes a job; cost as the queue grows |
//! | `echo` | a server that does nothing: how fast any server could be |
//! | `plan`, `driver`, `tally` | what a load is to be; the loop that runs it; what it has shown |
//! | `worker`, `pace` | one connection of a load; the schedule of an open loop |
//! | `script`, `share` | what is sent when; each connection's part of the whole |
//! | `connection`, `wire` | sockets; the bytes of commands and replies |
//! | `servers`, `control` | starting and ending servers; asking them one thing |
//! | `process`, `usage` | time, signals, processors; what a process has used |
//! | `latency`, `report`, `plot` | histograms; tables; pictures |
//! | `options` | values of flags |
//!
//! Compare only ratios of one run: the rates of two machines, or of two days, are not comparable.

mod channel;
mod cluster;
mod compare;
mod connection;
mod control;
mod driver;
mod echo;
mod http;
mod instructions;
mod latency;
mod library;
mod limit;
mod load;
mod memory;
mod options;
mod pace;
mod plan;
mod plot;
mod process;
mod replicate;
mod report;
mod restart;
mod results;
mod scale;
mod script;
mod servers;
mod share;
mod site;
mod stall;
mod tally;
mod usage;
mod wire;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    version,
    about = "Measures servers that speak beanstalkd's protocol",
    after_help = "Counts take k or m (thousands), sizes in bytes k, m or g (powers of 1024)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put a load on a running server
    Load(load::Args),
    /// Start several servers in turn, load each, and compare
    Compare(compare::Args),
    /// How long one client waits while the server does one heavy task
    Stall(stall::Args),
    /// How long a killed server takes to serve again
    Restart(restart::Args),
    /// Resident memory for each ready job and each idle connection
    Memory(memory::Args),
    /// Cost of each command as jobs, tubes and connections grow
    Scale(scale::Args),
    /// How many instructions a server runs for one command (needs valgrind)
    Instructions(instructions::Args),
    /// Three members of a cluster beside one server alone
    Cluster(cluster::Args),
    /// Threads that put into a queue in their own process, compared with the server
    Library(library::Args),
    /// The cost of HTTP for a server's clients, and the time of its answers
    Http(http::Args),
    /// A server that parses and answers, and does nothing else
    Echo(echo::Args),
    /// A node of a cluster that replicates entries and does nothing with them
    Replicate(replicate::Args),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let done = process::catch_interrupts().and_then(|()| match command {
        Command::Load(args) => load::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Stall(args) => stall::run(&args),
        Command::Restart(args) => restart::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Instructions(args) => instructions::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Library(args) => library::run(&args),
        Command::Http(args) => http::run(&args),
        Command::Echo(args) => echo::run(&args),
        Command::Replicate(args) => replicate::run(&args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bsd-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_contradict_each_other_nowhere() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_that_exclude_each_other_are_refused() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("bsd-bench load --jobs 1k --shape 50x16 --body 1..9").is_ok());
        assert!(parse("bsd-bench compare --servers echo,bsd-f0 --shapes 1x1,2x2").is_ok());
        for wrong in [
            "bsd-bench",
            "bsd-bench load --jobs 1 --seconds 1",
            "bsd-bench load --rate 0",
            "bsd-bench load --rate -1",
            "bsd-bench load --seconds nan",
            "bsd-bench compare --servers redis",
            "bsd-bench stall --cases nothing",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
