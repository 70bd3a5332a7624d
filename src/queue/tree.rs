//! A B+-tree of small entries with unsorted leaves: the part of an [`Order`](super::order::Order)
//! after its front.
//!
//! Entries are in leaves of up to [`LEAF_LEN`] entries, with levels of inner nodes above them for
//! navigation. A node owns its children: there are no handles and no pointers back, and an entry is
//! found by its value. The tree grows by one leaf at a time, and nothing larger than a node is ever
//! copied.
//!
//! The order within a leaf matters only once: when the front takes over the first leaf as a whole,
//! it is sorted. So a new entry is simply appended to its leaf. With millions of entries this
//! matters: a write to uncached memory does not wait, but a search through it does, hundreds of
//! nanoseconds for each cache line that depends on the one before.
//!
//! Walking down the tree also reads such memory. Therefore new entries are gathered first, and the
//! nodes that they need are read for all of them together, level by level: reads that do not depend
//! on each other wait for memory together.
//!
//! Every operation walks down once. On its way it makes sure that the next node can absorb changes
//! from below: [`Node::insert`] never enters a full node, [`Node::remove`] never a sparse one.
//! (Textbooks split and merge on the way up and have to remember the path.)
//!
//! # Invariants
//!
//! * All leaves are at the same depth. No leaf is empty, and no inner node is without children; the
//!   only exception is the tree without entries, which is one empty leaf. The root has at least two
//!   children, or is a leaf.
//! * Children in a node are in order. The entries of a child are not less than its `from`, and less
//!   than the `from` of the next; the `from` of a first child is that of its parent. (The very
//!   first `from` of a level has no meaning.)
//! * A node is at least a quarter full, except the first and the last of each level. Ascending
//!   entries leave full nodes; and to leave few gaps with random entries, a full node splits only
//!   when its neighbours are nearly full too.

use std::hint::black_box;
use std::mem;

/// The most entries in a leaf. More would make removals slower, which search the leaf; fewer would
/// make everything slower, because the inner nodes of a large tree then fit no cache.
pub(super) const LEAF_LEN: usize = 256;

/// The most children of an inner node.
const INNER_LEN: usize = 64;

/// Entries that are gathered: little memory per tree, and all of them share one slow walk down.
const GATHERED_LEN: usize = 32;

/// An ordered set of entries.
pub(super) struct Tree<E> {
    root: Node<E>,
    /// The most recent entries, unordered.
    gathered: Vec<E>,
}

enum Node<E> {
    Leaf(Vec<E>),
    Inner(Vec<Child<E>>),
}

struct Child<E> {
    from: E,
    node: Node<E>,
}

impl<E: Copy + Ord> Tree<E> {
    /// A tree without entries, which uses no memory.
    pub(super) const fn new() -> Tree<E> {
        Tree {
            root: Node::Leaf(Vec::new()),
            gathered: Vec::new(),
        }
    }

    /// True if there are no entries.
    pub(super) fn is_empty(&self) -> bool {
        self.root.len() == 0 && self.gathered.is_empty()
    }

    /// Adds an entry, which must not be in the tree.
    pub(super) fn insert(&mut self, entry: E) {
        self.gathered.push(entry);
        if self.gathered.len() == GATHERED_LEN {
            self.insert_gathered();
        }
    }

    /// Inserts the gathered entries into the leaves.
    fn insert_gathered(&mut self) {
        // Keeps ascending entries close together.
        if !self.gathered.is_sorted() {
            self.warm_up();
        }
        for entry in self.gathered.drain(..) {
            if self.root.is_full() {
                self.root.raise(entry);
            }
            self.root.insert(entry);
        }
    }

    /// Reads the nodes on the paths of the gathered entries.
    fn warm_up(&self) {
        let mut nodes = [&self.root; GATHERED_LEN];
        while let Node::Inner(_) = nodes[0] {
            for (node, entry) in nodes.iter_mut().zip(&self.gathered) {
                *node = node.below(entry);
            }
            let reached = &nodes[..self.gathered.len()];
            reached.iter().for_each(|node| node.read());
        }
    }

