//! Work beside the commands: timers, slices of long work, counters, markers, syncs.

use super::outcome::Logged;
use super::store::Store;
use super::{Engine, ReplySink};
use crate::protocol::Reply;
use crate::queue::{Queue, WaitEnd};
use crate::storage::format::update;
use crate::storage::{AppendError, Index, Log, Purpose, StoreError, Subject, SyncPolicy};
use crate::types::{Change, Now, Place, Time};

use super::pauses::{Owner, Pauses};
use super::settings::Settings;

/// This many timers are dealt with in one call.
pub(super) const TIMERS_A_TICK: usize = 256;
/// This many waiting clients are served in one call.
const SERVED_A_TICK: usize = 256;
/// Counters are logged this many nanoseconds after they changed …
const COUNTERS_AFTER_NS: i64 = 50_000_000;
/// … or when this many jobs have some to log.
const COUNTERS_MAX: u64 = 4096;
/// This many jobs' counters are logged in one call.
const COUNTERS_A_TICK: usize = 512;
/// This many records of pauses are looked at in one call, whether they are still needed.
const PAUSES_A_TICK: usize = 256;
/// The log is marked as durable this many nanoseconds after the last write.
const IDLE_AFTER_NS: i64 = 100_000_000;

const MS_NS: i64 = 1_000_000;

impl Engine {
    /// Timers that are due, and a slice of everything that takes long. Call once a turn, before
    /// [`Engine::commit`].
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn tick(&mut self, now: Now, sink: &mut dyn ReplySink) -> Result<(), StoreError> {
        self.check()?;
        self.wall.note(now);
        let kicked = self.go_on_kicking(now, sink)?;
        let cleared = self.clears.is_empty() || self.go_on_clearing(now)?;
        let mut ended = std::mem::take(&mut self.ended);
        let more_timers = self.queue.tick(now.mono, TIMERS_A_TICK, &mut ended);
        self.settle_failures(now)?;
        for (client, end) in ended.drain(..) {
            let reply = match end {
                WaitEnd::TimedOut => Reply::TimedOut,
                WaitEnd::DeadlineSoon => Reply::DeadlineSoon,
            };
            sink.reply(client, self.after(), reply);
        }
        self.ended = ended;
        if self.queue.dirty_count() > 0 {
            // Time counts too, and has no one who says so.
            self.dirty_since.get_or_insert(now.mono);
        }
        self.fire_when_due(now)?;
        let served = self.serve_waiting(SERVED_A_TICK, now, sink)?;
        let more_checks = self.go_on_checking(now, sink)?;
        self.end_pauses(now)?;
        let more_sweeps = self.sweep_expired(now)?;
        self.log_counters_when_due(now)?;
        let more_upkeep = self.keep_log(now)?;
        self.releases_left = TIMERS_A_TICK;
        self.queue.take_visits();
        self.is_busy = !kicked
            || !cleared
            || more_timers
            || !served
            || more_checks
            || more_sweeps
            || more_upkeep;
        Ok(())
    }

