//! `/jobs/ID`: one job, and what is in it. A body is text, whatever is in it: JSON is set in lines,
//! what is no text is shown byte by byte.

use std::fmt::Write;
use std::sync::Arc;

use hyper::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::layout::{Frame, Place, facts};
use super::viewer::Viewer;
use super::{Asked, past, words};
use crate::State;
use crate::answer::{Answer, Problem};
use crate::api;
use crate::api::look::{self, BODY_SIZE_MAX};
use bsd::door::{Answer as Reply, JobError, Slice, Step, Work};
use bsd::protocol::Command;
use bsd::types::JobId;

/// Bytes of a body that is no text which are shown.
const HEX_MAX: usize = 4 << 10;
/// Bytes of a body that a preview shows.
const PREVIEW_MAX: usize = 400;

/// A job as it was found.
pub(super) struct Found {
    /// As the API has it, without the body.
    pub(super) value: Value,
    /// `None`: too large to be shown.
    body: Option<Vec<u8>>,
    /// What a worker said of its last failure.
    text: Option<Vec<u8>>,
}

struct LookAt {
    id: JobId,
    found: Option<Result<Found, JobError>>,
}

impl Work for LookAt {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let now = slice.now();
        let queue = slice.engine().queue();
        let Some(job) = queue.job(self.id) else {
            return Step::Done;
        };
        let (size, value) = (job.body_size, look::job_value(queue, &job, now));
        let text = look::failure_text(queue, self.id).map(<[u8]>::to_vec);
        let body = match size <= BODY_SIZE_MAX {
            false => Ok(None),
            true => match slice.run(Command::Peek(self.id)) {
                Ok(Reply::Found(job)) => Ok(Some(job.body)),
                Ok(_) => Ok(None),
                Err(error) => Err(error),
            },
        };
        self.found = Some(body.map(|body| Found { value, body, text }));
        Step::Done
    }
}

/// The job with this id, if there is one.
pub(super) async fn look(state: &State, id: JobId) -> Result<Option<Found>, Problem> {
    let look = api::run(&state.doorway, LookAt { id, found: None }).await?;
    let found = look.found.transpose();
    found.map_err(|error| api::of_error(&error))
}

pub(super) async fn page(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let (id, found) = find(state, asked).await?;
    let viewer = Viewer::of(state, asked);
    let content = html! {
        (fields(&found.value))
        (failure(&found))
        section aria-labelledby="body" {
            h2 id="body" { "Body" }
            (body(&found))
        }
        @if state.handles.dir.is_some() {
            section aria-labelledby="history" {
                h2 id="history" { "History" }
                p {
                    a href=(past::path(&id.to_string())) { "What has happened to it" }
                    ": the log is read for that."
                }
            }
        }
        @if let Some(word) = viewer.admin() { (forms(&found.value, word)) }
    };
    let frame = Frame {
        place: Place::Elsewhere,
        title: format!("Job {id}"),
        events: None,
        viewer,
        content,
    };
    Ok(frame.answer(StatusCode::OK))
}

async fn find(state: &State, asked: &Asked) -> Result<(JobId, Found), Problem> {
    let id = api::job_id(&asked.captured)?;
    let found = look(state, id).await?.ok_or_else(|| {
        let has_log = state.handles.dir.is_some();
        Problem {
            see: has_log.then(|| {
                (
                    past::path(&id.to_string()),
                    "What the log still holds about it",
                )
            }),
            ..Problem::new(
                StatusCode::NOT_FOUND,
                format!("there is no job {id}: it was deleted, or there never was one"),
            )
        }
    })?;
    Ok((id, found))
}

/// `/jobs/ID/delete`: whether it is really to be deleted.
pub(super) async fn ask_to_delete(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let (id, found) = find(state, asked).await?;
    let viewer = Viewer::of(state, asked);
    let tube = found.value["tube"].as_str().unwrap_or_default();
    let content = html! {
        p class="lead" { "It is in the tube " (tube) ", and will be gone for good." }
        (preview(&found))
        @if let Some(word) = viewer.admin() {
            form class="bar" method="post" action=(format!("/jobs/{id}/delete")) {
                input type="hidden" name="form" value=(word);
                input type="hidden" name="tube" value=(tube);
                button class="danger" { "Delete 1 job" }
                " "
                a href=(format!("/jobs/{id}")) { "No, go back" }
            }
        }
    };
    let frame = Frame {
        place: Place::Elsewhere,
        title: format!("Delete job {id}?"),
        events: None,
        viewer,
        content,
    };
    Ok(frame.answer(StatusCode::OK))
}

