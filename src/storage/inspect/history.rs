//! Everything that the log still holds about one job, in the order in which it happened.
//!
//! Only puts carry a time. Other records are bracketed by the times of puts logged before and after
//! them, for any job: the log's order is its clock. Compaction drops states that a later one
//! replaced, so several things may have happened between two entries; the counters say which.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use super::{Access, Inspection, Loss, Opened, Progress, RecordPlace, are_ids_left_out};
use crate::storage::disk::Fs;
use crate::storage::error::Damage;
use crate::storage::error::OpenError;
use crate::storage::format::Record;
use crate::storage::log::kicks::Kicks;
use crate::types::{Counters, JobId, JobState, Position, SECOND_NS};

/// The state of a job at one point in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// As recorded; never `Reserved`.
    pub state: JobState,
    /// When a delayed job becomes due: wall time, nanoseconds since 1970.
    pub deadline_wall_ns: Option<u64>,
    /// Smaller is more urgent.
    pub pri: u32,
    /// The last delay asked for, seconds.
    pub delay: u32,
    /// Its counters so far.
    pub counters: Counters,
}

/// Event of a job, as a record has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was put.
    Put {
        /// Its tube.
        tube: String,
        /// Seconds that a worker may take.
        ttr: u32,
        /// Bytes of its body.
        body_size: usize,
        /// Its state at that time.
        state: State,
    },
    /// Its state changed.
    Changed {
        /// The state before; `None`: the log has none from before this.
        before: Option<State>,
        /// The state from now on.
        state: State,
    },
    /// What it has beyond a plain job has changed: the list of its [attributes](crate::attributes) from
    /// now on.
    Attributes(Vec<u8>),
    /// It is gone.
    Deleted,
}

/// A record about the job, and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The file.
    pub file: String,
    /// Its place in history; see [`RecordPlace::position`].
    pub position: Position,
    /// Bytes.
    pub size: usize,
    /// It was salvaged from a damaged frame.
    pub is_salvaged: bool,
    /// The last time in the log up to here; `None` before the first. For a put: when it was
    /// put.
    pub after_wall_ns: Option<u64>,
    /// The next time in the log from here on; `None` after the last. For a put: when it was put.
    pub before_wall_ns: Option<u64>,
    /// The event.
    pub event: Event,
}

/// A job's life, as far as the log holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The records about it, in order.
    pub entries: Vec<HistoryEntry>,
    /// Damage anywhere in the log: it may have held more about the job.
    pub damages: Vec<Damage>,
    /// No id from this one on was seen in the log.
    pub next_id: JobId,
    /// The job's outcome.
    pub fate: Fate,
    /// Entries behind the first that are left out, to keep within a bound.
    pub left_out: u64,
}

/// The outcome of a job, as far as it can be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is there.
    There,
    /// It is there, delayed or buried, and the next start kicks it: a kick of several jobs was
    /// interrupted.
    Kicked,
    /// It is there, in a state or with attributes older than the last ones recorded, which are damaged.
    Older,
    /// It is there, and had been deleted: the record that says so is damaged.
    Again,
    /// It was deleted.
    Deleted,
    /// It was deleted, and compaction has dropped its records.
    Dropped,
    /// Nothing is left of it, and ids were left out: it was deleted, and compaction has dropped its
    /// records; or it was put in the part that is lost; or it was never put.
    Unknown,
    /// It is lost in damage.
    Lost,
    /// It is lost in damage, unless it had been deleted before, or was never put.
    PerhapsLost,
    /// No job has had this id yet.
    NeverPut,
}

/// Read the log in `dir` and keep what it says about `job`. Takes memory for that job's records
/// only; bodies are not kept.
///
/// # Errors
/// Those of [`Inspection::read`](super::Inspection::read).
pub fn history(
    fs: Arc<dyn Fs>,
    dir: &Path,
    job: JobId,
    progress: Progress<'_>,
) -> Result<History, OpenError> {
    let opened = Opened::new(fs, dir, Access::Shared, progress)?;
    opened.history(job, progress)
}

impl Opened {
    /// See [`history`].
    ///
    /// # Errors
    /// Those of [`Opened::inspect`].
    pub fn history(&self, job: JobId, progress: Progress<'_>) -> Result<History, OpenError> {
        let mut reading = Reading::of(job, usize::MAX);
        let mut kicks = Kicks::default();
        let mut visit = |place: RecordPlace<'_>, record: &Record<'_>| {
            kicks.note(record);
            reading.take(&place, record);
            true
        };
        let damages = self.records(&mut visit, progress)?;
        let mut history = reading.history;
        // Only the whole log tells what damage means for a job, and which jobs a kick takes.
        let is_told = damages.is_empty() && kicks.list().is_empty();
        let inspection = if is_told {
            None
        } else {
            Some(self.read(progress)?)
        };
        if let Some(inspection) = &inspection {
            history.next_id = history.next_id.max(inspection.next_id);
        }
        history.damages = damages;
        let known = inspection.and_then(|inspection| fate_in_all(&inspection, job));
        history.fate = known.unwrap_or_else(|| history.fate_told(job));
        Ok(history)
    }
}

