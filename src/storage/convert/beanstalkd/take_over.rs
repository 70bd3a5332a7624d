//! Starting a server on beanstalkd's directory: its log is imported in place, once.
//!
//! The new log is built in the subdirectory [`IMPORT_NAME`], which gets its name after all of it is
//! durable. From then on files only move: beanstalkd's into that directory, the segments out of it.
//! When all have moved, it is renamed to [`IMPORTED_PREFIX`]. So at each moment every file of
//! beanstalkd is unchanged in one of two places, and:
//!
//! | content | what a start with `--import` does |
//! |---|---|
//! | beanstalkd's files, no [`IMPORT_NAME`] | starts |
//! | [`IMPORT_NAME`] without a file of beanstalkd's | starts over: beanstalkd may have run since |
//! | [`IMPORT_NAME`] with some of them | continues to move files |
//! | neither | nothing: the directory is bsd's, or empty |
//!
//! While [`IMPORT_NAME`] exists, a start knows that the import is unfinished. beanstalkd's last
//! file is moved first: if beanstalkd were started now, it would create another file of that
//! number, and that is noticed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::import::write_all;
use super::parse_binlog_name;
use super::read::Binlogs;
use crate::storage::disk::{DirEntry, DirLock, Fs};
use crate::storage::error::OpenError;
use crate::storage::format::names::{IMPORT_NAME, IMPORTED_PREFIX, parse_spare_name};
use crate::storage::format::parse_file_name;
use crate::storage::incomplete::INCOMPLETE;
use crate::storage::recover::{Progress, make_data_dir};
use crate::types::Now;

/// Names that are tried at most.
const KEPT_MAX: u32 = 1000;

/// A finished import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenOver {
    /// The number of jobs; `None` if an earlier start had imported them and this one only moved
    /// files.
    pub jobs: Option<u64>,
    /// Where beanstalkd's files are now.
    pub kept: PathBuf,
    /// Remarks about beanstalkd's log.
    pub notes: Vec<String>,
}

/// Lock the directory `dir` for this process and import beanstalkd's log, if there is one. The
/// imported log is durable on return. After an interruption it can be called again.
///
/// # Errors
/// If the directory is in use, beanstalkd's log is damaged or of an unknown version, or the disk is
/// full or fails. beanstalkd's files are never changed.
pub(crate) fn take_over(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    segment_size: u32,
    now: Now,
    progress: Progress<'_>,
) -> Result<(Box<dyn DirLock>, Option<TakenOver>), OpenError> {
    make_data_dir(&**fs, dir)?;
    let lock = fs
        .lock_dir(dir)
        .map_err(|error| OpenError::lock(dir, error))?;
    let place = Place {
        fs,
        dir,
        under_way: dir.join(IMPORT_NAME),
    };
    let taken_over = place.take_over(segment_size, now, progress)?;
    Ok((lock, taken_over))
}

struct Place<'a> {
    fs: &'a Arc<dyn Fs>,
    dir: &'a Path,
    under_way: PathBuf,
}

