//! `/api/v1` against the engine under load: producers, workers and changes over the API at once, each
//! of them noted. Every job has a body of its own, by which it is known wherever it is moved.
//!
//! At the end, after a kill, and after a kill in the middle of it all: every job that was put and not
//! deleted is there once and no other is, but for what was under way at the kill; and what the API
//! lists is what the protocol says.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Launch, PATIENCE, wait_until};
use crate::http::Site;
use crate::wire::{Wire, inserted, job_of, put_command};
use bsd::random::Random;

/// The tubes in which changes are made; and one that is put into and cleared.
const TUBES: [&str; 2] = ["in", "post"];
const SCRAP: &str = "scrap";
/// Work of each of the threads.
const PUTS: u64 = 120;
const RESERVES: u64 = 80;
const CHANGES: u64 = 60;

/// Acknowledged jobs.
#[derive(Debug, Default)]
struct Ledger {
    /// Of one job either may be answered first.
    put: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// How many puts and deletes of a job are not answered.
    doubtful: BTreeMap<String, u32>,
    /// Jobs that were put, and that a clearing is known to have deleted.
    scrap: u64,
    cleared: u64,
}

/// The load, and all that its threads share.
struct Load {
    server: SocketAddr,
    http: SocketAddr,
    ledger: Mutex<Ledger>,
    /// So that no two loads have a body in common.
    round: u32,
    /// Changes that were acknowledged.
    done: AtomicU64,
}

impl Load {
    fn of(site: &Site, round: u32, ledger: Ledger) -> Load {
        Load {
            server: site.server.address(),
            http: site.address,
            ledger: Mutex::new(ledger),
            round,
            done: AtomicU64::new(0),
        }
    }

    fn note<T>(&self, what: impl FnOnce(&mut Ledger) -> T) -> T {
        what(&mut self.ledger.lock().unwrap())
    }

    /// The job's put or delete is under way, until [`Load::end`].
    fn begin(&self, body: &str) {
        self.note(|ledger| *ledger.doubtful.entry(body.to_owned()).or_default() += 1);
    }

    fn end(&self, body: &str) {
        self.note(|ledger| *ledger.doubtful.get_mut(body).unwrap() -= 1);
    }

    fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn note_deleted(&self, body: &str) {
        self.note(|ledger| ledger.deleted.insert(body.to_owned()));
        self.end(body);
    }

