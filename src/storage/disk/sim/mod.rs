//! A simulated disk that can crash, fill up, fail and lie; for tests of storage.
//!
//! [`SimFs`] implements the traits of `fs`. It is deterministic: the same calls on a disk with the
//! same seed have the same outcome and leave the same trace. A handle is cheap to clone; all clones
//! are one disk.
//!
//! # The disk
//!
//! * A write is visible at once. It is durable after a successful sync of its file, together with
//!   the size of the file. The cache works in pages of 4 KiB: a page is synced whole.
//! * A name that is created, renamed or removed is visible at once, and durable after a successful
//!   sync of its directory, with the older changes of names that it depends on. Files and names are
//!   separate: a file may be synced and have no durable name, or have a name and no content. A
//!   rename is atomic; between directories, the sync of the target makes it durable.
//! * Space is counted in bytes that were written or allocated; a hole takes none. A write into
//!   allocated space cannot fail for lack of it, except on copy-on-write storage, where it needs as
//!   much again until the next sync ([`SimFs::set_quota`], [`SimFs::set_copy_on_write`]). A removed
//!   file keeps its space until it is closed.
//! * A directory is listed in a different order each time.
//!
//! # What a crash may do
//!
//! [`SimFs::crash_image`] returns a new disk, as a crash at this moment may leave it; the old one
//! is unchanged. See [`Crash`]: everything un-synced is lost, kept, or kept in part, in any order,
//! with torn pages and sectors, sizes without content, and zeros or stale bytes in its place. A
//! unit of 512 bytes is never a mixture of two times. [`SimFs::crash_at`] stops a program at any
//! operation.
//!
//! # What else may go wrong
//!
//! * Any operation fails with any error, once or from then on ([`Fault`]). No descriptor is left
//!   ([`SimFs::set_descriptors`]).
//! * After a failed sync the dirty pages count as clean: processes still see them, no later sync
//!   writes them unless they change again, and a power cut keeps or loses them. The size of the
//!   file, and the names after a failed sync of a directory, wait for the next sync.
//! * Reads and writes are short; a write is lost or lands elsewhere; a sync lies ([`Effect`]).
//! * Bits rot, ranges become unreadable, files are cut, vanish, come back, or get other content
//!   (`flip_bit`, `fail_reads`, `truncate`, `remove`, `resurrect`, `write`).
//!
//! # What it does not do
//!
//! No hard links, symbolic links or permissions; no torn sectors; no reordering of a write before
//! an earlier sync. Space that was allocated but not synced survives a crash, and so does space
//! that was given back if the crash undoes that.

mod content;
mod crash;
mod disk;
mod fault;
mod file;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crash::{Crash, Granularity};
pub use fault::{Effect, Errno, Fault, OpKind};

use content::Content;
use disk::{Disk, InodeId, Landing, normal};
use fault::Faults;
use file::FileNode;

use crate::random::Random;
use crate::storage::disk::LOCK_NAME;
use crate::storage::disk::{
    Dir, DirEntry, DirLock, File, Fs, LockError, OpenMode, ReadFile, ReadFs,
};

/// An entry of the trace: one call of the traits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Counted from 1 since the disk was made.
    pub number: u64,
    /// Kind of the call.
    pub kind: OpKind,
    /// The file or directory, by its name at the time; the old name of a rename.
    pub path: Arc<Path>,
    /// Bytes; 0 where the call has none.
    pub offset: u64,
    /// The bytes asked for, or the size that was asked for; 0 where the call has none.
    pub len: u64,
    /// True when the call returned an error.
    pub failed: bool,
}

/// Result of every call after [`SimFs::crash_at`], inside an [`io::Error`] of kind `Other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedCrash;

impl fmt::Display for SimulatedCrash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated crash")
    }
}

impl Error for SimulatedCrash {}

/// A simulated disk.
#[derive(Clone)]
pub struct SimFs(Arc<Mutex<State>>);

