//! The state of each job according to all records together.
//!
//! Records come in the order in which beanstalkd wrote them. A whole job replaces what was known
//! about it: beanstalkd moves jobs to free old files. If a job has a record but no whole record,
//! beanstalkd has removed its file, which it does only after the job is deleted or moved; so if
//! neither a whole record nor a delete follows, the job is lost.

use std::collections::{BTreeMap, HashMap};

use super::binlog::{Job, State};
use super::walk::Record;
use crate::storage::error::ReplayError;
use crate::types::{Counters, JobId};

/// Known facts of one job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) job: Job,
    /// Index in [`Jobs::tubes`].
    tube: u32,
    /// Which file its body is in, and where.
    pub(super) file: u32,
    pub(super) body: u64,
    /// When it was buried, as a count of records; without meaning in other states.
    pub(super) buried: u64,
}

/// A record whose job is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Orphan {
    pub(super) file: u32,
    pub(super) at: u64,
}

/// A finding about a record that was applied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    AsExpected,
    /// Something remains uncertain, in words.
    Doubtful(String),
    /// Something before it is lost, in words.
    Damaged(String),
}

/// All jobs of a directory.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    known: HashMap<JobId, Known>,
    orphans: BTreeMap<JobId, Orphan>,
    tubes: Vec<Box<str>>,
    tube_numbers: HashMap<Box<str>, u32>,
    records: u64,
    /// The greatest id that was seen.
    last_id: JobId,
}

impl Jobs {
    /// Apply the next record, which lies in `file` at `at`. `Err` says why it cannot follow the
    /// records before it; then nothing was changed.
    pub(super) fn take(
        &mut self,
        file: u32,
        at: u64,
        record: Record,
    ) -> Result<Taken, ReplayError> {
        self.records += 1;
        match record {
            Record::Whole { tube, job, body } => Ok(self.take_whole(file, &tube, job, body)),
            Record::Update { job, whole_before } => {
                self.last_id = self.last_id.max(job.id);
                match self.known.get(&job.id).copied() {
                    None => {
                        self.take_orphan(&job, Orphan { file, at });
                        Ok(Taken::AsExpected)
                    }
                    Some(known) if !known.job.is_same_job(&job) => {
                        Err(ReplayError::new(format_args!(
                            "an update of job {} that contradicts the record of its put",
                            job.id
                        )))
                    }
                    Some(known) => Ok(self.update(known, job, whole_before)),
                }
            }
        }
    }

    fn take_whole(&mut self, file: u32, tube: &str, job: Job, body: u64) -> Taken {
        self.last_id = self.last_id.max(job.id);
        self.orphans.remove(&job.id);
        let tube = self.tube_number(tube);
        let known = Known {
            job,
            tube,
            file,
            body,
            buried: self.records,
        };
        let Some(old) = self.known.insert(job.id, known) else {
            return Taken::AsExpected;
        };
        if !(old.job.is_same_job(&job) && old.tube == tube) {
            return Taken::Damaged(format!(
                "a second job with the id {}, and no record that the first one was deleted; this \
                 one counts",
                job.id
            ));
        }
        // Copying a buried job is not a burial.
        if old.job.state == State::Buried {
            self.known.insert(
                job.id,
                Known {
                    buried: old.buried,
                    ..known
                },
            );
        }
        Taken::AsExpected
    }

    fn take_orphan(&mut self, job: &Job, orphan: Orphan) {
        match job.state {
            State::Deleted => drop(self.orphans.remove(&job.id)),
            _ => drop(self.orphans.entry(job.id).or_insert(orphan)),
        }
    }

    fn update(&mut self, known: Known, job: Job, whole_before: Option<usize>) -> Taken {
        if job.state != State::Deleted {
            let buried = self.records;
            let update = Known {
                job,
                buried,
                ..known
            };
            self.known.insert(job.id, update);
            return Taken::AsExpected;
        }
        if whole_before.is_some_and(|whole| may_be_no_delete(&known.job, &job, whole)) {
            return Taken::Doubtful(format!(
                "the last record says that job {} is deleted, or is another update of it that a \
                 crash cut off, which cannot be told apart; the job is kept",
                job.id
            ));
        }
        self.known.remove(&job.id);
        Taken::AsExpected
    }

    fn tube_number(&mut self, tube: &str) -> u32 {
        if let Some(number) = self.tube_numbers.get(tube) {
            return *number;
        }
        let number = self.tubes.len() as u32;
        self.tubes.push(tube.into());
        self.tube_numbers.insert(tube.into(), number);
        number
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// The first id that was not seen.
    pub(super) fn next_id(&self) -> JobId {
        JobId(self.last_id.0 + 1)
    }

    pub(super) fn tube(&self, known: &Known) -> &str {
        &self.tubes[known.tube as usize]
    }

    /// All jobs, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Known> {
        self.known.values()
    }

    /// Jobs that were alive but have no whole record, by id, and where they are named.
    pub(super) fn orphans(&self) -> impl Iterator<Item = (JobId, Orphan)> {
        self.orphans.iter().map(|(id, orphan)| (*id, *orphan))
    }
}

