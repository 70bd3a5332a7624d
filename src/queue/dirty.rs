//! Which jobs have counters that no record has: a list of their ids, and two marks in each job.
//!
//! A job is *dirty* while that is so, and *listed* while its id is in the list: a job that is dirty no
//! more stays there until it is met, and is not listed twice when it is dirty again. A list that is
//! linked through the jobs would read and write six jobs for each reservation.
//!
//! Invariants: each dirty job is listed; no id is twice in the list; ids of other jobs are about as
//! many as those of dirty ones at most, and [`STALE_MAX`].

use std::collections::VecDeque;

use crate::types::JobId;

/// In tests chunks are small, so that few jobs need many of them.
const CHUNK_LEN: usize = if cfg!(test) { 16 } else { 1024 };

/// Beside as many as there are dirty jobs, this many ids may stay of jobs that are dirty no more.
const STALE_MAX: usize = CHUNK_LEN;

/// The list, in chunks that never move: growing never waits for a copy of everything.
#[derive(Default)]
pub(super) struct DirtyList {
    chunks: VecDeque<Vec<JobId>>,
    /// Ids of the first chunk that were taken.
    taken: usize,
    len: usize,
    /// The number of dirty jobs.
    count: usize,
}

impl DirtyList {
    /// A job that is listed has become dirty.
    pub(super) fn note_dirty(&mut self) {
        self.count += 1;
    }

    /// A job is dirty no more.
    pub(super) fn note_clean(&mut self) {
        self.count -= 1;
    }

    /// The number of dirty jobs.
    pub(super) fn count(&self) -> u64 {
        self.count as u64
    }

    /// True if more ids are of jobs that are not dirty than may be: pop two, and push those of dirty
    /// jobs again. Each job that is dirty no more leaves one such id.
    pub(super) fn is_stale(&self) -> bool {
        self.len > STALE_MAX + 2 * self.count
    }

    /// Adds an id at the end.
    pub(super) fn push(&mut self, id: JobId) {
        self.len += 1;
        match self.chunks.back_mut() {
            Some(last) if last.len() < CHUNK_LEN => last.push(id),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK_LEN);
                chunk.push(id);
                self.chunks.push_back(chunk);
            }
        }
    }

    /// Takes the first id.
    pub(super) fn pop(&mut self) -> Option<JobId> {
        if self.len == 0 {
            return None;
        }
        let first = self.chunks.front_mut()?;
        let id = first[self.taken];
        (self.taken, self.len) = (self.taken + 1, self.len - 1);
        if self.taken == first.len() {
            self.taken = 0;
            // The memory of the last chunk stays.
            first.clear();
            if self.chunks.len() > 1 {
                self.chunks.pop_front();
            }
        }
        Some(id)
    }

    /// Bytes of memory that grow with the number of dirty jobs.
    pub(super) fn memory(&self) -> usize {
        self.len.saturating_sub(STALE_MAX) * size_of::<JobId>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_in_the_order_in_which_they_went() {
        let mut list = DirtyList::default();
        let (mut next, mut first) = (0, 0);
        for step in 0..400_u64 {
            for _ in 0..step % 7 {
                list.push(JobId(next));
                next += 1;
            }
            for _ in 0..(step + 3) % 7 {
                let expected = (first < next).then_some(JobId(first));
                assert_eq!(list.pop(), expected, "in step {step}");
                first += u64::from(expected.is_some());
            }
        }
        while let Some(id) = list.pop() {
            assert_eq!(id, JobId(first));
            first += 1;
        }
        assert_eq!((first, list.len), (next, 0));
        assert!(list.chunks.len() <= 1);
    }
}
