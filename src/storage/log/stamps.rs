//! Up to which entry of a replicated log this log goes.
//!
//! A frame carries the stamp of the entry up to which the log goes with it. Entries that changed nothing
//! have no frame: the next one stands for them too.

use std::collections::VecDeque;

use crate::storage::format::{FrameKind, Stamp};
use crate::storage::log::{AppendError, Log};
use crate::types::Position;

/// Stamps whose positions are remembered at most until they are durable.
const MARKS_MAX: usize = 1024;

/// Up to which entry the log goes; nowhere, in the log of a server that was never a member.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// Up to where the written log goes.
    pub(super) written: Stamp,
    /// The same, in the last frame.
    framed: Stamp,
    /// Up to where the durable log goes.
    durable: Stamp,
    /// Stamps that are written and not known to be durable, with where they end.
    marks: VecDeque<(Position, Stamp)>,
}

impl Stamps {
    pub(super) fn resume(stamp: Stamp) -> Stamps {
        Stamps {
            written: stamp,
            framed: stamp,
            durable: stamp,
            marks: VecDeque::new(),
        }
    }

    /// The stamp of what is written now without being an entry: of the log's own records.
    pub(super) fn own(&mut self) -> Stamp {
        self.framed = self.written;
        self.written
    }

    /// Entries up to this one changed nothing: the next frame stands for them too. Until then a start
    /// does not know of them.
    pub(in crate::storage) fn pass(&mut self, stamp: Stamp) {
        self.written = stamp;
    }

    pub(super) fn mark(&mut self, end: Position, stamp: Stamp) {
        if stamp == Stamp::default() {
            return;
        }
        (self.written, self.framed) = (stamp, stamp);
        if self.marks.len() == MARKS_MAX
            && let Some(last) = self.marks.back_mut()
        {
            // The later position stands for both.
            *last = (end, stamp);
            return;
        }
        self.marks.push_back((end, stamp));
    }

    pub(super) fn note_durable(&mut self, durable: Position) {
        while let Some((end, stamp)) = self.marks.front()
            && *end <= durable
        {
            self.durable = *stamp;
            self.marks.pop_front();
        }
    }
}

impl Log {
    /// Up to which entry the log goes, as far as it is written.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamps.written
    }

    /// Up to which entry the log goes as its last frame says: entries after it changed nothing.
    #[must_use]
    pub fn framed_stamp(&self) -> Stamp {
        self.stamps.framed
    }

    /// Up to which entry the log goes, as far as it is on stable storage.
    #[must_use]
    pub fn durable_stamp(&self) -> Stamp {
        self.stamps.durable
    }

    /// The log goes up to this entry by something else than entries: say so. Durable on return.
    ///
    /// # Errors
    /// If there is no room for a marker: then the log says what it said before. Otherwise the disk
    /// has failed.
    pub(crate) fn stamp_as(&mut self, stamp: Stamp, wall_ns: u64) -> Result<(), AppendError> {
        self.commit(true)?;
        let was = self.stamps.written;
        self.stamps.pass(stamp);
        self.mark(FrameKind::Idle, wall_ns)?;
        self.sync_now()?;
        if self.stamps.framed == stamp {
            return Ok(());
        }
        self.stamps.pass(was);
        Err(AppendError::NoRoom(self.lacking()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SegmentId;

    fn at(segment: u32, offset: u32) -> Position {
        Position::new(SegmentId(segment), offset)
    }

    fn stamp(index: u64) -> Stamp {
        Stamp { index, term: 1 }
    }

    #[test]
    fn a_stamp_is_durable_when_the_end_of_its_frame_is() {
        let mut stamps = Stamps::default();
        stamps.mark(at(1, 100), stamp(1));
        stamps.mark(at(1, 200), stamp(2));
        stamps.mark(at(2, 50), stamp(3));
        for (durable, found) in [
            (at(1, 99), 0),
            (at(1, 100), 1),
            (at(1, 199), 1),
            (at(2, 40), 2),
            (at(2, 50), 3),
        ] {
            stamps.note_durable(durable);
            assert_eq!(stamps.durable.index, found, "{durable:?}");
            assert_eq!(stamps.written, stamp(3));
        }
    }

    #[test]
    fn of_very_many_stamps_the_later_stand_for_those_between() {
        let mut stamps = Stamps::default();
        let last = MARKS_MAX as u32 + 10;
        (1..=last).for_each(|nth| stamps.mark(at(1, nth * 8), stamp(nth.into())));
        stamps.note_durable(at(1, 8));
        assert_eq!(stamps.durable, stamp(1));
        stamps.note_durable(at(1, last * 8 - 1));
        assert_eq!(stamps.durable, stamp(MARKS_MAX as u64 - 1));
        stamps.note_durable(at(1, last * 8));
        assert_eq!(stamps.durable, stamp(last.into()));
    }
}
