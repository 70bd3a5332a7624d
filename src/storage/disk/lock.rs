//! The lock of a data directory on the real file system.
//!
//! A writer has the directory exclusively; readers share it. Three locks are taken, because they do
//! not see each other:
//!
//! | what | how | against |
//! |---|---|---|
//! | the directory itself | flock | another bsd, even when `DIR/lock` was removed or replaced |
//! | `DIR/lock` | fcntl, on the whole file | beanstalkd |
//! | `DIR/lock` | flock | who uses flock, such as `std::fs::File::try_lock`; on Linux only |
//!
//! The directory is ours only when we hold all of them. Two may be missing: on a file system that
//! cannot lock directories (NFS), `DIR/lock` alone does the work; and a reader does not create a
//! missing `DIR/lock`.
//!
//! fcntl locks belong to the process, which has two consequences. Within a process they never
//! conflict. And closing *any* descriptor of the file drops them, even one that was only opened to
//! look. So a second attempt in this process must not even open the file: the locks that this
//! process holds are in one table, which is checked first. It is the only state that all engines of
//! a process share, because the system shares it too.
//!
//! The lock ends with the process, however that ends. The file itself stays: if it were removed,
//! one process could lock the old file and another a new one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::storage::disk::{DirLock, FILE_MODE, Holder, LockError};
use crate::sys::locks::{self, FileId};
use crate::sys::processes;

/// The process that uses the directory locks this file.
pub(in crate::storage) const LOCK_NAME: &str = "lock";
/// Characters of a holder's command line that are shown at most.
const COMMAND_SHOWN: usize = 100;

/// Locks of this process on one directory. The files are kept here, so that no other code can close
/// one.
struct Held {
    directory: File,
    /// `DIR/lock` and its identity; `None`: there was none, and a reader does not create it.
    file: Option<(FileId, File)>,
    /// The number of readers that share it; 0: a writer has it exclusively.
    readers: u32,
}

/// The directories that this process holds.
static HELD: Mutex<BTreeMap<FileId, Held>> = Mutex::new(BTreeMap::new());

/// A directory that this process holds, exclusively or with other readers, until this is dropped.
#[derive(Debug)]
pub(in crate::storage) struct RealLock(FileId);

impl DirLock for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        let mut table = held();
        match table.get_mut(&self.0) {
            Some(held) if held.readers > 1 => held.readers -= 1,
            _ => {
                // Unlocked explicitly, not only by closing: a child process that is being started
                // has a copy of the descriptor until it executes its program, and would keep the
                // flock.
                if let Some(held) = table.remove(&self.0) {
                    let file = held.file.as_ref().map(|(_, file)| file);
                    for file in file.into_iter().chain([&held.directory]) {
                        locks::unlock(file);
                    }
                }
            }
        }
    }
}

/// Lock `dir` for this process alone, and create `dir/lock` if it is missing. Never waits.
pub(in crate::storage) fn lock_dir(dir: &Path) -> Result<RealLock, LockError> {
    let mut table = held();
    let attempt = Attempt::at(dir, &table)?;
    if let Some(held) = table.get(&attempt.id) {
        return Err(held_here(held.readers > 0));
    }
    let operation = FlockOperation::NonBlockingLockExclusive;
    attempt.take_directory(operation)?;
    let file = attempt.open_file(OpenOptions::new().read(true).write(true).create(true))?;
    attempt.take_file(&file, operation)?;
    Ok(attempt.keep(&mut table, Some(file), 0))
}

