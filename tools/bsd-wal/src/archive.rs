//! `bsd-wal archive`: the content of an archive, its soundness, a data directory out of it, rehearsals
//! of that, its compaction, its expiry and its pins.

mod compact;
mod expire;
mod forget;
mod moment;
mod rehearse;
mod unopened;
mod unpin;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bsd::UsageError;
use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::disk::Fs;
use bsd::storage::format::LogId;
use bsd::types::{Position, SegmentId};
use bsd_archive::apart::State;
use bsd_archive::format::{BaseName, log_name, parse_log_name};
use bsd_archive::restore::{Restored, choose_log, restore};
use bsd_archive::survey::{Depth, Lost, Span, Survey, survey};
use bsd_archive::{
    CONNECTIONS, CONNECTIONS_MAX, Codec, KeySource, Reader, RestoreError, Store, Trouble, Until,
    Waiter,
};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::human::{Meter, Size, count, note, parse_timestamp, timestamp};
use crate::report::Report;
use crate::{EXIT_DAMAGED, EXIT_OK, Failure};

pub(crate) use moment::Moment;
use unpin::{WhichBase, parse_base};

const AFTER_HELP: &str = concat!(
    "\
URL is what bsd-server's --archive names: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX
or file:///DIR. Credentials come from the environment, as for the vendor's own tools. `compact`,
`expire`, `forget` and `unpin` remove objects; the others only read. `dump`, `history` and `info`
read an archive, too.
What is encrypted needs --archive-key FILE; `verify` checks sizes and checksums without it.

Examples:
  bsd-wal archive ls file:///var/backups/bsd
  bsd-wal archive verify file:///var/backups/bsd
  bsd-wal archive restore file:///var/backups/bsd bsd-data-restored
  bsd-wal archive restore --until 2026-11-22T18:00:00Z file:///var/backups/bsd bsd-data-before
  bsd-wal archive restore --base before-upgrade file:///var/backups/bsd bsd-data-again
  bsd-wal archive rehearse file:///var/backups/bsd
  bsd-wal archive compact file:///var/backups/bsd
  bsd-wal archive expire --keep 30d file:///var/backups/bsd
  bsd-wal archive expire --keep 7d --keep-daily 30 --keep-weekly 12 file:///var/backups/bsd
  bsd-wal dump file:///var/backups/bsd --until 2026-11-22T18:00:00Z --tube mail

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ArchiveArgs {
    #[command(subcommand)]
    command: ArchiveCommand,
}

#[derive(Subcommand)]
enum ArchiveCommand {
    /// List what can be restored, from when to when
    Ls(LookArgs),
    /// Read every object, and say what could be restored
    Verify(LookArgs),
    /// Make a data directory: the end of the archive, or an earlier moment
    Restore(RestoreArgs),
    /// Restore into a directory that is removed again, verify it, and say how long that took
    Rehearse(rehearse::RehearseArgs),
    /// Join links that have aged into larger objects, as a server does
    Compact(compact::CompactArgs),
    /// Remove everything that is older than the time to keep
    Expire(expire::ExpireArgs),
    /// Remove the pin of a base, so that it can expire
    Unpin(unpin::UnpinArgs),
    /// Remove the archive of one log, all of it
    Forget(forget::ForgetArgs),
}

/// The keys of an archive that is encrypted.
#[derive(Args, Default)]
pub(crate) struct Keys {
    /// Read what is encrypted with the key in FILE, 32 bytes in base64 or hexadecimal digits; there may
    /// be several
    #[arg(long, value_name = "FILE")]
    archive_key: Vec<PathBuf>,
    /// The same with the key that this command writes to its standard output
    #[arg(long, value_name = "CMD")]
    archive_key_command: Vec<String>,
}

impl Keys {
    fn sources(&self) -> Vec<KeySource> {
        let files = self.archive_key.iter().cloned().map(KeySource::File);
        let commands = self.archive_key_command.iter().cloned();
        files.chain(commands.map(KeySource::Command)).collect()
    }

    /// To read.
    fn codec(&self) -> Result<Codec, Failure> {
        let codec = Codec::default().with_keys_of(&[], &self.sources());
        codec.map_err(|error| Failure::Refused(error.to_string()))
    }

    /// To read, and to put objects that each of them opens.
    fn codec_to_put(&self, level: Option<i32>) -> Result<Codec, Failure> {
        let codec = Codec::default().compressing(level);
        let codec = codec.with_keys_of(&self.sources(), &[]);
        codec.map_err(|error| Failure::Refused(error.to_string()))
    }

    fn is_empty(&self) -> bool {
        self.archive_key.is_empty() && self.archive_key_command.is_empty()
    }

    /// These, to be typed again.
    fn on_a_command_line(&self) -> String {
        let files = self.archive_key.iter();
        let files = files.map(|path| format!(" --archive-key {}", path.display()));
        let commands = self.archive_key_command.iter();
        let commands = commands.map(|command| format!(" --archive-key-command {command:?}"));
        files.chain(commands).collect()
    }
}

#[derive(Args)]
struct LookArgs {
    /// The archive
    url: String,
    #[command(flatten)]
    read: Reading,
}

/// Flags of every command that reads much of an archive.
#[derive(Args)]
struct Reading {
    /// Objects to read at the same time, 1 to 256; at most 64 MiB are read ahead, whatever the number
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS, value_parser = parse_connections)]
    connections: usize,
    #[command(flatten)]
    keys: Keys,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_connections(text: &str) -> Result<usize, UsageError> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=CONNECTIONS_MAX).contains(number));
    number.ok_or_else(|| UsageError::new(format_args!("a number from 1 to {CONNECTIONS_MAX}")))
}

