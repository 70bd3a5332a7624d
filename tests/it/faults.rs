//! The server as a process where things go wrong around it: full and shared disks, foreign and
//! damaged files, clients by the thousand and clients that do not read.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Exit, Launch, Server, bsd_wal, program, skip, wait_until};
use crate::wire::{Wire, inserted, put_command};
use bsd::check::volume::{seed_of_run, volume};
use bsd::random::Random;

const DAMAGED: Option<i32> = Some(3);
const USAGE: Option<i32> = Some(5);
const IN_USE: Option<i32> = Some(10);
const SEGMENT_SIZE: &str = "1048576";

/// The names and contents of all files of a directory.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<(PathBuf, Vec<u8>)> = entries
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

/// The file and the offset in it where `text` is.
fn locate(dir: &Path, text: &[u8]) -> (PathBuf, usize) {
    let find = |bytes: &[u8]| bytes.windows(text.len()).position(|window| window == text);
    let mut found = contents(dir)
        .into_iter()
        .filter_map(|(path, bytes)| Some((path, find(&bytes)?)));
    found
        .next()
        .expect("the body of an acknowledged job is in the log")
}

fn flip_bit(file: &Path, offset: usize) {
    let opened = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    opened.read_exact_at(&mut byte, offset as u64).unwrap();
    opened
        .write_all_at(&[byte[0] ^ 0x10], offset as u64)
        .unwrap();
}

/// A small file system in memory, unmounted when dropped.
pub(crate) struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// `None` (with the reason printed) where mounting is not allowed.
    pub(crate) fn mount(size: &str) -> Option<SmallDisk> {
        let dir = TempDir::new().unwrap();
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path());
        match mount.output() {
            Ok(output) if output.status.success() => Some(SmallDisk { dir }),
            other => {
                skip(&format!("a tmpfs cannot be mounted: {other:?}"));
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.dir.path())
            .status();
    }
}

/// Put jobs of `size` bytes, many at a time, until some are refused; the ids of the others.
pub(crate) fn fill(wire: &mut Wire, size: usize) -> Vec<u64> {
    const AT_A_TIME: usize = 50;
    let packet = put_command(0, 0, &vec![b'f'; size]).repeat(AT_A_TIME);
    let mut ids = Vec::new();
    for sent in (AT_A_TIME..1_000_000).step_by(AT_A_TIME) {
        wire.send(&packet);
        let replies: Vec<String> = (0..AT_A_TIME).map(|_| wire.text()).collect();
        ids.extend(replies.iter().filter_map(|reply| inserted(reply)));
        let refused = replies
            .iter()
            .filter(|reply| *reply == "OUT_OF_MEMORY")
            .count();
        assert_eq!(ids.len() + refused, sent, "{replies:?}");
        if refused > 0 {
            return ids;
        }
    }
    panic!("the disk never fills up")
}

/// Delete all of the ids, many at a time.
pub(crate) fn delete_all(wire: &mut Wire, ids: &[u64]) {
    for some in ids.chunks(50) {
        wire.send(
            some.iter()
                .map(|id| format!("delete {id}\r\n"))
                .collect::<String>(),
        );
        for id in some {
            assert_eq!(wire.text(), "DELETED", "job {id}");
        }
    }
}

/// Everything but `put` does its work, and says so.
fn work_on_a_full_disk(wire: &mut Wire) {
    let id = wire.reserve();
    assert_eq!(wire.ask(&format!("touch {id}")), "TOUCHED");
    assert_eq!(wire.ask(&format!("release {id} 0 0")), "RELEASED");
    let id = wire.reserve();
    assert_eq!(wire.ask(&format!("release {id} 0 100000")), "RELEASED");
    assert_eq!(wire.stat(&format!("stats-job {id}"), "state"), "delayed");
    assert_eq!(wire.ask("kick 1"), "KICKED 1");
    let id = wire.reserve();
    assert_eq!(wire.ask(&format!("bury {id} 0")), "BURIED");
    assert_eq!(wire.stat(&format!("stats-job {id}"), "state"), "buried");
    assert_eq!(wire.ask(&format!("kick-job {id}")), "KICKED");
    let id = wire.reserve();
    assert_eq!(wire.ask(&format!("bury {id} 0")), "BURIED");
    assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(wire.ask(&format!("peek {id}")), "NOT_FOUND");
}

