//! Frames: what one commit writes. A frame is valid as a whole or not at all.
//!
//! ```text
//! +--------+-----------+- - - -+-----------+---------+------------------+
//! | header | record    |       | record    | trailer | zeros, up to the |
//! | 48     | BODY_SIZE bytes in all        | 8       | next multiple of 8
//! +--------+-----------+- - - -+-----------+---------+------------------+
//! ```
//!
//! The header's CRC lets a header be recognised on its own, after damage: it is the evidence of
//! what was durable. The trailer's checksum covers all other checksums, so it stands for the whole
//! frame, and the next frame's header repeats it: a missing frame breaks the chain.

use super::record::Record;
use super::{
    EMPTY_FRAME_SIZE, FRAME_ALIGN, FRAME_MAGIC, Seed, TRAILER_MAGIC, VERSION, VERSION_MIN,
    frame_header, frame_trailer, put, set_u32, set_u64, u32_at, u64_at,
};
use crate::types::{JobId, Position};

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Records.
    Data,
    /// No records; says that everything before it is durable.
    Idle,
    /// The last frame of a segment: the log continues in the next one, which exists.
    Seal,
    /// Everything was written before a clean stop.
    CleanStop,
    /// A kind of a later format version. Never written.
    Newer,
}

impl FrameKind {
    /// True if it says that everything before it is durable, and may reach over zeros.
    #[must_use]
    pub(crate) fn is_marker(self) -> bool {
        matches!(self, FrameKind::Idle | FrameKind::CleanStop)
    }

    fn decode(version: u8, byte: u8) -> Option<FrameKind> {
        match byte {
            _ if version == 0 => None,
            _ if u16::from(version) > VERSION => Some(FrameKind::Newer),
            0 => Some(FrameKind::Data),
            1 => Some(FrameKind::Idle),
            2 => Some(FrameKind::Seal),
            3 => Some(FrameKind::CleanStop),
            _ => None,
        }
    }
}

/// Up to which entry of a replicated log the changes are in this log, up to and including the frame
/// that says so; both 0 in a log that is not replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Stamp {
    /// The index of the entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// A decoded frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of all records together.
    pub body_size: u32,
    /// The number of records.
    pub records: u32,
    /// Known to be durable when the frame was formed.
    pub durable: Position,
    /// Up to which entry of a replicated log this is.
    pub stamp: Stamp,
    /// The checksum of the previous frame.
    pub previous: u32,
    /// Its kind.
    pub kind: FrameKind,
    /// The format version that a reader of the frame must support.
    pub version: u8,
    /// The header's own CRC, the start of the frame's checksum.
    pub crc: u32,
}

impl FrameHeader {
    /// Bytes of the whole frame: header, records, trailer, padding.
    #[must_use]
    pub fn frame_size(&self) -> u64 {
        frame_size(u64::from(self.body_size))
    }

    /// Decode a header that lies at `offset`; `None` if it is not one, or belongs to another place.
    #[must_use]
    pub fn decode(bytes: &[u8], seed: Seed, offset: u32) -> Option<FrameHeader> {
        use frame_header as at;
        let bytes = bytes.get(..at::SIZE)?;
        if bytes[..at::CRC] != FRAME_MAGIC {
            return None;
        }
        let crc = u32_at(bytes, at::CRC);
        if seed.crc(offset, &bytes[at::BODY_SIZE..]) != crc {
            return None;
        }
        Some(FrameHeader {
            body_size: u32_at(bytes, at::BODY_SIZE),
            records: u32_at(bytes, at::RECORDS),
            durable: Position::from_bits(u64_at(bytes, at::DURABLE)),
            stamp: Stamp {
                index: u64_at(bytes, at::INDEX),
                term: u64_at(bytes, at::TERM),
            },
            previous: u32_at(bytes, at::PREVIOUS),
            kind: FrameKind::decode(bytes[at::VERSION], bytes[at::KIND])?,
            version: bytes[at::VERSION],
            crc,
        })
    }
}

/// Bytes of a frame with `body_size` bytes of records.
#[must_use]
pub fn frame_size(body_size: u64) -> u64 {
    (EMPTY_FRAME_SIZE as u64 + body_size).next_multiple_of(FRAME_ALIGN as u64)
}

