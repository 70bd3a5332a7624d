//! `bsd-ctl tail`: what happens to jobs, as it happens, from the server's stream of events.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use bsd::clock::Clock;
use bsd::types::SECOND_NS;
use bsd_tools::human::count;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::api::{Api, ApiArgs, escaped};
use crate::listing::bytes_of;
use crate::put::parse_seconds;
use crate::{Context, EXIT_OK, Failure, names, note, shown};

/// The server says something at least three times in this time.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Lines that are read ahead of the output.
const AHEAD: usize = 1024;

const TAIL_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. A line for each put, reserve, delete,
release, bury, kick, delay, move, change of priority and pause, once it is as durable as the
server's policy has it; and where a worker's time is up (timeout) or it has left (return). Goes on
until Ctrl-C. No one waits for who reads: where that is too slow, a line says how many events of all
tubes were lost. In a PATTERN, * stands for any characters and ? for one; put it in quotes.

With --bodies the server is asked for the body of each job that is told of, as far as it is still
there: the first 200 characters, as text, or as hexadecimal digits if it is no text.

Examples:
  bsd-ctl tail --for 1
  bsd-ctl tail --bodies --event put --event bury --for 1
  bsd-ctl tail --tube 'm*' --for 1 --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = TAIL_HELP)]
pub(crate) struct TailArgs {
    /// Only of this tube, or of those whose whole name is like this
    #[arg(long, value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tube: Option<String>,
    /// Only events of this kind; may be given several times
    #[arg(long = "event", value_name = "KIND", value_enum)]
    events: Vec<Kind>,
    /// Show the bodies of jobs
    #[arg(long)]
    bodies: bool,
    /// Number of events after which to end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time
    #[arg(long = "for", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Option<u32>,
    #[command(flatten)]
    api: ApiArgs,
}

/// What happens to jobs, as the server's words are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Put,
    Reserve,
    Delete,
    Release,
    Return,
    Timeout,
    Bury,
    Kick,
    Delay,
    Priority,
    Move,
    Pause,
}

impl Kind {
    /// Whether these mean an event of this word; that events were lost is always told.
    fn mean(kinds: &[Kind], word: &str) -> bool {
        let mut kinds_of_word = kinds.iter().filter_map(ValueEnum::to_possible_value);
        kinds.is_empty() || word == "lost" || kinds_of_word.any(|kind| kind.get_name() == word)
    }
}

/// Bodies of the last jobs that were told of, as the API has them: of one that is deleted it is too
/// late to ask.
#[derive(Default)]
struct Bodies {
    known: HashMap<u64, Value>,
    order: VecDeque<u64>,
}

/// Bodies that are kept.
const BODIES_MAX: usize = 200;
/// Characters of a body that are shown.
const BODY_SHOWN_MAX: usize = 200;

impl Bodies {
    /// The body of the job of an event; null: it is gone, or too large.
    fn find(&mut self, api: &Api, event: &Value) -> Result<Value, Failure> {
        let id = event["new_job"].as_u64().or_else(|| event["job"].as_u64());
        let id = id.unwrap_or_default();
        if let Some(body) = self.known.get(&id) {
            return Ok(body.clone());
        }
        let body = match api.get(&format!("/jobs/{id}")) {
            Ok(mut job) => job["body"].take(),
            Err(Failure::NotDone(_)) => return Ok(Value::Null),
            Err(failure) => return Err(failure),
        };
        self.known.insert(id, body.clone());
        self.order.push_back(id);
        if self.order.len() > BODIES_MAX
            && let Some(old) = self.order.pop_front()
        {
            self.known.remove(&old);
        }
        Ok(body)
    }
}

