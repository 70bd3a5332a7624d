//! The extended commands: what beanstalkd does not have.

use super::commands::Turn;
use super::failing::{Failure, Outcome};
use super::outcome::Logged;
use super::{Cleared, Flow, PolicySet, ScheduleChange};
use crate::attributes::Reason;
use crate::clearing::ClearedStates;
use crate::protocol::{Command, Op, PutWith, Refusal, Reply, SetPolicy, SetSchedule};
use crate::storage::{Begun, StoreError};
use crate::types::{JobId, Now, SECOND_NS};

impl Turn<'_> {
    /// Run one of them. Not inlined: the other commands of its caller would pay for it.
    #[inline(never)]
    pub(super) fn extended(
        &mut self,
        command: &Command<'_>,
        begun: Option<&Begun>,
    ) -> Result<Flow, StoreError> {
        match command {
            Command::PutWith(put) => self.put_with(put, begun),
            Command::Abort => self.abort(),
            Command::ListJobs(list) => self.list_jobs(list),
            Command::Batch { on_each, ids } => self.batch(*on_each, ids),
            Command::ReserveBatch { most, timeout } => {
                self.reserve(*timeout, Some(*most), Op::ReserveBatch)
            }
            Command::Fail { id, text } => self.fail(*id, text),
            Command::BuryWithReason { id, pri, text } => self.bury_with_reason(*id, *pri, text),
            Command::MoveJob { id, tube } => self.move_job(*id, tube),
            Command::ClearTube { tube, states } => self.clear_tube(tube, *states),
            Command::SetPolicy(set) => self.set_policy(set),
            Command::ScheduleSet(set) => self.schedule_set(set),
            Command::ScheduleDelete(name) => self.schedule_delete(name),
            other => unreachable!("{other:?} is a command of beanstalkd"),
        }
    }

    /// No reserve of the client waits: nothing is run for it while one does. Its connection has looked
    /// ahead, and has ended the wait before ([`Engine::half_closed`](super::Engine::half_closed)).
    fn abort(&mut self) -> Result<Flow, StoreError> {
        self.engine.count(Op::Abort);
        self.reply(Reply::Aborted)
    }

    /// A new job. A time at which it is ready becomes a delay: that is what the log has, and a clock
    /// that is set later does not change it.
    fn put_with(&mut self, put: &PutWith<'_>, begun: Option<&Begun>) -> Result<Flow, StoreError> {
        let delay = put.at.map_or(put.delay, |at| delay_until(at, self.now));
        let numbers = (put.pri, delay, put.ttr);
        if put.key.is_some() || put.group.is_some() {
            return self.put_attributed(put, delay, begun);
        }
        self.put(
            Op::PutWith,
            put.tube.as_deref(),
            numbers,
            (begun, &put.body),
        )
    }
}

