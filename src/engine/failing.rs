//! Deliveries that fail, and jobs that are set aside: what the policies of tubes say becomes of them.
//!
//! A delivery fails by `release`, by `fail`, by its time, or because its client has left. As long as the
//! limit of its tube is not reached the job is ready again, after the delay of the policy; with the
//! last one it is *set aside*: buried, moved to the dead-letter tube, or deleted. What is logged of
//! one job is one frame.
//!
//! How often a job was delivered is counted by its reserves. In a tube with a limit each reserve is
//! logged before its reply leaves, so that a crash does not take it back. A job of which a crash has
//! ended the last delivery, or whose limit was lowered, is set aside when it would be handed out.
//!
//! A job is a dead letter once: if its limit is reached in the dead-letter tube too, it is buried
//! there. So dead-letter tubes that name each other move nothing in circles.
//!
//! Where the disk is too full to say where a job came from, it is buried with a plain record, for which
//! every job has room set aside; without that it stays ready, and is handed out to no one.

use std::time::Duration;

use super::Engine;
use super::outcome::Logged;
use crate::attributes::{Attributes, LIST_SIZE_MAX, RESERVED_SINCE, Reason};
use crate::policy::{DeadLetter, Expired, Policy};
use crate::queue::Queue;
use crate::storage::format::{attributes_size, delete, update};
use crate::storage::{AppendError, NO_KICK, Purpose, StoreError};
use crate::types::{Change, JobId, JobState, Now, SECOND_NS};

/// A delivery that has failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure<'a> {
    pub(super) id: JobId,
    pub(super) reason: Reason,
    /// Priority, and delay in seconds, that the client asks for. A delay of 0 is that of the policy.
    pub(super) wish: Option<(u32, u32)>,
    /// What the client says of it.
    pub(super) text: Option<&'a [u8]>,
}

/// Where a job is after a delivery that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is ready, or delayed.
    Again,
    Buried,
    /// It is in another tube.
    DeadLettered,
    Deleted,
    /// There was no room to say so; nothing has changed.
    NoRoom,
}

/// What is logged of a job.
struct Decision {
    id: JobId,
    reason: Reason,
    update: Option<Change<'static>>,
    list: Option<Vec<u8>>,
    outcome: Outcome,
}

impl Decision {
    /// Bytes of its records.
    fn size(&self) -> usize {
        let update = self.update.map_or(0, |_| update::SIZE);
        let list = self
            .list
            .as_ref()
            .map_or(0, |list| attributes_size(list.len()));
        match self.outcome {
            Outcome::Deleted => delete::SIZE,
            _ => update + list,
        }
    }

    fn purpose(&self) -> Purpose {
        match self.outcome {
            Outcome::Deleted => Purpose::Delete,
            _ => Purpose::Update,
        }
    }
}

impl Engine {
    /// Decide what becomes of the jobs whose deliveries have ended by themselves. To be called before
    /// anyone is served.
    #[inline(always)]
    pub(super) fn settle_failures(&mut self, now: Now) -> Result<(), StoreError> {
        match self.queue.has_failures() {
            true => self.settle_all_failures(now),
            false => Ok(()),
        }
    }

    fn settle_all_failures(&mut self, now: Now) -> Result<(), StoreError> {
        while let Some((id, reason)) = self.queue.take_failure() {
            // While the decision waited, another client may have reserved the job by its id.
            if self
                .queue
                .job(id)
                .is_none_or(|job| job.state != JobState::Ready)
            {
                continue;
            }
            let failure = Failure {
                id,
                reason,
                wish: None,
                text: None,
            };
            if self.has_to_wait() {
                self.queue.put_back_failure(id, reason);
                return Ok(());
            }
            self.fail_delivery(&failure, now)?;
        }
        Ok(())
    }

    /// Whether what is decided here has to wait until frames that are held are written: there is no room
    /// beside them.
    pub(super) fn has_to_wait(&self) -> bool {
        let size = update::SIZE + attributes_size(LIST_SIZE_MAX);
        self.log()
            .is_some_and(|log| !log.has_room_beside_held(size))
    }

