//! An ordered set of small entries: the first ones are quickly accessible, and any entry can be
//! removed.
//!
//! The first few entries are the *front*, a deque; the others are in a [`Tree`]. Taking the first
//! entry again and again, as a queue does, so reads adjacent memory, and walks down the tree only
//! once in [`LEAF_LEN`] times. A set as small as those of most tubes is only the front, without a
//! tree. An entry does not know its position: to remove one, the caller gives its value, because a
//! job knows its priority and its id.
//!
//! (A heap would be shorter. But a heap from which any item can be removed must tell each moved
//! item its new position: to remove the first of ten million, about a dozen items at different
//! places in memory.)
//!
//! # Invariants
//!
//! * Every entry of the front is less than every entry of the tree.
//! * The front is empty only if the tree is empty; it is never longer than a leaf.

use std::collections::VecDeque;

use super::tree::{LEAF_LEN, Tree};

/// A part of the front that is small enough to stay in the cache until it is used.
pub(super) const BATCH_LEN: usize = 16;

/// Entries in ascending order. No two are equal.
pub(super) struct Order<E> {
    front: VecDeque<E>,
    /// Boxed, so that the many sets without a tree are small.
    rest: Option<Box<Tree<E>>>,
}

impl<E: Copy + Ord> Order<E> {
    /// A set without entries, which uses no memory.
    pub(super) const fn new() -> Order<E> {
        Order {
            front: VecDeque::new(),
            rest: None,
        }
    }

    /// True if there are no entries.
    pub(super) fn is_empty(&self) -> bool {
        self.front.is_empty()
    }

    /// The least entry.
    pub(super) fn first(&self) -> Option<E> {
        self.front.front().copied()
    }

    /// The least entry that is greater than this one, which need not be there.
    pub(super) fn after(&self, entry: &E) -> Option<E> {
        let at = self.front.partition_point(|other| other <= entry);
        let in_front = self.front.get(at).copied();
        in_front.or_else(|| self.rest.as_ref()?.after(entry))
    }

    /// Shows every entry, in no order.
    pub(super) fn visit_all(&self, visit: &mut dyn FnMut(E)) {
        self.front.iter().for_each(|entry| visit(*entry));
        self.rest.iter().for_each(|rest| rest.visit_all(visit));
    }

    /// The next entries, at most [`BATCH_LEN`] and only from the front: once every [`BATCH_LEN`]
    /// times that the first has been taken from a large set, otherwise none.
    pub(super) fn next_batch(&self) -> impl ExactSizeIterator<Item = E> {
        let is_time = self.front.len().is_multiple_of(BATCH_LEN) && self.has_rest();
        let len = if is_time { BATCH_LEN } else { 0 };
        self.front.iter().take(len).copied()
    }

    /// Adds an entry, which must not be in the set.
    pub(super) fn insert(&mut self, entry: E) {
        let is_behind = self.front.back().is_none_or(|last| *last < entry);
        let is_full = self.front.len() == LEAF_LEN;
        match (is_behind, is_full || self.has_rest()) {
            (true, true) => self.insert_into_rest(entry),
            (true, false) => self.front.push_back(entry),
            (false, _) => self.insert_into_front(entry),
        }
    }

