//! Requests and replies of clients, and whether they are possible.
//!
//! Each client has a tube of its own, of whose jobs it knows the state, and all have one tube
//! together. Whatever a client asks for is noted before it is sent, and what it is told is noted when
//! it is told. A command without an answer has happened or not.
//!
//! Invariants, while the load goes on and at the end:
//!
//! * a job whose put was acknowledged is there, unless someone has asked for its end;
//! * a job whose delete was acknowledged is given to no one who asks after that;
//! * an id is that of one job for ever, and a job has one id: none is put twice;
//! * nothing comes that no one has put;
//! * a job that only its own client touches is in the state that it was told.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::harness::wait_until;
use crate::wire::{Wire, inserted, job_of, put_command};

/// Ids that are asked for at a time.
const BATCH: usize = 200;

/// A state that a restart keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Durable {
    pub(super) state: &'static str,
    pub(super) pri: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    None,
    /// Someone has asked for it.
    Asked,
    /// Someone was told.
    Told(Instant),
}

#[derive(Debug)]
pub(super) struct Job {
    body: Vec<u8>,
    id: Option<u64>,
    /// Its put was acknowledged.
    is_told: bool,
    end: End,
    /// `None`: not known.
    pub(super) now: Option<Durable>,
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
    /// A disk is full: a change may be refused, and has not happened then.
    may_refuse: AtomicBool,
}

/// Result of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Told(u64),
    /// The disk is full.
    Refused,
    /// The connection ended before it was answered.
    None,
}

const REFUSED: &[u8] = b"OUT_OF_MEMORY\r\n";

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
            return self.breach(format!("job {id}, {name}, was put by no one"));
        };
        match job.id {
            Some(other) if other != id => {
                self.breach(format!("{name} is there twice: as {other}, and as {id}"));
            }
            _ => job.id = Some(id),
        }
    }

    /// Someone asked at this time and got this job.
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
    pub(super) fn put_asked(&self, body: &[u8], now: Option<Durable>) {
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

    pub(super) fn put_told(&self, id: u64, body: &[u8]) {
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

    pub(super) fn change_job<T>(&self, id: u64, change: impl FnOnce(&mut Job) -> T) -> Option<T> {
        let mut told = self.told.lock().unwrap();
        let name = told.names.get(&id)?.clone();
        told.jobs.get_mut(&name).map(change)
    }

    /// Someone asked at this time and got this job.
    pub(super) fn got(&self, id: u64, body: &[u8], asked: Instant) {
        self.told.lock().unwrap().got(id, body, asked);
    }

    /// From now on a change may be refused for want of room, or not.
    pub(super) fn may_refuse(&self, may: bool) {
        self.may_refuse.store(may, Ordering::Relaxed);
    }

    pub(super) fn is_refused(&self, reply: &[u8]) -> bool {
        reply == REFUSED && self.may_refuse.load(Ordering::Relaxed)
    }

    /// The put of this body was refused: from now on no one has put it.
    pub(super) fn put_refused(&self, body: &[u8]) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.told.lock().unwrap().jobs.remove(&name_of(body));
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

    /// Put one job through this member; `false`: no answer.
    pub(super) fn probe(&self, door: SocketAddr) -> bool {
        self.probe_with(door, 0) != Answer::None
    }

    /// The same with this many bytes more.
    pub(super) fn probe_with(&self, door: SocketAddr, size: usize) -> Answer {
        let nth = self.probes.fetch_add(1, Ordering::Relaxed);
        let Ok(mut wire) = Wire::connect(door) else {
            return Answer::None;
        };
        if wire.try_send(b"use probes\r\n").is_err() || wire.try_reply().is_err() {
            return Answer::None;
        }
        let mut body = format!("probe/{nth} ").into_bytes();
        body.resize(body.len() + size, b'.');
        let now = Durable {
            state: "ready",
            pri: 0,
        };
        self.put_asked(&body, Some(now));
        if wire.try_send(&put_command(0, 0, &body)).is_err() {
            return Answer::None;
        }
        let Ok(reply) = wire.try_reply() else {
            return Answer::None;
        };
        if self.is_refused(&reply) {
            self.put_refused(&body);
            return Answer::Refused;
        }
        let reply = String::from_utf8_lossy(&reply).into_owned();
        match inserted(&reply) {
            Some(id) => {
                self.put_told(id, &body);
                return Answer::Told(id);
            }
            None => self.breach(format!("put was answered {reply:?}")),
        }
        Answer::None
    }

    /// Delete one job that was put so; `false`: no answer.
    pub(super) fn delete_probe(&self, door: SocketAddr, id: u64) -> bool {
        let Ok(mut wire) = Wire::connect(door) else {
            return false;
        };
        let was_asked = self.end_asked(id);
        let line = format!("delete {id}\r\n");
        if wire.try_send(line.as_bytes()).is_err() {
            return false;
        }
        let Ok(reply) = wire.try_reply() else {
            return false;
        };
        // One that was not answered before may have happened.
        match &reply[..] {
            b"DELETED\r\n" => self.end_told(id),
            b"NOT_FOUND\r\n" if was_asked => {}
            other => self.breach(format!("delete {id} was answered {other:?}")),
        }
        true
    }

    /// True if that was so before.
    pub(super) fn end_asked(&self, id: u64) -> bool {
        let before = self.change_job(id, |job| {
            let before = job.end;
            if before == End::None {
                job.end = End::Asked;
            }
            before
        });
        before.is_some_and(|before| before != End::None)
    }

    pub(super) fn end_told(&self, id: u64) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        self.change_job(id, |job| job.end = End::Told(now));
    }

    /// Compare what is there with what was told; no one else works meanwhile.
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
