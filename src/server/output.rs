//! Replies that have not reached their clients: encoded, and parked until the log has caught up.
//!
//! A reply waits here between the engine and the socket. Invariants:
//! * no byte of a reply is written before [`Outputs::acknowledge`] has reached the position that
//!   the reply was given with (a crash cannot take back anything that a client has seen);
//! * the replies of one client leave in the order in which they were given;
//! * a client without outstanding replies owns no memory here except its slot;
//! * what is held for all clients together is bounded: see [`Outputs::is_over`].

use std::collections::VecDeque;
use std::io::{self, Write};

use super::bounds::Lying;
use super::schedule::{Room, Schedule, Stint};
use super::socket::Peer;
use crate::engine::{Link, ReplySink, TubeDocument};
use crate::protocol::{self, Reply};
use crate::types::{ClientId, Position, Time};

/// A client with more waiting bytes than this is neither read nor served until it takes them.
const PENDING_MAX: usize = 256 << 10;
/// Clients with fewer waiting bytes than this are written to before those with more.
const PENDING_SMALL: usize = 32 << 10;
/// Bytes written to one client before the next one is served, so that a large reply to a fast
/// client does not delay the others.
const WRITTEN_PER_CLIENT_MAX: usize = 64 << 10;
/// Bytes written to all clients in one turn, more or less by those of one client.
const WRITTEN_PER_TURN_MAX: usize = 1 << 20;
/// The clock is read each time this many bytes are written, and what each write counts in addition.
const LOOK_AFTER: usize = 32 << 10;
const WRITE_COST: usize = 1 << 10;
/// Bytes of replies taken in one turn before requests are left for the next one.
pub(super) const REPLIED_PER_TURN_MAX: usize = 1 << 20;
/// Bytes at the front of a buffer that may have been sent before the rest is moved down.
const SENT_SLACK_MAX: usize = 64 << 10;
/// Buffers kept for the next replies, and the largest size that is kept.
const POOL_COUNT_MAX: usize = 256;
const POOLED_SIZE_MAX: usize = 8 << 10;

/// Replies that may leave once the log is durable up to `after`.
#[derive(Debug, Clone, Copy)]
struct Parked {
    after: Position,
    size: usize,
}

/// Encoded replies: `[sent | ready | parked, oldest first]`.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    sent: usize,
    ready: usize,
    parked: VecDeque<Parked>,
    /// A long document, which is encoded part by part as it is sent; meanwhile no reply may follow
    /// it.
    document: Option<Box<TubeDocument>>,
}

impl Buffer {
    fn push(&mut self, after: Position, reply: &Reply<'_>) {
        let before = self.bytes.len();
        protocol::encode(reply, &mut self.bytes);
        self.park(after, self.bytes.len() - before);
    }

    /// Replies leave in order, so a reply that waits no longer than the one before it shares its
    /// entry.
    fn park(&mut self, after: Position, size: usize) {
        match self.parked.back_mut() {
            Some(last) if after <= last.after => last.size += size,
            _ => self.parked.push_back(Parked { after, size }),
        }
    }

    fn release(&mut self, acknowledged: Position) {
        while let Some(front) = self
            .parked
            .front()
            .filter(|front| front.after <= acknowledged)
        {
            self.ready += front.size;
            self.parked.pop_front();
        }
    }

    fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..self.sent + self.ready]
    }

    fn mark_sent(&mut self, count: usize) {
        self.sent += count;
        self.ready -= count;
        if self.sent >= SENT_SLACK_MAX && self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// True when nothing is left to send.
    fn is_done(&self) -> bool {
        self.pending() == 0 && self.document.is_none()
    }

    /// Encode the next part of a document, once everything before it has been sent.
    fn go_on(&mut self) {
        if self.pending() > 0 {
            return;
        }
        let Some(document) = &mut self.document else {
            return;
        };
        self.bytes.clear();
        self.sent = 0;
        if !document.write_part(&mut self.bytes) {
            protocol::encode_document_end(&mut self.bytes);
            self.document = None;
        }
        self.ready = self.bytes.len();
    }

    fn held(&self) -> usize {
        let document = self.document.as_ref().map_or(0, |it| it.held());
        self.bytes.capacity() + self.parked.capacity() * size_of::<Parked>() + document
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.parked.clear();
        self.document = None;
        (self.sent, self.ready) = (0, 0);
    }
}

