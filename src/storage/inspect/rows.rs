//! A small packed table of rows of numbers: no column takes more bytes than its values need.
//!
//! A column has a base, the same for all rows. For each row it holds the distance from the base, in
//! as many bytes as the largest distance needs: none if all rows have the same number, one for
//! numbers that lie within 256 of each other, and so on up to four. The rows are adjacent in one
//! piece of memory:
//!
//! ```text
//! columns   base 7, 1 byte   base 40_000_000, 3 bytes   base 1, 0 bytes
//! row 0            00               00 00 00                             (7, 40_000_000, 1)
//! row 1            01               24 04 00                             (8, 40_001_060, 1)
//! ```
//!
//! If a number does not fit into its column, the whole table is rewritten with a wider one. That
//! costs time in proportion to its size, so tables should be small. It is rare, because the spare
//! range of a width lies on the side towards which the numbers have grown.
//!
//! Invariants: rows are in the order of their first numbers, which are all different; every column
//! can hold all its numbers; spare memory is at most half of what the rows need, or four rows.

/// Rows of `N` numbers, in the order of their first numbers, which are the keys.
#[derive(Debug)]
pub(super) struct Rows<const N: usize> {
    columns: [Column; N],
    /// Bytes of a row.
    stride: usize,
    len: usize,
    bytes: Vec<u8>,
}

/// Encoding of the numbers of a column: as distances from `base`, in this number of bytes. All
/// arithmetic wraps around: with four bytes any base can hold any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Column {
    base: u32,
    width: u8,
}

impl Column {
    /// The greatest distance that it can hold.
    fn reach(self) -> u32 {
        ((1_u64 << (8 * self.width)) - 1) as u32
    }

    /// The number at the start of `bytes`.
    fn decode(self, bytes: &[u8]) -> u32 {
        // Reads four bytes whatever the width, if there are four, and masks out the rest.
        let word = match bytes.first_chunk() {
            Some(word) => u32::from_le_bytes(*word),
            None => bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u32::from(*byte)),
        };
        self.base.wrapping_add(word & self.reach())
    }

    fn holds(self, number: u32) -> bool {
        number.wrapping_sub(self.base) <= self.reach()
    }

    /// A column that can hold `min` to `max`. Its spare range lies above them, or below.
    fn spanning(min: u32, max: u32, goes_up: bool) -> Column {
        let bits = u32::BITS - (max - min).leading_zeros();
        let width = bits.div_ceil(8) as u8;
        let column = Column { base: min, width };
        if goes_up {
            column
        } else {
            Column {
                base: max.wrapping_sub(column.reach()),
                width,
            }
        }
    }
}

impl<const N: usize> Rows<N> {
    pub(super) fn new() -> Rows<N> {
        Rows {
            columns: [Column { base: 0, width: 0 }; N],
            stride: 0,
            len: 0,
            bytes: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The row at `index`, which must exist.
    pub(super) fn get(&self, index: usize) -> [u32; N] {
        let (mut row, mut at) = ([0; N], index * self.stride);
        for (number, column) in row.iter_mut().zip(&self.columns) {
            *number = column.decode(&self.bytes[at..]);
            at += usize::from(column.width);
        }
        row
    }

    /// All rows in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = [u32; N]> {
        (0..self.len).map(|index| self.get(index))
    }

    fn key(&self, index: usize) -> u32 {
        self.columns[0].decode(&self.bytes[index * self.stride..])
    }

    /// Where the row with this key is, or should be.
    pub(super) fn find(&self, key: u32) -> Result<usize, usize> {
        let Some(end) = self.len.checked_sub(1) else {
            return Err(0);
        };
        let last = self.key(end);
        if key > last {
            return Err(self.len);
        }
        let first = self.key(0);
        if key < first {
            return Err(0);
        }
        // Keys are all different: the row is at most this far from the ends, so if no key is left
        // out there is only one possible place.
        let mut from = end.saturating_sub((last - key) as usize);
        let mut until = end.min((key - first) as usize) + 1;
        while from < until {
            let middle = usize::midpoint(from, until);
            match self.key(middle).cmp(&key) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => until = middle,
            }
        }
        Err(from)
    }

