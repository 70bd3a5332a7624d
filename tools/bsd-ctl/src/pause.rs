//! `bsd-ctl pause` and `bsd-ctl unpause`: one tube, or all of a pattern.

use bsd_tools::client::Client;
use bsd_tools::human::count;
use clap::Args;
use serde_json::json;

use crate::put::parse_seconds;
use crate::{Context, EXIT_OK, Failure, names};

const PAUSE_HELP: &str = concat!(
    "\
While a tube is paused, no job is reserved from it; puts go on. SECONDS may have a unit: 90, 5m, 2h,
3d. In a PATTERN, * stands for any characters and ? for one; put it in quotes.

Examples:
  bsd-ctl pause mail 300
  bsd-ctl pause 'm*' 2h

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = PAUSE_HELP)]
pub(crate) struct PauseArgs {
    /// The tube, or those whose whole name is like this
    #[arg(value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tubes: String,
    /// How long
    #[arg(value_parser = parse_seconds)]
    seconds: u32,
}

const UNPAUSE_HELP: &str = concat!(
    "\
In a PATTERN, * stands for any characters and ? for one; put it in quotes.

Examples:
  bsd-ctl unpause mail
  bsd-ctl unpause '*'

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = UNPAUSE_HELP)]
pub(crate) struct UnpauseArgs {
    /// The tube, or those whose whole name is like this
    #[arg(value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tubes: String,
}

pub(crate) fn run(args: &PauseArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    if args.seconds == 0 {
        return Err(Failure::Usage(
            "a pause of 0 seconds is none; `bsd-ctl unpause` ends one".to_owned(),
        ));
    }
    let tubes = pause(&args.tubes, args.seconds, context)?;
    let seconds = args.seconds;
    let json = json!({"tubes": tubes, "seconds": seconds});
    let names = tubes.join(", ");
    context.tell(
        json,
        format_args!("paused for {}: {names}", count(seconds.into(), "second")),
    )?;
    Ok(EXIT_OK)
}

pub(crate) fn run_unpause(args: &UnpauseArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let tubes = pause(&args.tubes, 0, context)?;
    let names = tubes.join(", ");
    context.tell(
        json!({"tubes": tubes}),
        format_args!("no longer paused: {names}"),
    )?;
    Ok(EXIT_OK)
}

/// The tubes that were there to be paused.
fn pause(tubes: &str, seconds: u32, context: &Context<'_>) -> Result<Vec<String>, Failure> {
    let mut client = context.connect()?;
    let names = match names::is_pattern(tubes) {
        true => names::matching(&mut client, Some(tubes))?,
        false => vec![tubes.to_owned()],
    };
    let paused = pause_each(&mut client, &names, seconds)?;
    match paused.is_empty() {
        true => Err(names::no_tube(tubes)),
        false => Ok(paused),
    }
}

fn pause_each(client: &mut Client, names: &[String], seconds: u32) -> Result<Vec<String>, Failure> {
    let command = |name: &String| format!("pause-tube {name} {seconds}");
    let commands: Vec<String> = names.iter().map(command).collect();
    let mut lines = Vec::with_capacity(names.len());
    client.ask_all(&commands, |_, reply| {
        lines.push(reply.line);
        Ok(())
    })?;
    let mut paused = Vec::new();
    for (name, line) in names.iter().zip(&lines) {
        match &**line {
            "PAUSED" => paused.push(name.clone()),
            // It has gone since it was listed.
            "NOT_FOUND" => {}
            line => return Err(client.unexpected("pause-tube", line).into()),
        }
    }
    Ok(paused)
}
