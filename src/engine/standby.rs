//! A queue that follows another one and can take its place at once.
//!
//! It is as far as a start that has replayed its log, and stays there: the records of the other log
//! are applied one after another, each appended to its own log first. Time does not go on, no one is
//! served, and nothing is decided here. Compaction works when it is told to. To take the place of
//! the other queue takes no more than what a start does after the last record.

use std::path::Path;

use super::replay::Replayer;
use super::store::Store;
use super::{Engine, Mode, Options};
use crate::ErrorClass;
use crate::attributes::Attributes;
use crate::queue::Queue;
use crate::storage::format::Record;
use crate::storage::{AppendError, Life, Log, OpenError, Purpose, StoreError};
use crate::types::{JobId, JobState, Now, Place, Position, SegmentId};

/// A queue that follows another one.
#[derive(Debug)]
pub struct Standby {
    engine: Engine,
    /// The segment that was begun to take the place of the other queue, and where the log ended then.
    life: Option<(Life, Position)>,
}

/// Why a record was not applied. It was not, and can come again.
#[derive(Debug)]
pub enum ApplyError {
    /// There is no room for it now; the class is [`ErrorClass::Full`] or
    /// [`ErrorClass::Descriptors`].
    NoRoom(ErrorClass),
    /// It cannot follow what is here: says why.
    Contradiction(String),
    /// The disk failed: nothing more can be applied.
    Failed(StoreError),
}

impl std::fmt::Display for ApplyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ApplyError::NoRoom(class) => {
                let (lack, relief) = (class.lack(), class.relief());
                write!(f, "{lack}; {relief}, then it goes on by itself")
            }
            ApplyError::Contradiction(what) => {
                write!(f, "what comes does not follow what is here: {what}")
            }
            ApplyError::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ApplyError {}

impl From<StoreError> for ApplyError {
    fn from(error: StoreError) -> ApplyError {
        ApplyError::Failed(error)
    }
}

impl Standby {
    /// Open the copy in `options.dir`, as [`Engine::open`] does, and leave it the copy of a standby.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: &Options, now: Now) -> Result<Standby, OpenError> {
        Ok(Standby {
            engine: Engine::replay(options, Mode::Single, true, now)?,
            life: None,
        })
    }

    /// The queue, to look at.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.engine.queue
    }

    /// True if a kick of many jobs has begun and is not over: to take over would finish it.
    #[must_use]
    pub fn is_kicking(&self) -> bool {
        let log = self.engine.log();
        log.is_some_and(|log| !log.kicks_under_way().is_empty())
    }

    /// Which room was lacking when there last was none.
    #[must_use]
    pub fn lacking(&self) -> ErrorClass {
        self.engine.log().map_or(ErrorClass::Full, Log::lacking)
    }

    /// Jobs that there are.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.engine.queue.stats().jobs.total()
    }

    /// Apply the next record of the other log. Written with the next
    /// [`Standby::commit`], and durable after the next [`Standby::sync`].
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn apply(&mut self, record: &Record<'_>, now: Now) -> Result<(), ApplyError> {
        self.engine.apply_record(record, now)
    }

    /// Write what was applied.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn commit(&mut self, now: Now) -> Result<(), StoreError> {
        self.engine.commit(now)
    }

    /// Make everything that was applied durable before returning. Returns where the log ends.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync(&mut self) -> Result<Position, StoreError> {
        let Store::Log(log) = &mut self.engine.store else {
            return Ok(Position::ZERO);
        };
        log.commit(true)?;
        log.sync_now()?;
        Ok(log.written())
    }

    /// Have compaction do what it wants to do now.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn tend(&mut self, now: Now) -> Result<(), StoreError> {
        while self.engine.keep_log(now)? {}
        Ok(())
    }

    /// Leave out the ids that the other queue may have given out beyond what came from it: what a
    /// promotion does first. They are left out in a segment with a number greater than `past`, which is
    /// returned: the log before it has what was applied. Durable on return; a second call changes
    /// nothing, unless something was applied since. `None`: there is no room for it.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn begin_life(&mut self, past: SegmentId, now: Now) -> Result<Option<Life>, StoreError> {
        let Store::Log(log) = &mut self.engine.store else {
            return Ok(None);
        };
        let is_as_then = |(life, written): &(Life, Position)| {
            life.segment > past && *written == log.written() && !log.has_unwritten()
        };
        if let Some((life, _)) = self.life.filter(is_as_then) {
            return Ok(Some(life));
        }
        let begun = match self.life {
            None => log.skip_lost_ids(past, now.wall_ns)?,
            Some(_) => log.begin_life(log.next_id(), past, now.wall_ns)?,
        };
        if let Some(life) = begun {
            self.life = Some((life, log.written()));
            let next_id = log.next_id();
            self.engine.queue.set_next_id(next_id);
        }
        Ok(begun)
    }

    /// The queue takes the place of the one that it has followed, and leaves out the ids that this one
    /// may have given out meanwhile.
    ///
    /// # Errors
    /// When the disk failed, or is full: then it is still a standby, and can be opened again.
    pub fn promote(mut self, now: Now) -> Result<Engine, OpenError> {
        if self.life.is_none() && self.begin_life(SegmentId(0), now)?.is_none() {
            let dir = self.engine.log().map_or(Path::new(""), Log::dir);
            return Err(OpenError::no_room(
                "begin a segment in",
                dir,
                self.lacking(),
            ));
        }
        if let Store::Log(log) = &mut self.engine.store {
            // The last step: a crash before it leaves a copy.
            log.end_standby()?;
        }
        self.engine.started = now.mono;
        self.engine.begin(now)?;
        Ok(self.engine)
    }
}

