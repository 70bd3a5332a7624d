//! The part that looks: the server, tubes, one tube, one job. Each asks the engine with
//! one piece of work, which comes in slices where it may take long.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::{LIMIT_MAX, bad, gone, job_id, not_found, of_error, run, tube_name};
use crate::answer::{Answer, Problem, json};
use crate::doorway::Doorway;
use crate::exposition::seconds;
use crate::query::Query;
use crate::snapshot::{LOOK_AFTER, TubeFigures};
use crate::{ServerHandles, State, cluster};
use bsd::attributes::{Attributes, Reason, Unique};
use bsd::clock::utc;
use bsd::door::{JobError, Peeked, Slice, Step, Work};
use bsd::engine::{Figures, LogFigures, PROTOCOL_VERSION};
use bsd::histogram::{Buckets, quantile};
use bsd::queue::{JobView, Lost, Mark, Queue, TubeList};
use bsd::types::{JobCounts, JobId, JobState, Now};
use bsd_archive::{Joins, Report, Reporter};

/// Tubes of a page, unless it is said how many.
pub(super) const LIMIT_DEFAULT: usize = 100;
/// A larger body is left out.
pub(crate) const BODY_SIZE_MAX: u32 = 64 << 10;

/// `GET /api/v1/server`
pub(crate) async fn server(state: &State) -> Result<Answer, Problem> {
    let look = run(&state.doorway, Look(None)).await?;
    let figures = look.0.ok_or_else(gone)?;
    let mut value = server_value(&figures);
    (value["archive"], value["archives"]) = archive_values(&state.handles);
    Ok(json(StatusCode::OK, &value))
}

/// `GET /api/v1/tubes`
pub(crate) async fn tubes(doorway: &Doorway, query: &Query) -> Result<Answer, Problem> {
    let limit = query.number("limit", 1, LIMIT_MAX as u64)?;
    let listing = Listing {
        after: query.text("after").unwrap_or_default().to_owned(),
        contains: query.text("contains").unwrap_or_default().to_owned(),
        limit: limit.map_or(LIMIT_DEFAULT, |limit| limit as usize),
        list: None,
        next: 0,
        found: BTreeMap::new(),
        is_cut: false,
    };
    let listing = run(doorway, listing).await?;
    let last = listing.found.keys().next_back().filter(|_| listing.is_cut);
    let tubes = listing
        .found
        .iter()
        .map(|(name, tube)| tube_value(name, tube));
    let value = json!({"tubes": tubes.collect::<Vec<_>>(), "next": last});
    Ok(json(StatusCode::OK, &value))
}

/// `GET /api/v1/tubes/{tube}`
pub(crate) async fn tube(doorway: &Doorway, name: String) -> Result<Answer, Problem> {
    let found = look_at_tube(doorway, name).await?;
    Ok(json(StatusCode::OK, &found))
}

/// One tube, as it is answered.
pub(crate) async fn look_at_tube(doorway: &Doorway, name: String) -> Result<Value, Problem> {
    let name = tube_name(name)?;
    let look = run(doorway, LookAtTube { name, found: None }).await?;
    match look.found {
        Some(tube) => Ok(tube_value(&look.name, &tube)),
        None => Err(not_found("there is no such tube")),
    }
}

/// `GET /api/v1/tubes/{tube}/jobs`
pub(crate) async fn jobs(
    doorway: &Doorway,
    tube: String,
    query: &Query,
) -> Result<Answer, Problem> {
    let listed = list_jobs(doorway, tube, query).await?;
    Ok(json(StatusCode::OK, &listed))
}

/// Jobs of a tube, as they are answered.
pub(crate) async fn list_jobs(
    doorway: &Doorway,
    tube: String,
    query: &Query,
) -> Result<Value, Problem> {
    let limit = query.number("limit", 1, LIMIT_MAX as u64)?;
    let listing = JobListing {
        tube,
        state: listed_state(query.text("state"))?,
        limit: limit.map_or(LIMIT_DEFAULT, |limit| limit as usize),
        mark: query.text("after").map(parse_mark).transpose()?,
        found: Vec::new(),
        end: None,
    };
    let listing = run(doorway, listing).await?;
    match listing.end {
        Some(End::Last) => Ok(listing.value(false)),
        Some(End::Full) => Ok(listing.value(true)),
        Some(End::NoTube) => Err(not_found("there is no such tube")),
        Some(End::Lost) => Err(Problem::new(
            StatusCode::GONE,
            "the last job of the page before is no longer buried here; begin again",
        )),
        None => Err(gone()),
    }
}

