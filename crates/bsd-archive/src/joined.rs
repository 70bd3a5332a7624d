//! The bytes of a joined object: whole links, all their heads in front of all their bodies.
//!
//! ```text
//! header | head of FIRST | … | head of LAST | body of FIRST | … | body of LAST
//! 32       96              …   96
//! ```
//!
//! The heads and bodies are byte for byte those of the links, so nothing of their proof is lost: a
//! link that is taken out of a joined object is checked as one of its own is. Where a head is follows
//! from its number alone, and where a body is from the heads.

use super::format::{Fault, HEAD_SIZE, Head, VERSION, joined_dir};
use bsd::storage::format::LogId;

/// Bytes in front of the heads.
pub(super) const HEADER_SIZE: usize = 32;
/// Most links of a joined object.
pub const JOINED_LINKS_MAX: u64 = 3600;
/// Most bytes of the links of a joined object.
pub const JOINED_SIZE_MAX: u64 = 16 << 20;

const MAGIC: [u8; 8] = *b"BSDJOI\r\n";

mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const COUNT: usize = 12;
    pub(super) const FIRST: usize = 16;
    pub(super) const CRC: usize = 28;
}

/// A joined object, as its name says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Joined {
    /// The number of its first link …
    pub(super) first: u64,
    /// … and of its last one.
    pub(super) last: u64,
    /// Bytes of its links: of all but the header.
    pub(super) size: u64,
}

/// A link of a joined object: its head, the CRC of that, and its body.
pub(super) type Part<'a> = (Head, u32, &'a [u8]);

impl Joined {
    /// The name of the object.
    pub(super) fn name(self, log: LogId) -> String {
        let Joined { first, last, size } = self;
        format!("{}{first:020}-{last:020}-{size:08}", joined_dir(log))
    }

    /// The inverse of [`Joined::name`]; `None`: no joined object has this name.
    pub(super) fn parse(log: LogId, name: &str) -> Option<Joined> {
        let mut fields = name.strip_prefix(&joined_dir(log))?.split('-');
        let mut field = || fields.next()?.parse::<u64>().ok();
        let joined = Joined {
            first: field()?,
            last: field()?,
            size: field()?,
        };
        let is_bounded = joined.first > 0
            && joined.last > joined.first
            && joined.last - joined.first < JOINED_LINKS_MAX
            && joined.size <= JOINED_SIZE_MAX;
        (is_bounded && joined.name(log) == name).then_some(joined)
    }

    /// After this name all those are listed that may have the link `number`.
    pub(super) fn before(log: LogId, number: u64) -> String {
        let Joined { first, .. } = Joined::least(number);
        format!("{}{first:020}", joined_dir(log))
    }

    /// In order it is not after any that has the link `number`.
    pub(super) fn least(number: u64) -> Joined {
        Joined {
            first: (number + 1).saturating_sub(JOINED_LINKS_MAX),
            last: 0,
            size: 0,
        }
    }

    pub(super) fn has(self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }

    pub(super) fn covers(self, other: Joined) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    pub(super) fn count(self) -> u64 {
        self.last - self.first + 1
    }

    /// Where the head of the link `number` is, and `count` - 1 others after it.
    pub(super) fn heads(self, number: u64, count: u64) -> std::ops::Range<u64> {
        let size = HEAD_SIZE as u64;
        let from = HEADER_SIZE as u64 + (number - self.first) * size;
        from..from + count * size
    }

