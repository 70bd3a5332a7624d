//! The tubes: each has its ready and delayed jobs in order, its buried jobs in a list, and the
//! clients that wait for it in a queue.
//!
//! A tube exists while it has a job, a client uses or watches it, or it is pinned.
//! [`Queue::reindex_or_remove`] is called after every change that may end that, and after every
//! change of its jobs, waiters or pause. It keeps two orders of tubes up to date: by next event,
//! and the order of tubes that have both a ready job and a waiting client.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use super::Queue;
use super::job::{DueKey, List, ReadyKey};
use super::order::Order;
use super::slab::{Handle, Slab};
use super::stats::TubeStats;
use super::wide::WidelyWatched;
use crate::types::{ClientId, JobCounts, JobId, Place, Time};

/// The tube that every client uses and watches at first; it always exists.
pub const DEFAULT_TUBE: &str = "default";

/// The oldest ready job of a tube is looked for in this many priorities, the most urgent ones.
const PRIORITIES_MAX: usize = 8;

/// 128 KiB, of which only the used part becomes resident.
const RECENT_LEN: usize = 1 << 15;

/// A tube.
pub(super) struct Tube {
    pub(super) name: Arc<str>,
    hash: u64,
    /// The next tube whose name has the same hash.
    same_hash: Option<Handle<Tube>>,
    pub(super) ready: Order<ReadyKey>,
    pub(super) delayed: Order<DueKey>,
    pub(super) buried: List,
    pub(super) counts: JobCounts,
    pub(super) total_jobs: u64,
    pub(super) deletes: u64,
    pub(super) pauses: u64,
    pub(super) using: u32,
    pub(super) watching: u32,
    pins: u32,
    /// It has no jobs, and is counted in [`Tubes::vacant_memory`].
    is_vacant: bool,
    /// Waiting clients by the tickets that they drew when they began to wait.
    pub(super) waiters: BTreeSet<(u64, ClientId)>,
    /// Additional state, if wide clients watch it.
    pub(super) wide: Option<Box<WidelyWatched>>,
    pub(super) pause: Option<Pause>,
    /// Its index in the list of tubes.
    listed_at: usize,
    /// Its entry in the order of tubes by next event.
    timer: Option<(Time, Handle<Tube>)>,
    /// Its entry in the order of tubes with both a ready job and a waiter.
    matched: Option<(ReadyKey, Handle<Tube>)>,
}

/// A pause that has not ended.
#[derive(Clone)]
pub(super) struct Pause {
    pub(super) until: Time,
    /// Seconds, as requested.
    pub(super) duration: u32,
    /// Its record.
    pub(super) place: Place,
    /// It came from the log, and keeps its tube until it ends.
    pub(super) holds: bool,
}

impl Tube {
    fn new(name: Arc<str>, hash: u64, listed_at: usize) -> Tube {
        Tube {
            name,
            hash,
            same_hash: None,
            ready: Order::new(),
            delayed: Order::new(),
            buried: List::new(),
            counts: JobCounts::default(),
            total_jobs: 0,
            deletes: 0,
            pauses: 0,
            using: 0,
            watching: 0,
            pins: 0,
            is_vacant: true,
            waiters: BTreeSet::new(),
            wide: None,
            pause: None,
            listed_at,
            timer: None,
            matched: None,
        }
    }

