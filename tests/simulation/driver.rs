//! Runs commands on an engine over a simulated disk, on virtual time, and writes down what must
//! survive.
//!
//! A turn is the same as in the server's loop: commands, `tick`, `commit`. Nothing here looks into
//! the log, except for the positions up to which it is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bsd::engine::{Engine, Flow, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::LogId;
use bsd::storage::{OpenError, SimFs, StoreError, SyncPolicy};
use bsd::types::{ClientId, Counters, JobId, JobState, Now, SECOND_NS, Ticket, Time};

use super::alterations::Change;
use super::beyond::{self, Beyond};
use super::oracle::{Effect, History, Job, Pause, Placed, Seen, SeenJob, State, body, later};

/// The tubes that there are: each is watched for ever, so that none vanishes.
pub(super) const TUBES: [&str; 3] = ["default", "mail", "thumbnails"];
/// The clients that reserve jobs.
pub(super) const WORKERS: usize = 3;
/// The data directory.
pub(super) const DIR: &str = "/data";
pub(super) const SEGMENT_SIZE: u32 = 64 << 10;

/// The wall clock when a run begins.
const BEGIN_NS: u64 = 1_700_000_000 * SECOND_NS as u64;
pub(super) const MS_NS: i64 = 1_000_000;

/// The path of a file of the log.
pub(super) fn path(name: impl AsRef<Path>) -> PathBuf {
    Path::new(DIR).join(name)
}

/// How the engines of a test are set up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) sync: SyncPolicy,
    pub(super) segment_size: u32,
}

impl From<SyncPolicy> for Setup {
    fn from(sync: SyncPolicy) -> Setup {
        Setup {
            sync,
            segment_size: SEGMENT_SIZE,
        }
    }
}

/// How the engines of a test are opened.
pub(super) fn options(fs: &SimFs, setup: impl Into<Setup>) -> Options {
    let Setup { sync, segment_size } = setup.into();
    Options {
        dir: Some(DIR.into()),
        sync,
        segment_size,
        fs: Arc::new(fs.clone()),
        log_id: Some(LogId([7; 16])),
        ..Options::default()
    }
}

/// A reply that outlives its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Inserted(u64),
    Job(u64, Vec<u8>),
    Count(u64),
    OutOfMemory,
    NotFound,
    NoJob,
    InternalError,
    Done,
    /// Jobs that a batch was done to, and those that were not found.
    Batch(u64, usize),
}

#[derive(Debug, Default)]
pub(super) struct Answers(Vec<(Ticket, Answer)>);

impl ReplySink for Answers {
    fn reply(&mut self, _: ClientId, after: Ticket, reply: Reply<'_>) {
        let answer = match reply {
            Reply::Inserted(id) => Answer::Inserted(id.0),
            Reply::Reserved(id, body) | Reply::Found(id, body) => Answer::Job(id.0, body.to_vec()),
            Reply::KickedCount(count) => Answer::Count(count),
            Reply::OutOfMemory => Answer::OutOfMemory,
            Reply::NotFound => Answer::NotFound,
            Reply::TimedOut | Reply::DeadlineSoon => Answer::NoJob,
            Reply::InternalError => Answer::InternalError,
            Reply::Batched(_, count, missing) => Answer::Batch(count, missing.len()),
            _ => Answer::Done,
        };
        self.0.push((after, answer));
    }
}

/// A request of a client, as far as the driver knows: jobs are chosen by number among those that
/// the command can be about, and nothing happens without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Put {
        tube: usize,
        pri: u32,
        delay: u32,
        ttr: u32,
        size: usize,
    },
    Reserve {
        worker: usize,
    },
    ReserveJob {
        worker: usize,
        nth: usize,
    },
    Delete {
        nth: usize,
    },
    DeleteReserved {
        nth: usize,
    },
    Release {
        nth: usize,
        pri: u32,
        delay: u32,
    },
    DeleteBatch {
        nth: usize,
    },
    ReleaseBatch {
        worker: usize,
        pri: u32,
        delay: u32,
    },
    Bury {
        nth: usize,
        pri: u32,
    },
    Touch {
        nth: usize,
    },
    Kick {
        tube: usize,
        bound: u32,
    },
    KickJob {
        nth: usize,
    },
    Peek {
        nth: usize,
    },
    Pause {
        tube: usize,
        seconds: u32,
    },
    /// A change over the API of a job that no one has reserved.
    Alter {
        nth: usize,
        change: Change,
    },
    /// What jobs have beyond plain jobs, or a setting, is changed.
    Beyond(Beyond),
    /// The client leaves, and another comes.
    Disconnect {
        worker: usize,
    },
    /// The end of a turn; then this many milliseconds pass.
    Turn {
        ms: u32,
    },
    /// A clean stop, and a start.
    Restart,
}

