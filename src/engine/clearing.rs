//! `clear-tube`: all jobs of a tube that are in some states are gone at once, however many they are.
//!
//! Few jobs are deleted as a batch: their deletes are one frame. Of many, one frame says which jobs are
//! gone ([`ClearedJobs`]), in settings of the log of their own class, and the reply waits for that.
//! Their deletes follow, a slice a tick, and then the settings are removed. Who opens a log in which
//! they are still there goes on with the deletes: so all of the jobs are gone, or none.
//!
//! (One record in place of all deletes would have to stay in the log, and in its place, until every
//! file with a put of one of the jobs is rewritten; and each tool would have to know it. A delete is
//! known to all of them, and its file is soon garbage with the files of the jobs.)

use super::Engine;
use super::outcome::Logged;
use super::store::Store;
use crate::clearing::{ClearedJobs, ClearedStates};
use crate::protocol::BATCH_MAX;
use crate::storage::format::{delete, setting_size};
use crate::storage::{AppendError, Purpose, StoreError};
use crate::types::{Change, JobId, Now, SettingClass};

/// Jobs that are deleted in one tick.
const FREED_A_TICK: usize = 512;
/// Clears of many jobs that are not over, at most.
const CLEARS_MAX: usize = 64;
/// Tubes and jobs that are looked at for each job that is deleted at once.
const VISITS_A_JOB: usize = 4;

/// How a clear went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleared {
    /// This many jobs are gone.
    Jobs(u64),
    /// There was no room to say so, or too many clears are not over. Nothing has changed.
    NoRoom,
}

/// The names and the values of the settings of a clear.
type Parts = (Vec<String>, Vec<Box<[u8]>>);

/// The name of the setting of a part of a clear.
fn name(clear: &str, part: usize) -> String {
    format!("{clear}/{part:06}")
}

