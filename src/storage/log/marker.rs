//! Markers: frames in which an idle or stopped log says how much of it was durable.

use crate::storage::error::StoreError;
use crate::storage::format::{
    EMPTY_FRAME_SIZE, FRAME_ALIGN, FRAME_OVERHEAD_MAX, FrameBuilder, FrameKind, PAGE_SIZE,
};
use crate::storage::log::files::LogFile;
use crate::storage::log::{Log, Purpose};

impl Log {
    /// True if no later frame attests the last frame.
    #[must_use]
    pub(crate) fn wants_marker(&self) -> bool {
        self.marked < self.written && !self.is_holding()
    }

    /// Write how much was durable: from then on, damage to it can be told from a crash. Everything
    /// that was appended has been written; the marker is durable when the sync that begins here is
    /// done.
    ///
    /// Two frames without records hold it. The first reaches into the next page, where the second
    /// lies: whichever page is lost, the other frame remains.
    pub(crate) fn mark(&mut self, kind: FrameKind, wall_ns: u64) -> Result<(), StoreError> {
        self.check()?;
        self.budget.credit = 0;
        let (_, size) = self.marker();
        let is_room = match kind {
            FrameKind::Idle => self.find_room(size + FRAME_OVERHEAD_MAX as u64, Purpose::Put)?,
            _ => self.aside() >= size + self.floor(Purpose::Put),
        };
        if is_room && size > self.left() && self.rotate(0, wall_ns)? && kind == FrameKind::Idle {
            // The new segment's first frame, which is durable, says where this segment ends.
            self.marked = self.written;
            return Ok(());
        }
        let (reach, size) = match self.marker() {
            (reach, size) if is_room && size <= self.left() => (Some(reach), size),
            // If jobs may need all the available space, a single frame without reach must do. If
            // there is no room for that either, the seal serves as the marker.
            _ => (None, EMPTY_FRAME_SIZE as u64),
        };
        if size <= self.left() {
            self.write_marker(kind, reach)?;
            self.start_sync()?;
        }
        self.marked = self.written;
        Ok(())
    }

    /// The number of zeros over which the marker's first frame reaches, from the end of the log
    /// into the next page; and the size of both frames.
    fn marker(&self) -> (u32, u64) {
        let at = self.files.get(self.active.handle).entry.end;
        let empty = EMPTY_FRAME_SIZE as u32;
        let next_page = (at / PAGE_SIZE).saturating_add(1).saturating_mul(PAGE_SIZE);
        // The first frame ends in the next page: without that page it is incomplete.
        let reach = next_page
            .saturating_add(FRAME_ALIGN as u32)
            .saturating_sub(at.saturating_add(empty));
        (reach, u64::from(reach) + 2 * EMPTY_FRAME_SIZE as u64)
    }

    /// Write a marker; a single frame if it does not reach into the next page.
    fn write_marker(&mut self, kind: FrameKind, reach: Option<u32>) -> Result<(), StoreError> {
        let LogFile { seed, entry, .. } = self.files.get(self.active.handle);
        let (seed, entry) = (*seed, *entry);
        let mut frame = FrameBuilder::default();
        frame.begin(Vec::new(), seed, entry.end);
        let stamp = self.stamps.own();
        frame.set_stamp(stamp);
        frame.reach(reach.unwrap_or(0) as usize);
        let (mut bytes, mut previous) = frame.finish(kind, self.durable, self.active.previous);
        if reach.is_some() {
            frame.begin(Vec::new(), seed, entry.end + bytes.len() as u32);
            frame.set_stamp(stamp);
            let (second, checksum) = frame.finish(kind, self.durable, previous);
            bytes.extend_from_slice(&second);
            previous = checksum;
        }
        self.write_at_end(&bytes)?;
        self.stamps.mark(self.written, stamp);
        self.active.previous = previous;
        Ok(())
    }

    /// Write a marker because the log has been idle for a while. It may begin the next segment if
    /// this one has no room for it.
    pub(crate) fn mark_idle(&mut self, wall_ns: u64) -> Result<(), StoreError> {
        self.maintenance.look_again();
        self.mark(FrameKind::Idle, wall_ns)
    }

    /// Write and sync everything, record a clean stop, and release the directory.
    pub fn close(mut self, wall_ns: u64) -> Result<(), StoreError> {
        self.commit(true)?;
        self.sync_now()?;
        // An idle marker says less than this one: it is no substitute.
        if self.stopped < self.written {
            self.mark(FrameKind::CleanStop, wall_ns)?;
        }
        self.sync_now()
    }
}
