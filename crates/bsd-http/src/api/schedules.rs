//! Schedules: what is put by itself, and when.
//!
//! A schedule is set as a whole: what a request does not name has its default, but for a pause, which
//! stays. The engine's thread
//! copies what is asked for; the times that come next are worked out on the thread of HTTP.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::fields::{Fields, needed};
use super::look::{LIMIT_DEFAULT, body_value};
use super::{LIMIT_MAX, bad, gone, not_found, of_error, run, tube_name};
use crate::answer::{Answer, Problem, Said, json};
use crate::doorway::Doorway;
use crate::query::Query;
use bsd::UsageError;
use bsd::door::{JobError, Slice, Step, Work};
use bsd::engine::{ScheduleChange, ScheduleRun, ScheduleView};
use bsd::protocol::SetSchedule;
use bsd::schedule::{Missed, SCHEDULES_MAX, Schedule, check_name};
use bsd::types::{JobId, Now};

/// Times that are told of each schedule, at most.
const TIMES: usize = 5;
/// The words of what becomes of times that were missed; the first is the default.
pub(crate) const MISSED: [&str; 3] = ["skip", "once", "all"];

/// A schedule as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// As it is answered, with its body.
    pub(crate) value: Value,
    pub(crate) body: Vec<u8>,
}

/// A schedule, and how far it has come, as the engine has it.
#[derive(Debug)]
struct Seen {
    /// Without the body, in a list.
    schedule: Schedule,
    body_size: usize,
    /// Wall times, nanoseconds since 1970.
    fired_up_to_ns: i64,
    now_ns: i64,
    /// Firings that wait for room.
    waiting: usize,
}

impl Seen {
    fn of(view: &ScheduleView<'_>, with_body: bool, now: Now) -> Seen {
        let from = view.schedule;
        let schedule = Schedule {
            cron: from.cron.clone(),
            tz: from.tz.clone(),
            tube: from.tube.clone(),
            key: from.key.clone(),
            body: if with_body {
                from.body.clone()
            } else {
                Vec::new()
            },
            ..*from
        };
        Seen {
            schedule,
            body_size: from.body.len(),
            fired_up_to_ns: view.fired_up_to_ns,
            now_ns: i64::try_from(now.wall_ns).unwrap_or(i64::MAX),
            waiting: view.waiting,
        }
    }
}

/// `GET /api/v1/schedules`
pub(crate) async fn list(doorway: &Doorway, query: &Query) -> Result<Answer, Problem> {
    let limit = query.number("limit", 1, LIMIT_MAX as u64)?;
    let limit = limit.map_or(LIMIT_DEFAULT, |limit| limit as usize);
    let after = query.text("after").unwrap_or_default();
    let value = look_at_list(doorway, after, query.text("tube"), limit).await?;
    Ok(json(StatusCode::OK, &value))
}

/// A page of schedules, by their names: all, or those that put into this tube.
pub(crate) async fn look_at_list(
    doorway: &Doorway,
    after: &str,
    tube: Option<&str>,
    limit: usize,
) -> Result<Value, Problem> {
    let listing = Listing {
        after: after.to_owned(),
        tube: tube.map(str::to_owned),
        limit,
        found: BTreeMap::new(),
        is_cut: false,
    };
    let listing = run(doorway, listing).await?;
    let last = listing.found.keys().next_back().filter(|_| listing.is_cut);
    let schedules = listing.found.iter();
    let schedules = schedules.map(|(name, seen)| value(name, seen));
    Ok(json!({"schedules": schedules.collect::<Vec<_>>(), "next": last}))
}

/// `GET /api/v1/schedules/{schedule}`
pub(crate) async fn show(doorway: &Doorway, name: String) -> Result<Answer, Problem> {
    let found = look(doorway, name).await?;
    Ok(json(StatusCode::OK, &found.value))
}

/// A schedule, as it is answered.
pub(crate) async fn look(doorway: &Doorway, name: String) -> Result<Found, Problem> {
    let look = Look { name, seen: None };
    let Look { name, seen } = run(doorway, look).await?;
    let seen = seen.ok_or_else(no_schedule)?;
    let value = whole_value(&name, &seen);
    let body = seen.schedule.body;
    Ok(Found { value, body })
}

