//! `bsd-bench cluster`: three servers as one beside a single server, all on this machine: rates and
//! latencies, how long no one leads after the leader was killed, and how fast a member catches up.
//!
//! The servers take turns within each round, as those of `compare` do. The three share the processors
//! and the disk with each other and with the load: on machines of their own they have more of both, and
//! a network between them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bsd::human::Size;
use serde_json::{Value, json};

use crate::control;
use crate::latency::Latency;
use crate::limit::{self, Limit, Times};
use crate::load::{parse_seconds, quantiles_to_json};
use crate::options::{BodySizes, Shape, parse_count};
use crate::plan::Plan;
use crate::process::{check, now};
use crate::report::{Table, chosen, count, median, median_time, ratio, time};
use crate::script::Workload;
use crate::servers::{DataDir, Ended, Programs, Running, free_addresses};
use crate::site::Site;
use crate::tally::Outcome;
use crate::usage::usage;

/// How long the members may take to be as they have to be.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The server that is alone: it syncs before each reply, as the members do.
const ALONE: &str = "bsd-f0";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Connections and pipelined commands of each load
    #[arg(
        long,
        value_name = "NxD,…",
        value_delimiter = ',',
        default_value = "1x1,50x1,50x16"
    )]
    shapes: Vec<Shape>,
    /// How many rounds are measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each load lasts
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "2")]
    seconds: Duration,
    /// How long each load runs before measuring
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "0.3")]
    warmup: Duration,
    /// Bytes in the bodies, as for load
    #[arg(long, value_name = "SIZES", default_value = "100")]
    body: BodySizes,
    /// How often the leader is killed
    #[arg(long, value_name = "N", default_value_t = 10)]
    kills: u32,
    /// Jobs that a member has missed when it comes back
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "200k")]
    jobs: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    programs: Programs,
}

/// Whom a load reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    Leader,
    Follower,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Alone, "one server"),
    (Way::Leader, "three, by the leader"),
    (Way::Follower, "three, by a follower"),
];

/// One load that came one way, in all rounds.
#[derive(Debug)]
struct Cell {
    shape: Shape,
    way: &'static str,
    rates: Vec<f64>,
    /// To the server alone, in the same round.
    ratios: Vec<f64>,
    latency: Latency,
    /// Of all servers together, each command.
    cpu: Vec<Duration>,
}

impl Cell {
    fn new(shape: Shape, way: &'static str) -> Cell {
        Cell {
            shape,
            way,
            rates: Vec::new(),
            ratios: Vec::new(),
            latency: Latency::new(),
            cpu: Vec::new(),
        }
    }

    /// One round more; `alone`: what the server alone did in it.
    fn push(&mut self, (outcome, cpu): &Measured, alone: f64) {
        self.rates.push(outcome.rate());
        self.ratios.push(outcome.rate() / alone);
        self.latency.add(&outcome.latency);
        self.cpu.push(*cpu);
    }
}

/// The result of a load, and the processor time of all servers, each command.
type Measured = (Outcome, Duration);

/// How a member got what it had missed.
#[derive(Debug)]
struct CaughtUp {
    what: &'static str,
    jobs: u64,
    bytes: f64,
    took: Duration,
}

#[derive(Debug)]
struct Results {
    cells: Vec<Cell>,
    limits: Vec<Limit>,
    /// From each kill of the leader to the next reply.
    silences: Vec<Duration>,
    caught_up: Vec<CaughtUp>,
}

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    args.programs.prepare()?;
    let (cells, limits) = rates(args)?;
    let results = Results {
        cells,
        limits,
        silences: silences(args)?,
        caught_up: catching_up(args)?,
    };
    match args.json {
        true => println!("{}", results.to_json()),
        false => results.print(args),
    }
    Ok(())
}

fn flags(args: &Args) -> Vec<String> {
    vec!["-z".to_owned(), args.body.max().max(65_535).to_string()]
}

