//! Which files are rewritten next, if any: a decision from numbers alone.
//!
//! In this order: drop files without live records; rewrite a file whose damaged records are dead;
//! rewrite the file with the largest share of garbage; merge small neighbours. Without any of
//! these, the open segment may be left early.

use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::log::files::Sealed;

/// Compact when garbage exceeds this percentage of the sealed bytes. Compaction then copies at most
/// 65/35 of what it frees: on average no byte is written three times, and the sealed files stay
/// below twice their live bytes.
const GARBAGE_PERCENT: u64 = 35;
/// The loop waits for the copying when garbage exceeds this percentage.
const CONGESTED_PERCENT: u64 = 50;
/// When room is short, a file is compacted from this share of garbage on, in thousandths. The less
/// room is left, the smaller a share is enough: going on is worth the extra copying.
const SHORT_SHARE: u64 = 250;
const SCARCE_SHARE: u64 = 125;
/// On a full disk the open segment is left early when its garbage reaches this share, in
/// thousandths.
const LEAVE_SHARE: u64 = 250;
/// Files that are merged or dropped at once at most: the record of it must stay small.
const MERGED_MAX: usize = 64;
/// Files smaller than a segment divided by this are merged with neighbours like them …
const SMALL_DIVISOR: u32 = 4;
/// … when this number of them are neighbours.
const SMALL_RUN: usize = 4;
/// Bytes that a rewritten file needs in addition to its live bytes.
const REWRITE_OVERHEAD: u64 = 4096;
/// Most file systems allocate space in blocks of this size.
pub(crate) const BLOCK: u64 = 4096;

/// How urgently room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Not needed: the aim is to keep the log small.
    None,
    /// Puts are refused, or soon will be.
    Short,
    /// The allowance is being used.
    Scarce,
    /// Half of the allowance is gone: choose anything that frees a block.
    Any,
}

/// Figures of a file that a plan needs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileStat {
    pub(crate) handle: u32,
    /// Bytes up to the end of its last frame.
    pub(crate) size: u32,
    /// Bytes that rewriting it copies.
    pub(crate) live: u64,
    /// Bytes that rewriting it saves.
    pub(crate) garbage: u64,
    /// Bytes of deletes in other files that are no longer needed once this file is rewritten.
    pub(crate) pinned: u64,
    /// It is being written.
    pub(crate) is_open: bool,
    /// It was sealed just now: its live records may be about to be deleted.
    pub(crate) is_settling: bool,
    /// It could not be rewritten.
    pub(crate) has_failed: bool,
    /// It has damaged records, and all of them are dead.
    pub(crate) is_mendable: bool,
}

impl FileStat {
    /// Bytes that the disk gets back.
    fn saved(&self) -> u64 {
        blocks(self.size.into()).saturating_sub(blocks(rewritten_size(self.live)))
    }
}

/// The available space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space {
    pub(crate) need: Need,
    /// Bytes set aside for the copy.
    pub(crate) room: u32,
    /// True if the disk may have more.
    pub(crate) can_grow: bool,
    /// Bytes that a segment should have.
    pub(crate) segment_size: u32,
    /// Bytes that can be written before compaction has to free anything.
    pub(crate) allowance: u64,
    /// The sums over all files except the open one.
    pub(crate) sealed: Sealed,
}

impl Space {
    fn has_room_for(&self, live: u64) -> bool {
        rewritten_size(live) <= u64::from(self.room)
    }

    /// True if garbage grows faster than it is freed.
    pub(crate) fn is_congested(&self) -> bool {
        let Sealed { garbage, size, .. } = self.sealed;
        let slack = u64::from(self.segment_size) / 2;
        garbage * 100 > size * CONGESTED_PERCENT + slack * 100 || self.need == Need::Any
    }

    fn is_much_garbage(&self) -> bool {
        let dead = self.sealed.garbage + self.sealed.tombstones;
        let slack = u64::from(self.segment_size) / 8;
        dead * 100 > self.sealed.size * GARBAGE_PERCENT + slack * 100
    }
}

/// The work to do; files are given by their handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Drop these files: they have no live records.
    Drop(Vec<u32>),
    /// Rewrite these files, which are neighbours.
    Rewrite(Vec<u32>),
    /// Rewrite this file after the room for the copy was made this large. If that fails, plan
    /// again.
    Grow(u32, u32),
    /// Continue in the next segment: nothing else makes the garbage in the open one reclaimable.
    Seal,
}

/// The most useful thing to do with `files`, which are in the order of history.
pub(crate) fn plan(files: &[FileStat], space: &Space) -> Option<Plan> {
    if space.sealed.dead > 0 {
        let dead = files.iter().filter(|file| !file.is_open && file.live == 0);
        return Some(Plan::Drop(
            dead.take(MERGED_MAX).map(|file| file.handle).collect(),
        ));
    }
    if let Some(file) = mendable(files, space).or_else(|| most_garbage(files, space)) {
        return Some(if space.has_room_for(file.live) {
            Plan::Rewrite(vec![file.handle])
        } else {
            Plan::Grow(file.handle, room_for(file.live))
        });
    }
    let open = files.iter().find(|file| file.is_open);
    let leaves = || open.is_some_and(|open| is_worth_leaving(open, space));
    small_neighbours(files, space)
        .map(Plan::Rewrite)
        .or_else(|| leaves().then_some(Plan::Seal))
}

