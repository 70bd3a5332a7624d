//! Lists of jobs: each with the beginning of its body, why it failed, how often it was tried, how old
//! it is; a reserved one also with the client that has it, since when, and how long it has left.
//!
//! A page looks at the jobs that it lists and no others. It reads their bodies for [`READING_NS`] at
//! most, some in each turn of the loop: those that are left then are listed without. Reserved jobs
//! have no order of their own; they are found by their clients, [`RESERVED_LOOKS`] of them at most.

use std::collections::HashMap;

use maud::{Markup, html};
use serde_json::{Value, json};

use super::layout::table;
use super::{body, words};
use crate::State;
use crate::answer::Problem;
use crate::api::look::{self, BODY_SIZE_MAX};
use crate::api::run;
use crate::query::Query;
use crate::snapshot::LOOK_AFTER;
use bsd::clock::utc;
use bsd::door::{Peeked, Slice, Step, Work};
use bsd::queue::{JobView, Mark};
use bsd::types::{ClientId, JobId, SECOND_NS, Time};

/// Bodies are read for this time, nanoseconds.
const READING_NS: i64 = SECOND_NS / 10;
/// Bytes of bodies that are read in a turn of the loop; one body may have more.
const TURN_MAX: usize = 256 << 10;
/// Bytes of what a worker said of a failure that are shown.
const SAID_MAX: usize = 200;
/// Reserved jobs that are looked at for one list, those of other tubes too.
const RESERVED_LOOKS: usize = 100_000;
/// Reserved jobs that are listed, those that were reserved first.
const RESERVED_MAX: usize = 100;
/// The form of the buttons that change one job of a list. A button of the form around the list would
/// be the one that Enter presses.
const ONE: &str = "one-job";

/// What a list shows of a job beside its numbers.
#[derive(Debug, Default)]
struct Beside {
    body: Read,
    /// What a worker said of its last failure, the beginning.
    said: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
enum Read {
    /// The beginning, and whether there is more.
    Beginning(Vec<u8>, bool),
    TooLarge,
    /// It is damaged, or the disk does not give it.
    Unreadable,
    #[default]
    NoTime,
}

/// Reads the beginnings of bodies.
struct LookBeside {
    ids: Vec<JobId>,
    begun: Option<Time>,
    found: HashMap<u64, Beside>,
}

impl Work for LookBeside {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let now = slice.now().mono;
        let begun = *self.begun.get_or_insert(now);
        let mut read = 0;
        while let Some(id) = self.ids.pop() {
            let mut beside = Beside {
                said: said(slice, id),
                ..Beside::default()
            };
            if now.since(begun) < READING_NS {
                let (body, size) = beginning(slice, id);
                beside.body = body;
                read += size;
            }
            self.found.insert(id.0, beside);
            if read >= TURN_MAX {
                // Not again in this turn.
                return Step::NotBefore(Time(now.0 + 1));
            }
            if slice.is_over() {
                return Step::More;
            }
        }
        Step::Done
    }
}

fn said(slice: &Slice<'_>, id: JobId) -> Option<Vec<u8>> {
    let said = look::failure_text(slice.engine().queue(), id)?;
    Some(said[..said.len().min(SAID_MAX)].to_vec())
}

/// The beginning of a body, and how many bytes were read for it.
fn beginning(slice: &mut Slice<'_>, id: JobId) -> (Read, usize) {
    let size = slice.engine().queue().job(id).map(|job| job.body_size);
    if size.is_none_or(|size| size > BODY_SIZE_MAX) {
        return (size.map_or(Read::Unreadable, |_| Read::TooLarge), 0);
    }
    match slice.peek(id) {
        Ok(Peeked::Body(mut body)) => {
            let size = body.len();
            body.truncate(body::PREFIX);
            (Read::Beginning(body, size > body::PREFIX), size)
        }
        _ => (Read::Unreadable, 0),
    }
}

/// Jobs, as the API has them, with what a list shows beside that.
#[derive(Debug)]
pub(super) struct Jobs<'a> {
    values: &'a [Value],
    beside: HashMap<u64, Beside>,
    wall_ns: u64,
}

