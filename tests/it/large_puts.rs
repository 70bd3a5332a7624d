//! Jobs of many megabytes that are put slowly: what has come of them is on the disk, not in memory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

use crate::faults::SmallDisk;
use crate::harness::{Launch, Server, wait_until};
use crate::space::fill_up;
use crate::wire::{Wire, inserted, job_of};

const MIB: usize = 1 << 20;
const PIECE: usize = 64 << 10;

/// The `index`-th piece of the body of the `nth` producer: no two lines of it are alike.
fn piece(nth: usize, index: usize) -> Vec<u8> {
    let mut bytes = vec![nth as u8; PIECE];
    for (line, at) in bytes.chunks_mut(32).zip(0_u64..) {
        let number = (index * PIECE) as u64 + at;
        line[..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// A producer that sends when it is told to.
struct Producer {
    wire: Wire,
    nth: usize,
    pieces: usize,
    sent: usize,
}

impl Producer {
    fn begin(mut wire: Wire, nth: usize, size: usize) -> Producer {
        wire.send(format!("put {nth} 0 600 {size}\r\n"));
        Producer {
            wire,
            nth,
            pieces: size / PIECE,
            sent: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.sent == self.pieces
    }

    fn send_piece(&mut self) {
        self.wire.send(piece(self.nth, self.sent));
        self.sent += 1;
    }

    fn end(&mut self) -> String {
        assert!(self.is_done());
        self.wire.send("\r\n");
        self.wire.text()
    }

    fn is_body(&self, body: &[u8]) -> bool {
        body.len() == self.pieces * PIECE
            && body
                .chunks(PIECE)
                .zip(0..)
                .all(|(got, index)| got == piece(self.nth, index))
    }
}

/// All send a piece, then all send the next; `check` is called after each such round.
fn send_in_turns(producers: &mut [Producer], mut check: impl FnMut(usize)) {
    let pieces = producers.iter().map(|it| it.pieces).max().unwrap();
    for round in 0..pieces {
        for producer in producers.iter_mut().filter(|it| !it.is_done()) {
            producer.send_piece();
        }
        check(round);
    }
}

/// Bytes of the files that have lost their name and that the server still has open.
fn spooled(server: &Server) -> u64 {
    let fds = fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
    let is_spool = |path: &Path| {
        let target = fs::read_link(path).unwrap_or_default();
        let target = target.to_string_lossy();
        target.contains("/spare-") && target.ends_with(" (deleted)")
    };
    let paths = fds.map(|entry| entry.unwrap().path());
    let sizes = paths.filter(|path| is_spool(path)).map(|path| {
        let metadata = fs::metadata(path);
        metadata.map_or(0, |it| it.blocks() * 512)
    });
    sizes.sum()
}

/// A server with a log and a socket of its own kind: of a unix socket the kernel holds little.
fn launch(dir: &Path) -> Option<Launch> {
    let socket = format!("unix:{}", dir.join("socket").display());
    let launch = Launch::bsd_alone()?.dir(&dir.join("log"));
    Some(launch.args(["-z", "32m", "-s", "1m", "-f", "0", "-l", &socket]))
}

fn connect(dir: &Path) -> Wire {
    Wire::connect_unix(&dir.join("socket")).unwrap()
}

/// Files of a directory that are no segment, no space set aside and no lock.
fn others(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| !name.starts_with("segment-") && name != "lock")
        .filter(|name| {
            let size = fs::metadata(dir.join(name)).map_or(0, |it| it.len());
            !(name.starts_with("spare-") && size > 0)
        })
        .collect()
}

#[test]
fn g46_producers_of_large_jobs_that_send_in_turns_take_little_memory_and_lose_nothing() {
    const SIZE: usize = 30 * MIB;
    let dir = TempDir::new().unwrap();
    let Some(launch) = launch(dir.path()) else {
        return;
    };
    let server = launch.start();
    let mut other = server.connect();
    let id = other.put(b"x");
    let before = server.resident_memory();
    let mut most = 0;
    let mut check = |when: &str| {
        let above = server.resident_memory().saturating_sub(before);
        most = most.max(above);
        assert!(above <= 64 * MIB as u64, "{when}: {above} bytes above idle");
    };
    // Some come over TCP.
    let wire = |nth: usize| match nth % 4 {
        0 => server.connect(),
        _ => connect(dir.path()),
    };
    let mut producers: Vec<_> = (0..12)
        .map(|nth| Producer::begin(wire(nth), nth, SIZE))
        .collect();
    send_in_turns(&mut producers, |round| {
        check("as they send");
        if round % 50 == 0 {
            assert_eq!(other.ask("use other"), "USING other");
        }
    });
    assert!(spooled(&server) > 8 * 30 * MIB as u64);
    for producer in &mut producers {
        assert_eq!(
            inserted(&producer.end()),
            Some(id + 1 + producer.nth as u64)
        );
        check("as the puts end");
    }
    assert_eq!(spooled(&server), 0);
    for producer in &mut producers {
        // By priority they come in their order, the small one first.
        assert_eq!(
            other.ask(&format!("delete {}", id + producer.nth as u64)),
            "DELETED"
        );
        other.send("reserve\r\n");
        let reply = other.reply();
        let (job, body) = job_of(&reply).unwrap();
        assert_eq!(job, id + 1 + producer.nth as u64);
        assert!(
            producer.is_body(body),
            "{} is not what was put",
            producer.nth
        );
    }
    check("at the end");
    println!("at most {most} bytes above idle");
}

#[test]
fn g46_what_has_come_of_a_body_is_let_go_with_its_client_and_with_its_put() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = launch(dir.path()) else {
        return;
    };
    let server = launch.args(["--max-memory", "64m"]).start();
    let begin = |nth: usize| {
        let mut producer = Producer::begin(connect(dir.path()), nth, 12 * MIB);
        while producer.sent + 1 < producer.pieces {
            producer.send_piece();
        }
        wait_until("it is on the disk", || spooled(&server) > 6 * MIB as u64);
        producer
    };
    drop(begin(0));
    wait_until("its room is free", || spooled(&server) == 0);

    // The end of the body is not where it was announced.
    let mut producer = begin(1);
    producer.wire.send(vec![b'x'; PIECE + 2]);
    assert_eq!(producer.wire.text(), "EXPECTED_CRLF");
    assert_eq!(spooled(&server), 0);
    // What comes behind is another job, and has nothing of it.
    let id = producer.wire.put(b"small");
    let mut wire = server.connect();
    wire.send(format!("peek {id}\r\n"));
    assert_eq!(wire.text(), format!("FOUND {id} 5\r\nsmall"));

    let mut producer = begin(2);
    server.signal(rustix::process::Signal::USR1);
    wait_until("it drains", || wire.stat("stats", "draining") == "true");
    producer.send_piece();
    assert_eq!(producer.end(), "DRAINING");
    assert_eq!(spooled(&server), 0);
}

/// Of two that come in turns, one leaves in the middle.
#[test]
fn g46_the_room_of_a_body_that_will_not_come_is_free_while_others_still_come() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = launch(dir.path()) else {
        return;
    };
    let launch = launch.args(["--max-memory", "64m"]);
    let launch = launch.args(["--http", "127.0.0.1:0"]);
    let server = launch.start();
    let mut two = [0, 1].map(|nth| Producer::begin(connect(dir.path()), nth, 12 * MIB));
    send_in_turns(&mut two, |_| {});
    wait_until("the metrics say how much", || {
        let site = crate::http::address(&server);
        let page = crate::http::send(site, "GET /metrics", &[], b"").body;
        let page = String::from_utf8(page).unwrap();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("bsd_log_spooled_bytes "));
        let size: usize = line.unwrap().parse().unwrap();
        assert!(size <= 24 * MIB);
        size > 24 * MIB - 2 * PIECE
    });
    wait_until("both are on the disk", || {
        spooled(&server) > 23 * MIB as u64
    });
    let [gone, mut left] = two;
    drop(gone);
    wait_until("the room of one is free", || {
        spooled(&server) < 13 * MIB as u64
    });
    let id = inserted(&left.end()).unwrap();
    assert_eq!(spooled(&server), 0);
    let wire = &mut left.wire;
    wire.send(format!("peek {id}\r\n"));
    let reply = wire.reply();
    assert!(left.is_body(job_of(&reply).unwrap().1));
}