/// Builds one frame in a buffer that is reused for the next frame.
#[derive(Debug, Default)]
pub struct FrameBuilder {
    /// Empty, or the space for the header followed by the records so far.
    bytes: Vec<u8>,
    offset: u32,
    records: u32,
    /// The checksums of the records: together they cost less to sum up than one by one.
    checksums: Vec<u8>,
    seed: u32,
    stamp: Stamp,
    /// What a reader of its records must know.
    version: u16,
}

impl FrameBuilder {
    /// True if no frame has been begun.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of the frame if it were finished now; 0 if none has been begun.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self.bytes.len() {
            0 => 0,
            len => frame_size((len - frame_header::SIZE) as u64),
        }
    }

    /// Where the frame begins in its file.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// The bytes so far: the space for the header, then the records.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Begin a frame at `offset` of the file with `seed`, in `buffer`.
    pub fn begin(&mut self, mut buffer: Vec<u8>, seed: Seed, offset: u32) {
        buffer.clear();
        buffer.resize(frame_header::SIZE, 0);
        let mut checksums = std::mem::take(&mut self.checksums);
        checksums.clear();
        *self = FrameBuilder {
            bytes: buffer,
            offset,
            records: 0,
            checksums,
            seed: seed.0,
            stamp: Stamp::default(),
            version: VERSION_MIN,
        };
    }

    /// The format version that a reader of the records so far must know; valid between
    /// [`FrameBuilder::begin`] and [`FrameBuilder::finish`].
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The frame goes up to this entry of a replicated log. Call it after [`FrameBuilder::begin`].
    pub fn set_stamp(&mut self, stamp: Stamp) {
        self.stamp = stamp;
    }

    /// The number of records so far.
    #[must_use]
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Append a record; returns its offset in the file.
    pub fn push(&mut self, record: &Record<'_>) -> u32 {
        let start = self.bytes.len();
        self.make_room(record.size());
        record.encode(&mut self.bytes);
        self.version = self.version.max(record.version());
        self.end_record(start)
    }

    /// Append a put whose body begins with `begun` bytes that `read` fills in, and ends with those in
    /// the record.
    ///
    /// # Errors
    /// That of `read`; then nothing is appended.
    pub(crate) fn push_behind<E>(
        &mut self,
        begun: usize,
        record: &Record<'_>,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<u32, E> {
        let start = self.bytes.len();
        self.make_room(record.size() + begun);
        record.encode_behind(begun, &mut self.bytes);
        let end = self.bytes.len() - record.body_size();
        match read(&mut self.bytes[end - begun..end]) {
            Ok(()) => Ok(self.end_record(start)),
            Err(error) => {
                self.bytes.truncate(start);
                if self.records == 0 {
                    self.bytes = Vec::new();
                }
                Err(error)
            }
        }
    }

    /// Make room for a record and for the end of the frame: a large frame that grew for its end would
    /// be copied.
    fn make_room(&mut self, size: usize) {
        self.bytes.reserve(size + frame_trailer::SIZE + FRAME_ALIGN);
    }

    #[inline(always)]
    fn end_record(&mut self, start: usize) -> u32 {
        let offset = self.offset + start as u32;
        let crc = Seed(self.seed).crc(offset, &self.bytes[start + put::KIND..]);
        set_u32(&mut self.bytes[start..], put::CRC, crc);
        self.checksums.extend_from_slice(&crc.to_le_bytes());
        self.records += 1;
        offset
    }

    /// Append `size` zeros without meaning, after all records: a marker reaches over them.
    pub(crate) fn reach(&mut self, size: usize) {
        self.bytes.resize(self.bytes.len() + size, 0);
    }

    /// Finish the frame: returns its bytes, ready to be written, and its checksum for the next
    /// frame. `durable` must have been on stable storage before this call: it is evidence.
    #[must_use]
    pub fn finish(&mut self, kind: FrameKind, durable: Position, previous: u32) -> (Vec<u8>, u32) {
        use frame_header as at;
        let mut bytes = std::mem::take(&mut self.bytes);
        let body_size = (bytes.len() - at::SIZE) as u32;
        bytes[..at::CRC].copy_from_slice(&FRAME_MAGIC);
        set_u32(&mut bytes, at::BODY_SIZE, body_size);
        set_u32(&mut bytes, at::RECORDS, self.records);
        set_u64(&mut bytes, at::DURABLE, durable.to_bits());
        set_u64(&mut bytes, at::TERM, self.stamp.term);
        set_u64(&mut bytes, at::INDEX, self.stamp.index);
        set_u32(&mut bytes, at::PREVIOUS, previous);
        bytes[at::KIND] = kind as u8;
        bytes[at::VERSION] = self.version as u8;
        let crc = Seed(self.seed).crc(self.offset, &bytes[at::BODY_SIZE..at::SIZE]);
        set_u32(&mut bytes, at::CRC, crc);
        let checksum = frame_checksum(crc, crc32fast::hash(&self.checksums));
        bytes.extend_from_slice(&TRAILER_MAGIC);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGN), 0);
        (bytes, checksum)
    }
}

