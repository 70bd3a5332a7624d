//! `repair` and `load`, crashed at every operation on the disk: the source is unchanged, no
//! incomplete directory has the requested name, and running again succeeds. All commands that make
//! a directory, when an operation fails: nothing is left next to it.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_WAL_CRASH_STEP` | crash at every this many operations | 1 |

use std::path::Path;
use std::sync::Arc;

use bsd::storage::SimFs;
use bsd::storage::convert::backup::{back_up, restore};
use bsd::storage::convert::beanstalkd::{Binlogs, export, import};
use bsd::storage::convert::load::{Load, LoadError};
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::{Crash, Errno, Fault, OpKind};
use bsd::storage::inspect::{Inspection, JobRecord, PauseRecord, repair};
use bsd::types::{JobId, JobState};
use bsd::{JobQueue, OpenError, PutOptions};

use crate::wal::{DIR, contents, copy, inspect, jobs, now, options};
use bsd::check::volume::volume;

const NEW: &str = "/new";

/// A small log of jobs in several states, with damage in it.
fn damaged() -> SimFs {
    let disk = SimFs::new(1);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    for number in 0..8 {
        let body = [b'a' + number; 50];
        queue.put("default", &body, PutOptions::default()).unwrap();
        if number % 3 == 0 {
            let job = queue.reserve().unwrap().unwrap();
            queue.bury(job.id, 5).unwrap();
        }
    }
    queue.close().unwrap();
    let name = disk
        .names(DIR)
        .unwrap()
        .into_iter()
        .find(|name| name.starts_with("segment-"));
    let file = Path::new(DIR).join(name.unwrap());
    let bytes = disk.read(&file).unwrap();
    let at = bytes
        .windows(50)
        .position(|window| window == [b'c'; 50])
        .unwrap();
    disk.flip_bit(&file, at as u64 * 8).unwrap();
    // Nothing of it is under way any more.
    disk.crash_image(Crash::KeepAll)
}

/// Let `work` crash at each of its operations, with each kind of crash, and check the disk that is
/// left with `check` before and after `work` was done again.
fn crash_everywhere(
    disk: &SimFs,
    work: impl Fn(&SimFs) -> Result<(), OpenError>,
    check: impl Fn(&SimFs, bool),
) {
    let first = disk.operations();
    let whole = copy(disk);
    work(&whole).unwrap();
    let operations = whole.operations();
    assert!(operations > first + 20, "{operations}");
    let crashes = [
        Crash::DropUnsynced,
        Crash::KeepAll,
        Crash::Random { seed: 7 },
    ];
    for at in (1..=operations).step_by(volume("BSD_WAL_CRASH_STEP", 1) as usize) {
        let disk = copy(disk);
        disk.crash_at(at);
        let crashed = work(&disk);
        assert!(
            crashed.is_err() || !disk.is_crashed(),
            "operation {at} was not missed"
        );
        for crash in crashes {
            let left = disk.crash_image(crash);
            let is_there = left.names(NEW).is_ok_and(|names| !names.is_empty());
            check(&left, is_there);
            if !is_there {
                work(&left).unwrap_or_else(|error| panic!("operation {at}, {crash:?}: {error}"));
                check(&left, true);
            }
        }
    }
}

/// The new log is whole, and holds these jobs.
fn assert_whole(disk: &SimFs, expected: &[JobRecord], buried: &[JobId]) {
    let new = inspect(disk, NEW).unwrap();
    assert!(new.is_intact() && new.clean_stop, "{:#?}", new.losses);
    assert_eq!(jobs(&new).into_values().collect::<Vec<_>>(), expected);
    assert_eq!(new.buried(), buried);
}

#[test]
fn a_repair_that_crashes_anywhere_leaves_the_source_alone_and_can_be_run_again() {
    let disk = damaged();
    let source = contents(&disk);
    let (expected, buried) = {
        let old = inspect(&copy(&disk), DIR).unwrap();
        assert!(!old.is_intact());
        (jobs(&old).into_values().collect::<Vec<_>>(), old.buried())
    };
    let work = |disk: &SimFs| {
        let fs = Arc::new(disk.clone());
        let old = Inspection::read(fs.clone(), Path::new(DIR), &mut |_, _| ())?;
        repair::write(&old, fs, Path::new(NEW), now(), &mut |_, _| ()).map(drop)
    };
    crash_everywhere(&disk, work, |disk, is_there| {
        assert_eq!(contents(disk), source);
        if is_there {
            assert_whole(disk, &expected, &buried);
        }
    });
}

