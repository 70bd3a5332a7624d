//! `bsd-wal archive expire --keep 7d --keep-daily 30 --keep-weekly 12`, over an archive of a hundred days.
//!
//! No program can be given another day. So the archive is written by the engine and the writer of a
//! server, in this process, with a clock of the test; what expires and restores it are the programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

use bsd::clock::utc;
use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::{RealFs, SyncPolicy, Trail};
use bsd::types::{ClientId, JobId, Now, SECOND_NS, Ticket, Time};
use bsd_archive::format::BaseName;
use bsd_archive::order::{Made, Order};
use bsd_archive::{Codec, Done, Sizes, Writer};

use crate::harness::{Launch, wal};
use crate::wire::job_of;

const DAY_S: u64 = 86_400;
const HOUR_S: u64 = 3600;
const DAYS: u64 = 100;
/// The 30th of June 2025, a Monday.
const LAST_DAY: u64 = 20_269;

type Jobs = BTreeMap<u64, String>;

/// A base, and the jobs at that moment.
#[derive(Debug)]
struct State {
    day: u64,
    made: Made,
    jobs: Jobs,
}

struct Sink;

impl ReplySink for Sink {
    fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
}

/// A server and its archive, whose clock is set.
struct World {
    engine: Engine,
    client: ClientId,
    writer: Writer,
    now: Now,
    jobs: Jobs,
}

impl World {
    fn start(dir: &Path, url: &str) -> World {
        let now = Now {
            mono: Time(SECOND_NS),
            wall_ns: (LAST_DAY - DAYS + 1) * DAY_S * SECOND_NS as u64,
        };
        let options = Options {
            dir: Some(dir.to_owned()),
            segment_size: 64 << 10,
            sync: SyncPolicy::Always,
            ..Options::default()
        };
        let mut engine = Engine::open(&options, now).unwrap();
        let client = engine.connect();
        let trail = Arc::new(Trail::new(1 << 30));
        engine.publish_to([trail.clone()]);
        let store = Arc::from(bsd_archive::open(url, Codec::default()).unwrap());
        let (fs, node) = (Arc::new(RealFs), "a test".to_owned());
        let writer = Writer::new(store, trail, fs, dir.to_owned(), node, Sizes::default());
        World {
            engine,
            client,
            writer,
            now,
            jobs: Jobs::new(),
        }
    }

    fn pass(&mut self, seconds: u64) {
        let ns = seconds * SECOND_NS as u64;
        self.now.mono = Time(self.now.mono.0 + ns as i64);
        self.now.wall_ns += ns;
    }

    fn run(&mut self, command: Command<'_>) {
        let (client, now) = (self.client, self.now);
        self.engine
            .run(client, Request::Command(command), now, &mut Sink);
        self.engine.commit(now).unwrap();
    }

    fn put(&mut self, body: &str) {
        let id = self.engine.log().unwrap().next_id().0;
        self.run(Command::Put {
            tube: None,
            pri: 0,
            delay: 0,
            ttr: 60,
            body: body.as_bytes().to_vec().into(),
        });
        self.jobs.insert(id, body.to_owned());
    }

    fn delete_oldest(&mut self) {
        let (id, _) = self.jobs.pop_first().unwrap();
        self.run(Command::Delete(JobId(id)));
    }

    fn archive(&mut self) {
        while self.writer.step(self.now.wall_ns, true).unwrap() != Done::Nothing {
            self.engine.tick(self.now, &mut Sink).unwrap();
            self.engine.commit(self.now).unwrap();
        }
    }

    fn base(&mut self, name: Option<&str>) -> State {
        self.archive();
        self.writer.ask_for_base(Order {
            name: name.and_then(BaseName::parse),
            is_pinned: name.is_some(),
        });
        self.archive();
        let made = self.writer.answer().unwrap().unwrap();
        State {
            day: made.wall_ns / (DAY_S * SECOND_NS as u64),
            made,
            jobs: self.jobs.clone(),
        }
    }
}

/// A hundred days: each puts and deletes jobs, and has a base at 20:00; each third one has an earlier one,
/// too. The fifth has one in the morning that is pinned. What came after the last base is in the last
/// jobs.
fn hundred_days(dir: &Path, url: &str) -> (Vec<State>, Jobs) {
    let mut world = World::start(dir, url);
    let mut made = Vec::new();
    for nth in 0..DAYS {
        world.pass(8 * HOUR_S);
        world.put(&format!("morning {nth}"));
        match nth {
            4 => made.push(world.base(Some("before-upgrade"))),
            _ if nth % 3 == 0 => made.push(world.base(None)),
            _ => {}
        }
        world.pass(12 * HOUR_S);
        (0..3).for_each(|number| world.put(&format!("evening {nth}, {number}")));
        if nth % 2 == 0 {
            world.delete_oldest();
        }
        made.push(world.base(None));
        world.pass(4 * HOUR_S - 60);
        world.put(&format!("night {nth}"));
        world.archive();
        world.pass(60);
    }
    (made, world.jobs)
}

fn wal_json(words: &[&str]) -> Value {
    let (code, said) = wal(&[words, &["--json"]].concat());
    assert_eq!(code, Some(0), "{words:?}: {said}");
    serde_json::from_str(&said).unwrap()
}

