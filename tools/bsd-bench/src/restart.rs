//! `bsd-bench restart`: how long a killed server takes to serve again, and how long it takes only
//! to read as many bytes of the same files as the server has read.

use std::io;
use std::time::Duration;

use bsd::human::Size;
use bsd::storage::RealFs;
use bsd::storage::disk::ReadFs;
use serde_json::{Value, json};

use crate::control;
use crate::options::{BodySizes, Shape, parse_count};
use crate::plan::Plan;
use crate::process::now;
use crate::report::{Table, median_time, ratio, time};
use crate::script::Workload;
use crate::servers::{Kind, Programs, Running};
use crate::usage::bytes_read;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Ready jobs in the log
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "1m")]
    jobs: u64,
    /// Bytes in the bodies, as for load
    #[arg(long, value_name = "SIZES", default_value = "100")]
    body: BodySizes,
    /// The servers to compare, as for compare
    #[arg(
        long,
        value_name = "KIND,…",
        value_delimiter = ',',
        default_value = "beanstalkd-f50,bsd-f0"
    )]
    servers: Vec<Kind>,
    /// How often each is killed; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Take the log out of the system's cache first
    #[arg(long)]
    cold: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    programs: Programs,
}

/// The measurements of one server.
#[derive(Debug)]
struct Row {
    kind: Kind,
    serving: Duration,
    reading: Duration,
    /// Bytes that the server has read at its last start.
    read: u64,
    /// Ready jobs after the last start.
    found: u64,
}

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    args.programs.prepare()?;
    let durable = |kind: &&Kind| kind.is_durable() && !kind.is_echo();
    let kinds = args.servers.iter().filter(durable);
    let rows: Vec<Row> = kinds
        .map(|kind| measure(args, *kind))
        .collect::<Result<_, _>>()?;
    if args.json {
        println!("{}", rows.iter().map(to_json).collect::<Value>())
    } else {
        print(args, &rows)
    }
    Ok(())
}

fn measure(args: &Args, kind: Kind) -> io::Result<Row> {
    eprintln!("{kind}: {} jobs of {} bytes", args.jobs, args.body);
    let flags = ["-z".to_owned(), args.body.max().max(65_535).to_string()];
    let mut server = Running::start(kind, &args.programs, &flags)?;
    let plan = Plan {
        jobs: Some(args.jobs),
        bodies: args.body.clone(),
        ..server.plan(Shape::FULL, Workload::Put)
    };
    plan.run()?;
    let (mut serving, mut reading, mut read) = (Vec::new(), Vec::new(), 0);
    for _ in 0..args.rounds {
        server.kill();
        evict(args, &server)?;
        serving.push(server.restart_after_kill()?);
        read = bytes_read(server.pid())?;
        evict(args, &server)?;
        reading.push(read_files(&server, read)?);
    }
    let stats = control::connect(server.address)?.stats()?;
    Ok(Row {
        kind,
        serving: median_time(&serving),
        reading: median_time(&reading),
        read,
        found: stats.number("current-jobs-ready"),
    })
}

/// Read `wanted` bytes of the server's files, like `cat`.
fn read_files(server: &Running, wanted: u64) -> io::Result<Duration> {
    let files = server.files()?;
    let mut buffer = vec![0; 1 << 20];
    let mut left = wanted;
    let begin = now();
    for path in files {
        let file = RealFs.open_read(&path)?;
        let mut at = 0;
        while left > 0 {
            let size = buffer.len().min(left as usize);
            match file.read_at(&mut buffer[..size], at)? as u64 {
                0 => break,
                count => (at, left) = (at + count, left - count),
            }
        }
    }
    Ok(begin.elapsed())
}

/// Remove the server's files from the system's cache, if requested. Only what is on the disk can be
/// removed: sync first.
fn evict(args: &Args, server: &Running) -> io::Result<()> {
    for path in server.files()?.iter().filter(|_| args.cold) {
        let file = std::fs::OpenOptions::new().read(true).open(path)?;
        file.sync_all()?;
        forget(&file)?;
    }
    Ok(())
}

#[cfg(not(target_vendor = "apple"))]
fn forget(file: &std::fs::File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(
        file,
        0,
        None,
        rustix::fs::Advice::DontNeed,
    )?)
}

#[cfg(target_vendor = "apple")]
fn forget(_: &std::fs::File) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this system cannot take one file out of its cache; run it without --cold",
    ))
}

fn print(args: &Args, rows: &[Row]) {
    let head = [
        "server",
        "serves after",
        "has read",
        "reading takes",
        "ratio",
        "jobs",
    ];
    let mut table = Table::new(head);
    for row in rows {
        let times = row.serving.as_secs_f64() / row.reading.as_secs_f64();
        table.push([
            row.kind.to_string(),
            time(row.serving),
            Size(row.read).to_string(),
            time(row.reading),
            ratio(times),
            format!("{} of {}", row.found, args.jobs),
        ]);
    }
    let cache = if args.cold { "cold" } else { "warm" };
    println!(
        "Restart after kill -9, cache {cache}, median of {}\n\n{table}",
        args.rounds
    );
}

fn to_json(row: &Row) -> Value {
    json!({
        "server": row.kind.to_string(),
        "serving_seconds": row.serving.as_secs_f64(),
        "reading_seconds": row.reading.as_secs_f64(),
        "read_bytes": row.read,
        "jobs": row.found,
    })
}
