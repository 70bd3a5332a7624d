//! One of the places in which a worker has a job: its session, its thread, and its touches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::lease::Lease;
use super::metrics::{Guarded, JobInfo, Metrics, Outcome, panicked};
use super::retry::Retry;
use super::source::{JobSession, JobSource};
use super::stop::Stopper;
use super::task::{Failure, Task, Then};
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, JobId, cut_text};

/// The longest wait for a job; a stop takes so long at most where nothing is worked on.
const WAIT: Duration = Duration::from_secs(1);
/// After this time a job is no short one: its time to run is asked for.
const SHORT: Duration = Duration::from_millis(400);
/// Between looks for jobs that need a touch.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// Between attempts to reach a queue that is away.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why a body was not worked on, or the work failed.
pub(super) enum Problem {
    Unreadable(String),
    Failure(Failure),
    /// The handler was ended from outside, and not by this worker: its runtime is gone.
    #[cfg(feature = "tokio")]
    Ended,
}

pub(super) type Handler = dyn Fn(Task<Vec<u8>>) -> Result<(), Problem> + Send + Sync;

/// What all places have in common.
pub(super) struct Shared {
    pub(super) source: Box<dyn JobSource>,
    pub(super) tubes: Vec<String>,
    pub(super) handler: Arc<Handler>,
    pub(super) metrics: Guarded,
    pub(super) retry: Retry,
    pub(super) stopper: Stopper,
}

/// The job that is worked on.
struct Current {
    info: JobInfo,
    started: Instant,
    /// Half of its time to run, once it is known.
    interval: Option<Duration>,
    touch_at: Option<Instant>,
    lease: Arc<Lease>,
}

/// A place for one job.
#[derive(Default)]
pub(super) struct Slot {
    /// `None`: there is no connection, or the job was abandoned.
    session: Mutex<Option<Box<dyn JobSession>>>,
    current: Mutex<Option<Current>>,
    is_abandoned: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of the jobs of a place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) done: u64,
    pub(super) failed: u64,
}

