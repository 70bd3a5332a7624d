//! Changes of one job, and of tubes.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::fields::{Fields, needed};
use super::filter::{Pattern, pattern};
use super::{bad, gone, job_id, not_found, of_error, run, tube_name};
use crate::State;
use crate::answer::{Answer, Problem, Said, json};
use bsd::door::{Answer as Reply, JobError, Order, PutOptions, Slice, Step, Work};
use bsd::engine::{Alteration, Altered};
use bsd::queue::TubeList;
use bsd::types::{JobId, JobState};

/// What is done to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deed {
    Delete,
    Kick,
    Bury,
    Delay(u32),
    Priority(u32),
    /// Into this tube; where `kick`, to be ready there.
    Move {
        to: Box<str>,
        kick: bool,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Done {
    /// The job has this id now, or had it when it was deleted.
    Changed(JobId),
    /// It was so before.
    Same,
    NotFound,
    Reserved,
    Refused(JobError),
}

impl Deed {
    /// The words of all of them.
    pub(crate) const WORDS: &[&str] = &["delete", "kick", "bury", "delay", "priority", "move"];

    pub(super) fn word(&self) -> &'static str {
        match self {
            Deed::Delete => "delete",
            Deed::Kick => "kick",
            Deed::Bury => "bury",
            Deed::Delay(_) => "delay",
            Deed::Priority(_) => "priority",
            Deed::Move { .. } => "move",
        }
    }

    /// The deed of this name, as the fields beside it say.
    pub(super) fn parse(word: &str, fields: &Fields) -> Result<Deed, Problem> {
        Ok(match word {
            "delete" => Deed::Delete,
            "kick" => Deed::Kick,
            "bury" => Deed::Bury,
            "delay" => Deed::Delay(needed("delay", fields.number_of_job("delay", 1)?)?),
            "priority" => Deed::Priority(needed("priority", fields.number_of_job("priority", 0)?)?),
            "move" => {
                let tube = needed("to", fields.text("to")?)?;
                Deed::Move {
                    to: tube_name(tube.to_owned())?.into(),
                    kick: fields.flag("kick")?,
                }
            }
            _ => return Err(bad(format!("action is one of {:?}", Deed::WORDS))),
        })
    }

    /// The fields that it needs.
    pub(super) fn fields(word: &str) -> &'static [&'static str] {
        match word {
            "delay" => &["delay"],
            "priority" => &["priority"],
            "move" => &["to", "kick"],
            _ => &[],
        }
    }

    /// Do it.
    pub(super) fn run(&self, id: JobId, slice: &mut Slice<'_>) -> Done {
        let Some(job) = slice.engine().queue().job(id) else {
            return Done::NotFound;
        };
        let alteration = match self {
            _ if job.state == JobState::Reserved => return Done::Reserved,
            Deed::Delete => return done(id, slice.run(&Order::Delete(id))),
            Deed::Kick if job.state == JobState::Ready => return Done::Same,
            Deed::Kick => return done(id, slice.run(&Order::KickJob(id))),
            Deed::Bury => Alteration::Bury,
            Deed::Delay(seconds) => Alteration::Delay(*seconds),
            Deed::Priority(pri) => Alteration::Priority(*pri),
            Deed::Move { to, kick } => Alteration::Move {
                tube: to,
                kick: *kick,
            },
        };
        altered(slice.alter(id, alteration))
    }
}

fn altered(outcome: Result<Altered, JobError>) -> Done {
    match outcome {
        Ok(Altered::Done(id)) => Done::Changed(id),
        Ok(Altered::Same) => Done::Same,
        Ok(Altered::NotFound) => Done::NotFound,
        Ok(Altered::Reserved) => Done::Reserved,
        Ok(Altered::NoRoom) => Done::Refused(JobError::OutOfSpace),
        Ok(Altered::Damaged) => Done::Refused(JobError::Damaged),
        Err(error) => Done::Refused(error),
    }
}

fn done(id: JobId, outcome: Result<Reply, JobError>) -> Done {
    match outcome {
        Ok(_) => Done::Changed(id),
        Err(JobError::NotFound) => Done::NotFound,
        Err(error) => Done::Refused(error),
    }
}

/// `POST /api/v1/tubes/{tube}/jobs`
pub(crate) async fn put(state: &State, tube: String, fields: &Fields) -> Result<Answer, Problem> {
    fields.only(&["body", "priority", "delay", "ttr"])?;
    let tube = tube_name(tube)?;
    let usual = PutOptions::default();
    let options = PutOptions {
        pri: fields.number_of_job("priority", 0)?.unwrap_or(usual.pri),
        delay: fields.number_of_job("delay", 0)?.unwrap_or(usual.delay),
        ttr: fields.number_of_job("ttr", 1)?.unwrap_or(usual.ttr),
    };
    let body = needed("body", fields.bytes("body")?)?;
    let order = Order::Put {
        tube: tube.into(),
        body,
        options,
    };
    let session = state.door()?.session();
    match session.run(order).await {
        Ok(Reply::Inserted(id)) => {
            Ok(Said(format!("job {id}")).with(changed(StatusCode::CREATED, id)))
        }
        Ok(other) => unreachable!("a put is answered {other:?}"),
        Err(error) => Err(of_error(&error)),
    }
}

