//! A copy of a log that a server is using, in a directory of its own, and the way back.
//!
//! | where | what |
//! |---|---|
//! | here | taking a backup |
//! | `manifest` | what a backup consists of, as a file |
//! | `restore` | a data directory from a backup |
//!
//! What is copied is a snapshot (`storage::snapshot`): what the log was at one instant, with
//! everything in it that had been acknowledged before the backup began. The server is not asked, not
//! stopped, and not slowed down but by the reading. Files are copied, never linked: a start may write to a file that a link
//! would share (the bytes that nothing attests, once more; a seal over a torn tail), and a block that
//! goes bad would be bad in both.
//!
//! A backup can be taken again into the same directory: what has not changed since is not copied
//! again. The order is what makes it safe to interrupt at any point:
//!
//! 1. Each new file is written under the name `incoming`, read back and checked frame by frame,
//!    synced, and given a name that tells its content. Nothing that the last backup needs is touched.
//! 2. The directory is synced. The manifest replaces the old one, by a rename: from now on the
//!    backup is the new one. The directory is synced again.
//! 3. What only the old one needed is removed.
//!
//! A crash before 2 leaves the old backup and some files that the next one uses or removes; after
//! it, the new one and some that the next one removes.

mod manifest;
mod restore;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::OpenError;
use super::format::segment_header;
use super::fs::{DirEntry, DirLock, File, Fs, OpenMode, read_exact_at, write_all_at};
use super::inspect::{Inspection, Progress};
use super::lock::LOCK_NAME;
use super::scan::{Damage, Reader, Step, describe};
use super::snapshot::{HeldFile, Snapshot};
use crate::types::{Now, Position};

pub use self::manifest::{BackupFile, Manifest};
pub use self::restore::{Restored, restore};

/// The name of the manifest.
pub const MANIFEST: &str = "backup.manifest";
/// The manifest until it is whole.
const MANIFEST_INCOMING: &str = "backup.manifest.incoming";
/// A file until it is whole.
const INCOMING: &str = "incoming";

/// Bytes that are copied at once.
const COPY_SIZE: usize = 1 << 20;
/// The last frame's trailer lies in so many bytes before the end of a file.
const END_SIZE: usize = 16;

/// What taking a backup came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackedUp {
    /// Files and bytes of the backup.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that were copied now; the others were there.
    pub copied_files: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Files of earlier backups that were removed.
    pub removed_files: u64,
    /// Where the log ended: what was acknowledged before the backup began lies before.
    pub end: Position,
}

/// Copy the log in `dir`, which a server may be using, to the backup in `target`: a new one, or one
/// of the same log, which is then brought up to date. Complete and durable on return; until then
/// the last backup in `target` is as it was. `dir` is only read.
///
/// # Errors
/// * [`OpenError::Damaged`]: the log is; a copy of it could not be restored.
/// * [`OpenError::Foreign`]: `dir` holds no log, or `target` something else than backups of it.
/// * [`OpenError::InUse`]: another backup is being taken into `target`.
/// * [`OpenError::Io`]: the disk.
///
/// After any of them the call can be made again.
pub fn back_up(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    target: &Path,
    now: Now,
    progress: Progress<'_>,
) -> Result<BackedUp, OpenError> {
    let snapshot = match Snapshot::take(&**fs, dir)? {
        Some(snapshot) => snapshot,
        None => return Err(what_is_wrong(fs, dir)),
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
            removed_files: 0,
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

/// Why no backup can be taken of a log that cannot be held still.
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

/// Read the manifest of the backup in `dir`; `None` where there is none.
///
/// # Errors
/// [`OpenError::Foreign`] when it is damaged, [`OpenError::Io`] when it cannot be read.
pub fn read_manifest(fs: &dyn Fs, dir: &Path) -> Result<Option<Manifest>, OpenError> {
    let path = dir.join(MANIFEST);
    let read = || -> io::Result<Vec<u8>> {
        let file = fs.open(&path, OpenMode::Read)?;
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
            "the backup's list of files is damaged: {what}; use another backup, or take one into \
             another directory"
        ),
    })?;
    Ok(Some(manifest))
}

/// Whether a file of this name belongs to a backup, a finished or an interrupted one.
fn is_ours(name: &str) -> bool {
    let is_fixed = [MANIFEST, MANIFEST_INCOMING, INCOMING, LOCK_NAME].contains(&name);
    is_fixed || BackupFile::from_stored_name(name).is_some()
}

fn refuse_strangers(names: &[DirEntry], dir: &Path) -> Result<(), OpenError> {
    match names.iter().find(|entry| !is_ours(&entry.name)) {
        None => Ok(()),
        Some(other) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "it holds {:?}, which is not part of a backup; move that elsewhere, or give \
                 another directory",
                other.name
            ),
        }),
    }
}

/// Nobody else may take a backup into the directory, or remove parts of it, meanwhile.
fn lock(fs: &dyn Fs, dir: &Path) -> Result<Box<dyn DirLock>, OpenError> {
    fs.lock_dir(dir).map_err(|error| error.at(dir))
}

/// The directory that a backup is taken into.
struct Target<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    /// The files of backups that are there, whole and durable.
    stored: Vec<BackupFile>,
    /// The last backup.
    manifest: Option<Manifest>,
    _lock: Box<dyn DirLock>,
}

