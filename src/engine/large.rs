//! Large bodies: given out piece by piece, after a check that is done in slices.
//!
//! A small body is read, checked and copied into its reply at once. A large one would make everyone
//! wait meanwhile, and its copy would lie in memory until the client has taken all of it. So its
//! client waits until the record has been checked, a few pieces a tick, and then gets the body in
//! pieces: [`ReplySink::reply_body`]. In memory alone there is nothing to check.
//!
//! A job that is to be reserved is reserved before the check: no one else checks it meanwhile. If its
//! body turns out to be lost it is buried, and its client waits for another job.

use std::collections::VecDeque;

use super::outcome::{Handed, Logged};
use super::store::{LARGE, Lent};
use super::{Engine, Flow, ReplySink};
use crate::protocol::{Reply, Shown};
use crate::queue::Terms;
use crate::storage::{Body, BodyCheck, BodyError, Log, PIECE, Purpose, StoreError};
use crate::types::{ClientId, JobId, JobState, Now, Place, Time};

/// Bytes that are checked in one tick, more or less by one piece.
const CHECKED_A_TICK: usize = 256 << 10;

/// Who waits for a body, and for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    pub(super) client: ClientId,
    pub(super) id: JobId,
    pub(super) what: Wanted,
}

/// Request of a client for a job with a large body.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// It has reserved it, and would have waited for one on these terms.
    Job { terms: Terms },
    /// To reserve this one.
    ThisJob,
    /// To look at it.
    Look,
}

/// A body that is being checked.
#[derive(Debug)]
struct Check {
    awaited: Awaited,
    /// Where its record was when the check began.
    place: Place,
    body: BodyCheck,
}

/// The bodies that are being checked; those that come next are in front.
#[derive(Debug, Default)]
pub(super) struct Checks {
    list: VecDeque<Check>,
}

impl Checks {
    /// The client is gone.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.list.retain(|check| check.awaited.client != client);
    }

    /// The client would not wait for another job.
    pub(super) fn hurry(&mut self, client: ClientId, now: Time) {
        for check in &mut self.list {
            if let Wanted::Job { terms } = &mut check.awaited.what
                && check.awaited.client == client
            {
                terms.until = Some(now);
            }
        }
    }

    /// True if there is one that can be gone on with.
    pub(super) fn is_due(&self, log: Option<&Log>) -> bool {
        self.list.iter().any(|check| check.is_due(log))
    }
}

impl Check {
    /// True if the body is written: before that it cannot be read.
    fn is_due(&self, log: Option<&Log>) -> bool {
        log.is_some_and(|log| self.body.end() <= log.written())
    }
}

/// True if a body of `size` bytes is to be given out piece by piece to this client.
pub(super) fn is_in_pieces(client: ClientId, size: usize, sink: &dyn ReplySink) -> bool {
    size > LARGE && sink.takes_pieces(client)
}

