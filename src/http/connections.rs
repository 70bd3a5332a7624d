//! Connections: how many there may be, and how long each may take for what. A client that is slow,
//! or has bad intentions, costs its own connection and no other.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, warn};

use super::caller::{Caller, Tls};
use super::{State, service};
#[cfg(feature = "tls")]
use crate::server::name_of;

/// Connections that are open at a time. Who comes then takes the place of the one that has been
/// idle for longest; where all are busy it is not let in.
pub const CONNECTIONS_MAX: usize = 64;
/// How long the header of a request may take.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// How long a request may take, from its header to its answer.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(30);
/// How long a client may take to read an answer, and then to begin the next request.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// How long nobody is let in where the system has no room for a connection.
const REST: Duration = Duration::from_millis(100);
/// Bytes that the header of a request may have, and of an answer that are held.
const BUFFER_SIZE: usize = 16 << 10;
/// Fields that the header of a request may have.
const FIELDS_MAX: usize = 64;

/// Serve until told to end.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    state: Arc<State>,
    tls: Option<Tls>,
    end: &Notify,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut open: Vec<Open> = Vec::new();
    let mut ended = pin!(end.notified());
    loop {
        let accepted = std::future::poll_fn(|context| {
            if ended.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(None);
            }
            listener.poll_accept(context).map(Some)
        });
        match accepted.await {
            None => return Ok(()),
            Some(Ok((stream, peer))) => {
                open.retain(|open| !open.task.is_finished());
                if make_room(&mut open) {
                    open.push(begin(stream, Caller::at(peer), tls.clone(), state.clone()));
                }
            }
            Some(Err(error)) => {
                warn!("HTTP connections cannot be accepted for now: {error}");
                sleep(REST).await;
            }
        }
    }
}

/// A connection.
struct Open {
    task: AbortHandle,
    watch: Arc<Watch>,
}

/// What a connection is about.
pub(super) struct Watch {
    begun: Instant,
    /// It is between a request's header and its answer.
    is_busy: AtomicBool,
    /// Milliseconds from its beginning to when it must have come further.
    deadline_ms: AtomicU64,
    /// The same of when it last came further.
    since_ms: AtomicU64,
}

impl Watch {
    fn new() -> Watch {
        Watch {
            begun: Instant::now(),
            is_busy: AtomicBool::new(false),
            deadline_ms: AtomicU64::new(ms(IDLE_TIME)),
            since_ms: AtomicU64::new(0),
        }
    }

    /// A request is to be answered, or has been.
    pub(super) fn set_busy(&self, is_busy: bool) {
        let since = ms(self.begun.elapsed());
        let time = if is_busy {
            REQUEST_TIME + IDLE_TIME
        } else {
            IDLE_TIME
        };
        self.is_busy.store(is_busy, Ordering::Relaxed);
        self.since_ms.store(since, Ordering::Relaxed);
        self.deadline_ms.store(since + ms(time), Ordering::Relaxed);
    }

    fn deadline(&self) -> Instant {
        self.begun + Duration::from_millis(self.deadline_ms.load(Ordering::Relaxed))
    }

