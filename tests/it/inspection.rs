//! Reports of the library about a log that it only reads: where live bytes lie, the life of a job,
//! what is certainly and what is perhaps missing. The programs print them; their own tests check
//! the output.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bsd::storage::SimFs;
use bsd::storage::format::{Record, parse_file_name};
use bsd::storage::inspect::history::{Event, State, history};
use bsd::storage::inspect::{Loss, RecordPlace, read_records};
use bsd::types::{Counters, JobId, JobState};
use bsd::{JobQueue, PutOptions};

use crate::wal::{DIR, copy, inspect, log, options};

#[test]
fn a_picture_shows_what_is_alive_and_pins_every_live_job() {
    let disk = log();
    let found = inspect(&disk, DIR).unwrap();
    let (live, dead) = found.live_and_dead_bytes();
    assert!(live > 1000 && dead > 1000 && found.segments.len() > 2);
    for (strips, cells) in [(1, 1), (2, 7), (100, 28)] {
        let picture = found.picture(strips, cells);
        let painted = picture.iter().map(|strip| strip.total().live);
        let painted: u64 = painted.sum();
        // Little is alive besides the records of jobs.
        assert!(
            painted <= live && painted > live - live / 50,
            "{painted} of {live}"
        );
    }
    let pins = found.pins(usize::MAX, 3);
    for pin in &pins {
        assert!(pin.jobs > 0, "{pin:?}");
        assert_eq!(pin.first.len() as u64, pin.jobs.min(3), "{pin:?}");
    }
    let pinned: u64 = pins.iter().map(|pin| pin.jobs).sum();
    assert!(pinned >= found.job_count() as u64, "{pinned} of them");
}

/// The state and time of a job's put, according to `history`.
fn as_put(disk: &SimFs, job: JobId) -> (State, u64) {
    let fs = Arc::new(disk.clone());
    let entry = history(fs, Path::new(DIR), job, &mut |_, _| ())
        .unwrap()
        .entries
        .remove(0);
    match entry.event {
        Event::Put { state, .. } => (state, entry.before_wall_ns.unwrap()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_begins_its_life_ready_or_delayed_until_a_time_that_is_told() {
    let disk = SimFs::new(1);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    let mut put = |seconds| {
        let with = PutOptions {
            delay: Duration::from_secs(seconds),
            ..PutOptions::default()
        };
        queue.put("t", b"body", with).unwrap()
    };
    let (ready, delayed) = (put(0), put(5));
    queue.close().unwrap();
    let (state, put_at) = as_put(&disk, delayed);
    assert_eq!(
        (state.state, state.deadline_wall_ns),
        (JobState::Delayed, Some(put_at + 5_000_000_000))
    );
    assert_eq!(
        as_put(&disk, ready).0,
        State {
            state: JobState::Ready,
            deadline_wall_ns: None,
            delay: 0,
            counters: Counters::default(),
            ..state
        }
    );
}

/// A put in a log: its file, where it lies there, and the job.
type Put = (String, Range<usize>, JobId);

fn puts(disk: &SimFs) -> Vec<Put> {
    let mut puts = Vec::new();
    let mut visit = |place: RecordPlace<'_>, record: &Record<'_>| {
        if let Record::Put { id, .. } = record {
            let at = place.position.offset() as usize;
            puts.push((place.file.to_owned(), at..at + place.size, *id));
        }
        true
    };
    let fs = Arc::new(disk.clone());
    read_records(fs, Path::new(DIR), &mut visit, &mut |_, _| ()).unwrap();
    puts
}

/// The report about a put that is completely lost, also in a file whose header is damaged.
fn told_of(disk: &SimFs, (file, record, _): &Put) -> Loss {
    let disk = copy(disk);
    let path = Path::new(DIR).join(file);
    let mut bytes = disk.read(&path).unwrap();
    bytes[20] ^= 1;
    bytes[record.clone()].fill(0xaa);
    disk.write(&path, &bytes).unwrap();
    let found = inspect(&disk, DIR).unwrap();
    let holds_it = |loss: &&Loss| {
        let range = loss.damage.range;
        range.is_some_and(|(from, size)| (from..from + size).contains(&(record.start as u64)))
    };
    found.losses.iter().find(holds_it).unwrap().clone()
}

/// The name tells: compaction has left out deleted jobs, and a job missing between two others may
/// have been one of them.
#[test]
fn a_put_is_surely_missing_from_a_file_without_a_header_unless_compaction_wrote_it() {
    let disk = SimFs::new(1);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    for _ in 0..300 {
        queue.put("t", &[7; 900], PutOptions::default()).unwrap();
    }
    queue.close().unwrap();
    let all = puts(&disk);
    let put = &all[150];
    let loss = told_of(&disk, put);
    assert_eq!(loss.missing, [put.2.0..=put.2.0], "{loss:?}");
    assert!(loss.perhaps_missing.is_empty(), "{loss:?}");

    let disk = log();
    let is_rewritten = |name: &str| parse_file_name(name).is_some_and(|(_, made)| made > 0);
    let all = puts(&disk);
    let put = all.iter().find(|(file, ..)| is_rewritten(file)).unwrap();
    let loss = told_of(&disk, put);
    let is_perhaps = |loss: &Loss| {
        let perhaps = &loss.perhaps_missing;
        perhaps.iter().any(|ids| ids.contains(&put.2.0))
    };
    assert!(is_perhaps(&loss) && loss.missing.is_empty(), "{loss:?}");
}
