//! Where a server listens, and how a connection to it is made in bounded time.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bsd::UsageError;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

/// beanstalkd's port.
const PORT: u16 = 11300;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`, in the form that a resolver takes.
    Tcp(String),
    /// The path of a socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = UsageError;

    /// `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT`, a bare IPv6 address, or `unix:PATH`. Names are
    /// not looked up here.
    fn from_str(text: &str) -> Result<Address, UsageError> {
        match text.strip_prefix("unix:") {
            Some("") => return Err("no path follows unix:".into()),
            Some(path) => return Ok(Address::Unix(path.into())),
            None => {}
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') && !host.ends_with(']') => (text, None),
            Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port {
            None => PORT,
            Some(port) => port
                .parse()
                .map_err(|_| format!("'{}' is no port from 0 to 65535", port.escape_debug()))?,
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match bare {
            "" => Err("no host is named".into()),
            _ if bare.contains(':') => Ok(Address::Tcp(format!("[{bare}]:{port}"))),
            _ => Ok(Address::Tcp(format!("{bare}:{port}"))),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(text) => f.write_str(text),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connection that blocks, but never for longer than it was told to.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connect within `timeout` for each of the addresses that a name stands for. Each read and each
    /// write takes at most as long.
    ///
    /// # Errors
    /// The name is not known, no one listens there, or there was no answer in time.
    pub(crate) fn connect(address: &Address, timeout: Duration) -> io::Result<Stream> {
        match address {
            Address::Tcp(text) => connect_tcp(text, timeout).map(Stream::Tcp),
            Address::Unix(path) => connect_unix(path, timeout).map(Stream::Unix),
        }
    }
}

fn connect_tcp(text: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in text.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// With the time-out set before: a server that does not accept leaves `connect` waiting.
fn connect_unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = unix_socket()?;
    for direction in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, direction, Some(timeout))?;
    }
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// Closed on `exec`.
#[cfg(not(target_vendor = "apple"))]
fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

#[cfg(target_vendor = "apple")]
fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    Ok(socket)
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, expected) in [
            ("queue", "queue:11300"),
            ("queue:77", "queue:77"),
            ("10.0.0.1:0", "10.0.0.1:0"),
            ("::1", "[::1]:11300"),
            ("[::1]", "[::1]:11300"),
            ("[::1]:77", "[::1]:77"),
            ("unix:/run/q.sock", "unix:/run/q.sock"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), expected, "{text}");
        }
        for wrong in ["", ":77", "a:", "a:99999", "a:b", "unix:", "[]:1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
