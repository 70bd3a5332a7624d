//! `bsd-wal history`: the life of one job, in words.

use std::io::Write;

use bsd::storage::inspect::history::{Event, Fate, History, HistoryEntry, State};
use bsd::types::{Counters, JobId, JobState};
use clap::Args;

use crate::human::{Meter, note, timestamp};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, Shown, json, open};

const AFTER_HELP: &str = concat!(
    "\
The log knows the time of puts only. Of what happened to a job later it is said between which puts, of
any jobs, that was. What compaction has merged into one record is told together.

Examples:
  bsd-wal history bsd-data 17
  bsd-wal history bsd-data 17 --json
  bsd-wal history bsd-data 17 --live

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) shown: Shown,
    /// The id of the job
    job: u64,
    /// Print JSON Lines: an object for each record, and one with the outcome of the job
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &HistoryArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let job = JobId(args.job);
    let opened = open(&args.shown.source.dir, args.shown.access())?;
    let mut meter = Meter::start("reading");
    let history = opened.history(job, &mut |done, all| meter.show(done, all))?;
    drop(meter);
    for entry in &history.entries {
        let words = tell(&entry.event);
        if args.json {
            json::print_history(entry, &words, out)?
        } else {
            writeln!(out, "{}: {words} ({})", when(entry), place(entry))?
        }
    }
    let end = tell_end(&history, job);
    match (args.json, &end) {
        (true, _) => json::print_history_end(&history, end.as_deref(), out)?,
        (false, Some(end)) => writeln!(out, "{end}")?,
        (false, None) => {}
    }
    for damage in &history.damages {
        note(format_args!(
            "damage: {damage}; more about job {job} may have been there"
        ));
    }
    Ok(if history.damages.is_empty() {
        EXIT_OK
    } else {
        EXIT_DAMAGED
    })
}

fn place(entry: &HistoryEntry) -> String {
    let salvaged = if entry.is_salvaged {
        ", out of a damaged frame"
    } else {
        ""
    };
    format!(
        "{} at byte {}, {} bytes{salvaged}",
        entry.file,
        entry.position.offset(),
        entry.size
    )
}

fn when(entry: &HistoryEntry) -> String {
    match (entry.after_wall_ns, entry.before_wall_ns) {
        (Some(after), Some(before)) if after == before => timestamp(after),
        (Some(after), Some(before)) => {
            format!("between {} and {}", timestamp(after), timestamp(before))
        }
        (Some(after), None) => format!("after {}", timestamp(after)),
        (None, Some(before)) => format!("before {}", timestamp(before)),
        (None, None) => "at an unknown time".to_owned(),
    }
}

/// The outcome of the job, if its records do not tell it.
fn tell_end(history: &History, job: JobId) -> Option<String> {
    let words = match history.fate {
        Fate::There | Fate::Deleted => return None,
        Fate::Kicked => {
            "a kick of several jobs was interrupted: the next start finishes it, and the job is ready"
        }
        Fate::Older => "the record of its last state is damaged: it is back in an older one",
        Fate::Again => "the record that deletes it is damaged: it is back, and would run again",
        Fate::Lost => "it is lost in the damage",
        Fate::PerhapsLost => {
            "it is lost in the damage, unless it had been deleted before, or never was"
        }
        Fate::Dropped => {
            return Some(format!(
                "nothing of job {job} is left in the log: it was deleted, and compaction has dropped \
                 its records"
            ));
        }
        Fate::NeverPut => {
            let next_id = history.next_id;
            return Some(format!("job {job} was never put: the next id is {next_id}"));
        }
    };
    Some(format!("job {job}: {words}"))
}

/// What happened, in words.
fn tell(event: &Event) -> String {
    match event {
        Event::Put {
            tube,
            ttr,
            body_size,
            state,
        } => {
            let (pri, delay) = (state.pri, state.delay);
            let due = due(state);
            format!("put in {tube}, {body_size} bytes, pri {pri}, delay {delay}, ttr {ttr}{due}")
        }
        Event::Deleted => "deleted".to_owned(),
        Event::Changed { before, state } => tell_change(before.as_ref(), state),
    }
}

fn due(state: &State) -> String {
    let due = state.deadline_wall_ns.map(timestamp);
    due.map_or(String::new(), |due| format!(", due {due}"))
}

fn tell_change(before: Option<&State>, state: &State) -> String {
    let was = before.map(|before| before.counters);
    let mut told = tell_counts(was.unwrap_or_default(), state);
    if before.is_none() {
        told.insert(0, "so far".to_owned());
    }
    let pri = match before {
        Some(before) if before.pri == state.pri => String::new(),
        _ => format!(", pri {}", state.pri),
    };
    let now = match state.state {
        JobState::Ready | JobState::Reserved => "ready".to_owned(),
        JobState::Delayed => format!("delayed by {} s{}", state.delay, due(state)),
        JobState::Buried => "buried".to_owned(),
    };
    if told.is_empty() {
        format!("now {now}{pri}")
    } else {
        format!("{}; now {now}{pri}", told.join(", "))
    }
}

/// What has happened since, according to the counters.
fn tell_counts(was: Counters, state: &State) -> Vec<String> {
    let now = state.counters;
    let with_delay = match state.state {
        JobState::Delayed => "released with delay",
        _ => "released",
    };
    let counts = [
        ("reserved", was.reserves, now.reserves),
        ("timed out", was.timeouts, now.timeouts),
        (with_delay, was.releases, now.releases),
        ("buried", was.buries, now.buries),
        ("kicked", was.kicks, now.kicks),
    ];
    let times = |(what, was, now): (&str, u32, u32)| match now.saturating_sub(was) {
        0 => None,
        1 => Some(what.to_owned()),
        times => Some(format!("{what} {times} times")),
    };
    counts.into_iter().filter_map(times).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: State = State {
        state: JobState::Ready,
        deadline_wall_ns: None,
        pri: 5,
        delay: 0,
        counters: Counters {
            reserves: 1,
            timeouts: 0,
            releases: 0,
            buries: 0,
            kicks: 0,
        },
    };

    #[test]
    fn what_has_changed_is_told_and_nothing_else() {
        let mut state = READY;
        state.counters.reserves = 3;
        state.counters.timeouts = 1;
        assert_eq!(
            tell_change(Some(&READY), &state),
            "reserved 2 times, timed out; now ready"
        );
        let delayed = State {
            state: JobState::Delayed,
            deadline_wall_ns: Some(1_000_000_000),
            pri: 9,
            delay: 30,
            counters: Counters {
                releases: 1,
                ..READY.counters
            },
        };
        assert_eq!(
            tell_change(Some(&READY), &delayed),
            "released with delay; now delayed by 30 s, due 1970-01-01T00:00:01Z, pri 9"
        );
        assert_eq!(
            tell_change(None, &READY),
            "so far, reserved; now ready, pri 5"
        );
        assert_eq!(tell_change(Some(&READY), &READY), "now ready");
    }
}
