//! A directory of beanstalkd: which files it has, in which order, what is missing, and what each
//! file holds.
//!
//! beanstalkd numbers its files in sequence and removes the oldest first, so none is missing
//! between the first and the last. A crash interrupts a record only in the file that is the last
//! one with records at that time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::binlog::{ID_END, PUT_SIZE_MIN, State, VERSION_SIZE, Version};
use super::jobs::{Jobs, Known, Taken};
use super::walk::{Record, Sink, Walked, walk, with_layout};
use super::{binlog_name, parse_binlog_name};
use crate::storage::disk::zeros::is_file_of_zeros;
use crate::storage::disk::{DirEntry, DirLock, Fs, LockError, ReadFile, read_exact_at};
use crate::storage::error::{Damage, OpenError, ReplayError};
use crate::storage::format::parse_file_name;
use crate::storage::inspect::Progress;
use crate::types::JobId;

/// beanstalkd rounds the size of its files up to a multiple of this, bytes.
const FILE_SIZE_UNIT: u64 = 4096;

/// beanstalkd's log, read from end to end.
///
/// While it exists it holds the directory's lock, if that was possible without writing.
#[derive(Debug)]
pub struct Binlogs {
    /// The directory.
    pub dir: PathBuf,
    /// The files that were read, in order.
    pub files: Vec<BinlogReport>,
    /// Damaged or missing parts, in the order of the files. If empty, no noticeable loss.
    pub damages: Vec<Damage>,
    /// Work that a crash has interrupted, and other remarks; not damage.
    pub notes: Vec<String>,
    /// No id from this one on was seen anywhere, or can have been in a damaged part.
    pub next_id: JobId,
    /// True if nothing else can have changed the log meanwhile.
    pub is_locked: bool,
    pub(super) jobs: Jobs,
    pub(super) fs: Arc<dyn Fs>,
    _lock: Option<Box<dyn DirLock>>,
}

/// One of beanstalkd's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinlogReport {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Whole records.
    pub records: u64,
}

impl Binlogs {
    /// Read beanstalkd's log in `dir`. Changes nothing. `progress` counts bytes.
    ///
    /// # Errors
    /// If it cannot be read: a beanstalkd is running on it ([`OpenError::InUse`]), there is no log
    /// of a known version ([`OpenError::Foreign`]), or the directory or a file cannot be opened
    /// ([`OpenError::Io`]). Damage is not an error, nor are bytes that the disk does not return.
    pub fn read(fs: Arc<dyn Fs>, dir: &Path, progress: Progress<'_>) -> Result<Binlogs, OpenError> {
        let lock = lock(&*fs, dir)?;
        let mut binlogs = Binlogs::read_locked(fs, dir, progress)?;
        binlogs.is_locked = lock.is_some();
        binlogs._lock = lock;
        Ok(binlogs)
    }

    /// The same for a caller that holds the directory's lock.
    pub(super) fn read_locked(
        fs: Arc<dyn Fs>,
        dir: &Path,
        progress: Progress<'_>,
    ) -> Result<Binlogs, OpenError> {
        let names = fs
            .read_dir(dir)
            .map_err(|error| OpenError::io("list", dir, &error))?;
        let numbers = numbers(&names);
        if numbers.is_empty() {
            return Err(not_beanstalkds(dir, &names));
        }
        let mut reading = Reading {
            fs: &*fs,
            dir,
            name: String::new(),
            jobs: Jobs::default(),
            files: Vec::new(),
            damages: Vec::new(),
            notes: strangers(&names),
            is_last_cut: false,
            torn: Vec::new(),
            done: 0,
            total: numbers.iter().map(|(_, size)| size).sum(),
            progress,
        };
        for (index, (number, _)) in numbers.iter().enumerate() {
            if let Some((before, _)) = index.checked_sub(1).and_then(|before| numbers.get(before)) {
                reading.note_gap(*before, *number);
            }
            reading.read_file(&binlog_name(*number))?;
        }
        reading.note_cut();
        reading.judge_torn();
        reading.judge_orphans();
        let Reading {
            jobs,
            files,
            mut damages,
            notes,
            ..
        } = reading;
        damages.sort_by_key(|(file, damage)| (*file, damage.range));
        let damages: Vec<_> = damages.into_iter().map(|(_, damage)| damage).collect();
        Ok(Binlogs {
            dir: dir.to_owned(),
            files,
            next_id: JobId(
                jobs.next_id()
                    .0
                    .saturating_add(lost_ids(&damages))
                    .min(ID_END),
            ),
            damages,
            notes,
            is_locked: true,
            jobs,
            fs,
            _lock: None,
        })
    }

