//! What changes while a page is open. A page is written with a [`Live`], which remembers the parts
//! that have a name; to see what has changed the page is written again, and its parts compared. So a
//! page and what it hears are made by the same lines.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use maud::{Markup, html};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::{Instant, timeout};

use super::history::{SPANS, Span};
use super::layout::{Place, STANDING};
use super::tubes::Listed;
use super::{Sight, cluster, durability, overview, past, tasks, tube, tubes, viewer, words};
use crate::State;
use crate::answer::{Answer, Content, Problem, page};
use crate::query::Query;
use crate::routes::Parameter;

/// Open streams at a time.
pub(super) const STREAMS_MAX: usize = 16;
/// How often a page hears of what has changed.
const TICK: Duration = Duration::from_secs(1);
/// Something is said so often, if only to see whether somebody is there.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// A stream ends after this, and the browser opens another: so who may no longer look sees no more.
const STREAM_TIME: Duration = Duration::from_secs(600);

/// A page of which parts change.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    Overview(Span),
    Tubes(Listed),
    Tube(String),
    Durability(Span),
    Cluster,
    Tasks,
    Task(String),
    /// Of the job with this id.
    History(String),
}

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::word(
        "of",
        "The page",
        &[
            "overview",
            "tubes",
            "tube",
            "durability",
            "cluster",
            "tasks",
            "task",
            "history",
        ],
    ),
    Parameter::word("span", "How far back", SPANS),
    Parameter::text("name", "The tube, the task, or the job"),
    tubes::PARAMETERS[0],
    tubes::PARAMETERS[1],
    tubes::PARAMETERS[2],
];

impl Subject {
    pub(super) fn overview(query: &Query) -> Result<Subject, Problem> {
        Ok(Subject::Overview(Span::of(query.text("span"))))
    }

    pub(super) fn durability(query: &Query) -> Result<Subject, Problem> {
        Ok(Subject::Durability(Span::of(query.text("span"))))
    }

    pub(super) fn tubes(query: &Query) -> Result<Subject, Problem> {
        Ok(Subject::Tubes(Listed::parse(query)?))
    }

    fn parse(query: &Query) -> Result<Subject, Problem> {
        let name = || query.text("name").unwrap_or_default().to_owned();
        match query.text("of").unwrap_or_default() {
            "overview" => Subject::overview(query),
            "durability" => Subject::durability(query),
            "tubes" => Subject::tubes(query),
            "tube" => Ok(Subject::Tube(name())),
            "cluster" => Ok(Subject::Cluster),
            "tasks" => Ok(Subject::Tasks),
            "task" => Ok(Subject::Task(name())),
            "history" => Ok(Subject::History(name())),
            _ => Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "of is overview, tubes, tube, durability, cluster, tasks, task or history",
            )),
        }
    }

    /// Where it is heard of.
    pub(super) fn events(&self) -> String {
        match self {
            Subject::Overview(span) => format!("/events?of=overview&span={}", span.0),
            Subject::Durability(span) => format!("/events?of=durability&span={}", span.0),
            Subject::Tubes(listed) => format!("/events?of=tubes&{}", listed.query()),
            Subject::Tube(name) => format!("/events?of=tube&name={}", words::escaped(name)),
            Subject::Cluster => "/events?of=cluster".to_owned(),
            Subject::Tasks => "/events?of=tasks".to_owned(),
            Subject::Task(id) => format!("/events?of=task&name={}", words::escaped(id)),
            Subject::History(id) => format!("/events?of=history&name={}", words::escaped(id)),
        }
    }

    pub(super) fn place(&self) -> Place {
        match self {
            Subject::Overview(_) => Place::Overview,
            Subject::Tubes(_) | Subject::Tube(_) => Place::Tubes,
            Subject::Durability(_) => Place::Durability,
            Subject::Cluster => Place::Cluster,
            Subject::Tasks | Subject::Task(_) => Place::Tasks,
            Subject::History(_) => Place::Elsewhere,
        }
    }

    pub(super) fn title(&self) -> String {
        match self {
            Subject::Overview(_) => "Overview".into(),
            Subject::Tubes(_) => "Tubes".into(),
            Subject::Tube(name) => format!("Tube {name}"),
            Subject::Durability(_) => "Durability".into(),
            Subject::Cluster => "Cluster".into(),
            Subject::Tasks => "Tasks".into(),
            Subject::Task(id) => format!("Task {id}"),
            Subject::History(id) => format!("History of job {id}"),
        }
    }

    /// The page, or the part of it that changes.
    pub(super) fn content(&self, sight: &Sight<'_>, live: &Live) -> Markup {
        if let Some(sentence) = viewer::standing_now(sight.state) {
            // It stands above the content, once.
            let _ = live.text(STANDING, sentence);
        }
        match self {
            Subject::Overview(span) => overview::content(sight, *span, live),
            Subject::Tubes(listed) => tubes::content(sight, listed, live),
            Subject::Tube(name) => tube::numbers(sight, name, live),
            Subject::Durability(span) => durability::content(sight, *span, live),
            Subject::Cluster => cluster::content(sight, live),
            Subject::Tasks => tasks::content(sight.state, live),
            Subject::Task(id) => tasks::one(sight.state, id, live),
            Subject::History(id) => past::reading(sight.state, id, live),
        }
    }
}

