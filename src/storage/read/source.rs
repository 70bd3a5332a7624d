//! Reading a directory on a disk that may no longer return every byte.
//!
//! In files of a [`Source`], bytes that the disk refuses read as zeros, which no checksum accepts
//! as a record, and their ranges are recorded. So the same reader serves a start and reads past a
//! bad sector; the caller asks afterwards which bytes were replaced. A start treats them as an
//! error.
//!
//! In a directory that nothing else changes, only a few files are open at a time, however many
//! there are.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::storage::disk::errno::wants_descriptor;
use crate::storage::disk::{DirEntry, DirLock, LockError, ReadFile, ReadFs};
use crate::storage::error::OpenError;

/// Disks refuse bytes in units of at least this size.
const BLOCK: u64 = 4096;
/// Files that are open at a time at most: a log may have more files than a process may open.
const OPEN_MAX: usize = 64;

/// Bytes of one file that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::storage) struct Hole {
    pub(in crate::storage) bytes: Range<u64>,
    /// The system's error.
    pub(in crate::storage) cause: String,
}

/// Shared state of the files of a directory.
#[derive(Debug, Default)]
struct Shared {
    /// By the name of the file.
    holes: BTreeMap<String, Vec<Hole>>,
    /// The open files, the most recently read one last.
    open: Vec<(PathBuf, Arc<dyn ReadFile>)>,
    /// At most this number of them: the process may not have more.
    fewer: Option<usize>,
}

/// The directory's file system, for reading only.
#[derive(Debug, Clone)]
pub(in crate::storage) struct Source {
    fs: Arc<dyn ReadFs>,
    /// Files may be removed meanwhile: once opened, they stay open.
    is_changing: bool,
    /// Bytes that the disk refuses read as zeros.
    fills_holes: bool,
    shared: Arc<Mutex<Shared>>,
}

impl Source {
    /// For a directory that nothing else changes.
    pub(in crate::storage) fn new(fs: Arc<dyn ReadFs>) -> Source {
        Source {
            fs,
            is_changing: false,
            fills_holes: true,
            shared: Arc::default(),
        }
    }

    /// For a directory on which a server should start: bytes that the disk refuses are an error.
    pub(in crate::storage) fn strict(fs: Arc<dyn ReadFs>) -> Source {
        Source {
            fills_holes: false,
            ..Source::new(fs)
        }
    }

    /// For a directory that a server may be using.
    pub(in crate::storage) fn changing(fs: Arc<dyn ReadFs>) -> Source {
        Source {
            is_changing: true,
            ..Source::new(fs)
        }
    }

    /// The bytes of a file that could not be read so far, in order.
    pub(in crate::storage) fn holes(&self, file: &str) -> Vec<Hole> {
        let shared = lock(&self.shared);
        shared.holes.get(file).cloned().unwrap_or_default()
    }

    /// True if one of these bytes of a file could not be read so far.
    pub(in crate::storage) fn lacks(&self, file: &str, bytes: &Range<u64>) -> bool {
        let shared = lock(&self.shared);
        let holes = shared.holes.get(file).map_or(&[][..], Vec::as_slice);
        let next = holes.partition_point(|hole| hole.bytes.end <= bytes.start);
        holes
            .get(next)
            .is_some_and(|hole| hole.bytes.start < bytes.end)
    }

    /// True if a server is to start on the directory.
    pub(super) fn is_strict(&self) -> bool {
        !self.fills_holes
    }

    /// Close all files, so that those that are removed give their space back at once.
    pub(in crate::storage) fn close(&self) {
        lock(&self.shared).open.clear();
    }

    /// The file at `path`, opened.
    fn open_again(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        let mut shared = lock(&self.shared);
        let Shared { open, fewer, .. } = &mut *shared;
        let known = open.iter().rposition(|(other, _)| other == path);
        let (path, file) = match known {
            Some(index) => open.remove(index),
            None => {
                let mut opened = self.fs.open_read(path);
                if opened.as_ref().is_err_and(wants_descriptor) && !open.is_empty() {
                    let half = open.len() / 2;
                    open.drain(..open.len() - half);
                    *fewer = Some(half.max(1));
                    opened = self.fs.open_read(path);
                }
                (path.to_owned(), opened?)
            }
        };
        if open.len() >= fewer.unwrap_or(OPEN_MAX) {
            open.remove(0);
        }
        open.push((path, file.clone()));
        Ok(file)
    }

    /// Keep all writers out of the directory, without writing to it. `Ok(None)`: it is unknown
    /// whether it is in use.
    pub(in crate::storage) fn lock(
        &self,
        dir: &Path,
    ) -> Result<Option<Box<dyn DirLock>>, OpenError> {
        match self.fs.share_dir(dir) {
            Err(LockError::Io(_)) => Ok(None),
            lock => lock.map(Some).map_err(|error| OpenError::lock(dir, error)),
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadFs for Source {
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        let kept = if self.is_changing {
            Some(self.fs.open_read(path)?)
        } else {
            self.open_again(path).map(|_| None)?
        };
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(Arc::new(SourceFile {
            source: self.clone(),
            path: path.to_owned(),
            name,
            kept,
        }))
    }

    fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.fs.read_dir(dir)
    }

    fn share_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.fs.share_dir(dir)
    }
}

