//! Rare states of a log: records that contradict each other, a list of files that is lost in the
//! middle of a compaction, bytes that the disk does not return where nothing is written yet, a new
//! log without room. The start refuses the log or continues; the tools report it.

use std::path::Path;
use std::sync::Arc;

use bsd::storage::Damage;
use bsd::storage::convert::backup;
use bsd::storage::convert::beanstalkd::export;
use bsd::storage::convert::build::Build;
use bsd::storage::convert::load::{Load, LoadError};
use bsd::storage::convert::offline;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::{Crash, Fault, OpKind};
use bsd::storage::format::{Record, parse_file_name, segment_header};
use bsd::storage::inspect::{Inspection, Loss, PauseRecord, read_records, repair};
use bsd::storage::{RealFs, SimFs};
use bsd::types::{Counters, JobId, JobState};
use bsd::{JobQueue, OpenError, PutOptions};
use rustix::io::Errno;

use crate::wal::{DIR, copy, inspect, jobs, log, now, options};

const SEGMENT_SIZE: u32 = 64 << 10;

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn put(id: u64, body: &[u8]) -> Record<'_> {
    Record::Put {
        id: JobId(id),
        created_wall_ns: now().wall_ns,
        pri: 1,
        delay: 0,
        ttr: 60,
        tube: "t",
        body,
    }
}

fn begin(disk: &SimFs) -> Result<Build, OpenError> {
    Build::begin(
        Arc::new(disk.clone()),
        Path::new("/new"),
        SEGMENT_SIZE,
        now(),
    )
}

fn open_error(disk: &SimFs, dir: &str) -> String {
    match JobQueue::open_with(&options(&copy(disk), dir)) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("a log that must not be opened was opened"),
    }
}

