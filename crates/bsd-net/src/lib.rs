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
//! The parts: `accept` (who may connect), `auth` (what a token allows), `bounds` (what the server may
//! hold for clients), `clients` (the way of one connection through the turns), `connection` (input),
//! `core` (the engine and what a client may take of a turn), `per_address` (how many of one address, and
//! who is idle), `expiry` (when certificates end), `forward` (a cluster's clients of another node), `gate` (what comes before the first request), `layers` and `proxy` and `tls` (what
//! lies between socket and protocol), `output` (replies), `schedule` (who is served next), `socket`
//! (addresses and streams), `reactor` (what wakes the loop), `process` (limits, user, systemd),
//! `pulse` (what the loop shows of itself), `lines` (what is written to standard error).

mod accept;
mod auth;
mod bounds;
mod clients;
mod connection;
mod core;
mod expiry;
mod forward;
mod gate;
mod layers;
mod lines;
mod member;
mod output;
pub use bsd::pattern;
mod peers;
mod per_address;
mod process;
mod proxy;
mod pulse;
mod reactor;
mod schedule;
pub mod secrets;
mod socket;
mod sys;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mio::Events;
use tracing::{debug, info};

use self::accept::Acceptor;
pub use self::auth::{Auth, Grant, Guesses, Scope, Tokens, new_token};
pub use self::bounds::Bounds;
use self::clients::{Accepted, CLOSES_PER_TURN, admit};
use self::connection::{Connection, slot};
use self::core::Core;
use self::forward::Forward;
pub use self::gate::Gate;
pub use self::layers::Layers;
pub use self::lines::Lines;
pub use self::member::{
    Archivist, Ask, Beginning, ClusterArgs, ClusterConfig, ClusterDesk, LeaderReport, Member,
    MemberError, MemberReport, MemberStanding, PeerFiles, Report, Setup, Unarchived,
};
use self::per_address::Sweep;
pub use self::process::{Account, ExitOnSignal, ServiceManager, cpu_times};
pub use self::proxy::Network;
#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub use self::proxy::any_header as any_proxy_header;
pub use self::pulse::{Beat, CertificateOf, Pulse, Stage};
pub use self::reactor::{Reactor, Stopper};
use self::schedule::Schedule;
pub use self::socket::who_has;
pub use self::socket::{
    Address, Bound, Listener, Port, Probing, inherited_listeners, why_not_bound,
};
pub use self::tls::{Tls, TlsArgs, TlsFiles};
pub use self::tls::{explained, name_of};
use bsd::ErrorClass;
use bsd::clock::Clock;
use bsd::door::{self, Door};
use bsd::engine::Engine;
use bsd::protocol::Protocol;
use bsd::storage::StoreError;
use bsd::types::{ClientId, Ticket, Time};
use bsd_cluster::replica::ReplicaError;

/// The target of log lines about single connections, of which there may be very many.
pub const CONNECTIONS: &str = "bsd::connections";

/// Bytes read from one connection at a time, into a buffer that all share.
const READ_SIZE: usize = 64 << 10;

/// Why a server stopped although it was not asked to.
#[derive(Debug)]
pub enum RunError {
    /// The disk failed: nothing was acknowledged after that.
    Store(StoreError),
    /// This member of a cluster cannot go on.
    Replica(ReplicaError),
    /// The system no longer says which sockets are ready.
    Poll(io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Store(error) => error.fmt(f),
            RunError::Replica(error) => error.fmt(f),
            RunError::Poll(error) => write!(f, "cannot wait for sockets: {error}"),
        }
    }
}

impl std::error::Error for RunError {}

impl RunError {
    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            RunError::Store(error) => error.class().while_running(),
            RunError::Replica(error) => error.class(),
            RunError::Poll(error) => ErrorClass::of_system(error),
        }
    }
}

impl From<StoreError> for RunError {
    fn from(error: StoreError) -> RunError {
        RunError::Store(error)
    }
}

