//! Room for what is appended: how much has to stay free behind a record, and where it comes from.
//!
//! A put leaves alone what the jobs that are there may need of the log: a delete and an update each,
//! as long as compaction cannot give the space back before. Changes may use that, but for what the
//! deletes need; deletes may use everything. And room for compaction comes before everything else:
//! without it no space ever comes back.

use super::error::StoreError;
use super::format::{
    EMPTY_FRAME_SIZE, FRAME_OVERHEAD_MAX, entry, frame_size, manifest, segment_header,
};
use super::log::{Log, Purpose};
use super::space::{SEGMENT_SIZE_MIN, Spare};

/// What a job may need of the log after its put, frames included: a delete and an update, each in
/// a frame of its own.
const AFTERLIFE_SIZE: u64 = 160;
/// What of it the delete needs.
const DELETE_SIZE: u64 = 64;
/// So much is set aside however few jobs there are: enough to go on in while the open segment is
/// compacted.
const FLOOR_MIN: u64 = 2 * SEGMENT_SIZE_MIN as u64;

/// A segment has at most so many times the size of the one before it.
const GROWTH: u32 = 4;

impl Log {
    /// Bytes that the open segment has left, the frame being built and the seal apart.
    pub(crate) fn left(&self) -> u64 {
        let end = u64::from(self.files.get(self.active.handle).entry.end);
        let used = end + self.frame.size() + EMPTY_FRAME_SIZE as u64;
        u64::from(self.active.capacity).saturating_sub(used)
    }

    pub(super) fn fits(&self, size: u64) -> bool {
        size + FRAME_OVERHEAD_MAX as u64 <= self.left()
    }

    /// Bytes for records that a spare of `size` bytes has once it is a segment.
    pub(super) fn usable(&self, size: u32) -> u64 {
        u64::from(size).saturating_sub(self.segment_cost())
    }

    /// What a segment needs for itself.
    pub(super) fn segment_cost(&self) -> u64 {
        let manifest = (manifest::SIZE + (self.files.len() + 1) * entry::SIZE) as u64;
        segment_header::SIZE as u64
            + frame_size(manifest)
            + (EMPTY_FRAME_SIZE + FRAME_OVERHEAD_MAX) as u64
    }

    /// What has to stay free behind a record of this purpose.
    pub(crate) fn floor(&self, purpose: Purpose) -> u64 {
        let afterlife = (self.live_jobs + 1) * AFTERLIFE_SIZE;
        // Long before all jobs are gone compaction gives space back.
        let enough = u64::from(self.options.segment_size).max(self.maintenance.sealed_bytes / 8);
        let floor = afterlife.max(FLOOR_MIN.min(enough / 2)).min(enough);
        match purpose {
            Purpose::Put => floor,
            Purpose::Update | Purpose::Counters => floor * DELETE_SIZE / AFTERLIFE_SIZE,
            Purpose::Delete => 0,
        }
    }

    /// See to it that a record of `size` bytes has room, and that enough is left behind it. Says
    /// whether it has.
    pub(super) fn make_room(&mut self, size: u64, purpose: Purpose) -> Result<bool, StoreError> {
        let has_room = self.find_room(size, purpose)?;
        if purpose == Purpose::Put || !has_room {
            self.maintenance.note_room(has_room);
        }
        Ok(has_room)
    }

    pub(super) fn find_room(&mut self, size: u64, purpose: Purpose) -> Result<bool, StoreError> {
        let need = size + FRAME_OVERHEAD_MAX as u64;
        let floor = self.floor(purpose);
        let will_compact = self.files.len() > 1 || need > self.left();
        if will_compact && !self.keep_room_to_compact()? && purpose == Purpose::Put {
            return Ok(false);
        }
        loop {
            let left = self.left();
            let here = if need <= left { left } else { 0 };
            let spares = || self.spares.sizes().map(|size| self.usable(size));
            let fits = need <= left || spares().any(|usable| need <= usable);
            if fits && here + spares().sum::<u64>() >= need + floor {
                return Ok(true);
            }
            let size_min = (need + self.segment_cost()).max(u64::from(SEGMENT_SIZE_MIN));
            let Ok(size_min) = u32::try_from(size_min) else {
                return Ok(false);
            };
            let size = self.next_size().max(size_min);
            match self.reserve(size, size_min)? {
                Some(spare) => self.spares.add(spare),
                None => return Ok(false),
            }
        }
    }

    /// What the next segment is to have: a small log grows in small steps.
    pub(crate) fn next_size(&self) -> u32 {
        let grown = self.active.capacity.saturating_mul(GROWTH);
        self.options.segment_size.min(grown)
    }

    /// Set space aside; `None`: the disk is full.
    pub(crate) fn reserve(
        &mut self,
        size: u32,
        size_min: u32,
    ) -> Result<Option<Spare>, StoreError> {
        self.spares
            .reserve(size, size_min)
            .map_err(|error| self.fail(error))
    }

    /// Bytes for records that are set aside: in the open segment, and in those to come.
    pub(crate) fn aside(&self) -> u64 {
        let spares = self.spares.sizes().map(|size| self.usable(size));
        self.left() + spares.sum::<u64>()
    }
}
