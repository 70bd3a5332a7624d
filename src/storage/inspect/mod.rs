//! Reading a log without changing it: the basis of `bsd-wal`.
//!
//! | where | what |
//! |---|---|
//! | `opened` | who else may use the directory; a backup as a log |
//! | `index` | the places of each job's records |
//! | `runs` | a compact map of jobs; `rows`: its tables with narrow columns |
//! | `losses` | what damage means for jobs |
//! | `jobs` | one job, read back |
//! | `beyond` | attributes of jobs, and settings |
//! | `kicked` | how a start finishes interrupted kicks |
//! | `history` | everything that is known about one job |
//! | `telling` | the same, in words |
//! | `picture` | where the log is alive in its files |
//! | `bodies` | bodies as separate files |
//! | `repair` | a new log of everything that survives |
//!
//! The code that recovery uses lists the files, reads the frames and judges the ends: a log is
//! intact here exactly when a server starts on it. The difference comes after that: recovery stops
//! at damage; this continues past it, and past bytes that the disk does not return.
//!
//! Invariants: nothing in the directory is created, written, renamed or removed; memory grows with
//! the jobs, not with their bodies or the log.

mod beyond;
mod bodies;
pub mod history;
mod index;
mod jobs;
mod kicked;
mod losses;
mod opened;
mod picture;
pub mod repair;
mod rows;
mod runs;
mod telling;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) use self::index::JobIndex;
use self::losses::Losses;
use crate::storage::convert::backup::Manifest;
use crate::storage::disk::{DirLock, ReadFile, ReadFs};
use crate::storage::error::{Damage, OpenError, ReplayError};
use crate::storage::format::{JobEvent, LogId, Record};
use crate::storage::log::files::Files;
use crate::storage::log::kicks::Kicks;
use crate::storage::log::skip::IDS_SKIPPED;
use crate::storage::read::{Found, Sink, Source, Survey, walk};
use crate::types::{JobId, JobState, Place, Position};

pub use self::beyond::SettingRecord;
pub use self::bodies::Bodies;
pub use self::jobs::{JobRecord, JobSummary, PauseRecord};
pub use self::losses::Loss;
pub use self::opened::{Access, Opened};
pub use self::picture::{Cell, Pin, Strip};
pub use self::telling::attributes_in_words;
pub use crate::storage::read::{SegmentReport, TornTail};

/// Reports the progress of reading from time to time: bytes done, bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A log that was read from end to end.
///
/// While it exists it keeps writers out of the directory, if that is possible.
#[derive(Debug)]
pub struct Inspection {
    /// The directory.
    pub dir: PathBuf,
    /// The log's identity.
    pub log: LogId,
    /// The files of the log that are there, in order.
    pub segments: Vec<SegmentReport>,
    /// Damage to acknowledged data, in the order of history. If empty, a server starts on the log.
    pub losses: Vec<Loss>,
    /// Bytes that a crash left after the end of the log; this is not damage.
    pub torn: Option<TornTail>,
    /// The log ends with the marker of a clean stop.
    pub clean_stop: bool,
    /// No id from this one on was seen anywhere.
    pub next_id: JobId,
    /// bsd's files that are not part of the log's history.
    pub leftovers: Vec<Leftover>,
    /// Files that are not this log's.
    pub strangers: Vec<String>,
    /// True if nothing else can have changed the log meanwhile.
    pub is_locked: bool,
    /// The log was in use: this is its state at one instant. `None`: the whole log was read.
    pub live: Option<Live>,
    /// True if this is a backup.
    pub is_backup: bool,
    /// The backup's list of files, unless that is damaged.
    pub backup: Option<Manifest>,
    files: Files<dyn ReadFile>,
    index: JobIndex,
    /// Jobs that the next start kicks, because a kick of several jobs was interrupted.
    kicked: Vec<JobId>,
    _lock: Option<Box<dyn DirLock>>,
}

/// How far a log in use was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// Where the log ended when it was read; what follows is not judged.
    pub end: Position,
    /// According to the log itself, it was on stable storage up to here: a crash at that instant
    /// might have lost what follows.
    pub durable: Position,
}

impl Inspection {
    /// Read every byte of the log in `dir`, or of a backup. Changes nothing. Others may read it
    /// meanwhile, but not write to it.
    ///
    /// # Errors
    /// If it cannot be checked: it is in use ([`OpenError::InUse`]), there is no log of this
    /// version ([`OpenError::Foreign`]), or the directory or a file cannot be opened
    /// ([`OpenError::Io`]). Damage is not an error, nor are bytes that the disk does not return.
    pub fn read(
        fs: Arc<dyn ReadFs>,
        dir: &Path,
        progress: Progress<'_>,
    ) -> Result<Inspection, OpenError> {
        Opened::new(fs, dir, Access::Shared, progress)?.inspect(progress)
    }