/// Forms that change it.
fn forms(job: &Value, form_word: &str) -> Markup {
    let (id, state) = (&job["id"], job["state"].as_str().unwrap_or_default());
    let to = |what: &str| format!("/jobs/{id}/{what}");
    let hidden = html! { input type="hidden" name="form" value=(form_word); };
    let number = |name: &str, label: &str, value: u64| {
        html! {
            label for=(name) { (label) }
            input id=(name) name=(name) type="number" min="0" max="4294967295" value=(value) required;
        }
    };
    let offers = [
        ("kick", "Kick", state != "ready"),
        ("bury", "Bury", state != "buried"),
        (
            "redrive",
            "Send back",
            job["dead_lettered_from"].is_string(),
        ),
    ];
    html! {
        section class="forms" aria-labelledby="forms" {
            h2 id="forms" { "Change" }
            @if state == "reserved" {
                p { "A client has reserved this job: it can be changed when that is over." }
                form class="bar" method="post" action=(to("release")) {
                    (hidden)
                    button { "Release" }
                    " It is taken from the client and ready again, also if someone works on it."
                }
            } @else {
                div class="bar" {
                    @for (what, text, _) in offers.iter().filter(|(_, _, is_offered)| *is_offered) {
                        form method="post" action=(to(what)) { (hidden) button { (text) } }
                    }
                    a href=(to("delete")) { "Delete…" }
                }
                form class="bar" method="post" action=(to("delay")) {
                    (hidden) (number("delay", "Delay, seconds", 60)) button { "Delay" }
                }
                form class="bar" method="post" action=(to("priority")) {
                    (hidden)
                    (number("priority", "Priority", job["priority"].as_u64().unwrap_or(0)))
                    button { "Change" }
                }
                form class="bar" method="post" action=(to("move")) {
                    (hidden)
                    label for="to" { "Into the tube" }
                    input id="to" name="to" maxlength="200" required autocomplete="off";
                    label { input type="checkbox" name="kick" value="yes"; " ready there" }
                    button { "Move" }
                }
            }
        }
    }
}

fn fields(job: &Value) -> Markup {
    let tube = job["tube"].as_str().unwrap_or_default();
    let state = job["state"].as_str().unwrap_or_default();
    let left = job["time_left_seconds"].as_f64();
    let whole = |name: &str| job[name].as_u64().unwrap_or(0);
    let count = |name: &str| html! { (words::count(whole(name))) };
    let seconds = |name: &str| html! { (words::seconds(whole(name))) };
    let path = format!("/tubes/{}", words::escaped(tube));
    facts(&[
        ("Tube", html! { a href=(path) { (tube) } }),
        (
            "State",
            html! {
                span class=(format!("mark {state}")) { (state) }
                @if let Some(client) = job["reserved_by"].as_u64() {
                    " by " a href=(format!("/clients/{client}")) { "client " (client) }
                }
            },
        ),
        ("Priority", html! { (whole("priority")) }),
        (
            "Age",
            html! { (words::time(job["age_seconds"].as_f64().unwrap_or(0.0))) },
        ),
        ("Left", html! { (left.map_or("–".to_owned(), words::time)) }),
        ("Time to run", seconds("ttr")),
        ("Delay", seconds("delay")),
        ("Size", html! { (words::bytes(whole("body_size"))) }),
        ("Reserves", count("reserves")),
        ("Deliveries that count", count("deliveries")),
        ("Timeouts", count("timeouts")),
        ("Releases", count("releases")),
        ("Buries", count("buries")),
        ("Kicks", count("kicks")),
    ])
}

/// Why its last delivery failed, and where it was before it was a dead letter; nothing of a job that
/// has no such thing.
fn failure(found: &Found) -> Markup {
    let text = |name: &str| found.value[name].as_str();
    let (reason, from) = (text("reason"), text("dead_lettered_from"));
    let mut known = Vec::new();
    known.extend(reason.map(|reason| ("Reason", html! { (reason) })));
    let failures = found.value["failures"].as_u64();
    known.extend(failures.map(|it| ("Deliveries that failed", html! { (words::count(it)) })));
    known.extend(from.map(|from| {
        let path = format!("/tubes/{}", words::escaped(from));
        ("Dead letter of", html! { a href=(path) { (from) } })
    }));
    known.extend(text("dead_lettered_at").map(|at| ("since", html! { (at) })));
    for (name, label) in [("key", "Key"), ("group", "Group")] {
        known.extend(text(name).map(|value| (label, html! { (value) })));
    }
    html! {
        @if !known.is_empty() || found.text.is_some() {
            section aria-labelledby="failure" {
                h2 id="failure" { "What is known beside that" }
                @if !known.is_empty() { (facts(&known)) }
                @if let Some(said) = &found.text { (said_of_it(said)) }
            }
        }
    }
}

/// Of the last failure, by a worker.
fn said_of_it(said: &[u8]) -> Markup {
    let (kind, text) = readable(said);
    html! {
        p { "A worker said of its last failure. " (kind) }
        @if !text.is_empty() {
            pre class="body" tabindex="0" aria-label="What a worker said" { (text) }
        }
    }
}

fn body(found: &Found) -> Markup {
    let Some(body) = &found.body else {
        return html! {
            p { "It has more than 64 KiB, and is not shown. The command " code { "peek" } " sends it." }
        };
    };
    shown(body)
}

