//! Figures, as types.

use super::*;

#[test]
fn figures_of_a_job_say_what_is_absent() {
    let queue = in_memory(Bounds::default());
    let id = put(&queue, "a");
    let stats = |id| queue.stats_job(id).wait().unwrap();
    let ready = stats(id);
    assert_eq!((ready.id, &*ready.tube), (id, "default"));
    assert_eq!((ready.state, ready.pri), (JobState::Ready, 65_536));
    assert_eq!(ready.ttr.as_secs(), 120);
    assert_eq!((ready.time_left, ready.file), (None, None));
    let worker = queue.session();
    let job = worker.reserve_job(id).wait().unwrap();
    let reserved = stats(id);
    assert_eq!((reserved.state, reserved.reserves), (JobState::Reserved, 1));
    assert!(reserved.time_left.is_some_and(|left| left <= ready.ttr));
    assert!(reserved.age >= ready.age, "it only grows");
    job.bury(5).wait().unwrap();
    let buried = stats(id);
    assert_eq!((buried.state, buried.buries), (JobState::Buried, 1));
    assert_eq!((buried.pri, buried.time_left), (5, None));
    queue.kick_job(id).wait().unwrap();
    assert_eq!(stats(id).kicks, 1);
    queue.delete(id).wait().unwrap();
    assert_eq!(queue.stats_job(id).wait(), Err(JobError::NotFound));
}

#[test]
fn figures_of_a_log_name_its_files() {
    let queue = on(&SimFs::new(1));
    let id = put(&queue, "a");
    let job = queue.stats_job(id).wait().unwrap();
    let all = queue.stats().wait().unwrap();
    assert_eq!((job.file, all.binlog_current_index), (Some(1), Some(1)));
    assert_eq!(all.binlog_max_size, Some(1 << 16));
    assert!(all.binlog_records_written > 0);
    let memory = in_memory(Bounds::default()).stats().wait().unwrap();
    assert_eq!(
        (memory.binlog_oldest_index, memory.binlog_max_size),
        (None, None)
    );
}

#[test]
fn figures_of_the_queue_and_of_a_tube_count_jobs_by_their_states_and_calls_by_their_kinds() {
    let queue = in_memory(Bounds::default());
    let options = PutOptions::default();
    for body in ["a", "b", "c"] {
        queue.put("t", body, options).wait().unwrap();
    }
    let urgent = PutOptions { pri: 1, ..options };
    queue.put("t", "d", urgent).wait().unwrap();
    let worker = queue.session();
    worker.watch("t").wait().unwrap();
    let first = worker.reserve().wait().unwrap();
    assert_eq!(first.body(), b"d");
    let second = worker.reserve().wait().unwrap();
    second.bury(1).wait().unwrap();
    let tube = queue.stats_tube("t").wait().unwrap();
    assert_eq!(&*tube.name, "t");
    let states = [
        tube.current_jobs_urgent,
        tube.current_jobs_ready,
        tube.current_jobs_reserved,
        tube.current_jobs_delayed,
        tube.current_jobs_buried,
    ];
    assert_eq!(states, [0, 2, 1, 0, 1]);
    assert_eq!((tube.total_jobs, tube.current_watching), (4, 1));
    assert_eq!((tube.pause, tube.pause_time_left), (None, None));
    let all = queue.stats().wait().unwrap();
    let states = [
        all.current_jobs_urgent,
        all.current_jobs_ready,
        all.current_jobs_reserved,
        all.current_jobs_delayed,
        all.current_jobs_buried,
    ];
    assert_eq!(states, [0, 2, 1, 0, 1]);
    let calls = [all.cmd_put, all.cmd_reserve, all.cmd_bury, all.cmd_watch];
    assert_eq!(calls, [4, 2, 1, 1]);
    assert_eq!((all.cmd_stats, all.cmd_stats_tube), (1, 1));
    assert_eq!((all.total_jobs, all.current_tubes), (4, 2));
    assert_eq!((all.pid, all.draining), (std::process::id(), false));
    assert_eq!((all.rusage_utime, all.rusage_stime), (None, None));
    assert_eq!(
        (all.disk_missing_bytes, all.memory_missing_bytes),
        (None, None)
    );
    let bad = queue.stats_tube("a b").wait();
    assert_eq!(bad, Err(JobError::BadTubeName("a b".into())));
    assert_eq!(queue.stats_tube("u").wait(), Err(JobError::NotFound));
}

#[test]
fn a_pause_is_shown_as_long_as_it_is_on() {
    let queue = in_memory(Bounds::default());
    put(&queue, "a");
    let pause = |seconds| {
        let time = Duration::from_secs(seconds);
        queue.pause("default", time).wait().unwrap();
    };
    let shown = || {
        let stats = queue.stats_tube("default").wait().unwrap();
        (stats.pause, stats.pause_time_left)
    };
    pause(100);
    let (length, left) = shown();
    assert_eq!(length.unwrap().as_secs(), 100);
    assert!(left.unwrap() <= length.unwrap());
    pause(0);
    assert_eq!(shown(), (None, None));
}

#[test]
fn figures_of_a_job_with_more_than_a_plain_one_say_when() {
    let queue = in_memory(Bounds::default());
    let attributes = PutAttributes {
        key: Some("k".into()),
        unique: Unique::Waiting,
        group: Some("g".into()),
        at: Some(latest()),
        ..PutAttributes::default()
    };
    let put = queue.put_with("default", "a", PutOptions::default(), attributes);
    let id = put.wait().unwrap().id();
    let stats = queue.stats_job_extended(id).wait().unwrap();
    assert_eq!((stats.id, stats.state), (id, JobState::Delayed));
    assert_eq!(
        (stats.key.as_deref(), stats.group.as_deref()),
        (Some("k"), Some("g"))
    );
    assert_eq!((stats.unique, stats.deliveries), (Some(Unique::Waiting), 0));
    assert_eq!(
        (stats.reason, stats.text, stats.expires_at),
        (None, None, None)
    );
    let due = stats.due_at.unwrap().duration_since(UNIX_EPOCH).unwrap();
    let late = due.as_secs().abs_diff(u64::from(u32::MAX));
    assert!(late <= 1, "rounded up to a second of the delay: {due:?}");
}

#[test]
fn all_tubes_are_listed_however_many() {
    let queue = in_memory(Bounds::default());
    assert_eq!(queue.list_tubes().wait().unwrap(), ["default"]);
    // Their document would be long.
    let worker = queue.session();
    for number in 0..3000 {
        let name = format!("a-tube-with-a-long-name-and-a-number-{number}");
        worker.watch(&name).wait().unwrap();
    }
    let tubes = queue.list_tubes().wait().unwrap();
    assert_eq!(tubes.len(), 3001);
    assert!(tubes.iter().any(|tube| tube.ends_with("-2999")));
    assert_eq!(queue.stats().wait().unwrap().cmd_list_tubes, 2);
}
