//! Who has connected, and over what.

use std::fmt;
use std::net::SocketAddr;

pub(super) use bsd_net::Tls;

/// Who has connected, for lines of the log.
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

    /// The same, who has shown a certificate with this name.
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
