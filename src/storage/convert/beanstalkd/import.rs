//! From beanstalkd's log to a log of bsd's in a new directory.
//!
//! Kept: ids, tubes, states (a reserved job is ready, as after any restart), priorities, delays and
//! their ends, times to run, times of creation, counters, the order of the buried jobs; and no id
//! is given out again. beanstalkd's log does not hold pauses, counts of reserves and timeouts since
//! a job was last recorded, and releases without delay: they cannot be kept.

use std::path::Path;
use std::sync::Arc;

use super::binlog::{BODY_END, Job, State};
use super::jobs::Known;
use super::read::Binlogs;
use crate::ErrorClass;
use crate::storage::convert::build::Build;
use crate::storage::disk::{Fs, ReadFile, read_exact_at};
use crate::storage::error::{OpenError, StoreError};
use crate::storage::format::Record;
use crate::storage::inspect::Progress;
use crate::types::{Counters, JobId, JobState, Now};

/// Result of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Jobs in the new log.
    pub jobs: u64,
    /// The id of the next job.
    pub next_id: JobId,
    /// Jobs that were there when beanstalkd's log was read and could not be read again, and why.
    pub unreadable: Vec<(JobId, String)>,
}

/// Write the jobs of beanstalkd's log `old` into a new log in `dir`, which must be empty or
/// missing: all or nothing. Its segments have `segment_size` bytes. Durable on return, and marked
/// as cleanly stopped. `old` is not changed. `progress` counts jobs.
///
/// # Errors
/// If `dir` is not empty ([`OpenError::Foreign`]), or the new log cannot be written or checked;
/// then there is nothing at `dir`.
pub fn write(
    old: &Binlogs,
    fs: Arc<dyn Fs>,
    dir: &Path,
    segment_size: u32,
    now: Now,
    progress: Progress<'_>,
) -> Result<Imported, OpenError> {
    let (build, imported, _) = build(old, fs, dir, segment_size, now, progress)?;
    build.finish()?;
    Ok(imported)
}

/// The same, but a job that cannot be read again is an error.
pub(super) fn write_all(
    old: &Binlogs,
    fs: Arc<dyn Fs>,
    dir: &Path,
    segment_size: u32,
    now: Now,
    progress: Progress<'_>,
) -> Result<Imported, OpenError> {
    let (build, imported, class) = build(old, fs, dir, segment_size, now, progress)?;
    match (imported.unreadable.first(), class) {
        (Some((id, why)), Some(class)) => Err(OpenError::Io(StoreError {
            doing: "read all jobs of",
            path: old.dir.clone(),
            cause: format!("job {id} could not be read again: {why}"),
            class,
        })),
        _ => build.finish().map(|()| imported),
    }
}

/// Write all jobs; nothing is at `dir` yet. Returns also the class of the first error of a job that
/// could not be read.
fn build(
    old: &Binlogs,
    fs: Arc<dyn Fs>,
    dir: &Path,
    segment_size: u32,
    now: Now,
    progress: Progress<'_>,
) -> Result<(Build, Imported, Option<ErrorClass>), OpenError> {
    let mut writer = Writer {
        old,
        build: Build::begin(fs, dir, segment_size, now)?,
        imported: Imported::default(),
        class: None,
        bodies: Bodies::default(),
    };
    writer.write(progress)?;
    Ok((writer.build, writer.imported, writer.class))
}

struct Writer<'a> {
    old: &'a Binlogs,
    build: Build,
    imported: Imported,
    class: Option<ErrorClass>,
    bodies: Bodies,
}

impl Writer<'_> {
    fn write(&mut self, progress: Progress<'_>) -> Result<(), OpenError> {
        let old = self.old;
        let total = old.job_count() as u64;
        for (done, known) in old.in_file_order().into_iter().enumerate() {
            progress(done as u64, total);
            self.write_job(known)?;
        }
        for known in old.in_bury_order() {
            let is_there = |(id, _): &(JobId, String)| *id != known.job.id;
            if self.imported.unreadable.iter().all(is_there) {
                self.build.append(&update(&known.job, JobState::Buried))?;
            }
        }
        self.imported.next_id = old.next_id;
        self.build.skip_ids(old.next_id)
    }

    /// Write a job and its current state. The state of a buried job follows later, in the order of
    /// burials.
    fn write_job(&mut self, known: &Known) -> Result<(), OpenError> {
        let job = &known.job;
        let body = match self.bodies.read(self.old, known) {
            Ok(body) => body,
            Err((class, why)) => {
                self.class.get_or_insert(class);
                self.imported.unreadable.push((job.id, why));
                return Ok(());
            }
        };
        self.build.append(&Record::Put {
            id: job.id,
            created_wall_ns: job.created_wall_ns,
            pri: job.pri,
            delay: job.delay,
            ttr: job.ttr,
            tube: self.old.jobs.tube(known),
            body,
        })?;
        self.imported.jobs += 1;
        let state = match job.state {
            State::Buried | State::Deleted => return Ok(()),
            State::Delayed => JobState::Delayed,
            State::Ready | State::Reserved => JobState::Ready,
        };
        let as_put = (JobState::Ready, 0, Counters::default());
        if (state, job.delay, job.counters) == as_put {
            return Ok(());
        }
        self.build.append(&update(job, state))
    }
}

