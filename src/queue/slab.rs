//! A slab: values with handles, in chunks that never move.
//!
//! Growing allocates one chunk and touches nothing else, so no insertion ever waits for a copy of
//! everything. A chunk is freed with its last value (one is kept, so that a queue that varies
//! around a boundary does not allocate all the time). Handles are reused, the lowest chunk first.
//! This is not a map: the caller must not use a handle after its value is removed.
//!
//! Few values that are left in many chunks hold all of these. [`Slab::move_down`] moves one of them
//! from the last chunk to the first that has room, so that memory falls with the number of values.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use super::handle::Handle;

/// In tests chunks are small, so that few jobs need many of them.
const CHUNK_BITS: u32 = if cfg!(test) { 4 } else { 10 };
const CHUNK_LEN: usize = 1 << CHUNK_BITS;

/// Values move if there is memory for more than this many times their number, and for [`SLACK`]
/// values besides.
const SPARSE: usize = 4;
const SLACK: usize = 4 * CHUNK_LEN;
/// Entries that are looked at in search of a value to move.
const MOVE_SCAN: usize = 64;

/// The end of a chunk's list of vacant entries.
const END: u32 = u32::MAX;

/// As large as `T` if `T` has a niche, which the handles and states in jobs provide.
enum SlabEntry<T> {
    /// The offset of the chunk's next vacant entry, or [`END`].
    Vacant(u32),
    Occupied(T),
}

struct Chunk<T> {
    /// As long as the used part ever was; without memory while the chunk has no values.
    entries: Vec<SlabEntry<T>>,
    vacant: u32,
    live: usize,
}

impl<T> Chunk<T> {
    fn insert(&mut self, value: T) -> usize {
        self.live += 1;
        if self.vacant == END {
            self.entries.push(SlabEntry::Occupied(value));
            return self.entries.len() - 1;
        }
        let offset = self.vacant as usize;
        match std::mem::replace(&mut self.entries[offset], SlabEntry::Occupied(value)) {
            SlabEntry::Vacant(next) => self.vacant = next,
            SlabEntry::Occupied(_) => unreachable!("an occupied entry in the list of vacant ones"),
        }
        offset
    }

    fn remove(&mut self, offset: usize) -> T {
        let entry = std::mem::replace(&mut self.entries[offset], SlabEntry::Vacant(self.vacant));
        let SlabEntry::Occupied(value) = entry else {
            unreachable!("removed twice")
        };
        self.vacant = offset as u32;
        self.live -= 1;
        value
    }
}

/// Values of type `T` at handles of kind `K`.
pub(super) struct Slab<K, T> {
    chunks: Vec<Chunk<T>>,
    /// The chunks with vacant entries, the lowest one last. Insertion uses that one, so only that
    /// one can become full.
    open: Vec<u32>,
    /// The memory of the chunk that became empty last.
    spare: Vec<SlabEntry<T>>,
    /// The chunks that have memory. The last chunk is one of them.
    held: usize,
    /// The entries of the last chunk from this one on are vacant, as far as was searched.
    searched: usize,
    len: usize,
    of: PhantomData<fn() -> K>,
}

fn chunk<K>(handle: Handle<K>) -> usize {
    (handle.index() >> CHUNK_BITS) as usize
}

fn offset<K>(handle: Handle<K>) -> usize {
    handle.index() as usize & (CHUNK_LEN - 1)
}

impl<K, T> Slab<K, T> {
    /// A slab without values, which uses no memory.
    pub(super) fn new() -> Slab<K, T> {
        Slab {
            chunks: Vec::new(),
            open: Vec::new(),
            spare: Vec::new(),
            held: 0,
            searched: CHUNK_LEN,
            len: 0,
            of: PhantomData,
        }
    }

    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The size of a value's entry, in bytes.
    pub(super) const fn entry_size() -> usize {
        size_of::<SlabEntry<T>>()
    }

    /// Stores `value` and returns its handle.
    ///
    /// # Panics
    /// After 2^32 − 1 values: memory is exhausted long before.
    pub(super) fn insert(&mut self, value: T) -> Handle<K> {
        let number = self.open_chunk();
        let chunk = &mut self.chunks[number as usize];
        let offset = chunk.insert(value);
        if chunk.live == CHUNK_LEN {
            self.open.pop();
        }
        self.len += 1;
        let handle = Handle::from_index(number << CHUNK_BITS | offset as u32);
        handle.expect("a slab of 2^32 values fits no memory")
    }

