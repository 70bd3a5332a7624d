//! A copy of a log that a server is using, in a directory of its own; and restoring it.
//!
//! | where | what |
//! |---|---|
//! | here | taking a backup |
//! | `manifest` | the list of files of a backup |
//! | `restore` | a data directory from a backup |
//! | `view` | a backup as a log, for reading |
//!
//! A snapshot (`read::snapshot`) is copied: the state of the log at one instant, with everything
//! acknowledged before the backup began. The server is not asked or stopped, and only the reading
//! slows it down. Files are copied, never linked: a start may write to a file that a link would
//! share (it writes unattested bytes again, or a seal over a torn tail), and a bad block would be
//! bad in both.
//!
//! A backup can be repeated into the same directory: unchanged files are not copied again. They are
//! first read and compared with their checksums. A file that has gone bad is copied again, as a new
//! file that takes over its name, so that a hard link to the bad one is unchanged. The order makes
//! it safe to interrupt a backup at any point:
//!
//! 1. Each new file is written under the name `incoming`, read back and checked frame by frame,
//!    synced, and given a name derived from its content. Files of the last backup are not touched.
//! 2. The directory is synced. The manifest replaces the old one, by a rename: from now on the
//!    backup is the new one. The directory is synced again.
//! 3. Files that only the old backup needed are removed.
//!
//! A crash before 2 leaves the old backup and some files that the next backup uses or removes; a
//! crash after it leaves the new one and some files that the next backup removes.

mod manifest;
mod restore;
mod view;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::storage::disk::{
    DirEntry, DirLock, File, Fs, OpenMode, ReadFile, ReadFs, read_exact_at, write_all_at,
};
use crate::storage::error::Damage;
use crate::storage::error::{OpenError, too_few_descriptors};
use crate::storage::format::names::{BACKUP_MANIFEST, LOCK_NAME};
use crate::storage::format::{LogId, SegmentHeader, segment_header};
use crate::storage::incomplete::make_dir;
use crate::storage::inspect::{Inspection, Progress};
use crate::storage::read::scan::{Reader, Step, describe};
use crate::storage::read::{HeldFile, Snapshot};
use crate::types::{Now, Position};

pub use self::manifest::{BackupFile, Manifest};
pub use self::restore::{Restored, restore};
pub(in crate::storage) use self::view::{Fault, View, is_backup};

/// The manifest until it is complete.
const MANIFEST_INCOMING: &str = "backup.manifest.incoming";
/// A file until it is complete.
const INCOMING: &str = "incoming";

/// Bytes copied in one step.
const COPY_SIZE: usize = 1 << 20;
/// The last frame's trailer lies within this distance of the end of a file, bytes.
const END_SIZE: usize = 16;

/// The result of taking a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackedUp {
    /// Files of the backup.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that were copied now; the others were there already.
    pub copied_files: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Copied files that existed but had gone bad: names in the backup.
    pub healed: Vec<String>,
    /// Files of earlier backups that were removed.
    pub removed_files: u64,
    /// Names in the backup's directory that are not part of it; they are left alone.
    pub strangers: Vec<String>,
    /// Where the log ended: everything acknowledged before the backup began lies before it.
    pub end: Position,
}

/// Copy the log in `dir`, which a server may be using, to the backup in `target`: a new one, or one
/// of the same log, which is then updated. Complete and durable on return; until then the last
/// backup in `target` is unchanged. `dir` is only read.
///
/// # Errors
/// * [`OpenError::Damaged`]: the log is damaged; a copy of it could not be restored.
/// * [`OpenError::Foreign`]: `dir` holds no log, or `target` something other than backups of it.
/// * [`OpenError::InUse`]: another backup is being taken into `target`.
/// * [`OpenError::Io`]: a disk operation failed.
///
/// After any of them the call can be repeated.
pub fn back_up(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    target: &Path,
    now: Now,
    progress: Progress<'_>,
) -> Result<BackedUp, OpenError> {
    let Some((snapshot, is_reopened)) = Snapshot::take_of_many(fs.clone(), dir)? else {
        return Err(what_is_wrong(fs, dir));
    };
    let target = Target::open(&**fs, target)?;
    target.refuse_other_logs(&snapshot)?;
    let mut backup = Backup {
        source: dir,
        target: &target,
        done: BackedUp {
            files: snapshot.files.len() as u64,
            bytes: snapshot.size(),
            copied_files: 0,
            copied_bytes: 0,
            healed: Vec::new(),
            removed_files: 0,
            strangers: target.strangers.clone(),
            end: snapshot.end,
        },
        progress,
        passed: 0,
    };
    let files: Result<Vec<BackupFile>, OpenError> = snapshot
        .files
        .iter()
        .map(|held| backup.file(held))
        .collect();
    let mut done = backup.done;
    let files = match is_reopened && !snapshot.is_whole(&**fs) {
        true => Err(too_few_descriptors(dir)),
        false => files,
    };
    let publish = |files| {
        let manifest = Manifest {
            log: snapshot.log,
            taken_wall_ns: now.wall_ns,
            end: snapshot.end,
            files,
        };
        target.publish(&manifest).map(|()| manifest)
    };
    let manifest = files.and_then(publish).inspect_err(|_| target.discard())?;
    done.removed_files = target.remove_all_but(&manifest)?;
    Ok(done)
}