    /// `None`: the server is gone.
    fn api(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let mut stream = TcpStream::connect(self.http).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let head = format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.http,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).ok()?))
    }

    fn produce(&self, number: u64) -> Option<()> {
        let mut wire = Wire::connect(self.server).ok()?;
        for nth in 0..PUTS {
            let tube = [TUBES[0], TUBES[1], SCRAP][(nth % 3) as usize];
            let body = format!("{tube}.{}.{number}.{nth}", self.round);
            ask(&mut wire, &format!("use {tube}"))?;
            self.begin(&body);
            wire.try_send(&put_command(nth as u32 % 5, 0, body.as_bytes()))
                .ok()?;
            let reply = String::from_utf8(wire.try_reply().ok()?).unwrap();
            assert!(inserted(&reply).is_some(), "{reply}");
            self.note(|ledger| {
                ledger.scrap += u64::from(tube == SCRAP);
                ledger.put.insert(body.clone())
            });
            self.end(&body);
            self.count();
        }
        Some(())
    }

    fn work(&self, seed: u64) -> Option<()> {
        let mut random = Random::new(seed);
        let mut wire = Wire::connect(self.server).ok()?;
        for tube in TUBES {
            ask(&mut wire, &format!("watch {tube}"))?;
        }
        for _ in 0..RESERVES {
            wire.try_send(b"reserve-with-timeout 0\r\n").ok()?;
            let reply = wire.try_reply().ok()?;
            let Some((id, body)) = job_of(&reply) else {
                continue;
            };
            let body = String::from_utf8_lossy(body).into_owned();
            let (line, wanted) = match random.below(4) {
                0 => (format!("bury {id} 7"), "BURIED"),
                1 => (format!("release {id} 3 0"), "RELEASED"),
                2 => (format!("release {id} 3 100000"), "RELEASED"),
                _ => (format!("delete {id}"), "DELETED"),
            };
            let deletes = wanted == "DELETED";
            if deletes {
                self.begin(&body);
            }
            assert_eq!(ask(&mut wire, &line)?, wanted);
            if deletes {
                self.note_deleted(&body);
            }
            self.count();
        }
        Some(())
    }

    /// A change of a job that stands in a list, which may be gone or reserved by then.
    fn change(&self, seed: u64) -> Option<()> {
        let mut random = Random::new(seed);
        for _ in 0..CHANGES {
            let (tube, other) = match random.one_in(2) {
                true => (TUBES[0], TUBES[1]),
                false => (TUBES[1], TUBES[0]),
            };
            let state = random.pick(&["ready", "ready", "delayed", "buried"]);
            let list = format!("/tubes/{tube}/jobs?state={state}&limit=20");
            let (_, page) = self.api("GET", &list, &Value::Null)?;
            let jobs = page["jobs"].as_array().cloned().unwrap_or_default();
            if jobs.is_empty() {
                continue;
            }
            let path = format!(
                "/jobs/{}",
                jobs[random.below(jobs.len() as u64) as usize]["id"]
            );
            let (status, job) = self.api("GET", &path, &Value::Null)?;
            let Some(body) = job["body"]["data"].as_str().filter(|_| status == 200) else {
                continue;
            };
            let (word, with) = match random.below(6) {
                0 | 1 => ("/move", json!({"to": other, "kick": random.one_in(2)})),
                2 => ("/bury", json!({})),
                3 => ("/kick", json!({})),
                4 => ("/priority", json!({"priority": random.below(9)})),
                _ => ("", Value::Null),
            };
            let deletes = word.is_empty();
            if deletes {
                self.begin(body);
            }
            let method = if deletes { "DELETE" } else { "POST" };
            let (status, answer) = self.api(method, &format!("{path}{word}"), &with)?;
            match status {
                200 if deletes => self.note_deleted(body),
                // It is moved, deleted or reserved.
                404 | 409 if deletes => self.end(body),
                200 | 404 | 409 => {}
                _ => panic!("{method} {path}{word}: {status} {answer}"),
            }
            self.count();
        }
        Some(())
    }

    /// Redrive, clear, and search, one after the other.
    fn many(&self) -> Option<()> {
        for _ in 0..5 {
            let redrive = json!({"to": TUBES[1]});
            self.task("/tubes/in/redrive", "/tasks", &redrive)?;
            let clear = json!({"states": ["ready", "delayed", "buried"]});
            let (status, cleared) = self.api("POST", "/tubes/scrap/clear", &clear)?;
            assert_eq!(status, 200, "{cleared}");
            let count = cleared["deleted"].as_u64().unwrap();
            self.note(|ledger| ledger.cleared += count);
            let search = json!({"filter": {"tube": "*", "contains": {"data": ".1."}}});
            let found = self.task("/search", "/search", &search)?;
            assert!(found["jobs"].is_array(), "{found}");
        }
        Some(())
    }

    fn task(&self, path: &str, list: &str, body: &Value) -> Option<Value> {
        let (status, mut task) = self.api("POST", path, body)?;
        assert_eq!(status, 202, "{path}: {task}");
        let path = format!("{list}/{}", task["id"]);
        while ["counting", "running"].contains(&task["state"].as_str().unwrap()) {
            task = self.api("GET", &path, &Value::Null)?.1;
        }
        assert_eq!(task["state"], "done", "{task}");
        Some(task)
    }

    /// Everything at once, to its end or until the server is gone.
    fn run(&self, meanwhile: impl FnOnce()) {
        thread::scope(|scope| {
            for number in 0..3 {
                scope.spawn(move || self.produce(number));
                scope.spawn(move || self.work(number));
                scope.spawn(move || self.change(number + 100));
            }
            scope.spawn(|| self.many());
            meanwhile();
        });
    }
}

/// `None`: the server is gone.
fn ask(wire: &mut Wire, line: &str) -> Option<String> {
    wire.try_send(format!("{line}\r\n").as_bytes()).ok()?;
    let reply = wire.try_reply().ok()?;
    Some(String::from_utf8_lossy(&reply).trim_end().to_owned())
}

