//! What jobs have beyond plain jobs, and settings, in a simulated run. A put or an update and the
//! attributes that belong to it are one step of the history: after a crash both are there or neither.

use std::path::Path;
use std::sync::Arc;

use bsd::attributes::{Attributes, Reason, TEXT_SIZE_MAX, Unique};
use bsd::engine::{Engine, NewJob, Options};
use bsd::protocol::{Command, Conflict, JobKey, PutWith};
use bsd::random::Random;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::{FrameHeader, Record, SegmentHeader, records, segment_header};
use bsd::storage::inspect::history::{Event, history};
use bsd::storage::inspect::{Inspection, RecordPlace, read_records, repair};
use bsd::storage::{OpenError, SimFs, SyncPolicy};
use bsd::types::{Counters, JobId, Now, SettingClass};

use super::alterations::{after, crash_in_the_last_turn, largest, put};
use super::driver::{Answer, DIR, Driver, Setup, Step, Stop, TUBES, options, path};
use super::oracle::{Effect, Job, Placed, body, later};

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beyond {
    /// A job is put, with attributes.
    Put {
        tube: usize,
        delay: u32,
        size: usize,
        list: usize,
    },
    /// A job is put with a key that others may have, over the protocol.
    PutKeyed {
        tube: usize,
        size: usize,
        is_waiting: bool,
        replaces: bool,
    },
    /// Any job gets other attributes.
    Attribute { nth: usize, list: usize },
    /// A reserved job is released with a delay, and gets other attributes.
    Fail { nth: usize, delay: u32, list: usize },
    /// A setting gets a value of this size; of 0 bytes it is removed.
    Set { name: usize, size: usize },
}

/// The key of all jobs that have one.
const KEY: &str = "order-17";

/// What jobs get: nothing, names, counts, moves.
pub(super) const LISTS: [Attributes<'static>; 6] = [
    NONE,
    Attributes {
        key: Some(KEY),
        unique: Some(Unique::Waiting),
        group: Some("customer-5"),
        counted_from: Some(7),
        ..NONE
    },
    Attributes {
        failures: Some(1),
        reason: Some(Reason::Ttr),
        ..NONE
    },
    Attributes {
        key: Some(KEY),
        failures: Some(2),
        reason: Some(Reason::Failed),
        text: Some(&[b'!'; TEXT_SIZE_MAX]),
        ..NONE
    },
    Attributes {
        tube: Some(TUBES[1]),
        failures: Some(0),
        reason: Some(Reason::Expired),
        dead_lettered_from: Some(TUBES[0]),
        counted_since_wall_ns: Some(1_700_000_000_000_000_000),
        ..NONE
    },
    Attributes {
        tube: Some(TUBES[0]),
        ..NONE
    },
];
const NONE: Attributes<'static> = Attributes {
    key: None,
    unique: None,
    group: None,
    tube: None,
    counted_from: None,
    failures: None,
    reason: None,
    text: None,
    dead_lettered_from: None,
    counted_since_wall_ns: None,
};

/// The names of settings, all of one class.
pub(super) const NAMES: [&str; 3] = ["mail", "mail-*", "\u{e4} name with spaces"];
pub(super) const CLASS: SettingClass = SettingClass::Schedule;

impl Beyond {
    fn any(random: &mut Random) -> Beyond {
        let list = random.below(LISTS.len());
        match random.below(10) {
            8 | 9 => Beyond::PutKeyed {
                tube: random.below(TUBES.len()),
                size: random.below(1000),
                is_waiting: random.percent(50),
                replaces: random.percent(50),
            },
            0 | 1 => Beyond::Put {
                tube: random.below(TUBES.len()),
                delay: [0, 0, 2][random.below(3)],
                size: random.below(1000),
                list,
            },
            2..=4 => Beyond::Attribute {
                nth: random.below(1 << 20),
                list,
            },
            5 | 6 => Beyond::Fail {
                nth: random.below(1 << 20),
                delay: random.below(3) as u32,
                list,
            },
            _ => Beyond::Set {
                name: random.below(NAMES.len()),
                size: [0, 0, 5, 100, 6000][random.below(5)],
            },
        }
    }
}

