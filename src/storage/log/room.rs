//! Room: how much must stay free after a record, where it comes from, and when it is given back.
//!
//! Invariants, after every operation:
//! 1. for every job there is room for its delete, and for one update if it has none yet; for every job
//!    with attributes there is room for two counts and a reason more;
//! 2. for every file that compaction may choose there is room to rewrite it, set aside;
//! 3. beyond that, at most part of a segment is set aside.
//!
//! A log of less than four segments, on a disk that has no room for more, may have to wait with 2
//! until deletes have made the live part of its files smaller.
//!
//! How they are kept:
//! * Room is the rest of the open segment, the spares ([`Log::aside`]), and garbage in sealed
//!   files, which compaction turns into room on request ([`Log::make_way`]). An *allowance*, a
//!   sixteenth of the log, is always set aside: this many bytes can be written before compaction
//!   has to free anything.
//! * A put must leave all of it: 64 bytes per job for a delete in a frame of its own, 56 for an
//!   update in a frame with others. Pauses leave that, too; updates what deletes need.
//!   Deletes may use everything except the reserve for compaction's own records.
//! * A delete makes more bytes garbage than it writes, so deletes always finish: the bytes they use
//!   come back when the files that they emptied are rewritten. The same holds for an update that
//!   replaces an update.
//! * Room for compaction is a separate spare, as large as the live bytes of any file, including the
//!   open one. A put that would make it too small is refused. It has no other use, and it is set
//!   aside again before a compaction releases what it has freed. It may take the place of the next
//!   segment, as long as the open one has room enough.
//! * A log whose only segment is full leaves it for one of a few kilobytes: then compaction can free
//!   it. The first segment takes half of the disk at most, so that there is room to do so.
//! * A put is refused before anything is written. After the disk was full, it is asked again only
//!   when something was freed, or after a tenth of a second.
//! * The segment size grows with the log, so that the list of files stays short for every `-s`.
//! * A look that finds much more room than a record needs grants credit: the next records draw on it,
//!   and there is no look for each of them.

use crate::ErrorClass;
use crate::storage::error::StoreError;
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::{
    EMPTY_FRAME_SIZE, FRAME_OVERHEAD_MAX, entry, frame_size, manifest, segment_header,
};
use crate::storage::log::budget::Budget;
use crate::storage::log::compaction::plan::{BLOCK, blocks, room_for};
use crate::storage::log::spares::{LAST_RESORT_SIZE, Spare};
use crate::storage::log::{Log, Purpose};

/// Bytes that a delete needs in a frame of its own.
pub(super) const DELETE_SIZE: u64 = 64;
/// The missing bytes are reported as a multiple of this: file systems give no less.
const BLOCK_SIZE: u64 = 4 << 10;
/// Bytes that an update needs in a frame with others. Compaction brings updates together in large
/// frames.
pub(super) const UPDATE_SIZE: u64 = 56;
/// Bytes that the attributes of a job may grow by when it is set aside and comes back: two counts of 7
/// and a reason, 4. The rest of a list takes the place of the one before it.
pub(super) const ATTRIBUTES_SIZE: u64 = 24;
/// The allowance is the size of the log divided by this …
const ALLOWANCE_DIVISOR: u64 = 16;
/// … plus this number of bytes, or plus half a segment if that is less.
const ALLOWANCE_MIN: u64 = 2 * SEGMENT_SIZE_MIN as u64;
/// Bytes that deletes leave for the records of compaction, which frees room.
const SWITCHES_SIZE: u64 = 4 << 10;

/// Bytes of credit that one look grants, and what a record draws beside its size: its frame, and what
/// its job needs later.
const CREDIT: u64 = 16 << 10;
const CREDIT_A_RECORD: u64 = FRAME_OVERHEAD_MAX as u64 + DELETE_SIZE + UPDATE_SIZE;

/// Largest ratio of a segment to the one before it.
const GROWTH: u32 = 4;
/// Segments are made so large that about this number of them hold the log.
const FILES_AIM: u64 = 512;
/// … and at least this multiple of the list of files that each of them contains.
const LISTS_A_SEGMENT: u64 = 8;

