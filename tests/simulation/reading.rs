//! One fault in a log, of every kind: what a start says of it, and what `repair` saves.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bsd::engine::Engine;
use bsd::storage::convert::backup::{back_up, restore};
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::{Crash, OpKind, Operation};
use bsd::storage::format::{
    Entries, Entry, FrameBuilder, FrameKind, Identity, Record, SegmentHeader, file_name,
    parse_file_name, segment_header,
};
use bsd::storage::inspect::{
    Inspection, JobRecord, Leftover, Loss, RecordPlace, read_records, repair,
};
use bsd::storage::{OpenError, SimFs, SyncPolicy};
use bsd::types::{JobId, Now, Position, SegmentId};

use super::damage::segments;
use super::driver::{DIR, Driver, Step, after_restart, options, path};

const PAGE: usize = 4096;

pub(super) fn put(size: usize) -> Step {
    Step::put(1, [1, 0, 1000], size)
}

pub(super) fn begin(sync: SyncPolicy) -> Driver {
    Driver::begin(&SimFs::new(1), sync).unwrap_or_else(|stop| panic!("{stop}"))
}

pub(super) fn run(driver: &mut Driver, steps: &[Step]) {
    driver.run(steps).unwrap_or_else(|stop| panic!("{stop}"));
}

pub(super) fn go_idle(driver: &mut Driver) {
    run(driver, &[Step::Turn { ms: 150 }; 4]);
}

/// The disk after the server is gone: after a clean stop, or killed.
pub(super) fn ended(driver: &mut Driver, is_clean: bool) -> SimFs {
    if is_clean {
        driver.stop().unwrap_or_else(|stop| panic!("{stop}"));
    } else {
        driver.kill();
    }
    driver.now = after_restart(driver.now);
    driver.fs.crash_image(Crash::KeepAll)
}