/// True if a record that says that the job is deleted may be the beginning of another update. Only
/// the first `whole` bytes of its job are certain. Each such update counts one burial, kick or
/// release more than before.
fn may_be_no_delete(before: &Job, record: &Job, whole: usize) -> bool {
    let are_counters_whole = whole >= super::binlog::job::STATE;
    let counts = |counters: &Counters| (counters.releases, counters.buries, counters.kicks);
    !(are_counters_whole && counts(&before.counters) == counts(&record.counters))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, state: State) -> Job {
        Job {
            id: JobId(id),
            pri: 0,
            delay: 0,
            ttr: 1,
            body_size: 2,
            created_wall_ns: 1,
            deadline_wall_ns: 0,
            counters: Counters::default(),
            state,
        }
    }

    fn whole(id: u64, state: State) -> Record {
        Record::Whole {
            tube: "t".into(),
            job: job(id, state),
            body: 0,
        }
    }

    fn update(id: u64, state: State) -> Record {
        Record::Update {
            job: job(id, state),
            whole_before: None,
        }
    }

    fn fold(records: impl IntoIterator<Item = Record>) -> Jobs {
        let mut jobs = Jobs::default();
        for (at, record) in records.into_iter().enumerate() {
            jobs.take(0, at as u64, record).unwrap();
        }
        jobs
    }

    fn buried(jobs: &Jobs) -> Vec<u64> {
        let mut order: Vec<_> = jobs
            .iter()
            .map(|known| (known.buried, known.job.id.0))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }

    #[test]
    fn the_order_of_buried_jobs_is_that_of_the_burials_and_a_copy_is_none() {
        let puts = [1, 2, 3].map(|id| whole(id, State::Ready));
        let burials = [3, 1, 2].map(|id| update(id, State::Buried));
        let copy = whole(3, State::Buried);
        let jobs = fold(puts.into_iter().chain(burials).chain([copy]));
        assert_eq!(buried(&jobs), [3, 1, 2]);
    }

    #[test]
    fn a_job_that_was_dug_out_and_buried_again_is_the_last_one() {
        let puts = [1, 2].map(|id| whole(id, State::Ready));
        let rest = [
            (1, State::Buried),
            (2, State::Buried),
            (1, State::Ready),
            (1, State::Buried),
        ];
        let rest = rest.map(|(id, state)| update(id, state));
        assert_eq!(buried(&fold(puts.into_iter().chain(rest))), [2, 1]);
    }

    #[test]
    fn a_record_of_a_job_that_is_not_there_is_a_loss_unless_a_delete_or_a_copy_follows() {
        let records = [
            update(1, State::Ready),
            update(2, State::Buried),
            update(3, State::Buried),
            update(1, State::Deleted),
            whole(2, State::Buried),
        ];
        let jobs = fold(records);
        let lost: Vec<_> = jobs.orphans().collect();
        assert_eq!(lost, [(JobId(3), Orphan { file: 0, at: 2 })]);
        assert_eq!((jobs.len(), jobs.next_id()), (1, JobId(4)));
    }

    #[test]
    fn an_id_that_was_given_out_again_is_another_job() {
        let mut jobs = fold([whole(1, State::Ready), update(1, State::Deleted)]);
        assert_eq!(jobs.len(), 0);
        jobs.take(1, 9, whole(1, State::Ready)).unwrap();
        assert_eq!(jobs.iter().map(|known| known.file).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_second_job_with_an_id_counts_and_is_reported() {
        let mut jobs = fold([whole(1, State::Ready)]);
        let job = Job {
            created_wall_ns: 2,
            ..job(1, State::Ready)
        };
        let tube = "t".to_owned();
        let body = 7;
        let taken = jobs.take(0, 9, Record::Whole { tube, job, body });
        assert!(matches!(taken, Ok(Taken::Damaged(_))));
        assert_eq!(jobs.iter().map(|known| known.body).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn an_update_that_contradicts_the_put_changes_nothing() {
        let mut jobs = fold([whole(1, State::Ready)]);
        let other = Job {
            created_wall_ns: 2,
            ..job(1, State::Deleted)
        };
        let update = Record::Update {
            job: other,
            whole_before: None,
        };
        assert!(jobs.take(0, 9, update).is_err());
        assert_eq!(jobs.len(), 1);
    }

    #[test]
    fn a_delete_that_may_be_a_torn_update_deletes_only_if_the_counters_tell() {
        let torn = |whole_before| {
            let job = job(1, State::Deleted);
            let record = Record::Update { job, whole_before };
            let mut jobs = fold([whole(1, State::Ready)]);
            let is_doubtful = jobs.take(0, 9, record).unwrap() != Taken::AsExpected;
            (is_doubtful, jobs.len())
        };
        assert_eq!(torn(Some(60)), (true, 1));
        assert_eq!(torn(Some(76)), (false, 0));
        assert_eq!(torn(None), (false, 0));
    }
}
