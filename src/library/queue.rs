//! A handle for all threads, on an engine that runs on its own thread.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use super::session::Session;
use super::thread::EngineThread;
use crate::door::{Bounds, Door, JobError};
use crate::engine::Options;
use crate::storage::OpenError;
use crate::types::JobCounts;

/// A durable job queue inside this process: the engine of `bsd-server`, without sockets, on its own
/// thread.
///
/// It is a handle: its clones are the same queue, and any thread may call. Calls that are under way
/// at the same time share a write and a sync. A call is a future, [`Pending`](crate::Pending):
/// await it, or [`wait`](crate::Pending::wait) for it.
///
/// With [`SyncPolicy::Always`](crate::SyncPolicy::Always), the default, everything that a call
/// reports as done is on stable storage by then.
///
/// All calls that need no separate session are methods of [`Session`]. The queue dereferences to a
/// session that all its handles share. Each worker takes a session of its own from
/// [`Queue::session`].
///
/// The queue is closed when its last handle is dropped: of the queue, its sessions, their reserved
/// jobs and calls under way. The thread that drops it waits until the queue is closed;
/// [`Queue::close`] also returns the result.
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
    /// Used by all callers that have no session of their own. It keeps the thread alive.
    shared: Session,
    pub(super) door: Door,
    thread: Arc<EngineThread>,
}

impl Deref for Queue {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.shared
    }
}

impl Queue {
    /// Open the queue in `dir`, or create one there, with default options: every call is durable.
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

    /// Open a queue with these options; without a directory it is in memory only. `bounds` limits
    /// what the calls under way may occupy: a call that finds no room waits or is refused, as its
    /// [session](Session::refusing) says. [`Options::waker`] is set by the queue itself.
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

    /// A new session: it watches the tube `default`.
    #[must_use]
    pub fn session(&self) -> Session {
        Session::new(self.door.session_with(Some(self.thread.clone())))
    }

    /// Make at most `bound` jobs of a tube ready, as [`Session::kick`] does, but in a separate
    /// session: later calls do not wait for it.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`].
    pub fn kick(&self, tube: &str, bound: u32) -> crate::Pending<u64> {
        self.session().kick(tube, bound)
    }

    /// Calls that were sent and are not answered, and their bytes.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        self.door.load()
    }

    /// A clean stop, for all handles: calls sent before it are done, everything is durable, counts
    /// of reserves and timeouts included, and the directory is free. Calls that wait for a job, and
    /// later calls, get [`JobError::Closed`]. Returns the number of jobs that are kept; those that
    /// are reserved are ready at the next open.
    ///
    /// # Errors
    /// [`JobError::Store`]: the disk failed; what was reported as done before is kept.
    /// [`JobError::Closed`]: it has been closed already.
    pub fn close(self) -> Result<JobCounts, JobError> {
        self.thread.close()
    }
}
