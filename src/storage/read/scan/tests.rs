//! The reader at every border: of frames, of chunks, of files; and every possible end of a segment.

use std::path::Path;

use super::*;
use crate::random::Random;
use crate::storage::disk::ReadFs;
use crate::storage::disk::sim::SimFs;
use crate::storage::format::samples::{
    FRAMES_BEGIN, Segment, frame, identity, one_of_each, position, put,
};
use crate::storage::format::{FrameKind, Identity, any_bytes::MemoryFile};
use crate::types::JobId;

fn reader(bytes: &[u8]) -> Reader {
    let file = MemoryFile::holding(bytes.to_vec());
    Reader::new(file, identity().seed(), bytes.len() as u64, FRAMES_BEGIN)
}

/// The jobs of all sound frames, and what stopped the reader.
fn read_all(reader: &mut Reader) -> (Vec<u64>, FrameFault) {
    let mut jobs = Vec::new();
    loop {
        match reader.step().unwrap() {
            Step::Frame(frame) => {
                jobs.extend(frame.records().filter_map(|(_, record)| record.job()));
            }
            Step::Bad(fault) => return (jobs.iter().map(|job| job.0).collect(), fault),
        }
    }
}

/// Three frames with one job each. Returns where they begin, and the end.
fn three_frames() -> (Segment, [u32; 4]) {
    let mut segment = Segment::new();
    let first = segment.push(0, &[put(1, b"one")]);
    let second = segment.push(first, &[put(2, b"two")]);
    let third = segment.push(second, &[put(3, b"three")]);
    let end = segment.end();
    (segment, [first, second, third, end])
}

#[test]
fn every_combination_of_facts_meets_exactly_one_rule() {
    for bits in 0..8 {
        let facts = EndFacts {
            complete: bits & 1 != 0,
            attested: bits & 2 != 0,
            garbage: bits & 4 != 0,
        };
        let meets = |wanted: Option<bool>, is| wanted.is_none_or(|wanted| wanted == is);
        let matching = END_RULES.iter().filter(|rule| {
            meets(rule.complete, facts.complete)
                && meets(rule.attested, facts.attested)
                && meets(rule.garbage, facts.garbage)
        });
        let matching: Vec<End> = matching.map(|rule| rule.end).collect();
        assert_eq!(matching, [verdict(facts)], "{facts:?}");
    }
}

#[test]
fn the_rules_are_those_that_were_meant() {
    let end = |complete, attested, garbage| {
        verdict(EndFacts {
            complete,
            attested,
            garbage,
        })
    };
    for attested in [false, true] {
        for garbage in [false, true] {
            assert_eq!(end(true, attested, garbage), End::Whole);
        }
    }
    // Zeros in place of durable bytes are damage like any other bytes.
    assert_eq!(end(false, true, false), End::Corrupt);
    assert_eq!(end(false, true, true), End::Corrupt);
    assert_eq!(end(false, false, false), End::Clean);
    assert_eq!(end(false, false, true), End::Torn);
}

#[test]
fn frames_come_in_order_with_the_places_of_their_records() {
    let mut segment = Segment::new();
    segment.push(0, &one_of_each());
    segment.push(0, &[]);
    let last = segment.push(0, &one_of_each()[..2]);
    let mut reader = reader(&segment.bytes);
    let mut seen = Vec::new();
    while let Step::Frame(frame) = reader.step().unwrap() {
        for (offset, record) in frame.records() {
            let from = offset as usize;
            let there = &segment.bytes[from..from + record.size()];
            assert_eq!(frame.record_bytes(offset, &record), there);
        }
        seen.push((frame.at, frame.records().count()));
        assert_eq!(frame.end() % 8, 0);
    }
    assert_eq!(
        seen.iter().map(|(_, count)| *count).collect::<Vec<_>>(),
        [9, 0, 2]
    );
    assert_eq!((seen[2].0, reader.at()), (last, segment.end()));
    assert_ne!(reader.previous(), 0);
}

#[test]
fn a_file_cut_at_any_length_gives_the_frames_that_are_whole() {
    let (segment, [first, second, third, end]) = three_frames();
    for size in first..=end {
        let bytes = &segment.bytes[..size as usize];
        let mut reader = reader(bytes);
        let (jobs, fault) = read_all(&mut reader);
        let whole = [second, third, end]
            .iter()
            .filter(|end| **end <= size)
            .count() as u64;
        assert_eq!(jobs, (1..=whole).collect::<Vec<_>>(), "{size} bytes");
        assert_eq!(fault, FrameFault::Short);
        let ahead = reader.look_ahead().unwrap();
        assert_eq!(ahead.next_frame, None);
        assert_eq!(ahead.durable, Position::ZERO);
        // The rest of a frame is garbage, as far as it is not zero.
        let left = &bytes[reader.at() as usize..];
        let last = left.iter().rposition(|byte| *byte != 0);
        let garbage_end = last.map_or(0, |last| reader.at() + last as u32 + 1);
        assert_eq!(ahead.garbage_end, garbage_end);
    }
}

