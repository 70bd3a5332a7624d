//! `bsd-wal dump`: the jobs of a log, or the log itself, a line each.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use bsd::storage::RealFs;
use bsd::storage::format::Record;
use bsd::storage::inspect::{JobRecord, RecordPlace, read_records};

use crate::human::timestamp;
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, exit_code, inspect, json};

/// So many bytes of a body are shown to people.
const BODY_SHOWN: usize = 60;

/// All jobs in the order of their ids.
pub(crate) fn jobs(dir: &Path, as_json: bool, out: &mut dyn Write) -> Result<u8, Failure> {
    let inspection = inspect(dir)?;
    for summary in inspection.jobs() {
        let Some(job) = inspection.read_job(summary.id)? else {
            continue;
        };
        match as_json {
            true => json::print_job(&job, out)?,
            false => writeln!(out, "{}", describe_job(&job))?,
        }
    }
    Ok(exit_code(&inspection))
}

fn describe_job(job: &JobRecord) -> String {
    let due = job
        .deadline_wall_ns
        .map(|due| format!(" until {}", timestamp(due)));
    format!(
        "{} {} {}{} pri {} delay {} ttr {} put {} {}",
        job.id,
        job.tube,
        job.state.word(),
        due.unwrap_or_default(),
        job.pri,
        job.delay,
        job.ttr,
        timestamp(job.created_wall_ns),
        show_body(&job.body),
    )
}

/// Nothing in a body reaches a terminal as it is.
fn show_body(body: &[u8]) -> String {
    let shown = &body[..body.len().min(BODY_SHOWN)];
    let more = if body.len() > shown.len() { "…" } else { "" };
    format!("{} bytes \"{}\"{more}", body.len(), shown.escape_ascii())
}

/// All records in the order of history.
pub(crate) fn records(dir: &Path, as_json: bool, out: &mut dyn Write) -> Result<u8, Failure> {
    let mut outcome = Ok(());
    let damages = read_records(Arc::new(RealFs), dir, &mut |place, record| {
        if outcome.is_ok() {
            outcome = match as_json {
                true => json::print_record(&place, record, out),
                false => {
                    writeln!(out, "{}", describe_record(&place, record)).map_err(Failure::from)
                }
            };
        }
        outcome.is_ok()
    })?;
    outcome?;
    for damage in &damages {
        eprintln!("bsd-wal: damage: {damage}");
    }
    Ok(if damages.is_empty() {
        EXIT_OK
    } else {
        EXIT_DAMAGED
    })
}

fn describe_record(place: &RecordPlace<'_>, record: &Record<'_>) -> String {
    let salvaged = if place.is_salvaged {
        " (out of a damaged frame)"
    } else {
        ""
    };
    let RecordPlace {
        file,
        position,
        size,
        ..
    } = place;
    format!(
        "{position} {file} {size} bytes{salvaged}: {}",
        describe(record)
    )
}

fn describe(record: &Record<'_>) -> String {
    match record {
        Record::Put {
            id,
            created_wall_ns,
            pri,
            delay,
            ttr,
            tube,
            body,
        } => {
            let (created, body) = (timestamp(*created_wall_ns), show_body(body));
            format!("put job {id} in {tube} pri {pri} delay {delay} ttr {ttr} at {created} {body}")
        }
        Record::Update {
            id,
            state,
            deadline_wall_ns,
            pri,
            delay,
            counters,
        } => {
            let due = match deadline_wall_ns {
                0 => String::new(),
                due => format!(" until {}", timestamp(*due)),
            };
            let counts = [
                ("reserves", counters.reserves),
                ("timeouts", counters.timeouts),
                ("releases", counters.releases),
                ("buries", counters.buries),
                ("kicks", counters.kicks),
            ];
            let counts = counts
                .map(|(name, count)| format!("{name} {count}"))
                .join(" ");
            format!(
                "job {id} {}{due} pri {pri} delay {delay} {counts}",
                state.word()
            )
        }
        Record::Delete { id, put_segment } => format!("delete job {id}, put in {put_segment}"),
        Record::Pause {
            tube,
            until_wall_ns: 0,
            ..
        } => format!("lift the pause of {tube}"),
        Record::Pause {
            tube,
            until_wall_ns,
            duration,
        } => {
            format!(
                "pause {tube} for {duration} s, until {}",
                timestamp(*until_wall_ns)
            )
        }
        Record::Kick {
            number,
            tube,
            state,
            left,
            run,
        } => format!(
            "kick {number} of {} jobs of {tube} has {left} to go, {run} of them next",
            state.word()
        ),
        Record::Manifest { next_id, entries } => {
            format!(
                "the files of the log: {} others, next id {next_id}",
                entries.len()
            )
        }
        Record::Switch { removed, added } => {
            let names = |entries: Vec<bsd::storage::format::Entry>| {
                entries
                    .iter()
                    .map(|entry| entry.file_name())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let (removed, added) = (names(removed.to_vec()), names(added.to_vec()));
            format!("compaction replaced [{removed}] by [{added}]")
        }
    }
}
