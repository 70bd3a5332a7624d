//! A kick of many jobs takes several turns and segments; a crash leaves all of it or nothing.

use std::path::Path;
use std::sync::Arc;

use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;
use bsd::storage::inspect::history::{Fate, history};
use bsd::storage::inspect::{Inspection, repair};
use bsd::storage::{SimFs, StoreError, SyncPolicy};
use bsd::types::{ClientId, JobId, JobState, Now, Ticket, Time};

use super::damage::segments;
use super::driver::{DIR, after_restart, beginning, options, path};

/// More than are kicked in one turn, and more than fit into one segment.
const JOBS: u64 = 1500;
const TUBE: &str = "mail";

/// The last reply, and what has to be durable before it may leave.
#[derive(Default)]
struct Last(Option<(Ticket, String)>);

impl ReplySink for Last {
    fn reply(&mut self, _: ClientId, after: Ticket, reply: Reply<'_>) {
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

fn begin_kick(engine: &mut Engine, client: ClientId, bound: u32, last: &mut Last) {
    run(engine, client, Command::Kick { tube: None, bound }, last);
}

/// A disk with [`JOBS`] delayed jobs.
fn with_delayed_jobs() -> SimFs {
    let fs = SimFs::new(1);
    let mut engine = Engine::open(&small(&fs), beginning()).expect("a sound disk");
    let client = engine.connect();
    let mut last = Last::default();
    run(&mut engine, client, Command::Use(TUBE.into()), &mut last);
    for job in 0..JOBS {
        let put = Command::put(1, 1000, 60, b"x");
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
    run(&mut engine, client, Command::Use(TUBE.into()), &mut last);
    last.0 = None;
    begin_kick(&mut engine, client, bound, &mut last);
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
    // Not all of them: a kick that continues after a crash must know when to stop.
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
                // What the first crash left was not synced: the second may lose all of it.
                let is_whole = found == 0 || found == u64::from(bound);
                assert!(is_whole && (expected > 0 || found == 0), "{found}");
            }
        }
    }
}

/// Seconds after the beginning, on both clocks.
fn after_seconds(seconds: u32) -> Now {
    let begun = beginning();
    Now::new(
        begun.mono.plus_seconds(seconds),
        begun.wall_ns + u64::from(seconds) * 1_000_000_000,
    )
}

/// Jobs that become due after a second, the first half by their put, the others by a release.
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
        let put = Command::put(1, delay, 60, b"x");
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
    ask(
        &mut engine,
        Command::Kick { tube: None, bound },
        after_seconds(5),
    )?;
    for _ in 0..3 {
        engine.tick(after_seconds(5), &mut Last::default())?;
        engine.commit(after_seconds(5))?;
    }
    for _ in 0..2 {
        let put = Command::put(1, 0, 60, b"x");
        ask(&mut engine, put, after_seconds(5))?;
    }
    Ok(())
}

#[test]
fn a_kick_that_is_finished_after_a_crash_takes_no_job_that_had_fallen_due_before() {
    let mut whole = 0;
    // After all puts.
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

/// An engine, and a client that uses a tube into which it put delayed jobs of these bodies; `None`:
/// the disk crashed.
fn opened_with<'a>(
    fs: &SimFs,
    bodies: impl Iterator<Item = &'a [u8]>,
    last: &mut Last,
) -> Option<(Engine, ClientId)> {
    let mut engine = Engine::open(&small(fs), beginning()).ok()?;
    let client = engine.connect();
    run(&mut engine, client, Command::Use(TUBE.into()), last);
    put_delayed(&mut engine, client, bodies, last);
    turn(&mut engine, last).ok()?;
    Some((engine, client))
}

fn put_delayed<'a>(
    engine: &mut Engine,
    client: ClientId,
    bodies: impl Iterator<Item = &'a [u8]>,
    last: &mut Last,
) {
    for body in bodies {
        let put = Command::put(1, 1000, 60, body);
        run(engine, client, put, last);
    }
}

/// The jobs, of those with ids up to `max`, that were ever kicked.
fn kicked(engine: &Engine, max: u64) -> Vec<u64> {
    let was_kicked = |id: &u64| {
        let job = engine.queue().job(JobId(*id));
        job.is_some_and(|job| job.counters.kicks > 0)
    };
    (1..=max).filter(was_kicked).collect()
}

