//! Which page is open: what its address says of it, and where a browser hears of its changes.

use hyper::StatusCode;

use super::layout::Place;
use super::span::{SPANS, Span};
use super::tubes::{self, Listed};
use super::words;
use crate::answer::Problem;
use crate::query::Query;
use crate::route::Parameter;

/// A page of which parts change.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    Overview(Span),
    Tubes(Listed),
    Tube(String, Span),
    Durability(Span),
    Cluster,
    Tasks,
    Task(String),
    /// Of the job with this id.
    History(String),
    /// The search of this number.
    Search(String),
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
            "search",
        ],
    ),
    Parameter::word("span", "How far back", SPANS),
    Parameter::text("name", "The tube, the task, the job, or the search"),
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

    pub(super) fn parse(query: &Query) -> Result<Subject, Problem> {
        let name = || query.text("name").unwrap_or_default().to_owned();
        match query.text("of").unwrap_or_default() {
            "overview" => Subject::overview(query),
            "durability" => Subject::durability(query),
            "tubes" => Subject::tubes(query),
            "tube" => Ok(Subject::Tube(name(), Span::of_tube(query.text("span")))),
            "cluster" => Ok(Subject::Cluster),
            "tasks" => Ok(Subject::Tasks),
            "task" => Ok(Subject::Task(name())),
            "history" => Ok(Subject::History(name())),
            "search" => Ok(Subject::Search(name())),
            _ => Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "of is overview, tubes, tube, durability, cluster, tasks, task, history or search",
            )),
        }
    }

    /// Where it is heard of.
    pub(super) fn events(&self) -> String {
        match self {
            Subject::Overview(span) => format!("/events?of=overview&span={}", span.0),
            Subject::Durability(span) => format!("/events?of=durability&span={}", span.0),
            Subject::Tubes(listed) => format!("/events?of=tubes&{}", listed.query()),
            Subject::Tube(name, span) => {
                format!(
                    "/events?of=tube&name={}&span={}",
                    words::escaped(name),
                    span.0
                )
            }
            Subject::Cluster => "/events?of=cluster".to_owned(),
            Subject::Tasks => "/events?of=tasks".to_owned(),
            Subject::Task(id) => format!("/events?of=task&name={}", words::escaped(id)),
            Subject::History(id) => format!("/events?of=history&name={}", words::escaped(id)),
            Subject::Search(id) => format!("/events?of=search&name={}", words::escaped(id)),
        }
    }

    pub(super) fn place(&self) -> Place {
        match self {
            Subject::Overview(_) => Place::Overview,
            Subject::Tubes(_) | Subject::Tube(..) => Place::Tubes,
            Subject::Durability(_) => Place::Durability,
            Subject::Cluster => Place::Cluster,
            Subject::Tasks | Subject::Task(_) => Place::Tasks,
            Subject::History(_) | Subject::Search(_) => Place::Elsewhere,
        }
    }

    pub(super) fn title(&self) -> String {
        match self {
            Subject::Overview(_) => "Overview".into(),
            Subject::Tubes(_) => "Tubes".into(),
            Subject::Tube(name, _) => format!("Tube {name}"),
            Subject::Durability(_) => "Durability".into(),
            Subject::Cluster => "Cluster".into(),
            Subject::Tasks => "Tasks".into(),
            Subject::Task(id) => format!("Task {id}"),
            Subject::History(id) => format!("History of job {id}"),
            Subject::Search(id) => format!("Search {id}"),
        }
    }
}
