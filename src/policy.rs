//! Policies of tubes: what a server does of itself for the jobs of a tube.
//!
//! A policy is a line of words, `name=value`, in any order; [`NAMES`] says which there are. It is
//! written in one form only ([`Policy`]'s `Display`): that is what the log has, and what is shown. What
//! is not named has its default, and a policy that names nothing does nothing.
//!
//! Nothing here decides when: numbers in, numbers out. The queue asks which tube has which policy
//! ([`Policies`]), the engine what becomes of a job ([`Policy::is_spent`], [`Policy::retry_delay`]).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::UsageError;
use crate::pattern::Pattern;
use crate::random::Random;
use crate::types::{JobId, is_tube_name};

/// The names of a policy's values: each with the form of its values, its meaning, and its default.
pub const NAMES: [(&str, &str, &str, &str); 13] = [
    (
        "delivery-limit",
        "a number, at least 1",
        "deliveries of a job that may fail",
        "none",
    ),
    (
        "dead-letter",
        "bury, delete, or a tube",
        "where a job goes whose limit is reached",
        "bury",
    ),
    (
        "retry-min",
        "seconds, at least 1",
        "delay after the first delivery that failed",
        "no delay",
    ),
    (
        "retry-multiplier",
        "1 to 10, with one decimal at most",
        "each further delay is the one before times this",
        "2",
    ),
    ("retry-max", "seconds", "the longest delay", "86400"),
    (
        "retry-jitter",
        "percent, at most 100",
        "a delay is longer or shorter by chance, by up to this percentage",
        "0",
    ),
    (
        "expire-after",
        "seconds, at least 1",
        "a job that was not reserved within this time after its put expires",
        "never",
    ),
    (
        "expired",
        "delete or dead-letter",
        "what becomes of a job that expires",
        "delete",
    ),
    (
        "max-jobs",
        "a number",
        "jobs of the tube at most: beyond, puts are refused",
        "none",
    ),
    (
        "max-bytes",
        "bytes",
        "bytes of the bodies of the tube's jobs at most: beyond, puts are refused",
        "none",
    ),
    (
        "max-reserved",
        "a number, at least 1",
        "jobs of the tube that are reserved at one time, at most",
        "none",
    ),
    (
        "rate",
        "a number per s, m or h, as 100/s",
        "reserves of the tube's jobs in that time at most, in bursts of one second",
        "none",
    ),
    (
        "fair",
        "on or off",
        "of the most urgent ready jobs, those of the group with the fewest reserved jobs come first",
        "off",
    ),
];

/// Names of settings that are policies, at most.
pub const POLICIES_MAX: usize = 10_000;
/// Of them those that are patterns, at most: each is compared with the name of each new tube.
pub const PATTERNS_MAX: usize = 256;

/// The longest delay where a policy names none, seconds: a day.
const RETRY_MAX: u32 = 86_400;
/// Times the delay before, in tenths, where a policy says nothing.
const MULTIPLIER_TENTHS: u32 = 20;

/// The name of a tube, or a pattern of names, that a policy can be for.
///
/// # Errors
/// A message: no tube has such a name.
pub fn tubes(text: &str) -> Result<Pattern, UsageError> {
    let pattern = Pattern::parse(text)?;
    match pattern.name() {
        Some(name) if !is_tube_name(name.as_bytes()) => {
            let text = text.escape_debug();
            Err(UsageError::new(format_args!("'{text}' is no tube's name")))
        }
        _ => Ok(pattern),
    }
}

/// Where a job goes whose limit is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeadLetter {
    /// It is buried in its tube.
    #[default]
    Bury,
    /// It is deleted.
    Delete,
    /// It is ready in this tube.
    Tube(Box<str>),
}

/// What becomes of a job that was not reserved in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expired {
    /// It is deleted.
    #[default]
    Delete,
    /// It goes where jobs go whose limit is reached.
    DeadLetter,
}

