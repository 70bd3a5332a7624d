//! A property that must hold for any bytes in a segment; the fuzz target and its seeds use it.
//!
//! Compiled for tests and fuzzing only (feature `sim`). No bytes may make the reader panic, run forever, or hold
//! more memory than the file is long; and what the reader returns must be what an encoder would
//! write. Checksums keep nearly all inputs away from the code behind them, so each input is tried
//! twice: unchanged, and with all checksums corrected.

use std::io;
use std::sync::Arc;

use super::{
    EMPTY_FRAME_SIZE, FRAME_ALIGN, FRAME_MAGIC, FrameBuilder, FrameKind, Identity, LogId, Record,
    SEGMENT_MAGIC, Seed, SegmentHeader, TRAILER_MAGIC, VERSION, VERSION_MIN, frame_header,
    frame_size, put, segment_header, set_u16, set_u32, u16_at, u32_at,
};
use crate::storage::disk::ReadFile;
use crate::storage::read::scan::{End, EndFacts, Frame, Reader, Step, verdict};
use crate::types::{Position, SegmentId};

/// Panics unless a segment of these bytes is read correctly.
pub fn any_bytes(data: &[u8]) {
    segment(data);
    segment(&with_right_checksums(data));
}

fn segment(bytes: &[u8]) {
    let header = SegmentHeader::decode(bytes);
    if let Ok(header) = header {
        assert_eq!(
            SegmentHeader::decode(&header.encode()),
            Ok(header),
            "a header changed"
        );
    }
    let seed = header.map_or(stranger(), |header| header.identity).seed();
    let file = MemoryFile::holding(bytes.to_vec());
    let start = segment_header::SIZE as u32;
    let mut reader = Reader::new(file, seed, bytes.len() as u64, start);
    loop {
        let before = reader.at();
        match reader.step() {
            Err(error) => panic!("memory has no I/O errors: {error}"),
            Ok(Step::Frame(frame)) => sound_frame(&frame, bytes, seed),
            Ok(Step::Bad(_)) => match go_beyond(&mut reader, bytes.len()) {
                Some(next) => reader.skip_to(next),
                None => return,
            },
        }
        assert!(reader.at() > before, "the reader stays at {before}");
    }
}

/// A frame that the reader returns must be what an encoder writes for its records.
fn sound_frame(frame: &Frame<'_>, bytes: &[u8], seed: Seed) {
    assert!(
        frame.end() as usize <= bytes.len(),
        "a frame ends beyond the file"
    );
    let mut builder = FrameBuilder::default();
    builder.begin(Vec::new(), seed, frame.at);
    let mut count = 0;
    for (offset, record) in frame.records() {
        assert_eq!(
            builder.push(&record),
            offset,
            "a record lies elsewhere when written again"
        );
        let copy = frame.record_bytes(offset, &record);
        assert_eq!(Record::decode_copy(copy), Some(record));
        let is_put = matches!(record, Record::Put { .. });
        assert_eq!(Record::decode_put(copy, seed, offset).is_some(), is_put);
        count += 1;
    }
    assert_eq!(count, frame.header.records, "records are missing");
    let header = frame.header;
    builder.reach(header.body_size as usize + frame_header::SIZE - builder.bytes().len());
    let (again, _) = builder.finish(header.kind, header.durable, header.previous);
    assert_eq!(again.len() as u64, header.frame_size());
}

/// Make every query that applies where no sound frame begins; returns where to continue.
fn go_beyond(reader: &mut Reader, size: usize) -> Option<u32> {
    let at = reader.at();
    let ahead = reader.look_ahead();
    let ahead = ahead.expect("memory has no I/O errors");
    assert!(ahead.garbage_end as usize <= size);
    let end = verdict(EndFacts {
        complete: false,
        attested: ahead.durable > Position::new(SegmentId(1), at),
        garbage: ahead.garbage_end > at,
    });
    assert!(
        ahead.next_frame.is_none() || end != End::Clean,
        "frames after a clean end"
    );
    assert_eq!(reader.at(), at, "looking ahead moved the reader");
    assert!(reader.held() <= size, "{} bytes held", reader.held());
    if let Some(next) = ahead.next_frame {
        assert!(next > at && (next as usize).is_multiple_of(FRAME_ALIGN));
        assert!((next as usize) < size);
    }
    ahead.next_frame
}

