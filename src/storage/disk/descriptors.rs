//! Few open files for any number of segments.
//!
//! [`Descriptors`] is the file system of an open log. It keeps only useful files open: the
//! [`OPEN_MAX`] that were used last. Any other file is opened again, under its current name, when
//! it is read or written. So a log may have more files than a process may open, and the descriptors
//! left for connections do not depend on the size of the log.
//!
//! Invariants:
//! * A file that was written to stays open until a sync of it has succeeded: the system reports a
//!   later failure of the write only to those who had the file open then.
//! * A file that one thread is using stays open for it when another thread closes it.
//! * If the system has no descriptor left, all files that need not be open are closed and the call
//!   is repeated once. Syncing the log's directory needs no new descriptor: it is always open.
//! * No thread uses a file while another renames it.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::storage::disk::errno::wants_descriptor;
use crate::storage::disk::{
    Dir, DirEntry, DirLock, File, Fs, LockError, OpenMode, ReadFile, ReadFs,
};

/// Files that stay open at most without being in use.
const OPEN_MAX: usize = 32;

/// The file system of one log.
#[derive(Debug)]
pub(crate) struct Descriptors {
    dir: PathBuf,
    held: Box<dyn Dir>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    fs: Arc<dyn Fs>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Files that are open but need not be, the most recently used one last.
    open: Vec<(u64, Arc<dyn File>)>,
    /// The files to inform when a name changes.
    names: HashMap<PathBuf, Weak<Kept>>,
    /// The last number given to a file.
    number: u64,
}

/// A file that may be closed for now.
#[derive(Debug)]
struct Kept {
    shared: Arc<Shared>,
    number: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    path: PathBuf,
    /// Kept open because of unsynced writes.
    unsynced: Option<Arc<dyn File>>,
    /// Counts the writes.
    writes: u64,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Descriptors {
    /// The file system of the log in `dir`, which exists.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub(crate) fn over(fs: Arc<dyn Fs>, dir: &Path) -> io::Result<Descriptors> {
        Ok(Descriptors {
            dir: dir.to_owned(),
            held: fs.open_dir(dir)?,
            shared: Arc::new(Shared {
                fs,
                table: Mutex::default(),
            }),
        })
    }
}

impl Shared {
    /// Make a call that needs a descriptor, at least while it runs.
    fn with_descriptor<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(error) if wants_descriptor(&error) && self.close_all() => call(),
            made => made,
        }
    }

    /// Close all files that need not be open. Returns whether there were any.
    fn close_all(&self) -> bool {
        let closed = std::mem::take(&mut lock(&self.table).open);
        !closed.is_empty()
    }

    fn open_file(&self, number: u64) -> Option<Arc<dyn File>> {
        let open = &mut lock(&self.table).open;
        let index = open.iter().rposition(|(other, _)| *other == number)?;
        open[index..].rotate_left(1);
        open.last().map(|(_, file)| file.clone())
    }

    /// Keep a file open for its next use.
    fn keep(&self, number: u64, file: Arc<dyn File>) {
        let open = &mut lock(&self.table).open;
        open.retain(|(other, _)| *other != number);
        let closed = (open.len() >= OPEN_MAX).then(|| open.remove(0));
        open.push((number, file));
        drop(closed);
    }

    fn take_in(self: &Arc<Self>, path: &Path, file: Arc<dyn File>) -> Arc<Kept> {
        let mut table = lock(&self.table);
        table.number += 1;
        let number = table.number;
        let kept = Arc::new(Kept {
            shared: self.clone(),
            number,
            state: Mutex::new(State {
                path: path.to_owned(),
                unsynced: None,
                writes: 0,
            }),
        });
        table.names.insert(path.to_owned(), Arc::downgrade(&kept));
        drop(table);
        self.keep(number, file);
        kept
    }

    /// Take the file that was opened under this name, which it loses.
    fn lose_name(&self, path: &Path) -> Option<Arc<Kept>> {
        let kept = lock(&self.table).names.remove(path);
        kept.as_ref().and_then(Weak::upgrade)
    }

    fn renamed(&self, from: &Path, to: &Path) {
        if let Some(kept) = self.lose_name(from) {
            to.clone_into(&mut lock(&kept.state).path);
            let mut table = lock(&self.table);
            table.names.insert(to.to_owned(), Arc::downgrade(&kept));
        }
    }
}