/// An empty log in its place would give out its ids again, and hide the loss.
#[test]
fn g31_a_directory_whose_segments_are_all_gone_is_refused_and_left_as_it_is() {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &busy_life());
    let fs = ended(&mut driver, false);
    for name in segments(&fs) {
        fs.remove(path(&name)).expect("a segment");
    }
    let left = fs.names(DIR).expect("names");
    assert!(
        left.iter().any(|name| name.starts_with("spare-")),
        "{left:?}"
    );
    let refused = Engine::open(&options(&fs, SyncPolicy::Always), driver.now);
    let said = match refused {
        Err(OpenError::Foreign { what, .. }) => what,
        other => panic!("{:?}", other.map(|_| ())),
    };
    assert!(said.starts_with("a log was here (spare-"), "{said}");
    assert_eq!(fs.names(DIR).expect("names"), left);
    match Inspection::read(door(&fs), Path::new(DIR), &mut |_, _| ()) {
        Err(OpenError::Foreign { what, .. }) => assert_eq!(what, said),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

/// Zero every page of a log, one at a time, from the last `count` on: the start refuses, or it says
/// that it cut a tail and nothing is missing.
fn no_page_is_lost_in_silence(driver: &Driver, fs: &SimFs, count: usize) -> usize {
    let jobs = driver.history.now().jobs.len() as u64;
    let mut lost = 0;
    for name in segments(fs) {
        let bytes = fs.read(path(&name)).expect("a segment");
        let pages = bytes.chunks(PAGE).enumerate();
        let used: Vec<usize> = pages
            .filter(|(_, page)| page.iter().any(|byte| *byte != 0))
            .map(|(page, _)| page)
            .collect();
        for page in &used[used.len().saturating_sub(count)..] {
            let image = fs.crash_image(Crash::KeepAll);
            let mut bytes = bytes.clone();
            let end = (page * PAGE + PAGE).min(bytes.len());
            bytes[page * PAGE..end].fill(0);
            image.write(path(&name), &bytes).expect("a segment");
            lost += 1;
            match Engine::open(&options(&image, SyncPolicy::Always), driver.now) {
                Err(OpenError::Damaged { .. }) => {}
                Err(other) => panic!("page {page} of {name}: {other}"),
                Ok(engine) => {
                    let found = engine.queue().stats().jobs.total();
                    assert_eq!(found, jobs, "page {page} of {name} of {used:?}");
                    assert!(engine.recovery().torn.is_some(), "page {page} of {name}");
                }
            }
        }
    }
    lost
}

#[test]
fn f32_of_a_log_that_was_marked_no_page_is_lost_in_silence() {
    for sync in [
        SyncPolicy::Always,
        SyncPolicy::Interval(20),
        SyncPolicy::Never,
    ] {
        for is_clean in [false, true] {
            let mut driver = begin(sync);
            for _ in 0..100 {
                run(&mut driver, &[put(100); 10]);
                run(&mut driver, &[Step::Turn { ms: 0 }]);
            }
            if !is_clean {
                go_idle(&mut driver);
            }
            let fs = ended(&mut driver, is_clean);
            let lost = no_page_is_lost_in_silence(&driver, &fs, usize::MAX);
            assert!(lost > 30, "{lost} pages are not much");
        }
    }
}

/// The last frame of data may end anywhere in its page.
#[test]
fn f32_it_is_the_same_wherever_in_its_page_the_log_ends() {
    for size in (0..2 * PAGE).step_by(8) {
        let mut driver = begin(SyncPolicy::Always);
        run(&mut driver, &[put(10), Step::Turn { ms: 0 }, put(size)]);
        go_idle(&mut driver);
        let is_clean = size % 16 == 0;
        let fs = ended(&mut driver, is_clean);
        no_page_is_lost_in_silence(&driver, &fs, 3);
    }
}

/// F33: the operating system decides when to write, and yet everything before an idle time is known
/// to have been there.
#[test]
fn f33_without_syncs_too_an_idle_log_is_durable_and_damage_to_it_is_not_called_a_crash() {
    let mut driver = begin(SyncPolicy::Never);
    run(&mut driver, &[put(100); 300]);
    go_idle(&mut driver);
    driver.kill();
    driver.now = after_restart(driver.now);
    let fs = driver.fs.crash_image(Crash::DropUnsynced);
    let opened = Engine::open(&options(&fs, SyncPolicy::Never), driver.now);
    let engine = opened.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(engine.queue().stats().jobs.total(), 300);
    drop(engine);
    let fs = driver.fs.crash_image(Crash::DropUnsynced);
    let name = segments(&fs).remove(0);
    fs.flip_bit(path(&name), 8 * 3000).expect("a bit");
    let refused = Engine::open(&options(&fs, SyncPolicy::Never), driver.now);
    assert!(matches!(refused, Err(OpenError::Damaged { .. })));
}

/// A segment that has no room for a marker is left: the next one's list says where it ends.
#[test]
fn f32_also_where_the_segment_is_nearly_full() {
    for left in (40..6000).step_by(216) {
        let mut driver = begin(SyncPolicy::Always);
        run(&mut driver, &[put(10); 3]);
        go_idle(&mut driver);
        let name = segments(&driver.fs).remove(0);
        let bytes = driver.fs.read(path(&name)).expect("a segment");
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        let Some(size) = bytes.len().checked_sub(used + left + 200) else {
            panic!("{left}");
        };
        run(&mut driver, &[put(size)]);
        go_idle(&mut driver);
        let fs = ended(&mut driver, left % 432 == 40);
        no_page_is_lost_in_silence(&driver, &fs, 3);
    }
}

// What `repair` keeps.

/// Where a record lies: its file, and its bytes there.
type Spot = (String, Range<u64>);

/// A job that is alive: where its put lies, and the last record of its state.
struct Live {
    put: Spot,
    update: Option<Spot>,
    job: JobRecord,
}

/// A log as it is before anything happens to it.
pub(super) struct Sound {
    pub(super) now: Now,
    pub(super) files: BTreeMap<String, Vec<u8>>,
    live: BTreeMap<JobId, Live>,
    /// Where deletes lie.
    deleted: BTreeMap<JobId, Spot>,
    /// Frames with lists of files, their records included.
    lists: Vec<Spot>,
    /// Its end was marked: nothing in it can be lost in silence.
    is_marked: bool,
}

pub(super) fn door(fs: &SimFs) -> Arc<dyn Fs> {
    Arc::new(fs.clone())
}

pub(super) fn inspect(fs: &SimFs) -> Inspection {
    Inspection::read(door(fs), Path::new(DIR), &mut |_, _| ())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn files_of(fs: &SimFs) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| (name.clone(), fs.read(path(&name)).expect("a file"));
    segments(fs).into_iter().map(read).collect()
}

impl Sound {
    pub(super) fn of(fs: &SimFs, now: Now, is_marked: bool) -> Sound {
        let (mut puts, mut updates) = (BTreeMap::new(), BTreeMap::new());
        let (mut deleted, mut lists) = (BTreeMap::new(), Vec::new());
        let mut visit = |place: RecordPlace<'_>, record: &Record<'_>| {
            let from = u64::from(place.position.offset());
            let spot = (place.file.to_owned(), from..from + place.size as u64);
            match record {
                Record::Put { id, .. } => drop(puts.insert(*id, spot)),
                Record::Update { id, .. } => drop(updates.insert(*id, spot)),
                Record::Delete { id, .. } => drop(deleted.insert(*id, spot)),
                Record::Manifest { .. } | Record::Switch { .. } => lists.push(spot),
                _ => {}
            }
            true
        };
        let damages = read_records(door(fs), Path::new(DIR), &mut visit, &mut |_, _| ());
        assert_eq!(damages.expect("the log can be read"), []);
        let sound = inspect(fs);
        let live = sound.jobs().map(|summary| {
            let id = summary.id;
            let live = Live {
                put: puts[&id].clone(),
                update: updates.get(&id).cloned(),
                job: sound.read_job(id).expect("a job").expect("a job"),
            };
            (id, live)
        });
        Sound {
            now,
            files: files_of(fs),
            live: live.collect(),
            deleted,
            lists,
            is_marked,
        }
    }
}

/// One thing that happens to a log.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    Bit(String, u64),
    Zeros(String, Range<u64>),
    /// The header of one file is that of another.
    Header(String, String),
    /// Two files have exchanged these bytes.
    Exchanged(String, String, Range<u64>),
    /// These bytes of one file are those of another.
    Overwritten(String, String, Range<u64>),
    Deleted(String),
    Doubled(String, String),
    Renamed(String, String),
}

