//! Whose turn it is in a fair tube: told from the jobs as they were before a reserve.

use std::collections::BTreeMap;

use bsd::attributes::Attributes;
use bsd::policy::Policy;
use bsd::queue::{JobView, Queue};
use bsd::types::{JobId, JobState};

use super::super::driver::TUBES;

/// Ready jobs up to which a tube is fair from the moment at which its policy says so.
const READY_MAX: usize = 1000;

/// Jobs that share their turns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Named(String),
    /// A job without a group.
    Alone(u64),
}

#[derive(Debug, Default)]
struct FairTube {
    /// Priority and group of each ready job.
    ready: BTreeMap<u64, (u32, Group)>,
    /// How many jobs of each group are reserved.
    reserved: BTreeMap<Group, usize>,
}

impl FairTube {
    fn of(queue: &Queue, name: &str) -> FairTube {
        let mut tube = FairTube::default();
        let jobs = queue.ids().filter_map(|id| queue.job(id));
        for job in jobs.filter(|job| job.tube == name) {
            let group = group_of(queue, &job);
            match job.state {
                JobState::Ready => {
                    tube.ready.insert(job.id.0, (job.pri, group));
                }
                JobState::Reserved => *tube.reserved.entry(group).or_default() += 1,
                _ => {}
            }
        }
        tube
    }

    /// The job that comes first.
    fn next(&self) -> Option<u64> {
        let count = |group: &Group| self.reserved.get(group).copied().unwrap_or(0);
        let ready = self.ready.iter();
        let turn = ready.map(|(id, (pri, group))| (*pri, count(group), *id));
        turn.min().map(|(_, _, id)| id)
    }
}

fn group_of(queue: &Queue, job: &JobView<'_>) -> Group {
    let list = queue.attributes(job.id);
    let group = list.and_then(|list| Attributes::decode(list)?.group);
    group.map_or(Group::Alone(job.id.0), |name| Group::Named(name.to_owned()))
}

/// The jobs of the fair tubes.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeMap<&'static str, FairTube>);

impl Turns {
    /// As the queue is before a reserve; `policies` are those of the tubes.
    pub(super) fn of(queue: &Queue, policies: &[Policy; 3]) -> Turns {
        let all = TUBES.into_iter().zip(policies);
        let fair = all.filter(|(_, policy)| policy.fair);
        let tubes = fair.map(|(name, _)| (name, FairTube::of(queue, name)));
        Turns(tubes.filter(|(_, it)| it.ready.len() < READY_MAX).collect())
    }

    /// A client was given a job of this tube: it was its turn. `queue` is as the reserve has left it.
    ///
    /// # Panics
    /// Another job came before it.
    pub(super) fn take(&mut self, queue: &Queue, name: &str, id: JobId) {
        let Some(tube) = self.0.get_mut(name) else {
            return;
        };
        let group = match tube.ready.get(&id.0) {
            Some((_, group)) => group.clone(),
            // It has come as a dead letter of another tube.
            None => return,
        };
        // One whose limit is reached is set aside, and handed out to no one.
        let is_there = |id: u64| {
            let job = queue.job(JobId(id)).filter(|job| job.tube == name);
            job.is_some_and(|job| [JobState::Ready, JobState::Reserved].contains(&job.state))
        };
        while let Some(next) = tube.next().filter(|next| !is_there(*next)) {
            tube.ready.remove(&next);
        }
        assert_eq!(tube.next(), Some(id.0), "whose turn it is in {tube:?}");
        tube.ready.remove(&id.0);
        *tube.reserved.entry(group).or_default() += 1;
    }
}
