//! `kill -9` in a loop under load, with the history as the oracle.
//!
//! Many connections put, reserve, delete, bury and release, each in a tube of its own; the server
//! is killed at a random moment, sometimes once more while it recovers, and started on the same
//! directory. Then:
//!
//! * every job whose put was acknowledged, and whose delete was never sent, is there with its
//!   body, its state and its priority as the last acknowledged command left them;
//! * a command that was sent but not acknowledged has happened or not, nothing in between;
//! * no job whose delete was acknowledged is back, no job exists twice or came from nowhere;
//! * no id was issued twice.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{Launch, POLL_EVERY, Server};
use crate::wire::{Wire, inserted, job_of, put_command};
use bsd::check::volume::{seed_of_run, volume};
use bsd::random::Random;

/// Each on a connection and a thread of its own, so that many commands share a sync.
const CLIENTS: usize = 50;
/// With more jobs than this a connection only removes jobs, unless another limit is given.
const JOBS_A_CONNECTION: usize = 60;
/// So long that no delayed job becomes due in the test.
const DELAY: u32 = 1_000_000;
const SEGMENT_SIZE: &str = "1048576";

/// The possible states of a job after a restart. A reserved job is ready again, so that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Durable {
    state: &'static str,
    pri: u32,
}

#[derive(Debug)]
struct Job {
    body: Vec<u8>,
    now: Durable,
    /// Its state after the command in flight at the kill; the inner `None` means deleted.
    pending: Option<Option<Durable>>,
}

/// One connection's part of the history: what it was promised, and what it asked for last.
#[derive(Debug)]
struct Client {
    number: usize,
    random: Random,
    jobs: BTreeMap<u64, Job>,
    /// Puts that were sent and not acknowledged.
    unacknowledged: Vec<Job>,
    ids: Vec<u64>,
    bodies: u64,
    jobs_max: usize,
    /// The number of puts that may be answered `OUT_OF_MEMORY`.
    refused: Option<u64>,
    /// The number of updates that may be answered so, because another process takes all the room
    /// there is: docs/limits.md, "A full disk that someone else keeps full".
    updates_refused: Option<u64>,
}

/// Raises a flag when it is dropped: threads that wait for it end also where a test fails.
pub(crate) struct Raise<'a>(pub(crate) &'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Client {
    fn new(number: usize, seed: u64) -> Client {
        let random = Random::new(seed.wrapping_add(number as u64));
        let (jobs, unacknowledged, ids) = (BTreeMap::new(), Vec::new(), Vec::new());
        Client {
            number,
            random,
            jobs,
            unacknowledged,
            ids,
            bodies: 0,
            jobs_max: JOBS_A_CONNECTION,
            refused: None,
            updates_refused: None,
        }
    }

    /// Work until it is over, or the server is gone; the last command is then in doubt.
    fn run_until(&mut self, server: SocketAddr, over: &AtomicBool) {
        let Ok(mut wire) = Wire::connect(server) else {
            return;
        };
        let mut is_there = self.enter(&mut wire);
        while is_there && !over.load(Ordering::Relaxed) {
            is_there = self.step(&mut wire);
        }
    }

    /// The first commands of a connection; false when the server is gone.
    fn enter(&self, wire: &mut Wire) -> bool {
        let tube = format!("tube-{}", self.number);
        let lines = format!("use {tube}\r\nwatch {tube}\r\nignore default\r\n");
        wire.try_send(lines.as_bytes()).is_ok() && (0..3).all(|_| wire.try_reply().is_ok())
    }

    /// One batch of commands; false when the server is gone.
    fn step(&mut self, wire: &mut Wire) -> bool {
        let is_full = self.jobs.len() >= self.jobs_max;
        if !is_full && self.random.one_in(2) {
            self.put_some(wire)
        } else {
            self.work(wire)
        }
    }

