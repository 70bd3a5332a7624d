//! The archive of the server: its store, its thread, and the meaning of its end.

use std::path::{Path, absolute};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bsd::SetupError;
use bsd::clock::utc;
use bsd::storage::disk::Fs;
use bsd::storage::{RealFs, Trail};
use bsd_archive::RestoreError;
use bsd_archive::follow::{Setup, has_taken_over};
use bsd_archive::standby::{self, Seat};
use bsd_archive::{
    Archive, Codec, Lead, Levels, Reader, Refilled, Reporter, Sizes, Store, Turns, Waiter, Which,
    Writer, chosen_of, has_log, is_restored,
};
use bsd_cluster::member::{ClusterId, NodeId};
use bsd_net::Archivist;
use bsd_server::config::ArchiveConfig;
use signal_hook::consts::{SIGTERM, SIGUSR2};

use super::{
    Clock, Config, Engine, ErrorClass, Failure, Options, ServiceManager, error, info, progress,
    warn,
};

/// A server whose log was restored waits so long for its archive before it serves.
const CLAIM_WAIT: Duration = Duration::from_secs(5);

/// The stores of the archives, in the order of the flags: none, one, or two.
pub(super) fn open_stores(config: &Config) -> Result<Vec<Arc<dyn Store>>, Failure> {
    let Some(archive) = &config.archive else {
        return Ok(Vec::new());
    };
    let codec = Codec::default()
        .compressing(archive.compression)
        .with_keys_of(&archive.keys, &archive.old_keys)
        .map_err(|it| it.of_flag("--archive-key"))?;
    if !codec.is_plain() {
        info!("archive: what is put from now on is {codec}");
    }
    let open = |url: &String| {
        check_apart(url, config)?;
        Ok(bsd_archive::open(url, codec.clone()).map(Arc::from)?)
    };
    archive.urls().map(open).collect()
}

/// Refuse the data directory as the place of its own archive: they would be lost together.
fn check_apart(url: &str, config: &Config) -> Result<(), Failure> {
    let (Some(dir), Some(place)) = (&config.dir, bsd_archive::dir_of(url)) else {
        return Ok(());
    };
    // What is not there yet has no name but the given one.
    let real = |dir: &Path| dir.canonicalize().or_else(|_| absolute(dir));
    match (real(dir), real(&place)) {
        (Ok(dir), Ok(place)) if dir == place => Err(SetupError::new(format_args!(
            "the archive {url} is the data directory (-b {}): what takes the one would take both; \
             give a directory on another disk, or of another machine",
            dir.display()
        ))
        .into()),
        _ => Ok(()),
    }
}

/// With `--restore-if-empty`: a data directory that is missing or empty gets the log of the archive, or
/// that of the one with the later end, if there are two. Both have to be asked: an empty log is never
/// begun, and the earlier end never taken, while one of them does not answer.
pub(super) fn restore_if_empty(
    config: &Config,
    stores: &[Arc<dyn Store>],
    clock: Clock,
) -> Result<(), Failure> {
    let (Some(archive), Some(dir)) = (&config.archive, &config.dir) else {
        return Ok(());
    };
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    if !archive.restore_if_empty || has_log(&*fs, dir)? {
        return Ok(());
    }
    for url in archive.urls() {
        bsd_archive::check_place(url)?;
    }
    let tell = progress(clock, "restoring the log from its archive");
    let wait = Waiter::new(clock, wait_told);
    let readers = stores.iter().map(|it| Reader::new(&**it, &wait));
    let readers: Vec<_> = readers.collect();
    let chosen = match &readers[..] {
        [] => return Ok(()),
        [_] => Ok(0),
        several => chosen_of(several, archive.log),
    };
    let chosen = chosen.map_err(|error| not_restored(archive, config, error))?;
    let refilled = bsd_archive::restore_if_empty(
        &readers[chosen],
        archive.log,
        (&fs, dir),
        clock.now(),
        &mut |done, all| {
            tell(done, all);
        },
    );
    let (url, shown) = (stores[chosen].place(), dir.display());
    match refilled.map_err(|error| not_restored(archive, config, error))? {
        Refilled::HasLog => {}
        Refilled::Nothing(why) => {
            let all: Vec<&str> = stores.iter().map(|it| it.place()).collect();
            let all = all.join(" and ");
            warn!("nothing to restore from {all}: {why}; an empty log is begun")
        }
        Refilled::Restored(restored) => {
            for bad in &restored.skipped {
                warn!("{bad}; an older base was used, and nothing is missing for that");
            }
            if readers.len() > 1 {
                info!("of both archives {url} has the later end");
            }
            info!(
                "data directory {shown}: restored from {url}, {} jobs, as it was at {}, up to {}",
                restored.jobs,
                utc(restored.wall_ns),
                restored.end
            );
            if let Some(missing) = restored.missing {
                warn!("{missing}");
            }
        }
    }
    Ok(())
}

