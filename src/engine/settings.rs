//! Named settings of the log: policies of tubes, schedules, and how far schedules have come.
//!
//! Their values are kept here as they are; those who act on them read them. The record of a setting is
//! alive as long as it is the last one. One that removes a setting stays alive until compaction has
//! dropped the records that it replaced (see `last`): replay would bring them back otherwise.
//!
//! The caller bounds how many there are; a setting that was removed is forgotten with the next
//! rewriting of its files, which is hurried if there are many.

use super::Engine;
use super::last::{Freed, LastRecords, NEVER, Recorded};
use crate::storage::format::setting_size;
use crate::storage::{AppendError, Log, Purpose, StoreError};
use crate::types::{Change, Now, Place, SegmentId, SettingClass, Time};

/// More names of settings that were removed than this are forgotten soon.
const REMOVED_MAX: usize = 1024;
/// This many settings are looked at in one call, whether their records are still needed.
const SETTINGS_A_TICK: usize = 256;

/// Which setting.
type Key = (SettingClass, Box<str>);

/// The settings of a log. One that was removed has an empty value, as long as its record is needed.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: LastRecords<Key, Box<[u8]>>,
    removed: usize,
}

impl Settings {
    /// The value of a setting.
    pub(super) fn get(&self, class: SettingClass, name: &str) -> Option<&[u8]> {
        let value = self.values.get(&(class, name.into()))?;
        Some(&**value).filter(|value| !value.is_empty())
    }

    /// The names and values of a class, in the order of the names.
    pub(super) fn of(&self, class: SettingClass) -> impl Iterator<Item = (&str, &[u8])> {
        let all = self.values.iter();
        all.filter(move |((of, _), value)| *of == class && !value.is_empty())
            .map(|((_, name), value)| (&**name, &**value))
    }

    /// The setting has this value from now on, as the record at `place` says. Returns the record that it
    /// replaces, which `segment_of` places; or this one, if nothing needs it.
    pub(super) fn record(
        &mut self,
        (class, name): (SettingClass, &str),
        value: &[u8],
        place: Place,
        now: Time,
        segment_of: impl Fn(Place) -> SegmentId,
    ) -> Option<Freed> {
        let key: Key = (class, name.into());
        let record = Recorded {
            place,
            size: setting_size(name.len(), value.len()),
            until: if value.is_empty() { now } else { NEVER },
        };
        let nothing = Box::<[u8]>::default;
        let freed = (self.values).record(key.clone(), record, now, segment_of, nothing);
        if let Some(known) = self.values.get_mut(&key) {
            // One that is new here has no value yet, and was not removed.
            let was_removed = known.is_empty() && freed.is_some();
            self.removed -= usize::from(was_removed);
            self.removed += usize::from(value.is_empty());
            *known = value.into();
        }
        if place.is_none() && value.is_empty() && self.values.get(&key).is_some() {
            self.values.forget(&key);
            self.removed -= 1;
        }
        freed
    }

    /// Whether the record about a setting at `place` is needed.
    pub(super) fn is_at(&self, class: SettingClass, name: &str, place: Place) -> bool {
        self.values.is_at(&(class, name.into()), place)
    }

    /// The record about a setting has moved.
    pub(super) fn moved(
        &mut self,
        (class, name): (SettingClass, &str),
        from: Place,
        to: Place,
    ) -> bool {
        self.values.moved(&(class, name.into()), from, to)
    }

    /// Forgets what is needed no more, a few settings at a time. Says whether there may be more.
    pub(super) fn expire(&mut self, log: &mut Log, now: Time) -> bool {
        let budget = (SETTINGS_A_TICK, self.removed > REMOVED_MAX);
        let removed = &mut self.removed;
        (self.values).expire(log, now, budget, &mut |_, _| *removed -= 1)
    }
}

impl Engine {
    /// The value of a setting; `None` if it is not set.
    #[must_use]
    pub fn setting(&self, class: SettingClass, name: &str) -> Option<&[u8]> {
        self.settings.get(class, name)
    }