/// The states in which the jobs of a tube have an order.
pub(crate) const LISTED: &[&str] = &["ready", "delayed", "buried"];

fn listed_state(word: Option<&str>) -> Result<JobState, Problem> {
    let states = [JobState::Ready, JobState::Delayed, JobState::Buried];
    let wanted = word.unwrap_or(JobState::Ready.word());
    let found = states.into_iter().find(|state| state.word() == wanted);
    found.ok_or_else(|| bad(format!("state is one of {LISTED:?}")))
}

/// `KEY.ID`, as `next` has it.
fn parse_mark(text: &str) -> Result<Mark, Problem> {
    let parts = text.split_once('.');
    let mark = parts.and_then(|(key, id)| {
        let (key, id) = (key.parse().ok()?, JobId(id.parse().ok()?));
        Some(Mark { key, id })
    });
    mark.ok_or_else(|| bad("after is what `next` of the page before was"))
}

/// `GET /api/v1/jobs/{id}`
pub(crate) async fn job(doorway: &Doorway, id: &str) -> Result<Answer, Problem> {
    let id = job_id(id)?;
    let look = run(doorway, LookAtJob { id, found: None }).await?;
    match look.found {
        Some(Ok(value)) => Ok(json(StatusCode::OK, &value)),
        Some(Err(error)) => Err(of_error(&error)),
        None => Err(not_found("there is no such job")),
    }
}

struct Look(Option<Figures>);

impl Work for Look {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.0 = Some(slice.engine().figures(slice.now()));
        Step::Done
    }
}

struct LookAtTube {
    name: String,
    found: Option<TubeFigures>,
}

impl Work for LookAtTube {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let queue = slice.engine().queue();
        self.found = TubeFigures::of(queue, &self.name, slice.now().mono);
        Step::Done
    }
}

struct LookAtJob {
    id: JobId,
    found: Option<Result<Value, JobError>>,
}

impl Work for LookAtJob {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let now = slice.now();
        let Some(job) = slice.engine().queue().job(self.id) else {
            return Step::Done;
        };
        let queue = slice.engine().queue();
        let mut value = job_value(queue, &job, now);
        if let Some(text) = failure_text(queue, self.id) {
            value["text"] = body_value(text);
        }
        if job.body_size <= BODY_SIZE_MAX {
            match slice.peek(self.id) {
                Ok(Peeked::Body(body)) => value["body"] = body_value(&body),
                Ok(Peeked::Gone | Peeked::Unreadable(_)) => {}
                Err(error) => {
                    self.found = Some(Err(error));
                    return Step::Done;
                }
            }
        }
        self.found = Some(Ok(value));
        Step::Done
    }
}

/// A page of tubes, by name: those behind `after` are looked at, and the first of them kept.
struct Listing {
    after: String,
    contains: String,
    limit: usize,
    list: Option<TubeList>,
    /// The next one of the list.
    next: usize,
    found: BTreeMap<String, TubeFigures>,
    /// There are more than are kept.
    is_cut: bool,
}

impl Work for Listing {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let mut step = Step::Done;
        let list = self.list.take();
        let list = list.unwrap_or_else(|| slice.engine().queue().tube_list());
        for (seen, name) in (1..).zip(list.names_from(self.next)) {
            self.next += 1;
            self.look_at(name, slice);
            if seen % LOOK_AFTER == 0 && slice.is_over() {
                step = Step::More;
                break;
            }
        }
        self.list = Some(list).filter(|_| step == Step::More);
        step
    }
}

impl Listing {
    fn look_at(&mut self, name: &str, slice: &Slice<'_>) {
        let last = self.found.keys().next_back();
        let is_full = self.found.len() == self.limit;
        let is_behind = is_full && last.is_some_and(|last| name > &**last);
        if name <= &*self.after || !name.contains(&self.contains) {
            return;
        }
        if is_behind {
            self.is_cut = true;
            return;
        }
        let found = TubeFigures::of(slice.engine().queue(), name, slice.now().mono);
        if let Some(tube) = found.filter(|tube| !tube.is_gone) {
            self.found.insert(name.to_owned(), tube);
        }
        if self.found.len() > self.limit {
            self.found.pop_last();
            self.is_cut = true;
        }
    }
}

/// A page of jobs.
struct JobListing {
    tube: String,
    state: JobState,
    limit: usize,
    /// The last job that was listed.
    mark: Option<Mark>,
    found: Vec<Value>,
    end: Option<End>,
}

/// Why a listing ended.
#[derive(Debug, Clone, Copy)]
enum End {
    Last,
    /// There may be more.
    Full,
    NoTube,
    Lost,
}

