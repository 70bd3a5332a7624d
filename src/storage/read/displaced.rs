//! Bytes of a segment that lie in another file of the directory, at the same offset.
//!
//! A disk, a repair of its file system or a person may exchange blocks of two files, or write a
//! block of one over the other's. Checksums start from a segment's identity and the offset: a frame
//! or a record that checks under the identity of a segment is that segment's, in whatever file it
//! lies. So where a segment is damaged, each other file is tried in its place.
//!
//! A frame, and a record in it, may lie on both sides of the edge of such a block. Disks and file
//! systems move whole sectors, so at each fault the reader changes to the other file there, or at
//! one of the next sectors, if more can be read then. At least one record, or the header of a frame,
//! must lie in the other file as a whole, unless that file has a header that does not fit its name.
//!
//! Bounds: a log has [`STRETCHES_MAX`] damaged stretches for which other files are tried; together,
//! these tries read and checksum as many bytes as the log has, and [`BYTES_MIN`]. After that,
//! damage is damage: records are salvaged from the segment's own file alone. A stretch is examined
//! [`PART`] bytes at a time.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::storage::disk::ReadFile;
use crate::storage::disk::zeros::is_zeros;
use crate::storage::format::{
    FRAME_ALIGN, FRAME_MAGIC, FrameFault, FrameHeader, FrameKind, Record, Seed, check_frame,
    frame_header, put, records,
};

/// Blocks begin at multiples of this.
const SECTOR: usize = 512;
const PART: u32 = 8 << 20;
const STRETCHES_MAX: u32 = 1024;
const BYTES_MIN: u64 = 64 << 20;
/// Least cost of a try, bytes.
const TRY_COST: u64 = 4096;

/// A file in which bytes of another one may lie.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) name: String,
    /// Its header does not fit its name: something of another file was written there.
    pub(super) is_unfit: bool,
    pub(super) file: Arc<dyn ReadFile>,
}

/// The attempts that are left.
#[derive(Debug)]
pub(super) struct Effort {
    bytes: u64,
    stretches: u32,
}

impl Effort {
    /// For a log of this size, bytes.
    pub(super) fn for_log(bytes: u64) -> Effort {
        Effort {
            bytes: bytes.saturating_add(BYTES_MIN),
            stretches: STRETCHES_MAX,
        }
    }

    fn take(&mut self, bytes: usize) -> bool {
        let left = self.bytes.checked_sub((bytes as u64).max(TRY_COST));
        self.bytes = left.unwrap_or(0);
        left.is_some()
    }
}

/// A stretch of a segment, at the beginning of which no sound frame begins.
pub(super) struct Stretch<'f> {
    pub(super) file: &'f dyn ReadFile,
    pub(super) seed: Seed,
    pub(super) range: Range<u32>,
    /// The checksum of the frame before it, if that is known.
    pub(super) previous: Option<u32>,
}

/// Parts of a stretch that lie in another file.
#[derive(Debug)]
pub(super) struct Displaced {
    pub(super) name: String,
    pub(super) file: Arc<dyn ReadFile>,
    /// In order, and not empty.
    pub(super) ranges: Vec<Range<u32>>,
}

impl Displaced {
    /// The segment with these parts in their place.
    pub(super) fn in_place(&self, own: Arc<dyn ReadFile>) -> Arc<dyn ReadFile> {
        Arc::new(InPlace {
            own,
            other: self.file.clone(),
            ranges: self.ranges.clone(),
        })
    }

    /// The fault of the bytes in the segment's file, for a person.
    pub(super) fn describe(&self) -> String {
        format!(
            "the bytes here are not this segment's; its own lie at the same place in {}, and are \
             read there",
            self.name
        )
    }
}

impl Stretch<'_> {
    /// Look for parts of the stretch in other files.
    pub(super) fn look_in<'o>(
        &self,
        others: impl Iterator<Item = &'o Other>,
        effort: &mut Effort,
    ) -> io::Result<Option<Displaced>> {
        let Some(left) = effort.stretches.checked_sub(1) else {
            return Ok(None);
        };
        effort.stretches = left;
        let Range { start, end } = self.range;
        let range = start..end.min(start.saturating_add(PART));
        let mut own = None;
        for other in others {
            if !effort.take((range.end - range.start) as usize) {
                break;
            }
            // If the disk does not give them, that is told where they belong.
            let Ok(theirs) = read(&*other.file, &range) else {
                continue;
            };
            if is_zeros(&theirs) {
                continue;
            }
            let own = match &mut own {
                Some(own) => own,
                none => none.insert(read(self.file, &range)?),
            };
            let mut mix = Mix {
                own,
                other: &theirs,
                seed: self.seed,
                start,
                edges: Vec::new(),
                is_proven: false,
                effort,
            };
            let ranges = mix.read_through(self.previous);
            if (mix.is_proven || other.is_unfit) && !ranges.is_empty() {
                return Ok(Some(Displaced {
                    name: other.name.clone(),
                    file: other.file.clone(),
                    ranges,
                }));
            }
        }
        Ok(None)
    }
}

