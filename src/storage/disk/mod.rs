//! The only access to files: a small trait, and the real file system behind it.
//!
//! Everything that storage does to a disk goes through [`Fs`] and [`File`]; code that only reads
//! uses [`ReadFs`] and [`ReadFile`]. `sim` holds the other implementation, a disk that can crash:
//! only in test builds, or with the feature `sim`. Calls mean what POSIX means by them: what was
//! written is visible at once and durable only after [`File::sync`]; a name is durable only after
//! [`Fs::sync_dir`].
//!
//! [`RealFs`] adds nothing to the system calls: no cache, no retries, no file handles of its own.
//! `lock` locks a directory.
//!
//! | file | question |
//! |---|---|
//! | here | which operations does a disk have? |
//! | `lock` | which process holds a directory? |
//! | `descriptors` | how can a log have more files than a process may open? |
//! | `zeros` | where does data end? |
//! | `sim` | what may a crash leave of a disk? |

pub(in crate::storage) mod descriptors;
pub(in crate::storage) mod errno;
pub(in crate::storage) mod lock;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub(in crate::storage) mod zeros;

use std::fmt::{self, Debug};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use crate::sys;

pub(in crate::storage) use self::lock::LOCK_NAME;

/// How a file is opened for reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file.
    ReadWrite,
    /// A file that must not exist yet.
    CreateNew,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; bytes that are not UTF-8 are replaced (bsd's files have none).
    pub name: String,
    /// True for a regular file.
    pub is_file: bool,
    /// Bytes; 0 for everything but a regular file.
    pub size: u64,
}

/// Why a data directory could not be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it, or this one.
    Held {
        /// The holder, if the system tells.
        holder: Option<Holder>,
    },
    /// The directory or its lock file could not be opened or locked.
    Io(io::Error),
}

/// A process that holds a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its command line, shortened, if the system tells.
    pub command: Option<String>,
    /// It is a reader and shares the directory with other readers; a server or another writer
    /// cannot share it.
    pub only_reads: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        match &self.command {
            Some(command) => write!(f, " ({command})"),
            None => Ok(()),
        }
    }
}

/// A held lock; dropping it releases the directory.
pub trait DirLock: Debug + Send {}

/// A read-only file system: code that has only this cannot write.
pub trait ReadFs: Debug + Send + Sync {
    /// The entries of a directory, in no particular order, without `.` and `..`.
    fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Open an existing file for reading.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>>;
    /// Share the directory with other readers; writers are kept out. Nothing is created.
    /// [`LockError::Io`]: it is unknown whether the directory is in use.
    fn share_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError>;
}

/// A file system: the real one, or a simulated one.
pub trait Fs: ReadFs {
    /// Create a directory if it is missing; its parent must exist. Not durable until the parent is
    /// synced.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Create a directory and its missing parents. Not durable until each parent is synced.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Open a file for reading and writing.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// Give a file or a directory an unused name. If something has that name already, it stays as
    /// it is, and the call fails with `AlreadyExists`. Durable after `sync_dir`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// The same, but a file or empty directory that has the name is replaced.
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Remove a name. Durable after `sync_dir`.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Remove an empty directory. Durable after `sync_dir` of its parent.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Make the directory's names durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.open_dir(dir)?.sync()
    }
    /// True if it is known that the directory is the root of a mounted file system: no other directory
    /// can take its name.
    fn is_mount_point(&self, _: &Path) -> bool {
        false
    }
    /// Open a directory that will be synced often: its syncs then need no new descriptor.
    fn open_dir(&self, dir: &Path) -> io::Result<Box<dyn Dir>>;
    /// Lock the directory for this process alone, through the file `lock` in it, which is created
    /// if missing.
    fn lock_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError>;
}

/// An open directory.
pub trait Dir: Debug + Send + Sync {
    /// Make its names durable, like [`Fs::sync_dir`].
    fn sync(&self) -> io::Result<()>;
}