    /// True if there is no noticeable loss.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.damages.is_empty()
    }

    /// How many jobs there are.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// All jobs in the order in which their bodies lie in the files.
    pub(super) fn in_file_order(&self) -> Vec<&Known> {
        let mut jobs: Vec<_> = self.jobs.iter().collect();
        jobs.sort_unstable_by_key(|known| (known.file, known.body));
        jobs
    }

    /// The buried jobs, in the order in which they were buried.
    pub(super) fn in_bury_order(&self) -> Vec<&Known> {
        let is_buried = |known: &&Known| known.job.state == State::Buried;
        let mut jobs: Vec<_> = self.jobs.iter().filter(is_buried).collect();
        jobs.sort_unstable_by_key(|known| known.buried);
        jobs
    }

    /// Open the file that holds a job's body.
    pub(super) fn open(&self, file: u32) -> Result<Arc<dyn ReadFile>, OpenError> {
        let path = self.dir.join(&self.files[file as usize].name);
        self.fs
            .open_read(&path)
            .map_err(|error| OpenError::io("read", &path, &error))
    }
}

/// The greatest number of jobs in the damaged parts. A missing file lies before others, and so do
/// its ids.
fn lost_ids(damages: &[Damage]) -> u64 {
    let ranges = damages.iter().filter_map(|damage| damage.range);
    ranges.map(|(_, size)| size / PUT_SIZE_MIN).sum()
}

/// The numbers of beanstalkd's files, in order, and their sizes.
fn numbers(names: &[DirEntry]) -> Vec<(u32, u64)> {
    let is_file = |entry: &&DirEntry| entry.is_file;
    let number = |entry: &DirEntry| Some((parse_binlog_name(&entry.name)?, entry.size));
    let mut numbers: Vec<_> = names.iter().filter(is_file).filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Names that are similar to those of beanstalkd's files.
fn strangers(names: &[DirEntry]) -> Vec<String> {
    let is_stranger = |entry: &&DirEntry| {
        let is_like = entry.name.starts_with(super::NAME_PREFIX);
        is_like && !(entry.is_file && parse_binlog_name(&entry.name).is_some())
    };
    let mut strangers: Vec<_> = names.iter().filter(is_stranger).collect();
    strangers.sort_by(|a, b| a.name.cmp(&b.name));
    let say =
        |entry: &DirEntry| format!("{}: no file that beanstalkd writes; not read", entry.name);
    strangers.into_iter().map(say).collect()
}

fn not_beanstalkds(dir: &Path, names: &[DirEntry]) -> OpenError {
    let is_bsds = names
        .iter()
        .any(|entry| parse_file_name(&entry.name).is_some());
    let what = if is_bsds {
        "this is bsd's log already, not beanstalkd's"
    } else {
        "there is no log of beanstalkd's here: no file is called binlog.1 or so; give the \
             directory that beanstalkd's -b names"
    };
    OpenError::Foreign {
        path: dir.to_owned(),
        what: what.to_owned(),
    }
}

/// Lock the directory, if that is possible without writing to it.
fn lock(fs: &dyn Fs, dir: &Path) -> Result<Option<Box<dyn DirLock>>, OpenError> {
    match fs.share_dir(dir) {
        Err(LockError::Io(_)) => Ok(None),
        lock => lock.map(Some).map_err(|error| OpenError::lock(dir, error)),
    }
}

/// A directory that is being read.
struct Reading<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    /// The file that is being read.
    name: String,
    jobs: Jobs,
    files: Vec<BinlogReport>,
    /// With the index of the file, or of the one after a gap.
    damages: Vec<(u32, Damage)>,
    notes: Vec<String>,
    /// The file that was read last ends with a record, and is not as long as beanstalkd makes files.
    is_last_cut: bool,
    /// Records that a crash interrupted: file, offset, bytes.
    torn: Vec<(u32, u64, u64)>,
    done: u64,
    total: u64,
    progress: Progress<'a>,
}

