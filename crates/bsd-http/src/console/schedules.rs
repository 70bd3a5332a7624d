//! `/schedules`: what is put by itself, and when; `/schedules/NAME`: one schedule, and the forms that
//! change it; and the part of a tube's page about those that put into it.

use std::sync::Arc;

use hyper::StatusCode;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::layout::{Frame, Place, facts, table};
use super::viewer::Viewer;
use super::{Asked, SAID, body, words};
use crate::State;
use crate::answer::{Answer, Problem};
use crate::api::schedules::{self, Found, MISSED};
use crate::route::Parameter;

pub(super) const PARAMETERS: &[Parameter] =
    &[Parameter::text("after", "Only schedules behind this"), SAID];

/// Schedules of a page.
const LIMIT: usize = 100;

/// The path of a schedule's page, or of what is below it.
pub(super) fn path(name: &str, below: &str) -> String {
    format!("/schedules/{}{below}", words::escaped(name))
}

/// A page of them, by their names.
pub(super) async fn list(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let after = asked.query.text("after").unwrap_or_default();
    let listed = schedules::look_at_list(&state.doorway, after, None, LIMIT).await?;
    let viewer = Viewer::of(state, asked);
    let content = html! {
        p { "A schedule puts a job at the times that it says. They are as when this page was loaded." }
        (table_of(&listed, true))
        @if let Some(last) = listed["next"].as_str() {
            nav class="pages" aria-label="Pages of the list" {
                ul {
                    li { a href="/schedules" { "From the first" } }
                    li {
                        a href=(format!("/schedules?after={}", words::escaped(last))) rel="next" {
                            "Next"
                        }
                    }
                }
            }
        }
        @if let Some(word) = viewer.admin() {
            section class="forms" aria-labelledby="forms" {
                h2 id="forms" { "New" }
                details { summary { "Set a schedule" } (set_form(None, word)) }
            }
        }
    };
    Ok(frame("Schedules".into(), viewer, content))
}

fn frame(title: String, viewer: Viewer, content: Markup) -> Answer {
    let frame = Frame {
        place: Place::Schedules,
        title,
        events: None,
        viewer,
        content,
    };
    frame.answer(StatusCode::OK)
}

/// The part of a tube's page about the schedules that put into it; nothing without schedules.
pub(super) fn of_tube(listed: &Value) -> Markup {
    let are_there = listed["schedules"]
        .as_array()
        .is_some_and(|them| !them.is_empty());
    html! {
        @if are_there {
            section aria-labelledby="schedules" {
                h2 id="schedules" { "Schedules" }
                (table_of(listed, false))
                @if listed["next"].is_string() {
                    p { "These are the first. " a href="/schedules" { "All schedules" } }
                }
            }
        }
    }
}

