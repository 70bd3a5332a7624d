//! A data directory out of an archive: the newest base that is not after the moment, and the changes
//! of the links after it.
//!
//! All or nothing: the directory gets its name when every byte has been checked and the log was read
//! back. A link that is missing or damaged ends the restore, with its name and the last position
//! that can be had: that position is then asked for by name. Nothing after a gap is used unless a
//! base follows it, and a moment inside a gap is refused.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::chain::{Bad, Item, Tip, Walk, begin, check_begin, logs, read_part};
use super::feed::Feed;
use super::format::{
    BaseList, Fault, Head, Kind, bases_dir, chain_dir, log_name, number_in, numbered, part_name,
};
use super::own::{Origin, Own};
use super::pursuit::Pursuit;
use super::store::{Store, Trouble};
use crate::clock::utc;
use crate::storage::OpenError;
use crate::storage::convert::rebuild::{Rebuild, Rebuilt};
use crate::storage::disk::Fs;
use crate::storage::format::LogId;
use crate::storage::words::{ARCHIVE_WORD, STANDBY_WORD};
use crate::types::{Now, Position};

/// Up to where is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The end of the archive.
    End,
    /// What the writer saw to be durable up to this wall time, ns since 1970, by its clock.
    Wall(u64),
    /// All frames that end at this position or before it.
    Position(Position),
}

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The log.
    pub log: LogId,
    /// The number of the base.
    pub base: u64,
    /// Up to where.
    pub end: Position,
    /// When that was durable, by the writer's clock, ns since 1970.
    pub wall_ns: u64,
    /// Links that were applied.
    pub links: u64,
    /// Records of them.
    pub records: u64,
    /// Jobs in the new log.
    pub jobs: u64,
    /// Bases that could not be used, the newest first, and why.
    pub skipped: Vec<Bad>,
    /// What came after that is not in the archive, for a person: there is a gap, and no base after it.
    pub missing: Option<String>,
}

/// Why nothing was restored.
#[derive(Debug)]
pub enum RestoreError {
    /// The store did not answer.
    Store(Trouble),
    /// The directory could not be made.
    Disk(OpenError),
    /// An object is not as it was put.
    Bad {
        /// Which, and what is wrong with it.
        bad: Bad,
        /// Up to where the archive is sound; `None`: nowhere.
        sound: Option<Position>,
    },
    /// What was asked for is not in the archive.
    Refused(String),
    /// There is no archive here, or nothing in it that could be restored yet.
    Nothing(String),
}

impl From<Trouble> for RestoreError {
    fn from(trouble: Trouble) -> RestoreError {
        RestoreError::Store(trouble)
    }
}

impl From<OpenError> for RestoreError {
    fn from(error: OpenError) -> RestoreError {
        RestoreError::Disk(error)
    }
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Store(trouble) => {
                write!(
                    f,
                    "the archive cannot be read: {trouble}; nothing was restored"
                )
            }
            RestoreError::Disk(error) => error.fmt(f),
            RestoreError::Refused(why) | RestoreError::Nothing(why) => f.write_str(why),
            RestoreError::Bad { bad, sound } => {
                write!(f, "the archive is damaged: {bad}; nothing was restored; ")?;
                match sound {
                    Some(at) => write!(f, "up to {at} it is sound: --until {at} restores that"),
                    None => write!(f, "`bsd-wal archive verify` says what can be"),
                }
            }
        }
    }
}

impl std::error::Error for RestoreError {}

/// The one log that has an archive here, or the one that is asked for.
///
/// # Errors
/// There is none, or there are several.
pub fn choose_log(store: &dyn Store, asked: Option<LogId>) -> Result<LogId, RestoreError> {
    let found = logs(store)?;
    let refuse = |why: String| Err(RestoreError::Refused(why));
    match (asked, &found[..]) {
        (Some(log), all) if all.contains(&log) => Ok(log),
        (Some(log), _) => refuse(format!("there is no archive of the log {}", log_name(log))),
        (None, [log]) => Ok(*log),
        (None, []) => Err(RestoreError::Nothing("there is no archive here".to_owned())),
        (None, several) => {
            let names: Vec<_> = several.iter().map(|log| log_name(*log)).collect();
            refuse(format!(
                "there are archives of several logs here, name one with --log (of a server: \
                 --archive-log): {}",
                names.join(" ")
            ))
        }
    }
}

/// Make the data directory `dir`, which must be empty or missing, from the archive of `log`. It leaves
/// out ids that the lost end may have used. Durable
/// on return; after an error nothing is there, and the call can be repeated.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore(
    store: &dyn Store,
    log: LogId,
    until: Until,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Restored, RestoreError> {
    let finish = |mut rebuilt: Rebuilt, pursuit: &Pursuit| {
        let at = pursuit.at();
        let life = rebuilt.begin_life(at.segment())?;
        // What was restored up to an earlier moment is not where the chain stands.
        let last = pursuit.last_link().filter(|_| until == Until::End);
        let own = last.map(|(number, crc)| {
            let origin = Origin {
                number,
                crc,
                at,
                life,
            };
            Own::restored(log, origin).word()
        });
        rebuilt.finish(own.as_deref().map(|own| (ARCHIVE_WORD, own)))
    };
    let done = restore_and(store, log, until, (fs, dir), now, progress, finish)?;
    Ok(done.0)
}

