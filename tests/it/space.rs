//! Full disks of the real kind: what `simulation::budget` shows of many, shown of a real server on
//! a real file system.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bsd::random::Random;

use crate::faults::{SmallDisk, delete_all, fill};
use crate::harness::{Launch, wait_until};
use crate::wire::{Wire, job_of, put_command};

/// Take all the room that a file system has left.
pub(crate) fn fill_up(dir: &Path) {
    let mut options = fs::OpenOptions::new();
    let ballast = options.create(true).append(true).open(dir.join("ballast"));
    let mut ballast = ballast.unwrap();
    for size in [1 << 20, 4096, 1] {
        while ballast.write_all(&vec![7; size]).is_ok() {}
    }
}

fn used(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).unwrap().filter_map(Result::ok);
    let metadata = entries.filter_map(|entry| entry.metadata().ok());
    metadata.map(|metadata| metadata.blocks() * 512).sum()
}

/// Ready jobs, in the order in which they are reserved.
fn reserve_and_delete_all(wire: &mut Wire) {
    while wire.stat("stats", "current-jobs-ready") != "0" {
        let ids: Vec<u64> = (0..50)
            .map_while(|_| {
                wire.send("reserve-with-timeout 0\r\n");
                job_of(&wire.reply()).map(|(id, _)| id)
            })
            .collect();
        delete_all(wire, &ids);
    }
}

/// Small jobs at priorities that have nothing to do with their age, so that each file keeps some.
#[test]
fn f01_f02_whatever_fills_a_real_disk_can_be_deleted_in_any_order() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("5m"), Launch::bsd_alone()) else {
        return;
    };
    let data = disk.path().join("data");
    for (segment_size, body) in [("64k", 250), ("256k", 20)] {
        let server = launch
            .clone()
            .dir(&data)
            .arg("-s")
            .arg(segment_size)
            .start();
        let mut wire = server.connect();
        let mut random = Random::new(1);
        loop {
            let puts: Vec<Vec<u8>> = (0..50)
                .map(|_| put_command(random.below(1_000_000), 0, &vec![b'x'; body]))
                .collect();
            wire.send(puts.concat());
            let refused = (0..50).filter(|_| wire.text() == "OUT_OF_MEMORY").count();
            if refused > 0 {
                break;
            }
        }
        reserve_and_delete_all(&mut wire);

        let ids = fill(&mut wire, body);
        for some in ids.chunks(50) {
            wire.send("reserve-with-timeout 0\r\n".repeat(some.len()));
            let reserved = some.iter().map(|_| job_of(&wire.reply()).unwrap().0);
            let lines: String = reserved.map(|id| format!("bury {id} 5\r\n")).collect();
            wire.send(lines);
            some.iter().for_each(|_| assert_eq!(wire.text(), "BURIED"));
        }
        for first in 1..7 {
            let some: Vec<u64> = ids.iter().skip(first).step_by(7).copied().collect();
            delete_all(&mut wire, &some);
        }
        let left = ids.iter().step_by(7).count();
        assert_eq!(wire.ask("kick 1000000"), format!("KICKED {left}"));
        reserve_and_delete_all(&mut wire);
        wait_until("a put works again", || {
            wire.try_put(b"x").starts_with("INSERTED")
        });
        wait_until("the directory is small", || used(&data) < 2 << 20);
        drop(wire);
        assert_eq!(server.stop().code, Some(0));
        fs::remove_dir_all(&data).unwrap();
    }
}

/// Such a copy leaves out zeros, and so the space set aside.
#[test]
fn f08_a_copy_without_its_space_set_aside_starts_on_a_full_disk() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("16m"), Launch::bsd_alone()) else {
        return;
    };
    let (data, copy) = (disk.path().join("data"), disk.path().join("copy"));
    for is_killed in [true, false] {
        let server = launch.clone().dir(&data).arg("-s").arg("1m").start();
        let mut wire = server.connect();
        let ids: Vec<u64> = (0..40).map(|_| wire.put(&[b'x'; 10_000])).collect();
        drop(wire);
        if is_killed {
            server.kill()
        } else {
            assert_eq!(server.stop().code, Some(0))
        }
        let copied = Command::new("cp")
            .args(["-r", "--sparse=always"])
            .args([&data, &copy])
            .status();
        assert!(copied.unwrap().success());
        fill_up(disk.path());
        let server = launch.clone().dir(&copy).arg("-s").arg("1m").start();
        let mut wire = server.connect();
        assert_eq!(wire.try_put(&[b'x'; 60_000]), "OUT_OF_MEMORY");
        fs::remove_file(disk.path().join("ballast")).unwrap();
        // Nothing is set aside in such a copy: that there is room is seen a moment later.
        wait_until("a delete works again", || {
            wire.ask(&format!("delete {}", ids[0])) == "DELETED"
        });
        delete_all(&mut wire, &ids[1..]);
        wait_until("a put works again", || {
            wire.try_put(b"x").starts_with("INSERTED")
        });
        drop(wire);
        assert_eq!(server.stop().code, Some(0));
        fs::remove_dir_all(&data).unwrap();
        fs::remove_dir_all(&copy).unwrap();
    }
}