    /// Removes the value; a later `insert` may return the same handle.
    pub(super) fn remove(&mut self, handle: Handle<K>) -> T {
        let number = chunk(handle);
        let chunk = &mut self.chunks[number];
        if chunk.live == CHUNK_LEN {
            let at = self.open.partition_point(|open| *open > number as u32);
            self.open.insert(at, number as u32);
        }
        let value = chunk.remove(offset(handle));
        if chunk.live == 0 {
            self.free_chunk(number);
        }
        self.len -= 1;
        value
    }

    /// The chunk has no value.
    #[cold]
    fn free_chunk(&mut self, number: usize) {
        let chunk = &mut self.chunks[number];
        chunk.vacant = END;
        chunk.entries.clear();
        self.spare = std::mem::take(&mut chunk.entries);
        self.held -= 1;
        self.drop_last_chunks();
    }

    /// Removes the last chunks that have no memory.
    fn drop_last_chunks(&mut self) {
        let before = self.chunks.len();
        while self.chunks.pop_if(|last| last.live == 0).is_some() {}
        let dropped = before - self.chunks.len();
        if dropped > 0 {
            // They were the highest, and all of their entries were vacant.
            self.open.drain(..dropped);
            self.searched = CHUNK_LEN;
        }
    }

    /// If most of the memory is vacant, moves a value of the last chunk to the lowest vacant entry.
    /// Returns where it was and where it is now. Takes some hundred nanoseconds.
    ///
    /// Called once or twice after each removal, it keeps [`SPARSE`] times the memory that the values
    /// need, and [`SLACK`], at most: a chunk that is a quarter full is empty after a quarter of its
    /// entries was moved, and as many removals allow one chunk less.
    pub(super) fn move_down(&mut self) -> Option<(Handle<K>, Handle<K>)> {
        if self.held * CHUNK_LEN <= self.len * SPARSE + SLACK {
            return None;
        }
        let number = self.chunks.len().checked_sub(1)?;
        let entries = &self.chunks[number].entries;
        let end = self.searched.min(entries.len());
        let start = end.saturating_sub(MOVE_SCAN);
        let is_occupied = |entry: &SlabEntry<T>| matches!(entry, SlabEntry::Occupied(_));
        let found = entries[start..end].iter().rposition(is_occupied);
        self.searched = match found {
            Some(at) => start + at,
            // Something was inserted behind what had been searched.
            None if start == 0 => CHUNK_LEN,
            None => start,
        };
        let from = Handle::from_index((number << CHUNK_BITS | (start + found?)) as u32)?;
        let value = self.remove(from);
        Some((from, self.insert(value)))
    }

    /// Handles are below this.
    pub(super) fn bound(&self) -> u32 {
        (self.chunks.len() as u32) << CHUNK_BITS
    }

