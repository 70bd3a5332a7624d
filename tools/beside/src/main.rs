//! `bsd-beside`: the closed loop of `bsd-bench` on queues of other systems, three nodes each. A client
//! puts as many jobs as the pipeline is deep, reserves as many, and deletes those: three commands a job.
//!
//! It starts no servers; `docs/dev/performance.md` says how. The clients are the libraries that programs
//! use (`async-nats`, `lapin`), on one thread, and each has a connection of its own.
//! Shapes, bodies, histograms and tables are those of `bsd-bench`, from its sources.

mod client;
mod nats;
mod rabbitmq;

#[allow(dead_code, reason = "bsd-bench uses the rest")]
#[path = "../../bsd-bench/src/latency.rs"]
mod latency;
#[allow(dead_code, reason = "bsd-bench uses the rest")]
#[path = "../../bsd-bench/src/options.rs"]
mod options;
#[allow(dead_code, reason = "bsd-bench uses the rest")]
#[path = "../../bsd-bench/src/report.rs"]
mod report;
#[allow(dead_code, reason = "bsd-bench uses the rest")]
#[path = "../../bsd-bench/src/usage.rs"]
mod usage;

use std::time::{Duration, Instant};

use bsd::random::Random;
use bytes::Bytes;
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use crate::client::{Client, Meter, Result};
use crate::latency::Latency;
use crate::options::{BodySizes, Shape};
use crate::report::{Table, count, median, time};

/// How long nodes may take to agree on a leader.
const PATIENCE: Duration = Duration::from_secs(120);
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// A load that is busy for this share of its time may be slower than the servers.
const BUSY_MAX: f64 = 0.95;

/// Measures NATS JetStream and RabbitMQ with the load of bsd-bench
#[derive(Debug, Parser)]
struct Args {
    system: System,
    /// Where a node listens for clients, HOST:PORT: it is made the leader of each queue
    leader: String,
    /// Connections and pipelined commands of each load
    #[arg(
        long,
        value_name = "NxD,…",
        value_delimiter = ',',
        default_value = "1x1,50x1,50x16"
    )]
    shapes: Vec<Shape>,
    /// How many rounds are measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// How long each load lasts
    #[arg(long, value_name = "S", default_value_t = 2)]
    seconds: u64,
    /// Bytes in the bodies, as for bsd-bench load
    #[arg(long, value_name = "SIZES", default_value = "100")]
    body: BodySizes,
    /// Processes of the nodes, whose processor time is counted
    #[arg(long, value_name = "PID,…", value_delimiter = ',')]
    pids: Vec<u32>,
    /// Measure no load: end this process, the leader, with SIGKILL, and wait for the next put
    #[arg(long, value_name = "PID", requires = "then")]
    kill: Option<i32>,
    /// The node that is asked after that, HOST:PORT
    #[arg(long, value_name = "ADDR")]
    then: Option<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum System {
    Nats,
    Rabbitmq,
}

/// One load, in all rounds.
struct Row {
    shape: Shape,
    rates: Vec<f64>,
    latency: Latency,
    /// Processor seconds of the nodes, each command.
    cpu: Vec<f64>,
}

fn main() -> Result<()> {
    bsd::rlimit::raise_descriptor_limit();
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        match args.system {
            System::Nats => run::<nats::Nats>(&args).await,
            System::Rabbitmq => run::<rabbitmq::RabbitMq>(&args).await,
        }
    })
}

async fn run<C: Client>(args: &Args) -> Result<()> {
    if let (Some(pid), Some(then)) = (args.kill, &args.then) {
        let silence = silence::<C>(&args.leader, pid, then).await?;
        println!(
            "{} from kill -9 of the leader to the next put",
            time(silence)
        );
        return Ok(());
    }
    let row = |shape: &Shape| Row {
        shape: *shape,
        rates: Vec::new(),
        latency: Latency::new(),
        cpu: Vec::new(),
    };
    let mut rows: Vec<Row> = args.shapes.iter().map(row).collect();
    let mut name = String::new();
    for round in 1..=args.rounds {
        for row in &mut rows {
            eprintln!("round {round} of {}: {}", args.rounds, row.shape);
            let queue = format!("bsd-{}-{round}-{}", std::process::id(), row.shape);
            name = patiently(|| C::make_queue(&args.leader, &queue)).await?;
            let measured = measure::<C>(args, &queue, row).await;
            C::remove_queue(&args.leader, &queue).await?;
            measured?;
        }
    }
    let mut table = Table::new(["load", "by", "commands/s", "50 %", "99 %", "cpu"]);
    for row in rows {
        let cpu = match args.pids[..] {
            [] => report::NONE.to_owned(),
            _ => time(Duration::from_secs_f64(median(&row.cpu))),
        };
        table.push([
            row.shape.to_string(),
            name.clone(),
            count(median(&row.rates)),
            time(row.latency.quantile(0.5)),
            time(row.latency.quantile(0.99)),
            cpu,
        ]);
    }
    println!(
        "Medians of {} rounds; cpu: of the nodes, each command\n\n{table}",
        args.rounds
    );
    Ok(())
}

