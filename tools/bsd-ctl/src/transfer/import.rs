//! Reads jobs. Lines are put in their order, some at a time; a buried one is put with a delay that no
//! worker lives to see, and buried then.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bsd::UsageError;
use bsd::types::is_tube_name;
use bsd_tools::client::Client;
use bsd_tools::human::count;
use clap::Args;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::check_can;
use crate::{Context, EXIT_OK, Failure, names, note, put};

/// Lines, and bytes of their bodies, that are sent before their replies are read.
const BATCH_LINES: usize = 100;
const BATCH_SIZE: usize = 4 << 20;
/// A line may have this number of bytes.
const LINE_SIZE_MAX: u64 = 3 << 30;
/// The delay of a job that is to be buried: 136 years.
const NEVER: u32 = u32::MAX;

const IMPORT_HELP: &str = concat!(
    "\
Over the protocol, and only into bsd. Puts the job of each line with its body, tube, priority, rest
of its delay, time to run, key, how long the key is its own, and group. A buried job is buried there,
with what a worker said of it; a reserved one is ready. Not kept: the id, the age, the counters, the
reason, the number of failures, and the tube that a dead letter came from.

Nothing is put twice by a second run that begins behind what the first one has put: where an import
ends early it says how many lines are done, and --skip goes on behind them. If the connection broke,
up to 100 lines behind those may have been put too; a job with a key is not put twice while the first
one is there. Ctrl-C ends it between two lines.

Examples:
  bsd-ctl export mail | bsd-ctl import - --tube post
  bsd-ctl export mail > f.jsonl && bsd-ctl import f.jsonl --skip 1

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = IMPORT_HELP)]
pub(crate) struct ImportArgs {
    /// What `bsd-ctl export` wrote; - is the standard input
    file: PathBuf,
    /// Put all jobs into this tube [default: the one of each line]
    #[arg(long, value_parser = names::parse_tube)]
    tube: Option<String>,
    /// Leave this many lines out: they are done
    #[arg(long, value_name = "LINES", default_value_t = 0)]
    skip: u64,
}

/// How far an import is.
#[derive(Default)]
struct Tally {
    /// Lines that are done, those that were left out included.
    lines: u64,
    put: u64,
    buried: u64,
    /// Another job has the key.
    there: u64,
    /// Reserved jobs that are ready now.
    freed: u64,
    /// Jobs are put to be buried, and are not yet.
    is_burying: bool,
}

pub(crate) fn run_import(args: &ImportArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let input: Box<dyn BufRead> = match args.file.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(open(&args.file)?)),
    };
    let mut client = context.connect()?;
    check_can(&mut client, &["put-with", "bury-with-reason"])?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let set = signal_hook::flag::register(signal, Arc::clone(&stop));
        set.map_err(|error| Failure::Input(format!("signals cannot be caught: {error}")))?;
    }
    let mut tally = Tally::default();
    let done = import(args, input, &mut client, &mut tally, &stop);
    context.tell(
        json!({
            "lines": tally.lines, "put": tally.put, "buried": tally.buried, "there": tally.there,
            "freed": tally.freed,
        }),
        format_args!(
            "{} put, of these {} buried",
            count(tally.put, "job"),
            tally.buried
        ),
    )?;
    if tally.there > 0 {
        note(format_args!(
            "{} not put: other jobs have their keys",
            count(tally.there, "job")
        ));
    }
    if tally.freed > 0 {
        note(format_args!(
            "{} reserved, and ready here",
            were(tally.freed)
        ));
    }
    let skip = format!("the first {} are done", count(tally.lines, "line"));
    let go_on = format!("go on with --skip {}", tally.lines);
    match done {
        Ok(()) if stop.load(Ordering::Relaxed) => {
            Err(Failure::NotDone(format!("stopped: {skip}; {go_on}")))
        }
        Ok(()) => Ok(EXIT_OK),
        Err(Failure::NotDone(why)) => Err(Failure::NotDone(format!("{why}; {skip}; {go_on}"))),
        Err(failure) => {
            note(format_args!(
                "{skip}, and up to {BATCH_LINES} behind them may be; {go_on}"
            ));
            if tally.is_burying {
                note(
                    "jobs of those lines that were to be buried may have been put with a delay of \
                     136 years; `bsd-ctl jobs TUBE --state delayed` shows them",
                );
            }
            Err(failure)
        }
    }
}

fn were(jobs: u64) -> String {
    match jobs {
        1 => "1 job was".to_owned(),
        _ => format!("{jobs} jobs were"),
    }
}

