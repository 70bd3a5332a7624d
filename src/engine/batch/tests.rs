//! Batches: what they do, and what a crash or a full disk leaves of them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::engine::{Engine, Options, ReplySink};
use crate::protocol::{Command, OnEach, Reply, Request, encode};
use crate::storage::SimFs;
use crate::storage::disk::sim::Crash;
use crate::types::{ClientId, JobId, JobState, Now, Ticket, Time};

const NOW: Now = Now {
    mono: Time(1_000_000_000),
    wall_ns: 1_800_000_000_000_000_000,
};

/// All replies, as they would be sent.
#[derive(Default)]
struct Replies(Vec<u8>);

impl ReplySink for Replies {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        encode(&reply, &mut self.0);
    }
}

fn try_open(fs: &SimFs) -> Result<Engine, crate::OpenError> {
    let options = Options {
        dir: Some("/log".into()),
        segment_size: 64 << 10,
        fs: Arc::new(fs.clone()),
        ..Options::default()
    };
    Engine::open(&options, NOW)
}

fn open(fs: &SimFs) -> Engine {
    try_open(fs).unwrap_or_else(|error| panic!("{error}"))
}

fn run(engine: &mut Engine, client: ClientId, command: Command<'_>) -> String {
    let mut replies = Replies::default();
    engine.run(client, Request::Command(command), NOW, &mut replies);
    String::from_utf8(replies.0).unwrap()
}

fn put(size: usize) -> Command<'static> {
    Command::Put {
        tube: None,
        pri: 1,
        delay: 0,
        ttr: 60,
        body: vec![b'x'; size].into(),
    }
}

fn batch(on_each: OnEach, ids: impl IntoIterator<Item = u64>) -> Command<'static> {
    let ids = ids.into_iter().map(JobId).collect();
    Command::Batch { on_each, ids }
}

/// A disk with this many jobs, with ids from 1 on.
fn filled(count: u64) -> SimFs {
    let fs = SimFs::new(1);
    let mut engine = open(&fs);
    let client = engine.connect();
    for _ in 0..count {
        assert!(run(&mut engine, client, put(100)).starts_with("INSERTED "));
    }
    engine.commit(NOW).unwrap();
    fs
}

fn reserve_all(engine: &mut Engine, client: ClientId, ids: std::ops::RangeInclusive<u64>) {
    for id in ids {
        let reserved = run(engine, client, Command::ReserveJob(JobId(id)));
        assert!(reserved.starts_with("RESERVED "), "{reserved}");
    }
}

#[test]
fn each_batch_does_what_its_command_does_and_names_those_that_are_not_there() {
    let mut engine = open(&filled(6));
    let (client, other) = (engine.connect(), engine.connect());
    reserve_all(&mut engine, client, 1..=3);
    reserve_all(&mut engine, other, 4..=4);
    let touched = run(&mut engine, client, batch(OnEach::Touch, [1, 4, 5, 9, 1]));
    assert_eq!(touched, "TOUCHED_BATCH 2 16\r\n---\n- 4\n- 5\n- 9\n\r\n");
    let release = OnEach::Release { pri: 7, delay: 0 };
    let released = run(&mut engine, client, batch(release, [1, 2, 4, 6, 2]));
    assert_eq!(released, "RELEASED_BATCH 2 16\r\n---\n- 4\n- 6\n- 2\n\r\n");
    let delayed = OnEach::Release { pri: 8, delay: 9 };
    let released = run(&mut engine, client, batch(delayed, [3]));
    assert_eq!(released, "RELEASED_BATCH 1 7\r\n--- []\n\r\n");
    let state = |id| {
        engine
            .queue()
            .job(JobId(id))
            .map(|job| (job.state, job.pri))
    };
    assert_eq!(state(2), Some((JobState::Ready, 7)));
    assert_eq!(state(3), Some((JobState::Delayed, 8)));
    assert_eq!(state(4), Some((JobState::Reserved, 1)));
    let deleted = run(&mut engine, client, batch(OnEach::Delete, [6, 4, 3, 3, 0]));
    assert_eq!(deleted, "DELETED_BATCH 2 16\r\n---\n- 4\n- 3\n- 0\n\r\n");
    let none = run(&mut engine, client, batch(OnEach::Delete, []));
    assert_eq!(none, "DELETED_BATCH 0 7\r\n--- []\n\r\n");
    let left: BTreeSet<JobId> = engine.queue().ids().collect();
    assert_eq!(left, [1, 2, 4, 5].map(JobId).into());
}

#[test]
fn jobs_that_are_released_go_to_clients_that_wait() {
    let mut engine = open(&filled(3));
    let (client, waiting) = (engine.connect(), engine.connect());
    reserve_all(&mut engine, client, 1..=3);
    let wait = Command::Reserve {
        timeout: None,
        op: crate::protocol::Op::Reserve,
    };
    assert_eq!(run(&mut engine, waiting, wait), "");
    let release = OnEach::Release { pri: 7, delay: 0 };
    let replies = run(&mut engine, client, batch(release, [3, 2]));
    let body = "x".repeat(100);
    let expected = format!("RELEASED_BATCH 2 7\r\n--- []\n\r\nRESERVED 2 100\r\n{body}\r\n");
    assert_eq!(replies, expected);
}

