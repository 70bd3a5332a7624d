//! `/tasks`: long work, how far it is; and, for one that has only counted, the question whether it
//! is to be done.

use std::sync::Arc;

use hyper::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::jobs::{self, Jobs, Manner};
use super::layout::{Frame, Place, facts, table};
use super::live::Live;
use super::subject::Subject;
use super::viewer::Viewer;
use super::{Asked, words};
use crate::State;
use crate::answer::{Answer, Problem};
use crate::api::undo::{HELD_MAX, UNDO_SECONDS};

/// All of them.
pub(super) fn content(state: &State, live: &Live) -> Markup {
    let listed = state.tasks.list().body().value();
    let none = Vec::new();
    let tasks = listed["tasks"].as_array().unwrap_or(&none);
    let head = html! {
        th scope="col" class="number" { "Task" }
        @for name in ["What", "State"] { th scope="col" { (name) } }
        @for name in ["Counted", "Changed", "Took"] { th scope="col" class="number" { (name) } }
    };
    let rows = html! {
        @for task in tasks {
            @let id = &task["id"];
            @let part = |name: &str| format!("task:{id}:{name}");
            tr {
                th scope="row" class="number" { a href=(format!("/tasks/{id}")) { (id) } }
                td { (sentence(task)) }
                td { (live.text(&part("state"), state_of(task))) }
                td class="number" { (live.text(&part("matched"), count(task, "matched"))) }
                td class="number" { (live.text(&part("changed"), count(task, "changed"))) }
                td class="number" { (live.text(&part("took"), took(task))) }
            }
        }
        @if tasks.is_empty() { tr { td colspan="6" { "No task. A tube's page begins them." } } }
    };
    let ids: Vec<String> = tasks.iter().map(|task| task["id"].to_string()).collect();
    html! {
        (live.listed(&ids.join(" ")))
        p { "Changes of many jobs. One that is over is kept for an hour." }
        (table("Tasks, the newest first", &head, &rows))
    }
}

/// One of them.
pub(super) async fn page(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let id = &asked.captured;
    let task = state.tasks.show(id)?.body().value();
    let none = Vec::new();
    let sample = task["sample"].as_array().filter(|_| is_question(&task));
    let sample = Jobs::look(state, sample.unwrap_or(&none)).await?;
    let subject = Subject::Task(id.clone());
    let viewer = Viewer::of(state, asked);
    let content = html! {
        (one(state, id, &Live::default()))
        @if let Some(word) = viewer.admin() { (offers(&task, &sample, word)) }
    };
    let frame = Frame {
        place: Place::Tasks,
        title: subject.title(),
        events: Some(subject.events()),
        viewer,
        content,
    };
    Ok(frame.answer(StatusCode::OK))
}

/// The part that changes.
pub(super) fn one(state: &State, id: &str, live: &Live) -> Markup {
    let Ok(found) = state.tasks.show(id) else {
        return html! {};
    };
    let task = found.body().value();
    let text = |name: &str| live.text(name, count(&task, name));
    html! {
        p class="lead" { (sentence(&task)) }
        (facts(&[
            // When this changes the page is loaded again.
            ("State", live.text("stage", state_of(&task))),
            ("Looked at", text("looked_at")),
            ("Counted", text("matched")),
            ("Changed", text("changed")),
            ("Skipped", text("skipped")),
            ("Bodies not read", text("unread")),
            ("Took", live.text("took", took(&task))),
        ]))
        @if let Some(reason) = task["reason"].as_str() { p class="why" { (reason) "." } }
        @if task["held"].is_u64() { (held(&task, live)) }
    }
}

/// What became of the jobs that were held back, or becomes of them.
fn held(task: &Value, live: &Live) -> Markup {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let left = task["undo_left_seconds"].as_f64().unwrap_or(0.0);
    let not = &task["not_returned"];
    let others = [
        (number(&not["gone"]), "deleted by someone else meanwhile"),
        (
            number(&not["changed"]),
            "kicked, reserved, moved or changed meanwhile, and left so",
        ),
        (
            number(&not["no_room"]),
            "left buried, as the disk has no room for the change",
        ),
    ];
    html! {
        @if task["state"] == "held" {
            p class="lead" {
                (live.text("held", count(task, "held"))) " jobs are held back: buried, where no worker is "
                "given them. They are deleted in " b { (live.text("left", words::seconds(left as u64))) } "."
            }
        } @else if number(&task["returned"]) > 0 || others.iter().any(|(jobs, _)| *jobs > 0) {
            p {
                (live.text("returned", words::counted(number(&task["returned"]), "job")))
                " brought back."
                @for (jobs, what) in others.iter().filter(|(jobs, _)| *jobs > 0) {
                    " " (words::counted(*jobs, "job")) ": " (what) "."
                }
            }
        }
    }
}