impl Reading<'_> {
    fn note_gap(&mut self, before: u32, next: u32) {
        let what = match next - before {
            1 => return,
            2 => format!("{} is missing", binlog_name(before + 1)),
            _ => {
                let (first, last) = (binlog_name(before + 1), binlog_name(next - 1));
                format!("{first} to {last} are missing")
            }
        };
        let what = format!(
            "{what}; the jobs in there are lost, and what happened there to others is not known"
        );
        self.damage(Damage::new(binlog_name(before + 1), None, what));
    }

    fn read_file(&mut self, name: &str) -> Result<(), OpenError> {
        let path = self.dir.join(name);
        let io = |error| OpenError::io("read", &path, &error);
        let file = self.fs.open_read(&path).map_err(io)?;
        let size = file.size().map_err(io)?;
        name.clone_into(&mut self.name);
        let walked = match version(&*file, size, &path)? {
            Some(version) => {
                // What the disk does not return is reported when it is read.
                let version = with_layout(&*file, version).unwrap_or(version);
                walk(name, &*file, version, self)
            }
            None => self.note_empty(size),
        };
        if let Some((at, torn)) = walked.torn {
            self.torn.push((self.file(), at, torn));
        }
        self.is_last_cut = walked.is_full && !size.is_multiple_of(FILE_SIZE_UNIT);
        self.done += size;
        self.files.push(BinlogReport {
            name: name.to_owned(),
            size,
            records: walked.records,
        });
        Ok(())
    }

    fn note_empty(&mut self, size: u64) -> Walked {
        self.notes.push(format!(
            "{}: nothing in its {size} bytes, as beanstalkd leaves a file that it could not begin",
            self.name
        ));
        Walked::default()
    }

    /// Only when it goes on in the next file does beanstalkd cut one to its records.
    fn note_cut(&mut self) {
        if self.is_last_cut {
            self.notes.push(format!(
                "{}: it ends with a record; beanstalkd leaves its newest file longer than that, so \
                 if this is a copy, compare its size with the original's",
                self.name
            ));
        }
    }

    /// The index of the file that is being read.
    fn file(&self) -> u32 {
        self.files.len() as u32
    }

    /// A torn record after which beanstalkd continued: a crash interrupted it, or the disk has lost
    /// the rest of it.
    fn judge_torn(&mut self) {
        for (file, at, size) in std::mem::take(&mut self.torn) {
            let report = &self.files[file as usize];
            let is_last = self.files[file as usize + 1..]
                .iter()
                .all(|later| later.records == 0);
            let what = "a record that stops short: a crash interrupted it";
            let mut damage = Damage::new(
                report.name.clone(),
                Some((at, size)),
                format!("{what}; it was never acknowledged"),
            );
            if is_last {
                self.notes.push(damage.to_string());
            } else {
                damage.what = format!("{what}, or the disk has lost what followed");
                self.damages.push((file, damage));
            }
        }
    }

    fn judge_orphans(&mut self) {
        for (id, orphan) in self.jobs.orphans() {
            let damage = Damage {
                file: self.files[orphan.file as usize].name.clone(),
                range: Some((orphan.at, 0)),
                what: "a change of a job that has no other record".to_owned(),
                jobs: vec![id],
            };
            self.damages.push((orphan.file, damage));
        }
    }
}

impl Sink for Reading<'_> {
    fn record(&mut self, at: u64, record: Record) -> Result<(), ReplayError> {
        let file = self.file();
        match self.jobs.take(file, at, record)? {
            Taken::AsExpected => {}
            Taken::Doubtful(what) => {
                let name = &self.name;
                self.notes.push(format!("{name} at byte {at}: {what}"));
            }
            Taken::Damaged(what) => {
                self.damage(Damage::new(self.name.clone(), Some((at, 0)), what))
            }
        }
        Ok(())
    }

    fn damage(&mut self, damage: Damage) {
        let file = self.file();
        self.damages.push((file, damage));
    }

    fn progress(&mut self, done: u64) {
        (self.progress)(self.done + done, self.total);
    }
}

/// The version of a file; `None` if the file is empty.
fn version(file: &dyn ReadFile, size: u64, path: &Path) -> Result<Option<Version>, OpenError> {
    let mut bytes = [0; VERSION_SIZE as usize];
    let there = bytes.len().min(size as usize);
    read_exact_at(file, &mut bytes[..there], 0)
        .map_err(|error| OpenError::io("read", path, &error))?;
    match Version::decode(bytes) {
        Ok(version) => Ok(Some(version)),
        Err(0)
            if is_file_of_zeros(file, size)
                .map_err(|error| OpenError::io("read", path, &error))? =>
        {
            Ok(None)
        }
        Err(unknown) => Err(OpenError::Foreign {
            path: path.to_owned(),
            what: format!(
                "this file has format version {unknown}; versions 5 and 7, of beanstalkd 1.4 and \
                 later on little-endian machines, can be read; if the other files have one of \
                 these, the beginning of this one is damaged: import a copy of the directory \
                 without it"
            ),
        }),
    }
}
