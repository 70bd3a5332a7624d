//! `bsd-wal`: whether it and the server's start agree on what is damaged, whether it accounts for
//! every job that damage affects, and whether it saves everything that can be saved.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_WAL_ROUNDS`, `BSD_WAL_SEED` | random damages of each kind; their seed | 100; new each run |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bsd::random::Random;
use bsd::storage::SimFs;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::LogId;
use bsd::storage::inspect::{Inspection, JobRecord, Loss, repair};
use bsd::types::{JobId, Now, Time};
use bsd::{JobQueue, OpenError, Options, PutOptions};
use tempfile::TempDir;

use crate::harness::{Launch, wal};
use crate::wire::{inserted, put_command};
use bsd::check::volume::{seed_of_run, volume};

pub(crate) const DIR: &str = "/log";
pub(crate) const OK: Option<i32> = Some(0);
pub(crate) const DAMAGED: Option<i32> = Some(1);
pub(crate) const CANNOT: Option<i32> = Some(2);
pub(crate) const USAGE: Option<i32> = Some(5);

pub(crate) fn now() -> Now {
    Now::new(Time(0), 1_800_000_000_000_000_000)
}

pub(crate) fn options(disk: &SimFs, dir: &str) -> Options {
    Options {
        log_id: Some(LogId([7; 16])),
        ..Options::simulated(disk, dir)
    }
}

/// A log of several segments, some compacted, with jobs in all states; cleanly stopped.
pub(crate) fn log() -> SimFs {
    let disk = SimFs::new(1);
    let mut random = Random::new(5);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    queue.watch("work").unwrap();
    for round in 0..600 {
        let body = vec![b'a' + (round % 26) as u8; random.below(900) as usize];
        let delay = if random.one_in(10) { 1000 } else { 0 };
        let put = PutOptions {
            delay: Duration::from_secs(delay),
            ..PutOptions::default()
        };
        queue.put("work", &body, put).unwrap();
        if random.one_in(2) {
            let Some(job) = queue.reserve().unwrap() else {
                continue;
            };
            match random.below(4) {
                0 => queue.bury(job.id, 7).unwrap(),
                1 => queue.release(job.id, 9, Duration::ZERO).unwrap(),
                _ => queue.delete(job.id).unwrap(),
            }
        }
        queue.tick().unwrap();
    }
    queue.close().unwrap();
    disk
}

pub(crate) fn copy(disk: &SimFs) -> SimFs {
    disk.crash_image(Crash::KeepAll)
}

pub(crate) fn inspect(disk: &SimFs, dir: &str) -> Result<Inspection, OpenError> {
    Inspection::read(Arc::new(disk.clone()), Path::new(dir), &mut |_, _| ())
}

pub(crate) fn jobs(inspection: &Inspection) -> BTreeMap<JobId, JobRecord> {
    let read = |id| inspection.read_job(id).unwrap().unwrap();
    inspection
        .jobs()
        .map(|job| (job.id, read(job.id)))
        .collect()
}

fn segments(disk: &SimFs) -> Vec<String> {
    let names = disk.names(DIR).unwrap();
    names
        .into_iter()
        .filter(|name| name.starts_with("segment-"))
        .collect()
}

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// The files of the log, as they are.
pub(crate) fn contents(disk: &SimFs) -> Vec<(String, Vec<u8>)> {
    let names = disk.names(DIR).unwrap().into_iter();
    names
        .map(|name| (name.clone(), disk.read(path(&name)).unwrap()))
        .collect()
}

