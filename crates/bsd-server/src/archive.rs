//! The archive of the server: its store, its thread, and the meaning of its end.

use std::sync::Arc;
use std::time::Duration;

use bsd::clock::utc;
use bsd::storage::disk::Fs;
use bsd::storage::{RealFs, Trail};
use bsd_archive::RestoreError;
use bsd_archive::follow::{Setup, has_taken_over};
use bsd_archive::standby::{self, Seat};
use bsd_archive::{
    Archive, Codec, Lead, Levels, Reader, Refilled, Reporter, Sizes, Store, Turns, Waiter, Writer,
    is_restored,
};
use bsd_cluster::member::{ClusterId, NodeId};
use bsd_net::Archivist;
use bsd_server::config::ArchiveConfig;
use signal_hook::consts::{SIGTERM, SIGUSR2};

use super::{
    Clock, Config, Engine, ErrorClass, Failure, Options, ServiceManager, error, info, of_flag,
    progress, warn,
};

/// A server whose log was restored waits so long for its archive before it serves.
const CLAIM_WAIT: Duration = Duration::from_secs(5);

pub(super) fn open_store(config: &Config) -> Result<Option<Arc<dyn Store>>, Failure> {
    let Some(archive) = &config.archive else {
        return Ok(None);
    };
    let codec = Codec::default()
        .compressing(archive.compression)
        .with_keys_of(&archive.keys, &archive.old_keys)
        .map_err(of_flag)?;
    if !codec.is_plain() {
        info!("archive: what is put from now on is {codec}");
    }
    let store = bsd_archive::open(&archive.url, codec)?;
    Ok(Some(Arc::from(store)))
}

