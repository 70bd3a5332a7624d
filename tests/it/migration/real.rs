//! beanstalkd fills a directory with jobs in all states; they go to bsd and back, and are compared
//! over the protocol each time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::text;
use crate::harness::{Launch, Server, complaints, wait_until, wal};
use crate::wire::{Wire, inserted, job_of};
use bsd::check::volume::{seed_of_run, volume};
use bsd::random::Random;

const TUBES: usize = 50;
/// This many commands are sent before the replies are read.
const BATCH: usize = 50;
/// Seconds; no test lasts so long.
const LONG: u64 = 1_000_000;
/// The values of `stats-job` that do not change while time passes.
const KEYS: [&str; 10] = [
    "tube", "state", "pri", "delay", "ttr", "reserves", "timeouts", "releases", "buries", "kicks",
];

/// The values of a job in a server, and its body.
pub(crate) type Snapshot = BTreeMap<u64, BTreeMap<String, String>>;

/// Ask a server for all of these jobs; one that is not there is missing from the answer.
pub(crate) fn snapshot(server: &Server, ids: &[u64]) -> Snapshot {
    let mut wire = server.connect();
    let mut snapshot = Snapshot::new();
    for ids in ids.chunks(BATCH) {
        let ask = |id| format!("stats-job {id}\r\npeek {id}\r\n");
        wire.send(ids.iter().map(ask).collect::<String>());
        for id in ids {
            let (stats, body) = (wire.text(), wire.reply());
            if let Some((found, body)) = job_of(&body) {
                assert_eq!(found, *id);
                snapshot.insert(*id, describe(&stats, body));
            }
        }
    }
    snapshot
}

fn describe(stats: &str, body: &[u8]) -> BTreeMap<String, String> {
    let pairs = stats.lines().filter_map(|line| line.split_once(": "));
    let known = pairs.filter(|(key, _)| KEYS.contains(key));
    let mut job: BTreeMap<_, _> = known
        .map(|(key, value)| (key.to_owned(), value.trim_matches('"').to_owned()))
        .collect();
    // Rounded so that a few minutes make no difference to a delay of eleven days.
    let left = || {
        stats
            .lines()
            .find_map(|line| line.strip_prefix("time-left: "))
    };
    if job["state"] == "delayed" {
        let left: u64 = left().unwrap().parse().unwrap();
        job.insert("time left".into(), ((left + 600) / 1200).to_string());
    }
    job.insert("body".into(), body.escape_ascii().to_string());
    job
}