impl Step {
    /// A put, with its priority, delay and time to run.
    pub(super) const fn put(tube: usize, [pri, delay, ttr]: [u32; 3], size: usize) -> Step {
        Step::Put {
            tube,
            pri,
            delay,
            ttr,
            size,
        }
    }
}

/// Why a run came to an end.
#[derive(Debug)]
pub(super) enum Stop {
    Store(StoreError),
    Open(OpenError),
    /// The disk failed while the test looked at the state.
    Disk,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::Store(error) => error.fmt(f),
            Stop::Open(error) => error.fmt(f),
            Stop::Disk => f.write_str("the disk failed"),
        }
    }
}

impl From<OpenError> for Stop {
    fn from(error: OpenError) -> Stop {
        Stop::Open(error)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Store(error)
    }
}

/// An engine, its clients, and the history that it has to keep.
pub(super) struct Driver {
    pub(super) fs: SimFs,
    pub(super) history: History,
    pub(super) now: Now,
    setup: Setup,
    /// `None` after it was closed, and could not be opened again.
    engine: Option<Engine>,
    /// The state that must survive while there is no engine to ask.
    least: usize,
    /// Uses a tube to put into it, to kick in it, and to look.
    pub(super) boss: ClientId,
    pub(super) workers: Vec<ClientId>,
    /// Which client has reserved which job, until when.
    pub(super) reserved: BTreeMap<u64, (usize, Time)>,
    /// Commands answered `OUT_OF_MEMORY`.
    pub(super) refused: u64,
    /// The disk may fail: bodies may turn out unreadable, and their jobs are buried then.
    pub(super) is_faulty: bool,
    /// States older than the durable one may still be needed.
    pub(super) keeps_all: bool,
    /// Everything that was ever answered, for comparing runs.
    pub(super) answers: Vec<Answer>,
}

/// The clocks at the beginning of all.
pub(super) fn beginning() -> Now {
    Now::new(Time(5 * SECOND_NS), BEGIN_NS)
}

/// The clocks after a crash or stop at `now`: the monotonic one starts again.
pub(super) fn after_restart(now: Now) -> Now {
    Now::new(Time(3), now.wall_ns + 20 * MS_NS as u64)
}

/// Opening, running, stopping.
impl Driver {
    /// Open an engine that must recover a state of `history` not older than `least`; the history
    /// continues from there.
    ///
    /// # Panics
    /// When it comes to another state: with the differences.
    pub(super) fn open(
        fs: &SimFs,
        setup: impl Into<Setup>,
        now: Now,
        history: &History,
        least: usize,
    ) -> Result<Driver, Stop> {
        let mut driver = Driver::connected(fs, setup.into(), now, history)?;
        let seen = driver.look()?;
        let index = history.find(least, &seen).unwrap_or_else(|differences| {
            panic!(
                "no state from {least} to {} is what was recovered:\n{differences}\n{:?}\n{:?}",
                history.last(),
                driver.engine().recovery(),
                fs.names(DIR)
            )
        });
        let mut state = history.state(index).clone();
        for (id, job) in &mut state.jobs {
            job.counters = seen.jobs[id].counters;
            // A due job stays due, whatever the wall clock says later.
            job.placed = job.placed_at(now.wall_ns);
        }
        driver.history = History::new(state);
        Ok(driver)
    }

    /// Open an engine on a new disk.
    pub(super) fn begin(fs: &SimFs, setup: impl Into<Setup>) -> Result<Driver, Stop> {
        Driver::open(fs, setup, beginning(), &History::new(State::default()), 0)
    }

