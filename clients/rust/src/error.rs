//! Errors, by kind.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// A result of this package.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong: a [kind](Error::kind), a text for people, and the cause if there is one.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    text: Box<str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What a program can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// `NOT_FOUND`: no such job, tube, policy or schedule; or the job is not in a state that allows
    /// this, or not reserved by this connection (any more).
    NotFound,
    /// `OUT_OF_MEMORY`: no room on the disk or in memory, or the policy of the tube allows no more
    /// jobs. Nothing was done: try again later.
    OutOfMemory,
    /// `DRAINING`: the server takes no jobs.
    Draining,
    /// `JOB_TOO_BIG`: the body, or the text of a `fail`, is too large.
    JobTooBig,
    /// `DEADLINE_SOON`: a job that this connection has reserved is in its last second, and none is
    /// ready. Finish it or touch it, then reserve again.
    DeadlineSoon,
    /// `NOT_IGNORED`: the last watched tube cannot be ignored.
    NotIgnored,
    /// `NOT_AUTHORIZED`: the token is wrong or missing, or does not allow this.
    NotAuthorized,
    /// `BAD_FORMAT`: the server cannot read the request, or a value of it is not right. Nothing was done.
    BadFormat,
    /// `EXPECTED_CRLF`: the body does not end where the request says. Nothing was done.
    ExpectedCrlf,
    /// `UNKNOWN_COMMAND` to one of beanstalkd's own commands: the server is an old one.
    UnknownCommand,
    /// `BURIED` to a put or a release: beanstalkd had no memory for the job. It is there, and buried.
    Buried,
    /// `INTERNAL_ERROR`: a failure of the server.
    Internal,
    /// The server has no such command: it is beanstalkd, it is older, or the role of the token does
    /// not allow it. Nothing of the command was sent.
    Unsupported,
    /// An argument is wrong: a tube's name, for example. Nothing was sent.
    Usage,
    /// No server could be reached. Nothing of the command was sent.
    Connect,
    /// No answer came in time, and nothing happened that would not have happened without the call.
    TimedOut,
    /// The command was sent, and the connection ended, or the time was over, before it was answered.
    /// It may have been done or not.
    Unanswered,
    /// The peer sent bytes that are not of the protocol, or not the reply to what was asked.
    Protocol,
    /// What is needed was closed or stopped: a pool, or the embedded queue.
    Closed,
    /// The embedded queue failed: its disk, for example.
    Storage,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<Box<str>>) -> Error {
        Error {
            kind,
            text: text.into(),
            source: None,
        }
    }

    pub(crate) fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn usage(text: impl Into<Box<str>>) -> Error {
        Error::new(ErrorKind::Usage, text)
    }

    pub(crate) fn protocol(text: impl Into<Box<str>>) -> Error {
        Error::new(ErrorKind::Protocol, text)
    }

    pub(crate) fn unsupported(command: &str) -> Error {
        let text = format!(
            "the server does not offer {command}: it is beanstalkd, or older, or the token does not \
             allow it"
        );
        Error::new(ErrorKind::Unsupported, text)
    }

    /// What a program can tell apart.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// True if the same call may succeed later without a change here: the server is away, full or
    /// draining, or the answer was late. After [`ErrorKind::Unanswered`] it may then have been done
    /// twice.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::OutOfMemory
                | ErrorKind::Draining
                | ErrorKind::Internal
                | ErrorKind::Connect
                | ErrorKind::TimedOut
                | ErrorKind::Unanswered
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.source.as_deref()?;
        Some(source)
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Error {
        match never {}
    }
}
