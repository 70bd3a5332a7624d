//! What may be changed of a job beside the commands of the protocol, for whoever runs the server:
//! its priority, its delay, its tube; and to bury it without reserving it.
//!
//! A job that a client has reserved is the client's: it is left alone. Everything else is one
//! record of a job's state, as a release is, except for a move. A job stays in its tube for life, so
//! a move is the put of a copy and the delete of the original, in one frame of the log: a crash
//! leaves the one or the other, never both and never none.

use super::commands::Logged;
use super::{Engine, ReplySink};
use crate::queue::JobView;
use crate::storage::{AppendError, NO_KICK, Purpose, StoreError};
use crate::types::{Change, Counters, JobId, JobState, Now};

/// So many clients that wait are served after a change, as after a command.
const SERVED: usize = 16;

/// What is changed of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alteration<'a> {
    /// Its priority. It stays in its state, a buried or delayed one in its place.
    Priority(u32),
    /// It is buried, with the priority that it has.
    Bury,
    /// It is delayed for so many seconds from now, at least 1.
    Delay(u32),
    /// It is in another tube, under a new id, and as old as before. Among buried jobs it comes last.
    Move {
        /// The tube.
        tube: &'a str,
        /// A delayed or buried job is kicked: it is ready there. Otherwise it keeps its state.
        kick: bool,
    },
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Altered {
    /// It is done, and durable as the policy says once [`Engine::after`] is acknowledged. The job
    /// has this id now.
    Done(JobId),
    /// It was so before.
    Same,
    /// There is no such job.
    NotFound,
    /// A client has reserved it.
    Reserved,
    /// There is no room on the disk or in the memory, or no id is left. Nothing happened.
    NoRoom,
    /// Its body, which a move copies, could not be read as it was put. The job has been buried.
    Damaged,
}