/// A put that a token does not allow is not the beginning of the next one.
#[test]
fn g46_a_large_put_that_is_not_allowed_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = launch(dir.path()) else {
        return;
    };
    let (token, line) = crate::auth::new_token("put:mail-*");
    let tokens = dir.path().join("tokens");
    crate::auth::write_private(&tokens, &line);
    let launch = launch.arg("--auth-file").arg(&tokens);
    let server = launch.args(["--max-memory", "64m"]).spawn();
    wait_until("it listens", || Wire::connect(server.address()).is_ok());
    let mut wire = server.connect();
    assert_eq!(wire.ask(&format!("auth {token}")), "AUTHENTICATED");
    let mut producer = Producer::begin(wire, 0, 12 * MIB);
    while !producer.is_done() {
        producer.send_piece();
    }
    wait_until("it is on the disk", || spooled(&server) > 6 * MIB as u64);
    // All of it comes at once.
    let wire = &mut producer.wire;
    wire.send("\r\nuse mail-a\r\nput 0 0 60 5\r\nsmall\r\n");
    assert_eq!(wire.text(), "NOT_AUTHORIZED");
    assert_eq!(wire.text(), "USING mail-a");
    let id = inserted(&wire.text()).unwrap();
    assert_eq!(spooled(&server), 0);
    let mut owner = connect(dir.path());
    owner.send(format!("peek {id}\r\n"));
    assert_eq!(owner.text(), format!("FOUND {id} 5\r\nsmall"));
}

