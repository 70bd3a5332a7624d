//! Any commands, with crashes and failing calls at any operation, over several starts: nothing
//! acknowledged is lost, nothing is invented, no id is given out twice.

use std::rc::Rc;
use std::time::Duration;

use super::comparable::{Answer, Answers, readable, recorded, seen, tube};
use super::past::{Effect, Job, Past, Settings};
use super::{DIR, Input, beginning, inspect, options, sound};
use crate::attributes::{Attributes, Unique};
use crate::clearing::ClearedStates;
use crate::engine::{Altered, Engine, Flow, JobAction, Options};
use crate::pattern::Pattern;
use crate::protocol::{
    Command, Conflict, JobKey, OnEach, PutWith, Request, SetPolicy, SetSchedule,
};
use crate::schedule::Schedule;
use crate::storage::disk::sim::{Crash, Errno, Fault, Granularity, OpKind};
use crate::storage::{SimFs, StoreError, SyncPolicy};
use crate::types::{ClientId, JobId, JobState, Now, SettingClass, Ticket, Time};

/// The most starts in a case; the rest of its input is ignored.
const STARTS_MAX: usize = 8;
/// The most commands in a case.
const COMMANDS_MAX: usize = 200;
const MS_NS: i64 = 1_000_000;

/// Panics unless the queue, doing what `data` says, has an allowed state after each crash.
pub fn any_life(data: &[u8]) {
    use SyncPolicy::{Always, Interval, Never};
    let mut input = Input(data);
    let mut world = World {
        sync: input.pick(&[Always, Always, Always, Always, Interval(50), Never]),
        disk: SimFs::new(1),
        now: beginning(),
        past: Past::default(),
        commands_left: COMMANDS_MAX,
    };
    for _ in 0..STARTS_MAX {
        if input.is_empty() {
            break;
        }
        world.live(&mut input);
    }
    world.end();
}

/// A disk, and what must be on it.
struct World {
    disk: SimFs,
    sync: SyncPolicy,
    now: Now,
    past: Past,
    commands_left: usize,
}

impl World {
    fn open(&self) -> Result<Engine, crate::OpenError> {
        let options = Options {
            sync: self.sync,
            ..options(&self.disk, DIR)
        };
        Engine::open(&options, self.now)
    }

    /// A start, which may crash or fail; commands; an end, and its effect on the disk.
    fn live(&mut self, input: &mut Input<'_>) {
        let has_trouble = input.byte().is_multiple_of(4) && plan_trouble(&self.disk, input);
        match self.open() {
            Ok(engine) => self.work(engine, input),
            // If there is no log yet, a full disk has no room to make one.
            Err(error) => assert!(has_trouble || self.is_new(), "without any fault: {error}"),
        }
        let how = any_crash(input);
        if how != Crash::KeepAll {
            self.past.lose_power();
        }
        self.disk = self.disk.crash_image(how);
        self.now.mono = Time(3);
        self.now.wall_ns += 20 * MS_NS as u64;
    }

    fn is_new(&self) -> bool {
        let names = self.disk.names(DIR).unwrap_or_default();
        names.iter().all(|name| !name.starts_with("segment-"))
    }

    /// From a start to a kill, a failure or a clean stop.
    fn work(&mut self, engine: Engine, input: &mut Input<'_>) {
        let mut life = Life::begin(self, engine);
        let end = life.run(input);
        let (engine, has_trouble) = (life.engine, life.has_trouble);
        self.note(&engine);
        let end = end.and_then(|is_stop| {
            if is_stop {
                engine.close(self.now).map(|()| self.past.note_all())
            } else {
                Ok(())
            }
        });
        if let Err(error) = end {
            assert!(has_trouble, "without any fault: {error}");
        }
    }

    /// Note what must survive: what was acknowledged, independent of what the log reports about
    /// itself.
    fn note(&mut self, engine: &Engine) {
        let acknowledged = engine.acknowledged();
        let durable = match self.sync {
            SyncPolicy::Always => acknowledged,
            _ => engine
                .log()
                .map_or(Ticket::NONE, |log| Ticket::at(log.durable())),
        };
        self.past.note(acknowledged, durable);
    }

