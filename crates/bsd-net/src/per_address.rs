//! How many connections each address has, and who has been idle for too long. Both bounds are off
//! unless someone asks for them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::Server;
use super::connection::Ending;
use super::socket::Peer;
use bsd::types::{ClientId, SECOND_NS, Time};

/// Connections that are looked at in one turn for whether they are idle.
const LOOKS_PER_TURN: usize = 256;
/// The time of idleness is divided by this; so late may a connection be closed.
const SWEEPS: i64 = 8;

/// Connections by where they come from.
#[derive(Debug, Default)]
pub(super) struct PerAddress {
    /// Connections of one address at a time; `None`: any number, and no one is counted.
    each_max: Option<u32>,
    counts: HashMap<IpAddr, u32>,
}

impl PerAddress {
    pub(super) fn of_at_most(each_max: Option<u32>) -> PerAddress {
        PerAddress {
            each_max,
            counts: HashMap::new(),
        }
    }

    /// Count one more connection from there; `None`: it has as many as it may. True if it is
    /// counted, and must be given back to [`PerAddress::leave`]: a Unix socket has no bound.
    pub(super) fn come(&mut self, peer: Peer) -> Option<bool> {
        let Some((each_max, place)) = self.each_max.zip(peer.place()) else {
            return Some(false);
        };
        let count = self.counts.entry(place).or_default();
        if *count >= each_max {
            return None;
        }
        *count += 1;
        Some(true)
    }

    /// A connection from there is gone that was counted.
    pub(super) fn leave(&mut self, peer: Peer) {
        if let Some(place) = peer.place()
            && let Some(count) = self.counts.get_mut(&place)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&place);
            }
        }
    }
}

/// Looks through all connections a few times in the time that one may be idle, a few in a turn.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// `None`: for ever.
    idle_max_ns: Option<i64>,
    /// When the next look through all begins.
    next: Time,
    /// The next connection to look at, while one is under way.
    at: Option<u32>,
}

impl Sweep {
    pub(super) fn after(idle_max: Option<Duration>) -> Sweep {
        let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        Sweep {
            idle_max_ns: idle_max.map(ns),
            ..Sweep::default()
        }
    }

    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        self.idle_max_ns?;
        Some(self.at.map_or(self.next, |_| now))
    }

    /// The connections to look at in this turn, and since when one of them may have been idle.
    fn look(&mut self, now: Time, count: usize) -> Option<(std::ops::Range<u32>, Time)> {
        let idle_max_ns = self.idle_max_ns?;
        if self.at.is_none() {
            if now < self.next {
                return None;
            }
            let every = (idle_max_ns / SWEEPS).max(SECOND_NS / SWEEPS);
            self.next = Time(now.0.saturating_add(every));
        }
        let begin = self.at.unwrap_or(0);
        let end = (begin as usize + LOOKS_PER_TURN).min(count) as u32;
        self.at = ((end as usize) < count).then_some(end);
        Some((begin..end, Time(now.0.saturating_sub(idle_max_ns))))
    }
}

impl Server {
    /// Close those who have asked for nothing for too long. Who waits for a job, has reserved one,
    /// or has not taken its replies is not idle.
    pub(super) fn sweep(&mut self) {
        let now = self.core.now.mono;
        let Some((looked_at, since)) = self.sweep.look(now, self.connections.len()) else {
            return;
        };
        for client in looked_at.map(ClientId) {
            if self.is_idle(client, since) {
                self.end(client, Ending::Idle);
            }
        }
    }

    fn is_idle(&self, client: ClientId, since: Time) -> bool {
        let connection = self.connections.get(client.0 as usize);
        let Some(connection) = connection.and_then(Option::as_deref) else {
            return false;
        };
        let outputs = &self.core.outputs;
        let has_reserved = || {
            let view = self.core.engine.queue().client_view(client);
            view.is_some_and(|view| view.first_reserved.is_some())
        };
        connection.served_at <= since
            && !outputs.is_blocked(client)
            && outputs.is_empty(client)
            && !has_reserved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_connections_and_a_socket_of_this_machine_any_number() {
        let mut per_address = PerAddress::of_at_most(Some(2));
        let at = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(per_address.come(at("10.0.0.1:1")), Some(true));
        assert_eq!(per_address.come(at("10.0.0.1:2")), Some(true));
        assert_eq!(per_address.come(at("10.0.0.1:3")), None);
        assert_eq!(per_address.come(at("[::ffff:10.0.0.1]:3")), None);
        assert_eq!(per_address.come(at("10.0.0.2:1")), Some(true));
        per_address.leave(at("10.0.0.1:1"));
        assert_eq!(per_address.come(at("10.0.0.1:3")), Some(true));
        for _ in 0..5 {
            assert_eq!(per_address.come(Peer::Unknown), Some(false));
        }
        let mut all = PerAddress::of_at_most(None);
        assert_eq!(all.come(at("10.0.0.1:1")), Some(false));
        assert!(all.counts.is_empty());
    }

    #[test]
    fn those_who_have_left_take_no_memory() {
        let mut per_address = PerAddress::of_at_most(Some(1));
        for number in 0..1000_u32 {
            let peer = Peer::at((IpAddr::from(number.to_be_bytes()), 1).into());
            assert_eq!(per_address.come(peer), Some(true));
            per_address.leave(peer);
        }
        assert!(per_address.counts.is_empty());
    }

    #[test]
    fn all_are_looked_at_a_few_in_a_turn_and_again_after_a_while() {
        let mut sweep = Sweep::after(Some(Duration::from_secs(80)));
        let now = Time(1000 * SECOND_NS);
        let mut looks = Vec::new();
        while let Some((range, since)) = sweep.look(now, 600) {
            assert_eq!(since, Time(920 * SECOND_NS));
            looks.push(range);
        }
        assert_eq!(looks, [0..256, 256..512, 512..600]);
        assert_eq!(sweep.next_deadline(now), Some(Time(1010 * SECOND_NS)));
        let mut never = Sweep::after(None);
        assert_eq!(
            (never.look(now, 600), never.next_deadline(now)),
            (None, None)
        );
    }
}
