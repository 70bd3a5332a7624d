//! The system calls of the server, and their order.
//!
//! A client cannot see the promises about time: that a reply was sent *after* the sync that it
//! depends on, that a sync comes without another request, that many commands share one. Here the
//! server runs under strace, and the trace is checked against the rules. No test measures time:
//! strace makes calls slow.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;

use crate::auth::{new_token, write_private};
use crate::harness::{Launch, Server, wait_until};
use crate::ledger::{
    CALLS, assert_synced_before_acknowledged, is_acknowledgement, is_of_segment, is_rename,
    marked_body,
};
use crate::strace::{Call, Trace, Tracer, is_permitted};
use crate::wire::{Wire, put_command};
use bsd::random::Random;

/// The smallest there is, so that a short run begins several.
const SEGMENT_SIZE: &str = "65536";

/// The server under test with a log in `dir`, where there is strace and it is bsd.
fn traceable(dir: &Path, segment_size: &str) -> Option<Launch> {
    let launch = Launch::bsd_alone().filter(|_| is_permitted())?;
    Some(launch.dir(dir).arg("-s").arg(segment_size))
}

/// Clients that do all that is acknowledged, each with one packet on its way at a time.
fn mixed_load(server: &Server, clients: usize, rounds: usize) {
    thread::scope(|scope| {
        for number in 0..clients {
            let mut wire = server.connect();
            scope.spawn(move || {
                let tube = format!("tube-{number}");
                wire.ask(&format!("use {tube}"));
                wire.ask(&format!("watch {tube}"));
                let mut random = Random::new(number as u64);
                (0..rounds).for_each(|round| mixed_round(&mut wire, &mut random, number, round));
            });
        }
    });
}

fn mixed_round(wire: &mut Wire, random: &mut Random, client: usize, round: usize) {
    let count = 1 + random.below(3) as usize;
    let put = |nth| put_command(0, 0, &marked_body(client, 10 * round + nth, 1500));
    wire.send((0..count).flat_map(put).collect::<Vec<u8>>());
    (0..count).for_each(|_| assert!(wire.text().starts_with("INSERTED ")));
    let id = wire.reserve();
    match random.below(4) {
        0 => assert_eq!(wire.ask(&format!("delete {id}")), "DELETED"),
        1 => assert_eq!(wire.ask(&format!("release {id} 5 100000")), "RELEASED"),
        2 => assert_eq!(wire.ask(&format!("release {id} 5 0")), "RELEASED"),
        _ => {
            assert_eq!(wire.ask(&format!("bury {id} 3")), "BURIED");
            assert_eq!(wire.ask("kick 1"), "KICKED 1");
        }
    }
}

fn run_mixed_load(tracer: &Tracer) -> Option<Trace> {
    let dir = TempDir::new().unwrap();
    let server = tracer
        .wrap(traceable(dir.path(), SEGMENT_SIZE)?.arg("-f").arg("0"))
        .start();
    mixed_load(&server, 6, 15);
    assert_eq!(server.stop().code, Some(0));
    let trace = tracer.all();
    let acknowledged = assert_synced_before_acknowledged(&trace, dir.path());
    assert!(
        acknowledged > 6 * 15,
        "{acknowledged} acknowledgements are in the trace"
    );
    let begun = trace
        .calls
        .iter()
        .filter(|call| is_rename(call) && call.args.contains("/segment-"));
    assert!(begun.count() > 3, "segments were begun under the load");
    Some(trace)
}

/// P1, D5, D8, D28.
#[test]
fn no_acknowledgement_leaves_before_the_sync_that_covers_it() {
    run_mixed_load(&Tracer::of(CALLS));
}

/// P1 if syncs are left to a thread, while the loop continues.
#[test]
fn on_a_slow_disk_too_no_acknowledgement_leaves_before_the_sync_that_covers_it() {
    let tracer = Tracer::of(CALLS).inject("fdatasync:delay_enter=5000");
    let Some(trace) = run_mixed_load(&tracer) else {
        return;
    };
    let beside = |call: &&Call| call.thread != trace.main && is_of_segment(call);
    assert!(
        trace.named("fdatasync").filter(beside).count() > 3,
        "the loop did not wait itself"
    );
}