/// A log with this history, sound in each of its bytes, under the name that it has before it is
/// whole: it is not, for it contradicts itself. Only a crash leaves such a one, just before it is
/// removed.
fn contradictory(records: &[Record<'_>]) -> SimFs {
    let refused = |crash_at: u64| {
        let disk = SimFs::new(1);
        disk.crash_at(crash_at);
        let built = begin(&disk).and_then(|mut build| {
            records.iter().try_for_each(|record| build.append(record))?;
            build.finish()
        });
        (built.unwrap_err().to_string(), disk)
    };
    let (why, disk) = refused(u64::MAX);
    assert!(why.contains("contradicts"), "{why}");
    assert!(disk.names("/new").is_err(), "it got its name all the same");
    let has_segment = |disk: &SimFs| {
        let names = disk.names("/new.incomplete").unwrap_or_default();
        names.iter().any(|name| parse_file_name(name).is_some())
    };
    assert!(!has_segment(&disk), "it is still there");
    let images = (1..disk.operations()).rev();
    images
        .map(|operation| refused(operation).1.crash_image(Crash::KeepAll))
        .find(has_segment)
        .expect("it was there before it was removed")
}

/// Look at a log whose second record contradicts the first, and save what can be saved of it.
fn assert_told_and_saved(records: &[Record<'_>], words: &str) {
    let disk = contradictory(records);
    let dir = "/new.incomplete";
    let refused = open_error(&disk, dir);
    assert!(refused.contains("damaged"), "{refused}");
    let found = inspect(&disk, dir).unwrap();
    assert_eq!(found.losses.len(), 1, "{:?}", found.losses);
    let loss = found.losses[0].to_string();
    assert!(loss.contains(words), "{loss}");
    let jobs = jobs(&found);
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[&JobId(1)].body, b"first");
    let fs = Arc::new(disk.clone());
    repair::write(&found, fs, Path::new("/saved"), now(), &mut |_, _| ()).unwrap();
    let saved = inspect(&disk, "/saved").unwrap();
    assert!(saved.is_intact() && saved.job_count() == 1);
}

#[test]
fn a_record_that_contradicts_an_earlier_one_is_damage_and_the_rest_is_saved() {
    let first = put(1, b"first");
    assert_told_and_saved(&[first, put(1, b"again")], "is put a second time");
    assert_told_and_saved(&[first, put(0, b"none")], "no job can have the id 0");
}

#[test]
fn a_job_with_the_last_of_all_ids_is_damage_and_the_rest_is_saved() {
    let records = [put(1, b"first"), put(u64::MAX, b"none")];
    assert_told_and_saved(&records, "no job can have the id");
}

#[test]
fn a_new_log_for_which_there_is_no_room_says_so_and_is_not_there() {
    let (mut refused, mut room) = (0, 0);
    loop {
        let disk = SimFs::new(1);
        disk.set_quota(Some(room));
        let built = begin(&disk).and_then(|mut build| {
            (1..30).try_for_each(|id| build.append(&put(id, &[7; 9000])))?;
            build.skip_ids(JobId(1000))?;
            build.finish()
        });
        let Err(error) = built else {
            let new = inspect(&disk, "/new").unwrap();
            assert!(new.is_intact() && new.job_count() == 29);
            assert_eq!(new.next_id, JobId(1000));
            break;
        };
        let text = error.to_string();
        let is_about_room = ["full", "space", "room"]
            .iter()
            .any(|word| text.contains(word));
        assert!(is_about_room, "{room} bytes: {text}");
        assert!(disk.names("/new").is_err(), "{room} bytes: {text}");
        refused += u32::from(text.contains("the disk is full; free space"));
        room += 4 << 10;
    }
    assert!(refused > 10, "only {refused} were refused for want of room");
}

#[test]
fn a_directory_in_which_another_log_grows_is_left_to_it() {
    let disk = SimFs::new(1);
    let first = begin(&disk).unwrap();
    let second = begin(&disk).unwrap_err();
    assert!(matches!(second, OpenError::InUse { .. }), "{second}");
    drop(first);
    begin(&disk).unwrap().finish().unwrap();
}

#[test]
fn a_lock_that_the_disk_does_not_give_is_an_error_that_names_the_directory() {
    let disk = log();
    disk.inject(Fault::fail(OpKind::Lock, Errno::IO).for_ever());
    let error = JobQueue::open_with(&options(&disk, DIR))
        .unwrap_err()
        .to_string();
    assert!(error.contains("lock") && error.contains(DIR), "{error}");
    let error = begin(&disk).unwrap_err().to_string();
    assert!(error.contains("lock") && error.contains("/new"), "{error}");
}

#[test]
fn what_a_load_refuses_or_cannot_write_it_says_in_words() {
    let disk = SimFs::new(1);
    let fs = Arc::new(disk.clone());
    let mut load = Load::begin(fs, Path::new("/new"), SEGMENT_SIZE, now()).unwrap();
    let pause = PauseRecord {
        tube: "a b",
        until_wall_ns: 1,
        duration: 1,
    };
    let refused = load.pause(&pause).unwrap_err();
    assert!(refused.to_string().contains("\"a b\" is no tube name"));
    disk.set_quota(Some(disk.used()));
    let sound = log();
    let found = inspect(&sound, DIR).unwrap();
    let full = jobs(&found)
        .values()
        .cycle()
        .zip(1..)
        .find_map(|(job, id)| {
            let mut job = job.clone();
            job.id = JobId(id);
            load.job(&job, None).err()
        })
        .unwrap();
    assert!(matches!(full, LoadError::Open(_)), "{full:?}");
    assert!(full.to_string().contains("the disk is full"), "{full}");
}

/// The file in which a log continues.
fn newest(disk: &SimFs) -> String {
    let names = disk.names(DIR).unwrap().into_iter();
    let first_written = |name: &String| parse_file_name(name).is_some_and(|(_, made)| made == 0);
    names.filter(first_written).max().unwrap()
}

/// Put, delete and compact until there is nothing left to do, with a crash at `operation`.
fn churn(operation: u64) -> (SimFs, Vec<JobId>, bool) {
    let disk = SimFs::new(1);
    disk.crash_at(operation);
    let mut alive = Vec::new();
    let mut run = || -> Option<()> {
        let mut queue = JobQueue::open_with(&options(&disk, DIR)).ok()?;
        for round in 0..60 {
            let id = queue.put("t", &[round; 4000], PutOptions::default()).ok()?;
            alive.push(id);
            if round % 5 != 0 {
                alive.pop();
                queue.delete(id).ok()?;
            }
            queue.tick().ok()?;
        }
        Some(())
    };
    let is_over = run().is_some();
    (disk, alive, is_over)
}

/// The old files of a compaction hold all that the new one holds, and more: with the list lost they
/// are taken where all of them are there.
#[test]
fn a_list_that_is_lost_in_the_middle_of_a_compaction_costs_no_job_of_the_files_before() {
    let (mut operation, mut both) = (40, 0);
    loop {
        let (disk, alive, is_over) = churn(operation);
        if is_over {
            break;
        }
        operation += 1;
        let disk = disk.crash_image(Crash::KeepAll);
        let Ok(sound) = inspect(&disk, DIR) else {
            continue;
        };
        let name = newest(&disk);
        let number = parse_file_name(&name).unwrap().0;
        let in_older_files = |id: &&JobId| sound.has_job(**id);
        let expected: Vec<JobId> = alive.iter().filter(in_older_files).copied().collect();
        let is_unlisted =
            |leftover: &bsd::storage::inspect::Leftover| leftover.what.contains("does not list");
        both += u32::from(sound.leftovers.iter().any(is_unlisted));
        drop(sound);
        let list = path(&name);
        disk.flip_bit(&list, 8 * (segment_header::SIZE as u64 + 3))
            .unwrap();
        let found = inspect(&disk, DIR).unwrap();
        // A segment that was just begun holds nothing but its list: it is set aside.
        let is_set_aside = found.leftovers.iter().any(|it| it.name == name);
        assert!(!found.is_intact() || is_set_aside, "operation {operation}");
        for id in expected {
            assert!(
                found.has_job(id),
                "operation {operation}, segment {number}: job {id} is gone: {:#?}",
                found.losses
            );
        }
    }
    assert!(both > 3, "only {both} crashes in a compaction");
}

#[test]
fn bytes_that_the_disk_does_not_give_where_nothing_is_written_yet_are_told_of() {
    let disk = SimFs::new(1);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    let id = queue.put("t", b"body", PutOptions::default()).unwrap();
    let disk = copy(&disk);
    let name = newest(&disk);
    let size = disk.read(path(&name)).unwrap().len() as u64;
    disk.fail_reads(path(&name), size - 10..size - 2).unwrap();
    let found = inspect(&disk, DIR).unwrap();
    assert!(found.has_job(id));
    let told: Vec<String> = found.losses.iter().map(Loss::to_string).collect();
    assert!(
        told.iter()
            .any(|text| text.contains("the disk does not give")),
        "{told:?}"
    );
    assert!(JobQueue::open_with(&options(&disk, DIR)).is_err());
}

/// Zeros are read in their place, and a body of zeros has a right checksum: that it reads well
/// today does not mean that it is on the disk.
#[test]
fn bytes_that_the_disk_does_not_give_are_told_of_where_zeros_would_fit() {
    let disk = SimFs::new(1);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    let id = queue.put("t", &[0; 30_000], PutOptions::default()).unwrap();
    queue.close().unwrap();
    let name = newest(&disk);
    let gap = 14_000..14_010;
    disk.fail_reads(path(&name), gap.clone()).unwrap();
    let found = inspect(&disk, DIR).unwrap();
    assert!(found.has_job(id) && found.losses.len() == 1);
    let loss = &found.losses[0];
    assert!(
        loss.to_string().contains("the disk does not give"),
        "{loss}"
    );
    let (from, size) = loss.damage.range.unwrap();
    let is_there = from <= gap.start && gap.end <= from + size;
    assert!(is_there && size <= 8 << 10, "{size} bytes from {from} on");
}

#[test]
fn who_reads_records_may_stop_at_any_of_them() {
    let disk = log();
    let read = |most: usize| {
        let mut seen = 0;
        let mut visit = |_: bsd::storage::inspect::RecordPlace<'_>, _: &Record<'_>| {
            seen += 1;
            seen < most
        };
        let fs = Arc::new(disk.clone());
        let damages = read_records(fs, Path::new(DIR), &mut visit, &mut |_, _| ()).unwrap();
        assert!(damages.is_empty());
        seen
    };
    let all = read(usize::MAX);
    assert!(all > 500, "{all} records");
    // A frame is handed over whole, and of a file that compaction wrote it holds much.
    assert!(read(1) < all && read(all) == all);
}

#[test]
fn what_is_no_log_is_refused_and_beanstalkds_is_recognised() {
    let disk = SimFs::new(1);
    disk.create_dir_all(Path::new(DIR)).unwrap();
    let none = inspect(&disk, DIR).unwrap_err().to_string();
    assert!(none.contains("there is no log here"), "{none}");
    disk.write(path("binlog.1"), b"\x07\0\0\0").unwrap();
    let other = inspect(&disk, DIR).unwrap_err().to_string();
    assert!(other.contains("this is beanstalkd's log"), "{other}");
    assert!(matches!(
        Inspection::read(
            Arc::new(RealFs),
            Path::new("/nonexistent/log"),
            &mut |_, _| ()
        ),
        Err(OpenError::Io(_))
    ));
}

#[test]
fn what_a_start_saved_of_a_torn_tail_is_listed_and_is_no_damage() {
    let disk = SimFs::new(1);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    let id = queue.put("t", b"body", PutOptions::default()).unwrap();
    let disk = copy(&disk);
    let name = newest(&disk);
    let mut bytes = disk.read(path(&name)).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let end = end.next_multiple_of(8);
    bytes[end..end + 300].fill(0x77);
    disk.write(path(&name), &bytes).unwrap();
    JobQueue::open_with(&options(&disk, DIR))
        .unwrap()
        .close()
        .unwrap();
    let found = inspect(&disk, DIR).unwrap();
    assert!(found.is_intact() && found.has_job(id));
    let is_cut = |leftover: &&bsd::storage::inspect::Leftover| leftover.name.starts_with("cut-");
    let cut = found.leftovers.iter().find(is_cut).unwrap();
    assert!(cut.what.contains("never acknowledged") && cut.reserved == 0);
}

#[test]
fn a_loss_says_all_that_is_known_and_no_list_in_it_is_endless() {
    let loss = Loss {
        damage: Damage {
            file: "segment-0000000003.00000".to_owned(),
            range: Some((64, 800)),
            what: "the checksum does not hold".to_owned(),
            jobs: Vec::new(),
        },
        missing: vec![JobId(4).0..=4],
        perhaps_missing: vec![7..=9],
        missing_from: Some(JobId(50)),
        older: vec![JobId(2)],
        again: (100..120).map(JobId).collect(),
        plain: vec![JobId(3)],
        unknown_bytes: Some(24),
    };
    let text = loss.to_string();
    for words in [
        "segment-0000000003.00000 at byte 64 (800 bytes)",
        "; job 4 is missing",
        "; jobs 7 to 9 are missing or had been deleted",
        "; jobs from id 50 on are missing, if there were any",
        "; job 2 is back in an older state",
        "; jobs 100, 101,",
        "115 and 4 more would run again",
        "; job 3 has lost its attributes",
        "; 24 bytes may have held states or deletes of jobs put before",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text:?}");
    }
    let unknown = Loss {
        unknown_bytes: None,
        ..loss
    };
    assert!(
        unknown
            .to_string()
            .ends_with("; everything else in it is lost")
    );
    assert_eq!(unknown.missing_count(), 1);
}

