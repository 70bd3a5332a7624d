//! Effects of damage on jobs: which are missing, which are in an older state, which would run
//! again.
//!
//! Nothing records what lost bytes held. Conclusions come from what surrounds them:
//!
//! * Ids are given out in sequence. In a file that compaction has not rewritten every put is still
//!   there. So an id between the last put before the damage and the first one after it, without a
//!   salvaged put or a later delete, is a missing job (or an id whose put was refused on a full
//!   disk).
//! * A log built by `repair` or `load` begins with the jobs of that moment, whatever their ids. If
//!   sound puts leave out ids, or if more ids are left out than the damaged bytes can have held, a
//!   missing id means little.
//! * A file that compaction wrote has only the jobs that were alive. An id in the gap is known to
//!   be missing if a record of its state is left; the other ids may have been deleted.
//! * A damaged record may still name its job. A later state, or a delete, makes up for a lost
//!   update, and so it is with attributes; nothing makes up for a lost delete. The name may be
//!   damaged, too: it is certain if one flipped bit is the whole damage, and it is believed of a
//!   put if no other put has that id or should have it. Otherwise the bytes are unaccounted for.
//!
//! Apart from that, unaccounted bytes may have held states and deletes of any job put before: that
//! is reported, too.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::RangeInclusive;

use super::index::JobIndex;
use super::runs::is_behind;
use crate::storage::error::Damage;
use crate::storage::format::{JobEvent, Record, put};
use crate::types::{JobId, Place};

/// Damage to acknowledged data, and its effects on jobs, as far as it can be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Its place, and the fault.
    pub damage: Damage,
    /// Jobs that are lost, as ranges of ids.
    pub missing: Vec<RangeInclusive<u64>>,
    /// Ids of jobs that are lost unless they had been deleted before: nothing else is known about
    /// them.
    pub perhaps_missing: Vec<RangeInclusive<u64>>,
    /// Jobs with this id or a greater one are lost, if there were any: no later put would tell.
    pub missing_from: Option<JobId>,
    /// Jobs whose state is older than the last one recorded.
    pub older: Vec<JobId>,
    /// Jobs that had been deleted and are back: they would run again.
    pub again: Vec<JobId>,
    /// Jobs without the attributes that were last recorded: plain jobs, or with older ones.
    pub plain: Vec<JobId>,
    /// Unaccounted bytes, which may have held states, attributes and deletes of jobs put before,
    /// pauses and settings. `None` if their number is unknown, because a file is missing or cut.
    pub unknown_bytes: Option<u64>,
}

impl Loss {
    /// How many jobs are missing.
    #[must_use]
    pub fn missing_count(&self) -> u64 {
        count(&self.missing)
    }

    /// True if this loss names what became of a job.
    fn names(&self, job: JobId) -> bool {
        let mut missing = self.missing.iter().chain(&self.perhaps_missing);
        missing.any(|ids| ids.contains(&job.0))
            || self.older.contains(&job)
            || self.again.contains(&job)
            || self.plain.contains(&job)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The jobs affected are named below.
        let is_hit_only = |job: &&JobId| !self.names(**job);
        let jobs = self.damage.jobs.iter().filter(is_hit_only).copied();
        let damage = Damage {
            jobs: jobs.collect(),
            ..self.damage.clone()
        };
        write!(f, "{damage}")?;
        let missing = self.missing.iter().map(show_range).collect::<Vec<_>>();
        let list = |jobs: &[JobId]| jobs.iter().map(JobId::to_string).collect::<Vec<_>>();
        write_jobs(
            f,
            &missing,
            self.missing_count(),
            ["is missing", "are missing"],
        )?;
        let perhaps = self
            .perhaps_missing
            .iter()
            .map(show_range)
            .collect::<Vec<_>>();
        let words = [
            "is missing or had been deleted",
            "are missing or had been deleted",
        ];
        write_jobs(f, &perhaps, count(&self.perhaps_missing), words)?;
        if let Some(id) = self.missing_from {
            write!(f, "; jobs from id {id} on are missing, if there were any")?;
        }
        let older = list(&self.older);
        let words = ["is back in an older state", "are back in an older state"];
        write_jobs(f, &older, older.len() as u64, words)?;
        let again = list(&self.again);
        write_jobs(
            f,
            &again,
            again.len() as u64,
            ["would run again", "would run again"],
        )?;
        let plain = list(&self.plain);
        let words = ["has lost its attributes", "have lost their attributes"];
        write_jobs(f, &plain, plain.len() as u64, words)?;
        match self.unknown_bytes {
            Some(0) => Ok(()),
            Some(bytes) => {
                write!(
                    f,
                    "; {bytes} bytes may have held states or deletes of jobs put before"
                )
            }
            None => write!(f, "; everything else in it is lost"),
        }
    }
}

