//! Clocks that jump while the server is down: the rest of a delay or pause never grows, and is
//! never negative.

use bsd::storage::disk::sim::Crash;
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::{JobId, JobState, Now, SECOND_NS, Time};

use super::driver::{Driver, Step};

const DAY: i64 = 86_400;

/// Three jobs: one put with a delay, one released with one, one ready; and a paused tube.
fn before() -> Driver {
    let fs = SimFs::new(1);
    let mut driver = Driver::begin(&fs, SyncPolicy::Always).unwrap_or_else(|stop| panic!("{stop}"));
    let put = |delay| Step::put(0, [1, delay, 100], 10);
    let steps = [
        put(0),
        Step::Reserve { worker: 0 },
        Step::Release {
            nth: 0,
            pri: 1,
            delay: 500,
        },
        put(1000),
        put(0),
        Step::Pause {
            tube: 1,
            seconds: 700,
        },
        Step::Turn { ms: 100_000 },
    ];
    driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
    driver
}

/// The engine after the wall clock has jumped by `seconds`; returns what is left, in seconds, of
/// the delays of jobs 1 and 2 and of the pause.
fn left_after_jump(driver: &Driver, seconds: i64) -> (i64, i64, i64) {
    let image = driver.fs.crash_image(Crash::KeepAll);
    let wall_ns = driver
        .now
        .wall_ns
        .saturating_add_signed(seconds * SECOND_NS);
    let now = Now::new(Time(9), wall_ns);
    let engine = Driver::engine_at(&image, now).unwrap_or_else(|stop| panic!("{stop}"));
    let left = |id| {
        let job = engine.queue().job(JobId(id)).expect("no jump costs a job");
        let left = job.deadline.map_or(0, |deadline| deadline.since(now.mono));
        assert_eq!(job.state == JobState::Ready, left == 0);
        left / SECOND_NS
    };
    let pause = engine.queue().tube_stats("mail", now.mono);
    let pause = pause.map_or(0, |tube| tube.pause_left_ns / SECOND_NS);
    assert!(
        engine
            .queue()
            .job(JobId(3))
            .is_some_and(|job| job.created <= now.mono)
    );
    (left(1), left(2), pause)
}

/// D30, and the clamp: remaining = clamp(deadline − now, 0, delay).
#[test]
fn d30_what_is_left_of_delays_and_pauses_is_clamped_when_the_wall_clock_jumps() {
    let driver = before();
    assert_eq!(
        left_after_jump(&driver, 0),
        (400, 900, 600),
        "no jump: time has passed"
    );
    assert_eq!(
        left_after_jump(&driver, 300),
        (100, 600, 300),
        "a short stop"
    );
    assert_eq!(left_after_jump(&driver, 450), (0, 450, 150));
    assert_eq!(
        left_after_jump(&driver, -40),
        (440, 940, 640),
        "back, a little"
    );
    assert_eq!(
        left_after_jump(&driver, -400 * DAY),
        (500, 1000, 700),
        "back: the whole delay"
    );
    assert_eq!(
        left_after_jump(&driver, 400 * DAY),
        (0, 0, 0),
        "forward: due at once"
    );
}

#[test]
fn a_wall_clock_at_its_ends_neither_panics_nor_freezes_the_queue() {
    let driver = before();
    for wall_ns in [0, 1, u64::MAX] {
        let image = driver.fs.crash_image(Crash::KeepAll);
        let now = Now::new(Time(0), wall_ns);
        let engine = Driver::engine_at(&image, now).unwrap_or_else(|stop| panic!("{stop}"));
        let deadline = engine.queue().job(JobId(2)).and_then(|job| job.deadline);
        assert!(deadline.is_none_or(|deadline| deadline.0 <= 1000 * SECOND_NS));
    }
}

/// The wall clock jumps while the process runs: inside, only the monotonic clock counts.
#[test]
fn d30_a_running_engine_does_not_look_at_the_wall_clock() {
    let mut driver = before();
    driver.now.wall_ns += (400 * DAY * SECOND_NS) as u64;
    let now = driver.now;
    driver.tick().unwrap_or_else(|stop| panic!("{stop}"));
    let state = |id| driver.engine().queue().job(JobId(id)).map(|job| job.state);
    assert_eq!(
        (state(1), state(2)),
        (Some(JobState::Delayed), Some(JobState::Delayed))
    );
    let paused = driver.engine().queue().tube_stats("mail", now.mono);
    assert_eq!(paused.map(|tube| tube.pause_left_ns), Some(600 * SECOND_NS));
}