impl Slot {
    /// Take jobs and work on them until the worker is stopped.
    pub(super) fn run(&self, shared: &Shared, counts: &Mutex<Counts>) {
        let mut pause = PAUSE_MIN;
        while !shared.stopper.is_stopped() {
            match self.reserve(shared) {
                Ok(Some(job)) => {
                    pause = PAUSE_MIN;
                    self.begin(shared, job, counts);
                }
                Ok(None) => pause = PAUSE_MIN,
                Err(error) => {
                    tracing::warn!(%error, "no jobs can be reserved");
                    shared.metrics.trouble(&error);
                    *lock(&self.session) = None;
                    shared.stopper.pause(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
        *lock(&self.session) = None;
    }

    fn reserve(&self, shared: &Shared) -> Result<Option<Job>> {
        let mut session = lock(&self.session);
        let session = match &mut *session {
            Some(session) => session,
            none => none.insert(shared.source.open(&shared.tubes)?),
        };
        session.reserve(WAIT)
    }

    fn begin(&self, shared: &Shared, job: Job, counts: &Mutex<Counts>) {
        let only = (shared.tubes.len() == 1).then(|| shared.tubes[0].clone());
        let tube = job.tube.or(only);
        let info = JobInfo {
            id: job.id,
            tube: tube.clone(),
            size: job.body.len(),
        };
        if shared.stopper.is_stopped() {
            return self.give_back(shared, &info);
        }
        let span = tracing::info_span!("job", id = job.id, tube = tube.as_deref());
        let lease = Arc::new(Lease::new(&span));
        let started = Instant::now();
        *lock(&self.current) = Some(Current {
            info: info.clone(),
            started,
            interval: None,
            touch_at: Some(started + SHORT),
            lease: lease.clone(),
        });
        shared.metrics.started(&info);
        let stopper = shared.stopper.clone();
        let task = Task {
            id: job.id,
            tube,
            body: job.body,
            lease,
            stopper,
        };
        let entered = span.enter();
        let worked = catch_unwind(AssertUnwindSafe(|| (shared.handler)(task)));
        // Wait for a touch under way; after this no touch is sent.
        *lock(&self.current) = None;
        let result = worked.unwrap_or_else(|panic| {
            let text = panicked("the handler", &*panic);
            Err(Problem::Failure(Failure::new(text)))
        });
        let outcome = self.finish(shared, job.id, result);
        drop(entered);
        if outcome == Outcome::Abandoned {
            return; // it was told already
        }
        match outcome {
            Outcome::Done => lock(counts).done += 1,
            _ => lock(counts).failed += 1,
        }
        shared.metrics.finished(&info, &outcome, started.elapsed());
    }

    /// The worker stops: the job was not begun.
    fn give_back(&self, shared: &Shared, info: &JobInfo) {
        if let Some(session) = &mut *lock(&self.session) {
            if let Err(error) = session.release(info.id, Duration::ZERO) {
                shared.metrics.trouble(&error);
            }
            shared.metrics.released(info);
        }
    }

    /// Tell the queue how the work ended.
    fn finish(&self, shared: &Shared, id: JobId, result: Result<(), Problem>) -> Outcome {
        if self.is_abandoned.load(Ordering::Relaxed) {
            return Outcome::Abandoned;
        }
        let mut session = lock(&self.session);
        let Some(session) = &mut *session else {
            return Outcome::Lost;
        };
        match tell(&mut **session, shared, id, result) {
            Ok(outcome) => outcome,
            Err(error) => {
                tracing::warn!(%error, "the job is not ours any more, or the queue is away");
                if error.kind() != ErrorKind::NotFound {
                    shared.metrics.trouble(&error);
                }
                Outcome::Lost
            }
        }
    }

    /// Restart the time to run of the job, if that is due.
    pub(super) fn touch(&self, shared: &Shared, now: Instant) {
        let mut current = lock(&self.current);
        let Some(current) = &mut *current else {
            return;
        };
        if current.touch_at.is_none_or(|at| now < at) {
            return;
        }
        let mut session = match self.session.try_lock() {
            Ok(session) => session,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(session) = &mut *session else {
            return;
        };
        match touch(&mut **session, current) {
            Ok(interval) => {
                current.touch_at = Some(Instant::now() + interval);
                shared.metrics.touched(&current.info);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                tracing::warn!(id = current.info.id, "the job is not reserved any more");
                current.lease.lose();
                current.touch_at = None;
            }
            Err(error) => {
                shared.metrics.trouble(&error);
                current.touch_at = Some(Instant::now() + WAIT);
            }
        }
    }

    /// The time for a stop is over: let go of the job that is worked on, which is ready again then.
    /// True if there was one.
    pub(super) fn abandon(&self, shared: &Shared) -> bool {
        let Some(current) = lock(&self.current).take() else {
            return false;
        };
        self.is_abandoned.store(true, Ordering::Relaxed);
        current.lease.end();
        *lock(&self.session) = None;
        let took = current.started.elapsed();
        shared
            .metrics
            .finished(&current.info, &Outcome::Abandoned, took);
        true
    }
}

/// Touch a job: the interval until the next time.
fn touch(session: &mut dyn JobSession, current: &mut Current) -> Result<Duration> {
    let id = current.info.id;
    let interval = match current.interval {
        Some(interval) => interval,
        None => session.time_to_run(id)? / 2,
    };
    session.touch(id)?;
    current.interval = Some(interval);
    Ok(interval)
}

fn tell(
    session: &mut dyn JobSession,
    shared: &Shared,
    id: JobId,
    result: Result<(), Problem>,
) -> Result<Outcome, Error> {
    let failure = match result {
        Ok(()) => return session.delete(id).map(|()| Outcome::Done),
        Err(Problem::Failure(failure)) => failure,
        Err(Problem::Unreadable(text)) => Failure::new(text).never_again(),
        // Each further job would end so: there is no use in taking one.
        #[cfg(feature = "tokio")]
        Err(Problem::Ended) => {
            let text = "the runtime of the handlers was shut down: the worker stops";
            shared.metrics.trouble(&Error::new(ErrorKind::Closed, text));
            tracing::error!("{text}");
            shared.stopper.stop();
            return session
                .release(id, Duration::ZERO)
                .map(|()| Outcome::Released);
        }
    };
    let text = cut_text(&failure.text);
    tracing::warn!(error = text, "the job has failed");
    match failure.then {
        Then::Policy => session.fail(id, text, &shared.retry).map(Outcome::Failed),
        Then::After(delay) => session.release(id, delay).map(|()| Outcome::Released),
        Then::Never => session.bury(id, text).map(|()| Outcome::Buried),
    }
}
