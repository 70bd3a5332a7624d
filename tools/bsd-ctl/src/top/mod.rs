//! `bsd-ctl top`: what a server does now, again and again.
//!
//! A thread of its own asks the server, so that keys work also while the server does not answer. A
//! round asks for `stats`, the list of tubes, and at most [`TUBES_MAX`] tubes: watching must not
//! become the load.

mod events;
mod keys;
mod live;
mod rates;
mod sample;
mod wait;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use bsd::UsageError;
use clap::Args;
use serde_json::Value as Json;

use crate::api::ApiArgs;
use crate::tubes::Sort;
use crate::{Context, EXIT_OK, Failure, names};
use rates::{Columns, View};
use sample::Sampler;

/// More tubes than this are not asked for in a round.
const TUBES_MAX: usize = 1000;

const AFTER_HELP: &str = concat!(
    "\
Rates are per second, of the time since the round before. They count jobs, as the server's API does,
where --http leads to that of the same server, with at most 20,000 tubes. Of a tube past the server's
--http-tubes-max only put and delete are known. Without the API, as with beanstalkd, the same holds
for all tubes; above them put counts jobs, delete does where all tubes are asked for, and the others
count commands. What is not known is `-`.

A round asks for at most 1000 tubes, the first by name; a PATTERN chooses others. If the server goes
away, top waits for it to come back.

The busiest tubes stand first, unless --sort says otherwise.

Keys: q quits, h shows all keys, a shows all rates of tubes in place of their states, s sorts by the
next column, r the other way round.

Examples:
  bsd-ctl top --batch 1
  bsd-ctl top 'mail*' --sort ready --interval 0.5 --batch 2
  bsd-ctl top --rates --batch 1
  bsd-ctl top --batch 1 --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TopArgs {
    /// Only tubes whose whole name is like this: * is any characters, ? is one
    #[arg(value_parser = names::parse_pattern)]
    pattern: Option<String>,
    /// Seconds from one round to the next
    #[arg(short, long, default_value = "1", value_name = "SECONDS", value_parser = parse_interval)]
    interval: Duration,
    /// Sort key: numbers, the largest first
    #[arg(long, value_enum, default_value = "total")]
    sort: Sort,
    /// The other way round
    #[arg(long)]
    reverse: bool,
    /// Show all rates of each tube, and of its states those that are ready
    #[arg(long)]
    rates: bool,
    /// Number of rounds to print as lines of text, and end
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    #[command(flatten)]
    api: ApiArgs,
}

impl TopArgs {
    fn columns(&self) -> Columns {
        match self.rates {
            true => Columns::Rates,
            false => Columns::States,
        }
    }
}

fn parse_interval(text: &str) -> Result<Duration, UsageError> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|seconds| (0.1..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "a number of seconds from 0.1 to 3600 is expected".into())
}

pub(crate) fn run(args: &TopArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    if matches!(args.sort, Sort::Age | Sort::Failures) {
        return Err(Failure::Usage(
            "the live view does not know this: `bsd-ctl tubes` sorts by it".to_owned(),
        ));
    }
    let sampler = Sampler::new(args, context);
    match args.batch {
        Some(rounds) => batch(args, rounds, sampler, context),
        None if context.global.json => Err(Failure::Usage(
            "--json is for --batch N: the live view is for people".to_owned(),
        )),
        None if !(io::stdout().is_terminal() && io::stdin().is_terminal()) => Err(Failure::Usage(
            "the live view needs a terminal; --batch N prints N rounds as lines".to_owned(),
        )),
        None => live::run(args, sampler),
    }
}

/// Each round is the difference of two samples, so the first one is there after one interval.
fn batch(
    args: &TopArgs,
    rounds: u64,
    mut sampler: Sampler,
    context: &mut Context<'_>,
) -> Result<u8, Failure> {
    let mut before = sampler.take()?;
    for _ in 0..rounds {
        thread::sleep(args.interval);
        let sample = sampler.take()?;
        let view = View::between(Some(&before), &sample, args.sort, args.reverse);
        match context.global.json {
            true => writeln!(context.out, "{}", Json::Object(view.json()))?,
            false => print(&view, args.columns(), context.out)?,
        }
        context.out.flush()?;
        before = sample;
    }
    Ok(EXIT_OK)
}

fn print(view: &View, columns: Columns, out: &mut dyn Write) -> io::Result<()> {
    for line in view.head() {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{}", rates::titles(columns))?;
    for tube in &view.tubes {
        writeln!(out, "{}", tube.line(columns))?;
    }
    writeln!(out)
}
