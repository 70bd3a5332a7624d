//! Class of an error: decided once, where the system's error is seen, and kept on its way up. The
//! server's exit code, and whether a service manager starts it again, follow from it alone
//! (`config: exit`).

use std::error::Error;
use std::{fmt, io};

use rustix::io::Errno;

/// The kind of trouble that ended something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorClass {
    /// Something cannot be used as it is set up: an address, a right, another program's directory.
    Setup,
    /// Acknowledged data is damaged.
    Damaged,
    /// A call of the disk failed, and no one knows what is on it before it is read again.
    Disk,
    /// The command line is wrong.
    Usage,
    /// Another server has taken over the archive, or the store cannot hold one.
    Replaced,
    /// The copy of this member is not what the others of its cluster have.
    Diverged,
    /// The disk is full, and there is nothing to be done without room.
    Full,
    /// No more files can be opened.
    Descriptors,
    /// Another process uses the directory.
    InUse,
    /// The system has no memory left for a call.
    Memory,
}

impl ErrorClass {
    /// All of them.
    pub const ALL: [ErrorClass; 10] = [
        ErrorClass::Setup,
        ErrorClass::Damaged,
        ErrorClass::Disk,
        ErrorClass::Usage,
        ErrorClass::Replaced,
        ErrorClass::Diverged,
        ErrorClass::Full,
        ErrorClass::Descriptors,
        ErrorClass::InUse,
        ErrorClass::Memory,
    ];

    /// The class of an error of the system. What is not known is taken for a failure of the disk:
    /// the next start reads it.
    #[must_use]
    pub fn of(error: &io::Error) -> ErrorClass {
        match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => ErrorClass::Full,
            io::ErrorKind::OutOfMemory => ErrorClass::Memory,
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::CrossesDevices
            | io::ErrorKind::Unsupported => ErrorClass::Setup,
            _ => match Errno::from_io_error(error) {
                Some(Errno::MFILE | Errno::NFILE) => ErrorClass::Descriptors,
                _ => ErrorClass::Disk,
            },
        }
    }

    /// The class of an error of a call that has nothing to do with the disk.
    #[must_use]
    pub fn of_system(error: &io::Error) -> ErrorClass {
        match ErrorClass::of(error) {
            class @ (ErrorClass::Descriptors | ErrorClass::Memory) => class,
            // No thread can be started: at another time it can.
            ErrorClass::Disk if error.kind() == io::ErrorKind::WouldBlock => ErrorClass::Memory,
            _ => ErrorClass::Setup,
        }
    }

    /// True if something lacks room, on the disk or among the files that may be open: it can be
    /// tried again.
    #[must_use]
    pub fn is_short(self) -> bool {
        matches!(self, ErrorClass::Full | ErrorClass::Descriptors)
    }

    /// Which room is lacking, in words, if something [`is short`](ErrorClass::is_short).
    #[must_use]
    pub fn lack(self) -> &'static str {
        match self {
            ErrorClass::Descriptors => "no more files can be opened",
            _ => "the disk is full",
        }
    }

    /// How a person makes such room while the server runs.
    #[must_use]
    pub fn relief(self) -> &'static str {
        match self {
            ErrorClass::Descriptors => "raise the limit of open files (`prlimit`, `LimitNOFILE=`)",
            _ => "make room on it",
        }
    }

    /// The class of the same error of a server that runs: what could be used at its start, and
    /// cannot any more, has failed.
    #[must_use]
    pub fn while_running(self) -> ErrorClass {
        match self {
            ErrorClass::Setup => ErrorClass::Disk,
            other => other,
        }
    }

    /// Remedy for a person. Never to remove what may be the only copy.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            ErrorClass::Setup => "correct what the line names, then start again",
            ErrorClass::Damaged => "copy the directory before anything else, and work on the copy",
            ErrorClass::Disk => {
                "check the disk, then start again: every acknowledged job is read back"
            }
            ErrorClass::Usage => "correct the command line",
            ErrorClass::Replaced => {
                "find out which server archives this log now, before this one is started again"
            }
            ErrorClass::Diverged => {
                "look at the others first (`bsd-ctl cluster status`); if a majority of them has the \
                 jobs, remove this member, move its directory elsewhere and keep it, and add it again \
                 with a new one"
            }
            ErrorClass::Full => {
                "make room on the disk, then start again: every acknowledged job is read back"
            }
            ErrorClass::Descriptors => {
                "raise the limit of open files (`LimitNOFILE=`, `ulimit -n`), then start again: every \
                 acknowledged job is read back"
            }
            ErrorClass::InUse => "stop the other process, or use another directory",
            ErrorClass::Memory => {
                "give the server more memory (`MemoryMax=`, a larger machine) or bound its jobs \
                 (`--max-memory`), then start again: every acknowledged job is read back"
            }
        }
    }
}

