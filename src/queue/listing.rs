//! Jobs of a tube from one to the next, a state at a time: for who lists them page by page while
//! anything may happen to any of them.

use super::Queue;
use super::handle::{ClientHandle, JobHandle};
use super::job::ReadyKey;
use crate::types::{ClientId, JobId, JobState, Time};

/// Where a listing has got to. It means something in the process that made it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Of a ready job its priority, of a delayed one when it becomes due in nanoseconds, else 0.
    pub key: i64,
    /// The job.
    pub id: JobId,
}

/// A listing cannot go on: the job that it had got to is no longer among those listed, and where it
/// was no one knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

/// The current state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientView<'a> {
    /// The tube that it uses.
    pub used: &'a str,
    /// How many tubes it watches.
    pub watched: usize,
    /// The first of the jobs that it has reserved, by when its time is up.
    pub first_reserved: Option<Mark>,
    /// It waits for a job.
    pub is_waiting: bool,
    /// It has put a job.
    pub is_producer: bool,
    /// It has reserved a job, or tried to.
    pub is_worker: bool,
}

impl Queue {
    /// The ids of all jobs, each once, in no order. Takes time in proportion to the jobs, however far
    /// apart their ids are.
    pub fn ids(&self) -> impl Iterator<Item = JobId> {
        self.jobs.ids()
    }

    /// Names of clients are below this.
    #[must_use]
    pub fn clients_bound(&self) -> u32 {
        self.clients.bound()
    }

    /// The client with this name; `None`: no client has it, or the client has left.
    #[must_use]
    pub fn client_view(&self, id: ClientId) -> Option<ClientView<'_>> {
        let client = self.clients.get(ClientHandle::from_index(id.0)?)?;
        if client.is_ghost {
            return None;
        }
        Some(ClientView {
            used: &self.tubes[client.used].name,
            watched: client.watched.len(),
            first_reserved: client.reserved.first().map(of_delayed),
            is_waiting: client.wait.is_some(),
            is_producer: client.is_producer,
            is_worker: client.is_worker,
        })
    }

    /// The job that a client has reserved whose time is up next behind `mark`; also where the job of
    /// the mark is reserved no more.
    ///
    /// # Panics
    /// If the client does not exist.
    #[must_use]
    pub fn reserved_behind(&self, id: ClientId, mark: Mark) -> Option<Mark> {
        let reserved = &self.client(id).reserved;
        reserved.after(&(Time(mark.key), mark.id)).map(of_delayed)
    }

    /// The job that comes behind `mark` among those of a tube that are in a state, in the order in which
    /// they are handed out or kicked, without turns of groups; the first one where there is no mark;
    /// `None` behind the last, or without the tube. Reserved jobs are in no order of their tube: there is never one. Takes some
    /// hundred nanoseconds.
    ///
    /// # Errors
    /// [`Lost`]: only of buried jobs. Ready and delayed ones go on behind a mark whose job is gone.
    pub fn job_behind(
        &self,
        tube: &str,
        state: JobState,
        mark: Option<Mark>,
    ) -> Result<Option<Mark>, Lost> {
        let Some(handle) = self.tubes.find(tube) else {
            return Ok(None);
        };
        let tube = &self.tubes[handle];
        Ok(match (state, mark) {
            (JobState::Ready, None) => tube.ready.first().map(of_ready),
            (JobState::Ready, Some(mark)) => {
                let pri = u32::try_from(mark.key).unwrap_or(u32::MAX);
                tube.ready.after(&ReadyKey::new(pri, mark.id)).map(of_ready)
            }
            (JobState::Delayed, None) => tube.delayed.first().map(of_delayed),
            (JobState::Delayed, Some(mark)) => tube
                .delayed
                .after(&(Time(mark.key), mark.id))
                .map(of_delayed),
            (JobState::Buried, None) => tube.buried.first().map(|job| self.of_buried(job)),
            (JobState::Buried, Some(mark)) => {
                let job = self.jobs.find(mark.id).filter(|job| {
                    let job = &self.jobs[*job];
                    job.state == JobState::Buried && job.tube == handle
                });
                let next = self.jobs.buried_behind(job.ok_or(Lost)?);
                next.map(|job| self.of_buried(job))
            }
            (JobState::Reserved, _) => None,
        })
    }

    fn of_buried(&self, job: JobHandle) -> Mark {
        let id = self.jobs[job].id;
        Mark { key: 0, id }
    }
}

