//! The bytes of the log. No other module knows an offset; but the list in the attributes of a job is
//! described by [`crate::attributes`], because the queue keeps it as it is.
//!
//! A segment is a header and then frames; a frame is a header, records and a trailer. Every number
//! is little-endian. `storage-format.md` describes the same in prose; a test compares its tables
//! with the ones below. Nothing here reads a file or decides anything: bytes in, values out.
//!
//! | where | what |
//! |---|---|
//! | here | where each field lies; what checksums start from |
//! | `header` | the header of a segment |
//! | `names` | every name of a file in a directory |
//! | `frame` | frames: built, and checked as a whole |
//! | `record` | records, and what each of them contains |
//! | `claim` | what a damaged record may have been |
//!
//! Decoding never panics, and never allocates what a length field announces, whatever the bytes
//! are: a length is trusted only as far as there are bytes for it, and content only after its
//! checksum was checked. A record is returned only after its whole frame was checked. Bodies are
//! the exception: they are read one by one, and each has a checksum.
//!
//! **Checksums locate.** The CRC-32 of a frame header and of each record starts from a seed made
//! from the log's id, the segment and its generation, mixed with the byte offset. Bytes at a wrong
//! place, or left by an earlier file, do not parse, even if they are intact.

#[cfg(any(test, feature = "sim"))]
pub mod any_bytes;
mod claim;
#[cfg(test)]
mod document;
mod entry_data;
#[cfg(test)]
mod example;
mod frame;
mod header;
pub(in crate::storage) mod names;
mod record;
#[cfg(test)]
pub(in crate::storage) mod samples;

pub(in crate::storage) use self::frame::raw_records;
pub(crate) use claim::{Claim, JobEvent};
pub(in crate::storage) use entry_data::entry_data;
pub use entry_data::entry_records;
pub use frame::{
    FrameBuilder, FrameFault, FrameHeader, FrameKind, Stamp, check_frame, frame_size, records,
};
pub(in crate::storage) use header::newer;
pub use header::{HeaderFault, Identity, LogId, SegmentHeader};
pub use names::{file_name, parse_file_name};
pub use record::{Entries, Entry, Record, attributes_size, put_size, setting_size};

/// The smallest segment file, bytes.
pub const SEGMENT_SIZE_MIN: u32 = 64 << 10;
/// The largest segment file that may be asked for, bytes. A job larger than this gets a file of its
/// own that fits it.
pub const SEGMENT_SIZE_MAX: u32 = 2 << 30;
/// The default size of a segment file, bytes.
pub const SEGMENT_SIZE_DEFAULT: u32 = 64 << 20;

/// One field of a layout, for the tables of `storage-format.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Its meaning.
    pub meaning: &'static str,
}

