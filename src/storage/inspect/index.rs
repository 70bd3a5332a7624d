//! The places of the records of each job, collected from the log without the records themselves.
//!
//! Small on purpose: about seven bytes per job, whatever its body, and twelve if its state has
//! changed since the put ([`runs`](super::runs) counts them). Bodies and states are read from the
//! log on demand, and checked again then.

use crate::storage::disk::ReadFile;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::ops::RangeInclusive;

use super::beyond::{Attributed, Beyond, Set};
use super::runs::{JobEntry, Runs, is_behind};
use crate::attributes::tube_of;
use crate::storage::error::ReplayError;
use crate::storage::format::{Record, pause, put_size, update};
use crate::storage::log::compaction::{self, Subject};
use crate::storage::log::files::Files;
use crate::types::{JobId, JobState, Place};

/// The last record about a tube's pause.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    pub(super) place: Place,
    pub(super) until_wall_ns: u64,
    pub(super) duration: u32,
}

/// All jobs of a log, in the order of their ids.
#[derive(Debug)]
pub(in crate::storage) struct JobIndex {
    jobs: Runs,
    /// By the numbers that entries use for them.
    tubes: Vec<Box<str>>,
    tube_numbers: HashMap<Box<str>, u32>,
    /// The tube of the last put.
    last_tube: u32,
    pauses: BTreeMap<Box<str>, Pause>,
    pub(super) beyond: Beyond,
    /// No id from this one on was seen.
    next_id: JobId,
}

impl JobIndex {
    pub(in crate::storage) fn new() -> JobIndex {
        JobIndex {
            jobs: Runs::new(),
            tubes: Vec::new(),
            tube_numbers: HashMap::new(),
            last_tube: 0,
            pauses: BTreeMap::new(),
            beyond: Beyond::default(),
            next_id: JobId(1),
        }
    }

    /// Apply the next record of history, which lies at `place`, and count in `files` what is alive.
    /// `Err` says why it cannot follow the records before it; then nothing was changed.
    pub(in crate::storage) fn fold(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
    ) -> Result<(), ReplayError> {
        if let Some(id) = record.job().filter(|id| is_job_id(*id)) {
            self.next_id = self.next_id.max(JobId(id.0 + 1));
        }
        match *record {
            Record::Put {
                id,
                tube,
                delay,
                body,
                ..
            } => {
                if !is_job_id(id) {
                    return Err(contradiction(format_args!("no job can have the id {id}")));
                }
                let state = if delay == 0 {
                    JobState::Ready
                } else {
                    JobState::Delayed
                };
                let tube = self.tube_number(tube);
                let body_size = body.len() as u32;
                let entry = JobEntry {
                    put: place,
                    update: Place::NONE,
                    body_size,
                    tube,
                    state,
                };
                if !self.jobs.insert(id, entry) {
                    return Err(contradiction(format_args!("job {id} is put a second time")));
                }
                files.keep(place, record.size());
            }
            Record::Update { id, state, .. } => {
                if let Some(before) = self.set_update(id, place, state) {
                    files.keep(place, record.size());
                    free_update(files, before);
                }
            }
            Record::Delete { id, put_segment } => {
                if let Some(job) = self.jobs.remove(id) {
                    let tube = self.put_tube(&job).len();
                    files.free(job.put, put_size(tube, job.body_size as usize));
                    free_update(files, job.update);
                    self.beyond.forget(files, id);
                }
                files.keep_tombstone(place, put_segment, record.size());
            }
            Record::Attributes { id, list } => {
                if self.jobs.contains(id) {
                    let tube = tube_of(list).map(|tube| self.find_tube(tube));
                    let list_size = list.len() as u16;
                    let attributed = Attributed {
                        place,
                        list_size,
                        tube,
                    };
                    self.beyond.attribute(files, id, attributed);
                }
            }
            Record::Setting { class, name, value } => {
                let value_size = value.len() as u32;
                let set = Set { place, value_size };
                self.beyond.set(files, (class, name), set);
            }
            Record::Pause {
                tube,
                until_wall_ns,
                duration,
            } => {
                let pause = Pause {
                    place,
                    until_wall_ns,
                    duration,
                };
                files.keep(place, record.size());
                if let Some(before) = self.pauses.insert(tube.into(), pause) {
                    files.free(before.place, pause::SIZE + tube.len());
                }
            }
            Record::Manifest { next_id, .. } => self.next_id = self.next_id.max(next_id),
            Record::Kick { .. } | Record::Switch { .. } => {}
        }
        Ok(())
    }

    /// Note that the job's state was changed by the record at `place`; returns the place of its
    /// earlier update.
    fn set_update(&mut self, id: JobId, place: Place, state: JobState) -> Option<Place> {
        self.jobs.change(id, |job| {
            job.state = state;
            std::mem::replace(&mut job.update, place)
        })
    }

    fn tube_number(&mut self, name: &str) -> u32 {
        // Most jobs use the same tube as the one before.
        if let Some(last) = self.tubes.get(self.last_tube as usize)
            && **last == *name
        {
            return self.last_tube;
        }
        self.last_tube = self.find_tube(name);
        self.last_tube
    }