#[derive(Args)]
struct RestoreArgs {
    /// The archive
    url: String,
    /// The data directory to create; it must be empty or not exist
    dir: PathBuf,
    /// Restore the log as it was durable then: a time (RFC 3339, by the clock of the server that
    /// archived), a position SEGMENT:OFFSET, a link link:NUMBER or a base base:NUMBER as `ls` shows them
    #[arg(long, value_name = "TIME|POSITION|LINK|BASE", value_parser = parse_until)]
    until: Option<Until>,
    /// Restore exactly the state of this base, which has this name or this number
    #[arg(long, value_name = "NAME", value_parser = parse_base, conflicts_with = "until")]
    base: Option<WhichBase>,
    /// The log, if there are archives of several
    #[arg(long, value_name = "ID", value_parser = parse_log)]
    log: Option<LogId>,
    #[command(flatten)]
    read: Reading,
}

fn parse_log(text: &str) -> Result<LogId, UsageError> {
    parse_log_name(text).ok_or_else(|| "a log has 32 hexadecimal digits".into())
}

fn parse_until(text: &str) -> Result<Until, UsageError> {
    let position = || -> Option<Position> {
        let (segment, offset) = text.split_once(':')?;
        let segment = SegmentId(segment.parse().ok()?);
        Some(Position::new(segment, offset.parse().ok()?))
    };
    let number = |text: &str| -> Option<u64> { text.parse().ok().filter(|number| *number > 0) };
    if let Some(text) = text.strip_prefix("link:") {
        let link = number(text).map(Until::Link);
        return link.ok_or_else(|| "a link has a number, such as link:17".into());
    }
    if let Some(text) = text.strip_prefix("base:") {
        let base = number(text).map(Until::Base);
        return base
            .ok_or_else(|| "a base has a number here, such as base:17; --base takes names".into());
    }
    match position() {
        Some(position) => Ok(Until::Position(position)),
        None => parse_timestamp(text).map(Until::Wall),
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        Failure::Refused(format!("the archive cannot be read: {trouble}"))
    }
}

/// The failure of a command that restores nothing.
fn not_read(error: RestoreError) -> Failure {
    match error {
        RestoreError::Store(trouble) => trouble.into(),
        other => other.into(),
    }
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Failure {
        match error {
            RestoreError::Disk(error) => Failure::Open(error),
            other => Failure::Refused(other.to_string()),
        }
    }
}

pub(crate) fn run(args: &ArchiveArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    match &args.command {
        ArchiveCommand::Ls(args) => look(args, Depth::Lists, out),
        ArchiveCommand::Verify(args) => look(args, Depth::Everything, out),
        ArchiveCommand::Restore(args) => make(args, out),
        ArchiveCommand::Rehearse(args) => rehearse::run(args, out),
        ArchiveCommand::Compact(args) => compact::run(args, out),
        ArchiveCommand::Expire(args) => expire::run(args, out),
        ArchiveCommand::Unpin(args) => unpin::run(args, out),
        ArchiveCommand::Forget(args) => forget::run(args, out),
    }
}

fn open(url: &str, keys: &Keys) -> Result<Box<dyn Store>, Failure> {
    open_with(url, keys.codec()?)
}

fn open_with(url: &str, codec: Codec) -> Result<Box<dyn Store>, Failure> {
    // A wrong address is not waited for.
    bsd_archive::check_place(url)
        .and_then(|()| bsd_archive::open(url, codec))
        .map_err(|error| Failure::Refused(error.to_string()))
}

