//! Reading an archive: its links, and their faults.
//!
//! Nothing here decides what to do about a fault. A link is sound if its name, its number, its log,
//! its checksums and its reference to the link before agree; anyone who walks the chain is told of
//! every one that is not.

use std::collections::{BTreeSet, HashSet, VecDeque};

use super::ahead::ReadAhead;
use super::format::{
    BaseList, Fault, Head, Kind, LOGS, MARKER, Part, begins_dir, chain_dir, number_in, numbered,
    parse_log_name, part_name,
};
use super::joined::{Joined, link_of};
use super::links::{Piece, Pieces};
use super::reader::Reader;
use super::store::{Store, Trouble, Want};
use bsd::storage::format::LogId;

pub use super::format::Bad;

/// At most 1,000 links are looked at for the last one with bytes, which a writer that starts
/// compares with its log: writers that began and ended without any leave one each.
pub(super) const LOOK_BACK_MAX: u64 = 1000;

/// The logs that have an archive here: those with a mark, and those with any other object. One of the
/// two may be lost, or be missing from a list.
///
/// # Errors
/// The store did not answer.
pub fn logs(store: &dyn Store) -> Result<Vec<LogId>, Trouble> {
    let listed = store.list(LOGS, "")?;
    let marked = listed.iter().filter_map(|it| it.name.strip_prefix(LOGS));
    let tops = store.tops()?;
    let names = marked.chain(tops.iter().map(String::as_str));
    let logs: BTreeSet<_> = names.filter_map(parse_log_name).map(|log| log.0).collect();
    Ok(logs.into_iter().map(LogId).collect())
}

impl Reader<'_> {
    /// The logs that have an archive here: those with a mark, and those with any other object. One of
    /// the two may be lost, or be missing from a list.
    ///
    /// # Errors
    /// The store did not answer.
    pub fn logs(&self) -> Result<Vec<LogId>, Trouble> {
        self.again(logs)
    }
}

/// True if the place has an archive, or had one of which nothing is left but its marker.
///
/// # Errors
/// The store did not answer.
pub(super) fn is_archive(store: &dyn Store) -> Result<bool, Trouble> {
    Ok(!logs(store)?.is_empty() || store.get(MARKER)?.is_some())
}

/// The first link that has to be there: what was before it has expired.
///
/// # Errors
/// The store did not answer.
pub(super) fn begin(store: &dyn Store, log: LogId) -> Result<u64, Trouble> {
    let dir = begins_dir(log);
    let marks = store.list(&dir, "")?;
    Ok(marks
        .iter()
        .rev()
        .find_map(|it| number_in(&dir, &it.name))
        .unwrap_or(1))
}

/// An error, if the chain no longer begins with the link `began`: what was not there was removed.
///
/// # Errors
/// Passing trouble.
pub(super) fn check_begin(reader: &Reader<'_>, log: LogId, began: u64) -> Result<(), Trouble> {
    match reader.again(|store| begin(store, log))? == began {
        true => Ok(()),
        false => Err(Trouble::passing(
            "an expiry has removed some of it meanwhile; begin again",
        )),
    }
}

/// The facts that the next link must agree with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tip {
    pub(super) log: LogId,
    /// The number of the next link.
    pub(super) next: u64,
    /// The CRC of the link before, if that is sound.
    pub(super) previous: Option<u32>,
    /// The greatest epoch so far.
    pub(super) epoch: u32,
}

