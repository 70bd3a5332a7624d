//! HTTP beside the protocol: when it is bound, when it answers, when it may ask the engine.

use std::net::SocketAddr;
use std::sync::Arc;

use bsd_archive::Reporter;
use bsd_archive::standby::Seat;
use bsd_http::Http;

use super::{Clock, Config, Failure, Gate, Lines, Pulse, Server};

pub(super) type BoundHttp = bsd_http::Bound;

/// Descriptors that HTTP keeps open: connections, the listener, and those for waiting.
pub(super) const HTTP_DESCRIPTORS: usize = bsd_http::DESCRIPTORS;

/// Certificates are those of the protocol.
pub(super) fn bind_http(config: &Config, gate: &Gate) -> Result<Option<BoundHttp>, Failure> {
    let Some(setup) = &config.http else {
        return Ok(None);
    };
    let bound = setup
        .bind()?
        .map(|bound| bound.with_guesses(gate.guesses()));
    Ok(bound.map(|bound| with_tls(bound, setup, gate)))
}

fn with_tls(bound: BoundHttp, setup: &bsd_http::Setup, gate: &Gate) -> BoundHttp {
    match setup.has_tls {
        true => bound.with_tls(gate.tls().cloned()),
        false => bound,
    }
}

pub(super) fn start_http(
    bound: Option<BoundHttp>,
    config: &Config,
    clock: Clock,
    pulse: &Arc<Pulse>,
    lines: &Lines,
    bodies_max: usize,
    (archives, standby, cluster): (Vec<Reporter>, Option<Seat>, Option<bsd_http::Desk>),
) -> Result<Option<Http>, Failure> {
    let setup = config.http.as_ref();
    let handles = bsd_http::ServerHandles {
        clock,
        pulse: pulse.clone(),
        stuck_after: bsd_http::STUCK_AFTER,
        lines: Some(lines.clone()),
        tubes_max: setup.map_or(0, |setup| setup.tubes_max),
        bodies_max,
        dir: config.dir.clone(),
        archives,
        standby,
        cluster,
    };
    bound
        .map(|bound| Http::start(bound, handles))
        .transpose()
        .map_err(|error| Failure::cannot("serve HTTP", error))
}

pub(super) fn http_address(http: &Http) -> SocketAddr {
    http.address()
}

/// Where it is bound, and whether it speaks TLS.
pub(super) fn http_seen_at(http: Option<&Http>, config: &Config) -> Option<(SocketAddr, bool)> {
    let has_tls = config.http.as_ref().is_some_and(|setup| setup.has_tls);
    http.map(|http| (http.address(), has_tls))
}

pub(super) fn open_http(http: Option<&Http>, server: &Server) {
    if let Some(http) = http {
        http.open(server.door());
    }
}