impl Turn<'_> {
    /// A worker says what went wrong with a job that it has reserved.
    fn fail(&mut self, id: JobId, text: &[u8]) -> Result<Flow, StoreError> {
        self.engine.count(Op::Fail);
        if !self.has_memory_for_text(text) {
            return self.reply(Reply::OutOfMemory);
        }
        self.fail_job(id, Reason::Failed, None, Some(text))
    }

    /// The text stays in memory as long as its job.
    fn has_memory_for_text(&mut self, text: &[u8]) -> bool {
        let engine = &mut *self.engine;
        engine.memory_max.is_none() || engine.has_memory_for(text.len() as u64, self.now)
    }

    /// A delivery fails at its client's word.
    pub(super) fn fail_job(
        &mut self,
        id: JobId,
        reason: Reason,
        wish: Option<(u32, u32)>,
        text: Option<&[u8]>,
    ) -> Result<Flow, StoreError> {
        if !self.engine.queue.is_reserved_by(self.client, id) {
            return self.reply(Reply::NotFound);
        }
        let failure = Failure {
            id,
            reason,
            wish,
            text,
        };
        let outcome = self.engine.fail_delivery(&failure, self.now)?;
        // A client of beanstalkd, which knows nothing of policies, has released its job.
        let is_plain = reason == Reason::Released;
        let tube: Box<str> = match outcome {
            Outcome::DeadLettered => self.engine.queue.job(id).map_or("", |job| job.tube).into(),
            _ => Box::default(),
        };
        self.reply_and_serve(match outcome {
            Outcome::NoRoom => return self.reply(Reply::OutOfMemory),
            Outcome::Again => Reply::Released,
            _ if is_plain => Reply::Released,
            Outcome::Buried => Reply::Buried,
            Outcome::DeadLettered => Reply::DeadLettered(&tube),
            Outcome::Deleted => Reply::Deleted,
        })
    }

    /// A worker sets a job aside that it has reserved, and says why.
    fn bury_with_reason(&mut self, id: JobId, pri: u32, text: &[u8]) -> Result<Flow, StoreError> {
        self.engine.count(Op::BuryWithReason);
        if !self.has_memory_for_text(text) {
            return self.reply(Reply::OutOfMemory);
        }
        self.bury_with(id, pri, Some(text))
    }

    pub(super) fn bury_with(
        &mut self,
        id: JobId,
        pri: u32,
        text: Option<&[u8]>,
    ) -> Result<Flow, StoreError> {
        if !self.engine.queue.is_reserved_by(self.client, id) {
            return self.reply(Reply::NotFound);
        }
        match self.engine.bury_with(id, pri, text, self.now)? {
            Logged::Done => self.reply_and_serve(Reply::Buried),
            Logged::Full => self.reply(Reply::OutOfMemory),
        }
    }

    /// A job that no other client has reserved is in another tube from now on.
    fn move_job(&mut self, id: JobId, tube: &str) -> Result<Flow, StoreError> {
        self.engine.count(Op::MoveJob);
        if !self.engine.queue.deletable(self.client, id) {
            return self.reply(Reply::NotFound);
        }
        match self.engine.move_to(id, (tube, false), self.now)? {
            Logged::Done => self.reply_and_serve(Reply::Moved),
            Logged::Full => self.reply(Reply::OutOfMemory),
        }
    }

    /// All jobs of a tube in these states are gone, but for reserved ones.
    fn clear_tube(&mut self, tube: &str, states: ClearedStates) -> Result<Flow, StoreError> {
        self.engine.count(Op::ClearTube);
        match self.engine.clear_tube(tube, states, self.now)? {
            Cleared::Jobs(count) => self.reply(Reply::Cleared(count)),
            Cleared::NoRoom => self.reply(Reply::OutOfMemory),
        }
    }

    /// The policy of a tube, or of those that match a pattern.
    fn set_policy(&mut self, set: &SetPolicy) -> Result<Flow, StoreError> {
        self.engine.count(Op::SetPolicy);
        match self.engine.set_policy(&set.tubes, &set.policy, self.now)? {
            PolicySet::Done => self.reply_and_serve(Reply::PolicySet),
            PolicySet::NoRoom => self.reply(Reply::OutOfMemory),
        }
    }

    /// A schedule, new or in the place of the one with its name.
    fn schedule_set(&mut self, set: &SetSchedule) -> Result<Flow, StoreError> {
        self.engine.count(Op::ScheduleSet);
        let changed = self.engine.set_schedule(set, self.now)?;
        self.reply_change(Reply::ScheduleSet, &changed)
    }

    fn schedule_delete(&mut self, name: &str) -> Result<Flow, StoreError> {
        self.engine.count(Op::ScheduleDelete);
        let changed = self.engine.delete_schedule(name, self.now)?;
        self.reply_change(Reply::Deleted, &changed)
    }

    fn reply_change(
        &mut self,
        done: Reply<'_>,
        changed: &ScheduleChange,
    ) -> Result<Flow, StoreError> {
        self.reply(match changed {
            ScheduleChange::Done => done,
            ScheduleChange::NotFound => Reply::NotFound,
            ScheduleChange::NoRoom => Reply::OutOfMemory,
            ScheduleChange::Refused(_) => Reply::Refused(Refusal::BadFormat),
        })
    }
}

/// Seconds from now until this Unix time, rounded up: a job is never ready before it.
fn delay_until(at: u32, now: Now) -> u32 {
    let left_ns = (u64::from(at) * SECOND_NS as u64).saturating_sub(now.wall_ns);
    left_ns.div_ceil(SECOND_NS as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Time;

    #[test]
    fn a_time_becomes_a_delay_that_does_not_end_before_it() {
        let second = SECOND_NS as u64;
        for (wall_ns, at, delay) in [
            (0, 0, 0),
            (0, 7, 7),
            (1, 7, 7),
            (second - 1, 7, 7),
            (second, 7, 6),
            (7 * second, 7, 0),
            (7 * second + 1, 7, 0),
            (u64::MAX, u32::MAX, 0),
            (0, u32::MAX, u32::MAX),
        ] {
            let now = Now::new(Time(5), wall_ns);
            assert_eq!(delay_until(at, now), delay, "{at} at {wall_ns}");
        }
    }
}
