//! How much goes with a machine: a server with an archive is killed at a random moment, also just
//! after a restore or a promotion, and its directory is removed. The server that takes its place has
//! a prefix of what its clients did: every change before some moment, and none after it.
//!
//! What is missing was acknowledged a short while before the kill. One clock of this process measures
//! that, from the moment at which a client had read the answer to the one before the signal was sent.
//! A machine with other work may hold up a server: so the time is printed, and asserted only if
//! `BSD_RPO_ROUNDS` asks for a long run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::archive::{ctl, follow};
use crate::harness::{self, Launch, Server, wait_until};
use crate::s3::{self, Mood, SmallS3, client_every};
use crate::wire::{Wire, inserted, put_command};
use bsd::check::volume::{seed_of_run, volume};
use bsd::random::Random;

const ROUNDS: &str = "BSD_RPO_ROUNDS";
const CLIENTS: usize = 4;
/// Jobs of a client that are alive.
const ALIVE_MAX: usize = 20;
const PADDING_MAX: usize = 500;
/// The default of the server.
const INTERVAL_MS: u64 = 1000;
/// An interval, and an upload.
const LOSS_MAX: Duration = Duration::from_millis(1500);
/// Between two changes of a client, so that a long run stays small.
const PAUSE: Duration = Duration::from_millis(1);

/// A job: the round in which it was put, the client, and which of its jobs it is.
type Tag = (u64, usize, u64);
/// Jobs, and their ids.
type Jobs = BTreeMap<Tag, u64>;

fn tag_of(body: &str) -> Tag {
    let mut words = body.split(' ');
    let mut next = || words.next().unwrap().parse::<u64>().unwrap();
    (next(), next() as usize, next())
}

/// How a server comes to its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It is the first one.
    New,
    /// `bsd-wal archive restore`, and a start.
    Restored,
    /// `--restore-if-empty`.
    Refilled,
    /// It was a standby.
    Promoted,
}

/// An archive, and room for the directories of servers.
struct Place {
    dir: TempDir,
    /// `None`: the archive is in a directory.
    store: Option<SmallS3>,
}

impl Place {
    fn new(store: Option<SmallS3>) -> Place {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("archive")).unwrap();
        Place { dir, store }
    }

    fn at(&self, name: u64) -> PathBuf {
        self.dir.path().join(name.to_string())
    }

    fn url(&self) -> String {
        match &self.store {
            Some(_) => s3::URL.to_owned(),
            None => format!("file://{}", self.dir.path().join("archive").display()),
        }
    }

    fn launch(&self, flag: &str, dir: &Path) -> Launch {
        let launch = Launch::bsd().dir(dir);
        match &self.store {
            Some(store) => client_every(INTERVAL_MS, flag, store.address, launch),
            None => {
                let interval = INTERVAL_MS.to_string();
                launch.args([flag, &self.url(), "--archive-interval", &interval])
            }
        }
    }

    fn wal(&self, args: &[&str]) -> (Option<i32>, String) {
        match &self.store {
            Some(store) => s3::wal(store.address, args),
            None => harness::wal(args),
        }
    }

    /// The server that takes the place of one that is lost.
    fn replace(&self, way: Way, dir: &Path, standby: Option<Server>) -> Server {
        let launch = self.launch("--archive", dir);
        match (way, standby) {
            (Way::Promoted, Some(copy)) => {
                let (code, said) = ctl(&copy, &["promote"]);
                assert_eq!((code, &said["serves"]), (Some(0), &true.into()), "{said}");
                copy.serving()
            }
            (Way::Refilled, _) => launch.arg("--restore-if-empty").start(),
            _ => {
                let args = ["archive", "restore", &self.url(), dir.to_str().unwrap()];
                let (code, said) = self.wal(&args);
                assert_eq!(code, Some(0), "{said}");
                launch.start()
            }
        }
    }
}

