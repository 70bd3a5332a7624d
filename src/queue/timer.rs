//! Timed events: delayed jobs become due, pauses end, reservations and waits run out, and the jobs of
//! disconnected clients become ready again.
//!
//! [`Queue::tick`] handles all of them, one at a time in order of time, as many as its caller
//! allows: so half a million jobs that become due at once do not delay other clients. Nothing here is
//! recorded: after a restart the same deadlines lead to the same states.
//!
//! Only two orders are needed: tubes by next event, and clients by next event.

use super::Queue;
use super::client::WaitEnd;
use super::handle::{ClientHandle, JobHandle, TubeHandle};
use crate::types::{ClientId, JobState, Time};

/// Tubes that take as long to examine as any other event.
pub(super) const VISITS_PER_ITEM: usize = 4;
/// Entries of indexes of groups that are removed in one call of [`Queue::tick`].
const REMOVED_A_TICK: usize = 2048;

/// An event that is due.
enum Due {
    Tube(TubeHandle),
    Client(ClientHandle),
}

impl Queue {
    /// Handles events that are due at `now`, at most `budget` of them, each in O(log n), and adds
    /// the clients whose wait ended without a job to `ended`. Returns true if more are due. The
    /// tubes examined at the end of a wait count too: `VISITS_PER_ITEM` of them as one event.
    ///
    /// * A delayed job is ready from its deadline on; a pause ends at its end.
    /// * A reservation runs out *after* its deadline; the job is then ready with its priority, one
    ///   more timeout, and dirty counters.
    /// * A waiting client whose own reservation enters its last second gets `DEADLINE_SOON`; that
    ///   takes precedence over the end of its wait.
    /// * No wait ends while [`Queue::next_match`] returns a client: hand out those jobs between
    ///   ticks. (So after a stall, a client still gets a job that fell due before its wait ended.)
    ///   Work that waits only for this does not count as "more are due".
    pub fn tick(&mut self, now: Time, budget: usize, ended: &mut Vec<(ClientId, WaitEnd)>) -> bool {
        self.free_unused_fair(REMOVED_A_TICK);
        let searching = budget.div_ceil(2);
        let mut left = budget - searching + self.go_on_searching(searching);
        while left > 0 {
            let before = self.visits.get();
            if !self.tick_once(now, ended) {
                return !self.searches.is_empty() || !self.unused_fair.is_empty();
            }
            left = left.saturating_sub(1 + (self.visits.get() - before) / VISITS_PER_ITEM);
        }
        self.is_due(now)
    }

