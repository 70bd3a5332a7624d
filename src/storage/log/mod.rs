//! The open log: append, commit, sync. (The other files hold the rest of it.)
//!
//! Records go into a frame in memory; a commit writes the frame and makes it durable as the policy
//! says. One frame, one write and one sync for all commands of a loop turn.
//!
//! Invariants:
//! * `durable <= written`. `awaited` may be ahead of both (in the open frame), or behind `written`:
//!   markers and counters advance that without a reply that waits.
//! * A frame says only what was durable when it was formed.
//! * A segment is named in a durable manifest before a frame in it is acknowledged. The segment
//!   before it is durable before a frame says so.
//! * After the first failure every call fails: nothing is written, synced or acknowledged.
//!
//! | file | question |
//! |---|---|
//! | here | what does an append, a commit do? |
//! | `options` | how is it opened? |
//! | `bodies` | how is the body of a job read back? |
//! | `figures` | how far is it, and what has it done? |
//! | `files` | which files are there, and how much of each is alive? |
//! | `room`, `budget` | how much must stay free after a record, and where does it come from? |
//! | `mode` | which part has the log in replication, and what does it need for that? |
//! | `held` | what of it waits until others have it? |
//! | `stamps` | up to which entry of a replicated log does it go? |
//! | `rotate` | how does the log continue in a new segment? |
//! | `skip` | which ids are left out after the end of a history was lost? |
//! | `marker` | how does an idle or stopped log say what was durable? |
//! | `sync` | when does what was written become durable? |
//! | `compaction` | which files are rewritten, and how are their live records copied? |
//! | `maintain` | when are they chosen, and when is space set aside? |
//! | `switch` | what does a finished compaction change? |
//! | `spares`, `zeros` | files of space set aside, and the zeros written over them ahead |
//! | `kept` | what does one of several servers keep back, and when are puts refused for others? |
//! | `kicks` | which kicks would a crash leave half-done? |
//! | `cache` | which frames were written last? |
//! | `body` | how is a large body read without being held? |
//! | `spool` | where is a body while it is on its way? |
//! | `trail` | what does an archive need to know, and which files does it hold? |

mod bodies;
pub(in crate::storage) mod body;
mod budget;
pub(in crate::storage) mod cache;
pub(in crate::storage) mod compaction;
mod figures;
pub(in crate::storage) mod files;
pub(in crate::storage) mod held;
mod kept;
pub(in crate::storage) mod kicks;
mod maintain;
mod marker;
mod mode;
mod options;
mod room;
pub(in crate::storage) mod rotate;
pub(in crate::storage) mod skip;
pub(in crate::storage) mod spares;
pub(in crate::storage) mod spool;
pub(in crate::storage) mod stamps;
mod switch;
pub(in crate::storage) mod sync;
pub(in crate::storage) mod trail;
pub(in crate::storage) mod zeros;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::body::BodyError;
pub use self::options::LogOptions;
use crate::ErrorClass;
use crate::clock::Clock;
use crate::storage::disk::{DirLock, Fs};
use crate::storage::error::{OpenError, StoreError};
use crate::storage::format::{FRAME_OVERHEAD_MAX, FrameBuilder, FrameKind, Record, Stamp};
use crate::storage::log::budget::Budget;
use crate::storage::log::cache::FrameCache;
use crate::storage::log::compaction::Maintenance;
use crate::storage::log::files::Files;
use crate::storage::log::held::JOINED_SIZE_MAX;
use crate::storage::log::kicks::{KickUnderWay, Kicked, Kicks};
use crate::storage::log::mode::Mode;
use crate::storage::log::spares::Spares;
use crate::storage::log::spool::{Begun, Spool};
use crate::storage::log::stamps::Stamps;
use crate::storage::log::sync::{Pace, SyncPolicy, SyncThread};
use crate::storage::log::trail::Trail;
use crate::storage::standby;
use crate::types::{JobId, Place, Position, SegmentId, Time};

