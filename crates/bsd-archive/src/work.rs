//! When a writer is called, and what is told of that.
//!
//! The writer is called once an interval while there is something new, without a pause while a base
//! is being made, and after trouble with pauses that grow. Standard error is told once when trouble
//! begins and once when it ends; and once of damage, also if the store was away before.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tracing::{error, info, warn};

use super::order::{NotMade, Stage};
use super::report::{LAG_MAX_NS, Report, Reporter};
use super::writer::{Done, Failure, Figures, Writer};
use bsd::clock::Clock;
use bsd::types::{Position, SECOND_NS, Time};

/// The first pause after trouble; each further one is twice as long …
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(1);
/// … up to this: so soon after the store is back the archive is written again.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The pause after damage, which someone has to put right.
const PAUSE_OF_DAMAGE: Duration = Duration::from_secs(60);
/// A writer that has put nothing for this long asks whether another has taken over.
pub(super) const OWNER_INTERVAL_NS: i64 = 10 * SECOND_NS;
/// Interval at which a writer checks whether the store still has its last link.
pub(super) const PROOF_INTERVAL_NS: i64 = 60 * SECOND_NS;
/// The pause between two looks whether the end of a base that is asked for is durable.
const SYNC_WAIT: Duration = Duration::from_millis(20);
/// How long a server that stops waits for the last link.
pub(super) const LAST_LINK: Duration = Duration::from_secs(5);

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
    /// When the next link may be put: being woken brings it no sooner.
    due: Time,
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
            due: now,
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
        // Already the first call of the store may last a minute.
        self.publish();
        loop {
            let now = self.clock.now();
            if now.mono.since(self.proved) >= PROOF_INTERVAL_NS {
                self.proved = now.mono;
                self.writer.doubt();
            }
            if let Some(order) = self.reporter.orders().take(self.writer.trail()) {
                self.writer.ask_for_base(order);
            }
            let step = self.ask_owner(now.mono);
            let step = step.and_then(|()| self.writer.step(now.wall_ns, now.mono >= self.due));
            let wait = match step {
                Ok(done) => {
                    self.end_trouble();
                    self.tell_begun();
                    if let Done::Hole(number) = done {
                        error!(
                            "GAP in the archive: link {number}, which was put there, is there no more; \
                             a new base is made; find out what removed it; {}",
                            self.writer.store().place()
                        );
                    }
                    if let Done::Gap(at) = done {
                        self.tell_gap(at);
                        // The next one is another.
                        self.is_gap_told = false;
                    }
                    match done {
                        Done::Nothing => self.rest(),
                        Done::Link => {
                            // Whether the chain is another's, its put will show.
                            self.owner_asked = now.mono;
                            let interval = i64::try_from(self.interval.as_nanos());
                            self.due =
                                Time(now.mono.0.saturating_add(interval.unwrap_or(i64::MAX)));
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

    /// If no link has asked for long: in a gap, while a base is made, no links are put.
    fn ask_owner(&mut self, now: Time) -> Result<(), Failure> {
        if now.since(self.owner_asked) < OWNER_INTERVAL_NS {
            return Ok(());
        }
        self.owner_asked = now;
        self.writer.check_owner()
    }

    /// How long there is nothing to do.
    fn rest(&self) -> Duration {
        if self.writer.is_asked() {
            return SYNC_WAIT.min(self.interval);
        }
        let now = self.clock.now().mono;
        let left = |until: Time| Duration::from_nanos(u64::try_from(until.since(now)).unwrap_or(0));
        let link = match left(self.due) {
            Duration::ZERO => self.interval,
            left => left,
        };
        let asked = self.owner_asked.0.saturating_add(OWNER_INTERVAL_NS);
        link.min(left(Time(asked)).max(PAUSE_MIN))
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
                 the server is started again on the same directory; {}",
                self.writer.store().place()
            );
        }
        Ok(())
    }

    fn tell_gap(&mut self, at: Position) {
        if !std::mem::replace(&mut self.is_gap_told, true) {
            error!(
                "GAP in the archive: what follows {at} is no longer held for it (--archive-hold-max); \
                 changes since then cannot be restored from it until the next base is complete; {}",
                self.writer.store().place()
            );
        }
    }

    fn fail(&mut self, failure: Failure) -> Result<Duration, Ended> {
        self.known.errors += 1;
        match failure {
            Failure::Trouble(trouble) => {
                let is_told = match trouble.is_damage {
                    true => std::mem::replace(&mut self.known.is_damaged, true),
                    false => self.known.trouble.is_some(),
                };
                match trouble.is_damage {
                    _ if is_told => {}
                    true => error!(
                        "DAMAGE in the archive, which is not written: {trouble}; the queue goes on, and \
                         this is looked at once a minute"
                    ),
                    false => warn!(
                        "the archive is not written: {trouble}; it is tried again, the queue goes on"
                    ),
                }
                let is_damage = trouble.is_damage;
                self.known.trouble = Some(trouble.what);
                if let Some(at) = self.writer.lost() {
                    self.tell_gap(at);
                }
                if is_damage {
                    return Ok(PAUSE_OF_DAMAGE);
                }
                let pause = self.pause;
                self.pause = (2 * pause).min(PAUSE_MAX);
                Ok(pause)
            }
            Failure::Fenced(_) if self.writer.is_led() && self.writer.epoch().is_some() => {
                info!("the archive was claimed by another writer; is it one of this cluster?");
                let why = "another writer has claimed the archive meanwhile".to_owned();
                let now = self.clock.now().mono;
                let trail = self.writer.trail();
                self.reporter.orders().set(trail, Stage::Refused(why), now);
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
        self.known.is_damaged = false;
        if self.known.trouble.take().is_some() {
            info!(
                "the archive is written again: {}",
                self.writer.store().place()
            );
        }
    }

    fn tell_begun(&mut self) {
        if self.writer.is_led()
            && let Some(epoch) = self.writer.epoch()
            && !std::mem::replace(&mut self.is_begun_told, true)
        {
            info!(
                "this member writes the archive, in epoch {epoch}: {}",
                self.writer.store().place()
            );
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
        let stage = match self.writer.answer() {
            Some(answer) => answer.map_or_else(|NotMade(why)| Stage::Refused(why), Stage::Made),
            None if self.writer.is_making_what_was_asked() => Stage::Making,
            None => return,
        };
        let orders = self.reporter.orders();
        orders.set(self.writer.trail(), stage, now);
    }

    /// A store may be so slow that nothing fails, and the archive is late nevertheless.
    fn tell_late(&mut self, now: Time) {
        let is_late = self.known.is_late(now) && self.known.trouble.is_none();
        if is_late && !self.is_late_told {
            let (seconds, bytes) = (self.known.lag_ns(now) / SECOND_NS, self.known.lag_bytes);
            let place = self.writer.store().place();
            warn!("the archive is {seconds} s behind: {bytes} bytes are not in it; {place}");
        } else if self.is_late_told && self.known.lag_ns(now) < LAG_MAX_NS {
            info!(
                "the archive is no longer behind: {}",
                self.writer.store().place()
            );
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
    use std::sync::Arc;

    use super::*;
    use crate::histories::World;
    use crate::sim::SimStore;
    use crate::store::Trouble;
    use crate::tests::{archived_with, fall_into_a_gap};
    use crate::writer::Sizes;
    use bsd::storage::disk::sim::Crash;
    use bsd::storage::{SimFs, Trail};

    fn at(offset: u32) -> Position {
        Position::new(bsd::types::SegmentId(1), offset)
    }

    #[test]
    fn damage_is_known_beside_other_trouble_and_asked_for_once_a_minute_until_it_is_over() {
        let trail = Arc::new(Trail::new(1 << 20));
        let (store, disk) = (SimStore::new(1), SimFs::new(1));
        let writer = Writer::new(
            Arc::new(store),
            trail,
            Arc::new(disk),
            "/d".into(),
            "node".to_owned(),
            Sizes::default(),
        );
        let clock = Clock::start();
        let mut work = Work::new(writer, PAUSE_MIN, clock, Reporter::default(), 0);
        let mut fails = |trouble: Trouble| {
            let Ok(pause) = work.fail(trouble.into()) else {
                panic!("it ends");
            };
            (pause, work.known.is_damaged, work.known.trouble.clone())
        };
        let said = |what: &str| Some(what.to_owned());
        let (pause, is_damaged, trouble) = fails(Trouble::passing("away"));
        assert_eq!(
            (pause, is_damaged, trouble),
            (PAUSE_MIN, false, said("away"))
        );
        for _ in 0..3 {
            let (pause, is_damaged, trouble) = fails(Trouble::damage("a claim"));
            assert_eq!((pause, is_damaged), (PAUSE_OF_DAMAGE, true));
            assert_eq!(trouble, said("a claim"));
        }
        assert!(fails(Trouble::passing("away")).1, "it is not over for that");
        work.end_trouble();
        assert_eq!((work.known.is_damaged, &work.known.trouble), (false, &None));
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
    fn a_writer_that_makes_a_base_in_a_gap_notices_that_another_has_taken_over() {
        let mut world = archived_with(1 << 30);
        world.sizes.part_max = 64;
        fall_into_a_gap(&mut world);
        for _ in 0..10 {
            world.step().unwrap();
        }
        assert!(world.writer.as_ref().unwrap().is_in_gap());
        let mut other = World::new(2);
        other.disk = world.disk.crash_image(Crash::KeepAll);
        other.store = world.store.clone();
        other.start_with_past_of(&world);
        other.archive();
        let writer = world.writer.take().unwrap();
        let mut work = Work::new(writer, PAUSE_MIN, Clock::start(), Reporter::default(), 0);
        work.owner_asked = Time(i64::MIN);
        let calls = world.store.calls();
        let (_sender, stopping) = std::sync::mpsc::channel();
        assert!(matches!(work.run(&stopping), Err(Ended::ForGood)));
        assert!(
            world.store.calls() - calls < 10,
            "not when the base is complete"
        );
    }
}
