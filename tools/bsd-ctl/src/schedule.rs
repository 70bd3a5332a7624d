//! `bsd-ctl schedule`: what a server puts by itself, and when.

use std::fs;
use std::io::{self, Read};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bsd::human::Size;
use bsd::schedule::Schedule;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::api::{ApiArgs, escaped};
use crate::put::parse_seconds;
use crate::stats::print_group;
use crate::table::Table;
use crate::{Context, EXIT_OK, Failure, listing, names};

/// Characters of a body that people are shown at most.
const SHOWN_MAX: usize = 4096;

const SCHEDULE_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. A schedule puts a job into a tube at the times
of a cron expression: exactly once each, also across a crash. `bsd-ctl schedule set --help` tells of
cron expressions and time zones.

Examples:
  bsd-ctl schedule set nightly --cron '30 2 * * *' --tube reports --body make
  bsd-ctl schedule list
  bsd-ctl schedule run nightly
  bsd-ctl schedule delete nightly

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = SCHEDULE_HELP)]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    command: ScheduleCommand,
}

#[derive(Subcommand)]
enum ScheduleCommand {
    /// Set a schedule, in place of the one of this name
    Set(SetArgs),
    /// List all schedules, with the time at which each is due next
    List(ListArgs),
    /// Show one schedule: its next five times, and its body if that is text
    Show(OneArgs),
    /// Have a schedule put nothing until it is resumed
    Pause(OneArgs),
    /// Have a schedule put again; what was due while it was paused is not put
    Resume(OneArgs),
    /// Put the job of a schedule now, beside those that are due
    Run(OneArgs),
    /// Delete a schedule; the jobs that it has put stay
    Delete(OneArgs),
}

const SET_HELP: &str = concat!(
    "\
A schedule is set as a whole: what is not named has its default. But one that is paused stays so:
`bsd-ctl schedule resume` ends that. EXPRESSION has five fields, minute, hour, day of the month, month and day of the
week; of six the first is seconds. ZONE is a name of the IANA database. WHAT is skip, once (one job
for all of them) or all (a job for each of them, of the last hundred).

Examples:
  bsd-ctl schedule set hourly --cron '0 * * * *' --tube reports --body make
  bsd-ctl schedule set mail --cron '0 8 * * 1-5' --tz Europe/Berlin --tube mail --body @body
  bsd-ctl schedule set once --cron '*/5 * * * *' --tube poll --body x --key poll --missed once

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = SET_HELP)]
struct SetArgs {
    /// The schedule: a name as that of a tube
    #[arg(value_parser = names::parse_schedule)]
    name: String,
    /// When it puts a job
    #[arg(long, value_name = "EXPRESSION")]
    cron: String,
    /// The time zone of the expression
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,
    /// The tube that it puts into
    #[arg(long, value_parser = names::parse_tube)]
    tube: String,
    /// The body of each job; @FILE is the content of a file, @- the standard input
    #[arg(long, value_name = "TEXT|@FILE")]
    body: String,
    /// The priority: 0 is the most urgent
    #[arg(long, default_value = "65536")]
    pri: u32,
    /// How long a worker may take for it
    #[arg(long, default_value = "120", value_parser = parse_seconds)]
    ttr: u32,
    /// At most one job with this key is in the tube: while it is there no other is put
    #[arg(long)]
    key: Option<String>,
    /// What becomes of firings that are more than a minute late
    #[arg(long, value_name = "WHAT", default_value = "skip", value_parser = ["skip", "once", "all"])]
    missed: String,
    /// It puts nothing until it is resumed
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    api: ApiArgs,
}

const LIST_HELP: &str = concat!(
    "\
Examples:
  bsd-ctl schedule list
  bsd-ctl schedule list --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = LIST_HELP)]
struct ListArgs {
    #[command(flatten)]
    api: ApiArgs,
}

