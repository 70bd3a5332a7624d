//! The table from job ids to jobs: pages of handles, indexed by the id.
//!
//! Ids are given out in sequence, so neighbours share a page and nothing is ever hashed or moved: a
//! page of 64 handles belongs to a block of 64 pages, and the blocks are in a B-tree. A page and a
//! block are freed with their last id.
//!
//! If most jobs between the remaining ones are gone, or if a damaged log has scattered ids, a page
//! holds few ids and takes many bytes for each. When the table exceeds [`SIZE_MAX`] bytes per id,
//! the ids of such pages move, a few pages at a time, into a map of single ids, and stay there.
//!
//! A command asks for its job several times, so the table remembers which one it found last.

use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::handle::Handle;
use crate::types::JobId;

const PAGE_BITS: u32 = 6;
const PAGE_LEN: usize = 1 << PAGE_BITS;
const BLOCK_BITS: u32 = 6;
const BLOCK_LEN: usize = 1 << BLOCK_BITS;

/// A page with fewer ids than this takes more memory for each of them than a map would.
const SPARSE_LEN: u32 = 16;
/// The table gives up sparse pages when it exceeds this size per id on average, bytes.
const SIZE_MAX: usize = 28;
const SLACK: usize = 64 << 10;
/// Pages that are given up at a time.
const PAGES_A_TIME: usize = 2;
/// Bytes of a single id in the map.
const LONE_SIZE: usize = 26;

struct Page<K> {
    handles: [Option<Handle<K>>; PAGE_LEN],
    used: u32,
}

struct Block<K> {
    pages: Box<[Option<Box<Page<K>>>; BLOCK_LEN]>,
    used: u32,
}

/// The position of an id in the table.
struct Path {
    block: u64,
    page: usize,
    slot: usize,
}

impl Path {
    fn of(id: JobId) -> Path {
        Path {
            block: id.0 >> (PAGE_BITS + BLOCK_BITS),
            page: (id.0 >> PAGE_BITS) as usize & (BLOCK_LEN - 1),
            slot: id.0 as usize & (PAGE_LEN - 1),
        }
    }
}

/// The number of the page of an id.
fn page_number(id: JobId) -> u64 {
    id.0 >> PAGE_BITS
}

/// The table.
pub(super) struct IdTable<K> {
    blocks: BTreeMap<u64, Block<K>>,
    pages: usize,
    len: usize,
    /// The pages with fewer than [`SPARSE_LEN`] ids.
    sparse: BTreeSet<u64>,
    /// The ids that are in no page.
    lone: BTreeMap<JobId, Handle<K>>,
    /// The page and the block that became empty last: a queue that is often empty would otherwise
    /// allocate them for every job.
    spare_page: Option<Box<Page<K>>>,
    spare_block: Option<Block<K>>,
    /// What was found last, until it changes.
    last_found: Cell<Option<(JobId, Handle<K>)>>,
}

impl<K> IdTable<K> {
    pub(super) fn new() -> IdTable<K> {
        IdTable {
            blocks: BTreeMap::new(),
            pages: 0,
            len: 0,
            sparse: BTreeSet::new(),
            lone: BTreeMap::new(),
            spare_page: None,
            spare_block: None,
            last_found: Cell::new(None),
        }
    }

    /// The job with this id.
    #[inline]
    pub(super) fn get(&self, id: JobId) -> Option<Handle<K>> {
        match self.last_found.get() {
            Some((found, handle)) if found == id => Some(handle),
            _ => self.look_up(id),
        }
    }

    #[inline(never)]
    fn look_up(&self, id: JobId) -> Option<Handle<K>> {
        let found = match self.get_paged(id) {
            Some(found) => found,
            None if self.lone.is_empty() => return None,
            None => self.lone.get(&id).copied()?,
        };
        self.last_found.set(Some((id, found)));
        Some(found)
    }

    /// The least id that is there. Looks at two pages of pages at most.
    pub(super) fn first(&self) -> Option<JobId> {
        let paged = self.blocks.iter().next().and_then(|(number, block)| {
            let mut pages = block.pages.iter().enumerate();
            let (page, found) = pages.find_map(|(at, page)| Some((at as u64, page.as_ref()?)))?;
            let slot = found.handles.iter().position(Option::is_some)? as u64;
            Some(JobId((((number << BLOCK_BITS) | page) << PAGE_BITS) | slot))
        });
        let lone = self.lone.first_key_value().map(|(id, _)| *id);
        paged.into_iter().chain(lone).min()
    }