/// D6, D22, D24.
#[test]
fn on_a_full_disk_all_but_put_works_and_put_comes_back() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("48m"), Launch::bsd_alone()) else {
        return;
    };
    let launch = launch.dir(disk.path()).arg("-s").arg("4194304");
    let server = launch.start();
    let mut wire = server.connect();
    let mut ids = fill(&mut wire, 10_000);
    ids.extend(fill(&mut wire, 100));
    assert!(
        ids.len() > 1000,
        "most of the disk is there for jobs, not {} of them",
        ids.len()
    );
    work_on_a_full_disk(&mut wire);
    work_on_a_full_disk(&mut wire);

    server.kill();
    let server = launch.start();
    let mut wire = server.connect();
    let ready: usize = wire.stat("stats", "current-jobs-ready").parse().unwrap();
    assert_eq!(
        ready,
        ids.len() - 2,
        "two were deleted, all others are there"
    );
    work_on_a_full_disk(&mut wire);

    for _ in 0..ready / 2 {
        let id = wire.reserve();
        assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    }
    // Room comes back when compaction has dropped a file.
    wait_until("a put works again", || {
        wire.try_put(&[b'n'; 10_000]).starts_with("INSERTED")
    });
    drop(wire);
    assert_eq!(server.stop().code, Some(0));
    assert!(launch.start().stop().code == Some(0));
}

#[test]
fn every_job_of_a_full_disk_can_be_deleted() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("24m"), Launch::bsd_alone()) else {
        return;
    };
    let server = launch.dir(disk.path()).arg("-s").arg("2097152").start();
    let mut wire = server.connect();
    let ids = fill(&mut wire, 200);
    delete_all(&mut wire, &ids);
    wait_until("a put works again", || {
        wire.try_put(&[b'n'; 10_000]).starts_with("INSERTED")
    });
}

/// D23.
#[test]
fn puts_refused_on_a_full_disk_leak_nothing() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("24m"), Launch::bsd_alone()) else {
        return;
    };
    let server = launch.dir(disk.path()).arg("-s").arg("2097152").start();
    let mut wire = server.connect();
    fill(&mut wire, 10_000);
    let is_refused = |wire: &mut Wire| wire.try_put(&[b'r'; 10_000]) == "OUT_OF_MEMORY";
    // The last space that is set aside may still be on its way into the log.
    wait_until("a hundred puts in a row are refused", || {
        (0..100).all(|_| is_refused(&mut wire))
    });
    let before = server.resident_memory();
    // The disk is asked again every 100 ms, and may have room for a put then.
    let refused = (0..2000).filter(|_| is_refused(&mut wire)).count();
    assert!(refused > 1900, "{refused} puts were refused");
    let grown = server.resident_memory().saturating_sub(before);
    assert!(grown < 2 << 20, "{grown} bytes for puts that were refused");
}

#[test]
fn a_second_server_on_the_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let first = launch.start();
    let mut wire = first.connect();
    let id = wire.put(b"mine");
    let second = launch.run_to_exit();
    assert_eq!(second.code, IN_USE, "{second:?}");
    assert_names(&second, dir.path());
    assert_eq!(
        wire.ask(&format!("peek {id}")),
        format!("FOUND {id} 4\r\nmine")
    );
    first.kill();
    // The lock goes with its process.
    let again = launch.start();
    assert_eq!(
        again.connect().ask(&format!("peek {id}")),
        format!("FOUND {id} 4\r\nmine")
    );
}

fn assert_names(exit: &Exit, path: &Path) {
    let name = path.to_string_lossy();
    assert!(
        exit.stderr.contains(&*name),
        "{name} is named in {:?}",
        exit.stderr
    );
}

#[test]
fn bsd_refuses_a_directory_that_beanstalkd_has() {
    let dir = TempDir::new().unwrap();
    let (Some(launch), Some(other)) = (Launch::bsd_alone(), Launch::beanstalkd()) else {
        return;
    };
    let _holder = other.dir(dir.path()).start();
    let before = contents(dir.path());
    let refused = launch.dir(dir.path()).run_to_exit();
    assert_eq!(refused.code, IN_USE, "{refused:?}");
    assert_eq!(contents(dir.path()), before);
}

