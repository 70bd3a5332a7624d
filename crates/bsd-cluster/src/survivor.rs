//! Read the jobs of the last member that is left of a cluster, and makes a server of it.
//!
//! A member has two things on its disk. Its log has what it knew to be committed. Its ledger also has
//! entries that it answered for and did not know to be committed: a majority may have had them, and
//! clients may have been told. So all of them are taken over, and those that are not certain are
//! counted apart. What the others had, and this member had not, cannot be known here.
//!
//! The directory of the member is only read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raft::eraftpb::{Entry, EntryType};

use super::install;
use super::ledger::LedgerView;
use bsd::storage::OpenError;
use bsd::storage::convert::rebuild::{Rebuild, Rebuilt};
use bsd::storage::disk::{DirLock, Fs, read_exact_at};
use bsd::storage::format::{Record, Stamp, entry_records, parse_file_name};
use bsd::types::{JobId, Now, SegmentId};

/// Bytes of a file of the log that are copied at once.
const CHUNK: u64 = 1 << 20;
/// Bytes of entries that are read at once, more or less by one entry.
const READ_AT_ONCE: u64 = 1 << 20;

/// Why a survivor could not be read, or nothing was made of it.
#[derive(Debug)]
pub enum SurvivorError {
    /// It cannot be done with this directory. Says why, and what can be done.
    Refused(String),
    /// Reading it or writing the new directory failed.
    Open(OpenError),
}

impl fmt::Display for SurvivorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SurvivorError::Refused(why) => f.write_str(why),
            SurvivorError::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SurvivorError {}

impl From<OpenError> for SurvivorError {
    fn from(error: OpenError) -> SurvivorError {
        SurvivorError::Open(error)
    }
}

