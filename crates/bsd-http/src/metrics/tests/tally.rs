//! The histograms of tubes.

use super::*;
use bsd::types::SECOND_NS;

/// What a run of commands leaves: two jobs of each of these tubes are reserved a second after their put
/// and deleted two seconds later.
fn worked(tallied_tubes_max: usize, tubes: &[&str]) -> (Engine, Now) {
    let options = Options {
        tallied_tubes_max,
        ..Options::default()
    };
    let begin = Clock::start().now();
    let at = |seconds: i64| Now {
        mono: Time(begin.mono.0 + seconds * SECOND_NS),
        ..begin
    };
    let mut engine = Engine::open(&options, begin).unwrap();
    let client = engine.connect();
    for (nth, tube) in (0_u64..).zip(tubes) {
        for second in [0, 1] {
            let id = JobId(2 * nth + second + 1);
            let put = Command::Put {
                tube: Some((*tube).into()),
                pri: 0,
                delay: 0,
                ttr: 100,
                body: b"body".into(),
            };
            // It stays, as it is watched.
            Yaml::of(&mut engine, client, Command::Watch((*tube).into()), at(0));
            Yaml::of(&mut engine, client, put, at(0));
            Yaml::of(&mut engine, client, Command::ReserveJob(id), at(1));
            Yaml::of(&mut engine, client, Command::Delete(id), at(3));
        }
    }
    (engine, at(4))
}

fn page(engine: &mut Engine, now: Now, tubes_max: usize) -> String {
    let parts = Parts {
        first: None,
        snapshot: Arc::new(Snapshot::taken(engine, now, tubes_max)),
        format: Format::OpenMetrics,
        part_size: PART_SIZE,
        family: 0,
        tube: 0,
        _permit: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
    };
    let text: Vec<u8> = parts.flatten().collect();
    String::from_utf8(text).unwrap()
}

#[test]
fn each_tube_has_histograms_whose_sum_is_that_of_all() {
    let (mut engine, now) = worked(2, &["a", "b", "c"]);
    let page = page(&mut engine, now, 9);
    for (tube, count) in [("a", 2.0), ("b", 2.0), ("other tubes", 2.0)] {
        let of = |name: &str| value(&page, &format!("{name}{{tube=\"{tube}\"}}"));
        assert_eq!(of("bsd_tube_job_wait_seconds_count"), count, "{tube}");
        assert_eq!(of("bsd_tube_job_wait_seconds_sum"), 2.0, "{tube}");
        assert_eq!(of("bsd_tube_job_hold_seconds_count"), count, "{tube}");
        assert_eq!(of("bsd_tube_job_hold_seconds_sum"), 4.0, "{tube}");
        for (bound, below) in [("0.5", 0.0), ("1.0", 2.0), ("3600.0", 2.0), ("+Inf", 2.0)] {
            let sample =
                format!("bsd_tube_job_wait_seconds_bucket{{tube=\"{tube}\",le=\"{bound}\"}}");
            assert_eq!(value(&page, &sample), below, "{sample}");
        }
    }
    let buckets = page
        .matches("bsd_tube_job_wait_seconds_bucket{tube=\"a\"")
        .count();
    assert_eq!(buckets, 13);
    // Neither the third tube nor `default`, in which nothing has happened.
    assert_eq!(page.matches("bsd_tube_job_wait_seconds_count").count(), 3);
    let all = engine.figures(now);
    assert_eq!(all.waits.counts.iter().sum::<u64>(), 6);
    assert_eq!((all.events.reserves, all.events.deletes), (6, 6));
}

#[test]
fn tubes_without_lines_of_their_own_are_summed_up_and_without_tallies_there_is_none() {
    let (mut engine, now) = worked(9, &["a", "b", "c"]);
    let one = page(&mut engine, now, 2);
    let of = |tube: &str| {
        let sample = format!("bsd_tube_job_hold_seconds_count{{tube=\"{tube}\"}}");
        value(&one, &sample)
    };
    // `default` is the first.
    assert_eq!((of("a"), of("other tubes")), (2.0, 4.0));
    let (mut engine, now) = worked(0, &["a"]);
    let page = page(&mut engine, now, 9);
    assert!(page.contains("# TYPE bsd_tube_job_wait_seconds histogram"));
    assert!(!page.contains("bsd_tube_job_wait_seconds_count"), "{page}");
}
