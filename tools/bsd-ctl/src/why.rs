//! `bsd-ctl why`, `holder` and `free`: why jobs of a tube are not done, and who has a job.

use std::io;

use bsd::human::{Age, Span};
use bsd_tools::human::count;
use clap::Args;
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs, escaped};
use crate::doctor::{write_advice, write_paragraph};
use crate::{Context, EXIT_NOT_DONE, EXIT_OK, Failure, names, note};

const WHY_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. Says what the tube has, what holds its jobs
back and what to do, who watches it, and who has its reserved jobs, since when: since they were
reserved, or touched last. From its first reserve on it also says how long jobs waited and were
worked on.

Examples:
  bsd-ctl why mail
  bsd-ctl why mail --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = WHY_HELP)]
pub(crate) struct WhyArgs {
    /// The tube
    #[arg(value_parser = names::parse_tube)]
    tube: String,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(args: &WhyArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let why = api.get(&format!("/tubes/{}/why", escaped(&args.tube)))?;
    match context.global.json {
        true => writeln!(context.out, "{why}")?,
        false => print(&args.tube, &why, context)?,
    }
    Ok(EXIT_OK)
}

/// Whole seconds, as people read them.
pub(crate) fn age(seconds: &Value) -> Age {
    Age(seconds.as_f64().unwrap_or(0.0).max(0.0) as u64)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn print(tube: &str, why: &Value, context: &mut Context<'_>) -> io::Result<()> {
    let out = &mut *context.out;
    let jobs = &why["tube"]["jobs"];
    let number = |key: &str| jobs[key].as_u64().unwrap_or(0);
    writeln!(
        out,
        "tube {tube}: {} ready, {} reserved, {} delayed, {} buried",
        number("ready"),
        number("reserved"),
        number("delayed"),
        number("buried"),
    )?;
    let findings = list(&why["findings"]);
    for finding in findings {
        write_advice(finding, out)?;
    }
    let most = why["policy"]["max_reserved"].as_u64();
    let is_held_back = most.is_some_and(|most| number("reserved") >= most);
    let well = match (findings.is_empty(), number("ready"), number("reserved")) {
        (false, ..) => None,
        (true, 1.., _) if is_held_back => Some("Its policy holds its ready jobs back."),
        (true, 0, 0) => Some("Nothing is wrong: no job is ready, and none is reserved."),
        (true, 0, _) => Some("Nothing is wrong: no job is ready, and workers have the others."),
        (true, ..) => Some("Nothing is wrong: its ready jobs are waiting for their turn."),
    };
    if let Some(well) = well {
        write_paragraph(well, out)?;
    }
    let said = sentences(why);
    if !said.is_empty() {
        write_paragraph(&said.join(" "), out)?;
    }
    for holder in list(&why["holders"]) {
        writeln!(out, "  {}", held(holder))?;
    }
    let left_out = why["holders_left_out"].as_u64().unwrap_or(0);
    if left_out > 0 {
        writeln!(
            out,
            "  {} with reserved jobs more",
            count(left_out, "client")
        )?;
    }
    if why["follows"] == true {
        note("this member does not lead: its clients and their jobs are known to the leader alone");
    }
    Ok(())
}

/// Watchers, pause, policy, dead letters.
fn sentences(why: &Value) -> Vec<String> {
    let tube = &why["tube"];
    let has_findings = !list(&why["findings"]).is_empty();
    let number = |key: &str| tube[key].as_u64().unwrap_or(0);
    let reserved = tube["jobs"]["reserved"].as_u64().unwrap_or(0);
    let mut said = Vec::new();
    said.extend(match (number("watchers"), number("waiting")) {
        // A finding says it.
        (0, _) if has_findings => None,
        (0, _) => Some("No connection watches it.".to_owned()),
        (1, 0) => Some("1 connection watches it, and does not wait for a job.".to_owned()),
        (1, _) => Some("1 connection watches it, and waits for a job.".to_owned()),
        (many, waiting) => Some(format!(
            "{many} connections watch it; {waiting} wait for a job."
        )),
    });
    if !has_findings && tube["oldest_ready_age_seconds"].as_f64().unwrap_or(0.0) > 0.0 {
        let oldest = age(&tube["oldest_ready_age_seconds"]);
        said.push(format!("Its oldest ready job was put {oldest} ago."));
    }
    if !has_findings && tube["pause_left_seconds"].as_f64().unwrap_or(0.0) > 0.0 {
        let left = age(&tube["pause_left_seconds"]);
        said.push(format!("It is paused for another {left}."));
    }
    said.extend(times(&tube["tally"]));
    let policy = &why["policy"];
    let from = names::shown(policy["set_for"].as_str().unwrap_or_default());
    if let Some(most) = policy["max_reserved"].as_u64() {
        let is_full = if reserved >= most {
            " No more are handed out."
        } else {
            ""
        };
        let most = count(most, "job");
        said.push(format!(
            "The policy of {from} lets {most} be reserved at a time; now: {reserved}.{is_full}"
        ));
    }
    if let Some(rate) = policy["rate"].as_str() {
        let rate = names::shown(rate);
        said.push(format!("The policy of {from} allows {rate} reserves."));
    }
    if why["takes_dead_letters"] == true {
        said.push("Dead letters of other tubes come here: no worker need watch it.".to_owned());
    }
    said
}

/// How long jobs of the tube took; `None`: none of them was reserved yet, or it is not counted.
fn times(tally: &Value) -> Option<String> {
    let parts = |kind: &str| {
        let times = &tally[kind];
        times["jobs"].as_u64().filter(|jobs| *jobs > 0)?;
        let part = |name: &str| Span(times[name].as_f64().unwrap_or(0.0));
        let [half, most] = ["p50_seconds", "p95_seconds"].map(part);
        Some((half, most))
    };
    let (half, most) = parts("wait")?;
    let waited = format!("half of its jobs waited {half} at most, and 95 of 100 {most}");
    Some(match parts("hold") {
        None => format!("Since it began, {waited}."),
        Some((half, most)) => {
            format!("Since it began, {waited}; workers took {half} and {most}.")
        }
    })
}

/// `client 7 at 10.0.0.3:4711 has 2 jobs: job 12 for 1 h 3 min, its time is up in 57 s`
fn held(holder: &Value) -> String {
    let jobs = holder["jobs"].as_u64().unwrap_or(0);
    let first = match jobs {
        1 => String::new(),
        _ => ", the longest".to_owned(),
    };
    format!(
        "{} has {} reserved{first}: job {}, for {}; its time is up in {}",
        client(&holder["client"], holder),
        count(jobs, "job"),
        holder["first_job"],
        age(&holder["held_seconds"]),
        age(&holder["time_left_seconds"]),
    )
}

/// `client 7 at 10.0.0.3:4711 (worker-3)`
fn client(id: &Value, of: &Value) -> String {
    let address = of["address"].as_str();
    let address = names::shown(address.unwrap_or("a socket of the server's machine"));
    let name = of["name"].as_str().map(names::shown);
    let name = name.map_or_else(String::new, |name| format!(" ({name})"));
    format!("client {id} at {address}{name}")
}

const HOLDER_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. `bsd-ctl free` takes the job from its client.

Examples:
  bsd-ctl holder 1
  bsd-ctl holder 1 --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = HOLDER_HELP)]
