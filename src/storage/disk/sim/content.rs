//! The bytes of a simulated file, and the space that a file takes.
//!
//! [`Content`] keeps pages that are shared until they change: copying a disk costs one pointer per
//! page, and the page cache, the platter and the list of un-synced writes share a page as long as
//! it is the same. A page that was never written, or only with zeros, is not stored, so a file of 4
//! GiB of zeros costs nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::storage::disk::zeros::is_zeros;

pub(super) const PAGE_SIZE: u64 = 4096;

/// A page of the cache; `None` stands for zeros.
pub(super) type Page = Option<Arc<[u8; PAGE_SIZE as usize]>>;

/// The bytes of a file. Invariant, except for [`Content::put_block`]: all bytes past `size` are
/// zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE_SIZE as usize]>>,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        self.read(&mut bytes, 0);
        bytes
    }

    /// Returns the number of bytes read: fewer than requested at the end of the file.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let count = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        for (page, range) in pages(offset, count as u64) {
            let part = &mut buf[done..][..range.len()];
            match self.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[range.clone()]),
                None => part.fill(0),
            }
            done += range.len();
        }
        count
    }

    /// Write all of `bytes`, growing the file where needed.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        self.put_bytes(bytes, offset);
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    /// Cut the file, or extend it with zeros.
    pub(super) fn resize(&mut self, size: u64) {
        self.size = size;
        let inside = (size % PAGE_SIZE) as usize;
        self.pages.split_off(&size.div_ceil(PAGE_SIZE));
        if let Some(last) = self.pages.get_mut(&(size / PAGE_SIZE))
            && !is_zeros(&last[inside..])
        {
            Arc::make_mut(last)[inside..].fill(0);
        }
    }

    pub(super) fn page(&self, number: u64) -> Page {
        self.pages.get(&number).cloned()
    }

    /// Replace `range` of a page with the same range of `image`, without changing the size: the
    /// bytes may lie past it until it grows or is set again.
    pub(super) fn put_block(&mut self, number: u64, range: Range<usize>, image: &Page) {
        match image {
            Some(image) if range.len() == image.len() => {
                self.pages.insert(number, Arc::clone(image));
            }
            Some(image) => {
                self.put_bytes(
                    &image[range.clone()],
                    number * PAGE_SIZE + range.start as u64,
                );
            }
            None => {
                let zeros = [0; PAGE_SIZE as usize];
                let offset = number * PAGE_SIZE + range.start as u64;
                self.put_bytes(&zeros[range], offset);
            }
        }
    }

    /// Like `write`, without changing the size.
    pub(super) fn put_bytes(&mut self, mut bytes: &[u8], offset: u64) {
        for (page, range) in pages(offset, bytes.len() as u64) {
            let (part, rest) = bytes.split_at(range.len());
            bytes = rest;
            if !self.pages.contains_key(&page) && is_zeros(part) {
                continue;
            }
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; _]));
            Arc::make_mut(page)[range].copy_from_slice(part);
        }
    }

    /// The ranges of the pages that were written.
    pub(super) fn written(&self) -> impl Iterator<Item = Range<u64>> {
        let end = |number: u64| (number + 1).saturating_mul(PAGE_SIZE).min(self.size);
        self.pages
            .keys()
            .map(move |number| number * PAGE_SIZE..end(*number))
    }

    /// The pages that are not all zeros.
    pub(super) fn written_pages(&self) -> impl Iterator<Item = &Arc<[u8; PAGE_SIZE as usize]>> {
        self.pages.values()
    }
}

/// The blocks of at most `PAGE_SIZE` bytes that `len` bytes at `offset` consist of: the number of
/// a page and the range within it.
pub(super) fn pages(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len;
    let count = if len == 0 {
        0
    } else {
        end.div_ceil(PAGE_SIZE) - offset / PAGE_SIZE
    };
    (0..count).map(move |nth| {
        let number = offset / PAGE_SIZE + nth;
        let first = number * PAGE_SIZE;
        let range = offset.max(first) - first..end.min(first + PAGE_SIZE) - first;
        (number, range.start as usize..range.end as usize)
    })
}

/// The byte ranges of a file that have space on the disk: written or reserved. Ranges are keyed by
/// their start, do not overlap and do not touch.
#[derive(Debug, Clone, Default)]
pub(super) struct Extents(BTreeMap<u64, u64>);

impl Extents {
    /// Bytes that have space.
    pub(super) fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Bytes of the range that have no space yet.
    pub(super) fn missing(&self, range: Range<u64>) -> u64 {
        let covered: u64 = self
            .overlapping(&range)
            .map(|(start, end)| end - start)
            .sum();
        range.end - range.start - covered
    }

