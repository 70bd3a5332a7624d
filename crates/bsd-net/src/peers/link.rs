//! Our connection to one peer, on which we send: dialed until it stands, dialed again when it falls.
//!
//! ```text
//! resting ──► resolving (only for names) ──► greeting ──► open
//!    ▲                │                         │          │
//!    └────────────────┴──── after 50 ms … 2 s ──┴──────────┘
//! ```
//!
//! Waiting messages are dropped when the connection breaks, and none are taken while it rests: raft
//! sends lost ones again, and old ones are of no use then.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::sync::mpsc;

use mio::net::TcpStream;
use mio::{Registry, Token};
use raft::eraftpb::Message;
use tracing::{debug, info, warn};

use super::line::Line;
use super::{GREETING_NS, PeerError, Setting};
use bsd::types::{SECOND_NS, Time};
use bsd_cluster::member::NodeId;
use bsd_cluster::wire::{Answer, DRAINS_SINCE, Encoder, Frame, Hello, Purpose, Side, Welcome, Why};

/// How long a link rests at first, and at most.
const REST_NS_MIN: i64 = SECOND_NS / 20;
const REST_NS_MAX: i64 = 2 * SECOND_NS;
/// A link that stood for this long was not a failure.
const PROVEN_NS: i64 = 2 * SECOND_NS;
/// Bytes of messages that may wait for one peer.
pub(super) const QUEUE_SIZE_MAX: usize = 32 << 20;
/// Cost of a message beside its bytes.
const MESSAGE_COST: usize = 512;
/// Bytes that are encoded ahead of being sent.
const AHEAD_SIZE: usize = 256 << 10;
/// Bytes that are sent to one peer in a turn, more or less by a frame.
const SEND_SIZE: usize = 4 << 20;
/// An answer is not longer.
const ANSWER_SIZE_MAX: usize = 8 << 10;

type Resolved = io::Result<Vec<SocketAddr>>;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: NodeId,
    /// Peer and client address as the membership last had them; `None`: no member, it has called us.
    pub(super) listed: Option<(String, String)>,
    /// Where it listens: what was said last, by the membership or by itself.
    pub(super) address: String,
    /// Where clients reach it.
    pub(super) client: String,
    /// Where HTTP reaches it, as it has said.
    pub(super) http: String,
    /// It archives the log while it leads, as it has said; `None`: it has not.
    pub(super) archives: Option<bool>,
    /// Its wall clock is ahead of ours by at least this, or behind if it is negative, as of when we
    /// connected; `None`: not known.
    pub(super) clock_ahead_ns: Option<i64>,
    state: State,
    rest_ns: i64,
    /// Where the connection is to, or was to last.
    dialed: String,
    /// It says which address is next, and which of those of a name.
    attempts: usize,
    /// The failure that was told last.
    told: String,
    /// It says that we are no member since this entry.
    pub(super) left_out: Option<u64>,
    queue: VecDeque<Frame>,
    queued: usize,
    /// Messages that have been given to the connection, and that have not.
    pub(super) sent: u64,
    pub(super) dropped: u64,
    has_more: bool,
}

#[derive(Debug)]
enum State {
    Resting {
        until: Time,
    },
    Resolving {
        answer: mpsc::Receiver<Resolved>,
        deadline: Time,
    },
    Greeting(Greeting),
    Open {
        line: Line,
        encoder: Encoder,
        since: Time,
        /// Version that both speak.
        version: u16,
        /// The last word about draining that it was sent.
        told: Option<bool>,
    },
}

#[derive(Debug)]
struct Greeting {
    line: Line,
    is_connected: bool,
    answer: Vec<u8>,
    deadline: Time,
    /// The wall clock when it was called.
    wall_ns: u64,
}

/// Clocks that differ by so much are not kept alike.
const APART_NS: u64 = SECOND_NS as u64;

fn is_apart(ahead_ns: i64) -> bool {
    ahead_ns.unsigned_abs() >= APART_NS
}

/// Change of the state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Opened,
    Failed,
}

