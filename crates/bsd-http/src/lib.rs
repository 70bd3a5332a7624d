//! Seeing and steering a server over HTTP: health, metrics, API and console.
//!
//! A thread of its own serves HTTP/1.1 (hyper on tokio's runtime for one thread). It has nothing of
//! the engine: it asks through a [`Door`], as any other thread does, and reads the
//! [`Pulse`] of the loop, which costs the loop nothing. If this thread ends,
//! the queue goes on.
//!
//! | file | question |
//! |---|---|
//! | `flags` | what was asked for on the command line? |
//! | here | which address, and when does the thread begin and end? |
//! | `connections` | how long may a connection take for what? |
//! | `places` | who gets a place, who gives way, and how much memory may requests take? |
//! | `body` | how large may the body of a request be, and how slow? |
//! | `caller` | who has connected, and over what? |
//! | `route` | what is a route: for whom, to do what, with which answer? |
//! | `routes` | what can be asked for, and by whom? |
//! | `guard` | may this request be served? |
//! | `holder` | what does a token open over HTTP? |
//! | `sessions` | which browser has shown one? |
//! | `service` | from a request to an answer |
//! | `relay` | how does the leader of a cluster answer for a member that follows? |
//! | `answer` | what does an answer look like? |
//! | `health` | is the server alive, and ready for work? |
//! | `doorway` | can the engine be asked, and if not, why? |
//! | `cluster` | who leads, who is a member, and what may be asked of the cluster? |
//! | `api` | what is there, in JSON, and what can be changed? |
//! | `query` | what stands behind the `?`? |
//! | `openapi` | how is all this described? |
//! | `any_request` | what must hold for any request? |
//! | `console` | what does a browser show? |
//! | `snapshot` | what is asked of the engine for a scrape? |
//! | `metrics`, `exposition` | which metrics are there, and how are they written down? |
//!
//! Invariants:
//! * Every request passes `guard` before anything else of it is looked at.
//! * What a client can hold is bounded: connections, headers, bodies, time.
//! * Access without a token is only from this machine.

mod answer;
#[cfg(any(test, feature = "sim"))]
pub mod any_request;
mod api;
mod body;
mod caller;
/// Only a member of a cluster has it.
mod cluster;
mod connections;
mod console;
mod doorway;
mod exposition;
mod flags;
mod guard;
mod health;
mod holder;
mod metrics;
mod openapi;
mod places;
mod query;
mod relay;
mod route;
mod routes;
mod service;
mod sessions;
mod snapshot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tracing::{error, info, warn};

use self::api::checks::Checks;
use self::api::events::Streams;
use self::api::history::Histories;
use self::api::register::Register;
use self::api::trouble::Past;
use self::caller::Tls;
pub use self::cluster::Desk;
use self::console::Console;
use self::doorway::Doorway;
pub use self::flags::HttpArgs;
use self::guard::Access;
pub use self::places::CONNECTIONS_MAX;
use self::places::{PROBES_MAX, Places};
use self::relay::{PASSED_ON_MAX, Relay};
use self::snapshot::Snapshots;
use bsd::SetupError;
use bsd::clock::Clock;
use bsd::door::Door;
use bsd_archive::standby::Seat;
use bsd_archive::{Report, Reporter};
use bsd_net::{Guesses, Lines, Pulse, Tokens, who_has};

/// Where HTTP is served unless `--http` says otherwise: this port of 127.0.0.1.
pub(crate) const HTTP_PORT_DEFAULT: u16 = 11380;
/// Time after which a loop that should have turned and has not counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Files that HTTP may have open, connections included.
pub const DESCRIPTORS: usize =
    CONNECTIONS_MAX + PROBES_MAX + PASSED_ON_MAX + 8 + api::history::DESCRIPTORS;
/// Tubes with metrics of their own, unless `--http-tubes-max` says otherwise.
pub(crate) const TUBES_MAX_DEFAULT: usize = 1000;
/// Scrapes that are answered at a time.
const SCRAPES_MAX: usize = 4;

/// Settings of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// A name, or an address without brackets.
    pub host: String,
    /// 0 lets the kernel choose.
    pub port: u16,
    /// It is served over TLS.
    pub has_tls: bool,
    /// No one asked for this address: where it is taken there is no HTTP, and that is all.
    pub is_default: bool,
    /// The file with the tokens, without which only this machine is served.
    pub tokens: Option<PathBuf>,
    /// Names under which browsers may call, beside `localhost` and addresses.
    pub names: Vec<String>,
    /// Tubes with metrics of their own; the others are summed up.
    pub tubes_max: usize,
}

