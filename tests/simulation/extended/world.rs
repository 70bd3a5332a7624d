//! A server on a simulated disk, and what its clients do and see.

use std::collections::BTreeMap;
use std::time::Duration;

use bsd::attributes::{Attributes, Unique};
use bsd::check::extended::{any_change, any_end, any_put, is_scheduled};
use bsd::check::whole::Whole;
use bsd::clearing::ClearedStates;
use bsd::engine::{Engine, Flow, ReplySink};
use bsd::policy::Policy;
use bsd::protocol::{Command, Op, Reply, Request};
use bsd::random::Random;
use bsd::storage::{OpenError, SimFs, StoreError, SyncPolicy};
use bsd::types::{ClientId, JobId, Now, Ticket};

use super::super::driver::{MS_NS, TUBES, options};
use super::super::oracle::body;
use super::beats::{self, Beats};
use super::turns::Turns;

const WORKERS: usize = 3;

/// The disk has crashed.
#[derive(Debug)]
pub(super) struct Crashed;

/// A state that the queue had.
pub(super) struct Point {
    pub(super) state: Whole,
    /// It came from the one before in several steps.
    pub(super) has_steps: bool,
}

/// A reply, as far as it is looked at.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Inserted(JobId),
    Exists(JobId),
    /// Jobs that the client has reserved from now on.
    Jobs(Vec<(JobId, Vec<u8>)>),
    Found(Vec<u8>),
    Refused,
    ScheduleSet,
    Done,
}

#[derive(Default)]
struct Replies(Vec<Said>);

impl ReplySink for Replies {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        self.0.push(match reply {
            Reply::Inserted(id) => Said::Inserted(id),
            Reply::Exists(id) => Said::Exists(id),
            Reply::Reserved(id, body) => Said::Jobs(vec![(id, body.to_vec())]),
            Reply::ReservedBatch(jobs) => {
                let jobs = jobs.iter().map(|job| (job.id, job.body.to_vec()));
                Said::Jobs(jobs.collect())
            }
            Reply::Found(_, body) => Said::Found(body.to_vec()),
            Reply::OutOfMemory => Said::Refused,
            Reply::ScheduleSet => Said::ScheduleSet,
            Reply::InternalError | Reply::Refused(_) => panic!("{reply:?}"),
            _ => Said::Done,
        });
    }
}

/// What is the same on the disk of a life and on its copies.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) sync: SyncPolicy,
    pub(super) now: Now,
    /// The bodies that clients have put.
    pub(super) bodies: BTreeMap<u64, Vec<u8>>,
    /// How often clients were given each job, as far as that survived; and the same at the last time
    /// at which it counted.
    handed: BTreeMap<u64, u32>,
    counted: BTreeMap<u64, u32>,
    pub(super) beats: Beats,
    /// The largest body, bytes.
    pub(super) size_max: usize,
    /// The step behind which the tube with many jobs is cleared.
    pub(super) clears_at: Option<u64>,
}

impl Known {
    pub(super) fn new(sync: SyncPolicy, now: Now, size_max: usize) -> Known {
        Known {
            sync,
            now,
            bodies: BTreeMap::new(),
            handed: BTreeMap::new(),
            counted: BTreeMap::new(),
            beats: Beats::default(),
            size_max,
            clears_at: None,
        }
    }

    /// A restart has brought this back.
    pub(super) fn recover(&mut self, state: &Whole) {
        let counts = state.jobs.iter();
        self.handed = counts
            .map(|(id, job)| (*id, job.counters.reserves))
            .collect();
        self.counted.retain(|id, _| state.jobs.contains_key(id));
        // Ids that no client knows of are given out again.
        self.bodies.retain(|id, _| *id < state.next_id);
        for (id, count) in &mut self.counted {
            *count = (*count).min(self.handed[id]);
        }
        self.beats.recover(state);
    }
}

/// A server and its clients.
pub(super) struct World {
    pub(super) fs: SimFs,
    pub(super) engine: Engine,
    pub(super) known: Known,
    boss: ClientId,
    workers: Vec<ClientId>,
    /// Each state, if this is the life that is judged by.
    pub(super) points: Option<Vec<Point>>,
    /// What is to be acknowledged for each of the states to be.
    pub(super) tickets: Vec<Ticket>,
}

/// Opening, and looking.
impl World {
    pub(super) fn open(fs: &SimFs, known: Known, is_judge: bool) -> Result<World, OpenError> {
        let (sync, now) = (known.sync, known.now);
        let engine = Engine::open(&options(fs, sync), now)?;
        let mut world = World {
            fs: fs.clone(),
            engine,
            known,
            boss: ClientId(0),
            workers: Vec::new(),
            points: is_judge.then(Vec::new),
            tickets: Vec::new(),
        };
        world.boss = world.engine.connect();
        world.workers = (0..WORKERS).map(|_| world.connect()).collect();
        world.note(false);
        Ok(world)
    }

