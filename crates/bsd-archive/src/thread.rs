//! The thread `bsd-archive`: when the writer is called, and what others may know of it.
//!
//! The writer is called once an interval while there is something new, without a pause while a base
//! is being made, and after trouble with pauses that grow. Standard error is told once when trouble
//! begins and once when it ends. The loop shares nothing with this thread but the trail.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{error, info, warn};

use super::joiner::{Joiner, Joins};
use super::lead::Lead;
use super::levels::Levels;
use super::order::{Orders, Stage};
use super::store::Store;
use super::turns::Turns;
use super::writer::{Done, Failure, Figures, Writer};
use bsd::clock::Clock;
use bsd::storage::Trail;
use bsd::storage::format::LogId;
use bsd::types::{Position, SECOND_NS, Time};

/// The first pause after trouble; each further one is twice as long …
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(1);
/// … up to this: so soon after the store is back the archive is written again.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// An archive that lacks something for longer than this, and two intervals, is late.
pub const LAG_MAX_NS: i64 = 15 * SECOND_NS;
/// A writer that has nothing to put asks this often whether another has taken over.
pub(super) const OWNER_INTERVAL_NS: i64 = 10 * SECOND_NS;
/// Interval at which a writer checks whether the store still has its last link.
pub(super) const PROOF_INTERVAL_NS: i64 = 60 * SECOND_NS;
/// While a base is asked for, what waits for its end to be durable is looked at so often.
const SYNC_WAIT: Duration = Duration::from_millis(20);
/// How long a server that stops waits for the last link.
pub const LAST_LINK: Duration = Duration::from_secs(5);

/// State of the archive at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The epoch of this writer; `None`: it has not begun yet.
    pub epoch: Option<u32>,
    /// Everything before this position can be restored; `None` during a gap and before the first
    /// base.
    pub archived: Option<Position>,
    /// Durable bytes that are not in the archive.
    pub lag_bytes: u64,
    /// The archive has everything that was durable at this moment, by the monotonic clock; before
    /// the first base the moment when the writer began. `None`: it has not begun.
    pub has_all_of: Option<Time>,
    /// A gap is open: until the next base is complete, changes since it began cannot be restored.
    pub is_in_gap: bool,
    /// Bytes of the base that is being made that are in the store, and bytes of all of it.
    pub base: Option<(u64, u64)>,
    /// It is written so often, in nanoseconds.
    pub interval_ns: i64,
    /// Totals since the start.
    pub figures: Figures,
    /// Calls that failed.
    pub errors: u64,
    /// The current trouble.
    pub trouble: Option<String>,
    /// The writer has stopped for good, and why.
    pub ended: Option<String>,
    /// What was joined; `None`: this server joins nothing.
    pub joins: Option<Joins>,
    /// This server is a member of a cluster that does not lead: the member that leads writes the archive.
    pub rests: bool,
}

impl Report {
    /// For how long the archive has lacked something, in nanoseconds; 0: it lacks nothing.
    #[must_use]
    pub fn lag_ns(&self, now: Time) -> i64 {
        match self.has_all_of {
            Some(moment) if self.lag_bytes > 0 || self.is_in_gap => now.since(moment).max(0),
            _ => 0,
        }
    }

    /// Progress of the base that ends the gap, in percent.
    #[must_use]
    pub fn base_percent(&self) -> u64 {
        let (done, all) = self.base.unwrap_or((0, 0));
        (100 * done).checked_div(all).unwrap_or(0)
    }

    /// True if the archive lacks more than an interval and an upload explain.
    #[must_use]
    pub fn is_late(&self, now: Time) -> bool {
        let usual_ns = self.interval_ns.saturating_mul(2);
        self.lag_ns(now) > LAG_MAX_NS.saturating_add(usual_ns)
    }

    /// True while links are put, or could be: the writer has begun, nothing fails, and it goes on.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.epoch.is_some() && self.trouble.is_none() && self.ended.is_none()
    }
}

