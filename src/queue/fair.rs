//! Which ready job of a tube comes first where groups get their turns: of the most urgent priority,
//! the one whose group has the fewest reserved jobs, then the oldest.
//!
//! An index beside the order of ready jobs, which a fair tube has as any other one: the ready jobs of
//! each group, how many jobs of it are reserved, and the first ready job of each group, its *head*. A
//! group's most urgent and oldest job comes before its others whatever the counts are; so the first
//! of the heads is the first of all. Jobs without a group have no reserved jobs beside them: they are
//! in one order, and only its first one is compared with the heads.
//!
//! A change of a job changes the head of one group: O(log n) for n groups, and nothing depends on how
//! many jobs are reserved.
//!
//! # Invariants
//!
//! * The index has the ready jobs up to the key that it has reached, and no others: a tube that has
//!   many jobs when it becomes fair is indexed in slices, the first jobs first. The keys of all jobs
//!   that are not in the index are greater; so the index has the most urgent priority.
//! * A group is there while it has a reserved job or a ready one in the index.

use std::collections::BTreeMap;

use super::job::ReadyKey;
use super::order::Order;
use crate::types::{JobId, JobState, Time};

/// An upper bound for what a group takes, bytes: its entry and its name in the map, its head, and the
/// beginning of its order.
const GROUP_SIZE: usize = {
    let entry = size_of::<(Box<[u8]>, Group)>() * 2;
    let allocations = 2 * 16 + 4 * size_of::<ReadyKey>();
    entry + allocations + size_of::<Head>()
};

/// The index of one tube.
pub(super) struct Fair {
    /// Ready jobs without a group.
    alone: Order<ReadyKey>,
    groups: BTreeMap<Box<[u8]>, Group>,
    heads: Order<Head>,
    /// The last ready job that was taken in; [`ALL`] once there is no other one.
    reached: Option<ReadyKey>,
    /// When the next slice of the ready jobs is to be taken in.
    pub(super) next_slice: Option<Time>,
    /// Jobs of the tube are reserved that do not count yet.
    pub(super) is_uncounted: bool,
    /// Ready jobs in the index.
    len: usize,
    name_bytes: usize,
}

/// Jobs of one name.
struct Group {
    reserved: u32,
    ready: Order<ReadyKey>,
}

/// The first ready job of a group: no two are the same, because no two jobs have one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    pri: u32,
    reserved: u32,
    id: JobId,
}

/// No job has a greater key.
const ALL: Option<ReadyKey> = Some(ReadyKey::LAST);

impl Head {
    fn new(key: ReadyKey, reserved: u32) -> Head {
        let (pri, id) = (key.pri(), key.id());
        Head { pri, reserved, id }
    }
}

impl Group {
    fn new() -> Group {
        Group {
            reserved: 0,
            ready: Order::new(),
        }
    }

    fn head(&self) -> Option<Head> {
        let first = self.ready.first();
        first.map(|key| Head::new(key, self.reserved))
    }

    fn is_empty(&self) -> bool {
        self.reserved == 0 && self.ready.is_empty()
    }
}

impl Fair {
    /// That of a tube without jobs.
    pub(super) fn new() -> Fair {
        Fair {
            alone: Order::new(),
            groups: BTreeMap::new(),
            heads: Order::new(),
            reached: ALL,
            next_slice: None,
            is_uncounted: false,
            len: 0,
            name_bytes: 0,
        }
    }

    /// That of a tube with jobs, none of which is in it yet.
    pub(super) fn behind(is_uncounted: bool, now: Time) -> Fair {
        Fair {
            reached: None,
            next_slice: Some(now),
            is_uncounted,
            ..Fair::new()
        }
    }

    /// The first job of those in the index.
    pub(super) fn first(&self) -> Option<ReadyKey> {
        let alone = self.alone.first().map(|key| Head::new(key, 0));
        let first = alone.into_iter().chain(self.heads.first()).min()?;
        Some(ReadyKey::new(first.pri, first.id))
    }

