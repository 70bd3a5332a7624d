//! The last records about things with a name: pauses of tubes, settings. How long is each of them
//! needed?
//!
//! A record that is replaced lies in its file until that is rewritten. If the record that replaced it
//! were gone first, replay would bring the old one back: a pause that was lifted, a setting that was
//! removed. So the last record stays alive until all those that it replaced are over by themselves, or
//! until compaction has dropped them: whichever comes first. Both are looked for a few names at a time.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::storage::Log;
use crate::types::{Place, SECOND_NS, SegmentId, Time};

/// A second of the process's clock; what ends within one ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Second(i32);

impl Second {
    const PAST: Second = Second(i32::MIN);
    const NEVER: Second = Second(i32::MAX);

    fn at_or_after(time: Time) -> Second {
        let second = time.0.saturating_add(SECOND_NS - 1).div_euclid(SECOND_NS);
        let end = if second < 0 { i32::MIN } else { i32::MAX };
        Second(i32::try_from(second).unwrap_or(end))
    }

    fn is_over(self, now: Time) -> bool {
        self != Second::NEVER && i64::from(self.0) * SECOND_NS <= now.0
    }
}

/// When what a record says is over by itself.
pub(super) const NEVER: Time = Time(i64::MAX);

/// A record about something with a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recorded {
    pub(super) place: Place,
    /// Bytes.
    pub(super) size: usize,
    /// When it is over by itself, or [`NEVER`]. What says that something is no more is over at once.
    pub(super) until: Time,
}

/// The last record about a name.
#[derive(Debug)]
struct Last<V> {
    place: Place,
    size: u32,
    until: Second,
    /// When all that it replaced would be over.
    replaced_until: Second,
    /// The segments between which their records lie; the first is behind the last where there are
    /// none.
    first: SegmentId,
    last: SegmentId,
    /// What is known of the name.
    about: V,
}

impl<V> Last<V> {
    fn new(record: Recorded, until: Second, about: V) -> Last<V> {
        Last {
            place: record.place,
            size: record.size as u32,
            until,
            replaced_until: until,
            first: SegmentId(1),
            last: SegmentId(0),
            about,
        }
    }

    fn has_replaced(&self) -> bool {
        self.first <= self.last
    }

    fn needed_until(&self) -> Second {
        match self.has_replaced() {
            true => self.until.max(self.replaced_until),
            false => self.until,
        }
    }

    /// Another record takes its place, which lies in `segment`.
    fn replace(&mut self, record: Recorded, until: Second, segment: SegmentId) {
        (self.replaced_until, self.first, self.last) = match self.has_replaced() {
            true => (
                self.needed_until(),
                self.first.min(segment),
                self.last.max(segment),
            ),
            false => (self.until, segment, segment),
        };
        (self.place, self.size, self.until) = (record.place, record.size as u32, until);
    }

    /// What it replaced has been dropped.
    fn forget_replaced(&mut self) {
        (self.first, self.last) = (SegmentId(1), SegmentId(0));
    }
}

/// A look at all names, a few in a tick.
#[derive(Debug)]
struct Look<K> {
    /// The last name that was looked at.
    behind: Option<K>,
    /// The first end among those that stay.
    next_end: Second,
    /// The files with dead records are to be rewritten.
    rewrites: bool,
}

/// The last record about each name of type `K`, and `V` for each of them.
#[derive(Debug)]
pub(super) struct LastRecords<K, V> {
    all: BTreeMap<K, Last<V>>,
    /// No record is needed no more before this.
    next_end: Second,
    look: Option<Look<K>>,
    /// How many compactions there had been when the last look began, and the last that had files
    /// rewritten.
    looked: u64,
    rewritten: Option<u64>,
}

impl<K, V> Default for LastRecords<K, V> {
    fn default() -> LastRecords<K, V> {
        LastRecords {
            all: BTreeMap::new(),
            next_end: Second::NEVER,
            look: None,
            looked: 0,
            rewritten: None,
        }
    }
}

/// A record that may go: its place and size.
pub(super) type Freed = (Place, usize);

