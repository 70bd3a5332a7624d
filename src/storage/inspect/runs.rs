//! A map from job ids to small values, packed: runs of up to some hundred values in one piece of
//! memory, in order, each with the distance of its id from the run's first one.
//!
//! It takes little more than the values themselves, where a tree of single entries takes twice
//! that: it is made for ids that mostly come in ascending order, and for logs of millions of jobs.
//! Any other order is right, too, and slower.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::types::JobId;

/// Values in a run at most.
const RUN_MAX: usize = 512;

/// Values in the order of their ids.
type Run<V> = Vec<(u32, V)>;

/// A map from job ids to values.
#[derive(Debug)]
pub(super) struct Runs<V> {
    /// By the id that distances are counted from. No run is empty.
    runs: BTreeMap<u64, Run<V>>,
    len: usize,
}

impl<V> Runs<V> {
    pub(super) fn new() -> Runs<V> {
        Runs {
            runs: BTreeMap::new(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, id: JobId) -> Option<&V> {
        let (base, run) = self.runs.range(..=id.0).next_back()?;
        let index = find(run, distance(*base, id)?).ok()?;
        Some(&run[index].1)
    }

    pub(super) fn get_mut(&mut self, id: JobId) -> Option<&mut V> {
        let (base, run) = self.runs.range_mut(..=id.0).next_back()?;
        let index = find(run, distance(*base, id)?).ok()?;
        Some(&mut run[index].1)
    }

    /// Add a value, unless there is one under this id. Says whether it did.
    pub(super) fn insert(&mut self, id: JobId, value: V) -> bool {
        let before = self.runs.range_mut(..=id.0).next_back();
        let near = before.and_then(|(base, run)| Some((*base, distance(*base, id)?, run)));
        let Some((base, distance, run)) = near else {
            return self.begin(id, value);
        };
        match find(run, distance) {
            Ok(_) => false,
            Err(index) if run.len() < RUN_MAX => {
                run.insert(index, (distance, value));
                self.len += 1;
                true
            }
            Err(RUN_MAX) => self.begin(id, value),
            Err(_) => {
                self.split(base);
                self.insert(id, value)
            }
        }
    }

    /// Begin a run with a value whose id is not there.
    fn begin(&mut self, id: JobId, value: V) -> bool {
        self.runs.insert(id.0, vec![(0, value)]);
        self.len += 1;
        true
    }

    /// Make two runs of a full one.
    fn split(&mut self, base: u64) {
        let Some(run) = self.runs.get_mut(&base) else {
            return;
        };
        let mut upper = run.split_off(RUN_MAX / 2);
        let first = upper[0].0;
        upper
            .iter_mut()
            .for_each(|(distance, _)| *distance -= first);
        self.runs.insert(base + u64::from(first), upper);
    }

    pub(super) fn remove(&mut self, id: JobId) -> Option<V> {
        let (base, run) = self.runs.range_mut(..=id.0).next_back()?;
        let index = find(run, distance(*base, id)?).ok()?;
        let (_, value) = run.remove(index);
        self.len -= 1;
        if run.is_empty() {
            let base = *base;
            self.runs.remove(&base);
        } else if run.len() * 4 < run.capacity() {
            run.shrink_to(run.len() * 2);
        }
        Some(value)
    }

    /// All values in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobId, &V)> {
        self.runs.iter().flat_map(values)
    }

    /// The ids in a range that are there, in order.
    pub(super) fn ids(&self, ids: RangeInclusive<u64>) -> impl Iterator<Item = u64> {
        let (start, end) = ids.into_inner();
        let first = self.runs.range(..=start).next_back();
        let from = first.map_or(start, |(base, _)| *base);
        self.runs
            .range(from..=from.max(end))
            .flat_map(values)
            .map(|(id, _)| id.0)
            .skip_while(move |id| *id < start)
            .take_while(move |id| *id <= end)
    }
}

fn values<'a, V>((base, run): (&'a u64, &'a Run<V>)) -> impl Iterator<Item = (JobId, &'a V)> {
    run.iter()
        .map(move |(distance, value)| (JobId(base + u64::from(*distance)), value))
}

/// How far `id` is from the first one of a run; `None`: too far to be in it.
fn distance(base: u64, id: JobId) -> Option<u32> {
    u32::try_from(id.0 - base).ok()
}

/// Where the value at `distance` is, or should be; the end is looked at first.
fn find<V>(run: &Run<V>, distance: u32) -> Result<usize, usize> {
    match run.last() {
        Some((last, _)) if *last < distance => Err(run.len()),
        _ => run.binary_search_by_key(&distance, |(distance, _)| *distance),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::format::samples::{Random, seeds};

    #[test]
    fn it_does_what_a_tree_does() {
        for seed in seeds(30) {
            let mut random = Random::new(seed);
            let (mut runs, mut tree) = (Runs::new(), BTreeMap::new());
            let spread = [50, 5000, u64::MAX][random.below(3)];
            let mut next = 0_u64;
            for step in 0..4000 {
                let id = match random.below(4) {
                    0 => random.next() % spread,
                    _ => next,
                };
                next = next.wrapping_add(random.below(3) as u64);
                match random.below(3) {
                    0 => assert_eq!(runs.remove(JobId(id)), tree.remove(&id), "seed {seed}"),
                    _ => {
                        let is_new = !tree.contains_key(&id);
                        tree.entry(id).or_insert(step);
                        assert_eq!(runs.insert(JobId(id), step), is_new, "seed {seed}");
                    }
                }
                assert_eq!(runs.get(JobId(id)), tree.get(&id), "seed {seed}");
                assert_eq!(runs.get_mut(JobId(id)), tree.get_mut(&id), "seed {seed}");
            }
            assert_eq!(runs.len(), tree.len(), "seed {seed}");
            let all = runs.iter().map(|(id, value)| (id.0, *value));
            assert!(
                all.eq(tree.iter().map(|(id, value)| (*id, *value))),
                "seed {seed}"
            );
            for _ in 0..50 {
                let (one, other) = (random.next() % spread, random.next() % spread);
                let ids = one.min(other)..=one.max(other);
                let expected = tree.range(ids.clone()).map(|(id, _)| *id);
                assert!(runs.ids(ids).eq(expected), "seed {seed}");
            }
        }
    }

    #[test]
    fn what_is_left_of_many_values_takes_little_memory() {
        let mut runs = Runs::new();
        for id in 0..100_000 {
            runs.insert(JobId(id), id);
        }
        for id in (0..100_000).filter(|id| id % 500 != 0) {
            runs.remove(JobId(id));
        }
        let held: usize = runs.runs.values().map(Vec::capacity).sum();
        assert!(held <= 200 * 8, "{held}");
    }
}
