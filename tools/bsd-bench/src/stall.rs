//! `bsd-bench stall`: how long one client waits while the server does one heavy task for others.
//!
//! A probe puts and deletes in a tube of its own, one command at a time, during the heavy task; its
//! longest wait counts. The servers take turns in each round. `echo`, which has no jobs, shows the
//! part of the machine, the sockets and this program.

use std::io;
use std::time::Duration;

use bsd_tools::yaml::Value as Stat;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::control;
use crate::driver::Load;
use crate::latency::Latency;
use crate::load::{parse_seconds, quantiles_to_json};
use crate::options::{BodySizes, Shape, parse_count};
use crate::plan::Plan;
use crate::process::{now, resume, sleep_until, suspend};
use crate::report::{NONE, Table, median_time, time};
use crate::script::Workload;
use crate::servers::{Kind, Program, Programs, Running, SmallDisk};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The heavy tasks
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "idle,busy,kick,clear,due,due-tubes,grow,compact,rotate,many-files,refused,herd,\
                         unread,tubes,pauses,watches,list-tubes"
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
    /// Jobs that are kicked, cleared or fall due, and tubes of "pauses"; "grow" puts twice as many,
    /// "compact" begins with a fifth of them, "many-files" with a tenth
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "500k")]
    jobs: u64,
    /// Clients of the herd, each of which connects four times; "unread" has a fifth of them
    #[arg(long, value_name = "N", default_value_t = 5000)]
    herd: usize,
    /// Tubes of "tubes", "watches" and "list-tubes"; "due-tubes" has a tenth of them
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    tubes: usize,
    /// How long tasks without an end of their own last
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "5")]
    seconds: Duration,
    /// How many rounds are measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    programs: Programs,
}

/// One heavy task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Only the probe: the effect of the machine itself
    Idle,
    /// A steady load of puts, reserves and deletes, as a reference for the others
    Busy,
    /// One kick of many buried jobs
    Kick,
    /// One clear-tube of many ready jobs, which only bsd has
    Clear,
    /// Many delayed jobs fall due at once
    Due,
    /// The same, spread over many tubes
    DueTubes,
    /// Very many puts
    Grow,
    /// Jobs come and go in random order among many that stay, so that the log is compacted
    Compact,
    /// The log continues in a new file every megabyte
    Rotate,
    /// The same as "compact" with hundreds of small files
    ManyFiles,
    /// Puts are refused: by a full disk (a small tmpfs that is mounted below --dir), or, if none
    /// may be mounted, by --max-memory, which only bsd has
    Refused,
    /// Thousands of clients connect, do one round, and connect again
    Herd,
    /// Clients request much, and never read it
    Unread,
    /// A steady load while thousands of tubes hold jobs
    Tubes,
    /// Very many tubes are paused for as long as possible, each used only for that
    Pauses,
    /// Clients watch thousands of empty tubes, ask for jobs, disconnect, and connect again
    Watches,
    /// Clients list thousands of tubes with long names repeatedly
    ListTubes,
}

impl Case {
    /// True if the server supports it.
    fn is_for(self, kind: Kind, refusal: Refusal) -> bool {
        match self {
            Case::Compact | Case::Rotate | Case::ManyFiles => kind.is_durable() && !kind.is_echo(),
            Case::Refused => refusal.is_for(kind),
            Case::Clear => kind.program == Program::Bsd,
            Case::Unread | Case::ListTubes => !kind.is_echo(),
            _ => true,
        }
    }

