//! Keeping the log small and ready: when to compact what, and space for the next segment.
//!
//! The copying and the writing of zeros ahead run on threads beside the loop; here is what the loop
//! does of it, in slices. Without threads the same steps run one by one inside [`Log::maintain`],
//! in an order that depends on nothing but the calls.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::storage::error::{StoreError, is_full};
use crate::storage::format::{EMPTY_FRAME_SIZE, Entries, Entry, Record, file_name};
use crate::storage::log::budget::{BLOCK, blocks, rewritten_size};
use crate::storage::log::compact::{
    Batch, Compaction, CompactionError, DamagedInput, Index, Moved, Outcome, Subject,
};
use crate::storage::log::files::{Files, LogFile};
use crate::storage::log::spares::{SEGMENT_SIZE_MIN, Spare};
use crate::storage::log::sync::{SyncPolicy, Waker};
use crate::storage::log::{AppendError, Log, Purpose};
use crate::types::{Place, Position};

/// Compaction begins when more than so many hundredths of the sealed files are garbage. What it
/// copies is then at most 65/35 of what it frees: no byte is written three times on average, and
/// the sealed files stay below twice what is alive in them.
const GARBAGE_PERCENT: u64 = 35;
/// The fewer bytes are left, the less a file must hold that is garbage to be compacted, in
/// thousandths: what is copied for nothing is the price of going on.
const SHORT_SHARE: u64 = 250;
const SCARCE_SHARE: u64 = 125;
/// A segment is left early, on a full disk, when so many thousandths of it are garbage.
const LEAVE_SHARE: u64 = 250;
/// No more files than this are merged at once: the record of it must stay small.
const MERGED_MAX: usize = 64;
/// The loop waits for the copying when more than so many hundredths are garbage.
const CONGESTED_PERCENT: u64 = 50;
/// Files smaller than a segment divided by this are merged with neighbours like them …
const SMALL_DIVISOR: u32 = 4;
/// … when there are so many side by side.
const SMALL_RUN: usize = 4;
/// Zeros are written over the next segment from when this one is full to one part in so many.
const ZEROS_FROM: u32 = 8;
/// The log is looked at again when it has grown or shrunk by a segment divided by this. The file
/// that was sealed last is left alone for as long.
const LOOKS_A_SEGMENT: u32 = 32;
/// So many records get their new places in one call.
const MOVES_A_CALL: usize = 1024;
/// When nothing could make way for a record, it is tried again when so many more bytes have died.
const WAY_STEP: u64 = 4 << 10;
/// How long the loop waits for the copying, when it falls behind, in one call.
const CONGESTION_WAIT: Duration = Duration::from_millis(2);

/// What maintenance is at.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    stage: Stage,
    /// Look again when the log has grown or shrunk by so much since the last look.
    looked_at: Option<(Position, u64)>,
    /// Files whose compaction failed; they are left alone until the next start.
    failed: Vec<u32>,
    /// Records copied.
    pub(crate) records_migrated: u64,
    /// Compactions that took effect.
    pub(crate) compactions: u64,
}

impl Maintenance {
    /// Look again at once: something has changed.
    pub(crate) fn look_again(&mut self) {
        self.looked_at = None;
    }
}

/// How badly room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Not at all: the log is to stay small.
    None,
    /// Puts are refused, or soon will be.
    Short,
    /// What is set aside in any case is being used.
    Scarce,
    /// Half of that is gone: whatever frees a block.
    Any,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    /// The copying, in the loop itself.
    Copying(Box<Compaction>),
    /// The copying, on its thread.
    CopyingBeside(Beside),
    /// The copy is whole, the switch is being made.
    Switching,
    /// The switch is durable; records get their new places.
    Moving {
        output: Option<u32>,
        inputs: Vec<u32>,
        moved: std::vec::IntoIter<Moved>,
    },
}

/// What the copying thread tells the loop.
#[derive(Debug)]
enum Message {
    Query(Vec<(Place, Subject)>),
    Done(Box<Result<Outcome, (CompactionError, Spare)>>),
}

#[derive(Debug)]
struct Beside {
    messages: Receiver<Message>,
    answers: Sender<Vec<bool>>,
    inputs: Vec<u32>,
    /// Ends when the channels above are gone.
    _thread: Joined,
}

