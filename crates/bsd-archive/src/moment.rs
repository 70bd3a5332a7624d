//! Which links a moment means: a time or a position may have been more than once.
//!
//! A log that was restored goes on beside its earlier history, with positions that the other one may
//! have, too; and the clock of another machine may be behind. So a time or a position is looked for
//! in all of the chain. What is there twice is refused, and each place is named by its link, whose
//! number orders what happened.
//!
//! Of the links only some are read: claims and the links before them, bases, and the last one. A
//! clock is taken to run forwards between two of these, if it does so from the one to the other; only
//! where the time that is asked for lies between them are all links read.

use std::collections::{BTreeMap, BTreeSet};

use super::apart::{State, states};
use super::chain::{Bad, base, begin};
use super::error::RestoreError;
use super::format::{Head, Kind, bases_dir, chain_dir, claims_dir, log_name, number_in, numbered};
use super::labels::marked;
use super::links::Pieces;
use super::reader::Reader;
use super::store::Trouble;
use bsd::clock::utc;
use bsd::storage::format::LogId;
use bsd::types::{Now, Position};

/// Up to where is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The end of the archive.
    End,
    /// Everything that the writer saw to be durable up to this wall time, ns since 1970, by its
    /// clock.
    Wall(u64),
    /// All frames that end at this position or before it.
    Position(Position),
    /// The state of the archive when this link was put.
    Link(u64),
    /// The state at the end of the base with this number, exactly.
    Base(u64),
}

/// Which links are restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// No base before this link is used.
    first: u64,
    /// No link after this one is.
    pub(super) last: u64,
    /// Of their frames, those that end at this position or before it.
    pub(super) position: Option<Position>,
    /// It is the end of this base, which needs no link after it.
    pub(super) base: Option<u64>,
}

impl Cut {
    /// True if nothing is left out.
    pub(super) fn is_end(&self) -> bool {
        self.last == u64::MAX && self.position.is_none()
    }

    /// Up to the end of a base.
    fn of_base(State { base, at, .. }: State) -> Cut {
        Cut {
            first: base,
            last: base,
            position: Some(at),
            base: Some(base),
        }
    }

