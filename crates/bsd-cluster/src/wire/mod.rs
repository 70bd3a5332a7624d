//! Messages between nodes of a cluster, as bytes.
//!
//! A connection begins with a [`Hello`] of the one who dialed and an [`Answer`] of the one who
//! listens (`hello`). Frames follow. Version 1 of a frame, all numbers little-endian:
//!
//! ```text
//! size     u32   bytes of the payload
//! kind     u8    what the payload is, see `Frame`
//! version  u8    1
//! reserved u16   0
//! check    u32   CRC-32 of nonce, side, sequence number, and the fields above
//! crc      u32   CRC-32 of all that, and the payload
//! payload
//! ```
//!
//! Version 2 has one kind of frame more, [`Frame::Drains`]; who speaks version 1 is not sent it.
//!
//! The nonce is drawn by the listening end for each connection; the sequence number counts the
//! frames of one end. Both are in the checksums and not in the frame: a frame that is repeated,
//! left out, out of order or of another connection does not parse. A size is believed only once
//! `check` holds, so no end waits for bytes that a flipped bit promised. A checksum is no
//! signature: anyone that may write into the connection may forge frames. TLS is against that.
//!
//! Invariants:
//! * Nothing here opens a socket, reads a clock or panics, whatever the bytes are.
//! * No memory is taken for announced bytes: a count must be backed by bytes that are there.
//! * No protobuf is parsed. The data of a change of membership is carried as bytes.
//! * Whatever decodes can be encoded, and is then the same again ([`check`]).
//!
//! The parts: `hello` (identity and version), `message` (raft's messages), `transfer` (snapshots,
//! and how a new node joins), `read` (numbers and bytes).

mod check;
mod hello;
mod message;
mod read;
#[cfg(test)]
mod tests;
mod transfer;

use std::fmt;

use bytes::Bytes;
pub use raft::eraftpb::Message;

pub use self::check::check;
pub use self::hello::{Answer, Hello, Me, Purpose, Refused, Versions, Welcome, Why};
use self::read::Reader;
pub use self::transfer::{Begin, End, Intake, Join, JoinAnswer, Piece, Taken};
use super::member::NodeId;

/// The versions that this program speaks.
pub const VERSIONS: Versions = Versions { min: 1, max: 2 };
/// Who speaks this version, or a later one, is told whether jobs are taken.
pub const DRAINS_SINCE: u16 = 2;
/// The largest frame, its header included, bytes.
pub const FRAME_SIZE_MAX: usize = (16 << 20) + (64 << 10);
/// The largest part of a file in one [`Frame::Chunk`], bytes.
pub const CHUNK_SIZE_MAX: usize = 1 << 20;

/// The version of each kind of frame.
const FRAME_VERSION: u8 = 1;
const HEADER_SIZE: usize = 16;
/// Bytes of the header itself that `check` covers.
const HEADER_CHECKED: usize = 8;
/// An empty buffer that is larger than this is given back.
const IDLE_BUFFER_SIZE: usize = 256 << 10;

/// One thing that is said on a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// A message of raft.
    Raft(Box<Message>),
    /// A snapshot begins: what follows until its end.
    Begin(Begin),
    /// The next bytes of the snapshot's files; not empty, at most [`CHUNK_SIZE_MAX`].
    Chunk(Bytes),
    /// The snapshot is complete.
    End(End),
    /// Result of a snapshot, from its receiver.
    Taken(Taken),
    /// A node with an empty disk asks to be added.
    Join(Join),
    /// Reply to it.
    Invite(JoinAnswer),
    /// Whether the cluster drains, as far as the sender knows. The leader's word counts.
    Drains(bool),
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Frame::Raft(_) => 1,
            Frame::Begin(_) => 2,
            Frame::Chunk(_) => 3,
            Frame::End(_) => 4,
            Frame::Taken(_) => 5,
            Frame::Join(_) => 6,
            Frame::Invite(_) => 7,
            Frame::Drains(_) => 8,
        }
    }

    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), WireError> {
        match self {
            Frame::Raft(message) => message::encode(message, bytes),
            Frame::Begin(begin) => begin.encode(bytes),
            Frame::Chunk(chunk) => {
                chunk_size(chunk.len())?;
                bytes.extend_from_slice(chunk);
                Ok(())
            }
            Frame::End(end) => {
                end.encode(bytes);
                Ok(())
            }
            Frame::Taken(taken) => taken.encode(bytes),
            Frame::Join(join) => join.encode(bytes),
            Frame::Invite(answer) => answer.encode(bytes),
            Frame::Drains(drains) => {
                bytes.push(u8::from(*drains));
                Ok(())
            }
        }
    }

    fn decode(kind: u8, payload: Bytes) -> Result<Frame, WireError> {
        let mut reader = Reader::new(payload);
        let frame = match kind {
            1 => Frame::Raft(Box::new(message::decode(&mut reader)?)),
            2 => Frame::Begin(Begin::decode(&mut reader)?),
            3 => {
                chunk_size(reader.left())?;
                Frame::Chunk(reader.rest())
            }
            4 => Frame::End(End::decode(&mut reader)?),
            5 => Frame::Taken(Taken::decode(&mut reader)?),
            6 => Frame::Join(Join::decode(&mut reader)?),
            7 => Frame::Invite(JoinAnswer::decode(&mut reader)?),
            8 => match reader.u8()? {
                0 => Frame::Drains(false),
                1 => Frame::Drains(true),
                _ => return Err(WireError::Malformed("neither yes nor no")),
            },
            _ => return Err(WireError::Unknown("kind of frame", kind.into())),
        };
        match reader.left() {
            0 => Ok(frame),
            _ => Err(WireError::Malformed("more bytes than its fields")),
        }
    }

    /// Its size on the wire or more, bytes; for bounds on queues.
    #[must_use]
    pub fn size(&self) -> usize {
        HEADER_SIZE
            + match self {
                Frame::Raft(message) => message::size(message),
                Frame::Chunk(chunk) => chunk.len(),
                Frame::Begin(begin) => begin.size(),
                Frame::Drains(_) => 1,
                Frame::End(_) | Frame::Taken(_) | Frame::Join(_) | Frame::Invite(_) => 16 << 10,
            }
    }
}

