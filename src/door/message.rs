//! Messages in the channel, from a caller to the desk.

use super::call::{Answer, JobError, Outcome};
use super::handover::Giver;
use super::work::Running;
use crate::protocol::Command;
use crate::types::JobId;

/// A call: what is asked, and by whom.
pub(super) struct Call {
    pub(super) session: u64,
    /// Bytes that it takes until it is answered.
    pub(super) size: usize,
    pub(super) what: Asked,
}

pub(super) enum Asked {
    Command(Command<'static>, Giver<Outcome>),
    /// Several commands at once.
    Batch(Batch),
    Work(Box<dyn Running>),
}

/// Commands that are run one after another, and the results of those that have run.
pub(super) struct Batch {
    pub(super) commands: std::vec::IntoIter<Command<'static>>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) giver: Giver<Outcome>,
}

impl Asked {
    /// Tell the one that asks that another queue decides. Work is not refused: it may look.
    pub(super) fn refuse(self) {
        let refusal = || Err(JobError::NotLeader);
        // Anyone who asked may be gone.
        let _ = match self {
            Asked::Command(_, giver) => giver.give(refusal()),
            Asked::Batch(mut batch) => {
                batch.outcomes.extend(batch.commands.map(|_| refusal()));
                batch.giver.give(Ok(Answer::Batch(batch.outcomes)))
            }
            Asked::Work(_) => return,
        };
    }

    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Asked::Command(_, giver) => giver.is_abandoned(),
            // A batch that has begun runs to its end: otherwise half of it would be done.
            Asked::Batch(batch) => batch.outcomes.is_empty() && batch.giver.is_abandoned(),
            Asked::Work(work) => work.is_abandoned(),
        }
    }
}

/// A message that needs no answer and no room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// All handles of the session are gone.
    End(u64),
    /// A caller in the session no longer waits.
    Look(u64),
    /// A job that the session has reserved is not wanted.
    GiveBack(u64, JobId),
    /// A task was cancelled, or its caller no longer waits for it.
    Works,
}