struct State {
    disk: Disk,
    seed: u64,
    random: Random,
    faults: Faults,
    trace: Vec<Operation>,
    operations: u64,
    crash_at: Option<u64>,
    /// Files that may be open at most.
    descriptors: Option<usize>,
}

impl fmt::Debug for SimFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("SimFs")
            .field("seed", &state.seed)
            .field("operations", &state.operations)
            .finish_non_exhaustive()
    }
}

/// Making a disk, and watching it.
impl SimFs {
    /// An empty disk: the root directory, no quota, no faults. The seed determines everything that
    /// the disk leaves to chance.
    #[must_use]
    pub fn new(seed: u64) -> SimFs {
        SimFs::with_disk(Disk::new(), seed)
    }

    fn with_disk(disk: Disk, seed: u64) -> SimFs {
        SimFs(Arc::new(Mutex::new(State {
            disk,
            seed,
            random: Random::new(seed),
            faults: Faults::default(),
            trace: Vec::new(),
            operations: 0,
            crash_at: None,
            descriptors: None,
        })))
    }

    /// A test that panicked in the middle of a call has already failed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of operations so far, including failed ones.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// All operations since the disk was made, or since `clear_trace`.
    #[must_use]
    pub fn trace(&self) -> Vec<Operation> {
        self.state().trace.clone()
    }

    /// Clear the trace, for runs so long that it would fill the memory. The numbers continue.
    pub fn clear_trace(&self) {
        self.state().trace.clear();
    }

    /// The bytes that all files take, as a quota counts them.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.state().disk.used()
    }

    /// The number of open file handles.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.state().disk.handles()
    }
}

/// Crashes.
impl SimFs {
    /// A new disk, as a crash at this moment may leave it. It has the same quota and unreadable
    /// ranges, no faults and no locks, and counts from 0. The old disk and its handles are
    /// unchanged.
    #[must_use]
    pub fn crash_image(&self, how: Crash) -> SimFs {
        let state = self.state();
        let seed = match how {
            Crash::Random { seed } => Random::new(state.seed).fork(seed).next(),
            _ => state.seed,
        };
        SimFs::with_disk(crash::image(&state.disk, how, state.seed), seed)
    }

    /// The number of un-synced units: the bits that [`Crash::Subset`] uses.
    #[must_use]
    pub fn unsynced_units(&self, granularity: Granularity) -> usize {
        crash::unit_count(&self.state().disk, granularity)
    }

    /// Let operation number `number`, counted as in the trace, and all later ones fail with
    /// [`SimulatedCrash`] and change nothing. If that number has passed, all operations fail from
    /// now on.
    pub fn crash_at(&self, number: u64) {
        self.state().crash_at = Some(number);
    }

    /// True once an operation has failed because of `crash_at`.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        let state = self.state();
        state
            .crash_at
            .is_some_and(|number| state.operations >= number)
    }
}

