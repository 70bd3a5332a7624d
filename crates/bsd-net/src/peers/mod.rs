//! The sockets of a cluster's nodes, in the server's loop.
//!
//! Each node dials each other one and sends on that connection alone: messages travel one way on it.
//! A snapshot, and a node that asks to be added, get a connection of their own, which is handed over
//! (`blocking`). Anyone who is not of this machine needs a certificate of the cluster's authority (`tls`).
//!
//! Invariants:
//! * Nothing here blocks, waits or reads a clock: the loop says what time it is.
//! * Nothing a peer does takes more than bounded memory and a bounded part of a turn: at most
//!   [`CALLERS_MAX`] incoming connections, 1 MiB read from each peer in a turn, 32 MiB waiting for
//!   each peer, and no reading while more than [`INBOX_SIZE_MAX`] wait to be taken.
//! * Messages may be lost, and those of one connection are never repeated or reordered. Raft sends
//!   again what was lost.
//! * Of each peer at most one connection is heard: the newest.
//!
//! The parts: `channel` (bytes, encrypted or not), `line` (a connection in the loop), `link` (we call),
//! `caller` (we are called), `blocking` (beside the loop), `tls` (certificates).

mod blocking;
mod caller;
mod channel;
mod error;
mod line;
mod link;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use raft::eraftpb::Message;
use tracing::{debug, info, warn};

pub(super) use self::blocking::BlockingLink;
use self::caller::{Caller, Said, Step};
use self::channel::Channel;
pub(super) use self::error::PeerError;
use self::link::{Change, Link};
pub(super) use self::tls::{PeerTls, PeerTlsFiles};
use bsd::random::Random;
use bsd::types::{SECOND_NS, Time};
use bsd_cluster::member::{Members, NodeId};
use bsd_cluster::wire::{Hello, Me};

/// Incoming connections at a time.
pub(super) const CALLERS_MAX: usize = 64;
/// How many tokens [`Peers`] uses, from the first one on: the listener, callers, and links (of members,
/// and to those that call).
pub(super) const TOKENS: usize = 1 + 2 * CALLERS_MAX + bsd_cluster::member::MEMBERS_MAX;
/// Bytes of messages that may wait to be taken, more or less by what one peer sends in a turn.
pub(super) const INBOX_SIZE_MAX: usize = 32 << 20;

/// Until it is known who someone is.
const GREETING_NS: i64 = 5 * SECOND_NS;
/// Bytes read at a time.
const READ_SIZE: usize = 64 << 10;
/// As many bytes of a message under way say that the peer lives: that is 200 kB a second, or the peers do
/// without each other until it has come.
const MOVED_SIZE: usize = 64 << 10;
/// Connections accepted in a turn.
const ACCEPTS_MAX: usize = 16;
/// How long the listener rests when the system cannot give a connection.
const REST_NS: i64 = SECOND_NS / 10;
/// How long a step of a [`BlockingLink`] that has been handed over may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of a message beside its bytes.
const MESSAGE_COST: usize = 512;
/// Memory of a connection that has been handed over.
const TALK_COST: usize = 2 * READ_SIZE;

/// Event for the loop.
#[derive(Debug)]
pub(super) enum Received {
    /// A peer sends this. `from` is the node that said hello; the message says the same.
    Message {
        /// Who sends it.
        from: NodeId,
        /// The message.
        message: Message,
    },
    /// A peer says whether no jobs are taken, as far as it knows.
    Drains {
        /// Who says so.
        from: NodeId,
        /// None are.
        drains: bool,
    },
    /// A message from this peer or to it is under way, and as much of it as [`MOVED_SIZE`] has moved since
    /// the last time: tell raft, which hears nothing else until it has come.
    Moves(NodeId),
    /// The connection to this peer stands.
    Connected(NodeId),
    /// The connection to this peer has fallen, or cannot be made: tell raft that it is unreachable.
    Unreachable(NodeId),
    /// A peer says that we are no member since this entry.
    LeftOut(u64),
    /// Someone brings a snapshot or asks to be added: `hello` says who and which. Every step blocks:
    /// go on with it on another thread.
    Called(Box<Hello>, Box<BlockingLink>),
}

