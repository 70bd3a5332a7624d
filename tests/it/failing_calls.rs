//! The n-th write, sync, rename … fails, for every n of a short run: nothing is acknowledged after
//! it, the server says where and what, and the next start has all that was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use tempfile::TempDir;

use crate::harness::{Exit, Launch, is_port_taken, wait_until};
use crate::ledger::{
    CALLS, assert_synced_before_acknowledged, is_of_compaction, is_of_segment, is_wait, marked_body,
};
use crate::strace::{Call, Trace, Tracer, is_permitted};
use crate::wire::{Wire, inserted, job_of, put_command};

const DISK_FAILED: Option<i32> = Some(4);
/// A run of [`work_together`] writes and sets aside at least so often: where fewer calls failed,
/// the run was not the one that is meant here.
const LEAST_WRITES: usize = 8;
const LEAST_ALLOCATIONS: usize = 3;
/// The smallest there is, so that a short run begins several.
const SEGMENT_SIZE: &str = "65536";

/// The server under test with a log in `dir`, where there is strace and it is bsd.
fn traceable(dir: &Path) -> Option<Launch> {
    let launch = Launch::bsd_alone().filter(|_| is_permitted())?;
    Some(launch.dir(dir))
}

/// One client of a run in which something fails, and what it was promised.
#[derive(Debug, Default)]
struct Client {
    number: usize,
    sent: usize,
    /// By id, with bodies.
    acknowledged: BTreeMap<u64, Vec<u8>>,
    deleted: BTreeSet<u64>,
    /// A delete that was sent and not answered.
    in_doubt: Option<u64>,
}

impl Client {
    const ROUNDS: usize = 4;
    const PUTS_A_ROUND: usize = 3;

    /// Until it is done, or the server is gone.
    fn work(&mut self, socket: &Path) -> io::Result<()> {
        let mut wire = Wire::connect_unix(socket)?;
        for _ in 0..Client::ROUNDS {
            self.put_some(&mut wire)?;
            self.delete_one(&mut wire)?;
        }
        Ok(())
    }

    fn put_some(&mut self, wire: &mut Wire) -> io::Result<()> {
        let bodies: Vec<Vec<u8>> = (0..Client::PUTS_A_ROUND).map(|_| self.new_body()).collect();
        let packet: Vec<Vec<u8>> = bodies.iter().map(|body| put_command(0, 0, body)).collect();
        wire.try_send(&packet.concat())?;
        for body in bodies {
            let reply = String::from_utf8(wire.try_reply()?).unwrap();
            match inserted(&reply) {
                Some(id) => drop(self.acknowledged.insert(id, body)),
                None => assert_eq!(reply, "OUT_OF_MEMORY\r\n"),
            }
        }
        Ok(())
    }

    fn new_body(&mut self) -> Vec<u8> {
        self.sent += 1;
        marked_body(self.number, self.sent, 6000)
    }

    fn delete_one(&mut self, wire: &mut Wire) -> io::Result<()> {
        let mut ids = self.acknowledged.keys();
        let Some(id) = ids.find(|id| !self.deleted.contains(id)).copied() else {
            return Ok(());
        };
        self.in_doubt = Some(id);
        wire.try_send(format!("delete {id}\r\n").as_bytes())?;
        assert_eq!(wire.try_reply()?, b"DELETED\r\n");
        self.deleted.insert(id);
        self.in_doubt = None;
        Ok(())
    }

    /// Everything that was acknowledged is as it was said to be.
    fn check(&self, wire: &mut Wire) {
        for (id, body) in &self.acknowledged {
            wire.send(format!("peek {id}\r\n"));
            let reply = wire.reply();
            match job_of(&reply) {
                Some((_, found)) => {
                    assert_eq!(found, body, "the body of job {id}");
                    assert!(!self.deleted.contains(id), "deleted job {id} is back");
                }
                None => {
                    let may_be_gone = self.deleted.contains(id) || self.in_doubt == Some(*id);
                    assert!(may_be_gone, "acknowledged job {id} is lost");
                }
            }
        }
    }
}

/// Two clients at once, until they are done or the server is gone: the exit code will tell.
fn work_together(socket: &Path) -> Vec<Client> {
    let work = |number| {
        let mut client = Client {
            number,
            ..Client::default()
        };
        let _ = client.work(socket);
        client
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| work(1));
        vec![work(0), second.join().unwrap()]
    })
}

