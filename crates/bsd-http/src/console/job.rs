//! `/jobs/ID`: one job, and what is in it. Of a large body the beginning is shown; all of it is a
//! file to keep.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{CONTENT_DISPOSITION, HeaderValue};
use maud::{Markup, html};
use serde_json::Value;

use super::layout::{Frame, Place, facts};
use super::viewer::Viewer;
use super::{Asked, body, jobs, past, tasks, words};
use crate::State;
use crate::answer::{Answer, Content, Problem, page as answer_of};
use crate::api;
use crate::api::look::{self, BODY_SIZE_MAX};
use bsd::door::{JobError, Peeked, Slice, Step, Work};
use bsd::types::JobId;

/// A larger body is not read for a page, or sent as a file: the loop reads it as a whole.
const BODY_READ_MAX: u32 = 1 << 20;
/// Bytes of a body that a preview shows.
const PREVIEW_MAX: usize = 400;

/// A job as it was found.
pub(super) struct Found {
    /// As the API has it, without the body.
    pub(super) value: Value,
    /// Or why it is not there.
    body: Result<Vec<u8>, Unshown>,
    wall_ns: u64,
    /// What a worker said of its last failure.
    text: Option<Vec<u8>>,
}

/// Why a page has no body of a job.
enum Unshown {
    /// It is not read for a page.
    TooLarge,
    /// The copy of a member that follows does not give it.
    Unreadable(String),
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
        let body = match size <= BODY_READ_MAX {
            false => Ok(Err(Unshown::TooLarge)),
            true => match slice.peek(self.id) {
                Ok(Peeked::Body(body)) => Ok(Ok(body)),
                Ok(Peeked::Unreadable(why)) => Ok(Err(Unshown::Unreadable(why))),
                Ok(Peeked::Gone) => return Step::Done,
                Err(error) => Err(error),
            },
        };
        self.found = Some(body.map(|body| Found {
            value,
            body,
            wall_ns: now.wall_ns,
            text,
        }));
        Step::Done
    }
}

/// The job with this id, if there is one.
async fn look(state: &State, id: JobId) -> Result<Option<Found>, Problem> {
    let look = api::run(&state.doorway, LookAt { id, found: None }).await?;
    let found = look.found.transpose();
    found.map_err(|error| api::of_error(&error))
}

