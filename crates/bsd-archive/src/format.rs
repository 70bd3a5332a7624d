//! Names and bytes of the objects of an archive: `archive-format.md` describes them.
//!
//! Everything that is read is checked before it is used: sizes against bounds, and every byte
//! against a CRC-32. No input makes a function here panic.

use std::fmt::Write;

use bsd::storage::format::{LogId, parse_file_name};
use bsd::types::{Position, SegmentId};

/// The version of the format, in what is written.
pub const VERSION: u16 = 2;
/// The first version that is read: its links are the same, but are not joined.
const VERSION_MIN: u16 = 1;
/// Bytes of the head of a link.
pub const HEAD_SIZE: usize = 96;
/// Largest body of a link, bytes.
pub const BODY_SIZE_MAX: u64 = 64 << 20;
/// Most bytes of frames in a link.
pub const FRAMES_SIZE_MAX: u32 = 8 << 20;
/// Largest part of a file of a base, bytes.
pub const PART_SIZE_MAX: u32 = 8 << 20;

/// Largest size of a link, bytes.
pub(super) const LINK_SIZE_MAX: u64 = HEAD_SIZE as u64 + BODY_SIZE_MAX;

const MAGIC: [u8; 8] = *b"BSDARC\r\n";
const BROKEN: [u8; 8] = *b"BSDBAD\r\n";
/// Bytes of a fault that are shown, at most.
const FAULT_SIZE_MAX: usize = 300;
const FIRST_LINE: &str = "bsd-archive-base 1";
const NAME_MAGIC: &str = "bsd-archive-name ";
const NAME_FIRST_LINE: &str = "bsd-archive-name 1";

mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const KIND: usize = 10;
    pub(super) const FLAGS: usize = 11;
    pub(super) const EPOCH: usize = 12;
    pub(super) const NUMBER: usize = 16;
    pub(super) const LOG_ID: usize = 24;
    pub(super) const FROM: usize = 40;
    pub(super) const TO: usize = 48;
    pub(super) const SEEN: usize = 56;
    pub(super) const WALL: usize = 64;
    pub(super) const PREVIOUS: usize = 72;
    pub(super) const BODY_CRC: usize = 76;
    pub(super) const BODY_SIZE: usize = 80;
    pub(super) const SEGMENT_CRC: usize = 88;
    pub(super) const CRC: usize = 92;
}

/// The kind of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A writer begins. Its body says who.
    Claim {
        /// It goes on where the chain was; otherwise nothing follows it but a base.
        goes_on: bool,
    },
    /// A writer begins whose log is another one with the same jobs: a restored one, or the copy of a
    /// standby. The chain stands at `from`, and goes on with byte 0 of the segment of `to`.
    Takeover,
    /// Bytes of a segment.
    Frames,
    /// A list of the files of a log at one position.
    Base,
    /// The bytes after the position `from` were not archived, up to the next base.
    Gap,
}

impl Kind {
    fn encode(self) -> (u8, u8) {
        match self {
            Kind::Claim { goes_on } => (1, u8::from(goes_on)),
            Kind::Takeover => (1, 2),
            Kind::Frames => (2, 0),
            Kind::Base => (3, 0),
            Kind::Gap => (4, 0),
        }
    }

    fn decode(kind: u8, flags: u8) -> Option<Kind> {
        match (kind, flags) {
            (1, 0 | 1) => Some(Kind::Claim {
                goes_on: flags == 1,
            }),
            (1, 2) => Some(Kind::Takeover),
            (2, 0) => Some(Kind::Frames),
            (3, 0) => Some(Kind::Base),
            (4, 0) => Some(Kind::Gap),
            _ => None,
        }
    }
}

