//! The files of an open log, and how much of each is still alive.
//!
//! A record is alive while replay needs it: a put until its job is deleted, an update and attributes
//! until the next ones, a pause until it ends, a setting until the next one, and a delete as long as
//! the file that held the job's put could bring the job back. Only bytes are counted here. Which
//! records these are, compaction asks of the index, record by record; so a wrong count cannot lose a
//! job.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::storage::disk::{File, Fs, OpenMode, ReadFile};
use crate::storage::error::OpenError;
use crate::storage::format::names::Taken;
use crate::storage::format::{
    Entry, Identity, LogId, Seed, attributes_size, segment_header, update,
};
use crate::storage::log::body::{Loan, Loans};
use crate::types::{Place, Position, SegmentId};

/// One file of the log.
#[derive(Debug)]
pub(crate) struct LogFile<F: ?Sized = dyn File> {
    pub(crate) entry: Entry,
    pub(crate) seed: Seed,
    /// Written by compaction.
    pub(crate) compacted: bool,
    /// Deletes before this position are not needed to keep this file's jobs dead.
    pub(crate) filtered_at: Position,
    pub(crate) file: Arc<F>,
    /// Held by all who read a body in it piece by piece.
    pub(crate) loan: Arc<Loan>,
    /// Bytes of live records, without deletes.
    live: u64,
    /// Bytes of deletes that are still needed, by the segment whose puts they keep dead.
    tombstones: HashMap<SegmentId, u64>,
    /// Bytes of those deletes whose jobs were put into another file: they do not go away with this
    /// file.
    foreign: u64,
    /// Bytes that rewriting the file does not save: headers and trailers.
    overhead: u64,
    /// True if it is part of the sums.
    is_counted: bool,
    /// Byte ranges with damaged records: the file can be rewritten when none of them is alive.
    damaged: Vec<Range<u32>>,
    /// Live bytes among the damaged records. `None` if nothing has counted them yet.
    damaged_live: Option<u64>,
}

impl<F: ?Sized> LogFile<F> {
    /// Bytes that compaction would save.
    pub(crate) fn garbage(&self) -> u64 {
        let needed = self.live() + self.overhead;
        u64::from(self.entry.end).saturating_sub(needed)
    }

    /// Bytes that compaction would have to copy.
    pub(crate) fn live(&self) -> u64 {
        self.live + self.foreign
    }

    /// Bytes of records that are known to be damaged.
    pub(crate) fn damaged_bytes(&self) -> u64 {
        let ranges = self.damaged.iter();
        ranges.map(|lost| u64::from(lost.end - lost.start)).sum()
    }

    /// Where damaged records are.
    pub(crate) fn damage(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.damaged.iter().cloned()
    }

    pub(crate) fn covers(&self, segment: SegmentId) -> bool {
        (self.entry.first..=self.entry.last).contains(&segment)
    }
}

/// Sums over the files of a log, without the open one. They are kept up to date: reading them costs
/// nothing, however many files there are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// How many files.
    pub(crate) files: u64,
    /// Files without live records.
    pub(crate) dead: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes that compaction saves at once.
    pub(crate) garbage: u64,
    /// Bytes of deletes that are needed until the files with the puts of their jobs are rewritten.
    pub(crate) tombstones: u64,
}

impl Sealed {
    fn add<F: ?Sized>(&mut self, file: &LogFile<F>) {
        self.files += 1;
        self.dead += u64::from(file.live() == 0);
        self.size += u64::from(file.entry.end);
        self.garbage += file.garbage();
        self.tombstones += file.foreign;
    }

    fn subtract<F: ?Sized>(&mut self, file: &LogFile<F>) {
        self.files -= 1;
        self.dead -= u64::from(file.live() == 0);
        self.size -= u64::from(file.entry.end);
        self.garbage -= file.garbage();
        self.tombstones -= file.foreign;
    }
}

