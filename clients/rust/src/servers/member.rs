//! One server of a list, and whether it is away: without sockets and without a clock.
//!
//! A server whose call has failed is away. It is looked for from time to time by an attempt to connect
//! that runs beside everything else, on a thread or a task of its own. There is at most one attempt at
//! a time; between two of them there is a pause that grows up to a limit.

use std::fmt;
use std::time::{Duration, Instant};

use super::round::Answer;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::job::Job;

/// Between attempts to reach a server that is away.
pub(super) const AWAY_MIN: Duration = Duration::from_millis(100);
pub(super) const AWAY_MAX: Duration = Duration::from_secs(5);

/// A client of one server, as a list needs it.
pub(super) trait Peer: fmt::Debug + Sized {
    /// An attempt to connect that runs beside everything else. If it is dropped it may end.
    type Attempt: fmt::Debug;

    /// A client that was never connected.
    fn fresh(config: &Config) -> Self;

    /// Close the connection, if there is one.
    fn leave(&mut self);

    /// Try to connect, each address once.
    fn attempt(self: Box<Self>) -> Self::Attempt;

    /// How it went. Never waits.
    fn look(attempt: &mut Self::Attempt) -> Look<Self>;
}

/// What became of an attempt.
#[derive(Debug)]
pub(super) enum Look<P> {
    Trying,
    Over(Box<P>, Result<()>),
    /// It could not be made, or has vanished together with its client.
    Gone,
}

/// Where the client of a server is.
#[derive(Debug)]
enum At<P: Peer> {
    Here(Box<P>),
    Connecting(P::Attempt),
    /// It is not looked for before then. `None`: its client is gone, and another one will connect.
    Away(Option<Box<P>>, Instant),
}

/// A server of a list.
#[derive(Debug)]
pub(super) struct Member<P: Peer> {
    name: String,
    config: Config,
    at: At<P>,
    /// Attempts, and calls, that have failed since it was here.
    failures: u32,
}

impl<P: Peer> Member<P> {
    /// A server that is believed to be there until a call fails.
    pub(super) fn new(name: &str, config: &Config) -> Member<P> {
        Member {
            name: name.to_owned(),
            config: config.clone(),
            at: At::Here(Box::new(P::fresh(config))),
            failures: 0,
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn is_here(&self) -> bool {
        matches!(self.at, At::Here(_))
    }

    /// Its client, if it is here. Nothing is looked for.
    pub(super) fn peer(&self) -> Option<&P> {
        match &self.at {
            At::Here(peer) => Some(peer),
            _ => None,
        }
    }

    /// The same, to be used.
    pub(super) fn peer_mut(&mut self) -> Option<&mut P> {
        match &mut self.at {
            At::Here(peer) => Some(peer),
            _ => None,
        }
    }

    /// Its client, if the server is not away. One that is away is looked for when it is time; this never
    /// waits.
    pub(super) fn here(&mut self, now: Instant) -> Option<&mut P> {
        if let At::Away(_, not_before) = self.at
            && now >= not_before
        {
            self.connect(now);
        }
        if let At::Connecting(attempt) = &mut self.at {
            let look = P::look(attempt);
            _ = self.seen(look, now);
        }
        self.peer_mut()
    }

    /// For a call that needs this server: the attempt to connect that is to be waited for, if it is not
    /// here. An attempt is made at once, however long the pause would be.
    pub(super) fn attempt(&mut self, now: Instant) -> Option<&mut P::Attempt> {
        if matches!(self.at, At::Away(..)) {
            self.connect(now);
        }
        match &mut self.at {
            At::Connecting(attempt) => Some(attempt),
            _ => None,
        }
    }

    /// What became of that attempt.
    ///
    /// # Errors
    /// It has failed, or was not over in time.
    pub(super) fn seen(&mut self, look: Look<P>, now: Instant) -> Result<()> {
        match look {
            Look::Trying => Err(self.is_missed()),
            Look::Over(peer, Ok(())) => {
                self.failures = 0;
                self.at = At::Here(peer);
                Ok(())
            }
            Look::Over(peer, Err(error)) => {
                self.is_away(Some(peer), now);
                Err(error)
            }
            Look::Gone => {
                self.is_away(None, now);
                Err(self.is_missed())
            }
        }
    }

    /// The error of a call that needs this server.
    pub(super) fn is_missed(&self) -> Error {
        let text = format!("server {} is away", self.name);
        Error::new(ErrorKind::Connect, text)
    }

    fn connect(&mut self, now: Instant) {
        match std::mem::replace(&mut self.at, At::Away(None, now)) {
            At::Away(peer, _) => {
                let peer = peer.unwrap_or_else(|| Box::new(P::fresh(&self.config)));
                self.at = At::Connecting(peer.attempt());
            }
            other => self.at = other,
        }
    }

    fn is_away(&mut self, peer: Option<Box<P>>, now: Instant) {
        let doubled = AWAY_MIN.saturating_mul(1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.at = At::Away(peer, now + doubled.min(AWAY_MAX));
    }

    /// A call at the server has failed: if it is away, look for it from time to time.
    pub(super) fn note(&mut self, error: &Error, now: Instant) {
        let is_away = matches!(
            error.kind(),
            ErrorKind::Connect | ErrorKind::TimedOut | ErrorKind::Unanswered | ErrorKind::Protocol
        );
        if !is_away {
            return;
        }
        match std::mem::replace(&mut self.at, At::Away(None, now)) {
            At::Here(mut peer) => {
                peer.leave();
                self.is_away(Some(peer), now);
            }
            other => self.at = other,
        }
    }

    /// What it means that a reserve at this server ended so: an error is the caller's only if the server
    /// is there.
    pub(super) fn answer(&mut self, result: Result<Option<Job>>, now: Instant) -> Answer {
        match result {
            Ok(Some(job)) => Answer::Job(job),
            Ok(None) => Answer::Nothing,
            Err(error) => {
                self.note(&error, now);
                match self.is_here() {
                    true => Answer::Refused(error),
                    false => Answer::Away,
                }
            }
        }
    }
}
