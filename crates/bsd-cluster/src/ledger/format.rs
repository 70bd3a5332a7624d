//! The bytes of a ledger's files: headers, frames, and the content of frames.
//!
//! All numbers are little-endian. A file is a header, and then frames, each at a multiple of 8:
//!
//! ```text
//! header                              frame
//!  0   8  MAGIC `bsdLEDGR`             0  4  MAGIC `bLEF`
//!  8   2  VERSION, 1                   4  4  CRC of bytes 8..32
//! 10   6  0                            8  4  SIZE of the payload, bytes
//! 16  16  CLUSTER                     12  4  PAYLOAD_CRC, of payload and padding
//! 32   8  NODE                        16  8  DURABLE: the file was synced up to here before
//! 40   8  NUMBER of the file          24  4  PREVIOUS: CRC of the frame before; first one: 0
//! 48  12  0                           28  1  KIND: 1 opening, 2 batch
//! 60   4  CRC of bytes 0..60          29  1  VERSION that a reader must know, 1
//!                                     30  2  0
//!                                     32     payload, zeros up to a multiple of 8
//! ```
//!
//! Both CRCs of a frame do not start from 0 but from *seed* XOR *offset*; the seed is the CRC of
//! `CLUSTER`, `NODE` and `NUMBER`. So a frame parses only in its file and at its place. CRC covers
//! `PAYLOAD_CRC`, and so stands for the whole frame: the next frame's `PREVIOUS` repeats it.
//!
//! ```text
//! opening, the first frame of a file      batch, what one commit wrote, or a part of it
//!  0  24  TERM, VOTE, COMMIT               0  24  TERM, VOTE, COMMIT
//! 24   8  BEFORE: number of the file       24   8  FIRST: index of the first entry
//!         that this one continues, or 0    32   8  TERM of the entry before FIRST
//! 32   8  its END: where its frames end    40   4  count of entries
//! 40   4  CRC of its last frame            44   4  count of memberships
//! 44   4  count of memberships             48      memberships, entries
//! 48  16  INDEX, TERM of the last entry
//!         before this file: the base if    entry
//!         BEFORE is 0                       0   4  size of DATA
//! 64      memberships                       4   4  size of CONTEXT
//!                                           8   8  TERM
//! membership                               16   1  TYPE: 0 normal, 1 and 2 conf changes
//!  0   8  INDEX from which it holds        17   3  0
//!  8      see `Members::encode`            20      DATA, CONTEXT
//! ```

use bytes::Bytes;
use crc32fast::Hasher;
use raft::eraftpb::{Entry, EntryType};

use super::{HardState, Identity};
use crate::member::{ClusterId, Members, NodeId};

/// The format version that is written, and the newest one that is read.
pub(super) const VERSION: u8 = 1;
/// Bytes of a file's header.
pub(super) const HEADER_SIZE: usize = 64;
/// Bytes of a frame's header.
pub(super) const FRAME_HEADER_SIZE: usize = 32;
/// Frames begin at multiples of this.
pub(super) const ALIGN: usize = 8;
/// Bytes of an entry without its data and context.
pub(super) const ENTRY_SIZE: usize = 20;

const MAGIC: [u8; 8] = *b"bsdLEDGR";
/// First bytes of a frame.
pub(super) const FRAME_MAGIC: [u8; 4] = *b"bLEF";

/// Which bytes belong into which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seed(u32);

impl Seed {
    pub(super) fn new(identity: Identity, number: u64) -> Seed {
        let mut hasher = Hasher::new();
        hasher.update(&identity.cluster.0);
        hasher.update(&identity.node.0.to_le_bytes());
        hasher.update(&number.to_le_bytes());
        Seed(hasher.finalize())
    }

    /// The start of a checksum of bytes that belong to the frame at `at`.
    pub(super) fn hasher(self, at: u64) -> Hasher {
        Hasher::new_with_initial(self.0 ^ at as u32 ^ (at >> 32) as u32)
    }

