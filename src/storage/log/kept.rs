//! Room that a cluster member's log keeps back, and its use for puts.
//!
//! Writes that others count on must not find the disk full: whatever comes after them, deletes too,
//! would wait behind them. So puts end on all servers before the disks of a majority are full:
//!
//! * A member keeps back more than a leader can have proposed before it hears of a full disk:
//!   [`HELD_MAX`] bytes, three times because small jobs need room for their deletes and updates, and two
//!   of the largest jobs, because a job has to fit into one file.
//! * A member that has not all of it, or whose log has less set aside than it should have, tells the
//!   leader so. The leader refuses puts and pauses while too few of those that answer have room
//!   ([`Held::set_others_full`](super::held::Held::set_others_full)).
//! * An entry for which there is no room takes what was kept back. Nothing else does, but for the ledger
//!   when there is no other way.
//!
//! While the disk keeps what is set aside, and no one else takes its space, deletes therefore go through
//! on every member that was not given up: one whose disk was full while a majority had room waits for
//! room, or for a snapshot.

use crate::storage::error::StoreError;
use crate::storage::log::held::Held;
use crate::storage::log::{Log, Purpose};

/// Bytes that a leader has proposed at most and that are not committed, or a single larger request.
const HELD_MAX: u64 = 2 << 20;

impl Log {
    /// Bytes that may be held at a time, beside a single request.
    pub(super) fn held_max(&self) -> u64 {
        HELD_MAX.min(self.options.segment_size.into())
    }

    /// Make sure, as far as the disk has room, that there is what a member should have set aside and
    /// keep back, for jobs of up to `job_size_max` bytes. Returns whether there is. To be called once a
    /// turn: it asks a full disk at most ten times a second.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn has_room_to_follow(
        &mut self,
        job_size_max: u32,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        self.check()?;
        self.budget.now_ns = wall_ns;
        if self.aside() < self.aside_aim() {
            self.set_aside()?;
        }
        if self.aside() < self.aside_aim() {
            return Ok(false);
        }
        if self.spares.kept.is_none() {
            let size = 3 * self.held_max() + 2 * u64::from(job_size_max);
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            self.spares.kept = self.reserve(size, size)?;
            if self.spares.kept.is_none() && self.squeeze()? {
                self.spares.kept = self.reserve(size, size)?;
            }
        }
        Ok(self.spares.kept.is_some())
    }

    /// Give back what is set aside beyond what must be there: spares grow with segments. Returns whether
    /// there was anything.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn squeeze(&mut self) -> Result<bool, StoreError> {
        let is_less = self.give_back_to(0)? || self.spare_room_to_compact()?;
        if is_less {
            self.budget.note_freed();
        }
        Ok(is_less)
    }

    /// Give what is kept back to the disk. Returns whether there was anything.
    pub(crate) fn spend_kept(&mut self) -> bool {
        let Some(spare) = self.spares.kept.take() else {
            return false;
        };
        self.spares.discard(spare);
        self.budget.note_freed();
        true
    }

    /// Something else than the log has given space back to the disk.
    pub(crate) fn note_freed(&mut self) {
        self.budget.note_freed();
    }

    /// True if a record of this purpose is refused for the sake of the other servers.
    pub(super) fn is_refused_for_others(&mut self, need: u64, purpose: Purpose) -> bool {
        if !matches!(purpose, Purpose::Put | Purpose::Pause) {
            return false;
        }
        let now_ns = self.budget.now_ns;
        let Some(Held {
            others,
            others_full,
            ..
        }) = self.held_mut()
        else {
            return false;
        };
        if !*others_full {
            if others.is_on() && others.note_room(now_ns) {
                tracing::warn!("a majority of the members has room again: puts are accepted");
            }
            return false;
        }
        if others.note_refused(need, now_ns) {
            tracing::warn!(
                "no majority of the members has room on its disks: puts are refused; delete jobs, or \
                 make room on the disks that `bsd-ctl cluster status` names"
            );
        }
        true
    }
}
