//! `bsd-bench stall`: how long one client has to wait while the server does one heavy thing for
//! others.
//!
//! A probe puts and deletes in a tube of its own, one command at a time, while the heavy thing
//! happens; its longest wait is what counts. The servers take turns in each round. `echo`, which has
//! no jobs to do heavy things to, shows what machine, sockets and this program contribute.

use std::io;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::control::Control;
use crate::driver::Load;
use crate::latency::Latency;
use crate::load::{parse_seconds, quantiles_to_json};
use crate::options::{BodySizes, Shape, parse_count};
use crate::plan::Plan;
use crate::process::{now, resume, sleep_until, suspend};
use crate::report::{NONE, Table, median_time, time};
use crate::script::Workload;
use crate::servers::{Kind, Programs, Running};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The heavy things
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "idle,busy,kick,due,due-tubes,grow,compact,rotate,herd,tubes"
    )]
    cases: Vec<Case>,
    /// The servers to compare, as for compare
    #[arg(
        long,
        value_name = "KIND,…",
        value_delimiter = ',',
        default_value = "beanstalkd,beanstalkd-f50,bsd-memory,bsd-f0,echo"
    )]
    servers: Vec<Kind>,
    /// Jobs that are kicked or fall due; twice as many are put where the table grows, a fifth lies
    /// there where a log is compacted
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "500k")]
    jobs: u64,
    /// Clients of the herd, each of which comes four times
    #[arg(long, value_name = "N", default_value_t = 5000)]
    herd: usize,
    /// Tubes of "tubes"; a tenth of them of "due-tubes"
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    tubes: usize,
    /// How long what has no end of its own lasts
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "5")]
    seconds: Duration,
    /// How often everything is done; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    programs: Programs,
}

/// One heavy thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Nothing but the probe: what the machine itself does to it
    Idle,
    /// A steady load of puts, reserves and deletes: what the others are to be held against
    Busy,
    /// One kick of many buried jobs
    Kick,
    /// Many delayed jobs fall due at once
    Due,
    /// The same, spread over many tubes
    DueTubes,
    /// Very many jobs are put
    Grow,
    /// Jobs come and go in no order among many that stay, so that the log is compacted
    Compact,
    /// The log goes on in a new file every megabyte
    Rotate,
    /// Thousands of clients connect, do one round, and connect again
    Herd,
    /// A steady load while thousands of tubes hold jobs
    Tubes,
}

impl Case {
    fn needs_log(self) -> bool {
        matches!(self, Case::Compact | Case::Rotate)
    }

