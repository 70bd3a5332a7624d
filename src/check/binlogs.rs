//! Any files of beanstalkd: they are imported, or refused, and never changed; sound ones give the
//! jobs that they hold.
//!
//! An encoder of the check writes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::comparable::{readable, recorded, seen, tube};
use super::forge::spoil;
use super::{DIR, Input, NEW, SEGMENT_SIZE, WALL_NS, beginning, contents, inspect, options, sound};
use crate::OpenError;
use crate::engine::{Engine, Options};
use crate::storage::SimFs;
use crate::storage::convert::beanstalkd::{Binlogs, import};
use crate::storage::inspect::JobRecord;
use crate::types::{Counters, JobId, JobState, SECOND_NS};

/// The largest numbers of records and files in a case.
const RECORDS_MAX: usize = 60;
const FILES_MAX: usize = 5;
/// The bytes of input that determine the damage to a file.
const SPOIL_SIZE: usize = 12;

type Jobs = BTreeMap<JobId, JobRecord>;

/// Panics unless the files that `data` describes are imported correctly.
pub fn any_binlogs(data: &[u8]) {
    let mut input = Input(data);
    let damages = input.pick(&[0, 0, 1, 3]);
    let damages = input.bytes(damages * SPOIL_SIZE);
    let mut written = Written::default();
    while !input.is_empty() && written.files.len() < FILES_MAX {
        written.file(&mut input);
    }
    damages
        .chunks(SPOIL_SIZE)
        .for_each(|damage| written.spoil(&mut Input(damage)));
    let imported = imports(&written);
    takes_over(&written, imported);
}

/// `bsd-wal import`: a new log of everything that can be read. Returns the jobs, unless anything is
/// damaged.
fn imports(written: &Written) -> Option<Jobs> {
    let disk = written.disk();
    let before = contents(&disk, DIR);
    let (fs, now) = (Arc::new(disk.clone()), beginning());
    let old = match Binlogs::read(fs.clone(), Path::new(DIR), &mut |_, _| ()) {
        Err(OpenError::Foreign { .. }) if !written.is_sound => return None,
        old => sound(old),
    };
    let new = Path::new(NEW);
    let imported = sound(import::write(
        &old,
        fs,
        new,
        SEGMENT_SIZE,
        now,
        &mut |_, _| (),
    ));
    assert_eq!(imported.unreadable, []);
    assert!(contents(&disk, DIR) == before, "a file was changed");
    let new = sound(inspect(&disk, NEW));
    assert!(new.is_intact(), "{:?}", new.losses);
    let jobs = readable(&new);
    assert_eq!(jobs.len() as u64, imported.jobs);
    assert_eq!(new.next_id, imported.next_id);
    assert!(jobs.keys().all(|id| *id < new.next_id));
    if written.is_sound {
        assert_eq!(old.damages, []);
        // A change that a crash may have torn is not applied, and that is reported.
        let is_whole = jobs == written.jobs && new.buried() == written.buried;
        assert!(
            is_whole || !old.notes.is_empty(),
            "{jobs:#?} instead of {:#?}",
            written.jobs
        );
    }
    old.is_intact().then_some(jobs)
}

/// `bsd-server --import`: the same jobs, or nothing at all; beanstalkd's files are kept.
fn takes_over(written: &Written, imported: Option<Jobs>) {
    let (disk, now) = (written.disk(), beginning());
    let before = contents(&disk, DIR);
    let options = Options {
        import: true,
        ..options(&disk, DIR)
    };
    match (Engine::open(&options, now), imported) {
        (Ok(mut engine), Some(jobs)) => {
            let kept = engine.imported().map(|it| it.kept.display().to_string());
            let kept = kept.unwrap_or_else(|| panic!("nothing was imported"));
            assert!(files(&disk, &kept) == before, "a file was changed");
            assert_eq!(seen(&mut engine, now, jobs.keys()), recorded(&jobs));
        }
        (Err(_), None) => {
            assert!(
                files(&disk, DIR) == before,
                "a refused import changed something"
            );
        }
        (Ok(_), None) => panic!("a damaged log was taken over"),
        (Err(error), Some(_)) => panic!("not taken over: {error}"),
    }
}