pub(crate) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("binlog.") {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Requests that beanstalkd got.
struct Filled {
    ids: Vec<u64>,
    /// Reserved at the end.
    reserved: BTreeSet<u64>,
    /// The buried jobs of each tube, in order.
    buried: BTreeMap<String, Vec<u64>>,
}

fn fill(wire: &mut Wire, random: &mut Random, count: u64) -> Filled {
    let mut filled = Filled {
        ids: Vec::new(),
        reserved: BTreeSet::new(),
        buried: BTreeMap::new(),
    };
    for number in 0..TUBES {
        let tube = format!("tube-{number}");
        wire.ask(&format!("use {tube}"));
        wire.ask(&format!("watch {tube}"));
        wire.ask("ignore default");
        if number > 0 {
            wire.ask(&format!("ignore tube-{}", number - 1));
        }
        let share = count / TUBES as u64;
        put(wire, random, share, &mut filled);
        work(
            wire,
            random,
            (share / 2).max(BATCH as u64),
            &tube,
            &mut filled,
        );
    }
    filled
}

fn put(wire: &mut Wire, random: &mut Random, mut count: u64, filled: &mut Filled) {
    while count > 0 {
        let batch = count.min(BATCH as u64);
        count -= batch;
        let mut bytes = Vec::new();
        for _ in 0..batch {
            let size = if random.one_in(100) {
                65_533 + random.below(3)
            } else {
                random.below(300)
            };
            let delay = if random.one_in(5) { LONG } else { 0 };
            let (pri, ttr) = (random.below(3000), LONG + random.below(9));
            bytes.extend(format!("put {pri} {delay} {ttr} {size}\r\n").bytes());
            let first = random.next() as u8;
            bytes.extend((0..size).map(|at| first.wrapping_add(at as u8)));
            bytes.extend(b"\r\n");
        }
        wire.send(bytes);
        filled
            .ids
            .extend((0..batch).map(|_| inserted(&wire.text()).unwrap()));
    }
}

/// Work that beanstalkd logs.
fn work(wire: &mut Wire, random: &mut Random, count: u64, tube: &str, filled: &mut Filled) {
    let mut buried = Vec::new();
    for _ in 0..count / BATCH as u64 {
        wire.send("reserve-with-timeout 0\r\n".repeat(BATCH));
        let replies: Vec<_> = (0..BATCH).map(|_| wire.reply()).collect();
        let mut expected = Vec::new();
        for (id, _) in replies.iter().filter_map(|reply| job_of(reply)) {
            let pri = random.below(3000);
            let (command, reply) = match random.below(5) {
                0 | 1 => (format!("bury {id} {pri}\r\n"), "BURIED"),
                2 => (format!("release {id} {pri} {LONG}\r\n"), "RELEASED"),
                3 => (format!("delete {id}\r\n"), "DELETED"),
                _ => {
                    filled.reserved.insert(id);
                    continue;
                }
            };
            if reply == "BURIED" {
                buried.push(id);
            }
            wire.send(command);
            expected.push(reply);
        }
        expected
            .iter()
            .for_each(|reply| assert_eq!(wire.text(), *reply));
    }
    let kicked = buried.len() / 4;
    if kicked > 0 {
        let reply = format!("KICKED {kicked}");
        assert_eq!(wire.ask(&format!("kick {kicked}")), reply);
        buried.drain(..kicked);
    }
    filled.buried.insert(tube.to_owned(), buried);
}

/// Take the buried jobs of all tubes in the order in which they are kicked.
fn dig_out(server: &Server) -> BTreeMap<String, Vec<u64>> {
    let mut wire = server.connect();
    let tubes = (0..TUBES).map(|number| format!("tube-{number}"));
    tubes
        .map(|tube| {
            wire.ask(&format!("use {tube}"));
            let buried = dig_out_tube(&mut wire);
            (tube, buried)
        })
        .collect()
}

fn dig_out_tube(wire: &mut Wire) -> Vec<u64> {
    let mut buried = Vec::new();
    loop {
        wire.send("peek-buried\r\nkick 1\r\n".repeat(BATCH));
        let before = buried.len();
        for _ in 0..BATCH {
            // Where none is buried, a kick is for the delayed jobs.
            let (peeked, kicked) = (wire.reply(), wire.text());
            assert!(kicked.starts_with("KICKED "), "{kicked}");
            buried.extend(job_of(&peeked).map(|(id, _)| id));
        }
        if buried.len() < before + BATCH {
            return buried;
        }
    }
}

/// The tubes with jobs, and how many are in which state, as the server counts and as its jobs say.
fn check_tubes(server: &Server, jobs: &Snapshot) {
    let mut counts: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for job in jobs.values() {
        let tube = counts.entry(&job["tube"]).or_default();
        *tube.entry(&job["state"]).or_default() += 1;
    }
    let mut wire = server.connect();
    let listed = wire.ask("list-tubes");
    for (tube, counts) in counts {
        assert!(listed.contains(&format!("- {tube}\n")) || listed.contains(tube));
        for state in ["ready", "reserved", "delayed", "buried"] {
            let key = format!("current-jobs-{state}");
            let said = wire.stat(&format!("stats-tube {tube}"), &key);
            let expected = counts.get(state).copied().unwrap_or(0);
            assert_eq!(said, expected.to_string(), "{tube}: {state}");
        }
    }
}

/// State that beanstalkd reports before it is killed, as it is after any restart.
fn after_restart(mut jobs: Snapshot, reserved: &BTreeSet<u64>) -> Snapshot {
    for id in reserved {
        let job = jobs.get_mut(id).unwrap();
        assert_eq!(job["state"], "reserved");
        job.insert("state".into(), "ready".into());
        // A reservation is not logged.
        job.remove("reserves");
    }
    jobs
}

fn without_reserves(mut jobs: Snapshot, reserved: &BTreeSet<u64>) -> Snapshot {
    for id in reserved {
        jobs.get_mut(id).unwrap().remove("reserves");
    }
    jobs
}

/// The first job that differs, for a message that can be read.
fn assert_same(found: &Snapshot, expected: &Snapshot, what: &str) {
    for (id, job) in expected {
        assert_eq!(found.get(id), Some(job), "{what}: job {id}");
    }
    assert_eq!(found.len(), expected.len(), "{what}: jobs too many");
}

#[test]
fn jobs_go_from_beanstalkd_to_bsd_and_back() {
    let (Some(bsd), Some(beanstalkd)) = (Launch::bsd_alone(), Launch::beanstalkd()) else {
        return;
    };
    let home = TempDir::new().unwrap();
    let dir = |name: &str| home.path().join(name);
    let (old, new, back) = (dir("old"), dir("new"), dir("back"));
    fs::create_dir(&old).unwrap();
    let mut random = Random::new(seed_of_run("BSD_MIGRATION_SEED"));

    // What is written survives a kill, synced or not.
    let server = beanstalkd.clone().dir(&old).arg("-F").start();
    let mut wire = server.connect();
    let count = volume("BSD_MIGRATION_JOBS", 5000);
    let filled = fill(&mut wire, &mut random, count);
    let in_use = wal(&["import", text(&old), "--output", text(&new)]);
    assert!(
        in_use.0 == Some(2) && in_use.1.contains("in use"),
        "{in_use:?}"
    );
    let expected = after_restart(snapshot(&server, &filled.ids), &filled.reserved);
    server.kill();

    let (code, said) = wal(&["import", text(&old), "--output", text(&new)]);
    assert_eq!(code, Some(0), "{said}");
    let server = bsd.clone().dir(&new).start();
    let served = snapshot(&server, &filled.ids);
    check_tubes(&server, &served);
    let comparable = without_reserves(served.clone(), &filled.reserved);
    assert_same(&comparable, &expected, "imported");
    server.connect().ask("pause-tube tube-7 1000000");
    assert_eq!(server.stop().code, Some(0));

    let (code, said) = wal(&["export", text(&new), "--output", text(&back)]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("tube tube-7 is paused"), "{said}");
    let flags = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("beanstalkd "));
    let flags = flags.unwrap().split(' ');
    let server = flags
        .fold(beanstalkd, |launch, flag| launch.arg(flag))
        .start();
    let returned = snapshot(&server, &filled.ids);
    assert_same(&returned, &served, "exported");
    check_tubes(&server, &returned);
    let next = server.connect().put(b"the next one");
    assert_eq!(next, filled.ids.iter().max().unwrap() + 1);
    assert_eq!(dig_out(&server), filled.buried, "in beanstalkd");

    let server = bsd.dir(&new).start();
    assert_eq!(dig_out(&server), filled.buried, "in bsd");
}