/// The steps, with some of these between them.
pub(super) fn among(steps: Vec<Step>, random: &mut Random) -> Vec<Step> {
    let chance = [0, 0, 8, 40][random.below(4)];
    let mut all = Vec::with_capacity(steps.len());
    for step in steps {
        all.push(step);
        if random.percent(chance) {
            all.push(Step::Beyond(Beyond::any(random)));
        }
    }
    all
}

/// The effect of a list on a job.
fn effect(id: u64, list: usize) -> Effect {
    let attributes = &LISTS[list];
    let tube = attributes
        .tube
        .map(|name| TUBES.into_iter().find(|it| *it == name));
    Effect::Attributes {
        id,
        list: attributes.encode().expect("a list"),
        tube: tube.flatten(),
    }
}

impl Driver {
    pub(super) fn beyond(&mut self, step: Beyond) -> Result<(), Stop> {
        match step {
            Beyond::Put {
                tube,
                delay,
                size,
                list,
            } => self.put_with(TUBES[tube], delay, size, list),
            Beyond::PutKeyed {
                tube,
                size,
                is_waiting,
                replaces,
            } => self.put_keyed(TUBES[tube], size, is_waiting, replaces),
            Beyond::Attribute { nth, list } => match self.nth(nth, |_, _| true) {
                Some(id) => self.attribute(id, list),
                None => Ok(()),
            },
            Beyond::Fail { nth, delay, list } => match self.nth_reserved(nth) {
                Some((id, _)) => self.fail(id, delay, list),
                None => Ok(()),
            },
            Beyond::Set { name, size } => self.set(NAMES[name], size),
        }
    }

    fn put_with(
        &mut self,
        tube: &'static str,
        delay: u32,
        size: usize,
        list: usize,
    ) -> Result<(), Stop> {
        let id = self.engine().queue().next_id();
        let body = body(id, size);
        let job = self.new_job(tube, delay, &body);
        let effects = [Effect::Put(id.0, job), effect(id.0, list)];
        let new = NewJob {
            tube,
            pri: 5,
            delay,
            ttr: 3,
            body: &body,
        };
        let now = self.now;
        let put = self.engine_mut().put_with(&new, &LISTS[list], now);
        if let Ok(Some(found)) = put {
            assert_eq!(found, id);
        }
        let is_done = put.map(|id| id.is_some()).ok();
        self.note(is_done, &effects)
    }

    fn new_job(&self, tube: &'static str, delay: u32, body: &[u8]) -> Job {
        Job {
            tube,
            pri: 5,
            delay,
            ttr: 3,
            created: self.now.wall_ns,
            body: body.into(),
            placed: match delay {
                0 => Placed::Ready,
                seconds => Placed::Delayed(later(self.now, seconds)),
            },
            counters: Counters::default(),
            home: tube,
            attributes: None,
        }
    }

    fn put_keyed(
        &mut self,
        tube: &'static str,
        size: usize,
        is_waiting: bool,
        replaces: bool,
    ) -> Result<(), Stop> {
        let holder = self.engine().queue().key_holder(tube, KEY);
        let is_kept = |id: JobId| !replaces || self.is_reserved(id.0);
        let exists = holder.is_some_and(is_kept);
        let id = self.engine().queue().next_id();
        let body = body(id, size);
        let attributes = Attributes {
            key: Some(KEY),
            unique: is_waiting.then_some(Unique::Waiting),
            ..NONE
        };
        let mut effects = vec![
            Effect::Put(id.0, self.new_job(tube, 0, &body)),
            Effect::Attributes {
                id: id.0,
                list: attributes.encode().expect("a list"),
                tube: None,
            },
        ];
        effects.extend(holder.map(|holder| Effect::Delete(holder.0)));
        if exists {
            effects.clear();
        }
        let put = PutWith {
            tube: Some(tube.into()),
            pri: 5,
            delay: 0,
            ttr: 3,
            at: None,
            key: Some(JobKey {
                name: KEY.into(),
                unique: attributes.unique.unwrap_or(Unique::Exists),
                conflict: match replaces {
                    true => Conflict::Replace,
                    false => Conflict::Keep,
                },
            }),
            group: None,
            body: (&*body).into(),
        };
        let put = Command::PutWith(Box::new(put));
        match self.change(self.boss, put, &effects)? {
            Answer::Inserted(found) => assert_eq!((found, exists), (id.0, false)),
            Answer::Done => assert!(exists, "job {id} was to be put"),
            other => assert_eq!(other, Answer::OutOfMemory),
        }
        Ok(())
    }

