//! Everything about a queue that a restart, a restore or another leader has to bring back, in a form
//! that can be compared.
//!
//! A [`Whole`] is taken of a queue in use, and of one that comes to its jobs from records alone. Both
//! have to be the same but for what no record holds: delays that have ended meanwhile, and counts of
//! reserves and timeouts that no reply waits for.

use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::pattern::Pattern;
use crate::policy::Policy;
use crate::queue::{JobView, Queue};
use crate::types::{Counters, JobState, Now, SettingClass};

/// A job as a restart has to show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The tube that it is in.
    pub tube: String,
    /// Priority.
    pub pri: u32,
    /// The last delay that was asked for, seconds.
    pub delay: u32,
    ttr: u32,
    created: u64,
    /// Bytes of its body.
    pub size: u32,
    /// Wall time. Ready if it has passed, or without one if it is not buried.
    until: Option<u64>,
    /// It is buried.
    pub is_buried: bool,
    /// How often each event has happened to it.
    pub counters: Counters,
    /// Reserves of which a client knows that they count.
    least_reserves: u32,
    /// What it has beyond a plain job, as the log has it.
    pub attributes: Option<Vec<u8>>,
}

impl Kept {
    fn of(job: &JobView<'_>, attributes: Option<&[u8]>, now: Now) -> Kept {
        Kept {
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
            least_reserves: 0,
            attributes: attributes.map(<[u8]>::to_vec),
        }
    }

    /// What has to be the same at this time, whatever was recorded late.
    fn settled(&self, now: Now) -> Kept {
        Kept {
            until: self.until.filter(|until| *until > now.wall_ns),
            counters: Counters {
                reserves: 0,
                timeouts: 0,
                ..self.counters
            },
            least_reserves: 0,
            ..self.clone()
        }
    }

    /// The state in which a restart shows it at this time.
    #[must_use]
    pub fn state_at(&self, now: Now) -> JobState {
        match self.until {
            _ if self.is_buried => JobState::Buried,
            Some(until) if until > now.wall_ns => JobState::Delayed,
            _ => JobState::Ready,
        }
    }

    /// How `found` differs from it.
    fn difference(&self, found: &Kept, now: Now, exact: bool) -> Option<String> {
        if self.settled(now) != found.settled(now) {
            return Some(format!("is {found:?}, not {self:?}"));
        }
        let counts = |job: &Kept| (job.counters.reserves, job.counters.timeouts);
        let (most, has) = (counts(self), counts(found));
        if has.0 > most.0 || has.1 > most.1 || exact && has != most {
            return Some(format!("has counted {has:?}, not {most:?}"));
        }
        let least = self.least_reserves;
        (has.0 < least).then(|| format!("was reserved {least} times, and has {has:?}"))
    }
}

/// The state of a queue.
#[derive(Debug, Clone, Default)]
pub struct Whole {
    /// Its jobs.
    pub jobs: BTreeMap<u64, Kept>,
    /// The buried ones of each tube, in the order in which they are kicked.
    buried: BTreeMap<String, Vec<u64>>,
    pauses: BTreeMap<String, (u64, u32)>,
    /// Its settings.
    pub settings: BTreeMap<(SettingClass, String), Vec<u8>>,
    kicks: usize,
    /// The id of the next put.
    pub next_id: u64,
}

impl Whole {
    /// The state of an engine; `tubes` are all that may be paused.
    #[must_use]
    pub fn of(engine: &Engine, tubes: &[&str], now: Now) -> Whole {
        let of_class = |class: SettingClass| {
            let all = engine.settings(class);
            all.map(move |(name, value)| ((class, name.to_owned()), value.to_vec()))
        };
        Whole {
            settings: SettingClass::ALL.into_iter().flat_map(of_class).collect(),
            kicks: engine.log().map_or(0, |log| log.kicks_under_way().len()),
            ..Whole::of_queue(engine.queue(), tubes, now)
        }
    }