/// The slot of one client.
#[derive(Debug, Default)]
struct Output {
    buffer: Option<Box<Buffer>>,
    /// The slot belongs to a connection.
    open: bool,
    /// A reply will come later; no request of the client runs before it.
    blocked: bool,
    /// The socket took everything so far: false after a write would have blocked.
    writable: bool,
    /// Listed in `Outputs::dirty`, in `Outputs::waiting`.
    dirty: bool,
    waiting: bool,
    /// When the client last took a part of its available replies; `None`: it has taken all.
    stalled: Option<Time>,
    peer: Peer,
}

/// The result of [`Outputs::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The client has all its replies.
    All,
    /// Something waits: for the log, for the socket, or for the next turn.
    Part,
}

/// The replies of all clients. Clients that have something to send are listed, so that no code here
/// looks at the others.
#[derive(Debug)]
pub(super) struct Outputs {
    slots: Vec<Output>,
    /// Clients with something that may be ready to be written: newly, or left over.
    dirty: Schedule,
    /// Clients with something that waits for the log.
    waiting: Vec<ClientId>,
    /// Clients that were blocked and got their reply since the last look.
    unblocked: Vec<ClientId>,
    #[allow(clippy::vec_box)] // slots hold boxes: these are the same ones, not moved or boxed anew
    pool: Vec<Box<Buffer>>,
    /// Clients whose sockets take no more bytes, ordered by when they last took some.
    stalled: Lying,
    acknowledged: Position,
    /// Bytes of memory held for all clients together, and their bound.
    held: usize,
    held_max: usize,
    /// When the turn of the loop began.
    now: Time,
    /// Bytes written and bytes of replies taken in this turn.
    written: usize,
    replied: usize,
    /// How long this turn has been writing, and whether that is long enough.
    stint: Stint,
    unnoted: usize,
    is_time_up: bool,
}

impl Outputs {
    /// No client is connected. `held_max` bounds the bytes held for all clients together, more or
    /// less by one reply and what a turn brings.
    pub(super) fn new(held_max: usize) -> Outputs {
        Outputs {
            slots: Vec::new(),
            dirty: Schedule::default(),
            waiting: Vec::new(),
            unblocked: Vec::new(),
            pool: Vec::new(),
            stalled: Lying::default(),
            acknowledged: Position::ZERO,
            held: 0,
            held_max,
            now: Time(0),
            written: 0,
            replied: 0,
            stint: Stint::new(LOOK_AFTER),
            unnoted: 0,
            is_time_up: false,
        }
    }

    /// A turn of the loop begins: its bounds are reset.
    pub(super) fn begin_turn(&mut self, now: Time) {
        self.now = now;
        (self.written, self.replied) = (0, 0);
        (self.stint, self.is_time_up) = (Stint::new(LOOK_AFTER), false);
        self.dirty.begin_turn();
    }

    /// True when this turn has brought so many replies that no more requests should run.
    pub(super) fn is_full(&self) -> bool {
        self.replied >= REPLIED_PER_TURN_MAX
    }

    /// True when replies that others asked for wait only for a turn with room to write them.
    /// Clients that ask for much then wait; otherwise the replies would pile up.
    pub(super) fn is_behind(&self) -> bool {
        self.dirty.has_left_over()
    }

    /// Bytes of replies that this turn has brought.
    pub(super) fn replied(&self) -> usize {
        self.replied
    }

    /// True when too much is held for clients: no requests run until it drains, or until clients
    /// that take nothing lose their replies ([`Outputs::longest_stalled`]).
    pub(super) fn is_over(&self) -> bool {
        self.held > self.held_max
    }