/// With `--restore-if-empty`: a data directory that is missing or empty gets the log of the archive.
pub(super) fn restore_if_empty(
    config: &Config,
    store: Option<&Arc<dyn Store>>,
    clock: Clock,
) -> Result<(), Failure> {
    let (Some(archive), Some(dir), Some(store)) = (&config.archive, &config.dir, store) else {
        return Ok(());
    };
    if !archive.restore_if_empty {
        return Ok(());
    }
    bsd_archive::check_place(&archive.url)?;
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let tell = progress(clock, "restoring the log from its archive");
    let wait = Waiter::new(clock, wait_told);
    let reader = Reader::new(&**store, &wait);
    let refilled = bsd_archive::restore_if_empty(
        &reader,
        archive.log,
        (&fs, dir),
        clock.now(),
        &mut |done, all| {
            tell(done, all);
        },
    );
    let (url, shown) = (&archive.url, dir.display());
    match refilled.map_err(|error| not_restored(archive, config, error))? {
        Refilled::HasLog => {}
        Refilled::Nothing(why) => {
            warn!("nothing to restore from {url}: {why}; an empty log is begun")
        }
        Refilled::Restored(restored) => {
            for bad in &restored.skipped {
                warn!("{bad}; an older base was used, and nothing is missing for that");
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
    let advice = format!(
        "the server does not start (--restore-if-empty); start it again when the archive answers, or \
         look with `bsd-wal archive ls {url}` and restore by hand: `bsd-wal archive restore [--log \
         LOG] [--until …] {url} {dir}`",
        url = archive.url,
        dir = dir.display()
    );
    Failure::new(error.class(), format_args!("{error}\n{advice}"))
}

/// Where the archive will report; `None`: the server has no archive.
pub(super) fn reporter(config: &Config) -> Option<Reporter> {
    let archive = config.archive.as_ref()?;
    Some(Reporter::at(&archive.url))
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

/// Where the member of a cluster says whether it leads, and so archives; `None`: this is no member, or has
/// no archive.
pub(super) fn turns(config: &Config, reporter: Option<&Reporter>, clock: Clock) -> Option<Turns> {
    let archive = config.archive.as_ref()?;
    let reporter = reporter.filter(|_| config.cluster.is_some())?;
    let turns = Turns::new(archive.hold_max, archive.lag_max, reporter.clone(), clock);
    Some(turns)
}

/// The loop of a member tells its archive when it leads.
pub(super) struct ByTurns(pub(super) Turns);

impl Archivist for ByTurns {
    fn lead(&self, cluster: ClusterId, member: NodeId, term: u64) -> Arc<Trail> {
        self.0.lead(Lead {
            cluster: cluster.0,
            member: member.0,
            term,
        })
    }

    fn rest(&self) {
        self.0.rest();
    }
}

/// From now on the log holds its segments for the archive. That of a member does when it leads.
pub(super) fn hold(config: &Config, engine: &mut Engine) -> Option<Arc<Trail>> {
    let archive = config
        .archive
        .as_ref()
        .filter(|_| config.cluster.is_none())?;
    let trail = Arc::new(Trail::new(archive.hold_max).with_lag_max(archive.lag_max));
    engine.publish_to([trail.clone()]);
    Some(trail)
}

/// Begin to archive the log. One that was restored is not served before its archive is claimed:
/// otherwise the first of its changes would be in none until then, and an old server would go on. A
/// store that does not answer is waited for no longer than [`CLAIM_WAIT`].
pub(super) fn start_archive(
    config: &Config,
    store: Option<Arc<dyn Store>>,
    (trail, turns): (Option<Arc<Trail>>, Option<Turns>),
    clock: Clock,
    reporter: Option<Reporter>,
) -> Result<Option<Archive>, Failure> {
    let (Some(archive), Some(dir), Some(store)) = (&config.archive, &config.dir, store) else {
        return Ok(None);
    };
    // A member claims when it leads. Of a file that cannot be read the writer says what is wrong.
    let is_restored = turns.is_none() && is_restored(&RealFs, dir).unwrap_or(false);
    let (dir, of, is_shared) = (dir.clone(), store.clone(), archive.is_shared);
    let writer = move |trail| {
        let (fs, sizes) = (Arc::new(RealFs), Sizes::default());
        let writer = Writer::new(of.clone(), trail, fs, dir.clone(), node(), sizes);
        writer.beside_others(is_shared)
    };
    let may_join = archive.old_keys.is_empty() || !archive.keys.is_empty();
    if archive.fine.is_some() && !may_join {
        warn!(
            "archive: links are not joined, so that nothing that is encrypted is put in plain; \
             --archive-key FILE encrypts what is put"
        );
    }
    let levels = archive.fine.filter(|_| may_join).map(|fine| Levels {
        fine_ns: u64::try_from(fine.as_nanos()).unwrap_or(u64::MAX),
        ..Levels::default()
    });
    let interval = archive.interval;
    let started = match (trail, turns) {
        (_, Some(turns)) => {
            let writer = move |lead, trail| writer(trail).led(lead);
            Archive::start_by_turns(&turns, store, writer, interval, clock, stop)
        }
        (Some(trail), None) => {
            let reporter = reporter.unwrap_or_default();
            Archive::start(writer(trail), interval, clock, reporter, stop)
        }
        (None, None) => return Ok(None),
    };
    let archive_thread = started
        .and_then(|thread| match levels {
            Some(levels) => thread.with_levels(levels),
            None => Ok(thread),
        })
        .map_err(|error| Failure::cannot("start a thread for the archive", error))?;
    match config.cluster {
        Some(_) => info!("archive: {}, while this member leads", archive.url),
        None => info!("archive: {}", archive.url),
    }
    if is_restored && !archive_thread.wait_for_claim(CLAIM_WAIT) {
        warn!(
            "the archive has not been claimed in {} s; clients are served, and what they change is in \
             no archive until it is",
            CLAIM_WAIT.as_secs()
        );
    }
    Ok(Some(archive_thread))
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

/// Put the last of the log. An archive that has ended for good gives the process its exit code.
pub(super) fn end_archive(archive: Option<Archive>) -> Result<(), Failure> {
    let report = archive.map(Archive::finish);
    match report.and_then(|report| report.ended) {
        Some(_) => {
            let text = "stopped because of the archive; see above";
            Err(Failure::new(ErrorClass::Replaced, text))
        }
        None => Ok(()),
    }
}