/// Says why nothing happens.
fn waiter() -> Waiter<impl Fn(&str) + Send + Sync> {
    Waiter::new(Clock::start(), |why: &str| {
        note(format_args!(
            "the archive is waited for: {why}; it is tried again, for minutes"
        ));
    })
}

fn look(args: &LookArgs, depth: Depth, out: &mut dyn Write) -> Result<u8, Failure> {
    let store = open(&args.url, &args.read.keys)?;
    let wait = waiter();
    let reader = Reader::new(&*store, &wait).with_connections(args.read.connections);
    let mut found = Vec::new();
    for log in reader.logs()? {
        let mut meter = Meter::start("reading");
        let surveyed = survey(&reader, log, depth, &mut |done, total| {
            meter.show(done, total);
        });
        match surveyed {
            // Without a key there is still something to be said.
            Err(trouble) if trouble.lacks_key && depth == Depth::Everything => {
                drop(meter);
                return unopened::run(args, &reader, &trouble, out);
            }
            surveyed => found.push(surveyed?),
        }
    }
    if found.is_empty() {
        let url = &args.url;
        return Err(Failure::Refused(format!("there is no archive at {url}")));
    }
    let has_end = |survey: &Survey| {
        survey.end.is_some() && survey.lost.iter().all(|lost| lost.until.is_some())
    };
    let is_well = found.iter().all(|it| it.bad.is_empty() && has_end(it));
    let all = Contents {
        url: args.url.clone(),
        is_whole: is_well && found.iter().all(|survey| survey.lost.is_empty()),
        every_byte_read: depth == Depth::Everything,
        logs: found.iter().map(OneLog::from).collect(),
    };
    all.tell(args.read.json, out)?;
    Ok(if is_well { EXIT_OK } else { EXIT_DAMAGED })
}

#[derive(Serialize)]
struct Contents {
    url: String,
    /// Nothing that was looked at is missing or damaged, there is no gap, and the end can be restored.
    is_whole: bool,
    every_byte_read: bool,
    logs: Vec<OneLog>,
}

#[derive(Serialize)]
struct OneLog {
    log: String,
    epoch: u32,
    links: u64,
    bytes: u64,
    /// States before those, each of them alone.
    apart: Vec<OneState>,
    spans: Vec<OneSpan>,
    names: Vec<OneName>,
    /// The numbers of pinned bases.
    pins: Vec<u64>,
    /// The parts that cannot be restored.
    lost: Vec<OneLost>,
    /// Where a restore of the end ends; `null`: it is refused.
    end: Option<String>,
    /// Positions after which a gap begins.
    gaps: Vec<String>,
    damages: Vec<String>,
}

#[derive(Serialize)]
struct OneSpan {
    base: u64,
    bases: u64,
    from: String,
    from_time: String,
    to: String,
    to_time: String,
    link: u64,
}

#[derive(Serialize)]
struct OneState {
    base: u64,
    position: String,
    time: String,
}

impl From<&State> for OneState {
    fn from(state: &State) -> OneState {
        OneState {
            base: state.base,
            position: state.at.to_string(),
            time: timestamp(state.wall_ns),
        }
    }
}

#[derive(Serialize)]
struct OneName {
    name: String,
    base: u64,
}

#[derive(Serialize)]
struct OneLost {
    after: String,
    /// `null`: to the end.
    until: Option<String>,
    why: String,
}

impl From<&Survey> for OneLog {
    fn from(survey: &Survey) -> OneLog {
        let span = |span: &Span| OneSpan {
            base: span.base,
            bases: span.bases,
            from: span.from.to_string(),
            from_time: timestamp(span.from_wall_ns),
            to: span.to.to_string(),
            to_time: timestamp(span.to_wall_ns),
            link: span.link,
        };
        let name = |(name, base): &(BaseName, u64)| OneName {
            name: name.to_string(),
            base: *base,
        };
        let lost = |lost: &Lost| OneLost {
            after: lost.after.to_string(),
            until: lost.until.as_ref().map(Position::to_string),
            why: lost.why.to_string(),
        };
        OneLog {
            log: log_name(survey.log),
            epoch: survey.epoch,
            links: survey.links,
            bytes: survey.bytes,
            apart: survey.apart.iter().map(OneState::from).collect(),
            spans: survey.spans.iter().map(span).collect(),
            names: survey.names.iter().map(name).collect(),
            pins: survey.pins.clone(),
            lost: survey.lost.iter().map(lost).collect(),
            end: survey.end.as_ref().map(Position::to_string),
            gaps: survey.gaps.iter().map(Position::to_string).collect(),
            damages: survey.bad.iter().map(ToString::to_string).collect(),
        }
    }
}

