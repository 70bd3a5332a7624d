//! `bsd-bench http`: what looking at a server over HTTP costs its clients, and how long the looks
//! take.
//!
//! | part | what is measured |
//! |---|---|
//! | `watched` | puts at 50 × 1, durable: without HTTP, with it, and with a scrape a second, an open console and a search through all jobs |
//! | `scrape` | `/metrics` with very many tubes, and what it takes of a turn of the loop |
//! | `clear` | the longest wait of another client while a tube is cleared |
//! | `pages` | every page and every look of the API with very many jobs and tubes, and the memory that they take |

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bsd::human::Size;
use clap::ValueEnum;
use serde_json::json;

use crate::latency::Latency;
use crate::load::parse_seconds;
use crate::options::{Shape, parse_count};
use crate::plan::Plan;
use crate::process::{now, sleep_until};
use crate::report::{Table, chosen, count, median, median_time, ratios, time};
use crate::script::Workload;
use crate::servers::{Kind, Policy, Program, Programs, Running};
use crate::site::{Site, Watchers};
use crate::usage::usage;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The parts to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "watched,scrape,clear,pages"
    )]
    parts: Vec<Part>,
    /// Jobs that are there: that a search goes through, and that are cleared
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "1m")]
    jobs: u64,
    /// Jobs that are there while pages are asked for
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "10m")]
    page_jobs: u64,
    /// Tubes that are there while pages are asked for, and in a scrape
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    tubes: usize,
    /// How many rounds are measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each load lasts
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "3")]
    seconds: Duration,
    #[command(flatten)]
    programs: Programs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The cost of being looked at
    Watched,
    /// A scrape with very many tubes
    Scrape,
    /// A tube is cleared
    Clear,
    /// Every page and every look of the API
    Pages,
}

/// The load beside which someone looks.
const PUTS: Shape = Shape {
    connections: 50,
    pipeline: 1,
};
/// How the jobs that are there were put: so many at a time that it does not take long.
const FILL: Shape = Shape {
    connections: 4,
    pipeline: 256,
};
const DURABLE: Kind = Kind {
    program: Program::Bsd,
    policy: Policy::Interval(0),
    tls: false,
};
/// A body that no job has.
const NOWHERE: &str = "a text that no body has";

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    args.programs.prepare()?;
    for part in &args.parts {
        match part {
            Part::Watched => watched(args)?,
            Part::Scrape => scrape(args)?,
            Part::Clear => clear(args)?,
            Part::Pages => pages(args)?,
        }
    }
    Ok(())
}

/// A server with HTTP, and its site.
fn start(args: &Args) -> io::Result<(Running, Site)> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let flags = ["--http".to_owned(), address.to_string()];
    let tubes = ["--http-tubes-max".to_owned(), args.tubes.to_string()];
    let server = Running::start(DURABLE, &args.programs, &[flags, tubes].concat())?;
    Ok((server, Site::new(address)))
}

/// Put this many jobs, spread over this many tubes; into "default" without tubes.
fn fill(server: &Running, jobs: u64, tubes: usize) -> io::Result<()> {
    eprintln!("{} jobs are put", chosen(jobs));
    // A batch goes into one tube.
    let in_a_tube = jobs.div_ceil(tubes.max(1) as u64);
    let shape = Shape {
        pipeline: FILL.pipeline.min(in_a_tube as usize),
        ..FILL
    };
    let plan = Plan {
        jobs: Some(jobs),
        tubes,
        priorities: 1000,
        ..server.plan(shape, Workload::Put)
    };
    plan.run().map(drop)
}

/// How long another client waits, put by put, for this long.
fn probe(server: &Running, time: Duration) -> io::Result<Latency> {
    let plan = Plan {
        jobs: Some(1),
        probe: true,
        linger: time,
        ..server.plan(Shape::SINGLE, Workload::Cycle)
    };
    Ok(plan.run()?.probe)
}

