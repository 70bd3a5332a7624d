//! Keeping the log small and ready: when to look for files to compact, and space for the next
//! segment.
//!
//! `compaction::plan` chooses the files, and `switch` applies the result. Copying and writing zeros
//! ahead run on threads; this file is the loop's part of it, in slices. Without threads the same
//! steps run one by one inside [`Log::maintain`], in an order that depends only on the calls.

use std::time::Duration;

use crate::storage::error::StoreError;
use crate::storage::format::EMPTY_FRAME_SIZE;
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::log::compaction::plan::{BLOCK, blocks, rewritten_size, room_for};
use crate::storage::log::compaction::{
    Asked, Compaction, Compactor, FileStat, Index, Need, Outcome, Plan, Space, Stage, Step,
    Subject, plan,
};
use crate::storage::log::files::{Files, LogFile};
use crate::storage::log::spares::Spare;
use crate::storage::log::sync::SyncPolicy;
use crate::storage::log::{Log, Purpose};

/// Zeros are written over the next segment once the used part of this one has reached its capacity
/// divided by this.
const ZEROS_FROM: u32 = 8;
/// The log is examined again when it has grown or shrunk by a segment divided by this. The file
/// that was sealed last is left alone for as long.
const LOOKS_A_SEGMENT: u32 = 32;
/// If nothing could make way for a record, it is tried again when this number of further bytes have
/// died.
const WAY_STEP: u64 = 4 << 10;
/// The longest time that the loop waits for the copying in one call, when garbage grows too fast.
const CONGESTION_WAIT: Duration = Duration::from_millis(2);

impl Log {
    /// Do a slice of the work other than appending. Returns whether more can be done at once.
    /// Changes nothing that a client can see; every step is crash-safe.
    pub fn maintain(&mut self, index: &mut dyn Index, wall_ns: u64) -> Result<bool, StoreError> {
        self.check()?;
        self.budget.now_ns = wall_ns;
        self.write_zeros_ahead();
        if self.is_compacting() {
            self.budget.credit = 0;
            let wait = self.is_congested().then_some(CONGESTION_WAIT);
            return self.go_on(index, wait, wall_ns);
        }
        if self.is_holding() {
            return Ok(false);
        }
        if self.is_time_to_look() {
            self.budget.credit = 0;
            self.look();
            self.prepare_space()?;
            self.note_room_to_delete();
            let need = self.need();
            self.choose(need, wall_ns)?;
        }
        Ok(match &self.maintenance.stage {
            Stage::Copying(compactor) => compactor.is_here(),
            Stage::Moving { .. } => true,
            Stage::Copied(..) => !self.is_holding(),
            Stage::Idle | Stage::Switching => self.maintenance.looked_at.is_none(),
        })
    }

    /// Free room before the next record, in this call: one whole compaction, and for deletes one of
    /// any file that frees a block. Returns whether something was done, so that it is worth looking
    /// for room again. Call it while [`Log::is_pressed`]; it takes as long as copying a segment.
    pub fn make_way(
        &mut self,
        purpose: Purpose,
        index: &mut dyn Index,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        self.check()?;
        self.budget.now_ns = wall_ns;
        self.budget.credit = 0;
        if self.is_holding() {
            return Ok(false);
        }
        let freed = self.files.freed;
        let is_vain = |at| freed.saturating_sub(at) < WAY_STEP;
        if self.budget.no_way_at.is_some_and(is_vain) {
            return Ok(false);
        }
        let aside = self.aside();
        let before = self.progress();
        if !self.is_compacting() {
            self.look();
            self.prepare_space()?;
            if self.aside() > aside {
                return Ok(true);
            }
            let need = match purpose {
                Purpose::Delete | Purpose::Switch => Need::Any,
                _ => Need::Scarce,
            };
            self.choose(need, wall_ns)?;
        }
        while self.is_compacting() {
            self.go_on(index, Some(CONGESTION_WAIT), wall_ns)?;
        }
        if self.progress() == before {
            // There was nothing to choose; or it failed, and would again.
            self.budget.no_way_at = Some(freed);
            return Ok(false);
        }
        self.prepare_space()?;
        Ok(true)
    }

    /// Changes whenever the next choice may differ: compactions that are over, files that were
    /// found to be of no use, another open segment.
    fn progress(&self) -> (u64, usize, u32) {
        let failed = self.maintenance.failed.len();
        (self.budget.ways_made, failed, self.active.handle)
    }

    /// Collect what the choice needs to know about all files.
    pub(super) fn look(&mut self) {
        let aim = u64::from(self.segment_size_aim());
        // Larger files hold a single job, or come from a time when segments were larger.
        let live = self.sealed_files().map(|file| file.live());
        self.budget.most_alive = live.filter(|live| *live <= aim).max().unwrap_or(0);
    }

