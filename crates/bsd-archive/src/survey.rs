//! Surveys an archive: the moments that can be restored, and those that cannot.
//!
//! A short look asks for lists alone, and reads the objects that say something about many: claims,
//! bases, and the links beside those and beside what is missing. The other way reads every byte. Both
//! show what they have seen to the same `Course`. What stays before the link with which the chain
//! begins, `apart` adds.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::ahead::ReadAhead;
use super::apart::{Found, Marks, State};
use super::chain::{Bad, Item, Walk, begin, check_begin, check_parts};
use super::course::{Run, Stop};
use super::format::{
    BaseList, BaseName, Fault, HEAD_SIZE, Head, Kind, bases_dir, chain_dir, claims_dir, number_in,
    numbered, part_name, parts_dir,
};
use super::labels::names;
use super::links::Pieces;
use super::reader::Reader;
use super::seal::may_hold;
use super::store::{Trouble, Want};
use bsd::storage::format::LogId;
use bsd::types::Position;

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
    /// The last link that can be asked for.
    pub link: u64,
    /// Bases in it.
    pub bases: u64,
}

/// A part of the history that cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// After this position …
    pub after: Position,
    /// … up to this one, where a later base ends; `None`: to the end.
    pub until: Option<Position>,
    /// Why.
    pub why: Why,
}

/// Why something cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The writer says that it could not archive it.
    Gap,
    /// A server with another history has begun, and has put no base yet.
    History,
    /// An object that is needed is not as it was put.
    Bad(Bad),
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::Gap => f.write_str("the server could not archive it"),
            Why::History => f.write_str("a server with another history has begun"),
            Why::Bad(bad) => bad.fmt(f),
        }
    }
}

/// Survey of the archive of one log.
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
    /// States that stay before the spans: each can be restored, and nothing before or after it.
    pub apart: Vec<State>,
    /// Spans that can be restored, in the order in which they were archived.
    pub spans: Vec<Span>,
    /// The names of bases, and their numbers.
    pub names: Vec<(BaseName, u64)>,
    /// The numbers of the bases that are pinned.
    pub pins: Vec<u64>,
    /// The gaps between them.
    pub lost: Vec<Lost>,
    /// Gaps that the writer has named: where they begin.
    pub gaps: Vec<Position>,
    /// Objects that are not as they were put.
    pub bad: Vec<Bad>,
    /// Where a restore of the end of the archive ends; `None`: it is refused.
    pub end: Option<Position>,
}

/// How much of an archive is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Lists, and the objects that say something about many.
    Lists,
    /// Every byte of every link and of every part of a base.
    Everything,
}