    /// The names and values of the settings of a class, in the order of the names.
    pub fn settings(&self, class: SettingClass) -> impl Iterator<Item = (&str, &[u8])> {
        self.settings.of(class)
    }

    /// Set a setting, or remove it with an empty value. Durable as the policy says once
    /// [`Engine::after`] is acknowledged. `false`: there was no room, and nothing has changed. To remove
    /// what is not set changes nothing, and succeeds.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    ///
    /// # Panics
    /// If the name is no name of a setting, or the value is longer than one can be.
    pub fn set(
        &mut self,
        class: SettingClass,
        name: &str,
        value: &[u8],
        now: Now,
    ) -> Result<bool, StoreError> {
        self.check()?;
        let is_one =
            crate::types::is_setting_name(name) && value.len() <= crate::types::SETTING_SIZE_MAX;
        assert!(is_one, "no log has a setting with this name and value");
        if value.is_empty() && self.setting(class, name).is_none() {
            return Ok(true);
        }
        let logged = self.log_setting(class, name, value, now);
        if let Err(error) = &logged {
            self.failed = Some(error.clone());
        }
        logged
    }

    pub(super) fn log_setting(
        &mut self,
        class: SettingClass,
        name: &str,
        value: &[u8],
        now: Now,
    ) -> Result<bool, StoreError> {
        // What takes the place of as much takes no more room than that did.
        let has = self.setting(class, name).map_or(0, <[u8]>::len);
        let purpose = match value.len() > has {
            true => Purpose::Pause,
            false => Purpose::Update,
        };
        self.make_way(purpose, now)?;
        self.append_setting(&Change::Setting { class, name, value }, purpose, now)
    }

    /// Log and apply a setting for which room was made, with the records before it.
    pub(super) fn log_joined_setting(
        &mut self,
        change: &Change<'_>,
        purpose: Purpose,
        now: Now,
    ) -> Result<(), StoreError> {
        let is_done = self.append_setting(change, purpose, now)?;
        // A panic leaves nothing of this on the disk: the frame is not written yet.
        assert!(is_done, "room was made for {change:?}");
        Ok(())
    }

    fn append_setting(
        &mut self,
        change: &Change<'_>,
        purpose: Purpose,
        now: Now,
    ) -> Result<bool, StoreError> {
        let place = match self.store.append(change, &[], purpose, now) {
            Ok(place) => place,
            Err(AppendError::NoRoom(_)) => return Ok(false),
            Err(AppendError::Failed(error)) => return Err(error),
        };
        self.note_setting(change, place, now);
        Ok(true)
    }

