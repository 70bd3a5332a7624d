//! What happens to the jobs of tubes: how often, and how long it takes.
//!
//! It is for those who watch the server. A tube has a tally from its first reserve on, while no more
//! than [`Queue::tally_tubes`] says have one; what happens in the others is counted together. So it is
//! bounded however many tubes there are. Where no tube may have one, an event costs a test of a number.
//!
//! A tube that vanishes takes its tally along to the departed ones. What a replay does is not counted.

use super::Queue;
use super::handle::JobHandle;
use super::job::Durable;
use crate::histogram::Buckets;
use crate::types::Time;

/// How often each thing has happened to jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobEvents {
    /// Jobs handed out.
    pub reserves: u64,
    /// Jobs deleted.
    pub deletes: u64,
    /// Jobs given back by a command of their worker, `fail` among them.
    pub releases: u64,
    /// Jobs buried.
    pub buries: u64,
    /// Jobs kicked.
    pub kicks: u64,
    /// Reservations that ran out of time.
    pub timeouts: u64,
}

impl JobEvents {
    fn add(&mut self, more: &JobEvents) {
        self.reserves += more.reserves;
        self.deletes += more.deletes;
        self.releases += more.releases;
        self.buries += more.buries;
        self.kicks += more.kicks;
        self.timeouts += more.timeouts;
    }
}

/// What has happened in a tube since it, or the server, began. It is not in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TubeTally {
    /// How often.
    pub events: JobEvents,
    /// From when jobs were due first, by their put, to their first reservation.
    pub waits: Buckets,
    /// From when jobs were reserved, or touched last, to their delete, release or bury.
    pub holds: Buckets,
}

impl TubeTally {
    /// Add what has happened in another tube.
    pub fn add(&mut self, other: &TubeTally) {
        self.events.add(&other.events);
        self.waits.add(&other.waits);
        self.holds.add(&other.holds);
    }
}

/// Which tubes have a tally, and what has happened in those that have none.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    tubes_max: usize,
    tubes: usize,
    pub(super) others: Box<TubeTally>,
    /// In all tubes together.
    all: JobEvents,
}

impl Tallies {
    /// A tube without a tally is to have one, if there is room.
    pub(super) fn begin(&mut self) -> Option<Box<TubeTally>> {
        let has_room = self.tubes < self.tubes_max;
        self.tubes += usize::from(has_room);
        has_room.then(Box::default)
    }

    /// A tube that had this tally is back.
    pub(super) fn come_back(&mut self, tally: Option<Box<TubeTally>>) -> Option<Box<TubeTally>> {
        let tally = tally?;
        if self.tubes < self.tubes_max {
            self.tubes += 1;
            return Some(tally);
        }
        self.others.add(&tally);
        None
    }

    /// A tube with a tally vanishes.
    pub(super) fn leave(&mut self) {
        self.tubes -= 1;
    }

    /// Bytes of those of tubes that are there.
    pub(super) fn memory(&self) -> usize {
        self.tubes * size_of::<TubeTally>()
    }
}

impl Queue {
    /// Keep tallies of this number of tubes at most, of each some 300 bytes; with 0, as at first,
    /// nothing is counted. Call it before the first client.
    pub fn tally_tubes(&mut self, tubes_max: usize) {
        self.tubes.tallies.tubes_max = tubes_max;
    }

    /// What has happened in a tube, one that vanished within an hour included; `None`: it has no tally.
    #[must_use]
    pub fn tube_tally(&self, name: &str, now: Time) -> Option<&TubeTally> {
        match self.tubes.find(name) {
            Some(tube) => self.tubes[tube].tally.as_deref(),
            None => self.tubes.departed.get(name, now)?.tally.as_deref(),
        }
    }

    /// What has happened in all tubes that had no tally then.
    #[must_use]
    pub fn tally_of_others(&self) -> &TubeTally {
        &self.tubes.tallies.others
    }

    /// How often each thing has happened to jobs of all tubes, where tubes have tallies.
    #[must_use]
    pub(crate) fn job_events(&self) -> JobEvents {
        self.tubes.tallies.all
    }

    /// Where to count what happens to a job; `None`: it is not counted.
    #[inline]
    pub(super) fn tally(&mut self, job: JobHandle) -> Option<&mut TubeTally> {
        if self.tubes.tallies.tubes_max == 0 || self.is_replaying {
            return None;
        }
        Some(self.tubes.tally_mut(self.jobs[job].tube))
    }

    /// Count something that happens to a job.
    #[inline]
    pub(super) fn count_event(&mut self, job: JobHandle, count: impl Fn(&mut JobEvents)) {
        if let Some(tally) = self.tally(job) {
            count(&mut tally.events);
            count(&mut self.tubes.tallies.all);
        }
    }

