//! The clients: what each one uses, watches, has reserved, and waits for. All of it is volatile.
//!
//! Each client's reservations are ordered by deadline, and the clients are ordered by their next
//! event; so timers cost nothing per job. A waiting client is in the queue of every tube that it
//! watches, with the ticket that it drew when the wait began: the longest wait is served first, in
//! whichever tube a job becomes ready. During a wait the watch list does not change, and no job
//! that the client could have got goes to a client that came later.
//!
//! That holds for clients that watch a few tubes. A client that watches more than [`WIDE_LEN`]
//! tubes is *wide*: it is in no tube's queue, and `wide` finds its job.
//!
//! A client that disconnects with many reservations, or many tubes on its watch list, becomes a
//! ghost, invisible to others, until the timers have released its jobs and removed the tubes from
//! the list, a few at a time.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::Queue;
use super::job::{DueKey, Job};
use super::order::{BATCH_LEN, Order};
use super::slab::Handle;
use super::tube::Tube;
use super::wide::{Searched, Wide};
use crate::types::{ClientId, JobId, JobState, SECOND_NS, Time};

/// In the last second of a reservation its client does not wait (`protocol.txt`, `DEADLINE_SOON`).
const SAFETY_MARGIN_NS: i64 = SECOND_NS;

/// A watch list of at most this many tubes is removed at once.
const SHORT_LEN: usize = 8;

/// A client.
pub(super) struct Client {
    pub(super) used: Handle<Tube>,
    pub(super) watched: Vec<Handle<Tube>>,
    /// Additional state, if it watches many tubes.
    pub(super) wide: Option<Box<Wide>>,
    pub(super) reserved: Order<DueKey>,
    pub(super) wait: Option<Wait>,
    is_producer: bool,
    is_worker: bool,
    /// It has disconnected.
    is_ghost: bool,
    /// Its entry in the order of clients by next event.
    timer: Option<(Time, Handle<Client>)>,
}

/// A reserve command without an answer.
pub(super) struct Wait {
    pub(super) ticket: u64,
    until: Option<Time>,
    /// How far the search through the jobs that were there at its start has come.
    pub(super) searched: Searched,
}

/// Why a wait ended without a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// A job that the client has reserved is in its last second.
    DeadlineSoon,
    /// The time that the client wanted to wait is over.
    TimedOut,
}

impl Client {
    /// The index of a tube on the watch list.
    pub(super) fn watched_at(&self, tube: Handle<Tube>) -> Option<usize> {
        match &self.wide {
            Some(wide) => wide.places.get(&tube).map(|at| *at as usize),
            None => self.watched.iter().position(|other| *other == tube),
        }
    }

    /// When the last second of its first reservation begins.
    fn margin_begins(&self) -> Option<Time> {
        let (deadline, _) = self.reserved.first()?;
        Some(Time(deadline.0.saturating_sub(SAFETY_MARGIN_NS)))
    }

    /// The time of the next timed event. A reservation ends *after* its deadline.
    fn due(&self) -> Option<Time> {
        match &self.wait {
            Some(wait) if wait.searched != Searched::All => None,
            Some(wait) => self.margin_begins().into_iter().chain(wait.until).min(),
            None => self
                .reserved
                .first()
                .map(|(deadline, _)| Time(deadline.0.saturating_add(1))),
        }
    }
}

/// Sessions.
impl Queue {
    /// A new client; it uses and watches `default`.
    ///
    /// # Panics
    /// Before [`Queue::finish_replay`].
    pub fn connect(&mut self) -> ClientId {
        assert!(
            !self.is_replaying,
            "a client connects before the log has been replayed"
        );
        let tube = self.default_tube;
        let client = self.clients.insert(Client {
            used: tube,
            watched: vec![tube],
            wide: None,
            reserved: Order::new(),
            wait: None,
            is_producer: false,
            is_worker: false,
            is_ghost: false,
            timer: None,
        });
        self.tubes[tube].using += 1;
        self.tubes[tube].watching += 1;
        self.watches += 1;
        self.connections += 1;
        self.total_connections += 1;
        ClientId(client.index())
    }

