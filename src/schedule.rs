//! Schedules: jobs that a server puts by itself, at the times that a cron expression says.
//!
//! A schedule is a line of words, `name=value`, in any order, and the body of its jobs; [`NAMES`] says
//! which words there are. It is written in one form only ([`Schedule::encode`]): that is what the log
//! has. In that line the blanks of the cron expression are written as `_`.
//!
//! Nothing here decides when a job is put: wall times in, wall times out ([`Timetable`]). Rules of time
//! zones are those of the system (`/usr/share/zoneinfo`), and for a zone that it does not have those
//! that are built in; they are read when a timetable is made.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CivilDateTime, Cron, CronDateTime, Resolution, Weekday};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::UsageError;
use crate::attributes::is_word;
use crate::types::{SECOND_NS, SETTING_NAME_MAX, SETTING_SIZE_MAX, is_tube_name};

/// Schedules of a server, at most.
pub const SCHEDULES_MAX: usize = 1000;
/// Firings that were missed and are made up for, at most: the last ones ([`Missed::All`]).
pub const MISSED_MAX: usize = 100;
/// Bytes of a cron expression, at most.
pub(crate) const CRON_SIZE_MAX: usize = 200;
/// Bytes of the name of a time zone, at most.
const ZONE_SIZE_MAX: usize = 64;

/// The names of a schedule's values: each with the form of its values, its meaning, and its default.
pub const NAMES: [(&str, &str, &str, &str); 8] = [
    (
        "cron",
        "five fields, or six with seconds, and _ for each blank",
        "when it fires",
        "must be there",
    ),
    (
        "tz",
        "a time zone, such as Europe/Berlin",
        "the clock that the expression is about",
        "UTC",
    ),
    ("tube", "a tube", "where its jobs are put", "must be there"),
    (
        "pri",
        "a number",
        "priority of its jobs: smaller is more urgent",
        "65536",
    ),
    (
        "ttr",
        "seconds, at least 1",
        "time that a worker has for a job",
        "120",
    ),
    (
        "key",
        "1 to 200 of the letters, digits and -+/;.$_()",
        "no job is put while another one of the tube has this key",
        "none",
    ),
    (
        "missed",
        "skip, once or all",
        "what becomes of firings that are more than a minute late",
        "skip",
    ),
    (
        "paused",
        "yes or no",
        "it does not fire, and nothing is made up for later",
        "no",
    ),
];

/// What becomes of firings that could not be done in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missed {
    /// None of them is made up for.
    #[default]
    Skip,
    /// The last of them is.
    Once,
    /// Each of them is, the last [`MISSED_MAX`] at most.
    All,
}

impl Missed {
    /// All of them.
    pub const ALL: [Missed; 3] = [Missed::Skip, Missed::Once, Missed::All];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Missed::Skip => "skip",
            Missed::Once => "once",
            Missed::All => "all",
        }
    }

    /// The one with this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Missed> {
        Missed::ALL.into_iter().find(|it| it.word() == word)
    }

    /// This many firings are made up for, at most.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            Missed::Skip => 0,
            Missed::Once => 1,
            Missed::All => MISSED_MAX,
        }
    }
}

/// Jobs that are put by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The cron expression: five fields, or six of which the first is seconds.
    pub cron: String,
    /// The name of the time zone that the expression is about.
    pub tz: String,
    /// The tube that its jobs are put into.
    pub tube: String,
    /// Priority of its jobs: smaller is more urgent.
    pub pri: u32,
    /// Seconds, at least 1.
    pub ttr: u32,
    /// At most one job of the tube has this key.
    pub key: Option<String>,
    /// What becomes of firings that could not be done in time.
    pub missed: Missed,
    /// It does not fire.
    pub is_paused: bool,
    /// The body of its jobs.
    pub body: Vec<u8>,
}

impl Default for Schedule {
    /// In UTC, priority 65,536, 120 seconds to run. Without an expression and a tube, which it needs.
    fn default() -> Schedule {
        Schedule {
            cron: String::new(),
            tz: "UTC".to_owned(),
            tube: String::new(),
            pri: 65_536,
            ttr: 120,
            key: None,
            missed: Missed::default(),
            is_paused: false,
            body: Vec::new(),
        }
    }
}

