//! The last frames written, kept in memory: a body that was just put is served from here.
//!
//! The buffers in which frames were built are kept as they are; nothing is copied, and the oldest
//! go first when the bound is reached. A miss costs a read of the file, never an answer.

use std::collections::VecDeque;

use crate::types::Position;

/// Frames beyond this many are dropped even when the byte bound would let them stay.
const FRAMES_MAX: usize = 4096;
/// Buffers larger than this are given back to the allocator, not reused.
const REUSED_BUFFER_MAX: usize = 1 << 20;

/// A bounded window over the end of the log.
#[derive(Debug)]
pub(crate) struct Hot {
    bytes_max: usize,
    bytes: usize,
    frames: VecDeque<(Position, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Hot {
    pub(crate) fn new(bytes_max: usize) -> Hot {
        Hot {
            bytes_max,
            bytes: 0,
            frames: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Keep a frame that was written at `position`, behind every frame kept before.
    pub(crate) fn push(&mut self, position: Position, frame: Vec<u8>) {
        debug_assert!(self.frames.back().is_none_or(|(last, _)| *last < position));
        self.bytes += frame.capacity();
        self.frames.push_back((position, frame));
        while self.bytes > self.bytes_max || self.frames.len() > FRAMES_MAX {
            let Some((_, frame)) = self.frames.pop_front() else {
                break;
            };
            self.bytes -= frame.capacity();
            if frame.capacity() <= REUSED_BUFFER_MAX && self.spare.len() < 4 {
                self.spare.push(frame);
            }
        }
    }

    /// An empty buffer, used before where one is left.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// `size` bytes at `position`, if they are still here.
    pub(crate) fn get(&self, position: Position, size: usize) -> Option<&[u8]> {
        let after = self.frames.partition_point(|(start, _)| *start <= position);
        let (start, frame) = self.frames.get(after.checked_sub(1)?)?;
        if start.segment() != position.segment() {
            return None;
        }
        let from = (position.offset() - start.offset()) as usize;
        frame.get(from..from + size)
    }
}
