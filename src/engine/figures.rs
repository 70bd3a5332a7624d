//! Figures for monitoring: kept up to date at every change, so that a look at them costs the same
//! however many jobs there are.

use std::ops::Range;

use super::Engine;
use super::schedules::ScheduleFigures;
use super::store::Store;
use crate::ErrorClass;
use crate::histogram::Reading;
use crate::protocol::Op;
use crate::queue::{JobEvents, QueueStats};
use crate::storage::{Log, SyncPolicy};
use crate::types::{JobId, Now, Position, SECOND_NS, SegmentId};

/// Places of damage that are told of, of each file.
const DAMAGE_MAX: usize = 100;

/// The engine in numbers. Totals are since the process started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// The counters of `stats` for jobs, tubes and connections.
    pub queue: QueueStats,
    /// How often each command was run, indexed by `op as usize`.
    pub commands: [u64; Op::COUNT],
    /// What has happened to jobs, where tubes have tallies.
    pub events: JobEvents,
    /// Puts of clients that were not done because another job has their key.
    pub key_conflicts: u64,
    /// Of schedules.
    pub schedules: ScheduleFigures,
    /// The largest body that a put may have, bytes.
    pub job_size_max: u32,
    /// Puts are refused because someone said so.
    pub is_draining: bool,
    /// Whole seconds since the start.
    pub uptime_seconds: u64,
    /// A random word that tells this run from another.
    pub run_id: String,
    /// Bytes that jobs and tubes take.
    pub queue_memory: u64,
    /// Those of them that are there because of clients.
    pub clients_memory: u64,
    /// Bytes of bodies, where there is no log.
    pub bodies_memory: u64,
    /// Bytes of records of pauses.
    pub pauses_memory: u64,
    /// The bound of all that.
    pub memory_max: Option<u64>,
    /// Bytes that were missing for the put that was refused last, while puts are.
    pub memory_missing: Option<u64>,
    /// From when jobs were due first to when they were reserved first.
    pub waits: Reading,
    /// From when jobs were reserved, or touched last, to their delete, release or bury.
    pub holds: Reading,
    /// Of the log, if there is one.
    pub log: Option<LogFigures>,
}

/// The log in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFigures {
    /// When a record has to be on stable storage.
    pub sync: SyncPolicy,
    /// Files.
    pub segments: u64,
    /// The number of the first.
    pub first_segment: u32,
    /// The number of the one that is written.
    pub current_segment: u32,
    /// The bound of a segment's size, bytes.
    pub segment_size: u32,
    /// Bytes that a rewritten log would have.
    pub live: u64,
    /// Bytes that compaction would save.
    pub dead: u64,
    /// Bytes set aside for records to come.
    pub reserved: u64,
    /// Bytes of bodies on their way, in a file that is not the log's.
    pub spooled: u64,
    /// Bytes that are written and not known to be durable, those in segments between apart.
    pub unsynced: u64,
    /// Bytes that became durable, the same apart.
    pub synced: u64,
    /// Turns in which something was written.
    pub writes: u64,
    /// Records appended.
    pub records_written: u64,
    /// Records that compaction copied.
    pub records_migrated: u64,
    /// Compactions that have taken effect.
    pub compactions: u64,
    /// One is under way.
    pub is_compacting: bool,
    /// Bytes that were missing for the put that was refused last, while puts are.
    pub missing: Option<u64>,
    /// Which room that is.
    pub lacking: ErrorClass,
}

/// A file of the log in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentFigures {
    /// The first segment in it.
    pub first: u32,
    /// The last segment in it.
    pub last: u32,
    /// How often it was rewritten.
    pub generation: u32,
    /// Its bytes, to the end of its last frame.
    pub size: u64,
    /// Those of them that compaction would save.
    pub dead: u64,
    /// Bytes of damaged records.
    pub damaged: u64,
    /// Where they are, in bytes of the file, in the order in which they were found: 100 at most.
    pub damage: Vec<Range<u32>>,
    /// It is the one that is written.
    pub is_open: bool,
}

/// The job whose put is the oldest of those in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldestJob {
    /// The job.
    pub id: JobId,
    /// The first segment of the file in which its put is: no earlier one has a job in it.
    pub segment: SegmentId,
}

/// Counters at commits.
#[derive(Debug, Default)]
pub(super) struct Commits {
    written: Position,
    durable: Position,
    writes: u64,
    synced: u64,
}