fn count(ranges: &[RangeInclusive<u64>]) -> u64 {
    ranges.iter().map(|ids| ids.end() - ids.start() + 1).sum()
}

fn show_range(ids: &RangeInclusive<u64>) -> String {
    if ids.start() == ids.end() {
        ids.start().to_string()
    } else {
        format!("{} to {}", ids.start(), ids.end())
    }
}

/// Ids, or ranges of them, that are named in one line at most.
const SHOWN: usize = 16;

fn write_jobs(
    f: &mut fmt::Formatter<'_>,
    names: &[String],
    count: u64,
    [one, many]: [&str; 2],
) -> fmt::Result {
    if count == 0 {
        return Ok(());
    }
    let (noun, verb) = if count == 1 {
        ("job", one)
    } else {
        ("jobs", many)
    };
    write!(f, "; {noun} {}", names[..names.len().min(SHOWN)].join(", "))?;
    match names.len().saturating_sub(SHOWN) {
        0 => {}
        more => write!(f, " and {more} more")?,
    }
    write!(f, " {verb}")
}

/// The smallest put, bytes: a tube name of one letter, no body.
pub(super) const PUT_SIZE_MIN: u64 = put::SIZE as u64 + 1;

/// Damage that was found, while the records after it are still unread.
#[derive(Debug)]
struct PendingLoss {
    loss: Loss,
    /// Compaction may have removed puts from the damaged part.
    is_thinned: bool,
    /// The ids that may have been put there.
    ids: RangeInclusive<u64>,
    claims: Vec<(Place, JobId, JobEvent)>,
}

impl PendingLoss {
    /// A damaged put with an id that no put had at this place is the put of another job, and its
    /// bytes are not accounted for.
    fn doubt_puts(&mut self) {
        let is_astray = |&(_, job, event): &(Place, JobId, JobEvent)| {
            event == JobEvent::Put && !self.ids.contains(&job.0)
        };
        if self.claims.iter().any(is_astray) {
            let unknown = &mut self.loss.unknown_bytes;
            *unknown = unknown.map(|bytes| bytes.max(PUT_SIZE_MIN));
        }
    }
}

/// Collects damage while a log is read, and judges it after everything has been read.
#[derive(Debug, Default)]
pub(super) struct Losses {
    pending: Vec<PendingLoss>,
    /// How many of the `pending` losses have been followed by a put.
    bounded: usize,
    put_max: u64,
    /// Puts may have been compacted away since `put_max` was set.
    is_put_max_low: bool,
    /// Up to this id, sound puts that follow each other have left out ids.
    sparse_max: u64,
    /// Ids with a put or a delete out of place, since the first damage.
    accounted: BTreeSet<u64>,
    /// Ids of which only states were seen.
    orphans: BTreeSet<u64>,
}

impl Losses {
    /// The next file begins.
    pub(super) fn begin_file(&mut self, compacted: bool) {
        self.is_put_max_low |= compacted;
    }

    /// Damage comes next in the log; [`Losses::salvaged`] and [`Losses::claimed`] report what is
    /// left there.
    pub(super) fn begin_damage(
        &mut self,
        damage: Damage,
        compacted: bool,
        unknown_bytes: Option<u64>,
    ) {
        let loss = Loss {
            damage,
            missing: Vec::new(),
            perhaps_missing: Vec::new(),
            missing_from: None,
            older: Vec::new(),
            again: Vec::new(),
            plain: Vec::new(),
            unknown_bytes,
        };
        let ids = self.put_max.saturating_add(1)..=u64::MAX;
        let is_thinned = compacted || self.is_put_max_low;
        self.pending.push(PendingLoss {
            loss,
            is_thinned,
            ids,
            claims: Vec::new(),
        });
    }

    /// A sound record was salvaged from the last damage.
    pub(super) fn salvaged(&mut self, record: &Record<'_>) {
        match record {
            Record::Put { id, .. } => {
                self.bound(id.0, self.pending.len() - 1);
                self.accounted.insert(id.0);
                self.put_max = self.put_max.max(id.0);
            }
            Record::Delete { id, .. } => self.note_delete(*id),
            _ => {}
        }
    }