    /// Of the clients that could have taken something, the one that has taken nothing for the
    /// longest time, and since when.
    pub(super) fn longest_stalled(&self) -> Option<(Time, ClientId)> {
        self.stalled.longest()
    }

    /// Who is at the other end of a connection.
    pub(super) fn name(&mut self, client: ClientId, peer: Peer) {
        self.slot(client).peer = peer;
    }

    /// A new connection has this id.
    pub(super) fn open(&mut self, client: ClientId) {
        let index = client.0 as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Output::default);
        }
        assert!(
            !self.slots[index].open,
            "the id of a connection was handed out twice"
        );
        self.slots[index] = Output {
            open: true,
            writable: true,
            ..Output::default()
        };
    }

    /// The connection is gone; its unsent replies are dropped.
    pub(super) fn close(&mut self, client: ClientId) {
        self.discard(client);
        // Lists that still contain the client find its flags cleared and skip it.
        *self.slot(client) = Output::default();
    }

    /// The client waits for a reply that comes later.
    pub(super) fn block(&mut self, client: ClientId) {
        self.slot(client).blocked = true;
    }

    /// True while the client waits for a reply that comes later.
    pub(super) fn is_blocked(&self, client: ClientId) -> bool {
        self.slots[client.0 as usize].blocked
    }

    /// True when the next request of the client may run: it waits for no reply, and it takes its
    /// replies. If much is held already, it must have taken all of them.
    pub(super) fn may_run(&self, client: ClientId) -> bool {
        let output = &self.slots[client.0 as usize];
        let pending_max = if self.held > self.held_max / 2 {
            1
        } else {
            PENDING_MAX
        };
        !output.blocked
            && output
                .buffer
                .as_ref()
                .is_none_or(|it| it.pending() < pending_max && it.document.is_none())
    }

    /// True when the client has all its replies.
    pub(super) fn is_empty(&self, client: ClientId) -> bool {
        self.slots[client.0 as usize].buffer.is_none()
    }

    /// Bytes of memory held for all clients together.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// The socket of the client takes bytes again.
    pub(super) fn set_writable(&mut self, client: ClientId) {
        let output = self.slot(client);
        // A socket that took bytes all the time is already listed, where needed.
        let was_full = !std::mem::replace(&mut output.writable, true);
        if was_full && output.buffer.is_some() && !std::mem::replace(&mut output.dirty, true) {
            self.dirty.leave_over(client);
        }
    }

    /// Replies that wait for a position up to this one may leave.
    pub(super) fn acknowledge(&mut self, position: Position) {
        if position <= self.acknowledged {
            return;
        }
        self.acknowledged = position;
        for client in std::mem::take(&mut self.waiting) {
            let output = self.slot(client);
            if std::mem::take(&mut output.waiting) {
                self.list_dirty(client);
            }
        }
    }

    /// True when some client has something that may be ready to be written.
    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The next client that may have something ready to be written. `None`: there is none, or the
    /// turn has written enough. When the turn has been writing for long enough, only newly listed
    /// clients follow, and one that is left over.
    pub(super) fn next_dirty(&mut self) -> Option<ClientId> {
        let room = match (self.written >= WRITTEN_PER_TURN_MAX, self.is_time_up) {
            (true, _) => Room::None,
            (false, true) => Room::Anew,
            (false, false) => Room::All,
        };
        self.dirty.next(room)
    }

    /// To be called after each [`Outputs::send`]: it reads the clock from time to time.
    pub(super) fn note_time(&mut self, clock: impl FnOnce() -> Time) {
        let more = std::mem::take(&mut self.unnoted) + WRITE_COST;
        self.is_time_up |= self.stint.is_up(more, clock);
    }

    /// A client that was blocked and got its reply; each is returned once.
    pub(super) fn next_unblocked(&mut self) -> Option<ClientId> {
        self.unblocked.pop()
    }

    /// Write what may leave to the client's socket.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn send(&mut self, client: ClientId, socket: &mut impl Write) -> io::Result<Sent> {
        let acknowledged = self.acknowledged;
        let output = self.slot(client);
        output.dirty = false;
        let Some(mut buffer) = output.buffer.take() else {
            return Ok(Sent::All);
        };
        let mut writable = output.writable;
        let held_before = buffer.held();
        buffer.release(acknowledged);
        let mut taken = 0;
        let outcome = write_ready(&mut buffer, &mut writable, &mut taken, socket);
        self.held = self.held - held_before + buffer.held();
        self.written += taken;
        self.unnoted += taken;
        self.slot(client).writable = writable;
        self.note_progress(client, taken, buffer.is_done());
        self.put_back(client, buffer, writable);
        outcome.map(|()| {
            if self.is_empty(client) {
                Sent::All
            } else {
                Sent::Part
            }
        })
    }

    /// Keep what was not sent, and list the client where it will be found again.
    fn put_back(&mut self, client: ClientId, buffer: Box<Buffer>, writable: bool) {
        if buffer.is_done() {
            return self.recycle(buffer);
        }
        let (has_ready, has_parked) = (buffer.ready > 0, !buffer.parked.is_empty());
        let output = self.slot(client);
        output.buffer = Some(buffer);
        if has_parked && !std::mem::replace(&mut output.waiting, true) {
            self.waiting.push(client);
        }
        if has_ready && writable && !std::mem::replace(&mut self.slot(client).dirty, true) {
            self.dirty.leave_over(client);
        }
    }

    /// Update the order of the clients that take nothing, after a client took `taken` bytes and
    /// perhaps all there is.
    fn note_progress(&mut self, client: ClientId, taken: usize, is_done: bool) {
        let output = &self.slots[client.0 as usize];
        if output.writable || is_done {
            self.set_stalled(client, None);
        } else if taken > 0 || output.stalled.is_none() {
            self.set_stalled(client, Some(self.now));
        }
    }

    fn set_stalled(&mut self, client: ClientId, since: Option<Time>) {
        let entry = &mut self.slots[client.0 as usize].stalled;
        self.stalled.replace(client, entry, since);
    }

    /// Drop the client's unsent replies: it is to be closed.
    pub(super) fn discard(&mut self, client: ClientId) {
        if let Some(buffer) = self.slot(client).buffer.take() {
            self.recycle(buffer);
        }
        self.set_stalled(client, None);
    }

    fn recycle(&mut self, mut buffer: Box<Buffer>) {
        self.held -= buffer.held();
        if self.pool.len() < POOL_COUNT_MAX && buffer.held() <= POOLED_SIZE_MAX {
            buffer.clear();
            self.pool.push(buffer);
        }
    }

    /// List a client that has something new to be written: behind the others if it is much.
    fn list_dirty(&mut self, client: ClientId) {
        let output = self.slot(client);
        let pending = output.buffer.as_ref().map_or(0, |buffer| buffer.pending());
        if !std::mem::replace(&mut output.dirty, true) {
            match pending < PENDING_SMALL {
                true => self.dirty.come(client),
                false => self.dirty.leave_over(client),
            }
        }
    }

    fn slot(&mut self, client: ClientId) -> &mut Output {
        &mut self.slots[client.0 as usize]
    }
}

