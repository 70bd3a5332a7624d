//! A model of the queue, obviously right and slow: one map of jobs, one list of tubes, one map of
//! clients; every question is answered by looking at all of them.
//!
//! It shares only types with the queue, no code. At every step the two must agree on everything
//! that a caller can see.

use std::collections::{BTreeMap, VecDeque};

use super::{Applied, RecordDims, WaitEnd};
use crate::attributes::{Attributes, Unique};
use crate::types::{Change, ClientId, Counters, JobId, JobState, Place, SECOND_NS, Time};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelJob {
    pub(super) tube: String,
    pub(super) state: JobState,
    pub(super) pri: u32,
    pub(super) delay: u32,
    pub(super) ttr: u32,
    pub(super) created: Time,
    pub(super) deadline: Time,
    pub(super) counters: Counters,
    pub(super) body_size: u32,
    pub(super) place: Place,
    pub(super) update_place: Place,
    pub(super) reserver: Option<ClientId>,
    /// Orders the buried jobs.
    pub(super) buried_at: u64,
    /// The order of jobs with unrecorded counters.
    pub(super) is_dirty: bool,
    /// The tube that it was put into.
    pub(super) put_tube: String,
    /// Its list of attributes, and their record.
    pub(super) attributes: Option<(Vec<u8>, Place)>,
}

impl ModelJob {
    fn attributes_freed(&self) -> Option<(Place, u32)> {
        let (list, place) = self.attributes.as_ref()?;
        Some((*place, list.len() as u32))
    }

    fn group(&self) -> Option<&str> {
        let (list, _) = self.attributes.as_ref()?;
        Attributes::decode(list).unwrap().group
    }
}

#[derive(Debug, Clone)]
pub(super) struct ModelPause {
    pub(super) until: Time,
    pub(super) duration: u32,
    place: Place,
    holds: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ModelTube {
    pub(super) name: String,
    pub(super) pause: Option<ModelPause>,
    pub(super) pins: u32,
    pub(super) totals: (u64, u64, u64),
}

#[derive(Debug, Clone)]
pub(super) struct ModelClient {
    pub(super) used: String,
    pub(super) watched: Vec<String>,
    /// The turn in which it began to wait, and the end of the wait.
    pub(super) wait: Option<(u64, Option<Time>)>,
}

enum Event {
    EndPause(String),
    Ready(JobId),
    Client(ClientId),
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) jobs: BTreeMap<JobId, ModelJob>,
    /// Jobs that were cleared and are not freed.
    pub(super) doomed: BTreeMap<JobId, ModelJob>,
    pub(super) tubes: Vec<ModelTube>,
    pub(super) clients: BTreeMap<ClientId, ModelClient>,
    pub(super) ghosts: VecDeque<ClientId>,
    pub(super) lapsed: VecDeque<(String, Place, bool)>,
    pub(super) timeouts: u64,
    /// Tubes with a policy of their own, and whether it is fair.
    pub(super) fair: BTreeMap<&'static str, bool>,
    /// All other tubes are fair.
    pub(super) is_fair: bool,
    is_ghosts_turn: bool,
    turn: u64,
}

impl Model {
    pub(super) fn new() -> Model {
        let mut model = Model::default();
        model.tube("default").pins = 1;
        model
    }

    /// The tube of this name, created if necessary.
    pub(super) fn tube(&mut self, name: &str) -> &mut ModelTube {
        if !self.tubes.iter().any(|tube| tube.name == name) {
            self.tubes.push(ModelTube {
                name: name.to_owned(),
                ..ModelTube::default()
            });
        }
        self.tubes
            .iter_mut()
            .find(|tube| tube.name == name)
            .unwrap()
    }

    /// Removes the tube if it is no longer needed.
    pub(super) fn tidy(&mut self, now: Time) {
        let is_needed = |tube: &ModelTube| {
            tube.pins > 0
                || tube.pause.as_ref().is_some_and(|pause| pause.holds)
                || self.jobs.values().any(|job| job.tube == tube.name)
                || self
                    .clients
                    .values()
                    .any(|c| c.used == tube.name || c.watched.contains(&tube.name))
        };
        let Some(index) = self.tubes.iter().position(|tube| !is_needed(tube)) else {
            return;
        };
        self.end_pause(index, now);
        self.tubes.swap_remove(index);
    }

    fn end_pause(&mut self, index: usize, now: Time) {
        let tube = &mut self.tubes[index];
        if let Some(pause) = tube.pause.take() {
            self.lapsed
                .push_back((tube.name.clone(), pause.place, pause.until > now));
        }
    }

