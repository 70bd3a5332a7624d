//! `bsd-server`: the command line, the order of the start, and exit codes.
//!
//! Sockets are bound first, as the user who started the process; then the process becomes the
//! configured user; then the log is replayed; and only then does it listen. A separate thread
//! writes its lines on standard error, from the first to the last.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::{Location, PanicHookInfo};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bsd::clock::Clock;
use bsd::config::{self, Config};
use bsd::engine::{Engine, Options};
#[cfg(feature = "http")]
use bsd::http::{self, Http};
use bsd::rlimit;
use bsd::server::{
    self, Account, Bound, Bounds, ExitOnSignal, Lines, Listener, Pulse, Reactor, RunError, Server,
    ServiceManager,
};
use bsd::storage::convert::beanstalkd::TakenOver;
use bsd::storage::{OpenError, Recovery, SyncPolicy};
use bsd::types::SECOND_NS;
use tikv_jemalloc_ctl::{Access, AsName, background_thread};
use tikv_jemallocator::Jemalloc;
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Memory is returned to the system soon after clients have left; see [`give_memory_back`].
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// How long unused memory is kept for reuse, milliseconds.
const KEPT_MS: isize = 1000;

/// How long the process, when it ends, waits for its last lines to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let config = match Config::parse(std::env::args_os()) {
        Ok(config) => config,
        Err(usage) => {
            usage.print();
            return ExitCode::from(usage.exit_code());
        }
    };
    let lines = match Lines::start(std::io::stderr(), say_dropped) {
        Ok(lines) => lines,
        Err(error) => {
            // If that cannot be written either, the exit code must be enough.
            let _ = writeln!(std::io::stderr(), "cannot start a thread: {error}");
            return ExitCode::from(config::EXIT_CANNOT_START);
        }
    };
    log_to(&lines, config.verbosity);
    if let Err(error) = give_memory_back() {
        warn!("memory that is free may stay with the server: the allocator says {error}");
    }
    let exit_code = match serve(&config, &lines) {
        Ok(()) => config::EXIT_OK,
        Err(failure) => {
            failure.lines.iter().for_each(|line| error!("{line}"));
            failure.exit_code
        }
    };
    lines.drain(LAST_WORDS);
    ExitCode::from(exit_code)
}

/// From now on unused pages are returned to the system within seconds, by a thread of the
/// allocator, because an idle server neither allocates nor frees memory.
fn give_memory_back() -> tikv_jemalloc_ctl::Result<()> {
    // The arenas created from now on, and the existing one of the first thread.
    b"arenas.dirty_decay_ms\0".name().write(KEPT_MS)?;
    b"arena.0.dirty_decay_ms\0".name().write(KEPT_MS)?;
    background_thread::write(true)
}

fn say_dropped(count: u64) {
    warn!("{count} lines before this one are missing: standard error could not be written");
}

/// Why the server ends other than as requested.
struct Failure {
    exit_code: u8,
    lines: Vec<String>,
}

