//! Wide clients: clients that watch many tubes, and how they get jobs without a search of all these
//! tubes.
//!
//! A wide client is in no tube's queue. When it asks for a job, the shorter of two lists is
//! searched: its own watch list, or the tubes that any wide client watches and that have a job
//! (`stocked`), the best job first. If both are long, the search is done in slices while the client
//! waits.
//!
//! When a job becomes ready in a tube that wide clients watch, the waiting ones are asked, the
//! longest wait first, whether they watch it. The tube remembers up to which ticket none did: so a
//! tube asks each wait once.
//!
//! # Invariants
//!
//! * No waiting wide client that watches a tube has a ticket up to the tube's `checked`.
//! * A wide client that has searched up to a job immediately gets any better job that becomes
//!   ready; the search itself reaches all others. So no job is missed that was there all the time,
//!   and no better job is passed over.

use std::ops::Bound;

use super::Queue;
use super::client::{Client, Searched, Wide};
use super::handle::{ClientHandle, Handle, TubeHandle};
use super::job::ReadyKey;
use super::tube::{Tube, WidelyWatched};
use crate::types::{ClientId, JobId, Time};

/// A client that watches more tubes than this is wide. Joining and leaving as many queues takes
/// some 50 µs.
pub(super) const WIDE_LEN: usize = 256;
/// Tubes up to which a wide client's search is done at once: it takes some 200 µs.
pub(super) const SEARCH_LEN: usize = 2048;

/// Finding a job at once.
impl Queue {
    /// The job that a reserve of this client gets: the smallest (priority, id) of the tubes that it
    /// watches and that are not closed. Do not call it for a client for which [`Queue::takes_long`]
    /// is true.
    #[inline]
    pub fn best_ready(&mut self, id: ClientId, now: Time) -> Option<JobId> {
        self.first_stocked(id, |tube| !tube.is_closed(now))
            .map(ReadyKey::id)
    }

    /// True if a tube that the client watches, paused or not, has a ready job: then a reserve in
    /// the last second of another reservation waits instead of returning `DEADLINE_SOON`.
    pub fn has_ready(&mut self, id: ClientId) -> bool {
        self.first_stocked(id, |_| true).is_some()
    }

    /// True if too many tubes would have to be examined at once: then let the client wait with
    /// [`Queue::wait`], perhaps only until now, and it gets the best available job.
    #[must_use]
    pub fn takes_long(&self, id: ClientId) -> bool {
        // It is empty as long as no wide client watches a tube with a job.
        if self.stocked.len() <= self.search_len {
            return false;
        }
        let client = &self.clients[self.client_handle(id)];
        let shorter = client.watched.len().min(self.stocked.len());
        client.wide.is_some() && shorter > self.search_len
    }

    fn first_stocked(&mut self, id: ClientId, is_open: impl Fn(&Tube) -> bool) -> Option<ReadyKey> {
        let client = &self.clients[self.client_handle(id)];
        let tubes = &self.tubes;
        match &client.wide {
            Some(wide) if self.stocked.len() < client.watched.len() => {
                let mut visits = 0;
                let is_it = |(_, tube): &&(ReadyKey, TubeHandle)| {
                    visits += 1;
                    wide.places.contains_key(tube) && is_open(&tubes[*tube])
                };
                let found = self.stocked.iter().find(is_it).map(|(key, _)| *key);
                self.visit(visits);
                found
            }
            _ => {
                let mut best: Option<ReadyKey> = None;
                for tube in &client.watched {
                    let tube = &tubes[*tube];
                    if let Some(key) = tube.first_ready()
                        && best.is_none_or(|best| key < best)
                        && is_open(tube)
                    {
                        best = Some(key);
                    }
                }
                self.visit(client.watched.len() - 1);
                best
            }
        }
    }
}

/// Finding a job in slices.
impl Queue {
    /// Where the search of a new wait begins. A client that waits without a search has already been
    /// told that there is no job.
    pub(super) fn searched_already(&self, client: ClientHandle) -> Searched {
        if self.takes_long(ClientId(client.index())) {
            Searched::Nothing
        } else {
            Searched::All
        }
    }

    pub(super) fn wait_widely(&mut self, ticket: u64, client: ClientId, searched: Searched) {
        let handle = self.client_handle(client);
        if let Some(wide) = &mut self.clients[handle].wide {
            wide.searched = searched;
        }
        self.wide_waiters.insert(ticket, client);
        if searched != Searched::All {
            self.searches.push_back(ticket);
        }
    }