/// A box with which a delete can be undone.
pub(super) fn undo_asked() -> Markup {
    html! {
        label {
            input type="checkbox" name="undo" value="yes" checked;
            " can be undone for " (UNDO_SECONDS) " seconds"
        }
    }
}

/// It has only counted, and asks.
fn is_question(task: &Value) -> bool {
    task["state"] == "done" && task["dry_run"] == true && task["matched"] != 0
}

/// Forms that change it.
fn offers(task: &Value, sample: &Jobs<'_>, form_word: &str) -> Markup {
    let (id, state) = (&task["id"], task["state"].as_str().unwrap_or_default());
    let matched = task["matched"].as_u64().unwrap_or(0);
    let hidden = html! { input type="hidden" name="form" value=(form_word); };
    let manner = Manner {
        caption: "The first of them",
        none: "None.",
        has_tubes: true,
        ..Manner::default()
    };
    html! {
        @if state == "held" {
            form class="bar" method="post" action=(format!("/tasks/{id}/undo")) {
                (hidden)
                button { "Undo" }
                " "
                a href=(back(task)) { "Back to the tube" }
            }
        }
        @if ["counting", "running"].contains(&state) {
            form class="bar" method="post" action=(format!("/tasks/{id}/cancel")) {
                (hidden)
                button { "Cancel" }
            }
        }
        @if is_question(task) {
            section class="ask" aria-labelledby="ask" {
                h2 id="ask" { (question(task)) }
                p {
                    "Nothing has been changed so far. The task that does it counts again when it "
                    "begins, and changes nothing if there are more jobs by then."
                }
                form class="bar" method="post" action=(format!("/tasks/{id}/run")) {
                    (hidden)
                    input type="hidden" name="most" value=(matched);
                    @if task["action"] == "delete" && matched <= HELD_MAX { (undo_asked()) }
                    button class="danger" {
                        (capital(verb(task))) " " (words::counted(matched, "job"))
                    }
                    " "
                    a href=(back(task)) { "No, go back" }
                }
                @if task["action"] == "delete" && matched > HELD_MAX {
                    p {
                        "They are more than the " (words::count(HELD_MAX)) " that can be held back: they "
                        "are deleted at once, and that cannot be undone."
                    }
                }
            }
            @if !sample.is_empty() { (jobs::list(sample, manner)) }
        }
        @if state == "done" && task["dry_run"] != true {
            p { a href=(back(task)) { "Back to the tube" } }
        }
        @if ["failed", "undone"].contains(&state) { p { a href=(back(task)) { "Back to the tube" } } }
        @if state == "done" && task["dry_run"] == true && matched == 0 {
            p { "There is no such job. " a href=(back(task)) { "Back" } }
        }
    }
}

fn back(task: &Value) -> String {
    let tube = task["filter"]["tube"].as_str().unwrap_or_default();
    let path = match tube.contains(['*', '?']) {
        true => "/tubes".to_owned(),
        false => format!("/tubes/{}", words::escaped(tube)),
    };
    let states = task["filter"]["states"].as_array();
    let only = states.filter(|states| states.len() == 1);
    match only
        .filter(|_| !tube.contains(['*', '?']))
        .and_then(|states| states[0].as_str())
    {
        Some(state) => format!("{path}?state={state}#jobs"),
        None => path,
    }
}

fn verb(task: &Value) -> &str {
    match task["action"].as_str().unwrap_or_default() {
        "priority" => "reprioritise",
        "redrive" => "send back",
        other => other,
    }
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_ascii_uppercase() + rest
}

fn question(task: &Value) -> String {
    let jobs = words::counted(task["matched"].as_u64().unwrap_or(0), "job");
    format!("{} {jobs}{}?", capital(verb(task)), whose(task))
}

