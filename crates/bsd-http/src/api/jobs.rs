//! Changes of one job, and of tubes.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::fields::{Fields, needed};
use super::filter::{Pattern, pattern};
use super::{bad, gone, job_id, not_found, of_error, run, tube_name};
use crate::answer::{Answer, Problem, Said, json};
use crate::doorway::Doorway;
use bsd::door::{self, Answer as Reply, JobError, PutOptions, Slice, Step, Work};
use bsd::engine::{Altered, JobAction};
use bsd::protocol::Command;
use bsd::queue::TubeList;
use bsd::types::JobId;

/// The actions that a request may name.
pub(crate) const ACTIONS: &[&str] = &[
    "delete", "kick", "bury", "delay", "priority", "move", "redrive",
];

/// The action of this name, as the fields beside it say.
pub(super) fn parse_action(word: &str, fields: &Fields) -> Result<JobAction, Problem> {
    Ok(match word {
        "delete" => JobAction::Delete,
        "kick" => JobAction::Kick,
        "bury" => JobAction::Bury,
        "redrive" => JobAction::Redrive,
        "delay" => JobAction::Delay(needed("delay", fields.number_of_job("delay", 1)?)?),
        "priority" => {
            JobAction::Priority(needed("priority", fields.number_of_job("priority", 0)?)?)
        }
        "move" => {
            let tube = needed("to", fields.text("to")?)?;
            JobAction::move_to(tube_name(tube.to_owned())?, fields.flag("kick")?)
        }
        _ => return Err(bad(format!("action is one of {ACTIONS:?}"))),
    })
}

/// The fields that the action of this name needs.
pub(super) fn fields_of(word: &str) -> &'static [&'static str] {
    match word {
        "delay" => &["delay"],
        "priority" => &["priority"],
        "move" => &["to", "kick"],
        _ => &[],
    }
}

/// `POST /api/v1/tubes/{tube}/jobs`
pub(crate) async fn put(
    doorway: &Doorway,
    tube: String,
    fields: &Fields,
) -> Result<Answer, Problem> {
    fields.only(&["body", "priority", "delay", "ttr"])?;
    let tube = tube_name(tube)?;
    let usual = PutOptions::default();
    let options = PutOptions {
        pri: fields.number_of_job("priority", 0)?.unwrap_or(usual.pri),
        delay: seconds(fields.number_of_job("delay", 0)?).unwrap_or(usual.delay),
        ttr: seconds(fields.number_of_job("ttr", 1)?).unwrap_or(usual.ttr),
    };
    let body = needed("body", fields.bytes("body")?)?;
    let session = doorway.door()?.session();
    let put = door::put(&tube, body, options).map_err(|error| of_error(&error))?;
    match session.run(put).await {
        Ok(Reply::Inserted(id)) => {
            Ok(Said(format!("job {id}")).with(changed(StatusCode::CREATED, id)))
        }
        Ok(other) => unreachable!("a put is answered {other:?}"),
        Err(error) => Err(of_error(&error)),
    }
}

fn seconds(number: Option<u32>) -> Option<Duration> {
    number.map(|seconds| Duration::from_secs(seconds.into()))
}

fn changed(status: StatusCode, id: JobId) -> Answer {
    json(status, &json!({"id": id.0}))
}

/// `DELETE /api/v1/jobs/{id}`, and `POST` to what stands below it: `word` names what is done.
pub(crate) async fn change(
    doorway: &Doorway,
    id: &str,
    word: &str,
    fields: &Fields,
) -> Result<Answer, Problem> {
    fields.only(fields_of(word))?;
    let (id, action) = (job_id(id)?, parse_action(word, fields)?);
    let said = match &action {
        JobAction::Delay(seconds) => format!("for {seconds} seconds"),
        JobAction::Priority(pri) => format!("to {pri}"),
        JobAction::Move { tube, .. } => format!("to {tube}"),
        _ => String::new(),
    };
    let (outcome, _) = alter(doorway, id, vec![action]).await?;
    match outcome {
        Ok(Altered::Done | Altered::Same) => Ok(Said(said).with(changed(StatusCode::OK, id))),
        refused => Err(problem(refused)),
    }
}

/// `POST /api/v1/jobs/{id}/release`: take a job from the client that has reserved it.
pub(crate) async fn release(
    doorway: &Doorway,
    id: &str,
    fields: &Fields,
) -> Result<Answer, Problem> {
    fields.only(&["priority", "delay"])?;
    let id = job_id(id)?;
    let mut actions = vec![JobAction::TakeBack];
    actions.extend(
        fields
            .number_of_job("priority", 0)?
            .map(JobAction::Priority),
    );
    let delay = fields.number_of_job("delay", 0)?;
    actions.extend(delay.filter(|it| *it > 0).map(JobAction::Delay));
    let (outcome, from) = alter(doorway, id, actions).await?;
    match outcome {
        Ok(Altered::Done) => {
            let from = from.unwrap_or_else(|| "a client that has left".to_owned());
            Ok(Said(format!("from {from}")).with(changed(StatusCode::OK, id)))
        }
        Ok(Altered::Same) => Err(Problem::new(
            StatusCode::CONFLICT,
            "no client has reserved this job",
        )),
        refused => Err(problem(refused)),
    }
}