#[test]
fn g46_a_server_that_is_killed_leaves_nothing_of_the_bodies_that_were_on_their_way() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = launch(dir.path()) else {
        return;
    };
    let log = dir.path().join("log");
    let server = launch.start();
    let id = server.connect().put(b"kept");
    let mut producers: Vec<_> = (0..2)
        .map(|nth| Producer::begin(connect(dir.path()), nth, 16 * MIB))
        .collect();
    send_in_turns(&mut producers, |_| {});
    wait_until("they are on the disk", || {
        spooled(&server) > 16 * MIB as u64
    });
    assert_eq!(others(&log), [""; 0]);
    server.kill();
    assert_eq!(others(&log), [""; 0]);
    // Killed between the creation of the file and the removal of its name.
    fs::write(log.join("spare-77"), b"").unwrap();
    assert_eq!(others(&log), ["spare-77"]);
    let server = launch.start();
    assert_eq!(others(&log), [""; 0]);
    let mut wire = server.connect();
    assert_eq!(wire.stat("stats", "current-jobs-ready"), "1");
    assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
}

/// The bodies on their way fill the disk, and then something else does.
#[test]
fn g46_on_a_full_disk_large_puts_are_refused_and_nothing_else_is() {
    let Some(disk) = SmallDisk::mount("24m") else {
        return;
    };
    let Some(launch) = launch(disk.path()) else {
        return;
    };
    let server = launch.start();
    let mut wire = server.connect();
    let mut small: Vec<u64> = (0..90).map(|_| wire.put(&[b'x'; 10_000])).collect();
    let mut delete_some = |wire: &mut Wire| {
        for id in small.drain(..30) {
            assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
        }
    };
    let begin = |count: usize| -> Vec<Producer> {
        let producer = |nth| Producer::begin(connect(disk.path()), nth, 12 * MIB);
        (0..count).map(producer).collect()
    };

    // Also while the disk is full: what one that is refused gives back is room for another.
    for is_filled_up in [false, true] {
        let mut producers = begin(3);
        send_in_turns(&mut producers, |round| {
            if is_filled_up && round == 60 {
                fill_up(disk.path());
            }
        });
        delete_some(&mut wire);
        let mut refused = 0;
        for producer in &mut producers {
            let reply = producer.end();
            let Some(id) = inserted(&reply) else {
                assert_eq!(reply, "OUT_OF_MEMORY");
                refused += 1;
                continue;
            };
            wire.send(format!("reserve-job {id}\r\n"));
            let reply = wire.reply();
            assert!(producer.is_body(job_of(&reply).unwrap().1));
            assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
        }
        assert!(refused > 0, "there is not room for all of them");
        assert_eq!(spooled(&server), 0);
    }
    delete_some(&mut wire);
    fs::remove_file(disk.path().join("ballast")).unwrap();
    wait_until("there is room again", || {
        let mut producers = begin(1);
        send_in_turns(&mut producers, |_| {});
        inserted(&producers[0].end()).is_some()
    });
}
