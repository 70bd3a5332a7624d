//! `bsd-ctl kick`, `kick-job`, `delete`, `bury` and `release`: what changes single jobs, or the next
//! ones of a tube.

use bsd_tools::client::{Client, Reply};
use bsd_tools::human::count;
use clap::Args;
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs};
use crate::confirm::confirm;
use crate::job::State;
use crate::many::{Change, How, parse_undo};
use crate::pick::Pick;
use crate::put::parse_seconds;
use crate::{Context, EXIT_NOT_DONE, EXIT_OK, Failure, complain, job, names};

const KICK_HELP: &str = concat!(
    "\
The protocol chooses: if jobs of the tube are buried, buried ones are kicked and no others; if none
are, delayed ones. --all kicks as many as there are of these now.

With one of the flags that say which jobs, or --rate, --limit or --detach, the server's API is asked,
which beanstalkd does not have: it counts the buried and delayed jobs, asks before it kicks more than
one, and kicks them between the commands of clients.

Examples:
  bsd-ctl kick mail 10
  bsd-ctl kick mail --all
  bsd-ctl kick mail --all --state buried --rate 100 --detach --yes
  bsd-ctl kick mail --all --reason ttr --yes

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = KICK_HELP)]
pub(crate) struct KickArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    tube: String,
    /// At most this many
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    count: Option<u32>,
    /// All of them
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
}

/// Which jobs of a tube are meant.
#[derive(Args)]
struct Which {
    /// Only jobs in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_enum)]
    states: Vec<State>,
    #[command(flatten)]
    pick: Pick,
}

impl Which {
    /// Nothing is said.
    fn is_all(&self) -> bool {
        self.states.is_empty() && self.pick.is_all()
    }

    /// The jobs of a tube, or of those of a pattern.
    fn filter(&self, tube: &str) -> Value {
        let mut filter = json!({"tube": tube});
        if !self.states.is_empty() {
            filter["states"] = State::words(&self.states);
        }
        self.pick.add_to(&mut filter);
        filter
    }

    /// Do something to these jobs over the API.
    fn change(
        &self,
        (action, verb, done): (&str, &'static str, &'static str),
        tube: &str,
        how: &How,
        context: &mut Context<'_>,
    ) -> Result<u8, Failure> {
        let change = Change {
            body: json!({"action": action, "filter": self.filter(tube)}),
            verb,
            done,
            about: format!("of {tube}"),
        };
        change.run(how, context)
    }
}

pub(crate) fn run_kick(args: &KickArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    if !args.which.is_all() || args.how.needs_api() {
        if args.count.is_some() {
            return Err(Failure::Usage(
                "with these flags give --all in place of a number, and --limit N".to_owned(),
            ));
        }
        let words = ("kick", "kick", "kicked");
        return args.which.change(words, &args.tube, &args.how, context);
    }
    let mut client = context.connect()?;
    let tube = &args.tube;
    let found = client.tube(tube)?.ok_or_else(|| names::no_tube(tube))?;
    let bound = match (args.count, found.number("current-jobs-buried")) {
        (Some(bound), _) => u64::from(bound),
        (None, 0) => found.number("current-jobs-delayed"),
        (None, buried) => buried,
    };
    let kicked = kick(&mut client, tube, bound)?;
    let jobs = count(kicked, "job");
    context.tell(
        json!({"tube": tube, "kicked": kicked}),
        format_args!("{jobs} of {tube} kicked"),
    )?;
    Ok(if kicked > 0 { EXIT_OK } else { EXIT_NOT_DONE })
}

fn kick(client: &mut Client, tube: &str, bound: u64) -> Result<u64, Failure> {
    if bound == 0 {
        return Ok(0);
    }
    job::choose(client, tube)?;
    let command = format!("kick {bound}");
    let reply = client.ask(&command)?;
    let kicked = reply.number_after("KICKED");
    Ok(kicked.ok_or_else(|| client.unexpected(&command, &reply.line))?)
}

const KICK_JOB_HELP: &str = concat!(
    "\
Examples:
  bsd-ctl kick-job 1
  bsd-ctl kick-job 2 3

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = KICK_JOB_HELP)]
pub(crate) struct KickJobArgs {
    /// The jobs
    #[arg(required = true)]
    ids: Vec<u64>,
}

pub(crate) fn run_kick_job(args: &KickJobArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let each = Each {
        command: "kick-job",
        done: "KICKED",
        key: "kicked",
        refused: "it is neither buried nor delayed, or there is no such job",
    };
    each.run(&args.ids, context)
}