    fn connect(&mut self) -> ClientId {
        let (client, now) = (self.engine.connect(), self.known.now);
        for tube in TUBES {
            let watch = Request::Command(Command::Watch(tube.into()));
            self.engine.run(client, watch, now, &mut Replies::default());
        }
        client
    }

    pub(super) fn state(&self) -> Whole {
        let mut state = state_of(&self.engine, self.known.now);
        state.note_reserved(&self.known.counted);
        state
    }

    fn last(&self) -> Option<&Whole> {
        let points = self.points.as_ref()?;
        points.last().map(|point| &point.state)
    }

    /// The queue has another state now.
    fn note(&mut self, has_steps: bool) {
        self.tickets.push(self.engine.after());
        let Some(mut points) = self.points.take() else {
            return;
        };
        let state = self.state();
        if let Some(before) = points.last() {
            assert_keys(&before.state, &state);
        }
        points.push(Point { state, has_steps });
        self.points = Some(points);
    }

    /// Every body is the one that was put.
    pub(super) fn check_bodies(&mut self) {
        let queue = self.engine.queue();
        // Those of a clear that is not over are not found.
        let ids = queue.ids().filter(|id| queue.job(*id).is_some());
        let mut ids: Vec<JobId> = ids.collect();
        ids.sort_unstable();
        for id in ids {
            let said = self.ask(self.boss, Command::Peek(id));
            let Ok(Said::Found(found)) = said else {
                panic!("job {id} cannot be read: {said:?}");
            };
            self.check_body(id, &found);
        }
    }

    /// A job that no client has put is one of a schedule.
    fn check_body(&self, id: JobId, found: &[u8]) {
        match self.known.bodies.get(&id.0) {
            Some(body) => assert!(body == found, "job {id} has another body"),
            None => assert!(is_scheduled(found), "job {id} was never put"),
        }
    }
}

pub(super) fn state_of(engine: &Engine, now: Now) -> Whole {
    Whole::of(engine, &[TUBES[0], TUBES[1], TUBES[2], beats::TUBE], now)
}

/// A command without its body.
fn brief(command: &Command<'_>) -> String {
    match command {
        Command::PutWith(put) => {
            let (key, group) = (&put.key, &put.group);
            format!("put into {:?}, {key:?}, {group:?}", put.tube)
        }
        Command::Fail { id, .. } => format!("fail {id}"),
        Command::BuryWithReason { id, .. } => format!("bury {id}, with a reason"),
        other => format!("{other:?}"),
    }
}

/// The jobs that claim each key of each tube.
fn claims(state: &Whole) -> BTreeMap<(&str, &str), Vec<u64>> {
    let mut claims = BTreeMap::<_, Vec<u64>>::new();
    for (id, job) in &state.jobs {
        let list = job.attributes.as_deref();
        let had = list.map(|list| Attributes::decode(list).expect("a list"));
        let had = had.unwrap_or_default();
        let is_free = had.unique == Some(Unique::Waiting) && job.counters.reserves > 0;
        if let Some(key) = had.key.filter(|_| !is_free) {
            claims.entry((&*job.tube, key)).or_default().push(*id);
        }
    }
    claims
}

/// No put gives a key that a job has to a second one. A job that was moved into a tube may bring one,
/// and has it again where a crash takes back the reserve that gave it up.
pub(super) fn assert_keys(before: &Whole, after: &Whole) {
    let had = claims(before);
    for ((tube, key), ids) in claims(after) {
        let was_moved = |id: &&u64| {
            let list = after.jobs[id].attributes.as_deref();
            let had = list.and_then(Attributes::decode);
            let has_come = before.jobs.get(id).is_some_and(|job| job.tube != tube);
            has_come || had.is_some_and(|had| had.tube.is_some())
        };
        let moved = ids.iter().filter(was_moved).count();
        let most = had.get(&(tube, key)).map_or(0, Vec::len).max(1);
        assert!(
            ids.len() <= most + moved,
            "jobs {ids:?} of {tube} have the key {key}, before {had:?}"
        );
    }
}

/// What clients do.
impl World {
    /// `count` random steps, and the end of the turn.
    pub(super) fn live(&mut self, seed: u64, count: u64) -> Result<(), Crashed> {
        for set in self.known.beats.missing() {
            if let Said::ScheduleSet = self.change(self.boss, set.clone(), false)? {
                self.known.beats.note_set(&set, self.known.now);
            }
        }
        for nth in 0..count {
            let mut random = Random::new(seed).fork(nth);
            self.step(&mut random)?;
            if self.known.clears_at == Some(nth) {
                let states = random.pick(&[ClearedStates::All, ClearedStates::Ready]);
                let tube = TUBES[1].into();
                self.change(self.boss, Command::ClearTube { tube, states }, false)?;
            }
        }
        self.settle()
    }