/// Whether a server starts on a copy of the disk.
fn server_starts(disk: &SimFs) -> bool {
    match JobQueue::open_with(&options(&copy(disk), DIR)) {
        Ok(_) => true,
        Err(OpenError::Damaged { .. } | OpenError::Io(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Inspect a damaged disk and compare the whole report with what was there.
pub(crate) fn check(
    sound: &BTreeMap<JobId, JobRecord>,
    next_id: JobId,
    disk: &SimFs,
    what: &str,
) -> Inspection {
    let before = contents(disk);
    let found = inspect(disk, DIR).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(
        found.is_intact(),
        server_starts(disk),
        "{what}: {:#?}",
        found.losses
    );
    let left = jobs(&found);
    // Bytes cut off after the last frame leave no trace, here as for a server.
    let next_id = if found.is_intact() {
        found.next_id
    } else {
        next_id
    };
    if !found.is_intact() {
        account_for_every_job(sound, &left, &found.losses, what);
    }

    let repaired = repair::write(
        &found,
        Arc::new(disk.clone()),
        Path::new("/new"),
        now(),
        &mut |_, _| (),
    );
    let repaired = repaired.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(
        (repaired.jobs as usize, repaired.unreadable.len()),
        (left.len(), 0),
        "{what}"
    );
    assert!(
        repaired.next_id >= next_id,
        "{what}: {} < {next_id}",
        repaired.next_id
    );
    let new = inspect(disk, "/new").unwrap();
    assert!(
        new.is_intact() && new.clean_stop,
        "{what}: {:#?}",
        new.losses
    );
    assert_eq!(jobs(&new), left, "{what}");
    assert_eq!(new.next_id, repaired.next_id, "{what}");
    drop(new);
    let mut queue = JobQueue::open_with(&options(disk, "/new")).unwrap();
    assert!(
        queue.put("t", b"", PutOptions::default()).unwrap() >= next_id,
        "{what}"
    );
    drop(queue);
    assert_eq!(contents(disk), before, "{what}: the source was changed");
    found
}

/// Every changed job is named, unless there are unaccounted bytes.
fn account_for_every_job(
    sound: &BTreeMap<JobId, JobRecord>,
    left: &BTreeMap<JobId, JobRecord>,
    losses: &[Loss],
    what: &str,
) {
    let is_all_known = losses.iter().all(|loss| loss.unknown_bytes == Some(0));
    let is_missing = |id: &JobId| {
        losses
            .iter()
            .flat_map(|loss| &loss.missing)
            .any(|ids| ids.contains(&id.0))
    };
    let is_perhaps_missing = |id: &JobId| {
        losses.iter().any(|loss| {
            let is_later = loss.missing_from.is_some_and(|from| *id >= from);
            is_later || loss.perhaps_missing.iter().any(|ids| ids.contains(&id.0))
        })
    };
    for (id, job) in sound {
        match left.get(id) {
            None => assert!(
                is_missing(id) || is_perhaps_missing(id),
                "{what}: job {id} is gone: {losses:#?}"
            ),
            Some(now) if now == job => {
                assert!(!is_missing(id), "{what}: job {id} is there: {losses:#?}");
            }
            Some(now) => {
                assert_eq!(now.body, job.body, "{what}: job {id}");
                let is_named = losses.iter().any(|loss| loss.older.contains(id));
                assert!(
                    is_named || !is_all_known,
                    "{what}: job {id} changed: {losses:#?}"
                );
            }
        }
    }
    for id in left.keys().filter(|id| !sound.contains_key(id)) {
        let is_named = losses.iter().any(|loss| loss.again.contains(id));
        assert!(
            is_named || !is_all_known,
            "{what}: job {id} is back: {losses:#?}"
        );
    }
}

struct Sound {
    disk: SimFs,
    jobs: BTreeMap<JobId, JobRecord>,
    next_id: JobId,
}

impl Sound {
    fn new() -> Sound {
        let disk = log();
        let found = inspect(&disk, DIR).unwrap();
        assert!(found.is_intact() && found.clean_stop, "{:#?}", found.losses);
        assert!(found.segments.len() >= 4, "{:#?}", found.segments);
        assert!(
            found
                .segments
                .iter()
                .any(|segment| segment.entry.generation > 0)
        );
        let jobs = jobs(&found);
        Sound {
            jobs,
            next_id: found.next_id,
            disk,
        }
    }

    fn check(&self, disk: &SimFs, what: &str) -> Inspection {
        check(&self.jobs, self.next_id, disk, what)
    }

    fn pick(&self, random: &mut Random) -> (String, u64) {
        let names = segments(&self.disk);
        let name = names[random.below(names.len() as u64) as usize].clone();
        let size = self.disk.read(path(&name)).unwrap().len() as u64;
        (name, size)
    }
}

fn rounds() -> u64 {
    volume("BSD_WAL_ROUNDS", 100)
}

#[test]
fn an_intact_log_is_called_so_and_is_copied_whole() {
    let sound = Sound::new();
    let found = sound.check(&copy(&sound.disk), "as it is");
    assert!(found.is_intact());
    let states: Vec<&str> = sound.jobs.values().map(|job| job.state.word()).collect();
    for state in ["ready", "delayed", "buried"] {
        assert!(states.contains(&state), "{state}");
    }
}

#[test]
fn a_flipped_bit_costs_one_record_and_is_accounted_for() {
    let sound = Sound::new();
    let mut random = Random::new(seed_of_run("BSD_WAL_SEED"));
    for _ in 0..rounds() {
        let (name, size) = sound.pick(&mut random);
        let bit = random.below(size * 8);
        let disk = copy(&sound.disk);
        disk.flip_bit(path(&name), bit).unwrap();
        let what = format!("bit {bit} of {name}");
        let found = sound.check(&disk, &what);
        let missing: u64 = found.losses.iter().map(Loss::missing_count).sum();
        assert!(missing <= 1, "{what}: {:#?}", found.losses);
    }
}

#[test]
fn bytes_that_are_wiped_are_accounted_for() {
    let sound = Sound::new();
    let mut random = Random::new(seed_of_run("BSD_WAL_SEED"));
    for _ in 0..rounds() {
        let (name, size) = sound.pick(&mut random);
        let mut bytes = sound.disk.read(path(&name)).unwrap();
        let from = random.below(size) as usize;
        let to = (from + random.below(5000) as usize).min(bytes.len());
        bytes[from..to].fill(if random.one_in(2) { 0 } else { 0x5a });
        let disk = copy(&sound.disk);
        disk.write(path(&name), &bytes).unwrap();
        sound.check(&disk, &format!("{name} without bytes {from} to {to}"));
    }
}

/// They hit the id of a record and leave the rest, so that it names a job that it is not about.
#[test]
fn a_few_bytes_that_are_wiped_are_accounted_for() {
    let sound = Sound::new();
    let mut random = Random::new(seed_of_run("BSD_WAL_SEED"));
    for _ in 0..rounds() * 4 {
        let (name, size) = sound.pick(&mut random);
        let mut bytes = sound.disk.read(path(&name)).unwrap();
        let from = random.below(size) as usize;
        let to = (from + 2 + random.below(60) as usize).min(bytes.len());
        let fill = [0, 0x5a, 0xff][random.below(3) as usize];
        bytes[from..to].fill(fill);
        let disk = copy(&sound.disk);
        disk.write(path(&name), &bytes).unwrap();
        let what = format!("{name} with {fill:#x} in bytes {from} to {to}");
        let found = inspect(&disk, DIR).unwrap_or_else(|error| panic!("{what}: {error}"));
        account_for_every_job(&sound.jobs, &jobs(&found), &found.losses, &what);
    }
}

#[test]
fn a_file_that_is_cut_is_accounted_for() {
    let sound = Sound::new();
    let mut random = Random::new(seed_of_run("BSD_WAL_SEED"));
    for _ in 0..rounds() {
        let (name, size) = sound.pick(&mut random);
        let size = random.below(size);
        let disk = copy(&sound.disk);
        disk.truncate(path(&name), size).unwrap();
        sound.check(&disk, &format!("{name} cut to {size}"));
    }
}

#[test]
fn bytes_that_the_disk_does_not_give_are_passed_over_and_reported() {
    let sound = Sound::new();
    let mut random = Random::new(seed_of_run("BSD_WAL_SEED"));
    for _ in 0..rounds() / 4 {
        let (name, size) = sound.pick(&mut random);
        let from = random.below(size);
        let disk = copy(&sound.disk);
        disk.fail_reads(path(&name), from..from + 1).unwrap();
        let what = format!("{name} unreadable at {from}");
        let found = inspect(&disk, DIR).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!found.is_intact() && !server_starts(&disk), "{what}");
        account_for_every_job(&sound.jobs, &jobs(&found), &found.losses, &what);
        let told = found
            .losses
            .iter()
            .any(|loss| loss.damage.what.contains("does not give"));
        assert!(told, "{what}: {:#?}", found.losses);
    }
}

/// The bytes before the hole say that a record is there, those behind it that it ends there; but not
/// about which job it is.
#[test]
fn a_record_whose_id_the_disk_does_not_give_may_be_about_any_job() {
    const BLOCK: u64 = 4096;
    let sound = Sound::new();
    for name in segments(&sound.disk) {
        let size = sound.disk.read(path(&name)).unwrap().len() as u64;
        for end in (BLOCK..=size).step_by(BLOCK as usize) {
            for from in end - 48..end {
                let disk = copy(&sound.disk);
                disk.fail_reads(path(&name), from..from + 1).unwrap();
                let what = format!("{name} unreadable at {from}");
                let found = inspect(&disk, DIR).unwrap_or_else(|error| panic!("{what}: {error}"));
                account_for_every_job(&sound.jobs, &jobs(&found), &found.losses, &what);
            }
        }
    }
}

#[test]
fn whole_files_that_are_missing_emptied_swapped_or_doubled_are_accounted_for() {
    let sound = Sound::new();
    let names = segments(&sound.disk);
    for (index, name) in names.iter().enumerate() {
        let disk = copy(&sound.disk);
        disk.remove(path(name)).unwrap();
        let found = sound.check(&disk, &format!("{name} removed"));
        assert!(!found.is_intact());

        let disk = copy(&sound.disk);
        disk.truncate(path(name), 0).unwrap();
        assert!(!sound.check(&disk, &format!("{name} emptied")).is_intact());

        let disk = copy(&sound.disk);
        let bytes = disk.read(path(name)).unwrap();
        disk.write(path("segment-0000000099.00000"), &bytes)
            .unwrap();
        let what = format!("{name} doubled");
        let found = sound.check(&disk, &what);
        // The log does not need it: it is named, and left alone.
        assert!(found.is_intact() && jobs(&found) == sound.jobs, "{what}");
        assert_eq!(found.strangers, ["segment-0000000099.00000"], "{what}");

        let other = &names[(index + 1) % names.len()];
        let disk = copy(&sound.disk);
        let other_bytes = disk.read(path(other)).unwrap();
        disk.write(path(name), &other_bytes).unwrap();
        disk.write(path(other), &bytes).unwrap();
        let what = format!("{name} and {other} swapped");
        let found = sound.check(&disk, &what);
        assert!(
            !found.is_intact() && jobs(&found) == sound.jobs,
            "{what}: {:#?}",
            found.losses
        );
    }
}

/// With few descriptors files are opened again when they are read, as long as they are all there.
#[test]
fn g36_with_few_descriptors_a_log_in_use_is_read_and_one_that_loses_a_file_is_not_called_damaged() {
    let disk = SimFs::new(3);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    for _ in 0..40 {
        let put = PutOptions::default();
        queue.put("t", &[b'x'; 50_000], put).unwrap();
    }
    let files = segments(&disk);
    assert!(files.len() > 30, "{files:?}");
    disk.set_descriptors(Some(disk.open_files() + 20));
    let read = |progress: &mut dyn FnMut(u64, u64)| {
        Inspection::read_live(Arc::new(disk.clone()), Path::new(DIR), progress)
    };
    let found = read(&mut |_, _| ()).unwrap();
    assert!(found.is_intact() && found.job_count() == 40);
    drop(found);
    let lost = read(&mut |_, _| _ = disk.remove(path(&files[20])));
    let Err(error) = lost else {
        panic!("a file is gone");
    };
    assert_eq!(error.class(), bsd::ErrorClass::Descriptors, "{error}");
}

/// The jobs that a server finds on a copy of the disk, of those with small ids.
fn served(disk: &SimFs, next_id: JobId) -> Vec<JobId> {
    let mut queue = JobQueue::open_with(&options(&copy(disk), DIR)).unwrap();
    let ids = (1..next_id.0 + 10).map(JobId);
    ids.filter(|id| queue.stats_job(*id).is_ok()).collect()
}

#[test]
fn what_a_crash_leaves_is_no_damage_and_holds_the_jobs_that_a_start_finds() {
    let disk = SimFs::new(3);
    let mut random = Random::new(seed_of_run("BSD_WAL_SEED"));
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    let mut torn = 0;
    for round in 0..rounds() {
        let body = vec![b'x'; random.below(2000) as usize];
        let id = queue.put("t", &body, PutOptions::default()).unwrap();
        if random.one_in(2) {
            queue.delete(id).unwrap();
        }
        queue.tick().unwrap();
        // A write that was under way.
        let crashed = disk.crash_image(Crash::Random {
            seed: random.next(),
        });
        let name = segments(&crashed).pop().unwrap();
        if random.one_in(2) {
            let end = inspect(&crashed, DIR).unwrap().segments.pop().unwrap().size;
            let mut bytes = crashed.read(path(&name)).unwrap();
            bytes.truncate(end as usize);
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            let at = used.next_multiple_of(8).min(bytes.len());
            let until = (at + random.below(3000) as usize).min(bytes.len());
            bytes[at..until].fill(0x77);
            crashed.write(path(&name), &bytes).unwrap();
        }
        let found = inspect(&crashed, DIR).unwrap();
        assert!(found.is_intact(), "round {round}: {:#?}", found.losses);
        torn += u64::from(found.torn.is_some());
        let (ids, next_id) = (jobs(&found).into_keys().collect::<Vec<_>>(), found.next_id);
        drop(found);
        assert_eq!(ids, served(&crashed, next_id), "round {round}");
    }
    assert!(torn > rounds() / 8, "only {torn} torn tails");
}

#[test]
fn every_bit_of_a_small_log_flipped_gives_the_verdict_of_a_start() {
    let disk = SimFs::new(4);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    let id = queue.put("a", b"first", PutOptions::default()).unwrap();
    queue
        .put(
            "b",
            b"second",
            PutOptions {
                delay: Duration::from_secs(9),
                ..PutOptions::default()
            },
        )
        .unwrap();
    queue.delete(id).unwrap();
    queue.close().unwrap();
    let found = inspect(&disk, DIR).unwrap();
    let (sound, next_id) = (jobs(&found), found.next_id);
    drop(found);
    let name = segments(&disk).remove(0);
    let size = disk
        .read(path(&name))
        .unwrap()
        .iter()
        .rposition(|byte| *byte != 0)
        .unwrap()
        + 1;
    for bit in 0..size as u64 * 8 {
        let disk = copy(&disk);
        disk.flip_bit(path(&name), bit).unwrap();
        check(&sound, next_id, &disk, &format!("bit {bit}"));
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// `bsd-wal repair`, with a report for programs: its exit code, and what it says.
pub(crate) fn repair_reporting(log: &Path, new: &Path, report: &Path) -> (Option<i32>, String) {
    let (log, new, report) = (text(log), text(new), text(report));
    wal(&["repair", log, "--output", new, "--report", report])
}

/// A directory that a server was killed on, with the bodies `job 1` to `job 3`; the second job is
/// deleted, the third buried.
pub(crate) fn killed(dir: &Path) {
    let server = Launch::bsd().dir(dir).start();
    let mut wire = server.connect();
    for number in 1..=3 {
        wire.send(put_command(number, 0, format!("job {number}").as_bytes()));
        assert_eq!(inserted(&wire.text()), Some(u64::from(number)));
    }
    wire.send("delete 2\r\nreserve-job 3\r\nbury 3 9\r\n");
    for expected in ["DELETED", "RESERVED 3 5\r\njob 3", "BURIED"] {
        assert_eq!(wire.text(), expected);
    }
    server.kill();
}

/// The file and the offset at which `text` lies in the log.
pub(crate) fn locate(dir: &Path, text: &[u8]) -> (PathBuf, usize) {
    let files = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let place = |bytes: &[u8]| bytes.windows(text.len()).position(|window| window == text);
    files
        .filter_map(|file| Some((file.clone(), place(&std::fs::read(&file).unwrap())?)))
        .next()
        .expect("the body is in the log")
}

pub(crate) fn snapshot(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .map(|file| (file.clone(), std::fs::read(&file).unwrap()))
        .collect()
}

#[test]
fn a_byte_flipped_by_hand_is_found_named_and_repaired() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let new = dir.path().join("new");
    killed(&log);
    let (code, said) = wal(&["verify", text(&log)]);
    assert_eq!(code, OK, "{said}");

    let (file, at) = locate(&log, b"job 1");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(&file, bytes).unwrap();
    let before = snapshot(&log);
    assert_eq!(Launch::bsd().dir(&log).run_to_exit().code, Some(3));

    let (code, said) = wal(&["verify", text(&log)]);
    assert_eq!(code, DAMAGED, "{said}");
    assert!(said.contains("job 1 is missing"), "{said}");
    assert!(
        said.contains(text(file.file_name().unwrap().as_ref())),
        "{said}"
    );
    let (code, said) = wal(&["repair", text(&log), "--output", text(&new)]);
    assert_eq!(code, DAMAGED, "{said}");
    assert!(said.contains("job 1 is missing"), "{said}");
    assert_eq!(snapshot(&log), before, "the source is as it was");
    assert_eq!(wal(&["verify", text(&new)]).0, OK);

    let server = Launch::bsd().dir(&new).start();
    let mut wire = server.connect();
    wire.send("peek 1\r\npeek 2\r\npeek-buried\r\n");
    for expected in ["NOT_FOUND", "NOT_FOUND", "FOUND 3 5\r\njob 3"] {
        assert_eq!(wire.text(), expected);
    }
    wire.send(put_command(0, 0, b"new"));
    assert!(inserted(&wire.text()).unwrap() > 3);
}

#[test]
fn what_a_log_holds_is_shown_to_people_and_to_programs() {
    let dir = TempDir::new().unwrap();
    killed(dir.path());
    let dir = text(dir.path());
    let (code, said) = wal(&["info", dir]);
    assert_eq!(code, OK, "{said}");
    assert!(
        said.contains("next id: 4") && said.contains("oldest job: 1,"),
        "{said}"
    );
    assert!(said.contains("without a clean stop"), "{said}");

    let (code, said) = wal(&["dump", dir]);
    assert_eq!(code, OK, "{said}");
    assert!(
        said.contains("1 default ready pri 1 ") && said.contains("\"job 1\""),
        "{said}"
    );
    assert!(
        said.contains("3 default buried pri 9 ") && !said.contains("job 2"),
        "{said}"
    );

    let (code, said) = wal(&["dump", dir, "--json"]);
    assert_eq!(code, OK, "{said}");
    let lines: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(
        lines[2],
        serde_json::json!({"end": {"jobs": 2, "next_id": 4}})
    );
    assert_eq!(
        (&lines[0]["id"], &lines[0]["body"]),
        (&1.into(), &"job 1".into())
    );
    assert_eq!(
        (&lines[1]["state"], &lines[1]["buries"]),
        (&"buried".into(), &1.into())
    );

    let (code, said) = wal(&["dump", dir, "--records", "--json"]);
    assert_eq!(code, OK, "{said}");
    let kinds = said.lines().map(|line| serde_json::from_str(line).unwrap());
    let kinds = kinds.map(|line: serde_json::Value| line["record"].as_str().unwrap().to_owned());
    let kinds: Vec<String> = kinds.collect();
    assert_eq!(kinds, ["manifest", "put", "put", "put", "delete", "update"]);
    let (code, said) = wal(&["dump", dir, "--records"]);
    assert_eq!((code, said.lines().count()), (OK, kinds.len()), "{said}");
}

#[test]
fn a_body_that_is_no_text_is_dumped_as_base64() {
    let dir = TempDir::new().unwrap();
    let mut queue = JobQueue::open(dir.path()).unwrap();
    queue
        .put("t", &[0xff, 0x00, 0x1b], PutOptions::default())
        .unwrap();
    queue.close().unwrap();
    let (_, said) = wal(&["dump", text(dir.path()), "--json"]);
    let line = said.lines().next().unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["body_base64"], "/wAb");
    let (_, said) = wal(&["dump", text(dir.path())]);
    assert!(said.contains("3 bytes \"\\xff\\x00\\x1b\""), "{said}");
}

#[test]
fn what_cannot_be_done_has_an_exit_code_of_its_own_and_says_why() {
    let dir = TempDir::new().unwrap();
    let empty = dir.path().join("empty");
    let log = dir.path().join("log");
    std::fs::create_dir(&empty).unwrap();
    let cannot = |args: &[&str], why: &str| {
        let (code, said) = wal(args);
        assert_eq!(code, CANNOT, "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    };
    cannot(&["verify", text(&empty)], "there is no log here");
    assert_eq!(
        std::fs::read_dir(&empty).unwrap().count(),
        0,
        "nothing is created"
    );
    cannot(&["info", text(&dir.path().join("gone"))], "No such file");

    let server = Launch::bsd().dir(&log).start();
    cannot(&["verify", text(&log)], "in use");
    cannot(
        &[
            "export",
            text(&log),
            "--output",
            text(&log.with_extension("new")),
        ],
        "in use",
    );
    server.stop();
    cannot(
        &["repair", text(&log), "--output", text(dir.path())],
        "not empty",
    );
    cannot(
        &["repair", text(&log), "--output", text(&log.join("new"))],
        "lies inside",
    );
    assert_eq!(wal(&["repair", text(&log)]).0, USAGE);
    assert_eq!(wal(&["verify"]).0, USAGE);
    assert_eq!(wal(&["--help"]).0, OK);
}

#[test]
fn buried_jobs_keep_their_order_and_pauses_last_through_a_repair() {
    let dir = TempDir::new().unwrap();
    let (log, new) = (dir.path().join("log"), dir.path().join("new"));
    let server = Launch::bsd().dir(&log).start();
    let mut wire = server.connect();
    for number in 1..=4 {
        wire.send(put_command(0, 0, b"x"));
        assert_eq!(inserted(&wire.text()), Some(number));
    }
    for id in [3, 1, 4, 2] {
        wire.send(format!("reserve-job {id}\r\nbury {id} 0\r\n"));
        assert!(wire.text().starts_with("RESERVED") && wire.text() == "BURIED");
    }
    wire.send("pause-tube default 3600\r\n");
    assert_eq!(wire.text(), "PAUSED");
    server.kill();
    let (code, said) = wal(&["repair", text(&log), "--output", text(&new)]);
    assert_eq!(code, OK, "{said}");
    let server = Launch::bsd().dir(&new).start();
    let mut wire = server.connect();
    for id in [3, 1, 4, 2] {
        wire.send(format!("peek-buried\r\ndelete {id}\r\n"));
        assert_eq!(wire.text(), format!("FOUND {id} 1\r\nx"));
        assert_eq!(wire.text(), "DELETED");
    }
    let left: u64 = wire
        .stat("stats-tube default", "pause-time-left")
        .parse()
        .unwrap();
    assert!(left > 3000, "{left}");
}

#[test]
fn an_interrupted_repair_is_simply_run_again() {
    let dir = TempDir::new().unwrap();
    let (log, new) = (dir.path().join("log"), dir.path().join("new"));
    killed(&log);
    let begun = dir.path().join("new.incomplete");
    std::fs::create_dir(&begun).unwrap();
    std::fs::write(begun.join("segment-0000000001.00000"), b"half").unwrap();
    std::fs::write(begun.join("spare-0"), b"").unwrap();
    let (code, said) = wal(&["repair", text(&log), "--output", text(&new)]);
    assert_eq!(code, OK, "{said}");
    assert!(!begun.exists() && wal(&["verify", text(&new)]).0 == OK);

    let other = dir.path().join("other");
    let theirs = dir.path().join("other.incomplete");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("thesis.txt"), b"").unwrap();
    let (code, said) = wal(&["repair", text(&log), "--output", text(&other)]);
    assert!(code == CANNOT && said.contains("thesis.txt"), "{said}");
    assert!(theirs.join("thesis.txt").exists() && !other.exists());
}
