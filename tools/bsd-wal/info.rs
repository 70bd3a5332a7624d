//! `bsd-wal info`: what a log holds, in one screen.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use bsd::clock::Clock;
use bsd::storage::inspect::Inspection;
use bsd::types::JobState;

use crate::human::{Age, Size, count, timestamp};
use crate::{Failure, exit_code, inspect};

pub(crate) fn run(dir: &Path, out: &mut dyn Write) -> Result<u8, Failure> {
    let inspection = inspect(dir)?;
    let now_wall_ns = Clock::start().now().wall_ns;
    print_jobs(&inspection, out)?;
    print_pauses(&inspection, now_wall_ns, out)?;
    print_oldest(&inspection, now_wall_ns, out)?;
    print_log(&inspection, out)?;
    Ok(exit_code(&inspection))
}

/// Ready, delayed, buried; and bytes of bodies.
#[derive(Default)]
struct TubeCounts {
    states: [u64; 3],
    body_bytes: u64,
}

impl TubeCounts {
    fn add(&mut self, state: JobState, body_size: u32) {
        let index = match state {
            JobState::Ready | JobState::Reserved => 0,
            JobState::Delayed => 1,
            JobState::Buried => 2,
        };
        self.states[index] += 1;
        self.body_bytes += u64::from(body_size);
    }

    fn print(&self, name: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let [ready, delayed, buried] = self.states;
        let total: u64 = self.states.iter().sum();
        let bytes = Size(self.body_bytes).to_string();
        writeln!(
            out,
            "{ready:>10} {delayed:>10} {buried:>10} {total:>10} {bytes:>12}  {name}"
        )?;
        Ok(())
    }
}

fn print_jobs(inspection: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    let mut tubes: BTreeMap<&str, TubeCounts> = BTreeMap::new();
    let mut all = TubeCounts::default();
    for job in inspection.jobs() {
        tubes
            .entry(job.tube)
            .or_default()
            .add(job.state, job.body_size);
        all.add(job.state, job.body_size);
    }
    let heads = ["ready", "delayed", "buried", "jobs", "bodies"];
    let [ready, delayed, buried, jobs, bodies] = heads;
    writeln!(
        out,
        "{ready:>10} {delayed:>10} {buried:>10} {jobs:>10} {bodies:>12}  tube"
    )?;
    for (name, counts) in &tubes {
        counts.print(name, out)?;
    }
    all.print("(all tubes)", out)
}

fn print_pauses(inspection: &Inspection, now: u64, out: &mut dyn Write) -> Result<(), Failure> {
    for pause in inspection
        .pauses()
        .filter(|pause| pause.until_wall_ns > now)
    {
        let left = Age::between(now, pause.until_wall_ns);
        writeln!(out, "paused: {} for another {left}", pause.tube)?;
    }
    Ok(())
}

/// Ids are given out in sequence: the oldest job is the one with the smallest.
fn print_oldest(inspection: &Inspection, now: u64, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(summary) = inspection.jobs().next() else {
        return Ok(());
    };
    if let Some(job) = inspection.read_job(summary.id)? {
        let age = Age::between(job.created_wall_ns, now);
        let created = timestamp(job.created_wall_ns);
        writeln!(
            out,
            "oldest job: {}, put {created}, {age} ago, in {}",
            job.id, job.tube
        )?;
    }
    Ok(())
}

fn print_log(inspection: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    let (live, dead) = inspection.live_and_dead_bytes();
    let files = inspection.segments.len() as u64;
    writeln!(
        out,
        "log: {}, {} live, {} dead",
        count(files, "file"),
        Size(live),
        Size(dead)
    )?;
    writeln!(out, "next id: {}", inspection.next_id)?;
    let end = match (&inspection.torn, inspection.clean_stop) {
        (Some(torn), _) => format!("in a torn tail of {} bytes, from a crash", torn.size),
        (None, true) => "with the marker of a clean stop".to_owned(),
        (None, false) => "without a clean stop".to_owned(),
    };
    writeln!(out, "the log ends {end}")?;
    Ok(())
}
