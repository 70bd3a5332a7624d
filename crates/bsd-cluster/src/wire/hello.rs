//! Greeting: the identity of the other end, and the version that both speak.
//!
//! The part that all versions share, now and later:
//!
//! ```text
//! magic  [u8; 8]  "bsd-peer" of who dials, "bsd-node" of who listens
//! first  u16      Hello: the lowest version spoken    Answer: the version that is spoken from here on
//! second u16      Hello: the highest version spoken   Answer: 0 welcome, 1 refused
//! size   u32      bytes of the body, at most 4096
//! crc    u32      CRC-32 of all that, and the body
//! body
//! ```
//!
//! Bodies of version 1:
//!
//! ```text
//! Hello    cluster [u8; 16], from u64, to u64, purpose u8, peer address, client address, members u64,
//!          HTTP address, archives u8
//! Welcome  node u64, nonce u64, client address, HTTP address, wall u64, archives u8
//! Refused  why u16, text, members u64
//! ```
//!
//! An address is its size in a byte and its bytes. `archives` is 1 if the node archives nothing when it
//! leads, 2 if it does. A body of an older program ends before `members`, the HTTP address, or
//! `archives`: what it lacks is 0, an empty address, and not known. What follows in a body belongs
//! to later versions, and is skipped: so a later version can say hello to this one.

use std::fmt;

use bytes::Bytes;

use super::read::{Reader, put_short, text};
use super::{VERSIONS, WireError};
use crate::member::{ClusterId, NodeId};

const HELLO: [u8; 8] = *b"bsd-peer";
const ANSWER: [u8; 8] = *b"bsd-node";
const HEAD_SIZE: usize = 20;
const BODY_SIZE_MAX: usize = 4096;
/// Bytes of the text of a refusal that are kept.
const TEXT_SIZE_MAX: usize = 1024;

/// The versions that a node speaks, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The lowest.
    pub min: u16,
    /// The highest.
    pub max: u16,
}

impl Versions {
    /// The highest version that both speak.
    #[must_use]
    pub fn common(self, other: Versions) -> Option<u16> {
        let version = self.max.min(other.max);
        (version >= self.min.max(other.min)).then_some(version)
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn has(self, version: u16) -> bool {
        (self.min..=self.max).contains(&version)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(f, "version {} of the peers' protocol", self.min),
            false => write!(
                f,
                "versions {} to {} of the peers' protocol",
                self.min, self.max
            ),
        }
    }
}

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Messages of raft, from who dials, until it closes.
    Messages,
    /// One snapshot, from who dials.
    Snapshot,
    /// A node with an empty disk asks to be added.
    Join,
}

const PURPOSES: [(u8, Purpose); 3] = [
    (1, Purpose::Messages),
    (2, Purpose::Snapshot),
    (3, Purpose::Join),
];

/// Who we are, and what we say of us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Me {
    /// Our cluster; all zeros: none yet.
    pub cluster: ClusterId,
    /// Our disk.
    pub node: NodeId,
    /// Where other nodes reach us, `HOST:PORT`.
    pub peer: String,
    /// Where clients reach us, `HOST:PORT`; empty if no one is to know.
    pub client: String,
    /// Where HTTP reaches us, `http://HOST:PORT` or `https://HOST:PORT`; empty if no one is to know.
    pub http: String,
    /// We archive the log while we lead.
    pub archives: bool,
    /// Versions of the protocol that this node speaks.
    pub versions: Versions,
}

/// The first thing that is said on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Versions that the dialing node speaks.
    pub versions: Versions,
    /// Its cluster; all zeros: it asks to be added to whatever this is.
    pub cluster: ClusterId,
    /// Itself.
    pub from: NodeId,
    /// Whom it expects; 0: no matter who listens there, if it wants to join.
    pub to: NodeId,
    /// Where other nodes reach it.
    pub peer: String,
    /// Where clients reach it.
    pub client: String,
    /// Its purpose.
    pub purpose: Purpose,
    /// The entry that made the membership which it knows; 0: it knows at most the one that it was invited
    /// with.
    pub members: u64,
    /// Where HTTP reaches it; empty: nowhere, as far as it says.
    pub http: String,
    /// It archives the log while it leads; `None`: it does not say.
    pub archives: Option<bool>,
}

