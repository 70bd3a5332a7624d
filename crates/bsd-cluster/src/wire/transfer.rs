//! Further messages: a snapshot's files, and the admission of a node with an empty disk.
//!
//! ```text
//! Begin   index u64, term u64, members (counted), count u32, and this many files: name (short), size u64
//! Chunk   bytes of the files, one file after the other; a chunk may reach into the next file
//! End     crc u32, of all bytes of all chunks
//! Taken   installed u8, text (short)
//! Join    node u64, peer address, client address
//! Invite  0, cluster [u8; 16], members (counted)  |  1, node u64, peer address  |  2, text (short)
//! ```

use std::collections::BTreeSet;

use super::WireError;
use super::read::{Reader, put_counted, put_short};
use crate::member::{ADDRESS_SIZE_MAX, ClusterId, Member, Members, NodeId};

const FILE_SIZE_MIN: usize = 1 + 1 + 8;

/// A snapshot begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// The last entry that the snapshot contains.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The membership at that entry.
    pub members: Members,
    /// The files, by names that are no paths, each once, and how many bytes each has.
    pub files: Vec<(String, u64)>,
}

impl Begin {
    /// How many bytes all files have; `None`: more than can be.
    fn total(&self) -> Option<u64> {
        self.files
            .iter()
            .try_fold(0_u64, |sum, (_, size)| sum.checked_add(*size))
    }

    pub(super) fn size(&self) -> usize {
        let files = self
            .files
            .iter()
            .map(|(name, _)| name.len() + FILE_SIZE_MIN);
        (16 << 10) + files.sum::<usize>()
    }

    fn is_sound(&self) -> Result<(), WireError> {
        let names: BTreeSet<&str> = self.files.iter().map(|(name, _)| name.as_str()).collect();
        if names.len() < self.files.len() || !names.iter().all(|name| is_file_name(name)) {
            return Err(WireError::Malformed(
                "a name of a file that is none, or is there twice",
            ));
        }
        match self.total() {
            Some(_) => Ok(()),
            None => Err(WireError::TooLarge("a snapshot")),
        }
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), WireError> {
        self.is_sound()?;
        bytes.extend_from_slice(&self.index.to_le_bytes());
        bytes.extend_from_slice(&self.term.to_le_bytes());
        put_members(bytes, &self.members)?;
        bytes.extend_from_slice(&(self.files.len() as u32).to_le_bytes());
        for (name, size) in &self.files {
            put_short(bytes, name)?;
            bytes.extend_from_slice(&size.to_le_bytes());
        }
        Ok(())
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Begin, WireError> {
        let (index, term) = (reader.u64()?, reader.u64()?);
        let members = take_members(reader)?;
        let count = reader.count(FILE_SIZE_MIN)?;
        let files: Result<_, WireError> = (0..count)
            .map(|_| Ok((reader.short()?, reader.u64()?)))
            .collect();
        let begin = Begin {
            index,
            term,
            members,
            files: files?,
        };
        begin.is_sound()?;
        Ok(begin)
    }
}

/// A name that stays in its directory, whatever system this is.
fn is_file_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_plain)
}

/// A snapshot is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// CRC-32 of all bytes of its files, in the order of [`Begin::files`].
    pub crc: u32,
}

impl End {
    pub(super) fn encode(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.crc.to_le_bytes());
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<End, WireError> {
        Ok(End { crc: reader.u32()? })
    }
}

/// Result of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// It is durable, and is what the node has now.
    Installed,
    /// It is not used, for this reason; at most 255 bytes.
    Refused(String),
}

impl Taken {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), WireError> {
        match self {
            Taken::Installed => {
                bytes.push(1);
                put_short(bytes, "")
            }
            Taken::Refused(text) => {
                bytes.push(0);
                put_short(bytes, text)
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Taken, WireError> {
        let installed = reader.bool()?;
        let text = reader.short()?;
        match (installed, text.is_empty()) {
            (true, true) => Ok(Taken::Installed),
            (true, false) => Err(WireError::Malformed("a reason to be content")),
            (false, _) => Ok(Taken::Refused(text)),
        }
    }
}

/// Puts the chunks of a snapshot back into files, and says when all of it is there.
#[derive(Debug)]
pub struct Intake {
    begin: Begin,
    /// The file that the next byte belongs to, and where in it.
    file: usize,
    offset: u64,
    crc: crc32fast::Hasher,
}

/// A part of one file.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Which of [`Begin::files`].
    pub file: usize,
    /// Where in it, bytes.
    pub offset: u64,
    /// The part.
    pub bytes: &'a [u8],
}

impl Intake {
    /// Nothing has arrived yet.
    #[must_use]
    pub fn new(begin: Begin) -> Intake {
        Intake {
            begin,
            file: 0,
            offset: 0,
            crc: crc32fast::Hasher::new(),
        }
    }

