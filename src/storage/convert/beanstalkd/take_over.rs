//! A server is started on beanstalkd's directory: its log is imported in place, once.
//!
//! The new log is built in the subdirectory [`IMPORT_NAME`], which gets its name when all of it is
//! durable. From then on files only change places: beanstalkd's into that directory, the segments
//! out of it. When all are where they belong it is renamed to [`IMPORTED_PREFIX`]. So at each instant every
//! file of beanstalkd's is there, as it was, in one of two places, and:
//!
//! | what is there | what a start with `--import` does |
//! |---|---|
//! | beanstalkd's files, no [`IMPORT_NAME`] | begins |
//! | [`IMPORT_NAME`] without a file of beanstalkd's | begins anew: beanstalkd may have run since |
//! | [`IMPORT_NAME`] with some of them | goes on changing places |
//! | neither | nothing: the directory is bsd's, or empty |
//!
//! While [`IMPORT_NAME`] is there no other start takes the directory for bsd's. beanstalkd's last file
//! is the first to go: were beanstalkd started now it would begin another of that number, and that is
//! noticed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::import::write_all;
use super::parse_binlog_name;
use super::read::Binlogs;
use crate::storage::convert::build::INCOMPLETE;
use crate::storage::disk::{DirEntry, DirLock, Fs};
use crate::storage::error::OpenError;
use crate::storage::format::names::{IMPORT_NAME, IMPORTED_PREFIX, parse_spare_name};
use crate::storage::format::parse_file_name;
use crate::storage::recover::{Progress, make_data_dir};
use crate::types::Now;

/// So many are looked for.
const KEPT_MAX: u32 = 1000;

/// An import that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenOver {
    /// How many jobs; `None` when an earlier start had imported them and this one moved files.
    pub jobs: Option<u64>,
    /// Where beanstalkd's files are now.
    pub kept: PathBuf,
    /// What is worth saying of beanstalkd's log.
    pub notes: Vec<String>,
}

/// Take the directory `dir` for this process and import beanstalkd's log, if there is one.
/// What was imported is durable on return. Interrupted, it can be called again.
///
/// # Errors
/// When the directory is in use, beanstalkd's log is damaged or of an unknown version, or the disk is
/// full or fails. No file of beanstalkd's is ever changed.
pub(crate) fn take_over(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    segment_size: u32,
    now: Now,
    progress: Progress<'_>,
) -> Result<(Box<dyn DirLock>, Option<TakenOver>), OpenError> {
    make_data_dir(&**fs, dir)?;
    let lock = fs.lock_dir(dir).map_err(|error| error.at(dir))?;
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
        let moved = match names.iter().any(|entry| entry.name == IMPORT_NAME) {
            true => Some(binlogs(&self.list(&self.under_way)?)),
            false => None,
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
                    self.begin_anew()?;
                }
                self.import(&mut taken_over, segment_size, now, progress)?;
            }
        }
        self.change_places(left)?;
        self.rename(&self.under_way, &taken_over.kept)?;
        self.sync(self.dir)?;
        Ok(Some(taken_over))
    }

    /// What was built is given to the next build to clear away.
    fn begin_anew(&self) -> Result<(), OpenError> {
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

    /// Which of two logs the directory is for is not for a program to guess.
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