/// A run in which system calls fail.
struct Run {
    dir: TempDir,
    clients: Vec<Client>,
    exit: Exit,
    trace: Trace,
}

impl Run {
    /// `None` where there is no strace.
    fn with(injection: &str) -> Option<Run> {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("socket");
        let tracer = Tracer::of(CALLS).inject(injection);
        let launch = traceable(&dir.path().join("data"))?;
        let launch = launch.arg("-s").arg(SEGMENT_SIZE);
        let launch = launch.arg("-l").arg(format!("unix:{}", socket.display()));
        let mut server = tracer.wrap(launch).spawn();
        wait_until("it serves or ends", || {
            Wire::connect_unix(&socket).is_ok() || !server.is_running()
        });
        let clients = work_together(&socket);
        let exit = if server.is_running() {
            server.stop()
        } else {
            server.wait()
        };
        if is_port_taken(&exit.stderr) {
            // Clients come by the unix socket; that the port is taken is an accident.
            return Run::with(injection);
        }
        let trace = tracer.all();
        Some(Run {
            dir,
            clients,
            exit,
            trace,
        })
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn injected(&self) -> impl Iterator<Item = &Call> {
        self.trace.calls.iter().filter(|call| call.was_injected)
    }

    /// The first failure, in words.
    fn failure(&self) -> String {
        let first = self.injected().next();
        first.map_or("none".into(), |call| {
            format!("{} {:.60}", call.name, call.args)
        })
    }

    /// The first failure of a call that the log cannot do without. Zeros ahead of the log and the
    /// copies of compaction are written on separate threads, and nothing depends on them yet. Space
    /// after the end of a rewritten file is given back by the next start, if not at once.
    fn first_fatal(&self) -> Option<&Call> {
        let is_cut_of_copy = |call: &Call| {
            let path = call.path().to_string_lossy();
            call.is("ftruncate") && is_of_segment(call) && !path.ends_with(".00000")
        };
        let is_beside = |call: &Call| {
            is_of_compaction(call)
                || is_cut_of_copy(call)
                || (call.thread != self.trace.main && !is_of_segment(call))
        };
        self.injected().find(|call| !is_beside(call))
    }

    fn check(&self) {
        assert_synced_before_acknowledged(&self.trace, &self.data());
        match self.first_fatal() {
            Some(failure) => self.check_end(failure),
            None => assert_eq!(self.exit.code, Some(0), "{:?}", self.exit),
        }
        if self.injected().next().is_some() {
            let path = self.dir.path().to_string_lossy();
            self.assert_says("where", &path);
            self.assert_says("what", "Input/output error");
        }
        self.check_restart();
    }

    fn check_end(&self, failure: &Call) {
        let calls = &self.trace.calls;
        // At a start and while it runs alike.
        assert_eq!(self.exit.code, DISK_FAILED, "after {}", self.failure());
        self.assert_says("what to do", "start again");
        // The loop learns a little later what a thread has found.
        if failure.thread == self.trace.main {
            let is_late = |call: &&Call| call.begin > failure.end && call.is_reply();
            let late = calls.iter().find(is_late);
            assert!(late.is_none(), "{late:?} after {}", self.failure());
        }
    }

    fn assert_says(&self, what: &str, words: &str) {
        let stderr = &self.exit.stderr;
        assert!(stderr.contains(words), "{what}, {words:?}, in {stderr:?}");
    }

    /// On a disk that works again.
    fn check_restart(&self) {
        let server = Launch::bsd().dir(&self.data()).start();
        let mut wire = server.connect();
        self.clients
            .iter()
            .for_each(|client| client.check(&mut wire));
        let sum = |count: fn(&Client) -> usize| self.clients.iter().map(count).sum::<usize>();
        let found: usize = wire.stat("stats", "current-jobs-ready").parse().unwrap();
        let sent = sum(|client| client.sent) - sum(|client| client.deleted.len());
        assert!(found <= sent, "{found} jobs are there, {sent} were sent");
    }
}

/// Let the first of these calls fail, then in another run the second, until a run has fewer calls.
/// Calls are counted separately in each thread.
fn fail_each(call: &str, at_least: usize) {
    for nth in 1..300 {
        let Some(run) = Run::with(&format!("{call}:error=EIO:when={nth}")) else {
            return;
        };
        println!("{call} {nth}: {:?} {:?}", run.failure(), run.exit.code);
        run.check();
        if run.injected().next().is_none() {
            assert!(nth > at_least, "a run has only {nth} of {call}");
            return;
        }
    }
    panic!("a run has no end of {call}");
}

/// P5, D3, D4, D5.
#[test]
fn whichever_sync_fails_nothing_is_acknowledged_after_it() {
    fail_each("fdatasync", 5);
}

/// P5, D3, D4.
#[test]
fn whichever_write_fails_nothing_is_acknowledged_after_it() {
    fail_each("pwrite64", 5);
}

/// P5, D28.
#[test]
fn whichever_sync_of_a_directory_fails_nothing_is_acknowledged_after_it() {
    fail_each("fsync", 3);
}

/// P5, D32.
#[test]
fn whichever_step_of_beginning_a_segment_fails_nothing_is_acknowledged_after_it() {
    fail_each("fallocate", 2);
    fail_each("/^rename", 2);
    fail_each("ftruncate", 1);
}

#[test]
fn a_write_that_a_signal_interrupts_is_made_again() {
    let Some(run) = Run::with("pwrite64:error=EINTR:when=1+2") else {
        return;
    };
    assert!(run.injected().count() > 5, "writes were interrupted");
    assert_eq!(run.exit.code, Some(0), "{:?}", run.exit);
    assert!(run.exit.complaints().is_empty(), "{:?}", run.exit);
    run.check_restart();
}

/// D31: reserved space may turn out to be missing. Whether the server continues or ends, nothing
/// that it has acknowledged is lost.
#[test]
fn wherever_the_disk_turns_out_to_be_full_what_was_acknowledged_stays() {
    for (call, least) in [("pwrite64", LEAST_WRITES), ("fallocate", LEAST_ALLOCATIONS)] {
        for nth in 1..300 {
            let Some(run) = Run::with(&format!("{call}:error=ENOSPC:when={nth}")) else {
                return;
            };
            println!("{call} {nth}: {:?} {:?}", run.failure(), run.exit.code);
            assert!(matches!(run.exit.code, Some(0 | 8)), "{:?}", run.exit);
            run.check_restart();
            if run.injected().next().is_none() {
                assert!(nth > least, "only {} of {call} failed", nth - 1);
                break;
            }
        }
    }
}

/// P5 on the sync thread. There, with an interval, the third sync is made after some
/// acknowledgements and before others.
#[test]
fn when_a_sync_beside_the_loop_fails_the_loop_ends() {
    let dir = TempDir::new().unwrap();
    let tracer = Tracer::of(CALLS).inject("fdatasync:error=EIO:when=3");
    let Some(launch) = traceable(dir.path()) else {
        return;
    };
    let launch = launch.arg("-f").arg("1");
    let server = tracer.wrap(launch.clone()).start();
    let mut acknowledged = 0;
    let mut wire = server.connect();
    while wire.try_send(&put_command(0, 0, b"x")).is_ok() && wire.try_reply().is_ok() {
        acknowledged += 1;
    }
    let exit = server.wait();
    assert_eq!(exit.code, DISK_FAILED, "{exit:?}");
    assert!(
        exit.stderr.contains(&*dir.path().to_string_lossy()),
        "{exit:?}"
    );
    assert!(exit.stderr.contains("start again"), "{exit:?}");
    assert_nothing_follows_failed_sync(&tracer.all());
    let found = launch
        .wrapped(&[])
        .start()
        .connect()
        .stat("stats", "current-jobs-ready");
    assert!(
        found.parse::<u64>().unwrap() >= acknowledged,
        "{found} of {acknowledged}"
    );
}

/// The loop handles it in the first turn that begins after the thread has reported it.
fn assert_nothing_follows_failed_sync(trace: &Trace) {
    let failed = trace.first("a sync that failed", |call| call.was_injected);
    assert_ne!(failed.thread, trace.main);
    let is_told = |call: &Call| call.thread == failed.thread && call.begin > failed.end;
    let told = trace.first("the waking of the loop", is_told).end;
    let turn = trace
        .calls
        .iter()
        .find(|call| is_wait(call) && call.begin > told);
    let turn = turn.map_or(told, |call| call.begin);
    let late = trace
        .calls
        .iter()
        .find(|call| call.begin > turn && call.is_reply());
    assert!(late.is_none(), "{late:?}");
    let syncs = trace
        .named("fdatasync")
        .filter(|call| call.begin > failed.end)
        .count();
    assert_eq!(syncs, 0, "nothing is synced after a failure");
}

/// The name of a new segment exists, although it may not be durable: a start would continue in it.
/// So the old one must not be used any more, unlike after a lack of room for a new one.
#[test]
fn a_segment_that_has_its_name_is_not_given_up_for_want_of_room() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    // The start syncs every directory on the way to the data, and the data's when the first
    // segment gets its name; the next sync of a directory belongs to the second segment.
    let nth = data.ancestors().count() + 1;
    let tracer = Tracer::of(CALLS).inject(&format!("fsync:error=ENOSPC:when={nth}"));
    let Some(launch) = traceable(&data) else {
        return;
    };
    let launch = launch.arg("-s").arg(SEGMENT_SIZE);
    let server = tracer.wrap(launch.clone()).start();
    let mut wire = server.connect();
    let mut ids = Vec::new();
    for _ in 0..20 {
        let put = put_command(0, 0, &[b'x'; 6000]);
        let reply = wire.try_send(&put).and_then(|()| wire.try_reply());
        let reply = reply.unwrap_or_default();
        match inserted(&String::from_utf8_lossy(&reply)) {
            Some(id) => ids.push(id),
            None => break,
        }
    }
    assert!(ids.len() < 20, "the second segment could not be begun");
    let delete = format!("delete {}\r\n", ids[0]);
    let reply = wire
        .try_send(delete.as_bytes())
        .and_then(|()| wire.try_reply());
    let is_deleted = reply.is_ok_and(|reply| reply == b"DELETED\r\n");
    server.kill();

