//! Where bodies are kept and changes are recorded: the log, or memory alone.

use std::sync::Arc;

use crate::storage::format::{Record, put_size};
use crate::storage::{
    AppendError, Begun, Body, BodyCheck, BodyError, Bytes, Loan, Loans, Log, NO_KICK, Purpose,
    StoreError,
};
use crate::types::{Change, JobId, JobState, Now, Place, SegmentId};

use crate::queue::JobView;

/// A body of more bytes than this is large.
pub(super) const LARGE: usize = 64 << 10;

#[derive(Debug)]
pub(super) enum Store {
    Log(Box<Log>),
    Memory(MemoryStore),
}

/// Bodies without a log. A [`Place`]'s offset is the index of the body.
#[derive(Debug, Default)]
pub(super) struct MemoryStore {
    bodies: Vec<InMemory>,
    free: Vec<u32>,
    bytes: u64,
    /// Bytes of bodies of jobs that are gone, and that are still read.
    loans: Loans,
}

/// A large body is lent to those who read it, not copied for them.
#[derive(Debug)]
enum InMemory {
    Small(Box<[u8]>),
    Large(Arc<Bytes>),
}

const _: () = assert!(size_of::<InMemory>() == size_of::<Box<[u8]>>());

impl InMemory {
    fn bytes(&self) -> &[u8] {
        match self {
            InMemory::Small(bytes) => bytes,
            InMemory::Large(shared) => &shared.bytes,
        }
    }
}

/// How a body comes to be given out piece by piece.
#[derive(Debug)]
pub(super) enum Lent {
    Now(Body),
    /// It has to be checked.
    Checked(BodyCheck),
}

impl Store {
    /// Record a change, and the body of a put with it.
    pub(super) fn append(
        &mut self,
        change: &Change<'_>,
        body: &[u8],
        purpose: Purpose,
        now: Now,
    ) -> Result<Place, AppendError> {
        match self {
            Store::Log(log) => log.append(&record(change, body, now), purpose, now.wall_ns),
            Store::Memory(store) => match change {
                Change::Put { .. } => Ok(store.keep(body)),
                _ => Ok(Place::NONE),
            },
        }
    }

    /// Record a put with a body that was begun. `None`: its beginning could not be read.
    pub(super) fn append_begun(
        &mut self,
        put: &Change<'_>,
        (begun, rest): (&Begun, &[u8]),
        now: Now,
    ) -> Result<Option<Place>, AppendError> {
        let Store::Log(log) = self else {
            unreachable!("without a log no body is begun on a disk")
        };
        log.append_begun(begun, &record(put, rest, now), now.wall_ns)
    }

    /// Record an update, and to which kick under way it belongs.
    pub(super) fn append_update(
        &mut self,
        change: &Change<'_>,
        kick: u16,
        purpose: Purpose,
        now: Now,
    ) -> Result<Place, AppendError> {
        let Store::Log(log) = self else {
            return Ok(Place::NONE);
        };
        let mut record = record(change, &[], now);
        if let Record::Update { kick: of, .. } = &mut record {
            *of = kick;
        }
        log.append(&record, purpose, now.wall_ns)
    }

    /// Record that a job is gone, whose put record is at `put`.
    pub(super) fn append_delete(
        &mut self,
        id: JobId,
        put: Place,
        now: Now,
    ) -> Result<Place, AppendError> {
        match self {
            Store::Log(log) => {
                let put_segment = log.files().segment_of(put);
                let record = Record::Delete { id, put_segment };
                let appended = log.append(&record, Purpose::Delete, now.wall_ns);
                if let Err(AppendError::NoRoom(_)) = appended {
                    log.note_no_room_to_delete();
                }
                let place = appended?;
                log.files_mut()
                    .keep_tombstone(place, put_segment, record.size());
                Ok(place)
            }
            Store::Memory(_) => Ok(Place::NONE),
        }
    }

