//! Reading an archive: which links it has, what is wrong with them, and what can be restored.
//!
//! Nothing here decides what to do about a fault. A link is sound if its name, its number, its log,
//! its checksums and its reference to the link before agree; whoever walks the chain is told of
//! every one that is not.

use std::collections::BTreeSet;

use super::format::{
    BaseList, Fault, HEAD_SIZE, Head, Kind, LOGS, MARKER, begins_dir, chain_dir, log_name,
    number_in, numbered, parse_log_name, part_name,
};
use super::store::{Listed, Store, Trouble};
use crate::storage::format::LogId;
use crate::types::Position;

/// A link can have at most this many bytes.
const LINK_SIZE_MAX: u64 = HEAD_SIZE as u64 + super::format::BODY_SIZE_MAX;

/// At most so many links are looked at for the last one with bytes, which a writer that starts
/// compares with its log: writers that began and ended without any leave one each.
pub(super) const LOOK_BACK_MAX: u64 = 1000;

/// An object that is not as it was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Its name, below the archive's address.
    pub name: String,
    /// What is wrong with it.
    pub what: Fault,
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.what)
    }
}

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

/// True if the place has an archive, or had one of which nothing is left but its marker.
///
/// # Errors
/// The store did not answer.
pub fn is_archive(store: &dyn Store) -> Result<bool, Trouble> {
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
pub(super) fn check_begin(store: &dyn Store, log: LogId, began: u64) -> Result<(), Trouble> {
    match begin(store, log)? == began {
        true => Ok(()),
        false => Err(Trouble::passing(
            "an expiry has removed some of it meanwhile; begin again",
        )),
    }
}

/// A link, or what is in its place.
#[derive(Debug)]
pub(super) enum Item {
    Link { head: Head, body: Vec<u8> },
    Bad(Bad),
}

/// What the next link must agree with.
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
        if head.log != self.log {
            return Err(format!("it belongs to the log {}", log_name(head.log)));
        }
        if head.number != self.next {
            return Err(format!("it is a copy of link {}", head.number));
        }
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

/// Walks a chain in order.
pub(super) struct Walk<'a> {
    store: &'a dyn Store,
    dir: String,
    links: std::iter::Peekable<std::vec::IntoIter<Listed>>,
    /// Heads alone are read, and bodies are empty.
    heads_only: bool,
    pub(super) tip: Tip,
    /// Bytes of all links.
    pub(super) size: u64,
}

impl<'a> Walk<'a> {
    /// The links from the number `first` on, which the chain must have if it has later ones.
    pub(super) fn from(
        store: &'a dyn Store,
        log: LogId,
        first: u64,
        heads_only: bool,
    ) -> Result<Walk<'a>, Trouble> {
        let dir = chain_dir(log);
        let links = store.list(&dir, &numbered(&dir, first - 1))?;
        Ok(Walk {
            store,
            dir,
            size: links.iter().map(|link| link.size).sum(),
            links: links.into_iter().peekable(),
            heads_only,
            tip: Tip {
                log,
                next: first,
                previous: None,
                epoch: 0,
            },
        })
    }

    pub(super) fn next(&mut self) -> Result<Option<Item>, Trouble> {
        let Some(link) = self.links.peek() else {
            return Ok(None);
        };
        let Some(number) = number_in(&self.dir, &link.name) else {
            let name = link.name.clone();
            self.links.next();
            let what = "it is not named as a link is".to_owned();
            return Ok(Some(Item::Bad(Bad { name, what })));
        };
        if number > self.tip.next {
            let name = numbered(&self.dir, self.tip.next);
            let count = number - self.tip.next;
            let what = match count {
                1 => "it is missing".to_owned(),
                _ => format!("it is missing, and so are the {} after it", count - 1),
            };
            (self.tip.next, self.tip.previous) = (number, None);
            return Ok(Some(Item::Bad(Bad { name, what })));
        }
        let Listed { name, size } = link.clone();
        let read = self.read(&name, size)?;
        self.links.next();
        let checked = read.and_then(|bytes| self.check(size, &bytes));
        Ok(Some(match checked {
            Ok((head, crc, body)) => {
                self.tip.pass(&head, crc);
                Item::Link { head, body }
            }
            Err(what) => {
                (self.tip.next, self.tip.previous) = (number + 1, None);
                Item::Bad(Bad { name, what })
            }
        }))
    }

    fn read(&self, name: &str, size: u64) -> Result<Result<Vec<u8>, Fault>, Trouble> {
        if size > LINK_SIZE_MAX {
            return Ok(Err(format!(
                "it has {size} bytes, more than a link can have"
            )));
        }
        let bytes = match self.heads_only {
            true => self.store.get_range(name, 0..HEAD_SIZE as u64)?,
            false => self.store.get(name)?,
        };
        Ok(bytes.ok_or_else(|| "it is in the list and cannot be read".to_owned()))
    }

    fn check(&self, size: u64, bytes: &[u8]) -> Result<(Head, u32, Vec<u8>), Fault> {
        let (head, crc, body) = match self.heads_only {
            true => {
                let (head, crc, body_size) = Head::decode_alone(bytes)?;
                let expected = HEAD_SIZE as u64 + body_size;
                if size != expected {
                    return Err(format!("it has {size} bytes instead of {expected}"));
                }
                (head, crc, Vec::new())
            }
            false => {
                let (head, crc, body) = Head::decode(bytes)?;
                (head, crc, body.to_vec())
            }
        };
        self.tip.check(&head)?;
        Ok((head, crc, body))
    }
}

