//! `bsd-ctl client`: one client that is connected, and the end of its connection.

use bsd_tools::human::count;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs, escaped};
use crate::why::age;
use crate::{Context, EXIT_OK, Failure, names};

const AFTER_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. `bsd-ctl clients` lists the ids. The jobs
that a closed client had reserved are ready again. It may connect again.

Examples:
  bsd-ctl client show 1
  bsd-ctl client close 1

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ClientArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Show its address, the tubes that it watches and the jobs that it has reserved
    Show(One),
    /// Close its connection
    Close(One),
}

#[derive(Args)]
struct One {
    /// The client, as `bsd-ctl clients` shows it
    id: u32,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(args: &ClientArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    match &args.what {
        What::Show(one) => show(one, context),
        What::Close(one) => close(one, context),
    }
}

fn find(one: &One, api: &Api) -> Result<Value, Failure> {
    api.get(&format!("/clients/{}", one.id))
}

fn address(client: &Value) -> String {
    let address = client["address"].as_str();
    names::shown(address.unwrap_or("a socket of the server's machine"))
}

fn list<'a>(client: &'a Value, key: &str) -> &'a [Value] {
    client[key].as_array().map_or(&[], Vec::as_slice)
}

fn show(one: &One, context: &mut Context<'_>) -> Result<u8, Failure> {
    let client = find(one, &one.api.open(context)?)?;
    if context.global.json {
        writeln!(context.out, "{client}")?;
        return Ok(EXIT_OK);
    }
    let text = |value: &Value| names::shown(value.as_str().unwrap_or("-"));
    let watches: Vec<String> = list(&client, "watches").iter().map(text).collect();
    let jobs = list(&client, "reserved").iter().map(|job| {
        let left = age(&job["time_left_seconds"]);
        format!("{} of {} ({left} left)", job["id"], text(&job["tube"]))
    });
    let jobs: Vec<String> = jobs.collect();
    for (label, value) in [
        ("address", address(&client)),
        ("name", text(&client["name"])),
        ("uses", text(&client["uses"])),
        ("watches", watches.join(", ")),
        ("unread bytes", client["unread_bytes"].to_string()),
        ("has reserved", jobs.join(", ")),
    ] {
        let value = if value.is_empty() { "-" } else { &value };
        writeln!(context.out, "{label:<12}  {value}")?;
    }
    Ok(EXIT_OK)
}

/// Ids are given again: so the one is closed that was seen, or none.
fn close(one: &One, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = one.api.open(context)?;
    let client = find(one, &api)?;
    let only = match client["address"].as_str() {
        Some(address) => format!("?address={}", escaped(address)),
        None => String::new(),
    };
    api.delete(&format!("/clients/{}{only}", one.id))?;
    let jobs = list(&client, "reserved").len() as u64;
    context.tell(
        json!({"id": one.id, "closed": true, "address": client["address"], "reserved": jobs}),
        format_args!(
            "client {} at {} was closed; it had reserved {}",
            one.id,
            address(&client),
            count(jobs, "job")
        ),
    )?;
    Ok(EXIT_OK)
}