    /// Continues the searches, one after the other; returns the rest of `budget`.
    pub(super) fn go_on_searching(&mut self, mut budget: usize) -> usize {
        while budget > 0
            && let Some(ticket) = self.searches.pop_front()
        {
            budget -= 1;
            // It may no longer be waiting.
            let Some(client) = self.wide_waiters.get(&ticket).copied() else {
                continue;
            };
            if self.search_some(client) {
                self.searches.push_back(ticket);
            }
        }
        budget
    }

    /// One step of a client's search; `false` if the search is over. A job found becomes a match.
    fn search_some(&mut self, id: ClientId) -> bool {
        let handle = self.client_handle(id);
        let Client {
            wait: Some(_),
            wide: Some(wide),
            ..
        } = &self.clients[handle]
        else {
            return false;
        };
        let mut searched = wide.searched;
        let from = match searched {
            Searched::Nothing => Bound::Unbounded,
            Searched::UpTo(key) => Bound::Excluded((key, Handle::LAST)),
            Searched::All => return false,
        };
        let mut found = None;
        let mut rest = self.stocked.range((from, Bound::Unbounded));
        for _ in 0..STEP_LEN {
            let Some((key, tube)) = rest.next() else {
                searched = Searched::All;
                break;
            };
            self.visit(1);
            searched = Searched::UpTo(*key);
            if wide.places.contains_key(tube) && !self.tubes[*tube].is_closed_still() {
                found = Some(*tube);
                break;
            }
        }
        if let Some(wide) = &mut self.clients[handle].wide {
            wide.searched = searched;
        }
        if let Some(tube) = found {
            self.reindex(tube);
        }
        self.reschedule(handle);
        searched != Searched::All
    }
}

/// Tubes examined in one step of a search.
const STEP_LEN: usize = 4;

/// Upkeep.
impl Queue {
    /// Makes the client wide, because it watches many tubes now.
    pub(super) fn widen(&mut self, client: ClientHandle) {
        let watched = &self.clients[client].watched;
        self.visit(watched.len());
        let places = (0..).zip(watched).map(|(at, tube)| (*tube, at)).collect();
        self.clients[client].wide = Some(Box::new(Wide {
            places,
            searched: Searched::All,
        }));
        for at in 0..self.clients[client].watched.len() {
            self.watch_widely(self.clients[client].watched[at]);
        }
    }

    /// Makes the client a normal one again.
    pub(super) fn narrow(&mut self, client: ClientHandle) {
        self.visit(self.clients[client].watched.len());
        self.clients[client].wide = None;
        for at in 0..self.clients[client].watched.len() {
            let tube = self.clients[client].watched[at];
            self.unwatch_widely(tube);
            self.reindex(tube);
        }
    }

    /// Notes that one more wide client watches the tube.
    pub(super) fn watch_widely(&mut self, tube: TubeHandle) {
        let wide = self.tubes[tube].wide.get_or_insert_with(|| {
            Box::new(WidelyWatched {
                watching: 0,
                stocked: None,
                checked: 0,
                waiter: None,
            })
        });
        wide.watching += 1;
        self.reindex(tube);
    }

    /// Notes that one wide client fewer watches the tube. [`Queue::reindex_or_remove`] must follow.
    pub(super) fn unwatch_widely(&mut self, tube: TubeHandle) {
        let Some(wide) = &mut self.tubes[tube].wide else {
            unreachable!("a tube is watched widely by fewer than none")
        };
        wide.watching -= 1;
        if wide.watching == 0 {
            if let Some(stocked) = wide.stocked {
                self.stocked.remove(&stocked);
            }
            self.tubes[tube].wide = None;
        }
    }

    /// The wide client that gets the tube's next job, unless another client has waited longer.
    pub(super) fn wide_waiter(&self, tube: &Tube) -> Option<(u64, ClientId)> {
        let (ticket, client) = tube.wide.as_ref()?.waiter?;
        self.wide_waiters.get(&ticket).map(|_| (ticket, client))
    }

    /// The number of wide clients that wait for the tube.
    pub(super) fn count_wide_waiters(&self, tube: TubeHandle) -> usize {
        if self.tubes[tube].wide.is_none() {
            return 0;
        }
        self.visit(self.wide_waiters.len());
        let clients = self.wide_waiters.values().map(|id| self.client(*id));
        let watching = clients.filter(|client| client.watched_at(tube).is_some());
        watching.count()
    }

