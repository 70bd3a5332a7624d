//! Deletes that can be undone: on virtual time, beside others who change the same jobs, and with an end
//! of the server in between.

use std::sync::Arc;

use super::tests::{NOW, drive, put};
use super::*;
use crate::api::look::failure_text;
use bsd::engine::{Engine, Options};
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::{ClientId, Now};

/// This long after the beginning.
fn at(ns: i64) -> Now {
    Now::new(Time(NOW.mono.0 + ns), NOW.wall_ns + ns as u64)
}

fn undoable(seconds: u64) -> Drive {
    drive(&json!({"action": "delete", "filter": {"tube": "t"}, "undo": seconds}))
}

fn step(engine: &mut Engine, drive: &mut Drive, now: Now) -> Step {
    Slice::alone(engine, now, |slice| drive.step(slice))
}

/// Take steps until it waits for more than the next turn.
fn go(engine: &mut Engine, drive: &mut Drive, now: Now) -> Step {
    loop {
        let step = step(engine, drive, now);
        let waits = matches!(step, Step::NotBefore(until) if until.0 > now.mono.0 + 1);
        if waits || step == Step::Done {
            return step;
        }
    }
}

fn alter(engine: &mut Engine, id: u64, action: &JobAction) {
    let done = Slice::alone(engine, NOW, |slice| slice.alter(JobId(id), action));
    assert_eq!(done.unwrap(), Altered::Done, "{action:?}");
}

/// Each job with its tube, its state, its priority, and what is said of it.
fn jobs(engine: &Engine) -> Vec<(u64, String, &'static str, u32, Option<String>)> {
    let queue = engine.queue();
    let jobs = queue.ids().filter_map(|id| queue.job(id));
    let mut jobs: Vec<_> = jobs
        .map(|job| {
            let said = failure_text(queue, job.id).map(String::from_utf8_lossy);
            let said = said.map(|said| said.into_owned());
            (
                job.id.0,
                job.tube.to_owned(),
                job.state.word(),
                job.pri,
                said,
            )
        })
        .collect();
    jobs.sort();
    jobs
}

/// Two ready jobs, a delayed one and a buried one.
fn filled(options: &Options) -> Engine {
    let mut engine = Engine::open(options, NOW).unwrap();
    put(&mut engine, 4, 1);
    alter(&mut engine, 2, &JobAction::Priority(3));
    alter(&mut engine, 3, &JobAction::Delay(3600));
    alter(&mut engine, 4, &JobAction::Bury);
    engine
}

fn numbers(drive: &Drive) -> (u64, u64, u64, u64) {
    (drive.matched, drive.held(), drive.changed, drive.skipped)
}

#[test]
fn jobs_are_held_back_for_the_time_that_was_asked_for_and_then_deleted() {
    let mut engine = filled(&Options::default());
    let mut drive = undoable(60);
    let step = go(&mut engine, &mut drive, NOW);
    assert!(matches!(step, Step::NotBefore(_)), "{step:?}");
    assert_eq!(numbers(&drive), (4, 4, 0, 0));
    let held = jobs(&engine);
    assert!(held.iter().all(|job| job.2 == "buried"), "{held:?}");
    let says = |said: &Option<String>| said.as_ref().is_some_and(|it| it.contains("by task 0"));
    assert!(held[..3].iter().all(|job| says(&job.4)), "{held:?}");
    assert_eq!(held[3].4, None, "a buried job stays as it is");
    go(&mut engine, &mut drive, at(60 * SECOND_NS - 5));
    assert_eq!(jobs(&engine), held);
    let progress = drive.progress.clone();
    let left = |now| {
        let held = drive.hold.as_ref().unwrap();
        held.tell(&progress, now);
        progress.left_ms.load(Ordering::Relaxed)
    };
    assert_eq!(left(at(20 * SECOND_NS).mono), 40_000);
    let step = go(&mut engine, &mut drive, at(60 * SECOND_NS));
    assert_eq!((step, numbers(&drive)), (Step::Done, (4, 0, 4, 0)));
    assert_eq!(jobs(&engine), []);
    let end = drive.end();
    assert_eq!((end.reason, end.is_undone), (None, false));
}