    fn attribute(&mut self, id: u64, list: usize) -> Result<(), Stop> {
        let (effects, now) = ([effect(id, list)], self.now);
        let done = self
            .engine_mut()
            .attribute(JobId(id), None, &LISTS[list], now);
        self.note(done.ok(), &effects)
    }

    fn fail(&mut self, id: u64, delay: u32, list: usize) -> Result<(), Stop> {
        let mut counters = self.counters(id);
        counters.releases += 1;
        let until = later(self.now, delay);
        let release = Effect::Release(id, 7, delay, until, counters);
        let effects = [release, effect(id, list)];
        let now = self.now;
        let update = self
            .engine()
            .queue()
            .decide_release(JobId(id), 7, delay, now.mono)
            .expect("the job is there");
        let done = self
            .engine_mut()
            .attribute(JobId(id), Some(&update), &LISTS[list], now);
        if let Ok(true) = done {
            self.forget_reserved(id);
        }
        self.note(done.ok(), &effects)
    }

    fn set(&mut self, name: &'static str, size: usize) -> Result<(), Stop> {
        let value = vec![b'v'; size];
        let effects = [Effect::Set(name, value.clone())];
        let now = self.now;
        let done = self.engine_mut().set(CLASS, name, &value, now);
        self.note(done.ok(), &effects)
    }

    /// Note what was done, if it was. `None`: the log has failed.
    fn note(&mut self, is_done: Option<bool>, effects: &[Effect]) -> Result<(), Stop> {
        let Some(is_done) = is_done.filter(|_| !self.fs.is_crashed()) else {
            return Err(self.unanswered(effects));
        };
        match is_done {
            true => {
                let after = self.engine().after();
                self.history.push(effects, after);
            }
            false => self.refused += 1,
        }
        Ok(())
    }
}

const TURN: Step = Step::Turn { ms: 0 };

const fn put_with(size: usize, list: usize) -> Step {
    Step::Beyond(Beyond::Put {
        tube: 0,
        delay: 0,
        size,
        list,
    })
}

/// Wherever a segment ends among the two records, and wherever a crash comes.
#[test]
fn a_crash_leaves_a_put_and_its_attributes_or_neither() {
    let setup = Setup::from(SyncPolicy::Always);
    let largest = largest(setup);
    for left in (0..400).step_by(16) {
        let steps = [
            put(500),
            TURN,
            put(largest - left),
            TURN,
            put_with(100, 1),
            TURN,
        ];
        assert!(crash_in_the_last_turn(&steps, setup) > 0, "{left}");
    }
}

/// The same of an update.
#[test]
fn a_crash_leaves_an_update_and_its_attributes_or_neither() {
    let setup = Setup::from(SyncPolicy::Always);
    let largest = largest(setup);
    let fail = Step::Beyond(Beyond::Fail {
        nth: 0,
        delay: 2,
        list: 2,
    });
    for left in (0..400).step_by(16) {
        let reserve = Step::Reserve { worker: 0 };
        let steps = [
            put(500),
            TURN,
            put(largest - left),
            TURN,
            reserve,
            fail,
            TURN,
        ];
        assert!(crash_in_the_last_turn(&steps, setup) > 0, "{left}");
    }
}

