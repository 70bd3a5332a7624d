//! Keys: what a put with one does, what a reserve records, and what a crash or a full disk leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::engine::{JobAction, Options};
use crate::pattern::Pattern;
use crate::protocol::{Command, Request, SetPolicy, Shown, encode, encode_body_begin};
use crate::random::Random;
use crate::storage::disk::sim::Crash;
use crate::storage::{Body, SimFs};
use crate::types::{Ticket, Time};

const NOW: Now = Now::new(Time(1_000_000_000), 1_800_000_000_000_000_000);

/// All replies, as they would be sent, and what the last one waits for. Large bodies are taken in
/// pieces, and left out here.
#[derive(Default)]
struct Replies(Vec<u8>, Ticket);

impl ReplySink for Replies {
    fn reply(&mut self, _: ClientId, after: Ticket, reply: Reply<'_>) {
        encode(&reply, &mut self.0);
        self.1 = after;
    }

    fn takes_pieces(&self, _: ClientId) -> bool {
        true
    }

    fn reply_body(&mut self, _: ClientId, after: Ticket, (shown, id): (Shown<'_>, JobId), _: Body) {
        encode_body_begin(shown, id, 0, &mut self.0);
        self.1 = after;
    }
}

fn try_open(fs: &SimFs) -> Result<Engine, crate::OpenError> {
    let options = Options {
        job_size_max: 1 << 20,
        ..Options::simulated(fs, "/log")
    };
    Engine::open(&options, NOW)
}

fn open(fs: &SimFs) -> Engine {
    try_open(fs).unwrap_or_else(|error| panic!("{error}"))
}

fn ask(engine: &mut Engine, client: ClientId, command: Command<'_>) -> (String, Ticket) {
    let mut replies = Replies::default();
    engine.run(client, Request::Command(command), NOW, &mut replies);
    (String::from_utf8(replies.0).unwrap(), replies.1)
}

fn run(engine: &mut Engine, client: ClientId, command: Command<'_>) -> String {
    ask(engine, client, command).0
}

/// A `put-with` of a body of this size, with this key.
fn put(key: &'static str, unique: Unique, conflict: Conflict, size: usize) -> Command<'static> {
    Command::PutWith(Box::new(PutWith {
        tube: None,
        pri: 5,
        delay: 0,
        ttr: 60,
        at: None,
        key: Some(JobKey {
            name: key.into(),
            unique,
            conflict,
        }),
        group: None,
        body: vec![b'x'; size].into(),
    }))
}

fn keep(key: &'static str) -> Command<'static> {
    put(key, Unique::Exists, Conflict::Keep, 10)
}

fn replace(key: &'static str) -> Command<'static> {
    put(key, Unique::Exists, Conflict::Replace, 10)
}

fn waiting(key: &'static str) -> Command<'static> {
    put(key, Unique::Waiting, Conflict::Keep, 10)
}

fn reserve() -> Command<'static> {
    Command::reserve(Some(Duration::ZERO))
}

fn ids(engine: &Engine) -> Vec<u64> {
    let ids: BTreeSet<JobId> = engine.queue().ids().collect();
    ids.into_iter().map(|id| id.0).collect()
}

fn in_memory() -> Engine {
    Engine::open(&Options::default(), NOW).unwrap()
}

#[test]
fn a_second_job_with_a_key_is_not_put_and_the_first_is_named() {
    let mut engine = in_memory();
    let client = engine.connect();
    assert_eq!(run(&mut engine, client, keep("a")), "INSERTED 1\r\n");
    assert_eq!(run(&mut engine, client, keep("a")), "EXISTS 1\r\n");
    assert_eq!(run(&mut engine, client, waiting("a")), "EXISTS 1\r\n");
    assert_eq!(run(&mut engine, client, keep("b")), "INSERTED 2\r\n");
    run(&mut engine, client, Command::Use("other".into()));
    assert_eq!(run(&mut engine, client, keep("a")), "INSERTED 3\r\n");
    let Command::PutWith(mut put) = keep("a") else {
        unreachable!()
    };
    put.tube = Some("default".into());
    put.group = Some("g".into());
    let to_default = run(&mut engine, client, Command::PutWith(put.clone()));
    assert_eq!(to_default, "EXISTS 1\r\n");
    assert!(run(&mut engine, client, reserve()).starts_with("RESERVED 1 "));
    let to_default = run(&mut engine, client, Command::PutWith(put.clone()));
    assert_eq!(to_default, "EXISTS 1\r\n");
    run(&mut engine, client, Command::Delete(JobId(1)));
    let to_default = run(&mut engine, client, Command::PutWith(put));
    assert_eq!(to_default, "INSERTED 4\r\n");
    let list = engine.queue().attributes(JobId(4)).unwrap();
    let expected = Attributes {
        key: Some("a"),
        group: Some("g"),
        ..Attributes::default()
    };
    assert_eq!(Attributes::decode(list), Some(expected));
    assert_eq!((ids(&engine), engine.key_conflicts), (vec![2, 3, 4], 4));
}

#[test]
fn a_group_alone_is_recorded_and_no_key() {
    let mut engine = in_memory();
    let client = engine.connect();
    for id in 1..=2 {
        let Command::PutWith(mut put) = keep("a") else {
            unreachable!()
        };
        (put.key, put.group) = (None, Some("g".into()));
        let inserted = run(&mut engine, client, Command::PutWith(put));
        assert_eq!(inserted, format!("INSERTED {id}\r\n"));
    }
    let list = engine.queue().attributes(JobId(2)).unwrap();
    assert_eq!(Attributes::decode(list).unwrap().group, Some("g"));
    assert_eq!(engine.queue().key_holder("default", "a"), None);
}

#[test]
fn a_put_replaces_the_job_that_has_its_key_unless_that_is_reserved() {
    let mut engine = in_memory();
    let client = engine.connect();
    run(&mut engine, client, keep("a"));
    assert_eq!(run(&mut engine, client, replace("a")), "INSERTED 2\r\n");
    assert_eq!(ids(&engine), [2]);
    run(&mut engine, client, reserve());
    assert_eq!(run(&mut engine, client, replace("a")), "EXISTS 2\r\n");
    let bury = Command::Bury {
        id: JobId(2),
        pri: 1,
    };
    run(&mut engine, client, bury);
    assert_eq!(run(&mut engine, client, replace("a")), "INSERTED 3\r\n");
    assert_eq!(ids(&engine), [3]);
    engine.queue().assert_claims();
}

#[test]
fn a_full_tube_says_that_a_key_is_taken_and_lets_a_job_be_replaced() {
    let mut engine = in_memory();
    let client = engine.connect();
    let set = |limits: &str| {
        let tubes = Pattern::parse("default").unwrap();
        let policy = limits.parse().unwrap();
        Command::SetPolicy(Box::new(SetPolicy { tubes, policy }))
    };
    let sized = |size| put("a", Unique::Exists, Conflict::Replace, size);
    let full = "OUT_OF_MEMORY\r\n";
    run(&mut engine, client, set("max-jobs=1 max-bytes=15"));
    assert_eq!(run(&mut engine, client, keep("a")), "INSERTED 1\r\n");
    assert_eq!(run(&mut engine, client, keep("a")), "EXISTS 1\r\n");
    assert_eq!(run(&mut engine, client, keep("b")), full);
    assert_eq!(run(&mut engine, client, sized(15)), "INSERTED 2\r\n");
    assert_eq!(run(&mut engine, client, sized(16)), full);
    run(&mut engine, client, set("max-jobs=0"));
    assert_eq!(run(&mut engine, client, replace("a")), full);
    assert_eq!(ids(&engine), [2]);
}

#[test]
fn a_job_that_is_moved_claims_its_key_in_its_new_tube_and_the_oldest_one_is_replaced() {
    let mut engine = in_memory();
    let client = engine.connect();
    run(&mut engine, client, keep("a"));
    run(&mut engine, client, Command::Use("dead".into()));
    run(&mut engine, client, keep("a"));
    let action = JobAction::move_to("dead", false);
    engine
        .alter(JobId(1), &action, NOW, &mut Replies::default())
        .unwrap();
    assert_eq!(ids(&engine), [1, 2]);
    assert_eq!(engine.queue().key_holder("default", "a"), None);
    assert_eq!(run(&mut engine, client, keep("a")), "EXISTS 1\r\n");
    assert_eq!(run(&mut engine, client, replace("a")), "INSERTED 3\r\n");
    assert_eq!(run(&mut engine, client, keep("a")), "EXISTS 2\r\n");
    run(&mut engine, client, Command::Delete(JobId(2)));
    run(&mut engine, client, Command::Delete(JobId(3)));
    assert_eq!(run(&mut engine, client, keep("a")), "INSERTED 4\r\n");
    engine.queue().assert_claims();
}

/// All ways in which a client gets a job: the reply waits for the record, and after a power cut at once
/// after it the key is free.
#[test]
fn a_reserve_that_frees_a_key_is_durable_before_its_reply() {
    let ways: [(usize, fn() -> Command<'static>); 6] = [
        (10, reserve),
        (200_000, reserve),
        (10, || Command::ReserveJob(JobId(1))),
        (200_000, || Command::ReserveJob(JobId(1))),
        (10, || Command::ReserveBatch {
            most: 10,
            timeout: Some(Duration::ZERO),
        }),
        (200_000, || Command::ReserveBatch {
            most: 10,
            timeout: Some(Duration::ZERO),
        }),
    ];
    for (way, (size, reserve)) in ways.into_iter().enumerate() {
        for is_buried in [false, true] {
            let fs = SimFs::new(1);
            let mut engine = open(&fs);
            let client = engine.connect();
            let new = || put("a", Unique::Waiting, Conflict::Replace, size);
            assert_eq!(run(&mut engine, client, new()), "INSERTED 1\r\n");
            engine.commit(NOW).unwrap();
            let mut replies = Replies::default();
            if is_buried {
                let buried = engine.alter(JobId(1), &JobAction::Bury, NOW, &mut replies);
                buried.unwrap();
                engine.commit(NOW).unwrap();
            }
            engine.run(client, Request::Command(reserve()), NOW, &mut replies);
            if is_buried && replies.0 == b"TIMED_OUT\r\n" {
                continue;
            }
            while replies.0.is_empty() {
                engine.tick(NOW, &mut replies).unwrap();
            }
            let reply = String::from_utf8_lossy(&replies.0).into_owned();
            assert!(reply.starts_with("RESERVED"), "{way}: {reply}");
            // A large body comes later, when the record may be durable already.
            let waits = replies.1 > engine.acknowledged();
            assert!(waits || size > 10, "{way}: it waits");
            // The next job may be put in the same turn.
            let second = run(&mut engine, client, new());
            assert_eq!(second, "INSERTED 2\r\n", "{way}");
            engine.commit(NOW).unwrap();
            assert!(replies.1 <= engine.acknowledged(), "{way}");
            engine.queue().assert_claims();
            let engine = open(&fs.crash_image(Crash::DropUnsynced));
            engine.queue().assert_claims();
            assert_eq!(ids(&engine), [1, 2], "{way}");
            let job = engine.queue().job(JobId(1)).unwrap();
            assert_eq!((job.state, job.counters.reserves), (JobState::Ready, 1));
            let holder = engine.queue().key_holder("default", "a");
            assert_eq!(holder, Some(JobId(2)), "{way}");
        }
    }
}

#[test]
fn a_client_that_waits_gets_a_job_whose_key_is_free_by_then() {
    let fs = SimFs::new(1);
    let mut engine = open(&fs);
    let (client, worker) = (engine.connect(), engine.connect());
    let wait = Command::reserve(None);
    assert_eq!(run(&mut engine, worker, wait), "");
    let replies = run(&mut engine, client, waiting("a"));
    assert_eq!(replies, "INSERTED 1\r\nRESERVED 1 10\r\nxxxxxxxxxx\r\n");
    assert_eq!(run(&mut engine, client, waiting("a")), "INSERTED 2\r\n");
    engine.commit(NOW).unwrap();
    let engine = open(&fs.crash_image(Crash::DropUnsynced));
    assert_eq!(engine.queue().key_holder("default", "a"), Some(JobId(2)));
}

#[test]
fn a_reserve_of_other_jobs_waits_for_no_record() {
    let fs = SimFs::new(1);
    let mut engine = open(&fs);
    let client = engine.connect();
    run(&mut engine, client, keep("a"));
    engine.commit(NOW).unwrap();
    let written = engine.log().unwrap().records_written();
    let (reply, after) = ask(&mut engine, client, reserve());
    assert!(reply.starts_with("RESERVED 1 "), "{reply}");
    assert!(after <= engine.acknowledged());
    assert_eq!(engine.log().unwrap().records_written(), written);
}

/// The number of jobs with the key, after a crash, and the greatest id.
fn left(fs: &SimFs) -> (usize, u64) {
    let engine = open(fs);
    engine.queue().assert_claims();
    let ids = ids(&engine);
    let holder = engine.queue().key_holder("default", "a");
    assert_eq!(holder.map(|id| id.0), ids.first().copied());
    (ids.len(), ids.last().copied().unwrap_or_default())
}

#[test]
fn a_crash_in_a_replacing_put_leaves_the_old_job_or_the_new_one() {
    for size in [10, 70_000, 300_000] {
        let disk = SimFs::new(1);
        let mut engine = open(&disk);
        let client = engine.connect();
        run(&mut engine, client, keep("a"));
        engine.commit(NOW).unwrap();
        drop(engine);
        let mut seen = BTreeSet::new();
        for at in 0.. {
            let fs = disk.crash_image(Crash::KeepAll);
            fs.crash_at(at);
            let mut answered = false;
            if let Ok(mut engine) = try_open(&fs) {
                let client = engine.connect();
                let new = put("a", Unique::Exists, Conflict::Replace, size);
                let reply = run(&mut engine, client, new);
                answered = engine.commit(NOW).is_ok() && !fs.is_crashed() && !reply.is_empty();
            }
            for how in [
                Crash::KeepAll,
                Crash::DropUnsynced,
                Crash::Random { seed: at },
            ] {
                let (count, id) = left(&fs.crash_image(how));
                assert_eq!(count, 1, "operation {at}, {how:?}");
                assert!(id == 2 || !answered, "operation {at}, {how:?}");
                seen.insert(id);
            }
            if !fs.is_crashed() {
                break;
            }
        }
        assert!(seen.into_iter().eq([1, 2]));
    }
}

/// A body that came slowly: its beginning is on the disk.
#[test]
fn a_large_body_whose_beginning_was_kept_is_put_with_its_key_or_not_at_all() {
    let fs = SimFs::new(1);
    let mut engine = open(&fs);
    let client = engine.connect();
    let begin = vec![b'b'; 300_000];
    let mut put_begun = |conflict, expected: &str| {
        assert!(engine.keep_begun(client, &begin, NOW));
        let reply = run(
            &mut engine,
            client,
            put("a", Unique::Waiting, conflict, 500),
        );
        engine.commit(NOW).unwrap();
        assert_eq!(reply, expected);
        assert_eq!(engine.spooled(), 0, "the beginning is let go");
    };
    put_begun(Conflict::Keep, "INSERTED 1\r\n");
    put_begun(Conflict::Keep, "EXISTS 1\r\n");
    put_begun(Conflict::Replace, "INSERTED 2\r\n");
    let engine = open(&fs.crash_image(Crash::DropUnsynced));
    assert_eq!(ids(&engine), [2]);
    assert_eq!(engine.queue().job(JobId(2)).unwrap().body_size, 300_500);
    assert_eq!(engine.queue().key_holder("default", "a"), Some(JobId(2)));
}

/// On a full disk a put is refused as a whole, and jobs are handed out: what they free is found out.
#[test]
fn on_a_full_disk_nothing_is_replaced_by_half_and_jobs_are_handed_out() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let fs = SimFs::new(1);
    fs.set_quota(Some(600 << 10));
    let mut engine = open(&fs);
    let client = engine.connect();
    for key in KEYS {
        let reply = run(
            &mut engine,
            client,
            put(key, Unique::Waiting, Conflict::Keep, 500),
        );
        assert!(reply.starts_with("INSERTED"));
    }
    let filler = || Command::Put {
        tube: Some("filler".into()),
        pri: 1,
        delay: 0,
        ttr: 1,
        body: vec![b'f'; 500].into(),
    };
    while run(&mut engine, client, filler()).starts_with("INSERTED") {
        engine.commit(NOW).unwrap();
        while engine.keep_log(NOW).unwrap() {}
    }
    let before = ids(&engine);
    for key in KEYS {
        let large = put(key, Unique::Waiting, Conflict::Replace, 60_000);
        assert_eq!(run(&mut engine, client, large), "OUT_OF_MEMORY\r\n");
    }
    assert_eq!(ids(&engine), before);
    engine.queue().assert_claims();
    for (id, key) in (1..).zip(KEYS) {
        let reserved = run(&mut engine, client, reserve());
        assert!(
            reserved.starts_with(&format!("RESERVED {id} ")),
            "{reserved}"
        );
        assert_eq!(engine.queue().key_holder("default", key), None);
        engine.commit(NOW).unwrap();
        while engine.keep_log(NOW).unwrap() {}
    }
}

/// No job is moved here: so of each key at most one job claims it.
fn assert_claimed_once(engine: &Engine, keys: &[&str]) {
    for key in keys {
        let claims = |id: &JobId| {
            let list = engine.queue().attributes(*id).unwrap_or_default();
            let attributes = Attributes::decode(list).unwrap();
            let reserves = engine.queue().job(*id).unwrap().counters.reserves;
            let is_over = attributes.unique == Some(Unique::Waiting) && reserves > 0;
            attributes.key == Some(key) && !is_over
        };
        let claims: Vec<_> = engine.queue().ids().filter(claims).collect();
        assert!(claims.len() <= 1, "key {key}: {claims:?}");
    }
}

/// Random commands with few keys, restarts and compaction: the claims are those of the states of the
/// jobs, and no put with a key has made a second job that claims it.
#[test]
fn claims_are_the_same_after_every_restart_and_no_put_makes_a_second_one() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    for seed in 0..12 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut disk = SimFs::new(1);
        let mut engine = open(&disk);
        let mut client = engine.connect();
        for _ in 0..600 {
            let key = KEYS[random.below(3)];
            let unique = [Unique::Exists, Unique::Waiting][random.below(2)];
            let conflict = [Conflict::Keep, Conflict::Replace][random.below(2)];
            let all = ids(&engine);
            let id = JobId(
                all.get(random.below(all.len().max(1)))
                    .copied()
                    .unwrap_or(1),
            );
            let holder = engine.queue().key_holder("default", key);
            match random.below(10) {
                0..=3 => {
                    let size = [10, 3000][random.below(2)];
                    let put = put(key, unique, conflict, size);
                    let reply = run(&mut engine, client, put);
                    let after = engine.queue().key_holder("default", key);
                    match reply.split_at(9) {
                        ("INSERTED ", id) => {
                            let id = JobId(id.trim_end().parse().unwrap());
                            assert_eq!(after, Some(id), "{reply}");
                        }
                        _ => assert_eq!(after, holder, "{reply}"),
                    }
                }
                4..=5 => _ = run(&mut engine, client, reserve()),
                6 => {
                    let (pri, delay) = (5, random.below(2) as u32);
                    _ = run(&mut engine, client, Command::Release { id, pri, delay });
                }
                7 => _ = run(&mut engine, client, Command::Delete(id)),
                8 => _ = run(&mut engine, client, Command::Bury { id, pri: 5 }),
                _ => _ = run(&mut engine, client, Command::KickJob(id)),
            }
            engine.queue().assert_claims();
            assert_claimed_once(&engine, &KEYS);
            if random.below(3) == 0 {
                continue;
            }
            let crashed = open(&disk.crash_image(Crash::Random { seed }));
            crashed.queue().assert_claims();
            assert_claimed_once(&crashed, &KEYS);
            engine.commit(NOW).unwrap();
            while engine.keep_log(NOW).unwrap() {}
            if random.below(40) == 0 {
                let holders =
                    |engine: &Engine| KEYS.map(|key| engine.queue().key_holder("default", key));
                let before = holders(&engine);
                disk = disk.crash_image(Crash::KeepAll);
                engine = open(&disk);
                client = engine.connect();
                assert_eq!(holders(&engine), before);
                engine.queue().assert_claims();
            }
        }
    }
}
