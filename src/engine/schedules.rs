//! Schedules: setting them, and the puts that they make.
//!
//! A schedule is a setting of the log (see `settings`), and how far it has come is another one: "fired
//! up to T", T the wall time of its last firing. The put of a firing and that record are in one frame. So
//! no crash and no change of leader does a firing twice, or loses one: the next one is always the first
//! after T, however the clock is set.
//!
//! A firing that is at most a minute late is done. Of others, which a server that was down has missed,
//! or a clock that was set, the schedule says what becomes of them. A firing that has come while there was no
//! room for its job waits for that, however long: it is tried again once a second. What waits is in
//! memory alone; after a restart it was missed.
//!
//! Only a queue that decides for itself fires ([`Engine::begin_schedules`]). Without schedules a tick
//! tests one field.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::attributed::list_of;
use super::outcome::Logged;
use super::settings::Settings;
use super::store::size_of_records;
use super::{Engine, Mode};
use crate::UsageError;
use crate::attributes::Attributes;
use crate::protocol::{ScheduleStats, SetSchedule, ShownTimes};
use crate::schedule::{MISSED_MAX, SCHEDULES_MAX, Schedule, Timetable, check_name};
use crate::storage::{AppendError, Purpose, StoreError};
use crate::types::{Change, JobId, Now, SECOND_NS, SettingClass, Time};

/// A firing that is later than this was missed.
const LATE_NS: i64 = 60 * SECOND_NS;
/// The wall clock may have been set: it is looked at this often.
const LOOK_NS: i64 = 60 * SECOND_NS;
/// A firing that had no room is tried again after this.
const AGAIN_NS: i64 = SECOND_NS;
/// Firings in one call, at most.
const FIRED_A_TICK: usize = 64;
/// Firings to come that `stats-schedule` shows.
const NEXT_SHOWN: usize = 5;
/// Bytes of memory that a schedule takes beside its value.
const ENTRY_SIZE: u64 = 2 << 10;

/// Result of setting or removing a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleChange {
    /// It is done, and durable as the policy of syncs says once [`Engine::after`] is acknowledged.
    Done,
    /// There is no such schedule.
    NotFound,
    /// There are too many, or there is no room in memory or on the disk. Nothing has changed.
    NoRoom,
    /// There can be no such schedule; the text says why. Nothing has changed.
    Refused(UsageError),
}

/// Result of a put that a schedule makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleRun {
    /// It is put, and durable as the policy of syncs says once [`Engine::after`] is acknowledged.
    Put(JobId),
    /// This job holds the key of the schedule: nothing is put.
    Exists(JobId),
    /// There is no such schedule.
    NotFound,
    /// There is no room: nothing is put.
    NoRoom,
    /// The server takes no puts: [`Engine::drain`].
    Draining,
}

/// A schedule, to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleView<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it says.
    pub schedule: &'a Schedule,
    /// No firing up to here is done again: wall time, nanoseconds since 1970.
    pub fired_up_to_ns: i64,
    /// The next firing, wall time; one in the past waits for room. `None`: it is paused, or never fires.
    pub next_ns: Option<i64>,
    /// Firings that wait for room.
    pub waiting: usize,
}

/// Numbers about all schedules, for monitoring. Those that grow begin at 0 with the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScheduleFigures {
    /// Schedules.
    pub schedules: usize,
    /// Those of them that are paused.
    pub paused: usize,
    /// Firings that wait for room.
    pub waiting: usize,
    /// Firings that have put a job.
    pub fired: u64,
    /// Firings that have put none because another job has the key. They count here alone.
    pub key_conflicts: u64,
    /// How often firings of a schedule were found to be missed, whatever became of them.
    pub missed: u64,
    /// Firings that waited for room, and were given up because too many came after them.
    pub given_up: u64,
}

/// A schedule that is known, and what it has to do.
#[derive(Debug)]
struct Entry {
    schedule: Arc<Schedule>,
    timetable: Timetable,
    /// Bytes of its value in the log.
    size: usize,
    /// All firings up to this wall time are done, given up, or among `waiting`. `None`: not looked at
    /// since the queue began to decide.
    upto: Option<i64>,
    /// The first firing after that.
    next: Option<i64>,
    /// Firings to be done, the oldest first, [`MISSED_MAX`] at most.
    waiting: VecDeque<i64>,
    /// To be recorded as fired up to this, without a put.
    passed: Option<i64>,
    /// The last try had no room: the time of the next one.
    again: Option<Time>,
}

