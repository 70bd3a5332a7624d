//! What a clear takes and leaves, and what a crash, a full disk or a restart make of it.

use std::collections::BTreeSet;

use crate::clearing::ClearedStates;
use crate::engine::spoken::{BEGIN_NS, Replies, Server, engine, try_engine};
use crate::engine::{Cleared, Engine, Options};
use crate::random::Random;
use crate::storage::disk::sim::{Crash, Errno, Fault, OpKind};
use crate::storage::{JOINED_SIZE_MAX, Purpose, SimFs};
use crate::types::{JobId, JobState, Now, SettingClass, Time};

use JobState::{Buried, Delayed, Ready, Reserved};

/// The ids of all jobs that are there.
fn ids(server: &Server) -> BTreeSet<u64> {
    server
        .engine
        .queue()
        .ids()
        .filter_map(|id| {
            let job = server.engine.queue().job(id);
            job.map(|_| id.0)
        })
        .collect()
}

fn put(server: &mut Server, count: u64) {
    for _ in 0..count {
        assert!(server.say("put 5 0 10 1\r\nx").starts_with("INSERTED "));
    }
}

/// Goes on until nothing is left to do at once.
fn settle(server: &mut Server) {
    server.tick(&mut Replies::default());
}

fn clears(server: &Server) -> usize {
    server.engine.settings(SettingClass::Clear).count()
}

/// Ready jobs with ids from 1 on, every tenth delayed, and every seventh buried; three are reserved.
fn mixed(count: u64) -> Server {
    let mut server = Server::new();
    for id in 1..=count {
        let delay = if id.is_multiple_of(10) { 1000 } else { 0 };
        server.say(&format!("put {} {delay} 10 1\r\nx", id % 3 * 1000));
        if !id.is_multiple_of(10) && id.is_multiple_of(7) {
            server.say(&format!("reserve-job {id}"));
            server.say(&format!("bury {id} 5"));
        }
    }
    for id in [1, 2, 3] {
        server.say(&format!("reserve-job {id}"));
    }
    server
}

/// The jobs of `mixed` that are left by a clear.
fn left(count: u64, states: ClearedStates) -> BTreeSet<u64> {
    let state = |id: u64| match id {
        1..=3 => Reserved,
        _ if id.is_multiple_of(10) => Delayed,
        _ if id.is_multiple_of(7) => Buried,
        _ => Ready,
    };
    (1..=count).filter(|id| !states.has(state(*id))).collect()
}

#[test]
fn few_jobs_and_many_are_cleared_by_state_and_reserved_ones_stay() {
    for count in [100, 4000] {
        for (word, states) in [
            ("ready", ClearedStates::Ready),
            ("delayed", ClearedStates::Delayed),
            ("buried", ClearedStates::Buried),
            ("all", ClearedStates::All),
        ] {
            let mut server = mixed(count);
            let left = left(count, states);
            let cleared = count - left.len() as u64;
            let reply = server.say(&format!("clear-tube default {word}"));
            assert_eq!(reply, format!("CLEARED {cleared}\r\n"), "{word} of {count}");
            assert_eq!(ids(&server), left, "{word} of {count}");
            let stats = server.engine.queue().stats().jobs;
            assert_eq!(stats.total(), left.len() as u64);
            assert!(stats.urgent <= stats.ready);
            server.talk(&[(&*format!("clear-tube default {word}"), "CLEARED 0")]);
            put(&mut server, 1);
            settle(&mut server);
            let mut expected = left;
            expected.insert(count + 1);
            assert_eq!((ids(&server), clears(&server)), (expected.clone(), 0));
            server.crash();
            assert_eq!(ids(&server), expected, "{word} of {count} after a crash");
        }
    }
}

