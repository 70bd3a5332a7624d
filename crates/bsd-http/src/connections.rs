//! Connections: how long each may take for what. A client that is slow, or has bad intentions, costs
//! its own connection and no other. How many there may be is the business of `places`.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout_at};
use tracing::{debug, warn};

use super::caller::{Caller, Tls};
use super::places::Watch;
use super::{State, service};
use bsd_net::{explained, name_of};

/// How long the header of a request may take.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// How long no one is let in where the system has no room for a connection.
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
                if let Some(watch) = state.places.find(peer) {
                    let task = begin(stream, Caller::at(peer), tls.clone(), &state, &watch);
                    state.places.seat(task, peer, watch);
                }
                // Those who are there go on before the next one comes.
                tokio::task::yield_now().await;
            }
            Some(Err(error)) => {
                warn!("HTTP connections cannot be accepted for now: {error}");
                sleep(REST).await;
            }
        }
    }
}

fn begin(
    stream: TcpStream,
    caller: Caller,
    tls: Option<Tls>,
    state: &Arc<State>,
    watch: &Arc<Watch>,
) -> AbortHandle {
    let (state, watch) = (state.clone(), watch.clone());
    let task = match tls {
        None => tokio::spawn(converse(stream, caller, state, watch)),
        Some(tls) => tokio::spawn(converse_over(tls, stream, caller, state, watch)),
    };
    task.abort_handle()
}

/// A client that is not through with its handshake is idle: others may take its place.
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
        Ok(Err(error)) => {
            let why = explained(&error);
            debug!(peer = %caller, "HTTP connection without TLS: {why}");
        }
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
            watch.begin();
            let mut answer = service::answer(request, caller, &state, &watch).await;
            answer.body_mut().leaves_by(&watch);
            watch.rest();
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
    use tokio::time::Instant;

    use super::*;
    use crate::guard::Access;
    use crate::places::{IDLE_TIME, REQUEST_TIME};
    use crate::tests::{closed, paused};

    /// The other end of a connection that holds `size` bytes, and when it began.
    fn connect(size: usize) -> (DuplexStream, Instant) {
        let (ours, theirs) = duplex(size);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let watch = Arc::new(Watch::new(false));
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

    /// Of a certificate that is made for this test.
    fn made_tls() -> Tls {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            #[allow(clippy::disallowed_methods)] // no file of the log
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = bsd_net::TlsFiles {
            cert: write("cert.pem", made.cert.pem()),
            key: write("key.pem", made.signing_key.serialize_pem()),
            client_ca: None,
        };
        Tls::read(files).unwrap()
    }

    #[test]
    fn a_handshake_that_stops_is_given_up_after_10_seconds() {
        let tls = made_tls();
        paused(async {
            let (mut stream, theirs) = duplex(64 << 10);
            let caller = Caller::at(SocketAddr::from(([127, 0, 0, 1], 1)));
            let watch = Arc::new(Watch::new(false));
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
    fn g30_a_wrong_token_is_answered_late_and_its_connection_gives_way_meanwhile() {
        paused(async {
            let line = format!("read:saltsalt:{}", "0".repeat(64));
            let tokens = bsd_net::Tokens::parse(&line).unwrap();
            let access = Access::new(Some(tokens), Vec::new(), (1, false));
            let state = Arc::new(State::new(closed().handles, access).unwrap());
            let mut took = Vec::new();
            for _ in 0..4 {
                let (mut stream, theirs) = duplex(64 << 10);
                let peer = Caller::at(SocketAddr::from(([10, 0, 0, 1], 1)));
                let watch = Arc::new(Watch::new(false));
                tokio::spawn(converse(theirs, peer, state.clone(), watch.clone()));
                let begun = Instant::now();
                let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                               Authorization: Bearer x\r\n\r\n";
                stream.write_all(request.as_bytes()).await.unwrap();
                sleep(Duration::from_millis(50)).await;
                assert!(watch.gives_way());
                let said = rest(&mut stream).await;
                assert!(said.starts_with("HTTP/1.1 401 "), "{said}");
                took.push(begun.elapsed().as_millis() / 100);
            }
            assert_eq!(took, [1, 2, 4, 8]);
        });
    }

    #[test]
    fn g27_a_login_that_does_not_come_to_its_end_is_answered_after_5_seconds() {
        paused(async {
            let (mut stream, begun) = connect(64 << 10);
            let request = "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                           Content-Length: 100\r\n\r\nx";
            stream.write_all(request.as_bytes()).await.unwrap();
            let said = rest(&mut stream).await;
            assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
            assert_eq!(begun.elapsed().as_secs(), 5);
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
