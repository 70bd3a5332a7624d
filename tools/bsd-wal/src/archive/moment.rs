//! An archive as it was at one moment, for commands that read a directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::UsageError;
use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::disk::Fs;
use bsd::storage::format::LogId;
use bsd_archive::format::log_name;
use bsd_archive::restore::{choose_log, restore};
use bsd_archive::{Reader, Until};
use clap::Args;
use tempfile::TempDir;

use super::{Keys, open, parse_log, parse_until, tell_faults, waiter};
use crate::Failure;
use crate::human::{Meter, note, timestamp};

#[derive(Args)]
pub(crate) struct Moment {
    /// Of an archive, the log as it was durable then: a time (RFC 3339, by the clock of the server
    /// that archived), a position SEGMENT:OFFSET, a link link:NUMBER or a base base:NUMBER as `archive
    /// ls` shows them
    #[arg(long, value_name = "TIME|POSITION|LINK|BASE", value_parser = parse_asked)]
    until: Option<Asked>,
    /// Of archives of several logs, this one
    #[arg(long, value_name = "ID", value_parser = parse_log)]
    log: Option<LogId>,
    #[command(flatten)]
    keys: Keys,
}

/// A moment as it was typed.
#[derive(Debug, Clone)]
struct Asked {
    text: String,
    until: Until,
}

fn parse_asked(text: &str) -> Result<Asked, UsageError> {
    let until = parse_until(text)?;
    let text = text.to_owned();
    Ok(Asked { text, until })
}

impl Moment {
    /// `dir` and this, to be typed again.
    pub(crate) fn on_a_command_line(&self, dir: &Path) -> String {
        let mut line = dir.display().to_string();
        if let Some(asked) = &self.until {
            line = format!("{line} --until {}", asked.text);
        }
        if let Some(log) = self.log {
            line = format!("{line} --log {}", log_name(log));
        }
        line + &self.keys.on_a_command_line()
    }

    /// # Errors
    /// It was asked for, and `dir` is no archive.
    pub(crate) fn refuse_without_archive(&self, dir: &Path) -> Result<(), Failure> {
        let flag = match (&self.until, self.log) {
            (Some(_), _) => "--until",
            (_, Some(_)) => "--log",
            (None, None) if !self.keys.is_empty() => "--archive-key",
            (None, None) => return Ok(()),
        };
        Err(Failure::Refused(format!(
            "{flag} is for archives, and {} is a directory: name the archive by its URL, such as \
             file:///DIR",
            dir.display()
        )))
    }

    /// Restore it into a directory that is removed with the first of the returned values; the last one
    /// is the exit code of that.
    pub(crate) fn restore(&self, url: &str) -> Result<(TempDir, PathBuf, u8), Failure> {
        let store = open(url, &self.keys)?;
        let wait = waiter();
        let reader = Reader::new(&*store, &wait);
        let log = choose_log(&reader, self.log)?;
        let temporary = std::env::temp_dir();
        let copy = tempfile::Builder::new().prefix("bsd-wal-").tempdir();
        let copy = copy.map_err(|error| {
            let show = temporary.display();
            Failure::Refused(format!(
                "no directory can be made in {show}: {error}; set TMPDIR to one with room for the log"
            ))
        })?;
        let dir = copy.path().join("log");
        let fs: Arc<dyn Fs> = Arc::new(RealFs);
        let until = self.until.as_ref().map_or(Until::End, |asked| asked.until);
        let restored = {
            let mut meter = Meter::start("restoring");
            let now = Clock::start().now();
            restore(&reader, log, until, (&fs, &dir), now, &mut |done, total| {
                meter.show(done, total);
            })?
        };
        let code = tell_faults(&restored);
        note(format_args!(
            "{url}: the log as it was at {}, up to {}",
            timestamp(restored.wall_ns),
            restored.end
        ));
        Ok((copy, dir, code))
    }
}
