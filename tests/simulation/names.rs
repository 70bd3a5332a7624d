//! Names and descriptors: few files are open however many there are, nothing is overwritten because
//! of its name, and a directory that could not be synced ends the log.

use std::sync::Arc;
use std::time::Duration;

use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::disk::sim::{Errno, Fault, OpKind};
use bsd::storage::format::{file_name, parse_file_name};
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::{ClientId, Now, SECOND_NS, SegmentId, Ticket};

use super::damage::segments;
use super::driver::{Driver, Step, after_restart, beginning, options, path};

const TURN: Step = Step::Turn { ms: 0 };
const PUT: Step = Step::put(0, [1, 0, 1000], 9000);
const STRANGER: &[u8] = b"of someone else";

fn begin(fs: &SimFs) -> Driver {
    Driver::begin(fs, SyncPolicy::Always).unwrap_or_else(|stop| panic!("{stop}"))
}

fn run(driver: &mut Driver, steps: &[Step]) {
    driver.run(steps).unwrap_or_else(|stop| panic!("{stop}"));
    driver.fs.clear_trace();
}

fn restart(mut driver: Driver) -> Driver {
    driver.stop().unwrap_or_else(|stop| panic!("{stop}"));
    let (now, least) = (after_restart(driver.now), driver.least_acknowledged());
    let opened = Driver::open(&driver.fs, SyncPolicy::Always, now, &driver.history, least);
    opened.unwrap_or_else(|stop| panic!("{stop}"))
}

#[test]
fn f12_a_log_of_any_number_of_segments_is_written_read_and_compacted_with_few_descriptors() {
    let fs = SimFs::new(1);
    fs.set_descriptors(Some(10));
    let mut driver = begin(&fs);
    for _ in 0..120 {
        run(&mut driver, &[PUT; 7]);
        run(&mut driver, &[TURN]);
    }
    assert!(segments(&fs).len() > 100, "{}", segments(&fs).len());
    assert_eq!(driver.refused, 0);
    // A start, too; opening it examines every job.
    let mut driver = restart(driver);
    for _ in 0..760 {
        run(&mut driver, &[Step::Delete { nth: 1 << 20 }, TURN]);
    }
    let left = segments(&fs).len();
    assert!(left < 80, "{left} segments are left");
    assert_eq!(driver.refused, 0);
    restart(driver);
}

/// The last reply.
#[derive(Default)]
struct Last(String);

impl ReplySink for Last {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        self.0 = match reply {
            Reply::Reserved(id, _) => format!("Reserved {id}"),
            other => format!("{other:?}"),
        };
    }
}

struct Client {
    engine: Engine,
    client: ClientId,
    now: Now,
}

impl Client {
    fn of(fs: &SimFs) -> Client {
        let options = Options {
            fs: Arc::new(fs.clone()),
            ..options(fs, SyncPolicy::Always)
        };
        let mut engine = Engine::open(&options, beginning()).expect("a sound disk");
        let client = engine.connect();
        let now = beginning();
        Client {
            engine,
            client,
            now,
        }
    }

    fn ask(&mut self, command: Command<'_>) -> String {
        let mut last = Last::default();
        let request = Request::Command(command);
        self.engine.run(self.client, request, self.now, &mut last);
        self.engine.tick(self.now, &mut last).expect("no failure");
        self.engine.commit(self.now).expect("no failure");
        last.0
    }

    fn put(&mut self) -> String {
        self.ask(Command::put(1, 0, 60, &[b'x'; 9000]))
    }
}

#[test]
fn f12_want_of_descriptors_is_want_of_room_and_buries_no_job() {
    let fs = SimFs::new(1);
    let mut before = Client::of(&fs);
    (0..300).for_each(|_| drop(before.put()));
    before.engine.close(beginning()).expect("no failure");
    let mut client = Client::of(&fs);
    fs.set_descriptors(Some(0));
    let reserve = Command::reserve(Some(Duration::ZERO));
    // That of the first job is not among the files that were used last.
    assert_eq!(client.ask(reserve), "OutOfMemory");
    assert_eq!(client.ask(Command::PeekReady(None)), "OutOfMemory");
    let refused = (0..100).find(|_| client.put() == "OutOfMemory");
    assert!(refused.is_some(), "the next segment is a file to be made");
    let jobs = client.engine.queue().stats().jobs;
    assert_eq!((jobs.buried, jobs.reserved), (0, 0));
    fs.set_descriptors(None);
    // A while later it is asked again.
    client.now.mono = client.now.mono.plus_seconds(1);
    client.now.wall_ns += SECOND_NS as u64;
    let reserve = Command::reserve(Some(Duration::ZERO));
    assert!(client.ask(reserve).starts_with("Reserved"));
    assert!(client.put().starts_with("Inserted"));
}