    /// True while the tube hands out no jobs.
    pub(super) fn is_paused(&self, now: Time) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.until > now)
    }

    pub(super) fn forget_totals(&mut self) {
        (self.total_jobs, self.deletes, self.pauses) = (0, 0, 0);
    }

    fn is_needed(&self) -> bool {
        self.counts.total() > 0
            || self.using > 0
            || self.watching > 0
            || self.pins > 0
            || self.pause.as_ref().is_some_and(|pause| pause.holds)
    }

    /// The time of the next timed event: a delayed job falls due, or the pause ends.
    fn due(&self) -> Option<Time> {
        let delayed = self.delayed.first().map(|(deadline, _)| deadline);
        let pause = self.pause.as_ref().map(|pause| pause.until);
        delayed.into_iter().chain(pause).min()
    }

    /// The key of the job that the longest-waiting client would get.
    fn match_key(&self) -> Option<ReadyKey> {
        let is_wide = self.wide.as_ref().is_some_and(|wide| wide.waiter.is_some());
        if self.pause.is_some() || (self.waiters.is_empty() && !is_wide) {
            return None;
        }
        self.ready.first()
    }
}

/// All tubes, by handle, by name and in the order that clients see.
pub(super) struct Tubes {
    slab: Slab<Tube>,
    /// By the hash of the name: a search compares numbers, and nothing is ever rehashed. Tubes with
    /// the same 64-bit hash form a list.
    names: BTreeMap<u64, Handle<Tube>>,
    /// For each of the [`RECENT_LEN`] remainders of a hash, the tube used last, with some more bits
    /// of its hash. It saves the search when there are many tubes and each is used repeatedly;
    /// entries may be stale.
    recent: Vec<Option<(Handle<Tube>, u32)>>,
    list: TubeList,
    /// The number of tubes without jobs, and the bytes of their names.
    vacant: usize,
    vacant_name_bytes: usize,
}

