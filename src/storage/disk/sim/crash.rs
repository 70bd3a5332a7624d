//! The remains of a disk after a crash.
//!
//! The un-synced changes are cut into units; a crash decides for each unit whether it reached the
//! platter. Those that did are applied to the durable state in their order, each block as it was in
//! the page cache after its write: a block is in the state before, or after some write to it, never
//! a mixture below 512 bytes.

use super::content::{PAGE_SIZE, Page, pages};
use super::disk::{Disk, InodeId, NameChange};
use super::file::{FileNode, Unsynced};
use crate::random::Random;

/// The bytes that a disk writes as a whole or not at all.
const SECTOR_SIZE: u64 = 512;

/// A kind of crash, by its effect on unsynced changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// A power cut that loses all of it: only what is durable remains.
    DropUnsynced,
    /// The process dies and the system survives (`kill -9`): all of it is there, but still not
    /// synced, so a later power cut may still lose it.
    KeepAll,
    /// A power cut that keeps, drops or tears each change, as the seed decides: in units of 512
    /// bytes or 4 KiB, in any order; a file that grew may show zeros or stale bytes where content
    /// did not arrive.
    Random {
        /// Together with the seed of the disk it determines everything.
        seed: u64,
    },
    /// A power cut that keeps exactly the units whose bit is set in `kept`, bit 0 being the oldest.
    /// Units after the 64th are dropped. Where content did not arrive, there are zeros.
    Subset {
        /// The units to keep.
        kept: u64,
        /// Size of a unit.
        granularity: Granularity,
    },
}

/// The units in which un-synced changes reach the disk or do not. A change of names, and a change
/// of only a file's size, is always one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// A write is one unit, together with the file's growth.
    Write,
    /// Each page of 4 KiB that a write touched is a unit, and the growth is another.
    Page,
    /// The same with sectors of 512 bytes.
    Sector,
}

impl Granularity {
    fn block_size(self) -> u64 {
        match self {
            Granularity::Page => PAGE_SIZE,
            Granularity::Write | Granularity::Sector => SECTOR_SIZE,
        }
    }
}

/// A part of a page that reaches the platter as a whole: its page, range and image.
type Block<'a> = (u64, std::ops::Range<usize>, &'a Page);

/// A unit that reaches the platter as a whole or not at all.
enum Unit<'a> {
    Name(&'a NameChange),
    File {
        sequence: u64,
        inode: InodeId,
        blocks: Vec<Block<'a>>,
        size: Option<u64>,
    },
}

impl Unit<'_> {
    fn sequence(&self) -> u64 {
        match self {
            Unit::Name(change) => change.sequence,
            Unit::File { sequence, .. } => *sequence,
        }
    }
}

/// The number of units that a crash at this moment would decide about.
pub(super) fn unit_count(disk: &Disk, granularity: Granularity) -> usize {
    units(disk, granularity).len()
}

/// A new disk, as a crash at this moment may leave it. Nothing on it is open or locked.
pub(super) fn image(disk: &Disk, crash: Crash, seed: u64) -> Disk {
    let mut image = match crash {
        Crash::KeepAll => disk.clone(),
        Crash::DropUnsynced => rebuild(disk, Granularity::Write, |_, _| false),
        Crash::Subset { kept, granularity } => {
            rebuild(disk, granularity, |nth, _| nth < 64 && kept >> nth & 1 == 1)
        }
        Crash::Random { seed: crash } => random_image(disk, Random::new(seed).fork(crash)),
    };
    image.files.values_mut().for_each(|file| file.handles = 0);
    image.dirs.values_mut().for_each(|dir| dir.readers = None);
    image.reindex_or_remove();
    image
}

/// All units, oldest first.
fn units(disk: &Disk, granularity: Granularity) -> Vec<Unit<'_>> {
    let mut units: Vec<_> = disk.names.iter().map(Unit::Name).collect();
    for (inode, file) in &disk.files {
        for change in &file.unsynced {
            cut(*inode, change, granularity, &mut units);
        }
    }
    units.sort_by_key(Unit::sequence); // stable: the units of a write stay in order
    units
}

fn cut<'a>(
    inode: InodeId,
    change: &'a Unsynced,
    granularity: Granularity,
    units: &mut Vec<Unit<'a>>,
) {
    let sequence = change.sequence;
    let mut unit = |blocks, size| {
        units.push(Unit::File {
            sequence,
            inode,
            blocks,
            size,
        })
    };
    let blocks = blocks(change, granularity.block_size());
    if granularity == Granularity::Write {
        return unit(blocks, change.size);
    }
    if change.size.is_some() {
        unit(Vec::new(), change.size);
    }
    blocks.into_iter().for_each(|block| unit(vec![block], None));
}

