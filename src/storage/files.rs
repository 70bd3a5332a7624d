//! The files of an open log, and how much of each is still alive.
//!
//! A record is alive while replay needs it: a put until its job is deleted, an update until the
//! next one, a pause until it ends, and a delete as long as the file that held the job's put could
//! bring the job back. Only bytes are counted here; which records those are is asked of the index,
//! record by record, when a file is compacted, so no count can lose a job.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::format::{Entry, Identity, LogId, Seed, segment_header};
use super::fs::File;
use super::plant::{Bug, planted};
use super::recover::Taken;
use crate::types::{Place, Position, SegmentId};

/// One file of the log.
#[derive(Debug)]
pub(crate) struct LogFile {
    pub(crate) entry: Entry,
    pub(crate) seed: Seed,
    /// Written by compaction.
    pub(crate) compacted: bool,
    /// Deletes before this position are not needed to keep this file's jobs dead.
    pub(crate) filtered_at: Position,
    pub(crate) file: Arc<dyn File>,
    /// Bytes of records that are alive, deletes apart.
    live: u64,
    /// Bytes of deletes, by the segment whose puts they keep dead.
    tombstones: HashMap<SegmentId, u64>,
    /// Bytes that rewriting the file would not save: headers and trailers.
    overhead: u64,
}

impl LogFile {
    /// Bytes that compaction would save.
    pub(crate) fn garbage(&self) -> u64 {
        let needed = self.live + self.overhead + self.tombstone_bytes();
        u64::from(self.entry.end).saturating_sub(needed)
    }

    /// Bytes that compaction would have to copy.
    pub(crate) fn live(&self) -> u64 {
        self.live + self.tombstone_bytes()
    }

    fn tombstone_bytes(&self) -> u64 {
        // Deletes of jobs that were put into the same file go with it.
        let others = |segment: &SegmentId| !self.covers(*segment);
        self.tombstones
            .iter()
            .filter(|(segment, _)| others(segment))
            .map(|(_, bytes)| bytes)
            .sum()
    }

    pub(crate) fn covers(&self, segment: SegmentId) -> bool {
        (self.entry.first..=self.entry.last).contains(&segment)
    }
}

/// All files of an open log, by handle and in order.
#[derive(Debug)]
pub(crate) struct Files {
    log: LogId,
    /// Handle − 1 is the index. A handle is not used again before its file is gone.
    slots: Vec<Option<LogFile>>,
    free: Vec<u32>,
    order: BTreeMap<SegmentId, u32>,
    /// Names that no new file may have.
    pub(crate) taken: Taken,
}

impl Files {
    pub(crate) fn new(log: LogId) -> Files {
        Files {
            log,
            slots: Vec::new(),
            free: Vec::new(),
            order: BTreeMap::new(),
            taken: Taken::default(),
        }
    }

    pub(crate) fn log(&self) -> LogId {
        self.log
    }

    /// Take in a file; it is not part of the order yet (see [`Files::list`]).
    pub(crate) fn add(
        &mut self,
        entry: Entry,
        compacted: bool,
        filtered_at: Position,
        file: Arc<dyn File>,
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
            live: 0,
            tombstones: HashMap::new(),
            overhead: segment_header::SIZE as u64,
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
        let first = self.get(handle).entry.first;
        let before = self.order.insert(first, handle);
        assert!(before.is_none(), "two files hold segment {first}");
    }

    /// Take a file out of the log; it stays open until [`Files::drop_file`].
    pub(crate) fn unlist(&mut self, handle: u32) {
        let first = self.get(handle).entry.first;
        let listed = self.order.remove(&first);
        assert_eq!(
            listed,
            Some(handle),
            "segment {first} is not listed under this handle"
        );
    }

    /// Close a file.
    pub(crate) fn drop_file(&mut self, handle: u32) -> Option<LogFile> {
        let file = self.slots[handle as usize - 1].take();
        self.free.push(handle);
        file
    }

    /// The file of a handle, which must be open.
    pub(crate) fn get(&self, handle: u32) -> &LogFile {
        match self.slots.get(handle as usize - 1) {
            Some(Some(file)) => file,
            _ => unreachable!("no open log file has handle {handle}"),
        }
    }