/// An archive that is being written, until this is dropped.
#[derive(Debug)]
pub struct Archive {
    store: Arc<dyn Store>,
    clock: Clock,
    joiner: Option<Joiner>,
    reporter: Reporter,
    stop: Option<SyncSender<()>>,
    /// Of a member: how its thread is told.
    turns: Option<Turns>,
    stopped: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Archive {
    /// Begin to call `writer`, and report to `reporter`. `ended` is called once, from the thread, if
    /// it must not go on: if another writer has the chain, or if the store cannot hold one.
    ///
    /// # Errors
    /// The thread cannot be had.
    pub fn start(
        writer: Writer,
        interval: Duration,
        clock: Clock,
        reporter: Reporter,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Archive> {
        let (stop, stopping) = sync_channel(1);
        reporter.orders().open(stop.clone());
        let store = writer.store().clone();
        reporter.begin(writer.trail().clone());
        let mut work = Work::new(writer, interval, clock, reporter.clone(), 0);
        let run = move || {
            while work.run(&stopping)? == Rung::Woken {}
            work.last()
        };
        let mut archive = Archive::spawn(store, clock, reporter, run, ended)?;
        archive.stop = Some(stop);
        Ok(archive)
    }

    /// The same for the log of a member of a cluster: as `turns` says, `writer_of` makes a writer each
    /// time that the member begins to lead. `ended` is called if another server or cluster has the chain,
    /// and not if another member has it.
    ///
    /// # Errors
    /// The thread cannot be had.
    pub fn start_by_turns(
        turns: &Turns,
        store: Arc<dyn Store>,
        writer_of: impl Fn(Lead, Arc<Trail>) -> Writer + Send + 'static,
        interval: Duration,
        clock: Clock,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Archive> {
        let reporter = turns.reporter().clone();
        let (own, told) = (turns.clone(), reporter.clone());
        let run = move || {
            own.serve(|lead, trail, (figures, errors)| {
                let writer = writer_of(lead, trail).counting_on(figures);
                Work::new(writer, interval, clock, told.clone(), errors)
            })
        };
        let mut archive = Archive::spawn(store, clock, reporter, run, ended)?;
        archive.turns = Some(turns.clone());
        Ok(archive)
    }

    fn spawn(
        store: Arc<dyn Store>,
        clock: Clock,
        reporter: Reporter,
        run: impl FnOnce() -> Result<(), Ended> + Send + 'static,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Archive> {
        let (finished, stopped) = channel();
        let told = reporter.clone();
        let run = move || {
            if run().is_err() {
                ended();
            }
            let why = "this server writes the archive no more";
            told.orders().close(why, clock.now().mono);
            // No one waits any more if that fails.
            let _ = finished.send(());
        };
        let thread = std::thread::Builder::new().name("bsd-archive".into());
        Ok(Archive {
            store,
            clock,
            joiner: None,
            reporter,
            stop: None,
            turns: None,
            stopped,
            thread: Some(thread.spawn(run)?),
        })
    }

    /// Join links that have aged, too.
    ///
    /// # Errors
    /// The thread for it cannot be had.
    pub fn with_levels(mut self, levels: Levels) -> io::Result<Archive> {
        let (reporter, told) = (self.reporter.clone(), self.reporter.clone());
        told.set_joins(&Joins::default());
        let log = move || reporter.archived_log();
        let report = move |joins: &Joins| told.set_joins(joins);
        let joiner = Joiner::start(self.store.clone(), levels, self.clock, log, report)?;
        self.joiner = Some(joiner);
        Ok(self)
    }

    /// Current state.
    #[must_use]
    pub fn report(&self) -> Report {
        self.reporter.report()
    }

    /// Wait until the chain is claimed, or the writer has ended, for at most `wait`: what is
    /// acknowledged after the claim is in the archive after an interval and an upload. True: it is
    /// claimed.
    #[must_use]
    pub fn wait_for_claim(&self, wait: Duration) -> bool {
        self.reporter.wait_for_claim(wait)
    }

    /// Put everything that is durable by now, for at most [`LAST_LINK`], and end. Returns the last
    /// report.
    pub fn finish(mut self) -> Report {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.reporter.orders().silence();
        self.stop = None;
        if let Some(turns) = self.turns.take() {
            turns.stop();
        }
        if let Some(joiner) = &self.joiner {
            joiner.ask_to_stop();
        }
        let Some(thread) = self.thread.take() else {
            return;
        };
        match self.stopped.recv_timeout(LAST_LINK) {
            // A call of the store is under way: the process ends without it.
            Err(RecvTimeoutError::Timeout) => {}
            // A panic in it has been reported already.
            _ => drop(thread.join()),
        }
        self.joiner = None;
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where an archive reports, for those who ask. It is made first: there may be questions before there
/// is a writer.
#[derive(Debug, Clone, Default)]
pub struct Reporter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The last report, and the position after which the writer needs the log.
    last: Mutex<(Report, Option<Position>)>,
    /// There is another report.
    changed: Condvar,
    /// The durable end is known without the writer, which may be waiting for its store. `None`: nothing
    /// is to be archived.
    trail: Mutex<Option<Arc<Trail>>>,
    /// Nothing is, because another member leads.
    rests: AtomicBool,
    joins: Mutex<Option<Joins>>,
    orders: Orders,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reporter {
    /// Where bases are asked for.
    #[must_use]
    pub fn orders(&self) -> &Orders {
        &self.0.orders
    }

    /// Current state.
    #[must_use]
    pub fn report(&self) -> Report {
        let trail = self.trail();
        let (mut report, needs) = locked(&self.0.last).clone();
        if let Some(trail) = trail {
            if needs.is_some_and(|at| trail.after(at).is_none()) {
                // It is certain, and begins with the next call of the store that is answered.
                report.is_in_gap = true;
                report.archived = None;
                report.figures.gaps += 1;
            }
            report.lag_bytes = trail.bytes_after(report.archived.unwrap_or(Position::ZERO));
        }
        report.rests = self.0.rests.load(Ordering::SeqCst);
        report.joins.clone_from(&locked(&self.0.joins));
        report
    }

    fn trail(&self) -> Option<Arc<Trail>> {
        locked(&self.0.trail).clone()
    }

    /// The log whose archive is being written; `None`: the writer has not begun, or is in trouble.
    fn archived_log(&self) -> Option<LogId> {
        let is_up = self.report().is_up();
        self.trail().filter(|_| is_up)?.log()
    }

    fn set_joins(&self, joins: &Joins) {
        *locked(&self.0.joins) = Some(joins.clone());
    }

    /// Puts are refused, because the archive lacks something older than the limit.
    pub fn is_late(&self, now: Time) -> bool {
        self.trail().is_some_and(|trail| trail.is_late(now))
    }

    /// The log that this trail tells of is to be archived from now on. Nothing is known of that.
    pub(super) fn begin(&self, trail: Arc<Trail>) {
        let mut current = locked(&self.0.trail);
        *current = Some(trail);
        self.forget();
        self.0.rests.store(false, Ordering::SeqCst);
    }

    /// Another member leads from now on, and archives.
    pub(super) fn rest(&self, now: Time) {
        self.0.orders.close(
            "this member of the cluster does not lead, and writes no archive",
            now,
        );
        let mut current = locked(&self.0.trail);
        *current = None;
        self.forget();
        self.0.rests.store(true, Ordering::SeqCst);
    }

    /// Totals stay, and so does the end.
    fn forget(&self) {
        let mut last = locked(&self.0.last);
        let Report {
            figures,
            errors,
            interval_ns,
            ended,
            ..
        } = std::mem::take(&mut last.0);
        last.0 = Report {
            figures,
            errors,
            interval_ns,
            ended,
            ..Report::default()
        };
        last.1 = None;
    }

    /// What the writer says of the log that `trail` tells of, if that is still to be archived: the call
    /// of the store from which it comes may have lasted for a minute.
    pub(super) fn publish(&self, trail: &Arc<Trail>, report: &Report, needs: Option<Position>) {
        let current = locked(&self.0.trail);
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, trail)) {
            self.set(report, needs);
        }
    }

    /// `needs`: the writer needs what follows this position.
    pub fn set(&self, report: &Report, needs: Option<Position>) {
        let mut last = locked(&self.0.last);
        last.0.clone_from(report);
        last.1 = needs;
        self.0.changed.notify_all();
    }

    /// See [`Archive::wait_for_claim`].
    fn wait_for_claim(&self, wait: Duration) -> bool {
        let last = self.0.last.lock();
        let last = last.unwrap_or_else(PoisonError::into_inner);
        let is_open = |(report, _): &mut (Report, Option<Position>)| {
            report.epoch.is_none() && report.ended.is_none()
        };
        let waited = self.0.changed.wait_timeout_while(last, wait, is_open);
        let (last, _) = waited.unwrap_or_else(PoisonError::into_inner);
        last.0.epoch.is_some()
    }
}

/// Why the work was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rung {
    /// Someone rang: there is an order, or another word of a member.
    Woken,
    /// No one can ring any more.
    Stopped,
}

/// Why a writer must not go on.
pub(super) enum Ended {
    /// Another server or cluster has the chain, or the store cannot hold one.
    ForGood,
    /// Another writer has the chain, and may be another member: a new one finds out whether this member
    /// still leads.
    Again,
}

/// A writer at work.
pub(super) struct Work {
    writer: Writer,
    interval: Duration,
    clock: Clock,
    reporter: Reporter,
    known: Report,
    reach: Reach,
    pause: Duration,
    owner_asked: Time,
    /// Time of the last check of the store.
    proved: Time,
    /// A gap has been told of before its link could be put.
    is_gap_told: bool,
    /// It has been told that the archive is late.
    is_late_told: bool,
    /// It has been told that this member has the chain.
    is_begun_told: bool,
}

impl Work {
    /// `errors` calls have failed before.
    pub(super) fn new(
        writer: Writer,
        interval: Duration,
        clock: Clock,
        reporter: Reporter,
        errors: u64,
    ) -> Work {
        let now = clock.now().mono;
        Work {
            writer,
            interval,
            clock,
            reporter,
            known: Report {
                interval_ns: i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX),
                errors,
                ..Report::default()
            },
            reach: Reach::new(now),
            pause: PAUSE_MIN,
            owner_asked: now,
            proved: now,
            is_gap_told: false,
            is_late_told: false,
            is_begun_told: false,
        }
    }

    /// Totals of the writer and those before it, and calls that failed.
    pub(super) fn totals(&self) -> (Figures, u64) {
        (self.writer.figures(), self.known.errors)
    }

    /// Archive until something comes, or no one is there any more to send it.
    pub(super) fn run(&mut self, stopping: &Receiver<()>) -> Result<Rung, Ended> {
        let mut due = self.clock.now().mono;
        // Already the first call of the store may last a minute.
        self.publish();
        loop {
            let now = self.clock.now();
            if now.mono.since(self.proved) >= PROOF_INTERVAL_NS {
                self.proved = now.mono;
                self.writer.doubt();
            }
            if let Some(order) = self.reporter.orders().take() {
                self.writer.ask_for_base(order);
            }
            let wait = match self.writer.step(now.wall_ns, now.mono >= due) {
                Ok(done) => {
                    self.end_trouble();
                    self.tell_begun();
                    if let Done::Hole(number) = done {
                        error!(
                            "GAP in the archive: link {number}, which was put there, is there no more; \
                             a new base is made; find out what removed it"
                        );
                    }
                    if let Done::Gap(at) = done {
                        self.tell_gap(at);
                        // The next one is another.
                        self.is_gap_told = false;
                    }
                    match done {
                        Done::Nothing => self.rest(due)?,
                        Done::Link => {
                            let interval = i64::try_from(self.interval.as_nanos());
                            due = Time(now.mono.0.saturating_add(interval.unwrap_or(i64::MAX)));
                            Duration::ZERO
                        }
                        Done::Some | Done::Gap(_) | Done::Hole(_) => Duration::ZERO,
                    }
                }
                Err(failure) => self.fail(failure)?,
            };
            self.publish();
            match stopping.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) => return Ok(Rung::Woken),
                Err(RecvTimeoutError::Disconnected) => return Ok(Rung::Stopped),
            }
        }
    }

    /// There is nothing to put.
    fn rest(&mut self, due: Time) -> Result<Duration, Ended> {
        let now = self.clock.now().mono;
        if now.since(self.owner_asked) >= OWNER_INTERVAL_NS {
            self.owner_asked = now;
            if let Err(failure) = self.writer.check_owner() {
                return self.fail(failure);
            }
        }
        if self.writer.is_asked() {
            return Ok(SYNC_WAIT.min(self.interval));
        }
        let left = u64::try_from(due.since(self.clock.now().mono)).unwrap_or(0);
        Ok(match left {
            0 => self.interval,
            left => Duration::from_nanos(left),
        })
    }

    /// The server stops: put what there is, unless something is wrong. A base that is missing is
    /// made, as long as that takes no longer than the server waits.
    pub(super) fn last(&mut self) -> Result<(), Ended> {
        let begun = self.clock.now().mono;
        let wait_ns = i64::try_from(LAST_LINK.as_nanos()).unwrap_or(i64::MAX);
        loop {
            let now = self.clock.now();
            match self.writer.step(now.wall_ns, true) {
                Ok(Done::Some | Done::Link) if now.mono.since(begun) < wait_ns => {}
                Ok(_) => break,
                Err(failure) => {
                    self.fail(failure)?;
                    break;
                }
            }
        }
        self.publish();
        let (lag, trouble) = (self.writer.lag(), self.known.trouble.is_some());
        if lag > 0 || trouble || self.writer.is_in_gap() {
            warn!(
                "the archive does not have all of the log: {lag} bytes are missing; they follow when \
                 the server is started again on the same directory"
            );
        }
        Ok(())
    }

    fn tell_gap(&mut self, at: Position) {
        if !std::mem::replace(&mut self.is_gap_told, true) {
            error!(
                "GAP in the archive: what follows {at} is no longer held for it (--archive-hold-max); \
                 changes since then cannot be restored from it until the next base is complete"
            );
        }
    }

    fn fail(&mut self, failure: Failure) -> Result<Duration, Ended> {
        self.known.errors += 1;
        match failure {
            Failure::Trouble(trouble) => {
                if self.known.trouble.is_none() {
                    warn!(
                        "the archive is not written: {trouble}; it is tried again, the queue goes on"
                    );
                }
                self.known.trouble = Some(trouble.what);
                if let Some(at) = self.writer.lost() {
                    self.tell_gap(at);
                }
                let pause = self.pause;
                self.pause = (2 * pause).min(PAUSE_MAX);
                Ok(pause)
            }
            Failure::Fenced(_) if self.writer.is_led() && self.writer.epoch().is_some() => {
                info!("the archive was claimed by another writer; is it one of this cluster?");
                let why = "another writer has claimed the archive meanwhile".to_owned();
                let now = self.clock.now().mono;
                self.reporter.orders().set(Stage::Refused(why), now);
                Err(Ended::Again)
            }
            Failure::Fenced(what) | Failure::Refused(what) => {
                error!("{what}");
                let now = self.clock.now().mono;
                self.reporter.orders().close(&what, now);
                self.known.ended = Some(what);
                self.publish();
                Err(Ended::ForGood)
            }
        }
    }

    fn end_trouble(&mut self) {
        self.pause = PAUSE_MIN;
        if self.known.trouble.take().is_some() {
            info!("the archive is written again");
        }
    }

    fn tell_begun(&mut self) {
        if self.writer.is_led()
            && let Some(epoch) = self.writer.epoch()
            && !std::mem::replace(&mut self.is_begun_told, true)
        {
            info!("this member writes the archive, in epoch {epoch}");
        }
    }

    fn publish(&mut self) {
        // The clock first: what is durable a moment later is at least what is durable now.
        let now = self.clock.now().mono;
        let (writer, known) = (&self.writer, &mut self.known);
        let durable = writer.trail().durable();
        let lacks_nothing = writer.lag() == 0;
        self.reach
            .look(now, writer.archived(), durable, lacks_nothing);
        known.epoch = self.writer.epoch();
        known.archived = self.writer.archived();
        known.lag_bytes = self.writer.lag();
        known.is_in_gap = self.writer.is_in_gap();
        known.base = self.writer.base_progress();
        known.figures = self.writer.figures();
        known.has_all_of = Some(self.reach.moment);
        writer
            .trail()
            .note_archived(known.archived, self.reach.moment);
        self.reporter
            .publish(writer.trail(), known, self.writer.needs());
        self.tell_order(now);
        self.tell_late(now);
    }

    fn tell_order(&mut self, now: Time) {
        let orders = self.reporter.orders();
        if self.writer.is_making_what_was_asked() {
            orders.set(Stage::Making, now);
        }
        if let Some(answer) = self.writer.answer() {
            orders.set(answer.map_or_else(Stage::Refused, Stage::Made), now);
        }
    }

    /// A store may be so slow that nothing fails, and the archive is late nevertheless.
    fn tell_late(&mut self, now: Time) {
        let is_late = self.known.is_late(now) && self.known.trouble.is_none();
        if is_late && !self.is_late_told {
            let (seconds, bytes) = (self.known.lag_ns(now) / SECOND_NS, self.known.lag_bytes);
            warn!("the archive is {seconds} s behind: {bytes} bytes are not in it");
        } else if self.is_late_told && self.known.lag_ns(now) < LAG_MAX_NS {
            info!("the archive is no longer behind");
        } else {
            return;
        }
        self.is_late_told = is_late;
    }
}