    /// Decide what becomes of a job whose delivery has failed, log and apply it.
    pub(super) fn fail_delivery(
        &mut self,
        failure: &Failure<'_>,
        now: Now,
    ) -> Result<Outcome, StoreError> {
        let decision = self.decide_failure(failure, now);
        self.make_way(decision.purpose(), now)?;
        self.carry_out_alone(&decision, failure.text.is_none(), now)
    }

    /// Bytes that the records of a failure take.
    pub(super) fn failure_size(&mut self, failure: &Failure<'_>, now: Now) -> usize {
        self.decide_failure(failure, now).size()
    }

    /// The same as [`Engine::fail_delivery`] in a frame that has room for it.
    pub(super) fn fail_in_frame(
        &mut self,
        failure: &Failure<'_>,
        now: Now,
    ) -> Result<Logged, StoreError> {
        let decision = self.decide_failure(failure, now);
        self.carry_out(&decision, now)
    }

    fn decide_failure(&mut self, failure: &Failure<'_>, now: Now) -> Decision {
        let Failure {
            id, reason, text, ..
        } = *failure;
        let policy = self.queue.policy_of_job(id).cloned().unwrap_or_default();
        let failures = self.queue.deliveries(id);
        if policy.is_spent(failures) {
            return self.decide_set_aside(failure, &policy.dead_letter, now);
        }
        let pri = self.queue.job(id).map_or(0, |job| job.pri);
        let (pri, delay) = failure.wish.unwrap_or((pri, 0));
        let delay = match delay {
            0 => policy.retry_delay(id, failures.max(1)),
            seconds => Duration::from_secs(seconds.into()),
        };
        let by_client = is_by_client(reason);
        let again = (self.queue).decide_again(id, (pri, delay), by_client, now.mono);
        let list = text.map(|text| {
            self.list_with(id, |had| Attributes {
                reason: Some(reason),
                text: Some(text),
                ..had
            })
        });
        Decision {
            id,
            reason,
            // Who has left, or whose time ran out, leaves the job as it is now, unless it is to wait.
            update: again.filter(|_| by_client || !delay.is_zero()),
            list,
            outcome: Outcome::Again,
        }
    }

    /// The list of what a job has, edited.
    fn list_with<'a>(
        &'a self,
        id: JobId,
        edit: impl FnOnce(Attributes<'a>) -> Attributes<'a>,
    ) -> Vec<u8> {
        list_with(&self.queue, id, edit)
    }

    fn decide_set_aside(
        &mut self,
        failure: &Failure<'_>,
        target: &DeadLetter,
        now: Now,
    ) -> Decision {
        let Failure {
            id, reason, text, ..
        } = *failure;
        let mut decision = Decision {
            id,
            reason,
            update: None,
            list: None,
            outcome: Outcome::Deleted,
        };
        let to = match target {
            DeadLetter::Delete => return decision,
            DeadLetter::Tube(tube) if self.may_take_dead_letter(tube, id, now) => Some(&**tube),
            DeadLetter::Tube(_) | DeadLetter::Bury => None,
        };
        let Some(job) = self.queue.job(id) else {
            unreachable!("job {id} is set aside and does not exist")
        };
        let pri = failure.wish.map_or(job.pri, |(pri, _)| pri);
        let failures = self.queue.deliveries(id);
        let list = self.list_with(id, |had| {
            let aside = Attributes {
                failures: Some(failures),
                reason: Some(reason),
                text: text.or(had.text),
                ..counted_again(had, job.counters.reserves, now)
            };
            match to {
                None => aside,
                Some(_) => Attributes {
                    tube: to,
                    counted_since_wall_ns: Some(now.wall_ns),
                    dead_lettered_from: Some(job.tube),
                    ..aside
                },
            }
        });
        decision.list = Some(list);
        let by_client = is_by_client(reason);
        (decision.update, decision.outcome) = match to {
            Some(_) => {
                let ready = (pri, Duration::ZERO);
                let ready = self.queue.decide_again(id, ready, by_client, now.mono);
                (ready, Outcome::DeadLettered)
            }
            None => (self.queue.decide_bury(id, pri), Outcome::Buried),
        };
        decision
    }

    /// Whether a job may go to this tube as a dead letter: not if it is one already, nor into the tube
    /// that it is in.
    fn may_take_dead_letter(&mut self, tube: &str, id: JobId, now: Now) -> bool {
        let had = self.queue.attributes(id).and_then(Attributes::decode);
        let is_one = had.is_some_and(|had| had.dead_lettered_from.is_some());
        let is_here = self.queue.job(id).is_some_and(|job| job.tube == tube);
        !is_one && !is_here && self.has_room_for_tube(tube, now)
    }

