//! `bsd-wal archive unpin`: a base may expire again; and how a base is named on a command line.

use std::io::{self, Write};

use bsd::UsageError;
use bsd::storage::format::LogId;
use bsd_archive::format::{BaseName, log_name};
use bsd_archive::labels::{find, unpin};
use bsd_archive::restore::choose_log;
use bsd_archive::{Reader, RestoreError};
use clap::Args;
use serde::Serialize;

use super::{Keys, not_read, open, parse_log, waiter};
use crate::report::Report;
use crate::{EXIT_OK, Failure};

/// A base, by what was typed.
#[derive(Debug, Clone)]
pub(super) enum WhichBase {
    Named(BaseName),
    Numbered(u64),
}

pub(super) fn parse_base(text: &str) -> Result<WhichBase, UsageError> {
    let number = text.parse().ok().filter(|number| *number > 0);
    let number = number.map(WhichBase::Numbered);
    let base = number.or_else(|| BaseName::parse(text).map(WhichBase::Named));
    base.ok_or_else(|| {
        UsageError::new(format_args!(
            "the number of a base, or its name: {}",
            BaseName::RULE
        ))
    })
}

impl WhichBase {
    /// Its number.
    ///
    /// # Errors
    /// No base has this name; or the store did not answer.
    pub(super) fn number(&self, reader: &Reader<'_>, log: LogId) -> Result<u64, RestoreError> {
        match self {
            WhichBase::Numbered(number) => Ok(*number),
            WhichBase::Named(name) => find(reader, log, name),
        }
    }
}

#[derive(Args)]
pub(super) struct UnpinArgs {
    /// The archive
    url: String,
    /// The base: its name, or its number as `ls` shows it
    #[arg(value_name = "NAME", value_parser = parse_base)]
    base: WhichBase,
    /// The log, if there are archives of several
    #[arg(long, value_name = "ID", value_parser = parse_log)]
    log: Option<LogId>,
    #[command(flatten)]
    keys: Keys,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &UnpinArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let store = open(&args.url, &args.keys)?;
    let wait = waiter();
    let reader = Reader::new(&*store, &wait);
    let log = choose_log(&reader, args.log).map_err(not_read)?;
    let base = args.base.number(&reader, log).map_err(not_read)?;
    if !unpin(&reader, log, base)? {
        return Err(Failure::Refused(format!(
            "base {base} is not pinned; `bsd-wal archive ls` shows the pins"
        )));
    }
    let unpinned = Unpinned {
        log: log_name(log),
        base,
    };
    unpinned.tell(args.json, out)?;
    Ok(EXIT_OK)
}

#[derive(Serialize)]
struct Unpinned {
    log: String,
    base: u64,
}

impl Report for Unpinned {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let Unpinned { log, base } = self;
        writeln!(
            out,
            "log {log}: base {base} is no longer pinned; the next expiry decides about it"
        )
    }
}
