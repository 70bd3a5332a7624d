//! Some jobs from one server to another: what becomes of each of them.
//!
//! A ready job is reserved at the source, so that no worker does it there meanwhile. Delayed and buried
//! jobs stay as they are. Then the target gets a copy, and when it has answered that the copy is there,
//! the job is deleted at the source. So each job is at one of the two at any time.
//!
//! | what ends in between | what is left |
//! |---|---|
//! | this program | jobs that were reserved are ready again at the source. Those that were copied and not deleted, a batch at most, are at both |
//! | the target, before its answer | the jobs are at the source. Whether it has copies is not known |
//! | the source, before its answer | it is asked again, for as long as the timeout. Then the jobs may be at both: their ids are told |
//! | a job's time to run, or its delay | if a worker of the source has it, the copy is deleted |

use std::collections::BTreeSet;
use std::time::Duration;

use bsd_client::{
    Client, Error, ErrorKind, ExtendedJobStats, Inserted, JobId, JobStats, Put, State, TEXT_MAX,
    Unique,
};

use super::end::{End, is_lost};
use crate::Failure;

/// The delay of a job that is to be buried: 136 years.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// A job of the source, with what its copy gets.
struct Original {
    id: JobId,
    body: Vec<u8>,
    stats: JobStats,
    more: Option<ExtendedJobStats>,
}

/// What has become of the copy of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is at the target, under this id.
    Copied(JobId),
    /// The target will not have this job: it stays.
    Left,
    /// The target takes no jobs now.
    Refused,
    /// The target did not answer.
    Unknown,
}

/// What was done so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) moved: u64,
    /// Jobs that stay, whatever the next round finds.
    pub(super) left: BTreeSet<JobId>,
    /// Of these: another job has the key.
    pub(super) keys: u64,
    /// Their bodies are too large there.
    pub(super) too_big: u64,
    /// They have a key or a group, and the target has no such thing.
    pub(super) needs: u64,
    /// They are at the source, and the target may have copies.
    pub(super) unknown: u64,
    /// Workers at both servers have taken them.
    pub(super) twice: u64,
    /// They are at the target, and may still be at the source.
    pub(super) at_both: Vec<JobId>,
}

/// Two servers, and what was done.
pub(super) struct Carrier {
    pub(super) source: End,
    pub(super) target: End,
    pub(super) tally: Tally,
}

impl Carrier {
    /// Have these jobs of a tube, which were in this state, in a tube of the target.
    ///
    /// # Errors
    /// The rest of the jobs cannot be moved now.
    pub(super) fn carry(
        &mut self,
        (from, to): (&str, &str),
        state: State,
        ids: &[JobId],
    ) -> Result<(), Failure> {
        let jobs = self.take(from, state, ids)?;
        let (mut fates, mut stop) = self.copy(to, &jobs);
        if state == State::Buried {
            // Those that were put before another one was refused, too.
            let not_buried = self.bury(&jobs, &mut fates);
            stop = stop.or(not_buried);
        }
        let deleted = self.delete_originals(&jobs, &fates);
        let is_copied = |fate: &Fate| matches!(fate, Fate::Copied(_));
        let staying = jobs.iter().zip(&fates);
        let staying = staying.filter(|(_, fate)| !is_copied(fate));
        let staying: Vec<&Original> = staying.map(|(job, _)| job).collect();
        if state == State::Ready {
            put_back(&mut self.source.client, from, &staying);
        }
        let unknown = fates.iter().filter(|fate| **fate == Fate::Unknown);
        self.tally.unknown += unknown.count() as u64;
        match stop {
            Some(error) => Err(self.target.failure(&error)),
            None => deleted,
        }
    }

    /// The jobs that are still in this state, and reserved if they were ready.
    fn take(&mut self, from: &str, state: State, ids: &[JobId]) -> Result<Vec<Original>, Failure> {
        match take(&mut self.source.client, from, state, ids) {
            Ok((jobs, None)) => Ok(jobs),
            Ok((jobs, Some(error))) => {
                if state == State::Ready {
                    put_back(
                        &mut self.source.client,
                        from,
                        &jobs.iter().collect::<Vec<_>>(),
                    );
                }
                Err(self.source.failure(&error))
            }
            Err(error) => Err(self.source.failure(&error)),
        }
    }

