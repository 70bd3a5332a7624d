//! A member that follows passes requests for pages on to its leader, and the answers back. So each
//! member's console is that of the whole cluster.
//!
//! ```text
//!  browser ── session, origin ──▶ follower ── token, Bsd-Passed-On ──▶ leader
//!          ◀────── page ────────           ◀────────── page ─────────
//! ```
//!
//! The guard of the follower has let the request in before. What goes on is a new request: the
//! method, path and form of the old one, and the few fields that are named here. The leader checks the
//! token and the form by itself. The fields that it gets from a member give no right: anyone may send
//! them, and changes no more than the page that comes back.
//!
//! Invariants:
//! * A request that was passed on is not passed on again.
//! * A change is sent once. If it may have been done, the reason says so.
//! * An answer is never held as a whole: the next part is read when the one before has left.
//! * No field about a connection, and no cookie, goes either way.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_TYPE,
    HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY, RETRY_AFTER,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::State;
use super::answer::{Answer, Content, Problem, Said, bare};
use super::cluster::{self, Lead, Leader};
use super::guard::Asker;
use bsd_net::explained;

/// The member that has passed a request on: its id. Nothing is believed because of it.
pub(super) const PASSED_ON: HeaderName = HeaderName::from_static("bsd-passed-on");
/// The word of the form by which a session at that member is ended.
pub(super) const LEAVE: HeaderName = HeaderName::from_static("bsd-leave");

/// Requests that are passed on at a time, until their answers have left.
pub(super) const PASSED_ON_MAX: usize = 32;
/// Time until the leader is connected, handshakes included.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Time until the head of the answer is there, as long as that member leads.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How often it is looked whether it still does.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A leader that has refused a token is not shown it again for this long.
const REFUSED_TIME: Duration = Duration::from_secs(60);
/// Bytes that the head of an answer may have, and of its body that are held.
const BUFFER_SIZE: usize = 16 << 10;
/// Fields that the head of an answer may have.
const FIELDS_MAX: usize = 64;

/// The fields of an answer that are passed back.
const ANSWERED: [HeaderName; 6] = [
    CONTENT_TYPE,
    CONTENT_DISPOSITION,
    CACHE_CONTROL,
    REFERRER_POLICY,
    RETRY_AFTER,
    ALLOW,
];

/// What is on its way to a leader.
#[derive(Debug)]
pub(super) struct Relay {
    places: Arc<Semaphore>,
    /// The lines of tokens that a leader has refused: its address, and when. No more of them than the
    /// file of the tokens has lines.
    refused: Mutex<BTreeMap<usize, (String, Instant)>>,
}

impl Default for Relay {
    fn default() -> Relay {
        Relay {
            places: Arc::new(Semaphore::new(PASSED_ON_MAX)),
            refused: Mutex::default(),
        }
    }
}

/// What became of a request.
#[derive(Debug)]
pub(super) enum Passed {
    /// The leader has answered it.
    Answered(Answer),
    /// It is to be answered here; with the reason, where another member leads.
    Here(Option<String>),
}

/// A request that the guard has let in, and that is complete.
#[derive(Debug)]
pub(super) struct Complete<'a> {
    pub(super) head: &'a Parts,
    pub(super) body: &'a [u8],
    pub(super) asker: Asker,
}

/// Why the leader has not answered.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    why: String,
    /// The request had left: it may have been done.
    may_be_done: bool,
}

impl Failure {
    /// Before anything was sent.
    fn before(why: impl fmt::Display) -> Failure {
        Failure {
            why: why.to_string(),
            may_be_done: false,
        }
    }

    fn after(why: impl fmt::Display) -> Failure {
        Failure {
            may_be_done: true,
            ..Failure::before(why)
        }
    }
}

/// Have the leader answer, if another member leads.
///
/// # Errors
/// The request was passed on to this member, which does not lead; or it is a change that the leader
/// cannot be given.
pub(super) async fn pass_on(state: &State, request: &Complete<'_>) -> Result<Passed, Problem> {
    let leader = match cluster::lead(&state.handles) {
        Lead::Here => return Ok(Passed::Here(None)),
        _ if request.head.headers.contains_key(PASSED_ON) => {
            return Err(Problem::unavailable(
                "the leader of the cluster has changed since this was asked for; load the page again",
            ));
        }
        Lead::NoOne => return Ok(Passed::Here(None)),
        Lead::Somewhere => {
            let why = "where HTTP reaches the leader is not known here";
            return Ok(Passed::Here(Some(why.into())));
        }
        Lead::At(leader) => leader,
    };
    let is_look = request.head.method == Method::GET;
    match state.relay.ask(state, &leader, request).await {
        Ok(answer) if is_look => Ok(Passed::Answered(answer)),
        Ok(answer) => {
            let said = Said(format!("passed on to the leader at {}", leader.http));
            Ok(Passed::Answered(said.with(answer)))
        }
        Err(Failure { why, may_be_done }) => {
            let why = format!("the leader at {} does not answer this: {why}", leader.http);
            match (is_look, may_be_done) {
                (true, _) => Ok(Passed::Here(Some(why))),
                (false, false) => Err(Problem::unavailable(format!("{why}; nothing was changed"))),
                (false, true) => Err(Problem::unavailable(format!(
                    "{why}; it may have been done: look before it is sent again"
                ))),
            }
        }
    }
}

