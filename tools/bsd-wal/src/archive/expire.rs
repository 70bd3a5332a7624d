//! `bsd-wal archive expire`: remove everything that is older than the time to keep.

use std::io::{self, Write};

use bsd::UsageError;
use bsd::clock::Clock;
use bsd::storage::format::LogId;
use bsd_archive::Reader;
use bsd_archive::expire::{Keep, Plan, plan};
use bsd_archive::format::log_name;
use bsd_archive::restore::choose_log;
use clap::Args;
use serde::Serialize;

use super::{Keys, OneState, not_read, open, parse_log, waiter};
use crate::human::{Meter, Size, count, note, parse_age, timestamp};
use crate::report::Report;
use crate::{EXIT_DAMAGED, EXIT_OK, Failure};

#[derive(Args)]
pub(crate) struct ExpireArgs {
    /// The archive
    url: String,
    /// Every moment of this time before its last change can still be restored, e.g. 30d, 12h
    #[arg(long, value_name = "AGE", value_parser = parse_keep)]
    keep: u64,
    /// Of each of the last N days, in UTC, the last base stays too, as one state; today is the first
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_daily: u64,
    /// Of each of the last N weeks, from Monday on, the last base stays too; this one is the first
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep_weekly: u64,
    /// The smallest number of bases that stay
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    bases: u64,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// The log, if there are archives of several
    #[arg(long, value_name = "ID", value_parser = parse_log)]
    log: Option<LogId>,
    #[command(flatten)]
    keys: Keys,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A number alone would be of seconds, and who means days could not take it back.
fn parse_keep(text: &str) -> Result<u64, UsageError> {
    match parse_age(text)? {
        age if age > 0 && text.ends_with(|last: char| last.is_ascii_digit()) => {
            Err(format!("{text} has no unit: {text}d are days, {text}h hours").into())
        }
        age => Ok(age),
    }
}

pub(crate) fn run(args: &ExpireArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let store = open(&args.url, &args.keys)?;
    let wait = waiter();
    let reader = Reader::new(&*store, &wait);
    let log = choose_log(&reader, args.log).map_err(not_read)?;
    let keep = Keep {
        age_ns: args.keep.saturating_mul(1_000_000_000),
        bases: usize::try_from(args.bases).unwrap_or(usize::MAX),
        days: args.keep_daily,
        weeks: args.keep_weekly,
    };
    let wall_ns = Clock::start().now().wall_ns;
    let found = {
        let mut meter = Meter::start("reading the oldest base that stays");
        plan(&reader, log, keep, wall_ns, &mut |done, total| {
            meter.show(done, total);
        })?
    };
    for bad in &found.skipped {
        note(format_args!(
            "{bad}; a sound base stays in its place, or all that is left of it; `bsd-wal archive verify` \
             reads the rest"
        ));
    }
    if let Some(plan) = found.plan.as_ref().filter(|_| !args.dry_run) {
        let mut meter = Meter::start("removing");
        let done = plan.carry_out(&*store, &mut |done, total| meter.show(done, total));
        done.map_err(|why| Failure::Refused(format!("the expiry is not complete: {why}")))?;
    }
    Expired::new(args, log, found.plan.as_ref()).tell(args.json, out)?;
    match found.skipped.is_empty() {
        true => Ok(EXIT_OK),
        false => Ok(EXIT_DAMAGED),
    }
}

#[derive(Serialize)]
struct Expired {
    url: String,
    log: String,
    dry_run: bool,
    bases: u64,
    links: u64,
    parts: u64,
    bytes: u64,
    /// `null`: nothing was to be removed.
    oldest: Option<Oldest>,
    /// States that stay before that base, each of them alone.
    apart: Vec<OneState>,
}

/// The oldest base that stays.
#[derive(Serialize)]
struct Oldest {
    base: u64,
    from: String,
    from_time: String,
}

impl Expired {
    fn new(args: &ExpireArgs, log: LogId, plan: Option<&Plan>) -> Expired {
        Expired {
            url: args.url.clone(),
            log: log_name(log),
            dry_run: args.dry_run,
            bases: plan.map_or(0, |plan| plan.bases),
            links: plan.map_or(0, Plan::links),
            parts: plan.map_or(0, Plan::parts),
            bytes: plan.map_or(0, Plan::bytes),
            oldest: plan.map(|plan| Oldest {
                base: plan.base,
                from: plan.from.to_string(),
                from_time: timestamp(plan.from_wall_ns),
            }),
            apart: plan
                .iter()
                .flat_map(|plan| &plan.apart)
                .map(OneState::from)
                .collect(),
        }
    }
}

impl Report for Expired {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(oldest) = &self.oldest else {
            return writeln!(out, "log {}: nothing is to be removed", self.log);
        };
        writeln!(
            out,
            "log {}: {} {}, {} and {} of bases, {}; the oldest moment that can be restored is now {}, \
             position {}, base {}",
            self.log,
            if self.dry_run {
                "would remove"
            } else {
                "removed"
            },
            count(self.bases, "base"),
            count(self.links, "link"),
            count(self.parts, "part"),
            Size(self.bytes),
            oldest.from_time,
            oldest.from,
            oldest.base
        )?;
        for OneState {
            base,
            position,
            time,
        } in &self.apart
        {
            writeln!(
                out,
                "  stays: {time} alone, position {position}, base {base}"
            )?;
        }
        Ok(())
    }
}
