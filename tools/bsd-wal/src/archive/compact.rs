//! `bsd-wal archive compact`: join links that have aged into larger objects.

use std::io::{self, Write};

use bsd::clock::Clock;
use bsd::storage::format::LogId;
use bsd_archive::format::log_name;
use bsd_archive::levels::{Pass, pass};
use bsd_archive::restore::choose_log;
use bsd_archive::{Levels, Reader};
use clap::Args;
use serde::Serialize;

use super::{Reading, open_with, parse_log, waiter};
use crate::human::{Meter, Size, count, parse_age};
use crate::report::Report;
use crate::{EXIT_DAMAGED, EXIT_OK, Failure};

/// Two passes make both levels, and one finds nothing more; others may be at work.
const PASSES_MAX: usize = 16;

#[derive(Args)]
pub(crate) struct CompactArgs {
    /// The archive
    url: String,
    /// Links that are younger than this stay objects of their own, e.g. 1h, 1d
    #[arg(long, value_name = "AGE", default_value = "1h", value_parser = parse_age)]
    fine: u64,
    /// The log, if there are archives of several
    #[arg(long, value_name = "ID", value_parser = parse_log)]
    log: Option<LogId>,
    #[command(flatten)]
    read: Reading,
    /// Compress the joined objects with zstd, LEVEL 1 to 19 [default: they are not]
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(i32).range(1..=19))]
    archive_compress: Option<i32>,
}

pub(crate) fn run(args: &CompactArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    // What it opens it also encrypts for: nothing that was encrypted is put as it is.
    let codec = args.read.keys.codec_to_put(args.archive_compress)?;
    let store = open_with(&args.url, codec)?;
    let wait = waiter();
    let reader = Reader::new(&*store, &wait).with_connections(args.read.connections);
    let log = choose_log(&reader, args.log)?;
    let levels = Levels {
        fine_ns: args.fine.saturating_mul(1_000_000_000),
        objects_max: usize::MAX,
        ..Levels::default()
    };
    let wall_ns = Clock::start().now().wall_ns;
    let mut all = Pass::default();
    for _ in 0..PASSES_MAX {
        let mut meter = Meter::start("joining");
        let done = pass(&reader, log, levels, wall_ns, &mut |done, total| {
            meter.show(done, total);
            true
        })?;
        let is_over = done.is_idle();
        all.add(done);
        if is_over {
            break;
        }
    }
    let is_sound = all.bad.is_empty();
    Compacted::new(args, log, &all).tell(args.read.json, out)?;
    Ok(if is_sound { EXIT_OK } else { EXIT_DAMAGED })
}

#[derive(Serialize)]
struct Compacted {
    url: String,
    log: String,
    /// Joined objects that were made.
    objects: u64,
    /// Links in them; one that was joined twice counts twice.
    links: u64,
    bytes: u64,
    /// Objects that are removed, because what they had is in those.
    removed: u64,
    /// What was not joined because it is not as it was put.
    damages: Vec<String>,
}

impl Compacted {
    fn new(args: &CompactArgs, log: LogId, all: &Pass) -> Compacted {
        Compacted {
            url: args.url.clone(),
            log: log_name(log),
            objects: all.objects,
            links: all.links,
            bytes: all.bytes,
            removed: all.removed,
            damages: all.bad.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Report for Compacted {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let log = &self.log;
        if self.objects == 0 && self.removed == 0 {
            writeln!(out, "log {log}: nothing is to be joined")?;
        } else {
            writeln!(
                out,
                "log {log}: {} in {} ({}), read back; {} removed",
                count(self.links, "link"),
                count(self.objects, "object"),
                Size(self.bytes),
                count(self.removed, "smaller object"),
            )?;
        }
        for bad in &self.damages {
            writeln!(out, "  DAMAGED {bad}; it stays as it is")?;
        }
        Ok(())
    }
}
