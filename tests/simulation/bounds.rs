//! The size of the log, and how often bytes are copied, whatever clients do.

use bsd::engine::{Engine, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::random::Random;
use bsd::storage::disk::sim::{Crash, OpKind};
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::{ClientId, Ticket};

use super::driver::{Driver, SEGMENT_SIZE, Step, WORKERS, beginning, options};
use super::workload::{Mood, random_steps};

const TURN: Step = Step::Turn { ms: 0 };

fn begin() -> Driver {
    let opened = Driver::begin(&SimFs::new(1), SyncPolicy::Always);
    opened.unwrap_or_else(|stop| panic!("{stop}"))
}

fn put(size: usize) -> Step {
    Step::put(0, [1, 0, 1000], size)
}

fn run(driver: &mut Driver, steps: &[Step]) {
    driver.run(steps).unwrap_or_else(|stop| panic!("{stop}"));
    driver.fs.clear_trace();
}

/// P9: at the end of every turn.
fn assert_bounded(driver: &Driver) {
    let (disk, live) = (driver.disk_bytes(), driver.history.now().live_bytes());
    let bound = 2 * live + 3 * u64::from(SEGMENT_SIZE);
    assert!(
        disk <= bound,
        "{disk} bytes on the disk, {live} alive: {:?}",
        driver.fs.names("/data")
    );
}

/// D9: updates are garbage as soon as the next one comes.
#[test]
fn d9_endless_bury_and_kick_on_a_fixed_set_keeps_the_log_bounded() {
    let mut driver = begin();
    run(&mut driver, &[put(100); 60]);
    for _ in 0..6000 {
        let reserve = Step::Reserve { worker: 0 };
        run(&mut driver, &[reserve, Step::Bury { nth: 0, pri: 1 }, TURN]);
        run(&mut driver, &[Step::Kick { tube: 0, bound: 1 }, TURN]);
        assert_bounded(&driver);
    }
    let log = driver.engine().log().expect("there is a log");
    assert!(log.segments().1.0 > 15, "the log went round");
}

/// D9: the same for reservations that are given back at once, or run out.
#[test]
fn d9_endless_release_and_timeout_on_a_fixed_set_keeps_the_log_bounded() {
    let mut driver = begin();
    let short = Step::put(0, [1, 0, 1], 100);
    run(&mut driver, &[short; 60]);
    for nth in 0..1500 {
        let reserves = [0, 1, 2].map(|worker| Step::Reserve {
            worker: worker % WORKERS,
        });
        run(&mut driver, &reserves);
        let release = Step::Release {
            nth,
            pri: 1,
            delay: (nth % 3) as u32,
        };
        run(&mut driver, &[release, Step::Turn { ms: 1100 }]);
        assert_bounded(&driver);
    }
}

/// One job that stays in each segment, among many that go.
#[test]
fn d9_old_pinned_jobs_among_churn_do_not_keep_their_neighbours_on_the_disk() {
    let mut driver = begin();
    for round in 0..1500 {
        run(
            &mut driver,
            &[
                put(1500),
                put(1500),
                TURN,
                Step::Delete { nth: 1 << 20 },
                TURN,
            ],
        );
        let pinned = driver.history.now().jobs.len();
        let keep = 1 + round / 40;
        (keep..pinned).for_each(|nth| run(&mut driver, &[Step::Delete { nth }]));
        run(&mut driver, &[TURN]);
        assert_bounded(&driver);
    }
    assert!(
        driver.history.now().jobs.len() > 30,
        "jobs of long ago are still there"
    );
}

/// A file that is sealed while a few of its jobs are still alive is dropped when they are deleted:
/// nothing of it is read again, or written.
#[test]
fn a_queue_that_drains_as_fast_as_it_fills_is_never_copied() {
    let mut driver = begin();
    run(&mut driver, &[put(300), put(300), TURN]);
    for _ in 0..4000 {
        run(&mut driver, &[put(300), Step::Delete { nth: 0 }, TURN]);
        assert_bounded(&driver);
    }
    let log = driver.engine().log().expect("there is a log");
    assert!(log.segments().1.0 > 15, "the log went round");
    assert_eq!(log.records_migrated(), 0);
}

#[test]
fn random_work_keeps_the_log_bounded() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut driver = begin();
        let mood = Mood {
            delete: 30,
            turn: 4,
            ..Mood::any(&mut random)
        };
        for _ in 0..300 {
            run(&mut driver, &random_steps(&mut random, mood, 8));
            run(&mut driver, &[TURN]);
            assert_bounded(&driver);
        }
    }
}