/// All files of a log, by handle and in order: read-only while a log is examined or replayed,
/// writable once it is open.
#[derive(Debug)]
pub struct Files<F: ?Sized = dyn File> {
    log: LogId,
    /// The epoch that new files belong to.
    pub(crate) epoch: u32,
    /// Bytes of files that are gone and still read.
    pub(crate) loans: Loans,
    /// The index is the handle minus 1. A handle is used again only after its file is gone.
    slots: Vec<Option<LogFile<F>>>,
    free: Vec<u32>,
    order: BTreeMap<SegmentId, u32>,
    /// Names that no new file may get.
    pub(crate) taken: Taken,
    /// The file that is being written; it is not part of the sums.
    open: Option<u32>,
    sealed: Sealed,
    /// Bytes of deletes that are needed, by the segment of the puts, in any other file.
    pinned: BTreeMap<SegmentId, u64>,
    /// The delete that was counted last: its place, and the segment of its put. Deletes come in
    /// runs, and the answer for one holds for the next.
    latest: Option<Run>,
    /// Live jobs, for the space they may need.
    pub(in crate::storage) live_jobs: u64,
    /// Live jobs that have an update in the log.
    pub(in crate::storage) live_updates: u64,
    /// Live jobs that have attributes in the log.
    pub(in crate::storage) live_attributes: u64,
    /// Bytes of records that have died since this was set to 0.
    pub(in crate::storage) freed: u64,
    /// Files that have to be rewritten: those in which a damaged record has died, and those with dead
    /// records of pauses when there are too many.
    pub(in crate::storage) mendable: Vec<u32>,
    /// True if one of them has not been examined.
    pub(in crate::storage) has_new_mendable: bool,
}

/// Deletes that are counted but not yet in the maps.
#[derive(Debug, Clone, Copy)]
struct Run {
    handle: u32,
    put_segment: SegmentId,
    is_needed: bool,
    is_foreign: bool,
    bytes: u64,
}

impl Files<dyn ReadFile> {
    /// Read a file elsewhere from now on.
    pub(crate) fn read_in(&mut self, handle: u32, file: Arc<dyn ReadFile>) {
        if let Some(Some(known)) = self.slots.get_mut(handle as usize - 1) {
            known.file = file;
        }
    }

    /// The same files in `dir`, opened for reading and writing.
    pub(crate) fn open(self, fs: &dyn Fs, dir: &Path) -> Result<Files, OpenError> {
        let open = |slot: Option<LogFile<dyn ReadFile>>| {
            slot.map(|file| -> Result<LogFile, OpenError> {
                let path = dir.join(file.entry.file_name());
                let opened = fs.open(&path, OpenMode::ReadWrite);
                Ok(LogFile {
                    file: opened.map_err(|error| OpenError::io("open", &path, &error))?,
                    entry: file.entry,
                    seed: file.seed,
                    compacted: file.compacted,
                    filtered_at: file.filtered_at,
                    loan: file.loan,
                    live: file.live,
                    tombstones: file.tombstones,
                    foreign: file.foreign,
                    overhead: file.overhead,
                    is_counted: file.is_counted,
                    damaged: file.damaged,
                    damaged_live: file.damaged_live,
                })
            })
            .transpose()
        };
        Ok(Files {
            log: self.log,
            epoch: self.epoch,
            loans: self.loans,
            slots: self.slots.into_iter().map(open).collect::<Result<_, _>>()?,
            free: self.free,
            order: self.order,
            taken: self.taken,
            open: self.open,
            sealed: self.sealed,
            pinned: self.pinned,
            latest: self.latest,
            live_jobs: self.live_jobs,
            live_updates: self.live_updates,
            live_attributes: self.live_attributes,
            freed: self.freed,
            mendable: self.mendable,
            has_new_mendable: self.has_new_mendable,
        })
    }
}

impl<F: ?Sized> Files<F> {
    pub(crate) fn new(log: LogId, epoch: u32) -> Files<F> {
        Files {
            log,
            epoch,
            loans: Loans::default(),
            slots: Vec::new(),
            free: Vec::new(),
            order: BTreeMap::new(),
            taken: Taken::default(),
            open: None,
            sealed: Sealed::default(),
            pinned: BTreeMap::new(),
            latest: None,
            live_jobs: 0,
            live_updates: 0,
            live_attributes: 0,
            freed: 0,
            mendable: Vec::new(),
            has_new_mendable: false,
        }
    }

