//! Any jobs, described one by one, become a log that holds them as described; what no log can hold
//! is refused and leaves no trace.
//!
//! The text form of a dump is not checked here: its reader passes the jobs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::comparable::{readable, recorded, seen};
use super::{Input, NEW, SEGMENT_SIZE, beginning, inspect, open, sound};
use crate::attributes::{Attributes, Reason};
use crate::storage::SimFs;
use crate::storage::convert::load::{Load, LoadError};
use crate::storage::inspect::{Inspection, JobRecord};
use crate::types::{Counters, JobId, JobState, is_tube_name};

/// Most jobs of a file: more of them find nothing new.
const JOBS_MAX: usize = 40;

/// Panics unless the jobs that `data` describes, once loaded, are the jobs of the new log; also
/// after those are dumped and loaded again.
pub fn any_jobs(data: &[u8]) {
    let mut input = Input(data);
    let disk = SimFs::new(1);
    let mut load = begin(&disk, NEW);
    let mut model = Model::default();
    for _ in 0..JOBS_MAX {
        if input.is_empty() {
            break;
        }
        let (job, order) = any_job(&mut input, model.last);
        match load.job(&job, order) {
            Ok(()) => model.accept(job, order),
            Err(LoadError::Refused(why)) => model.refuse(&job, &why),
            Err(LoadError::Open(error)) => sound(Err(error)),
        }
    }
    finish(load);
    let loaded = read(&disk, NEW);
    assert_eq!(readable(&loaded), model.jobs);
    assert_eq!(loaded.buried(), model.buried());
    assert!(loaded.next_id > model.last);
    again(&disk, &loaded);
    starts(&disk, &model.jobs);
}

fn begin(disk: &SimFs, dir: &str) -> Load {
    let (fs, dir) = (Arc::new(disk.clone()), Path::new(dir));
    sound(Load::begin(fs, dir, SEGMENT_SIZE, beginning()))
}

fn finish(load: Load) {
    let jobs = load.jobs();
    assert_eq!(sound(load.finish()).jobs, jobs);
}

fn read(disk: &SimFs, dir: &str) -> Inspection {
    let log = sound(inspect(disk, dir));
    assert!(log.is_intact(), "{:?}", log.losses);
    log
}

/// The content of a log, dumped and loaded, is unchanged.
fn again(disk: &SimFs, log: &Inspection) {
    let copy = "/copy";
    let (jobs, buried) = (readable(log), log.buried());
    let mut load = begin(disk, copy);
    for (id, job) in &jobs {
        let order = buried.iter().position(|other| other == id);
        sound(load.job(job, order.map(|order| order as u64)));
    }
    sound(load.next_id(log.next_id));
    finish(load);
    let copied = read(disk, copy);
    assert_eq!(readable(&copied), jobs);
    assert_eq!(copied.buried(), buried);
    assert_eq!(copied.next_id, log.next_id);
}

/// A server starts on it, and has the same jobs.
fn starts(disk: &SimFs, jobs: &BTreeMap<JobId, JobRecord>) {
    let disk = disk.crash_image(crate::storage::disk::sim::Crash::DropUnsynced);
    let mut engine = sound(open(&disk, NEW, beginning()));
    let has = seen(&mut engine, beginning(), jobs.keys());
    assert_eq!(has, recorded(jobs));
}

/// Expected content of the log.
#[derive(Default)]
struct Model {
    last: JobId,
    jobs: BTreeMap<JobId, JobRecord>,
    /// The order of the buried jobs.
    orders: Vec<(u64, JobId)>,
}

impl Model {
    fn accept(&mut self, mut job: JobRecord, order: Option<u64>) {
        assert!(self.is_possible(&job), "accepted: {job:?}");
        if job.state == JobState::Reserved {
            job.state = JobState::Ready; // as at a restart
        }
        if job.state == JobState::Buried {
            self.orders.push((order.unwrap_or(u64::MAX), job.id));
        }
        let has_deadline = job.state == JobState::Delayed;
        job.deadline_wall_ns = job.deadline_wall_ns.filter(|_| has_deadline);
        self.last = job.id;
        self.jobs.insert(job.id, job);
    }

    fn refuse(&self, job: &JobRecord, why: &str) {
        assert!(!self.is_possible(job), "refused: {job:?}: {why}");
        let (id, tube) = (job.id.to_string(), format!("{:?}", job.tube));
        assert!(
            why.contains(&id) || why.contains(&tube),
            "what is refused is not named: {why}"
        );
    }

    fn is_possible(&self, job: &JobRecord) -> bool {
        job.id > self.last
            && job.id.0 < u64::MAX - 1
            && is_tube_name(job.tube.as_bytes())
            && (job.state != JobState::Delayed || job.deadline_wall_ns.is_some())
            && Attributes::decode(&job.attributes).is_some_and(|it| it.tube.is_none())
    }

    fn buried(&self) -> Vec<JobId> {
        let mut orders = self.orders.clone();
        orders.sort_unstable();
        orders.into_iter().map(|(_, id)| id).collect()
    }
}

/// A job that usually follows the last one, and is usually valid.
fn any_job(input: &mut Input<'_>, last: JobId) -> (JobRecord, Option<u64>) {
    use JobState::{Buried, Delayed, Ready, Reserved};
    let id = match input.byte() {
        255 => input.number(),
        step => last.0.saturating_add(u64::from(step % 8)),
    };
    let tube = input.pick(&[
        "default",
        "mail",
        "-/+;.$_()",
        "a",
        "",
        "-a",
        "a b",
        "\u{e4}",
    ]);
    let tube = match input.byte() {
        0..=220 => "default",
        _ => tube,
    };
    let deadline = input.byte().is_multiple_of(8);
    let counter = |input: &mut Input<'_>| input.number() as u32;
    let job = JobRecord {
        id: JobId(id),
        tube: tube.to_owned(),
        state: input.pick(&[Ready, Delayed, Buried, Reserved]),
        pri: input.number() as u32,
        delay: input.number() as u32,
        ttr: input.number() as u32,
        created_wall_ns: input.number(),
        deadline_wall_ns: (!deadline).then(|| input.number()),
        counters: Counters::new([(); 5].map(|()| counter(input))),
        body: any_body(input),
        attributes: any_attributes(input),
    };
    let order = input.byte();
    (job, (order < 128).then_some(u64::from(order)))
}

/// Mostly none, or some; rarely what no job can have.
fn any_attributes(input: &mut Input<'_>) -> Vec<u8> {
    static TEXT: [u8; 256] = [b'x'; 256];
    let kind = input.byte();
    let attributes = Attributes {
        key: Some("k"),
        failures: Some(kind.into()),
        reason: (kind < 210).then_some(Reason::Ttr),
        text: (kind < 220).then_some(&TEXT[..usize::from(kind)]),
        tube: (kind > 240).then_some("mail"),
        ..Attributes::default()
    };
    match kind {
        0..=199 => Vec::new(),
        255 => vec![kind],
        _ => attributes.encode().unwrap_or_default(),
    }
}

/// Short, empty, or so long that segments end; different for any two jobs.
fn any_body(input: &mut Input<'_>) -> Vec<u8> {
    let size = input.pick(&[0, 1, 2, 3, 7, 8, 9, 100, 5000, 30_000, 65_535, 70_000]);
    let mut body = input.bytes(size.min(9)).to_vec();
    body.resize(size, input.byte());
    body
}
