//! `bsd-ctl move`, `redrive`, `tasks`, `cancel` and `undo`: what the server does to many jobs at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bsd::UsageError;
use bsd_tools::human::{Meter, count, parse_age};
use clap::Args;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::api::{Api, ApiArgs};
use crate::confirm::confirm;
use crate::job::State;
use crate::pick::Pick;
use crate::table::Table;
use crate::transfer::{Elsewhere, What};
use crate::{Context, EXIT_OK, Failure, names, note};

/// How often the server is asked how far it is.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

const MOVE_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Counts the jobs, asks before it moves more
than one, and moves them between the commands of clients: each keeps its id and its state, and is in
one of the two tubes after a crash. Jobs that clients have reserved stay. Ctrl-C ends it; what was
moved stays moved. In a PATTERN, * stands for any characters and ? for one; put it in quotes.

With --to the jobs go to another server, bsd or beanstalkd, into the tube of the same name, or TUBE.
This is over the protocol, with the token of --token-file and the authority of --tls-ca. Each job is
put there, and then deleted here: some at a time, and in their order. A job has a new id there. What
it keeps besides is what an import keeps: see `bsd-ctl import --help`. No job is lost, whatever ends
in between. If bsd-ctl is killed, up to 100 jobs are at both servers. Ready jobs are reserved here
before they are put there: if it is killed, that is a delivery that has failed.

If that server refuses a job, it stays here: run the command again when that is repaired. A job with
a key stays while another one has the key there; so does a job with a key or a group if that server is
beanstalkd, and one that is too large for it.

Examples:
  bsd-ctl move mail post --yes
  bsd-ctl move 'mail*' post --state buried --kick --rate 100 --yes
  bsd-ctl move mail post --limit 10000 --contains o --yes
  bsd-ctl move mail --to 10.0.0.2:11300 --yes
  bsd-ctl move 'mail*' --to 10.0.0.2:11300 --state buried --limit 100 --yes

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = MOVE_HELP)]
pub(crate) struct MoveArgs {
    /// The tube, or those whose whole name is like this
    #[arg(value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    from: String,
    /// The tube that they are moved to
    #[arg(value_name = "TUBE", value_parser = names::parse_tube, required_unless_present = "server")]
    to: Option<String>,
    #[command(flatten)]
    elsewhere: Elsewhere,
    /// Only jobs in this state; may be given several times [default: all that are not reserved]
    #[arg(long = "state", value_name = "STATE", value_enum)]
    states: Vec<State>,
    /// Make them ready there
    #[arg(long)]
    kick: bool,
    #[command(flatten)]
    pick: Pick,
    #[command(flatten)]
    how: How,
}

/// How many jobs are changed.
#[derive(Args)]
pub(crate) struct How {
    /// Most jobs a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// Most jobs in all: the first ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Leave it to the server, and say how to look after it: it goes on when the terminal is closed
    #[arg(long)]
    detach: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

impl How {
    /// Something is said that only the API can do.
    pub(crate) fn needs_api(&self) -> bool {
        self.rate.is_some() || self.limit.is_some() || self.detach
    }
}

/// The states of jobs that are moved to another server.
fn moved_states(chosen: &[State]) -> Vec<bsd_client::State> {
    let all = [
        (State::Buried, bsd_client::State::Buried),
        (State::Delayed, bsd_client::State::Delayed),
        (State::Ready, bsd_client::State::Ready),
    ];
    let is_meant = |state: &State| chosen.is_empty() || chosen.contains(state);
    let meant = all.into_iter().filter(|(state, _)| is_meant(state));
    meant.map(|(_, state)| state).collect()
}

pub(crate) fn run_move(args: &MoveArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    if let Some(server) = &args.elsewhere.server {
        let what = What {
            pattern: &args.from,
            tube: args.to.as_deref(),
            states: moved_states(&args.states),
            limit: args.how.limit,
            is_yes: args.how.yes,
        };
        return args.elsewhere.run(server, &what, &args.how.api, context);
    }
    let to = args.to.as_deref().unwrap_or_default();
    let mut filter = json!({"tube": args.from});
    if !args.states.is_empty() {
        filter["states"] = State::words(&args.states);
    }
    args.pick.add_to(&mut filter);
    let change = Change {
        body: json!({"action": "move", "to": to, "kick": args.kick, "filter": filter}),
        verb: "move",
        done: "moved",
        about: format!("of {} to {to}", args.from),
    };
    change.run(&args.how, context)
}

const REDRIVE_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Sends the dead letters of a tube back to the
tubes that they came from, and makes its buried jobs ready; or, with --to, makes its buried jobs
ready in that tube. As many as there are now. Counts them, and asks before it changes more than one.
Ctrl-C ends it; what was done stays.

Examples:
  bsd-ctl redrive mail --yes
  bsd-ctl redrive mail --to post --rate 50 --yes
  bsd-ctl redrive mail --rate 100 --detach --yes
  bsd-ctl redrive mail-dead --reason failed --text 'no route to host' --yes

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = REDRIVE_HELP)]
pub(crate) struct RedriveArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    tube: String,
    /// The tube in which they are to be ready [default: the same]
    #[arg(long, value_name = "TUBE", value_parser = names::parse_tube)]
    to: Option<String>,
    #[command(flatten)]
    pick: Pick,
    #[command(flatten)]
    how: How,
}

