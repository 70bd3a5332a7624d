//! One client that is passed on: its connection, the link to the leader, and the bytes between.
//!
//! Bytes go straight from one socket to the other. Only what the other side does not take is kept,
//! at most one slice of a turn in each direction, and until that has left nothing more is read: so
//! a slow side slows the fast one, and a pair in which nothing is stuck holds no memory.
//!
//! ```text
//! client ── up ──▶ link      each: read a slice → write → keep the rest → … → pass the end on
//! client ◀─ down ─ link
//! ```
//!
//! The end of one direction is passed on and leaves the other as it is. If a side is broken, what
//! came from it before still reaches the other, and what is for it is dropped.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::event::Event;

use crate::bounds::Since;
use crate::clients::Accepted;
use crate::layers::Layers;
use crate::proxy;
use crate::socket::{Peer, Stream};
use bsd::types::Time;

/// A read that brought nothing although something was there counts as this many bytes. It is a part
/// of a TLS record.
const NOTHING_COST: usize = 4 << 10;

/// A socket, and what its events have said. They are hints: after each, the socket itself says what
/// is so.
#[derive(Debug)]
pub(super) struct End {
    pub(super) stream: Stream,
    /// It may hold bytes; the next event comes only after a read has emptied it.
    pub(super) readable: bool,
    /// False after a write would have blocked.
    pub(super) writable: bool,
    /// The other side has shut down its sending side.
    pub(super) is_half_closed: bool,
    /// An error has been reported, or the end of both directions.
    pub(super) is_broken: bool,
}

impl End {
    pub(super) fn new(stream: Stream) -> End {
        End {
            stream,
            // The first event reports what arrived before the registration.
            readable: false,
            writable: true,
            is_half_closed: false,
            is_broken: false,
        }
    }

    pub(super) fn note(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        if event.is_writable() {
            self.writable = true;
            self.readable |= self.stream.owes();
        }
        self.is_half_closed |= event.is_read_closed();
        if event.is_write_closed() || event.is_error() {
            self.is_broken = true;
            // What cannot be written any more fails when it is tried.
            self.writable = true;
        }
    }

    /// Read once; `None`: nothing has arrived, or not enough of it.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.stream.read(buffer) {
            Ok(count) => {
                let is_emptied = count < buffer.len() && self.stream.short_read_empties();
                self.readable = !is_emptied || self.is_half_closed;
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn held(&self) -> usize {
        self.stream.held() + self.stream.sealed()
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// Bytes that have been read and not been written, from `start` on.
    kept: Vec<u8>,
    start: usize,
    /// The source has ended, and the other side has been told. Nothing is kept then: a source is
    /// read only while nothing is.
    has_ended: bool,
    /// No one takes what comes here: it is read, so that its end is seen, and dropped.
    is_void: bool,
}

/// Result of [`Pipe::flow`].
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    /// Bytes read, and what counts as such.
    cost: usize,
    /// Bytes have left, or the end has.
    moved: bool,
    /// The source is broken: it takes no bytes either.
    is_broken: bool,
}

impl Pipe {
    /// Move what can be moved, at most `slice` bytes more or less by what was kept.
    fn flow(&mut self, from: &mut End, to: &mut End, buffer: &mut [u8], slice: usize) -> Flow {
        let mut flow = Flow::default();
        self.push(to, &mut flow);
        while self.may_read(from) && flow.cost < slice {
            let room = buffer.len().min(slice - flow.cost);
            match from.read(&mut buffer[..room]) {
                Ok(None) => flow.cost += NOTHING_COST,
                Ok(Some(0)) => self.end(to, &mut flow),
                Ok(Some(count)) => {
                    flow.cost += count;
                    self.put(to, &buffer[..count], &mut flow);
                }
                Err(_) => {
                    flow.is_broken = true;
                    self.end(to, &mut flow);
                }
            }
        }
        flow
    }

    /// Whether a read may bring something for which there is room.
    fn may_read(&self, from: &End) -> bool {
        from.readable && !self.has_ended && self.kept.is_empty()
    }

    /// Write what is kept.
    fn push(&mut self, to: &mut End, flow: &mut Flow) {
        let kept = std::mem::take(&mut self.kept);
        let written = self.write(to, &kept[self.start..], flow);
        self.start += written;
        if self.start < kept.len() {
            self.kept = kept;
        } else {
            self.start = 0;
        }
    }

    /// Write what has just been read; keep the rest.
    fn put(&mut self, to: &mut End, bytes: &[u8], flow: &mut Flow) {
        let written = self.write(to, bytes, flow);
        if written < bytes.len() {
            self.kept = bytes[written..].to_vec();
        }
    }

    /// How many of `bytes` the other side has taken. One that is broken takes all.
    fn write(&mut self, to: &mut End, bytes: &[u8], flow: &mut Flow) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && to.writable && !self.is_void {
            match to.stream.write(&bytes[taken..]) {
                Ok(count) if count > 0 => {
                    taken += count;
                    flow.moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.is_void = true,
            }
        }
        if self.is_void { bytes.len() } else { taken }
    }