/// Other clients take the remaining jobs of a kick; then jobs come that do not belong to it.
fn kick_that_ends_early(fs: &SimFs) -> Option<()> {
    let mut last = Last::default();
    let bodies = std::iter::repeat_n(&b"x"[..], LAST_JOB as usize);
    let (mut engine, client) = opened_with(fs, bodies, &mut last)?;
    last.0 = None;
    let bound = LAST_JOB as u32;
    begin_kick(&mut engine, client, bound, &mut last);
    assert!(last.0.is_none(), "it takes more than a turn");
    engine.commit(beginning()).ok()?;
    let kicked_so_far = kicked(&engine, LAST_JOB).len() as u64;
    let other = engine.connect();
    for id in kicked_so_far + 1..=LAST_JOB {
        run(
            &mut engine,
            other,
            Command::Delete(JobId(id)),
            &mut Last::default(),
        );
    }
    turn(&mut engine, &mut last).ok()?;
    let reply = last.0.take().map(|(_, reply)| reply);
    assert_eq!(reply, Some(format!("KickedCount({kicked_so_far})")));
    put_delayed(&mut engine, client, [&b"y"[..]; 5].into_iter(), &mut last);
    turn(&mut engine, &mut last).ok()?;
    turn(&mut engine, &mut last).ok()
}

#[test]
fn a_kick_that_found_fewer_jobs_than_it_began_with_is_over_also_after_a_crash() {
    let mut later = 0;
    for operation in 1.. {
        let fs = SimFs::new(operation);
        fs.crash_at(operation);
        let _ = kick_that_ends_early(&fs);
        if !fs.is_crashed() {
            break;
        }
        for how in ways(operation) {
            println!("operation {operation}, {how:?}");
            let now = after_restart(beginning());
            let engine = Engine::open(&small(&fs.crash_image(how)), now).expect("it starts");
            let kicks = engine.log().map(|log| log.kicks_under_way().len());
            assert_eq!(kicks, Some(0), "none goes on");
            let jobs = kicked(&engine, LAST_JOB + 5);
            assert!(
                jobs.iter().all(|id| *id <= LAST_JOB),
                "jobs that came later were kicked: {jobs:?}"
            );
            later += usize::from(engine.queue().job(JobId(LAST_JOB + 1)).is_some());
        }
    }
    assert!(later > 0, "no crash came so late");
}

/// The first jobs of the tube, whose bodies rot before a kick hands them to a waiting worker.
const ROTTEN: u64 = 3;

fn body(job: u64) -> Vec<u8> {
    format!("the body of job {job}.").into_bytes()
}

/// Flip a bit in each of the bodies that rot, or flip it back.
fn flip(fs: &SimFs) {
    let first = segments(fs).remove(0);
    let bytes = fs.read(path(&first)).expect("a segment");
    for job in 1..=ROTTEN {
        // The last byte, which is as it should be or off by that bit.
        let body = body(job);
        let (_, known) = body.split_last().expect("not empty");
        let at = memchr::memmem::find(&bytes, known).expect("its body") + known.len();
        fs.flip_bit(path(&first), at as u64 * 8).expect("a bit");
    }
}

/// A disk with delayed jobs, after which this many bytes fill up the log.
fn with_bodies(filling: usize) -> SimFs {
    let fs = SimFs::new(1);
    let mut bodies: Vec<Vec<u8>> = (1..=LAST_JOB).map(body).collect();
    bodies.push(vec![b'.'; filling]);
    let bodies = bodies.iter().map(Vec::as_slice);
    let (engine, _) = opened_with(&fs, bodies, &mut Last::default()).expect("a sound disk");
    engine.close(beginning()).expect("a sound disk");
    fs.crash_image(Crash::DropUnsynced)
}

