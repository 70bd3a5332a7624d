//! `/find`: what the one field for searches leads to. An id leads to its job; any other text to the
//! tubes with it in their names, and to the jobs with it in their bodies, letter by letter as it was
//! typed.
//!
//! Bodies are searched by the same long work as `/api/v1/search` does it, a little in each turn of
//! the loop: the page that waits for it looks at no job. It says how far that is, and is loaded again
//! when it is over. A text that is being searched for is not searched for a second time.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use maud::{Markup, html};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::jobs::{self, Jobs, Manner};
use super::layout::{Frame, Place};
use super::live::Live;
use super::subject::Subject;
use super::viewer::Viewer;
use super::{Asked, go_to, words};
use crate::State;
use crate::answer::{Answer, Problem};
use crate::api::fields::Fields;
use crate::api::search;
use crate::route::Parameter;

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::text("q", "A job's id, a part of a name, or what is in a body"),
    Parameter::text("tube", "Only in bodies of this tube"),
    Parameter::word("in", "Where to look for a number [ids]", &["bodies"]),
];

/// Tubes that are named.
const TUBES_MAX: usize = 20;
/// How often it is looked whether a search is over, before the browser is told to look itself.
const LOOKS: u32 = 10;
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// The field of a page of a tube.
pub(super) fn field_of_tube(tube: &str) -> Markup {
    html! {
        form class="inline" role="search" aria-label="In this tube" action="/find" {
            input type="hidden" name="tube" value=(tube);
            label class="hidden" for="find-here" { "Text in the bodies of this tube" }
            input id="find-here" name="q" type="search" placeholder="Text in these bodies"
                autocomplete="off" maxlength="200" required;
            button { "Search" }
        }
    }
}

/// Where the field leads to.
pub(super) async fn find(state: &State, asked: &Asked) -> Result<Answer, Problem> {
    let text = |name: &str| asked.query.text(name).unwrap_or_default();
    let (wanted, tube) = (text("q").trim(), text("tube"));
    let is_id = !wanted.is_empty() && wanted.bytes().all(|byte| byte.is_ascii_digit());
    if wanted.is_empty() {
        return Ok(go_to("/tubes"));
    }
    if is_id && tube.is_empty() && text("in") != "bodies" {
        return Ok(go_to(&format!("/jobs/{wanted}")));
    }
    let tube = if tube.is_empty() { "*" } else { tube };
    let filter = json!({"tube": tube, "contains": {"data": wanted}});
    if let Some(id) = known(state, &filter) {
        return Ok(go_to(&format!("/find/{id}")));
    }
    if is_of_another_site(&asked.headers) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "a link of another site begins no search; type it into the field above",
        ));
    }
    let sent = Map::from_iter([("filter".to_owned(), filter)]);
    let sent = Fields::parse(Value::Object(sent).to_string().as_bytes())?;
    let begun = search::start(&state.doorway, &state.searches, &sent, asked.asker)?;
    let id = begun.body().value()["id"].to_string();
    for _ in 0..LOOKS {
        if is_over(&state.searches.show(&id)?.body().value()) {
            break;
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(go_to(&format!("/find/{id}")))
}

fn is_over(search: &Value) -> bool {
    !["running", "counting"].contains(&search["state"].as_str().unwrap_or_default())
}

/// A search for the same that is under way.
fn known(state: &State, filter: &Value) -> Option<u64> {
    let list = state.searches.list().body().value();
    let same = list["searches"].as_array()?.iter().find(|search| {
        let is_it = search["filter"]["tube"] == filter["tube"]
            && search["filter"]["contains"]["data"] == filter["contains"]["data"]
            && search["filter"]["states"]
                .as_array()
                .is_some_and(|it| it.len() == 3);
        is_it && !is_over(search)
    })?;
    same["id"].as_u64()
}

/// A page of another site led here.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
    matches!(site, Some(b"cross-site" | b"same-site"))
}

