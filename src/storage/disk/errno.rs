//! Meanings and remedies of errors of the system.

use std::io;

use rustix::io::Errno;

use crate::ErrorClass;

/// Remedy for a system error, if its kind tells enough.
pub(in crate::storage) fn hint(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::NotFound => Some("check the path"),
        io::ErrorKind::NotADirectory => Some("give a directory"),
        io::ErrorKind::PermissionDenied => {
            Some("run it as the user that it belongs to, or change who may use it")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            Some("it is mounted for reading only: mount it for writing, or use another place")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("free space, or use another disk")
        }
        io::ErrorKind::OutOfMemory => Some("free memory, or use a larger machine"),
        _ if wants_descriptor(error) => Some("raise the limit of open files (ulimit -n)"),
        _ if Errno::from_io_error(error) == Some(Errno::IO) => {
            Some("the disk failed: see the system's log, and copy what can be read")
        }
        _ => None,
    }
}

/// True if the error means that there is no room: on the file system, in a quota, or among the
/// files that may be open.
pub(in crate::storage) fn is_full(error: &io::Error) -> bool {
    ErrorClass::of(error).is_short()
}

/// True if the error means that the process, or the system, has reached its limit of open files.
pub(in crate::storage) fn wants_descriptor(error: &io::Error) -> bool {
    ErrorClass::of(error) == ErrorClass::Descriptors
}
