//! Who may connect: accept within a bound, refuse early, and survive a shortage of file
//! descriptors.
//!
//! A refused client sees its connection closed at once, instead of waiting in a queue that is not
//! served. Clients that are connected are not affected.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use mio::{Registry, Token};
use tracing::{debug, warn};

use super::CONNECTIONS;
use super::schedule::Stint;
use super::socket::{Listener, Peer, Stream};
use bsd::types::{SECOND_NS, Time};

/// Connections accepted or refused in one turn of the loop.
const PER_TURN_MAX: usize = 128;
/// The clock is read each time this many have been handled.
const LOOK_AFTER: usize = 8;
/// How long the listeners rest when the system cannot give a connection at all.
const REST_NS: i64 = SECOND_NS / 10;
/// At most one warning about refused connections in this time.
const WARNING_INTERVAL_NS: i64 = 10 * SECOND_NS;

/// The tokens of the listeners are the largest ones, counted down from here.
const FIRST_TOKEN: usize = usize::MAX - 2;

/// The listeners and the bound on connections.
#[derive(Debug)]
pub(super) struct Acceptor {
    listeners: Vec<Listening>,
    connections_max: usize,
    /// A descriptor to give up when none is left, so that a connection can be accepted and refused.
    spare: Option<OwnedFd>,
    resting_until: Option<Time>,
    refusals: Refusals,
    /// The listener that is checked first in the next turn, so that many connections at one
    /// listener do not keep another waiting.
    first: usize,
    /// Connections that are accepted in a turn.
    per_turn_max: usize,
}

#[derive(Debug)]
struct Listening {
    listener: Listener,
    /// Connections may be waiting; the next event comes only after `accept` would have blocked.
    ready: bool,
}

/// The result of one look at a listener.
enum Outcome {
    Accepted(Stream, Peer),
    Refused,
    NobodyWaits,
    /// The system lacks a resource; try again later.
    Shortage(io::Error),
}

impl Acceptor {
    /// Watch the listeners, and admit `connections_max` clients at a time.
    pub(super) fn new(
        listeners: Vec<Listener>,
        connections_max: usize,
        registry: &Registry,
    ) -> io::Result<Acceptor> {
        let mut listeners: Vec<_> = listeners
            .into_iter()
            .map(|listener| Listening {
                listener,
                ready: true,
            })
            .collect();
        for (index, listening) in listeners.iter_mut().enumerate() {
            listening
                .listener
                .register(registry, Token(FIRST_TOKEN - index))?;
        }
        let spare = spare_descriptor();
        let refusals = Refusals::default();
        Ok(Acceptor {
            listeners,
            connections_max,
            spare,
            resting_until: None,
            refusals,
            first: 0,
            per_turn_max: PER_TURN_MAX,
        })
    }

    /// Record an event; false when the token is not that of a listener.
    pub(super) fn on_event(&mut self, token: Token) -> bool {
        let index = FIRST_TOKEN.checked_sub(token.0);
        let listening = index.and_then(|index| self.listeners.get_mut(index));
        listening.is_some_and(|listening| {
            listening.ready = true;
            true
        })
    }

