//! From a log of bsd to a directory on which beanstalkd starts: bsd does not lock its users in.
//!
//! One record per job, of version 7. beanstalkd restores jobs in the order of their records, which
//! gives the order of buried jobs. It counts each buried job as buried once more, so one burial
//! less is written.
//!
//! The caller is told what beanstalkd's files cannot hold: pauses; settings; what a job has beyond a
//! plain one; jobs of more than [`BODY_SIZE_MAX`] bytes. A record of a deleted job holds the next id,
//! for as long as beanstalkd keeps that file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::binlog::{BODY_END, Job, State, encode_put, encode_update, encode_version, put_size};
use super::read::Binlogs;
use super::{binlog_name, parse_binlog_name};
use crate::storage::disk::{File, Fs, OpenMode, write_all_at};
use crate::storage::error::OpenError;
use crate::storage::incomplete::IncompleteDir;
use crate::storage::inspect::{Inspection, JobRecord, Progress};
use crate::types::{Counters, JobId, JobState, SettingClass};

/// The largest body that beanstalkd can be configured to take, bytes.
pub const BODY_SIZE_MAX: u32 = (1 << 30) - BODY_END.len() as u32;
/// The largest body that beanstalkd restores by default, bytes: at a start it counts the two bytes
/// after a body.
pub const BODY_SIZE_DEFAULT: u32 = 65_535 - BODY_END.len() as u32;
/// The size of a file, bytes, unless a job needs a larger one: beanstalkd's default.
const FILE_SIZE: u64 = 10 << 20;
/// Bytes written in one call.
const WRITE_SIZE: usize = 1 << 20;

/// Result of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exported {
    /// Jobs in the new files.
    pub jobs: u64,
    /// How many files.
    pub files: u32,
    /// The largest body, bytes: beanstalkd needs a `-z` of two more.
    pub body_size_max: u32,
    /// The id of the next job.
    pub next_id: JobId,
    /// Tubes that are paused, which beanstalkd forgets.
    pub pauses: Vec<String>,
    /// Settings, policies and schedules, which beanstalkd does not have: class and name.
    pub settings: Vec<(SettingClass, String)>,
    /// Jobs whose attributes were left out.
    pub attributed: u64,
    /// Jobs that are too large for beanstalkd and were left out.
    pub too_large: Vec<JobId>,
    /// Jobs that were there when the log was read and could not be read again, and why.
    pub unreadable: Vec<(JobId, String)>,
}

/// Write the jobs of `old` as beanstalkd's files into `dir`, which must be empty or missing: all or
/// nothing, as `incomplete` does it. Durable on return, and read back. `old` is not changed.
/// `progress` counts jobs. Pauses that end before `now_wall_ns` are not reported.
///
/// # Errors
/// If `dir` is not empty ([`OpenError::Foreign`]), or the files cannot be written or checked; then
/// there is nothing at `dir`.
pub fn write(
    old: &Inspection,
    fs: &Arc<dyn Fs>,
    dir: &Path,
    now_wall_ns: u64,
    progress: Progress<'_>,
) -> Result<Exported, OpenError> {
    let incomplete = IncompleteDir::make(fs, dir, |name| parse_binlog_name(name).is_some())?;
    let mut writer = Writer {
        old,
        output: Output::new(&**fs, &incomplete.path),
        exported: Exported::default(),
    };
    writer.write(progress)?;
    let Writer {
        output,
        mut exported,
        ..
    } = writer;
    exported.files = output.finish()?;
    exported.pauses = pauses(old, now_wall_ns);
    exported.settings = old.setting_names().collect();
    check(fs, &incomplete.path, &exported)?;
    incomplete.publish(())?;
    Ok(exported)
}

/// Read the new files back and fail if they differ.
fn check(fs: &Arc<dyn Fs>, incomplete: &Path, exported: &Exported) -> Result<(), OpenError> {
    let found = Binlogs::read(fs.clone(), incomplete, &mut |_, _| ())?;
    if found.is_intact() && found.job_count() as u64 == exported.jobs {
        return Ok(());
    }
    Err(match found.damages.first() {
        Some(damage) => OpenError::not_kept(incomplete, damage),
        None => OpenError::not_kept(incomplete, &"jobs are missing"),
    })
}

fn pauses(old: &Inspection, now_wall_ns: u64) -> Vec<String> {
    let is_on = |until_wall_ns: u64| until_wall_ns > now_wall_ns;
    let pauses = old.pauses().filter(|pause| is_on(pause.until_wall_ns));
    pauses.map(|pause| pause.tube.to_owned()).collect()
}

struct Writer<'a> {
    old: &'a Inspection,
    output: Output<'a>,
    exported: Exported,
}