/// The checksum of a frame, from its header's CRC and the CRC over all its records' CRCs.
pub(super) fn frame_checksum(header: u32, records: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(records);
    hasher.update(&header.to_le_bytes());
    hasher.finalize()
}

/// A fault of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFault {
    /// There is no valid frame header here.
    Header,
    /// The file ends inside the frame.
    Short,
    /// The frame does not follow the previous one: a frame between them is missing.
    Chain {
        /// The checksum of the previous frame, as this frame gives it.
        expected: u32,
        /// The actual checksum of the previous frame.
        found: u32,
    },
    /// A record at this offset is damaged.
    Record {
        /// Its offset in the file.
        offset: u32,
        /// The job that its bytes name, if it is believable.
        job: Option<JobId>,
    },
    /// The trailer or the padding is damaged.
    Trailer,
    /// Its header is sound, and says that a reader must support this later format version.
    Newer(u8),
}

/// Check every checksum of the frame at the start of `bytes`, which lie at `offset`; `header` is
/// its decoded header. Returns the frame's checksum, which the next frame repeats.
///
/// # Errors
/// The first fault in it: see [`FrameFault`].
pub fn check_frame(
    bytes: &[u8],
    header: &FrameHeader,
    seed: Seed,
    offset: u32,
) -> Result<u32, FrameFault> {
    let whole = usize::try_from(header.frame_size())
        .ok()
        .and_then(|size| bytes.get(..size));
    let Some(bytes) = whole else {
        return Err(FrameFault::Short);
    };
    let (body, trailer) = bytes.split_at(frame_header::SIZE + header.body_size as usize);
    let records = check_records(body, header, seed, offset)?;
    let checksum = frame_checksum(header.crc, records);
    let sound = trailer[..frame_trailer::CHECKSUM] == TRAILER_MAGIC
        && u32_at(trailer, frame_trailer::CHECKSUM) == checksum
        && trailer[frame_trailer::SIZE..].iter().all(|byte| *byte == 0);
    if sound {
        Ok(checksum)
    } else {
        Err(FrameFault::Trailer)
    }
}

/// Check the records after the `header` in `bytes`, which lie at `offset`: exactly as many as it
/// says, and after them only zeros, in a marker. Returns the CRC over their CRCs.
fn check_records(
    bytes: &[u8],
    header: &FrameHeader,
    seed: Seed,
    offset: u32,
) -> Result<u32, FrameFault> {
    let mut at = frame_header::SIZE;
    let mut crcs = crc32fast::Hasher::new();
    let version = u16::from(header.version);
    let fault = |at: usize, job| FrameFault::Record {
        offset: offset + at as u32,
        job,
    };
    for _ in 0..header.records {
        let rest = &bytes[at..];
        // A record of a later version than its frame is damage: an older program would not refuse it.
        let found = Record::check_first(rest, seed, offset + at as u32);
        let found = found.filter(|(needed, _)| *needed <= version);
        let Some((_, size)) = found else {
            return Err(fault(at, Record::believable_job(rest)));
        };
        crcs.update(&rest[put::CRC..put::KIND]);
        at += size;
    }
    let is_all = at == bytes.len();
    if is_all || header.kind.is_marker() && bytes[at..].iter().all(|byte| *byte == 0) {
        Ok(crcs.finalize())
    } else {
        Err(fault(at, None))
    }
}

/// The records of a frame that passed [`check_frame`], with their offsets in the file. In a damaged
/// frame it ends early, without a panic.
pub fn records<'a>(
    bytes: &'a [u8],
    header: &FrameHeader,
    offset: u32,
) -> impl Iterator<Item = (u32, Record<'a>)> {
    let mut at = offset + frame_header::SIZE as u32;
    raw_records(bytes, header).map_while(move |record| {
        let place = at;
        at += record.len() as u32;
        Some((place, Record::decode(record)?))
    })
}