/// Why a job was not changed.
fn problem(refused: Result<Altered, JobError>) -> Problem {
    match refused {
        Ok(Altered::NotFound) => not_found("there is no such job"),
        Ok(Altered::Reserved) => Problem::new(
            StatusCode::CONFLICT,
            "a client has reserved this job; wait until it is released, buried, or its time is up, or \
             release it yourself",
        ),
        Ok(Altered::NoRoom) => of_error(&JobError::OutOfSpace),
        Ok(Altered::Done | Altered::Same) => unreachable!("it was not refused"),
        Err(error) => of_error(&error),
    }
}

/// Do these to a job, before anyone else can have it. Returns the outcome, and which client had
/// reserved it.
async fn alter(
    doorway: &Doorway,
    id: JobId,
    actions: Vec<JobAction>,
) -> Result<(Result<Altered, JobError>, Option<String>), Problem> {
    let alter = Alter {
        id,
        actions,
        from: None,
        outcome: None,
    };
    let altered = run(doorway, alter).await?;
    Ok((altered.outcome.ok_or_else(gone)?, altered.from))
}

/// Does the first action, and if that changed the job, the others.
struct Alter {
    id: JobId,
    actions: Vec<JobAction>,
    from: Option<String>,
    outcome: Option<Result<Altered, JobError>>,
}

impl Work for Alter {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let job = slice.engine().queue().job(self.id);
        let holder = job.and_then(|job| job.reserver);
        self.from = holder.map(|client| {
            let peer = slice.link(client).and_then(|link| link.peer);
            match peer {
                Some(peer) => format!("client {} at {peer}", client.0),
                None => format!("client {}", client.0),
            }
        });
        self.outcome = Some(self.alter(slice));
        Step::Done
    }
}

impl Alter {
    fn alter(&self, slice: &mut Slice<'_>) -> Result<Altered, JobError> {
        let mut first = None;
        for action in &self.actions {
            let altered = slice.alter(self.id, action)?;
            let first = *first.get_or_insert(altered);
            if altered == Altered::NoRoom || first != Altered::Done {
                return Ok(altered);
            }
        }
        Ok(first.unwrap_or(Altered::Same))
    }
}

/// `POST /api/v1/tubes/{tube}/pause`
pub(crate) async fn pause(
    doorway: &Doorway,
    tube: String,
    fields: &Fields,
) -> Result<Answer, Problem> {
    fields.only(&["seconds"])?;
    let tube = tube_name(tube)?;
    let seconds = needed("seconds", fields.number_of_job("seconds", 0)?)?;
    let pause = Command::pause_tube(tube, seconds);
    let session = doorway.door()?.session();
    match session.run(pause).await {
        Ok(_) => Ok(Said(format!("for {seconds} seconds")).with(paused(1))),
        Err(JobError::NotFound) => Err(not_found("there is no such tube")),
        Err(error) => Err(of_error(&error)),
    }
}

fn paused(tubes: u64) -> Answer {
    let value: Value = json!({"tubes": tubes});
    json(StatusCode::OK, &value)
}

/// `POST /api/v1/pause`
pub(crate) async fn pause_many(doorway: &Doorway, fields: &Fields) -> Result<Answer, Problem> {
    fields.only(&["tube", "seconds"])?;
    let pattern = pattern(needed("tube", fields.text("tube")?)?)?;
    let seconds = needed("seconds", fields.number_of_job("seconds", 0)?)?;
    let said = format!("{pattern} for {seconds} seconds");
    let pausing = Pausing {
        pattern,
        seconds,
        list: None,
        next: 0,
        paused: 0,
        refused: None,
    };
    let pausing = run(doorway, pausing).await?;
    match pausing.refused {
        None => Ok(Said(format!("{said}: {} tubes", pausing.paused)).with(paused(pausing.paused))),
        Some(error) => Err(Problem {
            detail: format!("{error}; {} tubes were paused", pausing.paused),
            ..of_error(&error)
        }),
    }
}

/// Pauses every tube whose name matches, in the order of `list-tubes`.
struct Pausing {
    pattern: Pattern,
    seconds: u32,
    list: Option<TubeList>,
    next: usize,
    paused: u64,
    refused: Option<JobError>,
}

impl Work for Pausing {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let list = self.list.take();
        let list = list.unwrap_or_else(|| slice.engine().queue().tube_list());
        let mut step = Step::Done;
        for name in list.names_from(self.next) {
            self.next += 1;
            if self.pattern.matches(name) {
                match self.pause(name, slice) {
                    // It has vanished since.
                    Err(JobError::NotFound) => {}
                    Ok(_) => self.paused += 1,
                    Err(error) => {
                        self.refused = Some(error);
                        return Step::Done;
                    }
                }
            }
            if slice.is_over() {
                step = Step::More;
                break;
            }
        }
        self.list = Some(list).filter(|_| step == Step::More);
        step
    }
}

impl Pausing {
    fn pause(&self, name: &str, slice: &mut Slice<'_>) -> Result<Reply, JobError> {
        slice.run(Command::pause_tube(name, self.seconds))
    }
}
