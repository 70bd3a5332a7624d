//! Finding sound records in a stretch of a file whose frames are damaged.
//!
//! A record's checksum starts from its file and its offset, so bytes that pass it are that record,
//! at that place, even if the frame around them is damaged. A record that does not pass may still
//! say which job it was about: that is reported separately, as the name of a job for a person, and
//! changes nothing.

use std::io;
use std::ops::{Range, RangeInclusive};

use super::scan::check_record;
use crate::storage::disk::{ReadFile, read_exact_at};
use crate::storage::format::{
    Claim, EMPTY_FRAME_SIZE, FRAME_ALIGN, FRAME_MAGIC, JobEvent, Record, Seed, frame_header,
    frame_trailer,
};
use crate::types::JobId;

/// Bytes examined together.
const CHUNK: usize = 1 << 20;
/// The search may checksum this multiple of the stretch's bytes without success. After that it
/// looks only where a record must begin: bodies full of bytes that look like records must not make
/// it endless.
const EFFORT: u64 = 32;

/// A single flipped bit is searched for in records up to this size, bytes.
const CORRECTED_SIZE_MAX: usize = 64 << 10;

/// A piece of a damaged stretch.
#[derive(Debug)]
pub(in crate::storage) enum Piece<'a> {
    /// A sound record, and its offset in the file.
    Record(u32, Record<'a>),
    /// A record should begin at this offset, but is damaged; its bytes claim to be about a job.
    Claim(Claimed),
}

/// What a damaged record says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::storage) struct Claimed {
    /// Its offset in the file.
    pub(in crate::storage) at: u32,
    pub(in crate::storage) job: JobId,
    pub(in crate::storage) event: JobEvent,
    /// One flipped bit is the whole damage: the checksum holds once it is flipped back. The id of
    /// any other record may be damaged, too.
    pub(in crate::storage) is_certain: bool,
}

/// Search for records in the bytes `range` of `file`, the first of which is one that a frame should
/// begin with, and pass each to `visit` in order. Returns how many bytes are accounted for: by
/// sound records, by claims, and by the frames' own parts.
pub(in crate::storage) fn salvage(
    file: &dyn ReadFile,
    seed: Seed,
    range: Range<u32>,
    visit: &mut dyn FnMut(Piece<'_>),
) -> io::Result<u64> {
    let mut stretch = Stretch {
        file,
        range: range.clone(),
        start: range.start,
        bytes: Vec::new(),
        effort: u64::from(range.end - range.start) * EFFORT + CHUNK as u64,
    };
    let mut at = range.start;
    let mut accounted = 0;
    // A record begins after a frame's header, and after a sound record.
    let mut at_boundary = false;
    // Where the last claimed record ends, and its size: believed if something follows there.
    let mut claimed = None;
    while at < range.end {
        if stretch.is_frame_start(at)? || (at == range.start && !at_boundary) {
            at = at.saturating_add(frame_header::SIZE as u32);
            at_boundary = true;
            accounted += EMPTY_FRAME_SIZE as u64;
            continue;
        }
        if let Some(size) = stretch.visit_record(at, seed, at_boundary, visit)? {
            accounted += size as u64 + claimed_up_to(claimed, at..=at);
            at += size as u32;
            (at_boundary, claimed) = (true, None);
            continue;
        }
        if at_boundary && let Some((claim, is_certain)) = stretch.claim(at, seed)? {
            claimed = Some((u64::from(at) + claim.size as u64, claim.size as u64));
            if let Some((job, event)) = claim.about {
                visit(Piece::Claim(Claimed {
                    at,
                    job,
                    event,
                    is_certain,
                }));
            }
        }
        (at, at_boundary) = (at + 1, false);
    }
    let end = range
        .end
        .saturating_sub((frame_trailer::SIZE + FRAME_ALIGN) as u32)..=range.end;
    Ok(accounted + claimed_up_to(claimed, end))
}

/// The size of the claimed record, if it ends where a record may end.
fn claimed_up_to(claimed: Option<(u64, u64)>, ends: RangeInclusive<u32>) -> u64 {
    let ends = u64::from(*ends.start())..=u64::from(*ends.end());
    claimed
        .filter(|(end, _)| ends.contains(end))
        .map_or(0, |(_, size)| size)
}

/// The stretch, with a part of it in memory.
struct Stretch<'f> {
    file: &'f dyn ReadFile,
    range: Range<u32>,
    /// The offset of `bytes`.
    start: u32,
    bytes: Vec<u8>,
    /// Bytes that may still be checksummed without success.
    effort: u64,
}

