//! Frame of every page: title and navigation.

use hyper::StatusCode;
use hyper::header::{HeaderValue, REFERRER_POLICY};
use maud::{DOCTYPE, Markup, html};

use super::own_view;
use super::viewer::{Standing, Viewer};
use crate::answer::{Answer, Content, page};
use crate::relay;
use crate::route::Role;

/// The type of a page.
pub(super) const HTML: &str = "text/html; charset=utf-8";

/// The page that the navigation marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Overview,
    Tubes,
    Schedules,
    Durability,
    Cluster,
    Clients,
    Tasks,
    Elsewhere,
}

const PLACES: [(Place, &str, &str); 7] = [
    (Place::Overview, "/", "Overview"),
    (Place::Tubes, "/tubes", "Tubes"),
    (Place::Schedules, "/schedules", "Schedules"),
    (Place::Durability, "/durability", "Durability"),
    (Place::Cluster, "/cluster", "Cluster"),
    (Place::Clients, "/clients", "Clients"),
    (Place::Tasks, "/tasks", "Tasks"),
];

/// The id of the sentence that says what a member of a cluster is.
pub(super) const STANDING: &str = "member-standing";

/// A page.
pub(super) struct Frame {
    pub(super) place: Place,
    pub(super) title: String,
    /// Where what changes is heard of.
    pub(super) events: Option<String>,
    pub(super) viewer: Viewer,
    pub(super) content: Markup,
}

impl Frame {
    /// The page as it is sent.
    pub(super) fn answer(self, status: StatusCode) -> Answer {
        let text = self.document().into_string();
        let text = match self.viewer.keeps_own_view {
            true => own_view::kept(&text),
            false => text,
        };
        let mut answer = page(status, HTML, Content::Whole(Some(text.into())));
        // Without any referrer a browser says of its forms that they come from nowhere.
        let policy = HeaderValue::from_static("same-origin");
        answer.headers_mut().insert(REFERRER_POLICY, policy);
        answer
    }

    fn document(&self) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · bsd" }
                    link rel="icon" href="/static/icon.svg" type="image/svg+xml";
                    link rel="stylesheet" href="/static/console.css";
                    script src="/static/console.js" defer {}
                }
                body data-events=[self.events()] {
                    a class="skip" href="#main" { "To the content" }
                    (self.header())
                    main id="main" tabindex="-1" {
                        h1 { (self.title) }
                        @if let Some(said) = &self.viewer.said {
                            p class="said" role="status" { (said) }
                        }
                        @if let Some(standing) = &self.viewer.standing { (origin(standing)) }
                        (self.content)
                    }
                    footer {
                        "bsd-server " (env!("CARGO_PKG_VERSION")) " · "
                        a href="/metrics" { "metrics" } " · "
                        a href="/api/v1/openapi.json" { "API" } " "
                        button id="keys-open" type="button" hidden { "Keys" }
                    }
                    (keys())
                }
            }
        }
    }

    /// Of a page that a member that follows has made by itself the changes are its own too.
    fn events(&self) -> Option<String> {
        let standing = self.viewer.standing.as_ref();
        let is_own = standing.is_some_and(|standing| standing.is_own);
        let events = self.events.clone();
        events.map(|events| match is_own {
            true => relay::with_own_view(&events),
            false => events,
        })
    }

    /// Pages of the navigation.
    fn places(&self) -> impl Iterator<Item = (Place, &str, &str)> {
        let is_there = |place| place != Place::Cluster || self.viewer.sees_cluster;
        PLACES
            .into_iter()
            .filter(move |(place, ..)| is_there(*place))
    }

    fn header(&self) -> Markup {
        html! {
            header {
                a class="brand" href="/" { "bsd" }
                nav aria-label="Pages" {
                    ul {
                        @for (place, path, name) in self.places() {
                            @let current = (place == self.place).then_some("page");
                            li { a href=(path) aria-current=[current] { (name) } }
                        }
                    }
                }
                form class="find" role="search" action="/find" {
                    label class="hidden" for="find" { "Job id, tube, or text in a body" }
                    input id="find" name="q" type="search" placeholder="Job id, tube, text in bodies"
                        autocomplete="off" maxlength="200";
                    button { "Find" }
                }
                p id="connection" role="status" {
                    @if self.events.is_some() { "as of now" }
                }
                @if self.viewer.role == Role::Read { span class="mark" { "read only" } }
                @if let Some(word) = &self.viewer.leave_word {
                    form method="post" action="/logout" {
                        input type="hidden" name="form" value=(word);
                        button { "Leave" }
                    }
                }
            }
        }
    }
}

/// Which member of a cluster a page comes from.
fn origin(standing: &Standing) -> Markup {
    let id = standing.is_live.then_some(STANDING);
    html! {
        p { small {
            span id=[id] { (standing.sentence) }
            @if let Some(why) = &standing.why {
                " " span class="why" { "This is its own copy: " (why) "." }
            }
            @if let Some(leader) = &standing.leader {
                " " a href=(format!("{leader}/")) { "The leader's console" }
            }
            @if let Some((path, name)) = standing.other { " " a href=(path) { (name) } }
        } }
    }
}

/// Which keys there are. The script opens it.
fn keys() -> Markup {
    let keys = [
        ("/", "look for a job, a tube, or text in bodies"),
        ("j", "to the next row of a list"),
        ("k", "to the row before"),
        ("Enter", "open it"),
        ("x", "tick it, or not"),
        ("?", "these keys"),
    ];
    html! {
        dialog id="keys" aria-labelledby="keys-title" {
            h2 id="keys-title" { "Keys" }
            dl {
                @for (key, what) in keys { dt { kbd { (key) } } dd { (what) } }
            }
            form class="bar" method="dialog" {
                label { input id="keys-on" type="checkbox"; " Single keys are on" }
                button { "Close" }
            }
        }
    }
}

/// A table that scrolls by itself where it is wider than the page.
pub(super) fn table(caption: &str, head: &Markup, rows: &Markup) -> Markup {
    html! {
        div class="scroll" role="region" tabindex="0" aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { (head) } }
                tbody { (rows) }
            }
        }
    }
}

/// Names, and what they stand for.
pub(super) fn facts(pairs: &[(&str, Markup)]) -> Markup {
    html! {
        dl class="facts" {
            @for (name, value) in pairs {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}
