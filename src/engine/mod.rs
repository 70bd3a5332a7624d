//! Joins the queue and the log: commands in, changes logged, replies out when they may leave.
//!
//! Everything that changes a job goes *decide → log → apply → commit → release the replies*; replay
//! uses the same *apply*. Nothing here opens a socket or reads a clock: `now` is an argument, and
//! when to call what is up to the caller, once a turn of its loop:
//!
//! 1. [`Engine::run`] for each request,
//! 2. [`Engine::tick`]: timers, and slices of long work,
//! 3. [`Engine::commit`]: one write and one sync for all of it,
//! 4. send every reply whose ticket [`Engine::acknowledged`] has reached.
//!
//! | where | what |
//! |---|---|
//! | `commands` | what each command does |
//! | `extended` | what do the extended commands do? |
//! | `batch` | many jobs in one command, all of them or none |
//! | `alter` | what may be changed of a job beside the commands |
//! | `holding` | jobs that are held back before they are deleted, and brought back |
//! | `list` | which jobs of a tube are in a state? |
//! | `keys` | puts with a key, and the reserve that frees one |
//! | `attributed` | what jobs have beyond plain jobs, logged with a put or an update |
//! | `settings` | named settings: policies, schedules |
//! | `schedules` | jobs that are put by themselves: when, and in which frame? |
//! | `policies` | setting the policies of tubes; jobs that expire |
//! | `failing` | what becomes of a job whose delivery has failed? |
//! | `store` | where bodies and changes are kept: the log, or memory alone |
//! | `large` | how are large bodies given out? |
//! | `outcome` | what came of logging a change, of handing out a job |
//! | `incoming` | where is a large body that comes slowly? |
//! | `replay` | from the records of a log to a queue |
//! | `upkeep` | what is done beside the commands: timers, counters, markers |
//! | `last` | how long the last record about a name is needed |
//! | `pauses` | who has made the pauses whose records are needed |
//! | `report` | the documents of `stats` |
//! | `figures` | what monitoring wants to know |
//! | `standby` | a queue that follows another one, and takes its place |
//! | `replica` | one of several queues with the same jobs: it follows, or it leads |
//! | `events` | what happens, told to other threads once it is acknowledged |

mod alter;
mod attributed;
mod batch;
mod clearing;
mod commands;
mod events;
mod extended;
mod failing;
mod figures;
mod holding;
mod incoming;
mod keys;
mod kick;
mod large;
mod last;
mod list;
mod outcome;
mod pauses;
mod policies;
mod replay;
mod replica;
mod report;
mod schedules;
mod settings;
#[cfg(test)]
mod spoken;
mod standby;
mod store;
mod upkeep;
mod wall;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use self::events::Telling;
use self::figures::Commits;
use self::incoming::Incoming;
use self::kick::Kick;
use self::large::Checks;
use self::pauses::Pauses;
use self::policies::Sweep;
use self::replay::Replayer;
use self::replica::TurnAcks;
use self::schedules::Schedules;
use self::settings::Settings;
use self::store::{MemoryStore, Store};
use self::wall::WallClock;
use crate::protocol::{Op, Reply, Request, Shown};
use crate::queue::{Delivery, Queue, WaitEnd};
use crate::shortage::Shortage;
use crate::storage::convert::beanstalkd::{TakenOver, take_over};
use crate::storage::disk::Fs;
use crate::storage::format::LogId;
use crate::storage::{
    Body, Log, LogOptions, OpenError, RealFs, Recovery, StoreError, SyncPolicy, Trail, Waker,
};
use crate::types::{ClientId, JobId, Now, Ticket, Time};

pub use self::alter::{Altered, JobAction};
pub use self::attributed::NewJob;
pub use self::clearing::Cleared;
pub use self::events::{FEED_MAX, Feed, Told};
pub use self::figures::{Figures, LogFigures, OldestJob, SegmentFigures};
pub use self::holding::{HeldJob, Returned, WHY_SIZE_MAX};
pub use self::policies::PolicySet;
pub use self::replica::{Follower, Leader};
pub use self::report::TubeDocument;
pub use self::schedules::{ScheduleChange, ScheduleFigures, ScheduleRun, ScheduleView};
pub use self::standby::{ApplyError, Standby};

