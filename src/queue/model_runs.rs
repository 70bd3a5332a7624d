//! Random runs of the queue against the model, and of replay against the recorded run.
//!
//! A run does what an engine does (decide, record, apply, serve) with a few clients, tubes and jobs
//! on virtual time, and compares everything visible after every step. A failure prints the seed and
//! the step; `BSD_TEST_SCALE=100` runs a hundred times as many.

use super::model::{Model, ModelJob};
use super::*;
use crate::check::volume::volume;
use crate::clearing::ClearedStates;
use crate::pattern::Pattern;
use crate::random::Random;
use crate::types::SECOND_NS;

const TUBES: [&str; 5] = ["default", "a", "b", "c", "d"];
/// Tubes that a client watches at most. The end of a wait for more counts as more than one event, which
/// the model does not know.
const WATCHED_MAX: usize = 3;
/// The key that jobs have, if they have one.
const KEY: &str = "a-5";
/// Lists of attributes: two groups, one of them also in another tube; none; a key; the same until the
/// job is reserved, there and in another tube; a count of failures, or of 0, and a tube that the job is
/// moved to.
const LISTS: [&[u8]; 11] = [
    b"\x03\x01\0g",
    b"\x03\x01\0h",
    b"\x03\x01\0g\x04\x01\0c",
    b"\x01\x03\0a-5\x03\x01\0h",
    b"",
    b"\x01\x03\0a-5\x02\x01\0\x01",
    b"\x01\x03\0a-5\x02\x01\0\x01\x04\x01\0c",
    b"\x01\x03\0a-5",
    b"\x06\x04\0\x01\0\0\0",
    b"\x04\x01\0c\x06\x04\0\x02\0\0\0",
    b"\x04\x07\0default\x06\x04\0\0\0\0\0",
];