const fn put_keyed(is_waiting: bool, replaces: bool) -> Step {
    Step::Beyond(Beyond::PutKeyed {
        tube: 0,
        size: 100,
        is_waiting,
        replaces,
    })
}

/// A put that replaces a job: the three records are one step, too.
#[test]
fn a_crash_leaves_the_job_that_has_a_key_or_the_one_that_replaces_it() {
    let setup = Setup::from(SyncPolicy::Always);
    let largest = largest(setup);
    for left in (0..400).step_by(16) {
        let steps = [
            put_keyed(false, false),
            TURN,
            put(largest - left),
            TURN,
            put_keyed(true, true),
            TURN,
        ];
        assert!(crash_in_the_last_turn(&steps, setup) > 0, "{left}");
    }
}

/// Of a job that frees its key when it is reserved the reservation is durable no later than the next
/// job with the key.
#[test]
fn a_crash_leaves_no_second_job_that_has_a_key() {
    let setup = Setup::from(SyncPolicy::Always);
    let reserve = Step::Reserve { worker: 0 };
    let mut steps = vec![put_keyed(true, false), TURN];
    for _ in 0..3 {
        steps.extend([reserve, put_keyed(true, false), put_keyed(true, true)]);
    }
    steps.push(TURN);
    assert!(crash_in_the_last_turn(&steps, setup) > 0);
    let driver = after(&steps, setup);
    let image = driver.fs.crash_image(Crash::DropUnsynced);
    let engine = Engine::open(&options(&image, SyncPolicy::Always), driver.now);
    let engine = engine.unwrap_or_else(|error| panic!("{error}"));
    let queue = engine.queue();
    let jobs = queue.ids().filter_map(|id| queue.job(id));
    let waiting = jobs.filter(|job| job.counters.reserves == 0);
    assert_eq!(waiting.count(), 1);
    queue.assert_claims();
}

/// More than a frame holds in a turn.
#[test]
fn a_crash_in_many_puts_with_attributes_leaves_each_whole() {
    let setup = Setup {
        sync: SyncPolicy::Always,
        segment_size: 4 << 20,
    };
    let mut steps = vec![put(10), TURN];
    steps.extend(vec![put_with(60_000, 3); 20]);
    steps.push(TURN);
    assert!(crash_in_the_last_turn(&steps, setup) > 0);
}

/// The versions of a log: of each segment, and of each of its frames.
fn versions(fs: &SimFs) -> Vec<(u16, Vec<u8>)> {
    let names = fs.names(DIR).expect("the directory exists");
    let segments = names.iter().filter(|name| name.starts_with("segment-"));
    let of = |name: &String| {
        let bytes = fs.read(path(name)).expect("a segment");
        let header = SegmentHeader::decode(&bytes).expect("a header");
        let seed = header.identity.seed();
        let (mut at, mut frames) = (segment_header::SIZE, Vec::new());
        while let Some(frame) = FrameHeader::decode(&bytes[at..], seed, at as u32) {
            let needed = records(&bytes[at..], &frame, at as u32).map(|(_, it)| it.version());
            let needed = needed.max().unwrap_or(1);
            assert_eq!(u16::from(frame.version), needed, "{name} at byte {at}");
            frames.push(frame.version);
            at += frame.frame_size() as usize;
        }
        (header.version, frames)
    };
    segments.map(of).collect()
}

