//! Following a chain: which link is next, and where to begin again after a restart.
//!
//! The links arrive by their numbers, one after another, while a writer puts them. A link that is
//! not there yet cannot be told from a lost one, so a reader that finds nothing for a while asks
//! [`ChainReader::later`].
//!
//! What was joined with others is not looked for at every call: a reader at the end of a chain finds
//! each link as it was put. It is looked for at first, behind such links, and after a silence.
//!
//! A reader that finds one link after another has fallen behind: it lists those that are there, and
//! reads several of them at a time ([`CatchUp`]). What that brings is only the bytes that a call for
//! the next link would have brought; what it does not bring is called for.

use std::collections::{BTreeMap, VecDeque};

use super::ahead::BYTES_AHEAD;
use super::chain::Tip;
use super::claims::{Claim, Claims, put_claim};
use super::format::{
    Bad, Fault, Head, Kind, LINK_SIZE_MAX, bases_dir, chain_dir, log_name, number_in, numbered,
    parse_log_name,
};
use super::frame_reader::FrameReader;
use super::links::{Listing, is_joined, links_from};
use super::reader::{CONNECTIONS, READINGS};
use super::store::{Store, Trouble, Want};
use bsd::clock::utc;
use bsd::storage::Life;
use bsd::storage::format::{LogId, Record};
use bsd::types::{Position, SegmentId};

const FIRST_LINE: &str = "bsd-standby 1";
/// After this many links in a row, each found at once, more of them are looked for.
const BEHIND: u32 = 8;
/// At most this many links are remembered from one list.
const LISTED_MAX: usize = 20_000;

/// Follows the chain of one log.
#[derive(Debug)]
pub(super) struct ChainReader {
    tip: Tip,
    frame_reader: FrameReader,
    /// The link that has the first byte after `frame_reader.at`, or one before it.
    resume: Tip,
    /// Where the bytes of the last link began, and what its place is.
    last: Option<(Position, Tip)>,
    /// When the last link was durable, by the clock of its writer, ns since 1970.
    wall_ns: u64,
    /// The claim of the server that has taken over and has archived nothing since; which server that
    /// is, and the time.
    newcomer: Option<(Claim, String)>,
    /// How often, one time after another, the next link was not as it has to be.
    doubts: u32,
    catch_up: CatchUp,
    /// It was resumed from a link long before those that it has, and comes by them again.
    comes_again: bool,
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Came {
    /// No link follows yet.
    Nothing,
    /// A link; all its records were taken.
    Link,
    /// The next links cannot be applied to this copy: the reason.
    Over(String),
}

/// What a reader that finds no next link finds behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Later {
    /// Nothing, or the next one has come.
    Nothing,
    /// The next one, in a joined object: the next step reads it.
    Joined,
    /// Later links: the next one is lost.
    Skipped,
}

/// Why a step was not done. It can be repeated.
#[derive(Debug)]
pub(super) enum Stop<E> {
    Store(Trouble),
    /// A record was refused.
    Refused(E),
}

impl<E> From<Trouble> for Stop<E> {
    fn from(trouble: Trouble) -> Stop<E> {
        Stop::Store(trouble)
    }
}

impl ChainReader {
    /// Read on after everything that `frame_reader` has taken. The first of its bytes that it has
    /// not taken are not before the link `first`.
    pub(super) fn after(
        frame_reader: FrameReader,
        tip: Tip,
        first: u64,
        wall_ns: u64,
    ) -> ChainReader {
        let resume = Tip {
            next: first,
            previous: None,
            epoch: 0,
            ..tip
        };
        ChainReader {
            tip,
            frame_reader,
            resume,
            last: None,
            wall_ns,
            newcomer: None,
            doubts: 0,
            catch_up: CatchUp::default(),
            comes_again: false,
        }
    }

    /// The answer cannot be used and may be wrong, so it is read again some times.
    fn doubt(&mut self, bad: &Bad) -> Result<(), Trouble> {
        self.doubts += 1;
        self.catch_up = CatchUp::default();
        match self.doubts < READINGS {
            true => Err(Trouble::passing(format!("{bad}; it is read again"))),
            false => Ok(()),
        }
    }

    /// Another server than that of `own` has the archive, and its work is not there yet: its
    /// description.
    pub(super) fn newcomer(&self, own: &Claims) -> Option<&str> {
        let (claim, who) = self.newcomer.as_ref()?;
        (!own.has(claim)).then_some(who)
    }

    /// Up to where the records were taken.
    pub(super) fn at(&self) -> Position {
        self.frame_reader.at
    }

