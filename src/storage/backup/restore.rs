//! A data directory from a backup.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::{BackupFile, Manifest};
use super::{copy, lock, make_dir, read_manifest, refuse_strangers};
use crate::storage::build::{Beside, check, is_of_a_log};
use crate::storage::error::OpenError;
use crate::storage::fs::{DirLock, Fs, LockError, OpenMode};
use crate::storage::inspect::Progress;
use crate::types::Position;

/// What was restored.
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
}

/// Make a data directory `dir`, which must be empty or not be there, from the backup in `backup`:
/// all or nothing. Every byte is checked against the manifest, and then every frame and record.
/// Durable on return. The backup is only read; an interrupted call can be made again.
///
/// # Errors
/// * [`OpenError::Foreign`]: `backup` is no complete backup, or something in it is not as its manifest
///   says; or `dir` holds anything.
/// * [`OpenError::InUse`]: a backup is being taken into `backup`, or another restore is making `dir`.
/// * [`OpenError::Io`]: the disk.
pub fn restore(
    fs: &Arc<dyn Fs>,
    backup: &Path,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<Restored, OpenError> {
    let _lock = share(&**fs, backup)?;
    let manifest = check_names(&**fs, backup)?;
    let beside = Beside::make(fs, dir, is_of_a_log)?;
    make_dir(&**fs, &beside.path)?;
    // Who restores to the same place meanwhile is told so, and clears nothing away here.
    let building = lock(&**fs, &beside.path)?;
    let (mut passed, total) = (0, manifest.size());
    for file in &manifest.files {
        let mut so_far = |at| progress(passed + at, total);
        restore_file(&**fs, backup, &beside.path, file, &mut so_far)?;
        passed += file.size;
    }
    fs.sync_dir(&beside.path)
        .map_err(|error| OpenError::io("sync", &beside.path, &error))?;
    drop(building);
    let held = check(fs, &beside.path)?;
    beside.publish(held)?;
    Ok(Restored {
        files: manifest.files.len() as u64,
        bytes: total,
        end: manifest.end,
        taken_wall_ns: manifest.taken_wall_ns,
    })
}

/// Keep out who would take a backup into `dir` meanwhile.
fn share(fs: &dyn Fs, dir: &Path) -> Result<Option<Box<dyn DirLock>>, OpenError> {
    match fs.share_dir(dir) {
        // It cannot be locked here: not by who would take a backup into it, either.
        Err(LockError::Io(_)) => Ok(None),
        lock => lock.map(Some).map_err(|error| error.at(dir)),
    }
}

/// The manifest, all of whose files are there, in their size, and nothing else but what an
/// interrupted backup leaves.
fn check_names(fs: &dyn Fs, dir: &Path) -> Result<Manifest, OpenError> {
    let Some(manifest) = read_manifest(fs, dir)? else {
        return Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: "there is no complete backup here; give the directory that `bsd-wal backup` \
                   wrote, or take the backup again"
                .to_owned(),
        });
    };
    let names = fs
        .read_dir(dir)
        .map_err(|error| OpenError::io("list", dir, &error))?;
    refuse_strangers(&names, dir)?;
    for file in &manifest.files {
        let stored = file.stored_name();
        match names.iter().find(|entry| entry.name == stored) {
            None => return Err(differs(dir.join(stored), "it is missing".to_owned())),
            Some(entry) if entry.size != file.size => {
                let what = format!("it has {} bytes instead of {}", entry.size, file.size);
                return Err(differs(dir.join(stored), what));
            }
            Some(_) => {}
        }
    }
    Ok(manifest)
}

fn differs(path: PathBuf, what: String) -> OpenError {
    OpenError::Foreign {
        path,
        what: format!(
            "this file of the backup is not as it was when the backup was taken: {what}; nothing \
             was restored; use another backup"
        ),
    }
}

/// Copy a file to its place, durably, and check every byte of it on the way.
fn restore_file(
    fs: &dyn Fs,
    backup: &Path,
    dir: &Path,
    file: &BackupFile,
    progress: &mut dyn FnMut(u64),
) -> Result<(), OpenError> {
    let (from, to) = (backup.join(file.stored_name()), dir.join(&file.name));
    let source = fs
        .open(&from, OpenMode::Read)
        .map_err(|error| OpenError::io("read", &from, &error))?;
    let write = |error: io::Error| OpenError::io("write", &to, &error);
    let target = fs.open(&to, OpenMode::CreateNew).map_err(write)?;
    let crc =
        copy(&*source, &*target, file.size, progress).map_err(|error| error.at(&from, &to))?;
    if crc != file.crc {
        let expected = file.crc;
        return Err(differs(
            from,
            format!("its checksum is {crc:08x} instead of {expected:08x}"),
        ));
    }
    target.sync().map_err(write)
}