pub(crate) fn run_redrive(args: &RedriveArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let mut filter = json!({"tube": args.tube});
    args.pick.add_to(&mut filter);
    let (body, about) = match &args.to {
        Some(to) => {
            filter["states"] = json!(["buried"]);
            (
                json!({"action": "move", "to": to, "kick": true, "filter": filter}),
                format!("of {} to {to}", args.tube),
            )
        }
        None => (
            json!({"action": "redrive", "filter": filter}),
            format!("of {}", args.tube),
        ),
    };
    let change = Change {
        body,
        verb: "redrive",
        done: "ready again",
        about,
    };
    change.run(&args.how, context)
}

/// A change of many jobs.
pub(crate) struct Change {
    /// As the API has it, but for the rate.
    pub(crate) body: Value,
    pub(crate) verb: &'static str,
    pub(crate) done: &'static str,
    pub(crate) about: String,
}

/// Seconds for which a delete can be undone, as `--undo` takes them.
pub(crate) fn parse_undo(text: &str) -> Result<u64, UsageError> {
    let seconds = parse_age(text)?;
    match (1..=600).contains(&seconds) {
        true => Ok(seconds),
        false => Err("it is 1 second to 10 minutes".into()),
    }
}

impl Change {
    pub(crate) fn run(&self, how: &How, context: &mut Context<'_>) -> Result<u8, Failure> {
        let Change { verb, about, .. } = self;
        let api = how.api.open(context)?;
        let mut body = self.body.clone();
        body["dry_run"] = true.into();
        if let Some(limit) = how.limit {
            body["limit"] = limit.into();
        }
        let counted = wait(&api, "/tasks", api.post("/tasks", &body)?, "counting")?;
        if counted["state"] != "done" {
            let reason = counted["reason"].as_str();
            return Err(Failure::NotDone(format!(
                "stopped while counting{}: nothing was changed",
                reason.map(|it| format!(" ({it})")).unwrap_or_default()
            )));
        }
        let matched = counted["matched"].as_u64().unwrap_or(0);
        if matched == 0 {
            return Err(Failure::NotDone(format!(
                "no job {about} can be changed; `bsd-ctl tubes` shows where jobs are"
            )));
        }
        confirm(
            &format!("{verb} {} {about}", count(matched, "job")),
            matched,
            how.yes,
        )?;
        if !how.yes {
            // No more than were shown.
            body["most"] = matched.into();
        }
        body["dry_run"] = false.into();
        if let Some(rate) = how.rate {
            body["rate"] = rate.into();
        }
        let task = api.post("/tasks", &body)?;
        match how.detach {
            true => self.leave(task, matched, context),
            false => self.finish(&api, task, context),
        }
    }

    /// Do it without counting first.
    pub(crate) fn begin(&self, api: &Api, context: &mut Context<'_>) -> Result<u8, Failure> {
        let task = api.post("/tasks", &self.body)?;
        self.finish(api, task, context)
    }