    /// Open an engine and let everyone connect.
    fn connected(fs: &SimFs, setup: Setup, now: Now, history: &History) -> Result<Driver, Stop> {
        let mut engine = Engine::open(&options(fs, setup), now)?;
        let boss = engine.connect();
        let mut driver = Driver {
            fs: fs.clone(),
            history: history.clone(),
            now,
            setup,
            engine: Some(engine),
            least: 0,
            boss,
            workers: Vec::new(),
            reserved: BTreeMap::new(),
            refused: 0,
            is_faulty: false,
            keeps_all: false,
            answers: Vec::new(),
        };
        driver.watch(boss);
        for _ in 0..WORKERS {
            let worker = driver.connect_worker();
            driver.workers.push(worker);
        }
        // Jobs that fell due meanwhile; the log has no record of it.
        let mut answers = Answers::default();
        while driver
            .engine()
            .queue()
            .next_deadline()
            .is_some_and(|due| due <= now.mono)
        {
            driver.tick_only(&mut answers)?;
        }
        Ok(driver)
    }

    fn connect_worker(&mut self) -> ClientId {
        let worker = self.engine_mut().connect();
        self.watch(worker);
        worker
    }

    fn watch(&mut self, client: ClientId) {
        for tube in TUBES {
            self.ask(client, Command::Watch(tube.into()));
        }
    }

    /// Only an engine, in whatever state it recovers, after it has handled what is due.
    pub(super) fn engine_at(fs: &SimFs, now: Now) -> Result<Engine, Stop> {
        let mut engine = Engine::open(&options(fs, SyncPolicy::Always), now)?;
        engine.tick(now, &mut Answers::default())?;
        Ok(engine)
    }

    pub(super) fn is_open(&self) -> bool {
        self.engine.is_some()
    }

    pub(super) fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the engine is open")
    }

    pub(super) fn engine_mut(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("the engine is open")
    }

    /// Run steps until one fails.
    pub(super) fn run(&mut self, steps: &[Step]) -> Result<(), Stop> {
        steps.iter().try_for_each(|step| self.step(*step))
    }

    /// The first state that a killed process may leave: all that was acknowledged.
    pub(super) fn least_acknowledged(&self) -> usize {
        self.engine.as_ref().map_or(self.least, |engine| {
            self.history.acknowledged(engine.acknowledged())
        })
    }

    /// The first state that a power cut may leave.
    pub(super) fn least_durable(&self) -> usize {
        // What was acknowledged counts, independent of what the log reports about itself.
        if self.setup.sync == SyncPolicy::Always {
            return self.least_acknowledged();
        }
        let log = self.engine.as_ref().and_then(Engine::log);
        log.map_or(self.least, |log| {
            self.history.acknowledged(Ticket::at(log.durable()))
        })
    }

    /// Stop cleanly; the counters that every start from now on has to find.
    pub(super) fn stop(&mut self) -> Result<BTreeMap<u64, Counters>, Stop> {
        self.settle()?;
        self.least = self.least_durable();
        let Some(engine) = self.engine.take() else {
            return Ok(BTreeMap::new());
        };
        let expected = counters(&engine);
        engine.close(self.now)?;
        self.least = self.history.last();
        self.reserved.clear();
        self.now = after_restart(self.now);
        Ok(expected)
    }

    /// Stop cleanly, and start again: nothing is lost, counters included.
    fn restart(&mut self) -> Result<(), Stop> {
        let expected = self.stop()?;
        let (fs, setup, now) = (&self.fs, self.setup, self.now);
        let opened = Driver::open(fs, setup, now, &self.history, self.least);
        let opened = opened?;
        // On a full disk counters go without.
        if !self.is_faulty {
            assert_eq!(
                counters(opened.engine()),
                expected,
                "a clean stop keeps all counters"
            );
        }
        let (refused, answers) = (self.refused, std::mem::take(&mut self.answers));
        let mut history = opened.history.clone();
        if self.keeps_all {
            self.history.outlive_restart(history);
            history = self.history.clone();
        }
        *self = Driver {
            refused,
            answers,
            history,
            is_faulty: self.is_faulty,
            keeps_all: self.keeps_all,
            ..opened
        };
        Ok(())
    }

    /// Let go of the engine as a killed process does.
    pub(super) fn kill(&mut self) {
        self.least = self.least_acknowledged();
        self.engine = None;
    }
}

/// Turns, and time.
impl Driver {
    /// End the turn, let time pass, and handle what is due then.
    pub(super) fn turn(&mut self, ms: u32) -> Result<(), Stop> {
        self.settle()?;
        self.pass(i64::from(ms) * MS_NS);
        self.settle()
    }

