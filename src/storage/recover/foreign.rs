//! Directories that a start leaves alone.

use std::path::Path;

use crate::storage::disk::{DirEntry, ReadFs};
use crate::storage::error::OpenError;
use crate::storage::format::names::{BACKUP_MANIFEST, CLUSTER_NAME, LOCK_NAME, parse_file_name};
use crate::storage::read::{Found, refuse_interrupted_import};

/// Refuse a directory of beanstalkd without a log of bsd, and a backup: bsd must not change them.
pub(super) fn refuse_foreign(
    fs: &dyn ReadFs,
    dir: &Path,
    names: &[DirEntry],
) -> Result<(), OpenError> {
    refuse_interrupted_import(dir, names)?;
    if names.iter().any(|entry| entry.name == BACKUP_MANIFEST) {
        let show = dir.display();
        return Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "this is a backup, which no server writes to; make a directory of it with `bsd-wal \
                 restore {show} --output NEW`"
            ),
        });
    }
    let is_binlog = |entry: &&DirEntry| {
        let number = entry.name.strip_prefix("binlog.");
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let binlogs = names.iter().filter(is_binlog).count();
    let is_segment = |entry: &DirEntry| parse_file_name(&entry.name).is_some();
    if binlogs == 0 || names.iter().any(is_segment) {
        return Ok(());
    }
    if names.iter().any(|entry| entry.name == LOCK_NAME) {
        fs.share_dir(dir)
            .map_err(|error| OpenError::lock(dir, error))?;
    }
    let show = dir.display();
    Err(OpenError::Foreign {
        path: dir.to_owned(),
        what: format!(
            "this is beanstalkd's log ({binlogs} binlog files), which bsd does not change; make \
             bsd's log from it with `bsd-wal import {show} --output NEW`, then start with `-b NEW`; \
             or start with `-b {show} --import`, which does that once and keeps beanstalkd's files \
             in a subdirectory"
        ),
    })
}

/// Refuse the directory of a member of a cluster: the others do not have what one server writes
/// there by itself. A server that only asked to be a member has no ledger: nothing but the lock.
pub(super) fn refuse_member(
    fs: &dyn ReadFs,
    dir: &Path,
    names: &[DirEntry],
) -> Result<(), OpenError> {
    let is_ledger = |entry: &DirEntry| entry.name == CLUSTER_NAME && !entry.is_file;
    if !names.iter().any(is_ledger) {
        return Ok(());
    }
    let ledger = dir.join(CLUSTER_NAME);
    let found = fs
        .read_dir(&ledger)
        .map_err(|error| OpenError::io("list", &ledger, &error))?;
    if found.iter().all(|entry| entry.name == LOCK_NAME) {
        return Ok(());
    }
    let show = dir.display();
    Err(OpenError::Foreign {
        path: dir.to_owned(),
        what: format!(
            "this is the directory of a member of a cluster; start the member with --cluster, or read \
             the log with bsd-wal. If the cluster is lost, keep this directory as it is, for it may be \
             the only copy, and make one of a single server from it: `bsd-wal ledger recover {show} \
             --output NEW`"
        ),
    })
}

/// A name that only a segment can have, but that no segment of this program has, still indicates a
/// log: a directory with such a file is not new.
pub(super) fn refuse_unknown(dir: &Path, strangers: &[String]) -> Result<(), OpenError> {
    let is_like_a_segment = |name: &&String| name.starts_with("segment-");
    match strangers.iter().find(is_like_a_segment) {
        None => Ok(()),
        Some(name) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "{name:?} is called like the segment of a log, and not as this program calls one; \
                 move it elsewhere if a new log is to be made here"
            ),
        }),
    }
}

/// Refuse a directory that has what only a log leaves, and no segment: to begin a new log here would
/// give out ids again, and hide that all jobs are gone.
pub(super) fn refuse_lost(dir: &Path, found: &Found) -> Result<(), OpenError> {
    match found.lost() {
        None => Ok(()),
        Some(what) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what,
        }),
    }
}
