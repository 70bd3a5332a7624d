//! Where a worker has its jobs from.

use std::time::Duration;

use super::retry::Retry;
use crate::error::Result;
use crate::job::{Failed, Inserted, Job, JobId, Put};

/// A queue that workers take jobs from: a server ([`Config`](crate::Config)), a list of servers
/// ([`Servers`](crate::Servers)), or a queue in this process (`bsd::Queue`, feature `embedded`).
pub trait JobSource: Send + Sync + 'static {
    /// A session that watches these tubes and no others. A worker opens one for each job that it may
    /// work on at a time.
    ///
    /// # Errors
    /// The source is away. The worker tries again.
    fn open(&self, tubes: &[String]) -> Result<Box<dyn JobSession>>;
}

/// A session with a queue: jobs that it reserves belong to it, and are ready again when it is dropped.
pub trait JobSession: Send {
    /// Put a job.
    ///
    /// # Errors
    /// As for [`Client::put`](crate::Client::put).
    fn put(&mut self, put: Put) -> Result<Inserted>;

    /// Reserve a job, and wait for one no longer than this.
    ///
    /// # Errors
    /// As for [`Client::reserve`](crate::Client::reserve).
    fn reserve(&mut self, wait: Duration) -> Result<Option<Job>>;

    /// The work is done: delete the job.
    ///
    /// # Errors
    /// As for [`Client::delete`](crate::Client::delete).
    fn delete(&mut self, id: JobId) -> Result<()>;

    /// Give a job back, ready after this time, with the priority that it has.
    ///
    /// # Errors
    /// As for [`Client::release`](crate::Client::release).
    fn release(&mut self, id: JobId, delay: Duration) -> Result<()>;

    /// The job has failed. The queue's policy says what becomes of it; `retry` does where the queue has
    /// no policies.
    ///
    /// # Errors
    /// As for [`Client::fail`](crate::Client::fail).
    fn fail(&mut self, id: JobId, text: &str, retry: &Retry) -> Result<Failed>;

    /// Set the job aside until it is kicked, and keep the reason if the queue can.
    ///
    /// # Errors
    /// As for [`Client::bury`](crate::Client::bury).
    fn bury(&mut self, id: JobId, text: &str) -> Result<()>;

    /// Restart the time to run of a job.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): it is no longer reserved by this session.
    fn touch(&mut self, id: JobId) -> Result<()>;

    /// The time that a worker has for the job.
    ///
    /// # Errors
    /// As for [`Client::stats_job`](crate::Client::stats_job).
    fn time_to_run(&mut self, id: JobId) -> Result<Duration>;
}