/// All of a body, as far as it can be read.
pub(super) fn shown(body: &[u8]) -> Markup {
    let (kind, text) = readable(body);
    html! {
        p { (kind) }
        @if !text.is_empty() {
            pre class="body" tabindex="0" aria-label="Body" { (text) }
        }
    }
}

/// The beginning of a body.
pub(super) fn preview(found: &Found) -> Markup {
    let Some(body) = &found.body else {
        return html! { p { "Its body has more than 64 KiB." } };
    };
    let (kind, text) = readable(&body[..body.len().min(PREVIEW_MAX)]);
    let is_cut = body.len() > PREVIEW_MAX;
    html! {
        @if text.is_empty() { p { (kind) } } @else {
            pre class="body" tabindex="0" aria-label="The beginning of its body" {
                (text) @if is_cut { "…" }
            }
        }
    }
}

/// Kind of a body, and its readable form.
fn readable(body: &[u8]) -> (String, String) {
    let Some(text) = text_of(body) else {
        let shown = &body[..body.len().min(HEX_MAX)];
        let kind = match body.len() > shown.len() {
            true => "Not text. Its first 4 KiB, byte by byte:",
            false => "Not text. Byte by byte:",
        };
        return (kind.into(), hex(shown));
    };
    let is_object = text.trim_start().starts_with(['{', '[']);
    let value = serde_json::from_str::<Value>(text);
    match value.ok().filter(|_| is_object) {
        Some(_) => ("JSON, set in lines:".into(), in_lines(text)),
        None if text.is_empty() => ("Empty.".into(), String::new()),
        None => ("Text:".into(), text.to_owned()),
    }
}

/// Text is UTF-8 without control characters but those that set it.
fn text_of(body: &[u8]) -> Option<&str> {
    let is_control = |char: char| char.is_control() && !matches!(char, '\n' | '\r' | '\t');
    let text = std::str::from_utf8(body).ok()?;
    (!text.contains(is_control)).then_some(text)
}

/// JSON with a line for each value. No value is changed: numbers stay as they were written.
fn in_lines(json: &str) -> String {
    let mut lines = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut is_escaped, mut is_open) = (0_usize, false, false, false);
    for char in json.chars() {
        if in_string {
            lines.push(char);
            in_string = is_escaped || char != '"';
            is_escaped = char == '\\' && !is_escaped;
            continue;
        }
        let is_end = matches!(char, '}' | ']');
        if char.is_ascii_whitespace() {
            continue;
        }
        if is_end {
            depth = depth.saturating_sub(1);
        }
        if is_open != is_end {
            new_line(&mut lines, depth);
        }
        is_open = false;
        match char {
            '{' | '[' => {
                depth += 1;
                is_open = true;
            }
            '"' => in_string = true,
            _ => {}
        }
        lines.push(char);
        if char == ':' {
            lines.push(' ');
        }
        if char == ',' {
            new_line(&mut lines, depth);
        }
    }
    lines
}

fn new_line(lines: &mut String, depth: usize) {
    lines.push('\n');
    lines.extend(std::iter::repeat_n("  ", depth.min(64)));
}

/// Sixteen bytes a line: where, in digits, as characters.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (nth, line) in bytes.chunks(16).enumerate() {
        let digits: String = line.iter().map(|byte| format!("{byte:02x} ")).collect();
        let as_char = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        };
        let chars: String = line.iter().map(as_char).collect();
        // A string takes everything.
        let _ = writeln!(text, "{:06x}  {digits:48} {chars}", nth * 16);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_set_in_lines_and_stays_what_it_was() {
        let json = r#"{"a":[1.00, {"b":{}},[]],"c\"d{,": "x:y" , "e":null}"#;
        let wanted = "{\n  \"a\": [\n    1.00,\n    {\n      \"b\": {}\n    },\n    []\n  ],\n  \
                      \"c\\\"d{,\": \"x:y\",\n  \"e\": null\n}";
        assert_eq!(
            readable(json.as_bytes()),
            ("JSON, set in lines:".into(), wanted.into())
        );
    }

    #[test]
    fn what_is_no_json_is_text_and_what_is_no_text_is_shown_byte_by_byte() {
        for (body, kind, text) in [
            (&b"{not json}"[..], "Text:", "{not json}"),
            (b"12", "Text:", "12"),
            (b"", "Empty.", ""),
            (b"<b>\n", "Text:", "<b>\n"),
        ] {
            assert_eq!(readable(body), (kind.into(), text.into()));
        }
        let (kind, text) = readable(b"a\0\xff");
        assert_eq!(kind, "Not text. Byte by byte:");
        assert_eq!(text, format!("000000  61 00 ff {} a..\n", " ".repeat(39)));
        let (kind, text) = readable(&[0; 5000]);
        assert!(kind.contains("first 4 KiB"));
        assert_eq!(text.lines().count(), 256);
    }
}
