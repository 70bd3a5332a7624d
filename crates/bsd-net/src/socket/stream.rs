//! A connection, and who is at its other end.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use mio::event::Source;
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::net::sockopt;

use crate::layers::Layers;
use crate::proxy::{self, Introduction, Parsed};
use crate::sys::sockets;
use crate::tls::TlsStream;

/// Result of [`Stream::come_through`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A proxy has said who the client is, or that it does not know.
    Introduced(Introduction),
    /// The handshake goes on.
    Shaking,
    /// The first request may be read.
    In,
}

/// The other end of a connection, for the log: an address, or a process of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Peer {
    /// One end of a socket pair, or of a Unix socket.
    #[default]
    Unknown,
    /// An address of IPv4.
    Short(SocketAddrV4),
    /// An address of IPv6, its port and its zone. A `SocketAddr` has a flow besides, which no address
    /// of a client has, and is larger.
    Long(Ipv6Addr, u16, u32),
}

impl Peer {
    /// At this address.
    pub(crate) fn at(address: SocketAddr) -> Peer {
        match address {
            SocketAddr::V4(address) => Peer::Short(address),
            SocketAddr::V6(at) => Peer::Long(*at.ip(), at.port(), at.scope_id()),
        }
    }

    /// The range of addresses that one machine may have: the address itself, and of IPv6 the
    /// network of 64 bits. `None`: a process of this machine.
    pub(crate) fn place(self) -> Option<IpAddr> {
        let address = self.address()?.ip().to_canonical();
        Some(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(long) => IpAddr::from((long.to_bits() & (!0 << 64)).to_be_bytes()),
        })
    }

    /// The address, if it has one.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            Peer::Unknown => None,
            Peer::Short(address) => Some(address.into()),
            Peer::Long(ip, port, zone) => Some(SocketAddrV6::new(ip, port, 0, zone).into()),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => address.fmt(f),
            None => f.write_str("unix"),
        }
    }
}

/// When a client is given up whose machine does not answer. The system's own times are hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Probing {
    /// Probe a connection on which nothing has come for so long; it ends when `PROBES` in a row are
    /// not answered. `None`: at the system's times.
    pub after: Option<Duration>,
    /// It ends, too, when what was sent is not taken for so long, whether the machine answers or not.
    /// `None`: at the system's times.
    pub untaken: Option<Duration>,
}

/// This many probes are sent, and between two of them a part of [`Probing::after`]: a quarter.
const PROBES: u32 = 4;

impl Probing {
    fn apply(self, socket: impl AsFd) -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(&socket, true)?;
        if let Some(after) = self.after {
            let between = Duration::from_secs((after.as_secs() / u64::from(PROBES)).max(1));
            sockets::probe_after(&socket, after, between, PROBES)?;
        }
        if let Some(untaken) = self.untaken {
            sockets::give_up_after(&socket, untaken)?;
        }
        Ok(())
    }
}

