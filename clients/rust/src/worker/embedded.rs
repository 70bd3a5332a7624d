//! A queue in this process as a source of jobs.

use std::time::{Duration, UNIX_EPOCH};

use bsd::{JobError, JobId as EmbeddedId, JobState, PutAttributes, PutOptions, Queue, Session};

use super::retry::Retry;
use super::source::{JobSession, JobSource};
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Conflict, Failed, Inserted, Job, JobId, Put, Unique};

/// The same worker, without a server: the queue is a directory of this program.
///
/// ```
/// use bsd_client::worker::{Failure, JobSource, Task, Worker};
/// use bsd_client::Put;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Mail {
///     to: String,
/// }
///
/// let dir = tempfile::tempdir()?;
/// let queue = bsd::Queue::open(dir.path())?;
/// let policy = "delivery-limit=8 retry-min=5 dead-letter=mail-dead";
/// queue.set_policy("mail", policy)?.wait()?;
///
/// let (sent, is_sent) = std::sync::mpsc::channel();
/// let worker = Worker::new(move |mail: Task<Mail>| -> Result<(), Failure> {
///     sent.send(mail.to.clone())?;
///     Ok(())
/// });
/// let running = worker.tube("mail").concurrency(4).start(queue.clone())?;
///
/// let mail = Mail { to: "you".into() };
/// queue.open(&["mail".into()])?.put(Put::json(&mail)?.tube("mail"))?;
/// assert_eq!(is_sent.recv()?, "you");
/// running.stop(); // a handler that runs comes to its end, and its job is deleted
/// assert_eq!(queue.close()?.total(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl JobSource for Queue {
    fn open(&self, tubes: &[String]) -> Result<Box<dyn JobSession>> {
        let session = self.session();
        for tube in tubes {
            session.watch(tube).wait()?;
        }
        if !tubes.iter().any(|tube| tube == "default") {
            session.ignore("default").wait()?;
        }
        Ok(Box::new(Embedded { session }))
    }
}

impl From<JobError> for Error {
    fn from(error: JobError) -> Error {
        let kind = match &error {
            JobError::NotFound => ErrorKind::NotFound,
            JobError::BadTubeName(_)
            | JobError::BadKey(_)
            | JobError::TooMany { .. }
            | JobError::TooLong(_) => ErrorKind::Usage,
            JobError::TooBig { .. } => ErrorKind::JobTooBig,
            JobError::OutOfSpace | JobError::Busy => ErrorKind::OutOfMemory,
            JobError::NotIgnored => ErrorKind::NotIgnored,
            JobError::DeadlineSoon => ErrorKind::DeadlineSoon,
            JobError::Draining => ErrorKind::Draining,
            JobError::Damaged => ErrorKind::Internal,
            JobError::NotLeader => ErrorKind::Unsupported,
            JobError::Closed => ErrorKind::Closed,
            JobError::Store(_) => ErrorKind::Storage,
        };
        Error::new(kind, error.to_string()).because(error)
    }
}

struct Embedded {
    session: Session,
}

impl Embedded {
    fn stats(&self, id: JobId) -> Result<bsd::JobStats> {
        Ok(self.session.stats_job(EmbeddedId(id)).wait()?)
    }

    fn pri(&self, id: JobId) -> Result<u32> {
        self.stats(id).map(|stats| stats.pri)
    }
}

impl JobSession for Embedded {
    fn put(&mut self, put: Put) -> Result<Inserted> {
        let options = PutOptions {
            pri: put.pri,
            delay: put.delay,
            ttr: put.ttr,
        };
        let attributes = PutAttributes {
            key: put.key,
            unique: match put.unique {
                Unique::Exists => bsd::Unique::Exists,
                Unique::Waiting => bsd::Unique::Waiting,
            },
            conflict: match put.conflict {
                Conflict::Keep => bsd::Conflict::Keep,
                Conflict::Replace => bsd::Conflict::Replace,
            },
            group: put.group,
            at: put.at.map(|at| UNIX_EPOCH + Duration::from_secs(at.into())),
        };
        let tube = put.tube.as_deref().unwrap_or("default");
        let put = self.session.put_with(tube, put.body, options, attributes);
        Ok(match put.wait()? {
            bsd::Inserted::New(id) => Inserted::New(id.0),
            bsd::Inserted::Exists(id) => Inserted::Exists(id.0),
        })
    }

    fn reserve(&mut self, wait: Duration) -> Result<Option<Job>> {
        let reserved = self.session.reserve_within(wait).wait()?;
        Ok(reserved.map(|reserved| {
            let tube = Some(reserved.tube().to_owned());
            let job = reserved.keep();
            Job {
                id: job.id.0,
                tube,
                body: job.body,
            }
        }))
    }

    fn delete(&mut self, id: JobId) -> Result<()> {
        Ok(self.session.delete(EmbeddedId(id)).wait()?)
    }

    fn release(&mut self, id: JobId, delay: Duration) -> Result<()> {
        let pri = self.pri(id)?;
        Ok(self.session.release(EmbeddedId(id), pri, delay).wait()?)
    }

    fn fail(&mut self, id: JobId, text: &str, _: &Retry) -> Result<Failed> {
        if let Some(tube) = self.session.fail(EmbeddedId(id), text).wait()? {
            return Ok(Failed::DeadLettered(tube.into()));
        }
        Ok(match self.stats(id) {
            Ok(stats) if stats.state == JobState::Buried => Failed::Buried,
            Err(error) if error.kind() == ErrorKind::NotFound => Failed::Deleted,
            _ => Failed::Released,
        })
    }

    fn bury(&mut self, id: JobId, text: &str) -> Result<()> {
        let pri = self.pri(id)?;
        Ok(self
            .session
            .bury_with_reason(EmbeddedId(id), pri, text)
            .wait()?)
    }

    fn touch(&mut self, id: JobId) -> Result<()> {
        Ok(self.session.touch(EmbeddedId(id)).wait()?)
    }

    fn time_to_run(&mut self, id: JobId) -> Result<Duration> {
        self.stats(id).map(|stats| stats.ttr)
    }
}
