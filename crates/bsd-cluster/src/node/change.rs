//! Changes of the membership: requests, and entries.
//!
//! raft's own encoding of a change is in the entry's data, because raft looks there when this node
//! proposes it, and no one ever again. Nodes apply a [`Step`], from the entry's context:
//!
//! ```text
//! version u8 = 1 | kind u8 | by kind:
//!   1 learner   a membership of one member (member.rs): it is a learner, with these addresses
//!   2 voter     the same: it votes, with these addresses
//!   3 remove    id u64
//!   4 replace   id u64 of who leaves, id u64 of the learner who votes instead
//!   5 leave     nothing: the joint membership is over
//! ```
//!
//! Nothing follows. An empty context is raft's own way to leave a joint membership.

use std::fmt;

use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState,
};

use crate::member::{Member, Members, NodeId, Votes};

const VERSION: u8 = 1;
const LEARNER: u8 = 1;
const VOTER: u8 = 2;
const REMOVE: u8 = 3;
const REPLACE: u8 = 4;
const LEAVE: u8 = 5;

/// A change of the membership. One at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A new disk comes in as a learner. It votes when it has caught up (see
    /// [`Settings`](super::Settings)).
    Add {
        /// Which disk.
        id: NodeId,
        /// Where other nodes reach it.
        peer: String,
        /// Where clients reach it; may be empty.
        client: String,
    },
    /// A learner that has caught up votes.
    Promote(NodeId),
    /// A member leaves. A leader that leaves transfers its leadership first; then ask the new leader.
    Remove(NodeId),
    /// A learner that has caught up votes instead of a voter, who leaves, in one step: never do
    /// both or neither of them count.
    Replace {
        /// The voter that leaves.
        old: NodeId,
        /// The learner.
        new: NodeId,
    },
    /// A member has other addresses.
    Move {
        /// Which member.
        id: NodeId,
        /// Where other nodes reach it.
        peer: String,
        /// Where clients reach it; may be empty.
        client: String,
    },
}

/// Why a change was not begun. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Another node leads, if this one knows.
    NotLeader(Option<NodeId>),
    /// Another change, or a leadership transfer, is under way: ask again.
    Busy,
    /// This member leads, and transfers leadership to this one: ask that.
    HandsOver(NodeId),
    /// There is no such member, or it is not what the change needs it to be.
    NoSuchMember,
    /// It is one already.
    IsMember,
    /// There are as many members as there may be.
    TooMany,
    /// It has not caught up with the leader, or was not heard of in the last second.
    NotCaughtUp,
    /// No majority of the future voters was heard of in the last second: the cluster would stop.
    NoMajority,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NotLeader(Some(leader)) => write!(f, "{leader} leads: ask that one"),
            Refused::NotLeader(None) => f.write_str("no node leads now: ask again in a second"),
            Refused::Busy => f.write_str("another change is under way: ask again in a second"),
            Refused::HandsOver(to) => write!(
                f,
                "leadership is being transferred to {to}: ask that one in a second"
            ),
            Refused::NoSuchMember => f.write_str("no such member, or not of the kind needed"),
            Refused::IsMember => f.write_str("is a member already"),
            Refused::TooMany => f.write_str("there are as many members as there may be"),
            Refused::NotCaughtUp => f.write_str(
                "has not caught up with the leader yet, or cannot be reached: ask again later",
            ),
            Refused::NoMajority => f.write_str(
                "too few of those who would vote then can be reached: the cluster would stop; \
                 bring a member back, or add one",
            ),
        }
    }
}

impl std::error::Error for Refused {}

/// One change as an entry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Learner(Member),
    Voter(Member),
    Remove(NodeId),
    Replace(NodeId, NodeId),
    Leave,
}

impl Step {
    pub(super) fn encode(&self) -> Vec<u8> {
        let one = |kind, member: &Member| {
            let mut bytes = vec![VERSION, kind];
            let mut one = Members::default();
            one.put(Member {
                votes: Votes::default(),
                ..member.clone()
            });
            one.encode(&mut bytes);
            bytes
        };
        let ids = |kind, ids: &[NodeId]| {
            let mut bytes = vec![VERSION, kind];
            ids.iter().for_each(|id| bytes.extend(id.0.to_le_bytes()));
            bytes
        };
        match self {
            Step::Learner(member) => one(LEARNER, member),
            Step::Voter(member) => one(VOTER, member),
            Step::Remove(id) => ids(REMOVE, &[*id]),
            Step::Replace(old, new) => ids(REPLACE, &[*old, *new]),
            Step::Leave => ids(LEAVE, &[]),
        }
    }

    /// `None`: another version's, or none at all.
    pub(super) fn decode(bytes: &[u8]) -> Option<Step> {
        if bytes.is_empty() {
            return Some(Step::Leave);
        }
        let ([VERSION, kind], bytes) = bytes.split_first_chunk()? else {
            return None;
        };
        let (step, rest) = match *kind {
            LEARNER | VOTER => {
                let (mut members, rest) = Members::decode(bytes)?;
                let member = members.list.pop()?;
                if !members.list.is_empty()
                    || members.auto_leave
                    || member.votes != Votes::default()
                {
                    return None;
                }
                match *kind {
                    LEARNER => (Step::Learner(member), rest),
                    _ => (Step::Voter(member), rest),
                }
            }
            REMOVE => {
                let (id, rest) = node_id(bytes)?;
                (Step::Remove(id), rest)
            }
            REPLACE => {
                let (old, rest) = node_id(bytes)?;
                let (new, rest) = node_id(rest)?;
                (Step::Replace(old, new), rest)
            }
            LEAVE => (Step::Leave, bytes),
            _ => return None,
        };
        rest.is_empty().then_some(step)
    }

