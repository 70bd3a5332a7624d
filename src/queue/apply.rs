//! The one method that changes durable state, and what a change makes garbage.
//!
//! A record of the log is garbage once a later one replaces it. For each job the queue knows the
//! places of its put record, of the last record of its state and of that of its attributes, and for
//! each paused tube the place of the pause record. A change returns the places that it frees;
//! compaction asks here which records are alive, and reports what it moves.

use std::fmt;

use super::Queue;
use super::events::Happened;
use super::handle::JobHandle;
use super::job::{Durable, Job};
use super::tube::Pause;
use crate::types::{Change, JobId, JobState, Place, SECOND_NS, Time};

/// Garbage that a change has made in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// The job of the change, or the tube of an ending pause, does not exist; nothing happened.
    pub orphan: bool,
    /// The put record of the deleted job, and its dimensions.
    pub put_freed: Option<(Place, RecordDims)>,
    /// The update record that the change replaces, or the last one of the deleted job.
    pub update_freed: Option<Place>,
    /// The pause record that the change replaces.
    pub pause_freed: Option<Place>,
    /// The attributes record that the change replaces, or the one of the deleted job, and the size of
    /// its list in bytes.
    pub attributes_freed: Option<(Place, u32)>,
}

/// The values that determine the size of a put record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordDims {
    /// Bytes of the name of the tube that it was put into.
    pub tube_len: u32,
    /// Bytes of the body.
    pub body_size: u32,
}

impl Applied {
    pub(super) const ORPHAN: Applied = Applied {
        orphan: true,
        put_freed: None,
        update_freed: None,
        pause_freed: None,
        attributes_freed: None,
    };
}

/// A change that no queue can have decided on: its log is damaged. Nothing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyError {
    /// A put of a job that exists.
    JobExists(JobId),
    /// A put with an id that is never given out: 0 or 2^64 − 1.
    IdOutOfRange(JobId),
    /// An update with the state reserved, which is never durable.
    Reserved(JobId),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::JobExists(id) => write!(f, "job {id} is put a second time"),
            ApplyError::IdOutOfRange(id) => write!(f, "no job can have the id {id}"),
            ApplyError::Reserved(id) => write!(f, "job {id} is recorded as reserved"),
        }
    }
}

impl std::error::Error for ApplyError {}

/// Changes.
impl Queue {
    /// Makes a change, which is recorded at `place` ([`Place::NONE`] without a log).
    ///
    /// An update takes the job out of its current state, reserved or not. A job that is buried goes
    /// to the end of the buried jobs, also if it was buried before: their order is that of the last
    /// records about them, which is all that compaction leaves.
    ///
    /// # Errors
    /// If only damage can explain this change.
    pub fn apply(
        &mut self,
        change: &Change<'_>,
        place: Place,
        now: Time,
    ) -> Result<Applied, ApplyError> {
        match *change {
            Change::Put {
                id,
                tube,
                pri,
                delay,
                ttr,
                created,
                body_size,
            } => {
                let mut job = Job::new(id, self.default_tube, place);
                (job.created, job.body_size) = (created, body_size);
                (job.pri, job.delay, job.ttr) = (pri, delay, ttr);
                self.apply_put(tube, job, now)
            }
            Change::Update {
                id,
                state,
                pri,
                delay,
                deadline,
                counters,
            } => {
                let state = Durable {
                    state,
                    pri,
                    delay,
                    deadline,
                    counters,
                };
                self.apply_update(id, state, place, now)
            }
            Change::Delete { id } => Ok(self.apply_delete(id, now)),
            Change::Attributes { id, list } => Ok(self.apply_attributes(id, list, place, now)),
            // Those who act on settings have them beside the queue.
            Change::Setting { .. } => Ok(Applied::default()),
            Change::Pause {
                tube, duration: 0, ..
            } => Ok(self.apply_unpause(tube, now)),
            Change::Pause {
                tube,
                duration,
                until,
            } => {
                let holds = self.is_replaying;
                Ok(self.apply_pause(
                    tube,
                    Pause {
                        until,
                        duration,
                        place,
                        holds,
                    },
                    now,
                ))
            }
        }
    }

    fn apply_put(&mut self, tube: &str, job: Job, now: Time) -> Result<Applied, ApplyError> {
        let Job {
            id,
            delay,
            pri,
            body_size,
            ..
        } = job;
        if id.0 == 0 || id.0 == u64::MAX {
            return Err(ApplyError::IdOutOfRange(id));
        }
        let Some(job) = self.jobs.insert(job) else {
            return Err(ApplyError::JobExists(id));
        };
        self.set_next_id(JobId(id.0 + 1));
        let tube = self.tubes.find_or_create(tube);
        self.jobs[job].tube = tube;
        if delay == 0 {
            self.attach(job, JobState::Ready);
        } else {
            self.attach(job, JobState::Delayed);
        }
        let holder = &mut self.tubes[tube];
        holder.total_jobs += 1;
        holder.body_bytes += u64::from(body_size);
        self.total_jobs += 1;
        let put = Happened::Put {
            pri,
            delay,
            body_size,
        };
        self.note_job(job, put, now);
        self.reindex_or_remove(tube, now);
        Ok(Applied::default())
    }

