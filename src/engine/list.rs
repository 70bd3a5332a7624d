//! `list-jobs`: the jobs of a tube that are in one state, page by page.
//!
//! A page takes time in proportion to what it looks at, which is bounded, and counts that as visits.
//! Between two pages anything may happen to any job: a job that changes its state meanwhile may be
//! passed by, or be listed twice.

use super::Flow;
use super::commands::Turn;
use crate::protocol::{Cursor, JobPage, ListJobs, Op, Reply};
use crate::queue::{Lost, Mark, Queue};
use crate::storage::StoreError;
use crate::types::{ClientId, JobId, JobState};

/// Visits that a job of a page counts: it is looked for in two places.
const VISITS_A_JOB: usize = 2;
/// Clients and reserved jobs that are looked at for one page at most: those of other tubes are passed
/// by.
const LOOKS_MAX: usize = 4096;

impl Turn<'_> {
    /// A page of jobs.
    pub(super) fn list_jobs(&mut self, list: &ListJobs<'_>) -> Result<Flow, StoreError> {
        self.engine.count(Op::ListJobs);
        let queue = &self.engine.queue;
        if !queue.tube_exists(&list.tube) {
            return self.reply(Reply::NotFound);
        }
        let page = match list.state {
            JobState::Reserved => Ok(reserved_page(queue, list)),
            _ => ordered_page(queue, list),
        };
        match page {
            Ok(page) => self.reply(Reply::Jobs(&page)),
            Err(Lost) => self.reply(Reply::NotFound),
        }
    }
}

/// Jobs in the order in which they are handed out or kicked.
fn ordered_page(queue: &Queue, list: &ListJobs<'_>) -> Result<JobPage, Lost> {
    let mut page = JobPage::default();
    let mut mark = list.after.map(mark_of);
    while let Some(next) = queue.job_behind(&list.tube, list.state, mark)? {
        if page.jobs.len() == usize::from(list.limit) {
            page.next = mark.map(|mark| cursor_of(mark, 0));
            break;
        }
        queue.visit(VISITS_A_JOB);
        page.jobs.push((next.id, size_of(queue, next.id)));
        mark = Some(next);
    }
    Ok(page)
}

/// Jobs by their clients, and those of each by when their time is up: they are in no order of their
/// tube.
fn reserved_page(queue: &Queue, list: &ListJobs<'_>) -> JobPage {
    let mut page = JobPage::default();
    let mut at = list.after.unwrap_or(before_all(0));
    for _ in 0..LOOKS_MAX {
        if page.jobs.len() == usize::from(list.limit) {
            break;
        }
        if at.client >= queue.clients_bound() {
            return page;
        }
        queue.visit(VISITS_A_JOB);
        match reserved_behind(queue, at) {
            None => at = before_all(at.client + 1),
            Some(next) => {
                at = next;
                let job = queue.job(at.id).filter(|job| job.tube == list.tube);
                page.jobs.extend(job.map(|job| (job.id, job.body_size)));
            }
        }
    }
    page.next = Some(at);
    page
}

/// The next job that the client of the cursor has reserved; `None` also without such a client.
fn reserved_behind(queue: &Queue, at: Cursor) -> Option<Cursor> {
    let client = ClientId(at.client);
    queue.client_view(client)?;
    let next = queue.reserved_behind(client, mark_of(at))?;
    Some(cursor_of(next, at.client))
}

/// Before all jobs that a client has reserved.
fn before_all(client: u32) -> Cursor {
    Cursor {
        id: JobId(0),
        key: i64::MIN,
        client,
    }
}

fn size_of(queue: &Queue, id: JobId) -> u32 {
    queue.put_record(id).map_or(0, |(_, dims)| dims.body_size)
}

fn mark_of(cursor: Cursor) -> Mark {
    Mark {
        key: cursor.key,
        id: cursor.id,
    }
}