impl<K: Ord + Clone, V> LastRecords<K, V> {
    /// Note the next record about `name`. `about` says what is known of a name that there is nothing
    /// about. Returns the record that this one replaces, which `segment_of` places; or this one, if
    /// nothing needs it.
    pub(super) fn record(
        &mut self,
        name: K,
        record: Recorded,
        now: Time,
        segment_of: impl Fn(Place) -> SegmentId,
        about: impl FnOnce() -> V,
    ) -> Option<Freed> {
        // What is over is dead at once, and not at the end of the second.
        let until = match record.until <= now {
            true => Second::PAST,
            false => Second::at_or_after(record.until),
        };
        if let Some(last) = self.all.get_mut(&name) {
            let freed = (last.place, last.size as usize);
            last.replace(record, until, segment_of(last.place));
            let end = last.needed_until();
            self.note_end(end);
            return Some(freed);
        }
        if until == Second::PAST {
            return Some((record.place, record.size));
        }
        self.note_end(until);
        self.all.insert(name, Last::new(record, until, about()));
        None
    }

    fn note_end(&mut self, end: Second) {
        self.next_end = self.next_end.min(end);
        if let Some(look) = &mut self.look {
            look.next_end = look.next_end.min(end);
        }
    }

    /// Whether the record about `name` at `place` is needed.
    pub(super) fn is_at(&self, name: &K, place: Place) -> bool {
        self.all.get(name).is_some_and(|last| last.place == place)
    }

    /// The record about `name` has moved.
    pub(super) fn moved(&mut self, name: &K, from: Place, to: Place) -> bool {
        match self.all.get_mut(name) {
            Some(last) if last.place == from => {
                last.place = to;
                true
            }
            _ => false,
        }
    }

    /// What is known of a name.
    pub(super) fn get(&self, name: &K) -> Option<&V> {
        self.all.get(name).map(|last| &last.about)
    }

    /// The same, to change it.
    pub(super) fn get_mut(&mut self, name: &K) -> Option<&mut V> {
        self.all.get_mut(name).map(|last| &mut last.about)
    }

    /// All names, and what is known of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.all.iter().map(|(name, last)| (name, &last.about))
    }

    /// Forget a name of which no record is on a disk.
    pub(super) fn forget(&mut self, name: &K) {
        self.all.remove(name);
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Forgets the records that are needed no more, tells the log so, and tells `forgotten` of each name;
    /// looks at no more than `budget` names. `is_pressed`: there are too many, and the files with what is
    /// dead are to be rewritten. Says whether there may be more.
    pub(super) fn expire(
        &mut self,
        log: &mut Log,
        now: Time,
        (budget, is_pressed): (usize, bool),
        forgotten: &mut dyn FnMut(&K, &V),
    ) -> bool {
        let compactions = log.compactions();
        let rewrites = is_pressed && self.rewritten != Some(compactions);
        let is_due = self.next_end.is_over(now) || self.looked != compactions || rewrites;
        if self.look.is_none() && is_due && !self.all.is_empty() {
            self.looked = compactions;
            if rewrites {
                self.rewritten = Some(compactions);
            }
            self.look = Some(Look {
                behind: None,
                next_end: Second::NEVER,
                rewrites,
            });
        }
        if let Some(look) = self.look.take() {
            self.go_on(look, log, now, budget, forgotten);
        }
        self.look.is_some()
    }

    fn go_on(
        &mut self,
        mut look: Look<K>,
        log: &mut Log,
        now: Time,
        budget: usize,
        forgotten: &mut dyn FnMut(&K, &V),
    ) {
        let behind = look
            .behind
            .as_ref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.all.range::<K, _>((behind, Bound::Unbounded));
        let names: Vec<K> = rest.take(budget).map(|(name, _)| name.clone()).collect();
        for name in &names {
            self.look_at(name, &mut look, log, now, forgotten);
        }
        match names.last().filter(|_| names.len() == budget) {
            Some(last) => {
                look.behind = Some(last.clone());
                self.look = Some(look);
            }
            None => self.next_end = look.next_end,
        }
    }

    fn look_at(
        &mut self,
        name: &K,
        look: &mut Look<K>,
        log: &mut Log,
        now: Time,
        forgotten: &mut dyn FnMut(&K, &V),
    ) {
        let Some(last) = self.all.get_mut(name) else {
            return;
        };
        let is_dropped =
            last.has_replaced() && !log.may_hold_what_died(last.first, last.last, last.place);
        let is_dead = last.until.is_over(now);
        if last.needed_until().is_over(now) || is_dead && is_dropped {
            log.files_mut().free(last.place, last.size as usize);
            forgotten(name, &last.about);
            self.all.remove(name);
            return;
        }
        if is_dropped {
            last.forget_replaced();
        }
        if is_dead && look.rewrites {
            log.rewrite_soon(last.first);
            log.rewrite_soon(last.last);
        }
        look.next_end = look.next_end.min(last.needed_until());
    }
}
