//! Waiting for a job.
//!
//! A waiting client is in the queue of every tube that it watches, with the ticket that it drew
//! when the wait began: the longest wait is served first, in whichever tube a job becomes ready.
//! During a wait the watch list does not change, and no job that the client could have got goes to
//! a client that came later.
//!
//! That holds for clients that watch a few tubes. A client that watches more than
//! [`WIDE_LEN`](super::wide::WIDE_LEN) tubes is *wide*: it is in no tube's queue, and `wide` finds
//! its job.

use super::Queue;
use super::client::{Terms, Wait, WaitEnd};
use super::handle::ClientHandle;
use super::tube::Tube;
use crate::types::{ClientId, JobId, Time};

impl Queue {
    /// Lets the client wait for a job, on these terms, after those that already wait.
    ///
    /// # Panics
    /// If it is already waiting.
    pub fn wait(&mut self, id: ClientId, terms: impl Into<Terms>) {
        let handle = self.idle_client(id);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let searched = self.searched_already(handle);
        self.clients[handle].wait = Some(Wait {
            ticket,
            terms: terms.into(),
        });
        if self.clients[handle].wide.is_some() {
            self.wait_widely(ticket, id, searched);
        } else {
            self.for_each_watched(handle, |tube| tube.waiters.insert((ticket, id)));
        }
        self.reschedule(handle);
    }

    /// Limits the client's wait to `now`. Returns `false`, and ends the wait, if it has already
    /// searched everything.
    pub fn hurry(&mut self, id: ClientId, now: Time) -> bool {
        let handle = self.client_handle(id);
        let client = &mut self.clients[handle];
        let is_searching = client.is_searching();
        let Some(wait) = &mut client.wait else {
            return false;
        };
        wait.terms.until = Some(now);
        is_searching
    }

    /// True if the client waits for a job.
    #[must_use]
    pub fn is_waiting(&self, id: ClientId) -> bool {
        self.client(id).wait.is_some()
    }

    /// What the client waits for; if it does not wait, a single job.
    #[must_use]
    pub fn terms(&self, id: ClientId) -> Terms {
        let wait = self.client(id).wait.as_ref();
        wait.map_or(Terms::default(), |wait| wait.terms)
    }

    /// Ends the client's wait; `false` if it was not waiting.
    #[inline]
    pub(crate) fn stop_waiting(&mut self, id: ClientId) -> bool {
        self.waiting > 0 && self.stop_wait(id)
    }

    fn stop_wait(&mut self, id: ClientId) -> bool {
        let handle = self.client_handle(id);
        let Some(wait) = self.clients[handle].wait.take() else {
            return false;
        };
        self.waiting -= 1;
        if self.clients[handle].wide.is_some() {
            self.wide_waiters.remove(&wait.ticket);
        } else {
            self.for_each_watched(handle, |tube| tube.waiters.remove(&(wait.ticket, id)));
        }
        self.reschedule(handle);
        true
    }

    /// False if [`Queue::next_match`] surely has none.
    #[inline]
    #[must_use]
    pub(crate) fn has_match(&self) -> bool {
        self.matches.first().is_some()
    }

    /// The next client to get a job, and the job: the best job of all tubes that are not paused and
    /// have both a ready job and a waiting client, and the client that has waited longest for its
    /// tube. Changes nothing; [`Queue::reserve`] carries it out.
    pub fn next_match(&mut self) -> Option<(ClientId, JobId)> {
        while let Some((key, handle)) = self.matches.first() {
            let tube = &self.tubes[handle];
            let widely = self.wide_waiter(tube);
            let first = tube.waiters.first().copied();
            if let Some((_, client)) = first.into_iter().chain(widely).min() {
                return Some((client, key.id()));
            }
            // The client that would have got it no longer waits.
            self.reindex(handle);
        }
        None
    }