    fn flags(self) -> Vec<String> {
        let segment_size = match self {
            Case::Compact => "8388608",
            Case::Rotate => "1048576",
            _ => return Vec::new(),
        };
        vec!["-s".into(), segment_size.into()]
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Connections and pipelined commands of a steady load: enough to keep a server busy, few enough
/// that waiting for one's turn is short.
const STEADY: Shape = Shape {
    connections: 4,
    pipeline: 16,
};
/// How long the probe goes on once the rest is done.
const LINGER: Duration = Duration::from_secs(1);
/// Jobs that are put to find out how long the rest will take.
const SAMPLE: u64 = 10_000;
/// Around the moment at which many jobs fall due, a server is suspended for so much longer.
const DUE_MARGIN: Duration = Duration::from_millis(300);
/// Any job may be next: priorities are picked from so many.
const PRIORITIES: u64 = 1 << 20;

/// What the probe felt, for each case and server, in each round.
type Felt = Vec<Vec<Vec<Latency>>>;

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    args.programs.prepare()?;
    let mut felt: Felt = vec![vec![Vec::new(); args.servers.len()]; args.cases.len()];
    for round in 0..args.rounds {
        for (case, row) in args.cases.iter().zip(&mut felt) {
            for (kind, cell) in args.servers.iter().zip(row) {
                if case.needs_log() && (kind.is_echo() || !kind.is_durable()) {
                    continue;
                }
                eprintln!(
                    "round {} of {}: {} {kind}",
                    round + 1,
                    args.rounds,
                    case.name()
                );
                match Trial::new(args, *case, *kind)?.run() {
                    Ok(latency) => cell.push(latency),
                    // The other servers are measured all the same.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        eprintln!("{kind}: {error}");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    match args.json {
        true => println!("{}", to_json(args, &felt)),
        false => print(args, &felt),
    }
    Ok(())
}

fn print(args: &Args, felt: &Felt) {
    let table = |show: &dyn Fn(&Latency) -> Duration| {
        let head = args.servers.iter().map(Kind::to_string);
        let mut table = Table::new(std::iter::once("meanwhile".to_owned()).chain(head));
        for (case, row) in args.cases.iter().zip(felt) {
            let cell = |cell: &Vec<Latency>| match cell.is_empty() {
                true => NONE.into(),
                false => time(median_time(&cell.iter().map(show).collect::<Vec<_>>())),
            };
            table.push(std::iter::once(case.name()).chain(row.iter().map(cell)));
        }
        table
    };
    println!(
        "Longest wait of another client, median of {} rounds\n",
        args.rounds
    );
    println!("{}", table(&|latency| latency.max()));
    println!("99.9 % of its commands were answered within\n");
    println!("{}", table(&|latency| latency.quantile(0.999)));
}

fn to_json(args: &Args, felt: &Felt) -> Value {
    let mut list = Vec::new();
    for (case, row) in args.cases.iter().zip(felt) {
        for (kind, cell) in args.servers.iter().zip(row) {
            list.push(json!({
                "case": case.name(),
                "server": kind.to_string(),
                "rounds": cell.iter().map(quantiles_to_json).collect::<Vec<_>>(),
            }));
        }
    }
    Value::Array(list)
}

/// One case on one server.
#[derive(Debug)]
struct Trial<'a> {
    args: &'a Args,
    case: Case,
    kind: Kind,
    server: Running,
}

impl Trial<'_> {
    fn new(args: &Args, case: Case, kind: Kind) -> io::Result<Trial<'_>> {
        let server = Running::start(kind, &args.programs, &case.flags())?;
        Ok(Trial {
            args,
            case,
            kind,
            server,
        })
    }

    fn run(&self) -> io::Result<Latency> {
        match self.case {
            Case::Idle => self.probe(Plan {
                linger: self.args.seconds,
                ..self.nobody()
            }),
            Case::Busy => self.probe(self.steady()),
            Case::Kick => self.kick(),
            Case::Due => self.due(0),
            Case::DueTubes => self.due(self.args.tubes / 10),
            Case::Grow => self.probe(Plan {
                jobs: Some(2 * self.args.jobs),
                ..self.plan(STEADY, Workload::Put)
            }),
            Case::Compact => self.compact(),
            Case::Rotate => self.rotate(),
            Case::Herd => self.herd(),
            Case::Tubes => self.tubes(),
        }
    }

    fn plan(&self, shape: Shape, workload: Workload) -> Plan {
        Plan::new(self.server.address, shape, workload)
    }

    /// No load at all.
    fn nobody(&self) -> Plan {
        let shape = Shape {
            connections: 0,
            pipeline: 1,
        };
        self.plan(shape, Workload::Put)
    }

    /// Puts, reserves and deletes, for as long as was asked for.
    fn steady(&self) -> Plan {
        Plan {
            time: Some(self.args.seconds),
            ..self.plan(STEADY, Workload::Cycle)
        }
    }

    fn fill(&self, plan: Plan) -> io::Result<()> {
        let shape = Shape::FULL;
        Plan { shape, ..plan }.run().map(drop)
    }

    /// What the probe feels of a load.
    fn probe(&self, load: Plan) -> io::Result<Latency> {
        let linger = load.linger.max(LINGER);
        let plan = Plan {
            probe: true,
            linger,
            ..load
        };
        Ok(plan.run()?.probe)
    }

    fn kick(&self) -> io::Result<Latency> {
        let jobs = Some(self.args.jobs);
        self.fill(Plan {
            jobs,
            ..self.plan(Shape::FULL, Workload::Put)
        })?;
        self.fill(self.plan(Shape::FULL, Workload::Bury))?;
        self.probe(Plan {
            jobs: Some(1),
            kick: jobs,
            ..self.plan(Shape::SINGLE, Workload::Kick)
        })
    }

    /// The server is suspended while the jobs fall due, as a machine that sleeps: when it goes on
    /// all of them are due at once, however long it took to put them.
    fn due(&self, tubes: usize) -> io::Result<Latency> {
        let sample = Plan {
            jobs: Some(SAMPLE.min(self.args.jobs)),
            ..self.plan(Shape::FULL, Workload::Put)
        };
        let rate = sample.run()?.rate();
        let delay = 3 + (2.0 * self.args.jobs as f64 / rate) as u64;
        let begin = now();
        self.fill(Plan {
            jobs: Some(self.args.jobs),
            delay,
            tubes,
            ..self.plan(Shape::FULL, Workload::Put)
        })?;
        let end = now();
        let delay = Duration::from_secs(delay);
        if end + DUE_MARGIN >= begin + delay {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the server got so slow that jobs fell due while others were put; try again, or \
                 with fewer --jobs",
            ));
        }
        let plan = Plan {
            probe: true,
            linger: 3 * LINGER,
            ..self.nobody()
        };
        let mut load = Load::new(&plan)?;
        sleep_until(begin + delay - DUE_MARGIN)?;
        suspend(self.server.pid())?;
        sleep_until(end + delay + DUE_MARGIN)?;
        load.start()?;
        resume(self.server.pid())?;
        Ok(load.finish()?.probe)
    }

    fn compact(&self) -> io::Result<Latency> {
        let (bodies, priorities) = (BodySizes::fixed(1000), PRIORITIES);
        self.fill(Plan {
            jobs: Some(self.args.jobs / 5),
            bodies: bodies.clone(),
            priorities,
            ..self.plan(Shape::FULL, Workload::Put)
        })?;
        let before = self.stat("binlog-records-migrated")?;
        let felt = self.probe(Plan {
            bodies,
            priorities,
            ..self.steady()
        })?;
        if self.stat("binlog-records-migrated")? == before {
            eprintln!("{}: nothing was compacted; give more --seconds", self.kind);
        }
        Ok(felt)
    }

    fn rotate(&self) -> io::Result<Latency> {
        let before = self.stat("binlog-current-index")?;
        let felt = self.probe(Plan {
            bodies: BodySizes::fixed(1000),
            ..self.steady()
        })?;
        let files = self.stat("binlog-current-index")? - before;
        eprintln!("{}: {files} files", self.kind);
        Ok(felt)
    }

    fn stat(&self, key: &str) -> io::Result<u64> {
        let stats = Control::connect(self.server.address)?.stats()?;
        let value = stats.get(key).copied();
        value.ok_or_else(|| io::Error::other(format!("the server's stats have no {key}")))
    }

    fn herd(&self) -> io::Result<Latency> {
        let shape = Shape {
            connections: self.args.herd,
            pipeline: 1,
        };
        self.probe(Plan {
            jobs: Some(4 * self.args.herd as u64),
            herd: true,
            ..self.plan(shape, Workload::Cycle)
        })
    }

    fn tubes(&self) -> io::Result<Latency> {
        self.fill(Plan {
            jobs: Some(self.args.tubes as u64),
            tubes: self.args.tubes,
            ..self.plan(Shape::FULL, Workload::Put)
        })?;
        self.probe(self.steady())
    }
}
