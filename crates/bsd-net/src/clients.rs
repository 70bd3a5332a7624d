//! The way of one connection: admitted, listed, served, told, closed.
//!
//! A connection that asks for much, or leaves with much unsent, has its place behind the others.

use std::io;

use mio::Token;
use mio::event::Event;
use tracing::debug;

use super::auth::Pass;
use super::connection::{Connection, Ending, slot};
use super::core::Core;
use super::gate::Gate;
use super::layers::Layers;
use super::output::Sent;
use super::reactor::Reactor;
use super::socket::{Peer, Stream};
use super::{CONNECTIONS, Server};
use bsd::types::{ClientId, Time};

/// Connections closed in one turn, and how many a connection with unsent replies counts as: the
/// kernel has that much more to free.
pub(super) const CLOSES_PER_TURN: usize = 64;
const UNSENT_CLOSE_COST: usize = 8;

impl Server {
    /// Something happened to a connection.
    pub(super) fn on_event(&mut self, event: &Event) {
        let client = ClientId(event.token().0 as u32);
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        if event.is_writable() {
            connection.readable |= connection.stream.owes();
            self.core.outputs.set_writable(client);
        }
        if event.is_read_closed() && !connection.half_closed {
            connection.half_closed = true;
            self.core.half_close(client);
        }
        let is_broken = event.is_write_closed() || event.is_error();
        // What arrived before the end still runs, as long as no reply is outstanding.
        if is_broken
            && (self.core.outputs.is_blocked(client) || !self.core.outputs.is_empty(client))
        {
            return self.end(client, Ending::Gone);
        }
        self.queue(client);
    }

    pub(super) fn serve_one(&mut self, client: ClientId) {
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        connection.queued = false;
        connection.served_at = self.core.now.mono;
        if connection.left.is_some() && connection.ending.is_none() {
            return self.continue_handshake(client);
        }
        let may_run = self.core.outputs.may_run(client) && !connection.told_at.is_some();
        if !may_run || connection.ending.is_some() {
            return;
        }
        if let Err(error) = self.core.serve(client, connection, &mut self.read_buffer) {
            return self.fail(client, &error);
        }
        self.core.count_held(client, connection);
        if std::mem::take(&mut connection.is_http) {
            let why = io::Error::other("it speaks HTTP to the port of the queue");
            let peer = self.core.outputs.peer(client);
            self.gate.note_failure(peer, &why, self.core.now.mono);
        }
        if connection.entering.is_some() || connection.wrong_token {
            self.gate.look_at(&mut self.core, client, connection);
        }
        if !connection.queued && connection.has_input() {
            if !self.core.outputs.may_run(client) {
                self.core.look_for_abort(client, connection);
            } else if connection.takes_much {
                connection.queued = true;
                self.runnable.leave_over(client);
            } else {
                connection.queued = true;
                self.runnable.come_again(client);
            }
        }
        self.close_if_ended(client);
    }

    /// List a connection if it has something to run and may run it. If it may not, because it waits for a
    /// job, `abort` is looked for.
    pub(super) fn queue(&mut self, client: ClientId) {
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        if !connection.queued && connection.has_input() {
            if !self.core.outputs.may_run(client) {
                self.core.look_for_abort(client, connection);
            } else if connection.takes_much {
                connection.queued = true;
                self.runnable.leave_over(client);
            } else {
                connection.queued = true;
                self.runnable.come(client);
            }
        }
    }

    /// Continue with clients that waited for a reply and now have it.
    pub(super) fn resume(&mut self) {
        while let Some(client) = self.core.outputs.next_unblocked() {
            if let Some(connection) = slot(&mut self.connections, client) {
                connection.served_at = self.core.now.mono;
            }
            self.queue(client);
        }
    }

    /// Write what may leave.
    pub(super) fn send(&mut self) {
        while let Some(client) = self.core.outputs.next_dirty() {
            self.send_one(client);
            self.core.outputs.note_time(|| self.clock.now().mono);
        }
    }

    fn send_one(&mut self, client: ClientId) {
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        let sent = self.core.outputs.send(client, &mut connection.stream);
        self.core
            .outputs
            .count_sealed(client, connection.stream.sealed());
        match sent {
            Ok(Sent::All) => {
                self.queue(client);
                self.close_if_ended(client);
            }
            Ok(Sent::Part) => self.queue(client),
            Err(error) => self.fail(client, &error),
        }
    }

    fn close_if_ended(&mut self, client: ClientId) {
        let ending = slot(&mut self.connections, client).and_then(|connection| connection.ending);
        if let Some(reason) = ending.filter(|_| self.core.outputs.is_empty(client)) {
            self.end(client, reason);
        }
    }

    /// The connection is broken.
    fn fail(&mut self, client: ClientId, error: &io::Error) {
        debug!(client = client.0, "connection broken: {error}");
        self.end(client, Ending::Broken);
    }

