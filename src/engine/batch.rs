//! Commands about many jobs at once.
//!
//! The records of one command are in one frame: a crash leaves all of them or none, and in a cluster
//! they are one entry. Room for all of them is made before the first is written, so the command is
//! done or refused as a whole. What is not the client's, or not there, is left out and named in the
//! reply.
//!
//! A batch of jobs that is reserved is no record. Each job is reserved when its body was read, and all
//! that are reserved are in the reply.

use super::commands::Turn;
use super::failing::Failure;
use super::large::is_in_pieces;
use super::outcome::{Handed, Logged};
use super::{Engine, Flow, ReplySink};
use crate::attributes::Reason;
use crate::protocol::{BatchJob, Batched, OnEach, Reply};
use crate::queue::Queue;
use crate::storage::format::{delete, update};
use crate::storage::{AppendError, NO_KICK, Purpose, StoreError};
use crate::types::{ClientId, JobId, Now};

/// Visits that each job of a batch counts: as many as a command of its own would.
const VISITS_A_JOB: usize = 4;

/// Bytes of the bodies of a batch that is reserved at most, unless the first one alone has more.
const BODIES_MAX: usize = 1 << 20;

impl Turn<'_> {
    /// Do this to each job that is there and may be changed by the client.
    pub(super) fn batch(&mut self, on_each: OnEach, ids: &[JobId]) -> Result<Flow, StoreError> {
        self.engine.count(on_each.op());
        self.engine.queue.visit(VISITS_A_JOB * ids.len());
        if let Logged::Full = self.join(on_each, ids)? {
            return self.reply(Reply::OutOfMemory);
        }
        let mut missing = Vec::new();
        for id in ids {
            if !self.do_one(on_each, *id)? {
                missing.push(*id);
            }
        }
        self.engine.store.part()?;
        let count = (ids.len() - missing.len()) as u64;
        match on_each {
            OnEach::Delete => self.reply(Reply::Batched(Batched::Deleted, count, &missing)),
            OnEach::Touch => self.reply(Reply::Batched(Batched::Touched, count, &missing)),
            OnEach::Release { .. } => {
                self.reply_and_serve(Reply::Batched(Batched::Released, count, &missing))
            }
        }
    }

    /// Have room for the records of all of them in one frame. A job that is named twice counts twice:
    /// the room is not used.
    fn join(&mut self, on_each: OnEach, ids: &[JobId]) -> Result<Logged, StoreError> {
        let purpose = match on_each {
            OnEach::Delete => Purpose::Delete,
            OnEach::Touch => return Ok(Logged::Done),
            OnEach::Release { .. } => Purpose::Update,
        };
        let ids: Vec<JobId> = (ids.iter().copied())
            .filter(|id| self.may_do(on_each, *id))
            .collect();
        if ids.is_empty() {
            return Ok(Logged::Done);
        }
        let (engine, now) = (&mut *self.engine, self.now);
        engine.make_way(purpose, now)?;
        let sizes = ids.iter().map(|id| match on_each {
            OnEach::Delete => delete::SIZE,
            _ if !engine.acts_on_failures(*id) => update::SIZE,
            _ => engine.failure_size(&released(on_each, *id), now),
        });
        let size = sizes.sum();
        match engine.store.join_size(size, purpose, now) {
            Ok(()) => Ok(Logged::Done),
            Err(AppendError::NoRoom(_)) => Ok(Logged::Full),
            Err(AppendError::Failed(error)) => Err(error),
        }
    }

    fn may_do(&self, on_each: OnEach, id: JobId) -> bool {
        match on_each {
            OnEach::Delete => self.engine.queue.deletable(self.client, id),
            _ => self.engine.queue.is_reserved_by(self.client, id),
        }
    }

    /// `false`: the job is not there, or not the client's.
    fn do_one(&mut self, on_each: OnEach, id: JobId) -> Result<bool, StoreError> {
        if !self.may_do(on_each, id) {
            return Ok(false);
        }
        let (engine, now) = (&mut *self.engine, self.now);
        let logged = match on_each {
            OnEach::Touch => return Ok(engine.queue.touch(self.client, id, now.mono)),
            OnEach::Delete => engine.log_delete(id, now)?,
            OnEach::Release { .. } if engine.acts_on_failures(id) => {
                engine.fail_in_frame(&released(on_each, id), now)?
            }
            OnEach::Release { pri, delay } => {
                let Some(change) = engine.queue.decide_release(id, pri, delay, now.mono) else {
                    unreachable!("job {id} is reserved and does not exist")
                };
                engine.log_update(&change, NO_KICK, Purpose::Update, now)?
            }
        };
        // A panic leaves nothing of this on the disk: the frame is not written yet.
        assert!(
            matches!(logged, Logged::Done),
            "room was made for the records of a batch, job {id} among them"
        );
        Ok(true)
    }
}

