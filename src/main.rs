//! `bsd-server`: the command line, the order in which things start, and exit codes.
//!
//! Sockets are bound first, as whoever started the process; then it becomes the user it is to run
//! as; then the log is replayed; and only then does it listen.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bsd::clock::Clock;
use bsd::config::{self, Config};
use bsd::engine::{Engine, Options};
use bsd::server::{self, Bound, ExitOnSignal, Listener, Reactor, RunError, Server};
use bsd::storage::beanstalkd::TakenOver;
use bsd::storage::{OpenError, Recovery};
use bsd::types::SECOND_NS;
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};

fn main() -> ExitCode {
    let config = match Config::parse(std::env::args_os()) {
        Ok(config) => config,
        Err(usage) => {
            usage.print();
            return ExitCode::from(usage.exit_code());
        }
    };
    log_to_stderr(config.verbosity);
    match serve(&config) {
        Ok(()) => ExitCode::from(config::EXIT_OK),
        Err(failure) => {
            failure.lines.iter().for_each(|line| error!("{line}"));
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Why the server ends otherwise than asked.
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

fn serve(config: &Config) -> Result<(), Failure> {
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
    let connections_max = connections_max(config.connections_max);
    let sockets = Sockets::bind(config)?;
    if let Some(user) = &config.user {
        server::become_user(user)
            .map_err(|error| Failure::cannot(format_args!("become {user}"), error))?;
    }
    let engine = Engine::open(&options(config, &reactor, clock), clock.now())?;
    if let Some(imported) = engine.imported() {
        report_import(imported);
    }
    report(engine.recovery());
    let listeners = sockets.listen()?;
    for listener in &listeners {
        info!("listening on {}", listener.name());
    }
    let server = Server::new(reactor, engine, listeners, connections_max, clock)
        .map_err(|error| Failure::cannot("serve", error))?;
    drop(exit_on_signal);
    server::notify_ready();
    Ok(server.run()?)
}

/// Quiet unless asked: what goes wrong is always shown. There are no colours, in a terminal or
/// elsewhere, and control characters in what is logged are escaped.
fn log_to_stderr(verbosity: u8) {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        .init();
}

/// The bound that was asked for, if the limit of open files leaves room for it.
fn connections_max(asked: Option<u32>) -> usize {
    let room = server::raise_descriptor_limit();
    let asked = asked.map_or(room, |asked| asked as usize);
    if asked > room {
        warn!("the limit of open files leaves room for {room} connections, not {asked}");
    }
    asked.min(room)
}

fn options(config: &Config, reactor: &Reactor, clock: Clock) -> Options {
    Options {
        dir: config.dir.clone(),
        import: config.import,
        sync: config.sync,
        segment_size: config.segment_size,
        job_size_max: config.job_size_max,
        memory_max: config.memory_max,
        waker: Some(reactor.waker()),
        progress: Some(progress(clock)),
        cpu_times: Some(server::cpu_times),
        ..Options::default()
    }
}

/// It happens once, and changes what is in the directory: everybody is to know.
fn report_import(imported: &TakenOver) {
    for note in &imported.notes {
        warn!("beanstalkd's log: {note}");
    }
    let kept = imported.kept.display();
    match imported.jobs {
        Some(jobs) => warn!(
            "beanstalkd's log was imported (jobs: {jobs}); its files are kept, as they were, in {kept}"
        ),
        None => warn!(
            "finished an import of beanstalkd's log that was interrupted; its files are kept, as \
             they were, in {kept}"
        ),
    }
}

/// What somebody may want to know of the start.
fn report(recovery: &Recovery) {
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
    info!(
        records = recovery.records,
        clean_stop = recovery.clean_stop,
        "the log was replayed"
    );
}

/// Says how far a replay is, once it takes longer than a second, and then once a second. It is a
/// warning because a server that is silent for long looks dead.
fn progress(clock: Clock) -> Arc<dyn Fn(u64, u64) + Send + Sync> {
    let next = AtomicI64::new(clock.now().mono.0.saturating_add(SECOND_NS));
    Arc::new(move |done, all| {
        let now = clock.now().mono.0;
        if now >= next.load(Ordering::Relaxed) {
            next.store(now.saturating_add(SECOND_NS), Ordering::Relaxed);
            warn!("replaying the log: {} of {} MiB", done >> 20, all >> 20);
        }
    })
}

/// The sockets that clients will come to.
enum Sockets {
    /// systemd opened them, and clients may be waiting there already.
    Inherited(Vec<Listener>),
    /// Ours, bound in the order in which they were asked for.
    Bound(Vec<Bound>),
}

impl Sockets {
    fn bind(config: &Config) -> Result<Sockets, Failure> {
        let inherited = server::inherited_listeners()
            .map_err(|error| Failure::cannot("use the sockets that were passed on", error))?;
        if inherited.is_empty() {
            return Sockets::bind_own(config);
        }
        if config.listen_is_explicit {
            warn!("-l has no effect: the sockets that were passed on are used");
        }
        Ok(Sockets::Inherited(inherited))
    }

    fn bind_own(config: &Config) -> Result<Sockets, Failure> {
        let bind = |address| {
            Bound::bind(address)
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
