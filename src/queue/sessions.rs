//! Sessions: connected clients, and their used and watched tubes.
//!
//! A client that disconnects with many reservations, or many tubes on its watch list, becomes a
//! ghost, invisible to others, until the timers have released its jobs and removed the tubes from
//! the list, a few at a time.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use smallvec::smallvec;

use super::Queue;
use super::client::Client;
use super::handle::{ClientHandle, Handle, TubeHandle};
use super::order::Order;
use crate::types::{ClientId, Time};

/// Longest watch list that is removed at once, in tubes.
const SHORT_LEN: usize = 8;

/// Requests of clients.
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
            watched: smallvec![tube],
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
    fn is_laid_to_rest(&self, handle: ClientHandle) -> bool {
        let client = &self.clients[handle];
        client.reserved.is_empty() && client.watched.is_empty()
    }

    /// Removes the first tube from the watch list of a client that is gone; `false` if there is
    /// none. The order is that of beanstalkd, because `list-tubes` shows it.
    fn leave_first(&mut self, handle: ClientHandle, now: Time) -> bool {
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
    fn unwatch(&mut self, tube: TubeHandle, is_wide: bool, now: Time) {
        self.watches -= 1;
        self.tubes[tube].watching -= 1;
        if is_wide {
            self.unwatch_widely(tube);
        }
        self.reindex_or_remove(tube, now);
    }

    /// Counts the client as a producer from now on.
    pub(crate) fn set_producer(&mut self, id: ClientId) {
        let client = self.client_handle(id);
        let first = !std::mem::replace(&mut self.clients[client].is_producer, true);
        self.producers += u64::from(first);
    }

    /// Counts the client as a worker from now on.
    pub(crate) fn set_worker(&mut self, id: ClientId) {
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

/// Clients that are gone.
impl Queue {
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
    pub(crate) fn take_apart(&mut self, count: usize, now: Time) {
        let more = |_: &usize| self.release_from_ghost(now);
        let _ = (0..count).take_while(more).count();
    }
}

/// Queries of the other files about clients.
impl Queue {
    pub(super) fn client_handle(&self, id: ClientId) -> ClientHandle {
        let handle = Handle::from_index(id.0);
        let known = |handle: &ClientHandle| {
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
    pub(super) fn idle_client(&self, id: ClientId) -> ClientHandle {
        let handle = self.client_handle(id);
        assert!(self.clients[handle].wait.is_none(), "client {} waits", id.0);
        handle
    }

    pub(super) fn client(&self, id: ClientId) -> &Client {
        &self.clients[self.client_handle(id)]
    }

    pub(super) fn used(&self, id: ClientId) -> TubeHandle {
        self.client(id).used
    }

    /// Call it after every change of a client's reservations or wait: updates the order of clients.
    /// A ghost has no timer.
    pub(super) fn reschedule(&mut self, handle: ClientHandle) {
        let client = &mut self.clients[handle];
        let due = client.due().filter(|_| !client.is_ghost);
        let due = due.map(|due| (due, handle));
        self.client_timers.replace(&mut client.timer, due);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};

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