/// Which moment an archive has reached. Under load it lacks something whenever it is looked at, and
/// is not late for that.
#[derive(Debug)]
struct Reach {
    /// It has everything that was durable then.
    moment: Time,
    /// The end that was durable at a later moment, and had not been archived.
    next: (Position, Time),
}

impl Reach {
    fn new(now: Time) -> Reach {
        Reach {
            moment: now,
            next: (Position::ZERO, now),
        }
    }

    fn look(
        &mut self,
        now: Time,
        archived: Option<Position>,
        durable: Position,
        lacks_nothing: bool,
    ) {
        let Some(archived) = archived else {
            return;
        };
        if archived >= self.next.0 {
            (self.moment, self.next) = (self.next.1, (durable, now));
        }
        if lacks_nothing {
            self.moment = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u32) -> Position {
        Position::new(bsd::types::SegmentId(1), offset)
    }

    #[test]
    fn an_archive_that_never_has_everything_under_load_is_late_by_what_it_lacks_alone() {
        let mut reach = Reach::new(Time(0));
        for second in 1..1000 {
            // What was durable a second ago has arrived since, and a second of more is durable.
            let (archived, durable) = (at(second), at(second + 1));
            reach.look(Time(i64::from(second)), Some(archived), durable, false);
            let late = Time(i64::from(second)).since(reach.moment);
            assert!(late <= 2, "late by {late} after {second}");
        }
    }

    #[test]
    fn an_archive_that_gets_nothing_is_later_with_every_look_and_not_when_it_has_all() {
        let mut reach = Reach::new(Time(0));
        reach.look(Time(10), Some(at(100)), at(100), true);
        assert_eq!(reach.moment, Time(10));
        for second in 11..100 {
            reach.look(Time(second), Some(at(100)), at(200), false);
            assert!(reach.moment <= Time(11), "{reach:?}");
        }
        reach.look(Time(100), None, at(300), false);
        assert!(reach.moment <= Time(11), "a gap reaches nothing: {reach:?}");
        reach.look(Time(101), Some(at(300)), at(300), true);
        assert_eq!(reach.moment, Time(101));
    }

    #[test]
    fn a_claim_is_waited_for_until_it_is_there_or_cannot_come_and_not_for_ever() {
        let with = |epoch: Option<u32>, ended: Option<&str>| {
            let reporter = Reporter::default();
            let report = Report {
                epoch,
                ended: ended.map(str::to_owned),
                ..Report::default()
            };
            reporter.set(&report, None);
            reporter
        };
        let long = Duration::from_secs(600);
        assert!(with(Some(2), None).wait_for_claim(long));
        assert!(!with(None, Some("it has another writer")).wait_for_claim(long));
        assert!(!with(None, None).wait_for_claim(Duration::ZERO));
        // From another thread, before or after the wait has begun.
        let reporter = with(None, None);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reporter.wait_for_claim(long));
            let report = Report {
                epoch: Some(2),
                ..Report::default()
            };
            reporter.set(&report, None);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn a_report_is_late_only_while_something_is_missing() {
        let mut report = Report {
            has_all_of: Some(Time(100)),
            ..Report::default()
        };
        assert_eq!(report.lag_ns(Time(700)), 0);
        report.lag_bytes = 1;
        assert_eq!(report.lag_ns(Time(700)), 600);
        report.lag_bytes = 0;
        report.is_in_gap = true;
        assert_eq!(report.lag_ns(Time(700)), 600);
        report.has_all_of = None;
        assert_eq!(report.lag_ns(Time(700)), 0, "the writer has not begun");
    }
}