    /// When [`Engine::tick`] has to be called next; a time that is not after `now` means at once.
    /// `None`: not before something happens.
    #[must_use]
    pub fn next_deadline(&self, now: Now) -> Option<Time> {
        if self.is_busy || self.checks.is_due(self.log()) {
            return Some(now.mono);
        }
        let idle = self
            .is_unsettled()
            .then(|| plus(self.written_at, IDLE_AFTER_NS));
        let counters = self.dirty_since.map(|since| plus(since, COUNTERS_AFTER_NS));
        let schedules = self.schedules.due();
        let queue = self.queue.next_deadline();
        [queue, schedules, idle, counters, self.sync_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn sync_due(&self) -> Option<Time> {
        match (self.sync, self.unsynced_since) {
            (SyncPolicy::Interval(ms), Some(since)) => Some(plus(since, i64::from(ms) * MS_NS)),
            _ => None,
        }
    }

    /// Whether an idle log has something to do: to write counters that no reply waits for, or to
    /// say that its last frame is durable.
    fn is_unsettled(&self) -> bool {
        let Some(log) = self.log() else { return false };
        log.has_unwritten() || log.wants_marker() && (!log.has_unsynced() || self.syncs_idle(log))
    }

    /// Whether it is left to this loop to sync a log that is idle: where nothing else does.
    fn syncs_idle(&self, log: &Log) -> bool {
        self.sync == SyncPolicy::Never && !log.is_syncing()
    }

    /// Everything that the log wants done.
    pub(super) fn keep_log(&mut self, now: Now) -> Result<bool, StoreError> {
        let idle = self.is_unsettled() && now.mono >= plus(self.written_at, IDLE_AFTER_NS);
        let sync_due = self.sync_due().is_some_and(|due| due <= now.mono);
        let Engine {
            store: Store::Log(log),
            queue,
            pauses,
            settings,
            ..
        } = self
        else {
            return Ok(false);
        };
        log.poll_syncs()?;
        if sync_due {
            log.start_sync()?;
            self.unsynced_since = None;
        }
        if idle {
            if log.has_unwritten() {
                log.commit(true)?;
            } else if log.has_unsynced() {
                log.start_sync()?;
            } else {
                log.mark_idle(now.wall_ns)?;
            }
            self.written_at = now.mono;
        }
        let more_pauses = pauses.expire(log, now.mono, PAUSES_A_TICK);
        let more_settings = settings.expire(log, now.mono);
        let mut index = LogIndex {
            queue,
            pauses,
            settings,
        };
        let more = log.maintain(&mut index, now.wall_ns)?;
        Ok(more || more_pauses || more_settings)
    }

    /// Have compaction make way for a record, where next to no room is left for it. As long as
    /// copying a segment takes, and only on a full disk.
    pub(super) fn make_way(&mut self, purpose: Purpose, now: Now) -> Result<(), StoreError> {
        let Engine {
            store: Store::Log(log),
            queue,
            pauses,
            settings,
            ..
        } = self
        else {
            return Ok(());
        };
        let mut index = LogIndex {
            queue,
            pauses,
            settings,
        };
        while log.is_pressed(purpose) && log.make_way(purpose, &mut index, now.wall_ns)? {}
        Ok(())
    }

    fn log_counters_when_due(&mut self, now: Now) -> Result<(), StoreError> {
        let Some(since) = self.dirty_since else {
            return Ok(());
        };
        let due = now.mono >= plus(since, COUNTERS_AFTER_NS);
        if due || self.queue.dirty_count() >= COUNTERS_MAX {
            self.log_counters(COUNTERS_A_TICK, now)?;
        }
        Ok(())
    }

    /// Log the counters of at most `budget` jobs whose reserves and timeouts changed. No reply
    /// waits for them: a crash may cost the last few.
    pub(super) fn log_counters(&mut self, budget: usize, now: Now) -> Result<(), StoreError> {
        for _ in 0..budget {
            if self
                .log()
                .is_some_and(|log| !log.has_room_beside_held(update::SIZE))
            {
                // There is room when what is held is released.
                break;
            }
            let Some(id) = self.queue.next_dirty() else {
                self.dirty_since = None;
                return Ok(());
            };
            let Some(change) = self.queue.snapshot(id) else {
                continue;
            };
            match self.store.append(&change, &[], Purpose::Counters, now) {
                Ok(place) => {
                    self.store.keep_update(place);
                    if let Some(freed) = self.queue.note_update(id, place) {
                        self.store.free_update(freed);
                    }
                }
                // On a full disk the counters go without: what is set aside is for commands.
                Err(AppendError::NoRoom(_)) => {}
                Err(AppendError::Failed(error)) => return Err(error),
            }
        }
        self.dirty_since = (self.queue.dirty_count() > 0).then_some(now.mono);
        Ok(())
    }

    /// Log and apply a pause, or with a `duration` of 0 the end of one.
    pub(super) fn pause(
        &mut self,
        (tube, owner): (&str, &Owner),
        duration: u32,
        until: Time,
        now: Now,
    ) -> Result<Logged, StoreError> {
        let change = Change::Pause {
            tube,
            duration,
            until,
        };
        // What lifts a pause, or takes the place of one, takes no more room than that did.
        let purpose = match duration > 0 && !self.pauses.has(tube) {
            true => Purpose::Pause,
            false => Purpose::Update,
        };
        match self.record_pause(&change, (tube, owner), until, purpose, now)? {
            None => Ok(Logged::Full),
            Some(place) => match self.queue.apply(&change, place, now.mono) {
                Ok(_) => Ok(Logged::Done),
                Err(error) => unreachable!("the queue refuses a pause: {error}"),
            },
        }
    }

    fn record_pause(
        &mut self,
        change: &Change<'_>,
        (tube, owner): (&str, &Owner),
        until: Time,
        purpose: Purpose,
        now: Now,
    ) -> Result<Option<Place>, StoreError> {
        self.make_way(purpose, now)?;
        let place = match self.store.append(change, &[], purpose, now) {
            Ok(place) => place,
            Err(AppendError::NoRoom(_)) => return Ok(None),
            Err(AppendError::Failed(error)) => return Err(error),
        };
        if !place.is_none() {
            self.store
                .keep(place, crate::storage::format::pause::SIZE + tube.len());
            let store = &self.store;
            let segment_of = |place| store.segment_of(place);
            let freed = self
                .pauses
                .record((tube, owner), place, until, now.mono, segment_of);
            if let Some((place, size)) = freed {
                self.store.free(place, size);
            }
        }
        Ok(Some(place))
    }

    /// A tube that vanished while it was paused is not paused when it comes back, nor after a
    /// restart. Where the disk is full to the last byte, the record that says so waits for room.
    pub(super) fn end_pauses(&mut self, now: Now) -> Result<(), StoreError> {
        while let Some(lapsed) = self.queue.take_lapsed_pause() {
            if !lapsed.early {
                continue;
            }
            let change = Change::Pause {
                tube: &lapsed.tube,
                duration: 0,
                until: now.mono,
            };
            let of = (&*lapsed.tube, &Owner::Unknown);
            let place = self.record_pause(&change, of, now.mono, Purpose::Delete, now)?;
            if place.is_none() {
                self.queue.put_back_lapsed_pause(lapsed);
                break;
            }
        }
        Ok(())
    }
}

/// The index that the log asks when it moves records.
struct LogIndex<'a> {
    queue: &'a mut Queue,
    pauses: &'a mut Pauses,
    settings: &'a mut Settings,
}

impl Index for LogIndex<'_> {
    fn is_live(&self, subject: &Subject, place: Place) -> bool {
        match subject {
            Subject::Put(id) => self.queue.put_is_at(*id, place),
            Subject::Update(id) => self.queue.update_is_at(*id, place),
            Subject::Attributes(id) => self.queue.attributes_are_at(*id, place),
            Subject::Pause(tube) => self.pauses.is_at(tube, place),
            Subject::Setting(class, name) => self.settings.is_at(*class, name, place),
            Subject::Delete(_) | Subject::Log => false,
        }
    }

    fn moved(&mut self, subject: &Subject, from: Place, to: Place) -> bool {
        match subject {
            Subject::Put(id) => self.queue.move_put(*id, from, to),
            Subject::Update(id) => self.queue.move_update(*id, from, to),
            Subject::Pause(tube) => {
                self.queue.move_pause(tube, from, to);
                self.pauses.moved(tube, from, to)
            }
            Subject::Attributes(id) => self.queue.move_attributes(*id, from, to),
            Subject::Setting(class, name) => self.settings.moved((*class, name), from, to),
            Subject::Delete(_) | Subject::Log => false,
        }
    }
}

fn plus(time: Time, ns: i64) -> Time {
    Time(time.0.saturating_add(ns))
}