    /// A job of a group, or of none, is in this state from now on.
    pub(super) fn enter(&mut self, group: Option<&[u8]>, state: JobState, key: ReadyKey) {
        match (state, group) {
            (JobState::Ready, _) if Some(key) > self.reached => {}
            (JobState::Ready, None) => {
                self.alone.insert(key);
                self.len += 1;
            }
            (JobState::Ready, Some(name)) => {
                self.change(name, |group| group.ready.insert(key));
                self.len += 1;
            }
            (JobState::Reserved, Some(name)) => self.change(name, |group| group.reserved += 1),
            _ => {}
        }
    }

    /// A job of a group, or of none, leaves this state.
    pub(super) fn leave(&mut self, group: Option<&[u8]>, state: JobState, key: ReadyKey) {
        match (state, group) {
            (JobState::Ready, _) if Some(key) > self.reached => {}
            (JobState::Ready, None) => {
                self.alone.remove(&key);
                self.len -= 1;
            }
            (JobState::Ready, Some(name)) => {
                self.change(name, |group| group.ready.remove(&key));
                self.len -= 1;
            }
            (JobState::Reserved, Some(name)) => self.change(name, |group| group.reserved -= 1),
            _ => {}
        }
    }

    fn change(&mut self, name: &[u8], change: impl FnOnce(&mut Group)) {
        let group = match self.groups.get_mut(name) {
            Some(group) => group,
            None => {
                self.name_bytes += name.len();
                self.groups.entry(name.into()).or_insert_with(Group::new)
            }
        };
        let mut head = group.head();
        change(group);
        self.heads.replace(&mut head, group.head());
        if group.is_empty() {
            self.groups.remove(name);
            self.name_bytes -= name.len();
        }
    }

    /// The ready job that comes behind those that were taken in.
    pub(super) fn next_to_index(&self, ready: &Order<ReadyKey>) -> Option<ReadyKey> {
        match &self.reached {
            None => ready.first(),
            Some(reached) => ready.after(reached),
        }
    }

    /// Takes in the next ready job, of this group.
    pub(super) fn index(&mut self, group: Option<&[u8]>, key: ReadyKey) {
        self.reached = Some(key);
        self.enter(group, JobState::Ready, key);
    }

    /// All ready jobs were taken in.
    pub(super) fn end_indexing(&mut self) {
        (self.reached, self.next_slice) = (ALL, None);
    }

    /// Removes this many entries of an index that is not used any more. Says whether that was all.
    pub(super) fn take_apart(&mut self, most: usize) -> bool {
        for _ in 0..most {
            if let Some(head) = self.heads.first() {
                self.heads.remove(&head);
            } else if let Some(key) = self.alone.first() {
                self.alone.remove(&key);
                self.len -= 1;
            } else if let Some(mut group) = self.groups.first_entry() {
                let first = group.get().ready.first();
                if let Some(key) = first {
                    group.get_mut().ready.remove(&key);
                    self.len -= 1;
                } else {
                    self.name_bytes -= group.key().len();
                    group.remove();
                }
            } else {
                return true;
            }
        }
        false
    }

    /// Reserved jobs of a group.
    #[cfg(test)]
    pub(super) fn reserved(&self, group: &[u8]) -> u32 {
        self.groups.get(group).map_or(0, |group| group.reserved)
    }

    /// Bytes of memory, roughly.
    pub(super) fn memory(&self) -> usize {
        let names = self.groups.len() * GROUP_SIZE + self.name_bytes;
        names + self.len * size_of::<ReadyKey>()
    }