    fn flags(self, refusal: Refusal) -> Vec<String> {
        let (flag, value) = match self {
            Case::Compact => ("-s", 8 << 20),
            Case::Rotate => ("-s", 1 << 20),
            Case::ManyFiles => ("-s", 64 << 10),
            Case::Refused => match refusal {
                Refusal::Disk => ("-s", 8 << 20),
                Refusal::Memory => ("--max-memory", REFUSED_SIZE),
            },
            _ => return Vec::new(),
        };
        vec![flag.into(), value.to_string()]
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Connections and pipelined commands of a steady load: enough to keep a server busy, few enough
/// for a short wait.
const STEADY: Shape = Shape {
    connections: 4,
    pipeline: 16,
};
/// How long the probe continues after the rest is done.
const LINGER: Duration = Duration::from_secs(1);
/// Jobs that are put to estimate the time for the rest.
const SAMPLE: u64 = 10_000;
/// A server is suspended for this much longer around the moment at which many jobs fall due.
const DUE_MARGIN: Duration = Duration::from_millis(300);
/// Bytes of the full disk, or of the memory.
const REFUSED_SIZE: u64 = 64 << 20;
/// Jobs of 1 KB that are put there: twice as many as fit.
const REFUSED_JOBS: u64 = 2 * (REFUSED_SIZE >> 10);
/// Clients of "pauses", and tubes that each pauses together: so many that syncs do not dominate.
const PAUSES: Shape = Shape {
    connections: 4,
    pipeline: 64,
};
/// Clients of "watches", and polls that each sends together.
const POLLS: Shape = Shape {
    connections: 4,
    pipeline: 512,
};
/// Clients of "list-tubes": their replies are long.
const LISTS: Shape = Shape {
    connections: 8,
    pipeline: 1,
};
/// Peeks at a large job that a client of "unread" requests.
const UNREAD_LOOKS: usize = 64;
/// The prefix of tubes with long names: a name may have 200 bytes.
const LONG_PREFIX: &str = "tube-with-a-name-as-long-as-programs-make-them-that-put-\
                           all-they-know-into-it-service-region-customer-kind-of-job-\
                           priority-version-of-the-format-and-a-number-";
/// Any job may be next: priorities are picked from this many.
const PRIORITIES: u64 = 1 << 20;

/// The reason why the puts of "refused" are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// A full disk.
    Disk,
    /// `--max-memory`.
    Memory,
}

impl Refusal {
    /// A full disk, if a small one may be mounted.
    fn find(programs: &Programs) -> Refusal {
        match programs.small_disk(REFUSED_SIZE) {
            Ok(_) => Refusal::Disk,
            Err(error) => {
                eprintln!("bsd-bench: puts are refused by --max-memory, not by a disk: {error}");
                Refusal::Memory
            }
        }
    }