    /// Let time pass without anyone noticing yet.
    pub(super) fn pass(&mut self, ns: i64) {
        self.now.mono.0 += ns;
        self.now.wall_ns += ns as u64;
        let now = self.now.mono;
        let ended: Vec<u64> = self
            .reserved
            .iter()
            .filter(|(_, (_, deadline))| *deadline < now)
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            self.reserved.remove(&id);
            self.history.happened.entry(id).or_default().1 += 1;
        }
    }

    /// Tick and commit until nothing is left to do now.
    pub(super) fn settle(&mut self) -> Result<(), Stop> {
        for _ in 0..10_000 {
            let now = self.now;
            self.tick_only(&mut Answers::default())?;
            self.engine_mut().commit(now)?;
            if self.fs.is_crashed() {
                return Err(Stop::Disk);
            }
            if self
                .engine()
                .next_deadline(now)
                .is_none_or(|due| due > now.mono)
            {
                if let Some(log) = self.engine().log() {
                    log.assert_accounts();
                }
                self.engine().queue().assert_claims();
                self.engine().queue().assert_groups();
                let durable = self.least_durable();
                if !self.keeps_all {
                    self.history.forget_before(durable);
                }
                return Ok(());
            }
        }
        panic!("there is always more to do at once");
    }

    /// A tick without a commit.
    pub(super) fn tick(&mut self) -> Result<(), Stop> {
        Ok(self.tick_only(&mut Answers::default())?)
    }

    fn tick_only(&mut self, answers: &mut Answers) -> Result<(), StoreError> {
        let now = self.now;
        self.engine_mut().tick(now, answers)
    }
}

/// Commands.
impl Driver {
    pub(super) fn step(&mut self, step: Step) -> Result<(), Stop> {
        match step {
            Step::Put {
                tube,
                pri,
                delay,
                ttr,
                size,
            } => self.put(tube, pri, delay, ttr, size),
            Step::Reserve { worker } => self.reserve(worker),
            Step::ReserveJob { worker, nth } => self.reserve_job(worker, nth),
            Step::Delete { nth } => match self.nth(nth, |driver, id| !driver.is_reserved(id)) {
                Some(id) => self.delete(self.boss, id),
                None => Ok(()),
            },
            Step::DeleteReserved { nth } => match self.nth_reserved(nth) {
                Some((id, worker)) => self.delete(self.workers[worker], id),
                None => Ok(()),
            },
            Step::Release { nth, pri, delay } => self.release(nth, pri, delay),
            Step::DeleteBatch { nth } => self.delete_batch(nth),
            Step::ReleaseBatch { worker, pri, delay } => self.release_batch(worker, pri, delay),
            Step::Bury { nth, pri } => self.bury(nth, pri),
            Step::Touch { nth } => self.touch(nth),
            Step::Kick { tube, bound } => self.kick(TUBES[tube], bound),
            Step::KickJob { nth } => self.kick_job(nth),
            Step::Peek { nth } => self.peek(nth),
            Step::Pause { tube, seconds } => self.pause(TUBES[tube], seconds),
            Step::Alter { nth, change } => self.alter(nth, change),
            Step::Beyond(step) => self.beyond(step),
            Step::Disconnect { worker } => self.disconnect(worker),
            Step::Turn { ms } => self.turn(ms),
            Step::Restart => self.restart(),
        }
    }

    fn put(
        &mut self,
        tube: usize,
        pri: u32,
        delay: u32,
        ttr: u32,
        size: usize,
    ) -> Result<(), Stop> {
        let tube = TUBES[tube];
        self.ask(self.boss, Command::Use(tube.into()));
        let id = self.engine().queue().next_id();
        let body = body(id, size);
        let placed = match delay {
            0 => Placed::Ready,
            seconds => Placed::Delayed(later(self.now, seconds)),
        };
        let (created, counters) = (self.now.wall_ns, Counters::default());
        let job = Job {
            tube,
            pri,
            delay,
            ttr,
            created,
            body: body.clone(),
            placed,
            counters,
            home: tube,
            attributes: None,
        };
        let put = Effect::Put(id.0, job);
        let command = Command::put(pri, delay, ttr, &*body);
        match self.change(self.boss, command, &[put])? {
            Answer::Inserted(found) => assert_eq!(found, id.0),
            other => assert_eq!(other, Answer::OutOfMemory),
        }
        Ok(())
    }

    fn reserve(&mut self, worker: usize) -> Result<(), Stop> {
        let client = self.workers[worker];
        let command = Command::reserve(Some(Duration::ZERO));
        match self.change(client, command, &[])? {
            Answer::Job(id, body) => self.note_reserved(worker, id, &body),
            Answer::OutOfMemory => assert!(self.is_faulty),
            other => assert_eq!(other, Answer::NoJob),
        }
        Ok(())
    }

