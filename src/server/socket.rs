//! Addresses, listening sockets and accepted streams, TCP and Unix alike.
//!
//! Binding and listening are two steps. The server binds first: a privileged port needs root, and
//! an address in use should be found before a long replay. It listens last: a client must not
//! connect before there is a queue to serve.

use std::fmt;
use std::io::{self, Read, Write};
#[cfg(feature = "cluster")]
use std::net::Shutdown;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mio::event::Source;
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::net::{AddressFamily, SocketAddrUnix, sockopt};
use tracing::warn;

use super::connection::Entry;
use super::layers::Layers;
use super::process::Account;
use super::proxy::{self, Introduction, Parsed};
#[cfg(feature = "tls")]
use super::tls::TlsStream;
use crate::sys::sockets::{self, stream_socket};

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
        /// What lies between the socket and the protocol.
        layers: Layers,
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
    /// Parse `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT`, a bare IPv6 address, each perhaps with
    /// `tls:`, `proxy:` or `proxy+tls:` before it, `unix:PATH`, or `unix:PATH,mode=OCTAL`. If the text names no port, `port`
    /// is used. Names are not looked up here.
    ///
    /// # Errors
    /// What is wrong with the text, as a message for the user.
    pub fn parse(text: &str, port: &Port) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_address(path);
        }
        let (layers, text) = Layers::split(text);
        let (host, own_port) = split_port(text)?;
        if host.is_empty() {
            return Err("no host is named".into());
        }
        let port = own_port.map_or(Ok(port.clone()), str::parse)?;
        Ok(Address::Tcp {
            host: host.into(),
            port,
            layers,
        })
    }

    /// What lies between the socket and the protocol.
    #[must_use]
    pub fn layers(&self) -> Layers {
        match self {
            Address::Tcp { layers, .. } => *layers,
            Address::Unix { .. } => Layers::NONE,
        }
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
        Some((_, rest)) if rest.contains(':') => {
            // What follows a % is the interface of a link-local address.
            let ip = text.split_once('%').map_or(text, |(ip, _)| ip);
            let _: Ipv6Addr = ip.parse().map_err(|_| {
                "this is no IPv6 address; before HOST:PORT there may be tls:, proxy: or proxy+tls:"
            })?;
            Ok((text, None))
        }
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port, layers } if host.contains(':') => {
                write!(f, "{layers}[{host}]:{port}")
            }
            Address::Tcp { host, port, layers } => write!(f, "{layers}{host}:{port}"),
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
    layers: Layers,
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
            Address::Tcp { host, port, layers } => Ok(Bound {
                layers: *layers,
                ..bind_first(host, port.number()?)?
            }),
            Address::Unix { path, mode } => bind_path(path, *mode, owner),
        }
    }

    /// Let clients connect.
    ///
    /// # Errors
    /// Another process has begun to listen on the address since it was bound.
    pub fn listen(self) -> io::Result<Listener> {
        rustix::net::listen(&self.fd, BACKLOG)?;
        let socket = match self.file {
            Some(_) => ListeningSocket::from_unix(self.fd.into())?,
            None => ListeningSocket::from_tcp(self.fd.into())?,
        };
        let name = socket.name().unwrap_or(self.name);
        Ok(Listener {
            name: format!("{}{name}", self.layers),
            socket,
            file: self.file,
            layers: self.layers,
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
        layers: Layers::NONE,
    })
}

