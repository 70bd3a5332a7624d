//! `kick`: of many jobs, in slices, so that no one waits long; in the log, all of it or nothing.
//!
//! Before the first of several updates the log is told how many are to come
//! ([`Log::announce_kick`]), and again before each slice; each of them bears the number of the
//! kick. A log that ends before the last one is that of a crash: anyone who opens it next finishes the
//! kick before anyone is served.
//!
//! On a full disk each update waits for compaction to make way, as a delete does; a kick is over
//! early only when no room is to be had.

use super::outcome::Logged;
use super::{Engine, ReplySink};
use crate::attributes::LIST_SIZE_MAX;
use crate::protocol::Reply;
use crate::queue::{Queue, TubeRef};
use crate::storage::format::attributes_size;
use crate::storage::{
    AppendError, KICKS_MAX, KickUnderWay, Kicked, Log, NO_KICK, Purpose, StoreError,
};
use crate::types::{ClientId, JobId, JobState, Now, Time};

/// This many jobs are kicked before others get their turn.
const KICKS_A_SLICE: u32 = 256;
/// The same where deliveries are counted.
const COUNTED_A_SLICE: u32 = 8;
/// Bytes of the update of each job of a slice, and of what is announced before and after them.
const UPDATE_SIZE: u64 = 56;
const ANNOUNCED_SIZE: u64 = 1024;

/// A kick that is under way, or waits for others to be over.
#[derive(Debug)]
pub(super) struct Kick {
    /// Who is told, unless it has gone.
    client: Option<ClientId>,
    tube: TubeRef,
    /// At most this many jobs.
    bound: u32,
    part: Option<Part>,
}

/// Progress of a kick.
#[derive(Debug)]
struct Part {
    /// Which jobs: the buried ones, or without buried ones the delayed ones.
    state: JobState,
    left: u32,
    kicked: u64,
    /// Its number in the log, once it was announced.
    number: Option<u16>,
}

impl Kick {
    pub(super) fn forget(&mut self, client: ClientId) {
        if self.client == Some(client) {
            self.client = None;
        }
    }
}

/// How a slice went.
#[derive(Debug, PartialEq, Eq)]
enum Slice {
    /// There is more to do.
    Part,
    /// It was the last one.
    Last,
}