impl Hello {
    /// Greeting to `to`, without the membership.
    #[must_use]
    pub fn of(me: &Me, to: NodeId, purpose: Purpose) -> Hello {
        Hello {
            versions: me.versions,
            cluster: me.cluster,
            from: me.node,
            to,
            peer: me.peer.clone(),
            client: me.client.clone(),
            purpose,
            members: 0,
            http: me.http.clone(),
            archives: Some(me.archives),
        }
    }

    /// Put it behind what is in `bytes`.
    ///
    /// # Errors
    /// An address is too long, or has control characters.
    pub fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), WireError> {
        let mut body = Vec::with_capacity(256);
        body.extend_from_slice(&self.cluster.0);
        body.extend_from_slice(&self.from.0.to_le_bytes());
        body.extend_from_slice(&self.to.0.to_le_bytes());
        let purpose = PURPOSES.iter().find(|(_, it)| *it == self.purpose);
        body.push(purpose.map_or(0, |(number, _)| *number));
        put_short(&mut body, &self.peer)?;
        put_short(&mut body, &self.client)?;
        body.extend_from_slice(&self.members.to_le_bytes());
        put_short(&mut body, &self.http)?;
        body.push(number_of(self.archives));
        let Versions { min, max } = self.versions;
        seal(HELLO, (min, max), &body, bytes);
        Ok(())
    }

    /// The hello that these bytes begin with, and its size; `None`: more must come.
    ///
    /// # Errors
    /// It is not a greeting, as early as that can be seen.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Hello, usize)>, WireError> {
        let Some(((min, max), mut body, size)) = open(HELLO, bytes)? else {
            return Ok(None);
        };
        let (cluster, from, to) = (ClusterId(body.id()?), body.u64()?, body.u64()?);
        let purpose = body.u8()?;
        let known = PURPOSES.iter().find(|(number, _)| *number == purpose);
        let (_, purpose) = known.ok_or(WireError::Unknown("purpose", purpose.into()))?;
        let hello = Hello {
            versions: Versions { min, max },
            cluster,
            from: NodeId(from),
            to: NodeId(to),
            peer: body.short()?,
            client: body.short()?,
            purpose: *purpose,
            members: or_0(&mut body)?,
            http: or_empty(&mut body)?,
            archives: or_unknown(&mut body)?,
        };
        Ok(Some((hello, size)))
    }

    /// The version to speak with who says this, or why it must go.
    ///
    /// # Errors
    /// The reply to the peer.
    pub fn judge(&self, me: &Me) -> Result<u16, Refused> {
        let refuse = |why, text| Err(Refused::new(why, text));
        let Some(version) = me.versions.common(self.versions) else {
            let (ours, theirs) = (me.versions, self.versions);
            let text = format!(
                "node {} speaks {ours}, node {} speaks {theirs}: upgrade the older one",
                me.node, self.from
            );
            return refuse(Why::Version, text);
        };
        let joins = self.purpose == Purpose::Join;
        if self.cluster != me.cluster && !(joins && self.cluster == ClusterId([0; 16])) {
            let text = format!(
                "this is a node of cluster {}, not {}",
                me.cluster, self.cluster
            );
            return refuse(Why::Cluster, text);
        }
        if self.to != me.node && !(joins && self.to.0 == 0) {
            let text = format!(
                "node {} is here, not {}: its disk is another one, or its address",
                me.node, self.to
            );
            return refuse(Why::Node, text);
        }
        if self.from.0 == 0 || self.from == me.node {
            let text = format!("{} is no other node than {}", self.from, me.node);
            return refuse(Why::Itself, text);
        }
        Ok(version)
    }

    /// Whether the sender is no member any more, for a node that has `members` since entry
    /// `changed`, which is committed. The sender is removed, if it knows an older membership: it
    /// has been in that, and ids never come back. A sender without a membership may be about to be
    /// added, which only the leader can tell for certain; one with a newer one is to be heard, also
    /// by a node that does not know it yet.
    ///
    /// # Errors
    /// The reply to the peer.
    pub fn judge_member(
        &self,
        leads: bool,
        changed: u64,
        members: &[NodeId],
    ) -> Result<(), Refused> {
        let is_known = leads || self.members > 0;
        let is_heard = !is_known || self.members > changed || members.contains(&self.from);
        if self.purpose != Purpose::Messages || is_heard {
            return Ok(());
        }
        let text = format!(
            "{} is no member of this cluster any more, it was removed while it was away: stop it; to \
             add it again, move its directory elsewhere and start it with --cluster-join on a new one",
            self.from
        );
        Err(Refused {
            why: Why::NoMember,
            text,
            members: changed,
        })
    }
}

