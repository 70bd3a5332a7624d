//! A data directory out of an archive: the newest base that is not after the moment, and the changes
//! of the links after it.
//!
//! All or nothing: the directory gets its name when every byte has been checked and the log was read
//! back. A link that is missing or damaged ends the restore, with its name and the last position
//! that can be had: that position is then asked for by name. Nothing after a gap is used unless a
//! base follows it, and a moment inside a gap is refused.

use std::path::Path;
use std::sync::Arc;

use super::apart::State;
use super::chain::{Bad, Item, Tip, Walk, base, begin, check_begin, for_each_part, parts_of};
use super::chain_reader::ChainReader;
use super::claims::{Claims, Origin};
use super::course::{Place, Run, Stop};
use super::error::RestoreError;
use super::format::{
    BaseList, HEAD_SIZE, Head, Kind, bases_dir, chain_dir, log_name, number_in, numbered,
};
use super::frame_reader::FrameReader;
use super::moment::{Cut, Until, cut, nearest};
use super::reader::Reader;
use bsd::clock::utc;
use bsd::storage::OpenError;
use bsd::storage::convert::rebuild::{Rebuild, Rebuilt};
use bsd::storage::disk::Fs;
use bsd::storage::format::LogId;
use bsd::storage::marker_file::{ARCHIVE_MARKER, STANDBY_MARKER};
use bsd::types::{Now, Position};

/// Result of a restore.
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
    /// The later history that the archive lacks, for a person: there is a gap, and no base after
    /// it.
    pub missing: Option<String>,
}

