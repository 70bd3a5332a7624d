//! A read-only view of a backup as the log that it copies: its files under their names in the log.
//!
//! A file that does not agree with the list of files is reported, and read all the same: it may
//! still have sound records. If the list itself is damaged, the names of the files tell what they
//! are; of two versions of one file, the complete and longer one is used.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::{BackupFile, Manifest};
use super::{checksum, read_manifest};
use crate::storage::disk::{DirEntry, DirLock, LockError, ReadFile, ReadFs};
use crate::storage::error::OpenError;
use crate::storage::format::names::BACKUP_MANIFEST;
use crate::storage::format::parse_file_name;
use crate::storage::inspect::Progress;

/// A backup that is read as a log.
#[derive(Debug)]
pub(in crate::storage) struct View {
    fs: Arc<dyn ReadFs>,
    dir: PathBuf,
    /// The files that are there.
    files: Vec<BackupFile>,
    /// `None` if it is damaged.
    pub(in crate::storage) manifest: Option<Manifest>,
    /// Changes since the backup was taken.
    pub(in crate::storage) faults: Vec<Fault>,
}

/// A fault of a file of a backup.
#[derive(Debug, Clone)]
pub(in crate::storage) struct Fault {
    /// Its name in the log, or that of the list of files.
    pub(in crate::storage) file: String,
    pub(in crate::storage) what: String,
    /// Bytes missing at its end; `None`: all, or an unknown number.
    pub(in crate::storage) cut: Option<u64>,
}

/// True if a directory with these names holds a backup, complete or not.
pub(in crate::storage) fn is_backup(names: &[DirEntry]) -> bool {
    let has = |is_it: fn(&str) -> bool| names.iter().any(|entry| is_it(&entry.name));
    has(|name| name == BACKUP_MANIFEST)
        || has(|name| BackupFile::from_stored_name(name).is_some())
            && !has(|name| parse_file_name(name).is_some())
}

impl View {
    /// Read every byte of the backup in `dir`.
    pub(in crate::storage) fn read(
        fs: Arc<dyn ReadFs>,
        dir: &Path,
        names: &[DirEntry],
        progress: Progress<'_>,
    ) -> Result<View, OpenError> {
        let (manifest, faults) = match read_manifest(&*fs, dir) {
            Ok(Some(manifest)) => (Some(manifest), Vec::new()),
            Ok(None) => return Err(super::incomplete(dir)),
            Err(OpenError::Foreign { what, .. }) => {
                let (file, cut) = (BACKUP_MANIFEST.to_owned(), Some(0));
                (None, vec![Fault { file, what, cut }])
            }
            Err(error) => return Err(error),
        };
        let stored = names
            .iter()
            .filter_map(|entry| BackupFile::from_stored_name(&entry.name));
        let wanted = match &manifest {
            Some(manifest) => manifest.files.clone(),
            None => stored.collect(),
        };
        let mut view = View {
            fs,
            dir: dir.to_owned(),
            files: Vec::new(),
            manifest,
            faults,
        };
        let (mut passed, total) = (0, wanted.iter().map(|file| file.size).sum());
        for file in wanted {
            let at = passed;
            view.take(&file, names, &mut |done| progress(at + done, total));
            passed += file.size;
        }
        Ok(view)
    }

    fn take(&mut self, file: &BackupFile, names: &[DirEntry], progress: &mut dyn FnMut(u64)) {
        let stored = file.stored_name();
        let entry = names.iter().find(|entry| entry.name == stored);
        let fault = match entry {
            None => Some(("it is missing".to_owned(), None)),
            Some(entry) if entry.size < file.size => {
                let what = format!("it has {} bytes instead of {}", entry.size, file.size);
                Some((what, Some(file.size - entry.size)))
            }
            Some(entry) if entry.size > file.size => {
                let what = format!("it has {} bytes instead of {}", entry.size, file.size);
                Some((what, Some(0)))
            }
            Some(_) => self.difference(file, progress).map(|what| (what, Some(0))),
        };
        let is_listed = self.manifest.is_some();
        if let Some((what, cut)) = &fault
            && is_listed
        {
            self.faults.push(Fault {
                file: file.name.clone(),
                what: format!("{what} (the backup's {stored})"),
                cut: *cut,
            });
        }
        if entry.is_none() {
            return;
        }
        let older = self.files.iter().position(|other| other.name == file.name);
        match older {
            Some(index) if fault.is_none() && self.files[index].size <= file.size => {
                self.files[index] = file.clone();
            }
            Some(_) => {}
            None => self.files.push(file.clone()),
        }
    }

    /// How the content of a file differs from the original, in words.
    fn difference(&self, file: &BackupFile, progress: &mut dyn FnMut(u64)) -> Option<String> {
        let path = self.dir.join(file.stored_name());
        match checksum(&*self.fs, &path, file.size, progress) {
            Ok(crc) if crc == file.crc => None,
            Ok(crc) => Some(super::wrong_checksum(crc, file.crc)),
            Err(error) => Some(format!("it cannot be read: {error}")),
        }
    }
}

impl ReadFs for View {
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let file = self.files.iter().find(|file| file.name == name);
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        self.fs.open_read(&self.dir.join(file.stored_name()))
    }

    fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let entry = |name: String, size| DirEntry {
            name,
            is_file: true,
            size,
        };
        let mut entries = Vec::new();
        for other in self.fs.read_dir(dir)? {
            match self
                .files
                .iter()
                .find(|file| file.stored_name() == other.name)
            {
                Some(file) => entries.push(entry(file.name.clone(), other.size.min(file.size))),
                None if super::is_ours(&other.name) => {}
                None => entries.push(other),
            }
        }
        Ok(entries)
    }

    fn share_dir(&self, _: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Err(LockError::Io(io::ErrorKind::Unsupported.into()))
    }
}
