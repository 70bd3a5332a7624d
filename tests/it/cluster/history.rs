//! What clients asked for and were told, and whether that can be.
//!
//! Each client has a tube of its own, of whose jobs it knows the state, and all have one tube
//! together. Whatever a client asks for is noted before it is sent, and what it is told is noted when
//! it is told. A command without an answer has happened or not.
//!
//! What must hold, while the load goes on and at the end:
//!
//! * a job whose put was acknowledged is there, unless somebody has asked for its end;
//! * a job whose delete was acknowledged is given to nobody who asks after that;
//! * an id is that of one job for ever, and a job has one id: none is put twice;
//! * nothing comes that nobody has put;
//! * a job that only its own client touches is in the state that it was told.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use bsd::random::Random;

use super::members::Doors;
use crate::harness::{POLL_EVERY, wait_until};
use crate::wire::{Wire, inserted, job_of, put_command};

/// With more jobs than this a client only takes away.
const JOBS_A_CLIENT: usize = 60;
const SHARED: &str = "of-all";
/// Ids that are asked for at a time.
const BATCH: usize = 200;

/// A state that a restart keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Durable {
    state: &'static str,
    pri: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    None,
    /// Somebody has asked for it.
    Asked,
    /// Somebody was told.
    Told(Instant),
}

#[derive(Debug)]
struct Job {
    body: Vec<u8>,
    id: Option<u64>,
    /// Its put was acknowledged.
    is_told: bool,
    end: End,
    /// `None`: not known.
    now: Option<Durable>,
}

#[derive(Debug, Default)]
struct Told {
    /// By the first word of the body, which no other job has.
    jobs: HashMap<String, Job>,
    names: HashMap<u64, String>,
    breaches: Vec<String>,
}

/// All that was asked for, and told.
#[derive(Debug, Default)]
pub(super) struct History {
    told: Mutex<Told>,
    /// Commands that were answered.
    pub(super) answers: AtomicU64,
    probes: AtomicU64,
}

fn name_of(body: &[u8]) -> String {
    let word = body.split(|byte| *byte == b' ').next().unwrap();
    String::from_utf8_lossy(word).into_owned()
}

impl Told {
    fn breach(&mut self, what: String) {
        self.breaches.push(what);
    }

    /// This id was seen with this job, and nothing may speak against it.
    fn see(&mut self, id: u64, name: &str) {
        match self.names.get(&id) {
            Some(other) if other != name => {
                let what = format!("id {id} is that of {other}, and of {name}");
                return self.breach(what);
            }
            Some(_) => {}
            None => drop(self.names.insert(id, name.to_owned())),
        }
        let Some(job) = self.jobs.get_mut(name) else {
            return self.breach(format!("job {id}, {name}, was put by nobody"));
        };
        match job.id {
            Some(other) if other != id => {
                self.breach(format!("{name} is there twice: as {other}, and as {id}"));
            }
            _ => job.id = Some(id),
        }
    }

    /// Somebody asked at this time and got this job.
    fn got(&mut self, id: u64, body: &[u8], asked: Instant) {
        let name = name_of(body);
        self.see(id, &name);
        let Some(job) = self.jobs.get(&name) else {
            return;
        };
        if job.body != body {
            let size = (job.body.len(), body.len());
            self.breach(format!(
                "job {id}, {name}, has another body: sizes {size:?}"
            ));
        } else if let End::Told(at) = job.end
            && at < asked
        {
            let ago = asked - at;
            self.breach(format!(
                "job {id}, {name}, was deleted {ago:?} before it was asked for"
            ));
        }
    }
}

impl History {
    fn put_asked(&self, body: &[u8], now: Option<Durable>) {
        let job = Job {
            body: body.to_vec(),
            id: None,
            is_told: false,
            end: End::None,
            now,
        };
        let before = self.told.lock().unwrap().jobs.insert(name_of(body), job);
        assert!(before.is_none(), "a body twice");
    }

