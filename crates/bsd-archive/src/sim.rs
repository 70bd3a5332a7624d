//! A simulated object store, for tests: what a network and a store may do to a writer.
//!
//! | fault | what happens |
//! |---|---|
//! | refused | the call fails, and nothing was done |
//! | lost answer | the put happened, and the call fails |
//! | late put | the call fails; the put happens before some later call, if its name is still free |
//! | repeated | the put is made twice: the second finds the first, and its answer is the one given |
//! | away | every call fails, until the store is back |
//! | full | every put fails, until there is room |
//! | lies | of some of what is read a bit is flipped, the end is missing, or nothing is found, until a moment |
//! | back at a moment | every call fails, until someone has waited that long |
//! | slow | a call takes time, by the clock of the store; of reads at the same time any may end first |
//! | unordered | a list comes back as any store might order it, before the client sorts it |
//!
//! One seed gives one run. What it cannot do: lose an object that was put, or show old content; the
//! stores that bsd supports are strongly consistent.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::format::Fault;
use super::reader::{Reader, Wait};
use super::sealed::{Codec, Sealed};
use super::store::{Answer, Flight, Listed, Put, Store, Trouble, Want};
use bsd::random::Random;
use bsd::types::{SECOND_NS, Time};

/// The simulated store, behind a codec. Clones share the objects and the faults.
#[derive(Debug, Clone)]
pub struct SimStore(Sealed<Bare>);

/// The store itself, with the objects as they are.
#[derive(Debug, Clone)]
struct Bare(Arc<Mutex<State>>, &'static str);

/// What a store with an interface as that of S3 would charge for, by kind: a list has at most 1,000
/// names, and so has a removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Objects that were put, or were there already.
    pub puts: u64,
    /// Pages of lists.
    pub lists: u64,
    /// Objects that were read, or looked for, or parts of them.
    pub gets: u64,
    /// Removals.
    pub removals: u64,
    /// Bytes of what was put.
    pub bytes_put: u64,
    /// Bytes of what was read.
    pub bytes_got: u64,
}

/// Names in a page of a list, and in a removal.
const NAMES_MAX: usize = 1000;

impl Requests {
    /// Those that came after `before`.
    #[must_use]
    pub fn since(self, before: Requests) -> Requests {
        Requests {
            puts: self.puts - before.puts,
            lists: self.lists - before.lists,
            gets: self.gets - before.gets,
            removals: self.removals - before.removals,
            bytes_put: self.bytes_put - before.bytes_put,
            bytes_got: self.bytes_got - before.bytes_got,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.puts += 1;
        self.bytes_put += bytes.len() as u64;
    }

    fn list(&mut self, names: usize) {
        self.lists += names.div_ceil(NAMES_MAX).max(1) as u64;
    }
}

#[derive(Debug)]
struct State {
    random: Random,
    objects: BTreeMap<String, Vec<u8>>,
    /// Puts that are still on their way.
    late: Vec<(String, Vec<u8>)>,
    /// Calls of a hundred that fail in some way.
    faults: u64,
    is_away: bool,
    is_full: bool,
    is_conditional: bool,
    calls: u64,
    requests: Requests,
    /// Calls until the store goes away.
    calls_left: Option<u64>,
    /// The time of those who wait.
    now: Time,
    /// How long a call takes on average, ns.
    call_ns: i64,
    /// Until then every call fails.
    away_until: Time,
    /// Until then some answers are wrong.
    lies_until: Time,
}

impl State {
    /// A call begins: what was late may arrive.
    fn begin(&mut self) -> Result<(), Trouble> {
        self.calls += 1;
        while !self.late.is_empty() && self.random.one_in(3) {
            let index = self.random.below(self.late.len());
            let (name, bytes) = self.late.swap_remove(index);
            self.objects.entry(name).or_insert(bytes);
        }
        let is_over = self.calls_left == Some(0);
        self.calls_left = self.calls_left.map(|left| left.saturating_sub(1));
        match self.is_away || is_over || self.now < self.away_until {
            true => Err(Trouble::passing("the simulated store is away")),
            false => Ok(()),
        }
    }

    /// How long the next call takes, ns: half to three halves of the average.
    fn draw_call_ns(&mut self) -> i64 {
        let spread = match self.call_ns {
            0 => 0,
            average => self.random.below(average as usize + 1) as i64,
        };
        self.call_ns / 2 + spread
    }

    fn read(&mut self, name: &str, range: Range<u64>) -> Answer {
        self.requests.gets += 1;
        self.begin()?;
        if self.has_fault() {
            return Err(Trouble::passing("simulated: refused"));
        }
        let lie = (self.now < self.lies_until).then(|| self.random.next());
        let cut = |bytes: &Vec<u8>| {
            let end = range.end.min(bytes.len() as u64) as usize;
            bytes[(range.start as usize).min(end)..end].to_vec()
        };
        let found = self.objects.get(name).map(cut);
        self.requests.bytes_got += found.as_ref().map_or(0, |bytes| bytes.len() as u64);
        Ok(match lie {
            Some(lie) => found.and_then(|bytes| lied(bytes, lie)),
            None => found,
        })
    }

