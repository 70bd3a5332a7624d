//! `bsd-bench scale`: the cost of each command as the queue, the tubes or the connections grow.
//!
//! One connection sends batches of a hundred commands of one kind; a command's cost is a hundredth
//! of the time of a batch, so that it shows the server's work and not the round trip. Priorities
//! are random: any job may be the next, so memory is accessed in random order.

use std::fmt;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use crate::load::parse_seconds;
use crate::memory::idle_connections;
use crate::options::{BodySizes, Shape, parse_count};
use crate::plan::Plan;
use crate::report::{Table, chosen, median_time, ratio, time};
use crate::script::Workload;
use crate::servers::{Kind, Programs, Running};
use crate::wire::Op;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Ready jobs, in growing numbers; 100m needs some ten gigabytes of memory and disk
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = parse_count,
        default_value = "10k,100k,1m,10m"
    )]
    jobs: Vec<u64>,
    /// Tubes with a job in each
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = parse_count,
        default_value = "1,1k,20k"
    )]
    tubes: Vec<u64>,
    /// Idle connections
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = parse_count,
        default_value = "0,1k,10k"
    )]
    connections: Vec<u64>,
    /// The quantities to grow
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "jobs,tubes,connections"
    )]
    axes: Vec<Axis>,
    /// Bytes in the bodies, as for load
    #[arg(long, value_name = "SIZES", default_value = "100")]
    body: BodySizes,
    /// The servers to compare, as for compare
    #[arg(
        long,
        value_name = "KIND,…",
        value_delimiter = ',',
        default_value = "beanstalkd,bsd-memory,bsd-f50,bsd-f0"
    )]
    servers: Vec<Kind>,
    /// How long each size is measured, each time
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "1")]
    seconds: Duration,
    /// How often each size is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    programs: Programs,
}

/// The quantity that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Axis {
    Jobs,
    Tubes,
    Connections,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Axis::Jobs => "ready jobs",
            Axis::Tubes => "tubes",
            Axis::Connections => "idle connections",
        })
    }
}

/// The commands that are measured.
const OPS: [(Op, &str); 3] = [
    (Op::Put, "put"),
    (Op::Reserve, "reserve"),
    (Op::Delete, "delete"),
];

/// A batch has a hundred commands of one kind.
const BATCHES: Shape = Shape {
    connections: 1,
    pipeline: 100,
};
const PRIORITIES: u64 = 1 << 20;

/// The cost of each of [`OPS`].
type Costs = [Duration; OPS.len()];

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    args.programs.prepare()?;
    let mut json = Vec::new();
    for &axis in &args.axes {
        let sizes = match axis {
            Axis::Jobs => &args.jobs,
            Axis::Tubes => &args.tubes,
            Axis::Connections => &args.connections,
        };
        let measure = |kind: &Kind| measure(args, axis, sizes, *kind);
        let columns: Vec<Vec<Costs>> =
            args.servers.iter().map(measure).collect::<Result<_, _>>()?;
        if args.json {
            json.extend(to_json(args, axis, sizes, &columns))
        } else {
            println!("{}", table(args, axis, sizes, &columns))
        }
    }
    if args.json {
        println!("{}", Value::Array(json));
    }
    Ok(())
}

/// The costs of one server at each size.
fn measure(args: &Args, axis: Axis, sizes: &[u64], kind: Kind) -> io::Result<Vec<Costs>> {
    let mut server = start(args, kind)?;
    let mut filled = 0;
    let mut costs = Vec::new();
    for &size in sizes {
        eprintln!("{kind}: {} {axis}", chosen(size));
        if axis != Axis::Jobs {
            server = start(args, kind)?;
        }
        let _idle = match axis {
            Axis::Jobs => {
                fill(args, &server, size.saturating_sub(filled), 0)?;
                filled = filled.max(size);
                Vec::new()
            }
            Axis::Tubes => {
                fill(args, &server, size, size as usize)?;
                Vec::new()
            }
            Axis::Connections => idle_connections(&server, size as usize)?,
        };
        costs.push(cost(args, &server)?);
    }
    Ok(costs)
}

fn start(args: &Args, kind: Kind) -> io::Result<Running> {
    let flags = ["-z".to_owned(), args.body.max().max(65_535).to_string()];
    Running::start(kind, &args.programs, &flags)
}

fn fill(args: &Args, server: &Running, jobs: u64, tubes: usize) -> io::Result<()> {
    let plan = Plan {
        jobs: Some(jobs),
        tubes,
        bodies: args.body.clone(),
        priorities: PRIORITIES,
        ..server.plan(Shape::FULL, Workload::Put)
    };
    plan.run().map(drop)
}

/// The median of several runs.
fn cost(args: &Args, server: &Running) -> io::Result<Costs> {
    let plan = Plan {
        time: Some(args.seconds),
        bodies: args.body.clone(),
        priorities: PRIORITIES,
        ..server.plan(BATCHES, Workload::Cycle)
    };
    let outcomes = (0..args.rounds)
        .map(|_| plan.run())
        .collect::<io::Result<Vec<_>>>()?;
    Ok(OPS.map(|(op, _)| {
        let each = outcomes.iter().map(|outcome| outcome.total(op).each());
        median_time(&each.collect::<Vec<_>>())
    }))
}

/// Each cost, and its ratio to that at the first size.
fn table(args: &Args, axis: Axis, sizes: &[u64], columns: &[Vec<Costs>]) -> Table {
    let head = args.servers.iter().map(Kind::to_string);
    let mut table = Table::new(std::iter::once(axis.to_string()).chain(head));
    for (index, &size) in sizes.iter().enumerate() {
        for (op, (_, name)) in OPS.iter().enumerate() {
            let cell = |column: &Vec<Costs>| {
                let (first, this) = (column[0][op], column[index][op]);
                let times = this.as_secs_f64() / first.as_secs_f64();
                format!("{} ({})", time(this), ratio(times))
            };
            let name = format!("{}: {name}", chosen(size));
            table.push(std::iter::once(name).chain(columns.iter().map(cell)));
        }
    }
    table
}

fn to_json(args: &Args, axis: Axis, sizes: &[u64], columns: &[Vec<Costs>]) -> Vec<Value> {
    let mut list = Vec::new();
    for (kind, column) in args.servers.iter().zip(columns) {
        for (size, costs) in sizes.iter().zip(column) {
            for ((_, name), cost) in OPS.iter().zip(costs) {
                list.push(json!({
                    "server": kind.to_string(),
                    "axis": axis.to_string(),
                    "size": size,
                    "command": name,
                    "nanoseconds": cost.as_nanos() as u64,
                }));
            }
        }
    }
    list
}