#[test]
fn a_batch_counts_as_that_many_commands() {
    let mut engine = open(&filled(1));
    let client = engine.connect();
    engine.take_visits();
    run(&mut engine, client, batch(OnEach::Touch, 1..=1000));
    assert!(engine.take_visits() >= 4000);
}

/// The states and priorities of all jobs up to this one.
fn states(fs: &SimFs, count: u64) -> Vec<(JobState, u32)> {
    let engine = open(fs);
    let jobs = (1..=count).filter_map(|id| engine.queue().job(JobId(id)));
    let states: HashSet<_> = jobs.map(|job| (job.state, job.pri)).collect();
    states.into_iter().collect()
}

/// A crash at each operation: the batch is there whole, or not at all.
fn crash_everywhere(on_each: OnEach, count: u64, is_done: impl Fn(&SimFs) -> Option<bool>) {
    let disk = filled(count);
    let mut seen = [false; 2];
    for at in 0.. {
        let fs = disk.crash_image(Crash::KeepAll);
        fs.crash_at(at);
        let mut answered = false;
        if let Ok(mut engine) = try_open(&fs) {
            let client = engine.connect();
            if on_each != OnEach::Delete {
                // After the crash of the disk none is reserved.
                for id in (1..=count).map(JobId) {
                    run(&mut engine, client, Command::ReserveJob(id));
                }
            }
            // Others' records are in the same frame.
            run(&mut engine, client, put(3000));
            let reply = run(&mut engine, client, batch(on_each, 1..=count));
            run(&mut engine, client, put(3000));
            answered = engine.commit(NOW).is_ok() && !fs.is_crashed() && !reply.is_empty();
        }
        for how in [
            Crash::KeepAll,
            Crash::DropUnsynced,
            Crash::Random { seed: at },
        ] {
            let done = is_done(&fs.crash_image(how));
            let done = done.unwrap_or_else(|| panic!("a part is done: operation {at}, {how:?}"));
            assert!(done || !answered, "operation {at}, {how:?}");
            seen[usize::from(done)] = true;
        }
        if !fs.is_crashed() {
            assert_eq!(seen, [true, true]);
            return;
        }
    }
}

#[test]
fn a_crash_in_a_delete_batch_leaves_all_jobs_or_none() {
    const COUNT: u64 = 1000;
    crash_everywhere(OnEach::Delete, COUNT, |fs| {
        let engine = open(fs);
        let left = (1..=COUNT).filter(|id| engine.queue().job(JobId(*id)).is_some());
        match left.count() as u64 {
            COUNT => Some(false),
            0 => Some(true),
            _ => None,
        }
    });
}

#[test]
fn a_crash_in_a_release_batch_leaves_all_jobs_released_or_none() {
    const COUNT: u64 = 1000;
    let release = OnEach::Release { pri: 9, delay: 0 };
    crash_everywhere(release, COUNT, |fs| match states(fs, COUNT)[..] {
        [(JobState::Ready, 1)] => Some(false),
        [(JobState::Ready, 9)] => Some(true),
        _ => None,
    });
}

/// Whatever room there is, a batch is done or refused as a whole, and single deletes go on.
#[test]
fn a_full_disk_does_a_batch_or_refuses_it_and_then_nothing_happened() {
    const COUNT: u64 = 400;
    let disk = filled(COUNT);
    let (mut refused, mut done) = (0, 0);
    for room in (0..200_000).step_by(4_000) {
        for on_each in [OnEach::Delete, OnEach::Release { pri: 9, delay: 5 }] {
            let fs = disk.crash_image(Crash::KeepAll);
            fs.set_quota(Some(fs.used() + room));
            let Ok(mut engine) = try_open(&fs) else {
                continue;
            };
            let client = engine.connect();
            if on_each != OnEach::Delete {
                reserve_all(&mut engine, client, 1..=COUNT);
            }
            // Until nothing more can be put.
            while run(&mut engine, client, put(500)).starts_with("INSERTED") {
                engine.commit(NOW).unwrap();
            }
            let before = engine.queue().stats().jobs;
            let reply = run(&mut engine, client, batch(on_each, 1..=COUNT));
            engine.commit(NOW).unwrap();
            match reply.as_str() {
                "OUT_OF_MEMORY\r\n" => {
                    refused += 1;
                    assert_eq!(engine.queue().stats().jobs, before);
                    // A job after the other they go.
                    let deleted = run(&mut engine, client, Command::Delete(JobId(1)));
                    assert_eq!(deleted, "DELETED\r\n");
                }
                _ => {
                    done += 1;
                    assert!(reply.contains(&format!("_BATCH {COUNT} 7\r\n")), "{reply}");
                }
            }
        }
    }
    println!("{refused} were refused, {done} done");
    assert!(done > 0);
}
