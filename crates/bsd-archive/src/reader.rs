//! Reading from a store that may fail for a while: many objects at a time, and again.
//!
//! A restore needs every object of a long list, and one answer in a thousand may be wrong: an
//! error, half of an object, a flipped bit, "not found" of something that the list names. None of
//! that is damage. A call that fails is repeated with growing pauses, for minutes; an object that
//! is not as it was put is read again, and only an object that is wrong each time is called
//! damaged.

use std::time::Duration;

use super::format::{Fault, HEAD_SIZE, Head, chain_dir, numbered};
use super::store::{Listed, Store, Trouble, Want};
use bsd::clock::Clock;
use bsd::storage::format::LogId;
use bsd::types::{SECOND_NS, Time};

/// A store from which nothing comes for this long is given up.
const TRY_FOR_NS: i64 = 5 * 60 * SECOND_NS;
/// The first pause; each further one is twice as long …
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// … up to this: so soon after a store is back it is used.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// An object that is wrong is read this often before it is called damaged.
pub(super) const READINGS: u32 = 5;
/// Objects that are read at once at most …
const AT_ONCE: usize = 64;
/// … and bytes of them, which a restore holds in memory.
const BYTES_AT_ONCE: u64 = 64 << 20;
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
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reader").field(&self.store).finish()
    }
}

/// Calls that failed one after another.
struct Spell {
    since: Time,
    pauses: u32,
    pause: Duration,
}

impl Spell {
    fn begin(wait: &dyn Wait) -> Spell {
        Spell {
            since: wait.now(),
            pauses: 0,
            pause: PAUSE_MIN,
        }
    }

    fn rest(&mut self, wait: &dyn Wait, why: &str) {
        self.pauses += 1;
        wait.pause(self.pause, self.pauses, why);
        self.pause = (2 * self.pause).min(PAUSE_MAX);
    }

    /// Wait before the next try, or give up.
    fn wait_out(&mut self, wait: &dyn Wait, trouble: Trouble) -> Result<(), Trouble> {
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

impl<'a> Reader<'a> {
    /// Of this store, with this way to wait for it.
    #[must_use]
    pub fn new(store: &'a dyn Store, wait: &'a dyn Wait) -> Reader<'a> {
        Reader { store, wait }
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

    /// Objects that have to be there, each as `check` makes of it. They are read at once: see
    /// [`at_once`]. An inner error: it is wrong, however often it is read.
    pub(super) fn read_all<T>(
        &self,
        wants: &[Want],
        check: impl Fn(usize, Vec<u8>) -> Result<T, Fault>,
    ) -> Result<Vec<Result<T, Fault>>, Trouble> {
        let mut found: Vec<Option<Result<T, Fault>>> = wants.iter().map(|_| None).collect();
        let mut readings = vec![0; wants.len()];
        let mut open: Vec<usize> = (0..wants.len()).collect();
        let mut spell = Spell::begin(self.wait);
        while !open.is_empty() {
            let asked: Vec<Want> = open.iter().map(|index| wants[*index].clone()).collect();
            let answers = self.store.get_many(&asked);
            let (mut trouble, mut doubt) = (None, None);
            let mut left = Vec::new();
            for (index, answer) in open.into_iter().zip(answers) {
                let bytes = match answer {
                    Ok(bytes) => bytes,
                    Err(failed) => {
                        trouble = Some(failed);
                        left.push(index);
                        continue;
                    }
                };
                let missing = || "it is missing".to_owned();
                match bytes.ok_or_else(missing).and_then(|it| check(index, it)) {
                    Ok(sound) => {
                        found[index] = Some(Ok(sound));
                        spell = Spell::begin(self.wait);
                    }
                    Err(fault) => {
                        readings[index] += 1;
                        if readings[index] < READINGS {
                            doubt = Some(format!("{}: {fault}", wants[index].name));
                            left.push(index);
                        } else {
                            found[index] = Some(Err(fault));
                        }
                    }
                }
            }
            open = left;
            match (trouble, doubt) {
                (Some(trouble), _) => spell.wait_out(self.wait, trouble)?,
                (None, Some(doubt)) => spell.rest(self.wait, &doubt),
                (None, None) => {}
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// One of them.
    pub(super) fn read<T>(
        &self,
        want: Want,
        check: impl Fn(Vec<u8>) -> Result<T, Fault>,
    ) -> Result<Result<T, Fault>, Trouble> {
        let one = self.read_all(&[want], |_, bytes| check(bytes))?;
        Ok(one.into_iter().next().unwrap_or_else(|| Err(String::new())))
    }

    /// An object that need not be there.
    pub(super) fn find<T>(
        &self,
        name: &str,
        check: impl Fn(Vec<u8>) -> Result<T, Fault>,
    ) -> Result<Option<Result<T, Fault>>, Trouble> {
        match self.again(|store| store.get(name))? {
            None => Ok(None),
            Some(bytes) => match check(bytes) {
                Ok(sound) => Ok(Some(Ok(sound))),
                Err(_) => self.read(Want::whole(name), check).map(Some),
            },
        }
    }

    /// The heads of these links, in their order.
    pub(super) fn heads(
        &self,
        log: LogId,
        numbers: &[u64],
    ) -> Result<Vec<Result<Head, Fault>>, Trouble> {
        let mut heads = Vec::with_capacity(numbers.len());
        for numbers in numbers.chunks(AT_ONCE) {
            let dir = chain_dir(log);
            let want = |number: &u64| Want {
                name: numbered(&dir, *number),
                range: Some(0..HEAD_SIZE as u64),
            };
            let wants: Vec<Want> = numbers.iter().map(want).collect();
            heads.extend(self.read_all(&wants, |index, bytes| {
                let (head, ..) = Head::decode_alone(&bytes)?;
                head.check_place(log, numbers[index])?;
                Ok(head)
            })?);
        }
        Ok(heads)
    }
}

/// How many of the first of these objects are read at once. At least one, if there is any.
pub(super) fn at_once(sizes: impl Iterator<Item = u64>) -> usize {
    let mut bytes = 0_u64;
    let mut count = 0;
    for size in sizes.take(AT_ONCE) {
        bytes = bytes.saturating_add(size);
        if count > 0 && bytes > BYTES_AT_ONCE {
            break;
        }
        count += 1;
    }
    count
}
