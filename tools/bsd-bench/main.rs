//! `bsd-bench`: how many commands a second a server does, and how long one takes.
//!
//! `load` puts a load on a server that runs; `compare` starts servers itself, in turn, and prints
//! medians and ratios. The load is a closed loop: each connection sends a batch of commands, waits
//! for all the replies, and sends the next batch. One thread, one system call a batch, and no
//! allocation a command, so that the server is measured and not this.
//!
//! Only ratios of one run mean anything: the rates of two machines, or of two days, do not compare.

mod compare;
mod histogram;
mod load;

use std::fmt;
use std::io;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::load::{Load, Plan};

#[derive(Parser)]
#[command(version, about = "Measures a server that speaks beanstalkd's protocol")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put a load on a server that is running
    Load(LoadArgs),
    /// Start beanstalkd and bsd in turn, load each, and compare
    Compare(CompareArgs),
}

#[derive(Args)]
struct LoadArgs {
    /// Where the server listens
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11300")]
    addr: String,
    #[command(flatten)]
    volume: Volume,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 50)]
    connections: usize,
    /// Commands that each connection has under way at a time
    #[arg(long, value_name = "D", default_value_t = 1)]
    pipeline: usize,
    /// What each connection does over and over
    #[arg(long, value_enum, default_value_t = Workload::Cycle)]
    workload: Workload,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct CompareArgs {
    /// The program to compare with
    #[arg(long, value_name = "PATH", default_value = "beanstalkd")]
    beanstalkd: PathBuf,
    /// The program to be compared
    #[arg(long, value_name = "PATH", default_value = "target/release/bsd-server")]
    bsd: PathBuf,
    #[command(flatten)]
    volume: Volume,
    /// Connections and pipelined commands of each run
    #[arg(
        long,
        value_name = "NxD",
        value_delimiter = ',',
        value_parser = parse_shape,
        default_value = "1x1,50x1,50x16,1x100"
    )]
    shapes: Vec<Shape>,
    /// How often everything is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Where the logs are written, in a directory of their own: use the disk that matters
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Print one line of JSON for each kind of server and shape
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Copy)]
struct Volume {
    /// Stop after so many jobs [default: go by time]
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    jobs: Option<u64>,
    /// Stop after so many seconds
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// Bytes in the body of a job
    #[arg(long, value_name = "B", default_value_t = 100)]
    body: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// put, reserve, delete
    Cycle,
    /// put, and leave the jobs there
    Put,
    /// reserve and delete what is there, until nothing is
    Drain,
}

/// Connections × pipelined commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    connections: usize,
    pipeline: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.connections, self.pipeline)
    }
}

fn parse_shape(text: &str) -> Result<Shape, String> {
    let (connections, pipeline) = text.split_once('x').ok_or("NxD is expected, as 50x16")?;
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    match (number(connections), number(pipeline)) {
        (Some(connections), Some(pipeline)) => Ok(Shape {
            connections,
            pipeline,
        }),
        _ => Err("NxD is expected, as 50x16".into()),
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Load(args) => run_load(&args),
        Command::Compare(args) => compare::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bsd-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_load(args: &LoadArgs) -> io::Result<()> {
    let address = args.addr.to_socket_addrs()?.next();
    let plan = Plan {
        address: address.ok_or_else(|| io::Error::other("the name has no address"))?,
        shape: Shape {
            connections: args.connections.max(1),
            pipeline: args.pipeline.max(1),
        },
        volume: args.volume,
        workload: args.workload,
    };
    let outcome = Load::new(&plan)?.run()?;
    if args.json {
        println!("{}", outcome.to_json())
    } else {
        println!("{outcome}")
    }
    Ok(())
}

/// The clock of a program that measures time.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_two_numbers() {
        assert_eq!(
            parse_shape("50x16"),
            Ok(Shape {
                connections: 50,
                pipeline: 16
            })
        );
        for wrong in ["50", "0x1", "1x0", "x", "50x16x2", "-1x1"] {
            assert!(parse_shape(wrong).is_err(), "{wrong}");
        }
    }
}