/// An accepted connection, non-blocking.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(mio::net::TcpStream),
    Unix(mio::net::UnixStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    fn tcp(&self) -> Option<&mio::net::TcpStream> {
        match self {
            Stream::Tcp(stream) => Some(stream),
            Stream::Unix(_) => None,
            Stream::Tls(stream) => Some(stream.socket()),
        }
    }

    /// No delay for small replies, and probes to notice a peer that has disappeared. These are only
    /// improvements, so a failure does not matter.
    pub(crate) fn tune(&self, probing: Probing) {
        if let Some(socket) = self.tcp() {
            let _ = socket.set_nodelay(true);
            let _ = probing.apply(socket.as_fd());
        }
    }

    /// Whether a read that did not fill its buffer has taken everything. A read from a Unix socket
    /// may stop earlier.
    pub(crate) fn short_read_empties(&self) -> bool {
        match self {
            Stream::Tcp(_) => sockets::SHORT_READ_EMPTIES_TCP,
            Stream::Unix(_) => false,
            Stream::Tls(stream) => sockets::SHORT_READ_EMPTIES_TCP && stream.is_drained(),
        }
    }

    /// Bytes of memory held below the protocol for what the client has sent.
    pub(crate) fn held(&self) -> usize {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => 0,
            Stream::Tls(stream) => stream.held(),
        }
    }

    /// Bytes of replies that a write has begun with and not brought to its end. They are held a
    /// second time.
    pub(crate) fn sealed(&self) -> usize {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => 0,
            Stream::Tls(stream) => stream.sealed(),
        }
    }

    /// True when a read would have to send something first.
    pub(crate) fn owes(&self) -> bool {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => false,
            Stream::Tls(stream) => stream.owes(),
        }
    }

    /// Take the next step through the layers that are `left`. `half_closed`: the client has shut
    /// down its sending side.
    ///
    /// # Errors
    /// The client does not come in, or (`WouldBlock`) nothing has arrived.
    pub(crate) fn come_through(
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
    /// It is missing, or (`WouldBlock`) it has not arrived in full.
    fn take_header(&mut self, buffer: &mut [u8]) -> io::Result<Introduction> {
        let socket = match self {
            Stream::Tcp(stream) => stream,
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
    pub(crate) fn shake_hands(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => {
                let _ = buffer;
                Ok(true)
            }
            Stream::Tls(stream) => stream.shake_hands(buffer),
        }
    }

    /// How it is encrypted, and the name in the client's certificate; `None`: not at all.
    pub(crate) fn agreed(&self) -> Option<(&'static str, Option<Arc<str>>)> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => None,
            Stream::Tls(stream) => Some(stream.agreed()),
        }
    }

    /// Everything has been sent: tell the client that this is the end, where there is a way to.
    pub(crate) fn finish(&mut self) {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => {}
            Stream::Tls(stream) => stream.finish(),
        }
    }

    /// Read once into the free room of `bytes`, which is not zero.
    pub(crate) fn read_into(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        Ok(match self {
            Stream::Tcp(stream) => rustix::io::read(stream, spare_capacity(bytes))?,
            Stream::Unix(stream) => rustix::io::read(stream, spare_capacity(bytes))?,
            Stream::Tls(stream) => stream.read_into(bytes)?,
        })
    }

    /// Register both directions, edge-triggered, once for the whole life of the connection.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => stream.register(registry, token, both),
            Stream::Unix(stream) => stream.register(registry, token, both),
            Stream::Tls(stream) => stream.socket_mut().register(registry, token, both),
        }
    }
}

/// Methods for passing connections on.
impl Stream {
    /// Begin to connect to a TCP port: [`Stream::is_connected`] says when that is over. With a session
    /// a handshake follows.
    pub(crate) fn dial(
        address: SocketAddr,
        session: Option<rustls::Connection>,
    ) -> io::Result<Stream> {
        let socket = mio::net::TcpStream::connect(address)?;
        Ok(match session {
            Some(session) => Stream::Tls(Box::new(TlsStream::new(socket, session))),
            None => Stream::Tcp(socket),
        })
    }

    /// Whether connecting is over.
    ///
    /// # Errors
    /// It has failed.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
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

    /// Send what comes before everything else, in the clear: in one piece, which a socket that is new
    /// takes.
    pub(crate) fn send_header(&mut self, header: &[u8]) -> io::Result<()> {
        let sent = match self {
            Stream::Tls(stream) => stream.socket_mut().write(header)?,
            plain => plain.write(header)?,
        };
        match sent == header.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// The address of this end; `None`: a Unix socket.
    pub(crate) fn own_address(&self) -> Option<SocketAddr> {
        self.tcp()?.local_addr().ok()
    }

    /// Send no more. What has been written before still arrives; bytes that came can be read.
    pub(crate) fn send_no_more(&mut self) -> io::Result<()> {
        self.finish();
        match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tls(stream) => stream.socket().shutdown(Shutdown::Write),
        }
    }

    /// The end of [`Stream::register`].
    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.deregister(registry),
            Stream::Unix(stream) => stream.deregister(registry),
            Stream::Tls(stream) => stream.socket_mut().deregister(registry),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
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
    fn g53_a_connection_is_probed_after_what_was_said() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let stream = Stream::Tcp(mio::net::TcpStream::from_std(ours));
        let Some(socket) = stream.tcp() else {
            unreachable!("it is one of TCP")
        };
        stream.tune(Probing::default());
        assert!(sockopt::socket_keepalive(socket).unwrap());
        let (minute, ten) = (Duration::from_secs(60), Duration::from_secs(600));
        stream.tune(Probing {
            after: Some(minute),
            untaken: Some(ten),
        });
        assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), minute);
        assert_eq!(sockopt::tcp_keepintvl(socket).unwrap(), minute / 4);
        assert_eq!(sockopt::tcp_keepcnt(socket).unwrap(), 4);
        #[cfg(target_os = "linux")]
        assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 600_000);
    }
}
