//! `/`: the whole server at a glance.

use maud::{Markup, html};

use super::PageView;
use super::chart::{chart, line, spans};
use super::history::{History, Sample, Span, clients, oldest_ready};
use super::layout::facts;
use super::live::Live;
use super::{durability, words};
use crate::snapshot::Snapshot;

pub(super) fn content(view: &PageView<'_>, span: Span, live: &Live) -> Markup {
    let snapshot = &*view.snapshot;
    let mut history = view.state.console.history();
    html! {
        p class="lead" {
            (durability::verdict(view, live)) " "
            a href="/durability" { "Why" }
        }
        (jobs(snapshot, live))
        (now(snapshot, &mut history, live))
        (spans("/", span, &history))
        div class="charts" { (charts(&history, span, live)) }
    }
}

/// Jobs by state.
fn jobs(snapshot: &Snapshot, live: &Live) -> Markup {
    let jobs = &snapshot.figures.queue.jobs;
    let states = [
        ("ready", jobs.ready),
        ("reserved", jobs.reserved),
        ("delayed", jobs.delayed),
        ("buried", jobs.buried),
    ];
    html! {
        section aria-labelledby="jobs" {
            h2 id="jobs" { "Jobs" }
            dl class="tiles" {
                @for (state, count) in states {
                    div class=(state) {
                        dt { (state) }
                        dd { (live.text(&format!("jobs-{state}"), words::count(count))) }
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
    let oldest = oldest_ready(snapshot);
    let waiting = count("waiting", queue.waiting);
    facts(&[
        ("Puts", rate("puts", rates.puts)),
        ("First reservations", rate("reserves", rates.reserves)),
        ("Deletes", rate("deletes", rates.deletes)),
        ("Timeouts", rate("timeouts", rates.timeouts)),
        ("Oldest ready job", live.text("oldest", words::ns(oldest))),
        ("Urgent jobs", count("urgent", queue.jobs.urgent)),
        ("Clients", count("clients", clients(snapshot))),
        ("Producers", count("producers", queue.producers)),
        ("Workers", count("workers", queue.workers)),
        ("Waiting for a job", waiting),
        (
            "Tubes",
            html! { a href="/tubes" { (count("tubes", queue.tubes)) } },
        ),
        ("Jobs ever put", count("put", queue.total_jobs)),
        (
            "Up for",
            live.text("uptime", words::seconds(figures.uptime_seconds)),
        ),
    ])
}

fn charts(history: &History, span: Span, live: &Live) -> Markup {
    let line = |name, of: fn(&Sample) -> f32| line(history, span, name, of);
    let rates = [
        line("puts", |it| it.rates.puts),
        line("first reservations", |it| it.rates.reserves),
        line("deletes", |it| it.rates.deletes),
    ];
    let depth = [
        line("ready", |it| it.ready as f32),
        line("reserved", |it| it.reserved as f32),
        line("delayed", |it| it.delayed as f32),
        line("buried", |it| it.buried as f32),
    ];
    let oldest = [line("oldest ready job", |it| it.oldest)];
    let clients = [line("clients", |it| it.clients as f32)];
    let count = |value: f32| words::count(value as u64);
    let rate = |value: f32| format!("{} /s", words::rate(value.into()));
    let time = |value: f32| words::time(value.into());
    html! {
        (chart(live, "rates", "Rates", span, &rates, rate))
        (chart(live, "depth", "Jobs", span, &depth, count))
        (chart(live, "age", "Age", span, &oldest, time))
        (chart(live, "sessions", "Clients", span, &clients, count))
    }
}
