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
write it, or has a gap in it, or in one of two; or no member leads.

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
it stays until `bsd-wal archive unpin`. With two archives it is made in each, at about the same
moment.
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
    /// In the archive at this address alone, as `bsd-ctl archive` shows it [default: in each]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Do not wait until it is complete
    #[arg(long, conflicts_with = "at_most")]
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
    // A server of an earlier version has one at most, and no list.
    let all = match server["archives"].as_array() {
        Some(all) => all.clone(),
        None => vec![server["archive"].clone()],
    };
    if !all.iter().any(Value::is_object) {
        return Err(Failure::NotDone(
            "the server keeps no archive of its log; start it with --archive URL for one"
                .to_owned(),
        ));
    }
    match (context.global.json, &all[..]) {
        (true, [one]) => context.tell(one.clone(), "")?,
        (true, _) => context.tell(json!({ "archives": all }), "")?,
        (false, _) => print(&all, context)?,
    }
    Ok(match all.iter().all(is_well) {
        true => EXIT_OK,
        false => EXIT_NOT_DONE,
    })
}

fn is_well(archive: &Value) -> bool {
    let is_written = match archive["rests"] == true {
        true => archive["member"].is_string() && archive["trouble"].is_null(),
        false => archive["up"] == true,
    };
    is_written && archive["in_gap"] == false
}

fn print(all: &[Value], context: &mut Context<'_>) -> Result<(), Failure> {
    let first = if all.len() > 1 {
        "first archive"
    } else {
        "archive"
    };
    for (archive, title) in all.iter().zip([first, "second archive"]) {
        let member = || archive["member"].as_str().unwrap_or("-");
        let mut lines = match (archive["rests"] == true, archive["trouble"].as_str()) {
            (true, Some(trouble)) => vec![("trouble", trouble.to_owned())],
            (true, None) => vec![("written by", format!("member {}, which leads", member()))],
            (false, _) => lines(archive),
        };
        if all.len() > 1 {
            let url = archive["url"].as_str().unwrap_or("-");
            lines.insert(0, ("address", url.to_owned()));
        }
        print_group(title, lines.into_iter(), context.out)?;
    }
    Ok(())
}

fn base(args: &BaseArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let mut order = json!({"name": args.name, "pin": args.pin});
    if let Some(url) = &args.url {
        order["url"] = json!(url);
    }
    let mut asked = api.post("/archive/base", &order)?;
    if !args.no_wait {
        asked = wait(&api, asked, args.at_most)?;
    }
    let each = in_each(&asked);
    let lines = each.iter().map(|it| match each.len() {
        1 => line(it, args.no_wait),
        _ => format!(
            "{}: {}",
            it["url"].as_str().unwrap_or("-"),
            line(it, args.no_wait)
        ),
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    context.tell(asked, lines)?;
    Ok(EXIT_OK)
}

/// The orders of each archive. A server of an earlier version has one, and no list.
fn in_each(asked: &Value) -> Vec<Value> {
    match asked["archives"].as_array() {
        Some(all) => all.clone(),
        None => vec![asked.clone()],
    }
}

fn line(asked: &Value, is_asked_alone: bool) -> String {
    let name = asked["name"].as_str();
    let name = name.map_or(String::new(), |name| format!(" {name}"));
    let pinned = if asked["pin"] == true { ", pinned" } else { "" };
    let bytes = |key: &str| Size(asked[key].as_u64().unwrap_or_default());
    match is_asked_alone {
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
    }
}

/// Until the base is complete or refused in each store.
fn wait(api: &Api, mut asked: Value, at_most: Option<u32>) -> Result<Value, Failure> {
    let clock = Clock::start();
    let mut troubled = None;
    let which = |it: &Value| [&it["url"], &it["order"], &it["asked_at"]].map(Value::clone);
    let orders: Vec<_> = in_each(&asked).iter().map(which).collect();
    loop {
        // Of an archive that was not asked it is another order.
        let mut each = in_each(&asked);
        each.retain(|it| orders.contains(&which(it)));
        if each.len() < orders.len() {
            return Err(Failure::NotDone(
                "the server was started again meanwhile, or another base was asked for since: \
                 `bsd-wal archive ls` says what is there"
                    .to_owned(),
            ));
        }
        if each.iter().all(|it| it["state"] == "made") {
            return Ok(answer(each));
        }
        let pending: Vec<_> = each.iter().filter(|it| is_pending(it)).collect();
        let now = clock.now().mono;
        let is_over = at_most.is_some_and(|seconds| now.0 >= i64::from(seconds) * SECOND_NS);
        if pending.is_empty() || is_over {
            return Err(undone(&each, &Value::Null));
        }
        std::thread::sleep(LOOK_EVERY);
        let server = api.get("/server")?;
        let is_troubled = |it: &&Value| trouble_of(&server, &it["url"]).is_some();
        if pending.iter().any(is_troubled) {
            let lasted = now.since(*troubled.get_or_insert(now));
            if u128::try_from(lasted).is_ok_and(|it| it >= api.timeout.as_nanos()) {
                return Err(undone(&each, &server));
            }
        } else {
            troubled = None;
        }
        asked = api.get("/archive/base")?;
    }
}

/// As the server answers: the first, and all.
fn answer(each: Vec<Value>) -> Value {
    let mut answer = each.first().cloned().unwrap_or_default();
    answer["archives"] = each.into();
    answer
}

fn is_pending(asked: &Value) -> bool {
    asked["state"] != "made" && asked["state"] != "refused"
}

/// How far it is in each archive; and in what trouble, as the server says.
fn undone(each: &[Value], server: &Value) -> Failure {
    let told = each.iter().map(|it| {
        let how_far = match it["state"].as_str() {
            Some("made") => "it is complete".to_owned(),
            Some("refused") => it["refused"]
                .as_str()
                .unwrap_or("it was refused")
                .to_owned(),
            _ => {
                let trouble = trouble_of(server, &it["url"]).map(|why| format!(": {why}"));
                let trouble = trouble.unwrap_or_default();
                format!("it is not complete, and the server goes on with it{trouble}")
            }
        };
        match each.len() {
            1 => how_far,
            _ => format!("{}: {how_far}", it["url"].as_str().unwrap_or("-")),
        }
    });
    Failure::NotDone(told.collect::<Vec<_>>().join("; "))
}

/// What the archive at this address is in trouble with. A server of an earlier version has one.
fn trouble_of<'a>(server: &'a Value, url: &Value) -> Option<&'a str> {
    let archives = server["archives"].as_array();
    let archive = archives.and_then(|all| all.iter().find(|it| it["url"] == *url));
    archive.unwrap_or(&server["archive"])["trouble"].as_str()
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