#[test]
fn undo_brings_each_job_back_to_what_it_was() {
    for seconds in [0, 59] {
        let mut engine = filled(&Options::default());
        let before = jobs(&engine);
        let due = |engine: &Engine| engine.queue().job(JobId(3)).unwrap().deadline;
        let was_due = due(&engine);
        let mut drive = undoable(60);
        go(&mut engine, &mut drive, NOW);
        drive.progress.cancel();
        let step = go(&mut engine, &mut drive, at(seconds * SECOND_NS));
        assert_eq!(step, Step::Done);
        assert_eq!(jobs(&engine), before);
        assert_eq!(due(&engine), was_due);
        assert_eq!(drive.progress.returned.load(Ordering::Relaxed), 4);
        let end = drive.end();
        assert_eq!((end.reason, end.is_undone), (None, true));
    }
}

/// Also in the middle of holding them back.
#[test]
fn a_delete_that_is_cancelled_while_it_holds_jobs_back_is_undone() {
    let mut engine = filled(&Options::default());
    let before = jobs(&engine);
    let filter = json!({"tube": "t"});
    let mut drive = drive(&json!({"action": "delete", "filter": filter, "undo": 60, "rate": 1}));
    step(&mut engine, &mut drive, NOW);
    assert_eq!(drive.held(), 1);
    drive.progress.cancel();
    assert_eq!(go(&mut engine, &mut drive, NOW), Step::Done);
    assert_eq!(jobs(&engine), before);
    assert!(drive.end().is_undone);
}

#[test]
fn a_job_that_someone_has_taken_out_of_the_hold_is_neither_deleted_nor_brought_back() {
    let to = JobAction::move_to("other", false);
    for is_undone in [false, true] {
        let mut engine = filled(&Options::default());
        let mut drive = undoable(60);
        go(&mut engine, &mut drive, NOW);
        alter(&mut engine, 1, &JobAction::Kick);
        alter(&mut engine, 2, &to);
        alter(&mut engine, 3, &JobAction::Delete);
        if is_undone {
            drive.progress.cancel();
        }
        let step = go(&mut engine, &mut drive, at(60 * SECOND_NS));
        assert_eq!(step, Step::Done);
        let left = jobs(&engine);
        let left: Vec<_> = left.iter().map(|it| (it.0, &*it.1, it.2)).collect();
        let others = [(1, "t", "ready"), (2, "other", "buried")];
        let of = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
        let progress = &drive.progress;
        let told = [&progress.returned, &progress.altered, &progress.gone].map(of);
        if is_undone {
            assert_eq!(left, [&others[..], &[(4, "t", "buried")]].concat());
            assert_eq!(told, [1, 2, 1]);
        } else {
            assert_eq!(left, others);
            assert_eq!((numbers(&drive), told), ((4, 0, 1, 3), [0, 0, 0]));
        }
    }
}

/// A job that was reserved, and one that comes later, are not of the delete.
#[test]
fn a_job_that_comes_while_others_are_held_back_is_not_deleted() {
    let mut engine = filled(&Options::default());
    let mut drive = undoable(60);
    go(&mut engine, &mut drive, NOW);
    put(&mut engine, 1, 1);
    alter(&mut engine, 5, &JobAction::Bury);
    assert_eq!(go(&mut engine, &mut drive, at(60 * SECOND_NS)), Step::Done);
    let left = jobs(&engine);
    assert_eq!((left.len(), left[0].0), (1, 5), "{left:?}");
}

fn on(fs: &SimFs) -> Options {
    Options {
        fs: Arc::new(fs.clone()),
        dir: Some("/log".into()),
        sync: SyncPolicy::Always,
        ..Options::default()
    }
}

fn sync(engine: &mut Engine, now: Now) {
    while engine.acknowledged() < engine.after() {
        engine.commit(now).unwrap();
        std::thread::yield_now();
    }
}

#[test]
fn a_crash_in_the_minute_leaves_the_jobs_buried_with_the_reason_and_deletes_none() {
    use bsd::storage::disk::sim::Crash;
    let fs = SimFs::new(1);
    let mut engine = filled(&on(&fs));
    let mut drive = undoable(60);
    go(&mut engine, &mut drive, NOW);
    sync(&mut engine, NOW);
    let held = jobs(&engine);
    let later = at(3600 * SECOND_NS);
    let again = fs.crash_image(Crash::DropUnsynced);
    let mut engine = Engine::open(&on(&again), later).unwrap();
    assert_eq!(jobs(&engine), held);
    for id in [1, 2, 3] {
        alter(&mut engine, id, &JobAction::Kick);
    }
    let states: Vec<_> = jobs(&engine).iter().map(|job| job.2).collect();
    assert_eq!(states, ["ready", "ready", "ready", "buried"]);
}

