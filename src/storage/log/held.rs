//! Frames that wait for a word before they are written: for the log of a server that is one of
//! several, and leads.
//!
//! Such a log is ahead of what a majority has. Commands are decided and applied as always, and their
//! records form a frame; but the frame is *held*: it has its place in the file and is not written.
//! Its records are handed out as the data of one entry of the replicated log, and when that entry
//! is committed the frame is *released*: written where its place is. If that never happens, the log
//! is dropped and opened again: so the disk has only what a majority has.
//!
//! Invariants:
//! * While a frame is held, nothing but held frames is added to the log: it is not rotated, marked or
//!   compacted (copying may go on, the switch waits). [`Log::wants_quiet`] says when one of these is
//!   due; then the caller lets no command run until nothing is held.
//! * Frames are released in their order.
//! * The stamp of a frame is the entry up to which the log goes with that frame.
//!
//! A follower's log has no held frames; it stamps what it appends, one entry at a time.

use std::cell::Cell;
use std::collections::VecDeque;

use crate::storage::disk::errno::is_full;
use crate::storage::disk::write_all_at;
use crate::storage::error::StoreError;
use crate::storage::format::{FRAME_OVERHEAD_MAX, FrameKind, Seed, Stamp, entry_data};
use crate::storage::log::room::{DELETE_SIZE, UPDATE_SIZE};
use crate::storage::log::{AppendError, Log, Purpose};
use crate::types::Position;

/// Bytes of the open segment that are left, beside the need of a request, to what a turn of the
/// loop appends by itself: counters, slices of kicks, ends of pauses. Of a small segment it is less
/// …
const TURN_MARGIN: u64 = 1 << 20;
const TURN_MARGINS_A_SEGMENT: u64 = 8;
/// … but what deletes leave for compaction is left beside it.
const TURN_MARGIN_MIN: u64 = 8 << 10;
/// When less than this is left in the open segment, the next one is begun in the next quiet moment.
const ROTATE_BELOW: u64 = 4 << 20;
/// Bytes that must be written before a quiet moment that changed nothing is asked for again.
const QUIET_STEP: u64 = 64 << 10;
/// Stamps whose positions are remembered at most until they are durable.
const MARKS_MAX: usize = 1024;

/// The records of one frame, to be the data of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formed {
    /// The entry that they have to be.
    pub stamp: Stamp,
    /// See [`entry_records`](crate::storage::format::entry_records).
    pub data: Vec<u8>,
}

/// State of held frames, in the log of a member of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The stamp of the next frame; `None`: frames are not held.
    next: Option<Stamp>,
    frames: VecDeque<HeldFrame>,
    /// Bytes of them.
    bytes: u64,
    /// The number of last frames that have not been handed out.
    formed: usize,
    /// Up to where the written log goes.
    written: Stamp,
    /// The same, in the last frame.
    framed: Stamp,
    /// Stamps that are written and not known to be durable, with where they end.
    marks: VecDeque<(Position, Stamp)>,
    /// Up to where the durable log goes.
    durable: Stamp,
    /// Bytes that a request had no room for: the next segment is to have it.
    wanted: Cell<u64>,
    /// The disk has no room for another segment, when that was tried last: what does not fit into the
    /// open one runs when nothing is held, and compaction may make way.
    is_stuck: bool,
    /// The bytes appended now are an entry, for which there is room.
    has_room: bool,
    /// The position of the last quiet moment that changed nothing.
    quiet_in_vain: Option<Position>,
}

#[derive(Debug)]
struct HeldFrame {
    stamp: Stamp,
    handle: u32,
    at: Position,
    seed: Seed,
    bytes: Vec<u8>,
}

impl Held {
    pub(crate) fn resume(stamp: Stamp) -> Held {
        Held {
            written: stamp,
            framed: stamp,
            durable: stamp,
            ..Held::default()
        }
    }

    /// `size` bytes at `position`, if they are in a frame that is held.
    pub(super) fn get(&self, position: Position, size: usize) -> Option<&[u8]> {
        let after = self.frames.partition_point(|frame| frame.at <= position);
        let frame = self.frames.get(after.checked_sub(1)?)?;
        if frame.at.segment() != position.segment() {
            return None;
        }
        let from = (position.offset() - frame.at.offset()) as usize;
        frame.bytes.get(from..from + size)
    }

    /// The stamp of the next frame, if frames are held.
    pub(super) fn next_stamp(&self) -> Option<Stamp> {
        self.next
    }

    /// The stamp of what is written now without being an entry: of the log's own records.
    pub(super) fn stamp(&mut self) -> Stamp {
        self.framed = self.written;
        self.written
    }

    /// Entries up to this one changed nothing: the next frame stands for them too. Until then a start
    /// does not know of them.
    pub(in crate::storage) fn pass(&mut self, stamp: Stamp) {
        self.written = stamp;
    }