    fn has_fault(&mut self) -> bool {
        self.random.percent(self.faults)
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> Put {
        match self.objects.contains_key(name) && self.is_conditional {
            true => Put::Exists,
            false => {
                self.objects.insert(name.to_owned(), bytes.to_vec());
                Put::Done
            }
        }
    }
}

impl SimStore {
    /// An empty store without faults.
    #[must_use]
    pub fn new(seed: u64) -> SimStore {
        SimStore::at("sim://store", seed)
    }

    /// An empty one at another address.
    #[must_use]
    pub fn at(place: &'static str, seed: u64) -> SimStore {
        let state = State {
            random: Random::new(seed),
            objects: BTreeMap::new(),
            late: Vec::new(),
            faults: 0,
            is_away: false,
            is_full: false,
            is_conditional: true,
            calls: 0,
            requests: Requests::default(),
            calls_left: None,
            now: Time(0),
            call_ns: 0,
            away_until: Time(0),
            lies_until: Time(0),
        };
        let bare = Bare(Arc::new(Mutex::new(state)), place);
        SimStore(Sealed::new(bare, Codec::default()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.inner().state()
    }

    /// The same store, whose objects are put and read as `codec` says.
    #[must_use]
    pub fn with_codec(&self, codec: Codec) -> SimStore {
        SimStore(Sealed::new(self.0.inner().clone(), codec))
    }

    /// Reads from it, and waits in its time.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(self, self)
    }

    /// From now on `percent` calls of a hundred go wrong.
    pub fn set_faults(&self, percent: u64) {
        self.state().faults = percent;
    }

    /// Someone has tried the same this many times. A writer whose start fails may leave a claim, and the
    /// next start reads it too: where very many calls go wrong, none would ever succeed.
    pub fn note_tries(&self, tries: u64) {
        if tries == 2000 {
            let mut state = self.state();
            state.faults = state.faults.min(4);
        }
    }

    /// From now on every call fails, or none for this reason.
    pub fn set_away(&self, is_away: bool) {
        self.state().is_away = is_away;
    }

    /// From now on every put fails, or none for this reason.
    pub fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// A store that overwrites, whatever condition it is given.
    pub fn ignore_conditions(&self) {
        self.state().is_conditional = false;
    }

    /// The store goes away after `calls` more calls; `None`: it does not.
    pub fn set_calls_left(&self, calls: Option<u64>) {
        self.state().calls_left = calls;
    }

    /// Every call fails, until someone has waited for `seconds`.
    pub fn set_away_for(&self, seconds: i64) {
        let mut state = self.state();
        state.away_until = Time(state.now.0 + seconds * SECOND_NS);
    }

    /// One answer in sixteen is wrong, until someone has waited for `seconds`.
    pub fn set_lies_for(&self, seconds: i64) {
        let mut state = self.state();
        state.lies_until = Time(state.now.0 + seconds * SECOND_NS);
    }

    /// From now on a call takes this time on average, for those who wait for it.
    pub fn set_call_time(&self, time: Duration) {
        self.state().call_ns = time.as_nanos() as i64;
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Requests so far.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.state().requests
    }

    /// Bytes of all objects.
    #[must_use]
    pub fn size(&self) -> u64 {
        let state = self.state();
        state.objects.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// The names of all objects.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    /// An object as it is, which may be sealed.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.state().objects.get(name).cloned()
    }

    /// Put, replace or (`None`) remove an object behind everyone's back.
    pub fn set_object(&self, name: &str, bytes: Option<Vec<u8>>) {
        let mut state = self.state();
        match bytes {
            Some(bytes) => state.objects.insert(name.to_owned(), bytes),
            None => state.objects.remove(name),
        };
    }

    /// A store of its own with the same objects, and without faults.
    #[must_use]
    pub fn copy(&self) -> SimStore {
        self.copy_with(1)
    }

    /// The same, with another seed for its faults.
    #[must_use]
    pub fn copy_with(&self, seed: u64) -> SimStore {
        let copy = SimStore::at(self.0.inner().1, seed).with_codec(self.0.codec().clone());
        copy.state().objects = self.state().objects.clone();
        copy
    }
}

/// A wrong answer that a store may give instead of this.
fn lied(mut bytes: Vec<u8>, lie: u64) -> Option<Vec<u8>> {
    let at = (lie >> 8) as usize % bytes.len().max(1);
    match lie % 48 {
        0 => None,
        1 => {
            bytes.truncate(at);
            Some(bytes)
        }
        2 if !bytes.is_empty() => {
            bytes[at] ^= 1 << (lie >> 4 & 7);
            Some(bytes)
        }
        _ => Some(bytes),
    }
}

/// Time passes for a store when someone waits for it or, if that takes time, calls it; else never.
impl Wait for SimStore {
    fn now(&self) -> Time {
        self.state().now
    }