    /// Removes an entry; `false` if it is not in the tree.
    pub(super) fn remove(&mut self, entry: &E) -> bool {
        if remove_from(&mut self.gathered, entry) {
            return true;
        }
        let removed = self.root.remove(entry);
        self.lower();
        removed
    }

    /// The least entry that is greater than this one, which need not be there. Searches a leaf or two.
    pub(super) fn after(&self, entry: &E) -> Option<E> {
        let gathered = least_after(&self.gathered, entry);
        gathered.into_iter().chain(self.root.after(entry)).min()
    }

    /// Shows every entry, in no order.
    pub(super) fn visit_all(&self, visit: &mut dyn FnMut(E)) {
        self.gathered.iter().for_each(|entry| visit(*entry));
        self.root.visit_all(visit);
    }

    /// Removes the entries of the first leaf and sorts them; `None` if it is empty.
    pub(super) fn take_first_leaf(&mut self) -> Option<Vec<E>> {
        self.insert_gathered();
        let mut leaf = self.root.take_first_leaf();
        leaf.sort_unstable();
        self.lower();
        (!leaf.is_empty()).then_some(leaf)
    }

    /// Removes a root that has only one child.
    fn lower(&mut self) {
        while let Node::Inner(children) = &mut self.root
            && children.len() == 1
            && let Some(child) = children.pop()
        {
            self.root = child.node;
        }
    }
}

impl<E: Copy + Ord> Node<E> {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Inner(children) => children.len(),
        }
    }

    fn len_max(&self) -> usize {
        match self {
            Node::Leaf(_) => LEAF_LEN,
            Node::Inner(_) => INNER_LEN,
        }
    }

    fn is_full(&self) -> bool {
        self.len() == self.len_max()
    }

    /// With so few entries it shares with a neighbour or merges with it.
    fn is_sparse(&self) -> bool {
        self.len() <= self.len_max() / 4
    }

    /// A node with at most this number of entries takes over some of a full neighbour's, or all of
    /// a sparse one's.
    fn roomy_len(&self) -> usize {
        self.len_max() * 3 / 4
    }

    /// An empty node of the same kind.
    fn new_neighbour(&self) -> Node<E> {
        match self {
            Node::Leaf(_) => Node::Leaf(Vec::with_capacity(LEAF_LEN)),
            Node::Inner(_) => Node::Inner(Vec::with_capacity(INNER_LEN)),
        }
    }

    /// The least entry of a leaf, or the `from` of an inner node's first child.
    fn begin(&self) -> Option<E> {
        match self {
            Node::Leaf(entries) => entries.iter().min().copied(),
            Node::Inner(children) => children.first().map(|child| child.from),
        }
    }

    /// The child for `entry`; a leaf returns itself.
    fn below(&self, entry: &E) -> &Node<E> {
        match self {
            Node::Leaf(_) => self,
            Node::Inner(children) => &children[find(children, entry)].node,
        }
    }

    /// The least entry that is greater than this one.
    fn after(&self, entry: &E) -> Option<E> {
        match self {
            Node::Leaf(entries) => least_after(entries, entry),
            Node::Inner(children) => {
                let mut from = children[find(children, entry)..].iter();
                from.find_map(|child| child.node.after(entry))
            }
        }
    }

    fn visit_all(&self, visit: &mut dyn FnMut(E)) {
        match self {
            Node::Leaf(entries) => entries.iter().for_each(|entry| visit(*entry)),
            Node::Inner(children) => {
                children
                    .iter()
                    .for_each(|child| child.node.visit_all(visit));
            }
        }
    }

    /// Reads, without further effect, the memory that an entry on its way down will need first.
    fn read(&self) {
        match self {
            Node::Leaf(entries) => _ = black_box(entries.last().copied()),
            Node::Inner(children) => {
                let lines = children.iter().step_by(4);
                lines.for_each(|child| _ = black_box(child.from));
            }
        }
    }

    /// Makes this node, which is the root, the only child of a new root.
    fn raise(&mut self, from: E) {
        let node = mem::replace(self, Node::Inner(Vec::with_capacity(INNER_LEN)));
        if let Node::Inner(children) = self {
            children.push(Child { from, node });
        }
    }

    /// Adds an entry to this node, which is not full, or below it.
    fn insert(&mut self, entry: E) {
        let (mut node, mut is_last) = (self, true);
        loop {
            match node {
                Node::Leaf(entries) => return entries.push(entry),
                Node::Inner(children) => {
                    let at = find_room(children, &entry, is_last);
                    is_last &= at + 1 == children.len();
                    node = &mut children[at].node;
                }
            }
        }
    }

    /// Removes an entry from this node, which is not sparse, or is the root.
    fn remove(&mut self, entry: &E) -> bool {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(entries) => return remove_from(entries, entry),
                Node::Inner(children) => {
                    let at = find_plenty(children, entry);
                    node = &mut children[at].node;
                }
            }
        }
    }

    fn take_first_leaf(&mut self) -> Vec<E> {
        match self {
            Node::Leaf(entries) => mem::take(entries),
            Node::Inner(children) => {
                let leaf = children[0].node.take_first_leaf();
                if children[0].node.len() == 0 {
                    children.remove(0);
                }
                leaf
            }
        }
    }
}