    /// The bytes at `place`, in the last damage, claim to be about a job.
    pub(super) fn claimed(&mut self, place: Place, job: JobId, event: JobEvent) {
        if let Some(pending) = self.pending.last_mut() {
            pending.claims.push((place, job, event));
        }
    }

    /// Set the unaccounted bytes of the last damage.
    pub(super) fn set_unaccounted(&mut self, unknown_bytes: Option<u64>) {
        if let Some(pending) = self.pending.last_mut() {
            pending.loss.unknown_bytes = unknown_bytes;
        }
    }

    /// A sound record was read; `has_job` says whether a job's put was seen.
    pub(super) fn note(&mut self, record: &Record<'_>, has_job: impl Fn(JobId) -> bool) {
        let is_damaged = !self.pending.is_empty();
        match record {
            Record::Put { id, .. } => {
                let is_all_sound = self.bounded == self.pending.len() && !self.is_put_max_low;
                if is_all_sound && id.0 > self.put_max.saturating_add(1) {
                    self.sparse_max = id.0;
                }
                self.bound(id.0, self.pending.len());
                self.put_max = self.put_max.max(id.0);
            }
            // All puts before it have smaller ids, all puts after it greater ones.
            Record::Manifest { next_id, .. } => {
                self.bound(next_id.0, self.pending.len());
                self.put_max = self.put_max.max(next_id.0.saturating_sub(1));
                self.is_put_max_low = false;
            }
            Record::Update { id, .. } | Record::Attributes { id, .. }
                if is_damaged && !has_job(*id) =>
            {
                self.orphans.insert(id.0);
            }
            Record::Delete { id, .. } if is_damaged && !has_job(*id) => self.note_delete(*id),
            _ => {}
        }
    }

    fn note_delete(&mut self, id: JobId) {
        self.accounted.insert(id.0);
        self.orphans.remove(&id.0);
    }

    /// All puts in the first `count` damages had smaller ids than this.
    fn bound(&mut self, id: u64, count: usize) {
        for pending in &mut self.pending[self.bounded.min(count)..count] {
            pending.ids = *pending.ids.start()..=id.saturating_sub(1);
        }
        self.bounded = self.bounded.max(count);
    }

    /// Judge everything, now that the whole log is in `index`. Also returns an id greater than that
    /// of every put that was read, or that damaged bytes name.
    pub(super) fn judge(mut self, index: &JobIndex) -> (Vec<Loss>, JobId) {
        let next_id = self.next_id(index.next_id().0);
        let unbounded = self.bounded;
        self.bound(next_id, self.pending.len());
        for (at, pending) in self.pending.iter_mut().enumerate() {
            pending.doubt_puts();
            let is_known = pending.loss.unknown_bytes == Some(0);
            let is_open = at >= unbounded && !is_known;
            pending.loss.missing_from = is_open.then_some(JobId(next_id));
        }
        // Damages between the same two puts share the jobs missing between them.
        let mut room: HashMap<RangeInclusive<u64>, u64> = HashMap::new();
        for pending in &self.pending {
            let size = pending.loss.damage.range.map_or(u64::MAX, |(_, size)| size);
            let room = room.entry(pending.ids.clone()).or_default();
            *room = room.saturating_add(size / PUT_SIZE_MIN);
        }
        let pending = std::mem::take(&mut self.pending).into_iter();
        let losses = pending.map(|pending| {
            let puts_max = room.get(&pending.ids).copied().unwrap_or(u64::MAX);
            self.judge_one(pending, puts_max, index)
        });
        (losses.collect(), JobId(next_id))
    }

    /// `next_id`, or more if lost puts after the last sound one are named.
    fn next_id(&self, next_id: u64) -> u64 {
        let last = &self.pending[self.bounded..];
        let size = |pending: &PendingLoss| pending.loss.damage.range.map_or(0, |(_, size)| size);
        let near = next_id..next_id.saturating_add(last.iter().map(size).sum());
        let claims = last.iter().flat_map(|pending| &pending.claims);
        let puts = claims.filter(|(_, _, event)| *event == JobEvent::Put);
        let named = puts.map(|(_, job, _)| job.0).filter(|id| near.contains(id));
        named.max().map_or(next_id, |id| id.saturating_add(1))
    }