/// The bytes `range` of a file; zeros after its end.
fn read(file: &dyn ReadFile, range: &Range<u32>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let there = file.size()?.saturating_sub(range.start.into());
    let there = bytes
        .len()
        .min(usize::try_from(there).unwrap_or(usize::MAX));
    let mut done = 0;
    while done < there {
        match file.read_at(
            &mut bytes[done..there],
            u64::from(range.start) + done as u64,
        ) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// A stretch whose bytes come by turns from the segment's own file and from another one. Indexes
/// count from the start of the stretch.
struct Mix<'a> {
    own: &'a [u8],
    other: &'a [u8],
    seed: Seed,
    start: u32,
    /// Where the file changes, in order; the segment's own comes first.
    edges: Vec<usize>,
    /// A whole record, or a frame's header, lies in the other file. Without that, a body may have
    /// been completed by equal bytes of another one.
    is_proven: bool,
    effort: &'a mut Effort,
}

/// A sound frame.
struct Sound {
    size: usize,
    checksum: u32,
}

/// Damage in a frame.
struct Fault {
    /// The damaged part of the frame, or more.
    part: Range<usize>,
    /// A record begins there.
    is_record: bool,
}

impl Mix<'_> {
    /// Read frame after frame. Returns what lies in the other file.
    fn read_through(&mut self, mut previous: Option<u32>) -> Vec<Range<u32>> {
        let mut at = 0;
        while at < self.own.len() {
            match self.look(at, previous) {
                Ok(Sound { size, checksum }) => (at, previous) = (at + size, Some(checksum)),
                Err(fault) => {
                    if self.change_near(at, previous, &fault) {
                        continue;
                    }
                    let Some(next) = self.next_in_other(at) else {
                        return self.ranges(fault.part.start);
                    };
                    self.is_proven = true;
                    if !self.is_other() {
                        self.edges.push(next);
                    }
                    (at, previous) = (next, None);
                }
            }
        }
        self.ranges(self.own.len())
    }

    /// True if what follows the last edge comes from the other file.
    fn is_other(&self) -> bool {
        self.edges.len() % 2 == 1
    }

    fn offset(&self, at: usize) -> u32 {
        self.start + at as u32
    }

    /// `size` bytes at `at`, or fewer at the end of the stretch.
    fn get(&self, at: usize, size: usize) -> Cow<'_, [u8]> {
        let end = self.own.len().min(at.saturating_add(size));
        let source = |edges: usize| if edges % 2 == 1 { self.other } else { self.own };
        let passed = self.edges.partition_point(|edge| *edge <= at);
        if self.edges.get(passed).is_none_or(|edge| *edge >= end) {
            return Cow::Borrowed(&source(passed)[at.min(end)..end]);
        }
        let mut bytes = Vec::with_capacity(end - at);
        for edges in passed..=self.edges.len() {
            let until = self.edges.get(edges).map_or(end, |edge| end.min(*edge));
            let from = at + bytes.len();
            bytes.extend_from_slice(&source(edges)[from..until]);
        }
        Cow::Owned(bytes)
    }

    /// Check the frame at `at`.
    fn look(&mut self, at: usize, previous: Option<u32>) -> Result<Sound, Fault> {
        let fault = |part, is_record| Err(Fault { part, is_record });
        let offset = self.offset(at);
        let after_header = at + frame_header::SIZE;
        let header = FrameHeader::decode(&self.get(at, frame_header::SIZE), self.seed, offset);
        let follows =
            |header: &FrameHeader| previous.is_none_or(|previous| previous == header.previous);
        let Some(header) = header.filter(follows) else {
            return fault(at..after_header, false);
        };
        let size = usize::try_from(header.frame_size()).unwrap_or(usize::MAX);
        let is_whole = size <= self.own.len() - at;
        if header.kind == FrameKind::Newer || !is_whole || !self.effort.take(size) {
            return fault(at..at, false);
        }
        let until = at + size;
        match check_frame(&self.get(at, size), &header, self.seed, offset) {
            Ok(checksum) => {
                self.prove(at, &header);
                Ok(Sound { size, checksum })
            }
            Err(FrameFault::Record { offset, .. }) => {
                fault((offset - self.start) as usize..until, true)
            }
            Err(_) => fault(after_header + header.body_size as usize..until, false),
        }
    }

    /// Note if the header of a sound frame, or a record in it, lies in the other file.
    fn prove(&mut self, at: usize, header: &FrameHeader) {
        if self.is_proven || self.edges.is_empty() {
            return;
        }
        let is_other = |from: usize, size: usize| {
            let passed = self.edges.partition_point(|edge| *edge <= from);
            let next = self.edges.get(passed);
            passed % 2 == 1 && next.is_none_or(|edge| from + size <= *edge)
        };
        let bytes = self.get(at, header.frame_size() as usize);
        let mut found = records(&bytes, header, self.offset(at));
        let is_proven = is_other(at, frame_header::SIZE)
            || found
                .any(|(offset, record)| is_other((offset - self.start) as usize, record.size()));
        drop(found);
        self.is_proven = is_proven;
    }

    /// Change to the other of the two files where the frame at `at` is damaged, or at a sector in
    /// this part of it, if more of the frame can be read then.
    fn change_near(&mut self, at: usize, previous: Option<u32>, fault: &Fault) -> bool {
        let Range { start, end } = fault.part;
        let sector = (self.offset(start) as usize / SECTOR + 1) * SECTOR;
        let sectors = (sector - self.start as usize..end).step_by(SECTOR);
        let last = self.edges.last().copied().unwrap_or(0);
        let edges = std::iter::once(start).chain(sectors);
        for edge in edges.filter(|edge| *edge >= last) {
            self.edges.push(edge);
            let is_better = if fault.is_record {
                self.is_record_at(start, edge)
            } else {
                let seen = self.look(at, previous);
                Some(seen.map_or_else(|fault| fault.part.start > start, |_| true))
            };
            match is_better {
                Some(true) => {
                    // All of the record lies in the other file.
                    self.is_proven |= fault.is_record && edge == start && self.is_other();
                    return true;
                }
                Some(false) => {}
                None => {
                    self.edges.pop();
                    return false;
                }
            }
            self.edges.pop();
        }
        false
    }

    /// Whether the record at `at` is sound. `None`: all of it lies before `edge`, or it may not be
    /// examined any more.
    fn is_record_at(&mut self, at: usize, edge: usize) -> Option<bool> {
        let claimed = Record::size_claimed(&self.get(at, put::SIZE));
        let Some(size) = claimed.and_then(|size| usize::try_from(size).ok()) else {
            return Some(false);
        };
        if size > self.own.len() - at {
            return Some(false);
        }
        let is_before = edge >= at.saturating_add(size.max(put::SIZE));
        if is_before || !self.effort.take(size) {
            return None;
        }
        let (bytes, offset) = (self.get(at, size), self.offset(at));
        Some(Record::decode_first(&bytes, self.seed, offset).is_some())
    }

    /// Where the next frame begins in the other file.
    fn next_in_other(&self, at: usize) -> Option<usize> {
        let last = self
            .edges
            .last()
            .map_or(0, |edge| edge.next_multiple_of(FRAME_ALIGN));
        let from = last.max(at + FRAME_ALIGN);
        let words = self.other.get(from..)?.chunks(FRAME_ALIGN).enumerate();
        let mut places = words
            .filter(|(_, word)| word.starts_with(&FRAME_MAGIC))
            .map(|(index, _)| from + index * FRAME_ALIGN);
        places.find(|at| {
            FrameHeader::decode(&self.other[*at..], self.seed, self.offset(*at)).is_some()
        })
    }

    /// The ranges in the other file, before `end`.
    fn ranges(&self, end: usize) -> Vec<Range<u32>> {
        let edges: Vec<usize> = self.edges.iter().copied().chain([end]).collect();
        let pairs = edges
            .chunks_exact(2)
            .filter(|pair| pair[0] < pair[1])
            .map(|pair| self.offset(pair[0])..self.offset(pair[1]));
        pairs.collect()
    }
}

