//! A connection in the loop: what waits to be sent, whether the socket has more, and since when it
//! takes nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;

use super::MOVED_SIZE;
use super::channel::Channel;
use bsd::types::{SECOND_NS, Time};

/// A connection that has taken nothing of what waits for this long is closed.
const STALLED_NS: i64 = 10 * SECOND_NS;
/// An empty buffer that is larger than this is given back.
const IDLE_BUFFER_SIZE: usize = 512 << 10;

#[derive(Debug)]
pub(super) struct Line {
    channel: Channel,
    token: Token,
    /// Bytes to send, from `used` on.
    out: Vec<u8>,
    used: usize,
    /// The socket may have something: its event comes only after a read that would have blocked.
    is_readable: bool,
    /// When the socket last took something, while something waits.
    waiting_since: Option<Time>,
    /// Bytes that the socket had taken when it was said last that they move.
    moved_at: u64,
}

impl Line {
    /// Watch it, both directions, edge-triggered, for its whole life.
    pub(super) fn new(mut channel: Channel, token: Token, registry: &Registry) -> io::Result<Line> {
        let both = Interest::READABLE | Interest::WRITABLE;
        registry.register(channel.socket_mut(), token, both)?;
        Ok(Line {
            channel,
            token,
            out: Vec::new(),
            used: 0,
            is_readable: true,
            waiting_since: None,
            moved_at: 0,
        })
    }

    /// No delay for small messages, and a probe from time to time to notice an end that has
    /// disappeared. Both are only improvements, so a failure does not matter.
    pub(super) fn tune(&self) {
        let _ = self.channel.socket().set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(self.channel.socket().as_fd(), true);
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.channel.socket()
    }

    /// Something has happened to it.
    pub(super) fn on_event(&mut self) {
        self.is_readable = true;
        self.channel.unblock();
    }

    pub(super) fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// The buffer to which bytes to be sent are appended.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.out.len() - self.used
    }

    /// True if bytes wait, here or `behind` it, while the socket takes them: [`MOVED_SIZE`] of them since
    /// that was said.
    pub(super) fn take_moves(&mut self, behind: bool) -> bool {
        let sent = self.channel.sent();
        let waits = behind || self.waiting() > 0;
        let moves = waits && sent - self.moved_at >= MOVED_SIZE as u64;
        if moves || !waits {
            self.moved_at = sent;
        }
        moves
    }

    /// Read once; `None`: nothing is there until the next event. Zero bytes: it has ended.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.channel.read(buffer) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_readable = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Send what waits, as far as the socket takes it; true if nothing waits any more.
    pub(super) fn push(&mut self, now: Time) -> io::Result<bool> {
        let before = self.channel.sent();
        let pushed = self.push_all();
        if self.channel.sent() > before {
            self.waiting_since = None;
        }
        let is_empty = match pushed {
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            pushed => pushed.map(|()| true)?,
        };
        if is_empty {
            self.waiting_since = None;
        } else {
            self.waiting_since.get_or_insert(now);
        }
        Ok(is_empty)
    }

    fn push_all(&mut self) -> io::Result<()> {
        while self.used < self.out.len() {
            match self.channel.write(&self.out[self.used..])? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => self.used += count,
            }
        }
        self.used = 0;
        self.out.clear();
        self.out.shrink_to(IDLE_BUFFER_SIZE);
        self.channel.flush()
    }

    /// When it is to be closed, unless something is taken before.
    pub(super) fn stalls_at(&self) -> Option<Time> {
        let since = self.waiting_since?;
        Some(Time(since.0.saturating_add(STALLED_NS)))
    }

    /// The loop has no more to do with it.
    pub(super) fn release(mut self, registry: &Registry) -> Channel {
        // What is closed is not watched either; so a failure does not matter.
        let _ = registry.deregister(self.channel.socket_mut());
        self.channel
    }
}