/// Faults.
impl SimFs {
    /// Plan a fault, in addition to those already planned.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.add(fault);
    }

    /// Cancel all planned faults; their past effects stay.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Let all files together take at most this number of bytes. A write that does not fit is
    /// short, and fails with `ENOSPC` if nothing of it fits; an allocation that does not fit fails
    /// as a whole. Existing content stays, even if it is larger.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.state().disk.quota = bytes;
    }

    /// Let an overwrite need new space, even where space was allocated, until the next sync of the
    /// file frees the old one.
    pub fn set_copy_on_write(&self, on: bool) {
        self.state().disk.copy_on_write = on;
    }

    /// Let this number of files be open at a time: opening one more, or a directory to list or sync
    /// it, returns `EMFILE`. A directory opened with `open_dir` does not count.
    pub fn set_descriptors(&self, most: Option<usize>) {
        self.state().descriptors = most;
    }

    /// Let reads that touch these bytes of a file fail with `EIO`, even after it was renamed or
    /// written to, or after a crash.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn fail_reads(&self, path: impl AsRef<Path>, bytes: Range<u64>) -> io::Result<()> {
        self.with_file(path, |file| {
            file.unreadable.push(bytes);
            Ok(())
        })
    }

    /// Make all of a file readable again.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn heal_reads(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.with_file(path, |file| {
            file.unreadable.clear();
            Ok(())
        })
    }

    /// Flip one bit of a file, on the platter and in the cache. Bit 0 is the lowest of byte 0, bit
    /// 8 the lowest of byte 1.
    ///
    /// # Errors
    /// When there is no such file, or no such bit in it.
    pub fn flip_bit(&self, path: impl AsRef<Path>, bit: u64) -> io::Result<()> {
        self.with_file(path, |file| file.flip_bit(bit))
    }

    fn with_file<T>(
        &self,
        path: impl AsRef<Path>,
        work: impl FnOnce(&mut FileNode) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.state();
        let inode = state.disk.lookup_file(path.as_ref())?;
        work(state.disk.file(inode)?)
    }
}

/// Direct access to files, for tests: none of this is an operation, is counted, fails on purpose,
/// or respects a quota, and its changes are durable at once.
impl SimFs {
    /// The content of a file as processes see it.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.with_file(path, |file| Ok(file.visible.bytes()))
    }

    /// Give a file this content. The file, and the directories above it, are created if missing.
    ///
    /// # Errors
    /// When a directory has that name.
    pub fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let mut content = Content::default();
        content.write(bytes, 0);
        self.state().disk.plant(path.as_ref(), content)
    }

    /// The names in a directory as processes see them, sorted.
    ///
    /// # Errors
    /// When there is no such directory.
    pub fn names(&self, dir: impl AsRef<Path>) -> io::Result<Vec<String>> {
        let state = self.state();
        let dir = state.disk.lookup_dir(dir.as_ref())?;
        Ok(state
            .disk
            .list(dir)
            .into_iter()
            .map(|entry| entry.name)
            .collect())
    }

    /// Cut a file, or extend it with zeros.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn truncate(&self, path: impl AsRef<Path>, size: u64) -> io::Result<()> {
        self.with_file(path, |file| {
            let mut content = file.visible.clone();
            content.resize(size);
            file.replace(content);
            Ok(())
        })
    }

    /// Remove a file, or a directory with all that is in it.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.state().disk.uproot(path.as_ref())
    }

    /// Permanently restore the durable content of the file that was last removed under this name.
    ///
    /// # Errors
    /// If no file of that name was permanently removed, is closed, and is among the last 64.
    pub fn resurrect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.state().disk.resurrect(path.as_ref())
    }
}

/// A call, before it is made.
struct Call {
    kind: OpKind,
    path: Arc<Path>,
    offset: u64,
    len: u64,
}

impl Call {
    fn on_path(kind: OpKind, path: &Path) -> io::Result<Call> {
        Ok(Call {
            kind,
            path: normal(path)?.into(),
            offset: 0,
            len: 0,
        })
    }
}