    fn reserve_job(&mut self, worker: usize, nth: usize) -> Result<(), Stop> {
        let Some(id) = self.nth(nth, |driver, id| !driver.is_reserved(id)) else {
            return Ok(());
        };
        let job = &self.history.now().jobs[&id];
        let set_aside = job.placed_at(self.now.wall_ns) != Placed::Ready;
        let effects = if set_aside {
            vec![Effect::Ready(id, self.counters(id))]
        } else {
            Vec::new()
        };
        let client = self.workers[worker];
        match self.change(client, Command::ReserveJob(JobId(id)), &effects)? {
            Answer::Job(found, body) => {
                assert_eq!(found, id);
                self.note_reserved(worker, id, &body);
            }
            Answer::InternalError => assert!(self.is_faulty),
            other => assert_eq!(other, Answer::OutOfMemory),
        }
        Ok(())
    }

    fn note_reserved(&mut self, worker: usize, id: u64, body: &[u8]) {
        assert!(!self.is_reserved(id), "job {id} is handed out twice");
        let job = &self.history.now().jobs[&id];
        assert_eq!(
            job.placed_at(self.now.wall_ns),
            Placed::Ready,
            "job {id} is handed out"
        );
        assert!(
            *job.body == *body,
            "job {id} is handed out with another body"
        );
        let deadline = self.now.mono.plus_seconds(job.ttr);
        self.reserved.insert(id, (worker, deadline));
        self.history.happened.entry(id).or_default().0 += 1;
    }

    fn delete(&mut self, client: ClientId, id: u64) -> Result<(), Stop> {
        let answer = self.change(client, Command::Delete(JobId(id)), &[Effect::Delete(id)])?;
        if answer != Answer::OutOfMemory {
            assert_eq!(answer, Answer::Done, "job {id} is to be deleted");
            self.reserved.remove(&id);
        }
        Ok(())
    }

    fn release(&mut self, nth: usize, pri: u32, delay: u32) -> Result<(), Stop> {
        let Some((id, worker)) = self.nth_reserved(nth) else {
            return Ok(());
        };
        let mut counters = self.counters(id);
        counters.releases += 1;
        let effect = Effect::Release(id, pri, delay, later(self.now, delay), counters);
        self.let_go(
            worker,
            id,
            Command::Release {
                id: JobId(id),
                pri,
                delay,
            },
            effect,
        )
    }

    fn bury(&mut self, nth: usize, pri: u32) -> Result<(), Stop> {
        let Some((id, worker)) = self.nth_reserved(nth) else {
            return Ok(());
        };
        let mut counters = self.counters(id);
        counters.buries += 1;
        let effect = Effect::Bury(id, pri, counters);
        self.let_go(worker, id, Command::Bury { id: JobId(id), pri }, effect)
    }

    fn let_go(
        &mut self,
        worker: usize,
        id: u64,
        command: Command<'_>,
        effect: Effect,
    ) -> Result<(), Stop> {
        let answer = self.change(self.workers[worker], command, &[effect])?;
        if answer != Answer::OutOfMemory {
            assert_eq!(answer, Answer::Done);
            self.reserved.remove(&id);
        }
        Ok(())
    }

    fn touch(&mut self, nth: usize) -> Result<(), Stop> {
        let Some((id, worker)) = self.nth_reserved(nth) else {
            return Ok(());
        };
        let answer = self.change(self.workers[worker], Command::Touch(JobId(id)), &[])?;
        assert_eq!(answer, Answer::Done);
        let ttr = self.history.now().jobs[&id].ttr;
        self.reserved
            .insert(id, (worker, self.now.mono.plus_seconds(ttr)));
        Ok(())
    }

    fn kick(&mut self, tube: &'static str, bound: u32) -> Result<(), Stop> {
        self.ask(self.boss, Command::Use(tube.into()));
        let state = self.history.now();
        let reserved = |id: &u64| !self.is_reserved(*id);
        let mut ids = state.buried(tube);
        if ids.is_empty() {
            ids = state.delayed(tube, self.now.wall_ns);
        }
        ids.retain(reserved);
        ids.truncate(bound as usize);
        let effects: Vec<Effect> = ids.iter().map(|id| self.kicked(*id)).collect();
        match self.change(self.boss, Command::Kick { tube: None, bound }, &effects)? {
            Answer::Count(count) if count < effects.len() as u64 => self.refused += 1,
            answer => assert_eq!(answer, Answer::Count(effects.len() as u64)),
        }
        Ok(())
    }