    pub(super) fn sealed_files(&self) -> impl Iterator<Item = &LogFile> {
        let open = self.active.handle;
        let sealed = self.files.in_order().filter(move |handle| *handle != open);
        sealed.map(|handle| self.files.get(handle))
    }

    /// Garbage that cannot be freed, in files that cannot be read.
    pub(crate) fn failed_garbage(&self) -> u64 {
        let failed = self.maintenance.failed.iter();
        failed.map(|handle| self.files.get(*handle).garbage()).sum()
    }

    fn need(&self) -> Need {
        let (aside, allowance) = (self.aside(), self.allowance());
        match () {
            () if !self.is_short() => Need::None,
            () if aside < allowance / 2 => Need::Any,
            () if aside < allowance => Need::Scarce,
            () => Need::Short,
        }
    }

    /// Do a slice of the current compaction, and wait for its thread no longer than `wait`.
    fn go_on(
        &mut self,
        index: &mut dyn Index,
        wait: Option<Duration>,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        match std::mem::take(&mut self.maintenance.stage) {
            Stage::Idle | Stage::Switching => Ok(false),
            Stage::Copying(compactor) => self.copy(compactor, index, wait, wall_ns),
            Stage::Copied(inputs, copied) if self.is_holding() => {
                self.maintenance.stage = Stage::Copied(inputs, copied);
                Ok(false)
            }
            Stage::Copied(inputs, copied) => self.copied(inputs, *copied, index, wall_ns),
            Stage::Moving {
                output,
                inputs,
                moved,
            } => self.moving(output, inputs, moved, index),
        }
    }

    fn copy(
        &mut self,
        compactor: Compactor,
        index: &mut dyn Index,
        wait: Option<Duration>,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        let (files, queue) = (&self.files, &*index);
        let step = compactor.step(wait, &|inputs, records| {
            are_live(files, inputs, records, queue)
        });
        let (compactor, is_asked) = match step {
            Step::More(compactor) => (compactor, true),
            Step::Waiting(compactor) => (compactor, false),
            Step::Done(inputs, copied) => {
                self.maintenance.stage = Stage::Copied(inputs, copied);
                return self.go_on(index, None, wall_ns);
            }
            Step::Lost(inputs) => {
                tracing::error!("the compaction thread ended without a result");
                self.maintenance.failed.extend(inputs);
                return Ok(false);
            }
        };
        let is_here = compactor.is_here();
        self.maintenance.stage = Stage::Copying(compactor);
        Ok(is_here || is_asked && self.is_congested())
    }

    /// True during a compaction.
    #[must_use]
    pub fn is_compacting(&self) -> bool {
        !matches!(self.maintenance.stage, Stage::Idle)
    }

    fn is_time_to_look(&mut self) -> bool {
        let due = self.is_due_to_look();
        self.files.has_new_mendable = false;
        if due {
            self.maintenance.looked_at = Some((self.written, self.files.freed));
        }
        due
    }

    pub(super) fn is_due_to_look(&self) -> bool {
        let step = u64::from(self.step());
        let (written, freed) = (self.written, self.files.freed);
        match self.maintenance.looked_at {
            None => true,
            _ if self.files.has_new_mendable => true,
            Some((position, bytes)) => {
                position.segment() != written.segment()
                    || u64::from(written.offset() - position.offset()) >= step
                    || freed - bytes >= step
            }
        }
    }

    /// True if a copy is complete and waits for its switch.
    pub(super) fn is_copied(&self) -> bool {
        matches!(self.maintenance.stage, Stage::Copied(..))
    }

    /// Bytes between two looks.
    fn step(&self) -> u32 {
        self.segment_size_aim().min(self.active.capacity) / LOOKS_A_SEGMENT
    }

    /// Reserve the next segment and the room for compaction before they are needed, and give back
    /// the excess.
    fn prepare_space(&mut self) -> Result<(), StoreError> {
        self.keep_room_to_compact(0)?;
        self.set_aside()?;
        self.widen_for_next_segment()?;
        let used = self.files.get(self.active.handle).entry.end;
        let soon = used >= self.active.capacity / ZEROS_FROM;
        if self.syncs_often()
            && soon
            && self.spares.len() == 0
            && let Some(spare) = self.reserve(self.next_size(), SEGMENT_SIZE_MIN)?
        {
            self.spares.add(spare);
        }
        self.give_back()
    }