impl Opened {
    /// The same within bounds, for a reader beside a server: as far as the job's own records tell
    /// it, and of those the first and the last `entries_max - 1`. `None` if `goes_on`, which is
    /// asked after every frame with the bytes read so far and in all, says no.
    ///
    /// # Errors
    /// Those of [`Opened::inspect`].
    pub fn history_within(
        &self,
        job: JobId,
        entries_max: usize,
        goes_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<History>, OpenError> {
        let mut reading = Reading::of(job, entries_max);
        let is_wanted = Cell::new(true);
        let mut visit = |place: RecordPlace<'_>, record: &Record<'_>| {
            reading.take(&place, record);
            is_wanted.get()
        };
        let mut progress = |done, all| is_wanted.set(is_wanted.get() && goes_on(done, all));
        let damages = self.records(&mut visit, &mut progress)?;
        if !is_wanted.get() {
            return Ok(None);
        }
        reading.cut(entries_max);
        let mut history = reading.history;
        history.damages = damages;
        history.fate = history.fate_told(job);
        Ok(Some(history))
    }
}

impl History {
    /// The outcome according to the job's own records.
    fn fate_told(&self, job: JobId) -> Fate {
        match self.entries.last() {
            Some(HistoryEntry {
                event: Event::Deleted,
                ..
            }) => Fate::Deleted,
            Some(_) => Fate::There,
            None if job >= self.next_id => Fate::NeverPut,
            None if are_ids_left_out(self.next_id) => Fate::Unknown,
            None => Fate::Dropped,
        }
    }
}

/// The outcome after damage, or after the kick that the next start finishes; `None` if the job's
/// own records already tell it.
fn fate_in_all(inspection: &Inspection, job: JobId) -> Option<Fate> {
    let any = |is_it: &dyn Fn(&Loss) -> bool| inspection.losses.iter().any(is_it);
    let among = |ranges: &[RangeInclusive<u64>]| ranges.iter().any(|ids| ids.contains(&job.0));
    let is_there = inspection.has_job(job);
    if is_there && any(&|loss| loss.again.contains(&job)) {
        Some(Fate::Again)
    } else if is_there && any(&|loss| loss.older.contains(&job) || loss.plain.contains(&job)) {
        Some(Fate::Older)
    } else if inspection.is_kicked(job) {
        Some(Fate::Kicked)
    } else if is_there {
        Some(Fate::There)
    } else if any(&|loss| among(&loss.missing)) {
        Some(Fate::Lost)
    } else if any(&|loss| among(&loss.perhaps_missing))
        || any(&|loss| loss.missing_from.is_some_and(|from| from <= job))
    {
        Some(Fate::PerhapsLost)
    } else {
        None
    }
}

impl Reading {
    fn of(job: JobId, entries_max: usize) -> Reading {
        Reading {
            job,
            entries_max,
            last: None,
            after_wall_ns: None,
            unbounded: 0,
            history: History {
                entries: Vec::new(),
                damages: Vec::new(),
                next_id: JobId(1),
                fate: Fate::NeverPut,
                left_out: 0,
            },
        }
    }
}

struct Reading {
    job: JobId,
    /// Twice as many entries are held at most.
    entries_max: usize,
    /// The job's state so far.
    last: Option<State>,
    after_wall_ns: Option<u64>,
    /// Number of entries that have their `before_wall_ns`.
    unbounded: usize,
    history: History,
}

impl Reading {
    fn take(&mut self, place: &RecordPlace<'_>, record: &Record<'_>) {
        self.note_id(record);
        if let Some(time) = time(record) {
            for entry in &mut self.history.entries[self.unbounded..] {
                entry.before_wall_ns.get_or_insert(time);
            }
            self.unbounded = self.history.entries.len();
            self.after_wall_ns = Some(time);
        }
        if record.job() != Some(self.job) {
            return;
        }
        let Some(event) = self.event(record) else {
            return;
        };
        self.history.entries.push(HistoryEntry {
            file: place.file.to_owned(),
            position: place.position,
            size: place.size,
            is_salvaged: place.is_salvaged,
            after_wall_ns: self.after_wall_ns,
            before_wall_ns: time(record),
            event,
        });
        if self.history.entries.len() >= self.entries_max.saturating_mul(2) {
            self.cut(self.entries_max);
        }
    }