fn chunk_size(size: usize) -> Result<(), WireError> {
    match size {
        0 => Err(WireError::Malformed("an empty part of a snapshot")),
        1..=CHUNK_SIZE_MAX => Ok(()),
        _ => Err(WireError::TooLarge("a part of a snapshot")),
    }
}

/// Which end of a connection says something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one who dialed.
    Dialer,
    /// The one who listens.
    Listener,
}

/// The number of the next frame of one end, and what all its checksums begin with.
#[derive(Debug, Clone)]
struct Sequence {
    seed: crc32fast::Hasher,
    next: u64,
}

impl Sequence {
    fn new(nonce: u64, side: Side) -> Sequence {
        let mut seed = crc32fast::Hasher::new();
        seed.update(&nonce.to_le_bytes());
        seed.update(&[match side {
            Side::Dialer => 0,
            Side::Listener => 1,
        }]);
        Sequence { seed, next: 0 }
    }

    /// Both checksums of the next frame.
    fn checks(&self, header: &[u8], payload: &[u8]) -> (u32, u32) {
        let mut hasher = self.header(header);
        let check = hasher.clone().finalize();
        hasher.update(payload);
        (check, hasher.finalize())
    }

    fn header(&self, header: &[u8]) -> crc32fast::Hasher {
        let mut hasher = self.seed.clone();
        hasher.update(&self.next.to_le_bytes());
        hasher.update(&header[..HEADER_CHECKED]);
        hasher
    }
}

/// Makes bytes of the frames of one end of one connection.
#[derive(Debug, Clone)]
pub struct Encoder(Sequence);

impl Encoder {
    /// For a connection with this nonce, of [`Welcome::nonce`].
    #[must_use]
    pub fn new(nonce: u64, side: Side) -> Encoder {
        Encoder(Sequence::new(nonce, side))
    }

    /// Put the frame behind what is in `bytes`. Every frame that is encoded must be sent, in this
    /// order.
    ///
    /// # Errors
    /// It is too large, or no frame that a peer may send; then nothing has changed.
    pub fn encode(&mut self, frame: &Frame, bytes: &mut Vec<u8>) -> Result<(), WireError> {
        let start = bytes.len();
        bytes.extend_from_slice(&[0; HEADER_SIZE]);
        let encoded =
            frame
                .encode(bytes)
                .and_then(|()| match bytes.len() - start > FRAME_SIZE_MAX {
                    true => Err(WireError::TooLarge("a frame")),
                    false => Ok(()),
                });
        if encoded.is_err() {
            bytes.truncate(start);
            return encoded;
        }
        let (header, payload) = bytes[start..].split_at_mut(HEADER_SIZE);
        header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[4] = frame.kind();
        header[5] = FRAME_VERSION;
        let (check, crc) = self.0.checks(header, payload);
        header[8..12].copy_from_slice(&check.to_le_bytes());
        header[12..].copy_from_slice(&crc.to_le_bytes());
        self.0.next += 1;
        Ok(())
    }
}

/// Makes frames of the bytes that the other end has sent, as they come.
///
/// It holds at most one frame that is incomplete and what was fed last, if [`Decoder::next`] is
/// called until it is empty before more is fed.
#[derive(Debug)]
pub struct Decoder {
    sequence: Sequence,
    /// Who the other end is, and who we are: what messages must say. `None`: anyone.
    route: Option<(NodeId, NodeId)>,
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that are used.
    used: usize,
    failed: Option<WireError>,
}

