//! A kick of many jobs takes several turns and segments; a crash leaves all of it or nothing.

use std::sync::Arc;

use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::sim::Crash;
use bsd::storage::{SimFs, StoreError, SyncPolicy};
use bsd::types::{ClientId, JobId, Now, Position};

use super::driver::{after_restart, beginning, options};

/// More than are kicked in one turn, and more than fit into one segment.
const JOBS: u64 = 1500;
const TUBE: &str = "mail";

/// The last reply, and what has to be durable before it may leave.
#[derive(Default)]
struct Last(Option<(Position, String)>);

impl ReplySink for Last {
    fn reply(&mut self, _: ClientId, after: Position, reply: Reply<'_>) {
        self.0 = Some((after, format!("{reply:?}")));
    }
}

fn small(fs: &SimFs) -> Options {
    Options {
        segment_size: 64 << 10,
        fs: Arc::new(fs.clone()),
        ..options(fs, SyncPolicy::Always)
    }
}

fn turn(engine: &mut Engine, last: &mut Last) -> Result<(), StoreError> {
    engine.tick(beginning(), last)?;
    engine.commit(beginning())
}

fn run(engine: &mut Engine, client: ClientId, command: Command<'_>, last: &mut Last) {
    engine.run(client, Request::Command(command), beginning(), last);
}

/// A disk with [`JOBS`] delayed jobs.
fn with_delayed_jobs() -> SimFs {
    let fs = SimFs::new(1);
    let mut engine = Engine::open(&small(&fs), beginning()).expect("a sound disk");
    let client = engine.connect();
    let mut last = Last::default();
    run(&mut engine, client, Command::Use(TUBE), &mut last);
    for job in 0..JOBS {
        let put = Command::Put {
            pri: 1,
            delay: 1000,
            ttr: 60,
            body: b"x",
        };
        run(&mut engine, client, put, &mut last);
        if job % 100 == 99 {
            turn(&mut engine, &mut last).expect("a sound disk");
        }
    }
    engine.close(beginning()).expect("a sound disk");
    fs.crash_image(Crash::DropUnsynced)
}

/// Kick all jobs; `true`: that was acknowledged.
fn kick(fs: &SimFs, bound: u32) -> Result<bool, StoreError> {
    let Ok(mut engine) = Engine::open(&small(fs), beginning()) else {
        return Ok(false);
    };
    let client = engine.connect();
    let mut last = Last::default();
    run(&mut engine, client, Command::Use(TUBE), &mut last);
    last.0 = None;
    run(&mut engine, client, Command::Kick { bound }, &mut last);
    for _ in 0..100 {
        turn(&mut engine, &mut last)?;
        if let Some((after, reply)) = &last.0
            && *after <= engine.acknowledged()
        {
            assert_eq!(*reply, format!("KickedCount({bound})"));
            return Ok(true);
        }
    }
    panic!("the kick is never answered");
}

/// How many jobs a start finds ready; the others are delayed.
fn ready(fs: &SimFs) -> u64 {
    let now = after_restart(beginning());
    let engine = Engine::open(&small(fs), now).expect("it starts after a crash");
    let jobs = engine.queue().stats().jobs;
    assert_eq!(jobs.ready + jobs.delayed, JOBS);
    assert_eq!(engine.log().map(|log| log.kicks_under_way().len()), Some(0));
    jobs.ready
}

fn ways(seed: u64) -> [Crash; 4] {
    let random = |nth| Crash::Random {
        seed: seed * 2 + nth,
    };
    [Crash::DropUnsynced, Crash::KeepAll, random(0), random(1)]
}

#[test]
fn a_kick_of_many_jobs_is_whole_after_a_crash_at_any_operation() {
    let disk = with_delayed_jobs();
    // Not all of them: a kick that goes on after a crash must know when to stop.
    let bound = JOBS as u32 - 100;
    let mut outcomes = [0; 2];
    for operation in 1.. {
        let fs = disk.crash_image(Crash::DropUnsynced);
        fs.crash_at(operation);
        let acknowledged = kick(&fs, bound).unwrap_or(false);
        if !fs.is_crashed() {
            break;
        }
        for how in ways(operation) {
            println!("operation {operation}, {how:?}");
            let image = fs.crash_image(how);
            let found = ready(&image);
            assert!(
                found == u64::from(bound) || found == 0 && !acknowledged,
                "{found}"
            );
            outcomes[usize::from(found > 0)] += 1;
            let again = ready(&image.crash_image(Crash::DropUnsynced));
            assert_eq!(again, found, "what was finished is durable");
        }
    }
    assert!(outcomes.iter().all(|count| *count > 20), "{outcomes:?}");
}

