//! A log with any damage: a start and a verification agree on it, neither changes what it does not
//! understand, and a repair is sound and leaves out nothing that can be read.

use std::path::Path;
use std::sync::Arc;

use super::comparable::{Seen, readable, recorded, seen};
use super::forge::{Files, any_log, damage};
use super::{DIR, Input, NEW, beginning, contents, inspect, open, sound};
use crate::attributes::without_tube;
use crate::engine::Engine;
use crate::storage::disk::Fs;
use crate::storage::format::parse_file_name;
use crate::storage::inspect::{Inspection, SettingRecord, repair};
use crate::storage::{OpenError, SimFs};
use crate::types::{JobId, SettingClass};

/// More damages than this find no more.
const DAMAGES_MAX: usize = 12;

/// If an entry of this name exists, a start asks for `--import`.
const IMPORT_UNDER_WAY: &str = "beanstalkd-import";

/// Panics unless all properties of a damaged log hold for the one that `data` describes.
pub fn any_directory(data: &[u8]) {
    let mut input = Input(data);
    let sound = any_log(&mut input);
    let (mut files, mut is_forged) = (sound.files.clone(), false);
    for _ in 0..DAMAGES_MAX {
        if input.is_empty() {
            break;
        }
        is_forged |= damage(&mut files, &mut input);
    }
    let jobs = agree(&files);
    // Bytes with a right checksum, not forged, are what was put.
    let is_as_put = |(id, (_, _, _, body)): (&JobId, &_)| *body == sound.body(*id);
    assert!(is_forged || jobs.iter().all(is_as_put), "another body");
}

/// A start and an inspection find the same; returns the jobs.
fn agree(files: &Files) -> Seen {
    let disk = disk(files);
    let read = inspect(&disk, DIR);
    let jobs = read.as_ref().map(readable).unwrap_or_default();
    let jobs = recorded(&jobs);
    if let Ok(log) = &read {
        held_still(&disk, log);
        repaired(&disk, log);
    }
    assert!(contents(&disk, DIR) == *files, "looking changed a file");
    let ids: Vec<JobId> = jobs.keys().copied().collect();
    match (starts(files, &ids), &read) {
        (Ok(started), Ok(log)) => {
            assert!(log.is_intact(), "started on: {:?}", log.losses);
            assert_eq!(started, jobs);
        }
        (Err(OpenError::Damaged { damages, .. }), Ok(log)) => {
            assert!(!log.is_intact(), "not started on: {damages:?}");
        }
        // If there is no log, one is made.
        (Ok(jobs), Err(OpenError::Foreign { .. })) => assert!(jobs.is_empty() && !has_log(files)),
        (Err(OpenError::Foreign { .. }), Err(OpenError::Foreign { .. })) => {}
        // A server must finish an interrupted import, whatever else is there.
        (Err(OpenError::Foreign { .. }), _) if files.contains_key(IMPORT_UNDER_WAY) => {}
        (started, read) => panic!("a start says {started:?}, a look says {read:?}"),
    }
    jobs
}

fn disk(files: &Files) -> SimFs {
    let disk = SimFs::new(1);
    sound(disk.create_dir_all(Path::new(DIR)));
    for (name, bytes) in files {
        sound(disk.write(Path::new(DIR).join(name), bytes));
    }
    disk
}

fn has_log(files: &Files) -> bool {
    files.keys().any(|name| parse_file_name(name).is_some())
}

/// A snapshot of an intact log, as if a server were using it, has the same content.
fn held_still(disk: &SimFs, log: &Inspection) {
    let live = Inspection::read_live(Arc::new(disk.clone()), Path::new(DIR), &mut |_, _| ());
    if log.is_intact() {
        assert_eq!(readable(&sound(live)), readable(log));
    }
}

/// A repair holds every readable job, unchanged, and nothing else; and is intact.
fn repaired(disk: &SimFs, log: &Inspection) {
    let (fs, now) = (Arc::new(disk.clone()), beginning());
    let repaired = sound(repair::write(log, fs, Path::new(NEW), now, &mut |_, _| ()));
    assert_eq!(repaired.unreadable, []);
    let new = sound(inspect(disk, NEW));
    assert!(new.is_intact(), "{:?}", new.losses);
    let jobs = readable(log);
    assert_eq!(readable(&new), jobs);
    assert_eq!(new.buried(), log.buried());
    assert!(new.pauses().eq(log.pauses()));
    assert_eq!(beyond_in(&new), beyond_in(log));
    assert!(new.next_id >= repaired.next_id);
    assert!(new.next_id >= log.next_id.min(JobId(u64::MAX - 1))); // the greatest that a log can have
    drop(new);
    let mut engine = sound(open(disk, NEW, now));
    assert_eq!(seen(&mut engine, now, jobs.keys()), recorded(&jobs));
}

/// The jobs that a start finds are these, and they are there afterwards; a refused start changes
/// nothing.
fn starts(files: &Files, ids: &[JobId]) -> Result<Seen, OpenError> {
    let (disk, now) = (disk(files), beginning());
    let mut engine = open(&disk, DIR, now).inspect_err(|_| {
        let mut left = contents(&disk, DIR);
        if !files.contains_key("lock") {
            left.remove("lock");
        }
        assert!(left == *files, "a start that was refused changed a file");
    })?;
    let jobs = seen(&mut engine, now, ids);
    let beyond = beyond_of(&engine);
    drop(engine);
    let again = sound(inspect(&disk, DIR));
    assert!(again.is_intact(), "after a start: {:?}", again.losses);
    assert_eq!(recorded(&readable(&again)), jobs);
    assert_eq!(beyond_in(&again), beyond);
    Ok(jobs)
}

/// The attributes of jobs, without the tubes, and the settings.
type Beyond = (Vec<(JobId, Vec<u8>)>, Vec<SettingRecord>);

fn beyond_of(engine: &Engine) -> Beyond {
    let list = |id| engine.queue().attributes(id).map(without_tube);
    let mut lists: Vec<_> = engine
        .queue()
        .ids()
        .filter_map(|id| Some((id, list(id)?)))
        .filter(|(_, list)| !list.is_empty())
        .collect();
    lists.sort_unstable();
    let of = |class| {
        let all = engine.settings(class);
        all.map(move |(name, value)| SettingRecord {
            class,
            name: name.to_owned(),
            value: value.to_vec(),
        })
    };
    (lists, SettingClass::ALL.into_iter().flat_map(of).collect())
}

fn beyond_in(log: &Inspection) -> Beyond {
    let jobs = readable(log).into_values();
    let lists = jobs.map(|job| (job.id, job.attributes));
    let lists = lists.filter(|(_, list)| !list.is_empty()).collect();
    (lists, log.settings().map(sound).collect())
}
