//! From beanstalkd's log to a log of bsd's in a new directory.
//!
//! Kept: ids, tubes, states (a reserved job is ready, as after any restart), priorities, delays and
//! their ends, times to run, times of creation, counters, the order of the buried jobs; and no id
//! is given out again. beanstalkd's log does not hold pauses, counts of reserves and timeouts since
//! a job was last recorded, and releases without delay: they cannot be kept.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::binlog::{BODY_END, Job, State};
use super::jobs::Known;
use super::read::Binlogs;
use crate::storage::convert::build::Build;
use crate::storage::disk::{Fs, ReadFile, read_exact_at};
use crate::storage::error::OpenError;
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
    let (build, imported) = build(old, fs, dir, segment_size, now, progress)?;
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
    let (build, imported) = build(old, fs, dir, segment_size, now, progress)?;
    match imported.unreadable.first() {
        Some((id, why)) => Err(OpenError::Foreign {
            path: old.dir.clone(),
            what: format!("job {id} could not be read again: {why}"),
        }),
        None => build.finish().map(|()| imported),
    }
}

/// Write all jobs; nothing is at `dir` yet.
fn build(
    old: &Binlogs,
    fs: Arc<dyn Fs>,
    dir: &Path,
    segment_size: u32,
    now: Now,
    progress: Progress<'_>,
) -> Result<(Build, Imported), OpenError> {
    let mut writer = Writer {
        old,
        build: Build::begin(fs, dir, segment_size, now)?,
        imported: Imported::default(),
        bodies: Bodies::default(),
    };
    writer.write(progress)?;
    Ok((writer.build, writer.imported))
}

struct Writer<'a> {
    old: &'a Binlogs,
    build: Build,
    imported: Imported,
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
            Err(why) => {
                self.imported.unreadable.push((job.id, why.to_string()));
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
    fn read(&mut self, old: &Binlogs, known: &Known) -> io::Result<&[u8]> {
        let file = match &self.file {
            Some((number, file)) if *number == known.file => file.clone(),
            _ => {
                let file = old.open(known.file).map_err(io::Error::other)?;
                self.file = Some((known.file, file.clone()));
                file
            }
        };
        self.bytes.resize(known.job.body_size as usize, 0);
        let (name, at) = (&old.files[known.file as usize].name, known.body);
        read_exact_at(&*file, &mut self.bytes, at).map_err(|error| {
            io::Error::new(error.kind(), format!("{name} at byte {at}: {error}"))
        })?;
        self.bytes.strip_suffix(&BODY_END[..]).ok_or_else(|| {
            io::Error::other(format!(
                "{name} at byte {at}: the body is no longer what it was a moment ago"
            ))
        })
    }
}