    /// The identity of the log whose files these are.
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Add a file; it is not part of the order yet (see [`Files::list`]).
    pub(crate) fn add(
        &mut self,
        entry: Entry,
        compacted: bool,
        filtered_at: Position,
        file: Arc<F>,
    ) -> u32 {
        let identity = Identity {
            log: self.log,
            first: entry.first,
            last: entry.last,
            generation: entry.generation,
        };
        let file = LogFile {
            entry,
            seed: identity.seed(),
            compacted,
            filtered_at,
            file,
            loan: Arc::new(Loan::new(&self.loans)),
            live: 0,
            tombstones: HashMap::new(),
            foreign: 0,
            overhead: segment_header::SIZE as u64,
            is_counted: false,
            damaged: Vec::new(),
            damaged_live: None,
        };
        let handle = match self.free.pop() {
            Some(handle) => handle,
            None => {
                self.slots.push(None);
                self.slots.len() as u32
            }
        };
        self.slots[handle as usize - 1] = Some(file);
        handle
    }

    /// Make a file part of the log.
    pub(crate) fn list(&mut self, handle: u32) {
        self.end_run();
        let first = self.get(handle).entry.first;
        let before = self.order.insert(first, handle);
        assert!(before.is_none(), "two files hold segment {first}");
        self.count(handle, self.open != Some(handle));
    }

    /// Take a file out of the log; it stays open until [`Files::drop_file`].
    pub(crate) fn unlist(&mut self, handle: u32) {
        self.end_run();
        let first = self.get(handle).entry.first;
        let listed = self.order.remove(&first);
        assert_eq!(
            listed,
            Some(handle),
            "segment {first} is not listed under this handle"
        );
        self.count(handle, false);
    }

    /// Make the file with this handle the one that is written from now on.
    pub(crate) fn set_open(&mut self, handle: u32) {
        let before = self.open.replace(handle);
        for changed in before.into_iter().chain([handle]) {
            let Some(Some(file)) = self.slots.get(changed as usize - 1) else {
                continue;
            };
            let is_listed = self.order.get(&file.entry.first) == Some(&changed);
            self.count(changed, is_listed && changed != handle);
        }
    }

    /// Make a file part of the sums, or remove it from them.
    fn count(&mut self, handle: u32, is_counted: bool) {
        let Some(Some(file)) = self.slots.get_mut(handle as usize - 1) else {
            return;
        };
        if file.is_counted {
            self.sealed.subtract(file);
        }
        file.is_counted = is_counted;
        if is_counted {
            self.sealed.add(file);
        }
    }

    /// Change the counts of a file, and the sums with them.
    fn change(&mut self, handle: u32, change: impl FnOnce(&mut LogFile<F>)) {
        let Some(Some(file)) = self.slots.get_mut(handle as usize - 1) else {
            unreachable!("no open log file has handle {handle}");
        };
        if !file.is_counted {
            return change(file);
        }
        self.sealed.subtract(file);
        change(file);
        self.sealed.add(file);
    }

    /// Close a file.
    pub(crate) fn drop_file(&mut self, handle: u32) -> Option<LogFile<F>> {
        self.end_run();
        self.count(handle, false);
        self.mendable.retain(|other| *other != handle);
        let file = self.slots[handle as usize - 1].take();
        self.free.push(handle);
        if let Some(file) = &file {
            file.loan.let_go(file.entry.end.into());
            for (segment, bytes) in &file.tombstones {
                if !file.covers(*segment) {
                    unpin(&mut self.pinned, *segment, *bytes);
                }
            }
        }
        file
    }

    /// The file of a handle, which must be open.
    pub(crate) fn get(&self, handle: u32) -> &LogFile<F> {
        match self.slots.get(handle as usize - 1) {
            Some(Some(file)) => file,
            _ => unreachable!("no open log file has handle {handle}"),
        }
    }

    /// Set the end of the file's last frame.
    pub(crate) fn set_end(&mut self, handle: u32, end: u32) {
        self.change(handle, |file| file.entry.end = end);
    }

