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

use std::cell::Cell;
use std::collections::VecDeque;

use crate::shortage::Shortage;
use crate::storage::error::StoreError;
use crate::storage::format::{
    FRAME_OVERHEAD_MAX, FrameBuilder, FrameKind, Seed, Stamp, entry_data,
};
use crate::storage::log::files::LogFile;
use crate::storage::log::{Active, Log, Purpose};
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
/// Bytes of records that stay together, at most: with what their frame has already, they are one entry of
/// the replicated log.
pub const JOINED_SIZE_MAX: u64 = 12 << 20;
/// Bytes that must be written before a quiet moment that changed nothing is asked for again.
const QUIET_STEP: u64 = 64 << 10;

/// The records of one frame, to be the data of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formed {
    /// The entry that they have to be.
    pub stamp: Stamp,
    /// See [`entry_records`](crate::storage::format::entry_records).
    pub data: Vec<u8>,
}

/// The frames that a log holds, and what else it has to know because it leads.
#[derive(Debug, Default)]
pub struct Held {
    /// The stamp of the next frame.
    next: Stamp,
    frames: VecDeque<HeldFrame>,
    /// Bytes of them.
    bytes: u64,
    /// The number of last frames that have not been handed out.
    formed: usize,
    /// Bytes that a request had no room for: the next segment is to have it.
    wanted: Cell<u64>,
    /// The disk has no room for another segment, when that was tried last: what does not fit into the
    /// open one runs when nothing is held, and compaction may make way.
    is_stuck: bool,
    /// The position of the last quiet moment that changed nothing.
    quiet_in_vain: Option<Position>,
    /// Too few of the other servers have room, and whether something is refused for that.
    pub(super) others_full: bool,
    pub(super) others: Shortage,
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
    /// Nothing is held yet, and the next frame is the entry after `last`.
    pub(super) fn after(last: Stamp) -> Held {
        Held {
            next: after(last),
            ..Held::default()
        }
    }

    /// The term of the entries that the next frames will be.
    pub(super) fn term(&self) -> u64 {
        self.next.term
    }

    /// The entry that the next frame will be is another one: entries that are no frames were added.
    ///
    /// # Panics
    /// If the number is smaller than it was.
    pub fn skip_to(&mut self, next: Stamp) {
        let known = self.next;
        assert!(known <= next, "entries {known:?} were formed as {next:?}");
        self.next = next;
    }

    /// The next frame that was formed, to be proposed as an entry.
    pub fn take_formed(&mut self) -> Option<Formed> {
        let at = self.frames.len() - self.formed;
        let frame = self.frames.get(at)?;
        self.formed -= 1;
        Some(Formed {
            stamp: frame.stamp,
            data: entry_data(&frame.bytes, frame.seed, frame.at.offset()),
        })
    }

    /// The next segment is to have room for this many bytes.
    pub(super) fn want(&self, size: u64) {
        self.wanted.set(self.wanted.get().max(size));
    }

    /// Refuse puts and pauses, or do not: whether too few of the other servers have room for what a put
    /// needs.
    pub fn set_others_full(&mut self, is_so: bool) {
        self.others_full = is_so;
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

    /// Hold the frame being built. Returns where it ends in the open segment, which is `file`.
    pub(super) fn hold(
        &mut self,
        frame: &mut FrameBuilder,
        durable: Position,
        active: &mut Active,
        file: &LogFile,
    ) -> u32 {
        let stamp = self.next;
        frame.set_stamp(stamp);
        let (bytes, checksum) = frame.finish(FrameKind::Data, durable, active.previous);
        active.previous = checksum;
        let at = Position::new(file.entry.first, file.entry.end);
        let end = at.offset() + bytes.len() as u32;
        self.next = after(stamp);
        self.formed += 1;
        self.bytes += bytes.len() as u64;
        self.frames.push_back(HeldFrame {
            stamp,
            handle: active.handle,
            at,
            seed: file.seed,
            bytes,
        });
        end
    }
}

fn after(last: Stamp) -> Stamp {
    Stamp {
        index: last.index + 1,
        ..last
    }
}

impl Log {
    /// True while something was appended that is not written, of a log that leads.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        let held = self.mode.held();
        held.is_some_and(|held| !held.frames.is_empty() || !self.frame.is_empty())
    }