    /// Log and apply a decision, in a frame of its own. `or_bury`: where there is no room for all of it,
    /// the job may be buried with what every job has set aside.
    fn carry_out_alone(
        &mut self,
        decision: &Decision,
        or_bury: bool,
        now: Now,
    ) -> Result<Outcome, StoreError> {
        let joined = self
            .store
            .join_size(decision.size(), decision.purpose(), now);
        let logged = match joined {
            Ok(()) => self.carry_out(decision, now)?,
            Err(AppendError::NoRoom(_)) => Logged::Full,
            Err(AppendError::Failed(error)) => return Err(error),
        };
        self.store.part()?;
        if let Logged::Done = logged {
            return Ok(decision.outcome);
        }
        let is_aside = matches!(decision.outcome, Outcome::Buried | Outcome::DeadLettered);
        if or_bury
            && is_aside
            && let Some(job) = self.queue.job(decision.id)
            && let Some(bury) = self.queue.decide_bury(decision.id, job.pri)
            && let Logged::Done = self.update(&bury, Purpose::Update, now)?
        {
            self.queue.note_failure(decision.id, decision.reason, true);
            return Ok(Outcome::Buried);
        }
        Ok(Outcome::NoRoom)
    }

    fn carry_out(&mut self, decision: &Decision, now: Now) -> Result<Logged, StoreError> {
        let id = decision.id;
        let is_aside = decision.outcome != Outcome::Again;
        if decision.outcome == Outcome::Deleted {
            self.queue.note_failure(id, decision.reason, true);
            return self.log_delete(id, now);
        }
        if let Some(update) = &decision.update
            && let Logged::Full = self.log_update(update, NO_KICK, Purpose::Update, now)?
        {
            return Ok(Logged::Full);
        }
        self.queue.note_failure(id, decision.reason, is_aside);
        let Some(list) = &decision.list else {
            return Ok(Logged::Done);
        };
        self.log_joined(&Change::Attributes { id, list }, now)?;
        Ok(Logged::Done)
    }

    /// Why a ready job must not be handed out: its limit is reached, or it has expired.
    #[inline(always)]
    pub(super) fn is_over(&self, id: JobId, now: Now) -> Option<Reason> {
        match self.queue.has_policies() {
            true => self.is_over_by_policy(id, now),
            false => None,
        }
    }

    fn is_over_by_policy(&self, id: JobId, now: Now) -> Option<Reason> {
        let policy = self.queue.policy_of_job(id)?;
        if self.is_expired(id, policy, now) {
            return Some(Reason::Expired);
        }
        if !policy.is_spent(self.queue.deliveries(id)) {
            return None;
        }
        // Of the last delivery no more is known than that it is over.
        Some(Reason::Disconnected)
    }

    pub(super) fn is_expired(&self, id: JobId, policy: &Policy, now: Now) -> bool {
        policy.expire_after.is_some()
            && self
                .queue
                .job(id)
                .is_some_and(|job| job.state == JobState::Ready)
            && self.expires_at(id, now).is_some_and(|at| at <= now.wall_ns)
    }

    /// When a job expires unless it is reserved before: wall time, nanoseconds since 1970. `None`: never,
    /// or it was reserved since its put, or since it became a dead letter.
    pub(super) fn expires_at(&self, id: JobId, now: Now) -> Option<u64> {
        let after = self.queue.policy_of_job(id)?.expire_after?;
        let job = self.queue.job(id)?;
        let had = self.queue.attributes(id).and_then(Attributes::decode);
        let had = had.unwrap_or_default();
        let reserves_before = match had.dead_lettered_from {
            Some(_) => had.counted_from.unwrap_or(0),
            None => 0,
        };
        if job.state == JobState::Reserved || job.counters.reserves > reserves_before {
            return None;
        }
        let since = match had.counted_since_wall_ns {
            Some(RESERVED_SINCE) if had.dead_lettered_from.is_some() => return None,
            Some(since) => self.wall.as_set_now(since, now),
            None => now.to_wall(job.created),
        };
        Some(since.saturating_add(u64::from(after) * SECOND_NS as u64))
    }

