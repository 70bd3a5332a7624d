//! A new log of everything that survives in an old one.
//!
//! The new log is written by the code that the server writes with, under an identity of its own: it
//! is whole by construction, and no file of the old one can be mistaken for one of it. Where it is
//! not known whether a job had been deleted, it is there: running again is better than losing.
//!
//! Jobs come in the order of their ids; then their states, in the order in which they were
//! recorded, so that buried jobs keep their order; then pauses.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::index::Entry;
use super::{Inspection, Progress};
use crate::storage::error::{OpenError, StoreError};
use crate::storage::format::{Record, parse_file_name, put};
use crate::storage::fs::{Fs, LockError};
use crate::storage::lock::LOCK_NAME;
use crate::storage::log::{AppendError, Log, LogOptions, Purpose};
use crate::storage::recover::Replay;
use crate::storage::space::{SEGMENT_SIZE_MIN, parse_spare_name};
use crate::storage::sync::SyncPolicy;
use crate::types::{JobId, Now, Place};

/// The largest file of the new log, bytes, unless a job needs a larger one.
const SEGMENT_SIZE_MAX: u32 = 64 << 20;
/// Where a file is missing or cut, as many ids are left out as it can have held.
const IDS_A_LOST_FILE: u64 = (2 << 30) / PUT_SIZE_MIN;
const PUT_SIZE_MIN: u64 = put::SIZE as u64 + 1;

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Jobs in the new log.
    pub jobs: u64,
    /// The id of the next job.
    pub next_id: JobId,
    /// Jobs that were there when the log was read and could not be read again, and why.
    pub unreadable: Vec<(JobId, String)>,
}

/// Write everything that survives in `old` into a new log in `dir`, which must be empty or not be
/// there. Durable on return, and marked as cleanly stopped. `old` is not changed.
///
/// # Errors
/// When the new log cannot be written; what there is of it then is not a whole copy and must not be
/// used.
pub fn write(
    old: &Inspection,
    fs: Arc<dyn Fs>,
    dir: &Path,
    now: Now,
    progress: Progress<'_>,
) -> Result<Repaired, OpenError> {
    let options = LogOptions {
        dir: dir.to_owned(),
        sync: SyncPolicy::Never,
        segment_size: segment_size(old),
        hot_size: 0,
        log_id: None,
        waker: None,
    };
    let (log, _) = Log::open(fs, options, now, &mut Fresh, &|_, _| ())?;
    let mut writer = Writer {
        old,
        log,
        dir,
        now,
        repaired: Repaired::default(),
    };
    writer.write(progress)?;
    let Writer { log, repaired, .. } = writer;
    log.close()?;
    Ok(repaired)
}

/// As [`write()`], but all or nothing: the new log is written and checked beside `dir`, in a directory
/// of that name with [`INCOMPLETE`] behind it, and gets its name when it is whole. What an
/// interrupted call left there is cleared by the next one.
///
/// # Errors
/// When `dir` holds anything ([`OpenError::Foreign`]), or the new log cannot be written or checked;
/// then there is nothing at `dir`.
pub fn write_whole(
    old: &Inspection,
    fs: Arc<dyn Fs>,
    dir: &Path,
    now: Now,
    progress: Progress<'_>,
) -> Result<Repaired, OpenError> {
    refuse_what_is_there(&*fs, dir)?;
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(INCOMPLETE);
    let beside = dir.with_file_name(name);
    fs.create_dir_all(&beside)
        .map_err(|error| OpenError::io("create", &beside, &error))?;
    clear(&*fs, &beside)?;
    let repaired = write(old, fs.clone(), &beside, now, progress)?;
    let new = Inspection::read(fs.clone(), &beside, &mut |_, _| ())?;
    if let Some(loss) = new.losses.first() {
        return Err(OpenError::Foreign {
            path: beside.clone(),
            what: format!("the disk did not keep what was written to it ({loss}); use another"),
        });
    }
    drop(new);
    let publish = || {
        fs.rename(&beside, dir)?;
        fs.sync_dir(parent(dir))
    };
    publish().map_err(|error| OpenError::io("give its name to", dir, &error))?;
    Ok(repaired)
}

/// What a directory is called behind its name before it is whole.
pub const INCOMPLETE: &str = ".incomplete";

struct Writer<'a> {
    old: &'a Inspection,
    log: Log,
    dir: &'a Path,
    now: Now,
    repaired: Repaired,
}

