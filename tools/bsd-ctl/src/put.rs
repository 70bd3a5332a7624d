//! `bsd-ctl put`: one job, or one for each line.

use std::io::{self, BufRead, Read};

use bsd::UsageError;
use bsd_tools::client::{Client, Reply};
use bsd_tools::human::{count, parse_age};
use clap::Args;
use serde_json::json;

use crate::{Context, EXIT_OK, Failure, complain, job, names};

const AFTER_HELP: &str = concat!(
    "\
DELAY and TTR are seconds, or have a unit: 90, 5m, 2h, 3d. With --lines, lines without their end are
bodies, empty ones too. If the server refuses one, no more are sent; the lines refused are named, and
how many were put is said.

Examples:
  bsd-ctl put mail 'to: ann'
  echo 'to: bob' | bsd-ctl put mail --pri 10 --delay 1h
  bsd-ctl put mail - < body
  seq 1000 | bsd-ctl put numbers --lines

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct PutArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    tube: String,
    /// The body; without it, or if it is -, the standard input
    #[arg(conflicts_with = "lines")]
    body: Option<String>,
    /// Put a job for each line of the standard input
    #[arg(long)]
    lines: bool,
    /// The priority: 0 is the most urgent
    #[arg(long, default_value = "65536")]
    pri: u32,
    /// How long until it is ready
    #[arg(long, default_value = "0", value_parser = parse_seconds)]
    delay: u32,
    /// How long a worker may take for it
    #[arg(long, default_value = "60", value_parser = parse_seconds)]
    ttr: u32,
}

/// Seconds as they are typed, up to what the protocol has.
pub(crate) fn parse_seconds(text: &str) -> Result<u32, UsageError> {
    let seconds = parse_age(text)?;
    u32::try_from(seconds).map_err(|_| "it is more than 4294967295 seconds".into())
}

pub(crate) fn run(args: &PutArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    if args.lines {
        return put_lines(args, context);
    }
    let body = match args.body.as_deref() {
        None | Some("-") => read_all()?,
        Some(body) => body.as_bytes().to_vec(),
    };
    let mut client = context.connect()?;
    job::choose(&mut client, &args.tube)?;
    client.send(&command(args, &body))?;
    let reply = client.reply()?;
    let tube = &args.tube;
    match outcome(&client, &reply)? {
        Outcome::Put(id) => {
            context.tell(
                json!({"id": id, "tube": tube}),
                format_args!("job {id} was put into {tube}"),
            )?;
            Ok(EXIT_OK)
        }
        Outcome::Refused(why) => Err(Failure::NotDone(format!("the job was not put: {why}"))),
    }
}

fn read_all() -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    match io::stdin().lock().read_to_end(&mut body) {
        Ok(_) => Ok(body),
        Err(error) => Err(unreadable(&error)),
    }
}

fn unreadable(error: &io::Error) -> Failure {
    Failure::Input(format!(
        "the standard input cannot be read: {error}; give it a file or a pipe"
    ))
}

fn command(args: &PutArgs, body: &[u8]) -> Vec<u8> {
    let PutArgs {
        pri, delay, ttr, ..
    } = args;
    let line = format!("put {pri} {delay} {ttr} {}\r\n", body.len());
    [line.as_bytes(), body, b"\r\n"].concat()
}

/// Result of a put.
enum Outcome {
    Put(u64),
    /// Why, and what to do.
    Refused(String),
}

fn outcome(client: &Client, reply: &Reply) -> Result<Outcome, Failure> {
    if let Some(id) = reply.number_after("INSERTED") {
        return Ok(Outcome::Put(id));
    }
    if let Some(id) = reply.number_after("BURIED") {
        return Ok(Outcome::Refused(format!(
            "the server has no memory to queue it and buried it as job {id}: see its log, then \
             `bsd-ctl kick-job {id}`"
        )));
    }
    Ok(Outcome::Refused(why_refused(client, reply)?))
}

/// Why a put was refused, and what to do.
///
/// # Errors
/// If no put is answered in this way.
pub(crate) fn why_refused(client: &Client, reply: &Reply) -> Result<String, Failure> {
    let why = match &*reply.line {
        "JOB_TOO_BIG" => {
            "the body is larger than the server takes: `bsd-ctl stats` shows the largest, \
             bsd-server's -z sets it"
        }
        "DRAINING" => "the server is draining and takes no jobs: put it into another one",
        "OUT_OF_MEMORY" => "the server has no room: see its log, and put it again",
        line => return Err(client.unexpected("put", line).into()),
    };
    Ok(why.to_owned())
}

/// Bytes and lines that are sent before the first of their replies is read.
const BATCH_SIZE: usize = 64 << 10;
const BATCH_LINES: usize = 500;

/// Results of the puts of many lines.
#[derive(Default)]
struct Tally {
    lines: u64,
    put: u64,
    first: Option<u64>,
    last: Option<u64>,
    refused: u64,
}

fn put_lines(args: &PutArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut client = context.connect()?;
    job::choose(&mut client, &args.tube)?;
    let mut tally = Tally::default();
    let done = put_batches(args, &mut client, &mut tally);
    let json = json!({
        "tube": args.tube, "jobs": tally.put, "first_id": tally.first, "last_id": tally.last,
    });
    let jobs = count(tally.put, "job");
    let ids = match (tally.first, tally.last) {
        (Some(first), Some(last)) => format!(", ids {first} to {last}"),
        _ => String::new(),
    };
    context.tell(json, format_args!("{jobs} put into {}{ids}", args.tube))?;
    done?;
    match tally.refused {
        0 => Ok(EXIT_OK),
        refused => Err(Failure::NotDone(format!(
            "the server refused {} of the first {}; the lines after them were not sent",
            count(refused, "line"),
            tally.lines
        ))),
    }
}

fn put_batches(args: &PutArgs, client: &mut Client, tally: &mut Tally) -> Result<(), Failure> {
    let mut input = io::stdin().lock();
    let mut is_end = false;
    while !is_end && tally.refused == 0 {
        let mut batch = Vec::new();
        let mut lines = 0;
        while lines < BATCH_LINES && batch.len() < BATCH_SIZE {
            let mut line = Vec::new();
            let read = input.read_until(b'\n', &mut line);
            if read.map_err(|error| unreadable(&error))? == 0 {
                is_end = true;
                break;
            }
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            batch.extend(command(args, line.strip_suffix(b"\r").unwrap_or(line)));
            lines += 1;
        }
        client.send(&batch)?;
        for _ in 0..lines {
            let reply = client.reply()?;
            tally.add(outcome(client, &reply)?);
        }
    }
    Ok(())
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        self.lines += 1;
        match outcome {
            Outcome::Put(id) => {
                self.put += 1;
                self.first.get_or_insert(id);
                self.last = Some(id);
            }
            Outcome::Refused(why) => {
                self.refused += 1;
                complain(format_args!("line {} was not put: {why}", self.lines));
            }
        }
    }
}