/// An object of the archive is not to be had.
fn wait_told(why: &str) {
    warn!("the archive is waited for: {why}; it is tried again, for minutes");
}

/// The server must not start with an empty log in the place of one that could not be read.
fn not_restored(archive: &ArchiveConfig, config: &Config, error: RestoreError) -> Failure {
    let error = match error {
        RestoreError::Disk(error) => return error.into(),
        other => other,
    };
    let dir = config.dir.clone().unwrap_or_default();
    let of_two = match archive.second {
        Some(_) => {
            "; of two archives both must answer, since either may have the later end: to restore what \
             one of them has, name that one alone"
        }
        None => "",
    };
    let advice = format!(
        "the server does not start (--restore-if-empty); start it again when the archive answers, or \
         look with `bsd-wal archive ls {url}` and restore by hand: `bsd-wal archive restore [--log \
         LOG] [--until …] {url} {dir}`{of_two}",
        url = archive.url,
        dir = dir.display()
    );
    Failure::new(error.class(), format_args!("{error}\n{advice}"))
}

/// Where each archive will report.
pub(super) fn reporters(config: &Config) -> Vec<Reporter> {
    let urls = config.archive.iter().flat_map(ArchiveConfig::urls);
    urls.map(|url| Reporter::at(url)).collect()
}

/// Where a standby is seen and told to take over; `None`: this is no standby.
pub(super) fn seat(config: &Config) -> Option<Seat> {
    let is_followed = config.archive.as_ref().is_some_and(|it| it.is_followed);
    is_followed.then(Seat::default)
}

/// Be a standby until it takes over. `None`: this is no standby.
pub(super) fn follow(
    config: &Config,
    store: Option<&Arc<dyn Store>>,
    options: &Options,
    seat: Option<&Seat>,
    manager: &mut ServiceManager,
    clock: Clock,
) -> Result<Option<Engine>, Failure> {
    let (Some(archive), Some(store), Some(seat)) = (&config.archive, store, seat) else {
        return Ok(None);
    };
    if let Some(dir) = &options.dir
        && has_taken_over(&*options.fs, dir)?
    {
        seat.promote(false);
        info!(
            "this standby has taken over before; it serves, and archives to {}",
            archive.url
        );
        return Ok(None);
    }
    signal_hook::flag::register(SIGUSR2, seat.word())
        .map_err(|error| Failure::cannot("catch signals", error))?;
    let setup = Setup {
        store: store.clone(),
        wait: Arc::new(Waiter::new(clock, wait_told)),
        log: archive.log,
        options: options.clone(),
        node: node(),
    };
    info!(
        "standby: following {}; no one is served until `bsd-ctl promote` or SIGUSR2",
        archive.url
    );
    manager.notify_standby();
    let promoted = standby::follow(setup, seat, archive.interval, clock)?;
    if let Some(why) = promoted.given_up {
        warn!("the archive has more, which cannot be used: {why}");
    }
    info!(
        "took over: {} jobs, the log as it was at {}, up to {}; epoch {} of the archive",
        promoted.engine.queue().stats().jobs.total(),
        utc(promoted.wall_ns),
        promoted.at,
        promoted.epoch,
    );
    Ok(Some(promoted.engine))
}

/// Where the member of a cluster says whether it leads, and so archives, one for each archive; empty: this
/// is no member, or has no archive.
pub(super) fn turns(config: &Config, reporters: &[Reporter], clock: Clock) -> Vec<Turns> {
    let (Some(archive), Some(_)) = (&config.archive, &config.cluster) else {
        return Vec::new();
    };
    let turns = |it: &Reporter| Turns::new(archive.hold_max, archive.lag_max, it.clone(), clock);
    reporters.iter().map(turns).collect()
}

/// The loop of a member tells its archives when it leads.
pub(super) struct ByTurns(pub(super) Vec<Turns>);

impl Archivist for ByTurns {
    fn lead(&self, cluster: ClusterId, member: NodeId, term: u64) -> Vec<Arc<Trail>> {
        let lead = Lead {
            cluster: cluster.0,
            member: member.0,
            term,
        };
        self.0.iter().map(|turns| turns.lead(lead)).collect()
    }

    fn rest(&self) {
        self.0.iter().for_each(Turns::rest);
    }
}

/// From now on the log holds its segments for each archive. That of a member does when it leads.
pub(super) fn hold(
    config: &Config,
    stores: &[Arc<dyn Store>],
    engine: &mut Engine,
) -> Vec<Arc<Trail>> {
    let Some(archive) = config.archive.as_ref().filter(|_| config.cluster.is_none()) else {
        return Vec::new();
    };
    let trail = |_| Arc::new(Trail::new(archive.hold_max).with_lag_max(archive.lag_max));
    let trails: Vec<_> = stores.iter().map(trail).collect();
    engine.publish_to(trails.iter().cloned());
    trails
}

