//! `bsd-ctl history`: what has happened to a job, as far as the log still has it.

use std::io;
use std::thread;

use clap::Args;
use serde_json::Value;

use crate::api::ApiArgs;
use crate::many::LOOK_EVERY;
use crate::{Context, EXIT_NOT_DONE, EXIT_OK, Failure, names, note};

const AFTER_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. The server reads its log for it, also for a
job that is deleted; that may take a minute, and no client waits. The log has the times of puts
alone: another event came after the time that stands before it. A server without a log has no
history.

Examples:
  bsd-ctl history 1
  bsd-ctl history 1 --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct HistoryArgs {
    /// The job
    id: u64,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(args: &HistoryArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let path = format!("/jobs/{}/history", args.id);
    let mut history = api.get(&path)?;
    // It ends after a minute, whatever it has read.
    while history["state"] == "reading" {
        thread::sleep(LOOK_EVERY);
        history = api.get(&path)?;
    }
    let events = history["events"].as_array().map_or(0, Vec::len);
    match context.global.json {
        true => writeln!(context.out, "{history}")?,
        false => print(args.id, &history, context)?,
    }
    Ok(if events > 0 { EXIT_OK } else { EXIT_NOT_DONE })
}

fn print(id: u64, history: &Value, context: &mut Context<'_>) -> io::Result<()> {
    let text = |value: &Value| names::shown(value.as_str().unwrap_or_default());
    let events = history["events"].as_array().map_or(&[][..], Vec::as_slice);
    for event in events {
        let mut at = text(&event["after"]);
        if at.is_empty() {
            at = format!("{:<24}", "-");
        }
        writeln!(context.out, "{at}  {}", text(&event["what"]))?;
    }
    match (events.is_empty(), &*text(&history["now"])) {
        (true, _) => writeln!(context.out, "the log has nothing of job {id}")?,
        (false, "gone") => writeln!(context.out, "now: there is no job {id} any more")?,
        (false, now) => writeln!(context.out, "now: {now}")?,
    }
    let left_out = history["left_out"].as_u64().unwrap_or(0);
    if left_out > 0 {
        note(format_args!("{left_out} events in the middle are left out"));
    }
    if history["damage"]
        .as_array()
        .is_some_and(|it| !it.is_empty())
    {
        note("parts of the log are damaged: something may be missing");
    }
    Ok(())
}