/// `/find/ID`: what was found, or how far it is.
pub(super) async fn page(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let id = &asked.captured;
    let search = state.searches.show(id)?.body().value();
    let wanted = text_of(&search).to_owned();
    let is_over = is_over(&search);
    let none = Vec::new();
    let found = Jobs::look(state, search["jobs"].as_array().unwrap_or(&none)).await?;
    let tubes = tubes_named(state, &search, &wanted).await?;
    let viewer = Viewer::of(state, asked);
    let subject = Subject::Search(id.clone());
    let content = html! {
        (tubes)
        section aria-labelledby="found" {
            h2 id="found" { "In bodies" @if let Some(tube) = tube_of(&search) { " of tube " (tube) } }
            (progress(&search, &Live::default()))
            @if is_over { (found_jobs(&found, &search)) } @else if let Some(word) = &viewer.form_word {
                form class="bar" method="post" action=(format!("/find/{id}/cancel")) {
                    input type="hidden" name="form" value=(word);
                    button { "Stop looking" }
                }
            }
        }
    };
    let frame = Frame {
        place: Place::Elsewhere,
        title: format!("Search for “{wanted}”"),
        events: (!is_over).then(|| subject.events()),
        viewer,
        content,
    };
    Ok(frame.answer(StatusCode::OK))
}

fn text_of(search: &Value) -> &str {
    search["filter"]["contains"]["data"]
        .as_str()
        .unwrap_or_default()
}

/// The one tube that is searched, if it is one.
fn tube_of(search: &Value) -> Option<&str> {
    search["filter"]["tube"]
        .as_str()
        .filter(|tube| *tube != "*")
}

/// Tubes with the text in their names; nothing where one tube is searched.
async fn tubes_named(state: &State, search: &Value, wanted: &str) -> Result<Markup, Problem> {
    if tube_of(search).is_some() {
        return Ok(html! {});
    }
    let snapshot = state.snapshots.demand(state).await?;
    let named = || {
        snapshot
            .kept_tubes()
            .filter(|(name, _)| name.contains(wanted))
    };
    let count = named().count();
    Ok(html! {
        section aria-labelledby="named" {
            h2 id="named" { "In names of tubes" }
            @if count == 0 { p { "No tube has this in its name." } }
            ul class="legend" {
                @for (name, tube) in named().take(TUBES_MAX) {
                    li {
                        a href=(format!("/tubes/{}", words::escaped(name))) { (name) } " "
                        small { (words::count(tube.jobs.ready)) " ready" }
                    }
                }
            }
            @if count > TUBES_MAX {
                p {
                    a href=(format!("/tubes?q={}", words::escaped(wanted))) {
                        "All " (words::count(count as u64)) " of them"
                    }
                }
            }
        }
    })
}

/// The part that changes while bodies are searched.
pub(super) fn searching(state: &State, id: &str, live: &Live) -> Markup {
    match state.searches.show(id).map(|found| found.body().value()) {
        Ok(search) if !is_over(&search) => progress(&search, live),
        // When this changes the page is loaded again.
        _ => html! { (live.text(STAGE, "over")) },
    }
}

/// The id of the part that says whether the search is over.
const STAGE: &str = "stage";

fn progress(search: &Value, live: &Live) -> Markup {
    let count = |name: &str| words::count(search[name].as_u64().unwrap_or(0));
    html! {
        p {
            @if is_over(search) {
                "Of " (count("looked_at")) " jobs that were looked at, " (count("matched"))
                " have this in their bodies."
                @if search["unread"] != 0 {
                    " " (count("unread")) " bodies could not be read, or have more than 1 MiB."
                }
            } @else {
                span hidden { (live.text(STAGE, "under way")) }
                "Looking: " (live.text("looked", count("looked_at"))) " jobs so far, found in "
                (live.text("matched", count("matched"))) ". "
                a href=(format!("/find/{}", search["id"])) { "Look again" }
            }
        }
        p {
            small {
                "Jobs that are ready, delayed or buried are looked at; reserved ones are not. Bodies "
                "are searched as they were put, not what is packed in them."
            }
        }
    }
}

fn found_jobs(found: &Jobs<'_>, search: &Value) -> Markup {
    let manner = Manner {
        caption: "Jobs with this in their bodies",
        none: "No job has this in its body.",
        has_tubes: true,
        ..Manner::default()
    };
    html! {
        (jobs::list(found, manner))
        @if search["state"] == "cancelled" { p { "The search was stopped before its end." } }
        @if let Some(reason) = search["reason"].as_str() { p class="why" { (reason) "." } }
        @if search["next"].is_string() {
            p {
                "There may be more: only the first are listed. "
                code { "bsd-ctl search" } " goes on."
            }
        }
    }
}

/// End a search.
pub(super) fn cancel(state: &State, asked: &Asked) -> Result<Answer, Problem> {
    state.searches.cancel(&asked.captured, asked.asker)?;
    Ok(go_to(&format!("/find/{}", asked.captured)))
}
