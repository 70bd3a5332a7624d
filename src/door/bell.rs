//! What a thread sleeps on until others wake it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::Thread;
use std::time::Duration;

/// A bell of the thread that made it. Others ring; it sleeps until somebody has.
///
/// Parking alone would not do: whatever else parks on this thread in between, a channel of the
/// standard library for one, would take the wake-up for its own.
#[derive(Debug)]
pub(crate) struct Bell {
    thread: Thread,
    has_rung: AtomicBool,
}

impl Bell {
    /// The bell of this thread.
    pub(crate) fn here() -> Bell {
        Bell {
            thread: std::thread::current(),
            has_rung: AtomicBool::new(false),
        }
    }

    /// Wake the thread, now or when it next wants to sleep.
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

    /// Sleep until it rings, or for `time`, or for less.
    pub(crate) fn doze(&self, time: Duration) {
        if !self.has_rung.swap(false, Ordering::Acquire) {
            std::thread::park_timeout(time);
            // Whoever rang by now is heard: what was done before is seen from here on.
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