#[test]
fn a_load_that_crashes_anywhere_leaves_nothing_half_done_and_can_be_run_again() {
    let disk = SimFs::new(1);
    let job = |id, state| JobRecord {
        id: JobId(id),
        tube: "t".to_owned(),
        state,
        pri: 1,
        delay: 0,
        ttr: 60,
        created_wall_ns: now().wall_ns,
        deadline_wall_ns: None,
        counters: bsd::types::Counters::default(),
        body: vec![b'x'; 100],
        attributes: Vec::new(),
    };
    let expected: Vec<JobRecord> = [JobState::Ready, JobState::Buried, JobState::Buried]
        .into_iter()
        .zip(1..)
        .map(|(state, id)| job(id, state))
        .collect();
    let work = |disk: &SimFs| {
        let fs = Arc::new(disk.clone());
        let mut load = Load::begin(fs, Path::new(NEW), 64 << 10, now())?;
        let pause = PauseRecord {
            tube: "t",
            until_wall_ns: now().wall_ns + 1,
            duration: 1,
        };
        let fill = |load: &mut Load| {
            for (job, order) in expected.iter().zip([9, 8, 7]) {
                load.job(job, Some(order))?;
            }
            load.pause(&pause)?;
            load.next_id(JobId(1000))
        };
        match fill(&mut load) {
            Err(LoadError::Open(error)) => return Err(error),
            Err(LoadError::Refused(why)) => panic!("{why}"),
            Ok(()) => {}
        }
        load.finish().map(drop)
    };
    crash_everywhere(&disk, work, |disk, is_there| {
        if is_there {
            assert_whole(disk, &expected, &[JobId(3), JobId(2)]);
            assert_eq!(inspect(disk, NEW).unwrap().next_id, JobId(1000));
        }
    });
}

/// A command that makes a directory.
type Work = Box<dyn Fn(&SimFs) -> Result<(), OpenError>>;

/// All that make [`NEW`], each with the disk that it does so on.
fn every_maker() -> Vec<(&'static str, SimFs, Work)> {
    fn quiet(_: u64, _: u64) {}
    let door = |disk: &SimFs| -> Arc<dyn Fs> { Arc::new(disk.clone()) };
    let old = move |disk: &SimFs| Inspection::read(door(disk), Path::new(DIR), &mut quiet);
    let new = Path::new(NEW);
    let (backup, binlogs) = (Path::new("/backup"), Path::new("/binlogs"));
    let disk = damaged();
    let sound = SimFs::new(2);
    let mut queue = JobQueue::open_with(&options(&sound, DIR)).unwrap();
    queue.put("t", b"body", PutOptions::default()).unwrap();
    queue.close().unwrap();
    back_up(&door(&sound), Path::new(DIR), backup, now(), &mut quiet).unwrap();
    let listed = old(&sound).unwrap();
    export::write(&listed, &door(&sound), binlogs, now().wall_ns, &mut quiet).unwrap();
    drop(listed);
    let repair = move |disk: &SimFs| {
        repair::write(&old(disk)?, door(disk), new, now(), &mut quiet).map(drop)
    };
    let load = move |disk: &SimFs| {
        Load::begin(door(disk), new, 64 << 10, now())?
            .finish()
            .map(drop)
    };
    let restore =
        move |disk: &SimFs| restore(&door(disk), backup, new, now(), &mut quiet).map(drop);
    let import = move |disk: &SimFs| {
        let old = Binlogs::read(door(disk), binlogs, &mut quiet)?;
        import::write(&old, door(disk), new, 64 << 10, now(), &mut quiet).map(drop)
    };
    let export = move |disk: &SimFs| {
        export::write(&old(disk)?, &door(disk), new, now().wall_ns, &mut quiet).map(drop)
    };
    vec![
        ("repair", disk, Box::new(repair)),
        ("load", sound.clone(), Box::new(load)),
        ("restore", sound.clone(), Box::new(restore)),
        ("import", sound.clone(), Box::new(import)),
        ("export", sound, Box::new(export)),
    ]
}

/// Only a crash leaves it, and what must be cleared before anything is begun.
#[test]
fn whatever_fails_nothing_is_left_beside_the_directory_that_was_asked_for() {
    let before_it_begins = [OpKind::CreateDir, OpKind::ReadDir, OpKind::Lock];
    let kinds = OpKind::ALL
        .into_iter()
        .filter(|kind| !before_it_begins.contains(kind));
    let kinds: Vec<OpKind> = kinds.collect();
    for (name, disk, work) in every_maker() {
        let mut failures = 0;
        for (kind, nth) in kinds
            .iter()
            .flat_map(|kind| (1..=40).map(move |nth| (*kind, nth)))
        {
            let disk = copy(&disk);
            disk.inject(Fault::fail(kind, Errno::IO).nth(nth));
            if work(&disk).is_err() {
                failures += 1;
                let names = disk.names("/").unwrap();
                let left = names.iter().find(|name| name.contains("incomplete"));
                assert_eq!(left, None, "{name}, {kind:?} {nth}");
            }
        }
        assert!(failures > 5, "{name}: {failures} operations failed");
    }
}