#[test]
fn a_file_shorter_than_its_header_has_no_frames() {
    for size in 0..FRAMES_BEGIN as usize {
        let mut reader = reader(&vec![1; size]);
        assert!(matches!(
            reader.step().unwrap(),
            Step::Bad(FrameFault::Short)
        ));
        assert_eq!(reader.look_ahead().unwrap(), Lookahead::default());
    }
}

#[test]
fn zeros_behind_the_last_frame_are_nothing() {
    let (segment, [.., end]) = three_frames();
    for zeros in [1, 7, 8, 31, 32, 33, 4096, CHUNK, CHUNK + 1, 3 * CHUNK] {
        let mut bytes = segment.bytes.clone();
        bytes.resize(bytes.len() + zeros, 0);
        let mut reader = reader(&bytes);
        assert_eq!(read_all(&mut reader).0, [1, 2, 3]);
        assert_eq!(reader.at(), end);
        assert_eq!(
            reader.look_ahead().unwrap(),
            Lookahead::default(),
            "{zeros} zeros"
        );
    }
}

#[test]
fn the_last_byte_that_is_not_zero_is_found_wherever_it_is() {
    let border = FRAMES_BEGIN as usize + CHUNK;
    for last in [
        FRAMES_BEGIN as usize,
        border - 33,
        border - 32,
        border - 1,
        border,
        border + 1,
        2 * CHUNK,
        3 * CHUNK - 1,
    ] {
        let mut bytes = vec![0; 3 * CHUNK];
        bytes[FRAMES_BEGIN as usize] = 1;
        bytes[last] = 1;
        assert_eq!(
            reader(&bytes).look_ahead().unwrap().garbage_end as usize,
            last + 1
        );
    }
}

#[test]
fn a_frame_header_is_found_across_every_border_of_a_chunk() {
    let border = FRAMES_BEGIN + CHUNK as u32;
    let second = border + CHUNK as u32 - frame_header::SIZE as u32;
    for border in [border, second] {
        for at in (border - 80..border + 48).step_by(8) {
            let durable = position(border);
            let (frame, _) = frame(&identity(), at, FrameKind::Idle, durable, 0, &[]);
            let mut bytes = vec![b'b'; at as usize];
            bytes.extend(frame);
            bytes.resize(3 * CHUNK, 0);
            let ahead = reader(&bytes).look_ahead().unwrap();
            assert_eq!(
                (ahead.next_frame, ahead.durable),
                (Some(at), durable),
                "{at}"
            );
        }
    }
}

#[test]
fn a_frame_is_read_across_every_border_of_a_chunk() {
    for extra in 0..100 {
        let body = vec![b'x'; CHUNK - 150 + extra];
        let mut segment = Segment::new();
        segment.push(0, &[put(1, &body)]);
        segment.push(0, &[put(2, b"two")]);
        segment.push(0, &[put(3, b"three")]);
        assert_eq!(
            read_all(&mut reader(&segment.bytes)).0,
            [1, 2, 3],
            "{extra}"
        );
    }
}

#[test]
fn a_frame_larger_than_a_chunk_is_read() {
    let body = vec![b'x'; 3 * CHUNK + 5];
    let mut segment = Segment::new();
    segment.push(0, &[put(1, b"one")]);
    segment.push(0, &[put(2, &body)]);
    segment.push(0, &[put(3, b"three")]);
    assert_eq!(read_all(&mut reader(&segment.bytes)).0, [1, 2, 3]);
}

#[test]
fn evidence_is_what_later_headers_say_and_nothing_before_them() {
    let (mut segment, [first, second, third, end]) = three_frames();
    segment.push_kind(FrameKind::Idle, end, &[]);
    // (the damaged frame, its neighbours after it, the durable position that they name)
    for (at, next, durable) in [
        (first, second, end),
        (second, third, end),
        (third, end, end),
    ] {
        let mut bytes = segment.bytes.clone();
        bytes[at as usize + frame_header::SIZE + 8] ^= 1; // in the id
        let mut reader = reader(&bytes);
        read_all(&mut reader);
        assert_eq!(reader.at(), at);
        let ahead = reader.look_ahead().unwrap();
        assert_eq!(ahead.next_frame, Some(next));
        assert_eq!(ahead.durable, position(durable));
    }
    // The last frame attests the others; nothing attests the last one.
    let mut bytes = segment.bytes.clone();
    bytes[end as usize] ^= 1;
    let mut reader = reader(&bytes);
    read_all(&mut reader);
    let ahead = reader.look_ahead().unwrap();
    assert_eq!((ahead.next_frame, ahead.durable), (None, Position::ZERO));
}

