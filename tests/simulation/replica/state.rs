//! State of a queue that has to be the same on all disks.

use std::collections::BTreeMap;

use bsd::engine::Engine;
use bsd::types::{Counters, JobState, Now};

use super::super::beyond::CLASS;
use super::super::driver::TUBES;

/// A job as a restart has to show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    tube: String,
    pri: u32,
    delay: u32,
    ttr: u32,
    created: u64,
    size: u32,
    /// Ready if it has passed, or if there is none and it is not buried.
    until: Option<u64>,
    is_buried: bool,
    counters: Counters,
    attributes: Option<Vec<u8>>,
}

/// State after an entry.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) jobs: BTreeMap<u64, Kept>,
    buried: BTreeMap<&'static str, Vec<u64>>,
    pauses: BTreeMap<&'static str, (u64, u32)>,
    settings: Vec<(String, Vec<u8>)>,
    kicks: usize,
    next_id: u64,
}

impl State {
    pub(super) fn of(engine: &Engine, now: Now) -> State {
        let queue = engine.queue();
        queue.assert_claims();
        queue.assert_groups();
        let next_id = queue.next_id().0;
        let jobs = queue.ids().filter_map(|id| queue.job(id));
        let kept = |job: &bsd::queue::JobView<'_>| Kept {
            tube: job.tube.to_owned(),
            pri: job.pri,
            delay: job.delay,
            ttr: job.ttr,
            created: now.to_wall(job.created),
            size: job.body_size,
            until: match (job.state, job.deadline) {
                (JobState::Delayed, Some(deadline)) => Some(now.to_wall(deadline)),
                _ => None,
            },
            is_buried: job.state == JobState::Buried,
            counters: job.counters,
            attributes: queue.attributes(job.id).map(<[u8]>::to_vec),
        };
        State {
            jobs: jobs.map(|job| (job.id.0, kept(&job))).collect(),
            buried: TUBES
                .map(|tube| (tube, buried(engine, tube)))
                .into_iter()
                .filter(|(_, ids)| !ids.is_empty())
                .collect(),
            pauses: TUBES
                .iter()
                .filter_map(|tube| {
                    let stats = queue.tube_stats(tube, now.mono)?;
                    let until = now.wall_ns + u64::try_from(stats.pause_left_ns).ok()?;
                    (stats.pause_left_ns > 0).then_some((*tube, (until, stats.pause)))
                })
                .collect(),
            settings: engine
                .settings(CLASS)
                .map(|(name, value)| (name.to_owned(), value.to_vec()))
                .collect(),
            kicks: engine.log().map_or(0, |log| log.kicks_under_way().len()),
            next_id,
        }
    }

    /// The leader's state, and what `found` has of it: `None` if it is the same.
    pub(super) fn difference(&self, found: &State, now: Now, exact: bool) -> Option<String> {
        let settled = |job: &Kept| Kept {
            until: job.until.filter(|until| *until > now.wall_ns),
            counters: Counters {
                reserves: 0,
                timeouts: 0,
                ..job.counters
            },
            ..job.clone()
        };
        for (id, job) in &self.jobs {
            let Some(other) = found.jobs.get(id) else {
                return Some(format!("job {id} is lost: {job:?}"));
            };
            if settled(job) != settled(other) {
                return Some(format!("job {id} is {other:?}, not {job:?}"));
            }
            let counts = |job: &Kept| (job.counters.reserves, job.counters.timeouts);
            let (most, has) = (counts(job), counts(other));
            if has.0 > most.0 || has.1 > most.1 || exact && has != most {
                return Some(format!("job {id} has counted {has:?}, not {most:?}"));
            }
        }
        if let Some((id, job)) = found
            .jobs
            .iter()
            .find(|(id, _)| !self.jobs.contains_key(id))
        {
            return Some(format!("job {id} should not be there: {job:?}"));
        }
        if self.buried != found.buried {
            return Some(format!("buried {:?}, not {:?}", found.buried, self.buried));
        }
        let on = |state: &State| {
            let mut pauses = state.pauses.clone();
            pauses.retain(|_, (until, _)| *until > now.wall_ns);
            pauses
        };
        if on(self) != on(found) {
            return Some(format!("pauses {:?}, not {:?}", on(found), on(self)));
        }
        if self.settings != found.settings {
            let names = |state: &State| -> Vec<String> {
                state
                    .settings
                    .iter()
                    .map(|(name, _)| name.clone())
                    .collect()
            };
            return Some(format!(
                "settings {:?}, not {:?}",
                names(found),
                names(self)
            ));
        }
        if self.kicks != found.kicks {
            return Some(format!("{} kicks, not {}", found.kicks, self.kicks));
        }
        let last = self.jobs.keys().last().copied().unwrap_or_default();
        (found.next_id <= last).then(|| format!("id {} would be given again", found.next_id))
    }

    pub(super) fn live_bytes(&self) -> u64 {
        let records = |job: &Kept| 40 + 52 + job.tube.len() as u64 + u64::from(job.size);
        self.jobs.values().map(records).sum()
    }
}

fn buried(engine: &Engine, tube: &str) -> Vec<u64> {
    let (mut ids, mut mark) = (Vec::new(), None);
    while let Ok(Some(next)) = engine.queue().job_behind(tube, JobState::Buried, mark) {
        ids.push(next.id.0);
        mark = Some(next);
    }
    ids
}