/// A file open for reading. Offsets are given with each call, so a file can be shared between
/// threads.
pub trait ReadFile: Debug + Send + Sync {
    /// The size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Read at most `buf.len()` bytes at `offset`; 0 at the end of the file. May read fewer.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// A file open for reading and writing.
pub trait File: ReadFile {
    /// Write at most `buf.len()` bytes at `offset`. May write fewer.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Make the content and the size durable. After an error, the state of every
    /// write since the last success is unknown; repeating the call does not reveal it.
    fn sync(&self) -> io::Result<()>;
    /// Cut the file, or extend it with zeros.
    fn set_size(&self, size: u64) -> io::Result<()>;
    /// Reserve space for the first `size` bytes and make the file at least that long, so that
    /// writes within it cannot fail for lack of space, if the file system can promise that.
    fn allocate(&self, size: u64) -> io::Result<()>;
    /// Make the first `size` bytes zeros whatever they were, with space reserved as by
    /// [`File::allocate`], without writing them. `Ok(false)`: that cannot be done, and nothing
    /// happened.
    fn zero(&self, _size: u64) -> io::Result<bool> {
        Ok(false)
    }
    /// Give the space of this range back, which is zeros from then on. Where that cannot be done,
    /// nothing happens.
    fn give_back(&self, _: std::ops::Range<u64>) -> io::Result<()> {
        Ok(())
    }
}

/// Read exactly `buf.len()` bytes at `offset`, however many calls that takes.
pub fn read_exact_at(file: &dyn ReadFile, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.read_at(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buf = &mut buf[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// True if no file has this name, certainly.
pub fn is_missing(fs: &dyn Fs, path: &Path) -> bool {
    let opened = fs.open_read(path);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Write all of `buf` at `offset`, however many calls that takes.
pub fn write_all_at(file: &dyn File, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.write_at(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                buf = &buf[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The mode of new files: only their owner may read the bodies of jobs.
pub(in crate::storage) const FILE_MODE: u32 = 0o600;

/// The operating system's files.
///
/// Descriptors are closed on `exec`. `sync` is `fdatasync`, which also makes the size durable, and
/// on macOS `F_FULLFSYNC`; `sync_dir` is `fsync` of the directory, and there `F_FULLFSYNC` too.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFs;

impl ReadFs for RealFs {
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        let file = OpenOptions::new().read(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        fs::read_dir(dir)?
            .filter_map(|entry| describe(entry).transpose())
            .collect()
    }

    fn share_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Ok(Box::new(lock::share_dir(dir)?))
    }
}

impl Fs for RealFs {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::create_dir(dir) {
            Err(_) if dir.is_dir() => Ok(()),
            created => created,
        }
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(mode == OpenMode::CreateNew)
            .mode(FILE_MODE)
            .open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        sys::files::rename_to_unused(from, to).unwrap_or_else(|| rename_unless_taken(from, to))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the trait the others go through"
    )]
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the trait the others go through"
    )]
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn is_mount_point(&self, dir: &Path) -> bool {
        sys::files::is_mount_point(dir)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Box<dyn Dir>> {
        let dir = OpenOptions::new().read(true).open(dir)?;
        Ok(Box::new(RealDir(dir)))
    }

    fn lock_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Ok(Box::new(lock::lock_dir(dir)?))
    }
}

/// Rename on a file system that cannot check and rename in one step. In a locked directory nothing
/// else creates names, except programs that do not know of the lock.
fn rename_unless_taken(from: &Path, to: &Path) -> io::Result<()> {
    match unless_gone(fs::symlink_metadata(to))? {
        Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
        None => RealFs.replace(from, to),
    }
}

/// The entry that [`Fs::read_dir`] returns; `None` if it was removed since it was listed.
fn describe(entry: io::Result<fs::DirEntry>) -> io::Result<Option<DirEntry>> {
    let entry = entry?;
    // For the entry itself: a symbolic link is not followed and is not a regular file.
    let Some(metadata) = unless_gone(entry.metadata())? else {
        return Ok(None);
    };
    Ok(Some(DirEntry {
        name: entry.file_name().to_string_lossy().into_owned(),
        is_file: metadata.is_file(),
        size: if metadata.is_file() {
            metadata.len()
        } else {
            0
        },
    }))
}

/// `None` if the file does not exist (any more). Any other error is not "missing": if it were left
/// out of a list, it would count as a missing file.
fn unless_gone<T>(looked_at: io::Result<T>) -> io::Result<Option<T>> {
    match looked_at {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[derive(Debug)]
struct RealDir(fs::File);

impl Dir for RealDir {
    fn sync(&self) -> io::Result<()> {
        sys::files::sync_directory(&self.0)
    }
}

#[derive(Debug)]
struct RealFile(fs::File);

impl ReadFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }
}

impl File for RealFile {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        sys::files::sync_data(&self.0)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        if size == 0 {
            return Ok(()); // which fallocate refuses
        }
        sys::files::reserve(&self.0, size)
    }

    #[cfg(target_os = "linux")]
    fn zero(&self, size: u64) -> io::Result<bool> {
        sys::files::zero(&self.0, size)
    }

    #[cfg(target_os = "linux")]
    fn give_back(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        sys::files::punch(&self.0, range)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn create(path: &Path) -> Arc<dyn File> {
        RealFs.open(path, OpenMode::CreateNew).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back_at_its_offset() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(&dir.path().join("a"));
        write_all_at(&*file, b"world", 6).unwrap();
        write_all_at(&*file, b"hello ", 0).unwrap();
        file.sync().unwrap();
        let mut text = [0; 11];
        read_exact_at(&*file, &mut text, 0).unwrap();
        assert_eq!(&text, b"hello world");
        assert_eq!(file.size().unwrap(), 11);
    }

    #[test]
    fn reading_past_the_end_is_an_error_only_for_read_exact() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(&dir.path().join("a"));
        assert_eq!(file.read_at(&mut [0; 4], 0).unwrap(), 0);
        let error = read_exact_at(&*file, &mut [0; 4], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn create_new_refuses_a_file_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        create(&path);
        let error = RealFs.open(&path, OpenMode::CreateNew).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_file_is_made_only_where_that_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let missing = RealFs
            .open(&dir.path().join("b"), OpenMode::ReadWrite)
            .unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_what_is_not_there_counts_as_gone() {
        let dir = tempfile::tempdir().unwrap();
        let look = |name: &str| unless_gone(fs::symlink_metadata(dir.path().join(name)));
        create(&dir.path().join("a"));
        assert!(look("a").unwrap().is_some());
        assert!(look("b").unwrap().is_none());
        // An entry that even the superuser cannot examine.
        assert!(look("a/b").is_err());
        let denied = io::ErrorKind::PermissionDenied;
        assert_eq!(
            unless_gone::<()>(Err(denied.into())).unwrap_err().kind(),
            denied
        );
    }

    #[test]
    fn files_are_private_and_are_closed_on_exec() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        create(&path);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            FILE_MODE
        );
        let file = RealFile(OpenOptions::new().read(true).open(&path).unwrap());
        let flags = rustix::io::fcntl_getfd(file.0.as_fd()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn read_dir_tells_regular_files_from_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        write_all_at(&*create(&dir.path().join("a")), b"1234", 0).unwrap();
        RealFs.create_dir_all(&dir.path().join("sub/sub")).unwrap();
        symlink(dir.path().join("a"), dir.path().join("z")).unwrap();
        let mut entries = RealFs.read_dir(dir.path()).unwrap();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let entry = |name: &str, is_file, size| DirEntry {
            name: name.into(),
            is_file,
            size,
        };
        assert_eq!(
            entries,
            [
                entry("a", true, 4),
                entry("sub", false, 0),
                entry("z", false, 0)
            ]
        );
    }

    #[test]
    fn a_name_that_is_not_utf_8_is_listed_all_the_same() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        create(&dir.path().join(std::ffi::OsStr::from_bytes(b"a\xff")));
        assert_eq!(RealFs.read_dir(dir.path()).unwrap()[0].name, "a\u{fffd}");
    }

    #[test]
    fn f31_a_name_that_anything_has_is_given_to_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let refused = |renamed: io::Result<()>| renamed.unwrap_err().kind();
        let renames: [fn(&Path, &Path) -> io::Result<()>; 2] =
            [|from, to| RealFs.rename(from, to), rename_unless_taken];
        for rename in renames {
            write_all_at(&*create(&from), b"new", 0).unwrap();
            create(&to);
            assert_eq!(refused(rename(&from, &to)), io::ErrorKind::AlreadyExists);
            RealFs.remove_file(&to).unwrap();
            // A link without a target occupies the name, too.
            symlink(dir.path().join("gone"), &to).unwrap();
            assert_eq!(refused(rename(&from, &to)), io::ErrorKind::AlreadyExists);
            RealFs.remove_file(&to).unwrap();
            RealFs.create_dir_all(&to).unwrap();
            assert_eq!(refused(rename(&from, &to)), io::ErrorKind::AlreadyExists);
            RealFs.remove_dir(&to).unwrap();
            rename(&from, &to).unwrap();
            assert_eq!(RealFs.open_read(&to).unwrap().size().unwrap(), 3);
            RealFs.remove_file(&to).unwrap();
        }
    }

    #[test]
    fn replace_replaces_and_remove_removes() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        write_all_at(&*create(&a), b"new", 0).unwrap();
        create(&b);
        RealFs.replace(&a, &b).unwrap();
        RealFs.sync_dir(dir.path()).unwrap();
        assert_eq!(RealFs.open_read(&b).unwrap().size().unwrap(), 3);
        assert!(!a.exists());
        RealFs.remove_file(&b).unwrap();
        assert!(RealFs.read_dir(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn allocate_extends_but_never_cuts() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(&dir.path().join("a"));
        file.allocate(0).unwrap();
        assert_eq!(file.size().unwrap(), 0);
        file.allocate(100_000).unwrap();
        file.allocate(1000).unwrap();
        assert_eq!(file.size().unwrap(), 100_000);
        let mut last = [1; 1];
        read_exact_at(&*file, &mut last, 99_999).unwrap();
        assert_eq!(last, [0]);
    }

    #[test]
    fn a_range_is_zeroed_where_the_file_system_can_do_that() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(&dir.path().join("a"));
        let old = vec![7; 10_000];
        write_all_at(&*file, &old, 0).unwrap();
        let is_done = file.zero(20_000).unwrap();
        let mut bytes = vec![1; file.size().unwrap() as usize];
        read_exact_at(&*file, &mut bytes, 0).unwrap();
        match is_done {
            true => assert_eq!(bytes, vec![0; 20_000]),
            false => assert_eq!(bytes, old),
        }
    }

    #[test]
    fn set_size_cuts_and_extends_with_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(&dir.path().join("a"));
        write_all_at(&*file, b"abcdef", 0).unwrap();
        file.set_size(3).unwrap();
        file.set_size(6).unwrap();
        let mut text = [1; 6];
        read_exact_at(&*file, &mut text, 0).unwrap();
        assert_eq!(&text, b"abc\0\0\0");
    }

    #[test]
    fn syncing_a_directory_that_is_gone_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RealFs.sync_dir(&dir.path().join("gone")).is_err());
    }
}