    pub(super) fn mark(&mut self, end: Position, stamp: Stamp) {
        if stamp == Stamp::default() {
            return;
        }
        (self.written, self.framed) = (stamp, stamp);
        if self.marks.len() == MARKS_MAX
            && let Some(last) = self.marks.back_mut()
        {
            // The later position stands for both.
            *last = (end, stamp);
            return;
        }
        self.marks.push_back((end, stamp));
    }

    pub(super) fn note_durable(&mut self, durable: Position) {
        while let Some((end, stamp)) = self.marks.front()
            && *end <= durable
        {
            self.durable = *stamp;
            self.marks.pop_front();
        }
    }
}

impl Log {
    /// Lead: from now on frames are held, and the next one is the entry after `last`.
    ///
    /// # Panics
    /// If something was appended and is not written.
    pub fn hold(&mut self, last: Stamp) {
        assert!(self.frame.is_empty(), "what is not written is no entry");
        self.held.next = Some(Stamp {
            index: last.index + 1,
            ..last
        });
    }

    /// The entry that the next frame will be is another one: entries that are no frames were added.
    ///
    /// # Panics
    /// If frames are not held, or the number is smaller than it was.
    pub fn skip_to(&mut self, next: Stamp) {
        let known = self.held.next.as_mut();
        let known = known.unwrap_or_else(|| panic!("the log does not lead"));
        assert!(*known <= next, "entries {known:?} were formed as {next:?}");
        *known = next;
    }

    /// Follow: what is appended from now on up to the next commit is the entry `stamp`, and is
    /// written as one frame.
    ///
    /// It has room for its records, `size` bytes of them, and for what its `puts` new jobs need later; or
    /// nothing of it is appended. Its `purpose` is the one of its records that asks for the most room.
    ///
    /// # Errors
    /// As of an append.
    pub(crate) fn begin_entry(
        &mut self,
        size: u64,
        puts: u64,
        purpose: Purpose,
        wall_ns: u64,
    ) -> Result<(), AppendError> {
        let later = match purpose {
            Purpose::Put => puts * (DELETE_SIZE + UPDATE_SIZE),
            _ => 0,
        };
        if !self.make_room(size + FRAME_OVERHEAD_MAX as u64 + later, purpose, wall_ns)? {
            return Err(AppendError::NoRoom(self.lacking()));
        }
        self.join_for(size, purpose, wall_ns)?;
        self.held.has_room = true;
        Ok(())
    }

    /// The entry cannot be applied: nothing of it is written, nor anything else from now on.
    pub(crate) fn give_up_entry(&mut self, stamp: Stamp, why: &str) -> StoreError {
        let what = format!("entry {}: {why}", stamp.index);
        let dir = self.dir.clone();
        self.fail(StoreError::new(
            "apply to",
            &dir,
            &std::io::Error::other(what),
        ))
    }

    /// True if the next record is one of an entry, which has room.
    pub(super) fn has_room_for_entry(&self) -> bool {
        self.held.has_room
    }

