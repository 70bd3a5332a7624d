//! One session and no thread: all work is done inside the calls.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::reserved::Reserved;
use super::session::Session;
use super::turns::Turns;
use crate::clock::Clock;
use crate::door::{Bounds, Door, Inserted, Job, JobError, Pending, PutAttributes, PutOptions};
use crate::engine::{Engine, Options};
use crate::protocol::{JobStats, Stats, TubeStats};
use crate::storage::{OpenError, StoreError};
use crate::types::JobId;

/// A durable job queue for a program with one thread: all work is done inside the calls.
///
/// A program with several threads, or one that awaits, uses [`Queue`](super::Queue): its calls
/// share a sync, and those of this queue do not.
///
/// It is one session: it watches tubes, and jobs that it reserves belong to it. Dropping it keeps
/// every job (reserved ones are ready again at the next open), but only [`JobQueue::close`] also
/// keeps the last reserve counts.
///
/// With [`SyncPolicy::Always`](crate::storage::SyncPolicy::Always), the default, everything that a
/// call reports as done is on stable storage when it returns. With
/// [`SyncPolicy::Interval`](crate::storage::SyncPolicy::Interval) the sync is made by the first
/// call after the interval; a program that then goes idle calls [`JobQueue::tick`].
///
/// ```
/// use bsd::{JobQueue, PutOptions};
///
/// let dir = tempfile::tempdir()?;
/// let mut queue = JobQueue::open(dir.path())?;
/// let id = queue.put("mail", b"to: you", PutOptions::default())?; // on the disk now
///
/// queue.watch("mail")?;
/// let job = queue.reserve()?.expect("the job just put");
/// assert_eq!((job.id, &job.body[..]), (id, &b"to: you"[..]));
/// queue.delete(job.id)?; // gone for good, also after a crash
/// assert!(queue.reserve()?.is_none());
/// queue.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct JobQueue {
    turns: Turns,
    session: Session,
}

impl JobQueue {
    /// Open the queue in `dir`, or create one there, with default options: every call is durable.
    ///
    /// # Errors
    /// When the directory is in use, damaged, of another program, or cannot be used.
    pub fn open(dir: impl AsRef<Path>) -> Result<JobQueue, OpenError> {
        let dir = Some(dir.as_ref().to_owned());
        JobQueue::open_with(&Options {
            dir,
            ..Options::default()
        })
    }

    /// Open a queue with these options; without a directory it is in memory only.
    ///
    /// # Errors
    /// As for [`JobQueue::open`].
    pub fn open_with(options: &Options) -> Result<JobQueue, OpenError> {
        let clock = Clock::start();
        let engine = Engine::open(options, clock.now())?;
        let sides = Door::new(Bounds::default(), Arc::new(|| {}));
        let turns = Turns::new(engine, sides, clock);
        let session = Session::new(turns.door.session());
        Ok(JobQueue { turns, session })
    }

    /// Put a job into `tube`. Durable on return, as the policy says.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::TooBig`], [`JobError::TooLong`], [`JobError::OutOfSpace`].
    pub fn put(&mut self, tube: &str, body: &[u8], options: PutOptions) -> Result<JobId, JobError> {
        let put = self.session.put(tube, body, options);
        self.answer(put)
    }

    /// Put a job that has a key or a group, as [`Session::put_with`](super::Session::put_with) does.
    ///
    /// # Errors
    /// As for [`JobQueue::put`]; [`JobError::BadKey`].
    pub fn put_with(
        &mut self,
        tube: &str,
        body: &[u8],
        options: PutOptions,
        attributes: PutAttributes,
    ) -> Result<Inserted, JobError> {
        let put = self.session.put_with(tube, body, options, attributes);
        self.answer(put)
    }

    /// Reserve the most urgent ready job of the watched tubes, if there is one. It belongs to this
    /// session until it is deleted, released or buried, or its time to run is over. The reservation
    /// ends with the process.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn reserve(&mut self) -> Result<Option<Job>, JobError> {
        let reserve = self.session.reserve_within(Duration::ZERO);
        match self.answer(reserve) {
            Ok(reserved) => Ok(reserved.map(Reserved::keep)),
            Err(JobError::DeadlineSoon) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Like [`JobQueue::reserve`], but wait at most `timeout` for a job that becomes ready by
    /// itself: at the end of a delay, of a pause, or of another reservation's time.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn reserve_within(&mut self, timeout: Duration) -> Result<Option<Job>, JobError> {
        let ns = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        let end = self.turns.now().mono.0.saturating_add(ns);
        loop {
            if let Some(job) = self.reserve()? {
                return Ok(Some(job));
            }
            let now = self.turns.now();
            if now.mono.0 >= end {
                return Ok(None);
            }
            let next = self
                .turns
                .next_deadline(now)
                .map_or(end, |next| next.0.min(end));
            let wait = u64::try_from(next.saturating_sub(now.mono.0)).unwrap_or(0);
            std::thread::sleep(Duration::from_nanos(wait));
        }
    }