    /// Put copies. The error is one that the next job would meet too.
    fn copy(&mut self, to: &str, jobs: &[Original]) -> (Vec<Fate>, Option<Error>) {
        let has_put_with = match self.target.client.supports("put-with") {
            Ok(has_it) => has_it,
            Err(error) => return (vec![Fate::Refused; jobs.len()], Some(error)),
        };
        let fits = |job: &Original| has_put_with || !job.has_key_or_group();
        let puts: Vec<Put> = jobs
            .iter()
            .filter(|job| fits(job))
            .map(|job| job.put(to))
            .collect();
        let mut results = match self.target.client.put_many(&puts) {
            Ok(results) => results.into_iter(),
            Err(error) => return (vec![Fate::Refused; jobs.len()], Some(error)),
        };
        let mut stop = None;
        let fates = jobs.iter().map(|job| match fits(job) {
            true => match results.next() {
                Some(result) => self.tally.fate(job.id, result, &mut stop),
                None => Fate::Refused,
            },
            false => self.tally.leave(job.id, |tally| &mut tally.needs),
        });
        (fates.collect(), stop)
    }

    /// Bury copies that were put for it. After an error those that are not buried are deleted again.
    fn bury(&mut self, jobs: &[Original], fates: &mut [Fate]) -> Option<Error> {
        let mut stop = None;
        for (job, fate) in jobs.iter().zip(fates) {
            let Fate::Copied(copy) = *fate else { continue };
            if stop.is_none() {
                stop = bury(&mut self.target.client, copy, job).err();
            }
            if stop.is_some() {
                *fate = match self.withdraw(&[copy]).is_empty() {
                    true => Fate::Refused,
                    false => Fate::Unknown,
                };
            }
        }
        stop
    }

    /// Delete the jobs that have copies. If a worker has one of them now, its copy is deleted.
    fn delete_originals(&mut self, jobs: &[Original], fates: &[Fate]) -> Result<(), Failure> {
        let pairs = jobs.iter().zip(fates).filter_map(|(job, fate)| match fate {
            Fate::Copied(copy) => Some((job.id, *copy)),
            _ => None,
        });
        let pairs: Vec<(JobId, JobId)> = pairs.collect();
        let ids: Vec<JobId> = pairs.iter().map(|(id, _)| *id).collect();
        let copies_of = |ids: &[JobId]| -> Vec<JobId> {
            let found = pairs.iter().filter(|(id, _)| ids.contains(id));
            found.map(|(_, copy)| *copy).collect()
        };
        match delete(&mut self.source.client, &ids) {
            Ok(taken) => {
                let twice = self.withdraw(&copies_of(&taken));
                self.tally.twice += twice.len() as u64;
                self.tally.moved += (ids.len() - taken.len()) as u64;
                Ok(())
            }
            Err(error) => {
                if is_lost(&error) {
                    self.tally.at_both.extend(ids);
                } else {
                    let kept = self.withdraw(&copies_of(&ids));
                    let kept = pairs.iter().filter(|(_, copy)| kept.contains(copy));
                    self.tally.at_both.extend(kept.map(|(id, _)| *id));
                }
                Err(self.source.failure(&error))
            }
        }
    }

    /// Delete copies again; those that cannot be deleted.
    fn withdraw(&mut self, copies: &[JobId]) -> Vec<JobId> {
        match copies {
            [] => Vec::new(),
            _ => {
                let done = self.target.client.delete_batch(copies);
                done.unwrap_or_else(|_| copies.to_vec())
            }
        }
    }
}

impl Tally {
    fn fate(
        &mut self,
        id: JobId,
        result: Result<Inserted, Error>,
        stop: &mut Option<Error>,
    ) -> Fate {
        match result {
            Ok(Inserted::New(copy)) => Fate::Copied(copy),
            Ok(Inserted::Exists(_)) => self.leave(id, |tally| &mut tally.keys),
            Err(error) if error.kind() == ErrorKind::JobTooBig => {
                self.leave(id, |tally| &mut tally.too_big)
            }
            Err(error) => {
                // Without a connection nothing of it was sent.
                let is_unknown = is_lost(&error) && error.kind() != ErrorKind::Connect;
                stop.get_or_insert(error);
                match is_unknown {
                    true => Fate::Unknown,
                    false => Fate::Refused,
                }
            }
        }
    }

    fn leave(&mut self, id: JobId, reason: fn(&mut Tally) -> &mut u64) -> Fate {
        self.left.insert(id);
        *reason(self) += 1;
        Fate::Left
    }
}

impl Original {
    fn has_key_or_group(&self) -> bool {
        let more = self.more.as_ref();
        more.is_some_and(|more| more.key.is_some() || more.group.is_some())
    }

