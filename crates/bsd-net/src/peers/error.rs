//! Errors of connections with peers.

use std::borrow::Cow;
use std::error::Error;
use std::{fmt, io};

use bsd::storage::OpenError;
use bsd_cluster::wire::WireError;

/// Error of a connection with a peer, or of a snapshot that is sent over one. Both are tried again,
/// whatever the class.
#[derive(Debug)]
pub(crate) enum PeerError {
    /// A call of the system failed. The text says which, and is empty if the error is enough.
    Io(Cow<'static, str>, io::Error),
    /// The log here cannot be read, or the snapshot cannot be written.
    Store(OpenError),
    /// The peer refuses, breaks the protocol, or is silent.
    Peer(Cow<'static, str>),
}

impl PeerError {
    pub(super) fn broken(error: io::Error) -> PeerError {
        PeerError::Io("the connection is broken".into(), error)
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerError::Io(what, error) if what.is_empty() => error.fmt(f),
            PeerError::Io(what, error) => write!(f, "{what}: {error}"),
            PeerError::Store(error) => error.fmt(f),
            PeerError::Peer(why) => f.write_str(why),
        }
    }
}

impl Error for PeerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            PeerError::Io(_, error) => Some(error),
            PeerError::Store(error) => Some(error),
            PeerError::Peer(_) => None,
        }
    }
}

impl From<io::Error> for PeerError {
    fn from(error: io::Error) -> PeerError {
        PeerError::Io("".into(), error)
    }
}

impl From<OpenError> for PeerError {
    fn from(error: OpenError) -> PeerError {
        PeerError::Store(error)
    }
}

impl From<WireError> for PeerError {
    fn from(error: WireError) -> PeerError {
        PeerError::Peer(error.to_string().into())
    }
}

impl From<rustls::Error> for PeerError {
    fn from(error: rustls::Error) -> PeerError {
        PeerError::Peer(error.to_string().into())
    }
}

impl From<&'static str> for PeerError {
    fn from(why: &'static str) -> PeerError {
        PeerError::Peer(why.into())
    }
}

impl From<String> for PeerError {
    fn from(why: String) -> PeerError {
        PeerError::Peer(why.into())
    }
}
