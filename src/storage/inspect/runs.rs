//! A map from job ids to job entries that needs little memory: runs of up to some hundred jobs,
//! each run a table whose columns are as narrow as its numbers allow.
//!
//! The jobs of a run were put one after the other, so their numbers are similar: they lie near each
//! other in the same file, mostly in few tubes. A job takes
//!
//! | bytes | for |
//! |---|---|
//! | 1 | its id, if few ids are left out |
//! | 2 or 3 | where its put lies |
//! | 0 to 2 | the size of its body: none if all are the same |
//! | 0 or 1 | its tube, if there are a few hundred |
//! | 5 or 6 | where its last update lies, and its state: none if no job of the run has one |
//! | 1 | what the run itself takes |
//!
//! that is five to seven bytes after puts only, and about twelve after every job was reserved and
//! released. The map is made for ids that mostly come in ascending order, and for logs of millions
//! of jobs. Any other order works too, but is slower and needs somewhat more memory.
//!
//! Invariants: no run is empty; the runs' ids do not overlap.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::rows::Rows;
use crate::types::{JobId, JobState, Place};

/// The most jobs in a run: if no id is left out, one byte tells which job it is.
const RUN_MAX: usize = 256;

/// The entry of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JobEntry {
    pub(super) put: Place,
    /// The last record of its state, or [`Place::NONE`].
    pub(super) update: Place,
    pub(super) body_size: u32,
    /// Its tube's number.
    pub(super) tube: u32,
    /// As last recorded.
    pub(super) state: JobState,
}

/// States, indexed by the number that represents them in a row.
const STATES: [JobState; 4] = [
    JobState::Ready,
    JobState::Reserved,
    JobState::Delayed,
    JobState::Buried,
];

/// An entry as numbers. The first one is the distance of its id from the run's base.
type Row = [u32; 8];

impl JobEntry {
    fn to_row(self, distance: u32) -> Row {
        let JobEntry { put, update, .. } = self;
        [
            distance,
            put.file,
            put.offset,
            update.file,
            update.offset,
            self.body_size,
            self.tube,
            self.state as u32,
        ]
    }

    fn of_row(row: Row) -> JobEntry {
        let [
            _,
            put_file,
            put_offset,
            update_file,
            update_offset,
            body_size,
            tube,
            state,
        ] = row;
        let place = |file, offset| Place { file, offset };
        JobEntry {
            put: place(put_file, put_offset),
            update: place(update_file, update_offset),
            body_size,
            tube,
            state: STATES[state as usize],
        }
    }
}

/// Jobs with ids near each other.
type Run = Rows<8>;

/// A map from job ids to entries.
#[derive(Debug)]
pub(super) struct Runs {
    /// By the base id of the run.
    runs: BTreeMap<u64, Run>,
    len: usize,
}

