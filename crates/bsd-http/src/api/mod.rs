//! `/api/v1`: looking at a server and steering it, in JSON.
//!
//! | file | question |
//! |---|---|
//! | `look` | what is there: the server, tubes, jobs? |
//! | `history` | what has happened to a job? |
//! | `log` | which files has the log, and what is damaged in them? |
//! | `clients` | who is connected? |
//! | `fields` | what stands in the body of a request? |
//! | `jobs` | what is changed of one job, or of tubes? |
//! | `policies` | which policies do tubes have, and what have they done? |
//! | `ranking` | which tubes have the most of something? |
//! | `schedules` | what is put by itself, and when? |
//! | `clear` | all jobs of a tube in some states, at once |
//! | `filter` | which jobs are meant? |
//! | `archive` | which base of the archive is asked for? |
//! | `drain` | are jobs taken? |
//! | `events` | what happens to jobs, as it happens? |
//! | `register` | what long work is there, how far is it, who may end it? |
//! | `search` | which jobs match a filter? |
//! | `tasks` | the same change, of all jobs that a filter matches |
//! | `trouble` | what is wrong now, why, and what to do? |
//! | `undo` | how can a delete be undone for a minute? |
//! | `why` | why are the jobs of a tube not done? |
//!
//! Whatever changes a job goes the way of a client's command, through the door: decided, logged,
//! applied, durable as the policy says, then answered. A job that a client has reserved is the
//! client's, and nothing here touches it but what takes it from the client.

pub(super) mod archive;
pub(super) mod checks;
pub(super) mod clear;
pub(super) mod clients;
pub(super) mod drain;
pub(super) mod events;
pub(super) mod fields;
pub(super) mod filter;
pub(super) mod history;
pub(super) mod jobs;
pub(super) mod log;
pub(super) mod look;
pub(super) mod policies;
pub(super) mod ranking;
pub(super) mod register;
pub(super) mod schedules;
pub(super) mod search;
pub(super) mod standby;
pub(super) mod tasks;
pub(super) mod trouble;
pub(super) mod undo;
pub(super) mod why;

use hyper::StatusCode;

use super::answer::Problem;
use super::doorway::Doorway;
use bsd::door::{JobError, Work};
use bsd::types::{JobId, is_tube_name};

/// The most that a page may have.
pub(super) const LIMIT_MAX: usize = 250;

/// Have work done, and wait for it.
pub(super) async fn run<W: Work>(doorway: &Doorway, work: W) -> Result<W, Problem> {
    doorway
        .door()?
        .start(work)
        .await
        .map_err(|error| of_error(&error))
}

pub(super) fn of_error(error: &JobError) -> Problem {
    let status = match error {
        JobError::NotFound => StatusCode::NOT_FOUND,
        JobError::BadTubeName(_) | JobError::TooLong(_) => StatusCode::BAD_REQUEST,
        JobError::TooBig { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        JobError::Damaged => StatusCode::INTERNAL_SERVER_ERROR,
        // It was the leader a moment ago, or the request was on its way.
        JobError::NotLeader => {
            return Problem::unavailable(format!("{error}; GET /leader names it"));
        }
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(status, error.to_string())
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

fn not_found(detail: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, detail)
}

/// Work that was done has an answer, unless it was cut off.
fn gone() -> Problem {
    Problem::unavailable("the server is stopping")
}

/// The id in a path.
pub(super) fn job_id(text: &str) -> Result<JobId, Problem> {
    let id = text.parse().map(JobId);
    id.map_err(|_| bad("a job's id is a number"))
}

/// A tube's name, wherever it stands.
fn tube_name(name: String) -> Result<String, Problem> {
    match is_tube_name(name.as_bytes()) {
        true => Ok(name),
        false => Err(bad(JobError::BadTubeName(name).to_string())),
    }
}
