//! Workers that know nothing of bsd under a policy: they take a job, do it, and release it if that
//! fails. The server counts, and sets poison jobs aside. Workers and server are killed meanwhile.
//!
//! The scripts `tests/clients/worker.*` are workers of greenstalk for Python and of Pheanstalk for PHP,
//! as their users write them. Beside them work those of `clients/rust/examples/fleet.rs`, on the worker of
//! `bsd-client`. A job's body says what becomes of it: `good` is done, `release` fails, `crash` ends its
//! worker.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use bsd::random::Random;
use rustix::process::{Pid, Signal, kill_process};

use crate::clients::{python_with, script};
use crate::harness::{Launch, POLL_EVERY, Server, client_example, program, skip, wait_until};
use crate::wire::Wire;
use bsd::check::volume::{seed_of_run, volume};

/// Deliveries that a job may fail.
const LIMIT: usize = 3;
/// Workers at one time.
const WORKERS: usize = 4;
/// A worker that was ended is gone within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that a worker has said.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Got {
        id: u64,
        body: String,
    },
    Done {
        id: u64,
        body: String,
    },
    /// It stops on SIGTERM from now on.
    Up(usize),
    /// It has ended.
    Ended(usize),
}

/// How a worker is started, without the address of the server.
type Start = Vec<String>;

/// Exit codes of a worker of `bsd-client` that was told to stop: it has stopped, or met a job that ends
/// it.
const STOPPED: [Option<i32>; 2] = [Some(0), Some(7)];

/// Workers that run.
struct Fleet {
    /// Of these in turn.
    starts: Vec<Start>,
    workers: BTreeMap<usize, Child>,
    started: usize,
    /// Workers that stop on SIGTERM.
    up: BTreeSet<usize>,
    /// How many have done so.
    stopped: usize,
    tell: Sender<Said>,
    said: Receiver<Said>,
}

impl Fleet {
    fn new(starts: Vec<Start>) -> Fleet {
        let (tell, said) = channel();
        Fleet {
            starts,
            workers: BTreeMap::new(),
            started: 0,
            up: BTreeSet::new(),
            stopped: 0,
            tell,
            said,
        }
    }

    fn add(&mut self, server: &Server) {
        let number = self.started;
        self.started += 1;
        let start = &self.starts[number % self.starts.len()];
        let mut child = Command::new(&start[0])
            .args(&start[1..])
            .args(["127.0.0.1", &server.port().to_string()])
            .stdout(Stdio::piped())
            // Where the server is killed they say so, at length.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let tell = self.tell.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while stdout.read_line(&mut line).is_ok_and(|size| size > 0) {
                let said = match &*line {
                    "up\n" => Some(Said::Up(number)),
                    line => parse(line),
                };
                if let Some(said) = said {
                    let _ = tell.send(said);
                }
                line.clear();
            }
            let _ = tell.send(Said::Ended(number));
        });
        self.workers.insert(number, child);
    }

    /// What a worker says next, if one does so soon. One that has ended by itself is replaced.
    fn next(&mut self, server: &Server) -> Option<Said> {
        let number = match self.said.recv_timeout(POLL_EVERY).ok()? {
            Said::Ended(number) => number,
            Said::Up(number) => {
                self.up.insert(number);
                return None;
            }
            said => return Some(said),
        };
        if let Some(mut worker) = self.workers.remove(&number) {
            worker.wait().unwrap();
            self.add(server);
        }
        None
    }

    /// End one of them in the middle of whatever it does, and begin another. One that stops when it is
    /// told to is told so every other time: it finishes its job and says that all is well.
    fn kill_one(&mut self, random: &mut Random, server: &Server) {
        let at = random.below(self.workers.len() as u32) as usize;
        let number = *self.workers.keys().nth(at).unwrap();
        let mut worker = self.workers.remove(&number).unwrap();
        if self.up.contains(&number) && random.one_in(2) {
            let pid = Pid::from_raw(worker.id() as i32).unwrap();
            // It may have met a job that ends it just now.
            kill_process(pid, Signal::TERM).unwrap();
            wait_until("a worker stops", || worker.try_wait().unwrap().is_some());
            let code = worker.wait().unwrap().code();
            assert!(STOPPED.contains(&code), "a worker ended with {code:?}");
            self.stopped += 1;
        }
        end(worker);
        self.add(server);
    }

    /// End all of them; returns what they had said.
    fn end(&mut self) -> Vec<Said> {
        let workers = std::mem::take(&mut self.workers);
        let mut left: BTreeSet<usize> = workers.keys().copied().collect();
        workers.into_values().for_each(end);
        let mut said = Vec::new();
        while !left.is_empty() {
            match self
                .said
                .recv_timeout(PATIENCE)
                .expect("the end of a worker")
            {
                Said::Ended(number) => _ = left.remove(&number),
                other => said.push(other),
            }
        }
        said
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        std::mem::take(&mut self.workers)
            .into_values()
            .for_each(end);
    }
}