    pub(crate) fn get_mut(&mut self, handle: u32) -> &mut LogFile {
        match self.slots.get_mut(handle as usize - 1) {
            Some(Some(file)) => file,
            _ => unreachable!("no open log file has handle {handle}"),
        }
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

    /// Whether a listed file begins with `segment` or holds it. The two differ only in a forged list,
    /// where a file may end before it begins.
    pub(crate) fn is_taken(&self, segment: SegmentId) -> bool {
        self.order.contains_key(&segment) || self.covering(segment).is_some()
    }

    /// The segment in which a record lies.
    pub(crate) fn segment_of(&self, place: Place) -> SegmentId {
        self.get(place.file).entry.first
    }

    /// A record at `place` is alive.
    pub(crate) fn keep(&mut self, place: Place, size: usize) {
        self.get_mut(place.file).live += size as u64;
    }

    /// A record at `place` is dead.
    pub(crate) fn free(&mut self, place: Place, size: usize) {
        let file = self.get_mut(place.file);
        assert!(
            file.live >= size as u64,
            "more bytes freed than were alive in {:?}",
            file.entry
        );
        file.live -= size as u64;
    }

    /// A delete lies at `place`; `put_segment` held the put of its job. Nothing is counted when no
    /// file can bring the job back.
    pub(crate) fn keep_tombstone(&mut self, place: Place, put_segment: SegmentId, size: usize) {
        if self.tombstone_is_needed(place, put_segment) {
            let file = self.get_mut(place.file);
            *file.tombstones.entry(put_segment).or_default() += size as u64;
        }
    }

    /// Whether a file that holds `put_segment` was written before the delete at `place`.
    pub(crate) fn tombstone_is_needed(&self, place: Place, put_segment: SegmentId) -> bool {
        if planted(Bug::TombstoneDropped) {
            return false;
        }
        self.may_hold_what_died(put_segment, put_segment, place)
    }

    /// Whether a record that lay in one of these segments, and that the one at `place` made dead, may
    /// still be in a file.
    pub(crate) fn may_hold_what_died(
        &self,
        first: SegmentId,
        last: SegmentId,
        place: Place,
    ) -> bool {
        let holder = self.get(place.file);
        // In a compacted file the offset says nothing of when the delete was logged: take the
        // latest time that it can have been.
        let logged = match holder.compacted {
            true => Position::new(SegmentId(holder.entry.last.0 + 1), 0),
            false => Position::new(holder.entry.first, place.offset),
        };
        let before = self.order.range(..=last).rev();
        let files = before.map(|(_, handle)| self.get(*handle));
        let mut holders = files.take_while(|file| file.entry.last >= first);
        holders.any(|file| file.filtered_at <= logged)
    }

    /// The puts of `segments` were filtered: deletes counted in `counts` (what
    /// [`Files::tombstones_of`] gave when filtering began) are no longer needed.
    pub(crate) fn forget_tombstones(&mut self, counts: &[(u32, SegmentId, u64)]) {
        for (handle, segment, bytes) in counts {
            let Some(Some(file)) = self.slots.get_mut(*handle as usize - 1) else {
                continue;
            };
            if let Some(counted) = file.tombstones.get_mut(segment) {
                *counted = counted.saturating_sub(*bytes);
                if *counted == 0 {
                    file.tombstones.remove(segment);
                }
            }
        }
    }

    /// For each file, the bytes of deletes of jobs that were put into one of `inputs`.
    pub(crate) fn tombstones_of(&self, inputs: &[u32]) -> Vec<(u32, SegmentId, u64)> {
        let covered = |segment: SegmentId| {
            inputs
                .iter()
                .any(|handle| self.get(*handle).covers(segment))
        };
        let mut counts = Vec::new();
        for handle in self.in_order() {
            for (segment, bytes) in &self.get(handle).tombstones {
                if covered(*segment) {
                    counts.push((handle, *segment, *bytes));
                }
            }
        }
        counts
    }

    /// Set how many bytes of a file rewriting would not save.
    pub(crate) fn set_overhead(&mut self, handle: u32, bytes: u64) {
        self.get_mut(handle).overhead = bytes;
    }

    /// Bytes of all files but the one with `open`, and how many of them compaction would save.
    pub(crate) fn sealed_bytes(&self, open: u32) -> (u64, u64) {
        self.in_order()
            .filter(|handle| *handle != open)
            .fold((0, 0), |(size, garbage), handle| {
                let file = self.get(handle);
                (size + u64::from(file.entry.end), garbage + file.garbage())
            })
    }
}