pub(crate) struct HolderArgs {
    /// The job
    id: u64,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_holder(args: &HolderArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let (job, holder) = look(&api, args.id)?;
    let Some(holder) = holder else {
        let value = json!({"id": args.id, "state": job["state"], "client": null});
        context.tell(value, not_reserved(&job))?;
        return Ok(EXIT_NOT_DONE);
    };
    let held = held_seconds(&job);
    let value = json!({
        "id": args.id, "tube": job["tube"], "client": holder["id"], "address": holder["address"],
        "name": holder["name"], "held_seconds": held,
        "time_left_seconds": job["time_left_seconds"],
    });
    let text = format!(
        "{} has reserved job {} of {}, for {}; its time is up in {}",
        client(&holder["id"], &holder),
        args.id,
        names::shown(job["tube"].as_str().unwrap_or_default()),
        age(&json!(held)),
        age(&job["time_left_seconds"]),
    );
    context.tell(value, text)?;
    Ok(EXIT_OK)
}

/// A job, and the client that has reserved it.
fn look(api: &Api, id: u64) -> Result<(Value, Option<Value>), Failure> {
    let job = api.get(&format!("/jobs/{id}"))?;
    let Some(holder) = job["reserved_by"].as_u64() else {
        return Ok((job, None));
    };
    // It may have left in between.
    let found = api.get(&format!("/clients/{holder}"));
    let holder = found.unwrap_or_else(|_| json!({"id": holder, "address": null, "name": null}));
    Ok((job, Some(holder)))
}

/// Since it was reserved, or touched last.
fn held_seconds(job: &Value) -> f64 {
    let left = job["time_left_seconds"].as_f64().unwrap_or(0.0);
    (job["ttr"].as_f64().unwrap_or(0.0) - left).max(0.0)
}

fn not_reserved(job: &Value) -> String {
    let state = names::shown(job["state"].as_str().unwrap_or_default());
    let tube = names::shown(job["tube"].as_str().unwrap_or_default());
    match &*state {
        "reserved" => format!("the client that had job {} of {tube} has left", job["id"]),
        _ => format!(
            "no client has reserved job {} of {tube}: it is {state}",
            job["id"]
        ),
    }
}

const FREE_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. The job is taken from the client that has
reserved it, as when its time is up: it is ready again. If the client still works on it, another one
may have it at the same time. With --close the connection of that client is closed, so that all of
its jobs are ready again.

Examples:
  bsd-ctl free 1
  bsd-ctl free 2 --close

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = FREE_HELP)]
pub(crate) struct FreeArgs {
    /// The job
    id: u64,
    /// Close the connection of its client
    #[arg(long)]
    close: bool,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run_free(args: &FreeArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let id = args.id;
    let (job, holder) = look(&api, id)?;
    let Some(holder) = holder else {
        return Err(Failure::NotDone(not_reserved(&job)));
    };
    let from = client(&holder["id"], &holder);
    let text = match args.close {
        false => {
            api.post(&format!("/jobs/{id}/release"), &json!({}))?;
            format!("job {id} was taken from {from}, and is ready")
        }
        true => {
            let only = match holder["address"].as_str() {
                Some(address) => format!("?address={}", escaped(address)),
                None => String::new(),
            };
            api.delete(&format!("/clients/{}{only}", holder["id"]))?;
            format!("{from} was closed; job {id} and its other jobs are ready")
        }
    };
    let value = json!({
        "id": id, "client": holder["id"], "address": holder["address"], "closed": args.close,
    });
    context.tell(value, text)?;
    Ok(EXIT_OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_where_jobs_were_reserved() {
        let times_of = |jobs: u64, half: f64, most: f64| json!({"jobs": jobs, "p50_seconds": half, "p95_seconds": most, "p99_seconds": most});
        let none = times_of(0, 0.0, 0.0);
        assert_eq!(times(&Value::Null), None);
        assert_eq!(times(&json!({"wait": none, "hold": none})), None);
        let waits = times_of(9, 0.0004, 1.25);
        assert_eq!(
            times(&json!({"wait": waits, "hold": none})).unwrap(),
            "Since it began, half of its jobs waited 400 µs at most, and 95 of 100 1.2 s."
        );
        let holds = times_of(9, 0.25, 7200.0);
        let said = times(&json!({"wait": waits, "hold": holds})).unwrap();
        assert!(said.contains("; workers took 250.0 ms and 2 h"), "{said}");
    }
}
