//! `bsd-bench compare`: several servers under the same loads, in turn, in several rounds: medians,
//! ratios, processor time, and a picture.
//!
//! The servers take turns within each round, so that a slowdown of the machine affects all of them;
//! ratios are taken within a round, and the median of the rounds counts.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bsd::human::Size;

use crate::load::{bottleneck, cpu_per_command, parse_seconds};
use crate::options::{BodySizes, Shape};
use crate::plan::Plan;
use crate::plot;
use crate::report::{median, median_time, time};
use crate::results::Results;
use crate::script::Workload;
use crate::servers::{Kind, Programs, Running};
use crate::usage::usage;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The servers to compare: beanstalkd, beanstalkd-fMS, beanstalkd-F, bsd-memory, bsd-fMS,
    /// bsd-F, echo (does nothing), echo-sync (one write and one sync a turn)
    #[arg(
        long,
        value_name = "KIND,…",
        value_delimiter = ',',
        default_value = "beanstalkd,beanstalkd-f50,beanstalkd-f0,bsd-memory,bsd-f50,bsd-f0,echo,echo-sync"
    )]
    servers: Vec<Kind>,
    /// Connections and pipelined commands of each load
    #[arg(
        long,
        value_name = "NxD,…",
        value_delimiter = ',',
        default_value = "1x1,50x1,50x16,1x100"
    )]
    shapes: Vec<Shape>,
    /// How many rounds are measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each load lasts
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "2")]
    seconds: Duration,
    /// How long each load runs before measuring: files are created, buffers grow
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "0.3")]
    warmup: Duration,
    /// Bytes in the bodies, as for load
    #[arg(long, value_name = "SIZES", default_value = "100")]
    body: BodySizes,
    /// Commands that each connection repeats
    #[arg(long, value_enum, default_value_t = Workload::Cycle)]
    workload: Workload,
    /// Draw bars and latency curves into an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    programs: Programs,
}

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    if args.workload == Workload::Drain {
        return Err(io::Error::other(
            "a server that has just started has nothing to drain",
        ));
    }
    args.programs.prepare()?;
    let mut results = Results::new(args.shapes.clone(), args.servers.clone());
    for round in 0..args.rounds {
        for row in 0..args.shapes.len() {
            for column in 0..args.servers.len() {
                let (shape, server) = (args.shapes[row], args.servers[column]);
                eprintln!("round {} of {}: {shape} {server}", round + 1, args.rounds);
                results.measure(args, row, column)?;
            }
        }
    }
    if args.json {
        println!("{}", results.to_json())
    } else {
        results.print(args)
    }
    match &args.plot {
        Some(path) => plot::write(path, &plot::comparison(&results)),
        None => Ok(()),
    }
}

impl Results {
    fn measure(&mut self, args: &Args, row: usize, column: usize) -> io::Result<()> {
        let flags = ["-z".to_owned(), args.body.max().max(65_535).to_string()];
        let server = Running::start(self.servers[column], &args.programs, &flags)?;
        let plan = Plan {
            time: Some(args.seconds),
            bodies: args.body.clone(),
            ..server.plan(self.shapes[row], args.workload)
        };
        Plan {
            time: Some(args.warmup),
            ..plan.clone()
        }
        .run()?;
        let before = usage(server.pid())?;
        let outcome = plan.run()?;
        let after = usage(server.pid())?;
        if outcome.is_bottleneck() {
            eprintln!("{}", bottleneck(&outcome));
        }
        let cell = &mut self.cells[row][column];
        cell.rates.push(outcome.rate());
        cell.cpu.push(cpu_per_command(&outcome, before, after));
        cell.latency.add(&outcome.latency);
        Ok(())
    }

    fn print(&self, args: &Args) {
        println!("Commands per second, median of {} rounds\n", args.rounds);
        println!("{}", self.rates());
        if args.workload == Workload::Put {
            let size = args.body.mean();
            let table = self.table(|cell| Size((median(&cell.rates) * size) as u64).to_string());
            println!("Bytes of bodies per second\n\n{table}");
        }
        println!(
            "Ratios: median (lowest–highest of the rounds)\n\n{}",
            self.ratios()
        );
        let p99 = self.table(|cell| time(cell.latency.quantile(0.99)));
        println!("99 % of the commands were answered within\n\n{p99}");
        let cpu = self.table(|cell| time(median_time(&cell.cpu)));
        println!("Processor time of the server per command\n\n{cpu}");
    }
}
