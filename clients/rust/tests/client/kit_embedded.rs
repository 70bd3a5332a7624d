//! The kit's scripts on a queue in this process: jobs are put, reserved and finished through the trait of
//! the worker's sources, and looked at through the queue. A script with a call that the trait has not is
//! left out, and named.

use std::collections::BTreeMap;

use bsd::protocol::Report;
use bsd::{Bounds, ClearedStates, JobError, Options, Queue};
use bsd_client::worker::{JobSession, JobSource, Retry};
use bsd_client::{Error, Failed, Inserted};
use serde_json::{Map, Value, json};

use crate::kit::{Variables, check, kit, scripts};
use crate::kit_calls::{Args, Outcome, document, job, kind};
use crate::kit_match::{bytes, hex};

const CALLS: [&str; 29] = [
    "bury",
    "bury_with_reason",
    "clear_tube",
    "close",
    "delete",
    "fail",
    "ignore",
    "kick",
    "kick_job",
    "list_tube_used",
    "list_tubes_watched",
    "move_job",
    "pause_tube",
    "peek",
    "peek_buried",
    "peek_delayed",
    "peek_ready",
    "put",
    "put_many",
    "put_with",
    "release",
    "reserve",
    "stats_job",
    "stats_job_extended",
    "stats_policy",
    "stats_tube",
    "touch",
    "use",
    "watch",
];

/// What a connection is for a script.
struct Connection {
    queue: Queue,
    used: String,
    watched: Vec<String>,
    /// Opened by the first reserve after a change of the watched tubes.
    session: Option<Box<dyn JobSession>>,
}

fn of_queue(error: JobError) -> String {
    kind(&Error::from(error))
}

impl Connection {
    fn new(queue: &Queue) -> Connection {
        Connection {
            queue: queue.clone(),
            used: "default".to_owned(),
            watched: vec!["default".to_owned()],
            session: None,
        }
    }

    fn session(&mut self) -> &mut dyn JobSession {
        let opened = || self.queue.open(&self.watched).unwrap();
        &mut **self.session.get_or_insert_with(opened)
    }

    fn call(&mut self, name: &str, args: &Map<String, Value>) -> Outcome {
        let args = Args(args);
        let failed = |error: Error| kind(&error);
        let done = |()| json!({});
        match name {
            "use" => self.used = args.text("tube").to_owned(),
            "close" => {
                self.session = None;
                return Ok(json!({}));
            }
            "list_tube_used" => return Ok(json!({"tube": self.used})),
            "watch" | "ignore" => return self.watch(name == "watch", args.text("tube")),
            "list_tubes_watched" => return Ok(json!({"tubes": self.watched})),
            "put" | "put_with" => {
                let tube = args.get("tube").as_str().unwrap_or(&self.used).to_owned();
                let put = args.put_with().tube(tube);
                return match self.session().put(put).map_err(failed)? {
                    Inserted::New(id) => Ok(json!({"id": id, "exists": false})),
                    Inserted::Exists(id) => Ok(json!({"id": id, "exists": true})),
                };
            }
            "put_many" => {
                let used = self.used.clone();
                let bodies = args.get("bodies").as_array().unwrap();
                let one = |body| match self.session().put(args.put(bytes(body)).tube(&used)) {
                    Ok(inserted) => json!({"id": inserted.id()}),
                    Err(error) => json!({"error": kind(&error)}),
                };
                return Ok(json!({"results": bodies.iter().map(one).collect::<Vec<_>>()}));
            }
            "reserve" => {
                let wait = args.seconds("timeout", 10);
                return self.session().reserve(wait).map_err(failed).and_then(job);
            }
            "delete" => return self.session().delete(args.id()).map(done).map_err(failed),
            "touch" => return self.session().touch(args.id()).map(done).map_err(failed),
            "release" => {
                let delay = args.seconds("delay", 0);
                return self
                    .session()
                    .release(args.id(), delay)
                    .map(done)
                    .map_err(failed);
            }
            "bury" | "bury_with_reason" => {
                let text = args.get("text").as_str().unwrap_or_default().to_owned();
                return self
                    .session()
                    .bury(args.id(), &text)
                    .map(done)
                    .map_err(failed);
            }
            "fail" => {
                let text = String::from_utf8_lossy(&args.bytes("text")).into_owned();
                let became = self.session().fail(args.id(), &text, &Retry::default());
                return Ok(match became.map_err(failed)? {
                    Failed::Released => json!({"outcome": "released"}),
                    Failed::Buried => json!({"outcome": "buried"}),
                    Failed::Deleted => json!({"outcome": "deleted"}),
                    Failed::DeadLettered(tube) => json!({"outcome": "dead_lettered", "tube": tube}),
                    other => panic!("{other:?}"),
                });
            }
            _ => return self.look(name, &args).map_err(of_queue),
        }
        Ok(json!({"tube": self.used}))
    }

    fn watch(&mut self, is_watched: bool, tube: &str) -> Outcome {
        let is_there = self.watched.iter().any(|it| it == tube);
        match (is_watched, is_there) {
            (true, false) => self.watched.push(tube.to_owned()),
            (false, true) if self.watched.len() == 1 => return Err("not_ignored".to_owned()),
            (false, true) => self.watched.retain(|it| it != tube),
            _ => return Ok(json!({"count": self.watched.len()})),
        }
        self.session = None;
        Ok(json!({"count": self.watched.len()}))
    }