struct Run {
    seed: u64,
    step: u32,
    random: Random,
    now: Time,
    queue: Queue,
    model: Model,
    pins: Vec<(TubeRef, String)>,
    /// The tubes of the clears that go on.
    clears: VecDeque<&'static str>,
    log: Vec<Change<'static>>,
    created: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut queue = Queue::new();
        queue.finish_replay(Time(0));
        // Clients are wide from one, two or three tubes on, or never; and their searches are done
        // in slices, or at once.
        queue.wide_len = [usize::MAX, 1, 2, 0][seed as usize % 4];
        queue.search_len = [0, usize::MAX][seed as usize / 4 % 2];
        let (model, pins, log) = (Model::new(), Vec::new(), Vec::new());
        let random = Random::new(seed);
        Run {
            seed,
            step: 0,
            random,
            now: Time(0),
            queue,
            model,
            pins,
            clears: VecDeque::new(),
            log,
            created: 0,
        }
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random.below(bound)
    }

    fn one_in(&mut self, odds: u32) -> bool {
        self.below(odds) == 0
    }

    fn any_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        if all.is_empty() {
            None
        } else {
            Some(all[self.below(all.len() as u32) as usize])
        }
    }

    fn any_tube(&mut self) -> &'static str {
        TUBES[self.below(TUBES.len() as u32) as usize]
    }

    fn any_job(&mut self) -> Option<JobId> {
        let ids: Vec<_> = self.model.jobs.keys().copied().collect();
        self.any_of(&ids)
    }

    fn any_client(&mut self, is_idle: bool) -> Option<ClientId> {
        let clients = self.model.clients.iter();
        let ids: Vec<_> = clients
            .filter(|(_, c)| !is_idle || c.wait.is_none())
            .map(|(id, _)| *id)
            .collect();
        self.any_of(&ids)
    }

    fn any_reserved(&mut self, client: ClientId) -> Option<JobId> {
        let jobs = self.model.jobs.iter();
        let ids: Vec<_> = jobs
            .filter(|(_, job)| job.reserver == Some(client))
            .map(|(id, _)| *id)
            .collect();
        self.any_of(&ids)
    }

    /// No two events get the same time, or the nanosecond after it (when a reservation runs out),
    /// so the order of events is unique.
    fn instant(&mut self) -> Time {
        self.now.0 += 2;
        self.now
    }

    /// Records a change and applies it to the queue and the model.
    fn apply(&mut self, change: Change<'static>) {
        let now = self.instant();
        let place = self.record(change);
        let expected = self.model.apply(&change, place, now);
        assert_eq!(self.queue.apply(&change, place, now), Ok(expected));
        self.take_lapsed();
    }

    fn record(&mut self, change: Change<'static>) -> Place {
        self.log.push(change);
        Place {
            file: 1,
            offset: self.log.len() as u32,
        }
    }

    fn take_lapsed(&mut self) {
        while let Some((tube, place, early)) = self.model.lapsed.pop_front() {
            let lapsed = self.queue.take_lapsed_pause().unwrap();
            assert_eq!(
                (&*lapsed.tube, lapsed.place, lapsed.early),
                (&*tube, place, early)
            );
            if early {
                let tube = TUBES.into_iter().find(|name| *name == tube).unwrap();
                self.record(Change::Pause {
                    tube,
                    duration: 0,
                    until: self.now,
                });
            }
        }
        assert_eq!(self.queue.take_lapsed_pause(), None);
    }

    fn act(&mut self) {
        let Some(client) = self.any_client(true) else {
            return self.come_or_go();
        };
        match self.below(22) {
            0 => self.come_or_go(),
            1..=3 => self.change_tubes(client),
            4..=7 => self.put(client),
            8..=11 => self.reserve(client),
            12..=14 => self.finish(client),
            15 => self.kick(client),
            16 => self.kick_or_fetch_one(client),
            17 => self.delete(client),
            18 if self.one_in(3) => self.give_back(client),
            18 => self.touch(client),
            19 if self.one_in(3) => self.attribute(),
            19 if self.one_in(4) => self.change_fairness(),
            19 if self.one_in(2) => self.alter(),
            19 => self.pause(),
            20 if self.one_in(5) => self.clear(),
            20 => self.flush_dirty(),
            _ => self.pin_or_unpin(client),
        }
    }

    fn come_or_go(&mut self) {
        let now = self.instant();
        let leaver = self
            .any_client(false)
            .filter(|_| self.model.clients.len() > 4);
        match leaver {
            Some(client) => {
                let budget = self.below(3) as usize;
                assert_eq!(
                    self.queue.disconnect(client, now, budget),
                    self.model.disconnect(client, now, budget)
                );
            }
            None => {
                let client = self.queue.connect();
                self.model.connect(client);
                self.created += 1;
            }
        }
        self.take_lapsed();
    }

    fn change_tubes(&mut self, id: ClientId) {
        let (now, name) = (self.instant(), self.any_tube());
        match self.below(3) {
            0 => {
                self.queue.use_tube(id, name, now);
                self.model.tube(name);
                self.model.clients.get_mut(&id).unwrap().used = name.to_owned();
            }
            1 => {
                let watched = &mut self.model.clients.get_mut(&id).unwrap().watched;
                if !watched.iter().any(|other| other == name) {
                    if watched.len() == WATCHED_MAX {
                        return;
                    }
                    watched.push(name.to_owned());
                }
                let watched = watched.len();
                self.model.tube(name);
                assert_eq!(self.queue.watch(id, name), watched);
            }
            _ => {
                let watched = &mut self.model.clients.get_mut(&id).unwrap().watched;
                let is_only = watched.len() == 1 && watched[0] == name;
                if let Some(index) = watched.iter().position(|other| other == name && !is_only) {
                    watched.swap_remove(index);
                }
                let expected = (!is_only).then_some(watched.len());
                assert_eq!(self.queue.ignore(id, name, now), expected);
            }
        }
        self.model.tidy(now);
        self.take_lapsed();
    }

    fn put(&mut self, client: ClientId) {
        let used = &self.model.clients[&client].used;
        let tube = TUBES.into_iter().find(|name| name == used).unwrap();
        let delay = if self.one_in(3) { self.below(5) } else { 0 };
        // On both sides of 1024.
        let pri = 1020 + self.below(8);
        let (ttr, body_size) = (1 + self.below(6), self.below(1000));
        let (id, created) = (self.queue.take_id().unwrap(), self.instant());
        self.apply(Change::Put {
            id,
            tube,
            pri,
            delay,
            ttr,
            created,
            body_size,
        });
        if self.one_in(2) {
            let list = LISTS[self.below(2) as usize];
            self.apply(Change::Attributes { id, list });
        }
    }

    /// A tube gets or loses a policy of its own, or all others do.
    fn change_fairness(&mut self) {
        let (tube, now) = (self.any_tube(), self.instant());
        let has_own = tube != TUBES[0];
        let policy = [Some(true), Some(false), None][self.below(3) as usize];
        if has_own {
            self.model.set_policy(tube, policy, now);
        } else {
            self.model.is_fair = policy == Some(true);
        }
        set_policy(
            &mut self.queue,
            if has_own { tube } else { "*" },
            policy,
            now,
        );
        self.take_lapsed();
    }

    fn reserve(&mut self, client: ClientId) {
        let now = self.instant();
        let best = self.model.best_ready(client, now);
        if self.queue.takes_long(client) {
            let until = now.plus_seconds(self.below(5));
            self.queue.wait(client, Some(until));
            self.queue.go_on_searching(usize::MAX);
            let turn = self.model.next_turn();
            self.model.clients.get_mut(&client).unwrap().wait = Some((turn, Some(until)));
            return self.serve();
        }
        assert_eq!(self.queue.best_ready(client, now), best);
        if let Some(id) = best {
            self.queue.reserve(client, id, now);
            self.model.reserve(client, id, now);
        } else if self.queue.has_ready(client) || !self.queue.deadline_soon(client, now) {
            let seconds = self.below(5);
            let until = (!self.one_in(3)).then(|| now.plus_seconds(seconds));
            self.queue.wait(client, until);
            let turn = self.model.next_turn();
            self.model.clients.get_mut(&client).unwrap().wait = Some((turn, until));
        }
    }

    fn finish(&mut self, client: ClientId) {
        let Some(id) = self.any_reserved(client) else {
            return;
        };
        let pri = 1020 + self.below(8);
        let change = match self.below(3) {
            0 => {
                let (delay, now) = (self.below(3), self.instant());
                self.queue.decide_release(id, pri, delay, now).unwrap()
            }
            1 => self.queue.decide_bury(id, pri).unwrap(),
            _ => Change::Delete { id },
        };
        self.apply(change);
    }

    /// Like `kick`: a few buried jobs, or otherwise a few delayed ones.
    fn kick(&mut self, client: ClientId) {
        let pin = self.queue.pin_tube(&self.model.clients[&client].used);
        let buried = self.queue.first_buried(&pin).is_some();
        for _ in 0..2 {
            let first = if buried {
                Queue::first_buried
            } else {
                Queue::first_delayed
            };
            let Some(id) = first(&self.queue, &pin) else {
                break;
            };
            let change = self.queue.decide_kick(id).unwrap();
            self.apply(change);
        }
        self.queue.unpin(pin, self.now);
    }

    fn kick_or_fetch_one(&mut self, client: ClientId) {
        let Some(id) = self.any_job() else { return };
        let is_aside = is_set_aside(self.model.jobs[&id].state);
        assert_eq!(self.queue.decide_kick(id).is_some(), is_aside);
        let fetch = self.queue.decide_reserve_job(id);
        assert_eq!(fetch.is_some(), is_aside);
        let Some(fetch) = fetch else { return };
        if self.one_in(2) {
            let kick = self.queue.decide_kick(id).unwrap();
            return self.apply(kick);
        }
        self.apply(fetch);
        let now = self.instant();
        self.queue.reserve(client, id, now);
        self.model.reserve(client, id, now);
    }

    fn delete(&mut self, client: ClientId) {
        let Some(id) = self.any_job() else { return };
        let job = &self.model.jobs[&id];
        let expected = job.state != JobState::Reserved || job.reserver == Some(client);
        assert_eq!(self.queue.deletable(client, id), expected);
        if expected {
            self.apply(Change::Delete { id });
        }
    }

    /// A random change of a job that no one has reserved, beside the commands.
    fn alter(&mut self) {
        let Some(id) = self.any_job() else { return };
        let (pri, delay, now) = (1020 + self.below(8), 1 + self.below(4), self.instant());
        let changes = [
            self.queue.decide_priority(id, pri),
            self.queue.decide_delay(id, delay, now),
        ];
        let is_reserved = self.model.jobs[&id].state == JobState::Reserved;
        assert!(changes.iter().all(|change| change.is_none() == is_reserved));
        match (changes, self.below(3)) {
            ([Some(change), _], 0) | ([_, Some(change)], 1) => self.apply(change),
            ([Some(_), _], _) => self.move_job(id),
            _ => {}
        }
    }

    /// A copy in any tube, in the state of the original, which is deleted.
    fn move_job(&mut self, id: JobId) {
        let (copy, tube) = (self.queue.take_id().unwrap(), self.any_tube());
        let job = self.model.jobs[&id].clone();
        self.apply(Change::Put {
            id: copy,
            tube,
            pri: job.pri,
            delay: 0,
            ttr: job.ttr,
            created: job.created,
            body_size: job.body_size,
        });
        self.apply(Change::Update {
            id: copy,
            state: job.state,
            pri: job.pri,
            delay: job.delay,
            deadline: job.deadline,
            counters: job.counters,
        });
        self.apply(Change::Delete { id });
    }

    /// Gives any job, reserved or not, other attributes.
    fn attribute(&mut self) {
        let Some(id) = self.any_job() else { return };
        let list = LISTS[self.below(LISTS.len() as u32) as usize];
        self.apply(Change::Attributes { id, list });
    }

    /// All jobs of a tube in some states are gone at once; the queue frees them later.
    fn clear(&mut self) {
        let (tube, now) = (self.any_tube(), self.instant());
        let states = ["ready", "delayed", "buried", "all"][self.below(4) as usize];
        let states = ClearedStates::parse(states).unwrap();
        let jobs = self.model.jobs.iter();
        let gone = |job: &ModelJob| job.tube == tube && states.has(job.state);
        let ids: Vec<JobId> = jobs
            .filter(|(_, job)| gone(job))
            .map(|(id, _)| *id)
            .collect();
        assert_eq!(self.queue.clearable(tube, states), ids.len() as u64);
        let set = self.queue.cleared_jobs(tube, states);
        for (id, job) in &self.model.jobs {
            let has = set.has(*id, || job.put_tube == tube);
            assert_eq!(has, ids.contains(id), "{id} of {tube}");
        }
        self.queue.doom(set, states, now);
        self.model.tube(tube).pins += 1;
        for id in ids {
            let job = self.model.jobs.remove(&id).unwrap();
            self.model.doomed.insert(id, job);
        }
        self.clears.push_back(tube);
        self.take_lapsed();
    }

    /// Frees this many jobs that were cleared, or all that are left.
    fn free_cleared(&mut self, count: u32) {
        for _ in 0..count {
            let Some(tube) = self.clears.front().copied() else {
                return;
            };
            if let Some(id) = self.queue.next_doomed() {
                self.apply(Change::Delete { id });
                continue;
            }
            let now = self.instant();
            self.queue.end_clear(now);
            self.model.tube(tube).pins -= 1;
            self.model.tidy(now);
            self.clears.pop_front();
            self.take_lapsed();
        }
    }

    fn touch(&mut self, client: ClientId) {
        let Some(id) = self.any_job() else { return };
        let now = self.instant();
        let job = self.model.jobs.get_mut(&id).unwrap();
        let is_mine = job.reserver == Some(client);
        if is_mine {
            job.deadline = now.plus_seconds(job.ttr);
        }
        assert_eq!(self.queue.touch(client, id, now), is_mine);
    }

    fn give_back(&mut self, client: ClientId) {
        let Some(id) = self.any_job() else { return };
        let now = self.instant();
        let is_mine = self.model.jobs[&id].reserver == Some(client);
        if is_mine {
            self.model.make_ready(id);
        }
        assert_eq!(self.queue.give_back(client, id, now), is_mine);
    }

    fn pause(&mut self) {
        let (tube, duration) = (self.any_tube(), self.below(4));
        if self.queue.tube_exists(tube) {
            let until = self.instant().plus_seconds(duration);
            self.apply(Change::Pause {
                tube,
                duration,
                until,
            });
        }
    }

    /// Records the counters of a job that waits for that.
    fn flush_dirty(&mut self) {
        let Some(id) = self.queue.next_dirty() else {
            let mut jobs = self.model.jobs.values();
            assert!(jobs.all(|job| !job.is_dirty));
            return;
        };
        assert!(self.model.jobs[&id].is_dirty);
        let change = self.queue.snapshot(id).unwrap();
        let place = self.record(change);
        assert_eq!(
            self.queue.note_update(id, place),
            self.model.note_update(id, place)
        );
    }

    fn pin_or_unpin(&mut self, client: ClientId) {
        if self.pins.len() < 2 {
            let name = self.model.clients[&client].used.clone();
            self.model.tube(&name).pins += 1;
            self.pins.push((self.queue.pin_tube(&name), name));
        } else {
            let (pin, name) = self.pins.swap_remove(0);
            let now = self.instant();
            self.model.tube(&name).pins -= 1;
            self.model.tidy(now);
            self.queue.unpin(pin, now);
        }
        self.take_lapsed();
    }

    fn pass_time(&mut self) {
        let freed = self.below(3);
        self.free_cleared(freed);
        let ns = i64::from(self.below(700_000_000));
        self.now.0 += if self.one_in(30) { 7 * SECOND_NS } else { ns };
        for _ in 0..self.below(4) {
            let budget = self.below(4) as usize;
            let (mut ended, mut expected) = (Vec::new(), Vec::new());
            let more = self.queue.tick(self.now, budget, &mut ended);
            assert_eq!(more, self.model.tick(self.now, budget, &mut expected));
            assert_eq!(ended, expected);
            self.take_lapsed();
            self.serve();
        }
    }

    /// Usually serves all clients that can be served, sometimes only some.
    fn serve(&mut self) {
        while let Some((client, id)) = self.model.next_match() {
            assert_eq!(self.queue.next_match(), Some((client, id)));
            if self.one_in(4) {
                return;
            }
            let now = self.instant();
            self.queue.reserve(client, id, now);
            self.model.reserve(client, id, now);
        }
    }

    fn check(&mut self) {
        let ids = (0..self.queue.next_id().0).map(JobId);
        ids.for_each(|id| self.check_job(id));
        let names: Vec<_> = self.model.tubes.iter().map(|tube| &*tube.name).collect();
        assert_eq!(self.queue.tube_names().collect::<Vec<_>>(), names);
        for name in TUBES {
            assert_eq!(
                self.queue.tube_stats(name, self.now),
                self.expected_tube(name)
            );
            let holder = self.model.key_holder(name, KEY);
            assert_eq!(self.queue.key_holder(name, KEY), holder);
        }
        self.queue.assert_claims();
        self.queue.assert_groups();
        let clients: Vec<_> = self.model.clients.keys().copied().collect();
        clients
            .into_iter()
            .for_each(|client| self.check_client(client));
        self.check_stats();
        assert_eq!(self.queue.next_match(), self.model.next_match());
        assert_eq!(self.queue.next_deadline(), self.model.next_deadline());
    }

    fn check_job(&self, id: JobId) {
        assert_eq!(self.queue.job(id), self.expected_job(id));
        let attributes = self
            .model
            .jobs
            .get(&id)
            .and_then(|job| job.attributes.as_ref());
        assert_eq!(
            self.queue.attributes(id),
            attributes.map(|(list, _)| &**list)
        );
        if let Some((_, place)) = attributes {
            assert!(self.queue.attributes_are_at(id, *place));
        }
    }

    fn check_client(&mut self, id: ClientId) {
        let (queue, model, client) = (&mut self.queue, &self.model, &self.model.clients[&id]);
        assert_eq!(**queue.used_tube(id), *client.used);
        assert!(
            queue
                .watched(id)
                .eq(client.watched.iter().map(|name| &**name))
        );
        let used = &*client.used;
        assert_eq!(queue.peek_ready(used), model.first_ready(used));
        assert_eq!(queue.peek_delayed(used), model.first_delayed(used));
        assert_eq!(queue.peek_buried(used), model.first_buried(used));
        let has_ready = client
            .watched
            .iter()
            .any(|name| model.first_ready(name).is_some());
        if !queue.takes_long(id) {
            let best = model.best_ready(id, self.now);
            assert_eq!(queue.best_ready(id, self.now), best);
            assert_eq!(queue.has_ready(id), has_ready);
        }
        assert_eq!(
            queue.deadline_soon(id, self.now),
            model.deadline_soon(id, self.now)
        );
        assert_eq!(queue.is_waiting(id), client.wait.is_some());
    }

    fn check_stats(&self) {
        let stats = self.queue.stats();
        let model = &self.model;
        let waiting = model
            .clients
            .values()
            .filter(|client| client.wait.is_some())
            .count();
        assert_eq!(stats.jobs, counts(model.jobs.values()));
        assert_eq!(stats.tubes, model.tubes.len() as u64);
        assert_eq!(stats.connections, model.clients.len() as u64);
        assert_eq!(stats.waiting, waiting as u64);
        assert_eq!(stats.total_connections, self.created);
        assert_eq!(stats.total_jobs, self.queue.next_id().0 - 1);
        assert_eq!(stats.timeouts, model.timeouts);
        let jobs = model.jobs.values().chain(model.doomed.values());
        let dirty = jobs.filter(|job| job.is_dirty).count();
        assert_eq!(self.queue.dirty_count(), dirty as u64);
    }

    fn expected_job(&self, id: JobId) -> Option<JobView<'_>> {
        let job = self.model.jobs.get(&id)?;
        let timed = matches!(job.state, JobState::Delayed | JobState::Reserved);
        Some(JobView {
            id,
            tube: &job.tube,
            state: job.state,
            pri: job.pri,
            delay: job.delay,
            ttr: job.ttr,
            created: job.created,
            deadline: timed.then_some(job.deadline),
            counters: job.counters,
            body_size: job.body_size,
            place: job.place,
            update_place: job.update_place,
            reserver: job
                .reserver
                .filter(|id| self.model.clients.contains_key(id)),
            put_tube_size: job.put_tube.len(),
        })
    }

    fn expected_tube(&self, name: &str) -> Option<TubeStats> {
        let tube = self.model.tubes.iter().find(|tube| tube.name == name)?;
        let clients = || self.model.clients.values();
        let watching = || clients().filter(|client| client.watched.iter().any(|n| n == name));
        let (total_jobs, deletes, pauses) = tube.totals;
        let pause = tube.pause.as_ref().filter(|pause| pause.until > self.now);
        Some(TubeStats {
            jobs: counts(self.model.jobs.values().filter(|job| job.tube == name)),
            using: clients().filter(|client| client.used == name).count() as u32,
            watching: watching().count() as u32,
            waiting: watching().filter(|client| client.wait.is_some()).count() as u64,
            total_jobs,
            deletes,
            pauses,
            pause: pause.map_or(0, |pause| pause.duration),
            pause_left_ns: pause.map_or(0, |pause| pause.until.0 - self.now.0),
        })
    }

    /// True if compaction would copy the record of this change.
    fn is_alive(&self, change: &Change<'_>, place: Place) -> bool {
        match *change {
            Change::Put { id, .. } => self.queue.put_is_at(id, place),
            Change::Update { id, .. } => self.queue.update_is_at(id, place),
            Change::Attributes { id, .. } => self.queue.attributes_are_at(id, place),
            Change::Delete { .. } => false,
            Change::Pause { .. } | Change::Setting { .. } => true,
        }
    }

    /// The queue that a replay of the records comes to, or of those that compaction leaves.
    fn replayed(&self, is_compacted: bool) -> Queue {
        let mut replayed = Queue::new();
        for (index, change) in self.log.iter().enumerate() {
            let place = Place {
                file: 1,
                offset: index as u32 + 1,
            };
            if !is_compacted || self.is_alive(change, place) {
                replayed.apply(change, place, self.now).unwrap();
            }
        }
        for (tube, fair) in &self.model.fair {
            set_policy(&mut replayed, tube, Some(*fair), self.now);
        }
        set_policy(&mut replayed, "*", Some(self.model.is_fair), self.now);
        replayed.set_next_id(self.queue.next_id());
        replayed
    }

    fn check_replay(&mut self, is_compacted: bool) {
        self.free_cleared(u32::MAX);
        while self.queue.dirty_count() > 0 {
            self.flush_dirty();
        }
        let mut replayed = self.replayed(is_compacted);
        replayed.finish_replay(self.now);
        while replayed.tick(self.now, 5, &mut Vec::new()) {}
        // The same queue state, after time and the end of all sessions have had the same effects
        // here.
        for client in self.model.clients.keys() {
            self.queue.disconnect(*client, self.now, 1);
        }
        for (pin, _) in self.pins.drain(..) {
            self.queue.unpin(pin, self.now);
        }
        while self.queue.tick(self.now, 5, &mut Vec::new()) {}
        for id in (0..self.queue.next_id().0).map(JobId) {
            assert_eq!(replayed.job(id), self.queue.job(id));
            assert_eq!(replayed.attributes(id), self.queue.attributes(id));
        }
        replayed.assert_claims();
        replayed.assert_groups();
        self.queue.assert_groups();
        for tube in TUBES {
            let holder = self.queue.key_holder(tube, KEY);
            assert_eq!(replayed.key_holder(tube, KEY), holder);
        }
        assert_eq!(replayed.next_id(), self.queue.next_id());
        assert_eq!(
            in_order(&mut replayed, self.now),
            in_order(&mut self.queue, self.now)
        );
    }
}