#[test]
fn a_crash_while_a_kick_is_finished_changes_nothing() {
    let disk = with_delayed_jobs();
    let bound = JOBS as u32 - 100;
    for operation in (1..).step_by(7) {
        let fs = disk.crash_image(Crash::DropUnsynced);
        fs.crash_at(operation);
        let _ = kick(&fs, bound);
        if !fs.is_crashed() {
            break;
        }
        let first = fs.crash_image(Crash::KeepAll);
        let expected = ready(&first.crash_image(Crash::KeepAll));
        for nested in (1..).step_by(3) {
            let image = first.crash_image(Crash::KeepAll);
            image.crash_at(nested);
            let opened = Engine::open(&small(&image), after_restart(beginning())).is_ok();
            if opened && !image.is_crashed() {
                break;
            }
            for how in ways(nested) {
                println!("operation {operation}, then {nested}, {how:?}");
                let found = ready(&image.crash_image(how));
                // What the first crash left was not synced: the second may take all of it.
                let is_whole = found == 0 || found == u64::from(bound);
                assert!(is_whole && (expected > 0 || found == 0), "{found}");
            }
        }
    }
}

/// Seconds after the beginning, on both clocks.
fn after_seconds(seconds: u32) -> Now {
    let begun = beginning();
    Now {
        mono: begun.mono.plus_seconds(seconds),
        wall_ns: begun.wall_ns + u64::from(seconds) * 1_000_000_000,
    }
}

/// Jobs that fall due after a second, the first half by their put, the others by a release.
const DUE_SOON: u64 = 20;
/// All jobs have ids up to this one.
const LAST_JOB: u64 = 700;
/// More than are kicked in one turn.
const KICKED: u64 = 500;

/// A kick of delayed jobs, when some have become ready by themselves; up to a crash.
fn kick_when_some_were_due(fs: &SimFs) -> Result<(), StoreError> {
    let Ok(mut engine) = Engine::open(&small(fs), beginning()) else {
        return Ok(());
    };
    let client = engine.connect();
    let mut last = Last::default();
    let mut ask = |engine: &mut Engine, command: Command<'_>, now: Now| {
        engine.run(client, Request::Command(command), now, &mut last);
        engine.tick(now, &mut last)?;
        engine.commit(now)
    };
    for job in 1..=LAST_JOB {
        let delay = match job {
            1..=10 => 1,
            11..=20 => 0,
            _ => 1000,
        };
        let put = Command::Put {
            pri: 1,
            delay,
            ttr: 60,
            body: b"x",
        };
        ask(&mut engine, put, beginning())?;
        if delay == 0 {
            let id = JobId(job);
            ask(&mut engine, Command::ReserveJob(id), beginning())?;
            let (pri, delay) = (1, 1);
            ask(
                &mut engine,
                Command::Release { id, pri, delay },
                beginning(),
            )?;
        }
    }
    engine.tick(after_seconds(5), &mut Last::default())?;
    let bound = KICKED as u32;
    ask(&mut engine, Command::Kick { bound }, after_seconds(5))?;
    for _ in 0..3 {
        engine.tick(after_seconds(5), &mut Last::default())?;
        engine.commit(after_seconds(5))?;
    }
    Ok(())
}

#[test]
fn a_kick_that_is_finished_after_a_crash_takes_no_job_that_had_fallen_due_before() {
    let mut whole = 0;
    // Behind all that is put.
    for operation in 2 * LAST_JOB.. {
        let fs = SimFs::new(operation);
        fs.crash_at(operation);
        let _ = kick_when_some_were_due(&fs);
        if !fs.is_crashed() {
            break;
        }
        for how in ways(operation) {
            println!("operation {operation}, {how:?}");
            let now = after_restart(after_seconds(5));
            let engine = Engine::open(&small(&fs.crash_image(how)), now).expect("it starts");
            let kicked: Vec<u64> = (1..=LAST_JOB)
                .filter(|id| {
                    let job = engine.queue().job(JobId(*id));
                    job.is_some_and(|job| job.counters.kicks > 0)
                })
                .collect();
            let expected: Vec<u64> = (DUE_SOON + 1..=DUE_SOON + KICKED).collect();
            assert!(kicked.is_empty() || kicked == expected, "{kicked:?}");
            whole += usize::from(!kicked.is_empty());
        }
    }
    assert!(whole > 3, "{whole}");
}
