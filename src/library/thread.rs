//! The engine's thread: its loop, its end.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::turns::Turns;
use crate::clock::Clock;
use crate::door::{Bell, Bounds, Door, JobError};
use crate::engine::{Engine, Options};
use crate::storage::{OpenError, StoreError};
use crate::types::JobCounts;

/// Ends with its last handle: the queue is closed then, and the thread that drops it waits for
/// that.
#[derive(Debug)]
pub(super) struct EngineThread {
    is_over: Arc<AtomicBool>,
    door: Door,
    handle: Mutex<Option<Handle>>,
}

type Handle = JoinHandle<Result<JobCounts, StoreError>>;

impl EngineThread {
    /// Start the thread and open the queue on it.
    pub(super) fn start(
        options: &Options,
        bounds: Bounds,
    ) -> Result<(EngineThread, Door), OpenError> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (tell, opened) = sync_channel(1);
        let (mut options, is_over_there) = (options.clone(), is_over.clone());
        let handle = std::thread::Builder::new()
            .name("bsd-engine".into())
            .spawn(move || {
                let bell = Arc::new(Bell::here());
                let ringing = bell.clone();
                options.waker = Some(Arc::new(move || ringing.ring()));
                run(&options, bounds, &tell, &is_over_there, &bell)
            })
            .map_err(|error| OpenError::no_thread(Path::new("the queue"), &error))?;
        match opened.recv() {
            Ok(Ok(door)) => Ok((
                EngineThread {
                    is_over,
                    door: door.clone(),
                    handle: Mutex::new(Some(handle)),
                },
                door,
            )),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let panicked = std::io::Error::other("the thread panicked");
                let doing = "start the engine's thread for";
                Err(OpenError::io(doing, Path::new("the queue"), &panicked))
            }
        }
    }

    /// Close the queue, and wait until it is closed.
    ///
    /// # Errors
    /// [`JobError::Store`]; [`JobError::Closed`] when it was closed before.
    ///
    /// # Panics
    /// If the engine panicked: with the same panic.
    pub(super) fn close(&self) -> Result<JobCounts, JobError> {
        match self.end() {
            None => Err(JobError::Closed),
            Some(Ok(kept)) => Ok(kept?),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }

    /// End the thread, and wait for it. `None`: another caller has ended it, or this is the
    /// engine's thread itself: there, waking a future has dropped the last handle. The thread ends
    /// soon in that case.
    fn end(&self) -> Option<std::thread::Result<Result<JobCounts, StoreError>>> {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = handle.take()?;
        self.is_over.store(true, Ordering::Release);
        self.door.ring();
        let is_here = handle.thread().id() == std::thread::current().id();
        (!is_here).then(|| handle.join())
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        match self.end() {
            None | Some(Ok(Ok(_))) => {}
            Some(Ok(Err(error))) => tracing::error!("the queue was not closed cleanly: {error}"),
            Some(Err(_)) => tracing::error!("the queue was not closed: its thread has panicked"),
        }
    }
}

/// The whole life of the thread. First it reports whether the queue is open.
fn run(
    options: &Options,
    bounds: Bounds,
    tell: &SyncSender<Result<Door, OpenError>>,
    is_over: &AtomicBool,
    bell: &Arc<Bell>,
) -> Result<JobCounts, StoreError> {
    let clock = Clock::start();
    let engine = match Engine::open(options, clock.now()) {
        Ok(engine) => engine,
        Err(error) => {
            let _ = tell.send(Err(error));
            return Ok(JobCounts::default());
        }
    };
    let ringing = bell.clone();
    let sides = Door::new(bounds, Arc::new(move || ringing.ring()));
    let mut turns = Turns::new(engine, sides, clock);
    // The thread that started this one waits for it.
    let _ = tell.send(Ok(turns.door.clone()));
    while !is_over.load(Ordering::Acquire) {
        turns.turn()?;
        sleep(&turns, bell);
    }
    // Everything that was sent before the end was requested is done.
    turns.turn()?;
    turns.close()
}

/// Sleep until a call comes, or something is due.
fn sleep(turns: &Turns, bell: &Bell) {
    let now = turns.now();
    match turns.next_deadline(now) {
        None => bell.sleep(),
        Some(due) => {
            let ns = u64::try_from(due.since(now.mono)).unwrap_or(0);
            if ns > 0 {
                bell.doze(Duration::from_nanos(ns));
            }
        }
    }
}