/// A copy of a log of 400 jobs, made without the space that the log has set aside; and their ids.
fn sparse_copy(launch: &Launch, disk: &Path) -> (PathBuf, Vec<u64>) {
    let (data, copy) = (disk.join("data"), disk.join("copy"));
    let server = launch.clone().dir(&data).arg("-s").arg("1m").start();
    let mut wire = server.connect();
    let ids = (0..400).map(|_| wire.put(&[b'x'; 5000])).collect();
    drop(wire);
    assert_eq!(server.stop().code, Some(0));
    let copied = Command::new("cp")
        .args(["-r", "--sparse=always"])
        .args([&data, &copy])
        .status();
    assert!(copied.unwrap().success());
    (copy, ids)
}

/// There is nothing on the disk that deletes could use: that is said at once, and how much is
/// missing. With that much room they go on.
#[test]
fn g36_a_start_on_a_full_disk_without_its_space_set_aside_says_what_deletes_lack() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("16m"), Launch::bsd_alone()) else {
        return;
    };
    let (copy, ids) = sparse_copy(&launch, disk.path());
    fill_up(disk.path());
    let server = launch.dir(&copy).arg("-s").arg("1m").start();
    let mut wire = server.connect();
    let said = |what: &str| server.stderr().matches(what).count();
    wait_until("it is said before anything is refused", || {
        said("what was set aside for deletes is not there") == 1
    });
    assert_eq!(wire.stat("stats", "disk-full"), "1");
    let delete = format!("delete {}", ids[0]);
    assert_eq!(wire.ask(&delete), "OUT_OF_MEMORY");
    let missing: u64 = wire.stat("stats", "disk-missing-bytes").parse().unwrap();
    assert!(missing > 0);
    let ballast = fs::OpenOptions::new()
        .write(true)
        .open(disk.path().join("ballast"))
        .unwrap();
    let size = ballast.metadata().unwrap().len();
    ballast.set_len(size - missing).unwrap();
    wait_until("a delete works with that much room", || {
        wire.ask(&delete) == "DELETED"
    });
    delete_all(&mut wire, &ids[1..]);
    wait_until("the disk is no longer called full", || {
        wire.try_put(b"x");
        wire.stat("stats", "disk-full") == "0"
    });
    assert_eq!(said("what was set aside for deletes is not there"), 1);
    drop(wire);
    assert_eq!(server.stop().code, Some(0));
}

/// The disk has room at the start, and none later: what was left out is there again.
#[test]
fn g36_a_copy_without_its_space_set_aside_that_starts_in_time_can_be_emptied_on_a_full_disk() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("16m"), Launch::bsd_alone()) else {
        return;
    };
    let (copy, ids) = sparse_copy(&launch, disk.path());
    let server = launch.dir(&copy).arg("-s").arg("1m").start();
    let mut wire = server.connect();
    fill_up(disk.path());
    delete_all(&mut wire, &ids);
    assert_eq!(
        server.stderr().matches("is full").count(),
        0,
        "{}",
        server.stderr()
    );
    drop(wire);
    assert_eq!(server.stop().code, Some(0));
}

#[test]
fn f10_a_disk_that_is_full_is_said_once_when_it_begins_and_once_when_it_ends() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("8m"), Launch::bsd_alone()) else {
        return;
    };
    let server = launch
        .dir(&disk.path().join("data"))
        .arg("-s")
        .arg("256k")
        .start();
    let mut wire = server.connect();
    let said = |what: &str| server.stderr().matches(what).count();
    assert_eq!(wire.stat("stats", "disk-full"), "0");
    let ids = fill(&mut wire, 20_000);
    for _ in 0..200 {
        wire.try_put(&[b'x'; 20_000]);
    }
    assert_eq!(wire.stat("stats", "disk-full"), "1");
    assert_ne!(wire.stat("stats", "disk-missing-bytes"), "0");
    delete_all(&mut wire, &ids);
    wait_until("the disk is no longer called full", || {
        wire.try_put(b"x");
        wire.stat("stats", "disk-full") == "0"
    });
    wait_until("both lines are there", || said("has room again") == 1);
    assert_eq!(said("is full"), 1, "{}", server.stderr());
}

#[test]
fn f10_a_bound_of_memory_that_is_reached_is_said_once_when_it_begins_and_once_when_it_ends() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().arg("--max-memory").arg("1m").start();
    let mut wire = server.connect();
    let said = |what: &str| server.stderr().matches(what).count();
    let ids = fill(&mut wire, 10_000);
    assert_eq!(wire.stat("stats", "memory-full"), "1");
    delete_all(&mut wire, &ids);
    wait_until("the bound is no longer reached", || {
        wire.try_put(b"x");
        wire.stat("stats", "memory-full") == "0"
    });
    wait_until("both lines are there", || {
        said("there is room below --max-memory again") == 1
    });
    assert_eq!(said("--max-memory is reached"), 1, "{}", server.stderr());
}