/// P1: who may not have a job is told that it is there, so not before it is durable.
#[test]
fn a_refusal_that_tells_of_a_job_leaves_after_the_sync_of_the_job() {
    const COUNT: usize = 60;
    let dir = TempDir::new().unwrap();
    let tracer = Tracer::of(CALLS).inject("fdatasync:delay_enter=20000");
    let Some(launch) = traceable(&dir.path().join("log"), SEGMENT_SIZE) else {
        return;
    };
    let (all, all_line) = new_token("all");
    let (narrow, narrow_line) = new_token("work:other");
    let file = dir.path().join("tokens");
    write_private(&file, &[all_line, narrow_line].join("\n"));
    let launch = launch.arg("-f").arg("0").arg("--auth-file").arg(&file);
    let server = tracer.wrap(launch).spawn();
    wait_until("it listens", || Wire::connect(server.address()).is_ok());
    let [mut one, mut other] = [all, narrow].map(|token| {
        let mut wire = server.connect();
        assert_eq!(wire.ask(&format!("auth {token}")), "AUTHENTICATED");
        wire
    });
    // The first few are synced by the loop: it has to learn that the disk is slow.
    for id in 1..=COUNT {
        one.send(put_command(0, 0, b"x"));
        wait_until("the job is seen", || {
            let said = other.ask(&format!("delete {id}"));
            assert!(["NOT_FOUND", "NOT_AUTHORIZED"].contains(&&*said), "{said}");
            said == "NOT_AUTHORIZED"
        });
        assert_eq!(one.text(), format!("INSERTED {id}"));
    }
    server.kill();

    let trace = tracer.all();
    let is_put = |call: &&Call| call.is_request() && call.args.contains("put 0");
    let is_refusal = |call: &&Call| call.is_reply() && call.args.contains("NOT_AUTHORIZED");
    let puts: Vec<&Call> = trace.calls.iter().filter(is_put).collect();
    let refusals: Vec<&Call> = trace.calls.iter().filter(is_refusal).collect();
    assert_eq!((puts.len(), refusals.len()), (COUNT, COUNT));
    for (put, refusal) in puts.into_iter().zip(refusals) {
        let mut syncs = trace.named("fdatasync").filter(|call| is_of_segment(call));
        let is_synced = syncs.any(|sync| sync.begin > put.end && sync.end < refusal.begin);
        assert!(is_synced, "{put:?}, {refusal:?}");
    }
}

/// D26.
#[test]
fn d26_commands_that_arrive_together_share_one_write_and_one_sync() {
    const COUNT: usize = 100;
    let dir = TempDir::new().unwrap();
    let tracer = Tracer::of(CALLS);
    let Some(launch) = traceable(dir.path(), SEGMENT_SIZE) else {
        return;
    };
    let server = tracer.wrap(launch).start();
    let mut wire = server.connect();
    wire.send(put_command(0, 0, &[b't'; 20]).repeat(COUNT));
    (0..COUNT).for_each(|_| assert!(wire.text().starts_with("INSERTED ")));
    server.kill();

    let trace = tracer.all();
    let begin = trace
        .first("the puts", |call| {
            call.is_request() && call.args.contains("put 0")
        })
        .begin;
    let end = trace
        .calls
        .iter()
        .rfind(|call| is_acknowledgement(call))
        .unwrap()
        .begin;
    let between = |is: &dyn Fn(&Call) -> bool| {
        let inside = |call: &&Call| (begin..end).contains(&call.begin) && is(call);
        trace.calls.iter().filter(inside).count()
    };
    // The packet is read in one piece, but the system may hand it over in several.
    let reads = between(&Call::is_request);
    assert!(reads < COUNT / 10, "{reads} reads");
    assert_eq!(between(&|call| call.is("pwrite64")), reads);
    assert_eq!(between(&|call| call.is("fdatasync")), reads);
    assert_eq!(between(&is_acknowledgement) + 1, reads);
}

/// D10. No command follows the put, so only a timer can be what syncs.
#[test]
fn with_an_interval_the_last_put_before_an_idle_spell_is_synced() {
    let dir = TempDir::new().unwrap();
    let tracer = Tracer::of(CALLS);
    let Some(launch) = traceable(dir.path(), SEGMENT_SIZE) else {
        return;
    };
    let server = tracer.wrap(launch.arg("-f").arg("50")).start();
    let mut wire = server.connect();
    wire.put(b"the last for now");
    let sync = |trace: &Trace| {
        let put = |call: &Call| call.is_request() && call.args.contains("the last for now");
        let put = trace.first("the put", put).begin;
        let after = |call: &&Call| call.begin > put && call.succeeded() && is_of_segment(call);
        trace.named("fdatasync").find(after).cloned()
    };
    wait_until("the put is synced", || sync(&tracer.so_far()).is_some());

    let trace = tracer.so_far();
    let sync = sync(&trace).unwrap();
    let reply = trace.first("the reply", |call| {
        call.is_reply() && call.args.contains("INSERTED")
    });
    assert!(
        reply.end < sync.begin,
        "the reply did not wait for the sync"
    );
    let write = trace.calls[..]
        .iter()
        .rfind(|call| call.is("pwrite64") && call.begin < reply.begin);
    assert!(write.unwrap().end < sync.begin, "the sync covers the put");
}