/// Bytes written for each byte that clients had written, while a queue that is half garbage at any
/// time is churned.
#[test]
fn compaction_writes_no_byte_three_times_on_average() {
    for (jobs, size) in [(40, 4000), (300, 600), (200, 100)] {
        let fs = SimFs::new(1);
        let mut driver = Driver::begin(&fs, SyncPolicy::Always).unwrap_or_else(|_| panic!());
        let mut random = Random::new(9);
        let (mut by_clients, mut written) = (0, 0);
        for _ in 0..(3 << 20) / size {
            let batch = [
                put(size),
                Step::Delete {
                    nth: random.below(1 << 20),
                },
            ];
            let full = driver.history.now().jobs.len() >= jobs;
            driver
                .run(&batch[..1 + usize::from(full)])
                .unwrap_or_else(|stop| panic!("{stop}"));
            driver.run(&[TURN]).unwrap_or_else(|stop| panic!("{stop}"));
            by_clients += (40 + 7 + size + 20 + 48) as u64;
            let writes = fs.trace();
            let writes = writes.iter().filter(|it| it.kind == OpKind::Write);
            written += writes.map(|it| it.len).sum::<u64>();
            fs.clear_trace();
        }
        let hundredths = written * 100 / by_clients;
        println!("{jobs} jobs of {size}: {hundredths} hundredths");
        assert!(
            hundredths <= 300,
            "{jobs} jobs of {size}: {written} for {by_clients}"
        );
    }
}

/// D21: a restart, clean or not, leaves the log as large as it was.
#[test]
fn d21_idle_restarts_do_not_grow_the_log() {
    let mut driver = begin();
    run(&mut driver, &[put(3000); 50]);
    run(
        &mut driver,
        &[Step::Turn { ms: 500 }, Step::Restart, Step::Restart],
    );
    let before = driver.disk_bytes();
    for _ in 0..20 {
        run(&mut driver, &[Step::Restart]);
        assert_eq!(driver.disk_bytes(), before);
    }
    for _ in 0..20 {
        run(&mut driver, &[Step::Turn { ms: 500 }, Step::Restart]);
    }
    assert_eq!(driver.disk_bytes(), before);
    for _ in 0..40 {
        run(&mut driver, &[Step::Turn { ms: 500 }]);
        driver = killed(driver);
        assert_eq!(driver.disk_bytes(), before);
    }
}

fn killed(mut driver: Driver) -> Driver {
    driver.kill();
    let Driver {
        fs, history, now, ..
    } = driver;
    let image = fs.crash_image(Crash::KeepAll);
    let opened = Driver::open(&image, SyncPolicy::Always, now, &history, history.last());
    opened.unwrap_or_else(|stop| panic!("{stop}"))
}

/// D18: ids continue after all jobs are gone, their records compacted away, and the server
/// restarted.
#[test]
fn d18_ids_go_on_after_all_jobs_are_deleted() {
    let mut driver = begin();
    for _ in 0..60 {
        run(
            &mut driver,
            &[put(4000), Step::Delete { nth: 0 }, Step::Turn { ms: 200 }],
        );
    }
    let issued = driver.history.now().issued;
    run(&mut driver, &[Step::Restart, Step::Restart]);
    driver = killed(driver);
    run(&mut driver, &[put(10)]);
    assert_eq!(driver.history.now().issued, issued + 1);
}

/// D18: the newest segment knows the used ids even without a put or a job in it.
#[test]
fn d18_ids_go_on_when_nothing_in_the_log_tells_of_the_last_job_any_more() {
    let mut driver = begin();
    run(&mut driver, &[put(10), put(10), put(60_000), TURN]);
    run(&mut driver, &[Step::Delete { nth: 2 }, TURN]);
    for _ in 0..2500 {
        let bury = Step::Bury { nth: 0, pri: 1 };
        run(&mut driver, &[Step::Reserve { worker: 0 }, bury, TURN]);
        run(&mut driver, &[Step::Kick { tube: 0, bound: 1 }, TURN]);
    }
    driver = killed(driver);
    run(&mut driver, &[Step::Restart, put(10)]);
    assert_eq!(driver.history.now().issued, 4);
}

