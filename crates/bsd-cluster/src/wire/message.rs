//! A message of raft, as bytes.
//!
//! ```text
//! kind u8, reject u8, reserved u16
//! to, from, term, log_term, index, commit, commit_term, request_snapshot, reject_hint   u64 each
//! priority   i64
//! context    counted bytes
//! count      u32, and this many entries: kind u8, term u64, index u64, data, context (counted bytes)
//! snapshot   of kind `MsgSnapshot` only: index u64, term u64, auto_leave u8,
//!            voters, learners, voters_outgoing, learners_next (count u32, u64 each), data (counted)
//! ```
//!
//! `deprecated_priority` and `sync_log` do not travel: nothing here sets or reads them.
//!
//! Raft's own assumptions are checked here, because raft 0.7.0 panics or goes wrong without them: a
//! message without a term counts as the node's own, a `MsgReadIndex` without an entry panics.

use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

use super::WireError;
use super::read::{Reader, put_counted};

/// The messages that travel between nodes, with our numbers for them.
const KINDS: [(u8, MessageType); 13] = [
    (1, MessageType::MsgAppend),
    (2, MessageType::MsgAppendResponse),
    (3, MessageType::MsgRequestVote),
    (4, MessageType::MsgRequestVoteResponse),
    (5, MessageType::MsgRequestPreVote),
    (6, MessageType::MsgRequestPreVoteResponse),
    (7, MessageType::MsgHeartbeat),
    (8, MessageType::MsgHeartbeatResponse),
    (9, MessageType::MsgSnapshot),
    (10, MessageType::MsgTransferLeader),
    (11, MessageType::MsgTimeoutNow),
    (12, MessageType::MsgReadIndex),
    (13, MessageType::MsgReadIndexResp),
];

const ENTRY_KINDS: [(u8, EntryType); 3] = [
    (0, EntryType::EntryNormal),
    (1, EntryType::EntryConfChange),
    (2, EntryType::EntryConfChangeV2),
];

const FIXED_SIZE: usize = 4 + 10 * 8 + 2 * 4;
const ENTRY_SIZE_MIN: usize = 1 + 2 * 8 + 2 * 4;

/// Its size as bytes, or a little more.
pub(super) fn size(message: &Message) -> usize {
    let entries = message.entries.iter();
    let entries = entries.map(|entry| ENTRY_SIZE_MIN + entry.data.len() + entry.context.len());
    let snapshot = message.snapshot.as_ref().map_or(0, |snapshot| {
        let conf = snapshot.get_metadata().get_conf_state();
        let nodes = [
            &conf.voters,
            &conf.learners,
            &conf.voters_outgoing,
            &conf.learners_next,
        ];
        64 + snapshot.data.len() + nodes.iter().map(|nodes| 8 * nodes.len()).sum::<usize>()
    });
    FIXED_SIZE + message.context.len() + entries.sum::<usize>() + snapshot
}

pub(super) fn encode(message: &Message, bytes: &mut Vec<u8>) -> Result<(), WireError> {
    let kind = KINDS.iter().find(|(_, kind)| *kind == message.msg_type);
    let (kind, _) = kind.ok_or(WireError::Forbidden(message.msg_type as i32))?;
    is_sound(message)?;
    bytes.extend_from_slice(&[*kind, u8::from(message.reject), 0, 0]);
    for number in [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
    ] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&message.priority.to_le_bytes());
    put_counted(bytes, &message.context);
    bytes.extend_from_slice(&(message.entries.len() as u32).to_le_bytes());
    message
        .entries
        .iter()
        .for_each(|entry| put_entry(entry, bytes));
    if let Some(snapshot) = message.snapshot.as_ref() {
        put_snapshot(snapshot, bytes);
    }
    Ok(())
}

fn put_entry(entry: &Entry, bytes: &mut Vec<u8>) {
    let kind = ENTRY_KINDS
        .iter()
        .find(|(_, kind)| *kind == entry.entry_type);
    bytes.push(kind.map_or(u8::MAX, |(kind, _)| *kind));
    bytes.extend_from_slice(&entry.term.to_le_bytes());
    bytes.extend_from_slice(&entry.index.to_le_bytes());
    put_counted(bytes, &entry.data);
    put_counted(bytes, &entry.context);
}