    /// When to look again without an event: at once when more may be waiting, or after a rest.
    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        let ready = self.listeners.iter().any(|listening| listening.ready);
        ready.then(|| self.resting_until.unwrap_or(now))
    }

    /// Pass the waiting connections to `admit`; `open` connections exist already.
    pub(super) fn accept(
        &mut self,
        mut open: usize,
        clock: impl Fn() -> Time,
        mut admit: impl FnMut(Stream, Peer, &Listener),
    ) {
        if !self.listeners.iter().any(|listening| listening.ready) {
            return;
        }
        let now = clock();
        if self.resting_until.is_some_and(|until| now < until) {
            return;
        }
        self.resting_until = None;
        let mut budget = self.per_turn_max;
        let mut stint = Stint::new(LOOK_AFTER);
        let count = self.listeners.len();
        let first = self.first;
        self.first = (first + 1) % count;
        for index in (first..count).chain(0..first) {
            while budget > 0 && self.listeners[index].ready {
                budget -= 1;
                match self.look(index, open) {
                    Outcome::Accepted(stream, peer) => {
                        open += 1;
                        admit(stream, peer, &self.listeners[index].listener);
                    }
                    Outcome::Refused => self.refusals.count(open, now),
                    Outcome::NobodyWaits => self.listeners[index].ready = false,
                    Outcome::Shortage(error) => return self.rest(&error, now),
                }
                if stint.is_up(1, &clock) {
                    return;
                }
            }
        }
    }

    fn look(&mut self, index: usize, open: usize) -> Outcome {
        match self.listeners[index].listener.accept() {
            Ok(_) if open >= self.connections_max => Outcome::Refused,
            Ok((stream, peer)) => Outcome::Accepted(stream, peer),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Outcome::NobodyWaits,
            Err(error) if is_of_one_connection(&error) => Outcome::Refused,
            Err(error) if is_out_of_descriptors(&error) => self.refuse_with_spare(index, error),
            Err(error) => Outcome::Shortage(error),
        }
    }

    /// Without a free descriptor a connection cannot even be closed: it would stay at the head of
    /// the queue and wake the loop again and again.
    fn refuse_with_spare(&mut self, index: usize, error: io::Error) -> Outcome {
        if self.spare.take().is_none() {
            self.spare = spare_descriptor();
            return Outcome::Shortage(error);
        }
        let accepted = self.listeners[index].listener.accept();
        let outcome = match &accepted {
            Ok(_) => Outcome::Refused,
            // The kernel looks for a free descriptor first, and then for a connection.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Outcome::NobodyWaits,
            Err(_) => Outcome::Shortage(error),
        };
        drop(accepted);
        self.spare = spare_descriptor();
        outcome
    }

    /// Ignore all listeners for a while.
    pub(super) fn rest(&mut self, error: &io::Error, now: Time) {
        if self.refusals.may_warn(now) {
            warn!("cannot accept connections for now: {error}");
        }
        self.resting_until = Some(Time(now.0.saturating_add(REST_NS)));
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}

/// Any descriptor works: its only purpose is to be closed.
#[allow(clippy::disallowed_methods)] // no file of the log
fn spare_descriptor() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Refused connections, reported from time to time.
#[derive(Debug, Default)]
struct Refusals {
    count: u64,
    last_warning: Option<Time>,
}

impl Refusals {
    fn count(&mut self, open: usize, now: Time) {
        self.count += 1;
        debug!(target: CONNECTIONS, open, "connection refused");
        if self.may_warn(now) {
            warn!(
                "connections refused: {} so far, {open} are open",
                self.count
            );
        }
    }

