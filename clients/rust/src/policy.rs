//! The policy of a tube, as it is set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::job::{check_tube, check_word, seconds};

/// What the server does by itself for the jobs of a tube. A policy is set as a whole: what is left out
/// has its default. `docs/policies.md` of bsd has the meaning of each.
///
/// ```
/// use bsd_client::{DeadLetter, Policy};
/// use std::time::Duration;
///
/// let policy = Policy {
///     delivery_limit: Some(8),
///     dead_letter: DeadLetter::Tube("mail-dead".into()),
///     retry_min: Some(Duration::from_secs(5)),
///     ..Policy::default()
/// };
/// # let _ = policy;
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// Deliveries of a job that may fail.
    pub delivery_limit: Option<u32>,
    /// Where a job goes whose limit is reached.
    pub dead_letter: DeadLetter,
    /// Delay after the first delivery that failed.
    pub retry_min: Option<Duration>,
    /// Each further delay is the one before times this: 1 to 10, with one decimal at most.
    pub retry_multiplier: Option<f64>,
    /// The longest delay.
    pub retry_max: Option<Duration>,
    /// A delay is longer or shorter by chance, by up to this many percent.
    pub retry_jitter: Option<u32>,
    /// A job that was not reserved within this time after its put expires.
    pub expire_after: Option<Duration>,
    /// An expired job goes where `dead_letter` says, and is not deleted.
    pub expired_to_dead_letter: bool,
    /// Jobs of the tube at most.
    pub max_jobs: Option<u64>,
    /// Bytes of the bodies of the tube's jobs at most.
    pub max_bytes: Option<u64>,
    /// Jobs of the tube that are reserved at one time, at most.
    pub max_reserved: Option<u32>,
    /// Reserves in a time, such as `100/s`, `10/m` or `1/h`.
    pub rate: Option<String>,
    /// Groups take turns.
    pub fair: bool,
    /// Values that are not known here, by their names: a later server may have more.
    pub other: BTreeMap<String, String>,
}

/// Where a job goes whose limit is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DeadLetter {
    /// It is buried in its tube.
    #[default]
    Bury,
    /// It is deleted.
    Delete,
    /// It is ready in this tube.
    Tube(String),
}

impl Policy {
    /// The values as they stand in the command; none if all are the defaults.
    pub(crate) fn values(&self) -> Result<String> {
        let mut line = String::new();
        let mut say = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let blank = if line.is_empty() { "" } else { " " };
                _ = write!(line, "{blank}{name}={value}");
            }
        };
        let time = |time: Option<Duration>| time.map(seconds).transpose();
        say(
            "delivery-limit",
            self.delivery_limit.map(|it| it.to_string()),
        );
        say("dead-letter", self.dead_letter()?);
        say("retry-min", time(self.retry_min)?.map(|it| it.to_string()));
        say(
            "retry-multiplier",
            self.retry_multiplier.map(|it| it.to_string()),
        );
        say("retry-max", time(self.retry_max)?.map(|it| it.to_string()));
        say("retry-jitter", self.retry_jitter.map(|it| it.to_string()));
        say(
            "expire-after",
            time(self.expire_after)?.map(|it| it.to_string()),
        );
        say(
            "expired",
            self.expired_to_dead_letter
                .then(|| "dead-letter".to_owned()),
        );
        say("max-jobs", self.max_jobs.map(|it| it.to_string()));
        say("max-bytes", self.max_bytes.map(|it| it.to_string()));
        say("max-reserved", self.max_reserved.map(|it| it.to_string()));
        say("rate", self.rate()?);
        say("fair", self.fair.then(|| "on".to_owned()));
        for (name, value) in &self.other {
            check_word(name)?;
            check_word(value)?;
            say(name, Some(value.clone()));
        }
        Ok(line)
    }

    fn dead_letter(&self) -> Result<Option<String>> {
        match &self.dead_letter {
            DeadLetter::Bury => Ok(None),
            DeadLetter::Delete => Ok(Some("delete".to_owned())),
            DeadLetter::Tube(tube) if matches!(&**tube, "bury" | "delete") => Err(Error::usage(
                format!("a tube for dead letters cannot be called {tube}"),
            )),
            DeadLetter::Tube(tube) => check_tube(tube).map(|()| Some(tube.clone())),
        }
    }

    fn rate(&self) -> Result<Option<String>> {
        let Some(rate) = &self.rate else {
            return Ok(None);
        };
        let is_rate = rate.split_once('/').is_some_and(|(number, unit)| {
            number.parse::<u32>().is_ok() && matches!(unit, "s" | "m" | "h")
        });
        match is_rate {
            true => Ok(Some(rate.clone())),
            false => Err(Error::usage(format!("{rate:?} is no rate, as 100/s is"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_says_nothing_and_each_value_is_said_once() {
        assert_eq!(Policy::default().values().unwrap(), "");
        let policy = Policy {
            delivery_limit: Some(8),
            dead_letter: DeadLetter::Tube("dead".to_owned()),
            retry_min: Some(Duration::from_secs(5)),
            retry_multiplier: Some(1.5),
            rate: Some("10/m".to_owned()),
            fair: true,
            ..Policy::default()
        };
        assert_eq!(
            policy.values().unwrap(),
            "delivery-limit=8 dead-letter=dead retry-min=5 retry-multiplier=1.5 rate=10/m fair=on"
        );
        let wrong = Policy {
            rate: Some("1/s fair=on".to_owned()),
            ..Policy::default()
        };
        assert!(wrong.values().is_err());
    }
}
