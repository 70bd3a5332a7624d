//! `GET /api/v1/ranking`: tubes, those first that have the most of something. Made of the figures
//! of a scrape: no job is looked at.

use std::cmp::Reverse;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::filter::pattern;
use super::look::{LIMIT_DEFAULT, tube_value};
use super::trouble::OfTube;
use crate::State;
use crate::answer::{Answer, Problem, json};
use crate::exposition::seconds;
use crate::query::Query;
use crate::snapshot::TubeFigures;
use bsd::attributes::Reason;
use bsd::engine::Figures;

/// What tubes may be sorted by.
pub(crate) const SORTS: &[&str] = &[
    "name", "ready", "urgent", "delayed", "reserved", "buried", "waiting", "watchers", "total",
    "age", "failures",
];
/// Tubes of an answer at most.
pub(crate) const TUBES_MAX: u64 = 1000;

/// `GET /api/v1/ranking`
pub(crate) async fn ranking(state: &State, query: &Query) -> Result<Answer, Problem> {
    let limit = query.number("limit", 1, TUBES_MAX)?;
    let limit = limit.map_or(LIMIT_DEFAULT, |limit| limit as usize);
    let tubes = query.text("tube").map(pattern).transpose()?;
    let sort = query.text("sort").unwrap_or("ready");
    if !SORTS.contains(&sort) {
        return Err(super::bad(format!("sort is one of {SORTS:?}")));
    }
    let snapshot = state.snapshots.renew(state).await?;
    let snapshot = snapshot.ok_or_else(|| Problem::unavailable("the loop does not answer"))?;
    let rise = state.past.rise(&snapshot);
    let is_meant = |name: &str| tubes.as_ref().is_none_or(|tubes| tubes.matches(name));
    let found = snapshot.kept_tubes().filter(|(name, _)| is_meant(name));
    let mut found: Vec<_> = found
        .map(|(name, tube)| (key(sort, tube, rise.of_tube(name)), name, tube))
        .collect();
    found.sort_unstable_by_key(|(key, name, _)| (Reverse(*key), *name));
    let more = found.len().saturating_sub(limit);
    found.truncate(limit);
    let values = found
        .iter()
        .map(|(_, name, tube)| value(name, tube, rise.of_tube(name)));
    let value = json!({
        "tubes": values.collect::<Vec<_>>(),
        "more": more,
        "span_seconds": seconds(rise.span_ns),
        "totals": totals_value(&snapshot.figures),
    });
    Ok(json(StatusCode::OK, &value))
}

/// What has happened in all tubes together, those that are gone included.
fn totals_value(figures: &Figures) -> Value {
    let (events, queue) = (&figures.events, &figures.queue);
    json!({
        "puts": queue.total_jobs,
        "reserves": events.reserves,
        "deletes": events.deletes,
        "releases": events.releases,
        "buries": events.buries,
        "kicks": events.kicks,
        "timeouts": events.timeouts,
        "fails": queue.failures.by_reason[Reason::Failed as usize],
    })
}

fn key(sort: &str, tube: &TubeFigures, recent: OfTube) -> u64 {
    match sort {
        "ready" => tube.jobs.ready,
        "urgent" => tube.jobs.urgent,
        "delayed" => tube.jobs.delayed,
        "reserved" => tube.jobs.reserved,
        "buried" => tube.jobs.buried,
        "waiting" => tube.waiting,
        "watchers" => tube.watching,
        "total" => tube.puts,
        "age" => tube.oldest_ready_ns.unsigned_abs(),
        "failures" => recent.failures,
        _ => 0,
    }
}

fn value(name: &str, tube: &TubeFigures, recent: OfTube) -> Value {
    let failures = tube.failures.as_deref().copied().unwrap_or_default();
    let mut value = tube_value(name, tube);
    value["failures"] = failures.by_reason.iter().sum::<u64>().into();
    value["set_aside"] = failures.set_aside.into();
    value["puts_refused"] = failures.puts_refused.into();
    value["recent_failures"] = recent.failures.into();
    value
}