/// Why no backup can be taken of a log without a snapshot.
fn what_is_wrong(fs: &Arc<dyn Fs>, dir: &Path) -> OpenError {
    match Inspection::read_live(fs.clone(), dir, &mut |_, _| ()) {
        Err(error) => error,
        Ok(inspection) if !inspection.is_intact() => OpenError::Damaged {
            dir: dir.to_owned(),
            damages: inspection
                .losses
                .into_iter()
                .map(|loss| loss.damage)
                .collect(),
        },
        Ok(_) => {
            let error = io::Error::other("its files changed faster than they could be listed");
            OpenError::io("hold still for a backup", dir, &error)
        }
    }
}

/// Read the manifest of the backup in `dir`; `None` if `dir` has no manifest.
///
/// # Errors
/// [`OpenError::Foreign`] if it is damaged, [`OpenError::Io`] if it cannot be read.
pub(crate) fn read_manifest(fs: &dyn ReadFs, dir: &Path) -> Result<Option<Manifest>, OpenError> {
    let path = dir.join(BACKUP_MANIFEST);
    let read = || -> io::Result<Vec<u8>> {
        let file = fs.open_read(&path)?;
        let mut bytes = vec![0; file.size()? as usize];
        read_exact_at(&*file, &mut bytes, 0)?;
        Ok(bytes)
    };
    let bytes = match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| OpenError::io("read", &path, &error))?,
    };
    let manifest = Manifest::decode(&bytes).map_err(|what| OpenError::Foreign {
        path,
        what: format!(
            "the backup's list of files is damaged: {what}; take the backup again, or save what can \
             be of it with `bsd-wal restore {} --partial --output NEW`",
            dir.display()
        ),
    })?;
    Ok(Some(manifest))
}

/// True if a file of this name belongs to a backup, finished or interrupted.
fn is_ours(name: &str) -> bool {
    let is_fixed = [BACKUP_MANIFEST, MANIFEST_INCOMING, INCOMING, LOCK_NAME].contains(&name);
    is_fixed || BackupFile::from_stored_name(name).is_some()
}

/// The names that are not part of a backup, in order.
fn strangers(names: &[DirEntry]) -> Vec<String> {
    let strange = names.iter().filter(|entry| !is_ours(&entry.name));
    let mut strangers: Vec<String> = strange.map(|entry| entry.name.clone()).collect();
    strangers.sort_unstable();
    strangers
}

/// Refuse a directory with other content: it must not become a backup.
fn refuse_other_directories(names: &[DirEntry], dir: &Path) -> Result<(), OpenError> {
    match strangers(names).first() {
        Some(other) if !is_backup(names) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "it is no backup, and holds {other:?}; give the directory of an earlier backup, or \
                 one that is empty or does not exist"
            ),
        }),
        _ => Ok(()),
    }
}

fn incomplete(dir: &Path) -> OpenError {
    OpenError::Foreign {
        path: dir.to_owned(),
        what:
            "there is no complete backup here; give the directory that `bsd-wal backup` wrote, or \
               take the backup again"
                .to_owned(),
    }
}

fn wrong_checksum(found: u32, expected: u32) -> String {
    format!("its checksum is {found:08x} instead of {expected:08x}")
}

/// Keep others from taking a backup into the directory, or removing parts of it, meanwhile.
fn lock(fs: &dyn Fs, dir: &Path) -> Result<Box<dyn DirLock>, OpenError> {
    fs.lock_dir(dir)
        .map_err(|error| OpenError::lock(dir, error))
}

/// The directory that receives the backup.
struct Target<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    /// The complete and durable files of existing backups.
    stored: Vec<BackupFile>,
    /// The last backup; `None` before the first, or if its list of files is damaged.
    manifest: Option<Manifest>,
    strangers: Vec<String>,
    _lock: Box<dyn DirLock>,
}

