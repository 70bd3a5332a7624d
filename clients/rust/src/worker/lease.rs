//! What a worker and the handler of a job share while the handler runs.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Ends the work of a handler from outside.
type End = Box<dyn FnOnce() + Send>;

/// The hold of a handler on its job.
#[derive(Default)]
pub(super) struct Lease {
    is_lost: AtomicBool,
    end: Mutex<Option<End>>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

impl Lease {
    /// The job is not reserved any more.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// What ends the handler, if anything can.
    #[cfg(feature = "tokio")]
    pub(super) fn on_end(&self, end: impl FnOnce() + Send + 'static) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(end));
    }

    /// The worker does not wait for the handler any more: end it, if that is possible.
    pub(super) fn end(&self) {
        self.lose();
        let end = self
            .end
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(end) = end {
            end();
        }
    }
}
