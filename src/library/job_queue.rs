//! The queue for programs that embed it: no sockets, no loop, one call a command.

use std::path::Path;
use std::time::Duration;

use crate::clock::Clock;
use crate::door::{Job, JobError, PutOptions};
use crate::engine::{Engine, Flow, Options, ReplySink};
use crate::protocol::{Command, Op, Reply, Request};
use crate::queue::JobView;
use crate::storage::{OpenError, StoreError};
use crate::types::{ClientId, JobId, Position, is_tube_name};

/// A durable job queue inside this process: the engine of `bsd-server`, without sockets.
///
/// It is one session: it watches tubes, and jobs that it reserves are its own. To use it from
/// several threads, put it behind a mutex. Dropping it keeps every job (reserved ones are ready
/// again at the next open), but only [`JobQueue::close`] also keeps the last reserve counts.
///
/// With [`SyncPolicy::Always`](crate::storage::SyncPolicy::Always), the default, whatever a call
/// reports as done is on stable storage when it returns. With
/// [`SyncPolicy::Interval`](crate::storage::SyncPolicy::Interval) the sync is made by the first call
/// after the interval; a program that then goes idle calls [`JobQueue::tick`].
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
    engine: Engine,
    clock: Clock,
    client: ClientId,
}

/// A reply that outlives the call in which it was given.
#[derive(Debug)]
enum Answer {
    Inserted(JobId),
    Job(Job),
    Count(u64),
    Done,
    NotFound,
    NotIgnored,
    NoJob,
    OutOfSpace,
    Damaged,
}

#[derive(Debug, Default)]
struct Answers(Option<Answer>);

impl ReplySink for Answers {
    fn reply(&mut self, _: ClientId, _: Position, reply: Reply<'_>) {
        self.0 = Some(match reply {
            Reply::Inserted(id) => Answer::Inserted(id),
            Reply::Reserved(id, body) | Reply::Found(id, body) => Answer::Job(Job {
                id,
                body: body.to_vec(),
            }),
            Reply::Watching(count) => Answer::Count(count as u64),
            Reply::KickedCount(count) => Answer::Count(count),
            Reply::NotFound => Answer::NotFound,
            Reply::NotIgnored => Answer::NotIgnored,
            Reply::TimedOut | Reply::DeadlineSoon => Answer::NoJob,
            Reply::OutOfMemory => Answer::OutOfSpace,
            Reply::InternalError => Answer::Damaged,
            _ => Answer::Done,
        });
    }
}