    let server = launch.start();
    let mut wire = server.connect();
    for (nth, id) in ids.iter().enumerate() {
        let is_there = wire.ask(&format!("peek {id}")).starts_with("FOUND");
        let may_be_gone = nth == 0;
        assert!(is_there || may_be_gone, "acknowledged job {id} is lost");
        assert!(
            !(is_there && nth == 0 && is_deleted),
            "deleted job {id} is back"
        );
    }
}

/// Jobs of which one in eight stays.
const JOBS: usize = 80;

#[test]
fn a_compaction_whose_thread_cannot_be_started_is_done_in_the_loop() {
    let serve = |tracer: &Tracer, work: &dyn Fn(&mut Wire)| {
        let dir = TempDir::new().unwrap();
        let launch = traceable(dir.path())?.arg("-s").arg(SEGMENT_SIZE);
        let server = tracer.wrap(launch).start();
        work(&mut server.connect());
        Some(server.stop())
    };
    let clones = || Tracer::of("clone,clone3");
    let plain = clones();
    let Some(exit) = serve(&plain, &|_| ()) else {
        return;
    };
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    let trace = plain.all();
    let of_loop = trace.calls.iter().filter(|it| it.thread == trace.main);
    // All threads that there are at the start, and no more.
    let none = format!("clone,clone3:error=EAGAIN:when={}+", of_loop.count() + 1);
    let exit = serve(&clones().inject(&none), &|wire| {
        let ids: Vec<u64> = (0..JOBS)
            .map(|nth| wire.put(&marked_body(0, nth, 6000)))
            .collect();
        for id in ids.iter().filter(|id| **id % 8 > 0) {
            assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
        }
        wait_until("records are copied", || {
            wire.stat("stats", "binlog-records-migrated") != "0"
        });
        for id in ids.iter().filter(|id| **id % 8 == 0) {
            wire.send(format!("peek {id}\r\n"));
            assert!(job_of(&wire.reply()).is_some(), "job {id}");
        }
    });
    let exit = exit.unwrap();
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    assert!(
        exit.stderr.contains("could not start a thread: "),
        "{}",
        exit.stderr
    );
    assert!(!exit.stderr.contains("without a result"), "{}", exit.stderr);
}
