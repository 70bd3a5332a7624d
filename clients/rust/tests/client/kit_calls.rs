//! The calls of the kit, made with the blocking client.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bsd_client::{
    Clear, Client, Conflict, DeadLetter, Error, ErrorKind, Failed, Inserted, Job, Policy, Put,
    Schedule, State, Unique,
};
use serde_json::{Map, Value, json};

use crate::kit_match::{bytes, hex};

/// The result of a call, or the kind of its error.
pub(crate) type Outcome = Result<Value, String>;

/// The kind of an error, in the words of the kit.
pub(crate) fn kind(error: &Error) -> String {
    let is_late = error.source().and_then(|it| it.downcast_ref::<io::Error>());
    let is_late = is_late.is_some_and(|it| it.kind() == io::ErrorKind::TimedOut);
    let kind = match error.kind() {
        ErrorKind::NotFound => "not_found",
        ErrorKind::OutOfMemory => "out_of_memory",
        ErrorKind::Draining => "draining",
        ErrorKind::JobTooBig => "job_too_big",
        ErrorKind::DeadlineSoon => "deadline_soon",
        ErrorKind::NotIgnored => "not_ignored",
        ErrorKind::NotAuthorized => "not_authorized",
        ErrorKind::BadFormat => "bad_format",
        ErrorKind::ExpectedCrlf => "expected_crlf",
        ErrorKind::UnknownCommand => "unknown_command",
        ErrorKind::Buried => "buried",
        ErrorKind::Internal => "internal_error",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Usage => "invalid",
        ErrorKind::TimedOut => "timeout",
        ErrorKind::Unanswered if is_late => "timeout",
        ErrorKind::Connect | ErrorKind::Unanswered => "connection",
        ErrorKind::Protocol => "protocol",
        other => panic!("{other:?} is no kind of the kit"),
    };
    kind.to_owned()
}

/// The arguments of a call.
pub(crate) struct Args<'a>(pub(crate) &'a Map<String, Value>);

impl Args<'_> {
    pub(crate) fn get(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name)
            .as_str()
            .unwrap_or_else(|| panic!("{name} of {:?}", self.0))
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.get(name)
            .as_u64()
            .unwrap_or_else(|| panic!("{name} of {:?}", self.0))
    }

    pub(crate) fn or(&self, name: &str, default: u64) -> u64 {
        self.get(name).as_u64().unwrap_or(default)
    }

    pub(crate) fn id(&self) -> u64 {
        self.number("id")
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        let ids = self.get("ids").as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap()).collect()
    }

    pub(crate) fn pri(&self) -> u32 {
        u32::try_from(self.or("pri", 65_536)).unwrap()
    }

    pub(crate) fn seconds(&self, name: &str, default: u64) -> Duration {
        Duration::from_secs(self.or(name, default))
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        match self.get(name) {
            Value::Null => Vec::new(),
            value => bytes(value),
        }
    }

    /// Whether a program could say it at all: types keep the rest out.
    fn can_be_said(&self, call: &str) -> bool {
        let numbers = ["bound", "delay", "limit", "max", "pri", "timeout", "ttr"];
        let is_number = |name: &str| match self.get(name) {
            Value::Null => true,
            value => value.as_u64().is_some_and(|it| u32::try_from(it).is_ok()),
        };
        let is_one_of = |name: &str, words: &[&str]| match self.get(name).as_str() {
            None => true,
            Some(word) => words.contains(&word),
        };
        numbers.into_iter().all(is_number)
            && is_one_of("unique", &["exists", "waiting"])
            && is_one_of("conflict", &["keep", "replace"])
            && match call {
                "clear_tube" => is_one_of("state", &["ready", "delayed", "buried", "all"]),
                _ => is_one_of("state", &["ready", "delayed", "reserved", "buried"]),
            }
    }

    /// The options that all puts have.
    pub(crate) fn put(&self, body: Vec<u8>) -> Put {
        let put = Put::new(body)
            .pri(self.pri())
            .delay(self.seconds("delay", 0));
        put.ttr(self.seconds("ttr", 60))
    }

    pub(crate) fn put_with(&self) -> Put {
        let mut put = self.put(self.bytes("body"));
        let text = |name: &str| self.get(name).as_str();
        if let Some(tube) = text("tube") {
            put = put.tube(tube);
        }
        if let Some(at) = self.get("at").as_u64() {
            put = put.at(u32::try_from(at).unwrap());
        }
        if let Some(key) = text("key") {
            put = put.key(key);
        }
        if let Some(group) = text("group") {
            put = put.group(group);
        }
        if text("unique") == Some("waiting") {
            put = put.unique(Unique::Waiting);
        }
        if text("conflict") == Some("replace") {
            put = put.conflict(Conflict::Replace);
        }
        put
    }

    /// Values of a policy or a schedule that are given by their names.
    pub(crate) fn values(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        };
        let values = self.get("values").as_object().cloned().unwrap_or_default();
        values
            .iter()
            .map(|(name, value)| (name.clone(), text(value)))
            .collect()
    }
}