pub(super) async fn page(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let (id, found) = find(state, asked).await?;
    let viewer = Viewer::of(state, asked);
    let content = html! {
        (lead(&found.value, viewer.changer()))
        (failure(&found))
        section aria-labelledby="body" {
            h2 id="body" { "Body" }
            (shown(&found))
        }
        section aria-labelledby="numbers" {
            h2 id="numbers" { "Numbers" }
            (fields(&found))
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
        @if let Some(word) = viewer.changer() { (forms(&found.value, word)) }
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
        p class="lead" { "It is in the tube " (tube) "." }
        (preview(&found))
        @if let Some(word) = viewer.changer() {
            form class="bar" method="post" action=(format!("/jobs/{id}/delete")) {
                input type="hidden" name="form" value=(word);
                input type="hidden" name="tube" value=(tube);
                (tasks::undo_asked())
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

/// Where it is and what it waits for, in one sentence; and what is done most.
fn lead(job: &Value, form_word: Option<&str>) -> Markup {
    let state = job["state"].as_str().unwrap_or_default();
    let tube = job["tube"].as_str().unwrap_or_default();
    let path = format!("/tubes/{}", words::escaped(tube));
    let left = words::time(job["time_left_seconds"].as_f64().unwrap_or(0.0));
    let reserves = job["reserves"].as_u64().unwrap_or(0);
    html! {
        p class="lead" {
            span class=(format!("mark {state}")) { (state) } " in tube " a href=(path) { (tube) }
            @match state {
                "reserved" => {
                    @if let Some(client) = job["reserved_by"].as_u64() {
                        " by " a href=(format!("/clients/{client}")) { "client " (client) }
                    }
                    ", for another " (left)
                }
                "delayed" => { ", ready in " (left) }
                _ => {}
            }
            @if reserves == 0 { ". It was never reserved." } @else {
                ". It was reserved " (words::counted(reserves, "time")) "."
            }
        }
        @if let Some(word) = form_word { (actions(job, word)) }
    }
}

/// What is done with one button.
fn actions(job: &Value, form_word: &str) -> Markup {
    let (id, state) = (&job["id"], job["state"].as_str().unwrap_or_default());
    let offers = [
        ("release", "Free", state == "reserved"),
        ("kick", "Kick", ["delayed", "buried"].contains(&state)),
        ("bury", "Bury", ["ready", "delayed"].contains(&state)),
        (
            "redrive",
            "Send back",
            state != "reserved" && job["dead_lettered_from"].is_string(),
        ),
    ];
    html! {
        div class="bar stays" {
            @for (what, text, _) in offers.iter().filter(|(_, _, is_offered)| *is_offered) {
                form method="post" action=(format!("/jobs/{id}/{what}")) {
                    input type="hidden" name="form" value=(form_word);
                    button { (text) }
                }
            }
            @if state == "reserved" {
                "Free takes it from the client, also if someone works on it."
            } @else {
                a href=(format!("/jobs/{id}/delete")) { "Delete…" }
                a href="#forms" { "Delay, priority, move" }
            }
        }
    }
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
    html! {
        section class="forms" aria-labelledby="forms" {
            h2 id="forms" { "Change" }
            @if state == "reserved" {
                p { "A client has reserved this job: it can be changed when that is over." }
            } @else {
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

fn fields(found: &Found) -> Markup {
    let job = &found.value;
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
            jobs::ago(job["age_seconds"].as_f64().unwrap_or(0.0), found.wall_ns),
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
                h2 id="failure" { (if reason.is_some() { "Why it failed" } else { "Attributes" }) }
                @if !known.is_empty() { (facts(&known)) }
                @if let Some(said) = &found.text { (said_of_it(said)) }
            }
        }
    }
}

/// Of the last failure, by a worker.
fn said_of_it(said: &[u8]) -> Markup {
    html! {
        p { "A worker said of its last failure:" }
        (body::shown(said, false, "What a worker said"))
    }
}

fn shown(found: &Found) -> Markup {
    let id = &found.value["id"];
    let size = words::bytes(found.value["body_size"].as_u64().unwrap_or(0));
    let all = match &found.body {
        Ok(all) => all,
        Err(Unshown::TooLarge) => {
            return html! {
                p {
                    "It has " (size) ", and is not read for a page. "
                    code { "bsd-ctl job " (id) " --body" } " writes it."
                }
            };
        }
        Err(Unshown::Unreadable(why)) => {
            return html! { p { "It has " (size) ", and this member's copy does not give it: " (why) "." } };
        }
    };
    let is_large = all.len() > BODY_SIZE_MAX as usize;
    let begin = &all[..all.len().min(BODY_SIZE_MAX as usize)];
    html! {
        (body::shown(begin, is_large, "Body"))
        p { a href=(format!("/jobs/{id}/body")) download { "Download it" } ", " (size) "." }
    }
}

/// `/jobs/ID/body`: all of a body, as a file that no browser takes for a page.
pub(super) async fn download(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let (id, found) = find(state, asked).await?;
    let body = found.body.map_err(|why| match why {
        Unshown::TooLarge => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body has more than 1 MiB: `bsd-ctl job {id} --body` writes it"),
        ),
        Unshown::Unreadable(why) => Problem::unavailable(why),
    })?;
    let content = Content::Whole(Some(body.into()));
    let mut answer = answer_of(StatusCode::OK, "application/octet-stream", content);
    let name = format!("attachment; filename=\"job-{id}\"");
    if let Ok(name) = HeaderValue::from_str(&name) {
        answer.headers_mut().insert(CONTENT_DISPOSITION, name);
    }
    Ok(answer)
}

/// The beginning of a body.
fn preview(found: &Found) -> Markup {
    match &found.body {
        Err(Unshown::TooLarge) => html! { p { "Its body has more than 1 MiB." } },
        Err(Unshown::Unreadable(why)) => html! { p { "Its body is not shown: " (why) "." } },
        Ok(all) => {
            let is_cut = all.len() > PREVIEW_MAX;
            body::shown(
                &all[..all.len().min(PREVIEW_MAX)],
                is_cut,
                "Beginning of its body",
            )
        }
    }
}