#[test]
fn beanstalkd_refuses_a_directory_that_bsd_has() {
    let dir = TempDir::new().unwrap();
    let (Some(launch), Some(other)) = (Launch::bsd_alone(), Launch::beanstalkd()) else {
        return;
    };
    let holder = launch.dir(dir.path()).start();
    let refused = other.dir(dir.path()).run_to_exit();
    assert_eq!(refused.code, IN_USE, "{refused:?}");
    holder.connect().put(b"still serving");
}

/// D14.
#[test]
fn damage_to_acknowledged_jobs_stops_the_start_and_changes_nothing() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let launch = launch.dir(dir.path()).arg("-s").arg(SEGMENT_SIZE);
    let server = launch.start();
    let mut wire = server.connect();
    let body = |number: u32| format!("body number {number} {}", "d".repeat(1000));
    for number in 0..200 {
        wire.put(body(number).as_bytes());
    }
    server.kill();

    let (file, offset) = locate(dir.path(), body(100).as_bytes());
    flip_bit(&file, offset + 500);
    let before = contents(dir.path());
    for _ in 0..2 {
        let refused = launch.run_to_exit();
        assert_eq!(refused.code, DAMAGED, "{refused:?}");
        assert_names(&refused, Path::new(file.file_name().unwrap()));
        assert_eq!(contents(dir.path()), before);
    }
}

/// D19, D20.
#[test]
fn files_that_are_not_its_own_are_left_alone() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let foreign = [
        ("README", "notes"),
        (".hidden", ""),
        ("backup.tar", "\0\0\0"),
        ("lock.old", "1"),
    ];
    for (name, text) in foreign {
        fs::write(dir.path().join(name), text).unwrap();
    }
    fs::create_dir(dir.path().join("folder")).unwrap();
    let server = launch.start();
    let id = server.connect().put(b"x");
    assert_eq!(server.stop().code, Some(0));
    let server = launch.start();
    assert_eq!(
        server.connect().ask(&format!("peek {id}")),
        format!("FOUND {id} 1\r\nx")
    );
    for (name, text) in foreign {
        assert_eq!(
            fs::read_to_string(dir.path().join(name)).unwrap(),
            text,
            "{name}"
        );
    }
    assert!(dir.path().join("folder").is_dir());
}

#[test]
fn a_directory_of_beanstalkd_is_never_harmed() {
    let dir = TempDir::new().unwrap();
    let (Some(launch), Some(other)) = (Launch::bsd_alone(), Launch::beanstalkd()) else {
        return;
    };
    let server = other.dir(dir.path()).arg("-f").arg("0").start();
    server.connect().put(b"precious");
    server.kill();
    let is_log = |path: &Path| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("binlog.")
    };
    let logs = || {
        Vec::from_iter(
            contents(dir.path())
                .into_iter()
                .filter(|(path, _)| is_log(path)),
        )
    };
    let before = logs();
    assert!(!before.is_empty());
    let refused = launch.dir(dir.path()).run_to_exit();
    assert!(refused.code.is_some_and(|code| code != 0), "{refused:?}");
    assert!(
        refused.stderr.contains("binlog"),
        "it says what it found: {refused:?}"
    );
    assert!(
        refused.stderr.contains("beanstalkd"),
        "it says whose that is: {refused:?}"
    );
    assert_eq!(logs(), before);
}

#[test]
fn sigusr1_drains() {
    let server = Launch::bsd().memory().start();
    let mut wire = server.connect();
    let id = wire.put(b"before");
    server.signal(Signal::USR1);
    wait_until("stats say so", || wire.stat("stats", "draining") == "true");
    assert_eq!(wire.try_put(b"after"), "DRAINING");
    assert_eq!(wire.reserve(), id);
    assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
}