    /// The value, if the handle has one.
    pub(super) fn get(&self, handle: Handle<K>) -> Option<&T> {
        match self
            .chunks
            .get(chunk(handle))?
            .entries
            .get(offset(handle))?
        {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    /// A chunk with a vacant entry and with memory.
    fn open_chunk(&mut self) -> u32 {
        let number = match self.open.last() {
            Some(number) => *number,
            None => self.add_chunk(),
        };
        let chunk = &mut self.chunks[number as usize];
        if chunk.entries.capacity() == 0 {
            chunk.entries = std::mem::take(&mut self.spare);
            chunk.entries.reserve_exact(CHUNK_LEN);
            self.held += 1;
        }
        number
    }

    fn add_chunk(&mut self) -> u32 {
        let number = self.chunks.len() as u32;
        assert!(
            number < 1 << (32 - CHUNK_BITS),
            "a slab of 2^32 values fits no memory"
        );
        self.chunks.push(Chunk {
            entries: Vec::new(),
            vacant: END,
            live: 0,
        });
        self.open.push(number);
        number
    }
}

impl<K, T> Index<Handle<K>> for Slab<K, T> {
    type Output = T;

    #[inline]
    fn index(&self, handle: Handle<K>) -> &T {
        match &self.chunks[chunk(handle)].entries[offset(handle)] {
            SlabEntry::Occupied(value) => value,
            SlabEntry::Vacant(_) => panic!("nothing lives at {handle:?}"),
        }
    }
}

impl<K, T> IndexMut<Handle<K>> for Slab<K, T> {
    #[inline]
    fn index_mut(&mut self, handle: Handle<K>) -> &mut T {
        match &mut self.chunks[chunk(handle)].entries[offset(handle)] {
            SlabEntry::Occupied(value) => value,
            SlabEntry::Vacant(_) => panic!("nothing lives at {handle:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::random::Random;

    type Slab<T> = super::Slab<T, T>;

    #[test]
    fn a_value_stays_where_it_is_while_the_slab_grows() {
        let mut slab = Slab::new();
        let first = slab.insert(7u64);
        let address = std::ptr::from_ref(&slab[first]);
        for value in 0..10 * CHUNK_LEN as u64 {
            slab.insert(value);
        }
        assert_eq!(std::ptr::from_ref(&slab[first]), address);
        assert_eq!(slab[first], 7);
    }

    #[test]
    fn a_vacant_entry_is_used_again_before_the_slab_grows() {
        let mut slab = Slab::new();
        let handles: Vec<_> = (0..3 * CHUNK_LEN).map(|value| slab.insert(value)).collect();
        for handle in handles.iter().skip(1).step_by(2) {
            slab.remove(*handle);
        }
        for value in 0..handles.len() / 2 {
            slab.insert(value);
        }
        assert_eq!(slab.chunks.len(), 3);
        assert!(
            handles
                .iter()
                .step_by(2)
                .all(|handle| slab[*handle] == handle.index() as usize)
        );
    }

    #[test]
    fn empty_chunks_are_given_back_and_one_is_kept() {
        let mut slab = Slab::new();
        let handles: Vec<_> = (0..4 * CHUNK_LEN).map(|value| slab.insert(value)).collect();
        for handle in handles {
            slab.remove(handle);
        }
        assert_eq!(slab.len(), 0);
        assert!(slab.chunks.is_empty() && slab.open.is_empty() && slab.held == 0);
        assert_eq!(slab.spare.capacity(), CHUNK_LEN);
        let again = slab.insert(1);
        assert_eq!((slab[again], slab.spare.capacity()), (1, 0));
    }

    #[test]
    fn g36_few_values_of_many_hold_little_memory() {
        let mut random = Random::new(1);
        for kept in [0, 1, 230, 2000] {
            let mut slab = Slab::new();
            let mut handles: Vec<_> = (0..10_000u32).map(|value| slab.insert(value)).collect();
            random.shuffle(&mut handles);
            let mut places: HashMap<u32, _> = (handles.iter())
                .map(|handle| (slab[*handle], *handle))
                .collect();
            for handle in handles.drain(kept..) {
                let value = *slab.get(places[&handle.index()]).unwrap();
                slab.remove(places.remove(&value).unwrap());
                for _ in 0..2 {
                    if let Some((from, to)) = slab.move_down() {
                        assert!(to < from && slab.get(from).is_none());
                        places.insert(slab[to], to);
                    }
                }
            }
            assert_eq!((slab.len(), places.len()), (kept, kept));
            assert!(places.iter().all(|(value, handle)| slab[*handle] == *value));
            let held = slab.chunks.iter().filter(|it| it.entries.capacity() > 0);
            assert_eq!(held.count(), slab.held);
            let held_max = (kept * SPARSE + SLACK).div_ceil(CHUNK_LEN) + 1;
            assert!(slab.held <= held_max, "{kept}: {} chunks", slab.held);
            // New values take the vacant entries first.
            let places_free = slab.chunks.len() * CHUNK_LEN - kept;
            let bound = slab.bound();
            (0..places_free).for_each(|value| _ = slab.insert(value as u32));
            assert_eq!(slab.bound(), bound);
        }
    }

    #[test]
    fn a_removed_value_is_not_found() {
        let mut slab = Slab::new();
        let handle = slab.insert('a');
        assert_eq!(slab.remove(handle), 'a');
        assert_eq!(slab.get(handle), None);
        assert_eq!(slab.get(Handle::from_index(1 << 20).unwrap()), None);
        assert!(Handle::<char>::from_index(u32::MAX).is_none());
    }
}
