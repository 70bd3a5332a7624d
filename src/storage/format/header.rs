//! The first 64 bytes of a segment file.
//!
//! A file is identified by its header, under a checksum, by its name, and by the list in the newest
//! segment. If they differ, a file was moved: the header decides what the file is, the list decides
//! what the log needs, and the name decides nothing.

use super::names::file_name;
use super::{
    SEGMENT_MAGIC, Seed, VERSION, VERSION_MIN, segment_header, set_u16, set_u32, set_u64, u16_at,
    u32_at, u64_at,
};
use crate::types::{Position, SegmentId};

const FLAG_COMPACTED: u16 = 1;

/// The random number that all files of one log share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogId(pub [u8; 16]);

/// The identity of a file, as its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The log it belongs to.
    pub log: LogId,
    /// Its number, or the first of those merged into it.
    pub first: SegmentId,
    /// The last number merged into it.
    pub last: SegmentId,
    /// How often it was rewritten.
    pub generation: u32,
}

impl Identity {
    /// The identity of a new file: it holds one segment, and was never rewritten.
    #[must_use]
    pub fn new(log: LogId, segment: SegmentId) -> Identity {
        Identity {
            log,
            first: segment,
            last: segment,
            generation: 0,
        }
    }

    /// The start value of this file's checksums.
    #[must_use]
    pub fn seed(&self) -> Seed {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.log.0);
        hasher.update(&self.first.0.to_le_bytes());
        hasher.update(&self.generation.to_le_bytes());
        Seed(hasher.finalize())
    }

    /// The file's name.
    #[must_use]
    pub fn file_name(&self) -> String {
        file_name(self.first, self.generation)
    }
}

/// A decoded segment header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The format version that a reader of this header and of the first frame must know.
    pub version: u16,
    /// The identity of the file.
    pub identity: Identity,
    /// True for a file that compaction wrote: it was complete before it got its name.
    pub compacted: bool,
    /// When the file was filtered, all deletes logged before this position were known.
    pub filtered_at: Position,
    /// The history of the log that it belongs to: see the layout.
    pub epoch: u32,
    /// Wall time, ns since 1970.
    pub created_wall_ns: u64,
}

/// Why a segment header could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderFault {
    /// Fewer bytes than a header.
    Short,
    /// Not the magic of a segment.
    NotASegment,
    /// A different format version.
    Version(u16),
    /// The checksum is wrong.
    Checksum {
        /// The checksum in the file.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// It says that its last segment comes before its first one.
    Order {
        /// The last one.
        last: SegmentId,
    },
}

/// The message for a segment or a frame that only a later version of the program can read.
pub(in crate::storage) fn newer(version: u16) -> String {
    format!(
        "it has format version {version}, this program reads version {VERSION}; use the bsd that \
         wrote it, or a newer one"
    )
}