/// Something that a server was given cannot be used: a file of tokens, a certificate, an address, a
/// store. The text says what is wrong and what to do.
#[derive(Debug)]
pub struct SetupError {
    class: ErrorClass,
    text: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SetupError {
    /// An error in a setting or a file that was given.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> SetupError {
        SetupError {
            class: ErrorClass::Setup,
            text: text.to_string(),
            source: None,
        }
    }

    /// A call of the system failed with `cause`, which the text names.
    #[must_use]
    pub fn io(text: impl fmt::Display, cause: io::Error) -> SetupError {
        let class = match cause.kind() {
            // Text that is not UTF-8, or no certificate: the file, not the disk.
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => ErrorClass::Setup,
            _ => ErrorClass::of(&cause),
        };
        SetupError::caused_by(text, class, cause)
    }

    /// A call that has nothing to do with the disk failed with `cause`, which the text names.
    #[must_use]
    pub fn of_socket(text: impl fmt::Display, cause: io::Error) -> SetupError {
        SetupError::caused_by(text, ErrorClass::of_system(&cause), cause)
    }

    /// An error of this class with `cause`, which the text names.
    #[must_use]
    pub fn caused_by(
        text: impl fmt::Display,
        class: ErrorClass,
        cause: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> SetupError {
        SetupError {
            class,
            text: text.to_string(),
            source: Some(cause.into()),
        }
    }

    /// The same, of what a flag names: that is a mistake of the command line.
    #[must_use]
    pub fn of_flag(self, flag: &str) -> SetupError {
        let class = match self.class {
            ErrorClass::Setup => ErrorClass::Usage,
            class => class,
        };
        SetupError {
            class,
            text: format!("{flag}: {}", self.text),
            source: self.source,
        }
    }

    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        self.class
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for SetupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|cause| &**cause as _)
    }
}

/// A flag, or a line of a file, that cannot be parsed. The text says what is expected. Its class is
/// [`ErrorClass::Usage`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    /// An error with this text.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> UsageError {
        UsageError(text.to_string())
    }
}

impl From<&str> for UsageError {
    fn from(text: &str) -> UsageError {
        UsageError::new(text)
    }
}

impl From<String> for UsageError {
    fn from(text: String) -> UsageError {
        UsageError(text)
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UsageError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_file_that_was_given_keeps_the_class_of_the_system() {
        let class = |errno: Errno| SetupError::io("a file", errno.into()).class();
        assert_eq!(class(Errno::MFILE), ErrorClass::Descriptors);
        assert_eq!(class(Errno::IO), ErrorClass::Disk);
        assert_eq!(class(Errno::NOENT), ErrorClass::Setup);
        let not_text = io::Error::from(io::ErrorKind::InvalidData);
        let error = SetupError::io("a file", not_text);
        assert_eq!(error.class(), ErrorClass::Setup);
        let source = error.source().and_then(|it| it.downcast_ref());
        let kind = source.map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::InvalidData));
        let error = SetupError::new("a line");
        assert!(error.class() == ErrorClass::Setup && error.source().is_none());
    }

    #[test]
    fn g02_an_error_of_the_system_has_the_class_that_says_what_helps() {
        let table = [
            (Errno::NOSPC, ErrorClass::Full),
            (Errno::DQUOT, ErrorClass::Full),
            (Errno::FBIG, ErrorClass::Full),
            (Errno::MFILE, ErrorClass::Descriptors),
            (Errno::NFILE, ErrorClass::Descriptors),
            (Errno::NOMEM, ErrorClass::Memory),
            (Errno::IO, ErrorClass::Disk),
            (Errno::NXIO, ErrorClass::Disk),
            (Errno::ACCESS, ErrorClass::Setup),
            (Errno::ROFS, ErrorClass::Setup),
            (Errno::NOENT, ErrorClass::Setup),
            (Errno::INVAL, ErrorClass::Setup),
        ];
        for (errno, class) in table {
            assert_eq!(ErrorClass::of(&errno.into()), class, "{errno}");
        }
        let unknown = io::Error::other("a bug");
        assert_eq!(ErrorClass::of(&unknown), ErrorClass::Disk);
    }

    #[test]
    fn g02_each_class_has_one_advice_and_none_removes_data() {
        let mut advices = ErrorClass::ALL.map(ErrorClass::advice).to_vec();
        for advice in &advices {
            for word in ["empty", "delete", "rm ", "erase", "wipe"] {
                assert!(!advice.contains(word), "{advice}");
            }
        }
        advices.sort_unstable();
        advices.dedup();
        assert_eq!(advices.len(), ErrorClass::ALL.len());
    }
}