fn update(job: &Job, state: JobState) -> Record<'static> {
    Record::Update {
        id: job.id,
        kick: 0,
        state,
        deadline_wall_ns: match state {
            JobState::Delayed => job.deadline_wall_ns,
            _ => 0,
        },
        pri: job.pri,
        delay: job.delay,
        counters: job.counters,
    }
}

/// Reads bodies, which are mostly adjacent.
#[derive(Default)]
struct Bodies {
    file: Option<(u32, Arc<dyn ReadFile>)>,
    bytes: Vec<u8>,
}

impl Bodies {
    /// The body of a job, without CR LF; or why it cannot be read.
    fn read(&mut self, old: &Binlogs, known: &Known) -> Result<&[u8], (ErrorClass, String)> {
        let file = match &self.file {
            Some((number, file)) if *number == known.file => file.clone(),
            _ => {
                let file = old.open(known.file);
                let file = file.map_err(|error| (error.class(), error.to_string()))?;
                self.file = Some((known.file, file.clone()));
                file
            }
        };
        self.bytes.resize(known.job.body_size as usize, 0);
        let (name, at) = (&old.files[known.file as usize].name, known.body);
        read_exact_at(&*file, &mut self.bytes, at).map_err(|error| {
            (
                ErrorClass::of(&error),
                format!("{name} at byte {at}: {error}"),
            )
        })?;
        self.bytes.strip_suffix(&BODY_END[..]).ok_or_else(|| {
            let what = "the body is no longer what it was a moment ago";
            (ErrorClass::Disk, format!("{name} at byte {at}: {what}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::convert::beanstalkd::export;
    use crate::storage::convert::load::Load;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};
    use crate::storage::inspect::{Inspection, JobRecord};
    use crate::types::Time;

    #[test]
    fn g02_a_job_that_cannot_be_read_again_is_an_error_of_the_disk() {
        let now = Now::new(Time(0), 1_800_000_000_000_000_000);
        let disk = SimFs::new(1);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let mut load = Load::begin(fs.clone(), Path::new("/log"), 64 << 10, now).unwrap();
        let job = JobRecord {
            id: JobId(1),
            tube: "t".to_owned(),
            state: JobState::Ready,
            pri: 1,
            delay: 0,
            ttr: 60,
            created_wall_ns: now.wall_ns,
            deadline_wall_ns: None,
            counters: Counters::default(),
            body: b"body".to_vec(),
            attributes: Vec::new(),
        };
        load.job(&job, None).unwrap();
        load.finish().unwrap();
        let log = Inspection::read(Arc::new(disk.clone()), Path::new("/log"), &mut |_, _| ());
        let old = Path::new("/old");
        export::write(&log.unwrap(), &fs, old, now.wall_ns, &mut |_, _| ()).unwrap();
        let old = Binlogs::read(Arc::new(disk.clone()), old, &mut |_, _| ()).unwrap();
        let new = Path::new("/new");
        let faults = [
            (OpKind::Read, Errno::IO, ErrorClass::Disk),
            (OpKind::Open, Errno::MFILE, ErrorClass::Descriptors),
        ];
        for (kind, errno, class) in faults {
            disk.inject(Fault::fail(kind, errno).on("/old/binlog.1"));
            let error = write_all(&old, fs.clone(), new, 64 << 10, now, &mut |_, _| ());
            let error = error.unwrap_err();
            assert_eq!(error.class(), class, "{error}");
            let text = error.to_string();
            assert!(text.contains("job 1 could not be read again"), "{text}");
            assert!(disk.names("/new").is_err(), "{text}");
        }
        write_all(&old, fs.clone(), new, 64 << 10, now, &mut |_, _| ()).unwrap();
    }
}
