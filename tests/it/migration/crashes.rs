//! A crash at every file operation: beanstalkd's files are unchanged, the result is missing or
//! complete, and the same command, repeated, succeeds.

use std::path::Path;
use std::sync::Arc;

use bsd::storage::convert::beanstalkd::export;
use bsd::storage::disk::sim::Crash;
use bsd::storage::disk::{Fs, ReadFs};
use bsd::{JobQueue, OpenError, Options};

use super::binlog::{DELAYED, Job, Version, job};
use super::*;

const OUT: &str = "/exported";
const V7: Version = Version::V7;

/// Two files with jobs in all states; the first two ids and the last are deleted.
fn files() -> Vec<Vec<u8>> {
    let old = [3, 4, 5, 6].map(|id| job(id, format!("body of {id}").as_bytes()).tube("mail"));
    let late = Job {
        delay: 100_000,
        deadline_ns: WALL_NS + 100_000 * SECOND_NS,
        ..old[2].in_state(DELAYED)
    };
    let first = old.each_ref().map(|job| V7.put(job));
    let second = [
        V7.update(&old[1].buried()),
        V7.update(&old[0].buried()),
        V7.update(&late),
        V7.delete(&old[3]),
    ];
    vec![V7.cut_file(&first), V7.file(&second)]
}

fn images(disk: &SimFs, seed: u64) -> [SimFs; 3] {
    let crashes = [Crash::KeepAll, Crash::DropUnsynced, Crash::Random { seed }];
    crashes.map(|crash| disk.crash_image(crash))
}

/// Crash `make` at each of its operations on a fresh disk, and show `check` what that leaves.
fn crash_everywhere(
    fresh: impl Fn() -> SimFs,
    make: impl Fn(&SimFs) -> Result<(), OpenError>,
    mut check: impl FnMut(SimFs, &str),
) {
    let disk = fresh();
    let before = disk.operations();
    make(&disk).unwrap();
    let after = disk.operations();
    for (how, image) in images(&disk, after).into_iter().enumerate() {
        check(image, &format!("done, image {how}"));
    }
    assert!(after > before + 10, "only {} operations", after - before);
    for number in before + 1..=after {
        let disk = fresh();
        disk.crash_at(number);
        assert!(make(&disk).is_err(), "operation {number} does not matter");
        for (how, image) in images(&disk, number).into_iter().enumerate() {
            check(image, &format!("operation {number}, image {how}"));
        }
    }
}

fn exists(disk: &SimFs, dir: &str) -> bool {
    disk.read_dir(Path::new(dir)).is_ok()
}

fn import(disk: &SimFs) -> Result<(), OpenError> {
    write(&read(disk)?, disk).map(drop)
}

