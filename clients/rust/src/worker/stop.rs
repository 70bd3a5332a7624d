//! How a worker is asked to stop.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Stops a worker, from any thread.
#[derive(Debug, Clone, Default)]
pub struct Stopper {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Stopper {
    /// Stop: no new job is begun, and what was reserved and not begun is given back.
    pub fn stop(&self) {
        let mut stopped = self
            .shared
            .stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        stopped.get_or_insert_with(Instant::now);
        drop(stopped);
        self.shared.changed.notify_all();
    }

    /// True if the worker was told to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped_at().is_some()
    }

    fn stopped_at(&self) -> Option<Instant> {
        *self
            .shared
            .stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until it is stopped: when that was.
    pub(super) fn wait(&self) -> Instant {
        let mut stopped = self
            .shared
            .stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(at) = *stopped {
                return at;
            }
            let waited = self.shared.changed.wait(stopped);
            stopped = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wait this long, or until it is stopped.
    pub(super) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut stopped = self
            .shared
            .stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while stopped.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.changed.wait_timeout(stopped, left);
            stopped = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