impl Engine {
    /// Change a job that no client has reserved.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn alter(
        &mut self,
        id: JobId,
        alteration: Alteration<'_>,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Altered, StoreError> {
        self.check()?;
        let altered = self.try_alter(id, alteration, now, sink);
        if let Err(error) = &altered {
            self.failed = Some(error.clone());
        }
        altered
    }

    fn try_alter(
        &mut self,
        id: JobId,
        alteration: Alteration<'_>,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Altered, StoreError> {
        let Some(job) = self.queue.job(id) else {
            return Ok(Altered::NotFound);
        };
        if job.state == JobState::Reserved {
            return Ok(Altered::Reserved);
        }
        let change = match alteration {
            Alteration::Priority(pri) if pri == job.pri => return Ok(Altered::Same),
            Alteration::Bury if job.state == JobState::Buried => return Ok(Altered::Same),
            Alteration::Move { tube, .. } if tube == job.tube => return Ok(Altered::Same),
            Alteration::Move { tube, kick } => {
                return self.move_job(id, (tube, kick), now, sink);
            }
            Alteration::Priority(pri) => self.queue.decide_priority(id, pri),
            Alteration::Bury => self.queue.decide_bury(id, job.pri),
            Alteration::Delay(seconds) => self.queue.decide_delay(id, seconds.max(1), now.mono),
        };
        let Some(change) = change else {
            unreachable!("job {id} exists and is not reserved")
        };
        match self.update(&change, Purpose::Update, now)? {
            Logged::Done => Ok(Altered::Done(id)),
            Logged::Full => Ok(Altered::NoRoom),
        }
    }

    fn move_job(
        &mut self,
        id: JobId,
        (tube, kick): (&str, bool),
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Altered, StoreError> {
        if !self.queue.tube_exists(tube) && !self.has_room_for_client(0, now) {
            return Ok(Altered::NoRoom);
        }
        let Some(body_size) = self.queue.job(id).map(|job| job.body_size) else {
            return Ok(Altered::NotFound);
        };
        if self.memory_max.is_some() && !self.has_memory_for(body_size.into(), now) {
            return Ok(Altered::NoRoom);
        }
        self.make_way(Purpose::Delete, now)?;
        let body = match self.copy_body(id, now)? {
            Ok(body) => body,
            Err(altered) => return Ok(altered),
        };
        let Some(copy) = self.queue.take_id() else {
            return Ok(Altered::NoRoom);
        };
        let altered = self.replace(id, copy, (tube, kick), &body, now)?;
        self.serve_waiting(SERVED, now, sink)?;
        Ok(altered)
    }

    /// The body of a job, or why there is none.
    fn copy_body(&mut self, id: JobId, now: Now) -> Result<Result<Vec<u8>, Altered>, StoreError> {
        let Some(job) = self.queue.job(id) else {
            return Ok(Err(Altered::NotFound));
        };
        let (place, tube_size, body_size) = (job.place, job.tube.len(), job.body_size as usize);
        let error = match self.store.read_body(place, id, tube_size, body_size) {
            Ok(body) => return Ok(Ok(body.to_vec())),
            Err(error) => error,
        };
        Ok(Err(match self.not_read(id, &error, now)? {
            super::commands::Handed::NotNow => Altered::NoRoom,
            _ => Altered::Damaged,
        }))
    }

    /// Put a copy of a job into another tube and delete the original, in one frame.
    fn replace(
        &mut self,
        id: JobId,
        copy: JobId,
        (tube, kick): (&str, bool),
        body: &[u8],
        now: Now,
    ) -> Result<Altered, StoreError> {
        let Some(mut job) = self.queue.job(id) else {
            return Ok(Altered::NotFound);
        };
        if kick && job.state != JobState::Ready {
            job.state = JobState::Ready;
            job.counters.kicks = job.counters.kicks.saturating_add(1);
        }
        let put = put_of_copy(&job, copy, tube);
        let update = update_of_copy(&job, copy);
        let changes = [put, update];
        let logged = if is_as_put(&job) {
            &changes[..1]
        } else {
            &changes
        };
        match self.store.join(logged, body, now) {
            Ok(()) => {}
            Err(AppendError::Full) => return Ok(Altered::NoRoom),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        let is_done = self.log_copy(logged, tube, body, now)?;
        if is_done {
            let deleted = self.log_delete(id, now)?;
            // A panic leaves nothing of this on the disk: the frame is not written yet.
            assert!(
                matches!(deleted, Logged::Done),
                "room was made for the delete of job {id}"
            );
        }
        self.store.part()?;
        Ok(match is_done {
            true => Altered::Done(copy),
            false => Altered::NoRoom,
        })
    }

    /// Log and apply the changes that make a copy; `false`: there was no room, and nothing is left
    /// of it.
    fn log_copy(
        &mut self,
        changes: &[Change<'_>],
        tube: &str,
        body: &[u8],
        now: Now,
    ) -> Result<bool, StoreError> {
        for change in changes {
            let logged = match *change {
                Change::Put { .. } => self.log_put(change, tube, body, now)?,
                _ => self.log_update(change, NO_KICK, Purpose::Update, now)?,
            };
            match (logged, *change) {
                (Logged::Done, _) => {}
                (Logged::Full, Change::Update { id, .. }) => {
                    let undone = self.log_delete(id, now)?;
                    assert!(
                        matches!(undone, Logged::Done),
                        "room was made for the delete of job {id}"
                    );
                    return Ok(false);
                }
                (Logged::Full, _) => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// The put alone says all there is to say of the job.
fn is_as_put(job: &JobView<'_>) -> bool {
    job.state == JobState::Ready && job.delay == 0 && job.counters == Counters::default()
}

fn put_of_copy<'a>(job: &JobView<'_>, copy: JobId, tube: &'a str) -> Change<'a> {
    Change::Put {
        id: copy,
        tube,
        pri: job.pri,
        delay: 0,
        ttr: job.ttr,
        created: job.created,
        body_size: job.body_size,
    }
}

fn update_of_copy(job: &JobView<'_>, copy: JobId) -> Change<'static> {
    Change::Update {
        id: copy,
        state: job.state,
        pri: job.pri,
        delay: job.delay,
        deadline: job.deadline.unwrap_or_default(),
        counters: job.counters,
    }
}