    /// Read the log in `dir` while a server may be using it, without its lock: every byte of its
    /// state at one instant, up to the end of the last frame. Changes nothing, and does not affect
    /// the server.
    ///
    /// # Errors
    /// Those of [`Inspection::read`], except [`OpenError::InUse`].
    pub fn read_live(
        fs: Arc<dyn ReadFs>,
        dir: &Path,
        progress: Progress<'_>,
    ) -> Result<Inspection, OpenError> {
        Opened::new(fs, dir, Access::Live, progress)?.inspect(progress)
    }

    fn read_source(
        source: &Source,
        dir: &Path,
        progress: Progress<'_>,
    ) -> Result<Inspection, OpenError> {
        let mut survey = survey(source, dir)?;
        let mut fold = Fold {
            index: JobIndex::new(),
            losses: Losses::default(),
            kicks: Kicks::default(),
            progress,
        };
        let walked = walk(source, dir, &mut survey, &mut fold)?;
        let Fold {
            index,
            losses,
            kicks,
            ..
        } = fold;
        let (losses, next_id) = losses.judge(&index);
        let leftovers = leftovers(&survey);
        let files = survey.files;
        let segments = walked.segments.into_iter().map(|(handle, mut report)| {
            report.live_bytes = files.get(handle).live();
            report
        });
        let mut inspection = Inspection {
            dir: dir.to_owned(),
            log: files.log(),
            segments: segments.collect(),
            losses,
            torn: walked.torn,
            clean_stop: walked.end.is_some_and(|end| end.clean_stop()),
            next_id: survey.next_id.max(next_id),
            leftovers,
            strangers: survey.strangers,
            is_locked: false,
            live: None,
            is_backup: false,
            backup: None,
            files,
            index,
            kicked: Vec::new(),
            _lock: None,
        };
        inspection.kicked = inspection.find_kicked(kicks.list());
        Ok(inspection)
    }

    /// True if a server starts on the log.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.losses.is_empty()
    }

    /// Bytes of records that replay needs, and of records that it does not need.
    #[must_use]
    pub fn live_and_dead_bytes(&self) -> (u64, u64) {
        let sum = |bytes: fn(&SegmentReport) -> u64| self.segments.iter().map(bytes).sum();
        (
            sum(|segment| segment.live_bytes),
            sum(SegmentReport::dead_bytes),
        )
    }

    /// The number of jobs.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.index.len()
    }

    /// All jobs in the order of their ids, without bodies.
    pub fn jobs(&self) -> impl Iterator<Item = JobSummary<'_>> {
        self.index.iter().map(|(id, entry)| JobSummary {
            id,
            tube: self.index.tube(id, &entry),
            state: if self.is_kicked(id) {
                JobState::Ready
            } else {
                entry.state
            },
            body_size: entry.body_size,
        })
    }

    /// True if there is a job with this id.
    #[must_use]
    pub fn has_job(&self, id: JobId) -> bool {
        self.index.contains(id)
    }
}

/// True if a log with this next id has left out ids, because the end of a history may have been lost: a
/// restore, a promotion and a repair leave out [`IDS_SKIPPED`] at least.
#[must_use]
pub fn are_ids_left_out(next_id: JobId) -> bool {
    next_id.0 > IDS_SKIPPED
}

/// A file of bsd that is not part of the log's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its name.
    pub name: String,
    /// Its description.
    pub what: &'static str,
    /// Bytes that it reserves for the log; 0 if none.
    pub reserved: u64,
}

/// Survey a directory that must hold a log.
fn survey(source: &Source, dir: &Path) -> Result<Survey, OpenError> {
    let found = Found::read(source, dir)?;
    if found.is_empty() {
        return Err(not_a_log(dir, &found));
    }
    Survey::of(source, dir, found)
}

fn not_a_log(dir: &Path, found: &Found) -> OpenError {
    let is_beanstalkds = found
        .strangers
        .iter()
        .any(|name| name.starts_with("binlog."));
    let what = if is_beanstalkds {
        "this is beanstalkd's log, not bsd's; give the directory that bsd-server's -b names".into()
    } else {
        found.lost().unwrap_or_else(|| {
            "there is no log here: no file is called segment-…; give the directory that \
             bsd-server's -b names"
                .into()
        })
    };
    OpenError::Foreign {
        path: dir.to_owned(),
        what,
    }
}