impl Fault {
    pub(super) fn happen(&self, sound: &Sound) -> SimFs {
        let mut files = sound.files.clone();
        match self {
            Fault::Bit(name, byte) => {
                files.get_mut(name).expect("a file")[*byte as usize] ^= 1 << (byte * 5 % 8);
            }
            Fault::Zeros(name, range) => {
                let range = range.start as usize..range.end as usize;
                files.get_mut(name).expect("a file")[range].fill(0);
            }
            Fault::Header(name, other) => {
                let header = sound.files[other][..segment_header::SIZE].to_vec();
                files.get_mut(name).expect("a file")[..header.len()].copy_from_slice(&header);
            }
            Fault::Exchanged(one, other, range) => {
                overwrite(&mut files, one, &sound.files[other], range);
                overwrite(&mut files, other, &sound.files[one], range);
            }
            Fault::Overwritten(name, other, range) => {
                overwrite(&mut files, name, &sound.files[other], range);
            }
            Fault::Deleted(name) => drop(files.remove(name)),
            Fault::Doubled(name, to) => drop(files.insert(to.clone(), files[name].clone())),
            Fault::Renamed(name, to) => {
                let bytes = files.remove(name).expect("a file");
                files.insert(to.clone(), bytes);
            }
        }
        let fs = SimFs::new(1);
        for (name, bytes) in &files {
            fs.write(path(name), bytes).expect("a file");
        }
        fs
    }

    /// Whether it hits what lies there.
    fn hits(&self, spot: &Spot) -> bool {
        let (file, range) = spot;
        match self {
            Fault::Bit(name, byte) => name == file && range.contains(byte),
            Fault::Zeros(name, zeros) | Fault::Overwritten(name, _, zeros) => {
                name == file && zeros.start < range.end && range.start < zeros.end
            }
            Fault::Deleted(name) => name == file,
            Fault::Header(..) | Fault::Exchanged(..) | Fault::Doubled(..) | Fault::Renamed(..) => {
                false
            }
        }
    }
}