    fn apply_update(
        &mut self,
        id: JobId,
        new: Durable,
        place: Place,
        now: Time,
    ) -> Result<Applied, ApplyError> {
        if new.state == JobState::Reserved {
            return Err(ApplyError::Reserved(id));
        }
        let Some(job) = self.jobs.find(id) else {
            return Ok(Applied::ORPHAN);
        };
        let update_freed = self.record_update(job, place);
        self.note_change(job, &new, now);
        self.count_change(job, &new);
        self.note_hold(job, self.jobs.extra(job).deadline, now);
        self.detach(job);
        self.set_durable(job, new);
        self.attach(job, new.state);
        self.reindex_or_remove(self.jobs[job].tube, now);
        Ok(Applied {
            update_freed,
            ..Applied::default()
        })
    }

    /// A job that may be reserved, until `deadline`, is so no more.
    #[inline]
    fn note_hold(&mut self, handle: JobHandle, deadline: Time, now: Time) {
        let job = &self.jobs[handle];
        if job.state != JobState::Reserved {
            return;
        }
        let left = deadline.since(now);
        let held = i64::from(job.ttr) * SECOND_NS - left;
        let bucket = self.holds.note(held);
        if let Some(tally) = self.tally(handle) {
            tally.holds.note(bucket, held);
        }
    }

    fn set_durable(&mut self, handle: JobHandle, new: Durable) {
        let may_claim_otherwise = self.may_claim_otherwise(handle, new.counters);
        let claimed = may_claim_otherwise.then(|| self.claimed(handle));
        let job = &mut self.jobs[handle];
        job.pri = new.pri;
        job.delay = new.delay;
        let extra = self.jobs.extra_mut(handle);
        extra.counters = new.counters;
        extra.deadline = new.deadline;
        if let Some(claimed) = claimed {
            self.claim_again(handle, claimed);
        }
    }

    fn apply_delete(&mut self, id: JobId, now: Time) -> Applied {
        let Some(handle) = self.jobs.find_any(id) else {
            return Applied::ORPHAN;
        };
        let is_doomed = !self.jobs.doomed.is_empty() && self.leave_doom(handle);
        let extra = self.jobs.extra(handle);
        let (update_freed, deadline) = (existing(extra.update_place), extra.deadline);
        self.note_job(handle, Happened::Delete, now);
        self.note_hold(handle, deadline, now);
        self.count_event(handle, |events| events.deletes += 1);
        if !is_doomed {
            self.detach(handle);
        }
        let (mut home_len, mut attributes_freed) = (None, None);
        if self.jobs[handle].has_attributes {
            home_len = Some(self.put_tube_size(&self.jobs[handle]));
            let attributed = self.forget_attributes(handle);
            attributes_freed = attributed.and_then(|attributed| attributed.freed());
        }
        let job = self.jobs.remove(handle);
        self.move_jobs_down();
        let tube = &mut self.tubes[job.tube];
        tube.deletes += 1;
        tube.body_bytes -= u64::from(job.body_size);
        let dims = RecordDims {
            tube_len: home_len.unwrap_or(tube.name.len()) as u32,
            body_size: job.body_size,
        };
        self.reindex_or_remove(job.tube, now);
        let put_freed = existing(job.place).map(|place| (place, dims));
        Applied {
            put_freed,
            update_freed,
            attributes_freed,
            ..Applied::default()
        }
    }

    /// After a job was removed: few jobs that are left of many shall not hold the memory of all.
    fn move_jobs_down(&mut self) {
        for _ in 0..2 {
            let Some((from, to)) = self.jobs.move_down() else {
                return;
            };
            let Job { state, tube, .. } = self.jobs[to];
            if state == JobState::Buried {
                match self.jobs.doom_of(to) {
                    None => self.tubes[tube].buried.follow(&mut self.jobs, from, to),
                    Some(doom) => self.clears[doom].follow(&mut self.jobs, from, to),
                }
            }
        }
    }

    fn apply_pause(&mut self, name: &str, pause: Pause, now: Time) -> Applied {
        self.note_pause(name, pause.duration, now);
        let handle = self.tubes.find_or_create(name);
        let tube = &mut self.tubes[handle];
        tube.pauses += 1;
        let before = tube.pause.replace(pause);
        self.reindex_or_remove(handle, now);
        Applied {
            pause_freed: before.and_then(|pause| existing(pause.place)),
            ..Applied::default()
        }
    }

    fn apply_unpause(&mut self, name: &str, now: Time) -> Applied {
        let Some(handle) = self.tubes.find(name) else {
            return Applied::ORPHAN;
        };
        self.note_pause(name, 0, now);
        let tube = &mut self.tubes[handle];
        tube.pauses += 1;
        let before = tube.pause.take();
        self.reindex_or_remove(handle, now);
        Applied {
            pause_freed: before.and_then(|pause| existing(pause.place)),
            ..Applied::default()
        }
    }

