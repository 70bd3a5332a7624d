//! Keys: which jobs claim the key that they have in their tube.
//!
//! A job with a key claims it as long as it is there; or, if its attributes say so, until it is
//! reserved for the first time. Of the jobs in a tube that claim one key the one with the least id is
//! its *holder*: who puts a job with this key is told of that one.
//!
//! A key that has a holder gets no second job by a put. Two jobs claim one key only where a job was
//! moved into a tube in which another one has its key.
//!
//! # Invariants
//!
//! * Whether a job claims its key follows from its durable state: its attributes, its tube, and how
//!   often it was reserved. So a queue has the same claims after a restart, whatever compaction has
//!   left of the log, and in whatever order replay comes to know of the jobs; a follower has them, too.
//! * A claim ends with its job. One that a reservation has ended does not come back: how often a job
//!   was reserved never decreases.
//! * Jobs without attributes cost a test of a flag, which they have anyway; and, as long as there are
//!   claims of others, one look at a job that is to be reserved.

use super::Queue;
use super::attributed::Attributed;
use super::claims::Claim;
use super::handle::JobHandle;
use crate::attributes::{Unique, key_of};
use crate::types::{Counters, JobId};

/// What a job claims, before or after a change of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claimed(Option<Claim>);

/// Keys.
impl Queue {
    /// The job that holds a key in a tube: the oldest one that claims it.
    #[must_use]
    pub fn key_holder(&self, tube: &str, key: &str) -> Option<JobId> {
        let tube = self.tubes.find(tube)?;
        let is_key = |(of, _): (&[u8], Unique)| of == key.as_bytes();
        let holds = |claim: &Claim| {
            // What is doomed claims nothing.
            let job = self.jobs.find(claim.id());
            let is_it = |job| self.jobs[job].tube == tube && self.key(job).is_some_and(is_key);
            let holds = job.is_some_and(is_it);
            self.visit(usize::from(!holds));
            holds
        };
        let found = self.claims.of(tube, key.as_bytes()).find(holds);
        found.map(Claim::id)
    }

    /// True if the key of a job is free from its next reservation on.
    #[must_use]
    pub(crate) fn frees_key_when_reserved(&self, id: JobId) -> bool {
        if self.claims.is_empty() {
            return false;
        }
        let job = self.jobs.find(id);
        job.is_some_and(|job| self.frees_key(job))
    }

    pub(super) fn frees_key(&self, job: JobHandle) -> bool {
        let is_waiting = |(_, unique)| unique == Unique::Waiting;
        self.key(job).is_some_and(is_waiting) && self.jobs.extra(job).counters.reserves == 0
    }

    /// True if a job may claim its key with these counters and not with those that it has, or the other
    /// way round.
    pub(super) fn may_claim_otherwise(&self, job: JobHandle, new: Counters) -> bool {
        let is_first = |counters: Counters| counters.reserves == 0;
        self.jobs[job].has_attributes && is_first(new) != is_first(self.jobs.extra(job).counters)
    }

    /// What a job claims in the state that it has.
    pub(super) fn claimed(&self, job: JobHandle) -> Claimed {
        let is_over = self.jobs.extra(job).counters.reserves > 0;
        let key = self.key(job);
        let key = key.filter(|(_, unique)| *unique == Unique::Exists || !is_over);
        let (id, tube) = (self.jobs[job].id, self.jobs[job].tube);
        Claimed(key.map(|(key, _)| Claim::new(tube, key, id)))
    }

    /// After a change of a job that had claimed this before.
    pub(super) fn claim_again(&mut self, job: JobHandle, before: Claimed) {
        let after = self.claimed(job);
        if before != after {
            self.end_claim(before);
            if let Some(claim) = after.0 {
                self.claims.insert(claim);
            }
        }
    }

    /// What a job has claimed is free: it is gone, or it was reserved.
    pub(super) fn end_claim(&mut self, before: Claimed) {
        if let Some(claim) = before.0 {
            self.claims.remove(claim);
        }
    }