impl Default for Setup {
    /// The default address, without tokens.
    fn default() -> Setup {
        Setup {
            host: "127.0.0.1".into(),
            port: HTTP_PORT_DEFAULT,
            has_tls: false,
            is_default: true,
            tokens: None,
            names: Vec::new(),
            tubes_max: TUBES_MAX_DEFAULT,
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has_tls {
            f.write_str("tls:")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A bound address, and its access rules. Clients can connect; no one answers yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    access: Access,
    tls: Option<Tls>,
}

impl Bound {
    /// Wrong tokens are counted here.
    #[must_use]
    pub fn with_guesses(mut self, guesses: Guesses) -> Bound {
        self.access.guesses = guesses;
        self
    }

    /// Speak TLS there.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Bound {
        self.tls = tls;
        self
    }
}

impl Setup {
    /// Bind the address; `None`, and a warning, where it is the default one and taken.
    ///
    /// # Errors
    /// The fault and the remedy: the address cannot be bound, it is not of this machine alone and
    /// there are no tokens, or the file of the tokens cannot be used.
    pub fn bind(&self) -> Result<Option<Bound>, SetupError> {
        let tokens = self.tokens.as_deref().map(Tokens::read).transpose();
        let tokens = tokens.map_err(|error| error.of_flag("--http-tokens"))?;
        let found = (&*self.host, self.port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = found
            .map_err(|error| {
                SetupError::of_socket(format!("cannot serve HTTP on {self}: {error}"), error)
            })?
            .collect();
        if tokens.is_none()
            && let Some(address) = addresses.iter().find(|address| !address.ip().is_loopback())
        {
            return Err(SetupError::new(format_args!(
                "HTTP is not served on {address} without tokens: anyone who reaches that address \
                 could change the queue; give --http-tokens FILE, or an address of this machine \
                 alone, or --http off"
            )));
        }
        match TcpListener::bind(&addresses[..]) {
            Ok(listener) => {
                let address = listener
                    .local_addr()
                    .map_err(|error| SetupError::of_socket(error.to_string(), error))?;
                let access =
                    Access::new(tokens, self.names.clone(), (address.port(), self.has_tls));
                let bound = Bound {
                    listener,
                    address,
                    access,
                    tls: None,
                };
                Ok(Some(bound))
            }
            Err(error) if self.is_default && error.kind() == io::ErrorKind::AddrInUse => {
                let who = who_has(&self.host, self.port);
                warn!(
                    "HTTP is not served: {self} is in use: {who}; --http ADDR names another address, \
                     --http off none"
                );
                Ok(None)
            }
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::AddrInUse => who_has(&self.host, self.port),
                    _ => error.to_string(),
                };
                let text = format_args!(
                    "cannot serve HTTP on {self}: {why}; --http ADDR names another address, --http \
                     off none"
                );
                Err(SetupError::of_socket(text, error))
            }
        }
    }
}

/// Handles on the parts of the server that the HTTP side reads.
#[derive(Debug, Clone)]
pub struct ServerHandles {
    /// The clock of the server.
    pub clock: Clock,
    /// The loop's.
    pub pulse: Arc<Pulse>,
    /// Time after which a loop that should have turned and has not counts as stuck.
    pub stuck_after: Duration,
    /// Lines for standard error, if they are written.
    pub lines: Option<Lines>,
    /// Tubes with metrics of their own; the others are summed up.
    pub tubes_max: usize,
    /// Bytes that the bodies of requests may take, all together.
    pub bodies_max: usize,
    /// The directory of the log, if there is one.
    pub dir: Option<PathBuf>,
    /// Where the archives of the log report, of which there are at most two.
    pub archives: Vec<Reporter>,
    /// Where a standby reports, and is told to take over; `None`: this is no standby.
    pub standby: Option<Seat>,
    /// Where the member of a cluster reports, and is asked; `None`: this is no member.
    pub cluster: Option<Desk>,
}

/// Shared state of all requests.
#[derive(Debug)]
struct State {
    handles: ServerHandles,
    access: Access,
    places: Places,
    doorway: Doorway,
    snapshots: Snapshots,
    /// Scrapes that are being answered.
    scrapes: Arc<Semaphore>,
    tasks: Register,
    searches: Register,
    histories: Histories,
    streams: Streams,
    checks: Checks,
    /// Totals of some minutes ago.
    past: Past,
    console: Console,
    relay: Relay,
}

/// Role of a member of a cluster, for callers that need not know more of clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Membership {
    /// One word, as metrics and the API have it.
    role: &'static str,
    /// Its id.
    id: String,
    /// It is, or was last known to be, one of a cluster: it is not waiting, and was not removed.
    is_member: bool,
    /// Members that vote: each acknowledged job is synced on more than half of them.
    voters: usize,
    /// Which room its ledger lacks.
    lacks: Option<bsd::ErrorClass>,
    /// Where the leader's HTTP is, if another one leads and that is known.
    leader_http: Option<String>,
    /// It follows, and has all that was committed when it last heard of its leader; this is the
    /// time since then.
    as_of: Option<Duration>,
}

