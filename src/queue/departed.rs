//! The totals and failures of tubes that are gone, for those who watch tubes: a tube that is empty and unused
//! vanishes, often between two looks, and comes back with the next job.
//!
//! They are kept for an hour, and of no more than [`DEPARTED_MAX`] tubes: past that the one that has
//! been gone for longest is forgotten. A tube that comes back goes on counting where it was, but not
//! in `stats-tube`, which begins again as beanstalkd's does. A restart forgets all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Queue, TubeFailures, TubeTally};
use crate::types::{SECOND_NS, Time};

/// Departed tubes that are remembered …
pub(super) const DEPARTED_MAX: usize = 1024;
/// … and for how long.
const KEPT_NS: i64 = 3600 * SECOND_NS;

/// Totals of a tube.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TubeTotals {
    /// Jobs put.
    pub puts: u64,
    /// Jobs deleted.
    pub deletes: u64,
    /// Times paused.
    pub pauses: u64,
}

impl TubeTotals {
    pub(super) fn plus(self, other: TubeTotals) -> TubeTotals {
        TubeTotals {
            puts: self.puts + other.puts,
            deletes: self.deletes + other.deletes,
            pauses: self.pauses + other.pauses,
        }
    }
}

/// What a tube had counted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) totals: TubeTotals,
    /// `None`: nothing failed in it.
    pub(super) failures: Option<Box<TubeFailures>>,
    /// `None`: it had no tally.
    pub(super) tally: Option<Box<TubeTally>>,
}

impl Counted {
    fn is_nothing(&self) -> bool {
        self.totals == TubeTotals::default() && self.failures.is_none() && self.tally.is_none()
    }
}

/// The tubes that are gone.
#[derive(Debug, Default)]
pub(super) struct Departed {
    by_name: BTreeMap<Arc<str>, (Time, Counted)>,
    by_time: BTreeSet<(Time, Arc<str>)>,
}

impl Departed {
    /// A tube of this name has vanished. One that has counted nothing is not remembered.
    pub(super) fn note(&mut self, name: &Arc<str>, counted: Counted, at: Time) {
        if counted.is_nothing() {
            return;
        }
        self.by_time.insert((at, name.clone()));
        self.by_name.insert(name.clone(), (at, counted));
        if self.by_name.len() > DEPARTED_MAX
            && let Some((_, name)) = self.by_time.pop_first()
        {
            self.by_name.remove(&name);
        }
    }

    /// The tube is back: what it had counted.
    pub(super) fn take(&mut self, name: &str) -> Counted {
        let Some((name, (at, counted))) = self.by_name.remove_entry(name) else {
            return Counted::default();
        };
        self.by_time.remove(&(at, name));
        counted
    }

    pub(super) fn get(&self, name: &str, now: Time) -> Option<&Counted> {
        let (at, counted) = self.by_name.get(name)?;
        is_kept(*at, now).then_some(counted)
    }

    /// How many tallies are kept.
    #[cfg(test)]
    pub(super) fn tallies(&self) -> usize {
        let all = self.by_name.values();
        all.filter(|(_, counted)| counted.tally.is_some()).count()
    }
}

impl Queue {
    /// Totals of all tubes of this name, if there is one now or was within an hour.
    #[must_use]
    pub fn tube_totals(&self, name: &str, now: Time) -> Option<TubeTotals> {
        if let Some(tube) = self.tubes.find(name) {
            return Some(self.tubes[tube].totals());
        }
        let counted = self.tubes.departed.get(name, now)?;
        Some(counted.totals)
    }

    /// What has become of deliveries of all tubes of this name, one that vanished within an hour
    /// included.
    #[must_use]
    pub fn tube_failures(&self, name: &str, now: Time) -> TubeFailures {
        let failures = match self.tubes.find(name) {
            Some(tube) => self.tubes[tube].failures.as_deref(),
            None => {
                let counted = self.tubes.departed.get(name, now);
                counted.and_then(|counted| counted.failures.as_deref())
            }
        };
        failures.copied().unwrap_or_default()
    }

