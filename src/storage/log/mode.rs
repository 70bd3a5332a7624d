//! Part of the log in replication, with what only that part needs.
//!
//! A log appends, commits and reads in each of them. Of a single server a frame is written as soon as it
//! is formed. A log that leads holds it back: see `held`. A log that follows has the frames of another
//! one: it stamps what it appends, one entry at a time, and each is one frame.

use crate::storage::error::StoreError;
use crate::storage::format::{FRAME_OVERHEAD_MAX, Stamp};
use crate::storage::log::held::Held;
use crate::storage::log::room::{ATTRIBUTES_SIZE, DELETE_SIZE, UPDATE_SIZE};
use crate::storage::log::{AppendError, Log, Purpose};

/// See the module.
#[derive(Debug)]
pub(super) enum Mode {
    /// The log of a single server.
    Single,
    /// The log of a member, to which it appends what a leader has decided.
    Follower {
        /// What is appended now is an entry, for which there is room.
        has_room: bool,
    },
    /// The log of a member that decides: it is ahead of what a majority has.
    Leader(Box<Held>),
}

impl Mode {
    /// What is held, of a log that leads.
    pub(super) fn held(&self) -> Option<&Held> {
        match self {
            Mode::Leader(held) => Some(held),
            Mode::Single | Mode::Follower { .. } => None,
        }
    }

    /// The same, to hold or release frames.
    pub(super) fn held_mut(&mut self) -> Option<&mut Held> {
        match self {
            Mode::Leader(held) => Some(held),
            Mode::Single | Mode::Follower { .. } => None,
        }
    }

    /// True if the next record is one of an entry, which has room.
    pub(super) fn has_room_for_entry(&self) -> bool {
        matches!(self, Mode::Follower { has_room: true })
    }
}

/// A log that follows.
impl Log {
    /// What is appended from now on up to [`Log::end_entry`] is one entry, and is written as one frame.
    ///
    /// It has room for its records, `size` bytes of them, and for what its `puts` new jobs need later and
    /// those that get attributes, `attributed`; or nothing of it is appended. Its `purpose` is the one of
    /// its records that asks for the most room.
    ///
    /// # Errors
    /// As of an append.
    pub(crate) fn begin_entry(
        &mut self,
        size: u64,
        (puts, attributed): (u64, u64),
        purpose: Purpose,
        wall_ns: u64,
    ) -> Result<(), AppendError> {
        let later = match purpose {
            Purpose::Put => puts * (DELETE_SIZE + UPDATE_SIZE) + attributed * ATTRIBUTES_SIZE,
            _ => 0,
        };
        if !self.make_room(size + FRAME_OVERHEAD_MAX as u64 + later, purpose, wall_ns)? {
            return Err(AppendError::NoRoom(self.lacking()));
        }
        self.join_for(size, purpose, wall_ns)?;
        self.mode = Mode::Follower { has_room: true };
        Ok(())
    }

    /// The entry cannot be applied: nothing of it is written, nor anything else from now on.
    pub(crate) fn give_up_entry(&mut self, stamp: Stamp, why: &str) -> StoreError {
        let what = format!("entry {}: {why}", stamp.index);
        let dir = self.dir.clone();
        self.fail(StoreError::new(
            "apply to",
            &dir,
            &std::io::Error::other(what),
        ))
    }

    /// The entry is complete: write it. Durable with the next sync.
    ///
    /// # Errors
    /// When the disk failed.
    pub(crate) fn end_entry(&mut self, stamp: Stamp) -> Result<(), StoreError> {
        self.is_joined = false;
        self.mode = Mode::Follower { has_room: false };
        if self.frame.is_empty() {
            self.stamps.pass(stamp);
            return Ok(());
        }
        self.frame.set_stamp(stamp);
        self.write_frame()?;
        self.stamps.mark(self.written, stamp);
        Ok(())
    }

    /// What is held, if the log leads.
    pub(crate) fn held_mut(&mut self) -> Option<&mut Held> {
        self.mode.held_mut()
    }

    /// The term in which it leads, if it does.
    pub(crate) fn term_led(&self) -> Option<u64> {
        self.mode.held().map(Held::term)
    }

    /// Lead: from now on frames are held, and the next one is the entry after `last`.
    ///
    /// # Panics
    /// If something was appended and is not written.
    pub(crate) fn lead(&mut self, last: Stamp) {
        assert!(self.frame.is_empty(), "what is not written is no entry");
        self.mode = Mode::Leader(Box::new(Held::after(last)));
    }
}
