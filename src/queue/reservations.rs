//! Reservations: their clients, their jobs, and their ends.
//!
//! Each client's reservations are ordered by deadline, and the clients are ordered by their next
//! event; so timers cost nothing per job.

use super::Queue;
use super::events::Happened;
use super::handle::{ClientHandle, JobHandle, TubeHandle};
use super::job::JobExtra;
use super::order::BATCH_LEN;
use crate::attributes::Reason;
use crate::types::{ClientId, JobId, JobState, Time};

/// Requests of clients.
impl Queue {
    /// True if a job that the client has reserved is in its last second, or past it.
    #[must_use]
    pub fn deadline_soon(&self, id: ClientId, now: Time) -> bool {
        self.client(id)
            .margin_begins()
            .is_some_and(|begin| begin <= now)
    }

    /// Gives a ready job to a client until `now` plus its time to run, and ends the client's wait.
    /// This makes the job dirty. Says whether its key is free since.
    ///
    /// # Panics
    /// If the job does not exist or is not ready: it would be handed out twice.
    pub fn reserve(&mut self, id: ClientId, job: JobId, now: Time) -> bool {
        self.stop_waiting(id);
        let client = self.client_handle(id);
        let Some(job) = self.jobs.find(job) else {
            panic!("job {job}, to be reserved, is gone")
        };
        let ready = &self.jobs[job];
        let (state, tube, due) = (ready.state, ready.tube, ready.put_deadline());
        assert_eq!(state, JobState::Ready, "a job to be reserved is ready");
        let deadline = now.plus_seconds(ready.ttr);
        let frees_key = ready.has_attributes && self.frees_key(job);
        if frees_key {
            self.end_claim(self.claimed(job));
        }
        self.detach(job);
        self.warm_up(tube);
        let extra = self.jobs.extra_mut(job);
        let waited = (extra.counters.reserves == 0).then(|| now.since(due));
        extra.deadline = deadline;
        extra.counters.reserves = extra.counters.reserves.saturating_add(1);
        extra.reserver = Some(client);
        self.jobs.mark_dirty(job);
        self.note_wait(job, waited);
        self.attach(job, JobState::Reserved);
        if self.has_policies() {
            self.tubes[tube].note_reserve(now);
        }
        self.note_job(job, Happened::Reserve, now);
        self.reindex_or_remove(tube, now);
        frees_key
    }

    /// A job is handed out; for the first time, if it has `waited` for this, nanoseconds.
    #[inline]
    fn note_wait(&mut self, job: JobHandle, waited: Option<i64>) {
        self.count_event(job, |events| events.reserves += 1);
        if let Some(ns) = waited {
            let bucket = self.waits.note(ns);
            if let Some(tally) = self.tally(job) {
                tally.waits.note(bucket, ns);
            }
        }
    }

    /// Reads several of the next jobs together, from time to time. They are anywhere in memory, and
    /// if they are many, in no cache; reads that do not depend on each other wait for memory
    /// together.
    fn warm_up(&self, tube: TubeHandle) {
        let batch = self.tubes[tube].ready.next_batch();
        if batch.len() == 0 {
            return;
        }
        let mut jobs = [None; BATCH_LEN];
        for (job, key) in jobs.iter_mut().zip(batch) {
            *job = self.jobs.find(key.id());
        }
        for job in jobs.into_iter().flatten() {
            self.jobs.read(job);
        }
    }

    /// Restarts the time to run of the client's job at `now`; `false` if the client has not
    /// reserved the job.
    pub fn touch(&mut self, id: ClientId, job: JobId, now: Time) -> bool {
        let Some(job) = self.reserved_by(id, job) else {
            return false;
        };
        let client = self.client_handle(id);
        let (id, until) = (self.jobs[job].id, now.plus_seconds(self.jobs[job].ttr));
        let extra = self.jobs.extra_mut(job);
        let before = extra.deadline;
        extra.deadline = until;
        let reserved = &mut self.clients[client].reserved;
        reserved.remove(&(before, id));
        reserved.insert((until, id));
        self.reschedule(client);
        true
    }

    /// True if the client has reserved the job.
    #[must_use]
    pub(crate) fn is_reserved_by(&self, id: ClientId, job: JobId) -> bool {
        self.reserved_by(id, job).is_some()
    }

    /// The client gives up a job that it has reserved: the job becomes ready with its priority and
    /// without a record, as if the client had disconnected. `false` if the client has not reserved
    /// it.
    pub fn give_back(&mut self, id: ClientId, job: JobId, now: Time) -> bool {
        let Some(job) = self.reserved_by(id, job) else {
            return false;
        };
        self.note_job(job, Happened::Return, now);
        self.fail(job, Reason::Disconnected, now);
        true
    }

    /// The same of a job of any client: it is taken from it. `false` if it is not reserved.
    pub fn take_back(&mut self, job: JobId, now: Time) -> bool {
        let is_reserved = |job: &JobHandle| self.jobs[*job].state == JobState::Reserved;
        let Some(job) = self.jobs.find(job).filter(is_reserved) else {
            return false;
        };
        self.note_job(job, Happened::Return, now);
        self.return_to_ready(job, now);
        true
    }

    /// True if `delete` finds the job: it exists, and no other client has reserved it.
    #[must_use]
    #[inline(always)]
    pub(crate) fn deletable(&self, id: ClientId, job: JobId) -> bool {
        let Some(job) = self.jobs.find(job) else {
            return false;
        };
        self.jobs[job].state != JobState::Reserved || self.has_reserved(id, job)
    }