impl Engine {
    /// Begin a kick of at most `bound` jobs of a tube. `Some`: it is over, and this many were kicked;
    /// otherwise the client is told later.
    pub(super) fn kick(
        &mut self,
        client: ClientId,
        (tube, bound): (&str, u32),
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Option<u64>, StoreError> {
        if !self.queue.tube_exists(tube) {
            return Ok(Some(0));
        }
        let mut kick = Kick {
            client: Some(client),
            tube: self.queue.pin_tube(tube),
            bound,
            part: None,
        };
        // A new segment has room for what it has to say of this many.
        if self.kicks.len() < KICKS_MAX
            && self.can_kick(&kick, now)?
            && self.kick_slice(&mut kick, now, sink)? == Slice::Last
        {
            self.queue.unpin(kick.tube, now.mono);
            return Ok(Some(kick.part.map_or(0, |part| part.kicked)));
        }
        self.kicks.push_back(kick);
        self.is_busy = true;
        Ok(None)
    }

    /// A slice of one of the kicks that are under way. Says whether all are done.
    pub(super) fn go_on_kicking(
        &mut self,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<bool, StoreError> {
        let Some(mut kick) = self.kicks.pop_front() else {
            return Ok(true);
        };
        if !self.can_kick(&kick, now)? {
            self.kicks.push_front(kick);
            return Ok(true);
        }
        if self.kick_slice(&mut kick, now, sink)? == Slice::Part {
            // Those that wait come behind all that take turns.
            let last = self.kicks.len().min(KICKS_MAX - 1);
            self.kicks.insert(last, kick);
            return Ok(false);
        }
        if let (Some(client), Some(part)) = (kick.client, &kick.part) {
            sink.reply(client, self.after(), Reply::KickedCount(part.kicked));
        }
        self.queue.unpin(kick.tube, now.mono);
        Ok(self.kicks.is_empty())
    }

    /// Whether there is room for a slice: a log that holds its frames has no more than the rest of its
    /// open segment, and is asked again when they are released.
    fn can_kick(&mut self, kick: &Kick, now: Now) -> Result<bool, StoreError> {
        let (jobs, size_each) = self.slice_of(&kick.tube);
        let size = u64::from(jobs) * size_each + ANNOUNCED_SIZE;
        let log = self.store.log();
        log.map_or(Ok(true), |log| log.have_room(size, now.wall_ns))
    }

    /// Jobs of a slice, and bytes of the records of each at most. Where deliveries are counted, what a
    /// job has is logged too.
    fn slice_of(&self, tube: &TubeRef) -> (u32, u64) {
        let policy = self.queue.policy_of(self.queue.pinned_name(tube));
        match policy {
            Some((_, policy)) if policy.acts_on_failures() => {
                let list_size = attributes_size(LIST_SIZE_MAX) as u64;
                (COUNTED_A_SLICE, UPDATE_SIZE + list_size)
            }
            _ => (KICKS_A_SLICE, UPDATE_SIZE),
        }
    }

    /// Finish the kicks in the middle of which the log ended. No one is served yet.
    pub(super) fn finish_kicks(&mut self, now: Now) -> Result<(), StoreError> {
        self.resume_kicks(now);
        while !self.go_on_kicking(now, &mut NoOne)? {
            self.commit(now)?;
        }
        self.commit(now)
    }

    /// Go on with the kicks in the middle of which the log ended, in the next ticks.
    pub(super) fn resume_kicks(&mut self, now: Now) {
        let under_way = self.log().map(Log::kicks_under_way).unwrap_or_default();
        let under_way = Vec::from(under_way);
        for kick in &under_way {
            let KickUnderWay { tube, left, .. } = kick;
            tracing::info!("finishing a kick that was interrupted: {left} more jobs of {tube:?}");
            self.let_fall_due(now.to_mono(kick.due_wall_ns));
            let kick = self.resumed(kick);
            self.kicks.push_back(kick);
            self.is_busy = true;
        }
    }

    /// Jobs that were due when the kick was logged had become ready; the log does not say so.
    fn let_fall_due(&mut self, at: Time) {
        // No one waits yet, so no one is to be told anything.
        while self.queue.tick(at, usize::MAX, &mut Vec::new()) {}
    }

    fn resumed(&mut self, kick: &KickUnderWay) -> Kick {
        Kick {
            client: None,
            tube: self.queue.pin_tube(&kick.tube),
            bound: kick.left,
            part: Some(Part {
                state: kick.state,
                left: kick.left,
                kicked: 0,
                number: Some(kick.number()),
            }),
        }
    }

    fn kick_slice(
        &mut self,
        kick: &mut Kick,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Slice, StoreError> {
        let begun = self.begun(&kick.tube, kick.bound);
        let part = kick.part.get_or_insert(begun);
        if let Logged::Full = self.announce(&kick.tube, part, now)? {
            return self.end_early(&kick.tube, part, now);
        }
        let (jobs, _) = self.slice_of(&kick.tube);
        for _ in 0..part.left.min(jobs) {
            if !self.kick_one(&kick.tube, part, now)? {
                return self.end_early(&kick.tube, part, now);
            }
            (part.left, part.kicked) = (part.left - 1, part.kicked + 1);
            self.serve_waiting(1, now, sink)?;
        }
        Ok(if part.left == 0 {
            Slice::Last
        } else {
            Slice::Part
        })
    }

    /// A kick as it begins: of the jobs that are there now.
    fn begun(&self, tube: &TubeRef, bound: u32) -> Part {
        let counts = self.queue.tube_counts(tube);
        let (state, present) = match counts.buried {
            0 => (JobState::Delayed, counts.delayed),
            buried => (JobState::Buried, buried),
        };
        Part {
            state,
            left: u32::try_from(present).unwrap_or(u32::MAX).min(bound),
            kicked: 0,
            number: None,
        }
    }

    fn next_to_kick(&self, tube: &TubeRef, state: JobState) -> Option<JobId> {
        match state {
            JobState::Buried => self.queue.first_buried(tube),
            _ => self.queue.first_delayed(tube),
        }
    }

    /// Kick the next job. `false`: no job is left to kick, or the log has no room.
    fn kick_one(&mut self, tube: &TubeRef, part: &Part, now: Now) -> Result<bool, StoreError> {
        let Some(id) = self.next_to_kick(tube, part.state) else {
            return Ok(false);
        };
        let Some(change) = self.queue.decide_kick(id) else {
            unreachable!("job {id} is the next to be kicked and cannot be")
        };
        let kick = part.number.unwrap_or(NO_KICK);
        let logged = self.log_kick(&change, id, kick, now)?;
        Ok(matches!(logged, Logged::Done))
    }

    /// Have the log know how many updates of the kick are to come. One of a single job needs no
    /// word.
    fn announce(
        &mut self,
        tube: &TubeRef,
        part: &mut Part,
        now: Now,
    ) -> Result<Logged, StoreError> {
        if part.left == 0 || part.number.is_none() && part.left == 1 {
            return Ok(Logged::Done);
        }
        let Some(first) = self.next_to_kick(tube, part.state) else {
            return Ok(Logged::Done);
        };
        self.make_way(Purpose::Update, now)?;
        let (Some(log), queue) = (self.store.log(), &self.queue) else {
            return Ok(Logged::Done);
        };
        let kick = Kicked {
            tube: queue.pinned_name(tube),
            state: part.state,
            due_wall_ns: due_before(queue, first, now),
        };
        match log.announce_kick(part.number, kick, part.left, now.wall_ns) {
            Ok(number) => part.number = Some(number),
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        Ok(Logged::Done)
    }

    /// Have the log know that no more of the kick comes.
    fn end_early(&mut self, tube: &TubeRef, part: &Part, now: Now) -> Result<Slice, StoreError> {
        let Some(number) = part.number else {
            return Ok(Slice::Last);
        };
        self.make_way(Purpose::Delete, now)?;
        let (Some(log), queue) = (self.store.log(), &self.queue) else {
            return Ok(Slice::Last);
        };
        let kick = Kicked {
            tube: queue.pinned_name(tube),
            state: part.state,
            due_wall_ns: 0,
        };
        match log.announce_kick(Some(number), kick, 0, now.wall_ns) {
            Ok(_) => Ok(Slice::Last),
            // Not even what is set aside for deletes has room for it.
            Err(AppendError::NoRoom(class)) => {
                tracing::warn!(
                    "{}: a kick of tube {:?} is over, and after a crash it would go on; {}",
                    class.lack(),
                    kick.tube,
                    class.relief()
                );
                Ok(Slice::Last)
            }
            Err(AppendError::Failed(error)) => Err(error),
        }
    }
}

/// The wall time up to which delayed jobs have become ready when `first` is the first that has not:
/// it may be overdue itself, by less than a turn of the loop. 0 if that one is not delayed.
fn due_before(queue: &Queue, first: JobId, now: Now) -> u64 {
    let deadline = queue.job(first).and_then(|job| job.deadline);
    deadline.map_or(0, |deadline| {
        now.wall_ns.min(now.to_wall(deadline).saturating_sub(1))
    })
}

/// No one is connected, so no one is told anything.
struct NoOne;

impl ReplySink for NoOne {
    fn reply(&mut self, _: ClientId, _: crate::types::Ticket, _: Reply<'_>) {}
}