    fn crc(self, at: u64, bytes: &[u8]) -> u32 {
        let mut hasher = self.hasher(at);
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// Reads numbers and parts from the front of bytes; `None` once they do not suffice.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn state(&mut self) -> Option<HardState> {
        Some(HardState {
            term: self.u64()?,
            vote: self.u64()?,
            commit: self.u64()?,
        })
    }

    /// `count` memberships, in the order of their indices. No memory is taken by `count` alone.
    fn memberships(&mut self, count: u32) -> Option<Vec<(u64, Members)>> {
        let mut found: Vec<(u64, Members)> = Vec::new();
        for _ in 0..count {
            let index = self.u64()?;
            let (members, rest) = Members::decode(self.0)?;
            self.0 = rest;
            if found.last().is_some_and(|last| last.0 >= index) {
                return None;
            }
            found.push((index, members));
        }
        Some(found)
    }
}

fn put_u32(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn put_state(bytes: &mut Vec<u8>, state: HardState) {
    [state.term, state.vote, state.commit]
        .iter()
        .for_each(|number| put_u64(bytes, *number));
}

fn put_memberships<'a>(
    bytes: &mut Vec<u8>,
    memberships: impl IntoIterator<Item = (u64, &'a Members)>,
) {
    for (index, members) in memberships {
        put_u64(bytes, index);
        members.encode(bytes);
    }
}

/// Header of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileHeader {
    /// Of this version.
    Known {
        /// Whose file it is.
        identity: Identity,
        /// Its number, which is also in its name.
        number: u64,
    },
    /// Sound, and of a version that this program does not know.
    Newer(u16),
    /// None, or damaged.
    Bad,
}

/// The header of a file.
pub(super) fn encode_header(identity: Identity, number: u64) -> [u8; HEADER_SIZE] {
    let mut bytes = [0; HEADER_SIZE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&u16::from(VERSION).to_le_bytes());
    bytes[16..32].copy_from_slice(&identity.cluster.0);
    bytes[32..40].copy_from_slice(&identity.node.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&number.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Decode a header from the first bytes of a file.
pub(super) fn decode_header(bytes: &[u8]) -> FileHeader {
    known_header(bytes).unwrap_or(FileHeader::Bad)
}

fn known_header(bytes: &[u8]) -> Option<FileHeader> {
    let mut input = Input(bytes);
    let covered = input.take(HEADER_SIZE - 4)?;
    if crc32fast::hash(covered) != input.u32()? {
        return None;
    }
    let mut input = Input(covered);
    if input.array()? != MAGIC {
        return None;
    }
    let version = u16::from_le_bytes(input.array()?);
    input.take(6)?;
    match version {
        0 => None,
        newer if newer > u16::from(VERSION) => Some(FileHeader::Newer(newer)),
        _ => Some(FileHeader::Known {
            identity: Identity {
                cluster: ClusterId(input.array()?),
                node: NodeId(input.u64()?),
            },
            number: input.u64()?,
        }),
    }
}

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first of a file.
    Opening = 1,
    /// A batch that a commit wrote.
    Batch = 2,
}

/// A frame's header whose checksum is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Bytes of the payload.
    pub(super) size: u32,
    payload_crc: u32,
    /// Up to this offset the file was durable when the frame was formed.
    pub(super) durable: u64,
    /// The checksum of the frame before.
    pub(super) previous: u32,
    /// `None`: of no kind that this version knows.
    pub(super) kind: Option<Kind>,
    /// The version that a reader must know.
    pub(super) version: u8,
    /// Stands for the whole frame.
    pub(super) crc: u32,
}

