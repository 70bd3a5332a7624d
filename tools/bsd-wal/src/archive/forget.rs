//! `bsd-wal archive forget`: the archive of one log goes.

use std::io::{self, Write};

use bsd::storage::format::LogId;
use bsd_archive::chain::logs;
use bsd_archive::forget::{forget, objects};
use bsd_archive::format::log_name;
use bsd_archive::labels::pinned;
use clap::Args;
use serde::Serialize;

use super::{Keys, open, parse_log};
use crate::human::{Meter, Size, count};
use crate::report::Report;
use crate::{EXIT_OK, Failure};

#[derive(Args)]
pub(super) struct ForgetArgs {
    /// The archive
    url: String,
    /// The log, as `ls` shows it
    #[arg(value_name = "ID", value_parser = parse_log)]
    log: LogId,
    /// Remove it; otherwise only say what there is of it
    #[arg(long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ForgetArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    // It removes objects by their names, and opens none.
    let store = open(&args.url, &Keys::default())?;
    let log = log_name(args.log);
    if !logs(&*store)?.contains(&args.log) {
        let url = &args.url;
        return Err(Failure::Refused(format!(
            "there is no archive of the log {log} at {url}"
        )));
    }
    let pinned = pinned(&*store, args.log)?;
    if let Some(base) = pinned.first() {
        return Err(Failure::Refused(format!(
            "the archive of the log {log} has {}, such as base {base}: remove {} first, with `bsd-wal \
             archive unpin`",
            count(pinned.len() as u64, "pinned base"),
            if pinned.len() == 1 {
                "that pin"
            } else {
                "those pins"
            }
        )));
    }
    let (names, bytes) = objects(&*store, args.log)?;
    if args.yes {
        let mut meter = Meter::start("removing");
        forget(&*store, args.log, &names, &mut |done, total| {
            meter.show(done, total);
        })?;
    }
    let forgotten = Forgotten {
        log,
        removed: args.yes,
        objects: names.len() as u64,
        bytes,
    };
    forgotten.tell(args.json, out)?;
    Ok(EXIT_OK)
}

/// What there was of the log.
#[derive(Serialize)]
struct Forgotten {
    log: String,
    /// `false`: all of it is still there.
    removed: bool,
    objects: u64,
    bytes: u64,
}

impl Report for Forgotten {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let Forgotten { log, objects, .. } = self;
        let what = format!("{} ({})", count(*objects, "object"), Size(self.bytes));
        match self.removed {
            true => writeln!(out, "log {log}: {what} removed"),
            false => writeln!(
                out,
                "log {log}: {what}; nothing was removed: with --yes all of it is, and no server and \
                 no restore can use it any more"
            ),
        }
    }
}