impl Membership {
    /// The number of members that have synced an acknowledged entry.
    fn majority(&self) -> usize {
        self.voters / 2 + 1
    }

    /// This copy may be behind the leader's.
    fn is_behind(&self) -> bool {
        self.is_member && self.role != LEADER
    }
}

/// The role of the leader.
const LEADER: &str = "leader";

impl ServerHandles {
    /// Puts are refused because each archive lacks something older than the limit.
    fn is_archive_late(&self) -> bool {
        Reporter::are_late(&self.archives, self.clock.now().mono)
    }

    /// State of each archive now; empty: there is no archive, or another server writes it.
    fn archives(&self) -> Vec<Report> {
        let is_standby = self
            .standby
            .as_ref()
            .is_some_and(|seat| !seat.report().is_promoted);
        let reports = self.archives.iter().filter(|_| !is_standby);
        let reports = reports.map(Reporter::report);
        let written = reports.filter(|it| !it.rests || it.ended.is_some());
        written.collect()
    }

    /// The log of this member has archives, which the member that leads writes, and that is another.
    fn archive_rests(&self) -> bool {
        let archive = self.archives.first();
        archive.is_some_and(|archive| archive.report().rests)
    }
}

impl State {
    /// Without a way to the engine.
    fn new(handles: ServerHandles, access: Access) -> io::Result<State> {
        Ok(State {
            places: Places::new(handles.bodies_max),
            doorway: Doorway::new(handles.pulse.clone(), handles.standby.clone()),
            handles,
            access,
            snapshots: Snapshots::default(),
            scrapes: Arc::new(Semaphore::new(SCRAPES_MAX)),
            tasks: Register::of_tasks(),
            searches: Register::of_searches(),
            histories: Histories::default(),
            streams: Streams::default(),
            checks: Checks::default(),
            past: Past::default(),
            console: Console::new()?,
            relay: Relay::default(),
        })
    }

    /// True while a question to the loop would not be answered.
    fn is_stuck(&self) -> bool {
        let handles = &self.handles;
        handles.pulse.beat(handles.clock.now().mono).late > handles.stuck_after
    }
}

/// HTTP, served by a thread of its own until this is dropped.
#[derive(Debug)]
pub struct Http {
    state: Arc<State>,
    address: SocketAddr,
    end: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Begin to answer. Before [`Http::open`] has given a way to the engine, what needs one is
    /// answered 503.
    ///
    /// # Errors
    /// The thread cannot be started, or its waiting set up.
    pub fn start(bound: Bound, handles: ServerHandles) -> io::Result<Http> {
        let Bound {
            listener,
            address,
            access,
            tls,
        } = bound;
        let scheme = if tls.is_some() { "https" } else { "http" };
        listener.set_nonblocking(true)?;
        let state = Arc::new(State::new(handles, access)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let end = Arc::new(Notify::new());
        let (shared, ended) = (state.clone(), end.clone());
        let serve = move || {
            let served = runtime.block_on(async {
                tokio::spawn(console::remember(shared.clone()));
                connections::serve(listener, shared, tls, &ended).await
            });
            if let Err(error) = served {
                error!("HTTP is served no more, the queue goes on: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("bsd-http".into());
        let thread = Some(thread.spawn(serve)?);
        info!("HTTP on {scheme}://{address}/");
        Ok(Http {
            state,
            address,
            end,
            thread,
        })
    }

    /// From now on the engine can be asked.
    pub fn open(&self, door: Door) {
        self.state.doorway.open(door);
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Http {
    /// Answers that are under way are cut off.
    fn drop(&mut self) {
        self.state.histories.cancel();
        self.end.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been reported already.
            let _ = thread.join();
        }
    }
}
