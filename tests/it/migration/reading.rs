//! How each kind of record is imported, and what is refused.

use std::path::Path;
use std::sync::Arc;

use bsd::OpenError;
use bsd::storage::disk::Fs;
use bsd::types::{Counters, JobState};

use super::binlog::{BURIED, DELAYED, Job, READY, RESERVED, Version, job};
use super::*;

const BOTH: [Version; 2] = [Version::V5, Version::V7];

#[test]
fn every_state_and_field_is_kept_in_both_versions() {
    for version in BOTH {
        let put = Job {
            tube: "mail",
            counters: [1, 2, 3, 4, 5],
            delay: 30,
            deadline_ns: WALL_NS + 5 * SECOND_NS,
            ..job(7, b"to: you\0\r\n")
        };
        let states = [
            (READY, JobState::Ready, None),
            (RESERVED, JobState::Ready, None),
            (BURIED, JobState::Buried, None),
            (DELAYED, JobState::Delayed, Some(WALL_NS + 5 * SECOND_NS)),
        ];
        for (state, expected, deadline_wall_ns) in states {
            let records = [
                version.put(&job(7, b"to: you\0\r\n").tube("mail")),
                version.update(&put.in_state(state)),
            ];
            let jobs = import_sound(&[version.file(&records)]);
            let expected = JobRecord {
                id: JobId(7),
                tube: "mail".into(),
                state: expected,
                pri: 17,
                delay: 30,
                ttr: 60,
                created_wall_ns: WALL_NS - 7 * SECOND_NS,
                deadline_wall_ns,
                counters: Counters::new([1, 2, 3, 4, 5]),
                body: b"to: you\0\r\n".to_vec(),
                attributes: Vec::new(),
            };
            assert_eq!(*jobs.job(7), expected, "{version:?}, state {state}");
            // The same in one record, as when beanstalkd moves the job.
            let whole = version.file(&[version.put(&put.in_state(state))]);
            assert_eq!(import_sound(&[whole]), jobs, "{version:?}, state {state}");
        }
    }
}

#[test]
fn a_job_that_was_only_put_is_as_it_was_put() {
    for version in BOTH {
        let jobs = import_sound(&[version.file(&[version.put(&job(1, b""))])]);
        let found = jobs.job(1);
        assert_eq!((found.state, &found.body[..]), (JobState::Ready, &b""[..]));
        assert_eq!(found.counters, Counters::default());
        assert_eq!(jobs.next_id, JobId(2));
    }
}

#[test]
fn a_delete_deletes_and_its_id_is_not_given_out_again() {
    for version in BOTH {
        let records = [1, 2, 3].map(|id| version.put(&job(id, b"x")));
        let file = [&records[..], &[version.delete(&job(3, b"x"))]].concat();
        let jobs = import_sound(&[version.file(&file)]);
        assert_eq!((jobs.ids(), jobs.next_id), (vec![1, 2], JobId(4)));
    }
}

#[test]
fn buried_jobs_keep_the_order_in_which_they_were_buried() {
    let version = Version::V7;
    let old = [1, 2, 3, 4].map(|id| job(id, b"x"));
    let first = old.each_ref().map(|job| version.put(job));
    let second = [3, 1, 4].map(|id: usize| version.update(&old[id - 1].buried()));
    // Moved by compaction: no burial.
    let third = [
        version.put(&old[2].buried()),
        version.update(&old[1].buried()),
    ];
    let files = [
        version.cut_file(&first),
        version.cut_file(&second),
        version.file(&third),
    ];
    let order: Vec<u64> = import_sound(&files).buried.iter().map(|id| id.0).collect();
    assert_eq!(order, [3, 1, 4, 2]);
}

