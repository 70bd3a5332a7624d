//! The console: what the server does, for a browser. Pages are written here, whole, and need no
//! script; with it their numbers stay up to date.
//!
//! | file | question |
//! |---|---|
//! | here | which pages are there, and who shows which? |
//! | `layout` | what stands around every page? |
//! | `own_view` | how do links stay in the view of one member? |
//! | `live` | which parts of a page change while it is open? |
//! | `subject` | which page is open, as an address says it? |
//! | `stream` | how does a browser hear of what changes? |
//! | `history` | how was it before? |
//! | `tube_history` | how was it before in a tube? |
//! | `span`, `ring` | how far back do charts go, and where are the last samples of something? |
//! | `trouble` | what is wrong, and what is to be done? |
//! | `jobs` | what does a list of jobs show of each? |
//! | `body`, `notation` | what is in a body, for a person? |
//! | `search` | where is what was typed into the one field? |
//! | `chart` | what does a line of numbers look like? |
//! | `words` | how are numbers said? |
//! | `assets` | style, script, icon |
//! | `overview`, `tubes`, `tube`, `job`, `durability`, `clients`, `tasks`, `cluster` | the pages |
//! | `percentiles` | how long did jobs wait, and how long were they worked on? |
//! | `past` | what has happened to a job |
//! | `policy` | the policy of a tube, what has failed in it, and where its dead letters go |
//! | `schedules` | what is put by itself, and when |
//! | `forms` | what do they send, and what is done then? |
//! | `viewer` | who looks, and what may be offered? |
//! | `login` | how does a browser show its token? |
//!
//! Invariants:
//! * A page says nothing that `api` or `metrics` does not: it asks the engine by the same work.
//! * However many pages are open, the engine is asked for one snapshot a second.
//! * No page looks at all jobs: what it shows are totals, and the jobs that it lists.
//! * What a page offers and what is let in are two things: `guard` decides by the table below.
//! * Names and bodies are text: nothing of them is ever taken for a part of the page.

mod assets;
mod body;
mod chart;
mod clients;
/// Without the feature `cluster` it shows nothing.
mod cluster;
mod durability;
mod forms;
mod history;
mod job;
mod jobs;
mod layout;
mod live;
mod login;
mod notation;
mod overview;
mod own_view;
mod past;
mod percentiles;
mod policy;
mod ring;
mod schedules;
mod search;
mod span;
mod stream;
mod subject;
mod tasks;
mod trouble;
mod tube;
mod tube_history;
mod tubes;
mod viewer;
mod words;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::header::{ACCEPT, HeaderMap, HeaderValue, LOCATION};
use hyper::{Method, Request, StatusCode};
use maud::{Markup, html};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use self::history::History;
use self::layout::{Frame, Place};
use self::live::Live;
use self::subject::Subject;
use self::viewer::Viewer;
use super::State;
use super::answer::{Answer, Content, Problem, page};
use super::api::{self, log::LogView, trouble::Troubles};
use super::guard::Asker;
use super::query::Query;
use super::route::{Action, Asset, Page, Parameter, Role, Route, Shape, look, route};
use super::snapshot::Snapshot;
use bsd_net::secrets::random_word;

/// How often the state of the server is remembered.
const REMEMBER_EVERY: Duration = Duration::from_secs(10);
/// How often it is tried while there is nothing to ask.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// A route of the console.
const fn of(path: &'static str, role: Role, page: Page) -> Route {
    look(path, role, Action::Console(page), Shape::Page)
}

/// A route that forms are sent to.
const fn form(path: &'static str, role: Role, page: Page) -> Route {
    route(Method::POST, path, role, Action::Console(page), Shape::Page)
}

const SAID: Parameter = Parameter::text("said", "What was done, by its number");
const SPAN: Parameter = Parameter::word("span", "How far back", span::SPANS);