    pub(super) fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    pub(super) fn apply(&mut self, change: &Change<'_>, place: Place, now: Time) -> Applied {
        let mut applied = Applied::default();
        let turn = self.next_turn();
        match *change {
            Change::Put {
                id,
                tube,
                pri,
                delay,
                ttr,
                created,
                body_size,
            } => {
                self.tube(tube).totals.0 += 1;
                let state = if delay == 0 {
                    JobState::Ready
                } else {
                    JobState::Delayed
                };
                let job = ModelJob {
                    tube: tube.to_owned(),
                    state,
                    pri,
                    delay,
                    ttr,
                    created,
                    deadline: created.plus_seconds(delay),
                    counters: Counters::default(),
                    body_size,
                    place,
                    update_place: Place::NONE,
                    reserver: None,
                    buried_at: 0,
                    is_dirty: false,
                    put_tube: tube.to_owned(),
                    attributes: None,
                };
                assert_eq!(self.jobs.insert(id, job), None);
            }
            Change::Update {
                id,
                state,
                pri,
                delay,
                deadline,
                counters,
            } => {
                let job = self.jobs.get_mut(&id).unwrap();
                applied.update_freed = Some(job.update_place).filter(|place| !place.is_none());
                job.buried_at = turn;
                let (reserver, update_place, is_dirty) = (None, place, false);
                let (tube, old) = (job.tube.clone(), job.clone());
                *job = ModelJob {
                    tube,
                    state,
                    pri,
                    delay,
                    deadline,
                    counters,
                    reserver,
                    update_place,
                    is_dirty,
                    ..old
                };
            }
            Change::Delete { id } => {
                let job = self.jobs.remove(&id).or_else(|| self.doomed.remove(&id));
                let job = job.unwrap();
                self.tube(&job.tube).totals.1 += 1;
                let tube_len = job.put_tube.len() as u32;
                applied.attributes_freed = job.attributes_freed();
                applied.put_freed = Some((
                    job.place,
                    RecordDims {
                        tube_len,
                        body_size: job.body_size,
                    },
                ));
                applied.update_freed = Some(job.update_place).filter(|place| !place.is_none());
            }
            Change::Attributes { id, list } => {
                let job = self.jobs.get_mut(&id).unwrap();
                applied.attributes_freed = job.attributes_freed();
                job.attributes = Some((list.to_vec(), place));
                let to = Attributes::decode(list).unwrap().tube;
                job.tube = to.unwrap_or(&job.put_tube).to_owned();
                if job.state == JobState::Buried {
                    job.buried_at = turn;
                }
                let tube = job.tube.clone();
                self.tube(&tube);
            }
            Change::Setting { .. } => {}
            Change::Pause {
                tube,
                duration,
                until,
            } => {
                if duration == 0 && !self.tubes.iter().any(|other| other.name == tube) {
                    return Applied {
                        orphan: true,
                        ..applied
                    };
                }
                let tube = self.tube(tube);
                tube.totals.2 += 1;
                applied.pause_freed = tube.pause.as_ref().map(|pause| pause.place);
                let pause = ModelPause {
                    until,
                    duration,
                    place,
                    holds: false,
                };
                tube.pause = (duration > 0).then_some(pause);
            }
        }
        self.tidy(now);
        applied
    }

    /// The oldest job that claims a key.
    pub(super) fn key_holder(&self, tube: &str, key: &str) -> Option<JobId> {
        let claims = |job: &&ModelJob| {
            let list = job.attributes.as_ref().map(|(list, _)| &**list);
            let found = Attributes::decode(list.unwrap_or_default()).unwrap();
            let is_over = found.unique == Some(Unique::Waiting) && job.counters.reserves > 0;
            job.tube == tube && found.key == Some(key) && !is_over
        };
        let found = self.jobs.iter().find(|(_, job)| claims(job));
        found.map(|(id, _)| *id)
    }

    pub(super) fn note_update(&mut self, id: JobId, place: Place) -> Option<Place> {
        let job = self.jobs.get_mut(&id).unwrap();
        job.is_dirty = false;
        Some(std::mem::replace(&mut job.update_place, place)).filter(|place| !place.is_none())
    }

    pub(super) fn connect(&mut self, id: ClientId) {
        let (used, watched) = ("default".to_owned(), vec!["default".to_owned()]);
        assert!(
            !self.ghosts.contains(&id),
            "handles of ghosts are not reused"
        );
        assert!(
            self.clients
                .insert(
                    id,
                    ModelClient {
                        used,
                        watched,
                        wait: None
                    }
                )
                .is_none()
        );
    }