/// The log under whose identity bytes without a header of their own are read.
fn stranger() -> Identity {
    Identity::new(LogId([7; 16]), SegmentId(1))
}

/// The same bytes with a sound segment header, and with frames whose magics, counts and checksums
/// are right; everything else is unchanged.
fn with_right_checksums(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().max(segment_header::SIZE), 0);
    bytes[..segment_header::VERSION].copy_from_slice(&SEGMENT_MAGIC);
    let version = u16_at(&bytes, segment_header::VERSION).clamp(VERSION_MIN, VERSION);
    set_u16(&mut bytes, segment_header::VERSION, version);
    let [first, last] =
        [segment_header::FIRST, segment_header::LAST].map(|field| u32_at(&bytes, field));
    set_u32(&mut bytes, segment_header::LAST, last.max(first));
    let crc = crc32fast::hash(&bytes[..segment_header::CRC]);
    set_u32(&mut bytes, segment_header::CRC, crc);
    let seed = match SegmentHeader::decode(&bytes) {
        Ok(header) => header.identity.seed(),
        Err(fault) => panic!("the corrected header is refused: {fault:?}"),
    };
    let (mut at, mut previous) = (segment_header::SIZE, 0);
    while bytes.len() - at >= EMPTY_FRAME_SIZE {
        let (size, checksum) = make_frame(&mut bytes[at..], seed, at as u32, previous);
        (at, previous) = (at + size, checksum);
    }
    bytes
}

/// Turn the beginning of `bytes`, which lie at `offset`, into a frame. Returns its size and
/// checksum.
fn make_frame(bytes: &mut [u8], seed: Seed, offset: u32, previous: u32) -> (usize, u32) {
    use frame_header as at;
    let room = (bytes.len() / FRAME_ALIGN * FRAME_ALIGN - EMPTY_FRAME_SIZE)
        .min(u32_at(bytes, at::BODY_SIZE) as usize % 600);
    let (end, count, crcs) = correct_records(&mut bytes[..at::SIZE + room], seed, offset);
    bytes[..at::CRC].copy_from_slice(&FRAME_MAGIC);
    set_u32(bytes, at::BODY_SIZE, (end - at::SIZE) as u32);
    set_u32(bytes, at::RECORDS, count);
    set_u32(bytes, at::PREVIOUS, previous);
    bytes[at::KIND] %= FrameKind::CleanStop as u8 + 1;
    // Sometimes a frame of a later version.
    bytes[at::VERSION] = match bytes[at::VERSION] {
        1 => 1,
        byte => VERSION as u8 + u8::from(byte % 16 == 15),
    };
    let size = frame_size((end - at::SIZE) as u64) as usize;
    (size, seal(&mut bytes[..size], end, seed, offset, crcs))
}

/// Give a frame whose records end at `end` a right checksum and trailer. Returns the checksum.
fn seal(frame: &mut [u8], end: usize, seed: Seed, offset: u32, crcs: u32) -> u32 {
    use frame_header as at;
    let crc = seed.crc(offset, &frame[at::BODY_SIZE..at::SIZE]);
    set_u32(frame, at::CRC, crc);
    let checksum = super::frame::frame_checksum(crc, crcs);
    let trailer = &mut frame[end..];
    trailer.fill(0);
    trailer[..4].copy_from_slice(&TRAILER_MAGIC);
    set_u32(trailer, 4, checksum);
    checksum
}

/// Correct the checksums of a segment, from its header to the last frame that follows the one
/// before it; the content of the frames is unchanged.
pub(crate) fn correct_checksums(bytes: &mut [u8]) {
    if bytes.len() < segment_header::SIZE {
        return;
    }
    let crc = crc32fast::hash(&bytes[..segment_header::CRC]);
    set_u32(bytes, segment_header::CRC, crc);
    let Ok(header) = SegmentHeader::decode(bytes) else {
        return;
    };
    let mut previous = 0;
    for (at, size) in frames(bytes) {
        let frame = &mut bytes[at..at + size];
        previous = repair_as_it_is(frame, header.identity.seed(), at as u32, previous);
    }
}