    /// The same without settings.
    #[must_use]
    pub fn of_queue(queue: &Queue, tubes: &[&str], now: Now) -> Whole {
        queue.assert_claims();
        queue.assert_groups();
        let jobs = queue.ids().filter_map(|id| queue.job(id));
        let kept = |job: &JobView<'_>| Kept::of(job, queue.attributes(job.id), now);
        let jobs: BTreeMap<u64, Kept> = jobs.map(|job| (job.id.0, kept(&job))).collect();
        let mut buried = BTreeMap::new();
        for job in jobs.values().filter(|job| job.is_buried) {
            if !buried.contains_key(&job.tube) {
                buried.insert(job.tube.clone(), buried_ids(queue, &job.tube));
            }
        }
        let pause = |tube: &&str| {
            let stats = queue.tube_stats(tube, now.mono)?;
            let until = now.wall_ns + u64::try_from(stats.pause_left_ns).ok()?;
            (stats.pause_left_ns > 0).then(|| ((*tube).to_owned(), (until, stats.pause)))
        };
        Whole {
            jobs,
            buried,
            pauses: tubes.iter().filter_map(pause).collect(),
            settings: BTreeMap::new(),
            kicks: 0,
            next_id: queue.next_id().0,
        }
    }

    /// Clients know that these jobs were reserved this often at least, and that it counts.
    pub fn note_reserved(&mut self, counts: &BTreeMap<u64, u32>) {
        for (id, job) in &mut self.jobs {
            job.least_reserves = counts.get(id).copied().unwrap_or(0);
        }
    }

    /// How `found` differs from it; `None`: it is the same. `exact`: also in counts that no reply waits
    /// for.
    #[must_use]
    pub fn difference(&self, found: &Whole, now: Now, exact: bool) -> Option<String> {
        let of_jobs = self.difference_of_jobs(found, now, exact);
        of_jobs.or_else(|| self.difference_of_settings(found))
    }

    /// The same of the jobs and pauses alone.
    #[must_use]
    pub fn difference_of_jobs(&self, found: &Whole, now: Now, exact: bool) -> Option<String> {
        for (id, job) in &self.jobs {
            let Some(other) = found.jobs.get(id) else {
                return Some(format!("job {id} is lost: {job:?}"));
            };
            if let Some(difference) = job.difference(other, now, exact) {
                return Some(format!("job {id} {difference}"));
            }
        }
        let mut others = found.jobs.iter();
        if let Some((id, job)) = others.find(|(id, _)| !self.jobs.contains_key(id)) {
            return Some(format!("job {id} should not be there: {job:?}"));
        }
        if self.buried != found.buried {
            return Some(format!("buried {:?}, not {:?}", found.buried, self.buried));
        }
        let (on, other) = (self.pauses_at(now), found.pauses_at(now));
        if on != other {
            return Some(format!("pauses {other:?}, not {on:?}"));
        }
        let last = self.jobs.keys().last().copied().unwrap_or_default();
        (found.next_id <= last).then(|| format!("id {} would be given again", found.next_id))
    }

    fn difference_of_settings(&self, found: &Whole) -> Option<String> {
        let all = self.settings.keys().chain(found.settings.keys());
        for key in all {
            let (has, other) = (self.settings.get(key), found.settings.get(key));
            if has != other {
                let (has, other) = (has.map(|it| text(it)), other.map(|it| text(it)));
                return Some(format!("the setting {key:?} is {other:?}, not {has:?}"));
            }
        }
        let (has, other) = (self.kicks, found.kicks);
        (has != other).then(|| format!("{other} kicks, not {has}"))
    }