#[test]
fn an_import_is_all_or_nothing_and_the_source_is_untouched() {
    let files = files();
    let sound = import_sound(&files);
    let whole = originals(&disk(&files), OLD);
    crash_everywhere(
        || disk(&files),
        import,
        |image, what| {
            assert_eq!(originals(&image, OLD), whole, "{what}");
            if !exists(&image, NEW) {
                import(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            let fs = Arc::new(image.clone());
            assert_eq!(jobs(fs, Path::new(NEW)), sound, "{what}");
        },
    );
}

fn export(disk: &SimFs) -> Result<(), OpenError> {
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let old = Inspection::read(fs.clone(), Path::new(NEW), &mut |_, _| ())?;
    export::write(&old, &fs, Path::new(OUT), WALL_NS, &mut |_, _| ()).map(drop)
}

/// The import of the exported files, with the burial that beanstalkd adds at its start.
fn exported(disk: &SimFs) -> Jobs {
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let old = Binlogs::read(fs.clone(), Path::new(OUT), &mut |_, _| ()).unwrap();
    assert!(old.is_intact(), "{:#?}", old.damages);
    let copy = disk.crash_image(Crash::KeepAll);
    let dir = Path::new("/copy");
    let copy_fs = Arc::new(copy.clone());
    import::write(&old, copy_fs, dir, SEGMENT_SIZE, now(), &mut |_, _| ()).unwrap();
    let mut found = jobs(Arc::new(copy), dir);
    for id in &found.buried {
        found.jobs.get_mut(id).unwrap().counters.buries += 1;
    }
    found
}

#[test]
fn an_export_is_all_or_nothing_and_brings_every_job_and_the_next_id_back() {
    let fresh = || {
        let disk = disk(&files());
        import(&disk).unwrap();
        disk
    };
    let sound = jobs(Arc::new(fresh()), Path::new(NEW));
    crash_everywhere(fresh, export, |image, what| {
        assert_eq!(
            jobs(Arc::new(image.clone()), Path::new(NEW)),
            sound,
            "{what}"
        );
        if !exists(&image, OUT) {
            export(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(exported(&image), sound, "{what}");
    });
}

#[test]
fn a_job_that_is_larger_than_a_file_is_exported_into_one_of_its_own() {
    let disk = disk(&[V7.file(&[
        V7.put(&job(1, b"small")),
        V7.put(&job(2, &vec![b'x'; 11 << 20])),
        V7.put(&job(3, b"small")),
    ])]);
    import(&disk).unwrap();
    export(&disk).unwrap();
    assert_eq!(originals(&disk, OUT).len(), 3);
    assert_eq!(exported(&disk), jobs(Arc::new(disk), Path::new(NEW)));
}

fn options(disk: &SimFs, import: bool) -> Options {
    Options {
        dir: Some(OLD.into()),
        segment_size: SEGMENT_SIZE,
        fs: Arc::new(disk.clone()),
        import,
        ..Options::default()
    }
}

/// Start on beanstalkd's directory, and stop.
fn serve(disk: &SimFs, import: bool) -> Result<(), OpenError> {
    let queue = JobQueue::open_with(&options(disk, import))?;
    queue.close().map_err(OpenError::from)
}

/// beanstalkd's files, each of which must be in exactly one place.
fn everywhere(disk: &SimFs) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for dir in ["", "/beanstalkd-import", "/beanstalkd-binlogs"] {
        for (name, bytes) in originals(disk, &format!("{OLD}{dir}")) {
            assert!(
                all.insert(name.clone(), bytes).is_none(),
                "{name} is there twice"
            );
        }
    }
    all
}

#[test]
fn a_server_that_imports_can_be_interrupted_anywhere_and_started_again() {
    let files = files();
    let sound = import_sound(&files);
    let whole = originals(&disk(&files), OLD);
    let served = |image: &SimFs, what: &str| {
        let found = jobs(Arc::new(image.clone()), Path::new(OLD));
        assert_eq!(found, sound, "{what}");
    };
    crash_everywhere(
        || disk(&files),
        |disk| serve(disk, true),
        |image, what| {
            assert_eq!(everywhere(&image), whole, "{what}");
            // Without the flag: refused, or all of it.
            let other = image.crash_image(Crash::KeepAll);
            if serve(&other, false).is_ok() {
                served(&other, what);
            }
            // Interrupted once more, and then not.
            let mut again = image;
            again.crash_at(17);
            if serve(&again, true).is_err() {
                again = again.crash_image(Crash::DropUnsynced);
                assert_eq!(everywhere(&again), whole, "{what}, and again");
                serve(&again, true).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            let again = again.crash_image(Crash::KeepAll);
            let kept = originals(&again, &format!("{OLD}/beanstalkd-binlogs"));
            assert_eq!(kept, whole, "{what}");
            served(&again, what);
        },
    );
}

#[test]
fn an_import_in_place_happens_once_and_says_so_once() {
    let disk = disk(&files());
    let report = |import| {
        let queue = JobQueue::open_with(&options(&disk, import)).unwrap();
        queue.close().unwrap();
        originals(&disk, &format!("{OLD}/beanstalkd-binlogs"))
    };
    let kept = report(true);
    assert_eq!(kept.len(), 2);
    assert_eq!((report(true), report(false)), (kept.clone(), kept));
}

#[test]
fn a_damaged_log_is_not_imported_in_place() {
    let mut files = files();
    files[0][4] = 0xff;
    let disk = disk(&files);
    let before = originals(&disk, OLD);
    let refused = serve(&disk, true).unwrap_err().to_string();
    assert!(refused.contains("binlog.1 at byte"), "{refused}");
    assert!(
        refused.contains("bsd-wal import /beanstalkd --output NEW"),
        "{refused}"
    );
    assert_eq!(originals(&disk, OLD), before);
    assert_eq!(
        disk.names(OLD).unwrap().len(),
        before.len() + 1,
        "and the lock"
    );
}

#[test]
fn what_beanstalkd_wrote_between_two_starts_is_not_lost() {
    let files = files();
    let disk_at = |number| {
        let disk = disk(&files);
        disk.crash_at(number);
        let _ = serve(&disk, true);
        disk.crash_image(Crash::KeepAll)
    };
    let under_way = format!("{OLD}/beanstalkd-import");
    let (mut again, mut refused) = (0, 0);
    for number in 1.. {
        let disk = disk_at(number);
        if exists(&disk, &format!("{OLD}/beanstalkd-binlogs")) {
            break;
        }
        if !exists(&disk, &under_way) {
            continue;
        }
        let left = originals(&disk, OLD).len();
        if left == 0 {
            continue;
        }
        // beanstalkd takes the number after the last one that it finds.
        let new = V7.file(&[V7.put(&job(9, b"newer"))]);
        disk.write(format!("{OLD}/binlog.{}", left + 1), &new)
            .unwrap();
        match serve(&disk, true) {
            Ok(()) => {
                again += 1;
                assert!(jobs(Arc::new(disk), Path::new(OLD)).ids().contains(&9));
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("since"), "{error}");
                assert!(exists(&disk, &under_way));
            }
        }
    }
    assert!(again > 0 && refused > 0, "{again} and {refused}");
}

#[test]
fn files_of_both_in_one_directory_are_refused() {
    let disk = disk(&files());
    disk.write(format!("{OLD}/segment-0000000001.00000"), b"x")
        .unwrap();
    let refused = serve(&disk, true).unwrap_err().to_string();
    assert!(refused.contains("of bsd's"), "{refused}");
}