impl State {
    /// Every call of the traits comes through here: count it, apply a fault, make it, and trace it.
    fn operate<T>(
        &mut self,
        call: Call,
        work: impl FnOnce(&mut State, Option<Effect>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.operations += 1;
        let result = if self
            .crash_at
            .is_some_and(|number| self.operations >= number)
        {
            Err(io::Error::other(SimulatedCrash))
        } else {
            let effect = self.faults.strike(call.kind, &call.path);
            match effect {
                Some(Effect::Fail(error)) if call.kind != OpKind::Sync => Err(error.into()),
                effect => work(self, effect),
            }
        };
        self.trace.push(Operation {
            number: self.operations,
            kind: call.kind,
            path: call.path,
            offset: call.offset,
            len: call.len,
            failed: result.is_err(),
        });
        result
    }

    fn sync_dir(&mut self, dir: &Path, effect: &Option<Effect>) -> io::Result<()> {
        let inode = self.disk.lookup_dir(dir)?;
        if *effect != Some(Effect::Lose) {
            self.disk.sync_dir(inode);
        }
        Ok(())
    }

    /// Fails if the limit of open files is reached.
    fn find_descriptor(&self) -> io::Result<()> {
        match self.descriptors {
            Some(most) if self.disk.handles() >= most => Err(Errno::MFILE.into()),
            _ => Ok(()),
        }
    }

    fn landing(&self, effect: &Option<Effect>) -> Landing {
        match effect {
            Some(Effect::Lose) => Landing::Nowhere,
            Some(Effect::Misdirect { path, offset }) => match self.disk.lookup_file(path) {
                Ok(inode) => Landing::At {
                    inode,
                    offset: *offset,
                },
                Err(_) => Landing::Nowhere,
            },
            _ => Landing::Here,
        }
    }
}

impl SimFs {
    /// A call with a path.
    fn operate<T>(
        &self,
        kind: OpKind,
        path: &Path,
        work: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        let call = Call::on_path(kind, path)?;
        self.state().operate(call, |state, _| work(state))
    }

    fn lock(&self, dir: &Path) -> Result<SimLock, LockError> {
        let locked = self.operate(OpKind::Lock, dir, |state| {
            let inode = state.disk.lookup_dir(dir)?;
            let path = dir.join(LOCK_NAME);
            if state.disk.lookup(&path).is_err() {
                state.disk.create(&path)?;
            }
            Ok(self.hold(state, inode, |readers| match readers {
                None => Some(0),
                Some(_) => None,
            }))
        })?;
        locked.ok_or(LockError::Held { holder: None })
    }

    fn share(&self, dir: &Path) -> Result<SimLock, LockError> {
        let shared = self.operate(OpKind::Lock, dir, |state| {
            let inode = state.disk.lookup_dir(dir)?;
            Ok(self.hold(state, inode, |readers| match readers {
                Some(0) => None,
                readers => Some(readers.unwrap_or(0) + 1),
            }))
        })?;
        shared.ok_or(LockError::Held { holder: None })
    }

    /// Lock a directory: `with` returns the new number of readers, or `None` to refuse.
    fn hold(
        &self,
        state: &mut State,
        dir: InodeId,
        with: fn(Option<u32>) -> Option<u32>,
    ) -> Option<SimLock> {
        let node = state.disk.dirs.get_mut(&dir)?;
        node.readers = Some(with(node.readers)?);
        Some(SimLock {
            fs: self.clone(),
            dir,
        })
    }
}

impl SimFs {
    fn open_as(&self, kind: OpKind, path: &Path) -> io::Result<SimFile> {
        let inode = self.operate(kind, path, |state| {
            state.find_descriptor()?;
            let inode = match kind {
                OpKind::Create => state.disk.create(path)?,
                _ => state.disk.lookup_file(path)?,
            };
            state.disk.file(inode)?.handles += 1;
            Ok(inode)
        })?;
        Ok(SimFile {
            fs: self.clone(),
            inode,
        })
    }
}

impl ReadFs for SimFs {
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        Ok(Arc::new(self.open_as(OpKind::Open, path)?))
    }

    fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.operate(OpKind::ReadDir, dir, |state| {
            state.find_descriptor()?;
            let mut entries = state.disk.list(state.disk.lookup_dir(dir)?);
            state.random.shuffle(&mut entries);
            Ok(entries)
        })
    }

    fn share_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Ok(Box::new(self.share(dir)?))
    }
}

