//! Random commands beyond those of beanstalkd: what the simulations of a server and of a cluster have
//! their clients send.
//!
//! They come close to what is hard: few keys and groups, limits that are reached soon, tubes that name
//! each other as dead-letter tubes, schedules that fire every few seconds.

use std::borrow::Cow;

use crate::attributes::Unique;
use crate::clearing::ClearedStates;
use crate::pattern::Pattern;
use crate::protocol::{Command, Conflict, JobKey, OnEach, PutWith, SetPolicy, SetSchedule};
use crate::random::Random;
use crate::schedule::{Missed, Schedule};
use crate::types::{JobId, Now, SECOND_NS, SettingClass};

use super::whole::Whole;

/// The policies that are set; `%` is a tube. One that limits or refuses puts comes behind the others.
const POLICIES: [&str; 19] = [
    "",
    "",
    "delivery-limit=1",
    "delivery-limit=2",
    "delivery-limit=2 dead-letter=%",
    "delivery-limit=3 dead-letter=% retry-min=1 retry-multiplier=3 retry-jitter=20",
    "delivery-limit=1 dead-letter=delete",
    "retry-min=2 retry-max=3",
    "expire-after=2",
    "expire-after=3 expired=dead-letter dead-letter=%",
    "max-reserved=2",
    "rate=2/s",
    "rate=60/m fair=on delivery-limit=4",
    "fair=on",
    "fair=on",
    "fair=on max-reserved=3",
    "fair=on delivery-limit=3 dead-letter=%",
    "max-jobs=12",
    "max-bytes=20000 delivery-limit=2",
];
/// Those of them that refuse no put.
const ROOMY: usize = 17;
const KEYS: [&str; 3] = ["order-17", "k", "a/key;with+more"];
const GROUPS: [&str; 3] = ["customer-5", "customer-6", "g"];
/// The names of the schedules that come and go.
pub const SCHEDULES: [&str; 3] = ["hourly", "report", "s"];
/// When they fire.
const CRONS: [&str; 3] = ["*/5 * * * * *", "*/20 * * * * *", "* * * * *"];

/// A put with what only an extended put has, or with none of it.
pub fn any_put(random: &mut Random, tube: &str, body: Vec<u8>, now: Now) -> Command<'static> {
    let unix = (now.wall_ns / SECOND_NS as u64) as u32;
    let at = random.percent(10).then(|| unix + random.below(4u32));
    let key = random.percent(45).then(|| JobKey {
        name: Cow::Borrowed(random.pick(&KEYS)),
        unique: random.pick(&[Unique::Exists, Unique::Waiting]),
        conflict: random.pick(&[Conflict::Keep, Conflict::Replace]),
    });
    Command::PutWith(Box::new(PutWith {
        tube: Some(tube.to_owned().into()),
        pri: random.below(3u32) * 700,
        delay: match at {
            Some(_) => 0,
            None => random.pick(&[0, 0, 0, 1, 2]),
        },
        ttr: 1 + random.below(4u32),
        at,
        key,
        group: random
            .percent(30)
            .then(|| Cow::Borrowed(random.pick(&GROUPS))),
        body: body.into(),
    }))
}

/// A job that a client has reserved is let go, or deleted: with a word about it, or without.
pub fn any_end(random: &mut Random, id: JobId) -> Command<'static> {
    let pri = random.below(4u32) * 700;
    let size = random.pick(&[0, 5, 300]);
    let text = Cow::Owned(random.bytes(size));
    match random.below(12) {
        0..4 => Command::Fail { id, text },
        4..6 => Command::BuryWithReason { id, pri, text },
        6 => Command::Bury { id, pri },
        7..10 => Command::Release {
            id,
            pri,
            delay: random.pick(&[0, 0, 1]),
        },
        10 => {
            let release = OnEach::Release { pri, delay: 1 };
            let on_each = random.pick(&[OnEach::Delete, OnEach::Touch, release]);
            Command::Batch {
                on_each,
                ids: vec![id],
            }
        }
        _ => Command::Delete(id),
    }
}