fn open(path: &PathBuf) -> Result<File, Failure> {
    let opened = File::options().read(true).open(path);
    opened.map_err(|error| Failure::Input(format!("cannot read {}: {error}", path.display())))
}

fn import(
    args: &ImportArgs,
    mut input: Box<dyn BufRead>,
    client: &mut Client,
    tally: &mut Tally,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let mut is_end = false;
    while !is_end && !stop.load(Ordering::Relaxed) {
        let (mut batch, mut size) = (Vec::new(), 0);
        // What is wrong with the line behind the batch.
        let mut wrong = None;
        while batch.len() < BATCH_LINES && size < BATCH_SIZE {
            let mut line = String::new();
            let read = (&mut *input).take(LINE_SIZE_MAX).read_line(&mut line);
            let read = read.map_err(|error| Failure::Input(format!("cannot read on: {error}")))?;
            if read == 0 {
                is_end = true;
                break;
            }
            if tally.lines < args.skip {
                tally.lines += 1;
                continue;
            }
            match Job::parse(&line, args.tube.as_deref()) {
                Ok(job) => {
                    size += job.body.len();
                    batch.push(job);
                }
                Err(why) => {
                    let nth = tally.lines + batch.len() as u64 + 1;
                    wrong = Some(format!("line {nth} is no job of an export: {why}"));
                    break;
                }
            }
        }
        put_all(&batch, client, tally)?;
        if let Some(why) = wrong {
            return Err(Failure::NotDone(why));
        }
    }
    Ok(())
}

/// Put these, in order. The first that is refused ends it; those behind it were sent, and are
/// deleted again.
fn put_all(batch: &[Job], client: &mut Client, tally: &mut Tally) -> Result<(), Failure> {
    let bytes: Vec<u8> = batch.iter().flat_map(Job::command).collect();
    tally.is_burying = batch.iter().any(|job| job.is_buried);
    client.send(&bytes)?;
    let (mut refused, mut buried) = (None, Vec::new());
    let (mut too_many, mut done) = (Vec::new(), 0);
    for job in batch {
        let reply = client.reply()?;
        match (reply.number_after("INSERTED"), reply.number_after("EXISTS")) {
            (Some(id), _) if refused.is_some() => too_many.push(id),
            (_, Some(_)) if refused.is_some() => {}
            (Some(id), _) => {
                done += 1;
                tally.put += 1;
                tally.freed += u64::from(job.was_reserved);
                if job.is_buried {
                    buried.push((id, job));
                }
            }
            (_, Some(_)) => {
                done += 1;
                tally.there += 1;
            }
            _ if refused.is_some() => {}
            _ => refused = Some(put::why_refused(client, &reply)?),
        }
    }
    bury(&buried, client, tally)?;
    tally.is_burying = !too_many.is_empty();
    tally.lines += done;
    let Some(why) = refused else { return Ok(()) };
    let ids = too_many.iter().map(|id| format!("delete {id}"));
    let mut taken = 0;
    client.ask_all(&ids.collect::<Vec<_>>(), |_, reply| {
        taken += u64::from(reply.line != "DELETED");
        Ok(())
    })?;
    if taken > 0 {
        note(format_args!(
            "{taken} of the lines behind it were put, and workers have taken their jobs"
        ));
    }
    Err(Failure::NotDone(format!(
        "line {} was not put: {why}",
        tally.lines + 1
    )))
}

/// Bury jobs that were put for it.
fn bury(jobs: &[(u64, &Job)], client: &mut Client, tally: &mut Tally) -> Result<(), Failure> {
    let command = |(id, job): &(u64, &Job)| {
        let (pri, size) = (job.pri, job.text.len());
        let line = format!("reserve-job {id}\r\nbury-with-reason {id} {pri} {size}\r\n");
        [line.as_bytes(), &job.text, b"\r\n"].concat()
    };
    client.send(&jobs.iter().flat_map(command).collect::<Vec<u8>>())?;
    for (id, _) in jobs {
        let [taken, buried] = [client.reply()?, client.reply()?];
        if taken.number_after("RESERVED").is_none() || buried.line != "BURIED" {
            return Err(client
                .unexpected(&format!("bury-with-reason {id}"), &buried.line)
                .into());
        }
        tally.buried += 1;
    }
    Ok(())
}