    fn put_some(&mut self, wire: &mut Wire) -> bool {
        let jobs: Vec<(Job, u32)> = (0..=self.random.below(4)).map(|_| self.new_job()).collect();
        let commands: Vec<Vec<u8>> = jobs
            .iter()
            .map(|(job, delay)| put_command(job.now.pri, *delay, &job.body))
            .collect();
        self.unacknowledged = jobs.into_iter().map(|(job, _)| job).collect();
        if wire.try_send(&commands.concat()).is_err() {
            return false;
        }
        while !self.unacknowledged.is_empty() {
            let Ok(reply) = wire.try_reply() else {
                return false;
            };
            let reply = String::from_utf8_lossy(&reply).into_owned();
            if let Some(refused) = &mut self.refused
                && reply == "OUT_OF_MEMORY\r\n"
            {
                *refused += 1;
                self.unacknowledged.remove(0);
                continue;
            }
            let id = inserted(&reply).unwrap_or_else(|| panic!("put was answered {reply:?}"));
            self.ids.push(id);
            let job = self.unacknowledged.remove(0);
            assert!(
                self.jobs.insert(id, job).is_none(),
                "id {id} was issued twice"
            );
        }
        true
    }

    fn new_job(&mut self) -> (Job, u32) {
        self.bodies += 1;
        let size_max = if self.random.one_in(50) { 60_000 } else { 300 };
        let filling = vec![b'.'; self.random.below(size_max) as usize];
        let name = format!("{}/{} ", self.number, self.bodies);
        let body = [name.as_bytes(), &filling].concat();
        let delay = if self.random.one_in(5) { DELAY } else { 0 };
        let state = if delay == 0 { "ready" } else { "delayed" };
        let now = Durable {
            state,
            pri: self.random.below(3000) as u32,
        };
        (
            Job {
                body,
                now,
                pending: None,
            },
            delay,
        )
    }

    /// Reserve one job, if there is one, and do something to it; or wake a few others.
    fn work(&mut self, wire: &mut Wire) -> bool {
        if wire.try_send(b"reserve-with-timeout 0\r\n").is_err() {
            return false;
        }
        let Ok(reply) = wire.try_reply() else {
            return false;
        };
        match job_of(&reply) {
            Some((id, body)) => {
                let job = self.jobs.get(&id);
                let job = job.unwrap_or_else(|| panic!("reserved {id}, which was not there"));
                assert_eq!(job.body, body, "the body of job {id}");
                self.change(wire, id)
            }
            None => self.wake(wire),
        }
    }

    fn change(&mut self, wire: &mut Wire, id: u64) -> bool {
        let pri = self.random.below(3000) as u32;
        let durable = |state| Some(Durable { state, pri });
        let (line, after) = match self.random.below(6) {
            0 => (format!("bury {id} {pri}"), durable("buried")),
            1 => (format!("release {id} {pri} 0"), durable("ready")),
            2 => (format!("release {id} {pri} {DELAY}"), durable("delayed")),
            _ => (format!("delete {id}"), None),
        };
        self.run(wire, id, &line, after)
    }

    /// Everything is buried or delayed: kick one of them, or delete it as it lies.
    fn wake(&mut self, wire: &mut Wire) -> bool {
        let nth = self.random.below(self.jobs.len() as u64) as usize;
        let Some((id, pri)) = self
            .jobs
            .iter()
            .nth(nth)
            .map(|(id, job)| (*id, job.now.pri))
        else {
            return true;
        };
        if self.random.one_in(2) {
            return self.run(wire, id, &format!("delete {id}"), None);
        }
        self.run(
            wire,
            id,
            &format!("kick-job {id}"),
            Some(Durable {
                state: "ready",
                pri,
            }),
        )
    }

    fn run(&mut self, wire: &mut Wire, id: u64, line: &str, after: Option<Durable>) -> bool {
        let job = self.jobs.get_mut(&id).unwrap();
        job.pending = Some(after);
        let reply = loop {
            if wire.try_send(format!("{line}\r\n").as_bytes()).is_err() {
                return false;
            }
            let Ok(reply) = wire.try_reply() else {
                return false;
            };
            match &mut self.updates_refused {
                // The job stays as it was, so the same can be asked again.
                Some(refused) if after.is_some() && reply == b"OUT_OF_MEMORY\r\n" => *refused += 1,
                _ => break reply,
            }
            thread::sleep(POLL_EVERY);
        };
        let expected: [&[u8]; 4] = [
            b"DELETED\r\n",
            b"BURIED\r\n",
            b"RELEASED\r\n",
            b"KICKED\r\n",
        ];
        let is_done = expected.contains(&&reply[..]);
        assert!(
            is_done,
            "{line} was answered {:?}",
            String::from_utf8_lossy(&reply)
        );
        self.settle(id, after);
        true
    }