    /// Write zeros over the next segment, twice as fast as this one fills.
    fn write_zeros_ahead(&mut self) {
        let capacity = u64::from(self.active.capacity);
        let used = u64::from(self.files.get(self.active.handle).entry.end);
        let due = used.saturating_sub(capacity / u64::from(ZEROS_FROM));
        if due > 0 && self.syncs_often() {
            self.spares.write_zeros_ahead(2 * due, capacity);
        }
    }

    /// True if zeros written ahead pay: when there is a sync for every few kilobytes. Without
    /// threads none are written.
    fn syncs_often(&self) -> bool {
        let has_threads = self.options.waker.is_some();
        self.options.sync == SyncPolicy::Always && has_threads && self.pace.writes_are_small()
    }

    /// Start the most useful compaction, if any.
    fn choose(&mut self, need: Need, wall_ns: u64) -> Result<(), StoreError> {
        let has_dead = self.files.sealed().dead > 0;
        // Damage in the open segment can be removed after it is sealed.
        let is_open_mendable = self.files.mendable.contains(&self.active.handle);
        if !has_dead && is_open_mendable && self.rotate(0, wall_ns)? {
            return Ok(());
        }
        match self.plan(need)? {
            Some(Plan::Drop(dead)) => self.drop_dead(dead, wall_ns),
            Some(Plan::Rewrite(inputs)) => {
                if let Some(spare) = self.spares.compaction.take() {
                    self.budget.work_size = spare.size;
                    self.begin(&inputs, spare, wall_ns);
                }
                Ok(())
            }
            Some(Plan::Seal) => self.seal_early(wall_ns),
            Some(Plan::Grow(..)) | None => Ok(()),
        }
    }

    /// The work to do, with the room for it if the disk has it.
    fn plan(&mut self, need: Need) -> Result<Option<Plan>, StoreError> {
        let stats = self.stats();
        let planned = plan(&stats, &self.space(need));
        let Some(Plan::Grow(file, size)) = planned else {
            return Ok(planned);
        };
        if self.widen_room_to_compact(size, size)? {
            return Ok(Some(Plan::Rewrite(vec![file])));
        }
        let can_grow = false;
        let space = self.space(need);
        Ok(plan(&stats, &Space { can_grow, ..space }))
    }

    /// Figures of each file that a plan needs, in order.
    fn stats(&self) -> Vec<FileStat> {
        let settling = self.settling();
        let stat = |handle| {
            let file = self.files.get(handle);
            FileStat {
                handle,
                size: file.entry.end,
                live: file.live(),
                garbage: file.garbage(),
                pinned: self.files.pinned_by(handle),
                is_open: handle == self.active.handle,
                is_settling: Some(handle) == settling,
                has_failed: self.maintenance.failed.contains(&handle),
                is_mendable: self.files.mendable.contains(&handle),
            }
        };
        self.files.in_order().map(stat).collect()
    }

    fn space(&self, need: Need) -> Space {
        let compaction = self.spares.compaction.as_ref();
        Space {
            need,
            room: compaction.map_or(0, |spare| spare.size),
            can_grow: true,
            segment_size: self.segment_size_aim(),
            allowance: self.allowance(),
            sealed: self.files.sealed(),
        }
    }

    fn is_congested(&self) -> bool {
        self.space(self.need()).is_congested()
    }

    /// Start to rewrite the files with handles `inputs`, which are neighbours, into `spare`.
    fn begin(&mut self, inputs: &[u32], spare: Spare, wall_ns: u64) {
        let (fs, at) = (self.fs.clone(), self.next_position());
        self.maintenance.failed.retain(|it| !inputs.contains(it));
        match Compaction::begin(fs, &self.dir, &mut self.files, inputs, spare, at, wall_ns) {
            Err((error, spare)) => self.give_up(inputs.to_vec(), error, spare),
            Ok(compaction) => {
                let compactor = Compactor::start(compaction, self.options.waker.as_ref());
                self.maintenance.stage = Stage::Copying(compactor);
            }
        }
    }

    /// Drop files without live records: they need no copying.
    fn drop_dead(&mut self, inputs: Vec<u32>, wall_ns: u64) -> Result<(), StoreError> {
        let tombstones = self.files.tombstones_of(&inputs);
        let outcome = Outcome {
            inputs,
            output: None,
            moved: Vec::new(),
            tombstones,
            filtered_at: self.next_position(),
            spare: None,
            damaged: Vec::new(),
        };
        self.switch(outcome, wall_ns).map(drop)
    }

