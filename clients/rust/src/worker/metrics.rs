//! What a worker tells about itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::error::Error;
use crate::job::{Failed, JobId};

/// A job, to those who count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// Its tube, if it is known.
    pub tube: Option<String>,
    /// Bytes of its body.
    pub size: usize,
}

/// How the work on a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It was done, and the job is deleted.
    Done,
    /// It failed, and this became of the job.
    Failed(Failed),
    /// It failed, and the job was released with the delay that the handler gave.
    Released,
    /// The handler said that it is no use to try again, or the body could not be read; it is buried.
    Buried,
    /// The job was not reserved any more when the handler ended, or the queue could not be told. It is
    /// or will be delivered again, unless it was deleted.
    Lost,
    /// The worker stopped before the handler had ended.
    Abandoned,
}

/// Is told what a worker does, for counters and timers. Each method does nothing unless it is written.
/// The methods are called on the threads of the worker, and should return soon. A panic of one is logged,
/// and the worker goes on.
pub trait Metrics: Send + Sync + 'static {
    /// The work on a job begins.
    fn started(&self, job: &JobInfo) {
        let _ = job;
    }

    /// The work on a job has ended, after this time.
    fn finished(&self, job: &JobInfo, outcome: &Outcome, took: Duration) {
        let _ = (job, outcome, took);
    }

    /// The time to run of a job was restarted.
    fn touched(&self, job: &JobInfo) {
        let _ = job;
    }

    /// A job was given back before its work had begun, because the worker stops.
    fn released(&self, job: &JobInfo) {
        let _ = job;
    }

    /// The queue is away, or has refused something. The worker goes on.
    fn trouble(&self, error: &Error) {
        let _ = error;
    }
}

/// No metrics.
impl Metrics for () {}

impl<M: Metrics + ?Sized> Metrics for std::sync::Arc<M> {
    fn started(&self, job: &JobInfo) {
        (**self).started(job);
    }

    fn finished(&self, job: &JobInfo, outcome: &Outcome, took: Duration) {
        (**self).finished(job, outcome, took);
    }

    fn touched(&self, job: &JobInfo) {
        (**self).touched(job);
    }

    fn released(&self, job: &JobInfo) {
        (**self).released(job);
    }

    fn trouble(&self, error: &Error) {
        (**self).trouble(error);
    }
}

/// Metrics whose panics end no thread of the worker: touches and jobs go on without them.
pub(super) struct Guarded(pub(super) Box<dyn Metrics>);

impl Guarded {
    fn tell(&self, call: impl FnOnce(&dyn Metrics)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(&*self.0))) {
            tracing::error!("{}", panicked("the metrics", &*panic));
        }
    }
}

impl Metrics for Guarded {
    fn started(&self, job: &JobInfo) {
        self.tell(|metrics| metrics.started(job));
    }

    fn finished(&self, job: &JobInfo, outcome: &Outcome, took: Duration) {
        self.tell(|metrics| metrics.finished(job, outcome, took));
    }

    fn touched(&self, job: &JobInfo) {
        self.tell(|metrics| metrics.touched(job));
    }

    fn released(&self, job: &JobInfo) {
        self.tell(|metrics| metrics.released(job));
    }

    fn trouble(&self, error: &Error) {
        self.tell(|metrics| metrics.trouble(error));
    }
}

/// The text of a panic.
pub(super) fn panicked(who: &str, panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("{who} panicked: {}", text.unwrap_or_default())
}