/// A worker waits, and the first jobs that a kick makes ready cannot be handed over: they are
/// buried in the midst of its updates.
fn kick_of_rotten_jobs(fs: &SimFs, is_rotten: &mut bool) -> Option<()> {
    let mut last = Last::default();
    let (mut engine, client) = opened_with(fs, std::iter::empty(), &mut last)?;
    flip(fs);
    *is_rotten = true;
    let worker = engine.connect();
    run(&mut engine, worker, Command::Watch(TUBE.into()), &mut last);
    let reserve = Command::reserve(None);
    run(&mut engine, worker, reserve, &mut last);
    last.0 = None;
    let bound = KICKED as u32;
    begin_kick(&mut engine, client, bound, &mut last);
    // A disk that crashed gives no body at all.
    let handed_over = last.0.take().filter(|_| !fs.is_crashed())?.1;
    let expected = format!("Reserved(JobId({})", ROTTEN + 1);
    assert!(handed_over.starts_with(&expected), "{handed_over}");
    for _ in 0..3 {
        engine.commit(beginning()).ok()?;
        engine.tick(beginning(), &mut last).ok()?;
    }
    engine.commit(beginning()).ok()
}

#[test]
fn a_job_that_is_buried_in_the_midst_of_a_kick_is_not_counted_as_kicked_by_the_recovery() {
    let expected: Vec<u64> = (1..=KICKED).collect();
    let mut whole = 0;
    // One of them makes the log continue in another segment before the first slice of the kick is
    // over.
    for filling in (0..60_000).step_by(10_000) {
        let disk = with_bodies(filling);
        for operation in 1.. {
            let fs = disk.crash_image(Crash::DropUnsynced);
            fs.crash_at(operation);
            let mut is_rotten = false;
            let _ = kick_of_rotten_jobs(&fs, &mut is_rotten);
            if !fs.is_crashed() {
                break;
            }
            for how in ways(operation) {
                println!("{filling} bytes, operation {operation}, {how:?}");
                let image = fs.crash_image(how);
                if is_rotten {
                    flip(&image);
                }
                let engine = Engine::open(&small(&image), after_restart(beginning()));
                let jobs = kicked(&engine.expect("it starts"), LAST_JOB);
                assert!(jobs.is_empty() || jobs == expected, "{jobs:?}");
                whole += usize::from(!jobs.is_empty());
            }
        }
    }
    assert!(whole > 3, "{whole}");
}

/// The replies, and to whom.
#[derive(Default)]
struct Told(Vec<ClientId>);

impl ReplySink for Told {
    fn reply(&mut self, client: ClientId, _: Ticket, _: Reply<'_>) {
        self.0.push(client);
    }
}

#[test]
fn t2_a_kick_goes_on_when_its_client_has_left_and_no_one_is_told() {
    let mut engine = Engine::open(&small(&with_delayed_jobs()), beginning()).expect("it starts");
    let client = engine.connect();
    run(
        &mut engine,
        client,
        Command::Use(TUBE.into()),
        &mut Last::default(),
    );
    let (bound, mut told) = (JOBS as u32, Told::default());
    engine.run(
        client,
        Request::Command(Command::Kick { tube: None, bound }),
        beginning(),
        &mut told,
    );
    engine.disconnect(client, beginning());
    for _ in 0..20 {
        engine.tick(beginning(), &mut told).expect("a sound disk");
        engine.commit(beginning()).expect("a sound disk");
    }
    assert_eq!(told.0, [], "whose connection is gone");
    assert_eq!(engine.queue().stats().jobs.ready, JOBS);
}

/// Nanoseconds after ten seconds after the beginning, on both clocks.
fn after_ten_seconds_and(ns: i64) -> Now {
    let begun = beginning();
    Now::new(
        Time(begun.mono.plus_seconds(10).0 + ns),
        (begun.wall_ns as i64 + 10_000_000_000 + ns) as u64,
    )
}

/// The first job becomes due after ten seconds, the others a nanosecond later. Some are kicked at
/// `at`, after a turn of the loop at `ticked`; the crash comes after the first slice of the kick.
fn kicked_to_the_nanosecond(ticked: Now, at: Now) -> Vec<u64> {
    let fs = SimFs::new(1);
    let mut engine = Engine::open(&small(&fs), beginning()).expect("a sound disk");
    let (client, mut last) = (engine.connect(), Last::default());
    for job in 1..=LAST_JOB {
        let mut now = beginning();
        if job > 1 {
            (now.mono.0, now.wall_ns) = (now.mono.0 + 1, now.wall_ns + 1);
        }
        let put = Command::put(1, 10, 60, b"x");
        engine.run(client, Request::Command(put), now, &mut last);
    }
    engine.tick(ticked, &mut last).expect("a sound disk");
    let bound = KICKED as u32;
    let kick = Request::Command(Command::Kick { tube: None, bound });
    last.0 = None;
    engine.run(client, kick, at, &mut last);
    assert!(last.0.is_none(), "it takes more than a turn");
    engine.commit(at).expect("a sound disk");
    let image = fs.crash_image(Crash::DropUnsynced);
    let engine = Engine::open(&small(&image), after_restart(at)).expect("it starts");
    kicked(&engine, LAST_JOB)
}

