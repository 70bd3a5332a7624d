//! The way from beanstalkd and back: `bsd-wal import`, `bsd-wal export`, `bsd-server --import`.
//!
//! | where | what |
//! |---|---|
//! | `binlog` | beanstalkd's files, written by an encoder of the tests' own |
//! | `reading` | what each kind of record becomes; what is refused |
//! | `damage` | files cut, flipped, missing, torn: the defects D1 and D11 to D15 of beanstalkd |
//! | `crashes` | a crash at every file operation |
//! | `golden` | directories kept in `tests/golden`, read by beanstalkd too |
//! | `real` | beanstalkd fills a directory; there and back |
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_MIGRATION_JOBS`, `BSD_MIGRATION_SEED` | jobs that go from beanstalkd to bsd and back; the seed | 5,000; new each run |
//! | `BSD_MIGRATION_GARBAGE` | random files that are read | 300 |

mod binlog;
mod crashes;
mod damage;
mod golden;
mod reading;
mod real;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bsd::OpenError;
use bsd::storage::SimFs;
use bsd::storage::convert::beanstalkd::{Binlogs, import};
use bsd::storage::disk::Fs;
use bsd::storage::inspect::{Inspection, JobRecord};
use bsd::types::{JobId, Now, Time};

/// 2027-01-15 08:00:00 UTC.
const WALL_NS: u64 = 1_800_000_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const SEGMENT_SIZE: u32 = 64 << 10;
/// Where beanstalkd's files are on a simulated disk.
const OLD: &str = "/beanstalkd";
/// Where the imported log goes.
const NEW: &str = "/bsd";

fn now() -> Now {
    Now::new(Time(0), WALL_NS)
}

/// A disk with beanstalkd's files, numbered from 1.
fn disk(files: &[Vec<u8>]) -> SimFs {
    let disk = SimFs::new(1);
    for (index, bytes) in files.iter().enumerate() {
        let path = format!("{OLD}/binlog.{}", index + 1);
        disk.write(path, bytes).unwrap();
    }
    disk.write(format!("{OLD}/lock"), b"").unwrap();
    disk
}

fn read(disk: &SimFs) -> Result<Binlogs, OpenError> {
    Binlogs::read(Arc::new(disk.clone()), Path::new(OLD), &mut |_, _| ())
}

fn write(old: &Binlogs, disk: &SimFs) -> Result<import::Imported, OpenError> {
    let (fs, dir) = (Arc::new(disk.clone()), Path::new(NEW));
    import::write(old, fs, dir, SEGMENT_SIZE, now(), &mut |_, _| ())
}

/// All jobs of a log of bsd's.
fn jobs(fs: Arc<dyn Fs>, dir: &Path) -> Jobs {
    let found = Inspection::read(fs, dir, &mut |_, _| ()).unwrap();
    assert!(found.is_intact(), "{:#?}", found.losses);
    let read = |id| found.read_job(id).unwrap().unwrap();
    let jobs = found.jobs().map(|job| (job.id, read(job.id))).collect();
    let buried = found.buried();
    let next_id = found.next_id;
    Jobs {
        jobs,
        buried,
        next_id,
    }
}

/// The content of a log of bsd.
#[derive(Debug, PartialEq, Eq)]
struct Jobs {
    jobs: BTreeMap<JobId, JobRecord>,
    /// In the order in which they were buried.
    buried: Vec<JobId>,
    next_id: JobId,
}

impl Jobs {
    fn ids(&self) -> Vec<u64> {
        self.jobs.keys().map(|id| id.0).collect()
    }

    fn job(&self, id: u64) -> &JobRecord {
        &self.jobs[&JobId(id)]
    }
}

/// The damage, the other remarks, and the imported jobs.
struct Import {
    damages: Vec<String>,
    notes: Vec<String>,
    jobs: Jobs,
}

/// Import the files of a disk, which must succeed and change none of them.
fn import_from(disk: &SimFs) -> Import {
    let before = originals(disk, OLD);
    let old = read(disk).unwrap();
    let imported = write(&old, disk).unwrap();
    assert_eq!(originals(disk, OLD), before, "the source was changed");
    let jobs = jobs(Arc::new(disk.clone()), Path::new(NEW));
    assert_eq!(jobs.next_id, imported.next_id);
    Import {
        damages: old.damages.iter().map(ToString::to_string).collect(),
        notes: old.notes.clone(),
        jobs,
    }
}

/// The same for files that are sound.
fn import_sound(files: &[Vec<u8>]) -> Jobs {
    let import = import_from(&disk(files));
    assert!(import.damages.is_empty(), "{:#?}", import.damages);
    import.jobs
}

/// beanstalkd's files in a directory, by name.
fn originals(disk: &SimFs, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let names = disk.names(dir).unwrap_or_default();
    let files = names.into_iter().filter(|name| name.starts_with("binlog."));
    files
        .map(|name| {
            let bytes = disk.read(format!("{dir}/{name}")).unwrap();
            (name, bytes)
        })
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
