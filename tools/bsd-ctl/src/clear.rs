//! `bsd-ctl clear`: deletes the jobs of a tube. bsd does that at once when its API is asked; of another
//! server each job is looked at and deleted, as any client of the protocol must.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bsd_tools::client::{Client, Reply};
use bsd_tools::human::{Meter, count};
use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::api::{Api, ApiArgs, escaped};
use crate::confirm::confirm;
use crate::job::{State, choose};
use crate::many::{Change, parse_undo};
use crate::{Context, EXIT_OK, Failure, names, note};

const AFTER_HELP: &str = concat!(
    "\
Counts the jobs, and asks before it deletes more than one; then it deletes no more than it has
counted. Jobs that clients have reserved stay.

Asks bsd over its API, where --http leads to that of the same server: they are deleted at once,
however many they are; after a crash all of a state are gone or none. Else, and of beanstalkd, it
deletes job by job, which takes minutes for a million; then Ctrl-C stops between two jobs and says
how many were deleted. `bsd-ctl delete --tube` deletes some of a tube's jobs.

--undo, over the API, holds the jobs back for that time before they are deleted, as `bsd-ctl delete
--undo` does: at most 10 minutes and 100,000 jobs.

Examples:
  bsd-ctl clear mail --state buried --yes
  bsd-ctl clear mail --state ready --state delayed --yes
  bsd-ctl clear mail --state ready --undo 1m --yes

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ClearArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    tube: String,
    /// Which of its jobs; may be given several times
    #[arg(long = "state", value_name = "STATE", value_enum, required = true)]
    states: Vec<State>,
    /// Hold them back for this time before they are deleted: 60, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_undo)]
    undo: Option<u64>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// With more jobs than this it is said that they are deleted job by job, if they are.
const MANY: u64 = 10_000;

pub(crate) fn run(args: &ClearArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut client = context.connect()?;
    let tube = &args.tube;
    let found = client.tube(tube)?.ok_or_else(|| names::no_tube(tube))?;
    let mut states = args.states.clone();
    states.sort_by_key(|state| state.word());
    states.dedup();
    let counted = states.into_iter().map(|state| {
        let key = format!("current-jobs-{}", state.word());
        (state, found.number(&key))
    });
    let counted: Vec<(State, u64)> = counted.filter(|(_, jobs)| *jobs > 0).collect();
    let all: u64 = counted.iter().map(|(_, jobs)| jobs).sum();
    if all == 0 {
        return Err(Failure::NotDone(format!(
            "tube \"{tube}\" has no such jobs; `bsd-ctl tube {tube}` shows what it has"
        )));
    }
    let parts = counted
        .iter()
        .map(|(state, jobs)| format!("{jobs} {}", state.word()));
    let parts = parts.collect::<Vec<_>>().join(" and ");
    let noun = if all == 1 { "job" } else { "jobs" };
    confirm(
        &format!("delete {parts} {noun} of tube {tube}"),
        all,
        args.yes,
    )?;
    if let Some(seconds) = args.undo {
        return with_undo(args, &counted, (all, seconds), context);
    }
    if let Some(api) = args.api.of_same_server(context)? {
        return over_api(&api, args, &counted, all, context);
    }
    if all > MANY {
        note(
            "job by job, as this server's API was not found; --http ADDRESS names where it is, \
             --token-file who asks",
        );
    }
    // No one should keep a connection open while a person thinks: the first one may have timed out.
    let mut clearing = Clearing::begin(context.connect()?, all)?;
    choose(&mut clearing.client, tube)?;
    let done = clearing.clear_all(&counted);
    drop(clearing.meter);
    let (deleted, missed) = (clearing.deleted, clearing.missed);
    tell(tube, deleted, all, context)?;
    done?;
    if clearing.stop.load(Ordering::Relaxed) {
        return Err(stopped(all - deleted, all));
    }
    missed_by(missed)
}

/// Have the server delete the jobs in these states.
fn over_api(
    api: &Api,
    args: &ClearArgs,
    counted: &[(State, u64)],
    all: u64,
    context: &mut Context<'_>,
) -> Result<u8, Failure> {
    let states: Vec<State> = counted.iter().map(|(state, _)| *state).collect();
    let mut body = json!({"states": State::words(&states)});
    if !args.yes {
        // No more than were shown.
        body["most"] = all.into();
    }
    let tube = &args.tube;
    let done = api.post(&format!("/tubes/{}/clear", escaped(tube)), &body)?;
    tell(tube, done["deleted"].as_u64().unwrap_or(0), all, context)?;
    Ok(EXIT_OK)
}

/// Have the server hold the jobs back, and delete them later. They are counted again there.
fn with_undo(
    args: &ClearArgs,
    counted: &[(State, u64)],
    (all, seconds): (u64, u64),
    context: &mut Context<'_>,
) -> Result<u8, Failure> {
    let states: Vec<State> = counted.iter().map(|(state, _)| *state).collect();
    let filter = json!({"tube": args.tube, "states": State::words(&states)});
    let mut body = json!({"action": "delete", "filter": filter, "undo": seconds});
    if !args.yes {
        // No more than were shown.
        body["most"] = all.into();
    }
    let change = Change {
        body,
        verb: "delete",
        done: "deleted",
        about: format!("of {}", args.tube),
    };
    change.begin(&args.api.for_undo(context)?, context)
}

fn tell(tube: &str, deleted: u64, all: u64, context: &mut Context<'_>) -> Result<(), Failure> {
    let json = json!({"tube": tube, "deleted": deleted, "counted": all});
    let text = format_args!("{} of {tube} deleted", count(deleted, "job"));
    Ok(context.tell(json, text)?)
}

fn stopped(left: u64, all: u64) -> Failure {
    Failure::NotDone(format!(
        "stopped: {left} of the {all} that were counted are left, or have gone by themselves; run \
         the command again to go on"
    ))
}

fn missed_by(missed: u64) -> Result<u8, Failure> {
    match missed {
        0 => Ok(EXIT_OK),
        missed => Err(Failure::NotDone(format!(
            "{} went to someone else in the meantime; run the command again if some are left",
            count(missed, "job")
        ))),
    }
}

/// Deleting under way.
struct Clearing {
    client: Client,
    stop: Arc<AtomicBool>,
    meter: Meter,
    all: u64,
    deleted: u64,
    /// Reserved or deleted by others between our look and our delete.
    missed: u64,
}

impl Clearing {
    fn begin(client: Client, all: u64) -> Result<Clearing, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let set = signal_hook::flag::register(signal, Arc::clone(&stop));
            set.map_err(|error: io::Error| {
                Failure::Input(format!(
                    "signals cannot be caught: {error}; nothing was deleted"
                ))
            })?;
        }
        Ok(Clearing {
            client,
            stop,
            meter: Meter::counting("deleting", "jobs"),
            all,
            deleted: 0,
            missed: 0,
        })
    }

    fn clear_all(&mut self, counted: &[(State, u64)]) -> Result<(), Failure> {
        for (state, jobs) in counted {
            self.clear(*state, *jobs)?;
        }
        Ok(())
    }

    /// Delete up to `jobs` in this state. A delete and the look for the next job leave together.
    fn clear(&mut self, state: State, jobs: u64) -> Result<(), Failure> {
        let peek = format!("peek-{}", state.word());
        let mut found = self.client.ask(&peek)?;
        for left in (0..jobs).rev() {
            let Some(id) = self.id(&peek, &found)? else {
                return Ok(());
            };
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let next = if left > 0 {
                format!("{peek}\r\n")
            } else {
                String::new()
            };
            self.client
                .send(format!("delete {id}\r\n{next}").as_bytes())?;
            let reply = self.client.reply()?;
            match &*reply.line {
                "DELETED" => self.deleted += 1,
                "NOT_FOUND" => self.missed += 1,
                line => return Err(self.client.unexpected("delete", line).into()),
            }
            self.meter.show(self.deleted, self.all);
            if left > 0 {
                found = self.client.reply()?;
            }
        }
        Ok(())
    }

    fn id(&self, peek: &str, reply: &Reply) -> Result<Option<u64>, Failure> {
        match (reply.number_after("FOUND"), &*reply.line) {
            (Some(id), _) => Ok(Some(id)),
            (None, "NOT_FOUND") => Ok(None),
            (None, line) => Err(self.client.unexpected(peek, line).into()),
        }
    }
}
