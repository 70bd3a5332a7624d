//! Invariants of all nodes together.

use std::collections::BTreeMap;

use raft::eraftpb::{Message, MessageType};

use crate::member::{Members, NodeId};
use crate::node::Mark;

#[derive(Default)]
pub(super) struct Oracle {
    /// The history: each entry's term and number, 0 if it has none, by its index - 1.
    pub(super) history: Vec<(u64, u64)>,
    /// The membership after each change.
    pub(super) members: BTreeMap<u64, Members>,
    /// Acknowledged entries.
    acknowledged: BTreeMap<u64, u64>,
    leaders: BTreeMap<u64, u64>,
    votes: BTreeMap<(u64, u64), u64>,
}

impl Oracle {
    pub(super) fn handed_out(&mut self, by: NodeId, mark: Mark, number: u64) {
        let at = mark.index as usize - 1;
        if at == self.history.len() {
            self.history.push((mark.term, number));
        }
        let known = self.history.get(at);
        assert_eq!(
            known,
            Some(&(mark.term, number)),
            "{by:?} has another entry {mark:?}"
        );
    }

    pub(super) fn has_members(&mut self, by: NodeId, index: u64, members: &Members) {
        let known = self.members.entry(index).or_insert_with(|| members.clone());
        assert_eq!(known, members, "{by:?} has other members at {index}");
    }

    /// The membership that holds, as far as anyone knows.
    pub(super) fn newest_members(&self) -> &Members {
        self.members.values().next_back().unwrap()
    }

    pub(super) fn acknowledged(&mut self, index: u64, number: u64) {
        self.acknowledged.insert(index, number);
    }

    /// The last entry that was acknowledged.
    pub(super) fn floor(&self) -> u64 {
        self.acknowledged.keys().next_back().copied().unwrap_or(0)
    }

    pub(super) fn read(&self, by: NodeId, floor: u64, view: u64) {
        assert!(
            floor <= view,
            "{by:?} showed the state of {view} after {floor} was acknowledged"
        );
    }

    /// Check a message that leaves a node.
    pub(super) fn sent(&mut self, message: &Message) {
        let (from, term) = (message.from, message.term);
        let vote = match message.get_msg_type() {
            MessageType::MsgAppend | MessageType::MsgHeartbeat => {
                let leader = *self.leaders.entry(term).or_insert(from);
                assert_eq!(leader, from, "two leaders in term {term}");
                return;
            }
            MessageType::MsgRequestVote => from,
            MessageType::MsgRequestVoteResponse if !message.reject => message.to,
            _ => return,
        };
        let cast = *self.votes.entry((from, term)).or_insert(vote);
        assert_eq!(cast, vote, "{from} voted twice in term {term}");
    }

    pub(super) fn end(&self) {
        for (index, number) in &self.acknowledged {
            let is = self.history.get(*index as usize - 1).map(|entry| entry.1);
            assert_eq!(is, Some(*number), "the acknowledged entry {index} is lost");
        }
    }
}
