//! Joins links that have aged into larger objects, and then removes those that they came from.
//!
//! ```text
//! list      which objects are there, and which links are in several of them?
//! sweep     a joined object is read back     -> the rest of what it was made of goes
//! join      60 links of about a second       -> an object of about a minute
//!           those of an hour                 -> an object of about an hour
//!           each: read and check all -> put -> read back and check all -> remove the parts
//! ```
//!
//! A joined object has its links as they were put, so every moment can still be restored, to the
//! link. It has frames and nothing else: claims, bases and gaps stay objects of their own, which lists
//! show. So does the last link with frames, which a writer that starts compares with its log.
//!
//! Nothing is decided by what another process knows. Two that join the same links put the same bytes
//! under the same name, or overlap; an interruption leaves links in two objects, and the next pass
//! finds them. A number whose link was joined is free again, but no writer can take it: one that was
//! replaced finds the claim of its successor under its next number, and claims stay.

use std::collections::{BTreeMap, BTreeSet};

use super::ahead::ReadAhead;
use super::chain::{Bad, Item, Walk, begin};
use super::format::{HEAD_SIZE, Head, Kind, bases_dir, chain_dir, claims_dir, number_in, numbered};
use super::joined::{Joined, link_of};
use super::links::{Listing, Piece, Pieces};
use super::reader::Reader;
use super::store::{Trouble, Want};
use bsd::storage::format::LogId;

pub use super::joined::{JOINED_LINKS_MAX, JOINED_SIZE_MAX};

/// Objects that one call removes.
const REMOVED_AT_ONCE: usize = 1000;
/// Objects that are not as they were put, that one pass names.
const NAMED_MAX: usize = 10;
/// By default links stay objects of their own for this long, ns.
pub const FINE_NS: u64 = 3600 * 1_000_000_000;

/// When links are joined, and how many. The default is what servers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Links that are younger stay objects of their own, ns.
    pub fine_ns: u64,
    /// Links of an object of the first level.
    pub few: u64,
    /// Links of one of the second, at most; bounded by [`JOINED_LINKS_MAX`].
    pub many: u64,
    /// Bytes of either, at most; bounded by [`JOINED_SIZE_MAX`].
    pub size_max: u64,
    /// Objects that one pass makes, at most.
    pub objects_max: usize,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels {
            fine_ns: FINE_NS,
            few: 60,
            many: JOINED_LINKS_MAX,
            size_max: JOINED_SIZE_MAX,
            objects_max: 100,
        }
    }
}

/// Result of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pass {
    /// Joined objects that were put, or were there and were found sound.
    pub objects: u64,
    /// Their links.
    pub links: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects that were removed.
    pub removed: u64,
    /// Links that are in joined objects after it …
    pub joined: u64,
    /// … and those that are objects of their own.
    pub singles: u64,
    /// What cannot be joined because it is not as it was put: the first ones.
    pub bad: Vec<Bad>,
    /// There is more to do.
    pub is_cut: bool,
}

impl Pass {
    /// It has changed nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.objects == 0 && self.removed == 0
    }

    /// The sum of this and a later one.
    pub fn add(&mut self, later: Pass) {
        self.objects += later.objects;
        self.links += later.links;
        self.bytes += later.bytes;
        self.removed += later.removed;
        (self.joined, self.singles) = (later.joined, later.singles);
        for bad in later.bad {
            self.fault(bad);
        }
        self.is_cut = later.is_cut;
    }

    fn fault(&mut self, bad: Bad) {
        if self.bad.len() < NAMED_MAX && !self.bad.contains(&bad) {
            self.bad.push(bad);
        }
    }
}

/// Objects that become one.
type Run = Vec<Piece>;

