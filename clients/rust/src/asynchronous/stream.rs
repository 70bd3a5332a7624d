//! Streams of the asynchronous client: TCP, TLS over it, and Unix sockets.

use std::io;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout_at;

use crate::config::{Address, Config};

/// A stream to a server.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

macro_rules! on {
    ($stream:expr, $inner:ident => $do:expr) => {
        match $stream {
            Stream::Tcp($inner) => $do,
            Stream::Unix($inner) => $do,
            #[cfg(feature = "tls")]
            Stream::Tls($inner) => $do,
        }
    };
}

impl Stream {
    pub(super) async fn connect(
        address: &Address,
        config: &Config,
        until: Instant,
    ) -> io::Result<Stream> {
        let connected = timeout_at(until.into(), Stream::connect_to(address, config)).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn connect_to(address: &Address, config: &Config) -> io::Result<Stream> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
            Address::Tcp { host, port, is_tls } => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                tcp.set_nodelay(true)?;
                match is_tls {
                    false => Ok(Stream::Tcp(tcp)),
                    true => with_tls(tcp, host, config).await,
                }
            }
        }
    }

    /// Send some bytes: how many. `None`: none within the time. Some may still be in a buffer until the
    /// next [`flush`](Stream::flush).
    pub(super) async fn send(&mut self, bytes: &[u8], until: Instant) -> io::Result<Option<usize>> {
        let until = until.into();
        let sent = match self {
            Stream::Tcp(stream) => timeout_at(until, stream.write(bytes)).await,
            Stream::Unix(stream) => timeout_at(until, stream.write(bytes)).await,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => timeout_at(until, give(stream, bytes)).await,
        };
        sent.map_or(Ok(None), |sent| sent.map(Some))
    }

    /// Have everything leave that was sent. False: it has not within the time.
    pub(super) async fn flush(&mut self, until: Instant) -> io::Result<bool> {
        let flushed = on!(self, stream => timeout_at(until.into(), stream.flush()).await);
        flushed.map_or(Ok(false), |flushed| flushed.map(|()| true))
    }

    /// Receive some bytes: how many, 0 at the end of the stream. `None`: none within the time.
    pub(super) async fn receive(
        &mut self,
        bytes: &mut [u8],
        until: Instant,
    ) -> io::Result<Option<usize>> {
        let received = on!(self, stream => timeout_at(until.into(), stream.read(bytes)).await);
        received.map_or(Ok(None), |received| received.map(Some))
    }

    /// Whether the peer has closed it, or sent something that was not asked for. Never waits.
    pub(super) fn is_closed(&self) -> bool {
        let tcp = |stream: &TcpStream| !is_quiet(PollFd::new(stream, PollFlags::IN));
        match self {
            Stream::Tcp(stream) => tcp(stream),
            Stream::Unix(stream) => !is_quiet(PollFd::new(stream, PollFlags::IN)),
            // A session ticket comes unasked.
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                let stream = stream.get_ref().0;
                tcp(stream) && has_ended(stream)
            }
        }
    }
}

/// Have rustls take some bytes, when those before have left: how many. All of them count as sent: how
/// much of them has left before an error cannot be known. So no error of the socket after that may hide
/// the count, as it does in a write of tokio-rustls. The next flush has it.
#[cfg(feature = "tls")]
async fn give<S>(stream: &mut tokio_rustls::client::TlsStream<S>, bytes: &[u8]) -> io::Result<usize>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    stream.flush().await?;
    io::Write::write(&mut stream.get_mut().1.writer(), bytes)
}

fn is_quiet(socket: PollFd<'_>) -> bool {
    poll(&mut [socket], Some(&Timespec::default())).is_ok_and(|count| count == 0)
}

/// Whether a stream on which something has come is at its end.
#[cfg(feature = "tls")]
fn has_ended(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let peeked = std::pin::pin!(stream.peek(&mut byte));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match peeked.poll(&mut context) {
        std::task::Poll::Ready(peeked) => !peeked.is_ok_and(|count| count > 0),
        std::task::Poll::Pending => false,
    }
}

#[cfg(feature = "tls")]
async fn with_tls(tcp: TcpStream, host: &str, config: &Config) -> io::Result<Stream> {
    let tls = config.tls.as_ref();
    let tls = tls.ok_or_else(|| io::Error::other("an address with tls: needs Config::tls"))?;
    let (config, name) = tls.of(host).map_err(io::Error::other)?;
    let stream = tokio_rustls::TlsConnector::from(config)
        .connect(name, tcp)
        .await?;
    Ok(Stream::Tls(Box::new(stream)))
}

#[cfg(not(feature = "tls"))]
async fn with_tls(_: TcpStream, _: &str, _: &Config) -> io::Result<Stream> {
    Err(io::Error::other(
        "this program was built without the feature tls",
    ))
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;
    use crate::link::{Link, Step};
    use crate::tls::tests::{self, GREETING, Wire};

    type Tls = tokio_rustls::client::TlsStream<Wire>;

    fn ready<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            result => Poll::Ready(result),
        }
    }

    impl AsyncRead for Wire {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let count = ready!(ready(io::Read::read(
                &mut *self,
                buffer.initialize_unfilled()
            )))?;
            buffer.advance(count);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            ready(io::Write::write(&mut *self, bytes))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Do the work of a link until the connection is to be closed, or a reply would be waited for.
    async fn work(link: &mut Link, stream: &mut Tls) {
        let now = Instant::now();
        loop {
            let result = match link.next(now) {
                Step::Send(bytes, _) => give(stream, bytes).await.map(|count| link.sent(count)),
                Step::Receive(_) => match stream.flush().await {
                    Ok(()) => return,
                    error => error,
                },
                _ => return,
            };
            if let Err(error) = result {
                link.lost(&error, now);
            }
        }
    }

    async fn connect(link: &mut Link) -> Tls {
        let (config, name, wire) = tests::ends();
        let connector = tokio_rustls::TlsConnector::from(config);
        let mut stream = connector
            .connect(name, wire)
            .await
            .expect("a handshake in memory");
        tests::connected(link);
        work(link, &mut stream).await;
        link.received(GREETING, Instant::now());
        stream
    }

    #[tokio::test]
    async fn puts_that_have_left_before_an_error_are_not_sent_again() {
        let mut link = tests::with_puts();
        let mut stream = connect(&mut link).await;
        let wire = stream.get_mut().0;
        wire.fail_after(40_000, io::ErrorKind::ConnectionReset);
        work(&mut link, &mut stream).await;
        tests::some_puts_were_heard(stream.get_ref().0);
        let mut stream = connect(&mut link).await;
        work(&mut link, &mut stream).await;
        tests::only_the_last_put_was_heard(stream.get_ref().0, link);
    }
}