impl Relay {
    async fn ask(
        &self,
        state: &State,
        leader: &Leader,
        request: &Complete<'_>,
    ) -> Result<Answer, Failure> {
        if self.has_refused(leader, request.asker) {
            return Err(Failure::before(OTHER_TOKENS));
        }
        let permit = self.places.clone().try_acquire_owned();
        let permit = permit.map_err(|_| {
            Failure::before(format_args!(
                "{PASSED_ON_MAX} requests are being passed on already"
            ))
        })?;
        let sent = written(state, leader, request)?;
        let is_look = request.head.method == Method::GET;
        let leads = || matches!(cluster::lead(&state.handles), Lead::At(it) if it == *leader);
        let (response, link) = send(connect(state, leader).await?, sent, leads).await?;
        if is_login(&response) {
            self.note_refused(leader, request.asker);
            return Err(Failure::before(OTHER_TOKENS));
        }
        if is_look && response.status() == StatusCode::FORBIDDEN {
            return Err(Failure::before("there the token has another role"));
        }
        passed_back(response, (link, permit))
    }

    fn has_refused(&self, leader: &Leader, asker: Asker) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|_, (http, at)| *http == leader.http && at.elapsed() < REFUSED_TIME);
        refused.contains_key(&line(asker))
    }

    fn note_refused(&self, leader: &Leader, asker: Asker) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.insert(line(asker), (leader.http.clone(), Instant::now()));
    }
}

const OTHER_TOKENS: &str = "it does not know the token; members of a cluster need the same \
                            --http-tokens";

/// The line of a token; 0 where none is needed.
fn line(asker: Asker) -> usize {
    match asker {
        Asker::Local => 0,
        Asker::Token(holder) => holder.line,
    }
}

/// The leader wants a token. A browser is sent to its login for that.
fn is_login<T>(response: &Response<T>) -> bool {
    let place = response.headers().get(LOCATION);
    let is_there = place.is_some_and(|place| place.as_bytes().starts_with(b"/login"));
    response.status() == StatusCode::UNAUTHORIZED || is_there
}

/// The request as the leader gets it.
fn written(
    state: &State,
    leader: &Leader,
    request: &Complete<'_>,
) -> Result<Request<Full<Bytes>>, Failure> {
    let Complete { head, body, .. } = request;
    let access = &state.access;
    let token = access.token(&head.headers);
    if token.is_some() && access.is_over_tls() && !leader.has_tls && !leader.is_here() {
        return Err(Failure::before(
            "it is served without TLS, and the token came over TLS",
        ));
    }
    let has_session = token.is_some() && access.sessions.find(&head.headers).is_some();
    let leave = has_session.then(|| state.console.form_word());
    let fields = fields(&head.headers, leader, (token.as_deref(), leave));
    let path = head.uri.path_and_query();
    let path = path.map_or("/", hyper::http::uri::PathAndQuery::as_str);
    let written = Request::builder().method(&head.method).uri(path);
    let mut written = written
        .body(Full::new(Bytes::copy_from_slice(body)))
        .map_err(Failure::before)?;
    *written.headers_mut() = fields.map_err(Failure::before)?;
    Ok(written)
}

/// All fields that the leader gets. The size of the body is written by the connection.
fn fields(
    asked: &HeaderMap,
    leader: &Leader,
    (token, leave): (Option<&str>, Option<&str>),
) -> Result<HeaderMap, hyper::header::InvalidHeaderValue> {
    let mut fields = HeaderMap::new();
    fields.insert(HOST, HeaderValue::try_from(leader.address.to_string())?);
    fields.insert(CONNECTION, HeaderValue::from_static("close"));
    fields.insert(PASSED_ON, HeaderValue::try_from(&leader.asked_by)?);
    for name in [ACCEPT, CONTENT_TYPE] {
        if let Some(value) = asked.get(&name) {
            fields.insert(name, value.clone());
        }
    }
    if let Some(token) = token {
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
        value.set_sensitive(true);
        fields.insert(AUTHORIZATION, value);
    }
    if let Some(word) = leave {
        fields.insert(LEAVE, HeaderValue::try_from(word)?);
    }
    Ok(fields)
}

