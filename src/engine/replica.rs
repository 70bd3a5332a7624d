//! One of several queues that hold the same jobs: it follows, or it leads.
//!
//! A queue that follows is as far as a start that has replayed its log, and stays there: entries of the
//! replicated log are applied one after another, each written as one frame. Time does not go on, and
//! no one is served. A queue that leads is an ordinary one whose frames are held until they are
//! committed (see `storage`: `held`): what it tells clients they may hear when its ticket is
//! acknowledged, as always. A queue never goes back from leading: it is dropped, with what it
//! held, and the log is opened again.

use std::ops::{Deref, DerefMut};

use super::standby::ApplyError;
use super::store::Store;
use super::{Engine, Mode, Options};
use crate::storage::format::{Record, Stamp, entry_records};
use crate::storage::{AppendError, BodyError, Formed, Held, Log, OpenError, Purpose, StoreError};
use crate::types::{JobId, Now, Ticket};

/// What replies of a queue that leads wait for: turns of its owner. That its log has been written up to
/// a position does not say that it still leads.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TurnAcks {
    /// The present turn. `None`: the owner counts none, and they wait for positions.
    pub(super) turn: Option<Ticket>,
    /// Replies of this turn, and of those before it, may leave.
    pub(super) acknowledged: Ticket,
}

/// A queue that follows, for what can be asked of it alone.
#[derive(Debug)]
pub struct Follower<'a>(&'a mut Engine);

/// A queue that leads, for what can be asked of it alone.
#[derive(Debug)]
pub struct Leader<'a> {
    acks: &'a mut TurnAcks,
    held: &'a mut Held,
}

impl Deref for Follower<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.0
    }
}

impl DerefMut for Follower<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        self.0
    }
}

impl Follower<'_> {
    /// The wall clock of the server that decided the next entries is ahead of the one here by this,
    /// nanoseconds; below 0 it is behind. Wall times in entries are moved by it, so that a delay is as long
    /// here.
    pub fn set_clock_ahead(&mut self, ns: i64) {
        self.0.mode = Mode::Follower { clock_ahead_ns: ns };
    }

    /// Apply one committed entry; empty `data` changes nothing. Written on return, and durable when
    /// [`Engine::durable_stamp`] has come to `stamp`.
    ///
    /// # Errors
    /// See [`ApplyError`]. If the disk is full nothing has changed, and the entry can be applied again. After
    /// the other errors the queue is of no use, but for its disk, which has nothing of the entry.
    pub fn apply_entry(&mut self, stamp: Stamp, data: &[u8], now: Now) -> Result<(), ApplyError> {
        let engine = &mut *self.0;
        let Some((records, size)) = entry_records(data).or(data.is_empty().then(Default::default))
        else {
            let what = format!("entry {} is not what a log has formed", stamp.index);
            return Err(ApplyError::Contradiction(what));
        };
        if !records.is_empty() {
            let purpose = purpose_of(&records);
            engine.make_way(purpose, now)?;
            let is_put = |record: &&Record<'_>| matches!(record, Record::Put { .. });
            let puts = records.iter().filter(is_put).count() as u64;
            let is_attributed = |record: &&Record<'_>| matches!(record, Record::Attributes { .. });
            let attributed = records.iter().filter(is_attributed).count() as u64;
            let log = engine.store.log().expect("a log");
            match log.begin_entry(size, (puts, attributed), purpose, now.wall_ns) {
                Ok(()) => {}
                Err(AppendError::NoRoom(class)) => return Err(ApplyError::NoRoom(class)),
                Err(AppendError::Failed(error)) => return Err(error.into()),
            }
        }
        for record in &records {
            if let Err(apart) = engine.apply_record(record, now) {
                engine.give_up(stamp, &apart);
                return Err(apart);
            }
        }
        engine.store.log().expect("a log").end_entry(stamp)?;
        engine.written_at = now.mono;
        Ok(())
    }

    /// From now on it leads: `last` is the last entry of the replicated log, and everything up to it is
    /// applied. Time goes on.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn lead(self, last: Stamp, now: Now) -> Result<(), StoreError> {
        let engine = self.0;
        engine.mode = Mode::Leader(TurnAcks::default());
        engine.started = now.mono;
        if let Some(log) = engine.store.log() {
            log.lead(last);
        }
        engine.queue.finish_replay(now.mono);
        engine.resume_clears(now);
        engine.begin_schedules(now);
        // Of a long one more is held than there may be room for: it goes on as it is released.
        engine.resume_kicks(now);
        engine.commit(now)
    }
}