/// A segment that compaction has written may begin with what needs version 2; no other segment does.
#[test]
fn a_frame_and_a_segment_say_version_2_only_where_a_record_needs_it() {
    let setup = Setup::from(SyncPolicy::Always);
    let large = |list| {
        Step::Beyond(Beyond::Put {
            tube: 0,
            delay: 0,
            size: 500,
            list,
        })
    };
    let mut steps = vec![large(1), TURN];
    for _ in 0..6 {
        steps.extend(vec![put(6000); 12]);
        steps.push(TURN);
        steps.extend(vec![Step::Delete { nth: 1 }; 12]);
        steps.extend([Step::Turn { ms: 200 }, Step::Turn { ms: 200 }]);
    }
    let of_all = versions(&after(&steps, setup).fs);
    let rewritten = of_all.iter().filter(|(version, _)| *version == 2);
    assert_eq!(rewritten.count(), 1, "{of_all:?}");
    for (version, frames) in &of_all {
        let first = frames.first().copied().unwrap_or(1);
        assert_eq!(*version, first.into(), "{of_all:?}");
    }
    let plain: Vec<Step> = steps
        .into_iter()
        .filter(|it| !matches!(it, Step::Beyond(_)))
        .collect();
    let of_all = versions(&after(&plain, setup).fs);
    let is_plain = |(version, frames): &(u16, Vec<u8>)| {
        *version == 1 && frames.iter().all(|version| *version == 1)
    };
    assert!(of_all.iter().all(is_plain), "{of_all:?}");
}

/// What a job has is the same after all its records were copied many times, and gone with it.
#[test]
fn attributes_outlive_compaction_and_die_with_their_job() {
    let setup = Setup::from(SyncPolicy::Always);
    let mut steps = vec![put_with(100, 4), put_with(100, 3), put(100), TURN];
    for round in 0..8 {
        let (nth, list) = (round % 3, round % LISTS.len());
        steps.push(Step::Beyond(Beyond::Attribute { nth, list }));
        let (name, size) = (round % 3, [9, 0, 300][round % 3]);
        steps.push(Step::Beyond(Beyond::Set { name, size }));
        steps.extend(vec![put(6000); 12]);
        steps.push(TURN);
        steps.extend(vec![Step::Delete { nth: 3 }; 12]);
        steps.extend([Step::Turn { ms: 200 }, Step::Restart]);
    }
    let driver = after(&steps, setup);
    driver.assert_goes_on_working();
    let names = driver.fs.names(DIR).expect("the directory exists");
    let is_rewritten = |name: &String| name.starts_with("segment-") && !name.ends_with(".00000");
    assert!(names.iter().any(is_rewritten), "{names:?}");
    let image = driver.fs.crash_image(Crash::DropUnsynced);
    let opened = Driver::open(
        &image,
        setup,
        driver.now,
        &driver.history,
        driver.history.last(),
    );
    opened.unwrap_or_else(|stop| panic!("{stop}"));
}

fn inspect(fs: &SimFs, dir: &str) -> Inspection {
    let found = Inspection::read(Arc::new(fs.clone()), Path::new(dir), &mut |_, _| ());
    found.unwrap_or_else(|error| panic!("{error}"))
}

/// What a repair leaves of this disk, opened.
fn repaired(fs: &SimFs, now: Now) -> Engine {
    let (door, new) = (Arc::new(fs.clone()), Path::new("/new"));
    let old = inspect(fs, DIR);
    repair::write(&old, door, new, now, &mut |_, _| ()).expect("room");
    let options = Options {
        dir: Some(new.into()),
        ..options(fs, SyncPolicy::Always)
    };
    Engine::open(&options, now).expect("a sound log")
}

/// Two jobs, the second of which got attributes twice; cleanly stopped.
fn two_jobs() -> (SimFs, Now) {
    let attribute = |list| Step::Beyond(Beyond::Attribute { nth: 1, list });
    let set = Step::Beyond(Beyond::Set { name: 1, size: 9 });
    let steps = [
        put_with(50, 3),
        TURN,
        put_with(50, 1),
        TURN,
        attribute(4),
        set,
        TURN,
    ];
    let mut driver = after(&steps, Setup::from(SyncPolicy::Always));
    driver.stop().unwrap_or_else(|stop| panic!("{stop}"));
    (driver.fs.clone(), driver.now)
}

