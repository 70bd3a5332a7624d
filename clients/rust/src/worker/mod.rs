//! A worker: takes jobs, works on them, and tells the queue how it went.

#[cfg(feature = "tokio")]
mod asynchronous;
mod lease;
mod metrics;
mod network;
mod retry;
mod slot;
mod source;
mod stop;
mod task;

#[cfg(feature = "embedded")]
mod embedded;

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use self::metrics::Guarded;
pub use self::metrics::{JobInfo, Metrics, Outcome};
pub use self::retry::Retry;
use self::slot::{Counts, Handler, Problem, Shared, Slot};
pub use self::source::{JobSession, JobSource};
pub use self::stop::Stopper;
pub use self::task::{Failure, Task};
use crate::error::{Error, Result};
use crate::job::Put;

impl Put {
    /// A job with this value as its body, in JSON.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): it has no form in JSON.
    pub fn json(value: &impl Serialize) -> Result<Put> {
        let body = serde_json::to_vec(value);
        let wrong = |error| Error::usage("the value has no form in JSON").because(error);
        body.map(Put::new).map_err(wrong)
    }
}

/// A worker: it takes jobs of some tubes, several at a time, and gives each to its handler.
///
/// * The handler is done: the job is deleted. A handler runs at least once for each job: the same job may
///   come again, so make the work idempotent.
/// * It returns an error, or panics: the queue is told so with the error's text (`fail`), and the
///   [policy](crate::Policy) of the tube says when the job is tried again, and where it goes at last.
///   **Without a policy it is ready again at once.** A server without `fail` is dealt with as [`Retry`]
///   says.
/// * The body cannot be read: the job is buried, with the reason.
/// * While a handler runs the time to run of its job is restarted by itself.
/// * When the worker is told to stop it begins nothing more, and lets the handlers that run come to their
///   end, no longer than the grace time; jobs of the others are ready again then.
///
/// Each job that is worked on has a session of its own: a connection, or a session of the queue in this
/// process. `Worker::asynchronous` takes a handler that is awaited (feature `tokio`).
///
/// ```no_run
/// use bsd_client::worker::{Failure, Task, Worker};
/// use bsd_client::Config;
///
/// #[derive(serde::Deserialize)]
/// struct Mail {
///     to: String,
/// }
///
/// fn send(mail: Task<Mail>) -> Result<(), Failure> {
///     println!("to {}", mail.to);
///     Ok(())
/// }
///
/// let config: Config = "127.0.0.1:11300".parse()?;
/// Worker::new(send).tube("mail").concurrency(8).run(config)?; // until SIGTERM or SIGINT
/// # Ok::<(), bsd_client::Error>(())
/// ```
#[must_use]
pub struct Worker {
    handler: Arc<Handler>,
    tubes: Vec<String>,
    concurrency: usize,
    grace: Duration,
    metrics: Box<dyn Metrics>,
    retry: Retry,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("tubes", &self.tubes)
            .field("concurrency", &self.concurrency)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker whose jobs have a body in JSON.
    pub fn new<T, F>(handler: F) -> Worker
    where
        T: DeserializeOwned,
        F: Fn(Task<T>) -> Result<(), Failure> + Send + Sync + 'static,
    {
        Worker::with(move |task| handler(read(task)?).map_err(Problem::Failure))
    }

    /// A worker whose jobs have any bytes.
    pub fn raw<F>(handler: F) -> Worker
    where
        F: Fn(Task<Vec<u8>>) -> Result<(), Failure> + Send + Sync + 'static,
    {
        Worker::with(move |task| handler(task).map_err(Problem::Failure))
    }

    fn with<F>(handler: F) -> Worker
    where
        F: Fn(Task<Vec<u8>>) -> Result<(), Problem> + Send + Sync + 'static,
    {
        Worker {
            handler: Arc::new(handler),
            tubes: Vec::new(),
            concurrency: 1,
            grace: Duration::from_secs(30),
            metrics: Box::new(()),
            retry: Retry::default(),
        }
    }

    /// Take jobs of this tube, and of others that were named so. Of `default` if none is named.
    pub fn tube(mut self, tube: impl Into<String>) -> Worker {
        self.tubes.push(tube.into());
        self
    }

    /// Work on this many jobs at a time, each on a thread of its own, with another one for its touches. 1.
    pub fn concurrency(mut self, count: usize) -> Worker {
        self.concurrency = count.max(1);
        self
    }

    /// How long a stop waits for handlers that run. 30 seconds.
    pub fn grace(mut self, time: Duration) -> Worker {
        self.grace = time;
        self
    }

    /// Tell this what happens.
    pub fn metrics(mut self, metrics: impl Metrics) -> Worker {
        self.metrics = Box::new(metrics);
        self
    }

    /// What is done with a job that has failed at a server that does not know `fail`.
    pub fn retry(mut self, retry: Retry) -> Worker {
        self.retry = retry;
        self
    }

    /// Work until SIGTERM or SIGINT, and stop then.
    ///
    /// # Errors
    /// Threads cannot be started, or signals cannot be caught.
    pub fn run(self, source: impl JobSource) -> Result<Summary> {
        let mut running = self.start(source)?;
        running.stop_on_signals()?;
        Ok(running.wait())
    }