    /// The object that has these links, which follow one another, and its bytes. There are two
    /// at least, and no more than fit.
    pub(super) fn encode(links: &[Vec<u8>], first: u64) -> (Joined, Vec<u8>) {
        let size: usize = links.iter().map(Vec::len).sum();
        let mut bytes = Vec::with_capacity(HEADER_SIZE + size);
        bytes.resize(HEADER_SIZE, 0);
        let mut set = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        set(0, &MAGIC);
        set(at::VERSION, &VERSION.to_le_bytes());
        set(at::COUNT, &(links.len() as u32).to_le_bytes());
        set(at::FIRST, &first.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..at::CRC]);
        bytes[at::CRC..HEADER_SIZE].copy_from_slice(&crc.to_le_bytes());
        for link in links {
            bytes.extend_from_slice(&link[..HEAD_SIZE]);
        }
        for link in links {
            bytes.extend_from_slice(&link[HEAD_SIZE..]);
        }
        let joined = Joined {
            first,
            last: first + links.len() as u64 - 1,
            size: size as u64,
        };
        (joined, bytes)
    }

    fn check_header(self, bytes: &[u8]) -> Result<(), Fault> {
        let expected = HEADER_SIZE as u64 + self.size;
        if bytes.len() as u64 != expected {
            let size = bytes.len();
            return Err(format!("it has {size} bytes instead of {expected}"));
        }
        let (header, crc) = bytes[..HEADER_SIZE].split_at(at::CRC);
        if header[..MAGIC.len()] != MAGIC {
            return Err("it is no joined object of an archive of bsd".to_owned());
        }
        if crc != crc32fast::hash(header).to_le_bytes() {
            return Err("the checksum of its header does not hold".to_owned());
        }
        let version = u16::from_le_bytes([header[at::VERSION], header[at::VERSION + 1]]);
        if version != VERSION {
            return Err(format!(
                "it has version {version} of the archive's format, this program reads {VERSION}"
            ));
        }
        let count = (self.count() as u32).to_le_bytes();
        let is_named = header[at::FIRST..at::FIRST + 8] == self.first.to_le_bytes()
            && header[at::COUNT..at::FIRST] == count;
        match is_named && self.count() * HEAD_SIZE as u64 <= self.size {
            true => Ok(()),
            false => Err("it is another joined object under this name".to_owned()),
        }
    }

    /// Its links, those that are sound, and the faults of the others, in the order of their numbers.
    /// A number without any: the head of one before it cannot be read.
    ///
    /// # Errors
    /// The fault of all of it.
    pub(super) fn parts(
        self,
        log: LogId,
        bytes: &[u8],
    ) -> Result<Vec<Result<Part<'_>, Fault>>, Fault> {
        self.check_header(bytes)?;
        let heads = bytes[HEADER_SIZE..].chunks_exact(HEAD_SIZE);
        let mut at = HEADER_SIZE + self.count() as usize * HEAD_SIZE;
        let mut parts = Vec::with_capacity(self.count() as usize);
        for (number, head) in (self.first..=self.last).zip(heads) {
            let decoded = Head::decode_alone(head).and_then(|(head, crc, size)| {
                head.check_place(log, number)?;
                let end = at.saturating_add(size as usize);
                let body = bytes.get(at..end);
                Ok((head, crc, body.ok_or("its content is not all there")?))
            });
            let (decoded, crc, body) = match decoded {
                Ok(found) => found,
                Err(what) => {
                    parts.push(Err(what));
                    return Ok(parts);
                }
            };
            at += body.len();
            parts.push(Head::check_body(head, body).map(|()| (decoded, crc, body)));
        }
        match at == bytes.len() {
            true => Ok(parts),
            false => Err("it has more content than its links".to_owned()),
        }
    }

    /// Its links, if it is sound: each is, and follows the one before.
    ///
    /// # Errors
    /// The first fault.
    pub(super) fn check(self, log: LogId, bytes: &[u8]) -> Result<Vec<Part<'_>>, Fault> {
        let parts = self.parts(log, bytes)?;
        let mut numbers = self.first..;
        let sound = parts.into_iter().map(|part| {
            let number = numbers.next().unwrap_or_default();
            part.map_err(|what| format!("link {number}: {what}"))
        });
        let sound = sound.collect::<Result<Vec<_>, Fault>>()?;
        for two in sound.windows(2) {
            let ((_, crc, _), (next, ..)) = (&two[0], &two[1]);
            if next.previous != *crc {
                return Err(format!(
                    "link {} does not follow the one before",
                    next.number
                ));
            }
        }
        Ok(sound)
    }
}

