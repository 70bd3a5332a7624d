//! Members that have less than they had acknowledged: their disks were set back.
//!
//! raft counts what a member has acknowledged, and never less. So for raft such a member has all, while
//! it refuses what the leader sends. What it says itself is compared here. Messages of one connection
//! come in order, so that what an honest member says is never behind what it said before.

use std::collections::BTreeMap;

use raft::eraftpb::{Message, MessageType};
use raft::{Raft, StateRole, Storage};

use crate::member::NodeId;

/// Of each such member the last entry that it has.
#[derive(Debug, Default)]
pub(super) struct SetBack(BTreeMap<NodeId, u64>);

impl SetBack {
    /// A message is about to be taken. Returns whether something is told: once at the beginning, and
    /// once at the end.
    pub(super) fn note<S: Storage>(&mut self, raft: &Raft<S>, message: &Message) -> bool {
        if raft.state != StateRole::Leader {
            // A new leader asks every member again what it has.
            self.0.clear();
            return false;
        }
        let from = NodeId(message.from);
        let Some(matched) = raft.prs().get(from.0).map(|it| it.matched) else {
            return false;
        };
        let is_of_term = message.term == raft.term;
        match message.get_msg_type() {
            MessageType::MsgRequestPreVote | MessageType::MsgRequestVote => {
                self.note_last(from, message.index, matched)
            }
            MessageType::MsgAppendResponse if is_of_term && message.reject => {
                message.index <= matched && self.note_last(from, message.reject_hint, matched)
            }
            MessageType::MsgAppendResponse if is_of_term && message.index >= matched => {
                self.note_all(from)
            }
            _ => false,
        }
    }

    fn note_last(&mut self, from: NodeId, last: u64, matched: u64) -> bool {
        if last >= matched {
            return self.note_all(from);
        }
        let is_new = self.0.insert(from, last).is_none();
        if is_new {
            tracing::warn!(
                "member {from} has entries up to {last}, and had acknowledged {matched}: its disk is \
                 older than it was, and it does not follow; put the right disk back, or remove the \
                 member, keep its directory elsewhere, and add it again with a new one"
            );
        }
        is_new
    }

    fn note_all(&mut self, from: NodeId) -> bool {
        let is_over = self.0.remove(&from).is_some();
        if is_over {
            tracing::warn!("member {from} has all again that it had acknowledged");
        }
        is_over
    }

    /// The last entry that this member has, if that is less than it had acknowledged.
    pub(super) fn last_of(&self, peer: NodeId) -> Option<u64> {
        self.0.get(&peer).copied()
    }
}