const DELETE_HELP: &str = concat!(
    "\
Asks before it deletes more than one job. A job that a client has reserved is not deleted: only that
client may.

With --tube the server's API is asked, which beanstalkd does not have: it counts the jobs of the tube
that are meant, and deletes them between the commands of clients. Ctrl-C ends it. In a PATTERN, *
stands for any characters and ? for one; put it in quotes.

--undo holds the jobs back for that time, at most 10 minutes and 100,000 jobs, over the API: they are
buried, and then deleted. `bsd-ctl undo TASK` brings them back. If the server ends within that time
it deletes none, and they are left buried: kick them, or delete them again.

Examples:
  bsd-ctl delete 1
  bsd-ctl delete --yes 2 3
  bsd-ctl delete --tube mail --contains one --yes
  bsd-ctl delete --tube mail --state buried --undo 1m --yes
  bsd-ctl delete --tube mail-dead --reason failed --text 'no such user' --yes

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = DELETE_HELP)]
pub(crate) struct DeleteArgs {
    /// The jobs
    #[arg(required_unless_present = "tube", conflicts_with = "tube")]
    ids: Vec<u64>,
    /// All jobs of this tube, or of those whose whole name is like this, that the other flags mean
    #[arg(long, value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tube: Option<String>,
    /// Hold them back for this time before they are deleted: 60, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_undo)]
    undo: Option<u64>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
}

/// Flags that say which jobs of a tube are meant are for a tube.
fn check_of_tube(which: &Which, how: &How) -> Result<(), Failure> {
    match which.is_all() && !how.needs_api() {
        true => Ok(()),
        false => Err(Failure::Usage(
            "these flags are for the jobs of a tube: name it with --tube".to_owned(),
        )),
    }
}

pub(crate) fn run_delete(args: &DeleteArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let (filter, about) = match &args.tube {
        Some(tube) => (args.which.filter(tube), format!("of {tube}")),
        None => (
            json!({"tube": "*", "ids": args.ids}),
            "with these ids".to_owned(),
        ),
    };
    let mut body = json!({"action": "delete", "filter": filter});
    if let Some(seconds) = args.undo {
        body["undo"] = seconds.into();
    }
    if args.tube.is_some() || args.undo.is_some() {
        if args.tube.is_none() {
            args.how.api.for_undo(context)?;
        }
        let change = Change {
            body,
            verb: "delete",
            done: "deleted",
            about,
        };
        return change.run(&args.how, context);
    }
    check_of_tube(&args.which, &args.how)?;
    let jobs = args.ids.len() as u64;
    confirm(
        &format!("delete {}", count(jobs, "job")),
        jobs,
        args.how.yes,
    )?;
    let each = Each {
        command: "delete",
        done: "DELETED",
        key: "deleted",
        refused: "a client has reserved it, or there is no such job",
    };
    each.run(&args.ids, context)
}

/// A command for each of several jobs.
struct Each {
    command: &'static str,
    /// Reply of success.
    done: &'static str,
    /// The word for that.
    key: &'static str,
    /// Meaning of `NOT_FOUND`.
    refused: &'static str,
}

impl Each {
    fn run(&self, ids: &[u64], context: &mut Context<'_>) -> Result<u8, Failure> {
        let mut client = context.connect()?;
        let mut missed = 0;
        for id in ids {
            let command = format!("{} {id}", self.command);
            let reply = client.ask(&command)?;
            let is_done = reply.line == self.done;
            if !is_done && reply.line != "NOT_FOUND" {
                return Err(client.unexpected(&command, &reply.line).into());
            }
            missed += u64::from(!is_done);
            match (is_done, context.global.json) {
                (false, false) => {
                    let Each { key, refused, .. } = self;
                    complain(format_args!(
                        "job {id} was not {key}: {refused}; see `bsd-ctl job {id}`"
                    ));
                }
                _ => context.tell(
                    json!({"id": id, self.key: is_done}),
                    format_args!("job {id} was {}", self.key),
                )?,
            }
        }
        Ok(if missed == 0 { EXIT_OK } else { EXIT_NOT_DONE })
    }
}

const BURY_HELP: &str = concat!(
    "\
Asks bsd over its API, where --http leads to that of the same server: the job is buried where it is,
and that is no delivery. A job that a client has reserved cannot be buried.

The protocol lets only a client bury a job that has reserved it. So of beanstalkd, and where there is
no API, this reserves the job first (reserve-job, beanstalkd 1.12 or later): its count of reserves
grows by one. If the connection breaks in between, the job is ready.

With --tube the server's API is asked, which beanstalkd does not have: it buries the ready and
delayed jobs of the tube that are meant, and reserves none.

Examples:
  bsd-ctl bury 1
  bsd-ctl bury 2 --pri 10
  bsd-ctl bury --tube mail --contains two --yes

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = BURY_HELP)]
pub(crate) struct BuryArgs {
    /// The job
    #[arg(required_unless_present = "tube", conflicts_with = "tube")]
    id: Option<u64>,
    /// Its new priority [default: the one that it has]
    #[arg(long, conflicts_with = "tube")]
    pri: Option<u32>,
    /// All jobs of this tube, or of those whose whole name is like this, that the other flags mean
    #[arg(long, value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tube: Option<String>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
}