    /// `puts_max`: the greatest number of puts that can have been where the damage is.
    fn judge_one(&self, pending: PendingLoss, puts_max: u64, index: &JobIndex) -> Loss {
        let mut loss = pending.loss;
        let is_gone = |id: u64| !self.accounted.contains(&id) && !index.contains(JobId(id));
        let ids = gaps(
            pending.ids.clone(),
            self.known(&pending.ids, index).into_iter(),
        );
        let is_sparse = *pending.ids.start() <= self.sparse_max || count(&ids) > puts_max;
        let is_known = loss.unknown_bytes == Some(0);
        if !pending.is_thinned && !is_sparse {
            loss.missing = ids;
        } else if !is_known || !pending.is_thinned {
            let orphans = self
                .orphans
                .iter()
                .copied()
                .filter(|id| pending.ids.contains(id));
            push_all(&mut loss.missing, orphans);
            loss.perhaps_missing = ids;
        }
        for (place, job, event) in pending.claims {
            match (event, index.get(job)) {
                (JobEvent::Put, None) if pending.ids.contains(&job.0) && is_gone(job.0) => {
                    push_all(&mut loss.missing, [job.0].into_iter());
                }
                (JobEvent::Update, Some(entry)) if !is_behind(entry.update, place) => {
                    loss.older.push(job);
                }
                (JobEvent::Delete, Some(_)) => loss.again.push(job),
                (JobEvent::Attributes, Some(_)) if !index.has_attributes_behind(job, place) => {
                    loss.plain.push(job);
                }
                _ => {}
            }
            // A damaged record may claim to be about a job that never existed.
            let is_job = index.contains(job) || loss.names(job);
            if is_job && !loss.damage.jobs.contains(&job) {
                loss.damage.jobs.push(job);
            }
        }
        if is_sparse && is_known && !loss.missing.is_empty() {
            // Everything that was there is named.
            loss.perhaps_missing.clear();
        }
        loss
    }
}

impl Losses {
    /// The ids in a range with a put or a delete, in order.
    fn known(&self, ids: &RangeInclusive<u64>, index: &JobIndex) -> BTreeSet<u64> {
        if ids.is_empty() {
            return BTreeSet::new();
        }
        let accounted = self.accounted.range(ids.clone()).copied();
        accounted.chain(index.ids(ids.clone())).collect()
    }
}

/// Add single ids to ranges, unless they are in one.
fn push_all(ranges: &mut Vec<RangeInclusive<u64>>, ids: impl Iterator<Item = u64>) {
    for id in ids {
        if ranges.iter().any(|range| range.contains(&id)) {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(id) => *last = *last.start()..=id,
            _ => ranges.push(id..=id),
        }
    }
}

/// The ids of `all` without the `known` ids, which come in order.
fn gaps(all: RangeInclusive<u64>, known: impl Iterator<Item = u64>) -> Vec<RangeInclusive<u64>> {
    let mut gaps = Vec::new();
    let mut next = *all.start();
    for id in known {
        if next < id {
            gaps.push(next..=id - 1);
        }
        match id.checked_add(1) {
            Some(behind) => next = behind,
            None => return gaps,
        }
    }
    if next <= *all.end() {
        gaps.push(next..=*all.end());
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_not_known() {
        assert_eq!(gaps(4..=9, [5, 6].into_iter()), [4..=4, 7..=9]);
        assert_eq!(gaps(4..=9, [4, 9].into_iter()), [5..=8]);
        assert_eq!(gaps(4..=5, [4, 5].into_iter()), []);
        assert_eq!(
            gaps(9..=u64::MAX, [u64::MAX].into_iter()),
            [9..=u64::MAX - 1]
        );
    }

    #[test]
    fn ids_in_ranges_are_counted_with_both_ends() {
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[5..=5, 7..=9, 100..=199]), 104);
    }

    #[test]
    fn ids_that_follow_each_other_become_a_range() {
        let mut ranges = Vec::new();
        push_all(&mut ranges, [3, 4, 7, 4, 8].into_iter());
        assert_eq!(ranges, [3..=4, 7..=8]);
        let mut ranges = vec![8..=u64::MAX];
        push_all(&mut ranges, [7, u64::MAX].into_iter());
        assert_eq!(ranges, [8..=u64::MAX, 7..=7]);
    }
}