/// How it stands with one peer, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerState {
    /// Which.
    pub node: NodeId,
    /// Where it listens.
    pub peer: String,
    /// Where clients reach it.
    pub client: String,
    /// Where HTTP reaches it, as it has said; empty: it has not.
    pub http: String,
    /// It archives the log while it leads, as it has said; `None`: it has not.
    pub archives: Option<bool>,
    /// Its wall clock is ahead of ours by at least this, or behind if it is negative, as of when we
    /// connected; `None`: not known.
    pub clock_ahead_ns: Option<i64>,
    /// We can send to it.
    pub is_connected: bool,
    /// We hear it.
    pub is_heard: bool,
    /// Bytes that wait for it.
    pub queued: usize,
    /// Messages that were given to a connection.
    pub sent: u64,
    /// Messages that were not.
    pub dropped: u64,
}

/// The peers' connections.
pub(super) struct Peers {
    me: Me,
    tls: Option<PeerTls>,
    registry: Registry,
    waker: Arc<dyn Fn() + Send + Sync>,
    /// The listener's token; those of connections follow.
    first: usize,
    listener: TcpListener,
    may_accept: bool,
    resting_until: Option<Time>,
    links: Vec<Link>,
    callers: Vec<Caller>,
    /// The members, us included, and the entry since which they are these.
    members: Vec<NodeId>,
    changed: u64,
    leads: bool,
    /// The wall clock, as the loop has said it.
    wall_ns: u64,
    drains: bool,
    inbox: VecDeque<(Received, usize)>,
    /// Bytes of messages in it.
    waiting: usize,
    /// Messages for nodes that no one knows.
    dropped: u64,
    refused: u64,
    /// Who takes us for a member of another cluster.
    stranger: Option<Box<Hello>>,
    random: Random,
    buffer: Box<[u8]>,
}

/// Parts of everything else that a connection needs.
struct Setting<'a> {
    me: &'a Me,
    tls: Option<&'a PeerTls>,
    registry: &'a Registry,
    waker: &'a Arc<dyn Fn() + Send + Sync>,
    random: &'a mut Random,
    buffer: &'a mut [u8],
    /// The members, and since which entry.
    members: &'a [NodeId],
    changed: u64,
    leads: bool,
    now: Time,
    /// The wall clock then.
    wall_ns: u64,
    /// No jobs are taken, as far as we know.
    drains: bool,
}

impl Setting<'_> {
    fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    fn may_speak_with(&self, address: SocketAddr) -> Result<(), PeerError> {
        match has_to_be_encrypted(address) && !self.is_encrypted() {
            true => Err(format!("{address} is another machine: peers there need TLS").into()),
            false => Ok(()),
        }
    }

    fn dialed(&self, socket: TcpStream, address: &str) -> Result<Channel, PeerError> {
        let session = self.tls.map(|tls| tls.dial(address)).transpose()?;
        Ok(Channel::new(socket, session))
    }

    fn accepted(&self, socket: TcpStream) -> Result<Channel, PeerError> {
        let session = self.tls.map(PeerTls::answer).transpose()?;
        Ok(Channel::new(socket, session))
    }
}

