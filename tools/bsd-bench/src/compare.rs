//! `bsd-bench compare`: several servers under the same loads, in turn, in several rounds: medians,
//! ratios, processor time, and a picture.
//!
//! The servers take turns within each round, so that a slowdown of the machine affects all of them;
//! ratios are taken within a round, and the median of the rounds counts.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::latency::Latency;
use crate::load::{bottleneck, cpu_per_command, parse_seconds, quantiles_to_json};
use crate::options::{BodySizes, Shape};
use crate::plan::Plan;
use crate::plot;
use crate::process::usage;
use crate::report::{NONE, Table, bytes, count, median, median_time, range, ratio, time};
use crate::script::Workload;
use crate::servers::{Kind, Policy, Program, Programs, Running};

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
    /// What each connection does repeatedly
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

/// One load on one kind of server, in all rounds.
#[derive(Debug)]
pub(crate) struct Cell {
    /// Commands per second.
    pub(crate) rates: Vec<f64>,
    pub(crate) latency: Latency,
    cpu: Vec<Duration>,
}

impl Cell {
    fn new() -> Cell {
        Cell {
            rates: Vec::new(),
            latency: Latency::new(),
            cpu: Vec::new(),
        }
    }
}

/// All measurements: a row per load, a column per server.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) servers: Vec<Kind>,
    pub(crate) cells: Vec<Vec<Cell>>,
}

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    if args.workload == Workload::Drain {
        return Err(io::Error::other(
            "a server that has just started has nothing to drain",
        ));
    }
    args.programs.prepare()?;
    let mut results = Results::new(args);
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

/// The interesting ratios: which server to which.
const RATIOS: &[(&str, &str)] = &[
    ("bsd-f0", "beanstalkd-f0"),
    ("bsd-f0", "beanstalkd"),
    ("bsd-f0", "echo-sync"),
    ("bsd-f50", "beanstalkd-f50"),
    ("bsd-f50", "bsd-memory"),
    ("bsd-memory", "beanstalkd"),
    ("bsd-memory", "echo"),
];

impl Results {
    fn new(args: &Args) -> Results {
        let row = || args.servers.iter().map(|_| Cell::new()).collect();
        Results {
            shapes: args.shapes.clone(),
            servers: args.servers.clone(),
            cells: args.shapes.iter().map(|_| row()).collect(),
        }
    }

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
            let table = self.table(|cell| bytes(median(&cell.rates) * size));
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

    fn rates(&self) -> Table {
        self.table(|cell| count(median(&cell.rates)))
    }

    fn table(&self, show: impl Fn(&Cell) -> String) -> Table {
        let head = self.servers.iter().map(Kind::to_string);
        let mut table = Table::new(std::iter::once("load".to_owned()).chain(head));
        for (shape, row) in self.shapes.iter().zip(&self.cells) {
            table.push(std::iter::once(shape.to_string()).chain(row.iter().map(&show)));
        }
        table
    }

    fn ratios(&self) -> Table {
        let column = |name: &str| {
            self.servers
                .iter()
                .position(|kind| kind.to_string() == name)
        };
        let known = RATIOS
            .iter()
            .filter_map(|&(of, to)| Some((of, to, column(of)?, column(to)?)));
        let known: Vec<_> = known.collect();
        let head = known.iter().map(|(of, to, ..)| format!("{of} ÷ {to}"));
        let mut table = Table::new(std::iter::once("load".to_owned()).chain(head));
        for (shape, row) in self.shapes.iter().zip(&self.cells) {
            let cell = |&(_, _, of, to): &_| show_ratio(&row[of], &row[to]);
            table.push(std::iter::once(shape.to_string()).chain(known.iter().map(cell)));
        }
        table
    }

    fn to_json(&self) -> Value {
        let mut list = Vec::new();
        for (shape, row) in self.shapes.iter().zip(&self.cells) {
            for (server, cell) in self.servers.iter().zip(row) {
                list.push(json!({
                    "shape": shape.to_string(),
                    "server": server.to_string(),
                    "commands_per_second": median(&cell.rates),
                    "rounds": cell.rates,
                    "latency_us": quantiles_to_json(&cell.latency),
                    "server_cpu_us_per_command": median_time(&cell.cpu).as_nanos() as f64 / 1e3,
                }));
            }
        }
        Value::Array(list)
    }
}

/// The median of the ratios of each round.
fn show_ratio(of: &Cell, to: &Cell) -> String {
    let ratios: Vec<f64> = of
        .rates
        .iter()
        .zip(&to.rates)
        .map(|(of, to)| of / to)
        .collect();
    let (min, max) = range(&ratios);
    if ratios.is_empty() {
        NONE.into()
    } else {
        format!("{} ({min:.2}–{max:.2})", ratio(median(&ratios)))
    }
}

/// The colour of a server in a picture: one per program, lighter without a log.
pub(crate) fn colour(kind: Kind) -> &'static str {
    match (kind.program, kind.policy) {
        (Program::Beanstalkd, Policy::Memory) => "#f2b27a",
        (Program::Beanstalkd, Policy::Interval(0)) => "#b35806",
        (Program::Beanstalkd, _) => "#e08214",
        (Program::Bsd, Policy::Memory) => "#92c5de",
        (Program::Bsd, Policy::Interval(0)) => "#08519c",
        (Program::Bsd, _) => "#4393c3",
        (Program::Echo, Policy::Memory) => "#c7c7c7",
        (Program::Echo, _) => "#7f7f7f",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(rates: &[f64]) -> Cell {
        Cell {
            rates: rates.to_vec(),
            ..Cell::new()
        }
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // The machine was half as fast in the second round, for both.
        let (of, to) = (cell(&[200.0, 100.0, 180.0]), cell(&[100.0, 50.0, 100.0]));
        assert_eq!(show_ratio(&of, &to), "2.00× (1.80–2.00)");
    }

    #[test]
    fn only_ratios_of_servers_that_were_measured_are_shown() {
        let servers = ["bsd-f0", "echo-sync", "echo"].map(|name| name.parse().unwrap());
        let results = Results {
            shapes: vec![Shape::SINGLE],
            servers: servers.to_vec(),
            cells: vec![vec![cell(&[50.0]), cell(&[100.0]), cell(&[200.0])]],
        };
        let text = results.ratios().to_string();
        assert!(text.contains("| bsd-f0 ÷ echo-sync |") && text.contains("0.50× (0.50–0.50)"));
        assert!(!text.contains("beanstalkd"));
    }
}
