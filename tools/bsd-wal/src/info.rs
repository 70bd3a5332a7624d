//! `bsd-wal info`: the content of a log on one screen.

use std::collections::BTreeMap;
use std::io::Write;

use bsd::clock::Clock;
use bsd::storage::inspect::{Inspection, JobRecord, Pin, are_ids_left_out};
use bsd::types::JobState;
use clap::Args;
use serde::Serialize;

use crate::human::{Age, Look, Size, count, timestamp};
use crate::shown::Shown;
use crate::{Failure, exit_code, inspect, json, picture};

const AFTER_HELP: &str = concat!(
    "\
Examples:
  bsd-wal info bsd-data
  bsd-wal info bsd-data --json
  bsd-wal info bsd-data --live

",
    exit_codes!()
);

/// Oldest files with live jobs that are examined at most.
const PINNED_FILES: usize = 3;
/// Jobs in each that are named at most.
const PINNING_JOBS: usize = 8;

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    shown: Shown,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &InfoArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let place = args.shown.place()?;
    let inspection = inspect(&place.dir, place.access)?;
    let info = Info::new(&inspection, place.name.clone())?;
    if args.json {
        json::print(&info, out)?
    } else {
        print(&info, &inspection, out)?
    }
    Ok(place.exit_code(exit_code(&inspection)))
}

/// The complete report.
#[derive(Serialize)]
struct Info<'a> {
    dir: String,
    intact: bool,
    tubes: Vec<Tube<'a>>,
    all: Counts,
    pauses: Vec<Pause<'a>>,
    oldest: Option<Oldest>,
    files: usize,
    live_bytes: u64,
    dead_bytes: u64,
    reserved_bytes: u64,
    /// The oldest files with live records, and their first jobs.
    pinned: Vec<Pinned>,
    next_id: u64,
    /// Ids were left out, because the end of a history may have been lost.
    ids_left_out: bool,
    end: End,
    #[serde(skip)]
    now_wall_ns: u64,
}

#[derive(Serialize)]
struct Tube<'a> {
    tube: &'a str,
    #[serde(flatten)]
    counts: Counts,
}

/// Jobs by state, and bytes of their bodies.
#[derive(Default, Clone, Copy, Serialize)]
struct Counts {
    ready: u64,
    delayed: u64,
    buried: u64,
    jobs: u64,
    body_bytes: u64,
}

impl Counts {
    fn add(&mut self, state: JobState, body_size: u32) {
        match state {
            JobState::Ready | JobState::Reserved => self.ready += 1,
            JobState::Delayed => self.delayed += 1,
            JobState::Buried => self.buried += 1,
        }
        self.jobs += 1;
        self.body_bytes += u64::from(body_size);
    }

    fn print(&self, name: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let Counts {
            ready,
            delayed,
            buried,
            jobs,
            ..
        } = self;
        let bytes = Size(self.body_bytes).to_string();
        writeln!(
            out,
            "{ready:>10} {delayed:>10} {buried:>10} {jobs:>10} {bytes:>12}  {name}"
        )?;
        Ok(())
    }
}

#[derive(Serialize)]
struct Pause<'a> {
    tube: &'a str,
    until: String,
    #[serde(skip)]
    until_wall_ns: u64,
}

#[derive(Serialize)]
struct Oldest {
    id: u64,
    tube: String,
    created: String,
    #[serde(skip)]
    created_wall_ns: u64,
}

#[derive(Serialize)]
struct Pinned {
    file: String,
    jobs: u64,
    first: Vec<u64>,
}

/// How the log ends.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum End {
    Clean,
    Unclean,
    Torn { bytes: u64 },
}