    /// A job that must not be handed out, for this reason, is set aside.
    pub(super) fn set_aside(
        &mut self,
        id: JobId,
        reason: Reason,
        now: Now,
    ) -> Result<Logged, StoreError> {
        let Some(policy) = self.queue.policy_of_job(id).cloned() else {
            return Ok(Logged::Done);
        };
        let is_deleted = reason == Reason::Expired && policy.expired == Expired::Delete;
        let target = match is_deleted {
            true => &DeadLetter::Delete,
            false => &policy.dead_letter,
        };
        let failure = Failure {
            id,
            reason,
            wish: None,
            text: None,
        };
        let decision = self.decide_set_aside(&failure, target, now);
        self.make_way(decision.purpose(), now)?;
        Ok(match self.carry_out_alone(&decision, true, now)? {
            Outcome::NoRoom => Logged::Full,
            _ => Logged::Done,
        })
    }

    /// A worker, or an operator, buries a job: its deliveries are counted from now on, and `text` says
    /// why if it is given.
    pub(super) fn bury_with(
        &mut self,
        id: JobId,
        pri: u32,
        text: Option<&[u8]>,
        now: Now,
    ) -> Result<Logged, StoreError> {
        let Some(bury) = self.queue.decide_bury(id, pri) else {
            unreachable!("job {id} is buried and does not exist")
        };
        let reserves = self.queue.job(id).map_or(0, |job| job.counters.reserves);
        let failures = self.queue.deliveries(id);
        let list = self.list_with(id, |had| Attributes {
            failures: Some(failures),
            reason: Some(Reason::Buried),
            text: text.or(had.text),
            ..counted_again(had, reserves, now)
        });
        let mut logged = self.log_with_list(&bury, (id, &list), NO_KICK, now)?;
        if text.is_none() && matches!(logged, Logged::Full) {
            // As where no policy is: every job has room for this set aside.
            logged = self.update(&bury, Purpose::Update, now)?;
        }
        if let Logged::Done = logged {
            self.queue.note_failure(id, Reason::Buried, false);
        }
        Ok(logged)
    }

    /// A job is in another tube from now on, in the state that it has or ready; its deliveries are counted
    /// from now on. One that is in that tube already stays as it is.
    pub(super) fn move_to(
        &mut self,
        id: JobId,
        (tube, kick): (&str, bool),
        now: Now,
    ) -> Result<Logged, StoreError> {
        let Some(job) = self.queue.job(id) else {
            unreachable!("job {id} is moved and does not exist")
        };
        if job.tube == tube {
            return Ok(Logged::Done);
        }
        let reserves = job.counters.reserves;
        if !self.has_room_for_tube(tube, now) {
            return Ok(Logged::Full);
        }
        let list = self.list_with(id, |had| Attributes {
            tube: Some(tube),
            ..counted_from_now(had, reserves, now)
        });
        let kick = kick.then(|| self.queue.decide_kick(id)).flatten();
        self.log_sent((id, &list), kick.as_ref(), now)
    }

    /// Log and apply what a job has that is in another tube, with its kick if there is one.
    fn log_sent(
        &mut self,
        (id, list): (JobId, &[u8]),
        kick: Option<&Change<'_>>,
        now: Now,
    ) -> Result<Logged, StoreError> {
        match kick {
            Some(kick) => self.log_with_list(kick, (id, list), NO_KICK, now),
            None => self.log_with_counters(&Change::Attributes { id, list }, id, now),
        }
    }

