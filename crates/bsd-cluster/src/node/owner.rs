//! Types that a node and its owner exchange.

use std::fmt;

use bytes::Bytes;
use raft::eraftpb::Message;

use crate::ledger::LedgerError;
use crate::member::NodeId;

/// Settings of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// A leader lets learners vote as soon as they have caught up.
    pub promote: bool,
    /// Bytes that the ledger keeps at least for followers that are behind.
    pub keep_bytes: u64,
    /// Committed entries are handed out in pieces of this size, bytes, or a single larger one.
    pub handed_bytes: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            promote: true,
            keep_bytes: 256 << 20,
            handed_bytes: 8 << 20,
        }
    }
}

/// An entry by its index and term: the same on all nodes that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// Its index; 0: before the first one.
    pub index: u64,
    /// The term in which a leader made it; 0 with index 0 only.
    pub term: u64,
}

/// A committed entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Which one.
    pub mark: Mark,
    /// The proposal. Empty: there was none; the entry is raft's own, or a change of the membership.
    pub data: Bytes,
}

/// Role of the node, as far as its owner has to act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It follows this one, or knows no one to follow.
    Follows(Option<NodeId>),
    /// It leads in this term: proposals are taken. Everything that may ever have been acknowledged
    /// before has been handed out. In another term, proposals of before that were not handed out
    /// are lost, or will be handed out as anyone's.
    Leads(u64),
    /// It is no member any more, for ever. It still answers, because others may need that to find
    /// out the same.
    Removed,
}

/// A member lacks entries that are no longer in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotWanted {
    /// Who.
    pub to: NodeId,
    /// The snapshot has at least the entries up to this one.
    pub index: u64,
}

/// Work to do after a [`persist`](super::Node::persist), in the order of these fields.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Out {
    /// To be sent, in this order for each receiver. Any may be lost.
    pub messages: Vec<Message>,
    /// To be applied, or if proposed in the present lead, to be acknowledged.
    pub committed: Vec<Committed>,
    /// Reads up to this number of [`confirm_read`](super::Node::confirm_read) are confirmed, if any are
    /// now.
    pub reads_confirmed: Option<u64>,
    /// Snapshots to be streamed; [`snapshot_sent`](super::Node::snapshot_sent) must follow.
    pub snapshots: Vec<SnapshotWanted>,
    /// The new role of the node, if it has changed. Comes after the entries above.
    pub role: Option<Role>,
}

/// A node does not lead, or cannot take a proposal now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotLeader;

impl fmt::Display for NotLeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this node does not lead, or cannot take proposals now")
    }
}

impl std::error::Error for NotLeader {}

/// Why a node could not be opened.
#[derive(Debug, Clone)]
pub enum NodeError {
    /// The ledger begins after the end of the log: entries between them are on neither. The log is
    /// older than the ledger, as after a restored backup.
    LogBehind {
        /// The last entry in the log.
        log: Mark,
        /// The entry after which the ledger begins.
        ledger: u64,
    },
    /// The log has an entry that the ledger has not, or not that one: entries that this node
    /// answered for are lost.
    LedgerBehind {
        /// The last entry in the log.
        log: Mark,
        /// The last entry of the ledger.
        ledger: u64,
    },
    /// The ledger contradicts itself.
    Unsound(String),
    /// The ledger could not be written.
    Store(LedgerError),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeError::LogBehind { log, ledger } => write!(
                f,
                "the log ends with entry {} of the cluster, but its ledger begins after entry \
                 {ledger}: the log is an older one",
                log.index
            ),
            NodeError::LedgerBehind { log, ledger } => write!(
                f,
                "the log ends with entry {} of term {}, which the ledger, whose last entry is \
                 {ledger}, does not have: the ledger is an older one",
                log.index, log.term
            ),
            NodeError::Unsound(what) => write!(f, "the ledger is unsound: {what}"),
            NodeError::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for NodeError {}