impl Runs {
    pub(super) fn new() -> Runs {
        Runs {
            runs: BTreeMap::new(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, id: JobId) -> bool {
        self.find(id).is_some()
    }

    pub(super) fn get(&self, id: JobId) -> Option<JobEntry> {
        let (run, index) = self.find(id)?;
        Some(JobEntry::of_row(run.get(index)))
    }

    fn find(&self, id: JobId) -> Option<(&Run, usize)> {
        let (base, run) = self.runs.range(..=id.0).next_back()?;
        let index = run.find(distance(*base, id)?).ok()?;
        Some((run, index))
    }

    /// Let `change` change the entry of a job, if it exists; returns the result of `change`.
    pub(super) fn change<T>(
        &mut self,
        id: JobId,
        change: impl FnOnce(&mut JobEntry) -> T,
    ) -> Option<T> {
        let (base, run) = self.runs.range_mut(..=id.0).next_back()?;
        let distance = distance(*base, id)?;
        let index = run.find(distance).ok()?;
        let mut entry = JobEntry::of_row(run.get(index));
        let changed = change(&mut entry);
        run.set(index, &entry.to_row(distance));
        Some(changed)
    }

    /// Add a job, unless one with this id exists. Returns whether it was added.
    pub(super) fn insert(&mut self, id: JobId, entry: JobEntry) -> bool {
        let before = self.runs.range_mut(..=id.0).next_back();
        let near = before.and_then(|(base, run)| Some((*base, distance(*base, id)?, run)));
        let Some((base, distance, run)) = near else {
            return self.begin(id, entry);
        };
        match run.find(distance) {
            Ok(_) => false,
            Err(index) if run.len() < RUN_MAX => {
                run.insert(index, &entry.to_row(distance));
                self.len += 1;
                true
            }
            Err(RUN_MAX) => {
                run.shrink();
                self.begin(id, entry)
            }
            Err(_) => {
                self.split(base);
                self.insert(id, entry)
            }
        }
    }

    /// Start a run with a job that is not in the map.
    fn begin(&mut self, id: JobId, entry: JobEntry) -> bool {
        let mut run = Run::new();
        run.insert(0, &entry.to_row(0));
        self.runs.insert(id.0, run);
        self.len += 1;
        true
    }

    /// Split a full run in two.
    fn split(&mut self, base: u64) {
        let Some(lower) = self.runs.get_mut(&base) else {
            return;
        };
        let rows = lower.split_off(RUN_MAX / 2);
        let first = rows[0][0];
        let mut upper = Run::new();
        for (index, mut row) in rows.into_iter().enumerate() {
            row[0] -= first;
            upper.insert(index, &row);
        }
        self.runs.insert(base + u64::from(first), upper);
    }

    /// Remove a job, if it exists.
    pub(super) fn remove(&mut self, id: JobId) -> Option<JobEntry> {
        let (base, run) = self.runs.range_mut(..=id.0).next_back()?;
        let index = run.find(distance(*base, id)?).ok()?;
        let entry = JobEntry::of_row(run.get(index));
        run.remove(index);
        self.len -= 1;
        if run.len() == 0 {
            let base = *base;
            self.runs.remove(&base);
        }
        Some(entry)
    }

    /// All jobs in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobId, JobEntry)> {
        self.runs.iter().flat_map(entries)
    }

    /// The existing ids in a range, in order.
    pub(super) fn ids(&self, ids: RangeInclusive<u64>) -> impl Iterator<Item = u64> {
        let (start, end) = ids.into_inner();
        let first = self.runs.range(..=start).next_back();
        let from = first.map_or(start, |(base, _)| *base);
        self.runs
            .range(from..=from.max(end))
            .flat_map(entries)
            .map(|(id, _)| id.0)
            .skip_while(move |id| *id < start)
            .take_while(move |id| *id <= end)
    }
}

fn entries((base, run): (&u64, &Run)) -> impl Iterator<Item = (JobId, JobEntry)> {
    let entry = move |row: Row| (JobId(base + u64::from(row[0])), JobEntry::of_row(row));
    run.iter().map(entry)
}

/// The distance of `id` from the base of a run; `None` if it is too great for the run.
fn distance(base: u64, id: JobId) -> Option<u32> {
    u32::try_from(id.0 - base).ok()
}

/// True if a record at `place` is newer than one at `other`: handles are given out in order.
pub(super) fn is_behind(place: Place, other: Place) -> bool {
    (place.file, place.offset) > (other.file, other.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::storage::format::samples::seeds;

    /// A job of 1 KB, one of many that were put one after the other into two tubes.
    fn entry(number: u32) -> JobEntry {
        JobEntry {
            put: Place {
                file: 1 + number / 60_000,
                offset: 64 + number % 60_000 * 1060,
            },
            update: Place::NONE,
            body_size: 1000,
            tube: number % 2,
            state: JobState::Ready,
        }
    }

    /// Buried, in no particular order.
    fn bury(entry: &mut JobEntry, random: &mut Random) {
        entry.state = JobState::Buried;
        entry.update = Place {
            file: 200 + random.below(10) as u32,
            offset: random.below(64 << 20) as u32,
        };
    }

    /// An entry with extreme numbers.
    fn extreme(random: &mut Random) -> JobEntry {
        let mut number = || [0, 1, 255, 256, u32::MAX - 1, u32::MAX][random.below(6)];
        let mut place = || Place {
            file: number(),
            offset: number(),
        };
        JobEntry {
            put: place(),
            update: place(),
            body_size: number(),
            tube: number(),
            state: STATES[number() as usize % 4],
        }
    }

    #[test]
    fn it_does_what_a_tree_does() {
        for seed in seeds(30) {
            let mut random = Random::new(seed);
            let (mut runs, mut tree) = (Runs::new(), BTreeMap::new());
            let spread = [50, 5000, u64::MAX][random.below(3)];
            let mut next = random.next() % spread;
            for step in 0..4000 {
                let id = match random.below(4) {
                    0 => random.next() % spread,
                    _ => next,
                };
                next = next.wrapping_add(random.below(3) as u64);
                let job = JobId(id);
                let new = match random.below(20) {
                    0 => extreme(&mut random),
                    _ => entry(step),
                };
                match random.below(4) {
                    0 => assert_eq!(runs.remove(job), tree.remove(&id), "seed {seed}"),
                    1 => {
                        let known = tree.get_mut(&id);
                        let before = known.map(|entry| std::mem::replace(entry, new));
                        let changed = runs.change(job, |entry| std::mem::replace(entry, new));
                        assert_eq!(changed, before, "seed {seed}");
                    }
                    _ => {
                        let is_new = !tree.contains_key(&id);
                        tree.entry(id).or_insert(new);
                        assert_eq!(runs.insert(job, new), is_new, "seed {seed}");
                    }
                }
                assert_eq!(runs.get(job), tree.get(&id).copied(), "seed {seed}");
                assert_eq!(runs.contains(job), tree.contains_key(&id), "seed {seed}");
            }
            assert_eq!(runs.len(), tree.len(), "seed {seed}");
            let all = runs.iter().map(|(id, entry)| (id.0, entry));
            assert!(all.eq(tree.clone()), "seed {seed}");
            for _ in 0..50 {
                let (one, other) = (random.next() % spread, random.next() % spread);
                let ids = one.min(other)..=one.max(other);
                let expected = tree.range(ids.clone()).map(|(id, _)| *id);
                assert!(runs.ids(ids).eq(expected), "seed {seed}");
            }
        }
    }

    #[test]
    fn the_greatest_ids_have_their_place() {
        let mut runs = Runs::new();
        let ids = [1, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, u64::MAX];
        for id in ids {
            assert!(runs.insert(JobId(id), entry(7)), "{id}");
        }
        assert!(runs.iter().map(|(id, _)| id.0).eq(ids));
        assert!(runs.ids(2..=u64::MAX).eq(ids.into_iter().skip(1)));
        for id in ids {
            assert_eq!(runs.remove(JobId(id)), Some(entry(7)), "{id}");
        }
        assert!(runs.runs.is_empty());
    }

    /// Bytes of memory, including the overhead of the tree and the allocator for each run: nodes
    /// may be half empty.
    fn heap_bytes(runs: &Runs) -> usize {
        let node = 2 * size_of::<(u64, Run)>();
        let run = |run: &Run| run.heap_bytes() + node + 16;
        runs.runs.values().map(run).sum()
    }

    fn many(count: u32) -> Runs {
        let mut runs = Runs::new();
        for number in 0..count {
            runs.insert(JobId(number.into()), entry(number));
        }
        runs
    }

    #[test]
    fn a_job_takes_seven_bytes_and_thirteen_once_it_was_updated() {
        const COUNT: u32 = 100_000;
        let mut runs = many(COUNT);
        let bytes = heap_bytes(&runs);
        assert!(bytes <= 7 * COUNT as usize, "{bytes}");
        let mut random = Random::new(1);
        for number in 0..COUNT {
            // In a scattered order: 39,989 has no divisor in common with the count.
            let id = u64::from(number) * 39_989 % u64::from(COUNT);
            runs.change(JobId(id), |entry| bury(entry, &mut random));
        }
        let bytes = heap_bytes(&runs);
        assert!(bytes <= 13 * COUNT as usize, "{bytes}");
    }

    #[test]
    fn jobs_left_over_by_compaction_take_sixteen_bytes_when_all_were_updated() {
        const COUNT: u32 = 50_000;
        let (mut runs, mut random) = (Runs::new(), Random::new(1));
        for number in 0..COUNT {
            let id = u64::from(number) * 1000 + random.below(900) as u64;
            let mut entry = entry(number);
            entry.body_size += random.below(1000) as u32;
            bury(&mut entry, &mut random);
            runs.insert(JobId(id), entry);
        }
        let bytes = heap_bytes(&runs);
        assert!(bytes <= 16 * COUNT as usize, "{bytes}");
    }

    #[test]
    fn what_is_left_of_many_jobs_takes_little_memory() {
        const COUNT: u32 = 100_000;
        let mut runs = many(COUNT);
        for number in (0..COUNT).filter(|number| number % 4 != 0) {
            runs.remove(JobId(number.into()));
        }
        let bytes = heap_bytes(&runs);
        assert!(bytes <= 12 * COUNT as usize / 4, "{bytes}");
        for number in (0..COUNT).filter(|number| number % 500 != 0) {
            runs.remove(JobId(number.into()));
        }
        let left = runs.runs.values().map(Run::heap_bytes).sum::<usize>();
        assert!(left <= runs.len() * 2 * 8, "{left}");
    }
}
