//! What a worker and the handler of a job share while the handler runs.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What ends the work of a handler from outside.
#[derive(Default)]
enum End {
    /// Nothing does, so far.
    #[default]
    Unknown,
    #[cfg(feature = "tokio")]
    By(Box<dyn FnOnce() + Send>),
    /// It was told to end.
    Told,
}

/// The hold of a handler on its job.
pub(super) struct Lease {
    /// In which the handler runs.
    #[cfg(feature = "tokio")]
    pub(super) span: tracing::Span,
    is_lost: AtomicBool,
    end: Mutex<End>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

impl Lease {
    pub(super) fn new(span: &tracing::Span) -> Lease {
        #[cfg(not(feature = "tokio"))]
        let _ = span;
        Lease {
            #[cfg(feature = "tokio")]
            span: span.clone(),
            is_lost: AtomicBool::new(false),
            end: Mutex::default(),
        }
    }

    /// The job is not reserved any more.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// What ends the handler. It is done at once if the handler was told to end before it began.
    #[cfg(feature = "tokio")]
    pub(super) fn on_end(&self, end: impl FnOnce() + Send + 'static) {
        let mut known = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            End::Told => {
                drop(known);
                end();
            }
            _ => *known = End::By(Box::new(end)),
        }
    }

    /// The worker does not wait for the handler any more: end it, if that is possible.
    pub(super) fn end(&self) {
        self.lose();
        let mut known = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let end = std::mem::replace(&mut *known, End::Told);
        drop(known);
        match end {
            #[cfg(feature = "tokio")]
            End::By(end) => end(),
            End::Unknown | End::Told => {}
        }
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_handler_is_ended_once_be_it_told_before_it_begins_or_after() {
        for is_told_first in [true, false] {
            let lease = Lease::new(&tracing::Span::none());
            let count: Arc<AtomicU32> = Arc::default();
            let ended = count.clone();
            let end = move || _ = ended.fetch_add(1, Ordering::SeqCst);
            if is_told_first {
                lease.end();
                lease.on_end(end);
            } else {
                lease.on_end(end);
                assert_eq!(count.load(Ordering::SeqCst), 0);
                lease.end();
            }
            lease.end();
            assert!(lease.is_lost());
            assert_eq!(count.load(Ordering::SeqCst), 1);
        }
    }
}