    fn step(&mut self, random: &mut Random) -> Result<(), Crashed> {
        let worker = self.workers[random.below(WORKERS)];
        let id = self.any_id(random);
        match random.below(100) {
            0..26 => self.put(random)?,
            26..40 => self.reserve(worker, None)?,
            40..44 => self.reserve(worker, Some(random.below(4u16) + 1))?,
            44..66 => self.end_one(random)?,
            66..70 => self.delete(id)?,
            70..72 => self.disconnect(random)?,
            72..74 => {
                let pause = Command::pause_tube(random.pick(&TUBES), random.below(3u32));
                self.change(self.boss, pause, false).map(drop)?;
            }
            _ => {
                let change = any_change(random, &TUBES, id, false);
                self.change(self.boss, change, false).map(drop)?;
            }
        }
        if random.percent(40) {
            self.settle()?;
            self.pass(random.pick(&[0, 1, 30, 120, 700, 700, 2500, 2500, 20_000]));
            self.settle()?;
        }
        Ok(())
    }

    /// A job that is there, other than those that are counted; or none.
    fn any_id(&self, random: &mut Random) -> JobId {
        let queue = self.engine.queue();
        let is_counted = |id: &JobId| queue.job(*id).is_some_and(|job| job.tube == beats::TUBE);
        let mut ids: Vec<JobId> = queue.ids().filter(|id| !is_counted(id)).collect();
        ids.sort_unstable();
        let nth = random.below(ids.len() + 1);
        ids.get(nth).copied().unwrap_or(queue.next_id())
    }

    fn put(&mut self, random: &mut Random) -> Result<(), Crashed> {
        let tube = random.pick(&TUBES);
        let size = random.below(self.known.size_max);
        self.put_into(tube, size, random)
    }

    pub(super) fn put_into(
        &mut self,
        tube: &str,
        size: usize,
        random: &mut Random,
    ) -> Result<(), Crashed> {
        let id = self.engine.queue().next_id();
        let body = body(id, size).to_vec();
        let put = any_put(random, tube, body.clone(), self.known.now);
        match self.change(self.boss, put, false)? {
            Said::Inserted(found) => {
                assert_eq!(found, id);
                self.known.bodies.insert(id.0, body);
                self.known.handed.insert(id.0, 0);
                self.known.counted.remove(&id.0);
            }
            Said::Exists(holder) => {
                let job = self.engine.queue().job(holder);
                assert_eq!(job.map(|job| job.tube), Some(tube));
            }
            said => assert_eq!(said, Said::Refused),
        }
        Ok(())
    }

    fn reserve(&mut self, worker: ClientId, most: Option<u16>) -> Result<(), Crashed> {
        let timeout = Some(Duration::ZERO);
        let command = match most {
            Some(most) => Command::ReserveBatch { most, timeout },
            None => Command::Reserve {
                timeout,
                op: Op::ReserveWithTimeout,
            },
        };
        let policies = self.last().map(|state| TUBES.map(|it| state.policy_of(it)));
        let turns = policies
            .as_ref()
            .map(|it| Turns::of(self.engine.queue(), it));
        let mut turns = turns.unwrap_or_default();
        let said = self.ask(worker, command)?;
        if let Said::Jobs(jobs) = said {
            if self.points.is_some() {
                let ids: Vec<JobId> = jobs.iter().map(|(id, _)| *id).collect();
                println!("    {worker:?} reserves {ids:?}");
            }
            for (id, body) in jobs {
                self.check_body(id, &body);
                let queue = self.engine.queue();
                let job = queue.job(id).expect("it is there");
                turns.take(queue, job.tube, id);
                self.note_handed(id, policies.as_ref());
            }
        }
        self.note(true);
        Ok(())
    }

    /// A client was given a job, of a tube that had one of these policies.
    fn note_handed(&mut self, id: JobId, policies: Option<&[Policy; 3]>) {
        let handed = self.known.handed.entry(id.0).or_default();
        *handed += 1;
        let Some(policies) = policies else { return };
        let job = self.engine.queue().job(id).expect("it is there");
        assert!(
            job.counters.reserves >= *handed,
            "job {id} was handed out {handed} times: {job:?}"
        );
        let tube = TUBES.iter().position(|tube| *tube == job.tube);
        let policy = &policies[tube.expect("it was watched")];
        let reserved = self
            .engine
            .queue()
            .tube_stats(job.tube, self.known.now.mono);
        let reserved = reserved.map_or(0, |stats| stats.jobs.reserved);
        let most = policy.max_reserved.map_or(u64::MAX, u64::from);
        assert!(reserved <= most, "{reserved} jobs of {} at once", job.tube);
        if let Some(limit) = policy.delivery_limit {
            let list = self.engine.queue().attributes(id);
            let from = list.and_then(|list| Attributes::decode(list)?.counted_from);
            let count = job.counters.reserves - from.unwrap_or(0);
            assert!(count <= limit, "job {id} is handed out {count} times");
            self.known.counted.insert(id.0, *handed);
        }
    }

