//! `/api/v1/standby`: how far a standby is, and the word that has it take over.
//!
//! Nothing is asked of the engine: the engine of a standby has no clients.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::fields::Fields;
use crate::State;
use crate::answer::{Answer, Problem, Said, json};
use bsd::clock::utc;
use bsd::types::SECOND_NS;
use bsd_archive::format::log_name;
use bsd_archive::standby::{Seat, StandbyReport};

/// State of the standby.
pub(crate) fn show(state: &State) -> Result<Answer, Problem> {
    Ok(json(StatusCode::OK, &value(state, &seat(state)?.report())))
}

/// From now on it takes over as soon as it can; with `force` also if that gives up what another server
/// has done. Said a second time, it changes nothing.
pub(crate) fn promote(state: &State, fields: &Fields) -> Result<Answer, Problem> {
    fields.only(&["force"])?;
    let seat = seat(state)?;
    seat.promote(fields.flag("force")?);
    let answer = json(StatusCode::ACCEPTED, &value(state, &seat.report()));
    Ok(Said("it takes over".to_owned()).with(answer))
}

fn seat(state: &State) -> Result<&Seat, Problem> {
    let seat = state.handles.standby.as_ref();
    seat.ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "this server is no standby: it was not started with --follow",
        )
    })
}

fn value(state: &State, report: &StandbyReport) -> Value {
    let now = state.handles.clock.now().mono;
    let behind = report.current_at.map(|at| now.since(at).max(0) / SECOND_NS);
    let restoring = report
        .restoring
        .map(|(done, total)| json!({"done": done, "total": total}));
    json!({
        "promoted": report.is_promoted,
        "serves": state.doorway.is_open(),
        "log": report.log.map(log_name),
        "position": report.at.map(|at| at.to_string()),
        "durable_at": report.at.map(|_| utc(report.wall_ns)),
        "seconds_since_current": behind,
        "jobs": report.jobs,
        "links": report.figures.links,
        "records": report.figures.records,
        "restores": report.figures.restores,
        "restoring": restoring,
        "trouble": report.trouble,
        "refused": report.refused,
    })
}
