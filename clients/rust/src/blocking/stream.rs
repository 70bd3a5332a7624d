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

#[cfg(feature = "tls")]
type Tls<S> = rustls::StreamOwned<rustls::ClientConnection, S>;

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<Tls<TcpStream>>),
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

    /// Send some bytes: how many. `None`: none within the time. Some may still be in a buffer: the next
    /// [`send`](Stream::send), [`receive`](Stream::receive) or [`flush`](Stream::flush) has them leave.
    pub(crate) fn send(&mut self, bytes: &[u8], until: Instant) -> io::Result<Option<usize>> {
        self.limit(until)?;
        let sent = match &mut self.kind {
            Kind::Tcp(stream) => stream.write(bytes),
            Kind::Unix(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Kind::Tls(stream) => give(stream, bytes),
        };
        within(sent)
    }

    /// Have everything leave that was sent. False: it has not within the time.
    pub(crate) fn flush(&mut self, until: Instant) -> io::Result<bool> {
        self.limit(until)?;
        let flushed = match &mut self.kind {
            Kind::Tcp(stream) => stream.flush(),
            Kind::Unix(stream) => stream.flush(),
            #[cfg(feature = "tls")]
            Kind::Tls(stream) => stream.flush(),
        };
        Ok(within(flushed.map(|()| 0))?.is_some())
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

/// Have rustls take some bytes: how many. All of them count as sent, although a part may still be in its
/// buffer: how much of them has left before an error cannot be known. So no error of the socket after
/// that may hide the count. The next call has it.
#[cfg(feature = "tls")]
fn give<S: Read + Write>(stream: &mut Tls<S>, bytes: &[u8]) -> io::Result<usize> {
    stream.write(bytes)
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

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;
    use crate::link::{Link, Step};
    use crate::tls::tests::{self, GREETING, Wire};

    /// Do the work of a link until the connection is to be closed, or a reply would be waited for.
    fn work(link: &mut Link, stream: &mut Tls<Wire>) {
        let now = Instant::now();
        loop {
            let result = match link.next(now) {
                Step::Send(bytes, _) => match give(stream, bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    result => within(result).map(|count| link.sent(count.unwrap_or(0))),
                },
                Step::Receive(_) => match stream.read(&mut [0]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    result => within(result).map(|_| ()),
                },
                _ => return,
            };
            if let Err(error) = result {
                link.lost(&error, now);
            }
        }
    }

    fn connect(link: &mut Link) -> Tls<Wire> {
        let (client, wire) = tests::connection();
        let mut stream = Tls::new(client, wire);
        tests::connected(link);
        work(link, &mut stream);
        link.received(GREETING, Instant::now());
        stream
    }

    #[test]
    fn puts_that_have_left_before_an_error_are_not_sent_again() {
        let mut link = tests::with_puts();
        let mut stream = connect(&mut link);
        stream
            .sock
            .fail_after(40_000, io::ErrorKind::ConnectionReset);
        work(&mut link, &mut stream);
        tests::some_puts_were_heard(&stream.sock);
        let mut stream = connect(&mut link);
        work(&mut link, &mut stream);
        tests::only_the_last_put_was_heard(&stream.sock, link);
    }

    #[test]
    fn puts_that_have_left_before_the_time_is_over_may_have_been_done() {
        let mut link = tests::with_puts();
        let mut stream = connect(&mut link);
        let late = io::ErrorKind::WouldBlock;
        stream.sock.fail_after(40_000, late);
        work(&mut link, &mut stream);
        tests::some_puts_were_heard(&stream.sock);
        tests::only_the_last_put_was_not_done(link);
    }

    #[test]
    fn what_a_signal_has_interrupted_leaves_once() {
        let mut link = tests::with_puts();
        let mut stream = connect(&mut link);
        stream.sock.fail_after(20_000, io::ErrorKind::Interrupted);
        work(&mut link, &mut stream);
        tests::all_puts_were_heard_once(&stream.sock);
    }
}
