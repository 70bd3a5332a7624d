//! The lock of a data directory on the real file system.
//!
//! Two kinds of lock are taken on `DIR/lock`, because the two do not see each other: beanstalkd
//! takes an fcntl write lock on the whole file; other programs (and `std::fs::File::try_lock`)
//! take flock. A directory is ours only when we hold both.
//!
//! fcntl locks belong to the process, which has two consequences. Within a process they never
//! conflict. And closing *any* descriptor of the file drops them, also one that was opened only to
//! look. So a second attempt in this process must not even open the file: the locks that this
//! process holds are kept in one table, which is asked first. It is the one thing here that is
//! shared by all engines of a process, because the system shares it.
//!
//! A lock is let go when the process ends, however it ends. The file itself stays: removing it
//! would let one process lock the old file and another a new one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::fs::{DirLock, FILE_MODE, LockError};

/// The name of the lock file, which beanstalkd uses too.
pub(super) const LOCK_NAME: &str = "lock";

/// Device and inode: the identity of a file, whatever path led to it.
type FileId = (u64, u64);

/// The lock files that this process holds. The files live here, so that nothing else can close
/// one.
static HELD: Mutex<BTreeMap<FileId, File>> = Mutex::new(BTreeMap::new());

/// A directory that this process has to itself until this is dropped.
#[derive(Debug)]
pub(super) struct RealLock(FileId);

impl DirLock for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        // Unlocked by name, not by closing alone: a child process that is just being started has a
        // copy of the descriptor until it executes its program, and so would hold the flock.
        if let Some(file) = held().remove(&self.0) {
            let _ = flock(&file, FlockOperation::Unlock);
        }
    }
}

/// Take both locks on `dir/lock`, creating the file when it is missing. Never waits.
pub(super) fn lock_dir(dir: &Path) -> Result<RealLock, LockError> {
    let path = dir.join(LOCK_NAME);
    let mut held = held();
    if is_held(&held, &path)? {
        return Err(LockError::Held {
            pid: Some(std::process::id()),
        });
    }
    let file = open(&path)?;
    take(
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive),
        &file,
    )?;
    take(
        flock(&file, FlockOperation::NonBlockingLockExclusive),
        &file,
    )?;
    let id = identity(&file.metadata()?);
    held.insert(id, file);
    Ok(RealLock(id))
}

/// The table stays right through a panic: each change of it is one call.
fn held() -> MutexGuard<'static, BTreeMap<FileId, File>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_held(held: &BTreeMap<FileId, File>, path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(held.contains_key(&identity(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn identity(metadata: &std::fs::Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(FILE_MODE).open(path)
}

/// A refused lock means another process; anything else that fails is an error of the file system.
fn take(outcome: rustix::io::Result<()>, file: &File) -> Result<(), LockError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK | Errno::ACCESS) => Err(LockError::Held { pid: holder(file) }),
        Err(error) => Err(LockError::Io(error.into())),
    }
}

/// The process that holds the fcntl lock. The system tells of no flock's holder, but every bsd
/// holds both. A process of another pid namespace has no number here.
fn holder(file: &File) -> Option<u32> {
    let lock = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok()??;
    u32::try_from(lock.pid?.as_raw_nonzero().get()).ok()
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        LockError::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A beanstalkd that is killed when the test is over.
    struct Peer(Child);

    impl Drop for Peer {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Start beanstalkd on `dir`; `None` when it is not installed, which is an error only when
    /// BSD_REQUIRE_PEERS=1 asks for it.
    fn beanstalkd(dir: &Path) -> Option<Peer> {
        let socket = format!("unix:{}", dir.join("socket").display());
        let mut command = Command::new("beanstalkd");
        command
            .arg("-b")
            .arg(dir)
            .arg("-l")
            .arg(socket)
            .stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Some(Peer(child)),
            Err(error) if std::env::var_os("BSD_REQUIRE_PEERS").is_none_or(|v| v != "1") => {
                eprintln!("skipped: cannot run beanstalkd: {error}");
                None
            }
            Err(error) => panic!("BSD_REQUIRE_PEERS=1, but cannot run beanstalkd: {error}"),
        }
    }

    /// Wait until the peer answers a command, which it does only after it has locked its
    /// directory, or ends: false.
    fn answers(peer: &mut Peer, dir: &Path) -> bool {
        let mut stream = loop {
            if let Ok(stream) = UnixStream::connect(dir.join("socket")) {
                break stream;
            }
            if peer.0.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::yield_now();
        };
        stream.write_all(b"list-tube-used\r\n").is_ok() && stream.read_exact(&mut [0; 5]).is_ok()
    }

    fn is_held_by(outcome: Result<RealLock, LockError>, expected: u32) -> bool {
        matches!(outcome, Err(LockError::Held { pid: Some(pid) }) if pid == expected)
    }

    #[test]
    fn a_directory_of_a_running_beanstalkd_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let Some(mut peer) = beanstalkd(dir.path()) else {
            return;
        };
        assert!(answers(&mut peer, dir.path()));
        assert!(is_held_by(lock_dir(dir.path()), peer.0.id()));
        drop(peer);
        lock_dir(dir.path()).unwrap();
    }

    #[test]
    fn beanstalkd_does_not_start_on_a_locked_directory_even_after_a_second_attempt_at_it() {
        let dir = tempfile::tempdir().unwrap();
        let _lock = lock_dir(dir.path()).unwrap();
        assert!(is_held_by(lock_dir(dir.path()), std::process::id()));
        let Some(mut peer) = beanstalkd(dir.path()) else {
            return;
        };
        assert!(!answers(&mut peer, dir.path()));
    }

    #[test]
    fn two_locks_in_one_process_conflict_whatever_the_path_until_one_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let lock = lock_dir(dir.path()).unwrap();
        assert!(is_held_by(lock_dir(dir.path()), std::process::id()));
        assert!(is_held_by(lock_dir(&link), std::process::id()));
        drop(lock);
        lock_dir(&link).unwrap();
    }

    #[test]
    fn a_flock_of_another_description_is_respected() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(&dir.path().join(LOCK_NAME)).unwrap();
        file.try_lock().unwrap();
        assert!(matches!(
            lock_dir(dir.path()),
            Err(LockError::Held { pid: None })
        ));
        file.unlock().unwrap();
        lock_dir(dir.path()).unwrap();
    }

    #[test]
    fn two_directories_are_locked_apart() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let _one = lock_dir(one.path()).unwrap();
        let _two = lock_dir(two.path()).unwrap();
    }

    #[test]
    fn a_missing_directory_is_an_error_not_a_holder() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            lock_dir(&dir.path().join("gone")),
            Err(LockError::Io(_))
        ));
    }
}