impl ReadFs for Descriptors {
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        Ok(self.open(path, OpenMode::ReadWrite)?)
    }

    fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.shared.with_descriptor(|| self.shared.fs.read_dir(dir))
    }

    fn share_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.shared.fs.share_dir(dir)
    }
}

impl Fs for Descriptors {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.shared.fs.create_dir(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.shared.fs.create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let shared = &self.shared;
        let file = shared.with_descriptor(|| shared.fs.open(path, mode))?;
        Ok(shared.take_in(path, file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.shared.fs.rename(from, to)?;
        self.shared.renamed(from, to);
        Ok(())
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        let gone = self.shared.lose_name(to);
        if let Some(gone) = &gone {
            gone.stay_open()?;
        }
        self.shared.fs.replace(from, to)?;
        self.shared.renamed(from, to);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let gone = self.shared.lose_name(path);
        if let Some(gone) = &gone {
            gone.stay_open()?;
        }
        self.shared.fs.remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.shared.fs.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if dir == self.dir {
            self.held.sync()
        } else {
            self.shared.with_descriptor(|| self.shared.fs.sync_dir(dir))
        }
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Box<dyn Dir>> {
        self.shared.with_descriptor(|| self.shared.fs.open_dir(dir))
    }

    fn lock_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.shared.fs.lock_dir(dir)
    }
}

impl Kept {
    /// The file itself, open for as long as the caller has it.
    fn file(&self) -> io::Result<Arc<dyn File>> {
        let path = {
            let state = lock(&self.state);
            if let Some(file) = &state.unsynced {
                return Ok(file.clone());
            }
            state.path.clone()
        };
        if let Some(file) = self.shared.open_file(self.number) {
            return Ok(file);
        }
        let shared = &self.shared;
        let open = || shared.fs.open(&path, OpenMode::ReadWrite);
        let file = shared.with_descriptor(open)?;
        shared.keep(self.number, file.clone());
        Ok(file)
    }

    /// The file itself, which stays open until it is synced.
    fn file_to_write(&self) -> io::Result<Arc<dyn File>> {
        let file = self.file()?;
        let state = &mut *lock(&self.state);
        state.writes += 1;
        Ok(state.unsynced.get_or_insert(file).clone())
    }

    /// Keep it open, because it loses its name and could not be opened again.
    fn stay_open(&self) -> io::Result<()> {
        self.file_to_write().map(drop)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let path = &lock(&self.state).path;
        let mut table = lock(&self.shared.table);
        // Another file may have the name by now.
        if table
            .names
            .get(path)
            .is_some_and(|kept| kept.strong_count() == 0)
        {
            table.names.remove(path);
        }
        let number = self.number;
        let index = table.open.iter().position(|(other, _)| *other == number);
        let closed = index.map(|index| table.open.remove(index));
        drop(table);
        drop(closed);
    }
}

impl ReadFile for Kept {
    fn size(&self) -> io::Result<u64> {
        self.file()?.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file()?.read_at(buf, offset)
    }
}

impl File for Kept {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.file_to_write()?.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let writes = lock(&self.state).writes;
        let file = self.file()?;
        file.sync()?;
        let mut state = lock(&self.state);
        if state.writes == writes && state.unsynced.take().is_some() {
            drop(state);
            self.shared.keep(self.number, file);
        }
        Ok(())
    }

    // A change of size writes nothing that could be lost later: that is the file system's task.

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file()?.set_size(size)
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.file()?.allocate(size)
    }

    fn zero(&self, size: u64) -> io::Result<bool> {
        self.file()?.zero(size)
    }

