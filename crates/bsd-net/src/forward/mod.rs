//! A node that is not the leader passes its clients on to the leader, byte for byte.
//!
//! A client comes through the layers of its listener here (PROXY header, TLS): what lies between
//! this node and the leader is another connection, which comes through those of a listener there.
//! Until there is such a link, the client waits, unread. Tokens are the leader's business: `auth` is a
//! command like others.
//!
//! ```text
//!            layers        leader known         connected
//! Entering ─────────▶ Waiting ─────────▶ Dialing ─────────▶ Joined
//!                        ▲                  │ refused, 5 s      │ another leader, either end
//!                        └──────────────────┘                   ▼ gone
//! ```
//!
//! Invariants:
//! * A byte of a client that was read under one leader never reaches another: when the leader
//!   changes, all pairs that are joined are closed. Nothing has been read from the others, so they
//!   wait for the next leader, [`JOIN_NS`] in all.
//! * No pair holds memory for bytes unless a side does not take them; see `pair`. All together hold
//!   at most `held_max`, more or less by one pair: beyond it, the pairs whose bytes have not moved
//!   for the longest time are closed.
//! * A turn's work is bounded, and pairs that move little are served before those that move much.
//! * A client that another node has passed on is not passed on again, and none is passed on to
//!   this node itself. Where the leader takes PROXY headers they say who passes on; without
//!   them, only a connection that this node itself has made is known.

mod pair;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use mio::event::Event;
use mio::{Registry, Token};
use tracing::{debug, warn};

use self::pair::{End, Moved, Pair, Stage};
use super::bounds::{Bounds, StalledClients};
use super::clients::{Accepted, admit};
use super::connection::slot;
use super::gate::{ENTRY_NS, Gate};
use super::layers::Layers;
use super::peers::PeerTls;
use super::schedule::{Room, Schedule};
use super::socket::{Entry, Peer, Probing, Stream};
use super::{CONNECTIONS, Server};
use bsd::UsageError;
use bsd::types::{ClientId, SECOND_NS, Time};

/// How long a link may take to be made.
const DIAL_NS: i64 = 5 * SECOND_NS;
/// How long a client may wait to be joined with a leader.
const JOIN_NS: i64 = 10 * SECOND_NS;
/// How long a pair may go on of which the leader has ended or the client is broken.
const LINGER_NS: i64 = 10 * SECOND_NS;
/// After a link could not be made, none is begun for this long.
const REST_NS: i64 = SECOND_NS / 4;
/// At most one warning about clients that could not be passed on in this time.
const WARNING_INTERVAL_NS: i64 = 10 * SECOND_NS;

/// Bytes moved in each direction of a pair before the next pair is served.
const SLICE: usize = 64 << 10;
/// The same while more than half of the bound on memory is in use.
const SMALL_SLICE: usize = 2 << 10;
/// Bytes moved in one turn, more or less by one pair, and what serving a pair and a step of a
/// handshake count in addition.
const COST_PER_TURN: usize = 2 << 20;
const SERVE_COST: usize = 8 << 10;
const HANDSHAKE_COST: usize = 256 << 10;
/// A pair that moved as much as this is served after those that move less.
const MUCH: usize = 32 << 10;
/// Links begun, and pairs closed, in one turn.
const DIALS_PER_TURN: usize = 64;
const CLOSES_PER_TURN: usize = 64;
/// Clients given back in one turn.
const RETURNS_PER_TURN: usize = 64;

/// The tokens: two for each pair, from here on and below the last quarter of all. Connections count
/// up from 0, the listeners and the reactor down from the largest.
const FIRST_TOKEN: usize = usize::MAX / 2 + 1;
const LAST_TOKEN: usize = usize::MAX / 4 * 3;

/// Why a connection of this node to itself is refused.
const OWN: &str = "this node has made it, to pass a client on: the address that the leader is \
                   known by leads here";
const FORWARDED: &str = "another node has passed it on, and this one is not the leader";

