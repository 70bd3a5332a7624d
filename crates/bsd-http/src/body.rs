//! The body of a request: how large it may be, how long it may take, and within which memory it is
//! read. It is read only after the guard has let the request in.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderMap};
use tokio::time::timeout;

use super::answer::Problem;
use super::places::{Held, REQUEST_TIME};
use super::route::{Role, Route};

/// Limits of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    size_max: usize,
    time: Duration,
}

/// Of a request that needed a token.
const KNOWN: Limit = Limit {
    size_max: 2 << 20,
    time: REQUEST_TIME,
};
/// Of a request of anyone: a token, and where to go with it.
const STRANGE: Limit = Limit {
    size_max: 8 << 10,
    time: Duration::from_secs(5),
};

impl Limit {
    pub(super) fn of(route: &Route) -> Limit {
        match route.role {
            Role::Anyone => STRANGE,
            Role::Read | Role::Admin => KNOWN,
        }
    }
}

/// Read a body.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Incoming,
    limit: Limit,
    held: &Held<'_>,
) -> Result<Vec<u8>, Problem> {
    let announced = headers.get(CONTENT_LENGTH).map(|size| size.to_str());
    let announced = announced.and_then(|size| size.ok()?.parse::<usize>().ok());
    if announced.is_some_and(|size| size > limit.size_max) {
        return Err(limit.too_large());
    }
    let bytes = Vec::with_capacity(announced.unwrap_or_default());
    match timeout(limit.time, limit.take(body, bytes, held)).await {
        Ok(read) => read,
        Err(_) => Err(limit.too_slow()),
    }
}

impl Limit {
    async fn take(
        self,
        mut body: Incoming,
        mut bytes: Vec<u8>,
        held: &Held<'_>,
    ) -> Result<Vec<u8>, Problem> {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let why = format!("the request broke off: {error}");
                Problem::new(StatusCode::BAD_REQUEST, why)
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if data.len() > self.size_max - bytes.len() {
                return Err(self.too_large());
            }
            if !held.grow(data.len()) {
                return Err(Problem::unavailable(
                    "requests over HTTP hold all the memory that they may; try again, or raise \
                     --max-memory",
                ));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    fn too_large(self) -> Problem {
        let why = format!(
            "a request to this path has {} bytes at most; put a larger job over the protocol",
            self.size_max
        );
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, why)
    }

    fn too_slow(self) -> Problem {
        Problem::unavailable(format!("it took more than {} seconds", self.time.as_secs()))
    }
}
