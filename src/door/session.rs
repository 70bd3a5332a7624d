//! The caller's side: sessions, and futures of answers.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::Shared;
use super::bell::Bell;
use super::call::{Answer, JobError, Outcome, size_of_command};
use super::handover::{Abandoned, Refused, Taker, slot};
use super::message::{Asked, Batch, Call, Note};
use super::work::{Once, Slice, Step, Steps};
use crate::protocol::{Command, Op};
use crate::types::JobId;

/// A session is for a caller what a connection is for a client: it watches tubes, and the jobs that
/// it reserves belong to it. It is a handle: its clones are the same session, from any thread. The
/// session ends when the last clone is dropped, and the jobs that it has reserved are ready again.
///
/// Several calls of one session may be under way at once. Calls that wait for a job are served in
/// the order in which they came; all other calls go ahead of them.
#[derive(Clone)]
pub struct Session {
    handle: Arc<Handle>,
    refuses: bool,
}

struct Handle {
    shared: Arc<Shared>,
    token: u64,
    /// An object that must live as long as the session.
    _keeper: Option<Keeper>,
}

/// An object that lives as long as the last of its owners.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.channel.note(Note::End(self.token));
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("token", &self.handle.token)
            .finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, token: u64, keeper: Option<Keeper>) -> Session {
        Session {
            handle: Arc::new(Handle {
                shared,
                token,
                _keeper: keeper,
            }),
            refuses: false,
        }
    }

    /// The same session; calls through this handle are refused with [`JobError::Busy`] if they
    /// would have to wait for room.
    #[must_use]
    pub fn refusing(mut self) -> Session {
        self.refuses = true;
        self
    }

    /// Run one command. All its changes are durable, as the policy says, when its answer is given.
    pub fn run(&self, command: Command<'static>) -> Pending<Answer> {
        self.run_as(command, |answer, _| Ok(answer))
    }

    /// Run several commands, one after another and, if they fit into a turn of the loop, with one
    /// write and one sync. If one is refused, the next one is run all the same. After a crash in
    /// the middle the first of them are done and the others are not.
    ///
    /// # Panics
    /// If one of them [may wait](Command::may_wait).
    pub fn run_all(
        &self,
        commands: Vec<Command<'static>>,
    ) -> Pending<Vec<Result<Answer, JobError>>> {
        self.run_all_as(commands, |answer, _| match answer {
            Answer::Batch(outcomes) => Ok(outcomes),
            other => unreachable!("a batch is answered {other:?}"),
        })
    }

    /// Run several commands, and convert their answers.
    pub(crate) fn run_all_as<T>(
        &self,
        commands: Vec<Command<'static>>,
        convert: Convert<T>,
    ) -> Pending<T> {
        assert!(
            !commands.iter().any(Command::may_wait),
            "what may wait is a call of its own"
        );
        let outcomes = commands.len() * size_of::<Outcome>();
        let size = commands.iter().map(size_of_command).sum::<usize>() + outcomes;
        let batch = |giver| {
            Asked::Batch(Batch {
                outcomes: Vec::with_capacity(commands.len()),
                commands: commands.into_iter(),
                giver,
            })
        };
        self.pending(size, batch, convert)
    }

    /// Reserve the most urgent ready job of the watched tubes, waiting for one as long as `timeout`
    /// says, or without limit: [`Answer::Reserved`] or [`Answer::NoJob`].
    pub fn reserve(&self, timeout: Option<Duration>) -> Pending<Answer> {
        self.reserve_as(timeout, |answer, _| Ok(answer))
    }

    pub(crate) fn reserve_as<T>(
        &self,
        timeout: Option<Duration>,
        convert: Convert<T>,
    ) -> Pending<T> {
        let op = match timeout {
            Some(_) => Op::ReserveWithTimeout,
            None => Op::Reserve,
        };
        self.run_as(Command::Reserve { timeout, op }, convert)
    }

    /// Run one command, and convert its answer.
    pub(crate) fn run_as<T>(&self, command: Command<'static>, convert: Convert<T>) -> Pending<T> {
        let size = size_of_command(&command);
        self.pending(size, |giver| Asked::Command(command, giver), convert)
    }

    /// The same, where there may be no such command: then nothing is asked for.
    pub(crate) fn try_as<T>(
        &self,
        command: Result<Command<'static>, JobError>,
        convert: Convert<T>,
    ) -> Pending<T> {
        match command {
            Ok(command) => self.run_as(command, convert),
            Err(error) => self.refused(error, convert),
        }
    }

    /// A call that is answered with this error.
    pub(crate) fn refused<T>(&self, error: JobError, convert: Convert<T>) -> Pending<T> {
        let (giver, taker) = slot();
        // The taker is here.
        let _ = giver.give(Err(error));
        Pending {
            sending: Sending::nothing(self),
            session: self.clone(),
            taker,
            convert,
        }
    }

    /// Do this in one step on the engine's thread, and convert its answer. Its changes are durable, as
    /// the policy says, when it is given.
    pub(crate) fn run_once_as<T>(
        &self,
        run: impl FnOnce(&mut Slice<'_>) -> Outcome + Send + 'static,
        convert: Convert<T>,
    ) -> Pending<T> {
        let size = size_of_val(&run);
        let once = |giver| Asked::Work(Box::new(Once::new(run, giver)));
        self.pending(size, once, convert)
    }

    /// Do this step by step on the engine's thread, in a session of its own, until it breaks off with an
    /// answer, and convert that. If the caller gives up there is no further step.
    pub(crate) fn run_steps_as<T>(
        &self,
        step: impl FnMut(&mut Slice<'_>) -> ControlFlow<Outcome, Step> + Send + 'static,
        convert: Convert<T>,
    ) -> Pending<T> {
        let handle = &self.handle;
        let beside = Session {
            handle: Arc::new(Handle {
                shared: handle.shared.clone(),
                token: handle.shared.next_token(),
                _keeper: handle._keeper.clone(),
            }),
            refuses: self.refuses,
        };
        let size = size_of_val(&step);
        let steps = |giver| Asked::Work(Box::new(Steps::new(step, giver)));
        beside.pending(size, steps, convert)
    }

    /// Kick at most `bound` jobs of a tube: the buried ones or, without buried ones, the delayed
    /// ones. All of them or, after a crash, none. Later calls of this session wait for the end.
    pub fn kick(&self, tube: &str, bound: u32) -> Pending<u64> {
        let tube = Some(tube.to_owned().into());
        self.run_as(Command::Kick { tube, bound }, |answer, _| match answer {
            Answer::Count(count) => Ok(count),
            other => unreachable!("a kick is answered {other:?}"),
        })
    }

    /// A job that this session has reserved becomes ready again, with the same priority. This does
    /// not wait and does not fail: the end of the session has the same effect at the latest.
    pub fn give_back(&self, id: JobId) {
        self.shared().channel.note(Note::GiveBack(self.token(), id));
    }

    pub(super) fn token(&self) -> u64 {
        self.handle.token
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    fn pending<T>(
        &self,
        size: usize,
        ask: impl FnOnce(super::handover::Giver<Outcome>) -> Asked,
        convert: Convert<T>,
    ) -> Pending<T> {
        let (giver, taker) = slot();
        let call = Call {
            session: self.token(),
            size: size_of::<Call>() + size,
            what: ask(giver),
        };
        Pending {
            sending: Sending::new(self, call),
            session: self.clone(),
            taker,
            convert,
        }
    }
}

/// Converts an answer to the caller's type.
pub(crate) type Convert<T> = fn(Answer, &Session) -> Result<T, JobError>;

/// A call on its way into the channel.
pub(super) struct Sending {
    handle: Arc<Handle>,
    refuses: bool,
    call: Option<Call>,
    size: usize,
    ticket: Option<u64>,
}

impl Sending {
    pub(super) fn new(session: &Session, call: Call) -> Sending {
        Sending {
            handle: session.handle.clone(),
            refuses: session.refuses,
            size: call.size,
            call: Some(call),
            ticket: None,
        }
    }

    /// Of a call that is answered already.
    fn nothing(session: &Session) -> Sending {
        Sending {
            handle: session.handle.clone(),
            refuses: session.refuses,
            size: 0,
            call: None,
            ticket: None,
        }
    }

    pub(super) fn is_sent(&self) -> bool {
        self.call.is_none()
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let Some(call) = self.call.take() else {
            return Poll::Ready(Ok(()));
        };
        let shared = &self.handle.shared;
        let sent = if self.refuses {
            shared.channel.try_send(call, self.size)
        } else {
            self.call = Some(call);
            let (size, ticket) = (self.size, &mut self.ticket);
            ready!(
                shared
                    .channel
                    .poll_send(&mut self.call, size, ticket, context)
            )
        };
        Poll::Ready(match sent {
            Ok(()) => Ok(()),
            Err(Refused::Full(_)) => Err(JobError::Busy),
            Err(Refused::Closed) => Err(shared.end()),
        })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.handle.shared.channel.give_up(ticket);
        }
    }
}

/// A future of an answer. It needs no particular runtime: the task that polls it is woken.
///
/// The call is sent when this is first polled or waited for. Dropping it before that requests
/// nothing. Dropping it later may or may not undo the call, but a job that was reserved for it is
/// ready again.
#[must_use = "nothing is asked for before it is polled or waited for"]
pub struct Pending<T> {
    session: Session,
    sending: Sending,
    taker: Taker<Outcome>,
    convert: Convert<T>,
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("is_sent", &self.sending.is_sent())
            .finish_non_exhaustive()
    }
}