impl Failure {
    fn cannot(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Failure {
        let lines = vec![format!("cannot {what}: {error}")];
        Failure {
            exit_code: config::EXIT_CANNOT_START,
            lines,
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let exit_code = match error {
            OpenError::InUse { .. } => config::EXIT_IN_USE,
            OpenError::Damaged { .. } => config::EXIT_DAMAGED,
            OpenError::Foreign { .. } | OpenError::Io(_) => config::EXIT_CANNOT_START,
        };
        let lines = error.to_string().lines().map(str::to_owned).collect();
        Failure { exit_code, lines }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        let exit_code = match error {
            RunError::Store(_) => config::EXIT_DISK_FAILED,
            RunError::Poll(_) => config::EXIT_CANNOT_START,
        };
        Failure {
            exit_code,
            lines: vec![error.to_string()],
        }
    }
}

fn serve(config: &Config, lines: &Lines) -> Result<(), Failure> {
    let clock = Clock::start();
    config
        .warnings
        .iter()
        .for_each(|warning| warn!("{warning}"));
    let mut reactor = Reactor::new().map_err(|error| Failure::cannot("start", error))?;
    reactor
        .catch_signals()
        .map_err(|error| Failure::cannot("catch signals", error))?;
    let exit_on_signal =
        ExitOnSignal::arm().map_err(|error| Failure::cannot("catch signals", error))?;
    let (bounds, memory_max) = Bounds::within(config.memory_max);
    let http = bind_http(config)?;
    let bounds = Bounds {
        connections_max: connections_max(config.connections_max, http.as_ref()),
        idle_output: config.idle_output,
        ..bounds
    };
    let account = config.user.as_deref().map(account).transpose()?;
    let sockets = Sockets::bind(config, account.as_ref())?;
    if let Some((account, user)) = account.as_ref().zip(config.user.as_ref()) {
        account
            .assume()
            .map_err(|error| Failure::cannot(format_args!("become {user}"), error))?;
    }
    let pulse = Arc::new(Pulse::default());
    let http = start_http(http, config, clock, &pulse, lines)?;
    let begin = clock.now().mono;
    let engine = Engine::open(
        &options(config, memory_max, &bounds, &reactor, clock),
        clock.now(),
    )?;
    report(config, &engine, clock.now().mono.since(begin));
    let listeners = sockets.listen()?;
    for listener in &listeners {
        info!("listening on {}", listener.name());
    }
    let server = Server::new(reactor, engine, listeners, bounds, clock)
        .map_err(|error| Failure::cannot("serve", error))?
        .managed_by(ServiceManager::from_env())
        .showing(pulse);
    open_http(http.as_ref(), &server);
    drop(exit_on_signal);
    info!(
        "ready: bsd-server {}, process {}, for up to {} connections",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        bounds.connections_max
    );
    Ok(server.run()?)
}

#[cfg(feature = "http")]
use with_http::{BoundHttp, HTTP_DESCRIPTORS, bind_http, open_http, start_http};
#[cfg(not(feature = "http"))]
use without_http::{BoundHttp, HTTP_DESCRIPTORS, bind_http, open_http, start_http};

#[cfg(feature = "http")]
mod with_http {
    use super::{Arc, Clock, Config, Failure, Http, Lines, Pulse, Server, config, http};

    pub(super) type BoundHttp = http::Bound;

    /// Descriptors that HTTP keeps open: connections, the listener, and those for waiting.
    pub(super) const HTTP_DESCRIPTORS: usize = http::DESCRIPTORS;

    pub(super) fn bind_http(config: &Config) -> Result<Option<BoundHttp>, Failure> {
        let Some(setup) = &config.http else {
            return Ok(None);
        };
        setup.bind().map_err(|why| Failure {
            exit_code: config::EXIT_CANNOT_START,
            lines: vec![why],
        })
    }

    pub(super) fn start_http(
        bound: Option<BoundHttp>,
        config: &Config,
        clock: Clock,
        pulse: &Arc<Pulse>,
        lines: &Lines,
    ) -> Result<Option<Http>, Failure> {
        let setup = config.http.as_ref();
        let sight = http::Sight {
            clock,
            pulse: pulse.clone(),
            stuck_after: http::STUCK_AFTER,
            lines: Some(lines.clone()),
            tubes_max: setup.map_or(0, |setup| setup.tubes_max),
            dir: config.dir.clone(),
        };
        bound
            .map(|bound| Http::start(bound, sight))
            .transpose()
            .map_err(|error| Failure::cannot("serve HTTP", error))
    }

    pub(super) fn open_http(http: Option<&Http>, server: &Server) {
        if let Some(http) = http {
            http.open(server.door());
        }
    }
}

/// Without the feature `http` there is no HTTP, and no flag for it.
#[cfg(not(feature = "http"))]
mod without_http {
    use super::{Arc, Clock, Config, Failure, Lines, Pulse, Server};

    pub(super) type BoundHttp = std::convert::Infallible;

    pub(super) const HTTP_DESCRIPTORS: usize = 0;

    pub(super) fn bind_http(_: &Config) -> Result<Option<BoundHttp>, Failure> {
        Ok(None)
    }

    pub(super) fn start_http(
        _: Option<BoundHttp>,
        _: &Config,
        _: Clock,
        _: &Arc<Pulse>,
        _: &Lines,
    ) -> Result<Option<BoundHttp>, Failure> {
        Ok(None)
    }

    pub(super) fn open_http(_: Option<&BoundHttp>, _: &Server) {}
}

fn account(user: &str) -> Result<Account, Failure> {
    Account::find(user).map_err(|error| Failure::cannot(format_args!("become {user}"), error))
}

/// Starts, ends and errors are always shown. There are no colours, in a terminal or elsewhere, and
/// control characters in the log are escaped.
fn log_to(lines: &Lines, verbosity: u8) {
    let (level, connections) = match verbosity {
        0 => (LevelFilter::INFO, LevelFilter::INFO),
        1 => (LevelFilter::DEBUG, LevelFilter::INFO),
        2 => (LevelFilter::DEBUG, LevelFilter::DEBUG),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    let targets = Targets::new()
        .with_default(level)
        .with_target(server::CONNECTIONS, connections);
    let writer = lines.clone();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .with_target(false)
        // Otherwise lines that cannot be written go to standard error, which then panics.
        .log_internal_errors(false);
    tracing_subscriber::registry()
        .with(layer.with_filter(targets))
        .init();
    let lines = lines.clone();
    std::panic::set_hook(Box::new(move |panic| say_panic(panic, &lines)));
}

/// A panic is a bug; its message is logged like all lines.
fn say_panic(panic: &PanicHookInfo<'_>, lines: &Lines) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let what = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let what = what.unwrap_or("of unknown cause");
    let place = panic
        .location()
        .map_or_else(|| "an unknown place".to_owned(), Location::to_string);
    error!("this is a bug in bsd-server; please report it: a panic at {place}: {what}");
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        error!("{trace:#?}");
    }
    lines.drain(LAST_WORDS);
}

/// The requested limit, if the limit of open files leaves room for it.
fn connections_max(asked: Option<u32>, http: Option<&BoundHttp>) -> usize {
    let room = rlimit::raise_descriptor_limit();
    let room = room
        .saturating_sub(http.map_or(0, |_| HTTP_DESCRIPTORS))
        .max(1);
    rlimit::widen_descriptor_table();
    let asked = asked.map_or(room, |asked| asked as usize);
    if asked > room {
        warn!("the limit of open files leaves room for {room} connections, not {asked}");
    }
    asked.min(room)
}

fn options(
    config: &Config,
    memory_max: Option<u64>,
    bounds: &Bounds,
    reactor: &Reactor,
    clock: Clock,
) -> Options {
    Options {
        dir: config.dir.clone(),
        import: config.import,
        sync: config.sync,
        segment_size: config.segment_size,
        job_size_max: config.job_size_max,
        memory_max,
        clients_memory_max: Some(bounds.clients_max),
        waker: Some(reactor.waker()),
        progress: Some(progress(clock)),
        cpu_times: Some(server::cpu_times),
        ..Options::default()
    }
}

/// Report what the start found, and what clients can rely on from now on.
fn report(config: &Config, engine: &Engine, took_ns: i64) {
    let Some(dir) = &config.dir else {
        return info!("no log is kept (--memory): a restart forgets everything");
    };
    if let Some(imported) = engine.imported() {
        report_import(imported);
    }
    let recovery = engine.recovery();
    report_oddities(recovery);
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
    let dir = dir.display();
    if recovery.is_new {
        info!("data directory {dir}: new");
    } else {
        let jobs = engine.queue().stats().jobs.total();
        let ended = if recovery.clean_stop {
            "after a clean stop"
        } else {
            "after a stop that was not clean"
        };
        let ms = took_ns / (SECOND_NS / 1000);
        info!("data directory {dir}: {jobs} jobs read in {ms} ms, {ended}");
    }
    match config.sync {
        SyncPolicy::Always => info!("sync policy: before a reply (-f 0)"),
        SyncPolicy::Interval(ms) => {
            info!("sync policy: at most {ms} ms after a reply (-f {ms})");
        }
        SyncPolicy::Never => info!("sync policy: left to the operating system (-F)"),
    }
}

/// An import happens once, and changes the content of the directory: so it is always logged.
fn report_import(imported: &TakenOver) {
    for note in &imported.notes {
        warn!("beanstalkd's log: {note}");
    }
    let kept = imported.kept.display();
    match imported.jobs {
        Some(jobs) => info!(
            "beanstalkd's log was imported (jobs: {jobs}); its files are kept, as they were, in {kept}"
        ),
        None => info!(
            "finished an import of beanstalkd's log that was interrupted; its files are kept, as \
             they were, in {kept}"
        ),
    }
}

fn report_oddities(recovery: &Recovery) {
    if let Some((size, saved)) = &recovery.torn {
        let kept = match saved {
            Some(name) => format!("they are kept in {name}"),
            None => "there was no room to keep them".to_owned(),
        };
        warn!(
            "a crash had interrupted a write: {size} bytes that were never acknowledged were dropped; {kept}"
        );
    }
    for name in &recovery.strangers {
        warn!("{name} in the data directory is not part of the log; it is left alone");
    }
}

/// Logs the progress of a replay that takes longer than a second, once a second: a silent server
/// looks dead.
fn progress(clock: Clock) -> Arc<dyn Fn(u64, u64) + Send + Sync> {
    let next = AtomicI64::new(clock.now().mono.0.saturating_add(SECOND_NS));
    Arc::new(move |done, all| {
        let now = clock.now().mono.0;
        if now >= next.load(Ordering::Relaxed) {
            next.store(now.saturating_add(SECOND_NS), Ordering::Relaxed);
            info!("replaying the log: {} of {} MiB", done >> 20, all >> 20);
        }
    })
}

/// The sockets for clients.
enum Sockets {
    /// systemd opened them, and clients may already be waiting.
    Inherited(Vec<Listener>),
    /// Bound by this process, in the order in which they were given.
    Bound(Vec<Bound>),
}

impl Sockets {
    fn bind(config: &Config, owner: Option<&Account>) -> Result<Sockets, Failure> {
        let inherited = server::inherited_listeners()
            .map_err(|error| Failure::cannot("use the sockets that were passed on", error))?;
        if inherited.is_empty() {
            return Sockets::bind_own(config, owner);
        }
        if config.listen_is_explicit {
            warn!("-l has no effect: the sockets that were passed on are used");
        }
        Ok(Sockets::Inherited(inherited))
    }

    fn bind_own(config: &Config, owner: Option<&Account>) -> Result<Sockets, Failure> {
        let bind = |address| {
            Bound::bind(address, owner)
                .map_err(|error| Failure::cannot(format_args!("listen on {address}"), error))
        };
        config
            .listen
            .iter()
            .map(bind)
            .collect::<Result<_, _>>()
            .map(Sockets::Bound)
    }

    fn listen(self) -> Result<Vec<Listener>, Failure> {
        let listen = |bound: Bound| {
            bound
                .listen()
                .map_err(|error| Failure::cannot("listen", error))
        };
        match self {
            Sockets::Inherited(listeners) => Ok(listeners),
            Sockets::Bound(bound) => bound.into_iter().map(listen).collect(),
        }
    }
}
