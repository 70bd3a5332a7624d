//! Ids that are not given out again: those that the lost end of a history has used.
//!
//! A log that takes the place of another one, out of an archive, a backup, a standby or a survivor of
//! a cluster, may lack the end of the other's history. Clients may still hold ids of it. Were one of
//! them given out again, the holder of the old job would delete the new one. So the next id moves past
//! everything that the lost end can have used, once for each loss.

use crate::storage::disk::read_exact_at;
use crate::storage::error::StoreError;
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::segment_header;
use crate::storage::log::Log;
use crate::types::{JobId, SegmentId};

/// Least number of ids that are left out after the end of a history was lost: 2³². A clock that is
/// behind does not take them away.
pub const IDS_SKIPPED: u64 = 1 << 32;

/// A segment from whose first byte on a log goes on by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Its number.
    pub segment: SegmentId,
    /// The CRC-32 of its header, which has the moment at which it was made: no other segment with this
    /// number has the same.
    pub crc: u32,
}

/// One id for each 1,024 ns since 1970.
const NS_AN_ID_BITS: u32 = 10;

/// A log whose ids are past the clock's leaves out up to 2³⁶ more, by the time: 19 hours and a half.
const IDS_OF_TIME: u64 = 1 << 36;

/// The next id of a log that lacks the end of a history after which `next_id` was the next one, at a
/// wall time in ns since 1970: one for each 1,024 ns since 1970, and [`IDS_SKIPPED`] past `next_id` at
/// least.
///
/// Whatever is lost was given out before now, at fewer than 976,000 ids a second from the start of that
/// log on. So its ids are smaller, also if several logs were made of the same backup, one after
/// another, and each gave out its own: a fixed distance from the backup would have them begin at the
/// same id. That holds too where `next_id` is ahead of the clock, after losses within 73 minutes: then
/// the time is in the distance, and it grows at the same rate. Only one that is made 19 hours and a half
/// after another one of the same backup, to the second, may give out the same ids.
///
/// Until the year 2262 the ids fit into the 53 bits that clients with doubles have, or some 21 hours
/// less for each loss that follows another one within 73 minutes. They do not fit into 32 bits: no
/// distance within these would last for a day.
pub(in crate::storage) fn after_loss(next_id: JobId, wall_ns: u64) -> JobId {
    let of_now = wall_ns >> NS_AN_ID_BITS;
    let least = next_id.0.saturating_add(IDS_SKIPPED);
    let next = match of_now < least {
        true => least.saturating_add(of_now % IDS_OF_TIME),
        false => of_now,
    };
    JobId(next.min(u64::MAX - 1))
}

impl Log {
    /// A server that continues this log gives out no id below `next_id`. Durable on return: the start
    /// of a segment says which ids are free, so one is begun. `Ok(false)`: there is no room for it, and
    /// nothing is changed; the call can be repeated.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn skip_ids(&mut self, next_id: JobId, wall_ns: u64) -> Result<bool, StoreError> {
        if self.next_id >= next_id {
            return Ok(true);
        }
        let begun = self.begin_life(next_id, SegmentId(0), wall_ns)?;
        Ok(begun.is_some())
    }

    /// Begin a segment with a number greater than `past`, whose list says that ids below `next_id` are
    /// not free. Durable on return, with everything before it. `None`: there is no
    /// room for it, and nothing is changed; the call can be repeated.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn begin_life(
        &mut self,
        next_id: JobId,
        past: SegmentId,
        wall_ns: u64,
    ) -> Result<Option<Life>, StoreError> {
        let size = self.options.segment_size;
        // What is set aside for the jobs that are there is used only if there is nothing else.
        if let Some(spare) = self.spares.reserve(size, SEGMENT_SIZE_MIN.min(size))? {
            self.spares.add(spare);
        }
        let before = self.next_id;
        self.next_id = before.max(next_id);
        if !self.rotate_past(past, 0, wall_ns)? {
            self.next_id = before;
            return Ok(None);
        }
        self.sync_now()?;
        let file = self.files.get(self.active.handle);
        let (segment, path) = (file.entry.first, self.dir.join(file.entry.file_name()));
        let mut header = [0; segment_header::SIZE];
        if let Err(error) = read_exact_at(&*file.file, &mut header, 0) {
            return Err(self.fail(StoreError::new("read", &path, &error)));
        }
        let crc = crc32fast::hash(&header);
        Ok(Some(Life { segment, crc }))
    }

    /// The end of the history that this log continues may be lost: leave out its ids, in a segment with
    /// a number greater than `past`. As [`Log::begin_life`].
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn skip_lost_ids(
        &mut self,
        past: SegmentId,
        wall_ns: u64,
    ) -> Result<Option<Life>, StoreError> {
        self.begin_life(after_loss(self.next_id, wall_ns), past, wall_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const NOW_NS: u64 = 1_795_913_282 * SECOND_NS;

    /// Of several logs that are made of one, each gives out ids of its own, at up to 976,000 a second.
    #[test]
    fn g18_logs_that_lack_the_same_end_begin_apart_also_where_ids_are_ahead_of_the_clock() {
        let mut next_id = JobId(1000);
        for loss in 0..100 {
            let at = NOW_NS + 3 * loss * SECOND_NS;
            let [first, second] = [at, at + SECOND_NS].map(|at| after_loss(next_id, at));
            assert!(first.0 > next_id.0 + IDS_SKIPPED, "loss {loss}");
            assert!(
                second.0 - first.0 >= 976_000,
                "loss {loss}: {first:?} {second:?}"
            );
            assert!(second.0 < 1 << 53, "loss {loss}");
            // The third one is made of what the second has archived.
            next_id = JobId(second.0 + 1);
        }
    }

    #[test]
    fn a_clock_that_is_behind_takes_no_ids_away() {
        for wall_ns in [0, 1, NOW_NS] {
            let next = after_loss(JobId(1 << 52), wall_ns);
            assert!(next.0 >= (1 << 52) + IDS_SKIPPED);
        }
        assert_eq!(after_loss(JobId(u64::MAX - 5), NOW_NS), JobId(u64::MAX - 1));
        assert_eq!(after_loss(JobId(5), NOW_NS), JobId(NOW_NS >> 10));
    }
}
