//! `/clients`: connected clients, with their used and watched tubes, and reserved jobs.

use std::sync::Arc;

use hyper::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::jobs::{self, Jobs, Manner};
use super::layout::{Frame, Place, facts, table};
use super::viewer::Viewer;
use super::{Asked, words};
use crate::State;
use crate::answer::{Answer, Problem};
use crate::api::clients;
use crate::route::Parameter;

pub(super) const AFTER: Parameter =
    Parameter::number("after", "Only clients behind this one", 0, u32::MAX as u64);

/// A page of them, by their ids.
pub(super) async fn list(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let answer = clients::clients(&state.doorway, &asked.query).await?;
    let listed = answer.body().value();
    let none = Vec::new();
    let clients = listed["clients"].as_array().unwrap_or(&none);
    let head = html! {
        th scope="col" class="number" { "Client" }
        @for name in ["Address", "Does", "Uses"] { th scope="col" { (name) } }
        @for name in ["Tubes watched", "Unread"] { th scope="col" class="number" { (name) } }
    };
    let rows = html! {
        @for client in clients {
            tr {
                th scope="row" class="number" {
                    a href=(format!("/clients/{}", client["id"])) { (client["id"]) }
                }
                td class="wide" { (who(client)) }
                td class="whole" data-label="Does" { (being(client)) }
                td data-label="Uses" { (tube_link(&client["uses"])) }
                td class="number" data-label="Watches" {
                    (words::count(client["watched_tubes"].as_u64().unwrap_or(0)))
                }
                td class="number" data-label="Unread" {
                    (words::bytes(client["unread_bytes"].as_u64().unwrap_or(0)))
                }
            }
        }
        @if clients.is_empty() { tr { td colspan="6" { "No one is connected." } } }
    };
    let content = html! {
        p { "Connections as they were when this page was loaded." }
        div class="cards" { (table("Clients, by their ids", &head, &rows)) }
        @if let Some(last) = listed["next"].as_str() {
            nav class="pages" aria-label="Pages of the list" {
                ul {
                    li { a href="/clients" { "From the first" } }
                    li { a href=(format!("/clients?after={last}")) rel="next" { "Next" } }
                }
            }
        }
    };
    Ok(frame(state, asked, "Clients".into(), content))
}

/// One of them.
pub(super) async fn one(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let answer = clients::client(&state.doorway, &asked.captured).await?;
    let client = answer.body().value();
    let none = Vec::new();
    let watches = client["watches"].as_array().unwrap_or(&none);
    let reserved = jobs::with_held(client["reserved"].as_array().unwrap_or(&none).clone());
    let found = Jobs::look(state, &reserved).await?;
    let viewer = Viewer::of(state, asked);
    let manner = Manner {
        caption: "Jobs, those first whose time is up first",
        none: "It has none.",
        form_word: viewer.admin(),
        has_tubes: true,
        is_of_client: true,
        ..Manner::default()
    };
    let watched = client["watched_tubes"].as_u64().unwrap_or(0);
    let content = html! {
        (facts(&[
            ("Address", html! { (address(&client)) }),
            ("Name in its certificate", html! { (client["name"].as_str().unwrap_or("none")) }),
            ("Uses", tube_link(&client["uses"])),
            ("Unread", html! { (words::bytes(client["unread_bytes"].as_u64().unwrap_or(0))) }),
            ("Is", html! { (being(&client)) }),
        ]))
        section aria-labelledby="reserved" {
            h2 id="reserved" { "Has reserved" }
            (jobs::list(&found, manner))
            @if let Some(word) = viewer.admin() { (jobs::form_of_one(word)) }
        }
        section aria-labelledby="watches" {
            h2 id="watches" { "Watches " (words::counted(watched, "tube")) }
            ul class="legend" { @for name in watches { li { (tube_link(name)) } } }
            @if watched > watches.len() as u64 { p { "Only the first are listed." } }
        }
        @if let Some(word) = viewer.admin() { (forms(&client, word)) }
    };
    let title = format!("Client {}", asked.captured);
    Ok(frame(state, asked, title, content))
}

/// Forms that change it.
fn forms(client: &Value, form_word: &str) -> Markup {
    html! {
        section class="forms" aria-labelledby="forms" {
            h2 id="forms" { "Close" }
            form class="bar" method="post" action=(format!("/clients/{}/close", client["id"])) {
                input type="hidden" name="form" value=(form_word);
                @if let Some(address) = client["address"].as_str() {
                    input type="hidden" name="address" value=(address);
                }
                button class="danger" { "Close its connection" }
                " The jobs that it has reserved are ready again."
            }
        }
    }
}

fn frame(state: &State, asked: &Asked, title: String, content: Markup) -> Answer {
    let frame = Frame {
        place: Place::Clients,
        title,
        events: None,
        viewer: Viewer::of(state, asked),
        content,
    };
    frame.answer(StatusCode::OK)
}

fn address(client: &Value) -> &str {
    client["address"]
        .as_str()
        .unwrap_or("a socket of this machine")
}

/// Its address, with the name in its certificate.
fn who(client: &Value) -> Markup {
    html! {
        (address(client))
        @if let Some(name) = client["name"].as_str() { " (" (name) ")" }
    }
}

fn tube_link(name: &Value) -> Markup {
    let name = name.as_str().unwrap_or_default();
    html! { a href=(format!("/tubes/{}", words::escaped(name))) { (name) } }
}

/// Its kind, in words.
fn being(client: &Value) -> String {
    let words = [
        ("producer", "producer"),
        ("worker", "worker"),
        ("waits", "waiting"),
        ("has_reserved", "busy with jobs"),
    ];
    let said = words.iter().filter(|(name, _)| client[*name] == true);
    let said: Vec<_> = said.map(|(_, word)| *word).collect();
    if said.is_empty() {
        "idle".to_owned()
    } else {
        said.join(", ")
    }
}
