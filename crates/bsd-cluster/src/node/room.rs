//! Room for puts: each node says with its answers whether it has it, and a leader counts.
//!
//! It travels in `commit_term`, which raft leaves at 0 in answers and does not read there: 0 is what an
//! older version says, which is taken as room.

use std::collections::{BTreeSet, HashSet};

use raft::eraftpb::{Message, MessageType};

use super::Node;
use crate::member::NodeId;

const SHORT: u64 = 1;
const ROOMY: u64 = 2;

fn is_answer(message: &Message) -> bool {
    matches!(
        message.get_msg_type(),
        MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse
    )
}

/// Say in an answer whether this node has room.
pub(super) fn put(message: &mut Message, has_room: bool) {
    if is_answer(message) {
        message.commit_term = if has_room { ROOMY } else { SHORT };
    }
}

/// Take the room of its sender out of an answer.
pub(super) fn take(message: &Message, short: &mut BTreeSet<NodeId>) {
    let from = NodeId(message.from);
    match message.commit_term {
        SHORT => _ = short.insert(from),
        _ => _ = short.remove(&from),
    }
}

impl Node {
    /// Whether this node can take what a put needs from now on.
    pub(crate) fn set_has_room(&mut self, has_room: bool) {
        self.has_room = has_room;
    }

    /// True if a majority answers, and no majority of those that have room for a put. Only a leader
    /// knows: any other node returns false.
    #[must_use]
    pub(crate) fn lacks_room(&self) -> bool {
        // Nearly always: this is asked for in each turn.
        let is_anyone_short = !self.has_room || !self.short.is_empty();
        if !is_anyone_short || !self.is_elected() {
            return false;
        }
        let reached = |id: &u64| self.is_reached(NodeId(*id));
        let prs = self.raft.raft.prs();
        let reached: HashSet<u64, _> = prs.iter().map(|(id, _)| *id).filter(reached).collect();
        let roomy = reached.iter().copied();
        let roomy: HashSet<u64, _> = roomy.filter(|id| !self.is_short(NodeId(*id))).collect();
        prs.has_quorum(&reached) && !prs.has_quorum(&roomy)
    }

    /// True if this node has said that it has no room for a put, as far as this one knows.
    pub(super) fn is_short(&self, id: NodeId) -> bool {
        match id == self.id {
            true => !self.has_room,
            false => self.short.contains(&id),
        }
    }
}
