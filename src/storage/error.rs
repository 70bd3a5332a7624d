//! Errors of the disk and the log, in words for the person who has to act on them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::storage::disk::Holder;
use crate::storage::read::scan::Damage;

/// A write, sync or read that the log cannot do without has failed. Nothing may be acknowledged
/// after it: only the next start, which reads the disk, knows what is there.
#[derive(Debug, Clone)]
pub struct StoreError {
    /// The operation that failed.
    pub doing: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The error text of the system.
    pub cause: String,
}

impl StoreError {
    pub(crate) fn new(doing: &'static str, path: &Path, cause: &io::Error) -> StoreError {
        StoreError {
            doing,
            path: path.to_owned(),
            cause: cause.to_string(),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreError { doing, path, cause } = self;
        write!(
            f,
            "the log has failed: could not {doing} {}: {cause}; nothing was acknowledged after \
             this; check the disk, then start again: every acknowledged job is read back",
            path.display()
        )
    }
}

impl std::error::Error for StoreError {}

/// Why a log could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another process uses the directory.
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The process that holds it, if the system tells.
        holder: Option<Holder>,
    },
    /// Acknowledged data is damaged. Nothing on the disk was changed.
    Damaged {
        /// The directory.
        dir: PathBuf,
        /// The damage; never empty.
        damages: Vec<Damage>,
    },
    /// The directory holds the log of a newer version, or of another program.
    Foreign {
        /// The directory or file.
        path: PathBuf,
        /// What it is, and what to do about it.
        what: String,
    },
    /// A disk operation failed.
    Io(StoreError),
}

impl OpenError {
    pub(crate) fn io(doing: &'static str, path: &Path, cause: &io::Error) -> OpenError {
        let mut error = StoreError::new(doing, path, cause);
        if let Some(hint) = hint(cause) {
            error.cause = format!("{}; {hint}", error.cause);
        }
        OpenError::Io(error)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::InUse { dir, holder } => {
                let by = match holder {
                    Some(holder) => holder.to_string(),
                    None => "another process".to_owned(),
                };
                let dir = dir.display();
                match holder {
                    Some(Holder {
                        only_reads: true, ..
                    }) => write!(
                        f,
                        "{dir} is being read by {by}; wait until that has ended, or end it, which \
                         does no harm"
                    ),
                    _ => write!(
                        f,
                        "{dir} is in use by {by}; stop that one first, or give this one another \
                         directory"
                    ),
                }
            }
            OpenError::Damaged { dir, damages } => {
                for damage in damages {
                    writeln!(f, "{}: {damage}", dir.display())?;
                }
                let dir = dir.display();
                write!(
                    f,
                    "the log in {dir} is damaged and was left as it is; look at it with `bsd-wal \
                     verify {dir}`, get back what survives with `bsd-wal repair {dir} --output NEW`"
                )
            }
            OpenError::Foreign { path, what } => write!(f, "{}: {what}", path.display()),
            OpenError::Io(StoreError { doing, path, cause }) => {
                write!(f, "could not {doing} {}: {cause}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> OpenError {
        OpenError::Io(error)
    }
}

/// What to do about a system error, if its kind tells enough.
fn hint(error: &io::Error) -> Option<&'static str> {
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
        _ if wants_descriptor(error) => Some("raise the limit of open files (ulimit -n)"),
        _ if Errno::from_io_error(error) == Some(Errno::IO) => {
            Some("the disk failed: see the system's log, and copy what can be read")
        }
        _ => None,
    }
}

/// True if the error means that there is no room: on the file system, in a quota, or among the
/// files that may be open.
pub(crate) fn is_full(error: &io::Error) -> bool {
    let is_space = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    );
    is_space || wants_descriptor(error)
}

/// True if the error means that the process, or the system, has reached its limit of open files.
pub(crate) fn wants_descriptor(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}
