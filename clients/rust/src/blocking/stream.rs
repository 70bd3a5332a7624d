//! Streams of the blocking client: TCP, TLS over it, and Unix sockets.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config::{Address, Config};

/// Timeouts of sockets are set in steps of this size, so that they are seldom set.
const TIMEOUT_STEP: Duration = Duration::from_millis(50);

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

/// A stream to a server.
#[derive(Debug)]
pub(crate) struct Stream {
    kind: Kind,
    /// The timeout that the socket has.
    timeout: Duration,
}

impl Stream {
    pub(crate) fn connect(
        address: &Address,
        config: &Config,
        until: Instant,
    ) -> io::Result<Stream> {
        let kind = match address {
            Address::Unix(path) => Kind::Unix(UnixStream::connect(path)?),
            Address::Tcp { host, port, is_tls } => {
                let tcp = connect_tcp(host, *port, until)?;
                tcp.set_nodelay(true)?;
                match is_tls {
                    false => Kind::Tcp(tcp),
                    true => with_tls(tcp, host, config)?,
                }
            }
        };
        let timeout = Duration::ZERO;
        Ok(Stream { kind, timeout })
    }

    /// Have the next read or write wait no longer than until then.
    fn limit(&mut self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let steps = left.as_millis() / TIMEOUT_STEP.as_millis() + 1;
        let timeout = TIMEOUT_STEP.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
        if timeout == self.timeout {
            return Ok(());
        }
        match &self.kind {
            Kind::Tcp(stream) => set_timeout_tcp(stream, timeout)?,
            Kind::Unix(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
            }
            #[cfg(feature = "tls")]
            Kind::Tls(stream) => set_timeout_tcp(&stream.sock, timeout)?,
        }
        self.timeout = timeout;
        Ok(())
    }

    /// Send some bytes: how many. `None`: none within the time.
    pub(crate) fn send(&mut self, bytes: &[u8], until: Instant) -> io::Result<Option<usize>> {
        self.limit(until)?;
        let sent = match &mut self.kind {
            Kind::Tcp(stream) => stream.write(bytes),
            Kind::Unix(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Kind::Tls(stream) => stream.write(bytes).and_then(|count| {
                stream.flush()?;
                Ok(count)
            }),
        };
        within(sent)
    }

    /// Receive some bytes: how many, 0 at the end of the stream. `None`: none within the time.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        until: Instant,
    ) -> io::Result<Option<usize>> {
        self.limit(until)?;
        let received = match &mut self.kind {
            Kind::Tcp(stream) => stream.read(bytes),
            Kind::Unix(stream) => stream.read(bytes),
            #[cfg(feature = "tls")]
            Kind::Tls(stream) => stream.read(bytes),
        };
        within(received)
    }

    /// Whether something comes within this time, less than a second, be it the end of the stream.
    pub(crate) fn is_readable(&self, time: Duration) -> bool {
        let mut sockets = [PollFd::new(self, PollFlags::IN)];
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        poll(&mut sockets, Some(&time)).is_ok_and(|count| count > 0)
    }

    /// Whether the peer has closed it, or sent something that was not asked for. Never waits.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.kind {
            _ if !self.is_readable(Duration::ZERO) => false,
            Kind::Tcp(_) | Kind::Unix(_) => true,
            // A session ticket comes unasked.
            #[cfg(feature = "tls")]
            Kind::Tls(stream) => !stream.sock.peek(&mut [0]).is_ok_and(|count| count > 0),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(stream) => stream.as_fd(),
            Kind::Unix(stream) => stream.as_fd(),
            #[cfg(feature = "tls")]
            Kind::Tls(stream) => stream.sock.as_fd(),
        }
    }
}

fn set_timeout_tcp(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

/// The first of the addresses of a host that answers.
fn connect_tcp(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(feature = "tls")]
fn with_tls(tcp: TcpStream, host: &str, config: &Config) -> io::Result<Kind> {
    let tls = config.tls.as_ref();
    let tls = tls.ok_or_else(|| io::Error::other("an address with tls: needs Config::tls"))?;
    let (config, name) = tls.of(host).map_err(io::Error::other)?;
    let connection = rustls::ClientConnection::new(config, name).map_err(io::Error::other)?;
    Ok(Kind::Tls(Box::new(rustls::StreamOwned::new(
        connection, tcp,
    ))))
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: TcpStream, _: &str, _: &Config) -> io::Result<Kind> {
    Err(io::Error::other(
        "this program was built without the feature tls",
    ))
}

fn within(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}
