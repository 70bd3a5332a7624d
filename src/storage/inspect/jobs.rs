//! One job, read back from the log and checked again.

use super::runs::JobEntry;
use super::{Inspection, SegmentReport};
use crate::attributes::without_tube;
use crate::storage::disk::read_exact_at;
use crate::storage::error::OpenError;
use crate::storage::format::{Record, put_size, update};
use crate::types::{Counters, JobId, JobState, Place, SECOND_NS};

/// Known facts of a job without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSummary<'a> {
    /// Its id.
    pub id: JobId,
    /// The name of its tube.
    pub tube: &'a str,
    /// As last recorded; reservations are not recorded, nor the end of a delay. An interrupted kick
    /// of several jobs counts as finished, as after the next start.
    pub state: JobState,
    /// Bytes.
    pub body_size: u32,
}

/// A job as the log has it. Wall times are in nanoseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Its id.
    pub id: JobId,
    /// The name of its tube.
    pub tube: String,
    /// As last recorded; reservations are not recorded, nor the end of a delay. An interrupted kick
    /// of several jobs counts as finished, as after the next start.
    pub state: JobState,
    /// Smaller is more urgent.
    pub pri: u32,
    /// The last delay asked for, seconds.
    pub delay: u32,
    /// Seconds.
    pub ttr: u32,
    /// When it was put.
    pub created_wall_ns: u64,
    /// When a delayed job becomes due.
    pub deadline_wall_ns: Option<u64>,
    /// Its counters.
    pub counters: Counters,
    /// Its body.
    pub body: Vec<u8>,
    /// What it has beyond a plain job: a list of [attributes](crate::attributes), without the tube;
    /// empty for a plain job.
    pub attributes: Vec<u8>,
}

/// A pause of a tube as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseRecord<'a> {
    /// The name of the tube.
    pub tube: &'a str,
    /// Wall time at which it ends, nanoseconds since 1970.
    pub until_wall_ns: u64,
    /// The requested duration, seconds.
    pub duration: u32,
}

impl Inspection {
    /// Read a job; `Ok(None)` if no job has this id.
    ///
    /// # Errors
    /// If the disk does not return it now, or not as it was when the log was read.
    pub fn read_job(&self, id: JobId) -> Result<Option<JobRecord>, OpenError> {
        let Some(entry) = self.index.get(id) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let mut job = self.with_put(&entry, &mut bytes, |record| match *record {
            Record::Put {
                id,
                created_wall_ns,
                pri,
                delay,
                ttr,
                body,
                ..
            } => Some(JobRecord {
                id,
                tube: self.index.tube(id, &entry).to_owned(),
                state: entry.state,
                pri,
                delay,
                ttr,
                created_wall_ns,
                deadline_wall_ns: (delay > 0)
                    .then(|| created_wall_ns.saturating_add(u64::from(delay) * SECOND_NS as u64)),
                counters: Counters::default(),
                body: body.to_vec(),
                attributes: Vec::new(),
            }),
            _ => None,
        })?;
        if !entry.update.is_none() {
            self.with_update(&entry, |record| match *record {
                Record::Update {
                    state,
                    deadline_wall_ns,
                    pri,
                    delay,
                    counters,
                    ..
                } => {
                    (job.state, job.pri, job.delay) = (state, pri, delay);
                    job.counters = counters;
                    job.deadline_wall_ns = (state == JobState::Delayed).then_some(deadline_wall_ns);
                    Some(())
                }
                _ => None,
            })?;
        }
        let attributes = self.with_attributes(id, |_, list| without_tube(list))?;
        job.attributes = attributes.unwrap_or_default();
        if self.is_kicked(id) {
            (job.state, job.deadline_wall_ns) = (JobState::Ready, None);
            job.counters.kicks = job.counters.kicks.saturating_add(1);
        }
        Ok(Some(job))
    }

    /// The buried jobs of all tubes, in the order in which they were buried: within a tube, a kick
    /// takes the first one first.
    #[must_use]
    pub fn buried(&self) -> Vec<JobId> {
        let buried = self
            .index
            .iter()
            .filter(|(id, entry)| entry.state == JobState::Buried && !self.is_kicked(*id));
        let place = |(id, entry)| (self.index.changed_at(id, &entry), id);
        // Handles are in the order of the files.
        let mut buried: Vec<_> = buried
            .map(place)
            .map(|(place, id)| (place.file, place.offset, id))
            .collect();
        buried.sort_unstable();
        buried.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Bytes set aside without content: spare files, and the rest of the open segment.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let spares = self.leftovers.iter().map(|leftover| leftover.reserved);
        let is_read = |segment: &&SegmentReport| segment.end.is_some();
        let open = self.segments.iter().rfind(is_read);
        let rest = open.map_or(0, |segment| segment.size.saturating_sub(segment.used));
        spares.sum::<u64>() + rest
    }

    /// The pauses in the log that were not lifted, by tube; some may be over.
    pub fn pauses(&self) -> impl Iterator<Item = PauseRecord<'_>> {
        let set = self
            .index
            .pauses()
            .filter(|(_, pause)| pause.until_wall_ns != 0);
        set.map(|(tube, pause)| PauseRecord {
            tube,
            until_wall_ns: pause.until_wall_ns,
            duration: pause.duration,
        })
    }

    /// Read the put record of a job into `bytes`, and pass it to `take`.
    pub(super) fn with_put<T>(
        &self,
        entry: &JobEntry,
        bytes: &mut Vec<u8>,
        take: impl FnOnce(&Record<'_>) -> Option<T>,
    ) -> Result<T, OpenError> {
        let size = put_size(self.index.put_tube(entry).len(), entry.body_size as usize);
        self.with_record(entry.put, size, bytes, take)
    }

    /// Read the last record of a job's state.
    pub(super) fn with_update<T>(
        &self,
        entry: &JobEntry,
        take: impl FnOnce(&Record<'_>) -> Option<T>,
    ) -> Result<T, OpenError> {
        self.with_record(entry.update, update::SIZE, &mut Vec::new(), take)
    }

    /// Read a record of `size` bytes into `bytes`, check it again, and pass it to `take`.
    pub(super) fn with_record<T>(
        &self,
        place: Place,
        size: usize,
        bytes: &mut Vec<u8>,
        take: impl FnOnce(&Record<'_>) -> Option<T>,
    ) -> Result<T, OpenError> {
        let file = self.files.get(place.file);
        let path = self.dir.join(file.entry.file_name());
        bytes.resize(size, 0);
        read_exact_at(&*file.file, bytes, place.offset.into())
            .map_err(|error| OpenError::io("read", &path, &error))?;
        let record = Record::decode_first(bytes, file.seed, place.offset);
        record
            .and_then(|(record, _)| take(&record))
            .ok_or_else(|| OpenError::Foreign {
                path,
                what: format!(
                    "the record at byte {} is no longer what it was a moment ago: the disk gives \
                 different bytes each time, or someone is writing to the directory; copy the \
                 directory to another disk and look at the copy",
                    place.offset
                ),
            })
    }
}