    /// The handles in the order of their segments, the open one last.
    pub(crate) fn in_order(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.order.values().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The file that holds `segment` now.
    pub(crate) fn covering(&self, segment: SegmentId) -> Option<u32> {
        let (_, handle) = self.order.range(..=segment).next_back()?;
        self.get(*handle).covers(segment).then_some(*handle)
    }

    /// Whether a listed file begins with `segment` or holds it. The two differ only in a forged
    /// list, where a file may end before it begins.
    pub(crate) fn is_taken(&self, segment: SegmentId) -> bool {
        self.order.contains_key(&segment) || self.covering(segment).is_some()
    }

    /// The segment in which a record lies.
    #[must_use]
    pub fn segment_of(&self, place: Place) -> SegmentId {
        self.get(place.file).entry.first
    }

    /// Count a put, new or replayed: its record at `place` is alive.
    pub(crate) fn keep_put(&mut self, place: Place, size: usize) {
        self.live_jobs += 1;
        self.keep(place, size);
    }

    /// Count the end of a job: its put record at `place` is dead.
    pub(crate) fn free_put(&mut self, place: Place, size: usize) {
        self.live_jobs -= 1;
        self.free(place, size);
    }

    /// Count an update at `place`. The job had none, or the earlier one is freed separately.
    pub(crate) fn keep_update(&mut self, place: Place) {
        self.live_updates += 1;
        self.keep(place, update::SIZE);
    }

    /// The update at `place` was replaced, or its job is gone.
    pub(crate) fn free_update(&mut self, place: Place) {
        self.live_updates -= 1;
        self.free(place, update::SIZE);
    }

    /// Count attributes at `place`, whose list has this size. The job had none, or the earlier ones
    /// are freed separately.
    pub(crate) fn keep_attributes(&mut self, place: Place, list_size: usize) {
        self.live_attributes += 1;
        self.keep(place, attributes_size(list_size));
    }

    /// The attributes at `place` were replaced, or their job is gone.
    pub(crate) fn free_attributes(&mut self, place: Place, list_size: usize) {
        self.live_attributes -= 1;
        self.free(place, attributes_size(list_size));
    }

    /// A record other than those of jobs is alive.
    pub fn keep(&mut self, place: Place, size: usize) {
        self.change(place.file, |file| file.live += size as u64);
    }

    /// A record other than those of jobs is dead.
    pub fn free(&mut self, place: Place, size: usize) {
        self.freed += size as u64;
        self.change(place.file, |file| {
            assert!(
                file.live >= size as u64,
                "more bytes freed than were alive in {:?}",
                file.entry
            );
            file.live -= size as u64;
        });
        self.note_death(place, size);
    }

    /// Note that a record has died: it may have been the last live one among the file's damaged
    /// records.
    fn note_death(&mut self, place: Place, size: usize) {
        let Some(Some(file)) = self.slots.get_mut(place.file as usize - 1) else {
            return;
        };
        let is_damaged = |lost: &Range<u32>| lost.contains(&place.offset);
        if !file.damaged.iter().any(is_damaged) {
            return;
        }
        if let Some(live) = &mut file.damaged_live {
            *live = live.saturating_sub(size as u64);
        }
        let is_mendable = file.damaged_live.unwrap_or(0) == 0;
        if is_mendable && !self.mendable.contains(&place.file) {
            self.mendable.push(place.file);
            self.has_new_mendable = true;
        }
    }

    /// Have the file that holds `segment` rewritten, whatever that saves.
    pub(crate) fn rewrite_soon(&mut self, segment: SegmentId) {
        if let Some(handle) = self.covering(segment)
            && !self.mendable.contains(&handle)
        {
            self.mendable.push(handle);
            self.has_new_mendable = true;
        }
    }

    /// Note damaged records in these ranges of a file, and how many of their bytes are alive, if
    /// that was counted.
    pub(crate) fn note_damage(&mut self, handle: u32, lost: &[Range<u32>], live: Option<u64>) {
        self.change(handle, |file| {
            for range in lost.iter().filter(|range| !range.is_empty()) {
                if !file.damaged.contains(range) {
                    file.damaged.push(range.clone());
                }
            }
            file.damaged_live = live;
        });
    }

    /// Live bytes of a file: of its records, and of its deletes by the segment of the put.
    pub(crate) fn alive_in(&mut self, handle: u32) -> (u64, HashMap<SegmentId, u64>) {
        self.end_run();
        let file = self.get(handle);
        (file.live, file.tombstones.clone())
    }

    /// Count a delete at `place`; `put_segment` held the put of its job. It is not counted if no
    /// file can bring the job back.
    pub(crate) fn keep_tombstone(&mut self, place: Place, put_segment: SegmentId, size: usize) {
        let is_same = |run: &Run| run.handle == place.file && run.put_segment == put_segment;
        let run = match self.latest.filter(is_same) {
            // Deletes come in the order in which they were logged: if this one was needed, later
            // ones are too.
            Some(run) if run.is_needed && !self.get(place.file).compacted => run,
            _ => {
                self.end_run();
                Run {
                    handle: place.file,
                    put_segment,
                    is_needed: self.tombstone_is_needed(place, put_segment),
                    is_foreign: !self.get(place.file).covers(put_segment),
                    bytes: 0,
                }
            }
        };
        let bytes = if run.is_needed { size as u64 } else { 0 };
        if run.is_foreign && bytes > 0 {
            self.change(place.file, |file| file.foreign += bytes);
        }
        self.latest = Some(Run {
            bytes: run.bytes + bytes,
            ..run
        });
    }

    /// Add the current run of deletes to the maps.
    fn end_run(&mut self) {
        let Some(run) = self.latest.take().filter(|run| run.bytes > 0) else {
            return;
        };
        let Some(Some(file)) = self.slots.get_mut(run.handle as usize - 1) else {
            return;
        };
        *file.tombstones.entry(run.put_segment).or_default() += run.bytes;
        if run.is_foreign {
            *self.pinned.entry(run.put_segment).or_default() += run.bytes;
        }
    }

    /// Whether a file that holds `put_segment` was written before the delete at `place`.
    pub(crate) fn tombstone_is_needed(&self, place: Place, put_segment: SegmentId) -> bool {
        self.may_hold_what_died(put_segment, put_segment, place)
    }

    /// True if a file may still contain a record that lay in one of these segments and that the
    /// record at `place` made dead.
    pub(crate) fn may_hold_what_died(
        &self,
        first: SegmentId,
        last: SegmentId,
        place: Place,
    ) -> bool {
        let holder = self.get(place.file);
        // In a compacted file the offset does not tell when the delete was logged: assume the
        // latest possible time.
        let logged = if holder.compacted {
            Position::new(SegmentId(holder.entry.last.0 + 1), 0)
        } else {
            Position::new(holder.entry.first, place.offset)
        };
        let before = self.order.range(..=last).rev();
        let files = before.map(|(_, handle)| self.get(*handle));
        let mut holders = files.take_while(|file| file.entry.last >= first);
        holders.any(|file| file.filtered_at <= logged)
    }

    /// The puts of `segments` were filtered: the deletes in `counts` (the result of
    /// [`Files::tombstones_of`] when filtering began) are no longer needed.
    pub(crate) fn forget_tombstones(&mut self, counts: &[(u32, SegmentId, u64)]) {
        self.end_run();
        for (handle, segment, bytes) in counts {
            let Some(Some(file)) = self.slots.get_mut(*handle as usize - 1) else {
                continue;
            };
            let Some(counted) = file.tombstones.get_mut(segment) else {
                continue;
            };
            let forgotten = *bytes.min(counted);
            *counted -= forgotten;
            if *counted == 0 {
                file.tombstones.remove(segment);
            }
            if !file.covers(*segment) {
                unpin(&mut self.pinned, *segment, forgotten);
                self.change(*handle, |file| file.foreign -= forgotten);
            }
        }
    }

    /// For each file, the bytes of deletes whose jobs were put into one of `inputs`.
    pub(crate) fn tombstones_of(&mut self, inputs: &[u32]) -> Vec<(u32, SegmentId, u64)> {
        self.end_run();
        let covered = |segment: SegmentId| {
            inputs
                .iter()
                .any(|handle| self.get(*handle).covers(segment))
        };
        let mut counts = Vec::new();
        for handle in self.in_order() {
            let tombstones = &self.get(handle).tombstones;
            let mut note = |segment: &SegmentId, bytes: &u64| {
                counts.push((handle, *segment, *bytes));
            };
            // Usually there is one input, with one segment.
            match *inputs {
                [input] if self.get(input).entry.first == self.get(input).entry.last => {
                    let segment = self.get(input).entry.first;
                    let found = tombstones.get(&segment);
                    found.into_iter().for_each(|bytes| note(&segment, bytes));
                }
                _ => {
                    let found = tombstones.iter().filter(|(segment, _)| covered(**segment));
                    found.for_each(|(segment, bytes)| note(segment, bytes));
                }
            }
        }
        counts
    }

    /// Bytes of deletes in other files that are no longer needed once this one is rewritten.
    pub(crate) fn pinned_by(&self, handle: u32) -> u64 {
        let file = self.get(handle);
        let (first, last) = (file.entry.first, file.entry.last);
        let of_run = self
            .latest
            .filter(|run| run.is_foreign && file.covers(run.put_segment))
            .map_or(0, |run| run.bytes);
        let pinned = self.pinned.range(first..=last.max(first));
        pinned.map(|(_, bytes)| bytes).sum::<u64>() + of_run
    }

    /// Set how many bytes of a file rewriting does not save.
    pub(crate) fn set_overhead(&mut self, handle: u32, bytes: u64) {
        self.change(handle, |file| file.overhead = bytes);
    }

    /// The sums over all files except the open one.
    pub(crate) fn sealed(&self) -> Sealed {
        self.sealed
    }

    /// Compute the sums from all files.
    #[cfg(any(debug_assertions, feature = "sim"))]
    pub(crate) fn recount(&self) -> Sealed {
        let mut sealed = Sealed::default();
        for handle in self.in_order().filter(|handle| self.open != Some(*handle)) {
            sealed.add(self.get(handle));
        }
        sealed
    }
}

fn unpin(pinned: &mut BTreeMap<SegmentId, u64>, segment: SegmentId, bytes: u64) {
    if let Some(counted) = pinned.get_mut(&segment) {
        *counted = counted.saturating_sub(bytes);
        if *counted == 0 {
            pinned.remove(&segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;

    /// A file of one segment, listed.
    fn listed(files: &mut Files, segment: u32, filtered_at: Position) -> u32 {
        let path = format!("/{segment}");
        let disk = SimFs::new(1);
        let file = disk.open(path.as_ref(), OpenMode::CreateNew).unwrap();
        let entry = Entry {
            first: SegmentId(segment),
            last: SegmentId(segment),
            generation: u32::from(filtered_at > Position::ZERO),
            end: 4096,
        };
        let handle = files.add(entry, entry.generation > 0, filtered_at, file);
        files.list(handle);
        handle
    }

    /// Compaction begins while a frame with counters is being built: the next record has exactly
    /// the position up to which records were filtered. A delete there came after the put was found
    /// alive.
    #[test]
    fn t3_a_delete_that_is_logged_where_a_rewriting_began_is_needed() {
        let mut files = Files::new(LogId([1; 16]), 1);
        let began = Position::new(SegmentId(2), 1000);
        let rewritten = listed(&mut files, 1, began);
        let open = listed(&mut files, 2, Position::ZERO);
        files.set_open(open);
        let place = |offset| Place { file: open, offset };
        assert!(!files.tombstone_is_needed(place(999), SegmentId(1)));
        assert!(files.tombstone_is_needed(place(1000), SegmentId(1)));
        assert!(files.tombstone_is_needed(place(1001), SegmentId(1)));
        files.keep_tombstone(place(1000), SegmentId(1), 20);
        assert_eq!(files.pinned_by(rewritten), 20);
    }
}