pub(crate) fn run(args: &TailArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let path = match &args.tube {
        Some(tube) => format!("/events?tube={}", escaped(tube)),
        None => "/events".to_owned(),
    };
    let clock = Clock::start();
    let end_ns = args.time.map(|seconds| i64::from(seconds) * SECOND_NS);
    let lines = lines(api.listen(&path)?);
    let silence_max = SILENCE_MAX.max(api.timeout);
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut bodies = Bodies::default();
    while left > 0 {
        let time = end_ns.map(|end| {
            let left_ns = end.saturating_sub(clock.now().mono.0);
            Duration::from_nanos(u64::try_from(left_ns).unwrap_or(0))
        });
        if time.is_some_and(|time| time.is_zero()) {
            break;
        }
        let patience = time.map_or(silence_max, |time| time.min(silence_max));
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(_) => {
                // Anyone who reads sees all that there is so far.
                context.out.flush()?;
                match lines.recv_timeout(patience) {
                    Ok(line) => line,
                    Err(_) if time.is_some_and(|time| time <= silence_max) => return Ok(EXIT_OK),
                    Err(RecvTimeoutError::Timeout) => return Err(silent(silence_max)),
                    Err(RecvTimeoutError::Disconnected) => return Err(ended()),
                }
            }
        };
        let line = line.map_err(|error| {
            Failure::Input(format!(
                "the server is gone: {error}; start it, and listen again"
            ))
        })?;
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        let event: Value = serde_json::from_str(data).map_err(|error| api.broken(&error))?;
        if !Kind::mean(&args.events, event["event"].as_str().unwrap_or_default()) {
            continue;
        }
        left -= 1;
        let body = match args.bodies && !event["job"].is_null() {
            true => Some(bodies.find(&api, &event)?),
            false => None,
        };
        show(event, body, context)?;
    }
    Ok(EXIT_OK)
}

/// The lines of a stream, read by a thread of their own; it ends with the stream or the process.
fn lines(stream: impl BufRead + Send + 'static) -> Receiver<io::Result<String>> {
    let (sender, lines) = sync_channel(AHEAD);
    std::thread::spawn(move || {
        for line in stream.lines() {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn silent(time: Duration) -> Failure {
    Failure::Input(format!(
        "the server has said nothing for {} s: look whether it runs, and listen again",
        time.as_secs()
    ))
}

fn ended() -> Failure {
    Failure::Input("the server has ended the stream; listen again when it runs".to_owned())
}

/// `body`: of its job, as the API has it, if bodies are shown.
fn show(mut event: Value, body: Option<Value>, context: &mut Context<'_>) -> io::Result<()> {
    if context.global.json {
        if let Some(body) = body {
            event["body"] = body;
        }
        return writeln!(context.out, "{event}");
    }
    let word = event["event"].as_str().unwrap_or_default();
    if word == "lost" {
        let lost = count(event["events"].as_u64().unwrap_or(0), "event");
        note(format_args!(
            "{lost} lost: they came faster than they were read"
        ));
        return Ok(());
    }
    let text = |key: &str| names::shown(event[key].as_str().unwrap_or_default());
    let mut line = format!(
        "{} {:<8} {}",
        time_of_day(&event["time"]),
        text("event"),
        text("tube")
    );
    if !event["job"].is_null() {
        line.push_str(&format!(" job {}", event["job"]));
    }
    if word == "move" {
        line.push_str(&format!(" to {}", text("to")));
    }
    for (key, unit) in [
        ("priority", ""),
        ("delay", " s"),
        ("seconds", " s"),
        ("body_size", " B"),
    ] {
        if !event[key].is_null() && event[key] != 0 || key == "seconds" && word == "pause" {
            line.push_str(&format!(" {}={}{unit}", key.replace('_', " "), event[key]));
        }
    }
    if let Some(body) = body {
        let bytes = bytes_of(&body);
        let text = bytes.map(|bytes| shown::body(&bytes, BODY_SHOWN_MAX));
        line.push_str(&format!(" | {}", text.as_deref().unwrap_or("(not known)")));
    }
    writeln!(context.out, "{line}")
}

/// Hours, minutes, seconds and milliseconds, UTC.
fn time_of_day(seconds: &Value) -> String {
    let ms = (seconds.as_f64().unwrap_or(0.0) * 1000.0) as u64;
    let (hours, minutes) = (ms / 3_600_000 % 24, ms / 60_000 % 60);
    format!(
        "{hours:02}:{minutes:02}:{:02}.{:03}",
        ms / 1000 % 60,
        ms % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_as_of_the_day_in_utc() {
        assert_eq!(time_of_day(&1_800_000_000.5.into()), "08:00:00.500");
        assert_eq!(time_of_day(&Value::Null), "00:00:00.000");
    }
}
