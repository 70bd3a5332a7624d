//! `bsd-ctl job` and `bsd-ctl peek`: one job, with its body. Neither reserves it.

use bsd::clock::utc;
use bsd::human::Age;
use bsd_tools::client::{Client, ClientError};
use bsd_tools::human::count;
use bsd_tools::yaml::Dictionary;
use clap::{Args, ValueEnum};
use serde_json::Value as Json;

use crate::{Context, EXIT_OK, Failure, json, names};

/// Characters of a body that people are shown at most.
const SHOWN_MAX: usize = 4096;

const JOB_HELP: &str = concat!(
    "\
A body is shown if it is text, up to 4096 characters. --body writes all of it, as it is, and nothing
else.

Examples:
  bsd-ctl job 1
  bsd-ctl job 1 --json
  bsd-ctl job 1 --body > body

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = JOB_HELP)]
pub(crate) struct JobArgs {
    /// The job
    id: u64,
    #[command(flatten)]
    show: Show,
}

#[derive(Args)]
struct Show {
    /// Write the body alone, as it is
    #[arg(long, conflicts_with = "json")]
    body: bool,
}

const PEEK_HELP: &str = concat!(
    "\
The job is the one that would be reserved next, or become ready next, or be kicked next. It stays as
it is.

Examples:
  bsd-ctl peek mail
  bsd-ctl peek mail --state buried
  bsd-ctl peek mail --state delayed --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = PEEK_HELP)]
pub(crate) struct PeekArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    tube: String,
    /// Which of its jobs
    #[arg(long, value_enum, default_value = "ready")]
    state: State,
    #[command(flatten)]
    show: Show,
}

/// A state in which a tube's next job can be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    Ready,
    Delayed,
    Buried,
}

impl State {
    /// States as the API has them.
    pub(crate) fn words(states: &[State]) -> Json {
        states
            .iter()
            .map(|state| Json::from(state.word()))
            .collect()
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Delayed => "delayed",
            State::Buried => "buried",
        }
    }
}

/// Make `tube` the one that peeks and kicks of this connection are about.
pub(crate) fn choose(client: &mut Client, tube: &str) -> Result<(), ClientError> {
    let command = format!("use {tube}");
    let reply = client.ask(&command)?;
    match reply.line.starts_with("USING ") {
        true => Ok(()),
        false => Err(client.unexpected(&command, &reply.line)),
    }
}

/// Error for a job that does not exist.
pub(crate) fn no_job(id: u64) -> Failure {
    Failure::NotDone(format!(
        "there is no job {id}: it was deleted, or never put; `bsd-ctl tubes` shows where jobs are"
    ))
}

pub(crate) fn run(args: &JobArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut client = context.connect()?;
    let command = format!("peek {}", args.id);
    let (id, body) = peek(&mut client, &command)?.ok_or_else(|| no_job(args.id))?;
    show(&mut client, id, &body, &args.show, context)
}

pub(crate) fn run_peek(args: &PeekArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut client = context.connect()?;
    choose(&mut client, &args.tube)?;
    let state = args.state.word();
    let found = peek(&mut client, &format!("peek-{state}"))?;
    let (id, body) = found.ok_or_else(|| {
        let tube = &args.tube;
        Failure::NotDone(format!(
            "tube \"{tube}\" has no job that is {state}; `bsd-ctl tubes` shows where jobs are"
        ))
    })?;
    show(&mut client, id, &body, &args.show, context)
}

/// The id and body of a job; `None`: the job does not exist.
fn peek(client: &mut Client, command: &str) -> Result<Option<(u64, Vec<u8>)>, ClientError> {
    let reply = client.ask(command)?;
    match (reply.number_after("FOUND"), &*reply.line) {
        (Some(id), _) => Ok(Some((id, reply.data))),
        (None, "NOT_FOUND") => Ok(None),
        (None, line) => Err(client.unexpected(command, line)),
    }
}

fn show(
    client: &mut Client,
    id: u64,
    body: &[u8],
    show: &Show,
    context: &mut Context<'_>,
) -> Result<u8, Failure> {
    if show.body {
        context.out.write_all(body)?;
        return Ok(EXIT_OK);
    }
    // It may have been deleted since it was peeked at.
    let mut job = client.job(id)?.ok_or_else(|| no_job(id))?;
    let known: Vec<String> = job.0.iter().map(|(key, _)| key.clone()).collect();
    let more = client.job_extended(id)?.unwrap_or_default().0.into_iter();
    job.0.extend(more.filter(|(key, _)| !known.contains(key)));
    match context.global.json {
        true => {
            let mut object = json::object(&job);
            json::add_body(&mut object, body);
            writeln!(context.out, "{}", Json::Object(object))?;
        }
        false => write!(context.out, "{}", words(&job, body))?,
    }
    Ok(EXIT_OK)
}