/// Every file of a directory except the lock.
fn files(disk: &SimFs, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files = contents(disk, dir);
    files.remove("lock");
    files
}

/// beanstalkd's files, and their content.
struct Written {
    files: Vec<(String, Vec<u8>)>,
    /// The number of the last file.
    number: u32,
    records: usize,
    /// They contain only what beanstalkd writes.
    is_sound: bool,
    jobs: Jobs,
    /// In the order in which they were buried.
    buried: Vec<JobId>,
    last: u64,
}

impl Default for Written {
    fn default() -> Written {
        Written {
            files: Vec::new(),
            number: 0,
            records: 0,
            is_sound: true,
            jobs: Jobs::new(),
            buried: Vec::new(),
            last: 0,
        }
    }
}

impl Written {
    /// There is always at least one file, perhaps an empty one.
    fn disk(&self) -> SimFs {
        let disk = SimFs::new(1);
        sound(disk.write(Path::new(DIR).join("binlog.1"), b"\x07\0\0\0"));
        for (name, bytes) in &self.files {
            sound(disk.write(Path::new(DIR).join(name), bytes));
        }
        disk
    }

    fn file(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let version = if kind % 4 == 3 { 5 } else { 7 };
        self.number += 1;
        if kind == 255 {
            self.number = input.number() as u32 % (u32::MAX - FILES_MAX as u32); // a gap
            self.is_sound = false;
        }
        let mut bytes = u32::to_le_bytes(version).to_vec();
        while self.records < RECORDS_MAX && !input.is_empty() {
            let choice = input.byte();
            if choice.is_multiple_of(8) {
                break;
            }
            self.records += 1;
            bytes.extend(self.record(choice, version, input));
        }
        if kind & 64 == 0 {
            bytes.resize(bytes.len().next_multiple_of(4096), 0);
        }
        self.files.push((format!("binlog.{}", self.number), bytes));
    }

    fn spoil(&mut self, input: &mut Input<'_>) {
        if !self.files.is_empty() {
            self.is_sound = false;
            let nth = input.below(self.files.len());
            spoil(&mut self.files[nth].1, input);
        }
    }

    fn record(&mut self, choice: u8, version: u32, input: &mut Input<'_>) -> Vec<u8> {
        if choice > 240 {
            return self.odd(version, input);
        }
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        if choice % 8 < 4 || ids.is_empty() {
            let job = self.new_job(input);
            return self.keep(job, any_state(input), version, true);
        }
        let id = ids[input.below(ids.len())];
        let mut job = self.jobs[&id].clone();
        match choice % 8 {
            4 | 5 => {
                change(&mut job, input);
                self.buried.retain(|other| *other != id);
                self.keep(job, any_state(input), version, false)
            }
            6 => encode(&job, byte_of(job.state), version, true), // moved
            _ => {
                self.jobs.remove(&id);
                self.buried.retain(|other| *other != id);
                encode(&job, DELETED, version, false)
            }
        }
    }

    /// Apply a record to the expected content.
    fn keep(&mut self, mut job: JobRecord, state: u8, version: u32, is_whole: bool) -> Vec<u8> {
        job.state = match state {
            BURIED => JobState::Buried,
            DELAYED => JobState::Delayed,
            _ => JobState::Ready, // a reserved one too, after any restart
        };
        job.deadline_wall_ns = match state {
            DELAYED => Some(job.deadline_wall_ns.unwrap_or(WALL_NS)),
            _ => None,
        };
        if state == BURIED {
            self.buried.push(job.id);
        }
        let bytes = encode(&job, state, version, is_whole);
        self.jobs.insert(job.id, job);
        bytes
    }

    /// A record that beanstalkd would not write there, or never writes.
    fn odd(&mut self, version: u32, input: &mut Input<'_>) -> Vec<u8> {
        self.is_sound = false;
        let is_whole = input.byte().is_multiple_of(2);
        let mut job = self.new_job(input);
        job.id = JobId(input.number());
        (job.ttr, job.delay) = (input.number() as u32, input.number() as u32);
        (job.created_wall_ns, job.deadline_wall_ns) = (input.number(), Some(input.number()));
        encode(&job, input.byte() % 8, version, is_whole)
    }