const ONE_HELP: &str = concat!(
    "\
`bsd-ctl schedule list` has the names.

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = ONE_HELP)]
struct OneArgs {
    /// The schedule
    #[arg(value_parser = names::parse_schedule)]
    name: String,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(args: &ScheduleArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    match &args.command {
        ScheduleCommand::Set(args) => set(args, context),
        ScheduleCommand::List(args) => list(args, context),
        ScheduleCommand::Show(args) => show(args, context),
        ScheduleCommand::Pause(args) => set_paused(args, "pause", context),
        ScheduleCommand::Resume(args) => set_paused(args, "resume", context),
        ScheduleCommand::Run(args) => run_now(args, context),
        ScheduleCommand::Delete(args) => delete(args, context),
    }
}

fn path(name: &str) -> String {
    format!("/schedules/{}", escaped(name))
}

fn set(args: &SetArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let body = read_body(&args.body)?;
    check(args, &body)?;
    let body = body_value(&body);
    let api = args.api.open(context)?;
    let sent = json!({"cron": args.cron, "tz": args.tz, "tube": args.tube, "body": body,
        "priority": args.pri, "ttr": args.ttr, "key": args.key, "missed": args.missed,
        "paused": args.paused.then_some(true)});
    let done = api.put(&path(&args.name), &sent)?;
    let said = format!("schedule {} is set; {}", args.name, due(&done));
    context.tell(done, said)?;
    Ok(EXIT_OK)
}

/// A mistake is told before the server is asked. The server alone knows which time zones it has.
fn check(args: &SetArgs, body: &[u8]) -> Result<(), Failure> {
    let schedule = Schedule {
        cron: args.cron.clone(),
        tube: args.tube.clone(),
        pri: args.pri,
        ttr: args.ttr,
        key: args.key.clone(),
        body: body.to_vec(),
        ..Schedule::default()
    };
    let encoded = schedule.encode();
    encoded
        .map(drop)
        .map_err(|error| Failure::Usage(error.to_string()))
}

/// The bytes that `--body` means.
#[allow(
    clippy::disallowed_methods,
    reason = "the file is a user's, and no part of a log"
)]
fn read_body(word: &str) -> Result<Vec<u8>, Failure> {
    let unreadable = |what: &str, error: io::Error| {
        Failure::Input(format!(
            "the body cannot be read from {what}: {error}; name a file that can be"
        ))
    };
    match word.strip_prefix('@') {
        None => Ok(word.as_bytes().to_vec()),
        Some("-") => {
            let mut body = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut body);
            read.map_err(|error| unreadable("the standard input", error))?;
            Ok(body)
        }
        Some(file) => fs::read(file).map_err(|error| unreadable(file, error)),
    }
}

/// Bytes as the API takes them.
fn body_value(body: &[u8]) -> Value {
    match std::str::from_utf8(body) {
        Ok(text) => json!({"encoding": "text", "data": text}),
        Err(_) => json!({"encoding": "base64", "data": STANDARD.encode(body)}),
    }
}

/// When a schedule puts its next job, as part of a sentence.
fn due(schedule: &Value) -> String {
    match (schedule["paused"].as_bool(), first(schedule)) {
        (Some(true), _) => "it is paused".to_owned(),
        (_, Some(at)) => format!("it is due at {at}"),
        (_, None) => "it is never due again".to_owned(),
    }
}

fn first(schedule: &Value) -> Option<String> {
    schedule["next_firings"][0].as_str().map(names::shown)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => names::shown(text),
        other => other.to_string(),
    }
}

fn list(args: &ListArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let schedules = listing::pages(
        &args.api.open(context)?,
        "/schedules",
        "schedules",
        u64::MAX,
    )?;
    if context.global.json {
        writeln!(context.out, "{}", Value::Array(schedules))?;
        return Ok(EXIT_OK);
    }
    let mut table = Table::new(&["SCHEDULE", "CRON", "ZONE", "TUBE", "FIRED UP TO", "NEXT"]);
    for schedule in &schedules {
        let next = match schedule["paused"].as_bool() {
            Some(true) => "paused".to_owned(),
            _ => first(schedule).unwrap_or_else(|| "never".to_owned()),
        };
        let mut row: Vec<String> = ["name", "cron", "tz", "tube", "fired_up_to"]
            .map(|key| text(&schedule[key]))
            .into();
        row.push(next);
        table.push(row);
    }
    table.print(context.out)?;
    Ok(EXIT_OK)
}

