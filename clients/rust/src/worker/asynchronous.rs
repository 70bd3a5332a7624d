//! Handlers that are awaited, on a runtime of tokio.
//!
//! A place of the worker is the same as for a blocking handler: a thread, a session, touches. Only what
//! the thread does meanwhile is different: it starts the handler as a task of the runtime, and waits for
//! that.

use std::panic::resume_unwind;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tracing::Instrument;

use super::slot::Problem;
use super::source::JobSource;
use super::stop::Stopper;
use super::task::{Failure, Task};
use super::{Running, Summary, Worker, read};
use crate::error::{Error, ErrorKind, Result};

impl Worker {
    /// A worker whose jobs have a body in JSON, and whose handler is awaited on a runtime of tokio.
    ///
    /// All is as for [`Worker::new`]: how many handlers run at a time, touches, errors and panics,
    /// metrics and spans, and each source of jobs. This is different:
    ///
    /// * A handler that has not ended at the end of the grace time is dropped where it awaits. One that
    ///   computes or blocks goes on to its next `await`.
    /// * Each job that is worked on has two threads beside its task: one talks to the queue, and waits
    ///   while the handler runs, the other touches the job. So the runtime may have one thread, but
    ///   something must drive it: [`Running::wait_async`] and [`Worker::run_async`] wait without holding
    ///   it up.
    /// * If the runtime is shut down the worker stops by itself: a job whose handler ended with it is
    ///   released.
    ///
    /// ```
    /// use bsd_client::Put;
    /// use bsd_client::worker::{Failure, JobSource, Task, Worker};
    /// use tokio::runtime::Handle;
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Mail {
    ///     to: String,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let queue = bsd::Queue::open(dir.path())?;
    /// # queue.open(&["mail".into()])?.put(Put::json(&Mail { to: "you".into() })?.tube("mail"))?;
    /// let (sent, mut is_sent) = tokio::sync::mpsc::channel(1);
    /// let handler = move |mail: Task<Mail>| {
    ///     let sent = sent.clone();
    ///     async move {
    ///         sent.send(mail.to.clone()).await?;
    ///         Ok::<(), Failure>(())
    ///     }
    /// };
    /// let worker = Worker::asynchronous(Handle::current(), handler);
    /// let running = worker.tube("mail").concurrency(4).start(queue.clone())?;
    ///
    /// assert_eq!(is_sent.recv().await.as_deref(), Some("you"));
    /// running.stopper().stop();
    /// assert_eq!(running.wait_async().await?.done, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn asynchronous<T, F, W>(runtime: Handle, handler: F) -> Worker
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Task<T>) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        Worker::with(move |task| work(&runtime, &handler, read(task)?))
    }

    /// The same for jobs of any bytes, as [`Worker::raw`] is for a blocking handler.
    pub fn asynchronous_raw<F, W>(runtime: Handle, handler: F) -> Worker
    where
        F: Fn(Task<Vec<u8>>) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        Worker::with(move |task| work(&runtime, &handler, task))
    }

    /// The same as [`Worker::run`], in a task of tokio. If the future is dropped the worker is told to
    /// stop, and ends as [`Running::wait_async`] says.
    ///
    /// # Errors
    /// As for [`Worker::run`]; [`Closed`](ErrorKind::Closed): the runtime is shut down.
    pub async fn run_async(self, source: impl JobSource) -> Result<Summary> {
        let mut running = self.start(source)?;
        running.stop_on_signals()?;
        running.wait_async().await
    }
}

impl Running {
    /// The same as [`Running::wait`], in a task of tokio: no thread of the runtime waits but one for
    /// blocking work. If the future is dropped the worker is told to stop, and ends in the background, at
    /// the end of the grace time at the latest.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed): the runtime is shut down. The worker was told to stop.
    pub async fn wait_async(self) -> Result<Summary> {
        let mut stopping = StopUnless {
            stopper: self.stopper(),
            is_over: false,
        };
        let waited = spawn_blocking(move || self.wait()).await;
        stopping.is_over = waited.is_ok();
        let gone = |error| Error::new(ErrorKind::Closed, "the runtime is shut down").because(error);
        waited.map_err(gone)
    }
}

/// Stops a worker when the future that waits for it is dropped.
struct StopUnless {
    stopper: Stopper,
    is_over: bool,
}

impl Drop for StopUnless {
    fn drop(&mut self) {
        if !self.is_over {
            self.stopper.stop();
        }
    }
}

/// Have a handler run as a task, and wait for its end. Its panic is one of this thread.
fn work<T, F, W>(runtime: &Handle, handler: &Arc<F>, task: Task<T>) -> Result<(), Problem>
where
    T: Send + 'static,
    F: Fn(Task<T>) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let (lease, handler) = (task.lease.clone(), handler.clone());
    // The handler is called in the task: it may spawn others even before it awaits.
    let work = async move { handler(task).await }.instrument(lease.span.clone());
    let work = runtime.spawn(work);
    let end = work.abort_handle();
    lease.on_end(move || end.abort());
    match runtime.block_on(work) {
        Ok(result) => result.map_err(Problem::Failure),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(Problem::Ended),
        },
    }
}