#[test]
fn a_job_that_was_moved_is_there_once_as_it_was_then() {
    let version = Version::V7;
    let (one, two) = (job(1, b"one"), job(2, b"two"));
    let moved = Job {
        counters: [9, 0, 0, 0, 0],
        ..one.in_state(RESERVED)
    };
    let files = [
        version.cut_file(&[version.put(&one), version.put(&two)]),
        version.cut_file(&[version.put(&moved)]),
        version.file(&[version.delete(&two)]),
    ];
    let jobs = import_sound(&files);
    assert_eq!(jobs.ids(), [1]);
    assert_eq!(jobs.job(1).counters.reserves, 9);
    // When beanstalkd has removed the file it was moved from, nothing is missing.
    let disk = disk(&files);
    disk.remove(format!("{OLD}/binlog.1")).unwrap();
    let import = import_from(&disk);
    assert_eq!((import.jobs.ids(), import.damages.len()), (vec![1], 0));
}

#[test]
fn a_newer_beanstalkd_goes_on_where_one_of_version_5_stopped() {
    let old = job(1, b"old");
    let files = [
        Version::V5.file(&[Version::V5.put(&old)]),
        Version::V7.file(&[Version::V7.update(&old.buried())]),
    ];
    assert_eq!(import_sound(&files).buried, [JobId(1)]);
}

#[test]
fn a_file_that_was_only_begun_holds_nothing() {
    let put = Version::V7.put(&job(1, b"x"));
    for rest in [vec![], vec![0; 8192], Version::V7.file(&[])] {
        let disk = disk(&[Version::V7.file(std::slice::from_ref(&put)), rest]);
        let import = import_from(&disk);
        assert_eq!((import.jobs.ids(), import.damages.len()), (vec![1], 0));
    }
}

fn refusal(disk: &SimFs) -> String {
    let before = originals(disk, OLD);
    let refused = read(disk).expect_err("it is refused").to_string();
    assert_eq!(originals(disk, OLD), before);
    refused
}

#[test]
fn d19_a_file_of_unknown_version_is_refused_and_named() {
    for version in [6_u32, 8, 7 << 24] {
        let mut file = Version::V7.file(&[Version::V7.put(&job(1, b"x"))]);
        file[..4].copy_from_slice(&version.to_le_bytes());
        let refused = refusal(&disk(&[file]));
        assert!(refused.contains(&format!("version {version}")), "{refused}");
        assert!(refused.contains("binlog.1"), "{refused}");
    }
}

#[test]
fn a_directory_without_beanstalkds_files_is_refused() {
    let disk = SimFs::new(1);
    disk.write(format!("{OLD}/notes.txt"), b"hello").unwrap();
    assert!(refusal(&disk).contains("no file is called binlog.1"));
    disk.write(format!("{OLD}/segment-0000000001.00000"), b"")
        .unwrap();
    assert!(refusal(&disk).contains("bsd's log already"));
}

#[test]
fn a_directory_in_use_is_refused() {
    let disk = disk(&[Version::V7.file(&[])]);
    let _lock = disk.lock_dir(Path::new(OLD)).unwrap();
    assert!(matches!(read(&disk), Err(OpenError::InUse { .. })));
}

#[test]
fn nothing_is_overwritten() {
    let disk = disk(&[Version::V7.file(&[Version::V7.put(&job(1, b"x"))])]);
    disk.write(format!("{NEW}/precious"), b"x").unwrap();
    assert!(write(&read(&disk).unwrap(), &disk).is_err());
    assert_eq!(disk.names(NEW).unwrap(), ["precious"]);
}

#[test]
fn reading_writes_nothing_at_all() {
    let disk = disk(&[Version::V7.file(&[Version::V7.put(&job(1, b"x"))])]);
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    disk.clear_trace();
    Binlogs::read(fs, Path::new(OLD), &mut |_, _| ()).unwrap();
    use bsd::storage::disk::sim::OpKind::{Lock, Open, Read, ReadDir, Size};
    let is_reading = |kind| matches!(kind, ReadDir | Open | Lock | Size | Read);
    for operation in disk.trace() {
        assert!(is_reading(operation.kind), "{operation:?}");
    }
}