    fn kick_job(&mut self, nth: usize) -> Result<(), Stop> {
        let wall_ns = self.now.wall_ns;
        let set_aside = |driver: &Driver, id| {
            !driver.is_reserved(id)
                && driver.history.now().jobs[&id].placed_at(wall_ns) != Placed::Ready
        };
        let Some(id) = self.nth(nth, set_aside) else {
            return Ok(());
        };
        let effect = self.kicked(id);
        let answer = self.change(self.boss, Command::KickJob(JobId(id)), &[effect])?;
        assert!(
            matches!(answer, Answer::Done | Answer::OutOfMemory),
            "{answer:?}"
        );
        Ok(())
    }

    fn kicked(&self, id: u64) -> Effect {
        let mut counters = self.counters(id);
        counters.kicks += 1;
        Effect::Ready(id, counters)
    }

    fn peek(&mut self, nth: usize) -> Result<(), Stop> {
        let Some(id) = self.nth(nth, |_, _| true) else {
            return Ok(());
        };
        match self.change(self.boss, Command::Peek(JobId(id)), &[])? {
            Answer::Job(found, body) => {
                assert_eq!(found, id);
                assert!(
                    *body == *self.history.now().jobs[&id].body,
                    "job {id} has another body"
                );
            }
            other => assert!(
                self.is_faulty && other == Answer::InternalError,
                "{other:?}"
            ),
        }
        Ok(())
    }

    fn pause(&mut self, tube: &'static str, seconds: u32) -> Result<(), Stop> {
        let effect = match seconds {
            0 => Effect::Resume(tube),
            duration => Effect::Pause(
                tube,
                Pause {
                    until: later(self.now, duration),
                    duration,
                },
            ),
        };
        let command = Command::pause_tube(tube, seconds);
        let answer = self.change(self.boss, command, &[effect])?;
        assert!(
            matches!(answer, Answer::Done | Answer::OutOfMemory),
            "{answer:?}"
        );
        Ok(())
    }

    fn disconnect(&mut self, worker: usize) -> Result<(), Stop> {
        let (client, now) = (self.workers[worker], self.now);
        self.engine_mut().disconnect(client, now);
        self.reserved.retain(|_, (holder, _)| *holder != worker);
        self.settle()?;
        self.workers[worker] = self.connect_worker();
        Ok(())
    }
}

/// The path of commands.
impl Driver {
    /// Run a command that, if it is not refused, has these effects, the first of them if it says
    /// how many.
    pub(super) fn change(
        &mut self,
        client: ClientId,
        command: Command<'_>,
        effects: &[Effect],
    ) -> Result<Answer, Stop> {
        let reply = self.ask(client, command).filter(|_| !self.fs.is_crashed());
        let Some((after, answer)) = reply else {
            return Err(self.unanswered(effects));
        };
        let count = match answer {
            Answer::OutOfMemory => {
                self.refused += 1;
                0
            }
            Answer::NotFound | Answer::NoJob | Answer::InternalError => 0,
            Answer::Count(count) => effects.len().min(count as usize),
            _ => effects.len(),
        };
        self.history.push(&effects[..count], after);
        if self.is_faulty {
            self.note_quarantined(after);
        }
        Ok(answer)
    }

    /// There was no reply: the command may or may not be in the log.
    pub(super) fn unanswered(&mut self, effects: &[Effect]) -> Stop {
        self.history.push(effects, Ticket::LAST);
        let now = self.now;
        let stop = self.engine_mut().commit(now).map_err(Stop::Store);
        stop.err().unwrap_or(Stop::Disk)
    }

    /// Jobs whose bodies could not be read have been buried, in the order of the records of that.
    pub(super) fn note_quarantined(&mut self, after: Ticket) {
        let queue = self.engine().queue();
        let is_new = |(id, job): &(&u64, &Job)| {
            let found = queue.job(JobId(**id));
            found.is_some_and(|found| {
                found.state == JobState::Buried && found.counters.buries > job.counters.buries
            })
        };
        let jobs = self.history.now().jobs.iter().filter(is_new);
        let mut new: Vec<(u64, u32)> = jobs.map(|(id, job)| (*id, job.pri)).collect();
        let log = self.engine().log().expect("there is a log");
        new.sort_by_key(|(id, _)| {
            let job = queue.job(JobId(*id)).expect("the job was just seen");
            (
                log.files().segment_of(job.update_place),
                job.update_place.offset,
            )
        });
        for (id, pri) in new {
            let counters = queue_counters(self.engine(), id);
            self.history.push(&[Effect::Bury(id, pri, counters)], after);
            self.reserved.remove(&id);
        }
    }

