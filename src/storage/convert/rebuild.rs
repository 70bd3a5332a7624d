//! A data directory from the files of a log and the records that came after them: all or nothing.
//!
//! The files are those of the log at one position. The records cannot be taken over as segments:
//! the switches among them name files that compaction made of others, elsewhere. So the log is
//! opened with a new epoch, as after a restore of a backup, and the records are appended to it as
//! the changes that they are. What is about files, manifests and switches, is left out. The delete
//! of a job names the segment in which the job's put lies here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::build::check;
use crate::ErrorClass;
use crate::storage::disk::{DirLock, File, Fs, OpenMode, ReadFile, write_all_at};
use crate::storage::error::{OpenError, ReplayError};
use crate::storage::format::names::is_of_a_log;
use crate::storage::format::{LogId, Record, Stamp, parse_file_name};
use crate::storage::format::{SEGMENT_SIZE_DEFAULT, SEGMENT_SIZE_MIN};
use crate::storage::incomplete::IncompleteDir;
use crate::storage::log::files::Files;
use crate::storage::log::skip::Life;
use crate::storage::log::sync::SyncPolicy;
use crate::storage::log::{AppendError, Log, LogOptions, Purpose};
use crate::storage::marker_file::write_marker;
use crate::storage::recover::Replay;
use crate::types::{JobId, Now, Place, SegmentId};

/// The files of a log, as they arrive. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Rebuild {
    fs: Arc<dyn Fs>,
    /// Another call for the same directory is refused, and removes nothing here.
    building: Box<dyn DirLock>,
    file: Option<Arc<dyn File>>,
    /// Bytes of the largest file.
    size_max: u64,
    incomplete: IncompleteDir,
}

