//! Directories of beanstalkd that every version from now on must import, and their content.
//!
//! `tests/golden/beanstalkd-v5` was written by the encoder of these tests, as beanstalkd 1.4 does;
//! that it is right, beanstalkd tells, which still reads it. `tests/golden/beanstalkd-v7` and
//! `tests/golden/beanstalkd-v7-moved` were written by beanstalkd 1.12 itself. All were made by
//!
//! ```text
//! BSD_MAKE_GOLDEN=1 cargo test --test it migration::golden
//! ```
//!
//! which makes what does not exist yet. Their files are never edited.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::storage::RealFs;
use tempfile::TempDir;

use super::binlog::{DELAYED, Job, READY, RESERVED, Version, job};
use super::real::{Snapshot, copy_dir, snapshot};
use super::*;
use crate::ROOT;
use crate::harness::{Launch, wal};

fn golden(name: &str) -> PathBuf {
    let root = Path::new(ROOT);
    root.join("tests/golden").join(name)
}

fn is_to_be_made(dir: &Path) -> bool {
    let is_asked = std::env::var_os("BSD_MAKE_GOLDEN").is_some_and(|value| value == "1");
    is_asked && !dir.exists()
}

/// A line a job.
fn describe(jobs: &Jobs) -> String {
    let mut text = format!("next id {}\n", jobs.next_id);
    for job in jobs.jobs.values() {
        let JobRecord {
            id,
            tube,
            pri,
            delay,
            ttr,
            created_wall_ns,
            deadline_wall_ns,
            counters,
            ..
        } = job;
        let (state, body) = (job.state.word(), job.body.escape_ascii());
        writeln!(
            text,
            "{id} {tube} {state} pri {pri} delay {delay} ttr {ttr} created {created_wall_ns} \
             deadline {deadline_wall_ns:?} {counters:?} \"{body}\""
        )
        .unwrap();
    }
    writeln!(text, "buried {:?}", jobs.buried).unwrap();
    text
}

/// Import the directory, compare with what it is known to hold, and with what beanstalkd finds.
fn check(name: &str) {
    let dir = golden(name);
    let target = TempDir::new().unwrap();
    let new = target.path().join("new");
    let (code, said) = wal(&["import", text(&dir), "--output", text(&new)]);
    assert_eq!(code, Some(0), "{said}");
    let found = jobs(Arc::new(RealFs), &new);
    let known = dir.join("jobs.txt");
    if !known.exists() && std::env::var_os("BSD_MAKE_GOLDEN").is_some() {
        fs::write(&known, describe(&found)).unwrap();
    }
    assert_eq!(describe(&found), fs::read_to_string(known).unwrap());
    let Some(beanstalkd) = Launch::beanstalkd() else {
        return;
    };
    let copy = target.path().join("copy");
    copy_dir(&dir, &copy);
    let ids = found.ids();
    let mut expected = snapshot(&beanstalkd.dir(&copy).start(), &ids);
    for id in &found.buried {
        // beanstalkd counts its start as a burial.
        let job = expected.get_mut(&id.0).unwrap();
        job.insert("buries".into(), found.job(id.0).counters.buries.to_string());
    }
    let Some(bsd) = Launch::bsd_alone() else {
        return;
    };
    assert_eq!(snapshot(&bsd.dir(&new).start(), &ids), expected);
}

#[test]
fn a_directory_of_version_5_is_imported_as_beanstalkd_reads_it() {
    let dir = golden("beanstalkd-v5");
    if is_to_be_made(&dir) {
        fs::create_dir_all(&dir).unwrap();
        for (index, bytes) in version_5().into_iter().enumerate() {
            fs::write(dir.join(format!("binlog.{}", index + 4)), bytes).unwrap();
        }
    }
    check("beanstalkd-v5");
}

/// A clock that has gone back would shorten delays.
fn in_2009(job: Job) -> Job {
    Job {
        created_ns: (1_250_000_000 + job.id) * SECOND_NS,
        ..job
    }
}

