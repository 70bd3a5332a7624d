//! `/healthz`: does the loop turn? `/readyz`: would a put be taken, and has the archive a fault? A
//! member of a cluster is ready if it leads, or passes clients on to the leader.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;
use tokio::time::timeout;

use super::answer::{Answer, json};
use super::cluster;
use super::doorway::Closed;
use super::{ServerHandles, State};
use bsd::ErrorClass;
use bsd::door::{Slice, Step, Work};
use bsd::storage::Log;
use bsd::types::{SECOND_NS, Time};
use bsd_archive::Report;
use bsd_net::{Beat, Stage};

/// How long the loop may take to say whether it is ready.
const ASK_TIME: Duration = Duration::from_secs(2);

/// The pulse is looked at, nothing is asked: a loop that is stuck could not answer.
pub(super) fn health(handles: &ServerHandles) -> Answer {
    let beat = handles.pulse.beat(handles.clock.now().mono);
    match stuck(beat, handles.stuck_after) {
        None => json(StatusCode::OK, &json!({"status": "ok"})),
        Some(reason) => {
            let value = json!({"status": "stuck", "reasons": [reason]});
            json(StatusCode::SERVICE_UNAVAILABLE, &value)
        }
    }
}

/// Why the loop is taken for stuck.
fn stuck(beat: Beat, stuck_after: Duration) -> Option<String> {
    (beat.late > stuck_after)
        .then(|| format!("the loop has not turned for {} ms", beat.late.as_millis()))
}

/// All that stands against a put.
pub(super) async fn readiness(state: &State) -> Answer {
    let handles = &state.handles;
    let reports = handles.archives();
    let mut reasons = reasons(state).await;
    if reports.iter().any(|report| report.ended.is_some()) {
        reasons.push("the archive has ended; the server is stopping".to_owned());
    }
    if handles.is_archive_late() {
        let why = "the archive lacks what is older than --archive-lag-max: puts are refused";
        reasons.push(why.to_owned());
    }
    let mut warnings = all_warnings(&reports, handles.clock.now().mono);
    warnings.extend(cluster::unarchived(handles));
    let (status, mut value) = match reasons.is_empty() {
        true => (StatusCode::OK, json!({"status": "ready"})),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({"status": "not ready", "reasons": reasons}),
        ),
    };
    if !warnings.is_empty() {
        value["warnings"] = json!(warnings);
    }
    json(status, &value)
}

/// Troubles of all archives; of two it is said which.
fn all_warnings(reports: &[Report], now: Time) -> Vec<String> {
    if let [one] = reports {
        return warnings(one, now);
    }
    let named = reports.iter().zip(["first", "second"]);
    let told = named.flat_map(|(report, which)| {
        let said = warnings(report, now).into_iter();
        said.map(move |it| format!("{which} archive: {it}"))
    });
    told.collect()
}

/// Troubles of an archive. Puts are accepted nevertheless: the queue does not wait for the
/// archive, and a store that is away must not take all servers out of service. The asker may have
/// no token, so nothing of the store is told.
fn warnings(report: &Report, now: Time) -> Vec<String> {
    let lag_ns = report.lag_ns(now);
    let warnings = [
        report.is_damaged.then(|| {
            "an object of the archive is damaged, and nothing is put there until it is put right or \
             another archive is given"
                .to_owned()
        }),
        (report.trouble.is_some() && !report.is_damaged)
            .then(|| "the archive cannot be written; it is tried again".to_owned()),
        report.is_in_gap.then(|| in_gap(report)),
        report.is_late(now).then(|| {
            let (seconds, bytes) = (lag_ns / SECOND_NS, report.lag_bytes);
            format!("the archive is {seconds} s behind: {bytes} bytes are not in it")
        }),
    ];
    warnings.into_iter().flatten().collect()
}

/// Until a base is complete, new changes cannot be restored.
fn in_gap(report: &Report) -> String {
    let percent = report.base_percent();
    match report.figures.gaps {
        0 if report.figures.base_wall_ns > 0 => format!(
            "archive: next base {percent} %; until it is complete, what is new cannot be restored"
        ),
        0 => format!("archive: first base {percent} %; until it is complete, nothing is archived"),
        _ => format!(
            "the archive has a gap: what is new cannot be restored from it; archive: next base \
             {percent} %"
        ),
    }
}

