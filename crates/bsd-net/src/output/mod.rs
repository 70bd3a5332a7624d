//! Replies that have not reached their clients: encoded, and parked until the log has caught up.
//!
//! A reply waits here between the engine and the socket. Invariants:
//! * no byte of a reply is written before [`Outputs::acknowledge`] has reached the ticket that
//!   the reply was given with (a crash cannot take back anything that a client has seen);
//! * the replies of one client leave in the order in which they were given;
//! * a client without outstanding replies owns no memory here except its slot;
//! * what is held for all clients together is bounded: see [`Outputs::is_over`].

mod buffer;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::sync::Arc;

use self::buffer::Buffer;
use super::bounds::{Since, StalledClients};
use super::schedule::{Room, Schedule, Stint};
use super::socket::Peer;
use bsd::engine::{Link, ReplySink, TubeDocument};
use bsd::protocol::{Reply, Shown};
use bsd::storage::Body;
use bsd::types::{ClientId, JobId, Ticket, Time};

/// A client with more waiting bytes than this is neither read nor served until it takes them.
const PENDING_MAX: usize = 256 << 10;
/// Clients with fewer waiting bytes than this are written to before those with more.
const PENDING_SMALL: usize = 32 << 10;
/// Bytes written to all clients in one turn, more or less by those of one client.
const WRITTEN_PER_TURN_MAX: usize = 1 << 20;
/// The clock is read each time this many bytes are written, and what each write counts in addition.
const LOOK_AFTER: usize = 32 << 10;
const WRITE_COST: usize = 1 << 10;
/// Bytes of replies taken in one turn before requests are left for the next one.
pub(super) const REPLIED_PER_TURN_MAX: usize = 1 << 20;
/// Buffers kept for the next replies, and the largest size that is kept.
const POOL_COUNT_MAX: usize = 256;
const POOLED_SIZE_MAX: usize = 8 << 10;

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
    /// Listed in `Outputs::dismissed`.
    is_dismissed: bool,
    /// When the client last took a part of its available replies; never: it has taken all.
    stalled: Since,
    peer: Peer,
    /// What only clients with TLS or a token have.
    secured: Option<Box<Secured>>,
}

/// There may be ten thousand of them.
const _: () = assert!(size_of::<Output>() <= 56);

#[derive(Debug, Default)]
struct Secured {
    /// The name in the client's certificate, or of its token.
    name: Option<Arc<str>>,
    /// Bytes that are held below, in addition to the buffer, for a write that is not over.
    sealed: usize,
}

impl Output {
    fn secured(&mut self) -> &mut Secured {
        self.secured.get_or_insert_default()
    }
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
    #[allow(clippy::vec_box)]
    // slots hold boxes: these are the same ones, not moved or boxed again
    pool: Vec<Box<Buffer>>,
    /// Clients whose sockets take no more bytes, ordered by when they last took some.
    stalled: StalledClients,
    /// Clients that are to be closed because someone said so.
    dismissed: Vec<ClientId>,
    acknowledged: Ticket,
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
            stalled: StalledClients::default(),
            dismissed: Vec::new(),
            acknowledged: Ticket::NONE,
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

    /// Of the clients that could have taken something, and to which a body is sent that is kept for
    /// no one else: the one that has taken nothing for the longest time, and since when.
    pub(super) fn longest_lent(&self) -> Option<(Time, ClientId)> {
        let is_lent = |client: ClientId| {
            let buffer = self.slots[client.0 as usize].buffer.as_ref();
            buffer.is_some_and(|buffer| buffer.is_lent())
        };
        self.stalled.in_order().find(|(_, client)| is_lent(*client))
    }

    /// A client that someone wants to be closed; each is returned once.
    pub(super) fn next_dismissed(&mut self) -> Option<ClientId> {
        while let Some(client) = self.dismissed.pop() {
            // Its id may be that of another connection since.
            if std::mem::take(&mut self.slot(client).is_dismissed) {
                return Some(client);
            }
        }
        None
    }

    /// Who is at the other end of a connection.
    pub(super) fn name(&mut self, client: ClientId, peer: Peer) {
        self.slot(client).peer = peer;
    }