/// Ids and bodies in a directory.
fn jobs_in(dir: &Path) -> Jobs {
    let (code, said) = wal(&["dump", "--json", dir.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    let lines = said.lines().filter(|line| line.contains("\"tube\""));
    let jobs = lines.map(|line| {
        let job: Value = serde_json::from_str(line).unwrap();
        let body = job["body"].as_str().unwrap().to_owned();
        (job["id"].as_u64().unwrap(), body)
    });
    jobs.collect()
}

/// The bases that stay apart: the last one of each of 30 days and of 12 weeks, of those before the oldest
/// base of the last seven days, and the pinned one.
fn wanted(made: &[State]) -> Vec<u64> {
    // The first of January 1970 was a Thursday.
    let week = |day: u64| (day + 3) / 7;
    let mut last_of = BTreeMap::new();
    for state in made {
        if LAST_DAY - state.day < 30 {
            last_of.insert(("day", state.day), state.made.base);
        }
        if week(LAST_DAY) - week(state.day) < 12 {
            last_of.insert(("week", week(state.day)), state.made.base);
        }
    }
    let pinned = made.iter().filter(|it| it.day == LAST_DAY - DAYS + 5);
    last_of.insert(("pin", 0), pinned.map(|it| it.made.base).min().unwrap());
    let all: std::collections::BTreeSet<u64> = last_of.into_values().collect();
    all.into_iter().collect()
}

#[test]
fn a_base_of_each_of_thirty_days_and_twelve_weeks_stays_and_is_restored_exactly() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("archive")).unwrap();
    let url = &*format!("file://{}", at("archive").display());
    let (made, jobs) = hundred_days(&at("data"), url);
    assert_eq!(
        utc(made.last().unwrap().made.wall_ns),
        "2025-06-30T20:00:00.000Z"
    );

    let flags = ["--keep", "7d", "--keep-daily", "30", "--keep-weekly", "12"];
    let expire = [&["archive", "expire", url][..], &flags].concat();
    let would = wal_json(&[&expire[..], &["--dry-run"]].concat());
    let done = wal_json(&expire);
    assert_eq!(would["apart"], done["apart"]);
    // Seven days before the last change, which is of the last night at 23:59.
    let oldest = done["oldest"]["base"].as_u64().unwrap();
    let of_oldest = made.iter().find(|it| it.made.base == oldest).unwrap();
    assert_eq!(of_oldest.day, LAST_DAY - 7, "{done}");
    let wanted: Vec<u64> = wanted(&made);
    let wanted: Vec<u64> = wanted.into_iter().filter(|it| *it < oldest).collect();
    let numbers = |of: &Value| -> Vec<u64> {
        let all = of["apart"].as_array().unwrap().iter();
        all.map(|it| it["base"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&done), wanted);
    // Six weeks end before those days.
    assert_eq!(wanted.len(), 22 + 6 + 1, "{wanted:?}");
    assert_eq!(
        wal_json(&expire)["oldest"],
        Value::Null,
        "nothing is left to do"
    );

    let ls = wal_json(&["archive", "ls", url]);
    assert_eq!(numbers(&ls["logs"][0]), wanted);
    let pinned = made.iter().find(|it| it.made.base == wanted[0]).unwrap();
    assert_eq!(pinned.day, LAST_DAY - DAYS + 5);
    assert_eq!(ls["logs"][0]["pins"], json!([pinned.made.base]));
    let verified = wal_json(&["archive", "verify", url]);
    assert_eq!(verified["is_whole"], true, "{verified}");

    // One of a day, one of a week, the first, the last, and the pinned one by its name.
    let restore = |name: &str, words: &[&str]| {
        let dir = at(name);
        let to = dir.to_str().unwrap();
        wal_json(&[&["archive", "restore", url, to][..], words].concat());
        dir
    };
    let nth = [0, 1, 4, wanted.len() / 2, wanted.len() - 1];
    for state in nth.map(|nth| made.iter().find(|it| it.made.base == wanted[nth]).unwrap()) {
        let base = format!("base:{}", state.made.base);
        let dir = restore(&base.replace(':', "-"), &["--until", &base]);
        assert_eq!(jobs_in(&dir), state.jobs, "{base}");
    }
    let named = restore("named", &["--base", "before-upgrade"]);
    assert_eq!(jobs_in(&named), pinned.jobs);
    assert_eq!(jobs_in(&restore("end", &[])), jobs);
    // A server serves what was kept.
    let state = made.iter().find(|it| it.made.base == wanted[7]).unwrap();
    let base = format!("base:{}", state.made.base);
    let dir = restore("served", &["--until", &base]);
    let server = Launch::bsd().dir(&dir).start();
    let mut wire = server.connect();
    for (id, body) in &state.jobs {
        wire.send(format!("peek {id}\r\n"));
        let reply = wire.reply();
        assert_eq!(job_of(&reply), Some((*id, body.as_bytes())));
    }
    assert_eq!(server.stop().code, Some(0));
    // What expired is refused.
    let gone = made.iter().find(|it| {
        let base = it.made.base;
        base < oldest && !wanted.contains(&base)
    });
    let until = format!("base:{}", gone.unwrap().made.base);
    let to = at("gone");
    let (code, said) = wal(&[
        "archive",
        "restore",
        url,
        to.to_str().unwrap(),
        "--until",
        &until,
    ]);
    assert_eq!(code, Some(2), "{said}");
    assert!(!to.exists(), "{said}");
}
