//! Messages that are refused: each is counted, and of each peer the first is told and the end of
//! it. A peer that cannot be believed says something twenty times a second.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::member::{MEMBERS_MAX, NodeId};
use bsd::types::{SECOND_NS, Time};

/// It is over when nothing of a peer was refused for this time.
const OVER_NS: i64 = 10 * SECOND_NS;

/// Refused messages of one peer.
#[derive(Debug)]
struct Refusal {
    why: String,
    last: Time,
    count: u64,
}

/// Refused messages of each peer.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    of: BTreeMap<NodeId, Refusal>,
    all: u64,
}

impl Refusals {
    /// Messages that were refused since the start.
    pub(super) fn all(&self) -> u64 {
        self.all
    }

    /// A message was refused. Returns whether that is told.
    pub(super) fn note_refused(&mut self, from: NodeId, why: &dyn Display, now: Time) -> bool {
        self.all += 1;
        let is_over = |it: &Refusal| now.since(it.last) >= OVER_NS;
        if let Some(refusal) = self.of.get_mut(&from).filter(|it| !is_over(it)) {
            (refusal.last, refusal.count) = (now, refusal.count + 1);
            return false;
        }
        self.of.retain(|_, it| !is_over(it));
        if self.of.len() < MEMBERS_MAX {
            let why = format!("it {why}");
            tracing::warn!(
                "a message from {from} was refused: {why}; more of them are only counted"
            );
            let (last, count) = (now, 1);
            self.of.insert(from, Refusal { why, last, count });
        }
        true
    }

    /// A message was taken. Returns whether that is told: it ends what was refused.
    pub(super) fn note_taken(&mut self, from: NodeId, now: Time) -> bool {
        let known = self.of.get(&from);
        if known.is_none_or(|it| now.since(it.last) < OVER_NS) {
            return false;
        }
        let count = self.of.remove(&from).map_or(0, |it| it.count);
        tracing::warn!("messages from {from} are taken again: {count} were refused");
        true
    }

    /// Why messages of this peer are refused, if they are now.
    pub(super) fn of(&self, peer: NodeId, now: Time) -> Option<&str> {
        let refusal = self.of.get(&peer);
        let refusal = refusal.filter(|it| now.since(it.last) < OVER_NS);
        refusal.map(|it| &*it.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g09_what_a_peer_says_that_is_refused_is_told_at_its_beginning_and_at_its_end() {
        let (mut refusals, peer, why) = (Refusals::default(), NodeId(2), &"is wrong");
        let mut told = 0;
        for ms in (0..600_000).step_by(50) {
            let now = Time(ms * SECOND_NS / 1000);
            told += u32::from(refusals.note_refused(peer, why, now));
            // Something else of it may be true.
            assert!(!refusals.note_taken(peer, now));
            assert_eq!(refusals.of(peer, now), Some("it is wrong"));
        }
        assert_eq!((told, refusals.all()), (1, 12_000));
        let after = Time(620 * SECOND_NS);
        assert_eq!(refusals.of(peer, after), None);
        assert!(refusals.note_taken(peer, after) && !refusals.note_taken(peer, after));
        assert!(refusals.note_refused(peer, why, after));
        // No matter who they say they are.
        for id in 3..1000 {
            refusals.note_refused(NodeId(id), why, after);
        }
        assert_eq!(refusals.of.len(), MEMBERS_MAX);
    }
}
