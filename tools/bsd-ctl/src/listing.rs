//! `bsd-ctl jobs`, `search` and `clients`: many at once, as the server's API lists them.

use clap::Args;
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs, escaped};
use crate::job::State;
use crate::many::wait;
use crate::table::Table;
use crate::{Context, EXIT_OK, Failure, names};

/// Jobs or clients that the server lists at a time.
const PAGE: u64 = 250;

const JOBS_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. The jobs come in the order of their turn. AGE
and LEFT are in seconds; LEFT is how long until a delayed job is ready.

Examples:
  bsd-ctl jobs mail
  bsd-ctl jobs mail --state buried --limit 5
  bsd-ctl jobs mail --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = JOBS_HELP)]
pub(crate) struct JobsArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    tube: String,
    /// Which of its jobs
    #[arg(long, value_enum, default_value = "ready")]
    state: State,
    /// Most jobs to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_jobs(args: &JobsArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let path = format!(
        "/tubes/{}/jobs?state={}",
        escaped(&args.tube),
        args.state.word()
    );
    let jobs = pages(&api, &path, "jobs", args.limit)?;
    if jobs.is_empty() {
        return Err(Failure::NotDone(format!(
            "tube \"{}\" has no {} job; `bsd-ctl tube {}` shows what it has",
            args.tube,
            args.state.word(),
            args.tube
        )));
    }
    show_jobs(jobs, context)
}

/// Pages of a list, one after the other.
pub(crate) fn pages(api: &Api, path: &str, list: &str, limit: u64) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let size = PAGE.min(limit - found.len() as u64);
        let mark = if path.contains('?') { '&' } else { '?' };
        let mut page = api.get(&format!("{path}{mark}limit={size}{after}"))?;
        if let Value::Array(part) = page[list].take() {
            found.extend(part);
        }
        let next = match &page["next"] {
            Value::Null => return Ok(found),
            Value::String(next) => escaped(next),
            next => next.to_string(),
        };
        if found.len() as u64 >= limit {
            return Ok(found);
        }
        after = format!("&after={next}");
    }
}

fn show_jobs(jobs: Vec<Value>, context: &mut Context<'_>) -> Result<u8, Failure> {
    if context.global.json {
        writeln!(context.out, "{}", Value::Array(jobs))?;
        return Ok(EXIT_OK);
    }
    let mut table = Table::new(&[
        "TUBE", "ID", "PRIORITY", "AGE", "LEFT", "BYTES", "RESERVES", "TIMEOUTS", "KICKS",
    ]);
    for job in &jobs {
        let mut row = vec![names::shown(job["tube"].as_str().unwrap_or_default())];
        row.push(job["id"].to_string());
        row.push(job["priority"].to_string());
        row.push(whole(&job["age_seconds"]));
        row.push(whole(&job["time_left_seconds"]));
        let counts = ["body_size", "reserves", "timeouts", "kicks"];
        row.extend(counts.map(|key| job[key].to_string()));
        table.push(row);
    }
    table.print(context.out)?;
    Ok(EXIT_OK)
}

/// Whole seconds; `-` where there are none.
fn whole(seconds: &Value) -> String {
    seconds
        .as_f64()
        .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.0}"))
}

const SEARCH_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Looks into the bodies of all jobs of the
tubes, up to 1 MiB each, while clients go on; nothing is reserved. Ctrl-C ends it. In a PATTERN, *
stands for any characters and ? for one; put it in quotes.

Examples:
  bsd-ctl search mail one
  bsd-ctl search '*' tw --state ready --limit 10

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = SEARCH_HELP)]
pub(crate) struct SearchArgs {
    /// The tube, or those whose whole name is like this
    #[arg(value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tubes: String,
    /// Text that the body contains
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    text: String,
    /// Only jobs in this state; may be given several times [default: all that are not reserved]
    #[arg(long = "state", value_name = "STATE", value_enum)]
    states: Vec<State>,
    /// Most jobs to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=250))]
    limit: u64,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_search(args: &SearchArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let mut filter = json!({"tube": args.tubes, "contains": {"data": args.text}});
    if !args.states.is_empty() {
        filter["states"] = State::words(&args.states);
    }
    let search = api.post("/search", &json!({"filter": filter, "limit": args.limit}))?;
    let mut search = wait(&api, "/search", search, "searching")?;
    let Value::Array(jobs) = search["jobs"].take() else {
        return Err(Failure::NotDone(
            "the search was ended before it was done".to_owned(),
        ));
    };
    if jobs.is_empty() {
        return Err(Failure::NotDone(format!(
            "no job with this text was found, of {} that were looked at",
            search["looked_at"]
        )));
    }
    show_jobs(jobs, context)
}

const CLIENTS_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. UNREAD is how many bytes of replies a client
has not taken yet.

Examples:
  bsd-ctl clients
  bsd-ctl clients --limit 1000 --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = CLIENTS_HELP)]
pub(crate) struct ClientsArgs {
    /// Most jobs to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_clients(args: &ClientsArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let clients = pages(&api, "/clients", "clients", args.limit)?;
    if context.global.json {
        writeln!(context.out, "{}", Value::Array(clients))?;
        return Ok(EXIT_OK);
    }
    let mut table = Table::new(&["ADDRESS", "ID", "WATCHES", "UNREAD", "USES", "WAITS"]);
    for client in &clients {
        let waits = if client["waits"] == true { "yes" } else { "no" };
        table.push(vec![
            client["address"].as_str().unwrap_or("-").to_owned(),
            client["id"].to_string(),
            client["watched_tubes"].to_string(),
            client["unread_bytes"].to_string(),
            names::shown(client["uses"].as_str().unwrap_or("-")),
            waits.to_owned(),
        ]);
    }
    table.print(context.out)?;
    Ok(EXIT_OK)
}