    /// Nothing more comes.
    fn end(&mut self, to: &mut End, flow: &mut Flow) {
        debug_assert!(self.kept.is_empty(), "what is kept leaves before the end");
        self.has_ended = true;
        flow.moved = true;
        if !self.is_void {
            // Anyone who has gone meanwhile needs no telling.
            let _ = to.stream.send_no_more();
        }
    }

    /// No one takes anything here any more.
    fn make_void(&mut self) {
        self.is_void = true;
        (self.kept, self.start) = (Vec::new(), 0);
    }
}

/// Where a client is on its way to the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not through the layers of its listener yet.
    Entering,
    /// Nothing is read from it until there is a link to a leader.
    Waiting,
    /// The link is being made.
    Dialing,
    /// Bytes pass.
    Joined,
    /// It is listed to be closed, or to be given back; no more bytes pass.
    Leaving,
}

/// Result of [`Pair::flow`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// Its cost, in bytes.
    pub(super) cost: usize,
    /// Something has left.
    pub(super) moved: bool,
    /// More can be moved at once.
    pub(super) has_more: bool,
    /// Nothing will be moved any more.
    pub(super) is_over: bool,
}

/// A client and its link.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) client: End,
    /// From [`Stage::Dialing`] on.
    pub(super) link: Option<End>,
    up: Pipe,
    down: Pipe,
    pub(super) peer: Peer,
    /// It is counted among those of its address (see `per_address`).
    pub(super) is_counted: bool,
    /// The layers that the client has not come through yet.
    pub(super) left: Layers,
    /// Those of the leader's listener that the link has not come through yet.
    pub(super) link_left: Layers,
    pub(super) stage: Stage,
    /// Listed to be served.
    pub(super) is_listed: bool,
    /// When it is to be joined at the latest.
    pub(super) joined_by: Time,
    /// Its place in the order of deadlines, of those who wait for a link, of those for whom bytes
    /// are kept.
    pub(super) due: Since,
    pub(super) waiting_since: Since,
    pub(super) held_since: Since,
    /// The part of [`Pair::held`] that the sum over all pairs includes.
    pub(super) counted: usize,
    /// The addresses of the link's ends, the near one first.
    pub(super) link_ends: Option<(SocketAddr, SocketAddr)>,
}

impl Pair {
    pub(super) fn new(accepted: Accepted) -> Pair {
        let Accepted {
            stream,
            peer,
            left,
            is_counted,
        } = accepted;
        Pair {
            client: End::new(stream),
            link: None,
            up: Pipe::default(),
            down: Pipe::default(),
            peer,
            is_counted,
            left,
            link_left: Layers::NONE,
            stage: Stage::Entering,
            is_listed: false,
            joined_by: Time(0),
            due: Since::NEVER,
            waiting_since: Since::NEVER,
            held_since: Since::NEVER,
            counted: 0,
            link_ends: None,
        }
    }

    /// The next step of a link that is being made, and through the layers of the leader's listener; true
    /// when bytes pass from now on. `false`: there may be more to do at once.
    ///
    /// # Errors
    /// It cannot be made; or (`WouldBlock`) an event is to be waited for.
    pub(super) fn come_through(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let Some(link) = &mut self.link else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        if !link.stream.is_connected()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.link_left.proxy {
            let ends = (self.peer.address(), self.client.stream.own_address());
            link.stream.send_header(&proxy::encode(ends.0, ends.1))?;
            self.link_left.proxy = false;
        }
        if self.link_left.tls {
            if !link.stream.shake_hands(buffer)? {
                return Ok(false);
            }
            self.link_left.tls = false;
            // The session may hold bytes for which there is no event.
            link.readable = true;
        }
        self.stage = Stage::Joined;
        Ok(true)
    }

    /// Move what can be moved, at most `slice` bytes in each direction.
    pub(super) fn flow(&mut self, buffer: &mut [u8], slice: usize) -> Moved {
        let Pair {
            client,
            link: Some(link),
            up,
            down,
            ..
        } = self
        else {
            return Moved {
                cost: 0,
                moved: false,
                has_more: false,
                is_over: true,
            };
        };
        let sent = up.flow(client, link, buffer, slice);
        let got = down.flow(link, client, buffer, slice);
        if sent.is_broken {
            down.make_void();
        }
        if got.is_broken {
            up.make_void();
        }
        Moved {
            cost: sent.cost + got.cost,
            moved: sent.moved || got.moved,
            has_more: up.may_read(client) || down.may_read(link),
            is_over: up.has_ended && down.has_ended,
        }
    }

    /// The leader has ended, or the client is broken: the rest does not take long.
    pub(super) fn is_ending(&self) -> bool {
        self.down.has_ended || self.down.is_void
    }

    /// Bytes of memory held for the client.
    pub(super) fn held(&self) -> usize {
        let link = self.link.as_ref().map_or(0, End::held);
        self.up.kept.capacity() + self.down.kept.capacity() + self.client.held() + link
    }
}