/// Every state but the one that is never written.
#[test]
fn a_reserved_job_is_written_as_a_ready_one() {
    let disk = SimFs::new(1);
    let fs = Arc::new(disk.clone());
    let mut load = Load::begin(fs, Path::new("/new"), SEGMENT_SIZE, now()).unwrap();
    let sound = log();
    let mut job = jobs(&inspect(&sound, DIR).unwrap())
        .into_values()
        .next()
        .unwrap();
    job.state = JobState::Reserved;
    job.counters = Counters {
        reserves: 3,
        ..Counters::default()
    };
    load.job(&job, None).unwrap();
    assert_eq!(load.jobs(), 1);
    load.finish().unwrap();
    let new = jobs(&inspect(&disk, "/new").unwrap());
    let ready = &new[&job.id];
    assert_eq!(
        (ready.state, ready.counters),
        (JobState::Ready, job.counters)
    );
}

/// The progress that is reported during `work`.
fn told(work: impl FnOnce(&mut dyn FnMut(u64, u64))) -> Vec<(u64, u64)> {
    let mut told = Vec::new();
    work(&mut |done, total| told.push((done, total)));
    told
}

#[test]
fn progress_only_grows_and_never_passes_the_total_that_it_reaches() {
    let disk = log();
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let [log, kept, back, saved] = [DIR, "/kept", "/back", "/saved"].map(Path::new);
    let reading = told(|tell| drop(Inspection::read(fs.clone(), log, tell).unwrap()));
    let backup = told(|tell| assert!(backup::back_up(&fs, log, kept, now(), tell).is_ok()));
    let restore = told(|tell| assert!(backup::restore(&fs, kept, back, now(), tell).is_ok()));
    let old = inspect(&disk, DIR).unwrap();
    let repair = told(|tell| drop(repair::write(&old, fs.clone(), saved, now(), tell).unwrap()));
    for (what, told) in [
        ("reading", &reading),
        ("backup", &backup),
        ("restore", &restore),
        ("repair", &repair),
    ] {
        let total = told.first().unwrap().1;
        assert!(
            told.iter().all(|(done, all)| done <= all && *all == total),
            "{what}: {told:?}"
        );
        assert!(told.is_sorted(), "{what}: {told:?}");
    }
    for told in [&backup, &restore] {
        assert_eq!(
            told.last().map(|(done, _)| done),
            told.last().map(|(_, all)| all)
        );
    }
    let jobs = repair.iter().map(|(done, _)| *done);
    assert!(jobs.eq(0..old.job_count() as u64));
}