impl Link {
    pub(super) fn new(id: NodeId, address: String, client: String, now: Time) -> Link {
        Link {
            id,
            listed: None,
            address,
            client,
            http: String::new(),
            archives: None,
            clock_ahead_ns: None,
            state: State::Resting { until: now },
            rest_ns: REST_NS_MIN,
            dialed: String::new(),
            attempts: 0,
            told: String::new(),
            left_out: None,
            queue: VecDeque::new(),
            queued: 0,
            sent: 0,
            dropped: 0,
            has_more: false,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// It can be reached, or its address is new: do not rest any longer.
    pub(super) fn hurry(&mut self, now: Time) {
        if let State::Resting { until } = &mut self.state {
            *until = now.min(*until);
        }
    }

    /// Its address is another one. A connection that stands is to the right node, wherever that is.
    pub(super) fn move_to(&mut self, address: &str, now: Time, registry: &Registry) {
        if self.address != address {
            address.clone_into(&mut self.address);
            (self.rest_ns, self.attempts) = (REST_NS_MIN, 0);
            if !self.is_open() {
                self.close(registry);
                self.state = State::Resting { until: now };
            }
        }
    }

    /// Choose the next address to dial: by turns the one that was told last, and that of the
    /// membership.
    fn choose(&mut self) {
        let listed = self.listed.as_ref().map(|(peer, _)| peer);
        let chosen = listed
            .filter(|_| self.attempts % 2 == 1)
            .unwrap_or(&self.address);
        self.dialed.clone_from(chosen);
        self.attempts = self.attempts.wrapping_add(1);
    }

    pub(super) fn line_mut(&mut self) -> Option<&mut Line> {
        match &mut self.state {
            State::Greeting(greeting) => Some(&mut greeting.line),
            State::Open { line, .. } => Some(line),
            State::Resting { .. } | State::Resolving { .. } => None,
        }
    }

    pub(super) fn token(&self) -> Option<Token> {
        match &self.state {
            State::Greeting(greeting) => Some(greeting.line.token()),
            State::Open { line, .. } => Some(line.token()),
            State::Resting { .. } | State::Resolving { .. } => None,
        }
    }

    /// Take a message, if there is room.
    pub(super) fn send(&mut self, message: Message) {
        let frame = Frame::Raft(Box::new(message));
        let size = frame.size() + MESSAGE_COST;
        let rests = matches!(self.state, State::Resting { .. });
        if rests || self.queued + size > QUEUE_SIZE_MAX {
            self.dropped += 1;
            return;
        }
        self.queued += size;
        self.queue.push_back(frame);
    }

    /// Take the next step towards an open link, as far as that is possible now.
    pub(super) fn advance(&mut self, setting: &mut Setting<'_>, token: Token) -> Option<Change> {
        let advanced = match &mut self.state {
            State::Resting { until } if *until <= setting.now => self.dial(setting, token),
            State::Resting { .. } => Ok(false),
            State::Resolving { answer, deadline } => match answer.try_recv() {
                Ok(Ok(addresses)) => self.connect(&addresses, setting, token),
                Ok(Err(error)) => Err(PeerError::Io("its name is not found".into(), error)),
                Err(_) if *deadline <= setting.now => Err("its name is not found in time".into()),
                Err(_) => Ok(false),
            },
            State::Greeting(_) => self.greet(setting),
            State::Open { .. } => self.watch(setting),
        };
        match advanced {
            Ok(true) => Some(Change::Opened),
            Ok(false) => None,
            Err(why) => {
                self.fail(&why.to_string(), setting);
                Some(Change::Failed)
            }
        }
    }

    fn dial(&mut self, setting: &mut Setting<'_>, token: Token) -> Result<bool, PeerError> {
        self.choose();
        if let Ok(address) = self.dialed.parse::<SocketAddr>() {
            return self.connect(&[address], setting, token);
        }
        // Looking up a name may take seconds: not in the loop.
        let (tell, answer) = mpsc::channel();
        let (name, waker) = (self.dialed.clone(), setting.waker.clone());
        let look_up = move || {
            let found = name.to_socket_addrs().map(Iterator::collect);
            let _ = tell.send(found);
            waker();
        };
        let thread = std::thread::Builder::new().name("bsd-peer-name".into());
        let started = thread.spawn(look_up);
        started.map_err(|error| PeerError::Io("no thread to look up its name".into(), error))?;
        let deadline = Time(setting.now.0.saturating_add(GREETING_NS));
        self.state = State::Resolving { answer, deadline };
        Ok(false)
    }

    fn connect(
        &mut self,
        addresses: &[SocketAddr],
        setting: &mut Setting<'_>,
        token: Token,
    ) -> Result<bool, PeerError> {
        let count = addresses.len().max(1);
        let next = (self.attempts / 2) % count;
        let address = addresses.get(next).ok_or("its name has no address")?;
        setting.may_speak_with(*address)?;
        let say = |error| PeerError::Io("cannot connect".into(), error);
        let socket = TcpStream::connect(*address).map_err(say)?;
        let channel = setting.dialed(socket, &self.dialed)?;
        let mut line = Line::new(channel, token, setting.registry).map_err(say)?;
        let hello = Hello {
            members: setting.changed,
            ..Hello::of(setting.me, self.id, Purpose::Messages)
        };
        hello.encode(line.out())?;
        self.state = State::Greeting(Greeting {
            line,
            is_connected: false,
            answer: Vec::new(),
            deadline: Time(setting.now.0.saturating_add(GREETING_NS)),
            wall_ns: setting.wall_ns,
        });
        self.greet(setting)
    }

    /// Say hello and hear the answer; true once it is a welcome.
    fn greet(&mut self, setting: &mut Setting<'_>) -> Result<bool, PeerError> {
        let State::Greeting(greeting) = &mut self.state else {
            return Ok(false);
        };
        if greeting.deadline <= setting.now {
            return Err("it has not answered in time".into());
        }
        let called_ns = greeting.wall_ns;
        let welcome = match greeting.step(setting)? {
            Some(Answer::Welcome(welcome)) => welcome,
            Some(Answer::Refused(refused)) => {
                self.left_out = (refused.why == Why::NoMember).then_some(refused.members);
                return Err(format!("it refuses us: {refused}").into());
            }
            None => return Ok(false),
        };
        if !setting.me.versions.has(welcome.version) || welcome.node != self.id {
            let Welcome { version, node, .. } = welcome;
            let why = format!("node {node} answers, in version {version} of the protocol");
            return Err(why.into());
        }
        self.client = welcome.client;
        self.http = welcome.http;
        self.archives = welcome.archives;
        self.compare_clocks(welcome.wall_ns, called_ns..=setting.wall_ns);
        self.told.clear();
        info!(node = %self.id, address = %self.dialed, "connected to a peer");
        let rest = State::Resting { until: setting.now };
        if let State::Greeting(greeting) = std::mem::replace(&mut self.state, rest) {
            self.state = State::Open {
                line: greeting.line,
                encoder: Encoder::new(welcome.nonce, Side::Dialer),
                since: setting.now,
                version: welcome.version,
                told: None,
            };
        }
        Ok(true)
    }

    /// It has read its clock between two looks at ours: what is outside of that is a difference. A
    /// large one is said once, and once that it is over.
    fn compare_clocks(&mut self, theirs: u64, ours: RangeInclusive<u64>) {
        let was_apart = self.clock_ahead_ns.is_some_and(is_apart);
        self.clock_ahead_ns = (theirs > 0 && !ours.is_empty()).then(|| {
            let nearest = theirs.clamp(*ours.start(), *ours.end());
            i64::try_from(i128::from(theirs) - i128::from(nearest)).unwrap_or(i64::MAX)
        });
        let Some(ahead_ns) = self.clock_ahead_ns else {
            return;
        };
        let (node, seconds) = (self.id, ahead_ns.unsigned_abs() as f64 / SECOND_NS as f64);
        let side = if ahead_ns < 0 { "behind" } else { "ahead of" };
        match (was_apart, is_apart(ahead_ns)) {
            (false, true) => warn!(
                "the clock of member {node} is {seconds:.1} s {side} the clock of this one; keep the \
                 clocks of all members alike"
            ),
            (true, false) => info!("the clock of member {node} agrees with that of this one again"),
            _ => {}
        }
    }

    /// Who listens says nothing after its welcome: whatever comes is the end.
    fn watch(&mut self, setting: &mut Setting<'_>) -> Result<bool, PeerError> {
        let State::Open { line, .. } = &mut self.state else {
            return Ok(false);
        };
        if line.stalls_at().is_some_and(|at| at <= setting.now) {
            return Err("it takes nothing any more".into());
        }
        if !line.is_readable() {
            return Ok(false);
        }
        match line.read(setting.buffer) {
            Ok(None) => Ok(false),
            Ok(Some(0)) => Err("it has closed the connection".into()),
            Ok(Some(_)) => Err("it says something where it has nothing to say".into()),
            Err(error) => Err(PeerError::broken(error)),
        }
    }

    /// True if messages wait while the socket takes them: [`MOVED_SIZE`] bytes since that was said.
    pub(super) fn take_moves(&mut self) -> bool {
        let is_behind = !self.queue.is_empty();
        match &mut self.state {
            State::Open { line, .. } => line.take_moves(is_behind),
            _ => false,
        }
    }

    /// Encode and send what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self, setting: &mut Setting<'_>) -> Option<Change> {
        let sent = self.push(setting.now, setting.drains);
        let why = sent.err()?;
        self.fail(&format!("the connection is broken: {why}"), setting);
        Some(Change::Failed)
    }

    fn push(&mut self, now: Time, drains: bool) -> io::Result<()> {
        let State::Open {
            line,
            encoder,
            version,
            told,
            ..
        } = &mut self.state
        else {
            return Ok(());
        };
        if *version >= DRAINS_SINCE && *told != Some(drains) {
            // One byte is always taken.
            let _ = encoder.encode(&Frame::Drains(drains), line.out());
            *told = Some(drains);
        }
        let mut sent = 0;
        self.has_more = false;
        loop {
            while line.waiting() < AHEAD_SIZE
                && let Some(frame) = self.queue.pop_front()
            {
                self.queued -= frame.size() + MESSAGE_COST;
                match encoder.encode(&frame, line.out()) {
                    Ok(()) => self.sent += 1,
                    Err(error) => {
                        warn!(node = %self.id, "a message to a peer is not sent: {error}");
                        self.dropped += 1;
                    }
                }
            }
            sent += line.waiting();
            if !line.push(now)? || self.queue.is_empty() {
                return Ok(());
            }
            if sent >= SEND_SIZE {
                self.has_more = true;
                return Ok(());
            }
        }
    }

    fn fail(&mut self, why: &str, setting: &mut Setting<'_>) {
        let (node, address) = (self.id, &self.dialed);
        match self.told == why {
            true => debug!(%node, %address, "no connection to a peer: {why}"),
            false => warn!(%node, %address, "no connection to a peer: {why}"),
        }
        why.clone_into(&mut self.told);
        if let State::Open { since, .. } = &self.state
            && setting.now.since(*since) >= PROVEN_NS
        {
            self.rest_ns = REST_NS_MIN;
        }
        self.close(setting.registry);
        // Not all at the same time after a node was away.
        let rest = self.rest_ns - setting.random.below(self.rest_ns / 4);
        self.rest_ns = (2 * self.rest_ns).min(REST_NS_MAX);
        let until = Time(setting.now.0.saturating_add(rest));
        self.state = State::Resting { until };
    }

    /// Let go of the connection and of what waits for it.
    pub(super) fn close(&mut self, registry: &Registry) {
        self.dropped += self.queue.len() as u64;
        self.queue.clear();
        (self.queued, self.has_more) = (0, false);
        let rest = State::Resting {
            until: Time(i64::MAX),
        };
        match std::mem::replace(&mut self.state, rest) {
            State::Greeting(Greeting { line, .. }) | State::Open { line, .. } => {
                drop(line.release(registry));
            }
            State::Resting { .. } | State::Resolving { .. } => {}
        }
    }

    /// When to look again without an event.
    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        match &self.state {
            State::Resting { until } => Some(*until),
            State::Resolving { deadline, .. } => Some(*deadline),
            State::Greeting(greeting) => Some(greeting.deadline),
            State::Open { .. } if self.has_more => Some(now),
            State::Open { line, .. } => line.stalls_at(),
        }
    }
}

impl Greeting {
    fn step(&mut self, setting: &mut Setting<'_>) -> Result<Option<Answer>, PeerError> {
        if !self.is_connected {
            if let Some(error) = self.line.socket().take_error()? {
                return Err(PeerError::Io("cannot connect".into(), error));
            }
            match self.line.socket().peer_addr() {
                Ok(_) => self.line.tune(),
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            self.is_connected = true;
        }
        self.line.push(setting.now)?;
        while self.line.is_readable() {
            let Some(count) = self.line.read(setting.buffer)? else {
                break;
            };
            if count == 0 {
                return Err("it closes the connection".into());
            }
            self.answer.extend_from_slice(&setting.buffer[..count]);
            match Answer::decode(&self.answer)? {
                Some((refused @ Answer::Refused(_), _)) => return Ok(Some(refused)),
                Some((answer, size)) if size == self.answer.len() => return Ok(Some(answer)),
                None if self.answer.len() < ANSWER_SIZE_MAX => {}
                _ => return Err("it says more than an answer".into()),
            }
        }
        // The end of a handshake may let the hello go.
        self.line.push(setting.now)?;
        Ok(None)
    }
}
