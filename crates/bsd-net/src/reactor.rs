//! Events that wake the loop: sockets, signals, and other threads.
//!
//! It is created before the engine, which gets its waker. The sockets are added last.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::{Events, Interest, Poll, Registry, Token, Waker};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook_mio::v1_0::Signals;

/// Tokens that are neither a connection's (those count up from 0) nor a listener's.
const WAKER: Token = Token(usize::MAX);
const SIGNALS: Token = Token(usize::MAX - 1);

/// Events taken from the kernel in one turn of the loop; the others come in the next.
const EVENTS_PER_TURN_MAX: usize = 1024;

/// Event source of the loop.
pub struct Reactor {
    poll: Poll,
    waker: Arc<Waker>,
    signals: Option<Signals>,
    stop: Arc<AtomicBool>,
}

impl Reactor {
    /// A reactor that does not catch signals.
    ///
    /// # Errors
    /// The system has no free descriptor, or another resource is missing.
    pub fn new() -> io::Result<Reactor> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        Ok(Reactor {
            poll,
            waker,
            signals: None,
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Catch the process's SIGTERM and SIGINT (stop), SIGUSR1 (drain) and SIGHUP (read
    /// certificates and tokens again) from now on. They are kept until the loop runs. SIGPIPE needs
    /// no handler: Rust's runtime ignores it.
    ///
    /// # Errors
    /// The signals cannot be caught.
    pub fn catch_signals(&mut self) -> io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])?;
        self.poll
            .registry()
            .register(&mut signals, SIGNALS, Interest::READABLE)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Makes the loop turn, from any thread: the value for `Options::waker`.
    #[must_use]
    pub fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let waker = Arc::clone(&self.waker);
        // A wake-up fails only when the counter behind it is full: then the loop is awake.
        Arc::new(move || drop(waker.wake()))
    }

    /// Stops the server from any thread, as SIGTERM does.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            stop: Arc::clone(&self.stop),
            waker: Arc::clone(&self.waker),
        }
    }

    pub(super) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Wait until something happens, or for `timeout`.
    pub(super) fn poll(
        &mut self,
        events: &mut Events,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            polled => polled,
        }
    }

    /// Requests of signals and other threads since the last look.
    pub(super) fn wishes(&mut self) -> Wishes {
        let mut wishes = Wishes {
            stop: self.stop.load(Ordering::SeqCst),
            ..Wishes::default()
        };
        for signal in self.signals.iter_mut().flat_map(Signals::pending) {
            match signal {
                SIGUSR1 => wishes.drain = true,
                SIGHUP => wishes.reload = true,
                _ => wishes.stop = true,
            }
        }
        wishes
    }
}

/// An empty set of events, with room for those of one turn.
pub(super) fn events() -> Events {
    Events::with_capacity(EVENTS_PER_TURN_MAX)
}

/// True for the tokens of [`Reactor::wishes`] and of the waker.
pub(super) fn is_own_token(token: Token) -> bool {
    token == WAKER || token == SIGNALS
}

/// Result of [`Reactor::wishes`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    /// Stop cleanly.
    pub(super) stop: bool,
    /// Take no more jobs.
    pub(super) drain: bool,
    /// Read files of the configuration again; or the terminal is closed.
    pub(super) reload: bool,
}

/// Stops a server that runs on another thread.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Ask the server to stop cleanly; it does so at the end of its turn.
    ///
    /// # Errors
    /// The loop cannot be woken: it stops when something else wakes it.
    pub fn stop(&self) -> io::Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopper_wakes_the_loop_and_says_stop() {
        let mut reactor = Reactor::new().unwrap();
        assert_eq!(reactor.wishes(), Wishes::default());
        reactor.stopper().stop().unwrap();
        let mut events = events();
        reactor.poll(&mut events, None).unwrap();
        assert!(events.iter().all(|event| is_own_token(event.token())));
        assert!(reactor.wishes().stop);
    }

    #[test]
    fn a_waker_wakes_the_loop_and_says_nothing() {
        let mut reactor = Reactor::new().unwrap();
        reactor.waker()();
        reactor.poll(&mut events(), None).unwrap();
        assert_eq!(reactor.wishes(), Wishes::default());
    }

    #[test]
    fn two_reactors_stop_apart() {
        let (mut one, mut two) = (Reactor::new().unwrap(), Reactor::new().unwrap());
        one.stopper().stop().unwrap();
        assert!(one.wishes().stop);
        assert!(!two.wishes().stop);
    }
}
