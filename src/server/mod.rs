//! Sockets, signals and the clock around an engine: one thread, one loop.
//!
//! A turn of the loop (`Server::turn`) reads and runs what has arrived, lets the engine do its
//! timers and slices, commits once for all of it, and only then sends replies:
//!
//! ```text
//! poll → accept → read, decode, run → calls of threads → tick → commit (one write, one sync) → send
//! ```
//!
//! If the commit will wait for the disk, the loop looks at the sockets once more before it: such a
//! look is a hundred times shorter than a sync, and the requests that have arrived meanwhile share
//! this sync.
//!
//! Invariants:
//! * A reply leaves only when the log has caught up with it (see `output`).
//! * A turn's work is bounded for each connection and in total. Clients with work left over are
//!   listed and continue in the next turn, after all newly listed clients. No turn looks at
//!   connections that have nothing to do.
//! * Sockets are registered once, edge-triggered: a connection is listed until a read has emptied
//!   it. There is no system call for each command besides read and write.
//! * Other threads call the engine through a [`Door`]. They get a slice of `DOOR_SLICE_NS` of a
//!   turn, after the clients.
//! * After a [`StoreError`] nothing more is sent.
//!
//! The parts: `accept` (who may connect), `bounds` (what the server may hold for clients),
//! `connection` (input), `output` (replies), `schedule` (who is served next), `socket` (addresses
//! and streams), `reactor` (what wakes the loop), `process` (limits, user, systemd), `pulse` (what
//! the loop shows of itself), `lines` (what is written to standard error).

mod accept;
mod bounds;
mod connection;
mod lines;
mod output;
mod process;
mod pulse;
mod reactor;
mod schedule;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mio::event::Event;
use mio::{Events, Token};
use tracing::{debug, enabled, info, trace};

use self::accept::Acceptor;
pub use self::bounds::Bounds;
use self::bounds::Lying;
use self::connection::{Connection, Input};
pub use self::lines::Lines;
use self::output::{Outputs, REPLIED_PER_TURN_MAX, Sent};
pub use self::process::{Account, ExitOnSignal, ServiceManager, cpu_times, inherited_listeners};
pub use self::pulse::{Beat, Pulse, Stage};
pub use self::reactor::{Reactor, Stopper};
use self::schedule::{Room, Schedule};
pub use self::socket::{Address, Bound, Listener, Port};
use self::socket::{Peer, Stream};
use crate::clock::Clock;
use crate::door::{self, Desk, Door};
use crate::engine::{Engine, Flow};
use crate::protocol::{Command, Limits, Request};
use crate::storage::StoreError;
use crate::types::{ClientId, Now, Position, Time};

/// The target of log lines about single connections, of which there may be very many.
pub const CONNECTIONS: &str = "bsd::connections";

/// Bytes read from one connection at a time, into a buffer that all share.
const READ_SIZE: usize = 64 << 10;
/// Requests run for one connection before the next connection is served.
const REQUESTS_PER_CONNECTION: usize = 512;
/// Requests run in one turn of the loop, more or less by those of one connection. It bounds how
/// long a reply, a timer or a new connection waits for the requests of others.
const REQUESTS_PER_TURN: usize = 4096;
/// Number of tubes examined that counts as one more request (see [`Engine::take_visits`]).
const VISITS_PER_REQUEST: usize = 4;
/// Bytes read in one turn of the loop, more or less by one read.
const BYTES_PER_TURN: usize = 2 << 20;
/// What a connection may cost before the next one is served, more or less by one request: the bytes
/// of its replies, and `REQUEST_COST` for each request. A connection that cost this much, including
/// the bytes that it sent, is served after those that cost less.
const SHARE: usize = 32 << 10;
const REQUEST_COST: usize = SHARE / REQUESTS_PER_CONNECTION;
/// If many connections are newly listed in one turn, each gets its part of the turn, but at least
/// this many requests and this many bytes of replies. The rest of its work is left over.
const LEAST_REQUESTS: usize = 16;
const LEAST_SHARE: usize = 2 << 10;
/// A read takes about as long as this number of small requests.
const READ_COST: usize = 8;
/// Bytes read at a time when more than half of the bound on held input is in use.
const SMALL_READ_SIZE: usize = 2 << 10;
/// Connections closed in one turn, and how many a connection with unsent replies counts as: the
/// kernel has that much more to free.
const CLOSES_PER_TURN: usize = 64;
const UNSENT_CLOSE_COST: usize = 8;

