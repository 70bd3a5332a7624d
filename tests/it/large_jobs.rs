//! Jobs of many megabytes: anyone who reads them slowly costs next to nothing and is not cut off, and
//! every byte that a client gets was checked.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{Launch, Server, wait_until};
use crate::wire::Wire;

const MIB: usize = 1 << 20;
/// More than what sockets of both sides take together.
const SIZE: usize = 24 * MIB;
const READERS: usize = 4;

/// A server whose replies may take 8 MiB together.
fn launch(store: &[&str]) -> Option<Launch> {
    Some(Launch::bsd_alone()?.args(["-z", "32m"]).args(store))
}

fn on_disk(dir: &Path) -> Option<Launch> {
    let dir = dir.to_str().unwrap();
    launch(&["-b", dir, "-s", "1m", "-f", "0", "--max-memory", "64m"])
}

/// The body of the `nth` job: no two pieces of it are alike.
fn body(nth: usize) -> Vec<u8> {
    let mut body = vec![b'x'; SIZE];
    for at in (0..SIZE).step_by(64) {
        let piece = (at << 8 | nth) as u64;
        body[at..at + 8].copy_from_slice(&piece.to_le_bytes());
    }
    body
}

fn put(server: &Server, nth: usize) {
    let mut wire = server.connect();
    wire.put(&body(nth));
}

/// A client that reads when it is told to.
struct Reader {
    stream: TcpStream,
    got: Vec<u8>,
}

impl Reader {
    fn ask(server: &Server, command: &str) -> Reader {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.write_all(command.as_bytes()).unwrap();
        let got = Vec::new();
        Reader { stream, got }
    }

    /// Read `size` bytes more.
    fn read(&mut self, size: usize) -> io::Result<()> {
        let before = self.got.len();
        self.got.resize(before + size, 0);
        self.stream.read_exact(&mut self.got[before..])
    }

    /// The word, and how many bytes come behind the line; what was read before of them stays.
    fn line(&mut self) -> (String, usize) {
        while !self.got.ends_with(b"\r\n") {
            self.read(1).unwrap();
        }
        let line = String::from_utf8(std::mem::take(&mut self.got)).unwrap();
        let mut words = line.split_whitespace();
        let word = words.next().unwrap().to_owned();
        (word, words.nth(1).unwrap().parse().unwrap())
    }

    /// Read the rest of a body that was begun.
    fn expect(&mut self, body: &[u8]) {
        self.read(body.len() + 2 - self.got.len()).unwrap();
        assert!(
            self.got == [body, b"\r\n"].concat(),
            "it is not what was put"
        );
    }
}

/// All read at the same time, a little in turn; others are served meanwhile.
fn read_slowly(server: &Server, command: &str) {
    for nth in 0..READERS {
        put(server, nth);
    }
    let mut readers: Vec<_> = (0..READERS).map(|_| Reader::ask(server, command)).collect();
    let mut read = Vec::new();
    for reader in &mut readers {
        let (word, size) = reader.line();
        assert_eq!((&*word, size), ("RESERVED", SIZE));
        reader.read(4096).unwrap();
    }
    let held = server.resident_memory();
    for _ in 0..100 {
        for reader in &mut readers {
            reader.read(20_000).unwrap();
        }
        assert_eq!(server.connect().ask("use other"), "USING other");
    }
    for reader in &mut readers {
        // Which of them it is stands in its first byte.
        let nth = usize::from(reader.got[0]);
        reader.expect(&body(nth));
        read.push(nth);
    }
    read.sort_unstable();
    assert_eq!(read, (0..READERS).collect::<Vec<_>>());
    assert!(server.resident_memory() < held + 16 * MIB as u64);
    // Each of them has one.
    let delete: String = (1..=READERS).map(|id| format!("delete {id}\r\n")).collect();
    for reader in &mut readers {
        reader.got.clear();
        reader.stream.write_all(delete.as_bytes()).unwrap();
        while !reader.got.ends_with(b"DELETED\r\n") {
            reader.read(1).unwrap();
        }
    }
}

#[test]
fn g46_large_jobs_that_are_read_slowly_cost_a_buffer_each_and_no_one_is_cut_off() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = on_disk(dir.path()) else {
        return;
    };
    let server = launch.start();
    let before = server.resident_memory();
    read_slowly(&server, "reserve\r\n");
    wait_until("memory has come back", || {
        server.resident_memory() < before + 16 * MIB as u64
    });
}

#[test]
fn g46_without_a_log_large_jobs_are_lent_and_not_copied() {
    // Four jobs of 24 MiB and what is on its way; no room for copies.
    let Some(launch) = launch(&["--memory", "--max-memory", "256m"]) else {
        return;
    };
    read_slowly(&launch.start(), "reserve\r\n");
}

