//! Bounds on what the server holds for clients, besides jobs. When a bound is exceeded, the client
//! whose data has not moved for the longest time must give way.

use std::collections::BTreeSet;
use std::time::Duration;

use bsd::sys::processes::machine_memory;
use bsd::types::{ClientId, Time};

/// Bounds of what is held for clients. Jobs have bounds of their own in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at a time.
    pub connections_max: usize,
    /// Bytes of replies that clients have not taken, all clients together. Beyond it, the clients
    /// that have taken nothing for the longest time are closed. One reply, and what a turn brings,
    /// may exceed it.
    pub output_max: usize,
    /// Bytes of requests that are incomplete or may not run yet, all clients together. Beyond it,
    /// the bodies that have not grown for the longest time are refused. One body may exceed it.
    pub input_max: usize,
    /// Bytes of requests over HTTP. One body may exceed it.
    pub http_max: usize,
    /// Bytes of watch lists, tubes without jobs, and pauses: a part of the engine's memory.
    pub clients_max: u64,
    /// A client that has asked for nothing for this long, waits for nothing, and has no job reserved
    /// is closed, sooner or a little later; `None`: never.
    pub idle: Option<Duration>,
    /// A client that takes none of its available replies for this long is closed; `None`: never.
    pub idle_output: Option<Duration>,
}

/// The bound on held replies, and the least one on requests, if there is no bound on memory; with one
/// replies have no more either.
const DEFAULT_MAX: u64 = 256 << 20;
/// The smallest bound, however little memory there is.
const LEAST_MAX: u64 = 64 << 10;
/// Replies, requests and watch lists may each take all memory divided by this.
const PART: u64 = 8;
/// Requests over HTTP have this part of what replies have. It is taken from the part for requests.
const HTTP_PART: u64 = 4;
/// If there is no bound on memory, requests may take all memory of the machine divided by this.
const MACHINE_PART: u64 = 4;

impl Bounds {
    /// Bounds within `memory_max` bytes for the whole server, and the part that is left to the
    /// engine.
    #[must_use]
    pub fn within(memory_max: Option<u64>) -> (Bounds, Option<u64>) {
        let part = memory_max.map_or(DEFAULT_MAX, |all| {
            (all / PART).clamp(LEAST_MAX, DEFAULT_MAX)
        });
        // Where it cannot be kept on the disk, a large body is held until all of it has arrived, and
        // never as a reply: only the part for requests grows with the memory without end.
        let incoming = match memory_max {
            Some(all) => all / PART,
            None => machine_memory().unwrap_or_default() / MACHINE_PART,
        };
        let incoming = incoming.max(part);
        let bounds = Bounds {
            connections_max: usize::MAX,
            output_max: part as usize,
            input_max: (incoming - part / HTTP_PART) as usize,
            http_max: (part / HTTP_PART) as usize,
            clients_max: part,
            idle: None,
            idle_output: None,
        };
        (
            bounds,
            memory_max.map(|all| all.saturating_sub(part + incoming)),
        )
    }
}

/// A time, or none, in the place of one: there is one for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Since(Time);

impl Since {
    pub(super) const NEVER: Since = Since(Time(i64::MIN));

    /// The time; `None`: never.
    pub(super) fn get(self) -> Option<Time> {
        self.is_some().then_some(self.0)
    }

    pub(super) fn is_some(self) -> bool {
        self != Since::NEVER
    }
}

impl Default for Since {
    fn default() -> Since {
        Since::NEVER
    }
}

/// Clients for which something is held, ordered by when it last moved.
#[derive(Debug, Default)]
pub(super) struct StalledClients(BTreeSet<(Time, ClientId)>);

impl StalledClients {
    /// Update the order for one client: `entry` is its current place, `since` the new one.
    pub(super) fn replace(&mut self, client: ClientId, entry: &mut Since, since: Option<Time>) {
        let before = entry.get();
        if before == since {
            return;
        }
        *entry = since.map_or(Since::NEVER, Since);
        if let Some(at) = before {
            self.0.remove(&(at, client));
        }
        if let Some(at) = since {
            self.0.insert((at, client));
        }
    }

    /// The client whose data has not moved for the longest time, and since when.
    pub(super) fn longest(&self) -> Option<(Time, ClientId)> {
        self.0.first().copied()
    }

    /// All of them, the longest time first.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (Time, ClientId)> + '_ {
        self.0.iter().copied()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f24_what_is_held_for_clients_has_its_part_of_the_memory() {
        let (bounds, left) = Bounds::within(Some(64 << 20));
        assert_eq!((bounds.output_max, bounds.input_max), (8 << 20, 6 << 20));
        assert_eq!(bounds.http_max, 2 << 20);
        assert_eq!(left, Some(48 << 20));
        let (bounds, left) = Bounds::within(None);
        assert_eq!((bounds.output_max as u64, left), (DEFAULT_MAX, None));
        let (bounds, left) = Bounds::within(Some(1000));
        assert_eq!((bounds.output_max as u64, left), (LEAST_MAX, Some(0)));
    }

    #[test]
    fn g46_requests_may_take_as_much_as_the_memory_allows() {
        let (bounds, left) = Bounds::within(Some(16 << 30));
        assert_eq!(bounds.output_max as u64, DEFAULT_MAX);
        assert_eq!(bounds.input_max as u64, (2 << 30) - DEFAULT_MAX / HTTP_PART);
        assert_eq!(left, Some((14 << 30) - DEFAULT_MAX));
        let (bounds, _) = Bounds::within(None);
        let least = machine_memory().unwrap_or_default() / MACHINE_PART;
        let least = least.max(DEFAULT_MAX) - DEFAULT_MAX / HTTP_PART;
        assert_eq!(bounds.input_max as u64, least);
    }

    #[test]
    fn what_moves_lies_again() {
        let mut stalled = StalledClients::default();
        let mut entries = [Since::NEVER; 2];
        for (client, at) in [(0, 5), (1, 6), (0, 7)] {
            let entry = &mut entries[client as usize];
            stalled.replace(ClientId(client), entry, Some(Time(at)));
        }
        assert_eq!(stalled.longest(), Some((Time(6), ClientId(1))));
        stalled.replace(ClientId(1), &mut entries[1], None);
        assert_eq!(stalled.longest(), Some((Time(7), ClientId(0))));
        assert_eq!(stalled.len(), 1);
    }
}