fn cursor_of(mark: Mark, client: u32) -> Cursor {
    Cursor {
        id: mark.id,
        key: mark.key,
        client,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Change, Place, Time};

    /// A queue with this many ready jobs in the tube `a`, and as many in `b`.
    fn filled(count: u64) -> Queue {
        let mut queue = Queue::new();
        queue.finish_replay(Time(0));
        for id in (1..=2 * count).map(JobId) {
            let put = Change::Put {
                id,
                tube: if id.0 <= count { "a" } else { "b" },
                pri: (id.0 % 7) as u32,
                delay: 0,
                ttr: 60,
                created: Time(0),
                body_size: id.0 as u32,
            };
            queue.apply(&put, Place::NONE, Time(0)).unwrap();
        }
        queue
    }

    /// All pages of the tube, and how many there were.
    fn pages(queue: &Queue, state: JobState, limit: u16) -> (Vec<(JobId, u32)>, usize) {
        let (mut jobs, mut count) = (Vec::new(), 0);
        let mut after = None;
        loop {
            let list = ListJobs {
                tube: "a".into(),
                state,
                after,
                limit,
            };
            let page = match state {
                JobState::Reserved => reserved_page(queue, &list),
                _ => ordered_page(queue, &list).unwrap(),
            };
            assert!(page.jobs.len() <= limit.into());
            jobs.extend(page.jobs);
            (after, count) = (page.next, count + 1);
            if after.is_none() {
                return (jobs, count);
            }
        }
    }

    #[test]
    fn the_pages_of_a_state_have_each_of_its_jobs_once() {
        let queue = filled(50);
        let expected: Vec<_> = {
            let mut keys: Vec<_> = (1..=50).map(|id| (id % 7, id)).collect();
            keys.sort_unstable();
            keys.iter()
                .map(|(_, id)| (JobId(*id), *id as u32))
                .collect()
        };
        for (limit, count) in [(1, 50), (7, 8), (49, 2), (50, 1), (1000, 1)] {
            assert_eq!(
                pages(&queue, JobState::Ready, limit),
                (expected.clone(), count)
            );
        }
        assert_eq!(pages(&queue, JobState::Buried, 10), (vec![], 1));
    }

    #[test]
    fn reserved_jobs_are_listed_by_their_clients_and_those_of_other_tubes_are_passed_by() {
        let mut queue = filled(50);
        let clients: Vec<_> = (0..5).map(|_| queue.connect()).collect();
        for id in (1..=100).map(JobId) {
            let client = clients[id.0 as usize % clients.len()];
            queue.reserve(client, id, Time(id.0 as i64));
        }
        queue.disconnect(clients[1], Time(200), usize::MAX);
        let mut expected: Vec<_> = (1..=50).filter(|id| id % 5 != 1).collect();
        expected.sort_by_key(|id| (id % 5, *id));
        for limit in [1, 7, 1000] {
            let (jobs, _) = pages(&queue, JobState::Reserved, limit);
            let ids: Vec<_> = jobs.iter().map(|(id, _)| id.0).collect();
            assert_eq!(ids, expected, "{limit}");
            assert!(jobs.iter().all(|(id, size)| u64::from(*size) == id.0));
        }
    }

    #[test]
    fn a_page_looks_at_a_bounded_number_of_clients_and_counts_them() {
        let mut queue = filled(1);
        let clients: Vec<_> = (0..10_000).map(|_| queue.connect()).collect();
        queue.reserve(clients[9_999], JobId(1), Time(0));
        queue.take_visits();
        let list = |after| ListJobs {
            tube: "a".into(),
            state: JobState::Reserved,
            after,
            limit: 10,
        };
        let page = reserved_page(&queue, &list(None));
        assert_eq!(queue.take_visits(), LOOKS_MAX * VISITS_A_JOB);
        assert!(page.jobs.is_empty() && page.next.is_some());
        assert_eq!(
            pages(&queue, JobState::Reserved, 10),
            (vec![(JobId(1), 1)], 3)
        );
        let behind = Some(before_all(u32::MAX));
        assert_eq!(reserved_page(&queue, &list(behind)), JobPage::default());
    }

    #[test]
    fn a_page_behind_a_job_that_is_buried_no_more_is_lost() {
        let queue = filled(3);
        let list = ListJobs {
            tube: "a".into(),
            state: JobState::Buried,
            after: Some(cursor_of(
                Mark {
                    key: 0,
                    id: JobId(1),
                },
                0,
            )),
            limit: 10,
        };
        assert_eq!(ordered_page(&queue, &list), Err(Lost));
    }
}
