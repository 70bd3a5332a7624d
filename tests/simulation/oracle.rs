//! Expected state after a crash: a map, and the history of its changes.
//!
//! A [`State`] is everything that a restart must restore. Only [`Effect`]s change it; a [`History`]
//! is the list of states, each with the position that its reply waits for. After a crash the engine
//! must be in one of these states, and not in one older than the last acknowledged one: the result
//! of a prefix, with no gap in it.
//!
//! This is not a second engine: it knows no heaps, no files and no timers, and it sees what clients
//! did, not what the engine made of it. Values that may lag behind (counts of reserves and
//! timeouts, which no reply waits for) have a least and a greatest value.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use bsd::random::Random;
use bsd::types::{Counters, JobId, Now, SECOND_NS, Ticket};

/// Where a job is, for a restart: a reserved one is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    Ready,
    /// Until this wall time.
    Delayed(u64),
    /// After those with a smaller number.
    Buried(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) tube: &'static str,
    pub(super) pri: u32,
    pub(super) delay: u32,
    pub(super) ttr: u32,
    /// Wall time.
    pub(super) created: u64,
    pub(super) body: Rc<[u8]>,
    pub(super) placed: Placed,
    /// As the last change of the job recorded them.
    pub(super) counters: Counters,
    /// The tube that it was put into.
    pub(super) home: &'static str,
    /// What it has beyond a plain job.
    pub(super) attributes: Option<Vec<u8>>,
}

