//! From the records of a log to a queue: the way back of what `store` records.

use super::pauses::{Owner, Pauses};
use super::schedules::Schedules;
use super::settings::Settings;
use crate::queue::{Applied, Queue};
use crate::storage::disk::ReadFile;
use crate::storage::format::{Record, put_size};
use crate::storage::{Files, Replay, ReplayError};
use crate::types::{Change, JobState, Now, Place, SECOND_NS, Time};

/// Applies the records of a log to a queue, and tells which of them are alive.
pub(super) struct Replayer<'a> {
    pub(super) queue: &'a mut Queue,
    pub(super) pauses: &'a mut Pauses,
    pub(super) settings: &'a mut Settings,
    pub(super) schedules: &'a mut Schedules,
    pub(super) now: Now,
}

impl Replay for Replayer<'_> {
    fn replay(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
    ) -> Result<(), ReplayError> {
        self.apply(files, place, record)
    }
}

impl Replayer<'_> {
    /// Apply the record that lies at `place` of these files.
    pub(super) fn apply<F: ?Sized>(
        &mut self,
        files: &mut Files<F>,
        place: Place,
        record: &Record<'_>,
    ) -> Result<(), ReplayError> {
        let Some(change) = self.change(record) else {
            return Ok(());
        };
        let applied = self
            .queue
            .apply(&change, place, self.now.mono)
            .map_err(|error| {
                ReplayError::new(format_args!(
                    "the record contradicts an earlier one: {error}"
                ))
            })?;
        free(files, &applied);
        match record {
            Record::Put { .. } => files.keep_put(place, record.size()),
            // An update, attributes or delete of a job whose put compaction has dropped.
            Record::Update { .. } if !applied.orphan => files.keep_update(place),
            Record::Attributes { list, .. } if !applied.orphan => {
                files.keep_attributes(place, list.len());
            }
            Record::Setting { class, name, value } => {
                super::policies::hand_on(self.queue, (*class, *name, *value), self.now);
                self.schedules.hand_on((*class, *name, *value));
                files.keep(place, record.size());
                let segment_of = |place| files.segment_of(place);
                let of = (*class, *name);
                let freed = self
                    .settings
                    .record(of, value, place, self.now.mono, segment_of);
                if let Some((place, size)) = freed {
                    files.free(place, size);
                }
            }
            Record::Delete { put_segment, .. } => {
                files.keep_tombstone(place, *put_segment, record.size());
            }
            Record::Pause { tube, .. } => {
                let Change::Pause { until, .. } = change else {
                    return Ok(());
                };
                files.keep(place, record.size());
                let segment_of = |place| files.segment_of(place);
                let freed = self.pauses.record(
                    (tube, &Owner::Unknown),
                    place,
                    until,
                    self.now.mono,
                    segment_of,
                );
                if let Some((place, size)) = freed {
                    files.free(place, size);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The change that a record stands for. A deadline is at most its delay away, however the
    /// clock has jumped meanwhile.
    fn change<'a>(&self, record: &Record<'a>) -> Option<Change<'a>> {
        let now = self.now.mono;
        match *record {
            Record::Put {
                id,
                created_wall_ns,
                pri,
                delay,
                ttr,
                tube,
                body,
            } => Some(Change::Put {
                id,
                tube,
                pri,
                delay,
                ttr: ttr.max(1),
                created: self.now.to_mono(created_wall_ns).min(now),
                body_size: body.len() as u32,
            }),
            Record::Update {
                id,
                state,
                deadline_wall_ns,
                pri,
                delay,
                counters,
                ..
            } => {
                let deadline = match state {
                    JobState::Delayed => self.clamp(deadline_wall_ns, delay),
                    _ => now,
                };
                Some(Change::Update {
                    id,
                    state,
                    pri,
                    delay,
                    deadline,
                    counters,
                })
            }
            Record::Delete { id, .. } => Some(Change::Delete { id }),
            Record::Pause {
                tube,
                until_wall_ns,
                duration,
            } => {
                let until = match until_wall_ns {
                    0 => now,
                    wall => self.clamp(wall, duration),
                };
                Some(Change::Pause {
                    tube,
                    duration,
                    until,
                })
            }
            Record::Attributes { id, list } => Some(Change::Attributes { id, list }),
            Record::Setting { class, name, value } => Some(Change::Setting { class, name, value }),
            Record::Kick { .. } | Record::Manifest { .. } | Record::Switch { .. } => None,
        }
    }

    /// Overdue jobs stay in the order in which they became due: a kick that a crash interrupted
    /// takes the jobs that it would have taken.
    fn clamp(&self, wall_ns: u64, seconds: u32) -> Time {
        let latest = self
            .now
            .mono
            .0
            .saturating_add(i64::from(seconds) * SECOND_NS);
        self.now.to_mono(wall_ns).min(Time(latest))
    }
}

/// Tell of records that a change has replaced, pauses and settings apart.
fn free<F: ?Sized>(files: &mut Files<F>, applied: &Applied) {
    if let Some((place, dims)) = applied.put_freed {
        files.free_put(
            place,
            put_size(dims.tube_len as usize, dims.body_size as usize),
        );
    }
    if let Some(place) = applied.update_freed {
        files.free_update(place);
    }
    if let Some((place, list_size)) = applied.attributes_freed {
        files.free_attributes(place, list_size as usize);
    }
}