/// Write these bytes of one file, as many of them as there are, over those of another.
fn overwrite(files: &mut BTreeMap<String, Vec<u8>>, name: &str, with: &[u8], range: &Range<u64>) {
    let file = files.get_mut(name).expect("a file");
    let end = file.len().min(with.len()) / 512 * 512;
    let range = (range.start as usize).min(end)..(range.end as usize).min(end);
    file[range.clone()].copy_from_slice(&with[range]);
}

/// Every single fault of a list, in every file.
fn faults(sound: &Sound) -> Vec<Fault> {
    let mut faults = Vec::new();
    let names: Vec<&String> = sound.files.keys().collect();
    for (nth, name) in names.iter().enumerate() {
        let (own, bytes) = (|| (*name).clone(), &sound.files[*name]);
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64 + 1;
        let header = 0..segment_header::SIZE as u64;
        faults.extend(header.clone().map(|byte| Fault::Bit(own(), byte)));
        // The first frame of each, that of the last a list.
        faults.extend(
            (header.end..header.end + 60)
                .step_by(3)
                .map(|byte| Fault::Bit(own(), byte)),
        );
        faults.extend((0..used).step_by(641).map(|byte| Fault::Bit(own(), byte)));
        for size in [1, 8, 24, 40, 64, 96, 512] {
            faults.push(Fault::Zeros(own(), 0..size));
        }
        for page in (0..used).step_by(PAGE) {
            let end = (page + PAGE as u64).min(bytes.len() as u64);
            faults.push(Fault::Zeros(own(), page..end));
        }
        let others = names.iter().enumerate().filter(|(other, _)| *other != nth);
        faults.extend(others.map(|(_, other)| Fault::Header(own(), (*other).clone())));
        faults.push(Fault::Deleted(own()));
        let (first, generation) = parse_file_name(name).expect("a segment's name");
        for to in [
            file_name(first, generation + 1),
            file_name(SegmentId(first.0 + 1), generation),
            file_name(SegmentId(first.0 + 1000), 0),
        ] {
            if !sound.files.contains_key(&to) {
                faults.push(Fault::Doubled(own(), to.clone()));
                faults.push(Fault::Renamed(own(), to));
            }
        }
    }
    for (file, range) in &sound.lists {
        // The header of the frame, its records, and what follows them.
        let around = range.start.saturating_sub(32)..range.end + 8;
        faults.extend(around.step_by(3).map(|byte| Fault::Bit(file.clone(), byte)));
    }
    faults
}