    fn put_told(&self, id: u64, body: &[u8]) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap();
        let name = name_of(body);
        if told.names.contains_key(&id) && told.jobs[&name].id != Some(id) {
            told.breach(format!("id {id} was given out again, for {name}"));
        }
        told.see(id, &name);
        if let Some(job) = told.jobs.get_mut(&name) {
            job.is_told = true;
        }
    }

    fn change_job<T>(&self, id: u64, change: impl FnOnce(&mut Job) -> T) -> Option<T> {
        let mut told = self.told.lock().unwrap();
        let name = told.names.get(&id)?.clone();
        told.jobs.get_mut(&name).map(change)
    }

    pub(super) fn breach(&self, what: String) {
        self.told.lock().unwrap().breach(what);
    }

    /// How many jobs were put for certain.
    pub(super) fn puts(&self) -> usize {
        let told = self.told.lock().unwrap();
        told.jobs.values().filter(|job| job.is_told).count()
    }

    /// How many were deleted for certain.
    pub(super) fn deletes(&self) -> usize {
        let told = self.told.lock().unwrap();
        let ended = |job: &&Job| matches!(job.end, End::Told(_));
        told.jobs.values().filter(ended).count()
    }

    /// Panics if something was seen that cannot be.
    pub(super) fn assert_sound(&self, when: &str, words: impl FnOnce() -> String) {
        let told = self.told.lock().unwrap();
        if !told.breaches.is_empty() {
            let first: Vec<&String> = told.breaches.iter().take(10).collect();
            let count = told.breaches.len();
            panic!(
                "{when}: {count} times what cannot be: {first:#?}\n{}",
                words()
            );
        }
    }

    /// Put one job through any of these members; `false`: no answer.
    pub(super) fn probe(&self, door: SocketAddr) -> bool {
        let nth = self.probes.fetch_add(1, Ordering::Relaxed);
        let Ok(mut wire) = Wire::connect(door) else {
            return false;
        };
        if wire.try_send(b"use probes\r\n").is_err() || wire.try_reply().is_err() {
            return false;
        }
        let body = format!("probe/{nth} ").into_bytes();
        let now = Durable {
            state: "ready",
            pri: 0,
        };
        self.put_asked(&body, Some(now));
        if wire.try_send(&put_command(0, 0, &body)).is_err() {
            return false;
        }
        let Ok(reply) = wire.try_reply() else {
            return false;
        };
        let reply = String::from_utf8_lossy(&reply).into_owned();
        match inserted(&reply) {
            Some(id) => self.put_told(id, &body),
            None => self.breach(format!("put was answered {reply:?}")),
        }
        true
    }

    /// Compare what is there with what was told; nobody else works meanwhile.
    pub(super) fn check(&self, wire: &mut Wire, when: &str) {
        // Clients that are gone may not be gone everywhere.
        wait_until("no job is reserved", || {
            wire.stat("stats", "current-jobs-reserved") == "0"
        });
        let mut told = self.told.lock().unwrap();
        let greatest = told.names.keys().max().copied().unwrap_or(0);
        let ids: Vec<u64> = (1..=greatest + 1000).collect();
        let mut there = 0;
        let asked = Instant::now();
        for (id, reply) in ask_all(wire, "peek", &ids) {
            if let Some((_, body)) = job_of(&reply) {
                there += 1;
                told.got(id, body, asked);
            } else if let Some(name) = told.names.get(&id).cloned() {
                let job = &told.jobs[&name];
                if job.is_told && job.end == End::None {
                    let what = format!("acknowledged job {id}, {name}, is lost: {:?}", job.now);
                    told.breach(format!("{when}: {what}"));
                }
            }
        }
        let count: usize = ["ready", "delayed", "buried", "reserved"]
            .iter()
            .map(|state| wire.stat("stats", &format!("current-jobs-{state}")))
            .map(|count| count.parse::<usize>().unwrap())
            .sum();
        if count != there {
            told.breach(format!(
                "{when}: {count} jobs are counted, and {there} are there"
            ));
        }
        check_states(&mut told, wire, when);
    }
}

fn check_states(told: &mut Told, wire: &mut Wire, when: &str) {
    let known = told.jobs.values().filter(|job| job.end == End::None);
    let known: HashMap<u64, Durable> = known.filter_map(|job| Some((job.id?, job.now?))).collect();
    let ids: Vec<u64> = known.keys().copied().collect();
    for (id, reply) in ask_all(wire, "stats-job", &ids) {
        let stats = String::from_utf8_lossy(&reply).into_owned();
        let expected = known[&id];
        let is_so = [
            format!("\nstate: {}\n", expected.state),
            format!("\npri: {}\n", expected.pri),
        ]
        .iter()
        .all(|line| stats.contains(line));
        if !is_so {
            told.breach(format!("{when}: job {id} is to be {expected:?}: {stats}"));
        }
    }
}

