//! `/tubes/NAME`: one tube, and its jobs of a state, a page at a time.

use std::sync::Arc;

use hyper::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::chart::sparkline;
use super::layout::{Frame, Place, facts, table};
use super::live::Live;
use super::subject::Subject;
use super::viewer::Viewer;
use super::{Asked, PageView, SAID, job, policy, schedules, words};
use crate::State;
use crate::answer::{Answer, Problem};
use crate::api::look::{self, LISTED};
use crate::api::{self, LIMIT_MAX, policies};
use crate::route::Parameter;
use bsd::types::JobId;

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::word("state", "The state [ready]", LISTED),
    Parameter::text("after", "Only jobs behind this"),
    Parameter::number(
        "limit",
        "The most jobs of a page [100]",
        1,
        LIMIT_MAX as u64,
    ),
    Parameter::word(
        "select",
        "The jobs that are ticked at first [none]",
        &["all"],
    ),
    SAID,
];

/// Schedules on the page of a tube, at most.
const SCHEDULES_MAX: usize = 20;
/// Characters of what a worker said that the list shows of each job.
const SAID_MAX: usize = 200;

pub(super) async fn page(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let name = &asked.captured;
    let wanted = asked.query.text("state").unwrap_or(LISTED[0]);
    let (doorway, query) = (&state.doorway, &asked.query);
    let listed = look::list_jobs(doorway, name.clone(), query, Some(SAID_MAX)).await?;
    let tube = look::look_at_tube(&state.doorway, name.clone()).await?;
    let policy = policies::look(&state.doorway, name.clone()).await?;
    let scheduled = schedules_into(state, name).await?;
    let first = listed["jobs"][0]["id"].as_u64().map(JobId);
    let peeked = match first.filter(|_| asked.query.text("after").is_none()) {
        Some(id) => job::look(state, id).await?,
        None => None,
    };
    let subject = Subject::Tube(name.clone());
    let view = PageView::take(state).await?;
    let viewer = Viewer::of(state, asked);
    let content = html! {
        (numbers_of(&view, name, &tube, &Live::default()))
        (policy::section(name, &policy, has_dead_letters(&policy, &listed), viewer.admin()))
        (schedules::of_tube(&scheduled))
        section aria-labelledby="jobs" {
            h2 id="jobs" { "Jobs" }
            (states(name, wanted, &tube))
            @if let Some(found) = &peeked { (peek(found)) }
            (jobs_shown(name, wanted, &listed, asked, viewer.admin()))
            (next(name, wanted, &listed))
        }
        @if let Some(word) = viewer.admin() { (forms(name, wanted, word)) }
    };
    let frame = Frame {
        place: Place::Tubes,
        title: subject.title(),
        events: Some(subject.events()),
        viewer,
        content,
    };
    Ok(frame.answer(StatusCode::OK))
}

/// The schedules that put into a tube, the first of them.
async fn schedules_into(state: &State, tube: &str) -> Result<Value, Problem> {
    api::schedules::look_at_list(&state.doorway, "", Some(tube), SCHEDULES_MAX).await
}

/// Whether the tube holds dead letters, as far as the page shows it, or is meant to.
fn has_dead_letters(policy: &Value, listed: &Value) -> bool {
    let is_meant_to = policy["dead_letters_of"].as_array();
    let jobs = listed["jobs"].as_array();
    is_meant_to.is_some_and(|sources| !sources.is_empty())
        || jobs.is_some_and(|jobs| jobs.iter().any(|job| job["dead_lettered_from"].is_string()))
}

/// The numbers of the tube as the snapshot has them; nothing where it is not there.
pub(super) fn numbers(view: &PageView<'_>, name: &str, live: &Live) -> Markup {
    let found = view.snapshot.kept_tubes().find(|(it, _)| *it == name);
    match found {
        Some((_, tube)) => numbers_of(view, name, &look::tube_value(name, tube), live),
        None => html! {},
    }
}