/// Routes of the console.
pub(super) const ROUTES: &[Route] = &[
    of("/", Role::Read, Page::Overview).taking(&[SPAN]),
    of("/tubes", Role::Read, Page::Tubes).taking(tubes::PARAMETERS),
    of("/tubes/{tube}", Role::Read, Page::Tube).taking(tube::PARAMETERS),
    form("/tubes/{tube}/put", Role::Admin, Page::Put),
    form("/tubes/{tube}/pause", Role::Admin, Page::Pause),
    form("/tubes/{tube}/policy", Role::Admin, Page::SetPolicy),
    form(
        "/tubes/{tube}/policy/remove",
        Role::Admin,
        Page::RemovePolicy,
    ),
    form("/tubes/{tube}/count", Role::Admin, Page::Count),
    of("/schedules", Role::Read, Page::Schedules).taking(schedules::PARAMETERS),
    form("/schedules", Role::Admin, Page::SetSchedule),
    of("/schedules/{schedule}", Role::Read, Page::Schedule).taking(&[SAID]),
    of(
        "/schedules/{schedule}/delete",
        Role::Read,
        Page::AskDeleteSchedule,
    ),
    form(
        "/schedules/{schedule}/delete",
        Role::Admin,
        Page::ChangeSchedule("delete"),
    ),
    form(
        "/schedules/{schedule}/run",
        Role::Admin,
        Page::ChangeSchedule("run"),
    ),
    form(
        "/schedules/{schedule}/pause",
        Role::Admin,
        Page::ChangeSchedule("pause"),
    ),
    form(
        "/schedules/{schedule}/resume",
        Role::Admin,
        Page::ChangeSchedule("resume"),
    ),
    of("/jobs/{id}", Role::Read, Page::Job).taking(&[SAID]),
    of("/jobs/{id}/history", Role::Read, Page::Past),
    of("/jobs/{id}/body", Role::Read, Page::Body),
    of("/jobs/{id}/delete", Role::Read, Page::Delete),
    form("/jobs/{id}/delete", Role::Admin, Page::Change("delete")),
    form("/jobs/{id}/kick", Role::Admin, Page::Change("kick")),
    form("/jobs/{id}/bury", Role::Admin, Page::Change("bury")),
    form("/jobs/{id}/redrive", Role::Admin, Page::Change("redrive")),
    form("/jobs/{id}/release", Role::Admin, Page::Change("release")),
    form("/jobs/{id}/delay", Role::Admin, Page::Change("delay")),
    form("/jobs/{id}/priority", Role::Admin, Page::Change("priority")),
    form("/jobs/{id}/move", Role::Admin, Page::Change("move")),
    of("/durability", Role::Read, Page::Durability).taking(&[SPAN]),
    of("/cluster", Role::Read, Page::Cluster),
    of("/clients", Role::Read, Page::Clients).taking(&[clients::AFTER, SAID]),
    of("/clients/{client}", Role::Read, Page::Client),
    form("/clients/{client}/close", Role::Admin, Page::CloseClient),
    of("/tasks", Role::Read, Page::Tasks),
    of("/tasks/{task}", Role::Read, Page::Task).taking(&[SAID]),
    form("/tasks/{task}/run", Role::Admin, Page::Run),
    form("/tasks/{task}/cancel", Role::Admin, Page::Cancel),
    form("/tasks/{task}/undo", Role::Admin, Page::Undo),
    of("/find", Role::Read, Page::Find).taking(search::PARAMETERS),
    of("/find/{search}", Role::Read, Page::Found),
    form("/find/{search}/cancel", Role::Read, Page::StopSearch),
    of("/events", Role::Read, Page::Events).taking(subject::PARAMETERS),
    of("/login", Role::Anyone, Page::Login).taking(login::PARAMETERS),
    form("/login", Role::Anyone, Page::Enter),
    form("/logout", Role::Anyone, Page::Leave),
    of(
        "/static/console.css",
        Role::Anyone,
        Page::Asset(Asset::Style),
    ),
    of(
        "/static/console.js",
        Role::Anyone,
        Page::Asset(Asset::Script),
    ),
    of("/static/icon.svg", Role::Anyone, Page::Asset(Asset::Icon)),
];

/// Shared state of the pages.
#[derive(Debug)]
pub(super) struct Console {
    history: Mutex<History>,
    /// Open streams of events.
    streams: Arc<Semaphore>,
    /// A secret that every form sends with it: no one else can read it.
    form_word: String,
    /// Results of changes, for the page that the browser is sent to then; and the number of the
    /// next.
    said: Mutex<VecDeque<(String, String)>>,
    told: AtomicU64,
}

impl Console {
    /// With a new word for its forms.
    pub(super) fn new() -> io::Result<Console> {
        Ok(Console {
            history: Mutex::default(),
            streams: Arc::new(Semaphore::new(stream::STREAMS_MAX)),
            form_word: random_word()?,
            said: Mutex::default(),
            told: AtomicU64::new(1),
        })
    }