impl Leader<'_> {
    /// A turn begins: replies that are made in it wait for its number, and not for positions of the log.
    /// Numbers grow.
    pub fn begin_turn(&mut self, turn: u64) {
        self.acks.turn = Some(Ticket::turn(turn));
    }

    /// Replies of this turn, and of those before it, may leave.
    pub fn acknowledge_turn(&mut self, turn: u64) {
        self.acks.acknowledged = Ticket::turn(turn);
    }

    /// Entries that are not this queue's were added: its next frame will be this entry.
    pub fn skip_to(&mut self, next: Stamp) {
        self.held.skip_to(next);
    }

    /// The decisions since the last call, to be proposed as the next entry.
    pub fn take_formed(&mut self) -> Option<Formed> {
        self.held.take_formed()
    }

    /// Refuse puts and pauses, or do not, because too few of the other servers have room.
    pub fn set_others_full(&mut self, is_so: bool) {
        self.held.set_others_full(is_so);
    }
}

impl Engine {
    /// Open the log of a member in `options.dir`, or make one there, and follow.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn follow(options: &Options, now: Now) -> Result<Engine, OpenError> {
        let mode = Mode::Follower { clock_ahead_ns: 0 };
        Engine::replay(options, mode, false, now)
    }

    /// True if it applies what another queue decides, and serves no one.
    #[must_use]
    pub fn is_following(&self) -> bool {
        matches!(self.mode, Mode::Follower { .. })
    }

    /// The term in which it leads, of a queue that is one of several and leads.
    #[must_use]
    pub fn leads_in(&self) -> Option<u64> {
        self.log()?.term_led()
    }

    /// True if it is one of several: it follows or leads.
    #[must_use]
    pub fn is_one_of_several(&self) -> bool {
        !matches!(self.mode, Mode::Single)
    }

    /// The body of a job as this queue's own log has it, also while it follows; `None`: there is no such
    /// job. It decides nothing: a job whose body is damaged is left as it is. A body is read as a
    /// whole.
    pub fn look_at_body(&mut self, id: JobId) -> Option<Result<&[u8], BodyError>> {
        let job = self.queue.job(id)?;
        let (place, tube_size, size) = (job.place, job.put_tube_size, job.body_size as usize);
        Some(self.store.read_body(place, id, tube_size, size))
    }

    /// The same, if it follows.
    pub fn as_follower(&mut self) -> Option<Follower<'_>> {
        self.is_following().then_some(Follower(self))
    }

    /// The same, if it leads.
    pub fn as_leader(&mut self) -> Option<Leader<'_>> {
        let Mode::Leader(acks) = &mut self.mode else {
            return None;
        };
        let held = self.store.log()?.held_mut()?;
        Some(Leader { acks, held })
    }

    /// Note that this state is that of the replicated log up to this entry. Durable on return.
    ///
    /// # Errors
    /// If the disk is full: then nothing has changed. Otherwise it has failed.
    pub fn stamp_as(&mut self, stamp: Stamp, now: Now) -> Result<(), AppendError> {
        match self.store.log() {
            Some(log) => log.stamp_as(stamp, now.wall_ns),
            None => Ok(()),
        }
    }

    /// Upkeep of the log of a follower, once a turn. Returns whether there is more to do at once.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn follow_on(&mut self, now: Now) -> Result<bool, StoreError> {
        self.commit(now)?;
        self.keep_log(now)
    }

    /// An entry is applied in part: the rest of the log must not be written any more.
    fn give_up(&mut self, stamp: Stamp, apart: &ApplyError) {
        if let Some(log) = self.store.log() {
            self.failed = Some(log.give_up_entry(stamp, &apart.to_string()));
        }
    }

    /// Everything up to this entry is committed: what was held of it is written.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn release(&mut self, upto: Stamp, now: Now) -> Result<(), StoreError> {
        if let Some(log) = self.store.log()
            && log.release(upto)?
        {
            self.written_at = now.mono;
            self.unsynced_since.get_or_insert(now.mono);
            // They may have waited for this.
            self.is_busy |= !self.kicks.is_empty() || !self.clears.is_empty();
            self.is_busy |= self.queue.has_failures();
        }
        Ok(())
    }

    /// Up to which entry the log goes, as far as it is written.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.log().map(Log::stamp).unwrap_or_default()
    }

    /// Up to which entry the log goes, as its last frame says.
    #[must_use]
    pub fn framed_stamp(&self) -> Stamp {
        self.log().map(Log::framed_stamp).unwrap_or_default()
    }

    /// Up to which entry the log goes, as far as it is durable.
    #[must_use]
    pub fn durable_stamp(&self) -> Stamp {
        self.log().map(Log::durable_stamp).unwrap_or_default()
    }

    /// True while something was decided that is not committed.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.log().is_some_and(Log::is_holding)
    }

    /// Have what one of several servers should have set aside and keep back, as far as the disk has room.
    /// Returns whether it is there: if not, others should not count on this one for puts. To be called
    /// once a turn.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn has_room_to_follow(&mut self, now: Now) -> Result<bool, StoreError> {
        let job_size_max = self.job_size_max;
        match self.store.log() {
            Some(log) => log.has_room_to_follow(job_size_max, now.wall_ns),
            None => Ok(true),
        }
    }

    /// Give back to the disk what is kept back for entries. Returns whether there was anything.
    pub fn spend_kept(&mut self) -> bool {
        self.store.log().is_some_and(Log::spend_kept)
    }

    /// Give back to the disk what the log has set aside beyond what must be there. Returns whether there
    /// was anything.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn squeeze(&mut self) -> Result<bool, StoreError> {
        self.store.log().map_or(Ok(false), Log::squeeze)
    }

    /// Something else has given space back to the disk: the log may ask it again at once.
    pub fn note_freed(&mut self) {
        if let Some(log) = self.store.log() {
            log.note_freed();
        }
    }

    /// Whether a request that holds `size` bytes can be run now. If not, no request should be run until
    /// nothing is held: [`Engine::wants_quiet`].
    #[must_use]
    pub fn has_room_for(&self, size: usize) -> bool {
        self.log().is_none_or(|log| log.has_room_for(size as u64))
    }

    /// True if the log waits for a moment in which nothing is held: no request should be run, and
    /// [`Engine::use_quiet`] be called in place of [`Engine::tick`].
    #[must_use]
    pub fn wants_quiet(&self) -> bool {
        self.log().is_some_and(Log::wants_quiet)
    }

    /// Do what waits for a moment in which nothing is held, if that is now.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn use_quiet(&mut self, now: Now) -> Result<(), StoreError> {
        self.check()?;
        if self.is_holding() {
            return Ok(());
        }
        self.make_way(Purpose::Update, now)?;
        self.keep_log(now)?;
        if let Some(log) = self.store.log() {
            log.use_quiet(now.wall_ns)?;
        }
        Ok(())
    }

    /// [`Engine::close`] of a queue that follows or leads: it adds nothing to the log, which is no one's
    /// entry.
    pub(super) fn leave(mut self, now: Now) -> Result<(), StoreError> {
        if self.is_holding() {
            return match self.store.log() {
                Some(log) => log.sync_now(),
                None => Ok(()),
            };
        }
        match self.store {
            Store::Log(log) => log.close(now.wall_ns),
            Store::Memory(_) => Ok(()),
        }
    }
}

/// Common purpose of the records of an entry: one that frees space may use the room set aside for
/// that, as the leader did.
fn purpose_of(records: &[Record<'_>]) -> Purpose {
    let is = |is_so: fn(&Record<'_>) -> bool| records.iter().any(is_so);
    if is(|record| matches!(record, Record::Put { .. })) {
        Purpose::Put
    } else if is(|record| matches!(record, Record::Delete { .. })) {
        // With updates among them it still frees more than it takes.
        Purpose::Delete
    } else {
        Purpose::Update
    }
}
