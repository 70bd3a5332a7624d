//! `bsd-bench library`: threads that put into a queue of their own process, compared with the
//! server under the same loads, in the same run.
//!
//! Both are durable, put by put. The library saves the sockets; it pays for the hand-over to the
//! engine's thread and back, which wakes a thread per put.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bsd::{JobError, PutOptions, Queue, Session};
use serde_json::{Value, json};

use crate::load::parse_seconds;
use crate::options::Shape;
use crate::plan::Plan;
use crate::process::{check, now, sleep_until};
use crate::report::{Table, count, median, ratios};
use crate::script::Workload;
use crate::servers::{Kind, Policy, Program, Programs, Running};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Threads that each put one job at a time
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Threads that each put a batch at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    batch_threads: u16,
    /// Jobs of a batch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Bytes in the bodies
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    body: u16,
    /// How many rounds are measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each load lasts
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "2")]
    seconds: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    programs: Programs,
}

/// Jobs a second, in all rounds.
#[derive(Debug, Default)]
struct Rates {
    server: Vec<f64>,
    library: Vec<f64>,
}

impl Rates {
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.library.iter().zip(&self.server);
        pairs.map(|(library, server)| library / server).collect()
    }
}

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    args.programs.prepare()?;
    let (mut single, mut batches) = (Rates::default(), Rates::default());
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        single.server.push(server(args, 1)?);
        single.library.push(library(args, args.threads, 1)?);
        batches.server.push(server(args, 16)?);
        let batched = library(args, args.batch_threads, args.batch)?;
        batches.library.push(batched);
    }
    if args.json {
        println!("{}", to_json(args, &single, &batches))
    } else {
        print(args, &single, &batches)
    }
    Ok(())
}

/// The rate of the server with as many connections as there are threads.
fn server(args: &Args, pipeline: usize) -> io::Result<f64> {
    let kind = Kind {
        program: Program::Bsd,
        policy: Policy::Interval(0),
        tls: false,
    };
    let server = Running::start(kind, &args.programs, &[])?;
    let shape = Shape {
        connections: usize::from(args.threads),
        pipeline,
    };
    let plan = Plan {
        time: Some(args.seconds),
        bodies: crate::options::BodySizes::fixed(args.body.into()),
        ..server.plan(shape, Workload::Put)
    };
    Ok(plan.run()?.rate())
}

/// The rate of this many threads that each put this many jobs at a time.
fn library(args: &Args, threads: u16, batch: u16) -> io::Result<f64> {
    let dir = args.programs.directory()?;
    let queue = Queue::open(dir.path()).map_err(io::Error::other)?;
    let (done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let begin = now();
    let elapsed = std::thread::scope(|scope| {
        for _ in 0..threads {
            let session = queue.session();
            let (done, is_over) = (&done, &is_over);
            let body = vec![b'x'; usize::from(args.body)];
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    match put(&session, &body, batch) {
                        Ok(()) => done.fetch_add(batch.into(), Ordering::Relaxed),
                        Err(error) => return eprintln!("bsd-bench: {error}"),
                    };
                }
            });
        }
        let slept = sleep_until(begin + args.seconds);
        let counted = done.load(Ordering::Relaxed);
        let elapsed = now() - begin;
        is_over.store(true, Ordering::Relaxed);
        slept.map(|()| (counted, elapsed))
    });
    let (counted, elapsed) = elapsed?;
    check()?;
    queue.close().map_err(io::Error::other)?;
    Ok(counted as f64 / elapsed.as_secs_f64())
}

fn put(session: &Session, body: &[u8], batch: u16) -> Result<(), JobError> {
    if batch == 1 {
        let put = session.put("default", body, PutOptions::default());
        return put.wait().map(|_| ());
    }
    let bodies = (0..batch).map(|_| body);
    let put = session.put_many("default", bodies, PutOptions::default());
    put.wait()?.into_iter().try_for_each(|id| id.map(|_| ()))
}

fn names(args: &Args) -> [String; 2] {
    let Args {
        threads,
        batch_threads,
        batch,
        ..
    } = args;
    [
        format!("{threads} threads, one put at a time; server {threads}x1"),
        format!("{batch_threads} threads, {batch} puts at a time; server {threads}x16"),
    ]
}

fn print(args: &Args, single: &Rates, batches: &Rates) {
    println!(
        "Durable puts per second, median of {} rounds\n",
        args.rounds
    );
    let mut table = Table::new(["load", "server", "library", "library ÷ server"]);
    for (name, rates) in names(args).iter().zip([single, batches]) {
        table.push([
            name.clone(),
            count(median(&rates.server)),
            count(median(&rates.library)),
            ratios(&rates.ratios()),
        ]);
    }
    println!("{table}");
}

fn to_json(args: &Args, single: &Rates, batches: &Rates) -> Value {
    let names = names(args);
    let rows = names.iter().zip([single, batches]).map(|(name, rates)| {
        json!({
            "load": name,
            "server_per_second": rates.server,
            "library_per_second": rates.library,
            "ratio": median(&rates.ratios()),
        })
    });
    rows.collect()
}