/// A connection to a leader; it ends when this is dropped.
struct Link {
    task: AbortHandle,
    sender: http1::SendRequest<Full<Bytes>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn late(time: Duration) -> String {
    format!("it took more than {} s", time.as_secs())
}

/// Connect to a leader.
async fn connect(state: &State, leader: &Leader) -> Result<Link, Failure> {
    let connected = timeout(CONNECT_TIME, TcpStream::connect(leader.address)).await;
    let stream = connected
        .map_err(|_| Failure::before(late(CONNECT_TIME)))?
        .map_err(Failure::before)?;
    match leader.has_tls {
        false => converse(stream).await,
        true => {
            let encrypted = timeout(CONNECT_TIME, encrypt(state, leader, stream)).await;
            let stream = encrypted.map_err(|_| Failure::before(late(CONNECT_TIME)))??;
            converse(stream).await
        }
    }
}

/// Send it once, and wait for the head of the answer, no longer than that member leads.
async fn send(
    mut link: Link,
    request: Request<Full<Bytes>>,
    leads: impl Fn() -> bool,
) -> Result<(Response<Incoming>, Link), Failure> {
    let begun = Instant::now();
    let mut sent = pin!(link.sender.send_request(request));
    loop {
        match timeout(LOOK_EVERY, &mut sent).await {
            Ok(Ok(response)) => return Ok((response, link)),
            Ok(Err(error)) => return Err(Failure::after(error)),
            Err(_) if !leads() => return Err(Failure::after("it does not lead any more")),
            Err(_) if begun.elapsed() >= ANSWER_TIME => {
                return Err(Failure::after(late(ANSWER_TIME)));
            }
            Err(_) => {}
        }
    }
}

/// The leader's certificate is that which members know each other by, for the host at which its peers
/// reach it.
async fn encrypt(
    state: &State,
    leader: &Leader,
    stream: TcpStream,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static, Failure> {
    let desk = state.handles.cluster.as_ref();
    let Some((links, host)) = desk.and_then(|desk| desk.links()).zip(leader.host) else {
        return Err(Failure::before(
            "it is served over TLS, for which this member has no --cluster-cert",
        ));
    };
    let connected = TlsConnector::from(links).connect(host.into(), stream).await;
    connected.map_err(|error| Failure::before(explained(&error)))
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Link, Failure> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_SIZE).max_headers(FIELDS_MAX);
    let begun = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(Failure::before)?;
    // An error of it is one of the request, or of the body.
    let task = tokio::spawn(async move { drop(connection.await) });
    Ok(Link {
        task: task.abort_handle(),
        sender,
    })
}

/// The answer as the browser gets it.
fn passed_back(
    response: Response<Incoming>,
    held: (Link, OwnedSemaphorePermit),
) -> Result<Answer, Failure> {
    let (head, body) = response.into_parts();
    if head.status.is_informational() {
        return Err(Failure::after("it answers with what is no page"));
    }
    let body = Passing { body, _held: held };
    let mut answer = bare(head.status, Content::passing(body));
    answer.headers_mut().extend(shown(&head.headers));
    Ok(answer)
}

/// The fields of the leader's answer that are shown to a browser.
fn shown(answered: &HeaderMap) -> HeaderMap {
    let mut shown = HeaderMap::new();
    for name in ANSWERED {
        if let Some(value) = answered.get(&name) {
            shown.insert(name, value.clone());
        }
    }
    let place = answered.get(LOCATION);
    if let Some(place) = place.filter(|place| is_path(place.as_bytes())) {
        shown.insert(LOCATION, place.clone());
    }
    shown
}

/// A browser that is sent there stays at the member that it asked.
fn is_path(place: &[u8]) -> bool {
    place.starts_with(b"/") && !place.starts_with(b"//") && !place.contains(&b'\\')
}

/// The body of a leader's answer, on its way through.
struct Passing {
    body: Incoming,
    _held: (Link, OwnedSemaphorePermit),
}

impl Body for Passing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match frame {
            // Fields behind a body are about the connection that they came by.
            Some(Ok(frame)) => frame.into_data().ok().map(|data| Ok(Frame::data(data))),
            Some(Err(error)) => Some(Err(io::Error::other(error))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The query of a page in this member's own view.
pub(super) const OWN_VIEW: &str = "?view=member";

/// The same, as one of several parameters.
fn own_pair() -> &'static str {
    OWN_VIEW.trim_start_matches('?')
}

/// A query without the parameter that asks for this member's own view, and whether it was there.
pub(super) fn own_view(query: Option<&str>) -> (Option<String>, bool) {
    let Some(query) = query else {
        return (None, false);
    };
    let pairs = query.split('&');
    let (own, others): (Vec<_>, Vec<_>) = pairs.partition(|pair| *pair == own_pair());
    (Some(others.join("&")), !own.is_empty())
}

/// The address of a page, or of its changes, in this member's own view.
pub(super) fn with_own_view(path: &str) -> String {
    match path.contains('?') {
        true => format!("{path}&{}", own_pair()),
        false => format!("{path}{OWN_VIEW}"),
    }
}

/// The member that has passed a request on, by its own words; and the word with which its form ends a
/// session there.
pub(super) fn passed_on_by(headers: &HeaderMap) -> Option<(&str, Option<&str>)> {
    let word = |name: &HeaderName, size: usize| {
        let word = headers.get(name)?.to_str().ok()?;
        let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_hex && word.len() == size).then_some(word)
    };
    Some((word(&PASSED_ON, 16)?, word(&LEAVE, 64)))
}

#[cfg(test)]
#[path = "relay/tests.rs"]
mod tests;