    #[inline(always)]
    fn reserved_by(&self, id: ClientId, job: JobId) -> Option<JobHandle> {
        let found = self.jobs.find(job);
        found.filter(|job| self.has_reserved(id, *job))
    }

    #[inline(always)]
    fn has_reserved(&self, id: ClientId, job: JobHandle) -> bool {
        self.jobs.extra(job).reserver == Some(self.client_handle(id))
    }
}

/// Effects of changes and of time.
impl Queue {
    /// The client that has reserved a job, if it is still connected.
    pub(super) fn reserver(&self, extra: &JobExtra) -> Option<ClientId> {
        let client = extra.reserver?;
        (!self.clients[client].is_ghost).then(|| ClientId(client.index()))
    }

    pub(super) fn give_to_reserver(&mut self, job: JobHandle) {
        let extra = self.jobs.extra(job);
        let (Some(client), deadline) = (extra.reserver, extra.deadline) else {
            panic!("a reserved job without a client")
        };
        let key = (deadline, self.jobs[job].id);
        let reserved = &mut self.clients[client].reserved;
        reserved.insert(key);
        // The next event of a client is about the first of them.
        if reserved.first() == Some(key) {
            self.reschedule(client);
        }
    }

    pub(super) fn take_from_reserver(&mut self, job: JobHandle) {
        let extra = self.jobs.extra_mut(job);
        let (Some(client), deadline) = (extra.reserver.take(), extra.deadline) else {
            panic!("a reserved job without a client")
        };
        let key = (deadline, self.jobs[job].id);
        self.clients[client].reserved.remove(&key);
        self.reschedule(client);
    }

    /// Releases the client's first reserved job; `false` if it has reserved no job.
    pub(super) fn release_first(&mut self, client: ClientHandle, now: Time) -> bool {
        let first = self.clients[client].reserved.first();
        if let Some((_, job)) = first {
            let job = self.jobs.expect(job);
            self.note_job(job, Happened::Return, now);
            self.fail(job, Reason::Disconnected, now);
        }
        first.is_some()
    }

    pub(super) fn end_first_reservation(&mut self, client: ClientHandle, now: Time) {
        let Some((_, job)) = self.clients[client].reserved.first() else {
            return;
        };
        let job = self.jobs.expect(job);
        let counters = &mut self.jobs.extra_mut(job).counters;
        counters.timeouts = counters.timeouts.saturating_add(1);
        self.timeouts += 1;
        self.count_event(job, |events| events.timeouts += 1);
        self.jobs.mark_dirty(job);
        self.note_job(job, Happened::TimeOut, now);
        self.fail(job, Reason::Ttr, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};
    use super::*;

    #[test]
    fn the_smallest_priority_then_the_oldest_job_is_reserved_first() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let later = f.put(client, 5, 0);
        f.queue.use_tube(client, "a", at(0));
        f.queue.watch(client, "a");
        let same = f.put(client, 5, 0);
        let urgent = f.put(client, 1, 0);
        for job in [urgent, later, same] {
            assert_eq!(f.queue.best_ready(client, at(0)), Some(job));
            f.queue.reserve(client, job, at(0));
        }
        assert_eq!(f.queue.best_ready(client, at(0)), None);
    }

    #[test]
    fn a_paused_tube_hands_out_nothing_but_counts_as_having_jobs() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        f.pause("default", 10, at(0));
        assert_eq!(f.queue.best_ready(client, at(9)), None);
        assert!(f.queue.has_ready(client));
        assert_eq!(f.queue.best_ready(client, at(10)), Some(job));
    }

    #[test]
    fn only_the_reserver_may_touch_or_delete_a_reserved_job() {
        let mut f = Fixture::new();
        let (owner, other) = (f.queue.connect(), f.queue.connect());
        let job = f.put(owner, 5, 0);
        assert!(f.queue.deletable(other, job));
        f.queue.reserve(owner, job, at(0));
        assert!(f.queue.deletable(owner, job) && f.queue.is_reserved_by(owner, job));
        assert!(!f.queue.deletable(other, job) && !f.queue.is_reserved_by(other, job));
        assert!(!f.queue.touch(other, job, at(1)));
        assert!(!f.queue.touch(owner, JobId(99), at(1)));
        assert!(f.queue.touch(owner, job, at(7)));
        assert_eq!(f.queue.job(job).unwrap().deadline, Some(at(7 + f.ttr)));
    }

    #[test]
    fn the_last_second_before_a_deadline_is_soon() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(0));
        let margin = Time(at(f.ttr - 1).0);
        assert!(!f.queue.deadline_soon(client, Time(margin.0 - 1)));
        assert!(f.queue.deadline_soon(client, margin));
    }

    #[test]
    fn a_reservation_makes_the_counters_dirty() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(0));
        assert_eq!(f.queue.job(job).unwrap().counters.reserves, 1);
        assert_eq!(f.queue.dirty_count(), 1);
        assert_eq!(f.queue.next_dirty(), Some(job));
        assert_eq!((f.queue.next_dirty(), f.queue.dirty_count()), (None, 0));
    }

    #[test]
    #[should_panic(expected = "a job to be reserved is ready")]
    fn a_job_is_not_reserved_twice() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(0));
        f.queue.reserve(client, job, at(0));
    }
}