impl Writer<'_> {
    fn write(&mut self, progress: Progress<'_>) -> Result<(), OpenError> {
        let old = self.old;
        let total = old.job_count() as u64;
        let others = old.jobs().filter(|job| job.state != JobState::Buried);
        let ids = others.map(|job| job.id).chain(old.buried());
        for (done, id) in ids.enumerate() {
            progress(done as u64, total);
            self.write_job(id)?;
        }
        self.write_next_id()
    }

    fn write_job(&mut self, id: JobId) -> Result<(), OpenError> {
        let record = match self.old.read_job(id) {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.exported.unreadable.push((id, error.to_string()));
                return Ok(());
            }
        };
        let Some(job) = job(&record) else {
            self.exported.too_large.push(id);
            return Ok(());
        };
        self.exported.jobs += 1;
        self.exported.attributed += u64::from(!record.attributes.is_empty());
        let body_size = record.body.len() as u32;
        self.exported.body_size_max = self.exported.body_size_max.max(body_size);
        self.output.put(&record.tube, &job, &record.body)
    }

    /// beanstalkd continues from the greatest id that it reads, even if that job is deleted.
    fn write_next_id(&mut self) -> Result<(), OpenError> {
        let next_id = self.old.next_id;
        self.exported.next_id = next_id;
        let last = JobId(next_id.0.saturating_sub(1));
        if last.0 == 0 || self.old.jobs().any(|job| job.id >= last) {
            return Ok(());
        }
        let job = Job {
            id: last,
            pri: 0,
            delay: 0,
            ttr: 1,
            body_size: BODY_END.len() as u32,
            created_wall_ns: 1,
            deadline_wall_ns: 0,
            counters: Counters::default(),
            state: State::Buried,
        };
        self.output.put("default", &job, b"")?;
        let state = State::Deleted;
        self.output.update(&Job { state, ..job })
    }
}

/// A job as beanstalkd has it; `None` if it is too large.
fn job(record: &JobRecord) -> Option<Job> {
    let size = u32::try_from(record.body.len())
        .ok()
        .filter(|size| *size <= BODY_SIZE_MAX)?;
    let (state, counters) = match record.state {
        JobState::Ready | JobState::Reserved => (State::Ready, record.counters),
        JobState::Delayed => (State::Delayed, record.counters),
        JobState::Buried => {
            let buries = record.counters.buries.saturating_sub(1);
            let counters = Counters {
                buries,
                ..record.counters
            };
            (State::Buried, counters)
        }
    };
    Some(Job {
        id: record.id,
        pri: record.pri,
        delay: record.delay,
        ttr: record.ttr,
        body_size: size + BODY_END.len() as u32,
        created_wall_ns: record.created_wall_ns,
        deadline_wall_ns: record.deadline_wall_ns.unwrap_or(0),
        counters,
        state,
    })
}

/// The files that are being written.
struct Output<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    /// The number of the last file that was begun.
    number: u32,
    file: Option<(PathBuf, Arc<dyn File>)>,
    /// Bytes of it that were written.
    written: u64,
    /// The bytes that follow them.
    bytes: Vec<u8>,
}

impl<'a> Output<'a> {
    fn new(fs: &'a dyn Fs, dir: &'a Path) -> Output<'a> {
        Output {
            fs,
            dir,
            number: 0,
            file: None,
            written: 0,
            bytes: Vec::new(),
        }
    }

    fn put(&mut self, tube: &str, job: &Job, body: &[u8]) -> Result<(), OpenError> {
        if self.size() + put_size(tube, body) > FILE_SIZE {
            self.end_file()?;
        }
        self.begin_file()?;
        encode_put(tube, job, body, &mut self.bytes);
        self.write_if(self.bytes.len() >= WRITE_SIZE)
    }

    fn update(&mut self, job: &Job) -> Result<(), OpenError> {
        self.begin_file()?;
        encode_update(job, &mut self.bytes);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.written + self.bytes.len() as u64
    }

    fn begin_file(&mut self) -> Result<(), OpenError> {
        if self.file.is_some() {
            return Ok(());
        }
        self.number += 1;
        let path = self.dir.join(binlog_name(self.number));
        let file = self.fs.open(&path, OpenMode::CreateNew);
        let file = file.map_err(|error| OpenError::io("create", &path, &error))?;
        self.file = Some((path, file));
        encode_version(&mut self.bytes);
        Ok(())
    }

    fn write_if(&mut self, is_time: bool) -> Result<(), OpenError> {
        if let Some((path, file)) = self.file.as_ref().filter(|_| is_time) {
            write_all_at(&**file, &self.bytes, self.written)
                .map_err(|error| OpenError::io("write", path, &error))?;
            self.written += self.bytes.len() as u64;
            self.bytes.clear();
        }
        Ok(())
    }

    /// Make the current file durable.
    fn end_file(&mut self) -> Result<(), OpenError> {
        self.write_if(true)?;
        if let Some((path, file)) = self.file.take() {
            let sync = file.sync();
            sync.map_err(|error| OpenError::io("sync", &path, &error))?;
        }
        self.written = 0;
        Ok(())
    }

    /// Make everything durable. Returns the number of files: at least one, or the directory would
    /// not look like beanstalkd's.
    fn finish(mut self) -> Result<u32, OpenError> {
        self.begin_file()?;
        self.end_file()?;
        let sync = self.fs.sync_dir(self.dir);
        sync.map_err(|error| OpenError::io("sync", self.dir, &error))?;
        Ok(self.number)
    }
}