    /// Begin to work, on threads of its own. A queue that is away is looked for until it is there.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn start(mut self, source: impl JobSource) -> Result<Running> {
        if self.tubes.is_empty() {
            self.tubes.push("default".to_owned());
        }
        let shared = Arc::new(Shared {
            source: Box::new(source),
            tubes: self.tubes,
            handler: self.handler,
            metrics: Guarded(self.metrics),
            retry: self.retry,
            stopper: Stopper::default(),
        });
        let (ended, threads_ended) = channel();
        // If a thread cannot be started, dropping this stops the others.
        let mut running = Running {
            shared: shared.clone(),
            slots: Vec::new(),
            counts: Arc::default(),
            threads_ended,
            touches: Vec::new(),
            signals: None,
            grace: self.grace,
        };
        for number in 0..self.concurrency {
            let slot: Arc<Slot> = Arc::default();
            let (shared, own) = (shared.clone(), slot.clone());
            let (counts, ended) = (running.counts.clone(), ended.clone());
            spawn(format!("bsd-worker-{number}"), move || {
                own.run(&shared, &counts);
                _ = ended.send(());
            })?;
            running.slots.push(slot);
        }
        // One for each: a server that does not answer a touch holds up no job of another.
        for (number, slot) in running.slots.iter().cloned().enumerate() {
            let shared = shared.clone();
            running
                .touches
                .push(spawn(format!("bsd-touch-{number}"), move || {
                    touch(&shared, &slot);
                })?);
        }
        Ok(running)
    }
}

/// A task with the value that its body is in JSON.
fn read<T: DeserializeOwned>(task: Task<Vec<u8>>) -> Result<Task<T>, Problem> {
    let (task, bytes) = task.with(());
    let wrong = |error| Problem::Unreadable(format!("the body cannot be read: {error}"));
    let body = serde_json::from_slice(&bytes).map_err(wrong)?;
    Ok(task.with(body).0)
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = Builder::new().name(name).spawn(run);
    thread.map_err(|error| trouble("a thread cannot be started", error))
}

fn trouble(what: &str, error: io::Error) -> Error {
    let text = format!("{what}: {error}");
    Error::new(crate::ErrorKind::Internal, text).because(error)
}

/// Touch the job that is worked on, as long as there may be one.
fn touch(shared: &Shared, slot: &Arc<Slot>) {
    // The last one of the others to leave it is `Running`.
    while Arc::strong_count(slot) > 1 {
        slot.touch(shared, Instant::now());
        match shared.stopper.is_stopped() {
            false => shared.stopper.pause(slot::LOOK),
            true => std::thread::park_timeout(slot::LOOK),
        }
    }
}

/// A worker that works. If it is dropped it is stopped, and waited for.
pub struct Running {
    shared: Arc<Shared>,
    slots: Vec<Arc<Slot>>,
    counts: Arc<Mutex<Counts>>,
    threads_ended: Receiver<()>,
    touches: Vec<JoinHandle<()>>,
    signals: Option<(Handle, JoinHandle<()>)>,
    grace: Duration,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("slots", &self.slots.len())
            .finish_non_exhaustive()
    }
}

/// What a worker has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Jobs that were done.
    pub done: u64,
    /// Jobs whose work failed, or that were lost.
    pub failed: u64,
    /// Jobs whose handler had not ended at the end of the grace time.
    pub abandoned: u64,
}

impl Running {
    /// Stops the worker, from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.shared.stopper.clone()
    }

    /// Stop on SIGTERM and SIGINT.
    ///
    /// # Errors
    /// Signals cannot be caught.
    pub fn stop_on_signals(&mut self) -> Result<()> {
        let signals = Signals::new([SIGTERM, SIGINT]);
        let mut signals = signals.map_err(|error| trouble("signals cannot be caught", error))?;
        let (handle, stopper) = (signals.handle(), self.stopper());
        let thread = spawn("bsd-signals".to_owned(), move || {
            for _ in signals.forever() {
                stopper.stop();
            }
        })?;
        self.signals = Some((handle, thread));
        Ok(())
    }

    /// Stop, and wait for the end: see [`Running::wait`].
    pub fn stop(self) -> Summary {
        self.shared.stopper.stop();
        self.wait()
    }

    /// Wait until the worker was stopped and its handlers have ended, or the grace time is over. Then
    /// jobs that are still worked on are ready again, and their handlers are left alone.
    pub fn wait(mut self) -> Summary {
        let stopped = self.shared.stopper.wait();
        self.end(stopped)
    }

    fn end(&mut self, stopped: Instant) -> Summary {
        let until = stopped + self.grace;
        let mut left = self.slots.len();
        while left > 0 {
            let time = until.saturating_duration_since(Instant::now());
            match self.threads_ended.recv_timeout(time) {
                Ok(()) => left -= 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let abandoned = self
            .slots
            .iter()
            .filter(|slot| slot.abandon(&self.shared))
            .count();
        self.slots.clear();
        if let Some((handle, thread)) = self.signals.take() {
            handle.close();
            _ = thread.join();
        }
        for thread in self.touches.drain(..) {
            thread.thread().unpark();
        }
        let counts = *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        Summary {
            done: counts.done,
            failed: counts.failed,
            abandoned: abandoned as u64,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            self.shared.stopper.stop();
            self.end(Instant::now());
        }
    }
}