/// Who leads, as far as this node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leader {
    /// This node: nothing is passed on.
    Ourselves,
    /// Clients wait.
    None,
    /// Another node.
    At(Target),
}

/// Where a leader serves its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// The layers of that listener. With `proxy`, it is told who the client is.
    pub(super) layers: Layers,
    /// Where its peers reach it: its certificate is for that.
    pub(super) host: IpAddr,
}

impl Target {
    /// Read an address as a listener is given: `10.0.0.1:11300`, `proxy+tls:10.0.0.1:11300`, of a node
    /// that is at `peer` for its peers. Names are not looked up: that would keep the loop waiting.
    ///
    /// # Errors
    /// One of them is no address with a port.
    pub(super) fn parse(text: &str, peer: &str) -> Result<Target, UsageError> {
        let parse = |text: &str| {
            text.parse::<SocketAddr>().map_err(|_| {
                let text = text.escape_debug();
                UsageError::new(format_args!(
                    "'{text}' is no address with a port, such as 10.0.0.1:11300"
                ))
            })
        };
        let (layers, rest) = Layers::split(text);
        Ok(Target {
            address: parse(rest)?,
            layers,
            host: parse(peer)?.ip(),
        })
    }

    /// Begin a connection. It is made once the stream says so, and through the layers.
    fn dial(&self, tls: Option<&PeerTls>) -> io::Result<Stream> {
        let session = match (self.layers.tls, tls) {
            (false, _) => None,
            (true, Some(tls)) => Some(tls.pass_on(self.host).map_err(io::Error::other)?),
            (true, None) => {
                return Err(io::Error::other(
                    "it asks for TLS, for which this node has no --cluster-cert",
                ));
            }
        };
        let stream = Stream::dial(self.address, session)?;
        stream.tune(Probing::default());
        Ok(stream)
    }
}

/// How serving a pair ended.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Stays,
    /// It stays, and is served again.
    GoesOn,
    Ends(&'static str),
}

/// The clients that are passed on.
pub(super) struct Forward {
    registry: Registry,
    leader: Leader,
    /// Certificates for links to leaders.
    tls: Option<PeerTls>,
    pairs: Vec<Option<Box<Pair>>>,
    free: Vec<ClientId>,
    count: usize,
    count_max: usize,
    runnable: Schedule,
    /// Pairs that are to be closed, those that are to be given back.
    leaving: VecDeque<ClientId>,
    returning: VecDeque<ClientId>,
    /// Those who wait for a link, the first who came first.
    waiting: StalledClients,
    /// Until then no link is begun.
    resting_until: Option<Time>,
    /// Pairs by when they are to be somewhere else.
    deadlines: StalledClients,
    /// Pairs by when the bytes kept for them last moved.
    stuck: StalledClients,
    held: usize,
    held_max: usize,
    /// The ends of the links, the near one first. The near one alone says nothing: a client of this
    /// machine may have the same port.
    own: HashSet<(SocketAddr, SocketAddr)>,
    failures: u64,
    last_warning: Option<Time>,
}

impl Forward {
    /// Nothing is passed on until [`Forward::leader_is`] says so. A pair takes two of the
    /// connections that the bounds allow; the bytes held for all pairs together are within
    /// `output_max`: there are no other replies meanwhile.
    pub(super) fn new(registry: Registry, bounds: &Bounds) -> Forward {
        Forward {
            registry,
            leader: Leader::Ourselves,
            tls: None,
            pairs: Vec::new(),
            free: Vec::new(),
            count: 0,
            count_max: (bounds.connections_max / 2).min((LAST_TOKEN - FIRST_TOKEN) / 2),
            runnable: Schedule::default(),
            leaving: VecDeque::new(),
            returning: VecDeque::new(),
            waiting: StalledClients::default(),
            resting_until: None,
            deadlines: StalledClients::default(),
            stuck: StalledClients::default(),
            held: 0,
            held_max: bounds.output_max,
            own: HashSet::new(),
            failures: 0,
            last_warning: None,
        }
    }