/// The delay before a job is ready again whose delivery failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// After the first failure, seconds.
    pub min: u32,
    /// Each further one is this many tenths of the one before, 10 to 100.
    pub multiplier_tenths: u32,
    /// The longest, seconds.
    pub max: u32,
    /// It is longer or shorter by up to this many percent.
    pub jitter: u32,
}

/// Reserves in a time, evenly, in bursts of one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Reserves, at least 1.
    pub count: u32,
    /// The time: a second, a minute, or an hour.
    pub per: Per,
}

/// The time that a rate is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // each is what its name says
pub enum Per {
    Second,
    Minute,
    Hour,
}

impl Per {
    const ALL: [(Per, &'static str, u64); 3] = [
        (Per::Second, "s", 1),
        (Per::Minute, "m", 60),
        (Per::Hour, "h", 3600),
    ];

    fn seconds(self) -> u64 {
        Per::ALL[self as usize].2
    }
}

impl Rate {
    /// Nanoseconds between two reserves.
    #[must_use]
    pub fn interval_ns(self) -> i64 {
        (self.per.seconds() * 1_000_000_000 / u64::from(self.count)) as i64
    }

    /// Reserves that may follow each other at once.
    #[must_use]
    pub(crate) fn burst(self) -> u64 {
        (u64::from(self.count) / self.per.seconds()).max(1)
    }
}

/// What a server does of itself for the jobs of a tube. The default does nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// Deliveries of a job that may fail: with the last one it goes to [`Policy::dead_letter`].
    pub delivery_limit: Option<u32>,
    /// Where a job goes whose limit is reached.
    pub dead_letter: DeadLetter,
    /// The delay before the next delivery.
    pub retry: Option<Retry>,
    /// Seconds from its put, or from when it became a dead letter, after which a job expires that was
    /// not reserved.
    pub expire_after: Option<u32>,
    /// What becomes of it then.
    pub expired: Expired,
    /// Jobs of the tube at most.
    pub max_jobs: Option<u64>,
    /// Bytes of their bodies at most.
    pub max_bytes: Option<u64>,
    /// Jobs of the tube that are reserved at one time, at most.
    pub max_reserved: Option<u32>,
    /// Reserves in a time at most.
    pub rate: Option<Rate>,
    /// Of the most urgent ready jobs, those of the group with the fewest reserved jobs come first.
    pub fair: bool,
}

impl Policy {
    /// The limit is reached by this many deliveries that failed.
    #[must_use]
    pub fn is_spent(&self, failures: u32) -> bool {
        self.delivery_limit.is_some_and(|limit| failures >= limit)
    }

    /// The delay before a job is delivered again of which this many deliveries have failed, at least 1.
    /// The same for the same job and count, on every machine.
    #[must_use]
    pub fn retry_delay(&self, id: JobId, failures: u32) -> Duration {
        let Some(retry) = self.retry else {
            return Duration::ZERO;
        };
        let delay_ms = retry.without_jitter_ms(failures);
        let spread = delay_ms / 100 * u64::from(retry.jitter);
        let mut chance = Random::new(id.0).fork(failures.into());
        Duration::from_millis(delay_ms - spread + chance.below(2 * spread + 1))
    }

    /// A delivery that fails is to be looked at.
    #[must_use]
    pub fn acts_on_failures(&self) -> bool {
        self.delivery_limit.is_some() || self.retry.is_some()
    }
}

impl Retry {
    fn without_jitter_ms(self, failures: u32) -> u64 {
        let max = u64::from(self.max) * 1000;
        let mut delay = u64::from(self.min) * 1000;
        if self.multiplier_tenths == 10 {
            return delay.min(max);
        }
        // It grows by a tenth at least, so this ends soon.
        for _ in 1..failures {
            if delay >= max {
                break;
            }
            delay = delay * u64::from(self.multiplier_tenths) / 10;
        }
        delay.min(max)
    }
}

impl FromStr for Policy {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Policy, UsageError> {
        let mut values = Values::default();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let Some((name, value)) = word.split_once('=') else {
                return Err(UsageError::new(format_args!(
                    "'{}' is not a name and a value, as delivery-limit=8",
                    word.escape_debug()
                )));
            };
            values.read(name, value)?;
        }
        values.into_policy()
    }
}