    /// When the last link was durable, by the clock of its writer, ns since 1970.
    pub(super) fn wall_ns(&self) -> u64 {
        self.wall_ns
    }

    pub(super) fn log(&self) -> LogId {
        self.tip.log
    }

    /// The number of the last link, and the CRC of its head; `None`: that is not known.
    pub(super) fn last_link(&self) -> Option<(u64, u32)> {
        Some((self.tip.next - 1, self.tip.previous?))
    }

    /// Where to begin again, for [`ChainReader::resume`]. `own` is where the log of the copy ends, if
    /// more is applied after this; `None` if it is tended.
    pub(super) fn marker(&self, own: Option<Position>) -> Vec<u8> {
        let resume = match self.frame_reader.is_drained() {
            true => self.tip,
            false => self.resume,
        };
        let (previous, is_sealed) = self.frame_reader.frame_before();
        let number = |it: Option<u32>| it.map_or("-".to_owned(), |it| format!("{it:08x}"));
        let position = |it: Position| format!("{} {}", it.segment(), it.offset());
        let text = [
            FIRST_LINE.to_owned(),
            format!("log {}", log_name(self.tip.log)),
            format!(
                "link {} {} {}",
                resume.next,
                resume.epoch,
                number(resume.previous)
            ),
            format!(
                "at {} {}",
                position(self.frame_reader.at),
                self.frame_reader.records()
            ),
            format!("after {} {}", number(previous), u8::from(is_sealed)),
            format!("wall {}", self.wall_ns),
            own.map_or("tended".to_owned(), |own| format!("own {}", position(own))),
        ];
        let text = text.join("\n") + "\n";
        let crc = crc32fast::hash(text.as_bytes());
        format!("{text}crc {crc:08x}\n").into_bytes()
    }

    /// Go on where a marker was written; and where the log of the copy ended then, if more may have
    /// been applied since.
    ///
    /// # Errors
    /// It is damaged.
    pub(super) fn resume(marker: &[u8]) -> Result<(ChainReader, Option<Position>), Fault> {
        parse(marker).ok_or_else(|| "the file that says how far it goes is damaged".to_owned())
    }

    /// Take the records that are there, or get the next link first.
    ///
    /// # Errors
    /// See [`Stop`].
    pub(super) fn step<E>(
        &mut self,
        store: &dyn Store,
        take: &mut dyn FnMut(&Record<'_>) -> Result<(), E>,
    ) -> Result<Came, Stop<E>> {
        // What a refused record has left.
        if let Some(over) = self.drain(take)? {
            return Ok(over);
        }
        let name = self.next_name();
        let Some(bytes) = self.catch_up.next(store, &self.tip)? else {
            return Ok(Came::Nothing);
        };
        let over = |what| {
            Ok(Came::Over(
                Bad {
                    name: name.clone(),
                    what,
                }
                .to_string(),
            ))
        };
        let decoded = Head::decode(&bytes).and_then(|found| {
            self.tip.check(&found.0)?;
            Ok(found)
        });
        let (head, crc, body) = match decoded {
            Ok(found) => found,
            Err(what) => {
                let bad = Bad { name, what };
                self.doubt(&bad)?;
                return Ok(Came::Over(bad.to_string()));
            }
        };
        match head.kind {
            Kind::Claim { goes_on: true } | Kind::Base => {}
            Kind::Takeover if self.has_passed(&head) => {}
            Kind::Takeover => {
                if let Err(what) = self.frame_reader.take_over(head.from) {
                    return over(what);
                }
                let claim = Claim {
                    number: head.number,
                    epoch: head.epoch,
                    crc,
                };
                self.newcomer = Some((claim, who(&head, body)));
            }
            Kind::Gap | Kind::Claim { goes_on: false } => {
                if let Some(tip) = self.healed(store)? {
                    // The takeover is next.
                    self.tip = tip;
                    self.doubts = 0;
                    return Ok(Came::Link);
                }
                let at = self.frame_reader.at;
                return over(match head.kind {
                    Kind::Gap => format!("after {at} there is a gap"),
                    _ => format!("another history has the archive: {}", who(&head, body)),
                });
            }
            Kind::Frames => {
                self.newcomer = None;
                let is_of_last = self
                    .last
                    .is_some_and(|(from, _)| from <= self.frame_reader.at);
                if self.frame_reader.is_drained() {
                    self.resume = self.tip;
                } else if let (true, Some((_, tip))) = (is_of_last, self.last) {
                    self.resume = tip;
                }
                self.comes_again &= head.to <= self.frame_reader.at;
                if let Err(what) = self.frame_reader.push(head.from, body) {
                    return over(what);
                }
                self.last = Some((head.from, self.tip));
            }
        }
        self.tip.pass(&head, crc);
        self.doubts = 0;
        // A takeover has no bytes: what is here was durable before it.
        if head.kind != Kind::Takeover {
            self.wall_ns = self.wall_ns.max(head.wall_ns);
        }
        Ok(self.drain(take)?.unwrap_or(Came::Link))
    }

    /// This has bytes from after the takeover, and comes by it again because it was resumed from a link
    /// before it. A takeover begins a segment with a greater number than any with bytes before. That of
    /// a server that was lost before it had put any may be greater than those of the server after it.
    fn has_passed(&self, takeover: &Head) -> bool {
        let at = self.frame_reader.at;
        takeover.to.segment() <= at.segment() || (self.comes_again && takeover.from < at)
    }

    /// A server that was restored after a gap may go on where this stands: before which link, if it
    /// does. `None` also where no gap is next.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) fn healed(&mut self, store: &dyn Store) -> Result<Option<Tip>, Trouble> {
        let mut tip = self.tip;
        loop {
            let name = numbered(&chain_dir(tip.log), tip.next);
            let Some(bytes) = store.get(&name)? else {
                return Ok(None);
            };
            let (head, crc) = match Head::decode(&bytes) {
                Ok((head, crc, _)) => (head, crc),
                Err(what) => {
                    self.doubt(&Bad { name, what })?;
                    return Ok(None);
                }
            };
            let is_gap = matches!(head.kind, Kind::Gap | Kind::Claim { .. });
            let goes_on = head.kind == Kind::Takeover
                && (head.from == self.frame_reader.at || self.has_passed(&head));
            match tip.check(&head) {
                Ok(()) if goes_on && tip.next > self.tip.next => return Ok(Some(tip)),
                Ok(()) if is_gap => tip.pass(&head, crc),
                _ => return Ok(None),
            }
        }
    }