/// A thread that has ended when this is dropped. A log that is closed lets go of its directory:
/// whoever opens it next must not find the threads of the last one at work in its files.
#[derive(Debug)]
struct Joined(Option<JoinHandle<()>>);

impl Joined {
    fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Joined {
        match std::thread::Builder::new().name(name.into()).spawn(work) {
            Ok(thread) => Joined(Some(thread)),
            // The work is dropped, and its channels with it: whoever waits for it sees that.
            Err(error) => {
                tracing::warn!("could not start a thread: {error}");
                Joined(None)
            }
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic in it has been reported already.
            let _ = thread.join();
        }
    }
}

/// What one step of the copying came to.
enum Copied {
    More,
    Nothing,
    Done(Box<Result<Outcome, (CompactionError, Spare)>>),
}

impl Log {
    /// A slice of whatever there is to do besides appending. Says whether there is more to do at
    /// once. Changes nothing that a client can see; every step is crash-safe.
    pub fn maintain(&mut self, index: &mut dyn Index, wall_ns: u64) -> Result<bool, StoreError> {
        self.check()?;
        self.budget.now_ns = wall_ns;
        self.write_zeros_ahead();
        if self.is_compacting() {
            let wait = self.is_congested().then_some(CONGESTION_WAIT);
            return self.go_on(index, wait, wall_ns);
        }
        if self.is_time_to_look() {
            self.look();
            self.prepare_space()?;
            let need = self.need();
            self.choose(need, wall_ns)?;
        }
        Ok(matches!(
            self.maintenance.stage,
            Stage::Copying(_) | Stage::Moving { .. }
        ))
    }

