//! A connection of a peer to us, on which it sends.

use std::net::SocketAddr;

use mio::{Registry, Token};
use raft::eraftpb::Message;

use super::channel::Channel;
use super::line::Line;
use super::{GREETING_NS, MOVED_SIZE, PeerError, Setting};
use bsd::types::Time;
use bsd_cluster::member::NodeId;
use bsd_cluster::wire::{
    Answer, Decoder, Frame, Hello, Purpose, Refused, Side, Welcome, Why, WireError,
};

/// Bytes that are read from one peer in a turn, more or less by one read.
const READ_SIZE_MAX: usize = 1 << 20;
/// A hello is not longer.
const HELLO_SIZE_MAX: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Caller {
    line: Line,
    pub(super) place: SocketAddr,
    state: State,
    deadline: Option<Time>,
    /// Bytes of a message under way that have come since it was said that it moves.
    moved: usize,
}

#[derive(Debug)]
enum State {
    /// It has to say who it is.
    Greeting(Vec<u8>),
    /// It is told that it is welcome, with this nonce.
    Answering(Hello, u64),
    /// It is told why it is not; a member of another cluster is remembered.
    Refusing(String, Option<Box<Hello>>),
    Open(Hello, Box<Decoder>),
}

/// Message of a peer.
#[derive(Debug)]
pub(super) enum Said {
    Message(Box<Message>),
    /// Whether no jobs are taken.
    Drains(bool),
    /// More of a message that has not come whole: [`MOVED_SIZE`] bytes at least.
    Part,
}

/// Result of a step of a caller.
#[derive(Debug)]
pub(super) enum Step {
    Wait,
    /// It sends messages from now on.
    Opened(Hello),
    /// The connection is someone else's from now on.
    HandOver(Hello, u64),
}

impl Caller {
    pub(super) fn new(
        channel: Channel,
        place: SocketAddr,
        token: Token,
        setting: &Setting<'_>,
    ) -> std::io::Result<Caller> {
        let line = Line::new(channel, token, setting.registry)?;
        line.tune();
        Ok(Caller {
            line,
            place,
            state: State::Greeting(Vec::new()),
            deadline: Some(Time(setting.now.0.saturating_add(GREETING_NS))),
            moved: 0,
        })
    }

    pub(super) fn token(&self) -> Token {
        self.line.token()
    }

    pub(super) fn line_mut(&mut self) -> &mut Line {
        &mut self.line
    }

    /// Whose messages come here.
    pub(super) fn from(&self) -> Option<NodeId> {
        match &self.state {
            State::Open(hello, _) => Some(hello.from),
            _ => None,
        }
    }

    /// Its greeting, if it takes us for a member of another cluster. Once.
    pub(super) fn take_stranger(&mut self) -> Option<Box<Hello>> {
        match &mut self.state {
            State::Refusing(_, stranger) => stranger.take(),
            _ => None,
        }
    }

    /// It sends messages, or is about to, and is no member of the newest membership that it or we know.
    pub(super) fn is_stranger(&self, changed: u64, members: &[NodeId]) -> bool {
        match &self.state {
            State::Open(hello, _) | State::Answering(hello, _) => {
                hello.judge_member(true, changed, members).is_err()
            }
            State::Greeting(_) | State::Refusing(..) => false,
        }
    }

    /// Until when it must have said who it is; `None`: it has.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// It is known, and has something to be read.
    pub(super) fn has_more(&self) -> bool {
        self.from().is_some() && self.line.is_readable()
    }

    pub(super) fn release(self, registry: &Registry) -> Channel {
        self.line.release(registry)
    }

    /// Go on as far as that is possible now. `take` gets the messages, if they `may_come`.
    ///
    /// # Errors
    /// Why it is to be closed.
    pub(super) fn advance(
        &mut self,
        setting: &mut Setting<'_>,
        may_come: bool,
        take: impl FnMut(NodeId, Said),
    ) -> Result<Step, PeerError> {
        if self.deadline.is_some_and(|at| at <= setting.now) {
            return Err("it has not said hello in time".into());
        }
        if let State::Greeting(_) = self.state {
            self.hear(setting)?;
        }
        let is_told = self.line.push(setting.now).map_err(PeerError::broken)?;
        match &mut self.state {
            State::Refusing(why, _) if is_told => Err(std::mem::take(why).into()),
            State::Answering(hello, nonce) if is_told => {
                let (hello, nonce) = (hello.clone(), *nonce);
                self.deadline = None;
                if hello.purpose != Purpose::Messages {
                    return Ok(Step::HandOver(hello, nonce));
                }
                let decoder = Decoder::new(nonce, Side::Dialer, hello.from, setting.me.node);
                self.state = State::Open(hello.clone(), Box::new(decoder));
                Ok(Step::Opened(hello))
            }
            State::Open(..) if may_come => self.read(setting, take).map(|()| Step::Wait),
            _ => Ok(Step::Wait),
        }
    }

