//! Members of a cluster: identities, members, and their bytes.
//!
//! A member is a disk, not a machine: a server that comes back with an empty disk is a new one. So
//! a node's id is drawn when its ledger is made, and never given to another.

use std::fmt;

/// The longest address, bytes.
pub(crate) const ADDRESS_SIZE_MAX: usize = 255;
/// Most members of a cluster, learners included.
pub const MEMBERS_MAX: usize = 16;

/// Which cluster: random, made once with the first node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub [u8; 16]);

/// Which disk of the cluster: random, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A member's part in votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Votes {
    /// It votes in the membership that holds, or that is being introduced.
    pub incoming: bool,
    /// It votes in the membership that is being left (joint consensus).
    pub outgoing: bool,
    /// It becomes one without a vote when the change is over.
    pub learner_next: bool,
}

impl Votes {
    /// It votes, and no membership is being left.
    pub const VOTER: Votes = Votes {
        incoming: true,
        outgoing: false,
        learner_next: false,
    };
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Which disk.
    pub id: NodeId,
    /// Where other nodes reach it, `HOST:PORT`.
    pub peer: String,
    /// Where clients reach it, `HOST:PORT`; empty if no one knows.
    pub client: String,
    /// Its part in votes; all false: a learner.
    pub votes: Votes,
}

/// The membership at one index of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// In the order of their ids.
    pub list: Vec<Member>,
    /// A joint membership leaves itself.
    pub auto_leave: bool,
}

impl Members {
    /// The member with this id.
    #[must_use]
    pub fn get(&self, id: NodeId) -> Option<&Member> {
        self.list.iter().find(|member| member.id == id)
    }

    /// Add this member, or replace the one with its id.
    pub fn put(&mut self, member: Member) {
        match self.list.binary_search_by_key(&member.id, |it| it.id) {
            Ok(at) => self.list[at] = member,
            Err(at) => self.list.insert(at, member),
        }
    }

    /// Its bytes, after those that are there.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&(self.list.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&u16::from(self.auto_leave).to_le_bytes());
        for member in &self.list {
            bytes.extend_from_slice(&member.id.0.to_le_bytes());
            let Votes {
                incoming,
                outgoing,
                learner_next,
            } = member.votes;
            let votes = u8::from(incoming) | u8::from(outgoing) << 1 | u8::from(learner_next) << 2;
            bytes.push(votes);
            for address in [&member.peer, &member.client] {
                bytes.push(address.len().min(ADDRESS_SIZE_MAX) as u8);
                bytes.extend_from_slice(&address.as_bytes()[..address.len().min(ADDRESS_SIZE_MAX)]);
            }
        }
    }

    /// The membership that these bytes begin with, and what follows it. `None`: they are none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Members, &[u8])> {
        let (count, bytes) = bytes.split_first_chunk()?;
        let (leave, mut bytes) = bytes.split_first_chunk()?;
        let count = usize::from(u16::from_le_bytes(*count));
        let auto_leave = match u16::from_le_bytes(*leave) {
            0 => false,
            1 => true,
            _ => return None,
        };
        if count > MEMBERS_MAX {
            return None;
        }
        let mut list: Vec<Member> = Vec::new();
        for _ in 0..count {
            let (id, rest) = bytes.split_first_chunk()?;
            let id = NodeId(u64::from_le_bytes(*id));
            let (votes, rest) = rest.split_first()?;
            let (peer, rest) = address(rest)?;
            let (client, rest) = address(rest)?;
            let is_next = list.last().is_none_or(|last| last.id < id);
            if id.0 == 0 || !is_next || *votes > 7 {
                return None;
            }
            list.push(Member {
                id,
                peer,
                client,
                votes: Votes {
                    incoming: votes & 1 != 0,
                    outgoing: votes & 2 != 0,
                    learner_next: votes & 4 != 0,
                },
            });
            bytes = rest;
        }
        Some((Members { list, auto_leave }, bytes))
    }
}

fn address(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (size, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*size))?;
    Some((std::str::from_utf8(text).ok()?.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Members {
        let mut members = Members::default();
        for id in [3, 1, 2] {
            members.put(Member {
                id: NodeId(id),
                peer: format!("10.0.0.{id}:11301"),
                client: String::new(),
                votes: Votes {
                    incoming: id != 2,
                    ..Votes::default()
                },
            });
        }
        members
    }

    #[test]
    fn a_membership_is_read_as_it_was_written_and_no_part_of_it_is_one() {
        let members = members();
        let mut bytes = Vec::new();
        members.encode(&mut bytes);
        let whole = bytes.len();
        bytes.push(7);
        assert_eq!(Members::decode(&bytes), Some((members, &[7][..])));
        for size in 0..whole {
            assert_eq!(Members::decode(&bytes[..size]), None, "{size}");
        }
    }

    #[test]
    fn members_out_of_order_or_twice_are_no_membership() {
        let mut members = members();
        members.list[1].id = members.list[0].id;
        let mut bytes = Vec::new();
        members.encode(&mut bytes);
        assert_eq!(Members::decode(&bytes), None);
    }
}
