//! Which job has an id: pages of handles, indexed by the id.
//!
//! Ids are handed out in sequence, so neighbours share a page and nothing is ever hashed or moved: a
//! page of 64 handles hangs in a block of 512 pages, and the blocks are in a B-tree, so that an id
//! from anywhere in the 64-bit range (a damaged log may bring one) costs one page and one block, not
//! a table up to it. A page and a block go when their last id goes.

use std::collections::BTreeMap;

use super::job::Job;
use super::slab::Handle;
use crate::types::JobId;

const PAGE_BITS: u32 = 6;
const PAGE_LEN: usize = 1 << PAGE_BITS;
const BLOCK_BITS: u32 = 9;
const BLOCK_LEN: usize = 1 << BLOCK_BITS;

struct Page {
    handles: [Option<Handle<Job>>; PAGE_LEN],
    used: u32,
}

struct Block {
    /// Always [`BLOCK_LEN`] long.
    pages: Vec<Option<Box<Page>>>,
    used: u32,
}

/// Where in the table an id is.
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

/// The table.
pub(super) struct IdTable {
    blocks: BTreeMap<u64, Block>,
    pages: usize,
    /// The page and the block that became empty last: a queue that is often empty would otherwise
    /// allocate them for every job.
    spare_page: Option<Box<Page>>,
    spare_block: Option<Block>,
}

impl IdTable {
    pub(super) fn new() -> IdTable {
        IdTable {
            blocks: BTreeMap::new(),
            pages: 0,
            spare_page: None,
            spare_block: None,
        }
    }

    /// The job with this id.
    pub(super) fn get(&self, id: JobId) -> Option<Handle<Job>> {
        let path = Path::of(id);
        self.blocks.get(&path.block)?.pages[path.page]
            .as_ref()?
            .handles[path.slot]
    }

    /// Enters a job.
    ///
    /// # Panics
    /// If the id is taken: one of the two jobs would be lost.
    pub(super) fn insert(&mut self, id: JobId, job: Handle<Job>) {
        let path = Path::of(id);
        let new_block = || self.spare_block.take().unwrap_or_else(Block::new);
        let block = self.blocks.entry(path.block).or_insert_with(new_block);
        let page = block.pages[path.page].get_or_insert_with(|| {
            block.used += 1;
            self.pages += 1;
            self.spare_page.take().unwrap_or_else(Page::new)
        });
        assert!(page.handles[path.slot].is_none(), "job {id} exists twice");
        page.handles[path.slot] = Some(job);
        page.used += 1;
    }

    /// Takes a job out; nothing happens if it is not there.
    pub(super) fn remove(&mut self, id: JobId) {
        let path = Path::of(id);
        let Some(block) = self.blocks.get_mut(&path.block) else {
            return;
        };
        let Some(page) = &mut block.pages[path.page] else {
            return;
        };
        if page.handles[path.slot].take().is_none() {
            return;
        }
        page.used -= 1;
        if page.used == 0 {
            self.spare_page = block.pages[path.page].take();
            block.used -= 1;
            self.pages -= 1;
        }
        if block.used == 0 {
            self.spare_block = self.blocks.remove(&path.block);
        }
    }

    /// The memory that it takes, in bytes, without the spares.
    pub(super) fn memory(&self) -> usize {
        let block = BLOCK_LEN * size_of::<Option<Box<Page>>>() + size_of::<(u64, Block)>();
        self.pages * size_of::<Page>() + self.blocks.len() * block
    }
}

impl Page {
    fn new() -> Box<Page> {
        Box::new(Page {
            handles: [None; PAGE_LEN],
            used: 0,
        })
    }
}

impl Block {
    fn new() -> Block {
        Block {
            pages: (0..BLOCK_LEN).map(|_| None).collect(),
            used: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(index: u64) -> Handle<Job> {
        Handle::from_index(index as u32).unwrap()
    }

    #[test]
    fn every_id_leads_to_its_own_job() {
        let mut table = IdTable::new();
        let ids = (1..100_000).chain([1 << 40, u64::MAX - 1, u64::MAX]);
        ids.clone()
            .for_each(|id| table.insert(JobId(id), handle(id % 1_000_003)));
        for id in ids {
            assert_eq!(table.get(JobId(id)), Some(handle(id % 1_000_003)));
        }
        assert_eq!(table.get(JobId(100_000)), None);
        assert_eq!(table.get(JobId(1 << 50)), None);
    }

    #[test]
    fn a_table_without_ids_takes_no_memory() {
        let mut table = IdTable::new();
        (1..100_000).for_each(|id| table.insert(JobId(id), handle(id)));
        assert!(table.memory() < 100_000 * 5, "{}", table.memory());
        (1..100_000).rev().for_each(|id| table.remove(JobId(id)));
        table.remove(JobId(5));
        assert_eq!(table.memory(), 0);
    }

    #[test]
    #[should_panic(expected = "job 3 exists twice")]
    fn a_second_job_with_the_same_id_is_a_bug() {
        let mut table = IdTable::new();
        table.insert(JobId(3), handle(1));
        table.insert(JobId(3), handle(2));
    }
}