/// Files 4 and 5 of a history whose first files are gone.
fn version_5() -> Vec<Vec<u8>> {
    let v5 = Version::V5;
    let names = ["default", "mail", "$(a)+b/c;d.e_f"];
    let old: Vec<Job> = (1..=9)
        .map(|id| {
            let body = format!("body of {id}\0\r\n\u{e9}");
            in_2009(job(id, body.as_bytes()).tube(names[id as usize % 3]))
        })
        .collect();
    let late = |job: &Job| Job {
        delay: 4_000_000_000,
        deadline_ns: job.created_ns + 4_000_000_000 * SECOND_NS,
        ..job.in_state(DELAYED)
    };
    let counted = Job {
        counters: [5, 4, 3, 2, 1],
        pri: 4_294_967_295,
        ..old[8].in_state(READY)
    };
    let mut first: Vec<_> = old[2..].iter().map(|job| v5.put(job)).collect();
    first.insert(0, v5.update(&old[0].buried()));
    first.push(v5.delete(&old[0]));
    first.push(v5.update(&old[6].buried()));
    first.push(v5.update(&old[3].buried()));
    let second = [
        v5.update(&late(&old[4])),
        v5.delete(&old[5]),
        v5.update(&counted),
        v5.put(&late(&in_2009(job(10, b"late from the start")))),
        v5.put(&in_2009(job(11, b"taken").in_state(RESERVED))),
        v5.put(&in_2009(job(12, &[b'x'; 500]))),
    ];
    vec![v5.cut_file(&first), v5.file(&second)]
}

#[test]
fn a_directory_of_version_7_is_imported_as_beanstalkd_reads_it() {
    let dir = golden("beanstalkd-v7");
    if is_to_be_made(&dir) {
        let Some(beanstalkd) = Launch::beanstalkd() else {
            return;
        };
        write_version_7(beanstalkd, &dir, 8);
    }
    check("beanstalkd-v7");
}

#[test]
fn a_directory_of_version_7_whose_jobs_were_moved_is_imported_as_beanstalkd_reads_it() {
    let dir = golden("beanstalkd-v7-moved");
    if is_to_be_made(&dir) {
        let Some(beanstalkd) = Launch::beanstalkd() else {
            return;
        };
        write_version_7(beanstalkd, &dir, 100);
    }
    check("beanstalkd-v7-moved");
}

/// Jobs in all states, and `passing` jobs that come and go: if there are many, beanstalkd moves the
/// others.
fn write_version_7(launch: Launch, dir: &Path, passing: usize) {
    fs::create_dir_all(dir).unwrap();
    let launch = launch.dir(dir).arg("-s").arg("4096");
    let server = launch.start();
    let mut wire = server.connect();
    wire.ask("use mail");
    wire.ask("watch mail");
    let kept: Vec<u64> = (0..6)
        .map(|at| wire.put(format!("kept {at}\0\r\n{}", "x".repeat(500)).as_bytes()))
        .collect();
    for id in [kept[3], kept[0], kept[4]] {
        wire.ask(&format!("reserve-job {id}"));
        wire.ask(&format!("bury {id} 77"));
    }
    wire.ask("kick 1");
    wire.ask(&format!("reserve-job {}", kept[1]));
    wire.ask(&format!("release {} 5 4000000000", kept[1]));
    for _ in 0..passing {
        let id = wire.put(&[b'x'; 100]);
        wire.ask(&format!("delete {id}"));
    }
    wire.put(b"the last one");
    server.kill();
    fs::remove_file(dir.join("lock")).unwrap();
}

/// That the comparison can fail.
#[test]
fn two_snapshots_differ_where_the_servers_do() {
    let Some(beanstalkd) = Launch::beanstalkd() else {
        return;
    };
    let (one, two) = (beanstalkd.start(), beanstalkd.start());
    let ids = [one.connect().put(b"a"), two.connect().put(b"b")];
    assert_eq!(ids, [1, 1]);
    let differ: (Snapshot, Snapshot) = (snapshot(&one, &[1]), snapshot(&two, &[1]));
    assert_ne!(differ.0, differ.1);
}