/// Everything intact is found after a fault, and the report about the rest is true.
pub(super) fn is_kept(sound: &Sound, fault: &Fault) {
    let fs = fault.happen(sound);
    let opened = Engine::open(
        &options(&fs.crash_image(Crash::KeepAll), SyncPolicy::Always),
        sound.now,
    );
    let found = match Inspection::read(door(&fs), Path::new(DIR), &mut |_, _| ()) {
        Ok(found) => found,
        Err(error) => panic!("{fault:?}: {error}"),
    };
    assert_eq!(
        found.is_intact(),
        opened.is_ok(),
        "{fault:?}: {:#?}",
        found.losses
    );
    let is_torn = found.torn.is_some();
    let named =
        |id: JobId, is: fn(&Loss, JobId) -> bool| found.losses.iter().any(|loss| is(loss, id));
    let is_unknown = found
        .losses
        .iter()
        .any(|loss| loss.unknown_bytes != Some(0));
    for (id, live) in &sound.live {
        let is_hit = fault.hits(&live.put);
        // Nothing attests the end of a log that was not marked.
        let is_tail = is_torn && !sound.is_marked;
        assert!(
            is_hit || found.has_job(*id) || is_tail,
            "{fault:?}: job {id} is lost: {:#?}",
            found.losses
        );
        let is_missing = |loss: &Loss, id: JobId| {
            let ids = loss.missing.iter().chain(&loss.perhaps_missing);
            loss.missing_from.is_some_and(|from| from <= id)
                || ids.into_iter().any(|ids| ids.contains(&id.0))
        };
        if !found.has_job(*id) {
            let is_said = named(*id, is_missing) || is_tail;
            assert!(
                is_said,
                "{fault:?}: nothing is said of job {id}: {:#?}",
                found.losses
            );
            continue;
        }
        let is_update_hit = live.update.as_ref().is_some_and(|spot| fault.hits(spot));
        let job = found.read_job(*id).expect("a job").expect("a job");
        if job == live.job {
            assert!(
                !named(*id, |loss, id| loss.older.contains(&id)),
                "{fault:?}: job {id} is not older"
            );
        } else {
            assert!(
                is_update_hit || is_tail,
                "{fault:?}: job {id} is {job:?} and was {:?}",
                live.job
            );
            let is_said = named(*id, |loss, id| loss.older.contains(&id)) || is_unknown;
            assert!(is_said || is_tail, "{fault:?}: job {id} is older");
        }
    }
    for (id, delete) in &sound.deleted {
        let is_back = found.has_job(*id) && (sound.is_marked || !is_torn);
        assert!(
            !is_back || fault.hits(delete),
            "{fault:?}: job {id} is back"
        );
        let is_said = named(*id, |loss, id| loss.again.contains(&id));
        assert!(is_back || !is_said, "{fault:?}: job {id} is not back");
        assert!(
            !is_back || is_said || is_unknown || is_torn,
            "{fault:?}: job {id} is back in silence"
        );
    }
    for loss in &found.losses {
        for id in loss.missing.iter().flat_map(Clone::clone).map(JobId) {
            let was = sound.live.contains_key(&id)
                || sound.deleted.get(&id).is_some_and(|spot| fault.hits(spot));
            assert!(
                was && !found.has_job(id),
                "{fault:?}: job {id} is not missing: {:#?}",
                found.losses
            );
        }
    }
}

/// A log of several files, some of which compaction has written, whose open segment has switched
/// files; it went idle, and the server was killed.
pub(super) fn busy_life() -> Vec<Step> {
    let mut steps = Vec::new();
    for nth in 0..150 {
        steps.extend([put(300 + nth * 37 % 2500), put(80 + nth % 50)]);
        match nth % 5 {
            0 => steps.extend([Step::Reserve { worker: 0 }, Step::Bury { nth: 0, pri: 3 }]),
            1 => steps.push(Step::Kick { tube: 1, bound: 1 }),
            2 => steps.push(Step::Delete { nth: nth * 7 }),
            _ => steps.extend([Step::Delete { nth: 3 }, Step::Delete { nth: nth * 31 }]),
        }
        steps.push(Step::Turn { ms: 1 });
    }
    steps
}

#[test]
fn f29_f30_whatever_single_fault_hits_a_log_every_job_that_is_intact_is_kept() {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &busy_life());
    go_idle(&mut driver);
    let fs = ended(&mut driver, false);
    let sound = Sound::of(&fs, driver.now, true);
    let compacted = sound
        .files
        .keys()
        .filter(|name| !name.ends_with(".00000"))
        .count();
    assert!(
        compacted > 0 && sound.lists.len() > 1,
        "{:?} {:?}",
        sound.files.keys(),
        sound.lists
    );
    assert!(sound.live.len() > 50 && sound.deleted.len() > 20);
    let faults = faults(&sound);
    assert!(faults.len() > 500, "{}", faults.len());
    faults.iter().for_each(|fault| is_kept(&sound, fault));
}