    /// New links to leaders whose listener asks for TLS use this.
    pub(super) fn set_tls(&mut self, tls: PeerTls) {
        self.tls = Some(tls);
    }

    /// Whether clients that connect now are to be given to [`Forward::admit`].
    pub(super) fn takes_clients(&self) -> bool {
        self.leader != Leader::Ourselves
    }

    /// How many pairs there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// How many connections that is, of those that the server may have.
    pub(super) fn connections(&self) -> usize {
        2 * self.count
    }

    #[cfg(test)]
    /// Bytes of memory held for clients, in addition to a few hundred for each pair.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Someone leads, or no one. If that is new, no byte passes to or from the leader before: the
    /// pairs that are joined are closed in this turn and the next ones. The others wait on; if this
    /// node leads, they are given back ([`Forward::next_returned`]).
    pub(super) fn leader_is(&mut self, leader: Leader, now: Time) {
        if self.leader == leader {
            return;
        }
        self.leader = leader;
        self.resting_until = None;
        for client in std::mem::take(&mut self.returning) {
            self.keep(client, now);
        }
        for client in (0..self.pairs.len() as u32).map(ClientId) {
            let Some(pair) = self.pairs[client.0 as usize].as_deref_mut() else {
                continue;
            };
            match pair.stage {
                Stage::Leaving => continue,
                Stage::Joined => {
                    pair.stage = Stage::Leaving;
                    self.leaving.push_back(client);
                }
                Stage::Entering | Stage::Waiting | Stage::Dialing => {
                    self.hang_up(client, now);
                    if leader == Leader::Ourselves {
                        self.give_back(client);
                    }
                }
            }
        }
    }

    /// [`Forward::admit`], where no one asks about the outcome.
    pub(super) fn take_or_close(
        &mut self,
        gate: &mut Gate,
        arrival: (Stream, Peer, Layers),
        now: Time,
    ) {
        let peer = arrival.1;
        if let Err(error) = self.admit(gate, arrival, now) {
            debug!(target: CONNECTIONS, %peer, "not passed on: {error}");
        }
    }

    /// Take a client that has connected to a listener with these layers.
    ///
    /// # Errors
    /// It may not connect; or there are as many as there may be.
    pub(super) fn admit(
        &mut self,
        gate: &mut Gate,
        (stream, peer, layers): (Stream, Peer, Layers),
        now: Time,
    ) -> io::Result<()> {
        if self.count >= self.count_max {
            return Err(io::Error::other("there are too many connections"));
        }
        if let (Some(from), Some(to)) = (peer.address(), stream.own_address())
            && self.own.contains(&(canonical(from), canonical(to)))
        {
            self.note_failure(&OWN, now);
            return Err(io::Error::other(OWN));
        }
        let mut accepted = Accepted::new(gate, (stream, peer, layers), now)?;
        let client = self.free_slot();
        let token = Token(FIRST_TOKEN + 2 * client.0 as usize);
        if let Err(error) = accepted.stream.register(&self.registry, token) {
            self.free.push(client);
            gate.uncount(peer, accepted.is_counted);
            return Err(error);
        }
        let mut pair = Box::new(Pair::new(accepted));
        debug!(target: CONNECTIONS, client = client.0, %peer, "connected, to be passed on");
        if layers.is_some() {
            self.expect_by(client, &mut pair, now, ENTRY_NS);
        } else {
            self.wait(client, &mut pair, now);
        }
        self.pairs[client.0 as usize] = Some(pair);
        self.count += 1;
        Ok(())
    }

    /// Record an event; false when the token is not of a pair.
    pub(super) fn on_event(&mut self, event: &Event) -> bool {
        let Token(token) = event.token();
        if !(FIRST_TOKEN..LAST_TOKEN).contains(&token) {
            return false;
        }
        let index = (token - FIRST_TOKEN) / 2;
        let Some(pair) = self.pairs.get_mut(index).and_then(Option::as_deref_mut) else {
            return true;
        };
        match ((token - FIRST_TOKEN) % 2, &mut pair.link) {
            (0, _) => pair.client.note(event),
            (_, Some(link)) => link.note(event),
            (_, None) => {}
        }
        if !pair.is_listed {
            pair.is_listed = true;
            self.runnable.come(ClientId(index as u32));
        }
        true
    }

