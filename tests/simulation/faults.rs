//! The n-th file operation of every kind fails, once and from then on.
//!
//! The engine may report that the log has failed: then nothing is acknowledged after that, and a
//! start on a repaired disk has everything acknowledged before. Or it replies `OUT_OF_MEMORY`, or
//! does without the failed call, and continues. A job is never lost or invented.

use bsd::storage::disk::sim::{Crash, Effect, Errno, Fault, OpKind};
use bsd::storage::{SimFs, SyncPolicy};

use super::driver::{Answer, Driver, MS_NS, Step, Stop, after_restart, beginning};
use super::oracle::{History, State};
use super::workload::tour;

const PUT: Step = Step::put(0, [1, 0, 5], 60);

/// Run the tour on a disk with this fault, check that the failure is handled, repair the disk, and
/// recover. `false`: the fault did not strike.
fn survive(fault: Fault) -> bool {
    let fs = SimFs::new(1);
    fs.inject(fault);
    let mut driver = match Driver::begin(&fs, SyncPolicy::Always) {
        Ok(driver) => driver,
        Err(Stop::Open(_)) => {
            fs.clear_faults();
            let history = History::new(State::default());
            let image = fs.crash_image(Crash::DropUnsynced);
            recover(&image, &history, 0);
            recover(&fs, &history, 0);
            return true;
        }
        Err(stop) => panic!("{stop}"),
    };
    driver.is_faulty = true;
    let stopped = driver.run(&tour()).is_err();
    if stopped {
        assert_stays_failed(&mut driver);
    }
    let struck = fs.trace().iter().any(|operation| operation.failed);
    fs.clear_faults();
    let (least, least_durable) = (driver.least_acknowledged(), driver.least_durable());
    driver.now = after_restart(driver.now);
    for how in [
        Crash::DropUnsynced,
        Crash::Random { seed: 1 },
        Crash::Random { seed: 2 },
    ] {
        recover_at(&driver, &fs.crash_image(how), least_durable);
    }
    recover_at(&driver, &fs.crash_image(Crash::KeepAll), least);
    struck
}

fn recover_at(driver: &Driver, fs: &SimFs, least: usize) {
    let opened = Driver::open(fs, SyncPolicy::Always, driver.now, &driver.history, least);
    let opened = opened.unwrap_or_else(|stop| panic!("on a repaired disk: {stop}"));
    let cut = fs.crash_image(Crash::DropUnsynced);
    recover_from(&opened, &cut);
}

fn recover_from(driver: &Driver, fs: &SimFs) {
    let opened = Driver::open(fs, SyncPolicy::Always, driver.now, &driver.history, 0);
    opened.unwrap_or_else(|stop| panic!("after a power cut: {stop}"));
}

fn recover(fs: &SimFs, history: &History, least: usize) {
    let opened = Driver::open(
        fs,
        SyncPolicy::Always,
        after_restart(beginning()),
        history,
        least,
    );
    opened
        .unwrap_or_else(|stop| panic!("on a repaired disk: {stop}"))
        .assert_goes_on_working();
}

/// P5: nothing is acknowledged after a failure, whatever is tried.
fn assert_stays_failed(driver: &mut Driver) {
    if !driver.is_open() {
        return;
    }
    let acknowledged = driver.engine().acknowledged();
    for _ in 0..3 {
        assert!(
            driver.step(PUT).is_err(),
            "a put is answered after the log has failed"
        );
        driver.pass(200 * MS_NS);
        assert!(driver.settle().is_err(), "a failed log works again");
    }
    assert_eq!(driver.engine().acknowledged(), acknowledged);
}

fn try_every_operation(kind: OpKind, error: Errno) {
    for n in 1.. {
        println!("operation {n} of kind {kind:?}: {error}");
        if !survive(Fault::fail(kind, error).nth(n)) {
            assert!(n > 1, "the tour has no {kind:?}");
            return;
        }
        survive(Fault::fail(kind, error).nth(n).for_ever());
    }
}

/// D3, D4, D5: a failed write or sync is never taken for a success.
#[test]
fn d3_d4_d5_any_operation_that_fails_with_eio_costs_nothing_acknowledged() {
    OpKind::ALL
        .into_iter()
        .for_each(|kind| try_every_operation(kind, Errno::IO));
}

/// D6, D31: no space, wherever it may turn up.
#[test]
fn d6_d31_any_operation_that_fails_with_enospc_costs_nothing_acknowledged() {
    let kinds = OpKind::ALL.into_iter().filter(|kind| *kind != OpKind::Read);
    kinds.for_each(|kind| try_every_operation(kind, Errno::NOSPC));
}