impl Commits {
    /// From where the log stands when it is opened.
    pub(super) fn begin(log: Option<&Log>) -> Commits {
        let at = |position: fn(&Log) -> Position| log.map(position).unwrap_or_default();
        Commits {
            written: at(Log::written),
            durable: at(Log::durable),
            ..Commits::default()
        }
    }

    /// The log may have come further.
    pub(super) fn note(&mut self, log: &Log) {
        if log.written() != self.written {
            self.written = log.written();
            self.writes += 1;
        }
        if log.durable() != self.durable {
            self.synced += bytes_between(log, self.durable, log.durable());
            self.durable = log.durable();
        }
    }
}

/// Bytes from one position to a later one: those of the segments between the two are left out.
fn bytes_between(log: &Log, from: Position, to: Position) -> u64 {
    if from.segment() == to.segment() {
        return u64::from(to.offset().saturating_sub(from.offset()));
    }
    let files = log.files();
    let end = files
        .covering(from.segment())
        .map(|handle| files.get(handle).entry.end);
    let rest = end.unwrap_or_default().saturating_sub(from.offset());
    u64::from(rest) + u64::from(to.offset())
}

impl Engine {
    /// The numbers as they are now.
    #[must_use]
    pub fn figures(&self, now: Now) -> Figures {
        let bodies = match &self.store {
            Store::Log(_) => 0,
            Store::Memory(_) => self.store.memory(),
        };
        Figures {
            queue: self.queue.stats(),
            commands: self.commands,
            events: self.queue.job_events(),
            job_size_max: self.job_size_max,
            is_draining: self.draining,
            uptime_seconds: (now.mono.since(self.started).max(0) / SECOND_NS) as u64,
            run_id: self.run_id.clone(),
            queue_memory: self.queue.memory(),
            clients_memory: self.queue.clients_memory(),
            bodies_memory: bodies,
            pauses_memory: self.pauses.memory(),
            memory_max: self.memory_max,
            key_conflicts: self.key_conflicts,
            schedules: self.schedule_figures(),
            memory_missing: self.missing_in_memory(),
            waits: self.queue.waits(),
            holds: self.queue.holds(),
            log: self.log().map(|log| self.log_figures(log)),
        }
    }

    fn log_figures(&self, log: &Log) -> LogFigures {
        let sealed = log.files().sealed();
        let open = log.files().get(log.active.handle);
        let (size, dead) = (
            sealed.size + u64::from(open.entry.end),
            sealed.garbage + open.garbage(),
        );
        let left = log.active.capacity.saturating_sub(open.entry.end);
        let (first, current) = log.segments();
        LogFigures {
            sync: self.sync,
            segments: log.files().len() as u64,
            first_segment: first.0,
            current_segment: current.0,
            segment_size: log.segment_size(),
            live: size.saturating_sub(dead),
            dead,
            reserved: u64::from(left) + log.spares.bytes(),
            spooled: log.spooled(),
            unsynced: bytes_between(log, log.durable(), log.written()),
            synced: self.commits.synced,
            writes: self.commits.writes,
            records_written: log.records_written(),
            records_migrated: log.records_migrated(),
            compactions: log.compactions(),
            is_compacting: log.is_compacting(),
            missing: log.missing_on_disk(),
            lacking: log.lacking(),
        }
    }

    /// The job whose put is the oldest in the log; `None` without one, or without a log.
    #[must_use]
    pub fn oldest_job(&self) -> Option<OldestJob> {
        let (log, job) = (self.log()?, self.queue.oldest_job()?);
        Some(OldestJob {
            id: job.id,
            segment: log.files().segment_of(job.place),
        })
    }

    /// The files of the log in their order, the last `count` of them; some 100 ns each.
    #[must_use]
    pub fn segments(&self, count: usize) -> Vec<SegmentFigures> {
        let Some(log) = self.log() else {
            return Vec::new();
        };
        let files = log.files();
        let handles = files.in_order().rev().take(count);
        let figures = handles.map(|handle| {
            let file = files.get(handle);
            SegmentFigures {
                first: file.entry.first.0,
                last: file.entry.last.0,
                generation: file.entry.generation,
                size: file.entry.end.into(),
                dead: file.garbage(),
                damaged: file.damaged_bytes(),
                damage: file.damage().take(DAMAGE_MAX).collect(),
                is_open: handle == log.active.handle,
            }
        });
        let mut figures: Vec<_> = figures.collect();
        figures.reverse();
        figures
    }
}