    /// Give room back before the next record, here and now: a whole compaction, of whatever frees a
    /// block where that is for deletes. Says whether something was done, so that it is worth looking
    /// for room again. Call it while [`Log::is_pressed`]; it takes as long as copying a segment.
    pub fn make_way(
        &mut self,
        purpose: Purpose,
        index: &mut dyn Index,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        self.check()?;
        self.budget.now_ns = wall_ns;
        let freed = self.files.freed;
        let is_vain = |at| freed.saturating_sub(at) < WAY_STEP;
        if self.budget.no_way_at.is_some_and(is_vain) {
            return Ok(false);
        }
        let aside = self.aside();
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
            let segment = self.active.handle;
            self.choose(need, wall_ns)?;
            if !self.is_compacting() && self.active.handle == segment {
                self.budget.no_way_at = Some(freed);
                return Ok(false);
            }
        }
        while self.is_compacting() {
            self.go_on(index, Some(CONGESTION_WAIT), wall_ns)?;
        }
        self.prepare_space()?;
        Ok(true)
    }

    /// What has to be known of all files before one is chosen.
    fn look(&mut self) {
        let aim = u64::from(self.segment_size_aim());
        // Larger ones hold a single job, or are of a time when segments were larger.
        let live = self.sealed_files().map(|file| file.live());
        self.budget.most_alive = live.filter(|live| *live <= aim).max().unwrap_or(0);
    }

    fn sealed_files(&self) -> impl Iterator<Item = &LogFile> {
        let open = self.active.handle;
        let sealed = self.files.in_order().filter(move |handle| *handle != open);
        sealed.map(|handle| self.files.get(handle))
    }

    /// Garbage that cannot be had, in files that cannot be read.
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

    /// A slice of the compaction that is under way, waiting for its thread so long at most.
    fn go_on(
        &mut self,
        index: &mut dyn Index,
        wait: Option<Duration>,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        match std::mem::take(&mut self.maintenance.stage) {
            Stage::Idle | Stage::Switching => Ok(false),
            Stage::Copying(compaction) => self.copy(compaction, index, wall_ns),
            Stage::CopyingBeside(beside) => self.copy_beside(beside, index, wait, wall_ns),
            Stage::Moving {
                output,
                inputs,
                moved,
            } => self.moving(output, inputs, moved, index),
        }
    }

    /// True while a compaction is under way.
    #[must_use]
    pub fn is_compacting(&self) -> bool {
        !matches!(self.maintenance.stage, Stage::Idle)
    }

    fn is_time_to_look(&mut self) -> bool {
        let step = u64::from(self.step());
        let (written, freed) = (self.written, self.files.freed);
        let due = match self.maintenance.looked_at {
            None => true,
            _ if std::mem::take(&mut self.files.has_new_mendable) => true,
            Some((position, bytes)) => {
                position.segment() != written.segment()
                    || u64::from(written.offset() - position.offset()) >= step
                    || freed - bytes >= step
            }
        };
        if due {
            self.maintenance.looked_at = Some((written, freed));
        }
        due
    }

    /// Bytes between two looks.
    fn step(&self) -> u32 {
        self.segment_size_aim().min(self.active.capacity) / LOOKS_A_SEGMENT
    }

    /// Have the next segment, and room for compaction, before they are needed, and no more than that.
    fn prepare_space(&mut self) -> Result<(), StoreError> {
        self.keep_room_to_compact(0)?;
        self.widen_for_next_segment()?;
        self.set_aside()?;
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

    /// Zeros written ahead pay when there is a sync for every few kilobytes. Without threads none
    /// are written.
    fn syncs_often(&self) -> bool {
        let has_threads = self.options.waker.is_some();
        self.options.sync == SyncPolicy::Always && has_threads && self.pace.is_of_little()
    }

    /// Begin the compaction that there is most need of, if any.
    fn choose(&mut self, need: Need, wall_ns: u64) -> Result<(), StoreError> {
        let open = self.active.handle;
        if self.files.sealed().dead > 0 {
            let is_dead = |handle: &u32| *handle != open && self.files.get(*handle).live() == 0;
            let dead = self.files.in_order().filter(is_dead);
            return self.drop_dead(dead.take(MERGED_MAX).collect(), wall_ns);
        }
        // Damage in the open segment can be got rid of when that is sealed.
        if self.files.mendable.contains(&open) && self.rotate(0, wall_ns)? {
            return Ok(());
        }
        let inputs = match self.mendable_with_room()? {
            Some(handle) => {
                self.maintenance.failed.retain(|failed| *failed != handle);
                vec![handle]
            }
            None => match self.most_garbage(need)? {
                Some(handle) => vec![handle],
                None => self.small_neighbours(),
            },
        };
        if inputs.is_empty() {
            return self.seal_early(need, wall_ns);
        }
        let Some(spare) = self.spares.compaction.take() else {
            return Ok(());
        };
        self.budget.work_size = spare.size;
        let (fs, at) = (self.fs.clone(), self.next_position());
        let files = &mut self.files;
        let begun = Compaction::begin(fs, &self.dir, files, &inputs, spare, at, wall_ns);
        match begun {
            Err((error, spare)) => self.give_up(inputs, error, spare),
            Ok(compaction) => {
                self.maintenance.stage = match &self.options.waker {
                    None => Stage::Copying(Box::new(compaction)),
                    Some(waker) => {
                        Stage::CopyingBeside(copy_on_thread(compaction, inputs, waker.clone()))
                    }
                };
            }
        }
        Ok(())
    }

    /// A sealed file in which a damaged record has died, if there is room to rewrite it.
    fn mendable_with_room(&mut self) -> Result<Option<u32>, StoreError> {
        let open = self.active.handle;
        let mut mendable = self.files.mendable.iter().copied();
        let Some(handle) = mendable.find(|handle| *handle != open) else {
            return Ok(None);
        };
        let size = blocks(rewritten_size(self.files.get(handle).live()));
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let has_room = self.widen_room_to_compact(size, size)?;
        Ok(has_room.then_some(handle))
    }

    /// Files in which nothing is alive need no copying.
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

    /// Garbage in the open segment cannot be got at: go on in the next one, when the disk is full and
    /// much of it is garbage, or when it was made for a job larger than a segment. Where the disk is
    /// full and there is no next one, the room for compaction becomes the next segment, if what this
    /// one has left is room enough for rewriting it.
    fn seal_early(&mut self, need: Need, wall_ns: u64) -> Result<(), StoreError> {
        let aim = u64::from(self.segment_size_aim());
        let open = self.files.get(self.active.handle);
        let (size, garbage, live) = (u64::from(open.entry.end), open.garbage(), open.live());
        let is_large = size > aim && garbage >= size / 2;
        let saved = blocks(size).saturating_sub(blocks(rewritten_size(live)));
        let is_worth_it = match need {
            Need::None => false,
            Need::Short | Need::Scarce => garbage * 1000 >= size * LEAVE_SHARE,
            Need::Any => true,
        };
        let least = u64::from(SEGMENT_SIZE_MIN / 8).min(self.allowance() / 4);
        let is_for_room = is_worth_it && saved >= least;
        if !is_large && !is_for_room {
            return Ok(());
        }
        if self.spares.len() == 0
            && let Some(spare) = self.reserve(self.next_size(), SEGMENT_SIZE_MIN)?
        {
            self.spares.add(spare);
        }
        if self.spares.len() == 0 && !self.trade_room(live) {
            return Ok(());
        }
        if self.rotate(0, wall_ns)? {
            self.budget.note_freed();
            self.keep_room_to_compact(0)?;
            self.maintenance.looked_at = None;
        }
        Ok(())
    }

    /// Let the room for compaction be the next segment, if what the open one gives back when it is
    /// sealed is room enough for rewriting it.
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

    /// The file that is most worth rewriting: that holds the largest share of garbage, and of deletes
    /// elsewhere that are not needed any more once it is.
    fn most_garbage(&mut self, need: Need) -> Result<Option<u32>, StoreError> {
        let sealed = self.files.sealed();
        let slack = u64::from(self.segment_size_aim()) / 8;
        let dead = sealed.garbage + sealed.tombstones;
        let is_much = dead * 100 > sealed.size * GARBAGE_PERCENT + slack * 100;
        let (share_min, is_for_room) = match need {
            _ if is_much => (1, false),
            Need::None => return Ok(None),
            Need::Short => (SHORT_SHARE, true),
            Need::Scarce => (SCARCE_SHARE, true),
            Need::Any => (0, true),
        };
        let settling = self.settling();
        let open = self.active.handle;
        let mut found: Option<(u64, u32)> = None;
        let mut found_that_fits: Option<(u64, u32)> = None;
        let room = self
            .spares
            .compaction
            .as_ref()
            .map_or(0, |spare| spare.size);
        for handle in self.files.in_order() {
            if handle == open
                || Some(handle) == settling
                || self.maintenance.failed.contains(&handle)
            {
                continue;
            }
            let file = self.files.get(handle);
            let (size, live) = (u64::from(file.entry.end), file.live());
            let saved = blocks(size).saturating_sub(blocks(rewritten_size(live)));
            let pinned = if is_for_room {
                0
            } else {
                self.files.pinned_by(handle)
            };
            let share = (file.garbage() + pinned) * 1000 / size.max(1);
            let is_worth_it = share >= share_min && (saved > 0 || !is_for_room);
            if !is_worth_it {
                continue;
            }
            if found.is_none_or(|(most, _)| share > most) {
                found = Some((share, handle));
            }
            let fits = rewritten_size(live) <= u64::from(room);
            if fits && found_that_fits.is_none_or(|(most, _)| share > most) {
                found_that_fits = Some((share, handle));
            }
        }
        let Some((_, best)) = found else {
            return Ok(None);
        };
        if found_that_fits.is_some_and(|(_, handle)| handle == best) {
            return Ok(Some(best));
        }
        // A file of a time when segments were larger: where the disk has the room, it is had for it.
        let size = blocks(rewritten_size(self.files.get(best).live()));
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        match self.widen_room_to_compact(size, size)? {
            true => Ok(Some(best)),
            false => Ok(found_that_fits.map(|(_, handle)| handle)),
        }
    }

    /// The file that has just been sealed: most of what is alive in it may be about to be deleted,
    /// and a file in which nothing is alive need not be read. On a full disk there is no time; and
    /// where the log is idle, next to nothing is soon copied.
    fn settling(&self) -> Option<u32> {
        let open = self.active.handle;
        let is_new = self.files.get(open).entry.end < self.step() && !self.is_short();
        let mut sealed = self.files.in_order().rev().filter(|file| *file != open);
        let last = sealed.next().filter(|_| is_new)?;
        let is_worth_waiting = self.wants_marker() || self.files.get(last).live() >= BLOCK;
        is_worth_waiting.then_some(last)
    }

    fn small_neighbours(&self) -> Vec<u32> {
        let aim = self.segment_size_aim();
        let room = self
            .spares
            .compaction
            .as_ref()
            .map_or(0, |spare| spare.size);
        let mut run: Vec<u32> = Vec::new();
        for handle in self.files.in_order() {
            let file = self.files.get(handle);
            let usable = file.entry.end <= aim / SMALL_DIVISOR
                && handle != self.active.handle
                && !self.maintenance.failed.contains(&handle);
            run.push(handle);
            if !usable || run.len() > MERGED_MAX || !fits(&self.files, &run, room.min(aim)) {
                run.pop();
                if run.len() >= SMALL_RUN {
                    return run;
                }
                run.clear();
            }
        }
        if run.len() >= SMALL_RUN {
            run
        } else {
            Vec::new()
        }
    }

    /// Rewrite the files with handles `inputs`, which are neighbours, into `spare`, and let that take
    /// effect before returning; without a spare, drop them: nothing in them is alive. `false`: the
    /// log is as it was, for want of room or because a file cannot be read.
    pub(crate) fn rewrite(
        &mut self,
        inputs: &[u32],
        spare: Option<Spare>,
        index: &mut dyn Index,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        match spare {
            None => self.drop_dead(inputs.to_vec(), wall_ns)?,
            Some(spare) => {
                let (fs, at) = (self.fs.clone(), self.next_position());
                match Compaction::begin(fs, &self.dir, &mut self.files, inputs, spare, at, wall_ns)
                {
                    Err((error, spare)) => self.give_up(inputs.to_vec(), error, spare),
                    Ok(compaction) => {
                        self.maintenance.stage = Stage::Copying(Box::new(compaction));
                    }
                }
            }
        }
        while self.is_compacting() {
            self.go_on(index, Some(CONGESTION_WAIT), wall_ns)?;
        }
        Ok(!self.files.in_order().any(|handle| inputs.contains(&handle)))
    }

    /// One batch, here and now.
    fn copy(
        &mut self,
        mut compaction: Box<Compaction>,
        index: &mut dyn Index,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        let inputs = compaction.inputs();
        let step = match compaction.next_batch() {
            Ok(None) => return self.copied(inputs, compaction.finish(), index, wall_ns),
            Ok(Some(batch)) => {
                let live = self.answer(&batch_subjects(&batch), &inputs, index);
                compaction.copy(batch, &live)
            }
            Err(error) => Err(error),
        };
        match step {
            Ok(()) => self.maintenance.stage = Stage::Copying(compaction),
            Err(error) => self.give_up(inputs, error, compaction.abandon()),
        }
        Ok(true)
    }

    /// Answer the copying thread, and wait for it a little when it falls behind.
    fn copy_beside(
        &mut self,
        beside: Beside,
        index: &mut dyn Index,
        wait: Option<Duration>,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        let copied = match beside.messages.try_recv() {
            Ok(message) => self.take_message(&beside, message, index),
            Err(TryRecvError::Empty) => {
                let message = wait.map(|wait| beside.messages.recv_timeout(wait));
                match message {
                    Some(Ok(message)) => self.take_message(&beside, message, index),
                    _ => Copied::Nothing,
                }
            }
            Err(TryRecvError::Disconnected) => {
                tracing::error!("the compaction thread ended without a result");
                self.maintenance.failed.extend(beside.inputs);
                return Ok(false);
            }
        };
        match copied {
            Copied::Done(result) => self.copied(beside.inputs, *result, index, wall_ns),
            other => {
                self.maintenance.stage = Stage::CopyingBeside(beside);
                Ok(matches!(other, Copied::More) && self.is_congested())
            }
        }
    }

    fn take_message(&self, beside: &Beside, message: Message, index: &mut dyn Index) -> Copied {
        match message {
            Message::Done(result) => Copied::Done(result),
            Message::Query(records) => {
                let live = self.answer(&records, &beside.inputs, index);
                match beside.answers.send(live) {
                    Ok(()) => Copied::More,
                    // The thread is gone; its channel will say so.
                    Err(_) => Copied::Nothing,
                }
            }
        }
    }

    /// Which records are alive.
    fn answer(&self, records: &[(Place, Subject)], inputs: &[u32], index: &dyn Index) -> Vec<bool> {
        let rewritten = |segment| {
            inputs
                .iter()
                .any(|handle| self.files.get(*handle).covers(segment))
        };
        let is_live = |(place, subject): &(Place, Subject)| match subject {
            Subject::Log => false,
            Subject::Delete(segment) => {
                !rewritten(*segment) && self.files.tombstone_is_needed(*place, *segment)
            }
            other => index.is_live(other, *place),
        };
        records.iter().map(is_live).collect()
    }

    fn is_congested(&self) -> bool {
        let sealed = self.files.sealed();
        let slack = u64::from(self.segment_size_aim()) / 2;
        sealed.garbage * 100 > sealed.size * CONGESTED_PERCENT + slack * 100
            || self.need() == Need::Any
    }

    fn copied(
        &mut self,
        inputs: Vec<u32>,
        result: Result<Outcome, (CompactionError, Spare)>,
        index: &dyn Index,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        match result {
            Ok(outcome) => match self.damaged_and_alive(&outcome, index) {
                alive if alive.iter().all(|bytes| *bytes == 0) => self.mend(outcome, wall_ns),
                alive => {
                    self.refuse(outcome, &alive);
                    Ok(false)
                }
            },
            Err((CompactionError::NameNotSynced(error), _)) => {
                let dir = self.dir.clone();
                Err(self.fail(StoreError::new("sync", &dir, &error)))
            }
            Err((error, spare)) => {
                self.give_up(inputs, error, spare);
                Ok(false)
            }
        }
    }

    /// For each damaged input, the bytes that are alive in it and were not copied: none, if what is
    /// damaged is dead. Where a delete is lost that keeps a job dead it is `u64::MAX`, for good. Looks
    /// at every record copied, here and now: files are damaged seldom.
    fn damaged_and_alive(&mut self, outcome: &Outcome, index: &dyn Index) -> Vec<u64> {
        let mut alive = Vec::new();
        for damaged in &outcome.damaged {
            let (mut live, mut deletes) = self.files.alive_in(damaged.handle);
            let is_input = |segment| {
                let mut inputs = outcome.inputs.iter();
                inputs.any(|handle| self.files.get(*handle).covers(segment))
            };
            deletes.retain(|segment, _| !is_input(*segment));
            let from_it = |moved: &&Moved| moved.from.file == damaged.handle;
            for moved in outcome.moved.iter().filter(from_it) {
                let size = u64::from(moved.size);
                match &moved.subject {
                    Subject::Delete(segment) => {
                        if let Some(bytes) = deletes.get_mut(segment) {
                            *bytes = bytes.saturating_sub(size);
                        }
                    }
                    other if index.is_live(other, moved.from) => {
                        live = live.saturating_sub(size);
                    }
                    _ => {}
                }
            }
            let is_delete_lost = deletes.values().any(|bytes| *bytes > 0);
            alive.push(if is_delete_lost { u64::MAX } else { live });
        }
        alive
    }

    /// Let a finished compaction take effect, and say what was damaged in its inputs: all of it is
    /// dead, and gone with them.
    fn mend(&mut self, mut outcome: Outcome, wall_ns: u64) -> Result<bool, StoreError> {
        let damaged = std::mem::take(&mut outcome.damaged);
        let is_made = self.switch(outcome, wall_ns)?;
        for DamagedInput { what, .. } in damaged.iter().filter(|_| is_made) {
            tracing::warn!(
                "{what}; nothing there was needed, and the file was rewritten without it; \
                 check the disk under {}",
                self.dir.display()
            );
        }
        Ok(is_made)
    }

    /// Something alive is damaged: the log stays as it was.
    fn refuse(&mut self, outcome: Outcome, alive: &[u64]) {
        for (damaged, alive) in outcome.damaged.iter().zip(alive) {
            let DamagedInput { handle, lost, .. } = damaged;
            self.files.note_damage(*handle, lost, Some(*alive));
        }
        let what = outcome.damaged.iter().map(|damaged| &*damaged.what);
        let what = what.collect::<Vec<_>>().join("; ");
        self.leave_alone(outcome.inputs.clone(), &CompactionError::Damaged(what));
        self.discard(outcome);
    }

    /// Do without the copy that a compaction has made.
    fn discard(&mut self, outcome: Outcome) {
        if let Some((entry, _)) = outcome.output {
            let path = self.dir.join(entry.file_name());
            if let Err(error) = self.fs.remove_file(&path) {
                tracing::warn!("could not remove {}: {error}", path.display());
            }
        }
        self.take_back(outcome.spare);
    }

    /// A compaction failed: the log is as it was, and these files are not tried again, unless it was
    /// for want of space.
    fn give_up(&mut self, inputs: Vec<u32>, error: CompactionError, spare: Spare) {
        match error {
            CompactionError::Io(error) if is_full(&error) => {
                tracing::warn!("no room for compaction in {}: {error}", self.dir.display());
            }
            CompactionError::NameTaken(segment, generation) => {
                let path = self.dir.join(file_name(segment, generation));
                let path = path.display();
                tracing::warn!("{path} is there and is not this log's: it is left alone");
                self.files.taken.add(segment, generation);
                self.maintenance.looked_at = None;
            }
            error => self.leave_alone(inputs, &error),
        }
        self.spares.discard(spare);
    }

    fn leave_alone(&mut self, inputs: Vec<u32>, error: &CompactionError) {
        match error {
            CompactionError::Damaged(what) => tracing::error!(
                "compaction stopped, nothing was changed: {what}; run `bsd-wal verify {}`",
                self.dir.display()
            ),
            CompactionError::Io(error) | CompactionError::NameNotSynced(error) => tracing::error!(
                "compaction in {} stopped, nothing was changed: {error}",
                self.dir.display()
            ),
            CompactionError::NoRoom | CompactionError::NameTaken(..) => {
                tracing::debug!("compaction found too little room");
            }
        }
        self.files
            .mendable
            .retain(|handle| !inputs.contains(handle));
        self.maintenance.failed.extend(inputs);
    }

    /// Let a finished compaction take effect: the switch is durable when this returns.
    fn switch(&mut self, outcome: Outcome, wall_ns: u64) -> Result<bool, StoreError> {
        let removed: Vec<Entry> = outcome
            .inputs
            .iter()
            .map(|handle| self.files.get(*handle).entry)
            .collect();
        let added: Vec<Entry> = outcome.output.iter().map(|(entry, _)| *entry).collect();
        let record = Record::Switch {
            removed: Entries::List(&removed),
            added: Entries::List(&added),
        };
        self.maintenance.stage = Stage::Switching;
        let appended = self.append(&record, Purpose::Switch, wall_ns);
        self.maintenance.stage = Stage::Idle;
        match appended {
            Ok(_) => {}
            Err(AppendError::Failed(error)) => return Err(error),
            Err(AppendError::Full) => {
                // There will be room when something else has made some; the copy is made again.
                self.discard(outcome);
                return Ok(false);
            }
        }
        self.write_frame()?;
        self.sync_now()?;
        for handle in &outcome.inputs {
            self.files.unlist(*handle);
        }
        self.maintenance.compactions += 1;
        self.files.forget_tombstones(&outcome.tombstones);
        let output = outcome.output.map(|(entry, file)| {
            let handle = self.files.add(entry, true, outcome.filtered_at, file);
            self.files.list(handle);
            handle
        });
        self.take_back(outcome.spare);
        let moved = outcome.moved.into_iter();
        self.maintenance.records_migrated += moved.len() as u64;
        self.maintenance.stage = Stage::Moving {
            output,
            inputs: outcome.inputs,
            moved,
        };
        Ok(true)
    }

    /// The room that a compaction did not use, unless there is more by now.
    fn take_back(&mut self, spare: Option<Spare>) {
        let Some(spare) = spare else { return };
        let surplus = match &self.spares.compaction {
            Some(other) if other.size >= spare.size => Some(spare),
            _ => self.spares.compaction.replace(spare),
        };
        if let Some(surplus) = surplus {
            self.spares.discard(surplus);
        }
    }

    /// Tell the index of new places; when it knows them all, remove the old files.
    fn moving(
        &mut self,
        output: Option<u32>,
        inputs: Vec<u32>,
        mut moved: std::vec::IntoIter<Moved>,
        index: &mut dyn Index,
    ) -> Result<bool, StoreError> {
        if let Some(file) = output {
            for Moved {
                subject,
                from,
                offset,
                size,
            } in moved.by_ref().take(MOVES_A_CALL)
            {
                let to = Place { file, offset };
                match &subject {
                    Subject::Delete(segment) => {
                        self.files.keep_tombstone(to, *segment, size as usize);
                    }
                    other if index.moved(other, from, to) => {
                        self.files.free(from, size as usize);
                        self.files.keep(to, size as usize);
                    }
                    _ => {}
                }
            }
        }
        if moved.len() > 0 {
            self.maintenance.stage = Stage::Moving {
                output,
                inputs,
                moved,
            };
            return Ok(true);
        }
        if let Some(handle) = output {
            self.files.settle_overhead(handle);
            self.cut_to_end(handle);
        }
        for handle in inputs {
            let Some(file) = self.files.drop_file(handle) else {
                continue;
            };
            self.maintenance.failed.retain(|failed| *failed != handle);
            let path = self.dir.join(file.entry.file_name());
            drop(file);
            // The list does not name the file any more: should it stay, the next start removes it.
            if let Err(error) = self.fs.remove_file(&path) {
                tracing::warn!("could not remove {}: {error}", path.display());
            }
        }
        // Before anything else can take what has become free.
        self.budget.note_freed();
        self.maintenance.looked_at = None;
        self.look();
        self.keep_room_to_compact(0)?;
        Ok(true)
    }

    /// Give back the space behind the end of a file. The next start does it if it cannot be done now.
    fn cut_to_end(&self, handle: u32) {
        let file = self.files.get(handle);
        if let Err(error) = file.file.set_size(file.entry.end.into()) {
            let path = self.dir.join(file.entry.file_name());
            tracing::warn!("could not cut {}: {error}", path.display());
        }
    }
}