/// A frame that has grown to this size, bytes, is written before the turn ends.
const FRAME_SIZE_MAX: u64 = 1 << 20;

/// How much of the reserved space a record may use, and whether a reply waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A new job: may not use what existing jobs may need.
    Put,
    /// A change of a job's state: may use what was set aside, except what deletes need.
    Update,
    /// A pause or a setting that takes the place of none, for which no job has set anything aside: may
    /// use neither what deletes need nor what one update of each job does.
    Pause,
    /// A delete: may use everything except what compaction needs for its own records.
    Delete,
    /// A record that frees space: may use everything.
    Switch,
    /// Counters: no reply waits for them; space as for an update.
    Counters,
}

/// Why a record was not appended. The log is unchanged.
#[derive(Debug)]
pub enum AppendError {
    /// There is no room for it now, on the disk ([`ErrorClass::Full`]) or among the files that may
    /// be open ([`ErrorClass::Descriptors`]).
    NoRoom(ErrorClass),
    /// The log has failed.
    Failed(StoreError),
}

impl From<StoreError> for AppendError {
    fn from(error: StoreError) -> AppendError {
        AppendError::Failed(error)
    }
}

/// The segment that is being written.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) handle: u32,
    /// Bytes of space that the file has.
    pub(crate) capacity: u32,
    /// The checksum of its last frame.
    pub(crate) previous: u32,
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) dir: PathBuf,
    pub(crate) options: LogOptions,
    pub(crate) files: Files,
    pub(crate) active: Active,
    pub(crate) spares: Spares,
    pub(in crate::storage) frame: FrameBuilder,
    cache: FrameCache,
    scratch: Vec<u8>,
    /// Bodies on their way.
    spool: Spool,
    /// Replies wait for this position: the end of the last record that a reply depends on.
    awaited: Position,
    /// The end of the last frame written.
    pub(crate) written: Position,
    /// Everything before this position is known to be on stable storage.
    pub(crate) durable: Position,
    /// The end of the last marker frame. If it equals `written`, nothing was written since.
    marked: Position,
    /// The end of the last marker of a clean stop.
    stopped: Position,
    /// Ids from this one on are unused.
    pub(crate) next_id: JobId,
    pub(crate) budget: Budget,
    pub(in crate::storage) sync_thread: Option<SyncThread>,
    /// Whether the thread does the syncs even when replies wait for them.
    pub(crate) pace: Pace,
    pub(crate) maintenance: Maintenance,
    failed: Option<StoreError>,
    /// The unfinished kicks of the log.
    pub(crate) kicks: Kicks,
    /// Records appended by this process.
    pub(crate) records_written: u64,
    /// The records that come now stay in one frame: [`Log::join`].
    is_joined: bool,
    mode: Mode,
    /// The last entry of a replicated log in it.
    pub(in crate::storage) stamps: Stamps,
    /// Told of what is durable, and of new segments: one of each archive.
    trails: Vec<Arc<Trail>>,
    /// Held as long as the log is open.
    _lock: Option<Box<dyn DirLock>>,
}

/// Result of recovery: the files in order, the position at which to continue, and the facts it
/// found.
pub(crate) struct Resumed {
    pub(crate) files: Files,
    pub(crate) active: Active,
    pub(crate) spares: Spares,
    pub(crate) next_id: JobId,
    pub(crate) kicks: Kicks,
    /// Where the log continues; everything before is durable.
    pub(crate) end: Position,
    /// The last frame is a marker.
    pub(crate) is_marked: bool,
    /// That marker is one of a clean stop.
    pub(crate) clean_stop: bool,
    /// Up to which entry of a replicated log it goes.
    pub(crate) stamp: Stamp,
    pub(crate) lock: Box<dyn DirLock>,
}

