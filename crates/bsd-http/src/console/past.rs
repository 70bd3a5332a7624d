//! `/jobs/ID/history`: what has happened to a job, as far as the log still holds it.

use std::sync::Arc;

use hyper::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::layout::{Frame, Place, facts};
use super::live::Live;
use super::subject::Subject;
use super::viewer::Viewer;
use super::{Asked, words};
use crate::State;
use crate::answer::{Answer, Problem};
use crate::api::{history, job_id};

pub(super) async fn page(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let id = job_id(&asked.captured)?.to_string();
    let value = history::read(state, &id, asked.asker).await?;
    let is_done = value["state"] == "done";
    let subject = Subject::History(id.clone());
    let content = html! {
        p class="lead" { (now(&value, &id)) }
        @if is_done { (timeline(&value)) } @else {
            (progress(&value, &Live::default()))
            p { a href=(path(&id)) { "Look again" } }
        }
    };
    let frame = Frame {
        place: Place::Elsewhere,
        title: subject.title(),
        events: (!is_done).then(|| subject.events()),
        viewer: Viewer::of(state, asked),
        content,
    };
    Ok(frame.answer(StatusCode::OK))
}

/// Where the history of a job is.
pub(super) fn path(id: &str) -> String {
    format!("/jobs/{id}/history")
}

/// The part that changes while the log is read.
pub(super) fn reading(state: &State, id: &str, live: &Live) -> Markup {
    let found = job_id(id).ok().and_then(|id| state.histories.look(id));
    match found {
        Some(value) => progress(&value, live),
        // It was told to someone else, or has ended.
        None => html! { (live.text("stage", "over")) },
    }
}

fn progress(value: &Value, live: &Live) -> Markup {
    let bytes = |name: &str| words::bytes(value[name].as_u64().unwrap_or(0));
    let state = value["state"].as_str().unwrap_or_default();
    let read = format!("{} of {}", bytes("read_bytes"), bytes("log_bytes"));
    facts(&[
        // When this changes the page is loaded again.
        ("The log", live.text("stage", state)),
        ("Read", live.text("read", read)),
    ])
}

fn now(value: &Value, id: &str) -> Markup {
    html! {
        @match value["now"].as_str().unwrap_or_default() {
            "gone" => { "Job " (id) " was deleted." }
            state => { a href=(format!("/jobs/{id}")) { "Job " (id) } " is " (state) " now." }
        }
    }
}

fn timeline(value: &Value) -> Markup {
    let none = Vec::new();
    let list = |name: &str| value[name].as_array().unwrap_or(&none);
    let (events, damage) = (list("events"), list("damage"));
    let left_out = value["left_out"].as_u64().unwrap_or(0);
    html! {
        @if events.is_empty() {
            p { "Nothing of it is left in the log: compaction has dropped its records." }
        } @else {
            ol class="timeline" {
                @for (nth, event) in events.iter().enumerate() {
                    li class=(event["event"].as_str().unwrap_or_default()) {
                        span class="when" { (when(event)) }
                        span { (event["what"].as_str().unwrap_or_default()) }
                        small {
                            (event["file"].as_str().unwrap_or_default()) " at byte "
                            (event["offset"]) ", " (words::bytes(event["size"].as_u64().unwrap_or(0)))
                            @if event["salvaged"] == true { ", out of a damaged frame" }
                        }
                    }
                    @if nth == 0 && left_out > 0 {
                        li class="left-out" { (words::count(left_out)) " records are left out here." }
                    }
                }
            }
        }
        p { small {
            "The log knows the time of puts alone: of what happened later it is said between which "
            "puts, of any jobs, that was. What compaction has merged into one record is told together."
        } }
        @for text in damage {
            p class="why" {
                "Damage: " (text.as_str().unwrap_or_default()) "; more about the job may have been there."
            }
        }
    }
}

fn when(event: &Value) -> String {
    match (event["after"].as_str(), event["before"].as_str()) {
        (Some(after), Some(before)) if after == before => after.to_owned(),
        (Some(after), Some(before)) => format!("between {after} and {before}"),
        (Some(after), None) => format!("after {after}"),
        (None, Some(before)) => format!("before {before}"),
        (None, None) => "at an unknown time".to_owned(),
    }
}
