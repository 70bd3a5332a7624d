//! The last frames written, kept in memory: a body that was just put is served from here.
//!
//! The buffers in which frames were built are kept; nothing is copied. When the byte limit is
//! reached the oldest go first. A miss costs a read of the file; it never changes an answer.

use std::collections::VecDeque;

use crate::types::Position;

/// The cache keeps at most this many frames, even when the byte limit allows more.
const FRAMES_MAX: usize = 4096;
/// Buffers larger than this many bytes are returned to the allocator, not reused. A frame that was
/// written because it had grown large used a buffer of up to twice that size.
const REUSED_BUFFER_MAX: usize = 2 << 20;
/// This many buffers are kept for reuse.
const SPARE_BUFFERS: usize = 2;

/// A new buffer has room for as many bytes as the frame before had, and for this many at most: most
/// frames are about as large as the one before.
const FIRST_CAPACITY_MAX: usize = 4 << 10;

/// A bounded window over the end of the log.
#[derive(Debug)]
pub(crate) struct FrameCache {
    bytes_max: usize,
    bytes: usize,
    frames: VecDeque<(Position, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl FrameCache {
    pub(crate) fn new(bytes_max: usize) -> FrameCache {
        FrameCache {
            bytes_max,
            bytes: 0,
            frames: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Keep a frame that was written at `position`, after every frame kept before.
    pub(crate) fn push(&mut self, position: Position, frame: Vec<u8>) {
        debug_assert!(self.frames.back().is_none_or(|(last, _)| *last < position));
        self.bytes += frame.capacity();
        self.frames.push_back((position, frame));
        while self.bytes > self.bytes_max || self.frames.len() > FRAMES_MAX {
            let Some((_, frame)) = self.frames.pop_front() else {
                break;
            };
            self.bytes -= frame.capacity();
            if frame.capacity() <= REUSED_BUFFER_MAX && self.spare.len() < SPARE_BUFFERS {
                self.spare.push(frame);
            }
        }
    }

    /// An empty buffer; a reused one if available.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| {
            let before = self.frames.back().map_or(0, |(_, frame)| frame.len());
            Vec::with_capacity(before.min(FIRST_CAPACITY_MAX))
        })
    }

    /// The last frame that begins at `position` or before. Most bodies are read soon after they were
    /// put, so the last frame is looked at first.
    fn around(&self, position: Position) -> Option<&(Position, Vec<u8>)> {
        let last = self.frames.back()?;
        if last.0 <= position {
            return Some(last);
        }
        let after = self.frames.partition_point(|(start, _)| *start <= position);
        self.frames.get(after.checked_sub(1)?)
    }

    /// `size` bytes at `position`, if they are still cached.
    pub(crate) fn get(&self, position: Position, size: usize) -> Option<&[u8]> {
        let (start, frame) = self.around(position)?;
        if start.segment() != position.segment() {
            return None;
        }
        let from = (position.offset() - start.offset()) as usize;
        frame.get(from..from + size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SegmentId;

    fn at(segment: u32, offset: u32) -> Position {
        Position::new(SegmentId(segment), offset)
    }

    fn frame(byte: u8, size: usize) -> Vec<u8> {
        vec![byte; size]
    }

    #[test]
    fn the_last_frames_are_kept_and_no_more_bytes_than_the_bound() {
        let mut cache = FrameCache::new(100);
        for number in 0..10 {
            cache.push(at(1, 100 + number * 40), frame(number as u8, 40));
            let kept = |n: u32| cache.get(at(1, 100 + n * 40), 40).is_some();
            assert!(kept(number), "the last one");
            assert!(number == 0 || kept(number - 1), "the one before");
            assert!(
                number < 2 || !kept(number - 2),
                "{number}: 120 bytes are kept"
            );
        }
        cache.push(at(1, 600), frame(9, 101));
        assert!(cache.get(at(1, 600), 1).is_none() && cache.frames.is_empty());
        assert_eq!(cache.bytes, 0);
    }

    #[test]
    fn there_is_a_bound_on_the_number_of_frames_too() {
        let mut cache = FrameCache::new(usize::MAX);
        for number in 0..2 * FRAMES_MAX as u32 {
            cache.push(at(1, number * 8), frame(1, 8));
        }
        assert_eq!(cache.frames.len(), FRAMES_MAX);
        assert_eq!(cache.bytes, FRAMES_MAX * 8);
    }

    #[test]
    fn bytes_are_given_from_inside_one_frame_of_the_segment_and_never_across_its_end() {
        let mut cache = FrameCache::new(1000);
        cache.push(at(1, 100), (0..40).collect());
        cache.push(at(1, 140), frame(7, 40));
        cache.push(at(3, 64), frame(8, 40));
        assert_eq!(cache.get(at(1, 110), 3), Some(&[10, 11, 12][..]));
        assert_eq!(cache.get(at(1, 140), 40), Some(&frame(7, 40)[..]));
        assert_eq!(cache.get(at(1, 130), 20), None, "across two frames");
        assert_eq!(cache.get(at(1, 90), 5), None, "before the first");
        assert_eq!(
            cache.get(at(1, 180), 1),
            None,
            "after the last frame of its segment"
        );
        assert_eq!(cache.get(at(2, 150), 1), None, "another segment");
    }

    #[test]
    fn a_buffer_that_is_let_go_is_used_again_unless_it_is_large() {
        let mut cache = FrameCache::new(0);
        for number in 0..6 {
            cache.push(at(1, number * 8), frame(1, 8));
        }
        let reused = (0..6).filter(|_| cache.buffer().capacity() > 0).count();
        assert_eq!(reused, SPARE_BUFFERS);
        cache.push(at(2, 0), frame(1, REUSED_BUFFER_MAX + 1));
        assert_eq!(cache.buffer().capacity(), 0);
        cache.push(at(3, 0), Vec::with_capacity(REUSED_BUFFER_MAX));
        assert_eq!(cache.buffer().capacity(), REUSED_BUFFER_MAX);
    }
}