impl Log {
    /// The log that continues at the end that recovery found.
    pub(crate) fn resume(
        fs: Arc<dyn Fs>,
        options: LogOptions,
        mut resumed: Resumed,
    ) -> Result<Log, OpenError> {
        let (handle, end) = (resumed.active.handle, resumed.end);
        resumed.files.set_open(handle);
        resumed.files.set_end(handle, end.offset());
        let when = |is_so: bool| if is_so { end } else { Position::ZERO };
        let clock = Clock::start();
        let sync_thread = match &options.waker {
            None => None,
            Some(waker) => Some(
                SyncThread::start(waker.clone(), clock)
                    .map_err(|error| OpenError::no_thread(&options.dir, &error))?,
            ),
        };
        Ok(Log {
            fs,
            dir: options.dir.clone(),
            files: resumed.files,
            active: resumed.active,
            spares: resumed.spares,
            frame: FrameBuilder::default(),
            cache: FrameCache::new(options.cache_size),
            scratch: Vec::new(),
            spool: Spool::default(),
            awaited: end,
            written: end,
            durable: end,
            marked: when(resumed.is_marked),
            stopped: when(resumed.clean_stop),
            next_id: resumed.next_id,
            budget: Budget::default(),
            sync_thread,
            pace: Pace::new(clock),
            maintenance: Maintenance::default(),
            failed: None,
            kicks: resumed.kicks,
            records_written: 0,
            is_joined: false,
            mode: match options.member {
                true => Mode::Follower { has_room: false },
                false => Mode::Single,
            },
            stamps: Stamps::resume(resumed.stamp),
            trails: Vec::new(),
            options,
            _lock: Some(resumed.lock),
        })
    }

    /// Append a record to the frame being built. [`Log::read_body`] sees it at once. It is durable
    /// only when [`Log::durable`] has passed the value that [`Log::awaited`] has after this call.
    pub fn append(
        &mut self,
        record: &Record<'_>,
        purpose: Purpose,
        wall_ns: u64,
    ) -> Result<Place, AppendError> {
        let size = record.size();
        self.begin_record(size as u64, purpose, wall_ns)?;
        let offset = self.frame.push(record);
        self.end_record(record, offset, size, purpose)
    }

    /// Append a put whose body begins with what is in the spool. `None`: that could not be read, and
    /// nothing was appended.
    ///
    /// # Errors
    /// As of an append.
    pub(crate) fn append_begun(
        &mut self,
        begun: &Begun,
        record: &Record<'_>,
        wall_ns: u64,
    ) -> Result<Option<Place>, AppendError> {
        let (size, purpose) = (record.size() + begun.size(), Purpose::Put);
        self.begin_record(size as u64, purpose, wall_ns)?;
        let mut frame = std::mem::take(&mut self.frame);
        let read = |bytes: &mut [u8]| self.read_begun(begun, bytes);
        let pushed = frame.push_behind(begun.size(), record, read);
        self.frame = frame;
        match pushed {
            Ok(offset) => Ok(Some(self.end_record(record, offset, size, purpose)?)),
            Err(error) => {
                let dir = self.dir.display();
                tracing::error!("a put is refused: its body cannot be read back in {dir}: {error}");
                Ok(None)
            }
        }
    }

    /// Make sure that there is a frame with room for a record of this size. It has two callers, as has
    /// `end_record`: a call of both costs a record 80 instructions.
    #[inline(always)]
    fn begin_record(
        &mut self,
        size: u64,
        purpose: Purpose,
        wall_ns: u64,
    ) -> Result<(), AppendError> {
        self.check()?;
        if !self.mode.has_room_for_entry() && !self.make_room(size, purpose, wall_ns)? {
            return Err(AppendError::NoRoom(self.lacking()));
        }
        assert!(
            !self.is_joined || self.fits(size),
            "records that stay together have room for all of them"
        );
        if !self.fits(size) && (self.is_holding() || !self.rotate(size, wall_ns)?) {
            return Err(AppendError::NoRoom(self.lacking()));
        }
        let file = self.files.get(self.active.handle);
        if self.frame.is_empty() {
            let at = file.entry.end;
            self.frame.begin(self.cache.buffer(), file.seed, at);
        }
        Ok(())
    }