/// Begin to archive the log, at one address or at two. One that was restored is not served before an
/// archive is claimed: otherwise the first of its changes would be in none until then, and an old server
/// would go on. A store that does not answer is waited for no longer than [`CLAIM_WAIT`].
pub(super) fn start_archives(
    config: &Config,
    stores: Vec<Arc<dyn Store>>,
    (trails, turns): (Vec<Arc<Trail>>, Vec<Turns>),
    clock: Clock,
    reporters: Vec<Reporter>,
) -> Result<Vec<Archive>, Failure> {
    let (Some(archive), Some(dir)) = (&config.archive, &config.dir) else {
        return Ok(Vec::new());
    };
    // A member claims when it leads. Of a file that cannot be read the writer says what is wrong.
    let is_restored = turns.is_empty() && is_restored(&RealFs, dir).unwrap_or(false);
    let (levels, interval) = (levels(archive), archive.interval);
    let (mut trails, mut turns) = (trails.into_iter(), turns.into_iter());
    let mut archives = Vec::new();
    for ((store, which), reporter) in stores.into_iter().zip(Which::ALL).zip(reporters) {
        let (dir, of, is_shared) = (dir.clone(), store.clone(), archive.is_shared);
        let writer = move |trail| {
            let (fs, sizes) = (Arc::new(RealFs), Sizes::default());
            let writer = Writer::new(of.clone(), trail, fs, dir.clone(), node(), sizes);
            writer.beside_others(is_shared).of(which)
        };
        let url = reporter.place().to_owned();
        let started = match (trails.next(), turns.next()) {
            (_, Some(turns)) => {
                let writer = move |lead, trail| writer(trail).led(lead);
                Archive::start_by_turns(&turns, store, writer, interval, clock, stop)
            }
            (Some(trail), None) => Archive::start(writer(trail), interval, clock, reporter, stop),
            (None, None) => break,
        };
        let thread = started
            .and_then(|thread| match levels {
                Some(levels) => thread.with_levels(levels),
                None => Ok(thread),
            })
            .map_err(|error| Failure::cannot("start a thread for the archive", error))?;
        match config.cluster {
            Some(_) => info!("archive: {url}, while this member leads"),
            None => info!("archive: {url}"),
        }
        archives.push(thread);
    }
    if is_restored {
        wait_for_claims(&archives, clock);
    }
    Ok(archives)
}

/// For at most [`CLAIM_WAIT`], all together.
fn wait_for_claims(archives: &[Archive], clock: Clock) {
    let begun = clock.now().mono;
    for archive in archives {
        let waited = u64::try_from(clock.now().mono.since(begun)).unwrap_or(0);
        let left = CLAIM_WAIT.saturating_sub(Duration::from_nanos(waited));
        if !archive.wait_for_claim(left) {
            warn!(
                "the archive {} has not been claimed in {} s; clients are served, and what they \
                 change is not in it until it is",
                archive.report().place,
                CLAIM_WAIT.as_secs()
            );
        }
    }
}

/// When links are joined; `None`: they are not.
fn levels(archive: &ArchiveConfig) -> Option<Levels> {
    let may_join = archive.old_keys.is_empty() || !archive.keys.is_empty();
    if archive.fine.is_some() && !may_join {
        warn!(
            "archive: links are not joined, so that nothing that is encrypted is put in plain; \
             --archive-key FILE encrypts what is put"
        );
    }
    archive.fine.filter(|_| may_join).map(|fine| Levels {
        fine_ns: u64::try_from(fine.as_nanos()).unwrap_or(u64::MAX),
        ..Levels::default()
    })
}

/// The server stops as it does when it is asked to.
fn stop() {
    if let Err(error) = signal_hook::low_level::raise(SIGTERM) {
        error!("the server cannot be stopped: {error}; stop it");
    }
}

/// Name of this process, for readers of the archive.
fn node() -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy();
    format!("{host}, process {}", std::process::id())
}

/// Put the last of the log, into all archives at the same time. One that has ended for good gives the
/// process its exit code.
pub(super) fn end_archives(archives: Vec<Archive>) -> Result<(), Failure> {
    let reports = thread::scope(|scope| {
        let ends = archives.into_iter().map(|it| scope.spawn(|| it.finish()));
        let ends: Vec<_> = ends.collect();
        // A panic in it has been reported already.
        let reports = ends.into_iter().filter_map(|end| end.join().ok());
        reports.collect::<Vec<_>>()
    });
    match reports.iter().any(|report| report.ended.is_some()) {
        true => {
            let text = "stopped because of the archive; see above";
            Err(Failure::new(ErrorClass::Replaced, text))
        }
        false => Ok(()),
    }
}