impl Log {
    /// Bytes left in the open segment, without the frame being built and the seal.
    pub(crate) fn left(&self) -> u64 {
        let end = u64::from(self.files.get(self.active.handle).entry.end);
        let used = end + self.frame.size() + EMPTY_FRAME_SIZE as u64;
        u64::from(self.active.capacity).saturating_sub(used)
    }

    pub(in crate::storage) fn fits(&self, size: u64) -> bool {
        size + FRAME_OVERHEAD_MAX as u64 <= self.left()
    }

    /// Bytes for records that a spare of `size` bytes has once it is a segment.
    fn usable(&self, size: u32) -> u64 {
        u64::from(size).saturating_sub(self.segment_cost())
    }

    /// Bytes that a segment uses for itself.
    pub(in crate::storage) fn segment_cost(&self) -> u64 {
        let manifest = (manifest::SIZE + (self.files.len() + 1) * entry::SIZE) as u64;
        segment_header::SIZE as u64
            + frame_size(manifest)
            + (EMPTY_FRAME_SIZE + FRAME_OVERHEAD_MAX) as u64
    }

    /// The size that segments should have: the size asked for, or more when the log has very many.
    pub(crate) fn segment_size_aim(&self) -> u32 {
        let grown =
            (self.files.sealed().size / FILES_AIM).max(self.segment_cost() * LISTS_A_SEGMENT);
        let grown = u32::try_from(grown).unwrap_or(u32::MAX).min(1 << 30);
        self.options.segment_size.max(grown)
    }

    /// The size of the next segment: a small log grows in small steps.
    pub(crate) fn next_size(&self) -> u32 {
        let grown = self
            .active
            .capacity
            .saturating_mul(GROWTH)
            .max(SEGMENT_SIZE_MIN);
        let lists = u32::try_from(self.segment_cost() * LISTS_A_SEGMENT).unwrap_or(u32::MAX);
        self.segment_size_aim().min(grown.max(lists))
    }

    /// Bytes set aside for records: in the open segment, and in segments to come.
    pub(crate) fn aside(&self) -> u64 {
        let cost = self.segment_cost() * self.spares.len() as u64;
        self.left() + self.spares.bytes().saturating_sub(cost)
    }

    /// Bytes that compaction can turn into room.
    pub(crate) fn reclaimable(&self) -> u64 {
        let sealed = self.files.sealed();
        let garbage = sealed.garbage.saturating_sub(self.failed_garbage());
        // On average half a block of a file cannot be given back.
        garbage.saturating_sub(sealed.files * BLOCK / 2)
    }

    /// Bytes that can be written before compaction has to free anything.
    pub(crate) fn allowance(&self) -> u64 {
        let segment = self.segment_size_aim().min(self.active.capacity);
        let least = ALLOWANCE_MIN.min(u64::from(segment.max(SEGMENT_SIZE_MIN)) / 2);
        least + self.files.sealed().size / ALLOWANCE_DIVISOR
    }