/// How long calls of other threads may take in a turn, in nanoseconds, more or less by one call.
const DOOR_SLICE_NS: i64 = 200_000;

/// Why a server stopped although it was not asked to.
#[derive(Debug)]
pub enum RunError {
    /// The disk failed: nothing was acknowledged after that.
    Store(StoreError),
    /// The system no longer says which sockets are ready.
    Poll(io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Store(error) => error.fmt(f),
            RunError::Poll(error) => write!(f, "cannot wait for sockets: {error}"),
        }
    }
}

impl std::error::Error for RunError {}

impl From<StoreError> for RunError {
    fn from(error: StoreError) -> RunError {
        RunError::Store(error)
    }
}

/// An engine behind sockets.
pub struct Server {
    reactor: Reactor,
    acceptor: Acceptor,
    clock: Clock,
    core: Core,
    connections: Vec<Option<Box<Connection>>>,
    connection_count: usize,
    /// Connections that may have input to run.
    runnable: Schedule,
    /// Connections that are to be closed, each once.
    leaving: VecDeque<ClientId>,
    /// How many more connections may be closed in this turn.
    closes_left: usize,
    read_buffer: Box<[u8]>,
    manager: ServiceManager,
    door: Door,
    pulse: Arc<Pulse>,
}

impl Server {
    /// Serve `engine` on `listeners`, within `bounds`. `clock` is the clock that the engine was
    /// opened with.
    ///
    /// # Errors
    /// A listener cannot be watched.
    pub fn new(
        reactor: Reactor,
        engine: Engine,
        listeners: Vec<Listener>,
        bounds: Bounds,
        clock: Clock,
    ) -> io::Result<Server> {
        let acceptor = Acceptor::new(listeners, bounds.connections_max, reactor.registry())?;
        let (door, desk) = Door::new(door::Bounds::default(), reactor.waker());
        Ok(Server {
            reactor,
            acceptor,
            clock,
            core: Core::new(engine, desk, bounds, clock.now()),
            connections: Vec::new(),
            connection_count: 0,
            runnable: Schedule::default(),
            leaving: VecDeque::new(),
            closes_left: CLOSES_PER_TURN,
            read_buffer: vec![0; READ_SIZE].into_boxed_slice(),
            manager: ServiceManager::default(),
            door,
            pulse: Arc::default(),
        })
    }

    /// How other threads reach this engine. Calls are run once the server runs; when the server
    /// ends, the callers are told.
    #[must_use]
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    /// From [`Server::run`] on, tell this manager when the server is ready, alive and stopping.
    #[must_use]
    pub fn managed_by(mut self, manager: ServiceManager) -> Server {
        self.manager = manager;
        self
    }

    /// Report the state of the loop there.
    #[must_use]
    pub fn showing(mut self, pulse: Arc<Pulse>) -> Server {
        self.pulse = pulse;
        self
    }

    /// Serve until a signal or a [`Stopper`] requests a stop. Then stop cleanly: everything is
    /// written and synced, the remaining replies are sent as far as the sockets take them at once,
    /// and all connections are closed.
    ///
    /// # Errors
    /// The disk failed, or the loop cannot continue. Replies not sent by then are lost.
    pub fn run(mut self) -> Result<(), RunError> {
        let mut events = reactor::events();
        self.manager.notify_ready();
        self.pulse.set_stage(Stage::Running);
        while !self.turn(&mut events).inspect_err(|error| {
            self.pulse.set_stage(Stage::Failed);
            self.core.fail(error);
        })? {}
        info!("stopping");
        self.pulse.set_stage(Stage::Stopping);
        self.manager.notify_stopping();
        Ok(self.stop()?)
    }

