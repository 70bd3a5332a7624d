//! `bsd-server`: the command line, the order of the start, and exit codes.
//!
//! Sockets are bound first, as the user who started the process; then the process becomes the
//! configured user; then the log is replayed; and only then does it listen. A separate thread
//! writes its lines on standard error, from the first to the last.

/// Without the feature `archive` there is no archive, and no flag for it.
mod archive;
/// Without the feature `cluster` there is no cluster, and no flag for it.
mod cluster;
/// Without the feature `http` there is no HTTP, and no flag for it.
mod http;
mod memory;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::{Location, PanicHookInfo};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use self::archive::{
    end_archives, follow, hold, open_stores, reporters, restore_if_empty, seat, start_archives,
    turns,
};
use self::cluster::{bind_peers, cluster_desk, open_member, seat_member};
use self::http::{
    BoundHttp, HTTP_DESCRIPTORS, bind_http, http_address, http_seen_at, open_http, start_http,
};
use bsd::clock::Clock;
use bsd::engine::{Engine, Options};
use bsd::human::Size;
use bsd::rlimit;
use bsd::storage::convert::beanstalkd::TakenOver;
use bsd::storage::{OpenError, Recovery, SyncPolicy};
use bsd::types::SECOND_NS;
use bsd::{ErrorClass, SetupError, UsageError};
use bsd_net::{
    Account, Address, Bound, Bounds, ExitOnSignal, Gate, Lines, Listener, Port, Pulse, Reactor,
    RunError, Server, ServiceManager,
};
use bsd_server::config::{self, Config};
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

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
    if let Some(scope) = &config.new_token {
        return print_token(scope);
    }
    let lines = match Lines::start(std::io::stderr(), say_dropped) {
        Ok(lines) => lines,
        Err(error) => {
            // If that cannot be written either, the exit code must be enough.
            let _ = writeln!(std::io::stderr(), "cannot start a thread: {error}");
            return ExitCode::from(config::exit_code(ErrorClass::Setup));
        }
    };
    log_to(&lines, config.verbosity);
    memory::give_back();
    let exit_code = match serve(&config, &lines) {
        Ok(()) => config::EXIT_OK,
        Err(failure) => {
            failure.lines().for_each(|line| error!("{line}"));
            if failure.is_about_default_dir(&config) {
                error!(
                    "no -b was given, so the log would be in ./{}: give a directory that the server \
                     may write with -b DIR, or keep no log with --memory",
                    config::DIR_DEFAULT
                );
            }
            config::exit_code(failure.class)
        }
    };
    lines.drain(LAST_WORDS);
    ExitCode::from(exit_code)
}

/// The token, for the client, and its line, for the file. Only its reader keeps it.
fn print_token(scope: &bsd_net::Scope) -> ExitCode {
    let printed = bsd_net::new_token(scope, None).and_then(|(token, line)| {
        let text = format!("token: {token}\nline:  {line}\n");
        std::io::stdout().write_all(text.as_bytes())
    });
    ExitCode::from(match printed {
        Ok(()) => config::EXIT_OK,
        Err(why) => {
            // If that cannot be written either, the exit code must be enough.
            let _ = writeln!(std::io::stderr(), "cannot make a token: {why}");
            config::exit_code(ErrorClass::of_system(&why))
        }
    })
}

fn say_dropped(count: u64) {
    warn!("{count} lines before this one are missing: standard error could not be written");
}

/// Why the server ends other than as requested.
struct Failure {
    class: ErrorClass,
    lines: Vec<String>,
}

impl Failure {
    /// All lines of `text` belong to an error of this class.
    fn new(class: ErrorClass, text: impl std::fmt::Display) -> Failure {
        let lines = text.to_string().lines().map(str::to_owned).collect();
        Failure { class, lines }
    }