impl SegmentHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; segment_header::SIZE] {
        use segment_header as at;
        let mut bytes = [0; at::SIZE];
        bytes[at::MAGIC..at::VERSION].copy_from_slice(&SEGMENT_MAGIC);
        set_u16(&mut bytes, at::VERSION, self.version);
        set_u16(
            &mut bytes,
            at::FLAGS,
            if self.compacted { FLAG_COMPACTED } else { 0 },
        );
        set_u32(&mut bytes, at::FIRST, self.identity.first.0);
        set_u32(&mut bytes, at::LAST, self.identity.last.0);
        set_u32(&mut bytes, at::GENERATION, self.identity.generation);
        bytes[at::LOG_ID..at::FILTERED_AT].copy_from_slice(&self.identity.log.0);
        set_u64(&mut bytes, at::FILTERED_AT, self.filtered_at.to_bits());
        set_u64(&mut bytes, at::CREATED, self.created_wall_ns);
        set_u32(&mut bytes, at::EPOCH, self.epoch);
        let crc = crc32fast::hash(&bytes[..at::CRC]);
        set_u32(&mut bytes, at::CRC, crc);
        bytes
    }

    /// Decode and check a header.
    ///
    /// The checksum is checked before the version: a flipped bit must not look like a newer
    /// version. Every version keeps the places of the magic, the version, and the checksum of the
    /// first 60 bytes.
    ///
    /// # Errors
    /// See [`HeaderFault`]; never an I/O error.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderFault> {
        use segment_header as at;
        let bytes = bytes.get(..at::SIZE).ok_or(HeaderFault::Short)?;
        if bytes[..at::VERSION] != SEGMENT_MAGIC {
            return Err(HeaderFault::NotASegment);
        }
        let computed = crc32fast::hash(&bytes[..at::CRC]);
        let stored = u32_at(bytes, at::CRC);
        let version = u16_at(bytes, at::VERSION);
        if computed != stored {
            return Err(HeaderFault::Checksum { stored, computed });
        }
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(HeaderFault::Version(version));
        }
        let first = SegmentId(u32_at(bytes, at::FIRST));
        let last = SegmentId(u32_at(bytes, at::LAST));
        if last < first {
            return Err(HeaderFault::Order { last });
        }
        let mut log = [0; 16];
        log.copy_from_slice(&bytes[at::LOG_ID..at::FILTERED_AT]);
        Ok(SegmentHeader {
            version,
            identity: Identity {
                log: LogId(log),
                first,
                last,
                generation: u32_at(bytes, at::GENERATION),
            },
            compacted: u16_at(bytes, at::FLAGS) & FLAG_COMPACTED != 0,
            filtered_at: Position::from_bits(u64_at(bytes, at::FILTERED_AT)),
            epoch: u32_at(bytes, at::EPOCH),
            created_wall_ns: u64_at(bytes, at::CREATED),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{header, identity, number, seeds};
    use super::*;
    use crate::random::Random;

    fn random_header(random: &mut Random) -> SegmentHeader {
        let ends = [(); 2].map(|()| SegmentId(number(random) as u32));
        SegmentHeader {
            version: VERSION_MIN + random.below(2) as u16,
            identity: Identity {
                log: LogId(std::array::from_fn(|_| random.next() as u8)),
                first: ends[0].min(ends[1]),
                last: ends[0].max(ends[1]),
                generation: number(random) as u32,
            },
            compacted: random.below(2) == 1,
            filtered_at: Position::from_bits(number(random)),
            epoch: number(random) as u32,
            created_wall_ns: number(random),
        }
    }

    #[test]
    fn a_header_is_decoded_as_it_was_encoded() {
        for seed in seeds(200) {
            let header = random_header(&mut Random::new(seed));
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_detected() {
        let bytes = header().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let fault = SegmentHeader::decode(&flipped).unwrap_err();
            // A flipped version is damage, not a version.
            assert!(!matches!(fault, HeaderFault::Version(_)), "bit {bit}");
        }
    }

    #[test]
    fn a_header_cut_short_at_any_length_is_short() {
        let bytes = header().encode();
        for size in 0..bytes.len() {
            assert_eq!(
                SegmentHeader::decode(&bytes[..size]),
                Err(HeaderFault::Short)
            );
        }
    }

    #[test]
    fn a_sound_header_of_another_version_is_told_from_a_damaged_one() {
        for version in [0, 3, u16::MAX] {
            let mut bytes = header().encode();
            set_u16(&mut bytes, segment_header::VERSION, version);
            let crc = crc32fast::hash(&bytes[..segment_header::CRC]);
            set_u32(&mut bytes, segment_header::CRC, crc);
            let fault = SegmentHeader::decode(&bytes).unwrap_err();
            assert_eq!(fault, HeaderFault::Version(version));
        }
    }

    #[test]
    fn a_header_whose_last_segment_comes_before_its_first_one_is_damaged() {
        let mut header = header();
        let first = header.identity.first;
        header.identity.last = SegmentId(first.0 - 1);
        let fault = SegmentHeader::decode(&header.encode()).unwrap_err();
        let last = header.identity.last;
        assert_eq!(fault, HeaderFault::Order { last });
    }

    #[test]
    fn a_file_of_something_else_is_not_a_segment() {
        assert_eq!(
            SegmentHeader::decode(&[b'x'; 100]),
            Err(HeaderFault::NotASegment)
        );
        assert_eq!(
            SegmentHeader::decode(&[0; 100]),
            Err(HeaderFault::NotASegment)
        );
    }

    #[test]
    fn no_two_of_the_first_thousand_segments_and_generations_share_a_seed() {
        let mut seeds = std::collections::HashSet::new();
        for number in 0..1000 {
            let first = SegmentId(number);
            assert!(
                seeds.insert(
                    Identity {
                        first,
                        ..identity()
                    }
                    .seed()
                    .0
                ),
                "segment {number}"
            );
            if number != 0 {
                let generation = number;
                let seed = Identity {
                    generation,
                    ..identity()
                }
                .seed();
                assert!(seeds.insert(seed.0), "generation {number}");
            }
        }
    }
}