    /// The announcement.
    #[must_use]
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// Where the bytes of a chunk belong: pieces in order, none of them empty. Files without bytes
    /// get no piece.
    ///
    /// # Errors
    /// There are more bytes than announced.
    pub fn chunk<'a>(&mut self, mut bytes: &'a [u8]) -> Result<Vec<Piece<'a>>, WireError> {
        self.crc.update(bytes);
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let Some((_, size)) = self.begin.files.get(self.file) else {
                return Err(WireError::Malformed("more bytes than the snapshot has"));
            };
            let left = size - self.offset;
            let count = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (part, rest) = bytes.split_at(count);
            if !part.is_empty() {
                pieces.push(Piece {
                    file: self.file,
                    offset: self.offset,
                    bytes: part,
                });
            }
            self.offset += count as u64;
            bytes = rest;
            if self.offset == *size {
                (self.file, self.offset) = (self.file + 1, 0);
            }
        }
        Ok(pieces)
    }

    /// It is said to be complete.
    ///
    /// # Errors
    /// Bytes are missing, or are not those that were sent.
    pub fn end(self, end: End) -> Result<Begin, WireError> {
        let missing = self.begin.files.iter().skip(self.file);
        if self.offset > 0 || missing.map(|(_, size)| *size).any(|size| size > 0) {
            return Err(WireError::Malformed("fewer bytes than the snapshot has"));
        }
        match self.crc.finalize() == end.crc {
            true => Ok(self.begin),
            false => Err(WireError::Checksum("a snapshot")),
        }
    }
}

/// A node with an empty disk asks to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The id that was drawn for its disk.
    pub node: NodeId,
    /// Where other nodes reach it.
    pub peer: String,
    /// Where clients reach it.
    pub client: String,
}

impl Join {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), WireError> {
        if self.node.0 == 0 {
            return Err(WireError::Malformed("node 0"));
        }
        bytes.extend_from_slice(&self.node.0.to_le_bytes());
        put_short(bytes, &self.peer)?;
        put_short(bytes, &self.client)
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Join, WireError> {
        Ok(Join {
            node: take_node(reader)?,
            peer: reader.short()?,
            client: reader.short()?,
        })
    }
}

/// Reply to a node that asks to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinAnswer {
    /// It is a member from now on; it makes its ledger, and the leader sends the rest.
    Invited {
        /// The cluster that it belongs to.
        cluster: ClusterId,
        /// The membership, with the new member.
        members: Members,
    },
    /// Ask the leader.
    Elsewhere {
        /// The leader.
        node: NodeId,
        /// Where it listens.
        peer: String,
    },
    /// Why not, or why not now; at most 255 bytes.
    Refused(String),
}

impl JoinAnswer {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), WireError> {
        match self {
            JoinAnswer::Invited { cluster, members } => {
                bytes.push(0);
                bytes.extend_from_slice(&cluster.0);
                put_members(bytes, members)
            }
            JoinAnswer::Elsewhere { node, peer } => {
                if node.0 == 0 {
                    return Err(WireError::Malformed("node 0"));
                }
                bytes.push(1);
                bytes.extend_from_slice(&node.0.to_le_bytes());
                put_short(bytes, peer)
            }
            JoinAnswer::Refused(text) => {
                bytes.push(2);
                put_short(bytes, text)
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<JoinAnswer, WireError> {
        Ok(match reader.u8()? {
            0 => JoinAnswer::Invited {
                cluster: ClusterId(reader.id()?),
                members: take_members(reader)?,
            },
            1 => JoinAnswer::Elsewhere {
                node: take_node(reader)?,
                peer: reader.short()?,
            },
            2 => JoinAnswer::Refused(reader.short()?),
            kind => return Err(WireError::Unknown("answer to a join", kind.into())),
        })
    }
}

fn take_node(reader: &mut Reader) -> Result<NodeId, WireError> {
    match reader.u64()? {
        0 => Err(WireError::Malformed("node 0")),
        id => Ok(NodeId(id)),
    }
}

/// `Members::encode` cuts what is too long: here that is an error.
fn put_members(bytes: &mut Vec<u8>, members: &Members) -> Result<(), WireError> {
    let is_long = |member: &Member| member.peer.len().max(member.client.len()) > ADDRESS_SIZE_MAX;
    if members.list.iter().any(is_long) {
        return Err(WireError::TooLarge("an address or a name"));
    }
    let mut encoded = Vec::new();
    members.encode(&mut encoded);
    let is_whole = Members::decode(&encoded).is_some_and(|(read, _)| read == *members);
    if !is_whole {
        return Err(WireError::Malformed("a membership"));
    }
    put_counted(bytes, &encoded);
    Ok(())
}

fn take_members(reader: &mut Reader) -> Result<Members, WireError> {
    let members = Reader::new(reader.counted()?);
    match Members::decode(members.as_slice()) {
        Some((members, [])) => Ok(members),
        _ => Err(WireError::Malformed("a membership")),
    }
}
