//! `bsd-wal archive rehearse`: a restore into a directory that is removed again, to know that it works
//! and how long it takes.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::human::Age;
use bsd::storage::RealFs;
use bsd::storage::disk::Fs;
use bsd::storage::format::LogId;
use bsd::storage::inspect::Access;
use bsd::types::{Now, SECOND_NS};
use bsd_archive::format::log_name;
use bsd_archive::restore::{Restored, choose_log, restore};
use bsd_archive::{Reader, RestoreError, Until};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;

use super::{Reading, open, parse_log, waiter};
use crate::human::{Meter, Size, count, timestamp};
use crate::report::{Report, Totals};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, inspect};

/// Milliseconds have this many nanoseconds.
const MS_NS: i64 = SECOND_NS / 1000;

#[derive(Args)]
pub(crate) struct RehearseArgs {
    /// The archive
    url: String,
    /// Restore below this directory, which needs room for the log; without it below the system's
    /// temporary directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep what was restored, and say where it is
    #[arg(long)]
    keep: bool,
    /// The log, if there are archives of several
    #[arg(long, value_name = "ID", value_parser = parse_log)]
    log: Option<LogId>,
    #[command(flatten)]
    read: Reading,
}

pub(crate) fn run(args: &RehearseArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let clock = Clock::start();
    let began = clock.now();
    let store = open(&args.url, &args.read.keys)?;
    let wait = waiter();
    let reader = Reader::new(&*store, &wait).with_connections(args.read.connections);
    let log = choose_log(&reader, args.log)?;
    let scratch = scratch(args.dir.as_deref())?;
    let dir = scratch.path().join("log");
    let mut rehearsed = Rehearsed {
        url: args.url.clone(),
        log: log_name(log),
        is_well: false,
        findings: Vec::new(),
        restored: None,
        kept: None,
    };
    match restored(&reader, log, &dir, began) {
        Ok((done, bytes)) => {
            let restored_at = clock.now();
            rehearsed.findings = findings(&done, &dir)?;
            rehearsed.restored = Some(Facts {
                restore_ms: ms(began, restored_at),
                verify_ms: ms(restored_at, clock.now()),
                behind_ms: began.wall_ns.saturating_sub(done.wall_ns) / MS_NS as u64,
                ..Facts::of(&done, bytes)
            });
        }
        // What was to be found out.
        Err(error @ RestoreError::Bad { .. }) => rehearsed.findings.push(error.to_string()),
        Err(error) => return Err(error.into()),
    }
    rehearsed.is_well = rehearsed.findings.is_empty();
    let is_kept = args.keep && rehearsed.restored.is_some();
    rehearsed.kept = is_kept.then(|| dir.display().to_string());
    rehearsed.tell(args.read.json, out)?;
    match is_kept {
        true => drop(scratch.keep()),
        false => remove(scratch)?,
    }
    Ok(match rehearsed.is_well {
        true => EXIT_OK,
        false => EXIT_DAMAGED,
    })
}

/// A directory that is removed when this goes.
fn scratch(dir: Option<&Path>) -> Result<TempDir, Failure> {
    let below = dir.map_or_else(std::env::temp_dir, Path::to_owned);
    let made = tempfile::Builder::new()
        .prefix("bsd-rehearsal-")
        .tempdir_in(&below);
    made.map_err(|error| {
        let show = below.display();
        Failure::Refused(format!(
            "no directory can be made in {show}: {error}; name one with --dir that has room for the log"
        ))
    })
}

fn remove(scratch: TempDir) -> Result<(), Failure> {
    let show = scratch.path().display().to_string();
    scratch.close().map_err(|error| {
        Failure::Refused(format!("cannot remove {show}: {error}; remove it by hand"))
    })
}

/// Restore the end of the archive, and the bytes of the objects that were read for it.
fn restored(
    reader: &Reader<'_>,
    log: LogId,
    dir: &Path,
    now: Now,
) -> Result<(Restored, u64), RestoreError> {
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let mut meter = Meter::start("restoring");
    let mut bytes = 0;
    let progress = &mut |done, total| {
        bytes = done;
        meter.show(done, total);
    };
    let done = restore(reader, log, Until::End, (&fs, dir), now, progress)?;
    Ok((done, bytes))
}

/// All that is not as it has to be.
fn findings(done: &Restored, dir: &Path) -> Result<Vec<String>, Failure> {
    let skipped = done.skipped.iter();
    let mut findings: Vec<String> = skipped
        .map(|bad| format!("{bad}; an older base was used"))
        .chain(done.missing.clone())
        .collect();
    let inspection = inspect(dir, Access::Shared)?;
    if !inspection.is_intact() {
        let totals = Totals::of(&inspection).phrases().join(", ");
        findings.push(format!("the restored log is damaged: {totals}"));
    }
    let jobs = inspection.job_count() as u64;
    if jobs != done.jobs {
        findings.push(format!(
            "the restored log has {}, and {} were restored",
            count(jobs, "job"),
            done.jobs
        ));
    }
    Ok(findings)
}

fn ms(from: Now, to: Now) -> u64 {
    u64::try_from(to.mono.since(from.mono) / MS_NS).unwrap_or(0)
}

#[derive(Serialize)]
struct Rehearsed {
    url: String,
    log: String,
    /// Nothing was found.
    is_well: bool,
    findings: Vec<String>,
    /// `null`: the archive is damaged so that nothing was restored.
    restored: Option<Facts>,
    /// The restored directory; `null`: it was removed.
    kept: Option<String>,
}

#[derive(Serialize)]
struct Facts {
    /// How long it took, to restore the log and then to verify it.
    restore_ms: u64,
    verify_ms: u64,
    /// Of the objects that were read.
    bytes: u64,
    base: u64,
    links: u64,
    records: u64,
    jobs: u64,
    /// Up to where everything is in the restored log …
    end: String,
    /// … and when that was durable, by the clock of the server.
    time: String,
    /// How long before the rehearsal began that was: what was acknowledged since would be lost.
    behind_ms: u64,
}

impl Facts {
    fn of(done: &Restored, bytes: u64) -> Facts {
        Facts {
            restore_ms: 0,
            verify_ms: 0,
            bytes,
            base: done.base,
            links: done.links,
            records: done.records,
            jobs: done.jobs,
            end: done.end.to_string(),
            time: timestamp(done.wall_ns),
            behind_ms: 0,
        }
    }
}

impl Report for Rehearsed {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        for finding in &self.findings {
            writeln!(out, "NOT WELL {finding}")?;
        }
        if let Some(it) = &self.restored {
            let seconds = |ms: u64| format!("{}.{:03} s", ms / 1000, ms % 1000);
            writeln!(
                out,
                "log {}: restored in {} ({} of objects), verified in {}: {}, base {} and {} after it\n\
                 it has everything up to {}, position {}, {} before this rehearsal began: if the \
                 machine had been lost then, what was acknowledged later would be lost",
                self.log,
                seconds(it.restore_ms),
                Size(it.bytes),
                seconds(it.verify_ms),
                count(it.jobs, "job"),
                it.base,
                count(it.records, "change"),
                it.time,
                it.end,
                Age(it.behind_ms / 1000),
            )?;
        }
        match &self.kept {
            Some(kept) => writeln!(out, "{kept}: kept; remove it when it is not needed"),
            None => Ok(()),
        }
    }
}