impl Work for JobListing {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        loop {
            self.end = self.look_at_next(slice);
            if self.end.is_some() {
                return Step::Done;
            }
            if self.found.len().is_multiple_of(LOOK_AFTER) && slice.is_over() {
                return Step::More;
            }
        }
    }
}

impl JobListing {
    fn look_at_next(&mut self, slice: &Slice<'_>) -> Option<End> {
        if self.found.len() == self.limit {
            return Some(End::Full);
        }
        let queue = slice.engine().queue();
        if !queue.tube_exists(&self.tube) {
            return Some(End::NoTube);
        }
        match queue.job_behind(&self.tube, self.state, self.mark) {
            Err(Lost) => Some(End::Lost),
            Ok(None) => Some(End::Last),
            Ok(Some(mark)) => {
                let job = queue.job(mark.id);
                let value = job.map(|job| job_value(queue, &job, slice.now()));
                self.found.extend(value);
                self.mark = Some(mark);
                None
            }
        }
    }

    fn value(self, has_more: bool) -> Value {
        let next = self.mark.filter(|_| has_more);
        let next = next.map(|mark| format!("{}.{}", mark.key, mark.id));
        json!({"jobs": self.found, "next": next})
    }
}

fn counts_value(jobs: &JobCounts) -> Value {
    json!({
        "urgent": jobs.urgent,
        "ready": jobs.ready,
        "reserved": jobs.reserved,
        "delayed": jobs.delayed,
        "buried": jobs.buried,
    })
}

pub(crate) fn tube_value(name: &str, tube: &TubeFigures) -> Value {
    json!({
        "name": name,
        "exists": !tube.is_gone,
        "jobs": counts_value(&tube.jobs),
        "users": tube.using,
        "watchers": tube.watching,
        "waiting": tube.waiting,
        "puts": tube.puts,
        "deletes": tube.deletes,
        "pauses": tube.pauses,
        "pause_left_seconds": seconds(tube.pause_left_ns),
        "oldest_ready_age_seconds": seconds(tube.oldest_ready_ns),
        "tally": tally_value(tube),
    })
}

/// What has happened in a tube; null: nothing, or it has no tally.
fn tally_value(tube: &TubeFigures) -> Value {
    let Some(tally) = &tube.tally else {
        return Value::Null;
    };
    let failures = tube.failures.as_deref().copied().unwrap_or_default();
    json!({
        "reserves": tally.events.reserves,
        "releases": tally.events.releases,
        "buries": tally.events.buries,
        "kicks": tally.events.kicks,
        "timeouts": tally.events.timeouts,
        "fails": failures.by_reason[Reason::Failed as usize],
        "wait": times_value(&tally.waits),
        "hold": times_value(&tally.holds),
    })
}

fn times_value(times: &Buckets) -> Value {
    let reading = times.read();
    let part = |part: f64| quantile(reading.bounds, &reading.counts, part);
    json!({
        "jobs": times.count(),
        "p50_seconds": part(0.5),
        "p95_seconds": part(0.95),
        "p99_seconds": part(0.99),
    })
}

/// A job without what lists leave out: its body, and what a worker said of it.
pub(crate) fn job_value(queue: &Queue, job: &JobView<'_>, now: Now) -> Value {
    let left = job
        .deadline
        .map(|deadline| seconds(deadline.since(now.mono).max(0)));
    let mut value = json!({
        "id": job.id.0,
        "tube": job.tube,
        "state": job.state.word(),
        "priority": job.pri,
        "delay": job.delay,
        "ttr": job.ttr,
        "age_seconds": seconds(now.mono.since(job.created).max(0)),
        "time_left_seconds": left,
        "reserved_by": job.reserver.map(|client| client.0),
        "reserves": job.counters.reserves,
        "timeouts": job.counters.timeouts,
        "releases": job.counters.releases,
        "buries": job.counters.buries,
        "kicks": job.counters.kicks,
        "body_size": job.body_size,
        "body": null,
        "deliveries": queue.deliveries(job.id),
    });
    let attributes = queue.attributes(job.id).and_then(Attributes::decode);
    if let Some(attributes) = attributes {
        add_attributes(&mut value, &attributes);
    }
    value
}

/// What a job has beyond a plain one, where it has it.
fn add_attributes(value: &mut Value, attributes: &Attributes<'_>) {
    let at = attributes.dead_lettered_at_wall_ns().map(utc);
    for (name, text) in [
        ("key", attributes.key),
        ("unique", attributes.unique.map(Unique::word)),
        ("group", attributes.group),
        ("reason", attributes.reason.map(Reason::word)),
        ("dead_lettered_from", attributes.dead_lettered_from),
        ("dead_lettered_at", at.as_deref()),
    ] {
        if let Some(text) = text {
            value[name] = json!(text);
        }
    }
    if let Some(failures) = attributes.failures {
        value["failures"] = json!(failures);
    }
}

