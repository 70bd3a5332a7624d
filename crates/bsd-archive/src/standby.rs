//! A standby: it keeps its copy up to date, reports its state, and takes over when it is promoted.
//!
//! Runs on the thread that serves the clients later, before there is anything to serve. Standard
//! error is told once when trouble begins and once when it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{info, warn};

use super::follow::{Did, Figures, FollowError, Follower, Promoted, Setup};
use bsd::clock::Clock;
use bsd::storage::OpenError;
use bsd::storage::format::LogId;
use bsd::types::{Position, Time};

/// The longest pause after trouble; the first is an interval.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A signal is seen so soon.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// State of a standby at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StandbyReport {
    /// The log that is followed; `None`: there is no copy yet.
    pub log: Option<LogId>,
    /// Up to where the copy goes.
    pub at: Option<Position>,
    /// When that was durable, by the clock of its writer, ns since 1970.
    pub wall_ns: u64,
    /// Jobs of the copy.
    pub jobs: u64,
    /// Totals since the start.
    pub figures: Figures,
    /// When the copy last had everything that was in the archive, by the monotonic clock.
    pub current_at: Option<Time>,
    /// A copy is being restored: bytes done, and bytes in all.
    pub restoring: Option<(u64, u64)>,
    /// The current trouble.
    pub trouble: Option<String>,
    /// It takes over, or has.
    pub is_promoted: bool,
    /// The last word to take over was refused: why.
    pub refused: Option<String>,
}

/// A standby as other threads see it.
#[derive(Debug, Clone, Default)]
pub struct Seat(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    report: Mutex<StandbyReport>,
    promoted: Condvar,
    /// Set by a signal too, which can wake no one.
    word: Arc<AtomicBool>,
    /// Whether the changes of other servers may be given up.
    force: AtomicBool,
}

impl Seat {
    /// Current state.
    #[must_use]
    pub fn report(&self) -> StandbyReport {
        self.lock().clone()
    }

    /// From now on it takes over as soon as it can; with `force` also if that gives up what another
    /// server has done.
    pub fn promote(&self, force: bool) {
        let mut report = self.lock();
        self.0.force.store(force, Ordering::SeqCst);
        self.0.word.store(true, Ordering::SeqCst);
        report.is_promoted = true;
        report.refused = None;
        self.0.promoted.notify_all();
    }

    /// It is a standby as before.
    fn refuse(&self, why: String) {
        let mut report = self.lock();
        self.0.word.store(false, Ordering::SeqCst);
        report.is_promoted = false;
        report.refused = Some(why);
    }

    /// Flag that a signal sets to the same effect.
    #[must_use]
    pub fn word(&self) -> Arc<AtomicBool> {
        self.0.word.clone()
    }

    fn lock(&self) -> MutexGuard<'_, StandbyReport> {
        let report = self.0.report.lock();
        report.unwrap_or_else(PoisonError::into_inner)
    }

    fn is_promoted(&self) -> bool {
        self.0.word.load(Ordering::SeqCst)
    }

    /// Until the pause is over, or the word comes.
    fn rest(&self, pause: Duration) {
        let mut left = pause;
        while !left.is_zero() && !self.is_promoted() {
            let slice = left.min(SIGNAL_INTERVAL);
            let waited = self.0.promoted.wait_timeout(self.lock(), slice);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            left -= slice;
        }
    }
}

/// Follow an archive until the word to take over comes, and take over.
///
/// # Errors
/// The disk failed, or the directory holds something else.
pub fn follow(
    setup: Setup,
    seat: &Seat,
    interval: Duration,
    clock: Clock,
) -> Result<Promoted, OpenError> {
    let mut following = Following {
        follower: Follower::new(setup),
        seat,
        clock,
        interval,
        pause: interval,
        is_said: false,
    };
    loop {
        let pause = match seat.is_promoted() {
            false => following.step()?,
            true => match following.promote()? {
                Ok(promoted) => return Ok(*promoted),
                Err(pause) => pause,
            },
        };
        // What was refused before the word came is tried at once.
        match seat.is_promoted() {
            false => seat.rest(pause),
            true => std::thread::sleep(pause.min(interval)),
        }
    }
}