impl Files {
    /// A file as compaction has just written it: all that is not alive is overhead.
    fn settle_overhead(&mut self, handle: u32) {
        let file = self.get(handle);
        let overhead = u64::from(file.entry.end).saturating_sub(file.live());
        self.set_overhead(handle, overhead.min(u64::from(file.entry.end) / 8 + 256));
    }
}

fn fits(files: &Files, handles: &[u32], room: u32) -> bool {
    let live: u64 = handles.iter().map(|handle| files.get(*handle).live()).sum();
    rewritten_size(live) <= u64::from(room)
}

fn batch_subjects(batch: &Batch) -> Vec<(Place, Subject)> {
    let place = |offset| Place {
        file: batch.handle,
        offset,
    };
    batch
        .records
        .iter()
        .map(|(offset, subject)| (place(*offset), subject.clone()))
        .collect()
}

fn copy_on_thread(compaction: Compaction, inputs: Vec<u32>, waker: Waker) -> Beside {
    let (to_loop, messages) = channel();
    let (answers, from_loop) = channel();
    let thread = Joined::spawn("bsd-compact", move || {
        let result = run(compaction, &to_loop, &from_loop, &waker);
        if let Some(result) = result {
            // The log may be closed by now; then the next start clears the unfinished file.
            let _ = to_loop.send(Message::Done(Box::new(result)));
            waker();
        }
    });
    Beside {
        messages,
        answers,
        inputs,
        _thread: thread,
    }
}

