//! A job that fails each time, and a crash at each operation of the disk on its way.

use crate::engine::spoken::{BEGIN_NS, Replies, Server, engine, try_engine};
use crate::storage::SimFs;
use crate::storage::disk::sim::Crash;
use crate::types::{JobState, Now, SECOND_NS, Time};

/// What was acknowledged before the disk crashed.
#[derive(Debug, Default)]
struct Acked {
    policy: bool,
    put: bool,
    deliveries: u32,
    text: bool,
}

/// A poison job from its put to the dead-letter tube, as far as the disk goes.
fn poison(server: &mut Server) -> Option<Acked> {
    let mut acked = Acked::default();
    let client = server.client;
    let lines = [
        "set-policy default delivery-limit=3 dead-letter=dead retry-min=1 retry-multiplier=1",
        "put 0 0 10 1\r\nx",
        "reserve-with-timeout 0",
        "fail 1 3\r\nwhy",
        "wait",
        "reserve-with-timeout 0",
        "release 1 0 0",
        "wait",
        "reserve-with-timeout 0",
        "fail 1 4\r\nlast",
    ];
    for line in lines {
        if line == "wait" {
            server.now.mono = server.now.mono.plus_seconds(1);
            server.now.wall_ns += SECOND_NS as u64;
            let ticked = server.engine.tick(server.now, &mut Replies::default());
            if ticked.is_err() || server.engine.commit(server.now).is_err() {
                return Some(acked);
            }
            continue;
        }
        let Some(reply) = server.try_say_as(client, line) else {
            return Some(acked);
        };
        if server.disk.is_crashed() {
            return Some(acked);
        }
        match reply.split([' ', '\r']).next() {
            Some("POLICY_SET") => acked.policy = true,
            Some("INSERTED") => acked.put = true,
            Some("RESERVED") => acked.deliveries += 1,
            Some("RELEASED" | "DEAD_LETTERED") => acked.text = true,
            _ => panic!("{line}: {reply}"),
        }
    }
    None
}

/// Whatever is left of it comes to the same end, and is delivered no more often.
fn goes_on(mut server: Server, acked: &Acked) {
    let has_policy = server.say("stats-policy default") != "NOT_FOUND\r\n";
    assert!(has_policy || !acked.policy);
    let Some((tube, _)) = server.state(1) else {
        assert!(!acked.put);
        return;
    };
    if acked.text {
        assert!(server.says_of(1, "text").is_some());
    }
    if !has_policy {
        return;
    }
    let mut deliveries = acked.deliveries;
    for _ in 0..20 {
        if server.say("reserve-with-timeout 0").starts_with("RESERVED") {
            deliveries += 1;
            server.say("release 1 0 0");
        }
        server.wait(1);
    }
    assert!(deliveries <= 3, "{deliveries} deliveries, {tube}");
    server.is_at(1, "dead", JobState::Ready);
    assert_eq!(server.says_of(1, "failures").as_deref(), Some("3"));
}

#[test]
fn a_crash_at_any_operation_loses_no_job_and_no_delivery() {
    let mut count = 0;
    for at in 0.. {
        let disk = SimFs::new(at);
        disk.crash_at(at);
        let now = Now::new(Time(0), BEGIN_NS);
        let Ok(opened) = try_engine(&disk, now) else {
            continue;
        };
        let mut server = Server::on(disk, opened, now);
        let Some(acked) = poison(&mut server) else {
            assert!(count > 10, "{count} operations");
            return;
        };
        count += 1;
        for how in [
            Crash::KeepAll,
            Crash::DropUnsynced,
            Crash::Random { seed: at },
        ] {
            println!("operation {at}, {how:?}, {acked:?}");
            let disk = server.disk.crash_image(how);
            let opened = engine(&disk, server.now);
            let left = Server::on(disk, opened, server.now);
            goes_on(left, &acked);
        }
    }
}
