//! A new log in a new directory, all or nothing: `repair`, `import` and `load` write with it.
//!
//! The server's own code appends the records, so the log is correct by construction. It grows next
//! to the requested directory (`incomplete`); after every byte is durable, read back and checked,
//! the directory gets its name.

use std::path::Path;
use std::sync::Arc;

use crate::ErrorClass;
use crate::storage::disk::Fs;
use crate::storage::error::OpenError;
use crate::storage::format::Record;
use crate::storage::format::names::is_of_a_log;
use crate::storage::incomplete::IncompleteDir;
use crate::storage::inspect::Inspection;
use crate::storage::log::sync::SyncPolicy;
use crate::storage::log::{AppendError, Log, LogOptions, Purpose};
use crate::storage::recover::Fresh;
use crate::types::{JobId, Now};

/// A log that is being built. Dropped before [`Build::finish`], it is removed.
#[derive(Debug)]
pub struct Build {
    fs: Arc<dyn Fs>,
    log: Log,
    now: Now,
    /// Where it grows; declared after `log`, which is closed before its files are removed.
    incomplete: IncompleteDir,
}

impl Build {
    /// Start a log that will be at `dir`, which must be empty or missing, in segments of
    /// `segment_size` bytes. A record that is larger gets a segment that fits it.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] if `dir` is not empty, or if the incomplete directory holds anything
    /// that an interrupted build did not leave; otherwise if the disk fails.
    pub fn begin(
        fs: Arc<dyn Fs>,
        dir: &Path,
        segment_size: u32,
        now: Now,
    ) -> Result<Build, OpenError> {
        let incomplete = IncompleteDir::make(&fs, dir, is_of_a_log)?;
        let options = LogOptions {
            dir: incomplete.path.clone(),
            sync: SyncPolicy::Never,
            segment_size,
            cache_size: 0,
            log_id: None,
            new_epoch: false,
            standby: false,
            member: false,
            waker: None,
        };
        let (log, _) = Log::open(fs.clone(), options, now, &mut Fresh, &|_, _| ())?;
        Ok(Build {
            fs,
            log,
            now,
            incomplete,
        })
    }

    /// Add a record to the history, in the order of recovery: the put of a job comes before its
    /// updates, and the last update of each buried job determines the order of the buried ones.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn append(&mut self, record: &Record<'_>) -> Result<(), OpenError> {
        // All the space set aside may be used: there are no clients.
        match self.log.append(record, Purpose::Delete, self.now.wall_ns) {
            Ok(_) => Ok(()),
            Err(AppendError::NoRoom(class)) => Err(self.no_room(class)),
            Err(AppendError::Failed(error)) => Err(error.into()),
        }
    }

    /// Make sure that a server that continues this log gives out no id below `next_id`. Call it
    /// after the last record.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn skip_ids(&mut self, next_id: JobId) -> Result<(), OpenError> {
        match self.log.skip_ids(next_id, self.now.wall_ns)? {
            true => Ok(()),
            false => Err(self.no_room(self.log.lacking())),
        }
    }

    /// Make the log durable, marked as cleanly stopped; read it back; give it its name. All of it
    /// is durable on return.
    ///
    /// # Errors
    /// If the disk fails, or did not keep what was written.
    pub fn finish(self) -> Result<(), OpenError> {
        let Build {
            fs,
            log,
            incomplete,
            now,
            ..
        } = self;
        log.close(now.wall_ns)?;
        let held = check(&fs, &incomplete.path)?;
        incomplete.publish(held)
    }

    fn no_room(&self, class: ErrorClass) -> OpenError {
        OpenError::no_room("write all jobs to", &self.incomplete.dir, class)
    }
}

/// Read a new log and fail if it is not intact. Until the result is dropped nothing else removes
/// the log: exactly what was read gets its name.
pub(in crate::storage) fn check(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Inspection, OpenError> {
    let new = Inspection::read(fs.clone(), dir, &mut |_, _| ())?;
    match new.losses.first() {
        None => Ok(new),
        Some(loss) => Err(OpenError::not_kept(dir, loss)),
    }
}
