//! Model of the state that a crash must leave: a map of jobs, and the list of its states.
//!
//! It knows only the requests and replies of clients. After a crash the engine must show one of the
//! states, and none older than the last one that must survive.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use super::comparable::{Answer, Seen};
use crate::types::{JobId, SettingClass, Ticket};

/// The policies and schedules of a log.
pub(super) type Settings = BTreeMap<(SettingClass, String), Vec<u8>>;

/// A job, as far as a restart must restore it and a check needs it.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) tube: &'static str,
    pub(super) pri: u32,
    /// After those with a smaller number.
    pub(super) buried: Option<u64>,
    pub(super) body: Rc<[u8]>,
    /// The tube that it was put into.
    pub(super) home: &'static str,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tube, pri, size) = (self.tube, self.pri, self.body.len());
        write!(f, "{tube} {pri} buried {:?}, {size} bytes", self.buried)
    }
}

/// The effect of a command that is not refused.
#[derive(Debug, Clone)]
pub(super) enum Effect {
    Put(JobId, Job),
    Delete(JobId),
    Release(JobId, u32),
    Bury(JobId, u32),
    /// The job gets attributes, and with them a tube or none; where it is buried, it is buried last.
    Attribute(JobId, Option<&'static str>),
    /// These jobs become ready, if they are not.
    Ready(Vec<JobId>),
    /// A setting gets this value; without a value it is removed.
    Set(SettingClass, String, Vec<u8>),
    /// All of these or none.
    All(Vec<Effect>),
    Nothing,
}

impl Effect {
    /// The remaining effect, once the reply is known.
    fn answered(self, answer: &Answer) -> Effect {
        match (self, answer) {
            (Effect::Put(id, job), Answer::Inserted(found)) => {
                assert_eq!(id, *found, "not the next id");
                Effect::Put(id, job)
            }
            (Effect::Ready(mut ids), Answer::Count(count)) => {
                ids.truncate(*count as usize);
                Effect::Ready(ids)
            }
            (_, Answer::Refused) => Effect::Nothing,
            (Effect::Put(..), other) => panic!("a put is answered {other:?}"),
            (effect, _) => effect,
        }
    }
}

/// Everything that must survive a restart.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) jobs: BTreeMap<JobId, Job>,
    /// The greatest id given out.
    pub(super) issued: JobId,
    burials: u64,
    settings: Settings,
}

impl State {
    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Put(id, job) => {
                let old = self.jobs.insert(id, job);
                assert!(old.is_none() && id > self.issued, "id {id} was given out");
                self.issued = id;
            }
            Effect::Delete(id) => drop(self.jobs.remove(&id)),
            Effect::Release(id, pri) => self.change(id, |job| job.pri = pri),
            Effect::Bury(id, pri) => {
                self.burials += 1;
                let place = Some(self.burials);
                self.change(id, |job| (job.pri, job.buried) = (pri, place));
            }
            Effect::Attribute(id, tube) => {
                self.burials += 1;
                let place = Some(self.burials);
                self.change(id, |job| {
                    job.tube = tube.unwrap_or(job.home);
                    job.buried = job.buried.and(place);
                });
            }
            Effect::Ready(ids) => {
                for id in ids {
                    self.change(id, |job| job.buried = None);
                }
            }
            Effect::Set(class, name, value) if value.is_empty() => {
                self.settings.remove(&(class, name));
            }
            Effect::Set(class, name, value) => {
                self.settings.insert((class, name), value);
            }
            Effect::All(effects) => effects.into_iter().for_each(|effect| self.apply(effect)),
            Effect::Nothing => {}
        }
    }

    fn change(&mut self, id: JobId, edit: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.get_mut(&id) {
            edit(job);
        }
    }

    /// The buried jobs of a tube, in the order of kicks.
    pub(super) fn buried(&self, tube: &str) -> Vec<JobId> {
        let of_tube = self.jobs.iter().filter(|(_, job)| job.tube == tube);
        let mut buried: Vec<_> = of_tube
            .filter_map(|(id, job)| Some((job.buried?, *id)))
            .collect();
        buried.sort_unstable();
        buried.into_iter().map(|(_, id)| id).collect()
    }

    fn is(&self, seen: &Seen, next_id: JobId) -> bool {
        let same = |(id, job): (&JobId, &Job)| {
            seen.get(id).is_some_and(|(tube, is_buried, pri, body)| {
                (tube.as_str(), *is_buried, *pri) == (job.tube, job.buried.is_some(), job.pri)
                    && **body == *job.body
            })
        };
        seen.len() == self.jobs.len() && self.jobs.iter().all(same) && next_id > self.issued
    }
}

/// The states so far, and which of them must survive.
#[derive(Debug)]
pub(super) struct Past {
    /// Each with the ticket that must be acknowledged for it to be.
    states: Vec<(Ticket, State)>,
    /// The oldest state that may remain after the process is killed …
    least: usize,
    /// … and after a power cut.
    least_durable: usize,
}

impl Default for Past {
    fn default() -> Past {
        Past::beginning_with(State::default())
    }
}

impl Past {
    fn beginning_with(state: State) -> Past {
        Past {
            states: vec![(Ticket::NONE, state)],
            least: 0,
            least_durable: 0,
        }
    }

    pub(super) fn now(&self) -> &State {
        &self.states[self.states.len() - 1].1
    }

    /// A command was answered, and the reply waits for `after`.
    pub(super) fn push(&mut self, effect: Effect, answer: &Answer, after: Ticket) {
        self.add(effect.answered(answer), after);
    }

    /// A command was not answered: it may have had its effect or not.
    pub(super) fn push_unanswered(&mut self, effect: Effect) {
        self.add(effect, Ticket::LAST);
    }

    /// A change of which no reply tells.
    pub(super) fn add(&mut self, effect: Effect, after: Ticket) {
        if !matches!(effect, Effect::Nothing) {
            let mut state = self.now().clone();
            state.apply(effect);
            self.states.push((after, state));
        }
    }

    /// Replies that wait for up to `acknowledged` have been sent; everything up to `durable` is
    /// durable.
    pub(super) fn note(&mut self, acknowledged: Ticket, durable: Ticket) {
        let last = |until| self.states.iter().rposition(|(after, _)| *after <= until);
        self.least = last(acknowledged).unwrap_or(0);
        self.least_durable = last(durable).unwrap_or(0);
    }

    /// Everything is durable.
    pub(super) fn note_all(&mut self) {
        self.least = self.states.len() - 1;
        self.least_durable = self.least;
    }

    /// Everything that was not durable may be lost.
    pub(super) fn lose_power(&mut self) {
        self.least = self.least_durable;
    }

    /// Check that the recovered state is allowed, with its settings if they are known; from now on it is the only one.
    pub(super) fn recover(&mut self, seen: &Seen, settings: Option<&Settings>, next_id: JobId) {
        let possible = &self.states[self.least..];
        let found = possible.iter().rev().find(|(_, state)| {
            let has_settings = settings.is_none_or(|found| *found == state.settings);
            state.is(seen, next_id) && has_settings
        });
        let Some((_, state)) = found else {
            let show =
                |(id, (tube, is_buried, pri, body)): (&JobId, &(String, bool, u32, Vec<u8>))| {
                    format!(
                        "{id}: {tube} {pri} buried {is_buried}, {} bytes",
                        body.len()
                    )
                };
            let seen: Vec<String> = seen.iter().map(show).collect();
            panic!(
                "recovered: {seen:#?}, {settings:?}, next id {next_id}; possible: {possible:#?}"
            );
        };
        *self = Past::beginning_with(state.clone());
    }
}