#[test]
fn short_and_interrupted_reads_and_writes_change_nothing() {
    let effects = [
        Effect::Short(1),
        Effect::Short(5),
        Effect::Fail(Errno::INTR),
    ];
    for (kind, effect) in [OpKind::Read, OpKind::Write].into_iter().zip([&effects; 2]) {
        for effect in effect {
            for n in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
                let fs = SimFs::new(1);
                fs.inject(Fault::new(kind, effect.clone()).nth(n));
                let driver = Driver::begin(&fs, SyncPolicy::Always);
                let mut driver = driver.unwrap_or_else(|stop| panic!("{stop}"));
                driver
                    .run(&tour())
                    .unwrap_or_else(|stop| panic!("{kind:?} {n}: {stop}"));
                assert_eq!(driver.refused, 0);
            }
        }
    }
}

/// An unreadable body removes its own job, not the server, and no client gets other bytes.
#[test]
fn a_body_that_cannot_be_read_takes_only_its_own_job_out() {
    let fs = SimFs::new(1);
    let mut driver = Driver::begin(&fs, SyncPolicy::Always).unwrap_or_else(|stop| panic!("{stop}"));
    let turn = Step::Turn { ms: 0 };
    let steps = [PUT, PUT, turn, Step::Restart];
    driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
    driver.is_faulty = true;
    let bytes = fs
        .read("/data/segment-0000000001.00000")
        .expect("the first segment is there");
    let body = driver.history.now().jobs[&1].body.clone();
    let at = bytes
        .windows(body.len())
        .position(|window| *window == *body)
        .expect("it is there");
    fs.fail_reads("/data/segment-0000000001.00000", at as u64..at as u64 + 1)
        .expect("a file");
    let reserve = Step::Reserve { worker: 0 };
    driver
        .run(&[reserve, turn, Step::DeleteReserved { nth: 0 }, turn])
        .unwrap_or_else(|_| panic!());
    let left = driver.history.now();
    assert_eq!(left.jobs.len(), 1, "the other job was reserved and deleted");
    assert_eq!(left.buried("default"), [1], "the job is buried");
    fs.heal_reads("/data/segment-0000000001.00000")
        .expect("a file");
    driver
        .run(&[Step::Restart])
        .unwrap_or_else(|stop| panic!("{stop}"));
}

/// The body is read twice, before the job is taken and to send it: the client learns of either
/// failure.
#[test]
fn a_job_that_cannot_be_read_when_it_is_asked_for_by_its_id_is_buried_and_the_client_told() {
    for nth in [1, 2] {
        let driver = Driver::begin(&SimFs::new(1), SyncPolicy::Always);
        let mut driver = driver.unwrap_or_else(|stop| panic!("{stop}"));
        driver
            .run(&[PUT, Step::Turn { ms: 0 }, Step::Restart])
            .unwrap_or_else(|stop| panic!("{stop}"));
        driver.is_faulty = true;
        let fault = Fault::fail(OpKind::Read, Errno::IO).nth(nth);
        driver.fs.inject(fault);
        let reserve = Step::ReserveJob { worker: 0, nth: 0 };
        driver
            .run(&[reserve, Step::Turn { ms: 0 }])
            .unwrap_or_else(|stop| panic!("no answer: {stop}"));
        assert_eq!(driver.answers.last(), Some(&Answer::InternalError));
        assert_eq!(driver.history.now().buried("default"), [1]);
    }
}

/// A segment whose name may not be durable is not the same as one that was never created: if the
/// log continued in the one before, the next start would not look for what is there.
#[test]
fn d31_no_space_when_a_new_segment_is_named_ends_the_log_before_more_is_acknowledged() {
    for kind in [OpKind::Rename, OpKind::SyncDir, OpKind::Sync] {
        for n in 1..30 {
            let fs = SimFs::new(1);
            let driver = Driver::begin(&fs, SyncPolicy::Always);
            let mut driver = driver.unwrap_or_else(|stop| panic!("{stop}"));
            fs.inject(Fault::fail(kind, Errno::NOSPC).nth(n));
            let large = Step::put(0, [1, 0, 5], 8000);
            let turn = Step::Turn { ms: 0 };
            // Until a put is refused, and then one more that is small.
            while driver.refused == 0 && driver.history.now().jobs.len() < 20 {
                if driver.run(&[large, turn]).is_err() {
                    break;
                }
            }
            let _ = driver.run(&[PUT, turn]);
            fs.clear_faults();
            recover_at(
                &driver,
                &fs.crash_image(Crash::KeepAll),
                driver.least_acknowledged(),
            );
        }
    }
}