    fn for_each_watched(
        &mut self,
        client: ClientHandle,
        mut change: impl FnMut(&mut Tube) -> bool,
    ) {
        self.visit(self.clients[client].watched.len());
        for index in 0..self.clients[client].watched.len() {
            let tube = self.clients[client].watched[index];
            assert!(
                change(&mut self.tubes[tube]),
                "a wait stands in the queue of each tube once"
            );
            self.reindex(tube);
        }
    }

    /// Ends the wait of a client whose time is over, or its first reservation. `false` if that has
    /// to wait, because another client must get a job first, perhaps this one.
    pub(super) fn tick_client(
        &mut self,
        handle: ClientHandle,
        now: Time,
        ended: &mut Vec<(ClientId, WaitEnd)>,
    ) -> bool {
        if self.clients[handle].wait.is_none() {
            self.end_first_reservation(handle, now);
            return true;
        }
        if self.next_match().is_some() {
            return false;
        }
        let id = ClientId(handle.index());
        let soon = self.deadline_soon(id, now);
        self.stop_waiting(id);
        ended.push((
            id,
            if soon {
                WaitEnd::DeadlineSoon
            } else {
                WaitEnd::TimedOut
            },
        ));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};
    use super::*;

    #[test]
    fn who_has_waited_longest_gets_the_job_in_whichever_tube() {
        let mut f = Fixture::new();
        let clients: Vec<_> = (0..3).map(|_| f.queue.connect()).collect();
        f.queue.watch(clients[1], "a");
        f.queue.watch(clients[2], "a");
        for client in [2, 0, 1] {
            f.queue.wait(clients[client], None);
        }
        let producer = f.queue.connect();
        f.queue.use_tube(producer, "a", at(0));
        let first = f.put(producer, 5, 0);
        assert_eq!(f.queue.next_match(), Some((clients[2], first)));
        f.queue.reserve(clients[2], first, at(0));
        let second = f.put(producer, 5, 0);
        assert_eq!(f.queue.next_match(), Some((clients[1], second)));
        f.queue.reserve(clients[1], second, at(0));
        assert_eq!(f.queue.next_match(), None);
        assert!(f.queue.is_waiting(clients[0]));
    }

    #[test]
    fn of_several_matches_the_best_job_goes_first() {
        let mut f = Fixture::new();
        let (slow, fast) = (f.queue.connect(), f.queue.connect());
        f.queue.watch(fast, "a");
        f.queue.ignore(fast, "default", at(0));
        f.queue.wait(slow, None);
        f.queue.wait(fast, None);
        let producer = f.queue.connect();
        f.put(producer, 5, 0);
        f.queue.use_tube(producer, "a", at(0));
        let best = f.put(producer, 4, 0);
        assert_eq!(f.queue.next_match(), Some((fast, best)));
    }

    #[test]
    fn a_wait_keeps_its_terms_until_it_ends() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let terms = Terms {
            until: Some(at(9)),
            most: Some(7),
        };
        f.queue.wait(client, terms);
        assert_eq!(f.queue.terms(client), terms);
        f.queue.hurry(client, at(3));
        assert_eq!(f.queue.terms(client).most, Some(7));
        let producer = f.queue.connect();
        let job = f.put(producer, 5, 0);
        f.queue.reserve(client, job, at(0));
        assert_eq!(f.queue.terms(client), Terms::default());
        f.queue.wait(client, None);
        assert_eq!(f.queue.terms(client), Terms::default());
    }

    #[test]
    fn a_wait_that_has_ended_is_matched_no_more() {
        let mut f = Fixture::new();
        let (gone, bored) = (f.queue.connect(), f.queue.connect());
        f.queue.wait(gone, None);
        f.queue.wait(bored, None);
        assert_eq!(f.queue.stats().waiting, 2);
        assert!(f.queue.stop_waiting(bored));
        assert!(!f.queue.stop_waiting(bored));
        f.queue.disconnect(gone, at(0), 0);
        let producer = f.queue.connect();
        f.put(producer, 5, 0);
        assert_eq!(f.queue.next_match(), None);
        assert_eq!(f.queue.stats().waiting, 0);
    }
}
