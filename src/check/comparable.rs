//! The jobs of a log, as an engine and as an inspection see them, in a comparable form.
//!
//! Both see the same, except for what no record holds: a delay that has ended meanwhile.

use std::collections::BTreeMap;

use super::Input;
use crate::engine::{Engine, Flow, ReplySink};
use crate::protocol::{Command, Reply, Request};
use crate::storage::inspect::{Inspection, JobRecord};
use crate::types::{ClientId, JobId, JobState, Now, Ticket};

/// A reply that outlives its call, as far as a check needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Inserted(JobId),
    Job(JobId, Vec<u8>),
    Count(u64),
    /// There is no such job, no job at all, or no space.
    Refused,
    /// The body cannot be read.
    Broken,
    Done,
}

/// Keeps replies, and the position that each waits for.
#[derive(Debug, Default)]
pub(super) struct Answers(pub(super) Vec<(Ticket, Answer)>);

impl ReplySink for Answers {
    fn reply(&mut self, _: ClientId, after: Ticket, reply: Reply<'_>) {
        let answer = match reply {
            Reply::Inserted(id) => Answer::Inserted(id),
            Reply::Reserved(id, body) | Reply::Found(id, body) => Answer::Job(id, body.to_vec()),
            Reply::KickedCount(count) => Answer::Count(count),
            Reply::NotFound | Reply::OutOfMemory => Answer::Refused,
            Reply::TimedOut | Reply::DeadlineSoon => Answer::Refused,
            Reply::InternalError => Answer::Broken,
            _ => Answer::Done,
        };
        self.0.push((after, answer));
    }
}

/// The visible state of a job: its tube, whether it is buried, its priority, its body.
pub(super) type Seen = BTreeMap<JobId, (String, bool, u32, Vec<u8>)>;

/// Every job that an inspection can read; checks that it can read all jobs that it lists.
pub(super) fn readable(log: &Inspection) -> BTreeMap<JobId, JobRecord> {
    let read = |id| match log.read_job(id) {
        Ok(Some(job)) => job,
        other => panic!("job {id} was read a moment ago, and now: {other:?}"),
    };
    log.jobs().map(|job| (job.id, read(job.id))).collect()
}

/// The same as [`seen`], for the jobs of a log.
pub(super) fn recorded(jobs: &BTreeMap<JobId, JobRecord>) -> Seen {
    let seen = |job: &JobRecord| {
        let is_buried = job.state == JobState::Buried;
        (job.tube.clone(), is_buried, job.pri, job.body.clone())
    };
    jobs.iter().map(|(id, job)| (*id, seen(job))).collect()
}

/// The engine's state of the jobs with these ids; checks that it has no others.
pub(super) fn seen<'a>(
    engine: &mut Engine,
    now: Now,
    ids: impl IntoIterator<Item = &'a JobId>,
) -> Seen {
    engine.queue().assert_claims();
    engine.queue().assert_groups();
    let client = engine.connect();
    let mut seen = Seen::new();
    for id in ids {
        let Some(job) = engine.queue().job(*id) else {
            continue;
        };
        let is_buried = job.state == JobState::Buried;
        let (tube, pri) = (job.tube.to_string(), job.pri);
        let body = peek(engine, client, *id, now);
        seen.insert(*id, (tube, is_buried, pri, body));
    }
    let total = engine.queue().stats().jobs.total();
    assert_eq!(total, seen.len() as u64, "jobs that no one knows of");
    engine.disconnect(client, now);
    seen
}

fn peek(engine: &mut Engine, client: ClientId, id: JobId, now: Now) -> Vec<u8> {
    let mut answers = Answers::default();
    let request = Request::Command(Command::Peek(id));
    let flow = engine.run(client, request, now, &mut answers);
    match answers.0.pop() {
        Some((_, Answer::Job(found, body))) if found == id => {
            assert_eq!(flow, Flow::Next);
            body
        }
        other => panic!("the body of job {id} is not to be had: {other:?}"),
    }
}

/// The tubes in use.
pub(super) const TUBES: [&str; 3] = ["default", "mail", "a/b;c"];

pub(super) fn tube(input: &mut Input<'_>) -> &'static str {
    input.pick(&TUBES)
}
