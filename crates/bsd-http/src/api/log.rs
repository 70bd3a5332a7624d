//! `/api/v1/log`: the files of the log, their damage, and the oldest job.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::checks;
use super::look::{archive_values, log_value};
use super::{gone, not_found, run};
use crate::answer::{Answer, Problem, json};
use crate::doorway::Doorway;
use crate::{State, cluster};
use bsd::door::{Slice, Step, Work};
use bsd::engine::{LogFigures, OldestJob, SegmentFigures};
use bsd::storage::SyncPolicy;
use bsd::storage::format::file_name;
use bsd::types::SegmentId;

/// Files of the log that are shown, the last ones: 200 µs of the loop at most.
pub(crate) const FILES_MAX: usize = 1000;

/// The log as it is now.
#[derive(Debug, Default)]
pub(crate) struct LogView {
    /// The last of its files, in their order.
    pub(crate) files: Vec<SegmentFigures>,
    /// The job that was put before all others that are there.
    pub(crate) oldest: Option<OldestJob>,
    figures: Option<LogFigures>,
}

impl Work for LogView {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let engine = slice.engine();
        self.files = engine.segments(FILES_MAX);
        self.oldest = engine.oldest_job();
        self.figures = engine.figures(slice.now()).log;
        Step::Done
    }
}

/// Look at the log.
pub(crate) async fn look(doorway: &Doorway) -> Result<LogView, Problem> {
    run(doorway, LogView::default()).await
}

/// `GET /api/v1/log`
pub(crate) async fn log(state: &State) -> Result<Answer, Problem> {
    let view = look(&state.doorway).await?;
    if state.handles.dir.is_none() {
        return Err(not_found(
            "the server keeps no log: jobs are in memory alone",
        ));
    }
    let figures = view.figures.as_ref().ok_or_else(gone)?;
    let mut value = log_value(figures);
    // A member syncs its ledger before a reply, and waits for the others'.
    let is_member = cluster::membership(&state.handles).is_some();
    let (policy, interval) = match figures.sync {
        _ if is_member => ("majority", None),
        SyncPolicy::Always => ("always", None),
        SyncPolicy::Interval(ms) => ("interval", Some(ms)),
        SyncPolicy::Never => ("never", None),
    };
    let left_out = figures.segments.saturating_sub(view.files.len() as u64);
    let (archive, archives) = archive_values(&state.handles);
    let parts = json!({
        "sync": policy,
        "sync_interval_ms": interval,
        "files": view.files.iter().map(file_value).collect::<Vec<_>>(),
        "files_left_out": left_out,
        "oldest_job": view.oldest.map(oldest_value),
        "archive": archive,
        "archives": archives,
        "checks": checks::value(&state.checks),
    });
    if let (Value::Object(all), Value::Object(parts)) = (&mut value, parts) {
        all.extend(parts);
    }
    Ok(json(StatusCode::OK, &value))
}

fn file_value(file: &SegmentFigures) -> Value {
    let damage = file.damage.iter();
    let damage = damage.map(|range| json!({"begin": range.start, "end": range.end}));
    json!({
        "name": file_name(SegmentId(file.first), file.generation),
        "first_segment": file.first,
        "last_segment": file.last,
        "rewritten": file.generation,
        "size": file.size,
        "live_bytes": file.size.saturating_sub(file.dead),
        "dead_bytes": file.dead,
        "damaged_bytes": file.damaged,
        "damage": damage.collect::<Vec<_>>(),
        "written_now": file.is_open,
    })
}

fn oldest_value(oldest: OldestJob) -> Value {
    json!({"id": oldest.id.0, "first_segment": oldest.segment.0})
}
