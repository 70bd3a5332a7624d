//! Queries about tubes, and their upkeep.
//!
//! A tube exists while it has a job, a client uses or watches it, or it is pinned.
//! [`Queue::reindex_or_remove`] is called after every change that may end that, and after every
//! change of its jobs, waiters or pause. It keeps two orders of tubes up to date: by next event,
//! and the order of tubes that have both a ready job and a waiting client.

use std::sync::Arc;

use super::Queue;
use super::departed::Counted;
use super::handle::TubeHandle;
use super::job::ReadyKey;
use super::stats::TubeStats;
use super::tube_list::TubeList;
use crate::types::{JobCounts, JobId, Place, Time};

/// A pin: the tube cannot vanish before [`Queue::unpin`] gets this back. Long work on a tube is
/// done in slices, while clients come and go.
#[derive(Debug)]
#[must_use = "a pin that is dropped keeps its tube for ever"]
pub struct TubeRef(TubeHandle);

impl TubeRef {
    pub(super) fn handle(&self) -> TubeHandle {
        self.0
    }
}

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

    /// When the oldest ready job of a tube was put, whatever its priority, rounded down to a second;
    /// `None` without one.
    #[must_use]
    pub fn oldest_ready(&self, name: &str) -> Option<Time> {
        self.tubes[self.tubes.find(name)?].ready_seconds.oldest()
    }

    /// The job that `peek-ready` shows: the first ready one of a tube.
    #[must_use]
    pub fn peek_ready(&self, tube: &str) -> Option<JobId> {
        let tube = self.tubes.find(tube)?;
        self.tubes[tube].first_ready().map(ReadyKey::id)
    }

    /// The job that `peek-delayed` shows: the one that becomes due first.
    #[must_use]
    pub fn peek_delayed(&self, tube: &str) -> Option<JobId> {
        self.first_delayed_of(self.tubes.find(tube)?)
    }

    /// The job that `peek-buried` shows: the one buried first.
    #[must_use]
    pub fn peek_buried(&self, tube: &str) -> Option<JobId> {
        self.first_buried_of(self.tubes.find(tube)?)
    }

    /// Pins the tube of this name, which is created if necessary, until [`Queue::unpin`].
    pub(crate) fn pin_tube(&mut self, name: &str) -> TubeRef {
        let tube = self.tubes.find_or_create(name);
        self.tubes[tube].pins += 1;
        TubeRef(tube)
    }

    /// The name of the tube.
    #[must_use]
    pub(crate) fn pinned_name(&self, tube: &TubeRef) -> &str {
        &self.tubes[tube.0].name
    }

    /// Gives a pin back; the tube may vanish.
    pub fn unpin(&mut self, pin: TubeRef, now: Time) {
        self.tubes[pin.0].pins -= 1;
        self.reindex_or_remove(pin.0, now);
    }

    /// The job buried first: the next one that `kick` takes.
    #[must_use]
    pub(crate) fn first_buried(&self, tube: &TubeRef) -> Option<JobId> {
        self.first_buried_of(tube.0)
    }

    /// The delayed job that becomes due first: the next one that `kick` takes if nothing is buried.
    #[must_use]
    pub(crate) fn first_delayed(&self, tube: &TubeRef) -> Option<JobId> {
        self.first_delayed_of(tube.0)
    }

    fn first_buried_of(&self, tube: TubeHandle) -> Option<JobId> {
        let first = self.tubes[tube].buried.first();
        first.map(|job| self.jobs[job].id)
    }

    fn first_delayed_of(&self, tube: TubeHandle) -> Option<JobId> {
        self.tubes[tube].delayed.first().map(|(_, id)| id)
    }

    /// The number of the tube's jobs in each state.
    #[must_use]
    pub(crate) fn tube_counts(&self, tube: &TubeRef) -> JobCounts {
        self.tubes[tube.0].counts
    }

    /// The next pause that is over and whose record has not been handled. Take them after each
    /// command and each tick, before a new pause of the same tube is logged.
    pub(crate) fn take_lapsed_pause(&mut self) -> Option<LapsedPause> {
        let mut lapsed = self.lapsed.pop_front()?;
        let paused_again = |tube| self.tubes[tube].pause.is_some();
        lapsed.early &= !self.tubes.find(&lapsed.tube).is_some_and(paused_again);
        Some(lapsed)
    }
}

