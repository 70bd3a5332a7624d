//! Commands about many jobs at once.
//!
//! The records of one command are in one frame: a crash leaves all of them or none, and in a cluster
//! they are one entry. Room for all of them is made before the first is written, so the command is
//! done or refused as a whole. What is not the client's, or not there, is left out and named in the
//! reply.

use super::Flow;
use super::commands::Turn;
use super::outcome::Logged;
use crate::protocol::{Batched, OnEach, Reply};
use crate::storage::{AppendError, NO_KICK, Purpose, StoreError};
use crate::types::JobId;

/// Visits that each job of a batch counts: as many as a command of its own would.
const VISITS_A_JOB: usize = 4;

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
        let count = ids.iter().filter(|id| self.may_do(on_each, **id)).count();
        if count == 0 {
            return Ok(Logged::Done);
        }
        let (engine, now) = (&mut *self.engine, self.now);
        engine.make_way(purpose, now)?;
        match engine.store.join_many(count, purpose, now) {
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

#[cfg(test)]
mod tests;