/// Every job that the API lists, by its body, as it and the protocol have it: id, tube, state and
/// priority.
fn listed(site: &Site) -> BTreeMap<String, (u64, String, String, u64)> {
    let mut wire = site.server.connect();
    wait_until("no job is reserved", || {
        wire.stat("stats", "current-jobs-reserved") == "0"
    });
    let (mut found, mut last_id) = (BTreeMap::new(), 0);
    for tube in [TUBES[0], TUBES[1], SCRAP] {
        for state in ["ready", "delayed", "buried"] {
            let mut after = String::new();
            loop {
                let path = format!("/api/v1/tubes/{tube}/jobs?state={state}&limit=50{after}");
                let page = site.get(&path).json();
                for job in page["jobs"].as_array().into_iter().flatten() {
                    let (id, body) = seen(&mut wire, tube, state, job);
                    last_id = last_id.max(id);
                    let pri = job["priority"].as_u64().unwrap();
                    let before = found.insert(body, (id, tube.into(), state.into(), pri));
                    assert_eq!(before, None, "a job is there twice: {job}");
                }
                match page["next"].as_str() {
                    Some(next) => after = format!("&after={next}"),
                    None => break,
                }
            }
        }
    }
    let total: usize = ["ready", "delayed", "buried"]
        .iter()
        .map(|state| {
            let count = wire.stat("stats", &format!("current-jobs-{state}"));
            count.parse::<usize>().unwrap()
        })
        .sum();
    assert_eq!(
        found.len(),
        total,
        "the lists have other jobs than there are"
    );
    found
}

/// A job of a list, held to what the protocol says of it: its id and its body.
fn seen(wire: &mut Wire, tube: &str, state: &str, job: &Value) -> (u64, String) {
    let id = job["id"].as_u64().unwrap();
    let document = wire.ask(&format!("stats-job {id}"));
    for (key, value) in [
        ("tube", format!("{tube:?}")),
        ("state", state.to_owned()),
        ("pri", job["priority"].to_string()),
        ("reserves", job["reserves"].to_string()),
        ("kicks", job["kicks"].to_string()),
    ] {
        let line = format!("\n{key}: {value}\n");
        assert!(document.contains(&line), "{line:?} of {job}: {document}");
    }
    wire.send(format!("peek {id}\r\n"));
    let reply = wire.reply();
    let (found, body) = job_of(&reply).unwrap();
    assert_eq!(found, id);
    (id, String::from_utf8_lossy(body).into_owned())
}

/// Assert that the found jobs are the acknowledged ones, apart from those under way.
fn compare(ledger: &Ledger, found: impl Iterator<Item = String>, is_whole: bool) {
    let is_scrap = |body: &&String| body.starts_with(SCRAP);
    let found: BTreeSet<String> = found.collect();
    let scrap = found.iter().filter(is_scrap).count() as u64;
    match is_whole {
        true => assert_eq!(scrap, ledger.scrap - ledger.cleared, "cleared and not"),
        // A clearing was under way: some of it is done.
        false => assert!(scrap <= ledger.scrap + 3 - ledger.cleared),
    }
    let is_doubtful = |body: &String| ledger.doubtful.get(body).is_some_and(|count| *count > 0);
    let there = |body: &String| ledger.put.contains(body) && !ledger.deleted.contains(body);
    let strange: Vec<_> = found
        .iter()
        .filter(|body| !there(body) && !is_doubtful(body))
        .collect();
    assert!(
        strange.is_empty(),
        "no one has put these, or they were deleted: {strange:?}"
    );
    let lost = ledger.put.difference(&ledger.deleted);
    let lost = lost.filter(|body| !found.contains(*body) && !is_scrap(body));
    let lost: Vec<_> = lost.filter(|body| !is_doubtful(body)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
}

#[test]
fn what_the_api_changes_under_load_is_so_and_stays_so_after_a_kill() {
    let dir = TempDir::new().unwrap();
    let launch = Launch::bsd().dir(dir.path());
    let site = Site::start(launch.clone());
    let load = Load::of(&site, 1, Ledger::default());
    load.run(|| ());
    let before = listed(&site);
    let ledger = load.ledger.into_inner().unwrap();
    assert!(ledger.doubtful.values().all(|count| *count == 0));
    assert!(before.len() > 20 && ledger.cleared > 0, "{}", before.len());
    compare(&ledger, before.keys().cloned(), true);
    site.server.kill();

    let site = Site::start(launch.clone());
    assert_eq!(listed(&site), before, "a kill has changed something");
    // Once more, and killed in the middle of it.
    let put = before.keys().cloned().collect();
    let scrap = before.keys().filter(|body| body.starts_with(SCRAP)).count() as u64;
    let ledger = Ledger {
        put,
        scrap,
        ..Ledger::default()
    };
    let load = Load::of(&site, 2, ledger);
    load.run(|| {
        wait_until("much is done", || load.done.load(Ordering::Relaxed) > 200);
        site.server.kill();
    });
    let site = Site::start(launch);
    let ledger = load.ledger.into_inner().unwrap();
    compare(&ledger, listed(&site).into_keys(), false);
}