    /// Takes a job out of the collection of its state. [`Queue::reindex_or_remove`] must follow for
    /// its tube.
    pub(super) fn detach(&mut self, job: JobHandle) {
        let leaving = &self.jobs[job];
        let (state, tube, pri) = (leaving.state, leaving.tube, leaving.pri);
        let (key, created) = (leaving.ready_key(), leaving.created);
        let holder = &mut self.tubes[tube];
        let is_policed = holder.policed.is_some();
        holder.counts.leave(state, pri);
        self.counts.leave(state, pri);
        match state {
            JobState::Ready => {
                holder.ready.remove(&key);
                let is_last = holder.ready_seconds.leave(created);
                self.ready_seconds -= usize::from(is_last);
            }
            JobState::Delayed => holder.delayed.remove(&self.jobs.due_key(job)),
            JobState::Buried => holder.buried.unlink(&mut self.jobs, job),
            JobState::Reserved => self.take_from_reserver(job),
        }
        if is_policed {
            self.leave_group(job);
        }
    }

    /// Puts a job that is in no collection into the one of `state`. [`Queue::reindex_or_remove`]
    /// must follow for its tube.
    pub(super) fn attach(&mut self, job: JobHandle, state: JobState) {
        let entering = &mut self.jobs[job];
        entering.state = state;
        let (tube, pri) = (entering.tube, entering.pri);
        let (key, created) = (entering.ready_key(), entering.created);
        let holder = &mut self.tubes[tube];
        let is_policed = holder.policed.is_some();
        holder.counts.enter(state, pri);
        self.counts.enter(state, pri);
        match state {
            JobState::Ready => {
                holder.ready.insert(key);
                let is_first = holder.ready_seconds.enter(created);
                holder.note_ready(created);
                self.ready_seconds += usize::from(is_first);
                self.jobs.trim(job);
            }
            JobState::Delayed => holder.delayed.insert(self.jobs.due_key(job)),
            JobState::Buried => holder.buried.push_back(&mut self.jobs, job),
            JobState::Reserved => self.give_to_reserver(job),
        }
        if is_policed {
            self.enter_group(job);
        }
    }
}

/// Where records are.
impl Queue {
    /// The job's [`Queue::snapshot`] has been logged at `place`. Unlike [`Queue::apply`] with that
    /// update, as in replay, this leaves a reserved job with its client. Returns the update record
    /// that is garbage now: the previous one, or this one if the job is gone.
    pub fn note_update(&mut self, id: JobId, place: Place) -> Option<Place> {
        match self.jobs.find(id) {
            Some(job) => {
                let before = self.record_update(job, place);
                self.jobs.trim(job);
                before
            }
            None => existing(place),
        }
    }

    /// True if the job's put record is at `place`.
    #[must_use]
    pub(crate) fn put_is_at(&self, id: JobId, place: Place) -> bool {
        self.jobs
            .find_any(id)
            .is_some_and(|job| self.jobs[job].place == place)
    }

    /// True if the last record of the job's state is at `place`.
    #[must_use]
    pub(crate) fn update_is_at(&self, id: JobId, place: Place) -> bool {
        let job = self.jobs.find_any(id);
        job.is_some_and(|job| self.jobs.extra(job).update_place == place)
    }

    /// The job's put record has moved. Returns `false`, and changes nothing, if it was not at
    /// `from`.
    pub(crate) fn move_put(&mut self, id: JobId, from: Place, to: Place) -> bool {
        let Some(job) = self.jobs.find_any(id) else {
            return false;
        };
        replace_if(&mut self.jobs[job].place, from, to)
    }

    /// The last record of the job's state has moved. Returns `false`, and changes nothing, if it
    /// was not at `from`.
    pub(crate) fn move_update(&mut self, id: JobId, from: Place, to: Place) -> bool {
        if from.is_none() || !self.update_is_at(id, from) {
            return false;
        }
        let Some(job) = self.jobs.find_any(id) else {
            return false;
        };
        replace_if(&mut self.jobs.extra_mut(job).update_place, from, to)
    }

    /// The record of the tube's pause has moved. Returns `false`, and changes nothing, if it was
    /// not at `from`.
    pub(crate) fn move_pause(&mut self, tube: &str, from: Place, to: Place) -> bool {
        let Some(tube) = self.tubes.find(tube) else {
            return false;
        };
        let pause = self.tubes[tube].pause.as_mut();
        pause.is_some_and(|pause| replace_if(&mut pause.place, from, to))
    }

    /// The record at `place` has the complete durable state of the job; returns the previous one.
    fn record_update(&mut self, job: JobHandle, place: Place) -> Option<Place> {
        self.jobs.clear_dirty(job);
        let extra = self.jobs.extra_mut(job);
        let before = extra.update_place;
        extra.update_place = place;
        existing(before)
    }
}

fn existing(place: Place) -> Option<Place> {
    (!place.is_none()).then_some(place)
}

pub(super) fn replace_if(place: &mut Place, from: Place, to: Place) -> bool {
    let is_there = !from.is_none() && *place == from;
    if is_there {
        *place = to;
    }
    is_there
}