    /// Checks that the claims are those that follow from the states of all jobs.
    ///
    /// # Panics
    /// If they are not.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn assert_claims(&self) {
        let jobs = self.jobs.ids().filter_map(|id| self.jobs.find_any(id));
        let expected = jobs.filter_map(|job| self.claimed(job).0).collect();
        self.claims.assert_are(&expected);
    }

    fn key(&self, job: JobHandle) -> Option<(&[u8], Unique)> {
        key_of(self.attributed(job).map(Attributed::list)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};
    use super::*;
    use crate::attributes::Attributes;
    use crate::types::{Change, ClientId};

    /// A job with this key in the tube `default`, ready.
    fn put(f: &mut Fixture, client: ClientId, key: &str, unique: Option<Unique>) -> JobId {
        let id = f.put(client, 5, 0);
        attribute(f, id, key, unique, None);
        id
    }

    fn attribute(
        f: &mut Fixture,
        id: JobId,
        key: &str,
        unique: Option<Unique>,
        tube: Option<&str>,
    ) {
        let attributes = Attributes {
            key: Some(key),
            unique,
            tube,
            ..Attributes::default()
        };
        let list = attributes.encode().unwrap();
        f.apply(&Change::Attributes { id, list: &list }, at(0));
    }

    fn is_empty(f: &Fixture) -> bool {
        f.queue.assert_claims();
        f.queue.claims.memory() == 0
    }

    #[test]
    fn a_key_is_that_of_its_job_until_the_job_is_gone_in_whatever_state_it_is() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        for unique in [None, Some(Unique::Exists)] {
            let job = put(&mut f, client, "k", unique);
            let holder = |f: &Fixture| f.queue.key_holder("default", "k");
            assert_eq!(holder(&f), Some(job));
            assert_eq!(f.queue.key_holder("default", "other"), None);
            assert_eq!(f.queue.key_holder("tube", "k"), None);
            assert!(!f.queue.frees_key_when_reserved(job));
            f.queue.reserve(client, job, at(0));
            assert_eq!(holder(&f), Some(job));
            let bury = f.queue.decide_bury(job, 5).unwrap();
            f.apply(&bury, at(0));
            assert_eq!(holder(&f), Some(job));
            f.delete(job);
            assert_eq!(holder(&f), None);
            assert!(is_empty(&f));
        }
    }

    #[test]
    fn a_key_until_it_is_reserved_is_free_from_then_on_and_stays_so() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let first = put(&mut f, client, "k", Some(Unique::Waiting));
        assert!(f.queue.frees_key_when_reserved(first));
        assert_eq!(f.queue.key_holder("default", "k"), Some(first));
        let bury = f.queue.decide_bury(first, 5).unwrap();
        f.apply(&bury, at(0));
        assert_eq!(f.queue.key_holder("default", "k"), Some(first));
        let kick = f.queue.decide_kick(first).unwrap();
        f.apply(&kick, at(0));
        f.queue.reserve(client, first, at(0));
        assert_eq!(f.queue.key_holder("default", "k"), None);
        assert!(is_empty(&f) && !f.queue.frees_key_when_reserved(first));
        f.queue.give_back(client, first, at(0));
        assert_eq!(f.queue.key_holder("default", "k"), None);
        let second = put(&mut f, client, "k", Some(Unique::Waiting));
        f.queue.reserve(client, first, at(0));
        let release = f.queue.decide_release(first, 5, 0, at(0)).unwrap();
        f.apply(&release, at(0));
        assert_eq!(f.queue.key_holder("default", "k"), Some(second));
        f.delete(second);
        assert_eq!(f.queue.key_holder("default", "k"), None);
        assert!(is_empty(&f));
    }

    /// What a restart or a follower sees of a reservation is a record of its counters.
    #[test]
    fn a_record_of_a_reservation_ends_a_claim_as_the_reservation_does() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = put(&mut f, client, "k", Some(Unique::Waiting));
        f.queue.reserve(client, job, at(0));
        let reserved = f.queue.snapshot(job).unwrap();
        f.delete(job);
        let mut other = Fixture::new();
        let client = other.queue.connect();
        let same = put(&mut other, client, "k", Some(Unique::Waiting));
        assert_eq!(same, job);
        other.apply(&reserved, at(0));
        assert_eq!(other.queue.key_holder("default", "k"), None);
        // Attributes that come later do not bring it back.
        attribute(&mut other, job, "k", Some(Unique::Waiting), None);
        assert!(is_empty(&other));
        attribute(&mut other, job, "k", None, None);
        assert_eq!(other.queue.key_holder("default", "k"), Some(job));
    }

    #[test]
    fn a_job_that_is_moved_claims_its_key_where_it_is_and_the_oldest_holds_it() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let [first, second, third] = [(); 3].map(|()| f.put(client, 5, 0));
        attribute(&mut f, second, "k", None, Some("dead"));
        attribute(&mut f, first, "k", None, None);
        attribute(&mut f, third, "k", None, Some("dead"));
        let holders = |f: &Fixture| {
            let holder = |tube| f.queue.key_holder(tube, "k");
            (holder("default"), holder("dead"))
        };
        assert_eq!(holders(&f), (Some(first), Some(second)));
        attribute(&mut f, first, "k", None, Some("dead"));
        assert_eq!(holders(&f), (None, Some(first)));
        f.delete(first);
        assert_eq!(holders(&f), (None, Some(second)));
        attribute(&mut f, second, "k", None, None);
        assert_eq!(holders(&f), (Some(second), Some(third)));
        attribute(&mut f, second, "other", None, None);
        assert_eq!(holders(&f), (None, Some(third)));
        f.delete(second);
        f.delete(third);
        assert!(is_empty(&f));
    }

    #[test]
    fn among_many_keys_and_tubes_each_is_found() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let mut jobs = Vec::new();
        for number in 0..3000 {
            let id = f.put(client, 5, 0);
            let (key, tube) = (format!("{}", number / 3), format!("t{}", number % 3));
            attribute(&mut f, id, &key, None, Some(&tube));
            jobs.push((id, key, tube));
        }
        for (id, key, tube) in &jobs {
            assert_eq!(f.queue.key_holder(tube, key), Some(*id));
        }
        for (id, key, tube) in &jobs {
            f.delete(*id);
            assert_eq!(f.queue.key_holder(tube, key), None);
        }
        assert!(is_empty(&f));
    }

    #[test]
    fn keys_with_the_same_hash_are_told_apart() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let (one, two) = (
            put(&mut f, client, "1", None),
            put(&mut f, client, "2", None),
        );
        // As if the hash of both were that of the second key.
        let job = f.queue.jobs.expect(one);
        f.queue.end_claim(f.queue.claimed(job));
        let claim = Claim::new(f.queue.default_tube, b"2", one);
        f.queue.claims.insert(claim);
        f.queue.take_visits();
        assert_eq!(f.queue.key_holder("default", "2"), Some(two));
        assert_eq!(f.queue.take_visits(), 1);
    }

    /// A job with a key of 16 bytes: 64 bytes and the key more than a plain one, 160 in all.
    #[test]
    fn what_a_job_with_a_key_costs() {
        const COUNT: u64 = 100_000;
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let begin = f.queue.memory();
        let jobs: Vec<_> = (0..COUNT).map(|_| f.put(client, 5, 0)).collect();
        let plain = (f.queue.memory() - begin) / COUNT;
        for job in jobs {
            attribute(&mut f, job, &format!("{:016}", job.0), None, None);
        }
        let all = (f.queue.memory() - begin) / COUNT;
        assert!(
            all - plain <= 64 + 16,
            "{} bytes beyond {plain}",
            all - plain
        );
        assert!(all <= 160, "{all} bytes");
    }
}