#[test]
fn what_is_cleared_is_found_by_no_command() {
    let mut server = mixed(3000);
    let memory = server.engine.queue().memory();
    server.say("put-with 5 0 10 1 key=k group=g\r\nx");
    server.talk(&[
        ("put-with 5 0 10 1 key=k\r\nx", "EXISTS 3001"),
        ("clear-tube default all", "CLEARED 2998"),
        ("peek-ready", "NOT_FOUND"),
        ("peek-delayed", "NOT_FOUND"),
        ("peek-buried", "NOT_FOUND"),
        ("kick 10", "KICKED 0"),
        (
            "list-jobs default ready 0 10",
            "OK 21\r\n---\nnext: 0\njobs: []\n",
        ),
    ]);
    for id in [4, 7, 10, 3001] {
        for line in ["peek", "delete", "reserve-job", "kick-job", "stats-job"] {
            assert_eq!(
                server.say(&format!("{line} {id}")),
                "NOT_FOUND\r\n",
                "{line} {id}"
            );
        }
        assert_eq!(server.say(&format!("move-job {id} other")), "NOT_FOUND\r\n");
    }
    // The key is free, and stays with the new job.
    server.talk(&[
        ("put-with 5 0 10 1 key=k\r\nx", "INSERTED 3002"),
        ("put-with 5 0 10 1 key=k\r\nx", "EXISTS 3002"),
    ]);
    server.engine.queue().assert_claims();
    settle(&mut server);
    server.engine.queue().assert_claims();
    server.talk(&[("put-with 5 0 10 1 key=k\r\nx", "EXISTS 3002")]);
    assert!(server.engine.queue().memory() < memory / 10);
    // Those that were reserved go on.
    server.talk(&[
        ("release 1 5 0", "RELEASED"),
        ("delete 2", "DELETED"),
        ("bury 3 5", "BURIED"),
        ("delete 3002", "DELETED"),
        ("clear-tube default all", "CLEARED 2"),
        ("clear-tube other all", "CLEARED 0"),
    ]);
    assert_eq!(ids(&server), BTreeSet::new());
}

#[test]
fn jobs_that_were_moved_are_cleared_where_they_are() {
    for few in [true, false] {
        let mut server = Server::new();
        put(&mut server, 3000);
        let moved = if few { 2 } else { 1500 };
        for id in 1..=moved {
            assert_eq!(server.say(&format!("move-job {id} other")), "MOVED\r\n");
        }
        let (here, there) = ("clear-tube default all", "clear-tube other all");
        let cleared = format!("CLEARED {}", 3000 - moved);
        server.talk(&[(here, &*cleared)]);
        assert_eq!(ids(&server), (1..=moved).collect());
        // One of them comes back while the clear goes on.
        server.talk(&[("move-job 1 default", "MOVED")]);
        server.crash();
        assert_eq!(ids(&server), (1..=moved).collect());
        server.is_at(1, "default", Ready);
        let cleared = format!("CLEARED {}", moved - 1);
        server.talk(&[(there, &*cleared)]);
        settle(&mut server);
        assert_eq!((ids(&server), clears(&server)), ([1].into(), 0));
        server.crash();
        assert_eq!(ids(&server), [1].into());
    }
}

#[test]
fn a_clear_goes_on_after_a_crash_whatever_has_become_of_other_jobs_meanwhile() {
    let mut random = Random::new(11);
    for round in 0..20 {
        let mut server = mixed(3000);
        server.say("clear-tube default ready");
        server.say("clear-tube default buried");
        let slices = random.below(4);
        for _ in 0..slices {
            server
                .engine
                .tick(server.now, &mut Replies::default())
                .unwrap();
            server.engine.commit(server.now).unwrap();
        }
        server.talk(&[("release 1 5 0", "RELEASED"), ("bury 2 5", "BURIED")]);
        put(&mut server, 2);
        server.say("kick-job 10");
        let expected = ids(&server);
        for _ in 0..2 {
            server.crash();
            assert_eq!(ids(&server), expected, "round {round}");
            assert_eq!(
                server.engine.queue().stats().jobs.total(),
                expected.len() as u64
            );
        }
        settle(&mut server);
        assert_eq!((ids(&server), clears(&server)), (expected.clone(), 0));
        server.crash();
        assert_eq!(ids(&server), expected, "round {round}");
    }
}

#[test]
fn a_clear_of_which_a_part_is_lost_deletes_nothing_more() {
    let mut server = Server::new();
    put(&mut server, 3000);
    server.say("clear-tube default all");
    let names = server.engine.settings(SettingClass::Clear);
    let (name, value) = names
        .map(|(name, value)| (name.to_owned(), value.to_vec()))
        .next()
        .unwrap();
    // It says now that it is the first of two parts.
    let mut value = value;
    value[4] = 2;
    let set = server
        .engine
        .set(SettingClass::Clear, &name, &value, server.now);
    assert!(set.unwrap());
    server.engine.commit(server.now).unwrap();
    server.crash();
    assert_eq!(ids(&server).len(), 3000);
    settle(&mut server);
    assert_eq!((ids(&server).len(), clears(&server)), (3000, 0));
    server.talk(&[("clear-tube default all", "CLEARED 3000")]);
}

#[test]
fn a_full_disk_refuses_a_clear_as_a_whole_or_takes_it() {
    for count in [500, 3000] {
        let mut server = mixed(count);
        let before = ids(&server);
        let full = Fault::fail(OpKind::Write, Errno::NOSPC).for_ever();
        server.disk.inject(full);
        server
            .disk
            .inject(Fault::fail(OpKind::Create, Errno::NOSPC).for_ever());
        let reply = server.try_say_as(server.client, "clear-tube default all");
        match reply.as_deref() {
            Some("OUT_OF_MEMORY\r\n") => assert_eq!(ids(&server), before),
            Some(reply) => assert!(reply.starts_with("CLEARED "), "{reply}"),
            None => {}
        }
    }
}