impl FrameHeader {
    /// The header that lies at `at`; `None` if these bytes are none, or belong to another place.
    pub(super) fn decode(bytes: &[u8], seed: Seed, at: u64) -> Option<FrameHeader> {
        let mut input = Input(bytes.get(..FRAME_HEADER_SIZE)?);
        if input.array()? != FRAME_MAGIC {
            return None;
        }
        let crc = input.u32()?;
        if seed.crc(at, input.0) != crc {
            return None;
        }
        Some(FrameHeader {
            size: input.u32()?,
            payload_crc: input.u32()?,
            durable: input.u64()?,
            previous: input.u32()?,
            kind: match input.array::<1>()? {
                [1] => Some(Kind::Opening),
                [2] => Some(Kind::Batch),
                _ => None,
            },
            version: u8::from_le_bytes(input.array()?),
            crc,
        })
    }

    /// Bytes of the payload and what fills it up.
    pub(super) fn padded_size(&self) -> u64 {
        u64::from(self.size).next_multiple_of(ALIGN as u64)
    }

    /// Bytes of the whole frame.
    pub(super) fn frame_size(&self) -> u64 {
        FRAME_HEADER_SIZE as u64 + self.padded_size()
    }

    /// True if a hasher of [`Seed::hasher`] has seen the right payload and padding.
    pub(super) fn holds(&self, hasher: Hasher) -> bool {
        hasher.finalize() == self.payload_crc
    }
}

/// Where a frame is formed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FramePlace {
    /// Of its file.
    pub(super) seed: Seed,
    /// Its offset in the file.
    pub(super) at: u64,
    /// Up to this offset the file is durable now: evidence for a later reader.
    pub(super) durable: u64,
    /// The checksum of the frame before.
    pub(super) previous: u32,
}

/// Append a frame whose payload `write` appends; returns its checksum for the next one.
///
/// # Panics
/// If the payload has 4 GiB or more.
pub(super) fn put_frame(
    bytes: &mut Vec<u8>,
    kind: Kind,
    place: FramePlace,
    write: impl FnOnce(&mut Vec<u8>),
) -> u32 {
    let start = bytes.len();
    bytes.resize(start + FRAME_HEADER_SIZE, 0);
    let first = bytes.len();
    write(bytes);
    let size = bytes.len() - first;
    assert!(
        u32::try_from(size).is_ok(),
        "a frame of {size} bytes cannot be written"
    );
    bytes.resize(first + size.next_multiple_of(ALIGN), 0);
    let mut header = Vec::with_capacity(FRAME_HEADER_SIZE - 8);
    put_u32(&mut header, size as u32);
    put_u32(&mut header, place.seed.crc(place.at, &bytes[first..]));
    put_u64(&mut header, place.durable);
    put_u32(&mut header, place.previous);
    header.extend_from_slice(&[kind as u8, VERSION, 0, 0]);
    let crc = place.seed.crc(place.at, &header);
    bytes[start..start + 4].copy_from_slice(&FRAME_MAGIC);
    bytes[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    bytes[start + 8..first].copy_from_slice(&header);
    crc
}

/// Where the frames of the file before end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Before {
    /// Its number.
    pub(super) number: u64,
    /// The offset.
    pub(super) end: u64,
    /// The checksum of its last frame.
    pub(super) crc: u32,
}

/// First frame of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opening {
    /// The hard state when the file was made.
    pub(super) state: HardState,
    /// The file that it continues; `None`: the ledger begins here, and older files are none of it.
    pub(super) before: Option<Before>,
    /// The last entry before this file, or the base.
    pub(super) index: u64,
    /// Its term.
    pub(super) term: u64,
    /// The memberships that may still be asked for, in order.
    pub(super) members: Vec<(u64, Members)>,
}