    /// Delete a job that is ready, delayed, buried, or reserved here. Durable on return, as the
    /// policy says: the job never comes back.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn delete(&mut self, id: JobId) -> Result<(), JobError> {
        let delete = self.session.delete(id);
        self.answer(delete)
    }

    /// Give back a job that is reserved here, with a priority, after a delay, which is rounded up to a
    /// second. Durable on return, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::TooLong`], [`JobError::OutOfSpace`].
    pub fn release(&mut self, id: JobId, pri: u32, delay: Duration) -> Result<(), JobError> {
        let release = self.session.release(id, pri, delay);
        self.answer(release)
    }

    /// Set a job that is reserved here aside until it is kicked. Durable on return, as the policy
    /// says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn bury(&mut self, id: JobId, pri: u32) -> Result<(), JobError> {
        let bury = self.session.bury(id, pri);
        self.answer(bury)
    }

    /// Make a buried or delayed job ready. Durable on return, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn kick(&mut self, id: JobId) -> Result<(), JobError> {
        let kick = self.session.kick_job(id);
        self.answer(kick)
    }

    /// Restart the time to run of a job that is reserved here. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn touch(&mut self, id: JobId) -> Result<(), JobError> {
        let touch = self.session.touch(id);
        self.answer(touch)
    }

    /// Watch a tube: [`JobQueue::reserve`] takes jobs from all watched tubes, at first only from
    /// `default`. Returns how many are watched. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`]; [`JobError::OutOfSpace`].
    pub fn watch(&mut self, tube: &str) -> Result<u64, JobError> {
        let watch = self.session.watch(tube);
        self.answer(watch)
    }

    /// Stop watching a tube. Returns how many are left. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::NotIgnored`].
    pub fn ignore(&mut self, tube: &str) -> Result<u64, JobError> {
        let ignore = self.session.ignore(tube);
        self.answer(ignore)
    }

    /// Pause a tube for this time, which is rounded up to a second: none of its jobs is handed out.
    /// [`Duration::ZERO`] ends a pause. Durable on return, as the policy says.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::TooLong`]; [`JobError::NotFound`] when there is no such tube.
    pub fn pause(&mut self, tube: &str, time: Duration) -> Result<(), JobError> {
        let pause = self.session.pause(tube, time);
        self.answer(pause)
    }

    /// The body of a job, whatever its state.
    ///
    /// # Errors
    /// [`JobError::NotFound`]; [`JobError::Damaged`].
    pub fn peek(&mut self, id: JobId) -> Result<Job, JobError> {
        let peek = self.session.peek(id);
        self.answer(peek)
    }

    /// The figures of a job.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn stats_job(&mut self, id: JobId) -> Result<JobStats, JobError> {
        let stats = self.session.stats_job(id);
        self.answer(stats)
    }

    /// The figures of a tube.
    ///
    /// # Errors
    /// [`JobError::NotFound`] when there is no such tube; [`JobError::BadTubeName`].
    pub fn stats_tube(&mut self, tube: &str) -> Result<TubeStats, JobError> {
        let stats = self.session.stats_tube(tube);
        self.answer(stats)
    }

    /// The figures of the whole queue.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn stats(&mut self) -> Result<Stats, JobError> {
        let stats = self.session.stats();
        self.answer(stats)
    }

    /// Do what is due, and sync what the policy wants synced. Every other call does this too.
    /// Returns how long nothing will be due.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn tick(&mut self) -> Result<Option<Duration>, JobError> {
        self.turns.commit()?;
        self.turns.settle()?;
        let now = self.turns.now();
        let next = self.turns.next_deadline(now);
        Ok(next.map(|next| Duration::from_nanos(next.since(now.mono).max(0) as u64)))
    }

    /// A clean stop: everything is durable, counters included.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn close(self) -> Result<(), StoreError> {
        self.turns.close().map(|_| ())
    }

    /// First do everything that has fallen due; the call then sees it.
    fn answer<T>(&mut self, call: Pending<T>) -> Result<T, JobError> {
        let mut call = pin!(call);
        let mut context = Context::from_waker(Waker::noop());
        self.turns.tick()?;
        loop {
            if let Poll::Ready(answer) = call.as_mut().poll(&mut context) {
                return answer;
            }
            self.turns.serve();
            self.turns.commit()?;
            self.turns.settle()?;
        }
    }
}
