//! How long the record of a pause is needed.
//!
//! A pause that is replaced by a shorter one, or lifted, leaves a record behind that replay would
//! bring back, were the later record gone first. So the last record about a tube stays alive until
//! every pause that it replaced would have ended by itself, or until compaction has dropped the
//! records of all these: whichever comes first. The latter is looked for a few tubes at a time, and
//! only after a compaction.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::storage::Log;
use crate::storage::format::pause;
use crate::types::{Place, SegmentId, Time};

/// What a tube costs here, its name apart, bytes, roughly.
const TUBE_SIZE: usize = 176;

/// The last record about a tube's pause.
#[derive(Debug)]
struct Last {
    place: Place,
    /// When the pause ends that it records; that of a record that lifts one has ended.
    until: Time,
    replaced: Option<Replaced>,
}

/// The records of pauses that it replaced.
#[derive(Debug, Clone, Copy)]
struct Replaced {
    /// The segments between which they lie.
    first: SegmentId,
    last: SegmentId,
    /// When all of those pauses would have ended.
    until: Time,
}

impl Last {
    fn needed_until(&self) -> Time {
        let replaced = self.replaced.map_or(self.until, |replaced| replaced.until);
        self.until.max(replaced)
    }
}

/// The records of pauses that the log has to keep.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    last: BTreeMap<Arc<str>, Last>,
    by_end: BTreeSet<(Time, Arc<str>)>,
    name_bytes: usize,
    /// The tube up to which has been looked for what compaction has dropped; `None` at the end.
    looked_up_to: Option<Arc<str>>,
    /// How many compactions there had been when that look began.
    compactions: u64,
}

/// A record that may go: its place and size.
type Freed = (Place, usize);

impl Pauses {
    /// A record about the pause of `tube`, which lasts until `until`, lies at `place`. Returns the
    /// record that it replaces, which `segment_of` places; or this one, if nothing needs it.
    pub(super) fn record(
        &mut self,
        tube: &str,
        place: Place,
        until: Time,
        now: Time,
        segment_of: impl Fn(Place) -> SegmentId,
    ) -> Option<Freed> {
        let size = pause::SIZE + tube.len();
        let before = self.last.get_key_value(tube);
        let before =
            before.map(|(name, last)| (name.clone(), last.place, replaced(last, segment_of)));
        let (name, freed, replaced) = match before {
            Some((name, place, replaced)) => (name, Some((place, size)), Some(replaced)),
            None if until <= now => return Some((place, size)),
            None => (Arc::from(tube), None, None),
        };
        self.forget(&name);
        self.keep(
            name,
            Last {
                place,
                until,
                replaced,
            },
        );
        freed
    }

    fn keep(&mut self, tube: Arc<str>, last: Last) {
        self.name_bytes += tube.len();
        self.by_end.insert((last.needed_until(), tube.clone()));
        self.last.insert(tube, last);
    }

    fn forget(&mut self, tube: &Arc<str>) -> Option<Last> {
        let last = self.last.remove(tube)?;
        self.name_bytes -= tube.len();
        self.by_end.remove(&(last.needed_until(), tube.clone()));
        Some(last)
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

    /// Forgets the records that are needed no more, and tells the log so; of at most `budget` tubes.
    /// Says whether there may be more.
    pub(super) fn expire(&mut self, log: &mut Log, now: Time, mut budget: usize) -> bool {
        while budget > 0
            && let Some((_, tube)) = self.by_end.first().filter(|(end, _)| *end <= now)
        {
            let tube = tube.clone();
            self.free(log, &tube);
            budget -= 1;
        }
        if self.looked_up_to.is_none() && self.compactions != log.compactions() {
            self.compactions = log.compactions();
            self.looked_up_to = Some(Arc::from(""));
        }
        self.forget_dropped(log, now, budget);
        self.looked_up_to.is_some() || self.by_end.first().is_some_and(|(end, _)| *end <= now)
    }

    fn free(&mut self, log: &mut Log, tube: &Arc<str>) {
        if let Some(last) = self.forget(tube) {
            log.files_mut().free(last.place, pause::SIZE + tube.len());
        }
    }

    /// Goes on looking for tubes whose last record has nothing to keep dead any more.
    fn forget_dropped(&mut self, log: &mut Log, now: Time, budget: usize) {
        let Some(from) = self.looked_up_to.take_if(|_| budget > 0) else {
            return;
        };
        let rest = self
            .last
            .range::<Arc<str>, _>((Bound::Excluded(&from), Bound::Unbounded));
        let slice: Vec<_> = rest.take(budget).map(|(tube, _)| tube.clone()).collect();
        for tube in &slice {
            let Some(last) = self.last.get(tube) else {
                continue;
            };
            let is_dropped = |replaced: Replaced| {
                !log.may_hold_what_died(replaced.first, replaced.last, last.place)
            };
            if !last.replaced.is_some_and(is_dropped) {
                continue;
            }
            if last.until <= now {
                self.free(log, tube);
            } else if let Some(last) = self.forget(tube) {
                let last = Last {
                    replaced: None,
                    ..last
                };
                self.keep(tube.clone(), last);
            }
        }
        self.looked_up_to = slice.last().filter(|_| slice.len() == budget).cloned();
    }

    /// Whether there is a record of a pause of this tube.
    pub(super) fn has(&self, tube: &str) -> bool {
        self.last.contains_key(tube)
    }

    /// The memory that it takes, bytes, roughly.
    pub(super) fn memory(&self) -> u64 {
        (self.last.len() * TUBE_SIZE + self.name_bytes) as u64
    }
}

/// What a record that follows `last` replaces.
fn replaced(last: &Last, segment_of: impl Fn(Place) -> SegmentId) -> Replaced {
    let segment = segment_of(last.place);
    let before = last.replaced.unwrap_or(Replaced {
        first: segment,
        last: segment,
        until: last.until,
    });
    Replaced {
        first: before.first.min(segment),
        last: before.last.max(segment),
        until: before.until.max(last.until),
    }
}