impl<'a> Info<'a> {
    fn new(inspection: &'a Inspection, name: String) -> Result<Info<'a>, Failure> {
        let now_wall_ns = Clock::start().now().wall_ns;
        let mut tubes: BTreeMap<&str, Counts> = BTreeMap::new();
        let mut all = Counts::default();
        for job in inspection.jobs() {
            let tube = tubes.entry(job.tube).or_default();
            tube.add(job.state, job.body_size);
            all.add(job.state, job.body_size);
        }
        let pauses = inspection.pauses();
        let pauses = pauses.filter(|pause| pause.until_wall_ns > now_wall_ns);
        let (live_bytes, dead_bytes) = inspection.live_and_dead_bytes();
        let pins = inspection.pins(PINNED_FILES, PINNING_JOBS);
        Ok(Info {
            dir: name,
            intact: inspection.is_intact(),
            tubes: tubes
                .into_iter()
                .map(|(tube, counts)| Tube { tube, counts })
                .collect(),
            all,
            pauses: pauses
                .map(|pause| Pause {
                    tube: pause.tube,
                    until: timestamp(pause.until_wall_ns),
                    until_wall_ns: pause.until_wall_ns,
                })
                .collect(),
            oldest: oldest(inspection)?,
            files: inspection.segments.len(),
            live_bytes,
            dead_bytes,
            reserved_bytes: inspection.reserved_bytes(),
            pinned: pins.into_iter().map(Pinned::from).collect(),
            next_id: inspection.next_id.0,
            ids_left_out: are_ids_left_out(inspection.next_id),
            end: match (&inspection.torn, inspection.clean_stop) {
                (Some(torn), _) => End::Torn { bytes: torn.size },
                (None, true) => End::Clean,
                (None, false) => End::Unclean,
            },
            now_wall_ns,
        })
    }
}

impl From<Pin> for Pinned {
    fn from(pin: Pin) -> Pinned {
        Pinned {
            file: pin.file,
            jobs: pin.jobs,
            first: pin.first.iter().map(|id| id.0).collect(),
        }
    }
}

/// Ids are given out in sequence: the oldest job has the smallest id.
fn oldest(inspection: &Inspection) -> Result<Option<Oldest>, Failure> {
    let Some(summary) = inspection.jobs().next() else {
        return Ok(None);
    };
    let oldest = |job: JobRecord| Oldest {
        id: job.id.0,
        created: timestamp(job.created_wall_ns),
        created_wall_ns: job.created_wall_ns,
        tube: job.tube,
    };
    Ok(inspection.read_job(summary.id)?.map(oldest))
}

fn print(info: &Info<'_>, inspection: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    let heads = ["ready", "delayed", "buried", "jobs", "bodies"];
    let [ready, delayed, buried, jobs, bodies] = heads;
    writeln!(
        out,
        "{ready:>10} {delayed:>10} {buried:>10} {jobs:>10} {bodies:>12}  tube"
    )?;
    for tube in &info.tubes {
        tube.counts.print(tube.tube, out)?;
    }
    info.all.print("(all tubes)", out)?;
    for pause in &info.pauses {
        let left = Age::between(info.now_wall_ns, pause.until_wall_ns);
        writeln!(out, "paused: {} for another {left}", pause.tube)?;
    }
    if let Some(oldest) = &info.oldest {
        let age = Age::between(oldest.created_wall_ns, info.now_wall_ns);
        let Oldest {
            id, created, tube, ..
        } = oldest;
        writeln!(out, "oldest job: {id}, put {created}, {age} ago, in {tube}")?;
    }
    print_log(info, out)?;
    writeln!(out)?;
    Ok(picture::draw(inspection, Look::of_stdout(), out)?)
}

fn print_log(info: &Info<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(
        out,
        "log: {}, {} live, {} dead, {} reserved",
        count(info.files as u64, "file"),
        Size(info.live_bytes),
        Size(info.dead_bytes),
        Size(info.reserved_bytes)
    )?;
    for pin in &info.pinned {
        let named: Vec<String> = pin.first.iter().map(u64::to_string).collect();
        let more = if pin.jobs > named.len() as u64 {
            ", …"
        } else {
            ""
        };
        let jobs = count(pin.jobs, "job");
        let named = named.join(", ");
        writeln!(out, "{} is held by {jobs}: {named}{more}", pin.file)?;
    }
    let why = match info.ids_left_out {
        true => " (ids were left out after a restore, a promotion or a repair)",
        false => "",
    };
    writeln!(out, "next id: {}{why}", info.next_id)?;
    let end = match info.end {
        End::Torn { bytes } => format!("in a torn tail of {bytes} bytes, from a crash"),
        End::Clean => "with the marker of a clean stop".to_owned(),
        End::Unclean => "without a clean stop".to_owned(),
    };
    writeln!(out, "the log ends {end}")?;
    Ok(())
}
