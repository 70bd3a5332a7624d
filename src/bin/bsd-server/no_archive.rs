//! In the place of `archive`, where that is not built in.

use super::{Clock, Config, Engine, Failure, Options, ServiceManager};

/// There is none of it.
type Nothing = Option<std::convert::Infallible>;

pub(super) fn open_store(_: &Config) -> Result<Nothing, Failure> {
    Ok(None)
}

pub(super) fn restore_if_empty(
    _: &Config,
    _: Option<&std::convert::Infallible>,
    _: Clock,
) -> Result<(), Failure> {
    Ok(())
}

pub(super) fn reporter(_: &Config) -> Option<bsd::archive::Reporter> {
    None
}

pub(super) fn seat(_: &Config) -> Option<bsd::archive::standby::Seat> {
    None
}

pub(super) fn follow(
    _: &Config,
    _: Option<&std::convert::Infallible>,
    _: &Options,
    _: Option<&bsd::archive::standby::Seat>,
    _: &mut ServiceManager,
    _: Clock,
) -> Result<Option<Engine>, Failure> {
    Ok(None)
}

pub(super) fn hold(_: &Config, _: &mut Engine) -> Nothing {
    None
}

pub(super) fn start_archive(
    _: &Config,
    _: Nothing,
    _: Nothing,
    _: Clock,
    _: Option<bsd::archive::Reporter>,
) -> Result<Nothing, Failure> {
    Ok(None)
}

pub(super) fn end_archive(_: Nothing) -> Result<(), Failure> {
    Ok(())
}