/// Receiver of each entry: its stamp, and its records.
pub(crate) type Visit<'a, E> = &'a mut dyn FnMut(Stamp, &[Record<'_>]) -> Result<(), E>;

/// The directory of a member whose server does not run.
#[derive(Debug)]
pub struct Survivor {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    ledger: LedgerView,
    /// No server starts on it meanwhile.
    _lock: Box<dyn DirLock>,
}

/// Effects of entries, by the jobs that they are about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// How many entries.
    pub entries: u64,
    /// Jobs that were put.
    pub put: Vec<JobId>,
    /// Jobs that were deleted.
    pub deleted: Vec<JobId>,
    /// Other changes: of a job's state, a pause, a kick.
    pub others: u64,
}

impl Changes {
    /// Take those of one more entry into account.
    pub fn count(&mut self, records: &[Record<'_>]) {
        self.entries += 1;
        for record in records {
            match *record {
                Record::Put { id, .. } => self.put.push(id),
                Record::Delete { id, .. } => self.deleted.push(id),
                Record::Manifest { .. } | Record::Switch { .. } => {}
                _ => self.others += 1,
            }
        }
    }
}

/// A server that was made of a survivor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The jobs that it has.
    pub jobs: u64,
    /// Up to which entry the log of the member went.
    pub log: u64,
    /// Up to which entry the member knew that a majority has everything.
    pub committed: u64,
    /// The last entry that was taken over.
    pub last: u64,
    /// Effects of the entries after `committed`: they may or may not have been acknowledged.
    pub uncertain: Changes,
}

impl Survivor {
    /// Read the ledger in the data directory `dir`. Nothing on the disk changes; no server starts
    /// there until this is dropped.
    ///
    /// # Errors
    /// `Refused`: it is no member's, or a start of the member has to come first. `Open`: a server runs
    /// there, or the disk does not answer, or not even the beginning of the ledger can be read.
    pub fn open(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Survivor, SurvivorError> {
        let lock = fs.share_dir(dir);
        let lock = lock.map_err(|error| OpenError::lock(dir, error))?;
        let Some(ledger) = LedgerView::read(&**fs, dir)? else {
            return Err(SurvivorError::Refused(format!(
                "{} has no ledger: it is not the directory of a member of a cluster; a server \
                 starts on it, and `bsd-wal verify` checks it",
                dir.display()
            )));
        };
        if install::is_under_way(fs, &super::ledger_dir(dir))? {
            return Err(SurvivorError::Refused(format!(
                "{} was getting the log of another member, all of which is there: start the member \
                 once with --cluster, which goes on with that whether others run or not, stop it, and \
                 run this again",
                dir.display()
            )));
        }
        Ok(Survivor {
            fs: fs.clone(),
            dir: dir.to_owned(),
            ledger,
            _lock: lock,
        })
    }

    /// Its ledger.
    #[must_use]
    pub fn ledger(&self) -> &LedgerView {
        &self.ledger
    }

    /// Up to which entry it knew that a majority has everything, as its ledger says. Its log may say
    /// more.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.ledger.hard_state().commit
    }

    /// Pass each entry from `from` on, or from the first one after it that there is, by its stamp and
    /// with its records, until `visit` returns an error.
    ///
    /// # Errors
    /// That of `visit`, or of the disk; or an entry is not what a member writes.
    pub fn entries<E: From<SurvivorError>>(&self, from: u64, visit: Visit<'_, E>) -> Result<(), E> {
        let mut next = from.max(self.ledger.base().index + 1);
        while next <= self.ledger.last_index() {
            let entries = self.ledger.entries(next, READ_AT_ONCE);
            let entries = entries.map_err(|error| SurvivorError::Open(error.into()))?;
            for entry in &entries {
                let stamp = Stamp {
                    index: entry.index,
                    term: entry.term,
                };
                visit(stamp, &self.records(entry)?)?;
                next = entry.index + 1;
            }
        }
        Ok(())
    }

    fn records<'a>(&self, entry: &'a Entry) -> Result<Vec<Record<'a>>, SurvivorError> {
        if entry.get_entry_type() != EntryType::EntryNormal || entry.data.is_empty() {
            return Ok(Vec::new());
        }
        let records = entry_records(&entry.data).map(|it| it.0);
        records.ok_or_else(|| {
            SurvivorError::Refused(format!(
                "entry {} in the ledger of {} is not what a log has formed; was it written by a \
                 later version?",
                entry.index,
                self.dir.display()
            ))
        })
    }

    /// Make the data directory `output`, which must be empty or missing, of the log and all entries of
    /// the ledger: a server of its own, or the first member of a new cluster. It leaves out ids that
    /// the lost members may have given out. Durable on return; after an error nothing is there, and the
    /// call can be repeated. With `partial` what is before damage of the ledger is enough.
    ///
    /// # Errors
    /// `Refused`: the ledger is damaged, or does not follow the log. `Open`: the log is damaged, or the
    /// disk is full or fails.
    pub fn recover(
        &self,
        output: &Path,
        partial: bool,
        now: Now,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Recovered, SurvivorError> {
        if let Some(damage) = self.ledger.damage()
            && !partial
        {
            return Err(SurvivorError::Refused(format!(
                "{damage}; --partial takes over what is before that, up to entry {}",
                self.ledger.last_index()
            )));
        }
        let mut rebuilt = self.copy_log(output, now, progress)?;
        let stamp = rebuilt.stamp();
        let base = self.ledger.base().index;
        if base > stamp.index {
            return Err(SurvivorError::Refused(format!(
                "the log in {} goes up to entry {}, and the ledger begins after entry {base}: what is \
                 between them is in neither, so the files of two directories may be mixed; \
                 `bsd-wal repair` makes a server of the log alone",
                self.dir.display(),
                stamp.index
            )));
        }
        let mut done = Recovered {
            jobs: 0,
            log: stamp.index,
            committed: self.committed().max(stamp.index),
            last: self.ledger.last_index().max(stamp.index),
            uncertain: Changes::default(),
        };
        let mut last = stamp;
        self.entries(stamp.index + 1, &mut |entry, records| {
            for record in records {
                rebuilt.apply(record)?;
            }
            if entry.index > done.committed {
                done.uncertain.count(records);
            }
            last = entry;
            Ok::<(), SurvivorError>(())
        })?;
        rebuilt.set_stamp(last);
        done.jobs = rebuilt.jobs();
        rebuilt.begin_life(SegmentId(0))?;
        rebuilt.finish(None)?;
        Ok(done)
    }

    /// A copy of the log, opened as a start opens it.
    fn copy_log(
        &self,
        output: &Path,
        now: Now,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Rebuilt, SurvivorError> {
        let io = |doing, path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| OpenError::io(doing, &path, &error)
        };
        let mut files = self.fs.read_dir(&self.dir).map_err(io("list", &self.dir))?;
        files.retain(|entry| parse_file_name(&entry.name).is_some());
        files.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let total = files.iter().map(|entry| entry.size).sum();
        let mut rebuild = Rebuild::begin(&self.fs, output)?;
        let mut done = 0;
        for entry in files {
            let path = self.dir.join(&entry.name);
            let file = self.fs.open_read(&path).map_err(io("open", &path))?;
            let mut at = 0;
            loop {
                let mut bytes = vec![0; CHUNK.min(entry.size - at) as usize];
                read_exact_at(&*file, &mut bytes, at).map_err(io("read", &path))?;
                rebuild.write(&entry.name, at, &bytes)?;
                at += bytes.len() as u64;
                progress(done + at, total);
                if at == entry.size {
                    break;
                }
            }
            done += entry.size;
        }
        rebuild.open(None, now).map_err(|error| match error {
            OpenError::Damaged { damages, .. } => SurvivorError::Open(OpenError::Damaged {
                dir: self.dir.clone(),
                damages,
            }),
            error => error.into(),
        })
    }
}