    fn drain<E>(
        &mut self,
        take: &mut dyn FnMut(&Record<'_>) -> Result<(), E>,
    ) -> Result<Option<Came>, Stop<E>> {
        loop {
            match self.frame_reader.step(None, take).map_err(Stop::Refused)? {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(what) => return Ok(Some(Came::Over(what))),
            }
        }
    }

    fn next_name(&self) -> String {
        numbered(&chain_dir(self.tip.log), self.tip.next)
    }

    /// Whether there are links after the next one, which was not found.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) fn later(&mut self, store: &dyn Store) -> Result<Later, Trouble> {
        let name = self.next_name();
        let later = store.list(&chain_dir(self.tip.log), &name)?;
        if is_joined(store, self.tip.log, self.tip.next)? {
            self.catch_up.has_looked = false;
            return Ok(Later::Joined);
        }
        if later.is_empty() || store.get(&name)?.is_some() {
            return Ok(Later::Nothing);
        }
        let what = "it is missing, and later ones are there".to_owned();
        self.doubt(&Bad { name, what })?;
        Ok(Later::Skipped)
    }

    /// True if there is a base among the links that have not been applied.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) fn has_later_base(&self, store: &dyn Store) -> Result<bool, Trouble> {
        let dir = bases_dir(self.tip.log);
        let marks = store.list(&dir, "")?;
        let numbers = marks
            .iter()
            .rev()
            .filter_map(|it| number_in(&dir, &it.name));
        for number in numbers.take_while(|number| *number >= self.tip.next) {
            // A writer that was interrupted leaves the mark alone.
            let link = numbered(&chain_dir(self.tip.log), number);
            if store.get_range(&link, 0..1)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The claim that would be the next link, and its bytes. Once it is put, no earlier writer can put
    /// any. The history goes on with this segment of the copy's log; `None`: with a base.
    pub(super) fn claim(&self, node: &str, life: Option<Life>, wall_ns: u64) -> (Claim, Vec<u8>) {
        let (kind, from, to) = match life {
            Some(life) => (
                Kind::Takeover,
                self.frame_reader.at,
                Position::new(life.segment, 0),
            ),
            None => {
                let kind = Kind::Claim { goes_on: false };
                (kind, Position::ZERO, Position::ZERO)
            }
        };
        let head = Head {
            kind,
            epoch: self.tip.epoch.saturating_add(1),
            number: self.tip.next,
            log: self.tip.log,
            from,
            to,
            seen_wall_ns: wall_ns,
            wall_ns,
            previous: self.tip.previous.unwrap_or_default(),
            segment_crc: life.map_or(0, |life| life.crc),
        };
        let (bytes, crc) = head.encode(node.as_bytes());
        let claim = Claim {
            number: head.number,
            epoch: head.epoch,
            crc,
        };
        (claim, bytes)
    }

    /// Put a claim. `false`: another link was there first.
    ///
    /// # Errors
    /// The store did not answer; the same claim can be put again.
    pub(super) fn put_claim(&self, store: &dyn Store, bytes: &[u8]) -> Result<bool, Trouble> {
        put_claim(store, self.tip.log, self.tip.next, bytes)
    }

    /// Pass over all links that are there, whatever they are: they are given up. Returns true if none
    /// of them has a change: the chain stands where this does.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) fn give_up(&mut self, store: &dyn Store) -> Result<bool, Trouble> {
        // Not in the middle of a frame, and not before one that is damaged.
        let waits = self.frame_reader.step(None, &mut |_| Err(()));
        let is_whole = self.frame_reader.records() == 0 && waits == Ok(Ok(false));
        let mut tip = self.tip;
        loop {
            let name = numbered(&chain_dir(tip.log), tip.next);
            let Some(bytes) = store.get(&name)? else {
                break;
            };
            match Head::decode(&bytes) {
                Ok((head, crc, _))
                    if matches!(head.kind, Kind::Gap | Kind::Claim { .. })
                        && tip.check(&head).is_ok() =>
                {
                    tip.pass(&head, crc);
                }
                _ => break,
            }
        }
        let (log, next) = (self.tip.log, self.tip.next);
        let last = Listing::get(store, log, next - 1)?.pieces(next).last();
        let Some(last) = last.filter(|last| *last >= tip.next) else {
            self.tip = tip;
            return Ok(is_whole);
        };
        let name = numbered(&chain_dir(log), last);
        let mut bytes = store.get(&name)?;
        if bytes.is_none() {
            let joined = links_from(store, log, last)?;
            bytes = joined.and_then(|links| links.into_iter().next());
        }
        let bytes = bytes.unwrap_or_default();
        match Head::decode(&bytes) {
            Ok((head, crc, _)) => self.tip.pass(&head, crc),
            Err(what) => {
                self.doubt(&Bad { name, what })?;
                (self.tip.next, self.tip.previous) = (last + 1, None);
            }
        }
        self.doubts = 0;
        Ok(false)
    }
}