#[test]
fn t7_a_kick_that_is_finished_after_a_crash_knows_to_the_nanosecond_what_had_fallen_due() {
    let expected: Vec<u64> = (2..=KICKED + 1).collect();
    let due = after_ten_seconds_and(0);
    // The others are not due yet, or are due and no turn of the loop has seen to that.
    for late in 0..3 {
        let found = kicked_to_the_nanosecond(due, after_ten_seconds_and(late));
        assert_eq!(found, expected, "{late} ns later");
    }
}

/// Deletes give room after compaction, which takes turns of the loop: the kick waits.
#[test]
fn f9_on_a_full_disk_a_kick_waits_for_the_room_that_compaction_makes() {
    let fs = SimFs::new(1);
    fs.set_quota(Some(3 << 20));
    let mut last = Last::default();
    let (mut engine, client) =
        opened_with(&fs, std::iter::empty(), &mut last).expect("a sound disk");
    let mut jobs = 0;
    loop {
        put_delayed(
            &mut engine,
            client,
            [&[b'x'; 200][..]].into_iter(),
            &mut last,
        );
        if last
            .0
            .as_ref()
            .is_some_and(|(_, reply)| reply == "OutOfMemory")
        {
            break;
        }
        jobs += 1;
        if jobs % 50 == 0 {
            turn(&mut engine, &mut last).expect("a sound disk");
        }
    }
    let mut left = jobs;
    for id in (1..=jobs).step_by(3) {
        run(&mut engine, client, Command::Delete(JobId(id)), &mut last);
        let is_deleted = last.0.as_ref().is_some_and(|(_, reply)| reply == "Deleted");
        assert!(is_deleted, "{:?}", last.0);
        left -= 1;
    }
    engine.commit(beginning()).expect("a sound disk");
    last.0 = None;
    let bound = jobs as u32;
    begin_kick(&mut engine, client, bound, &mut last);
    for _ in 0..10_000 {
        if last.0.is_some() {
            break;
        }
        turn(&mut engine, &mut last).expect("a sound disk");
    }
    let reply = last.0.take().map(|(_, reply)| reply);
    assert_eq!(
        reply,
        Some(format!("KickedCount({left})")),
        "of {jobs} jobs"
    );
    let under_way = engine.log().map(|log| log.kicks_under_way().len());
    assert_eq!(under_way, Some(0));
}

/// A kick without further records, not even of its end.
#[test]
fn f38_updates_of_others_are_not_counted_for_a_kick_that_was_left_open() {
    let disk = with_delayed_jobs();
    let mut engine = Engine::open(&small(&disk), beginning()).expect("a sound disk");
    let (client, mut last) = (engine.connect(), Last::default());
    run(&mut engine, client, Command::Use(TUBE.into()), &mut last);
    let bound = JOBS as u32;
    begin_kick(&mut engine, client, bound, &mut last);
    let left = |engine: &Engine| engine.log().map(|log| log.kicks_under_way()[0].left);
    let (before, other) = (left(&engine), engine.connect());
    assert!(before > Some(300));
    for id in (JOBS - 300..=JOBS).map(JobId) {
        run(&mut engine, other, Command::KickJob(id), &mut last);
        assert_eq!(
            last.0.take().map(|(_, reply)| reply).as_deref(),
            Some("Kicked")
        );
    }
    assert_eq!(left(&engine), before);
}

/// A job without its body: its state, priority, and how often it was kicked.
type Look = Vec<(u64, JobState, u32, u32)>;

/// The state of all jobs in `dir` according to the tools.
fn told(fs: &SimFs, dir: &str) -> Look {
    let door: Arc<dyn Fs> = Arc::new(fs.clone());
    let log = Inspection::read(door, dir.as_ref(), &mut |_, _| ()).expect("it can be read");
    assert!(log.is_intact());
    let look = |summary: bsd::storage::inspect::JobSummary<'_>| {
        let job = log.read_job(summary.id).expect("a sound disk");
        let job = job.expect("it was there a moment ago");
        assert_eq!(job.state, summary.state);
        let is_delayed = job.state == JobState::Delayed;
        assert_eq!(job.deadline_wall_ns.is_some(), is_delayed);
        (job.id.0, job.state, job.pri, job.counters.kicks)
    };
    log.jobs().map(look).collect()
}