    /// Close a connection, even if replies are unsent. This happens at once if it can: clients that
    /// come later are to find the jobs that this one leaves. But closing takes time, and thousands
    /// may leave at once; beyond this turn's bound a connection is listed.
    pub(super) fn end(&mut self, client: ClientId, reason: Ending) {
        if let Some(connection) = slot(&mut self.connections, client)
            && !std::mem::replace(&mut connection.leaving, true)
        {
            connection.ending = Some(reason);
            self.leaving.push_back(client);
            self.depart();
        }
    }

    /// Close clients that have taken nothing for too long. If unfinished requests or unread replies
    /// take too much memory, choose clients that must give way.
    pub(super) fn make_way(&mut self) {
        self.turn_away();
        self.sweep();
        while let Some((client, reason)) = self.core.next_to_close() {
            self.core.outputs.discard(client);
            self.end(client, reason);
        }
        while let Some(client) = self.core.next_to_refuse() {
            let Some(connection) = slot(&mut self.connections, client) else {
                return;
            };
            let is_body = connection.decoder.refuse_body();
            self.core.engine.forget_begun(client);
            if !is_body {
                connection.drop_input();
                self.end(client, Ending::LargeRequests);
            }
            if let Some(connection) = slot(&mut self.connections, client) {
                self.core.count_held(client, connection);
            }
        }
    }

    /// Close the listed connections, within this turn's bounds.
    pub(super) fn depart(&mut self) {
        while self.closes_left > 0
            && let Some(client) = self.leaving.pop_front()
        {
            let is_told = self.core.outputs.is_empty(client);
            let cost = if is_told { 1 } else { UNSENT_CLOSE_COST };
            self.closes_left = self.closes_left.saturating_sub(cost);
            if let Some(connection) = slot(&mut self.connections, client).filter(|_| is_told) {
                connection.stream.finish();
            }
            self.close(client);
        }
    }

    fn close(&mut self, client: ClientId) {
        let Some(mut connection) = self.connections[client.0 as usize].take() else {
            return;
        };
        let peer = self.core.outputs.peer(client);
        if let Some(reason) = connection.ending {
            debug!(target: CONNECTIONS, client = client.0, %peer, "closed: {reason}");
        }
        self.gate.forget(client, &mut connection);
        self.gate.uncount(peer, connection.is_counted);
        if let Some(auth) = &mut self.core.auth {
            auth.forget(client, &mut connection.told_at);
        }
        self.core.forget(client, &mut connection);
        self.connection_count -= 1;
        // Closing the descriptor ends its registration: nothing else refers to it.
    }
}

/// A client that has connected and may: its stream with the layers of the listener around it.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream: Stream,
    pub(super) peer: Peer,
    /// The layers that it has not come through yet.
    pub(super) left: Layers,
    /// It is counted in the gate's `per_address`.
    pub(super) is_counted: bool,
}

impl Accepted {
    /// Someone has connected to a listener with these layers.
    ///
    /// # Errors
    /// It may not connect.
    pub(super) fn new(
        gate: &mut Gate,
        (stream, peer, layers): (Stream, Peer, Layers),
        now: Time,
    ) -> io::Result<Accepted> {
        stream.tune(gate.probing);
        let is_counted = gate.admit(peer, layers, now)?;
        match gate.wrap(stream, layers) {
            Ok(stream) => Ok(Accepted {
                stream,
                peer,
                left: layers,
                is_counted,
            }),
            Err(error) => {
                gate.uncount(peer, is_counted);
                Err(error)
            }
        }
    }
}

/// A new client: the engine names it, and the name is its place in the table.
pub(super) fn admit(
    core: &mut Core,
    connections: &mut Vec<Option<Box<Connection>>>,
    reactor: &Reactor,
    gate: &mut Gate,
    accepted: Accepted,
) -> io::Result<ClientId> {
    let Accepted {
        stream,
        peer,
        left,
        is_counted,
    } = accepted;
    // The file of a Unix socket says who may open it.
    let is_unix = matches!(stream, Stream::Unix(_));
    let mut connection = Box::new(Connection::new(stream));
    let client = core.engine.connect();
    if let Err(error) = connection
        .stream
        .register(reactor.registry(), Token(client.0 as usize))
    {
        core.engine.disconnect(client, core.now);
        gate.uncount(peer, is_counted);
        return Err(error);
    }
    core.outputs.open(client);
    core.outputs.name(client, peer);
    if connections.len() <= client.0 as usize {
        connections.resize_with(client.0 as usize + 1, || None);
    }
    debug!(target: CONNECTIONS, client = client.0, %peer, "connected");
    connection.left = left;
    connection.is_counted = is_counted;
    connection.served_at = core.now.mono;
    if core.auth.is_some() && !is_unix {
        connection.pass = Pass::Asked;
    }
    if connection.left.is_some() || connection.pass.is_asked() {
        gate.expect(client, &mut connection, core.now.mono);
    }
    connections[client.0 as usize] = Some(connection);
    Ok(client)
}