impl Place<'_> {
    fn take_over(
        &self,
        segment_size: u32,
        now: Now,
        progress: Progress<'_>,
    ) -> Result<Option<TakenOver>, OpenError> {
        let names = self.list(self.dir)?;
        let moved = if names.iter().any(|entry| entry.name == IMPORT_NAME) {
            Some(binlogs(&self.list(&self.under_way)?))
        } else {
            None
        };
        let left = binlogs(&names);
        let mut taken_over = TakenOver {
            jobs: None,
            kept: self.free_name(&names)?,
            notes: Vec::new(),
        };
        match moved {
            None if left.is_empty() => return Ok(None),
            Some(moved) if !moved.is_empty() || left.is_empty() => {
                self.refuse_newer(&left, &moved)?;
            }
            begun => {
                self.refuse_segments(&names)?;
                if begun.is_some() {
                    self.begin_again()?;
                }
                self.import(&mut taken_over, segment_size, now, progress)?;
            }
        }
        self.change_places(left)?;
        self.rename(&self.under_way, &taken_over.kept)?;
        self.sync(self.dir)?;
        Ok(Some(taken_over))
    }

    /// The next build removes what was built.
    fn begin_again(&self) -> Result<(), OpenError> {
        let incomplete = self.dir.join(format!("{IMPORT_NAME}{INCOMPLETE}"));
        self.rename(&self.under_way, &incomplete)?;
        self.sync(self.dir)
    }

    fn import(
        &self,
        taken_over: &mut TakenOver,
        segment_size: u32,
        now: Now,
        progress: Progress<'_>,
    ) -> Result<(), OpenError> {
        let binlogs = Binlogs::read_locked(self.fs.clone(), self.dir, &mut |done, all| {
            progress(done, all);
        })?;
        if !binlogs.is_intact() {
            return Err(damaged(&binlogs));
        }
        let (fs, dir) = (self.fs.clone(), &self.under_way);
        let imported = write_all(&binlogs, fs, dir, segment_size, now, &mut |_, _| ())?;
        taken_over.jobs = Some(imported.jobs);
        taken_over.notes = binlogs.notes;
        Ok(())
    }

    /// Move beanstalkd's files, the last one first, then the segments.
    fn change_places(&self, mut binlogs: Vec<u32>) -> Result<(), OpenError> {
        binlogs.sort_unstable_by(|a, b| b.cmp(a));
        for (count, number) in binlogs.into_iter().enumerate() {
            let name = super::binlog_name(number);
            self.rename(&self.dir.join(&name), &self.under_way.join(&name))?;
            if count == 0 {
                self.sync_both()?;
            }
        }
        for entry in self.list(&self.under_way)? {
            if is_bsds(&entry.name) {
                self.rename(
                    &self.under_way.join(&entry.name),
                    &self.dir.join(&entry.name),
                )?;
            }
        }
        self.sync_both()
    }

    /// beanstalkd was started between two starts of bsd: what it wrote then was not imported.
    fn refuse_newer(&self, left: &[u32], moved: &[u32]) -> Result<(), OpenError> {
        let Some(first_moved) = moved.iter().min() else {
            return Ok(());
        };
        let Some(newer) = left.iter().find(|number| *number >= first_moved) else {
            return Ok(());
        };
        let under_way = self.under_way.display();
        Err(OpenError::Foreign {
            path: self.dir.to_owned(),
            what: format!(
                "an import was interrupted, and beanstalkd has written {} since; import the two \
                 parts by themselves, `bsd-wal import {} --output NEW` and `bsd-wal import \
                 {under_way} --output NEW2`, and choose",
                super::binlog_name(*newer),
                self.dir.display()
            ),
        })
    }

    /// A program must not guess to which of two logs a directory belongs.
    fn refuse_segments(&self, names: &[DirEntry]) -> Result<(), OpenError> {
        match names
            .iter()
            .find(|entry| parse_file_name(&entry.name).is_some())
        {
            None => Ok(()),
            Some(segment) => Err(OpenError::Foreign {
                path: self.dir.to_owned(),
                what: format!(
                    "there are files of beanstalkd's and of bsd's ({}) in one directory; move \
                     those of one of them elsewhere",
                    segment.name
                ),
            }),
        }
    }

    fn free_name(&self, names: &[DirEntry]) -> Result<PathBuf, OpenError> {
        let numbered = (2..KEPT_MAX).map(|number| format!("{IMPORTED_PREFIX}-{number}"));
        let mut candidates = std::iter::once(IMPORTED_PREFIX.to_owned()).chain(numbered);
        let is_free = |name: &String| names.iter().all(|entry| entry.name != *name);
        let free = candidates.find(is_free);
        free.map(|name| self.dir.join(name))
            .ok_or_else(|| OpenError::Foreign {
                path: self.dir.to_owned(),
                what: format!("too many directories {IMPORTED_PREFIX}-…; move them elsewhere"),
            })
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>, OpenError> {
        let list = self.fs.read_dir(dir);
        list.map_err(|error| OpenError::io("list", dir, &error))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), OpenError> {
        let rename = self.fs.rename(from, to);
        rename.map_err(|error| OpenError::io("move", from, &error))
    }

    fn sync(&self, dir: &Path) -> Result<(), OpenError> {
        let sync = self.fs.sync_dir(dir);
        sync.map_err(|error| OpenError::io("sync", dir, &error))
    }

    fn sync_both(&self) -> Result<(), OpenError> {
        self.sync(&self.under_way)?;
        self.sync(self.dir)
    }
}

/// The numbers of beanstalkd's files.
fn binlogs(names: &[DirEntry]) -> Vec<u32> {
    let files = names.iter().filter(|entry| entry.is_file);
    files
        .filter_map(|entry| parse_binlog_name(&entry.name))
        .collect()
}

fn is_bsds(name: &str) -> bool {
    parse_file_name(name).is_some() || parse_spare_name(name).is_some()
}

fn damaged(binlogs: &Binlogs) -> OpenError {
    let dir = binlogs.dir.display();
    let mut what = String::from("beanstalkd's log is damaged, and was left as it is:\n");
    for damage in &binlogs.damages {
        what.push_str(&format!("{damage}\n"));
    }
    what.push_str(&format!(
        "import what survives into another directory with `bsd-wal import {dir} --output NEW`, \
         then start with `-b NEW`"
    ));
    OpenError::Foreign {
        path: binlogs.dir.clone(),
        what,
    }
}