fn rates(args: &Args) -> io::Result<(Vec<Cell>, Vec<Limit>)> {
    let cells = args.shapes.iter();
    let cells = cells.flat_map(|shape| WAYS.map(|(_, way)| Cell::new(*shape, way)));
    let mut cells: Vec<Cell> = cells.collect();
    let limits = args.shapes.iter();
    let limits = limits.flat_map(|shape| Limit::of(*shape, args.body.mean()));
    let mut limits: Vec<Limit> = limits.collect();
    let times = Times {
        warmup: args.warmup,
        measured: args.seconds,
    };
    for round in 0..args.rounds {
        for row in cells.chunks_mut(WAYS.len()) {
            let (mut alone, mut three) = (f64::NAN, f64::NAN);
            let shape = row[0].shape;
            for ((way, name), cell) in WAYS.into_iter().zip(row) {
                eprintln!("round {} of {}: {shape} {name}", round + 1, args.rounds);
                let measured = measure(args, way, shape)?;
                match way {
                    Way::Alone => alone = measured.0.rate(),
                    Way::Leader => three = measured.0.rate(),
                    Way::Follower => {}
                }
                cell.push(&measured, alone);
            }
            for limit in limits.iter_mut().filter(|it| it.shape == shape) {
                limit.measure(&args.programs, times, three)?;
            }
        }
    }
    Ok((cells, limits))
}

fn measure(args: &Args, way: Way, shape: Shape) -> io::Result<Measured> {
    let (alone, three);
    let (address, pids) = if way == Way::Alone {
        let kind = ALONE.parse().map_err(io::Error::other)?;
        alone = Running::start(kind, &args.programs, &flags(args))?;
        (alone.address, vec![alone.pid()])
    } else {
        three = Three::start(args)?;
        let leader = three.leader()?;
        let at = (leader + usize::from(way == Way::Follower)) % 3;
        let pids = three.members.iter().map(|member| member.child.id());
        (three.members[at].client, pids.collect())
    };
    let plan = Plan {
        time: Some(args.seconds),
        bodies: args.body.clone(),
        ..Plan::new(address, shape, Workload::Cycle)
    };
    let warmup = Plan {
        time: Some(args.warmup),
        ..plan.clone()
    };
    warmup.run()?;
    let cpu = || -> io::Result<Duration> { pids.iter().map(|pid| Ok(usage(*pid)?.cpu)).sum() };
    let before = cpu()?;
    let outcome = plan.run()?;
    let used = cpu()?.saturating_sub(before);
    let each = used.div_f64(outcome.commands.max(1) as f64);
    Ok((outcome, each))
}

/// A client that asks another member right after the leader was killed waits for this long.
fn silences(args: &Args) -> io::Result<Vec<Duration>> {
    let mut three = Three::start(args)?;
    let mut silences = Vec::new();
    for nth in 0..args.kills {
        eprintln!("kill {} of {}", nth + 1, args.kills);
        let leader = three.leader()?;
        let other = three.members[(leader + 1) % 3].client;
        three.members[leader].child.kill();
        let begin = now();
        loop {
            // A connection that was being passed on ends with the leader.
            let told = control::connect(other).and_then(|mut client| {
                client.send(b"put 0 0 60 4\r\nbody\r\n")?;
                Ok(client.reply()?)
            });
            if told.is_ok_and(|reply| reply.line.starts_with("INSERTED")) {
                break;
            }
            check()?;
        }
        silences.push(now() - begin);
        three.members[leader].restart()?;
        three.wait_until_level()?;
    }
    Ok(silences)
}

/// A member that was away, and one that is new, get what the others have.
fn catching_up(args: &Args) -> io::Result<Vec<CaughtUp>> {
    let mut three = Three::start(args)?;
    let leader = three.leader()?;
    let away = (leader + 1) % 3;
    three.members[away].child.kill();
    eprintln!("{} jobs", args.jobs);
    Plan {
        jobs: Some(args.jobs),
        bodies: args.body.clone(),
        ..Plan::new(three.members[leader].client, Shape::FULL, Workload::Put)
    }
    .run()?;
    let bytes = args.jobs as f64 * args.body.mean();
    let mut caught_up = Vec::new();
    let mut is_level = |three: &mut Three, what| -> io::Result<()> {
        let begin = now();
        three.members[away].restart()?;
        three.wait_until_level()?;
        let took = now() - begin;
        caught_up.push(CaughtUp {
            what,
            jobs: args.jobs,
            bytes,
            took,
        });
        Ok(())
    };
    is_level(&mut three, "a member that was away")?;
    let gone = three.member_id(away)?;
    three.members[away].child.kill();
    let site = &three.members[leader].site;
    site.post("/api/v1/cluster/remove", &json!({"member": gone}))?;
    three.wait_until(|report| report["members"].as_array().map(Vec::len) == Some(2))?;
    std::fs::remove_dir_all(&three.members[away].dir)?;
    is_level(&mut three, "a new member")?;
    Ok(caught_up)
}

