//! The only clock of the process. All code below the server and the library's interface gets a
//! [`Now`] from its caller.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::types::{Now, Time};

/// A monotonic clock that starts at 0, and the system's wall clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

#[allow(clippy::disallowed_methods)] // this is the room of the clock
impl Clock {
    /// Starts the clock at 0.
    #[must_use]
    pub fn start() -> Clock {
        Clock {
            origin: Instant::now(),
        }
    }

    /// The current time. A wall clock before 1970 counts as 1970.
    #[must_use]
    pub fn now(&self) -> Now {
        let mono = i64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            mono: Time(mono),
            wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