fn numbers_of(view: &PageView<'_>, name: &str, tube: &Value, live: &Live) -> Markup {
    let count = |id: &str, value: &Value| live.text(id, words::count(value.as_u64().unwrap_or(0)));
    let time = |id: &str, value: &Value| {
        let seconds = value.as_f64().unwrap_or(0.0);
        live.text(id, words::time(seconds))
    };
    let jobs = &tube["jobs"];
    let line = view.state.console.history().tube(name);
    // Where nothing was put, deleted, or moved to another state, the same jobs are listed.
    let of_list = format!("{jobs} {} {}", tube["puts"], tube["deletes"]);
    html! {
        (live.listed(&of_list))
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

/// The list; for viewers that may change jobs, as a form with a box for each.
fn jobs_shown(
    name: &str,
    state: &str,
    listed: &Value,
    asked: &Asked,
    form_word: Option<&str>,
) -> Markup {
    let none = Vec::new();
    let jobs = listed["jobs"].as_array().unwrap_or(&none);
    let caption = format!("Jobs that are {state}, in the order of their turn");
    let without = format!("No job is {state} here.");
    let Some(word) = form_word.filter(|_| !jobs.is_empty()) else {
        return table_of(&caption, jobs, &without, None);
    };
    let are_ticked = asked.query.text("select").is_some();
    let path = format!("/tubes/{}", words::escaped(name));
    let after = asked.query.text("after").map(words::escaped);
    let after = after.map_or(String::new(), |after| format!("&after={after}"));
    html! {
        form method="post" action=(format!("{path}/count")) {
            input type="hidden" name="form" value=(word);
            input type="hidden" name="selection" value="yes";
            input type="hidden" name="state" value=(state);
            (table_of(&caption, jobs, &without, Some(are_ticked)))
            div class="bar" {
                @if are_ticked {
                    a href=(format!("{path}?state={state}{after}#jobs")) { "Select none" }
                } @else {
                    a href=(format!("{path}?state={state}{after}&select=all#jobs")) {
                        "Select all of this page"
                    }
                }
                label for="selected-what" { "With those selected" }
                select id="selected-what" name="what" {
                    @for (word, text) in ACTIONS.iter().filter(|(word, _)| is_offered(word, state)) {
                        option value=(word) { (text) }
                    }
                }
                label for="selected-to" { "into the tube" }
                input id="selected-to" name="to" maxlength="200" autocomplete="off";
                button { "Count those selected" }
            }
        }
        // Of the buttons in the list: one of the other form would be the one that Enter presses.
        form id=(SEND_BACK) method="post" { input type="hidden" name="form" value=(word); }
    }
}

/// The form that sends back one job of the list.
const SEND_BACK: &str = "send-back";

/// Actions on selected jobs.
const ACTIONS: [(&str, &str); 5] = [
    ("kick", "Kick: make them ready"),
    ("redrive", "Send back, where they are set aside"),
    ("bury", "Bury"),
    ("move", "Move to another tube"),
    ("delete", "Delete"),
];

/// Whether it changes anything of jobs in this state.
fn is_offered(action: &str, state: &str) -> bool {
    !matches!((action, state), ("kick", "ready") | ("bury", "buried"))
}

/// Jobs in a table. Where they can be selected, each with a box, and whether it is ticked.
pub(super) fn table_of(
    caption: &str,
    jobs: &[Value],
    none: &str,
    are_ticked: Option<bool>,
) -> Markup {
    let have = |name: &str| jobs.iter().any(|job| !job[name].is_null());
    let (have_reasons, have_said) = (have("reason"), have("said"));
    let (have_from, can_go_back) = (have("dead_lettered_from"), have("failures"));
    let can_go_back = can_go_back && are_ticked.is_some();
    let head = html! {
        @if are_ticked.is_some() { th scope="col" { span class="hidden" { "Select" } } }
        @for (name, class) in [
            ("Job", "number"), ("Priority", "number"), ("Age", "number"), ("Left", "number"),
            ("Body", "number"), ("Reserves", "number"), ("Timeouts", "number"),
            ("Releases", "number"), ("Buries", "number"), ("Kicks", "number"),
        ] {
            th scope="col" class=(class) { (name) }
        }
        @if have_reasons { th scope="col" { "Reason" } }
        @if have_said { th scope="col" { "A worker said" } }
        @if have_from { th scope="col" { "Dead letter of" } }
        @if can_go_back { th scope="col" { span class="hidden" { "Send back" } } }
    };
    let rows = html! {
        @for job in jobs {
            @let id = job["id"].as_u64().unwrap_or(0);
            tr {
                @if let Some(is_ticked) = are_ticked {
                    td {
                        input type="checkbox" name="id" value=(id) checked[is_ticked]
                            aria-label=(format!("Job {id}"));
                    }
                }
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
                @if have_reasons { td { (job["reason"].as_str().unwrap_or("–")) } }
                @if have_said { td { (job["said"].as_str().map_or("–".into(), words::visible)) } }
                @if have_from {
                    td {
                        @match job["dead_lettered_from"].as_str() {
                            Some(from) => a href=(format!("/tubes/{}", words::escaped(from))) { (from) },
                            None => "–",
                        }
                    }
                }
                @if can_go_back {
                    td {
                        @if !job["failures"].is_null() {
                            button form=(SEND_BACK) formaction=(format!("/jobs/{id}/redrive"))
                                aria-label=(format!("Send back job {id}")) { "Send back" }
                        }
                    }
                }
            }
        }
        @if jobs.is_empty() { tr { td colspan="10" { (none) } } }
    };
    table(caption, &head, &rows)
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

/// Forms that change the tube and its jobs.
fn forms(name: &str, state: &str, form_word: &str) -> Markup {
    let to = |what: &str| format!("/tubes/{}/{what}", words::escaped(name));
    let hidden = html! { input type="hidden" name="form" value=(form_word); };
    html! {
        section class="forms" aria-labelledby="forms" {
            h2 id="forms" { "Change" }
            details {
                summary { "Put a job" }
                form class="stack" method="post" action=(to("put")) {
                    (hidden)
                    label for="body-of" { "Body" }
                    textarea id="body-of" name="body" rows="6" {}
                    (numbers_asked("put", &[
                        ("priority", "Priority", "65536"),
                        ("delay", "Delay, seconds", "0"),
                        ("ttr", "Time to run, seconds", "120"),
                    ]))
                    button { "Put" }
                }
            }
            details {
                summary { "Pause the tube" }
                form class="stack" method="post" action=(to("pause")) {
                    (hidden)
                    label for="seconds" { "Seconds; 0 ends a pause" }
                    input id="seconds" name="seconds" type="number" min="0" max="4294967295"
                        value="60" required;
                    button { "Pause" }
                }
            }
            details {
                summary { "Change many jobs" }
                (many(&to("count"), state, &hidden))
            }
        }
    }
}

/// Numbers that may be left out.
fn numbers_asked(of: &str, numbers: &[(&str, &str, &str)]) -> Markup {
    html! {
        @for (name, label, usual) in numbers {
            @let id = format!("{of}-{name}");
            label for=(id) { (label) }
            input id=(id) name=(name) type="number" min="0" max="4294967295" placeholder=(usual);
        }
    }
}

/// The jobs are counted first, and it is asked again. (A field called `action` or `contains` would hide
/// what scripts know of a form by that name.)
fn many(to: &str, state: &str, hidden: &Markup) -> Markup {
    let actions = [
        ("kick", "Kick: make them ready"),
        ("delete", "Delete"),
        ("bury", "Bury"),
        ("delay", "Delay"),
        ("priority", "Change the priority"),
        ("move", "Move to another tube"),
        ("redrive", "Send back, where they are set aside"),
    ];
    html! {
        form class="stack" method="post" action=(to) {
            (hidden)
            label for="action" { "What" }
            select id="action" name="what" {
                @for (word, text) in actions { option value=(word) { (text) } }
            }
            fieldset {
                legend { "Jobs that are" }
                @for it in LISTED {
                    label {
                        input type="checkbox" name="state" value=(it) checked[*it == state];
                        " " (it)
                    }
                }
            }
            label for="contains-of" { "with this in their bodies" }
            input id="contains-of" name="with" maxlength="1000" autocomplete="off";
            (policy::reasons_asked("many"))
            (numbers_asked("many", &[
                ("age_min_seconds", "at least so old, seconds", "any"),
                ("rate", "No more than this many a second", "no bound"),
                ("delay", "To delay: seconds", ""),
                ("priority", "To change the priority: to", ""),
            ]))
            label for="to-of" { "To move: into the tube" }
            input id="to-of" name="to" maxlength="200" autocomplete="off";
            label { input type="checkbox" name="kick" value="yes"; " and make them ready there" }
            button { "Count them" }
            small { "Nothing is changed before you have seen how many they are." }
        }
    }
}