impl Engine {
    /// Apply the next record of another log that this queue follows.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub(super) fn apply_record(&mut self, record: &Record<'_>, now: Now) -> Result<(), ApplyError> {
        let (purpose, id) = match *record {
            Record::Manifest { next_id, .. } => {
                self.skip_ids(next_id);
                return Ok(());
            }
            // About files, which are others here.
            Record::Switch { .. } => return Ok(()),
            Record::Put { id, .. } => (Purpose::Put, Some(id)),
            Record::Update { id, .. } | Record::Attributes { id, .. } => {
                (Purpose::Update, Some(id))
            }
            Record::Delete { id, .. } => (Purpose::Delete, Some(id)),
            Record::Pause { .. } | Record::Kick { .. } | Record::Setting { .. } => {
                (Purpose::Update, None)
            }
        };
        let job = id.and_then(|id| self.queue.job(id));
        let is_put = matches!(record, Record::Put { .. });
        if let Some(id) = id.filter(|_| job.is_some() == is_put) {
            return Err(ApplyError::Contradiction(match is_put {
                true => format!("job {id} is put a second time"),
                false => format!("there is no job {id}"),
            }));
        }
        if let Some(what) = impossible(record) {
            return Err(ApplyError::Contradiction(what));
        }
        let place = job.map(|job| job.place);
        let ahead_ns = match self.mode {
            Mode::Follower { clock_ahead_ns } => clock_ahead_ns,
            Mode::Single | Mode::Leader(_) => 0,
        };
        let Engine {
            store: Store::Log(log),
            queue,
            pauses,
            settings,
            schedules,
            ..
        } = self
        else {
            return Ok(());
        };
        let list = list_in_our_time(record, ahead_ns);
        let record = in_our_time(here(record, log, place), list.as_deref(), ahead_ns);
        let place = match log.append(&record, purpose, now.wall_ns) {
            Ok(place) => place,
            Err(AppendError::NoRoom(class)) => return Err(ApplyError::NoRoom(class)),
            Err(AppendError::Failed(error)) => return Err(error.into()),
        };
        let mut replayer = Replayer {
            queue,
            pauses,
            settings,
            schedules,
            now,
        };
        let applied = replayer.apply(log.files_mut(), place, &record);
        applied.map_err(|error| ApplyError::Contradiction(error.to_string()))
    }

    fn skip_ids(&mut self, next_id: JobId) {
        self.queue.set_next_id(next_id);
        if let Store::Log(log) = &mut self.store {
            log.next_id = log.next_id.max(next_id);
        }
    }
}