impl Engine {
    /// Give out a large body: at once where there is nothing to check, otherwise later.
    pub(super) fn give_out(
        &mut self,
        awaited: Awaited,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Flow, StoreError> {
        let Some(job) = self.queue.job(awaited.id) else {
            unreachable!("job {} has a body and does not exist", awaited.id)
        };
        match self.store.lend(&job) {
            Lent::Now(body) => {
                self.show(awaited, body, now, sink)?;
                Ok(Flow::Next)
            }
            Lent::Checked(body) => {
                let place = job.place;
                self.checks.list.push_back(Check {
                    awaited,
                    place,
                    body,
                });
                self.is_busy = true;
                Ok(Flow::Blocked)
            }
        }
    }

    /// A slice of the checks under way, a piece of each in turn. Says whether there is more to do at
    /// once.
    pub(super) fn go_on_checking(
        &mut self,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<bool, StoreError> {
        let mut scratch = Vec::new();
        let mut room = CHECKED_A_TICK;
        let mut not_due = 0;
        while room > 0 && not_due < self.checks.list.len() {
            let Some(mut check) = self.checks.list.pop_front() else {
                break;
            };
            if !check.is_due(self.log()) {
                not_due += 1;
                self.checks.list.push_back(check);
                continue;
            }
            room = room.saturating_sub(PIECE);
            match check.body.step(&mut scratch) {
                Ok(false) => self.checks.list.push_back(check),
                Ok(true) => self.show(check.awaited, check.body.into_body(), now, sink)?,
                Err(error) => self.not_checked(&check, &error, now, sink)?,
            }
        }
        Ok(self.checks.is_due(self.log()))
    }

    /// The body is what was put: the client gets it, if it still may.
    fn show(
        &mut self,
        awaited: Awaited,
        body: Body,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<(), StoreError> {
        let Awaited { client, id, what } = awaited;
        let shown = match what {
            Wanted::Look => Shown::Found,
            Wanted::Job { terms } if terms.most.is_some() => {
                let Some(job) = self.queue.job(id) else {
                    // An operator has taken it from the client and deleted it.
                    self.wait_again(client, terms);
                    return Ok(());
                };
                Shown::Batch(job.tube)
            }
            Wanted::Job { .. } => Shown::Reserved,
            Wanted::ThisJob => match self.reserve_this(client, id, now)? {
                None => Shown::Reserved,
                Some(reply) => {
                    sink.reply(client, self.after(), reply);
                    return Ok(());
                }
            },
        };
        sink.reply_body(client, self.after(), (shown, id), body);
        Ok(())
    }

    /// Reserve a job that may have changed since its client asked for it; or why not.
    fn reserve_this(
        &mut self,
        client: ClientId,
        id: JobId,
        now: Now,
    ) -> Result<Option<Reply<'static>>, StoreError> {
        let state = self.queue.job(id).map(|job| job.state);
        if state.is_none_or(|state| state == JobState::Reserved) {
            return Ok(Some(Reply::NotFound));
        }
        // A job that was set aside is ready after a restart, not set aside again.
        if let Some(change) = self.queue.decide_reserve_job(id)
            && let Logged::Full = self.update(&change, Purpose::Update, now)?
        {
            return Ok(Some(Reply::OutOfMemory));
        }
        self.note_reserved(client, id, now)?;
        Ok(None)
    }

    /// The job is the client's. Where the reserve is counted, or frees the key of the job, it is recorded
    /// before the reply.
    #[inline(always)]
    pub(super) fn note_reserved(
        &mut self,
        client: ClientId,
        id: JobId,
        now: Now,
    ) -> Result<(), StoreError> {
        let frees_key = self.queue.reserve(client, id, now.mono);
        self.dirty_since.get_or_insert(now.mono);
        match frees_key || self.is_counted(id) {
            true => self.record_reserve(id, now),
            false => Ok(()),
        }
    }

    /// A body could not be read, or is not what was put.
    fn not_checked(
        &mut self,
        check: &Check,
        error: &BodyError,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<(), StoreError> {
        let Awaited { client, id, what } = check.awaited;
        let job = self.queue.job(id).filter(|job| job.place == check.place);
        if let (BodyError::Damaged { .. }, Some(job)) = (error, job) {
            let (tube_size, body_size) = (job.put_tube_size, job.body_size as usize);
            if let Some(log) = self.store.log() {
                log.note_damaged_put(check.place, tube_size, body_size);
            }
        }
        let outcome = self.not_read(id, error, now)?;
        match (what, &outcome) {
            (Wanted::Job { terms }, Handed::Lost) => {
                self.wait_again(client, terms);
                return Ok(());
            }
            // No failure of the client's.
            (Wanted::Job { .. }, _) if self.queue.is_reserved_by(client, id) => {
                self.is_busy |= self.queue.take_back(id, now.mono);
            }
            _ => {}
        }
        let refusal = outcome.refusal().unwrap_or(Reply::InternalError);
        sink.reply(client, self.after(), refusal);
        Ok(())
    }

    /// A client has not got the job that it was to have, and waits for another one.
    fn wait_again(&mut self, client: ClientId, terms: Terms) {
        self.queue.wait(client, terms);
        self.is_busy = true;
    }

    /// Bytes of memory, or of files that are gone, which are kept only because clients read bodies in
    /// them.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.store.lent()
    }
}