/// The state that a starting server finds.
fn found(fs: &SimFs, last: u64) -> Look {
    let engine = Engine::open(&small(fs), after_restart(beginning())).expect("it starts");
    let job = |id| {
        let job = engine.queue().job(JobId(id))?;
        Some((id, job.state, job.pri, job.counters.kicks))
    };
    (1..=last).filter_map(job).collect()
}

/// A disk whose server was killed during a kick of all but a few of `jobs` jobs, after `turns`
/// turns.
fn killed_inside_a_kick(jobs: u32, is_of_buried: bool, turns: u32) -> SimFs {
    let fs = SimFs::new(1);
    let mut last = Last::default();
    let (mut engine, client) =
        opened_with(&fs, std::iter::empty(), &mut last).expect("a sound disk");
    run(&mut engine, client, Command::Watch(TUBE.into()), &mut last);
    for job in 0..jobs {
        // In an order of their own, and some for a second time.
        let delay = if is_of_buried { 0 } else { 1000 + job % 7 };
        let (pri, is_released) = (job % 3, job % 5 == 0);
        let put = Command::put(pri, if is_released { 0 } else { delay }, 60, b"x");
        run(&mut engine, client, put, &mut last);
        let id = JobId(u64::from(job) + 1);
        if is_released || is_of_buried {
            run(&mut engine, client, Command::ReserveJob(id), &mut last);
            let set_aside = if is_of_buried {
                Command::Bury { id, pri }
            } else {
                Command::Release { id, pri, delay }
            };
            run(&mut engine, client, set_aside, &mut last);
        }
        if job % 500 == 0 {
            turn(&mut engine, &mut last).expect("a sound disk");
        }
    }
    last.0 = None;
    let bound = jobs - jobs / 10;
    begin_kick(&mut engine, client, bound, &mut last);
    for _ in 0..turns {
        turn(&mut engine, &mut last).expect("a sound disk");
    }
    engine.commit(beginning()).expect("a sound disk");
    assert!(last.0.is_none(), "the kick is over");
    fs.crash_image(Crash::DropUnsynced)
}

#[test]
fn f34_what_is_told_of_a_log_with_half_a_kick_is_what_a_start_makes_of_it() {
    for (jobs, is_of_buried, turns) in [(20_000, false, 25), (2_000, true, 3), (2_000, false, 0)] {
        println!("{jobs} jobs, buried: {is_of_buried}, {turns} turns");
        let image = killed_inside_a_kick(jobs, is_of_buried, turns);
        let last = u64::from(jobs);
        let told_so = told(&image, DIR);
        let copy = image.crash_image(Crash::KeepAll);
        let door: Arc<dyn Fs> = Arc::new(copy.clone());
        let fate = |id: u64| {
            let history = history(door.clone(), DIR.as_ref(), JobId(id), &mut |_, _| ());
            history.expect("it can be read").fate
        };
        let of_state = |state, kicks| {
            told_so
                .iter()
                .filter(move |job| (job.1, job.3) == (state, kicks))
        };
        let is_about_to_be = |job: &&(u64, JobState, u32, u32)| fate(job.0) == Fate::Kicked;
        let kicked = of_state(JobState::Ready, 1).count();
        assert_eq!(kicked, (jobs - jobs / 10) as usize);
        let mut ready = of_state(JobState::Ready, 1).rev();
        assert!(ready.any(|job| is_about_to_be(&job)));
        let rest = told_so.iter().find(|job| job.3 == 0).expect("a tenth");
        assert_eq!(fate(rest.0), Fate::There);

        let old = Inspection::read(door.clone(), DIR.as_ref(), &mut |_, _| ()).expect("sound");
        let repaired = Path::new("/repaired");
        repair::write(&old, door.clone(), repaired, beginning(), &mut |_, _| ()).expect("room");
        assert_eq!(told(&copy, "/repaired"), told_so, "repaired");

        assert_eq!(found(&image, last), told_so);
    }
}