    /// Close the log; then every reply may leave.
    fn stop(self) -> Result<(), StoreError> {
        let Server {
            acceptor,
            clock,
            core,
            mut connections,
            ..
        } = self;
        drop(acceptor);
        let Core {
            engine,
            mut outputs,
            mut desk,
            ..
        } = core;
        engine
            .close(clock.now())
            .inspect_err(|error| desk.fail(error))?;
        desk.acknowledge(Position::from_bits(u64::MAX));
        outputs.acknowledge(Position::from_bits(u64::MAX));
        let now = clock.now().mono;
        outputs.begin_turn(now);
        while outputs.has_dirty() {
            match outputs.next_dirty() {
                None => outputs.begin_turn(now),
                Some(client) => {
                    if let Some(connection) = slot(&mut connections, client) {
                        // A client that does not take its replies now does not get them.
                        let _ = outputs.send(client, &mut connection.stream);
                    }
                }
            }
        }
        Ok(())
    }

    /// One turn of the loop; true when the server is to stop.
    fn turn(&mut self, events: &mut Events) -> Result<bool, RunError> {
        self.reactor
            .poll(events, self.timeout())
            .map_err(RunError::Poll)?;
        self.begin_turn();
        let mut stop = self.take_events(events);
        if !stop {
            self.accept();
            self.serve();
            self.core.serve_door(&self.clock, &self.pulse);
            stop = self.look_again(events)?;
        }
        self.core.settle(&self.clock, &self.pulse)?;
        self.resume();
        self.send();
        self.make_way();
        self.manager.tell_alive(self.core.now.mono);
        Ok(stop)
    }

    fn begin_turn(&mut self) {
        self.core.begin_turn(self.clock.now());
        self.pulse.wake(self.core.now.mono);
        self.runnable.begin_turn();
        self.closes_left = CLOSES_PER_TURN;
        self.depart();
    }

    /// If there is a sync to share, also serve clients whose requests arrived while others were
    /// served; true when the server is to stop.
    fn look_again(&mut self, events: &mut Events) -> Result<bool, RunError> {
        if self.connection_count < 2 || !self.core.engine.will_wait() || self.core.is_turn_full() {
            return Ok(false);
        }
        self.reactor
            .poll(events, Some(Duration::ZERO))
            .map_err(RunError::Poll)?;
        let stop = self.take_events(events);
        self.serve();
        Ok(stop)
    }

    /// Maximum time the loop may sleep. Only the clock is read again: a turn may have taken as long
    /// as a sync.
    fn timeout(&self) -> Option<Duration> {
        let may_go_on = !self.runnable.is_empty() && !self.core.outputs.is_over();
        if may_go_on || !self.leaving.is_empty() || self.core.outputs.has_dirty() {
            return Some(Duration::ZERO);
        }
        let now = self.clock.now();
        if self.core.desk.has_more(now) {
            return Some(Duration::ZERO);
        }
        let of_engine = self.core.engine.next_deadline(now);
        let of_desk = self.core.desk.next_deadline();
        let of_acceptor = self.acceptor.next_deadline(now.mono);
        let of_manager = self.manager.next_deadline();
        let of_clients = self.core.next_idle();
        let deadlines = [of_engine, of_desk, of_acceptor, of_manager, of_clients];
        let deadline = deadlines.into_iter().flatten().min();
        self.pulse.sleep(now.mono, deadline);
        Some(until(deadline?, now.mono))
    }

    /// Record what the events say; true when the server is to stop.
    fn take_events(&mut self, events: &Events) -> bool {
        let mut wished = false;
        for event in events {
            if is_own(event) {
                wished = true;
            } else if !self.acceptor.on_event(event.token()) {
                self.on_event(event);
            }
        }
        wished && self.grant_wishes()
    }

    fn grant_wishes(&mut self) -> bool {
        let wishes = self.reactor.wishes();
        if wishes.drain {
            info!("draining: no more jobs are taken");
            self.core.engine.drain();
        }
        if wishes.reload {
            info!("SIGHUP: there is no configuration to read again; nothing has changed");
        }
        wishes.stop
    }

    /// Something happened to a connection.
    fn on_event(&mut self, event: &Event) {
        let client = ClientId(event.token().0 as u32);
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        if event.is_writable() {
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
            return self.end(client, "the client is gone");
        }
        self.queue(client);
    }

    fn accept(&mut self) {
        let Server {
            acceptor,
            core,
            connections,
            reactor,
            connection_count,
            clock,
            ..
        } = self;
        acceptor.accept(
            *connection_count,
            || clock.now().mono,
            |stream, peer| match admit(core, connections, reactor, stream, peer) {
                Ok(()) => *connection_count += 1,
                Err(error) => debug!(target: CONNECTIONS, %peer, "not admitted: {error}"),
            },
        );
    }

