//! Which locks of a file see each other, and who holds one?

use std::fs::File;

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io;

/// Device and inode: the identity of a file, independent of the path.
pub(crate) type FileId = (u64, u64);

/// Lock a file against programs that use fcntl and against those that use flock. Never waits.
///
/// On Linux the two do not see each other, so both are taken.
#[cfg(target_os = "linux")]
pub(crate) fn lock_both(file: &File, operation: FlockOperation) -> io::Result<()> {
    fcntl_lock(file, operation)?;
    flock(file, operation)
}

/// macOS and FreeBSD keep one list of both kinds for a file. The fcntl lock keeps out who uses
/// flock; and a flock would find the fcntl lock of its own process in the way, because they have
/// different owners: the process, and the open file.
#[cfg(not(target_os = "linux"))]
pub(crate) fn lock_both(file: &File, operation: FlockOperation) -> io::Result<()> {
    fcntl_lock(file, operation)
}

/// End what [`lock_both`] has begun. The locks end with the file as well.
pub(crate) fn unlock(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}

/// The process that holds a flock on the first of these files that is locked so, and whether it
/// only reads; `None`: no process does, or the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn flock_holder(files: impl IntoIterator<Item = FileId>) -> Option<(u32, bool)> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    files.into_iter().find_map(|file| holder_in(&locks, file))
}

/// The system reports it only in `/proc/locks`, in lines such as `2: FLOCK ADVISORY  WRITE 4711
/// 08:02:1311 0 EOF`.
#[cfg(target_os = "linux")]
fn holder_in(locks: &str, (dev, ino): FileId) -> Option<(u32, bool)> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let place = format!("{major:02x}:{minor:02x}:{ino}");
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, kind, pid, at, ..] if at == place => {
                Some((pid.parse().ok().filter(|pid| *pid > 0)?, kind == "READ"))
            }
            _ => None,
        }
    })
}

/// A flock belongs to an open file, not to a process: these systems name none.
#[cfg(not(target_os = "linux"))]
pub(crate) fn flock_holder(_: impl IntoIterator<Item = FileId>) -> Option<(u32, bool)> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn f41_who_holds_a_flock_is_found_among_all_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:02:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 08:03:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 08:02:77 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 14 08:02:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 15 08:02:78 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 0 08:02:79 0 EOF\n";
        let dev = rustix::fs::makedev(8, 2);
        let holders = [77, 78, 79, 80].map(|ino| holder_in(locks, (dev, ino)));
        assert_eq!(holders, [Some((14, true)), Some((15, false)), None, None]);
    }
}