/// Everything that leaves the machine. An address like `0.0.0.0` is reached from others.
fn has_to_be_encrypted(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// The parts of `Peers` that connections need, apart from the connections.
macro_rules! setting {
    ($peers:ident, $now:expr) => {
        Setting {
            me: &$peers.me,
            tls: $peers.tls.as_ref(),
            registry: &$peers.registry,
            waker: &$peers.waker,
            random: &mut $peers.random,
            buffer: &mut $peers.buffer,
            members: &$peers.members,
            changed: $peers.changed,
            leads: $peers.leads,
            now: $now,
            wall_ns: $peers.wall_ns,
            drains: $peers.drains,
        }
    };
}

impl Peers {
    /// Listen to peers there, and dial no one yet. Tokens from `first` on, [`TOKENS`] of them, are
    /// used in `registry`. `seed` is drawn again for each start of a program: the nonces of
    /// connections come from it. `waker` makes the loop turn, from any thread.
    ///
    /// # Errors
    /// The socket cannot be watched, or it is open to other machines and there is no TLS.
    pub(super) fn new(
        me: Me,
        listener: std::net::TcpListener,
        tls: Option<PeerTls>,
        (registry, first): (Registry, Token),
        waker: Arc<dyn Fn() + Send + Sync>,
        seed: u64,
    ) -> io::Result<Peers> {
        let is_plain = tls.is_none();
        let address = listener.local_addr()?;
        if is_plain && has_to_be_encrypted(address) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{address} is open to other machines: peers there need TLS; give a \
                     certificate, its key and the authority of the cluster"
                ),
            ));
        }
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, first, Interest::READABLE)?;
        Ok(Peers {
            me,
            tls,
            registry,
            waker,
            first: first.0,
            listener,
            may_accept: true,
            resting_until: None,
            links: Vec::new(),
            callers: Vec::new(),
            members: Vec::new(),
            changed: 0,
            leads: false,
            wall_ns: 0,
            drains: false,
            inbox: VecDeque::new(),
            waiting: 0,
            dropped: 0,
            refused: 0,
            stranger: None,
            random: Random::new(seed),
            buffer: vec![0; READ_SIZE].into_boxed_slice(),
        })
    }

    /// Certificates for new connections.
    pub(super) fn tls(&self) -> Option<&PeerTls> {
        self.tls.as_ref()
    }

    /// New connections use these certificates; those that stand keep theirs.
    pub(super) fn set_tls(&mut self, tls: PeerTls) {
        self.tls = self.tls.is_some().then_some(tls);
    }

    /// We belong to this cluster from now on. The connections that stand were made before, and are closed.
    pub(super) fn set_me(&mut self, me: Me, now: Time) {
        if self.me != me {
            self.me = me;
            for caller in self.callers.drain(..) {
                drop(caller.release(&self.registry));
            }
            for link in &mut self.links {
                link.close(&self.registry);
                link.hurry(now);
            }
            self.forget_guests();
        }
    }

    /// These are the members since this entry: dial each of them but us, and no others except those who
    /// call us. An address that a peer has said itself counts until the membership has a new one. What
    /// waits for one that is no member any more is dropped: flush before.
    pub(super) fn set_members(&mut self, changed: u64, members: &Members, now: Time) {
        self.changed = changed;
        self.members = members.list.iter().map(|member| member.id).collect();
        // Who was one and is none any more is not answered, though it may call.
        let is_gone = |link: &Link| link.listed.is_some() && members.get(link.id).is_none();
        for link in self.links.iter_mut().filter(|link| is_gone(link)) {
            link.close(&self.registry);
        }
        self.links.retain(|link| !is_gone(link));
        for member in members
            .list
            .iter()
            .filter(|member| member.id != self.me.node)
        {
            let (peer, client) = (&member.peer, &member.client);
            let known = self.links.iter_mut().find(|link| link.id == member.id);
            let link = match known {
                Some(link) => link,
                None => {
                    let link = Link::new(member.id, peer.clone(), client.clone(), now);
                    self.links.push(link);
                    let Some(link) = self.links.last_mut() else {
                        continue;
                    };
                    link
                }
            };
            let (old_peer, old_client) = link.listed.take().unwrap_or_default();
            if *peer != old_peer {
                link.move_to(peer, now, &self.registry);
            }
            if *client != old_client {
                client.clone_into(&mut link.client);
            }
            link.listed = Some((peer.clone(), client.clone()));
        }
        self.judge_again();
    }

    /// Whether we lead: a leader tells also who knows of no membership that it is none.
    pub(super) fn set_leads(&mut self, leads: bool) {
        let begins = leads && !self.leads;
        self.leads = leads;
        if begins {
            self.judge_again();
        }
    }

    /// Set the time of the wall clock in this turn: peers are told, and theirs are compared.
    pub(super) fn set_wall(&mut self, wall_ns: u64) {
        self.wall_ns = wall_ns;
    }

    /// Whether no jobs are taken, as far as we know: peers hear of it with the next flush.
    pub(super) fn set_drains(&mut self, drains: bool) {
        self.drains = drains;
    }

    /// Who is no member, and knows no newer membership, has to call again: it may hear now that it is none.
    fn judge_again(&mut self) {
        let stranger = |it: &Peers| {
            let mut callers = it.callers.iter();
            callers.position(|caller| caller.is_stranger(it.changed, &it.members))
        };
        while let Some(at) = stranger(self) {
            self.hang_up(at, "it is no member");
        }
    }

    /// Links to who is no member are there as long as it calls us: it is to be answered.
    fn forget_guests(&mut self) {
        let Peers {
            links,
            callers,
            registry,
            ..
        } = self;
        links.retain_mut(|link| {
            let calls = callers.iter().any(|caller| caller.from() == Some(link.id));
            let stays = link.listed.is_some() || calls;
            if !stays {
                link.close(registry);
            }
            stays
        });
    }

    /// Something has happened to one of the sockets; false when the token is not one of ours. The rest
    /// is done by [`Peers::turn`].
    pub(super) fn on_event(&mut self, token: Token) -> bool {
        if !(self.first..self.first + TOKENS).contains(&token.0) {
            return false;
        }
        self.may_accept |= token.0 == self.first;
        let callers = self.callers.iter_mut().map(Caller::line_mut);
        let links = self.links.iter_mut().filter_map(Link::line_mut);
        for line in callers.chain(links).filter(|line| line.token() == token) {
            line.on_event();
        }
        true
    }

    /// Accept, dial, read and give up, as far as that is possible now and a turn allows. Then there
    /// may be something to [`Peers::take`].
    pub(super) fn turn(&mut self, now: Time) {
        self.accept(now);
        self.serve_callers(now);
        self.serve_links(now);
    }

    /// Send a message, some time after the next [`Peers::flush`]. It is dropped if there is no
    /// connection, or if more than 32 MiB would wait; that is counted.
    pub(super) fn send(&mut self, to: NodeId, message: Message) {
        match self.links.iter_mut().find(|link| link.id == to) {
            Some(link) => link.send(message),
            None => self.dropped += 1,
        }
    }

    /// Give the sockets what waits, as far as they take it.
    pub(super) fn flush(&mut self, now: Time) {
        for at in 0..self.links.len() {
            let change = self.links[at].flush(&mut setting!(self, now));
            if self.links[at].take_moves() {
                let moves = Received::Moves(self.links[at].id);
                self.inbox.push_back((moves, 0));
            }
            self.tell(at, change);
        }
    }

    /// The next thing that has come. What is not taken stays, and after some MiB nothing more is read.
    pub(super) fn take(&mut self) -> Option<Received> {
        let (received, size) = self.inbox.pop_front()?;
        self.waiting -= size;
        Some(received)
    }

    /// When [`Peers::turn`] and [`Peers::flush`] have something to do without an event; `None`: not
    /// before one. A time that has passed means now.
    #[must_use]
    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        let can_read = self.waiting < INBOX_SIZE_MAX;
        let callers =
            self.callers
                .iter()
                .filter_map(|caller| match caller.has_more() && can_read {
                    true => Some(now),
                    false => caller.deadline(),
                });
        let links = self.links.iter().filter_map(|link| link.next_deadline(now));
        let listener = self.may_accept.then(|| self.resting_until.unwrap_or(now));
        callers.chain(links).chain(listener).min()
    }

    /// Where clients reach this node, as it or the membership said last; `None`: that is not known.
    #[must_use]
    pub(super) fn client_address(&self, of: NodeId) -> Option<&str> {
        let link = self.links.iter().find(|link| link.id == of)?;
        Some(link.client.as_str()).filter(|client| !client.is_empty())
    }

    /// Where HTTP reaches this node, as it said last; `None`: that is not known.
    #[must_use]
    pub(super) fn http_address(&self, of: NodeId) -> Option<&str> {
        let link = self.links.iter().find(|link| link.id == of)?;
        Some(link.http.as_str()).filter(|http| !http.is_empty())
    }

    /// Where other nodes reach this node, as it or the membership said last.
    #[must_use]
    pub(super) fn peer_address(&self, of: NodeId) -> Option<&str> {
        let link = self.links.iter().find(|link| link.id == of)?;
        Some(link.address.as_str())
    }

    /// How it stands with each peer.
    #[must_use]
    pub(super) fn states(&self) -> Vec<PeerState> {
        let state = |link: &Link| PeerState {
            node: link.id,
            peer: link.address.clone(),
            client: link.client.clone(),
            http: link.http.clone(),
            archives: link.archives,
            clock_ahead_ns: link.clock_ahead_ns,
            is_connected: link.is_open(),
            is_heard: self
                .callers
                .iter()
                .any(|caller| caller.from() == Some(link.id)),
            queued: link.queued(),
            sent: link.sent,
            dropped: link.dropped,
        };
        self.links.iter().map(state).collect()
    }

    #[cfg(test)]
    /// Where it listens, with the port that the kernel chose.
    ///
    /// # Errors
    /// The system does not say.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// How many incoming connections were closed because they said something else or nothing in time,
    /// or there was no room.
    #[must_use]
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Who has called this node as a member of another cluster, and has not been heard since.
    #[must_use]
    pub(super) fn stranger(&self) -> Option<&Hello> {
        self.stranger.as_deref()
    }

    fn free_token(&self) -> Option<Token> {
        let callers = self.callers.iter().map(Caller::token);
        let used: Vec<Token> = callers
            .chain(self.links.iter().filter_map(Link::token))
            .collect();
        let mut all = (self.first + 1..self.first + TOKENS).map(Token);
        all.find(|token| !used.contains(token))
    }

    fn accept(&mut self, now: Time) {
        if !self.may_accept || self.resting_until.is_some_and(|until| now < until) {
            return;
        }
        self.resting_until = None;
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept() {
                Ok((socket, place)) => {
                    self.make_room();
                    if let Err(why) = self.admit(socket, place, now) {
                        self.refuse(place, &why.to_string());
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.may_accept = false;
                        return;
                    }
                    io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::Interrupted => {}
                    _ => {
                        warn!("cannot accept connections of peers for now: {error}");
                        self.resting_until = Some(Time(now.0.saturating_add(REST_NS)));
                        return;
                    }
                },
            }
        }
    }

    /// Who says nothing gives way to who comes: a peer says hello at once.
    fn make_room(&mut self) {
        if self.callers.len() < CALLERS_MAX {
            return;
        }
        let silent = self
            .callers
            .iter()
            .enumerate()
            .filter(|(_, it)| it.deadline().is_some());
        if let Some((at, _)) = silent.min_by_key(|(_, it)| it.deadline()) {
            self.hang_up(at, "it has not said hello, and others wait");
        }
    }

    fn admit(&mut self, socket: TcpStream, place: SocketAddr, now: Time) -> Result<(), PeerError> {
        let token = self
            .free_token()
            .filter(|_| self.callers.len() < CALLERS_MAX);
        let token = token.ok_or("there are too many connections")?;
        let setting = setting!(self, now);
        let channel = setting.accepted(socket)?;
        let caller = Caller::new(channel, place, token, &setting);
        self.callers.push(caller?);
        Ok(())
    }

    fn refuse(&mut self, place: SocketAddr, why: &str) {
        self.refused += 1;
        debug!(%place, "connection of a peer refused: {why}");
    }

    fn hang_up(&mut self, at: usize, why: &str) {
        let caller = self.callers.swap_remove(at);
        match caller.from() {
            Some(node) => info!(%node, place = %caller.place, "connection of a peer closed: {why}"),
            None => self.refuse(caller.place, why),
        }
        drop(caller.release(&self.registry));
        self.forget_guests();
    }

    fn serve_callers(&mut self, now: Time) {
        let mut at = 0;
        while at < self.callers.len() {
            let may_come = self.waiting < INBOX_SIZE_MAX;
            let Peers { inbox, waiting, .. } = self;
            let take = |from, said| {
                let (received, size) = match said {
                    Said::Message(message) => {
                        let size = MESSAGE_COST + size(&message);
                        let message = *message;
                        (Received::Message { from, message }, size)
                    }
                    Said::Drains(drains) => (Received::Drains { from, drains }, MESSAGE_COST),
                    Said::Part => (Received::Moves(from), MESSAGE_COST),
                };
                *waiting += size;
                inbox.push_back((received, size));
            };
            let step = self.callers[at].advance(&mut setting!(self, now), may_come, take);
            self.stranger = self.callers[at].take_stranger().or(self.stranger.take());
            match step {
                Ok(Step::Wait) => at += 1,
                Ok(Step::Opened(hello)) => at = self.open(at, &hello, now),
                Ok(Step::HandOver(hello, nonce)) => self.hand_over(at, hello, nonce),
                Err(why) => self.hang_up(at, &why.to_string()),
            }
        }
    }

    /// A peer is heard: on this connection, and no older one. Returns where the caller is now.
    fn open(&mut self, at: usize, hello: &Hello, now: Time) -> usize {
        let token = self.callers[at].token();
        let link = match self.links.iter_mut().find(|link| link.id == hello.from) {
            Some(link) => link,
            None => {
                let link = Link::new(hello.from, hello.peer.clone(), hello.client.clone(), now);
                self.links.push(link);
                let Some(link) = self.links.last_mut() else {
                    return at;
                };
                link
            }
        };
        if !hello.peer.is_empty() {
            link.move_to(&hello.peer, now, &self.registry);
        }
        hello.client.clone_into(&mut link.client);
        hello.http.clone_into(&mut link.http);
        link.archives = hello.archives;
        // It is there: it may be called at once.
        link.hurry(now);
        let older = |it: &Caller| it.from() == Some(hello.from) && it.token() != token;
        while let Some(at) = self.callers.iter().position(older) {
            self.hang_up(at, "it has called again");
        }
        self.callers
            .iter()
            .position(|it| it.token() == token)
            .unwrap_or(at)
    }

    fn hand_over(&mut self, at: usize, hello: Hello, nonce: u64) {
        let caller = self.callers.swap_remove(at);
        let place = caller.place;
        let channel = caller.release(&self.registry);
        if self.waiting >= INBOX_SIZE_MAX {
            return self.refuse(place, "too much waits to be taken");
        }
        match BlockingLink::called(channel, nonce, hello.from, self.me.node, PATIENCE) {
            Ok(link) => {
                let called = Received::Called(Box::new(hello), Box::new(link));
                self.waiting += TALK_COST;
                self.inbox.push_back((called, TALK_COST));
            }
            Err(error) => self.refuse(place, &error.to_string()),
        }
    }

    fn serve_links(&mut self, now: Time) {
        for at in 0..self.links.len() {
            let Some(token) = self.free_token() else {
                return;
            };
            let change = self.links[at].advance(&mut setting!(self, now), token);
            self.tell(at, change);
        }
    }

    fn tell(&mut self, at: usize, change: Option<Change>) {
        let node = self.links[at].id;
        let received = match change {
            None => return,
            Some(Change::Opened) => Received::Connected(node),
            Some(Change::Failed) => Received::Unreachable(node),
        };
        self.inbox.push_back((received, 0));
        if let Some(changed) = self.links[at].left_out.take() {
            self.inbox.push_back((Received::LeftOut(changed), 0));
        }
    }
}

fn size(message: &Message) -> usize {
    let entries = message.entries.iter();
    entries
        .map(|it| MESSAGE_COST / 2 + it.data.len() + it.context.len())
        .sum::<usize>()
        + message.context.len()
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers")
            .field("me", &self.me)
            .field("links", &self.links.len())
            .field("callers", &self.callers.len())
            .finish_non_exhaustive()
    }
}