    /// Continue in the next segment. If the disk is full and there is no next segment, the room for
    /// compaction becomes the next segment, provided that the rest of this one is room enough for
    /// rewriting it.
    fn seal_early(&mut self, wall_ns: u64) -> Result<(), StoreError> {
        let live = self.files.get(self.active.handle).live();
        let room = room_for(live);
        if self.spares.len() > 0 && live > 0 && !self.widen_room_to_compact(room, room)? {
            return Ok(());
        }
        if self.spares.len() == 0
            && let Some(spare) = self.reserve(self.next_size(), SEGMENT_SIZE_MIN)?
        {
            self.spares.add(spare);
        }
        if self.spares.len() == 0 && !self.trade_room(live) && !self.find_way_out(live)? {
            return Ok(());
        }
        if self.rotate(0, wall_ns)? {
            self.budget.note_way();
            self.keep_room_to_compact(0)?;
            self.maintenance.looked_at = None;
        }
        Ok(())
    }

    /// Turn the room for compaction into the next segment, if sealing the open one gives back
    /// enough room for rewriting it.
    fn trade_room(&mut self, live: u64) -> bool {
        let file = self.files.get(self.active.handle);
        let end = u64::from(file.entry.end) + self.frame.size() + 2 * EMPTY_FRAME_SIZE as u64;
        let given_back = blocks(self.active.capacity.into()).saturating_sub(blocks(end));
        let is_enough = live == 0 || rewritten_size(live) <= given_back;
        match self.spares.compaction.take_if(|_| is_enough) {
            Some(spare) => {
                self.spares.add(spare);
                true
            }
            None => false,
        }
    }

    /// For a log of one file, which has set nothing aside yet: set aside what little is needed to
    /// leave that file and to rewrite what is alive in it.
    fn find_way_out(&mut self, live: u64) -> Result<bool, StoreError> {
        if self.spares.compaction.is_none() && live > 0 {
            let size = room_for(live);
            self.spares.compaction = self.reserve(size, size)?;
            if self.spares.compaction.is_none() {
                return Ok(false);
            }
        }
        let size = self.spare_size_min(Purpose::Delete);
        match self.reserve(size, size)? {
            Some(spare) => self.spares.add(spare),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// The file that has just been sealed. Most of its live records may be about to be deleted, and
    /// a file without live records need not be read. On a full disk there is no time to wait; and
    /// if the log is idle, so little remains that it is copied soon.
    fn settling(&self) -> Option<u32> {
        let open = self.active.handle;
        let is_new = self.files.get(open).entry.end < self.step() && !self.is_short();
        let mut sealed = self.files.in_order().rev().filter(|file| *file != open);
        let last = sealed.next().filter(|_| is_new)?;
        let is_worth_waiting = self.wants_marker() || self.files.get(last).live() >= BLOCK;
        is_worth_waiting.then_some(last)
    }

    /// Rewrite the files with handles `inputs`, which are neighbours, into `spare`, and apply the
    /// result before returning. Without a spare, drop them: they have no live records. `false`: the
    /// log is unchanged, because room is missing or a file cannot be read.
    pub(crate) fn rewrite(
        &mut self,
        inputs: &[u32],
        spare: Option<Spare>,
        index: &mut dyn Index,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        match spare {
            None => self.drop_dead(inputs.to_vec(), wall_ns)?,
            Some(spare) => self.begin(inputs, spare, wall_ns),
        }
        while self.is_compacting() {
            self.go_on(index, Some(CONGESTION_WAIT), wall_ns)?;
        }
        Ok(!self.files.in_order().any(|handle| inputs.contains(&handle)))
    }
}

/// Which records of the files being rewritten are alive.
fn are_live(files: &Files, inputs: &[u32], records: &[Asked], index: &dyn Index) -> Vec<bool> {
    let is_rewritten = |segment| {
        let mut inputs = inputs.iter();
        inputs.any(|handle| files.get(*handle).covers(segment))
    };
    let is_live = |(place, subject): &Asked| match subject {
        Subject::Log => false,
        Subject::Delete(segment) => {
            !is_rewritten(*segment) && files.tombstone_is_needed(*place, *segment)
        }
        other => index.is_live(other, *place),
    };
    records.iter().map(is_live).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::log::sync::tests::log;

    #[test]
    fn it_is_time_to_look_again_when_something_was_freed_since() {
        let mut log = log(&SimFs::new(1), SyncPolicy::Always);
        let step = u64::from(log.options.segment_size) / 32;
        log.files.freed = 10 * step;
        assert!(log.is_time_to_look() && !log.is_time_to_look());
        log.files.freed += step - 1;
        assert!(!log.is_time_to_look());
        log.files.freed += 1;
        assert!(log.is_time_to_look() && !log.is_time_to_look());
    }
}