    /// Leave out entries behind the first until there are `count`, at least 1.
    fn cut(&mut self, count: usize) {
        let surplus = self.history.entries.len().saturating_sub(count);
        if surplus > 0 {
            self.history.entries.drain(1..=surplus);
            self.history.left_out += surplus as u64;
            let of_first = self.unbounded.min(1);
            self.unbounded = self.unbounded.saturating_sub(surplus).max(of_first);
        }
    }

    fn note_id(&mut self, record: &Record<'_>) {
        let next_id = match record {
            Record::Manifest { next_id, .. } => *next_id,
            other => JobId(other.job().map_or(0, |id| id.0.saturating_add(1))),
        };
        self.history.next_id = self.history.next_id.max(next_id);
    }

    fn event(&mut self, record: &Record<'_>) -> Option<Event> {
        match *record {
            Record::Put {
                created_wall_ns,
                pri,
                delay,
                ttr,
                tube,
                body,
                ..
            } => {
                let due = created_wall_ns.saturating_add(u64::from(delay) * SECOND_NS as u64);
                let (state, deadline_wall_ns) = match delay {
                    0 => (JobState::Ready, None),
                    _ => (JobState::Delayed, Some(due)),
                };
                let counters = Counters::default();
                let state = State {
                    state,
                    deadline_wall_ns,
                    pri,
                    delay,
                    counters,
                };
                self.last = Some(state);
                Some(Event::Put {
                    tube: tube.to_owned(),
                    ttr,
                    body_size: body.len(),
                    state,
                })
            }
            Record::Update {
                state,
                deadline_wall_ns,
                pri,
                delay,
                counters,
                ..
            } => {
                let state = State {
                    state,
                    deadline_wall_ns: (state == JobState::Delayed).then_some(deadline_wall_ns),
                    pri,
                    delay,
                    counters,
                };
                let before = self.last.replace(state);
                Some(Event::Changed { before, state })
            }
            Record::Attributes { list, .. } => Some(Event::Attributes(list.to_vec())),
            Record::Delete { .. } => {
                self.last = None;
                Some(Event::Deleted)
            }
            _ => None,
        }
    }
}

/// The wall time that a record carries.
fn time(record: &Record<'_>) -> Option<u64> {
    match record {
        Record::Put {
            created_wall_ns, ..
        } => Some(*created_wall_ns),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::convert::build::Build;
    use crate::storage::{IDS_SKIPPED, SimFs};
    use crate::types::{Now, SegmentId, Time};

    const DIR: &str = "/log";

    fn put(id: u64, created_wall_ns: u64, delay: u32) -> Record<'static> {
        Record::Put {
            id: JobId(id),
            created_wall_ns,
            pri: 5,
            delay,
            ttr: 60,
            tube: "t",
            body: b"body",
        }
    }

    fn update(id: u64, state: JobState, reserves: u32) -> Record<'static> {
        Record::Update {
            id: JobId(id),
            kick: 0,
            state,
            deadline_wall_ns: 0,
            pri: 6,
            delay: 0,
            counters: Counters {
                reserves,
                ..Counters::default()
            },
        }
    }

