//! All jobs of a tube that are in some states are deleted at once, however many they are: what the
//! command `clear-tube` does, for one state after the other or for all of them.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::fields::{Fields, needed};
use super::filter::{STATES, parse_states};
use super::look::job_value;
use super::{of_error, run, tube_name};
use crate::answer::{Answer, Problem, Said, json};
use crate::doorway::Doorway;
use bsd::clearing::ClearedStates;
use bsd::door::{Answer as Reply, JobError, Slice, Step, Work};
use bsd::protocol::Command;
use bsd::queue::Queue;
use bsd::types::JobState;

/// All jobs of a tube in these states.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) tube: Box<str>,
    pub(super) states: Vec<JobState>,
}

/// What a clear has done.
#[derive(Debug, Default)]
pub(super) struct Cleared {
    /// Jobs that there were.
    pub(super) matched: u64,
    pub(super) deleted: u64,
    /// Why not all of them were deleted.
    pub(super) refused: Option<Refused>,
}

/// Why jobs stay.
#[derive(Debug)]
pub(super) enum Refused {
    /// There were more than this.
    TooMany(u64),
    Failed(JobError),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::TooMany(most) => write!(
                f,
                "more jobs match than the {most} that `most` allows; nothing was changed: count them \
                 again, and look"
            ),
            Refused::Failed(error) => error.fmt(f),
        }
    }
}

impl Whole {
    fn parts(&self) -> Vec<ClearedStates> {
        let of = |state: &JobState| match state {
            JobState::Ready => Some(ClearedStates::Ready),
            JobState::Delayed => Some(ClearedStates::Delayed),
            JobState::Buried => Some(ClearedStates::Buried),
            JobState::Reserved => None,
        };
        match self.states.len() == STATES.len() {
            true => vec![ClearedStates::All],
            false => self.states.iter().filter_map(of).collect(),
        }
    }

    fn count(&self, queue: &Queue) -> u64 {
        let parts = self.parts().into_iter();
        parts.map(|part| queue.clearable(&self.tube, part)).sum()
    }

    /// The first of them, as the API shows jobs.
    pub(super) fn first(&self, count: usize, slice: &Slice<'_>) -> Vec<Value> {
        let (queue, mut found) = (slice.engine().queue(), Vec::new());
        for state in &self.states {
            let mut mark = None;
            while found.len() < count
                && let Ok(Some(next)) = queue.job_behind(&self.tube, *state, mark)
            {
                let job = queue.job(next.id);
                found.extend(job.map(|job| job_value(queue, &job, slice.now())));
                mark = Some(next);
            }
        }
        found
    }

    /// Count them, and delete them unless they are more than `most`.
    pub(super) fn clear(
        &self,
        most: Option<u64>,
        is_dry_run: bool,
        slice: &mut Slice<'_>,
    ) -> Cleared {
        let matched = self.count(slice.engine().queue());
        let mut cleared = Cleared {
            matched,
            ..Cleared::default()
        };
        if let Some(most) = most.filter(|most| matched > *most) {
            cleared.refused = Some(Refused::TooMany(most));
        } else if !is_dry_run {
            self.delete(&mut cleared, slice);
        }
        cleared
    }

    fn delete(&self, cleared: &mut Cleared, slice: &mut Slice<'_>) {
        for states in self.parts() {
            let tube = (&*self.tube).into();
            match slice.run(Command::ClearTube { tube, states }) {
                Ok(Reply::Count(count)) => cleared.deleted += count,
                Ok(other) => unreachable!("a clear is answered {other:?}"),
                Err(error) => {
                    cleared.refused = Some(Refused::Failed(error));
                    return;
                }
            }
        }
    }
}

struct Clear {
    whole: Whole,
    most: Option<u64>,
    is_dry_run: bool,
    done: Cleared,
}

impl Work for Clear {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.done = self.whole.clear(self.most, self.is_dry_run, slice);
        Step::Done
    }
}

/// `POST /api/v1/tubes/{tube}/clear`
pub(crate) async fn clear(
    doorway: &Doorway,
    tube: String,
    fields: &Fields,
) -> Result<Answer, Problem> {
    fields.only(&["states", "dry_run", "most"])?;
    let tube = tube_name(tube)?.into();
    // What is deleted is gone: so it is said which jobs, and not left to a default.
    let words = needed("states", fields.texts("states")?)?;
    let states = parse_states(&words)?;
    let clear = Clear {
        whole: Whole { tube, states },
        most: fields.number("most", 0, u64::MAX)?,
        is_dry_run: fields.flag("dry_run")?,
        done: Cleared::default(),
    };
    let Clear {
        whole,
        is_dry_run,
        done,
        ..
    } = run(doorway, clear).await?;
    let deleted = done.deleted;
    match done.refused {
        None => {}
        Some(refused @ Refused::TooMany(_)) => {
            return Err(Problem::new(StatusCode::CONFLICT, refused.to_string()));
        }
        Some(Refused::Failed(error)) => {
            return Err(Problem {
                detail: format!("{error}; {deleted} jobs were deleted"),
                ..of_error(&error)
            });
        }
    }
    let words: Vec<_> = whole.states.iter().map(|state| state.word()).collect();
    let value = json!({
        "tube": whole.tube,
        "states": words,
        "dry_run": is_dry_run,
        "matched": done.matched,
        "deleted": deleted,
    });
    let said = Said(format!("{}: {deleted} jobs", words.join(", ")));
    Ok(said.with(json(StatusCode::OK, &value)))
}
