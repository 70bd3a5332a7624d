//! How long the record of a pause is needed.
//!
//! A pause that is replaced by a shorter one, or lifted, leaves a record behind that replay would
//! bring back, were the later record gone first. So the last record about a tube stays alive until
//! every pause that it replaced would have ended by itself.

use std::collections::HashMap;

use crate::storage::format::pause;
use crate::types::{Place, Time};

/// The last record about a tube's pause.
#[derive(Debug)]
struct Last {
    place: Place,
    /// When every pause recorded so far would have ended.
    needed_until: Time,
}

/// The records of pauses that the log has to keep.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    last: HashMap<Box<str>, Last>,
}

/// A record that may go: its place and size.
type Freed = (Place, usize);

impl Pauses {
    /// A record about the pause of `tube` lies at `place`. Returns the record that it replaces.
    pub(super) fn record(
        &mut self,
        tube: &str,
        place: Place,
        until: Time,
        now: Time,
    ) -> Option<Freed> {
        let size = pause::SIZE + tube.len();
        match self.last.get_mut(tube) {
            Some(last) => {
                let freed = std::mem::replace(&mut last.place, place);
                last.needed_until = last.needed_until.max(until).max(now);
                Some((freed, size))
            }
            None => {
                self.last.insert(
                    tube.into(),
                    Last {
                        place,
                        needed_until: until.max(now),
                    },
                );
                None
            }
        }
    }

    /// Whether the record about `tube` at `place` is needed.
    pub(super) fn is_at(&self, tube: &str, place: Place) -> bool {
        self.last.get(tube).is_some_and(|last| last.place == place)
    }

    /// The record about `tube` has moved.
    pub(super) fn moved(&mut self, tube: &str, from: Place, to: Place) -> bool {
        match self.last.get_mut(tube) {
            Some(last) if last.place == from => {
                last.place = to;
                true
            }
            _ => false,
        }
    }

    /// Forget the records that are needed no more.
    pub(super) fn expire(&mut self, now: Time) -> Vec<Freed> {
        let extracted = self.last.extract_if(|_, last| last.needed_until <= now);
        extracted
            .map(|(tube, last)| (last.place, pause::SIZE + tube.len()))
            .collect()
    }
}