#[test]
fn a_server_imports_beanstalkds_directory_once_when_asked_to() {
    let (Some(bsd), Some(beanstalkd)) = (Launch::bsd_alone(), Launch::beanstalkd()) else {
        return;
    };
    let home = TempDir::new().unwrap();
    let dir = home.path();
    let (bsd, beanstalkd) = (bsd.dir(dir), beanstalkd.dir(dir));
    let server = beanstalkd.start();
    let id = server.connect().put(b"precious");
    let held = bsd.clone().arg("--import").run_to_exit();
    assert_eq!(held.code, Some(10), "{held:?}");
    server.kill();

    let refused = bsd.run_to_exit();
    assert_eq!(refused.code, Some(1));
    for command in ["bsd-wal import", "--import"] {
        assert!(refused.stderr.contains(command), "{refused:?}");
    }

    let original = fs::read(dir.join("binlog.1")).unwrap();
    let server = bsd.clone().arg("--import").start();
    let served = snapshot(&server, &[id]);
    assert_eq!(served[&id]["body"], "precious");
    wait_until("the import is told", || {
        server.stderr().contains("imported (jobs: 1)")
    });
    assert!(complaints(&server.stderr()).is_empty());
    let kept = dir.join("beanstalkd-binlogs");
    assert!(fs::read(kept.join("binlog.1")).unwrap() == original);
    // It holds what beanstalkd locks.
    assert!(beanstalkd.run_to_exit().code.is_some_and(|code| code != 0));
    server.kill();

    for launch in [bsd.clone(), bsd.arg("--import")] {
        let server = launch.start();
        assert_eq!(snapshot(&server, &[id]), served);
        assert!(complaints(&server.stderr()).is_empty());
        server.kill();
    }
    // And back, with what is kept.
    let server = Launch::beanstalkd().unwrap().dir(&kept).start();
    assert_eq!(server.connect().ask(&format!("delete {id}")), "DELETED");
}