    /// An update is about to be applied: each command counts itself.
    #[inline]
    pub(super) fn count_change(&mut self, job: JobHandle, new: &Durable) {
        if self.tubes.tallies.tubes_max == 0 {
            return;
        }
        let (old, new) = (self.jobs.extra(job).counters, new.counters);
        self.count_event(job, |events| {
            events.releases += u64::from(new.releases.saturating_sub(old.releases));
            events.buries += u64::from(new.buries.saturating_sub(old.buries));
            events.kicks += u64::from(new.kicks.saturating_sub(old.kicks));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::departed::DEPARTED_MAX;
    use super::super::tests::{Fixture, at};
    use super::*;
    use crate::types::ClientId;

    fn fixture(tubes_max: usize) -> (Fixture, ClientId) {
        let mut f = Fixture::new();
        f.queue.tally_tubes(tubes_max);
        let client = f.queue.connect();
        (f, client)
    }

    /// A job of this tube is put at 0, reserved at 2 and deleted at 5.
    fn work(f: &mut Fixture, client: ClientId, tube: &str) {
        f.queue.use_tube(client, tube, at(0));
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(2));
        f.apply(&crate::types::Change::Delete { id: job }, at(5));
        f.queue.use_tube(client, "default", at(5));
    }

    #[test]
    fn all_that_happens_to_jobs_is_counted_in_their_tube() {
        let (mut f, client) = fixture(2);
        f.queue.use_tube(client, "a", at(0));
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(2));
        let release = f.queue.decide_release(job, 5, 0, at(3)).unwrap();
        f.apply(&release, at(3));
        f.queue.reserve(client, job, at(4));
        let bury = f.queue.decide_bury(job, 5).unwrap();
        f.apply(&bury, at(5));
        let kick = f.queue.decide_kick(job).unwrap();
        f.apply(&kick, at(6));
        f.queue.reserve(client, job, at(7));
        f.tick(at(20));
        f.delete(job);
        f.queue.use_tube(client, "default", at(20));
        let tally = f.queue.tube_tally("a", at(20)).unwrap();
        let expected = JobEvents {
            reserves: 3,
            deletes: 1,
            releases: 1,
            buries: 1,
            kicks: 1,
            timeouts: 1,
        };
        assert_eq!(tally.events, expected);
        assert_eq!(f.queue.job_events(), expected);
        assert_eq!(
            (tally.waits.count(), tally.waits.read().sum_ns),
            (1, at(2).0 as u64)
        );
        assert_eq!(
            (tally.holds.count(), tally.holds.read().sum_ns),
            (2, at(2).0 as u64)
        );
        assert_eq!(f.queue.tube_tally("default", at(20)), None);
    }

    #[test]
    fn tubes_past_the_bound_are_counted_together_and_without_one_nothing_is() {
        let (mut f, client) = fixture(2);
        // They stay, as they are watched.
        for nth in 0..5 {
            f.queue.watch(client, &format!("tube-{nth}"));
        }
        let without = f.queue.memory();
        for nth in 0..5 {
            work(&mut f, client, &format!("tube-{nth}"));
        }
        let has = |nth: usize| f.queue.tube_tally(&format!("tube-{nth}"), at(9)).is_some();
        assert_eq!([0, 1, 2, 3, 4].map(has), [true, true, false, false, false]);
        assert_eq!(f.queue.tally_of_others().events.reserves, 3);
        assert_eq!(f.queue.job_events().reserves, 5);
        assert_eq!(f.queue.tally_of_others().holds.count(), 3);
        let bytes = (f.queue.memory() - without) as usize;
        assert_eq!(bytes, 2 * size_of::<TubeTally>());
        assert!(size_of::<TubeTally>() <= 300);

        let (mut f, client) = fixture(0);
        f.queue.watch(client, "a");
        work(&mut f, client, "a");
        assert_eq!(f.queue.tube_tally("a", at(9)), None);
        assert_eq!(*f.queue.tally_of_others(), TubeTally::default());
    }

    #[test]
    fn a_tube_that_vanishes_makes_room_and_goes_on_when_it_comes_back_if_there_is_some() {
        let (mut f, client) = fixture(1);
        let reserves = |f: &Fixture, name: &str, seconds: u32| {
            let tally = f.queue.tube_tally(name, at(seconds));
            tally.map(|tally| tally.events.reserves)
        };
        work(&mut f, client, "a");
        assert_eq!(f.queue.tubes.tallies.memory(), 0);
        assert_eq!(
            (reserves(&f, "a", 3604), reserves(&f, "a", 3605)),
            (Some(1), None)
        );
        work(&mut f, client, "a");
        assert_eq!(reserves(&f, "a", 5), Some(2));
        f.queue.watch(client, "b");
        work(&mut f, client, "b");
        // There is no room for it any more: its counts are among the others.
        work(&mut f, client, "a");
        assert_eq!(
            (reserves(&f, "a", 5), reserves(&f, "b", 5)),
            (None, Some(1))
        );
        assert_eq!(f.queue.tally_of_others().events.reserves, 3);
        f.queue.ignore(client, "b", at(5));
        for nth in 0..=DEPARTED_MAX {
            work(&mut f, client, &format!("tube-{nth}"));
        }
        let kept = f.queue.tubes.departed.tallies();
        assert_eq!((kept, f.queue.tubes.tallies.tubes), (DEPARTED_MAX, 0));
    }
}