/// Checks the name of a schedule: the rules are those of tubes.
///
/// # Errors
/// A message: no schedule can have this name.
pub fn check_name(name: &str) -> Result<(), UsageError> {
    match is_tube_name(name.as_bytes()) {
        true => Ok(()),
        false => Err(UsageError::new(format_args!(
            "{name:?} is no name of a schedule: 1 to {SETTING_NAME_MAX} of the letters, digits and \
             -+/;.$_(), not beginning with -"
        ))),
    }
}

impl FromStr for Schedule {
    type Err = UsageError;

    /// Reads its words, with blanks between them. It has no body then. Whether there are such an
    /// expression and such a time zone is for [`Schedule::timetable`] to say.
    fn from_str(text: &str) -> Result<Schedule, UsageError> {
        let mut schedule = Schedule::default();
        let mut known = Vec::new();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let Some((name, value)) = word.split_once('=') else {
                return Err(UsageError::new(format_args!(
                    "'{word}' is not a name and a value: name=value"
                )));
            };
            let Some((name, form, ..)) = NAMES.iter().find(|(it, ..)| *it == name) else {
                return Err(UsageError::new(format_args!("a schedule has no '{name}'")));
            };
            if known.contains(&name) {
                return Err(UsageError::new(format_args!("{name} is there twice")));
            }
            known.push(name);
            if schedule.read(name, value).is_none() {
                return Err(UsageError::new(format_args!("{word}: {form}")));
            }
        }
        schedule.check_words()?;
        Ok(schedule)
    }
}

