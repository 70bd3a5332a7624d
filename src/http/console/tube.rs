//! `/tubes/NAME`: one tube, and its jobs of a state, a page at a time.

use std::sync::Arc;

use hyper::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::chart::sparkline;
use super::layout::{Frame, Place, facts, table};
use super::live::{Live, Subject};
use super::{Asked, Sight, job, words};
use crate::http::State;
use crate::http::answer::{Answer, Problem};
use crate::http::api::LIMIT_MAX;
use crate::http::api::look::{self, LISTED};
use crate::http::routes::Parameter;
use crate::types::JobId;

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::word("state", "The state [ready]", LISTED),
    Parameter::text("after", "Only jobs behind this"),
    Parameter::number(
        "limit",
        "The most jobs of a page [100]",
        1,
        LIMIT_MAX as u64,
    ),
];

pub(super) async fn page(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let name = &asked.captured;
    let wanted = asked.query.text("state").unwrap_or(LISTED[0]);
    let listed = look::list_jobs(state, name.clone(), &asked.query).await?;
    let tube = look::look_at_tube(state, name.clone()).await?;
    let first = listed["jobs"][0]["id"].as_u64().map(JobId);
    let peeked = match first.filter(|_| asked.query.text("after").is_none()) {
        Some(id) => job::look(state, id).await?,
        None => None,
    };
    let subject = Subject::Tube(name.clone());
    let sight = Sight::take(state, &subject).await?;
    let content = html! {
        (numbers_of(&sight, name, &tube, &Live::default()))
        section aria-labelledby="jobs" {
            h2 id="jobs" { "Jobs" }
            (states(name, wanted, &tube))
            @if let Some(found) = &peeked { (peek(found)) }
            (jobs(wanted, &listed))
            (next(name, wanted, &listed))
        }
    };
    let frame = Frame {
        place: Place::Tubes,
        title: subject.title(),
        events: Some(subject.events()),
        content,
    };
    Ok(frame.answer(StatusCode::OK))
}

/// The numbers of the tube as the snapshot has them; nothing where it is not there.
pub(super) fn numbers(sight: &Sight<'_>, name: &str, live: &Live) -> Markup {
    let found = sight.snapshot.kept_tubes().find(|(it, _)| *it == name);
    match found {
        Some((_, tube)) => numbers_of(sight, name, &look::tube_value(name, tube), live),
        None => html! {},
    }
}

fn numbers_of(sight: &Sight<'_>, name: &str, tube: &Value, live: &Live) -> Markup {
    let count = |id: &str, value: &Value| live.text(id, words::count(value.as_u64().unwrap_or(0)));
    let time = |id: &str, value: &Value| {
        let seconds = value.as_f64().unwrap_or(0.0);
        live.text(id, words::time(seconds))
    };
    let jobs = &tube["jobs"];
    let line = sight.state.console.history().tube(name);
    html! {
        dl class="tiles" {
            @for state in ["ready", "reserved", "delayed", "buried"] {
                div class=(state) {
                    dt { (state) }
                    dd { (count(&format!("jobs-{state}"), &jobs[state])) }
                }
            }
        }
        @if let Some(values) = line {
            (sparkline(live, "line", "Ready jobs in the last 10 minutes", &values))
        }
        (facts(&[
            ("Oldest ready job", time("oldest", &tube["oldest_ready_age_seconds"])),
            ("Urgent jobs", count("urgent", &jobs["urgent"])),
            ("Puts", count("puts", &tube["puts"])),
            ("Deletes", count("deletes", &tube["deletes"])),
            ("Connections that use it", count("users", &tube["users"])),
            ("that watch it", count("watchers", &tube["watchers"])),
            ("that wait for its jobs", count("waiting", &tube["waiting"])),
            ("Pause left", time("pause", &tube["pause_left_seconds"])),
            ("Times paused", count("pauses", &tube["pauses"])),
        ]))
    }
}

fn states(name: &str, wanted: &str, tube: &Value) -> Markup {
    let path = format!("/tubes/{}", words::escaped(name));
    html! {
        nav class="spans" aria-label="State" {
            ul {
                @for state in LISTED {
                    @let current = (*state == wanted).then_some("true");
                    @let count = tube["jobs"][*state].as_u64().unwrap_or(0);
                    li {
                        a href=(format!("{path}?state={state}#jobs")) aria-current=[current] {
                            (state) " (" (words::count(count)) ")"
                        }
                    }
                }
            }
            small { "Reserved jobs are in no order, and are not listed." }
        }
    }
}

/// The first job of the list, with the beginning of its body.
fn peek(found: &job::Found) -> Markup {
    let id = found.value["id"].as_u64().unwrap_or(0);
    html! {
        section class="peek" aria-labelledby="peek" {
            h3 id="peek" { "First of them: " a href=(format!("/jobs/{id}")) { "job " (id) } }
            (job::preview(found))
        }
    }
}

fn jobs(state: &str, listed: &Value) -> Markup {
    let none = Vec::new();
    let jobs = listed["jobs"].as_array().unwrap_or(&none);
    let head = html! {
        @for (name, class) in [
            ("Job", "number"), ("Priority", "number"), ("Age", "number"), ("Left", "number"),
            ("Body", "number"), ("Reserves", "number"), ("Timeouts", "number"),
            ("Releases", "number"), ("Buries", "number"), ("Kicks", "number"),
        ] {
            th scope="col" class=(class) { (name) }
        }
    };
    let rows = html! {
        @for job in jobs {
            @let id = job["id"].as_u64().unwrap_or(0);
            tr {
                th scope="row" class="number" { a href=(format!("/jobs/{id}")) { (id) } }
                td class="number" { (job["priority"]) }
                td class="number" { (words::time(job["age_seconds"].as_f64().unwrap_or(0.0))) }
                td class="number" {
                    (job["time_left_seconds"].as_f64().map_or("–".to_owned(), words::time))
                }
                td class="number" { (words::bytes(job["body_size"].as_u64().unwrap_or(0))) }
                @for count in ["reserves", "timeouts", "releases", "buries", "kicks"] {
                    td class="number" { (job[count]) }
                }
            }
        }
        @if jobs.is_empty() { tr { td colspan="10" { "No job is " (state) " here." } } }
    };
    table(
        &format!("Jobs that are {state}, in the order of their turn"),
        &head,
        &rows,
    )
}

fn next(name: &str, state: &str, listed: &Value) -> Markup {
    let path = format!("/tubes/{}?state={state}", words::escaped(name));
    html! {
        @if let Some(mark) = listed["next"].as_str() {
            nav class="pages" aria-label="Pages of the list" {
                ul {
                    li { a href=(format!("{path}#jobs")) { "From the first" } }
                    li { a href=(format!("{path}&after={mark}#jobs")) rel="next" { "Next" } }
                }
            }
        }
    }
}