/// What a part of a page is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(String),
}

/// The parts of a page that have names.
#[derive(Debug, Default)]
pub(super) struct Live(RefCell<Vec<(String, Part)>>);

impl Live {
    /// A text that changes. The name is the id of its element, and in a page once.
    pub(super) fn text(&self, id: &str, text: impl Into<String>) -> Markup {
        let text = text.into();
        let markup = html! { span id=(id) { (text) } };
        self.0.borrow_mut().push((id.to_owned(), Part::Text(text)));
        markup
    }

    /// What a list of the page is made from, however it is said. When it changes, the list is one of
    /// before, and the page says so.
    pub(super) fn listed(&self, from: &str) -> Markup {
        let digest = format!("{:08x}", crc32fast::hash(from.as_bytes()));
        html! { span hidden { (self.text("listed", digest)) } }
    }

    /// A path of a drawing that changes.
    pub(super) fn path(&self, id: &str, class: &str, path: String) -> Markup {
        let markup = html! { path id=(id) class=(class) d=(path) {} };
        self.0.borrow_mut().push((id.to_owned(), Part::Path(path)));
        markup
    }
}

/// What was said of a page.
#[derive(Debug, Default)]
struct Said(HashMap<String, Part>);

impl Said {
    /// What is new, as an event; `None` if nothing is.
    fn news(&mut self, live: Live) -> Option<Bytes> {
        let (mut texts, mut paths) = (serde_json::Map::new(), serde_json::Map::new());
        for (id, part) in live.0.into_inner() {
            if self.0.get(&id) == Some(&part) {
                continue;
            }
            match &part {
                Part::Text(text) => texts.insert(id.clone(), text.clone().into()),
                Part::Path(path) => paths.insert(id.clone(), path.clone().into()),
            };
            self.0.insert(id, part);
        }
        let is_empty = texts.is_empty() && paths.is_empty();
        let data = json!({"texts": texts, "paths": paths});
        (!is_empty).then(|| format!("data: {data}\n\n").into())
    }
}

/// Say what changes, as long as somebody listens.
pub(super) fn events(state: &Arc<State>, query: &Query) -> Result<Answer, Problem> {
    let subject = Subject::parse(query)?;
    let permit = state.console.streams.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Problem::unavailable("too many pages are open"))?;
    let (sender, events) = channel(1);
    tokio::spawn(tell(state.clone(), subject, sender, permit));
    let content = Content::Events {
        events,
        watch: None,
    };
    Ok(page(StatusCode::OK, "text/event-stream", content))
}

/// Until nobody listens, or the time is over.
async fn tell(
    state: Arc<State>,
    subject: Subject,
    sender: Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
) {
    let (begun, mut said) = (Instant::now(), Said::default());
    let mut last = begun;
    while begun.elapsed() < STREAM_TIME {
        let news = look(&state, &subject, &mut said).await;
        let is_quiet = last.elapsed() >= SAY_EVERY;
        let event = news.or_else(|| is_quiet.then(|| Bytes::from_static(b": still here\n\n")));
        if let Some(event) = event {
            last = Instant::now();
            if sender.send(event).await.is_err() {
                return;
            }
        }
        if timeout(TICK, sender.closed()).await.is_ok() {
            return;
        }
    }
}

/// What is new; a server that does not answer has nothing to say.
async fn look(state: &State, subject: &Subject, said: &mut Said) -> Option<Bytes> {
    let sight = Sight::take(state).await.ok()?;
    let live = Live::default();
    let _ = subject.content(&sight, &live);
    said.news(live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_said() {
        let mut said = Said::default();
        let written = |ready: &str| {
            let live = Live::default();
            let _ = live.text("ready", ready);
            let _ = live.path("line", "", "M0 0".into());
            live
        };
        let text = |bytes: Option<Bytes>| bytes.map(|it| String::from_utf8(it.to_vec()).unwrap());
        assert_eq!(
            text(said.news(written("1"))).unwrap(),
            "data: {\"paths\":{\"line\":\"M0 0\"},\"texts\":{\"ready\":\"1\"}}\n\n"
        );
        assert_eq!(text(said.news(written("1"))), None);
        assert_eq!(
            text(said.news(written("2</p>\n"))).unwrap(),
            "data: {\"paths\":{},\"texts\":{\"ready\":\"2</p>\\n\"}}\n\n"
        );
    }
}