/// The head of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Its kind.
    pub kind: Kind,
    /// Which writer put it; one more for each.
    pub epoch: u32,
    /// Its place in the chain, from 1 on; its name says the same.
    pub number: u64,
    /// The log that it belongs to.
    pub log: LogId,
    /// Where the bytes begin; of a base and a takeover, where the chain stands.
    pub from: Position,
    /// Where they end; of a base, where its log ends; of a takeover, where the bytes begin that come.
    pub to: Position,
    /// Wall time at which the writer saw the first of the bytes to be durable, ns since 1970.
    pub seen_wall_ns: u64,
    /// Wall time at which it saw all of them to be durable, ns since 1970.
    pub wall_ns: u64,
    /// The CRC in the head of the link before; 0 in the first.
    pub previous: u32,
    /// Of frames: the CRC-32 of their segment, from its first byte to `to`; of a takeover, that of the
    /// header of the segment of `to`; else 0. It says which history they are of: the bytes themselves
    /// may be a body that another one has there too.
    pub segment_crc: u32,
}

/// A fault of an object, for a person.
pub type Fault = String;

/// An object that is not as it was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Its name, below the archive's address.
    pub name: String,
    /// Its fault.
    pub what: Fault,
}

impl Bad {
    /// A range of `count` links from this one on.
    pub(super) fn missing(dir: &str, number: u64, count: u64) -> Bad {
        let what = match count {
            1 => "it is missing".to_owned(),
            _ => format!("it is missing, and so are the {} after it", count - 1),
        };
        Bad {
            name: numbered(dir, number),
            what,
        }
    }

    /// Links of a joined object.
    pub(super) fn joined(name: String, (first, last): (u64, u64), what: &Fault) -> Bad {
        let what = match first == last {
            true => format!("link {first}: {what}"),
            false => format!("links {first} to {last}: {what}"),
        };
        Bad { name, what }
    }

    /// An object among the links that is no link.
    pub(super) fn stranger(name: String) -> Bad {
        let what = "it is not named as a link is".to_owned();
        Bad { name, what }
    }
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.what)
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

/// Bytes for who reads an object that cannot be opened: no link and no part, but its fault.
pub(super) fn broken(fault: &Fault) -> Vec<u8> {
    [&BROKEN[..], fault.as_bytes()].concat()
}

/// The fault in such bytes. `None`: they are others.
fn fault_in(bytes: &[u8]) -> Option<Fault> {
    let text = bytes.strip_prefix(&BROKEN)?;
    // The store itself may have such bytes.
    let text = &text[..text.len().min(FAULT_SIZE_MAX)];
    Some(String::from_utf8_lossy(text).escape_debug().to_string())
}

