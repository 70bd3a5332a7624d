//! How long the record of a pause is needed, and who has made it.
//!
//! A pause that is replaced by a shorter one, or lifted, leaves a record behind that replay would
//! bring back, were the later record gone first: see `last`.
//!
//! A client can make many such records in a short time, of tubes that vanish at once. So they have a
//! share of the memory of their own. Past half of it, each who makes them has at most as much as is
//! left for all others; and the files with the records of dead pauses are rewritten, which lets go
//! of what kept them dead.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::Link;
use super::last::{Freed, LastRecords, Recorded};
use crate::storage::Log;
use crate::storage::format::pause;
use crate::types::{Place, SegmentId, Time};

/// Rough cost of a tube here, its name apart, bytes: an entry of a tree whose leaves are half full,
/// and the smallest piece of memory for the name.
const TUBE_SIZE: usize = 112;

/// Who has made a pause.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// Someone before the start, or another queue.
    #[default]
    Unknown,
    /// A process of this machine, or this one.
    Here,
    /// Clients of an address; of IPv6 of a network of 64 bits.
    Address(IpAddr),
    /// Anyone who has the token, or the certificate, with this name.
    Name(Arc<str>),
}

impl Owner {
    /// The one at the other end of a connection.
    pub(super) fn of(link: Option<Link>) -> Owner {
        let Some(link) = link else { return Owner::Here };
        match (link.name, link.peer.map(|peer| peer.ip().to_canonical())) {
            (Some(name), _) => Owner::Name(name),
            (None, None) => Owner::Here,
            (None, Some(IpAddr::V6(long))) => {
                Owner::Address(IpAddr::from((long.to_bits() & (!0 << 64)).to_be_bytes()))
            }
            (None, Some(address)) => Owner::Address(address),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Unknown => write!(f, "before the start"),
            Owner::Here => write!(f, "on this machine"),
            Owner::Address(address) => write!(f, "at {address}"),
            Owner::Name(name) => write!(f, "with the name {name:?}"),
        }
    }
}

/// How many bytes are held for each owner.
#[derive(Debug, Default)]
struct Owners {
    ids: BTreeMap<Owner, u32>,
    held: Vec<(Owner, u64)>,
    free: Vec<u32>,
}

impl Owners {
    fn id(&mut self, owner: &Owner) -> u32 {
        if let Some(id) = self.ids.get(owner) {
            return *id;
        }
        let id = self.free.pop().unwrap_or(self.held.len() as u32);
        if self.held.len() == id as usize {
            self.held.push(Default::default());
        }
        self.held[id as usize] = (owner.clone(), 0);
        self.ids.insert(owner.clone(), id);
        id
    }

    fn held_for(&self, owner: &Owner) -> u64 {
        let id = self.ids.get(owner);
        id.map_or(0, |id| self.held[*id as usize].1)
    }

    fn add(&mut self, id: u32, bytes: u64) {
        self.held[id as usize].1 += bytes;
    }

    fn subtract(&mut self, id: u32, bytes: u64) {
        let (owner, held) = &mut self.held[id as usize];
        *held -= bytes;
        if *held == 0 {
            self.ids.remove(owner);
            self.free.push(id);
        }
    }
}

/// The records of pauses that the log has to keep.
#[derive(Debug)]
pub(super) struct Pauses {
    /// Of each tube, who made the first of its pauses.
    last: LastRecords<Box<str>, u32>,
    name_bytes: usize,
    owners: Owners,
    /// Bytes that they may take.
    share: u64,
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses {
            last: LastRecords::default(),
            name_bytes: 0,
            owners: Owners::default(),
            share: u64::MAX,
        }
    }
}

impl Pauses {
    /// They may take this many bytes.
    pub(super) fn bound(&mut self, share: u64) {
        self.share = share;
    }

    /// A record about the pause of `tube`, which lasts until `until`, lies at `place`. `owner` has made
    /// it. Returns the record that it replaces, which `segment_of` places; or this one, if nothing
    /// needs it.
    pub(super) fn record(
        &mut self,
        (tube, owner): (&str, &Owner),
        place: Place,
        until: Time,
        now: Time,
        segment_of: impl Fn(Place) -> SegmentId,
    ) -> Option<Freed> {
        let size = pause::SIZE + tube.len();
        let Pauses {
            last,
            name_bytes,
            owners,
            ..
        } = self;
        let begin = || {
            let owner = owners.id(owner);
            owners.add(owner, memory_of(tube));
            *name_bytes += tube.len();
            owner
        };
        let record = Recorded { place, size, until };
        last.record(tube.into(), record, now, segment_of, begin)
    }

