//! A bell: a thread sleeps on it until other threads wake it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::Thread;
use std::time::Duration;

/// A bell of the thread that created it. Other threads ring it; this thread sleeps until one has.
///
/// Parking alone is not enough: other code that parks on this thread in between, such as a channel
/// of the standard library, would consume the wake-up.
#[derive(Debug)]
pub(crate) struct Bell {
    thread: Thread,
    has_rung: AtomicBool,
}

impl Bell {
    /// A bell of this thread.
    pub(crate) fn here() -> Bell {
        Bell {
            thread: std::thread::current(),
            has_rung: AtomicBool::new(false),
        }
    }

    /// Wake the thread, now or when it next tries to sleep.
    pub(crate) fn ring(&self) {
        self.has_rung.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Sleep until it rings.
    pub(crate) fn sleep(&self) {
        while !self.has_rung.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }

    /// Sleep until it rings, or for `time` at most; it may wake earlier.
    pub(crate) fn doze(&self, time: Duration) {
        if !self.has_rung.swap(false, Ordering::Acquire) {
            std::thread::park_timeout(time);
            // Every ring so far counts: what was done before it is visible from here on.
            self.has_rung.swap(false, Ordering::Acquire);
        }
    }
}

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_that_rang_is_heard_even_if_something_else_took_the_wake_up() {
        let bell = Bell::here();
        bell.ring();
        std::thread::park();
        bell.sleep();
        bell.ring();
        std::thread::park();
        bell.doze(Duration::MAX);
    }
}
