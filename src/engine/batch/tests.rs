//! Batches: what they do, and what a crash or a full disk leaves of them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, Options, ReplySink};
use crate::protocol::{Command, OnEach, Reply, Request, Shown, encode, encode_body_begin};
use crate::storage::disk::sim::Crash;
use crate::storage::{Body, SimFs};
use crate::types::{ClientId, JobId, JobState, Now, Ticket, Time};

const NOW: Now = Now::new(Time(1_000_000_000), 1_800_000_000_000_000_000);

/// All replies, as they would be sent.
#[derive(Default)]
struct Replies(Vec<u8>);

impl ReplySink for Replies {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        encode(&reply, &mut self.0);
    }
}

fn try_open(fs: &SimFs) -> Result<Engine, crate::OpenError> {
    let options = Options::simulated(fs, "/log");
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
    Command::put(1, 0, 60, vec![b'x'; size])
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
    let wait = Command::reserve(None);
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
    const COUNT: u64 = 150;
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
    const COUNT: u64 = 150;
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
    for room in (0..200_000).step_by(10_000) {
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

fn reserve_batch(most: u16, seconds: u64) -> Command<'static> {
    Command::ReserveBatch {
        most,
        timeout: Some(Duration::from_secs(seconds)),
    }
}

fn put_in(tube: &'static str, pri: u32, body: &[u8]) -> Command<'static> {
    Command::Put {
        tube: Some(tube.into()),
        pri,
        delay: 0,
        ttr: 60,
        body: body.to_vec().into(),
    }
}

#[test]
fn a_batch_has_the_jobs_that_single_reserves_would_have_in_their_order() {
    let mut engine = open(&SimFs::new(1));
    let client = engine.connect();
    run(&mut engine, client, Command::Watch("b".into()));
    for (tube, pri, body) in [
        ("a", 0, "unwatched"),
        ("b", 5, "third"),
        ("default", 4, "first"),
        ("b", 4, "second"),
        ("default", 9, "fourth"),
    ] {
        run(&mut engine, client, put_in(tube, pri, body.as_bytes()));
    }
    let reserved = run(&mut engine, client, reserve_batch(3, 0));
    assert_eq!(
        reserved,
        "RESERVED_BATCH 3\r\nJOB 3 default 5\r\nfirst\r\nJOB 4 b 6\r\nsecond\r\n\
         JOB 2 b 5\r\nthird\r\n"
    );
    assert_eq!(engine.queue().stats().jobs.reserved, 3);
    let reserved = run(&mut engine, client, reserve_batch(1000, 0));
    assert_eq!(
        reserved,
        "RESERVED_BATCH 1\r\nJOB 5 default 6\r\nfourth\r\n"
    );
    assert_eq!(
        run(&mut engine, client, reserve_batch(1000, 0)),
        "TIMED_OUT\r\n"
    );
    engine.disconnect(client, NOW);
    assert_eq!(engine.queue().stats().jobs.ready, 5, "all are given back");
}

#[test]
fn a_client_that_waits_for_a_batch_gets_what_is_ready_when_the_first_job_is() {
    let mut engine = open(&filled(3));
    let (client, other, late) = (engine.connect(), engine.connect(), engine.connect());
    reserve_all(&mut engine, other, 1..=3);
    assert_eq!(run(&mut engine, client, reserve_batch(10, 100)), "");
    assert_eq!(run(&mut engine, late, reserve_batch(10, 100)), "");
    let release = OnEach::Release { pri: 7, delay: 0 };
    let replies = run(&mut engine, other, batch(release, [3, 2]));
    let (_, reserved) = replies.split_once("--- []\n\r\n").unwrap();
    let body = "x".repeat(100);
    let job = |id| format!("JOB {id} default 100\r\n{body}\r\n");
    assert_eq!(
        reserved,
        format!("RESERVED_BATCH 2\r\n{}{}", job(2), job(3))
    );
    // The one that came later waits on, for a batch.
    let replies = run(&mut engine, other, batch(release, [1]));
    assert!(
        replies.ends_with(&format!("RESERVED_BATCH 1\r\n{}", job(1))),
        "{replies}"
    );
    // A plain reserve after a batch is a plain one.
    assert_eq!(
        run(&mut engine, late, Command::Delete(JobId(1))),
        "DELETED\r\n"
    );
    let plain = Command::reserve(None);
    assert_eq!(run(&mut engine, late, plain), "");
    let replies = run(&mut engine, client, batch(release, [2]));
    assert!(
        replies.ends_with(&format!("RESERVED 2 100\r\n{body}\r\n")),
        "{replies}"
    );
}

#[test]
fn a_wait_for_a_batch_ends_as_one_for_a_job_does() {
    let mut engine = open(&SimFs::new(1));
    let client = engine.connect();
    assert_eq!(run(&mut engine, client, reserve_batch(10, 5)), "");
    let later = Now {
        mono: Time(NOW.mono.0 + 6_000_000_000),
        ..NOW
    };
    let mut replies = Replies::default();
    engine.tick(later, &mut replies).unwrap();
    assert_eq!(replies.0, b"TIMED_OUT\r\n");
    assert_eq!(run(&mut engine, client, reserve_batch(10, 5)), "");
    let mut replies = Replies::default();
    engine.half_closed(client, NOW, &mut replies);
    assert_eq!(replies.0, b"TIMED_OUT\r\n");
}

/// The sum of the bodies of a batch.
fn sizes(reply: &str) -> Vec<usize> {
    let lines = reply.lines().filter(|line| line.starts_with("JOB "));
    let size = |line: &str| line.rsplit(' ').next().unwrap().parse().unwrap();
    lines.map(size).collect()
}

#[test]
fn the_bodies_of_a_batch_have_a_mebibyte_together_and_the_first_any_size() {
    const MIB: usize = 1 << 20;
    for (bodies, taken) in [
        (&[60_000; 18][..], 17),
        (&[MIB / 32; 33], 32),
        (&[MIB + 1, 1, 1], 1),
        (&[MIB, 0, 0, 1], 3),
        (&[1, MIB, 1], 1),
    ] {
        let mut engine = Engine::open(
            &Options {
                job_size_max: 2 << 20,
                ..Options::default()
            },
            NOW,
        )
        .unwrap();
        let client = engine.connect();
        for size in bodies {
            run(&mut engine, client, put(*size));
        }
        let reply = run(&mut engine, client, reserve_batch(1000, 0));
        assert_eq!(sizes(&reply), bodies[..taken]);
        assert_eq!(engine.queue().stats().jobs.reserved, taken as u64);
    }
}

/// Takes large bodies in pieces, and has little room.
#[derive(Default)]
struct Pieces {
    replies: Replies,
    room: usize,
    bodies: usize,
}

impl ReplySink for Pieces {
    fn reply(&mut self, client: ClientId, after: Ticket, reply: Reply<'_>) {
        self.replies.reply(client, after, reply);
    }

    fn room(&self, _: ClientId) -> usize {
        self.room
    }

    fn takes_pieces(&self, _: ClientId) -> bool {
        true
    }

    fn reply_body(&mut self, _: ClientId, _: Ticket, job: (Shown<'_>, JobId), body: Body) {
        let (shown, id) = job;
        encode_body_begin(shown, id, body.size(), &mut self.replies.0);
        self.bodies += 1;
    }
}

fn run_in_pieces(engine: &mut Engine, client: ClientId, sink: &mut Pieces) -> String {
    sink.replies.0.clear();
    let request = Request::Command(reserve_batch(1000, 100));
    engine.run(client, request, NOW, sink);
    for _ in 0..100 {
        engine.tick(NOW, sink).unwrap();
        engine.commit(NOW).unwrap();
    }
    String::from_utf8(sink.replies.0.clone()).unwrap()
}

#[test]
fn a_large_body_comes_alone_and_ends_the_batch_before_it() {
    for dir in [None, Some("/log".into())] {
        let options = Options {
            dir,
            job_size_max: 1 << 20,
            fs: Arc::new(SimFs::new(1)),
            ..Options::default()
        };
        let mut engine = Engine::open(&options, NOW).unwrap();
        let client = engine.connect();
        for size in [10, 20, 70_000, 30] {
            run(&mut engine, client, put(size));
        }
        engine.commit(NOW).unwrap();
        let mut sink = Pieces {
            room: usize::MAX,
            ..Pieces::default()
        };
        assert_eq!(
            sizes(&run_in_pieces(&mut engine, client, &mut sink)),
            [10, 20]
        );
        let large = run_in_pieces(&mut engine, client, &mut sink);
        assert_eq!(large, "RESERVED_BATCH 1\r\nJOB 3 default 70000\r\n");
        assert_eq!(sink.bodies, 1);
        assert_eq!(sizes(&run_in_pieces(&mut engine, client, &mut sink)), [30]);
        assert_eq!(engine.queue().stats().jobs.reserved, 4);
    }
}

#[test]
fn a_batch_ends_where_there_is_no_more_room_for_replies() {
    let mut engine = open(&filled(10));
    let client = engine.connect();
    for (room, taken) in [(0, 1), (99, 1), (250, 2), (usize::MAX, 6)] {
        let mut sink = Pieces {
            room,
            ..Pieces::default()
        };
        let reply = run_in_pieces(&mut engine, client, &mut sink);
        assert_eq!(sizes(&reply), vec![100; taken]);
    }
}

/// Its job is buried, and the batch has the others.
#[test]
fn a_body_that_is_lost_is_skipped_wherever_it_is_in_the_batch() {
    for lost in [1, 2, 4] {
        let fs = filled(4);
        // The first byte of the body of that job: they have all the same size.
        let file = "/log/segment-0000000001.00000";
        let bytes = fs.read(file).unwrap();
        // What comes behind a body is chance, and may be an x too: a body begins behind something else.
        let is_body = |at: &usize| {
            let body = &bytes[*at..*at + 100];
            bytes[at - 1] != b'x' && body.iter().all(|byte| *byte == b'x')
        };
        let mut starts = (1..bytes.len() - 100).filter(is_body);
        let at = starts.nth(lost - 1).unwrap();
        let mut engine = open(&fs);
        fs.flip_bit(file, at as u64 * 8).unwrap();
        let client = engine.connect();
        let reply = run(&mut engine, client, reserve_batch(1000, 0));
        assert!(reply.starts_with("RESERVED_BATCH 3\r\n"), "{reply}");
        let state = |id| engine.queue().job(JobId(id)).unwrap().state;
        for id in 1..=4 {
            let expected = match id == lost as u64 {
                true => JobState::Buried,
                false => JobState::Reserved,
            };
            assert_eq!(state(id), expected, "{id} of {lost}");
        }
    }
}

#[test]
fn a_batch_that_is_reserved_counts_as_that_many_reserves() {
    let mut engine = open(&filled(1000));
    let client = engine.connect();
    engine.take_visits();
    run(&mut engine, client, reserve_batch(1000, 0));
    assert!(engine.take_visits() >= 3900);
}