/// The bytes of the records of a frame that passed [`check_frame`].
pub(in crate::storage) fn raw_records<'a>(
    bytes: &'a [u8],
    header: &FrameHeader,
) -> impl Iterator<Item = &'a [u8]> {
    let end = frame_header::SIZE + header.body_size as usize;
    let mut at = frame_header::SIZE;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..end)?;
        let size = Record::size_of(rest)?;
        at += size;
        rest.get(..size)
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples::{
        Parts, frame, header, identity, one_of_each, plain, position, put, seeds,
    };
    use super::super::{FRAME_OVERHEAD_MAX, Identity, LogId, segment_header};
    use super::*;
    use crate::random::Random;
    use crate::types::SegmentId;

    const OFFSET: u32 = 64;

    /// A frame with one record of each kind.
    fn sample() -> Vec<u8> {
        frame(
            &identity(),
            OFFSET,
            FrameKind::Data,
            position(64),
            0,
            &one_of_each(),
        )
        .0
    }

    /// Header and records, if every checksum of the frame is right.
    fn read<'a>(
        bytes: &'a [u8],
        identity: &Identity,
        offset: u32,
    ) -> Option<(FrameHeader, Vec<Record<'a>>)> {
        let seed = identity.seed();
        let header = FrameHeader::decode(bytes, seed, offset)?;
        check_frame(bytes, &header, seed, offset).ok()?;
        Some((
            header,
            records(bytes, &header, offset)
                .map(|(_, record)| record)
                .collect(),
        ))
    }

    #[test]
    fn a_frame_is_read_as_it_was_built() {
        for seed in seeds(300) {
            let mut random = Random::new(seed);
            let parts: Vec<Parts> = (0..random.below(6))
                .map(|_| Parts::random(&mut random))
                .collect();
            let written: Vec<Record<'_>> = parts
                .iter()
                .map(|parts| parts.record(&mut random))
                .collect();
            let offset = random.next() as u32 / 16 * 8;
            let (durable, previous) = (Position::from_bits(random.next()), random.next() as u32);
            let kind = FrameKind::decode(1, random.below(4) as u8).unwrap();
            let version = written.iter().map(Record::version).max().unwrap_or(1);
            let (bytes, checksum) = frame(&identity(), offset, kind, durable, previous, &written);
            let (header, found) = read(&bytes, &identity(), offset).unwrap();
            let plain = |records: &[Record<'_>]| records.iter().map(plain).collect::<Vec<_>>();
            assert_eq!(plain(&found), plain(&written));
            assert_eq!(
                (header.kind, header.durable, header.previous),
                (kind, durable, previous)
            );
            assert_eq!(u16::from(header.version), version);
            assert_eq!(header.frame_size(), bytes.len() as u64);
            assert_eq!(bytes.len() % FRAME_ALIGN, 0);
            let body = written.iter().map(Record::size).sum::<usize>();
            assert!(bytes.len() <= body + FRAME_OVERHEAD_MAX);
            let found = check_frame(&bytes, &header, identity().seed(), offset);
            assert_eq!(found, Ok(checksum));
        }
    }

    #[test]
    fn a_builder_knows_the_size_and_the_places_beforehand() {
        let mut builder = FrameBuilder::default();
        assert!(builder.is_empty());
        assert_eq!(builder.size(), 0);
        builder.begin(vec![1; 5], identity().seed(), OFFSET);
        let places: Vec<u32> = one_of_each()
            .iter()
            .map(|record| builder.push(record))
            .collect();
        let size = builder.size();
        let (bytes, _) = builder.finish(FrameKind::Data, Position::ZERO, 0);
        assert_eq!(bytes.len() as u64, size);
        assert!(builder.is_empty());
        let header = FrameHeader::decode(&bytes, identity().seed(), OFFSET).unwrap();
        assert!(
            records(&bytes, &header, OFFSET)
                .map(|(at, _)| at)
                .eq(places)
        );
    }

    #[test]
    fn of_a_frame_with_any_bit_flipped_no_record_is_handed_out() {
        let bytes = sample();
        assert!(read(&bytes, &identity(), OFFSET).is_some());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            flipped.extend([0; 4096]);
            assert!(read(&flipped, &identity(), OFFSET).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn a_flipped_bit_is_placed_where_it_is() {
        let bytes = sample();
        let seed = identity().seed();
        let header = FrameHeader::decode(&bytes, seed, OFFSET).unwrap();
        let fault_of = |at: usize| {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            check_frame(&flipped, &header, seed, OFFSET).unwrap_err()
        };
        for (place, record) in records(&bytes, &header, OFFSET) {
            let last = (place - OFFSET) as usize + record.size() - 1;
            let job = record.job();
            assert_eq!(fault_of(last), FrameFault::Record { offset: place, job });
        }
        assert_eq!(fault_of(bytes.len() - 1), FrameFault::Trailer);
    }

    #[test]
    fn a_frame_cut_short_at_any_length_is_no_frame() {
        let bytes = sample();
        let header = FrameHeader::decode(&bytes, identity().seed(), OFFSET).unwrap();
        for size in 0..bytes.len() {
            assert!(
                read(&bytes[..size], &identity(), OFFSET).is_none(),
                "{size} bytes"
            );
            let found = check_frame(&bytes[..size], &header, identity().seed(), OFFSET);
            assert_eq!(found, Err(FrameFault::Short), "{size} bytes");
        }
    }

    #[test]
    fn a_frame_torn_at_any_byte_hands_out_no_record() {
        let bytes = sample();
        let padding = bytes.iter().rev().take_while(|byte| **byte == 0).count();
        for fill in [0, 0xff, b'b'] {
            for arrived in 0..bytes.len() - padding {
                let mut torn = vec![fill; bytes.len()];
                torn[..arrived].copy_from_slice(&bytes[..arrived]);
                if torn != bytes {
                    assert!(
                        read(&torn, &identity(), OFFSET).is_none(),
                        "{arrived} bytes"
                    );
                }
            }
        }
    }

    #[test]
    fn a_frame_in_another_place_does_not_parse() {
        let bytes = sample();
        for bit in 0..32 {
            assert!(
                read(&bytes, &identity(), OFFSET ^ 1 << bit).is_none(),
                "offset bit {bit}"
            );
            let first = SegmentId(identity().first.0 ^ 1 << bit);
            let other = Identity {
                first,
                ..identity()
            };
            assert!(read(&bytes, &other, OFFSET).is_none(), "segment {first}");
            let generation = 1 << bit;
            let other = Identity {
                generation,
                ..identity()
            };
            assert!(
                read(&bytes, &other, OFFSET).is_none(),
                "generation {generation}"
            );
        }
        for bit in 0..128 {
            let mut log = identity().log.0;
            log[bit / 8] ^= 1 << (bit % 8);
            let other = Identity {
                log: LogId(log),
                ..identity()
            };
            assert!(read(&bytes, &other, OFFSET).is_none(), "log, bit {bit}");
        }
    }

    #[test]
    fn frames_that_differ_in_anything_have_different_checksums() {
        let of = |kind, durable, previous, records: &[Record<'_>]| {
            frame(
                &identity(),
                OFFSET,
                kind,
                position(durable),
                previous,
                records,
            )
            .1
        };
        let checksums = [
            of(FrameKind::Data, 64, 0, &[put(1, b"a")]),
            of(FrameKind::Data, 64, 0, &[put(1, b"b")]),
            of(FrameKind::Data, 64, 0, &[]),
            of(FrameKind::Data, 65, 0, &[]),
            of(FrameKind::Data, 64, 1, &[]),
            of(FrameKind::Idle, 64, 0, &[]),
        ];
        let distinct: std::collections::HashSet<u32> = checksums.into_iter().collect();
        assert_eq!(distinct.len(), checksums.len());
    }

    /// A header with fields that no builder would write, and a right checksum.
    fn forged(body_size: u32, count: u32, size: usize) -> (Vec<u8>, FrameHeader) {
        use frame_header as at;
        let mut bytes = vec![0; size];
        bytes[..at::CRC].copy_from_slice(&FRAME_MAGIC);
        set_u32(&mut bytes, at::BODY_SIZE, body_size);
        set_u32(&mut bytes, at::RECORDS, count);
        bytes[at::VERSION] = VERSION as u8;
        let crc = identity()
            .seed()
            .crc(OFFSET, &bytes[at::BODY_SIZE..at::SIZE]);
        set_u32(&mut bytes, at::CRC, crc);
        let header = FrameHeader::decode(&bytes, identity().seed(), OFFSET).unwrap();
        (bytes, header)
    }

    #[test]
    fn lengths_and_counts_of_4_gib_in_a_sound_header_are_not_believed() {
        let check = |(bytes, header): (Vec<u8>, FrameHeader)| {
            check_frame(&bytes, &header, identity().seed(), OFFSET)
        };
        assert_eq!(
            check(forged(u32::MAX, u32::MAX, 4096)),
            Err(FrameFault::Short)
        );
        let (_, header) = forged(u32::MAX, 0, 4096);
        assert_eq!(header.frame_size(), (1 << 32) + EMPTY_FRAME_SIZE as u64);
        let no_record = FrameFault::Record {
            offset: OFFSET + frame_header::SIZE as u32,
            job: None,
        };
        assert_eq!(check(forged(0, u32::MAX, EMPTY_FRAME_SIZE)), Err(no_record));
        assert_eq!(check(forged(16, 0, EMPTY_FRAME_SIZE + 16)), Err(no_record));
        assert_eq!(
            check(forged(0, 0, EMPTY_FRAME_SIZE)),
            Err(FrameFault::Trailer)
        );
    }

    /// A header with these bytes, and a right checksum.
    fn of_kind(version: u8, kind: u8) -> Option<FrameHeader> {
        use frame_header as at;
        let (mut bytes, _) = forged(0, 0, EMPTY_FRAME_SIZE);
        (bytes[at::VERSION], bytes[at::KIND]) = (version, kind);
        let crc = identity()
            .seed()
            .crc(OFFSET, &bytes[at::BODY_SIZE..at::SIZE]);
        set_u32(&mut bytes, at::CRC, crc);
        FrameHeader::decode(&bytes, identity().seed(), OFFSET)
    }

    #[test]
    fn an_unknown_kind_of_frame_is_no_frame() {
        assert!(of_kind(1, 3).is_some() && of_kind(2, 3).is_some());
        assert_eq!((of_kind(1, 4), of_kind(0, 3)), (None, None));
        assert_eq!(of_kind(2, 4), None);
    }

    #[test]
    fn the_header_of_a_frame_of_a_later_version_is_told_from_damage() {
        for kind in 0..=u8::MAX {
            let header = of_kind(3, kind).expect("its checksum holds");
            assert_eq!((header.version, header.kind), (3, FrameKind::Newer));
        }
    }

    #[test]
    fn a_frame_says_a_later_version_only_where_a_record_needs_it() {
        let all = one_of_each();
        let version = |records: &[Record<'_>]| {
            let (bytes, _) = frame(
                &identity(),
                OFFSET,
                FrameKind::Data,
                position(0),
                0,
                records,
            );
            bytes[frame_header::VERSION]
        };
        for record in &all {
            let needed = record.version() as u8;
            assert_eq!(version(&[*record]), needed);
            assert_eq!(version(&[all[1], *record, all[2]]), needed);
        }
        assert_eq!(version(&[]), 1);
        // Also after a frame that needed it, from the same builder.
        let mut builder = FrameBuilder::default();
        for (record, needed) in [(&all[7], 2), (&all[1], 1)] {
            builder.begin(Vec::new(), identity().seed(), OFFSET);
            builder.push(record);
            let (bytes, _) = builder.finish(FrameKind::Data, position(0), 0);
            assert_eq!(bytes[frame_header::VERSION], needed);
        }
    }

    #[test]
    fn a_record_of_a_later_version_than_its_frame_is_damage() {
        let mut bytes = sample();
        let seed = identity().seed();
        bytes[frame_header::VERSION] = 1;
        let crc = seed.crc(OFFSET, &bytes[frame_header::BODY_SIZE..frame_header::SIZE]);
        set_u32(&mut bytes, frame_header::CRC, crc);
        let header = FrameHeader::decode(&bytes, seed, OFFSET).unwrap();
        let fault = check_frame(&bytes, &header, seed, OFFSET).unwrap_err();
        assert!(matches!(fault, FrameFault::Record { .. }), "{fault:?}");
    }

    #[test]
    fn a_segment_header_is_never_taken_for_a_frame() {
        let bytes = header().encode();
        assert_eq!(bytes.len(), segment_header::SIZE);
        assert_eq!(FrameHeader::decode(&bytes, identity().seed(), 0), None);
    }
}
