//! The course of a log in its archive: which links follow a base, and where what follows ends.
//!
//! Anyone who says what an archive holds, and anyone who restores from it, asks here, so that the two
//! agree. A [`Run`] begins with a base and is shown the links after it, one by one.
//!
//! | a link with bytes that | is |
//! |---|---|
//! | end before the bytes that there are | known: nothing is lost without it |
//! | begin before, or exactly where those end | next |
//! | begin a later segment | next |
//! | begin behind that | behind a hole: nothing is used but with a later base |
//!
//! After a gap, and after the claim of another history, only a later base is of use; unless a
//! takeover says that the chain goes on where this stands.
//!
//! A link that is missing or damaged is a hole only if it was needed. It was not, if the same writer
//! goes on behind it with the very next byte: then it had none, as a base has none.

use super::chain::Bad;
use super::format::{Head, Kind, chain_dir, numbered};
use bsd::types::Position;

/// Where bytes are that come to others which end at some position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Among them.
    Known,
    /// After them, without this number of their first bytes.
    Next(u32),
    /// They begin a later segment.
    Segment,
    /// Others are missing between.
    Apart,
}

/// Where the bytes `from` … `to` are, if there are all up to `at`.
pub(super) fn place(at: Position, from: Position, to: Position) -> Place {
    if to <= at {
        Place::Known
    } else if from.segment() == at.segment() && from <= at {
        Place::Next(at.offset() - from.offset())
    } else if from.offset() == 0 && from.segment() > at.segment() {
        Place::Segment
    } else {
        Place::Apart
    }
}

/// Why nothing follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// The writer has named a gap, or another history begins: a base has to follow.
    Gap(Head),
    /// An object that is needed is not as it was put.
    Hole(Bad),
}

/// A base, and what can be restored with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// There are all bytes before this position.
    pub(super) at: Position,
    /// The last link that follows.
    link: u64,
    /// When that was durable, ns since 1970.
    pub(super) wall_ns: u64,
    epoch: u32,
    /// The last link that cannot be used and may have been needed, and the fault of the first.
    hole: Option<(u64, Bad)>,
    /// The first of these.
    first_hole: Option<u64>,
    /// A gap, or a server with another history.
    gap: Option<Head>,
    /// Links were passed that were not read.
    is_assumed: bool,
}

impl Run {
    /// The link `base` is a base whose log ends at `end`.
    pub(super) fn begin(base: &Head, end: Position) -> Run {
        Run {
            at: end,
            link: base.number,
            wall_ns: base.wall_ns,
            epoch: base.epoch,
            hole: None,
            first_hole: None,
            gap: None,
            is_assumed: false,
        }
    }

    /// The next link. Returns where its bytes are, if it has any.
    pub(super) fn pass(&mut self, head: &Head) -> Result<Option<Place>, Stop> {
        let place = match head.kind {
            Kind::Gap | Kind::Claim { goes_on: false } => {
                self.refuse_behind_hole()?;
                self.gap.get_or_insert(*head);
                return Ok(None);
            }
            Kind::Takeover => {
                self.refuse_behind_hole()?;
                self.take_over(head)?;
                // It has no bytes: what is here was durable before it.
                self.is_assumed = false;
                self.epoch = head.epoch;
                self.link = self.link.max(head.number);
                return Ok(None);
            }
            Kind::Base | Kind::Frames if self.gap.is_some() => return self.finish().map(|()| None),
            // Whether others were put before it by another writer is not known.
            Kind::Claim { goes_on: true } | Kind::Base if !self.is_whole() => return Ok(None),
            Kind::Claim { goes_on: true } | Kind::Base => {
                if self.is_assumed {
                    self.at = self.at.max(head.from);
                }
                None
            }
            Kind::Frames => Some(self.add(head)?),
        };
        self.is_assumed = false;
        self.epoch = head.epoch;
        self.advance(head, place);
        Ok(place)
    }

    fn refuse_behind_hole(&self) -> Result<(), Stop> {
        match &self.hole {
            Some((_, bad)) => Err(Stop::Hole(bad.clone())),
            None => Ok(()),
        }
    }

