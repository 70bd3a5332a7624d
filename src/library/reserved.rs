//! A job that is given back unless it is finished.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::door::{self, Delivered, Job, JobError, Pending, block_on};
use crate::protocol::Command;
use crate::queue::Delivery;
use crate::types::JobId;

/// A job that this session has reserved. If it is dropped, also by a panic, the job is ready again
/// at once, with the same priority. So only a [`Reserved::delete`] that succeeds removes a job from
/// the queue.
///
/// It is reserved for its time to run, from [`PutOptions::ttr`](crate::PutOptions::ttr). After that
/// the job is ready again, and calls on this are refused with [`JobError::NotFound`].
#[must_use = "the job is given back when this is dropped"]
pub struct Reserved {
    session: door::Session,
    job: Job,
    delivery: Delivery,
    /// The job must not be given back by this any more.
    is_over: bool,
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved")
            .field("id", &self.job.id)
            .field("tube", &self.delivery.tube)
            .field("size", &self.job.body.len())
            .finish_non_exhaustive()
    }
}

impl Reserved {
    pub(super) fn new(session: &door::Session, delivered: Delivered) -> Reserved {
        let Delivered { job, delivery } = delivered;
        Reserved {
            session: session.clone(),
            job,
            delivery,
            is_over: false,
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.job.id
    }

    /// Body of the job.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.job.body
    }

    /// The tube that it was in when it was handed out.
    #[must_use]
    pub fn tube(&self) -> &str {
        &self.delivery.tube
    }

    /// How often it was handed out since its put, this time included: 1 at the first time, and more if it
    /// was released, or kicked, or a worker's time to run was over. A crash may lose the count of the last
    /// 50 ms, unless its tube has a `delivery-limit`.
    #[must_use]
    pub fn deliveries(&self) -> u32 {
        self.delivery.count
    }

    /// Time from its put until it was handed out, a delay included. It stays the same while the job is
    /// worked on.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_nanos(self.delivery.age_ns)
    }

    /// Its priority: smaller is more urgent.
    #[must_use]
    pub fn pri(&self) -> u32 {
        self.delivery.pri
    }

    /// The time that the worker may take from the moment when it was handed out, or touched last. What is
    /// left of it says [`Session::stats_job`](super::Session::stats_job).
    #[must_use]
    pub fn ttr(&self) -> Duration {
        Duration::from_secs(self.delivery.ttr.into())
    }

    /// The work is done: when this has succeeded, the job is gone permanently. Durable then, as the
    /// policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`]: its time to run was over. If this is refused, the job is given back.
    pub fn delete(self) -> Finish {
        let delete = Command::Delete(self.job.id);
        self.finish(Ok(delete))
    }

    /// Make the job ready again after a delay, which is rounded up to a second, with this priority.
    /// Durable when it has succeeded, as the policy says. Dropping the job instead writes nothing.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::TooLong`], [`JobError::OutOfSpace`].
    pub fn release(self, pri: u32, delay: Duration) -> Finish {
        let release = door::release(self.job.id, pri, delay);
        self.finish(release)
    }

    /// Set the job aside until it is kicked. Durable when it has succeeded, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn bury(self, pri: u32) -> Finish {
        let id = self.job.id;
        self.finish(Ok(Command::Bury { id, pri }))
    }

    /// Restart its time to run. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn touch(&self) -> Pending<()> {
        self.session
            .run_as(Command::Touch(self.job.id), |_, _| Ok(()))
    }

    /// The job alone, which is not given back: it stays reserved by the session until the session
    /// changes it by its id, or ends.
    #[must_use]
    pub fn keep(mut self) -> Job {
        self.is_over = true;
        Job {
            id: self.job.id,
            body: std::mem::take(&mut self.job.body),
        }
    }

    fn finish(self, command: Result<Command<'static>, JobError>) -> Finish {
        Finish {
            pending: self.session.try_as(command, |_, _| Ok(())),
            reserved: self,
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.is_over {
            self.session.give_back(self.job.id);
        }
    }
}

/// The call that finishes a reserved job: wait for it, or await it. If this is dropped before the
/// end, or the call is refused, the job is given back.
#[must_use = "the job is given back unless this is awaited or waited for"]
#[derive(Debug)]
pub struct Finish {
    // Dropped first: a call that has no caller is not run after the job was given back.
    pending: Pending<()>,
    reserved: Reserved,
}

impl Finish {
    /// Wait for it. Do not use it on a thread that polls futures: they would all stop meanwhile.
    ///
    /// # Errors
    /// As for the call that made it; and [`JobError::Busy`], [`JobError::Closed`],
    /// [`JobError::Store`].
    pub fn wait(self) -> Result<(), JobError> {
        block_on(self)
    }
}

impl Future for Finish {
    type Output = Result<(), JobError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let finished = ready!(Pin::new(&mut self.pending).poll(context));
        self.reserved.is_over = finished.is_ok();
        Poll::Ready(finished)
    }
}