impl Head {
    /// The link with this body, and the CRC of its head, which the next link repeats.
    #[must_use]
    pub fn encode(&self, body: &[u8]) -> (Vec<u8>, u32) {
        let mut bytes = vec![0; HEAD_SIZE];
        let mut set = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let (kind, flags) = self.kind.encode();
        set(0, &MAGIC);
        set(at::VERSION, &VERSION.to_le_bytes());
        set(at::KIND, &[kind]);
        set(at::FLAGS, &[flags]);
        set(at::EPOCH, &self.epoch.to_le_bytes());
        set(at::NUMBER, &self.number.to_le_bytes());
        set(at::LOG_ID, &self.log.0);
        set(at::FROM, &self.from.to_bits().to_le_bytes());
        set(at::TO, &self.to.to_bits().to_le_bytes());
        set(at::SEEN, &self.seen_wall_ns.to_le_bytes());
        set(at::WALL, &self.wall_ns.to_le_bytes());
        set(at::PREVIOUS, &self.previous.to_le_bytes());
        set(at::BODY_CRC, &crc32fast::hash(body).to_le_bytes());
        set(at::BODY_SIZE, &(body.len() as u64).to_le_bytes());
        set(at::SEGMENT_CRC, &self.segment_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..at::CRC]);
        bytes[at::CRC..].copy_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(body);
        (bytes, crc)
    }

    /// An error, if it is not of this log, or another link than the one with this number.
    pub(super) fn check_place(&self, log: LogId, number: u64) -> Result<(), Fault> {
        if self.log != log {
            return Err(format!("it belongs to the log {}", log_name(self.log)));
        }
        match self.number == number {
            true => Ok(()),
            false => Err(format!("it is a copy of link {}", self.number)),
        }
    }

    /// Decode a link: its head, the head's CRC, and its body.
    ///
    /// # Errors
    /// The fault of the object.
    pub fn decode(bytes: &[u8]) -> Result<(Head, u32, &[u8]), Fault> {
        let (head, crc, body_size) = Head::decode_alone(bytes)?;
        let body = &bytes[HEAD_SIZE..];
        if body.len() as u64 != body_size {
            let size = body.len();
            return Err(format!(
                "it has {size} bytes of content instead of {body_size}"
            ));
        }
        Head::check_body(bytes, body)?;
        Ok((head, crc, body))
    }

    /// An error, if this is not the body of the link that begins with these bytes, a head that was
    /// decoded.
    pub(super) fn check_body(head: &[u8], body: &[u8]) -> Result<(), Fault> {
        let found = crc32fast::hash(body);
        let expected = u32_at(head, at::BODY_CRC);
        match found == expected {
            true => Ok(()),
            false => Err(format!(
                "its content has the checksum {found:08x} instead of {expected:08x}"
            )),
        }
    }

    /// Whether the link that begins with these bytes, a head that was decoded, may be joined with
    /// others: a program that reads version 1 alone does not find it then.
    pub(super) fn may_be_joined(head: &[u8]) -> bool {
        head[at::VERSION..at::KIND] == VERSION.to_le_bytes()
    }

    /// Decode the first bytes of a link: its head, the head's CRC, and the size of the body.
    ///
    /// # Errors
    /// The fault of the object.
    pub fn decode_alone(bytes: &[u8]) -> Result<(Head, u32, u64), Fault> {
        if let Some(fault) = fault_in(bytes) {
            return Err(fault);
        }
        let Some(bytes) = bytes.get(..HEAD_SIZE) else {
            return Err(format!("it has only {} bytes", bytes.len()));
        };
        if bytes[..MAGIC.len()] != MAGIC {
            return Err("it is no object of an archive of bsd".to_owned());
        }
        let crc = u32_at(bytes, at::CRC);
        if crc != crc32fast::hash(&bytes[..at::CRC]) {
            return Err("the checksum of its head does not hold".to_owned());
        }
        let version = u16::from_le_bytes([bytes[at::VERSION], bytes[at::VERSION + 1]]);
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(format!(
                "it has version {version} of the archive's format, this program reads \
                 {VERSION_MIN} to {VERSION}"
            ));
        }
        let kind = Kind::decode(bytes[at::KIND], bytes[at::FLAGS]);
        let kind = kind.ok_or("it is of a kind that this program does not know")?;
        let body_size = u64_at(bytes, at::BODY_SIZE);
        if body_size > BODY_SIZE_MAX {
            return Err(format!("it claims to have {body_size} bytes of content"));
        }
        let mut log = [0; 16];
        log.copy_from_slice(&bytes[at::LOG_ID..at::FROM]);
        let head = Head {
            kind,
            epoch: u32_at(bytes, at::EPOCH),
            number: u64_at(bytes, at::NUMBER),
            log: LogId(log),
            from: Position::from_bits(u64_at(bytes, at::FROM)),
            to: Position::from_bits(u64_at(bytes, at::TO)),
            seen_wall_ns: u64_at(bytes, at::SEEN),
            wall_ns: u64_at(bytes, at::WALL),
            previous: u32_at(bytes, at::PREVIOUS),
            segment_crc: u32_at(bytes, at::SEGMENT_CRC),
        };
        let is_stretch = head.from.segment() == head.to.segment() && head.from < head.to;
        let spans = u64::from(head.to.offset().wrapping_sub(head.from.offset()));
        if kind == Kind::Frames && !(is_stretch && spans == body_size) {
            return Err("its positions and its size contradict each other".to_owned());
        }
        let is_later = head.to.segment() > head.from.segment() && head.to.offset() == 0;
        if kind == Kind::Takeover && !is_later {
            return Err("its positions contradict each other".to_owned());
        }
        Ok((head, crc, body_size))
    }
}

/// The files of a log at one position, in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseList {
    /// Where the log ended.
    pub end: Position,
    /// The first link with bytes behind that end has this number or a greater one.
    pub first_link: u64,
    /// In the order of history.
    pub files: Vec<BaseFile>,
}