    fn may_warn(&mut self, now: Time) -> bool {
        let due = self
            .last_warning
            .is_none_or(|at| now.since(at) >= WARNING_INTERVAL_NS);
        if due {
            self.last_warning = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{SocketAddr, TcpStream};

    use super::*;
    use crate::socket::{Address, Bound, Port};
    use bsd::types::SECOND_NS;

    const NOW: Time = Time(0);
    /// As many connections wait in any system.
    const FEW: usize = 8;

    fn acceptor(connections_max: usize) -> (Acceptor, SocketAddr, mio::Poll) {
        let poll = mio::Poll::new().unwrap();
        let address = Address::parse("127.0.0.1:0", &Port::Number(0)).unwrap();
        let listener = Bound::bind(&address, None).unwrap().listen().unwrap();
        let address = listener.name().parse().unwrap();
        let acceptor = Acceptor::new(vec![listener], connections_max, poll.registry()).unwrap();
        (acceptor, address, poll)
    }

    /// Accept until no connection waits.
    fn accept_all(acceptor: &mut Acceptor, open: usize) -> Vec<Stream> {
        let mut streams = Vec::new();
        while acceptor.next_deadline(NOW).is_some() {
            acceptor.accept(
                open + streams.len(),
                || NOW,
                |stream, _, _| streams.push(stream),
            );
        }
        streams
    }

    #[test]
    fn a_connection_past_the_bound_is_closed_at_once() {
        let (mut acceptor, address, _poll) = acceptor(2);
        let mut clients: Vec<_> = (0..3)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let streams = accept_all(&mut acceptor, 0);
        assert_eq!(streams.len(), 2);
        assert_eq!(
            clients[2].read(&mut [0]).unwrap(),
            0,
            "the third one is told"
        );
        clients[0].set_nonblocking(true).unwrap();
        let waiting = clients[0].read(&mut [0]).unwrap_err();
        assert_eq!(
            waiting.kind(),
            io::ErrorKind::WouldBlock,
            "the first one is not"
        );
    }

    #[test]
    fn room_that_comes_free_is_given_to_the_next() {
        let (mut acceptor, address, _poll) = acceptor(1);
        let _first = TcpStream::connect(address).unwrap();
        assert_eq!(accept_all(&mut acceptor, 1).len(), 0);
        let _second = TcpStream::connect(address).unwrap();
        assert!(acceptor.on_event(Token(FIRST_TOKEN)));
        assert_eq!(accept_all(&mut acceptor, 0).len(), 1);
    }

    #[test]
    fn one_turn_accepts_no_more_than_its_share() {
        let (mut acceptor, address, _poll) = acceptor(1000);
        acceptor.per_turn_max = FEW;
        let _clients: Vec<_> = (0..=FEW)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut count = 0;
        acceptor.accept(0, || NOW, |_, _, _| count += 1);
        assert_eq!(count, FEW);
        assert_eq!(
            acceptor.next_deadline(NOW),
            Some(NOW),
            "the rest must not wait for an event"
        );
    }

    #[test]
    fn f22_accepting_ends_when_its_time_is_up() {
        let (mut acceptor, address, _poll) = acceptor(1000);
        let _clients: Vec<_> = (0..4 * LOOK_AFTER)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        // Each reading of the clock finds that this much time has passed.
        let time = std::cell::Cell::new(0);
        let clock = || Time(time.replace(time.get() + SECOND_NS));
        let mut count = 0;
        acceptor.accept(0, clock, |_, _, _| count += 1);
        assert_eq!(count, 2 * LOOK_AFTER);
        assert!(acceptor.next_deadline(NOW).is_some());
    }

    #[test]
    fn a_flood_at_one_listener_keeps_no_other_waiting() {
        let poll = mio::Poll::new().unwrap();
        let listen = || {
            let address = Address::parse("127.0.0.1:0", &Port::Number(0)).unwrap();
            Bound::bind(&address, None).unwrap().listen().unwrap()
        };
        let listeners = vec![listen(), listen()];
        let addresses: Vec<SocketAddr> = listeners
            .iter()
            .map(|listener| listener.name().parse().unwrap())
            .collect();
        let mut acceptor = Acceptor::new(listeners, 1000, poll.registry()).unwrap();
        acceptor.per_turn_max = FEW;
        let flood = (0..2 * FEW).map(|_| TcpStream::connect(addresses[0]).unwrap());
        let _flood: Vec<_> = flood.collect();
        let other = TcpStream::connect(addresses[1]).unwrap();
        let mut peers = Vec::new();
        for _ in 0..2 {
            acceptor.accept(0, || NOW, |_, peer, _| peers.push(peer.to_string()));
        }
        let other = other.local_addr().unwrap().to_string();
        assert!(peers.contains(&other), "{} others", peers.len());
    }

    #[test]
    fn a_shortage_rests_the_listeners_for_a_while() {
        let (mut acceptor, address, _poll) = acceptor(10);
        let _client = TcpStream::connect(address).unwrap();
        acceptor.rest(&io::Error::other("out of memory"), NOW);
        let until = acceptor.next_deadline(NOW).unwrap();
        assert_eq!(until, Time(REST_NS));
        let mut count = 0;
        acceptor.accept(0, || NOW, |_, _, _| count += 1);
        assert_eq!(count, 0);
        acceptor.accept(0, || until, |_, _, _| count += 1);
        assert_eq!(count, 1);
    }

    #[test]
    fn refusals_are_told_once_in_a_while() {
        let mut refusals = Refusals::default();
        assert!(refusals.may_warn(NOW));
        assert!(!refusals.may_warn(Time(WARNING_INTERVAL_NS - 1)));
        assert!(refusals.may_warn(Time(WARNING_INTERVAL_NS)));
    }

    #[test]
    fn tokens_of_others_are_passed_on() {
        let (mut acceptor, _, _poll) = acceptor(1);
        for token in [Token(0), Token(FIRST_TOKEN - 1), Token(FIRST_TOKEN + 1)] {
            assert!(!acceptor.on_event(token), "{token:?}");
        }
    }
}