    /// The secret that every form sends with it.
    pub(super) fn form_word(&self) -> &str {
        &self.form_word
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // What a panic left behind is a number too few.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Remember how it is, again and again, as long as it is asked to.
pub(super) async fn remember(state: Arc<State>) {
    loop {
        match state.snapshots.take_aside(&state).await {
            Ok(snapshot) => {
                let syncs = state.handles.pulse.syncs();
                state.console.history().note(&snapshot, &syncs);
                state.past.note(&snapshot);
                sleep(REMEMBER_EVERY).await;
            }
            // The log is being replayed, or the loop is stuck: that is said elsewhere.
            Err(_) => sleep(TRY_EVERY).await,
        }
    }
}

/// A request for a page, as far as it is understood.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) asker: Asker,
    pub(super) captured: String,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    /// Of what a form sends.
    pub(super) body: Vec<u8>,
    pub(super) view: View,
}

/// Which of a cluster's members was to answer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum View {
    /// No matter which.
    #[default]
    Any,
    /// This one, whether it leads or not.
    Own,
    /// Another one; this is why it has not.
    Instead(String),
}

impl View {
    /// Why the leader has not answered.
    pub(super) fn why(&self) -> Option<&str> {
        match self {
            View::Instead(why) => Some(why),
            View::Any | View::Own => None,
        }
    }
}

/// A form that comes from a page of this member itself, and that changes no job: it is about what
/// this member does.
pub(super) fn is_own_form(state: &State, page: Page, body: &[u8]) -> bool {
    !page.changes_jobs() && forms::is_of_here(body, &state.console.form_word)
}

/// Show a page.
pub(super) async fn answer(
    wanted: Page,
    asked: Asked,
    state: &Arc<State>,
) -> Result<Answer, Problem> {
    let is_own_view = asked.view == View::Own;
    let mut answer = answer_to(wanted, asked, state).await?;
    if is_own_view {
        own_view::keep_place(&mut answer);
    }
    Ok(answer)
}

async fn answer_to(wanted: Page, asked: Asked, state: &Arc<State>) -> Result<Answer, Problem> {
    let query = &asked.query;
    match wanted {
        Page::Asset(asset) => Ok(asset.answer(&asked.headers)),
        Page::Find => search::find(state, &asked).await,
        Page::Found => search::page(state, &asked).await,
        Page::Body => job::download(state, &asked).await,
        Page::Events => stream::events(state, query),
        Page::Overview => show(state, &asked, Subject::overview(query)?).await,
        Page::Tubes => show(state, &asked, Subject::tubes(query)?).await,
        Page::Durability => show(state, &asked, Subject::durability(query)?).await,
        Page::Cluster => show(state, &asked, Subject::Cluster).await,
        Page::Clients => clients::list(state, &asked).await,
        Page::Client => clients::one(state, &asked).await,
        Page::Tasks => show(state, &asked, Subject::Tasks).await,
        Page::Task => tasks::page(state, &asked).await,
        Page::Tube => tube::page(state, &asked).await,
        Page::Schedules => schedules::list(state, &asked).await,
        Page::Schedule => schedules::one(state, &asked).await,
        Page::AskDeleteSchedule => schedules::ask_to_delete(state, &asked).await,
        Page::Job => job::page(state, &asked).await,
        Page::Past => past::page(state, &asked).await,
        Page::Delete => job::ask_to_delete(state, &asked).await,
        Page::Login => Ok(login::page(state, &asked)),
        form => forms::answer(form, asked, state).await,
    }
}

/// Show a page that is about the whole server.
async fn show(state: &Arc<State>, asked: &Asked, subject: Subject) -> Result<Answer, Problem> {
    if subject.place() == Place::Cluster {
        crate::cluster::check_there(&state.handles)?;
    }
    let live = Live::default();
    let mut view = match PageView::of(&subject, state).await {
        Ok(view) => view,
        Err(problem) => return without_snapshot(state, asked, &subject, problem).await,
    };
    if subject.place() == Place::Durability {
        view.log = api::log::look(&state.doorway).await?;
    }
    let content = stream::content(&subject, &view, &live);
    let frame = Frame {
        place: subject.place(),
        title: subject.title(),
        events: Some(subject.events()),
        viewer: Viewer::of(state, asked),
        content,
    };
    Ok(frame.answer(StatusCode::OK))
}