pub(crate) fn job(job: Option<Job>) -> Outcome {
    let Some(job) = job else {
        return Err("timed_out".to_owned());
    };
    let mut value = json!({"id": job.id, "body": hex(&job.body)});
    if let Some(tube) = job.tube {
        value["tube"] = json!(tube);
    }
    Ok(value)
}

fn batch(ids: &[u64], missing: &[u64]) -> Value {
    json!({"count": ids.len() - missing.len(), "missing": missing})
}

/// A document: numbers are numbers, but for what is a name.
pub(crate) fn document<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let value = |name: &str, text: &str| {
        let is_name = ["tube", "name", "key", "group", "text", "version"].contains(&name);
        match (is_name, text.parse::<i64>(), text.parse::<f64>(), text) {
            (true, ..) => json!(text),
            (_, Ok(number), ..) => json!(number),
            (_, _, Ok(number), _) => json!(number),
            (.., "true") => json!(true),
            (.., "false") => json!(false),
            _ => json!(text),
        }
    };
    let entries = entries.map(|(name, text)| (name.to_owned(), value(name, text)));
    Value::Object(entries.collect())
}

fn state(word: &str) -> State {
    word.parse().unwrap()
}

fn clear(word: &str) -> Clear {
    match word {
        "ready" => Clear::Ready,
        "delayed" => Clear::Delayed,
        "buried" => Clear::Buried,
        _ => Clear::All,
    }
}

/// Make a call. With `is_over` a reserve ends its wait when that is set.
pub(crate) fn call(
    client: &mut Client,
    name: &str,
    args: &Map<String, Value>,
    is_over: Option<&AtomicBool>,
) -> Outcome {
    let args = Args(args);
    if !args.can_be_said(name) {
        return Err("invalid".to_owned());
    }
    match reserving(client, name, &args, is_over) {
        Some(result) => result,
        None => plain(client, name, &args).map_err(|error| kind(&error)),
    }
}

/// The calls that may wait, and for which nothing is an error.
fn reserving(
    client: &mut Client,
    name: &str,
    args: &Args<'_>,
    is_over: Option<&AtomicBool>,
) -> Option<Outcome> {
    let can_end = is_over.is_some();
    let is_over = || is_over.is_some_and(|it| it.load(Ordering::SeqCst));
    let wait = args.get("timeout").as_u64().map(Duration::from_secs);
    let reserved = match (name, wait) {
        ("reserve", Some(wait)) if wait.is_zero() => client.reserve(wait),
        ("reserve", Some(wait)) => client.reserve_until(wait, is_over),
        ("reserve", None) if can_end => client.reserve_until(Duration::from_secs(100), is_over),
        ("reserve", None) => client.reserve_endlessly().map(Some),
        ("reserve_batch", wait) => {
            let most = u16::try_from(args.number("max")).unwrap_or(u16::MAX);
            let jobs = client.reserve_batch_until(most, wait.unwrap_or_default(), is_over);
            let jobs = jobs.map_err(|error| kind(&error));
            return Some(jobs.and_then(|jobs| match jobs.is_empty() {
                true => Err("timed_out".to_owned()),
                false => {
                    let jobs: Result<Vec<_>, _> =
                        jobs.into_iter().map(|it| job(Some(it))).collect();
                    Ok(json!({ "jobs": jobs? }))
                }
            }));
        }
        _ => return None,
    };
    Some(reserved.map_err(|error| kind(&error)).and_then(job))
}