    /// The entry is complete: write it. Durable with the next sync.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn end_entry(&mut self, stamp: Stamp) -> Result<(), StoreError> {
        (self.is_joined, self.held.has_room) = (false, false);
        if self.frame.is_empty() {
            self.held.pass(stamp);
            return Ok(());
        }
        self.frame.set_stamp(stamp);
        self.write_frame()?;
        self.held.mark(self.written, stamp);
        Ok(())
    }

    /// The log goes up to this entry by something else than entries: say so. Durable on return.
    ///
    /// # Errors
    /// If there is no room for a marker: then the log says what it said before. Otherwise the disk
    /// has failed.
    pub(crate) fn stamp_as(&mut self, stamp: Stamp, wall_ns: u64) -> Result<(), AppendError> {
        self.commit(true)?;
        let was = self.held.written;
        self.held.pass(stamp);
        self.mark(FrameKind::Idle, wall_ns)?;
        self.sync_now()?;
        if self.held.framed == stamp {
            return Ok(());
        }
        self.held.pass(was);
        Err(AppendError::NoRoom(self.lacking()))
    }

    /// Up to which entry the log goes, as far as it is written.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.held.written
    }

    /// Up to which entry the log goes as its last frame says: entries after it changed nothing.
    #[must_use]
    pub fn framed_stamp(&self) -> Stamp {
        self.held.framed
    }

    /// Up to which entry the log goes, as far as it is on stable storage.
    #[must_use]
    pub fn durable_stamp(&self) -> Stamp {
        self.held.durable
    }

    /// True while something was appended that is not written, of a log that leads.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.held.next.is_some() && (!self.held.frames.is_empty() || !self.frame.is_empty())
    }

    /// True if this is the log of one of several servers: only their agreement is written to it.
    #[must_use]
    pub fn is_one_of_several(&self) -> bool {
        self.options.member
    }

    /// True if frames are held.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.held.next.is_some()
    }

    /// The next frame that was formed, to be proposed as an entry.
    pub fn take_formed(&mut self) -> Option<Formed> {
        let at = self.held.frames.len() - self.held.formed;
        let frame = self.held.frames.get(at)?;
        self.held.formed -= 1;
        Some(Formed {
            stamp: frame.stamp,
            data: entry_data(&frame.bytes, frame.seed, frame.at.offset()),
        })
    }

    /// Instead of being written, the frame is held.
    pub(super) fn hold_frame(&mut self, stamp: Stamp) {
        self.frame.set_stamp(stamp);
        let handle = self.active.handle;
        let file = self.files.get(handle);
        let (seed, at) = (file.seed, Position::new(file.entry.first, file.entry.end));
        let (bytes, checksum) = self.finish_frame();
        self.active.previous = checksum;
        self.files.set_end(handle, at.offset() + bytes.len() as u32);
        self.held.next = Some(Stamp {
            index: stamp.index + 1,
            ..stamp
        });
        self.held.formed += 1;
        self.held.bytes += bytes.len() as u64;
        self.held.frames.push_back(HeldFrame {
            stamp,
            handle,
            at,
            seed,
            bytes,
        });
    }

    /// Everything up to this entry is committed: write the frames up to it, in one write. Returns
    /// whether there were any.
    ///
    /// # Errors
    /// When the disk failed: nothing more may be acknowledged.
    pub fn release(&mut self, upto: Stamp) -> Result<bool, StoreError> {
        self.check()?;
        let ready = |frame: &&HeldFrame| frame.stamp.index <= upto.index;
        let count = self.held.frames.iter().take_while(ready).count();
        let Some(first) = self.held.frames.front().filter(|_| count > 0) else {
            if self.held.frames.is_empty() && upto > self.held.written {
                self.held.pass(upto);
            }
            return Ok(false);
        };
        let (handle, at) = (first.handle, first.at);
        let mut end = at.offset();
        if count == 1 {
            let bytes = std::mem::take(&mut self.held.frames[0].bytes);
            end += bytes.len() as u32;
            let written = self.write_at(handle, &bytes, at.offset());
            self.held.frames[0].bytes = bytes;
            written?;
        } else {
            self.scratch.clear();
            for frame in self.held.frames.iter().take(count) {
                self.scratch.extend_from_slice(&frame.bytes);
            }
            let bytes = std::mem::take(&mut self.scratch);
            end += bytes.len() as u32;
            let written = self.write_at(handle, &bytes, at.offset());
            self.scratch = bytes;
            written?;
        }
        self.written = Position::new(at.segment(), end);
        for _ in 0..count {
            let Some(frame) = self.held.frames.pop_front() else {
                break;
            };
            let end = Position::new(
                frame.at.segment(),
                frame.at.offset() + frame.bytes.len() as u32,
            );
            self.held.mark(end, frame.stamp);
            self.held.bytes -= frame.bytes.len() as u64;
            self.cache.push(frame.at, frame.bytes);
        }
        if self.held.frames.is_empty() && upto > self.held.written {
            self.held.pass(upto);
        }
        Ok(true)
    }

    /// Write bytes of a file that the log knows, once more if only space was missing.
    fn write_at(&mut self, handle: u32, bytes: &[u8], at: u32) -> Result<(), StoreError> {
        let file = self.files.get(handle);
        let target = file.file.clone();
        let path = self.dir.join(file.entry.file_name());
        let mut result = write_all_at(&*target, bytes, u64::from(at));
        if result.as_ref().is_err_and(is_full) {
            // Space was reserved, and yet there is none: the storage copies on write. Nothing of
            // this write was acknowledged and no sync has failed, so it may be repeated after the
            // space set aside is freed.
            match self.spares.release_all() {
                Ok(true) => result = write_all_at(&*target, bytes, u64::from(at)),
                Ok(false) => {}
                Err(error) => result = Err(error),
            }
        }
        result.map_err(|error| self.fail(StoreError::new("write to", &path, &error)))
    }

    /// Whether a request that appends `size` bytes at most can be run now: not too much is held, and
    /// there is room for it in the open segment. Otherwise it has to wait until less is held, or for a
    /// quiet moment, which is due from now on. Always so in a log that does not lead, and where nothing
    /// is held: then it finds room, or is refused.
    #[must_use]
    pub fn has_room_for(&self, size: u64) -> bool {
        if self.held.next.is_none() || !self.is_holding() {
            return true;
        }
        if size.saturating_add(self.held.bytes + self.frame.size()) > self.held_max() {
            return false;
        }
        let size = size.saturating_add(self.margin());
        if self.fits(size) {
            return true;
        }
        self.held.wanted.set(self.held.wanted.get().max(size));
        false
    }

    /// The rest of the room, for bytes that a turn appends by itself.
    fn margin(&self) -> u64 {
        let part = u64::from(self.active.capacity) / TURN_MARGINS_A_SEGMENT;
        TURN_MARGIN.min(part).max(TURN_MARGIN_MIN)
    }

    /// True if a turn may append more than there is room for while something is held.
    pub(crate) fn is_tight(&self) -> bool {
        self.is_holding() && !self.fits(self.margin())
    }

    /// False if there is no room for one more update until what is held is released.
    pub(crate) fn has_room_beside_held(&self) -> bool {
        !self.is_holding() || self.fits(UPDATE_SIZE)
    }

    /// True if the log has something to do that has to wait until nothing is held: until it is done,
    /// no command should run.
    #[must_use]
    pub fn wants_quiet(&self) -> bool {
        if self.held.is_stuck && self.is_holding() {
            return true;
        }
        if self.held.next.is_none() || self.is_quiet_in_vain() {
            return false;
        }
        self.is_copied()
            || !self.is_compacting() && self.is_due_to_look()
            || !self.fits(self.least_left())
            || self.is_pressed(Purpose::Update)
    }

    /// When less than this is left in the open segment, the next one is begun in a quiet moment.
    fn least_left(&self) -> u64 {
        let usual = ROTATE_BELOW.min(u64::from(self.active.capacity) / 2);
        usual.max(self.held.wanted.get())
    }

    fn is_quiet_in_vain(&self) -> bool {
        let end = self.next_position();
        self.held.quiet_in_vain.is_some_and(|at| {
            at.segment() == end.segment()
                && u64::from(end.offset().saturating_sub(at.offset())) < QUIET_STEP
        })
    }

    /// Have room for `size` bytes of records that are appended one by one while others are held. `false`:
    /// there is none before those are released. On a full disk there may be none, and it is `true`.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn have_room(&mut self, size: u64, wall_ns: u64) -> Result<bool, StoreError> {
        self.check()?;
        if !self.leads() || self.fits(size) {
            return Ok(true);
        }
        if self.is_holding() {
            return Ok(false);
        }
        self.budget.now_ns = wall_ns;
        if self.find_room(size + FRAME_OVERHEAD_MAX as u64, Purpose::Update)? {
            self.rotate(size, wall_ns)?;
        }
        Ok(true)
    }

    /// Nothing is held: begin the next segment if little is left of this one.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn rotate_early(&mut self, wall_ns: u64) -> Result<(), StoreError> {
        let need = self.least_left();
        self.held.is_stuck = false;
        if self.leads() && !self.fits(need) {
            self.budget.now_ns = wall_ns;
            self.find_room(need + FRAME_OVERHEAD_MAX as u64, Purpose::Update)?;
            self.held.is_stuck = !self.rotate(self.held.wanted.get(), wall_ns)?;
        }
        self.held.wanted.set(0);
        Ok(())
    }

    /// The quiet moment is used up.
    pub(crate) fn end_quiet(&mut self) {
        if self.held.next.is_some() {
            self.held.quiet_in_vain = None;
            if self.wants_quiet() {
                self.held.quiet_in_vain = Some(self.next_position());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SegmentId;

    fn at(segment: u32, offset: u32) -> Position {
        Position::new(SegmentId(segment), offset)
    }

    fn stamp(index: u64) -> Stamp {
        Stamp { index, term: 1 }
    }

    #[test]
    fn a_stamp_is_durable_when_the_end_of_its_frame_is() {
        let mut held = Held::default();
        held.mark(at(1, 100), stamp(1));
        held.mark(at(1, 200), stamp(2));
        held.mark(at(2, 50), stamp(3));
        for (durable, found) in [
            (at(1, 99), 0),
            (at(1, 100), 1),
            (at(1, 199), 1),
            (at(2, 40), 2),
            (at(2, 50), 3),
        ] {
            held.note_durable(durable);
            assert_eq!(held.durable.index, found, "{durable:?}");
            assert_eq!(held.written, stamp(3));
        }
    }

    #[test]
    fn of_very_many_stamps_the_later_stand_for_those_between() {
        let mut held = Held::default();
        let last = MARKS_MAX as u32 + 10;
        (1..=last).for_each(|nth| held.mark(at(1, nth * 8), stamp(nth.into())));
        held.note_durable(at(1, 8));
        assert_eq!(held.durable, stamp(1));
        held.note_durable(at(1, last * 8 - 1));
        assert_eq!(held.durable, stamp(MARKS_MAX as u64 - 1));
        held.note_durable(at(1, last * 8));
        assert_eq!(held.durable, stamp(last.into()));
    }
}
