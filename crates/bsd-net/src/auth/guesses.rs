//! Wrong tokens, over the protocol and over HTTP: how long the answer to one takes, and when the log
//! tells of them. One for both, so that an address which has tried here has tried there.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::socket::Peer;
use bsd::types::{SECOND_NS, Time};

/// The first wrong token of an address is answered after this time, and each one that follows after
/// twice as long, up to the last time.
const FIRST_NS: i64 = SECOND_NS / 10;
const LAST_NS: i64 = 8 * SECOND_NS;
/// An address that has sent none for this long begins again.
const FORGIVEN_NS: i64 = 60 * SECOND_NS;
/// Addresses that are remembered; all others are taken for one.
const ADDRESSES_MAX: usize = 1024;

/// At most one warning about wrong tokens in this time.
const WARNING_INTERVAL_NS: i64 = 10 * SECOND_NS;

/// Who has shown wrong tokens. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct Guesses(Arc<Mutex<Slow>>);

impl Guesses {
    /// A wrong token has come from this address: when it is to be answered.
    #[must_use]
    pub fn note(&self, address: SocketAddr, now: Time) -> Time {
        self.note_of(Peer::at(address), now)
    }

    pub(crate) fn note_of(&self, peer: Peer, now: Time) -> Time {
        let mut slow = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slow.count += 1;
        slow.warn(peer, now);
        slow.failed(peer, now)
    }
}

/// Wrong tokens of an address.
#[derive(Debug, Clone, Copy)]
struct Record {
    failures: u32,
    last: Time,
}

/// The addresses.
#[derive(Debug, Default)]
struct Slow {
    records: HashMap<Option<IpAddr>, Record>,
    count: u64,
    last_warning: Option<Time>,
}

impl Slow {
    /// A wrong token came from there: when it is to be answered.
    fn failed(&mut self, peer: Peer, now: Time) -> Time {
        let key = self.key(peer, now);
        let record = self.records.entry(key).or_insert(Record {
            failures: 0,
            last: now,
        });
        if now.since(record.last) >= FORGIVEN_NS {
            record.failures = 0;
        }
        record.last = now;
        let delay = FIRST_NS << record.failures.min(30);
        record.failures = record.failures.saturating_add(1);
        Time(now.0.saturating_add(delay.min(LAST_NS)))
    }

    fn warn(&mut self, peer: Peer, now: Time) {
        let is_due = |at| now.since(at) >= WARNING_INTERVAL_NS;
        if self.last_warning.is_none_or(is_due) {
            self.last_warning = Some(now);
            tracing::warn!(
                "wrong tokens: {} so far; the last one, of {peer}",
                self.count
            );
        }
    }

    /// The place that is remembered; when there are too many, all others share one.
    fn key(&mut self, peer: Peer, now: Time) -> Option<IpAddr> {
        let key = peer.place();
        if self.records.len() >= ADDRESSES_MAX && !self.records.contains_key(&key) {
            self.records
                .retain(|_, record| now.since(record.last) < FORGIVEN_NS);
        }
        let is_known = self.records.contains_key(&key);
        (is_known || self.records.len() < ADDRESSES_MAX)
            .then_some(key)
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        Peer::at(text.parse().unwrap())
    }

    #[test]
    fn each_wrong_token_of_an_address_is_answered_later_than_the_one_before() {
        let mut slow = Slow::default();
        let mut delay = |text: &str, at: i64| slow.failed(peer(text), Time(at)).0 - at;
        let tenths: Vec<_> = (0..9).map(|_| delay("10.0.0.1:1", 0) / FIRST_NS).collect();
        assert_eq!(tenths, [1, 2, 4, 8, 16, 32, 64, 80, 80]);
        assert_eq!(delay("10.0.0.2:1", 0), FIRST_NS, "another address");
        assert_eq!(delay("10.0.0.1:2", FORGIVEN_NS), FIRST_NS, "after a while");
        assert_eq!(delay("[2001:db8::1]:1", 0), FIRST_NS);
        assert_eq!(delay("[2001:db8::2]:1", 0), 2 * FIRST_NS, "one network");
        assert_eq!(delay("[::ffff:10.0.0.2]:1", 0), 2 * FIRST_NS, "the same");
    }

    #[test]
    fn no_more_than_so_many_addresses_are_remembered() {
        let mut slow = Slow::default();
        for number in 0..10_000_u32 {
            let address = IpAddr::from(number.to_be_bytes());
            slow.failed(Peer::at((address, 1).into()), Time(0));
        }
        assert_eq!(slow.records.len(), ADDRESSES_MAX + 1);
        slow.failed(peer("10.0.0.1:1"), Time(FORGIVEN_NS));
        assert_eq!(slow.records.len(), 1, "those who have stopped make room");
    }
}