#[test]
fn a_clean_stop_is_told_from_a_crash_also_after_an_idle_spell() {
    let mut driver = begin();
    run(&mut driver, &[put(10), Step::Turn { ms: 0 }]);
    assert!(!driver.engine().recovery().clean_stop);
    run(&mut driver, &[Step::Restart]);
    assert!(driver.engine().recovery().clean_stop);
    run(
        &mut driver,
        &[put(10), Step::Turn { ms: 500 }, Step::Restart],
    );
    assert!(driver.engine().recovery().clean_stop);
    run(&mut driver, &[Step::Turn { ms: 500 }, Step::Restart]);
    assert!(driver.engine().recovery().clean_stop);
    driver = killed(driver);
    assert!(
        driver.engine().recovery().clean_stop,
        "nothing was written since"
    );
    run(&mut driver, &[put(10), Step::Turn { ms: 500 }]);
    assert!(!killed(driver).engine().recovery().clean_stop);
}

/// D17: a burial is in one segment, the kick after it in one that is dropped, and the next burial
/// in a third: the job comes after those that were buried meanwhile.
#[test]
fn d17_the_order_of_buried_jobs_outlives_the_compaction_of_a_kick_between_two_burials() {
    let mut driver = begin();
    let reserve = Step::Reserve { worker: 0 };
    let bury = Step::Bury { nth: 0, pri: 1 };
    run(
        &mut driver,
        &[put(10), put(10), reserve, reserve, bury, bury, TURN],
    );
    assert_eq!(driver.history.now().buried("default"), [1, 2]);
    // Eight fill a segment.
    run(&mut driver, &[put(8000); 9]);
    run(&mut driver, &[TURN, Step::KickJob { nth: 0 }, TURN]);
    run(&mut driver, &[put(8000); 8]);
    run(
        &mut driver,
        &[TURN, Step::ReserveJob { worker: 0, nth: 0 }, bury, TURN],
    );
    assert_eq!(driver.history.now().buried("default"), [2, 1]);
    run(&mut driver, &[Step::Delete { nth: 10 }; 8]);
    run(&mut driver, &[Step::Turn { ms: 1000 }]);
    let names = driver.fs.names("/data").expect("the directory is there");
    let has = |segment: u32| {
        names
            .iter()
            .any(|name| name.starts_with(&format!("segment-{segment:010}")))
    };
    assert_eq!([has(1), has(2), has(3)], [true, false, true], "{names:?}");
    killed(driver);
}

/// Threads that write ahead and copy end before the directory is let go: another engine may open it
/// at once, in the same process.
#[test]
fn nothing_touches_the_disk_after_an_engine_with_threads_is_dropped() {
    for round in 0..20 {
        let fs = SimFs::new(round);
        let options = bsd::engine::Options {
            segment_size: 16 << 20,
            waker: Some(std::sync::Arc::new(|| {})),
            ..options(&fs, SyncPolicy::Always)
        };
        let mut engine = Engine::open(&options, beginning()).expect("a sound disk");
        fill_half(&mut engine);
        drop(engine);
        let operations = fs.operations();
        (0..2000).for_each(|_| std::thread::yield_now());
        assert_eq!(fs.operations(), operations, "a thread is still at work");
        Engine::open(&options, beginning()).expect("the directory was let go");
    }
}

/// So that zeros are written ahead for the next segment.
fn fill_half(engine: &mut Engine) {
    let (client, body) = (engine.connect(), vec![7; 60_000]);
    for _ in 0..12 {
        let put = Command::put(1, 0, 1, &body);
        engine.run(client, Request::Command(put), beginning(), &mut NoOne);
        engine.tick(beginning(), &mut NoOne).expect("a sound disk");
        engine.commit(beginning()).expect("a sound disk");
    }
}

struct NoOne;

impl ReplySink for NoOne {
    fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
}