impl Decoder {
    /// For what `side` sends on a connection with this nonce. Its raft messages must be from `from`
    /// to `to`.
    #[must_use]
    pub fn new(nonce: u64, side: Side, from: NodeId, to: NodeId) -> Decoder {
        Decoder {
            sequence: Sequence::new(nonce, side),
            route: Some((from, to)),
            buffer: Vec::new(),
            used: 0,
            failed: None,
        }
    }

    /// More has arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.buffer.drain(..self.used);
            self.used = 0;
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Bytes of memory that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer.capacity()
    }

    /// True while a part of a frame has arrived.
    #[must_use]
    pub fn has_part(&self) -> bool {
        self.used < self.buffer.len()
    }

    /// The next frame that is complete.
    ///
    /// # Errors
    /// The following bytes are no message. The connection is of no more use: every later call
    /// returns the same.
    #[allow(
        clippy::should_implement_trait,
        reason = "more may be fed after a `None`"
    )]
    pub fn next(&mut self) -> Result<Option<Frame>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let frame = self.parse();
        match &frame {
            Err(error) => {
                self.failed = Some(error.clone());
                self.give_back();
            }
            Ok(_) if self.used == self.buffer.len() => self.give_back(),
            Ok(_) => {}
        }
        frame
    }

    fn give_back(&mut self) {
        self.used = 0;
        self.buffer.clear();
        self.buffer.shrink_to(IDLE_BUFFER_SIZE);
    }

    fn parse(&mut self) -> Result<Option<Frame>, WireError> {
        let bytes = &self.buffer[self.used..];
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_SIZE>() else {
            return Ok(None);
        };
        let [
            s0,
            s1,
            s2,
            s3,
            kind,
            version,
            r0,
            r1,
            check @ ..,
            _,
            _,
            _,
            _,
        ] = *header;
        let mut hasher = self.sequence.header(header);
        if hasher.clone().finalize() != u32::from_le_bytes(check) {
            return Err(WireError::Checksum("the header of a frame"));
        }
        let size = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
        if size > FRAME_SIZE_MAX - HEADER_SIZE {
            return Err(WireError::TooLarge("a frame"));
        }
        if version != FRAME_VERSION {
            return Err(WireError::Unknown("version of a frame", version.into()));
        }
        if (r0, r1) != (0, 0) {
            return Err(WireError::Malformed("reserved bytes are used"));
        }
        let Some(payload) = rest.get(..size) else {
            return Ok(None);
        };
        hasher.update(payload);
        if hasher.finalize().to_le_bytes() != header[12..] {
            return Err(WireError::Checksum("a frame"));
        }
        let frame = Frame::decode(kind, Bytes::copy_from_slice(payload))?;
        if let (Frame::Raft(message), Some((from, to))) = (&frame, self.route)
            && (message.from, message.to) != (from.0, to.0)
        {
            let (said, due) = ((message.from, message.to), (from, to));
            return Err(WireError::Route { said, due });
        }
        self.used += HEADER_SIZE + size;
        self.sequence.next += 1;
        Ok(Some(frame))
    }
}

/// Why bytes are not what nodes say to each other, or why something cannot be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireError {
    /// The first bytes are not those of a node.
    Foreign,
    /// This does not agree with its checksum: damaged, repeated, or something before it is missing.
    Checksum(&'static str),
    /// This is larger than allowed.
    TooLarge(&'static str),
    /// A number that this program does not know, of this thing.
    Unknown(&'static str, u64),
    /// The checksum is right and the content is not.
    Malformed(&'static str),
    /// A message of raft that no peer may send, by the number that raft gives it.
    Forbidden(i32),
    /// A message of raft that is from another or for another than the connection is.
    Route {
        /// From and to, as the message says.
        said: (u64, u64),
        /// From and to, as the connection says.
        due: (NodeId, NodeId),
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Foreign => f.write_str("it is no node of bsd: its first bytes are others"),
            WireError::Checksum(what) => write!(
                f,
                "{what} does not agree with its checksum: it is damaged, repeated or out of order"
            ),
            WireError::TooLarge(what) => write!(f, "{what} is larger than allowed"),
            WireError::Unknown(what, number) => {
                write!(f, "{number} is no {what} that this version knows")
            }
            WireError::Malformed(what) => write!(f, "it is not well formed: {what}"),
            WireError::Forbidden(kind) => {
                write!(f, "raft's message {kind} never travels between nodes")
            }
            WireError::Route { said, due } => write!(
                f,
                "a message from {} to {}, on a connection from {} to {}",
                NodeId(said.0),
                NodeId(said.1),
                due.0,
                due.1
            ),
        }
    }
}

impl std::error::Error for WireError {}