    fn give_back(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        self.file()?.give_back(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::{read_exact_at, write_all_at};

    const DIR: &str = "/d";

    fn path(number: usize) -> PathBuf {
        Path::new(DIR).join(number.to_string())
    }

    /// A disk with `files` files, each of which holds its number.
    fn disk(files: usize) -> (SimFs, Descriptors) {
        let disk = SimFs::new(1);
        disk.create_dir_all(Path::new(DIR)).unwrap();
        for number in 0..files {
            disk.write(path(number), number.to_string().as_bytes())
                .unwrap();
        }
        let descriptors = Descriptors::over(Arc::new(disk.clone()), Path::new(DIR)).unwrap();
        (disk, descriptors)
    }

    fn text(file: &dyn File) -> String {
        let mut bytes = vec![0; file.size().unwrap() as usize];
        read_exact_at(file, &mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn f12_few_files_are_open_however_many_are_used() {
        let (disk, fs) = disk(300);
        let open = |number| fs.open(&path(number), OpenMode::ReadWrite).unwrap();
        let files: Vec<_> = (0..300).map(open).collect();
        for (number, file) in files.iter().enumerate().rev() {
            assert_eq!(text(&**file), number.to_string());
        }
        assert_eq!(disk.open_files(), OPEN_MAX);
        drop(files);
        assert_eq!(disk.open_files(), 0);
        assert!(lock(&fs.shared.table).names.is_empty());
    }

    #[test]
    fn f12_the_files_that_were_used_last_are_those_that_are_open() {
        let (disk, fs) = disk(OPEN_MAX + 1);
        let open = |number| fs.open(&path(number), OpenMode::ReadWrite).unwrap();
        let files: Vec<_> = (0..OPEN_MAX).map(open).collect();
        text(&*files[0]);
        let _one_more = open(OPEN_MAX);
        let before = disk.operations();
        text(&*files[0]);
        assert_eq!(disk.operations() - before, 2, "a size and a read");
        text(&*files[1]);
        assert_eq!(disk.operations() - before, 5, "and an open");
    }

    #[test]
    fn f12_where_no_descriptor_is_left_what_need_not_be_open_is_closed() {
        let (disk, fs) = disk(20);
        let open = |number| fs.open(&path(number), OpenMode::ReadWrite).unwrap();
        let files: Vec<_> = (0..20).map(open).collect();
        disk.set_descriptors(Some(3));
        for _ in 0..2 {
            for (number, file) in files.iter().enumerate() {
                assert_eq!(text(&**file), number.to_string());
            }
        }
        fs.read_dir(Path::new(DIR)).unwrap();
        disk.set_descriptors(Some(0));
        fs.sync_dir(Path::new(DIR)).unwrap();
        assert!(wants_descriptor(&files[0].size().unwrap_err()));
        disk.set_descriptors(None);
        assert_eq!(text(&*files[0]), "0");
    }

    #[test]
    fn f12_what_was_written_stays_open_until_it_is_synced() {
        let (disk, fs) = disk(1);
        let file = fs.open(&path(0), OpenMode::ReadWrite).unwrap();
        write_all_at(&*file, b"new", 0).unwrap();
        assert!(fs.shared.close_all());
        assert_eq!(disk.open_files(), 1);
        disk.inject(crate::storage::disk::sim::Fault::fail(
            crate::storage::disk::sim::OpKind::Sync,
            crate::storage::disk::sim::Errno::IO,
        ));
        file.sync().unwrap_err();
        fs.shared.close_all();
        assert_eq!(disk.open_files(), 1, "after a sync that failed, too");
        file.sync().unwrap();
        assert!(fs.shared.close_all());
        assert_eq!(disk.open_files(), 0);
        assert_eq!(text(&*file), "new");
    }

    #[test]
    fn f12_a_file_is_found_under_the_name_that_it_has_by_then() {
        let (_, fs) = disk(2);
        let file = fs.open(&path(0), OpenMode::ReadWrite).unwrap();
        fs.rename(&path(0), &path(7)).unwrap();
        fs.shared.close_all();
        assert_eq!(text(&*file), "0");
        let other = fs.open(&path(1), OpenMode::ReadWrite).unwrap();
        fs.rename(&path(1), &path(0)).unwrap();
        fs.shared.close_all();
        assert_eq!((text(&*file), text(&*other)), ("0".into(), "1".into()));
    }

    #[test]
    fn f12_a_file_that_is_removed_or_replaced_can_be_read_by_those_who_have_it() {
        let (_, fs) = disk(3);
        let open = |number| fs.open(&path(number), OpenMode::ReadWrite).unwrap();
        let (removed, replaced) = (open(0), open(1));
        fs.shared.close_all();
        fs.remove_file(&path(0)).unwrap();
        fs.replace(&path(2), &path(1)).unwrap();
        fs.shared.close_all();
        assert_eq!(
            (text(&*removed), text(&*replaced)),
            ("0".into(), "1".into())
        );
    }
}