fn bind_path(path: &Path, mode: Option<u32>, owner: Option<&Account>) -> io::Result<Bound> {
    let address = SocketAddrUnix::new(path)?;
    let fd = stream_socket(AddressFamily::UNIX)?;
    if let Some(mode) = mode {
        sockets::limit_mode(&fd, mode)?;
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
        layers: Layers::NONE,
    })
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
    /// The file itself, whichever file has its name now.
    node: sockets::Node,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<SocketFile> {
        let node = sockets::Node::of(path)?;
        let path = std::path::absolute(path)?;
        Ok(SocketFile { path, node })
    }

    fn give_to(&self, owner: &Account) -> io::Result<()> {
        self.node.give_to(&self.path, owner.uid(), owner.gid())
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.node.set_mode(&self.path, mode)
    }

    fn remove(&self) -> io::Result<()> {
        if self.node.is_at(&self.path)? {
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
    layers: Layers,
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
            layers: Layers::NONE,
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
            layers: Layers::NONE,
        })
    }

    /// Where it listens, in readable form: `127.0.0.1:11300`, `unix:/run/bsd.sock`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What lies between its connections and the protocol.
    pub(super) fn layers(&self) -> Layers {
        self.layers
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
    if sockets::listens(socket)? {
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

    /// At this address.
    pub(super) fn at(address: SocketAddr) -> Peer {
        Peer(Some(address))
    }

    /// What one machine may have many addresses in: the address itself, and of IPv6 the network of
    /// 64 bits. `None`: a process of this machine.
    pub(super) fn place(self) -> Option<IpAddr> {
        let address = self.0?.ip().to_canonical();
        Some(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(long) => IpAddr::from((long.to_bits() & (!0 << 64)).to_be_bytes()),
        })
    }

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
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
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

    /// Whether a read that did not fill its buffer has taken everything. A read from a Unix socket
    /// may stop earlier.
    pub(super) fn short_read_empties(&self) -> bool {
        match self {
            Stream::Tcp(_) => sockets::SHORT_READ_EMPTIES_TCP,
            Stream::Unix(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => sockets::SHORT_READ_EMPTIES_TCP && stream.is_drained(),
        }
    }

    /// Bytes of memory held below the protocol for what the client has sent.
    pub(super) fn held(&self) -> usize {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => 0,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.held(),
        }
    }

    /// Bytes of replies that a write has begun with and not brought to its end. They are held a
    /// second time.
    pub(super) fn sealed(&self) -> usize {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => 0,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.sealed(),
        }
    }

    /// True when a read would have to send something first.
    pub(super) fn owes(&self) -> bool {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.owes(),
        }
    }

    /// Take the next step through the layers that are `left`. `half_closed`: the client has shut
    /// down its sending side.
    ///
    /// # Errors
    /// The client does not come in, or (`WouldBlock`) nothing has arrived.
    pub(super) fn come_through(
        &mut self,
        left: &mut Layers,
        half_closed: bool,
        buffer: &mut [u8],
    ) -> io::Result<Entry> {
        if left.proxy {
            let said = match self.take_header(buffer) {
                // What is there will not become more.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && half_closed => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                taken => taken?,
            };
            left.proxy = false;
            return Ok(Entry::Introduced(said));
        }
        left.tls = !self.shake_hands(buffer)?;
        Ok(match left.tls {
            true => Entry::Shaking,
            false => Entry::In,
        })
    }

    /// Take the header of the PROXY protocol off the front: what it says.
    ///
    /// # Errors
    /// There is none, or (`WouldBlock`) it has not arrived in full.
    fn take_header(&mut self, buffer: &mut [u8]) -> io::Result<Introduction> {
        let socket = match self {
            Stream::Tcp(stream) => stream,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.socket_mut(),
            Stream::Unix(_) => return Ok(Introduction::default()),
        };
        // Until all of it is there, it stays in the socket: nothing is held here.
        let buffer = &mut buffer[..proxy::SIZE_MAX];
        let count = socket.peek(buffer)?;
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        match proxy::parse(&buffer[..count]).map_err(invalid)? {
            _ if count == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            Parsed::Incomplete => Err(io::ErrorKind::WouldBlock.into()),
            Parsed::Header { size, said } => {
                socket.read_exact(&mut buffer[..size])?;
                Ok(said)
            }
        }
    }

    /// Take the next step of the handshake; true once it is over.
    ///
    /// # Errors
    /// It has failed, or (`WouldBlock`) nothing has arrived.
    fn shake_hands(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => {
                let _ = buffer;
                Ok(true)
            }
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.shake_hands(buffer),
        }
    }

    /// How it is encrypted, and the name in the client's certificate; `None`: not at all.
    pub(super) fn agreed(&self) -> Option<(&'static str, Option<Arc<str>>)> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => None,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Some(stream.agreed()),
        }
    }

    /// Everything has been sent: tell the client that this is the end, where there is a way to.
    pub(super) fn finish(&mut self) {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => {}
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.finish(),
        }
    }

    /// Read once into the free room of `bytes`, which is not zero.
    pub(super) fn read_into(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        Ok(match self {
            Stream::Tcp(stream) => rustix::io::read(stream, spare_capacity(bytes))?,
            Stream::Unix(stream) => rustix::io::read(stream, spare_capacity(bytes))?,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read_into(bytes)?,
        })
    }

    /// Register both directions, edge-triggered, once for the whole life of the connection.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => stream.register(registry, token, both),
            Stream::Unix(stream) => stream.register(registry, token, both),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.socket_mut().register(registry, token, both),
        }
    }
}

/// What only those ask for who pass connections on.
#[cfg(feature = "cluster")]
impl Stream {
    /// Begin to connect to a TCP port: [`Stream::is_connected`] says when that is over.
    pub(super) fn dial(address: SocketAddr) -> io::Result<Stream> {
        Ok(Stream::Tcp(mio::net::TcpStream::connect(address)?))
    }

    /// Whether connecting is over.
    ///
    /// # Errors
    /// It has failed.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        let Some(socket) = self.tcp() else {
            return Ok(true);
        };
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        match socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The address of this end; `None`: a Unix socket.
    pub(super) fn own_address(&self) -> Option<SocketAddr> {
        self.tcp()?.local_addr().ok()
    }

    /// Send no more. What has been written before still arrives; bytes that came can be read.
    pub(super) fn send_no_more(&mut self) -> io::Result<()> {
        self.finish();
        match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.socket().shutdown(Shutdown::Write),
        }
    }

    /// The end of [`Stream::register`].
    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.deregister(registry),
            Stream::Unix(stream) => stream.deregister(registry),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.socket_mut().deregister(registry),
        }
    }

    fn tcp(&self) -> Option<&mio::net::TcpStream> {
        match self {
            Stream::Tcp(stream) => Some(stream),
            Stream::Unix(_) => None,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Some(stream.socket()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.write(bytes),
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
                layers: Layers::NONE,
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
            ("fe80::1%eth0", tcp("fe80::1%eth0", 9)),
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
            "tls:",
            "tls:unix:/run/q",
            "proxy:unix:/run/q",
            "tls+proxy:a:80",
            "TLS:a:80",
            "http:a:80",
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
            "tls:[::1]:80",
            "tls:a:80",
            "proxy:a:80",
            "proxy+tls:[::1]:80",
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