/// The jobs in the log of a server that were put before this round.
fn jobs_before(round: u64, dir: &Path, more: &[&str]) -> Jobs {
    let args = ["dump", "--json", dir.to_str().unwrap()];
    let (code, said) = harness::wal(&[&args, more].concat());
    assert_eq!(code, Some(0), "{said}");
    let jobs = said.lines().filter(|line| line.contains("\"tube\""));
    let job = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let tag = tag_of(value["body"].as_str().unwrap());
        (tag, value["id"].as_u64().unwrap())
    };
    jobs.map(job).filter(|(tag, _)| tag.0 < round).collect()
}

/// A put or a delete.
#[derive(Debug)]
struct Change {
    tag: Tag,
    sent: Instant,
    /// When the answer had been read; the id of the job.
    acknowledged: Option<(Instant, u64)>,
    is_put: bool,
}

/// A client, and what it has done in a round.
#[derive(Debug)]
struct Client {
    round: u64,
    number: usize,
    random: Random,
    alive: VecDeque<(Tag, u64)>,
    changes: Vec<Change>,
}

impl Client {
    fn new(round: u64, number: usize, random: Random) -> Client {
        Client {
            round,
            number,
            random,
            alive: VecDeque::new(),
            changes: Vec::new(),
        }
    }

    /// Puts and deletes until the server is gone. What comes into `inherited` is deleted too. The oldest
    /// job goes first, and the last one stays: so no two moments of this client have the same jobs.
    fn run(&mut self, server: SocketAddr, inherited: &Mutex<Vec<(Tag, u64)>>) {
        let Ok(mut wire) = Wire::connect(server) else {
            return;
        };
        let mut is_there = true;
        while is_there {
            let old = match self.number == 0 && self.random.one_in(4) {
                true => inherited.lock().unwrap().pop(),
                false => None,
            };
            let (alive, may_delete) = (self.alive.len(), self.random.percent(30));
            let is_full = alive >= ALIVE_MAX || (alive > 1 && may_delete);
            is_there = match old.or_else(|| self.oldest_if(is_full)) {
                Some(job) => self.delete(&mut wire, job),
                None => self.put(&mut wire),
            };
            thread::sleep(PAUSE);
        }
    }

    fn oldest_if(&mut self, is_wanted: bool) -> Option<(Tag, u64)> {
        match is_wanted {
            true => self.alive.pop_front(),
            false => None,
        }
    }

    fn put(&mut self, wire: &mut Wire) -> bool {
        let tag = (self.round, self.number, self.changes.len() as u64);
        let padding = "x".repeat(self.random.below(PADDING_MAX));
        let body = format!("{} {} {} {padding}", tag.0, tag.1, tag.2);
        let command = put_command(0, 0, body.as_bytes());
        let id = self.change(wire, (tag, true), &command, inserted);
        self.alive.extend(id.map(|id| (tag, id)));
        id.is_some()
    }

    fn delete(&mut self, wire: &mut Wire, (tag, id): (Tag, u64)) -> bool {
        let command = format!("delete {id}\r\n");
        let deleted = |reply: &str| (reply == "DELETED\r\n").then_some(id);
        self.change(wire, (tag, false), command.as_bytes(), deleted)
            .is_some()
    }

    /// The id of the job; `None`: the server is gone, and no one knows whether it was done.
    fn change(
        &mut self,
        wire: &mut Wire,
        (tag, is_put): (Tag, bool),
        command: &[u8],
        id_in: impl Fn(&str) -> Option<u64>,
    ) -> Option<u64> {
        let sent = Instant::now();
        let reply = wire.try_send(command).and_then(|()| wire.try_reply());
        let acknowledged = reply.ok().map(|reply| {
            let read = Instant::now();
            let reply = String::from_utf8(reply).unwrap();
            let id = id_in(&reply);
            (read, id.unwrap_or_else(|| panic!("{tag:?}: {reply:?}")))
        });
        self.changes.push(Change {
            tag,
            sent,
            acknowledged,
            is_put,
        });
        acknowledged.map(|(_, id)| id)
    }

    /// It may have changed this job.
    fn has(&self, tag: &Tag) -> bool {
        let is_old = tag.0 < self.round && self.number == 0;
        is_old || (tag.0, tag.1) == (self.round, self.number)
    }

