//! The way to the engine: its door, as soon as there is one.

use std::sync::{Arc, OnceLock};

use super::answer::Problem;
use bsd::door::Door;
use bsd_archive::standby::Seat;
use bsd_net::{Pulse, Stage};

/// Why a member of a cluster answers little for a while.
pub(super) const READS_AGAIN: &str = "this member does not lead any more, and reads its log again";

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
        self.get().map_err(Problem::unavailable)
    }

    /// The same, with the reason alone.
    pub(super) fn get(&self) -> Result<&Door, &'static str> {
        match self.is_reading_again() {
            true => Err(READS_AGAIN),
            false => self.door.get().ok_or_else(|| self.why_closed()),
        }
    }

    /// Why the engine cannot be asked before it serves anyone.
    pub(super) fn why_closed(&self) -> &'static str {
        match &self.standby {
            None => "the log is being replayed",
            Some(seat) if seat.report().is_promoted => "this standby is taking over",
            Some(_) => "this is a standby, which serves no one until it is told to take over",
        }
    }
}