impl Job {
    /// The state at a wall time: due jobs are ready.
    pub(super) fn placed_at(&self, wall_ns: u64) -> Placed {
        match self.placed {
            Placed::Delayed(until) if until <= wall_ns => Placed::Ready,
            placed => placed,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pause {
    /// Wall time.
    pub(super) until: u64,
    /// Seconds.
    pub(super) duration: u32,
}

/// One change of the durable state.
#[derive(Debug, Clone)]
pub(super) enum Effect {
    Put(u64, Job),
    Delete(u64),
    Ready(u64, Counters),
    /// Priority, delay in seconds, wall time at which it is over.
    Release(u64, u32, u32, u64, Counters),
    Bury(u64, u32, Counters),
    /// Its priority, where it is now, and its counters.
    Priority(u64, u32, Placed, Counters),
    Pause(&'static str, Pause),
    Resume(&'static str),
    /// The job, its list of attributes, and the tube in it.
    Attributes {
        id: u64,
        list: Vec<u8>,
        tube: Option<&'static str>,
    },
    /// The name of a setting, and its value.
    Set(&'static str, Vec<u8>),
}

/// All that survives a restart.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) jobs: BTreeMap<u64, Job>,
    /// The greatest id given out.
    pub(super) issued: u64,
    burials: u64,
    pub(super) pauses: BTreeMap<&'static str, Pause>,
    pub(super) settings: BTreeMap<&'static str, Vec<u8>>,
}

impl State {
    pub(super) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Put(id, job) => {
                self.issued = self.issued.max(*id);
                self.jobs.insert(*id, job.clone());
            }
            Effect::Delete(id) => drop(self.jobs.remove(id)),
            Effect::Ready(id, counters) => {
                self.change(*id, |job| {
                    (job.placed, job.counters) = (Placed::Ready, *counters)
                });
            }
            Effect::Release(id, pri, delay, until, counters) => self.change(*id, |job| {
                (job.pri, job.delay, job.counters) = (*pri, *delay, *counters);
                job.placed = if *delay == 0 {
                    Placed::Ready
                } else {
                    Placed::Delayed(*until)
                };
            }),
            Effect::Bury(id, pri, counters) => {
                let place = self.placed(Placed::Buried(0));
                self.change(*id, |job| {
                    (job.pri, job.placed, job.counters) = (*pri, place, *counters);
                });
            }
            Effect::Priority(id, pri, placed, counters) => {
                let placed = self.placed(*placed);
                self.change(*id, |job| {
                    (job.pri, job.placed, job.counters) = (*pri, placed, *counters);
                });
            }
            Effect::Pause(tube, pause) => drop(self.pauses.insert(tube, *pause)),
            Effect::Resume(tube) => drop(self.pauses.remove(tube)),
            Effect::Attributes { id, list, tube } => self.attribute(*id, list, *tube),
            Effect::Set(name, value) if value.is_empty() => drop(self.settings.remove(name)),
            Effect::Set(name, value) => drop(self.settings.insert(name, value.clone())),
        }
    }

    /// A buried job comes last among the buried ones, also where it was.
    fn attribute(&mut self, id: u64, list: &[u8], tube: Option<&'static str>) {
        let Some(placed) = self.jobs.get(&id).map(|job| job.placed) else {
            return;
        };
        let placed = self.placed(placed);
        self.change(id, |job| {
            (job.tube, job.placed) = (tube.unwrap_or(job.home), placed);
            job.attributes = Some(list.to_vec());
        });
    }

    /// Among buried jobs it comes last.
    fn placed(&mut self, placed: Placed) -> Placed {
        match placed {
            Placed::Buried(_) => {
                self.burials += 1;
                Placed::Buried(self.burials)
            }
            placed => placed,
        }
    }

    fn change(&mut self, id: u64, edit: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.get_mut(&id) {
            edit(job);
        }
    }

    /// The buried jobs of a tube, the first to be kicked first.
    pub(super) fn buried(&self, tube: &str) -> Vec<u64> {
        let mut buried: Vec<(u64, u64)> = Vec::new();
        for (id, job) in self.jobs.iter().filter(|(_, job)| job.tube == tube) {
            if let Placed::Buried(place) = job.placed {
                buried.push((place, *id));
            }
        }
        buried.sort_unstable();
        buried.into_iter().map(|(_, id)| id).collect()
    }

    /// The delayed jobs of a tube at a wall time, the first to become due first.
    pub(super) fn delayed(&self, tube: &str, wall_ns: u64) -> Vec<u64> {
        let mut delayed: Vec<(u64, u64)> = Vec::new();
        for (id, job) in self.jobs.iter().filter(|(_, job)| job.tube == tube) {
            if let Placed::Delayed(until) = job.placed_at(wall_ns) {
                delayed.push((until, *id));
            }
        }
        delayed.sort_unstable();
        delayed.into_iter().map(|(_, id)| id).collect()
    }

    /// Bytes of the records that this state needs at least: one put and one update a job.
    pub(super) fn live_bytes(&self) -> u64 {
        let records = |job: &Job| (40 + job.tube.len() + job.body.len() + 52) as u64;
        self.jobs.values().map(records).sum()
    }
}

/// The states that there have been.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// Each with the ticket of its reply.
    states: Vec<(Ticket, State)>,
    /// How often each job has been reserved and has timed out, recorded or not.
    pub(super) happened: BTreeMap<u64, (u32, u32)>,
}

impl History {
    /// A history that begins with the durable state.
    pub(super) fn new(state: State) -> History {
        let happened = state.jobs.iter();
        let happened =
            happened.map(|(id, job)| (*id, (job.counters.reserves, job.counters.timeouts)));
        History {
            happened: happened.collect(),
            states: vec![(Ticket::NONE, state)],
        }
    }

    pub(super) fn now(&self) -> &State {
        &self.states[self.states.len() - 1].1
    }

    /// A command had these effects: all of them or none.
    pub(super) fn push(&mut self, effects: &[Effect], after: Ticket) {
        if effects.is_empty() {
            return;
        }
        let mut state = self.now().clone();
        effects.iter().for_each(|effect| state.apply(effect));
        self.states.push((after, state));
    }

    /// The index of the last state that was acknowledged when `acknowledged` was.
    pub(super) fn acknowledged(&self, acknowledged: Ticket) -> usize {
        self.states
            .iter()
            .rposition(|(after, _)| *after <= acknowledged)
            .unwrap_or(0)
    }

    /// A restart has recovered the state that `after` begins with; earlier states are still needed.
    pub(super) fn outlive_restart(&mut self, after: History) {
        let last = self.states[self.last()].0;
        self.states.push((last, after.now().clone()));
        self.happened.extend(after.happened);
    }

    /// Drop the states before `index`: they are no longer needed.
    pub(super) fn forget_before(&mut self, index: usize) {
        self.states.drain(..index);
    }

    pub(super) fn last(&self) -> usize {
        self.states.len() - 1
    }

    pub(super) fn state(&self, index: usize) -> &State {
        &self.states[index].1
    }

    /// The index of the state from `from` on, the latest such, that `seen` is. `Err`: how it
    /// differs from each.
    pub(super) fn find(&self, from: usize, seen: &Seen) -> Result<usize, String> {
        let mut differences = Vec::new();
        for index in (from..self.states.len()).rev() {
            match self.difference(&self.states[index].1, seen) {
                None => return Ok(index),
                Some(difference) => differences.push(format!("step {index}: {difference}")),
            }
        }
        Err(differences.join("\n"))
    }

    fn difference(&self, state: &State, seen: &Seen) -> Option<String> {
        for (id, job) in &state.jobs {
            let happened = self.happened.get(id).copied().unwrap_or_default();
            let Some(found) = seen.jobs.get(id) else {
                return Some(format!("job {id} is lost"));
            };
            if let Some(difference) = found.difference(job, happened, seen.wall_ns) {
                return Some(format!("job {id}: {difference}"));
            }
        }
        if let Some(id) = seen.jobs.keys().find(|id| !state.jobs.contains_key(id)) {
            return Some(format!("job {id} should not be there"));
        }
        for tube in seen.buried.keys() {
            let (buried, found) = (state.buried(tube), &seen.buried[tube]);
            if buried != *found {
                return Some(format!("{tube}: buried {buried:?}, found {found:?}"));
            }
        }
        let pauses = state
            .pauses
            .iter()
            .filter(|(_, pause)| pause.until > seen.wall_ns);
        let pauses: BTreeMap<&str, Pause> = pauses.map(|(tube, pause)| (*tube, *pause)).collect();
        if pauses != seen.pauses {
            return Some(format!("pauses {pauses:?}, found {:?}", seen.pauses));
        }
        let settings = state.settings.iter();
        let settings: Vec<_> = settings.map(|(name, value)| (*name, value.len())).collect();
        let found = seen.settings.iter();
        let found: Vec<_> = found.map(|(name, value)| (&**name, value.len())).collect();
        if settings != found {
            return Some(format!("settings {settings:?}, found {found:?}"));
        }
        (seen.next_id <= state.issued)
            .then(|| format!("id {} would be given out again", seen.next_id))
    }
}

/// A job as an engine shows it.
#[derive(Debug, Clone)]
pub(super) struct SeenJob {
    pub(super) tube: String,
    pub(super) pri: u32,
    pub(super) delay: u32,
    pub(super) ttr: u32,
    pub(super) created: u64,
    pub(super) body: Vec<u8>,
    pub(super) placed: Placed,
    pub(super) counters: Counters,
    pub(super) attributes: Option<Vec<u8>>,
}

/// The durable state that an engine shows.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) wall_ns: u64,
    pub(super) jobs: BTreeMap<u64, SeenJob>,
    pub(super) buried: BTreeMap<&'static str, Vec<u64>>,
    pub(super) pauses: BTreeMap<&'static str, Pause>,
    pub(super) settings: BTreeMap<String, Vec<u8>>,
    pub(super) next_id: u64,
}

impl SeenJob {
    fn difference(&self, job: &Job, happened: (u32, u32), wall_ns: u64) -> Option<String> {
        fn same<T: fmt::Debug + PartialEq + ?Sized>(
            what: &str,
            expected: &T,
            found: &T,
        ) -> Option<String> {
            (expected != found).then(|| format!("{what} is {found:?}, not {expected:?}"))
        }
        // The order of the buried jobs is compared as a whole.
        let placed = match job.placed_at(wall_ns) {
            Placed::Buried(_) => Placed::Buried(0),
            placed => placed,
        };
        let counters = (
            job.counters.releases,
            job.counters.buries,
            job.counters.kicks,
        );
        let found = (
            self.counters.releases,
            self.counters.buries,
            self.counters.kicks,
        );
        let between = |what: &str, least: u32, found: u32, most: u32| {
            let off = found < least || found > most;
            off.then(|| format!("{what} is {found}, not between {least} and {most}"))
        };
        same("tube", job.tube, &*self.tube)
            .or_else(|| same("priority", &job.pri, &self.pri))
            .or_else(|| same("delay", &job.delay, &self.delay))
            .or_else(|| same("ttr", &job.ttr, &self.ttr))
            .or_else(|| same("creation", &job.created, &self.created))
            .or_else(|| same("place", &placed, &self.placed))
            .or_else(|| same("counters", &counters, &found))
            .or_else(|| same("attributes", &job.attributes, &self.attributes))
            .or_else(|| {
                let (least, found) = (job.counters.reserves, self.counters.reserves);
                between("reserves", least, found, happened.0)
            })
            .or_else(|| {
                let (least, found) = (job.counters.timeouts, self.counters.timeouts);
                between("timeouts", least, found, happened.1)
            })
            .or_else(|| (*self.body != *job.body).then(|| "another body".to_owned()))
    }
}

/// The wall time `seconds` after `now`.
pub(super) fn later(now: Now, seconds: u32) -> u64 {
    now.wall_ns + u64::from(seconds) * SECOND_NS as u64
}

/// A body that tells which job it belongs to, and in which a wrong byte shows.
pub(super) fn body(id: JobId, size: usize) -> Rc<[u8]> {
    Random::new(id.0).bytes(size).into()
}
