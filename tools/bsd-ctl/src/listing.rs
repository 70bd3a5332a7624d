//! `bsd-ctl jobs`, `search` and `clients`: many at once, as the server's API lists them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs, escaped};
use crate::job::State;
use crate::many::wait;
use crate::pick::Pick;
use crate::table::Table;
use crate::why::age;
use crate::{Context, EXIT_OK, Failure, names, shown};

/// Jobs or clients that the server lists at a time.
const PAGE: u64 = 250;

/// Characters of a body, or of a worker's text, that are shown in a line.
const SHOWN_MAX: usize = 200;

const JOBS_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. The jobs come in the order of their turn:
buried ones in the order in which they were buried. LEFT is how long until a delayed job is ready. A
body is shown as text, or as hexadecimal digits if it is no text: the first 200 characters. A body
past 64 KiB is not shown. With --json each job is a line.

Examples:
  bsd-ctl jobs mail
  bsd-ctl jobs mail --state buried --limit 5 --bodies
  bsd-ctl jobs mail --contains o --json

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
    #[command(flatten)]
    pick: Pick,
    /// Show bodies, and what workers said of failures
    #[arg(long)]
    bodies: bool,
    /// Most jobs to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_jobs(args: &JobsArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let is_all = args.pick.is_all();
    let mut jobs = match is_all {
        true => {
            let (tube, state) = (escaped(&args.tube), args.state.word());
            let path = format!("/tubes/{tube}/jobs?state={state}");
            pages(&api, &path, "jobs", args.limit)?
        }
        false => found(args, &api)?,
    };
    if jobs.is_empty() {
        let such = if is_all { "" } else { "such " };
        return Err(Failure::NotDone(format!(
            "tube \"{}\" has no {such}{} job; `bsd-ctl tube {}` shows what it has",
            args.tube,
            args.state.word(),
            args.tube
        )));
    }
    if args.bodies {
        for job in &mut jobs {
            add_body(&api, job)?;
        }
    }
    show_jobs(jobs, args.bodies, context)
}

/// The jobs that a filter means, over as many searches as that takes.
fn found(args: &JobsArgs, api: &Api) -> Result<Vec<Value>, Failure> {
    let mut filter = json!({"tube": args.tube, "states": [args.state.word()]});
    args.pick.add_to(&mut filter);
    let mut found = Vec::new();
    let mut after = Value::Null;
    loop {
        let limit = PAGE.min(args.limit - found.len() as u64);
        let request = json!({"filter": filter, "limit": limit, "after": after});
        let mut search = wait(api, "/search", api.post("/search", &request)?, "searching")?;
        let Value::Array(jobs) = search["jobs"].take() else {
            return Err(ended());
        };
        found.extend(jobs);
        after = search["next"].take();
        if after.is_null() || found.len() as u64 >= args.limit {
            return Ok(found);
        }
    }
}

fn ended() -> Failure {
    Failure::NotDone("the search was ended before it was done".to_owned())
}

/// What a list leaves out: its body, and what a worker said of it. It may be gone by now.
fn add_body(api: &Api, job: &mut Value) -> Result<(), Failure> {
    match api.get(&format!("/jobs/{}", job["id"])) {
        Ok(whole) => {
            *job = whole;
            Ok(())
        }
        Err(Failure::NotDone(_)) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Bytes, as the API shows them.
pub(crate) fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    let data = value["data"].as_str()?;
    match value["encoding"].as_str() {
        Some("base64") => STANDARD.decode(data).ok(),
        _ => Some(data.as_bytes().to_vec()),
    }
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

fn show_jobs(jobs: Vec<Value>, has_bodies: bool, context: &mut Context<'_>) -> Result<u8, Failure> {
    if context.global.json {
        for job in jobs {
            writeln!(context.out, "{job}")?;
        }
        return Ok(EXIT_OK);
    }
    let mut titles = vec![
        "TUBE", "ID", "PRIORITY", "AGE", "LEFT", "BYTES", "RESERVES", "TIMEOUTS", "KICKS",
    ];
    if has_bodies {
        titles.extend(["REASON", "BODY"]);
    }
    let mut table = Table::new(&titles);
    if has_bodies {
        table = table.with_text_last();
    }
    for job in &jobs {
        let mut row = vec![names::shown(job["tube"].as_str().unwrap_or_default())];
        row.push(job["id"].to_string());
        row.push(job["priority"].to_string());
        row.push(time(&job["age_seconds"]));
        row.push(time(&job["time_left_seconds"]));
        let counts = ["body_size", "reserves", "timeouts", "kicks"];
        row.extend(counts.map(|key| job[key].to_string()));
        if has_bodies {
            row.push(names::shown(job["reason"].as_str().unwrap_or("-")));
            row.push(body(job));
        }
        table.push(row);
    }
    table.print(context.out)?;
    Ok(EXIT_OK)
}

/// What a worker said of a job, and its body.
fn body(job: &Value) -> String {
    let shown = |value: &Value| bytes_of(value).map(|bytes| shown::body(&bytes, SHOWN_MAX));
    let body = match (shown(&job["body"]), job["body_size"].as_u64()) {
        (Some(body), _) => body,
        (None, Some(size)) => format!("({size} bytes: `bsd-ctl job {} --body`)", job["id"]),
        (None, None) => "-".to_owned(),
    };
    match shown(&job["text"]) {
        Some(text) => format!("{text} | {body}"),
        None => body,
    }
}

/// A time for people; `-` if it is missing.
fn time(seconds: &Value) -> String {
    match seconds.as_f64() {
        Some(_) => age(seconds).to_string(),
        None => "-".to_owned(),
    }
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
        return Err(ended());
    };
    if jobs.is_empty() {
        return Err(Failure::NotDone(format!(
            "no job with this text was found, of {} that were looked at",
            search["looked_at"]
        )));
    }
    show_jobs(jobs, false, context)
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
    /// Most clients to list
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
