//! Answers: pages, and problems as RFC 9457 has them. Each tells browsers to keep it to themselves
//! and to load nothing from elsewhere.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use super::places::Watch;

/// The header fields of every answer, problems of the protocol apart.
const ALWAYS: [(HeaderName, HeaderValue); 5] = [
    (
        HeaderName::from_static("cache-control"),
        HeaderValue::from_static("no-store"),
    ),
    (
        HeaderName::from_static("content-security-policy"),
        HeaderValue::from_static(
            "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        ),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("referrer-policy"),
        HeaderValue::from_static("no-referrer"),
    ),
    (
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    ),
];

/// An answer on its way.
pub(super) type Answer = Response<Content>;

/// Content of an answer.
pub(super) enum Content {
    Whole(Option<Bytes>),
    /// Made as it leaves, so that a long page is never there as a whole.
    Parts(Box<dyn Iterator<Item = Bytes> + Send>),
    /// Made as things happen, until the sender ends it.
    Events {
        events: Receiver<Bytes>,
        /// State of the connection: as long as it takes its bytes, it is not too slow.
        watch: Option<Arc<Watch>>,
    },
    /// Another server's, passed on as it comes.
    Passing {
        body: Pin<Box<dyn Body<Data = Bytes, Error = io::Error> + Send>>,
        /// As of events.
        watch: Option<Arc<Watch>>,
    },
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Whole(bytes) => write!(f, "{} bytes", bytes.as_ref().map_or(0, Bytes::len)),
            Content::Parts(_) => write!(f, "in parts"),
            Content::Events { .. } => write!(f, "events"),
            Content::Passing { .. } => write!(f, "passed on"),
        }
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let part = match &mut *self {
            Content::Whole(bytes) => bytes.take(),
            Content::Parts(parts) => parts.next(),
            Content::Events { events, watch } => {
                let event = std::task::ready!(events.poll_recv(context));
                if let Some(watch) = watch {
                    watch.rest();
                }
                event
            }
            Content::Passing { body, watch } => {
                let frame = std::task::ready!(body.as_mut().poll_frame(context));
                if let Some(watch) = watch {
                    watch.rest();
                }
                return Poll::Ready(frame);
            }
        };
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Content::Passing { body, .. } => body.is_end_stream(),
            content => matches!(content, Content::Whole(None)),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Passing { body, .. } => body.size_hint(),
            Content::Parts(_) | Content::Events { .. } => SizeHint::default(),
        }
    }
}

impl Content {
    /// What another server sends, as it comes.
    pub(super) fn passing(
        body: impl Body<Data = Bytes, Error = io::Error> + Send + 'static,
    ) -> Content {
        Content::Passing {
            body: Box::pin(body),
            watch: None,
        }
    }

    /// Value of an answer in JSON.
    pub(super) fn value(&self) -> Value {
        match self {
            Content::Whole(Some(bytes)) => serde_json::from_slice(bytes).unwrap_or_default(),
            _ => Value::Null,
        }
    }

    /// This is the connection that it leaves by.
    pub(super) fn leaves_by(&mut self, connection: &Arc<Watch>) {
        if let Content::Events { watch, .. } | Content::Passing { watch, .. } = self {
            *watch = Some(connection.clone());
        }
    }
}

/// An answer of this type.
pub(super) fn page(status: StatusCode, kind: &'static str, content: Content) -> Answer {
    let mut answer = bare(status, content);
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// An answer that does not say yet of which type it is.
pub(super) fn bare(status: StatusCode, content: Content) -> Answer {
    let mut answer = Response::new(content);
    *answer.status_mut() = status;
    answer.headers_mut().extend(ALWAYS);
    answer
}

/// An answer in JSON.
pub(super) fn json(status: StatusCode, value: &Value) -> Answer {
    json_as(status, "application/json", value)
}

fn json_as(status: StatusCode, kind: &'static str, value: &Value) -> Answer {
    let mut text = value.to_string();
    text.push('\n');
    page(status, kind, Content::Whole(Some(text.into())))
}

/// Subject of an answer, for the audit line: the part that is not in the path of the request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said(pub(super) String);

impl Said {
    /// The answer, of which this is to be said.
    pub(super) fn with(self, mut answer: Answer) -> Answer {
        answer.extensions_mut().insert(self);
        answer
    }
}

/// An answer to a wrong token: it is to be late.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrongToken;

/// Why a request was not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    /// The event and the remedy, for a person.
    pub(super) detail: String,
    /// The methods that there are, for 405.
    pub(super) allow: Option<String>,
    /// A wrong token was shown: the answer is to be late.
    pub(super) is_guess: bool,
    /// For a browser: another page that may say more, and what to call it.
    pub(super) see: Option<(String, &'static str)>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem {
            status,
            detail: detail.into(),
            allow: None,
            is_guess: false,
            see: None,
        }
    }

    /// Later it may go better.
    pub(super) fn unavailable(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub(super) fn answer(&self) -> Answer {
        let value = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("problem"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut answer = json_as(self.status, "application/problem+json", &value);
        let headers = answer.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        let allow = self.allow.as_deref().map(HeaderValue::from_str);
        if let Some(Ok(allow)) = allow {
            headers.insert(ALLOW, allow);
        }
        answer
    }
}