/// The same up to the end of the archive, for a standby: with what follows the chain from there.
/// The directory is the copy of a standby.
///
/// # Errors
/// See [`RestoreError`].
pub(super) fn restore_copy(
    store: &dyn Store,
    log: LogId,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Restored, Pursuit), RestoreError> {
    let finish = |rebuilt: Rebuilt, pursuit: &Pursuit| {
        let word = pursuit.word(None);
        rebuilt.finish(Some((STANDBY_WORD, &word)))
    };
    restore_and(store, log, Until::End, (fs, dir), now, progress, finish)
}

fn restore_and(
    store: &dyn Store,
    log: LogId,
    until: Until,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
    finish: impl FnOnce(Rebuilt, &Pursuit) -> Result<(), OpenError>,
) -> Result<(Restored, Pursuit), RestoreError> {
    let began = begin(store, log)?;
    let done = restore_what_there_is(store, log, until, (fs, dir), now, progress, finish);
    match &done {
        Ok(_) | Err(RestoreError::Store(_) | RestoreError::Disk(_)) => {}
        Err(_) => check_begin(store, log, began)?,
    }
    done
}

fn restore_what_there_is(
    store: &dyn Store,
    log: LogId,
    until: Until,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
    finish: impl FnOnce(Rebuilt, &Pursuit) -> Result<(), OpenError>,
) -> Result<(Restored, Pursuit), RestoreError> {
    let (marks, links) = (bases_dir(log), chain_dir(log));
    let mut skipped = Vec::new();
    let mut earliest = None;
    for mark in store.list(&marks, "")?.iter().rev() {
        let Some(number) = number_in(&marks, &mark.name) else {
            continue;
        };
        let name = numbered(&links, number);
        let (head, list) = match base(store, log, number, &name)? {
            Ok(base) => base,
            Err(None) => continue,
            Err(Some(what)) => {
                skipped.push(Bad { name, what });
                continue;
            }
        };
        let is_before = match until {
            Until::End => true,
            Until::Wall(wall_ns) => head.wall_ns <= wall_ns,
            Until::Position(position) => list.end <= position,
        };
        if !is_before {
            earliest = Some(list.end);
            continue;
        }
        let mut work = Restore {
            store,
            log,
            until,
            now,
            wall_ns: head.wall_ns,
            feed: Feed::begin(log, list.end),
            gap: None,
            links: 0,
            progress: &mut *progress,
            done: 0,
            total: 0,
        };
        match work.run((fs, dir), &list)? {
            Ok((rebuilt, tip)) => {
                let restored = Restored {
                    log,
                    base: number,
                    end: work.feed.at,
                    wall_ns: work.wall_ns,
                    links: work.links,
                    records: rebuilt.records(),
                    jobs: rebuilt.jobs(),
                    skipped,
                    missing: work.gap.map(|(head, _)| missing(&head, work.feed.at)),
                };
                let pursuit = Pursuit::after(work.feed, tip, list.first_link, work.wall_ns);
                finish(rebuilt, &pursuit)?;
                return Ok((restored, pursuit));
            }
            // An older base may do.
            Err(bad) => skipped.push(bad),
        }
    }
    match (skipped.into_iter().next(), earliest) {
        (Some(bad), _) => Err(RestoreError::Bad { bad, sound: None }),
        (None, Some(at)) => Err(RestoreError::Refused(format!(
            "the archive does not go back so far: its first base ends at {at}"
        ))),
        (None, None) => Err(RestoreError::Nothing(format!(
            "the archive of the log {} has no base yet",
            log_name(log)
        ))),
    }
}

/// What came after `at` and is not in the archive.
fn missing(head: &Head, at: Position) -> String {
    let since = utc(head.wall_ns);
    match head.kind {
        Kind::Gap => format!(
            "the archive has a gap after {at}, and no base after it: what was changed later than \
             {since} is missing"
        ),
        _ => format!(
            "a server with another history had the archive from {since} on, and its first base was \
             not complete: what that server has changed is missing"
        ),
    }
}

/// A base. `Err(None)`: a mark without one, which an interrupted writer leaves.
pub(super) fn base(
    store: &dyn Store,
    log: LogId,
    number: u64,
    name: &str,
) -> Result<Result<(Head, BaseList), Option<Fault>>, Trouble> {
    let Some(bytes) = store.get(name)? else {
        return Ok(Err(None));
    };
    let (head, body) = match Head::decode(&bytes) {
        Ok((head, _, body)) if head.number == number && head.log == log => (head, body),
        Ok(_) => return Ok(Err(Some("it is another link under this name".to_owned()))),
        Err(what) => return Ok(Err(Some(what))),
    };
    if head.kind != Kind::Base {
        return Ok(Err(None));
    }
    Ok(BaseList::decode(body)
        .map(|list| (head, list))
        .map_err(Some))
}