    fn new_job(&mut self, input: &mut Input<'_>) -> JobRecord {
        self.last += 1 + u64::from(input.byte() % 2);
        let mut job = JobRecord {
            id: JobId(self.last),
            tube: tube(input).to_owned(),
            state: JobState::Ready,
            pri: 0,
            delay: 0,
            ttr: 1 + u32::from(input.byte()),
            created_wall_ns: WALL_NS - self.last * SECOND_NS as u64,
            deadline_wall_ns: None,
            counters: Counters::default(),
            body: any_body(input),
            attributes: Vec::new(),
        };
        if input.byte() >= 128 {
            change(&mut job, input);
        }
        job
    }
}

const DELETED: u8 = 0;
const READY: u8 = 1;
const RESERVED: u8 = 2;
const BURIED: u8 = 3;
const DELAYED: u8 = 4;

fn any_state(input: &mut Input<'_>) -> u8 {
    input.pick(&[READY, READY, RESERVED, BURIED, DELAYED])
}

fn byte_of(state: JobState) -> u8 {
    match state {
        JobState::Ready => READY,
        JobState::Reserved => RESERVED,
        JobState::Buried => BURIED,
        JobState::Delayed => DELAYED,
    }
}

/// Bodies may look like the end of a body, or like nothing at all.
fn any_body(input: &mut Input<'_>) -> Vec<u8> {
    let size = input.pick(&[0, 1, 2, 5, 40, 400, 3000, 20_000]);
    let byte = input.pick(b"a\r\n\0");
    let mut body = input.bytes(size.min(3)).to_vec();
    body.resize(size, byte);
    body
}

/// Change everything that may change about a job except its state.
fn change(job: &mut JobRecord, input: &mut Input<'_>) {
    let seconds = u32::from(input.byte());
    (job.pri, job.delay) = (input.number() as u32, seconds);
    job.deadline_wall_ns = Some(WALL_NS + u64::from(seconds) * SECOND_NS as u64);
    let kinds = input.byte();
    let counters = &mut job.counters;
    let all = [
        &mut counters.reserves,
        &mut counters.timeouts,
        &mut counters.releases,
        &mut counters.buries,
        &mut counters.kicks,
    ];
    for (nth, counter) in all.into_iter().enumerate() {
        *counter += u32::from(kinds >> nth & 1);
    }
}

/// A record: fields in the order of beanstalkd's structs, each at a multiple of its size.
fn encode(job: &JobRecord, state: u8, version: u32, is_whole: bool) -> Vec<u8> {
    let (name_width, job_size, unit) = match version {
        5 => (8, 77, 1000),
        _ => (4, 80, 1),
    };
    let name = if is_whole { job.tube.as_bytes() } else { b"" };
    let mut bytes = (name.len() as u64).to_le_bytes()[..name_width].to_vec();
    bytes.extend(name);
    let start = bytes.len();
    let seconds = |seconds: u32| u64::from(seconds) * SECOND_NS as u64;
    let time = |ns: u64| (ns / unit).to_le_bytes();
    bytes.extend(job.id.0.to_le_bytes());
    bytes.extend(u64::from(job.pri).to_le_bytes());
    bytes.extend(time(seconds(job.delay)));
    bytes.extend(time(seconds(job.ttr)));
    bytes.extend((job.body.len() as u64 + 2).to_le_bytes());
    bytes.extend(time(job.created_wall_ns));
    bytes.extend(time(job.deadline_wall_ns.unwrap_or(0)));
    let it = &job.counters;
    for counter in [it.reserves, it.timeouts, it.releases, it.buries, it.kicks] {
        bytes.extend(counter.to_le_bytes());
    }
    bytes.push(state);
    bytes.resize(start + job_size, 0);
    if is_whole {
        bytes.extend(&job.body);
        bytes.extend(b"\r\n");
    }
    bytes
}