impl Writer<'_> {
    fn write(&mut self, progress: Progress<'_>) -> Result<(), OpenError> {
        let mut changed = self.write_puts(progress)?;
        changed.sort_unstable_by_key(|(place, _)| (place.file, place.offset));
        for (_, id) in changed {
            self.write_update(id)?;
        }
        self.write_pauses()?;
        self.skip_ids()
    }

    /// Write all jobs as they were put; returns those that were changed since, and where that is
    /// recorded.
    fn write_puts(&mut self, progress: Progress<'_>) -> Result<Vec<(Place, JobId)>, OpenError> {
        let old = self.old;
        let mut changed = Vec::new();
        let mut bytes = Vec::new();
        let total = old.index.len() as u64;
        for (done, (id, entry)) in old.index.iter().enumerate() {
            progress(done as u64, total);
            match self.copy_job(entry, &mut bytes) {
                Err(Failure::Source(error)) => {
                    self.repaired.unreadable.push((id, error.to_string()));
                    continue;
                }
                Err(Failure::Target(error)) => return Err(error),
                Ok(()) => self.repaired.jobs += 1,
            }
            if !entry.update.is_none() {
                changed.push((entry.update, id));
            }
        }
        Ok(changed)
    }

    fn copy_job(&mut self, entry: &Entry, bytes: &mut Vec<u8>) -> Result<(), Failure> {
        let (log, dir, now) = (&mut self.log, self.dir, self.now);
        let appended = self.old.with_put(entry, bytes, |record| match record {
            Record::Put { .. } => Some(append(log, dir, record, now)),
            _ => None,
        });
        appended.map_err(Failure::Source)?.map_err(Failure::Target)
    }

    /// A state that cannot be read again leaves the job as it was put: there, and perhaps run
    /// again.
    fn write_update(&mut self, id: JobId) -> Result<(), OpenError> {
        let Some(entry) = self.old.index.get(id) else {
            return Ok(());
        };
        let (log, dir, now) = (&mut self.log, self.dir, self.now);
        let appended = self.old.with_update(entry, |record| match record {
            Record::Update { .. } => Some(append(log, dir, record, now)),
            _ => None,
        });
        match appended {
            Ok(appended) => appended,
            Err(error) => {
                self.repaired
                    .unreadable
                    .push((id, format!("its state: {error}")));
                Ok(())
            }
        }
    }

    fn write_pauses(&mut self) -> Result<(), OpenError> {
        for pause in self.old.pauses() {
            let (tube, until_wall_ns) = (pause.tube, pause.until_wall_ns);
            let record = Record::Pause {
                tube,
                until_wall_ns,
                duration: pause.duration,
            };
            append(&mut self.log, self.dir, &record, self.now)?;
        }
        Ok(())
    }

    /// Give no id out again that may have been given out. A segment says when it is begun which
    /// ids are free.
    fn skip_ids(&mut self) -> Result<(), OpenError> {
        self.repaired.next_id = next_id(self.old);
        if self.log.next_id >= self.repaired.next_id {
            return Ok(());
        }
        self.log.next_id = self.repaired.next_id;
        let spare = self
            .log
            .spares
            .reserve(segment_size(self.old), SEGMENT_SIZE_MIN)?;
        self.log
            .spares
            .segments
            .push(spare.ok_or_else(|| full(self.dir))?);
        match self.log.rotate(0, self.now.wall_ns)? {
            true => Ok(()),
            false => Err(full(self.dir)),
        }
    }
}

/// Files are about as large as those of the old log.
fn segment_size(old: &Inspection) -> u32 {
    let largest = old
        .segments
        .iter()
        .map(|segment| segment.size)
        .max()
        .unwrap_or(0);
    let largest = u32::try_from(largest).unwrap_or(u32::MAX);
    largest.clamp(SEGMENT_SIZE_MIN, SEGMENT_SIZE_MAX)
}

/// The first id that the old log can never have given out. Where puts behind the last one that is
/// known may be lost, as many ids are left out as the lost bytes can have held.
fn next_id(old: &Inspection) -> JobId {
    let ids_in = |bytes: Option<u64>| bytes.map_or(IDS_A_LOST_FILE, |bytes| bytes / PUT_SIZE_MIN);
    let last = old.losses.iter().filter(|loss| loss.missing_from.is_some());
    let lost: u64 = last.map(|loss| ids_in(loss.unknown_bytes)).sum();
    JobId(old.next_id.0.saturating_add(lost).min(u64::MAX - 1))
}

/// Which side did not do what was asked.
enum Failure {
    Source(OpenError),
    Target(OpenError),
}

fn append(log: &mut Log, dir: &Path, record: &Record<'_>, now: Now) -> Result<(), OpenError> {
    // Of the space set aside all may be used: there are no clients.
    match log.append(record, Purpose::Delete, now.wall_ns) {
        Ok(_) => Ok(()),
        Err(AppendError::Full) => Err(full(dir)),
        Err(AppendError::Failed(error)) => Err(error.into()),
    }
}

fn full(dir: &Path) -> OpenError {
    OpenError::Io(StoreError {
        doing: "write all jobs to",
        path: dir.to_owned(),
        cause: "the disk is full; free space, or give a directory on another disk".to_owned(),
    })
}

fn parent(dir: &Path) -> &Path {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn refuse_what_is_there(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    match fs.read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(OpenError::io("list", dir, &error)),
        Ok(names) if names.is_empty() => Ok(()),
        Ok(_) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: "the directory is not empty, and nothing is ever overwritten; give the name of \
                   one that does not exist"
                .to_owned(),
        }),
    }
}

/// Remove what an interrupted call left in `dir`, and nothing else.
fn clear(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    let io = |error| OpenError::io("clear", dir, &error);
    let names = fs.read_dir(dir).map_err(io)?;
    let is_ours = |name: &str| parse_file_name(name).is_some() || parse_spare_name(name).is_some();
    if let Some(other) = names
        .iter()
        .find(|entry| entry.name != LOCK_NAME && !is_ours(&entry.name))
    {
        return Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "a directory of this name is needed, and there is one that holds {:?}; move it \
                 elsewhere",
                other.name
            ),
        });
    }
    let _lock = fs.lock_dir(dir).map_err(|error| match error {
        LockError::Held { pid } => OpenError::InUse {
            dir: dir.to_owned(),
            pid,
        },
        LockError::Io(error) => OpenError::io("lock", dir, &error),
    })?;
    names
        .iter()
        .filter(|entry| is_ours(&entry.name))
        .try_for_each(|entry| fs.remove_file(&dir.join(&entry.name)))
        .map_err(io)
}

/// A log that has just been made has nothing to replay.
struct Fresh;

impl Replay for Fresh {
    fn replay(&mut self, _: &mut Log, _: Place, _: &Record<'_>) -> Result<(), String> {
        Err("the directory is not empty".to_owned())
    }
}