struct Restore<'a> {
    store: &'a dyn Store,
    log: LogId,
    until: Until,
    now: Now,
    /// When the last link was durable.
    wall_ns: u64,
    feed: Feed,
    /// A gap, or a server with another history, after which nothing else came; and what had come before.
    gap: Option<(Head, Tip)>,
    links: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

impl Restore<'_> {
    /// The log with all changes, not yet under its name. The inner error: the base cannot be used.
    fn run(
        &mut self,
        (fs, dir): (&Arc<dyn Fs>, &Path),
        list: &BaseList,
    ) -> Result<Result<(Rebuilt, Tip), Bad>, RestoreError> {
        let mut walk = Walk::from(self.store, self.log, list.first_link, false)?;
        self.total = list.size() + walk.size;
        let mut rebuild = Rebuild::begin(fs, dir)?;
        for file in &list.files {
            for (offset, part) in file.parts() {
                let name = part_name(self.log, &file.name, offset, part);
                let bytes = match read_part(self.store, &name, part)? {
                    Ok(bytes) => bytes,
                    Err(what) => return Ok(Err(Bad { name, what })),
                };
                rebuild.write(&file.name, offset, &bytes)?;
                self.advance(bytes.len());
            }
        }
        let mut rebuilt = rebuild.open(self.log, self.now)?;
        self.apply_links(&mut walk, &mut rebuilt)?;
        Ok(Ok((rebuilt, self.gap.map_or(walk.tip, |(_, tip)| tip))))
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        (self.progress)(self.done, self.total);
    }

    fn apply_links(
        &mut self,
        walk: &mut Walk<'_>,
        rebuilt: &mut Rebuilt,
    ) -> Result<(), RestoreError> {
        // The history goes on with a base that could not be used.
        let mut is_lost = false;
        while !self.is_reached() {
            let before = walk.tip;
            let (head, body) = match walk.next()? {
                None => break,
                Some(Item::Bad(bad)) => return Err(self.bad(bad)),
                Some(Item::Link { head, body }) => (head, body),
            };
            if matches!(self.until, Until::Wall(wall_ns) if head.wall_ns > wall_ns) {
                break;
            }
            self.advance(body.len());
            match head.kind {
                Kind::Claim { goes_on: true } => {}
                Kind::Base => is_lost |= self.gap.is_some(),
                Kind::Gap | Kind::Claim { goes_on: false } => {
                    self.gap.get_or_insert((head, before));
                }
                Kind::Takeover => match self.feed.take_over(head.from) {
                    Ok(()) => self.gap = None,
                    Err(_) if self.gap.is_some() => is_lost = true,
                    Err(what) => {
                        let name = numbered(&chain_dir(head.log), head.number);
                        return Err(self.bad(Bad { name, what }));
                    }
                },
                Kind::Frames if self.gap.is_some() => {
                    is_lost = true;
                    break;
                }
                Kind::Frames => self.apply(&head, &body, rebuilt)?,
            }
        }
        match (self.gap, self.until) {
            // The machine was lost before a base was complete: there is nothing later.
            (Some(_), Until::End) if !is_lost => Ok(()),
            (Some((head, _)), _) if !self.is_reached() => Err(RestoreError::Refused(format!(
                "after {} the archive has a gap ({}), and no base that can be used follows it before \
                 the moment asked for; --until {} restores what was before the gap",
                self.feed.at,
                numbered(&chain_dir(self.log), head.number),
                self.feed.at
            ))),
            (_, Until::Position(position)) if self.feed.at < position && !self.feed.has_passed => {
                Err(RestoreError::Refused(format!(
                    "the archive ends at {}, before {position}",
                    self.feed.at
                )))
            }
            _ => Ok(()),
        }
    }

    /// True if no later frame is wanted.
    fn is_reached(&self) -> bool {
        self.feed.has_passed || matches!(self.until, Until::Position(it) if self.feed.at >= it)
    }

    fn apply(
        &mut self,
        head: &Head,
        body: &[u8],
        rebuilt: &mut Rebuilt,
    ) -> Result<(), RestoreError> {
        let bad = |what| Bad {
            name: numbered(&chain_dir(head.log), head.number),
            what,
        };
        self.feed
            .push(head.from, body)
            .map_err(|what| self.bad(bad(what)))?;
        let until = match self.until {
            Until::Position(position) => Some(position),
            _ => None,
        };
        loop {
            match self.feed.step(until, &mut |record| rebuilt.apply(record))? {
                Ok(true) => {}
                Ok(false) => break,
                Err(what) => return Err(self.bad(bad(what))),
            }
        }
        self.links += 1;
        self.wall_ns = head.wall_ns;
        Ok(())
    }

    fn bad(&self, bad: Bad) -> RestoreError {
        RestoreError::Bad {
            bad,
            sound: Some(self.feed.at),
        }
    }
}
