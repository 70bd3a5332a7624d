//! A shortage of some resource: logged once when it begins, and once when it is over.
//!
//! Clients may repeat a request ten thousand times a second, and the resource may come and go with
//! every job. So a shortage is over only when nothing has been refused for some time.

/// Time without a refusal after which a shortage is over, nanoseconds.
const OVER_AFTER_NS: u64 = 1_000_000_000;

/// Whether there is a shortage.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// The wall time of the last refusal, during a shortage.
    refused_at: Option<u64>,
    /// Bytes that were missing then.
    missing: u64,
}

impl Shortage {
    /// Note a refusal because `missing` bytes were missing. Returns whether a shortage begins.
    pub(crate) fn note_refused(&mut self, missing: u64, wall_ns: u64) -> bool {
        self.missing = missing;
        self.refused_at.replace(wall_ns).is_none()
    }

    /// Notes that there is room. Returns whether a shortage ends.
    pub(crate) fn note_room(&mut self, wall_ns: u64) -> bool {
        let Some(at) = self.refused_at else {
            return false;
        };
        // A clock that was set back must not make it longer.
        let is_over = wall_ns < at || wall_ns - at >= OVER_AFTER_NS;
        if is_over {
            *self = Shortage::default();
        }
        is_over
    }

    /// True from its beginning until it is over.
    pub(crate) fn is_on(&self) -> bool {
        self.refused_at.is_some()
    }

    /// Bytes that were missing at the last refusal; 0 without a shortage.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f10_a_shortage_begins_once_and_ends_once_however_often_it_is_asked() {
        let mut shortage = Shortage::default();
        assert!(!shortage.note_room(5));
        assert!(shortage.note_refused(100, 10));
        for at in 11..1000 {
            assert!(!shortage.note_refused(at, at));
            assert!(!shortage.note_room(at));
        }
        assert_eq!((shortage.is_on(), shortage.missing()), (true, 999));
        assert!(shortage.note_room(999 + OVER_AFTER_NS));
        assert!(!shortage.note_room(2000 + OVER_AFTER_NS));
        assert_eq!((shortage.is_on(), shortage.missing()), (false, 0));
    }

    #[test]
    fn t24_a_shortage_ends_although_the_clock_was_set_back() {
        let mut shortage = Shortage::default();
        assert!(shortage.note_refused(1, 5 * OVER_AFTER_NS));
        assert!(shortage.note_room(5 * OVER_AFTER_NS - 1));
        assert!(!shortage.is_on());
    }
}
