//! `bsd-ctl archive`: the state of the log's archive, and its faults; and a base that is made now.

use bsd::UsageError;
use bsd::clock::{Clock, utc};
use bsd::human::{Age, Size};
use bsd::types::SECOND_NS;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs};
use crate::many::LOOK_EVERY;
use crate::stats::print_group;
use crate::{Context, EXIT_NOT_DONE, EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. What is in the archive itself, `bsd-wal
archive ls` and `bsd-wal archive verify` say, without the server. In a cluster the member that leads
writes it: ask that one; others say which it is. Exit code 1: the server keeps no archive, cannot
write it, or has a gap in it; or no member leads.

Examples:
  bsd-ctl archive
  bsd-ctl archive base --name before-upgrade --pin

",
    exit_codes!()
);

const BASE_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. A base is a copy of the whole log: what has
not changed since the last one is not uploaded again. Its state is that of the moment at which it is
begun: at once, or when a base that is under way is complete. With a name, `bsd-wal archive restore
--base NAME` restores exactly that state. `bsd-wal archive expire` removes it with time; with --pin
it stays until `bsd-wal archive unpin`.
Waits until it is complete in the store. While the archive cannot be written the server goes on
trying. Once that has lasted for --timeout the waiting ends, with exit code 1, and so it does after
--at-most; the server makes the base nevertheless, unless it ends before. Exit code 1 also: the
server keeps no archive, is a standby, or another base was asked for before and is not complete; or
the name is taken.

Examples:
  bsd-ctl archive base
  bsd-ctl archive base --name before-upgrade --pin

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct ArchiveArgs {
    #[command(subcommand)]
    command: Option<ArchiveCommand>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Subcommand)]
enum ArchiveCommand {
    /// Make a base now: a state that can be restored by its name, or that stays
    Base(BaseArgs),
}

#[derive(Args)]
#[command(after_help = BASE_HELP)]
struct BaseArgs {
    /// Its name: 1 to 64 of a-z, 0-9, '.' and '-'; it begins with a letter, and no other base has it
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,
    /// No expiry removes it until it is unpinned
    #[arg(long)]
    pin: bool,
    /// Do not wait until it is complete
    #[arg(long)]
    no_wait: bool,
    /// Wait no longer than this
    #[arg(long, value_name = "SECONDS", value_parser = crate::put::parse_seconds)]
    at_most: Option<u32>,
    #[command(flatten)]
    api: ApiArgs,
}

fn parse_name(text: &str) -> Result<String, UsageError> {
    let is_known = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b".-".contains(&it);
    match (1..=64).contains(&text.len()) && text.bytes().all(is_known) {
        // Whatever else is wrong, the server says.
        true => Ok(text.to_owned()),
        false => Err("1 to 64 of the characters a-z, 0-9, '.' and '-'".into()),
    }
}

pub(crate) fn run(args: &ArchiveArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    if let Some(ArchiveCommand::Base(args)) = &args.command {
        return base(args, context);
    }
    let server = args.api.open(context)?.get("/server")?;
    let archive = &server["archive"];
    if !archive.is_object() {
        return Err(Failure::NotDone(
            "the server keeps no archive of its log; start it with --archive URL for one"
                .to_owned(),
        ));
    }
    match context.global.json {
        true => context.tell(archive.clone(), "")?,
        false if archive["rests"] == true => {
            let member = archive["member"].as_str().unwrap_or("-");
            let line = ("written by", format!("member {member}, which leads"));
            print_group("archive", [line].into_iter(), context.out)?;
        }
        false => print_group("archive", lines(archive).into_iter(), context.out)?,
    }
    let is_written = match archive["rests"] == true {
        true => archive["member"].is_string(),
        false => archive["up"] == true,
    };
    let is_well = is_written && archive["in_gap"] == false;
    Ok(if is_well { EXIT_OK } else { EXIT_NOT_DONE })
}

