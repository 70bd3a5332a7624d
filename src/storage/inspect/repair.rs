//! A new log of everything that survives in an old one.
//!
//! [`Build`] writes the new log, with a log id of its own: no file of the old log can be mistaken
//! for one of the new. If it is unknown whether a job had been deleted, it is kept: running twice
//! is better than losing it.
//!
//! Jobs come in the order of their ids, each with its attributes; then their states, in the order in
//! which they were recorded, so that buried jobs keep their order; then the jobs of an interrupted
//! kick, as a start would leave them; then pauses, and settings.

use std::path::Path;
use std::sync::Arc;

use super::runs::JobEntry;
use super::{Inspection, Progress, SettingRecord};
use crate::storage::convert::build::Build;
use crate::storage::disk::Fs;
use crate::storage::error::OpenError;
use crate::storage::format::{Record, SEGMENT_SIZE_DEFAULT, SEGMENT_SIZE_MIN};
use crate::storage::log::kicks::NO_KICK;
use crate::storage::log::skip::after_loss;
use crate::types::{JobId, Now, Place};

/// Files of the new log at most, about, unless its segments would then be larger than the default.
const FILES_MAX: u64 = 256;

/// Result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Jobs in the new log.
    pub jobs: u64,
    /// The id of the next job.
    pub next_id: JobId,
    /// Jobs that were there when the log was read and could not be read again, and why.
    pub unreadable: Vec<(JobId, String)>,
    /// Why settings that were there when the log was read could not be read again.
    pub settings_unreadable: Vec<String>,
}

/// Write everything that survives in `old` into a new log in `dir`, which must be empty or missing:
/// all or nothing, as [`Build`] does it. Durable on return, and marked as cleanly stopped. `old` is
/// not changed.
///
/// # Errors
/// If `dir` is not empty ([`OpenError::Foreign`]), or the new log cannot be written or checked;
/// then there is nothing at `dir`.
pub fn write(
    old: &Inspection,
    fs: Arc<dyn Fs>,
    dir: &Path,
    now: Now,
    progress: Progress<'_>,
) -> Result<Repaired, OpenError> {
    let build = Build::begin(fs, dir, segment_size(old), now)?;
    let mut writer = Writer {
        old,
        build,
        now,
        repaired: Repaired::default(),
    };
    writer.write(progress)?;
    let Writer {
        build, repaired, ..
    } = writer;
    build.finish()?;
    Ok(repaired)
}

struct Writer<'a> {
    old: &'a Inspection,
    build: Build,
    now: Now,
    repaired: Repaired,
}