    /// The history goes on in another log, after the last whole frame: that may end before the last
    /// byte.
    fn take_over(&mut self, head: &Head) -> Result<(), Stop> {
        if head.from > self.at {
            return Err(match self.gap {
                Some(gap) => Stop::Gap(gap),
                None => Stop::Hole(Bad {
                    name: numbered(&chain_dir(head.log), head.number),
                    what: format!(
                        "it goes on at {}, the chain stands at {}",
                        head.from, self.at
                    ),
                }),
            });
        }
        (self.at, self.gap) = (head.from, None);
        Ok(())
    }

    fn advance(&mut self, head: &Head, place: Option<Place>) {
        let has_more = place.is_some_and(|place| place != Place::Known);
        // The base may have been put after the first of them.
        if has_more || head.number >= self.link {
            self.wall_ns = head.wall_ns;
        }
        self.link = self.link.max(head.number);
    }

    fn add(&mut self, head: &Head) -> Result<Place, Stop> {
        if self.is_assumed {
            let has_more = head.to > self.at;
            self.at = self.at.max(head.to);
            return Ok(match has_more {
                true => Place::Next(0),
                false => Place::Known,
            });
        }
        let place = place(self.at, head.from, head.to);
        if place == Place::Apart || (self.hole.is_some() && !self.is_needless(place, head)) {
            let hole = self.hole.clone().map(|(_, bad)| bad);
            let bad = hole.unwrap_or_else(|| Bad {
                name: numbered(&chain_dir(head.log), head.number),
                what: format!(
                    "it begins at {}, the chain stands at {}",
                    head.from, self.at
                ),
            });
            return Err(Stop::Hole(bad));
        }
        (self.hole, self.first_hole) = (None, None);
        self.at = self.at.max(head.to);
        Ok(place)
    }

    /// Nothing of what cannot be used was needed: `head` goes on without it. That a segment begins
    /// does not show that the one before is complete.
    fn is_needless(&self, place: Place, head: &Head) -> bool {
        place != Place::Segment && head.epoch == self.epoch
    }

    /// The next links, `first` to `last`, are not as they were put, or are missing.
    pub(super) fn miss(&mut self, first: u64, last: u64, bad: &Bad) {
        let hole = self.hole.get_or_insert_with(|| (last, bad.clone()));
        hole.0 = last;
        self.first_hole.get_or_insert(first);
    }

    /// The last link that cannot be used, if it may have been needed.
    pub(super) fn hole(&self) -> Option<u64> {
        self.hole.as_ref().map(|(number, _)| *number)
    }

    /// The next link is there, and was not read: it is taken to follow.
    pub(super) fn assume(&mut self, number: u64) {
        // Behind a hole nothing is taken for granted, and no link can be asked for.
        self.is_assumed = self.is_whole();
        if self.is_assumed {
            self.link = self.link.max(number);
        }
    }

    /// True if nothing is in doubt.
    pub(super) fn is_whole(&self) -> bool {
        self.hole.is_none() && self.gap.is_none()
    }

    /// The gap that is open.
    pub(super) fn gap(&self) -> Option<Head> {
        self.gap
    }

    /// The last link that can be asked for: what lies behind a hole cannot, not even the base.
    pub(super) fn last_link(&self) -> u64 {
        self.first_hole
            .map_or(self.link, |hole| self.link.min(hole - 1))
    }

    /// Nothing comes any more.
    pub(super) fn finish(&self) -> Result<(), Stop> {
        self.refuse_behind_hole()?;
        self.gap.map_or(Ok(()), |gap| Err(Stop::Gap(gap)))
    }

    /// Another base, from `end` on, in the midst of this: what it misses is missing there too.
    pub(super) fn branch(&self, base: &Head, end: Position) -> Run {
        Run {
            epoch: self.epoch,
            hole: self.hole.clone(),
            first_hole: self.first_hole,
            gap: self.gap,
            ..Run::begin(base, end)
        }
    }
}
