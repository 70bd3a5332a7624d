//! A handle for all threads, on an engine that has a thread of its own.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use super::session::Session;
use super::thread::EngineThread;
use crate::door::{Bounds, Door, JobError, Task, Work};
use crate::engine::Options;
use crate::storage::OpenError;
use crate::types::JobCounts;

/// A durable job queue inside this process: the engine of `bsd-server`, without sockets, on a thread
/// of its own.
///
/// A handle: its clones are the same queue, and any thread may call. Calls that are under way at the
/// same time share a write and a sync. A call is a future, [`Pending`](crate::Pending): await it, or
/// [`wait`](crate::Pending::wait) for it.
///
/// With [`SyncPolicy::Always`](crate::SyncPolicy::Always), the default, whatever a call reports as
/// done is on stable storage by then.
///
/// Whatever asks for no session of its own is a method of [`Session`], to which this dereferences:
/// to one that all handles of the queue share. Workers take one each, from [`Queue::session`].
///
/// The queue is closed with its last handle: of it, of its sessions, of what they have reserved and
/// of calls under way. Whoever drops that one waits until it is; [`Queue::close`] says how it went.
///
/// ```
/// use bsd::{PutOptions, Queue};
///
/// let dir = tempfile::tempdir()?;
/// let queue = Queue::open(dir.path())?;
///
/// let worker = queue.session();
/// worker.watch("mail").wait()?;
/// let sender = std::thread::spawn(move || -> Result<(), bsd::JobError> {
///     let job = worker.reserve().wait()?; // waits until there is one
///     assert_eq!(job.body(), b"to: you");
///     job.delete().wait() // gone for good, also after a crash; without this it is ready again
/// });
///
/// queue.put("mail", "to: you", PutOptions::default()).wait()?; // on the disk now
/// sender.join().expect("no panic")?;
/// assert_eq!(queue.close()?.total(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Queue {
    /// Used by all who have no session of their own. It keeps the thread.
    shared: Session,
    door: Door,
    thread: Arc<EngineThread>,
}

impl Deref for Queue {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.shared
    }
}

impl Queue {
    /// Open the queue in `dir`, or make one there, with default options: durable, every call.
    ///
    /// # Errors
    /// When the directory is in use, damaged, of another program, or cannot be used.
    pub fn open(dir: impl AsRef<Path>) -> Result<Queue, OpenError> {
        let dir = Some(dir.as_ref().to_owned());
        let options = Options {
            dir,
            ..Options::default()
        };
        Queue::open_with(&options, Bounds::default())
    }

    /// Open a queue with these options; without a directory it is in memory only. What calls hold
    /// that are under way is bounded: one that finds no room waits, or is refused, as its
    /// [session](Session::refusing) says. [`Options::waker`] is the queue's own.
    ///
    /// # Errors
    /// As for [`Queue::open`].
    pub fn open_with(options: &Options, bounds: Bounds) -> Result<Queue, OpenError> {
        let (thread, door) = EngineThread::start(options, bounds)?;
        let thread = Arc::new(thread);
        let shared = Session::new(door.session_with(Some(thread.clone())));
        Ok(Queue {
            shared,
            door,
            thread,
        })
    }

    /// A session of its own: it watches the tube `default`.
    #[must_use]
    pub fn session(&self) -> Session {
        Session::new(self.door.session_with(Some(self.thread.clone())))
    }

    /// Make at most `bound` jobs of a tube ready, as [`Session::kick`] does, in a session of its own:
    /// nobody waits for it who does not want to.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`].
    pub fn kick(&self, tube: &str, bound: u32) -> crate::Pending<u64> {
        self.session().kick(tube, bound)
    }

    /// Have long work done on the engine's thread, a step at a time.
    pub fn start<W: Work>(&self, work: W) -> Task<W> {
        self.door.start_with(self.thread.clone(), work)
    }

    /// Calls that were sent and are not answered, and the bytes that they hold.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        self.door.load()
    }

    /// A clean stop, for all handles: what was sent is done, everything is durable, counts of
    /// reserves and timeouts included, and the directory is free. Calls that wait for a job, and
    /// those that come, are told [`JobError::Closed`]. Returns the jobs that are kept; those that
    /// are reserved are ready at the next open.
    ///
    /// # Errors
    /// [`JobError::Store`]: the disk failed; what was reported as done before is kept.
    /// [`JobError::Closed`]: somebody else has closed it.
    pub fn close(self) -> Result<JobCounts, JobError> {
        self.thread.close()
    }
}
