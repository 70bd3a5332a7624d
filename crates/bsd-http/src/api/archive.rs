//! `/api/v1/archive/base`: a base of the archive that is asked for, and how far it is.
//!
//! Nothing is asked of the engine: the thread of the archive makes it beside the queue.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::fields::Fields;
use super::{bad, not_found};
use crate::State;
use crate::answer::{Answer, Problem, Said, json};
use bsd::clock::utc;
use bsd_archive::Reporter;
use bsd_archive::format::BaseName;
use bsd_archive::order::{Made, Order, Ordered, Stage};

/// Where an order is, as the API says it.
pub(crate) const STAGES: [&str; 4] = ["waiting", "making", "made", "refused"];

/// The last base that was asked for.
pub(crate) fn show(state: &State) -> Result<Answer, Problem> {
    let reporter = reporter(state)?;
    let last = reporter.orders().last(state.handles.clock.now().mono);
    let last = last.ok_or_else(|| not_found("no base was asked for since the server began"))?;
    Ok(json(StatusCode::OK, &value(&last)))
}

/// Ask for one. It is made as soon as no other one is under way.
pub(crate) fn ask(state: &State, fields: &Fields) -> Result<Answer, Problem> {
    fields.only(&["name", "pin"])?;
    let name = match fields.text("name")? {
        None => None,
        Some(text) => Some(BaseName::parse(text).ok_or_else(|| bad(BaseName::RULE))?),
    };
    let order = Order {
        name,
        is_pinned: fields.flag("pin")?,
    };
    let orders = reporter(state)?.orders();
    let said = in_words(&order);
    match orders.ask(order, state.handles.clock.now()) {
        Ok(ordered) => {
            let answer = json(StatusCode::ACCEPTED, &value(&ordered));
            Ok(Said(format!("{said} is asked for")).with(answer))
        }
        Err(other) => Err(Problem::new(
            StatusCode::CONFLICT,
            format!(
                "{} was asked for before and is not complete: ask again when it is",
                in_words(&other.order)
            ),
        )),
    }
}

fn reporter(state: &State) -> Result<&Reporter, Problem> {
    let handles = &state.handles;
    let reporter = handles.archive.as_ref();
    let reporter = reporter.ok_or_else(|| {
        not_found("the server keeps no archive of its log; start it with --archive URL for one")
    })?;
    match handles.archive() {
        Some(_) => Ok(reporter),
        None => Err(Problem::new(
            StatusCode::CONFLICT,
            "this is a standby: the server that it follows writes the archive, and makes its bases",
        )),
    }
}

fn in_words(order: &Order) -> String {
    let name = order.name.as_ref();
    let name = name.map_or("a base".to_owned(), |name| format!("the base {name}"));
    match order.is_pinned {
        true => format!("{name}, pinned,"),
        false => name,
    }
}

fn value(ordered: &Ordered) -> Value {
    let made: Option<&Made> = match &ordered.stage {
        Stage::Made(made) => Some(made),
        _ => None,
    };
    let refused = match &ordered.stage {
        Stage::Refused(why) => Some(why),
        _ => None,
    };
    let stage = match ordered.stage {
        Stage::Waiting => 0,
        Stage::Making => 1,
        Stage::Made(_) => 2,
        Stage::Refused(_) => 3,
    };
    json!({
        "order": ordered.nth,
        "state": STAGES[stage],
        "name": ordered.order.name.as_ref().map(BaseName::as_str),
        "pin": ordered.order.is_pinned,
        "asked_at": utc(ordered.asked_wall_ns),
        "seconds": ordered.took_ns as f64 / 1e9,
        "base": made.map(|made| made.base),
        "position": made.map(|made| made.end.to_string()),
        "made_at": made.map(|made| utc(made.wall_ns)),
        "bytes": made.map(|made| made.size),
        "reused_bytes": made.map(|made| made.reused),
        "refused": refused,
    })
}
