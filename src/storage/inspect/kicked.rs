//! How a start finishes kicks that the end of the log interrupted, before it serves clients.
//! Reports describe a log as if that had been done.

use std::collections::BTreeMap;

use super::Inspection;
use super::runs::JobEntry;
use crate::storage::error::OpenError;
use crate::storage::format::Record;
use crate::storage::log::kicks::KickUnderWay;
use crate::types::{JobId, JobState, SECOND_NS};

impl Inspection {
    /// The jobs that a start kicks because of unfinished kicks, in the order of their ids.
    pub(super) fn find_kicked(&self, under_way: &[KickUnderWay]) -> Vec<JobId> {
        let mut lefts: BTreeMap<(&str, bool), u64> = BTreeMap::new();
        for kick in under_way {
            let is_of_buried = kick.state == JobState::Buried;
            *lefts.entry((&kick.tube, is_of_buried)).or_default() += u64::from(kick.left);
        }
        // A start lets all delayed jobs become due before it continues with the first kick.
        let due = under_way.iter().map(|kick| kick.due_wall_ns).max();
        let mut kicked = Vec::new();
        for ((tube, is_of_buried), left) in lefts {
            let in_line = if is_of_buried {
                self.buried_in(tube)
            } else {
                self.delayed_in(tube, due.unwrap_or(0))
            };
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            kicked.extend(in_line.into_iter().take(left));
        }
        kicked.sort_unstable();
        kicked
    }

    /// True if a start kicks this job.
    pub(super) fn is_kicked(&self, id: JobId) -> bool {
        self.kicked.binary_search(&id).is_ok()
    }

    fn buried_in(&self, tube: &str) -> Vec<JobId> {
        let mut buried = self.buried();
        buried.retain(|id| {
            let entry = self.index.get(*id);
            entry.is_some_and(|entry| self.index.tube(*id, &entry) == tube)
        });
        buried
    }

    /// The delayed jobs of a tube that become due after `due`, wall time, in that order. Jobs that
    /// the disk no longer returns are left out.
    fn delayed_in(&self, tube: &str, due: u64) -> Vec<JobId> {
        let mut bytes = Vec::new();
        let mut delayed = Vec::new();
        for (id, entry) in self.index.iter() {
            if entry.state == JobState::Delayed
                && self.index.tube(id, &entry) == tube
                && let Ok(deadline) = self.deadline(&entry, &mut bytes)
                && deadline > due
            {
                delayed.push((deadline, id));
            }
        }
        delayed.sort_unstable();
        delayed.into_iter().map(|(_, id)| id).collect()
    }

    /// When a delayed job becomes due, wall time.
    fn deadline(&self, entry: &JobEntry, bytes: &mut Vec<u8>) -> Result<u64, OpenError> {
        let of_update = |record: &Record<'_>| match record {
            Record::Update {
                deadline_wall_ns, ..
            } => Some(*deadline_wall_ns),
            _ => None,
        };
        let of_put = |record: &Record<'_>| match record {
            Record::Put {
                created_wall_ns,
                delay,
                ..
            } => Some(created_wall_ns.saturating_add(u64::from(*delay) * SECOND_NS as u64)),
            _ => None,
        };
        if entry.update.is_none() {
            self.with_put(entry, bytes, of_put)
        } else {
            self.with_update(entry, of_update)
        }
    }
}