/// A file of a base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseFile {
    /// Its name in the log.
    pub name: String,
    /// Its parts, one behind the other.
    pub parts: Vec<Part>,
}

/// A part of a file of a base: an object of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Bytes.
    pub size: u32,
    /// The CRC-32 of them.
    pub crc: u32,
    /// [`BaseList::first_link`] of the base for which it was put. While a base is being made, its own
    /// parts are younger than every complete base: an expiry leaves them alone.
    pub since: u64,
    /// Objects of the same name, but for this number, that hold something else.
    pub attempt: u32,
}

impl BaseFile {
    /// Bytes of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.size)).sum()
    }

    /// Its parts, each with its offset in the file.
    pub fn parts(&self) -> impl Iterator<Item = (u64, Part)> {
        let mut next = 0;
        self.parts.iter().map(move |part| {
            let offset = next;
            next += u64::from(part.size);
            (offset, *part)
        })
    }
}

impl BaseList {
    /// Bytes of all files.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.files.iter().map(BaseFile::size).sum()
    }

    /// The body of a link of a base.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (segment, offset) = (self.end.segment().0, self.end.offset());
        let mut text = format!(
            "{FIRST_LINE}\nend {segment} {offset}\nfirst {}\n",
            self.first_link
        );
        for file in &self.files {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "file {}", file.name);
            for part in &file.parts {
                let Part {
                    size,
                    crc,
                    since,
                    attempt,
                } = part;
                let _ = writeln!(text, "part {size} {crc:08x} {since} {attempt}");
            }
        }
        text.into_bytes()
    }

    /// The inverse of [`BaseList::encode`].
    ///
    /// # Errors
    /// The fault of the object.
    pub fn decode(bytes: &[u8]) -> Result<BaseList, Fault> {
        let list = std::str::from_utf8(bytes).ok().and_then(BaseList::parse);
        match list {
            // Anything else than exactly what would have been written is refused.
            Some(list) if list.encode() == bytes => Ok(list),
            _ => Err("its list of files cannot be read".to_owned()),
        }
    }

    fn parse(text: &str) -> Option<BaseList> {
        let mut lines = text.lines();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let (segment, offset) = lines.next()?.strip_prefix("end ")?.split_once(' ')?;
        let end = Position::new(SegmentId(segment.parse().ok()?), offset.parse().ok()?);
        let first_link = lines.next()?.strip_prefix("first ")?.parse().ok()?;
        let mut files: Vec<BaseFile> = Vec::new();
        for line in lines {
            if let Some(name) = line.strip_prefix("file ") {
                parse_file_name(name)?;
                files.push(BaseFile {
                    name: name.to_owned(),
                    parts: Vec::new(),
                });
            } else {
                let mut words = line.strip_prefix("part ")?.split(' ');
                let part = Part {
                    size: words
                        .next()?
                        .parse()
                        .ok()
                        .filter(|size| *size <= PART_SIZE_MAX)?,
                    crc: u32::from_str_radix(words.next()?, 16).ok()?,
                    since: words.next()?.parse().ok()?,
                    attempt: words.next()?.parse().ok()?,
                };
                files.last_mut()?.parts.push(part);
            }
        }
        Some(BaseList {
            end,
            first_link,
            files,
        })
    }
}

/// The object that says that this is an archive, and which: made once, by the first writer, after the
/// mark of its log.
pub const MARKER: &str = "bsd-archive";

/// Content of the marker: its maker and its time.
#[must_use]
pub fn marker(log: LogId, wall_ns: u64) -> Vec<u8> {
    format!("bsd-archive 1 {} {wall_ns}\n", log_name(log)).into_bytes()
}

/// The directory of all logs, each an empty object.
pub const LOGS: &str = "logs/";

/// The name of a log: 32 hexadecimal digits.
#[must_use]
pub fn log_name(log: LogId) -> String {
    format!("{:032x}", u128::from_be_bytes(log.0))
}

/// The inverse of [`log_name`].
#[must_use]
pub fn parse_log_name(name: &str) -> Option<LogId> {
    let is_plain = name.len() == 32 && name.bytes().all(|it| it.is_ascii_hexdigit());
    let number = is_plain.then(|| u128::from_str_radix(name, 16).ok())??;
    Some(LogId(number.to_be_bytes()))
}

