//! Reading segments: the one reader that recovery, compaction and every tool use.
//!
//! The reader returns frames in which every checksum is right, and says where and why it stopped.
//! How a log ends is a value, not an error; an `Err` always means that the disk did not answer. The
//! reader never decides what an end means: [`verdict`] does, from facts, by a table.

use std::io;
use std::sync::Arc;

use crate::storage::disk::zeros::data_end;
use crate::storage::disk::{ReadFile, read_exact_at};
use crate::storage::format::{
    FRAME_ALIGN, FRAME_MAGIC, FrameFault, FrameHeader, FrameKind, Record, RecordCheck, Seed,
    check_frame, frame_header, newer, put, raw_records, records,
};
use crate::types::Position;

/// Bytes requested from the file at once. Frames begin at the same multiples in every chunk.
const CHUNK: usize = 1 << 20;
/// A frame of more bytes than this is checked in parts before it is held in memory.
const HELD_MAX: u64 = 16 << 20;

/// A frame that passed all checks.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Its offset in the file.
    pub at: u32,
    /// Its header.
    pub header: FrameHeader,
    /// All its bytes.
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Its records and their offsets in the file.
    pub fn records(&self) -> impl Iterator<Item = (u32, Record<'a>)> {
        records(self.bytes, &self.header, self.at)
    }

    /// The bytes of each of its records.
    pub(super) fn raw_records(&self) -> impl Iterator<Item = &'a [u8]> {
        raw_records(self.bytes, &self.header)
    }

    /// The bytes of one of its records.
    #[must_use]
    pub(crate) fn record_bytes(&self, offset: u32, record: &Record<'_>) -> &'a [u8] {
        let from = (offset - self.at) as usize;
        &self.bytes[from..from + record.size()]
    }

    /// Where the next frame begins.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.at + self.bytes.len() as u32
    }
}

/// Result of reading the place where the next frame should begin.
#[derive(Debug)]
pub enum Step<'a> {
    /// A sound frame; the reader is now after it.
    Frame(Frame<'a>),
    /// No sound frame; the reader has not moved.
    Bad(FrameFault),
}

/// Reads the frames of one segment file in order.
#[derive(Debug)]
pub struct Reader {
    file: Arc<dyn ReadFile>,
    seed: Seed,
    size: u64,
    at: u32,
    /// The checksum of the previous frame; unknown after [`Reader::skip_to`].
    previous: Option<u32>,
    window: Window,
}

impl Reader {
    /// A reader of `file`, which is `size` bytes long, that begins at byte `at`: for a whole
    /// segment, the end of its header. Positions have 32 bits: if something else made the file
    /// larger, the rest is not read.
    #[must_use]
    pub fn new(file: Arc<dyn ReadFile>, seed: Seed, size: u64, at: u32) -> Reader {
        let size = size.min(u64::from(u32::MAX));
        Reader {
            file,
            seed,
            size,
            at,
            previous: Some(0),
            window: Window::default(),
        }
    }

    /// Where the next frame should begin.
    #[must_use]
    pub fn at(&self) -> u32 {
        self.at
    }

    /// The checksum of the last frame read; 0 before the first.
    #[must_use]
    pub fn previous(&self) -> u32 {
        self.previous.unwrap_or(0)
    }