    /// True if the base with this number may be used.
    pub(super) fn has(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// The links that a moment means.
///
/// # Errors
/// There is no such moment, or more than one; or the store did not answer.
pub(super) fn cut(
    reader: &Reader<'_>,
    log: LogId,
    until: Until,
    now: Now,
) -> Result<Cut, RestoreError> {
    let up_to = |last, position| Cut {
        first: 0,
        last,
        position,
        base: None,
    };
    let position = match until {
        Until::End => return Ok(up_to(u64::MAX, None)),
        Until::Link(number) => {
            let last = last_link(reader, log, &BTreeSet::from([number]))?;
            return match last {
                Some(last) if last >= number => Ok(up_to(number, None)),
                last => Err(RestoreError::Refused(format!(
                    "there is no link {number}: the last one is {}",
                    last.unwrap_or(0)
                ))),
            };
        }
        Until::Base(number) => {
            let name = numbered(&chain_dir(log), number);
            return match base(reader, log, number)? {
                Some(Ok((head, list))) => Ok(Cut::of_base(State::of(&head, &list))),
                Some(Err(what)) => Err(RestoreError::Bad {
                    bad: Bad { name, what },
                    sound: None,
                }),
                None => Err(RestoreError::Refused(format!(
                    "there is no base {number}, or it has expired; `bsd-wal archive ls` shows what can be \
                     restored"
                ))),
            };
        }
        Until::Wall(wall_ns) => {
            let scale = Scale::read(reader, log)?;
            let cut = scale.cut_at(reader, wall_ns, now)?;
            if cut.last > 0 {
                return Ok(cut);
            }
            // As `ls` shows the times of what is apart.
            let apart = states(reader, log, scale.begin)?;
            let is_it = |state: &&State| state.wall_ns == wall_ns;
            return Ok(apart.iter().find(is_it).map_or(cut, |it| Cut::of_base(*it)));
        }
        Until::Position(position) => position,
    };
    let scale = Scale::read(reader, log)?;
    let mut lives = Vec::new();
    for (first, last) in scale.lives() {
        let bases = scale.heads.range(first..=last).map(|(_, head)| head);
        let bases = bases.filter(|head| head.kind == Kind::Base);
        let Some(from) = bases.clone().map(|head| head.to).min() else {
            continue;
        };
        let to = scale.end_of(reader, first, last)?;
        let to = to.max(bases.map(|head| head.to).max());
        if from <= position && Some(position) <= to {
            lives.push((first, last));
        }
    }
    let cut = |(first, last)| Cut {
        first,
        last,
        position: Some(position),
        base: None,
    };
    let mut apart = states(reader, log, scale.begin)?;
    apart.retain(|state| state.at == position);
    let bases = apart.iter().map(|state| state.base);
    let places: Vec<u64> = bases.chain(lives.iter().map(|life| life.0)).collect();
    // Where nothing has changed, several bases have the same end.
    let is_once = is_one_history(reader, log, &places)?;
    match (&lives[..], apart.last()) {
        ([], None) => Ok(up_to(u64::MAX, Some(position))),
        ([], Some(state)) if is_once => Ok(Cut::of_base(*state)),
        ([life], _) if is_once => Ok(cut(*life)),
        (_, Some(_)) => {
            let lives = lives.iter().map(|life| format!("a link after {}", life.0));
            let bases = apart.iter().map(|state| format!("base:{}", state.base));
            let names: Vec<String> = bases.chain(lives).collect();
            Err(RestoreError::Refused(format!(
                "the position {position} was more than once in this archive, because a log was restored; \
                 name the base that is meant with --until, or a link as link:NUMBER: {}",
                names.join(", ")
            )))
        }
        (_, None) => {
            let mut links = Vec::new();
            for life in lives {
                links.push(scale.first_with(reader, life, position)?);
            }
            scale.ambiguous(reader, &format!("the position {position}"), &links)
        }
    }
}

/// True if no other history was begun between the first and the last of these links.
fn is_one_history(reader: &Reader<'_>, log: LogId, links: &[u64]) -> Result<bool, Trouble> {
    let (Some(first), Some(last)) = (links.iter().min(), links.iter().max()) else {
        return Ok(true);
    };
    if first == last {
        return Ok(true);
    }
    // Claims never expire.
    let claims = marked(reader, log, claims_dir)?;
    let claims: Vec<u64> = claims.range(first + 1..=*last).copied().collect();
    let pieces = reader.pieces(log, *first)?;
    let heads = reader.heads(log, &pieces, &claims)?;
    let goes_on =
        |head: Result<Head, _>| head.is_ok_and(|head| head.kind != Kind::Claim { goes_on: false });
    Ok(heads.into_iter().all(goes_on))
}

/// The links that say when and where each part of the chain was put.
struct Scale {
    log: LogId,
    /// Those that are sound.
    heads: BTreeMap<u64, Head>,
    /// Where the others are.
    pieces: Pieces,
    begin: u64,
    last: u64,
}

/// The number of the last link. `marks` are numbers near the end.
fn last_link(
    reader: &Reader<'_>,
    log: LogId,
    marks: &BTreeSet<u64>,
) -> Result<Option<u64>, Trouble> {
    // A mark may be there without its link.
    let after = marks.iter().rev().map(|number| number.saturating_sub(1));
    for after in after.chain([0]) {
        let last = reader.pieces(log, after)?.last();
        if last.is_some() {
            return Ok(last);
        }
    }
    Ok(None)
}

impl Scale {
    fn read(reader: &Reader<'_>, log: LogId) -> Result<Scale, RestoreError> {
        let begin = reader.again(|store| begin(store, log))?;
        let marks = |dir: String| -> Result<BTreeSet<u64>, Trouble> {
            let listed = reader.list(&dir, "")?;
            let numbers = listed.iter().filter_map(|it| number_in(&dir, &it.name));
            Ok(numbers.filter(|number| *number >= begin).collect())
        };
        let (claims, bases) = (marks(claims_dir(log))?, marks(bases_dir(log))?);
        let before = claims.iter().map(|number| number - 1);
        let mut telling: BTreeSet<u64> = before.chain([begin]).collect();
        telling.extend(claims.iter().chain(&bases));
        let pieces = reader.pieces(log, begin - 1)?;
        let Some(last) = pieces.last() else {
            return Err(RestoreError::Nothing(format!(
                "the archive of the log {} has no links",
                log_name(log)
            )));
        };
        telling.insert(last);
        let numbers: Vec<u64> = telling.into_iter().filter(|it| *it >= begin).collect();
        let heads = reader.heads(log, &pieces, &numbers)?;
        let heads = numbers.into_iter().zip(heads);
        Ok(Scale {
            log,
            heads: heads
                .filter_map(|(number, head)| Some((number, head.ok()?)))
                .collect(),
            pieces,
            begin,
            last,
        })
    }

    /// The links of each history, in the order in which they began.
    fn lives(&self) -> Vec<(u64, u64)> {
        let begins = self.heads.values().filter_map(|head| match head.kind {
            Kind::Claim { goes_on: false } => Some(head.number),
            _ => None,
        });
        let mut first = self.begin;
        let mut lives = Vec::new();
        for next in begins.filter(|number| *number > self.begin) {
            lives.push((first, next - 1));
            first = next;
        }
        lives.push((first, u64::MAX));
        lives
    }

    /// Where the last of these links ends that tells it.
    fn end_of(
        &self,
        reader: &Reader<'_>,
        first: u64,
        last: u64,
    ) -> Result<Option<Position>, Trouble> {
        let mut number = last.min(self.last);
        while number >= first {
            let head = match self.heads.get(&number) {
                Some(head) => Some(*head),
                None => self.head(reader, number)?,
            };
            if let Some(position) = head.and_then(|head| end(&head)) {
                return Ok(Some(position));
            }
            number -= 1;
        }
        Ok(None)
    }

    fn head(&self, reader: &Reader<'_>, number: u64) -> Result<Option<Head>, Trouble> {
        let head = reader.heads(self.log, &self.pieces, &[number])?.pop();
        Ok(head.and_then(Result::ok))
    }

    /// The first of the links of a history that goes up to this position.
    fn first_with(
        &self,
        reader: &Reader<'_>,
        (first, last): (u64, u64),
        position: Position,
    ) -> Result<u64, Trouble> {
        let (mut before, mut after) = (first, last.min(self.last));
        while before < after {
            let middle = before + (after - before) / 2;
            let end = self.end_of(reader, before, middle)?;
            match end >= Some(position) {
                true => after = middle,
                false => before = middle + 1,
            }
        }
        Ok(after)
    }

    /// The link that was the last one at this time.
    fn cut_at(&self, reader: &Reader<'_>, wall_ns: u64, now: Now) -> Result<Cut, RestoreError> {
        let last = self.heads.values().next_back();
        let newest = last.map_or(0, |head| head.wall_ns).max(now.wall_ns);
        if wall_ns > newest {
            return Err(RestoreError::Refused(format!(
                "{} is in the future: it is {}",
                utc(wall_ns),
                utc(now.wall_ns)
            )));
        }
        let mut links = Vec::new();
        let mut before: Option<&Head> = None;
        for head in self.heads.values() {
            match before {
                Some(before) if before.wall_ns <= wall_ns && head.wall_ns > wall_ns => {
                    let numbers: Vec<u64> = (before.number..=head.number).collect();
                    let heads = reader.heads(self.log, &self.pieces, &numbers)?;
                    let heads: Vec<Head> = heads.into_iter().filter_map(Result::ok).collect();
                    let is_last =
                        |two: &&[Head]| two[0].wall_ns <= wall_ns && two[1].wall_ns > wall_ns;
                    let lasts = heads.windows(2).filter(is_last);
                    links.extend(lasts.map(|two| two[0].number));
                }
                _ => {}
            }
            before = Some(head);
        }
        links.extend(
            last.filter(|head| head.wall_ns <= wall_ns)
                .map(|_| self.last),
        );
        match links[..] {
            [] | [_] => Ok(Cut {
                first: 0,
                last: links.first().copied().unwrap_or(0),
                position: None,
                base: None,
            }),
            _ => self.ambiguous(reader, &utc(wall_ns), &links),
        }
    }

    fn ambiguous(
        &self,
        reader: &Reader<'_>,
        moment: &str,
        links: &[u64],
    ) -> Result<Cut, RestoreError> {
        let heads = reader.heads(self.log, &self.pieces, links)?;
        let name = |(number, head): (&u64, _)| match head {
            Ok(Head {
                epoch,
                wall_ns,
                kind: Kind::Frames,
                to,
                ..
            }) => format!(
                "link:{number} (epoch {epoch}, {}, up to {to})",
                utc(wall_ns)
            ),
            Ok(Head { epoch, wall_ns, .. }) => {
                format!("link:{number} (epoch {epoch}, {})", utc(wall_ns))
            }
            Err(_) => format!("link:{number}"),
        };
        let names: Vec<String> = links.iter().zip(heads).map(name).collect();
        Err(RestoreError::Refused(format!(
            "{moment} was more than once in this archive, because a clock was set back or a log was \
             restored; name the link that is meant, with --until: {}",
            names.join(", ")
        )))
    }
}

/// Up to where there are bytes after this link, if it says so.
fn end(head: &Head) -> Option<Position> {
    match head.kind {
        Kind::Frames => Some(head.to),
        Kind::Claim { goes_on: true } | Kind::Takeover | Kind::Base | Kind::Gap => Some(head.from),
        Kind::Claim { goes_on: false } => None,
    }
}

/// For who has asked for a moment before `first`, the first state of the chain: the nearest states
/// that there are, for people.
///
/// # Errors
/// The store did not answer.
pub(super) fn nearest(
    reader: &Reader<'_>,
    log: LogId,
    begin: u64,
    (until, first): (Until, State),
) -> Result<String, Trouble> {
    let all = states(reader, log, begin)?;
    let is_before = |state: &&State| match until {
        Until::End => false,
        Until::Wall(wall_ns) => state.wall_ns <= wall_ns,
        Until::Position(position) => state.at <= position,
        Until::Link(number) | Until::Base(number) => state.base <= number,
    };
    let before = all.iter().rfind(is_before);
    let after = all.iter().find(|state| !is_before(state)).unwrap_or(&first);
    let first = format!(
        "the archive does not go back so far: its first base ends at {}, {}",
        first.at,
        utc(first.wall_ns)
    );
    Ok(match before {
        Some(before) => format!(
            "{first}; what was before has expired, but for single states: the nearest ones are {before} \
             and {after}"
        ),
        None if all.is_empty() => first,
        None => format!(
            "{first}; what was before has expired, but for single states: the nearest one is {after}"
        ),
    })
}