fn words(job: &Dictionary, body: &[u8]) -> String {
    let number = |key| job.number(key);
    let state = names::shown(&job.text("state"));
    let left = match &*state {
        "delayed" | "reserved" => format!(", for another {}", Age(number("time-left"))),
        _ => String::new(),
    };
    let (text, is_cut) = body_text(body);
    let size = count(body.len() as u64, "byte");
    let size = match is_cut {
        true => format!("{size}, the first {SHOWN_MAX} characters follow; --body writes all"),
        false => size,
    };
    format!(
        "job {} in tube {}: {state}{left}\n  priority {}, delay {} s, time to run {} s, age {}\n  \
         reserved {}, timed out {}, released {}, buried {}, kicked {}\n{}{}",
        number("id"),
        names::shown(&job.text("tube")),
        number("pri"),
        number("delay"),
        number("ttr"),
        Age(number("age")),
        times(number("reserves")),
        times(number("timeouts")),
        times(number("releases")),
        times(number("buries")),
        times(number("kicks")),
        failure(job),
        match text {
            Some(text) => format!("body: {size}\n{text}\n"),
            None =>
                format!("body: {size}, not text: --body writes them, --json has them in base64\n"),
        }
    )
}

/// What the server knows of a job beyond a plain one, a line each; beanstalkd knows nothing.
fn failure(job: &Dictionary) -> String {
    let text = |key| job.get(key).map(|_| names::shown(&job.text(key)));
    let time = |key| {
        let at = job.get(key).map(|_| job.number(key));
        at.map(|at| utc(at.saturating_mul(1_000_000_000)))
    };
    // Of a plain job they are its reserves, which are said already.
    let has_more = job.get("reason").is_some();
    let deliveries = Some(job.number("deliveries")).filter(|count| *count > 0 && has_more);
    let failures = Some(job.number("failures")).filter(|count| *count > 0);
    [
        ("key", text("key")),
        ("group", text("group")),
        ("deliveries that count", deliveries.map(|it| it.to_string())),
        ("reason", text("reason")),
        ("deliveries that failed", failures.map(|it| it.to_string())),
        ("dead letter of", text("dead-lettered-from")),
        ("dead letter since", time("dead-lettered-at")),
        ("expires at", time("expires-at")),
        ("a worker said", text("text")),
    ]
    .into_iter()
    .filter_map(|(label, value)| Some(format!("  {label}: {}\n", value?)))
    .collect()
}

fn times(number: u64) -> String {
    count(number, "time")
}

/// Characters that change the order in which a terminal shows others.
fn is_direction(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A body that a terminal can show, without a line feed at its end; and whether it was cut.
fn body_text(body: &[u8]) -> (Option<&str>, bool) {
    let is_shown = |letter: char| {
        matches!(letter, '\n' | '\t') || !(letter.is_control() || is_direction(letter))
    };
    let text = std::str::from_utf8(body).ok();
    let Some(text) = text.filter(|text| text.chars().all(is_shown)) else {
        return (None, false);
    };
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => (Some(&text[..end]), true),
        None => (Some(text.strip_suffix('\n').unwrap_or(text)), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_line_by_line_and_a_plain_job_has_none() {
        let plain = b"---\nid: 7\ntube: \"mail\"\nstate: ready\ndeliveries: 0\n";
        let found = |document: &[u8]| failure(&Dictionary::parse(document, &[]).unwrap());
        assert_eq!(found(plain), "");
        let dead = b"---\ndeliveries: 0\nreason: \"failed\"\ntext: \"no host\\u000A\\u001B[2J\"\n\
            dead-lettered-from: \"mail\"\ndead-lettered-at: 1800000000\nfailures: 8\n";
        assert_eq!(
            found(dead),
            "  reason: failed\n  deliveries that failed: 8\n  dead letter of: mail\n  \
             dead letter since: 2027-01-15T08:00:00.000Z\n  \
             a worker said: no host\\n\\u{1b}[2J\n"
        );
    }

    #[test]
    fn only_text_is_shown_and_not_too_much() {
        assert_eq!(body_text(b"a\tb\n"), (Some("a\tb"), false));
        for body in [&b"a\x1b[2J"[..], b"\xff", "\u{202e}".as_bytes(), b"a\r"] {
            assert_eq!(body_text(body), (None, false), "{}", body.escape_ascii());
        }
        let long = "\u{e9}".repeat(SHOWN_MAX + 1);
        let (text, is_cut) = body_text(long.as_bytes());
        assert_eq!((text.unwrap().chars().count(), is_cut), (SHOWN_MAX, true));
    }
}
