//! Jobs that are doomed: a clear has decided that they are gone, and they are freed a few at a time.
//!
//! To everyone who asks for such a job it does not exist. It still takes memory, and its records are
//! alive in the log, until its delete is recorded: see `clearing`.

use std::collections::VecDeque;

use super::handle::TubeHandle;
use crate::clearing::ClearedJobs;
use crate::types::JobId;

/// The jobs that one clear has doomed, and the tube that it has cleared.
pub(super) struct DoomedSet {
    pub(super) jobs: ClearedJobs,
    pub(super) tube: TubeHandle,
}

/// The sets of the clears that are not over, in the order of the clears.
#[derive(Default)]
pub(super) struct Doomed {
    sets: VecDeque<DoomedSet>,
}

impl Doomed {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Which clear has doomed a job. `is_of` says whether it was put into the tube of one.
    pub(super) fn position(&self, id: JobId, is_of: impl Fn(&DoomedSet) -> bool) -> Option<usize> {
        let mut sets = self.sets.iter();
        sets.position(|set| set.jobs.has(id, || is_of(set)))
    }

    pub(super) fn push(&mut self, set: DoomedSet) {
        self.sets.push_back(set);
    }

    /// The first clear is over.
    pub(super) fn pop(&mut self) {
        self.sets.pop_front();
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.sets.iter().map(|set| set.jobs.memory()).sum()
    }
}