    pub(super) fn disconnect(&mut self, id: ClientId, now: Time, budget: usize) -> usize {
        while let Some(client) = self.clients.get_mut(&id).filter(|c| !c.watched.is_empty()) {
            client.watched.swap_remove(0);
            self.tidy(now);
        }
        self.clients.remove(&id);
        self.tidy(now);
        let mut ended = 0;
        while let Some((_, job)) = self.first_reserved(id).filter(|_| ended < budget) {
            self.make_ready(job);
            ended += 1;
        }
        if self.first_reserved(id).is_some() {
            self.ghosts.push_back(id);
        }
        ended
    }

    pub(super) fn reserve(&mut self, client: ClientId, id: JobId, now: Time) {
        self.clients.get_mut(&client).unwrap().wait = None;
        let job = self.jobs.get_mut(&id).unwrap();
        assert_eq!(job.state, JobState::Ready);
        job.state = JobState::Reserved;
        job.reserver = Some(client);
        job.deadline = now.plus_seconds(job.ttr);
        job.counters.reserves += 1;
        job.is_dirty = true;
    }

    pub(super) fn in_tube(&self, tube: &str, state: JobState) -> Vec<(JobId, &ModelJob)> {
        let jobs = self.jobs.iter().map(|(id, job)| (*id, job));
        jobs.filter(|(_, job)| job.tube == tube && job.state == state)
            .collect()
    }

    pub(super) fn first_ready(&self, tube: &str) -> Option<JobId> {
        let ready = self.in_tube(tube, JobState::Ready);
        let reserved = match self.fair.get(tube).unwrap_or(&self.is_fair) {
            true => self.in_tube(tube, JobState::Reserved),
            false => Vec::new(),
        };
        let beside = |job: &ModelJob| {
            let same = |other: &ModelJob| job.group().is_some() && other.group() == job.group();
            reserved.iter().filter(|(_, other)| same(other)).count()
        };
        ready
            .into_iter()
            .min_by_key(|(id, job)| (job.pri, beside(job), *id))
            .map(|(id, _)| id)
    }

    /// A tube has a policy of its own, fair or not, or none; it exists as long as the policy does.
    pub(super) fn set_policy(&mut self, tube: &'static str, fair: Option<bool>, now: Time) {
        let before = match fair {
            Some(fair) => self.fair.insert(tube, fair),
            None => self.fair.remove(tube),
        };
        let had = u32::from(before.is_some());
        let has = u32::from(fair.is_some());
        if (had, has) != (0, 0) {
            let of_tube = self.tube(tube);
            of_tube.pins = of_tube.pins + has - had;
            self.tidy(now);
        }
    }

    pub(super) fn first_delayed(&self, tube: &str) -> Option<JobId> {
        let delayed = self.in_tube(tube, JobState::Delayed);
        delayed
            .into_iter()
            .min_by_key(|(id, job)| (job.deadline, *id))
            .map(|(id, _)| id)
    }

    pub(super) fn first_buried(&self, tube: &str) -> Option<JobId> {
        let buried = self.in_tube(tube, JobState::Buried);
        buried
            .into_iter()
            .min_by_key(|(_, job)| job.buried_at)
            .map(|(id, _)| id)
    }

    fn first_reserved(&self, client: ClientId) -> Option<(Time, JobId)> {
        let mine = self
            .jobs
            .iter()
            .filter(|(_, job)| job.reserver == Some(client));
        mine.map(|(id, job)| (job.deadline, *id)).min()
    }

    pub(super) fn best_ready(&self, client: ClientId, now: Time) -> Option<JobId> {
        let is_open =
            |tube: &&ModelTube| tube.pause.as_ref().is_none_or(|pause| pause.until <= now);
        self.best_of(self.clients[&client].watched.iter(), is_open)
    }