fn no_schedule() -> Problem {
    not_found("there is no schedule of this name; GET /api/v1/schedules lists those that there are")
}

/// `PUT /api/v1/schedules/{schedule}`
pub(crate) async fn set(
    doorway: &Doorway,
    name: String,
    fields: &Fields,
) -> Result<Answer, Problem> {
    check_name(&name).map_err(|error| bad(error.to_string()))?;
    let schedule = parse(fields)?;
    let said = schedule.to_string();
    let set = SetSchedule {
        name: name.clone(),
        schedule,
        keeps_pause: !fields.has("paused"),
    };
    let changed = change(doorway, name, Action::Set(Box::new(set))).await?;
    Ok(Said(said).with(json(StatusCode::OK, &changed)))
}

/// `DELETE /api/v1/schedules/{schedule}`
pub(crate) async fn delete(doorway: &Doorway, name: String) -> Result<Answer, Problem> {
    change(doorway, name.clone(), Action::Delete).await?;
    Ok(json(StatusCode::OK, &json!({"name": name})))
}

/// `POST /api/v1/schedules/{schedule}/run`
pub(crate) async fn run_now(
    doorway: &Doorway,
    name: String,
    fields: &Fields,
) -> Result<Answer, Problem> {
    fields.only(&[])?;
    let changed = change(doorway, name, Action::Run).await?;
    let said = Said(format!("job {}", changed["id"]));
    Ok(said.with(json(StatusCode::CREATED, &changed)))
}

/// `POST /api/v1/schedules/{schedule}/pause`, and `…/resume`
pub(crate) async fn set_paused(
    doorway: &Doorway,
    name: String,
    is_paused: bool,
    fields: &Fields,
) -> Result<Answer, Problem> {
    fields.only(&[])?;
    let changed = change(doorway, name, Action::Pause(is_paused)).await?;
    Ok(json(StatusCode::OK, &changed))
}

/// The schedule that these fields say.
fn parse(fields: &Fields) -> Result<Schedule, Problem> {
    fields.only(&[
        "cron", "tz", "tube", "priority", "ttr", "key", "missed", "paused", "body",
    ])?;
    let usual = Schedule::default();
    let missed = fields
        .text("missed")?
        .map(|word| Missed::parse(word).ok_or_else(|| bad(format!("missed is one of {MISSED:?}"))));
    let text = |name: &str| fields.text(name).map(|text| text.map(str::to_owned));
    let schedule = Schedule {
        cron: needed("cron", text("cron")?)?,
        tz: text("tz")?.unwrap_or(usual.tz),
        tube: tube_name(needed("tube", text("tube")?)?)?,
        pri: fields.number_of_job("priority", 0)?.unwrap_or(usual.pri),
        ttr: fields.number_of_job("ttr", 1)?.unwrap_or(usual.ttr),
        key: text("key")?,
        missed: missed.transpose()?.unwrap_or_default(),
        is_paused: fields.flag("paused")?,
        body: needed("body", fields.bytes("body")?)?,
    };
    schedule
        .timetable()
        .map_err(|error| bad(error.to_string()))?;
    match schedule.encode() {
        Ok(_) => Ok(schedule),
        Err(error) => Err(too_large(&error)),
    }
}

fn too_large(error: &UsageError) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
}

/// Without its body.
fn value(name: &str, seen: &Seen) -> Value {
    let schedule = &seen.schedule;
    let timetable = schedule.timetable().ok();
    let shown = |wall_ns| timetable.as_ref().map(|it| it.shown(wall_ns));
    // A clock that was set back fires nothing twice.
    let from = seen.now_ns.max(seen.fired_up_to_ns);
    let next = timetable.iter().flat_map(|it| it.after(from));
    let next = next.take(TIMES).filter_map(shown);
    let fired = Some(seen.fired_up_to_ns).filter(|at| *at > 0);
    json!({
        "name": name,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "tube": schedule.tube,
        "priority": schedule.pri,
        "ttr": schedule.ttr,
        "key": schedule.key,
        "missed": schedule.missed.word(),
        "paused": schedule.is_paused,
        "body_size": seen.body_size,
        "body": null,
        "fired_up_to": fired.and_then(shown),
        "waiting": seen.waiting,
        "next_firings": next.collect::<Vec<_>>(),
    })
}