/// What a worker said of the last failure of a job: any bytes.
pub(crate) fn failure_text(queue: &Queue, id: JobId) -> Option<&[u8]> {
    queue.attributes(id).and_then(Attributes::decode)?.text
}

/// As text, if it is one.
pub(super) fn body_value(body: &[u8]) -> Value {
    use base64::Engine as _;
    match std::str::from_utf8(body) {
        Ok(text) => json!({"encoding": "text", "data": text}),
        Err(_) => {
            let data = base64::engine::general_purpose::STANDARD.encode(body);
            json!({"encoding": "base64", "data": data})
        }
    }
}

fn server_value(figures: &Figures) -> Value {
    let queue = &figures.queue;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": PROTOCOL_VERSION,
        "pid": std::process::id(),
        "id": figures.run_id,
        "uptime_seconds": figures.uptime_seconds,
        "draining": figures.is_draining,
        "jobs": counts_value(&queue.jobs),
        "puts": queue.total_jobs,
        "timeouts": queue.timeouts,
        "job_size_max": figures.job_size_max,
        "tubes": queue.tubes,
        "connections": queue.connections,
        "producers": queue.producers,
        "workers": queue.workers,
        "waiting": queue.waiting,
        "memory": {
            "queue_bytes": figures.queue_memory,
            "clients_bytes": figures.clients_memory,
            "bodies_bytes": figures.bodies_memory,
            "pauses_bytes": figures.pauses_memory,
            "max_bytes": figures.memory_max,
            "missing_bytes": figures.memory_missing,
        },
        "log": figures.log.as_ref().map(log_value),
    })
}

/// State of the first archive, null without one; and of all, in the order of the flags. Of a member that
/// follows, that it has them, and which member writes them.
pub(super) fn archive_values(handles: &ServerHandles) -> (Value, Value) {
    let mut reports = handles.archives();
    if reports.is_empty() && handles.archive_rests() {
        let resting = |it: &Reporter| Report {
            place: it.place().to_owned(),
            ..Report::default()
        };
        reports.extend(handles.archives.iter().map(resting));
    }
    let all: Vec<_> = reports
        .iter()
        .map(|it| archive_value(it, handles))
        .collect();
    (all.first().cloned().into(), all.into())
}

fn archive_value(report: &Report, handles: &ServerHandles) -> Value {
    let figures = &report.figures;
    let trouble = report.ended.as_ref().or(report.trouble.as_ref()).cloned();
    let lag = seconds(report.lag_ns(handles.clock.now().mono));
    let base = figures.base_wall_ns / 1_000_000_000;
    json!({
        "url": report.place,
        "up": report.is_up(),
        "trouble": trouble.or_else(|| cluster::unarchived(handles)),
        "epoch": report.epoch,
        "archived": report.archived.map(|at| at.to_string()),
        "lag_bytes": report.lag_bytes,
        "lag_seconds": lag,
        "in_gap": report.is_in_gap,
        "base_percent": report.base.map(|_| report.base_percent()),
        "gaps": figures.gaps,
        "links": figures.links,
        "bytes": figures.bytes,
        "bases": figures.bases,
        "last_base_timestamp_seconds": (base > 0).then_some(base),
        "errors": report.errors,
        "joins": report.joins.as_ref().map(joins_value),
        "rests": handles.archive_rests(),
        "member": cluster::archives(handles),
    })
}

/// State of what is joined in an archive.
fn joins_value(joins: &Joins) -> Value {
    let last = joins.wall_ns / 1_000_000_000;
    json!({
        "last_pass_timestamp_seconds": (last > 0).then_some(last),
        "joined_links": joins.links.map(|(joined, _)| joined),
        "single_links": joins.links.map(|(_, singles)| singles),
        "objects": joins.objects,
        "failures": joins.failures,
        "trouble": joins.trouble,
    })
}

pub(super) fn log_value(log: &LogFigures) -> Value {
    json!({
        "live_bytes": log.live,
        "dead_bytes": log.dead,
        "reserved_bytes": log.reserved,
        "unsynced_bytes": log.unsynced,
        "segments": log.segments,
        "first_segment": log.first_segment,
        "current_segment": log.current_segment,
        "records_written": log.records_written,
        "records_migrated": log.records_migrated,
        "compactions": log.compactions,
        "compacting": log.is_compacting,
        "missing_bytes": log.missing,
    })
}