/// Share `dir` with other readers, creating nothing. Never waits.
///
/// An error of the file system means that it is unknown whether the directory is in use: neither it
/// nor `dir/lock` can be locked, or that file cannot be read.
pub(in crate::storage) fn share_dir(dir: &Path) -> Result<RealLock, LockError> {
    let mut table = held();
    let attempt = Attempt::at(dir, &table)?;
    match table.get_mut(&attempt.id) {
        Some(held) if held.readers == 0 => return Err(held_here(false)),
        Some(held) => {
            held.readers += 1;
            return Ok(RealLock(attempt.id));
        }
        None => {}
    }
    let operation = FlockOperation::NonBlockingLockShared;
    let is_taken = attempt.take_directory(operation)?;
    let file = match attempt.open_file(OpenOptions::new().read(true)) {
        Ok(file) => {
            attempt.take_file(&file, operation)?;
            Some(file)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_taken => None,
        Err(error) => return Err(error.into()),
    };
    Ok(attempt.keep(&mut table, file, 1))
}

/// The table stays consistent after a panic: each change of it is one call.
fn held() -> MutexGuard<'static, BTreeMap<FileId, Held>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn held_here(only_reads: bool) -> LockError {
    LockError::Held {
        holder: Some(Holder::new(std::process::id(), only_reads)),
    }
}

/// A directory that is about to be locked.
struct Attempt<'a> {
    dir: &'a Path,
    id: FileId,
    directory: File,
}

impl Attempt<'_> {
    fn at<'a>(dir: &'a Path, table: &BTreeMap<FileId, Held>) -> Result<Attempt<'a>, LockError> {
        let directory = OpenOptions::new().read(true).open(dir)?;
        let id = identity(&directory.metadata()?);
        let file = match std::fs::metadata(dir.join(LOCK_NAME)) {
            Ok(metadata) => identity(&metadata),
            // It may be missing or inaccessible: then it cannot be opened either.
            Err(_) => id,
        };
        // Another directory that this process holds may contain the same file (`cp -al`).
        let is_of = |held: &Held| held.file.as_ref().is_some_and(|(id, _)| *id == file);
        match table
            .iter()
            .find(|(other, held)| **other != id && is_of(held))
        {
            Some((_, held)) => Err(held_here(held.readers > 0)),
            None => Ok(Attempt { dir, id, directory }),
        }
    }

    /// False: this file system cannot lock directories.
    fn take_directory(&self, operation: FlockOperation) -> Result<bool, LockError> {
        match flock(&self.directory, operation) {
            Err(Errno::WOULDBLOCK) => Err(self.held_by_another(None)),
            outcome => Ok(outcome.is_ok()),
        }
    }

    fn open_file(&self, options: &mut OpenOptions) -> io::Result<File> {
        options.truncate(false).mode(FILE_MODE);
        options.open(self.dir.join(LOCK_NAME))
    }

    fn take_file(&self, file: &File, operation: FlockOperation) -> Result<(), LockError> {
        match locks::lock_both(file, operation) {
            Err(Errno::WOULDBLOCK | Errno::ACCESS) => Err(self.held_by_another(Some(file))),
            outcome => outcome.map_err(|error| LockError::Io(error.into())),
        }
    }

    fn keep(
        self,
        table: &mut BTreeMap<FileId, Held>,
        file: Option<File>,
        readers: u32,
    ) -> RealLock {
        let file = file.and_then(|file| Some((identity(&file.metadata().ok()?), file)));
        let held = Held {
            directory: self.directory,
            file,
            readers,
        };
        table.insert(self.id, held);
        RealLock(self.id)
    }

    /// A process of another pid namespace has no number here.
    fn held_by_another(&self, file: Option<&File>) -> LockError {
        let opened = match file {
            Some(_) => None,
            None => self.open_file(OpenOptions::new().read(true)).ok(),
        };
        let file = file.or(opened.as_ref());
        let ids = [
            Some(self.id),
            file.and_then(|file| Some(identity(&file.metadata().ok()?))),
        ];
        let by_flock = || locks::flock_holder(ids.into_iter().flatten());
        let found = file.and_then(fcntl_holder).or_else(by_flock);
        LockError::Held {
            holder: found.map(|(pid, only_reads)| Holder::new(pid, only_reads)),
        }
    }
}