    /// Log and apply what a job has, with its counters, to which that refers and which may not be in the
    /// log yet: both or neither.
    fn log_with_counters(
        &mut self,
        attributes: &Change<'_>,
        id: JobId,
        now: Now,
    ) -> Result<Logged, StoreError> {
        let snapshot = self.queue.snapshot(id);
        let reserves = self.queue.job(id).map_or(0, |job| job.counters.reserves);
        let Some(snapshot) = snapshot.filter(|_| reserves > 0) else {
            return self.log_list_alone(attributes, now);
        };
        self.make_way(Purpose::Update, now)?;
        let both = [snapshot, *attributes];
        match self.store.join_for(&both, &[], Purpose::Update, now) {
            Ok(()) => {}
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        let logged = self.log_snapshot(id, now)?;
        if let Logged::Done = logged {
            self.log_joined(attributes, now)?;
        }
        self.store.part()?;
        Ok(logged)
    }

    /// A job that was set aside is ready again, in the tube that it came from, and its deliveries are
    /// counted from now on; one that was buried otherwise is kicked. What was said of its last failure
    /// stays. `None`: it was not set aside.
    pub(super) fn send_back(&mut self, id: JobId, now: Now) -> Result<Option<Logged>, StoreError> {
        let Some(job) = self.queue.job(id) else {
            return Ok(None);
        };
        let reserves = job.counters.reserves;
        let had = self.queue.attributes(id).and_then(Attributes::decode);
        let is_buried = job.state == JobState::Buried;
        if !is_buried && had.is_none_or(|had| had.failures.is_none()) {
            return Ok(None);
        }
        let from = had
            .and_then(|had| had.dead_lettered_from)
            .map(str::to_owned);
        let kick = self.queue.decide_kick(id);
        if let (None, Some(kick)) = (had, &kick) {
            return Ok(Some(self.log_kick(kick, id, NO_KICK, now)?));
        }
        if let Some(from) = &from
            && !self.has_room_for_tube(from, now)
        {
            return Ok(Some(Logged::Full));
        }
        let list = self.list_with(id, |had| Attributes {
            tube: from.as_deref().or(had.tube),
            ..counted_from_now(had, reserves, now)
        });
        self.log_sent((id, &list), kick.as_ref(), now).map(Some)
    }

    /// Whether the deliveries of a job are counted by its tube's policy, and were some.
    pub(super) fn has_deliveries(&self, id: JobId) -> bool {
        self.acts_on_failures(id) && self.queue.deliveries(id) > 0
    }

    /// Log and apply the kick of a job. Its deliveries are counted from now on.
    pub(super) fn log_kick(
        &mut self,
        change: &Change<'_>,
        id: JobId,
        kick: u16,
        now: Now,
    ) -> Result<Logged, StoreError> {
        if !self.has_deliveries(id) {
            return self.update_of_kick(change, kick, Purpose::Update, now);
        }
        let reserves = self.queue.job(id).map_or(0, |job| job.counters.reserves);
        let list = self.list_with(id, |had| counted_again(had, reserves, now));
        match self.log_with_list(change, (id, &list), kick, now)? {
            // As where no policy is: every job has room for this set aside.
            Logged::Full => self.log_update(change, kick, Purpose::Update, now),
            Logged::Done => Ok(Logged::Done),
        }
    }
}

/// The list of what a job has, edited.
pub(super) fn list_with<'a>(
    queue: &'a Queue,
    id: JobId,
    edit: impl FnOnce(Attributes<'a>) -> Attributes<'a>,
) -> Vec<u8> {
    let had = queue.attributes(id).and_then(Attributes::decode);
    let list = edit(had.unwrap_or_default()).encode();
    let Some(list) = list else {
        unreachable!("what job {id} has was checked")
    };
    list
}

/// Of a job that stays in its tube: its deliveries are counted from now on. A dead letter that was reserved
/// as one does not expire any more.
fn counted_again(had: Attributes<'_>, reserves: u32, now: Now) -> Attributes<'_> {
    let was_reserved = reserves > had.counted_from.unwrap_or(0);
    let is_kept = was_reserved || had.counted_since_wall_ns == Some(RESERVED_SINCE);
    let since = match had.dead_lettered_from {
        Some(_) if is_kept => RESERVED_SINCE,
        _ => now.wall_ns,
    };
    Attributes {
        counted_from: Some(reserves),
        counted_since_wall_ns: Some(since),
        ..had
    }
}

/// Of a job that is to be in a tube as if it had just come: its deliveries, and the time after which it
/// expires, are counted from now on.
pub(super) fn counted_from_now(had: Attributes<'_>, reserves: u32, now: Now) -> Attributes<'_> {
    Attributes {
        counted_from: Some(reserves),
        counted_since_wall_ns: Some(now.wall_ns),
        failures: None,
        dead_lettered_from: None,
        ..had
    }
}

fn is_by_client(reason: Reason) -> bool {
    matches!(reason, Reason::Released | Reason::Failed)
}

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod tests;