    fn is_for(self, kind: Kind) -> bool {
        match self {
            Refusal::Disk => kind.is_durable() && !kind.is_echo(),
            Refusal::Memory => kind.program == Program::Bsd,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Refusal::Disk => "a full disk (a tmpfs)",
            Refusal::Memory => "--max-memory",
        }
    }
}

/// The latencies of the probe, for each case and server, in each round.
type Felt = Vec<Vec<Vec<Latency>>>;

/// Measure all, and print.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    args.programs.prepare()?;
    let refusal = if args.cases.contains(&Case::Refused) {
        Refusal::find(&args.programs)
    } else {
        Refusal::Memory
    };
    let mut felt: Felt = vec![vec![Vec::new(); args.servers.len()]; args.cases.len()];
    for round in 0..args.rounds {
        for (case, row) in args.cases.iter().zip(&mut felt) {
            for (kind, cell) in args.servers.iter().zip(row) {
                if !case.is_for(*kind, refusal) {
                    continue;
                }
                eprintln!(
                    "round {} of {}: {} {kind}",
                    round + 1,
                    args.rounds,
                    case.name()
                );
                match Trial::new(args, *case, *kind, refusal)?.run() {
                    Ok(latency) => cell.push(latency),
                    // The other servers are measured anyway.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        eprintln!("{kind}: {error}");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    if args.json {
        println!("{}", to_json(args, refusal, &felt))
    } else {
        print(args, refusal, &felt)
    }
    Ok(())
}

fn print(args: &Args, refusal: Refusal, felt: &Felt) {
    let table = |show: &dyn Fn(&Latency) -> Duration| {
        let head = args.servers.iter().map(Kind::to_string);
        let mut table = Table::new(std::iter::once("meanwhile".to_owned()).chain(head));
        for (case, row) in args.cases.iter().zip(felt) {
            let cell = |cell: &Vec<Latency>| {
                if cell.is_empty() {
                    NONE.into()
                } else {
                    time(median_time(&cell.iter().map(show).collect::<Vec<_>>()))
                }
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
    if args.cases.contains(&Case::Refused) {
        println!("\nPuts were refused by {}.", refusal.name());
    }
}

fn to_json(args: &Args, refusal: Refusal, felt: &Felt) -> Value {
    let mut list = Vec::new();
    for (case, row) in args.cases.iter().zip(felt) {
        for (kind, cell) in args.servers.iter().zip(row) {
            let mut entry = json!({
                "case": case.name(),
                "server": kind.to_string(),
                "rounds": cell.iter().map(quantiles_to_json).collect::<Vec<_>>(),
            });
            if *case == Case::Refused {
                entry["refused_by"] = refusal.name().into();
            }
            list.push(entry);
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
    /// Declared before its disk, so that it is dropped first.
    server: Running,
    _disk: Option<SmallDisk>,
}

impl Trial<'_> {
    fn new(args: &Args, case: Case, kind: Kind, refusal: Refusal) -> io::Result<Trial<'_>> {
        let flags = case.flags(refusal);
        let mut programs = args.programs.clone();
        let disk = match (case, refusal) {
            (Case::Refused, Refusal::Disk) => Some(programs.small_disk(REFUSED_SIZE)?),
            _ => None,
        };
        if let Some(disk) = &disk {
            programs.write_to(disk.path());
        }
        // It logs a line for each put that it refuses, and each client that disconnects like that.
        if matches!(case, Case::Refused | Case::Unread) {
            programs.silence_beanstalkd();
        }
        Ok(Trial {
            args,
            case,
            kind,
            server: Running::start(kind, &programs, &flags)?,
            _disk: disk,
        })
    }

    fn run(&self) -> io::Result<Latency> {
        match self.case {
            Case::Idle => self.probe(Plan {
                linger: self.args.seconds,
                ..self.no_one()
            }),
            Case::Busy => self.probe(self.steady()),
            Case::Kick => self.kick(),
            Case::Clear => self.clear(),
            Case::Due => self.due(0),
            Case::DueTubes => self.due(self.args.tubes / 10),
            Case::Grow => self.probe(Plan {
                jobs: Some(2 * self.args.jobs),
                ..self.plan(STEADY, Workload::Put)
            }),
            Case::Compact => self.compact(self.args.jobs / 5),
            Case::Rotate => self.rotate(),
            Case::ManyFiles => self.compact(self.args.jobs / 10),
            Case::Refused => self.refused(),
            Case::Herd => self.herd(),
            Case::Unread => self.unread(),
            Case::Tubes => self.tubes(),
            Case::Pauses => self.probe(Plan {
                jobs: Some(self.args.jobs),
                linger: 3 * LINGER,
                ..self.plan(PAUSES, Workload::Pause)
            }),
            Case::Watches => self.probe(Plan {
                time: Some(self.args.seconds),
                herd: true,
                tubes: self.args.tubes,
                shares_tubes: true,
                ..self.plan(POLLS, Workload::Poll)
            }),
            Case::ListTubes => self.list_tubes(),
        }
    }

    fn plan(&self, shape: Shape, workload: Workload) -> Plan {
        self.server.plan(shape, workload)
    }

    /// No load at all.
    fn no_one(&self) -> Plan {
        let shape = Shape {
            connections: 0,
            pipeline: 1,
        };
        self.plan(shape, Workload::Put)
    }

    /// Puts, reserves and deletes, for the requested time.
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

    /// The latencies of the probe under a load.
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

    /// Their memory is freed, and their deletes are written, after the reply.
    fn clear(&self) -> io::Result<Latency> {
        self.fill(Plan {
            jobs: Some(self.args.jobs),
            ..self.plan(Shape::FULL, Workload::Put)
        })?;
        self.probe(Plan {
            jobs: Some(1),
            linger: self.args.seconds,
            ..self.plan(Shape::SINGLE, Workload::Clear)
        })
    }

    /// The server is suspended while the jobs fall due, like a sleeping machine: when it continues,
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
            ..self.no_one()
        };
        let mut load = Load::new(&plan)?;
        sleep_until(begin + delay - DUE_MARGIN)?;
        suspend(self.server.pid())?;
        sleep_until(end + delay + DUE_MARGIN)?;
        load.start()?;
        resume(self.server.pid())?;
        Ok(load.finish()?.probe)
    }

    fn compact(&self, jobs: u64) -> io::Result<Latency> {
        let (bodies, priorities) = (BodySizes::fixed(1000), PRIORITIES);
        self.fill(Plan {
            jobs: Some(jobs),
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
        if self.case == Case::ManyFiles {
            let files = self.server.files()?.len();
            eprintln!("{}: {files} files", self.kind);
        } else if self.stat("binlog-records-migrated")? == before {
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

    fn refused(&self) -> io::Result<Latency> {
        let load = Plan {
            bodies: BodySizes::fixed(1000),
            may_be_refused: true,
            ..self.plan(STEADY, Workload::Put)
        };
        self.fill(Plan {
            jobs: Some(REFUSED_JOBS),
            ..load.clone()
        })?;
        let put = format!("put 0 0 60 1000\r\n{}", "x".repeat(1000));
        let reply = control::connect(self.server.address)?.ask(&put)?.line;
        if reply != "OUT_OF_MEMORY" {
            let message = format!("{}: {REFUSED_JOBS} jobs leave room: {reply}", self.kind);
            return Err(io::Error::other(message));
        }
        self.probe(Plan {
            time: Some(self.args.seconds),
            ..load
        })
    }

    fn unread(&self) -> io::Result<Latency> {
        self.fill(Plan {
            jobs: Some(1),
            bodies: BodySizes::fixed(65_000),
            ..self.plan(Shape::SINGLE, Workload::Put)
        })?;
        let shape = Shape {
            connections: (self.args.herd / 5).max(1),
            pipeline: UNREAD_LOOKS,
        };
        self.probe(Plan {
            is_deaf: true,
            linger: self.args.seconds,
            ..self.plan(shape, Workload::Peek)
        })
    }

    fn stat(&self, key: &str) -> io::Result<u64> {
        let stats = control::connect(self.server.address)?.stats()?;
        match stats.get(key) {
            Some(Stat::Number(value)) => Ok(*value),
            _ => Err(io::Error::other(format!(
                "the server's stats have no {key}"
            ))),
        }
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
        self.fill_tubes("t")?;
        self.probe(self.steady())
    }

    fn list_tubes(&self) -> io::Result<Latency> {
        self.fill_tubes(LONG_PREFIX)?;
        self.probe(Plan {
            time: Some(self.args.seconds),
            ..self.plan(LISTS, Workload::ListTubes)
        })
    }

    /// Put about one job into each of the tubes.
    fn fill_tubes(&self, tube_prefix: &'static str) -> io::Result<()> {
        self.fill(Plan {
            jobs: Some(self.args.tubes as u64),
            tubes: self.args.tubes,
            tube_prefix,
            ..self.plan(Shape::FULL, Workload::Put)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str) -> Kind {
        name.parse().unwrap()
    }

    #[test]
    fn a_case_is_tried_on_the_servers_that_can_do_it() {
        let is_for = |case: Case, name| case.is_for(kind(name), Refusal::Disk);
        for case in [Case::Compact, Case::Rotate, Case::ManyFiles, Case::Refused] {
            assert!(is_for(case, "bsd-f0") && is_for(case, "beanstalkd-f50"));
            assert!(!is_for(case, "bsd-memory") && !is_for(case, "beanstalkd"));
            assert!(!is_for(case, "echo-sync"));
        }
        for case in [Case::Unread, Case::ListTubes] {
            assert!(is_for(case, "bsd-memory") && is_for(case, "beanstalkd"));
            assert!(!is_for(case, "echo"));
        }
        for case in [Case::Pauses, Case::Watches, Case::Idle] {
            assert!(is_for(case, "echo"));
        }
    }

    #[test]
    fn where_no_disk_may_be_mounted_only_bsd_refuses() {
        let is_for = |name| Case::Refused.is_for(kind(name), Refusal::Memory);
        assert!(is_for("bsd-memory") && is_for("bsd-f0"));
        assert!(!is_for("beanstalkd-f50") && !is_for("echo"));
        let flags = Case::Refused.flags(Refusal::Memory);
        assert_eq!(flags, ["--max-memory", "67108864"]);
    }

    #[test]
    fn a_long_name_is_one_that_the_protocol_allows() {
        let longest = format!("{LONG_PREFIX}{}", u32::MAX);
        assert!((150..=200).contains(&longest.len()), "{}", longest.len());
        assert!(!longest.contains(' '));
    }
}