/// The version of beanstalkd whose protocol is spoken; clients read it from `stats`.
pub const PROTOCOL_VERSION: &str = "1.13";

/// Bytes of recently put bodies that are kept in memory beside the log.
const FRAME_CACHE_SIZE: usize = 4 << 20;

/// Records of pauses may take what is for clients divided by this, beside it.
const PAUSES_PART: u64 = 4;

/// How to open an engine.
#[derive(Clone)]
pub struct Options {
    /// The data directory, created when missing, which its parent may not be; `None` keeps
    /// everything in memory.
    pub dir: Option<PathBuf>,
    /// When records must be durable.
    pub sync: SyncPolicy,
    /// Bytes of a segment file, 64 KiB at least; affects only segments that are begun from now on.
    pub segment_size: u32,
    /// The largest body that a put may have, bytes; affects only new puts.
    pub job_size_max: u32,
    /// Bound of the memory that jobs may take, bytes; a put beyond it is answered `OUT_OF_MEMORY`.
    pub memory_max: Option<u64>,
    /// Bound of the memory that is taken because of clients and not of jobs, bytes: watch lists, tubes
    /// without jobs. It is a part of `memory_max`. What would go beyond it is answered
    /// `OUT_OF_MEMORY`, long watch lists at half of it. Records of pauses may take a quarter as much,
    /// beside it; past half of that anyone who has made more of them than are left is refused.
    pub clients_memory_max: Option<u64>,
    /// Called from background threads when [`Engine::tick`] has something to do. `None`: there are
    /// no threads, and everything happens inside the calls.
    pub waker: Option<Waker>,
    /// Told now and then while the log is replayed: bytes done, bytes in all.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    /// Processor time of the process, in user mode and in the kernel, microseconds: for `stats`.
    /// `None`: zeros.
    pub cpu_times: Option<fn() -> (u64, u64)>,
    /// Tubes at most of which it is counted what happens in them, some 300 bytes each; 0: it is
    /// counted of none. See [`Queue::tally_tubes`](crate::queue::Queue::tally_tubes).
    pub tallied_tubes_max: usize,
    /// The file system; the real one, but for tests.
    pub fs: Arc<dyn Fs>,
    /// Import beanstalkd's log first where `dir` holds one; its files go to a subdirectory.
    pub import: bool,
    /// The identity of a log that is made; `None`: a random one.
    pub log_id: Option<LogId>,
}

#[cfg(any(test, feature = "sim"))]
impl Options {
    /// A log in `dir` of a simulated disk, in segments of the smallest size.
    #[must_use]
    pub fn simulated(disk: &crate::storage::SimFs, dir: &str) -> Options {
        Options {
            dir: Some(dir.into()),
            segment_size: 64 << 10,
            fs: Arc::new(disk.clone()),
            ..Options::default()
        }
    }
}

impl Default for Options {
    /// Nothing but memory, and otherwise what `bsd-server` does without flags.
    fn default() -> Options {
        Options {
            dir: None,
            sync: SyncPolicy::Always,
            segment_size: crate::storage::SEGMENT_SIZE_DEFAULT,
            job_size_max: 65_535,
            memory_max: None,
            clients_memory_max: None,
            waker: None,
            progress: None,
            cpu_times: None,
            tallied_tubes_max: 0,
            fs: Arc::new(RealFs),
            import: false,
            log_id: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("dir", &self.dir)
            .field("sync", &self.sync)
            .field("segment_size", &self.segment_size)
            .field("job_size_max", &self.job_size_max)
            .field("memory_max", &self.memory_max)
            .finish_non_exhaustive()
    }
}

/// Fate of a client after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The reply was given to the sink; the next request may come.
    Next,
    /// The reply comes later, through a sink; nothing more may be run for this client before it.
    Blocked,
    /// `quit`: send what is there, then close.
    Close,
}

/// Facts about the connection of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The other end; `None`: a process of this machine.
    pub peer: Option<std::net::SocketAddr>,
    /// The name in the client's certificate, or of its token, if it has shown one.
    pub name: Option<std::sync::Arc<str>>,
    /// Bytes of replies that the client has not taken.
    pub unread: usize,
}

/// Where replies go.
pub trait ReplySink {
    /// The connection of a client, if it has one.
    fn link(&self, _: ClientId) -> Option<Link> {
        None
    }