struct Following<'a> {
    follower: Follower,
    seat: &'a Seat,
    clock: Clock,
    interval: Duration,
    /// How long the next trouble is waited out.
    pause: Duration,
    /// It was said that the word has come.
    is_said: bool,
}

impl Following<'_> {
    /// One step. Returns when the next is due.
    fn step(&mut self) -> Result<Duration, OpenError> {
        let seat = self.seat.clone();
        let mut progress = |done, total| seat.lock().restoring = Some((done, total));
        let done = self.follower.step(self.clock.now(), &mut progress);
        match done {
            Ok(did) => {
                self.end_trouble();
                if matches!(did, Did::Restored | Did::Opened) {
                    self.say_begun(&did);
                }
                self.publish(did == Did::Nothing);
                Ok(match did {
                    Did::Nothing => self.interval,
                    _ => Duration::ZERO,
                })
            }
            Err(error) => self.wait_out(error),
        }
    }

    /// Take over, or say when to try again.
    fn promote(&mut self) -> Result<Result<Box<Promoted>, Duration>, OpenError> {
        if !self.is_said {
            self.is_said = true;
            // A signal has told no one else.
            let force = self.seat.0.force.load(Ordering::SeqCst);
            self.seat.promote(force);
            info!("told to take over: reading the archive to its end");
        }
        let seat = self.seat.clone();
        let mut progress = |done, total| seat.lock().restoring = Some((done, total));
        let force = seat.0.force.load(Ordering::SeqCst);
        match self
            .follower
            .promote(self.clock.now(), force, &mut progress)
        {
            Ok(Some(promoted)) => {
                self.end_trouble();
                Ok(Ok(Box::new(promoted)))
            }
            Ok(None) => Ok(Err(Duration::ZERO)),
            Err(FollowError::Refused(why)) => {
                warn!(
                    "it does not take over: {why}; `bsd-ctl promote --force` does it nevertheless"
                );
                self.is_said = false;
                self.seat.refuse(why);
                Ok(Err(self.interval))
            }
            Err(error) => self.wait_out(error).map(Err),
        }
    }

    fn wait_out(&mut self, error: FollowError) -> Result<Duration, OpenError> {
        let what = match error {
            FollowError::Trouble(what) | FollowError::Nothing(what) => what,
            FollowError::Refused(what) => what,
            FollowError::Failed(error) => return Err(error),
        };
        if self.seat.lock().trouble.is_none() {
            warn!("the standby does not follow: {what}; it is tried again");
        }
        self.publish(false);
        self.seat.lock().trouble = Some(what);
        let pause = self.pause;
        self.pause = (2 * pause).min(PAUSE_MAX);
        Ok(pause)
    }

    fn end_trouble(&mut self) {
        self.pause = self.interval;
        if self.seat.lock().trouble.take().is_some() {
            info!("the standby follows again");
        }
    }

    fn say_begun(&self, did: &Did) {
        let how = match did {
            Did::Restored => "restored",
            _ => "opened again",
        };
        if let Some((at, _)) = self.follower.at() {
            let jobs = self.follower.jobs();
            info!("the copy is {how}: {jobs} jobs, up to {at}; following");
        }
    }

    fn publish(&self, is_current: bool) {
        let now = self.clock.now().mono;
        let mut report = self.seat.lock();
        report.log = self.follower.log();
        let at = self.follower.at();
        report.at = at.map(|(at, _)| at);
        report.wall_ns = at.map_or(0, |(_, wall_ns)| wall_ns);
        report.jobs = self.follower.jobs();
        report.figures = self.follower.figures();
        report.restoring = None;
        if is_current {
            report.current_at = Some(now);
        }
    }
}