    /// The change in raft's words.
    pub(super) fn to_raft(&self) -> ConfChangeV2 {
        let single = |id: NodeId, kind| {
            let mut single = ConfChangeSingle {
                node_id: id.0,
                ..ConfChangeSingle::default()
            };
            single.set_change_type(kind);
            single
        };
        let mut change = ConfChangeV2::default();
        let changes = match self {
            Step::Learner(member) => vec![single(member.id, ConfChangeType::AddLearnerNode)],
            Step::Voter(member) => vec![single(member.id, ConfChangeType::AddNode)],
            Step::Remove(id) => vec![single(*id, ConfChangeType::RemoveNode)],
            Step::Replace(old, new) => {
                change.set_transition(ConfChangeTransition::Explicit);
                vec![
                    single(*old, ConfChangeType::RemoveNode),
                    single(*new, ConfChangeType::AddNode),
                ]
            }
            Step::Leave => Vec::new(),
        };
        change.set_changes(changes.into());
        change
    }

    /// The membership after this step, of which raft says who votes.
    pub(super) fn members(&self, before: &Members, conf: &ConfState) -> Members {
        let mut known = before.clone();
        if let Step::Learner(member) | Step::Voter(member) = self {
            known.put(member.clone());
        }
        let mut after = Members {
            list: Vec::new(),
            auto_leave: conf.auto_leave,
        };
        for mut member in known.list {
            let id = member.id.0;
            member.votes = Votes {
                incoming: conf.voters.contains(&id),
                outgoing: conf.voters_outgoing.contains(&id),
                learner_next: conf.learners_next.contains(&id),
            };
            if member.votes != Votes::default() || conf.learners.contains(&id) {
                after.list.push(member);
            }
        }
        after
    }
}

fn node_id(bytes: &[u8]) -> Option<(NodeId, &[u8])> {
    let (id, rest) = bytes.split_first_chunk()?;
    let id = NodeId(u64::from_le_bytes(*id));
    (id.0 != 0).then_some((id, rest))
}

/// A membership in raft's words. `None`: one that cannot be, at which raft would panic.
pub(super) fn conf_state(members: &Members) -> Option<ConfState> {
    let mut conf = ConfState::default();
    for Member { id, votes, .. } in &members.list {
        match votes {
            Votes {
                incoming: false,
                outgoing: false,
                learner_next: false,
            } => conf.learners.push(id.0),
            Votes {
                incoming,
                outgoing,
                learner_next,
            } => {
                if *learner_next && (*incoming || !*outgoing) {
                    return None;
                }
                conf.voters.extend(incoming.then_some(id.0));
                conf.voters_outgoing.extend(outgoing.then_some(id.0));
                conf.learners_next.extend(learner_next.then_some(id.0));
            }
        }
    }
    conf.auto_leave = members.auto_leave;
    let is_joint = !conf.voters_outgoing.is_empty();
    let is_sound = !conf.voters.is_empty() && (is_joint || !conf.auto_leave);
    is_sound.then_some(conf)
}

/// No member votes in the configuration that is being left.
pub(super) fn is_joint(members: &Members) -> bool {
    members.list.iter().any(|member| member.votes.outgoing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64) -> Member {
        Member {
            id: NodeId(id),
            peer: format!("10.0.0.{id}:11301"),
            client: String::new(),
            votes: Votes::default(),
        }
    }

    #[test]
    fn a_step_is_read_as_it_was_written_and_no_part_of_it_is_one() {
        for step in [
            Step::Learner(member(7)),
            Step::Voter(member(7)),
            Step::Remove(NodeId(9)),
            Step::Replace(NodeId(9), NodeId(7)),
            Step::Leave,
        ] {
            let mut bytes = step.encode();
            assert_eq!(Step::decode(&bytes), Some(step));
            for size in 1..bytes.len() {
                assert_eq!(Step::decode(&bytes[..size]), None, "{size}");
            }
            bytes.push(0);
            assert_eq!(Step::decode(&bytes), None);
        }
    }

    #[test]
    fn a_step_of_another_version_or_of_no_one_is_none() {
        assert_eq!(Step::decode(&[2, LEAVE]), None);
        assert_eq!(Step::decode(&[VERSION, 6]), None);
        assert_eq!(Step::decode(&Step::Remove(NodeId(0)).encode()), None);
    }

    #[test]
    fn a_membership_at_which_raft_would_panic_is_none() {
        let with = |votes, auto_leave| {
            let mut members = Members {
                auto_leave,
                ..Members::default()
            };
            let first = Votes::VOTER;
            for (id, votes) in [(1, first), (2, votes)] {
                members.put(Member {
                    votes,
                    ..member(id)
                });
            }
            conf_state(&members).is_some()
        };
        let votes = |incoming, outgoing, learner_next| Votes {
            incoming,
            outgoing,
            learner_next,
        };
        assert!(with(votes(true, false, false), false));
        assert!(with(votes(false, true, true), true));
        assert!(!with(votes(true, false, false), true));
        assert!(!with(votes(true, true, true), false));
        assert!(!with(votes(false, false, true), false));
        assert_eq!(conf_state(&Members::default()), None);
    }
}