    /// The command in flight has happened.
    fn settle(&mut self, id: u64, after: Option<Durable>) {
        match after {
            Some(now) => {
                let job = self.jobs.get_mut(&id).unwrap();
                (job.now, job.pending) = (now, None);
            }
            None => drop(self.jobs.remove(&id)),
        }
    }
}

/// The whole history.
#[derive(Debug)]
pub(crate) struct Oracle {
    clients: Vec<Client>,
    issued: HashSet<u64>,
    id_max: u64,
    /// beanstalkd is known to lose priorities and states that bsd keeps.
    is_strict: bool,
}

impl Oracle {
    /// An oracle of this many new clients.
    pub(crate) fn new(clients: usize, seed: u64, is_strict: bool) -> Oracle {
        let clients = (0..clients)
            .map(|number| Client::new(number, seed))
            .collect();
        Oracle {
            clients,
            issued: HashSet::new(),
            id_max: 0,
            is_strict,
        }
    }

    /// For a disk that may be full of jobs; each client has at most `jobs_max` of them.
    pub(crate) fn on_small_disk(mut self, jobs_max: usize) -> Oracle {
        for client in &mut self.clients {
            (client.jobs_max, client.refused) = (jobs_max, Some(0));
        }
        self
    }

    /// How many puts were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.clients
            .iter()
            .filter_map(|client| client.refused)
            .sum()
    }

    /// From now on another process takes all the room there is, or has stopped to. Returns how many
    /// updates were refused for that before.
    pub(crate) fn others_fill_the_disk(&mut self, is_so: bool) -> u64 {
        let clients = self.clients.iter_mut();
        let before =
            clients.filter_map(|it| std::mem::replace(&mut it.updates_refused, is_so.then_some(0)));
        before.sum()
    }

    /// The greatest id that was issued.
    pub(crate) fn id_max(&self) -> u64 {
        self.id_max
    }

    /// All clients at work until the server dies under them after `time`.
    fn load(&mut self, server: Server, time: Duration) {
        self.work_while(server.address(), || {
            // The length of the load is what varies here; nothing is waited for.
            thread::sleep(time);
            server.kill();
        });
    }

    /// All clients at work until `until` returns, or the server dies under them.
    pub(crate) fn work_while(&mut self, server: SocketAddr, until: impl FnOnce()) {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for client in &mut self.clients {
                let over = &over;
                scope.spawn(move || client.run_until(server, over));
            }
            let _over = Raise(&over);
            until();
        });
        self.note_ids();
    }

    fn note_ids(&mut self) {
        let before = self.id_max;
        for client in &mut self.clients {
            for id in client.ids.drain(..) {
                assert!(self.issued.insert(id), "id {id} was issued twice");
                assert!(
                    id > before,
                    "id {id} is not above {before}, issued before the restart"
                );
                self.id_max = self.id_max.max(id);
            }
        }
    }

    /// Compares the restarted server with what was promised.
    pub(crate) fn check(&mut self, server: &Server, id_before: u64) {
        let mut wire = server.connect();
        self.check_known(&mut wire);
        self.find_unacknowledged(&mut wire, id_before);
        self.check_counts(&mut wire);
        if self.is_strict {
            self.check_states(&mut wire);
        }
    }

    fn check_known(&mut self, wire: &mut Wire) {
        for client in &mut self.clients {
            let ids: Vec<u64> = client.jobs.keys().copied().collect();
            for (id, reply) in ask_all(wire, "peek", &ids) {
                let job = &client.jobs[&id];
                match job_of(&reply) {
                    Some((_, body)) => assert_eq!(body, job.body, "the body of job {id}"),
                    None if job.pending == Some(None) => client.settle(id, None),
                    None => panic!("acknowledged job {id} is lost: {:?}", job.now),
                }
            }
        }
    }

    /// A put that was not acknowledged may have happened; its id then lies among the last ones.
    fn find_unacknowledged(&mut self, wire: &mut Wire, id_before: u64) {
        let in_flight: usize = self
            .clients
            .iter()
            .map(|client| client.unacknowledged.len())
            .sum();
        let last = self.id_max + in_flight as u64 + 1;
        let unknown: Vec<u64> = (id_before + 1..=last)
            .filter(|id| !self.issued.contains(id))
            .collect();
        let mut by_body: HashMap<Vec<u8>, (usize, Job)> = HashMap::new();
        for client in &mut self.clients {
            for job in client.unacknowledged.drain(..) {
                by_body.insert(job.body.clone(), (client.number, job));
            }
        }
        for (id, reply) in ask_all(wire, "peek", &unknown) {
            let Some((_, body)) = job_of(&reply) else {
                continue;
            };
            let (number, job) = by_body.remove(body).unwrap_or_else(|| {
                panic!(
                    "job {id} came from nowhere: {:?}",
                    String::from_utf8_lossy(body)
                )
            });
            self.issued.insert(id);
            self.id_max = self.id_max.max(id);
            self.clients[number].jobs.insert(id, job);
        }
    }

    fn check_counts(&self, wire: &mut Wire) {
        let expected: usize = self.clients.iter().map(|client| client.jobs.len()).sum();
        let states = ["ready", "delayed", "buried", "reserved"];
        let mut count = |state| {
            wire.stat("stats", &format!("current-jobs-{state}"))
                .parse::<usize>()
                .unwrap()
        };
        let counts = states.map(&mut count);
        assert_eq!(
            counts.iter().sum::<usize>(),
            expected,
            "jobs in all; {states:?}: {counts:?}"
        );
        assert_eq!(counts[3], 0, "nothing is reserved after a restart");
    }

    fn check_states(&mut self, wire: &mut Wire) {
        for client in &mut self.clients {
            let ids: Vec<u64> = client.jobs.keys().copied().collect();
            for (id, reply) in ask_all(wire, "stats-job", &ids) {
                let shown = String::from_utf8_lossy(&reply).into_owned();
                let job = client.jobs.get_mut(&id).unwrap();
                let is_shown = |durable: &Durable| {
                    shown.contains(&format!("\nstate: {}\n", durable.state))
                        && shown.contains(&format!("\npri: {}\n", durable.pri))
                };
                let may_be = [Some(job.now), job.pending.flatten()];
                let now = may_be.into_iter().flatten().find(is_shown);
                job.now = now.unwrap_or_else(|| panic!("job {id} is {shown}, not {may_be:?}"));
                job.pending = None;
            }
        }
    }
}

