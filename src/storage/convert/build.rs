//! A new log in a new directory, all or nothing: what `repair`, `import` and `load` write with.
//!
//! The records are appended by the code that the server appends with, so the log is whole by
//! construction. It grows beside the directory that was asked for, under its name with
//! [`INCOMPLETE`] behind it; once every byte is durable and has been read back and checked, the
//! directory gets its name. Interrupted at any point there is nothing at the name that was asked
//! for, and the next call begins anew; ended by an error, nothing is left beside it either
//! (`Beside`).

use crate::storage::log::files::Files;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::storage::disk::{DirLock, Fs, ReadFile};
use crate::storage::error::{OpenError, StoreError};
use crate::storage::format::names::LOCK_NAME;
use crate::storage::format::names::parse_spare_name;
use crate::storage::format::{Record, parse_file_name};
use crate::storage::inspect::Inspection;
use crate::storage::log::spares::SEGMENT_SIZE_MIN;
use crate::storage::log::sync::SyncPolicy;
use crate::storage::log::{AppendError, Log, LogOptions, Purpose};
use crate::storage::recover::Replay;
use crate::types::{JobId, Now, Place};

/// What a directory is called behind its name before it is whole.
pub const INCOMPLETE: &str = ".incomplete";

/// A log that is being built. Dropped before [`Build::finish`], it is removed.
#[derive(Debug)]
pub struct Build {
    fs: Arc<dyn Fs>,
    log: Log,
    segment_size: u32,
    now: Now,
    /// Where it grows; behind `log`, which is closed before its files are removed.
    beside: Beside,
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
        let beside = Beside::make(&fs, dir, is_of_a_log)?;
        let options = LogOptions {
            dir: beside.path.clone(),
            sync: SyncPolicy::Never,
            segment_size,
            cache_size: 0,
            log_id: None,
            new_epoch: false,
            waker: None,
        };
        let (log, _) = Log::open(fs.clone(), options, now, &mut Fresh, &|_, _| ())?;
        Ok(Build {
            fs,
            log,
            segment_size,
            now,
            beside,
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
            log,
            beside,
            now,
            ..
        } = self;
        log.close(now.wall_ns)?;
        let held = check(&fs, &beside.path)?;
        beside.publish(held)
    }

    fn full(&self) -> OpenError {
        OpenError::Io(StoreError {
            doing: "write all jobs to",
            path: self.beside.dir.clone(),
            cause: "the disk is full; free space, or give a directory on another disk".to_owned(),
        })
    }
}

/// A directory that grows beside the one that was asked for, until it gets its name. Dropped before
/// that, when an error ends the work, it is removed with all that is in it.
#[derive(Debug)]
pub(in crate::storage) struct Beside {
    fs: Arc<dyn Fs>,
    /// Where it will be.
    dir: PathBuf,
    /// Where it is.
    pub(in crate::storage) path: PathBuf,
    /// Whether a file of this name is part of what grows.
    is_ours: fn(&str) -> bool,
    is_published: bool,
}

impl Beside {
    /// Make it, empty: what an interrupted call left there is removed, and nothing else. `dir` must
    /// be empty or not be there.
    pub(in crate::storage) fn make(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        is_ours: fn(&str) -> bool,
    ) -> Result<Beside, OpenError> {
        refuse_what_is_there(&**fs, dir)?;
        let mut name = dir.file_name().unwrap_or_default().to_owned();
        name.push(INCOMPLETE);
        let path = dir.with_file_name(name);
        fs.create_dir_all(&path)
            .map_err(|error| OpenError::io("create", &path, &error))?;
        clear(&**fs, &path, is_ours)?;
        Ok(Beside {
            fs: fs.clone(),
            dir: dir.to_owned(),
            path,
            is_ours,
            is_published: false,
        })
    }

    /// Give the directory, whose content is durable, its name. Durable on return. `held` keeps
    /// others out until then: whoever opened it before could be told that a job is safe, and lose
    /// the whole directory in a power cut.
    pub(in crate::storage) fn publish<T>(mut self, held: T) -> Result<(), OpenError> {
        let renamed = self.fs.replace(&self.path, &self.dir);
        self.is_published = renamed.is_ok();
        let named = renamed.and_then(|()| self.fs.sync_dir(parent(&self.dir)));
        drop(held);
        named.map_err(|error| OpenError::io("give its name to", &self.dir, &error))
    }