    /// Insert a row at `index`, which [`Rows::find`] returned.
    pub(super) fn insert(&mut self, index: usize, row: &[u32; N]) {
        self.make_hold(row);
        if self.bytes.capacity() - self.bytes.len() < self.stride {
            // Less than the doubling that a vector would use.
            let more = (self.len / 4).max(4);
            self.bytes.reserve_exact(more * self.stride);
        }
        push(&self.columns, row, &mut self.bytes);
        self.bytes[index * self.stride..].rotate_right(self.stride);
        self.len += 1;
    }

    /// Replace the row at `index`, which has the same key, with `row`.
    pub(super) fn set(&mut self, index: usize, row: &[u32; N]) {
        self.make_hold(row);
        let at = index * self.stride;
        let (words, stride) = encode(&self.columns, row);
        self.bytes[at..at + stride].copy_from_slice(&words.as_flattened()[..stride]);
    }

    /// Remove the row at `index`, which must exist.
    pub(super) fn remove(&mut self, index: usize) {
        let at = index * self.stride;
        self.bytes.drain(at..at + self.stride);
        self.len -= 1;
        if self.bytes.len() + self.bytes.len() / 2 < self.bytes.capacity() {
            self.shrink();
        }
    }

    /// Free the spare memory: nothing will be added for some time.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Remove the rows from `index` on, and return them.
    pub(super) fn split_off(&mut self, index: usize) -> Vec<[u32; N]> {
        let upper = (index..self.len).map(|index| self.get(index)).collect();
        self.bytes.truncate(index * self.stride);
        self.len = index;
        self.shrink();
        upper
    }

    /// Widen the columns that cannot hold their number of `row`.
    fn make_hold(&mut self, row: &[u32; N]) {
        let holds = |(column, number): (&Column, &u32)| column.holds(*number);
        if self.columns.iter().zip(row).all(holds) {
            return;
        }
        let columns = std::array::from_fn(|index| {
            if self.columns[index].holds(row[index]) {
                self.columns[index]
            } else {
                self.stretched(index, row[index])
            }
        });
        let stride = stride(&columns);
        let mut bytes = Vec::with_capacity(self.len * stride);
        for row in self.iter() {
            push(&columns, &row, &mut bytes);
        }
        (self.columns, self.stride, self.bytes) = (columns, stride, bytes);
    }

    /// A column as narrow as its numbers and this one allow.
    fn stretched(&self, index: usize, number: u32) -> Column {
        let span =
            |(min, max): (u32, u32), row: [u32; N]| (min.min(row[index]), max.max(row[index]));
        let (min, max) = self.iter().fold((number, number), span);
        Column::spanning(min, max, number == max)
    }