fn watched(args: &Args) -> io::Result<()> {
    let off = ["--http".to_owned(), "off".to_owned()];
    let off = Running::start(DURABLE, &args.programs, &off)?;
    let (on, site) = start(args)?;
    fill(&off, args.jobs, 0)?;
    fill(&on, args.jobs, 0)?;
    let mut felt = [const { Vec::<(f64, Latency)>::new() }; 3];
    let mut seen = [0; 3];
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        felt[0].push(puts(args, &off)?);
        felt[1].push(puts(args, &on)?);
        let watchers = Watchers::start(
            &site,
            &json!({"filter": {
                "tube": "default",
                "contains": {"encoding": "text", "data": NOWHERE},
            }}),
        );
        felt[2].push(puts(args, &on)?);
        let of_round = watchers.seen.clone();
        drop(watchers);
        let counts = of_round.iter().map(|count| count.load(Ordering::Relaxed));
        seen.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count);
    }
    println!(
        "Puts at {PUTS}, durable, with {} jobs there, median of {} rounds\n",
        chosen(args.jobs),
        args.rounds
    );
    let mut table = Table::new(["HTTP", "puts/s", "÷ off", "p50", "p99", "p99.9"]);
    for (name, rounds) in ["off", "on", "watched"].into_iter().zip(&felt) {
        let rates: Vec<f64> = rounds.iter().map(|(rate, _)| *rate).collect();
        let pairs = rates.iter().zip(&felt[0]);
        let of_off: Vec<f64> = pairs.map(|(rate, (off, _))| rate / off).collect();
        let quantile = |at| {
            let times: Vec<_> = rounds
                .iter()
                .map(|(_, latency)| latency.quantile(at))
                .collect();
            time(median_time(&times))
        };
        table.push([
            name.to_owned(),
            count(median(&rates)),
            ratios(&of_off),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
        ]);
    }
    println!("{table}");
    let [scrapes, events, searches] = seen;
    println!(
        "Watched by {scrapes} scrapes, {events} events of a console, and {searches} searches.\n"
    );
    Ok(())
}

fn puts(args: &Args, server: &Running) -> io::Result<(f64, Latency)> {
    let plan = Plan {
        time: Some(args.seconds),
        tubes: 1,
        ..server.plan(PUTS, Workload::Put)
    };
    let outcome = plan.run()?;
    Ok((outcome.rate(), outcome.latency))
}

/// Turns of the loop that HTTP has had a part of, and those of which it had more than a
/// millisecond.
fn turns(site: &Site) -> io::Result<(f64, f64)> {
    let all = site.metric("bsd_loop_calls_seconds_count")?;
    let short = site.metric("bsd_loop_calls_seconds_bucket{le=\"0.001\"}")?;
    Ok((all, all - short))
}

fn scrape(args: &Args) -> io::Result<()> {
    let (server, site) = start(args)?;
    fill(&server, args.tubes as u64 * 10, args.tubes)?;
    let (all_before, long_before) = turns(&site)?;
    let duration = args.seconds * args.rounds;
    let idle = probe(&server, duration)?;
    let (times, size, felt) = std::thread::scope(|scope| {
        let felt = scope.spawn(|| probe(&server, duration));
        let (mut times, mut size) = (Vec::new(), 0);
        while !felt.is_finished() {
            sleep_until(now() + Duration::from_millis(1100))?;
            let (page, took) = site.get("/metrics")?;
            times.push(took);
            size = page.len();
        }
        let felt = felt
            .join()
            .map_err(|_| io::Error::other("the probe panicked"))?;
        io::Result::Ok((times, size, felt?))
    })?;
    let (all, long) = turns(&site)?;
    let longest = times.iter().max().copied().unwrap_or_default();
    println!(
        "A scrape with {} tubes, {}: {} in the middle, {} at most, of {}.\n\
         {} turns of the loop had a part of it, {} of them more than 1 ms. Another client \
         waited {} at most, and {} with nothing else to do.\n",
        args.tubes,
        Size(size as u64),
        time(median_time(&times)),
        time(longest),
        times.len(),
        all - all_before,
        long - long_before,
        time(felt.max()),
        time(idle.max()),
    );
    Ok(())
}