impl Results {
    fn print(&self, args: &Args) {
        let mut table = Table::new(["load", "by", "commands/s", "ratio", "50 %", "99 %", "cpu"]);
        for cell in &self.cells {
            table.push([
                cell.shape.to_string(),
                cell.way.to_owned(),
                count(median(&cell.rates)),
                ratio(median(&cell.ratios)),
                time(cell.latency.quantile(0.5)),
                time(cell.latency.quantile(0.99)),
                time(median_time(&cell.cpu)),
            ]);
        }
        println!(
            "Medians of {} rounds; ratio: to one server in the same round; cpu: of all servers, each \
             command\n\n{table}",
            args.rounds
        );
        if !self.limits.is_empty() {
            println!(
                "Three nodes that replicate the records of these commands and do nothing with them:\n\n{}",
                limit::table(&self.limits)
            );
        }
        if let Some(longest) = self.silences.iter().max() {
            let median = median_time(&self.silences);
            let mut table = Table::new(["no leader", "median", "longest"]);
            table.push([
                format!("{} times", args.kills),
                time(median),
                time(*longest),
            ]);
            println!("From kill -9 of the leader to the next reply:\n\n{table}");
        }
        let mut table = Table::new(["catches up", "jobs", "in", "jobs/s", "bodies"]);
        for it in &self.caught_up {
            let seconds = it.took.as_secs_f64();
            table.push([
                it.what.to_owned(),
                chosen(it.jobs),
                time(it.took),
                count(it.jobs as f64 / seconds),
                format!("{}/s", Size((it.bytes / seconds) as u64)),
            ]);
        }
        println!("{table}");
    }

    fn to_json(&self) -> Value {
        let cells = self.cells.iter().map(|cell| {
            json!({
                "load": cell.shape.to_string(),
                "by": cell.way,
                "commands_per_second": cell.rates,
                "ratios": cell.ratios,
                "latency_us": quantiles_to_json(&cell.latency),
                "cpu_us_per_command": micros(&cell.cpu),
            })
        });
        let caught_up = self.caught_up.iter().map(|it| {
            json!({"what": it.what, "jobs": it.jobs, "bytes": it.bytes, "seconds": it.took.as_secs_f64()})
        });
        json!({
            "loads": cells.collect::<Vec<_>>(),
            "limits": self.limits.iter().map(Limit::to_json).collect::<Vec<_>>(),
            "silence_us": micros(&self.silences),
            "catching_up": caught_up.collect::<Vec<_>>(),
        })
    }
}

fn micros(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|it| it.as_nanos() as f64 / 1e3).collect()
}

/// One member.
#[derive(Debug)]
struct Member {
    child: Ended,
    command: Command,
    client: SocketAddr,
    site: Site,
    dir: std::path::PathBuf,
}

/// Three members that vote, each in a directory of its own. They end when this is dropped.
#[derive(Debug)]
struct Three {
    /// Declared before the directory, so that they are dropped first.
    members: Vec<Member>,
    _dir: DataDir,
}

impl Three {
    fn start(args: &Args) -> io::Result<Three> {
        let dir = args.programs.directory()?;
        let addresses: [SocketAddr; 9] = free_addresses()?;
        let mut three = Three {
            members: Vec::new(),
            _dir: dir,
        };
        let first = addresses[1];
        for (nth, addresses) in addresses.chunks_exact(3).enumerate() {
            let dir = three._dir.path().join(format!("n{nth}"));
            let member = Member::start(args, &dir, addresses, (nth > 0).then_some(first))?;
            three.members.push(member);
            three.wait_until_it_serves(nth)?;
        }
        three.wait_until_level()?;
        Ok(three)
    }