    /// Bytes of heap memory.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

fn stride<const N: usize>(columns: &[Column; N]) -> usize {
    columns.iter().map(|column| usize::from(column.width)).sum()
}

/// The bytes of a row, and their number.
fn encode<const N: usize>(columns: &[Column; N], row: &[u32; N]) -> ([[u8; 4]; N], usize) {
    let mut words = [[0; 4]; N];
    let bytes = words.as_flattened_mut();
    let mut at = 0;
    for (column, number) in columns.iter().zip(row) {
        // Writes four bytes whatever the width: the excess bytes are zeros, and belong to the next
        // column.
        let distance = number.wrapping_sub(column.base);
        bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        at += usize::from(column.width);
    }
    (words, at)
}

fn push<const N: usize>(columns: &[Column; N], row: &[u32; N], bytes: &mut Vec<u8>) {
    let (words, stride) = encode(columns, row);
    bytes.extend_from_slice(&words.as_flattened()[..stride]);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::Random;
    use crate::storage::format::samples::seeds;

    /// A number from the whole range, or near other numbers.
    fn number(random: &mut Random) -> u32 {
        let magnitude = random.below(33);
        let number = (random.next() & ((1_u64 << magnitude) - 1)) as u32;
        match random.below(3) {
            0 => u32::MAX - number,
            1 => 1_000_000_u32.wrapping_add(number),
            _ => number,
        }
    }

    #[test]
    fn any_numbers_come_back_as_they_were() {
        for seed in seeds(300) {
            let mut random = Random::new(seed);
            let (mut rows, mut tree) = (Rows::<3>::new(), BTreeMap::new());
            // Only a few kinds of numbers, so that columns of all widths last long.
            let kinds: [u32; 4] = std::array::from_fn(|_| number(&mut random));
            for _ in 0..200 {
                let near = random.below(300) as u32;
                let key = match random.below(8) {
                    0 => number(&mut random),
                    _ => kinds[0].wrapping_add(near),
                };
                let value = match random.below(20) {
                    0 => number(&mut random),
                    _ => kinds[1 + random.below(3)],
                };
                let row = [key, value, kinds[2].wrapping_sub(near)];
                match rows.find(key) {
                    Ok(index) if random.below(2) == 0 => {
                        assert_eq!(rows.get(index), tree[&key], "seed {seed}");
                        rows.remove(index);
                        tree.remove(&key);
                    }
                    Ok(index) => {
                        rows.set(index, &row);
                        tree.insert(key, row);
                    }
                    Err(index) => {
                        rows.insert(index, &row);
                        assert!(tree.insert(key, row).is_none(), "seed {seed}");
                    }
                }
                assert!(rows.iter().eq(tree.values().copied()), "seed {seed}");
                assert_eq!(rows.len(), tree.len(), "seed {seed}");
            }
            let at = random.below(rows.len() + 1);
            let upper = rows.split_off(at);
            assert!(
                rows.iter().chain(upper).eq(tree.into_values()),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn a_column_is_as_narrow_as_its_numbers_allow() {
        for (others, last, width) in [
            ([9, 9, 9], 9, 0),
            ([0, 0, 0], 255, 1),
            ([0, 0, 0], 256, 2),
            ([u32::MAX, u32::MAX, u32::MAX - 100], u32::MAX - 255, 1),
            ([70_000, 10_000, 20_000], 5_000, 2),
            ([0, 1 << 23, 9], (1 << 24) - 1, 3),
            ([5, 5, 5], u32::MAX, 4),
            ([u32::MAX, 5, 5], 0, 4),
        ] {
            let mut rows = Rows::<2>::new();
            for (key, number) in others.into_iter().chain([last]).enumerate() {
                rows.insert(key, &[key as u32, number]);
            }
            let numbers = rows.iter().map(|row| row[1]);
            assert!(numbers.eq(others.into_iter().chain([last])));
            assert_eq!(rows.columns[1].width, width, "{others:?} {last}");
        }
    }

    #[test]
    fn numbers_that_go_up_or_down_steadily_have_the_table_written_again_a_few_times_only() {
        for step in [900, -900_i32] {
            let (mut rows, mut rebuilds) = (Rows::<2>::new(), 0);
            for index in 0..256_u32 {
                let columns = rows.columns;
                let number = 1_000_000_u32.wrapping_add_signed(index as i32 * step);
                rows.insert(index as usize, &[index, number]);
                rebuilds += u32::from(rows.columns != columns);
            }
            assert!(rebuilds <= 4, "{rebuilds} times");
        }
    }

    #[test]
    fn spare_memory_is_at_most_half_of_what_is_needed() {
        let mut rows = Rows::<2>::new();
        let is_lean = |rows: &Rows<2>| {
            let needed = rows.len() * rows.stride;
            rows.heap_bytes() <= needed + (needed / 2).max(4 * rows.stride)
        };
        for key in 0..256 {
            rows.insert(key as usize, &[key, key * 1000]);
            assert!(is_lean(&rows), "{key} rows");
        }
        for left in (0..256).rev() {
            rows.remove(left / 2);
            assert!(is_lean(&rows), "{left} rows");
        }
    }
}