fn mendable<'f>(files: &'f [FileStat], space: &Space) -> Option<&'f FileStat> {
    let mut mendable = files
        .iter()
        .filter(|file| file.is_mendable && !file.is_open);
    mendable.find(|file| space.can_grow || space.has_room_for(file.live))
}

/// The file with the largest share of garbage, counting deletes in other files that are no longer
/// needed once it is rewritten. The first of several.
fn most_garbage<'f>(files: &'f [FileStat], space: &Space) -> Option<&'f FileStat> {
    let (share_min, is_for_room) = match space.need {
        _ if space.is_much_garbage() => (1, false),
        Need::None => return None,
        Need::Short => (SHORT_SHARE, true),
        Need::Scarce => (SCARCE_SHARE, true),
        Need::Any => (0, true),
    };
    let share = |file: &FileStat| {
        let pinned = if is_for_room { 0 } else { file.pinned };
        (file.garbage + pinned) * 1000 / u64::from(file.size).max(1)
    };
    let is_worth_it = |file: &&FileStat| {
        let is_usable = !(file.is_open || file.is_settling || file.has_failed);
        let can_be_had = space.can_grow || space.has_room_for(file.live);
        is_usable && can_be_had && share(file) >= share_min && (!is_for_room || file.saved() > 0)
    };
    let worth_it = files.iter().rev().filter(is_worth_it);
    worth_it.max_by_key(|file| share(file))
}

/// Small neighbours that fit into one file.
fn small_neighbours(files: &[FileStat], space: &Space) -> Option<Vec<u32>> {
    let room = u64::from(space.room.min(space.segment_size));
    let (mut run, mut live) = (Vec::new(), 0);
    for file in files {
        let is_small = file.size <= space.segment_size / SMALL_DIVISOR;
        let is_usable = is_small && !file.is_open && !file.has_failed;
        if is_usable && run.len() < MERGED_MAX && rewritten_size(live + file.live) <= room {
            run.push(file.handle);
            live += file.live;
        } else if run.len() >= SMALL_RUN {
            break;
        } else {
            run.clear();
            live = 0;
        }
    }
    (run.len() >= SMALL_RUN).then_some(run)
}

/// True if the open segment should be left: on a full disk when much of it is garbage, or when it
/// was made for a job larger than a segment.
fn is_worth_leaving(open: &FileStat, space: &Space) -> bool {
    let size = u64::from(open.size);
    let is_large = open.size > space.segment_size && open.garbage >= size / 2;
    let is_worth_it = match space.need {
        Need::None => false,
        Need::Short | Need::Scarce => open.garbage * 1000 >= size * LEAVE_SHARE,
        Need::Any => true,
    };
    let least = u64::from(SEGMENT_SIZE_MIN / 8).min(space.allowance / 4);
    is_large || is_worth_it && open.saved() >= least
}

/// Bytes that a file with `live` live bytes takes after it is rewritten.
pub(crate) fn rewritten_size(live: u64) -> u64 {
    live + live / 512 + REWRITE_OVERHEAD
}

/// Bytes that a file of `size` bytes takes on the disk.
pub(crate) fn blocks(size: u64) -> u64 {
    size.next_multiple_of(BLOCK)
}