    /// Apply a setting whose record lies at `place`.
    fn note_setting(&mut self, change: &Change<'_>, place: Place, now: Now) {
        let Change::Setting { class, name, value } = *change else {
            unreachable!("this is about settings: {change:?}")
        };
        if let Err(error) = self.queue.apply(change, place, now.mono) {
            unreachable!("the queue refuses a setting: {error}");
        }
        super::policies::hand_on(&mut self.queue, (class, name, value), now);
        if class == SettingClass::Schedule {
            self.schedules.hand_on((class, name, value));
            self.look_at_schedules(now);
        }
        let Engine {
            store, settings, ..
        } = self;
        store.keep(place, setting_size(name.len(), value.len()));
        let segment_of = |place| store.segment_of(place);
        let freed = settings.record((class, name), value, place, now.mono, segment_of);
        if let Some((place, size)) = freed {
            store.free(place, size);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::engine::Options;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::Crash;

    use SettingClass::{Fired, Policy, Schedule};

    fn now() -> Now {
        Now::new(Time(0), 1_800_000_000_000_000_000)
    }

    fn options(disk: &SimFs) -> Options {
        Options::simulated(disk, "/data")
    }

    fn open(disk: &SimFs) -> Engine {
        Engine::open(&options(disk), now()).unwrap()
    }

    fn set(engine: &mut Engine, name: &str, value: &[u8]) {
        assert!(engine.set(Policy, name, value, now()).unwrap());
        engine.commit(now()).unwrap();
    }

    fn all(engine: &Engine, class: SettingClass) -> Vec<(String, Vec<u8>)> {
        let all = engine.settings(class);
        all.map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect()
    }

    #[test]
    fn the_last_value_of_each_class_and_name_counts_also_after_a_crash() {
        let disk = SimFs::new(1);
        let mut engine = open(&disk);
        for (class, name, value) in [
            (Policy, "mail", &b"1"[..]),
            (Schedule, "mail", b"2"),
            (Policy, "mail", b"3"),
            (Policy, "a*", &[0xff, 0]),
            (Fired, "x", b"4"),
            (Fired, "x", b""),
            (Fired, "never", b""),
        ] {
            assert!(engine.set(class, name, value, now()).unwrap());
        }
        engine.commit(now()).unwrap();
        let check = |engine: &Engine| {
            let policies = all(engine, Policy);
            let names: Vec<&str> = policies.iter().map(|(name, _)| &**name).collect();
            assert_eq!(names, ["a*", "mail"]);
            assert_eq!(policies[0].1, [0xff, 0]);
            assert_eq!(engine.setting(Policy, "mail"), Some(&b"3"[..]));
            assert_eq!(engine.setting(Schedule, "mail"), Some(&b"2"[..]));
            assert!(all(engine, Fired).is_empty() && engine.setting(Fired, "x").is_none());
        };
        check(&engine);
        drop(engine);
        check(&open(&disk.crash_image(Crash::DropUnsynced)));
    }

    #[test]
    fn without_a_log_settings_are_there_as_long_as_the_process() {
        let mut engine = Engine::open(&Options::default(), now()).unwrap();
        set(&mut engine, "mail", b"1");
        assert_eq!(engine.setting(Policy, "mail"), Some(&b"1"[..]));
        set(&mut engine, "mail", b"");
        assert_eq!(engine.setting(Policy, "mail"), None);
        assert_eq!(
            (engine.settings.values.len(), engine.settings.removed),
            (0, 0)
        );
    }

    /// Fill segments with what dies, and let compaction do all it wants to.
    fn churn(engine: &mut Engine, rounds: u32) {
        for round in 0..rounds {
            set(engine, "filler", &vec![round as u8 + 1; 5000]);
            while engine.keep_log(now()).unwrap() {}
        }
    }

    #[test]
    fn a_removal_outlives_every_copy_of_what_it_removed_and_not_more() {
        let disk = SimFs::new(1);
        let mut engine = open(&disk);
        set(&mut engine, "mail", b"old");
        // As long as these are alive, their segment stays, with what died in it.
        let beside = |nth: usize| format!("beside-{nth}");
        for nth in 0..8 {
            set(&mut engine, &beside(nth), &[b'x'; 5000]);
        }
        churn(&mut engine, 5);
        set(&mut engine, "mail", b"");
        for round in 0..60 {
            if round >= 30 {
                set(&mut engine, &beside(round % 8), b"");
            }
            churn(&mut engine, 3);
            engine.commit(now()).unwrap();
            let again = open(&disk.crash_image(Crash::KeepAll));
            assert_eq!(again.setting(Policy, "mail"), None, "round {round}");
        }
        assert_eq!(engine.settings.removed, 0, "it is forgotten at last");
        set(&mut engine, "mail", b"new");
        let again = open(&disk.crash_image(Crash::KeepAll));
        assert_eq!(again.setting(Policy, "mail"), Some(&b"new"[..]));
    }

    #[test]
    fn very_many_settings_that_come_and_go_leave_no_memory_behind() {
        let disk = SimFs::new(1);
        let mut engine = open(&disk);
        for nth in 0..4 * REMOVED_MAX {
            let name = format!("tube-{nth}");
            set(&mut engine, &name, b"1");
            set(&mut engine, &name, b"");
            while engine.keep_log(now()).unwrap() {}
        }
        let removed = engine.settings.removed;
        assert!(removed <= 2 * REMOVED_MAX, "{removed} names");
        assert_eq!(engine.settings.values.len(), removed);
    }
}