    fn cannot(
        what: impl std::fmt::Display,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Failure {
        let error = error.into();
        let of_system = error.downcast_ref().map(ErrorClass::of_system);
        let class = of_system.unwrap_or(ErrorClass::Setup);
        Failure::new(class, format_args!("cannot {what}: {error}"))
    }

    fn usage(why: UsageError) -> Failure {
        Failure::new(ErrorClass::Usage, why)
    }

    /// No `-b` was given, and the log cannot be in the default directory.
    fn is_about_default_dir(&self, config: &Config) -> bool {
        let is_default = config.dir.as_deref() == Some(config::DIR_DEFAULT.as_ref());
        let names_it = |line: &String| line.contains(&format!(" {}", config::DIR_DEFAULT));
        is_default && self.class == ErrorClass::Setup && self.lines.iter().any(names_it)
    }

    /// The event; and the remedy, unless it was already given, or the line itself says what to
    /// correct.
    fn lines(&self) -> impl Iterator<Item = String> {
        let advice = self.class.advice();
        let says_itself = matches!(self.class, ErrorClass::Setup | ErrorClass::Usage);
        let is_said = says_itself || self.lines.iter().any(|line| line.contains(advice));
        let advice = (!is_said).then(|| format!("what to do: {advice}"));
        self.lines.iter().cloned().chain(advice)
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Failure {
        Failure::new(error.class(), error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::new(error.class(), error)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        Failure::new(error.class(), error)
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
    let gate = gate(config)?;
    let http = bind_http(config, &gate)?;
    let bounds = Bounds {
        connections_max: connections_max(config.connections_max, http.as_ref()),
        idle_output: config.idle_output,
        idle: config.idle,
        ..bounds
    };
    let account = config.user.as_deref().map(account).transpose()?;
    let stores = open_stores(config)?;
    let sockets = Sockets::bind(config, account.as_ref())?;
    let peers = bind_peers(config)?;
    let desk = cluster_desk(config, &reactor);
    if let Some((account, user)) = account.as_ref().zip(config.user.as_ref()) {
        account
            .assume()
            .map_err(|error| Failure::cannot(format_args!("become {user}"), error))?;
    }
    let pulse = Arc::new(Pulse::default());
    gate.show_certificate(&pulse);
    let seat = seat(config);
    let reporters = reporters(config);
    let sights = (reporters.clone(), seat.clone(), desk.as_ref().cloned());
    let http = start_http(http, config, clock, &pulse, lines, bounds.http_max, sights)?;
    if let Some(who) = config.open_to(&sockets.names(), http.as_ref().map(http_address)) {
        warn!("{who}");
    }
    restore_if_empty(config, &stores, clock)?;
    let mut manager = ServiceManager::from_env();
    let options = options(config, memory_max, &bounds, &reactor, clock);
    let promoted = follow(
        config,
        stores.first(),
        &options,
        seat.as_ref(),
        &mut manager,
        clock,
    )?;
    let seen_at = (desk.as_ref(), http_seen_at(http.as_ref(), config));
    let turns = turns(config, &reporters, clock);
    let of_turns = turns.clone();
    let opened = open_member(config, peers, &options, &reactor, seen_at, of_turns, clock)?;
    let (mut engine, member) = match (promoted, opened) {
        (Some(engine), _) => (engine, None),
        (None, Some((member, engine))) => (engine, Some(member)),
        (None, None) => (open(config, &options, clock)?, None),
    };
    let trails = hold(config, &stores, &mut engine);
    drop(exit_on_signal);
    let archives = start_archives(config, stores, (trails, turns), clock, reporters)?;
    let listeners = sockets.listen()?;
    for listener in &listeners {
        info!("listening on {}", listener.name());
    }
    let server = Server::new(reactor, engine, listeners, bounds, clock)
        .map_err(|error| Failure::cannot("serve", error))?
        .guarded_by(gate)
        .speaking(config.protocol)
        .managed_by(manager)
        .showing(pulse);
    let server = seat_member(server, member);
    open_http(http.as_ref(), &server);
    info!(
        "ready: bsd-server {}, process {}, for up to {} connections",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        bounds.connections_max
    );
    let ran = server.run();
    let archived = end_archives(archives);
    // Of two reasons to end, that of the log says more: those of an archive are logged already.
    ran?;
    archived
}

fn open(config: &Config, options: &Options, clock: Clock) -> Result<Engine, Failure> {
    let begin = clock.now().mono;
    let engine = Engine::open(options, clock.now())?;
    report(config, &engine, clock.now().mono.since(begin));
    Ok(engine)
}

/// The checks of clients. A file that cannot be used is a mistake of the command line.
fn gate(config: &Config) -> Result<Gate, Failure> {
    let auth = config.auth_file.clone().map(bsd_net::Auth::read);
    let auth = auth.transpose().map_err(|it| it.of_flag("--auth-file"))?;
    let gate = Gate::default()
        .with_auth(auth)
        .with_trusted(config.proxy_from.clone())
        .with_each_max(config.each_max)
        .with_probing(config.probing);
    let gate = {
        let tls = config.tls.clone().map(bsd_net::Tls::read).transpose();
        gate.with_tls(tls.map_err(|it| it.of_flag("--tls-cert"))?)
    };
    Ok(gate)
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
    // It tells of each request that it repeats; of what is wrong the archive tells, once.
    let object_store = match verbosity {
        0 => LevelFilter::ERROR,
        _ => level,
    };
    let targets = Targets::new()
        .with_default(level)
        .with_target("object_store", object_store)
        .with_target(bsd_net::CONNECTIONS, connections);
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
        progress: Some(progress(clock, "replaying the log")),
        cpu_times: Some(bsd_net::cpu_times),
        tallied_tubes_max: tallied_tubes_max(config),
        ..Options::default()
    }
}

/// Tubes with histograms of their own: each adds 30 lines to a scrape.
const TALLIED_TUBES_MAX: usize = 1000;

fn tallied_tubes_max(config: &Config) -> usize {
    let with_lines = config.http.as_ref().map_or(0, |http| http.tubes_max);
    with_lines.min(TALLIED_TUBES_MAX)
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

/// Logs the progress of what takes longer than a second, once a second: a silent server looks dead.
fn progress(clock: Clock, doing: &'static str) -> Arc<dyn Fn(u64, u64) + Send + Sync> {
    let next = AtomicI64::new(clock.now().mono.0.saturating_add(SECOND_NS));
    Arc::new(move |done, all| {
        let now = clock.now().mono.0;
        if now >= next.load(Ordering::Relaxed) {
            next.store(now.saturating_add(SECOND_NS), Ordering::Relaxed);
            info!("{doing}: {} of {}", Size(done), Size(all));
        }
    })
}

fn not_bound(address: &Address, error: &std::io::Error) -> Failure {
    let why = bsd_net::why_not_bound(address, error);
    let class = ErrorClass::of_system(error);
    Failure::new(class, format_args!("cannot listen on {address}: {why}"))
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
        let inherited = bsd_net::inherited_listeners()
            .map_err(|error| Failure::cannot("use the sockets that were passed on", error))?;
        if inherited.is_empty() {
            return Sockets::bind_own(config, owner);
        }
        if let Some(layered) = config.listen.iter().find(|it| it.layers().is_some()) {
            let why = format!(
                "-l {layered} cannot be had of sockets that were passed on; take the socket unit \
                 away, so that the server opens its own"
            );
            return Err(Failure::cannot("start", why));
        }
        if config.listen_is_explicit {
            warn!("-l has no effect: the sockets that were passed on are used");
        }
        Ok(Sockets::Inherited(inherited))
    }

    fn bind_own(config: &Config, owner: Option<&Account>) -> Result<Sockets, Failure> {
        let bind =
            |address| Bound::bind(address, owner).map_err(|error| not_bound(address, &error));
        config
            .listen
            .iter()
            .map(bind)
            .collect::<Result<_, _>>()
            .map(Sockets::Bound)
    }

    /// Names of the sockets in the log lines of the start.
    fn names(&self) -> Vec<String> {
        match self {
            Sockets::Inherited(listeners) => {
                listeners.iter().map(|it| it.name().to_owned()).collect()
            }
            Sockets::Bound(bound) => bound.iter().map(Bound::name).collect(),
        }
    }

    fn listen(self) -> Result<Vec<Listener>, Failure> {
        let listen = |bound: Bound| {
            let name = bound.name();
            bound.listen().map_err(|error| {
                let address = Address::parse(&name, &Port::Number(0));
                address.map_or_else(Failure::usage, |address| not_bound(&address, &error))
            })
        };
        match self {
            Sockets::Inherited(listeners) => Ok(listeners),
            Sockets::Bound(bound) => bound.into_iter().map(listen).collect(),
        }
    }
}