    /// Note a record that is in the frame.
    #[inline(always)]
    fn end_record(
        &mut self,
        record: &Record<'_>,
        offset: u32,
        size: usize,
        purpose: Purpose,
    ) -> Result<Place, AppendError> {
        self.kicks.note(record);
        self.records_written += 1;
        if purpose != Purpose::Counters {
            let first = self.files.get(self.active.handle).entry.first;
            self.awaited = Position::new(first, offset + size as u32);
        }
        if let Record::Put { id, .. } = record {
            self.next_id = self.next_id.max(JobId(id.0.saturating_add(1)));
        }
        let place = Place {
            file: self.active.handle,
            offset,
        };
        if self.frame.size() >= FRAME_SIZE_MAX && !self.is_joined {
            self.write_frame()?;
        }
        Ok(place)
    }

    /// From now on until [`Log::part`] records go into one frame, so that a crash leaves all of
    /// them or none: `size` bytes of records at most. Needs as much room as records of this purpose.
    ///
    /// # Errors
    /// As of an append, and in a log that leads where `size` is above [`JOINED_SIZE_MAX`]; then nothing is
    /// joined.
    pub(crate) fn join_for(
        &mut self,
        size: u64,
        purpose: Purpose,
        wall_ns: u64,
    ) -> Result<(), AppendError> {
        self.check()?;
        // The first record begins the frame. Each later one asks for a frame's overhead again,
        // beside what this frame has taken.
        let size = size + FRAME_OVERHEAD_MAX as u64;
        let is_too_large = self.mode.held().is_some() && size > JOINED_SIZE_MAX;
        if is_too_large || !self.make_room(size, purpose, wall_ns)? {
            return Err(AppendError::NoRoom(self.lacking()));
        }
        if !self.fits(size) {
            let has_begun = match self.mode.held().filter(|_| self.is_holding()) {
                Some(held) => {
                    held.want(size);
                    false
                }
                None => self.rotate(size, wall_ns)?,
            };
            if !has_begun {
                return Err(AppendError::NoRoom(self.lacking()));
            }
        }
        self.is_joined = true;
        Ok(())
    }