    /// The ids that are there: those in pages in order, behind them the single ones in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = JobId> {
        let pages = self.blocks.iter().flat_map(|(block, it)| {
            let pages = it.pages.iter().enumerate();
            pages.filter_map(move |(at, page)| {
                Some((block << BLOCK_BITS | at as u64, page.as_deref()?))
            })
        });
        let paged = pages.flat_map(|(number, page)| {
            let slots = page.handles.iter().enumerate();
            slots.filter_map(move |(slot, handle)| {
                handle.map(|_| JobId(number << PAGE_BITS | slot as u64))
            })
        });
        paged.chain(self.lone.keys().copied())
    }

    fn get_paged(&self, id: JobId) -> Option<Handle<K>> {
        let path = Path::of(id);
        self.blocks.get(&path.block)?.pages[path.page]
            .as_ref()?
            .handles[path.slot]
    }

    /// Enters a job. `false`, and nothing is changed, if the id is taken.
    #[must_use]
    #[inline]
    pub(super) fn insert(&mut self, id: JobId, job: Handle<K>) -> bool {
        if !self.lone.is_empty() && self.lone.contains_key(&id) {
            return false;
        }
        let path = Path::of(id);
        let block = match self.blocks.entry(path.block) {
            Entry::Occupied(block) => block.into_mut(),
            Entry::Vacant(place) => {
                place.insert(self.spare_block.take().unwrap_or_else(Block::new))
            }
        };
        let page = block.pages[path.page].get_or_insert_with(|| {
            block.used += 1;
            self.pages += 1;
            self.sparse.insert(page_number(id));
            self.spare_page.take().unwrap_or_else(Page::new)
        });
        if page.handles[path.slot].is_some() {
            return false;
        }
        page.handles[path.slot] = Some(job);
        page.used += 1;
        let is_new = page.used == 1;
        if page.used == SPARSE_LEN {
            self.sparse.remove(&page_number(id));
        }
        self.len += 1;
        if is_new {
            self.shrink();
        }
        true
    }

    /// The job with this id, which is there, has another handle now.
    pub(super) fn replace(&mut self, id: JobId, job: Handle<K>) {
        self.last_found.set(None);
        let path = Path::of(id);
        let block = self.blocks.get_mut(&path.block);
        let page = block.and_then(|block| block.pages[path.page].as_mut());
        let paged = page.and_then(|page| page.handles[path.slot].as_mut());
        match paged.or_else(|| self.lone.get_mut(&id)) {
            Some(handle) => *handle = job,
            None => panic!("job {id} has moved, and is not there"),
        }
    }

    /// Removes a job; does nothing if it is not there.
    pub(super) fn remove(&mut self, id: JobId) {
        self.last_found.set(None);
        if self.remove_paged(id).is_some() || self.lone.remove(&id).is_some() {
            self.len -= 1;
            self.shrink();
        }
    }

    fn remove_paged(&mut self, id: JobId) -> Option<Handle<K>> {
        let path = Path::of(id);
        let block = self.blocks.get_mut(&path.block)?;
        let page = block.pages[path.page].as_mut()?;
        let job = page.handles[path.slot].take()?;
        page.used -= 1;
        match page.used {
            0 => self.drop_page(&path),
            left if left + 1 == SPARSE_LEN => _ = self.sparse.insert(page_number(id)),
            _ => {}
        }
        Some(job)
    }

    /// Frees a page without ids, and its block if that was the last page.
    fn drop_page(&mut self, path: &Path) {
        self.sparse
            .remove(&(path.block << BLOCK_BITS | path.page as u64));
        let Some(block) = self.blocks.get_mut(&path.block) else {
            return;
        };
        self.spare_page = block.pages[path.page].take();
        self.pages -= 1;
        block.used -= 1;
        if block.used == 0 {
            self.spare_block = self.blocks.remove(&path.block);
        }
    }

    /// Gives up some sparse pages if the table is too large for its ids.
    fn shrink(&mut self) {
        for _ in 0..PAGES_A_TIME {
            if self.memory() <= self.len * SIZE_MAX + SLACK {
                return;
            }
            let Some(number) = self.sparse.first().copied() else {
                return;
            };
            self.give_up(number);
        }
    }

    fn give_up(&mut self, number: u64) {
        let first = number << PAGE_BITS;
        let path = Path::of(JobId(first));
        let page = self.blocks.get_mut(&path.block);
        if let Some(page) = page.and_then(|block| block.pages[path.page].as_mut()) {
            for (id, handle) in (first..).zip(&mut page.handles) {
                if let Some(job) = handle.take() {
                    self.lone.insert(JobId(id), job);
                }
            }
            page.used = 0;
        }
        self.drop_page(&path);
    }

    /// The memory of the table, in bytes, without spare pages.
    pub(super) fn memory(&self) -> usize {
        let block =
            size_of::<[Option<Box<Page<K>>>; BLOCK_LEN]>() + 2 * size_of::<(u64, Block<K>)>();
        let sparse = self.sparse.len() * 2 * size_of::<u64>();
        let lone = self.lone.len() * LONE_SIZE;
        self.pages * size_of::<Page<K>>() + self.blocks.len() * block + sparse + lone
    }
}

