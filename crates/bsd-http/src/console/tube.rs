//! `/tubes/NAME`: one tube, and its jobs of a state, a page at a time.

use std::sync::Arc;

use hyper::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::chart::{Line, Unit, chart, spans};
use super::history::History;
use super::jobs::{self, Jobs, Manner};
use super::layout::{Frame, Place, facts};
use super::live::Live;
use super::span::Span;
use super::subject::Subject;
use super::tube_history::{LONG_MAX, TUBES_MAX, TubeSample};
use super::viewer::Viewer;
use super::{Asked, PageView, SAID, SPAN, percentiles, policy, schedules, search, trouble, words};
use crate::State;
use crate::answer::{Answer, Problem};
use crate::api::look::{self, LISTED};
use crate::api::{self, LIMIT_MAX, policies};
use crate::route::Parameter;

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::word("state", "The state [ready]", STATES),
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
    SPAN,
    SAID,
];

/// The states of which jobs are listed.
const STATES: &[&str] = &["ready", "reserved", "delayed", "buried"];
/// Schedules on the page of a tube, at most.
const SCHEDULES_MAX: usize = 20;

pub(super) async fn page(state: &Arc<State>, asked: &Asked) -> Result<Answer, Problem> {
    let name = &asked.captured;
    let wanted = asked.query.text("state").unwrap_or(LISTED[0]);
    let listed = jobs::listed(state, name, wanted, &asked.query).await?;
    let tube = look::look_at_tube(&state.doorway, name.clone()).await?;
    let policy = policies::look(&state.doorway, name.clone()).await?;
    let scheduled = schedules_into(state, name).await?;
    let wrong = trouble::of_tube(state, name).await?;
    let none = Vec::new();
    let found = Jobs::look(state, listed["jobs"].as_array().unwrap_or(&none)).await?;
    let span = Span::of_tube(asked.query.text("span"));
    let subject = Subject::Tube(name.clone(), span);
    let view = PageView::take(state).await?;
    let viewer = Viewer::of(state, asked);
    let content = html! {
        (wrong)
        (numbers_of(&view, (name, span), &tube, &Live::default()))
        (ways(viewer.admin().is_some()))
        section aria-labelledby="jobs" {
            h2 id="jobs" { "Jobs" }
            (states(name, wanted, &tube, &listed))
            (jobs_shown(name, wanted, &found, asked, viewer.admin()))
            (next(name, wanted, &listed))
        }
        (policy::section(name, &policy, has_dead_letters(&policy, &listed), viewer.admin()))
        (schedules::of_tube(&scheduled))
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
pub(super) fn numbers(view: &PageView<'_>, (name, span): (&str, Span), live: &Live) -> Markup {
    let found = view.snapshot.kept_tubes().find(|(it, _)| *it == name);
    match found {
        Some((_, tube)) => numbers_of(view, (name, span), &look::tube_value(name, tube), live),
        None => html! {},
    }
}

fn numbers_of(
    view: &PageView<'_>,
    (name, span): (&str, Span),
    tube: &Value,
    live: &Live,
) -> Markup {
    let count = |id: &str, value: &Value| live.text(id, words::count(value.as_u64().unwrap_or(0)));
    let time = |id: &str, value: &Value| {
        let seconds = value.as_f64().unwrap_or(0.0);
        live.text(id, words::time(seconds))
    };
    let jobs = &tube["jobs"];
    let history = view.state.console.history();
    let path = format!("/tubes/{}", words::escaped(name));
    // Where nothing was put, deleted, or moved to another state, the same jobs are listed.
    let of_list = format!("{jobs} {} {}", tube["puts"], tube["deletes"]);
    html! {
        (live.listed(&of_list))
        dl class="tiles" {
            @for state in ["ready", "reserved", "delayed", "buried"] {
                div class=(state) {
                    dt { (state) }
                    dd {
                        a href=(format!("{path}?state={state}#jobs")) {
                            (count(&format!("jobs-{state}"), &jobs[state]))
                        }
                    }
                }
            }
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
        (spans(&path, span, &history))
        @match span.0 {
            "10min" => (short_chart(&history, name, span, live)),
            _ => (charts(&history, name, span, live)),
        }
        (percentiles::of_tube(&tube["tally"], live))
    }
}

/// How it was in the last 10 minutes, if that is kept.
fn short_chart(history: &History, name: &str, span: Span, live: &Live) -> Markup {
    let Some(values) = history.tubes.ready(name) else {
        return html! {
            p { "Of this tube nothing is kept: it has no jobs, or " (TUBES_MAX) " others have some." }
        };
    };
    let line = Line {
        name: "ready jobs",
        colour: 0,
        values,
    };
    html! {
        div class="charts" {
            (chart(live, "line", "Ready jobs", span, &[line], Unit::Count))
        }
    }
}

/// How it was in the last hour, day or week, if that is kept.
fn charts(history: &History, name: &str, span: Span, live: &Live) -> Markup {
    let line = |(label, colour): (&'static str, usize), of: fn(&TubeSample) -> f32| {
        let values = history.tubes.line(name, span, of)?;
        Some(Line {
            name: label,
            colour,
            values,
        })
    };
    let ready = line(("ready", 0), |it| it.ready as f32);
    let buried = line(("buried", 3), |it| it.buried as f32);
    let puts = line(("puts", 0), |it| it.puts);
    let deletes = line(("deletes", 2), |it| it.deletes);
    html! {
        @if let (Some(ready), Some(buried), Some(puts), Some(deletes)) = (ready, buried, puts, deletes) {
            div class="charts" {
                (chart(live, "line-ready", "Ready", span, &[ready], Unit::Count))
                (chart(live, "line-buried", "Buried", span, &[buried], Unit::Count))
                (chart(live, "line-rates", "Rates", span, &[puts, deletes], Unit::Rate))
            }
        } @else {
            p {
                "Of this tube no more than 10 minutes are kept: more is kept of the "
                (LONG_MAX) " tubes with the most puts and deletes."
            }
        }
    }
}

/// What else is on the page, and may be out of sight.
fn ways(is_admin: bool) -> Markup {
    html! {
        nav class="ways" aria-label="On this page" {
            ul {
                li { a href="#jobs" { "Jobs" } }
                li { a href="#policy" { "Policy" } }
                @if is_admin {
                    li { a href="#put" { "Put a job" } }
                    li { a href="#pause-tube" { "Pause" } }
                    li { a href="#many" { "Change many jobs" } }
                }
            }
        }
    }
}

fn states(name: &str, wanted: &str, tube: &Value, listed: &Value) -> Markup {
    let path = format!("/tubes/{}", words::escaped(name));
    html! {
        div class="spans" {
            nav class="tabs" aria-label="State" {
                ul {
                    @for state in STATES {
                        @let current = (*state == wanted).then_some("true");
                        @let count = tube["jobs"][*state].as_u64().unwrap_or(0);
                        li {
                            a href=(format!("{path}?state={state}#jobs")) aria-current=[current] {
                                (state) " " b { (words::count(count)) }
                            }
                        }
                    }
                }
            }
            (search::field_of_tube(name))
        }
        @if listed["is_cut"] == true {
            p { small { "Not all reserved jobs were looked at: those of the first clients." } }
        }
    }
}

/// The list; for viewers that may change jobs, as a form with a box for each.
fn jobs_shown(
    name: &str,
    state: &str,
    found: &Jobs<'_>,
    asked: &Asked,
    form_word: Option<&str>,
) -> Markup {
    let caption = match state {
        "reserved" => {
            "Jobs that are reserved, those first that clients have had for longest".into()
        }
        state => format!("Jobs that are {state}, in the order of their turn"),
    };
    let without = format!("No job is {state} here.");
    let manner = Manner {
        caption: &caption,
        none: &without,
        form_word,
        ..Manner::default()
    };
    let Some(word) = form_word.filter(|_| !found.is_empty()) else {
        return jobs::list(found, manner);
    };
    html! {
        @if state == "reserved" { (jobs::list(found, manner)) } @else {
            (selectable(name, state, found, asked, manner, word))
        }
        (jobs::form_of_one(word))
    }
}

/// A list with a box for each job, and a bar that stays in sight.
fn selectable(
    name: &str,
    state: &str,
    found: &Jobs<'_>,
    asked: &Asked,
    manner: Manner<'_>,
    form_word: &str,
) -> Markup {
    let are_ticked = asked.query.text("select").is_some();
    let path = format!("/tubes/{}", words::escaped(name));
    let after = asked.query.text("after").map(words::escaped);
    let after = after.map_or(String::new(), |after| format!("&after={after}"));
    let manner = Manner {
        are_ticked: Some(are_ticked),
        ..manner
    };
    html! {
        form method="post" action=(format!("{path}/count")) {
            input type="hidden" name="form" value=(form_word);
            input type="hidden" name="selection" value="yes";
            input type="hidden" name="state" value=(state);
            (jobs::list(found, manner))
            div class="bar stays" {
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
                label class="of-move" for="selected-to" { "into the tube" }
                input class="of-move" id="selected-to" name="to" maxlength="200" autocomplete="off";
                button { "Count those selected" }
            }
        }
    }
}

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
                summary id="put" { "Put a job" }
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
                summary id="pause-tube" { "Pause the tube" }
                form class="stack" method="post" action=(to("pause")) {
                    (hidden)
                    label for="seconds" { "Seconds; 0 ends a pause" }
                    input id="seconds" name="seconds" type="number" min="0" max="4294967295"
                        value="60" required;
                    button { "Pause" }
                }
            }
            details {
                summary id="many" { "Change many jobs" }
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