fn remove_from<E: Eq>(entries: &mut Vec<E>, entry: &E) -> bool {
    let at = entries.iter().position(|other| other == entry);
    at.map(|at| entries.swap_remove(at)).is_some()
}

/// The index of the child for `entry`.
fn find<E: Ord>(children: &[Child<E>], entry: &E) -> usize {
    rank(&children[1..], |child| child.from <= *entry)
}

/// The number of elements of `sorted` that `is_before` accepts, found in two steps. In each step no
/// comparison waits for another, as it would in a binary search; so uncached memory is read all at
/// once.
fn rank<T>(sorted: &[T], is_before: impl Fn(&T) -> bool) -> usize {
    let blocks = sorted.chunks_exact(8);
    let begin = 8 * blocks.filter(|block| is_before(&block[7])).count();
    let block = sorted[begin..].iter().take(8);
    begin + block.filter(|element| is_before(element)).count()
}

/// The index of the child for `entry`, after making sure that it has room. `is_last` if nothing
/// follows these children in the tree.
fn find_room<E: Copy + Ord>(children: &mut Vec<Child<E>>, entry: &E, is_last: bool) -> usize {
    let at = find(children, entry);
    let full = &children[at].node;
    if !full.is_full() {
        return at;
    }
    let is_last = is_last && at + 1 == children.len();
    let (len, roomy) = (full.len(), full.roomy_len());
    let is_roomy = |child: Option<&Child<E>>| child.is_some_and(|child| child.node.len() <= roomy);
    match full {
        Node::Leaf(entries) if is_last && entries.iter().max() < Some(entry) => {
            split(children, at, len, entry);
        }
        Node::Inner(_) if is_last => split(children, at, len - 1, entry),
        _ if is_roomy(children.get(at + 1)) => share(children, at),
        _ if at > 0 && is_roomy(children.get(at - 1)) => share(children, at - 1),
        _ => split(children, at, len / 2, entry),
    }
    find(children, entry)
}

/// The index of the child that contains `entry`, if any does, after making sure that the child is
/// not sparse.
fn find_plenty<E: Copy + Ord>(children: &mut Vec<Child<E>>, entry: &E) -> usize {
    let at = find(children, entry);
    if !children[at].node.is_sparse() {
        return at;
    }
    let left = at.min(children.len() - 2);
    share(children, left);
    find(children, entry)
}

/// Leaves `keep` elements in child `at` and moves the rest to a new child after it. If there is no
/// rest, the new child is for `entry`.
fn split<E: Copy + Ord>(children: &mut Vec<Child<E>>, at: usize, keep: usize, entry: &E) {
    let node = children[at].node.new_neighbour();
    let from = *entry;
    children.insert(at + 1, Child { from, node });
    divide(children, at, keep);
}

/// Balances child `at` and the one after it, or merges them if they fit into one and leave room.
fn share<E: Copy + Ord>(children: &mut Vec<Child<E>>, at: usize) {
    let total = children[at].node.len() + children[at + 1].node.len();
    if total <= children[at].node.roomy_len() {
        divide(children, at, total);
        children.remove(at + 1);
    } else {
        divide(children, at, total / 2);
    }
}