fn show(args: &OneArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let schedule = args.api.open(context)?.get(&path(&args.name))?;
    if context.global.json {
        writeln!(context.out, "{schedule}")?;
        return Ok(EXIT_OK);
    }
    let values = [
        ("cron", "cron"),
        ("time zone", "tz"),
        ("tube", "tube"),
        ("priority", "priority"),
        ("time to run", "ttr"),
        ("key", "key"),
        ("missed", "missed"),
        ("fired up to", "fired_up_to"),
    ];
    let values = values.map(|(label, key)| (label, text(&schedule[key])));
    let state = match schedule["paused"].as_bool() {
        Some(true) => ", paused",
        _ => "",
    };
    let title = format!("schedule {}{state}", args.name);
    print_group(&title, values.into_iter(), context.out)?;
    let next = schedule["next_firings"].as_array();
    let next = next.into_iter().flatten().map(|at| ("", text(at)));
    print_group("next", next, context.out)?;
    writeln!(context.out, "{}", shown_body(&schedule))?;
    Ok(EXIT_OK)
}

/// The body, if it is a text and not too long for a terminal.
fn shown_body(schedule: &Value) -> String {
    let bytes = Size(schedule["body_size"].as_u64().unwrap_or(0));
    let body = &schedule["body"];
    match body["data"].as_str() {
        Some(data) if body["encoding"] == "text" && data.chars().count() <= SHOWN_MAX => {
            let lines = data.split('\n').map(names::shown);
            format!("body: {bytes}\n{}", lines.collect::<Vec<_>>().join("\n"))
        }
        _ => format!("body: {bytes}, not shown: --json has it"),
    }
}

fn set_paused(args: &OneArgs, word: &str, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let done = api.post(&format!("{}/{word}", path(&args.name)), &json!({}))?;
    let said = format!("schedule {}: {}", args.name, due(&done));
    context.tell(done, said)?;
    Ok(EXIT_OK)
}

fn run_now(args: &OneArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let done = api.post(&format!("{}/run", path(&args.name)), &json!({}))?;
    let said = format!("job {} was put by schedule {}", done["id"], args.name);
    context.tell(done, said)?;
    Ok(EXIT_OK)
}

fn delete(args: &OneArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    api.delete(&path(&args.name))?;
    context.tell(
        json!({"name": args.name, "deleted": true}),
        format_args!("schedule {} is deleted", args.name),
    )?;
    Ok(EXIT_OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_fit_for_a_terminal() {
        let schedule = json!({"body_size": 6, "next_firings": ["2026\u{1b}[2J"],
            "body": {"encoding": "text", "data": "a\u{1b}[2J\nb"}});
        assert_eq!(shown_body(&schedule), "body: 6 B\na\\u{1b}[2J\nb");
        assert_eq!(due(&schedule), "it is due at 2026\\u{1b}[2J");
        let binary = json!({"body_size": 1, "body": {"encoding": "base64", "data": "/w=="}});
        assert_eq!(shown_body(&binary), "body: 1 B, not shown: --json has it");
        assert_eq!(due(&json!({"paused": true})), "it is paused");
        assert_eq!(due(&json!({"next_firings": []})), "it is never due again");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test writes the user's file")]
    fn a_body_is_a_text_a_file_or_bytes_that_are_no_text() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("body");
        fs::write(&file, b"\xff").unwrap();
        assert_eq!(read_body("a@b").unwrap(), b"a@b");
        let bytes = read_body(&format!("@{}", file.display())).unwrap();
        assert_eq!(
            body_value(&bytes),
            json!({"encoding": "base64", "data": "/w=="})
        );
        assert!(matches!(read_body("@/nowhere/x"), Err(Failure::Input(_))));
    }
}
