//! In the place of `cluster`, where that is not built in.

use super::{Clock, Config, Engine, Failure, Options, Reactor, Server};

/// There is none of it.
type Nothing = Option<std::convert::Infallible>;

pub(super) fn bind_peers(_: &Config) -> Result<Nothing, Failure> {
    Ok(None)
}

pub(super) fn cluster_desk(_: &Config, _: &Reactor) -> Nothing {
    None
}

pub(super) fn open_member(
    _: &Config,
    _: Nothing,
    _: &Options,
    _: &Reactor,
    (_, _): (
        Option<&std::convert::Infallible>,
        Option<(std::net::SocketAddr, bool)>,
    ),
    _: Clock,
) -> Result<Option<(std::convert::Infallible, Engine)>, Failure> {
    Ok(None)
}

pub(super) fn seat_member(server: Server, _: Nothing) -> Server {
    server
}