#[test]
fn only_so_many_clears_go_on_at_once() {
    let mut server = Server::new();
    for clear in 0..65 {
        put(&mut server, 1001);
        let reply = server.say("clear-tube default ready");
        let expected = ["CLEARED 1001\r\n", "OUT_OF_MEMORY\r\n"][usize::from(clear == 64)];
        assert_eq!(reply, expected, "{clear}");
    }
    settle(&mut server);
    server.talk(&[("clear-tube default ready", "CLEARED 1001")]);
    settle(&mut server);
    assert_eq!((ids(&server), clears(&server)), (BTreeSet::new(), 0));
}

#[test]
fn a_queue_in_memory_clears_too() {
    let now = Now::new(Time(0), BEGIN_NS);
    let engine = Engine::open(&crate::engine::Options::default(), now).unwrap();
    let disk = SimFs::new(1);
    let mut server = Server::on(disk, engine, now);
    put(&mut server, 3000);
    let memory = server.engine.queue().memory();
    let cleared = server.engine.clear_tube("default", ClearedStates::All, now);
    assert_eq!(cleared.unwrap(), Cleared::Jobs(3000));
    assert_eq!(server.engine.queue().job(JobId(5)), None);
    settle(&mut server);
    assert_eq!(ids(&server), BTreeSet::new());
    assert!(server.engine.queue().memory() < memory / 10);
}

/// Puts jobs and clears them, as far as the disk goes. Says how many puts were acknowledged, and whether
/// the clear was.
fn cleared(server: &mut Server, count: u64) -> Result<(), (u64, bool)> {
    let client = server.client;
    for put in 0..count {
        let said = server.try_say_as(client, "put 5 0 10 1\r\nx");
        if said.is_none() || server.disk.is_crashed() {
            return Err((put, false));
        }
    }
    let said = server.try_say_as(client, "clear-tube default all");
    if said.is_none() || server.disk.is_crashed() {
        return Err((count, false));
    }
    loop {
        let ticked = server.engine.tick(server.now, &mut Replies::default());
        if ticked.is_err() || server.engine.commit(server.now).is_err() || server.disk.is_crashed()
        {
            return Err((count, true));
        }
        let next = server.engine.next_deadline(server.now);
        if next.is_none_or(|next| next > server.now.mono) {
            return Ok(());
        }
    }
}

#[test]
fn a_crash_at_any_operation_leaves_all_jobs_of_a_clear_or_none() {
    let count = 1200;
    let mut seen = [0; 2];
    // Each put is some operations of its own, and no part of this.
    for at in (2 * count).. {
        let disk = SimFs::new(at);
        disk.crash_at(at);
        let now = Now::new(Time(0), BEGIN_NS);
        let Ok(opened) = try_engine(&disk, now) else {
            continue;
        };
        let mut server = Server::on(disk, opened, now);
        let Err((puts, is_cleared)) = cleared(&mut server, count) else {
            assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
            return;
        };
        if puts < count {
            continue;
        }
        for how in [
            Crash::KeepAll,
            Crash::DropUnsynced,
            Crash::Random { seed: at },
        ] {
            let disk = server.disk.crash_image(how);
            let opened = engine(&disk, now);
            let left = Server::on(disk, opened, now);
            let there = ids(&left).len() as u64;
            assert!(
                there == 0 || there == count && !is_cleared,
                "operation {at}, {how:?}: {there}"
            );
            seen[usize::from(there > 0)] += 1;
        }
    }
}

/// Refused, it has cleared nothing. Formed, it could not be proposed, and each leader would end.
#[test]
fn a_list_that_is_too_long_for_an_entry_of_a_cluster_is_refused() {
    let options = Options {
        segment_size: 32 << 20,
        ..Options::simulated(&SimFs::new(1), "/data")
    };
    let now = Now::new(Time(0), BEGIN_NS);
    let mut engine = Engine::follow(&options, now).unwrap();
    let last = engine.stamp();
    engine.as_follower().unwrap().lead(last, now).unwrap();
    for (size, fits) in [
        (JOINED_SIZE_MAX / 2, true),
        (JOINED_SIZE_MAX + 1, false),
        (JOINED_SIZE_MAX - 1000, true),
    ] {
        let joined = engine.join(size as usize, Purpose::Update, now).unwrap();
        assert_eq!(joined, fits, "{size}");
        engine.store.part().unwrap();
    }
}
