//! `/`: the whole server at a glance.

use maud::{Markup, html};

use super::PageView;
use super::chart::{Unit, chart, line, spans};
use super::history::{History, Sample, clients, oldest_ready};
use super::layout::facts;
use super::live::Live;
use super::span::Span;
use super::{durability, percentiles, trouble, words};
use crate::snapshot::Snapshot;

pub(super) fn content(view: &PageView<'_>, span: Span, live: &Live) -> Markup {
    let snapshot = &*view.snapshot;
    let mut history = view.state.console.history();
    let is_new = is_new(snapshot);
    html! {
        // What is listed here is other than before: the page is loaded again.
        (live.reload(&format!("{is_new} {}", trouble::digest(&view.troubles))))
        @if is_new { (first_steps()) }
        @if !is_new || view.troubles.count() > 0 { (trouble::list(&view.troubles, live)) }
        (tiles(snapshot, live))
        p class="lead" {
            (durability::verdict(view, live)) " "
            a href="/durability" { "Why" }
        }
        (spans("/", span, &history))
        div class="charts" { (charts(&history, span, live)) }
        (percentiles::section(&history.marks, span, snapshot, live))
        (now(snapshot, &mut history, live))
    }
}

/// No one has used the server so far.
fn is_new(snapshot: &Snapshot) -> bool {
    let queue = &snapshot.figures.queue;
    queue.total_jobs == 0 && queue.jobs.total() == 0
}

/// What to do with a server that has nothing.
fn first_steps() -> Markup {
    html! {
        section class="steps" aria-labelledby="steps" {
            h2 id="steps" { "The first three steps" }
            ol {
                li {
                    b { "Put a job." } " " code { "bsd-ctl put default hello" }
                    ", any client of beanstalkd, or the form of the " a href="/tubes/default#put" {
                        "tube default"
                    } "."
                }
                li {
                    b { "Let a worker reserve it." } " A worker watches the tube, sends "
                    code { "reserve" } ", does the work and sends " code { "delete" }
                    ". It is then among the " a href="/clients" { "clients" } "."
                }
                li {
                    b { "Say what happens to jobs that fail." } " " code {
                        "bsd-ctl policy set default delivery-limit=8 retry-min=5 dead-letter=failed"
                    } " retries them with a delay, and sets them aside at last. This page then "
                    "says what is wrong."
                }
            }
        }
    }
}

/// Jobs by state, and who waits; each leads to where they are.
fn tiles(snapshot: &Snapshot, live: &Live) -> Markup {
    let queue = &snapshot.figures.queue;
    let jobs = &queue.jobs;
    let count = |id: &str, count: u64| live.text(id, words::count(count));
    let tiles = [
        (
            "ready",
            "ready",
            "/tubes?sort=-ready",
            count("jobs-ready", jobs.ready),
        ),
        (
            "reserved",
            "reserved",
            "/tubes?sort=-reserved",
            count("jobs-reserved", jobs.reserved),
        ),
        (
            "delayed",
            "delayed",
            "/tubes?sort=-delayed",
            count("jobs-delayed", jobs.delayed),
        ),
        (
            "buried",
            "buried",
            "/tubes?sort=-buried",
            count("jobs-buried", jobs.buried),
        ),
        (
            "",
            "oldest ready job",
            "/tubes?sort=-oldest",
            live.text("oldest", words::ns(oldest_ready(snapshot))),
        ),
        (
            "",
            "clients",
            "/clients",
            count("clients", clients(snapshot)),
        ),
    ];
    html! {
        section aria-label="Jobs" {
            dl class="tiles" {
                @for (class, name, path, value) in &tiles {
                    div class=(class) {
                        dt { (name) }
                        dd { a href=(path) { (value) span class="hidden" { " " (name) } } }
                    }
                }
            }
        }
    }
}

fn now(snapshot: &Snapshot, history: &mut History, live: &Live) -> Markup {
    let figures = &snapshot.figures;
    let queue = &figures.queue;
    let rates = history.rates(snapshot);
    let rate = |id: &str, value: f32| {
        let text = format!("{} /s", words::rate(value.into()));
        live.text(id, text)
    };
    let count = |id: &str, number: u64| live.text(id, words::count(number));
    html! {
        section aria-labelledby="now" {
            h2 id="now" { "Now" }
            (facts(&[
                ("Puts", rate("puts", rates.puts)),
                ("First reservations", rate("reserves", rates.reserves)),
                ("Deletes", rate("deletes", rates.deletes)),
                ("Timeouts", rate("timeouts", rates.timeouts)),
                ("Failed deliveries", rate("failures", rates.failures)),
                ("Urgent jobs", count("urgent", queue.jobs.urgent)),
                ("Producers", count("producers", queue.producers)),
                ("Workers", count("workers", queue.workers)),
                ("Waiting for a job", count("waiting", queue.waiting)),
                (
                    "Tubes",
                    html! { a href="/tubes" { (count("tubes", queue.tubes)) } },
                ),
                ("Jobs ever put", count("put", queue.total_jobs)),
                (
                    "Up for",
                    live.text("uptime", words::seconds(figures.uptime_seconds)),
                ),
            ]))
        }
    }
}

/// Each state has a scale of its own: a few buried jobs are seen beside a million ready ones.
fn charts(history: &History, span: Span, live: &Live) -> Markup {
    let line = |name, of: fn(&Sample) -> f32| line(history, span, name, of);
    let of_states = [
        ("ready", "Ready", line(("ready", 0), |it| it.ready as f32)),
        (
            "reserved",
            "Reserved",
            line(("reserved", 1), |it| it.reserved as f32),
        ),
        (
            "delayed",
            "Delayed",
            line(("delayed", 2), |it| it.delayed as f32),
        ),
        (
            "buried",
            "Buried",
            line(("buried", 3), |it| it.buried as f32),
        ),
    ];
    let rates = [
        line(("puts", 0), |it| it.rates.puts),
        line(("first reservations", 1), |it| it.rates.reserves),
        line(("deletes", 2), |it| it.rates.deletes),
    ];
    let failures = [
        line(("failed deliveries", 3), |it| it.rates.failures),
        line(("timeouts", 1), |it| it.rates.timeouts),
    ];
    let waits = [
        line(("p50", 0), |it| it.waits[0]),
        line(("p95", 1), |it| it.waits[1]),
        line(("p99", 3), |it| it.waits[2]),
    ];
    let holds = [
        line(("p50", 0), |it| it.holds[0]),
        line(("p95", 1), |it| it.holds[1]),
        line(("p99", 3), |it| it.holds[2]),
    ];
    let oldest = [line(("Oldest ready job", 0), |it| it.oldest)];
    let clients = [line(("Clients", 0), |it| it.clients as f32)];
    html! {
        @for (id, title, line) in of_states {
            (chart(live, &format!("depth-{id}"), title, span, &[line], Unit::Count))
        }
        (chart(live, "rates", "Rates", span, &rates, Unit::Rate))
        (chart(live, "failing", "Failing", span, &failures, Unit::Rate))
        (chart(live, "waits-over-time", "Jobs waited", span, &waits, Unit::Time))
        (chart(live, "holds-over-time", "Jobs were worked on", span, &holds, Unit::Time))
        (chart(live, "age", "Oldest ready job", span, &oldest, Unit::Time))
        (chart(live, "sessions", "Clients", span, &clients, Unit::Count))
    }
}
