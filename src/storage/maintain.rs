//! Keeping the log small and ready: when to compact what, and space for the next segment.
//!
//! The copying and the writing of zeros ahead run on threads beside the loop; here is what the loop
//! does of it, in slices. Without threads the same steps run one by one inside [`Log::maintain`],
//! in an order that depends on nothing but the calls.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::compact::{Batch, Compaction, CompactionError, Index, Moved, Outcome, Subject};
use super::error::{StoreError, is_full};
use super::files::Files;
use super::format::{Entries, Entry, Record, file_name};
use super::log::{AppendError, Log, Purpose};
use super::plant::{Bug, planted};
use super::space::{SEGMENT_SIZE_MIN, Spare};
use super::sync::{SyncPolicy, Waker};
use crate::types::{Place, Position};

/// Compaction begins when more than so many hundredths of the sealed files are garbage. What it
/// copies is then at most 65/35 of what it frees: no byte is written three times on average, and
/// the sealed files stay below twice what is alive in them.
const GARBAGE_PERCENT: u64 = 35;
/// On a full disk a file is compacted when more than so many of its hundredths are garbage, however
/// little there is in all.
const FULL_GARBAGE_PERCENT: u64 = 25;
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
/// How long the loop waits for the copying, when it falls behind, in one call.
const CONGESTION_WAIT: Duration = Duration::from_millis(2);

/// What maintenance is at.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    stage: Stage,
    /// Look again when the log has grown or shrunk by so much since the last look.
    looked_at: Option<(Position, u64)>,
    /// Bytes of records that died.
    pub(crate) freed: u64,
    /// Files whose compaction failed; they are left alone until the next start.
    failed: Vec<u32>,
    /// Records copied.
    pub(crate) records_migrated: u64,
    /// Compactions that took effect.
    pub(crate) compactions: u64,
    /// Bytes of all files at the last look, the open one apart.
    pub(crate) sealed_bytes: u64,
    /// The last record for which there was a choice found no room.
    is_short: bool,
}

