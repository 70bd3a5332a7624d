//! The way to the engine: its door, as soon as there is one.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::answer::Problem;
use bsd::door::Door;
use bsd_archive::standby::Seat;
use bsd_net::{Pulse, Stage};

/// Why the engine cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// The log is being replayed.
    Replaying,
    /// A member of a cluster has stepped down.
    ReadingAgain,
    /// A standby that has not been promoted.
    Standby,
    /// A standby that has.
    TakingOver,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Closed::Replaying => "the log is being replayed",
            Closed::ReadingAgain => "this member does not lead any more, and reads its log again",
            Closed::Standby => {
                "this is a standby, which serves no one until it is told to take over"
            }
            Closed::TakingOver => "this standby is taking over",
        })
    }
}

/// What handlers ask the engine through.
#[derive(Debug)]
pub(super) struct Doorway {
    /// Set when the log has been replayed.
    door: OnceLock<Door>,
    pulse: Arc<Pulse>,
    standby: Option<Seat>,
}

impl Doorway {
    /// Without a door.
    pub(super) fn new(pulse: Arc<Pulse>, standby: Option<Seat>) -> Doorway {
        Doorway {
            door: OnceLock::new(),
            pulse,
            standby,
        }
    }

    /// From now on the engine can be asked.
    pub(super) fn open(&self, door: Door) {
        // It is opened once.
        let _ = self.door.set(door);
    }

    pub(super) fn is_open(&self) -> bool {
        self.door.get().is_some()
    }

    /// The server has run, and reads its log again: nothing that is asked of the loop is answered.
    pub(super) fn is_reading_again(&self) -> bool {
        self.pulse.stage() == Stage::Reading
    }

    /// The door, or the reason why the engine cannot be asked.
    pub(super) fn door(&self) -> Result<&Door, Problem> {
        self.get()
            .map_err(|why| Problem::unavailable(why.to_string()))
    }

    /// The same, with the reason alone.
    pub(super) fn get(&self) -> Result<&Door, Closed> {
        match self.is_reading_again() {
            true => Err(Closed::ReadingAgain),
            false => self.door.get().ok_or_else(|| self.why_closed()),
        }
    }

    /// Why the engine cannot be asked before it serves anyone.
    pub(super) fn why_closed(&self) -> Closed {
        match &self.standby {
            None => Closed::Replaying,
            Some(seat) if seat.report().is_promoted => Closed::TakingOver,
            Some(_) => Closed::Standby,
        }
    }
}