    /// Wait until a member that was started says something, or has ended.
    fn wait_until_it_serves(&mut self, at: usize) -> io::Result<()> {
        let deadline = now() + PATIENCE;
        while self.reports()[at].is_none() {
            check()?;
            let Member { child, command, .. } = &mut self.members[at];
            if let Some(status) = child.status()? {
                let message = format!(
                    "{command:?} ended at its start: {status}; was it built with the feature cluster?"
                );
                return Err(io::Error::other(message));
            }
            if now() > deadline {
                return Err(io::Error::other(format!(
                    "{command:?} does not come to serve"
                )));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Report of each member about the cluster; `None`: it does not answer now.
    fn reports(&self) -> Vec<Option<Value>> {
        let report = |member: &Member| {
            let (body, _) = member.site.get("/api/v1/cluster").ok()?;
            serde_json::from_slice(&body).ok()
        };
        self.members.iter().map(report).collect()
    }

    /// Which one leads; waits for it.
    fn leader(&self) -> io::Result<usize> {
        let mut leader = None;
        self.wait_for(|reports| {
            leader = reports.iter().position(is_leaders);
            leader.is_some()
        })?;
        leader.ok_or_else(|| io::Error::other("no one leads"))
    }

    fn member_id(&self, at: usize) -> io::Result<String> {
        let mut id = None;
        self.wait_for(|reports| {
            let said = reports[at].as_ref().and_then(|it| it["member"].as_str());
            // Until its loop has turned, it says nothing here.
            id = said.filter(|id| !id.is_empty()).map(str::to_owned);
            id.is_some()
        })?;
        id.ok_or_else(|| io::Error::other("a member does not say who it is"))
    }

    /// Wait until three members vote, and have all that the leader has.
    fn wait_until_level(&self) -> io::Result<()> {
        self.wait_until(|report| {
            let members = report["members"].as_array();
            members.is_some_and(|members| {
                let is_level = |it: &Value| it["votes"] == true && it["lag"] == 0;
                members.len() == 3 && members.iter().all(is_level)
            })
        })
    }

    /// Wait until what the leader says is so.
    fn wait_until(&self, is_so: impl Fn(&Value) -> bool) -> io::Result<()> {
        self.wait_for(|reports| {
            let leaders = reports.iter().find(|report| is_leaders(report));
            leaders.and_then(Option::as_ref).is_some_and(&is_so)
        })
    }

    fn wait_for(&self, mut is_so: impl FnMut(&[Option<Value>]) -> bool) -> io::Result<()> {
        let deadline = now() + PATIENCE;
        while !is_so(&self.reports()) {
            check()?;
            if now() > deadline {
                let message = "the members do not come to be as they have to be";
                return Err(io::Error::other(message));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

fn is_leaders(report: &Option<Value>) -> bool {
    let report = report.as_ref();
    report.is_some_and(|report| report["standing"] == "leader")
}

impl Member {
    /// `addresses`: for clients, for members, for HTTP. `join`: the member that adds it, if it is not
    /// the first.
    fn start(
        args: &Args,
        dir: &Path,
        addresses: &[SocketAddr],
        join: Option<SocketAddr>,
    ) -> io::Result<Member> {
        let [client, peer, http] = *addresses else {
            return Err(io::Error::other("a member needs three addresses"));
        };
        let mut command = Command::new(args.programs.bsd()?);
        command.arg("-b").arg(dir).args(flags(args));
        command.args([
            "-l",
            &client.ip().to_string(),
            "-p",
            &client.port().to_string(),
        ]);
        command.args(["--cluster", &peer.to_string(), "--http", &http.to_string()]);
        match join {
            Some(first) => _ = command.args(["--cluster-join", &first.to_string()]),
            None => _ = command.arg("--cluster-init"),
        }
        let mut command = args.programs.pinned(command);
        // What it says of elections belongs to no measurement; a failure shows as one that never levels.
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let child = Ended::start(&mut command)?;
        Ok(Member {
            child,
            command,
            client,
            site: Site::new(http),
            dir: dir.to_owned(),
        })
    }

    /// Start it again after its end.
    fn restart(&mut self) -> io::Result<()> {
        self.child = Ended::start(&mut self.command)?;
        Ok(())
    }
}