/// A record that no log can have: it must not get into this one.
fn impossible(record: &Record<'_>) -> Option<String> {
    match *record {
        Record::Put {
            id: id @ JobId(0 | u64::MAX),
            ..
        } => Some(format!("no job can have the id {id}")),
        Record::Update {
            id,
            state: JobState::Reserved,
            ..
        } => Some(format!("job {id} is recorded as reserved")),
        _ => None,
    }
}

/// The record as it is appended here: a delete names the segment of the put.
fn here<'a>(record: &Record<'a>, log: &Log, put: Option<Place>) -> Record<'a> {
    match (*record, put) {
        (Record::Delete { id, .. }, Some(place)) => Record::Delete {
            id,
            put_segment: segment_of(log, place),
        },
        (record, _) => record,
    }
}

/// The list of attributes with the wall times that our clock had. `None`: it stays as it is.
fn list_in_our_time(record: &Record<'_>, ahead_ns: i64) -> Option<Vec<u8>> {
    let Record::Attributes { list, .. } = record else {
        return None;
    };
    let found = Attributes::decode(list).filter(|_| ahead_ns != 0)?;
    found.with_clock_behind(ahead_ns).encode()
}

/// The record with the wall times that our clock had; 0 means no time. `moved`: the list of one about
/// attributes.
fn in_our_time<'a>(mut record: Record<'a>, moved: Option<&'a [u8]>, ahead_ns: i64) -> Record<'a> {
    match &mut record {
        Record::Attributes { list, .. } => *list = moved.unwrap_or(*list),
        Record::Put {
            created_wall_ns: wall_ns,
            ..
        }
        | Record::Update {
            deadline_wall_ns: wall_ns,
            ..
        }
        | Record::Pause {
            until_wall_ns: wall_ns,
            ..
        }
        | Record::Kick {
            due_wall_ns: wall_ns,
            ..
        } if *wall_ns > 0 => {
            *wall_ns = wall_ns
                .saturating_add_signed(ahead_ns.saturating_neg())
                .max(1);
        }
        _ => {}
    }
    record
}

fn segment_of(log: &Log, place: Place) -> SegmentId {
    log.files().segment_of(place)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::clock::Clock;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};

    fn put(id: u64) -> Record<'static> {
        Record::Put {
            id: JobId(id),
            created_wall_ns: 1,
            pri: 0,
            delay: 0,
            ttr: 60,
            tube: "default",
            body: &[b'x'; 5000],
        }
    }

    #[test]
    fn g02_a_standby_that_can_open_no_file_says_so_and_goes_on_when_it_can() {
        let (disk, now) = (SimFs::new(1), Clock::start().now());
        let options = Options::simulated(&disk, "/data");
        let mut standby = Standby::open(&options, now).unwrap();
        let errnos = [
            (Errno::MFILE, ErrorClass::Descriptors, "limit of open files"),
            (Errno::NOSPC, ErrorClass::Full, "make room"),
        ];
        let mut id = 1;
        for (errno, class, advice) in errnos {
            disk.inject(Fault::fail(OpKind::Create, errno).for_ever());
            let error = loop {
                match standby.apply(&put(id), now) {
                    Ok(()) => id += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, ApplyError::NoRoom(found) if found == class));
            assert!(error.to_string().contains(advice), "{error}");
            assert_eq!(standby.lacking(), class);
            disk.clear_faults();
            let later = Now {
                wall_ns: now.wall_ns + 1_000_000_000,
                ..now
            };
            standby.apply(&put(id), later).unwrap();
            id += 1;
        }
    }
}