/// The content of a clean stop's last frame is known otherwise, and still the frame must be on the
/// platter before anything follows it: its place would be a hole in the log.
#[test]
fn a_clean_stop_whose_sync_failed_costs_nothing_that_comes_after_the_next_start() {
    for sync in [
        SyncPolicy::Always,
        SyncPolicy::Interval(50),
        SyncPolicy::Never,
    ] {
        // Somewhere in a page, across two, at the end of one: of a page that is written to the
        // system writes the whole.
        for size in (0..4096).step_by(32) {
            let stopped = stopped_without_a_sync(sync, size);
            let fs = stopped.fs.crash_image(Crash::KeepAll);
            let now = after_restart(stopped.now);
            let started = Driver::open(&fs, sync, now, &stopped.history, 0);
            let mut driver = started.unwrap_or_else(|stop| panic!("{stop}"));
            let large = Step::put(0, [1, 0, 5], 9000);
            driver
                .run(&[large, Step::Turn { ms: 0 }])
                .unwrap_or_else(|stop| panic!("{stop}"));
            let random = (0..4).map(|seed| Crash::Random { seed });
            for how in random.chain([Crash::DropUnsynced]) {
                let (image, now) = (fs.crash_image(how), after_restart(driver.now));
                let least = driver.least_durable();
                Driver::open(&image, sync, now, &driver.history, least)
                    .unwrap_or_else(|stop| panic!("{sync:?}, {size} bytes, {how:?}: {stop}"));
            }
        }
    }
}

/// A job, and a clean stop that could not be synced.
fn stopped_without_a_sync(sync: SyncPolicy, size: usize) -> Driver {
    let fs = SimFs::new(1);
    let mut driver = Driver::begin(&fs, sync).unwrap_or_else(|stop| panic!("{stop}"));
    let put = Step::put(0, [1, 0, 5], size);
    driver
        .run(&[put, Step::Turn { ms: 0 }])
        .unwrap_or_else(|stop| panic!("{stop}"));
    // The first one covers the job, where it is not durable yet.
    let nth = if sync == SyncPolicy::Always { 1 } else { 2 };
    fs.inject(Fault::fail(OpKind::Sync, Errno::IO).nth(nth));
    assert!(driver.stop().is_err(), "the sync of the stop fails");
    fs.clear_faults();
    driver
}

/// Full copy-on-write storage has no room even to overwrite existing bytes. State that could not be
/// written again is not shown to any client: the next power cut might lose it.
#[test]
fn a_start_that_has_no_room_to_make_sure_of_the_end_of_the_log_is_none() {
    let sync = SyncPolicy::Always;
    let mut driver = Driver::begin(&SimFs::new(1), sync).unwrap_or_else(|stop| panic!("{stop}"));
    driver.fs.inject(Fault::fail(OpKind::Sync, Errno::IO));
    assert!(driver.run(&[PUT, Step::Turn { ms: 0 }]).is_err());
    driver.fs.clear_faults();
    let fs = driver.fs.crash_image(Crash::KeepAll);
    let now = after_restart(driver.now);
    fs.inject(Fault::fail(OpKind::Write, Errno::NOSPC).for_ever());
    assert!(Driver::open(&fs, sync, now, &driver.history, 0).is_err());
    fs.clear_faults();
    let started = Driver::open(&fs, sync, now, &driver.history, 0);
    let started = started.unwrap_or_else(|stop| panic!("{stop}"));
    assert_eq!(started.history.now().jobs.len(), 1);
    recover_from(&started, &fs.crash_image(Crash::DropUnsynced));
}

/// After a failed sync, a log may read differently from the platter: for example, that a compaction
/// took effect, whose inputs a start removes. A crash inside that start finds one or the other.
#[test]
fn a_crash_inside_the_start_after_a_failed_sync_costs_nothing_acknowledged() {
    let sync = SyncPolicy::Always;
    let mut inside = 0;
    for n in 1.. {
        let fs = SimFs::new(n);
        fs.inject(Fault::fail(OpKind::Sync, Errno::IO).nth(n));
        let Ok(mut driver) = Driver::begin(&fs, sync) else {
            continue;
        };
        driver.is_faulty = true;
        let stopped = driver.run(&tour()).is_err();
        if !fs.trace().iter().any(|operation| operation.failed) {
            break;
        }
        if !stopped {
            continue;
        }
        fs.clear_faults();
        let least = driver.least_durable();
        let now = after_restart(driver.now);
        for operation in 1.. {
            let image = fs.crash_image(Crash::KeepAll);
            image.crash_at(operation);
            let started = Driver::engine_at(&image, now);
            if started.is_ok() && !image.is_crashed() {
                break;
            }
            let random = (0..5).map(|nth| Crash::Random {
                seed: 5 * operation + nth,
            });
            for how in random.chain([Crash::DropUnsynced]) {
                println!("sync {n} fails; operation {operation} of the start, {how:?}");
                let left = image.crash_image(how);
                Driver::open(&left, sync, now, &driver.history, least)
                    .unwrap_or_else(|stop| panic!("{stop}"));
                inside += 1;
            }
        }
    }
    assert!(inside > 4000, "{inside}");
}
