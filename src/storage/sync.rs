//! When what was written becomes durable: the sync policies, and the thread that syncs beside the
//! loop.
//!
//! A fast disk wants the sync in the loop turn itself, a slow one wants the loop to go on serving
//! meanwhile, and `-f N` never waits for a disk at all. The log sees only "durable up to P".

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use super::fs::File;
use crate::types::Position;

/// When a record has to be on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Before the reply that acknowledges it leaves (`-f 0`, the default). A crash loses nothing
    /// that was acknowledged.
    Always,
    /// At most so many milliseconds after it was acknowledged (`-f N`), also when the server goes
    /// idle. A power cut loses at most those; a killed process loses nothing.
    Interval(u32),
    /// When the operating system sees fit (`-F`); a segment that is full is synced once. A power
    /// cut loses what the system had not written; a killed process loses nothing.
    Never,
}

/// Called from a background thread when the engine's `tick` has something to do.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// A sync that is done.
#[derive(Debug)]
pub(crate) struct Synced {
    /// Everything before this position.
    pub(crate) upto: Position,
    pub(crate) result: io::Result<()>,
}

/// Syncs files in the order in which it was asked to, on a thread of its own.
pub(crate) struct SyncThread {
    requests: Option<Sender<(Arc<dyn File>, Position)>>,
    done: Receiver<Synced>,
    /// Requests that have no answer yet.
    pending: usize,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for SyncThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncThread")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl SyncThread {
    pub(crate) fn start(waker: Waker) -> io::Result<SyncThread> {
        let (requests, incoming) = channel::<(Arc<dyn File>, Position)>();
        let (outgoing, done) = channel();
        let thread = std::thread::Builder::new()
            .name("bsd-sync".into())
            .spawn(move || {
                for (file, upto) in incoming {
                    let result = file.sync();
                    // A failure ends the log: later syncs must not pass for successes.
                    let failed = result.is_err();
                    if outgoing.send(Synced { upto, result }).is_err() {
                        return;
                    }
                    waker();
                    if failed {
                        return;
                    }
                }
            })?;
        Ok(SyncThread {
            requests: Some(requests),
            done,
            pending: 0,
            thread: Some(thread),
        })
    }

    /// Ask for everything before `upto` to be made durable; all of it that is not durable yet lies
    /// in `file` and in files asked for before.
    pub(crate) fn request(&mut self, file: Arc<dyn File>, upto: Position) {
        self.pending += 1;
        if let Some(requests) = &self.requests
            && requests.send((file, upto)).is_err()
        {
            tracing::error!("the sync thread has ended");
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// The next answer that is there.
    pub(crate) fn poll(&mut self) -> Option<Synced> {
        match self.done.try_recv() {
            Ok(synced) => {
                self.pending -= 1;
                Some(synced)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.wait(),
        }
    }

    /// Wait for the next answer; `None` when none is due. A thread that has ended without one has
    /// synced nothing.
    pub(crate) fn wait(&mut self) -> Option<Synced> {
        if self.pending == 0 {
            return None;
        }
        self.pending -= 1;
        let gone = |_| Synced {
            upto: Position::ZERO,
            result: Err(io::Error::other("the sync thread has ended")),
        };
        Some(self.done.recv().unwrap_or_else(gone))
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread ends when the channel closes; a panic in it has been reported already.
            let _ = thread.join();
        }
    }
}