impl Tip {
    /// Whether this is the next link.
    pub(super) fn check(&self, head: &Head) -> Result<(), Fault> {
        head.check_place(self.log, self.next)?;
        if head.epoch < self.epoch {
            return Err(format!(
                "it is of epoch {}, which was over: epoch {} had begun",
                head.epoch, self.epoch
            ));
        }
        match self.previous {
            Some(previous) if previous != head.previous => {
                Err("it does not follow the link before it".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// That link was passed.
    pub(super) fn pass(&mut self, head: &Head, crc: u32) {
        (self.next, self.previous, self.epoch) = (head.number + 1, Some(crc), head.epoch);
    }
}

/// A link, or its fault.
#[derive(Debug)]
pub(super) enum Item {
    /// Its head, and all of it.
    Link { head: Head, link: Vec<u8> },
    /// The links up to `number` are missing, or that one is damaged.
    Bad { number: u64, bad: Bad },
}

/// A link that is sound in itself: its head, the CRC of that, and all of it.
type Sound = (Head, u32, Vec<u8>);

/// A link of an object, or a fault of several: their numbers.
#[derive(Debug)]
struct Found {
    first: u64,
    last: u64,
    link: Result<Sound, Fault>,
}

impl Found {
    fn one(number: u64, link: Result<Sound, Fault>) -> Found {
        Found {
            first: number,
            last: number,
            link,
        }
    }
}

/// Walks a chain in order.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    reader: Reader<'a>,
    dir: String,
    /// Those that have not been read.
    pieces: VecDeque<Piece>,
    /// Those that come next.
    ahead: ReadAhead<'a, Piece, Vec<Sound>>,
    /// The links of the object that was read last.
    found: VecDeque<Found>,
    /// That object.
    from: Option<Piece>,
    pub(super) tip: Tip,
    /// Bytes of all links, as they are listed.
    pub(super) size: u64,
    /// Bytes of those that were given.
    pub(super) done: u64,
    /// Objects among the links that are none.
    pub(super) strangers: Vec<Bad>,
}

impl<'a> Walk<'a> {
    /// The links from the number `first` on, which the chain must have if it has later ones.
    pub(super) fn from(reader: Reader<'a>, log: LogId, first: u64) -> Result<Walk<'a>, Trouble> {
        let listing = reader.listing(log, first - 1)?;
        let walk = Walk::over(reader, log, first, listing.pieces(first));
        Ok(Walk {
            strangers: listing.strangers,
            ..walk
        })
    }

    /// The same, with a list that was made before.
    pub(super) fn over(reader: Reader<'a>, log: LogId, first: u64, pieces: Pieces) -> Walk<'a> {
        Walk {
            reader,
            dir: chain_dir(log),
            size: pieces.size(),
            done: 0,
            pieces: pieces.0.into(),
            ahead: ReadAhead::new(reader),
            found: VecDeque::new(),
            from: None,
            tip: Tip {
                log,
                next: first,
                previous: None,
                epoch: 0,
            },
            strangers: Vec::new(),
        }
    }

    /// Bytes of those that are listed, up to this one.
    pub(super) fn size_to(&self, last: u64) -> u64 {
        let wanted = self.pieces.iter().take_while(|piece| piece.first <= last);
        wanted.map(Piece::size).sum()
    }

    /// The next link up to `last`.
    pub(super) fn next(&mut self, last: u64) -> Result<Option<Item>, Trouble> {
        loop {
            self.read_ahead(last);
            let read = self.found.front().map(|it| it.first);
            let front = read.or_else(|| self.ahead.next_key().map(|piece| piece.first));
            // What is missing is told by the one after it, which need not be read for that.
            let after = || self.pieces.front().map(|piece| piece.first);
            let number = front.or_else(after).filter(|_| self.tip.next <= last);
            let Some(number) = number else {
                return Ok(None);
            };
            if number > self.tip.next {
                let bad = Bad::missing(&self.dir, self.tip.next, number - self.tip.next);
                (self.tip.next, self.tip.previous) = (number, None);
                let number = number - 1;
                return Ok(Some(Item::Bad { number, bad }));
            }
            match self.found.pop_front() {
                Some(found) => return Ok(Some(self.give(found))),
                None => self.read()?,
            }
        }
    }

    /// A link that was read, if it follows the one before it.
    fn give(&mut self, found: Found) -> Item {
        let (first, number) = (found.first, found.last);
        let checked = found.link.and_then(|(head, crc, link)| {
            self.tip.check(&head)?;
            Ok((head, crc, link))
        });
        match checked {
            Ok((head, crc, link)) => {
                self.tip.pass(&head, crc);
                Item::Link { head, link }
            }
            Err(what) => {
                (self.tip.next, self.tip.previous) = (number + 1, None);
                let bad = match self.from.filter(|piece| piece.joined.is_some()) {
                    Some(piece) => Bad::joined(piece.name(self.tip.log), (first, number), &what),
                    None => Bad {
                        name: numbered(&self.dir, number),
                        what,
                    },
                };
                Item::Bad { number, bad }
            }
        }
    }

    /// The links of the next object.
    fn read(&mut self) -> Result<(), Trouble> {
        let log = self.tip.log;
        let read = self
            .ahead
            .next(|piece, bytes| sound_links(log, piece, bytes))?;
        let Some((piece, read)) = read else {
            return Ok(());
        };
        self.from = Some(piece);
        let what = match read {
            Ok(links) => {
                self.done += piece.size();
                let found = links.into_iter();
                let found = found.map(|link| Found::one(link.0.number, Ok(link)));
                self.found = found.collect();
                return Ok(());
            }
            Err(what) => what,
        };
        let again = self.reader.listing(log, self.tip.next - 1)?;
        let pieces = again.pieces(self.tip.next);
        if pieces.find(piece.first.max(self.tip.next)) != Some(&piece) {
            // It was joined with others, or expired, since the list was made.
            self.pieces = pieces.0.into();
            self.ahead = ReadAhead::new(self.reader);
            return Ok(());
        }
        self.done += piece.size();
        self.found = match piece.joined {
            Some(joined) => self.salvage(&piece, joined, &what)?,
            None => VecDeque::from([Found::one(piece.first, Err(what))]),
        };
        Ok(())
    }

    /// What there is in a joined object that is not sound.
    fn salvage(
        &self,
        piece: &Piece,
        joined: Joined,
        what: &Fault,
    ) -> Result<VecDeque<Found>, Trouble> {
        let log = self.tip.log;
        let bytes = self.reader.again(|store| store.get(&piece.name(log)))?;
        let bytes = bytes.unwrap_or_default();
        let parts = joined.parts(log, &bytes).unwrap_or_default();
        let count = parts.len() as u64;
        let mut found = VecDeque::new();
        for (number, part) in (joined.first..).zip(parts) {
            // Where a head cannot be read no later body is found.
            let last = match number + 1 - joined.first == count && part.is_err() {
                true => joined.last,
                false => number,
            };
            found.push_back(Found {
                first: number.max(piece.first),
                last: last.min(piece.last),
                link: part.map(|part| (part.0, part.1, link_of(&bytes, joined, &part))),
            });
        }
        if count == 0 {
            found.push_back(Found {
                first: piece.first,
                last: piece.last,
                link: Err(what.clone()),
            });
        }
        found.retain(|it| it.first <= it.last);
        Ok(found)
    }

    /// Have the next ones read, as many as there is room for.
    fn read_ahead(&mut self, last: u64) {
        while let Some(piece) = self.pieces.front().copied()
            && piece.first <= last
            && self.ahead.has_room(piece.memory())
        {
            self.pieces.pop_front();
            match piece.excess() {
                Some(what) => self.ahead.push_fault(piece, what),
                None => {
                    let want = piece.want(self.tip.log);
                    self.ahead.push(piece, want, piece.memory());
                }
            }
        }
    }
}

/// The links that are read from an object, if all of it is sound.
fn sound_links(log: LogId, piece: &Piece, bytes: Vec<u8>) -> Result<Vec<Sound>, Fault> {
    let Some(joined) = piece.joined else {
        let (head, crc, _) = Head::decode(&bytes)?;
        head.check_place(log, piece.first)?;
        return Ok(vec![(head, crc, bytes)]);
    };
    let parts = joined.check(log, &bytes)?.into_iter();
    let parts = parts.filter(|(head, ..)| piece.has(head.number));
    let links = parts.map(|part| (part.0, part.1, link_of(&bytes, joined, &part)));
    Ok(links.collect())
}

/// The parts of a base that are not as they were put, but for those that are known to be `sound`.
/// `read` is told the bytes of each.
pub(super) fn check_parts(
    reader: &Reader<'_>,
    log: LogId,
    list: &BaseList,
    sound: &mut HashSet<String>,
    read: &mut dyn FnMut(u64),
) -> Result<Vec<Bad>, Trouble> {
    let mut bad = Vec::new();
    let mut parts = parts_of(log, list);
    parts.retain(|part| !sound.contains(&part.name));
    for_each_part(reader, &parts, &mut |part, found| {
        match found {
            Ok(_) => drop(sound.insert(part.name.clone())),
            Err(what) => bad.push(Bad {
                name: part.name.clone(),
                what,
            }),
        }
        read(part.part.size.into());
        Ok::<(), Trouble>(())
    })?;
    Ok(bad)
}

/// A part of a base, and where it belongs.
#[derive(Debug, Clone)]
pub(super) struct NamedPart<'a> {
    pub(super) name: String,
    pub(super) file: &'a str,
    pub(super) offset: u64,
    part: Part,
}

/// The parts of a base, in the order of the files.
pub(super) fn parts_of(log: LogId, list: &BaseList) -> Vec<NamedPart<'_>> {
    let parts = list.files.iter().flat_map(|file| {
        file.parts().map(|(offset, part)| NamedPart {
            name: part_name(log, &file.name, offset, part),
            file: &file.name,
            offset,
            part,
        })
    });
    parts.collect()
}

/// The receiver of each part, or of its fault.
pub(super) type TakePart<'a, E> =
    &'a mut dyn FnMut(&NamedPart<'_>, Result<Vec<u8>, Fault>) -> Result<(), E>;

/// Read parts, several at a time, and give each to `take`, in their order.
pub(super) fn for_each_part<E: From<Trouble>>(
    reader: &Reader<'_>,
    parts: &[NamedPart<'_>],
    take: TakePart<'_, E>,
) -> Result<(), E> {
    let mut ahead = ReadAhead::new(*reader);
    let mut parts = parts.iter().peekable();
    loop {
        while let Some(part) = parts.next_if(|next| ahead.has_room(next.part.size.into())) {
            let size = u64::from(part.part.size);
            let want = Want {
                name: part.name.clone(),
                // One byte more than it should have.
                range: Some(0..size + 1),
            };
            ahead.push(part, want, size);
        }
        match ahead.next(|part, bytes| check_part(part.part, bytes))? {
            None => return Ok(()),
            Some((part, found)) => take(part, found)?,
        }
    }
}

fn check_part(part: Part, bytes: Vec<u8>) -> Result<Vec<u8>, Fault> {
    let crc = crc32fast::hash(&bytes);
    match (bytes.len() as u64, crc) {
        (size, _) if size > u64::from(part.size) => Err("it has too many bytes".to_owned()),
        (size, _) if size < u64::from(part.size) => {
            Err(format!("it has {size} bytes instead of {}", part.size))
        }
        (_, crc) if crc != part.crc => Err(format!(
            "its checksum is {crc:08x} instead of {:08x}",
            part.crc
        )),
        _ => Ok(bytes),
    }
}

/// A base, or its fault.
pub(super) type FoundBase = Result<(Head, BaseList), Fault>;

/// A base. `None`: only the mark of this number is there, which an interrupted writer leaves.
pub(super) fn base(
    reader: &Reader<'_>,
    log: LogId,
    number: u64,
) -> Result<Option<FoundBase>, Trouble> {
    let links = chain_dir(log);
    let name = numbered(&links, number);
    let check = |bytes: Vec<u8>| {
        let (head, _, body) = Head::decode(&bytes)?;
        head.check_place(log, number)?;
        Ok(match head.kind {
            Kind::Base => Some((head, BaseList::decode(body)?)),
            _ => None,
        })
    };
    let mut found = reader.find(&name, check)?;
    if found.is_none() {
        // One wrong answer does not say that it is not there.
        let listed = reader.list(&links, &numbered(&links, number.saturating_sub(1)))?;
        if listed.first().is_some_and(|it| it.name == name) {
            found = Some(reader.read(Want::whole(&name), check)?);
        }
    }
    Ok(found.and_then(Result::transpose))
}
