//! Reading from a store that may fail for a while: again, with pauses. Several objects at a time are
//! the matter of `ahead`.
//!
//! A restore needs every object of a long list, and one answer in a thousand may be wrong: an
//! error, half of an object, a flipped bit, "not found" of something that the list names. None of
//! that is damage. A call that fails is repeated with growing pauses, for minutes; an object that
//! is not as it was put is read again, and only an object that is wrong each time is called
//! damaged.

use std::time::Duration;

use super::format::Fault;
use super::store::{Answer, Listed, Store, Trouble};
use bsd::clock::Clock;
use bsd::types::{SECOND_NS, Time};

/// A store from which nothing comes for this long is given up.
const TRY_FOR_NS: i64 = 5 * 60 * SECOND_NS;
/// The first pause; each further one is twice as long …
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// … up to this: so soon after a store is back it is used.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// An object that is wrong is read this often before it is called damaged.
pub(super) const READINGS: u32 = 5;
/// Requests that are under way at the same time, unless [`Reader::with_connections`] says another
/// number.
pub const CONNECTIONS: usize = 64;
/// The largest number of them.
pub const CONNECTIONS_MAX: usize = 256;
/// Pauses after which people are told why nothing happens.
const TOLD_AFTER: u32 = READINGS;

/// Time passes while a store is waited for: in a test it is not the real one.
pub trait Wait: Send + Sync {
    /// Current time.
    fn now(&self) -> Time;

    /// Wait for this pause, for the `nth` time in a row, for this reason.
    fn pause(&self, pause: Duration, nth: u32, why: &str);
}

/// Waits in real time, and tells people of long waits.
#[derive(Debug)]
pub struct Waiter<T> {
    clock: Clock,
    tell: T,
}

impl<T: Fn(&str)> Waiter<T> {
    /// `tell` is called once in each long wait.
    pub fn new(clock: Clock, tell: T) -> Waiter<T> {
        Waiter { clock, tell }
    }
}

impl<T: Fn(&str) + Send + Sync> Wait for Waiter<T> {
    fn now(&self) -> Time {
        self.clock.now().mono
    }

    fn pause(&self, pause: Duration, nth: u32, why: &str) {
        if nth == TOLD_AFTER {
            (self.tell)(why);
        }
        std::thread::sleep(pause);
    }
}

/// Reads from a store, with patience.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    store: &'a dyn Store,
    wait: &'a dyn Wait,
    connections: usize,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reader").field(&self.store).finish()
    }
}

/// Calls that failed one after another.
#[derive(Debug)]
pub(super) struct Spell {
    since: Time,
    pauses: u32,
    pause: Duration,
}

impl Spell {
    pub(super) fn begin(wait: &dyn Wait) -> Spell {
        Spell {
            since: wait.now(),
            pauses: 0,
            pause: PAUSE_MIN,
        }
    }

    pub(super) fn rest(&mut self, wait: &dyn Wait, why: &str) {
        self.pauses += 1;
        wait.pause(self.pause, self.pauses, why);
        self.pause = (2 * self.pause).min(PAUSE_MAX);
    }

    /// Wait before the next try, or give up.
    pub(super) fn wait_out(&mut self, wait: &dyn Wait, trouble: Trouble) -> Result<(), Trouble> {
        let tried_ns = wait.now().since(self.since);
        if trouble.is_final {
            return Err(trouble);
        }
        if tried_ns >= TRY_FOR_NS {
            return Err(Trouble::passing(format!(
                "{} ({} tries in {} s)",
                trouble.what,
                self.pauses + 1,
                tried_ns / SECOND_NS
            )));
        }
        self.rest(wait, &trouble.what);
        Ok(())
    }
}

/// For a writer, which is called again and does not wait: what is got, as `decode` has it. `None`: there
/// is nothing. What is wrong is read again at once, as often as a [`Reader`] does. The place, the
/// name and what follows from damage are for people.
///
/// # Errors
/// The store did not answer. [`Trouble::damage`]: it was wrong each time.
pub(super) fn read_sound<T>(
    (place, name, so): (&str, &str, &str),
    get: impl Fn() -> Answer,
    decode: impl Fn(&[u8]) -> Result<T, Fault>,
) -> Result<Option<T>, Trouble> {
    let mut readings = 0;
    loop {
        let Some(bytes) = get()? else {
            return Ok(None);
        };
        let fault = match decode(&bytes) {
            Ok(found) => return Ok(Some(found)),
            Err(fault) => fault,
        };
        readings += 1;
        if readings == READINGS {
            return Err(Trouble::damage(format!(
                "{name} at {place} is damaged: {fault}; {so}; keep it, it may be the only copy: put an \
                 earlier version of it there if the store has one, or archive to another address; \
                 `bsd-wal archive verify {place}` says what can be restored"
            )));
        }
    }
}

/// For a writer, too: the answer that is as expected, or the last one. One answer may be wrong.
///
/// # Errors
/// The store did not answer.
pub(super) fn read_until<T>(
    get: impl Fn() -> Result<T, Trouble>,
    is_expected: impl Fn(&T) -> bool,
) -> Result<T, Trouble> {
    let mut found = get()?;
    for _ in 1..READINGS {
        if is_expected(&found) {
            break;
        }
        found = get()?;
    }
    Ok(found)
}

impl<'a> Reader<'a> {
    /// Of this store, with this way to wait for it.
    #[must_use]
    pub fn new(store: &'a dyn Store, wait: &'a dyn Wait) -> Reader<'a> {
        Reader {
            store,
            wait,
            connections: CONNECTIONS,
        }
    }

    /// The same with at most this number of requests under way: 1 to [`CONNECTIONS_MAX`].
    /// Memory does not depend on it: what is read ahead has at most 64 MiB, or is one object.
    #[must_use]
    pub fn with_connections(self, connections: usize) -> Reader<'a> {
        Reader {
            connections: connections.clamp(1, CONNECTIONS_MAX),
            ..self
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    pub(super) fn store(&self) -> &'a dyn Store {
        self.store
    }

    pub(super) fn wait(&self) -> &'a dyn Wait {
        self.wait
    }

    /// Repeat a call until it is answered.
    pub(super) fn again<T>(
        &self,
        call: impl Fn(&dyn Store) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut spell = Spell::begin(self.wait);
        loop {
            match call(self.store) {
                Ok(done) => return Ok(done),
                Err(trouble) => spell.wait_out(self.wait, trouble)?,
            }
        }
    }

    /// All objects whose name begins with `prefix`, and comes after `after`.
    pub(super) fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        self.again(|store| store.list(prefix, after))
    }
}