#[test]
fn it_listens_on_several_addresses_and_on_unix_sockets() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let socket = dir.path().join("bsd.sock");
    let unix = format!("unix:{}", socket.display());
    // A machine may have no IPv6.
    let has_v6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let other = if has_v6 { "::1" } else { "127.0.0.2" };
    let ip: std::net::IpAddr = other.parse().unwrap();
    let launch = launch.arg("-l").arg(other).arg("-l").arg(&unix);
    for _ in 0..2 {
        let server = launch.start();
        let mut over_unix = Wire::connect_unix(&socket).unwrap();
        let mut over_other = Wire::connect((ip, server.port()).into()).unwrap();
        let id = over_unix.put(b"one queue");
        assert_eq!(
            over_other.ask(&format!("peek {id}")),
            format!("FOUND {id} 9\r\none queue")
        );
        // The file that a kill leaves does not stop the next start.
        server.kill();
        assert!(socket.exists());
    }
    assert_eq!(launch.start().stop().code, Some(0));
    assert!(
        !socket.exists(),
        "a clean stop takes the socket's file away"
    );
}

#[test]
fn wrong_usage_exits_5_and_names_the_flag() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let wrong: [&[&str]; 5] = [
        &["--no-such-flag"],
        &["-f", "soon"],
        &["-z", "1x"],
        &["--memory", "-b", "/nonexistent"],
        &["surplus"],
    ];
    for words in wrong {
        let exit = words.iter().fold(launch.clone(), Launch::arg).run_to_exit();
        assert_eq!(exit.code, USAGE, "{words:?}: {exit:?}");
        let word = words[0].trim_start_matches('-');
        assert!(exit.stderr.contains(word), "{words:?}: {exit:?}");
    }
}

#[test]
fn a_port_that_is_taken_stops_the_start() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let holder = launch.start();
    let taken = launch.arg("-p").arg(holder.port().to_string());
    let exit = taken.run_to_exit();
    // The harness has given `-p` before: the last one counts.
    assert_eq!(exit.code, Some(1), "{exit:?}");
}

#[test]
fn idle_connections_cost_little_and_hold_no_one_up() {
    let count = volume("BSD_IDLE_CONNECTIONS", 1000);
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    raise_descriptor_limit();
    let server = launch.start();
    let mut busy = server.connect();
    let before = server.resident_memory();
    let mut idle: Vec<Wire> = (0..count).map(|_| server.connect()).collect();
    wait_until("all are accepted", || {
        busy.stat("stats", "current-connections")
            .parse::<u64>()
            .unwrap()
            > count
    });
    let each = server.resident_memory().saturating_sub(before) / count;
    assert!(each <= 4096, "{each} bytes for each idle connection");
    let id = busy.put(b"x");
    for wire in &mut idle {
        assert_eq!(
            wire.ask(&format!("peek {id}")),
            format!("FOUND {id} 1\r\nx")
        );
    }
    drop(idle);
    wait_until("all are gone", || {
        busy.stat("stats", "current-connections") == "1"
    });
}

/// A table that grows holds up everyone while thousands connect: see `widen_descriptor_table`.
#[test]
fn f22_the_table_of_descriptors_is_large_before_anyone_connects() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    raise_descriptor_limit();
    let server = launch.start();
    let len = server.status("FDSize:");
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    assert!(len >= limit.min(64 << 10), "room for {len} descriptors");
}

/// The soft limit of this process, so that it can hold as many connections as the server.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )
    .unwrap();
}

#[test]
fn past_the_descriptor_limit_those_that_are_there_go_on() {
    if program("prlimit").is_none() {
        return skip("prlimit is not installed");
    }
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let server = launch
        .arg("-s")
        .arg(SEGMENT_SIZE)
        .wrapped(&["prlimit", "--nofile=128:128"])
        .start();
    let mut early = server.connect();
    let crowd: Vec<Wire> = (0..200).map(|_| server.connect()).collect();
    // Segments are begun and dropped in the meantime: the log has descriptors of its own.
    for _ in 0..3000 {
        let id = early.put(&[b'x'; 1000]);
        assert_eq!(early.ask(&format!("delete {id}")), "DELETED");
    }
    drop(crowd);
    wait_until("a new connection is served", || is_served(&server));
}

fn is_served(server: &Server) -> bool {
    let mut wire = server.connect();
    wire.try_send(b"list-tube-used\r\n").is_ok() && wire.try_reply().is_ok()
}