/// The values of a policy as they are read.
#[derive(Default)]
struct Values {
    seen: Vec<usize>,
    policy: Policy,
    retry_min: Option<u32>,
    retry_multiplier: Option<u32>,
    retry_max: Option<u32>,
    retry_jitter: Option<u32>,
}

impl Values {
    fn read(&mut self, name: &str, value: &str) -> Result<(), UsageError> {
        let at = NAMES.iter().position(|(known, ..)| *known == name);
        let Some(at) = at else {
            let known: Vec<&str> = NAMES.iter().map(|(known, ..)| *known).collect();
            return Err(UsageError::new(format_args!(
                "a policy has no '{}': it has {}",
                name.escape_debug(),
                known.join(", ")
            )));
        };
        if self.seen.contains(&at) {
            return Err(UsageError::new(format_args!("{name} is there twice")));
        }
        self.seen.push(at);
        self.take(name, value).ok_or_else(|| {
            UsageError::new(format_args!(
                "{name}={} is not right: {name} is {}",
                value.escape_debug(),
                NAMES[at].1
            ))
        })
    }

    fn take(&mut self, name: &str, value: &str) -> Option<()> {
        let policy = &mut self.policy;
        match name {
            "delivery-limit" => policy.delivery_limit = Some(number(value, 1)?),
            "dead-letter" => policy.dead_letter = dead_letter(value)?,
            "retry-min" => self.retry_min = Some(number(value, 1)?),
            "retry-multiplier" => self.retry_multiplier = Some(tenths(value)?),
            "retry-max" => self.retry_max = Some(number(value, 1)?),
            "retry-jitter" => self.retry_jitter = Some(number(value, 0).filter(|it| *it <= 100)?),
            "expire-after" => policy.expire_after = Some(number(value, 1)?),
            "expired" => {
                policy.expired = match value {
                    "delete" => Expired::Delete,
                    "dead-letter" => Expired::DeadLetter,
                    _ => return None,
                }
            }
            "max-jobs" => policy.max_jobs = Some(number(value, 0)?),
            "max-bytes" => policy.max_bytes = Some(number(value, 0)?),
            "max-reserved" => policy.max_reserved = Some(number(value, 1)?),
            "rate" => policy.rate = Some(rate(value)?),
            "fair" => {
                policy.fair = match value {
                    "on" => true,
                    "off" => false,
                    _ => return None,
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn into_policy(self) -> Result<Policy, UsageError> {
        let mut policy = self.policy;
        let others = (self.retry_multiplier, self.retry_max, self.retry_jitter);
        match self.retry_min {
            None if others != (None, None, None) => {
                return Err("retry-… values say nothing without retry-min".into());
            }
            None => {}
            Some(min) => {
                let max = self.retry_max.unwrap_or(RETRY_MAX.max(min));
                if max < min {
                    return Err("retry-max is less than retry-min".into());
                }
                policy.retry = Some(Retry {
                    min,
                    multiplier_tenths: self.retry_multiplier.unwrap_or(MULTIPLIER_TENTHS),
                    max,
                    jitter: self.retry_jitter.unwrap_or(0),
                });
            }
        }
        if policy.expired != Expired::Delete && policy.expire_after.is_none() {
            return Err("expired=… says nothing without expire-after".into());
        }
        Ok(policy)
    }
}

/// Digits alone, and no less than this.
fn number<N: FromStr + PartialOrd + TryFrom<u8>>(text: &str, least: u8) -> Option<N> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_plain)?;
    (number >= N::try_from(least).ok()?).then_some(number)
}

/// 1 to 10, with one decimal at most, in tenths.
fn tenths(text: &str) -> Option<u32> {
    let (whole, decimal) = text.split_once('.').unwrap_or((text, "0"));
    let is_one = decimal.len() == 1;
    let tenths = number::<u32>(whole, 0)?.checked_mul(10)?;
    let tenths = tenths.checked_add(number(decimal, 0)?)?;
    ((10..=100).contains(&tenths) && is_one).then_some(tenths)
}

fn dead_letter(text: &str) -> Option<DeadLetter> {
    match text {
        "bury" => Some(DeadLetter::Bury),
        "delete" => Some(DeadLetter::Delete),
        tube => is_tube_name(tube.as_bytes()).then(|| DeadLetter::Tube(tube.into())),
    }
}

fn rate(text: &str) -> Option<Rate> {
    let (count, per) = text.split_once('/')?;
    let (per, ..) = Per::ALL.into_iter().find(|(_, word, _)| *word == per)?;
    let count = number(count, 1)?;
    Some(Rate { count, per })
}

impl fmt::Display for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeadLetter::Bury => "bury",
            DeadLetter::Delete => "delete",
            DeadLetter::Tube(tube) => tube,
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, Per::ALL[self.per as usize].1)
    }
}