fn end(mut worker: Child) {
    let _ = worker.kill();
    let _ = worker.wait();
}

/// A line of a worker. The last one has no end if the worker was killed within it: a worker may write
/// a line in parts, as Python does with `PYTHONUNBUFFERED`.
fn parse(line: &str) -> Option<Said> {
    let (what, rest) = line.strip_suffix('\n')?.split_once(' ')?;
    let (id, body) = rest.split_once(' ')?;
    let (id, body) = (id.parse().ok()?, body.to_owned());
    match what {
        "got" => Some(Said::Got { id, body }),
        "done" => Some(Said::Done { id, body }),
        _ => None,
    }
}

#[test]
fn a_line_that_is_cut_short_says_nothing() {
    let line = "got 101 good 2 10\n";
    let body = "good 2 10".to_owned();
    assert_eq!(parse(line), Some(Said::Got { id: 101, body }));
    for size in 0..line.len() {
        assert_eq!(parse(&line[..size]), None, "{}", &line[..size]);
    }
}

fn python() -> Option<Start> {
    let python = python_with("greenstalk")?;
    let words = [python.as_path(), Path::new("-B"), &script("worker.py")];
    Some(words.map(|word| word.display().to_string()).to_vec())
}

fn php() -> Option<Start> {
    let php = program("php");
    let has_it = |php: &std::path::PathBuf| {
        let code = "exit((@include 'Pheanstalk/autoload.php') ? 0 : 1);";
        let status = Command::new(php).args(["-r", code]).status();
        status.is_ok_and(|status| status.success())
    };
    let Some(php) = php.filter(has_it) else {
        skip("there is no php with Pheanstalk");
        return None;
    };
    let words = [php.as_path(), &script("worker.php")];
    Some(words.map(|word| word.display().to_string()).to_vec())
}

/// The jobs of the dead-letter tube: why, and how many deliveries have failed.
fn dead(wire: &mut Wire, ids: &BTreeMap<u64, String>) -> BTreeMap<u64, (String, usize)> {
    let mut dead = BTreeMap::new();
    for id in ids.keys() {
        let question = format!("stats-job-extended {id}");
        let shown = wire.ask(&format!("stats-job {id}"));
        if !shown.lines().any(|line| line == "tube: \"dead\"") {
            continue;
        }
        assert_eq!(wire.stat(&question, "dead-lettered-from"), "\"work\"");
        let failures = wire.stat(&question, "failures").parse().unwrap();
        dead.insert(*id, (wire.stat(&question, "reason"), failures));
    }
    dead
}

fn put(wire: &mut Wire, tube: &str, body: &str) -> u64 {
    let command = format!("put-with 0 0 60 {} tube={tube}\r\n{body}", body.len());
    let reply = wire.ask(&command);
    let id = reply
        .strip_prefix("INSERTED ")
        .unwrap_or_else(|| panic!("{command}: {reply}"));
    id.parse().unwrap()
}

const POLICY: &str = "set-policy work delivery-limit=3 dead-letter=dead";

