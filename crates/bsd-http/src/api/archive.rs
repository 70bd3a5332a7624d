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

/// The last base that was asked for, of each archive.
pub(crate) fn show(state: &State) -> Result<Answer, Problem> {
    let now = state.handles.clock.now().mono;
    let last = |it: &Reporter| Some((it.place().to_owned(), it.orders().last(now)?));
    let all: Vec<_> = reporters(state)?.iter().filter_map(last).collect();
    let answer = values(&all);
    let answer = answer.ok_or_else(|| not_found("no base was asked for since the server began"))?;
    Ok(json(StatusCode::OK, &answer))
}

/// Ask for one, of each archive or of the one that is named. It is made as soon as no other one of that
/// archive is under way. If one of them has another order, none is asked.
pub(crate) fn ask(state: &State, fields: &Fields) -> Result<Answer, Problem> {
    fields.only(&["name", "pin", "url"])?;
    let name = match fields.text("name")? {
        None => None,
        Some(text) => Some(BaseName::parse(text).ok_or_else(|| bad(BaseName::RULE))?),
    };
    let order = Order {
        name,
        is_pinned: fields.flag("pin")?,
    };
    let (all, now) = (reporters(state)?, state.handles.clock.now());
    let chosen: Vec<_> = match fields.text("url")? {
        None => all.iter().collect(),
        Some(url) => vec![named(all, url)?],
    };
    let mut last = chosen.iter().filter_map(|it| it.orders().last(now.mono));
    if let Some(other) = last.find(|it| !it.is_over()) {
        return Err(under_way(&other));
    }
    let said = in_words(&order);
    let asked = chosen.into_iter().map(|it| {
        let ordered = it.orders().ask(order.clone(), now);
        ordered.map(|ordered| (it.place().to_owned(), ordered))
    });
    // Another request may have come first, at the same moment.
    let asked: Result<Vec<_>, Ordered> = asked.collect();
    let asked = asked.map_err(|other| under_way(&other))?;
    let answer = json(StatusCode::ACCEPTED, &values(&asked).unwrap_or_default());
    Ok(Said(format!("{said} is asked for")).with(answer))
}

fn under_way(other: &Ordered) -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        format!(
            "{} was asked for before and is not complete: ask again when it is",
            in_words(&other.order)
        ),
    )
}

/// The one at this address, as `/api/v1/server` shows it.
fn named<'a>(all: &'a [Reporter], url: &str) -> Result<&'a Reporter, Problem> {
    all.iter().find(|it| it.place() == url).ok_or_else(|| {
        let places: Vec<_> = all.iter().map(Reporter::place).collect();
        bad(format!(
            "the server has no archive at this address, but at {}",
            places.join(" and ")
        ))
    })
}

fn reporters(state: &State) -> Result<&[Reporter], Problem> {
    let handles = &state.handles;
    if handles.archives.is_empty() {
        let why = "the server keeps no archive of its log; start it with --archive URL for one";
        return Err(not_found(why));
    }
    match handles.archives().is_empty() {
        false => Ok(&handles.archives),
        true => Err(Problem::new(
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

/// The first, and all; `None`: there is no order.
fn values(all: &[(String, Ordered)]) -> Option<Value> {
    let all: Vec<_> = all.iter().map(|(url, it)| value(url, it)).collect();
    let mut answer = all.first()?.clone();
    answer["archives"] = all.into();
    Some(answer)
}

fn value(url: &str, ordered: &Ordered) -> Value {
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
        "url": url,
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