    /// Who that is.
    pub(super) fn peer(&self, client: ClientId) -> Peer {
        self.slots[client.0 as usize].peer
    }

    /// The client has this name, from its certificate or its token.
    pub(super) fn certify(&mut self, client: ClientId, name: Option<Arc<str>>) {
        let output = self.slot(client);
        if name.is_some() || output.secured.is_some() {
            output.secured().name = name;
        }
    }

    /// The client has shown a right token, of a holder with this name; it is told.
    pub(super) fn authenticate(&mut self, client: ClientId, name: Option<Arc<str>>) {
        if name.is_some() {
            self.certify(client, name);
        }
        self.reply(client, Ticket::NONE, Reply::Authenticated);
    }

    /// This many bytes are held below the buffer for a write that is not over.
    pub(super) fn count_sealed(&mut self, client: ClientId, sealed: usize) {
        let output = self.slot(client);
        if sealed > 0 || output.secured.is_some() {
            let before = std::mem::replace(&mut output.secured().sealed, sealed);
            self.held = self.held - before + sealed;
        }
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
                .is_none_or(|it| it.pending() < pending_max && !it.has_rest())
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

    /// Replies that wait for a ticket up to this one may leave.
    pub(super) fn acknowledge(&mut self, upto: Ticket) {
        if upto <= self.acknowledged {
            return;
        }
        self.acknowledged = upto;
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

    /// The next client that may have something ready to be written. `None`: no client has, or the
    /// turn has written enough. When the turn has been writing for long enough, only newly listed
    /// clients follow, and one that is left over.
    pub(super) fn next_dirty(&mut self) -> Option<ClientId> {
        let room = match (self.written >= WRITTEN_PER_TURN_MAX, self.is_time_up) {
            (true, _) => Room::None,
            (false, true) => Room::Again,
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
        let outcome = buffer.write_to(socket, &mut writable, &mut taken);
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
        let (has_ready, has_parked) = (buffer.has_ready(), buffer.has_parked());
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
        } else if taken > 0 || !output.stalled.is_some() {
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
        self.count_sealed(client, 0);
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
        if std::mem::replace(&mut output.dirty, true) {
            return;
        }
        let is_much = |it: &Buffer| it.pending() >= PENDING_SMALL || it.has_rest();
        match output.buffer.as_deref().is_some_and(is_much) {
            false => self.dirty.come(client),
            true => self.dirty.leave_over(client),
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
        let unread = output.buffer.as_ref().map_or(0, |buffer| buffer.unread());
        Some(Link {
            peer: output.peer.address(),
            name: output.secured.as_ref().and_then(|it| it.name.clone()),
            unread,
        })
    }

    fn close(&mut self, client: ClientId) -> bool {
        let output = self.slots.get_mut(client.0 as usize);
        let Some(output) = output.filter(|output| output.open) else {
            return false;
        };
        if !std::mem::replace(&mut output.is_dismissed, true) {
            self.dismissed.push(client);
        }
        true
    }

    fn reply(&mut self, client: ClientId, after: Ticket, reply: Reply<'_>) {
        self.push(client, |buffer| buffer.push(after, &reply));
    }

    fn reply_in_parts(&mut self, client: ClientId, after: Ticket, document: TubeDocument) {
        self.push(client, |buffer| buffer.push_document(after, document));
    }

    /// Half of the bound is for batches. What is past it is for replies that others wait for.
    fn room(&self, _: ClientId) -> usize {
        (self.held_max / 2).saturating_sub(self.held)
    }

    fn takes_pieces(&self, _: ClientId) -> bool {
        true
    }

    fn reply_body(&mut self, client: ClientId, after: Ticket, job: (Shown<'_>, JobId), body: Body) {
        self.push(client, |buffer| buffer.push_body(after, job, body));
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
            !buffer.has_rest(),
            "nothing is told in the middle of a document or a body"
        );
        let is_listed = output.dirty;
        // It has no rest.
        let (held_before, pending_before) = (buffer.capacity(), buffer.pending());
        add(buffer);
        self.held += buffer.held() - held_before;
        self.replied += buffer.pending() - pending_before;
        if !is_listed {
            self.list_dirty(client);
        }
    }
}