impl Policy {
    /// The names and values of what it says, in the order of [`NAMES`].
    #[must_use]
    pub fn values(&self) -> Vec<(&'static str, String)> {
        fn shown<T: fmt::Display>(value: Option<T>) -> Option<String> {
            value.map(|value| value.to_string())
        }
        let retry = self.retry;
        let tenths = retry.map(|it| it.multiplier_tenths);
        let decimal = |tenths: u32| match tenths % 10 {
            0 => (tenths / 10).to_string(),
            rest => format!("{}.{rest}", tenths / 10),
        };
        let is_buried = self.dead_letter == DeadLetter::Bury;
        let all = [
            shown(self.delivery_limit),
            shown((!is_buried).then_some(&self.dead_letter)),
            shown(retry.map(|it| it.min)),
            tenths.map(decimal),
            shown(retry.map(|it| it.max)),
            shown(retry.map(|it| it.jitter)),
            shown(self.expire_after),
            (self.expired == Expired::DeadLetter).then(|| "dead-letter".to_owned()),
            shown(self.max_jobs),
            shown(self.max_bytes),
            shown(self.max_reserved),
            shown(self.rate),
            self.fair.then(|| "on".to_owned()),
        ];
        let names = NAMES.iter().map(|(name, ..)| *name);
        names
            .zip(all)
            .filter_map(|(name, it)| Some((name, it?)))
            .collect()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.values().into_iter();
        let words: Vec<_> = words
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        f.write_str(&words.join(" "))
    }
}

/// The policies of all tubes.
#[derive(Debug, Default)]
pub struct Policies {
    named: BTreeMap<Box<str>, Arc<Policy>>,
    /// The longest first, so that the first one that matches counts.
    patterns: Vec<(Pattern, Arc<Policy>)>,
}