/// A stretch of history that can be restored, to any of its moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The base that it begins with.
    pub base: u64,
    /// Where that ends.
    pub from: Position,
    /// When that was durable, ns since 1970.
    pub from_wall_ns: u64,
    /// Where the last link ends.
    pub to: Position,
    /// When that was durable, ns since 1970.
    pub to_wall_ns: u64,
    /// Bases in it.
    pub bases: u64,
}

/// What an archive of one log holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The log.
    pub log: LogId,
    /// Links that are sound.
    pub links: u64,
    /// Bytes of all links, without the parts of bases.
    pub bytes: u64,
    /// The epoch of the last link.
    pub epoch: u32,
    /// What can be restored, in the order in which it was archived.
    pub spans: Vec<Span>,
    /// Gaps that the writer has named: where they begin.
    pub gaps: Vec<Position>,
    /// Objects that are not as they were put.
    pub bad: Vec<Bad>,
}

/// How much of an archive is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The heads of links, and the lists of bases.
    Heads,
    /// Every byte of every link and of every part of a base.
    Everything,
}

/// Read the archive of a log, and say what is in it.
///
/// # Errors
/// The store did not answer.
pub fn survey(
    store: &dyn Store,
    log: LogId,
    depth: Depth,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Survey, Trouble> {
    let begin = begin(store, log)?;
    let mut walk = Walk::from(store, log, begin, depth == Depth::Heads)?;
    let mut survey = Survey {
        log,
        links: 0,
        bytes: walk.size,
        epoch: 0,
        spans: Vec::new(),
        gaps: Vec::new(),
        bad: Vec::new(),
    };
    let mut reading = Reading::default();
    let (mut done, total) = (0, walk.size);
    while let Some(item) = walk.next()? {
        match item {
            Item::Bad(bad) => {
                reading.broken_at = walk.tip.next;
                reading.span = None;
                survey.bad.push(bad);
            }
            Item::Link { head, body } => {
                done += (HEAD_SIZE + body.len()) as u64;
                progress(done, total);
                survey.links += 1;
                survey.epoch = head.epoch;
                reading.link(store, &mut survey, &head, body, depth)?;
            }
        }
    }
    if !survey.bad.is_empty() {
        check_begin(store, log, begin)?;
    }
    Ok(survey)
}

#[derive(Default)]
struct Reading {
    /// The index of the span that the next link may lengthen.
    span: Option<usize>,
    /// The span that ended with the last gap, if no base came since: a server may go on there.
    before_gap: Option<usize>,
    /// No link before this number is of use to a later base.
    broken_at: u64,
}

impl Reading {
    fn link(
        &mut self,
        store: &dyn Store,
        survey: &mut Survey,
        head: &Head,
        body: Vec<u8>,
        depth: Depth,
    ) -> Result<(), Trouble> {
        let name = numbered(&chain_dir(head.log), head.number);
        match head.kind {
            Kind::Claim { goes_on: true } => {}
            Kind::Claim { goes_on: false } | Kind::Gap => {
                if head.kind == Kind::Gap {
                    survey.gaps.push(head.from);
                }
                self.before_gap = self.span.take().or(self.before_gap);
                self.broken_at = head.number + 1;
            }
            Kind::Takeover => self.take_over(survey, head, name),
            Kind::Frames => {
                let Some(span) = self.span.map(|index| &mut survey.spans[index]) else {
                    return Ok(());
                };
                if follows(span.to, head.from) {
                    span.to = head.to;
                    span.to_wall_ns = head.wall_ns;
                } else if head.to > span.to {
                    let what = format!(
                        "it begins at {}, the chain stands at {}",
                        head.from, span.to
                    );
                    survey.bad.push(Bad { name, what });
                    self.span = None;
                }
            }
            Kind::Base => {
                let body = match depth {
                    Depth::Everything => body,
                    Depth::Heads => {
                        let bytes = store.get(&name)?.unwrap_or_default();
                        bytes.get(HEAD_SIZE..).unwrap_or_default().to_vec()
                    }
                };
                let faults = match BaseList::decode(&body) {
                    Err(what) => vec![Bad { name, what }],
                    Ok(list) => {
                        let bad = match depth {
                            Depth::Heads => Vec::new(),
                            Depth::Everything => check_parts(store, head.log, &list, &mut |_| ())?,
                        };
                        if bad.is_empty() {
                            self.base(survey, head, &list);
                        }
                        bad
                    }
                };
                survey.bad.extend(faults);
            }
        }
        Ok(())
    }

    /// The history goes on in another log. It stands where the last whole frame ends, which may be
    /// before the last byte.
    fn take_over(&mut self, survey: &mut Survey, head: &Head, name: String) {
        let Some(index) = self.span.or(self.before_gap.take()) else {
            return;
        };
        let span = &mut survey.spans[index];
        if head.from > span.to {
            let what = format!(
                "it goes on at {}, the chain stands at {}",
                head.from, span.to
            );
            survey.bad.push(Bad { name, what });
            self.span = None;
            return;
        }
        span.to = head.from;
        self.span = Some(index);
    }

    /// A base that is sound.
    fn base(&mut self, survey: &mut Survey, head: &Head, list: &BaseList) {
        self.before_gap = None;
        if let Some(index) = self.span {
            survey.spans[index].bases += 1;
            return;
        }
        // Links that it needs may be among those that are lost.
        let is_followed = list.first_link >= self.broken_at;
        survey.spans.push(Span {
            base: head.number,
            from: list.end,
            from_wall_ns: head.wall_ns,
            to: list.end.max(head.from),
            to_wall_ns: head.wall_ns,
            bases: 1,
        });
        self.span = is_followed.then(|| survey.spans.len() - 1);
        if let (false, Some(span)) = (is_followed, survey.spans.last_mut()) {
            span.to = list.end;
        }
    }
}

/// True if bytes that begin at `from` follow those that end at `to`.
pub(super) fn follows(to: Position, from: Position) -> bool {
    from == to || from.offset() == 0 && from.segment() > to.segment()
}

/// The parts of a base that are not as they were put. `read` is told the bytes of each.
pub(super) fn check_parts(
    store: &dyn Store,
    log: LogId,
    list: &BaseList,
    read: &mut dyn FnMut(u64),
) -> Result<Vec<Bad>, Trouble> {
    let mut bad = Vec::new();
    for file in &list.files {
        for (offset, part) in file.parts() {
            let name = part_name(log, &file.name, offset, part);
            if let Err(what) = read_part(store, &name, part)? {
                bad.push(Bad { name, what });
            }
            read(part.size.into());
        }
    }
    Ok(bad)
}

/// The bytes of a part, checked.
pub(super) fn read_part(
    store: &dyn Store,
    name: &str,
    part: super::format::Part,
) -> Result<Result<Vec<u8>, Fault>, Trouble> {
    // One byte more than it should have.
    let range = 0..u64::from(part.size) + 1;
    let Some(bytes) = store.get_range(name, range)? else {
        return Ok(Err("it is missing".to_owned()));
    };
    let crc = crc32fast::hash(&bytes);
    Ok(match (bytes.len() as u64, crc) {
        (size, _) if size > u64::from(part.size) => Err("it has too many bytes".to_owned()),
        (size, _) if size < u64::from(part.size) => {
            Err(format!("it has {size} bytes instead of {}", part.size))
        }
        (_, crc) if crc != part.crc => Err(format!(
            "its checksum is {crc:08x} instead of {:08x}",
            part.crc
        )),
        _ => Ok(bytes),
    })
}