    /// Bytes of the file that are held in memory.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::storage) fn held(&self) -> usize {
        self.window.bytes.len()
    }

    /// The checksum of the frame before the reader's position, if it was read.
    pub(in crate::storage) fn known_previous(&self) -> Option<u32> {
        self.previous
    }

    /// Read another file of `size` bytes from now on.
    pub(in crate::storage) fn read_in(&mut self, file: Arc<dyn ReadFile>, size: u64) {
        self.file = file;
        self.size = size.min(u64::from(u32::MAX));
        self.refresh();
    }

    /// Continue at another offset, after damage: the chain of frames is not checked there.
    pub fn skip_to(&mut self, at: u32) {
        self.at = at;
        self.previous = None;
    }

    /// Discard what was read ahead: a file that is being written may have more by now.
    pub(crate) fn refresh(&mut self) {
        self.window = Window::default();
    }

    /// Check the frame at the reader's position, and move after it if it is sound.
    ///
    /// # Errors
    /// If the disk does not return the bytes; the reader has not moved.
    pub fn step(&mut self) -> io::Result<Step<'_>> {
        let at = self.at;
        let rest = self.size.saturating_sub(u64::from(at));
        if rest < frame_header::SIZE as u64 {
            return Ok(Step::Bad(FrameFault::Short));
        }
        let bytes = self
            .window
            .get(&*self.file, self.size, at, frame_header::SIZE)?;
        let Some(header) = FrameHeader::decode(bytes, self.seed, at) else {
            return Ok(Step::Bad(FrameFault::Header));
        };
        if header.kind == FrameKind::Newer {
            return Ok(Step::Bad(FrameFault::Newer(header.version)));
        }
        if header.frame_size() > rest {
            return Ok(Step::Bad(FrameFault::Short));
        }
        if let Some(found) = self.previous
            && header.previous != found
        {
            return Ok(Step::Bad(FrameFault::Chain {
                expected: header.previous,
                found,
            }));
        }
        // The bytes that a length announces are held in memory only after checksums confirm it.
        if header.frame_size() > HELD_MAX
            && let Err(fault) = self.check_by_parts(&header, at)?
        {
            return Ok(Step::Bad(fault));
        }
        let bytes = self
            .window
            .get(&*self.file, self.size, at, header.frame_size() as usize)?;
        match check_frame(bytes, &header, self.seed, at) {
            Err(fault) => Ok(Step::Bad(fault)),
            Ok(checksum) => {
                self.previous = Some(checksum);
                self.at = at + bytes.len() as u32;
                Ok(Step::Frame(Frame { at, header, bytes }))
            }
        }
    }

    /// Check the records of the frame at `at`, each in parts.
    fn check_by_parts(
        &mut self,
        header: &FrameHeader,
        at: u32,
    ) -> io::Result<Result<(), FrameFault>> {
        let first = u64::from(at) + frame_header::SIZE as u64;
        let end = first + u64::from(header.body_size);
        let mut next = first;
        for _ in 0..header.records {
            let offset = next as u32;
            let fault = Ok(Err(FrameFault::Record { offset, job: None }));
            let rest = end - next;
            let fixed = put::SIZE.min(rest as usize);
            let bytes = self.window.get(&*self.file, self.size, offset, fixed)?;
            let claimed = Record::size_claimed(bytes).filter(|size| *size <= rest);
            let job = Record::believable_job(bytes);
            let Some(size) = claimed else {
                return fault;
            };
            if !self.is_checked(offset, size)? {
                return Ok(Err(FrameFault::Record { offset, job }));
            }
            next += size;
        }
        Ok(Ok(()))
    }

    /// True if the CRC of the record of `size` bytes at `at`, read in parts, is right.
    fn is_checked(&mut self, at: u32, size: u64) -> io::Result<bool> {
        let (file, file_size, window) = (&*self.file, self.size, &mut self.window);
        check_record(self.seed, at, size, &mut |from, count| {
            window.get(file, file_size, from, count).map(<[u8]>::to_vec)
        })
    }

    /// Examine everything from the reader's position, where no sound frame begins, to the end of
    /// the file. Does not move the reader.
    ///
    /// # Errors
    /// If the disk does not return the bytes: then nothing is known about what follows.
    pub fn look_ahead(&mut self) -> io::Result<Lookahead> {
        let mut ahead = Lookahead::default();
        let mut at = self.at;
        while u64::from(at) < self.size {
            let size = CHUNK.min((self.size - u64::from(at)) as usize);
            let bytes = self.window.get(&*self.file, self.size, at, size)?;
            let end = data_end(bytes);
            if end > 0 {
                ahead.garbage_end = at + end as u32;
                ahead.look_for_frames(bytes, self.seed, at, self.at);
            }
            // Headers may straddle chunks: the next chunk begins a header's length earlier.
            let step = if size < CHUNK {
                size
            } else {
                size - frame_header::SIZE
            };
            at += step as u32;
        }
        Ok(ahead)
    }
}

/// True if the CRC of the record of `size` bytes at `at` is right; `read` returns parts of at most
/// [`CHUNK`] bytes.
pub(in crate::storage) fn check_record(
    seed: Seed,
    at: u32,
    size: u64,
    read: &mut dyn FnMut(u32, usize) -> io::Result<Vec<u8>>,
) -> io::Result<bool> {
    let mut check = RecordCheck::begin(seed, at);
    let mut done = 0;
    while done < size {
        let count = CHUNK.min((size - done) as usize);
        let bytes = read(at + done as u32, count)?;
        if bytes.len() < count {
            return Ok(false);
        }
        check.update(&bytes);
        done += count as u64;
    }
    Ok(check.holds())
}

/// A part of the file in memory.
#[derive(Debug, Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// `size` bytes at `at`, which lie inside the file; reads ahead.
    fn get(
        &mut self,
        file: &dyn ReadFile,
        file_size: u64,
        at: u32,
        size: usize,
    ) -> io::Result<&[u8]> {
        let at = u64::from(at);
        let held = at >= self.start && at + size as u64 <= self.start + self.bytes.len() as u64;
        if !held {
            let want = size.max(CHUNK).min((file_size - at) as usize);
            self.bytes.resize(want, 0);
            self.start = at;
            if let Err(error) = read_exact_at(file, &mut self.bytes, at) {
                self.bytes.clear();
                return Err(error);
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + size])
    }
}