    /// Checks that the index is that of these jobs: each with its group, its state and its key.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn assert_is_of<'a>(
        &self,
        jobs: impl Iterator<Item = (Option<&'a [u8]>, JobState, ReadyKey)>,
    ) {
        let mut expected = Fair {
            reached: self.reached,
            ..Fair::new()
        };
        jobs.for_each(|(group, state, key)| expected.enter(group, state, key));
        assert!(entries(&self.alone).eq(entries(&expected.alone)), "alone");
        assert!(entries(&self.heads).eq(entries(&expected.heads)), "heads");
        assert!(self.groups.keys().eq(expected.groups.keys()), "groups");
        for (group, expected) in self.groups.values().zip(expected.groups.values()) {
            assert_eq!(
                group.reserved, expected.reserved,
                "reserved jobs of a group"
            );
            assert!(entries(&group.ready).eq(entries(&expected.ready)), "ready");
        }
        assert_eq!(self.memory(), expected.memory(), "memory");
    }
}

#[cfg(any(test, feature = "sim"))]
fn entries<E: Copy + Ord>(order: &Order<E>) -> impl Iterator<Item = E> {
    std::iter::successors(order.first(), |last| order.after(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pri: u32, id: u64) -> ReadyKey {
        ReadyKey::new(pri, JobId(id))
    }

    fn first(fair: &Fair) -> u64 {
        fair.first().map_or(0, |key| key.id().0)
    }

    #[test]
    fn priority_comes_first_then_the_count_of_the_group_then_age() {
        let mut fair = Fair::new();
        let (a, b) = (Some(&b"a"[..]), Some(&b"b"[..]));
        for (id, group, pri) in [
            (1, a, 7),
            (2, a, 5),
            (3, b, 5),
            (4, None, 5),
            (5, b, 4),
            (6, None, 9),
        ] {
            fair.enter(group, JobState::Ready, key(pri, id));
        }
        let mut order = Vec::new();
        while let Some(next) = fair.first() {
            let group = [None, a, a, b, None, b, None][next.id().0 as usize];
            fair.leave(group, JobState::Ready, next);
            fair.enter(group, JobState::Reserved, next);
            order.push(next.id().0);
        }
        // Of priority 5 group b has one reserved job, so it comes last.
        assert_eq!(order, [5, 2, 4, 3, 1, 6]);
    }

    #[test]
    fn nothing_is_left_of_a_million_groups_that_came_and_went() {
        let mut fair = Fair::new();
        let name = |id: u64| format!("customer-{id}").into_bytes();
        for id in 1..=1_000_000 {
            fair.enter(Some(&name(id)), JobState::Ready, key(1, id));
            if let Some(old) = id.checked_sub(100).filter(|old| *old > 0) {
                assert_eq!(first(&fair), old);
                fair.leave(Some(&name(old)), JobState::Ready, key(1, old));
                fair.enter(Some(&name(old)), JobState::Reserved, key(1, old));
                fair.leave(Some(&name(old)), JobState::Reserved, key(1, old));
            }
            assert!(fair.groups.len() <= 100);
        }
        for id in 999_901..=1_000_000 {
            fair.leave(Some(&name(id)), JobState::Ready, key(1, id));
        }
        assert_eq!((fair.memory(), fair.groups.len()), (0, 0));
        assert!(fair.heads.is_empty() && fair.alone.is_empty());
    }

    #[test]
    fn an_index_is_taken_apart_in_slices() {
        let mut fair = Fair::new();
        for id in 1..=1000 {
            let group = [None, Some(&b"a"[..]), Some(&b"b"[..])][id as usize % 3];
            fair.enter(group, JobState::Ready, key(1, id));
            fair.enter(group, JobState::Reserved, key(1, id));
        }
        // Two heads, the jobs, two groups.
        let mut slices = 1;
        while !fair.take_apart(10) {
            slices += 1;
        }
        assert_eq!((slices, fair.memory()), (101, 0));
        assert_eq!(fair.first(), None);
    }

    #[test]
    fn what_a_group_with_one_job_takes() {
        const { assert!(GROUP_SIZE <= 256) };
    }
}