    /// Another call may have begun in the same place: what is locked is not ours.
    fn remove(&self) -> Result<(), OpenError> {
        let _lock = lock_if_ours(&*self.fs, &self.path, self.is_ours)?;
        let remove = || -> io::Result<()> {
            for entry in self.fs.read_dir(&self.path)? {
                if (self.is_ours)(&entry.name) {
                    self.fs.remove_file(&self.path.join(&entry.name))?;
                }
            }
            self.fs.remove_dir(&self.path)
        };
        remove().map_err(|error| OpenError::io("remove", &self.path, &error))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.is_published {
            // What cannot be removed is what a crash would leave: the next call clears it. The error
            // that ended the work is the one to tell of.
            let _ = self.remove();
        }
    }
}

/// Read a new log and refuse to call it whole when it is not. Until the result is dropped nobody
/// else clears it away: what is given its name is what was read.
pub(in crate::storage) fn check(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Inspection, OpenError> {
    let new = Inspection::read(fs.clone(), dir, &mut |_, _| ())?;
    match new.losses.first() {
        None => Ok(new),
        Some(loss) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!("the disk did not keep what was written to it ({loss}); use another"),
        }),
    }
}

/// Nothing is ever overwritten.
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

fn parent(dir: &Path) -> &Path {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether a log that is being built has files of this name.
pub(in crate::storage) fn is_of_a_log(name: &str) -> bool {
    name == LOCK_NAME || parse_file_name(name).is_some() || parse_spare_name(name).is_some()
}

/// Remove what an interrupted call left in `dir`, and nothing else. Where a lock belongs, nobody
/// else may be at work there.
fn clear(fs: &dyn Fs, dir: &Path, is_ours: fn(&str) -> bool) -> Result<(), OpenError> {
    let io = |error| OpenError::io("clear", dir, &error);
    let names = fs.read_dir(dir).map_err(io)?;
    if let Some(other) = names.iter().find(|entry| !is_ours(&entry.name)) {
        return Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "a directory of this name is needed, and there is one that holds {:?}; move it \
                 elsewhere",
                other.name
            ),
        });
    }
    let _lock = lock_if_ours(fs, dir, is_ours)?;
    names
        .iter()
        .filter(|entry| entry.name != LOCK_NAME)
        .try_for_each(|entry| fs.remove_file(&dir.join(&entry.name)))
        .map_err(io)
}

/// Take a directory in which a lock belongs.
fn lock_if_ours(
    fs: &dyn Fs,
    dir: &Path,
    is_ours: fn(&str) -> bool,
) -> Result<Option<Box<dyn DirLock>>, OpenError> {
    match is_ours(LOCK_NAME) {
        true => lock(fs, dir).map(Some),
        false => Ok(None),
    }
}

fn lock(fs: &dyn Fs, dir: &Path) -> Result<Box<dyn DirLock>, OpenError> {
    fs.lock_dir(dir).map_err(|error| error.at(dir))
}

/// A log that has just been made has nothing to replay.
struct Fresh;

impl Replay for Fresh {
    fn replay(
        &mut self,
        _: &mut Files<dyn ReadFile>,
        _: Place,
        _: &Record<'_>,
    ) -> Result<(), String> {
        Err("the directory is not empty".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::Crash;

    /// Both have found the place empty; the one that has not locked it gives up.
    #[test]
    fn who_gives_up_removes_nothing_of_another_who_has_the_same_place() {
        let disk = SimFs::new(1);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let make = || Beside::make(&fs, Path::new("/new"), is_of_a_log).unwrap();
        let (one, other) = (make(), make());
        let held = lock(&*fs, &one.path).unwrap();
        let segment = one.path.join("segment-0000000001.00000");
        disk.write(&segment, b"a log").unwrap();
        drop(other);
        assert_eq!(disk.read(&segment).unwrap(), b"a log");
        drop(held);
        drop(one);
        assert!(disk.names("/new.incomplete").is_err(), "nothing is left");
    }

    /// Looks at what a power cut would leave when it is let go.
    struct Held(SimFs);

    impl Drop for Held {
        fn drop(&mut self) {
            let left = self.0.crash_image(Crash::DropUnsynced);
            assert!(left.names("/new").is_ok(), "its name is not durable");
        }
    }

    #[test]
    fn nobody_is_let_into_a_new_directory_whose_name_a_power_cut_could_take() {
        let disk = SimFs::new(1);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let beside = Beside::make(&fs, Path::new("/new"), is_of_a_log).unwrap();
        beside.publish(Held(disk)).unwrap();
    }
}
