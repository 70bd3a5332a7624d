//! Status of a node and, while it leads, of the others.

use raft::{Progress, ProgressState};

use super::{Node, Role, known};
use crate::member::{Member, NodeId};
use bsd::types::Time;

/// A node's state, for people and for metrics. Nothing is decided by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Which node says this.
    pub id: NodeId,
    /// Its role now.
    pub role: Role,
    /// raft's term.
    pub term: u64,
    /// The leader of this term, if that is known; perhaps this node.
    pub leader: Option<NodeId>,
    /// raft leads with this node, though it may not have committed an entry of its term yet.
    pub is_elected: bool,
    /// Known to be committed up to here.
    pub commit: u64,
    /// Handed out up to here; durable in the log of the node up to `durable`.
    pub applied: u64,
    /// Durable in the log, as the node was told.
    pub durable: u64,
    /// The oldest entry that is still in the ledger.
    pub first: u64,
    /// The newest entry.
    pub last: u64,
    /// The ledger on the disk, bytes.
    pub ledger_bytes: u64,
    /// The entry that brought the membership.
    pub members_index: u64,
    /// A change of the membership, or a leadership transfer, is under way.
    pub is_changing: bool,
    /// Messages that were refused because they could not be true.
    pub refused: u64,
    /// The members, in the order of their ids.
    pub members: Vec<Peer>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub member: Member,
    /// When it last said anything that was taken.
    pub heard: Option<Time>,
    /// Why its messages are refused, if they are.
    pub refused: Option<String>,
    /// It has less than it had acknowledged: its disk was set back.
    pub is_set_back: bool,
    /// It has no room for a put: what its leader was told last, or what it knows of itself.
    pub is_short: bool,
    /// How far it is, if the node that says this leads.
    pub progress: Option<Reach>,
}

/// How far a member is, as its leader knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// It has everything up to this entry durably.
    pub matched: u64,
    /// The entry that it gets next.
    pub next: u64,
    /// Entries that it does not have.
    pub lag: u64,
    /// It gets nothing now: too much is under way, or it waits for a snapshot.
    pub is_paused: bool,
    /// It waits for a snapshot.
    pub needs_snapshot: bool,
}

impl Node {
    /// Status of the node.
    #[must_use]
    pub fn status(&self) -> Status {
        let raft = &self.raft.raft;
        let ledger = self.ledger();
        let (members_index, members) = ledger.members();
        let peer = |member: &Member| Peer {
            member: member.clone(),
            heard: self.heard_of.get(&member.id).copied(),
            refused: self
                .refusals
                .of(member.id, self.timer.now)
                .map(str::to_owned),
            is_set_back: self.is_elected() && self.set_back.last_of(member.id).is_some(),
            progress: raft
                .prs()
                .get(member.id.0)
                .and_then(|it| self.reach(member.id, it)),
            is_short: (self.is_elected() || member.id == self.id) && self.is_short(member.id),
        };
        Status {
            id: self.id,
            role: self.role(),
            term: raft.term,
            leader: known(raft.leader_id),
            is_elected: self.is_elected(),
            commit: raft.raft_log.committed,
            applied: self.handed.index,
            durable: self.raft.store().durable.index,
            first: ledger.first_index(),
            last: raft.raft_log.last_index(),
            ledger_bytes: ledger.bytes(),
            members_index,
            is_changing: self.is_changing(),
            refused: self.refusals.all(),
            members: members.list.iter().map(peer).collect(),
        }
    }

    fn reach(&self, peer: NodeId, progress: &Progress) -> Option<Reach> {
        let last = self.raft.raft.raft_log.last_index();
        let matched = self.set_back.last_of(peer).unwrap_or(progress.matched);
        self.is_elected().then(|| Reach {
            matched,
            next: progress.next_idx,
            lag: last.saturating_sub(matched),
            is_paused: progress.is_paused(),
            needs_snapshot: progress.state == ProgressState::Snapshot,
        })
    }
}