impl Stretch<'_> {
    /// `size` bytes at `at`, or fewer at the end of the stretch.
    fn get(&mut self, at: u32, size: usize) -> io::Result<&[u8]> {
        let size = size.min((self.range.end - at) as usize);
        let held = at >= self.start
            && u64::from(at) + size as u64 <= u64::from(self.start) + self.bytes.len() as u64;
        if !held {
            let want = size.max(CHUNK).min((self.range.end - at) as usize);
            self.bytes.resize(want, 0);
            self.start = at;
            if let Err(error) = read_exact_at(self.file, &mut self.bytes, at.into()) {
                self.bytes.clear();
                // The file is shorter than it should be: there are no bytes here.
                return match error.kind() {
                    io::ErrorKind::UnexpectedEof => Ok(&[]),
                    _ => Err(error),
                };
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + size])
    }

    fn is_frame_start(&mut self, at: u32) -> io::Result<bool> {
        if !(at as usize).is_multiple_of(FRAME_ALIGN) {
            return Ok(false);
        }
        Ok(self.get(at, FRAME_MAGIC.len())? == FRAME_MAGIC)
    }

    /// Visit the record at `at` if it is sound; returns its size.
    fn visit_record(
        &mut self,
        at: u32,
        seed: Seed,
        at_boundary: bool,
        visit: &mut dyn FnMut(Piece<'_>),
    ) -> io::Result<Option<usize>> {
        let Some(claim) = Claim::read(self.get(at, Claim::SIZE_MAX)?) else {
            return Ok(None);
        };
        let is_affordable = at_boundary || self.effort >= claim.size as u64;
        if claim.size > (self.range.end - at) as usize || !is_affordable {
            return Ok(None);
        }
        if !at_boundary {
            self.effort -= claim.size as u64;
        }
        if claim.size > CHUNK {
            let mut read = |from, count| self.get(from, count).map(<[u8]>::to_vec);
            if !check_record(seed, at, claim.size as u64, &mut read)? {
                return Ok(None);
            }
        }
        let found = Record::decode_first(self.get(at, claim.size)?, seed, at);
        Ok(found.map(|(record, size)| {
            visit(Piece::Record(at, record));
            size
        }))
    }

    /// Claim of the damaged record at `at`, and whether it is certain. The most frequent damage is
    /// one flipped bit: if it lies in the claim, it is corrected.
    fn claim(&mut self, at: u32, seed: Seed) -> io::Result<Option<(Claim, bool)>> {
        let mut bytes = self.get(at, CORRECTED_SIZE_MAX)?.to_vec();
        for bit in 0..bytes.len().min(Claim::SIZE_MAX) * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            if Record::decode_first(&bytes, seed, at).is_some() {
                return Ok(Claim::read(&bytes).map(|claim| (claim, true)));
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(Claim::read(&bytes).map(|claim| (claim, false)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::ReadFs;
    use crate::storage::format::{FrameBuilder, FrameKind, Identity, LogId, put};
    use crate::types::{Position, SegmentId};

    const AT: u32 = 64;

    fn seed() -> Seed {
        Identity::new(LogId([3; 16]), SegmentId(1)).seed()
    }

    /// A frame with a put, a delete and a put, at [`AT`], and the offsets of its records.
    fn frame() -> (Vec<u8>, [u32; 3]) {
        let put = |id, body| Record::Put {
            id: JobId(id),
            created_wall_ns: 1,
            pri: 0,
            delay: 0,
            ttr: 1,
            tube: "t",
            body,
        };
        let mut builder = FrameBuilder::default();
        builder.begin(Vec::new(), seed(), AT);
        let places = [
            builder.push(&put(1, b"first")),
            builder.push(&Record::Delete {
                id: JobId(9),
                put_segment: SegmentId(1),
            }),
            builder.push(&put(2, b"second")),
        ];
        let (bytes, _) = builder.finish(FrameKind::Data, Position::ZERO, 0);
        ([vec![0; AT as usize], bytes].concat(), places)
    }

    fn pieces(bytes: &[u8]) -> Vec<String> {
        let disk = SimFs::new(1);
        disk.write("/f", bytes).unwrap();
        let file = disk.open_read(Path::new("/f")).unwrap();
        let mut pieces = Vec::new();
        salvage(&*file, seed(), AT..bytes.len() as u32, &mut |piece| {
            pieces.push(match piece {
                Piece::Record(at, record) => format!("{at}: job {:?}", record.job()),
                Piece::Claim(claim) => {
                    let doubt = if claim.is_certain { "" } else { ", perhaps" };
                    format!("{:?} of {}{doubt}", claim.event, claim.job)
                }
            });
        })
        .unwrap();
        pieces
    }

    #[test]
    fn every_record_but_the_damaged_one_is_found_and_that_one_is_named() {
        let (mut bytes, [first, delete, second]) = frame();
        bytes[delete as usize + 17] ^= 1; // in what is not named
        let expected = [
            format!("{first}: job Some(JobId(1))"),
            "Delete of 9".to_owned(),
            format!("{second}: job Some(JobId(2))"),
        ];
        assert_eq!(pieces(&bytes), expected);
    }

    #[test]
    fn the_name_in_a_record_with_more_than_one_flipped_bit_is_in_doubt() {
        let (mut bytes, [_, delete, _]) = frame();
        bytes[delete as usize + put::ID + 1..][..7].fill(0x5a);
        assert_eq!(pieces(&bytes)[1], "Delete of 6510615555426900489, perhaps");
    }

    #[test]
    fn all_records_of_a_frame_are_found_whatever_bit_of_its_header_is_flipped() {
        let (bytes, _) = frame();
        for bit in 0..frame_header::SIZE * 8 {
            let mut bytes = bytes.clone();
            bytes[AT as usize + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(pieces(&bytes).len(), 3, "bit {bit}");
        }
    }

    #[test]
    fn a_flipped_bit_of_a_record_costs_that_record_alone() {
        let (bytes, [first, delete, second]) = frame();
        for (start, end) in [(first, delete), (delete, second)] {
            for bit in start * 8..end * 8 {
                let mut bytes = bytes.clone();
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
                let found = pieces(&bytes)
                    .into_iter()
                    .filter(|piece| piece.contains("job"));
                assert_eq!(found.count(), 2, "bit {bit}");
            }
        }
    }

    #[test]
    fn a_record_at_another_offset_is_none() {
        let (mut bytes, _) = frame();
        bytes.splice(AT as usize..AT as usize, [0; 8]);
        assert!(pieces(&bytes).iter().all(|piece| !piece.contains("job")));
    }
}
