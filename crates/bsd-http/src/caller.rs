//! The other end of a connection, and its transport.

use std::fmt;
use std::net::SocketAddr;

pub(super) use bsd_net::Tls;

/// The other end of a connection, for lines of the log.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    address: SocketAddr,
    /// In the certificate that it has shown.
    name: Option<String>,
}

impl Caller {
    pub(super) fn at(address: SocketAddr) -> Caller {
        Caller {
            address,
            name: None,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same, with the name of its certificate.
    pub(super) fn named(mut self, name: Option<String>) -> Caller {
        self.name = name;
        self
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        match &self.name {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}
