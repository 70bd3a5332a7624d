//! Applying a finished compaction: the switch, and the new places of the records.
//!
//! Once the switch is durable the list names the new file; the index learns the new places in
//! slices, and then the old files are removed. If the copy failed, or a live record is damaged, the
//! log is unchanged. See `compaction::rewrite` for what a crash leaves.

use crate::storage::disk::errno::is_full;
use crate::storage::error::StoreError;
use crate::storage::format::{Entries, Entry, Record, file_name};
use crate::storage::log::compaction::{
    CompactionError, Copied, DamagedInput, Index, Moved, Outcome, Stage, Subject,
};
use crate::storage::log::files::Files;
use crate::storage::log::spares::Spare;
use crate::storage::log::{AppendError, Log, Purpose};
use crate::types::Place;

/// Records that get their new places in one call at most.
const MOVES_A_CALL: usize = 1024;

impl Log {
    /// All of `inputs` was copied, or copying failed.
    pub(super) fn copied(
        &mut self,
        inputs: Vec<u32>,
        result: Copied,
        index: &dyn Index,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        match result {
            Ok(outcome) => match self.damaged_and_alive(&outcome, index) {
                alive if alive.iter().all(|bytes| *bytes == 0) => {
                    self.apply_and_report(outcome, wall_ns)
                }
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

    /// For each damaged input, the live bytes that were not copied: 0 if everything damaged is
    /// dead, and `u64::MAX`, for good, if a lost delete keeps a job dead. Looks at every copied
    /// record in this call: damaged files are rare.
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

    /// Apply a finished compaction, and report the damage in its inputs: all of it was dead, and is
    /// gone with them.
    fn apply_and_report(&mut self, mut outcome: Outcome, wall_ns: u64) -> Result<bool, StoreError> {
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

    /// A live record is damaged: the log stays as it was.
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

    /// Discard the copy that a compaction has made.
    fn discard(&mut self, outcome: Outcome) {
        if let Some((entry, _)) = outcome.output {
            let path = self.dir.join(entry.file_name());
            if let Err(error) = self.fs.remove_file(&path) {
                tracing::warn!("could not remove {}: {error}", path.display());
            }
        }
        self.take_back(outcome.spare);
    }

    /// A compaction failed: the log is unchanged, and these files are not tried again, unless space
    /// was missing.
    pub(super) fn give_up(&mut self, inputs: Vec<u32>, error: CompactionError, spare: Spare) {
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

    /// Apply a finished compaction: the switch is durable when this returns.
    pub(super) fn switch(&mut self, outcome: Outcome, wall_ns: u64) -> Result<bool, StoreError> {
        assert!(!self.is_holding(), "a switch follows what is written");
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
            Err(AppendError::NoRoom(_)) => {
                // There will be room when something else is freed; then the copy is made again.
                self.discard(outcome);
                return Ok(false);
            }
        }
        self.write_own_frame()?;
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

    /// Take back room that a compaction did not use, unless there is more by now.
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

    /// Tell the index the new places; when it knows them all, remove the old files.
    pub(super) fn moving(
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
            self.files.count_overhead(handle);
            self.cut_to_end(handle);
        }
        for handle in inputs {
            let Some(file) = self.files.drop_file(handle) else {
                continue;
            };
            self.maintenance.failed.retain(|failed| *failed != handle);
            let path = self.dir.join(file.entry.file_name());
            drop(file);
            // The list no longer names the file: if it stays, the next start removes it.
            if let Err(error) = self.fs.remove_file(&path) {
                tracing::warn!("could not remove {}: {error}", path.display());
            }
        }
        // Before anything else can take the freed space.
        self.budget.note_way();
        self.maintenance.looked_at = None;
        self.look();
        self.keep_room_to_compact(0)?;
        self.set_aside()?;
        Ok(true)
    }

    /// Give back the space after the end of a file. If that fails, the next start does it.
    fn cut_to_end(&self, handle: u32) {
        let file = self.files.get(handle);
        if let Err(error) = file.file.set_size(file.entry.end.into()) {
            let path = self.dir.join(file.entry.file_name());
            tracing::warn!("could not cut {}: {error}", path.display());
        }
    }
}

impl Files {
    /// Set the overhead of a file that compaction has just written: everything that is not alive.
    fn count_overhead(&mut self, handle: u32) {
        let file = self.get(handle);
        let overhead = u64::from(file.entry.end).saturating_sub(file.live());
        self.set_overhead(handle, overhead.min(u64::from(file.entry.end) / 8 + 256));
    }
}