/// Reads several links at a time for who has fallen behind.
#[derive(Debug, Default)]
struct CatchUp {
    /// Links that were found one after another.
    in_a_row: u32,
    /// Links that are there and were not read: their numbers and sizes.
    listed: VecDeque<(u64, u64)>,
    /// Links that were.
    read: VecDeque<(u64, Vec<u8>)>,
    /// The next link was looked for among joined ones, and was not there.
    has_looked: bool,
}

impl CatchUp {
    /// The next link; `None`: the store has none.
    ///
    /// # Errors
    /// The store did not answer.
    fn next(&mut self, store: &dyn Store, tip: &Tip) -> Result<Option<Vec<u8>>, Trouble> {
        if let Some(bytes) = self.opened(store, tip)? {
            return Ok(Some(bytes));
        }
        if self.in_a_row >= BEHIND {
            self.read_some(store, tip)?;
            if let Some(bytes) = self.opened(store, tip)? {
                return Ok(Some(bytes));
            }
        }
        let found = store.get(&numbered(&chain_dir(tip.log), tip.next))?;
        self.in_a_row = match found {
            Some(_) => self.in_a_row + 1,
            None => 0,
        };
        if found.is_none() && !self.has_looked {
            let joined = links_from(store, tip.log, tip.next)?;
            self.has_looked = joined.is_none();
            self.read = (tip.next..).zip(joined.unwrap_or_default()).collect();
            return Ok(self.take(tip.next));
        }
        Ok(found)
    }

    /// The next link of those that were read. One that cannot be opened is called for.
    fn opened(&mut self, store: &dyn Store, tip: &Tip) -> Result<Option<Vec<u8>>, Trouble> {
        let Some(bytes) = self.take(tip.next) else {
            return Ok(None);
        };
        let want = Want::whole(&numbered(&chain_dir(tip.log), tip.next));
        Ok(store.opened(&want, bytes)?.ok())
    }