#[test]
fn a_sound_header_of_the_damaged_frame_itself_is_no_evidence() {
    let mut segment = Segment::new();
    let at = segment.push(10_000, &[put(1, b"one")]);
    segment.bytes[at as usize + frame_header::SIZE + 8] ^= 1; // in the id
    let mut reader = reader(&segment.bytes);
    assert!(matches!(read_all(&mut reader).1, FrameFault::Record { .. }));
    let ahead = reader.look_ahead().unwrap();
    assert_eq!((ahead.next_frame, ahead.durable), (None, Position::ZERO));
}

#[test]
fn the_greatest_durable_position_counts_wherever_it_is_told() {
    let mut segment = Segment::new();
    let damaged = segment.push(0, &[put(1, b"one")]);
    let next = segment.push(5000, &[]);
    segment.push(900, &[]);
    segment.bytes[damaged as usize] ^= 1;
    let ahead = reader(&segment.bytes).look_ahead().unwrap();
    assert_eq!(
        (ahead.next_frame, ahead.durable),
        (Some(next), position(5000))
    );
}

#[test]
fn frames_of_another_place_are_no_evidence() {
    let (segment, [first, second, ..]) = three_frames();
    let stale = segment.bytes[second as usize..].to_vec();
    let mut elsewhere = segment.bytes.clone();
    elsewhere[first as usize] ^= 1;
    elsewhere.splice(
        second as usize..,
        [0; 8].into_iter().chain(stale.iter().copied()),
    );
    assert_eq!(reader(&elsewhere).look_ahead().unwrap().next_frame, None);

    let recycled = Identity {
        generation: 1,
        ..identity()
    };
    let mut bytes = segment.bytes.clone();
    bytes[first as usize] ^= 1;
    let (file, size) = (MemoryFile::holding(bytes.clone()), bytes.len() as u64);
    let mut reader = Reader::new(file, recycled.seed(), size, FRAMES_BEGIN);
    assert_eq!(reader.look_ahead().unwrap().next_frame, None);
}

#[test]
fn a_frame_that_does_not_follow_the_one_before_it_is_not_handed_out() {
    let (segment, [_, second, third, _]) = three_frames();
    // The second frame is sound and belongs here, but comes from another history.
    let two = [put(2, b"TWO")];
    let (other, checksum) = frame(
        &identity(),
        second,
        FrameKind::Data,
        position(0),
        0xdead_beef,
        &two,
    );
    let mut bytes = segment.bytes.clone();
    bytes[second as usize..third as usize].copy_from_slice(&other);
    let mut reader = reader(&bytes);
    let (jobs, fault) = read_all(&mut reader);
    assert_eq!((jobs, reader.at()), (vec![1], second));
    let FrameFault::Chain { expected, found } = fault else {
        panic!("{fault:?}")
    };
    assert_eq!(expected, 0xdead_beef);
    assert_ne!(found, checksum);
    // After damage the chain starts again.
    reader.skip_to(third);
    assert_eq!(read_all(&mut reader).0, [3]);
}

#[test]
fn the_first_frame_of_a_file_follows_nothing() {
    let (bytes, _) = frame(
        &identity(),
        64,
        FrameKind::Data,
        position(0),
        1,
        &[put(1, b"x")],
    );
    let mut file = vec![0; 64];
    file.extend(bytes);
    let chain = FrameFault::Chain {
        expected: 1,
        found: 0,
    };
    assert_eq!(read_all(&mut reader(&file)), (vec![], chain));
}

#[test]
fn a_length_of_4_gib_is_not_read_for() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let (mut segment, [first, ..]) = three_frames();
        let field = first as usize + frame_header::BODY_SIZE;
        segment.bytes[field..field + 4].fill(0xff);
        let body = first as usize + frame_header::SIZE + put::BODY_SIZE;
        segment.bytes[body..body + 4].copy_from_slice(&(random.next() as u32).to_le_bytes());
        let mut reader = reader(&segment.bytes);
        assert_eq!(read_all(&mut reader), (vec![], FrameFault::Header));
        assert!(reader.held() <= segment.bytes.len());
    }
}

