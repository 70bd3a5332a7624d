//! Index of an open ledger: place on the disk and term of each entry, and the last entries
//! themselves.
//!
//! A frame on the disk holds a range of entries; a later frame may replace the end of it. So the
//! frames, in the order in which they were written, hold ascending ranges without gaps. Memory: 40
//! bytes a frame, 16 bytes a change of term, and the last entries up to a bound. Entries that are
//! not on the disk yet are always among the last ones.

use std::collections::VecDeque;
use std::mem::size_of;

use raft::eraftpb::Entry;

use super::format::ENTRY_SIZE;
use bsd::storage::StoreError;

/// The place on the disk of a range of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of the file.
    pub(super) file: u64,
    /// The offset of the frame.
    pub(super) at: u64,
    /// Bytes of its payload.
    pub(super) size: u32,
    /// The index of its first entry.
    pub(super) first: u64,
    /// The index of the last entry of it that no later frame has replaced.
    pub(super) last: u64,
}

#[derive(Debug)]
pub(super) struct Held {
    /// The index and term of the entry before the first one.
    base: (u64, u64),
    places: VecDeque<Place>,
    /// The first index of every run of entries of one term, and that term.
    terms: VecDeque<(u64, u64)>,
    /// The last entries, in order.
    recent: VecDeque<Entry>,
    recent_size: usize,
    last: u64,
}

/// Collects entries up to a number of bytes.
struct Found {
    entries: Vec<Entry>,
    left: u64,
    is_full: bool,
}

impl Found {
    fn push(&mut self, entry: Entry) {
        let size = (entry.data.len() + entry.context.len() + ENTRY_SIZE) as u64;
        self.is_full = size > self.left;
        self.left = self.left.saturating_sub(size);
        if !self.is_full || self.entries.is_empty() {
            self.entries.push(entry);
        }
    }
}

/// Bytes of memory that an entry takes.
fn memory(entry: &Entry) -> usize {
    size_of::<Entry>() + entry.data.len() + entry.context.len()
}

impl Held {
    /// No entries after this index and term.
    pub(super) fn new(base: (u64, u64)) -> Held {
        Held {
            base,
            places: VecDeque::new(),
            terms: VecDeque::new(),
            recent: VecDeque::new(),
            recent_size: 0,
            last: base.0,
        }
    }

    pub(super) fn base(&self) -> (u64, u64) {
        self.base
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The term of an entry, or of the base.
    pub(super) fn term(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        if index < self.base.0 || index > self.last {
            return None;
        }
        let after = self.terms.partition_point(|run| run.0 <= index);
        Some(self.terms.get(after.checked_sub(1)?)?.1)
    }

    /// The entry, if it is in memory.
    pub(super) fn recent(&self, index: u64) -> Option<&Entry> {
        let first = self.recent.front()?.index;
        self.recent
            .get(usize::try_from(index.checked_sub(first)?).ok()?)
    }

    /// The entries from `from` up to but without `to`: as many as have `bytes_max` bytes of data and
    /// context together, and at least one. Those that are not in memory come by `read`, with what
    /// follows them in the same frame.
    pub(super) fn entries(
        &self,
        from: u64,
        to: u64,
        bytes_max: u64,
        mut read: impl FnMut(u64) -> Result<Vec<Entry>, StoreError>,
    ) -> Result<Vec<Entry>, StoreError> {
        let mut found = Found {
            entries: Vec::new(),
            left: bytes_max,
            is_full: false,
        };
        let mut next = from;
        while next < to && !found.is_full {
            if let Some(entry) = self.recent(next) {
                found.push(entry.clone());
                next += 1;
                continue;
            }
            for entry in read(next)? {
                if entry.index == next && next < to && !found.is_full {
                    found.push(entry);
                    next += 1;
                }
            }
        }
        Ok(found.entries)
    }

    /// The place of the entry, if it is on the disk.
    pub(super) fn place(&self, index: u64) -> Option<Place> {
        let nth = self.places.partition_point(|place| place.last < index);
        self.places
            .get(nth)
            .filter(|place| place.first <= index)
            .copied()
    }

    /// The first place in a file of this number or a greater one.
    pub(super) fn first_place_from(&self, file: u64) -> Option<Place> {
        let nth = self.places.partition_point(|place| place.file < file);
        self.places.get(nth).copied()
    }

    /// Forget the entries from `first` on.
    fn cut(&mut self, first: u64) {
        while let Some(entry) = self.recent.back()
            && entry.index >= first
        {
            self.recent_size -= memory(entry);
            self.recent.pop_back();
        }
        while self.places.back().is_some_and(|it| it.first >= first) {
            self.places.pop_back();
        }
        if let Some(place) = self.places.back_mut() {
            place.last = place.last.min(first - 1);
        }
        while self.terms.back().is_some_and(|run| run.0 >= first) {
            self.terms.pop_back();
        }
        self.last = self.last.min(first - 1);
    }

    /// Forget all entries: the next one follows this index and term.
    pub(super) fn restart(&mut self, base: (u64, u64)) {
        *self = Held::new(base);
    }

    /// The entry that follows the last one, or replaces it and all after it.
    ///
    /// # Panics
    /// If it would leave a gap, or replace the base.
    pub(super) fn push(&mut self, entry: Entry) {
        let index = entry.index;
        assert!(
            index > self.base.0 && index <= self.last + 1,
            "entry {index} does not follow a ledger of the entries after {} up to {}",
            self.base.0,
            self.last
        );
        if index <= self.last {
            self.cut(index);
        }
        if self.terms.back().is_none_or(|run| run.1 != entry.term) {
            self.terms.push_back((index, entry.term));
        }
        self.recent_size += memory(&entry);
        self.recent.push_back(entry);
        self.last = index;
    }

    /// The entries of this place, which were pushed, are on the disk now.
    pub(super) fn settle(&mut self, place: Place) {
        self.places.push_back(place);
    }

    /// Take the oldest entries out of memory until at most `size` bytes of them are there; none
    /// from `pending` on, which are nowhere else.
    pub(super) fn forget(&mut self, size: usize, pending: Option<u64>) {
        self.forget_while(|it, entry| {
            it.recent_size > size && pending.is_none_or(|first| entry.index < first)
        });
    }

    /// The ledger begins after `index` now, which is not before its base and not after its last.
    pub(super) fn drop_up_to(&mut self, index: u64) {
        let Some(term) = self.term(index) else {
            return;
        };
        self.base = (index, term);
        while self.places.front().is_some_and(|it| it.last <= index) {
            self.places.pop_front();
        }
        self.forget_while(|_, entry| entry.index <= index);
        while self.terms.get(1).is_some_and(|run| run.0 <= index + 1) {
            self.terms.pop_front();
        }
        if index == self.last {
            self.terms.clear();
        }
    }

    fn forget_while(&mut self, go_on: impl Fn(&Held, &Entry) -> bool) {
        while let Some(entry) = self.recent.front()
            && go_on(self, entry)
        {
            self.recent_size -= memory(entry);
            self.recent.pop_front();
        }
    }
}
