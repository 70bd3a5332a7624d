//! How a start applies the records of a log.

use crate::storage::disk::ReadFile;
use crate::storage::error::{Damage, ReplayError};
use crate::storage::format::{JobEvent, Record};
use crate::storage::log::files::Files;
use crate::storage::log::kicks::Kicks;
use crate::storage::read::Sink;
use crate::types::{JobId, Place};

/// Reports the progress of a replay from time to time: bytes done, bytes in all.
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// Applies the records of a log as it is opened, and tells its files which of them are alive.
pub trait Replay {
    /// The next record in the order of history. `Err` says why it cannot follow the records before
    /// it.
    fn replay(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
    ) -> Result<(), ReplayError>;
}

/// Whatever the records say: only the end of the log matters.
pub(in crate::storage) struct Anything;

impl Replay for Anything {
    fn replay(
        &mut self,
        _: &mut Files<dyn ReadFile>,
        _: Place,
        _: &Record<'_>,
    ) -> Result<(), ReplayError> {
        Ok(())
    }
}

/// No record at all: the log is new.
pub(in crate::storage) struct Fresh;

impl Replay for Fresh {
    fn replay(
        &mut self,
        _: &mut Files<dyn ReadFile>,
        _: Place,
        _: &Record<'_>,
    ) -> Result<(), ReplayError> {
        Err(ReplayError::new("the directory is not empty"))
    }
}

/// Jobs that are named at most for a lost frame: enough to see the event.
const JOBS_NAMED_MAX: usize = 16;

/// Passes records on until something is damaged; from then on it only collects damage.
pub(super) struct Replaying<'a> {
    replay: &'a mut dyn Replay,
    progress: Progress<'a>,
    records: u64,
    kicks: Kicks,
    damages: Vec<Damage>,
    /// Jobs of the sound records in the last damaged stretch.
    salvaged: Vec<JobId>,
}

impl<'a> Replaying<'a> {
    pub(super) fn into(replay: &'a mut dyn Replay, progress: Progress<'a>) -> Replaying<'a> {
        Replaying {
            replay,
            progress,
            records: 0,
            kicks: Kicks::default(),
            damages: Vec::new(),
            salvaged: Vec::new(),
        }
    }

    /// The number of records, the unfinished kicks, and all damage.
    pub(super) fn finish(self) -> (u64, Kicks, Vec<Damage>) {
        (self.records, self.kicks, self.damages)
    }
}

fn name(jobs: &mut Vec<JobId>, job: JobId) {
    if jobs.len() < JOBS_NAMED_MAX && !jobs.contains(&job) {
        jobs.push(job);
    }
}

impl Sink for Replaying<'_> {
    fn begin_file(&mut self, _: bool) {}

    fn record(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
        is_salvaged: bool,
    ) -> Result<(), ReplayError> {
        if is_salvaged && let Some(job) = record.job() {
            name(&mut self.salvaged, job);
        }
        if !self.damages.is_empty() {
            return Ok(());
        }
        self.records += 1;
        self.kicks.note(record);
        self.replay.replay(files, place, record)
    }

    fn damage(&mut self, damage: Damage, _: bool, _: Option<u64>) {
        self.salvaged.clear();
        self.damages.push(damage);
    }

    fn claim(&mut self, _: Place, job: JobId, _: JobEvent) {
        if let Some(damage) = self.damages.last_mut() {
            name(&mut damage.jobs, job);
        }
    }

    /// If no damaged record says which job it is about, the frame around the records is lost.
    fn set_unaccounted(&mut self, _: Option<u64>) {
        if let Some(damage) = self.damages.last_mut()
            && damage.jobs.is_empty()
        {
            damage.jobs = std::mem::take(&mut self.salvaged);
        }
    }

    fn progress(&mut self, done: u64, total: u64) {
        (self.progress)(done, total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::format::LogId;
    use crate::types::SegmentId;

    fn met() -> Damage {
        Damage::new("a", None, "x")
    }

    #[test]
    fn damage_names_the_jobs_of_damaged_records_or_else_a_few_of_the_sound_ones_in_it() {
        let mut files = Files::new(LogId([1; 16]), 1);
        let mut replay = Anything;
        let mut replaying = Replaying::into(&mut replay, &|_, _| ());
        let mut salvage = |replaying: &mut Replaying<'_>, jobs: std::ops::Range<u64>| {
            for id in jobs {
                let record = Record::Delete {
                    id: JobId(id),
                    put_segment: SegmentId(1),
                };
                let taken = replaying.record(&mut files, Place::NONE, &record, true);
                taken.expect("it is not replayed");
            }
        };
        replaying.damage(met(), false, Some(0));
        salvage(&mut replaying, 1..3);
        replaying.claim(Place::NONE, JobId(9), JobEvent::Put);
        replaying.set_unaccounted(None);
        replaying.damage(met(), false, Some(0));
        salvage(&mut replaying, 10..100);
        replaying.set_unaccounted(None);
        let (records, _, damages) = replaying.finish();
        assert_eq!(records, 0);
        assert_eq!(damages[0].jobs, [JobId(9)]);
        let few: Vec<JobId> = (10..26).map(JobId).collect();
        assert_eq!(damages[1].jobs, few);
    }
}