    /// A start on a working disk, and a clean stop; then the log is read.
    fn end(mut self) {
        self.disk.set_quota(None);
        let engine = sound(self.open());
        let engine = Life::begin(&mut self, engine).engine;
        sound(engine.close(self.now));
        self.past.note_all();
        let disk = self.disk.crash_image(Crash::DropUnsynced);
        let log = sound(inspect(&disk, DIR));
        assert!(log.is_intact(), "{:?}", log.losses);
        let found = recorded(&readable(&log));
        self.past.recover(&found, None, log.next_id);
    }
}

/// Let one of the next operations be the last, or fail; or let the disk be nearly full. Returns
/// whether the queue may give up because of it.
fn plan_trouble(disk: &SimFs, input: &mut Input<'_>) -> bool {
    use OpKind::{Allocate, Create, Rename, SetSize, Sync, SyncDir, Write};
    match input.below(8) {
        0..=3 => disk.crash_at(disk.operations() + 1 + input.below(64) as u64),
        4..=6 => {
            let kinds = [
                Write, Write, Sync, Sync, Create, SyncDir, Rename, Allocate, SetSize,
            ];
            let fault = Fault::fail(input.pick(&kinds), input.pick(&[Errno::IO, Errno::NOSPC]));
            disk.inject(fault.nth(1 + input.below(16) as u64));
        }
        _ => {
            let room = input.byte();
            disk.set_quota((room > 0).then(|| disk.used() + u64::from(room) * 1024));
            return false;
        }
    }
    true
}

fn any_crash(input: &mut Input<'_>) -> Crash {
    match input.below(8) {
        0 | 1 => Crash::DropUnsynced,
        2 | 3 => Crash::KeepAll,
        4 | 5 => Crash::Random {
            seed: input.byte().into(),
        },
        _ => Crash::Subset {
            kept: u64::from(input.u16()) << 16 | u64::from(input.u16()),
            granularity: input.pick(&[Granularity::Write, Granularity::Page, Granularity::Sector]),
        },
    }
}

fn settings(engine: &Engine) -> Settings {
    let of = |class| {
        let all = engine.settings(class);
        all.map(move |(name, value)| ((class, name.to_owned()), value.to_vec()))
    };
    let classes = [SettingClass::Policy, SettingClass::Schedule];
    classes.into_iter().flat_map(of).collect()
}

/// An engine and its clients.
struct Life<'a> {
    disk: SimFs,
    now: &'a mut Now,
    past: &'a mut Past,
    commands_left: &'a mut usize,
    engine: Engine,
    clients: [ClientId; 2],
    /// The disk has a planned fault.
    has_trouble: bool,
}

