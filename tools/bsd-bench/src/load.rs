//! `bsd-bench load`: a load on a running server, and its results.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use bsd::UsageError;
use bsd::human::Size;
use serde_json::{Value, json};

use crate::channel::Tls;
use crate::latency::{Latency, QUANTILES};
use crate::options::{BodySizes, Shape, parse_count};
use crate::plan::Plan;
use crate::report::{count, time};
use crate::script::Workload;
use crate::tally::Outcome;
use crate::usage::{Usage, usage};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the server listens
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11300")]
    addr: String,
    /// Speak TLS, to a server whose certificate is of an authority in FILE (PEM) and has the name
    /// in --addr
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Connections, and commands that each has in progress at a time
    #[arg(long, value_name = "NxD", default_value = "50x1")]
    shape: Shape,
    /// Commands that each connection repeats
    #[arg(long, value_enum, default_value_t = Workload::Cycle)]
    workload: Workload,
    /// Stop after N jobs, or commands of a mix [default: stop by time]
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "seconds")]
    jobs: Option<u64>,
    /// Stop after this many seconds
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "3")]
    seconds: Duration,
    /// Bytes in the bodies: a size, a range (100..4k), or sizes with weights (100:90,64k:10)
    #[arg(long, value_name = "SIZES", default_value = "100")]
    body: BodySizes,
    /// Open loop: this many commands per second, whatever the server does; latencies count from the
    /// time when a command was due
    #[arg(long, value_name = "R", value_parser = parse_rate)]
    rate: Option<f64>,
    /// Use this many tubes [default: the tube "default"]
    #[arg(long, value_name = "N", default_value_t = 0)]
    tubes: usize,
    /// Pick priorities from 0 to N - 1
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "1")]
    priorities: u64,
    /// Delay puts by this many seconds (in a mix: the delayed ones)
    #[arg(long, value_name = "S", default_value_t = 0)]
    delay: u64,
    /// The server's process, for its processor time and memory
    #[arg(long)]
    pid: Option<u32>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// A duration in seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, UsageError> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds <= 1e7);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| format!("'{text}' is not a number of seconds").into())
}

fn parse_rate(text: &str) -> Result<f64, UsageError> {
    let rate = text
        .parse::<f64>()
        .ok()
        .filter(|rate| (1e-3..1e9).contains(rate));
    rate.ok_or_else(|| format!("'{text}' is not a rate in commands per second").into())
}

impl Args {
    fn plan(&self) -> io::Result<Plan> {
        let mut addresses = self.addr.to_socket_addrs()?;
        let address: Option<SocketAddr> = addresses.next();
        let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
        let host = self.addr.rsplit_once(':').map_or("", |(host, _)| host);
        let tls = self.tls_ca.as_deref().map(|file| Tls::new(host, file));
        Ok(Plan {
            tls: tls.transpose()?,
            jobs: self.jobs,
            time: Some(self.seconds),
            bodies: self.body.clone(),
            tubes: self.tubes,
            priorities: self.priorities,
            delay: self.delay,
            rate: self.rate,
            progress: !self.json,
            ..Plan::new(address, self.shape, self.workload)
        })
    }
}

/// Load, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    bsd::rlimit::raise_descriptor_limit();
    let plan = args.plan()?;
    let before = args.pid.map(usage).transpose()?;
    let outcome = plan.run()?;
    let after = args.pid.map(usage).transpose()?;
    let server = before.zip(after);
    if args.json {
        println!("{}", to_json(&outcome, server))
    } else {
        print_text(&outcome, server)
    }
    Ok(())
}

/// Processor time of the server for each command.
pub(crate) fn cpu_per_command(outcome: &Outcome, before: Usage, after: Usage) -> Duration {
    let cpu = after.cpu.saturating_sub(before.cpu);
    cpu.div_f64(outcome.commands.max(1) as f64)
}

fn print_text(outcome: &Outcome, server: Option<(Usage, Usage)>) {
    if std::io::IsTerminal::is_terminal(&io::stderr()) {
        eprint!("\r\x1b[K");
    }
    println!(
        "{} commands/s ({} commands in {:.2} s)",
        count(outcome.rate()),
        outcome.commands,
        outcome.elapsed.as_secs_f64()
    );
    let quantiles = QUANTILES.map(|(name, at)| format!("{name} {}", time(quantile(outcome, at))));
    println!("latency: {}", quantiles.join(", "));
    if let Some((before, after)) = server {
        println!(
            "server: {} of processor time a command, {} resident",
            time(cpu_per_command(outcome, before, after)),
            Size(after.resident)
        );
    }
    if outcome.is_bottleneck() {
        println!("{}", bottleneck(outcome));
    }
}

/// The warning that the load was not faster than the server.
pub(crate) fn bottleneck(outcome: &Outcome) -> String {
    format!(
        "bsd-bench was busy for {:.0} % of the time: the server may be faster than this shows",
        outcome.busy * 100.0
    )
}

fn quantile(outcome: &Outcome, fraction: f64) -> Duration {
    outcome.latency.quantile(fraction)
}

/// Quantiles in microseconds, by name.
pub(crate) fn quantiles_to_json(latency: &Latency) -> Value {
    let micros = |fraction| latency.quantile(fraction).as_nanos() as f64 / 1e3;
    QUANTILES
        .iter()
        .map(|&(name, at)| (name.to_owned(), json!(micros(at))))
        .collect()
}

fn to_json(outcome: &Outcome, server: Option<(Usage, Usage)>) -> Value {
    let server = server.map(|(before, after)| {
        json!({
            "cpu_us_per_command": cpu_per_command(outcome, before, after).as_nanos() as f64 / 1e3,
            "resident_bytes": after.resident,
        })
    });
    json!({
        "commands": outcome.commands,
        "seconds": outcome.elapsed.as_secs_f64(),
        "commands_per_second": outcome.rate(),
        "latency_us": quantiles_to_json(&outcome.latency),
        "busy": outcome.busy,
        "is_bottleneck": outcome.is_bottleneck(),
        "server": server,
    })
}