/// The schedules of a queue.
#[derive(Debug, Default)]
pub(super) struct Schedules {
    entries: BTreeMap<Box<str>, Entry>,
    /// When they are looked at next. `None`: no schedule exists, or the queue follows.
    due: Option<Time>,
    /// Bytes of memory.
    memory: u64,
    figures: ScheduleFigures,
}

impl Entry {
    fn new(schedule: Schedule, timetable: Timetable, size: usize) -> Entry {
        Entry {
            schedule: Arc::new(schedule),
            timetable,
            size,
            upto: None,
            next: None,
            waiting: VecDeque::new(),
            passed: None,
            again: None,
        }
    }

    fn memory(&self) -> u64 {
        2 * self.size as u64 + ENTRY_SIZE
    }

    /// The queue begins to decide, or its last firing is another one.
    fn forget_time(&mut self) {
        self.upto = None;
        self.next = None;
        self.waiting.clear();
        self.passed = None;
        self.again = None;
    }

    /// Find what has come due by `wall`, of a schedule that has fired up to `fired` when the queue
    /// began to decide.
    fn look(
        &mut self,
        name: &str,
        fired: impl FnOnce() -> i64,
        wall: i64,
        figures: &mut ScheduleFigures,
    ) {
        if self.schedule.is_paused {
            return;
        }
        let upto = match self.upto {
            Some(upto) => upto,
            None => {
                let fired = fired();
                self.upto = Some(fired);
                self.next = self.timetable.next_after(fired);
                fired
            }
        };
        let Some(next) = self.next.filter(|next| *next <= wall) else {
            return;
        };
        let in_time = wall.saturating_sub(LATE_NS);
        let mut upto = upto;
        if next < in_time {
            figures.missed += 1;
            let missed = self.schedule.missed;
            let made_up = self.timetable.last(upto, in_time - 1, missed.most());
            tracing::warn!(
                "schedule {name}: firings since {} were missed; of these {} are made up for \
                 (missed={})",
                self.timetable.shown(next),
                made_up.len(),
                missed.word()
            );
            self.waiting.extend(made_up);
            upto = in_time - 1;
        }
        let timely = self.timetable.last(upto, wall, MISSED_MAX);
        self.waiting.extend(timely);
        let too_many = self.waiting.len().saturating_sub(MISSED_MAX);
        figures.given_up += too_many as u64;
        self.waiting.drain(..too_many);
        self.passed = self.waiting.is_empty().then_some(wall);
        self.upto = Some(wall);
        self.next = self.timetable.next_after(wall);
    }

    fn has_work(&self, now: Time) -> bool {
        let has_any = !self.waiting.is_empty() || self.passed.is_some();
        has_any && self.again.is_none_or(|again| again <= now)
    }

    /// When there is something to do; `None`: never.
    fn due(&self, now: Now) -> Option<Time> {
        if !self.waiting.is_empty() || self.passed.is_some() {
            return Some(self.again.unwrap_or(now.mono));
        }
        let next = self.next.filter(|_| !self.schedule.is_paused)?;
        Some(now.to_mono(next.max(0) as u64))
    }
}

impl Schedules {
    /// When they are looked at next.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Bytes of memory that they take.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    /// A setting has this value from now on, whether it is set now, replayed, or comes from another
    /// server: if it is a schedule, it is kept.
    pub(super) fn hand_on(&mut self, (class, name, value): (SettingClass, &str, &[u8])) {
        if class != SettingClass::Schedule {
            return;
        }
        let before = self.entries.remove(name);
        self.memory -= before.as_ref().map_or(0, Entry::memory);
        if value.is_empty() {
            return;
        }
        let read = Schedule::decode(value).and_then(|it| Ok((it.timetable()?, it)));
        let (timetable, schedule) = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(
                    "the schedule {name:?} in the log is not understood, and does not fire: {error}; it \
                     may be that of a newer bsd: use that one, or set the schedule again"
                );
                return;
            }
        };
        let mut entry = Entry::new(schedule, timetable, value.len());
        // What waits is done as the schedule now says.
        if let Some(before) = before.filter(|it| !begins_now(Some(&it.schedule), &entry.schedule))
            && !entry.schedule.is_paused
        {
            entry.upto = before.upto;
            entry.next = before.next;
            entry.waiting = before.waiting;
            entry.passed = before.passed;
            entry.again = before.again;
        }
        self.memory += entry.memory();
        self.entries.insert(name.into(), entry);
    }
}