fn whole_value(name: &str, seen: &Seen) -> Value {
    let mut value = value(name, seen);
    value["body"] = body_value(&seen.schedule.body);
    value
}

/// A page of schedules. There are so few that one step looks at all.
struct Listing {
    after: String,
    tube: Option<String>,
    limit: usize,
    found: BTreeMap<String, Seen>,
    /// There are more than are kept.
    is_cut: bool,
}

impl Work for Listing {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let now = slice.now();
        for view in slice.engine().schedules() {
            let is_there = self
                .tube
                .as_ref()
                .is_none_or(|tube| view.schedule.tube == *tube);
            if view.name <= &*self.after || !is_there {
                continue;
            }
            if self.found.len() == self.limit {
                self.is_cut = true;
                break;
            }
            let seen = Seen::of(&view, false, now);
            self.found.insert(view.name.to_owned(), seen);
        }
        Step::Done
    }
}

struct Look {
    name: String,
    seen: Option<Seen>,
}

impl Work for Look {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let view = slice.engine().schedule(&self.name);
        self.seen = view.map(|view| Seen::of(&view, true, slice.now()));
        Step::Done
    }
}

/// What is done with a schedule.
enum Action {
    Set(Box<SetSchedule>),
    Delete,
    Pause(bool),
    Run,
}

/// What has come of it.
enum Outcome {
    Changed(Result<ScheduleChange, JobError>),
    Run(Result<ScheduleRun, JobError>),
}

/// Changes a schedule, and then looks at it.
struct Change {
    name: String,
    action: Action,
    outcome: Option<Outcome>,
    seen: Option<Seen>,
}

impl Work for Change {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let name = &self.name;
        self.outcome = Some(match &self.action {
            Action::Set(set) => Outcome::Changed(slice.set_schedule(set)),
            Action::Delete => Outcome::Changed(slice.delete_schedule(name)),
            Action::Pause(is_paused) => Outcome::Changed(slice.pause_schedule(name, *is_paused)),
            Action::Run => Outcome::Run(slice.run_schedule_now(name)),
        });
        let view = slice.engine().schedule(name);
        self.seen = view.map(|view| Seen::of(&view, true, slice.now()));
        Step::Done
    }
}

/// Do this with a schedule. Returns the schedule as it is then, or the id of the job that was put.
async fn change(doorway: &Doorway, name: String, action: Action) -> Result<Value, Problem> {
    let change = Change {
        name,
        action,
        outcome: None,
        seen: None,
    };
    let changed = run(doorway, change).await?;
    match changed.outcome.ok_or_else(gone)? {
        Outcome::Changed(outcome) => {
            check_change(outcome.map_err(|error| of_error(&error))?)?;
            let seen = changed.seen.as_ref();
            Ok(seen.map_or(Value::Null, |seen| whole_value(&changed.name, seen)))
        }
        Outcome::Run(outcome) => {
            let id = put_by(outcome.map_err(|error| of_error(&error))?)?;
            Ok(json!({"id": id.0}))
        }
    }
}

fn check_change(outcome: ScheduleChange) -> Result<(), Problem> {
    match outcome {
        ScheduleChange::Done => Ok(()),
        ScheduleChange::NotFound => Err(no_schedule()),
        // All but the body was checked before.
        ScheduleChange::Refused(error) => Err(too_large(&error)),
        ScheduleChange::NoRoom => Err(Problem::new(
            StatusCode::INSUFFICIENT_STORAGE,
            format!(
                "there may be {SCHEDULES_MAX} schedules, and there has to be room for one in memory \
                 and on the disk: delete one, or make room"
            ),
        )),
    }
}

/// The job that a schedule has put.
fn put_by(outcome: ScheduleRun) -> Result<JobId, Problem> {
    match outcome {
        ScheduleRun::Put(id) => Ok(id),
        ScheduleRun::NotFound => Err(no_schedule()),
        ScheduleRun::Exists(id) => Err(Problem::new(
            StatusCode::CONFLICT,
            format!(
                "job {id} has the key of this schedule: nothing is put while it is there; wait until \
                 it is deleted, or delete it"
            ),
        )),
        ScheduleRun::NoRoom => Err(of_error(&JobError::OutOfSpace)),
        ScheduleRun::Draining => Err(of_error(&JobError::Draining)),
    }
}