/// A file in which every byte can be read: zeros replace what the disk does not return.
#[derive(Debug)]
struct SourceFile {
    source: Source,
    path: PathBuf,
    name: String,
    /// The file itself, if it stays open.
    kept: Option<Arc<dyn ReadFile>>,
}

impl SourceFile {
    fn file(&self) -> io::Result<Arc<dyn ReadFile>> {
        match &self.kept {
            Some(file) => Ok(file.clone()),
            None => self.source.open_again(&self.path),
        }
    }

    /// The end of the known hole that contains `offset`, or where the next one begins.
    fn known(&self, offset: u64) -> (Option<u64>, u64) {
        let shared = lock(&self.source.shared);
        let holes = shared.holes.get(&self.name);
        let holes = holes.map_or(&[][..], Vec::as_slice);
        let inside = holes.iter().find(|hole| hole.bytes.contains(&offset));
        let next = holes
            .iter()
            .map(|hole| hole.bytes.start)
            .find(|start| *start > offset);
        (inside.map(|hole| hole.bytes.end), next.unwrap_or(u64::MAX))
    }

    /// The disk refused bytes of the block at `offset`: record a hole from there on.
    fn remember(&self, offset: u64, error: &io::Error) -> io::Result<u64> {
        let end = ((offset / BLOCK + 1) * BLOCK).min(self.size()?.max(offset + 1));
        let mut shared = lock(&self.source.shared);
        let holes = shared.holes.entry(self.name.clone()).or_default();
        match holes.iter_mut().find(|hole| hole.bytes.end == offset) {
            Some(hole) => hole.bytes.end = end,
            None => holes.push(Hole {
                bytes: offset..end,
                cause: error.to_string(),
            }),
        }
        holes.sort_by_key(|hole| hole.bytes.start);
        Ok(end)
    }
}

impl ReadFile for SourceFile {
    fn size(&self) -> io::Result<u64> {
        self.file()?.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.source.fills_holes {
            return self.file()?.read_at(buf, offset);
        }
        let (hole, next) = self.known(offset);
        if let Some(end) = hole {
            return Ok(zeros(buf, end - offset));
        }
        let file = self.file()?;
        // A refused range is halved until one block is left: a disk takes seconds for each refusal.
        let mut len = buf
            .len()
            .min(usize::try_from(next - offset).unwrap_or(usize::MAX));
        loop {
            match file.read_at(&mut buf[..len], offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if len as u64 <= BLOCK - offset % BLOCK => {
                    let end = self.remember(offset, &error)?;
                    return Ok(zeros(buf, end - offset));
                }
                Err(_) => len = (len / 2).max((BLOCK - offset % BLOCK) as usize),
                read => return read,
            }
        }
    }
}

fn zeros(buf: &mut [u8], size: u64) -> usize {
    let count = buf.len().min(usize::try_from(size).unwrap_or(usize::MAX));
    buf[..count].fill(0);
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::{Fs, read_exact_at};

    fn source(content: &[u8]) -> (SimFs, Source) {
        let disk = SimFs::new(1);
        disk.write("/d/f", content).unwrap();
        (disk.clone(), Source::new(Arc::new(disk)))
    }

    #[test]
    fn what_the_disk_refuses_reads_as_zeros_and_is_remembered_to_the_block() {
        let (disk, source) = source(&[7; 100_000]);
        disk.fail_reads("/d/f", 50_000..50_010).unwrap();
        let file = source.open_read(Path::new("/d/f")).unwrap();
        let mut bytes = vec![1; 100_000];
        read_exact_at(&*file, &mut bytes, 0).unwrap();
        let hole = source.holes("f").remove(0).bytes;
        assert!(hole.contains(&50_000) && hole.contains(&50_009), "{hole:?}");
        assert!(hole.end - hole.start <= 2 * BLOCK, "{hole:?}");
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte == 0, hole.contains(&(at as u64)), "byte {at}");
        }
    }

    #[test]
    fn few_files_are_open_however_many_there_are() {
        let disk = SimFs::new(1);
        let names: Vec<String> = (0..300).map(|number| format!("/d/{number}")).collect();
        for name in &names {
            disk.write(name, name.as_bytes()).unwrap();
        }
        for (source, open_max) in [
            (Source::new(Arc::new(disk.clone())), OPEN_MAX),
            (Source::changing(Arc::new(disk.clone())), names.len()),
        ] {
            let open = |name: &String| source.open_read(Path::new(name)).unwrap();
            let files: Vec<_> = names.iter().map(open).collect();
            for (file, name) in files.iter().zip(&names).rev() {
                let mut bytes = vec![0; name.len()];
                read_exact_at(&**file, &mut bytes, 0).unwrap();
                assert_eq!(bytes, name.as_bytes());
            }
            assert_eq!(disk.open_files(), open_max);
        }
    }

    #[test]
    fn f41_a_directory_is_shared_with_other_readers_and_nothing_is_made_in_it() {
        let (disk, source) = source(b"");
        let dir = Path::new("/d");
        let held = [source.lock(dir).unwrap(), source.lock(dir).unwrap()];
        assert!(held.iter().all(Option::is_some));
        assert_eq!(disk.names("/d").unwrap(), ["f"]);
        assert!(disk.lock_dir(dir).is_err(), "who writes is kept out");
        drop(held);
        let _alone = disk.lock_dir(dir).unwrap();
        assert!(matches!(source.lock(dir), Err(OpenError::InUse { .. })));
    }
}