    /// The time of the earliest event, for [`Queue::tick`] or for the caller of
    /// [`Queue::next_match`]. `Time(i64::MIN)` means now; `None` means that there will be no timed
    /// event.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let is_busy = !self.searches.is_empty() || !self.unused_fair.is_empty();
        if !self.ghosts.is_empty() || !self.matches.is_empty() || is_busy {
            return Some(Time(i64::MIN));
        }
        self.first_due().map(|(due, _)| due)
    }

    /// Jobs of disconnected clients and due events take turns, so neither can starve the other.
    fn tick_once(&mut self, now: Time, ended: &mut Vec<(ClientId, WaitEnd)>) -> bool {
        self.is_ghosts_turn = !self.is_ghosts_turn;
        (self.is_ghosts_turn && self.release_from_ghost(now))
            || self.tick_due(now, ended)
            || self.release_from_ghost(now)
    }

    fn tick_due(&mut self, now: Time, ended: &mut Vec<(ClientId, WaitEnd)>) -> bool {
        match self.first_due().filter(|(due, _)| *due <= now) {
            None => false,
            Some((_, Due::Tube(tube))) => {
                self.tick_tube(tube, now);
                true
            }
            Some((_, Due::Client(client))) => self.tick_client(client, now, ended),
        }
    }

    fn is_due(&mut self, now: Time) -> bool {
        let may_go = match self.first_due().filter(|(due, _)| *due <= now) {
            None => false,
            Some((_, Due::Tube(_))) => true,
            Some((_, Due::Client(client))) => {
                self.clients[client].wait.is_none() || self.next_match().is_none()
            }
        };
        may_go
            || !self.ghosts.is_empty()
            || !self.searches.is_empty()
            || !self.unused_fair.is_empty()
    }

    /// The first due event; of two at the same time the tube's, since it may provide a job.
    fn first_due(&self) -> Option<(Time, Due)> {
        let tube = self
            .tube_timers
            .first()
            .map(|(due, tube)| (due, Due::Tube(tube)));
        let client = self
            .client_timers
            .first()
            .map(|(due, client)| (due, Due::Client(client)));
        tube.into_iter().chain(client).min_by_key(|(due, _)| *due)
    }

    /// Makes the tube's first delayed job ready, ends its pause, or does what its policy has due,
    /// whichever was due first.
    fn tick_tube(&mut self, tube: TubeHandle, now: Time) {
        let pause = self.tubes[tube].pause.as_ref().map(|pause| pause.until);
        let policed = self.tubes[tube].policed.as_ref();
        if let Some(due) = policed.and_then(|policed| policed.due())
            && self.tubes[tube].due() == Some(due)
        {
            return self.tick_policy(tube, now);
        }
        match self.tubes[tube].delayed.first() {
            Some((deadline, job)) if pause.is_none_or(|until| deadline < until) => {
                self.return_to_ready(self.jobs.expect(job), now);
            }
            _ => {
                self.end_pause(tube, now);
                self.reindex_or_remove(tube, now);
            }
        }
    }

    /// Makes a job ready with its priority, without a record.
    pub(super) fn return_to_ready(&mut self, job: JobHandle, now: Time) {
        self.detach(job);
        self.attach(job, JobState::Ready);
        self.reindex_or_remove(self.jobs[job].tube, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};
    use super::*;
    use crate::types::JobId;

    fn state(f: &Fixture, job: JobId) -> JobState {
        f.queue.job(job).unwrap().state
    }

    #[test]
    fn an_idle_queue_has_no_deadline() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        f.put(client, 5, 0);
        assert_eq!(f.queue.next_deadline(), None);
        assert!(!f.queue.tick(at(1_000_000), 10, &mut Vec::new()));
    }

    #[test]
    fn a_delayed_job_is_ready_from_its_deadline_on() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 7);
        assert_eq!(f.queue.next_deadline(), Some(at(7)));
        f.tick(Time(at(7).0 - 1));
        assert_eq!(state(&f, job), JobState::Delayed);
        f.tick(at(7));
        assert_eq!(state(&f, job), JobState::Ready);
    }

    #[test]
    fn jobs_fall_due_in_order_of_their_deadlines_over_all_tubes() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let delays = [9, 3, 6, 1, 8, 2, 7, 5, 4];
        let mut jobs: Vec<_> = delays
            .iter()
            .map(|delay| {
                f.queue
                    .use_tube(client, &format!("tube-{}", delay % 4), at(0));
                (*delay, f.put(client, 5, *delay))
            })
            .collect();
        jobs.sort();
        for count in 1..=jobs.len() {
            let more = f.queue.tick(at(10), 1, &mut Vec::new());
            assert_eq!(more, count < jobs.len());
            assert_eq!(f.queue.stats().jobs.ready, count as u64);
            assert_eq!(state(&f, jobs[count - 1].1), JobState::Ready);
        }
    }

    #[test]
    fn a_reservation_runs_out_after_its_deadline_and_counts_a_timeout() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(0));
        f.queue.next_dirty();
        let deadline = at(f.ttr);
        assert_eq!(f.queue.next_deadline(), Some(Time(deadline.0 + 1)));
        f.tick(deadline);
        assert_eq!(state(&f, job), JobState::Reserved);
        f.tick(Time(deadline.0 + 1));
        let view = f.queue.job(job).unwrap();
        assert_eq!((view.state, view.counters.timeouts), (JobState::Ready, 1));
        assert_eq!((view.reserver, view.pri), (None, 5));
        assert_eq!(f.queue.stats().timeouts, 1);
        assert_eq!(f.queue.next_dirty(), Some(job));
    }

    #[test]
    fn a_wait_ends_when_its_time_is_over() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        f.queue.wait(client, Some(at(5)));
        assert_eq!(f.tick(Time(at(5).0 - 1)), []);
        assert_eq!(f.tick(at(5)), [(client, WaitEnd::TimedOut)]);
        assert!(!f.queue.is_waiting(client));
        assert_eq!(f.queue.next_deadline(), None);
    }

    #[test]
    fn the_last_second_of_a_reservation_wins_over_the_end_of_the_wait() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(0));
        let margin = at(f.ttr - 1);
        f.queue.wait(client, Some(margin));
        assert_eq!(f.queue.next_deadline(), Some(margin));
        assert_eq!(f.tick(margin), [(client, WaitEnd::DeadlineSoon)]);
        f.queue.wait(client, Some(at(100)));
        let late = at(50);
        assert_eq!(
            f.tick(late),
            [(client, WaitEnd::DeadlineSoon)],
            "said before the job is taken"
        );
        assert_eq!(state(&f, job), JobState::Ready);
    }

    #[test]
    fn no_wait_ends_while_a_job_is_there_for_it() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 1);
        f.queue.wait(client, Some(at(2)));
        let mut ended = Vec::new();
        assert!(
            !f.queue.tick(at(3), 10, &mut ended),
            "the match comes first"
        );
        assert_eq!(ended, []);
        assert_eq!(f.queue.next_deadline(), Some(Time(i64::MIN)));
        assert_eq!(f.queue.next_match(), Some((client, job)));
    }

    #[test]
    fn a_pause_ends_and_the_waiting_client_is_matched() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let place = f.pause("default", 10, at(0));
        let job = f.put(client, 5, 0);
        f.queue.wait(client, None);
        assert_eq!(f.queue.next_match(), None);
        assert_eq!(f.queue.next_deadline(), Some(at(10)));
        f.tick(at(10));
        assert_eq!(f.queue.next_match(), Some((client, job)));
        let lapsed = f.queue.take_lapsed_pause().unwrap();
        assert_eq!(
            (&*lapsed.tube, lapsed.place, lapsed.early),
            ("default", place, false)
        );
    }

    #[test]
    fn delayed_jobs_of_a_paused_tube_become_ready_all_the_same() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        f.pause("default", 10, at(0));
        let job = f.put(client, 5, 3);
        f.tick(at(4));
        assert_eq!(state(&f, job), JobState::Ready);
        assert_eq!(f.queue.best_ready(client, at(4)), None);
    }

    #[test]
    fn the_jobs_of_a_client_that_left_return_in_slices_by_deadline() {
        let mut f = Fixture::new();
        let (client, other) = (f.queue.connect(), f.queue.connect());
        let jobs: Vec<_> = (0..5).map(|_| f.put(client, 5, 0)).collect();
        for (second, job) in jobs.iter().rev().enumerate() {
            f.queue.reserve(client, *job, at(second as u32));
        }
        f.queue.disconnect(client, at(6), 0);
        assert_eq!(f.queue.next_deadline(), Some(Time(i64::MIN)));
        for job in jobs.iter().rev() {
            assert!(!f.queue.deletable(other, *job));
            f.queue.tick(at(1000), 1, &mut Vec::new());
            assert_eq!(state(&f, *job), JobState::Ready);
        }
        assert_eq!(f.queue.next_deadline(), None);
        assert_eq!(f.queue.stats().timeouts, 0);
    }

    #[test]
    fn what_is_due_and_what_a_client_left_behind_take_turns() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        for _ in 0..10 {
            let job = f.put(client, 5, 0);
            f.queue.reserve(client, job, at(0));
        }
        for _ in 0..10 {
            f.put(client, 5, 1);
        }
        f.queue.disconnect(client, at(0), 0);
        assert!(f.queue.tick(at(2), 10, &mut Vec::new()));
        let jobs = f.queue.stats().jobs;
        assert_eq!((jobs.reserved, jobs.delayed, jobs.ready), (5, 5, 10));
        assert!(!f.queue.tick(at(2), 10, &mut Vec::new()));
        assert_eq!(f.queue.stats().jobs.ready, 20);
    }
}