    fn written(records: &[Record<'_>]) -> SimFs {
        let disk = SimFs::new(1);
        let now = Now::new(Time(0), 9);
        let fs = Arc::new(disk.clone());
        let mut build = Build::begin(fs, Path::new(DIR), 64 << 10, now).unwrap();
        for record in records {
            build.append(record).unwrap();
        }
        build.finish().unwrap();
        disk
    }

    fn read(disk: &SimFs, job: u64) -> History {
        let fs = Arc::new(disk.clone());
        history(fs, Path::new(DIR), JobId(job), &mut |_, _| ()).unwrap()
    }

    #[test]
    fn a_life_is_told_in_order_between_the_times_that_are_known() {
        let delete = Record::Delete {
            id: JobId(1),
            put_segment: SegmentId(1),
        };
        let disk = written(&[
            put(1, 100, 3),
            update(1, JobState::Ready, 1),
            put(2, 200, 0),
            update(2, JobState::Buried, 4),
            update(1, JobState::Buried, 2),
            put(3, 300, 0),
            delete,
        ]);
        let history = read(&disk, 1);
        let times: Vec<_> = history
            .entries
            .iter()
            .map(|entry| (entry.after_wall_ns, entry.before_wall_ns))
            .collect();
        assert_eq!(
            times,
            [
                (Some(100), Some(100)),
                (Some(100), Some(200)),
                (Some(200), Some(300)),
                (Some(300), None)
            ]
        );
        let positions = history.entries.iter().map(|entry| entry.position);
        assert!(positions.is_sorted());
        assert_eq!(history.next_id, JobId(4));
        let Event::Changed {
            before: Some(before),
            state,
        } = history.entries[2].event
        else {
            panic!("{history:?}");
        };
        assert_eq!(
            (before.state, before.counters.reserves),
            (JobState::Ready, 1)
        );
        assert_eq!(
            (state.state, state.counters.reserves),
            (JobState::Buried, 2)
        );
        assert_eq!(history.entries[3].event, Event::Deleted);
    }

    fn within(disk: &SimFs, entries_max: usize, frames: u64) -> Option<History> {
        let fs = Arc::new(disk.clone());
        let opened = Opened::new(fs, Path::new(DIR), Access::Sparing, &mut |_, _| ()).unwrap();
        let mut left = frames;
        let mut goes_on = |_, _| {
            left = left.saturating_sub(1);
            left > 0
        };
        let read = opened.history_within(JobId(1), entries_max, &mut goes_on);
        assert!(!opened.has_lost_files());
        read.unwrap()
    }

    #[test]
    fn a_long_life_is_told_by_its_beginning_and_its_end() {
        let updates = (1..=50).map(|reserves| update(1, JobState::Ready, reserves));
        let mut records = vec![put(1, 100, 0)];
        for (nth, update) in updates.enumerate() {
            records.extend([update, put(2 + nth as u64, 101 + nth as u64, 0)]);
        }
        let disk = written(&records);
        let all = read(&disk, 1).entries;
        assert_eq!(all.len(), 51);
        for most in [1, 2, 7, 50, 51, 52] {
            let history = within(&disk, most, u64::MAX).unwrap();
            let last = all.len() - (most - 1).min(50);
            let wanted = [&all[..1], &all[last..]].concat();
            assert_eq!(history.entries, wanted, "{most}");
            assert_eq!(history.left_out, (last - 1) as u64, "{most}");
            assert_eq!(history.fate, Fate::There);
        }
    }

    #[test]
    fn a_file_that_is_gone_before_all_was_read_is_noticed() {
        let disk = written(&[put(1, 100, 0)]);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let names = fs.read_dir(Path::new(DIR)).unwrap();
        let opened = Opened::new(fs, Path::new(DIR), Access::Sparing, &mut |_, _| ()).unwrap();
        assert!(opened.live.is_some() && !opened.has_lost_files());
        let mut names = names.iter().map(|entry| &entry.name);
        let segment = names.find(|name| name.starts_with("segment-")).unwrap();
        disk.remove(Path::new(DIR).join(segment)).unwrap();
        assert!(opened.has_lost_files());
    }

    #[test]
    fn a_reading_that_is_not_wanted_ends() {
        let disk = written(&[put(1, 100, 0)]);
        assert_eq!(within(&disk, 9, 1), None);
        assert!(within(&disk, 9, u64::MAX).is_some());
    }

    #[test]
    fn a_job_without_records_was_deleted_only_if_no_ids_were_left_out() {
        for (next_id, fate) in [
            (1000, Fate::Dropped),
            (IDS_SKIPPED, Fate::Dropped),
            (IDS_SKIPPED + 1, Fate::Unknown),
        ] {
            let disk = SimFs::new(1);
            let fs = Arc::new(disk.clone());
            let now = Now::new(Time(0), 9);
            let mut build = Build::begin(fs, Path::new(DIR), 64 << 10, now).unwrap();
            build.append(&put(5, 100, 0)).unwrap();
            build.skip_ids(JobId(next_id)).unwrap();
            build.finish().unwrap();
            assert_eq!(read(&disk, 5).fate, Fate::There);
            for job in [4, 8, next_id - 1] {
                assert_eq!(read(&disk, job).fate, fate, "job {job} before {next_id}");
                let opened = Opened::new(
                    Arc::new(disk.clone()),
                    Path::new(DIR),
                    Access::Sparing,
                    &mut |_, _| (),
                );
                let within = opened
                    .unwrap()
                    .history_within(JobId(job), 9, &mut |_, _| true);
                assert_eq!(within.unwrap().unwrap().fate, fate, "job {job}");
            }
            assert_eq!(read(&disk, next_id).fate, Fate::NeverPut);
        }
    }

    #[test]
    fn of_a_job_that_never_was_there_is_nothing() {
        let history = read(&written(&[put(1, 100, 0)]), 2);
        assert!(history.entries.is_empty() && history.damages.is_empty());
        assert_eq!(history.next_id, JobId(2));
    }
}
