//! Addresses, listening sockets and accepted streams, TCP and Unix alike.
//!
//! Binding and listening are two steps, because the server binds first (a privileged port needs
//! root, and an address in use is worth knowing before a long replay) and listens last (nobody is
//! to connect before there is a queue to serve).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mio::event::Source;
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Connections that may wait to be accepted; the kernel lowers it to its own bound.
const BACKLOG: i32 = 4096;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// A name, or an address of either family without brackets.
        host: String,
        /// 0 lets the kernel choose.
        port: u16,
    },
    /// A Unix socket at this path.
    Unix(PathBuf),
}

impl Address {
    /// Parse `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT`, a bare IPv6 address, or `unix:PATH`.
    /// `port` holds where the text names none. Names are not looked up here.
    ///
    /// # Errors
    /// What is wrong with the text, for the user to read.
    pub fn parse(text: &str, port: u16) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_address(path);
        }
        let (host, own_port) = split_port(text)?;
        if host.is_empty() {
            return Err("no host is named".into());
        }
        let port = own_port.map_or(Ok(port), parse_port)?;
        Ok(Address::Tcp {
            host: host.into(),
            port,
        })
    }
}

fn unix_address(path: &str) -> Result<Address, String> {
    if path.is_empty() {
        Err("no path follows unix:".into())
    } else {
        Ok(Address::Unix(path.into()))
    }
}

/// Split at the colon before the port. More than one colon outside brackets is an IPv6 address
/// without a port.
fn split_port(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or("a closing ] is missing")?;
        return match (rest, rest.strip_prefix(':')) {
            ("", _) => Ok((host, None)),
            (_, Some(port)) => Ok((host, Some(port))),
            _ => Err("a port is written :PORT after the ]".into()),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

fn parse_port(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| format!("'{}' is not a port", text.escape_debug()))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that is bound but does not listen yet: a connection to it is refused.
#[derive(Debug)]
pub struct Bound {
    fd: OwnedFd,
    name: String,
    file: Option<SocketFile>,
}

impl Bound {
    /// Bind `address`; of the addresses that a name stands for, the first that can be bound. The
    /// socket file of a server that is no more is replaced.
    ///
    /// # Errors
    /// The name cannot be resolved, or the address is in use or not ours.
    pub fn bind(address: &Address) -> io::Result<Bound> {
        match address {
            Address::Tcp { host, port } => bind_first(host, *port),
            Address::Unix(path) => bind_path(path),
        }
    }

    /// Let clients connect.
    ///
    /// # Errors
    /// Another process came to listen on the address since it was bound.
    pub fn listen(self) -> io::Result<Listener> {
        rustix::net::listen(&self.fd, BACKLOG)?;
        let socket = ListeningSocket::from_fd(self.fd)?;
        Ok(Listener {
            name: socket.name().unwrap_or(self.name),
            socket,
            file: self.file,
        })
    }
}

fn bind_first(host: &str, port: u16) -> io::Result<Bound> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match bind_tcp(address) {
            Ok(bound) => return Ok(bound),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind_tcp(address: SocketAddr) -> io::Result<Bound> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let fd = stream_socket(family)?;
    // Without this, connections of the last run that linger in TIME_WAIT would forbid a restart.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, &address)?;
    Ok(Bound {
        fd,
        name: address.to_string(),
        file: None,
    })
}

fn bind_path(path: &Path) -> io::Result<Bound> {
    let address = SocketAddrUnix::new(path)?;
    let fd = stream_socket(AddressFamily::UNIX)?;
    match rustix::net::bind(&fd, &address) {
        Err(rustix::io::Errno::ADDRINUSE) if is_stale(path, &address)? => {
            rustix::fs::unlink(path)?;
            rustix::net::bind(&fd, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile::new(path)?;
    Ok(Bound {
        fd,
        name: format!("unix:{}", path.display()),
        file: Some(file),
    })
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// True for a socket file that nobody listens on. Anything that is not a socket is not ours to
/// replace.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let probe = stream_socket(AddressFamily::UNIX)?;
    Ok(rustix::net::connect(&probe, address) == Err(rustix::io::Errno::CONNREFUSED))
}

/// The file of a Unix socket; it is removed when this is dropped, unless another server has put
/// its own there in the meantime.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<SocketFile> {
        let metadata = std::fs::symlink_metadata(path)?;
        let path = std::path::absolute(path)?;
        Ok(SocketFile {
            path,
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if is_ours {
            // A file that stays is replaced at the next start.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(mio::net::TcpListener),
    Unix(mio::net::UnixListener),
}

impl ListeningSocket {
    fn from_fd(fd: OwnedFd) -> io::Result<ListeningSocket> {
        if sockopt::socket_domain(&fd)? == AddressFamily::UNIX {
            ListeningSocket::from_unix(fd.into())
        } else {
            ListeningSocket::from_tcp(fd.into())
        }
    }

    fn from_tcp(listener: std::net::TcpListener) -> io::Result<ListeningSocket> {
        listener.set_nonblocking(true)?;
        Ok(ListeningSocket::Tcp(mio::net::TcpListener::from_std(
            listener,
        )))
    }

    fn from_unix(listener: std::os::unix::net::UnixListener) -> io::Result<ListeningSocket> {
        listener.set_nonblocking(true)?;
        Ok(ListeningSocket::Unix(mio::net::UnixListener::from_std(
            listener,
        )))
    }

    /// The address as bound, with the port that the kernel chose; `None` for a Unix socket.
    fn name(&self) -> Option<String> {
        match self {
            ListeningSocket::Tcp(listener) => Some(listener.local_addr().ok()?.to_string()),
            ListeningSocket::Unix(_) => None,
        }
    }
}

/// A listening socket. The file of a Unix socket goes when this is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: ListeningSocket,
    name: String,
    /// Held for its `Drop`.
    #[allow(dead_code)]
    file: Option<SocketFile>,
}

impl Listener {
    /// A TCP socket that listens already: one that systemd passed on.
    ///
    /// # Errors
    /// The socket cannot be made non-blocking.
    pub fn from_tcp(listener: std::net::TcpListener) -> io::Result<Listener> {
        let socket = ListeningSocket::from_tcp(listener)?;
        Ok(Listener {
            name: socket.name().unwrap_or_default(),
            socket,
            file: None,
        })
    }

    /// A Unix socket that listens already: one that systemd passed on. Its file is left alone.
    ///
    /// # Errors
    /// The socket cannot be made non-blocking.
    pub fn from_unix(listener: std::os::unix::net::UnixListener) -> io::Result<Listener> {
        let address = listener.local_addr()?;
        let path = address.as_pathname().unwrap_or(Path::new("(unnamed)"));
        let name = format!("unix:{}", path.display());
        Ok(Listener {
            socket: ListeningSocket::from_unix(listener)?,
            name,
            file: None,
        })
    }

    /// Where it listens, for people to read: `127.0.0.1:11300`, `unix:/run/bsd.sock`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next connection that waits.
    pub(super) fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                Ok((Stream::Tcp(stream), Peer(Some(address))))
            }
            ListeningSocket::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), Peer::UNKNOWN))
            }
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            ListeningSocket::Tcp(socket) => registry.register(socket, token, Interest::READABLE),
            ListeningSocket::Unix(socket) => registry.register(socket, token, Interest::READABLE),
        }
    }
}