impl Tubes {
    pub(super) fn new() -> Tubes {
        Tubes {
            slab: Slab::new(),
            names: BTreeMap::new(),
            recent: vec![None; RECENT_LEN],
            list: TubeList::default(),
            vacant: 0,
            vacant_name_bytes: 0,
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<Handle<Tube>> {
        self.find_hashed(name, hash(name))
    }

    fn find_hashed(&self, name: &str, hash: u64) -> Option<Handle<Tube>> {
        let is_it = |tube: &Handle<Tube>| self.slab.get(*tube).is_some_and(|t| &*t.name == name);
        let recent = self.recent[recent_index(hash)].filter(|(_, bits)| *bits == more_bits(hash));
        let recent = recent.map(|(tube, _)| tube).filter(is_it);
        recent.or_else(|| self.search(name, hash))
    }

    fn search(&self, name: &str, hash: u64) -> Option<Handle<Tube>> {
        let first = self.names.get(&hash).copied();
        let mut same_hash = std::iter::successors(first, |tube| self.slab[*tube].same_hash);
        same_hash.find(|tube| &*self.slab[*tube].name == name)
    }

    /// The tube of this name, created if necessary.
    pub(super) fn find_or_create(&mut self, name: &str) -> Handle<Tube> {
        let hash = hash(name);
        let tube = self
            .find_hashed(name, hash)
            .unwrap_or_else(|| self.create(name, hash));
        self.recent[recent_index(hash)] = Some((tube, more_bits(hash)));
        tube
    }

    /// Creates a tube that always exists.
    pub(super) fn create_pinned(&mut self, name: &str) -> Handle<Tube> {
        let tube = self.create(name, hash(name));
        self[tube].pins += 1;
        tube
    }

    fn create(&mut self, name: &str, hash: u64) -> Handle<Tube> {
        let name = Arc::<str>::from(name);
        let tube = Tube::new(name.clone(), hash, self.list.len());
        self.vacant += 1;
        self.vacant_name_bytes += name.len();
        let tube = self.slab.insert(tube);
        self.list.push(tube, name);
        self.slab[tube].same_hash = self.names.insert(hash, tube);
        tube
    }

    fn remove(&mut self, handle: Handle<Tube>) -> Tube {
        let tube = self.slab.remove(handle);
        if tube.is_vacant {
            self.vacant -= 1;
            self.vacant_name_bytes -= tube.name.len();
        }
        self.forget_name(handle, &tube);
        if let Some(moved) = self.list.swap_remove(tube.listed_at) {
            self.slab[moved].listed_at = tube.listed_at;
        }
        tube
    }

    fn forget_name(&mut self, handle: Handle<Tube>, gone: &Tube) {
        let first = self.names.get(&gone.hash).copied();
        if first != Some(handle) {
            let mut same_hash = std::iter::successors(first, |tube| self.slab[*tube].same_hash);
            let before = same_hash.find(|tube| self.slab[*tube].same_hash == Some(handle));
            let Some(before) = before else {
                unreachable!("the tube {:?} has no name", gone.name)
            };
            self.slab[before].same_hash = gone.same_hash;
        } else if let Some(next) = gone.same_hash {
            self.names.insert(gone.hash, next);
        } else {
            self.names.remove(&gone.hash);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn handles(&self) -> impl Iterator<Item = Handle<Tube>> {
        self.list.listed().map(|(tube, _)| *tube)
    }

    /// Updates the count of tubes without jobs for one tube.
    fn recount(&mut self, handle: Handle<Tube>) {
        let tube = &mut self.slab[handle];
        let is_vacant = tube.counts.total() == 0;
        if is_vacant == tube.is_vacant {
            return;
        }
        tube.is_vacant = is_vacant;
        let size = tube.name.len();
        if is_vacant {
            self.vacant += 1;
            self.vacant_name_bytes += size;
        } else {
            self.vacant -= 1;
            self.vacant_name_bytes -= size;
        }
    }

    /// The memory of the tubes without their jobs, in bytes, roughly.
    pub(super) fn memory(&self) -> usize {
        self.slab.len() * TUBE_SIZE + self.list.name_bytes
    }

    /// The part of [`Tubes::memory`] for tubes without jobs.
    pub(super) fn vacant_memory(&self) -> usize {
        self.vacant * TUBE_SIZE + self.vacant_name_bytes
    }
}

/// An upper bound for the bytes of a tube without its name and its jobs: its entries in indexes,
/// and its state for waiting clients, the first of which takes a node of a tree.
const TUBE_SIZE: usize = {
    let index = size_of::<u64>() + size_of::<Handle<Tube>>();
    let name = 2 * size_of::<usize>() + size_of::<Listed>();
    let waiters = 12 * size_of::<(u64, ClientId)>();
    Slab::<Tube>::entry_size() + 2 * index + name + waiters
};

/// A tube and its name.
type Listed = (Handle<Tube>, Arc<str>);

/// At most this many tubes are copied when a tube is created or removed while a list is held.
const LISTED_LEN: usize = 256;

/// The tubes at one moment, in the order of `list-tubes`: the order of creation, except that the
/// last one takes the place of a removed one. Taking a list is cheap, and it does not change when
/// tubes come and go; so a long list can be written in slices.
#[derive(Debug, Clone, Default)]
pub struct TubeList {
    /// All full except the last. They are shared; a change copies the part that it changes.
    parts: Vec<Arc<Vec<Listed>>>,
    len: usize,
    name_bytes: usize,
}

impl TubeList {
    /// The number of tubes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: `default` always exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all names together.
    #[must_use]
    pub fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    /// The names from index `index` on, in constant time for the first.
    pub fn names_from(&self, index: usize) -> impl Iterator<Item = &str> {
        let parts = self.parts.get(index / LISTED_LEN..).unwrap_or_default();
        let names = parts.iter().flat_map(|part| part.iter());
        names.skip(index % LISTED_LEN).map(|(_, name)| &**name)
    }

    fn listed(&self) -> impl Iterator<Item = &Listed> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    fn push(&mut self, tube: Handle<Tube>, name: Arc<str>) {
        self.name_bytes += name.len();
        if self.len.is_multiple_of(LISTED_LEN) {
            self.parts.push(Arc::default());
        }
        self.len += 1;
        if let Some(last) = self.parts.last_mut() {
            Arc::make_mut(last).push((tube, name));
        }
    }

    /// Removes the tube at this index. If another tube was last, it moves to this index and is
    /// returned.
    fn swap_remove(&mut self, index: usize) -> Option<Handle<Tube>> {
        let (tube, name) = self.pop()?;
        if index == self.len {
            self.name_bytes -= name.len();
            return None;
        }
        let part = Arc::make_mut(&mut self.parts[index / LISTED_LEN]);
        let (_, gone) = std::mem::replace(&mut part[index % LISTED_LEN], (tube, name));
        self.name_bytes -= gone.len();
        Some(tube)
    }

    fn pop(&mut self) -> Option<Listed> {
        let last = Arc::make_mut(self.parts.last_mut()?);
        let listed = last.pop()?;
        if last.is_empty() {
            self.parts.pop();
        }
        self.len -= 1;
        Some(listed)
    }
}

fn recent_index(hash: u64) -> usize {
    hash as usize % RECENT_LEN
}

/// The bits that [`recent_index`] leaves out.
fn more_bits(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The same in every process: nothing here is random.
fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}

impl std::ops::Index<Handle<Tube>> for Tubes {
    type Output = Tube;

    fn index(&self, tube: Handle<Tube>) -> &Tube {
        &self.slab[tube]
    }
}

impl std::ops::IndexMut<Handle<Tube>> for Tubes {
    fn index_mut(&mut self, tube: Handle<Tube>) -> &mut Tube {
        &mut self.slab[tube]
    }
}

/// A pin: the tube cannot vanish before [`Queue::unpin`] gets this back. Long work on a tube is
/// done in slices, while clients come and go.
#[derive(Debug)]
#[must_use = "a pin that is dropped keeps its tube for ever"]
pub struct TubeRef(Handle<Tube>);

/// A pause that is over. Its record is garbage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LapsedPause {
    /// The tube's name; the tube may be gone.
    pub tube: Arc<str>,
    /// The record of the pause.
    pub place: Place,
    /// The tube vanished before the pause ended: unless a `Change::Pause` with a duration of 0 is
    /// logged, a restart would restore the pause.
    pub early: bool,
}

/// Queries of clients about tubes.
impl Queue {
    /// The names of all tubes, in the order of `list-tubes`.
    pub fn tube_names(&self) -> impl Iterator<Item = &str> {
        self.tubes.list.names_from(0)
    }

    /// All tubes at this moment. While the list is held, creating or removing a tube costs some
    /// more microseconds and kilobytes.
    #[must_use]
    pub fn tube_list(&self) -> TubeList {
        self.tubes.list.clone()
    }

    /// True if a tube of this name exists.
    #[must_use]
    pub fn tube_exists(&self, name: &str) -> bool {
        self.tubes.find(name).is_some()
    }

    /// The values of `stats-tube`; `None` if the tube does not exist.
    #[must_use]
    pub fn tube_stats(&self, name: &str, now: Time) -> Option<TubeStats> {
        let tube = self.tubes.find(name)?;
        let waiting = self.tubes[tube].waiters.len() + self.count_wide_waiters(tube);
        let tube = &self.tubes[tube];
        let pause = tube.pause.as_ref().filter(|pause| pause.until > now);
        Some(TubeStats {
            jobs: tube.counts,
            using: tube.using,
            watching: tube.watching,
            waiting: waiting as u64,
            total_jobs: tube.total_jobs,
            deletes: tube.deletes,
            pauses: tube.pauses,
            pause: pause.map_or(0, |pause| pause.duration),
            pause_left_ns: pause.map_or(0, |pause| pause.until.since(now)),
        })
    }

    /// The oldest ready job of a tube, of those with the eight most urgent priorities; `None` without
    /// one.
    #[must_use]
    pub fn oldest_ready(&self, name: &str) -> Option<JobId> {
        let ready = &self.tubes[self.tubes.find(name)?].ready;
        // Of one priority the oldest comes first.
        let next = |key: &ReadyKey| ready.after(&ReadyKey::last_of(key.pri()));
        let firsts = std::iter::successors(ready.first(), next).take(PRIORITIES_MAX);
        firsts.map(ReadyKey::id).min()
    }

    /// The job that `peek-ready` shows: the first ready one of the tube that `client` uses.
    #[must_use]
    pub fn peek_ready(&self, client: ClientId) -> Option<JobId> {
        self.tubes[self.used(client)]
            .ready
            .first()
            .map(ReadyKey::id)
    }

    /// The job that `peek-delayed` shows: the one that falls due first.
    #[must_use]
    pub fn peek_delayed(&self, client: ClientId) -> Option<JobId> {
        self.tubes[self.used(client)]
            .delayed
            .first()
            .map(|(_, id)| id)
    }

    /// The job that `peek-buried` shows: the one buried first.
    #[must_use]
    pub fn peek_buried(&self, client: ClientId) -> Option<JobId> {
        self.tubes[self.used(client)]
            .buried
            .first()
            .map(|job| self.jobs[job].id)
    }

    /// Pins the tube that `client` uses now, until [`Queue::unpin`].
    pub fn pin_used_tube(&mut self, client: ClientId) -> TubeRef {
        let tube = self.used(client);
        self.tubes[tube].pins += 1;
        TubeRef(tube)
    }

    /// Like [`Queue::pin_used_tube`], for the tube with this name, which is created if necessary.
    pub fn pin_tube(&mut self, name: &str) -> TubeRef {
        let tube = self.tubes.find_or_create(name);
        self.tubes[tube].pins += 1;
        TubeRef(tube)
    }

    /// The name of the tube.
    #[must_use]
    pub fn pinned_name(&self, tube: &TubeRef) -> &str {
        &self.tubes[tube.0].name
    }

    /// Gives a pin back; the tube may vanish.
    pub fn unpin(&mut self, pin: TubeRef, now: Time) {
        self.tubes[pin.0].pins -= 1;
        self.reindex_or_remove(pin.0, now);
    }

    /// The job buried first: the next one that `kick` takes.
    #[must_use]
    pub fn first_buried(&self, tube: &TubeRef) -> Option<JobId> {
        self.tubes[tube.0]
            .buried
            .first()
            .map(|job| self.jobs[job].id)
    }

    /// The delayed job that falls due first: the next one that `kick` takes if nothing is buried.
    #[must_use]
    pub fn first_delayed(&self, tube: &TubeRef) -> Option<JobId> {
        self.tubes[tube.0].delayed.first().map(|(_, id)| id)
    }

    /// The number of the tube's jobs in each state.
    #[must_use]
    pub fn tube_counts(&self, tube: &TubeRef) -> JobCounts {
        self.tubes[tube.0].counts
    }

    /// The next pause that is over and whose record has not been handled. Take them after each
    /// command and each tick, before a new pause of the same tube is logged.
    pub fn take_lapsed_pause(&mut self) -> Option<LapsedPause> {
        let mut lapsed = self.lapsed.pop_front()?;
        let paused_again = |tube| self.tubes[tube].pause.is_some();
        lapsed.early &= !self.tubes.find(&lapsed.tube).is_some_and(paused_again);
        Some(lapsed)
    }
}

/// Upkeep.
impl Queue {
    /// Returns a lapsed pause that could not be handled: it will be the next one taken.
    pub fn put_back_lapsed_pause(&mut self, lapsed: LapsedPause) {
        self.lapsed.push_front(lapsed);
    }

    /// Call it after every change to a tube: updates the orders of tubes, or removes the tube.
    pub(super) fn reindex_or_remove(&mut self, tube: Handle<Tube>, now: Time) {
        let needed = self.tubes[tube].is_needed();
        self.tubes.recount(tube);
        if !needed {
            self.end_pause(tube, now);
        }
        self.reindex(tube);
        if !needed {
            assert!(
                self.tubes[tube].waiters.is_empty(),
                "a tube vanishes under its waiters"
            );
            self.tubes.remove(tube);
        }
    }

    /// Updates the orders of tubes for one tube.
    pub(super) fn reindex(&mut self, handle: Handle<Tube>) {
        if self.tubes[handle].wide.is_some() {
            self.reindex_widely(handle);
        }
        let tube = &mut self.tubes[handle];
        let due = tube.due().map(|due| (due, handle));
        self.tube_timers.replace(&mut tube.timer, due);
        let best = tube.match_key().map(|best| (best, handle));
        self.matches.replace(&mut tube.matched, best);
    }

    /// Ends the tube's pause, if it has one.
    pub(super) fn end_pause(&mut self, tube: Handle<Tube>, now: Time) {
        let Some(pause) = self.tubes[tube].pause.take() else {
            return;
        };
        if !pause.place.is_none() {
            let name = self.tubes[tube].name.clone();
            let early = pause.until > now;
            self.lapsed.push_back(LapsedPause {
                tube: name,
                place: pause.place,
                early,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};
    use super::*;

    #[test]
    fn a_tube_lives_while_a_job_a_user_a_watcher_or_a_pin_needs_it() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        f.queue.use_tube(client, "a", at(0));
        let job = f.put(client, 5, 0);
        f.queue.watch(client, "a");
        f.queue.use_tube(client, "default", at(0));
        f.delete(job);
        assert!(f.queue.tube_exists("a"), "watched");
        f.queue.ignore(client, "a", at(0));
        assert!(!f.queue.tube_exists("a"));

        f.queue.use_tube(client, "a", at(0));
        let pin = f.queue.pin_used_tube(client);
        f.queue.use_tube(client, "default", at(0));
        assert!(f.queue.tube_exists("a"), "pinned");
        f.queue.unpin(pin, at(0));
        assert!(!f.queue.tube_exists("a"));
    }

    #[test]
    fn the_oldest_ready_job_is_found_behind_more_urgent_ones() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        assert_eq!(f.queue.oldest_ready("default"), None);
        assert_eq!(f.queue.oldest_ready("no such tube"), None);
        let mut ids = Vec::new();
        for nth in 0..1000 {
            // Older ones are less urgent.
            ids.push(f.put(client, 7 - nth / 200, 0));
        }
        for id in ids {
            assert_eq!(f.queue.oldest_ready("default"), Some(id));
            f.delete(id);
        }
        assert_eq!(f.queue.oldest_ready("default"), None);
    }

    #[test]
    fn default_always_exists() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        f.queue.use_tube(client, "a", at(0));
        f.queue.watch(client, "a");
        f.queue.ignore(client, "default", at(0));
        assert_eq!(f.queue.tube_names().collect::<Vec<_>>(), ["default", "a"]);
    }

    #[test]
    fn the_last_tube_of_the_list_takes_the_place_of_one_that_vanishes() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        for name in ["a", "b", "c", "d"] {
            f.queue.watch(client, name);
        }
        f.queue.ignore(client, "b", at(0));
        assert_eq!(
            f.queue.tube_names().collect::<Vec<_>>(),
            ["default", "a", "d", "c"]
        );
        f.queue.ignore(client, "default", at(0));
        assert_eq!(f.queue.watched(client).collect::<Vec<_>>(), ["c", "a", "d"]);
    }

    #[test]
    fn many_tubes_are_all_found_by_name() {
        let mut tubes = Tubes::new();
        let names: Vec<_> = (0..3000).map(|number| format!("tube-{number}")).collect();
        let handles: Vec<_> = names
            .iter()
            .map(|name| tubes.find_or_create(name))
            .collect();
        for (name, handle) in names.iter().zip(&handles) {
            assert_eq!(&*tubes[*handle].name, name);
        }
        handles
            .iter()
            .step_by(2)
            .for_each(|handle| drop(tubes.remove(*handle)));
        for (index, name) in names.iter().enumerate() {
            assert_eq!(tubes.find(name).is_some(), index % 2 == 1, "{name}");
        }
        assert!(
            tubes
                .handles()
                .enumerate()
                .all(|(index, tube)| tubes[tube].listed_at == index)
        );
    }

    #[test]
    fn f23_a_list_of_tubes_stays_as_it_was_while_tubes_come_and_go() {
        let mut tubes = Tubes::new();
        let name = |number: usize| format!("tube-{number}");
        let mut handles: Vec<_> = (0..1000).map(|n| tubes.find_or_create(&name(n))).collect();
        let list = tubes.list.clone();
        let mut expected: Vec<_> = (0..1000).map(name).collect();
        let before = expected.clone();
        for index in [999, 0, 255, 256, 700, 3] {
            tubes.remove(handles.swap_remove(index));
            expected.swap_remove(index);
        }
        for number in 1000..1300 {
            handles.push(tubes.find_or_create(&name(number)));
            expected.push(name(number));
        }
        for (list, expected) in [(&list, &before), (&tubes.list, &expected)] {
            assert_eq!(list.len(), expected.len());
            let bytes: usize = expected.iter().map(String::len).sum();
            assert_eq!(list.name_bytes(), bytes);
            for from in [0, 1, 255, 256, 257, 900, expected.len(), 5000] {
                let rest = expected.get(from..).unwrap_or_default();
                assert!(list.names_from(from).eq(rest.iter()), "from {from}");
            }
        }
    }

    #[test]
    fn names_with_the_same_hash_are_told_apart() {
        let mut tubes = Tubes::new();
        for leaver in 0..3 {
            let names = ["a", "b", "c"];
            let mut handles = names.map(|name| tubes.create(name, 7)).to_vec();
            let mut names = names.to_vec();
            tubes.remove(handles.remove(leaver));
            let gone = names.remove(leaver);
            assert_eq!(tubes.search(gone, 7), None);
            for (name, tube) in names.iter().zip(handles) {
                assert_eq!(tubes.search(name, 7), Some(tube));
                tubes.remove(tube);
            }
            assert!(tubes.names.is_empty());
        }
    }

    #[test]
    fn a_pause_that_outlives_its_tube_is_reported_as_early() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        f.queue.watch(client, "a");
        let place = f.pause("a", 10, at(0));
        f.queue.ignore(client, "a", at(3));
        let lapsed = LapsedPause {
            tube: Arc::from("a"),
            place,
            early: true,
        };
        assert_eq!(f.queue.take_lapsed_pause(), Some(lapsed));
        assert_eq!(f.queue.take_lapsed_pause(), None);
    }

    #[test]
    fn an_early_lapse_is_not_to_be_undone_once_the_tube_is_paused_again() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        f.queue.watch(client, "a");
        f.pause("a", 10, at(0));
        f.queue.ignore(client, "a", at(3));
        f.queue.watch(client, "a");
        f.pause("a", 10, at(4));
        assert!(
            f.queue
                .take_lapsed_pause()
                .is_some_and(|lapsed| !lapsed.early)
        );
    }

    #[test]
    fn a_paused_tube_says_how_long_it_was_paused_for_and_what_is_left() {
        let mut f = Fixture::new();
        f.pause("default", 10, at(0));
        let stats = f.queue.tube_stats("default", at(4)).unwrap();
        assert_eq!(
            (stats.pause, stats.pause_left_ns, stats.pauses),
            (10, 6_000_000_000, 1)
        );
        let stats = f.queue.tube_stats("default", at(10)).unwrap();
        assert_eq!((stats.pause, stats.pause_left_ns, stats.pauses), (0, 0, 1));
        assert_eq!(f.queue.tube_stats("a", at(0)), None);
    }
}