/// The directory of a log's chain.
#[must_use]
pub fn chain_dir(log: LogId) -> String {
    format!("{}/chain/", log_name(log))
}

/// The directory in which each base has an empty object of its number.
#[must_use]
pub fn bases_dir(log: LogId) -> String {
    format!("{}/bases/", log_name(log))
}

/// The directory in which each claim has an empty object of its number.
#[must_use]
pub fn claims_dir(log: LogId) -> String {
    format!("{}/claims/", log_name(log))
}

/// The directory of the mark that says with which link the chain begins.
#[must_use]
pub fn begins_dir(log: LogId) -> String {
    format!("{}/begins/", log_name(log))
}

/// The directory of joined objects: each has several links.
#[must_use]
pub fn joined_dir(log: LogId) -> String {
    format!("{}/joined/", log_name(log))
}

/// The directory of the parts of bases.
#[must_use]
pub fn parts_dir(log: LogId) -> String {
    format!("{}/parts/", log_name(log))
}

/// The directory in which each pinned base has an empty object of its number.
#[must_use]
pub fn pins_dir(log: LogId) -> String {
    format!("{}/pins/", log_name(log))
}

/// The directory in which each base that an expiry has left apart has an empty object of its number.
#[must_use]
pub fn kept_dir(log: LogId) -> String {
    format!("{}/kept/", log_name(log))
}

/// The directory of the names of bases.
#[must_use]
pub fn names_dir(log: LogId) -> String {
    format!("{}/names/", log_name(log))
}

/// The longest name of a base, bytes.
pub const BASE_NAME_MAX: usize = 64;

/// The name of a base: 1 to [`BASE_NAME_MAX`] of `a` to `z`, digits, `.` and `-`; the first is a letter,
/// the last no `.` and no `-`. So it is a name on every store, and no number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BaseName(String);

impl BaseName {
    /// This name; `None`: it is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<BaseName> {
        let is_letter = |it: u8| it.is_ascii_lowercase();
        let is_end = |it: u8| is_letter(it) || it.is_ascii_digit();
        let bytes = text.as_bytes();
        let (first, last) = (*bytes.first()?, *bytes.last()?);
        let mut all = bytes.iter();
        let is_name = bytes.len() <= BASE_NAME_MAX
            && is_letter(first)
            && is_end(last)
            && all.all(|it| is_end(*it) || b".-".contains(it));
        is_name.then(|| BaseName(text.to_owned()))
    }

    /// Which names there are, for people.
    pub const RULE: &str = "a name of a base has 1 to 64 of the characters a-z, 0-9, '.' and '-'; it \
                            begins with a letter, and ends with a letter or a digit";

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The object of this name.
    #[must_use]
    pub fn object(&self, log: LogId) -> String {
        format!("{}{}", names_dir(log), self.0)
    }
}

impl std::fmt::Display for BaseName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The base that has a name: content of the object of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// Its number.
    pub base: u64,
    /// Where its log ends.
    pub end: Position,
}

impl Named {
    /// The content of the object.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (segment, offset) = (self.end.segment().0, self.end.offset());
        let base = self.base;
        format!("{NAME_FIRST_LINE}\nbase {base}\nend {segment} {offset}\n").into_bytes()
    }

    /// The inverse of [`Named::encode`].
    ///
    /// # Errors
    /// The fault of the object.
    pub fn decode(bytes: &[u8]) -> Result<Named, Fault> {
        if let Some(fault) = fault_in(bytes) {
            return Err(fault);
        }
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        if first != NAME_FIRST_LINE && first.starts_with(NAME_MAGIC) && first.len() < 40 {
            return Err(format!(
                "its first line is {first:?}: a later bsd has written it, and this one reads \
                 {NAME_FIRST_LINE:?}"
            ));
        }
        match Named::parse(text) {
            // Anything else than exactly what would have been written is refused.
            Some(named) if named.encode() == bytes => Ok(named),
            _ => Err("it does not say which base has this name".to_owned()),
        }
    }

    fn parse(text: &str) -> Option<Named> {
        let mut lines = text.lines().skip(1);
        let base = lines.next()?.strip_prefix("base ")?.parse().ok()?;
        let (segment, offset) = lines.next()?.strip_prefix("end ")?.split_once(' ')?;
        let end = Position::new(SegmentId(segment.parse().ok()?), offset.parse().ok()?);
        Some(Named { base, end })
    }
}