    /// Read its hello, and put the answer where it is sent from.
    fn hear(&mut self, setting: &mut Setting<'_>) -> Result<(), PeerError> {
        let State::Greeting(heard) = &mut self.state else {
            return Ok(());
        };
        while self.line.is_readable() {
            let count = match self.line.read(setting.buffer) {
                Ok(Some(0)) => return Err("it closed the connection before its hello".into()),
                Ok(Some(count)) => count,
                Ok(None) => return Ok(()),
                Err(error) => return Err(PeerError::broken(error)),
            };
            heard.extend_from_slice(&setting.buffer[..count]);
            let hello = match Hello::decode(heard) {
                Ok(Some((hello, size))) if size == heard.len() => hello,
                Ok(None) if heard.len() < HELLO_SIZE_MAX => continue,
                Ok(_) => return Err("it says more than a hello".into()),
                Err(WireError::Foreign) => return Err(WireError::Foreign.into()),
                Err(error) => {
                    let text = format!("your hello cannot be read: {error}");
                    return self.refuse(Refused::new(Why::Unreadable, text));
                }
            };
            let judged = hello.judge(setting.me).and_then(|version| {
                let judged = hello.judge_member(setting.leads, setting.changed, setting.members);
                judged.map(|()| version)
            });
            return match judged {
                Ok(version) => self.welcome(hello, version, setting),
                Err(refused) if refused.why == Why::Cluster => {
                    self.refuse(refused)?;
                    if let State::Refusing(_, stranger) = &mut self.state
                        && hello.purpose == Purpose::Messages
                    {
                        *stranger = Some(Box::new(hello));
                    }
                    Ok(())
                }
                Err(refused) => self.refuse(refused),
            };
        }
        Ok(())
    }

    fn welcome(
        &mut self,
        hello: Hello,
        version: u16,
        setting: &mut Setting<'_>,
    ) -> Result<(), PeerError> {
        let nonce = setting.random.next();
        let welcome = Welcome {
            version,
            node: setting.me.node,
            nonce,
            client: setting.me.client.clone(),
            http: setting.me.http.clone(),
            wall_ns: setting.wall_ns,
            archives: Some(setting.me.archives),
        };
        self.state = State::Answering(hello, nonce);
        self.say(&Answer::Welcome(welcome))
    }

    fn refuse(&mut self, refused: Refused) -> Result<(), PeerError> {
        self.state = State::Refusing(refused.text.clone(), None);
        self.say(&Answer::Refused(refused))
    }

    fn say(&mut self, answer: &Answer) -> Result<(), PeerError> {
        Ok(answer.encode(self.line.out())?)
    }

    /// Take messages, as many as a turn allows.
    fn read(
        &mut self,
        setting: &mut Setting<'_>,
        mut take: impl FnMut(NodeId, Said),
    ) -> Result<(), PeerError> {
        let State::Open(hello, decoder) = &mut self.state else {
            return Ok(());
        };
        let mut left = READ_SIZE_MAX;
        while left > 0 && self.line.is_readable() {
            let count = match self.line.read(setting.buffer) {
                Ok(Some(0)) => return Err("it has closed the connection".into()),
                Ok(Some(count)) => count,
                Ok(None) => return Ok(()),
                Err(error) => return Err(PeerError::broken(error)),
            };
            left = left.saturating_sub(count);
            decoder.feed(&setting.buffer[..count]);
            while let Some(frame) = decoder.next()? {
                match frame {
                    Frame::Raft(message) => take(hello.from, Said::Message(message)),
                    Frame::Drains(drains) => take(hello.from, Said::Drains(drains)),
                    _ => return Err("it sends what belongs on another connection".into()),
                }
            }
            self.moved = match decoder.has_part() {
                true => self.moved + count,
                false => 0,
            };
            if self.moved >= MOVED_SIZE {
                self.moved = 0;
                take(hello.from, Said::Part);
            }
        }
        Ok(())
    }
}