/// The bytes after a place where no sound frame begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lookahead {
    /// Where the last byte that is not zero ends; 0 if all are zero.
    pub garbage_end: u32,
    /// The first offset after the place at which a valid frame header lies.
    pub next_frame: Option<u32>,
    /// The greatest durable position that any valid frame header after the place names.
    pub durable: Position,
    /// The number of valid frame headers after the place. One that crosses the border of two chunks
    /// may count twice.
    pub frames: u32,
}

impl Lookahead {
    fn look_for_frames(&mut self, bytes: &[u8], seed: Seed, start: u32, bad: u32) {
        // Chunks begin at multiples of 8, and so do frames.
        for (index, word) in bytes.chunks(FRAME_ALIGN).enumerate() {
            if !word.starts_with(&FRAME_MAGIC) {
                continue;
            }
            let from = index * FRAME_ALIGN;
            let at = start + from as u32;
            if at <= bad {
                continue;
            }
            if let Some(header) = FrameHeader::decode(&bytes[from..], seed, at) {
                self.next_frame.get_or_insert(at);
                self.frames += 1;
                self.durable = self.durable.max(header.durable);
            }
        }
    }
}

/// The facts from which the end of a segment is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndFacts {
    /// The sound frames end exactly where the log's manifest says that the segment ends.
    pub complete: bool,
    /// Something sound says that more than this was durable.
    pub attested: bool,
    /// Bytes that are not zero follow.
    pub garbage: bool,
}

/// How a segment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// At the recorded end: everything is there.
    Whole,
    /// In unused zeros: no write was in progress.
    Clean,
    /// In a frame that a crash interrupted; nothing in it was acknowledged.
    Torn,
    /// In the middle of durable data: damage.
    Corrupt,
}

/// One row of the decision table: `None` stands for either value.
#[derive(Debug, Clone, Copy)]
pub struct EndRule {
    /// See [`EndFacts::complete`].
    pub complete: Option<bool>,
    /// See [`EndFacts::attested`].
    pub attested: Option<bool>,
    /// See [`EndFacts::garbage`].
    pub garbage: Option<bool>,
    /// The verdict.
    pub end: End,
    /// How this state arises on a disk, and what is done.
    pub story: &'static str,
}

/// The meaning of a segment's end. Every combination of facts matches exactly one row.
pub const END_RULES: &[EndRule] = &[
    EndRule {
        complete: Some(true),
        attested: None,
        garbage: None,
        end: End::Whole,
        story: "the segment was finished and the next one begun; what follows its end (zeros set \
                aside, a tail that an earlier start cut off) is not read",
    },
    EndRule {
        complete: Some(false),
        attested: Some(true),
        garbage: None,
        end: End::Corrupt,
        story: "a later frame says that more than this was on stable storage: bytes that were \
                acknowledged are gone or changed; the server refuses to start",
    },
    EndRule {
        complete: Some(false),
        attested: Some(false),
        garbage: Some(false),
        end: End::Clean,
        story: "the log ends in the zeros written ahead of it: a clean stop, a kill, or a crash \
                before anything of the next frame reached the disk; the log continues here",
    },
    EndRule {
        complete: Some(false),
        attested: Some(false),
        garbage: Some(true),
        end: End::Torn,
        story: "a crash interrupted the write of a frame that was never acknowledged: its bytes \
                are saved aside and dropped, and the log continues in a new segment",
    },
];

/// Judge the end of a segment.
#[must_use]
pub fn verdict(facts: EndFacts) -> End {
    let meets = |rule: &&EndRule| {
        rule.complete.is_none_or(|value| value == facts.complete)
            && rule.attested.is_none_or(|value| value == facts.attested)
            && rule.garbage.is_none_or(|value| value == facts.garbage)
    };
    let mut rules = END_RULES.iter().filter(meets);
    match (rules.next(), rules.next()) {
        (Some(rule), None) => rule.end,
        _ => unreachable!("a test walks all facts: each meets one rule"),
    }
}

/// The name of a frame fault, for a person.
#[must_use]
pub fn describe(fault: FrameFault) -> String {
    match fault {
        FrameFault::Header => "no valid frame header where one must be".into(),
        FrameFault::Short => "the file ends inside a frame".into(),
        FrameFault::Chain { expected, found } => format!(
            "a frame is missing before this one (it follows checksum {expected:08x}, the frame \
             before has {found:08x})"
        ),
        FrameFault::Record { offset, .. } => {
            format!("the checksum of the record at byte {offset} does not hold")
        }
        FrameFault::Newer(version) => newer(version.into()),
        FrameFault::Trailer => "the checksum at the end of the frame does not hold".into(),
    }
}

#[cfg(test)]
mod tests;