    /// One turn: close, serve, dial, within the bounds of a turn. `buffer` is memory that no one
    /// uses meanwhile; as much as its size is read at a time.
    pub(super) fn turn(&mut self, now: Time, gate: &mut Gate, buffer: &mut [u8]) {
        self.runnable.begin_turn();
        self.close_listed(gate);
        let mut left = COST_PER_TURN;
        while let Some(client) = self.runnable.next(match left {
            0 => Room::None,
            _ => Room::All,
        }) {
            let cost = self.serve(client, now, gate, buffer);
            left = left.saturating_sub(SERVE_COST + cost);
        }
        self.dial_some(now);
        self.expire(now, gate);
        self.make_way(gate);
    }

    /// Whether the next turn has work without an event.
    pub(super) fn has_work(&self) -> bool {
        let may_dial = matches!(self.leader, Leader::At(_)) && self.resting_until.is_none();
        !self.runnable.is_empty()
            || !self.leaving.is_empty()
            || !self.returning.is_empty()
            || (may_dial && self.waiting.len() > 0)
    }

    /// When a turn has work without an event at the latest.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let due = self.deadlines.longest().map(|(at, _)| at);
        let dials = matches!(self.leader, Leader::At(_)) && self.waiting.len() > 0;
        due.into_iter()
            .chain(self.resting_until.filter(|_| dials))
            .min()
    }

    /// A client that waited when this node became the leader; it is not watched any more.
    pub(super) fn next_returned(&mut self) -> Option<Accepted> {
        while let Some(client) = self.returning.pop_front() {
            let Some(mut pair) = self.take(client) else {
                continue;
            };
            self.forget(client, &mut pair);
            let deregistered = pair.client.stream.deregister(&self.registry);
            if deregistered.is_ok() {
                return Some(Accepted {
                    stream: pair.client.stream,
                    peer: pair.peer,
                    left: pair.left,
                    is_counted: pair.is_counted,
                });
            }
        }
        None
    }

    fn serve(&mut self, client: ClientId, now: Time, gate: &mut Gate, buffer: &mut [u8]) -> usize {
        let Some(mut pair) = self.take(client) else {
            return 0;
        };
        pair.is_listed = false;
        let (cost, fate) = match pair.stage {
            Stage::Entering => self.continue_handshake(client, &mut pair, now, gate, buffer),
            Stage::Waiting | Stage::Dialing if pair.client.is_broken => {
                (0, Fate::Ends("the client is gone"))
            }
            Stage::Dialing => self.look_at_link(client, &mut pair, now, buffer),
            Stage::Joined => self.move_bytes(client, &mut pair, now, buffer),
            Stage::Waiting | Stage::Leaving => (0, Fate::Stays),
        };
        self.count_held(client, &mut pair, now);
        match fate {
            Fate::Ends(why) => {
                self.close(client, pair, why, gate);
                return cost;
            }
            Fate::GoesOn => {
                pair.is_listed = true;
                match cost >= MUCH {
                    true => self.runnable.leave_over(client),
                    false => self.runnable.come_again(client),
                }
            }
            Fate::Stays => {}
        }
        self.pairs[client.0 as usize] = Some(pair);
        cost
    }

    /// The next step through the layers of the listener.
    fn continue_handshake(
        &mut self,
        client: ClientId,
        pair: &mut Pair,
        now: Time,
        gate: &mut Gate,
        buffer: &mut [u8],
    ) -> (usize, Fate) {
        let Pair {
            client: end, left, ..
        } = &mut *pair;
        let stepped = end
            .stream
            .come_through(left, end.is_half_closed, buffer)
            .and_then(|entry| match entry {
                Entry::Introduced(said) if said.is_forwarded => Err(io::Error::other(FORWARDED)),
                Entry::Introduced(said) => {
                    if let Some(source) = said.source {
                        pair.is_counted = gate.introduce(&mut pair.peer, source)?;
                    }
                    Ok(SERVE_COST)
                }
                Entry::Shaking | Entry::In => Ok(HANDSHAKE_COST),
            });
        match stepped {
            Ok(cost) if pair.left.is_some() => (cost, Fate::GoesOn),
            Ok(cost) => {
                self.wait(client, pair, now);
                (cost, Fate::Stays)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                pair.client.readable = false;
                (0, Fate::Stays)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (0, Fate::GoesOn),
            Err(error) => {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    gate.note_failure(pair.peer, &error, now);
                }
                (HANDSHAKE_COST, Fate::Ends("it did not come in"))
            }
        }
    }

    /// From now on the client waits for a link, which it is to have in time.
    fn wait(&mut self, client: ClientId, pair: &mut Pair, now: Time) {
        pair.stage = Stage::Waiting;
        pair.joined_by = Time(now.0.saturating_add(JOIN_NS));
        self.expect_by(client, pair, now, JOIN_NS);
        self.waiting
            .replace(client, &mut pair.waiting_since, Some(now));
    }

    /// Begin links for those who wait.
    fn dial_some(&mut self, now: Time) {
        let Leader::At(target) = self.leader else {
            return;
        };
        if self.resting_until.is_some_and(|until| now < until) {
            return;
        }
        self.resting_until = None;
        for _ in 0..DIALS_PER_TURN {
            let Some((_, client)) = self.waiting.longest() else {
                return;
            };
            let Some(mut pair) = self.take(client) else {
                return;
            };
            let dialed = self.dial(client, &mut pair, target, now);
            self.pairs[client.0 as usize] = Some(pair);
            if let Err(error) = dialed {
                self.note_failure(&format_args!("{}: {error}", target.address), now);
                return self.rest(now);
            }
        }
    }

    fn dial(
        &mut self,
        client: ClientId,
        pair: &mut Pair,
        target: Target,
        now: Time,
    ) -> io::Result<()> {
        let mut stream = target.dial(self.tls.as_ref())?;
        let token = Token(FIRST_TOKEN + 2 * client.0 as usize + 1);
        stream.register(&self.registry, token)?;
        let near = stream.own_address();
        pair.link_ends = near.map(|near| (canonical(near), canonical(target.address)));
        self.own.extend(pair.link_ends);
        pair.link = Some(End::new(stream));
        pair.link_left = target.layers;
        pair.stage = Stage::Dialing;
        self.waiting.replace(client, &mut pair.waiting_since, None);
        let by = pair.joined_by.min(Time(now.0.saturating_add(DIAL_NS)));
        self.deadlines.replace(client, &mut pair.due, Some(by));
        Ok(())
    }

    /// Something happened to a link that is being made.
    fn look_at_link(
        &mut self,
        client: ClientId,
        pair: &mut Pair,
        now: Time,
        buffer: &mut [u8],
    ) -> (usize, Fate) {
        let cost = match pair.link_left.tls {
            true => HANDSHAKE_COST,
            false => 0,
        };
        match pair.come_through(buffer) {
            Ok(false) => (cost, Fate::GoesOn),
            Ok(true) => {
                self.deadlines.replace(client, &mut pair.due, None);
                debug!(target: CONNECTIONS, client = client.0, "passed on to {:?}", pair.link_ends);
                (cost, Fate::GoesOn)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, Fate::Stays),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (0, Fate::GoesOn),
            Err(error) => {
                self.fail_dial(client, pair, &error, now);
                (cost, Fate::Stays)
            }
        }
    }

    /// The leader cannot be reached. The client waits on: perhaps there is another one soon.
    fn fail_dial(&mut self, client: ClientId, pair: &mut Pair, why: &dyn fmt::Display, now: Time) {
        if let Leader::At(target) = self.leader {
            self.note_failure(&format_args!("{}: {why}", target.address), now);
        }
        self.drop_link(client, pair, now);
        self.rest(now);
    }

    /// Give up the link that is being made, and wait on.
    fn drop_link(&mut self, client: ClientId, pair: &mut Pair, now: Time) {
        self.forget_link(pair);
        self.count_held(client, pair, now);
        if pair.stage == Stage::Dialing {
            pair.stage = Stage::Waiting;
            let since = Time(pair.joined_by.0.saturating_sub(JOIN_NS));
            self.waiting
                .replace(client, &mut pair.waiting_since, Some(since));
            self.deadlines
                .replace(client, &mut pair.due, Some(pair.joined_by));
        }
    }

    fn hang_up(&mut self, client: ClientId, now: Time) {
        if let Some(mut pair) = self.take(client) {
            self.drop_link(client, &mut pair, now);
            self.pairs[client.0 as usize] = Some(pair);
        }
    }

    fn give_back(&mut self, client: ClientId) {
        if let Some(mut pair) = self.take(client) {
            pair.stage = Stage::Leaving;
            self.waiting.replace(client, &mut pair.waiting_since, None);
            self.deadlines.replace(client, &mut pair.due, None);
            self.returning.push_back(client);
            self.pairs[client.0 as usize] = Some(pair);
        }
    }

    /// One that was to be given back is not, after all.
    fn keep(&mut self, client: ClientId, now: Time) {
        if let Some(mut pair) = self.take(client) {
            if pair.left.is_some() {
                pair.stage = Stage::Entering;
                self.expect_by(client, &mut pair, now, ENTRY_NS);
                // Its event may have come meanwhile.
                pair.is_listed = true;
                self.runnable.come(client);
            } else {
                self.wait(client, &mut pair, now);
            }
            self.pairs[client.0 as usize] = Some(pair);
        }
    }

    fn rest(&mut self, now: Time) {
        self.resting_until = Some(Time(now.0.saturating_add(REST_NS)));
    }

    fn move_bytes(
        &mut self,
        client: ClientId,
        pair: &mut Pair,
        now: Time,
        buffer: &mut [u8],
    ) -> (usize, Fate) {
        let slice = match self.held > self.held_max / 2 {
            true => SMALL_SLICE,
            false => SLICE,
        };
        let Moved {
            cost,
            moved,
            has_more,
            is_over,
        } = pair.flow(buffer, slice);
        if pair.is_ending() && !pair.due.is_some() {
            self.expect_by(client, pair, now, LINGER_NS);
        }
        if moved {
            self.stuck.replace(client, &mut pair.held_since, None);
        }
        let fate = match (is_over, has_more) {
            (true, _) => Fate::Ends("both sides have ended"),
            (false, true) => Fate::GoesOn,
            (false, false) => Fate::Stays,
        };
        (cost, fate)
    }

    /// Update the sum of held bytes with this pair, and its place in the order: if something has
    /// moved it has none.
    fn count_held(&mut self, client: ClientId, pair: &mut Pair, now: Time) {
        let held = pair.held();
        self.held = self.held - pair.counted + held;
        pair.counted = held;
        let since = (held > 0).then(|| pair.held_since.get().unwrap_or(now));
        self.stuck.replace(client, &mut pair.held_since, since);
    }

    /// Close pairs until what is held is within its bound. One alone may exceed it.
    fn make_way(&mut self, gate: &mut Gate) {
        while self.held > self.held_max
            && self.stuck.len() > 1
            && let Some((_, client)) = self.stuck.longest()
            && let Some(pair) = self.take(client)
        {
            self.close(
                client,
                pair,
                "what it does not take took too much memory",
                gate,
            );
        }
    }

    /// Those whose time is up.
    fn expire(&mut self, now: Time, gate: &mut Gate) {
        while let Some((due, client)) = self.deadlines.longest()
            && due <= now
            && let Some(mut pair) = self.take(client)
        {
            match pair.stage {
                Stage::Dialing if now < pair.joined_by => {
                    self.fail_dial(client, &mut pair, &"it does not answer", now);
                    self.pairs[client.0 as usize] = Some(pair);
                }
                Stage::Entering => {
                    self.close(client, pair, "it took too long to come in", gate);
                }
                Stage::Waiting | Stage::Dialing => {
                    if self.leader == Leader::None {
                        self.note_failure(&"no leader is known", now);
                    }
                    self.close(client, pair, "there was no leader in time", gate);
                }
                Stage::Joined | Stage::Leaving => {
                    self.close(client, pair, "it did not take the rest in time", gate);
                }
            }
        }
    }

    fn close_listed(&mut self, gate: &mut Gate) {
        for _ in 0..CLOSES_PER_TURN {
            let Some(client) = self.leaving.pop_front() else {
                return;
            };
            if let Some(pair) = self.take(client) {
                self.close(client, pair, "the leader has changed", gate);
            }
        }
    }

    fn close(&mut self, client: ClientId, mut pair: Box<Pair>, why: &str, gate: &mut Gate) {
        debug!(target: CONNECTIONS, client = client.0, peer = %pair.peer, "closed: {why}");
        self.forget(client, &mut pair);
        gate.uncount(pair.peer, pair.is_counted);
        // Closing the descriptors ends their registrations: nothing else refers to them.
    }

    /// A pair that is not in the table any more.
    fn forget(&mut self, client: ClientId, pair: &mut Pair) {
        self.forget_link(pair);
        self.waiting.replace(client, &mut pair.waiting_since, None);
        self.deadlines.replace(client, &mut pair.due, None);
        self.stuck.replace(client, &mut pair.held_since, None);
        self.held -= std::mem::take(&mut pair.counted);
        self.count -= 1;
        self.free.push(client);
    }

    fn forget_link(&mut self, pair: &mut Pair) {
        pair.link = None;
        if let Some(ends) = pair.link_ends.take() {
            self.own.remove(&ends);
        }
    }

    fn expect_by(&mut self, client: ClientId, pair: &mut Pair, now: Time, within_ns: i64) {
        let by = Time(now.0.saturating_add(within_ns));
        self.deadlines.replace(client, &mut pair.due, Some(by));
    }

    fn take(&mut self, client: ClientId) -> Option<Box<Pair>> {
        self.pairs.get_mut(client.0 as usize)?.take()
    }

    fn free_slot(&mut self) -> ClientId {
        self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            ClientId(self.pairs.len() as u32 - 1)
        })
    }

    /// A client could not be passed on, or a link not be made. There may be many.
    fn note_failure(&mut self, why: &dyn fmt::Display, now: Time) {
        self.failures += 1;
        let is_due = |at| now.since(at) >= WARNING_INTERVAL_NS;
        if self.last_warning.is_none_or(is_due) {
            self.last_warning = Some(now);
            let failures = self.failures;
            warn!("clients cannot be passed on to the leader: {failures} so far; the last: {why}");
        }
    }
}

/// One form for an address of IPv4, however a socket says it.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

impl Server {
    /// The turn of the clients that are passed on. Those that waited when this node became the
    /// leader are served from now on.
    pub(super) fn pass_on(&mut self) {
        let Server {
            forward,
            core,
            connections,
            reactor,
            gate,
            ..
        } = self;
        forward.turn(core.now.mono, gate, &mut self.read_buffer);
        let mut come = Vec::new();
        while come.len() < RETURNS_PER_TURN
            && let Some(accepted) = forward.next_returned()
        {
            let peer = accepted.peer;
            match admit(core, connections, reactor, gate, accepted) {
                Ok(client) => come.push(client),
                Err(error) => debug!(target: CONNECTIONS, %peer, "not admitted: {error}"),
            }
        }
        self.connection_count += come.len();
        for client in come {
            if let Some(connection) = slot(&mut self.connections, client) {
                // Its TLS session may hold bytes for which there is no event.
                connection.readable = true;
                self.queue(client);
            }
        }
    }
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward")
            .field("leader", &self.leader)
            .field("count", &self.count)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}
