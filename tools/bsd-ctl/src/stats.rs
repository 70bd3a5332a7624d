//! `bsd-ctl stats`: what the server counts, in groups.

use std::io::{self, Write};

use bsd::human::Age;
use bsd_tools::yaml::{Dictionary, Value};
use clap::Args;

use crate::api::ApiArgs;
use crate::{Context, EXIT_OK, Failure, json, names};

const AFTER_HELP: &str = concat!(
    "\
Keys that belong to no group stand at the end, as the server calls them. `version` is that of the
protocol, which clients look at. `bsd version` is that of the server, where --http leads to its API.

Examples:
  bsd-ctl stats
  bsd-ctl stats --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    api: ApiArgs,
}

/// A title, and the keys below it with what people call them.
type Group = (&'static str, &'static [(&'static str, &'static str)]);

const GROUPS: [Group; 4] = [
    (
        "jobs",
        &[
            ("current-jobs-ready", "ready"),
            ("current-jobs-urgent", "of these urgent"),
            ("current-jobs-reserved", "reserved"),
            ("current-jobs-delayed", "delayed"),
            ("current-jobs-buried", "buried"),
            ("total-jobs", "ever put"),
            ("job-timeouts", "timeouts"),
            ("max-job-size", "largest body, bytes"),
        ],
    ),
    (
        "clients",
        &[
            ("current-connections", "connections"),
            ("current-producers", "producers"),
            ("current-workers", "workers"),
            ("current-waiting", "waiting"),
            ("total-connections", "ever connected"),
            ("current-tubes", "tubes"),
        ],
    ),
    (
        "log",
        &[
            ("binlog-oldest-index", "oldest file"),
            ("binlog-current-index", "current file"),
            ("binlog-max-size", "file size, bytes"),
            ("binlog-records-written", "records written"),
            ("binlog-records-migrated", "records moved"),
        ],
    ),
    (
        "server",
        &[
            (BSD_VERSION, "bsd version"),
            ("version", "version"),
            ("pid", "process"),
            ("uptime", "up for"),
            ("draining", "draining"),
            ("rusage-utime", "user time, s"),
            ("rusage-stime", "system time, s"),
            ("hostname", "host"),
            ("os", "system"),
            ("platform", "platform"),
            ("id", "id"),
        ],
    ),
];

const COMMAND: &str = "cmd-";
/// The key of the server's own version, which its `stats` do not have.
const BSD_VERSION: &str = "bsd-version";

pub(crate) fn run(args: &StatsArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut stats = context.connect()?.stats()?;
    let server = args.api.of_server(&stats.text("id"), context);
    if let Some(version) = server.as_ref().and_then(|(_, it)| it["version"].as_str()) {
        let version = Value::Text(version.to_owned());
        stats.0.push((BSD_VERSION.to_owned(), version));
    }
    match context.global.json {
        true => writeln!(
            context.out,
            "{}",
            serde_json::Value::Object(json::object(&stats))
        )?,
        false => print(&stats, context.out)?,
    }
    Ok(EXIT_OK)
}

fn print(stats: &Dictionary, out: &mut dyn Write) -> io::Result<()> {
    for (title, keys) in GROUPS {
        let known = keys.iter().filter(|(key, _)| stats.get(key).is_some());
        let lines = known.map(|(key, label)| (*label, value(stats, key)));
        print_group(title, lines, out)?;
    }
    let commands = stats
        .0
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(COMMAND)?, value.to_string())));
    print_group("commands", commands, out)?;
    let others = stats.0.iter().filter(|(key, _)| !is_grouped(key));
    print_group(
        "more",
        others.map(|(key, value)| (&**key, value.to_string())),
        out,
    )
}

fn is_grouped(key: &str) -> bool {
    let mut keys = GROUPS.iter().flat_map(|(_, keys)| keys.iter());
    key.starts_with(COMMAND) || keys.any(|(grouped, _)| *grouped == key)
}

fn value(stats: &Dictionary, key: &str) -> String {
    match key {
        "uptime" => Age(stats.number(key)).to_string(),
        _ => stats.text(key),
    }
}

/// A title, and the lines below it; nothing without lines.
pub(crate) fn print_group<'a>(
    title: &str,
    lines: impl Iterator<Item = (&'a str, String)>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut is_titled = false;
    for (label, value) in lines {
        if !is_titled {
            writeln!(out, "{title}")?;
            is_titled = true;
        }
        writeln!(
            out,
            "  {:<22} {}",
            names::shown(label),
            names::shown(&value)
        )?;
    }
    Ok(())
}