/// The name of a link, or of a mark.
#[must_use]
pub fn numbered(dir: &str, number: u64) -> String {
    format!("{dir}{number:020}")
}

/// The number in a name; `None` if it is not one of [`numbered`].
#[must_use]
pub fn number_in(dir: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(dir)?;
    let number = digits.parse().ok()?;
    (numbered(dir, number) == name && number > 0).then_some(number)
}

/// The name of a part.
#[must_use]
pub fn part_name(log: LogId, file: &str, offset: u64, part: Part) -> String {
    let Part {
        size,
        crc,
        since,
        attempt,
    } = part;
    let dir = parts_dir(log);
    let mut name = format!("{dir}{file}-{offset:010}-{size:08}-{crc:08x}-{since}");
    if attempt > 0 {
        let _ = write!(name, "-{attempt}");
    }
    name
}

/// [`Part::since`] in a name; `None` if it is not one of [`part_name`].
#[must_use]
pub fn since_in(log: LogId, name: &str) -> Option<u64> {
    let name = name.strip_prefix(&parts_dir(log))?;
    // The name of a file has one dash.
    name.split('-').nth(5)?.parse().ok()
}

/// The size and the CRC-32 of a part, in its name; `None` if it is not one of [`part_name`].
pub(super) fn sum_in(log: LogId, name: &str) -> Option<(u64, u32)> {
    let name = name.strip_prefix(&parts_dir(log))?;
    let mut fields = name.split('-').skip(3);
    let size = fields.next()?.parse().ok()?;
    Some((size, u32::from_str_radix(fields.next()?, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(kind: Kind) -> Head {
        let from = Position::new(SegmentId(12), 4096);
        let to = match kind {
            Kind::Frames => Position::new(SegmentId(12), 4096 + 5),
            Kind::Takeover => Position::new(SegmentId(13), 0),
            _ => from,
        };
        Head {
            kind,
            epoch: 3,
            number: 42,
            log: LogId([7; 16]),
            from,
            to,
            seen_wall_ns: 5,
            wall_ns: 6,
            previous: 0x1234_5678,
            segment_crc: 0x9abc_def0,
        }
    }

    #[test]
    fn every_kind_of_link_is_read_back_and_every_changed_bit_and_length_is_noticed() {
        let claim = |goes_on| Kind::Claim { goes_on };
        for kind in [
            claim(false),
            claim(true),
            Kind::Takeover,
            Kind::Frames,
            Kind::Base,
            Kind::Gap,
        ] {
            let (bytes, crc) = head(kind).encode(b"12345");
            assert_eq!(Head::decode(&bytes), Ok((head(kind), crc, &b"12345"[..])));
            for bit in 0..bytes.len() * 8 {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(Head::decode(&changed).is_err(), "bit {bit}");
            }
            for size in 0..bytes.len() {
                assert!(Head::decode(&bytes[..size]).is_err(), "{size}");
            }
            assert!(Head::decode(&[&bytes[..], b"x"].concat()).is_err());
        }
    }

    #[test]
    fn links_are_put_in_version_2_and_read_in_1_too_and_a_later_one_is_refused_by_name() {
        let (mut bytes, _) = head(Kind::Frames).encode(b"12345");
        assert_eq!(bytes[8..10], [2, 0], "a program of version 1 refuses it");
        assert!(Head::may_be_joined(&bytes));
        let mut set = |version: u8| {
            bytes[8] = version;
            let crc = crc32fast::hash(&bytes[..at::CRC]);
            bytes[at::CRC..HEAD_SIZE].copy_from_slice(&crc.to_le_bytes());
            (
                Head::decode(&bytes).map(|it| it.0),
                Head::may_be_joined(&bytes),
            )
        };
        assert_eq!(set(1), (Ok(head(Kind::Frames)), false));
        for version in [0, 3] {
            let why = set(version).0.unwrap_err();
            assert!(why.contains(&format!("version {version}")), "{why}");
        }
    }

    #[test]
    fn a_list_of_files_is_read_back_and_one_with_another_name_is_refused() {
        let part = |size, crc, attempt| Part {
            size,
            crc,
            since: 5,
            attempt,
        };
        let list = BaseList {
            end: Position::new(SegmentId(12), 4096),
            first_link: 7,
            files: vec![
                BaseFile {
                    name: "segment-0000000003.00002".into(),
                    parts: vec![part(PART_SIZE_MAX, 1, 0), part(7, 0xffff_ffff, 2)],
                },
                BaseFile {
                    name: "segment-0000000012.00000".into(),
                    parts: vec![part(4096, 3, 0)],
                },
            ],
        };
        let text = list.encode();
        for file in &list.files {
            for (offset, part) in file.parts() {
                let log = LogId([7; 16]);
                let name = part_name(log, &file.name, offset, part);
                assert_eq!(since_in(log, &name), Some(5), "{name}");
            }
        }
        assert_eq!(BaseList::decode(&text), Ok(list));
        let text = String::from_utf8(text).unwrap();
        for (old, new) in [
            ("segment-0000000012.00000", "../segment"),
            ("part 7 ", "part 07 "),
            ("part 7 ", "part 99999999 "),
            ("first", "last"),
        ] {
            assert!(BaseList::decode(text.replace(old, new).as_bytes()).is_err());
        }
        for size in 0..text.len() {
            // At the end of a line it is a shorter list: the link's checksum notices that.
            let _ = BaseList::decode(&text.as_bytes()[..size]);
        }
    }

    #[test]
    fn the_name_of_a_base_is_read_back_and_each_changed_byte_is_refused_or_another_name() {
        let named = Named {
            base: 17,
            end: Position::new(SegmentId(12), 4096),
        };
        let bytes = named.encode();
        assert_eq!(bytes, b"bsd-archive-name 1\nbase 17\nend 12 4096\n");
        assert_eq!(Named::decode(&bytes), Ok(named));
        for size in 0..bytes.len() {
            assert!(Named::decode(&bytes[..size]).is_err(), "{size}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Named::decode(&changed), Ok(named), "bit {bit}");
        }
        assert!(Named::decode(&[&bytes[..], b"x"].concat()).is_err());
        let why = Named::decode(b"bsd-archive-name 2\nbase 17\n").unwrap_err();
        assert!(why.contains("a later bsd"), "{why}");
        assert_eq!(Named::decode(&broken(&"why".to_owned())), Err("why".into()));
    }

    #[test]
    fn a_name_of_a_base_is_short_and_a_name_of_a_file_everywhere_and_no_number() {
        let longest = "a".repeat(BASE_NAME_MAX);
        for name in ["a", "before-upgrade-2.1", "x9", &longest] {
            let found = BaseName::parse(name).unwrap();
            assert_eq!(found.as_str(), name);
            let object = found.object(LogId([7; 16]));
            assert!(object.ends_with(&format!("/names/{name}")), "{object}");
        }
        let too_long = "a".repeat(BASE_NAME_MAX + 1);
        for other in [
            "", "1", "17", "9a", ".a", "-a", "a.", "a-", "A", "a_b", "a/b", "a b", "..", "\u{e4}",
            "a\n", &too_long,
        ] {
            assert_eq!(BaseName::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn names_sort_as_their_numbers_do_and_other_names_are_no_links() {
        let dir = chain_dir(LogId([7; 16]));
        assert!(numbered(&dir, 9) < numbered(&dir, 10));
        assert_eq!(number_in(&dir, &numbered(&dir, u64::MAX)), Some(u64::MAX));
        for other in ["1", "x", "00000000000000000000", "-0000000000000000001"] {
            assert_eq!(number_in(&dir, &format!("{dir}{other}")), None);
        }
        let name = log_name(LogId([7; 16]));
        assert_eq!(parse_log_name(&name), Some(LogId([7; 16])));
        assert_eq!(parse_log_name("07"), None);
    }
}