/// Description of a task.
fn sentence(task: &Value) -> String {
    let begin = match task["dry_run"] == true {
        true => format!("Count, to {}:", verb(task)),
        false => capital(verb(task)),
    };
    format!("{begin} jobs{}.", whose(task))
}

fn whose(task: &Value) -> String {
    let filter = &task["filter"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let states = filter["states"]
        .as_array()
        .map(|states| states.iter().map(text));
    let states: Vec<String> = states.map(Iterator::collect).unwrap_or_default();
    let mut whose = format!(
        " of {} that are {}",
        text(&filter["tube"]),
        states.join(" or ")
    );
    if let Some(ids) = filter["ids"].as_array() {
        whose.push_str(&format!(", of the {} selected", ids.len()));
    }
    if let Some(reason) = filter["reason"].as_str() {
        whose.push_str(&format!(", with the reason {reason}"));
    }
    if let Some(from) = filter["dead_lettered_from"].as_str() {
        whose.push_str(&format!(", dead letters of {from}"));
    }
    if let Some(said) = filter["text"]["data"].as_str() {
        whose.push_str(&format!(", of which a worker said “{said}”"));
    }
    if let Some(contains) = filter["contains"]["data"].as_str() {
        whose.push_str(&format!(", with “{contains}” in their bodies"));
    }
    let bounds = [
        ("age_min_seconds", "at least", "seconds old"),
        ("age_max_seconds", "at most", "seconds old"),
        ("priority_min", "with a priority of at least", ""),
        ("priority_max", "with a priority of at most", ""),
        ("id_min", "with an id of at least", ""),
        ("id_max", "with an id of at most", ""),
    ];
    for (name, before, behind) in bounds {
        if let Some(number) = filter[name].as_u64() {
            let behind = if behind.is_empty() {
                String::new()
            } else {
                format!(" {behind}")
            };
            whose.push_str(&format!(", {before} {number}{behind}"));
        }
    }
    if let Some(to) = task["to"].as_str() {
        whose.push_str(&format!(", into {to}"));
        whose.push_str(if task["kick"] == true {
            ", to be ready there"
        } else {
            ""
        });
    }
    for (name, before, behind) in [
        ("delay", "for", "seconds"),
        ("priority", "to", ""),
        ("rate", "at", "a second"),
    ] {
        if let Some(number) = task[name].as_u64() {
            whose.push_str(format!(", {before} {number} {behind}").trim_end());
        }
    }
    whose
}

fn state_of(task: &Value) -> String {
    task["state"].as_str().unwrap_or_default().to_owned()
}

fn count(task: &Value, name: &str) -> String {
    words::count(task[name].as_u64().unwrap_or(0))
}

fn took(task: &Value) -> String {
    words::time(task["took_seconds"].as_f64().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_question_says_which_jobs_and_how_many() {
        let task = json!({
            "action": "move", "dry_run": true, "matched": 1200, "to": "b", "kick": true, "rate": 5,
            "filter": {"tube": "a", "states": ["buried", "delayed"], "contains": {"data": "x"},
                "age_min_seconds": 60},
        });
        assert_eq!(
            question(&task),
            "Move 1,200 jobs of a that are buried or delayed, with “x” in their bodies, at least \
             60 seconds old, into b, to be ready there, at 5 a second?"
        );
        let task = json!({
            "action": "kick", "dry_run": true, "matched": 2,
            "filter": {"tube": "a", "states": ["buried"], "ids": [3, 5, 7]},
        });
        assert_eq!(
            question(&task),
            "Kick 2 jobs of a that are buried, of the 3 selected?"
        );
        let task = json!({
            "action": "delete", "dry_run": false, "matched": 1,
            "filter": {"tube": "a", "states": ["ready"]},
        });
        let some = json!({
            "action": "redrive", "dry_run": true, "matched": 2,
            "filter": {"tube": "a", "states": ["ready"], "reason": "ttr", "dead_lettered_from": "b",
                "text": {"data": "x"}},
        });
        assert_eq!(
            question(&some),
            "Send back 2 jobs of a that are ready, with the reason ttr, dead letters of b, of which a \
             worker said “x”?"
        );
        assert_eq!(question(&task), "Delete 1 job of a that are ready?");
        assert_eq!(sentence(&task), "Delete jobs of a that are ready.");
    }
}
