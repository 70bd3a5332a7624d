//! Writes jobs. Pages of ids, then bodies and figures of some jobs at a time.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bsd_tools::client::{Client, Reply};
use bsd_tools::human::count;
use bsd_tools::yaml::Dictionary;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::{BATCH_JOBS, BATCH_SIZE, check_can};
use crate::{Context, EXIT_OK, Failure, json, names, note};

/// Jobs of a page.
const PAGE: usize = 1000;

const EXPORT_HELP: &str = concat!(
    "\
Over the protocol, and only from bsd. A line of JSON for each job: its body, tube, state, priority,
delay, time to run, key, group, and why it failed. Jobs stay where they are. Jobs that change their
state meanwhile may be missing, or be there twice: pause the tube, or stop its workers. A reserved
job is written with --state reserved alone; an import makes it ready.

`bsd-ctl import` puts the lines into a running server. To save the log itself, take a backup:
`bsd-wal backup`.

Examples:
  bsd-ctl export mail > mail.jsonl
  bsd-ctl export mail --state buried --state delayed

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = EXPORT_HELP)]
pub(crate) struct ExportArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    tube: String,
    /// Only jobs in this state; may be given several times [default: all that are not reserved]
    #[arg(long = "state", value_name = "STATE", value_enum)]
    states: Vec<Exported>,
}

/// A state in which jobs are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Exported {
    Ready,
    Delayed,
    Buried,
    Reserved,
}

impl Exported {
    const USUAL: [Exported; 3] = [Exported::Ready, Exported::Delayed, Exported::Buried];

    fn word(self) -> &'static str {
        match self {
            Exported::Ready => "ready",
            Exported::Delayed => "delayed",
            Exported::Buried => "buried",
            Exported::Reserved => "reserved",
        }
    }
}

pub(crate) fn run_export(args: &ExportArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut client = context.connect()?;
    check_can(&mut client, &["list-jobs"])?;
    let tube = &args.tube;
    let found = client.tube(tube)?.ok_or_else(|| names::no_tube(tube))?;
    let states = match args.states.is_empty() {
        true => &Exported::USUAL[..],
        false => &args.states,
    };
    let mut written = 0;
    for (at, state) in states.iter().enumerate() {
        // A state that is given twice is written once.
        if !states[..at].contains(state) {
            written += export(&mut client, tube, *state, context)?;
        }
    }
    context.out.flush()?;
    let reserved = found.number("current-jobs-reserved");
    let left_out = match reserved > 0 && !states.contains(&Exported::Reserved) {
        true => format!("; {} left out", count(reserved, "reserved job")),
        false => String::new(),
    };
    note(format_args!(
        "{} of {tube} written{left_out}",
        count(written, "job")
    ));
    Ok(EXIT_OK)
}

/// Write all jobs that are in this state; how many they are.
fn export(
    client: &mut Client,
    tube: &str,
    state: Exported,
    context: &mut Context<'_>,
) -> Result<u64, Failure> {
    let (mut cursor, mut written) = ("0".to_owned(), 0);
    loop {
        let command = format!("list-jobs {tube} {} {cursor} {PAGE}", state.word());
        let reply = client.ask(&command)?;
        if reply.line == "NOT_FOUND" {
            // It has vanished with its last job.
            return match &*cursor {
                "0" => Ok(written),
                _ => Err(Failure::NotDone(
                    "the list has changed under the export: buried jobs were kicked meanwhile; \
                     begin again"
                        .to_owned(),
                )),
            };
        }
        if !reply.line.starts_with("OK ") {
            return Err(client.unexpected(&command, &reply.line).into());
        }
        let (next, jobs) = page(&reply.data);
        for batch in batches(&jobs) {
            written += write(client, batch, context)?;
        }
        if next == "0" {
            return Ok(written);
        }
        cursor = next;
    }
}

/// The cursor of the next page, and the ids and sizes of jobs.
fn page(document: &[u8]) -> (String, Vec<(u64, u64)>) {
    let text = String::from_utf8_lossy(document);
    let (mut next, mut jobs) = ("0".to_owned(), Vec::new());
    let mut id = 0;
    for line in text.lines() {
        if let Some(cursor) = line.strip_prefix("next: ") {
            next = cursor.to_owned();
        } else if let Some(found) = line.strip_prefix("- id: ") {
            id = found.parse().unwrap_or(0);
        } else if let Some(size) = line.strip_prefix("  size: ") {
            jobs.push((id, size.parse().unwrap_or(0)));
        }
    }
    (next, jobs)
}