/// A line.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    tube: String,
    pri: u32,
    delay: u32,
    ttr: u32,
    /// Words of the command: its key and its group.
    attributes: String,
    is_buried: bool,
    was_reserved: bool,
    /// What a worker said of it.
    text: Vec<u8>,
    body: Vec<u8>,
}

/// Bytes that a worker may say.
const TEXT_SIZE_MAX: usize = bsd::attributes::TEXT_SIZE_MAX;

impl Job {
    fn parse(line: &str, into: Option<&str>) -> Result<Job, UsageError> {
        let value: Value = serde_json::from_str(line).map_err(UsageError::new)?;
        let text = |key: &str| value[key].as_str();
        let number = |key: &str, usual: u32| match &value[key] {
            Value::Null => Ok(usual),
            found => {
                let number = found.as_u64().and_then(|number| u32::try_from(number).ok());
                number.ok_or_else(|| UsageError::new(format_args!("{key} is no number of a job")))
            }
        };
        let tube = into.or_else(|| text("tube"));
        let tube = tube.filter(|name| is_tube_name(name.as_bytes()));
        let tube = tube.ok_or("it has no tube; --tube names one")?;
        let state = text("state").unwrap_or("ready");
        let delay = match state {
            "ready" | "reserved" => 0,
            "delayed" => number("time_left_seconds", number("delay", 0)?)?,
            "buried" => NEVER,
            _ => return Err(format!("state {state:?} is unknown").into()),
        };
        let body = match (text("body"), text("body_base64")) {
            (Some(body), _) => body.as_bytes().to_vec(),
            (None, Some(body)) => STANDARD
                .decode(body)
                .map_err(|error| UsageError::new(format_args!("its body is no base64: {error}")))?,
            (None, None) => return Err("it has no body".into()),
        };
        let mut said = text("text").unwrap_or_default().as_bytes().to_vec();
        said.truncate(TEXT_SIZE_MAX);
        Ok(Job {
            tube: tube.to_owned(),
            pri: number("priority", 65_536)?,
            delay,
            ttr: number("ttr", 60)?,
            attributes: attributes(&value)?,
            is_buried: state == "buried",
            was_reserved: state == "reserved",
            text: said,
            body,
        })
    }

    fn command(&self) -> Vec<u8> {
        let Job {
            tube,
            pri,
            delay,
            ttr,
            attributes,
            body,
            ..
        } = self;
        let size = body.len();
        let line = format!("put-with {pri} {delay} {ttr} {size} tube={tube}{attributes}\r\n");
        [line.as_bytes(), body, b"\r\n"].concat()
    }
}

/// Its key and its group, as words of the command.
fn attributes(value: &Value) -> Result<String, UsageError> {
    let mut words = String::new();
    for name in ["key", "unique", "group"] {
        let Some(text) = value[name].as_str() else {
            continue;
        };
        if !bsd::attributes::is_word(text.as_bytes()) {
            return Err(format!("its {name} is no word of the protocol").into());
        }
        words.push_str(&format!(" {name}={text}"));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> String {
        String::from_utf8(Job::parse(line, None).unwrap().command()).unwrap()
    }

    #[test]
    fn a_line_is_the_put_of_its_job() {
        let line = r#"{"tube":"mail","state":"delayed","priority":5,"ttr":9,"delay":60,
            "time_left_seconds":42,"key":"k","unique":"waiting","group":"g","body":"to: ann"}"#;
        assert_eq!(
            command(line),
            "put-with 5 42 9 7 tube=mail key=k unique=waiting group=g\r\nto: ann\r\n"
        );
        let line = r#"{"tube":"mail","state":"ready","delay":60,"body_base64":"YQ=="}"#;
        assert_eq!(command(line), "put-with 65536 0 60 1 tube=mail\r\na\r\n");
    }

    #[test]
    fn what_is_no_job_is_refused_and_no_word_becomes_a_command() {
        for line in [
            "",
            "[]",
            r#"{"tube":"a b","body":""}"#,
            r#"{"tube":"a"}"#,
            r#"{"tube":"a","body":"","priority":-1}"#,
            r#"{"tube":"a","body":"","ttr":4294967296}"#,
            r#"{"tube":"a","body":"","state":"gone"}"#,
            r#"{"tube":"a","body":"","key":"a\r\ndelete 1"}"#,
            r#"{"tube":"a","body_base64":"%"}"#,
        ] {
            assert!(Job::parse(line, None).is_err(), "{line}");
        }
        let other = Job::parse(r#"{"body":""}"#, Some("b")).unwrap();
        assert_eq!(other.tube, "b");
    }
}
