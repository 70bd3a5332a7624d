//! What jobs have beyond plain jobs: how the attributes of a job change, and the tube that they name.

use std::sync::Arc;

use super::Queue;
use super::apply::{Applied, replace_if};
use super::attributed::Attributed;
use super::events::Happened;
use super::handle::JobHandle;
use super::job::Job;
use crate::attributes::tube_of;
use crate::types::{JobId, JobState, Place, Time};

/// Attributes.
impl Queue {
    /// What a job has beyond a plain one: a list of [attributes](crate::attributes). `None` if nothing
    /// was ever recorded of it, or there is no such job.
    #[must_use]
    pub fn attributes(&self, id: JobId) -> Option<&[u8]> {
        let handle = self.jobs.find(id)?;
        self.attributed(handle).map(Attributed::list)
    }

    #[inline]
    pub(super) fn attributed(&self, handle: JobHandle) -> Option<&Attributed> {
        let job = &self.jobs[handle];
        match job.has_attributes {
            true => self.jobs.attributed.get(job.id),
            false => None,
        }
    }

    /// Bytes of the name of the tube that the job's put record names.
    #[inline(always)]
    pub(super) fn put_tube_size(&self, job: &Job) -> usize {
        let home = match job.has_attributes {
            true => self.jobs.attributed.get(job.id).and_then(Attributed::home),
            false => None,
        };
        home.map_or_else(|| self.tubes[job.tube].name.len(), str::len)
    }

    /// True if the record of the job's attributes is at `place`.
    #[must_use]
    pub(crate) fn attributes_are_at(&self, id: JobId, place: Place) -> bool {
        let attributed = self.jobs.attributed.get(id);
        attributed.is_some_and(|found| found.place == place)
    }

    /// The record of the job's attributes has moved. Returns `false`, and changes nothing, if it was
    /// not at `from`.
    pub(crate) fn move_attributes(&mut self, id: JobId, from: Place, to: Place) -> bool {
        let place = self.jobs.attributed.place_mut(id);
        place.is_some_and(|place| replace_if(place, from, to))
    }

    /// Gives a job other attributes, which may be in another tube then. A buried job goes to the end of
    /// the buried jobs: their order is that of the last records about them.
    pub(super) fn apply_attributes(
        &mut self,
        id: JobId,
        list: &[u8],
        place: Place,
        now: Time,
    ) -> Applied {
        let Some(job) = self.jobs.find(id) else {
            return Applied::ORPHAN;
        };
        let home: Arc<str> = match self.attributed(job).and_then(Attributed::home) {
            Some(home) => home.into(),
            None => self.tubes[self.jobs[job].tube].name.clone(),
        };
        let tube = tube_of(list).unwrap_or(&home);
        let home_elsewhere = (*tube != *home).then_some(&*home);
        let new = Attributed::new(place, home_elsewhere, list);
        let claimed = self.claimed(job);
        let regroups = self.regroups(job, list);
        if regroups {
            self.leave_group(job);
        }
        self.jobs[job].has_attributes = true;
        let before = self.jobs.attributed.set(id, new);
        if regroups {
            self.enter_group(job);
            self.reindex(self.jobs[job].tube);
        }
        self.put_in_tube(job, tube, now);
        self.claim_again(job, claimed);
        Applied {
            attributes_freed: before.and_then(|before| before.freed()),
            ..Applied::default()
        }
    }

    /// The job will be gone: neither has it anything beyond a plain one, nor does it claim a key.
    pub(super) fn forget_attributes(&mut self, job: JobHandle) -> Option<Attributed> {
        self.end_claim(self.claimed(job));
        self.jobs.take_attributes(job)
    }