impl<'a> Jobs<'a> {
    /// Look at the bodies of these.
    pub(super) async fn look(state: &State, values: &'a [Value]) -> Result<Jobs<'a>, Problem> {
        let ids = values.iter().rev().filter_map(|job| job["id"].as_u64());
        let look = LookBeside {
            ids: ids.map(JobId).collect(),
            begun: None,
            found: HashMap::new(),
        };
        let beside = match values.is_empty() {
            true => HashMap::new(),
            false => run(&state.doorway, look).await?.found,
        };
        let wall_ns = state.handles.clock.now().wall_ns;
        Ok(Jobs {
            values,
            beside,
            wall_ns,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn have(&self, name: &str) -> bool {
        self.values.iter().any(|job| !job[name].is_null())
    }
}

/// How a list is shown.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Manner<'a> {
    pub(super) caption: &'a str,
    /// What is shown in place of a job where no job is.
    pub(super) none: &'a str,
    /// Each job has a box, which is ticked or not.
    pub(super) are_ticked: Option<bool>,
    /// Secret for the buttons of each job; `None` for viewers without the right to press them.
    pub(super) form_word: Option<&'a str>,
    /// The jobs are of several tubes.
    pub(super) has_tubes: bool,
    /// Who has them is shown elsewhere.
    pub(super) is_of_client: bool,
}

/// The list, which is a list of cards where there is little room.
pub(super) fn list(jobs: &Jobs<'_>, manner: Manner<'_>) -> Markup {
    let is_reserved = jobs.have("held_seconds");
    let has_left = jobs.have("time_left_seconds");
    let has_why = jobs.have("reason") || jobs.have("dead_lettered_from");
    let can_act = jobs.values.iter().any(|job| offer(job).is_some());
    let has_buttons = manner.form_word.is_some() && can_act;
    let has_client = is_reserved && !manner.is_of_client;
    let number = |name: &str| html! { th scope="col" class="number" { (name) } };
    let text = |name: &str| html! { th scope="col" { (name) } };
    let head = html! {
        @if manner.are_ticked.is_some() { th scope="col" { span class="hidden" { "Select" } } }
        (number("Job"))
        @if manner.has_tubes { (text("Tube")) }
        th scope="col" class="wide" { "Body" }
        @if has_why { (text("Why it failed")) }
        @if has_client { (text("Who has it")) }
        @if is_reserved { (number("Since")) }
        @if has_left { (number("Left")) }
        (number("Tried")) (number("Priority")) (number("Age")) (number("Size"))
        @if has_buttons { th scope="col" { span class="hidden" { "Change" } } }
    };
    let rows = html! {
        @for job in jobs.values {
            @let id = job["id"].as_u64().unwrap_or(0);
            @let beside = jobs.beside.get(&id);
            tr {
                @if let Some(is_ticked) = manner.are_ticked {
                    td class="tick" {
                        input type="checkbox" name="id" value=(id) checked[is_ticked]
                            aria-label=(format!("Job {id}"));
                    }
                }
                th scope="row" class="number" { a href=(format!("/jobs/{id}")) { (id) } }
                @if manner.has_tubes { td data-label="Tube" { (tube(job)) } }
                td class="wide" { (body_of(beside)) }
                @if has_why {
                    td class=(if job["reason"].is_null() { "whole none" } else { "whole" })
                        data-label="Why" { (why(job, beside)) }
                }
                @if has_client { td data-label="Has it" { (client(job)) } }
                @if is_reserved {
                    td class="number" data-label="Since" { (since(jobs, job, "held_seconds")) }
                }
                @if has_left {
                    @let is_due = job["time_left_seconds"].is_null();
                    td class=(if is_due { "number none" } else { "number" }) data-label="Left" {
                        (job["time_left_seconds"].as_f64().map_or("–".to_owned(), words::time))
                    }
                }
                td class="number" data-label="Tried" { span title=(counters(job)) { (job["reserves"]) } }
                td class="number" data-label="Priority" { (job["priority"]) }
                td class="number" data-label="Age" { (since(jobs, job, "age_seconds")) }
                td class="number" data-label="Size" {
                    (words::bytes(job["body_size"].as_u64().unwrap_or(0)))
                }
                @if has_buttons { td class="act" { (button(job)) } }
            }
        }
        @if jobs.is_empty() { tr { td class="wide" colspan="12" { (manner.none) } } }
    };
    html! {
        div class="cards" { (table(manner.caption, &head, &rows)) }
    }
}

/// The form of the buttons of a list; it stands outside of any other.
pub(super) fn form_of_one(form_word: &str) -> Markup {
    html! {
        form id=(ONE) method="post" { input type="hidden" name="form" value=(form_word); }
    }
}

/// What can be done with one job of a list at once: the form, and what its button says.
fn offer(job: &Value) -> Option<(&'static str, &'static str)> {
    if !job["held_seconds"].is_null() {
        return Some(("release", "Free"));
    }
    if job["dead_lettered_from"].is_string() {
        return Some(("redrive", "Send back"));
    }
    (job["state"] == "buried").then_some(("kick", "Kick"))
}

fn button(job: &Value) -> Markup {
    html! {
        @if let Some((what, text)) = offer(job) {
            button form=(ONE) formaction=(format!("/jobs/{}/{what}", job["id"])) { (text) }
        }
    }
}

fn tube(job: &Value) -> Markup {
    let name = job["tube"].as_str().unwrap_or_default();
    html! { a href=(format!("/tubes/{}", words::escaped(name))) { (name) } }
}

fn body_of(beside: Option<&Beside>) -> Markup {
    let read = beside.map(|beside| &beside.body);
    html! {
        @match read {
            Some(Read::Beginning(bytes, is_cut)) => {
                @let (kind, line) = body::preview(bytes, *is_cut);
                @if line.is_empty() { small { (kind) } } @else {
                    code class="preview" title=(kind) { (line) }
                    @if !["JSON", "text"].contains(&&*kind) { " " small { (kind) } }
                }
            }
            Some(Read::TooLarge) => small { "more than 64 KiB" },
            Some(Read::Unreadable) => small { "cannot be read" },
            Some(Read::NoTime) | None => small { "not read: the disk is slow" },
        }
    }
}

fn why(job: &Value, beside: Option<&Beside>) -> Markup {
    let said = beside.and_then(|beside| beside.said.as_deref());
    let text = |said| body::one_line(&String::from_utf8_lossy(said), said.len() == SAID_MAX);
    html! {
        (job["reason"].as_str().unwrap_or("–"))
        @if let Some(said) = said { ": " q { (text(said)) } }
        @if let Some(from) = job["dead_lettered_from"].as_str() {
            " " small {
                "dead letter of " a href=(format!("/tubes/{}", words::escaped(from))) { (from) }
            }
        }
    }
}

fn client(job: &Value) -> Markup {
    let id = job["reserved_by"].as_u64().unwrap_or(0);
    html! {
        a href=(format!("/clients/{id}")) { "client " (id) }
        @if let Some(who) = job["client_name"].as_str().or(job["client_address"].as_str()) {
            " " small { (who) }
        }
    }
}

/// How long ago something was, with its time.
fn since(jobs: &Jobs<'_>, job: &Value, name: &str) -> Markup {
    ago(job[name].as_f64().unwrap_or(0.0), jobs.wall_ns)
}

/// How long before `wall_ns` something was, with its time.
pub(super) fn ago(seconds: f64, wall_ns: u64) -> Markup {
    let at = utc(wall_ns.saturating_sub((seconds * 1e9) as u64));
    html! { time datetime=(at) title=(at) { (words::time(seconds)) } }
}

/// How often what has happened to a job.
fn counters(job: &Value) -> String {
    let counters = ["reserves", "timeouts", "releases", "buries", "kicks"];
    let counters = counters.map(|name| format!("{name}: {}", job[name]));
    counters.join(", ")
}

/// Jobs of a tube in a state, as the API lists them; reserved ones, too.
pub(super) async fn listed(
    state: &State,
    tube: &str,
    wanted: &str,
    query: &Query,
) -> Result<Value, Problem> {
    if wanted != "reserved" {
        return look::list_jobs(&state.doorway, tube.to_owned(), query).await;
    }
    let look = reserved(state, tube).await?;
    Ok(json!({"jobs": look.jobs, "next": null, "is_cut": !look.is_all}))
}

/// Jobs of a tube that clients have reserved, those first that they have had for longest.
async fn reserved(state: &State, tube: &str) -> Result<Reserved, Problem> {
    let look = LookReserved {
        tube: tube.to_owned(),
        next: 0,
        current: None,
        looked_at: 0,
        found: Vec::new(),
    };
    let mut look = run(&state.doorway, look).await?;
    look.shorten();
    Ok(Reserved {
        jobs: look.found.into_iter().map(|(_, value)| value).collect(),
        is_all: look.looked_at < RESERVED_LOOKS,
    })
}

/// Reserved jobs of a tube.
struct Reserved {
    jobs: Vec<Value>,
    /// All reserved jobs were looked at.
    is_all: bool,
}

struct LookReserved {
    tube: String,
    /// The next client, and the one whose jobs are looked at, with the next of them.
    next: u32,
    current: Option<(ClientId, Mark)>,
    looked_at: usize,
    /// Since when each is reserved.
    found: Vec<(Time, Value)>,
}

impl Work for LookReserved {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        for looks in 1.. {
            if self.looked_at == RESERVED_LOOKS || !self.look_on(slice) {
                return Step::Done;
            }
            if looks % LOOK_AFTER == 0 && slice.is_over() {
                break;
            }
        }
        Step::More
    }
}

impl LookReserved {
    /// One step: a client, or one of its reserved jobs. `false` behind the last.
    fn look_on(&mut self, slice: &Slice<'_>) -> bool {
        let queue = slice.engine().queue();
        match self.current.take() {
            Some((id, mark)) => self.look_at_job(id, mark, slice),
            None if self.next >= queue.clients_bound() => return false,
            None => {
                let id = ClientId(self.next);
                self.next += 1;
                let first = queue.client_view(id).and_then(|view| view.first_reserved);
                self.current = first.map(|mark| (id, mark));
            }
        }
        true
    }

    fn look_at_job(&mut self, id: ClientId, mark: Mark, slice: &Slice<'_>) {
        let (queue, now) = (slice.engine().queue(), slice.now());
        // It may have left since the last slice.
        if queue.client_view(id).is_none() {
            return;
        }
        self.looked_at += 1;
        self.current = queue.reserved_behind(id, mark).map(|mark| (id, mark));
        let is_meant = |job: &JobView<'_>| job.tube == self.tube && job.reserver == Some(id);
        let Some(job) = queue.job(mark.id).filter(is_meant) else {
            return;
        };
        let since = reserved_at(job.deadline, job.ttr);
        let mut value = look::job_value(queue, &job, now);
        add_held(&mut value, since, now.mono);
        if let Some(link) = slice.link(id) {
            value["client_address"] = json!(link.peer.map(|peer| peer.to_string()));
            value["client_name"] = json!(link.name.as_deref());
        }
        self.found.push((since, value));
        if self.found.len() > 2 * RESERVED_MAX {
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        self.found.sort_by_key(|(since, _)| *since);
        self.found.truncate(RESERVED_MAX);
    }
}

/// When a job was reserved, or touched last.
fn reserved_at(deadline: Option<Time>, ttr: u32) -> Time {
    let time_to_run = Time(0).plus_seconds(ttr).0;
    Time(deadline.unwrap_or_default().0.saturating_sub(time_to_run))
}

fn add_held(value: &mut Value, since: Time, now: Time) {
    value["held_seconds"] = json!(now.since(since).max(0) as f64 / SECOND_NS as f64);
}

/// The same of jobs that the API lists: since when they are reserved follows from their time left.
pub(super) fn with_held(mut jobs: Vec<Value>) -> Vec<Value> {
    for job in &mut jobs {
        let (ttr, left) = (job["ttr"].as_f64(), job["time_left_seconds"].as_f64());
        if let Some((ttr, left)) = ttr.zip(left) {
            job["held_seconds"] = json!((ttr - left).max(0.0));
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(values: &[Value], beside: Vec<(u64, Beside)>, form_word: Option<&str>) -> String {
        let jobs = Jobs {
            values,
            beside: beside.into_iter().collect(),
            wall_ns: 100 * SECOND_NS as u64,
        };
        let manner = Manner {
            caption: "Jobs",
            none: "None.",
            form_word,
            ..Manner::default()
        };
        list(&jobs, manner).into_string()
    }

    #[test]
    fn a_list_shows_what_is_in_a_job_and_why_it_failed_as_text() {
        let dead = json!({"id": 7, "reserves": 3, "priority": 5, "age_seconds": 40.0,
            "body_size": 3, "failures": 3, "reason": "failed", "dead_lettered_from": "a/b"});
        let beside = Beside {
            body: Read::Beginning(b"<b>".to_vec(), false),
            said: Some(b"<i>".to_vec()),
        };
        let shown = page(std::slice::from_ref(&dead), vec![(7, beside)], Some("word"));
        for part in [
            "&lt;b&gt;</code>",
            "failed: <q>&lt;i&gt;</q>",
            "href=\"/tubes/a%2Fb\"",
            "title=\"1970-01-01T00:01:00.000Z\">40 s</time>",
            "formaction=\"/jobs/7/redrive\"",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let buried = json!({"id": 8, "state": "buried", "failures": 1});
        let kick = "formaction=\"/jobs/8/kick\">Kick<";
        assert!(page(&[buried], vec![], Some("word")).contains(kick));
        let shown = page(&[dead], vec![], None);
        assert!(
            !shown.contains("<button") && shown.contains("not read"),
            "{shown}"
        );
    }

    #[test]
    fn a_reserved_job_is_shown_with_who_has_it_since_when_and_a_way_to_free_it() {
        let mut value = json!({"id": 7, "ttr": 60, "time_left_seconds": 20.0, "reserved_by": 3,
            "client_address": "127.0.0.1:5", "age_seconds": 70.0});
        add_held(
            &mut value,
            reserved_at(Some(Time(100 * SECOND_NS)), 60),
            Time(80 * SECOND_NS),
        );
        assert_eq!(with_held(vec![value.clone()])[0]["held_seconds"], 40.0);
        assert_eq!(value["held_seconds"], 40.0);
        let shown = page(&[value.clone()], vec![], Some("word"));
        for part in [
            "href=\"/clients/3\"",
            "127.0.0.1:5",
            "00:01:00.000Z\">40 s</time>",
            "data-label=\"Left\">20 s<",
            "formaction=\"/jobs/7/release\"",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!page(&[value], vec![], None).contains("formaction"));
    }
}