    /// Everything up to this entry is committed: write the frames up to it, in one write. Returns
    /// whether there were any. A log that does not lead has none.
    ///
    /// # Errors
    /// When the disk failed: nothing more may be acknowledged.
    pub fn release(&mut self, upto: Stamp) -> Result<bool, StoreError> {
        self.check()?;
        let Some(held) = self.mode.held_mut() else {
            return Ok(false);
        };
        let ready = |frame: &&HeldFrame| frame.stamp.index <= upto.index;
        let count = held.frames.iter().take_while(ready).count();
        if let Some(first) = held.frames.front().filter(|_| count > 0) {
            let bytes = if count == 1 {
                &first.bytes
            } else {
                self.scratch.clear();
                for frame in held.frames.iter().take(count) {
                    self.scratch.extend_from_slice(&frame.bytes);
                }
                &self.scratch
            };
            let (file, at) = (self.files.get(first.handle), first.at);
            if let Err(error) = self.spares.write(&*file.file, bytes, at.offset()) {
                let path = self.dir.join(file.entry.file_name());
                let error = StoreError::new("write to", &path, &error);
                return Err(self.failed.get_or_insert(error).clone());
            }
            self.written = Position::new(at.segment(), at.offset() + bytes.len() as u32);
        }
        for frame in held.frames.drain(..count) {
            let end = frame.at.offset() + frame.bytes.len() as u32;
            let end = Position::new(frame.at.segment(), end);
            self.stamps.mark(end, frame.stamp);
            held.bytes -= frame.bytes.len() as u64;
            self.cache.push(frame.at, frame.bytes);
        }
        if held.frames.is_empty() && upto > self.stamps.written {
            self.stamps.pass(upto);
        }
        Ok(count > 0)
    }

    /// Whether a request that appends `size` bytes at most can be run now: not too much is held, and
    /// there is room for it in the open segment. Otherwise it has to wait until less is held, or for a
    /// quiet moment, which is due from now on. Always so in a log that does not lead, and where nothing
    /// is held: then it finds room, or is refused.
    #[must_use]
    pub fn has_room_for(&self, size: u64) -> bool {
        let Some(held) = self.mode.held().filter(|_| self.is_holding()) else {
            return true;
        };
        if size.saturating_add(held.bytes + self.frame.size()) > self.held_max() {
            return false;
        }
        let size = size.saturating_add(self.margin());
        if self.fits(size) {
            return true;
        }
        held.want(size);
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

    /// False if there is no room for records of this many bytes until what is held is released.
    pub(crate) fn has_room_beside_held(&self, size: usize) -> bool {
        !self.is_holding() || self.fits(size as u64)
    }

    /// True if the log has something to do that has to wait until nothing is held: until it is done,
    /// no command should run.
    #[must_use]
    pub fn wants_quiet(&self) -> bool {
        let Some(held) = self.mode.held() else {
            return false;
        };
        if held.is_stuck && self.is_holding() {
            return true;
        }
        if held.quiet_in_vain.is_some_and(|at| self.is_just_behind(at)) {
            return false;
        }
        self.is_copied()
            || !self.is_compacting() && self.is_due_to_look()
            || !self.fits(self.least_left(held))
            || self.is_pressed(Purpose::Update)
    }

    /// When less than this is left in the open segment, the next one is begun in a quiet moment.
    fn least_left(&self, held: &Held) -> u64 {
        let usual = ROTATE_BELOW.min(u64::from(self.active.capacity) / 2);
        usual.max(held.wanted.get())
    }

    /// True if little was written since the log ended at `at`.
    fn is_just_behind(&self, at: Position) -> bool {
        let end = self.next_position();
        at.segment() == end.segment()
            && u64::from(end.offset().saturating_sub(at.offset())) < QUIET_STEP
    }

    /// Have room for `size` bytes of records that are appended one by one while others are held. `false`:
    /// none is left before those are released. On a full disk there may be no room, and it is `true`.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn have_room(&mut self, size: u64, wall_ns: u64) -> Result<bool, StoreError> {
        self.check()?;
        if self.mode.held().is_none() || self.fits(size) {
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

    /// A quiet moment, in which nothing is held: begin the next segment if little is left of this one.
    /// The moment is used up.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn use_quiet(&mut self, wall_ns: u64) -> Result<(), StoreError> {
        let Some(held) = self.mode.held() else {
            return Ok(());
        };
        let (need, wanted) = (self.least_left(held), held.wanted.get());
        let mut is_stuck = false;
        if !self.fits(need) {
            self.budget.now_ns = wall_ns;
            self.find_room(need + FRAME_OVERHEAD_MAX as u64, Purpose::Update)?;
            is_stuck = !self.rotate(wanted, wall_ns)?;
        }
        if let Some(held) = self.held_mut() {
            (held.is_stuck, held.quiet_in_vain) = (is_stuck, None);
            held.wanted.set(0);
        }
        let in_vain = self.wants_quiet().then(|| self.next_position());
        if let Some(held) = self.held_mut() {
            held.quiet_in_vain = in_vain;
        }
        Ok(())
    }
}