/// Upkeep.
impl Queue {
    /// Returns a lapsed pause that could not be handled: it will be the next one taken.
    pub(crate) fn put_back_lapsed_pause(&mut self, lapsed: LapsedPause) {
        self.lapsed.push_front(lapsed);
    }

    /// Call it after every change to a tube: updates the orders of tubes, or removes the tube.
    #[inline]
    pub(super) fn reindex_or_remove(&mut self, handle: TubeHandle, now: Time) {
        let tube = &self.tubes[handle];
        if !tube.is_surely_needed() {
            self.recount_or_remove(handle, now);
        } else if !tube.is_in_no_order() {
            self.reindex_in_orders(handle);
        }
    }

    fn recount_or_remove(&mut self, handle: TubeHandle, now: Time) {
        let tube = &self.tubes[handle];
        let is_needed = tube.is_needed();
        self.tubes.recount(handle);
        match is_needed {
            true => self.reindex(handle),
            false => self.remove_tube(handle, now),
        }
    }

    fn remove_tube(&mut self, handle: TubeHandle, now: Time) {
        self.end_pause(handle, now);
        // What its policy had ahead is not due any more.
        self.tubes[handle].policed = None;
        self.reindex(handle);
        assert!(
            self.tubes[handle].waiters.is_empty(),
            "a tube vanishes under its waiters"
        );
        let gone = self.tubes.remove(handle);
        let totals = gone.totals();
        let counted = Counted {
            totals,
            failures: gone.failures,
            tally: gone.tally,
        };
        self.note_departed(&gone.name, counted, now);
    }

    /// Updates the orders of tubes for one tube.
    #[inline]
    pub(super) fn reindex(&mut self, handle: TubeHandle) {
        if !self.tubes[handle].is_in_no_order() {
            self.reindex_in_orders(handle);
        }
    }

    fn reindex_in_orders(&mut self, handle: TubeHandle) {
        let mut tube = &mut self.tubes[handle];
        if tube.wide.is_some() {
            self.reindex_widely(handle);
            tube = &mut self.tubes[handle];
        }
        let due = tube.due().map(|due| (due, handle));
        self.tube_timers.replace(&mut tube.timer, due);
        let best = tube.match_key().map(|best| (best, handle));
        self.matches.replace(&mut tube.matched, best);
    }

    /// Ends the tube's pause, if it has one.
    pub(super) fn end_pause(&mut self, tube: TubeHandle, now: Time) {
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
        let pin = f.queue.pin_tube("a");
        f.queue.use_tube(client, "default", at(0));
        assert!(f.queue.tube_exists("a"), "pinned");
        f.queue.unpin(pin, at(0));
        assert!(!f.queue.tube_exists("a"));
    }

    #[test]
    fn g38_the_oldest_ready_job_is_known_however_many_priorities_come_before_it() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        assert_eq!(f.queue.oldest_ready("default"), None);
        assert_eq!(f.queue.oldest_ready("no such tube"), None);
        let before = f.queue.memory();
        let mut ids = Vec::new();
        for second in 0..100_u32 {
            // Of each second two, and none of two seconds of one priority; the older, the less urgent.
            for _ in 0..2 {
                let id = f.put_at(client, 1000 - second, 0, at(second));
                ids.push((second, id));
            }
        }
        let starved = ids.remove(0).1;
        for (second, id) in ids {
            assert_eq!(f.queue.oldest_ready("default"), Some(at(0)), "{second}");
            f.queue.reserve(client, id, at(200));
        }
        f.queue.reserve(client, starved, at(200));
        assert_eq!(f.queue.oldest_ready("default"), None);
        f.queue.disconnect(client, at(300), usize::MAX);
        // They come back as old as they were.
        assert_eq!(f.queue.oldest_ready("default"), Some(at(0)));
        f.delete(starved);
        assert_eq!(f.queue.oldest_ready("default"), Some(at(0)));
        for id in 2..=200_u32 {
            f.delete(JobId(id.into()));
            let next = (id < 200).then(|| at(id / 2));
            assert_eq!(f.queue.oldest_ready("default"), next, "{id}");
        }
        assert_eq!(f.queue.ready_seconds, 0);
        assert!(f.queue.memory() <= before);
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