    /// How `found` is neither this state nor `next`, nor one on the way from here to there in which each
    /// job and each setting is as it is in one of them; `None`: it is such a state.
    #[must_use]
    pub fn difference_on_the_way(&self, next: &Whole, found: &Whole, now: Now) -> Option<String> {
        let ids = self.jobs.keys().chain(next.jobs.keys());
        for id in ids.chain(found.jobs.keys()) {
            let of = |state: &Whole| match (state.jobs.get(id), found.jobs.get(id)) {
                (None, None) => None,
                (Some(job), Some(other)) => job.difference(other, now, false),
                (job, other) => Some(format!("{other:?}, not {job:?}")),
            };
            if let (Some(one), Some(_)) = (of(self), of(next)) {
                return Some(format!("job {id} {one}"));
            }
        }
        let keys = self.settings.keys().chain(next.settings.keys());
        for key in keys.chain(found.settings.keys()) {
            let of = |state: &Whole| state.settings.get(key) == found.settings.get(key);
            let comes_step_by_step = key.0 == SettingClass::Fired;
            if !of(self) && !of(next) && !comes_step_by_step {
                return Some(format!("the setting {key:?} is as it never was"));
            }
        }
        // The parts of a clear come and go together.
        let clears = |state: &Whole| {
            let all = state.settings.keys();
            all.filter(|(class, _)| *class == SettingClass::Clear)
                .count()
        };
        let has_part = ![clears(self), clears(next)].contains(&clears(found));
        has_part.then(|| "a part of a clear is there".to_owned())
    }

    fn pauses_at(&self, now: Now) -> BTreeMap<&str, (u64, u32)> {
        let pauses = self.pauses.iter();
        let on = pauses.filter(|(_, (until, _))| *until > now.wall_ns);
        on.map(|(tube, pause)| (&**tube, *pause)).collect()
    }

    /// This state with the jobs and pauses of another.
    #[must_use]
    pub fn with_jobs_of(&self, other: &Whole) -> Whole {
        Whole {
            settings: self.settings.clone(),
            kicks: self.kicks,
            ..other.clone()
        }
    }

    /// The policy of a tube, as a reader of the settings understands them.
    #[must_use]
    pub fn policy_of(&self, tube: &str) -> Policy {
        let all = self.settings.iter();
        let policies = all.filter(|((class, _), _)| *class == SettingClass::Policy);
        let fits = policies.filter(|((_, name), _)| {
            let pattern = Pattern::parse(name);
            pattern.is_ok_and(|pattern| pattern.matches(tube))
        });
        let is_own = |name: &str| name == tube;
        let best = fits.max_by_key(|((_, name), _)| (is_own(name), name.len()));
        let text = best.map(|(_, value)| text(value)).unwrap_or_default();
        text.parse().unwrap_or_default()
    }

    /// This state without the jobs that another one does not have: a follower still has those of a clear
    /// that is not over.
    #[must_use]
    pub fn without_others(&self, known: &Whole) -> Whole {
        let mut less = self.clone();
        less.jobs.retain(|id, _| known.jobs.contains_key(id));
        for ids in less.buried.values_mut() {
            ids.retain(|id| known.jobs.contains_key(id));
        }
        less.buried.retain(|_, ids| !ids.is_empty());
        less
    }

    /// A clear is not over.
    #[must_use]
    pub fn has_clear(&self) -> bool {
        let mut settings = self.settings.keys();
        settings.any(|(class, _)| *class == SettingClass::Clear)
    }

    /// How far a schedule has come: wall time, nanoseconds.
    #[must_use]
    pub fn fired_up_to(&self, name: &str) -> Option<u64> {
        let value = self.settings.get(&(SettingClass::Fired, name.to_owned()))?;
        text(value).parse().ok()
    }

    /// Bytes of the records of its jobs.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        let records = |job: &Kept| 40 + 52 + job.tube.len() as u64 + u64::from(job.size);
        self.jobs.values().map(records).sum()
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn buried_ids(queue: &Queue, tube: &str) -> Vec<u64> {
    let (mut ids, mut mark) = (Vec::new(), None);
    while let Ok(Some(next)) = queue.job_behind(tube, JobState::Buried, mark) {
        ids.push(next.id.0);
        mark = Some(next);
    }
    ids
}