/// The overview of a server that cannot be looked at says why, as far as that is known.
async fn without_snapshot(
    state: &State,
    asked: &Asked,
    subject: &Subject,
    problem: Problem,
) -> Result<Answer, Problem> {
    if subject.place() != Place::Overview {
        return Err(problem);
    }
    let Some(troubles) = trouble::without_snapshot(state).await else {
        return Err(problem);
    };
    let frame = Frame {
        place: Place::Overview,
        title: subject.title(),
        events: None,
        viewer: Viewer::of(state, asked),
        content: html! {
            (trouble::list(&troubles, &Live::default()))
            p { (problem.detail) "." }
        },
    };
    Ok(frame.answer(problem.status))
}

/// Source of a page.
struct PageView<'a> {
    state: &'a State,
    snapshot: Arc<Snapshot>,
    /// The files of the log, as the page about durability was asked for; they do not change in it.
    log: LogView,
    /// What is wrong, for the overview.
    troubles: Troubles,
}

impl PageView<'_> {
    /// For this page.
    async fn of<'a>(subject: &Subject, state: &'a State) -> Result<PageView<'a>, Problem> {
        let mut view = PageView::take(state).await?;
        if subject.place() == Place::Overview {
            view.troubles = trouble::in_snapshot(state, view.snapshot.clone()).await?;
        }
        Ok(view)
    }

    async fn take(state: &State) -> Result<PageView<'_>, Problem> {
        Ok(PageView {
            state,
            snapshot: state.snapshots.demand(state).await?,
            log: LogView::default(),
            troubles: Troubles::default(),
        })
    }
}

/// Send the browser elsewhere.
fn go_to(path: &str) -> Answer {
    let mut answer = page(
        StatusCode::SEE_OTHER,
        layout::HTML,
        Content::Whole(Some(String::new().into())),
    );
    if let Ok(path) = HeaderValue::from_str(path) {
        answer.headers_mut().insert(LOCATION, path);
    }
    answer
}

/// Anyone who wants to be told in HTML why not.
pub(super) struct Browser {
    /// Path of the request, if it can be repeated.
    path: Option<String>,
}

impl Browser {
    /// The one that a request comes from, where it asks for a page.
    pub(super) fn of<T>(request: &Request<T>) -> Option<Browser> {
        let uri = request.uri();
        let is_api = ["/api/", "/metrics", "/healthz", "/readyz", "/leader"]
            .iter()
            .any(|prefix| uri.path().starts_with(prefix));
        let accepted = request.headers().get(ACCEPT);
        let accepted = accepted.and_then(|value| value.to_str().ok());
        let takes_html = accepted.is_some_and(|accepted| accepted.contains("text/html"));
        let path = uri
            .path_and_query()
            .filter(|_| request.method() == Method::GET);
        (takes_html && !is_api).then(|| Browser {
            path: path.map(ToString::to_string),
        })
    }

    /// Say why not; ask for a token where that is it.
    pub(super) fn show(&self, problem: &Problem) -> Answer {
        if problem.status == StatusCode::UNAUTHORIZED {
            return login::way(self.path.as_deref().unwrap_or("/"));
        }
        let reason = problem.status.canonical_reason().unwrap_or("Problem");
        let frame = Frame {
            place: Place::Elsewhere,
            title: reason.to_owned(),
            events: None,
            viewer: Viewer {
                keeps_own_view: self.path.as_deref().is_some_and(own_view::is_of),
                ..Viewer::no_one()
            },
            content: explanation(problem),
        };
        let plain = problem.answer();
        let mut answer = frame.answer(problem.status);
        for (name, value) in plain.headers() {
            let headers = answer.headers_mut();
            if !headers.contains_key(name) {
                headers.insert(name, value.clone());
            }
        }
        answer
    }
}

fn explanation(problem: &Problem) -> Markup {
    html! {
        p class="lead" { (problem.status.as_u16()) ": " (problem.detail) "." }
        @if let Some((path, text)) = &problem.see { p { a href=(path) { (text) } } }
        p { a href="/" { "To the overview" } " or " a href="/tubes" { "to the tubes" } "." }
    }
}