#[test]
fn without_syncing_no_sync_is_made_on_the_way_of_a_command() {
    let dir = TempDir::new().unwrap();
    let tracer = Tracer::of(CALLS);
    let Some(launch) = traceable(dir.path(), "16m") else {
        return;
    };
    // No segment fills up: at its end one would be synced.
    let server = tracer.wrap(launch.arg("-F")).start();
    let mut wire = server.connect();
    for _ in 0..50 {
        let id = wire.put(&[b'x'; 100]);
        assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    }
    server.kill();
    let trace = tracer.all();
    let put = trace.first("a put", |call| {
        call.is_request() && call.args.contains("put 0")
    });
    let syncs = trace.named("fdatasync").filter(|it| it.begin > put.begin);
    let (waited_for, others): (Vec<&Call>, Vec<&Call>) =
        syncs.partition(|call| call.thread == put.thread);
    assert!(waited_for.is_empty(), "{waited_for:#?}");
    // When the client sends nothing for a tenth of a second, another thread syncs the marker of the end.
    assert!(others.len() < 50, "of 100 commands: {others:#?}");
}

/// If the loop never waits for the disk, each segment that it leaves is still synced.
#[test]
fn under_the_weaker_policies_a_thread_syncs_each_segment_that_is_full() {
    for policy in [&["-F"][..], &["-f", "600000"]] {
        let dir = TempDir::new().unwrap();
        let tracer = Tracer::of(CALLS);
        let Some(launch) = traceable(dir.path(), SEGMENT_SIZE) else {
            return;
        };
        let launch = policy.iter().fold(launch, Launch::arg);
        let server = tracer.wrap(launch).start();
        let mut wire = server.connect();
        for _ in 0..50 {
            wire.put(&[b'x'; 5000]);
        }
        let full = segments_that_were_cut(&tracer.so_far());
        assert!(full.len() >= 3, "{full:?}");
        wait_until("all that are full are synced", || {
            let trace = tracer.so_far();
            full.iter().all(|cut| {
                let is_sync = |call: &Call| {
                    call.begin > cut.end && call.succeeded() && call.path() == cut.path()
                };
                let mut syncs = trace.named("fdatasync").filter(|call| is_sync(call));
                syncs.any(|sync| sync.thread != trace.main)
            })
        });
        server.kill();
    }
}

/// The calls that cut a segment to what it holds, when nothing more is to come.
fn segments_that_were_cut(trace: &Trace) -> Vec<Call> {
    let cuts = trace.named("ftruncate").filter(|call| is_of_segment(call));
    cuts.cloned().collect()
}

#[test]
fn on_a_slow_disk_many_share_a_sync_and_no_one_starves() {
    const CLIENTS: usize = 20;
    const PUTS: usize = 10;
    let dir = TempDir::new().unwrap();
    let tracer = Tracer::of(CALLS).inject("fdatasync:delay_enter=20000");
    let Some(launch) = traceable(dir.path(), "16m") else {
        return;
    };
    let server = tracer.wrap(launch.clone()).start();
    load_beside_an_idler(&server, CLIENTS, PUTS);
    assert_eq!(server.stop().code, Some(0));

    let trace = tracer.all();
    let syncs = trace
        .named("fdatasync")
        .filter(|call| is_of_segment(call))
        .count();
    println!("{syncs} syncs for {} puts", CLIENTS * PUTS);
    assert!(syncs <= CLIENTS * PUTS / 2, "{syncs} syncs");
    assert_no_one_waits_for_more_than_three_syncs(&trace);
    let again = launch.wrapped(&[]).start();
    let ready = again.connect().stat("stats", "current-jobs-ready");
    assert_eq!(ready, (CLIENTS * PUTS).to_string());
}

