//! The facts about a log, or the result of a command, as one JSON object.
//!
//! Numbers are exact, sizes are in bytes, times are RFC 3339, ranges of ids are pairs that include
//! both ends.

use std::io::{self, Write};
use std::ops::RangeInclusive;

use bsd::storage::inspect::{self, Inspection, Leftover, Loss, SegmentReport, TornTail};
use bsd::storage::read::scan::End;
use bsd::types::JobId;
use serde::Serialize;

use crate::human::{count, timestamp};
use crate::{Failure, json};

/// The result of a command: one set of facts, for people and for programs.
pub(crate) trait Report: Serialize {
    /// The form for people.
    fn words(&self, out: &mut dyn Write) -> io::Result<()>;

    /// The requested form.
    fn tell(&self, json: bool, out: &mut dyn Write) -> Result<(), Failure>
    where
        Self: Sized,
    {
        if json {
            json::print(self, out)
        } else {
            Ok(self.words(out)?)
        }
    }
}

/// A job that was there when the log was read, and could not be read again.
#[derive(Serialize)]
pub(crate) struct Unreadable {
    pub(crate) job: u64,
    pub(crate) why: String,
}

pub(crate) fn unreadable(jobs: &[(JobId, String)]) -> Vec<Unreadable> {
    let named = jobs.iter().map(|(job, why)| Unreadable {
        job: job.0,
        why: why.clone(),
    });
    named.collect()
}

/// Damage, and its effects on jobs.
#[derive(Serialize)]
pub(crate) struct Damage {
    /// All of it, in words.
    #[serde(skip)]
    pub(crate) words: String,
    file: String,
    offset: Option<u64>,
    size: Option<u64>,
    what: String,
    /// Jobs of the damaged bytes, as far as the bytes name them.
    hit: Vec<u64>,
    missing: Vec<[u64; 2]>,
    perhaps_missing: Vec<[u64; 2]>,
    missing_from: Option<u64>,
    older: Vec<u64>,
    again: Vec<u64>,
    /// Jobs without the attributes that were last recorded.
    plain: Vec<u64>,
    unknown_bytes: Option<u64>,
}

pub(crate) fn ids(jobs: &[JobId]) -> Vec<u64> {
    jobs.iter().map(|job| job.0).collect()
}

fn ranges(ids: &[RangeInclusive<u64>]) -> Vec<[u64; 2]> {
    ids.iter().map(|ids| [*ids.start(), *ids.end()]).collect()
}

impl From<&Loss> for Damage {
    fn from(loss: &Loss) -> Damage {
        Damage {
            words: loss.to_string(),
            file: loss.damage.file.clone(),
            offset: loss.damage.range.map(|(offset, _)| offset),
            size: loss.damage.range.map(|(_, size)| size),
            what: loss.damage.what.clone(),
            hit: ids(&loss.damage.jobs),
            missing: ranges(&loss.missing),
            perhaps_missing: ranges(&loss.perhaps_missing),
            missing_from: loss.missing_from.map(|id| id.0),
            older: ids(&loss.older),
            again: ids(&loss.again),
            plain: ids(&loss.plain),
            unknown_bytes: loss.unknown_bytes,
        }
    }
}

/// All damage.
pub(crate) fn damages(inspection: &Inspection) -> Vec<Damage> {
    inspection.losses.iter().map(Damage::from).collect()
}

/// How many jobs all damage together has affected, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Totals {
    /// Lost for certain.
    pub(crate) missing: u64,
    /// Lost, unless they had been deleted before.
    pub(crate) perhaps_missing: u64,
    /// Present, in an older state.
    pub(crate) older: u64,
    /// Deleted, and back.
    pub(crate) again: u64,
    /// Present, without the attributes that were last recorded.
    pub(crate) plain: u64,
    /// All jobs put with this id or a greater one are lost, too.
    pub(crate) missing_from: Option<u64>,
}

impl Totals {
    pub(crate) fn of(inspection: &Inspection) -> Totals {
        let count = |ids: &RangeInclusive<u64>| ids.end() - ids.start() + 1;
        let mut totals = Totals::default();
        for loss in &inspection.losses {
            totals.missing += loss.missing_count();
            totals.perhaps_missing += loss.perhaps_missing.iter().map(count).sum::<u64>();
            totals.older += loss.older.len() as u64;
            totals.again += loss.again.len() as u64;
            totals.plain += loss.plain.len() as u64;
            let from = loss.missing_from.map(|id| id.0);
            totals.missing_from = [totals.missing_from, from].into_iter().flatten().min();
        }
        totals
    }