impl Engine {
    /// Delete all jobs of a tube that are in these states, as one. Durable as the policy says once
    /// [`Engine::after`] is acknowledged.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn clear_tube(
        &mut self,
        tube: &str,
        states: ClearedStates,
        now: Now,
    ) -> Result<Cleared, StoreError> {
        self.check()?;
        let cleared = match self.queue.clearable(tube, states) {
            0 => Ok(Cleared::Jobs(0)),
            count if count <= BATCH_MAX as u64 => self.clear_few(tube, states, now),
            _ => self.clear_many(tube, states, now),
        };
        if let Err(error) = &cleared {
            self.failed = Some(error.clone());
        }
        cleared
    }

    fn clear_few(
        &mut self,
        tube: &str,
        states: ClearedStates,
        now: Now,
    ) -> Result<Cleared, StoreError> {
        let ids = self.queue.cleared_ids(tube, states);
        self.queue.visit(VISITS_A_JOB * ids.len());
        self.make_way(Purpose::Delete, now)?;
        if !self.join(ids.len() * delete::SIZE, Purpose::Delete, now)? {
            return Ok(Cleared::NoRoom);
        }
        for id in &ids {
            let logged = self.log_delete(*id, now)?;
            // A panic leaves nothing of this on the disk: the frame is not written yet.
            assert!(
                matches!(logged, Logged::Done),
                "room was made for the delete of job {id}"
            );
        }
        self.store.part()?;
        Ok(Cleared::Jobs(ids.len() as u64))
    }

    fn clear_many(
        &mut self,
        tube: &str,
        states: ClearedStates,
        now: Now,
    ) -> Result<Cleared, StoreError> {
        if self.clears.len() == CLEARS_MAX {
            return Ok(Cleared::NoRoom);
        }
        let count = self.queue.clearable(tube, states);
        let jobs = self.queue.cleared_jobs(tube, states);
        let Some(names) = self.record_clear(&jobs, now)? else {
            return Ok(Cleared::NoRoom);
        };
        self.clears.push_back(names);
        self.queue.doom(jobs, states, now.mono);
        self.is_busy = true;
        Ok(Cleared::Jobs(count))
    }

    /// Log which jobs are gone. Returns the names of the settings; `None`: there was no room.
    fn record_clear(
        &mut self,
        jobs: &ClearedJobs,
        now: Now,
    ) -> Result<Option<Vec<String>>, StoreError> {
        if let Store::Memory(_) = self.store {
            return Ok(Some(Vec::new()));
        }
        let next = self.queue.next_id();
        let mut names = (0..).map(|number| format!("{next}.{number}"));
        let is_free = |clear: &String| {
            let first = name(clear, 0);
            self.setting(SettingClass::Clear, &first).is_none()
        };
        let clear = names.find(is_free).expect("few clears are not over");
        let parts: Vec<(String, Vec<u8>)> = (jobs.encode().into_iter().enumerate())
            .map(|(part, value)| (name(&clear, part), value))
            .collect();
        let is_logged = self.log_clear(&parts, now)?;
        Ok(is_logged.then(|| parts.into_iter().map(|(name, _)| name).collect()))
    }

    /// Log the parts of a clear, or their removal, in one frame. `false`: there was no room.
    fn log_clear(&mut self, parts: &[(String, Vec<u8>)], now: Now) -> Result<bool, StoreError> {
        let sizes = parts.iter();
        let size = sizes.map(|(name, value)| setting_size(name.len(), value.len()));
        self.make_way(Purpose::Update, now)?;
        if !self.join(size.sum(), Purpose::Update, now)? {
            return Ok(false);
        }
        for (name, value) in parts {
            let part = Change::Setting {
                class: SettingClass::Clear,
                name,
                value,
            };
            self.log_joined_setting(&part, Purpose::Update, now)?;
        }
        self.store.part()?;
        Ok(true)
    }

    fn join(&mut self, size: usize, purpose: Purpose, now: Now) -> Result<bool, StoreError> {
        match self.store.join_size(size, purpose, now) {
            Ok(()) => Ok(true),
            Err(AppendError::NoRoom(_)) => Ok(false),
            Err(AppendError::Failed(error)) => Err(error),
        }
    }

    /// A slice of the deletes of what was cleared. Says whether no more can be done at once.
    pub(super) fn go_on_clearing(&mut self, now: Now) -> Result<bool, StoreError> {
        for freed in 0..FREED_A_TICK {
            let Some(names) = self.clears.front() else {
                return Ok(true);
            };
            if let Some(id) = self.queue.next_doomed() {
                if freed == 0 && !self.can_free(now)? {
                    return Ok(true);
                }
                if let Logged::Full = self.delete(id, now)? {
                    return Ok(true);
                }
                continue;
            }
            let parts = names.iter().map(|name| (name.clone(), Vec::new()));
            let parts: Vec<(String, Vec<u8>)> = parts.collect();
            if !parts.is_empty() && !self.log_clear(&parts, now)? {
                return Ok(true);
            }
            self.clears.pop_front();
            self.queue.end_clear(now.mono);
        }
        Ok(self.clears.is_empty())
    }

    /// Whether there is room for a slice: a log that holds its frames has no more than the rest of its
    /// open segment, and is asked again when they are released.
    fn can_free(&mut self, now: Now) -> Result<bool, StoreError> {
        let size = (FREED_A_TICK * delete::SIZE) as u64;
        let log = self.store.log();
        log.map_or(Ok(true), |log| log.have_room(size, now.wall_ns))
    }

    /// Go on with the clears in the middle of which the log ended: no one finds their jobs from now on,
    /// and they are deleted in the next ticks. Call before anything is reserved or kicked.
    pub(super) fn resume_clears(&mut self, now: Now) {
        let mut clears: Vec<Parts> = Vec::new();
        for (name, value) in self.settings.of(SettingClass::Clear) {
            let clear = |name: &str| name.split('/').next().map(str::to_owned);
            let last = clears.last_mut();
            match last.filter(|(names, _)| clear(&names[0]) == clear(name)) {
                Some((names, values)) => {
                    names.push(name.to_owned());
                    values.push(value.into());
                }
                None => clears.push((vec![name.to_owned()], vec![value.into()])),
            }
        }
        for (names, values) in clears {
            let parts = values.iter().map(|value| &**value);
            let jobs = match ClearedJobs::decode(parts) {
                Some(jobs) => {
                    let tube = jobs.tube();
                    tracing::info!("finishing a clear of tube {tube:?} that was interrupted");
                    jobs
                }
                None => {
                    tracing::warn!(
                        "the log has only a part of a clear of a tube ({}): the jobs that it had not \
                         deleted stay; clear the tube again if they should not",
                        names[0]
                    );
                    ClearedJobs::these("default", Vec::<JobId>::new())
                }
            };
            self.queue.doom_again(jobs, now.mono);
            self.clears.push_back(names);
            self.is_busy = true;
        }
    }
}

#[cfg(test)]
mod tests;