fn table_of(listed: &Value, with_tubes: bool) -> Markup {
    let none = Vec::new();
    let schedules = listed["schedules"].as_array().unwrap_or(&none);
    let head = html! {
        @for name in ["Schedule", "When"] { th scope="col" { (name) } }
        @if with_tubes { th scope="col" { "Tube" } }
        @for name in ["Fired up to", "Next five times"] { th scope="col" { (name) } }
    };
    let rows = html! {
        @for schedule in schedules {
            @let name = text(&schedule["name"]);
            tr {
                th scope="row" {
                    a href=(path(name, "")) { (name) }
                    @if schedule["paused"] == true { " " span class="mark delayed" { "paused" } }
                }
                td { code { (text(&schedule["cron"])) } " " small { (text(&schedule["tz"])) } }
                @if with_tubes { td { (tube_link(text(&schedule["tube"]))) } }
                td { (fired(schedule)) }
                td { (next_times(schedule)) }
            }
        }
        @if schedules.is_empty() { tr { td colspan="5" { "No schedule is set." } } }
    };
    table("Schedules, by their names", &head, &rows)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn tube_link(name: &str) -> Markup {
    html! { a href=(format!("/tubes/{}", words::escaped(name))) { (name) } }
}

fn fired(schedule: &Value) -> Markup {
    html! {
        @match schedule["fired_up_to"].as_str() {
            Some(at) => time datetime=(at) { (at) },
            None => "–",
        }
    }
}

fn next_times(schedule: &Value) -> Markup {
    let times = schedule["next_firings"].as_array();
    let times = times.map_or(&[][..], Vec::as_slice);
    html! {
        @if times.is_empty() { "never" } @else {
            ul class="times" {
                @for at in times.iter().map(text) { li { time datetime=(at) { (at) } } }
            }
        }
    }
}

/// `/schedules/NAME`
pub(super) async fn one(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let found = schedules::look(&state.doorway, asked.captured.clone()).await?;
    let viewer = Viewer::of(state, asked);
    let content = html! {
        (about(&found.value))
        section aria-labelledby="next" {
            h2 id="next" { "Next five times" }
            @if found.value["paused"] == true {
                p { "It is paused: at these times nothing is put, unless it is resumed before." }
            }
            (next_times(&found.value))
        }
        section aria-labelledby="body" {
            h2 id="body" { "Body of its jobs" }
            (body::shown(&found.body, false, "Body"))
        }
        @if let Some(word) = viewer.admin() { (forms(&found, word)) }
    };
    Ok(frame(
        format!("Schedule {}", asked.captured),
        viewer,
        content,
    ))
}

fn about(schedule: &Value) -> Markup {
    let plain = |name: &str| html! { (schedule[name].as_str().unwrap_or("–")) };
    let state = html! {
        @if schedule["paused"] == true { span class="mark delayed" { "paused" } } @else { "on" }
    };
    facts(&[
        ("State", state),
        ("When", html! { code { (text(&schedule["cron"])) } }),
        ("Time zone", plain("tz")),
        ("Tube", tube_link(text(&schedule["tube"]))),
        ("Fired up to", fired(schedule)),
        ("If late", plain("missed")),
        ("Key", plain("key")),
        ("Priority", html! { (schedule["priority"]) }),
        (
            "Time to run",
            html! { (words::seconds(schedule["ttr"].as_u64().unwrap_or(0))) },
        ),
        (
            "Size",
            html! { (words::bytes(schedule["body_size"].as_u64().unwrap_or(0))) },
        ),
    ])
}

/// Forms that change it.
fn forms(found: &Found, form_word: &str) -> Markup {
    let name = text(&found.value["name"]);
    let hidden = html! { input type="hidden" name="form" value=(form_word); };
    let (pause, pause_text) = match found.value["paused"] == true {
        true => ("/resume", "Resume"),
        false => ("/pause", "Pause"),
    };
    html! {
        section class="forms" aria-labelledby="forms" {
            h2 id="forms" { "Change" }
            div class="bar" {
                form method="post" action=(path(name, "/run")) {
                    (hidden) button { "Put its job now" }
                }
                form method="post" action=(path(name, pause)) {
                    (hidden) button { (pause_text) }
                }
                a href=(path(name, "/delete")) { "Delete…" }
            }
            details { summary { "Change the schedule" } (set_form(Some(found), form_word)) }
        }
    }
}

/// The form that sets one: a new one, or this one. The server checks what is sent. (A field called
/// `name` would hide what scripts know of a form by that name.)
fn set_form(found: Option<&Found>, form_word: &str) -> Markup {
    let none = json!({"tz": "UTC", "missed": MISSED[0]});
    let now = found.map_or(&none, |found| &found.value);
    let field = |name: &str, label: &str, of: &str, is_needed: bool| {
        let id = format!("schedule-{name}");
        html! {
            label for=(id) { (label) }
            input id=(id) name=(name) value=[now[of].as_str()] maxlength="250" autocomplete="off"
                required[is_needed];
        }
    };
    let number = |name: &str, label: &str, usual: &str| {
        let id = format!("schedule-{name}");
        html! {
            label for=(id) { (label) }
            input id=(id) name=(name) type="number" min="0" max="4294967295" placeholder=(usual)
                value=[now[name].as_u64()];
        }
    };
    html! {
        form class="stack" method="post" action="/schedules" {
            input type="hidden" name="form" value=(form_word);
            @match found {
                Some(_) => input type="hidden" name="schedule" value=(text(&now["name"]));,
                None => (field("schedule", "Name", "name", true)),
            }
            (field("cron", "When: minute, hour, day of the month, month, day of the week", "cron", true))
            (field("tz", "Time zone", "tz", true))
            (field("tube", "Tube", "tube", true))
            (body_field(found))
            (number("priority", "Priority", "65536"))
            (number("ttr", "Time to run, seconds", "120"))
            (field("key", "Key: no job is put while one with this key is in the tube", "key", false))
            label for="schedule-missed" { "Firings that are more than a minute late" }
            select id="schedule-missed" name="missed" {
                @for (word, meaning) in MISSED.iter().zip(MEANINGS) {
                    option value=(word) selected[now["missed"] == **word] { (meaning) }
                }
            }
            label {
                input type="checkbox" name="paused" value="yes" checked[now["paused"] == true];
                " paused: it puts nothing until it is resumed"
            }
            button { "Set" }
            small { "What it says is checked before anything changes." }
        }
    }
}

/// What each word of [`MISSED`] means.
const MEANINGS: [&str; MISSED.len()] = [
    "skip: nothing is put for them",
    "once: one job for all of them",
    "all: a job for each of them, of the last hundred",
];

/// A field with the body. One that a browser would change is kept as it is.
fn body_field(found: Option<&Found>) -> Markup {
    let body = found.map(|found| std::str::from_utf8(&found.body));
    html! {
        @match body {
            Some(Err(_)) => (kept()),
            Some(Ok(text)) if text.contains(['\r', '\0']) => (kept()),
            _ => {
                label for="schedule-body" { "Body" }
                textarea id="schedule-body" name="body" rows="6" {
                    // The first line end is no part of it.
                    "\n" (body.and_then(Result::ok).unwrap_or_default())
                }
            }
        }
    }
}

fn kept() -> Markup {
    html! {
        input type="hidden" name="keep" value="yes";
        small { "Its body is no plain text, and stays. The API and " code { "bsd-ctl" } " change it." }
    }
}

/// `/schedules/NAME/delete`: whether it is really to be deleted.
pub(super) async fn ask_to_delete(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let found = schedules::look(&state.doorway, asked.captured.clone()).await?;
    let viewer = Viewer::of(state, asked);
    let name = text(&found.value["name"]);
    let content = html! {
        p class="lead" { "It puts nothing from then on. The jobs that it has put stay." }
        (about(&found.value))
        @if let Some(word) = viewer.admin() {
            form class="bar" method="post" action=(path(name, "/delete")) {
                input type="hidden" name="form" value=(word);
                button class="danger" { "Delete the schedule" }
                " "
                a href=(path(name, "")) { "No, go back" }
            }
        }
    };
    Ok(frame(format!("Delete schedule {name}?"), viewer, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &[u8]) -> Found {
        let value = json!({"name": "a/b", "cron": "0 8 * * *", "tz": "Europe/Berlin",
            "tube": "x;y", "priority": 7, "ttr": 60, "key": "<k>", "missed": "once",
            "paused": true, "body_size": body.len(), "body": null, "fired_up_to": null,
            "next_firings": ["2026-11-30T08:00:00+01:00"]});
        Found {
            value,
            body: body.to_vec(),
        }
    }

    #[test]
    fn a_list_escapes_names_links_them_and_marks_what_is_paused() {
        let listed = json!({"schedules": [found(b"x").value], "next": null});
        let whole = table_of(&listed, true).into_string();
        for part in [
            "<a href=\"/schedules/a%2Fb\">a/b</a>",
            "<span class=\"mark delayed\">paused</span>",
            "<a href=\"/tubes/x%3By\">x;y</a>",
            "<time datetime=\"2026-11-30T08:00:00+01:00\">2026-11-30T08:00:00+01:00</time>",
        ] {
            assert!(whole.contains(part), "{part}: {whole}");
        }
        assert!(!table_of(&listed, false).into_string().contains("/tubes/"));
        let none = json!({"schedules": [], "next": null});
        assert_eq!(of_tube(&none).into_string(), "");
    }

    #[test]
    fn a_form_has_what_is_set_and_keeps_a_body_that_a_browser_would_change() {
        let form = set_form(Some(&found(b"<b>\n")), "word").into_string();
        for part in [
            "name=\"schedule\" value=\"a/b\"",
            "value=\"&lt;k&gt;\"",
            "rows=\"6\">\n&lt;b&gt;\n</textarea>",
            "<option value=\"once\" selected>",
            "name=\"paused\" value=\"yes\" checked",
        ] {
            assert!(form.contains(part), "{part}: {form}");
        }
        for body in [&b"\xff"[..], b"a\r\nb", b"\0"] {
            let form = set_form(Some(&found(body)), "word").into_string();
            assert!(form.contains("name=\"keep\"") && !form.contains("<textarea"));
        }
        let new = set_form(None, "word").into_string();
        assert!(new.contains("value=\"UTC\"") && new.contains("<textarea"));
    }
}