/// A crash in the middle of a compaction leaves what it read and what it wrote side by side.
#[test]
fn f29_it_is_the_same_where_a_crash_has_left_files_that_the_log_does_not_list() {
    let steps = busy_life();
    let (mut tried, mut operation) = (0, 150);
    loop {
        let fs = SimFs::new(1);
        fs.crash_at(operation);
        operation += 3;
        let mut driver =
            Driver::begin(&fs, SyncPolicy::Always).unwrap_or_else(|stop| panic!("{stop}"));
        if driver.run(&steps).is_ok() {
            break;
        }
        let image = fs.crash_image(Crash::KeepAll);
        let is_left = |leftover: &Leftover| leftover.what.contains("does not list");
        if !inspect(&image).leftovers.iter().any(is_left) {
            continue;
        }
        operation += 50;
        tried += 1;
        let sound = Sound::of(&image, after_restart(driver.now), false);
        let step = faults(&sound).len() / 150;
        faults(&sound)
            .iter()
            .step_by(step.max(1))
            .for_each(|fault| is_kept(&sound, fault));
    }
    assert!(tried > 1, "{tried} such logs");
}

/// `repair` writes what was found.
#[test]
fn f29_a_repaired_log_has_every_job_that_is_intact() {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &busy_life());
    go_idle(&mut driver);
    let fs = ended(&mut driver, false);
    let sound = Sound::of(&fs, driver.now, true);
    for fault in faults(&sound).iter().step_by(37) {
        let fs = fault.happen(&sound);
        let found = inspect(&fs);
        let new = Path::new("/new");
        let written = repair::write(&found, door(&fs), new, sound.now, &mut |_, _| ());
        let written = written.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(written.unreadable.is_empty(), "{fault:?}");
        let repaired = Inspection::read(door(&fs), new, &mut |_, _| ()).expect("a log");
        let jobs = |log: &Inspection| -> Vec<JobRecord> {
            let read = |id| log.read_job(id).expect("a job").expect("a job");
            log.jobs().map(|job| read(job.id)).collect()
        };
        assert_eq!(jobs(&repaired), jobs(&found), "{fault:?}");
    }
}

// The content of a directory.

/// The server does not start, and nothing is changed by that.
fn refused(fs: &SimFs) -> OpenError {
    let before = (fs.names(DIR).expect("a directory"), files_of(fs));
    let opened = Engine::open(&options(fs, SyncPolicy::Always), super::driver::beginning());
    let Err(error) = opened else {
        panic!("{:?} was taken for a new directory", before.0);
    };
    let mut after = fs.names(DIR).expect("a directory");
    after.retain(|name| name != "lock");
    assert_eq!((after, files_of(fs)), before);
    error
}

#[test]
fn f31_a_directory_with_a_segments_name_that_is_not_understood_is_not_a_new_one() {
    for name in [
        "segment-0000000001.00000",
        "segment-4294967295.00000",
        "segment-99999999999.00000",
        "segment-1",
    ] {
        for content in [&b""[..], b"something else", &[0; 70_000]] {
            let fs = SimFs::new(1);
            fs.write(path(name), content).expect("a file");
            refused(&fs);
        }
    }
}

/// A link to a segment elsewhere, say on a larger disk.
#[test]
fn f31_a_segment_that_is_a_link_is_neither_followed_nor_replaced() {
    let temp = tempfile::tempdir().expect("a directory");
    let dir = temp.path().join("data");
    let options = bsd::Options {
        dir: Some(dir.clone()),
        ..bsd::Options::default()
    };
    let mut queue = bsd::JobQueue::open_with(&options).expect("a queue");
    queue
        .put("default", b"1", bsd::PutOptions::default())
        .expect("a put");
    queue.close().expect("a clean stop");
    let (own, other) = (
        dir.join("segment-0000000001.00000"),
        temp.path().join("moved"),
    );
    std::fs::rename(&own, &other).expect("a rename");
    std::os::unix::fs::symlink(&other, &own).expect("a link");
    let refused = bsd::JobQueue::open_with(&options);
    let Err(OpenError::Damaged { damages, .. }) = refused else {
        panic!("the link was followed or replaced");
    };
    assert!(
        damages[0].what.contains("no regular file"),
        "{}",
        damages[0]
    );
    assert_eq!(std::fs::read_link(&own).expect("a link"), other);
    std::fs::rename(&other, &own).expect("a rename");
    let queue = bsd::JobQueue::open_with(&options).expect("a queue");
    queue.close().expect("a clean stop");
}