fn plain(client: &mut Client, name: &str, args: &Args<'_>) -> Result<Value, Error> {
    let done = || json!({});
    let found = |job: Job| json!({"id": job.id, "body": hex(&job.body)});
    Ok(match name {
        "auth" => json!({"accepted": client.auth(args.text("token"))?}),
        "capabilities" => json!({"words": client.capabilities()?}),
        "put" => json!({"id": client.put(args.put(args.bytes("body")))?.id()}),
        "put_with" => match client.put_with(args.put_with())? {
            Inserted::New(id) => json!({"id": id, "exists": false}),
            Inserted::Exists(id) => json!({"id": id, "exists": true}),
        },
        "put_many" => {
            let bodies = args.get("bodies").as_array().unwrap();
            let puts: Vec<_> = bodies.iter().map(|body| args.put(bytes(body))).collect();
            let results = client.put_many(&puts)?.into_iter();
            let one = |result: Result<Inserted, Error>| match result {
                Ok(inserted) => json!({"id": inserted.id()}),
                Err(error) => json!({"error": kind(&error)}),
            };
            json!({"results": results.map(one).collect::<Vec<_>>()})
        }
        "use" => {
            client.use_tube(args.text("tube"))?;
            json!({"tube": args.text("tube")})
        }
        "list_tube_used" => json!({"tube": client.used_tube()?}),
        "watch" => json!({"count": client.watch(args.text("tube"))?}),
        "ignore" => json!({"count": client.ignore(args.text("tube"))?}),
        "list_tubes_watched" => json!({"tubes": client.watched_tubes()?}),
        "list_tubes" => json!({"tubes": client.tubes()?}),
        "reserve_job" => found(client.reserve_job(args.id())?),
        "delete" => client.delete(args.id()).map(|()| done())?,
        "touch" => client.touch(args.id()).map(|()| done())?,
        "kick_job" => client.kick_job(args.id()).map(|()| done())?,
        "release" => {
            client.release(args.id(), args.pri(), args.seconds("delay", 0))?;
            done()
        }
        "bury" => client.bury(args.id(), args.pri()).map(|()| done())?,
        "bury_with_reason" => {
            client.bury_with_reason(args.id(), args.pri(), args.bytes("text"))?;
            done()
        }
        "fail" => match client.fail(args.id(), args.bytes("text"))? {
            Failed::Released => json!({"outcome": "released"}),
            Failed::Buried => json!({"outcome": "buried"}),
            Failed::Deleted => json!({"outcome": "deleted"}),
            Failed::DeadLettered(tube) => json!({"outcome": "dead_lettered", "tube": tube}),
            other => panic!("{other:?}"),
        },
        "delete_batch" => batch(&args.ids(), &client.delete_batch(&args.ids())?),
        "touch_batch" => batch(&args.ids(), &client.touch_batch(&args.ids())?),
        "release_batch" => {
            let delay = args.seconds("delay", 0);
            batch(
                &args.ids(),
                &client.release_batch(&args.ids(), args.pri(), delay)?,
            )
        }
        "peek" => found(client.peek(args.id())?),
        "peek_ready" => found(client.peek_ready()?),
        "peek_delayed" => found(client.peek_delayed()?),
        "peek_buried" => found(client.peek_buried()?),
        "kick" => {
            let bound = u32::try_from(args.number("bound")).unwrap();
            json!({"count": client.kick(bound)?})
        }
        "pause_tube" => {
            client.pause_tube(args.text("tube"), args.seconds("delay", 0))?;
            done()
        }
        _ => return told(client, name, args),
    })
}

/// The calls about what is known, and those of operators.
fn told(client: &mut Client, name: &str, args: &Args<'_>) -> Result<Value, Error> {
    Ok(match name {
        "stats" => document(client.stats()?.entries()),
        "stats_tube" => document(client.stats_tube(args.text("tube"))?.entries()),
        "stats_policy" => document(client.stats_policy(args.text("tube"))?.entries()),
        "stats_job" => document(client.stats_job(args.id())?.entries()),
        "stats_job_extended" => document(client.stats_job_extended(args.id())?.entries()),
        "stats_schedule" => {
            let stats = client.stats_schedule(args.text("name"))?;
            let mut value = document(stats.entries());
            value["next"] = json!(stats.next);
            value
        }
        "list_jobs" => {
            let cursor = args.get("cursor").as_str().unwrap_or("0");
            let limit = u16::try_from(args.or("limit", 100)).unwrap();
            let (tube, state) = (args.text("tube"), state(args.text("state")));
            let page = client.list_jobs(tube, state, Some(cursor), limit)?;
            let job = |(id, size)| json!({"id": id, "size": size});
            let jobs: Vec<_> = page.jobs.into_iter().map(job).collect();
            json!({"next": page.next.unwrap_or_else(|| "0".to_owned()), "jobs": jobs})
        }
        "move_job" => client
            .move_job(args.id(), args.text("tube"))
            .map(|()| json!({}))?,
        "clear_tube" => {
            let states = clear(args.get("state").as_str().unwrap_or("all"));
            json!({"count": client.clear_tube(args.text("tube"), states)?})
        }
        "set_policy" => {
            let policy = Policy {
                dead_letter: DeadLetter::Bury,
                other: args.values(),
                ..Policy::default()
            };
            client
                .set_policy(args.text("tubes"), &policy)
                .map(|()| json!({}))?
        }
        "schedule_set" => {
            let schedule = Schedule {
                cron: args.text("cron").to_owned(),
                tube: args.text("tube").to_owned(),
                body: args.bytes("body"),
                other: args.values(),
                ..Schedule::default()
            };
            client
                .set_schedule(args.text("name"), &schedule)
                .map(|()| json!({}))?
        }
        "schedule_delete" => client
            .delete_schedule(args.text("name"))
            .map(|()| json!({}))?,
        other => panic!("the kit's call {other} is not known"),
    })
}
