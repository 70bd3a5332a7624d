//! A slab: values with handles, in chunks that never move.
//!
//! Growing allocates one chunk and touches nothing else, so no insertion ever waits for a copy of
//! everything. A chunk is freed with its last value (one is kept, so that a queue that varies
//! around a boundary does not allocate all the time). Handles are reused. This is not a map: the
//! caller must not use a handle after its value is removed.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use super::handle::Handle;

const CHUNK_BITS: u32 = 10;
const CHUNK_LEN: usize = 1 << CHUNK_BITS;

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
    /// The chunks with vacant entries. Insertion uses the last one, so only that one can become
    /// full.
    open: Vec<u32>,
    /// The memory of the chunk that became empty last.
    spare: Vec<SlabEntry<T>>,
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
            self.open.push(number as u32);
        }
        let value = chunk.remove(offset(handle));
        if chunk.live == 0 {
            chunk.vacant = END;
            chunk.entries.clear();
            self.spare = std::mem::take(&mut chunk.entries);
        }
        self.len -= 1;
        value
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

    fn index(&self, handle: Handle<K>) -> &T {
        match &self.chunks[chunk(handle)].entries[offset(handle)] {
            SlabEntry::Occupied(value) => value,
            SlabEntry::Vacant(_) => panic!("nothing lives at {handle:?}"),
        }
    }
}

impl<K, T> IndexMut<Handle<K>> for Slab<K, T> {
    fn index_mut(&mut self, handle: Handle<K>) -> &mut T {
        match &mut self.chunks[chunk(handle)].entries[offset(handle)] {
            SlabEntry::Occupied(value) => value,
            SlabEntry::Vacant(_) => panic!("nothing lives at {handle:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(
            slab.chunks
                .iter()
                .all(|chunk| chunk.entries.capacity() == 0)
        );
        assert_eq!(slab.spare.capacity(), CHUNK_LEN);
        let again = slab.insert(1);
        assert_eq!((slab[again], slab.spare.capacity()), (1, 0));
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