    /// Its changes that are in `found`, and those that are missing.
    fn kept_and_lost(&self, before: &Jobs, found: &Jobs) -> (&[Change], &[Change]) {
        // The jobs that are in one of the two and not in the other. Each change adds or removes one.
        let mut apart = BTreeSet::new();
        let mut change = |tag: &Tag| {
            if !apart.remove(tag) {
                apart.insert(*tag);
            }
            apart.is_empty()
        };
        let mut is_same = true;
        for tag in before.keys().chain(found.keys()) {
            if self.has(tag) {
                is_same = change(tag);
            }
        }
        let mut kept = is_same.then_some(0);
        for (nth, next) in (1..).zip(&self.changes) {
            if change(&next.tag) {
                kept = Some(nth);
            }
        }
        let kept = kept.unwrap_or_else(|| {
            panic!("no prefix of the changes of this client gives what is there: {self:?}")
        });
        self.changes.split_at(kept)
    }
}

/// A server from its start to its kill.
#[derive(Debug)]
struct Life {
    way: Way,
    is_short: bool,
    /// The jobs with which it began.
    before: Jobs,
    clients: Vec<Client>,
    killed: Instant,
}

/// What went with a machine.
#[derive(Debug, Clone, Copy)]
struct Loss {
    way: Way,
    is_short: bool,
    /// Acknowledged changes that are missing.
    changes: usize,
    /// How long before the kill the first of them was acknowledged.
    age: Duration,
}

impl Life {
    /// Assert that `found` is a prefix of this life. Says what is missing.
    fn loss(&self, found: &Jobs) -> Loss {
        let is_known = |tag: &&Tag| self.clients.iter().any(|client| client.has(tag));
        assert!(found.keys().all(|tag| is_known(&tag)), "a job of no one");
        let (mut last_sent, mut missing) = (None, Vec::new());
        for client in &self.clients {
            let (kept, lost) = client.kept_and_lost(&self.before, found);
            last_sent = last_sent.max(kept.last().map(|it| it.sent));
            let acknowledged = lost.iter().filter_map(|it| it.acknowledged);
            missing.extend(acknowledged.map(|(at, _)| at));
            for put in kept.iter().filter(|it| it.is_put) {
                let (id, told) = (found.get(&put.tag), put.acknowledged);
                if let (Some(id), Some((_, told))) = (id, told) {
                    assert_eq!(*id, told, "{:?}", put.tag);
                }
            }
        }
        let first = missing.iter().min().copied();
        if let (Some(sent), Some(acknowledged)) = (last_sent, first) {
            let what = "a change is there that was sent after a missing one was acknowledged";
            assert!(sent <= acknowledged, "{what}");
        }
        Loss {
            way: self.way,
            is_short: self.is_short,
            changes: missing.len(),
            age: first.map_or(Duration::ZERO, |at| self.killed.duration_since(at)),
        }
    }

    /// Assert that no id was given out before, and note those that were.
    fn note_ids(&self, found: &Jobs, given: &mut BTreeSet<u64>) {
        let changes = self.clients.iter().flat_map(|client| &client.changes);
        for put in changes.filter(|it| it.is_put) {
            let told = put.acknowledged.map(|(_, id)| id);
            if let Some(id) = told.or_else(|| found.get(&put.tag).copied()) {
                assert!(given.insert(id), "id {id} is given out twice");
            }
        }
    }
}