/// A job of a batch is released.
fn released(on_each: OnEach, id: JobId) -> Failure<'static> {
    let wish = match on_each {
        OnEach::Release { pri, delay } => Some((pri, delay)),
        _ => None,
    };
    Failure {
        id,
        reason: Reason::Released,
        wish,
        text: None,
    }
}

/// Jobs that are reserved, and their bodies one behind the other.
#[derive(Default)]
struct Gathered {
    bodies: Vec<u8>,
    /// The jobs, and where the body of each ends.
    jobs: Vec<(JobId, usize)>,
}

impl Gathered {
    /// The jobs as they are sent.
    fn as_sent<'a>(&'a self, queue: &'a Queue) -> Vec<BatchJob<'a>> {
        let mut begin = 0;
        let sent = self.jobs.iter().map(|(id, end)| {
            let Some(job) = queue.job(*id) else {
                unreachable!("job {id} was reserved a moment ago")
            };
            let body = &self.bodies[std::mem::replace(&mut begin, *end)..*end];
            BatchJob {
                id: *id,
                tube: job.tube,
                body,
            }
        });
        sent.collect()
    }
}

impl Engine {
    /// Reserve a ready job for a client, and then others that are ready, the best first, `most` in all;
    /// and send them in one reply. A body that is given out in pieces comes alone: it ends the batch.
    pub(super) fn hand_out_batch(
        &mut self,
        client: ClientId,
        first: JobId,
        most: u16,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Handed, StoreError> {
        let mut gathered = Gathered::default();
        match self.gather(client, first, &mut gathered, now)? {
            Handed::Out => {}
            handed => return Ok(handed),
        }
        let room = BODIES_MAX.min(sink.room(client));
        while gathered.jobs.len() < usize::from(most)
            && let Some(id) = self.next_of_batch(
                client,
                room.saturating_sub(gathered.bodies.len()),
                now,
                sink,
            )
        {
            self.queue.visit(VISITS_A_JOB);
            if let Handed::NotNow = self.gather(client, id, &mut gathered, now)? {
                break;
            }
        }
        if sink.is_inside(client) {
            for (id, _) in &gathered.jobs {
                sink.note_delivery(self.queue.delivery(*id, now.mono));
            }
        }
        let jobs = gathered.as_sent(&self.queue);
        sink.reply(client, self.after(), Reply::ReservedBatch(&jobs));
        Ok(Handed::Batch(jobs.len()))
    }

    /// The next job that fits into what is left of the room. A client for which the search takes long
    /// gets one job at a time.
    fn next_of_batch(
        &mut self,
        client: ClientId,
        left: usize,
        now: Now,
        sink: &dyn ReplySink,
    ) -> Option<JobId> {
        if self.queue.takes_long(client) {
            return None;
        }
        let id = self.queue.best_ready(client, now.mono)?;
        if self.is_over(id, now).is_some() {
            return None;
        }
        let (_, dims) = self.queue.put_record(id)?;
        let size = dims.body_size as usize;
        (size <= left && !is_in_pieces(client, size, sink)).then_some(id)
    }

    /// Read the body of a job, and reserve it. The caller sends what was gathered, whatever comes.
    fn gather(
        &mut self,
        client: ClientId,
        id: JobId,
        gathered: &mut Gathered,
        now: Now,
    ) -> Result<Handed, StoreError> {
        let Some((place, dims)) = self.queue.put_record(id) else {
            unreachable!("job {id} is ready and does not exist")
        };
        let (tube_size, body_size) = (dims.tube_len as usize, dims.body_size as usize);
        match self.store.read_body(place, id, tube_size, body_size) {
            Ok(body) => gathered.bodies.extend_from_slice(body),
            Err(error) => return self.not_read(id, &error, now),
        }
        gathered.jobs.push((id, gathered.bodies.len()));
        self.note_reserved(client, id, now)?;
        Ok(Handed::Out)
    }
}

#[cfg(test)]
mod tests;
