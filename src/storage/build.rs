//! A new log in a new directory, all or nothing: what `repair`, `import` and `load` write with.
//!
//! The records are appended by the code that the server appends with, so the log is whole by
//! construction. It grows beside the directory that was asked for, under its name with
//! [`INCOMPLETE`] behind it; once every byte is durable and has been read back and checked, the
//! directory gets its name. Interrupted at any point there is nothing at the name that was asked
//! for, and the next call begins anew.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{OpenError, StoreError};
use super::format::{Record, parse_file_name};
use super::fs::{Fs, LockError};
use super::inspect::Inspection;
use super::lock::LOCK_NAME;
use super::log::{AppendError, Log, LogOptions, Purpose};
use super::recover::Replay;
use super::space::{SEGMENT_SIZE_MIN, parse_spare_name};
use super::sync::SyncPolicy;
use crate::types::{JobId, Now, Place};

/// What a directory is called behind its name before it is whole.
pub const INCOMPLETE: &str = ".incomplete";

/// A log that is being built.
#[derive(Debug)]
pub struct Build {
    fs: Arc<dyn Fs>,
    /// Where it will be.
    dir: PathBuf,
    /// Where it grows.
    beside: PathBuf,
    log: Log,
    segment_size: u32,
    now: Now,
}

impl Build {
    /// Begin a log that will be at `dir`, which must be empty or not be there, in segments of
    /// `segment_size` bytes, of which a record that is larger gets one that fits it.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] when `dir` holds anything, or the directory beside it anything that
    /// an interrupted build did not leave; otherwise when the disk fails.
    pub fn begin(
        fs: Arc<dyn Fs>,
        dir: &Path,
        segment_size: u32,
        now: Now,
    ) -> Result<Build, OpenError> {
        refuse_what_is_there(&*fs, dir)?;
        let beside = beside(dir);
        fs.create_dir_all(&beside)
            .map_err(|error| OpenError::io("create", &beside, &error))?;
        clear(&*fs, &beside)?;
        let options = LogOptions {
            dir: beside.clone(),
            sync: SyncPolicy::Never,
            segment_size,
            hot_size: 0,
            log_id: None,
            waker: None,
        };
        let (log, _) = Log::open(fs.clone(), options, now, &mut Fresh, &|_, _| ())?;
        Ok(Build {
            fs,
            dir: dir.to_owned(),
            beside,
            log,
            segment_size,
            now,
        })
    }

    /// Add a record to the history. The order is that of recovery: the put of a job comes before
    /// its updates, and the last update of each buried job decides the order of the buried ones.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn append(&mut self, record: &Record<'_>) -> Result<(), OpenError> {
        // Of the space set aside all may be used: there are no clients.
        match self.log.append(record, Purpose::Delete, self.now.wall_ns) {
            Ok(_) => Ok(()),
            Err(AppendError::Full) => Err(self.full()),
            Err(AppendError::Failed(error)) => Err(error.into()),
        }
    }

    /// No id below `next_id` is given out by a server that goes on with this log. Call it after the
    /// last record.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn skip_ids(&mut self, next_id: JobId) -> Result<(), OpenError> {
        if self.log.next_id >= next_id {
            return Ok(());
        }
        self.log.next_id = next_id;
        // A segment says when it is begun which ids are free.
        let size = self.segment_size;
        let spare = self.log.spares.reserve(size, SEGMENT_SIZE_MIN)?;
        self.log.spares.add(spare.ok_or_else(|| self.full())?);
        match self.log.rotate(0, self.now.wall_ns)? {
            true => Ok(()),
            false => Err(self.full()),
        }
    }

    /// Make the log durable, marked as cleanly stopped; read it back; give it its name. All of it
    /// is durable on return.
    ///
    /// # Errors
    /// When the disk fails, or did not keep what was written.
    pub fn finish(self) -> Result<(), OpenError> {
        let Build {
            fs,
            dir,
            beside,
            log,
            ..
        } = self;
        log.close()?;
        check(&fs, &beside)?;
        publish(&*fs, &beside, &dir)
    }

    fn full(&self) -> OpenError {
        OpenError::Io(StoreError {
            doing: "write all jobs to",
            path: self.dir.clone(),
            cause: "the disk is full; free space, or give a directory on another disk".to_owned(),
        })
    }
}

/// Where a directory grows before it gets its name.
pub(super) fn beside(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(INCOMPLETE);
    dir.with_file_name(name)
}

/// Give a directory whose content is durable its name. Durable on return.
pub(super) fn publish(fs: &dyn Fs, beside: &Path, dir: &Path) -> Result<(), OpenError> {
    let publish = || {
        fs.rename(beside, dir)?;
        fs.sync_dir(parent(dir))
    };
    publish().map_err(|error| OpenError::io("give its name to", dir, &error))
}

/// Read a new log and refuse to call it whole when it is not.
pub(super) fn check(fs: &Arc<dyn Fs>, dir: &Path) -> Result<(), OpenError> {
    let new = Inspection::read(fs.clone(), dir, &mut |_, _| ())?;
    match new.losses.first() {
        None => Ok(()),
        Some(loss) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!("the disk did not keep what was written to it ({loss}); use another"),
        }),
    }
}

/// Nothing is ever overwritten.
pub(super) fn refuse_what_is_there(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
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

fn parent(dir: &Path) -> &Path {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Remove what an interrupted build left in `dir`, and nothing else.
pub(super) fn clear(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
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
