//! Addresses, listening sockets and accepted streams, TCP and Unix alike.
//!
//! Binding and listening are two steps. The server binds first: a privileged port needs root, and
//! an address in use should be found before a long replay. It listens last: a client must not
//! connect before there is a queue to serve.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use mio::event::Source;
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tracing::warn;

use super::process::Account;

/// Connections that may wait to be accepted; the kernel lowers it to its own bound.
const BACKLOG: i32 = 4096;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// A name, or an address of either family without brackets.
        host: String,
        /// The port of that host.
        port: Port,
    },
    /// A Unix socket.
    Unix {
        /// The path of its file.
        path: PathBuf,
        /// The permissions of that file; `None`: what the process's umask leaves.
        mode: Option<u32>,
    },
}

/// A TCP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// Its number; 0 lets the kernel choose.
    Number(u16),
    /// The name of a service, which [`Bound::bind`] looks up in `/etc/services`.
    Service(String),
}

impl std::str::FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Port, String> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-+.".contains(&byte);
        match text.parse() {
            Ok(number) => Ok(Port::Number(number)),
            Err(_)
                if text.bytes().all(is_of_name)
                    && text.bytes().any(|byte| byte.is_ascii_alphabetic()) =>
            {
                Ok(Port::Service(text.to_owned()))
            }
            Err(_) => Err(format!("'{}' is not a port", text.escape_debug())),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Number(number) => number.fmt(f),
            Port::Service(name) => f.write_str(name),
        }
    }
}

impl Port {
    fn number(&self) -> io::Result<u16> {
        const SERVICES: &str = "/etc/services";
        match self {
            Port::Number(number) => Ok(*number),
            Port::Service(name) => service(name, &std::fs::read_to_string(SERVICES)?)
                .ok_or_else(|| io::Error::other(format!("{SERVICES} names no {name}/tcp"))),
        }
    }
}

/// The TCP port of a service in a text like `/etc/services`: `NAME PORT/PROTOCOL ALIAS… # …`.
fn service(name: &str, services: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let first = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?;
        let is_it = first == name || words.any(|alias| alias == name);
        is_it.then(|| port.parse().ok())?
    })
}

impl Address {
    /// Parse `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT`, a bare IPv6 address, `unix:PATH`, or
    /// `unix:PATH,mode=OCTAL`. If the text names no port, `port` is used. Names are not looked up
    /// here.
    ///
    /// # Errors
    /// What is wrong with the text, as a message for the user.
    pub fn parse(text: &str, port: &Port) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_address(path);
        }
        let (host, own_port) = split_port(text)?;
        if host.is_empty() {
            return Err("no host is named".into());
        }
        let port = own_port.map_or(Ok(port.clone()), str::parse)?;
        Ok(Address::Tcp {
            host: host.into(),
            port,
        })
    }
}

fn unix_address(text: &str) -> Result<Address, String> {
    let (path, mode) = match text.rsplit_once(",mode=") {
        Some((path, mode)) => (path, Some(parse_mode(mode)?)),
        None => (text, None),
    };
    if path.is_empty() {
        return Err("no path follows unix:".into());
    }
    Ok(Address::Unix {
        path: path.into(),
        mode,
    })
}

/// Read and write for owner, group and others; the other bits have no meaning for a socket.
fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777 && text.bytes().all(|byte| byte.is_ascii_digit()))
        .ok_or_else(|| {
            format!(
                "'{}' is no mode: three octal digits, such as 0660, are expected",
                text.escape_debug()
            )
        })
}

/// Split at the colon before the port. More than one colon outside brackets means an IPv6 address
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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix { path, mode } => {
                write!(f, "unix:{}", path.display())?;
                mode.map_or(Ok(()), |mode| write!(f, ",mode={mode:04o}"))
            }
        }
    }
}

/// A socket that is bound but does not listen yet: connections to it are refused.
#[derive(Debug)]
pub struct Bound {
    fd: OwnedFd,
    name: String,
    file: Option<SocketFile>,
}

impl Bound {
    /// Bind `address`; if a name stands for several addresses, the first one that can be bound. The
    /// socket file of a server that no longer runs is replaced. A new socket file gets the owner
    /// `owner`, and `owner`'s own group.
    ///
    /// # Errors
    /// The name cannot be resolved, the address is in use or does not belong to this machine, or
    /// the owner of the file cannot be changed.
    pub fn bind(address: &Address, owner: Option<&Account>) -> io::Result<Bound> {
        match address {
            Address::Tcp { host, port } => bind_first(host, port.number()?),
            Address::Unix { path, mode } => bind_path(path, *mode, owner),
        }
    }

    /// Let clients connect.
    ///
    /// # Errors
    /// Another process has begun to listen on the address since it was bound.
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
    // Without this, connections of the last run that remain in TIME_WAIT would prevent a restart.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, &address)?;
    Ok(Bound {
        fd,
        name: address.to_string(),
        file: None,
    })
}