/// Read the archive of a log, and say what is in it.
///
/// # Errors
/// The store did not answer.
pub fn survey(
    reader: &Reader<'_>,
    log: LogId,
    depth: Depth,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Survey, Trouble> {
    let begin = reader.again(|store| begin(store, log))?;
    let mut course = Course::new(log);
    match depth {
        Depth::Lists => look(reader, log, begin, &mut course)?,
        Depth::Everything => read(reader, log, begin, &mut course, progress)?,
    }
    let mut survey = course.finish();
    add_apart(reader, log, begin, depth, &mut survey)?;
    if !survey.bad.is_empty() {
        check_begin(reader, log, begin)?;
    }
    Ok(survey)
}

fn read(
    reader: &Reader<'_>,
    log: LogId,
    begin: u64,
    course: &mut Course,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Trouble> {
    let mut walk = Walk::from(*reader, log, begin)?;
    let total = walk.size;
    course.survey.bytes = total;
    let mut sound = HashSet::new();
    let mut next = begin;
    while let Some(item) = walk.next(u64::MAX)? {
        let (head, link) = match item {
            Item::Bad { number, bad } => {
                course.miss(next, number, bad);
                next = number + 1;
                continue;
            }
            Item::Link { head, link } => (head, link),
        };
        next = head.number + 1;
        progress(walk.done, total);
        course.take(head.number, Event::Link(head));
        if head.kind != Kind::Base {
            continue;
        }
        match BaseList::decode(&link[HEAD_SIZE..]) {
            Err(what) => course.bad(numbered(&chain_dir(log), head.number), what),
            Ok(list) => {
                let bad = check_parts(reader, log, &list, &mut sound, &mut |_| ())?;
                if bad.is_empty() {
                    course.base(&head, &list);
                }
                course.survey.bad.extend(bad);
            }
        }
    }
    course.survey.bad.extend(walk.strangers);
    Ok(())
}

/// The lists of a log.
struct Lists {
    pieces: Pieces,
    claims: BTreeSet<u64>,
    bases: BTreeSet<u64>,
    parts: BTreeMap<String, u64>,
    strangers: Vec<Bad>,
}

impl Lists {
    fn get(reader: &Reader<'_>, log: LogId, begin: u64) -> Result<Lists, Trouble> {
        let marks = |dir: String| -> Result<BTreeSet<u64>, Trouble> {
            let listed = reader.list(&dir, "")?;
            let numbers = listed.iter().filter_map(|it| number_in(&dir, &it.name));
            Ok(numbers.collect())
        };
        let (claims, bases) = (marks(claims_dir(log))?, marks(bases_dir(log))?);
        let listing = reader.listing(log, begin - 1)?;
        // Last: the parts of every base that is listed are there.
        let parts = reader.list(&parts_dir(log), "")?;
        Ok(Lists {
            pieces: listing.pieces(begin),
            claims,
            bases,
            parts: parts.into_iter().map(|it| (it.name, it.size)).collect(),
            strangers: listing.strangers,
        })
    }

    /// The links that have to be read, to take the others for granted.
    fn telling(&self, begin: u64) -> BTreeSet<u64> {
        let mut telling = BTreeSet::new();
        let mut before = begin - 1;
        for piece in &self.pieces.0 {
            // Nothing but a gap has no content. What a claim or a gap ends, the link before it tells.
            let claims = self.claims.range(piece.first..=piece.last);
            let gap = piece.is_empty().then_some(piece.first);
            let hole = (before + 1 != piece.first).then_some(piece.first);
            let ends = claims.copied().chain(gap);
            telling.extend(ends.flat_map(|number| [number - 1, number]));
            telling.extend(hole.into_iter().flat_map(|number| [before, number]));
            telling.extend(self.bases.range(piece.first..=piece.last));
            before = piece.last;
        }
        telling.insert(before);
        telling.retain(|number| self.pieces.find(*number).is_some());
        telling
    }
}

/// The parts of a base that are not listed as they have to be, of `listed` names and sizes.
pub(super) fn bad_parts(listed: &BTreeMap<String, u64>, log: LogId, list: &BaseList) -> Vec<Bad> {
    let files = list.files.iter();
    let parts = files.flat_map(|file| {
        let parts = file.parts();
        parts.map(|(offset, part)| (part_name(log, &file.name, offset, part), part))
    });
    let bad = parts.filter_map(|(name, part)| {
        let what = match listed.get(&name) {
            None => "it is missing".to_owned(),
            Some(size) if may_hold(*size, part.size.into()) => return None,
            Some(size) => format!("it has {size} bytes instead of {}", part.size),
        };
        Some(Bad { name, what })
    });
    bad.collect()
}

fn look(reader: &Reader<'_>, log: LogId, begin: u64, course: &mut Course) -> Result<(), Trouble> {
    let lists = Lists::get(reader, log, begin)?;
    course.survey.bytes = lists.pieces.size();
    let mut heads = BTreeMap::new();
    let mut wanted = lists.telling(begin);
    while !wanted.is_empty() {
        let numbers: Vec<u64> = wanted.into_iter().collect();
        let read = reader.heads(log, &lists.pieces, &numbers)?;
        heads.extend(numbers.into_iter().zip(read));
        // Behind what turns out to be damaged nothing is taken for granted.
        let bad = heads.iter().filter(|(_, head)| head.is_err());
        let next = bad.flat_map(|(number, _)| [*number - 1, *number + 1]);
        wanted = next
            .filter(|it| lists.pieces.find(*it).is_some() && !heads.contains_key(it))
            .collect();
    }
    let chain = chain_dir(log);
    let mut bases = Bases::new(*reader, log, &lists);
    let mut expected = begin;
    for piece in &lists.pieces.0 {
        if piece.first > expected {
            let bad = Bad::missing(&chain, expected, piece.first - expected);
            course.miss(expected, piece.first - 1, bad);
        }
        expected = piece.last + 1;
        for number in piece.first..=piece.last {
            match heads.remove(&number) {
                None => course.take(number, Event::Assumed),
                Some(Err(what)) => course.miss(number, number, piece.bad(log, number, what)),
                Some(Ok(head)) => {
                    course.take(number, Event::Link(head));
                    if head.kind == Kind::Base {
                        look_at_base(bases.find(number)?, number, &lists, course);
                    }
                }
            }
        }
    }
    course.survey.bad.extend(lists.strangers);
    Ok(())
}

/// The bases of a chain, read ahead.
struct Bases<'a> {
    log: LogId,
    ahead: ReadAhead<'a, u64, Option<(Head, BaseList)>>,
    /// Those that are listed and have not been read: their numbers and sizes.
    rest: VecDeque<(u64, u64)>,
}

impl<'a> Bases<'a> {
    fn new(reader: Reader<'a>, log: LogId, lists: &Lists) -> Bases<'a> {
        let listed = lists.bases.iter().filter_map(|number| {
            let piece = lists.pieces.find(*number)?;
            piece.joined.is_none().then(|| (*number, piece.memory()))
        });
        Bases {
            log,
            rest: listed.collect(),
            ahead: ReadAhead::new(reader),
        }
    }

    /// This base, which is listed; those before it are given up.
    fn find(&mut self, number: u64) -> Result<Result<(Head, BaseList), Fault>, Trouble> {
        let (log, dir) = (self.log, chain_dir(self.log));
        loop {
            while let Some((next, size)) = self.rest.front().copied()
                && self.ahead.has_room(size)
            {
                self.rest.pop_front();
                self.ahead
                    .push(next, Want::whole(&numbered(&dir, next)), size);
            }
            let read = self.ahead.next(|number, bytes| {
                let (head, _, body) = Head::decode(&bytes)?;
                head.check_place(log, *number)?;
                Ok(match head.kind {
                    Kind::Base => Some((head, BaseList::decode(body)?)),
                    // Only the mark is there, which an interrupted writer leaves.
                    _ => None,
                })
            })?;
            let found = match read {
                Some((found, _)) if found != number => continue,
                Some((_, base)) => base,
                None => Ok(None),
            };
            return Ok(found.and_then(|it| it.ok_or_else(|| "it is no base".to_owned())));
        }
    }
}

fn look_at_base(
    found: Result<(Head, BaseList), Fault>,
    number: u64,
    lists: &Lists,
    course: &mut Course,
) {
    let log = course.survey.log;
    match found {
        Ok((head, list)) => {
            let bad = bad_parts(&lists.parts, log, &list);
            if bad.is_empty() {
                course.base(&head, &list);
            }
            course.survey.bad.extend(bad);
        }
        Err(what) => course.bad(numbered(&chain_dir(log), number), what),
    }
}

/// The event at the place of a link.
#[derive(Debug, Clone)]
enum Event {
    Link(Head),
    /// It is there, and was not read.
    Assumed,
    /// It is missing, or damaged, and so are those from the number `first` on.
    Missing {
        first: u64,
        bad: Bad,
    },
}

fn show(run: &mut Run, number: u64, event: &Event) -> Result<(), Stop> {
    match event {
        Event::Link(head) => run.pass(head).map(drop),
        Event::Assumed => {
            run.assume(number);
            Ok(())
        }
        Event::Missing { first, bad } => {
            run.miss(*first, number, bad);
            Ok(())
        }
    }
}

/// The spans that each base can restore, as link after link is seen.
struct Course {
    survey: Survey,
    /// The spans that go on, of the oldest base first. A second one begins in front of the first, which
    /// has not come so far yet.
    open: VecDeque<(Span, Run)>,
    /// Events since no span continues, for a base that was begun before it was put.
    since: Vec<(u64, Event)>,
}

impl Course {
    fn new(log: LogId) -> Course {
        Course {
            survey: Survey {
                log,
                links: 0,
                bytes: 0,
                epoch: 0,
                apart: Vec::new(),
                spans: Vec::new(),
                names: Vec::new(),
                pins: Vec::new(),
                lost: Vec::new(),
                gaps: Vec::new(),
                bad: Vec::new(),
                end: None,
            },
            open: VecDeque::new(),
            since: Vec::new(),
        }
    }

    fn bad(&mut self, name: String, what: Fault) {
        self.survey.bad.push(Bad { name, what });
    }

    /// The links `first` to `last` are not as they were put.
    fn miss(&mut self, first: u64, last: u64, bad: Bad) {
        self.survey.bad.push(bad.clone());
        self.take(last, Event::Missing { first, bad });
    }

    fn take(&mut self, number: u64, event: Event) {
        match &event {
            Event::Link(head) => {
                self.survey.links += 1;
                self.survey.epoch = head.epoch;
                if head.kind == Kind::Gap {
                    self.survey.gaps.push(head.from);
                }
            }
            Event::Assumed => self.survey.links += 1,
            Event::Missing { .. } => {}
        }
        for _ in 0..self.open.len() {
            let Some((span, mut run)) = self.open.pop_front() else {
                break;
            };
            match show(&mut run, number, &event) {
                Ok(()) => self.open.push_back((span, run)),
                Err(stop) => self.close(span, &run, &stop),
            }
        }
        if let [(first, run), (second, _), ..] = self.open.make_contiguous()
            && run.is_whole()
            && run.at >= second.from
        {
            first.bases += second.bases;
            self.open.remove(1);
        }
        match self.open.back() {
            Some((_, run)) if run.is_whole() => self.since.clear(),
            _ => self.since.push((number, event)),
        }
    }

    /// Nothing more follows the base of this span.
    fn close(&mut self, span: Span, run: &Run, stop: &Stop) {
        let why = match stop {
            Stop::Hole(bad) => Why::Bad(bad.clone()),
            Stop::Gap(head) if head.kind == Kind::Gap => Why::Gap,
            Stop::Gap(_) => Why::History,
        };
        self.survey.spans.push(ended(span, run));
        let (after, until) = (run.at, self.open.front().map(|(next, _)| next.from));
        if until.is_none_or(|until| until > after) {
            self.survey.lost.push(Lost { after, until, why });
        }
    }

    /// The link that was just seen is a base that is sound.
    fn base(&mut self, head: &Head, list: &BaseList) {
        let span = Span {
            base: head.number,
            from: list.end,
            from_wall_ns: head.wall_ns,
            to: list.end,
            to_wall_ns: head.wall_ns,
            link: head.number,
            bases: 1,
        };
        let fresh = Run::begin(head, list.end);
        let Some((before, run)) = self.open.back_mut() else {
            return self.base_after_stop(span, fresh, list);
        };
        match run.hole() {
            // It was begun behind the hole.
            Some(hole) if list.first_link > hole => self.open.push_back((span, fresh)),
            _ if list.end <= run.at => before.bases += 1,
            _ => {
                let run = run.branch(head, list.end);
                self.open.push_back((span, run));
            }
        }
    }

    fn base_after_stop(&mut self, span: Span, mut run: Run, list: &BaseList) {
        let since = self.since.iter();
        let after = since.filter(|(number, _)| *number >= list.first_link);
        let shown = after.map(|(number, event)| show(&mut run, *number, event));
        let shown = shown.collect::<Result<(), Stop>>();
        let begins = |(_, event): &(u64, Event)| match event {
            Event::Link(head) => matches!(head.kind, Kind::Gap | Kind::Claim { goes_on: false }),
            Event::Assumed | Event::Missing { .. } => false,
        };
        let is_same_life = !self.since.iter().any(begins);
        if let (Err(_), Some(last)) = (&shown, self.survey.spans.last_mut())
            && is_same_life
            && run.at <= last.to
        {
            // It was begun before the hole, and has nothing from behind it.
            last.bases += 1;
            return;
        }
        match self.survey.lost.last_mut() {
            // Nothing is lost: the other history begins with this base.
            Some(lost) if lost.why == Why::History => drop(self.survey.lost.pop()),
            Some(lost) if is_same_life && lost.until.is_none() && lost.after >= list.end => {
                self.survey.lost.pop();
            }
            Some(lost) => drop(lost.until.get_or_insert(list.end)),
            None => {}
        }
        match shown {
            Ok(()) => {
                if run.is_whole() {
                    self.since.clear();
                }
                self.open.push_back((span, run));
            }
            Err(stop) => self.close(span, &run, &stop),
        }
    }

    fn finish(mut self) -> Survey {
        while let Some((span, run)) = self.open.pop_front() {
            match run.finish() {
                Err(stop) => {
                    // Nothing came after the gap: what was before it is restored.
                    let is_end = self.open.is_empty() && matches!(stop, Stop::Gap(_));
                    self.survey.end = is_end.then_some(run.at);
                    self.close(span, &run, &stop);
                }
                Ok(()) => {
                    self.survey.end = self.open.is_empty().then_some(run.at);
                    self.survey.spans.push(ended(span, &run));
                }
            }
        }
        self.survey
    }
}

fn ended(span: Span, run: &Run) -> Span {
    Span {
        to: run.at,
        to_wall_ns: run.wall_ns,
        link: run.last_link(),
        ..span
    }
}

/// Add what is apart, and names and pins, to the survey of what is from the link `begin` on.
///
/// # Errors
/// The store did not answer.
fn add_apart(
    reader: &Reader<'_>,
    log: LogId,
    begin: u64,
    depth: Depth,
    survey: &mut Survey,
) -> Result<(), Trouble> {
    let marks = Marks::read(reader, log)?;
    let numbers = marks.before(begin);
    let mut parts = BTreeMap::new();
    if depth == Depth::Lists && !numbers.is_empty() {
        let listed = reader.list(&parts_dir(log), "")?;
        parts.extend(listed.into_iter().map(|it| (it.name, it.size)));
    }
    let (mut sound, mut bad) = (HashSet::new(), Vec::new());
    for number in numbers {
        let faults = match marks.find(reader, log, number)? {
            Found::Claim => continue,
            Found::Bad(fault) | Found::Missing(fault) => vec![fault],
            Found::Base(head, list) => {
                let faults = match depth {
                    Depth::Lists => bad_parts(&parts, log, &list),
                    Depth::Everything => check_parts(reader, log, &list, &mut sound, &mut |_| ())?,
                };
                if faults.is_empty() {
                    survey.apart.push(State::of(&head, &list));
                }
                faults
            }
        };
        bad.extend(faults.into_iter().map(|fault| (number, fault)));
    }
    if !bad.is_empty() {
        // An expiry may have removed it meanwhile: the mark first.
        let now = Marks::read(reader, log)?.before(begin);
        bad.retain(|(number, _)| now.contains(number));
    }
    survey.bad.extend(bad.into_iter().map(|(_, fault)| fault));
    survey.pins = marks.pins.difference(&marks.claims).copied().collect();
    let (named, bad) = names(reader, log)?;
    let is_there =
        |number: u64| number >= begin || survey.apart.iter().any(|state| state.base == number);
    let named = named.into_iter().filter(|(_, named)| is_there(named.base));
    survey.names = named.map(|(name, named)| (name, named.base)).collect();
    survey.bad.extend(bad);
    Ok(())
}