fn repair_as_it_is(frame: &mut [u8], seed: Seed, offset: u32, previous: u32) -> u32 {
    use frame_header as at;
    let end = at::SIZE + u32_at(frame, at::BODY_SIZE) as usize;
    let (last, count, crcs) = correct_records(&mut frame[..end], seed, offset);
    if last == end {
        set_u32(frame, at::RECORDS, count);
    }
    set_u32(frame, at::PREVIOUS, previous);
    seal(frame, end, seed, offset, crcs)
}

/// Where the parts of a segment begin: its header, its frames, their records.
pub(crate) fn places(bytes: &[u8]) -> Vec<usize> {
    let mut places = vec![0];
    for (frame, _) in frames(bytes) {
        places.push(frame);
        let end =
            frame + frame_header::SIZE + u32_at(bytes, frame + frame_header::BODY_SIZE) as usize;
        let mut at = frame + frame_header::SIZE;
        while let Some(size) = Record::size_of(&bytes[at..end]) {
            places.push(at);
            at += size;
        }
    }
    places
}

/// The frames that follow each other, according to the sizes in their headers.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut frames, mut at) = (Vec::new(), segment_header::SIZE);
    while let Some(header) = bytes.get(at..at + frame_header::SIZE)
        && header.starts_with(&FRAME_MAGIC)
    {
        let size = frame_size(u32_at(header, frame_header::BODY_SIZE).into());
        if size > (bytes.len() - at) as u64 {
            break;
        }
        frames.push((at, size as usize));
        at += size as usize;
    }
    frames
}

/// Give every record that fits a right CRC. Returns where they end, how many there are, and the CRC
/// over their CRCs.
fn correct_records(bytes: &mut [u8], seed: Seed, offset: u32) -> (usize, u32, u32) {
    let (mut at, mut count, mut crcs) = (frame_header::SIZE, 0, crc32fast::Hasher::new());
    while let Some(kind) = bytes.get_mut(at + put::KIND) {
        *kind = 1 + kind.wrapping_sub(1) % super::record::KIND_ATTRIBUTES;
        let Some(size) = Record::size_of(&bytes[at..]) else {
            break;
        };
        let record = &mut bytes[at..at + size];
        let crc = seed.crc(offset + at as u32, &record[put::KIND..]);
        set_u32(record, put::CRC, crc);
        crcs.update(&crc.to_le_bytes());
        (at, count) = (at + size, count + 1);
    }
    (at, count, crcs.finalize())
}

/// A file that is in memory and is only read.
#[derive(Debug)]
pub(in crate::storage) struct MemoryFile(Vec<u8>);

impl MemoryFile {
    pub(in crate::storage) fn holding(bytes: Vec<u8>) -> Arc<dyn ReadFile> {
        Arc::new(MemoryFile(bytes))
    }
}

impl ReadFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.0.len());
        let count = buf.len().min(self.0.len() - from);
        buf[..count].copy_from_slice(&self.0[from..from + count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{Segment, one_of_each, seeds};
    use super::*;
    use crate::random::Random;

    #[test]
    fn random_bytes_hold() {
        for seed in seeds(400) {
            let mut random = Random::new(seed);
            let count = random.below(2000);
            any_bytes(&random.bytes(count));
        }
    }

    #[test]
    fn a_segment_with_bytes_changed_at_random_holds() {
        for seed in seeds(400) {
            let mut random = Random::new(seed);
            let mut segment = Segment::new();
            for _ in 0..3 {
                segment.push(0, &one_of_each());
            }
            for _ in 0..1 + random.below(4) {
                let at = random.below(segment.bytes.len());
                segment.bytes[at] = random.next() as u8;
            }
            any_bytes(&segment.bytes);
        }
    }

    #[test]
    fn repairing_reaches_the_records_behind_the_checksums() {
        let mut segment = Segment::new();
        segment.push(0, &one_of_each());
        let sound = segment.bytes.clone();
        // Only checksums are wrong: with them corrected, the segment is the original.
        for at in [
            segment_header::CRC,
            segment_header::SIZE + frame_header::CRC,
        ] {
            segment.bytes[at] ^= 0xff;
        }
        assert_eq!(with_right_checksums(&segment.bytes), sound);
    }
}