    /// Wait for a task, and say what it has done.
    fn finish(&self, api: &Api, task: Value, context: &mut Context<'_>) -> Result<u8, Failure> {
        let about = &self.about;
        let task = wait(api, "/tasks", task, self.verb)?;
        if task["state"] == "held" {
            return self.leave_held(task, context);
        }
        let changed = task["changed"].as_u64().unwrap_or(0);
        let skipped = task["skipped"].as_u64().unwrap_or(0);
        if skipped > 0 {
            note(format_args!(
                "{} had gone, or were reserved, when it was their turn",
                count(skipped, "job")
            ));
        }
        let state = task["state"].as_str().unwrap_or_default().to_owned();
        let reason = task["reason"].as_str().unwrap_or_default().to_owned();
        context.tell(
            task,
            format_args!("{} {about} {}", count(changed, "job"), self.done),
        )?;
        match &*state {
            "done" => Ok(EXIT_OK),
            "undone" => Err(Failure::NotDone("stopped: all is as it was".to_owned())),
            "cancelled" => Err(Failure::NotDone(
                "stopped: the rest is as it was; run the command again to go on".to_owned(),
            )),
            _ => Err(Failure::NotDone(format!(
                "not all was done: {reason}; run the command again when that is repaired"
            ))),
        }
    }
}

impl Change {
    /// The jobs are held back, and the server deletes them when the time is over.
    fn leave_held(&self, task: Value, context: &mut Context<'_>) -> Result<u8, Failure> {
        let (id, seconds) = (task["id"].clone(), task["undo"].clone());
        let jobs = count(task["held"].as_u64().unwrap_or(0), "job");
        let about = &self.about;
        context.tell(
            task,
            format_args!(
                "{jobs} {about} held back, to be deleted in {seconds} s\n`bsd-ctl undo {id}` brings \
                 them back until then"
            ),
        )?;
        Ok(EXIT_OK)
    }

    /// The server goes on by itself: say how to look after it.
    fn leave(&self, task: Value, matched: u64, context: &mut Context<'_>) -> Result<u8, Failure> {
        let (id, Change { verb, about, .. }) = (task["id"].clone(), self);
        let jobs = count(matched, "job");
        context.tell(
            task,
            format_args!(
                "task {id} has begun to {verb} {jobs} {about}\n`bsd-ctl tasks` shows how far it \
                 is, `bsd-ctl cancel {id}` ends it"
            ),
        )?;
        Ok(EXIT_OK)
    }
}

/// What SIGINT and SIGTERM do: they end this process, or the task or search that it waits for.
struct Interrupts {
    ends_process: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Interrupts {
    fn new() -> io::Result<Interrupts> {
        let interrupts = Interrupts {
            ends_process: Arc::new(AtomicBool::new(true)),
            stop: Arc::new(AtomicBool::new(false)),
        };
        for signal in [SIGINT, SIGTERM] {
            let (ends, stop) = (&interrupts.ends_process, &interrupts.stop);
            signal_hook::flag::register_conditional_default(signal, Arc::clone(ends))?;
            signal_hook::flag::register(signal, Arc::clone(stop))?;
        }
        Ok(interrupts)
    }

    /// Of the whole process, from the first wait on.
    fn of_process() -> Result<&'static Interrupts, Failure> {
        static INTERRUPTS: OnceLock<Interrupts> = OnceLock::new();
        if let Some(interrupts) = INTERRUPTS.get() {
            return Ok(interrupts);
        }
        let made = Interrupts::new()
            .map_err(|error| Failure::Input(format!("signals cannot be caught: {error}")))?;
        Ok(INTERRUPTS.get_or_init(|| made))
    }
}

/// Signals are caught as long as this is there.
struct Caught(&'static Interrupts);

impl Caught {
    fn begin() -> Result<Caught, Failure> {
        let interrupts = Interrupts::of_process()?;
        interrupts.stop.store(false, Ordering::SeqCst);
        interrupts.ends_process.store(false, Ordering::SeqCst);
        Ok(Caught(interrupts))
    }

    /// True once for each signal, or for several at once.
    fn take(&self) -> bool {
        self.0.stop.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        self.0.ends_process.store(true, Ordering::SeqCst);
    }
}

/// Wait until a task or a search is over, or holds jobs back that it deletes later; SIGINT and SIGTERM
/// end it, and meanwhile not this process. Returns it as it is then.
///
/// # Errors
/// The server does not answer, or signals cannot be caught; then it goes on by itself.
pub(crate) fn wait(
    api: &Api,
    list: &str,
    mut task: Value,
    doing: &'static str,
) -> Result<Value, Failure> {
    let path = format!("{list}/{}", task["id"]);
    let mut meter = Meter::counting(doing, "jobs");
    let signals = Caught::begin()?;
    while matches!(
        task["state"].as_str(),
        Some("counting" | "running" | "returning")
    ) {
        if signals.take() {
            api.delete(&path)?;
        }
        std::thread::sleep(LOOK_EVERY);
        task = api.get(&path)?;
        let number = |key: &str| task[key].as_u64().unwrap_or(0);
        if task["state"] == "running" {
            let done = number("changed") + number("skipped") + number("held");
            meter.show(done, number("matched"));
        }
    }
    if task["dry_run"] == true && signals.take() {
        // It had just counted the last one. Nothing is to follow.
        task["state"] = "cancelled".into();
    }
    Ok(task)
}

const TASKS_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Shows what the server does, or has done in
the last hour, to many jobs at once; the newest first.

Examples:
  bsd-ctl tasks
  bsd-ctl tasks --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = TASKS_HELP)]