impl Policies {
    /// True without any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.patterns.is_empty()
    }

    /// Whether there is room for one more of this name.
    #[must_use]
    pub fn has_room_for(&self, name: &Pattern) -> bool {
        match name.name() {
            Some(name) => self.named.len() < POLICIES_MAX || self.named.contains_key(name),
            None => self.patterns.len() < PATTERNS_MAX || self.with(name).is_some(),
        }
    }

    fn with(&self, pattern: &Pattern) -> Option<usize> {
        self.patterns.iter().position(|(known, _)| known == pattern)
    }

    /// The policy of a tube, and the name or the pattern under which it was set: its own, or that of the
    /// longest pattern that matches; of two as long, the first in the order of the alphabet.
    #[must_use]
    pub fn of(&self, tube: &str) -> Option<(&str, &Arc<Policy>)> {
        if let Some((name, policy)) = self.named.get_key_value(tube) {
            return Some((name, policy));
        }
        let mut patterns = self.patterns.iter();
        let (pattern, policy) = patterns.find(|(pattern, _)| pattern.matches(tube))?;
        Some((pattern.text(), policy))
    }

    /// Set the policy of a tube, or of the tubes that match a pattern; `None` removes it.
    pub fn set(&mut self, name: &Pattern, policy: Option<Policy>) {
        let policy = policy.map(Arc::new);
        if let Some(tube) = name.name() {
            match policy {
                Some(policy) => _ = self.named.insert(tube.into(), policy),
                None => _ = self.named.remove(tube),
            }
            return;
        }
        self.patterns.retain(|(known, _)| known != name);
        if let Some(policy) = policy {
            let order = |it: &Pattern| (usize::MAX - it.text().len(), it.text().to_owned());
            let of_new = order(name);
            let at = self.patterns.partition_point(|(it, _)| order(it) < of_new);
            self.patterns.insert(at, (name.clone(), policy));
        }
    }

    /// All of them: first those of tubes in the order of their names, then the patterns, the longest
    /// first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Policy)> {
        let named = self.named.iter().map(|(name, policy)| (&**name, &**policy));
        let patterns = self.patterns.iter();
        named.chain(patterns.map(|(pattern, policy)| (pattern.text(), &**policy)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    #[test]
    fn a_policy_is_read_and_written_in_one_form() {
        let all = "delivery-limit=8 dead-letter=mail-dead retry-min=5 retry-multiplier=1.5 \
                   retry-max=600 retry-jitter=10 expire-after=3600 expired=dead-letter max-jobs=1000 \
                   max-bytes=1048576 max-reserved=20 rate=100/s fair=on";
        assert_eq!(policy(all).to_string(), all);
        assert_eq!(policy(all).values().len(), NAMES.len());
        let backwards: Vec<&str> = all.split(' ').rev().collect();
        assert_eq!(policy(&backwards.join("  ")), policy(all));
        let short = policy("retry-min=5");
        let long = "retry-min=5 retry-multiplier=2 retry-max=86400 retry-jitter=0";
        assert_eq!(short.to_string(), long);
        assert_eq!(
            policy("dead-letter=bury expired=delete fair=off expire-after=1").to_string(),
            "expire-after=1"
        );
        assert_eq!(policy(""), Policy::default());
        assert_eq!(Policy::default().to_string(), "");
        assert_eq!(policy("retry-min=100000").retry.unwrap().max, 100_000);
    }

    #[test]
    fn what_is_no_policy_is_refused_with_the_reason() {
        for (text, reason) in [
            ("delivery-limit", "not a name and a value"),
            ("limit=5", "a policy has no 'limit'"),
            ("delivery-limit=0", "a number, at least 1"),
            ("delivery-limit=+1", "a number, at least 1"),
            ("delivery-limit=4294967296", "a number, at least 1"),
            ("delivery-limit=1 delivery-limit=2", "there twice"),
            ("dead-letter=", "bury, delete, or a tube"),
            ("dead-letter=-a", "bury, delete, or a tube"),
            ("dead-letter=a*", "bury, delete, or a tube"),
            ("retry-max=5", "without retry-min"),
            ("retry-min=5 retry-max=4", "less than retry-min"),
            ("retry-min=5 retry-multiplier=0.9", "1 to 10"),
            ("retry-min=5 retry-multiplier=10.1", "1 to 10"),
            ("retry-min=5 retry-multiplier=1.55", "1 to 10"),
            ("retry-min=5 retry-multiplier=1.", "1 to 10"),
            ("retry-min=5 retry-multiplier=429496730", "1 to 10"),
            ("retry-min=5 retry-multiplier=429496729.9", "1 to 10"),
            ("retry-min=5 retry-jitter=101", "at most 100"),
            ("expired=delete-it expire-after=1", "delete or dead-letter"),
            ("expired=dead-letter", "without expire-after"),
            ("rate=100", "a number per s, m or h"),
            ("rate=0/s", "a number per s, m or h"),
            ("rate=1/d", "a number per s, m or h"),
            ("fair=yes", "on or off"),
        ] {
            let error = text.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn delays_grow_up_to_the_longest_and_never_overflow() {
        let seconds = |policy: &Policy, failures| policy.retry_delay(JobId(7), failures).as_secs();
        let doubled = policy("retry-min=5 retry-max=60");
        let delays: Vec<u64> = (1..7).map(|nth| seconds(&doubled, nth)).collect();
        assert_eq!(delays, [5, 10, 20, 40, 60, 60]);
        assert_eq!(seconds(&doubled, u32::MAX), 60);
        let huge = policy(
            "retry-min=4294967295 retry-multiplier=10 retry-max=4294967295 retry-jitter=100",
        );
        let longest = 2 * u64::from(u32::MAX);
        assert!(seconds(&huge, u32::MAX) <= longest);
        let same = policy("retry-min=3 retry-multiplier=1");
        assert_eq!(seconds(&same, u32::MAX), 3);
        let slow = policy("retry-min=1 retry-multiplier=1.1 retry-max=4294967295");
        assert_eq!(seconds(&slow, u32::MAX), u32::MAX.into());
        assert_eq!(seconds(&Policy::default(), 3), 0);
    }

    #[test]
    fn chance_stays_within_its_bounds_and_is_the_same_each_time() {
        let policy = policy("retry-min=100 retry-multiplier=1 retry-jitter=20");
        let delays: Vec<Duration> = (1..200)
            .map(|id| policy.retry_delay(JobId(id), 1))
            .collect();
        let again: Vec<Duration> = (1..200)
            .map(|id| policy.retry_delay(JobId(id), 1))
            .collect();
        assert_eq!(delays, again);
        let (least, most) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
        assert!(*least >= Duration::from_secs(80) && *least < Duration::from_secs(85));
        assert!(*most <= Duration::from_secs(120) && *most > Duration::from_secs(115));
        assert_ne!(
            policy.retry_delay(JobId(1), 1),
            policy.retry_delay(JobId(1), 2)
        );
    }

    #[test]
    fn rates_say_how_far_apart_reserves_are_and_how_many_come_at_once() {
        let rate = |text| policy(&format!("rate={text}")).rate.unwrap();
        for (text, interval_ns, burst) in [
            ("100/s", 10_000_000, 100),
            ("1/s", 1_000_000_000, 1),
            ("30/m", 2_000_000_000, 1),
            ("600/m", 100_000_000, 10),
            ("1/h", 3_600_000_000_000, 1),
        ] {
            let rate = rate(text);
            assert_eq!(
                (rate.interval_ns(), rate.burst()),
                (interval_ns, burst),
                "{text}"
            );
        }
    }

    #[test]
    fn a_tube_has_its_own_policy_or_that_of_the_longest_pattern() {
        let mut policies = Policies::default();
        let mut set = |name: &str, text: &str| {
            let policy = (!text.is_empty()).then(|| policy(text));
            policies.set(&Pattern::parse(name).unwrap(), policy);
            ["mail-b", "mail-urgent-b", "other"].map(|tube| {
                policies
                    .of(tube)
                    .map(|(source, policy)| (source.to_owned(), policy.delivery_limit))
            })
        };
        let of = |name: &str, limit| Some((name.to_owned(), Some(limit)));
        assert_eq!(
            set("*", "delivery-limit=1"),
            [of("*", 1), of("*", 1), of("*", 1)]
        );
        let longer = set("mail-*", "delivery-limit=2");
        assert_eq!(longer, [of("mail-*", 2), of("mail-*", 2), of("*", 1)]);
        let longest = set("mail-urgent-*", "delivery-limit=3");
        assert_eq!(longest[1], of("mail-urgent-*", 3));
        assert_eq!(set("mail-?", "delivery-limit=4")[0], of("mail-*", 2));
        assert_eq!(set("mail-b", "delivery-limit=5")[0], of("mail-b", 5));
        assert_eq!(set("mail-b", "")[0], of("mail-*", 2));
        assert_eq!(set("mail-*", "delivery-limit=6")[0], of("mail-*", 6));
        assert_eq!(set("mail-*", "")[0], of("mail-?", 4));
        assert_eq!(policies.iter().count(), 3);
    }
}