/// The syncs of the directory, in order; `true`: of the name that compaction gave its output.
fn syncs_of_names(fs: &SimFs) -> Vec<bool> {
    let (mut syncs, mut is_output) = (Vec::new(), false);
    for operation in fs.trace() {
        match operation.kind {
            OpKind::Rename => is_output = *operation.path == *path("compaction"),
            OpKind::SyncDir => syncs.push(std::mem::take(&mut is_output)),
            _ => {}
        }
    }
    syncs
}

fn fill_and_compact(driver: &mut Driver) -> Result<(), super::driver::Stop> {
    for _ in 0..12 {
        driver.run(&[PUT; 7])?;
        driver.run(&[TURN])?;
    }
    for _ in 0..40 {
        driver.run(&[Step::Delete { nth: 1 << 20 }, TURN])?;
    }
    Ok(())
}

#[test]
fn f13_a_directory_that_cannot_be_synced_for_compaction_ends_the_log_as_any_other_sync() {
    let fs = SimFs::new(1);
    let mut driver = begin(&fs);
    fill_and_compact(&mut driver).unwrap_or_else(|stop| panic!("{stop}"));
    let syncs = syncs_of_names(&fs);
    let outputs = (1..).zip(&syncs).filter(|(_, is_output)| **is_output);
    let outputs: Vec<u64> = outputs.map(|(nth, _)| nth).collect();
    assert!(!outputs.is_empty(), "nothing was compacted");
    for nth in outputs {
        let fs = SimFs::new(1);
        fs.inject(Fault::fail(OpKind::SyncDir, Errno::IO).nth(nth));
        let mut driver = begin(&fs);
        assert!(fill_and_compact(&mut driver).is_err(), "sync {nth}");
        let acknowledged = driver.engine().acknowledged();
        assert!(driver.run(&[PUT, TURN]).is_err());
        assert_eq!(driver.engine().acknowledged(), acknowledged);
    }
}

fn is_untouched(fs: &SimFs, name: &str) -> bool {
    fs.read(path(name)).is_ok_and(|left| left == STRANGER)
}

#[test]
fn f31_a_segment_is_not_made_over_a_file_that_has_come_since_the_start() {
    let fs = SimFs::new(1);
    let mut driver = begin(&fs);
    run(&mut driver, &[PUT, TURN]);
    let newest = segments(&fs).pop().expect("there are segments");
    let (number, _) = parse_file_name(&newest).expect("a segment");
    let strangers = [1, 2, 4].map(|more| file_name(SegmentId(number.0 + more), 0));
    for name in &strangers {
        fs.write(path(name), STRANGER).expect("a place for it");
    }
    run(&mut driver, &[PUT, TURN].repeat(40));
    assert!(segments(&fs).pop() > strangers.last().cloned());
    assert!(strangers.iter().all(|name| is_untouched(&fs, name)));
    assert_eq!(driver.refused, 0);
    restart(driver);
}

#[test]
fn f31_compaction_writes_over_no_name_and_goes_on_under_another() {
    for comes_late in [false, true] {
        let fs = SimFs::new(1);
        let mut driver = begin(&fs);
        let strangers: Vec<String> = (1..40)
            .flat_map(|number| [1, 2].map(|generation| file_name(SegmentId(number), generation)))
            .collect();
        let plant = || {
            for name in &strangers {
                fs.write(path(name), STRANGER).expect("a place for it");
            }
            let aside = path("compaction");
            fs.write(aside.join("a-file"), b"").expect("a place for it");
        };
        for _ in 0..12 {
            run(&mut driver, &[PUT; 7]);
            run(&mut driver, &[TURN]);
        }
        if comes_late {
            plant();
        } else {
            driver.stop().unwrap_or_else(|stop| panic!("{stop}"));
            plant();
            let now = after_restart(driver.now);
            let opened = Driver::open(&fs, SyncPolicy::Always, now, &driver.history, 0);
            driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
        }
        for _ in 0..60 {
            run(&mut driver, &[Step::Delete { nth: 1 << 20 }, TURN]);
        }
        let rewritten = segments(&fs)
            .into_iter()
            .find(|name| parse_file_name(name).is_some_and(|(_, generation)| generation > 2));
        assert!(rewritten.is_some(), "{:?}", segments(&fs));
        assert!(strangers.iter().all(|name| is_untouched(&fs, name)));
        restart(driver);
    }
}