    fn put(&self, tube: &str) -> Put {
        let delay = match self.stats.state {
            // What is left is told in whole seconds, rounded down: no job is ready before its time.
            State::Delayed => (self.stats.time_left + Duration::from_secs(1)).min(NEVER),
            State::Buried => NEVER,
            _ => Duration::ZERO,
        };
        let put = Put::new(self.body.clone()).tube(tube).pri(self.stats.pri);
        let mut put = put.delay(delay).ttr(self.stats.ttr);
        let Some(more) = &self.more else { return put };
        if let Some(key) = &more.key {
            put = put.key(key);
            if more.unique.as_deref() == Some("waiting") {
                put = put.unique(Unique::Waiting);
            }
        }
        match &more.group {
            Some(group) => put.group(group),
            None => put,
        }
    }
}

/// The jobs that are still in this state, and reserved if they were ready; and the error that has ended
/// it.
fn take(
    client: &mut Client,
    tube: &str,
    state: State,
    ids: &[JobId],
) -> Result<(Vec<Original>, Option<Error>), Error> {
    let more = match client.supports("stats-job-extended")? {
        true => client
            .stats_jobs_extended(ids)?
            .into_iter()
            .map(|it| it.map(Some))
            .collect(),
        false => ids.iter().map(|_| Ok(None)).collect::<Vec<_>>(),
    };
    let (mut known, mut stop) = (Vec::new(), None);
    for (stats, more) in client.stats_jobs(ids)?.into_iter().zip(more) {
        if let Some((stats, more)) = there(stats.and_then(|it| Ok((it, more?))), &mut stop)
            && stats.state == state
            && stats.tube == tube
        {
            known.push((stats, more));
        }
    }
    if stop.is_some() {
        return Ok((Vec::new(), stop));
    }
    let ids: Vec<JobId> = known.iter().map(|(stats, _)| stats.id).collect();
    let bodies = match state {
        State::Ready => client.reserve_jobs(&ids)?,
        _ => client.peek_jobs(&ids)?,
    };
    let mut jobs = Vec::new();
    for ((stats, more), body) in known.into_iter().zip(bodies) {
        if let Some(job) = there(body, &mut stop) {
            jobs.push(Original {
                id: job.id,
                body: job.body,
                stats,
                more,
            });
        }
    }
    Ok((jobs, stop))
}

/// What the server said of a job; `None` if it is not there any more, or a worker has it.
fn there<T>(said: Result<T, Error>, stop: &mut Option<Error>) -> Option<T> {
    match said {
        Ok(said) => Some(said),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            stop.get_or_insert(error);
            None
        }
    }
}

fn bury(client: &mut Client, copy: JobId, job: &Original) -> Result<(), Error> {
    client.reserve_job(copy)?;
    let text = job.more.as_ref().and_then(|more| more.text.as_deref());
    match text {
        Some(text) if client.supports("bury-with-reason")? => {
            let text = &text.as_bytes()[..text.len().min(TEXT_MAX)];
            client.bury_with_reason(copy, job.stats.pri, text)
        }
        _ => client.bury(copy, job.stats.pri),
    }
}

/// Delete jobs; those that workers have now, or have deleted themselves. If the answer is lost they are
/// asked for once more, and what is not there then was deleted before.
fn delete(client: &mut Client, ids: &[JobId]) -> Result<Vec<JobId>, Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    match client.delete_batch(ids) {
        Err(error) if is_lost(&error) => {
            let missing = client.delete_batch(ids)?;
            let stats = client.stats_jobs(&missing)?;
            let found = missing.into_iter().zip(stats);
            Ok(found
                .filter(|(_, it)| it.is_ok())
                .map(|(id, _)| id)
                .collect())
        }
        done => done,
    }
}

/// Give jobs back that were reserved here. Under a policy a release is a delivery that has failed, and
/// might make a dead letter of a job that is moved later: there they are buried and kicked, after which
/// their deliveries are counted from 0, as after the move.
///
/// An error is not told: jobs that are reserved here are ready again when the connection ends.
fn put_back(client: &mut Client, tube: &str, jobs: &[&Original]) {
    let has_policy = !jobs.is_empty() && client.stats_policy(tube).is_ok();
    for job in jobs {
        let (id, pri) = (job.id, job.stats.pri);
        let _ = match has_policy {
            true => client.bury(id, pri).and_then(|()| client.kick_job(id)),
            false => client.release(id, pri, Duration::ZERO),
        };
    }
}