/// Bytes to set aside for rewriting `live` live bytes.
pub(crate) fn room_for(live: u64) -> u32 {
    u32::try_from(blocks(rewritten_size(live))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u32 = 1 << 20;
    const ALL: u64 = SEGMENT as u64;

    /// A sealed file that fills a segment, with `live` thousandths alive.
    fn file(handle: u32, live: u64) -> FileStat {
        let live = ALL * live / 1000;
        FileStat {
            handle,
            size: SEGMENT,
            live,
            garbage: ALL - live,
            ..FileStat::default()
        }
    }

    fn small(handle: u32) -> FileStat {
        let size = SEGMENT / 16;
        FileStat {
            size,
            live: size.into(),
            garbage: 0,
            ..file(handle, 0)
        }
    }

    fn open(live: u64) -> FileStat {
        let is_open = true;
        FileStat {
            is_open,
            ..file(99, live)
        }
    }

    /// The plan for `files` and an open segment, when the disk has only `room`.
    fn planned(files: &[FileStat], need: Need, room: u32) -> Option<Plan> {
        let mut sealed = Sealed::default();
        for file in files.iter().filter(|file| !file.is_open) {
            sealed.dead += u64::from(file.live == 0);
            sealed.size += u64::from(file.size);
            sealed.garbage += file.garbage;
        }
        plan(
            files,
            &Space {
                need,
                room,
                can_grow: true,
                segment_size: SEGMENT,
                allowance: ALL,
                sealed,
            },
        )
    }

    macro_rules! table {
        ($($what:literal: [$($file:expr),*], $need:ident, $room:expr => $plan:expr;)*) => {
            $(assert_eq!(planned(&[$($file),*], $need, $room), $plan, $what);)*
        };
    }

    #[test]
    fn what_is_done_with_which_files() {
        use Need::{Any, None as Nothing, Scarce, Short};
        use Plan::{Drop, Grow, Rewrite, Seal};
        let (has_failed, is_settling, is_mendable) = (true, true, true);
        let failed = |file| FileStat { has_failed, ..file };
        let settling = |file| FileStat {
            is_settling,
            ..file
        };
        let mendable = |file| FileStat {
            is_mendable,
            ..file
        };
        let pins = |file| FileStat {
            pinned: ALL,
            ..file
        };
        let (room, tight) = (SEGMENT, SEGMENT / 4);
        table! {
            "nothing": [], Any, room => None;
            "little garbage": [file(1, 700), file(2, 900)], Nothing, room => None;
            "much: the one with most, the first of two":
                [file(1, 500), file(2, 300), file(3, 300)], Nothing, room => Some(Rewrite(vec![2]));
            "not one that failed":
                [failed(file(1, 100)), file(2, 300)], Nothing, room => Some(Rewrite(vec![2]));
            "not the open one": [open(0), file(2, 300)], Nothing, room => Some(Rewrite(vec![2]));
            "not one that settles":
                [file(1, 500), settling(file(2, 100))], Nothing, room => Some(Rewrite(vec![1]));
            "deletes elsewhere count":
                [file(1, 300), pins(file(2, 600))], Nothing, room => Some(Rewrite(vec![2]));
            "but not for room":
                [file(1, 700), pins(file(2, 750))], Short, room => Some(Rewrite(vec![1]));
            "what needs more room grows it":
                [file(1, 300), file(2, 500)], Nothing, tight
                => Some(Grow(1, room_for(ALL * 3 / 10)));
            "dead ones first":
                [file(1, 0), mendable(file(2, 300)), file(3, 0)], Any, room
                => Some(Drop(vec![1, 3]));
            "an open one is not dead": [file(1, 900), open(0)], Nothing, room => None;
            "damage before garbage":
                [file(1, 100), mendable(file(2, 900))], Nothing, room => Some(Rewrite(vec![2]));
            "damage though it failed":
                [failed(mendable(file(1, 900)))], Nothing, room => Some(Rewrite(vec![1]));
            "short: a quarter": [file(1, 751), file(2, 749)], Short, room => Some(Rewrite(vec![2]));
            "short: not less": [file(1, 760)], Short, room => None;
            "scarce: an eighth": [file(1, 860)], Scarce, room => Some(Rewrite(vec![1]));
            "any: a block": [file(1, 980)], Any, room => Some(Rewrite(vec![1]));
            "any: not none": [file(1, 1000)], Any, room => None;
            "small neighbours":
                [small(1), small(2), small(3), small(4)], Nothing, room
                => Some(Rewrite(vec![1, 2, 3, 4]));
            "side by side":
                [small(1), small(2), small(3), file(4, 1000), small(5)], Nothing, room => None;
            "no more than there is room for":
                [small(1), small(2), small(3), small(4), small(5)], Nothing, tight + 8192
                => Some(Rewrite(vec![1, 2, 3, 4]));
            "the open one is left": [file(1, 1000), open(500)], Short, room => Some(Seal);
        }
    }

    #[test]
    fn where_the_room_cannot_grow_the_best_that_fits_is_taken() {
        let files = [file(1, 300), file(2, 100), file(3, 400)];
        let mut space = Space {
            need: Need::None,
            room: room_for(ALL / 5),
            can_grow: false,
            segment_size: SEGMENT,
            allowance: ALL,
            sealed: Sealed {
                size: 3 * ALL,
                garbage: 2 * ALL,
                ..Sealed::default()
            },
        };
        assert_eq!(plan(&files, &space), Some(Plan::Rewrite(vec![2])));
        space.room = 0;
        assert_eq!(plan(&files, &space), None);
    }

    #[test]
    fn no_more_files_are_dropped_or_merged_at_once_than_a_record_names() {
        let dead: Vec<FileStat> = (1..=100).map(|handle| file(handle, 0)).collect();
        let tiny = |handle| FileStat {
            size: SEGMENT / 256,
            live: 64,
            ..small(handle)
        };
        let tiny: Vec<FileStat> = (1..=100).map(tiny).collect();
        let first: Vec<u32> = (1..=MERGED_MAX as u32).collect();
        let planned = |files: &[FileStat]| planned(files, Need::None, SEGMENT);
        assert_eq!(planned(&dead), Some(Plan::Drop(first.clone())));
        assert_eq!(planned(&tiny), Some(Plan::Rewrite(first)));
    }

    /// It was made for a job larger than a segment, which is gone.
    #[test]
    fn a_large_open_segment_is_left_when_half_of_it_is_garbage() {
        let large = |garbage| FileStat {
            size: 4 * SEGMENT,
            garbage,
            ..open(0)
        };
        let planned = |garbage| planned(&[large(garbage)], Need::None, SEGMENT);
        assert_eq!(planned(2 * ALL), Some(Plan::Seal));
        assert_eq!(planned(2 * ALL - 1), None);
    }
}