    /// Certain losses, possible ones, and those that cannot be counted: one phrase each.
    pub(crate) fn phrases(&self) -> Vec<String> {
        let Totals {
            missing,
            perhaps_missing,
            older,
            again,
            plain,
            missing_from,
        } = *self;
        let mut phrases = vec![
            format!("{} known to be missing", count(missing, "job")),
            format!("{perhaps_missing} missing unless deleted before"),
        ];
        if let Some(from) = missing_from {
            phrases.push(format!("any that was put from id {from} on missing, too"));
        }
        phrases.push(format!("{older} in an older state"));
        phrases.push(format!("{again} back that had been deleted"));
        if plain > 0 {
            phrases.push(format!("{plain} without their attributes"));
        }
        phrases
    }
}

/// See [`TornTail`].
#[derive(Serialize)]
pub(crate) struct Torn {
    pub(crate) file: String,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl From<&TornTail> for Torn {
    fn from(torn: &TornTail) -> Torn {
        Torn {
            file: torn.file.clone(),
            offset: torn.offset,
            size: torn.size,
        }
    }
}

/// See [`inspect::Live`]: positions in the form of `dump --records`.
#[derive(Serialize)]
struct Live {
    end: String,
    durable: String,
}

impl From<inspect::Live> for Live {
    fn from(live: inspect::Live) -> Live {
        Live {
            end: live.end.to_string(),
            durable: live.durable.to_string(),
        }
    }
}

/// One file of the log.
#[derive(Serialize)]
pub(crate) struct Segment {
    file: String,
    first: u32,
    last: u32,
    generation: u32,
    size: u64,
    used: u64,
    frames: u64,
    records: u64,
    live_bytes: u64,
    dead_bytes: u64,
    end: &'static str,
    /// Offset and size of each damaged stretch.
    damaged: Vec<[u64; 2]>,
}

impl From<&SegmentReport> for Segment {
    fn from(segment: &SegmentReport) -> Segment {
        let damaged = segment.damaged.iter();
        Segment {
            file: segment.file.clone(),
            first: segment.entry.first.0,
            last: segment.entry.last.0,
            generation: segment.entry.generation,
            size: segment.size,
            used: segment.used,
            frames: segment.frames,
            records: segment.records,
            live_bytes: segment.live_bytes,
            dead_bytes: segment.dead_bytes(),
            end: match segment.end {
                Some(End::Whole) => "whole",
                Some(End::Clean) => "clean",
                Some(End::Torn) => "torn",
                Some(End::Corrupt) => "corrupt",
                None => "not read",
            },
            damaged: damaged
                .map(|bytes| [bytes.start, bytes.end.saturating_sub(bytes.start)])
                .collect(),
        }
    }
}

/// A file that is not part of the log's history.
#[derive(Serialize)]
pub(crate) struct ExtraFile {
    file: String,
    what: &'static str,
}

impl From<&Leftover> for ExtraFile {
    fn from(leftover: &Leftover) -> ExtraFile {
        ExtraFile {
            file: leftover.name.clone(),
            what: leftover.what,
        }
    }
}

/// For a backup: when it was taken, and where the log ended then; `null`: its list is damaged.
#[derive(Serialize)]
struct Backup {
    taken: Option<String>,
    end: Option<String>,
}

impl Backup {
    fn of(inspection: &Inspection) -> Option<Backup> {
        let manifest = inspection.backup.as_ref();
        inspection.is_backup.then(|| Backup {
            taken: manifest.map(|manifest| timestamp(manifest.taken_wall_ns)),
            end: manifest.map(|manifest| manifest.end.to_string()),
        })
    }
}

/// The complete result of `verify`.
#[derive(Serialize)]
pub(crate) struct Verdict {
    dir: String,
    intact: bool,
    /// `null`: this is no backup.
    backup: Option<Backup>,
    /// True if nothing else can have changed the log meanwhile.
    locked: bool,
    /// How far a log in use was read; `null`: to its end.
    live: Option<Live>,
    clean_stop: bool,
    jobs: usize,
    next_id: u64,
    totals: Totals,
    damages: Vec<Damage>,
    torn: Option<Torn>,
    segments: Vec<Segment>,
    beside: Vec<ExtraFile>,
    strangers: Vec<String>,
}

impl From<&Inspection> for Verdict {
    fn from(inspection: &Inspection) -> Verdict {
        Verdict {
            dir: inspection.dir.display().to_string(),
            intact: inspection.is_intact(),
            backup: Backup::of(inspection),
            locked: inspection.is_locked,
            live: inspection.live.map(Live::from),
            clean_stop: inspection.clean_stop,
            jobs: inspection.job_count(),
            next_id: inspection.next_id.0,
            totals: Totals::of(inspection),
            damages: damages(inspection),
            torn: inspection.torn.as_ref().map(Torn::from),
            segments: inspection.segments.iter().map(Segment::from).collect(),
            beside: inspection.leftovers.iter().map(ExtraFile::from).collect(),
            strangers: inspection.strangers.clone(),
        }
    }
}