#[test]
fn a_client_that_sends_byte_by_byte_holds_no_one_up() {
    let server = Launch::bsd().memory().start();
    let (mut slow, mut quick) = (server.connect(), server.connect());
    let mut ids = Vec::new();
    for byte in put_command(0, 0, b"slow") {
        slow.send([byte]);
        ids.push(quick.put(b"quick"));
    }
    assert!(slow.text().starts_with("INSERTED "));
    assert_eq!(ids.len(), put_command(0, 0, b"slow").len());
}

/// It sends as long as the server takes, and never reads a reply.
#[test]
fn a_client_that_never_reads_costs_bounded_memory_and_holds_no_one_up() {
    const SENT_MAX: usize = 64 << 20;
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let server = launch.start();
    let mut quick = server.connect();
    let id = quick.put(&[b'x'; 60_000]);
    let before = server.resident_memory();
    let mut deaf = std::net::TcpStream::connect(server.address()).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let packet = format!("peek {id}\r\n").repeat(1000);
    let mut sent = 0;
    while sent < SENT_MAX && deaf.write_all(packet.as_bytes()).is_ok() {
        sent += packet.len();
    }
    assert!(
        sent < SENT_MAX,
        "the server went on reading from a client that does not read"
    );
    let started = Instant::now();
    let other = quick.put(b"y");
    assert_eq!(quick.ask(&format!("delete {other}")), "DELETED");
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    let grown = server.resident_memory().saturating_sub(before);
    assert!(
        grown < 8 << 20,
        "{grown} bytes for one client that does not read"
    );
}

#[test]
fn an_announced_body_costs_no_memory_before_it_arrives() {
    let server = Launch::bsd().memory().arg("-z").arg("1073741824").start();
    let mut quick = server.connect();
    let before = server.resident_memory();
    let announcers: Vec<Wire> = (0..20)
        .map(|_| {
            let mut wire = server.connect();
            wire.send("put 0 0 60 1073741823\r\nonly this much");
            wire
        })
        .collect();
    quick.put(b"x");
    let grown = server.resident_memory().saturating_sub(before);
    assert!(
        grown < 8 << 20,
        "{grown} bytes for bodies that did not come"
    );
    drop(announcers);
}

#[test]
fn garbage_is_answered_and_the_server_goes_on() {
    let mut server = Launch::bsd().memory().start();
    let mut random = Random::new(seed_of_run("BSD_GARBAGE_SEED"));
    for _ in 0..50 {
        let mut wire = server.connect();
        let garbage: Vec<u8> = (0..5000).map(|_| random.next() as u8).collect();
        wire.send(&garbage);
        wire.shut_down_sending();
        // It may be closed or reset, but it must end.
        let _ = wire.try_rest();
    }
    assert!(server.is_running());
    server.connect().put(b"x");
}

/// Few files are open for any number of segments, so that connections and the log never compete.
#[test]
fn f12_more_segments_than_a_process_may_open_files_need_no_more_descriptors() {
    const SEGMENTS: usize = 200;
    if program("prlimit").is_none() {
        return skip("prlimit is not installed");
    }
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let launch = launch.dir(dir.path()).arg("-s65536");
    let launch = launch.wrapped(&["prlimit", "--nofile=128:128"]);
    let server = launch.start();
    let crowd: Vec<Wire> = (0..60).map(|_| server.connect()).collect();
    let mut wire = server.connect();
    let mut ids: Vec<u64> = (0..SEGMENTS).map(|_| wire.put(&[b'x'; 60_000])).collect();
    // Bodies of long ago, which are not in memory any more.
    for _ in 0..20 {
        let id = wire.reserve();
        assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
        ids.retain(|other| *other != id);
    }
    drop(crowd);
    wait_until("the crowd has gone", || open_files(&server) < 64);
    assert_eq!(server.stop().code, Some(0));
    let server = launch.start();
    assert_eq!(
        server.connect().stat("stats", "current-jobs-ready"),
        ids.len().to_string()
    );
    assert!(open_files(&server) < 64);
    assert_eq!(server.stop().code, Some(0));
    let verify = Command::new("prlimit")
        .arg("--nofile=100:100")
        .arg(bsd_wal())
        .arg("verify")
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(verify.status.success(), "{verify:?}");
}

fn open_files(server: &Server) -> usize {
    let descriptors = format!("/proc/{}/fd", server.id());
    fs::read_dir(descriptors).unwrap().count()
}