    /// The client is gone. Its reservations end in the order of their deadlines, and then its watch
    /// list is removed: at most `budget` entries of both together now, or all if there are only a
    /// few tubes; the rest in [`Queue::tick`]. Until then the jobs count as reserved, but by no
    /// client, and the tubes as watched. Returns the used part of the budget.
    ///
    /// # Panics
    /// If the client does not exist, like all methods that take one.
    pub fn disconnect(&mut self, id: ClientId, now: Time, budget: usize) -> usize {
        self.stop_waiting(id);
        let handle = self.client_handle(id);
        let client = &mut self.clients[handle];
        client.is_ghost = true;
        let used = client.used;
        self.connections -= 1;
        self.producers -= u64::from(client.is_producer);
        self.workers -= u64::from(client.is_worker);
        self.reschedule(handle);
        let is_short = self.clients[handle].watched.len() <= SHORT_LEN;
        let tubes = if is_short { SHORT_LEN } else { budget };
        let left = (0..tubes).take_while(|_| self.leave_first(handle, now));
        let left = left.count() * usize::from(!is_short);
        self.tubes[used].using -= 1;
        self.reindex_or_remove(used, now);
        let ended = (left..budget).take_while(|_| self.release_first(handle, now));
        let ended = ended.count();
        if self.is_laid_to_rest(handle) {
            self.clients.remove(handle);
        } else {
            self.ghosts.push_back(handle);
        }
        left + ended
    }

    /// Removes a ghost without reservations and watches.
    fn is_laid_to_rest(&self, handle: Handle<Client>) -> bool {
        let client = &self.clients[handle];
        client.reserved.is_empty() && client.watched.is_empty()
    }

    /// Removes the first tube from the watch list of a client that is gone; `false` if there is
    /// none. The order is that of beanstalkd, because `list-tubes` shows it.
    fn leave_first(&mut self, handle: Handle<Client>, now: Time) -> bool {
        let client = &mut self.clients[handle];
        if client.watched.is_empty() {
            return false;
        }
        let tube = client.watched.swap_remove(0);
        let is_wide = client.wide.is_some();
        if let Some(wide) = &mut client.wide {
            wide.places.pop_first();
        }
        self.unwatch(tube, is_wide, now);
        true
    }

    /// Notes that one client fewer watches the tube.
    fn unwatch(&mut self, tube: Handle<Tube>, is_wide: bool, now: Time) {
        self.watches -= 1;
        self.tubes[tube].watching -= 1;
        if is_wide {
            self.unwatch_widely(tube);
        }
        self.reindex_or_remove(tube, now);
    }

    /// Counts the client as a producer from now on.
    pub fn set_producer(&mut self, id: ClientId) {
        let client = self.client_handle(id);
        let first = !std::mem::replace(&mut self.clients[client].is_producer, true);
        self.producers += u64::from(first);
    }

    /// Counts the client as a worker from now on.
    pub fn set_worker(&mut self, id: ClientId) {
        let client = self.client_handle(id);
        let first = !std::mem::replace(&mut self.clients[client].is_worker, true);
        self.workers += u64::from(first);
    }

    /// Lets the client use this tube, which is created if necessary.
    pub fn use_tube(&mut self, id: ClientId, name: &str, now: Time) {
        let client = self.client_handle(id);
        let tube = self.tubes.find_or_create(name);
        self.tubes[tube].using += 1;
        let before = std::mem::replace(&mut self.clients[client].used, tube);
        self.tubes[before].using -= 1;
        self.reindex_or_remove(before, now);
    }

    /// The name of the tube that the client uses.
    #[must_use]
    pub fn used_tube(&self, id: ClientId) -> &Arc<str> {
        &self.tubes[self.used(id)].name
    }

    /// Adds a tube to the client's watch list, and creates it if necessary. Returns the length of
    /// the list.
    ///
    /// # Panics
    /// If the client is waiting: it runs no commands then.
    pub fn watch(&mut self, id: ClientId, name: &str) -> usize {
        let client = self.idle_client(id);
        let tube = self.tubes.find_or_create(name);
        let at = self.clients[client].watched.len();
        let is_new = match &mut self.clients[client].wide {
            Some(wide) => match wide.places.entry(tube) {
                Entry::Vacant(entry) => {
                    entry.insert(at as u32);
                    true
                }
                Entry::Occupied(_) => false,
            },
            None => !self.clients[client].watched.contains(&tube),
        };
        if is_new {
            self.clients[client].watched.push(tube);
            self.watches += 1;
            self.tubes[tube].watching += 1;
            match self.clients[client].wide {
                Some(_) => self.watch_widely(tube),
                None if at >= self.wide_len => self.widen(client),
                None => {}
            }
        }
        self.clients[client].watched.len()
    }