pub(crate) fn run_bury(args: &BuryArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    if let Some(tube) = &args.tube {
        let words = ("bury", "bury", "buried");
        return args.which.change(words, tube, &args.how, context);
    }
    check_of_tube(&args.which, &args.how)?;
    let id = args.id.unwrap_or_default();
    match args.how.api.of_same_server(context)? {
        Some(api) => change_over_api(&api, id, args.pri, ("bury", json!({})))?,
        None => {
            let give_back = |pri| format!("bury {id} {pri}");
            take_and_give_back(id, args.pri, give_back, "BURIED", context)?;
        }
    }
    context.tell(
        json!({"id": id, "buried": true}),
        format_args!("job {id} was buried"),
    )?;
    Ok(EXIT_OK)
}

const RELEASE_HELP: &str = concat!(
    "\
Asks bsd over its API, where --http leads to that of the same server: the job is kicked, or delayed,
and that is no delivery. A job that a client has reserved is released with --force alone. DELAY is
seconds, or has a unit: 90, 5m, 2h, 3d.

The protocol lets only a client release a job that has reserved it. So of beanstalkd, and where there
is no API, this reserves the job first (reserve-job, beanstalkd 1.12 or later): its count of reserves
grows by one. If the connection breaks in between, the job is ready, with the priority that it had.

--force asks the API, which beanstalkd does not have: the job is taken from its client, as when its
time is up. If the client works on it, another one may have it at the same time.

Examples:
  bsd-ctl release 1
  bsd-ctl release 3 --force
  bsd-ctl release 2 --pri 0 --delay 5m

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = RELEASE_HELP)]
pub(crate) struct ReleaseArgs {
    /// The job
    id: u64,
    /// Its new priority [default: the one that it has]
    #[arg(long)]
    pri: Option<u32>,
    /// How long until it is ready
    #[arg(long, default_value = "0", value_parser = parse_seconds)]
    delay: u32,
    /// Take it from the client that has reserved it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_release(args: &ReleaseArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let (id, delay) = (args.id, args.delay);
    if args.force {
        let api = args.api.open(context)?;
        let mut body = json!({"delay": delay});
        if let Some(pri) = args.pri {
            body["priority"] = pri.into();
        }
        api.post(&format!("/jobs/{id}/release"), &body)?;
        context.tell(
            json!({"id": id, "released": true}),
            format_args!("job {id} was taken from its client and released"),
        )?;
        return Ok(EXIT_OK);
    }
    match (args.api.of_same_server(context)?, delay) {
        (Some(api), 0) => change_over_api(&api, id, args.pri, ("kick", json!({})))?,
        (Some(api), delay) => {
            change_over_api(&api, id, args.pri, ("delay", json!({"delay": delay})))?;
        }
        (None, _) => {
            let give_back = |pri| format!("release {id} {pri} {delay}");
            take_and_give_back(id, args.pri, give_back, "RELEASED", context)?;
        }
    }
    context.tell(
        json!({"id": id, "released": true}),
        format_args!("job {id} was released"),
    )?;
    Ok(EXIT_OK)
}

/// Give a job this priority, if there is one, and then change it.
fn change_over_api(
    api: &Api,
    id: u64,
    pri: Option<u32>,
    (word, body): (&str, Value),
) -> Result<(), Failure> {
    let job = api.get(&format!("/jobs/{id}"));
    let job = job.map_err(|failure| match failure {
        Failure::NotDone(_) => job::no_job(id),
        other => other,
    })?;
    if job["state"] == "reserved" {
        return Err(is_reserved(id));
    }
    if let Some(pri) = pri {
        api.post(&format!("/jobs/{id}/priority"), &json!({"priority": pri}))?;
    }
    api.post(&format!("/jobs/{id}/{word}"), &body).map(drop)
}

fn is_reserved(id: u64) -> Failure {
    Failure::NotDone(format!(
        "job {id} was left as it is: a client has reserved it; try again when it is done with it, or \
         take it away with `bsd-ctl release {id} --force`"
    ))
}

/// Reserve a job and give it back at once: both commands leave together, so that hardly anything
/// comes between them.
fn take_and_give_back(
    id: u64,
    pri: Option<u32>,
    give_back: impl FnOnce(u64) -> String,
    done: &str,
    context: &Context<'_>,
) -> Result<(), Failure> {
    let mut client = context.connect()?;
    let found = client.job(id)?.ok_or_else(|| job::no_job(id))?;
    let give_back = give_back(pri.map_or(found.number("pri"), u64::from));
    client.send(format!("reserve-job {id}\r\n{give_back}\r\n").as_bytes())?;
    let taken: Reply = client.reply()?;
    let given = client.reply()?;
    match (taken.number_after("RESERVED"), &*taken.line) {
        (Some(_), _) if given.line == done => Ok(()),
        (Some(_), _) => Err(client.unexpected(&give_back, &given.line).into()),
        (None, "NOT_FOUND") => Err(is_reserved(id)),
        (None, line) => Err(client.unexpected("reserve-job", line).into()),
    }
}