/// Gives child `at` the first `keep` elements of itself and the next child, and the next child the
/// rest.
fn divide<E: Copy + Ord>(children: &mut [Child<E>], at: usize, keep: usize) {
    let [left, right] = &mut children[at..at + 2] else {
        unreachable!("a range of two")
    };
    match (&mut left.node, &mut right.node) {
        (Node::Leaf(left), Node::Leaf(right)) => {
            part(left, right, keep);
            shift(left, right, keep);
        }
        (Node::Inner(left), Node::Inner(right)) => shift(left, right, keep),
        _ => unreachable!("neighbours at different heights"),
    }
    right.from = right.node.begin().unwrap_or(right.from);
}

/// Moves the elements that must change sides to the end of `left`, or to the beginning of `right`,
/// so that `left` can have the least `keep` elements of both.
fn part<E: Ord>(left: &mut [E], right: &mut [E], keep: usize) {
    if keep < left.len() {
        left.select_nth_unstable(keep);
    } else if keep - left.len() < right.len() {
        right.select_nth_unstable(keep - left.len());
    }
}

/// Moves elements from the end of `left` to the beginning of `right`, or back, until `left` has
/// `keep`.
fn shift<T>(left: &mut Vec<T>, right: &mut Vec<T>, keep: usize) {
    if left.len() > keep {
        right.splice(..0, left.drain(keep..));
    } else {
        left.extend(right.drain(..keep - left.len()));
    }
}

fn least_after<E: Copy + Ord>(entries: &[E], entry: &E) -> Option<E> {
    entries.iter().filter(|other| *other > entry).min().copied()
}

/// The content and measures of a tree, for tests.
#[cfg(test)]
#[derive(Default)]
pub(super) struct Walk<E> {
    pub(super) entries: Vec<E>,
    /// Bytes of nodes, as allocated.
    pub(super) memory: usize,
    pub(super) height: usize,
}

#[cfg(test)]
impl<E: Copy + Ord + std::fmt::Debug> Tree<E> {
    /// All entries, after checking every invariant.
    pub(super) fn walk(&self) -> Walk<E> {
        let (entries, memory, height) = (Vec::new(), 0, 0);
        let mut walk = Walk {
            entries,
            memory,
            height,
        };
        walk.height = walk.visit(&self.root, None, None);
        assert!(
            walk.entries.is_sorted_by(|a, b| a < b),
            "entries are in order"
        );
        assert!(self.gathered.len() < GATHERED_LEN);
        walk.entries.extend(&self.gathered);
        walk.entries.sort_unstable();
        walk.memory += self.gathered.capacity() * size_of::<E>();
        walk
    }
}

#[cfg(test)]
impl<E: Copy + Ord + std::fmt::Debug> Walk<E> {
    /// Returns the height of a node whose entries are at least `from` and less than `to`; the first
    /// and the last node of a level lack one of the two.
    fn visit(&mut self, node: &Node<E>, from: Option<E>, to: Option<E>) -> usize {
        let is_root = from.is_none() && to.is_none();
        let is_inside = from.is_some() && to.is_some();
        assert!(node.len() <= node.len_max());
        assert!(
            !is_inside || node.len() >= node.len_max() / 4,
            "{} is few",
            node.len()
        );
        match node {
            Node::Leaf(entries) => {
                assert!(is_root || !entries.is_empty(), "no leaf is empty");
                self.memory += entries.capacity() * size_of::<E>();
                let mut entries = entries.clone();
                entries.sort_unstable();
                assert!(is_root || from <= entries.first().copied());
                assert!(to.is_none_or(|to| entries.last() < Some(&to)));
                self.entries.extend(&entries);
                0
            }
            Node::Inner(children) => {
                assert!(children.len() > usize::from(is_root));
                assert!(from.is_none_or(|from| from == children[0].from));
                self.memory += children.capacity() * size_of::<Child<E>>();
                let inner = children[1..].iter().map(|child| Some(child.from));
                let bounds: Vec<_> = [from].into_iter().chain(inner).chain([to]).collect();
                let heights: Vec<_> = (children.iter().zip(bounds.windows(2)))
                    .map(|(child, bounds)| self.visit(&child.node, bounds[0], bounds[1]))
                    .collect();
                assert!(heights.iter().all(|height| *height == heights[0]));
                1 + heights[0]
            }
        }
    }
}