fn identity(metadata: &std::fs::Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// The process that holds an fcntl lock on the file, and whether it only reads.
fn fcntl_holder(file: &File) -> Option<(u32, bool)> {
    let lock = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok()??;
    let pid = u32::try_from(lock.pid?.as_raw_nonzero().get()).ok()?;
    Some((pid, matches!(lock.typ, FlockType::ReadLock)))
}

impl Holder {
    fn new(pid: u32, only_reads: bool) -> Holder {
        Holder {
            pid,
            command: command(pid),
            only_reads,
        }
    }
}

/// The command line of a process, if it is accessible: on one line, shortened.
fn command(pid: u32) -> Option<String> {
    let line = processes::command_line(pid)?;
    let words: Vec<String> = line
        .split('\0')
        .filter(|word| !word.is_empty())
        .map(|word| word.escape_debug().to_string())
        .collect();
    let line = words.join(" ");
    let shown: String = line.chars().take(COMMAND_SHOWN).collect();
    match shown.len() {
        0 => None,
        len if len < line.len() => Some(format!("{shown}…")),
        _ => Some(shown),
    }
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        LockError::Io(error)
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "files are made and removed as other programs do it"
)]
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

    /// Start beanstalkd on `dir`; `None` if it is not installed, which is an error only with
    /// BSD_REQUIRE_PEERS=1.
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
                // `eprintln!` would be swallowed in a test that passes.
                let _ = writeln!(
                    std::io::stderr(),
                    "skipped: a lock of beanstalkd's: {error}"
                );
                None
            }
            Err(error) => panic!("BSD_REQUIRE_PEERS=1, but cannot run beanstalkd: {error}"),
        }
    }

    /// Wait until the peer answers a command (true), which it does only after it has locked its
    /// directory, or until it ends (false).
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
        matches!(outcome, Err(LockError::Held { holder: Some(holder) }) if holder.pid == expected)
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
        let file = File::create(dir.path().join(LOCK_NAME)).unwrap();
        file.try_lock().unwrap();
        assert!(is_held_by(lock_dir(dir.path()), std::process::id()));
        assert!(is_held_by(share_dir(dir.path()), std::process::id()));
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

    #[test]
    fn f41_readers_share_a_directory_and_who_writes_has_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        lock_dir(dir.path()).unwrap();
        let (one, other) = (
            share_dir(dir.path()).unwrap(),
            share_dir(dir.path()).unwrap(),
        );
        assert!(lock_dir(dir.path()).is_err());
        drop(one);
        assert!(lock_dir(dir.path()).is_err(), "one still reads");
        drop(other);
        let alone = lock_dir(dir.path()).unwrap();
        assert!(is_held_by(share_dir(dir.path()), std::process::id()));
        drop(alone);
        share_dir(dir.path()).unwrap();
    }

    #[test]
    fn f41_who_only_reads_creates_nothing_and_keeps_others_out_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let reader = share_dir(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // As another process sees it.
        let directory = File::open(dir.path()).unwrap();
        directory.try_lock_shared().unwrap();
        directory.unlock().unwrap();
        assert!(directory.try_lock().is_err());
        drop(reader);
        directory.try_lock().unwrap();
        assert!(is_held_by(share_dir(dir.path()), std::process::id()));
    }

    #[test]
    fn f15_a_directory_whose_lock_file_was_removed_is_held_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let _lock = lock_dir(dir.path()).unwrap();
        std::fs::remove_file(dir.path().join(LOCK_NAME)).unwrap();
        assert!(is_held_by(lock_dir(dir.path()), std::process::id()));
        // As another process sees it.
        assert!(File::open(dir.path()).unwrap().try_lock().is_err());
        assert!(!dir.path().join(LOCK_NAME).exists(), "nothing was made");
    }

    /// Two copies that share their files (`cp -al`): opening the file of one would drop the lock of
    /// the other.
    #[test]
    fn a_lock_file_that_two_directories_share_is_opened_once() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [mine, theirs] = [&one, &other].map(|dir| dir.path().join(LOCK_NAME));
        let _lock = lock_dir(one.path()).unwrap();
        std::fs::hard_link(mine, theirs).unwrap();
        assert!(lock_dir(other.path()).is_err());
        assert!(share_dir(other.path()).is_err());
    }

    #[test]
    fn f41_a_holder_is_told_with_its_command() {
        let holder = Holder::new(std::process::id(), false);
        let name = std::env::current_exe().unwrap();
        let name = name.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(holder.to_string().contains(&name[..10]), "{holder}");
        assert_eq!(command(0), None);
    }
}