fn changed(status: StatusCode, id: JobId) -> Answer {
    json(status, &json!({"id": id.0}))
}

/// `DELETE /api/v1/jobs/{id}`, and `POST` to what stands below it: `word` names what is done.
pub(crate) async fn change(
    state: &State,
    id: &str,
    word: &str,
    fields: &Fields,
) -> Result<Answer, Problem> {
    fields.only(Deed::fields(word))?;
    let (id, deed) = (job_id(id)?, Deed::parse(word, fields)?);
    let said = match &deed {
        Deed::Delay(seconds) => format!("for {seconds} seconds"),
        Deed::Priority(pri) => format!("to {pri}"),
        Deed::Move { to, .. } => format!("to {to}"),
        _ => String::new(),
    };
    let steer = Steer {
        id,
        deed,
        done: None,
    };
    match run(state, steer).await?.done.ok_or_else(gone)? {
        Done::Changed(now) if now != id => {
            Ok(Said(format!("{said}, as job {now}")).with(changed(StatusCode::OK, now)))
        }
        Done::Changed(_) | Done::Same => Ok(Said(said).with(changed(StatusCode::OK, id))),
        Done::NotFound => Err(not_found("there is no such job")),
        Done::Reserved => Err(Problem::new(
            StatusCode::CONFLICT,
            "a client has reserved this job; wait until it is released, buried, or its time is up, or \
             release it yourself",
        )),
        Done::Refused(error) => Err(of_error(&error)),
    }
}

/// `POST /api/v1/jobs/{id}/release`: take a job from the client that has reserved it.
pub(crate) async fn release(state: &State, id: &str, fields: &Fields) -> Result<Answer, Problem> {
    fields.only(&["priority", "delay"])?;
    let taking = TakeBack {
        id: job_id(id)?,
        pri: fields.number_of_job("priority", 0)?,
        delay: fields.number_of_job("delay", 0)?.unwrap_or(0),
        from: None,
        done: None,
    };
    let taken = run(state, taking).await?;
    let from = match taken.from {
        Some(client) => format!("from client {client}"),
        None => "from a client that has left".to_owned(),
    };
    match taken.done.ok_or_else(gone)? {
        Done::Changed(id) => Ok(Said(from).with(changed(StatusCode::OK, id))),
        Done::NotFound => Err(not_found("there is no such job")),
        Done::Refused(error) => Err(of_error(&error)),
        Done::Same | Done::Reserved => Err(Problem::new(
            StatusCode::CONFLICT,
            "no client has reserved this job",
        )),
    }
}

/// Takes a job back, and gives it another priority or a delay before anyone else can have it.
struct TakeBack {
    id: JobId,
    pri: Option<u32>,
    delay: u32,
    from: Option<String>,
    done: Option<Done>,
}

impl Work for TakeBack {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.done = Some(self.take(slice));
        Step::Done
    }
}

impl TakeBack {
    fn take(&mut self, slice: &mut Slice<'_>) -> Done {
        let job = slice.engine().queue().job(self.id);
        let holder = job.and_then(|job| job.reserver);
        self.from = holder.map(
            |client| match slice.link(client).and_then(|link| link.peer) {
                Some(peer) => format!("{} at {peer}", client.0),
                None => client.0.to_string(),
            },
        );
        let taken = altered(slice.alter(self.id, Alteration::TakeBack));
        let more = [
            self.pri.map(Alteration::Priority),
            (self.delay > 0).then_some(Alteration::Delay(self.delay)),
        ];
        match taken {
            Done::Changed(id) => {
                let outcomes = more.into_iter().flatten();
                let mut outcomes = outcomes.map(|more| altered(slice.alter(id, more)));
                let refused = outcomes.find(|done| matches!(done, Done::Refused(_)));
                refused.unwrap_or(Done::Changed(id))
            }
            other => other,
        }
    }
}

struct Steer {
    id: JobId,
    deed: Deed,
    done: Option<Done>,
}

impl Work for Steer {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.done = Some(self.deed.run(self.id, slice));
        Step::Done
    }
}

/// `POST /api/v1/tubes/{tube}/pause`
pub(crate) async fn pause(state: &State, tube: String, fields: &Fields) -> Result<Answer, Problem> {
    fields.only(&["seconds"])?;
    let tube = tube_name(tube)?;
    let seconds = needed("seconds", fields.number_of_job("seconds", 0)?)?;
    let order = Order::Pause {
        tube: tube.into(),
        seconds,
    };
    let session = state.door()?.session();
    match session.run(order).await {
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
pub(crate) async fn pause_many(state: &State, fields: &Fields) -> Result<Answer, Problem> {
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
    let pausing = run(state, pausing).await?;
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
        slice.run(&Order::Pause {
            tube: name.into(),
            seconds: self.seconds,
        })
    }
}