/// A link as it was put.
pub(super) fn link_of(bytes: &[u8], joined: Joined, part: &Part<'_>) -> Vec<u8> {
    let (head, _, body) = part;
    let heads = joined.heads(head.number, 1);
    let head = &bytes[heads.start as usize..heads.end as usize];
    [head, body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Kind;
    use bsd::types::{Position, SegmentId};

    const LOG: LogId = LogId([7; 16]);

    fn links(count: u32) -> Vec<Vec<u8>> {
        let mut previous = 0;
        let link = |number: u32| {
            let body = vec![number as u8; number as usize % 5 + 1];
            let from = Position::new(SegmentId(1), 100 * number);
            let head = Head {
                kind: Kind::Frames,
                epoch: 3,
                number: 42 + u64::from(number),
                log: LOG,
                from,
                to: Position::new(SegmentId(1), 100 * number + body.len() as u32),
                seen_wall_ns: 5,
                wall_ns: 6,
                previous,
                segment_crc: 9,
            };
            let (link, crc) = head.encode(&body);
            previous = crc;
            link
        };
        (0..count).map(link).collect()
    }

    #[test]
    fn links_come_out_as_they_were_put_and_every_changed_bit_and_length_is_noticed() {
        let links = links(7);
        let (joined, bytes) = Joined::encode(&links, 42);
        let parts = joined.check(LOG, &bytes).unwrap();
        let again: Vec<_> = parts.iter().map(|it| link_of(&bytes, joined, it)).collect();
        assert_eq!(again, links);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(joined.check(LOG, &changed).is_err(), "bit {bit}");
            // What is not affected is still there.
            if let Ok(parts) = joined.parts(LOG, &changed) {
                for (part, link) in parts.iter().zip(&links) {
                    let part = part.as_ref().ok();
                    assert!(part.is_none_or(|it| link_of(&changed, joined, it) == *link));
                }
            }
        }
        for size in 0..bytes.len() {
            assert!(joined.check(LOG, &bytes[..size]).is_err(), "{size}");
        }
        assert!(joined.check(LOG, &[&bytes[..], b"x"].concat()).is_err());
        assert!(joined.check(LogId([8; 16]), &bytes).is_err());
    }

    #[test]
    fn a_changed_body_is_the_fault_of_its_link_alone() {
        let (joined, mut bytes) = Joined::encode(&links(7), 42);
        let heads = HEADER_SIZE + 7 * HEAD_SIZE;
        bytes[heads + 1] ^= 1;
        let parts = joined.parts(LOG, &bytes).unwrap();
        let bad: Vec<usize> = (0..7).filter(|at| parts[*at].is_err()).collect();
        assert_eq!(bad, [1]);
    }

    #[test]
    fn a_link_that_does_not_follow_is_refused() {
        let mut links = links(7);
        links.swap(2, 3);
        let (joined, bytes) = Joined::encode(&links, 42);
        joined.check(LOG, &bytes).unwrap_err();
        let (joined, bytes) = Joined::encode(&[links[0].clone(), links[1].clone()], 43);
        joined.check(LOG, &bytes).unwrap_err();
    }

    #[test]
    fn names_say_which_links_there_are_and_others_are_refused() {
        let joined = Joined {
            first: 61,
            last: 120,
            size: 12_345,
        };
        let name = joined.name(LOG);
        assert_eq!(Joined::parse(LOG, &name), Some(joined));
        assert_eq!(Joined::parse(LogId([8; 16]), &name), None);
        assert!(Joined::before(LOG, 120) < name && Joined::before(LOG, 61) < name);
        let bad = |joined: Joined| assert_eq!(Joined::parse(LOG, &joined.name(LOG)), None);
        bad(Joined { first: 0, ..joined });
        bad(Joined { last: 61, ..joined });
        bad(Joined { last: 60, ..joined });
        let last = 61 + JOINED_LINKS_MAX;
        bad(Joined { last, ..joined });
        let size = JOINED_SIZE_MAX + 1;
        bad(Joined { size, ..joined });
        assert_eq!(Joined::parse(LOG, &format!("{name}-1")), None);
    }
}