pub(crate) struct TasksArgs {
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_tasks(args: &TasksArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let tasks = args.api.open(context)?.get("/tasks")?["tasks"].take();
    if context.global.json {
        writeln!(context.out, "{tasks}")?;
        return Ok(EXIT_OK);
    }
    let mut table = Table::new(&[
        "ACTION", "ID", "STATE", "MATCHED", "CHANGED", "SKIPPED", "TUBE",
    ]);
    for task in tasks.as_array().into_iter().flatten() {
        let text = |value: &Value| names::shown(value.as_str().unwrap_or("-"));
        table.push(vec![
            text(&task["action"]),
            task["id"].to_string(),
            text(&task["state"]),
            task["matched"].to_string(),
            task["changed"].to_string(),
            task["skipped"].to_string(),
            text(&task["filter"]["tube"]),
        ]);
    }
    table.print(context.out)?;
    Ok(EXIT_OK)
}

const CANCEL_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. What the task has done stays. A delete with
--undo is undone.

Examples:
  bsd-ctl cancel 1

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = CANCEL_HELP)]
pub(crate) struct CancelArgs {
    /// The task, as `bsd-ctl tasks` shows it
    task: u64,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_cancel(args: &CancelArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let path = format!("/tasks/{}", args.task);
    let task = wait(&api, "/tasks", api.delete(&path)?, "ending")?;
    let task = settled(&api, task)?;
    let state = task["state"].as_str().unwrap_or_default().to_owned();
    let changed = task["changed"].as_u64().unwrap_or(0);
    let text = format!(
        "task {} is {state}; it changed {}",
        args.task,
        count(changed, "job")
    );
    context.tell(task, text)?;
    Ok(EXIT_OK)
}

/// Wait until a task that was told to bring jobs back holds none.
fn settled(api: &Api, mut task: Value) -> Result<Value, Failure> {
    let path = format!("/tasks/{}", task["id"]);
    while task["state"] == "held" {
        std::thread::sleep(LOOK_EVERY);
        task = wait(api, "/tasks", api.get(&path)?, "bringing back")?;
    }
    Ok(task)
}

const UNDO_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Brings back the jobs that `delete --undo` or
`clear --undo`, or a delete in the console, holds back: each is ready with the priority that it had,
or delayed until the time that it was, or buried as it was. A job that someone has kicked, moved or
deleted meanwhile is left as it is, and is counted.

Examples:
  bsd-ctl undo 1

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = UNDO_HELP)]
pub(crate) struct UndoArgs {
    /// The task, as `bsd-ctl tasks` shows it
    task: u64,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_undo(args: &UndoArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let begun = api.post(&format!("/tasks/{}/undo", args.task), &json!({}))?;
    let task = wait(&api, "/tasks", begun, "bringing back")?;
    let task = settled(&api, task)?;
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let not = &task["not_returned"];
    let left = [
        (number(&not["gone"]), "deleted by someone else"),
        (
            number(&not["changed"]),
            "kicked, reserved, moved or changed by someone else",
        ),
        (
            number(&not["no_room"]),
            "left buried, as the disk has no room",
        ),
        (number(&task["changed"]), "deleted before"),
    ];
    for (jobs, why) in left.iter().filter(|(jobs, _)| *jobs > 0) {
        note(format_args!("{}: {why}", count(*jobs, "job")));
    }
    let is_all = left.iter().all(|(jobs, _)| *jobs == 0);
    let (state, reason) = (task["state"].clone(), task["reason"].clone());
    let text = format!("{} brought back", count(number(&task["returned"]), "job"));
    context.tell(task, text)?;
    match (state.as_str(), reason.as_str()) {
        (_, Some(reason)) => Err(Failure::NotDone(reason.to_owned())),
        (Some("undone"), _) if is_all => Ok(EXIT_OK),
        _ => Err(Failure::NotDone("not all jobs are as they were".to_owned())),
    }
}