/// One machine after another is lost. Each time the next one is looked at before its clients touch
/// what it begins with.
fn lose_machines(place: &Place, rounds: u64, seed: u64) -> Vec<Loss> {
    let mut random = Random::new(seed);
    let (mut dir, mut way) = (place.at(0), Way::New);
    let mut server = place.launch("--archive", &dir).start();
    wait_until("there is a base", || {
        let (_, said) = place.wal(&["archive", "ls", &place.url()]);
        said.contains("  can be restored: ")
    });
    let (mut last, mut losses, mut given) = (None::<Life>, Vec::new(), BTreeSet::new());
    let mut judge = |last: &Option<Life>, found: &Jobs| {
        if let Some(life) = last {
            losses.push(life.loss(found));
            life.note_ids(found, &mut given);
        }
    };
    for round in 1..=rounds {
        let next = (
            random.pick(&[Way::Restored, Way::Refilled, Way::Promoted]),
            place.at(round),
        );
        let is_short = random.percent(50);
        let length = match is_short {
            true => random.below(1000),
            false => 1000 + random.below(1500),
        };
        let client = |number| Client::new(round, number, random.fork(number as u64));
        let mut clients: Vec<Client> = (0..CLIENTS).map(client).collect();
        let (address, inherited) = (server.address(), &Mutex::new(Vec::new()));
        let begun = Instant::now();
        let end = begun + Duration::from_millis(length);
        let (before, standby, killed) = thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(move || client.run(address, inherited));
            }
            // There is no time for that in a short life: then the dead log is looked at.
            let before = (!is_short).then(|| jobs_before(round, &dir, &["--live"]));
            if let Some(before) = &before {
                judge(&last, before);
                *inherited.lock().unwrap() = before.iter().map(|it| (*it.0, *it.1)).collect();
            }
            let standby =
                (next.0 == Way::Promoted).then(|| follow(place.launch("--follow", &next.1)));
            // The moment is random.
            thread::sleep(end.saturating_duration_since(Instant::now()));
            let killed = Instant::now();
            server.kill();
            (before, standby, killed)
        });
        let before = before.unwrap_or_else(|| {
            let before = jobs_before(round, &dir, &[]);
            judge(&last, &before);
            before
        });
        last = Some(Life {
            way,
            is_short: killed.duration_since(begun) < Duration::from_secs(1),
            before,
            clients,
            killed,
        });
        fs::remove_dir_all(&dir).unwrap();
        (way, dir) = next;
        server = place.replace(way, &dir, standby);
    }
    judge(&last, &jobs_before(rounds + 1, &dir, &["--live"]));
    let exit = server.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let (code, said) = place.wal(&["archive", "verify", &place.url()]);
    assert_eq!(code, Some(0), "{said}");
    losses
}

/// What was lost, in one line, and whether it is within the bound.
fn report(what: &str, losses: &[Loss]) -> bool {
    let changes: usize = losses.iter().map(|loss| loss.changes).sum();
    let within = losses.iter().filter(|loss| loss.age <= LOSS_MAX).count();
    let oldest = |is_meant: &dyn Fn(&&Loss) -> bool| {
        let meant: Vec<_> = losses.iter().filter(is_meant).collect();
        let age = meant.iter().map(|loss| loss.age).max().unwrap_or_default();
        format!("{} of {}", age.as_millis(), meant.len())
    };
    println!(
        "{what}: {} machines lost, and with them {changes} acknowledged changes; of {within} the \
         first was acknowledged at most {} ms before the kill. The oldest, ms: new {}, restored {}, \
         refilled {}, promoted {}; killed within a second {}, later {}",
        losses.len(),
        LOSS_MAX.as_millis(),
        oldest(&|loss| loss.way == Way::New),
        oldest(&|loss| loss.way == Way::Restored),
        oldest(&|loss| loss.way == Way::Refilled),
        oldest(&|loss| loss.way == Way::Promoted),
        oldest(&|loss| loss.is_short),
        oldest(&|loss| !loss.is_short),
    );
    within == losses.len()
}

fn drill(what: &str, store: Option<SmallS3>) {
    let losses = lose_machines(
        &Place::new(store),
        volume(ROUNDS, 3),
        seed_of_run("BSD_RPO_SEED"),
    );
    let is_within = report(what, &losses);
    let is_long = std::env::var_os(ROUNDS).is_some();
    assert!(is_within || !is_long, "too much was lost: {losses:?}");
}

#[test]
fn a_machine_that_is_lost_with_an_archive_in_a_directory_takes_the_last_moment_with_it() {
    drill("in a directory", None);
}

#[test]
fn a_machine_that_is_lost_with_an_archive_in_an_object_store_takes_the_last_moment_with_it() {
    drill("in an object store", Some(SmallS3::start(Mood::Well)));
}