/// Strangers under the names that come next: nothing is made over them, and they take no numbers
/// that are far away.
#[test]
fn f31_t08_strangers_keep_their_names_behind_a_torn_tail_and_in_compaction() {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &[put(100), Step::Turn { ms: 0 }]);
    driver.kill();
    driver.now = after_restart(driver.now);
    let fs = driver.fs.crash_image(Crash::KeepAll);
    let name = segments(&fs).remove(0);
    let mut bytes = fs.read(path(&name)).expect("a segment");
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    bytes[used + 9] = 1;
    fs.write(path(&name), &bytes).expect("a segment");
    let strangers = [
        "segment-0000000001.00001",
        "segment-0000000002.00000",
        "segment-0000000003.00001",
        "segment-0000000004.00001",
        "segment-0000000004.00002",
        "segment-4294967295.00000",
    ];
    for name in strangers {
        fs.write(path(name), name.as_bytes()).expect("a file");
    }
    let last = driver.history.last();
    let opened = Driver::open(&fs, SyncPolicy::Always, driver.now, &driver.history, last);
    let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
    assert!(driver.engine().recovery().torn.is_some());
    assert!(
        segments(&fs).contains(&file_name(SegmentId(5), 0)),
        "{:?}",
        segments(&fs)
    );
    run(&mut driver, &busy_life());
    run(&mut driver, &[Step::Restart, put(5), Step::Turn { ms: 0 }]);
    let names = segments(&fs);
    let compacted = names
        .iter()
        .any(|name| !name.ends_with(".00000") && !strangers.contains(&&name[..]));
    assert!(compacted, "{names:?}");
    for name in strangers {
        assert_eq!(fs.read(path(name)).expect("a file"), name.as_bytes());
    }
}

#[test]
fn f36_a_stranger_with_a_segments_name_does_not_keep_a_backup_from_being_taken() {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &busy_life());
    let fs = &driver.fs;
    let jobs = driver.history.now().jobs.len();
    fs.write(path("segment-4294967295.00000"), b"a stranger")
        .expect("a file");
    back_up(
        &door(fs),
        Path::new(DIR),
        Path::new("/backup"),
        driver.now,
        &mut |_, _| (),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    restore(
        &door(fs),
        Path::new("/backup"),
        Path::new("/restored"),
        driver.now,
        &mut |_, _| (),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let restored = Inspection::read(door(fs), Path::new("/restored"), &mut |_, _| ());
    assert_eq!(restored.expect("a log").job_count(), jobs);
}

/// The newest segment is not a stranger because its header cannot be read: its jobs would be
/// missing in silence.
#[test]
fn f36_a_backup_of_a_log_whose_newest_segment_has_no_sound_header_is_refused() {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &busy_life());
    let fs = &driver.fs;
    let newest = segments(fs).pop().expect("a segment");
    fs.flip_bit(path(&newest), 100).expect("a bit");
    let refused = back_up(
        &door(fs),
        Path::new(DIR),
        Path::new("/backup"),
        driver.now,
        &mut |_, _| (),
    );
    assert!(
        matches!(refused, Err(OpenError::Damaged { .. })),
        "{refused:?}"
    );
}

/// A torn tail that a start saved may not have reached the disk, except for its size.
#[test]
fn f36_a_saved_tail_is_known_by_its_bytes_and_not_by_its_size() {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &[put(100), Step::Turn { ms: 0 }]);
    driver.kill();
    let fs = driver.fs.crash_image(Crash::KeepAll);
    let name = segments(&fs).remove(0);
    let mut bytes = fs.read(path(&name)).expect("a segment");
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    let at = (used + 1).next_multiple_of(8);
    bytes[at..at + 900].fill(7);
    fs.write(path(&name), &bytes).expect("a segment");
    let saved = format!("cut-0000000001-{at:010}");
    fs.write(path(&saved), &[0; 900]).expect("a file");
    Engine::open(&options(&fs, SyncPolicy::Always), driver.now)
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(fs.read(path(&saved)).expect("a file") == [7; 900]);
}