impl<'a> Target<'a> {
    fn open(fs: &'a dyn Fs, dir: &'a Path) -> Result<Target<'a>, OpenError> {
        let list = || {
            fs.read_dir(dir)
                .map_err(|error| OpenError::io("list", dir, &error))
        };
        make_dir(fs, dir)?;
        refuse_other_directories(&list()?, dir)?;
        let lock = lock(fs, dir)?;
        // Again, now that no other backup can change it.
        let names = list()?;
        let stored = names
            .iter()
            .filter_map(|entry| BackupFile::from_stored_name(&entry.name))
            .collect();
        let target = Target {
            fs,
            dir,
            stored,
            manifest: match read_manifest(fs, dir) {
                // The new one takes its place.
                Err(OpenError::Foreign { .. }) => None,
                read => read?,
            },
            strangers: strangers(&names),
            _lock: lock,
        };
        for name in [INCOMING, MANIFEST_INCOMING] {
            if names.iter().any(|entry| entry.name == name) {
                target.remove(name)?;
            }
        }
        Ok(target)
    }

    fn refuse_other_logs(&self, snapshot: &Snapshot) -> Result<(), OpenError> {
        let is_other = match &self.manifest {
            Some(manifest) => manifest.log != snapshot.log,
            None => self.stored.iter().any(|stored| {
                let log = self.log_of(stored);
                log.is_some_and(|log| log != snapshot.log)
            }),
        };
        if is_other {
            Err(OpenError::Foreign {
                path: self.dir.to_owned(),
                what: "it holds a backup of another log, which is left as it is; give another \
                       directory"
                    .to_owned(),
            })
        } else {
            Ok(())
        }
    }

    /// The log that a stored file belongs to, as far as the file says so.
    fn log_of(&self, stored: &BackupFile) -> Option<LogId> {
        let path = self.dir.join(stored.stored_name());
        let file = self.fs.open_read(&path).ok()?;
        let mut header = [0; segment_header::SIZE];
        read_exact_at(&*file, &mut header, 0).ok()?;
        Some(SegmentHeader::decode(&header).ok()?.identity.log)
    }

    /// A sound copy of a file that is already there, if any. Each frame repeats the checksum of the
    /// one before, so the same last checksum means the same content.
    fn find(
        &self,
        held: &HeldFile,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<Option<BackupFile>> {
        let name = held.name();
        let mut candidates = self
            .stored
            .iter()
            .filter(|stored| stored.name == name && stored.size == held.size);
        let wanted = ends(&*held.file, held.size)?;
        let mut is_sound = |stored: &BackupFile| -> io::Result<bool> {
            let path = self.dir.join(stored.stored_name());
            let file = self.fs.open_read(&path)?;
            Ok(file.size()? == held.size
                && ends(&*file, held.size)? == wanted
                && checksum(self.fs, &path, held.size, progress)? == stored.crc)
        };
        // A file that the disk does not return is bad, too.
        let sound = candidates.find(|stored| is_sound(stored).unwrap_or(false));
        Ok(sound.cloned())
    }

    fn create(&self, name: &str) -> io::Result<(PathBuf, Arc<dyn File>)> {
        let path = self.dir.join(name);
        let file = self.fs.open(&path, OpenMode::CreateNew)?;
        Ok((path, file))
    }

    /// Make the backup that `manifest` describes, whose files are there, the current one.
    fn publish(&self, manifest: &Manifest) -> Result<(), OpenError> {
        let publish = || -> io::Result<()> {
            // A manifest must not be there before the files that it names.
            self.fs.sync_dir(self.dir)?;
            let (path, file) = self.create(MANIFEST_INCOMING)?;
            write_all_at(&*file, manifest.encode().as_bytes(), 0)?;
            file.sync()?;
            self.fs.replace(&path, &self.dir.join(BACKUP_MANIFEST))?;
            self.fs.sync_dir(self.dir)
        };
        publish().map_err(|error| OpenError::io("finish the backup in", self.dir, &error))
    }

    /// Remove the files that this backup does not need; returns how many there were.
    fn remove_all_but(&self, manifest: &Manifest) -> Result<u64, OpenError> {
        let needed: BTreeSet<String> = manifest.files.iter().map(BackupFile::stored_name).collect();
        let mut removed = 0;
        let stored = self.stored.iter().map(BackupFile::stored_name);
        for name in stored.filter(|name| !needed.contains(name)) {
            self.remove(&name)?;
            removed += 1;
        }
        if removed > 0 {
            self.fs
                .sync_dir(self.dir)
                .map_err(|error| OpenError::io("sync", self.dir, &error))?;
        }
        Ok(removed)
    }

    /// Remove incomplete files. The next backup removes what cannot be removed now; the error that
    /// ended this backup is the one to report.
    fn discard(&self) {
        for name in [INCOMING, MANIFEST_INCOMING] {
            let _ = self.fs.remove_file(&self.dir.join(name));
        }
    }

    fn remove(&self, name: &str) -> Result<(), OpenError> {
        let path = self.dir.join(name);
        self.fs
            .remove_file(&path)
            .map_err(|error| OpenError::io("remove", &path, &error))
    }
}