impl JobQueue {
    /// Open the queue in `dir`, or make one there, with default options: durable, every call.
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
        let mut engine = Engine::open(options, clock.now())?;
        let client = engine.connect();
        Ok(JobQueue {
            engine,
            clock,
            client,
        })
    }

    /// Put a job into `tube`. Durable on return, as the policy says.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::TooBig`], [`JobError::OutOfSpace`].
    pub fn put(&mut self, tube: &str, body: &[u8], options: PutOptions) -> Result<JobId, JobError> {
        let size_max = self.engine.job_size_max();
        if body.len() > size_max as usize {
            return Err(JobError::TooBig {
                size: body.len(),
                size_max,
            });
        }
        self.run(Command::Use(checked(tube)?)).and_then(done)?;
        let PutOptions { pri, delay, ttr } = options;
        match self.run(Command::Put {
            pri,
            delay,
            ttr: ttr.max(1),
            body,
        })? {
            Answer::Inserted(id) => Ok(id),
            other => Err(refused(&other)),
        }
    }

    /// Reserve the most urgent ready job of the watched tubes, if there is one. It is this
    /// session's until it is deleted, released or buried, or its time to run is over. That it is
    /// reserved does not outlive the process.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn reserve(&mut self) -> Result<Option<Job>, JobError> {
        let command = Command::Reserve {
            timeout: Some(0),
            op: Op::ReserveWithTimeout,
        };
        match self.run(command)? {
            Answer::Job(job) => Ok(Some(job)),
            _ => Ok(None),
        }
    }

    /// Reserve as [`JobQueue::reserve`], waiting at most `timeout` for a job that becomes ready by
    /// itself: at the end of a delay, of a pause, or of another reservation's time.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn reserve_within(&mut self, timeout: Duration) -> Result<Option<Job>, JobError> {
        let ns = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        let end = self.clock.now().mono.0.saturating_add(ns);
        loop {
            if let Some(job) = self.reserve()? {
                return Ok(Some(job));
            }
            let now = self.clock.now();
            if now.mono.0 >= end {
                return Ok(None);
            }
            let next = self
                .engine
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
        self.run(Command::Delete(id)).and_then(done)
    }

    /// Give a job that is reserved here back, with a priority, after `delay` seconds. Durable on
    /// return, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn release(&mut self, id: JobId, pri: u32, delay: u32) -> Result<(), JobError> {
        self.run(Command::Release { id, pri, delay }).and_then(done)
    }

    /// Set a job that is reserved here aside until it is kicked. Durable on return, as the policy
    /// says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn bury(&mut self, id: JobId, pri: u32) -> Result<(), JobError> {
        self.run(Command::Bury { id, pri }).and_then(done)
    }

    /// Make a buried or delayed job ready. Durable on return, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn kick(&mut self, id: JobId) -> Result<(), JobError> {
        self.run(Command::KickJob(id)).and_then(done)
    }

    /// Begin the time to run of a job that is reserved here anew. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn touch(&mut self, id: JobId) -> Result<(), JobError> {
        self.run(Command::Touch(id)).and_then(done)
    }

    /// Watch a tube: [`JobQueue::reserve`] takes jobs from all that are watched, at first `default`
    /// alone. Returns how many are watched. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`]; [`JobError::OutOfSpace`].
    pub fn watch(&mut self, tube: &str) -> Result<u64, JobError> {
        self.run(Command::Watch(checked(tube)?)).and_then(count)
    }

    /// Watch a tube no more. Returns how many are left. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::NotIgnored`].
    pub fn ignore(&mut self, tube: &str) -> Result<u64, JobError> {
        self.run(Command::Ignore(checked(tube)?)).and_then(count)
    }

    /// Hand out no job of a tube for so many seconds. Durable on return, as the policy says.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::NotFound`] when there is no such tube.
    pub fn pause(&mut self, tube: &str, seconds: u32) -> Result<(), JobError> {
        self.run(Command::PauseTube {
            tube: checked(tube)?,
            delay: seconds,
        })
        .and_then(done)
    }

    /// The body of a job, whatever its state.
    ///
    /// # Errors
    /// [`JobError::NotFound`]; [`JobError::Damaged`].
    pub fn peek(&mut self, id: JobId) -> Result<Job, JobError> {
        match self.run(Command::Peek(id))? {
            Answer::Job(job) => Ok(job),
            other => Err(refused(&other)),
        }
    }

    /// Everything that is known of a job but its body.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobView<'_>> {
        self.engine.queue().job(id)
    }

    /// Let time pass: what is due happens, and what the policy wants synced is synced. Every other
    /// call does this too. Returns how long nothing will be due.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn tick(&mut self) -> Result<Option<Duration>, JobError> {
        self.settle(&mut Answers::default())?;
        let now = self.clock.now();
        let next = self.engine.next_deadline(now);
        Ok(next.map(|next| Duration::from_nanos(next.since(now.mono).max(0) as u64)))
    }

    /// A clean stop: everything is durable, counters included.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn close(self) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.engine.close(now)
    }

    fn run(&mut self, command: Command<'_>) -> Result<Answer, JobError> {
        let mut answers = Answers::default();
        let now = self.clock.now();
        // What has fallen due by now is due for this command.
        self.engine.tick(now, &mut answers)?;
        let flow = self
            .engine
            .run(self.client, Request::Command(command), now, &mut answers);
        self.settle(&mut answers)?;
        // A reserve may have many tubes to look through.
        while flow == Flow::Blocked && answers.0.is_none() {
            self.settle(&mut answers)?;
        }
        match answers.0 {
            Some(answer) => Ok(answer),
            None => unreachable!("{command:?} ended in {flow:?} without an answer"),
        }
    }

    /// Commit, and see to it that the policy has been met before anything is reported.
    fn settle(&mut self, answers: &mut Answers) -> Result<(), JobError> {
        self.engine.commit(self.clock.now())?;
        self.engine.tick(self.clock.now(), answers)?;
        self.engine.commit(self.clock.now())?;
        Ok(())
    }
}

fn checked(tube: &str) -> Result<&str, JobError> {
    if is_tube_name(tube.as_bytes()) {
        Ok(tube)
    } else {
        Err(JobError::BadTubeName(tube.into()))
    }
}

fn done(answer: Answer) -> Result<(), JobError> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(refused(&other)),
    }
}

fn count(answer: Answer) -> Result<u64, JobError> {
    match answer {
        Answer::Count(count) => Ok(count),
        other => Err(refused(&other)),
    }
}

fn refused(answer: &Answer) -> JobError {
    match answer {
        Answer::NotFound => JobError::NotFound,
        Answer::NotIgnored => JobError::NotIgnored,
        Answer::OutOfSpace => JobError::OutOfSpace,
        Answer::Damaged => JobError::Damaged,
        other => unreachable!("no command is answered {other:?} when it is refused"),
    }
}
