//! Long work, in steps: listings, searches, actions on many jobs.
//!
//! A step is a part of a turn of the loop. It has the engine to itself, and returns it when its
//! slice is over. Between two steps any job may change in any way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::call::{Answer, Asked, Call, JobError, Note, Order};
use super::handover::{Giver, Taker, slot};
use super::seats::{Replies, Seats};
use super::session::{Sending, Session};
use crate::engine::{Alteration, Altered, Engine, Feed, Link, ReplySink};
use crate::types::{ClientId, JobId, Now, Time};

/// Something that is done in steps, on the engine's thread.
pub trait Work: Send + 'static {
    /// Do a part: continue until [`Slice::is_over`], or until all is done. Do not wait here, and do
    /// nothing that takes time in proportion to the number of jobs: the loop stops meanwhile.
    fn step(&mut self, slice: &mut Slice<'_>) -> Step;
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// There is more to do, but not before this time.
    NotBefore(Time),
    /// All is done.
    Done,
}

/// What a step may use, and for how long.
pub struct Slice<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) now: Now,
    pub(super) client: ClientId,
    pub(super) seats: &'a mut Seats,
    pub(super) others: &'a mut dyn ReplySink,
    pub(super) is_over: &'a mut dyn FnMut() -> bool,
}

impl std::fmt::Debug for Slice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slice")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Slice<'_> {
    /// The engine, for reading.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// The time of this turn.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// True when the step must end.
    pub fn is_over(&mut self) -> bool {
        (self.is_over)()
    }

    /// The connection of a client; `None` for sessions of this door.
    #[must_use]
    pub fn link(&self, client: ClientId) -> Option<Link> {
        if self.seats.has(client) {
            return None;
        }
        self.others.link(client)
    }

    /// Run one order, in a session that belongs to the work. It is done when this returns, and is
    /// durable, as the policy says, when the task is over.
    ///
    /// # Errors
    /// As for a call.
    pub fn run(&mut self, order: &Order) -> Result<Answer, JobError> {
        let Slice {
            engine,
            now,
            client,
            seats,
            others,
            ..
        } = self;
        let (_, outcome) = seats.run(*client, order, engine, *now, *others);
        outcome
    }
}

impl Slice<'_> {
    /// Change a job that no client has reserved, beyond what orders can; or take it from its client. It
    /// is done when this returns, and is durable, as the policy says, when the task is over.
    ///
    /// # Errors
    /// [`JobError::Store`]: the disk failed, now or earlier.
    pub fn alter(&mut self, id: JobId, alteration: Alteration<'_>) -> Result<Altered, JobError> {
        if self.engine.is_following() {
            return Err(JobError::NotLeader);
        }
        let mut replies = Replies::new(self.seats, self.others);
        let altered = self.engine.alter(id, alteration, self.now, &mut replies);
        altered.map_err(JobError::Store)
    }

    /// Close the connection of a client: its jobs are ready again soon after. `false` if there is no
    /// such connection.
    ///
    /// # Errors
    /// [`JobError::NotLeader`]: this queue follows, and has no clients.
    pub fn close(&mut self, client: ClientId) -> Result<bool, JobError> {
        if self.engine.is_following() {
            return Err(JobError::NotLeader);
        }
        Ok(!self.seats.has(client) && self.others.close(client))
    }

    /// From now on events are written into this feed: [`Engine::listen`]. Returns the number of the
    /// next one.
    pub fn listen(&mut self, feed: &Arc<Feed>) -> u64 {
        self.engine.listen(feed, self.now)
    }

    /// Refuse puts from now on, or take them again. Nothing durable.
    pub fn drain(&mut self, is_on: bool) {
        match is_on {
            true => self.engine.drain(),
            false => self.engine.undrain(),
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Slice<'_> {
    /// One without an end, for the only client of an engine.
    pub fn alone<R>(engine: &mut Engine, now: Now, run: impl FnOnce(&mut Slice<'_>) -> R) -> R {
        struct Nobody;
        impl ReplySink for Nobody {
            fn reply(
                &mut self,
                _: ClientId,
                _: crate::types::Position,
                _: crate::protocol::Reply<'_>,
            ) {
            }
        }
        let client = engine.connect();
        let mut seats = Seats::default();
        seats.seat(client, 0);
        run(&mut Slice {
            engine,
            now,
            client,
            seats: &mut seats,
            others: &mut Nobody,
            is_over: &mut || false,
        })
    }
}

/// A task as the desk sees it.
pub(super) trait Running: Send {
    fn is_abandoned(&self) -> bool;
    /// The rest is not wanted: the result is what was done so far.
    fn is_cancelled(&self) -> bool;
    fn step(&mut self, slice: &mut Slice<'_>) -> Step;
    /// Return the work to the caller that started it.
    fn finish(self: Box<Self>);
}

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
        super::block_on(self)
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