impl Schedule {
    /// `None`: there is no such value.
    fn read(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "cron" => self.cron = value.replace('_', " "),
            "tz" => self.tz = value.to_owned(),
            "tube" => self.tube = value.to_owned(),
            "pri" => self.pri = number(value)?,
            "ttr" => self.ttr = number(value)?,
            "key" => self.key = Some(value.to_owned()),
            "missed" => self.missed = Missed::parse(value)?,
            "paused" => {
                self.is_paused = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return None,
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// The expression with one blank between its fields.
    fn cron_fields(&self) -> String {
        let fields: Vec<&str> = self.cron.split(' ').filter(|it| !it.is_empty()).collect();
        fields.join(" ")
    }

    /// The names and values of what it says, in the order of [`NAMES`]. Those that have their default
    /// are left out, but for the time zone, the priority and the time to run.
    #[must_use]
    pub fn values(&self) -> Vec<(&'static str, String)> {
        let missed = (self.missed != Missed::default()).then(|| self.missed.word().to_owned());
        let all = [
            Some(self.cron_fields().replace(' ', "_")),
            Some(self.tz.clone()),
            Some(self.tube.clone()),
            Some(self.pri.to_string()),
            Some(self.ttr.to_string()),
            self.key.clone(),
            missed,
            self.is_paused.then(|| "yes".to_owned()),
        ];
        let names = NAMES.iter().map(|(name, ..)| *name);
        names
            .zip(all)
            .filter_map(|(name, it)| Some((name, it?)))
            .collect()
    }

    /// What the log has of it: its words, a line feed, and the body.
    ///
    /// # Errors
    /// A message: there is no such schedule, or it is too large.
    pub fn encode(&self) -> Result<Vec<u8>, UsageError> {
        self.timetable()?;
        let mut value = self.to_string().into_bytes();
        value.push(b'\n');
        value.extend_from_slice(&self.body);
        match value.len() <= SETTING_SIZE_MAX {
            true => Ok(value),
            false => Err(UsageError::new(format_args!(
                "the body has {} bytes too many: it and the words of the schedule may have {} \
                 together",
                value.len() - SETTING_SIZE_MAX,
                SETTING_SIZE_MAX - 1
            ))),
        }
    }

    /// The inverse of [`Schedule::encode`].
    ///
    /// # Errors
    /// A message: these are no bytes of a schedule.
    pub fn decode(value: &[u8]) -> Result<Schedule, UsageError> {
        let end = memchr::memchr(b'\n', value).ok_or("it has no end of its line")?;
        let line = std::str::from_utf8(&value[..end]);
        let line = line.map_err(|_| UsageError::from("its line is not text"))?;
        let mut schedule: Schedule = line.parse()?;
        schedule.body = value[end + 1..].to_vec();
        Ok(schedule)
    }

    /// What can be checked of it without a look at the expression and the time zone.
    fn check_words(&self) -> Result<(), UsageError> {
        if self.cron.is_empty() {
            return Err("a schedule needs cron=…, which says when it fires".into());
        }
        if self.tube.is_empty() {
            return Err("a schedule needs tube=…, where its jobs are put".into());
        }
        if !is_tube_name(self.tube.as_bytes()) {
            return Err(UsageError::new(format_args!("tube={}: a tube", self.tube)));
        }
        if let Some(key) = self.key.as_deref().filter(|key| !is_word(key.as_bytes())) {
            return Err(UsageError::new(format_args!("key={key}: {}", NAMES[5].1)));
        }
        if self.ttr == 0 {
            return Err(UsageError::new(format_args!("ttr=0: {}", NAMES[4].1)));
        }
        Ok(())
    }

    /// When it fires, paused or not. This is the check of all that it says, too, but for the size of its
    /// body.
    ///
    /// # Errors
    /// A message: there is no such schedule.
    pub fn timetable(&self) -> Result<Timetable, UsageError> {
        self.check_words()?;
        let (cron, zone) = (cron(&self.cron_fields())?, zone(&self.tz)?);
        match fires(&cron) {
            true => Ok(Timetable { cron, zone }),
            false => Err(UsageError::new(format_args!("'{}' never fires", self.cron))),
        }
    }

    /// The first firing after this wall time, nanoseconds since 1970; `None` if it never fires again, or
    /// there can be no such schedule.
    #[must_use]
    pub fn next_after(&self, wall_ns: i64) -> Option<i64> {
        self.timetable().ok()?.next_after(wall_ns)
    }
}

impl fmt::Display for Schedule {
    /// Its words, in the order of [`NAMES`], without the body.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.values().into_iter();
        let words: Vec<_> = words
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        f.write_str(&words.join(" "))
    }
}

/// Digits alone.
fn number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

fn cron(text: &str) -> Result<Cron, UsageError> {
    // `_` stands for a blank on a line.
    let is_right = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && byte != b'_';
    if text.len() > CRON_SIZE_MAX || !text.bytes().all(is_right) {
        return Err(UsageError::new(format_args!(
            "{text:?} is no cron expression: at most {CRON_SIZE_MAX} characters of ASCII"
        )));
    }
    let parser = CronParser::builder()
        .seconds(Seconds::Optional)
        .year(Year::Disallowed)
        .build();
    parser.parse(text).map_err(|error| {
        UsageError::new(format_args!(
            "'{text}' is no cron expression of five or six fields: {error}"
        ))
    })
}

/// Whether an expression fires at all. No field is a year, so all that fire do so in these years: the
/// days of the week of 29 February come back after 28 of them.
fn fires(cron: &Cron) -> bool {
    let begin = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    cron.find_next_occurrence(&Civil(begin), false).is_ok()
}

/// The last year in which the first firing is looked for. To look through all years that a date can have
/// takes 100 ms.
const YEAR_MAX: i32 = 2010;

/// A date and time without a time zone, up to [`YEAR_MAX`].
#[derive(Clone)]
struct Civil(DateTime);

impl CronDateTime for Civil {
    fn to_civil(&self) -> CivilDateTime {
        self.0.to_civil()
    }