/// First message of the listening node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Frames may follow.
    Welcome(Welcome),
    /// It closes the connection.
    Refused(Refused),
}

/// Who listens, and how frames are sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version that both speak from here on.
    pub version: u16,
    /// The node that listens.
    pub node: NodeId,
    /// Beginning of the checksums of this connection.
    pub nonce: u64,
    /// Where clients reach it.
    pub client: String,
    /// Where HTTP reaches it; empty: nowhere, as far as it says.
    pub http: String,
    /// Its wall clock as it says this, nanoseconds since 1970; 0: it does not say.
    pub wall_ns: u64,
    /// It archives the log while it leads; `None`: it does not say.
    pub archives: Option<bool>,
}

/// Why a connection is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason, for programs.
    pub why: Why,
    /// The reason, for people; at most 1024 bytes are sent.
    pub text: String,
    /// The entry that made the membership which does not have it; 0 if that is not the reason.
    pub members: u64,
}

impl Refused {
    /// For a reason that has nothing to do with the membership.
    #[must_use]
    pub fn new(why: Why, text: String) -> Refused {
        Refused {
            why,
            text,
            members: 0,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The reason of a refusal, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// No version is spoken by both.
    Version,
    /// It is another cluster.
    Cluster,
    /// Another node is at this address.
    Node,
    /// A node speaks with itself, or with no one.
    Itself,
    /// Its message cannot be read.
    Unreadable,
    /// It is no member of the cluster any more.
    NoMember,
    /// One that this version does not know.
    Other(u16),
}

const WHYS: [(u16, Why); 6] = [
    (1, Why::Version),
    (2, Why::Cluster),
    (3, Why::Node),
    (4, Why::Itself),
    (5, Why::Unreadable),
    (6, Why::NoMember),
];

impl Answer {
    /// Put it behind what is in `bytes`.
    ///
    /// # Errors
    /// An address is too long, or a text has control characters.
    pub fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), WireError> {
        let mut body = Vec::with_capacity(256);
        let head = match self {
            Answer::Welcome(welcome) => {
                body.extend_from_slice(&welcome.node.0.to_le_bytes());
                body.extend_from_slice(&welcome.nonce.to_le_bytes());
                put_short(&mut body, &welcome.client)?;
                put_short(&mut body, &welcome.http)?;
                body.extend_from_slice(&welcome.wall_ns.to_le_bytes());
                body.push(number_of(welcome.archives));
                (welcome.version, 0)
            }
            Answer::Refused(refused) => {
                let why = match refused.why {
                    Why::Other(why) => why,
                    why => WHYS
                        .iter()
                        .find(|(_, it)| *it == why)
                        .map_or(0, |(why, _)| *why),
                };
                body.extend_from_slice(&why.to_le_bytes());
                let end = char_boundary(&refused.text, TEXT_SIZE_MAX);
                let text = text(&refused.text.as_bytes()[..end])?;
                body.extend_from_slice(&(text.len() as u16).to_le_bytes());
                body.extend_from_slice(text.as_bytes());
                body.extend_from_slice(&refused.members.to_le_bytes());
                (VERSIONS.max, 1)
            }
        };
        seal(ANSWER, head, &body, bytes);
        Ok(())
    }

    /// The answer that these bytes begin with, and its size; `None`: more must come.
    ///
    /// # Errors
    /// It is not an answer, as early as that can be seen.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Answer, usize)>, WireError> {
        let Some(((version, kind), mut body, size)) = open(ANSWER, bytes)? else {
            return Ok(None);
        };
        let answer = match kind {
            0 => Answer::Welcome(Welcome {
                version,
                node: NodeId(body.u64()?),
                nonce: body.u64()?,
                client: body.short()?,
                http: or_empty(&mut body)?,
                wall_ns: or_0(&mut body)?,
                archives: or_unknown(&mut body)?,
            }),
            1 => {
                let why = body.u16()?;
                let known = WHYS.iter().find(|(number, _)| *number == why);
                let length = usize::from(body.u16()?);
                if length > TEXT_SIZE_MAX {
                    return Err(WireError::TooLarge("the text of a refusal"));
                }
                Answer::Refused(Refused {
                    why: known.map_or(Why::Other(why), |(_, why)| *why),
                    text: text(&body.take(length)?)?,
                    members: or_0(&mut body)?,
                })
            }
            _ => return Err(WireError::Unknown("answer", kind.into())),
        };
        Ok(Some((answer, size)))
    }
}