#[test]
fn a_repair_keeps_attributes_and_settings() {
    let (fs, now) = two_jobs();
    let engine = repaired(&fs, now);
    let list = |id| engine.queue().attributes(JobId(id)).map(<[u8]>::to_vec);
    assert_eq!((list(1), list(2)), (LISTS[3].encode(), LISTS[4].encode()));
    assert_eq!(engine.queue().job(JobId(2)).expect("a job").tube, TUBES[1]);
    assert_eq!(engine.setting(CLASS, NAMES[1]), Some(&[b'v'; 9][..]));
}

/// Flip a byte in the nth record of attributes.
fn with_damaged_attributes(fs: &SimFs, nth: usize) -> SimFs {
    let mut places = Vec::new();
    let mut visit = |place: RecordPlace<'_>, record: &Record<'_>| {
        if let Record::Attributes { .. } = record {
            let last = place.position.offset() as usize + place.size - 1;
            places.push((place.file.to_owned(), last));
        }
        true
    };
    let door = Arc::new(fs.clone());
    read_records(door, Path::new(DIR), &mut visit, &mut |_, _| ()).expect("a sound log");
    let (file, at) = &places[nth];
    let damaged = fs.crash_image(Crash::KeepAll);
    damaged
        .flip_bit(path(file), *at as u64 * 8)
        .expect("a byte");
    damaged
}

#[test]
fn a_job_whose_attributes_are_damaged_is_kept_as_a_plain_job_and_that_is_said() {
    let (sound, now) = two_jobs();
    let fs = with_damaged_attributes(&sound, 0);
    let OpenError::Damaged { damages, .. } = Driver::engine_at(&fs, now).map_or_else(
        |stop| match stop {
            Stop::Open(error) => error,
            other => panic!("{other}"),
        },
        |_| panic!("a damaged log was opened"),
    ) else {
        panic!("not called damaged")
    };
    assert_eq!(damages[0].jobs, [JobId(1)]);
    let found = inspect(&fs, DIR);
    let plain: Vec<_> = found.losses.iter().map(|loss| loss.plain.clone()).collect();
    assert_eq!(plain, [[JobId(1)]], "{:?}", found.losses);
    assert!(
        found.losses[0]
            .to_string()
            .contains("job 1 has lost its attributes")
    );
    assert!(found.losses[0].missing.is_empty() && found.losses[0].older.is_empty());
    let engine = repaired(&fs, now);
    assert!(engine.queue().job(JobId(1)).is_some());
    assert_eq!(engine.queue().attributes(JobId(1)), None);
    assert!(engine.queue().attributes(JobId(2)).is_some());
}

#[test]
fn where_later_attributes_are_damaged_the_earlier_ones_are_kept() {
    let (sound, now) = two_jobs();
    let fs = with_damaged_attributes(&sound, 2);
    let found = inspect(&fs, DIR);
    assert_eq!(found.losses[0].plain, [JobId(2)]);
    let engine = repaired(&fs, now);
    let list = engine.queue().attributes(JobId(2)).map(<[u8]>::to_vec);
    assert_eq!(list, LISTS[1].encode());
    assert_eq!(engine.queue().job(JobId(2)).expect("a job").tube, TUBES[0]);
    // And where a later record says all, nothing is lost.
    let found = inspect(&with_damaged_attributes(&sound, 1), DIR);
    assert!(!found.losses.is_empty());
    assert!(
        found.losses.iter().all(|loss| loss.plain.is_empty()),
        "{:?}",
        found.losses
    );
}

#[test]
fn the_history_of_a_job_tells_what_it_had() {
    let (fs, _) = two_jobs();
    let door = Arc::new(fs.clone());
    let history = history(door, Path::new(DIR), JobId(2), &mut |_, _| ()).expect("a sound log");
    let had = |list: usize| Some(Event::Attributes(LISTS[list].encode()?));
    let events = history.entries.into_iter().map(|entry| entry.event);
    let lists: Vec<_> = events
        .filter(|it| matches!(it, Event::Attributes(_)))
        .collect();
    assert_eq!(lists, [had(1), had(4)].map(|event| event.expect("a list")));
}