    /// Bytes that must stay set aside after a record of this purpose.
    pub(in crate::storage) fn floor(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Put => self.allowance(),
            Purpose::Update | Purpose::Pause | Purpose::Counters => self.allowance() / 2,
            Purpose::Delete => SWITCHES_SIZE,
            Purpose::Switch => 0,
        }
    }

    /// Bytes that must be available after a record of this purpose, set aside or reclaimable.
    fn demand(&self, purpose: Purpose) -> u64 {
        let deletes = self.files.live_jobs * DELETE_SIZE;
        let updates = self.updates_to_come();
        match purpose {
            Purpose::Put => deletes + updates + DELETE_SIZE + UPDATE_SIZE + self.allowance(),
            Purpose::Pause => deletes + updates,
            Purpose::Update | Purpose::Counters => deletes,
            Purpose::Delete | Purpose::Switch => self.floor(purpose),
        }
    }

    /// Bytes that the jobs may need for the next change of each of them, beside a delete.
    fn updates_to_come(&self) -> u64 {
        let (jobs, updated) = (self.files.live_jobs, self.files.live_updates);
        let attributes = self.files.live_attributes * ATTRIBUTES_SIZE;
        jobs.saturating_sub(updated) * UPDATE_SIZE + attributes
    }

    /// Bytes that are missing for a record of `need` bytes, frame included.
    pub(crate) fn missing(&self, need: u64, purpose: Purpose) -> u64 {
        let (aside, floor) = (self.aside(), self.floor(purpose));
        let set_aside = (need + floor).saturating_sub(aside);
        let demand = self.demand(purpose);
        let in_all = (need + demand).saturating_sub(aside + self.reclaimable());
        set_aside.max(in_all)
    }

    /// Bytes that the disk lacks for such a record: space is set aside in files of a size that is
    /// worth it.
    fn missing_in_files(&self, need: u64, purpose: Purpose) -> u64 {
        let to_compact = match purpose {
            Purpose::Put => self.lacks_to_compact(need).into(),
            _ => 0,
        };
        let missing = self.missing(need, purpose);
        let file = match missing > 0 || !self.has_segment_for(need) {
            true => (missing + self.segment_cost()).max(self.file_size_min(need, purpose)),
            false => 0,
        };
        to_compact + file
    }

    /// A record of `need` bytes, frame included, fits into a segment.
    fn has_segment_for(&self, need: u64) -> bool {
        need <= self.left() || self.spares.sizes().any(|it| need <= self.usable(it))
    }

    /// The smallest file for a segment with such a record.
    fn file_size_min(&self, need: u64, purpose: Purpose) -> u64 {
        (need + self.segment_cost()).max(self.spare_size_min(purpose).into())
    }

    /// Bytes to set aside for the next put.
    pub(crate) fn aside_aim(&self) -> u64 {
        let demand = self.demand(Purpose::Put);
        demand
            .saturating_sub(self.reclaimable())
            .max(self.floor(Purpose::Put))
    }

    /// True if the disk is full: otherwise more would be set aside.
    pub(crate) fn is_short(&self) -> bool {
        self.budget.shortage.is_on() || self.aside() < self.aside_aim()
    }

    /// True if compaction has to make way before the next record of this purpose.
    pub fn is_pressed(&self, purpose: Purpose) -> bool {
        if self.budget.credit > 0 {
            return false;
        }
        let margin = u64::from(LAST_RESORT_SIZE).min(u64::from(self.active.capacity) / 8);
        self.aside() < self.floor(purpose) + margin
    }

    /// Make sure that a record of `size` bytes has room and that enough is left after it. Returns
    /// whether that is so.
    #[inline]
    pub(in crate::storage) fn make_room(
        &mut self,
        size: u64,
        purpose: Purpose,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        self.budget.now_ns = wall_ns;
        let need = size + FRAME_OVERHEAD_MAX as u64;
        if let Some(left) = self.budget.credit.checked_sub(size + CREDIT_A_RECORD) {
            debug_assert!(self.has_room_already(need, purpose), "credit without room");
            self.budget.credit = left;
            return Ok(true);
        }
        self.look_for_room(need, purpose)
    }

    /// The same without credit, for a record of `need` bytes, frame included.
    fn look_for_room(&mut self, need: u64, purpose: Purpose) -> Result<bool, StoreError> {
        self.budget.credit = 0;
        if self.is_refused_for_others(need, purpose) {
            return Ok(false);
        }
        let has_room = self.find_room(need, purpose)?;
        match purpose {
            Purpose::Put | Purpose::Update | Purpose::Pause if !has_room => {
                self.note_refused(need, purpose)
            }
            Purpose::Put | Purpose::Delete if has_room => self.note_room(purpose),
            _ => {}
        }
        if has_room {
            self.grant_credit(need);
        }
        Ok(has_room)
    }

    /// Let the next records draw on what is there beyond a record of `need` bytes: each of them could
    /// be a put, for which the most has to stay. A log that is replicated, or short of room, looks for
    /// each record.
    fn grant_credit(&mut self, need: u64) {
        let is_short = self.budget.shortage.is_on() || self.budget.deletes.is_on();
        if is_short || self.options.member {
            return;
        }
        // A log of one file compares its frame with what is left, which the frame makes less: so this
        // record counts twice, and what draws on the credit.
        let to_compact = 2 * (need + CREDIT);
        let (need, margin) = (need + CREDIT, u64::from(LAST_RESORT_SIZE));
        // What compaction needs only grows with the open segment up to this size.
        let open = self.files.get(self.active.handle).live() + to_compact;
        let is_plain = open <= u64::from(self.segment_size_aim());
        let is_ample = need <= self.left() && self.missing(need + margin, Purpose::Put) == 0;
        if is_plain && is_ample && self.lacks_to_compact(to_compact) == 0 {
            self.budget.credit = CREDIT;
        }
    }

    /// Whether a look would find room at once.
    fn has_room_already(&self, need: u64, purpose: Purpose) -> bool {
        let can_compact = purpose != Purpose::Put || self.lacks_to_compact(need) == 0;
        can_compact && self.has_segment_for(need) && self.missing(need, purpose) == 0
    }

    pub(in crate::storage) fn find_room(
        &mut self,
        need: u64,
        purpose: Purpose,
    ) -> Result<bool, StoreError> {
        if purpose == Purpose::Put && !self.keep_room_to_compact(need)? {
            return Ok(false);
        }
        loop {
            if self.has_segment_for(need) && self.missing(need, purpose) == 0 {
                return Ok(true);
            }
            let Ok(size_min) = u32::try_from(self.file_size_min(need, purpose)) else {
                return Ok(false);
            };
            let size = self.next_size().max(size_min);
            match self.reserve(size, size_min)? {
                Some(spare) => self.spares.add(spare),
                None => {
                    // A spare that does not help is not kept.
                    if purpose == Purpose::Put {
                        self.give_back()?;
                    }
                    return Ok(false);
                }
            }
        }
    }

    /// The smallest size of a spare for a segment: more than its list of files takes.
    pub(crate) fn spare_size_min(&self, purpose: Purpose) -> u32 {
        let log = self.files.sealed().size + u64::from(self.active.capacity);
        let least = match purpose {
            Purpose::Delete | Purpose::Switch => LAST_RESORT_SIZE,
            // On a disk of some 100 KiB, small segments are better than none.
            _ => (log / 4).clamp(LAST_RESORT_SIZE.into(), SEGMENT_SIZE_MIN.into()) as u32,
        };
        let lists = u32::try_from(self.segment_cost() * 2).unwrap_or(u32::MAX);
        least.max(lists)
    }

    /// Set space aside. `None` if the disk is full, or was a moment ago.
    pub(crate) fn reserve(
        &mut self,
        size: u32,
        size_min: u32,
    ) -> Result<Option<Spare>, StoreError> {
        if self.budget.is_known_full(size_min) {
            return Ok(None);
        }
        let spare = self
            .spares
            .reserve(size, size_min)
            .map_err(|error| self.fail(error))?;
        if spare.is_none() {
            self.budget.full = Some((self.budget.now_ns, size_min));
        }
        Ok(spare)
    }

    /// Set aside again the space that commands have used, if the disk has it.
    pub(crate) fn set_aside(&mut self) -> Result<(), StoreError> {
        while self.aside() < self.aside_aim() {
            let size_min = self.spare_size_min(if self.is_pressed(Purpose::Delete) {
                Purpose::Delete
            } else {
                Purpose::Put
            });
            match self.reserve(self.next_size().max(size_min), size_min)? {
                Some(spare) => self.spares.add(spare),
                None if self.spare_room_to_compact()? => {}
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Reduce the room for compaction to what it must have. Returns whether it had more.
    pub(super) fn spare_room_to_compact(&mut self) -> Result<bool, StoreError> {
        let size = self.work_size_min(0);
        let has = self.spares.compaction.as_ref().map_or(0, |it| it.size);
        if u64::from(has) < u64::from(size) + BLOCK {
            return Ok(false);
        }
        self.cut_room_to_compact(size)?;
        self.budget.note_freed();
        Ok(true)
    }

    fn cut_room_to_compact(&mut self, size: u32) -> Result<(), StoreError> {
        self.spares
            .cut_compaction(size)
            .map_err(|error| self.fail(error))
    }

    /// Give back what is set aside beyond need: for a large job, for larger segments, or for jobs
    /// that are gone.
    pub(crate) fn give_back(&mut self) -> Result<(), StoreError> {
        self.give_back_to(self.next_size())?;
        let aim = self.work_size_aim();
        let is_ample = |spare: &Spare| spare.size - spare.size / 4 > aim;
        if self.spares.compaction.as_ref().is_some_and(is_ample) {
            self.cut_room_to_compact(aim)?;
        }
        self.cut_open_segment()
    }

    /// Give back spares beyond need, but keep one of up to `keep` bytes. Returns whether there was
    /// anything to give back.
    pub(super) fn give_back_to(&mut self, keep: u32) -> Result<bool, StoreError> {
        let mut has_given = false;
        loop {
            let surplus = self.aside().saturating_sub(self.aside_aim());
            let count = self.spares.len();
            let is_beyond = |size: u32| surplus >= self.usable(size) && (size > keep || count > 1);
            let beyond = self.spares.sizes().rposition(is_beyond);
            if let Some(index) = beyond {
                let spare = self.spares.take_at(index);
                self.spares.discard(spare);
                has_given = true;
                continue;
            }
            let Some(size) = self.spares.sizes().last() else {
                return Ok(has_given);
            };
            let needed = u64::from(size).saturating_sub(surplus);
            let needed = u32::try_from(blocks(needed)).unwrap_or(size);
            let needed = needed.max(keep).max(SEGMENT_SIZE_MIN);
            if needed < size {
                self.spares
                    .cut_last(needed)
                    .map_err(|error| self.fail(error))?;
                has_given = true;
            }
            return Ok(has_given);
        }
    }

    /// Cut the open segment of a log that had larger segments.
    fn cut_open_segment(&mut self) -> Result<(), StoreError> {
        let aim = self.segment_size_aim();
        let file = self.files.get(self.active.handle);
        let used = u64::from(file.entry.end) + self.frame.size() + BLOCK;
        let size = blocks(used.max(aim.into()));
        let surplus = u64::from(self.active.capacity).saturating_sub(size);
        if surplus < BLOCK || self.aside() < self.aside_aim() + surplus {
            return Ok(());
        }
        let (file, path) = (file.file.clone(), self.dir.join(file.entry.file_name()));
        if let Err(error) = file.set_size(size) {
            return Err(self.fail(StoreError::new("cut", &path, &error)));
        }
        self.active.capacity = size as u32;
        Ok(())
    }

    /// The room that compaction needs if `more` bytes of the open segment may become live: the live
    /// bytes of any file.
    fn work_size_min(&self, more: u64) -> u32 {
        let open = self.files.get(self.active.handle).live() + more;
        // A job larger than a segment is alone in its own, which is never rewritten.
        let is_plain = open <= u64::from(self.segment_size_aim());
        let most = self.budget.most_alive.max(if is_plain { open } else { 0 });
        room_for(most)
    }

    /// The room that compaction should have: enough to rewrite any segment that is worth it.
    fn work_size_aim(&self) -> u32 {
        let segment = self.segment_size_aim().min(self.active.capacity);
        (segment - segment / 4).max(self.work_size_min(0))
    }

    /// Keep enough room for a compaction even when `more` bytes of the open segment are live.
    /// Returns whether there is enough. This comes before all other reservations: without it no
    /// space can ever be freed.
    pub(crate) fn keep_room_to_compact(&mut self, more: u64) -> Result<bool, StoreError> {
        let needed = self.work_size_min(more);
        if self.lacks_to_compact(more) == 0 {
            return Ok(true);
        }
        // In steps, not for each put.
        let ample = needed.saturating_add(needed / 8).max(self.work_size_aim());
        self.widen_room_to_compact(ample, needed)
    }

    /// Bytes that compaction's room lacks before a put of `more` bytes.
    fn lacks_to_compact(&self, more: u64) -> u32 {
        if self.files.len() == 1 && more + self.frame.size() <= self.left() {
            return 0;
        }
        let has = match &self.spares.compaction {
            Some(spare) => spare.size,
            None if self.is_compacting() => self.budget.work_size,
            None => 0,
        };
        self.work_size_min(more).saturating_sub(has)
    }

    /// Widen the room for compaction to the size it should have, if the disk has it.
    pub(crate) fn widen_for_next_segment(&mut self) -> Result<(), StoreError> {
        let aim = self.work_size_aim();
        match &self.spares.compaction {
            Some(spare) if spare.size < aim => self.widen(aim, aim).map(drop),
            _ => Ok(()),
        }
    }

    /// Widen the room for compaction as [`Log::widen`] does, at the cost of the next segment if
    /// enough is left in this one: compaction makes room for segments, and not the other way round.
    pub(crate) fn widen_room_to_compact(
        &mut self,
        size: u32,
        size_min: u32,
    ) -> Result<bool, StoreError> {
        if self.widen(size, size_min)? {
            return Ok(true);
        }
        if !self.give_back_to(0)? {
            return Ok(false);
        }
        self.budget.note_freed();
        self.widen(size, size_min)
    }

    /// Widen the room for compaction to `size` bytes; to at least `size_min` if the disk has less
    /// than that; or to as much as there is. Returns whether `size_min` was reached.
    fn widen(&mut self, size: u32, size_min: u32) -> Result<bool, StoreError> {
        let size_of = |spare: &Option<Spare>| spare.as_ref().map_or(0, |spare| spare.size);
        let has = size_of(&self.spares.compaction);
        if self.budget.is_known_full(size_min - has.min(size_min)) {
            return Ok(false);
        }
        if has == 0 {
            let mut reserved = self.reserve(size, size_min)?;
            if reserved.is_none() && !self.is_compacting() {
                self.budget.full = None;
                reserved = self.reserve(size_min, LAST_RESORT_SIZE.min(size_min))?;
            }
            self.spares.compaction = reserved;
        } else {
            self.spares
                .grow_compaction(size, size_min)
                .map_err(|error| self.fail(error))?;
        }
        let has = size_of(&self.spares.compaction);
        if has < size_min {
            self.budget.full = Some((self.budget.now_ns, size_min - has));
        }
        Ok(has >= size_min)
    }

    fn note_refused(&mut self, need: u64, purpose: Purpose) {
        let missing = self.missing_in_files(need, purpose).max(1);
        if !self.budget.shortage.is_on() {
            self.maintenance.look_again();
        }
        if self
            .budget
            .shortage
            .note_refused(missing, self.budget.now_ns)
        {
            let missing = missing.next_multiple_of(BLOCK_SIZE);
            let dir = self.dir.display();
            match self.lacking() {
                class @ ErrorClass::Descriptors => tracing::warn!(
                    "no more files can be opened in {dir}: puts are refused until one can; {}",
                    class.relief()
                ),
                _ => tracing::warn!(
                    "the disk of {dir} is full: puts are refused until at least {missing} bytes \
                     are free; delete jobs, or make room on that disk"
                ),
            }
        }
    }

    fn note_room(&mut self, purpose: Purpose) {
        let Budget {
            deletes,
            shortage,
            now_ns,
            ..
        } = &mut self.budget;
        let is_over = deletes.is_on() && deletes.note_room(*now_ns);
        let is_put = purpose == Purpose::Put && shortage.is_on();
        if (is_put && shortage.note_room(*now_ns)) || (is_over && !shortage.is_on()) {
            tracing::warn!("the log in {} has room again", self.dir.display());
        }
    }

    /// A log that has always been here has set aside what deletes need. A copy of its directory may
    /// have left that out, and the disk may be full since.
    pub(crate) fn note_no_room_to_delete(&mut self) {
        // What is held gives its room back soon.
        if self.is_holding() {
            return;
        }
        let missing = self.missing_in_files(DELETE_SIZE, Purpose::Delete).max(1);
        let missing = missing.next_multiple_of(BLOCK_SIZE);
        let deletes = &mut self.budget.deletes;
        if deletes.note_refused(missing, self.budget.now_ns) {
            let dir = self.dir.display();
            match self.lacking() {
                class @ ErrorClass::Descriptors => tracing::warn!(
                    "no more files can be opened in {dir}, and what was set aside for deletes is \
                     not there: they are refused until one can; {}",
                    class.relief()
                ),
                _ => tracing::warn!(
                    "the disk of {dir} is full, and what was set aside for deletes is not there: \
                     they are refused until at least {missing} bytes are free; make room on that \
                     disk"
                ),
            }
        }
    }

    /// Note at a look whether deletes have room, or can be given some.
    pub(super) fn note_room_to_delete(&mut self) {
        let can_compact = self.spares.compaction.is_some() || self.is_compacting();
        let can_make_way = can_compact || self.files.sealed().dead > 0;
        if self.missing(DELETE_SIZE, Purpose::Delete) == 0 {
            self.note_room(Purpose::Delete);
        } else if self.files.live_jobs > 0 && !can_make_way {
            self.note_no_room_to_delete();
        }
    }

    /// Check that the sums equal a new count.
    ///
    /// # Panics
    /// If they do not.
    #[cfg(any(debug_assertions, feature = "sim"))]
    #[doc(hidden)]
    pub fn assert_accounts(&self) {
        assert_eq!(
            self.files.sealed(),
            self.files.recount(),
            "the sums are not true"
        );
        assert!(
            self.files.live_updates <= self.files.live_jobs,
            "more updates than jobs"
        );
        assert!(
            self.files.live_attributes <= self.files.live_jobs,
            "more attributes than jobs"
        );
        let capacity = u64::from(self.active.capacity);
        assert!(self.left() <= capacity, "more is left than there was");
    }

    /// Check the invariants 1 and 2 of this file: 1 to one percent, and 2 for files of which half
    /// is garbage. They hold on a disk that keeps what is set aside, and whose space no one else
    /// takes, when there is nothing left to do.
    ///
    /// # Panics
    /// If they do not hold.
    #[cfg(any(debug_assertions, feature = "sim"))]
    #[doc(hidden)]
    pub fn assert_room(&self) {
        let open = self.files.get(self.active.handle);
        let has = self.aside() + self.reclaimable() + open.garbage();
        let (jobs, updates) = (self.files.live_jobs, self.files.live_updates);
        let needed = jobs * DELETE_SIZE + self.updates_to_come();
        // What is reclaimable is an estimate.
        let has = has + needed / 100;
        assert!(
            has >= needed,
            "{jobs} jobs, {updates} of them updated, need {needed} bytes, there are {has}"
        );
        let aim = u64::from(self.segment_size_aim());
        if self.is_compacting() || self.files.sealed().size < 4 * aim {
            return;
        }
        let has = self.spares.compaction.as_ref().map_or(0, |it| it.size);
        for file in self.sealed_files() {
            let (size, live) = (u64::from(file.entry.end), file.live());
            let is_half_dead = size <= aim && live > 0 && file.garbage() >= size / 2;
            assert!(
                !is_half_dead || has >= room_for(live),
                "{} has {live} bytes alive and cannot be rewritten in {has} bytes",
                file.entry.file_name()
            );
        }
    }

    /// Live bytes of each file, without deletes that stand for another file, and those deletes: the
    /// same numbers that a start counts.
    #[doc(hidden)]
    #[must_use]
    pub fn accounts(&self) -> Vec<(String, u64)> {
        let account = |handle| {
            let file = self.files.get(handle);
            (file.entry.file_name(), file.live())
        };
        self.files.in_order().map(account).collect()
    }

    /// If puts or deletes are refused because the disk is full, this one or those of other servers: the
    /// bytes that were missing for the last one.
    #[must_use]
    pub fn missing_on_disk(&self) -> Option<u64> {
        let Budget {
            shortage, deletes, ..
        } = &self.budget;
        let others = self.mode.held().map(|held| &held.others);
        let mut shortages = [shortage, deletes].into_iter().chain(others);
        let shortage = shortages.find(|it| it.is_on())?;
        Some(shortage.missing())
    }

    /// Which room was lacking when something was last refused for want of it: [`ErrorClass::Full`],
    /// or [`ErrorClass::Descriptors`] if no file could be opened.
    #[must_use]
    pub fn lacking(&self) -> ErrorClass {
        match self.mode.held() {
            Some(held) if held.others.is_on() => ErrorClass::Full,
            _ => self.spares.lacking(),
        }
    }

    /// True while puts, or even deletes, are refused because this disk is full.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        self.budget.shortage.is_on() || self.budget.deletes.is_on()
    }
}