    /// The tubes that have vanished within an hour, and when, those that did so last in front.
    pub fn departed_tubes(&self, now: Time) -> impl Iterator<Item = (Time, &str)> {
        let by_time = self.tubes.departed.by_time.iter().rev();
        let kept = by_time.take_while(move |(at, _)| is_kept(*at, now));
        kept.map(|(at, name)| (*at, &**name))
    }

    /// A tube has vanished. What a replay counts is of no interest.
    pub(super) fn note_departed(&mut self, name: &Arc<str>, counted: Counted, now: Time) {
        if !self.is_replaying {
            self.tubes.departed.note(name, counted, now);
        }
    }
}

fn is_kept(at: Time, now: Time) -> bool {
    now.since(at) < KEPT_NS
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};
    use super::*;
    use crate::attributes::Reason;

    fn puts(f: &Fixture, name: &str, seconds: u32) -> Option<u64> {
        let totals = f.queue.tube_totals(name, at(seconds));
        totals.map(|totals| totals.puts)
    }

    #[test]
    fn g54_a_tube_that_vanishes_is_remembered_for_an_hour_and_goes_on_when_it_comes_back() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let come_and_go = |f: &mut Fixture, count: u32| {
            f.queue.use_tube(client, "a", at(0));
            let jobs: Vec<_> = (0..count).map(|_| f.put(client, 5, 0)).collect();
            jobs.into_iter().for_each(|job| _ = f.delete(job));
            f.queue.use_tube(client, "default", at(0));
        };
        assert_eq!(puts(&f, "a", 0), None);
        come_and_go(&mut f, 0);
        assert_eq!(puts(&f, "a", 0), None, "it has counted nothing");
        come_and_go(&mut f, 3);
        assert!(!f.queue.tube_exists("a"));
        assert_eq!(puts(&f, "a", 3599), Some(3));
        assert_eq!(f.queue.tube_totals("a", at(0)).unwrap().deletes, 3);
        assert_eq!(puts(&f, "a", 3600), None);
        assert_eq!(f.queue.departed_tubes(at(3600)).count(), 0);
        f.queue.watch(client, "a");
        assert_eq!(f.queue.departed_tubes(at(0)).count(), 0);
        let stats = f.queue.tube_stats("a", at(0)).unwrap();
        assert_eq!((stats.total_jobs, puts(&f, "a", 9999)), (0, Some(3)));
        f.queue.ignore(client, "a", at(0));
        come_and_go(&mut f, 2);
        assert_eq!(puts(&f, "a", 0), Some(5));
        assert_eq!(f.queue.departed_tubes(at(0)).count(), 1);
    }

    #[test]
    fn failures_of_a_tube_that_vanishes_go_on_counting_when_it_comes_back() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let fail = |f: &mut Fixture| {
            f.queue.use_tube(client, "a", at(0));
            let job = f.put(client, 5, 0);
            f.queue.note_failure(job, Reason::Failed, true);
            f.delete(job);
            f.queue.use_tube(client, "default", at(0));
        };
        let failed = |f: &Fixture, seconds: u32| {
            let failures = f.queue.tube_failures("a", at(seconds));
            (
                failures.by_reason[Reason::Failed as usize],
                failures.set_aside,
            )
        };
        fail(&mut f);
        assert!(!f.queue.tube_exists("a"));
        assert_eq!(failed(&f, 3599), (1, 1));
        assert_eq!(failed(&f, 3600), (0, 0));
        fail(&mut f);
        assert_eq!(failed(&f, 0), (2, 2));
        f.queue.use_tube(client, "a", at(0));
        f.queue.note_put_refused("a");
        f.queue.use_tube(client, "default", at(0));
        assert_eq!(f.queue.tube_failures("a", at(0)).puts_refused, 1);
    }

    #[test]
    fn g54_no_more_than_so_many_are_remembered() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let name = |nth: usize| format!("tube-{nth}");
        for nth in 0..=DEPARTED_MAX {
            f.queue.use_tube(client, &name(nth), at(0));
            let job = f.put(client, 5, 0);
            f.delete(job);
            f.queue.use_tube(client, "default", at(nth as u32));
        }
        assert_eq!(f.queue.departed_tubes(at(1024)).count(), DEPARTED_MAX);
        assert_eq!(puts(&f, &name(0), 1024), None);
        assert_eq!(puts(&f, &name(1), 1024), Some(1));
    }
}
