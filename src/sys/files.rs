//! When is a file durable, where is room for it, how does it get an unused name?

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Once;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Make the content and the size of a file durable.
///
/// Linux: `fdatasync`. macOS: `F_FULLFSYNC`, because `fsync` leaves the data in the drive's cache;
/// a file system that does not know it (some network drives) gives an error, and no weaker call is
/// tried. FreeBSD: `fdatasync`.
#[cfg(target_os = "linux")]
pub(crate) fn sync_data(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fdatasync(file)?)
}

/// The standard library calls what the system has.
#[cfg(not(target_os = "linux"))]
pub(crate) fn sync_data(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// True if it is known that a file system is mounted there.
#[cfg(target_os = "linux")]
pub(crate) fn is_mount_point(dir: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let found = statx(CWD, dir, AtFlags::empty(), StatxFlags::TYPE);
    found.is_ok_and(|it| it.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// A file system of its own has another number than its parent.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_mount_point(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|it| it.dev()).ok();
    let (own, above) = (device(dir), device(&dir.join("..")));
    own.is_some() && own != above
}

/// Make the names in a directory durable: `fsync`, on macOS `F_FULLFSYNC`.
///
/// Some file systems (of networks, of user space) know no sync of a directory, and say so: they keep
/// names by themselves, or cannot. That is said once; for a file it is an error.
pub(crate) fn sync_directory(directory: &File) -> io::Result<()> {
    static IS_SAID: Once = Once::new();
    match directory.sync_all() {
        Err(error) if knows_no_sync(&error) => {
            IS_SAID.call_once(|| {
                tracing::warn!(
                    "a file system does not know the sync of a directory ({error}): whether a power \
                     cut can take the name of a file that is new is up to that file system"
                );
            });
            Ok(())
        }
        synced => synced,
    }
}

fn knows_no_sync(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| errno == Errno::INVAL || errno == Errno::NOTSUP)
}

/// Reserve space for the first `size` bytes, which are not 0, and make the file at least that long.
///
/// Where the file system cannot reserve, only the size is set, and a write within it may still find
/// the disk full.
pub(crate) fn reserve(file: &File, size: u64) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| allocate(file, size)) {
        Err(error) if is_unsupported(error) => extend(file, size),
        result => Ok(result?),
    }
}

/// Give the space of this range back. A file system that cannot do that gives an error.
#[cfg(target_os = "linux")]
pub(crate) fn punch(file: &File, range: std::ops::Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let size = range.end - range.start;
    Ok(rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(file, flags, range.start, size)
    })?)
}

/// Make the first `size` bytes, which are not 0, zeros with space reserved, and the file at least
/// that long. No byte is written: the file system notes that nothing was. `false`: it cannot.
#[cfg(target_os = "linux")]
pub(crate) fn zero(file: &File, size: u64) -> io::Result<bool> {
    let flags = FallocateFlags::ZERO_RANGE;
    match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, 0, size)) {
        Err(error) if is_unsupported(error) || error == Errno::INVAL => Ok(false),
        result => Ok(result.map(|()| true)?),
    }
}

/// FreeBSD: `posix_fallocate`.
#[cfg(not(target_vendor = "apple"))]
fn allocate(file: &File, size: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size)
}

/// `F_PREALLOCATE` adds room behind the end of the file, and the call that sets the size would also
/// cut a file that is longer.
#[cfg(target_vendor = "apple")]
fn allocate(file: &File, size: u64) -> rustix::io::Result<()> {
    let found = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    if found >= size {
        return Ok(());
    }
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size)
}

/// The two numbers are one on Linux.
#[cfg(not(target_os = "freebsd"))]
fn is_unsupported(error: Errno) -> bool {
    error == Errno::OPNOTSUPP || error == Errno::NOTSUP || error == Errno::NOSYS
}

/// ZFS answers EINVAL. Zeros written there would reserve nothing: it copies on write.
#[cfg(target_os = "freebsd")]
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)
}

fn extend(file: &File, size: u64) -> io::Result<()> {
    if file.metadata()?.len() < size {
        file.set_len(size)
    } else {
        Ok(())
    }
}

/// Rename in one step, unless `to` exists. `None`: this system or file system cannot do that in one
/// step, and nothing has happened.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
pub(crate) fn rename_to_unused(from: &Path, to: &Path) -> Option<io::Result<()>> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(error) if error == Errno::INVAL || is_unsupported(error) => None,
        renamed => Some(renamed.map_err(io::Error::from)),
    }
}

/// There is no such call.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub(crate) fn rename_to_unused(_: &Path, _: &Path) -> Option<io::Result<()>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn g52_a_directory_that_cannot_be_synced_is_no_error_and_a_file_is_one() {
        // Of the file systems that know no sync this one is everywhere.
        sync_directory(&File::options().read(true).open("/proc/self").unwrap()).unwrap();
        let file = File::options().read(true).open("/proc/self/stat").unwrap();
        let error = sync_data(&file).unwrap_err();
        assert!(knows_no_sync(&error), "{error}");
        for errno in [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::BADF] {
            assert!(!knows_no_sync(&errno.into()), "{errno}");
        }
    }

    #[test]
    fn where_space_cannot_be_reserved_the_size_grows_and_never_shrinks() {
        let file = tempfile::tempfile().unwrap();
        extend(&file, 5000).unwrap();
        extend(&file, 10).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5000);
    }

    #[test]
    fn reserved_again_a_file_keeps_its_size_and_bytes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(9000).unwrap();
        reserve(&file, 5000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 9000);
        reserve(&file, 10_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10_000);
    }

    #[test]
    fn where_a_name_is_taken_it_stays_or_the_caller_is_told_to_look() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["a", "b"].map(|name| dir.path().join(name));
        for path in [&from, &to] {
            std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .unwrap();
        }
        let renamed = rename_to_unused(&from, &to);
        if let Some(renamed) = renamed {
            let kind = renamed.unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::AlreadyExists);
        }
        assert!(from.exists() && to.exists());
    }
}
