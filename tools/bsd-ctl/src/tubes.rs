//! `bsd-ctl tubes` and `bsd-ctl tube`: how many jobs are where.

use bsd_tools::yaml::Dictionary;
use clap::{Args, ValueEnum};
use serde_json::Value as Json;

use crate::table::Table;
use crate::{Context, EXIT_OK, Failure, json, names, stats};

const TUBES_HELP: &str = concat!(
    "\
In a PATTERN, * stands for any characters and ? for one; put it in quotes. Each tube costs the
server one command. PAUSED is how long a pause still lasts, in seconds.

Examples:
  bsd-ctl tubes
  bsd-ctl tubes 'mail*'
  bsd-ctl tubes --sort buried --reverse
  bsd-ctl tubes --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = TUBES_HELP)]
pub(crate) struct TubesArgs {
    /// Only tubes whose whole name is like this
    #[arg(value_parser = names::parse_pattern)]
    pattern: Option<String>,
    /// Sort key: numbers, the largest first
    #[arg(long, value_enum, default_value = "name")]
    sort: Sort,
    /// The other way round
    #[arg(long)]
    reverse: bool,
}

/// Sort key of a list of tubes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    Name,
    Ready,
    Urgent,
    Delayed,
    Reserved,
    Buried,
    Waiting,
    Total,
}

impl Sort {
    /// The key of a tube's document.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Ready => "current-jobs-ready",
            Sort::Urgent => "current-jobs-urgent",
            Sort::Delayed => "current-jobs-delayed",
            Sort::Reserved => "current-jobs-reserved",
            Sort::Buried => "current-jobs-buried",
            Sort::Waiting => "current-waiting",
            Sort::Total => "total-jobs",
        }
    }
}

const TUBE_HELP: &str = concat!(
    "\
Examples:
  bsd-ctl tube mail
  bsd-ctl tube mail --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = TUBE_HELP)]
pub(crate) struct TubeArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    name: String,
}

pub(crate) fn run(args: &TubesArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut client = context.connect()?;
    let names = names::matching(&mut client, args.pattern.as_deref())?;
    let mut tubes = client.tubes(&names)?;
    if tubes.is_empty() {
        let pattern = args.pattern.as_deref().unwrap_or("*");
        return Err(names::no_tube(pattern));
    }
    if args.sort != Sort::Name {
        // Equal ones stay in the order of their names.
        tubes.sort_by_key(|tube| std::cmp::Reverse(tube.number(args.sort.key())));
    }
    if args.reverse {
        tubes.reverse();
    }
    match context.global.json {
        true => {
            let tubes = tubes.iter().map(|tube| Json::Object(json::object(tube)));
            writeln!(context.out, "{}", Json::Array(tubes.collect()))?;
        }
        false => table(&tubes).print(context.out)?,
    }
    Ok(EXIT_OK)
}

fn table(tubes: &[Dictionary]) -> Table {
    const COLUMNS: [(&str, &str); 7] = [
        ("READY", "current-jobs-ready"),
        ("URGENT", "current-jobs-urgent"),
        ("DELAYED", "current-jobs-delayed"),
        ("RESERVED", "current-jobs-reserved"),
        ("BURIED", "current-jobs-buried"),
        ("WAITING", "current-waiting"),
        ("PAUSED", "pause-time-left"),
    ];
    let titles: Vec<&str> = ["TUBE"].into_iter().chain(COLUMNS.map(|it| it.0)).collect();
    let mut table = Table::new(&titles);
    for tube in tubes {
        let numbers = COLUMNS.map(|(_, key)| tube.number(key).to_string());
        let name = names::shown(&tube.text("name"));
        table.push([name].into_iter().chain(numbers).collect());
    }
    table
}

pub(crate) fn run_one(args: &TubeArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let tube = context.connect()?.tube(&args.name)?;
    let tube = tube.ok_or_else(|| names::no_tube(&args.name))?;
    if context.global.json {
        writeln!(context.out, "{}", Json::Object(json::object(&tube)))?;
        return Ok(EXIT_OK);
    }
    let lines = tube.0.iter().filter(|(key, _)| key != "name");
    let lines = lines.map(|(key, value)| (&**key, value.to_string()));
    stats::print_group(&format!("tube {}", args.name), lines, context.out)?;
    Ok(EXIT_OK)
}