fn clear(args: &Args) -> io::Result<()> {
    let (mut times, mut rounds) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        let (server, site) = start(args)?;
        fill(&server, args.jobs, 1)?;
        let idle = probe(&server, args.seconds)?;
        let is_over = AtomicBool::new(false);
        let begin = now();
        let felt = std::thread::scope(|scope| {
            let task = scope.spawn(|| {
                let states = json!({"states": ["ready"]});
                let path = "/api/v1/tubes/t0/clear";
                let done = site.run_task(path, "/api/v1/tasks", &states, &is_over);
                times.push(now() - begin);
                done
            });
            let mut felt = Latency::new();
            while !task.is_finished() {
                felt.add(&probe(&server, Duration::from_millis(200))?);
            }
            let task = task
                .join()
                .map_err(|_| io::Error::other("the task panicked"))?;
            eprintln!("{}", task?.0);
            io::Result::Ok(felt)
        })?;
        rounds.push([idle, felt]);
    }
    println!(
        "A tube of {} jobs is cleared in {}; another client meanwhile (medians of {} rounds)\n",
        chosen(args.jobs),
        time(median_time(&times)),
        args.rounds
    );
    let mut table = Table::new(["meanwhile", "p50", "p99", "p99.9", "longest"]);
    for (at, name) in ["nothing", "clear"].into_iter().enumerate() {
        let quantile = |fraction| {
            let times = rounds.iter().map(|round| round[at].quantile(fraction));
            time(median_time(&times.collect::<Vec<_>>()))
        };
        let row = [0.5, 0.99, 0.999, 1.0].map(quantile);
        table.push(std::iter::once(name.to_owned()).chain(row));
    }
    println!("{table}");
    Ok(())
}

/// The pages to ask for; each must arrive within 200 ms.
const PAGES: &[&str] = &[
    "/",
    "/tubes",
    "/tubes?sort=ready&q=t1",
    "/tubes/t7",
    "/tubes/t7?state=delayed",
    "/jobs/777777",
    "/durability",
    "/tasks",
    "/clients",
    "/healthz",
    "/readyz",
    "/metrics",
    "/api/v1/server",
    "/api/v1/tubes?limit=250",
    "/api/v1/tubes?contains=99&limit=250",
    "/api/v1/tubes/t7",
    "/api/v1/tubes/t7/jobs?limit=250",
    "/api/v1/jobs/777777",
    "/api/v1/tasks",
    "/api/v1/clients",
    "/api/v1/openapi.json",
];

fn pages(args: &Args) -> io::Result<()> {
    let (server, site) = start(args)?;
    fill(&server, args.page_jobs, args.tubes)?;
    let before = usage(server.pid())?.resident;
    let mut table = Table::new(["path", "median", "longest", "size"]);
    for path in PAGES {
        let (mut times, mut size) = (Vec::new(), 0);
        for _ in 0..args.rounds {
            // A page that is not there yet, or not in this build, is not measured.
            let Ok((page, took)) = site.get(path) else {
                break;
            };
            size = page.len();
            times.push(took);
        }
        if let Some(longest) = times.iter().max() {
            table.push([
                (*path).to_owned(),
                time(median_time(&times)),
                time(*longest),
                Size(size as u64).to_string(),
            ]);
        } else {
            table.push([*path, "refused", "", ""]);
        }
    }
    let after = usage(server.pid())?.resident;
    println!(
        "{} jobs in {} tubes\n\n{table}",
        chosen(args.page_jobs),
        args.tubes
    );
    let more = after.saturating_sub(before);
    println!("Asking for all of this took {} of memory more.", Size(more));
    Ok(())
}