/// Ask the same of all these ids; the answers in the same order.
fn ask_all(wire: &mut Wire, word: &str, ids: &[u64]) -> Vec<(u64, Vec<u8>)> {
    let mut answers = Vec::new();
    for batch in ids.chunks(BATCH) {
        let lines: String = batch.iter().map(|id| format!("{word} {id}\r\n")).collect();
        wire.send(lines);
        answers.extend(batch.iter().map(|id| (*id, wire.reply())));
    }
    answers
}

/// A client at work, through any member.
pub(super) struct Client<'a> {
    number: usize,
    random: Random,
    history: &'a History,
    doors: &'a Doors,
    /// Jobs of its own tube, with their state as far as it knows.
    own: BTreeMap<u64, Option<Durable>>,
    bodies: u64,
    tube: String,
    is_shared: bool,
}

/// The connection is gone, or the reply was none that can be.
struct Gone;

impl<'a> Client<'a> {
    pub(super) fn new(
        number: usize,
        seed: u64,
        history: &'a History,
        doors: &'a Doors,
    ) -> Client<'a> {
        Client {
            number,
            random: Random::new(seed).fork(number as u64),
            history,
            doors,
            own: BTreeMap::new(),
            bodies: 0,
            tube: format!("of-{number}"),
            is_shared: false,
        }
    }

    /// Work until it is over, on one connection after another.
    pub(super) fn run_until(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let door = self.doors.pick(&mut self.random);
            let wire = door.and_then(|door| Wire::connect(door).ok());
            let Some(mut wire) = wire else {
                thread::sleep(POLL_EVERY);
                continue;
            };
            let mut left = 20 + self.random.below(300);
            let mut goes_on = self.enter(&mut wire).is_ok();
            while goes_on && left > 0 && !over.load(Ordering::Relaxed) {
                left -= 1;
                goes_on = self.step(&mut wire).is_ok();
            }
        }
    }

    fn enter(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        self.is_shared = self.random.one_in(3);
        let tube = match self.is_shared {
            true => SHARED,
            false => &self.tube,
        };
        let lines = format!("use {tube}\r\nwatch {tube}\r\nignore default\r\n");
        self.send(wire, lines.as_bytes())?;
        for _ in 0..3 {
            self.reply(wire)?;
        }
        Ok(())
    }

    fn send(&self, wire: &mut Wire, bytes: &[u8]) -> Result<(), Gone> {
        wire.try_send(bytes).map_err(|_| Gone)
    }

    fn reply(&self, wire: &mut Wire) -> Result<Vec<u8>, Gone> {
        wire.try_reply().map_err(|error| {
            if matches!(
                error.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            ) {
                let number = self.number;
                self.history
                    .breach(format!("client {number} waits in vain, and is not closed"));
            }
            Gone
        })
    }

    fn step(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        let is_full = match self.is_shared {
            true => self.random.percent(40),
            false => self.own.len() >= JOBS_A_CLIENT,
        };
        match self.random.below(10) {
            0..5 if !is_full => self.put_some(wire),
            5 if !self.is_shared => self.look(wire),
            _ => self.work(wire),
        }
    }

    fn put_some(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        let mut bodies = Vec::new();
        let mut commands = Vec::new();
        for _ in 0..=self.random.below(4) {
            self.bodies += 1;
            let size_max = if self.random.one_in(50) { 60_000 } else { 300 };
            let size = self.random.below(size_max) as usize;
            let mut body = format!("{}/{} ", self.number, self.bodies).into_bytes();
            body.resize(body.len() + size, b'.');
            let now = Durable {
                state: "ready",
                pri: self.random.below(3000) as u32,
            };
            self.history
                .put_asked(&body, (!self.is_shared).then_some(now));
            commands.extend(put_command(now.pri, 0, &body));
            bodies.push((body, now));
        }
        self.send(wire, &commands)?;
        for (body, now) in bodies {
            let reply = self.reply(wire)?;
            let reply = String::from_utf8_lossy(&reply).into_owned();
            let Some(id) = inserted(&reply) else {
                return self.is_wrong("put", &reply);
            };
            self.history.put_told(id, &body);
            if !self.is_shared {
                self.own.insert(id, Some(now));
            }
        }
        Ok(())
    }

    fn is_wrong(&self, line: &str, reply: &str) -> Result<(), Gone> {
        self.history
            .breach(format!("{line} was answered {reply:?}"));
        Err(Gone)
    }

    /// A job that must be there is seen through any member.
    fn look(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        let Some(id) = self.one_that_is("ready").or(self.one_that_is("buried")) else {
            return Ok(());
        };
        let asked = Instant::now();
        self.send(wire, format!("peek {id}\r\n").as_bytes())?;
        let reply = self.reply(wire)?;
        match job_of(&reply) {
            Some((id, body)) => self.history.told.lock().unwrap().got(id, body, asked),
            None => {
                let reply = String::from_utf8_lossy(&reply).into_owned();
                return self.is_wrong(&format!("peek {id}, which is there,"), &reply);
            }
        }
        Ok(())
    }

    fn one_that_is(&mut self, state: &str) -> Option<u64> {
        let all = self.own.iter();
        let fit = all.filter(|(_, now)| now.is_some_and(|now| now.state == state));
        let fit: Vec<u64> = fit.map(|(id, _)| *id).collect();
        (!fit.is_empty()).then(|| self.random.pick(&fit))
    }

    fn work(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        let asked = Instant::now();
        self.send(wire, b"reserve-with-timeout 0\r\n")?;
        let reply = self.reply(wire)?;
        let Some((id, body)) = job_of(&reply) else {
            if !reply.starts_with(b"TIMED_OUT") {
                let reply = String::from_utf8_lossy(&reply).into_owned();
                return self.is_wrong("reserve", &reply);
            }
            return self.wake(wire);
        };
        self.history.told.lock().unwrap().got(id, body, asked);
        if !self.is_shared {
            let now = self.own.entry(id).or_default();
            if now.is_some_and(|now| now.state != "ready") {
                self.history
                    .breach(format!("job {id} is to be {now:?}, and was reserved"));
            }
        }
        let pri = self.random.below(3000) as u32;
        let durable = |state| Some(Durable { state, pri });
        match self.random.below(6) {
            0 => self.run(wire, id, &format!("bury {id} {pri}"), durable("buried")),
            1 => self.run(wire, id, &format!("release {id} {pri} 0"), durable("ready")),
            // Reserved when the connection ends: ready then.
            2 => Ok(()),
            _ => self.delete(wire, id),
        }
    }

    /// Nothing is ready: kick something, or delete it as it lies.
    fn wake(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        if self.is_shared {
            self.send(wire, b"kick 3\r\n")?;
            let reply = self.reply(wire)?;
            return match reply.starts_with(b"KICKED ") {
                true => Ok(()),
                false => self.is_wrong("kick 3", &String::from_utf8_lossy(&reply)),
            };
        }
        let Some(id) = self.one_that_is("buried") else {
            return Ok(());
        };
        if self.random.one_in(2) {
            return self.delete(wire, id);
        }
        let pri = self.own[&id].map_or(0, |now| now.pri);
        let after = Some(Durable {
            state: "ready",
            pri,
        });
        self.run(wire, id, &format!("kick-job {id}"), after)
    }

    fn delete(&mut self, wire: &mut Wire, id: u64) -> Result<(), Gone> {
        self.history.change_job(id, |job| {
            job.end = match job.end {
                End::None => End::Asked,
                other => other,
            };
        });
        self.own.remove(&id);
        let line = format!("delete {id}");
        self.send(wire, format!("{line}\r\n").as_bytes())?;
        let reply = self.reply(wire)?;
        if reply != b"DELETED\r\n" {
            return self.is_wrong(&line, &String::from_utf8_lossy(&reply));
        }
        self.history.answers.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        self.history.change_job(id, |job| job.end = End::Told(now));
        Ok(())
    }

    fn run(
        &mut self,
        wire: &mut Wire,
        id: u64,
        line: &str,
        after: Option<Durable>,
    ) -> Result<(), Gone> {
        let is_own = !self.is_shared;
        self.history.change_job(id, |job| job.now = None);
        if is_own {
            self.own.insert(id, None);
        }
        self.send(wire, format!("{line}\r\n").as_bytes())?;
        let reply = self.reply(wire)?;
        let expected: [&[u8]; 3] = [b"BURIED\r\n", b"RELEASED\r\n", b"KICKED\r\n"];
        if !expected.contains(&&reply[..]) {
            return self.is_wrong(line, &String::from_utf8_lossy(&reply));
        }
        self.history.answers.fetch_add(1, Ordering::Relaxed);
        if is_own {
            self.history.change_job(id, |job| job.now = after);
            self.own.insert(id, after);
        }
        Ok(())
    }
}