/// Look at the archive of `log` once, and join what there is to join, by the time `wall_ns`, ns since
/// 1970. `go_on` is told the objects that were made, and those that are to be made; it says whether to
/// go on.
///
/// # Errors
/// The store did not answer. What was done stays done; what is left is found by the next pass.
pub fn pass(
    reader: &Reader<'_>,
    log: LogId,
    levels: Levels,
    wall_ns: u64,
    go_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Pass, Trouble> {
    let begin = reader.again(|store| begin(store, log))?;
    let listing = reader.listing(log, begin - 1)?;
    let mut work = Work {
        reader,
        log,
        levels: Levels {
            many: levels.many.min(JOINED_LINKS_MAX),
            size_max: levels.size_max.min(JOINED_SIZE_MAX),
            ..levels
        },
        pieces: listing.pieces(begin),
        // After the links: the mark of each was put before it.
        marks: marks(reader, log)?,
        pass: Pass::default(),
    };
    work.count_links();
    let spare = work.spare(&listing);
    let runs = work.runs(wall_ns.saturating_sub(levels.fine_ns))?;
    let total = (spare.len() + runs.len()) as u64;
    let spare = spare.into_iter().map(Task::Sweep);
    let tasks = spare.chain(runs.into_iter().map(Task::Join));
    let mut done = 0;
    for task in tasks.take(levels.objects_max) {
        match task {
            Task::Sweep((joined, parts)) => work.sweep(joined, &parts)?,
            Task::Join(run) => work.join(run)?,
        }
        done += 1;
        if !go_on(done, total) {
            break;
        }
    }
    work.pass.is_cut = done < total;
    Ok(work.pass)
}

enum Task {
    Sweep((Joined, Vec<Piece>)),
    Join(Run),
}

/// The links that are claims or bases, or may be.
fn marks(reader: &Reader<'_>, log: LogId) -> Result<Marks, Trouble> {
    let listed = |dir: String| -> Result<BTreeSet<u64>, Trouble> {
        let listed = reader.list(&dir, "")?;
        Ok(listed
            .iter()
            .filter_map(|it| number_in(&dir, &it.name))
            .collect())
    };
    Ok(Marks {
        claims: listed(claims_dir(log))?,
        bases: listed(bases_dir(log))?,
    })
}

struct Marks {
    claims: BTreeSet<u64>,
    bases: BTreeSet<u64>,
}

struct Work<'a> {
    reader: &'a Reader<'a>,
    log: LogId,
    levels: Levels,
    pieces: Pieces,
    marks: Marks,
    pass: Pass,
}

