//! Which messages of a peer raft gets to see.
//!
//! raft panics at what cannot be true, because a node that goes on after that may lose what was
//! acknowledged. But a message proves nothing about this node: a peer may be broken, or have been
//! given an old disk. So whatever raft would panic at, or believe without looking, is refused here;
//! the peer then gets no answer, as if the message had been lost.

use std::fmt;

use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{Raft, StateRole, Storage};

use super::change;

/// Terms and indexes end here, so that adding to one never overflows.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

/// What cannot be true in a message, as words that follow its name.
#[derive(Debug)]
pub(super) struct Untrue(&'static str);

impl fmt::Display for Untrue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Refuse a message that raft must not see.
pub(super) fn check<S: Storage>(raft: &Raft<S>, message: &Message) -> Result<(), Untrue> {
    envelope(raft.id, message)?;
    let log = &raft.raft_log;
    let is_of_term = message.term == raft.term;
    match message.get_msg_type() {
        MessageType::MsgAppend => append(message),
        // The leader sends no more than what this node has acknowledged in its term.
        MessageType::MsgHeartbeat if message.term >= raft.term => {
            within(message.commit, log.last_index(), "commits what is not here")
        }
        MessageType::MsgAppendResponse if is_of_term && raft.state == StateRole::Leader => {
            let last = log.last_index();
            within(message.index, last, "has what was never sent")?;
            within(message.request_snapshot, 0, "asks for a snapshot")
        }
        // Who has entries that are not durable must not become leader before they are.
        MessageType::MsgTimeoutNow if log.last_index() != log.persisted => {
            Err(Untrue("transfers leadership too early"))
        }
        MessageType::MsgHeartbeat
        | MessageType::MsgAppendResponse
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgTimeoutNow
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
        _ => Err(Untrue("is not one that peers send")),
    }
}

fn envelope(id: u64, message: &Message) -> Result<(), Untrue> {
    if message.to != id || message.from == id || message.from == 0 {
        return Err(Untrue("is not for this node, or names no sender"));
    }
    if message.term == 0 {
        return Err(Untrue("has no term"));
    }
    for number in [
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
    ] {
        within(number, NUMBER_MAX, "has a number out of range")?;
    }
    if message.priority != 0 || message.deprecated_priority != 0 {
        return Err(Untrue("has a priority"));
    }
    if !message.entries.is_empty() && message.get_msg_type() != MessageType::MsgAppend {
        return Err(Untrue("has entries"));
    }
    Ok(())
}

/// Entries follow the one they are said to follow, and each other; none is newer than its leader.
fn append(message: &Message) -> Result<(), Untrue> {
    // An index beyond the log has term 0 for raft, so that 0 would match there.
    if (message.index == 0) != (message.log_term == 0) || message.log_term > message.term {
        return Err(Untrue("has entries that follow nothing"));
    }
    let mut last = (message.index, message.log_term);
    for entry in message.entries.iter() {
        if entry.index != last.0 + 1 || entry.term < last.1.max(1) || entry.term > message.term {
            return Err(Untrue("has entries that do not follow each other"));
        }
        if !is_known(entry) {
            return Err(Untrue(
                "has an entry of a kind that this version does not know",
            ));
        }
        last = (entry.index, entry.term);
    }
    within(last.0, NUMBER_MAX, "has a number out of range")
}

/// It can be applied once it is committed: what cannot must not become part of the ledger.
fn is_known(entry: &Entry) -> bool {
    match entry.get_entry_type() {
        EntryType::EntryNormal => true,
        EntryType::EntryConfChangeV2 => change::Step::decode(&entry.context).is_some(),
        EntryType::EntryConfChange => false,
    }
}

fn within(number: u64, most: u64, why: &'static str) -> Result<(), Untrue> {
    match number <= most {
        true => Ok(()),
        false => Err(Untrue(why)),
    }
}