/// Who is at the other end, for the log: an address, or a process of this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(Option<SocketAddr>);

impl Peer {
    /// The end of a pair, or of a Unix socket.
    pub(super) const UNKNOWN: Peer = Peer(None);
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("unix"),
        }
    }
}

/// An accepted connection, non-blocking.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(mio::net::TcpStream),
    Unix(mio::net::UnixStream),
}

impl Stream {
    /// No delay for small replies, and a probe now and then so that a peer that vanished is
    /// noticed. Both only better things, so that a failure does not matter.
    pub(super) fn tune(&self) {
        if let Stream::Tcp(stream) = self {
            let _ = stream.set_nodelay(true);
            let _ = sockopt::set_socket_keepalive(stream.as_fd(), true);
        }
    }

    /// Whether a read that did not fill its buffer has taken all there was: so `epoll(7)` for
    /// TCP. A Unix socket may stop earlier.
    pub(super) fn short_read_empties(&self) -> bool {
        matches!(self, Stream::Tcp(_))
    }

    /// Read once into the room that `bytes` has, which is not zero.
    pub(super) fn read_into(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let room = spare_capacity(bytes);
        Ok(match self {
            Stream::Tcp(stream) => rustix::io::read(stream, room)?,
            Stream::Unix(stream) => rustix::io::read(stream, room)?,
        })
    }

    /// Both directions, edge-triggered, once for the life of the connection.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => stream.register(registry, token, both),
            Stream::Unix(stream) => stream.register(registry, token, both),
        }
    }
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
    fn an_address_is_a_host_a_port_or_a_path() {
        let tcp = |host: &str, port| {
            Ok(Address::Tcp {
                host: host.into(),
                port,
            })
        };
        let table = [
            ("127.0.0.1", tcp("127.0.0.1", 9)),
            ("localhost", tcp("localhost", 9)),
            ("localhost:80", tcp("localhost", 80)),
            ("0.0.0.0:0", tcp("0.0.0.0", 0)),
            ("::1", tcp("::1", 9)),
            ("[::1]", tcp("::1", 9)),
            ("[::1]:80", tcp("::1", 80)),
            ("unix:/run/q", Ok(Address::Unix("/run/q".into()))),
            ("unix:q:1", Ok(Address::Unix("q:1".into()))),
        ];
        for (text, expected) in table {
            assert_eq!(Address::parse(text, 9), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            ":80",
            "unix:",
            "host:",
            "host:x",
            "host:65536",
            "[::1",
            "[::1]80",
            "[]:1",
        ] {
            assert!(Address::parse(text, 9).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_reads_back_as_it_is_shown() {
        for text in ["127.0.0.1:80", "[::1]:80", "unix:/run/q"] {
            let address = Address::parse(text, 9).unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(Address::parse(&address.to_string(), 1), Ok(address));
        }
    }

    fn loopback() -> Address {
        Address::parse("127.0.0.1:0", 0).unwrap()
    }

    #[test]
    fn nobody_connects_before_listen() {
        let bound = Bound::bind(&loopback()).unwrap();
        let address: SocketAddr = {
            let fd = bound.fd.try_clone().unwrap();
            std::net::TcpListener::from(fd).local_addr().unwrap()
        };
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener = bound.listen().unwrap();
        assert_eq!(listener.name(), address.to_string());
        std::net::TcpStream::connect(address).unwrap();
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Unix(dir.path().join("q"));
        // A listener of the standard library leaves its file behind: a stale one.
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("q")).unwrap());
        let listener = Bound::bind(&address).unwrap().listen().unwrap();
        let in_use = Bound::bind(&address).unwrap_err();
        assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(
            !dir.path().join("q").exists(),
            "the file goes with the listener"
        );
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q");
        std::fs::create_dir(&path).unwrap();
        let error = Bound::bind(&Address::Unix(path.clone())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(path.is_dir());
    }

    #[test]
    fn a_socket_file_that_another_server_put_there_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q");
        let first = Bound::bind(&Address::Unix(path.clone())).unwrap();
        rustix::fs::unlink(&path).unwrap();
        let second = Bound::bind(&Address::Unix(path.clone())).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