    /// Have the records of these changes stay in one frame, until [`Store::part`], with as much room as
    /// a record of this purpose needs.
    pub(super) fn join_for(
        &mut self,
        changes: &[Change<'_>],
        body: &[u8],
        purpose: Purpose,
        now: Now,
    ) -> Result<(), AppendError> {
        self.join_size(size_of_records(changes, body, now), purpose, now)
    }

    /// The same for records of this many bytes together.
    pub(super) fn join_size(
        &mut self,
        size: usize,
        purpose: Purpose,
        now: Now,
    ) -> Result<(), AppendError> {
        let Store::Log(log) = self else {
            return Ok(());
        };
        log.join_for(size as u64, purpose, now.wall_ns)
    }

    /// The next records may be in another frame.
    pub(super) fn part(&mut self) -> Result<(), StoreError> {
        self.log().map_or(Ok(()), Log::part)
    }

    /// The log; `None` without one.
    pub(super) fn log(&mut self) -> Option<&mut Log> {
        match self {
            Store::Log(log) => Some(log),
            Store::Memory(_) => None,
        }
    }

    /// The segment in which a record lies; 0 without a log.
    pub(super) fn segment_of(&self, place: Place) -> SegmentId {
        match self {
            Store::Log(log) => log.files().segment_of(place),
            Store::Memory(_) => SegmentId(0),
        }
    }

    pub(super) fn read_body(
        &mut self,
        place: Place,
        id: JobId,
        tube_size: usize,
        body_size: usize,
    ) -> Result<&[u8], BodyError> {
        match self {
            Store::Log(log) => log.read_body(place, id, tube_size, body_size),
            Store::Memory(store) => Ok(store.bodies[place.offset as usize].bytes()),
        }
    }

    /// A body that is [`LARGE`], to be given out piece by piece.
    pub(super) fn lend(&self, job: &JobView<'_>) -> Lent {
        let (tube_size, body_size) = (job.put_tube_size, job.body_size as usize);
        match self {
            Store::Log(log) => {
                Lent::Checked(log.check_body(job.place, job.id, tube_size, body_size))
            }
            Store::Memory(store) => match &store.bodies[job.place.offset as usize] {
                InMemory::Large(shared) => Lent::Now(Body::in_memory(shared.clone())),
                InMemory::Small(_) => unreachable!("{body_size} bytes are kept as a small body"),
            },
        }
    }

    /// Bytes that are kept only because they are being read.
    pub(super) fn lent(&self) -> u64 {
        match self {
            Store::Log(log) => log.lent(),
            Store::Memory(store) => store.loans.bytes(),
        }
    }

    #[inline]
    pub(super) fn keep_put(&mut self, place: Place, tube_size: usize, body_size: usize) {
        if let Store::Log(log) = self {
            log.files_mut()
                .keep_put(place, put_size(tube_size, body_size));
        }
    }

    pub(super) fn free_put(&mut self, place: Place, tube_size: usize, body_size: usize) {
        match self {
            Store::Log(log) => log
                .files_mut()
                .free_put(place, put_size(tube_size, body_size)),
            Store::Memory(store) => store.free(place),
        }
    }

    pub(super) fn keep(&mut self, place: Place, size: usize) {
        if let Store::Log(log) = self
            && !place.is_none()
        {
            log.files_mut().keep(place, size);
        }
    }

    pub(super) fn free(&mut self, place: Place, size: usize) {
        if let Store::Log(log) = self
            && !place.is_none()
        {
            log.files_mut().free(place, size);
        }
    }

    pub(super) fn keep_update(&mut self, place: Place) {
        if let Store::Log(log) = self
            && !place.is_none()
        {
            log.files_mut().keep_update(place);
        }
    }

    pub(super) fn free_update(&mut self, place: Place) {
        if let Store::Log(log) = self
            && !place.is_none()
        {
            log.files_mut().free_update(place);
        }
    }

    /// Bytes of memory that grow with the jobs, the index apart.
    pub(super) fn memory(&self) -> u64 {
        match self {
            Store::Log(_) => 0,
            Store::Memory(store) => {
                let slots = store.bodies.len() * size_of::<InMemory>();
                store.bytes + slots as u64 + store.loans.bytes()
            }
        }
    }
}

impl MemoryStore {
    fn keep(&mut self, body: &[u8]) -> Place {
        self.bytes += body.len() as u64;
        let kept = match body.len() > LARGE {
            false => InMemory::Small(body.into()),
            true => InMemory::Large(Arc::new(Bytes {
                bytes: body.into(),
                loan: Loan::new(&self.loans),
            })),
        };
        let offset = match self.free.pop() {
            Some(offset) => {
                self.bodies[offset as usize] = kept;
                offset
            }
            None => {
                self.bodies.push(kept);
                self.bodies.len() as u32 - 1
            }
        };
        Place { file: 1, offset }
    }

    fn free(&mut self, place: Place) {
        let nothing = InMemory::Small(Box::default());
        let body = std::mem::replace(&mut self.bodies[place.offset as usize], nothing);
        self.bytes -= body.bytes().len() as u64;
        if let InMemory::Large(shared) = body {
            shared.loan.let_go(shared.bytes.len() as u64);
        }
        self.free.push(place.offset);
    }
}

/// Bytes of the records of these changes; of a put with this body.
pub(super) fn size_of_records(changes: &[Change<'_>], body: &[u8], now: Now) -> usize {
    let sizes = changes
        .iter()
        .map(|change| record(change, body, now).size());
    sizes.sum()
}

/// The record of a change that is not a delete.
fn record<'a>(change: &Change<'a>, body: &'a [u8], now: Now) -> Record<'a> {
    match *change {
        Change::Put {
            id,
            tube,
            pri,
            delay,
            ttr,
            created,
            ..
        } => Record::Put {
            id,
            created_wall_ns: now.to_wall(created),
            pri,
            delay,
            ttr,
            tube,
            body,
        },
        Change::Update {
            id,
            state,
            pri,
            delay,
            deadline,
            counters,
        } => Record::Update {
            id,
            kick: NO_KICK,
            state,
            deadline_wall_ns: match state {
                JobState::Delayed => now.to_wall(deadline),
                _ => 0,
            },
            pri,
            delay,
            counters,
        },
        Change::Pause {
            tube,
            duration,
            until,
        } => Record::Pause {
            tube,
            until_wall_ns: if duration == 0 { 0 } else { now.to_wall(until) },
            duration,
        },
        Change::Attributes { id, list } => Record::Attributes { id, list },
        Change::Setting { class, name, value } => Record::Setting { class, name, value },
        Change::Delete { .. } => unreachable!("a delete is recorded by append_delete"),
    }
}