impl ReplySink for Outputs {
    fn link(&self, client: ClientId) -> Option<Link> {
        let output = self.slots.get(client.0 as usize);
        let output = output.filter(|output| output.open)?;
        let unread = output.buffer.as_ref().map_or(0, |buffer| buffer.ready);
        Some(Link {
            peer: output.peer.address(),
            unread,
        })
    }

    fn reply(&mut self, client: ClientId, after: Position, reply: Reply<'_>) {
        self.push(client, |buffer| buffer.push(after, &reply));
    }

    fn reply_in_parts(&mut self, client: ClientId, after: Position, document: TubeDocument) {
        self.push(client, |buffer| {
            let before = buffer.bytes.len();
            protocol::encode_document_begin(document.size(), &mut buffer.bytes);
            buffer.park(after, buffer.bytes.len() - before);
            buffer.document = Some(Box::new(document));
        });
    }
}

impl Outputs {
    /// Add a reply for the client.
    fn push(&mut self, client: ClientId, add: impl FnOnce(&mut Buffer)) {
        let output = &mut self.slots[client.0 as usize];
        assert!(
            output.open,
            "a reply for a client that is gone would reach another one"
        );
        if std::mem::take(&mut output.blocked) {
            self.unblocked.push(client);
        }
        let buffer = output.buffer.get_or_insert_with(|| {
            let buffer = self.pool.pop().unwrap_or_default();
            self.held += buffer.held();
            buffer
        });
        assert!(
            buffer.document.is_none(),
            "nothing is told in the middle of a document"
        );
        let (held_before, pending_before) = (buffer.held(), buffer.pending());
        add(buffer);
        self.held += buffer.held() - held_before;
        self.replied += buffer.pending() - pending_before;
        self.list_dirty(client);
    }
}