fn leftovers(survey: &Survey) -> Vec<Leftover> {
    let each = |names: &[String], what: &'static str| -> Vec<Leftover> {
        let leftover = |name: &String| Leftover {
            name: name.clone(),
            what,
            reserved: 0,
        };
        names.iter().map(leftover).collect()
    };
    let spares = survey.spares.iter().map(|(name, size)| Leftover {
        name: name.clone(),
        what: "space set aside; it holds nothing",
        reserved: *size,
    });
    [
        spares.collect(),
        each(
            &survey.cuts,
            "saved by a start: what a crash had interrupted, never acknowledged",
        ),
        each(
            &survey.useless,
            "left by interrupted work; the next start removes it",
        ),
        each(
            &survey.segments_after_torn_tail,
            "a segment after a torn tail, never acknowledged; the next start sets it aside",
        ),
        each(
            &survey.unlisted,
            "a segment that the log does not list: the input or output of a compaction that was \
             interrupted",
        ),
    ]
    .concat()
}

/// A record as it lies in the log.
#[derive(Debug, Clone, Copy)]
pub struct RecordPlace<'a> {
    /// The file.
    pub file: &'a str,
    /// Its place in history: the segment, and the offset in its file. A file that compaction wrote
    /// counts as its first segment.
    pub position: Position,
    /// Bytes.
    pub size: usize,
    /// It was salvaged from a damaged frame.
    pub is_salvaged: bool,
}

/// Read the log in `dir` and pass every record to `visit`, in the order of history, until it
/// returns `false`. Takes the same memory for any log. Returns the damage that was found, without
/// its meaning for jobs.
///
/// # Errors
/// Those of [`Inspection::read`].
pub fn read_records(
    fs: Arc<dyn ReadFs>,
    dir: &Path,
    visit: &mut dyn FnMut(RecordPlace<'_>, &Record<'_>) -> bool,
    progress: Progress<'_>,
) -> Result<Vec<Damage>, OpenError> {
    Opened::new(fs, dir, Access::Shared, progress)?.records(visit, progress)
}

/// Collects the records in an index, and the losses.
struct Fold<'a> {
    index: JobIndex,
    losses: Losses,
    kicks: Kicks,
    progress: Progress<'a>,
}

impl Sink for Fold<'_> {
    fn begin_file(&mut self, compacted: bool) {
        self.losses.begin_file(compacted);
    }

    fn record(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
        is_salvaged: bool,
    ) -> Result<(), ReplayError> {
        if is_salvaged {
            self.losses.salvaged(record)
        } else {
            self.losses.note(record, |id| self.index.contains(id))
        }
        self.kicks.note(record);
        self.index.fold(files, place, record)
    }

    fn damage(&mut self, damage: Damage, compacted: bool, unknown_bytes: Option<u64>) {
        self.losses.begin_damage(damage, compacted, unknown_bytes);
    }

    fn claim(&mut self, place: Place, job: JobId, event: JobEvent) {
        self.losses.claimed(place, job, event);
    }

    fn set_unaccounted(&mut self, unknown_bytes: Option<u64>) {
        self.losses.set_unaccounted(unknown_bytes);
    }

    fn progress(&mut self, done: u64, total: u64) {
        (self.progress)(done, total);
    }
}

/// Passes records on and keeps nothing.
struct Pass<'a> {
    visit: &'a mut dyn FnMut(RecordPlace<'_>, &Record<'_>) -> bool,
    progress: Progress<'a>,
    is_over: bool,
    damages: Vec<Damage>,
    /// The name of the file with this handle.
    file: (u32, String),
}

impl Sink for Pass<'_> {
    fn begin_file(&mut self, _: bool) {}

    fn record(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
        is_salvaged: bool,
    ) -> Result<(), ReplayError> {
        let entry = files.get(place.file).entry;
        if self.file.0 != place.file {
            self.file = (place.file, entry.file_name());
        }
        let position = Position::new(entry.first, place.offset);
        let size = record.size();
        let place = RecordPlace {
            file: &self.file.1,
            position,
            size,
            is_salvaged,
        };
        self.is_over |= !(self.visit)(place, record);
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn damage(&mut self, damage: Damage, _: bool, _: Option<u64>) {
        self.damages.push(damage);
    }

    fn claim(&mut self, _: Place, _: JobId, _: JobEvent) {}

    fn set_unaccounted(&mut self, _: Option<u64>) {}

    fn progress(&mut self, done: u64, total: u64) {
        (self.progress)(done, total);
    }
}
