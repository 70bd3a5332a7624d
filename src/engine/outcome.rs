//! Result of a step that a command may depend on: a change that is logged, a job that is handed
//! out.

use crate::protocol::Reply;

/// How a change that needs room in the log went.
pub(super) enum Logged {
    Done,
    /// There was no room; nothing happened.
    Full,
}

/// Result of handing out a job.
pub(super) enum Handed {
    Out,
    /// It is out with others, this many in all.
    Batch(usize),
    /// It is reserved, and its body comes when it has been checked.
    Later,
    /// Its body is lost and it has been buried; the client has got nothing.
    Lost,
    /// Its body cannot be read before another file can be opened, or is lost and the job cannot be
    /// buried before there is room on the disk; the client has got nothing.
    NotNow,
}

impl Handed {
    /// Reply to a client that asked for this job.
    pub(super) fn refusal(&self) -> Option<Reply<'static>> {
        match self {
            Handed::Out | Handed::Batch(_) | Handed::Later => None,
            Handed::Lost => Some(Reply::InternalError),
            Handed::NotNow => Some(Reply::OutOfMemory),
        }
    }
}