/// One command for each of the ids, many at a time.
fn ask_all(wire: &mut Wire, command: &str, ids: &[u64]) -> Vec<(u64, Vec<u8>)> {
    let mut replies = Vec::with_capacity(ids.len());
    for some in ids.chunks(50) {
        let lines: String = some
            .iter()
            .map(|id| format!("{command} {id}\r\n"))
            .collect();
        wire.send(lines);
        replies.extend(some.iter().map(|id| (*id, wire.reply())));
    }
    replies
}

fn kill_rounds(launch: &Launch, is_strict: bool) {
    let seed = Random::new(seed_of_run("BSD_KILL_SEED")).next();
    let mut random = Random::new(seed);
    let mut oracle = Oracle::new(CLIENTS, seed, is_strict);
    let mut server = launch.start();
    for round in 0..volume("BSD_KILL_ROUNDS", 10) {
        let id_before = oracle.id_max;
        oracle.load(server, Duration::from_millis(50 + random.below(250)));
        while random.one_in(3) {
            kill_while_starting(launch, &mut random);
        }
        server = launch.start();
        oracle.check(&server, id_before);
        println!("round {round}: ids up to {}", oracle.id_max);
    }
    let stopped = server.stop();
    assert!(!is_strict || stopped.code == Some(0), "{stopped:?}");
}

fn kill_while_starting(launch: &Launch, random: &mut Random) {
    let starting = launch.spawn();
    thread::sleep(Duration::from_micros(random.below(20_000)));
    starting.kill();
}

#[test]
fn kill_9_under_load_loses_and_invents_nothing() {
    let dir = TempDir::new().unwrap();
    let launch = Launch::bsd()
        .dir(dir.path())
        .arg("-f")
        .arg("0")
        .arg("-s")
        .arg(SEGMENT_SIZE);
    kill_rounds(&launch, !launch.is_beanstalkd());
}