    /// Updates the state of a tube that wide clients watch.
    pub(super) fn reindex_widely(&mut self, handle: TubeHandle) {
        let tube = &mut self.tubes[handle];
        let (first, is_closed) = (tube.first_ready(), tube.is_closed_still());
        let Some(wide) = &mut tube.wide else { return };
        let stocked = first.map(|key| (key, handle));
        if wide.stocked != stocked {
            if let Some(before) = std::mem::replace(&mut wide.stocked, stocked) {
                self.stocked.remove(&before);
            }
            self.stocked.extend(stocked);
        }
        if let Some(key) = first.filter(|_| !is_closed) {
            self.find_wide_waiter(handle, key);
        }
    }

    fn find_wide_waiter(&mut self, handle: TubeHandle, key: ReadyKey) {
        let Some(wide) = &self.tubes[handle].wide else {
            return;
        };
        let (mut checked, mut waiter) = (wide.checked, None);
        let mut is_first = true;
        for (ticket, id) in self.wide_waiters.range(wide.checked + 1..) {
            self.visit(1);
            let client = self.client(*id);
            let watches = client.watched_at(handle).is_some();
            let searched = client.wide.as_ref().map(|wide| wide.searched);
            if watches && searched >= Some(Searched::UpTo(key)) {
                waiter = Some((*ticket, *id));
                break;
            }
            // The tube asks again about clients that watch it and have not searched this far.
            is_first &= !watches;
            if is_first {
                checked = *ticket;
            }
        }
        if let Some(wide) = &mut self.tubes[handle].wide {
            (wide.checked, wide.waiter) = (checked, waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::WaitEnd;
    use super::super::tests::{Fixture, at};
    use super::*;

    /// A queue in which one client watches `count` tubes in addition to `default`, and another one
    /// puts.
    fn wide(count: usize) -> (Fixture, ClientId, ClientId) {
        let mut f = Fixture::new();
        let (wide, other) = (f.queue.connect(), f.queue.connect());
        (0..count).for_each(|n| _ = f.queue.watch(wide, &name(n)));
        f.queue.take_visits();
        (f, wide, other)
    }

    fn name(number: usize) -> String {
        format!("tube-{number}")
    }

    fn put(f: &mut Fixture, client: ClientId, tube: &str, pri: u32) -> JobId {
        f.queue.use_tube(client, tube, at(0));
        f.put(client, pri, 0)
    }

    #[test]
    fn f21_a_reserve_looks_at_the_tubes_with_jobs_and_not_at_all_that_are_watched() {
        let (mut f, client, other) = wide(10_000);
        assert_eq!(f.queue.best_ready(client, at(0)), None);
        let job = put(&mut f, other, &name(5_000), 5);
        put(&mut f, other, "elsewhere", 1);
        assert_eq!(f.queue.best_ready(client, at(0)), Some(job));
        f.queue.reserve(client, job, at(0));
        assert_eq!(f.queue.best_ready(client, at(0)), None);
        assert!(f.queue.take_visits() < 10);
    }

    #[test]
    fn f21_to_watch_to_wait_and_to_give_up_cost_the_same_however_much_is_watched() {
        let (mut f, client, other) = wide(10_000);
        f.queue.watch(client, "one more");
        f.queue.watch(client, "one more");
        f.queue.ignore(client, &name(77), at(0));
        f.queue.wait(client, Some(at(1)));
        assert_eq!(f.tick(at(2)), [(client, WaitEnd::TimedOut)]);
        f.queue.wait(client, None);
        let job = put(&mut f, other, "one more", 5);
        assert_eq!(f.queue.next_match(), Some((client, job)));
        f.queue.reserve(client, job, at(0));
        assert!(f.queue.take_visits() < 10);
    }

    #[test]
    fn f21_a_client_that_watched_many_leaves_in_slices() {
        let (mut f, client, _) = wide(10_000);
        assert_eq!(f.queue.disconnect(client, at(0), 100), 100);
        for left in (1..=9_901_u64).rev().step_by(50) {
            assert_eq!(f.queue.stats().tubes, left + 1);
            f.queue.tick(at(0), 50, &mut Vec::new());
        }
        assert_eq!(f.queue.next_deadline(), None);
        assert_eq!(f.queue.connect(), client, "nothing is left of it");
        assert!(f.queue.stocked.is_empty() && f.queue.watches == 2);
    }

    #[test]
    fn f21_many_waits_that_end_together_end_in_slices() {
        let mut f = Fixture::new();
        for _ in 0..100 {
            let client = f.queue.connect();
            (0..200).for_each(|n| _ = f.queue.watch(client, &name(n)));
            f.queue.wait(client, Some(at(1)));
        }
        f.queue.take_visits();
        let mut ended = Vec::new();
        while f.queue.tick(at(1), 256, &mut ended) {
            assert!(f.queue.take_visits() < 256 * 4 + 400);
        }
        assert_eq!(ended.len(), 100);
    }

    #[test]
    fn f21_the_first_wide_client_that_watches_a_tube_is_asked_for_once() {
        let mut f = Fixture::new();
        for n in 0..1000 {
            let client = f.queue.connect();
            (0..WIDE_LEN).for_each(|m| _ = f.queue.watch(client, &name(m)));
            f.queue.watch(client, &format!("{n}"));
            f.queue.wait(client, None);
        }
        let late = f.queue.connect();
        (0..WIDE_LEN).for_each(|m| _ = f.queue.watch(late, &format!("late-{m}")));
        f.queue.take_visits();
        let producer = f.queue.connect();
        for n in 0..100 {
            put(&mut f, producer, "late-7", n);
        }
        assert_eq!(f.queue.next_match(), None);
        assert!(f.queue.take_visits() <= 1000);
        let job = put(&mut f, producer, "999", 0);
        let (last, _) = f.queue.next_match().unwrap();
        f.queue.reserve(last, job, at(0));
        assert_eq!(last.0, 999);
        assert_eq!(f.queue.best_ready(late, at(0)), Some(JobId(1)));
    }

    /// Tubes with jobs that others watch, so many that a search takes long.
    fn crowded(f: &mut Fixture, count: u32) {
        let (watcher, producer) = (f.queue.connect(), f.queue.connect());
        for n in 0..count {
            f.queue.watch(watcher, &format!("crowd-{n}"));
            put(f, producer, &format!("crowd-{n}"), 100 + n);
        }
    }

    #[test]
    fn f21_a_search_through_very_many_tubes_goes_on_while_others_are_served() {
        let (mut f, client, other) = wide(3_000);
        crowded(&mut f, 3_000);
        let job = put(&mut f, other, &name(1), 2_000);
        f.queue.take_visits();
        assert!(f.queue.takes_long(client));
        f.queue.wait(client, Some(at(0)));
        let mut steps = 0;
        while f.queue.next_match().is_none() {
            assert_eq!(f.queue.next_deadline(), Some(Time(i64::MIN)));
            let mut ended = Vec::new();
            f.queue.tick(at(1), 20, &mut ended);
            assert_eq!(
                ended,
                [],
                "no one is sent away before all has been looked through"
            );
            assert!(f.queue.take_visits() <= 44);
            steps += 1;
        }
        assert!(steps > 40);
        assert_eq!(f.queue.next_match(), Some((client, job)));
    }

    #[test]
    fn f21_a_search_that_finds_nothing_ends_the_wait() {
        let (mut f, client, _) = wide(3_000);
        crowded(&mut f, 3_000);
        f.queue.wait(client, Some(at(0)));
        assert_eq!(f.tick(at(0)), [(client, WaitEnd::TimedOut)]);
    }

    #[test]
    fn f21_a_job_that_turns_up_behind_a_search_is_not_missed_nor_is_a_better_one_in_front() {
        for pri in [0, 1_000, 9_000] {
            let (mut f, client, other) = wide(3_000);
            crowded(&mut f, 3_000);
            f.queue.wait(client, Some(at(0)));
            f.queue.tick(at(0), 800, &mut Vec::new());
            let job = put(&mut f, other, &name(7), pri);
            let later = put(&mut f, other, &name(8), 9_001);
            while f.queue.next_match().is_none() {
                f.queue.tick(at(0), 100, &mut Vec::new());
            }
            assert_eq!(f.queue.next_match(), Some((client, job)), "{pri}");
            f.queue.reserve(client, job, at(0));
            f.tick(at(0));
            assert_eq!(f.queue.best_ready(other, at(0)), None);
            assert_eq!(f.queue.job(later).unwrap().reserver, None);
        }
    }
}