impl<K> Page<K> {
    fn new() -> Box<Page<K>> {
        Box::new(Page {
            handles: [None; PAGE_LEN],
            used: 0,
        })
    }
}

impl<K> Block<K> {
    fn new() -> Block<K> {
        Block {
            pages: Box::new([const { None }; BLOCK_LEN]),
            used: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::handle::{JobHandle, OfJob};
    use super::*;

    fn handle(index: u64) -> JobHandle {
        JobHandle::from_index(index as u32).unwrap()
    }

    #[test]
    fn every_id_leads_to_its_own_job() {
        let mut table = IdTable::new();
        let ids = (1..100_000).chain([1 << 40, u64::MAX - 1, u64::MAX]);
        ids.clone()
            .for_each(|id| assert!(table.insert(JobId(id), handle(id % 1_000_003))));
        for id in ids.clone() {
            assert_eq!(table.get(JobId(id)), Some(handle(id % 1_000_003)));
        }
        let mut listed: Vec<u64> = table.iter().map(|id| id.0).collect();
        listed.sort_unstable();
        assert!(listed.into_iter().eq(ids));
        assert_eq!(table.get(JobId(100_000)), None);
        assert_eq!(table.get(JobId(1 << 50)), None);
    }

    #[test]
    fn what_was_found_last_is_found_no_more_when_it_has_moved_or_is_gone() {
        for stride in [1, 1 << 20] {
            let (mut table, ids) = strided(1, stride);
            let id = JobId(ids[40_000]);
            assert_eq!(table.get(id), Some(handle(id.0 % 1_000_003)));
            table.replace(id, handle(7));
            assert_eq!(table.get(id), Some(handle(7)));
            table.remove(id);
            assert_eq!(table.get(id), None);
            assert!(table.insert(id, handle(8)));
            assert_eq!(table.get(id), Some(handle(8)));
        }
    }

    #[test]
    fn a_table_without_ids_takes_no_memory() {
        let mut table = IdTable::new();
        (1..100_000).for_each(|id| assert!(table.insert(JobId(id), handle(id))));
        assert!(table.memory() < 100_000 * 5, "{}", table.memory());
        assert!(table.lone.is_empty());
        (1..100_000).rev().for_each(|id| table.remove(JobId(id)));
        table.remove(JobId(5));
        assert_eq!(table.memory(), 0);
    }

    /// A table with only some ids per page, and those ids.
    fn strided(first: u64, stride: u64) -> (IdTable<OfJob>, Vec<u64>) {
        let mut table = IdTable::new();
        let ids: Vec<_> = (0..50_000).map(|n| first + n * stride).collect();
        for id in &ids {
            assert!(table.insert(JobId(*id), handle(id % 1_000_003)));
        }
        (table, ids)
    }

    #[test]
    fn f27_an_id_takes_little_memory_wherever_the_ids_are() {
        for stride in [1, 2, 3, 4, 5, 7, 63, 64, 65, 4095, 4096, 40_000, 1 << 40] {
            let (mut table, ids) = strided(1, stride);
            let each = (table.memory() - SLACK.min(table.memory())) / ids.len();
            assert!(each <= 40, "{each} bytes with stride {stride}");
            for id in &ids {
                assert_eq!(table.get(JobId(*id)), Some(handle(id % 1_000_003)));
                assert_eq!(table.get(JobId(id + stride / 2)).is_some(), stride == 1);
            }
            for id in &ids {
                assert_eq!(table.first(), Some(JobId(*id)));
                table.remove(JobId(*id));
            }
            assert_eq!((table.first(), table.memory()), (None, 0));
        }
    }

    #[test]
    fn f27_so_it_does_where_most_ids_are_gone() {
        for keep in [3, 5, 17, 64, 100, 1000, 5000] {
            let (mut table, ids) = strided(1, 1);
            let left = ids.iter().filter(|id| *id % keep == 0).count();
            let gone = ids.iter().filter(|id| *id % keep != 0);
            gone.for_each(|id| table.remove(JobId(*id)));
            let bound = 40 * left + SLACK;
            assert!(
                table.memory() <= bound,
                "{} with {left} left",
                table.memory()
            );
            for id in ids {
                let expected = (id % keep == 0).then(|| handle(id % 1_000_003));
                assert_eq!(table.get(JobId(id)), expected);
            }
        }
    }

    #[test]
    fn a_second_job_with_an_id_is_not_entered() {
        for stride in [1, 40_000] {
            let (mut table, _) = strided(40_000, stride);
            let before = table.get(JobId(40_000));
            assert!(!table.insert(JobId(40_000), handle(2)));
            assert_eq!(table.get(JobId(40_000)), before);
        }
    }
}