/// A log that ends in a torn tail, and two unacknowledged segments after it.
fn with_segments_behind_a_torn_tail() -> (Driver, SimFs) {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &[put(100), Step::Turn { ms: 0 }]);
    driver.kill();
    let fs = driver.fs.crash_image(Crash::KeepAll);
    let name = segments(&fs).remove(0);
    let mut bytes = fs.read(path(&name)).expect("a segment");
    let header = SegmentHeader::decode(&bytes).expect("a header");
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    bytes[used + 9] = 1;
    fs.write(path(&name), &bytes).expect("a segment");
    for number in [2, 3] {
        let (first, last) = (SegmentId(number), SegmentId(number));
        let identity = Identity {
            first,
            last,
            ..header.identity
        };
        let own = SegmentHeader { identity, ..header };
        let entry = |number| Entry {
            first: SegmentId(number),
            last: SegmentId(number),
            generation: 0,
            end: 4096,
        };
        let entries: Vec<Entry> = (1..number).map(entry).collect();
        let mut frame = FrameBuilder::default();
        frame.begin(Vec::new(), identity.seed(), segment_header::SIZE as u32);
        frame.push(&Record::Manifest {
            next_id: JobId(2),
            entries: Entries::List(&entries),
        });
        let (frame, _) = frame.finish(FrameKind::Data, Position::ZERO, 0);
        let mut bytes = own.encode().to_vec();
        bytes.extend_from_slice(&frame);
        bytes.resize(65_536, 0);
        fs.write(path(identity.file_name()), &bytes)
            .expect("a file");
    }
    (driver, fs)
}

/// T8: two segments after a torn tail are set aside one after the other, each durably before the
/// next: after a crash in between, the older name must not be gone while the newer one is still
/// there.
#[test]
pub(super) fn t08_segments_behind_a_torn_tail_are_set_aside_one_at_a_time() {
    let (driver, fs) = with_segments_behind_a_torn_tail();
    fs.clear_trace();
    Engine::open(&options(&fs, SyncPolicy::Always), driver.now)
        .unwrap_or_else(|error| panic!("{error}"));
    let names = |operation: &Operation| matches!(operation.kind, OpKind::Rename | OpKind::SyncDir);
    let trace: Vec<Operation> = fs.trace().into_iter().filter(names).collect();
    let aside = |number: u32| {
        let name = path(file_name(SegmentId(number), 0));
        let is_it = |one: &Operation| one.kind == OpKind::Rename && *one.path == *name;
        trace.iter().position(is_it).expect("it was set aside")
    };
    let (third, second) = (aside(3), aside(2));
    let is_synced = |from: usize| trace[from + 1].kind == OpKind::SyncDir;
    assert!(
        third < second && is_synced(third) && is_synced(second),
        "{trace:?}"
    );
}

/// If its header is damaged, its content is unknown, whatever frames are in it: it is left alone,
/// and the other is set aside.
#[test]
pub(super) fn t08_a_segment_with_a_damaged_header_behind_a_torn_tail_keeps_its_name_and_bytes() {
    for (damaged, other) in [(2, 3), (3, 2)] {
        for at in 0..segment_header::SIZE as u64 {
            let (mut driver, fs) = with_segments_behind_a_torn_tail();
            let name = |number| file_name(SegmentId(number), 0);
            fs.flip_bit(path(name(damaged)), 8 * at).expect("a bit");
            let before = fs.read(path(name(damaged))).expect("a file");
            driver.now = after_restart(driver.now);
            let last = driver.history.last();
            let opened = Driver::open(&fs, SyncPolicy::Always, driver.now, &driver.history, last);
            let mut driver = opened.unwrap_or_else(|stop| panic!("byte {at}: {stop}"));
            assert!(driver.engine().recovery().torn.is_some());
            run(&mut driver, &[put(5), Step::Turn { ms: 0 }, Step::Restart]);
            let left = fs.read(path(name(damaged))).expect("it is still there");
            assert!(left == before, "segment {damaged}, byte {at}: other bytes");
            let names = fs.names(DIR).expect("names");
            let is_aside = names.contains(&format!("cut-{}", name(other)));
            assert!(is_aside && !names.contains(&name(other)), "{names:?}");
        }
    }
}
