//! A 4-ary heap with its keys inline that tells its items where they are.
//!
//! Each entry is a key and a handle, side by side, so that sifting compares without following a
//! handle; whenever an entry comes to rest at a new index, `moved(item, index)` is called, and the
//! item remembers it, so that it can be taken out or re-keyed from anywhere in O(log n). Entries with
//! equal keys are in no particular order: keys that matter end with an id.

use super::chunked::ChunkedVec;
use super::slab::Handle;

const ARITY: usize = 4;

/// Where an item is in a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeapAt(u32);

impl HeapAt {
    /// In no heap.
    pub(super) const NOWHERE: HeapAt = HeapAt(u32::MAX);

    fn index(self) -> usize {
        self.0 as usize
    }
}

struct Entry<K, T> {
    key: K,
    item: Handle<T>,
}

// By hand: derived, they would ask the same of `T`.
impl<K: Copy, T> Clone for Entry<K, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Copy, T> Copy for Entry<K, T> {}

/// Items by key, the smallest first.
pub(super) struct Heap<K, T> {
    entries: ChunkedVec<Entry<K, T>>,
}

impl<K: Copy + Ord, T> Heap<K, T> {
    /// No items, no memory.
    pub(super) fn new() -> Heap<K, T> {
        Heap {
            entries: ChunkedVec::new(),
        }
    }

    /// What an item costs, in bytes.
    pub(super) const fn entry_size() -> usize {
        size_of::<Entry<K, T>>()
    }

    /// True without items.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// The smallest key and its item.
    pub(super) fn first(&self) -> Option<(K, Handle<T>)> {
        (!self.is_empty()).then(|| (self.entries[0].key, self.entries[0].item))
    }

    /// Adds `item` under `key`.
    pub(super) fn push(
        &mut self,
        key: K,
        item: Handle<T>,
        mut moved: impl FnMut(Handle<T>, HeapAt),
    ) {
        self.entries.push(Entry { key, item });
        self.sift_up(self.entries.len() - 1, &mut moved);
    }

    /// Takes out the item at `at`. `moved` is not called for it.
    ///
    /// # Panics
    /// If nothing is there.
    pub(super) fn remove(
        &mut self,
        at: HeapAt,
        mut moved: impl FnMut(Handle<T>, HeapAt),
    ) -> Handle<T> {
        let removed = self.entries.swap_remove(at.index());
        if at.index() < self.entries.len() {
            self.sift(at.index(), &mut moved);
        }
        removed.item
    }

    /// Gives the item at `at` another key.
    pub(super) fn rekey(&mut self, at: HeapAt, key: K, mut moved: impl FnMut(Handle<T>, HeapAt)) {
        self.entries[at.index()].key = key;
        self.sift(at.index(), &mut moved);
    }

    /// Makes `item`, which is at `at` or nowhere, be in the heap under `key`, or not at all.
    pub(super) fn set(
        &mut self,
        at: HeapAt,
        key: Option<K>,
        item: Handle<T>,
        mut moved: impl FnMut(Handle<T>, HeapAt),
    ) {
        match (at == HeapAt::NOWHERE, key) {
            (true, None) => {}
            (true, Some(key)) => self.push(key, item, moved),
            (false, None) => {
                self.remove(at, &mut moved);
                moved(item, HeapAt::NOWHERE);
            }
            (false, Some(key)) if self.entries[at.index()].key == key => {}
            (false, Some(key)) => self.rekey(at, key, moved),
        }
    }

    fn sift(&mut self, index: usize, moved: &mut impl FnMut(Handle<T>, HeapAt)) {
        let parent = index.saturating_sub(1) / ARITY;
        if self.entries[index].key < self.entries[parent].key {
            self.sift_up(index, moved);
        } else {
            self.sift_down(index, moved);
        }
    }

    fn sift_up(&mut self, mut index: usize, moved: &mut impl FnMut(Handle<T>, HeapAt)) {
        let entry = self.entries[index];
        while index > 0 {
            let parent = (index - 1) / ARITY;
            if self.entries[parent].key <= entry.key {
                break;
            }
            self.rest(index, self.entries[parent], moved);
            index = parent;
        }
        self.rest(index, entry, moved);
    }

    fn sift_down(&mut self, mut index: usize, moved: &mut impl FnMut(Handle<T>, HeapAt)) {
        let entry = self.entries[index];
        while let Some(child) = self.smallest_child(index) {
            if entry.key <= self.entries[child].key {
                break;
            }
            self.rest(index, self.entries[child], moved);
            index = child;
        }
        self.rest(index, entry, moved);
    }

    fn smallest_child(&self, index: usize) -> Option<usize> {
        let first = index * ARITY + 1;
        let end = (first + ARITY).min(self.entries.len());
        (first..end).min_by_key(|child| self.entries[*child].key)
    }

    fn rest(
        &mut self,
        index: usize,
        entry: Entry<K, T>,
        moved: &mut impl FnMut(Handle<T>, HeapAt),
    ) {
        self.entries[index] = entry;
        moved(entry.item, HeapAt(index as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A heap, and what its items were told.
    struct Told {
        heap: Heap<u32, ()>,
        at: Vec<HeapAt>,
    }

    fn handle(index: usize) -> Handle<()> {
        Handle::from_index(index as u32).unwrap()
    }

    impl Told {
        fn new(len: usize) -> Told {
            Told {
                heap: Heap::new(),
                at: vec![HeapAt::NOWHERE; len],
            }
        }

        fn set(&mut self, item: usize, key: Option<u32>) {
            let at = self.at[item];
            self.heap.set(at, key, handle(item), |moved, at| {
                self.at[moved.index() as usize] = at
            });
        }

        fn check(&self, keys: &[Option<u32>]) {
            for index in 0..self.heap.entries.len() {
                let entry = self.heap.entries[index];
                let item = entry.item.index() as usize;
                assert_eq!(
                    self.at[item],
                    HeapAt(index as u32),
                    "item {item} knows its place"
                );
                assert_eq!(keys[item], Some(entry.key), "item {item} has its key");
            }
            assert_eq!(self.heap.entries.len(), keys.iter().flatten().count());
            assert_eq!(
                self.heap.first().map(|(key, _)| key),
                keys.iter().flatten().min().copied()
            );
        }
    }

    #[test]
    fn the_smallest_key_is_first_and_every_item_knows_its_place() {
        for seed in 1..=20u64 {
            let mut random = seed;
            let mut next = |bound: u64| {
                random = random
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (random >> 33) % bound
            };
            let (mut told, mut keys) = (Told::new(60), vec![None; 60]);
            for _ in 0..2000 {
                let item = next(60) as usize;
                keys[item] = (next(3) > 0).then(|| next(50) as u32);
                told.set(item, keys[item]);
                told.check(&keys);
            }
        }
    }

    #[test]
    fn a_heap_of_many_chunks_is_drained_in_order() {
        let mut told = Told::new(20_000);
        for item in 0..20_000 {
            told.set(item, Some((item * 7919 % 20_000) as u32));
        }
        for key in 0..20_000 {
            let (first, item) = told.heap.first().unwrap();
            assert_eq!(first, key);
            told.set(item.index() as usize, None);
        }
        assert!(told.heap.is_empty());
    }
}