impl Work<'_> {
    /// How many links are joined before anything is done.
    fn count_links(&mut self) {
        for piece in &self.pieces.0 {
            match piece.joined {
                Some(_) => self.pass.joined += piece.links(),
                None => self.pass.singles += piece.links(),
            }
        }
    }

    /// It may be joined, by what lists say.
    fn is_frames(&self, piece: &Piece) -> bool {
        if piece.joined.is_some() {
            // What it has before the beginning goes with the rest of it.
            return !piece.is_cut();
        }
        let is_marked =
            self.marks.claims.contains(&piece.first) || self.marks.bases.contains(&piece.first);
        !is_marked && !piece.is_empty() && piece.size() <= self.levels.size_max
    }

    /// The links of their own that may be joined, but for the last one.
    fn candidates(&self) -> Vec<u64> {
        let singles = self.pieces.0.iter().filter(|it| it.joined.is_none());
        let frames = singles.filter(|piece| self.is_frames(piece));
        let mut numbers: Vec<u64> = frames.map(|piece| piece.first).collect();
        numbers.pop();
        numbers
    }

    /// The links that are old enough, the first and the last of them: a clock is taken to run forwards.
    /// `None`: no link is.
    fn aged(&self, until_ns: u64) -> Result<Option<(u64, u64)>, Trouble> {
        let numbers = self.candidates();
        let is_aged = |(head, _): &(Head, bool)| head.wall_ns <= until_ns;
        let aged = self.count(&numbers, is_aged)?;
        let numbers = &numbers[..aged];
        let Some(first) = numbers.first() else {
            return Ok(None);
        };
        let early = match self.head(*first)? {
            Some((_, true)) => 0,
            // Those of an earlier version stay as they are.
            _ => self.count(numbers, |(_, may_be_joined)| !may_be_joined)?,
        };
        Ok(numbers.get(early).copied().zip(numbers.last().copied()))
    }

    /// How many of these links are so: the first ones, up to some link.
    fn count(
        &self,
        numbers: &[u64],
        is_so: impl Fn(&(Head, bool)) -> bool,
    ) -> Result<usize, Trouble> {
        let (mut from, mut to) = (0, numbers.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match self.head(numbers[middle])?.as_ref().is_some_and(&is_so) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        Ok(from)
    }

    /// The head of a link of its own, and whether it is of a version that is joined. `None`: it is gone,
    /// or damaged.
    fn head(&self, number: u64) -> Result<Option<(Head, bool)>, Trouble> {
        let name = numbered(&chain_dir(self.log), number);
        let range = 0..HEAD_SIZE as u64;
        let bytes = self
            .reader
            .again(|store| store.get_range(&name, range.clone()))?;
        let Some(bytes) = bytes else {
            return Ok(None);
        };
        let head = Head::decode_alone(&bytes).ok();
        Ok(head.map(|(head, ..)| (head, Head::may_be_joined(&bytes))))
    }

    /// What is to be joined: links that follow one another, and that are old enough.
    fn runs(&self, until_ns: u64) -> Result<Vec<Run>, Trouble> {
        let (from, to) = self.aged(until_ns)?.unwrap_or((u64::MAX, 0));
        let mut runs = Vec::new();
        let mut run = Growing::default();
        for piece in &self.pieces.0 {
            let is_next = run
                .pieces
                .last()
                .is_none_or(|last| last.last + 1 == piece.first);
            let is_single = piece.joined.is_none();
            if !is_next {
                run.end(&mut runs);
            }
            let is_frames = self.is_frames(piece);
            if is_frames && is_single && piece.first > to {
                break;
            }
            if !is_frames || is_single && piece.first < from {
                run.end(&mut runs);
                continue;
            }
            if !run.has_room(piece, self.levels.many, self.levels.size_max) {
                run.end(&mut runs);
            }
            run.push(*piece);
        }
        // More comes: only what has gathered since is joined, if it is enough.
        let mut few = Growing::default();
        for piece in run.pieces {
            if piece.joined.is_some() {
                few = Growing::default();
                continue;
            }
            if !few.has_room(&piece, self.levels.few, self.levels.size_max) {
                few.end(&mut runs);
            }
            few.push(piece);
        }
        if few.links >= self.levels.few {
            few.end(&mut runs);
        }
        Ok(runs)
    }

    /// Joined objects, and what they were made of and is still there.
    fn spare(&self, listing: &Listing) -> BTreeMap<Joined, Vec<Piece>> {
        let mut spare: BTreeMap<Joined, Vec<Piece>> = BTreeMap::new();
        let holder = |number| self.pieces.find(number).and_then(|piece| piece.joined);
        for (number, size) in &listing.singles {
            // A claim stays; one that came too late is not read.
            if let Some(joined) = holder(*number)
                && !self.marks.claims.contains(number)
            {
                let part = Piece::single(*number, *size);
                spare.entry(joined).or_default().push(part);
            }
        }
        for part in &listing.joined {
            if let Some(joined) = holder(part.first)
                && joined != *part
                && joined.covers(*part)
            {
                spare.entry(joined).or_default().push(Piece::whole(*part));
            }
        }
        spare
    }

    /// Remove what is in the joined object too, byte for byte.
    fn sweep(&mut self, joined: Joined, parts: &[Piece]) -> Result<(), Trouble> {
        let Some(whole) = self.sound(joined)? else {
            return Ok(());
        };
        let mut ahead = ReadAhead::new(*self.reader);
        let (mut rest, mut dead) = (parts.iter().copied().peekable(), Vec::new());
        loop {
            while let Some(part) = rest.next_if(|part| ahead.has_room(part.memory())) {
                ahead.push(part, part.want(self.log), part.memory());
            }
            let read = ahead.next(|part, bytes| {
                let is_same = is_in(self.log, &whole, joined, part, &bytes);
                let other = || format!("{} has something else", joined.name(self.log));
                is_same.then_some(()).ok_or_else(other)
            })?;
            match read {
                None => break,
                Some((part, Ok(()))) => dead.push(part),
                // It stays, if it is there, until it expires.
                Some((part, Err(what))) => self.pass.fault(part.bad(self.log, part.first, what)),
            }
        }
        self.remove(&dead)
    }

    /// All of a joined object, if it is there and sound.
    fn sound(&mut self, joined: Joined) -> Result<Option<Vec<u8>>, Trouble> {
        let (log, name) = (self.log, joined.name(self.log));
        let read = self.reader.read(Want::whole(&name), |bytes| {
            joined.check(log, &bytes)?;
            Ok(bytes)
        })?;
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(what) => {
                self.pass.fault(Bad { name, what });
                Ok(None)
            }
        }
    }

    /// Put the links of these objects into one and, when that was read back, remove them.
    fn join(&mut self, run: Run) -> Result<(), Trouble> {
        let Some((joined, bytes)) = self.gather(&run)? else {
            return Ok(());
        };
        let name = joined.name(self.log);
        // What is there under this name is what counts: it is read back.
        self.reader
            .again(|store| store.put_if_absent(&name, &bytes))?;
        let read = self.reader.read(Want::whole(&name), |found| {
            joined.check(self.log, &found)?;
            match found == bytes {
                true => Ok(()),
                false => Err("it is not what was put".to_owned()),
            }
        })?;
        if let Err(what) = read {
            self.pass.fault(Bad { name, what });
            return Ok(());
        }
        drop(bytes);
        self.pass.objects += 1;
        self.pass.links += joined.count();
        self.pass.bytes += joined.size;
        let is_inside = |it: &Piece| joined.has(it.first) && joined.has(it.last);
        let parts: Vec<Piece> = run.into_iter().filter(is_inside).collect();
        let singles = parts.iter().filter(|part| part.joined.is_none()).count() as u64;
        self.pass.joined += singles;
        self.pass.singles -= singles;
        self.remove(&parts)
    }

    /// The links of these objects, in one: the first of them that can be joined. `None`: these are not
    /// enough.
    fn gather(&mut self, run: &[Piece]) -> Result<Option<(Joined, Vec<u8>)>, Trouble> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(None);
        };
        let (mut first, last) = (first.first, last.last);
        let mut walk = Walk::over(*self.reader, self.log, first, Pieces(run.to_vec()));
        let mut links: Vec<Vec<u8>> = Vec::new();
        while let Some(item) = walk.next(last)? {
            let stopped = match item {
                Item::Link { head, .. } if head.number < first => continue,
                Item::Link { head, link }
                    if head.kind == Kind::Frames && Head::may_be_joined(&link) =>
                {
                    links.push(link);
                    // Lists may say less than there is to read.
                    if self.is_too_large(&links) {
                        if is_enough(run, first, head.number) {
                            links.pop();
                            break;
                        }
                        // The first object cannot grow: go on behind it.
                        let next = end_of(run, first).min(head.number) + 1;
                        links.drain(..(next - first) as usize);
                        first = next;
                    }
                    continue;
                }
                Item::Link { head, .. } => head.number,
                Item::Bad { bad, number } => {
                    self.pass.fault(bad);
                    number
                }
            };
            if is_enough(run, first, stopped) {
                break;
            }
            links.clear();
            first = end_of(run, stopped) + 1;
        }
        // Whole objects only: the rest of one that was cut would stay.
        let end = first + links.len() as u64;
        let ends = run.iter().map(|piece| piece.last + 1);
        let count = ends
            .filter(|it| *it <= end)
            .max()
            .unwrap_or(0)
            .saturating_sub(first);
        links.truncate(count as usize);
        // To put again what is one object already is of no use.
        let is_more = is_enough(run, first, first + count);
        Ok(is_more.then(|| Joined::encode(&links, first)))
    }

    fn is_too_large(&self, links: &[Vec<u8>]) -> bool {
        let size: usize = links.iter().map(Vec::len).sum();
        size as u64 > self.levels.size_max
    }

    /// Remove objects whose links are in a joined one that was read back.
    fn remove(&mut self, parts: &[Piece]) -> Result<(), Trouble> {
        let names: Vec<String> = parts.iter().map(|part| part.name(self.log)).collect();
        for names in names.chunks(REMOVED_AT_ONCE) {
            self.reader.again(|store| store.remove(names))?;
            self.pass.removed += names.len() as u64;
        }
        Ok(())
    }
}