fn bind_path(path: &Path, mode: Option<u32>, owner: Option<&Account>) -> io::Result<Bound> {
    let address = SocketAddrUnix::new(path)?;
    let fd = stream_socket(AddressFamily::UNIX)?;
    if let Some(mode) = mode {
        // The file gets these permissions, minus the umask: at no moment does it have more.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    }
    match rustix::net::bind(&fd, &address) {
        Err(rustix::io::Errno::ADDRINUSE) if is_stale(path, &address)? => {
            rustix::fs::unlink(path)?;
            rustix::net::bind(&fd, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile::new(path)?;
    if let Some(owner) = owner {
        file.give_to(owner)?;
    }
    if let Some(mode) = mode {
        file.set_mode(mode)?;
    }
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

/// True for a socket file on which no server listens. Anything that is not a socket must not be
/// replaced.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let probe = stream_socket(AddressFamily::UNIX)?;
    Ok(rustix::net::connect(&probe, address) == Err(rustix::io::Errno::CONNREFUSED))
}

/// The file of a Unix socket. It is removed when this is dropped, unless another server has put its
/// own file there meanwhile.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// The file itself, whichever file has its name now. While this is open, no other file of the
    /// file system has its inode number.
    node: OwnedFd,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<SocketFile> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = rustix::fs::open(path, flags, Mode::empty())?;
        let path = std::path::absolute(path)?;
        Ok(SocketFile { path, node })
    }

    fn give_to(&self, owner: &Account) -> io::Result<()> {
        let (uid, gid) = (owner.uid(), owner.gid());
        rustix::fs::chownat(&self.node, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        Ok(())
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        // For a file that was opened with `O_PATH`, the system changes permissions only by name.
        // This name always means the file, whatever the directory contains now.
        let name = format!("/proc/self/fd/{}", self.node.as_raw_fd());
        rustix::fs::chmod(name, Mode::from_raw_mode(mode))?;
        Ok(())
    }

    fn is_still_there(&self) -> io::Result<bool> {
        let own = rustix::fs::fstat(&self.node)?;
        let found = match rustix::fs::lstat(&self.path) {
            Err(rustix::io::Errno::NOENT) => return Ok(false),
            found => found?,
        };
        Ok((own.st_dev, own.st_ino) == (found.st_dev, found.st_ino))
    }

    fn remove(&self) -> io::Result<()> {
        if self.is_still_there()? {
            rustix::fs::unlink(&self.path)?;
        }
        Ok(())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            warn!(
                "cannot remove the socket {}: {error}; it does no harm, the next start replaces \
                 it; for it to be removed, its directory must be the server's user's to write",
                self.path.display()
            );
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

/// A listening socket. The file of a Unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: ListeningSocket,
    name: String,
    /// Held for its `Drop`.
    #[allow(dead_code)]
    file: Option<SocketFile>,
}

impl Listener {
    /// A TCP socket that listens already, passed on by systemd.
    ///
    /// # Errors
    /// The socket does not listen, or cannot be made non-blocking.
    pub fn from_tcp(listener: std::net::TcpListener) -> io::Result<Listener> {
        refuse_unless_it_listens(&listener)?;
        let socket = ListeningSocket::from_tcp(listener)?;
        Ok(Listener {
            name: socket.name().unwrap_or_default(),
            socket,
            file: None,
        })
    }

    /// A Unix socket that listens already, passed on by systemd. Its file is left alone.
    ///
    /// # Errors
    /// The socket does not listen, or cannot be made non-blocking.
    pub fn from_unix(listener: std::os::unix::net::UnixListener) -> io::Result<Listener> {
        refuse_unless_it_listens(&listener)?;
        let address = listener.local_addr()?;
        let path = address.as_pathname().unwrap_or(Path::new("(unnamed)"));
        let name = format!("unix:{}", path.display());
        Ok(Listener {
            socket: ListeningSocket::from_unix(listener)?,
            name,
            file: None,
        })
    }

    /// Where it listens, in readable form: `127.0.0.1:11300`, `unix:/run/bsd.sock`.
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

/// This server must not make it listen: a program that passes on a socket that is only bound, or a
/// connection, has made a mistake, and clients would be refused without any message.
fn refuse_unless_it_listens(socket: &impl AsFd) -> io::Result<()> {
    if sockopt::socket_acceptconn(socket)? {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it does not listen; call listen(2) before it is passed on (systemd: Accept=no)",
    ))
}

/// The other end of a connection, for the log: an address, or a process of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Peer(Option<SocketAddr>);

impl Peer {
    /// One end of a socket pair, or of a Unix socket.
    pub(super) const UNKNOWN: Peer = Peer(None);

    /// The address, if it has one.
    pub(super) fn address(self) -> Option<SocketAddr> {
        self.0
    }
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
    /// No delay for small replies, and a probe from time to time to notice a peer that has
    /// disappeared. Both are only improvements, so a failure does not matter.
    pub(super) fn tune(&self) {
        if let Stream::Tcp(stream) = self {
            let _ = stream.set_nodelay(true);
            let _ = sockopt::set_socket_keepalive(stream.as_fd(), true);
        }
    }

    /// Whether a read that did not fill its buffer has taken everything: `epoll(7)` promises this
    /// for TCP. A read from a Unix socket may stop earlier.
    pub(super) fn short_read_empties(&self) -> bool {
        matches!(self, Stream::Tcp(_))
    }

    /// Read once into the free room of `bytes`, which is not zero.
    pub(super) fn read_into(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let room = spare_capacity(bytes);
        Ok(match self {
            Stream::Tcp(stream) => rustix::io::read(stream, room)?,
            Stream::Unix(stream) => rustix::io::read(stream, room)?,
        })
    }

    /// Register both directions, edge-triggered, once for the whole life of the connection.
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
                port: Port::Number(port),
            })
        };
        let unix = |path: &str, mode| {
            Ok(Address::Unix {
                path: path.into(),
                mode,
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
            ("unix:/run/q", unix("/run/q", None)),
            ("unix:q:1", unix("q:1", None)),
            ("unix:q,mode=0660", unix("q", Some(0o660))),
            ("unix:q,mode=7", unix("q", Some(7))),
            ("unix:a,b,mode=666", unix("a,b", Some(0o666))),
            ("unix:a,b", unix("a,b", None)),
        ];
        for (text, expected) in table {
            assert_eq!(Address::parse(text, &Port::Number(9)), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            ":80",
            "unix:",
            "host:",
            "host:x_y",
            "host:65536",
            "unix:q,mode=",
            "unix:q,mode=8",
            "unix:q,mode=+7",
            "unix:q,mode=1777",
            "unix:,mode=7",
            "[::1",
            "[::1]80",
            "[]:1",
        ] {
            assert!(Address::parse(text, &Port::Number(9)).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_reads_back_as_it_is_shown() {
        for text in [
            "127.0.0.1:80",
            "[::1]:http-alt",
            "unix:/run/q",
            "unix:q,mode=0660",
        ] {
            let parse = |text: &str| Address::parse(text, &Port::Number(9));
            let address = parse(text).unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(parse(&address.to_string()), Ok(address));
        }
    }

    fn unix(path: &Path, mode: Option<u32>) -> Address {
        Address::Unix {
            path: path.to_owned(),
            mode,
        }
    }

    #[test]
    fn f45_services_are_found_by_name_and_by_alias() {
        let services = "# NAME PORT\nssh 22/tcp\nntp 123/udp\nhttp-alt\t8080/tcp webcache # x y\n";
        for (name, port) in [
            ("ssh", Some(22)),
            ("http-alt", Some(8080)),
            ("webcache", Some(8080)),
            ("ntp", None),
            ("x", None),
            ("#", None),
            ("22/tcp", None),
        ] {
            assert_eq!(service(name, services), port, "{name}");
        }
        let error = Port::Service("no-such-service".into())
            .number()
            .unwrap_err();
        assert!(error.to_string().contains("no-such-service"), "{error}");
    }

    /// The umask removes nothing from a mode that was requested.
    #[test]
    fn f17_the_socket_file_has_the_mode_that_was_asked_for() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666, 0o777] {
            let path = dir.path().join("q");
            let bound = Bound::bind(&unix(&path, Some(mode)), None).unwrap();
            let found = std::fs::symlink_metadata(&path).unwrap().permissions();
            assert_eq!(found.mode() & 0o777, mode);
            drop(bound);
            assert!(!path.exists(), "{mode:o}");
        }
    }

    #[test]
    fn f16_a_socket_that_does_not_listen_is_refused() {
        let bound = Bound::bind(&loopback(), None).unwrap();
        let error = Listener::from_tcp(bound.fd.into()).unwrap_err();
        assert!(error.to_string().contains("does not listen"), "{error}");
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let error = Listener::from_unix(OwnedFd::from(end).into()).unwrap_err();
        assert!(error.to_string().contains("does not listen"), "{error}");
    }

    fn loopback() -> Address {
        Address::parse("127.0.0.1:0", &Port::Number(0)).unwrap()
    }

    #[test]
    fn nobody_connects_before_listen() {
        let bound = Bound::bind(&loopback(), None).unwrap();
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
        let address = unix(&dir.path().join("q"), None);
        // A listener of the standard library leaves its file behind: a stale one.
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("q")).unwrap());
        let listener = Bound::bind(&address, None).unwrap().listen().unwrap();
        let in_use = Bound::bind(&address, None).unwrap_err();
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
        let error = Bound::bind(&unix(&path, None), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(path.is_dir());
    }

    #[test]
    fn a_socket_file_that_another_server_put_there_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q");
        let first = Bound::bind(&unix(&path, None), None).unwrap();
        rustix::fs::unlink(&path).unwrap();
        let second = Bound::bind(&unix(&path, None), None).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
