//! A data directory that is missing or empty is restored before a server starts on it.
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
use bsd::storage::OpenError;
use bsd::storage::disk::Fs;
use bsd::storage::format::{LogId, parse_file_name};
use bsd::storage::marker_file::{INSIDE_WHOLE, is_as_empty};
use bsd::types::Now;

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

/// False for a directory that is missing or empty.
fn has_log(fs: &dyn Fs, dir: &Path) -> Result<bool, OpenError> {
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