fn of_ready(key: ReadyKey) -> Mark {
    Mark {
        key: key.pri().into(),
        id: key.id(),
    }
}

fn of_delayed((due, id): (Time, JobId)) -> Mark {
    Mark { key: due.0, id }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Fixture, at};
    use super::*;

    fn listed(f: &Fixture, state: JobState) -> Vec<JobId> {
        let mut ids = Vec::new();
        let mut mark = None;
        while let Some(next) = f.queue.job_behind("default", state, mark).unwrap() {
            ids.push(next.id);
            mark = Some(next);
        }
        ids
    }

    #[test]
    fn ready_and_delayed_jobs_are_listed_in_the_order_of_their_turn() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let mut ready = Vec::new();
        let mut delayed = Vec::new();
        for nth in 0..2000u32 {
            let key = nth * 7919 % 2000;
            ready.push((key / 2, f.put(client, key / 2, 0)));
            delayed.push((key / 2, f.put(client, 0, 1 + key / 2)));
        }
        ready.sort_unstable();
        delayed.sort_unstable();
        let ids = |pairs: &[(u32, JobId)]| pairs.iter().map(|(_, id)| *id).collect::<Vec<_>>();
        assert_eq!(listed(&f, JobState::Ready), ids(&ready));
        assert_eq!(listed(&f, JobState::Delayed), ids(&delayed));
        assert_eq!(listed(&f, JobState::Reserved), []);
        assert_eq!(f.queue.job_behind("none", JobState::Ready, None), Ok(None));
    }

    #[test]
    fn a_client_is_shown_with_what_it_has_reserved_until_it_leaves() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let ids: Vec<_> = (0..40).map(|_| f.put(client, 5, 0)).collect();
        for (nth, id) in (0..).zip(&ids) {
            f.queue.reserve(client, *id, at(nth));
        }
        let view = f.queue.client_view(client).unwrap();
        assert_eq!(
            (view.used, view.watched, view.is_waiting),
            ("default", 1, false)
        );
        let mut found = Vec::new();
        let mut next = view.first_reserved;
        while let Some(mark) = next {
            found.push(mark.id);
            next = f.queue.reserved_behind(client, mark);
        }
        assert_eq!(found, ids);
        assert!(client.0 < f.queue.clients_bound());
        f.queue.disconnect(client, at(50), 1);
        assert_eq!(f.queue.client_view(client), None);
        assert_eq!(f.queue.client_view(ClientId(u32::MAX)), None);
    }

    #[test]
    fn a_listing_goes_on_behind_a_job_that_is_gone_unless_it_was_buried() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let ids: Vec<_> = (0..3).map(|_| f.put(client, 5, 0)).collect();
        let behind = |f: &Fixture, state, mark| f.queue.job_behind("default", state, mark);
        let first = behind(&f, JobState::Ready, None).unwrap();
        f.delete(ids[0]);
        let second = behind(&f, JobState::Ready, first).unwrap().unwrap();
        assert_eq!(second.id, ids[1]);
        for id in &ids[1..] {
            f.queue.reserve(client, *id, at(0));
            f.bury(*id);
        }
        assert_eq!(listed(&f, JobState::Buried), ids[1..]);
        let first = behind(&f, JobState::Buried, None).unwrap();
        f.delete(ids[1]);
        assert_eq!(behind(&f, JobState::Buried, first), Err(Lost));
    }
}