/// The one log that has an archive here, or the one that is asked for.
///
/// # Errors
/// There is no log, or there are several.
pub fn choose_log(reader: &Reader<'_>, asked: Option<LogId>) -> Result<LogId, RestoreError> {
    let found = reader.logs()?;
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
    reader: &Reader<'_>,
    log: LogId,
    until: Until,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Restored, RestoreError> {
    let finish = |mut rebuilt: Rebuilt, chain_reader: &ChainReader| {
        let at = chain_reader.at();
        let life = rebuilt.begin_life(at.segment())?;
        // What was restored up to an earlier moment is not where the chain stands.
        let last = chain_reader.last_link().filter(|_| until == Until::End);
        let own = last.map(|(number, crc)| {
            let origin = Origin {
                number,
                crc,
                at,
                life,
            };
            Claims::restored(log, origin).marker()
        });
        rebuilt.finish(own.as_deref().map(|own| (ARCHIVE_MARKER, own)))
    };
    let done = restore_and(reader, log, until, (fs, dir), now, progress, finish)?;
    Ok(done.0)
}

/// The same up to the end of the archive, for a standby: with what follows the chain from there.
/// The directory is the copy of a standby.
///
/// # Errors
/// See [`RestoreError`].
pub(super) fn restore_copy(
    reader: &Reader<'_>,
    log: LogId,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Restored, ChainReader), RestoreError> {
    let finish = |rebuilt: Rebuilt, chain_reader: &ChainReader| {
        let marker = chain_reader.marker(None);
        rebuilt.finish(Some((STANDBY_MARKER, &marker)))
    };
    restore_and(reader, log, Until::End, (fs, dir), now, progress, finish)
}

fn restore_and(
    reader: &Reader<'_>,
    log: LogId,
    until: Until,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
    finish: impl FnOnce(Rebuilt, &ChainReader) -> Result<(), OpenError>,
) -> Result<(Restored, ChainReader), RestoreError> {
    let began = reader.again(|store| begin(store, log))?;
    let done = restore_what_there_is(
        reader,
        (log, began),
        until,
        (fs, dir),
        now,
        progress,
        finish,
    );
    match &done {
        Ok(_) | Err(RestoreError::Store(_) | RestoreError::Disk(_)) => {}
        Err(_) => check_begin(reader, log, began)?,
    }
    done
}

fn restore_what_there_is(
    reader: &Reader<'_>,
    (log, began): (LogId, u64),
    until: Until,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
    finish: impl FnOnce(Rebuilt, &ChainReader) -> Result<(), OpenError>,
) -> Result<(Restored, ChainReader), RestoreError> {
    let (marks, links) = (bases_dir(log), chain_dir(log));
    let cut = cut(reader, log, until, now)?;
    let mut skipped = Vec::new();
    let mut earliest = None;
    let numbers: Vec<u64> = match cut.base {
        Some(number) => vec![number],
        None => {
            let listed = reader.list(&marks, "")?;
            let numbers = listed.iter().rev();
            let numbers = numbers.filter_map(|mark| number_in(&marks, &mark.name));
            // After a base before these, links are missing.
            numbers.filter(|number| *number >= began).collect()
        }
    };
    for number in numbers {
        let name = numbered(&links, number);
        let (head, list) = match base(reader, log, number)? {
            Some(Ok(base)) => base,
            None => continue,
            Some(Err(what)) => {
                skipped.push(Bad { name, what });
                continue;
            }
        };
        if !cut.has(number) || cut.position.is_some_and(|position| list.end > position) {
            earliest = Some(State::of(&head, &list));
            continue;
        }
        let mut work = Restore {
            reader,
            log,
            cut,
            now,
            run: Run::begin(&head, list.end),
            frame_reader: FrameReader::begin(log, list.end),
            gap: None,
            links: 0,
            progress: &mut *progress,
            done: 0,
            total: 0,
        };
        let rebuilt = match work.run((fs, dir), &list) {
            // A base that is not as it was put would have gone on from there.
            Err(RestoreError::Refused(_)) if cut.is_end() && !skipped.is_empty() => {
                return Err(work.bad(skipped.swap_remove(0)));
            }
            rebuilt => rebuilt?,
        };
        match rebuilt {
            Ok((rebuilt, tip)) => {
                let restored = Restored {
                    log,
                    base: number,
                    end: work.frame_reader.at,
                    wall_ns: work.run.wall_ns,
                    links: work.links,
                    records: rebuilt.records(),
                    jobs: rebuilt.jobs(),
                    skipped,
                    missing: work
                        .gap
                        .map(|(head, _)| missing(&head, work.frame_reader.at)),
                };
                let wall_ns = restored.wall_ns;
                let chain_reader =
                    ChainReader::after(work.frame_reader, tip, list.first_link, wall_ns);
                finish(rebuilt, &chain_reader)?;
                return Ok((restored, chain_reader));
            }
            // An older base may do.
            Err(bad) => skipped.push(bad),
        }
    }
    match (skipped.into_iter().next(), earliest) {
        (Some(bad), _) => Err(RestoreError::Bad { bad, sound: None }),
        (None, Some(first)) => {
            let nearest = nearest(reader, log, began, (until, first))?;
            Err(RestoreError::Refused(nearest))
        }
        (None, None) => Err(RestoreError::Nothing(format!(
            "the archive of the log {} has no base yet",
            log_name(log)
        ))),
    }
}

/// The history after `at` that the archive lacks.
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

struct Restore<'a> {
    reader: &'a Reader<'a>,
    log: LogId,
    cut: Cut,
    now: Now,
    run: Run,
    frame_reader: FrameReader,
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
        let mut walk = Walk::from(*self.reader, self.log, list.first_link)?;
        self.total = list.size() + walk.size_to(self.cut.last);
        let mut rebuild = Rebuild::begin(fs, dir)?;
        let parts = parts_of(self.log, list);
        let reader = self.reader;
        let mut bad = None;
        let read = for_each_part(reader, &parts, &mut |part, found| match found {
            Ok(bytes) => {
                rebuild.write(part.file, part.offset, &bytes)?;
                self.advance(bytes.len() as u64);
                Ok(())
            }
            Err(what) => {
                let name = part.name.clone();
                bad = Some(Bad { name, what });
                Err(RestoreError::Refused(String::new()))
            }
        });
        if let Some(bad) = bad {
            return Ok(Err(bad));
        }
        read?;
        let mut rebuilt = rebuild.open(self.log, self.now)?;
        self.apply_links(&mut walk, &mut rebuilt)?;
        Ok(Ok((rebuilt, self.gap.map_or(walk.tip, |(_, tip)| tip))))
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        (self.progress)(self.done, self.total);
    }

    fn apply_links(
        &mut self,
        walk: &mut Walk<'_>,
        rebuilt: &mut Rebuilt,
    ) -> Result<(), RestoreError> {
        while walk.tip.next <= self.cut.last && !self.is_reached() {
            let (tip, done) = (walk.tip, walk.done);
            let (head, link) = match walk.next(self.cut.last)? {
                None => break,
                Some(Item::Bad { number, bad }) => {
                    self.run.miss(tip.next, number, &bad);
                    continue;
                }
                Some(Item::Link { head, link }) => (head, link),
            };
            self.advance(walk.done - done);
            let (before, gap) = (self.run.at, self.run.gap());
            let place = self.run.pass(&head).map_err(|stop| self.stopped(stop))?;
            self.gap = self.run.gap().map(|gap| self.gap.unwrap_or((gap, tip)));
            if head.kind == Kind::Takeover
                && let Err(what) = self.frame_reader.take_over(head.from)
            {
                let name = numbered(&chain_dir(head.log), head.number);
                return Err(match gap {
                    Some(gap) => self.stopped(Stop::Gap(gap)),
                    None => self.bad(Bad { name, what }),
                });
            }
            if let (Some(Place::Segment), Some(position)) = (place, self.cut.position)
                && position < head.from
            {
                return Err(RestoreError::Refused(format!(
                    "there is no position {position}: what ends at {before} goes on at {}",
                    head.from
                )));
            }
            if place.is_some() {
                self.apply(&head, &link[HEAD_SIZE..], rebuilt)?;
            }
        }
        if self.is_reached() {
            return Ok(());
        }
        match self.run.finish() {
            Ok(()) => {}
            // The machine was lost before a base was complete: there is nothing later.
            Err(Stop::Gap(_)) if self.cut.is_end() => return Ok(()),
            Err(stop) => return Err(self.stopped(stop)),
        }
        match self.cut.position {
            Some(position) if self.run.at < position => Err(RestoreError::Refused(format!(
                "the archive ends at {}, before {position}",
                self.frame_reader.at
            ))),
            _ => Ok(()),
        }
    }

    /// True if no later frame is wanted.
    fn is_reached(&self) -> bool {
        self.cut.position.is_some_and(|it| self.run.at >= it)
    }

    fn stopped(&self, stop: Stop) -> RestoreError {
        match stop {
            Stop::Hole(bad) => self.bad(bad),
            Stop::Gap(head) => RestoreError::Refused(format!(
                "after {} the archive has a gap ({}), and no base that can be used follows it before \
                 the moment asked for; --until {} restores what was before the gap",
                self.frame_reader.at,
                numbered(&chain_dir(self.log), head.number),
                self.frame_reader.at
            )),
        }
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
        self.frame_reader
            .push(head.from, body)
            .map_err(|what| self.bad(bad(what)))?;
        let until = self.cut.position;
        loop {
            match self
                .frame_reader
                .step(until, &mut |record| rebuilt.apply(record))?
            {
                Ok(true) => {}
                Ok(false) => break,
                Err(what) => return Err(self.bad(bad(what))),
            }
        }
        self.links += 1;
        Ok(())
    }

    fn bad(&self, bad: Bad) -> RestoreError {
        RestoreError::Bad {
            bad,
            sound: Some(self.frame_reader.at),
        }
    }
}