#[test]
fn an_export_tells_of_the_pauses_that_are_still_on() {
    let disk = SimFs::new(1);
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let until = now().wall_ns + 5;
    let mut load = Load::begin(fs.clone(), Path::new("/new"), SEGMENT_SIZE, now()).unwrap();
    let pause = PauseRecord {
        tube: "paused",
        until_wall_ns: until,
        duration: 1,
    };
    load.pause(&pause).unwrap();
    load.finish().unwrap();
    let old = inspect(&disk, "/new").unwrap();
    let told_at = |wall_ns: u64, dir: &str| {
        let exported = export::write(&old, &fs, Path::new(dir), wall_ns, &mut |_, _| ());
        exported.unwrap().pauses
    };
    assert_eq!(told_at(until - 1, "/before"), ["paused"]);
    assert!(told_at(until, "/then").is_empty());
}

#[test]
fn an_offline_compaction_takes_what_is_dead_in_the_open_segment_too() {
    let disk = SimFs::new(1);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    let mut put = || queue.put("t", &[7; 4000], PutOptions::default()).unwrap();
    let (kept, dead): (JobId, Vec<JobId>) = (put(), (0..9).map(|_| put()).collect());
    for id in dead {
        queue.delete(id).unwrap();
    }
    queue.close().unwrap();
    let dead_bytes = || inspect(&disk, DIR).unwrap().live_and_dead_bytes().1;
    assert!(dead_bytes() > 36_000);
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let done = offline::compact(&fs, Path::new(DIR), now(), &|_, _| ()).unwrap();
    assert_eq!((done.left_alone, done.jobs), (0, 1));
    assert!(dead_bytes() < 1000, "{} bytes are dead", dead_bytes());
    assert!(inspect(&disk, DIR).unwrap().has_job(kept));
}