    /// What the trait has not, and the queue has for everyone.
    fn look(&self, name: &str, args: &Args<'_>) -> Result<Value, JobError> {
        let id = || bsd::types::JobId(args.id());
        let found = |job: bsd::Job| json!({"id": job.id.0, "body": hex(&job.body)});
        let queue = &self.queue;
        Ok(match name {
            "kick" => {
                let bound = u32::try_from(args.number("bound")).unwrap();
                json!({"count": queue.kick(&self.used, bound).wait()?})
            }
            "kick_job" => queue.kick_job(id()).wait().map(|()| json!({}))?,
            "peek" => found(queue.peek(id()).wait()?),
            "peek_ready" => found(queue.peek_ready(&self.used).wait()?),
            "peek_delayed" => found(queue.peek_delayed(&self.used).wait()?),
            "peek_buried" => found(queue.peek_buried(&self.used).wait()?),
            "stats_job" => read(&Report::Job(queue.stats_job(id()).wait()?)),
            "stats_job_extended" => {
                let stats = queue.stats_job_extended(id()).wait()?;
                read(&Report::ExtendedJob(Box::new(stats)))
            }
            "stats_tube" => read(&Report::Tube(queue.stats_tube(args.text("tube")).wait()?)),
            "stats_policy" => {
                let stats = queue.stats_policy(args.text("tube")).wait()?;
                read(&Report::Policy(Box::new(stats)))
            }
            "move_job" => {
                let moved = queue.move_job(id(), args.text("tube")).wait();
                moved.map(|()| json!({}))?
            }
            "clear_tube" => {
                let word = args.get("state").as_str().unwrap_or("all");
                let states = ClearedStates::parse(word).unwrap();
                json!({"count": queue.clear_tube(args.text("tube"), states).wait()?})
            }
            "pause_tube" => {
                let pause = queue.pause(args.text("tube"), args.seconds("delay", 0));
                pause.wait().map(|()| json!({}))?
            }
            other => panic!("{other} is not in the list of calls"),
        })
    }
}

/// An entry for each line of the document that a server makes of the same figures.
fn read(report: &Report) -> Value {
    let mut text = Vec::new();
    report.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    document(lines.map(|(name, value)| (name, value.trim_matches('"'))))
}

/// Whether all calls of a script can be made. Priorities cannot: the trait keeps the one that a job has.
/// What a client refuses by itself is not for a queue.
fn fits(script: &Value) -> bool {
    let steps = script["steps"].as_array().unwrap();
    steps.iter().all(|step| {
        let call = step["call"].as_str().unwrap_or_default();
        let is_simple = step["spawn"].is_null() && step["until"].is_null();
        let has_pri = !step["args"]["pri"].is_null() && !call.starts_with("put");
        let is_refused = step["error"].to_string().contains("invalid");
        CALLS.contains(&call) && is_simple && !has_pri && !is_refused
    })
}

#[test]
fn the_scripts_of_the_kit_that_fit_hold_on_a_queue_in_this_process() {
    let queue = Queue::open_with(&Options::default(), Bounds::default()).unwrap();
    let mut count = 0;
    for (name, script) in scripts("scripts") {
        let is_plain = script["server"].as_str().unwrap_or("plain") == "plain";
        if !is_plain || !fits(&script) {
            println!("left out: {name}");
            continue;
        }
        let mut variables = Variables::new(&name);
        let mut connections: BTreeMap<String, Connection> = BTreeMap::new();
        for (number, step) in script["steps"].as_array().unwrap().iter().enumerate() {
            let connection = step["client"].as_str().unwrap_or("main").to_owned();
            let connection = connections
                .entry(connection)
                .or_insert_with(|| Connection::new(&queue));
            let args = variables.fill(&step["args"]);
            let args = args.as_object().cloned().unwrap_or_default();
            let result = connection.call(step["call"].as_str().unwrap(), &args);
            if let Err(why) = check(step, &result, &variables) {
                panic!("{name}, step {}: {why}\n{step}", number + 1);
            }
            if let Ok(result) = &result {
                variables.save(step, result);
            }
        }
        count += 1;
    }
    println!("{count} scripts of the kit were run on a queue in this process");
    assert!(count > 3 || !kit().is_dir());
}

#[test]
fn a_job_goes_its_way_through_the_trait() {
    let queue = Queue::open_with(&Options::default(), Bounds::default()).unwrap();
    let mut connection = Connection::new(&queue);
    let mut call = |name: &str, args: Value| connection.call(name, args.as_object().unwrap());
    call("use", json!({"tube": "t"})).unwrap();
    call("watch", json!({"tube": "t"})).unwrap();
    call("ignore", json!({"tube": "default"})).unwrap();
    let id = call("put", json!({"body": "hello"})).unwrap()["id"].clone();
    let keyed = json!({"body": "x", "key": "k", "delay": 100});
    let other = call("put_with", keyed.clone()).unwrap();
    assert_eq!(call("put_with", keyed).unwrap()["exists"], true);
    let of = |id: &Value| json!({"id": id, "timeout": 0});
    assert_eq!(call("reserve", of(&id)).unwrap()["id"], id);
    assert_eq!(call("reserve", of(&id)).unwrap_err(), "timed_out");
    call("touch", of(&id)).unwrap();
    call("release", of(&id)).unwrap();
    call("reserve", of(&id)).unwrap();
    call("bury_with_reason", json!({"id": id, "text": "why"})).unwrap();
    assert_eq!(call("peek_buried", of(&id)).unwrap()["body"], hex(b"hello"));
    assert_eq!(call("kick", json!({"bound": 1})).unwrap()["count"], 1);
    call("reserve", of(&id)).unwrap();
    assert_eq!(call("stats_job", of(&id)).unwrap()["state"], "reserved");
    let failed = call("fail", json!({"id": id, "text": "why"})).unwrap();
    assert_eq!(failed["outcome"], "released");
    call("delete", of(&id)).unwrap();
    assert_eq!(call("delete", of(&id)).unwrap_err(), "not_found");
    call("delete", of(&other["id"])).unwrap();
}