    fn find_tube(&mut self, name: &str) -> u32 {
        if let Some(number) = self.tube_numbers.get(name) {
            return *number;
        }
        let number = self.tubes.len() as u32;
        self.tubes.push(name.into());
        self.tube_numbers.insert(name.into(), number);
        number
    }

    pub(super) fn contains(&self, id: JobId) -> bool {
        self.jobs.contains(id)
    }

    pub(super) fn get(&self, id: JobId) -> Option<JobEntry> {
        self.jobs.get(id)
    }

    /// The ids of all jobs in a range.
    pub(super) fn ids(&self, ids: RangeInclusive<u64>) -> impl Iterator<Item = u64> {
        self.jobs.ids(ids)
    }

    pub(in crate::storage) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (JobId, JobEntry)> {
        self.jobs.iter()
    }

    /// The tube that the job was put into.
    pub(super) fn put_tube(&self, entry: &JobEntry) -> &str {
        &self.tubes[entry.tube as usize]
    }

    /// The tube that the job is in.
    pub(super) fn tube(&self, id: JobId, entry: &JobEntry) -> &str {
        let attributed = self.beyond.attributed.get(&id);
        let moved = attributed.and_then(|it| it.tube);
        &self.tubes[moved.unwrap_or(entry.tube) as usize]
    }

    /// Whether the job has attributes that were recorded after `place`.
    pub(super) fn has_attributes_behind(&self, id: JobId, place: Place) -> bool {
        let attributed = self.beyond.attributed.get(&id);
        attributed.is_some_and(|it| is_behind(it.place, place))
    }

    /// The last record that changed the job; [`Place::NONE`] if none has since its put.
    pub(super) fn changed_at(&self, id: JobId, entry: &JobEntry) -> Place {
        let attributed = self.beyond.attributed.get(&id).map(|it| it.place);
        let places = [entry.update, attributed.unwrap_or(Place::NONE)];
        // Handles are in the order of the files.
        let last = places.into_iter().max_by_key(|it| (it.file, it.offset));
        last.unwrap_or(Place::NONE)
    }

    /// The last record about each tube's pause; one that lifts it has `until_wall_ns` 0.
    pub(super) fn pauses(&self) -> impl Iterator<Item = (&str, &Pause)> {
        self.pauses.iter().map(|(tube, pause)| (&**tube, pause))
    }

    pub(super) fn next_id(&self) -> JobId {
        self.next_id
    }
}

/// For compaction: which records are alive, and their new places.
impl compaction::Index for JobIndex {
    fn is_live(&self, subject: &Subject, place: Place) -> bool {
        let job = |id| self.jobs.get(id);
        match subject {
            Subject::Put(id) => job(*id).is_some_and(|job| job.put == place),
            Subject::Update(id) => job(*id).is_some_and(|job| job.update == place),
            Subject::Attributes(id) => {
                let attributed = self.beyond.attributed.get(id);
                attributed.is_some_and(|it| it.place == place)
            }
            Subject::Pause(tube) => self
                .pauses
                .get(&**tube)
                .is_some_and(|pause| pause.place == place),
            Subject::Setting(class, name) => {
                let set = self.beyond.setting(*class, name);
                set.is_some_and(|set| set.place == place)
            }
            Subject::Delete(_) | Subject::Log => false,
        }
    }

    fn moved(&mut self, subject: &Subject, from: Place, to: Place) -> bool {
        let jobs = &mut self.jobs;
        let moved = match subject {
            Subject::Put(id) => jobs.change(*id, |job| shift(&mut job.put, from, to)),
            Subject::Update(id) => jobs.change(*id, |job| shift(&mut job.update, from, to)),
            Subject::Pause(tube) => {
                let pause = self.pauses.get_mut(&**tube);
                pause.map(|pause| shift(&mut pause.place, from, to))
            }
            Subject::Attributes(id) => {
                let attributed = self.beyond.attributed.get_mut(id);
                attributed.map(|it| shift(&mut it.place, from, to))
            }
            Subject::Setting(class, name) => {
                let set = self.beyond.setting_mut(*class, name);
                set.map(|set| shift(&mut set.place, from, to))
            }
            Subject::Delete(_) | Subject::Log => None,
        };
        moved.unwrap_or(false)
    }
}

/// Change `place` from `from` to `to`. `false` if it is not `from`.
fn shift(place: &mut Place, from: Place, to: Place) -> bool {
    let is_it = *place == from;
    if is_it {
        *place = to;
    }
    is_it
}

fn is_job_id(id: JobId) -> bool {
    id.0 != 0 && id.0 != u64::MAX
}

fn contradiction(what: impl Display) -> ReplayError {
    ReplayError::new(format_args!(
        "the record contradicts an earlier one: {what}"
    ))
}

fn free_update(files: &mut Files<dyn ReadFile>, place: Place) {
    if !place.is_none() {
        files.free(place, update::SIZE);
    }
}
