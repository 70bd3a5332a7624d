//! Bases apart: those that stay although the links around them have expired, each of them one state.
//!
//! A base needs no link to be restored to where its log ends, but its own. So before the link with
//! which the chain begins there may be bases alone: those that are pinned, and those that an expiry
//! has marked to be kept. A mark says that its base has to be there: where it is not, something is
//! lost. Whatever else is before that link was removed on purpose.
//!
//! Releases that do not know these marks see the archive from that link on, and nothing of this.

use std::collections::BTreeSet;

use super::chain::{Bad, base};
use super::format::{BaseList, Head, chain_dir, claims_dir, kept_dir, numbered, pins_dir};
use super::labels::marked;
use super::reader::Reader;
use super::store::Trouble;
use bsd::clock::utc;
use bsd::storage::format::LogId;
use bsd::types::Position;

/// A state that can be restored, and no moment before or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The number of its base.
    pub base: u64,
    /// Where the log of that ends.
    pub at: Position,
    /// When that was durable, ns since 1970.
    pub wall_ns: u64,
}

impl State {
    pub(super) fn of(head: &Head, list: &BaseList) -> State {
        State {
            base: head.number,
            at: list.end,
            wall_ns: head.wall_ns,
        }
    }
}

/// For people, with what restores it.
impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let State { base, at, wall_ns } = self;
        write!(f, "{}, position {at} (--until base:{base})", utc(*wall_ns))
    }
}

/// The marks of an archive that keep a base.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// An expiry has marked these.
    pub(super) kept: BTreeSet<u64>,
    pub(super) pins: BTreeSet<u64>,
    pub(super) claims: BTreeSet<u64>,
}

/// What is under the number of such a mark.
#[derive(Debug)]
pub(super) enum Found {
    Base(Head, BaseList),
    /// The claim of a writer: the one before it had put the mark of a pin, and no base.
    Claim,
    /// Nothing is there.
    Missing(Bad),
    Bad(Bad),
}

impl Marks {
    pub(super) fn read(reader: &Reader<'_>, log: LogId) -> Result<Marks, Trouble> {
        let kept = marked(reader, log, kept_dir)?;
        let pins = marked(reader, log, pins_dir)?;
        let is_empty = kept.is_empty() && pins.is_empty();
        Ok(Marks {
            claims: match is_empty {
                true => BTreeSet::new(),
                false => marked(reader, log, claims_dir)?,
            },
            kept,
            pins,
        })
    }

    /// The marks before this link, in order.
    pub(super) fn before(&self, link: u64) -> BTreeSet<u64> {
        let all = self.kept.range(..link).chain(self.pins.range(..link));
        all.copied().collect()
    }

    /// What is under a number.
    pub(super) fn find(
        &self,
        reader: &Reader<'_>,
        log: LogId,
        number: u64,
    ) -> Result<Found, Trouble> {
        let name = numbered(&chain_dir(log), number);
        Ok(match base(reader, log, number)? {
            Some(Ok((head, list))) => Found::Base(head, list),
            Some(Err(what)) => Found::Bad(Bad { name, what }),
            None if self.claims.contains(&number) => Found::Claim,
            None => {
                let what = "it is missing, and its mark says that it stays".to_owned();
                Found::Missing(Bad { name, what })
            }
        })
    }
}

/// The states apart, in the order of their links; those that are not as they were put are left out.
///
/// # Errors
/// The store did not answer.
pub(super) fn states(reader: &Reader<'_>, log: LogId, begin: u64) -> Result<Vec<State>, Trouble> {
    let marks = Marks::read(reader, log)?;
    let mut states = Vec::new();
    for number in marks.before(begin) {
        if let Found::Base(head, list) = marks.find(reader, log, number)? {
            states.push(State::of(&head, &list));
        }
    }
    Ok(states)
}