    /// True if the tube is on the client's watch list.
    #[must_use]
    pub fn watches(&self, id: ClientId, name: &str) -> bool {
        let tube = self.tubes.find(name);
        tube.is_some_and(|tube| self.client(id).watched_at(tube).is_some())
    }

    /// Removes a tube from the client's watch list and returns the length of the list; `None` if it
    /// is the only tube on it, which then stays.
    ///
    /// # Panics
    /// If the client is waiting: it runs no commands then.
    pub fn ignore(&mut self, id: ClientId, name: &str, now: Time) -> Option<usize> {
        let handle = self.idle_client(id);
        let tube = self.tubes.find(name);
        if let Some(tube) = tube
            && let Some(index) = self.clients[handle].watched_at(tube)
        {
            let client = &mut self.clients[handle];
            if client.watched.len() == 1 {
                return None;
            }
            client.watched.swap_remove(index);
            let is_wide = client.wide.is_some();
            if let Some(wide) = &mut client.wide {
                wide.places.remove(&tube);
                if let Some(moved) = client.watched.get(index) {
                    wide.places.insert(*moved, index as u32);
                }
            }
            self.unwatch(tube, is_wide, now);
            if is_wide && self.clients[handle].watched.len() <= self.wide_len / 2 {
                self.narrow(handle);
            }
        }
        Some(self.clients[handle].watched.len())
    }

    /// The names on the client's watch list, in the order of `list-tubes-watched`.
    pub fn watched(&self, id: ClientId) -> impl ExactSizeIterator<Item = &str> {
        self.client(id)
            .watched
            .iter()
            .map(|tube| &*self.tubes[*tube].name)
    }
}

/// Reservations.
impl Queue {
    /// True if a job that the client has reserved is in its last second, or past it.
    #[must_use]
    pub fn deadline_soon(&self, id: ClientId, now: Time) -> bool {
        self.client(id)
            .margin_begins()
            .is_some_and(|begin| begin <= now)
    }

    /// Gives a ready job to a client until `now` plus its time to run, and ends the client's wait.
    /// This makes the job dirty.
    ///
    /// # Panics
    /// If the job does not exist or is not ready: it would be handed out twice.
    pub fn reserve(&mut self, id: ClientId, job: JobId, now: Time) {
        self.stop_waiting(id);
        let client = self.client_handle(id);
        let Some(job) = self.jobs.find(job) else {
            panic!("job {job}, to be reserved, is gone")
        };
        assert_eq!(
            self.jobs[job].state,
            JobState::Ready,
            "a job to be reserved is ready"
        );
        self.detach(job);
        self.warm_up(self.jobs[job].tube);
        let deadline = now.plus_seconds(self.jobs[job].ttr);
        let due = self.jobs[job].put_deadline();
        let extra = self.jobs.extra_mut(job);
        if extra.counters.reserves == 0 {
            self.waits.note(now.since(due));
        }
        extra.deadline = deadline;
        extra.counters.reserves = extra.counters.reserves.saturating_add(1);
        extra.reserver = Some(client);
        self.jobs.mark_dirty(job);
        self.attach(job, JobState::Reserved);
        self.reindex_or_remove(self.jobs[job].tube, now);
    }