/// A segment, parts of which lie in another file.
#[derive(Debug)]
struct InPlace {
    own: Arc<dyn ReadFile>,
    other: Arc<dyn ReadFile>,
    /// In order.
    ranges: Vec<Range<u32>>,
}

impl ReadFile for InPlace {
    fn size(&self) -> io::Result<u64> {
        let end = self.ranges.last().map_or(0, |range| range.end.into());
        Ok(self.own.size()?.max(end))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let next = self
            .ranges
            .partition_point(|range| u64::from(range.end) <= offset);
        let (file, end) = match self.ranges.get(next) {
            Some(range) if u64::from(range.start) <= offset => (&self.other, range.end.into()),
            Some(range) => (&self.own, range.start.into()),
            None => (&self.own, u64::MAX),
        };
        let len = usize::try_from(end - offset).unwrap_or(usize::MAX);
        let len = len.min(buf.len());
        file.read_at(&mut buf[..len], offset)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::{ReadFs, read_exact_at};
    use crate::storage::format::{FrameBuilder, Identity, LogId};
    use crate::types::{JobId, Position, SegmentId};

    const START: u32 = 64;

    fn seed() -> Seed {
        Identity::new(LogId([3; 16]), SegmentId(1)).seed()
    }

    /// Frames of three puts each.
    fn frames(count: u64) -> Vec<u8> {
        let mut bytes = vec![0; START as usize];
        let mut previous = 0;
        for nth in 0..count {
            let mut frame = FrameBuilder::default();
            frame.begin(Vec::new(), seed(), bytes.len() as u32);
            for id in 1..=3 {
                frame.push(&Record::Put {
                    id: JobId(nth * 3 + id),
                    created_wall_ns: 1,
                    pri: 0,
                    delay: 0,
                    ttr: 1,
                    tube: "t",
                    body: &[id as u8; 700],
                });
            }
            let (frame, checksum) = frame.finish(FrameKind::Data, Position::ZERO, previous);
            bytes.extend_from_slice(&frame);
            previous = checksum;
        }
        bytes
    }

    /// Whether all is found of frames that lie in two files, these sectors in the second one.
    fn is_found(sectors: Range<usize>, effort: Effort) -> bool {
        is_block_found(sectors.start * SECTOR..sectors.end * SECTOR, effort)
    }

    fn is_block_found(block: Range<usize>, mut effort: Effort) -> bool {
        let whole = frames(6);
        let block = block.start..block.end.min(whole.len());
        let (mut own, mut other) = (whole.clone(), vec![5; whole.len()]);
        own[block.clone()].fill(6);
        other[block.clone()].copy_from_slice(&whole[block]);
        let disk = SimFs::new(1);
        disk.write("/own", &own).unwrap();
        disk.write("/other", &other).unwrap();
        let open = |path: &str| disk.open_read(Path::new(path)).unwrap();
        let (own, other) = (open("/own"), open("/other"));
        let stretch = Stretch {
            file: &*own,
            seed: seed(),
            range: START..whole.len() as u32,
            previous: Some(0),
        };
        let other = Other {
            name: "other".to_owned(),
            is_unfit: false,
            file: other,
        };
        let found = stretch.look_in([&other].into_iter(), &mut effort).unwrap();
        found.is_some_and(|found| {
            let mut bytes = vec![0; whole.len()];
            read_exact_at(&*found.in_place(own.clone()), &mut bytes, 0).unwrap();
            bytes[START as usize..] == whole[START as usize..]
        })
    }

    #[test]
    fn g35_all_is_found_whatever_sectors_of_it_lie_in_the_other_file() {
        for start in 0..20 {
            for end in start + 3..=26 {
                assert!(is_found(start..end, Effort::for_log(0)), "{start}..{end}");
            }
        }
    }

    /// What the other file has may be equal by chance: bodies often end in the same bytes.
    #[test]
    fn the_end_of_one_record_does_not_prove_that_a_block_lies_in_the_other_file() {
        let whole = frames(1);
        let frame = &whole[START as usize..];
        let header = FrameHeader::decode(frame, seed(), START).unwrap();
        let second = records(frame, &header, START).nth(1).unwrap().0 as usize;
        assert!(!is_block_found(SECTOR..second, Effort::for_log(0)));
    }

    #[test]
    fn g35_the_effort_has_a_bound() {
        let mut effort = Effort::for_log(0);
        effort.stretches = 0;
        assert!(!is_found(0..8, effort));
        for (bytes, is_enough) in [(0, false), (2 * TRY_COST, false), (1 << 20, true)] {
            let effort = Effort {
                bytes,
                ..Effort::for_log(0)
            };
            assert_eq!(is_found(0..8, effort), is_enough, "{bytes}");
        }
    }
}
