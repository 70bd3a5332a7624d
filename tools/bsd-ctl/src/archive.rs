//! `bsd-ctl archive`: the state of the log's archive, and its faults.

use bsd::clock::utc;
use bsd::human::{Age, Size};
use clap::Args;
use serde_json::Value;

use crate::api::ApiArgs;
use crate::stats::print_group;
use crate::{Context, EXIT_NOT_DONE, EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. What is in the archive itself, `bsd-wal
archive ls` and `bsd-wal archive verify` say, without the server. Exit code 1: the server keeps no
archive, cannot write it, or has a gap in it.

Examples:
  bsd-ctl archive

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ArchiveArgs {
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(args: &ArchiveArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
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
        false => print_group("archive", lines(archive).into_iter(), context.out)?,
    }
    let is_well = archive["up"] == true && archive["in_gap"] == false;
    Ok(if is_well { EXIT_OK } else { EXIT_NOT_DONE })
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