impl<'a> Target<'a> {
    fn open(fs: &'a dyn Fs, dir: &'a Path) -> Result<Target<'a>, OpenError> {
        let list = || {
            fs.read_dir(dir)
                .map_err(|error| OpenError::io("list", dir, &error))
        };
        make_dir(fs, dir)?;
        refuse_strangers(&list()?, dir)?;
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
            manifest: read_manifest(fs, dir)?,
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
        match &self.manifest {
            Some(manifest) if manifest.log != snapshot.log => Err(OpenError::Foreign {
                path: self.dir.to_owned(),
                what: "it holds a backup of another log, which is left as it is; give another \
                       directory"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The copy of a file that is there already, if there is one. Each frame repeats the checksum
    /// of the one before, so the same last one stands for the same content.
    fn find(&self, held: &HeldFile) -> io::Result<Option<BackupFile>> {
        let name = held.name();
        let candidates = self
            .stored
            .iter()
            .filter(|stored| stored.name == name && stored.size == held.size);
        for stored in candidates {
            let path = self.dir.join(stored.stored_name());
            let file = self.fs.open(&path, OpenMode::Read)?;
            if file.size()? == held.size
                && ends(&*file, held.size)? == ends(&*held.file, held.size)?
            {
                return Ok(Some(stored.clone()));
            }
        }
        Ok(None)
    }

    fn create(&self, name: &str) -> io::Result<(PathBuf, Arc<dyn File>)> {
        let path = self.dir.join(name);
        let file = self.fs.open(&path, OpenMode::CreateNew)?;
        Ok((path, file))
    }

    /// Make the backup that `manifest` describes, whose files are there, the one that counts.
    fn publish(&self, manifest: &Manifest) -> Result<(), OpenError> {
        let publish = || -> io::Result<()> {
            // A manifest must not be there before the files that it names.
            self.fs.sync_dir(self.dir)?;
            let (path, file) = self.create(MANIFEST_INCOMING)?;
            write_all_at(&*file, manifest.encode().as_bytes(), 0)?;
            file.sync()?;
            self.fs.replace(&path, &self.dir.join(MANIFEST))?;
            self.fs.sync_dir(self.dir)
        };
        publish().map_err(|error| OpenError::io("finish the backup in", self.dir, &error))
    }

    /// Remove the files that this backup does not need; how many there were.
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

    /// Remove what is not whole. What cannot be removed the next backup removes; the error that ended
    /// this one is the one to tell of.
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

/// Make a directory, and its name durable: also one that an interrupted call has made.
fn make_dir(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    fs.create_dir_all(dir)
        .map_err(|error| OpenError::io("create", dir, &error))?;
    for ancestor in dir.ancestors().skip(1) {
        let ancestor = match ancestor.as_os_str().is_empty() {
            true => Path::new("."),
            false => ancestor,
        };
        match fs.sync_dir(ancestor) {
            // One that we may not even read was not made by us.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            other => {
                other.map_err(|error| OpenError::io("sync what leads to", dir, &error))?;
            }
        }
    }
    Ok(())
}

/// The header of a segment file, and the last bytes of its last frame.
fn ends(file: &dyn File, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; segment_header::SIZE + END_SIZE];
    let (head, tail) = bytes.split_at_mut(segment_header::SIZE);
    read_exact_at(file, head, 0)?;
    read_exact_at(file, tail, size.saturating_sub(END_SIZE as u64))?;
    Ok(bytes)
}

/// Copy `size` bytes; the CRC-32 of them.
fn copy(
    from: &dyn File,
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

/// Which side did not do what was asked.
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

/// A backup that is being taken.
struct Backup<'a, 'b> {
    source: &'a Path,
    target: &'a Target<'a>,
    done: BackedUp,
    progress: Progress<'b>,
    /// Bytes of the files that are done.
    passed: u64,
}

impl Backup<'_, '_> {
    /// Have a durable copy of a file.
    fn file(&mut self, held: &HeldFile) -> Result<BackupFile, OpenError> {
        let io = |error| {
            OpenError::io(
                "compare with the last backup",
                &self.source.join(held.name()),
                &error,
            )
        };
        let file = match self.target.find(held).map_err(io)? {
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
        self.done.copied_files += 1;
        self.done.copied_bytes += held.size;
        Ok(copied)
    }

    /// Every frame of the copy is sound, up to the end that the log says the file has.
    fn check(&self, held: &HeldFile, copy: &Arc<dyn File>) -> Result<(), OpenError> {
        let start = segment_header::SIZE as u32;
        let mut reader = Reader::new(copy.clone(), held.seed, held.size, start);
        let io = |error| OpenError::io("read back", &self.target.dir.join(INCOMING), &error);
        while reader.at() < held.entry.end {
            if let Step::Bad(fault) = reader.step().map_err(io)? {
                let at = u64::from(reader.at());
                return Err(OpenError::Damaged {
                    dir: self.source.to_owned(),
                    damages: vec![Damage {
                        file: held.name(),
                        range: Some((at, held.size.saturating_sub(at))),
                        what: describe(fault),
                        jobs: Vec::new(),
                    }],
                });
            }
        }
        Ok(())
    }
}