/// Clients that put, and another that writes nothing for as long as they do.
fn load_beside_an_idler(server: &Server, clients: usize, puts: usize) {
    let is_over = &AtomicBool::new(false);
    let mut wires: Vec<Wire> = (0..=clients).map(|_| server.connect()).collect();
    thread::scope(|scope| {
        let mut idler = wires.pop().unwrap();
        scope.spawn(move || ask_for_nothing(&mut idler, is_over));
        let put = |mut wire: Wire| (0..puts).for_each(|_| assert!(wire.put(b"slow") > 0));
        let load = wires.drain(..).map(|wire| scope.spawn(move || put(wire)));
        let load: Vec<_> = load.collect();
        let ended: Vec<_> = load.into_iter().map(|client| client.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "each client was answered");
    });
}

/// A client whose commands write nothing.
fn ask_for_nothing(wire: &mut Wire, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        assert_eq!(wire.ask("nonsense"), "UNKNOWN_COMMAND");
        assert_eq!(wire.ask("list-tube-used"), "USING default");
    }
}

/// One that was asked for before the request was read and begins after that, one that covers it,
/// and one more that is asked for in the turn that sends the reply.
fn assert_no_one_waits_for_more_than_three_syncs(trace: &Trace) {
    let syncs: Vec<usize> = trace.named("fdatasync").map(|call| call.begin).collect();
    let mut read: HashMap<u32, usize> = HashMap::new();
    let mut answered = 0;
    for call in &trace.calls {
        let Some(descriptor) = call.descriptor() else {
            continue;
        };
        if call.is_request() {
            read.insert(descriptor, call.begin);
        } else if let Some(read) = read.remove(&descriptor).filter(|_| call.is_reply()) {
            let begun = syncs
                .iter()
                .filter(|sync| (read..call.begin).contains(sync))
                .count();
            assert!(begun <= 3, "{begun} syncs begun before {call:?}");
            answered += usize::from(call.args.contains("UNKNOWN_COMMAND"));
        }
    }
    assert!(answered > 0, "the idle client was answered under the load");
}

/// D25.
#[test]
fn d25_it_listens_when_the_log_has_been_replayed_and_says_ready_after_that() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = traceable(dir.path(), SEGMENT_SIZE) else {
        return;
    };
    let server = launch.start();
    let mut wire = server.connect();
    (0..50).for_each(|_| assert!(wire.put(&[b'r'; 3000]) > 0));
    server.kill();

    let notify = dir.path().join("notify");
    let _manager = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    let variable = format!("NOTIFY_SOCKET={}", notify.display());
    let tracer = Tracer::of("pread64,listen,sendto,sendmsg,write").env(&variable);
    tracer.wrap(launch).start().kill();
    let trace = tracer.all();
    let is_replay = |call: &Call| call.is("pread64") && is_of_segment(call);
    let listen = trace.first("listen", |call| call.is("listen")).begin;
    let ready = trace
        .first("READY=1", |call| call.args.contains("READY=1"))
        .begin;
    let replayed = trace
        .calls
        .iter()
        .rfind(|call| is_replay(call))
        .unwrap()
        .end;
    assert!(
        trace.calls.iter().filter(|call| is_replay(call)).count() >= 3,
        "several segments"
    );
    assert!(
        replayed < listen && listen < ready,
        "{replayed} {listen} {ready}"
    );
}

/// D28. A name is durable when the directory that it is in has been synced; of directories that are
/// made on the way to the log that is so for each.
#[test]
fn every_directory_that_is_made_is_durable_before_anything_is_acknowledged() {
    let dir = TempDir::new().unwrap();
    // Another program may have just created those above it, without a sync.
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let Some(launch) = traceable(&dir.path().join("a/b/c"), SEGMENT_SIZE) else {
        return;
    };
    let tracer = Tracer::of("/^mkdir,fsync,sendto");
    let server = tracer.wrap(launch).start();
    server.connect().put(b"deep");
    server.kill();
    let trace = tracer.all();
    let put = trace.first("the put", is_acknowledgement).begin;
    for name in ["a", "a/b", "a/b/c"] {
        let path = dir.path().join(name);
        let mut syncs = trace.named("fsync").filter(|call| call.succeeded());
        let is_synced = syncs.any(|call| Some(call.path()) == path.parent() && call.begin < put);
        assert!(
            is_synced,
            "the parent of {name} was synced: {:#?}",
            trace.calls
        );
    }
}