    /// Serve the listed connections, each once, within this turn's bounds.
    fn serve(&mut self) {
        self.core.share_out(self.runnable.anew());
        while !self.core.outputs.is_over()
            && let Some(client) = self.runnable.next(self.core.room())
        {
            self.serve_one(client);
        }
    }

    fn serve_one(&mut self, client: ClientId) {
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        connection.queued = false;
        if !self.core.outputs.may_run(client) || connection.ending.is_some() {
            return;
        }
        if let Err(error) = self.core.serve(client, connection, &mut self.read_buffer) {
            return self.fail(client, &error);
        }
        self.core.count_held(client, connection);
        if !connection.queued && connection.has_input() && self.core.outputs.may_run(client) {
            connection.queued = true;
            match connection.takes_much {
                true => self.runnable.leave_over(client),
                false => self.runnable.come_again(client),
            }
        }
        self.close_if_ended(client);
    }

    /// List a connection if it has something to run and may run it.
    fn queue(&mut self, client: ClientId) {
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        if !connection.queued && connection.has_input() && self.core.outputs.may_run(client) {
            connection.queued = true;
            match connection.takes_much {
                true => self.runnable.leave_over(client),
                false => self.runnable.come(client),
            }
        }
    }

    /// Continue with clients that waited for a reply and now have it.
    fn resume(&mut self) {
        while let Some(client) = self.core.outputs.next_unblocked() {
            self.queue(client);
        }
    }

    /// Write what may leave.
    fn send(&mut self) {
        while let Some(client) = self.core.outputs.next_dirty() {
            self.send_one(client);
            self.core.outputs.note_time(|| self.clock.now().mono);
        }
    }