    /// Reads several of the next jobs together, from time to time. They are anywhere in memory, and
    /// if they are many, in no cache; reads that do not depend on each other wait for memory
    /// together.
    fn warm_up(&self, tube: Handle<Tube>) {
        let mut jobs = [None; BATCH_LEN];
        for (job, key) in jobs.iter_mut().zip(self.tubes[tube].ready.next_batch()) {
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
        let reserved = &mut self.clients[client].reserved;
        reserved.remove(&self.jobs.due_key(job));
        self.jobs.extra_mut(job).deadline = now.plus_seconds(self.jobs[job].ttr);
        reserved.insert(self.jobs.due_key(job));
        self.reschedule(client);
        true
    }

    /// True if the client has reserved the job.
    #[must_use]
    pub fn is_reserved_by(&self, id: ClientId, job: JobId) -> bool {
        self.reserved_by(id, job).is_some()
    }

    /// The client gives up a job that it has reserved: the job becomes ready with its priority and
    /// without a record, as if the client had disconnected. `false` if the client has not reserved
    /// it.
    pub fn give_back(&mut self, id: ClientId, job: JobId, now: Time) -> bool {
        let Some(job) = self.reserved_by(id, job) else {
            return false;
        };
        self.return_to_ready(job, now);
        true
    }

    /// True if `delete` finds the job: it exists, and no other client has reserved it.
    #[must_use]
    pub fn deletable(&self, id: ClientId, job: JobId) -> bool {
        let free = |job| self.jobs[job].state != JobState::Reserved;
        self.jobs.find(job).is_some_and(free) || self.is_reserved_by(id, job)
    }

    fn reserved_by(&self, id: ClientId, job: JobId) -> Option<Handle<Job>> {
        let client = self.client_handle(id);
        self.jobs
            .find(job)
            .filter(|job| self.jobs.extra(*job).reserver == Some(client))
    }
}

/// Waiting.
impl Queue {
    /// Lets the client wait for a job, until `until` or forever, after those that already wait.
    ///
    /// # Panics
    /// If it is already waiting.
    pub fn wait(&mut self, id: ClientId, until: Option<Time>) {
        let handle = self.idle_client(id);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let searched = self.searched_already(handle);
        self.clients[handle].wait = Some(Wait {
            ticket,
            until,
            searched,
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
        let Some(wait) = &mut self.clients[handle].wait else {
            return false;
        };
        let is_searching = wait.searched != Searched::All;
        wait.until = Some(now);
        is_searching
    }

    /// True if the client waits for a job.
    #[must_use]
    pub fn is_waiting(&self, id: ClientId) -> bool {
        self.client(id).wait.is_some()
    }

    /// Ends the client's wait; `false` if it was not waiting.
    pub fn stop_waiting(&mut self, id: ClientId) -> bool {
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
        client: Handle<Client>,
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
}

/// Upkeep, and the effects of timers on a client.
impl Queue {
    pub(super) fn client_handle(&self, id: ClientId) -> Handle<Client> {
        let handle = Handle::from_index(id.0);
        let known = |handle: &Handle<Client>| {
            self.clients
                .get(*handle)
                .is_some_and(|client| !client.is_ghost)
        };
        let Some(handle) = handle.filter(known) else {
            panic!("there is no client {}", id.0)
        };
        handle
    }

    /// The client, which must not be waiting.
    fn idle_client(&self, id: ClientId) -> Handle<Client> {
        let handle = self.client_handle(id);
        assert!(self.clients[handle].wait.is_none(), "client {} waits", id.0);
        handle
    }

    pub(super) fn client(&self, id: ClientId) -> &Client {
        &self.clients[self.client_handle(id)]
    }

    pub(super) fn used(&self, id: ClientId) -> Handle<Tube> {
        self.client(id).used
    }

    /// The client that has reserved a job, if it is still connected.
    pub(super) fn reserver(&self, job: Handle<Job>) -> Option<ClientId> {
        let client = self.jobs.extra(job).reserver?;
        (!self.clients[client].is_ghost).then(|| ClientId(client.index()))
    }

    pub(super) fn give_to_reserver(&mut self, job: Handle<Job>) {
        let Some(client) = self.jobs.extra(job).reserver else {
            panic!("a reserved job without a client")
        };
        let key = self.jobs.due_key(job);
        self.clients[client].reserved.insert(key);
        self.reschedule(client);
    }

    pub(super) fn take_from_reserver(&mut self, job: Handle<Job>) {
        let Some(client) = self.jobs.extra_mut(job).reserver.take() else {
            panic!("a reserved job without a client")
        };
        let key = self.jobs.due_key(job);
        self.clients[client].reserved.remove(&key);
        self.reschedule(client);
    }

    /// Call it after every change of a client's reservations or wait: updates the order of clients.
    /// A ghost has no timer.
    pub(super) fn reschedule(&mut self, handle: Handle<Client>) {
        let client = &mut self.clients[handle];
        let due = client.due().filter(|_| !client.is_ghost);
        let due = due.map(|due| (due, handle));
        self.client_timers.replace(&mut client.timer, due);
    }

    /// Releases the first job of the first ghost, removes a tube from its watch list, or removes
    /// the ghost; `false` if there is no ghost.
    pub(super) fn release_from_ghost(&mut self, now: Time) -> bool {
        let Some(ghost) = self.ghosts.front().copied() else {
            return false;
        };
        if !self.release_first(ghost, now) {
            self.leave_first(ghost, now);
        }
        if self.is_laid_to_rest(ghost) {
            self.ghosts.pop_front();
            self.clients.remove(ghost);
        }
        true
    }

    /// Removes up to `count` entries of what disconnected clients have left. Call it before a list
    /// grows: otherwise the lists of clients that come and go would accumulate, because
    /// [`Queue::tick`] removes only a limited number per turn.
    pub fn take_apart(&mut self, count: usize, now: Time) {
        let more = |_: &usize| self.release_from_ghost(now);
        let _ = (0..count).take_while(more).count();
    }

    /// Releases the client's first reserved job; `false` if there is none.
    fn release_first(&mut self, client: Handle<Client>, now: Time) -> bool {
        let first = self.clients[client].reserved.first();
        if let Some((_, job)) = first {
            self.return_to_ready(self.jobs.expect(job), now);
        }
        first.is_some()
    }

    /// Ends the wait of a client whose time is over, or its first reservation. `false` if that has
    /// to wait, because another client must get a job first, perhaps this one.
    pub(super) fn tick_client(
        &mut self,
        handle: Handle<Client>,
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

    fn end_first_reservation(&mut self, client: Handle<Client>, now: Time) {
        let Some((_, job)) = self.clients[client].reserved.first() else {
            return;
        };
        let job = self.jobs.expect(job);
        let counters = &mut self.jobs.extra_mut(job).counters;
        counters.timeouts = counters.timeouts.saturating_add(1);
        self.timeouts += 1;
        self.jobs.mark_dirty(job);
        self.return_to_ready(job, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};
    use super::*;

    #[test]
    fn a_new_client_uses_and_watches_default() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        assert_eq!(&**f.queue.used_tube(client), "default");
        assert_eq!(f.queue.watched(client).collect::<Vec<_>>(), ["default"]);
    }

    #[test]
    fn the_only_tube_watched_cannot_be_ignored_but_others_can() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        assert_eq!(f.queue.ignore(client, "default", at(0)), None);
        assert_eq!(f.queue.ignore(client, "elsewhere", at(0)), Some(1));
        assert!(!f.queue.tube_exists("elsewhere"));
        assert_eq!(f.queue.watch(client, "a"), 2);
        assert_eq!(f.queue.watch(client, "a"), 2);
        assert_eq!(f.queue.ignore(client, "default", at(0)), Some(1));
        assert_eq!(f.queue.ignore(client, "a", at(0)), None);
    }

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

    #[test]
    fn a_client_that_left_is_forgotten_and_its_counts_with_it() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        f.queue.set_producer(client);
        f.queue.set_worker(client);
        f.queue.set_worker(client);
        let stats = f.queue.stats();
        assert_eq!(
            (stats.connections, stats.producers, stats.workers),
            (1, 1, 1)
        );
        f.queue.disconnect(client, at(0), 0);
        let stats = f.queue.stats();
        assert_eq!(
            (stats.connections, stats.producers, stats.workers),
            (0, 0, 0)
        );
        assert_eq!(stats.total_connections, 1);
        let default = f.queue.tube_stats("default", at(0)).unwrap();
        assert_eq!((default.using, default.watching), (0, 0));
    }

    #[test]
    fn the_handle_of_a_client_with_reservations_is_not_reused_before_they_end() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(0));
        f.queue.disconnect(client, at(0), 0);
        let other = f.queue.connect();
        assert_ne!(other, client);
        assert_eq!(f.queue.job(job).unwrap().reserver, None);
        assert_eq!(f.queue.stats().jobs.reserved, 1);
        f.tick(at(0));
        assert_eq!(f.queue.stats().jobs.ready, 1);
        assert_eq!(f.queue.connect(), client);
    }
}