    /// A client lets a job go that it has.
    fn end_one(&mut self, random: &mut Random) -> Result<(), Crashed> {
        let queue = self.engine.queue();
        let holder = |id: JobId| queue.job(id).and_then(|job| job.reserver);
        let held = queue.ids().filter_map(|id| Some((id, holder(id)?)));
        let mut held: Vec<(JobId, ClientId)> = held.collect();
        held.sort_unstable_by_key(|(id, _)| *id);
        if held.is_empty() {
            return Ok(());
        }
        let (id, client) = random.pick(&held);
        let end = any_end(random, id);
        self.change(client, end, false).map(drop)
    }

    fn delete(&mut self, id: JobId) -> Result<(), Crashed> {
        self.change(self.boss, Command::Delete(id), false).map(drop)
    }

    fn disconnect(&mut self, random: &mut Random) -> Result<(), Crashed> {
        let nth = random.below(WORKERS);
        let now = self.known.now;
        self.engine.disconnect(self.workers[nth], now);
        self.note(true);
        self.workers[nth] = self.connect();
        Ok(())
    }

    fn change(
        &mut self,
        client: ClientId,
        command: Command<'static>,
        has_steps: bool,
    ) -> Result<Said, Crashed> {
        let shown = brief(&command);
        let said = self.ask(client, command)?;
        if self.points.is_some() {
            println!("    {client:?} {shown}: {said:?}");
        }
        if said == Said::Refused
            && let Some(before) = self.last()
        {
            let changed = before.difference(&self.state(), self.known.now, true);
            assert_eq!(changed, None, "{shown} was refused");
        }
        self.note(has_steps);
        Ok(said)
    }

    fn ask(&mut self, client: ClientId, command: Command<'static>) -> Result<Said, Crashed> {
        let (now, mut replies) = (self.known.now, Replies::default());
        let request = Request::Command(command.clone());
        let flow = self.engine.run(client, request, now, &mut replies);
        if self.fs.is_crashed() {
            return Err(Crashed);
        }
        // With much to look through, or to set aside first, it takes several turns.
        while flow == Flow::Blocked && replies.0.is_empty() {
            self.note(true);
            let ticked = self.engine.tick(now, &mut replies);
            self.sound(ticked)?;
            let committed = self.engine.commit(now);
            self.sound(committed)?;
        }
        let said = replies.0.pop();
        Ok(said.unwrap_or_else(|| panic!("{command:?} is not answered")))
    }

    fn pass(&mut self, ms: i64) {
        if self.points.is_some() {
            println!("    {ms} ms");
        }
        self.known.now.mono.0 += ms * MS_NS;
        self.known.now.wall_ns += (ms * MS_NS) as u64;
    }

    /// Tick and commit until nothing is left to do now.
    pub(super) fn settle(&mut self) -> Result<(), Crashed> {
        let now = self.known.now;
        for _ in 0..10_000 {
            let ticked = self.engine.tick(now, &mut Replies::default());
            self.sound(ticked)?;
            self.note(true);
            let committed = self.engine.commit(now);
            self.sound(committed)?;
            let due = self.engine.next_deadline(now);
            if due.is_none_or(|due| due > now.mono) {
                self.settled();
                return Ok(());
            }
        }
        panic!("there is always more to do at once");
    }

    fn settled(&mut self) {
        if let Some(log) = self.engine.log() {
            log.assert_accounts();
        }
        if let Some(Point { state, .. }) = self.points.as_ref().and_then(|it| it.last()) {
            self.known.beats.settle(state, self.known.now);
        }
    }

    fn sound(&self, result: Result<(), StoreError>) -> Result<(), Crashed> {
        match self.fs.is_crashed() {
            true => Err(Crashed),
            false => result.map_err(|error| panic!("without any fault: {error}")),
        }
    }
}

/// Fill a tube with more jobs than a clear deletes at once.
impl World {
    pub(super) fn fill(&mut self, tube: &'static str, count: usize) -> Result<(), Crashed> {
        for nth in 0..count {
            let id = self.engine.queue().next_id();
            let body = body(id, nth % 3).to_vec();
            let put = Command::Put {
                tube: Some(tube.into()),
                pri: nth as u32 % 3,
                delay: if nth % 20 == 7 { 100 } else { 0 },
                ttr: 4,
                body: body.clone().into(),
            };
            let said = self.ask(self.boss, put)?;
            assert_eq!(said, Said::Inserted(id));
            self.known.bodies.insert(id.0, body);
        }
        self.settle()
    }
}