    /// Run a command; the reply, and the position it waits for. `None`: the log has failed.
    fn ask(&mut self, client: ClientId, command: Command<'_>) -> Option<(Ticket, Answer)> {
        let mut answers = Answers::default();
        let now = self.now;
        let flow =
            self.engine_mut()
                .run(client, Request::Command(command.clone()), now, &mut answers);
        assert!(
            answers.0.len() <= 1,
            "{command:?} is answered once: {answers:?}"
        );
        let (after, answer) = answers.0.pop()?;
        assert_eq!(flow, Flow::Next, "{command:?} is answered at once");
        self.answers.push(answer.clone());
        Some((after, answer))
    }

    pub(super) fn is_reserved(&self, id: u64) -> bool {
        self.reserved.contains_key(&id)
    }

    pub(super) fn nth(&self, nth: usize, choose: impl Fn(&Driver, u64) -> bool) -> Option<u64> {
        let jobs = self.history.now().jobs.keys().copied();
        let ids: Vec<u64> = jobs.filter(|id| choose(self, *id)).collect();
        ids.get(nth % ids.len().max(1)).copied()
    }

    /// The job is no client's any more.
    pub(super) fn forget_reserved(&mut self, id: u64) {
        self.reserved.remove(&id);
    }

    pub(super) fn nth_reserved(&self, nth: usize) -> Option<(u64, usize)> {
        let ids: Vec<_> = self
            .reserved
            .iter()
            .map(|(id, (worker, _))| (*id, *worker))
            .collect();
        ids.get(nth % ids.len().max(1)).copied()
    }

    /// The counters that a record made now has.
    pub(super) fn counters(&self, id: u64) -> Counters {
        let (reserves, timeouts) = self.history.happened.get(&id).copied().unwrap_or_default();
        Counters {
            reserves,
            timeouts,
            ..self.history.now().jobs[&id].counters
        }
    }
}

/// Looking.
impl Driver {
    /// The durable state that the engine shows. The order of buried jobs shows only when they are
    /// kicked: that is done, and that everything else still works is seen, on a copy of the disk.
    pub(super) fn look(&mut self) -> Result<Seen, Stop> {
        let next_id = self.engine().queue().next_id().0;
        let mut jobs = BTreeMap::new();
        // Not all ids below the next one: a restored log passes over billions of them.
        let ids: BTreeSet<JobId> = self.engine().queue().ids().collect();
        for id in ids {
            let operations = self.fs.operations();
            let body = match self.ask(self.boss, Command::Peek(id)) {
                Some((_, Answer::Job(_, body))) => body,
                _ if self.has_failed_since(operations) => return Err(Stop::Disk),
                other => panic!("the body of job {id} is not to be had: {other:?}"),
            };
            jobs.insert(id.0, self.see(id, body));
        }
        assert_eq!(
            self.engine().queue().stats().jobs.total(),
            jobs.len() as u64
        );
        let buried = jobs
            .values()
            .any(|job| matches!(job.placed, Placed::Buried(_)));
        Ok(Seen {
            wall_ns: self.now.wall_ns,
            buried: if buried {
                self.buried_order()
            } else {
                BTreeMap::new()
            },
            jobs,
            pauses: self.pauses(),
            settings: self.settings(),
            next_id,
        })
    }

    fn has_failed_since(&self, operations: u64) -> bool {
        let trace = self.fs.trace();
        trace
            .iter()
            .rev()
            .take_while(|it| it.number > operations)
            .any(|it| it.failed)
    }

    fn see(&self, id: JobId, body: Vec<u8>) -> SeenJob {
        let job = self
            .engine()
            .queue()
            .job(id)
            .expect("the job was just seen");
        let placed = match job.state {
            JobState::Ready | JobState::Reserved => Placed::Ready,
            JobState::Delayed => Placed::Delayed(
                self.now
                    .to_wall(job.deadline.expect("a delayed job falls due")),
            ),
            JobState::Buried => Placed::Buried(0),
        };
        SeenJob {
            tube: job.tube.to_owned(),
            pri: job.pri,
            delay: job.delay,
            ttr: job.ttr,
            created: self.now.to_wall(job.created),
            body,
            placed,
            counters: job.counters,
            attributes: self.engine().queue().attributes(id).map(<[u8]>::to_vec),
        }
    }