impl<'a> Life<'a> {
    /// Check that the recovered state is allowed. Planned faults are over.
    fn begin(world: &'a mut World, mut engine: Engine) -> Life<'a> {
        world.disk.crash_at(u64::MAX);
        world.disk.clear_faults();
        let mut ids: Vec<JobId> = engine.queue().ids().collect();
        ids.sort_unstable();
        let found = seen(&mut engine, world.now, &ids);
        let settings = settings(&engine);
        let next_id = engine.queue().next_id();
        world.past.recover(&found, Some(&settings), next_id);
        Life {
            disk: world.disk.clone(),
            now: &mut world.now,
            past: &mut world.past,
            commands_left: &mut world.commands_left,
            clients: [engine.connect(), engine.connect()],
            engine,
            has_trouble: false,
        }
    }

    /// Run the commands of the input until it ends the life (`Ok(true)`: cleanly), or the log
    /// fails.
    fn run(&mut self, input: &mut Input<'_>) -> Result<bool, StoreError> {
        while !input.is_empty() && *self.commands_left > 0 && !self.disk.is_crashed() {
            *self.commands_left -= 1;
            let choice = input.byte();
            match choice % 16 {
                14 => self.has_trouble |= plan_trouble(&self.disk, input),
                15 => return Ok(input.below(2) == 0),
                command => self.command(command, input)?,
            }
            if choice >= 128 {
                self.finish_turn()?;
            }
        }
        Ok(false)
    }

    fn command(&mut self, command: u8, input: &mut Input<'_>) -> Result<(), StoreError> {
        let client = input.pick(&[0, 1]);
        match command {
            0..=3 => self.put(client, input),
            4 => self.reserve(client),
            5 => self.reserve_job(client, input),
            6 | 7 => {
                let id = self.any_id(input);
                self.change(client, Command::Delete(id), Effect::Delete(id))
            }
            8 => self.release(client, input),
            9 => self.bury(client, input),
            10 => self.kick(client, input),
            11 => {
                let id = self.any_id(input);
                self.change(client, Command::KickJob(id), Effect::Ready(vec![id]))
            }
            12 => self.peek_or_alter(client, input),
            _ => self.pass(client, input),
        }
    }

    /// Usually an id that was given out; the next one was not.
    fn any_id(&self, input: &mut Input<'_>) -> JobId {
        JobId(u64::from(input.byte()) % (self.past.now().issued.0 + 2))
    }

    fn put(&mut self, client: usize, input: &mut Input<'_>) -> Result<(), StoreError> {
        let tube = tube(input);
        self.ask(client, Command::Use(tube.into()));
        let size = input.pick(&[0, 1, 100, 3000, 7000, 7000, 20_000, 65_535]);
        let (pri, delay) = (input.byte().into(), input.pick(&[0, 0, 1, 9]));
        let id = self.engine.queue().next_id();
        let word = (id.0 as u8).wrapping_mul(31);
        let body: Rc<[u8]> = (0..size).map(|nth| word ^ (nth / 3) as u8).collect();
        let job = Job {
            tube,
            pri,
            buried: None,
            body: body.clone(),
            home: tube,
        };
        let command = Command::put(pri, delay, 2, &*body);
        self.change(client, command, Effect::Put(id, job))
    }

    fn reserve(&mut self, client: usize) -> Result<(), StoreError> {
        for tube in super::comparable::TUBES {
            self.ask(client, Command::Watch(tube.into()));
        }
        let command = Command::reserve(Some(Duration::ZERO));
        self.change(client, command, Effect::Nothing)
    }

    fn reserve_job(&mut self, client: usize, input: &mut Input<'_>) -> Result<(), StoreError> {
        let id = self.any_id(input);
        self.change(client, Command::ReserveJob(id), Effect::Ready(vec![id]))
    }

    fn release(&mut self, client: usize, input: &mut Input<'_>) -> Result<(), StoreError> {
        let (id, pri) = (self.any_id(input), input.byte().into());
        let delay = input.pick(&[0, 1]);
        let command = Command::Release { id, pri, delay };
        self.change(client, command, Effect::Release(id, pri))
    }

    fn bury(&mut self, client: usize, input: &mut Input<'_>) -> Result<(), StoreError> {
        let (id, pri) = (self.any_id(input), input.byte().into());
        self.change(client, Command::Bury { id, pri }, Effect::Bury(id, pri))
    }

    fn kick(&mut self, client: usize, input: &mut Input<'_>) -> Result<(), StoreError> {
        let (tube, bound) = (tube(input), input.pick(&[1, 2, 100]));
        self.ask(client, Command::Use(tube.into()));
        let mut buried = self.past.now().buried(tube);
        buried.truncate(bound as usize);
        self.change(
            client,
            Command::Kick { tube: None, bound },
            Effect::Ready(buried),
        )
    }

    fn peek_or_alter(&mut self, client: usize, input: &mut Input<'_>) -> Result<(), StoreError> {
        let byte = input.byte();
        let id = JobId(u64::from(byte % 128) % (self.past.now().issued.0 + 2));
        match byte {
            0..96 => self.peek(client, id),
            96..112 => self.extended(client, id, input),
            112..128 => self.batch(client, id, input),
            _ => self.alter(id, input),
        }
    }

    /// Delete or release several jobs. Which of them the client may is known: of all these or of none
    /// the disk has a record after a crash.
    fn batch(
        &mut self,
        client: usize,
        first: JobId,
        input: &mut Input<'_>,
    ) -> Result<(), StoreError> {
        let (count, pri) = (input.pick(&[1, 2, 5, 30]), input.byte().into());
        let ids: Vec<JobId> = (first.0..first.0 + count).map(JobId).collect();
        let on_each = input.pick(&[OnEach::Delete, OnEach::Release { pri, delay: 1 }]);
        let (queue, owner) = (self.engine.queue(), self.clients[client]);
        let effects = ids.iter().filter_map(|id| match on_each {
            OnEach::Delete => queue.deletable(owner, *id).then_some(Effect::Delete(*id)),
            _ => queue
                .is_reserved_by(owner, *id)
                .then_some(Effect::Release(*id, pri)),
        });
        let effect = Effect::All(effects.collect());
        self.change(client, Command::Batch { on_each, ids }, effect)
    }

    /// A command that beanstalkd does not have.
    fn extended(
        &mut self,
        client: usize,
        id: JobId,
        input: &mut Input<'_>,
    ) -> Result<(), StoreError> {
        let (kind, tube, pri) = (input.below(8), tube(input), input.byte().into());
        let text = [b'?'; 40][..usize::from(pri as u8 % 40)].into();
        match kind {
            0 | 1 => self.put_with(client, (tube, pri, kind == 1), input),
            // The job is ready, and of the same priority.
            2 => self.change(client, Command::Fail { id, text }, Effect::Nothing),
            3 => {
                let bury = Command::BuryWithReason { id, pri, text };
                self.change(client, bury, Effect::Bury(id, pri))
            }
            4 => {
                let job = self.past.now().jobs.get(&id);
                let is_there = job.is_some_and(|job| job.tube == tube);
                let effect = match is_there {
                    true => Effect::Nothing,
                    false => Effect::Attribute(id, Some(tube)),
                };
                let to = tube.into();
                self.change(client, Command::MoveJob { id, tube: to }, effect)
            }
            5 => {
                use ClearedStates::{All, Buried, Delayed, Ready};
                let states = input.pick(&[Ready, Delayed, Buried, All]);
                let gone = self.engine.queue().cleared_ids(tube, states);
                let effect = Effect::All(gone.into_iter().map(Effect::Delete).collect());
                let tube = tube.into();
                self.change(client, Command::ClearTube { tube, states }, effect)
            }
            6 => self.set_policy(client, tube, input),
            _ => self.set_schedule(client, tube, input),
        }
    }

    /// A put, with a key or without. Which job has the key is known.
    fn put_with(
        &mut self,
        client: usize,
        (tube, pri, has_key): (&'static str, u32, bool),
        input: &mut Input<'_>,
    ) -> Result<(), StoreError> {
        let unique = input.pick(&[Unique::Exists, Unique::Waiting]);
        let conflict = input.pick(&[Conflict::Keep, Conflict::Replace]);
        let id = self.engine.queue().next_id();
        let body: Rc<[u8]> = vec![id.0 as u8; input.pick(&[0, 100, 7000])].into();
        let job = Job {
            tube,
            pri,
            buried: None,
            body: body.clone(),
            home: tube,
        };
        let queue = self.engine.queue();
        let holder = queue.key_holder(tube, "key").filter(|_| has_key);
        let is_reserved = |id| {
            queue
                .job(id)
                .is_some_and(|it| it.state == JobState::Reserved)
        };
        let effect = match holder {
            None => Effect::Put(id, job),
            Some(holder) if conflict == Conflict::Replace && !is_reserved(holder) => {
                Effect::All(vec![Effect::Put(id, job), Effect::Delete(holder)])
            }
            Some(_) => Effect::Nothing,
        };
        let key = has_key.then(|| JobKey {
            name: "key".into(),
            unique,
            conflict,
        });
        let put = PutWith {
            tube: Some(tube.into()),
            pri,
            delay: 0,
            ttr: 2,
            at: None,
            key,
            group: input.pick(&[None, Some("group")]).map(Into::into),
            body: (&*body).into(),
        };
        self.change(client, Command::PutWith(Box::new(put)), effect)
    }

    /// A policy that makes no job go anywhere: it refuses, holds back, or does nothing.
    fn set_policy(
        &mut self,
        client: usize,
        tube: &str,
        input: &mut Input<'_>,
    ) -> Result<(), StoreError> {
        let text = input.pick(&["", "max-jobs=4", "max-reserved=1", "rate=1/s", "fair=on"]);
        let name = input.pick(&[tube, "*"]);
        let set = SetPolicy {
            tubes: sound(Pattern::parse(name)),
            policy: sound(text.parse()),
        };
        let (name, value) = (name.to_owned(), text.as_bytes().to_vec());
        let effect = Effect::Set(SettingClass::Policy, name, value);
        self.change(client, Command::SetPolicy(Box::new(set)), effect)
    }

    /// A schedule that does not fire, or none.
    fn set_schedule(
        &mut self,
        client: usize,
        tube: &str,
        input: &mut Input<'_>,
    ) -> Result<(), StoreError> {
        let name = input.pick(&["a", "b"]).to_owned();
        let size = input.pick(&[0, 9, 3000]);
        if input.below(4) == 0 {
            let effect = Effect::Set(SettingClass::Schedule, name.clone(), Vec::new());
            return self.change(client, Command::ScheduleDelete(name.into()), effect);
        }
        let schedule = Schedule {
            cron: "0 8 * * 1-5".to_owned(),
            tube: tube.to_owned(),
            is_paused: true,
            body: vec![b's'; size],
            ..Schedule::default()
        };
        let value = sound(schedule.encode());
        let effect = Effect::Set(SettingClass::Schedule, name.clone(), value);
        let set = Box::new(SetSchedule {
            name,
            schedule,
            keeps_pause: false,
        });
        self.change(client, Command::ScheduleSet(set), effect)
    }

    /// A change beside the commands. A move is one effect: the job is in the one tube or in the other.
    fn alter(&mut self, id: JobId, input: &mut Input<'_>) -> Result<(), StoreError> {
        let (kind, tube, pri) = (input.below(8), tube(input), input.byte().into());
        if kind >= 6 {
            return self.attribute(id, (kind == 6).then_some(tube), pri);
        }
        let job = self.past.now().jobs.get(&id).cloned();
        let (old, is_buried) = job.map_or((0, false), |job| (job.pri, job.buried.is_some()));
        let kick = kind == 5;
        let (action, effect) = match kind {
            0 if is_buried => (JobAction::Priority(pri), Effect::Bury(id, pri)),
            0 => (JobAction::Priority(pri), Effect::Release(id, pri)),
            1 => (JobAction::Delay(1), Effect::Ready(vec![id])),
            2 => (JobAction::Bury, Effect::Bury(id, old)),
            _ => {
                let kicked = kick.then(|| Effect::Ready(vec![id]));
                let moved = [Effect::Attribute(id, Some(tube))];
                let effect = Effect::All(kicked.into_iter().chain(moved).collect());
                (JobAction::move_to(tube, kick), effect)
            }
        };
        let mut answers = Answers::default();
        let altered = self.engine.alter(id, &action, *self.now, &mut answers);
        let Some(altered) = altered.ok().filter(|_| !self.disk.is_crashed()) else {
            assert!(self.has_trouble, "{action:?} of job {id} fails");
            self.past.push_unanswered(effect);
            return self.engine.commit(*self.now);
        };
        match altered {
            Altered::Done => self.past.add(effect, self.engine.after()),
            Altered::Same | Altered::NotFound | Altered::Reserved | Altered::NoRoom => {}
        }
        Ok(())
    }

    /// A job gets attributes, which may be in another tube.
    fn attribute(
        &mut self,
        id: JobId,
        tube: Option<&'static str>,
        failures: u32,
    ) -> Result<(), StoreError> {
        let attributes = Attributes {
            key: failures.is_multiple_of(2).then_some("key"),
            unique: failures.is_multiple_of(3).then_some(Unique::Waiting),
            tube,
            failures: Some(failures),
            ..Attributes::default()
        };
        let effect = Effect::Attribute(id, tube);
        let done = self.engine.attribute(id, None, &attributes, *self.now);
        match done.ok().filter(|_| !self.disk.is_crashed()) {
            Some(true) => self.past.add(effect, self.engine.after()),
            Some(false) => {}
            None => {
                assert!(self.has_trouble, "attributes of job {id} fail");
                self.past.push_unanswered(effect);
                return self.engine.commit(*self.now);
            }
        }
        Ok(())
    }

    /// The visible state is the last one that clients know.
    fn peek(&mut self, client: usize, id: JobId) -> Result<(), StoreError> {
        let answer = self.ask(client, Command::Peek(id));
        let is_known = self.past.now().jobs.contains_key(&id);
        match answer {
            Some((_, Answer::Refused)) => assert!(!is_known, "job {id} is not found"),
            Some((_, answer)) => self.compare(&answer),
            None => {}
        }
        Ok(())
    }

    /// Time passes; or a client disconnects, or pauses a tube.
    fn pass(&mut self, client: usize, input: &mut Input<'_>) -> Result<(), StoreError> {
        match input.below(4) {
            0 => {
                self.engine.disconnect(self.clients[client], *self.now);
                self.clients[client] = self.engine.connect();
            }
            1 => {
                let (tube, delay) = (tube(input), input.pick(&[0, 1, 30]));
                self.ask(client, Command::pause_tube(tube, delay));
            }
            _ => {
                self.finish_turn()?;
                let ns = input.pick(&[1, 60, 150, 1000, 3000]) * MS_NS;
                self.now.mono.0 += ns;
                self.now.wall_ns += ns as u64;
            }
        }
        self.finish_turn()
    }

    /// End the turn: tick and commit until there is nothing left to do now.
    fn finish_turn(&mut self) -> Result<(), StoreError> {
        for _ in 0..10_000 {
            let now = *self.now;
            self.engine.tick(now, &mut Answers::default())?;
            self.engine.commit(now)?;
            let next = self.engine.next_deadline(now);
            if next.is_none_or(|next| next > now.mono) {
                return Ok(());
            }
        }
        panic!("there is always more to do at once");
    }

    /// Run a command that has this effect, if it is not refused.
    fn change(
        &mut self,
        client: usize,
        command: Command<'_>,
        effect: Effect,
    ) -> Result<(), StoreError> {
        match self.ask(client, command) {
            Some((after, answer)) => {
                self.compare(&answer);
                self.past.push(effect, &answer, after);
                Ok(())
            }
            None => {
                self.past.push_unanswered(effect);
                self.engine.commit(*self.now)
            }
        }
    }

    /// A job that is handed out exists, with this body.
    fn compare(&self, answer: &Answer) {
        if let Answer::Job(id, body) = answer {
            let job = self.past.now().jobs.get(id);
            let job = job.unwrap_or_else(|| panic!("job {id} is handed out, which is not there"));
            assert!(*job.body == **body, "job {id} has another body");
        }
    }

    /// Run a command; returns the reply, and the position that it waits for. `None`: there is no
    /// reply, because the disk is gone.
    fn ask(&mut self, client: usize, command: Command<'_>) -> Option<(Ticket, Answer)> {
        let mut answers = Answers::default();
        let (client, request) = (self.clients[client], Request::Command(command.clone()));
        let flow = self.engine.run(client, request, *self.now, &mut answers);
        let answer = answers.0.pop().filter(|_| !self.disk.is_crashed());
        assert!(answers.0.is_empty(), "{command:?} is answered twice");
        match &answer {
            None => assert!(self.has_trouble, "{command:?} is not answered"),
            Some((_, Answer::Broken)) => panic!("a body cannot be read on a disk that gives it"),
            Some(_) => assert_eq!(flow, Flow::Next, "{command:?} is answered at once"),
        }
        answer
    }
}
