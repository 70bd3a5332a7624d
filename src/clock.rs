//! The only clock of the process. Everything below the server and the library's face is handed a
//! [`Now`].

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::types::{Now, Time};

/// A monotonic clock that starts at 0 when it is made, and the system's wall clock beside it.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

#[allow(clippy::disallowed_methods)] // this is the room of the clock
impl Clock {
    /// A clock that shows 0 now.
    #[must_use]
    pub fn start() -> Clock {
        Clock {
            origin: Instant::now(),
        }
    }

    /// What the clock shows. A wall clock before 1970 is taken for 1970.
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