    fn settings(&self) -> BTreeMap<String, Vec<u8>> {
        let all = self.engine().settings(beyond::CLASS);
        all.map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect()
    }

    fn pauses(&self) -> BTreeMap<&'static str, Pause> {
        let mut pauses = BTreeMap::new();
        for tube in TUBES {
            let Some(stats) = self.engine().queue().tube_stats(tube, self.now.mono) else {
                continue;
            };
            if stats.pause_left_ns > 0 {
                let until = self.now.wall_ns + stats.pause_left_ns as u64;
                pauses.insert(
                    tube,
                    Pause {
                        until,
                        duration: stats.pause,
                    },
                );
            }
        }
        pauses
    }

    /// The buried jobs of each tube, in the order in which they are kicked.
    fn buried_order(&self) -> BTreeMap<&'static str, Vec<u64>> {
        let copy = self.copy();
        let mut driver = Driver::connected(&copy, self.setup, self.now, &self.history)
            .unwrap_or_else(|error| panic!("a copy of the directory cannot be opened: {error}"));
        TUBES
            .iter()
            .map(|tube| (*tube, driver.kick_one_by_one(tube)))
            .collect()
    }

    /// The disk as it is, all of it durable, with room on it.
    fn copy(&self) -> SimFs {
        let copy = self.fs.crash_image(Crash::KeepAll);
        copy.set_quota(None);
        copy
    }

    fn kick_one_by_one(&mut self, tube: &'static str) -> Vec<u64> {
        self.ask(self.boss, Command::Use(tube.into()));
        let mut order = Vec::new();
        while let Some((_, Answer::Job(id, _))) = self.ask(self.boss, Command::PeekBuried(None)) {
            order.push(id);
            let kicked = self.ask(
                self.boss,
                Command::Kick {
                    tube: None,
                    bound: 1,
                },
            );
            assert_eq!(kicked.map(|(_, answer)| answer), Some(Answer::Count(1)));
        }
        order
    }

    /// A recovered queue is a queue: on a copy of the disk, a job is put, everything is reserved or
    /// deleted, and after one more start nothing is left.
    pub(super) fn assert_goes_on_working(&self) {
        let copy = self.copy();
        let broken = |error| panic!("it does not go on working: {error}");
        let opened = Driver::open(&copy, self.setup, self.now, &self.history, 0);
        let mut driver = opened.unwrap_or_else(broken);
        let put = Step::put(1, [3, 0, 9], 300);
        let mut steps = vec![
            put,
            Step::Reserve { worker: 0 },
            Step::DeleteReserved { nth: 0 },
        ];
        steps.extend(vec![
            Step::Delete { nth: 0 };
            driver.history.now().jobs.len() + 1
        ]);
        steps.extend([Step::Turn { ms: 200 }, Step::Restart]);
        if let Err(stop) = driver.run(&steps) {
            broken(stop);
        }
        assert_eq!(driver.engine().queue().stats().jobs.total(), 0);
        assert_eq!(driver.history.now().jobs.len(), 0);
    }

    /// The sizes of all files of the log; saved torn tails are not part of it.
    pub(super) fn disk_bytes(&self) -> u64 {
        disk_bytes(&self.fs)
    }
}

/// The bytes of all files in the directory but saved torn tails.
pub(super) fn disk_bytes(fs: &SimFs) -> u64 {
    let names = fs.names(DIR).expect("the directory exists");
    let size = |name: &String| fs.read(path(name)).map_or(0, |bytes| bytes.len() as u64);
    names
        .iter()
        .filter(|name| !name.starts_with("cut-"))
        .map(size)
        .sum()
}

fn counters(engine: &Engine) -> BTreeMap<u64, Counters> {
    let ids = engine.queue().ids();
    let jobs = ids.filter_map(|id| engine.queue().job(id));
    jobs.map(|job| (job.id.0, job.counters)).collect()
}

fn queue_counters(engine: &Engine, id: u64) -> Counters {
    engine
        .queue()
        .job(JobId(id))
        .map(|job| job.counters)
        .unwrap_or_default()
}