/// The header of a segment file, and the last bytes of its last frame.
fn ends(file: &dyn ReadFile, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; segment_header::SIZE + END_SIZE];
    let (head, tail) = bytes.split_at_mut(segment_header::SIZE);
    read_exact_at(file, head, 0)?;
    read_exact_at(file, tail, size.saturating_sub(END_SIZE as u64))?;
    Ok(bytes)
}

/// The CRC-32 of the first `size` bytes of a file, as the disk gives them.
fn checksum(
    fs: &dyn ReadFs,
    path: &Path,
    size: u64,
    progress: &mut dyn FnMut(u64),
) -> io::Result<u32> {
    let file = fs.open_read(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; COPY_SIZE.min(size as usize)];
    let mut at = 0;
    while at < size {
        let count = buffer.len().min((size - at) as usize);
        read_exact_at(&*file, &mut buffer[..count], at)?;
        hasher.update(&buffer[..count]);
        at += count as u64;
        progress(at);
    }
    Ok(hasher.finalize())
}

/// Copy `size` bytes; returns their CRC-32.
fn copy(
    from: &dyn ReadFile,
    to: &dyn File,
    size: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<u32, CopyError> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; COPY_SIZE.min(size as usize)];
    let mut at = 0;
    while at < size {
        let count = buffer.len().min((size - at) as usize);
        let bytes = &mut buffer[..count];
        read_exact_at(from, bytes, at).map_err(CopyError::Read)?;
        hasher.update(bytes);
        write_all_at(to, bytes, at).map_err(CopyError::Write)?;
        at += count as u64;
        progress(at);
    }
    Ok(hasher.finalize())
}

/// Which side failed.
enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

impl CopyError {
    fn at(self, from: &Path, to: &Path) -> OpenError {
        match self {
            CopyError::Read(error) => OpenError::io("read", from, &error),
            CopyError::Write(error) => OpenError::io("write", to, &error),
        }
    }
}

/// A backup in progress.
struct Backup<'a, 'b> {
    source: &'a Path,
    target: &'a Target<'a>,
    done: BackedUp,
    progress: Progress<'b>,
    /// Bytes of the finished files.
    passed: u64,
}

impl Backup<'_, '_> {
    /// Make sure that there is a durable copy of a file.
    fn file(&mut self, held: &HeldFile) -> Result<BackupFile, OpenError> {
        let io = |error| {
            OpenError::io(
                "compare with the last backup",
                &self.source.join(held.name()),
                &error,
            )
        };
        let (passed, bytes, progress) = (self.passed, self.done.bytes, &mut *self.progress);
        let mut read = |at| progress(passed + at, bytes);
        let file = match self.target.find(held, &mut read).map_err(io)? {
            Some(file) => file,
            None => self.copy(held)?,
        };
        self.passed += held.size;
        (self.progress)(self.passed, self.done.bytes);
        Ok(file)
    }

    fn copy(&mut self, held: &HeldFile) -> Result<BackupFile, OpenError> {
        let target = self.target;
        let (from, to) = (self.source.join(held.name()), target.dir.join(INCOMING));
        let write = |error| OpenError::io("write", &to, &error);
        let (path, file) = target.create(INCOMING).map_err(write)?;
        let (passed, bytes, progress) = (self.passed, self.done.bytes, &mut *self.progress);
        let crc = copy(&*held.file, &*file, held.size, &mut |at| {
            progress(passed + at, bytes)
        })
        .map_err(|error| error.at(&from, &to))?;
        file.sync().map_err(write)?;
        self.check(held, &file)?;
        let copied = BackupFile {
            name: held.name(),
            size: held.size,
            crc,
        };
        target
            .fs
            .replace(&path, &target.dir.join(copied.stored_name()))
            .map_err(write)?;
        if target.stored.contains(&copied) {
            self.done.healed.push(copied.stored_name());
        }
        self.done.copied_files += 1;
        self.done.copied_bytes += held.size;
        Ok(copied)
    }

    /// Check that every frame of the copy is sound, up to the end of the file according to the log.
    fn check(&self, held: &HeldFile, copy: &Arc<dyn File>) -> Result<(), OpenError> {
        let start = segment_header::SIZE as u32;
        let mut reader = Reader::new(copy.clone(), held.seed, held.size, start);
        let io = |error| OpenError::io("read back", &self.target.dir.join(INCOMING), &error);
        while reader.at() < held.entry.end {
            if let Step::Bad(fault) = reader.step().map_err(io)? {
                let at = u64::from(reader.at());
                return Err(OpenError::Damaged {
                    dir: self.source.to_owned(),
                    damages: vec![Damage::new(
                        held.name(),
                        Some((at, held.size.saturating_sub(at))),
                        describe(fault),
                    )],
                });
            }
        }
        Ok(())
    }
}
