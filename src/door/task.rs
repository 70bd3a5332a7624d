//! The caller's side of long work: a future of the work after all is done.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::call::JobError;
use super::handover::{Giver, Taker, slot};
use super::message::{Asked, Call, Note};
use super::session::{Sending, Session, block_on};
use super::work::{Running, Slice, Step, Work};

struct Started<W> {
    work: W,
    is_cancelled: Arc<AtomicBool>,
    giver: Giver<W>,
}

impl<W: Work> Running for Started<W> {
    fn is_abandoned(&self) -> bool {
        self.giver.is_abandoned()
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.work.step(slice)
    }

    fn finish(self: Box<Self>) {
        // If the caller no longer waits for it, it ends here.
        let _ = self.giver.give(self.work);
    }
}

/// Work under way: a future of the work after all is done, and durable as the policy says. Dropping
/// it ends the work where it is.
///
/// It begins when it is first polled. To see progress, share a value with the work.
#[must_use = "nothing is done before it is polled or waited for"]
pub struct Task<W> {
    session: Session,
    sending: Sending,
    taker: Taker<W>,
    is_cancelled: Arc<AtomicBool>,
}

impl<W> std::fmt::Debug for Task<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task")
            .field("is_cancelled", &self.is_cancelled)
            .finish_non_exhaustive()
    }
}

impl<W: Work> Task<W> {
    pub(super) fn new(session: Session, work: W) -> Task<W> {
        let (giver, taker) = slot();
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let size = size_of::<W>();
        let started = Started {
            work,
            is_cancelled: is_cancelled.clone(),
            giver,
        };
        let call = Call {
            session: session.token(),
            size,
            what: Asked::Work(Box::new(started)),
        };
        Task {
            sending: Sending::new(&session, call),
            session,
            taker,
            is_cancelled,
        }
    }

    /// Run no further step: the task is over, and what was done is its result.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.session.shared().channel.note(Note::Works);
    }

    /// Wait until it is over.
    ///
    /// # Errors
    /// [`JobError::Store`], [`JobError::Closed`], [`JobError::Busy`].
    pub fn wait(self) -> Result<W, JobError> {
        block_on(self)
    }
}

impl<W: Work> Future for Task<W> {
    type Output = Result<W, JobError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        std::task::ready!(self.sending.poll(context))?;
        let work = std::task::ready!(self.taker.poll(context));
        Poll::Ready(work.ok_or_else(|| self.session.shared().end()))
    }
}

impl<W> Drop for Task<W> {
    fn drop(&mut self) {
        if self.sending.is_sent() {
            self.taker.abandon();
            self.session.shared().channel.note(Note::Works);
        }
    }
}