    fn best_of<'a>(
        &self,
        names: impl Iterator<Item = &'a String>,
        is_open: impl Fn(&&ModelTube) -> bool,
    ) -> Option<JobId> {
        let find = |name: &&String| self.tubes.iter().find(|tube| tube.name == **name);
        let open = names.filter(|name| find(name).filter(&is_open).is_some());
        open.filter_map(|name| self.first_ready(name))
            .min_by_key(|id| (self.jobs[id].pri, *id))
    }

    pub(super) fn next_match(&self) -> Option<(ClientId, JobId)> {
        let waiting = || {
            self.clients
                .iter()
                .filter(|(_, client)| client.wait.is_some())
        };
        let names = waiting().flat_map(|(_, client)| &client.watched);
        let job = self.best_of(names, |tube| tube.pause.is_none())?;
        let tube = &self.jobs[&job].tube;
        let watching = waiting().filter(|(_, client)| client.watched.contains(tube));
        watching
            .min_by_key(|(_, client)| client.wait)
            .map(|(client, _)| (*client, job))
    }

    pub(super) fn deadline_soon(&self, client: ClientId, now: Time) -> bool {
        let first = self.first_reserved(client);
        first.is_some_and(|(deadline, _)| deadline.0 - SECOND_NS <= now.0)
    }

    fn client_due(&self, id: ClientId) -> Option<Time> {
        let deadline = self.first_reserved(id).map(|(deadline, _)| deadline.0);
        let due = match self.clients[&id].wait {
            None => deadline.map(|deadline| deadline + 1),
            Some((_, None)) => deadline.map(|deadline| deadline - SECOND_NS),
            Some((_, Some(until))) => {
                Some(deadline.map_or(until.0, |deadline| until.0.min(deadline - SECOND_NS)))
            }
        };
        due.map(Time)
    }

    /// The next timed event.
    fn first_event(&self) -> Option<(Time, Event)> {
        let mut events = Vec::new();
        for tube in &self.tubes {
            if let Some(pause) = &tube.pause {
                events.push((pause.until, 0, JobId(0), Event::EndPause(tube.name.clone())));
            }
        }
        for (id, job) in self
            .jobs
            .iter()
            .filter(|(_, job)| job.state == JobState::Delayed)
        {
            events.push((job.deadline, 1, *id, Event::Ready(*id)));
        }
        for id in self.clients.keys() {
            if let Some(due) = self.client_due(*id) {
                events.push((due, 2, JobId(0), Event::Client(*id)));
            }
        }
        events.sort_by_key(|(due, kind, id, _)| (*due, *kind, *id));
        events
            .into_iter()
            .next()
            .map(|(due, _, _, event)| (due, event))
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        if !self.ghosts.is_empty() || self.next_match().is_some() {
            return Some(Time(i64::MIN));
        }
        self.first_event().map(|(due, _)| due)
    }

    pub(super) fn tick(
        &mut self,
        now: Time,
        budget: usize,
        ended: &mut Vec<(ClientId, WaitEnd)>,
    ) -> bool {
        for _ in 0..budget {
            self.is_ghosts_turn = !self.is_ghosts_turn;
            let done = (self.is_ghosts_turn && self.release_from_ghost())
                || self.tick_due(now, ended)
                || self.release_from_ghost();
            if !done {
                return false;
            }
        }
        let is_held =
            |client: &ClientId| self.clients[client].wait.is_some() && self.next_match().is_some();
        let first = self.first_event().filter(|(due, _)| *due <= now);
        let may_go = match first {
            None => false,
            Some((_, Event::Client(client))) => !is_held(&client),
            Some(_) => true,
        };
        may_go || !self.ghosts.is_empty()
    }

    fn release_from_ghost(&mut self) -> bool {
        let Some(ghost) = self.ghosts.front().copied() else {
            return false;
        };
        let (_, id) = self.first_reserved(ghost).unwrap();
        self.make_ready(id);
        if self.first_reserved(ghost).is_none() {
            self.ghosts.pop_front();
        }
        true
    }

    pub(super) fn make_ready(&mut self, id: JobId) {
        let job = self.jobs.get_mut(&id).unwrap();
        job.state = JobState::Ready;
        job.reserver = None;
    }

    fn tick_due(&mut self, now: Time, ended: &mut Vec<(ClientId, WaitEnd)>) -> bool {
        match self.first_event().filter(|(due, _)| *due <= now) {
            None => return false,
            Some((_, Event::EndPause(name))) => {
                let index = self
                    .tubes
                    .iter()
                    .position(|tube| tube.name == name)
                    .unwrap();
                self.end_pause(index, now);
                self.tidy(now);
            }
            Some((_, Event::Ready(id))) => self.make_ready(id),
            Some((_, Event::Client(id))) if self.clients[&id].wait.is_some() => {
                if self.next_match().is_some() {
                    return false;
                }
                let soon = self.deadline_soon(id, now);
                self.clients.get_mut(&id).unwrap().wait = None;
                ended.push((
                    id,
                    if soon {
                        WaitEnd::DeadlineSoon
                    } else {
                        WaitEnd::TimedOut
                    },
                ));
            }
            Some((_, Event::Client(client))) => {
                let (_, id) = self.first_reserved(client).unwrap();
                self.make_ready(id);
                let job = self.jobs.get_mut(&id).unwrap();
                job.counters.timeouts += 1;
                job.is_dirty = true;
                self.timeouts += 1;
            }
        }
        true
    }
}