/// The last link of the object that has this one.
fn end_of(run: &[Piece], number: u64) -> u64 {
    let piece = run.iter().find(|piece| piece.has(number));
    piece.map_or(number, |piece| piece.last)
}

/// True if more than one of these objects lies between the links `first` and, without that, `end`.
fn is_enough(run: &[Piece], first: u64, end: u64) -> bool {
    let inside = run.iter().filter(|it| it.first >= first && it.last < end);
    inside.count() > 1
}

/// A run that may grow.
#[derive(Default)]
struct Growing {
    pieces: Run,
    links: u64,
    size: u64,
}

impl Growing {
    fn has_room(&self, piece: &Piece, links_max: u64, size_max: u64) -> bool {
        self.links + piece.links() <= links_max && self.size + piece.size() <= size_max
    }

    fn push(&mut self, piece: Piece) {
        self.links += piece.links();
        self.size += piece.size();
        self.pieces.push(piece);
    }

    /// It does not grow any more: it is to be joined, if it is more than one object.
    fn end(&mut self, runs: &mut Vec<Run>) {
        let pieces = std::mem::take(self).pieces;
        if pieces.len() > 1 {
            runs.push(pieces);
        }
    }
}

/// True if every link of `part`, whose bytes are `found`, is in the joined object.
fn is_in(log: LogId, whole: &[u8], joined: Joined, part: &Piece, found: &[u8]) -> bool {
    let Ok(links) = joined.parts(log, whole) else {
        return false;
    };
    let same = |number: u64, link: &[u8]| {
        let index = (number - joined.first) as usize;
        let own = links.get(index).and_then(|it| it.as_ref().ok());
        own.is_some_and(|own| link_of(whole, joined, own) == link)
    };
    let Some(of) = part.joined else {
        return same(part.first, found);
    };
    of.check(log, found).is_ok_and(|parts| {
        let mut parts = parts.iter();
        parts.all(|it| same(it.0.number, &link_of(found, of, it)))
    })
}
