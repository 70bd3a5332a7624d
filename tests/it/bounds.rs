//! The log stays in proportion to its live jobs, whatever happens to the jobs: at most twice the
//! live bytes and three segments more (D9, P9).

use std::path::Path;

use tempfile::TempDir;

use crate::harness::{Launch, Server, wait_until};
use crate::wire::{Wire, job_of, put_command};
use bsd::check::volume::volume;

const SEGMENT_SIZE: u64 = 1 << 20;
/// Bytes of a job in addition to its body: its record's head, its tube's name, its latest update.
const JOB_OVERHEAD: u64 = 256;
const IN_ONE_PACKET: u64 = 200;

fn start(dir: &Path) -> Option<Server> {
    let launch = Launch::bsd_alone()?.dir(dir).arg("-f").arg("0");
    Some(launch.arg("-s").arg(SEGMENT_SIZE.to_string()).start())
}

fn directory_size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap();
    // A file may go between the listing and the look at it.
    entries
        .map(|entry| entry.unwrap().metadata().map_or(0, |data| data.len()))
        .sum()
}

/// Compaction runs in the background, so the bound is reached, not kept at every instant.
fn assert_bounded(dir: &Path, live: u64) {
    let bound = 2 * live + 3 * SEGMENT_SIZE;
    wait_until("the log is within its bound", || {
        directory_size(dir) <= bound
    });
    println!("{} bytes of log for {live} live ones", directory_size(dir));
}

/// `count` times put, reserve and delete, in packets of many.
fn cycle(wire: &mut Wire, count: u64, body: &[u8]) {
    let mut left = count;
    while left > 0 {
        let some = left.min(IN_ONE_PACKET);
        let reserve: &[u8] = b"reserve-with-timeout 0\r\n";
        wire.send(
            [put_command(5, 0, body), reserve.to_vec()]
                .concat()
                .repeat(some as usize),
        );
        let deletes: String = (0..some).map(|_| delete_of_next(wire)).collect();
        wire.send(deletes);
        for _ in 0..some {
            assert_eq!(wire.text(), "DELETED");
        }
        left -= some;
    }
}

fn delete_of_next(wire: &mut Wire) -> String {
    let put = wire.text();
    assert!(put.starts_with("INSERTED "), "put was answered {put:?}");
    let reserved = wire.reply();
    let (id, _) = job_of(&reserved).expect("the job just put is reserved");
    format!("delete {id}\r\n")
}

#[test]
fn one_old_job_does_not_keep_the_log_of_all_that_came_after_it() {
    let dir = TempDir::new().unwrap();
    let Some(server) = start(dir.path()) else {
        return;
    };
    let mut wire = server.connect();
    wire.ask("use pinned");
    let pinned = wire.put(b"pinned");
    wire.ask("use default");
    cycle(&mut wire, volume("BSD_BOUND_CYCLES", 100_000), &[b'x'; 100]);
    assert_bounded(dir.path(), 6 + JOB_OVERHEAD);
    server.kill();
    let Some(server) = start(dir.path()) else {
        return;
    };
    assert_eq!(
        server.connect().ask(&format!("peek {pinned}")),
        format!("FOUND {pinned} 6\r\npinned")
    );
    assert_bounded(dir.path(), 6 + JOB_OVERHEAD);
}

#[test]
fn burying_and_kicking_a_fixed_set_for_ever_does_not_grow_the_log() {
    const JOBS: u64 = 1000;
    let dir = TempDir::new().unwrap();
    let Some(server) = start(dir.path()) else {
        return;
    };
    let mut wire = server.connect();
    let ids: Vec<u64> = (0..JOBS).map(|_| wire.put(&[b'x'; 100])).collect();
    for _ in 0..volume("BSD_BOUND_ROUNDS", 100) {
        bury_all_and_kick(&mut wire, &ids);
    }
    let live = JOBS * (100 + JOB_OVERHEAD);
    assert_bounded(dir.path(), live);
    server.kill();
    let Some(server) = start(dir.path()) else {
        return;
    };
    assert_eq!(
        server.connect().stat("stats", "current-jobs-ready"),
        JOBS.to_string()
    );
    assert_bounded(dir.path(), live);
}

fn bury_all_and_kick(wire: &mut Wire, ids: &[u64]) {
    for some in ids.chunks(IN_ONE_PACKET as usize) {
        wire.send("reserve-with-timeout 0\r\n".repeat(some.len()));
        let reserved: Vec<u64> = some
            .iter()
            .map(|_| job_of(&wire.reply()).expect("a job is reserved").0)
            .collect();
        wire.send(
            reserved
                .iter()
                .map(|id| format!("bury {id} 0\r\n"))
                .collect::<String>(),
        );
        for _ in &reserved {
            assert_eq!(wire.text(), "BURIED");
        }
    }
    assert_eq!(
        wire.ask(&format!("kick {}", ids.len())),
        format!("KICKED {}", ids.len())
    );
}

/// D21.
#[test]
fn idle_restarts_do_not_grow_the_log() {
    let dir = TempDir::new().unwrap();
    let Some(server) = start(dir.path()) else {
        return;
    };
    let mut wire = server.connect();
    for _ in 0..2000 {
        wire.put(&[b'x'; 1000]);
    }
    server.kill();
    for _ in 0..5 {
        let Some(server) = start(dir.path()) else {
            return;
        };
        assert_eq!(server.connect().stat("stats", "current-jobs-ready"), "2000");
        server.kill();
    }
    let Some(_server) = start(dir.path()) else {
        return;
    };
    assert_bounded(dir.path(), 2000 * (1000 + JOB_OVERHEAD));
}
