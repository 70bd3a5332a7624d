//! `bsd-bench memory`: resident memory of a server for each ready job and each idle connection.

use std::io;
use std::thread;
use std::time::Duration;

use bsd::human::Size;
use bsd_tools::client::Client;
use serde_json::{Value, json};

use crate::control;
use crate::options::{BodySizes, Shape, parse_count};
use crate::plan::Plan;
use crate::process::check;
use crate::report::Table;
use crate::script::Workload;
use crate::servers::{Kind, Programs, Running};
use crate::usage::usage;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Ready jobs
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "1m")]
    jobs: u64,
    /// Bytes in the bodies, one row each
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "100,1000"
    )]
    bodies: Vec<BodySizes>,
    /// Idle connections; 0 leaves that row out
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    connections: usize,
    /// The servers to compare, as for compare
    #[arg(
        long,
        value_name = "KIND,…",
        value_delimiter = ',',
        default_value = "beanstalkd,beanstalkd-f50,bsd-memory,bsd-f0"
    )]
    servers: Vec<Kind>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    programs: Programs,
}

/// Connections that are there before those that are measured.
const FIRST: usize = 100;
/// How often it is looked whether memory still grows, and how many times at most.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOKS_MAX: usize = 25;

/// A row: the item, and the bytes of each server.
type Row = (String, Vec<f64>);

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    args.programs.prepare()?;
    let mut rows = Vec::new();
    for body in &args.bodies {
        let cost = |kind: &Kind| of_job(args, *kind, body);
        let costs = args.servers.iter().map(cost).collect::<io::Result<_>>()?;
        rows.push((format!("ready job of {body} B"), costs));
    }
    if args.connections > 0 {
        let cost = |kind: &Kind| of_connection(args, *kind);
        let costs = args.servers.iter().map(cost).collect::<io::Result<_>>()?;
        rows.push(("idle connection".into(), costs));
    }
    if args.json {
        println!("{}", to_json(args, &rows))
    } else {
        print(args, &rows)
    }
    Ok(())
}

fn of_job(args: &Args, kind: Kind, body: &BodySizes) -> io::Result<f64> {
    eprintln!("{kind}: {} jobs of {body} bytes", args.jobs);
    let flags = ["-z".to_owned(), body.max().max(65_535).to_string()];
    let server = Running::start(kind, &args.programs, &flags)?;
    let before = usage(server.pid())?.resident;
    let plan = Plan {
        jobs: Some(args.jobs),
        bodies: body.clone(),
        ..server.plan(Shape::FULL, Workload::Put)
    };
    plan.run()?;
    Ok(growth(&server, before)? / args.jobs as f64)
}

fn of_connection(args: &Args, kind: Kind) -> io::Result<f64> {
    eprintln!("{kind}: {} connections", args.connections);
    let server = Running::start(kind, &args.programs, &[])?;
    // What the first ones bring into memory, the pages of the program among it, is not theirs.
    let _first = idle_connections(&server, FIRST)?;
    let before = steady(&server)?;
    let _idle = idle_connections(&server, args.connections)?;
    Ok(growth(&server, before)? / args.connections as f64)
}

/// Resident bytes once they stay the same: threads begin after the server answers, and take some.
fn steady(server: &Running) -> io::Result<u64> {
    let mut last = usage(server.pid())?.resident;
    for _ in 0..LOOKS_MAX {
        check()?;
        thread::sleep(LOOK_EVERY);
        let now = usage(server.pid())?.resident;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}

/// Bytes that have become resident.
fn growth(server: &Running, before: u64) -> io::Result<f64> {
    Ok(usage(server.pid())?.resident as f64 - before as f64)
}

/// Connections that were used once, and are idle now.
pub(crate) fn idle_connections(server: &Running, count: usize) -> io::Result<Vec<Client>> {
    if server.speaks_tls() {
        let message = "idle connections are measured without TLS only: leave out +tls";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let connect = |_| {
        check()?;
        let mut client = control::connect(server.address)?;
        client.ask("use default")?;
        Ok(client)
    };
    (0..count).map(connect).collect()
}

fn print(args: &Args, rows: &[Row]) {
    let head = args.servers.iter().map(Kind::to_string);
    let mut table = Table::new(std::iter::once("resident memory".to_owned()).chain(head));
    for (name, costs) in rows {
        let costs = costs.iter().map(|cost| Size(*cost as u64).to_string());
        table.push(std::iter::once(name.clone()).chain(costs));
    }
    println!("{table}");
}

fn to_json(args: &Args, rows: &[Row]) -> Value {
    let mut list = Vec::new();
    for (name, costs) in rows {
        for (kind, cost) in args.servers.iter().zip(costs) {
            list.push(json!({ "of": name, "server": kind.to_string(), "bytes": cost }));
        }
    }
    Value::Array(list)
}