    fn has_rest(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.is_empty())
    }

    fn insert_into_rest(&mut self, entry: E) {
        let rest = self.rest.get_or_insert_with(|| Box::new(Tree::new()));
        rest.insert(entry);
    }

    /// A full front moves its last entry to the tree.
    fn insert_into_front(&mut self, entry: E) {
        let at = self.front.partition_point(|other| *other < entry);
        assert!(self.front[at] != entry, "an entry is there twice");
        if self.front.len() == LEAF_LEN
            && let Some(last) = self.front.pop_back()
        {
            self.insert_into_rest(last);
        }
        self.front.insert(at, entry);
    }

    /// Removes an entry.
    ///
    /// # Panics
    /// If it is not in the set: the caller would hand out the wrong job.
    pub(super) fn remove(&mut self, entry: &E) {
        let is_removed = if self.front.back() < Some(entry) {
            self.rest.as_mut().is_some_and(|rest| rest.remove(entry))
        } else {
            self.remove_from_front(entry)
        };
        assert!(is_removed, "an entry is not where it should be");
    }

    fn remove_from_front(&mut self, entry: &E) -> bool {
        if self.front.front() == Some(entry) {
            self.front.pop_front();
            self.refill();
            return true;
        }
        let found = self.front.binary_search(entry);
        found.is_ok_and(|at| self.front.remove(at).is_some())
    }

    fn refill(&mut self) {
        if self.front.is_empty()
            && let Some(mut rest) = self.rest.take()
            && let Some(leaf) = rest.take_first_leaf()
        {
            self.front = leaf.into();
            self.rest = Some(rest).filter(|rest| !rest.is_empty());
        }
    }

    /// Replaces the entry `old`, if any, with `new`, if any; then sets `old` to `new`.
    #[inline]
    pub(super) fn replace(&mut self, old: &mut Option<E>, new: Option<E>) {
        if *old != new {
            self.exchange(old, new);
        }
    }

    fn exchange(&mut self, old: &mut Option<E>, new: Option<E>) {
        if let Some(entry) = std::mem::replace(old, new) {
            self.remove(&entry);
        }
        if let Some(entry) = new {
            self.insert(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tree::Walk;
    use super::*;
    use crate::random::Random;

    /// An order and a set of the standard library with the same entries.
    struct Pair {
        seed: u64,
        random: Random,
        order: Order<u64>,
        model: BTreeSet<u64>,
    }

    impl Pair {
        fn new(seed: u64) -> Pair {
            Pair {
                seed,
                random: Random::new(seed),
                order: Order::new(),
                model: BTreeSet::new(),
            }
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.random.below(bound)
        }

        fn insert(&mut self, entry: u64) {
            if self.model.insert(entry) {
                self.order.insert(entry);
            }
            assert_eq!(self.order.first(), self.model.first().copied());
        }

        fn remove(&mut self, entry: u64) {
            if self.model.remove(&entry) {
                self.order.remove(&entry);
            }
            assert_eq!(self.order.first(), self.model.first().copied());
        }

        fn take_first(&mut self) {
            if let Some(first) = self.model.first().copied() {
                self.remove(first);
            }
        }

        /// Removes any one of the entries.
        fn remove_any(&mut self) {
            let from = self.below(u64::MAX);
            let next = self.model.range(from..).next();
            if let Some(entry) = next.or(self.model.first()).copied() {
                self.remove(entry);
            }
        }

        /// Does the operation `kind`; overall the order grows or shrinks.
        fn act(&mut self, kind: u64, grows: bool) {
            let step = self.model.last().map_or(0, |last| last / 2 + (1 << 40));
            match (kind, self.below(10) < if grows { 7 } else { 2 }) {
                (0, true) => self.insert(
                    self.model
                        .last()
                        .map_or(1 << 40, |last| last.saturating_add(1)),
                ),
                (1, true) => self.insert(
                    self.model
                        .first()
                        .map_or(1 << 50, |first| first.saturating_sub(1)),
                ),
                (2, true) => {
                    // Few priorities, with ascending ids for each.
                    let pri = self.below(4) << 60;
                    let here = self.model.range(pri..pri + (1 << 60));
                    self.insert(here.last().map_or(pri, |last| last + 1));
                }
                (3, true) => self.insert(step / 2),
                (_, true) => {
                    let entry = self.below(u64::MAX);
                    self.insert(entry);
                }
                (0 | 2 | 4, false) => self.take_first(),
                (_, false) => self.remove_any(),
            }
        }

        fn walk(&self) -> Walk<u64> {
            self.order
                .rest
                .as_ref()
                .map_or_else(Walk::default, |rest| rest.walk())
        }

        fn memory(&self) -> usize {
            self.walk().memory + self.order.front.capacity() * size_of::<u64>()
        }

        /// Checks that the order has the same entries as the model, and its invariants. Returns its
        /// height.
        fn check(&self) -> usize {
            let rest = self.walk();
            let front = self.order.front.iter().copied();
            assert!(front.chain(rest.entries).eq(self.model.iter().copied()));
            assert_eq!(self.order.is_empty(), self.model.is_empty());
            assert!(self.order.front.len() <= LEAF_LEN);
            rest.height
        }
    }

    /// Reports which run failed.
    impl Drop for Pair {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}, {} entries", self.seed, self.model.len());
            }
        }
    }

    /// A stride that is coprime to all sizes used with it, so that it visits every number below
    /// them.
    const STRIDE: u64 = 7919;

    #[test]
    fn an_order_agrees_with_the_standard_librarys_whatever_is_done_to_it() {
        for seed in 1..=24 * super::super::model_runs::scale() {
            let mut pair = Pair::new(seed);
            let (turn, grow) = (100 << (seed % 7), pair.below(5));
            for step in 0..12_000 {
                pair.act((seed + step / 3_000) % 6, step / turn % 5 <= grow);
                if step % 97 == 0 || pair.model.len() < 200 {
                    pair.check();
                }
            }
            while !pair.model.is_empty() {
                pair.remove_any();
                pair.take_first();
                pair.check();
            }
        }
    }

    #[test]
    fn every_size_around_a_full_node_is_filled_and_drained_from_either_end_and_the_middle() {
        let near = |len: usize| len as u64 - 2..=len as u64 + 2;
        let sizes = near(LEAF_LEN).chain(near(2 * LEAF_LEN)).chain(0..9);
        for size in sizes.chain(near(LEAF_LEN * 65)) {
            for (fill, drain) in [(1, 1), (1, STRIDE), (STRIDE, 1), (STRIDE, STRIDE)] {
                for (fills_back, drains_back) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let mut pair = Pair::new(size);
                    let place = |n, stride, back| match back {
                        0 => n * stride % size,
                        _ => size - 1 - n * stride % size,
                    };
                    (0..size).for_each(|n| pair.insert(place(n, fill, fills_back)));
                    pair.check();
                    (0..size).for_each(|n| pair.remove(place(n, drain, drains_back)));
                    pair.check();
                }
            }
        }
    }

    #[test]
    fn there_is_no_limit_to_the_height() {
        let mut pair = Pair::new(0);
        (0..1_100_000).for_each(|n| pair.insert(n));
        assert_eq!(pair.check(), 3);
        (0..1_100_000).for_each(|n| pair.remove(n * STRIDE % 1_100_000));
        assert_eq!(pair.check(), 0);
    }

    #[test]
    fn ascending_entries_leave_full_leaves_behind() {
        let mut pair = Pair::new(0);
        (0..100_000).for_each(|n| pair.insert(n));
        let memory = pair.memory();
        assert!(memory < 100_000 * 9, "{memory} bytes");
    }

    #[test]
    fn entries_in_any_other_order_leave_few_gaps() {
        let patterns: [fn(u64) -> u64; 3] = [
            |n| 100_000 - n,
            |n| n * STRIDE % 100_000,
            |n| (n % 3) << 32 | n,
        ];
        for pattern in patterns {
            let mut pair = Pair::new(0);
            (0..100_000).for_each(|n| pair.insert(pattern(n)));
            let memory = pair.memory();
            assert!(memory < 100_000 * 12, "{memory} bytes");
        }
    }

    #[test]
    fn memory_is_given_back_no_matter_who_leaves() {
        for stride in [1, STRIDE] {
            let mut pair = Pair::new(stride);
            (0..50_000).for_each(|n| pair.insert(n * STRIDE % 50_000));
            for size in [10_000, 1_000, 100, 1] {
                let mut next = 0;
                while pair.model.len() > size {
                    pair.remove(next * stride % 50_000);
                    next += 1;
                }
                let memory = pair.memory();
                assert!(memory < size * 5 * 8 + 4_000, "{memory} for {size}");
            }
        }
    }

    #[test]
    fn an_order_takes_memory_for_what_it_holds() {
        let mut order = Order::new();
        assert_eq!(order.front.capacity(), 0);
        order.insert(1);
        assert!(order.front.capacity() <= 4);
    }

    #[test]
    fn each_of_those_in_the_front_of_a_large_set_is_in_one_batch() {
        let mut order = Order::new();
        (0..10_000).for_each(|n| order.insert(n));
        let mut batches: Vec<u64> = Vec::new();
        for n in 0..5_000 {
            order.remove(&n);
            batches.extend(order.next_batch());
        }
        let first = batches[0];
        assert!(
            batches
                .iter()
                .copied()
                .eq(first..first + batches.len() as u64)
        );
        assert!(first <= BATCH_LEN as u64 && batches.len() > 4_900);
        assert_eq!(Order::<u64>::new().next_batch().count(), 0);
    }

    #[test]
    fn what_replaces_another_is_found_in_its_place() {
        let mut order = Order::new();
        let mut known = None;
        for new in [None, Some(5), Some(5), Some(3), Some(9), None] {
            order.replace(&mut known, new);
            assert_eq!((order.first(), known), (new, new));
        }
    }

    #[test]
    #[should_panic(expected = "an entry is there twice")]
    fn what_is_in_the_front_does_not_enter_again() {
        let mut order = Order::new();
        (0..10).for_each(|n| order.insert(n));
        order.insert(5);
    }

    #[test]
    #[should_panic(expected = "an entry is not where it should be")]
    fn what_is_not_there_cannot_be_taken_out() {
        let mut order = Order::new();
        (0..1000).for_each(|n| order.insert(2 * n));
        order.remove(&999);
    }
}
