//! Batches: many jobs deleted or released by one command, all of them or none.

use bsd::protocol::{Command, OnEach};
use bsd::types::{ClientId, JobId};

use super::driver::{Answer, Driver, Stop};
use super::oracle::{Effect, later};

/// Jobs of a batch of deletes at most.
const DELETES: usize = 4;

impl Driver {
    /// Delete some of the jobs that no one has reserved.
    pub(super) fn delete_batch(&mut self, nth: usize) -> Result<(), Stop> {
        let jobs = self.history.now().jobs.keys().copied();
        let free: Vec<u64> = jobs.filter(|id| !self.is_reserved(*id)).collect();
        let first = nth % free.len().max(1);
        let ids: Vec<u64> = free.into_iter().skip(first).take(DELETES).collect();
        let effects: Vec<Effect> = ids.iter().copied().map(Effect::Delete).collect();
        self.batch(self.boss, OnEach::Delete, &ids, &effects)
    }

    /// A worker releases all jobs that it has reserved.
    pub(super) fn release_batch(
        &mut self,
        worker: usize,
        pri: u32,
        delay: u32,
    ) -> Result<(), Stop> {
        let of_worker = self.reserved.iter().filter(|(_, (it, _))| *it == worker);
        let ids: Vec<u64> = of_worker.map(|(id, _)| *id).collect();
        let until = later(self.now, delay);
        let effect = |id: &u64| {
            let mut counters = self.counters(*id);
            counters.releases += 1;
            Effect::Release(*id, pri, delay, until, counters)
        };
        let effects: Vec<Effect> = ids.iter().map(effect).collect();
        let release = OnEach::Release { pri, delay };
        self.batch(self.workers[worker], release, &ids, &effects)
    }

    fn batch(
        &mut self,
        client: ClientId,
        on_each: OnEach,
        ids: &[u64],
        effects: &[Effect],
    ) -> Result<(), Stop> {
        let named = ids.iter().copied().map(JobId).collect();
        let batch = Command::Batch {
            on_each,
            ids: named,
        };
        let answer = self.change(client, batch, effects)?;
        if answer != Answer::OutOfMemory {
            assert_eq!(
                answer,
                Answer::Batch(ids.len() as u64, 0),
                "{on_each:?} {ids:?}"
            );
            for id in ids {
                self.reserved.remove(id);
            }
        }
        Ok(())
    }
}