/// A change of a job that no client has to have, of a tube, or of what the server does of itself.
/// `is_roomy`: it makes no tube refuse a put.
pub fn any_change(
    random: &mut Random,
    tubes: &[&'static str],
    id: JobId,
    is_roomy: bool,
) -> Command<'static> {
    let tube = Cow::Borrowed(random.pick(tubes));
    match random.below(20) {
        0..4 => Command::MoveJob { id, tube },
        4 => Command::KickJob(id),
        5 | 6 => Command::Kick {
            tube: Some(tube),
            bound: 1 + random.below(4u32),
        },
        7 => Command::ClearTube {
            tube,
            states: random.pick(&[
                ClearedStates::Ready,
                ClearedStates::Delayed,
                ClearedStates::Buried,
                ClearedStates::All,
            ]),
        },
        8..14 => Command::SetPolicy(Box::new(any_policy(random, tubes, is_roomy))),
        14..19 => Command::ScheduleSet(Box::new(any_schedule(random, tubes))),
        _ => Command::ScheduleDelete(Cow::Borrowed(random.pick(&SCHEDULES))),
    }
}

fn any_policy(random: &mut Random, tubes: &[&'static str], is_roomy: bool) -> SetPolicy {
    let name = match random.below(4) {
        0 => "*l*",
        1 => "m*",
        _ => random.pick(tubes),
    };
    let all = match is_roomy {
        true => &POLICIES[..ROOMY],
        false => &POLICIES[..],
    };
    let text = random.pick(all).replace('%', random.pick(tubes));
    SetPolicy {
        tubes: known(Pattern::parse(name)),
        policy: known(text.parse()),
    }
}

fn any_schedule(random: &mut Random, tubes: &[&'static str]) -> SetSchedule {
    let name = random.pick(&SCHEDULES);
    let schedule = Schedule {
        cron: random.pick(&CRONS).to_owned(),
        tube: random.pick(tubes).to_owned(),
        key: random
            .percent(40)
            .then(|| random.pick(&[name, KEYS[0]]).to_owned()),
        missed: random.pick(&Missed::ALL),
        is_paused: random.percent(25),
        ..by_second(name, "", 1, Missed::Skip)
    };
    SetSchedule {
        name: name.to_owned(),
        schedule,
        keeps_pause: false,
    }
}

/// A schedule that fires every few seconds, a divisor of 60, and whose jobs have its name as body.
#[must_use]
pub fn by_second(name: &str, tube: &str, seconds: u32, missed: Missed) -> Schedule {
    Schedule {
        cron: format!("*/{seconds} * * * * *"),
        tube: tube.to_owned(),
        ttr: 3,
        body: name.as_bytes().to_vec(),
        missed,
        ..Schedule::default()
    }
}

/// What is written here is right.
fn known<T>(read: Result<T, crate::UsageError>) -> T {
    read.unwrap_or_else(|error| panic!("{error}"))
}

/// The multiples of a period after `from`, up to `upto`.
#[must_use]
pub fn firings(from: u64, upto: u64, seconds: u32) -> Vec<u64> {
    let period = u64::from(seconds) * SECOND_NS as u64;
    let first = (from / period + 1) * period;
    (first..=upto).step_by(period as usize).collect()
}

/// The tube of the jobs of [`beat`], which no one touches.
pub const BEATS: &str = "beats";
const BEAT: &str = "beat-";

/// A schedule that is set now and whose firings [`assert_beats`] counts.
#[must_use]
pub fn beat(seconds: u32, now: Now) -> SetSchedule {
    let name = format!("{BEAT}{}", now.wall_ns);
    let schedule = by_second(&name, BEATS, seconds, Missed::All);
    SetSchedule {
        name,
        schedule,
        keeps_pause: false,
    }
}

/// When the schedule of [`beat`] was set, and how far it has come, if it is there: wall times.
#[must_use]
pub fn beat_of(state: &Whole) -> Option<(u64, u64)> {
    let schedules = state.settings.keys();
    let mut names = schedules.filter(|(class, _)| *class == SettingClass::Schedule);
    let since = |name: &str| name.strip_prefix(BEAT)?.parse().ok();
    names.find_map(|(_, name)| Some((since(name)?, state.fired_up_to(name)?)))
}

/// For each time up to which the schedule of [`beat`] says that it has fired there is a job.
///
/// # Panics
/// There are more or fewer.
pub fn assert_beats(state: &Whole, seconds: u32, what: &str) {
    if let Some((since, fired)) = beat_of(state) {
        let jobs = state.jobs.values().filter(|job| job.tube == BEATS).count();
        let due = firings(since, fired, seconds).len();
        assert_eq!(
            jobs, due,
            "{what}: jobs of a schedule that fired {due} times"
        );
    }
}

/// A body that no client has put is that of a schedule: its name.
#[must_use]
pub fn is_scheduled(body: &[u8]) -> bool {
    body.starts_with(BEAT.as_bytes()) || SCHEDULES.iter().any(|name| name.as_bytes() == body)
}