impl Rebuild {
    /// Begin a data directory that will be at `dir`, which must be empty or missing.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] if `dir` is not empty; [`OpenError::InUse`] if another process makes
    /// it; otherwise if the disk fails.
    pub fn begin(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Rebuild, OpenError> {
        let incomplete = IncompleteDir::make(fs, dir, is_of_a_log)?;
        let building = fs
            .lock_dir(&incomplete.path)
            .map_err(|error| OpenError::lock(&incomplete.path, error))?;
        Ok(Rebuild {
            fs: fs.clone(),
            building,
            file: None,
            size_max: 0,
            incomplete,
        })
    }

    /// The next bytes of a file of the log, from `offset` on; 0 begins it. Files come one after
    /// another.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] if no file of a log has this name; otherwise if the disk fails.
    pub fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), OpenError> {
        let path = self.incomplete.path.join(name);
        if parse_file_name(name).is_none() {
            let what = "a base names it, and it is no file of a log; use another base".to_owned();
            return Err(OpenError::Foreign { path, what });
        }
        let io = |error| OpenError::io("write", &path, &error);
        if offset == 0 {
            self.sync()?;
            self.file = Some(self.fs.open(&path, OpenMode::CreateNew).map_err(io)?);
        }
        self.size_max = self.size_max.max(offset + bytes.len() as u64);
        match &self.file {
            Some(file) => write_all_at(&**file, bytes, offset).map_err(io),
            None => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<(), OpenError> {
        let synced = self.file.take().map_or(Ok(()), |file| file.sync());
        synced.map_err(|error| OpenError::io("sync a file in", &self.incomplete.path, &error))
    }

    /// All files are there: open them as the log `log`, or as whatever log they are, in a new epoch.
    ///
    /// # Errors
    /// If they are damaged, or of another log; or if the disk fails.
    pub fn open(mut self, log: impl Into<Option<LogId>>, now: Now) -> Result<Rebuilt, OpenError> {
        self.sync()?;
        let Rebuild {
            fs,
            building,
            incomplete,
            size_max,
            ..
        } = self;
        let path = incomplete.path.clone();
        fs.sync_dir(&path)
            .map_err(|error| OpenError::io("sync", &path, &error))?;
        drop(building);
        let options = LogOptions {
            dir: path.clone(),
            sync: SyncPolicy::Never,
            // Segments like those that there are; a server makes the next ones in its own size.
            segment_size: size_max.clamp(SEGMENT_SIZE_MIN.into(), SEGMENT_SIZE_DEFAULT.into())
                as u32,
            cache_size: 0,
            log_id: None,
            new_epoch: true,
            standby: false,
            member: false,
            waker: None,
        };
        let mut puts = Puts::default();
        let (opened, _) = Log::open(fs.clone(), options, now, &mut puts, &|_, _| ())?;
        if log.into().is_some_and(|log| opened.files().log() != log) {
            let what = "its files are those of another log; use another base".to_owned();
            return Err(OpenError::Foreign { path, what });
        }
        Ok(Rebuilt {
            log: opened,
            puts,
            next_id: JobId(0),
            records: 0,
            fs,
            now,
            incomplete,
        })
    }
}

/// A log of the base's files, to which records are added. Dropped before [`Rebuilt::finish`], it
/// leaves nothing.
#[derive(Debug)]
pub struct Rebuilt {
    log: Log,
    puts: Puts,
    next_id: JobId,
    records: u64,
    fs: Arc<dyn Fs>,
    now: Now,
    /// Declared after `log`, which is closed before its files are removed.
    incomplete: IncompleteDir,
}

/// In which segment the put of each job lies.
#[derive(Debug, Default)]
struct Puts(HashMap<JobId, SegmentId>);

impl Replay for Puts {
    fn replay(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
    ) -> Result<(), ReplayError> {
        match *record {
            Record::Put { id, .. } => {
                self.0.insert(id, files.segment_of(place));
            }
            Record::Delete { id, .. } => {
                self.0.remove(&id);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Rebuilt {
    /// Records that were added.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The jobs that there are now.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.puts.0.len() as u64
    }

    /// Add the next record of history.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] if it cannot follow what is there; otherwise if the disk is full or
    /// fails.
    pub fn apply(&mut self, record: &Record<'_>) -> Result<(), OpenError> {
        match *record {
            Record::Manifest { next_id, .. } => {
                self.next_id = self.next_id.max(next_id);
                return Ok(());
            }
            Record::Switch { .. } => return Ok(()),
            Record::Put { id, .. } if self.puts.0.contains_key(&id) => {
                return Err(self.contradiction(id, "put a second time"));
            }
            Record::Update { id, .. } | Record::Attributes { id, .. }
                if !self.puts.0.contains_key(&id) =>
            {
                return Err(self.contradiction(id, "changed and was not put"));
            }
            Record::Delete { id, .. } => {
                let Some(put_segment) = self.puts.0.remove(&id) else {
                    return Err(self.contradiction(id, "deleted and was not put"));
                };
                self.append(&Record::Delete { id, put_segment })?;
            }
            _ => {
                let place = self.append(record)?;
                if let Record::Put { id, .. } = *record {
                    self.puts.0.insert(id, self.log.files().segment_of(place));
                }
            }
        }
        self.records += 1;
        Ok(())
    }

    fn append(&mut self, record: &Record<'_>) -> Result<Place, OpenError> {
        // All the space set aside may be used: there are no clients.
        let appended = self.log.append(record, Purpose::Delete, self.now.wall_ns);
        appended.map_err(|error| match error {
            AppendError::NoRoom(class) => self.no_room(class),
            AppendError::Failed(error) => error.into(),
        })
    }

    fn no_room(&self, class: ErrorClass) -> OpenError {
        OpenError::no_room("write all changes to", &self.incomplete.path, class)
    }

    fn contradiction(&self, id: JobId, what: &str) -> OpenError {
        OpenError::Foreign {
            path: self.incomplete.path.clone(),
            what: format!(
                "the records do not follow the files: job {id} is {what}; restore up to an earlier \
                 moment"
            ),
        }
    }

    /// Up to which entry of a replicated log it goes.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.log.stamp()
    }

    /// The files are those of a log that goes up to this entry of a replicated one.
    pub fn set_stamp(&mut self, stamp: Stamp) {
        self.log.stamps.pass(stamp);
    }

    /// It takes the place of the log of which it is made, whose end may be lost: leave out the ids that
    /// this end may have used, in a segment with a number greater than `past`. The log before it has the
    /// jobs that there are now.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn begin_life(&mut self, past: SegmentId) -> Result<Life, OpenError> {
        self.log.next_id = self.log.next_id.max(self.next_id);
        let begun = self.log.skip_lost_ids(past, self.now.wall_ns)?;
        begun.ok_or_else(|| self.no_room(self.log.lacking()))
    }

    /// Make all of it durable, read it back, and give the directory its name; `marker` is a file that
    /// says what it is, and what that says. Durable on return.
    ///
    /// # Errors
    /// If the disk is full or fails, or did not keep what was written.
    pub fn finish(mut self, marker: Option<(&str, &[u8])>) -> Result<(), OpenError> {
        if !self.log.skip_ids(self.next_id, self.now.wall_ns)? {
            return Err(self.no_room(self.log.lacking()));
        }
        let Rebuilt {
            log,
            fs,
            incomplete,
            now,
            ..
        } = self;
        log.close(now.wall_ns)?;
        if let Some((name, marker)) = marker {
            write_marker(&*fs, &incomplete.path, name, marker)?;
        }
        let held = check(&fs, &incomplete.path)?;
        incomplete.publish(held)
    }
}