/// An engine behind sockets.
pub struct Server {
    reactor: Reactor,
    acceptor: Acceptor,
    gate: Gate,
    clock: Clock,
    core: Core,
    connections: Vec<Option<Box<Connection>>>,
    connection_count: usize,
    /// Connections that may have input to run.
    runnable: Schedule,
    /// Connections that are to be closed, each once.
    leaving: VecDeque<ClientId>,
    sweep: Sweep,
    /// How many more connections may be closed in this turn.
    closes_left: usize,
    read_buffer: Box<[u8]>,
    /// Clients that are passed on while another node leads.
    forward: Forward,
    /// The part in a cluster; `None`: the server is alone.
    member: Option<Box<Member>>,
    manager: ServiceManager,
    door: Door,
    pulse: Arc<Pulse>,
    /// When it is said again which certificates end soon.
    reminds_at: Time,
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
            forward: Forward::new(reactor.registry().try_clone()?, &bounds),
            member: None,
            reactor,
            acceptor,
            gate: Gate::default(),
            clock,
            core: Core::new(engine, desk, bounds, clock.now()),
            connections: Vec::new(),
            connection_count: 0,
            runnable: Schedule::default(),
            leaving: VecDeque::new(),
            sweep: Sweep::after(bounds.idle),
            closes_left: CLOSES_PER_TURN,
            read_buffer: vec![0; READ_SIZE].into_boxed_slice(),
            manager: ServiceManager::default(),
            door,
            pulse: Arc::default(),
            reminds_at: Time(clock.now().mono.0.saturating_add(expiry::REMINDER_NS)),
        })
    }

    /// How other threads reach this engine. Calls are run once the server runs; when the server
    /// ends, the callers are told.
    #[must_use]
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    /// Take these commands; without this call the extended ones, too.
    #[must_use]
    pub fn speaking(mut self, protocol: Protocol) -> Server {
        self.core.protocol = protocol;
        self
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
        self.show_certificates();
        self
    }

    /// Serve until a signal or a [`Stopper`] requests a stop. A member of a cluster that leads first
    /// transfers leadership, and takes a second for that at most. Then stop cleanly: everything is
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
            if let RunError::Store(error) = error {
                self.core.desk.fail(error);
            }
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
        let is_one_of_several = engine.is_one_of_several();
        let closed = engine.close(clock.now());
        closed.inspect_err(|error| desk.fail(error))?;
        if is_one_of_several {
            // What replies wait for is a majority.
            return Ok(());
        }
        desk.acknowledge(Ticket::LAST);
        outputs.acknowledge(Ticket::LAST);
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
        for connection in connections.iter_mut().flatten() {
            connection.stream.finish();
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
        let may_serve = self.begin_member_turn()?;
        if self.is_over() {
            return Ok(true);
        }
        if !stop {
            self.accept();
            if may_serve {
                self.serve();
            }
            if self.may_serve_door() {
                self.core.serve_door(&self.clock, &self.pulse);
            }
            if may_serve {
                stop = self.look_again(events)?;
            }
        }
        self.tick_and_commit()?;
        self.resume();
        self.send();
        self.pass_on();
        self.make_way();
        self.manager.tell_alive(self.core.now.mono);
        self.remind_of_certificates();
        let stop = self.may_stop(stop);
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
        let may_go_on = !self.runnable.is_empty()
            && !self.core.outputs.is_over()
            && !self.core.waits_for_commit()
            && self.may_serve();
        if may_go_on || !self.leaving.is_empty() || self.core.outputs.has_dirty() {
            return Some(Duration::ZERO);
        }
        if self.forward.has_work()
            || self
                .member
                .as_ref()
                .is_some_and(|it| it.has_work(&self.core.engine))
        {
            return Some(Duration::ZERO);
        }
        let now = self.clock.now();
        if self.may_serve_door() && self.core.desk.has_more(now) {
            return Some(Duration::ZERO);
        }
        let of_engine = self.deadline_of_engine(now);
        let of_desk = self.core.desk.next_deadline();
        let of_desk = of_desk.filter(|_| self.may_serve_door());
        let of_acceptor = self.acceptor.next_deadline(now.mono);
        let of_manager = self.manager.next_deadline();
        let of_clients = self.core.next_idle();
        let of_gate = self.gate.next_deadline();
        let of_auth = self.core.auth.as_ref().and_then(Auth::next_deadline);
        let deadlines = [
            of_engine,
            of_desk,
            of_acceptor,
            of_manager,
            of_clients,
            of_gate,
            of_auth,
            self.sweep.next_deadline(now.mono),
            self.next_reminder(),
            self.forward.next_deadline(),
            self.member
                .as_ref()
                .and_then(|it| it.next_deadline(now.mono)),
        ];
        let deadline = deadlines.into_iter().flatten().min();
        self.pulse.sleep(now.mono, deadline);
        Some(until(deadline?, now.mono))
    }

    /// A queue that leads and may decide nothing now is not to be changed by threads either.
    fn may_serve_door(&self) -> bool {
        self.may_serve() || self.core.engine.is_following()
    }

    /// Record what the events say; true when the server is to stop.
    fn take_events(&mut self, events: &Events) -> bool {
        let mut wished = false;
        for event in events {
            if reactor::is_own_token(event.token()) {
                wished = true;
            } else if !self.acceptor.on_event(event.token()) {
                if self.forward.on_event(event) || self.is_of_peer(event) {
                    continue;
                }
                self.on_event(event);
            }
        }
        wished && self.grant_wishes()
    }

    fn grant_wishes(&mut self) -> bool {
        let wishes = self.reactor.wishes();
        if wishes.drain && self.core.engine.is_following() {
            info!(
                "SIGUSR1: this member of a cluster does not lead, and whether jobs are taken is said to \
                 the leader: bsd-ctl drain"
            );
        } else if wishes.drain {
            info!("draining: no more jobs are taken");
            self.core.engine.drain();
        }
        if wishes.reload {
            self.reload();
        }
        wishes.stop
    }

    fn accept(&mut self) {
        let Server {
            acceptor,
            core,
            connections,
            reactor,
            gate,
            connection_count,
            clock,
            ..
        } = self;
        let open = *connection_count;
        let (open, forward) = (open + self.forward.connections(), &mut self.forward);
        acceptor.accept(
            open,
            || clock.now().mono,
            |stream, peer, origin| {
                let (arrival, now) = ((stream, peer, origin.layers()), core.now.mono);
                if forward.takes_clients() {
                    return forward.take_or_close(gate, arrival, now);
                }
                let admitted = Accepted::new(gate, arrival, now)
                    .and_then(|accepted| admit(core, connections, reactor, gate, accepted));
                match admitted {
                    Ok(_) => *connection_count += 1,
                    Err(error) => debug!(target: CONNECTIONS, %peer, "not admitted: {error}"),
                }
            },
        );
    }

    /// Serve the listed connections, each once, within this turn's bounds.
    fn serve(&mut self) {
        self.core.share_out(self.runnable.newly_listed());
        while !self.core.outputs.is_over()
            && let Some(client) = self.runnable.next(self.core.room())
        {
            self.serve_one(client);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("connection_count", &self.connection_count)
            .finish_non_exhaustive()
    }
}

fn until(deadline: Time, now: Time) -> Duration {
    Duration::from_nanos(u64::try_from(deadline.since(now)).unwrap_or(0))
}
