//! Times of calls: the queue keeps whole seconds.

use super::*;

const MOST: Duration = Duration::from_secs(u32::MAX as u64);

fn with(delay: Duration, ttr: Duration) -> PutOptions {
    PutOptions {
        delay,
        ttr,
        ..PutOptions::default()
    }
}

#[test]
fn a_fraction_of_a_second_is_rounded_up_and_a_time_to_run_is_at_least_one() {
    let queue = in_memory(Bounds::default());
    for (asked, delay, ttr) in [
        (Duration::ZERO, 0, 1),
        (Duration::from_nanos(1), 1, 1),
        (Duration::from_millis(999), 1, 1),
        (Duration::from_secs(1), 1, 1),
        (Duration::from_millis(1001), 2, 2),
        (MOST, u32::MAX.into(), u32::MAX.into()),
        (
            MOST - Duration::from_nanos(1),
            u32::MAX.into(),
            u32::MAX.into(),
        ),
    ] {
        let put = queue.put("default", "a", with(asked, asked));
        let id = put.wait().unwrap();
        let stats = queue.stats_job(id).wait().unwrap();
        let kept = (stats.delay.as_secs(), stats.ttr.as_secs());
        assert_eq!(kept, (delay, ttr), "{asked:?}");
        queue.delete(id).wait().unwrap();
    }
    let id = put(&queue, "a");
    let job = queue.reserve_job(id).wait().unwrap();
    job.release(7, Duration::from_millis(2500)).wait().unwrap();
    let delay = queue.stats_job(id).wait().unwrap().delay;
    assert_eq!(delay, Duration::from_secs(3));
    let half = Duration::from_millis(500);
    queue.pause("default", half).wait().unwrap();
    let tube = queue.stats_tube("default").wait().unwrap();
    assert_eq!(tube.pause, Some(Duration::from_secs(1)));
}

#[test]
fn a_time_of_more_seconds_than_the_queue_keeps_is_refused_and_nothing_is_done() {
    let queue = in_memory(Bounds::default());
    let kept = put(&queue, "kept");
    let reserved = queue.reserve_job(kept).wait().unwrap();
    for over in [MOST + Duration::from_nanos(1), Duration::MAX] {
        let refused = || JobError::TooLong(over);
        for options in [with(over, MOST), with(MOST, over)] {
            let one = queue.put("default", "a", options);
            assert_eq!(one.wait(), Err(refused()));
            let many = queue.put_many("default", ["a", "b"], options);
            assert_eq!(many.wait(), Err(refused()));
            let plain = PutAttributes::default();
            let keyed = queue.put_with("default", "a", options, plain);
            assert_eq!(keyed.wait(), Err(refused()));
        }
        assert_eq!(queue.release(kept, 1, over).wait(), Err(refused()));
        assert_eq!(queue.release_batch([kept], 1, over).wait(), Err(refused()));
        assert_eq!(queue.pause("default", over).wait(), Err(refused()));
    }
    let text = JobError::TooLong(MOST + Duration::from_secs(1)).to_string();
    assert!(text.contains("4294967296 s"), "{text}");
    let late = queue.put_at(
        "default",
        "a",
        PutOptions::default(),
        latest() + Duration::from_nanos(1),
    );
    assert!(matches!(late.wait(), Err(JobError::TooLong(_))));
    let stats = queue.stats().wait().unwrap();
    assert_eq!((stats.total_jobs, stats.cmd_release), (1, 0));
    // It is given back, because it was not finished.
    assert!(matches!(
        reserved.release(1, Duration::MAX).wait(),
        Err(JobError::TooLong(_))
    ));
    let job = queue.reserve_within(Duration::ZERO).wait().unwrap();
    assert_eq!(job.map(|job| job.id()), Some(kept));
}

#[test]
fn a_point_in_time_before_1970_is_now() {
    let queue = in_memory(Bounds::default());
    let before = UNIX_EPOCH - Duration::from_secs(1);
    let put = queue.put_at("default", "a", PutOptions::default(), before);
    let id = put.wait().unwrap();
    let state = queue.stats_job(id).wait().unwrap().state;
    assert_eq!(state, JobState::Ready);
}