    fn pause(&self, pause: Duration, _: u32, _: &str) {
        self.state().now.0 += pause.as_nanos() as i64;
    }
}

impl Bare {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same at the end of a call.
    fn call(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.now.0 += state.draw_call_ns();
        state
    }
}

/// Reads that end in an order that the seed says, each when its time has come.
#[derive(Debug)]
struct SimFlight {
    store: Bare,
    under_way: Vec<(Time, u64, Want)>,
}

impl Flight for SimFlight {
    fn ask(&mut self, tag: u64, want: Want) {
        let mut state = self.store.state();
        let due = Time(state.now.0 + state.draw_call_ns());
        self.under_way.push((due, tag, want));
    }

    fn answer(&mut self, is_awaited: bool) -> Option<(u64, Answer)> {
        let mut state = self.store.state();
        let first = self.under_way.iter().map(|(due, ..)| *due).min()?;
        if !is_awaited && first > state.now {
            return None;
        }
        state.now = state.now.max(first);
        let ready = self.under_way.iter().enumerate();
        let ready = ready.filter(|(_, (due, ..))| *due <= state.now);
        let ready: Vec<usize> = ready.map(|(index, _)| index).collect();
        let chosen = ready[state.random.below(ready.len())];
        let (_, tag, want) = self.under_way.swap_remove(chosen);
        let answer = state.read(&want.name, want.range.unwrap_or(0..u64::MAX));
        Some((tag, answer))
    }
}

impl Store for Bare {
    fn place(&self) -> &str {
        self.1
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        let mut state = self.call();
        state.begin()?;
        if state.has_fault() {
            return Err(Trouble::passing("simulated: refused"));
        }
        let first = |name: &String| name.split('/').next().map(str::to_owned);
        let mut tops: Vec<_> = state.objects.keys().filter_map(first).collect();
        tops.dedup();
        state.requests.list(tops.len());
        Ok(tops)
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble> {
        let mut state = self.call();
        state.requests.put(bytes);
        state.begin()?;
        if state.is_full {
            return Err(Trouble::passing("simulated: there is no room"));
        }
        if !state.has_fault() {
            return Ok(state.put(name, bytes));
        }
        match state.random.below(4) {
            0 => Err(Trouble::passing("simulated: refused")),
            1 => {
                state.put(name, bytes);
                Err(Trouble::passing("simulated: the answer was lost"))
            }
            2 => {
                state.late.push((name.to_owned(), bytes.to_vec()));
                Err(Trouble::passing("simulated: no answer in time"))
            }
            _ => {
                state.put(name, bytes);
                Ok(state.put(name, bytes))
            }
        }
    }

    fn get(&self, name: &str) -> Answer {
        self.get_range(name, 0..u64::MAX)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Answer {
        self.call().read(name, range)
    }

    fn flight(&self, _: usize) -> Box<dyn Flight + '_> {
        Box::new(SimFlight {
            store: self.clone(),
            under_way: Vec::new(),
        })
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        let mut state = self.call();
        state.begin()?;
        if state.has_fault() {
            return Err(Trouble::passing("simulated: refused"));
        }
        let found = state.objects.iter();
        let found = found.filter(|(name, _)| name.starts_with(prefix) && name.as_str() > after);
        let mut found: Vec<Listed> = found
            .map(|(name, bytes)| Listed {
                name: name.clone(),
                size: bytes.len() as u64,
            })
            .collect();
        state.requests.list(found.len());
        for last in (1..found.len()).rev() {
            let other = state.random.below(last + 1);
            found.swap(last, other);
        }
        found.sort();
        Ok(found)
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        let mut state = self.call();
        state.requests.removals += names.len().div_ceil(NAMES_MAX) as u64;
        state.begin()?;
        let has_fault = state.has_fault();
        for name in names {
            // Any of them may be removed although the call fails.
            if !(has_fault && state.random.one_in(2)) {
                state.objects.remove(name);
            }
        }
        match has_fault {
            true => Err(Trouble::passing("simulated: removed in part")),
            false => Ok(()),
        }
    }
}

impl Store for SimStore {
    fn place(&self) -> &str {
        self.0.place()
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        self.0.tops()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble> {
        self.0.put_if_absent(name, bytes)
    }

    fn get(&self, name: &str) -> Answer {
        self.0.get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Answer {
        self.0.get_range(name, range)
    }

    fn answer(&self, want: &Want) -> Answer {
        self.0.answer(want)
    }

    fn opened(&self, want: &Want, bytes: Vec<u8>) -> Result<Result<Vec<u8>, Fault>, Trouble> {
        self.0.opened(want, bytes)
    }

    fn flight(&self, connections: usize) -> Box<dyn Flight + '_> {
        self.0.flight(connections)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        self.0.list(prefix, after)
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        self.0.remove(names)
    }
}