fn put_snapshot(snapshot: &Snapshot, bytes: &mut Vec<u8>) {
    let metadata = snapshot.get_metadata();
    let conf = metadata.get_conf_state();
    bytes.extend_from_slice(&metadata.index.to_le_bytes());
    bytes.extend_from_slice(&metadata.term.to_le_bytes());
    bytes.push(u8::from(conf.auto_leave));
    for nodes in [
        &conf.voters,
        &conf.learners,
        &conf.voters_outgoing,
        &conf.learners_next,
    ] {
        bytes.extend_from_slice(&(nodes.len() as u32).to_le_bytes());
        nodes
            .iter()
            .for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
    }
    put_counted(bytes, &snapshot.data);
}

pub(super) fn decode(reader: &mut Reader) -> Result<Message, WireError> {
    let mut message = Message::default();
    let kind = reader.u8()?;
    let known = KINDS.iter().find(|(number, _)| *number == kind);
    let (_, kind) = known.ok_or(WireError::Unknown("message of raft", kind.into()))?;
    message.msg_type = *kind;
    message.reject = reader.bool()?;
    if reader.u16()? != 0 {
        return Err(WireError::Malformed("reserved bytes are used"));
    }
    for field in [
        &mut message.to,
        &mut message.from,
        &mut message.term,
        &mut message.log_term,
        &mut message.index,
        &mut message.commit,
        &mut message.commit_term,
        &mut message.request_snapshot,
        &mut message.reject_hint,
    ] {
        *field = reader.u64()?;
    }
    message.priority = reader.i64()?;
    message.context = reader.counted()?;
    let count = reader.count(ENTRY_SIZE_MIN)?;
    let entries: Result<Vec<Entry>, WireError> = (0..count).map(|_| take_entry(reader)).collect();
    message.entries = entries?.into();
    if message.msg_type == MessageType::MsgSnapshot {
        message.set_snapshot(take_snapshot(reader)?);
    }
    is_sound(&message)?;
    Ok(message)
}

fn take_entry(reader: &mut Reader) -> Result<Entry, WireError> {
    let kind = reader.u8()?;
    let known = ENTRY_KINDS.iter().find(|(number, _)| *number == kind);
    let (_, kind) = known.ok_or(WireError::Unknown("entry", kind.into()))?;
    Ok(Entry {
        entry_type: *kind,
        term: reader.u64()?,
        index: reader.u64()?,
        data: reader.counted()?,
        context: reader.counted()?,
        ..Entry::default()
    })
}

fn take_snapshot(reader: &mut Reader) -> Result<Snapshot, WireError> {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = reader.u64()?;
    metadata.term = reader.u64()?;
    let conf = metadata.mut_conf_state();
    conf.auto_leave = reader.bool()?;
    for nodes in [
        &mut conf.voters,
        &mut conf.learners,
        &mut conf.voters_outgoing,
        &mut conf.learners_next,
    ] {
        let count = reader.count(8)?;
        for _ in 0..count {
            nodes.push(reader.u64()?);
        }
    }
    snapshot.data = reader.counted()?;
    Ok(snapshot)
}

/// Check raft's assumptions about a message, both when it is sent and when it has arrived.
fn is_sound(message: &Message) -> Result<(), WireError> {
    use MessageType::{MsgAppend, MsgReadIndex, MsgReadIndexResp, MsgSnapshot};
    let expect = |holds, what| match holds {
        true => Ok(()),
        false => Err(WireError::Malformed(what)),
    };
    let kind = message.msg_type;
    let entries = &message.entries;
    // Raft takes a message without a term for the node's own. Only a passed-on read has none.
    expect(
        message.term != 0 || kind == MsgReadIndex,
        "a message without a term",
    )?;
    expect(
        message.snapshot.is_some() == (kind == MsgSnapshot),
        "a snapshot in another message, or none",
    )?;
    match kind {
        MsgAppend => are_consecutive(message),
        MsgReadIndex | MsgReadIndexResp => expect(
            entries.len() == 1 && entries[0].entry_type == EntryType::EntryNormal,
            "a read that is not one entry",
        ),
        _ => expect(entries.is_empty(), "entries in a message that has none"),
    }
}

/// Entries follow each other, and their terms never decrease nor exceed that of the leader.
fn are_consecutive(message: &Message) -> Result<(), WireError> {
    let (mut index, mut term) = (message.index, message.log_term);
    for entry in message.entries.iter() {
        let next = index.checked_add(1);
        if next != Some(entry.index) || entry.term == 0 {
            return Err(WireError::Malformed(
                "entries that do not follow each other",
            ));
        }
        if entry.term < term || entry.term > message.term {
            return Err(WireError::Malformed("entries whose terms are out of order"));
        }
        (index, term) = (entry.index, entry.term);
    }
    Ok(())
}
