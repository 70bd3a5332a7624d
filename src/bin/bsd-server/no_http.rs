//! In the place of `http`, where that is not built in.

use bsd::archive::Reporter;

use super::{Arc, Clock, Config, Failure, Gate, Lines, Pulse, Server};

pub(super) type BoundHttp = std::convert::Infallible;

pub(super) const HTTP_DESCRIPTORS: usize = 0;

pub(super) fn bind_http(_: &Config, _: &Gate) -> Result<Option<BoundHttp>, Failure> {
    Ok(None)
}

pub(super) fn start_http(
    _: Option<BoundHttp>,
    _: &Config,
    _: Clock,
    _: &Arc<Pulse>,
    _: &Lines,
    _: usize,
    _: (
        Option<Reporter>,
        Option<bsd::archive::standby::Seat>,
        Option<impl Sized>,
    ),
) -> Result<Option<BoundHttp>, Failure> {
    Ok(None)
}

pub(super) fn http_address(http: &BoundHttp) -> std::net::SocketAddr {
    match *http {}
}

pub(super) fn http_seen_at(
    _: Option<&BoundHttp>,
    _: &Config,
) -> Option<(std::net::SocketAddr, bool)> {
    None
}

pub(super) fn open_http(_: Option<&BoundHttp>, _: &Server) {}
