//! A vector that never copies more than one chunk to grow.
//!
//! The first chunk is an ordinary vector, so that the thousands of small heaps of as many tubes cost
//! what they hold; from there on it grows and shrinks by whole chunks, which stay where they are. A
//! vector of a million entries would stall its owner for milliseconds each time it doubles.

use std::ops::{Index, IndexMut};

const CHUNK_BITS: u32 = 12;
const CHUNK_LEN: usize = 1 << CHUNK_BITS;

/// Below so many elements the first chunk keeps its memory.
const SHRINK_MIN: usize = 256;

/// A vector in chunks.
pub(super) struct ChunkedVec<T> {
    first: Vec<T>,
    /// Empty unless the first chunk is full; all full but the last, which is not empty.
    rest: Vec<Vec<T>>,
    len: usize,
}

impl<T> ChunkedVec<T> {
    /// No elements, no memory.
    pub(super) fn new() -> ChunkedVec<T> {
        ChunkedVec {
            first: Vec::new(),
            rest: Vec::new(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, value: T) {
        let chunk = self.len >> CHUNK_BITS;
        if chunk > self.rest.len() {
            self.rest.push(Vec::with_capacity(CHUNK_LEN));
        }
        self.chunk_mut(chunk).push(value);
        self.len += 1;
    }

    /// Takes out an element and puts the last one into its place.
    ///
    /// # Panics
    /// If there is none at `index`.
    pub(super) fn swap_remove(&mut self, index: usize) -> T {
        assert!(index < self.len, "element {index} of {}", self.len);
        self.len -= 1;
        let Some(last) = self.chunk_mut(self.len >> CHUNK_BITS).pop() else {
            unreachable!("the last chunk is not empty")
        };
        self.give_back();
        if index == self.len {
            last
        } else {
            std::mem::replace(&mut self[index], last)
        }
    }

    /// Frees the last chunk if it is empty, or what the first one no longer needs.
    fn give_back(&mut self) {
        if self.rest.last().is_some_and(Vec::is_empty) {
            self.rest.pop();
        }
        let capacity = self.first.capacity();
        if capacity > SHRINK_MIN && self.first.len() < capacity / 4 {
            self.first.shrink_to(capacity / 2);
        }
    }

    fn chunk_mut(&mut self, number: usize) -> &mut Vec<T> {
        if number == 0 {
            &mut self.first
        } else {
            &mut self.rest[number - 1]
        }
    }
}

impl<T> Index<usize> for ChunkedVec<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        match index >> CHUNK_BITS {
            0 => &self.first[index],
            chunk => &self.rest[chunk - 1][index & (CHUNK_LEN - 1)],
        }
    }
}

impl<T> IndexMut<usize> for ChunkedVec<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.chunk_mut(index >> CHUNK_BITS)[index & (CHUNK_LEN - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_where_a_vector_has_them_on_both_sides_of_each_boundary() {
        for len in [
            0,
            1,
            CHUNK_LEN - 1,
            CHUNK_LEN,
            CHUNK_LEN + 1,
            3 * CHUNK_LEN,
            3 * CHUNK_LEN + 1,
        ] {
            let mut chunked = ChunkedVec::new();
            let mut plain: Vec<_> = (0..len).collect();
            plain.iter().for_each(|value| chunked.push(*value));
            while !plain.is_empty() {
                let index = plain.len() * 2 / 3;
                assert_eq!(chunked.swap_remove(index), plain.swap_remove(index));
                assert_eq!(chunked.len(), plain.len());
                assert!(
                    plain
                        .get(index)
                        .is_none_or(|value| *value == chunked[index])
                );
            }
        }
    }

    #[test]
    fn an_element_of_a_full_chunk_never_moves() {
        let mut chunked = ChunkedVec::new();
        (0..2 * CHUNK_LEN).for_each(|value| chunked.push(value));
        let addresses = [0, CHUNK_LEN].map(|index| std::ptr::from_ref(&chunked[index]));
        (0..50 * CHUNK_LEN).for_each(|value| chunked.push(value));
        assert_eq!(
            [0, CHUNK_LEN].map(|index| std::ptr::from_ref(&chunked[index])),
            addresses
        );
    }

    #[test]
    fn memory_is_given_back() {
        let mut chunked = ChunkedVec::new();
        (0..3 * CHUNK_LEN).for_each(|value| chunked.push(value));
        (0..3 * CHUNK_LEN).for_each(|_| _ = chunked.swap_remove(0));
        assert_eq!((chunked.len(), chunked.rest.len()), (0, 0));
        assert!(chunked.first.capacity() <= SHRINK_MIN);
    }
}