/// A number that an older program does not send.
fn or_0(body: &mut Reader) -> Result<u64, WireError> {
    match body.left() {
        0 => Ok(0),
        _ => body.u64(),
    }
}

fn number_of(archives: Option<bool>) -> u8 {
    match archives {
        None => 0,
        Some(false) => 1,
        Some(true) => 2,
    }
}

/// Whether a node archives, which an older program does not send. A later one may say something else.
fn or_unknown(body: &mut Reader) -> Result<Option<bool>, WireError> {
    let number = match body.left() {
        0 => 0,
        _ => body.u8()?,
    };
    Ok(match number {
        1 => Some(false),
        2 => Some(true),
        _ => None,
    })
}

/// An address that an older program does not send.
fn or_empty(body: &mut Reader) -> Result<String, WireError> {
    match body.left() {
        0 => Ok(String::new()),
        _ => body.short(),
    }
}

/// The last place at or before `at` that is between two characters.
fn char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn seal(magic: [u8; 8], head: (u16, u16), body: &[u8], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&head.0.to_le_bytes());
    bytes.extend_from_slice(&head.1.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    let crc = checksum(&bytes[start..], body);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(body);
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(body);
    hasher.finalize()
}

type Opened = ((u16, u16), Reader, usize);

fn open(magic: [u8; 8], bytes: &[u8]) -> Result<Option<Opened>, WireError> {
    let begun = bytes.len().min(magic.len());
    if bytes[..begun] != magic[..begun] {
        return Err(WireError::Foreign);
    }
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_SIZE>() else {
        return Ok(None);
    };
    let [
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        a0,
        a1,
        b0,
        b1,
        s0,
        s1,
        s2,
        s3,
        crc @ ..,
    ] = *head;
    let size = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
    if size > BODY_SIZE_MAX {
        return Err(WireError::TooLarge("a greeting"));
    }
    let Some(body) = rest.get(..size) else {
        return Ok(None);
    };
    if checksum(&head[..HEAD_SIZE - crc.len()], body) != u32::from_le_bytes(crc) {
        return Err(WireError::Checksum("a greeting"));
    }
    let head = (u16::from_le_bytes([a0, a1]), u16::from_le_bytes([b0, b1]));
    let body = Reader::new(Bytes::copy_from_slice(body));
    Ok(Some((head, body, HEAD_SIZE + size)))
}