    fn send_one(&mut self, client: ClientId) {
        let Some(connection) = slot(&mut self.connections, client) else {
            return;
        };
        match self.core.outputs.send(client, &mut connection.stream) {
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
        self.end(client, "the connection is broken");
    }

    /// Close a connection, even if replies are unsent. This happens at once if it can: clients that
    /// come later are to find the jobs that this one leaves. But closing takes time, and thousands
    /// may leave at once; beyond this turn's bound a connection is listed.
    fn end(&mut self, client: ClientId, reason: &'static str) {
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
    fn make_way(&mut self) {
        while let Some((client, reason)) = self.core.next_to_close() {
            self.core.outputs.discard(client);
            self.end(client, reason);
        }
        while let Some(client) = self.core.next_to_refuse() {
            let Some(connection) = slot(&mut self.connections, client) else {
                return;
            };
            let is_body = connection.decoder.refuse_body();
            if !is_body {
                connection.drop_input();
                self.end(client, "its requests took too much memory");
            }
            if let Some(connection) = slot(&mut self.connections, client) {
                self.core.count_held(client, connection);
            }
        }
    }

    /// Close the listed connections, within this turn's bounds.
    fn depart(&mut self) {
        while self.closes_left > 0
            && let Some(client) = self.leaving.pop_front()
        {
            let is_told = self.core.outputs.is_empty(client);
            let cost = if is_told { 1 } else { UNSENT_CLOSE_COST };
            self.closes_left = self.closes_left.saturating_sub(cost);
            self.close(client);
        }
    }

    fn close(&mut self, client: ClientId) {
        let Some(mut connection) = self.connections[client.0 as usize].take() else {
            return;
        };
        let reason = connection.ending.unwrap_or_default();
        debug!(target: CONNECTIONS, client = client.0, peer = %connection.peer, "closed: {reason}");
        self.core.forget(client, &mut connection);
        self.connection_count -= 1;
        // Closing the descriptor ends its registration: nothing else refers to it.
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("connection_count", &self.connection_count)
            .finish_non_exhaustive()
    }
}

fn is_own(event: &Event) -> bool {
    reactor::is_own_token(event.token())
}

fn slot(connections: &mut [Option<Box<Connection>>], client: ClientId) -> Option<&mut Connection> {
    connections.get_mut(client.0 as usize)?.as_deref_mut()
}

/// A new client: the engine names it, and the name is its place in the table.
fn admit(
    core: &mut Core,
    connections: &mut Vec<Option<Box<Connection>>>,
    reactor: &Reactor,
    stream: Stream,
    peer: Peer,
) -> io::Result<()> {
    let mut connection = Box::new(Connection::new(stream, peer));
    connection.stream.tune();
    let client = core.engine.connect();
    if let Err(error) = connection
        .stream
        .register(reactor.registry(), Token(client.0 as usize))
    {
        core.engine.disconnect(client, core.now);
        return Err(error);
    }
    core.outputs.open(client);
    core.outputs.name(client, peer);
    if connections.len() <= client.0 as usize {
        connections.resize_with(client.0 as usize + 1, || None);
    }
    debug!(target: CONNECTIONS, client = client.0, %peer, "connected");
    connections[client.0 as usize] = Some(connection);
    Ok(())
}

fn until(deadline: Time, now: Time) -> Duration {
    Duration::from_nanos(u64::try_from(deadline.since(now)).unwrap_or(0))
}

/// The engine, and what its replies and limits depend on: all of the server that requests need.
struct Core {
    engine: Engine,
    outputs: Outputs,
    /// Takes in the calls of other threads. Every reply passes through it.
    desk: Desk,
    /// The time at which the turn began.
    now: Now,
    /// Bytes of memory held for input that is incomplete or may not run yet.
    input_held: usize,
    /// Clients ordered by when the bytes held for them last changed.
    holders: Lying,
    bounds: Bounds,
    requests_left: usize,
    bytes_left: usize,
    /// What each newly listed client may take at once in this turn.
    anew: Share,
    /// When a sync began in the background, and up to which position.
    syncing: Option<(Time, Position)>,
}

/// What a connection may take before the next one is served.
#[derive(Debug, Clone, Copy)]
struct Share {
    requests: usize,
    /// Bytes of replies. Also the bound on the whole cost: replies, the bytes that were sent, and
    /// `REQUEST_COST` for each request.
    bytes: usize,
}

impl Share {
    const WHOLE: Share = Share {
        requests: REQUESTS_PER_CONNECTION,
        bytes: SHARE,
    };

    /// The share of each of `count` clients that come together.
    fn among(count: usize) -> Share {
        let count = count.max(1);
        Share {
            requests: (REQUESTS_PER_TURN / count).clamp(LEAST_REQUESTS, REQUESTS_PER_CONNECTION),
            bytes: (REPLIED_PER_TURN_MAX / count).clamp(LEAST_SHARE, SHARE),
        }
    }
}

impl Core {
    fn new(engine: Engine, desk: Desk, bounds: Bounds, now: Now) -> Core {
        let outputs = Outputs::new(bounds.output_max);
        Core {
            engine,
            outputs,
            desk,
            now,
            input_held: 0,
            holders: Lying::default(),
            bounds,
            requests_left: 0,
            bytes_left: 0,
            anew: Share::WHOLE,
            syncing: None,
        }
    }

    fn begin_turn(&mut self, now: Now) {
        self.now = now;
        self.outputs.begin_turn(now.mono);
        (self.requests_left, self.bytes_left) = (REQUESTS_PER_TURN, BYTES_PER_TURN);
    }

    fn is_turn_full(&self) -> bool {
        self.requests_left == 0 || self.bytes_left == 0 || self.outputs.is_full()
    }

    /// This many clients are newly listed in this turn.
    fn share_out(&mut self, count: usize) {
        self.anew = Share::among(count);
    }

    /// Which clients may still be served in this turn.
    fn room(&self) -> Room {
        if self.is_turn_full() {
            Room::None
        } else if self.outputs.is_behind() {
            Room::Anew
        } else {
            Room::All
        }
    }

    /// Run what the connection has begun; if there is nothing, what one read brings.
    fn serve(
        &mut self,
        client: ClientId,
        connection: &mut Connection,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        if let Some(backlog) = connection.take_backlog() {
            let taken = self.run(client, connection, backlog.rest());
            connection.keep_backlog(backlog, taken);
        } else {
            let size = match self.input_held > self.bounds.input_max / 2 {
                true => SMALL_READ_SIZE,
                false => buffer.len(),
            };
            self.requests_left = self.requests_left.saturating_sub(READ_COST);
            match connection.read(&mut buffer[..size], self.limits())? {
                Input::Bytes(count) => self.run_new(client, connection, &buffer[..count]),
                Input::Body(count) => {
                    self.bytes_left = self.bytes_left.saturating_sub(count);
                    self.run(client, connection, &[]);
                    connection.takes_much |= count >= SHARE;
                }
                Input::Nothing => {}
                Input::End => connection.ending = Some("the client closed it"),
            }
        }
        Ok(())
    }

    fn run_new(&mut self, client: ClientId, connection: &mut Connection, input: &[u8]) {
        self.bytes_left = self.bytes_left.saturating_sub(input.len());
        let taken = self.run(client, connection, input);
        if taken < input.len() && connection.ending.is_none() {
            connection.keep_input(&input[taken..]);
        }
    }

    /// Run the requests that are complete with `input` until the input ends, or the connection has
    /// had its share, or it may not continue. Returns how many bytes were taken.
    ///
    /// A newly listed client that peeks at a large body is deferred: it is served with the clients
    /// that are left over. Otherwise the copies that thousands of clients want at once would make
    /// all clients wait.
    fn run(&mut self, client: ClientId, connection: &mut Connection, input: &[u8]) -> usize {
        let mut taken = 0;
        let mut cost = 0;
        let is_left_over = connection.takes_much;
        let Share {
            requests: mut share,
            bytes: bytes_max,
        } = match is_left_over {
            true => Share::WHOLE,
            false => self.anew,
        };
        let mut put_off = false;
        let replied_before = self.outputs.replied();
        while share > 0
            && self.outputs.may_run(client)
            && self.outputs.replied() - replied_before < bytes_max
        {
            let mut rest = &input[taken..];
            let limits = self.limits();
            let Some(request) = connection.decoder.decode(&mut rest, limits) else {
                taken = input.len();
                break;
            };
            // `input` begins with such a line only if no part of the line came in an earlier read.
            if !is_left_over
                && input[taken..].starts_with(b"peek")
                && self.engine.peeked_size(client, &request) >= bytes_max
            {
                put_off = true;
                cost += 1;
                break;
            }
            taken = input.len() - rest.len();
            share -= 1;
            trace_request(client, &request);
            let mut replies = self.desk.replies(&mut self.outputs);
            match self.engine.run(client, request, self.now, &mut replies) {
                Flow::Next => {}
                Flow::Blocked => self.block(client, connection.half_closed),
                Flow::Close => {
                    connection.ending = Some("quit");
                    break;
                }
            }
            let more = self.engine.take_visits() / VISITS_PER_REQUEST;
            share = share.saturating_sub(more);
            cost += 1 + more;
        }
        self.requests_left = self.requests_left.saturating_sub(cost);
        let bytes = taken + self.outputs.replied() - replied_before;
        let is_cut = share == 0 || self.outputs.replied() - replied_before >= bytes_max;
        connection.takes_much = put_off || is_cut || REQUEST_COST * cost + bytes >= SHARE;
        if taken == input.len() && connection.decoder.held() > 0 {
            self.end_request(connection);
        }
        taken
    }

    /// The decoder keeps what its last request borrowed until it is called again. That may take
    /// long: a client may send one large body in pieces and then nothing.
    fn end_request(&mut self, connection: &mut Connection) {
        let none = connection.decoder.decode(&mut &[][..], self.limits());
        debug_assert!(none.is_none(), "no bytes make no request");
    }

    /// The client waits for a reply; if it has shut down its sending side, it does not wait.
    fn block(&mut self, client: ClientId, half_closed: bool) {
        self.outputs.block(client);
        if half_closed {
            self.half_close(client);
        }
    }

    fn half_close(&mut self, client: ClientId) {
        let mut replies = self.desk.replies(&mut self.outputs);
        self.engine.half_closed(client, self.now, &mut replies);
    }

    fn limits(&self) -> Limits {
        Limits {
            job_size_max: self.engine.job_size_max(),
            memory_left: self.engine.memory_left(),
        }
    }

    /// The engine's part of a turn after the requests. Then replies may leave as far as the log has
    /// caught up.
    fn settle(&mut self, clock: &Clock, pulse: &Pulse) -> Result<(), StoreError> {
        let mut replies = self.desk.replies(&mut self.outputs);
        self.engine.tick(self.now, &mut replies)?;
        self.commit(clock, pulse)?;
        let acknowledged = self.engine.acknowledged();
        self.outputs.acknowledge(acknowledged);
        self.desk.acknowledge(acknowledged);
        Ok(())
    }

    /// Commit, and measure how long it takes until the data is durable.
    fn commit(&mut self, clock: &Clock, pulse: &Pulse) -> Result<(), StoreError> {
        let begun = self.engine.will_wait().then(|| clock.now().mono);
        self.engine.commit(self.now)?;
        if let Some(begun) = begun {
            pulse.note_sync(clock.now().mono.since(begun));
            return Ok(());
        }
        let Some(log) = self.engine.log() else {
            return Ok(());
        };
        if let Some((since, upto)) = self.syncing
            && log.durable() >= upto
        {
            pulse.note_sync(self.now.mono.since(since));
            self.syncing = None;
        }
        if log.is_syncing() && self.syncing.is_none() {
            self.syncing = Some((self.now.mono, log.written()));
        }
        Ok(())
    }

    /// Run calls of other threads, as many as a slice of the turn allows.
    fn serve_door(&mut self, clock: &Clock, pulse: &Pulse) {
        // The clock is read after the first call, or in the first step.
        let mut seen: Option<(Time, Time)> = None;
        let mut is_over = || {
            let now = clock.now().mono;
            let (begun, _) = *seen.get_or_insert((now, now));
            seen = Some((begun, now));
            now.since(begun) >= DOOR_SLICE_NS
        };
        let Core {
            engine,
            desk,
            outputs,
            now,
            ..
        } = self;
        desk.serve(engine, *now, outputs, &mut is_over);
        if let Some((begun, last)) = seen {
            pulse.note_calls(last.since(begun));
        }
    }

    /// The server ends because of an error.
    fn fail(&mut self, error: &RunError) {
        if let RunError::Store(error) = error {
            self.desk.fail(error);
        }
    }

    /// Update the sum of held bytes with this connection.
    fn count_held(&mut self, client: ClientId, connection: &mut Connection) {
        let held = connection.held();
        if held == 0 && connection.counted == 0 {
            return;
        }
        self.input_held = self.input_held - connection.counted + held;
        connection.counted = held;
        let since = (held > 0).then_some(self.now.mono);
        self.holders
            .replace(client, &mut connection.held_since, since);
    }

    /// When a client reaches the maximum time without taking anything.
    fn next_idle(&self) -> Option<Time> {
        let (since, _) = self.outputs.longest_stalled()?;
        if self.outputs.is_over() {
            return Some(since);
        }
        let idle = i64::try_from(self.bounds.idle_output?.as_nanos()).unwrap_or(i64::MAX);
        Some(Time(since.0.saturating_add(idle)))
    }

    /// The client to close because it does not take its replies, and why.
    fn next_to_close(&self) -> Option<(ClientId, &'static str)> {
        let (_, client) = self.outputs.longest_stalled()?;
        if self.outputs.is_over() {
            return Some((client, "its unread replies took too much memory"));
        }
        (self.next_idle()? <= self.now.mono).then_some((client, "it has not taken its replies"))
    }

    /// The client whose request is to be refused because too much is held for requests. A client
    /// alone may exceed the bound.
    fn next_to_refuse(&self) -> Option<ClientId> {
        let is_over = self.input_held > self.bounds.input_max && self.holders.len() > 1;
        let (_, client) = self.holders.longest().filter(|_| is_over)?;
        Some(client)
    }

    fn forget(&mut self, client: ClientId, connection: &mut Connection) {
        self.input_held -= connection.counted;
        self.holders
            .replace(client, &mut connection.held_since, None);
        self.outputs.close(client);
        self.engine.disconnect(client, self.now);
    }
}

/// Bodies are left out: they are long, and they may be confidential.
fn trace_request(client: ClientId, request: &Request<'_>) {
    if !enabled!(tracing::Level::TRACE) {
        return;
    }
    let client = client.0;
    match request {
        Request::Command(Command::Put {
            pri,
            delay,
            ttr,
            body,
        }) => {
            trace!(client, pri, delay, ttr, size = body.len(), "put");
        }
        Request::Command(command) => trace!(client, "{command:?}"),
        Request::Refused { refusal, .. } => trace!(client, "refused: {refusal:?}"),
    }
}