#[test]
fn g46_a_large_job_comes_over_a_unix_socket_and_to_anyone_who_looks_at_it() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("socket");
    let Some(launch) = on_disk(&dir.path().join("log")) else {
        return;
    };
    let server = launch
        .arg("-l")
        .arg(format!("unix:{}", socket.display()))
        .start();
    put(&server, 0);
    let reply = |word: &str| {
        let line = format!("{word} 1 {SIZE}\r\n").into_bytes();
        [&line[..], &body(0), b"\r\n"].concat()
    };
    let mut wire = Wire::connect_unix(&socket).unwrap();
    for (command, word) in [
        ("peek 1", "FOUND"),
        ("peek-ready", "FOUND"),
        ("reserve-job 1", "RESERVED"),
    ] {
        // What comes behind it is answered behind it.
        wire.send(format!("{command}\r\nuse default\r\n"));
        assert!(wire.reply() == reply(word), "{command}");
        assert_eq!(wire.text(), "USING default");
    }
    assert_eq!(wire.ask("delete 1"), "DELETED");
    assert_eq!(wire.ask("reserve-job 1"), "NOT_FOUND");
}

/// Who waits for a job gets it when it is durable, and gives it back by leaving.
#[test]
fn g46_a_large_job_goes_to_who_waits_for_it_and_back_when_it_leaves_in_the_middle() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = on_disk(dir.path()) else {
        return;
    };
    let server = launch.start();
    let mut waiting = Reader::ask(&server, "reserve\r\n");
    let mut wire = server.connect();
    wait_until("it waits", || wire.stat("stats", "current-waiting") == "1");
    put(&server, 0);
    assert_eq!(waiting.line(), ("RESERVED".to_owned(), SIZE));
    waiting.read(4096).unwrap();
    assert_eq!(wire.stat("stats-job 1", "state"), "reserved");
    drop(waiting);
    wait_until("it is ready again", || {
        wire.stat("stats-job 1", "state") == "ready"
    });
    assert_eq!(wire.reserve(), 1);
    assert_eq!(wire.ask("delete 1"), "DELETED");
}

/// The file of the log that holds a job of this size, and where its body begins.
fn file_of_body(dir: &Path, body: &[u8]) -> (PathBuf, u64) {
    let entries = std::fs::read_dir(dir).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut large = paths.filter(|path| path.metadata().unwrap().len() >= body.len() as u64);
    let path = large.next().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let begin = &body[..64];
    let at = bytes.windows(64).position(|window| window == begin);
    (path, at.unwrap() as u64)
}

fn damage(path: &Path, at: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"these bytes were never put", at)
        .unwrap();
}

#[test]
fn g46_a_large_body_that_is_damaged_is_never_begun_and_one_that_becomes_so_is_cut_off() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = on_disk(dir.path()) else {
        return;
    };
    let server = launch.start();
    put(&server, 7);
    let body = body(7);
    let (path, at) = file_of_body(dir.path(), &body);
    let mut reader = Reader::ask(&server, "reserve\r\n");
    reader.line();
    reader.read(4096).unwrap();
    damage(&path, at + (SIZE - 1000) as u64);
    assert!(reader.read(SIZE).is_err(), "the connection is cut");
    let got = reader.got.iter().zip(&body);
    // What is behind the end of the stream is zeros.
    let same = got.take_while(|(got, put)| got == put).count();
    assert!(reader.got[same..].iter().all(|byte| *byte == 0));
    assert!(same <= SIZE - 1000);
    // Now it is found before the first byte: a job that is sound comes in its place.
    let mut wire = server.connect();
    wait_until("it is ready again", || {
        wire.stat("stats-job 1", "state") == "ready"
    });
    let sound = wire.put(b"sound");
    wire.send("reserve\r\n");
    assert_eq!(wire.text(), format!("RESERVED {sound} 5\r\nsound"));
    assert_eq!(wire.stat("stats-job 1", "state"), "buried");
    assert_eq!(wire.ask("peek 1"), "INTERNAL_ERROR");
    assert_eq!(wire.ask("reserve-job 1"), "INTERNAL_ERROR");
    assert_eq!(wire.ask("delete 1"), "DELETED");
}

#[test]
fn g46_a_large_body_is_read_to_its_end_also_when_its_job_and_its_file_are_gone() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = on_disk(dir.path()) else {
        return;
    };
    let server = launch.start();
    put(&server, 3);
    let (path, _) = file_of_body(dir.path(), &body(3));
    let mut reader = Reader::ask(&server, "peek 1\r\n");
    assert_eq!(reader.line(), ("FOUND".to_owned(), SIZE));
    reader.read(4096).unwrap();
    let mut wire = server.connect();
    assert_eq!(wire.ask("delete 1"), "DELETED");
    wait_until("its file is gone", || {
        let id = wire.put(&[b'x'; 60_000]);
        wire.ask(&format!("delete {id}"));
        !path.exists()
    });
    reader.expect(&body(3));
}
