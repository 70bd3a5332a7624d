//! A tube, and the table of all tubes.
//!
//! A tube has its ready and delayed jobs in order, its buried jobs in a list, and the clients that
//! wait for it in a queue.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use super::departed::{Departed, TubeTotals};
use super::handle::{Handle, OfTube, TubeHandle};
use super::job::{DueKey, List, ReadyKey};
use super::order::Order;
use super::policed::{Policed, TubeFailures};
use super::ready_seconds::ReadySeconds;
use super::slab::Slab;
use super::tally::{Tallies, TubeTally};
use super::tube_list::{Listed, TubeList};
use crate::policy::Policies;
use crate::types::{ClientId, JobCounts, Place, Time};

/// An upper bound for what a second costs in which a ready job was put, bytes.
pub(super) const SECOND_SIZE: usize = 24;

/// The tube that every client uses and watches at first; it always exists.
pub const DEFAULT_TUBE: &str = "default";

/// 256 KiB, of which only the used part becomes resident.
const RECENT_LEN: usize = 1 << 15;

/// A tube.
pub(super) struct Tube {
    pub(super) name: Arc<str>,
    hash: u64,
    /// The next tube whose name has the same hash.
    same_hash: Option<TubeHandle>,
    pub(super) ready: Order<ReadyKey>,
    /// When its ready jobs were put, whatever their priorities.
    pub(super) ready_seconds: ReadySeconds,
    pub(super) delayed: Order<DueKey>,
    pub(super) buried: List,
    pub(super) counts: JobCounts,
    pub(super) total_jobs: u64,
    pub(super) deletes: u64,
    pub(super) pauses: u64,
    /// Bytes of the bodies of its jobs.
    pub(super) body_bytes: u64,
    /// Its policy, if it has one.
    pub(super) policed: Option<Box<Policed>>,
    /// Failures, once there were any.
    pub(super) failures: Option<Box<TubeFailures>>,
    /// What has happened to its jobs, if that is counted.
    pub(super) tally: Option<Box<TubeTally>>,
    /// Totals of earlier tubes of this name.
    pub(super) before: TubeTotals,
    pub(super) using: u32,
    pub(super) watching: u32,
    pub(super) pins: u32,
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
    pub(super) timer: Option<(Time, TubeHandle)>,
    /// Its entry in the order of tubes with both a ready job and a waiter.
    pub(super) matched: Option<(ReadyKey, TubeHandle)>,
}

/// The additional state of a tube that wide clients watch.
pub(super) struct WidelyWatched {
    pub(super) watching: u32,
    /// Its entry among the stocked tubes.
    pub(super) stocked: Option<(ReadyKey, TubeHandle)>,
    /// No wide client with a ticket up to this one waits for this tube.
    pub(super) checked: u64,
    /// The wide client that has waited longest for this tube, if it still waits.
    pub(super) waiter: Option<(u64, ClientId)>,
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
            ready_seconds: ReadySeconds::default(),
            delayed: Order::new(),
            buried: List::new(),
            counts: JobCounts::default(),
            total_jobs: 0,
            deletes: 0,
            pauses: 0,
            body_bytes: 0,
            policed: None,
            failures: None,
            tally: None,
            before: TubeTotals::default(),
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

    /// Totals of all tubes of this name.
    pub(super) fn totals(&self) -> TubeTotals {
        self.before.plus(TubeTotals {
            puts: self.total_jobs,
            deletes: self.deletes,
            pauses: self.pauses,
        })
    }

    /// True while the tube hands out no jobs.
    pub(super) fn is_paused(&self, now: Time) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.until > now)
    }

    pub(super) fn forget_totals(&mut self) {
        (self.total_jobs, self.deletes, self.pauses) = (0, 0, 0);
    }

    /// True if [`Tubes::recount`] has nothing to do.
    #[inline]
    fn is_counted(&self) -> bool {
        self.is_vacant == (self.counts.total() == 0)
    }

    /// True if it has jobs, as it had before: it stays, and is counted right.
    #[inline]
    pub(super) fn is_surely_needed(&self) -> bool {
        !self.is_vacant && self.counts.total() > 0
    }

    /// True if it is in no order of tubes, and nothing of it would be in one.
    #[inline]
    pub(super) fn is_in_no_order(&self) -> bool {
        self.timer.is_none()
            && self.matched.is_none()
            && self.waiters.is_empty()
            && self.wide.is_none()
            && self.delayed.is_empty()
            && self.pause.is_none()
            && self.policed.is_none()
    }

    pub(super) fn is_needed(&self) -> bool {
        self.counts.total() > 0
            || self.using > 0
            || self.watching > 0
            || self.pins > 0
            || self.pause.as_ref().is_some_and(|pause| pause.holds)
            || self
                .policed
                .as_ref()
                .is_some_and(|policed| policed.is_needed())
    }

    /// The time of the next timed event: a delayed job becomes due, the pause ends, or the policy has
    /// something to do.
    pub(super) fn due(&self) -> Option<Time> {
        let delayed = self.delayed.first().map(|(deadline, _)| deadline);
        let pause = self.pause.as_ref().map(|pause| pause.until);
        let due = earlier(delayed, pause);
        match &self.policed {
            None => due,
            Some(policed) => earlier(due, policed.due()),
        }
    }

    /// The key of the job that the longest-waiting client would get.
    pub(super) fn match_key(&self) -> Option<ReadyKey> {
        let is_wide = self.wide.as_ref().is_some_and(|wide| wide.waiter.is_some());
        if (self.waiters.is_empty() && !is_wide) || self.is_closed_still() {
            return None;
        }
        self.first_ready()
    }
}