/// One worker, which ends and is begun again by itself: each poison job is delivered as often as the
/// limit says, no more and no less, and then it is a dead letter.
fn an_unchanged_worker(start: Start) {
    let dir = tempfile::TempDir::new().unwrap();
    let server = Launch::bsd().dir(dir.path()).start();
    let mut wire = server.connect();
    assert_eq!(wire.ask(POLICY), "POLICY_SET");
    let bodies = [
        "good 1",
        "crash 2",
        "release 3",
        "good 4",
        "crash 5",
        "release 6",
    ];
    let ids: BTreeMap<u64, String> = bodies
        .iter()
        .map(|body| (put(&mut wire, "work", body), (*body).to_owned()))
        .collect();
    let mut fleet = Fleet::new(vec![start]);
    fleet.add(&server);
    let (mut got, mut done) = (BTreeMap::<u64, usize>::new(), 0);
    let deliveries = 2 + 4 * LIMIT;
    wait_until("all is done, or a dead letter", || {
        match fleet.next(&server) {
            Some(Said::Got { id, body }) => {
                assert_eq!(ids[&id], body);
                *got.entry(id).or_default() += 1;
            }
            Some(Said::Done { .. }) => done += 1,
            Some(Said::Up(_) | Said::Ended(_)) | None => {}
        }
        // The last of them becomes one when its worker is seen to be gone.
        let is_said = got.values().sum::<usize>() == deliveries && done == 2;
        is_said && dead(&mut wire, &ids).len() == 4
    });
    for (id, (reason, failures)) in dead(&mut wire, &ids) {
        let expected = match ids[&id].starts_with("crash") {
            true => "\"disconnected\"",
            false => "\"released\"",
        };
        assert_eq!((&*reason, failures), (expected, LIMIT), "{}", ids[&id]);
        assert_eq!(got[&id], LIMIT, "{}", ids[&id]);
    }
    assert_eq!(wire.stat("stats-tube dead", "current-jobs-ready"), "4");
    drop(fleet);
    server.stop();
}

#[test]
fn a_worker_of_greenstalk_has_retries_and_dead_letters_without_a_change() {
    if let Some(start) = python() {
        an_unchanged_worker(start);
    }
}

#[test]
fn a_worker_of_pheanstalk_has_retries_and_dead_letters_without_a_change() {
    if let Some(start) = php() {
        an_unchanged_worker(start);
    }
}

/// What was put, and what the workers have said of it.
#[derive(Default)]
struct Ledger {
    put: BTreeMap<u64, String>,
    deliveries: BTreeMap<u64, usize>,
    /// Good jobs that the server does not have any more.
    gone: BTreeSet<u64>,
    /// Good jobs whose workers were killed so often that they became dead letters.
    sent_back: usize,
}

impl Ledger {
    fn note(&mut self, said: Said) {
        match said {
            Said::Got { id, body } => {
                assert_eq!(self.put.get(&id), Some(&body), "job {id}");
                *self.deliveries.entry(id).or_default() += 1;
            }
            Said::Done { .. } | Said::Up(_) | Said::Ended(_) => {}
        }
    }

    /// Whether all good jobs are done. One whose worker was killed before it said so is gone, too. One
    /// that has become a dead letter is sent back, as an operator does.
    fn is_done(&mut self, wire: &mut Wire) -> bool {
        let left: Vec<u64> = self.good().filter(|id| !self.gone.contains(id)).collect();
        for id in left {
            let stats = wire.ask(&format!("stats-job {id}"));
            if stats != "NOT_FOUND" {
                if stats.contains("\ntube: \"dead\"\n") {
                    assert_eq!(wire.ask(&format!("move-job {id} work")), "MOVED");
                    self.sent_back += 1;
                }
                return false;
            }
            self.gone.insert(id);
        }
        true
    }

    fn good(&self) -> impl Iterator<Item = u64> {
        let good = self.put.iter().filter(|(_, body)| body.starts_with("good"));
        good.map(|(id, _)| *id)
    }
}

/// Ready jobs of a tube; 0 if it is not there.
fn ready(wire: &mut Wire, tube: &str) -> u64 {
    let stats = wire.ask(&format!("stats-tube {tube}"));
    let found = stats
        .lines()
        .find_map(|line| line.strip_prefix("current-jobs-ready: "));
    found.map_or(0, |count| count.parse().unwrap())
}

/// Minutes of the day.
fn minutes(time: &str) -> u64 {
    let (_, time) = time.trim_matches('"').split_once('T').unwrap();
    let mut parts = time
        .split(':')
        .map(|part| part[..2].parse::<u64>().unwrap());
    parts.next().unwrap() * 60 + parts.next().unwrap()
}

/// Jobs of one round of a fleet.
const JOBS_A_ROUND: u32 = 40;
/// Keys of one round.
const KEYS_A_ROUND: u32 = 5;

fn put_round(wire: &mut Wire, round: u64, random: &mut Random, ledger: &mut Ledger) {
    for number in 0..JOBS_A_ROUND {
        let kind = match random.below(10) {
            0 => "crash",
            1 => "release",
            _ => "good",
        };
        let body = format!("{kind} {round} {number}");
        let id = put(wire, "work", &body);
        ledger.put.insert(id, body);
    }
    // The tube is paused: the first job keeps its key.
    for key in 0..KEYS_A_ROUND {
        let body = format!("good key {round} {key}");
        let size = body.len();
        let command = format!("put-with 0 0 60 {size} tube=work key={round}-{key}\r\n{body}");
        let reply = wire.ask(&command);
        let id: u64 = reply.strip_prefix("INSERTED ").unwrap().parse().unwrap();
        assert_eq!(wire.ask(&command), format!("EXISTS {id}"));
        ledger.put.insert(id, body);
    }
}