fn counts<'a>(jobs: impl Iterator<Item = &'a ModelJob>) -> JobCounts {
    let mut counts = JobCounts::default();
    for job in jobs {
        match job.state {
            JobState::Ready => counts.ready += 1,
            JobState::Reserved => counts.reserved += 1,
            JobState::Delayed => counts.delayed += 1,
            JobState::Buried => counts.buried += 1,
        }
        counts.urgent += u64::from(job.state == JobState::Ready && job.pri < 1024);
    }
    counts
}

/// A policy that is fair, one that is not, or none.
fn set_policy(queue: &mut Queue, tubes: &str, fair: Option<bool>, now: Time) {
    let text = |fair| if fair { "fair=on" } else { "max-jobs=1" };
    let policy = fair.map(|fair| text(fair).parse().unwrap());
    queue.set_policy(&Pattern::parse(tubes).unwrap(), policy, now);
}

/// The ready, buried and delayed jobs of each tube, in the order in which clients get them.
fn in_order(queue: &mut Queue, now: Time) -> Vec<(&'static str, JobId)> {
    let mut order = Vec::new();
    for tube in TUBES {
        for peek in [Queue::peek_ready, Queue::peek_buried, Queue::peek_delayed] {
            while let Some(id) = peek(queue, tube) {
                order.push((tube, id));
                queue
                    .apply(&Change::Delete { id }, Place::NONE, now)
                    .unwrap();
            }
        }
    }
    assert_eq!(queue.stats().jobs, JobCounts::default());
    order
}

/// Reports where a run failed.
impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, step {}", self.seed, self.step);
        }
    }
}

/// The factor by which random tests do more.
pub(super) fn scale() -> u64 {
    volume("BSD_TEST_SCALE", 1)
}

#[test]
fn a_random_run_agrees_with_the_model_at_every_step() {
    for seed in 1..=10 * scale() {
        let mut run = Run::new(seed);
        for step in 0..1000 {
            run.step = step;
            run.act();
            run.check();
            run.pass_time();
            run.check();
        }
    }
}

#[test]
fn replay_arrives_at_the_state_that_was_recorded() {
    for seed in 1..=200 * scale() {
        let mut run = Run::new(seed);
        for step in 0..1 + run.below(400) {
            run.step = step;
            run.act();
            run.pass_time();
        }
        run.check_replay(seed % 2 == 0);
    }
}