#[test]
fn a_member_that_does_not_lead_any_more_deletes_nothing_and_says_what_is_left() {
    for is_undone in [false, true] {
        let mut engine = filled(&Options::default());
        let mut drive = undoable(60);
        go(&mut engine, &mut drive, NOW);
        if is_undone {
            drive.progress.cancel();
        }
        let mut follower = Engine::follow(&on(&SimFs::new(1)), NOW).unwrap();
        let step = go(&mut follower, &mut drive, at(SECOND_NS));
        assert_eq!(step, Step::Done);
        let reason = drive.end().reason.unwrap();
        assert!(
            reason.contains("4 jobs were held back, and are left buried"),
            "{reason}"
        );
    }
}

struct Nowhere;

impl bsd::engine::ReplySink for Nowhere {
    fn reply(&mut self, _: ClientId, _: Ticket, _: bsd::protocol::Reply<'_>) {}
}

#[test]
fn a_disk_without_room_for_all_of_them_leaves_all_as_they_were() {
    let fs = SimFs::new(1);
    fs.set_quota(Some(600 << 10));
    let options = Options {
        segment_size: 64 << 10,
        ..on(&fs)
    };
    let mut engine = Engine::open(&options, NOW).unwrap();
    loop {
        let order = bsd::door::put("t", vec![b'x'; 50], bsd::door::PutOptions::default()).unwrap();
        let done = Slice::alone(&mut engine, NOW, |slice| slice.run(order));
        sync(&mut engine, NOW);
        if done.is_err() {
            break;
        }
    }
    let before = jobs(&engine);
    let mut drive = undoable(60);
    loop {
        let done = step(&mut engine, &mut drive, NOW);
        sync(&mut engine, NOW);
        engine.tick(NOW, &mut Nowhere).unwrap();
        if done == Step::Done {
            break;
        }
    }
    assert_eq!(drive.matched, before.len() as u64);
    let reason = drive.reason.clone().unwrap();
    assert!(reason.contains("without `undo`"), "{reason}");
    let ready = |jobs: &[(u64, String, &'static str, u32, Option<String>)]| {
        jobs.iter().filter(|job| job.2 == "ready").count()
    };
    let told = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let progress = &drive.progress;
    let others = [&progress.no_room, &progress.altered, &progress.gone].map(told);
    assert_eq!(others, [0, 0, 0]);
    assert_eq!(ready(&jobs(&engine)), ready(&before));
    assert!(drive.progress.returned.load(Ordering::Relaxed) > 0);
}

#[test]
fn more_than_100_000_jobs_are_not_held_back_and_none_is_deleted() {
    assert_eq!(HELD_MAX, 100_000);
    let mut engine = Engine::open(&Options::default(), NOW).unwrap();
    put(&mut engine, HELD_MAX as usize + 1, 1);
    let mut drive = undoable(60);
    assert_eq!(go(&mut engine, &mut drive, NOW), Step::Done);
    assert_eq!(drive.held(), 0);
    let reason = drive.reason.unwrap();
    assert!(reason.contains("nothing was changed"), "{reason}");
    let ready = engine.queue().stats().jobs.ready;
    assert_eq!(ready, HELD_MAX + 1);
}

#[test]
fn only_deletes_can_be_undone_and_for_ten_minutes_at_most() {
    for (action, undo, is_right) in [
        ("delete", 1, true),
        ("delete", 600, true),
        ("delete", 0, false),
        ("delete", 601, false),
        ("kick", 60, false),
    ] {
        let asked = json!({"action": action, "filter": {"tube": "t"}, "undo": undo});
        let plan = Fields::parse(asked.to_string().as_bytes()).and_then(|it| Plan::parse(&it));
        assert_eq!(plan.is_ok(), is_right, "{action} {undo}");
    }
}

#[test]
fn a_count_has_the_first_ten_jobs_as_a_sample() {
    let mut engine = filled(&Options::default());
    put(&mut engine, 20, 1);
    for filter in [json!({"tube": "t"}), json!({"tube": "t*"})] {
        let asked = json!({"action": "delete", "filter": filter, "dry_run": true, "undo": 60});
        let mut drive = drive(&asked);
        assert_eq!(go(&mut engine, &mut drive, NOW), Step::Done);
        assert_eq!(drive.matched, 24);
        let found = drive.end().found.unwrap();
        let ids: Vec<_> = found["sample"].as_array().unwrap().iter().collect();
        assert_eq!(ids.len(), SAMPLE_MAX);
        assert_eq!(ids[0]["id"], 2, "the most urgent");
    }
}