/// A disk whose file `/s` has three frames, more than a chunk apart.
fn disk_with_three_frames() -> (SimFs, Reader, [u32; 4]) {
    let body = vec![b'x'; CHUNK + 100];
    let mut segment = Segment::new();
    let first = segment.push(0, &[put(1, &body)]);
    let second = segment.push(0, &[put(2, &body)]);
    let third = segment.push(0, &[put(3, &body)]);
    let fs = SimFs::new(1);
    fs.write("/s", &segment.bytes).unwrap();
    let file = fs.open_read(Path::new("/s")).unwrap();
    let size = segment.bytes.len() as u64;
    let reader = Reader::new(file, identity().seed(), size, FRAMES_BEGIN);
    (fs, reader, [first, second, third, segment.end()])
}

#[test]
fn a_disk_that_does_not_answer_is_an_error_and_not_an_end() {
    let (fs, mut reader, [_, second, third, end]) = disk_with_three_frames();
    let middle = u64::from(second) + CHUNK as u64 / 2;
    fs.fail_reads("/s", middle..middle + 1).unwrap();
    assert!(matches!(reader.step().unwrap(), Step::Frame(_)));
    assert!(reader.step().is_err());
    assert_eq!(reader.at(), second);
    assert!(reader.look_ahead().is_err());
    // What the failed read left in memory is not used as the file's content.
    fs.heal_reads("/s").unwrap();
    assert_eq!(read_all(&mut reader).0, [2, 3]);
    assert!(third < end && reader.at() == end);
}

#[test]
fn a_file_that_has_shrunk_since_is_an_error_and_not_an_end() {
    let (fs, mut reader, [_, second, ..]) = disk_with_three_frames();
    fs.truncate("/s", u64::from(second) + 10).unwrap();
    assert!(matches!(reader.step().unwrap(), Step::Frame(_)));
    let error = reader.step().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_file_larger_than_positions_reach_has_an_end() {
    let file = MemoryFile::holding(Vec::new());
    let mut reader = Reader::new(file, identity().seed(), 5 << 30, FRAMES_BEGIN);
    reader.skip_to(u32::MAX - 7);
    assert!(matches!(
        reader.step().unwrap(),
        Step::Bad(FrameFault::Short)
    ));
    assert_eq!(reader.size, u64::from(u32::MAX));
    // The bytes before the limit are read, those after it are not requested.
    assert_eq!(
        reader.look_ahead().unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}

/// A file of zeros after its first bytes.
#[derive(Debug)]
struct Sparse {
    start: Vec<u8>,
    size: u64,
}

impl ReadFile for Sparse {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = buf.len().min((self.size - offset) as usize);
        buf[..count].fill(0);
        let start = self.start.get(offset as usize..).unwrap_or_default();
        let given = start.len().min(count);
        buf[..given].copy_from_slice(&start[..given]);
        Ok(count)
    }
}

/// A header with a right checksum announces a frame of a gigabyte, and so does a record in it.
#[test]
fn f37_what_a_length_asks_for_is_not_held_before_a_checksum_backs_it() {
    let size: u64 = 1 << 30;
    let body_size = size as u32 - 200;
    let mut segment = Segment::new();
    let mut builder = crate::storage::format::FrameBuilder::default();
    builder.begin(Vec::new(), identity().seed(), FRAMES_BEGIN);
    builder.push(&put(1, b""));
    builder.reach(body_size as usize - put(1, b"").size());
    let (frame, _) = builder.finish(FrameKind::Data, Position::ZERO, 0);
    segment.bytes.extend_from_slice(&frame[..100]);
    drop(frame);
    // The put claims most of the frame as its body.
    let record = FRAMES_BEGIN as usize + frame_header::SIZE;
    let claimed = (size as u32 - 400).to_le_bytes();
    let at = record + crate::storage::format::put::BODY_SIZE;
    segment.bytes[at..at + 4].copy_from_slice(&claimed);
    let file = Arc::new(Sparse {
        start: segment.bytes,
        size,
    });
    let mut reader = Reader::new(file, identity().seed(), size, FRAMES_BEGIN);
    match reader.step().unwrap() {
        Step::Bad(FrameFault::Record { offset, job }) => {
            assert_eq!((offset as usize, job), (record, Some(JobId(1))));
        }
        other => panic!("{other:?}"),
    }
    assert!(reader.held() <= 2 * CHUNK, "{} bytes", reader.held());
}