/// One round of one load.
async fn measure<C: Client>(args: &Args, queue: &str, row: &mut Row) -> Result<()> {
    let meter = Meter::new();
    let mut clients = Vec::new();
    for _ in 0..row.shape.connections {
        clients.push(C::connect(&args.leader, queue, row.shape.pipeline).await?);
    }
    let mut tasks = JoinSet::new();
    for (nth, client) in clients.into_iter().enumerate() {
        let (sizes, meter) = (args.body.clone(), meter.clone());
        let random = Random::new(nth as u64);
        tasks.spawn_local(work(client, row.shape.pipeline, sizes, random, meter));
    }
    let own = std::process::id();
    let cpu = |pids: &[u32]| -> std::io::Result<Duration> {
        pids.iter().map(|pid| Ok(usage::usage(*pid)?.cpu)).sum()
    };
    until(Duration::from_millis(300), &mut tasks).await?;
    let (before, own_before, begin) = (cpu(&args.pids)?, cpu(&[own])?, Instant::now());
    meter.0.borrow_mut().is_measuring = true;
    until(Duration::from_secs(args.seconds), &mut tasks).await?;
    meter.0.borrow_mut().is_measuring = false;
    let elapsed = begin.elapsed().as_secs_f64();
    let used = cpu(&args.pids)?.saturating_sub(before).as_secs_f64();
    let busy = (cpu(&[own])?.saturating_sub(own_before)).as_secs_f64() / elapsed;
    if busy >= BUSY_MAX {
        eprintln!(
            "the load was busy for {:.0} % of its time: it may be the limit",
            busy * 100.0
        );
    }
    let tally = meter.0.borrow();
    row.rates.push(tally.commands as f64 / elapsed);
    row.cpu.push(used / tally.commands.max(1) as f64);
    row.latency.add(&tally.latency);
    Ok(())
}

/// Wait for this long; a client that fails ends it.
async fn until(wait: Duration, tasks: &mut JoinSet<Result<()>>) -> Result<()> {
    match timeout(wait, tasks.join_next()).await {
        Ok(Some(failed)) => failed?,
        _ => Ok(()),
    }
}

/// Jobs without end.
async fn work<C: Client>(
    mut client: C,
    pipeline: usize,
    sizes: BodySizes,
    mut random: Random,
    meter: Meter,
) -> Result<()> {
    let block = Bytes::from(vec![b'x'; sizes.max()]);
    loop {
        let bodies = (0..pipeline).map(|_| block.slice(..sizes.pick(&mut random)));
        client.put(bodies.collect(), &meter).await?;
        client.reserve(pipeline, &meter).await?;
        client.delete(&meter).await?;
    }
}

/// From the end of the leader to the next put that another node acknowledges.
async fn silence<C: Client>(leader: &str, pid: i32, then: &str) -> Result<Duration> {
    let queue = format!("bsd-{}", std::process::id());
    patiently(|| C::make_queue(leader, &queue)).await?;
    put::<C>(leader, &queue).await?;
    let pid = Pid::from_raw(pid).ok_or("no such process")?;
    kill_process(pid, Signal::KILL)?;
    let begin = Instant::now();
    patiently(|| put::<C>(then, &queue)).await?;
    let silence = begin.elapsed();
    patiently(|| C::remove_queue(then, &queue)).await?;
    Ok(silence)
}

async fn put<C: Client>(address: &str, queue: &str) -> Result<()> {
    let mut client = C::connect(address, queue, 0).await?;
    client
        .put(vec![Bytes::from_static(b"body")], &Meter::new())
        .await
}

/// Try until it succeeds. What is asked while no node leads may get no answer at all.
async fn patiently<T>(mut ask: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    loop {
        let answer = timeout(Duration::from_secs(10), ask()).await;
        match answer.unwrap_or_else(|late| Err(late.into())) {
            Err(_) if begin.elapsed() < PATIENCE => sleep(RETRY_EVERY).await,
            answer => return answer,
        }
    }
}