/// The copying thread. `None`: the loop is gone.
fn run(
    mut compaction: Compaction,
    to_loop: &Sender<Message>,
    from_loop: &Receiver<Vec<bool>>,
    waker: &Waker,
) -> Option<Result<Outcome, (CompactionError, Spare)>> {
    loop {
        let batch = match compaction.next_batch() {
            Ok(Some(batch)) => batch,
            Ok(None) => return Some(compaction.finish()),
            Err(error) => return Some(Err((error, compaction.abandon()))),
        };
        to_loop.send(Message::Query(batch_subjects(&batch))).ok()?;
        waker();
        let live = from_loop.recv().ok()?;
        if let Err(error) = compaction.copy(batch, &live) {
            return Some(Err((error, compaction.abandon())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::storage::SimFs;
    use crate::storage::log::sync::tests::log;

    #[test]
    fn a_thread_has_ended_when_it_is_let_go() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (go, may_go) = channel::<()>();
        let ended = has_ended.clone();
        let thread = Joined::spawn("test", move || {
            // Nobody sends: it goes on when the other end is dropped.
            let _ = may_go.recv();
            (0..10_000).for_each(|_| std::thread::yield_now());
            ended.store(true, Ordering::SeqCst);
        });
        drop(go);
        drop(thread);
        assert!(has_ended.load(Ordering::SeqCst));
    }

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
