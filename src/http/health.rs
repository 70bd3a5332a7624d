//! `/healthz`: does the loop turn? `/readyz`: would a put be taken?

use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;
use tokio::time::timeout;

use super::State;
use super::answer::{Answer, json};
use crate::door::{Slice, Step, Work};
use crate::server::{Beat, Stage};

/// How long the loop may take to say whether it is ready.
const ASK_TIME: Duration = Duration::from_secs(2);

/// The pulse is looked at, nothing is asked: a loop that is stuck could not answer.
pub(super) fn health(state: &State) -> Answer {
    let sight = &state.sight;
    let beat = sight.pulse.beat(sight.clock.now().mono);
    match stuck(beat, sight.stuck_after) {
        None => json(StatusCode::OK, &json!({"status": "ok"})),
        Some(reason) => {
            let value = json!({"status": "stuck", "reasons": [reason]});
            json(StatusCode::SERVICE_UNAVAILABLE, &value)
        }
    }
}

/// True while a question to the loop would not be answered.
pub(super) fn is_stuck(state: &State) -> bool {
    let sight = &state.sight;
    sight.pulse.beat(sight.clock.now().mono).late > sight.stuck_after
}

/// Why the loop is taken for stuck.
fn stuck(beat: Beat, stuck_after: Duration) -> Option<String> {
    (beat.late > stuck_after)
        .then(|| format!("the loop has not turned for {} ms", beat.late.as_millis()))
}

/// All that stands against a put.
pub(super) async fn readiness(state: &State) -> Answer {
    let reasons = reasons(state).await;
    match reasons.is_empty() {
        true => json(StatusCode::OK, &json!({"status": "ready"})),
        false => {
            let value = json!({"status": "not ready", "reasons": reasons});
            json(StatusCode::SERVICE_UNAVAILABLE, &value)
        }
    }
}

async fn reasons(state: &State) -> Vec<String> {
    let sight = &state.sight;
    match sight.pulse.stage() {
        Stage::Starting => return vec!["the log is being replayed".into()],
        Stage::Stopping => return vec!["the server is stopping".into()],
        Stage::Failed => return vec!["the disk failed; the server is ending".into()],
        Stage::Running => {}
    }
    if let Some(reason) = stuck(sight.pulse.beat(sight.clock.now().mono), sight.stuck_after) {
        return vec![reason];
    }
    let Some(door) = state.door.get() else {
        return vec!["the log is being replayed".into()];
    };
    match timeout(ASK_TIME, door.start(Look::default())).await {
        Ok(Ok(look)) => look.reasons,
        Ok(Err(error)) => vec![error.to_string()],
        Err(_) => vec![format!(
            "the loop has not answered for {} ms",
            ASK_TIME.as_millis()
        )],
    }
}

/// A look at the engine.
#[derive(Default)]
struct Look {
    reasons: Vec<String>,
}

impl Work for Look {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let engine = slice.engine();
        let log = engine.log();
        let disk = log.and_then(|log| log.missing_on_disk());
        let reasons = [
            engine
                .is_draining()
                .then(|| "it drains: puts are refused".to_owned()),
            disk.map(|missing| format!("the disk is full: {missing} bytes are missing")),
            engine
                .missing_in_memory()
                .map(|missing| format!("--max-memory is reached: {missing} bytes are missing")),
        ];
        self.reasons = reasons.into_iter().flatten().collect();
        Step::Done
    }
}