impl Maintenance {
    /// Room was looked for, and found or not.
    pub(crate) fn note_room(&mut self, found: bool) {
        if !found && !self.is_short {
            self.looked_at = None;
        }
        self.is_short = !found;
    }
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
        self.write_zeros_ahead();
        if self.is_compacting() {
            return self.go_on(index, wall_ns);
        }
        if self.is_time_to_look() {
            self.maintenance.sealed_bytes = self.files.sealed_bytes(self.active.handle).0;
            self.prepare_space()?;
            self.choose(wall_ns)?;
        }
        Ok(matches!(
            self.maintenance.stage,
            Stage::Copying(_) | Stage::Moving { .. }
        ))
    }

    /// A slice of the compaction that is under way.
    fn go_on(&mut self, index: &mut dyn Index, wall_ns: u64) -> Result<bool, StoreError> {
        match std::mem::take(&mut self.maintenance.stage) {
            Stage::Idle | Stage::Switching => Ok(false),
            Stage::Copying(compaction) => self.copy(compaction, index, wall_ns),
            Stage::CopyingBeside(beside) => self.copy_beside(beside, index, wall_ns),
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
        let (written, freed) = (self.written, self.maintenance.freed);
        let due = match self.maintenance.looked_at {
            None => true,
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
        self.options.segment_size.min(self.active.capacity) / LOOKS_A_SEGMENT
    }

    /// Have the next segment, and room for compaction, before they are needed.
    fn prepare_space(&mut self) -> Result<(), StoreError> {
        if self.files.len() > 1 && self.keep_room_to_compact()? {
            self.widen_room_to_compact()?;
        }
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
        Ok(())
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

    /// Have room for a compaction, unless one is under way in it. Says whether there is. It comes
    /// before everything else that space is set aside for: without it no space ever comes back.
    pub(crate) fn keep_room_to_compact(&mut self) -> Result<bool, StoreError> {
        if self.spares.compaction.is_none() && !self.is_compacting() {
            let size = compaction_size(self.options.segment_size);
            self.spares.compaction = match self.spares.len() {
                0 | 1 => self.reserve(size, SEGMENT_SIZE_MIN)?,
                _ => self.spares.take_last(),
            };
        }
        Ok(self.spares.compaction.is_some() || self.is_compacting())
    }

    /// On a full disk the room for compaction may have become small. Files that do not fit into it
    /// are stuck: it grows before anything else is set aside.
    fn widen_room_to_compact(&mut self) -> Result<(), StoreError> {
        let wanted = compaction_size(self.options.segment_size);
        let Some(spare) = &mut self.spares.compaction else {
            return Ok(());
        };
        for size in [wanted, (spare.size / 2).saturating_add(wanted / 2)] {
            if spare.size >= size {
                return Ok(());
            }
            match spare.file.allocate(size.into()) {
                Ok(()) => spare.size = size,
                Err(error) if is_full(&error) => {}
                Err(error) => {
                    let error = StoreError::new("set space aside in", &self.dir, &error);
                    return Err(self.fail(error));
                }
            }
        }
        Ok(())
    }

    /// Set aside again what commands have used of the space that was, where the disk has it.
    fn set_aside(&mut self) -> Result<(), StoreError> {
        while self.aside() < self.floor(Purpose::Put) {
            match self.reserve(self.options.segment_size, SEGMENT_SIZE_MIN)? {
                Some(spare) => self.spares.add(spare),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Begin the compaction that there is most need of, if any.
    fn choose(&mut self, wall_ns: u64) -> Result<(), StoreError> {
        let open = self.active.handle;
        let dead: Vec<u32> = self
            .files
            .in_order()
            .filter(|handle| *handle != open && self.files.get(*handle).live() == 0)
            .collect();
        if !dead.is_empty() {
            return self.drop_dead(dead, wall_ns);
        }
        let Some(room) = self
            .spares
            .compaction
            .as_ref()
            .map(|spare| u64::from(spare.size))
        else {
            return Ok(());
        };
        let inputs = match self.most_garbage(room) {
            Some(handle) => vec![handle],
            None => self.small_neighbours(room),
        };
        if planted(Bug::GarbageKept) {
            return Ok(());
        }
        if inputs.is_empty() {
            return self.seal_early(wall_ns);
        }
        let Some(spare) = self.spares.compaction.take() else {
            return Ok(());
        };
        let begun = Compaction::begin(
            self.fs.clone(),
            &self.dir,
            &self.files,
            &inputs,
            spare,
            self.next_position(),
            wall_ns,
        );
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
        };
        self.switch(outcome, wall_ns).map(drop)
    }

    /// The disk is full, or there would be more set aside.
    fn is_short(&self) -> bool {
        self.maintenance.is_short || self.aside() < self.floor(Purpose::Put)
    }

    /// On a full disk the garbage may all lie in the open segment, where it cannot be got at: go on
    /// in the next one. Where there is none, the room for compaction becomes the next segment, and
    /// what the open one had left becomes the room for its compaction.
    fn seal_early(&mut self, wall_ns: u64) -> Result<(), StoreError> {
        let open = self.files.get(self.active.handle);
        let (garbage, floor) = (open.garbage(), self.floor(Purpose::Put));
        // Shortly before commands are refused, what is alive in it does not count.
        let is_worth_it = garbage * 100 >= u64::from(open.entry.end) * FULL_GARBAGE_PERCENT
            || self.aside() * 8 < floor * 5;
        if !self.is_short() || garbage < floor / 8 || !is_worth_it {
            return Ok(());
        }
        if self.spares.len() == 0 {
            if self.left() < u64::from(SEGMENT_SIZE_MIN) {
                return Ok(());
            }
            if let Some(spare) = self.spares.compaction.take() {
                self.spares.add(spare);
            }
        }
        if self.rotate(0, wall_ns)? {
            self.keep_room_to_compact()?;
            self.maintenance.looked_at = None;
        }
        Ok(())
    }

    fn most_garbage(&self, room: u64) -> Option<u32> {
        let open = self.active.handle;
        let (size, garbage) = self.files.sealed_bytes(open);
        let slack = u64::from(self.options.segment_size) / 8;
        let share_min = match garbage * 100 > size * GARBAGE_PERCENT + slack * 100 {
            true => 1,
            false if self.is_short() => FULL_GARBAGE_PERCENT * 10,
            false => return None,
        };
        let share = |handle: &u32| {
            let file = self.files.get(*handle);
            file.garbage() * 1000 / u64::from(file.entry.end).max(1)
        };
        let settling = self.settling();
        let candidate = |handle: &u32| {
            *handle != open
                && Some(*handle) != settling
                && !self.maintenance.failed.contains(handle)
                && share(handle) >= share_min
                && fits(&self.files, &[*handle], room)
        };
        self.files.in_order().filter(candidate).max_by_key(share)
    }

    /// The file that has just been sealed: most of what is alive in it may be about to be deleted,
    /// and a file in which nothing is alive need not be read. On a full disk there is no time.
    fn settling(&self) -> Option<u32> {
        let open = self.active.handle;
        let is_new = self.files.get(open).entry.end < self.step() && !self.is_short();
        let mut sealed = self.files.in_order().rev().filter(|file| *file != open);
        sealed.next().filter(|_| is_new)
    }

    fn small_neighbours(&self, room: u64) -> Vec<u32> {
        let mut run: Vec<u32> = Vec::new();
        for handle in self.files.in_order() {
            let file = self.files.get(handle);
            let small = file.entry.end <= self.options.segment_size / SMALL_DIVISOR;
            let usable =
                small && handle != self.active.handle && !self.maintenance.failed.contains(&handle);
            run.push(handle);
            if !usable || !fits(&self.files, &run, room) {
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
                match Compaction::begin(fs, &self.dir, &self.files, inputs, spare, at, wall_ns) {
                    Err((error, spare)) => self.give_up(inputs.to_vec(), error, spare),
                    Ok(compaction) => {
                        self.maintenance.stage = Stage::Copying(Box::new(compaction));
                    }
                }
            }
        }
        while self.is_compacting() {
            self.go_on(index, wall_ns)?;
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
            Ok(None) => return self.copied(inputs, compaction.finish(), wall_ns),
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
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        let copied = match beside.messages.try_recv() {
            Ok(message) => self.take_message(&beside, message, index),
            Err(TryRecvError::Empty) if self.is_congested() => {
                match beside.messages.recv_timeout(CONGESTION_WAIT) {
                    Ok(message) => self.take_message(&beside, message, index),
                    Err(_) => Copied::Nothing,
                }
            }
            Err(TryRecvError::Empty) => Copied::Nothing,
            Err(TryRecvError::Disconnected) => {
                tracing::error!("the compaction thread ended without a result");
                self.maintenance.failed.extend(beside.inputs);
                return Ok(false);
            }
        };
        match copied {
            Copied::Done(result) => self.copied(beside.inputs, *result, wall_ns),
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
        let (size, garbage) = self.files.sealed_bytes(self.active.handle);
        let slack = u64::from(self.options.segment_size) / 2;
        garbage * 100 > size * CONGESTED_PERCENT + slack * 100
    }

    fn copied(
        &mut self,
        inputs: Vec<u32>,
        result: Result<Outcome, (CompactionError, Spare)>,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        match result {
            Ok(outcome) => self.switch(outcome, wall_ns),
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
        if planted(Bug::InputsRemovedEarly) {
            let path = |entry: &Entry| self.dir.join(entry.file_name());
            let _ = removed
                .iter()
                .try_for_each(|entry| self.fs.remove_file(&path(entry)));
        }
        self.maintenance.stage = Stage::Switching;
        let appended = self.append(&record, Purpose::Delete, wall_ns);
        self.maintenance.stage = Stage::Idle;
        match appended {
            Ok(_) => {}
            Err(AppendError::Failed(error)) => return Err(error),
            Err(AppendError::Full) => {
                // There will be room when something else has made some; the copy is made again.
                let leftover = outcome
                    .output
                    .map(|(entry, _)| self.dir.join(entry.file_name()));
                if let Some(path) = leftover
                    && let Err(error) = self.fs.remove_file(&path)
                {
                    tracing::warn!("could not remove {}: {error}", path.display());
                }
                if let Some(spare) = outcome.spare {
                    self.spares.compaction = Some(spare);
                }
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
        if let Some(spare) = outcome.spare {
            self.spares.compaction = Some(spare);
        }
        let moved = outcome.moved.into_iter();
        self.maintenance.records_migrated += moved.len() as u64;
        self.maintenance.stage = Stage::Moving {
            output,
            inputs: outcome.inputs,
            moved,
        };
        Ok(true)
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
        self.maintenance.looked_at = None;
        Ok(true)
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

/// Bytes that compaction works in: a file that is worth compacting has no more that is alive.
fn compaction_size(segment_size: u32) -> u32 {
    segment_size - segment_size / 4
}

fn fits(files: &Files, handles: &[u32], room: u64) -> bool {
    let live: u64 = handles.iter().map(|handle| files.get(*handle).live()).sum();
    live + live / 512 + 4096 <= room
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
    use crate::storage::sync::tests::log;

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
        log.maintenance.freed = 10 * step;
        assert!(log.is_time_to_look() && !log.is_time_to_look());
        log.maintenance.freed += step - 1;
        assert!(!log.is_time_to_look());
        log.maintenance.freed += 1;
        assert!(log.is_time_to_look() && !log.is_time_to_look());
    }
}
