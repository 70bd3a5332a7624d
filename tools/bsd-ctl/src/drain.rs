//! `bsd-ctl drain` and `undrain`: a server that takes no more jobs, until its own are done with.

use bsd::clock::Clock;
use bsd::types::SECOND_NS;
use bsd_tools::human::{Meter, count};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs};
use crate::many::LOOK_EVERY;
use crate::put::parse_seconds;
use crate::{Context, EXIT_OK, Failure};

const DRAIN_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Puts are answered DRAINING from now on, as
after SIGUSR1; all else goes on, and workers go on reserving. With --wait it is done when no job is
reserved, which stays so only where workers have been told to stop, or are none; with --until empty,
when there is no job left, delayed and buried ones included. Ctrl-C ends the waiting and not the
draining; `bsd-ctl undrain` or a restart does that. Of a cluster the leader is asked, and it goes on
when another member leads. Exit code 1: it drains, and there were still
jobs after --at-most, or someone ended the draining.

Examples:
  bsd-ctl drain
  bsd-ctl drain --wait --at-most 5m

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = DRAIN_HELP)]
pub(crate) struct DrainArgs {
    /// Wait until no job is reserved
    #[arg(long)]
    wait: bool,
    /// Wait for this
    #[arg(long, value_name = "WHAT", value_enum)]
    until: Option<Until>,
    /// Wait no longer than this
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    at_most: Option<u32>,
    #[command(flatten)]
    api: ApiArgs,
}

/// The event to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Until {
    /// No job is reserved
    Unreserved,
    /// There is no job
    Empty,
}

impl Until {
    /// Jobs that are left to wait for.
    fn left(self, server: &Value) -> u64 {
        let states: &[&str] = match self {
            Until::Unreserved => &["reserved"],
            Until::Empty => &["ready", "reserved", "delayed", "buried"],
        };
        let jobs = &server["jobs"];
        states
            .iter()
            .filter_map(|state| jobs[*state].as_u64())
            .sum()
    }

    fn of(self, left: u64) -> String {
        match (self, left) {
            (Until::Unreserved, 1) => "1 job is reserved".to_owned(),
            (Until::Unreserved, left) => format!("{} are reserved", count(left, "job")),
            (Until::Empty, 1) => "1 job is left".to_owned(),
            (Until::Empty, left) => format!("{} are left", count(left, "job")),
        }
    }
}

pub(crate) fn run(args: &DrainArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    api.post("/drain", &json!({}))?;
    let until = args.until.unwrap_or(Until::Unreserved);
    let waits = args.wait || args.until.is_some() || args.at_most.is_some();
    let server = match waits {
        true => wait(&api, until, args.at_most)?,
        false => api.get("/server")?,
    };
    let left = until.of(until.left(&server));
    context.tell(
        json!({"draining": server["draining"], "jobs": server["jobs"]}),
        format_args!("puts are refused; {left}"),
    )?;
    Ok(EXIT_OK)
}

/// Returns the server as it is when there is nothing left to wait for.
fn wait(api: &Api, until: Until, at_most: Option<u32>) -> Result<Value, Failure> {
    let clock = Clock::start();
    let end_ns = at_most.map(|seconds| i64::from(seconds) * SECOND_NS);
    let mut meter = Meter::counting("draining", "jobs");
    let mut most = 0;
    loop {
        let server = api.get("/server")?;
        let left = until.left(&server);
        if server["draining"] != true {
            return Err(Failure::NotDone(
                "the draining was ended meanwhile: puts are taken again; run the command again to \
                 go on"
                    .to_owned(),
            ));
        }
        if left == 0 {
            return Ok(server);
        }
        if end_ns.is_some_and(|end| clock.now().mono.0 >= end) {
            return Err(Failure::NotDone(format!(
                "puts are refused, and {} still; run the command again to wait on, or `bsd-ctl \
                 undrain` to have puts taken",
                until.of(left)
            )));
        }
        most = left.max(most);
        meter.show(most - left, most);
        std::thread::sleep(LOOK_EVERY);
    }
}

const UNDRAIN_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Ends what `bsd-ctl drain` or SIGUSR1 has
begun.

Examples:
  bsd-ctl undrain

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = UNDRAIN_HELP)]
pub(crate) struct UndrainArgs {
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_undrain(args: &UndrainArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let answer = args.api.open(context)?.delete("/drain")?;
    context.tell(answer, "puts are taken")?;
    Ok(EXIT_OK)
}
