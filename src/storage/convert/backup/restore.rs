//! A data directory from a backup.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::manifest::{BackupFile, Manifest};
use super::{copy, incomplete, lock, read_manifest, strangers, wrong_checksum};
use crate::storage::convert::build::check;
use crate::storage::disk::{DirLock, Fs, LockError, OpenMode, ReadFs};
use crate::storage::error::OpenError;
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::names::is_of_a_log;
use crate::storage::incomplete::IncompleteDir;
use crate::storage::inspect::Progress;
use crate::storage::log::sync::SyncPolicy;
use crate::storage::log::{Log, LogOptions};
use crate::storage::recover::Anything;
use crate::types::{Now, Position, SegmentId};

/// Result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Files of the log.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Where the log ended when the backup was taken.
    pub end: Position,
    /// When that was: wall time, ns since 1970.
    pub taken_wall_ns: u64,
    /// Names in the backup's directory that are not part of it; they were left out.
    pub strangers: Vec<String>,
}

/// Make a data directory `dir`, which must be empty or missing, from the backup in `backup`: all or
/// nothing. Every byte is checked against the manifest, and then every frame and record. The log
/// begins a new epoch there, in a segment of its own, because the original may have continued; for the
/// same reason it leaves out ids. Durable on return. The backup is only read; an interrupted call can be repeated.
///
/// # Errors
/// * [`OpenError::Foreign`]: `backup` is no complete backup, or differs from its manifest; or `dir`
///   is not empty.
/// * [`OpenError::InUse`]: a backup is being taken into `backup`, or another restore is making
///   `dir`.
/// * [`OpenError::Io`]: a disk operation failed.
pub fn restore(
    fs: &Arc<dyn Fs>,
    backup: &Path,
    dir: &Path,
    now: Now,
    progress: Progress<'_>,
) -> Result<Restored, OpenError> {
    let _lock = share(&**fs, backup)?;
    let (manifest, strangers) = check_names(&**fs, backup)?;
    let incomplete = IncompleteDir::make(fs, dir, is_of_a_log)?;
    // Another restore to the same place gets this error, and removes nothing here.
    let building = lock(&**fs, &incomplete.path)?;
    let (mut passed, total) = (0, manifest.size());
    for file in &manifest.files {
        let mut so_far = |at| progress(passed + at, total);
        restore_file(&**fs, backup, &incomplete.path, file, &mut so_far)?;
        passed += file.size;
    }
    fs.sync_dir(&incomplete.path)
        .map_err(|error| OpenError::io("sync", &incomplete.path, &error))?;
    drop(building);
    begin_epoch(fs, &incomplete.path, now)?;
    let held = check(fs, &incomplete.path)?;
    incomplete.publish(held)?;
    Ok(Restored {
        files: manifest.files.len() as u64,
        bytes: total,
        end: manifest.end,
        taken_wall_ns: manifest.taken_wall_ns,
        strangers,
    })
}

/// Let the log in `dir` continue in a new epoch.
fn begin_epoch(fs: &Arc<dyn Fs>, dir: &Path, now: Now) -> Result<(), OpenError> {
    let options = LogOptions {
        dir: dir.to_owned(),
        sync: SyncPolicy::Never,
        segment_size: SEGMENT_SIZE_MIN,
        cache_size: 0,
        log_id: None,
        new_epoch: true,
        standby: false,
        member: false,
        waker: None,
    };
    let (mut log, _) = Log::open(fs.clone(), options, now, &mut Anything, &|_, _| ())?;
    if log.skip_lost_ids(SegmentId(0), now.wall_ns)?.is_none() {
        let class = log.lacking();
        return Err(OpenError::no_room("write the next id to", dir, class));
    }
    Ok(log.close(now.wall_ns)?)
}

/// Keep others from taking a backup into `dir` meanwhile.
fn share(fs: &dyn ReadFs, dir: &Path) -> Result<Option<Box<dyn DirLock>>, OpenError> {
    match fs.share_dir(dir) {
        // It cannot be locked here, so nothing else can take a backup into it either.
        Err(LockError::Io(_)) => Ok(None),
        lock => lock.map(Some).map_err(|error| OpenError::lock(dir, error)),
    }
}

/// The manifest, whose files are all there with their sizes; and the names of other files.
fn check_names(fs: &dyn ReadFs, dir: &Path) -> Result<(Manifest, Vec<String>), OpenError> {
    let Some(manifest) = read_manifest(fs, dir)? else {
        return Err(incomplete(dir));
    };
    let names = fs
        .read_dir(dir)
        .map_err(|error| OpenError::io("list", dir, &error))?;
    for file in &manifest.files {
        let stored = file.stored_name();
        match names.iter().find(|entry| entry.name == stored) {
            None => return Err(differs(dir, &stored, "it is missing")),
            Some(entry) if entry.size != file.size => {
                let what = format!("it has {} bytes instead of {}", entry.size, file.size);
                return Err(differs(dir, &stored, &what));
            }
            Some(_) => {}
        }
    }
    Ok((manifest, strangers(&names)))
}

fn differs(backup: &Path, stored: &str, what: &str) -> OpenError {
    OpenError::Foreign {
        path: backup.join(stored),
        what: format!(
            "this file of the backup is not as it was when the backup was taken: {what}; nothing \
             was restored; use another backup, or save what can be of this one with `bsd-wal restore \
             {} --partial --output NEW`",
            backup.display()
        ),
    }
}

/// Copy a file to its place, durably, and check every byte of it.
fn restore_file(
    fs: &dyn Fs,
    backup: &Path,
    dir: &Path,
    file: &BackupFile,
    progress: &mut dyn FnMut(u64),
) -> Result<(), OpenError> {
    let (from, to) = (backup.join(file.stored_name()), dir.join(&file.name));
    let source = fs
        .open_read(&from)
        .map_err(|error| OpenError::io("read", &from, &error))?;
    let write = |error: io::Error| OpenError::io("write", &to, &error);
    let target = fs.open(&to, OpenMode::CreateNew).map_err(write)?;
    let crc =
        copy(&*source, &*target, file.size, progress).map_err(|error| error.at(&from, &to))?;
    if crc != file.crc {
        let what = wrong_checksum(crc, file.crc);
        return Err(differs(backup, &file.stored_name(), &what));
    }
    target.sync().map_err(write)
}