impl OneLog {
    /// The name and the pin of a base, behind its number.
    fn labels(&self, base: u64) -> String {
        let names = self.names.iter().filter(|name| name.base == base);
        let mut labels: String = names.map(|name| format!(", named {}", name.name)).collect();
        if self.pins.contains(&base) {
            labels += ", pinned";
        }
        labels
    }
}

impl Report for Contents {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        for log in &self.logs {
            writeln!(
                out,
                "log {}: {} ({}), epoch {}",
                log.log,
                count(log.links, "link"),
                Size(log.bytes),
                log.epoch
            )?;
            for OneState {
                base,
                position,
                time,
            } in &log.apart
            {
                let labels = log.labels(*base);
                writeln!(
                    out,
                    "  can be restored: {time} alone, position {position}, base {base}{labels}"
                )?;
            }
            for span in &log.spans {
                writeln!(
                    out,
                    "  can be restored: {} to {}, positions {} to {}, {}, up to link {}",
                    span.from_time,
                    span.to_time,
                    span.from,
                    span.to,
                    count(span.bases, "base"),
                    span.link
                )?;
            }
            if log.spans.is_empty() {
                writeln!(out, "  nothing can be restored: there is no base yet")?;
            }
            let is_apart = |base: &u64| log.apart.iter().any(|state| state.base == *base);
            let names = log.names.iter().map(|name| name.base);
            let labelled: BTreeSet<u64> = names.chain(log.pins.iter().copied()).collect();
            for base in labelled.into_iter().filter(|base| !is_apart(base)) {
                writeln!(out, "  base {base}{}", log.labels(base))?;
            }
            for lost in &log.lost {
                let until = lost.until.as_deref().unwrap_or("the end");
                let OneLost { after, why, .. } = lost;
                writeln!(out, "  cannot be restored: {after} to {until}: {why}")?;
            }
            for bad in &log.damages {
                writeln!(out, "  DAMAGED {bad}")?;
            }
            if self.every_byte_read && log.damages.is_empty() {
                writeln!(out, "  every object is as it was put")?;
            }
        }
        Ok(())
    }
}

fn make(args: &RestoreArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let store = open(&args.url, &args.read.keys)?;
    let wait = waiter();
    let reader = Reader::new(&*store, &wait).with_connections(args.read.connections);
    let log = choose_log(&reader, args.log)?;
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let until = match &args.base {
        Some(base) => Until::Base(base.number(&reader, log)?),
        None => args.until.unwrap_or(Until::End),
    };
    let mut meter = Meter::start("restoring");
    let now = Clock::start().now();
    let restored = restore(
        &reader,
        log,
        until,
        (&fs, &args.dir),
        now,
        &mut |done, total| {
            meter.show(done, total);
        },
    )?;
    drop(meter);
    let code = tell_faults(&restored);
    Done::new(args, &restored).tell(args.read.json, out)?;
    Ok(code)
}

/// Say which objects were not used, and what the archive lacks. Returns the exit code of the restore: what
/// was acknowledged and is not in it is lost. Only a restore of the end lacks anything; an earlier
/// moment that is not there is refused.
fn tell_faults(restored: &Restored) -> u8 {
    for bad in &restored.skipped {
        note(format_args!(
            "{bad}; an older base was used, and nothing is missing for that"
        ));
    }
    match &restored.missing {
        Some(missing) => {
            note(missing);
            EXIT_DAMAGED
        }
        None => EXIT_OK,
    }
}

/// A restored archive.
#[derive(Serialize)]
struct Done {
    source: String,
    output: String,
    log: String,
    base: u64,
    end: String,
    time: String,
    links: u64,
    records: u64,
    jobs: u64,
    /// The later history that the archive lacks; null: nothing.
    missing: Option<String>,
}

impl Done {
    fn new(args: &RestoreArgs, restored: &Restored) -> Done {
        Done {
            source: args.url.clone(),
            output: args.dir.display().to_string(),
            log: log_name(restored.log),
            base: restored.base,
            end: restored.end.to_string(),
            time: timestamp(restored.wall_ns),
            links: restored.links,
            records: restored.records,
            jobs: restored.jobs,
            missing: restored.missing.clone(),
        }
    }
}

impl Report for Done {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let show = &self.output;
        writeln!(
            out,
            "{show}: {}, the log as it was at {}, up to {}; base {} and {} after it, every byte \
             checked\nstart with\n  bsd-server -b {show}",
            count(self.jobs, "job"),
            self.time,
            self.end,
            self.base,
            count(self.records, "change"),
        )
    }
}
