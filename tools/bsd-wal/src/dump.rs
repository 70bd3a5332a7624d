//! `bsd-wal dump`: the jobs of a log, or the log itself, one per line.
//!
//! Only the index of jobs is kept in memory; `--records` does not need that either.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::format::Record;
use bsd::storage::inspect::{
    Bodies, Inspection, JobRecord, JobSummary, RecordPlace, attributes_in_words,
};
use bsd::types::{JobId, JobState, SECOND_NS};
use clap::{Args, ValueEnum};

use crate::human::{Meter, complain, count, note, parse_age, timestamp};
use crate::repair::refuse_inside;
use crate::shown::{Place, Shown};
use crate::{EXIT_CANNOT, EXIT_DAMAGED, EXIT_OK, Failure, exit_code, inspect, json, open};

/// Bytes of a body that are shown as text at most.
const BODY_SHOWN: usize = 60;

const AFTER_HELP: &str = concat!(
    "\
With --json each job is an object on a line of its own: id, tube, state, pri, delay, ttr, created,
deadline, reserves, timeouts, releases, buries, kicks, and body (text) or body_base64 (bytes that are
not UTF-8); of buried jobs also buried_order, the smallest being kicked first, and of jobs with any an
object attributes. Then follow the paused tubes, {\"pause\":{tube, until, duration}}, and the settings,
{\"setting\":{class, name, value}}, unless jobs were chosen, and always {\"end\":{jobs, next_id}}.
`bsd-wal load` makes a directory of that again.

States are as the log has them: a reserved job counts as ready, and a delayed one whose time has come
is still called delayed. A kick of several jobs that a crash interrupted is shown as finished, which is
what the next start does; `--records` shows what is there.

Examples:
  bsd-wal dump bsd-data
  bsd-wal dump bsd-data --json > jobs.jsonl
  bsd-wal dump bsd-data --tube mail --tube video --state buried --min-age 2h
  bsd-wal dump bsd-data --job 17 --bodies bodies
  bsd-wal dump bsd-data --records --job 17
  bsd-wal dump bsd-data --live | head -n 3

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    shown: Shown,
    /// Print JSON Lines: an object for each job or record
    #[arg(long)]
    json: bool,
    /// List the log itself, record by record, in the order of history
    #[arg(long, conflicts_with_all = ["tube", "state", "min_age", "bodies"])]
    records: bool,
    /// Only jobs in this tube; may be repeated
    #[arg(long, value_name = "NAME")]
    tube: Vec<String>,
    /// Only jobs in this state; may be repeated
    #[arg(long, value_enum)]
    state: Vec<StateName>,
    /// Only this job; may be repeated
    #[arg(long, value_name = "ID")]
    job: Vec<u64>,
    /// Only jobs put at least this long ago: seconds, or a number with m, h or d
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    min_age: Option<u64>,
    /// Write each body to a file in OUTDIR named after its job, instead of printing it; existing
    /// files are never overwritten
    #[arg(long, value_name = "OUTDIR", conflicts_with = "json")]
    bodies: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StateName {
    Ready,
    Delayed,
    Buried,
}

pub(crate) fn run(args: &DumpArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let place = args.shown.place()?;
    let code = match (args.records, &args.bodies) {
        (true, _) => records(args, &place, out),
        (false, Some(dir)) => bodies(args, &place, dir, out),
        (false, None) => jobs(args, &place, out),
    };
    Ok(place.exit_code(code?))
}

/// The selected jobs.
struct Filter<'a> {
    args: &'a DumpArgs,
    place: &'a Place,
    ids: BTreeSet<u64>,
    /// Put at this time or earlier.
    created_max: u64,
}

impl Filter<'_> {
    fn new<'a>(args: &'a DumpArgs, place: &'a Place) -> Filter<'a> {
        let age_ns = args.min_age.unwrap_or(0).saturating_mul(SECOND_NS as u64);
        let now = Clock::start().now().wall_ns;
        Filter {
            args,
            place,
            ids: args.job.iter().copied().collect(),
            created_max: match args.min_age {
                None => u64::MAX,
                Some(_) => now.saturating_sub(age_ns),
            },
        }
    }

    /// True if all jobs are selected.
    fn is_everything(&self) -> bool {
        let DumpArgs {
            tube,
            state,
            job,
            min_age,
            ..
        } = self.args;
        tube.is_empty() && state.is_empty() && job.is_empty() && min_age.is_none()
    }

    fn wants_id(&self, id: JobId) -> bool {
        self.ids.is_empty() || self.ids.contains(&id.0)
    }

    fn wants(&self, job: &JobSummary<'_>) -> bool {
        let DumpArgs { tube, state, .. } = self.args;
        let is_state = |name: &StateName| match name {
            StateName::Ready => matches!(job.state, JobState::Ready | JobState::Reserved),
            StateName::Delayed => job.state == JobState::Delayed,
            StateName::Buried => job.state == JobState::Buried,
        };
        self.wants_id(job.id)
            && (tube.is_empty() || tube.iter().any(|name| name == job.tube))
            && (state.is_empty() || state.iter().any(is_state))
    }

    /// Pass each selected job to `visit`, in the order of their ids.
    fn read(
        &self,
        inspection: &Inspection,
        visit: &mut dyn FnMut(&JobRecord) -> Result<(), Failure>,
    ) -> Result<Tally, Failure> {
        let mut tally = Tally::default();
        for summary in inspection.jobs().filter(|job| self.wants(job)) {
            match inspection.read_job(summary.id) {
                Ok(Some(job)) if job.created_wall_ns <= self.created_max => {
                    visit(&job)?;
                    tally.jobs += 1;
                }
                Ok(_) => {}
                Err(error) => {
                    complain(format_args!("job {} is left out: {error}", summary.id));
                    tally.unreadable += 1;
                }
            }
        }
        tally.absent = self.name_absent(inspection);
        Ok(tally)
    }

    /// Name the requested jobs and tubes that do not exist; returns how many. As for a server, a
    /// tube exists if it has a job, or is paused.
    fn name_absent(&self, inspection: &Inspection) -> u64 {
        let name = &self.place.name;
        let has_job = |id: &&u64| inspection.has_job(JobId(**id));
        let jobs: Vec<&u64> = self.ids.iter().filter(|id| !has_job(id)).collect();
        for id in &jobs {
            complain(format_args!(
                "there is no job {id}; `bsd-wal history {name} {id}` says what became of it"
            ));
        }
        let mut tubes: BTreeSet<&str> = self.args.tube.iter().map(String::as_str).collect();
        if !tubes.is_empty() {
            inspection.jobs().for_each(|job| {
                tubes.remove(job.tube);
            });
            inspection.pauses().for_each(|pause| {
                tubes.remove(pause.tube);
            });
        }
        for tube in &tubes {
            complain(format_args!(
                "there is no tube {tube:?}; `bsd-wal info {name}` lists those that have jobs"
            ));
        }
        (jobs.len() + tubes.len()) as u64
    }
}

/// The result for the selected jobs.
#[derive(Default)]
struct Tally {
    jobs: u64,
    /// The log was read, but the disk no longer returns these.
    unreadable: u64,
    /// Jobs and tubes that were requested by name and do not exist.
    absent: u64,
}

impl Tally {
    fn exit_code(&self, inspection: &Inspection) -> u8 {
        match (exit_code(inspection), self.unreadable, self.absent) {
            (EXIT_OK, 1.., _) => EXIT_DAMAGED,
            (EXIT_OK, 0, 1..) => EXIT_CANNOT,
            (code, ..) => code,
        }
    }
}

/// Print the selected jobs.
fn jobs(args: &DumpArgs, place: &Place, out: &mut dyn Write) -> Result<u8, Failure> {
    let inspection = inspect(&place.dir, place.access)?;
    let filter = Filter::new(args, place);
    if !args.json {
        let tally = filter.read(&inspection, &mut |job| {
            Ok(writeln!(out, "{}", describe_job(job))?)
        })?;
        return Ok(tally.exit_code(&inspection));
    }
    let buried: HashMap<JobId, u64> = inspection.buried().into_iter().zip(1..).collect();
    let tally = filter.read(&inspection, &mut |job| {
        json::print_job(job, buried.get(&job.id).copied(), out)
    })?;
    if filter.is_everything() {
        inspection
            .pauses()
            .try_for_each(|pause| json::print_pause(&pause, out))?;
        for setting in inspection.settings() {
            json::print_setting(&setting?, out)?;
        }
    }
    json::print_end(tally.jobs, inspection.next_id, out)?;
    Ok(tally.exit_code(&inspection))
}

/// Write the bodies of the selected jobs as files.
fn bodies(args: &DumpArgs, place: &Place, dir: &Path, out: &mut dyn Write) -> Result<u8, Failure> {
    // A file in it would be inside, too.
    refuse_inside(&place.dir, &dir.join("1"))?;
    let inspection = inspect(&place.dir, place.access)?;
    let mut bodies = Bodies::begin(Arc::new(RealFs), dir)?;
    let filter = Filter::new(args, place);
    let tally = filter.read(&inspection, &mut |job| Ok(bodies.write(job.id, &job.body)?))?;
    bodies.finish()?;
    let written = match tally.jobs {
        1 => "1 body".to_owned(),
        jobs => format!("{jobs} bodies"),
    };
    writeln!(out, "{}: {written}", dir.display())?;
    Ok(tally.exit_code(&inspection))
}

fn describe_job(job: &JobRecord) -> String {
    let due = job
        .deadline_wall_ns
        .map(|due| format!(" until {}", timestamp(due)));
    let attributes = match attributes_in_words(&job.attributes, &timestamp) {
        words if words.is_empty() => words,
        words => format!(" {words}"),
    };
    format!(
        "{} {} {}{} pri {} delay {} ttr {} put {}{attributes} {}",
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

/// Control characters of a body are never printed to a terminal.
pub(crate) fn show_body(body: &[u8]) -> String {
    let shown = &body[..body.len().min(BODY_SHOWN)];
    let more = if body.len() > shown.len() { "…" } else { "" };
    format!("{} bytes \"{}\"{more}", body.len(), shown.escape_ascii())
}

/// Print all records in the order of history, or those of the selected jobs.
fn records(args: &DumpArgs, place: &Place, out: &mut dyn Write) -> Result<u8, Failure> {
    let filter = Filter::new(args, place);
    let mut unseen = filter.ids.clone();
    let is_wanted = |record: &Record<'_>| match record.job() {
        Some(id) => filter.wants_id(id),
        None => filter.is_everything(),
    };
    // On a terminal the lines themselves show the progress.
    let mut meter = (!io::stdout().is_terminal()).then(|| Meter::start("reading"));
    let mut outcome = Ok(());
    let mut visit = |place: RecordPlace<'_>, record: &Record<'_>| {
        if is_wanted(record) {
            record.job().map(|id| unseen.remove(&id.0));
            outcome = if args.json {
                json::print_record(&place, record, out)
            } else {
                writeln!(out, "{}", describe_record(&place, record)).map_err(Failure::from)
            };
        }
        outcome.is_ok()
    };
    let mut progress = |done, all| {
        if let Some(meter) = &mut meter {
            meter.show(done, all);
        }
    };
    let show = &place.name;
    let damages = open(&place.dir, place.access)?.records(&mut visit, &mut progress)?;
    outcome?;
    drop(meter);
    for damage in &damages {
        note(format_args!("damage: {damage}"));
    }
    for id in &unseen {
        complain(format_args!(
            "there is no record of job {id}; `bsd-wal history {show} {id}` says what became of it"
        ));
    }
    Ok(match (damages.len(), unseen.len()) {
        (0, 0) => EXIT_OK,
        (0, _) => EXIT_CANNOT,
        (places, _) => {
            note(format_args!(
                "the log is damaged in {}; `bsd-wal verify {show}` says what that means for jobs",
                count(places as u64, "place"),
            ));
            EXIT_DAMAGED
        }
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

/// A record in words.
pub(crate) fn describe(record: &Record<'_>) -> String {
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
            kick,
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
            let kick = match kick {
                0 => String::new(),
                number => format!(" by kick {number}"),
            };
            format!(
                "job {id} {}{due} pri {pri} delay {delay} {counts}{kick}",
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
            ..
        } => format!(
            "kick {number} of {} jobs of {tube} has {left} to go",
            state.word()
        ),
        Record::Setting { class, name, value } => {
            let (class, name) = (class.word(), name.escape_debug());
            match value.is_empty() {
                true => format!("remove the {class} \"{name}\""),
                false => format!("set the {class} \"{name}\" {}", show_body(value)),
            }
        }
        Record::Attributes { id, list } => match attributes_in_words(list, &timestamp) {
            words if words.is_empty() => format!("job {id} is a plain job again"),
            words => format!("job {id} has {words}"),
        },
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