async fn reasons(state: &State) -> Vec<String> {
    let handles = &state.handles;
    match handles.pulse.stage() {
        Stage::Starting => return vec![state.doorway.why_closed().to_string()],
        Stage::Reading => return vec![Closed::ReadingAgain.to_string()],
        Stage::Stopping => return vec!["the server is stopping".into()],
        Stage::Failed => return vec!["the disk failed; the server is ending".into()],
        Stage::Running => {}
    }
    if let Some(reason) = stuck(
        handles.pulse.beat(handles.clock.now().mono),
        handles.stuck_after,
    ) {
        return vec![reason];
    }
    if let Some(reason) = cluster::why_not_ready(handles) {
        return vec![reason];
    }
    let door = match state.doorway.get() {
        Ok(door) => door,
        Err(why) => return vec![why.to_string()],
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

/// Why the log has no room for a put, if it has none.
pub(super) fn no_room(log: &Log) -> Option<String> {
    let missing = log.missing_on_disk()?;
    Some(match log.lacking() {
        _ if !log.is_disk_full() => "no majority of the members has room on its disks".to_owned(),
        class @ ErrorClass::Descriptors => format!("{}: {}", class.lack(), class.relief()),
        class => format!("{}: {missing} bytes are missing", class.lack()),
    })
}

/// A look at the engine.
#[derive(Default)]
struct Look {
    reasons: Vec<String>,
}

impl Work for Look {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let engine = slice.engine();
        let reasons = [
            engine
                .is_draining()
                .then(|| "it drains: puts are refused".to_owned()),
            engine.log().and_then(no_room),
            engine
                .missing_in_memory()
                .map(|missing| format!("--max-memory is reached: {missing} bytes are missing")),
        ];
        self.reasons = reasons.into_iter().flatten().collect();
        Step::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bsd_archive::Figures;
    use bsd_archive::LAG_MAX_NS;

    #[test]
    fn each_thing_that_is_wrong_with_an_archive_is_a_warning() {
        let late = Time(LAG_MAX_NS + 1);
        let well = Report {
            has_all_of: Some(Time(0)),
            ..Report::default()
        };
        assert_eq!(warnings(&well, late), Vec::<String>::new());
        let behind = Report {
            lag_bytes: 7,
            ..well.clone()
        };
        assert_eq!(warnings(&behind, Time(LAG_MAX_NS)), Vec::<String>::new());
        let said = warnings(&behind, late);
        assert_eq!(said, ["the archive is 15 s behind: 7 bytes are not in it"]);
        let away = Report {
            trouble: Some("cannot put s3://bucket: secret".to_owned()),
            ..well.clone()
        };
        let said = warnings(&away, Time(0));
        assert_eq!(said.len(), 1);
        assert!(said[0].contains("cannot be written") && !said[0].contains("s3:"));
        let damaged = Report {
            is_damaged: true,
            ..away.clone()
        };
        let said = warnings(&damaged, Time(0));
        assert_eq!(said.len(), 1);
        assert!(said[0].contains("is damaged") && !said[0].contains("s3:"));
        let gap = Report {
            is_in_gap: true,
            figures: Figures {
                gaps: 1,
                ..Figures::default()
            },
            ..well.clone()
        };
        assert!(warnings(&gap, Time(0))[0].contains("gap"));
        let both = all_warnings(&[gap, away], Time(0));
        assert_eq!(both.len(), 2);
        assert!(both[0].starts_with("first archive: ") && both[0].contains("gap"));
        assert!(both[1].starts_with("second archive: ") && both[1].contains("written"));
    }

    #[test]
    fn g15_a_first_base_that_is_not_complete_is_said_with_how_far_it_is() {
        let report = Report {
            is_in_gap: true,
            has_all_of: Some(Time(0)),
            base: Some((43, 100)),
            ..Report::default()
        };
        let said = warnings(&report, Time(0));
        assert!(said[0].starts_with("archive: first base 43 %"), "{said:?}");
        // Another member has led before: what it archived can be restored.
        let moved = Report {
            figures: Figures {
                base_wall_ns: 1,
                ..Figures::default()
            },
            ..report
        };
        let said = warnings(&moved, Time(0));
        assert!(said[0].starts_with("archive: next base 43 %"), "{said:?}");
    }
}