    fn civil_weekday(&self) -> Weekday {
        self.0.civil_weekday()
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Civil>, CronError> {
        if civil.year() > YEAR_MAX {
            return Err(CronError::TimeSearchLimitExceeded);
        }
        Ok(match self.0.resolve_civil(civil)? {
            Resolution::Single(at) => Resolution::Single(Civil(at)),
            Resolution::Ambiguous(earlier, later) => {
                Resolution::Ambiguous(Civil(earlier), Civil(later))
            }
            Resolution::Gap => Resolution::Gap,
        })
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Civil> {
        self.0.checked_add_seconds(seconds).map(Civil)
    }

    fn cmp_instant(&self, other: &Civil) -> Ordering {
        self.0.cmp(&other.0)
    }
}

fn zone(name: &str) -> Result<TimeZone, UsageError> {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"_/+-".contains(&byte);
    let is_name = (1..=ZONE_SIZE_MAX).contains(&name.len()) && name.bytes().all(is_right);
    let found = is_name.then(|| {
        TimeZone::get(name)
            .or_else(|_| TimeZoneDatabase::bundled().get(name))
            .ok()
    });
    found.flatten().ok_or_else(|| {
        let near = near(name).unwrap_or_else(|| "a name such as Europe/Berlin".to_owned());
        UsageError::new(format_args!(
            "{name:?} is no time zone that is known here: {near}"
        ))
    })
}

/// The zone that may be meant, as a question: one of this city, or one whose name differs in two
/// letters at most.
fn near(name: &str) -> Option<String> {
    if name.len() > ZONE_SIZE_MAX {
        return None;
    }
    let wanted = name.to_ascii_lowercase().replace(' ', "_");
    let known = TimeZoneDatabase::bundled();
    let known = known.available().map(|it| it.as_str().to_owned());
    let found = known.filter_map(|it| {
        let lower = it.to_ascii_lowercase();
        let is_city = lower.rsplit('/').next() == Some(&*wanted);
        let differs = if is_city {
            0
        } else {
            letters_between(&lower, &wanted)
        };
        let is_near = differs <= 2 && 3 * differs <= wanted.len();
        is_near.then_some((differs, it))
    });
    found.min().map(|(_, it)| format!("is {it} meant?"))
}

/// How many letters have to be added, left out or changed to make one text of the other.
fn letters_between(one: &str, other: &str) -> usize {
    let other = other.as_bytes();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (nth, letter) in one.bytes().enumerate() {
        let mut before = row[0];
        row[0] = nth + 1;
        for (at, it) in other.iter().enumerate() {
            let changed = before + usize::from(letter != *it);
            before = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(before + 1);
        }
    }
    row[other.len()]
}

/// When a schedule fires.
#[derive(Debug, Clone)]
pub struct Timetable {
    cron: Cron,
    zone: TimeZone,
}

impl Timetable {
    /// The first firing after this wall time, nanoseconds since 1970.
    #[must_use]
    pub fn next_after(&self, wall_ns: i64) -> Option<i64> {
        let from = Timestamp::from_nanosecond(wall_ns.into()).ok()?;
        let from = from.to_zoned(self.zone.clone());
        let next = self.cron.find_next_occurrence(&from, false).ok()?;
        let next = i64::try_from(next.timestamp().as_nanosecond()).ok()?;
        (next > wall_ns).then_some(next)
    }

    /// The firings after this wall time, one after another.
    pub fn after(&self, wall_ns: i64) -> impl Iterator<Item = i64> + '_ {
        let first = self.next_after(wall_ns);
        std::iter::successors(first, |last| self.next_after(*last))
    }

    /// The firings after `after` and not after `upto`, the last `count` of them at most. Takes time for
    /// about as many as these, however many there are.
    #[must_use]
    pub fn last(&self, after: i64, upto: i64, count: usize) -> Vec<i64> {
        let mut span = 64 * SECOND_NS;
        loop {
            let from = upto.saturating_sub(span).max(after);
            let mut found: Vec<i64> = self.after(from).take_while(|it| *it <= upto).collect();
            if count == 0 || from == after || found.len() >= count {
                found.drain(..found.len().saturating_sub(count));
                return found;
            }
            span = span.saturating_mul(2);
        }
    }

    /// A wall time in its time zone, as RFC 3339 has it, to the second.
    #[must_use]
    pub fn shown(&self, wall_ns: i64) -> String {
        let Ok(at) = Timestamp::from_second(wall_ns.div_euclid(SECOND_NS)) else {
            return String::new();
        };
        let offset = self.zone.to_offset(at);
        at.display_with_offset(offset).to_string()
    }
}

#[cfg(test)]
mod tests;