impl Writer<'_> {
    fn write(&mut self, progress: Progress<'_>) -> Result<(), OpenError> {
        let mut changed = self.write_puts(progress)?;
        changed.sort_unstable_by_key(|(place, _)| (place.file, place.offset));
        for (_, id) in changed {
            self.write_update(id)?;
        }
        self.write_kicked()?;
        self.write_pauses()?;
        self.write_settings()?;
        self.repaired.next_id = next_id(self.old, self.now);
        self.build.skip_ids(self.repaired.next_id)
    }

    /// Write all jobs as they were put; returns the jobs that were changed since, and the places of
    /// those records.
    fn write_puts(&mut self, progress: Progress<'_>) -> Result<Vec<(Place, JobId)>, OpenError> {
        let old = self.old;
        let mut changed = Vec::new();
        let mut bytes = Vec::new();
        let total = old.index.len() as u64;
        for (done, (id, entry)) in old.index.iter().enumerate() {
            progress(done as u64, total);
            match self.copy_job(&entry, &mut bytes) {
                Err(Failure::Source(error)) => {
                    self.repaired.unreadable.push((id, error.to_string()));
                    continue;
                }
                Err(Failure::Target(error)) => return Err(error),
                Ok(()) => self.repaired.jobs += 1,
            }
            self.copy_attributes(id)?;
            if !entry.update.is_none() && !old.is_kicked(id) {
                changed.push((old.index.changed_at(id, &entry), id));
            }
        }
        Ok(changed)
    }

    fn copy_job(&mut self, entry: &JobEntry, bytes: &mut Vec<u8>) -> Result<(), Failure> {
        let build = &mut self.build;
        let appended = self.old.with_put(entry, bytes, |record| match record {
            Record::Put { .. } => Some(build.append(record)),
            _ => None,
        });
        appended.map_err(Failure::Source)?.map_err(Failure::Target)
    }

    /// If they cannot be read again, the job is a plain one.
    fn copy_attributes(&mut self, id: JobId) -> Result<(), OpenError> {
        let build = &mut self.build;
        match self
            .old
            .with_attributes(id, |record, _| build.append(record))
        {
            Ok(appended) => appended.unwrap_or(Ok(())),
            Err(error) => {
                let lost = (id, format!("its attributes: {error}"));
                self.repaired.unreadable.push(lost);
                Ok(())
            }
        }
    }

    /// If a state cannot be read again, the job stays as it was put: it exists, and perhaps runs
    /// again.
    fn write_update(&mut self, id: JobId) -> Result<(), OpenError> {
        let Some(entry) = self.old.index.get(id) else {
            return Ok(());
        };
        let build = &mut self.build;
        let appended = self.old.with_update(&entry, |record| match record {
            Record::Update { .. } => Some(build.append(&of_no_kick(*record))),
            _ => None,
        });
        match appended {
            Ok(appended) => appended,
            Err(error) => {
                self.note_lost_state(id, &error);
                Ok(())
            }
        }
    }

    fn note_lost_state(&mut self, id: JobId, error: &OpenError) {
        self.repaired
            .unreadable
            .push((id, format!("its state: {error}")));
    }

    /// Write the jobs that a start would kick, in the state after that.
    fn write_kicked(&mut self) -> Result<(), OpenError> {
        for id in &self.old.kicked {
            match self.old.read_job(*id) {
                Err(error) => self.note_lost_state(*id, &error),
                Ok(None) => {}
                Ok(Some(job)) => self.build.append(&Record::Update {
                    id: job.id,
                    kick: NO_KICK,
                    state: job.state,
                    deadline_wall_ns: 0,
                    pri: job.pri,
                    delay: job.delay,
                    counters: job.counters,
                })?,
            }
        }
        Ok(())
    }

    fn write_pauses(&mut self) -> Result<(), OpenError> {
        for pause in self.old.pauses() {
            let (tube, until_wall_ns) = (pause.tube, pause.until_wall_ns);
            let record = Record::Pause {
                tube,
                until_wall_ns,
                duration: pause.duration,
            };
            self.build.append(&record)?;
        }
        Ok(())
    }
}

/// Settings.
impl Writer<'_> {
    fn write_settings(&mut self) -> Result<(), OpenError> {
        for setting in self.old.settings() {
            match setting {
                Ok(SettingRecord { class, name, value }) => {
                    let (name, value) = (&*name, &*value);
                    self.build.append(&Record::Setting { class, name, value })?;
                }
                Err(error) => self.repaired.settings_unreadable.push(error.to_string()),
            }
        }
        Ok(())
    }
}

/// The update without its kick, which the new log does not know.
fn of_no_kick(record: Record<'_>) -> Record<'_> {
    let mut record = record;
    if let Record::Update { kick, .. } = &mut record {
        *kick = NO_KICK;
    }
    record
}

/// Files are about as large as those of the old log, or larger: writing a log keeps all of them
/// open.
fn segment_size(old: &Inspection) -> u32 {
    let sizes = old.segments.iter().map(|segment| segment.size);
    let size = sizes
        .clone()
        .max()
        .unwrap_or(0)
        .max(sizes.sum::<u64>() / FILES_MAX);
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    size.clamp(SEGMENT_SIZE_MIN, SEGMENT_SIZE_DEFAULT)
}

/// The first id that the old log can never have given out: if puts after the last known one may be
/// lost, or if a backup takes the place of what went on after it, ids are left out.
fn next_id(old: &Inspection, now: Now) -> JobId {
    let is_end_lost = old.losses.iter().any(|loss| loss.missing_from.is_some());
    if is_end_lost || old.is_backup {
        after_loss(old.next_id, now.wall_ns)
    } else {
        old.next_id
    }
}

/// Which side failed.
enum Failure {
    Source(OpenError),
    Target(OpenError),
}