    /// This link, if it comes next of those that were read.
    fn take(&mut self, number: u64) -> Option<Vec<u8>> {
        match self.read.pop_front() {
            Some((found, bytes)) if found == number => return Some(bytes),
            // The chain was left, and entered elsewhere.
            Some(_) => self.read.clear(),
            None => {}
        }
        None
    }

    /// Read the links that come next, and keep those before the first that is not there.
    fn read_some(&mut self, store: &dyn Store, tip: &Tip) -> Result<(), Trouble> {
        let dir = chain_dir(tip.log);
        while self.listed.front().is_some_and(|it| it.0 < tip.next) {
            self.listed.pop_front();
        }
        if self.listed.front().is_none_or(|it| it.0 != tip.next) {
            let listed = store.list(&dir, &numbered(&dir, tip.next - 1))?;
            let listed = listed
                .iter()
                .filter_map(|it| Some((number_in(&dir, &it.name)?, it.size)));
            self.listed = listed.take(LISTED_MAX).collect();
        }
        let count = at_a_time(tip.next, &self.listed);
        if count < 2 {
            // It is not behind, or the next one is called for.
            self.in_a_row = 0;
            return Ok(());
        }
        let mut flight = store.flight(CONNECTIONS);
        for (number, _) in self.listed.drain(..count) {
            flight.ask(number, Want::whole(&numbered(&dir, number)));
        }
        let mut answers: BTreeMap<_, _> = std::iter::from_fn(|| flight.answer(true)).collect();
        while let Some(Ok(Some(bytes))) = answers.remove(&(tip.next + self.read.len() as u64)) {
            self.read
                .push_back((tip.next + self.read.len() as u64, bytes));
        }
        Ok(())
    }
}

/// How many of these links, by number and size, are read at a time: as many as memory is meant for,
/// up to the first that is not listed, or is larger than a link can be.
fn at_a_time(next: u64, listed: &VecDeque<(u64, u64)>) -> usize {
    let mut bytes = 0;
    let links = (next..).zip(listed).take(CONNECTIONS);
    let links = links.take_while(|(expected, (number, size))| {
        bytes += size.min(&(LINK_SIZE_MAX + 1));
        let is_first = *expected == next;
        expected == number && *size <= LINK_SIZE_MAX && (is_first || bytes <= BYTES_AHEAD)
    });
    links.count()
}

/// Writer of a claim, and its time.
fn who(head: &Head, body: &[u8]) -> String {
    let node = String::from_utf8_lossy(body).escape_debug().to_string();
    format!(
        "{node} took over at {} (epoch {})",
        utc(head.wall_ns),
        head.epoch
    )
}

fn parse(marker: &[u8]) -> Option<(ChainReader, Option<Position>)> {
    let text = std::str::from_utf8(marker).ok()?;
    let (checked, crc) = text.strip_suffix('\n')?.rsplit_once("crc ")?;
    if crc != format!("{:08x}", crc32fast::hash(checked.as_bytes())) {
        return None;
    }
    let mut lines = checked.lines().map(|line| line.split(' '));
    let mut fields = |name: &str| {
        let mut line = lines.next()?;
        (line.next()? == name).then_some(line)
    };
    let number = |text: &str| match text {
        "-" => Some(None),
        hex => u32::from_str_radix(hex, 16).ok().map(Some),
    };
    fields("bsd-standby")?
        .next()
        .filter(|version| *version == "1")?;
    let log = parse_log_name(fields("log")?.next()?)?;
    let mut link = fields("link")?;
    let resume = Tip {
        log,
        next: link.next()?.parse().ok()?,
        epoch: link.next()?.parse().ok()?,
        previous: number(link.next()?)?,
    };
    let mut line = fields("at")?;
    let at = position(&mut line)?;
    let records = line.next()?.parse().ok()?;
    let mut line = fields("after")?;
    let before = (number(line.next()?)?, line.next()? == "1");
    let wall_ns = fields("wall")?.next()?.parse().ok()?;
    let mut line = lines.next()?;
    let own = match line.next()? {
        "own" => Some(position(&mut line)?),
        "tended" => None,
        _ => return None,
    };
    let chain_reader = ChainReader {
        tip: resume,
        frame_reader: FrameReader::resume(log, at, records, before),
        resume,
        last: None,
        wall_ns,
        newcomer: None,
        doubts: 0,
        catch_up: CatchUp::default(),
        comes_again: resume.previous.is_none(),
    };
    Some((chain_reader, own))
}

fn position<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<Position> {
    let segment = SegmentId(fields.next()?.parse().ok()?);
    Some(Position::new(segment, fields.next()?.parse().ok()?))
}