    /// Since when it has been idle; `None` if it is not.
    fn idle_since(&self) -> Option<Instant> {
        let since = Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        (!self.is_busy.load(Ordering::Relaxed)).then(|| self.begun + since)
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// True when another connection may be opened.
fn make_room(open: &mut Vec<Open>) -> bool {
    if open.len() < CONNECTIONS_MAX {
        return true;
    }
    let idle = open.iter().enumerate().filter_map(|(at, open)| {
        let since = open.watch.idle_since()?;
        Some((since, at))
    });
    let longest = idle.min();
    if let Some((_, at)) = longest {
        open.swap_remove(at).task.abort();
    }
    longest.is_some()
}

fn begin(stream: TcpStream, caller: Caller, tls: Option<Tls>, state: Arc<State>) -> Open {
    let watch = Arc::new(Watch::new());
    let shared = watch.clone();
    let task = match tls {
        None => tokio::spawn(converse(stream, caller, state, shared)),
        #[cfg(feature = "tls")]
        Some(tls) => tokio::spawn(converse_over(tls, stream, caller, state, shared)),
    };
    Open {
        task: task.abort_handle(),
        watch,
    }
}

/// A client that is not through with its handshake is idle: others may take its place.
#[cfg(feature = "tls")]
async fn converse_over(
    tls: Tls,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    caller: Caller,
    state: Arc<State>,
    watch: Arc<Watch>,
) {
    let handshake = tokio_rustls::TlsAcceptor::from(tls.now()).accept(stream);
    match tokio::time::timeout(HEADER_TIME, handshake).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates();
            let name = shown.and_then(<[_]>::first).and_then(name_of);
            converse(stream, caller.named(name), state, watch).await;
        }
        Ok(Err(error)) => debug!(peer = %caller, "HTTP connection without TLS: {error}"),
        Err(_) => debug!(peer = %caller, "HTTP connection closed: its handshake is too slow"),
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    caller: Caller,
    state: Arc<State>,
    watch: Arc<Watch>,
) {
    let answer = |request| {
        let (caller, state, watch) = (&caller, state.clone(), watch.clone());
        async move {
            watch.set_busy(true);
            let mut answer = service::answer(request, caller, &state).await;
            answer.body_mut().leaves_by(&watch);
            watch.set_busy(false);
            Ok::<_, std::convert::Infallible>(answer)
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(BUFFER_SIZE)
        .max_headers(FIELDS_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    let mut connection = pin!(connection);
    loop {
        let deadline = watch.deadline();
        match timeout_at(deadline, connection.as_mut()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return debug!(peer = %caller, "HTTP connection broken: {error}"),
            // It has come further meanwhile.
            Err(_) if watch.deadline() > deadline => {}
            Err(_) => return debug!(peer = %caller, "HTTP connection closed: it is too slow"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::http::tests::{closed, paused};

    /// The other end of a connection that holds this many bytes, and when it began.
    fn connect(size: usize) -> (DuplexStream, Instant) {
        let (ours, theirs) = duplex(size);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let watch = Arc::new(Watch::new());
        tokio::spawn(converse(
            theirs,
            Caller::at(peer),
            Arc::new(closed()),
            watch,
        ));
        (ours, Instant::now())
    }

    async fn rest(stream: &mut DuplexStream) -> String {
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.unwrap();
        String::from_utf8(said).unwrap()
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_handshake_that_stops_is_given_up_after_10_seconds() {
        let (tls, _) = Tls::made();
        paused(async {
            let (mut stream, theirs) = duplex(64 << 10);
            let caller = Caller::at(SocketAddr::from(([127, 0, 0, 1], 1)));
            let watch = Arc::new(Watch::new());
            let begun = Instant::now();
            tokio::spawn(converse_over(
                tls,
                theirs,
                caller,
                Arc::new(closed()),
                watch,
            ));
            stream.write_all(&[0x16, 3, 1]).await.unwrap();
            assert_eq!(rest(&mut stream).await, "");
            assert_eq!(begun.elapsed().as_secs(), HEADER_TIME.as_secs());
        });
    }

    #[test]
    fn a_request_that_does_not_come_to_its_end_is_answered_after_30_seconds() {
        paused(async {
            let (mut stream, begun) = connect(64 << 10);
            let request = "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                           Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
            stream.write_all(request.as_bytes()).await.unwrap();
            let said = rest(&mut stream).await;
            assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
            assert!(said.contains("it took more than 30 seconds"), "{said}");
            assert_eq!(begun.elapsed().as_secs(), REQUEST_TIME.as_secs());
        });
    }

    #[test]
    fn an_answer_that_is_not_read_is_given_up_after_30_seconds() {
        paused(async {
            let (mut stream, begun) = connect(256);
            let request = "GET /static/console.css HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request.as_bytes()).await.unwrap();
            // Nothing is read before the other end has gone.
            tokio::time::sleep(IDLE_TIME + Duration::from_secs(1)).await;
            let said = rest(&mut stream).await;
            assert!(
                said.starts_with("HTTP/1.1 200 ") && said.len() <= 256,
                "{said}"
            );
            assert_eq!(begun.elapsed().as_secs(), IDLE_TIME.as_secs() + 1);
        });
    }

    #[test]
    fn a_connection_without_another_request_ends_after_30_seconds() {
        paused(async {
            let (mut stream, begun) = connect(64 << 10);
            let request = "GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request.as_bytes()).await.unwrap();
            let said = rest(&mut stream).await;
            assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
            let took = begun.elapsed().as_secs();
            assert!(took <= IDLE_TIME.as_secs(), "{took}");
        });
    }
}