impl<T> Pending<T> {
    /// Wait for the answer. Do not use it on a thread that polls futures: they would all stop
    /// meanwhile.
    ///
    /// # Errors
    /// As the call says; and [`JobError::Busy`], [`JobError::Closed`], [`JobError::Store`].
    pub fn wait(self) -> Result<T, JobError> {
        block_on(self)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, JobError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.sending.poll(context))?;
        Poll::Ready(match ready!(self.taker.poll(context)) {
            Some(outcome) => outcome.and_then(|answer| (self.convert)(answer, &self.session)),
            None => Err(self.session.shared().end()),
        })
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if !self.sending.is_sent() {
            return;
        }
        match self.taker.abandon() {
            Abandoned::Full(Ok(answer)) => {
                answer.reserved().for_each(|id| self.session.give_back(id))
            }
            Abandoned::Empty => {
                let token = self.session.token();
                self.session.shared().channel.note(Note::Look(token));
            }
            Abandoned::Full(_) | Abandoned::Over => {}
        }
    }
}

thread_local! {
    /// The bell of this thread, which outlives its calls.
    static BELL: Arc<Bell> = Arc::new(Bell::here());
}

/// Wait on this thread until a future is ready.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let bell = BELL.with(Arc::clone);
    let waker = bell.clone().into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        bell.sleep();
    }
}
