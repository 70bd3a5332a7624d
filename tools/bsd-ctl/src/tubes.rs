//! `bsd-ctl tubes` and `bsd-ctl tube`: how many jobs are where.

use std::collections::HashMap;

use bsd::human::Age;
use bsd_tools::yaml::{Dictionary, Value};
use clap::{Args, ValueEnum};
use serde_json::Value as Json;

use crate::api::{ApiArgs, escaped};
use crate::table::Table;
use crate::{Context, EXIT_OK, Failure, json, names, stats};

const TUBES_HELP: &str = concat!(
    "\
In a PATTERN, * stands for any characters and ? for one; put it in quotes. Each tube costs the
server one command. PAUSED is how long a pause still lasts. WATCH counts the connections that watch
the tube, WAIT those of them that wait for a job.

OLDEST is how long ago the oldest ready job was put, whatever its priority. FAIL/MIN is how many
deliveries have failed a minute, within the last 10 minutes. The server's API tells both, where
--http leads to that of the same server; beanstalkd does not have it.

Examples:
  bsd-ctl tubes
  bsd-ctl tubes 'mail*'
  bsd-ctl tubes --sort buried --reverse
  bsd-ctl tubes --sort age --limit 10
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
    /// Most tubes to list
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print names alone, a line each: one command for all
    #[arg(long, conflicts_with_all = ["sort", "json"])]
    names: bool,
    #[command(flatten)]
    api: ApiArgs,
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
    Watchers,
    Total,
    /// Since the oldest ready job was put
    Age,
    /// Deliveries that have failed in the last 10 minutes
    Failures,
}

/// Keys of what the API alone tells of a tube.
const AGE: &str = "oldest-ready-seconds";
const RECENT: &str = "failures-per-minute";
const FAILURES: &str = "failures";

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
            Sort::Watchers => "current-watching",
            Sort::Total => "total-jobs",
            Sort::Age => AGE,
            Sort::Failures => RECENT,
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

/// Tubes that the API tells of at a time.
const RANKED_MAX: usize = 1000;

pub(crate) fn run(args: &TubesArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut client = context.connect()?;
    let names = names::matching(&mut client, args.pattern.as_deref())?;
    if names.is_empty() {
        let pattern = args.pattern.as_deref().unwrap_or("*");
        return Err(names::no_tube(pattern));
    }
    let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
    if args.names {
        for name in names.iter().take(limit) {
            writeln!(context.out, "{name}")?;
        }
        return Ok(EXIT_OK);
    }
    let mut tubes = client.tubes(&names)?;
    if tubes.is_empty() {
        return Err(names::no_tube(args.pattern.as_deref().unwrap_or("*")));
    }
    let id = client.stats()?.text("id");
    let has_more = add_ranking(args, &id, &mut tubes, context)?;
    if !has_more && matches!(args.sort, Sort::Age | Sort::Failures) {
        return Err(Failure::Input(
            "this is known to the API alone, which was not found: name it with --http ADDRESS, and \
             who asks with --token-file"
                .to_owned(),
        ));
    }
    if args.sort != Sort::Name {
        // Equal ones stay in the order of their names.
        tubes.sort_by(|a, b| weight(b, args.sort).total_cmp(&weight(a, args.sort)));
    }
    if args.reverse {
        tubes.reverse();
    }
    tubes.truncate(limit);
    match context.global.json {
        true => {
            let tubes = tubes.iter().map(|tube| Json::Object(json::object(tube)));
            writeln!(context.out, "{}", Json::Array(tubes.collect()))?;
        }
        false => table(&tubes).print(context.out)?,
    }
    Ok(EXIT_OK)
}

fn weight(tube: &Dictionary, sort: Sort) -> f64 {
    match tube.get(sort.key()) {
        Some(Value::Decimal(number)) => *number,
        _ => tube.number(sort.key()) as f64,
    }
}

/// Add to tubes what the API of the same server tells of them; false: it has no API.
fn add_ranking(
    args: &TubesArgs,
    id: &str,
    tubes: &mut [Dictionary],
    context: &Context<'_>,
) -> Result<bool, Failure> {
    let Some((api, _)) = args.api.of_server(id, context) else {
        return Ok(false);
    };
    let sort = match args.sort {
        Sort::Failures => "failures",
        _ => "age",
    };
    let pattern = args.pattern.as_deref().unwrap_or("*");
    let path = format!(
        "/ranking?sort={sort}&limit={RANKED_MAX}&tube={}",
        escaped(pattern)
    );
    let ranking = api.get(&path)?;
    let minutes = ranking["span_seconds"].as_f64().unwrap_or(0.0).max(60.0) / 60.0;
    let ranked: HashMap<&str, &Json> = ranking["tubes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tube| Some((tube["name"].as_str()?, tube)))
        .collect();
    // The others have less of it than these.
    let is_all = ranking["more"].as_u64() == Some(0);
    for tube in tubes {
        let found = ranked.get(&*tube.text("name"));
        if found.is_none() && !is_all {
            continue;
        }
        let number = |key: &str| found.and_then(|tube| tube[key].as_f64()).unwrap_or(0.0);
        let failures = number("failures") as u64;
        tube.0.extend([
            (
                AGE.to_owned(),
                Value::Decimal(number("oldest_ready_age_seconds")),
            ),
            (FAILURES.to_owned(), Value::Number(failures)),
            (
                RECENT.to_owned(),
                Value::Decimal(number("recent_failures") / minutes),
            ),
        ]);
    }
    Ok(true)
}

/// A time for people: `-` if it is not known, `0` if no job is ready.
fn time(tube: &Dictionary, key: &str) -> String {
    match tube.get(key) {
        None => "-".to_owned(),
        Some(Value::Decimal(seconds)) if *seconds > 0.0 => Age(*seconds as u64).to_string(),
        Some(Value::Number(seconds)) if *seconds > 0 => Age(*seconds).to_string(),
        Some(_) => "0".to_owned(),
    }
}

fn table(tubes: &[Dictionary]) -> Table {
    const COLUMNS: [(&str, &str); 10] = [
        ("READY", "current-jobs-ready"),
        ("OLDEST", AGE),
        ("WATCH", "current-watching"),
        ("WAIT", "current-waiting"),
        ("RESERVED", "current-jobs-reserved"),
        ("DELAYED", "current-jobs-delayed"),
        ("BURIED", "current-jobs-buried"),
        ("FAIL/MIN", RECENT),
        ("PAUSED", "pause-time-left"),
        ("URGENT", "current-jobs-urgent"),
    ];
    let titles: Vec<&str> = ["TUBE"].into_iter().chain(COLUMNS.map(|it| it.0)).collect();
    let mut table = Table::new(&titles);
    for tube in tubes {
        let cells = COLUMNS.map(|(_, key)| match (key, tube.get(key)) {
            (AGE | "pause-time-left", _) => time(tube, key),
            (RECENT, Some(Value::Decimal(rate))) if *rate > 0.0 => format!("{rate:.1}"),
            (RECENT, Some(_)) => "0".to_owned(),
            (RECENT, None) => "-".to_owned(),
            _ => tube.number(key).to_string(),
        });
        let name = names::shown(&tube.text("name"));
        table.push([name].into_iter().chain(cells).collect());
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
