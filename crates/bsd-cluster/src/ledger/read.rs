//! Reading one file of a ledger: frames in order, and what follows the last sound one.
//!
//! The reader returns only frames whose checksums are right. How a file ends is a value, not an
//! error: an `Err` always means that the disk did not answer. No memory is taken by a length alone:
//! it must lie inside the file, and more than [`HELD_MAX`] bytes are checked before they are held.

use std::io;
use std::sync::Arc;

use super::format::{ALIGN, FRAME_HEADER_SIZE, FRAME_MAGIC, FrameHeader, Seed, VERSION};
use bsd::storage::disk::{ReadFile, read_exact_at};

/// Bytes requested from a file at once.
const CHUNK: u64 = 1 << 20;
/// A frame of more bytes than this is checked in parts before it is held in memory.
const HELD_MAX: u64 = 4 << 20;

/// Why no sound frame begins at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// There is no valid frame header.
    Header,
    /// The file ends inside the frame.
    Short,
    /// The frame does not follow the one before it.
    Chain,
    /// The checksum of its payload does not hold.
    Payload,
    /// Its header is sound, and asks for a reader of this later version.
    Newer(u8),
}

impl Fault {
    /// In words for a person.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Fault::Header => "no valid frame begins here",
            Fault::Short => "the file ends inside a frame",
            Fault::Chain => "a frame is missing before this one",
            Fault::Payload => "the checksum of the frame does not hold",
            Fault::Newer(_) => "the frame is of a later format version",
        }
    }
}

/// Result of reading the place where the next frame should begin.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// A sound frame: its place, header and payload. The reader is now after it.
    Frame(u64, FrameHeader, &'a [u8]),
    /// None; the reader has not moved.
    Bad(Fault),
}

/// Reads the frames of one file in order.
#[derive(Debug)]
pub(super) struct Reader {
    file: Arc<dyn ReadFile>,
    seed: Seed,
    size: u64,
    /// Where the next frame should begin.
    pub(super) at: u64,
    /// The checksum of the last frame read; 0 before the first.
    pub(super) previous: u32,
    /// A part of the file in memory, and where it begins.
    start: u64,
    window: Vec<u8>,
}

impl Reader {
    /// A reader of `file`, which is `size` bytes long, that begins at `at`.
    pub(super) fn new(file: Arc<dyn ReadFile>, seed: Seed, size: u64, at: u64) -> Reader {
        Reader {
            file,
            seed,
            size,
            at,
            previous: 0,
            start: 0,
            window: Vec::new(),
        }
    }

    /// Bytes in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.window.capacity()
    }

    /// Give back the memory; the place stays.
    pub(super) fn pause(&mut self) {
        self.window = Vec::new();
    }

    /// Check the frame at the reader's place, and move after it if it is sound.
    pub(super) fn step(&mut self) -> io::Result<Step<'_>> {
        let at = self.at;
        let rest = self.size.saturating_sub(at);
        if rest < FRAME_HEADER_SIZE as u64 {
            return Ok(Step::Bad(Fault::Short));
        }
        let seed = self.seed;
        let Some(header) = FrameHeader::decode(self.get(at, FRAME_HEADER_SIZE as u64)?, seed, at)
        else {
            return Ok(Step::Bad(Fault::Header));
        };
        if header.version > VERSION {
            return Ok(Step::Bad(Fault::Newer(header.version)));
        }
        if header.frame_size() > rest {
            return Ok(Step::Bad(Fault::Short));
        }
        if header.previous != self.previous {
            return Ok(Step::Bad(Fault::Chain));
        }
        if !self.is_sound(&header)? {
            return Ok(Step::Bad(Fault::Payload));
        }
        self.at += header.frame_size();
        self.previous = header.crc;
        let payload = self.get(at + FRAME_HEADER_SIZE as u64, u64::from(header.size))?;
        Ok(Step::Frame(at, header, payload))
    }

    /// True if the checksum of the payload of the frame at the reader's place holds.
    fn is_sound(&mut self, header: &FrameHeader) -> io::Result<bool> {
        let mut hasher = self.seed.hasher(self.at);
        let mut from = self.at + FRAME_HEADER_SIZE as u64;
        let end = self.at + header.frame_size();
        let part = if header.frame_size() > HELD_MAX {
            CHUNK
        } else {
            HELD_MAX
        };
        while from < end {
            let size = part.min(end - from);
            hasher.update(self.get(from, size)?);
            from += size;
        }
        Ok(header.holds(hasher))
    }

    /// `size` bytes at `at`, which lie inside the file; reads ahead.
    fn get(&mut self, at: u64, size: u64) -> io::Result<&[u8]> {
        let held = self.start..self.start + self.window.len() as u64;
        if at < held.start || at + size > held.end {
            let want = size.max(CHUNK).min(self.size - at);
            self.window.clear();
            self.window.shrink_to(2 * CHUNK as usize);
            self.window.resize(want as usize, 0);
            self.start = at;
            if let Err(error) = read_exact_at(&*self.file, &mut self.window, at) {
                self.window.clear();
                return Err(error);
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.window[from..from + size as usize])
    }

    /// Examine everything from the reader's place, where no sound frame begins, to the end.
    pub(super) fn look_ahead(&mut self) -> io::Result<Ahead> {
        let mut ahead = Ahead::default();
        let (bad, seed, mut at) = (self.at, self.seed, self.at);
        while at < self.size {
            let size = CHUNK.min(self.size - at);
            let bytes = self.get(at, size)?;
            for (nth, word) in bytes.chunks(ALIGN).enumerate() {
                // As nearly all of the space that was set aside.
                if *word == [0; ALIGN][..word.len()] {
                    continue;
                }
                ahead.is_garbage = true;
                if !word.starts_with(&FRAME_MAGIC) {
                    continue;
                }
                let from = nth * ALIGN;
                let place = at + from as u64;
                if let Some(header) = FrameHeader::decode(&bytes[from..], seed, place) {
                    ahead.durable = ahead.durable.max(header.durable);
                    if place > bad {
                        ahead.next_frame.get_or_insert(place);
                    }
                }
            }
            // A header may straddle two chunks: the next chunk begins a header's length earlier.
            at += if size < CHUNK {
                size
            } else {
                size - FRAME_HEADER_SIZE as u64
            };
        }
        Ok(ahead)
    }
}

/// The bytes after a place where no sound frame begins.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Ahead {
    /// A byte is not zero.
    pub(super) is_garbage: bool,
    /// The greatest offset that any sound frame header says was durable.
    pub(super) durable: u64,
    /// Where the first sound frame header after the place is.
    pub(super) next_frame: Option<u64>,
}

/// The payload of the frame at `at`, which has `size` bytes as it was written; `None`: it is not
/// there any more, or damaged.
pub(super) fn read_payload(
    file: &dyn ReadFile,
    seed: Seed,
    at: u64,
    size: u32,
) -> io::Result<Option<Vec<u8>>> {
    let frame = FRAME_HEADER_SIZE + (size as usize).next_multiple_of(ALIGN);
    let mut bytes = vec![0; frame];
    match read_exact_at(file, &mut bytes, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let Some(header) = FrameHeader::decode(&bytes, seed, at).filter(|it| it.size == size) else {
        return Ok(None);
    };
    let mut hasher = seed.hasher(at);
    hasher.update(&bytes[FRAME_HEADER_SIZE..]);
    if !header.holds(hasher) {
        return Ok(None);
    }
    bytes.truncate(FRAME_HEADER_SIZE + size as usize);
    bytes.drain(..FRAME_HEADER_SIZE);
    Ok(Some(bytes))
}