/// Parts of a list that are asked for at a time. One that is large is alone.
fn batches(jobs: &[(u64, u64)]) -> Vec<&[(u64, u64)]> {
    let (mut parts, mut begin, mut size) = (Vec::new(), 0, 0);
    for (at, (_, bytes)) in jobs.iter().enumerate() {
        let is_full = at - begin == BATCH_JOBS || size + bytes > BATCH_SIZE;
        if is_full && at > begin {
            parts.push(&jobs[begin..at]);
            (begin, size) = (at, 0);
        }
        size += bytes;
    }
    if begin < jobs.len() {
        parts.push(&jobs[begin..]);
    }
    parts
}

fn write(
    client: &mut Client,
    jobs: &[(u64, u64)],
    context: &mut Context<'_>,
) -> Result<u64, Failure> {
    let commands = |(id, _): &(u64, u64)| {
        format!("peek {id}\r\nstats-job {id}\r\nstats-job-extended {id}\r\n")
    };
    let commands: String = jobs.iter().map(commands).collect();
    client.send(commands.as_bytes())?;
    let mut written = 0;
    for (id, _) in jobs {
        let [body, stats, more] = [client.reply()?, client.reply()?, client.reply()?];
        // It may have been deleted since it was listed.
        if !body.line.starts_with("FOUND ") || !stats.line.starts_with("OK ") {
            continue;
        }
        let parse = |reply: &Reply| {
            let parsed = Dictionary::parse(&reply.data, &["tube", "state", "key", "group", "text"]);
            parsed.map_err(|_| client.unexpected("stats-job", &reply.line))
        };
        let more = match more.line.starts_with("OK ") {
            true => parse(&more)?,
            false => Dictionary::default(),
        };
        let line = line(*id, &body.data, &parse(&stats)?, &more);
        writeln!(context.out, "{}", Value::Object(line))?;
        written += 1;
    }
    Ok(written)
}

/// What is known of a job.
fn line(id: u64, body: &[u8], stats: &Dictionary, more: &Dictionary) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("id".to_owned(), id.into());
    for (key, name) in [("tube", "tube"), ("state", "state")] {
        line.insert(name.to_owned(), stats.text(key).into());
    }
    for (key, name) in [
        ("pri", "priority"),
        ("delay", "delay"),
        ("ttr", "ttr"),
        ("age", "age_seconds"),
        ("time-left", "time_left_seconds"),
        ("reserves", "reserves"),
        ("timeouts", "timeouts"),
        ("releases", "releases"),
        ("buries", "buries"),
        ("kicks", "kicks"),
    ] {
        line.insert(name.to_owned(), stats.number(key).into());
    }
    let known = line.keys().cloned().collect::<Vec<_>>();
    for (key, value) in json::object(more) {
        let name = key.replace('-', "_");
        if !known.contains(&name) {
            line.insert(name, value);
        }
    }
    let (name, value) = match std::str::from_utf8(body) {
        Ok(text) => ("body", json!(text)),
        Err(_) => ("body_base64", json!(STANDARD.encode(body))),
    };
    line.insert(name.to_owned(), value);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let document =
            b"---\nnext: 1042-65536-0\njobs:\n- id: 17\n  size: 120\n- id: 18\n  size: 0\n";
        let expected = ("1042-65536-0".to_owned(), vec![(17, 120), (18, 0)]);
        assert_eq!(page(document), expected);
        assert_eq!(page(b"---\nnext: 0\njobs: []\n"), ("0".to_owned(), vec![]));
    }

    #[test]
    fn batches_are_small_and_leave_nothing_out() {
        let jobs: Vec<(u64, u64)> = (0..250).map(|id| (id, 10)).collect();
        let sizes: Vec<usize> = batches(&jobs).iter().map(|part| part.len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let large = [(1, BATCH_SIZE * 2), (2, 1), (3, BATCH_SIZE)];
        let sizes: Vec<usize> = batches(&large).iter().map(|part| part.len()).collect();
        assert_eq!(sizes, [1, 1, 1]);
        assert!(batches(&[]).is_empty());
    }
}