    /// Puts a job into a tube, in the state that it has; behind all others if it is buried.
    fn put_in_tube(&mut self, job: JobHandle, name: &str, now: Time) {
        let (from, state) = (self.jobs[job].tube, self.jobs[job].state);
        if *self.tubes[from].name == *name {
            if state == JobState::Buried {
                self.detach(job);
                self.attach(job, state);
            }
            return;
        }
        if self.watches_events() {
            self.note_job(job, Happened::Move { to: name.into() }, now);
        }
        let to = self.tubes.find_or_create(name);
        let body_size = u64::from(self.jobs[job].body_size);
        self.tubes[from].body_bytes -= body_size;
        self.tubes[to].body_bytes += body_size;
        if state == JobState::Reserved {
            // It stays with its client, whatever tube it is in.
            let pri = self.jobs[job].pri;
            self.leave_group(job);
            self.tubes[from].counts.leave(state, pri);
            self.tubes[to].counts.enter(state, pri);
            self.jobs[job].tube = to;
            self.enter_group(job);
        } else {
            self.detach(job);
            self.jobs[job].tube = to;
            self.attach(job, state);
        }
        self.reindex_or_remove(from, now);
        self.reindex_or_remove(to, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::attributed::AttributedJobs;
    use super::super::tests::{Fixture, at};
    use super::*;
    use crate::attributes::Attributes;
    use crate::types::Change;

    fn list(tube: Option<&'static str>, failures: u32) -> Vec<u8> {
        let attributes = Attributes {
            tube,
            failures: Some(failures),
            ..Attributes::default()
        };
        attributes.encode().unwrap()
    }

    fn attribute(f: &mut Fixture, id: JobId, list: &[u8]) -> Applied {
        f.apply(&Change::Attributes { id, list }, at(0))
    }

    fn tube_of_job(f: &Fixture, id: JobId) -> (String, usize) {
        let job = f.queue.job(id).unwrap();
        (job.tube.to_owned(), job.put_tube_size)
    }

    #[test]
    fn a_job_is_in_the_tube_that_its_list_names_and_goes_home_without_one() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        assert_eq!(f.queue.attributes(job), None);
        attribute(&mut f, job, &list(Some("dead"), 1));
        assert_eq!(tube_of_job(&f, job), ("dead".to_owned(), 7));
        assert_eq!(f.queue.peek_ready("dead"), Some(job));
        assert_eq!(f.queue.peek_ready("default"), None);
        attribute(&mut f, job, &list(Some("other"), 1));
        assert_eq!(tube_of_job(&f, job), ("other".to_owned(), 7));
        assert!(!f.queue.tube_exists("dead"));
        attribute(&mut f, job, &list(Some("default"), 1));
        assert_eq!(tube_of_job(&f, job), ("default".to_owned(), 7));
        attribute(&mut f, job, &list(Some("dead"), 1));
        attribute(&mut f, job, b"");
        assert_eq!(tube_of_job(&f, job), ("default".to_owned(), 7));
        assert_eq!(f.queue.attributes(job), Some(&b""[..]));
        let dims = f.delete(job).put_freed.unwrap().1;
        assert_eq!(dims.tube_len, 7);
    }

    #[test]
    fn a_reserved_job_that_is_moved_stays_with_its_client() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        f.queue.reserve(client, job, at(0));
        attribute(&mut f, job, &list(Some("dead"), 1));
        assert!(f.queue.is_reserved_by(client, job));
        let reserved = |f: &Fixture, tube| f.queue.tube_stats(tube, at(0)).unwrap().jobs.reserved;
        assert_eq!((reserved(&f, "dead"), reserved(&f, "default")), (1, 0));
        f.delete(job);
        assert!(!f.queue.tube_exists("dead"));
    }

    #[test]
    fn the_order_of_buried_jobs_is_that_of_the_last_records_about_them() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let jobs = [(); 3].map(|()| f.put(client, 5, 0));
        for job in jobs {
            let bury = f.queue.decide_bury(job, 5).unwrap();
            f.apply(&bury, at(0));
        }
        attribute(&mut f, jobs[0], &list(None, 1));
        assert_eq!(f.queue.peek_buried("default"), Some(jobs[1]));
        attribute(&mut f, jobs[1], &list(Some("dead"), 1));
        assert_eq!(f.queue.peek_buried("default"), Some(jobs[2]));
        attribute(&mut f, jobs[1], b"");
        assert_eq!(f.queue.peek_buried("default"), Some(jobs[2]));
        f.delete(jobs[2]);
        assert_eq!(f.queue.peek_buried("default"), Some(jobs[0]));
    }

    #[test]
    fn what_a_record_replaces_is_freed_and_so_is_the_last_one_with_its_job() {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        let job = f.put(client, 5, 0);
        let (first, second) = (list(None, 1), list(Some("dead"), 2));
        assert_eq!(attribute(&mut f, job, &first).attributes_freed, None);
        let freed = attribute(&mut f, job, &second).attributes_freed.unwrap();
        assert_eq!(freed.1 as usize, first.len());
        let to = Place { file: 9, offset: 9 };
        let from = f.queue.jobs.attributed.get(job).unwrap().place;
        assert!(f.queue.attributes_are_at(job, from));
        assert!(!f.queue.move_attributes(job, to, from));
        assert!(f.queue.move_attributes(job, from, to));
        assert_eq!(
            f.delete(job).attributes_freed,
            Some((to, second.len() as u32))
        );
        assert_eq!(attribute(&mut f, job, &first), Applied::ORPHAN);
        assert_eq!(
            f.queue.jobs.attributed.memory(),
            AttributedJobs::new().memory()
        );
    }
}