/// Whether a schedule that is set fires from now on, and not from its last firing on: it is new, its
/// times are others, or it was paused.
fn begins_now(before: Option<&Schedule>, new: &Schedule) -> bool {
    before.is_none_or(|before| {
        let is_resumed = before.is_paused && !new.is_paused;
        is_resumed || before.cron != new.cron || before.tz != new.tz
    })
}

fn fired_up_to(settings: &Settings, name: &str) -> Option<i64> {
    let value = settings.get(SettingClass::Fired, name)?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn wall(now: Now) -> i64 {
    i64::try_from(now.wall_ns).unwrap_or(i64::MAX)
}

/// Schedules.
impl Engine {
    /// Set a schedule. A new one fires from now on. One that is changed goes on from its last firing,
    /// unless its pause ends or its times are others: then it fires from now on, too.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn set_schedule(
        &mut self,
        set: &SetSchedule,
        now: Now,
    ) -> Result<ScheduleChange, StoreError> {
        let (name, schedule) = (&*set.name, &set.schedule);
        let before = self.schedules.entries.get(name);
        let stays_paused = set.keeps_pause && before.is_some_and(|it| it.schedule.is_paused);
        if !stays_paused {
            return self.change_schedule(name, schedule, now);
        }
        let paused = Schedule {
            is_paused: true,
            ..schedule.clone()
        };
        self.change_schedule(name, &paused, now)
    }

    fn change_schedule(
        &mut self,
        name: &str,
        schedule: &Schedule,
        now: Now,
    ) -> Result<ScheduleChange, StoreError> {
        self.check()?;
        let encoded = check_name(name).and_then(|()| schedule.encode());
        let value = match encoded {
            Ok(value) => value,
            Err(error) => return Ok(ScheduleChange::Refused(error)),
        };
        if schedule.body.len() > self.job_size_max as usize {
            let too_big = format!(
                "the body has {} bytes, and a job may have {}",
                schedule.body.len(),
                self.job_size_max
            );
            return Ok(ScheduleChange::Refused(too_big.into()));
        }
        let (entries, is_new) = (&self.schedules.entries, self.schedule(name).is_none());
        if is_new && entries.len() >= SCHEDULES_MAX
            || !self.has_memory_for_schedule(name, &value, now)
        {
            return Ok(ScheduleChange::NoRoom);
        }
        let new = Schedule::decode(&value).unwrap_or_else(|error| {
            unreachable!("what was written of a schedule cannot be read: {error}")
        });
        let fired = fired_up_to(&self.settings, name);
        let before = self.schedules.entries.get(name).map(|it| &*it.schedule);
        let begins = begins_now(before, &new).then(|| fired.unwrap_or(0).max(wall(now)));
        let upto = begins.or(fired.is_none().then(|| wall(now)));
        let logged = self.log_schedule(name, &value, upto.map(|it| it.to_string()).as_deref(), now);
        Ok(match self.note_failure(logged)? {
            Logged::Done => ScheduleChange::Done,
            Logged::Full => ScheduleChange::NoRoom,
        })
    }

    fn has_memory_for_schedule(&mut self, name: &str, value: &[u8], now: Now) -> bool {
        let has = self.schedules.entries.get(name).map_or(0, |it| it.size);
        let more = 2 * value.len().saturating_sub(has) as u64;
        self.memory_max.is_none() || self.has_memory_for(more, now)
    }

    /// Remove a schedule, and how far it has come.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn delete_schedule(&mut self, name: &str, now: Now) -> Result<ScheduleChange, StoreError> {
        self.check()?;
        if self.setting(SettingClass::Schedule, name).is_none() {
            return Ok(ScheduleChange::NotFound);
        }
        let upto = fired_up_to(&self.settings, name).map(|_| "");
        let logged = self.log_schedule(name, b"", upto, now);
        Ok(match self.note_failure(logged)? {
            Logged::Done => ScheduleChange::Done,
            Logged::Full => ScheduleChange::NoRoom,
        })
    }

    /// Pause a schedule, or have it go on from now: it is set with that and nothing else changed.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn pause_schedule(
        &mut self,
        name: &str,
        is_paused: bool,
        now: Now,
    ) -> Result<ScheduleChange, StoreError> {
        let Some(entry) = self.schedules.entries.get(name) else {
            return Ok(ScheduleChange::NotFound);
        };
        let schedule = Schedule {
            is_paused,
            ..Schedule::clone(&entry.schedule)
        };
        self.change_schedule(name, &schedule, now)
    }

    /// Put a job of a schedule now, paused or not. When it fires next stays the same.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn run_schedule_now(&mut self, name: &str, now: Now) -> Result<ScheduleRun, StoreError> {
        self.check()?;
        let Some(entry) = self.schedules.entries.get(name) else {
            return Ok(ScheduleRun::NotFound);
        };
        let schedule = entry.schedule.clone();
        let put = self.put_scheduled(&schedule, None, now);
        self.is_busy = true;
        self.note_failure(put)
    }

    /// All schedules, in the order of their names.
    pub fn schedules(&self) -> impl Iterator<Item = ScheduleView<'_>> {
        let all = self.schedules.entries.iter();
        all.map(|(name, entry)| self.view(name, entry))
    }

    /// The schedule of this name; `None`: no schedule has it.
    #[must_use]
    pub fn schedule(&self, name: &str) -> Option<ScheduleView<'_>> {
        let (name, entry) = self.schedules.entries.get_key_value(name)?;
        Some(self.view(name, entry))
    }

    /// Its next firings after now, at most `count`, as RFC 3339 has them in its time zone. Those that wait
    /// come first. None if it is paused.
    #[must_use]
    pub fn next_firings(&self, name: &str, count: usize, now: Now) -> Vec<String> {
        let Some(entry) = self.schedules.entries.get(name) else {
            return Vec::new();
        };
        let next = self.next_times(name, entry, count, now);
        next.map(|at| entry.timetable.shown(at)).collect()
    }

    /// The same, as wall times in nanoseconds.
    fn next_times(
        &self,
        name: &str,
        entry: &Entry,
        count: usize,
        now: Now,
    ) -> impl Iterator<Item = i64> {
        let fired = fired_up_to(&self.settings, name).unwrap_or(0);
        let from = entry.upto.unwrap_or(fired).max(wall(now));
        let waiting = entry.waiting.iter().copied();
        let count = if entry.schedule.is_paused { 0 } else { count };
        waiting.chain(entry.timetable.after(from)).take(count)
    }

    pub(super) fn schedule_stats(&self, name: &str, now: Now) -> Option<ScheduleStats> {
        let (name, entry) = self.schedules.entries.get_key_value(name)?;
        let (schedule, timetable) = (&entry.schedule, &entry.timetable);
        let fired = fired_up_to(&self.settings, name).unwrap_or(0);
        let next: Vec<i64> = self.next_times(name, entry, NEXT_SHOWN, now).collect();
        let time =
            |wall_ns: i64| UNIX_EPOCH + Duration::from_nanos(u64::try_from(wall_ns).unwrap_or(0));
        Some(ScheduleStats {
            name: name.to_string(),
            cron: schedule.cron.clone(),
            tz: schedule.tz.clone(),
            tube: schedule.tube.clone(),
            pri: schedule.pri,
            ttr: Duration::from_secs(schedule.ttr.into()),
            key: schedule.key.clone(),
            missed: schedule.missed,
            paused: schedule.is_paused,
            bytes: schedule.body.len() as u64,
            fired_up_to: time(fired),
            waiting: entry.waiting.len() as u64,
            next: next.iter().copied().map(time).collect(),
            shown: ShownTimes {
                fired_up_to: timetable.shown(fired),
                next: next.into_iter().map(|at| timetable.shown(at)).collect(),
            },
        })
    }

    /// Numbers about all schedules.
    #[must_use]
    pub(crate) fn schedule_figures(&self) -> ScheduleFigures {
        let entries = self.schedules.entries.values();
        let paused = entries.clone().filter(|it| it.schedule.is_paused).count();
        ScheduleFigures {
            schedules: entries.len(),
            paused,
            waiting: entries.map(|it| it.waiting.len()).sum(),
            ..self.schedules.figures
        }
    }

    fn view<'a>(&'a self, name: &'a str, entry: &'a Entry) -> ScheduleView<'a> {
        let fired = fired_up_to(&self.settings, name).unwrap_or(0);
        let next = || match entry.upto {
            None => entry.timetable.next_after(fired),
            Some(_) => entry.waiting.front().copied().or(entry.next),
        };
        ScheduleView {
            name,
            schedule: &entry.schedule,
            fired_up_to_ns: fired,
            next_ns: (!entry.schedule.is_paused).then(next).flatten(),
            waiting: entry.waiting.len(),
        }
    }

    /// Log and apply a schedule and how far it has come, if that changes: both or neither.
    fn log_schedule(
        &mut self,
        name: &str,
        value: &[u8],
        fired: Option<&str>,
        now: Now,
    ) -> Result<Logged, StoreError> {
        use SettingClass::{Fired, Schedule};
        let setting = |class, value| Change::Setting { class, name, value };
        let fired = fired.map(|fired| setting(Fired, fired.as_bytes()));
        let both: Vec<Change<'_>> = [Some(setting(Schedule, value)), fired]
            .into_iter()
            .flatten()
            .collect();
        let has = |class| self.setting(class, name).map_or(0, <[u8]>::len);
        // What takes the place of as much takes no more room than that did.
        let is_more = |change: &Change<'_>| matches!(*change, Change::Setting { class, value, .. } if value.len() > has(class));
        let purpose = match both.iter().any(is_more) {
            true => Purpose::Pause,
            false => Purpose::Update,
        };
        self.make_way(purpose, now)?;
        match self.store.join_for(&both, &[], purpose, now) {
            Ok(()) => {}
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        for change in &both {
            self.log_joined_setting(change, purpose, now)?;
        }
        self.store.part()?;
        Ok(Logged::Done)
    }

    /// The queue decides from now on: its schedules go on from their last firings.
    pub(super) fn begin_schedules(&mut self, now: Now) {
        let schedules = &mut self.schedules;
        schedules.entries.values_mut().for_each(Entry::forget_time);
        schedules.due = (!schedules.entries.is_empty()).then_some(now.mono);
    }

    /// A schedule was set.
    pub(super) fn look_at_schedules(&mut self, now: Now) {
        if !matches!(self.mode, Mode::Follower { .. }) {
            self.schedules.due = Some(now.mono);
        }
    }

    /// Do the firings that are due, some of them if they are many.
    #[inline]
    pub(super) fn fire_when_due(&mut self, now: Now) -> Result<(), StoreError> {
        match self.schedules.due {
            Some(due) if due <= now.mono => self.fire(now),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn fire(&mut self, now: Now) -> Result<(), StoreError> {
        let wall = wall(now);
        let Schedules {
            entries, figures, ..
        } = &mut self.schedules;
        let mut busy = Vec::new();
        for (name, entry) in entries {
            let fired = || fired_up_to(&self.settings, name).unwrap_or(wall);
            entry.look(name, fired, wall, figures);
            if entry.has_work(now.mono) {
                busy.push(name.clone());
            }
        }
        let mut left = FIRED_A_TICK;
        for name in busy {
            while left > 0 && self.fire_next(&name, now)? {
                left -= 1;
            }
        }
        let latest = Time(now.mono.0.saturating_add(LOOK_NS));
        let entries = self.schedules.entries.values();
        let due = entries.filter_map(|entry| entry.due(now)).min();
        let is_empty = self.schedules.entries.is_empty();
        self.schedules.due = (!is_empty).then(|| due.unwrap_or(latest).min(latest));
        Ok(())
    }

    /// Do the next firing of a schedule. `false`: nothing is due, or there is no room for it.
    fn fire_next(&mut self, name: &str, now: Now) -> Result<bool, StoreError> {
        let Some(entry) = self.schedules.entries.get_mut(name) else {
            return Ok(false);
        };
        let done = match (entry.waiting.front().copied(), entry.passed) {
            (Some(at), _) => {
                let schedule = entry.schedule.clone();
                let done = self.put_scheduled(&schedule, Some((name, at)), now)?;
                let figures = &mut self.schedules.figures;
                figures.fired += u64::from(matches!(done, ScheduleRun::Put(_)));
                figures.key_conflicts += u64::from(matches!(done, ScheduleRun::Exists(_)));
                matches!(done, ScheduleRun::Put(_) | ScheduleRun::Exists(_))
            }
            (None, Some(upto)) => matches!(self.log_fired(name, upto, now)?, Logged::Done),
            (None, None) => return Ok(false),
        };
        let Some(entry) = self.schedules.entries.get_mut(name) else {
            return Ok(false);
        };
        if !done {
            entry.again = Some(Time(now.mono.0.saturating_add(AGAIN_NS)));
            return Ok(false);
        }
        entry.again = None;
        if entry.waiting.pop_front().is_none() {
            entry.passed = None;
        }
        Ok(true)
    }

    /// Put a job of a schedule, and with it note how far that has come. If another job has the key, only
    /// that is noted.
    fn put_scheduled(
        &mut self,
        schedule: &Schedule,
        fired: Option<(&str, i64)>,
        now: Now,
    ) -> Result<ScheduleRun, StoreError> {
        if self.draining {
            return Ok(ScheduleRun::Draining);
        }
        let tube = &*schedule.tube;
        let key = schedule.key.as_deref();
        if let Some(holder) = key.and_then(|key| self.queue.key_holder(tube, key)) {
            let logged = match fired {
                Some((name, at)) => self.log_fired(name, at, now)?,
                None => Logged::Done,
            };
            return Ok(match logged {
                Logged::Done => ScheduleRun::Exists(holder),
                Logged::Full => ScheduleRun::NoRoom,
            });
        }
        if self.refuses_scheduled(schedule, now) {
            return Ok(ScheduleRun::NoRoom);
        }
        let Some(id) = self.take_id() else {
            return Ok(ScheduleRun::NoRoom);
        };
        let put = Change::Put {
            id,
            tube,
            pri: schedule.pri,
            delay: 0,
            ttr: schedule.ttr,
            created: now.mono,
            body_size: schedule.body.len() as u32,
        };
        let list = key.map(|key| {
            list_of(&Attributes {
                key: Some(key),
                ..Attributes::default()
            })
        });
        let attributes = list.as_deref().map(|list| Change::Attributes { id, list });
        let upto = fired.map(|(name, at)| (name, at.to_string()));
        let setting = upto.as_ref().map(|(name, at)| fired_change(name, at));
        let with = [attributes.as_ref(), setting.as_ref()];
        Ok(match self.log_firing(&put, schedule, with, now)? {
            Logged::Done => ScheduleRun::Put(id),
            Logged::Full => ScheduleRun::NoRoom,
        })
    }

    /// Whether a put is refused now that a client would be refused, too.
    fn refuses_scheduled(&mut self, schedule: &Schedule, now: Now) -> bool {
        let (tube, size) = (&*schedule.tube, schedule.body.len() as u64);
        self.is_archive_late(now)
            || self.memory_max.is_some() && !self.has_memory_for(size, now)
            || !self.has_room_for_tube(tube, now)
            || self.queue.has_policies() && self.queue.is_full(tube, size, None)
    }

    /// Log and apply a put, its attributes and how far its schedule has come, in one frame.
    fn log_firing(
        &mut self,
        put: &Change<'_>,
        schedule: &Schedule,
        [attributes, fired]: [Option<&Change<'_>>; 2],
        now: Now,
    ) -> Result<Logged, StoreError> {
        let all: Vec<Change<'_>> = [Some(put), attributes, fired]
            .into_iter()
            .flatten()
            .copied()
            .collect();
        let size = size_of_records(&all, &schedule.body, now);
        match self.store.join_size(size, Purpose::Put, now) {
            Ok(()) => {}
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        let logged = self.log_put(put, &schedule.tube, &schedule.body, now)?;
        if let Logged::Done = logged {
            if let Some(attributes) = attributes {
                self.log_joined(attributes, now)?;
            }
            if let Some(fired) = fired {
                self.log_joined_setting(fired, Purpose::Update, now)?;
            }
        }
        self.store.part()?;
        Ok(logged)
    }

    /// Log and apply how far a schedule has come, without a put.
    fn log_fired(&mut self, name: &str, upto: i64, now: Now) -> Result<Logged, StoreError> {
        let upto = upto.to_string();
        let Change::Setting { class, name, value } = fired_change(name, &upto) else {
            return Ok(Logged::Full);
        };
        Ok(match self.log_setting(class, name, value, now)? {
            true => Logged::Done,
            false => Logged::Full,
        })
    }
}

fn fired_change<'a>(name: &'a str, upto: &'a str) -> Change<'a> {
    Change::Setting {
        class: SettingClass::Fired,
        name,
        value: upto.as_bytes(),
    }
}

#[cfg(test)]
mod tests;