/// Workers of two clients are killed at random or told to stop, and now and then the server is killed:
/// every good job is done, no poison job is delivered more often than its limit, of two jobs with one
/// key one is there, and a schedule has fired once for each minute.
#[test]
fn a_fleet_that_is_killed_at_random_does_every_job_and_no_poison_job_too_often() {
    let rust = vec![client_example("fleet").display().to_string()];
    let starts = [python(), Some(rust)].into_iter().flatten().collect();
    let mut random = Random::new(seed_of_run("BSD_FLEET_SEED"));
    let until = Instant::now() + Duration::from_secs(volume("BSD_FLEET_SECONDS", 5));
    let dir = tempfile::TempDir::new().unwrap();
    let mut ledger = Ledger::default();
    let mut fleet = Fleet::new(starts);
    let mut began = None;
    let mut round = 0;
    loop {
        let server = Launch::bsd().dir(dir.path()).start();
        let mut wire = server.connect();
        if round == 0 {
            assert_eq!(wire.ask(POLICY), "POLICY_SET");
            let tick = "schedule-set tick 1 cron=*_*_*_*_* tube=ticks missed=all\r\nx";
            assert_eq!(wire.ask(tick), "SCHEDULE_SET");
            began = Some(minutes(&wire.stat("stats-schedule tick", "fired-up-to")));
        }
        let is_last = round > 1 && Instant::now() >= until;
        if !is_last {
            wire.ask("use work");
            assert_eq!(wire.ask("pause-tube work 1000"), "PAUSED");
            put_round(&mut wire, round, &mut random, &mut ledger);
            assert_eq!(wire.ask("pause-tube work 0"), "PAUSED");
        }
        (0..WORKERS).for_each(|_| fleet.add(&server));
        let mut lines: u32 = random.below(60);
        while is_last || lines > 0 {
            let Some(said) = fleet.next(&server) else {
                if ledger.is_done(&mut wire) {
                    break;
                }
                continue;
            };
            ledger.note(said);
            lines = lines.saturating_sub(1);
            if random.one_in(8) {
                fleet.kill_one(&mut random, &server);
            }
        }
        if is_last {
            finish(&mut wire, &mut fleet, &server, &mut ledger, began.unwrap());
            return;
        }
        server.kill();
        fleet.end().into_iter().for_each(|said| ledger.note(said));
        round += 1;
    }
}

fn finish(wire: &mut Wire, fleet: &mut Fleet, server: &Server, ledger: &mut Ledger, began: u64) {
    let poison: BTreeMap<u64, String> = (ledger.put.iter())
        .filter(|(_, body)| !body.starts_with("good"))
        .map(|(id, body)| (*id, body.clone()))
        .collect();
    wait_until("all poison jobs are dead letters", || {
        if let Some(said) = fleet.next(server) {
            ledger.note(said);
        }
        dead(wire, &poison).len() == poison.len()
    });
    fleet.end().into_iter().for_each(|said| ledger.note(said));
    for (id, (_, failures)) in dead(wire, &poison) {
        assert_eq!(failures, LIMIT, "{}", ledger.put[&id]);
        let seen = ledger.deliveries.get(&id).copied().unwrap_or(0);
        assert!(
            seen <= LIMIT,
            "{} was delivered {seen} times",
            ledger.put[&id]
        );
    }
    assert!(ledger.is_done(wire));
    let ticks = loop {
        let upto = |wire: &mut Wire| minutes(&wire.stat("stats-schedule tick", "fired-up-to"));
        let (before, ticks, after) = (upto(wire), ready(wire, "ticks"), upto(wire));
        // A firing in between would be counted in one of them.
        if before == after {
            let day = 24 * 60;
            assert_eq!(
                ticks,
                (after + day - began) % day,
                "firings of the schedule"
            );
            break ticks;
        }
    };
    println!(
        "{} jobs, {} of them poison, {} sent back, {ticks} firings; {} workers, {} of them told to stop",
        ledger.put.len(),
        poison.len(),
        ledger.sent_back,
        fleet.started,
        fleet.stopped
    );
}
