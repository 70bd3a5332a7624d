//! A schedule, as it is set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::job::{PRIORITY_DEFAULT, TTR_DEFAULT, check_key, check_tube, check_word, seconds};

/// What the server puts by itself, and when. `docs/schedules.md` of bsd has the meaning of each.
///
/// ```
/// use bsd_client::Schedule;
///
/// let report = Schedule {
///     cron: "0 8 * * 1-5".into(),
///     tz: "Europe/Berlin".into(),
///     tube: "mail".into(),
///     body: b"daily-report".to_vec(),
///     ..Schedule::default()
/// };
/// # let _ = report;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// When it fires: five fields, or six with seconds.
    pub cron: String,
    /// The clock that the expression is about.
    pub tz: String,
    /// Where its jobs are put.
    pub tube: String,
    /// The body of its jobs.
    pub body: Vec<u8>,
    /// Their priority.
    pub pri: u32,
    /// The time that a worker has for one.
    pub ttr: Duration,
    /// No job is put while another one of the tube has this key.
    pub key: Option<String>,
    /// What becomes of firings that are more than a minute late.
    pub missed: Missed,
    /// It does not fire.
    pub paused: bool,
    /// Values that are not known here, by their names: a later server may have more.
    pub other: BTreeMap<String, String>,
}

/// What becomes of firings that the server missed while it was down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Missed {
    /// They are left out.
    #[default]
    Skip,
    /// One job is put for all of them.
    Once,
    /// Each is made up for, within limits.
    All,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            cron: String::new(),
            tz: "UTC".to_owned(),
            tube: String::new(),
            body: Vec::new(),
            pri: PRIORITY_DEFAULT,
            ttr: TTR_DEFAULT,
            key: None,
            missed: Missed::Skip,
            paused: false,
            other: BTreeMap::new(),
        }
    }
}

impl Schedule {
    /// The values as they stand in the command.
    pub(crate) fn values(&self) -> Result<String> {
        check_tube(&self.tube)?;
        let fields: Vec<_> = self.cron.split(' ').filter(|it| !it.is_empty()).collect();
        let cron = fields.join("_");
        if check_word(&cron).is_err() {
            let text = format!("{:?} is no cron expression", self.cron);
            return Err(Error::usage(text));
        }
        let mut line = format!("cron={cron} tube={}", self.tube);
        // What is not said has its default.
        let default = Schedule::default();
        if self.tz != default.tz {
            check_word(&self.tz)?;
            _ = write!(line, " tz={}", self.tz);
        }
        if self.pri != default.pri {
            _ = write!(line, " pri={}", self.pri);
        }
        if self.ttr != default.ttr {
            _ = write!(line, " ttr={}", seconds(self.ttr)?.max(1));
        }
        if let Some(key) = &self.key {
            check_key(key)?;
            _ = write!(line, " key={key}");
        }
        match self.missed {
            Missed::Skip => {}
            Missed::Once => line.push_str(" missed=once"),
            Missed::All => line.push_str(" missed=all"),
        }
        if self.paused {
            line.push_str(" paused=yes");
        }
        for (name, value) in &self.other {
            check_word(name)?;
            check_word(value)?;
            _ = write!(line, " {name}={value}");
        }
        Ok(line)
    }
}