    /// Whether the record about `tube` at `place` is needed.
    pub(super) fn is_at(&self, tube: &str, place: Place) -> bool {
        self.last.is_at(&tube.into(), place)
    }

    /// The record about `tube` has moved.
    pub(super) fn moved(&mut self, tube: &str, from: Place, to: Place) -> bool {
        self.last.moved(&tube.into(), from, to)
    }

    /// Forgets the records that are needed no more, and tells the log so; looks at no more than
    /// `budget` tubes. Says whether there may be more.
    pub(super) fn expire(&mut self, log: &mut Log, now: Time, budget: usize) -> bool {
        let budget = (budget, self.is_pressed());
        let Pauses {
            last,
            name_bytes,
            owners,
            ..
        } = self;
        last.expire(log, now, budget, &mut |tube, owner| {
            *name_bytes -= tube.len();
            owners.subtract(*owner, memory_of(tube));
        })
    }

    /// Whether there is a record of a pause of this tube.
    pub(super) fn has(&self, tube: &str) -> bool {
        self.last.get(&tube.into()).is_some()
    }

    /// Whether `owner` may pause one tube more: in the first half of the share everyone may; past it
    /// anyone who has less than is left.
    pub(super) fn has_room_for(&self, owner: &Owner) -> bool {
        let left = self.share.saturating_sub(self.memory());
        !self.is_pressed() || self.owners.held_for(owner) < left
    }

    fn is_pressed(&self) -> bool {
        self.memory() >= self.share / 2
    }

    /// The memory that it takes, bytes, roughly.
    pub(super) fn memory(&self) -> u64 {
        (self.last.len() * TUBE_SIZE + self.name_bytes) as u64
    }

    /// The bytes that they may take.
    pub(super) fn share(&self) -> u64 {
        self.share
    }
}

fn memory_of(tube: &str) -> u64 {
    (TUBE_SIZE + tube.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(offset: u32) -> Place {
        Place { file: 1, offset }
    }

    fn pause(pauses: &mut Pauses, tube: &str, owner: &Owner) -> bool {
        if !pauses.has_room_for(owner) {
            return false;
        }
        let (until, now) = (Time(i64::MAX), Time(0));
        pauses.record((tube, owner), place(0), until, now, |_| SegmentId(1));
        true
    }

    #[test]
    fn g28_who_makes_most_pauses_is_refused_first_and_others_have_what_is_left() {
        let mut pauses = Pauses::default();
        pauses.bound(1 << 20);
        let name = |name: &str| Owner::Name(name.into());
        let many = |pauses: &mut Pauses, owner: &str| {
            let tubes = (0..).map(|nth| format!("{owner}-{nth}"));
            let mut tubes = tubes.take_while(|tube| pause(pauses, tube, &name(owner)));
            tubes.by_ref().count() as u64
        };
        let each = (TUBE_SIZE + 8) as u64;
        let greedy = many(&mut pauses, "greedy");
        assert!(greedy.abs_diff((1 << 19) / each) < 300, "{greedy}");
        assert!(!pause(&mut pauses, "more", &name("greedy")));
        assert!(pause(&mut pauses, "one", &Owner::Here));
        let second = many(&mut pauses, "second");
        assert!(second.abs_diff((1 << 18) / each) < 300, "{second}");
        assert!(pause(&mut pauses, "two", &Owner::Here));
        assert!(pauses.memory() < 1 << 20);
    }

    #[test]
    fn g28_anyone_who_has_a_name_is_known_by_it_and_others_by_their_network() {
        let link = |peer: &str, name: Option<&str>| {
            Owner::of(Some(Link {
                peer: Some(peer.parse().unwrap()),
                name: name.map(Arc::from),
                unread: 0,
            }))
        };
        assert_eq!(
            link("10.0.0.1:1", Some("mail")),
            link("10.0.0.2:2", Some("mail"))
        );
        assert_eq!(link("10.0.0.1:1", None), link("10.0.0.1:2", None));
        assert_ne!(link("10.0.0.1:1", None), link("10.0.0.2:1", None));
        assert_eq!(
            link("[2001:db8::1]:1", None),
            link("[2001:db8::ff:2]:1", None)
        );
        assert_eq!(link("[::ffff:10.0.0.1]:1", None), link("10.0.0.1:1", None));
        assert_eq!(Owner::of(None), Owner::Here);
    }
}