/// All tubes, by handle, by name and in the order that clients see.
pub(super) struct Tubes {
    slab: Slab<OfTube, Tube>,
    /// By the hash of the name: a search compares numbers, and nothing is ever rehashed. Tubes with
    /// the same 64-bit hash form a list.
    names: BTreeMap<u64, TubeHandle>,
    /// For each of the [`RECENT_LEN`] remainders of a hash, the tube used last, as [`recent_entry`] has
    /// it; 0 for none. It saves the search when there are many tubes and each is used repeatedly;
    /// entries may be stale. Zeros come from the system, which makes them when they are touched.
    recent: Vec<u64>,
    /// The tube that [`Tubes::find_or_create`] returned last; it may be gone. Most jobs are put into
    /// the tube of the job before.
    last: Option<TubeHandle>,
    pub(super) list: TubeList,
    pub(super) departed: Departed,
    pub(super) tallies: Tallies,
    pub(super) policies: Policies,
    /// The number of tubes without jobs, and the bytes of their names.
    vacant: usize,
    vacant_name_bytes: usize,
}

impl Tubes {
    pub(super) fn new() -> Tubes {
        Tubes {
            slab: Slab::new(),
            names: BTreeMap::new(),
            recent: vec![0; RECENT_LEN],
            last: None,
            list: TubeList::default(),
            departed: Departed::default(),
            tallies: Tallies::default(),
            policies: Policies::default(),
            vacant: 0,
            vacant_name_bytes: 0,
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<TubeHandle> {
        self.find_hashed(name, hash(name))
    }

    fn find_hashed(&self, name: &str, hash: u64) -> Option<TubeHandle> {
        let recent = recent_tube(self.recent[recent_index(hash)], hash);
        let recent = recent.filter(|tube| self.is_called(*tube, name));
        recent.or_else(|| self.search(name, hash))
    }

    #[inline]
    fn is_called(&self, tube: TubeHandle, name: &str) -> bool {
        let tube = self.slab.get(tube);
        tube.is_some_and(|tube| &*tube.name == name)
    }

    fn search(&self, name: &str, hash: u64) -> Option<TubeHandle> {
        let first = self.names.get(&hash).copied();
        let mut same_hash = std::iter::successors(first, |tube| self.slab[*tube].same_hash);
        same_hash.find(|tube| &*self.slab[*tube].name == name)
    }

    /// The tube of this name, created if necessary.
    pub(super) fn find_or_create(&mut self, name: &str) -> TubeHandle {
        if let Some(last) = self.last.filter(|last| self.is_called(*last, name)) {
            return last;
        }
        let hash = hash(name);
        let tube = self
            .find_hashed(name, hash)
            .unwrap_or_else(|| self.create(name, hash));
        self.recent[recent_index(hash)] = recent_entry(tube, hash);
        self.last = Some(tube);
        tube
    }

    /// Creates a tube that always exists.
    pub(super) fn create_pinned(&mut self, name: &str) -> TubeHandle {
        let tube = self.create(name, hash(name));
        self[tube].pins += 1;
        tube
    }

    fn create(&mut self, name: &str, hash: u64) -> TubeHandle {
        let name = Arc::<str>::from(name);
        let mut tube = Tube::new(name.clone(), hash, self.list.len());
        let before = self.departed.take(&name);
        (tube.before, tube.failures) = (before.totals, before.failures);
        tube.tally = self.tallies.come_back(before.tally);
        if !self.policies.is_empty() {
            tube.policed = self
                .policies
                .of(&name)
                .map(|(_, policy)| Policed::new(policy.clone()));
        }
        self.vacant += 1;
        self.vacant_name_bytes += name.len();
        let tube = self.slab.insert(tube);
        self.list.push(tube, name);
        self.slab[tube].same_hash = self.names.insert(hash, tube);
        tube
    }

    pub(super) fn remove(&mut self, handle: TubeHandle) -> Tube {
        let tube = self.slab.remove(handle);
        if tube.is_vacant {
            self.vacant -= 1;
            self.vacant_name_bytes -= tube.name.len();
        }
        if tube.tally.is_some() {
            self.tallies.leave();
        }
        self.forget_name(handle, &tube);
        if let Some(moved) = self.list.swap_remove(tube.listed_at) {
            self.slab[moved].listed_at = tube.listed_at;
        }
        tube
    }

    fn forget_name(&mut self, handle: TubeHandle, gone: &Tube) {
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

    pub(super) fn handles(&self) -> impl Iterator<Item = TubeHandle> {
        self.list.listed().map(|(tube, _)| *tube)
    }

    /// Where that is counted what happens in a tube.
    pub(super) fn tally_mut(&mut self, tube: TubeHandle) -> &mut TubeTally {
        let (slab, tallies) = (&mut self.slab, &mut self.tallies);
        let of_tube = &mut slab[tube].tally;
        if of_tube.is_none() {
            *of_tube = tallies.begin();
        }
        of_tube.as_deref_mut().unwrap_or(&mut tallies.others)
    }

    /// Updates the count of tubes without jobs for one tube.
    pub(super) fn recount(&mut self, handle: TubeHandle) {
        let tube = &mut self.slab[handle];
        if tube.is_counted() {
            return;
        }
        tube.is_vacant = !tube.is_vacant;
        let size = tube.name.len();
        if tube.is_vacant {
            self.vacant += 1;
            self.vacant_name_bytes += size;
        } else {
            self.vacant -= 1;
            self.vacant_name_bytes -= size;
        }
    }

    /// The memory of the tubes without their jobs, in bytes, roughly.
    pub(super) fn memory(&self) -> usize {
        self.slab.len() * TUBE_SIZE + self.list.name_bytes + self.tallies.memory()
    }

    /// The part of [`Tubes::memory`] for tubes without jobs.
    pub(super) fn vacant_memory(&self) -> usize {
        self.vacant * TUBE_SIZE + self.vacant_name_bytes
    }
}

/// An upper bound for the bytes of a tube without its name and its jobs: its entries in indexes,
/// and its state for waiting clients, the first of which takes a node of a tree.
const TUBE_SIZE: usize = {
    let index = size_of::<u64>() + size_of::<TubeHandle>();
    let name = 2 * size_of::<usize>() + size_of::<Listed>();
    let waiters = 12 * size_of::<(u64, ClientId)>();
    Slab::<OfTube, Tube>::entry_size() + 2 * index + name + waiters
};

/// The first of two times, of those that there are.
fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn recent_index(hash: u64) -> usize {
    hash as usize % RECENT_LEN
}

/// The upper half of the hash, and the number of the tube, from 1: never 0.
fn recent_entry(tube: TubeHandle, hash: u64) -> u64 {
    hash >> 32 << 32 | (u64::from(tube.index()) + 1)
}

/// The tube of an entry, if it has the upper half of this hash.
fn recent_tube(entry: u64, hash: u64) -> Option<TubeHandle> {
    let index = (entry as u32).wrapping_sub(1);
    Handle::from_index(index).filter(|_| entry >> 32 == hash >> 32)
}

/// The same in every process: nothing here is random.
fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}

impl std::ops::Index<TubeHandle> for Tubes {
    type Output = Tube;

    #[inline]
    fn index(&self, tube: TubeHandle) -> &Tube {
        &self.slab[tube]
    }
}

impl std::ops::IndexMut<TubeHandle> for Tubes {
    #[inline]
    fn index_mut(&mut self, tube: TubeHandle) -> &mut Tube {
        &mut self.slab[tube]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recent_tube_is_that_of_its_hash_alone() {
        let hash = 0xffff_fffe_0000_0007;
        assert_eq!(recent_tube(0, 0), None);
        assert_eq!(recent_tube(0, hash), None);
        for index in [0, 1, u32::MAX - 1] {
            let tube = TubeHandle::from_index(index).unwrap();
            let entry = recent_entry(tube, hash);
            assert_eq!(recent_tube(entry, hash), Some(tube));
            assert_eq!(recent_tube(entry, hash ^ 1 << 32), None);
        }
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
}
