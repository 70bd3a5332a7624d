//! In the place of `cluster`, where that is not built in: this server is alone.

use super::answer::{Answer, Problem};
use super::api::fields::Fields;
use super::exposition::Page;
use super::{Membership, State};
use hyper::StatusCode;

/// There is none.
pub type Desk = std::convert::Infallible;

fn alone() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "this server is no member of a cluster: this build of it has none",
    )
}

pub(super) fn check_there(_: &State) -> Result<(), Problem> {
    Err(alone())
}

pub(super) fn show(_: &State) -> Result<Answer, Problem> {
    Err(alone())
}

pub(super) fn leader(_: &State) -> Result<Answer, Problem> {
    Err(alone())
}

pub(super) async fn steer(_: &State, _: &str, _: &Fields) -> Result<Answer, Problem> {
    Err(alone())
}

pub(super) fn check_leads(_: &State) -> Result<(), Problem> {
    Ok(())
}

pub(super) fn membership(_: &State) -> Option<Membership> {
    None
}

pub(super) fn why_not_ready(_: &State) -> Option<String> {
    None
}

pub(super) fn write_metrics(_: &mut Page, _: &State) {}