/// Declares a structure as a list of fields: a constant for each offset, the size of the fixed
/// part, and the table that the format document repeats.
macro_rules! layout {
    ($(#[$doc:meta])* $module:ident { $($name:ident @ $offset:literal + $size:literal: $meaning:literal),* $(,)? }) => {
        $(#[$doc])*
        pub mod $module {
            use super::Field;
            $(#[doc = $meaning] pub const $name: usize = $offset;)*
            /// The size of the fixed part, in bytes.
            pub const SIZE: usize = {
                let mut end = 0;
                $(assert!($offset == end, "fields follow each other without gaps"); end += $size;)*
                end
            };
            /// The fields in order.
            pub const FIELDS: &[Field] = &[
                $(Field { name: stringify!($name), offset: $offset, size: $size, meaning: $meaning }),*
            ];
        }
    };
}

layout! {
    /// The first bytes of every segment file.
    segment_header {
        MAGIC @ 0 + 8: "`BSDLOG\\r\\n`",
        VERSION @ 8 + 2: "format version that a reader of the header and the first frame must know, 1 or 2",
        FLAGS @ 10 + 2: "bit 0: written by compaction; all others 0",
        FIRST @ 12 + 4: "number of the segment; of the first one where compaction merged several",
        LAST @ 16 + 4: "number of the last segment merged into this file; else equal to FIRST",
        GENERATION @ 20 + 4: "0 as first written; one more each time compaction rewrites it",
        LOG_ID @ 24 + 16: "random, the same in every file of one log",
        FILTERED_AT @ 40 + 8: "position up to which compaction knew of deletes; 0 in generation 0",
        CREATED @ 48 + 8: "wall time of creation, ns since 1970, for people only",
        EPOCH @ 56 + 4: "1 in a new log; one more with each restore: which of two histories of one log",
        CRC @ 60 + 4: "CRC-32 of bytes 0..60",
    }
}

layout! {
    /// The start of a frame.
    frame_header {
        MAGIC @ 0 + 4: "`bFRM`",
        CRC @ 4 + 4: "seeded CRC-32 of the header without this field",
        BODY_SIZE @ 8 + 4: "bytes of all records",
        RECORDS @ 12 + 4: "how many records",
        DURABLE @ 16 + 8: "position known durable when the frame was formed",
        TERM @ 24 + 8: "term of the entry INDEX; 0 without one",
        INDEX @ 32 + 8: "entry of a replicated log up to which this goes, or 0",
        PREVIOUS @ 40 + 4: "checksum in the trailer of the frame before; 0 in a file's first frame",
        KIND @ 44 + 1: "0 data, 1 idle marker, 2 seal, 3 clean stop",
        VERSION @ 45 + 1: "format version that a reader of the frame must know, 1 or 2",
        RESERVED @ 46 + 2: "0",
    }
}

layout! {
    /// The end of a frame, directly after its records; zeros up to the next multiple of 8 follow.
    frame_trailer {
        MAGIC @ 0 + 4: "`bEND`",
        CHECKSUM @ 4 + 4: "CRC-32 over every record's CRC in order and then the header's CRC",
    }
}

layout! {
    /// A new job; the tube's name and then the body follow the fixed part.
    put {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "1",
        TUBE_SIZE @ 5 + 1: "bytes of the tube's name, 1 to 200",
        RESERVED @ 6 + 2: "0",
        ID @ 8 + 8: "the job's id",
        CREATED @ 16 + 8: "wall time of the put, ns since 1970",
        PRI @ 24 + 4: "priority",
        DELAY @ 28 + 4: "seconds; not 0: delayed until CREATED + DELAY",
        TTR @ 32 + 4: "seconds",
        BODY_SIZE @ 36 + 4: "bytes of the body",
    }
}

layout! {
    /// The whole mutable state of a job.
    update {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "2",
        STATE @ 5 + 1: "0 ready, 1 delayed, 2 buried",
        KICK @ 6 + 2: "number of the kick under way that it belongs to; 0: to none",
        ID @ 8 + 8: "the job's id",
        DEADLINE @ 16 + 8: "wall time at which a delayed job falls due, ns since 1970; else 0",
        PRI @ 24 + 4: "priority",
        DELAY @ 28 + 4: "seconds, as last asked for",
        RESERVES @ 32 + 4: "times reserved",
        TIMEOUTS @ 36 + 4: "times timed out",
        RELEASES @ 40 + 4: "times released",
        BURIES @ 44 + 4: "times buried",
        KICKS @ 48 + 4: "times kicked",
    }
}

layout! {
    /// The job is gone.
    delete {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "3",
        RESERVED @ 5 + 3: "0",
        ID @ 8 + 8: "the job's id",
        PUT_SEGMENT @ 16 + 4: "number of the segment that held its put record",
    }
}

layout! {
    /// A tube is paused; the tube's name follows.
    pause {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "4",
        TUBE_SIZE @ 5 + 1: "bytes of the tube's name, 1 to 200",
        RESERVED @ 6 + 2: "0",
        UNTIL @ 8 + 8: "wall time at which the pause ends, ns since 1970; 0 lifts it",
        DURATION @ 16 + 4: "seconds, as asked for",
    }
}

layout! {
    /// All files of the log but this one, the first record of every segment of generation 0;
    /// entries follow.
    manifest {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "5",
        RESERVED @ 5 + 3: "0",
        NEXT_ID @ 8 + 8: "no job with this id or a greater one was put before",
        ENTRIES @ 16 + 4: "how many entries follow",
    }
}

layout! {
    /// Compaction replaced files; the removed entries and then the added ones follow.
    switch {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "6",
        RESERVED @ 5 + 3: "0",
        REMOVED @ 8 + 4: "how many files went",
        ADDED @ 12 + 4: "how many files came, 0 or 1",
    }
}

layout! {
    /// A kick of several jobs is under way; the tube's name follows.
    kick {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "7",
        TUBE_SIZE @ 5 + 1: "bytes of the tube's name, 1 to 200",
        RESERVED @ 6 + 2: "0",
        NUMBER @ 8 + 4: "which of the kicks under way, 1 to 65535",
        LEFT @ 12 + 4: "how many jobs it has still to kick; 0: it is over",
        RESERVED_TOO @ 16 + 4: "0",
        STATE @ 20 + 4: "what it kicks: 1 delayed jobs, 2 buried ones",
        DUE @ 24 + 8: "wall time, ns since 1970: delayed jobs that were due by then are not kicked",
    }
}

layout! {
    /// A named setting of the log; the name and then the value follow.
    setting {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "8",
        NAME_SIZE @ 5 + 1: "bytes of the name, 1 to 200",
        CLASS @ 6 + 1: "1 policy of a tube or of a pattern of tubes, 2 schedule, 3 how far a schedule has come, 4 a part of a clear of a tube that is not over",
        RESERVED @ 7 + 1: "0",
        VALUE_SIZE @ 8 + 4: "bytes of the value, at most 65536; 0 removes the setting",
    }
}

layout! {
    /// What a job has beyond a plain job; the list of it follows.
    attributes {
        CRC @ 0 + 4: "seeded CRC-32 of the rest of the record",
        KIND @ 4 + 1: "9",
        RESERVED @ 5 + 1: "0",
        LIST_SIZE @ 6 + 2: "bytes of the list, at most 4944",
        ID @ 8 + 8: "the job's id",
        RESERVED_TOO @ 16 + 4: "0",
    }
}

layout! {
    /// An entry of the list of a job's attributes; its content follows.
    attribute {
        TAG @ 0 + 1: "what it is",
        CONTENT_SIZE @ 1 + 2: "bytes of the content",
    }
}

layout! {
    /// One file of the log, in a manifest or a switch.
    entry {
        FIRST @ 0 + 4: "FIRST of the file's header",
        LAST @ 4 + 4: "LAST of the file's header",
        GENERATION @ 8 + 4: "GENERATION of the file's header",
        END @ 12 + 4: "where its last frame ends, in bytes",
    }
}

/// The magic at the start of a segment.
pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"BSDLOG\r\n";
/// The greatest format version that this program reads; it reads all before it. It writes this one
/// where a frame needs it.
pub const VERSION: u16 = 2;
/// The format version of frames and segments that need no later one.
pub const VERSION_MIN: u16 = 1;
/// The epoch of a new log.
pub(crate) const EPOCH_MIN: u32 = 1;
/// The magic at the start of a frame.
pub const FRAME_MAGIC: [u8; 4] = *b"bFRM";
const TRAILER_MAGIC: [u8; 4] = *b"bEND";
/// Frames begin at multiples of this.
pub(crate) const FRAME_ALIGN: usize = 8;
/// Bytes of a frame in addition to its records, padding included.
pub(crate) const FRAME_OVERHEAD_MAX: usize =
    frame_header::SIZE + frame_trailer::SIZE + FRAME_ALIGN - 1;
/// The bytes of a frame without records.
pub const EMPTY_FRAME_SIZE: usize = frame_header::SIZE + frame_trailer::SIZE;

/// A marker reaches into the next page of this size, in bytes, so that the loss of either page is
/// noticed.
pub const PAGE_SIZE: u32 = 4096;

/// The start value of a file's checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(u32);

impl Seed {
    /// The CRC of bytes that lie at `offset`. Two offsets in a file never give the same bytes the
    /// same CRC: a CRC is a bijection of the value it starts from.
    fn crc(self, offset: u32, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0 ^ offset);
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// The check of one record's CRC, a part at a time.
#[derive(Debug)]
pub(crate) struct RecordCheck {
    hasher: crc32fast::Hasher,
    /// The CRC stored in the record, as far as it was read.
    stored: Vec<u8>,
}

impl RecordCheck {
    /// Start to check a record at `offset`.
    pub(crate) fn begin(seed: Seed, offset: u32) -> RecordCheck {
        RecordCheck {
            hasher: crc32fast::Hasher::new_with_initial(seed.0 ^ offset),
            stored: Vec::new(),
        }
    }

    /// Add the next bytes of the record.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let head = bytes.len().min(put::KIND - self.stored.len());
        self.stored.extend_from_slice(&bytes[..head]);
        self.hasher.update(&bytes[head..]);
    }

    /// True if the bytes are what was written.
    pub(crate) fn holds(&self) -> bool {
        self.stored == self.hasher.clone().finalize().to_le_bytes()
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn set_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn set_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn set_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
