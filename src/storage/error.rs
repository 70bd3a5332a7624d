//! Errors of the disk and the log, in words for the person who has to act on them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::ErrorClass;
use crate::storage::disk::errno::hint;
use crate::storage::disk::{Holder, LockError};
use crate::storage::format::names::LEDGER_PREFIX;
use crate::types::JobId;

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
    pub(crate) class: ErrorClass,
}

impl StoreError {
    /// `doing` says what failed, in the form "write".
    pub fn new(doing: &'static str, path: &Path, cause: &io::Error) -> StoreError {
        StoreError {
            doing,
            path: path.to_owned(),
            cause: cause.to_string(),
            class: ErrorClass::of(cause),
        }
    }

    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        self.class
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreError {
            doing, path, cause, ..
        } = self;
        let advice = self.class.while_running().advice();
        write!(
            f,
            "the log has failed: could not {doing} {}: {cause}; nothing was acknowledged after \
             this; {advice}",
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
        /// The fault and the remedy.
        what: String,
    },
    /// A disk operation failed.
    Io(StoreError),
}

/// There were too few descriptors to keep all files of a log open, and its server has removed one that
/// was to be read again.
pub(in crate::storage) fn too_few_descriptors(dir: &Path) -> OpenError {
    let doing = "hold all files of the log open in";
    OpenError::no_room(doing, dir, ErrorClass::Descriptors)
}

impl OpenError {
    /// `dir` could not be locked.
    pub fn lock(dir: &Path, error: LockError) -> OpenError {
        match error {
            LockError::Held { holder } => OpenError::InUse {
                dir: dir.to_owned(),
                holder,
            },
            LockError::Io(error) => OpenError::io("lock", dir, &error),
        }
    }

    /// An I/O call of a start failed; `doing` says which, in the form "read".
    pub fn io(doing: &'static str, path: &Path, cause: &io::Error) -> OpenError {
        let mut error = StoreError::new(doing, path, cause);
        if let Some(hint) = hint(cause) {
            error.cause = format!("{}; {hint}", error.cause);
        }
        OpenError::Io(error)
    }

    /// A thread for the log at `path` cannot be started.
    pub(crate) fn no_thread(path: &Path, cause: &io::Error) -> OpenError {
        OpenError::Io(StoreError {
            doing: "start a thread for",
            path: path.to_owned(),
            cause: format!("{cause}; raise the limit of threads, `TasksMax=` of the unit"),
            class: ErrorClass::of_system(cause),
        })
    }

    /// There was no room for something; `class` says where.
    pub fn no_room(doing: &'static str, path: &Path, class: ErrorClass) -> OpenError {
        let errno = match class {
            ErrorClass::Descriptors => Errno::MFILE,
            _ => Errno::NOSPC,
        };
        let hint = hint(&errno.into()).unwrap_or_default();
        OpenError::Io(StoreError {
            doing,
            path: path.to_owned(),
            cause: format!("{}; {hint}", class.lack()),
            class,
        })
    }

    /// What was written to `path` was read back, and is something else, or cannot be read.
    pub(in crate::storage) fn not_kept(path: &Path, found: &dyn fmt::Display) -> OpenError {
        OpenError::Io(StoreError {
            doing: "read back",
            path: path.to_owned(),
            cause: format!("the disk did not keep what was written to it ({found}); use another"),
            class: ErrorClass::Disk,
        })
    }

    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            OpenError::InUse { .. } => ErrorClass::InUse,
            OpenError::Damaged { .. } => ErrorClass::Damaged,
            OpenError::Foreign { .. } => ErrorClass::Setup,
            OpenError::Io(error) => error.class(),
        }
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
                if damages.iter().all(|it| it.file.starts_with(LEDGER_PREFIX)) {
                    let (ledger, dir) = (dir.display(), dir.parent().unwrap_or(dir).display());
                    let advice = ErrorClass::Diverged.advice();
                    return write!(
                        f,
                        "the ledger in {ledger} is damaged and was left as it is: votes and entries \
                         that this member has answered for would be missing; {advice}; if the others \
                         are lost for good, see `bsd-wal ledger recover {dir} --help`"
                    );
                }
                let dir = dir.display();
                write!(
                    f,
                    "the log in {dir} is damaged and was left as it is; look at it with `bsd-wal \
                     verify {dir}`, get back what survives with `bsd-wal repair {dir} --output NEW`"
                )
            }
            OpenError::Foreign { path, what } => write!(f, "{}: {what}", path.display()),
            OpenError::Io(StoreError {
                doing, path, cause, ..
            }) => {
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

/// A record that contradicts the records before it: the log, or a file of beanstalkd's, is damaged
/// there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayError(String);

impl ReplayError {
    /// An error with this text, which becomes that of a [`Damage`].
    #[must_use]
    pub fn new(what: impl fmt::Display) -> ReplayError {
        ReplayError(what.to_string())
    }

    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        ErrorClass::Damaged
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReplayError {}

/// Damage to acknowledged data, in words for the person who has to act on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// Offset and length in it, bytes, if known.
    pub range: Option<(u64, u64)>,
    /// The fault.
    pub what: String,
    /// The affected jobs, as far as they are known.
    pub jobs: Vec<JobId>,
}

impl Damage {
    /// Damage of a file, at this offset and of this many bytes if that is known, that names no job.
    pub(crate) fn new(
        file: impl Into<String>,
        range: Option<(u64, u64)>,
        what: impl Into<String>,
    ) -> Damage {
        Damage {
            file: file.into(),
            range,
            what: what.into(),
            jobs: Vec::new(),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some((offset, size)) = self.range {
            write!(f, " at byte {offset} ({size} bytes)")?;
        }
        write!(f, ": {}", self.what)?;
        match &self.jobs[..] {
            [] => Ok(()),
            [job] => write!(f, "; it hits job {job}"),
            [first, rest @ ..] => {
                write!(f, "; it hits jobs {first}")?;
                rest.iter().try_for_each(|job| write!(f, ", {job}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_reported_in_a_sentence() {
        let mut damage = Damage {
            file: "segment-0000000003.00000".into(),
            range: Some((64, 100)),
            what: "the frame ends early".into(),
            jobs: vec![JobId(7)],
        };
        assert_eq!(
            damage.to_string(),
            "segment-0000000003.00000 at byte 64 (100 bytes): the frame ends early; it hits job 7"
        );
        damage.jobs.push(JobId(9));
        assert!(damage.to_string().ends_with("it hits jobs 7, 9"));
        (damage.jobs, damage.range) = (Vec::new(), None);
        let short = "segment-0000000003.00000: the frame ends early";
        assert_eq!(damage.to_string(), short);
    }
}
