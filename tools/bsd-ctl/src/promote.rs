//! `bsd-ctl promote`: a standby takes over.

use bsd::clock::Clock;
use bsd_tools::human::Meter;
use clap::Args;
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs};
use crate::many::LOOK_EVERY;
use crate::{Context, EXIT_OK, Failure};

const PROMOTE_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. The standby reads the archive to its end,
claims it, and serves clients; the old server, if it still runs, finds that out and stops. Waits
until clients are served. It refuses where another server has taken over and what that has done is
not in the archive: --force gives that up. Where the archive cannot be reached the standby goes on
trying. Once that has lasted for --timeout the waiting ends, with exit code 1; the taking over goes
on, and nothing ends it: `bsd-ctl standby` says what is in the way.

Examples:
  bsd-ctl promote

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = PROMOTE_HELP)]
pub(crate) struct PromoteArgs {
    /// Take over also where that gives up what another server has done
    #[arg(long)]
    force: bool,
    /// Do not wait until clients are served
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(args: &PromoteArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let word = match args.force {
        true => json!({"force": true}),
        false => json!({}),
    };
    let mut standby = api.post("/promote", &word)?;
    if !args.no_wait {
        standby = wait(&api)?;
    }
    let line = match args.no_wait {
        true => format!("taking over; {}", told(&standby)),
        false => format!("clients are served; {}", told(&standby)),
    };
    context.tell(standby, line)?;
    Ok(EXIT_OK)
}

/// Until the server has a queue that can be asked.
fn wait(api: &Api) -> Result<Value, Failure> {
    let clock = Clock::start();
    let mut troubled = None;
    let mut meter = Meter::counting("taking over", "records");
    loop {
        let standby = api.get("/standby")?;
        if standby["serves"] == true {
            return Ok(standby);
        }
        if let Some(why) = standby["refused"].as_str() {
            return Err(Failure::NotDone(format!(
                "it does not take over: {why}; --force takes over nevertheless"
            )));
        }
        let now = clock.now().mono;
        match standby["trouble"].as_str() {
            None => troubled = None,
            Some(trouble) => {
                let lasted = now.since(*troubled.get_or_insert(now));
                if u128::try_from(lasted).is_ok_and(|it| it >= api.timeout.as_nanos()) {
                    return Err(Failure::NotDone(format!(
                        "no clients are served yet, and the standby goes on trying to take over: \
                         {trouble}; run the command again to wait on"
                    )));
                }
            }
        }
        let records = standby["records"].as_u64().unwrap_or_default();
        meter.show(records, records);
        std::thread::sleep(LOOK_EVERY);
    }
}

const STANDBY_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Exit code 1: this server is no standby.

Examples:
  bsd-ctl standby
  bsd-ctl standby --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = STANDBY_HELP)]
pub(crate) struct StandbyArgs {
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn show(args: &StandbyArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let standby = args.api.open(context)?.get("/standby")?;
    let state = match (&standby["serves"], &standby["promoted"]) {
        (Value::Bool(true), _) => "took over and serves clients",
        (_, Value::Bool(true)) => "taking over",
        _ => "following",
    };
    let line = format!("{state}; {}", told(&standby));
    context.tell(standby, line)?;
    Ok(EXIT_OK)
}

/// How far a standby is, in words.
fn told(standby: &Value) -> String {
    let mut text = match (standby["position"].as_str(), standby["durable_at"].as_str()) {
        (Some(position), Some(time)) => format!(
            "{} jobs, the log as it was at {time}, up to {position}",
            standby["jobs"]
        ),
        _ => "there is no copy yet".to_owned(),
    };
    if let Some(restoring) = standby["restoring"].as_object() {
        text = format!(
            "{text}; restoring: {} of {} bytes",
            restoring["done"], restoring["total"]
        );
    }
    if let Some(trouble) = standby["trouble"].as_str() {
        text = format!("{text}; in trouble: {trouble}");
    }
    text
}