    /// The records that come now may be in another frame.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn part(&mut self) -> Result<(), StoreError> {
        self.is_joined = false;
        if self.frame.size() >= FRAME_SIZE_MAX {
            self.write_frame()?;
        }
        Ok(())
    }

    /// Write the appended records and make them durable as the policy says. Does nothing if no
    /// reply waits for any of them, unless `all`.
    pub fn commit(&mut self, all: bool) -> Result<(), StoreError> {
        self.check()?;
        if !self.frame.is_empty() && (all || self.awaited > self.formed()) {
            self.write_frame()?;
        }
        if self.options.sync == SyncPolicy::Always && self.durable < self.written {
            self.start_sync()?;
        }
        Ok(())
    }

    /// Make everything that was written durable: at once, or on the thread if there is one that
    /// should do it.
    pub(crate) fn start_sync(&mut self) -> Result<(), StoreError> {
        let on_thread = self.pace.is_slow() || self.options.sync != SyncPolicy::Always;
        let waits = self.options.sync == SyncPolicy::Always;
        match &mut self.sync_thread {
            // What is written meanwhile is synced after the current sync.
            Some(thread) if waits && thread.is_busy() => Ok(()),
            Some(thread) if on_thread => {
                let file = self.files.get(self.active.handle).file.clone();
                thread.request(file, self.written);
                Ok(())
            }
            _ => self.sync_now(),
        }
    }

    /// Make everything that was written durable before returning.
    pub(crate) fn sync_now(&mut self) -> Result<(), StoreError> {
        self.wait_for_syncs()?;
        if self.durable < self.written {
            let begun = self.pace.now();
            let file = self.files.get(self.active.handle);
            if let Err(error) = file.file.sync() {
                let path = self.dir.join(file.entry.file_name());
                return Err(self.fail(StoreError::new("sync", &path, &error)));
            }
            self.pace.note_since(begun, self.size_of_sync(self.written));
            self.set_durable(self.written);
        }
        Ok(())
    }

    /// From now on tell these what is durable, and none that were told before. Each holds the newest
    /// segments that compaction has not rewritten. Those that several hold are the same files.
    pub fn publish_to(&mut self, trails: impl IntoIterator<Item = Arc<Trail>>) {
        let files = self
            .files
            .in_order()
            .rev()
            .map(|handle| self.files.get(handle));
        let plain = files.take_while(|file| !file.compacted && file.entry.generation == 0);
        let mut plain: Vec<_> = plain
            .map(|file| (file.entry.first, file.file.clone(), file.entry.end))
            .collect();
        plain.reverse();
        self.trails = trails.into_iter().collect();
        for trail in &self.trails {
            trail.attach(self.files.log(), plain.iter().cloned(), self.durable);
        }
    }

    /// True if each archive lacks something older than the limit: puts are refused.
    #[must_use]
    pub fn is_archive_late(&self, now: Time) -> bool {
        Trail::are_late(&self.trails, now)
    }

    pub(super) fn set_durable(&mut self, durable: Position) {
        self.durable = durable;
        self.stamps.note_durable(durable);
        for trail in &self.trails {
            trail.set_durable(durable);
        }
    }

    /// The log is no copy of a standby any more. Durable on return.
    pub(crate) fn end_standby(&mut self) -> Result<(), OpenError> {
        self.options.standby = false;
        standby::remove_marker(&*self.fs, &self.dir)
    }

    /// Bytes that a sync up to this position made durable, without those in an earlier segment.
    fn size_of_sync(&self, upto: Position) -> u64 {
        let from = if self.durable.segment() == upto.segment() {
            self.durable.offset()
        } else {
            0
        };
        u64::from(upto.offset().saturating_sub(from))
    }

    fn wait_for_syncs(&mut self) -> Result<(), StoreError> {
        while let Some(synced) = self.sync_thread.as_mut().and_then(SyncThread::wait) {
            self.take_sync(synced)?;
        }
        Ok(())
    }

    /// Take the results of the sync thread.
    pub(crate) fn poll_syncs(&mut self) -> Result<(), StoreError> {
        while let Some(synced) = self.sync_thread.as_mut().and_then(SyncThread::poll) {
            self.take_sync(synced)?;
        }
        Ok(())
    }

    fn take_sync(&mut self, synced: crate::storage::log::sync::Synced) -> Result<(), StoreError> {
        match synced.result {
            Ok(()) => {
                let size = self.size_of_sync(synced.upto);
                self.pace.note(synced.took_ns, size);
                self.set_durable(self.durable.max(synced.upto));
                Ok(())
            }
            Err(error) => {
                let dir = self.dir.clone();
                Err(self.fail(StoreError::new("sync a segment in", &dir, &error)))
            }
        }
    }

    /// The end of the last frame that was formed: written, unless it is held.
    fn formed(&self) -> Position {
        let entry = self.files.get(self.active.handle).entry;
        Position::new(entry.first, entry.end)
    }

    /// Write the frame being built, or hold it.
    pub(crate) fn write_frame(&mut self) -> Result<(), StoreError> {
        let Some(held) = self.mode.held_mut() else {
            return self.write_frame_now();
        };
        let handle = self.active.handle;
        let file = self.files.get(handle);
        let end = held.hold(&mut self.frame, self.durable, &mut self.active, file);
        self.files.set_end(handle, end);
        Ok(())
    }

    /// Write the frame being built, which is about the log's own files: it is no entry of a replicated
    /// log, and nothing is held.
    pub(crate) fn write_own_frame(&mut self) -> Result<(), StoreError> {
        self.budget.credit = 0;
        self.frame.set_stamp(self.stamps.own());
        self.write_frame_now()
    }

    fn write_frame_now(&mut self) -> Result<(), StoreError> {
        let previous = self.active.previous;
        let (bytes, checksum) = self.frame.finish(FrameKind::Data, self.durable, previous);
        let handle = self.active.handle;
        let start = self.files.get(handle).entry.end;
        self.write_at_end(&bytes)?;
        self.active.previous = checksum;
        let first = self.files.get(handle).entry.first;
        self.cache.push(Position::new(first, start), bytes);
        Ok(())
    }

    /// One write at the end of the open segment.
    pub(in crate::storage) fn write_at_end(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let handle = self.active.handle;
        let file = self.files.get(handle);
        let at = file.entry.end;
        match self.spares.write(&*file.file, bytes, at) {
            Ok(false) => {}
            Ok(true) => self.budget.credit = 0,
            Err(error) => {
                let path = self.dir.join(self.files.get(handle).entry.file_name());
                return Err(self.fail(StoreError::new("write to", &path, &error)));
            }
        }
        let end = at + bytes.len() as u32;
        self.files.set_end(handle, end);
        self.written = Position::new(self.files.get(handle).entry.first, end);
        Ok(())
    }

    /// The position of the next record.
    pub(crate) fn next_position(&self) -> Position {
        let entry = self.files.get(self.active.handle).entry;
        let offset = if self.frame.is_empty() {
            entry.end
        } else {
            entry.end + self.frame.bytes().len() as u32
        };
        Position::new(entry.first, offset)
    }

    /// Replies given now wait for this position.
    #[must_use]
    pub fn awaited(&self) -> Position {
        self.awaited
    }

    /// Everything before this position is on stable storage.
    #[must_use]
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// Replies that wait for a position up to this one may be sent, as the policy says.
    #[must_use]
    pub fn acknowledged(&self) -> Position {
        match self.options.sync {
            SyncPolicy::Always => self.durable,
            SyncPolicy::Interval(_) | SyncPolicy::Never => self.written,
        }
    }

    /// The end of the last frame written.
    #[must_use]
    pub fn written(&self) -> Position {
        self.written
    }

    /// Append that a kick has `left` jobs to kick from now on; 0 means that it is over. `number` is
    /// what the first such call of the kick returned, and `None` in that call; the updates of the
    /// kick carry it. Durable with the records that follow: if the log ends before the last update,
    /// [`Log::kicks_under_way`] lists the kick. At most [`kicks::KICKS_MAX`] may be unfinished at a
    /// time.
    ///
    /// # Errors
    /// Those of [`Log::append`].
    pub fn announce_kick(
        &mut self,
        number: Option<u16>,
        what: Kicked<'_>,
        left: u32,
        wall_ns: u64,
    ) -> Result<u16, AppendError> {
        let number = number.unwrap_or_else(|| self.kicks.free_number());
        let record = Record::Kick {
            number,
            tube: what.tube,
            state: what.state,
            left,
            due_wall_ns: what.due_wall_ns,
        };
        let purpose = match left {
            0 => Purpose::Delete,
            _ => Purpose::Update,
        };
        self.append(&record, purpose, wall_ns)?;
        Ok(number)
    }

    /// The kicks that are partly in the log.
    #[must_use]
    pub fn kicks_under_way(&self) -> &[KickUnderWay] {
        self.kicks.list()
    }

    /// True if a file may still contain a record that lay in one of the segments from `first` to
    /// `last` and that the record at `place` made dead. Only a compaction changes that.
    #[must_use]
    pub(crate) fn may_hold_what_died(
        &self,
        first: SegmentId,
        last: SegmentId,
        place: Place,
    ) -> bool {
        self.files.may_hold_what_died(first, last, place)
    }

    /// Have the file that holds `segment` rewritten, whatever that saves: what is dead in it is to go.
    pub(crate) fn rewrite_soon(&mut self, segment: SegmentId) {
        self.files.rewrite_soon(segment);
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Mark the log as failed, for good.
    pub(crate) fn fail(&mut self, error: StoreError) -> StoreError {
        self.failed.get_or_insert(error).clone()
    }
}
