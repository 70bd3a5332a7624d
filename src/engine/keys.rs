//! Puts with a key or a group, and reserves that free a key.
//!
//! Which job holds a key is the queue's to say ([`crate::queue::Queue::key_holder`]). A put is refused or does all of it:
//! the put, its attributes, and the delete of a job that it replaces are in one frame.
//!
//! A job whose key is its own until it is reserved (`unique=waiting`) frees it by its first
//! reservation. That is recorded in the job's counters, which no reply waits for otherwise. Here the
//! reply that hands out the job waits for them: what is put with the same key afterwards is not the
//! second job with that key after a crash. Where the disk has no room for the record the job is
//! handed out all the same, and the counters come later: to refuse it would keep jobs from being done,
//! and so from being deleted. A crash meanwhile gives the job its key back, with the reservation that
//! is gone: it waits again.

use super::attributed::{AttributedPut, list_of};
use super::commands::Turn;
use super::outcome::{Handed, Logged};
use super::{Engine, Flow, ReplySink};
use crate::attributes::{Attributes, Unique};
use crate::protocol::{Conflict, JobKey, Op, PutWith, Reply};
use crate::queue::RecordDims;
use crate::storage::{AppendError, Begun, Purpose, StoreError};
use crate::types::{Change, ClientId, JobId, JobState, Now, Place};

impl Turn<'_> {
    /// A new job that has a key or a group, unless another job holds its key.
    pub(super) fn put_attributed(
        &mut self,
        put: &PutWith<'_>,
        delay: u32,
        begun: Option<&Begun>,
    ) -> Result<Flow, StoreError> {
        let body_size = begun.map_or(0, Begun::size) + put.body.len();
        if let Some(refusal) = self.refuses_put(Op::PutWith, put.tube.as_deref(), body_size) {
            return self.reply(refusal);
        }
        let engine = &mut *self.engine;
        let used = engine.queue.used_tube(self.client).clone();
        let tube = put.tube.as_deref().unwrap_or(&used);
        let replaced = match engine.conflict(tube, put.key.as_ref()) {
            Ok(replaced) => replaced,
            Err(holder) => {
                engine.key_conflicts += 1;
                return self.reply(Reply::Exists(holder));
            }
        };
        if self.policy_refuses(Some(tube), body_size, replaced) {
            return self.reply(Reply::OutOfMemory);
        }
        let engine = &mut *self.engine;
        let Some(id) = engine.take_id() else {
            return self.reply(Reply::OutOfMemory);
        };
        let change = Change::Put {
            id,
            tube,
            pri: put.pri,
            delay,
            ttr: put.ttr,
            created: self.now.mono,
            body_size: body_size as u32,
        };
        let new = AttributedPut {
            put: &change,
            tube,
            body: (begun, &put.body),
            list: &list_of(&attributes(put)),
            replaced,
        };
        match engine.log_put_with(&new, self.now)? {
            Some(Logged::Done) => self.reply_and_serve(Reply::Inserted(id)),
            Some(Logged::Full) => self.reply(Reply::OutOfMemory),
            None => self.reply(Reply::InternalError),
        }
    }
}

/// What is recorded of a put. That a key is its job's own until the job is deleted goes without saying.
fn attributes<'a>(put: &'a PutWith<'_>) -> Attributes<'a> {
    let key = put.key.as_ref();
    let unique = key.map(|key| key.unique);
    Attributes {
        key: key.map(|key| &*key.name),
        unique: unique.filter(|unique| *unique == Unique::Waiting),
        group: put.group.as_deref(),
        ..Attributes::default()
    }
}

impl Engine {
    /// The job that a put with this key replaces, if there is one.
    ///
    /// # Errors
    /// The job that holds the key, and keeps it.
    fn conflict(&self, tube: &str, key: Option<&JobKey<'_>>) -> Result<Option<JobId>, JobId> {
        let Some(key) = key else { return Ok(None) };
        let Some(holder) = self.queue.key_holder(tube, &key.name) else {
            return Ok(None);
        };
        let job = self.queue.job(holder);
        let is_reserved = job.is_some_and(|job| job.state == JobState::Reserved);
        match key.conflict {
            Conflict::Replace if !is_reserved => Ok(Some(holder)),
            _ => Err(holder),
        }
    }

    /// Reserve a ready job for a client, record that, and send the job. The body is read first: a job
    /// whose body is lost was not reserved.
    pub(super) fn hand_out_recorded(
        &mut self,
        client: ClientId,
        (id, place, dims): (JobId, Place, RecordDims),
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Handed, StoreError> {
        let (tube_size, body_size) = (dims.tube_len as usize, dims.body_size as usize);
        let body = match self.store.read_body(place, id, tube_size, body_size) {
            Ok(body) => body.to_vec(),
            Err(error) => return self.not_read(id, &error, now),
        };
        self.note_reserved(client, id, now)?;
        if sink.is_inside(client) {
            sink.note_delivery(self.queue.delivery(id, now.mono));
        }
        sink.reply(client, self.after(), Reply::Reserved(id, &body));
        Ok(Handed::Out)
    }

    /// Log that a job was reserved, so that the reply which hands it out waits for that.
    pub(super) fn record_reserve(&mut self, id: JobId, now: Now) -> Result<(), StoreError> {
        self.make_way(Purpose::Update, now)?;
        self.log_snapshot(id, now).map(|_| ())
    }

    /// Log the state of a job that exists, with its counters. A reserved one stays with its client.
    pub(super) fn log_snapshot(&mut self, id: JobId, now: Now) -> Result<Logged, StoreError> {
        let Some(change) = self.queue.snapshot(id) else {
            unreachable!("job {id} is logged and does not exist")
        };
        match self.store.append(&change, &[], Purpose::Update, now) {
            Ok(place) => {
                self.store.keep_update(place);
                if let Some(freed) = self.queue.note_update(id, place) {
                    self.store.free_update(freed);
                }
                Ok(Logged::Done)
            }
            Err(AppendError::NoRoom(_)) => Ok(Logged::Full),
            Err(AppendError::Failed(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
