//! A data directory that is missing or empty is restored before a server starts on it.
//!
//! Of two archives of one log the one with the later end is restored, and each has to answer for that.
//!
//! It never changes an existing log, and never takes an unreadable archive for an empty one: a
//! server that began an empty log instead would be given work without the other half of its jobs.
//! Two servers that do this at once, on two machines, both get the jobs; the one that claims the
//! archive last has it, and the other stops.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::chain::is_archive;
use super::error::RestoreError;
use super::moment::Until;
use super::reader::Reader;
use super::restore::{Restored, choose_log, restore};
use super::survey::{Depth, survey};
use bsd::clock::utc;
use bsd::storage::OpenError;
use bsd::storage::disk::Fs;
use bsd::storage::format::{LogId, parse_file_name};
use bsd::storage::marker_file::{INSIDE_WHOLE, is_as_empty};
use bsd::types::{Now, Position};

/// Result: the state that was found, and the action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refilled {
    /// The directory has a log; nothing was done, and the archive was not asked.
    HasLog,
    /// There is nothing to restore, for this reason: the directory is as it was.
    Nothing(String),
    /// The log is there.
    Restored(Restored),
}

/// Restore the end of the log `asked`, or of the one that `store` has, to `dir`, if that is missing or
/// empty. Durable on return; after an error nothing is there, and the call can be repeated.
///
/// # Errors
/// See [`RestoreError`]. Also if `dir` has files that are no log, and if there is an archive of which
/// nothing can be restored: it is not taken for none.
pub fn restore_if_empty(
    reader: &Reader<'_>,
    asked: Option<LogId>,
    (fs, dir): (&Arc<dyn Fs>, &Path),
    now: Now,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Refilled, RestoreError> {
    if has_log(&**fs, dir)? {
        return Ok(Refilled::HasLog);
    }
    if asked.is_none() && !reader.again(is_archive)? {
        return Ok(Refilled::Nothing("there is no archive here".to_owned()));
    }
    let restored = choose_log(reader, asked)
        .and_then(|log| restore(reader, log, Until::End, (fs, dir), now, progress));
    match restored {
        Ok(restored) => Ok(Refilled::Restored(restored)),
        Err(RestoreError::Nothing(why)) => Err(RestoreError::Refused(format!(
            "this is an archive, and nothing can be restored from it: {why}; to begin an empty log \
             beside it, start with --archive-new-log and without --restore-if-empty"
        ))),
        Err(error) => Err(error),
    }
}

/// By so much may the clock of a server tell of an earlier end that it is a later one: two writers look
/// at it at different moments, and one may be a moment behind.
const CLOCK_SLACK_NS: u64 = 60 * 1_000_000_000;

/// The end of an archive: where, and when that was durable by the clock of its writer, ns since 1970.
type End = (Position, u64);

/// The index of the archive to restore, of several of one log: that with the later end, by position. A
/// place without an archive does not count, nor does an archive that has no base yet. 0 if none is left:
/// a restore of the first then says why.
///
/// # Errors
/// See [`RestoreError`]. Each place must answer: the one that does not may have the later end. Also if
/// the archives are of different logs; if one that nothing can be restored from is damaged, and not only
/// new; and if the clocks say that the end of the earlier position is more than a minute the later one:
/// then servers with different histories have written them.
pub fn chosen_of(readers: &[Reader<'_>], asked: Option<LogId>) -> Result<usize, RestoreError> {
    let refuse = |why: String| Err(RestoreError::Refused(why));
    let mut found: Vec<(usize, LogId, Option<End>)> = Vec::new();
    for (index, reader) in readers.iter().enumerate() {
        let has_none = match asked {
            Some(log) => !reader.logs()?.contains(&log),
            None => !reader.again(is_archive)?,
        };
        if has_none {
            continue;
        }
        let log = choose_log(reader, asked)?;
        let survey = survey(reader, log, Depth::Lists, &mut |_, _| ())?;
        let end = survey.end.zip(survey.spans.last());
        if end.is_none() && !survey.bad.is_empty() {
            let (place, bad) = (reader.store().place(), &survey.bad[0]);
            return refuse(format!(
                "nothing can be restored from {place}: {bad}; if the other archive is to be restored, \
                 name it alone"
            ));
        }
        found.push((index, log, end.map(|(at, span)| (at, span.to_wall_ns))));
    }
    let mut logs = found.iter().map(|it| it.1);
    let first = logs.next();
    if logs.any(|log| Some(log) != first) {
        return refuse(
            "the archives are of different logs: name the one to restore from alone".to_owned(),
        );
    }
    let ends = found.iter().filter_map(|it| Some((it.0, it.2?)));
    let Some((chosen, end)) = ends.clone().max_by_key(|it| it.1) else {
        return Ok(found.first().map_or(0, |it| it.0));
    };
    let slack = end.1.saturating_add(CLOCK_SLACK_NS);
    match ends.clone().find(|other| other.1.1 > slack) {
        None => Ok(chosen),
        Some((other, (at, wall_ns))) => {
            let [later, earlier] = [chosen, other].map(|index| readers[index].store().place());
            refuse(format!(
                "{later} ends at {}, which was at {}, and {earlier} at {at}, which was at {}: servers \
                 with different histories have written them; look with `bsd-wal archive ls`, and name \
                 the one to restore from alone",
                end.0,
                utc(end.1),
                utc(wall_ns)
            ))
        }
    }
}

/// False for a directory that is missing or empty.
///
/// # Errors
/// It cannot be listed, or has files that are no log.
pub fn has_log(fs: &dyn Fs, dir: &Path) -> Result<bool, OpenError> {
    let entries = match fs.read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(OpenError::io("list", dir, &error)),
    };
    let is_of_log = |name: &str| parse_file_name(name).is_some() || name == INSIDE_WHOLE;
    match entries.iter().find(|entry| !is_as_empty(entry)) {
        None => Ok(false),
        // Where a restore was interrupted when it had all, a start has the rest to do.
        Some(_) if entries.iter().any(|entry| is_of_log(&entry.name)) => Ok(true),
        Some(first) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "it has no log and is not empty ({}), so nothing is restored to it; empty it, name \
                 another directory below it, or leave out --restore-if-empty",
                first.name
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histories::{LOG, World};
    use crate::sim::SimStore;

    /// A server, and its archive with the first `jobs` of its jobs.
    fn archived(seed: u64, jobs: u64) -> World {
        let mut world = World::new(seed);
        world.start();
        (0..jobs).for_each(|_| _ = world.put(10));
        world.archive();
        world
    }

    fn chosen(stores: [&SimStore; 2]) -> Result<usize, String> {
        let chosen = chosen_of(&stores.map(SimStore::reader), None);
        chosen.map_err(|error| error.to_string())
    }

    #[test]
    fn of_two_archives_the_one_with_the_later_end_is_chosen() {
        let mut world = archived(1, 5);
        let earlier = world.store.copy();
        world.put(10);
        world.archive();
        assert_eq!(chosen([&earlier, &world.store]), Ok(1));
        assert_eq!(chosen([&world.store, &earlier]), Ok(0));
        // No archive, and one that has no base yet, do not count.
        let mut begun = World::new(2);
        begun.start();
        begun.step().unwrap();
        for other in [&SimStore::new(3), &begun.store] {
            assert_eq!(chosen([&earlier, other]), Ok(0));
            assert_eq!(chosen([other, &earlier]), Ok(1));
        }
        assert_eq!(chosen([&SimStore::new(3), &SimStore::new(4)]), Ok(0));
    }

    #[test]
    fn nothing_is_chosen_while_an_archive_does_not_answer() {
        let world = archived(1, 5);
        let away = world.store.copy();
        away.set_away(true);
        for stores in [[&world.store, &away], [&away, &world.store]] {
            chosen(stores).unwrap_err();
        }
    }

    #[test]
    fn of_archives_of_different_logs_or_histories_none_is_chosen() {
        let mut world = archived(1, 5);
        let mut other = World::new(2);
        other.log = LogId([4; 16]);
        other.start();
        other.put(10);
        other.archive();
        let why = chosen([&world.store, &other.store]).unwrap_err();
        assert!(why.contains("different logs"), "{why}");
        let named = chosen_of(
            &[&other.store, &world.store].map(SimStore::reader),
            Some(LOG),
        );
        assert_eq!(named.unwrap(), 1, "the other one has nothing of it");
        world.put(5000);
        world.archive();
        // A server with another clock or another history has put less, and says that it was later.
        let mut later = World::new(3);
        later.start();
        later.pass(2 * 60 * 1000);
        later.put(10);
        later.archive();
        let why = chosen([&world.store, &later.store]).unwrap_err();
        assert!(why.contains("different histories"), "{why}");
    }
}