/// The blocks that a write touched, each as a whole.
fn blocks(change: &Unsynced, block_size: u64) -> Vec<Block<'_>> {
    let first = change.range.start / block_size * block_size;
    let end = change.range.end.next_multiple_of(block_size);
    let mut blocks = Vec::new();
    for offset in (first..end).step_by(block_size as usize) {
        for (number, range) in pages(offset, block_size) {
            if let Ok(nth) = change.pages.binary_search_by_key(&number, |page| page.0) {
                blocks.push((number, range, &change.pages[nth].1));
            }
        }
    }
    blocks
}

/// The durable state plus the units that `keep` selects by index. Dropped units are lost without a
/// trace.
fn rebuild(
    disk: &Disk,
    granularity: Granularity,
    mut keep: impl FnMut(usize, &Unit<'_>) -> bool,
) -> Disk {
    let mut image = platter(disk);
    for (nth, unit) in units(disk, granularity).iter().enumerate() {
        if keep(nth, unit) {
            apply(&mut image, unit);
        }
    }
    restart(&mut image);
    image
}

/// Like `rebuild`, with everything else that is left to chance.
fn random_image(disk: &Disk, mut random: Random) -> Disk {
    let granularity = random.pick(&[Granularity::Page, Granularity::Sector]);
    let chance = random.pick(&[10, 50, 90]);
    let stale = random.percent(50).then(|| stale_pages(disk));
    let mut image = platter(disk);
    let (mut sequence, mut fate) = (0, chance);
    for unit in units(disk, granularity) {
        if unit.sequence() != sequence {
            // A whole change is kept, dropped, or torn.
            fate = random.pick(&[100, 0, chance, chance]);
            sequence = unit.sequence();
        }
        if random.percent(fate) {
            apply(&mut image, &unit);
        } else if let Some(stale) = &stale {
            litter(disk, &mut image, &unit, stale, &mut random);
        }
    }
    restart(&mut image);
    image
}

/// A copy of the disk for changes to the durable state.
fn platter(disk: &Disk) -> Disk {
    let mut image = disk.clone();
    image.names.clear();
    image
}

fn apply(image: &mut Disk, unit: &Unit<'_>) {
    match unit {
        Unit::Name(change) => change.apply(&mut image.dirs, |dir| &mut dir.durable),
        Unit::File {
            inode,
            blocks,
            size,
            ..
        } => {
            let Some(file) = image.files.get_mut(inode) else {
                return;
            };
            for (number, range, page) in blocks {
                file.durable.put_block(*number, range.clone(), page);
            }
            if let Some(size) = *size {
                // Bytes that arrived past the old end, before the size did, stay.
                file.durable.resize(size);
            }
        }
    }
}

/// Make the platter the only content.
fn restart(image: &mut Disk) {
    for dir in image.dirs.values_mut() {
        dir.visible = dir.durable.clone();
    }
    image.files.values_mut().for_each(|file| {
        let content = file.durable.clone();
        file.restart(content);
    });
}

/// Pages of removed files, which a growing file may get.
fn stale_pages(disk: &Disk) -> Vec<Page> {
    let removed = disk
        .removed
        .iter()
        .flat_map(|removed| removed.content.written_pages());
    removed.map(|page| Some(page.clone())).collect()
}

/// Where a file grew but its content did not arrive, leave old bytes of that place: of a removed
/// file, at the same place in a page, or noise.
fn litter(disk: &Disk, image: &mut Disk, unit: &Unit<'_>, stale: &[Page], random: &mut Random) {
    let Unit::File { inode, blocks, .. } = unit else {
        return;
    };
    let size = disk.files.get(inode).map_or(0, FileNode::durable_size);
    let Some(file) = image.files.get_mut(inode) else {
        return;
    };
    for (number, range, _) in blocks {
        let fresh = number * PAGE_SIZE + range.start as u64 >= size;
        if fresh && random.percent(50) {
            let garbage = if stale.is_empty() || random.percent(30) {
                let noise: [u8; PAGE_SIZE as usize] = std::array::from_fn(|_| random.next() as u8);
                Some(noise.into())
            } else {
                random.pick(stale)
            };
            file.durable.put_block(*number, range.clone(), &garbage);
        }
    }
}