impl Fs for SimFs {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.operate(OpKind::CreateDir, dir, |state| {
            state.disk.create_missing_dir(dir)
        })
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.operate(OpKind::CreateDir, dir, |state| {
            state.disk.create_dir_all(dir)
        })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let kind = match mode {
            OpenMode::CreateNew => OpKind::Create,
            OpenMode::ReadWrite => OpKind::Open,
        };
        Ok(Arc::new(self.open_as(kind, path)?))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(OpKind::Rename, from, |state| state.disk.rename(from, to))
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(OpKind::Rename, from, |state| state.disk.replace(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.operate(OpKind::Remove, path, |state| state.disk.remove(path))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.operate(OpKind::Remove, dir, |state| state.disk.remove_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let call = Call::on_path(OpKind::SyncDir, dir)?;
        self.state().operate(call, |state, effect| {
            state.find_descriptor()?;
            state.sync_dir(dir, &effect)
        })
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Box<dyn Dir>> {
        Ok(Box::new(SimDir {
            fs: self.clone(),
            path: normal(dir)?,
        }))
    }

    fn lock_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Ok(Box::new(self.lock(dir)?))
    }
}

/// A directory opened for its syncs; opening it is no operation.
#[derive(Debug)]
struct SimDir {
    fs: SimFs,
    path: PathBuf,
}

impl Dir for SimDir {
    fn sync(&self) -> io::Result<()> {
        let call = Call::on_path(OpKind::SyncDir, &self.path)?;
        let mut state = self.fs.state();
        state.operate(call, |state, effect| state.sync_dir(&self.path, &effect))
    }
}

#[derive(Debug)]
struct SimLock {
    fs: SimFs,
    dir: InodeId,
}

impl DirLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        if let Some(dir) = self.fs.state().disk.dirs.get_mut(&self.dir) {
            dir.readers = dir.readers.filter(|readers| *readers > 1).map(|it| it - 1);
        }
    }
}

#[derive(Debug)]
struct SimFile {
    fs: SimFs,
    inode: InodeId,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.fs.state().disk.close(self.inode);
    }
}

impl SimFile {
    fn operate<T>(
        &self,
        kind: OpKind,
        (offset, len): (u64, u64),
        work: impl FnOnce(&mut State, Option<Effect>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.fs.state();
        let path = Arc::clone(&state.disk.file(self.inode)?.path);
        state.operate(
            Call {
                kind,
                path,
                offset,
                len,
            },
            work,
        )
    }
}

/// The bytes that a call may move.
fn limit(len: usize, effect: &Option<Effect>) -> usize {
    match effect {
        Some(Effect::Short(most)) => len.min(*most),
        _ => len,
    }
}

impl ReadFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        self.operate(OpKind::Size, (0, 0), |state, _| {
            Ok(state.disk.file(self.inode)?.visible.size())
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.operate(OpKind::Read, (offset, buf.len() as u64), |state, effect| {
            let most = limit(buf.len(), &effect);
            state.disk.file(self.inode)?.read(&mut buf[..most], offset)
        })
    }
}

impl File for SimFile {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.operate(
            OpKind::Write,
            (offset, buf.len() as u64),
            |state, effect| {
                let landing = state.landing(&effect);
                state.disk.write(
                    self.inode,
                    &buf[..limit(buf.len(), &effect)],
                    offset,
                    &landing,
                )
            },
        )
    }

    fn sync(&self) -> io::Result<()> {
        self.operate(OpKind::Sync, (0, 0), |state, effect| {
            let file = state.disk.file(self.inode)?;
            match effect {
                Some(Effect::Fail(error)) => {
                    file.fail_sync();
                    return Err(error.into());
                }
                Some(Effect::Lose) => {}
                _ => file.sync(),
            }
            Ok(())
        })
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.operate(OpKind::SetSize, (0, size), |state, _| {
            state.disk.set_size(self.inode, size)
        })
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.operate(OpKind::Allocate, (0, size), |state, _| {
            state.disk.allocate(self.inode, size)
        })
    }

    fn zero(&self, size: u64) -> io::Result<bool> {
        self.operate(OpKind::Allocate, (0, size), |state, _| {
            state.disk.zero(self.inode, size).map(|()| true)
        })
    }
}