    /// A reply for `client`, in order. It must not leave the process before
    /// [`Engine::acknowledged`] is at or past `after`. If the client was blocked it is no more.
    fn reply(&mut self, client: ClientId, after: Ticket, reply: Reply<'_>);

    /// Close the connection of a client, as soon as that can be; `false` if it has none.
    fn close(&mut self, _: ClientId) -> bool {
        false
    }

    /// Whether this client is a caller in this process, which gets what the protocol cannot say: lists of
    /// tubes as they are, by [`ReplySink::reply_in_parts`], however short; and of each job that is handed
    /// out, before the reply that does so, a [`ReplySink::note_delivery`].
    fn is_inside(&self, _: ClientId) -> bool {
        false
    }

    /// What is known of a job that the next reply hands out.
    fn note_delivery(&mut self, _: Delivery) {}

    /// A long document as a reply. Anyone who can, writes it down as it leaves; then nothing may be run
    /// for the client before it has left. Otherwise it is a [`Reply::Yaml`] at once.
    fn reply_in_parts(&mut self, client: ClientId, after: Ticket, mut document: TubeDocument) {
        let mut whole = Vec::with_capacity(document.size());
        while document.write_part(&mut whole) {}
        self.reply(client, after, Reply::Yaml(&whole));
    }

    /// Bytes of replies for which there is room now: a batch of jobs ends before it goes past them. Its
    /// first job may.
    fn room(&self, _: ClientId) -> usize {
        usize::MAX
    }

    /// Whether large bodies come to this client by [`ReplySink::reply_body`]; otherwise in one piece.
    fn takes_pieces(&self, _: ClientId) -> bool {
        false
    }

    /// A job with a large body as a reply. The body is read as it leaves; until then nothing may be run
    /// for the client.
    fn reply_body(&mut self, _: ClientId, _: Ticket, (_, id): (Shown<'_>, JobId), _: Body) {
        unreachable!("job {id} is given in pieces to a client that takes none");
    }
}

/// Part of the queue in replication, with what only that part needs.
#[derive(Debug)]
enum Mode {
    /// It decides, and replies wait for positions of its log.
    Single,
    /// It applies what another queue decides, and serves no one.
    Follower {
        /// See [`Follower::set_clock_ahead`].
        clock_ahead_ns: i64,
    },
    /// It decides, and others have to have that before replies leave.
    Leader(TurnAcks),
}

/// A queue and its log.
pub struct Engine {
    queue: Queue,
    store: Store,
    job_size_max: u32,
    memory_max: Option<u64>,
    /// Puts are refused for want of memory.
    memory_shortage: Shortage,
    /// Puts were refused for the sake of the archive when the last one came.
    was_archive_late: bool,
    clients_memory_max: Option<u64>,
    /// Watch lists, tubes or pauses are refused for want of memory.
    clients_shortage: Shortage,
    /// Pauses are refused for want of memory.
    pauses_shortage: Shortage,
    /// A job whose body is lost could not be buried.
    burials_shortage: Shortage,
    sync: SyncPolicy,
    draining: bool,
    mode: Mode,
    commands: [u64; Op::COUNT],
    /// Puts that were not done because another job has their key.
    key_conflicts: u64,
    /// Kicks of many jobs that are under way, the oldest first.
    kicks: VecDeque<Kick>,
    /// The settings that record each of the clears that are not over, in the order of the queue.
    clears: VecDeque<Vec<String>>,
    checks: Checks,
    incoming: Incoming,
    pauses: Pauses,
    settings: Settings,
    schedules: Schedules,
    /// The look for expired jobs that is under way.
    sweep: Option<Sweep>,
    recovery: Recovery,
    imported: Option<TakenOver>,
    started: Time,
    wall: WallClock,
    /// A random word that tells this run from another.
    run_id: String,
    cpu_times: Option<fn() -> (u64, u64)>,
    /// When the oldest counters were changed that are not in the log.
    dirty_since: Option<Time>,
    /// When the oldest record was written that is not known to be durable.
    unsynced_since: Option<Time>,
    /// When the log was last written to.
    written_at: Time,
    commits: Commits,
    telling: Telling,
    /// `tick` has more to do at once.
    is_busy: bool,
    /// This many reservations of clients that leave end at once before the next tick.
    releases_left: usize,
    /// Reused from tick to tick.
    ended: Vec<(ClientId, WaitEnd)>,
    /// Reused from document to document.
    document: Vec<u8>,
    /// The log failed inside a command: `tick` and `commit` say so.
    failed: Option<StoreError>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("jobs", &self.queue.stats().jobs)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Open the directory, or make it, and replay its log. Everything that was replayed is durable.
    ///
    /// # Errors
    /// See [`OpenError`]. On damage what the directory holds was left as it was. On another error the
    /// log was: leftovers of interrupted work may have been removed; an import of beanstalkd's log
    /// that was asked for may have been begun, which the next one goes on with.
    pub fn open(options: &Options, now: Now) -> Result<Engine, OpenError> {
        let mut engine = Engine::replay(options, Mode::Single, false, now)?;
        engine.begin(now)?;
        Ok(engine)
    }

    /// From the log to a queue that no one may use yet: [`Engine::begin`] comes next.
    fn replay(options: &Options, mode: Mode, standby: bool, now: Now) -> Result<Engine, OpenError> {
        let mut queue = Queue::new();
        queue.tally_tubes(options.tallied_tubes_max);
        let mut pauses = Pauses::default();
        if let Some(all) = options.clients_memory_max {
            pauses.bound(all / PAUSES_PART);
        }
        let mut settings = Settings::default();
        let mut schedules = Schedules::default();
        let mut recovery = Recovery::default();
        let mut imported = None;
        let store = match &options.dir {
            None => {
                queue.record_no_counters();
                Store::Memory(MemoryStore::default())
            }
            Some(dir) => {
                let log_options = LogOptions {
                    dir: dir.clone(),
                    sync: options.sync,
                    segment_size: options.segment_size,
                    cache_size: FRAME_CACHE_SIZE,
                    log_id: options.log_id,
                    new_epoch: false,
                    standby,
                    member: !matches!(mode, Mode::Single),
                    waker: options.waker.clone(),
                };
                let mut replayer = Replayer {
                    queue: &mut queue,
                    pauses: &mut pauses,
                    settings: &mut settings,
                    schedules: &mut schedules,
                    now,
                };
                let progress = |done, total| {
                    if let Some(progress) = &options.progress {
                        progress(done, total);
                    }
                };
                let mut held = None;
                if options.import {
                    let (fs, size) = (&options.fs, options.segment_size);
                    let (lock, taken_over) = take_over(fs, dir, size, now, &progress)?;
                    held = Some(lock);
                    imported = taken_over;
                }
                let (log, found) = Log::open_held(
                    options.fs.clone(),
                    log_options,
                    held,
                    now,
                    &mut replayer,
                    &progress,
                )?;
                queue.set_next_id(log.next_id());
                recovery = found;
                Store::Log(Box::new(log))
            }
        };
        let commits = Commits::begin(match &store {
            Store::Log(log) => Some(log),
            Store::Memory(_) => None,
        });
        Ok(Engine {
            queue,
            store,
            job_size_max: options.job_size_max,
            memory_max: options.memory_max,
            memory_shortage: Shortage::default(),
            was_archive_late: false,
            clients_memory_max: options.clients_memory_max,
            clients_shortage: Shortage::default(),
            pauses_shortage: Shortage::default(),
            burials_shortage: Shortage::default(),
            sync: options.sync,
            draining: false,
            mode,
            commands: [0; Op::COUNT],
            key_conflicts: 0,
            kicks: VecDeque::new(),
            clears: VecDeque::new(),
            checks: Checks::default(),
            incoming: Incoming::default(),
            pauses,
            settings,
            schedules,
            sweep: None,
            recovery,
            imported,
            started: now.mono,
            wall: WallClock::at(now),
            run_id: report::run_id(now),
            cpu_times: options.cpu_times,
            dirty_since: None,
            unsynced_since: None,
            written_at: now.mono,
            commits,
            telling: Telling::default(),
            is_busy: false,
            releases_left: upkeep::TIMERS_A_TICK,
            ended: Vec::new(),
            document: Vec::new(),
            failed: None,
        })
    }

    /// All records were replayed: time goes on, and what a crash has interrupted is finished.
    fn begin(&mut self, now: Now) -> Result<(), StoreError> {
        self.queue.finish_replay(now.mono);
        self.resume_clears(now);
        self.begin_schedules(now);
        self.finish_kicks(now)
    }

    /// How the log had ended, and what was found beside it.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The import of beanstalkd's log, if [`Options::import`] asked for it and there was one.
    #[must_use]
    pub fn imported(&self) -> Option<&TakenOver> {
        self.imported.as_ref()
    }

    /// The queue, to look at.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// From now on tell these what of the log is durable, and none that were told before. Without a log
    /// it does nothing.
    pub fn publish_to(&mut self, trails: impl IntoIterator<Item = Arc<Trail>>) {
        if let Store::Log(log) = &mut self.store {
            log.publish_to(trails);
        }
    }

    /// The log, to look at; `None` without one.
    #[must_use]
    pub fn log(&self) -> Option<&Log> {
        match &self.store {
            Store::Log(log) => Some(log),
            Store::Memory(_) => None,
        }
    }

    /// A new session: it uses and watches the tube `default`.
    pub fn connect(&mut self) -> ClientId {
        self.queue.connect()
    }

    /// The session ends. Its reservations become ready again, at once if they are not many, else
    /// by slices in [`Engine::tick`].
    pub fn disconnect(&mut self, client: ClientId, now: Now) {
        for kick in &mut self.kicks {
            kick.forget(client);
        }
        self.checks.forget(client);
        self.forget_begun(client);
        self.releases_left -= self.queue.disconnect(client, now.mono, self.releases_left);
        self.settle_now(now);
        self.is_busy = true;
        self.queue.take_visits();
    }

    /// Run one request of a client that is not blocked. Of a put with a beginning that
    /// [`Engine::keep_begun`] has kept, the request has the rest of the body.
    pub fn run(
        &mut self,
        client: ClientId,
        request: Request<'_>,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Flow {
        if self.failed.is_some() {
            return Flow::Blocked;
        }
        let begun = self.incoming.take(client);
        let flow = match self.dispatch(client, (&request, begun.as_ref()), now, sink) {
            Ok(flow) => flow,
            Err(error) => {
                // No reply: what the client asked for may or may not be in the log.
                self.failed = Some(error);
                Flow::Blocked
            }
        };
        if let Some(begun) = begun {
            self.give_back_begun(begun);
        }
        flow
    }

    /// How many tubes and clients the requests that were run since the last call have looked at, beyond
    /// the few that each needs: a measure of what they cost that is not the same for all. One takes
    /// about 100 ns. Count them towards the turn.
    pub fn take_visits(&mut self) -> usize {
        self.queue.take_visits()
    }

    /// The client has shut down its sending side, or has sent `abort`: a waiting reserve is answered
    /// `TIMED_OUT`, once it has looked through what there is.
    pub fn half_closed(&mut self, client: ClientId, now: Now, sink: &mut dyn ReplySink) {
        self.checks.hurry(client, now.mono);
        if self.queue.is_waiting(client) && self.queue.hurry(client, now.mono) {
            self.is_busy = true;
        } else if self.queue.stop_waiting(client) {
            sink.reply(client, self.after(), Reply::TimedOut);
        }
    }

    /// A waiting reserve of the client ends without a reply; `false` if there was none.
    pub(crate) fn stop_waiting(&mut self, client: ClientId) -> bool {
        self.queue.stop_waiting(client)
    }

    /// A job that the client has reserved is ready again, as if the client had left: with the
    /// priority it has, and without a record. `false` if it is not reserved by the client.
    pub fn give_back(&mut self, client: ClientId, job: JobId, now: Now) -> bool {
        let is_back = self.queue.give_back(client, job, now.mono);
        self.settle_now(now);
        // Someone may wait for it.
        self.is_busy |= is_back;
        is_back
    }

    /// Settle what has just failed. An error shows with the next command.
    fn settle_now(&mut self, now: Now) {
        if self.failed.is_none()
            && let Err(error) = self.settle_failures(now)
        {
            self.failed = Some(error);
        }
    }

    /// Write what was appended since the last call and make it durable as the policy says: one
    /// write and one sync, or none when no reply waits for them.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn commit(&mut self, now: Now) -> Result<(), StoreError> {
        self.check()?;
        let Store::Log(log) = &mut self.store else {
            return Ok(());
        };
        let written = log.written();
        // Who waits until nothing is held waits for counters too, for which no reply does.
        let all = log.is_tight() || log.is_holding() && log.wants_quiet();
        log.commit(all)?;
        self.commits.note(log);
        if log.written() > written {
            self.written_at = now.mono;
        }
        if log.has_unsynced() {
            self.unsynced_since.get_or_insert(now.mono);
        } else {
            self.unsynced_since = None;
        }
        Ok(())
    }

    /// True when the next [`Engine::commit`] will wait for the disk. What is run before it shares
    /// the wait.
    #[must_use]
    pub fn will_wait(&self) -> bool {
        match &self.store {
            Store::Log(log) => log.will_wait(),
            Store::Memory(_) => false,
        }
    }

    /// Replies that wait for a ticket up to this one may leave the process.
    #[must_use]
    pub fn acknowledged(&self) -> Ticket {
        match (&self.mode, &self.store) {
            (Mode::Leader(acks), _) if acks.turn.is_some() => acks.acknowledged,
            (Mode::Follower { .. }, _) | (_, Store::Memory(_)) => Ticket::NONE,
            (_, Store::Log(log)) => Ticket::at(log.acknowledged()),
        }
    }

    /// From now on puts are answered `DRAINING`. Nothing durable: an engine that is opened takes
    /// puts.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Puts are taken again.
    pub fn undrain(&mut self) {
        self.draining = false;
    }

    /// True from [`Engine::drain`] to [`Engine::undrain`].
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// True if puts are refused because the archive lacks what is older than it may be. One line says
    /// when that begins, and one when it ends.
    #[inline]
    fn is_archive_late(&mut self, now: Now) -> bool {
        let is_late = self.log().is_some_and(|log| log.is_archive_late(now.mono));
        if std::mem::replace(&mut self.was_archive_late, is_late) != is_late {
            say_archive_late(is_late);
        }
        is_late
    }

    /// Puts are refused for want of memory: bytes that were missing for the last one.
    #[must_use]
    pub fn missing_in_memory(&self) -> Option<u64> {
        let shortage = &self.memory_shortage;
        shortage.is_on().then(|| shortage.missing())
    }

    /// The largest body that a put may have, bytes.
    #[must_use]
    pub fn job_size_max(&self) -> u32 {
        self.job_size_max
    }

    /// Bytes that jobs may still take before the bound is reached.
    #[must_use]
    pub fn memory_left(&self) -> u64 {
        let Some(bound) = self.memory_max else {
            return u64::MAX;
        };
        let named = self.pauses.memory() + self.schedules.memory();
        bound.saturating_sub(self.queue.memory() + self.store.memory() + named)
    }

    /// A clean stop: everything is written and durable, counters included, and a marker says so. Of a
    /// queue that is one of several, only what is committed: what is held is dropped, and anyone who
    /// waits for it must not be answered.
    ///
    /// # Errors
    /// When the disk failed, now or earlier.
    pub fn close(mut self, now: Now) -> Result<(), StoreError> {
        self.check()?;
        if self.is_one_of_several() {
            return self.leave(now);
        }
        self.end_pauses(now)?;
        self.log_counters(usize::MAX, now)?;
        match self.store {
            Store::Log(log) => log.close(now.wall_ns),
            Store::Memory(_) => Ok(()),
        }
    }

    /// The ticket that replies given now wait for.
    #[must_use]
    pub fn after(&self) -> Ticket {
        match (&self.mode, &self.store) {
            (Mode::Leader(TurnAcks { turn: Some(at), .. }), _) => *at,
            (Mode::Follower { .. }, _) | (_, Store::Memory(_)) => Ticket::NONE,
            (_, Store::Log(log)) => Ticket::at(log.awaited()),
        }
    }

    fn check(&self) -> Result<(), StoreError> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }
}

#[cold]
fn say_archive_late(is_late: bool) {
    match is_late {
        true => tracing::warn!(
            "puts are refused: the archive lacks what is older than --archive-lag-max; they are \
             taken again when it has that"
        ),
        false => tracing::info!("puts are taken again: the archive is no longer late"),
    }
}