    /// The end of the longest piece from the start of `range` that needs at most `budget` bytes of
    /// new space.
    pub(super) fn reach(&self, range: Range<u64>, budget: u64) -> u64 {
        let mut end = range.start;
        let mut budget = budget;
        for (start, covered_to) in self.overlapping(&range) {
            if start - end > budget {
                break;
            }
            budget -= start - end;
            end = covered_to;
        }
        end.saturating_add(budget).min(range.end)
    }

    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let touching = |(start, end): (&u64, &u64)| {
            (*start <= range.end && *end >= range.start).then_some((*start, *end))
        };
        let touched: Vec<_> = self.0.range(..=range.end).filter_map(touching).collect();
        let start = touched
            .first()
            .map_or(range.start, |first| first.0.min(range.start));
        let end = touched
            .last()
            .map_or(range.end, |last| last.1.max(range.end));
        for (start, _) in touched {
            self.0.remove(&start);
        }
        self.0.insert(start, end);
    }

    pub(super) fn insert_all(&mut self, ranges: impl Iterator<Item = Range<u64>>) {
        ranges.for_each(|range| self.insert(range));
    }

    /// Give back everything from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        self.0.split_off(&size);
        if let Some(mut last) = self.0.last_entry() {
            let end = (*last.get()).min(size);
            last.insert(end);
        }
    }

    /// The ranges that have space, from `start` on.
    pub(super) fn from(&self, start: u64) -> impl Iterator<Item = Range<u64>> {
        let parts = self.0.iter();
        let parts = parts.map(move |(first, end)| (*first).max(start)..*end);
        parts.filter(|range| !range.is_empty())
    }

    /// The parts of `range` that have space, as start and end.
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let Range { start, end } = *range;
        self.0
            .range(..end)
            .map(move |(s, e)| ((*s).max(start), (*e).min(end)))
            .filter(|(s, e)| s < e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_a_plain_vector_would_hold() {
        let mut content = Content::default();
        let mut plain: Vec<u8> = Vec::new();
        for (offset, len) in [
            (0, 10),
            (4090, 12),
            (4096, 4096),
            (3, 9000),
            (20_000, 1),
            (8192, 1),
        ] {
            let bytes: Vec<u8> = (0..len).map(|nth| (nth * 7 + offset) as u8).collect();
            content.write(&bytes, offset as u64);
            plain.resize(plain.len().max(offset + len), 0);
            plain[offset..offset + len].copy_from_slice(&bytes);
            assert_eq!(content.bytes(), plain);
        }
        for size in [20_001, 12_289, 12_288, 4097, 100, 9000, 0, 10] {
            content.resize(size as u64);
            plain.resize(size, 0);
            assert_eq!(content.bytes(), plain, "after resize to {size}");
        }
    }

    #[test]
    fn bytes_that_were_cut_off_do_not_come_back_when_the_file_grows() {
        let mut content = Content::default();
        content.write(&[7; 5000], 0);
        content.resize(4100);
        content.resize(5000);
        assert_eq!(content.bytes()[4100..], [0; 900]);
    }

    #[test]
    fn zeros_take_no_memory() {
        let mut content = Content::default();
        content.write(&[0; 3 * PAGE_SIZE as usize], 0);
        content.resize(1 << 32);
        assert_eq!(content.written_pages().count(), 0);
    }

    #[test]
    fn a_copy_is_not_changed_by_a_write_to_the_original() {
        let mut content = Content::default();
        content.write(b"old", 0);
        let copy = content.clone();
        content.write(b"new", 0);
        assert_eq!(copy.bytes(), b"old");
    }

    #[test]
    fn pages_cover_exactly_the_bytes_asked_for() {
        let all: Vec<_> = pages(4000, 4300).collect();
        assert_eq!(all, [(0, 4000..4096), (1, 0..4096), (2, 0..108)]);
        assert_eq!(pages(4096, 0).count(), 0);
        assert_eq!(pages(4096, 4096).collect::<Vec<_>>(), [(1, 0..4096)]);
    }

    /// Every insert of a range below 8 into every set of bytes below 8.
    #[test]
    fn extents_agree_with_a_bit_set() {
        for set in 0u64..256 {
            for range in (0..8).flat_map(|start| (start..=8).map(move |end| start..end)) {
                let mut extents = Extents::default();
                (0..8)
                    .filter(|bit| set >> bit & 1 == 1)
                    .for_each(|bit| extents.insert(bit..bit + 1));
                let bits: u64 = range.clone().map(|bit| 1 << bit).sum();
                let missing = u64::from((bits & !set).count_ones());
                assert_eq!(extents.missing(range.clone()), missing);
                check_reach(&extents, set, range.clone());
                extents.insert(range.clone());
                assert_eq!(extents.len(), u64::from((set | bits).count_ones()));
                assert_eq!(extents.missing(range), 0);
                extents.truncate(4);
                assert_eq!(extents.len(), u64::from(((set | bits) & 15).count_ones()));
            }
        }
    }

    fn check_reach(extents: &Extents, set: u64, range: Range<u64>) {
        for budget in 0..8 {
            let need =
                |end: u64| (range.start..end).filter(|bit| set >> bit & 1 == 0).count() as u64;
            let expected = (range.start..=range.end)
                .rfind(|end| need(*end) <= budget)
                .unwrap();
            assert_eq!(
                extents.reach(range.clone(), budget),
                expected,
                "{extents:?} {range:?}"
            );
        }
    }
}