impl Opening {
    /// Append its bytes.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let none = Before {
            number: 0,
            end: 0,
            crc: 0,
        };
        let before = self.before.unwrap_or(none);
        put_state(bytes, self.state);
        put_u64(bytes, before.number);
        put_u64(bytes, before.end);
        put_u32(bytes, before.crc);
        put_u32(bytes, self.members.len() as u32);
        put_u64(bytes, self.index);
        put_u64(bytes, self.term);
        put_memberships(bytes, self.members.iter().map(|(index, it)| (*index, it)));
    }

    /// Decode an opening; `None`: these bytes are no opening.
    pub(super) fn decode(bytes: &[u8]) -> Option<Opening> {
        let mut input = Input(bytes);
        let state = input.state()?;
        let before = Before {
            number: input.u64()?,
            end: input.u64()?,
            crc: input.u32()?,
        };
        let count = input.u32()?;
        let (index, term) = (input.u64()?, input.u64()?);
        let members = input.memberships(count)?;
        input.0.is_empty().then_some(Opening {
            state,
            before: (before.number != 0).then_some(before),
            index,
            term,
            members,
        })
    }
}

/// A batch before it is encoded.
#[derive(Debug)]
pub(super) struct NewBatch<'a> {
    /// The hard state with it.
    pub(super) state: HardState,
    /// The term of the entry before `entries`.
    pub(super) previous_term: u64,
    /// In the order of their indices.
    pub(super) members: Vec<(u64, &'a Members)>,
    /// Consecutive; may be none.
    pub(super) entries: &'a [&'a Entry],
}

impl NewBatch<'_> {
    /// Append its bytes.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        put_state(bytes, self.state);
        put_u64(bytes, self.entries.first().map_or(0, |entry| entry.index));
        put_u64(bytes, self.previous_term);
        put_u32(bytes, self.entries.len() as u32);
        put_u32(bytes, self.members.len() as u32);
        put_memberships(bytes, self.members.iter().copied());
        for entry in self.entries {
            put_u32(bytes, entry.data.len() as u32);
            put_u32(bytes, entry.context.len() as u32);
            put_u64(bytes, entry.term);
            let kind = match entry.entry_type {
                EntryType::EntryNormal => 0,
                EntryType::EntryConfChange => 1,
                EntryType::EntryConfChangeV2 => 2,
            };
            bytes.extend_from_slice(&[kind, 0, 0, 0]);
            bytes.extend_from_slice(&entry.data);
            bytes.extend_from_slice(&entry.context);
        }
    }
}

/// A batch that was read. Its entries are copies: none of them keeps the others in memory.
#[derive(Debug)]
pub(super) struct Batch {
    /// The hard state with it.
    pub(super) state: HardState,
    /// The term of the entry before `entries`.
    pub(super) previous_term: u64,
    /// In the order of their indices.
    pub(super) members: Vec<(u64, Members)>,
    /// Consecutive.
    pub(super) entries: Vec<Entry>,
}

impl Batch {
    /// Decode a batch; `None`: these bytes are no batch. Memory is bounded by their size: an entry
    /// is taken only if its bytes are there.
    pub(super) fn decode(bytes: &[u8]) -> Option<Batch> {
        let mut input = Input(bytes);
        let state = input.state()?;
        let (first, previous_term) = (input.u64()?, input.u64()?);
        let (count, memberships) = (input.u32()?, input.u32()?);
        let members = input.memberships(memberships)?;
        let mut entries = Vec::new();
        if count > 0 && first == 0 {
            return None;
        }
        for nth in 0..u64::from(count) {
            let (data, context) = (input.u32()? as usize, input.u32()? as usize);
            entries.push(Entry {
                index: first.checked_add(nth)?,
                term: input.u64()?,
                entry_type: match input.array::<4>()?[0] {
                    0 => EntryType::EntryNormal,
                    1 => EntryType::EntryConfChange,
                    2 => EntryType::EntryConfChangeV2,
                    _ => return None,
                },
                data: Bytes::copy_from_slice(input.take(data)?),
                context: Bytes::copy_from_slice(input.take(context)?),
                ..Entry::default()
            });
        }
        input.0.is_empty().then_some(Batch {
            state,
            previous_term,
            members,
            entries,
        })
    }
}