/// Write ready bytes until there are none, the socket takes no more, or the next client is to be
/// served. An event follows only a write that would block, so no client is missed.
fn write_ready(
    buffer: &mut Buffer,
    writable: &mut bool,
    taken: &mut usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut budget = WRITTEN_PER_CLIENT_MAX;
    while *writable && buffer.ready > 0 && budget > 0 {
        let bytes = buffer.unsent();
        match out.write(&bytes[..bytes.len().min(budget)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                buffer.mark_sent(count);
                buffer.go_on();
                *taken += count;
                budget -= count;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => *writable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, Options};
    use crate::protocol::{Command, Request};
    use crate::types::{JobId, Now, SECOND_NS, SegmentId};

    const ONE: ClientId = ClientId(0);
    const TWO: ClientId = ClientId(1);

    /// A socket that takes `room` bytes and then would block.
    struct Socket {
        bytes: Vec<u8>,
        room: usize,
        writes: usize,
    }

    impl Socket {
        fn new() -> Socket {
            Socket {
                bytes: Vec::new(),
                room: usize::MAX,
                writes: 0,
            }
        }

        fn text(&self) -> &str {
            std::str::from_utf8(&self.bytes).unwrap()
        }
    }

    impl Write for Socket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(self.room);
            self.bytes.extend_from_slice(&bytes[..count]);
            self.room -= count;
            self.writes += 1;
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn at(offset: u32) -> Position {
        Position::new(SegmentId(1), offset)
    }

    fn outputs() -> Outputs {
        let mut outputs = Outputs::new(1 << 30);
        outputs.open(ONE);
        outputs.open(TWO);
        outputs
    }

    /// One turn's sending, for this client alone.
    fn send_dirty(outputs: &mut Outputs, client: ClientId, socket: &mut Socket) {
        outputs.begin_turn(Time(0));
        while let Some(listed) = outputs.next_dirty() {
            assert_eq!(listed, client);
            outputs.send(client, socket).unwrap();
        }
    }

    #[test]
    fn nothing_leaves_before_the_log_has_caught_up() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        outputs.reply(ONE, at(10), Reply::Inserted(JobId(1)));
        outputs.reply(ONE, at(20), Reply::Inserted(JobId(2)));
        send_dirty(&mut outputs, ONE, &mut socket);
        outputs.acknowledge(at(9));
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.text(), "");
        outputs.acknowledge(at(10));
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.text(), "INSERTED 1\r\n");
        outputs.acknowledge(at(25));
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.text(), "INSERTED 1\r\nINSERTED 2\r\n");
        assert!(outputs.is_empty(ONE));
    }

    #[test]
    fn a_reply_that_need_not_wait_does_not_overtake_one_that_must() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        outputs.reply(ONE, at(10), Reply::Deleted);
        outputs.reply(ONE, Position::ZERO, Reply::NotFound);
        assert_eq!(outputs.send(ONE, &mut socket).unwrap(), Sent::Part);
        assert_eq!(socket.text(), "");
        outputs.acknowledge(at(10));
        assert_eq!(outputs.send(ONE, &mut socket).unwrap(), Sent::All);
        assert_eq!(socket.text(), "DELETED\r\nNOT_FOUND\r\n");
    }

    #[test]
    fn a_reply_before_the_one_that_waits_leaves_at_once() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        outputs.reply(ONE, Position::ZERO, Reply::NotFound);
        outputs.reply(ONE, at(10), Reply::Deleted);
        assert_eq!(outputs.send(ONE, &mut socket).unwrap(), Sent::Part);
        assert_eq!(socket.text(), "NOT_FOUND\r\n");
    }

    #[test]
    fn one_client_that_waits_does_not_hold_up_another() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        outputs.reply(ONE, at(10), Reply::Deleted);
        outputs.reply(TWO, Position::ZERO, Reply::NotFound);
        assert_eq!(outputs.send(TWO, &mut socket).unwrap(), Sent::All);
        assert_eq!(socket.text(), "NOT_FOUND\r\n");
    }

    #[test]
    fn many_replies_take_one_write() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        for id in 0..100 {
            outputs.reply(ONE, at(id), Reply::Inserted(JobId(u64::from(id))));
        }
        outputs.acknowledge(at(100));
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.writes, 1);
        assert_eq!(socket.text().lines().count(), 100);
    }

    #[test]
    fn replies_of_one_position_are_parked_together() {
        let mut outputs = outputs();
        for _ in 0..100 {
            outputs.reply(ONE, at(10), Reply::Deleted);
        }
        assert_eq!(outputs.slots[0].buffer.as_ref().unwrap().parked.len(), 1);
    }

    #[test]
    fn a_full_socket_goes_on_where_it_stopped() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        socket.room = 5;
        outputs.reply(ONE, Position::ZERO, Reply::NotFound);
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.text(), "NOT_F");
        assert!(!outputs.has_dirty(), "it would be tried again and again");
        // A further reply does not try a socket that is known to be full.
        outputs.reply(ONE, Position::ZERO, Reply::Deleted);
        socket.room = usize::MAX;
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.text(), "NOT_F");
        outputs.set_writable(ONE);
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.text(), "NOT_FOUND\r\nDELETED\r\n");
    }

    #[test]
    fn a_client_that_does_not_take_its_replies_is_not_served() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        let body = vec![b'x'; PENDING_MAX];
        assert!(outputs.may_run(ONE));
        outputs.reply(ONE, Position::ZERO, Reply::Found(JobId(1), &body));
        assert!(!outputs.may_run(ONE));
        assert!(outputs.may_run(TWO));
        outputs.send(ONE, &mut socket).unwrap();
        assert!(outputs.may_run(ONE));
    }

    #[test]
    fn a_large_reply_is_written_in_turns() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        let body = vec![b'x'; 2 * WRITTEN_PER_CLIENT_MAX];
        outputs.reply(ONE, Position::ZERO, Reply::Found(JobId(1), &body));
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.bytes.len(), WRITTEN_PER_CLIENT_MAX);
        assert!(
            outputs.has_dirty(),
            "the next turn must not wait for an event"
        );
        send_dirty(&mut outputs, ONE, &mut socket);
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(
            socket.bytes.len(),
            body.len() + "FOUND 1 524288\r\n\r\n".len()
        );
        assert!(outputs.is_empty(ONE));
    }

    /// What is written in one turn, and to which clients, in order.
    fn turn(outputs: &mut Outputs) -> Vec<u32> {
        let mut order = Vec::new();
        outputs.begin_turn(Time(0));
        while let Some(client) = outputs.next_dirty() {
            outputs.send(client, &mut Socket::new()).unwrap();
            order.push(client.0);
        }
        order
    }

    #[test]
    fn f22_a_turn_takes_and_writes_its_share_and_who_comes_anew_goes_first() {
        let mut outputs = Outputs::new(1 << 30);
        let body = vec![b'x'; 4 * WRITTEN_PER_CLIENT_MAX];
        let clients: Vec<_> = (0..20).map(ClientId).collect();
        for &client in &clients {
            assert_eq!(outputs.is_full(), client.0 >= 4, "{client:?}");
            outputs.open(client);
            outputs.reply(client, Position::ZERO, Reply::Found(JobId(1), &body));
        }
        assert_eq!(turn(&mut outputs), Vec::from_iter(0..16));
        assert!(!outputs.is_full());
        let last = ClientId(20);
        outputs.open(last);
        outputs.reply(last, Position::ZERO, Reply::NotFound);
        let order: Vec<u32> = [20].into_iter().chain(16..20).chain(0..12).collect();
        assert_eq!(
            turn(&mut outputs),
            order,
            "those who are left over come last"
        );
    }

    #[test]
    fn f22_when_a_turn_has_written_for_long_enough_only_who_comes_anew_is_told_and_one_more() {
        let mut outputs = Outputs::new(1 << 30);
        let body = vec![b'x'; 2 * WRITTEN_PER_CLIENT_MAX];
        let small = ClientId(9);
        outputs.open(small);
        for client in (0..9).map(ClientId) {
            outputs.open(client);
            outputs.reply(client, Position::ZERO, Reply::Found(JobId(1), &body));
        }
        // Each reading of the clock finds that this much time has passed.
        let mut time = 0;
        let mut turn = |outputs: &mut Outputs| {
            let mut order = Vec::new();
            outputs.begin_turn(Time(time));
            while let Some(client) = outputs.next_dirty() {
                outputs.send(client, &mut Socket::new()).unwrap();
                order.push(client.0);
                outputs.note_time(|| {
                    time += SECOND_NS;
                    Time(time)
                });
            }
            order
        };
        assert_eq!(turn(&mut outputs), [0, 1]);
        assert!(outputs.is_behind());
        outputs.reply(small, Position::ZERO, Reply::NotFound);
        assert_eq!(turn(&mut outputs), [9, 2, 3]);
    }

    #[test]
    fn f24_where_much_is_held_only_who_has_taken_all_is_served_and_past_the_bound_nobody() {
        let mut outputs = Outputs::new(100_000);
        outputs.open(ONE);
        outputs.open(TWO);
        let body = vec![b'x'; 60_000];
        outputs.reply(ONE, Position::ZERO, Reply::Found(JobId(1), &body));
        assert!(!outputs.may_run(ONE) && outputs.may_run(TWO));
        assert!(!outputs.is_over());
        outputs.reply(TWO, Position::ZERO, Reply::Found(JobId(1), &body));
        assert!(outputs.is_over());
        outputs.close(ONE);
        assert!(!outputs.is_over());
    }

    /// The document of `list-tubes` for `count` tubes with long names.
    fn document(count: usize) -> (Engine, Outputs) {
        let now = Now {
            mono: Time(0),
            wall_ns: 0,
        };
        let mut engine = Engine::open(&Options::default(), now).unwrap();
        let mut outputs = Outputs::new(1 << 30);
        let client = engine.connect();
        assert_eq!(client, ONE);
        outputs.open(ONE);
        for number in 0..count {
            let name = format!("{number:0150}");
            let watch = Request::Command(Command::Watch(&name));
            engine.run(ONE, watch, now, &mut outputs);
        }
        outputs.discard(ONE);
        let list = Request::Command(Command::ListTubes);
        engine.run(ONE, list, now, &mut outputs);
        (engine, outputs)
    }

    #[test]
    fn f23_a_long_list_of_tubes_is_written_down_as_it_leaves_and_held_in_part_only() {
        let (_engine, mut outputs) = document(5000);
        assert!(outputs.held() < 20_000, "{}", outputs.held());
        assert!(!outputs.may_run(ONE), "what comes behind it waits");
        let mut socket = Socket::new();
        let size = 4 + "- default\n".len() + 5000 * 153;
        let mut turns = 0;
        while !outputs.is_empty(ONE) {
            send_dirty(&mut outputs, ONE, &mut socket);
            assert!(outputs.held() < 150_000, "{}", outputs.held());
            turns += 1;
        }
        assert!(turns >= size / (2 * WRITTEN_PER_TURN_MAX), "{turns}");
        let text = socket.text();
        assert!(text.starts_with(&format!("OK {size}\r\n---\n- default\n- 000")));
        assert!(text.ends_with("4999\n\r\n"));
        assert_eq!(text.len(), format!("OK {size}\r\n").len() + size + 2);
        assert!(outputs.may_run(ONE));
    }

    #[test]
    fn f23_a_client_that_leaves_in_the_middle_of_a_document_leaves_nothing() {
        let (_engine, mut outputs) = document(5000);
        let mut socket = Socket::new();
        socket.room = 50_000;
        send_dirty(&mut outputs, ONE, &mut socket);
        assert!(outputs.longest_stalled().is_some());
        outputs.close(ONE);
        assert_eq!((outputs.held(), outputs.longest_stalled()), (0, None));
    }

    #[test]
    fn f24_who_has_taken_nothing_for_longest_is_known() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        let mut send = |outputs: &mut Outputs, client, room, at| {
            outputs.begin_turn(Time(at));
            outputs.set_writable(client);
            socket.room = room;
            outputs.send(client, &mut socket).unwrap();
        };
        for client in [ONE, TWO] {
            outputs.reply(client, Position::ZERO, Reply::NotFound);
        }
        assert_eq!(
            outputs.longest_stalled(),
            None,
            "nobody has been offered anything"
        );
        send(&mut outputs, ONE, 0, 1);
        send(&mut outputs, TWO, 0, 2);
        assert_eq!(outputs.longest_stalled(), Some((Time(1), ONE)));
        send(&mut outputs, ONE, 1, 3);
        assert_eq!(outputs.longest_stalled(), Some((Time(2), TWO)));
        send(&mut outputs, TWO, 100, 4);
        assert_eq!(outputs.longest_stalled(), Some((Time(3), ONE)));
        outputs.close(ONE);
        assert_eq!(outputs.longest_stalled(), None);
    }

    #[test]
    fn a_reply_ends_the_waiting_of_a_blocked_client() {
        let mut outputs = outputs();
        outputs.block(ONE);
        assert!(!outputs.may_run(ONE));
        outputs.reply(ONE, Position::ZERO, Reply::TimedOut);
        assert!(outputs.may_run(ONE));
        assert_eq!(outputs.next_unblocked(), Some(ONE));
        assert_eq!(outputs.next_unblocked(), None);
    }

    #[test]
    fn memory_is_counted_and_given_back() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        let body = vec![b'x'; 60_000];
        outputs.reply(ONE, Position::ZERO, Reply::Found(JobId(1), &body));
        outputs.reply(TWO, Position::ZERO, Reply::Found(JobId(1), &body));
        assert!(outputs.held() > 120_000);
        outputs.send(ONE, &mut socket).unwrap();
        outputs.close(TWO);
        assert_eq!(outputs.held(), 0);
        assert!(outputs.pool.is_empty(), "large buffers are not kept");
    }

    #[test]
    fn the_next_holder_of_an_id_is_told_nothing_of_the_last_ones() {
        let (mut outputs, mut socket) = (outputs(), Socket::new());
        outputs.reply(ONE, at(10), Reply::Inserted(JobId(1)));
        outputs.send(ONE, &mut socket).unwrap();
        outputs.close(ONE);
        outputs.open(ONE);
        outputs.acknowledge(at(10));
        outputs.reply(ONE, Position::ZERO, Reply::NotFound);
        send_dirty(&mut outputs, ONE, &mut socket);
        assert_eq!(socket.text(), "NOT_FOUND\r\n");
    }
}