fn base(args: &BaseArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let mut asked = api.post(
        "/archive/base",
        &json!({"name": args.name, "pin": args.pin}),
    )?;
    if !args.no_wait {
        asked = wait(&api, asked, args.at_most)?;
    }
    let name = asked["name"].as_str();
    let name = name.map_or(String::new(), |name| format!(" {name}"));
    let pinned = if asked["pin"] == true { ", pinned" } else { "" };
    let bytes = |key: &str| Size(asked[key].as_u64().unwrap_or_default());
    let line = match args.no_wait {
        true => format!("base{name}{pinned}: it is asked for"),
        false => format!(
            "base {}{name}{pinned}: position {}, {}, {} of them reused, in {:.1} s, at {}",
            asked["base"],
            asked["position"].as_str().unwrap_or("-"),
            bytes("bytes"),
            bytes("reused_bytes"),
            asked["seconds"].as_f64().unwrap_or_default(),
            asked["made_at"].as_str().unwrap_or("-"),
        ),
    };
    context.tell(asked, line)?;
    Ok(EXIT_OK)
}

/// Until the base is complete in the store.
fn wait(api: &Api, mut asked: Value, at_most: Option<u32>) -> Result<Value, Failure> {
    let clock = Clock::start();
    let mut troubled = None;
    let which = |asked: &Value| (asked["order"].clone(), asked["asked_at"].clone());
    let order = which(&asked);
    loop {
        if which(&asked) != order {
            return Err(Failure::NotDone(
                "the server was started again meanwhile, or another base was asked for since: \
                 `bsd-wal archive ls` says what is there"
                    .to_owned(),
            ));
        }
        match asked["state"].as_str() {
            Some("made") => return Ok(asked),
            Some("refused") => {
                let why = asked["refused"].as_str().unwrap_or("it was refused");
                return Err(Failure::NotDone(why.to_owned()));
            }
            _ => {}
        }
        let now = clock.now().mono;
        let goes_on = "it is not complete, and the server goes on with it";
        if at_most.is_some_and(|seconds| now.0 >= i64::from(seconds) * SECOND_NS) {
            return Err(Failure::NotDone(goes_on.to_owned()));
        }
        std::thread::sleep(LOOK_EVERY);
        let server = api.get("/server")?;
        match server["archive"]["trouble"].as_str() {
            None => troubled = None,
            Some(trouble) => {
                let lasted = now.since(*troubled.get_or_insert(now));
                if u128::try_from(lasted).is_ok_and(|it| it >= api.timeout.as_nanos()) {
                    return Err(Failure::NotDone(format!("{goes_on}: {trouble}")));
                }
            }
        }
        asked = api.get("/archive/base")?;
    }
}

fn lines(archive: &Value) -> Vec<(&'static str, String)> {
    let number = |key: &str| archive[key].as_u64().unwrap_or(0);
    let said = |key: &str| match &archive[key] {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => "-".to_owned(),
    };
    let word = |key: &str| if archive[key] == true { "yes" } else { "no" }.to_owned();
    let behind = archive["lag_seconds"].as_f64().unwrap_or(0.0);
    let base = match archive["last_base_timestamp_seconds"].as_u64() {
        Some(seconds) => utc(seconds.saturating_mul(1_000_000_000)),
        None => "none".to_owned(),
    };
    let mut lines = vec![
        ("written", word("up")),
        ("trouble", said("trouble")),
        ("epoch", said("epoch")),
        ("restorable up to", said("archived")),
        ("not yet archived", Size(number("lag_bytes")).to_string()),
        ("behind", Age(behind as u64).to_string()),
        ("in a gap", word("in_gap")),
        ("gaps", said("gaps")),
        ("last base", base),
        ("bases", said("bases")),
        ("links put", said("links")),
        ("bytes of them", Size(number("bytes")).to_string()),
        ("calls that failed", said("errors")),
    ];
    // A server of an earlier version says nothing of it.
    if archive["joins"].is_object() {
        lines.extend(joins(&archive["joins"]));
    }
    lines
}

/// What is said of links that have aged.
fn joins(joins: &Value) -> [(&'static str, String); 6] {
    let number = |key: &str| joins[key].as_u64();
    let said = |key: &str| number(key).map_or("-".to_owned(), |it| it.to_string());
    let last = match number("last_pass_timestamp_seconds") {
        Some(seconds) => utc(seconds.saturating_mul(1_000_000_000)),
        None => "not yet".to_owned(),
    };
    let trouble = joins["trouble"].as_str().unwrap_or("-").to_owned();
    [
        ("joined last", last),
        ("joined links", said("joined_links")),
        ("single links", said("single_links")),
        ("joined objects made", said("objects")),
        ("joins that failed", said("failures")),
        ("trouble with joins", trouble),
    ]
}
