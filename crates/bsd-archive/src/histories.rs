//! Histories of a server and its archive: a disk that crashes, a store that fails, in one run.
//!
//! The oracle is the history: the content of the queue after each frame. A restore must give one of
//! these states, that of the position up to which was restored, and none older than the one that
//! the writer reported to be archived. A history may go on from a restore, as after a lost machine.
//!
//! Each server compresses and encrypts what it archives, or not. Bases are asked for, with names and
//! pins: see `promises`.
//!
//! In one history in four clients send extended commands too. A server that starts on what was
//! restored has the same attributes and settings there, and has fired as often as it says. A tick may
//! do several things, and a restore ends between two of them.
//!
//! `BSD_ARCHIVE_RUNS` and `BSD_ARCHIVE_FIRST` say how many histories there are and which is the
//! first; `BSD_ARCHIVE_SEED` repeats one. `BSD_ARCHIVE_ALL_RUNS` is how many there are of this kind, of
//! standbys, of members, and of two archives, where nothing else says so.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::AddAssign;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::expire::{Keep, plan};
use super::levels::{Levels, pass};
use super::promises::Promises;
use super::restore::{Restored, restore};
use super::sim::SimStore;
use super::survey::{Depth, survey};
use super::writer::{Done, Failure, Sizes, Writer};
use super::{Codec, Key, RestoreError, Until};
use bsd::check::extended::{BEATS, any_change, any_end, any_put, assert_beats, beat, is_scheduled};
use bsd::check::volume::{number, run_each, volume};
use bsd::check::whole::Whole;
use bsd::clearing::ClearedStates;
use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::queue::Queue;
use bsd::random::Random;
use bsd::storage::IDS_SKIPPED;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::LogId;
use bsd::storage::inspect::Inspection;
use bsd::storage::{SimFs, SyncPolicy, Trail};
use bsd::types::{ClientId, JobId, JobState, Now, Position, SECOND_NS, Ticket, Time};

const RUNS: u64 = 10_000;
/// States that were said to be kept, and were restored.
static KEPT: AtomicU64 = AtomicU64::new(0);
const DIR: &str = "/data";
const TUBES: [&str; 3] = ["default", "mail", "thumbnails"];
/// More jobs than a clear deletes in its own frame.
const MANY: u64 = 1100;
/// A schedule fires every second.
pub(super) const BEAT_SECONDS: u32 = 1;
pub(super) const LOG: LogId = LogId([7; 16]);
const WALL_NS: u64 = 1_800_000_000_000_000_000;
pub(super) const MS_NS: u64 = 1_000_000;

pub(super) struct Sink;

impl ReplySink for Sink {
    fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
}

/// State of a queue.
pub(super) type State = Whole;

/// The body that was found.
#[derive(Default)]
struct Body(Vec<u8>);

impl ReplySink for Body {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        if let Reply::Found(_, body) = reply {
            self.0 = body.to_vec();
        }
    }
}

/// The body of a job, which its id and size determine.
fn body(id: u64, size: u32) -> Vec<u8> {
    let period: [u8; 256] = std::array::from_fn(|at| at as u8 ^ id as u8);
    let mut body = period.repeat(size.div_ceil(256) as usize);
    body.truncate(size as usize);
    body
}

/// State of an engine; no job has another id than one of `given`.
pub(super) fn state_of(engine: &Engine, given: &BTreeSet<u64>, now: Now) -> State {
    given_of(Whole::of(engine, &TUBES, now), given)
}

fn given_of(state: State, given: &BTreeSet<u64>) -> State {
    let mut ids = state.jobs.keys();
    assert!(ids.all(|id| given.contains(id)), "a job that no one put");
    state
}

/// State of the queue of a standby, without its settings.
pub(super) fn jobs_of(queue: &Queue, given: &BTreeSet<u64>, now: Now) -> State {
    given_of(Whole::of_queue(queue, &TUBES, now), given)
}

/// Whether a queue that had the first state comes back with the second.
pub(super) fn is_same(had: &State, found: &State, now: Now) -> bool {
    had.difference(found, now, false).is_none()
}

/// A server, its disk and its archive.
pub(super) struct World {
    pub(super) disk: SimFs,
    pub(super) store: SimStore,
    pub(super) sizes: Sizes,
    pub(super) sync: SyncPolicy,
    pub(super) hold_max: u64,
    pub(super) lag_max: Option<Duration>,
    pub(super) log: LogId,
    pub(super) now: Now,
    pub(super) engine: Option<Engine>,
    client: ClientId,
    pub(super) writer: Option<Writer>,
    /// State of the queue after the frame that ends at each position.
    pub(super) past: Vec<(Position, State)>,
    /// The same before the machine was lost, and when that was.
    earlier: Vec<(u64, Vec<(Position, State)>)>,
    pub(super) next_id: u64,
    /// Its clients send extended commands, too.
    pub(super) is_extended: bool,
    /// Ids that clients were given and may still hold, also those of a lost end.
    pub(super) given: BTreeSet<u64>,
    /// The disk is another one since the last start, with a restored log.
    is_replaced: bool,
    /// Position up to which the archive was reported to be complete.
    pub(super) archived: Option<Position>,
    pub(super) gaps: u64,
    pub(super) promises: RefCell<Promises>,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let wall_ns = WALL_NS;
        let mono = Time(5 * SECOND_NS);
        World {
            disk: SimFs::new(seed),
            store: SimStore::new(seed),
            sizes: Sizes {
                base_ratio: 2,
                base_min: 4000,
                links_max: 30,
                frames_max: 1500,
                part_max: 3000,
            },
            sync: SyncPolicy::Always,
            hold_max: 1 << 20,
            lag_max: None,
            log: LOG,
            now: Now { mono, wall_ns },
            engine: None,
            client: ClientId(0),
            writer: None,
            past: Vec::new(),
            earlier: Vec::new(),
            next_id: 1,
            is_extended: false,
            given: BTreeSet::new(),
            is_replaced: false,
            archived: None,
            gaps: 0,
            promises: RefCell::default(),
        }
    }

    fn fs(disk: &SimFs) -> Arc<dyn Fs> {
        Arc::new(disk.clone())
    }

    /// Start a server, and a writer beside it.
    pub(super) fn start(&mut self) {
        let options = Options {
            dir: Some(DIR.into()),
            segment_size: 64 << 10,
            sync: self.sync,
            fs: World::fs(&self.disk),
            log_id: Some(self.log),
            ..Options::default()
        };
        let mut engine = Engine::open(&options, self.now).unwrap();
        self.client = engine.connect();
        let trail = Trail::new(self.hold_max).with_lag_max(self.lag_max);
        let trail = Arc::new(trail);
        engine.publish_to([trail.clone()]);
        self.engine = Some(engine);
        self.writer = Some(Writer::new(
            Arc::new(self.store.clone()),
            trail,
            Arc::new(self.disk.clone()),
            DIR.into(),
            "node".to_owned(),
            self.sizes,
        ));
        self.note_start();
    }

    /// The same, on a disk that has what another world's had.
    pub(super) fn start_with_past_of(&mut self, other: &World) {
        self.past.clone_from(&other.past);
        self.given.clone_from(&other.given);
        (self.next_id, self.now) = (other.next_id, other.now);
        self.start();
    }

    pub(super) fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn state(&self) -> State {
        state_of(self.engine(), &self.given, self.now)
    }

    fn written(&self) -> Position {
        self.engine().log().unwrap().written()
    }

    /// After a start the queue has its state of some moment; later states are forgotten.
    fn note_start(&mut self) {
        self.next_id = self.engine().log().unwrap().next_id().0;
        if self.sync != SyncPolicy::Always && !self.is_replaced {
            // What a crash took was not promised, and its ids are not.
            self.given.retain(|id| *id < self.next_id);
        }
        self.is_replaced = false;
        let (written, state) = (self.written(), self.state());
        let is_known = |(_, past): &(_, State)| is_same(past, &state, self.now);
        let mut known = self.past.iter().rposition(is_known);
        if known.is_none() && self.is_extended {
            // A tick that did several things was cut off between two of them.
            let steps = self.past.windows(2);
            let mut steps = steps.map(|step| self.lies_between(step, &state));
            known = steps.rposition(|is_there| is_there);
        }
        match known {
            Some(index) => self.past.truncate(index + 1),
            None => assert!(
                self.past.is_empty(),
                "the server has a state that never was"
            ),
        }
        self.past.push((written, state));
    }

    /// Whether this is a state between two of the history.
    fn lies_between(&self, step: &[(Position, State)], found: &State) -> bool {
        let [(_, before), (_, after)] = step else {
            return false;
        };
        let difference = before.difference_on_the_way(after, found, self.now);
        self.is_extended && difference.is_none()
    }

    fn note(&mut self) {
        if self.is_extended {
            // Schedules put jobs, too.
            let engine = self.engine.as_ref().unwrap();
            self.given.extend(engine.queue().ids().map(|id| id.0));
        }
        self.past.push((self.written(), self.state()));
    }

    /// Run a command, and everything else that a turn of a loop does.
    pub(super) fn command(&mut self, command: Command<'_>) {
        let (now, client) = (self.now, self.client);
        let engine = self.engine.as_mut().unwrap();
        engine.run(client, Request::Command(command), now, &mut Sink);
        engine.commit(now).unwrap();
        self.next_id = engine.log().unwrap().next_id().0;
        self.note();
        self.turn();
    }

    /// Reply to the client: its name.
    pub(super) fn reply(&mut self, command: Command<'_>) -> String {
        struct Name(String);
        impl ReplySink for Name {
            fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
                let text = format!("{reply:?}");
                let is_of_name = |letter: char| letter.is_alphanumeric();
                self.0 = text.chars().take_while(|it| is_of_name(*it)).collect();
            }
        }
        let mut name = Name(String::new());
        let (now, client) = (self.now, self.client);
        let engine = self.engine.as_mut().unwrap();
        engine.run(client, Request::Command(command), now, &mut name);
        engine.commit(now).unwrap();
        name.0
    }

    /// Pass on to the log what the thread of the writer has archived.
    pub(super) fn note_archived(&self) {
        let writer = self.writer.as_ref().unwrap();
        let trail = writer.trail();
        trail.note_archived(writer.archived(), self.now.mono);
    }

    fn turn(&mut self) {
        let now = self.now;
        let engine = self.engine.as_mut().unwrap();
        engine.tick(now, &mut Sink).unwrap();
        engine.commit(now).unwrap();
        // A schedule may have put jobs.
        self.next_id = engine.log().unwrap().next_id().0;
        self.note();
    }

    pub(super) fn put(&mut self, size: u32) -> u64 {
        let id = self.next_id;
        assert!(self.given.insert(id), "id {id} is given out twice");
        self.command(Command::Put {
            tube: None,
            pri: (id % 5) as u32,
            delay: 0,
            ttr: 1000,
            body: body(id, size).into(),
        });
        if self.next_id == id {
            // A policy has refused it.
            self.given.remove(&id);
        }
        id
    }

    pub(super) fn any_command(&mut self, random: &mut Random) {
        let nth = random.below(self.given.len() as u64 + 1) as usize;
        let id = JobId(self.given.iter().nth(nth).copied().unwrap_or(self.next_id));
        if self.is_extended && random.percent(60) {
            return self.extended_command(id, random);
        }
        let id = self.not_counted(id);
        let pri = random.below(9) as u32;
        match random.below(12) {
            0..6 => {
                let size = match random.below(4) {
                    0 => random.below(12_000),
                    _ => random.below(300),
                };
                self.put(size as u32);
            }
            6 | 7 => self.command(Command::Delete(id)),
            8 => {
                self.command(Command::ReserveJob(id));
                self.command(Command::Bury { id, pri });
            }
            9 => {
                let delay = random.below(2) as u32 * 100_000_000;
                self.command(Command::ReserveJob(id));
                self.command(Command::Release { id, pri, delay });
            }
            10 => self.command(Command::Kick {
                tube: None,
                bound: 1 + random.below(4) as u32,
            }),
            _ => self.command(Command::KickJob(id)),
        }
    }

    /// No job is found here whose schedule is counted: none that it has put, or may put before the next
    /// command.
    fn not_counted(&self, id: JobId) -> JobId {
        let job = self.engine().queue().job(id);
        let may_be_counted = job.is_none_or(|job| job.tube == BEATS);
        if may_be_counted { JobId(u64::MAX) } else { id }
    }

    fn extended_command(&mut self, id: JobId, random: &mut Random) {
        let id = self.not_counted(id);
        let is_beating = (self.engine().schedules()).any(|it| it.schedule.tube == BEATS);
        if !is_beating {
            return self.command(Command::ScheduleSet(Box::new(beat(BEAT_SECONDS, self.now))));
        }
        let command = match random.below(10) {
            0..4 => {
                let body = body(self.next_id, random.below(300));
                let tube = random.pick(&TUBES);
                any_put(random, tube, body, self.now)
            }
            4..7 => {
                self.command(Command::ReserveJob(id));
                any_end(random, id)
            }
            _ => any_change(random, &TUBES, id, false),
        };
        self.command(command);
    }

    /// More jobs than a clear deletes in its own frame, and the clear.
    pub(super) fn clear_many(&mut self) {
        let (now, client) = (self.now, self.client);
        let engine = self.engine.as_mut().unwrap();
        let first = engine.queue().next_id().0;
        for id in first..first + MANY {
            let put = Command::Put {
                tube: Some(TUBES[1].into()),
                pri: 1,
                delay: 0,
                ttr: 1000,
                body: body(id, 1).into(),
            };
            engine.run(client, Request::Command(put), now, &mut Sink);
        }
        engine.commit(now).unwrap();
        self.next_id = engine.log().unwrap().next_id().0;
        self.note();
        self.command(Command::ClearTube {
            tube: TUBES[1].into(),
            states: ClearedStates::All,
        });
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.now.mono.0 += (ms * MS_NS) as i64;
        self.now.wall_ns += ms * MS_NS;
    }

    /// One step of the writer.
    pub(super) fn step(&mut self) -> Result<Done, Failure> {
        let writer = self.writer.as_mut().unwrap();
        let done = writer.step(self.now.wall_ns, true);
        if matches!(done, Ok(Done::Gap(_))) {
            self.gaps += 1;
        }
        self.archived = writer.archived().or(self.archived);
        self.note_answer();
        done
    }

    /// Steps, some of which the store may refuse. No one else writes to the archive.
    pub(super) fn try_steps(&mut self, count: u64) {
        for _ in 0..count {
            match self.step() {
                Ok(_) | Err(Failure::Trouble(_)) => {}
                Err(failure) => panic!("there is no other writer: {failure}"),
            }
        }
    }

    /// Steps until there is nothing to do.
    pub(super) fn archive(&mut self) {
        let mut last = None;
        for nth in 0..10_000 {
            // So that what waits for a sync gets one. Later there is less time: a schedule that fires
            // each second would have more to archive for ever.
            self.pass(if nth < 100 { 60 } else { 1 });
            self.store.note_tries(nth);
            self.turn();
            last = Some(self.step());
            match last.clone().unwrap() {
                // A base that is complete may wait for a sync of its end.
                Ok(Done::Nothing) if !self.is_making_base() => return,
                Ok(_) | Err(Failure::Trouble(_)) => {}
                Err(failure) => panic!("{failure}"),
            }
        }
        panic!(
            "the writer does not come to an end: {last:?}, {:?}",
            self.writer.as_ref().unwrap().figures()
        );
    }

    fn is_making_base(&self) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|writer| writer.base_progress().is_some())
    }

    /// Expire something, or a part of it: the store may fail.
    pub(super) fn expire(&self, random: &mut Random) {
        let (keep, wall_ns) = (any_keep(random), self.now.wall_ns);
        let Ok(found) = plan(&self.store.reader(), LOG, keep, wall_ns, &mut |_, _| ()) else {
            return;
        };
        assert_eq!(found.skipped, [], "bases are as they were put");
        if let Some(plan) = found.plan {
            // After an error an archive is left.
            let done = plan.carry_out(&self.store, &mut |_, _| ());
            self.note_expiry(&plan, done.is_ok());
        }
    }

    /// Join some links: the store may fail, or go away in between.
    pub(super) fn compact(&self, random: &mut Random) {
        join_some(&self.store, self.now.wall_ns, random);
    }

    /// End the server and its writer; the disk is what is left.
    pub(super) fn crash(&mut self, how: Crash) {
        self.engine = None;
        self.writer = None;
        self.forget_order();
        self.disk = self.disk.crash_image(how);
        self.pass(20);
    }

    pub(super) fn restored(&self, until: Until) -> Result<(Restored, SimFs), RestoreError> {
        let disk = SimFs::new(1);
        let fs = World::fs(&disk);
        let store = self.store.copy();
        let done = restore(
            &store.reader(),
            LOG,
            until,
            (&fs, Path::new(DIR)),
            self.now,
            &mut |_, _| (),
        );
        done.map(|restored| (restored, disk))
    }

    /// Restore, and hold the result against the history. `None`: the archive says that it has it not.
    pub(super) fn check(&self, until: Until) -> Option<(Restored, SimFs)> {
        let (restored, disk) = match self.restored(until) {
            Ok(done) => done,
            Err(RestoreError::Refused(_) | RestoreError::Nothing(_)) => return None,
            Err(error) => panic!("{error}"),
        };
        let past = self.past_of(&restored);
        let index = past.iter().rposition(|(at, _)| *at <= restored.end);
        let (_, known) = &past[index.unwrap()];
        // A kick that the end has interrupted counts as finished: a start finishes it.
        let next = past.get(index.unwrap() + 1).map(|(_, next)| next);
        let kicked = |id: u64| {
            next.and_then(|next| next.jobs.get(&id))
                .filter(|it| it.state_at(self.now) == JobState::Ready)
        };
        let found =
            Inspection::read(Arc::new(disk.clone()), Path::new(DIR), &mut |_, _| ()).unwrap();
        assert!(found.is_intact());
        if self.is_extended {
            self.check_opened(&disk, &past[index.unwrap()..], &format!("{until:?}"));
            return Some((restored, disk));
        }
        let ids: Vec<u64> = found.jobs().map(|job| job.id.0).collect();
        assert!(
            ids.iter().eq(known.jobs.keys()),
            "{until:?}: at {} there were {:?} and not {ids:?}",
            restored.end,
            known.jobs.keys().collect::<Vec<_>>()
        );
        for (id, job) in &known.jobs {
            let found = found.read_job(JobId(*id)).unwrap().unwrap();
            let job = match found.state {
                JobState::Ready => kicked(*id)
                    .filter(|_| job.state_at(self.now) != JobState::Ready)
                    .unwrap_or(job),
                _ => job,
            };
            assert_eq!(
                (found.state, found.pri, found.delay),
                (job.state_at(self.now), job.pri, job.delay)
            );
            assert_eq!(found.body.len() as u32, job.size, "job {id}");
            assert!(found.body == body(*id, job.size), "job {id}");
        }
        Some((restored, disk))
    }

    /// A server that starts on a restored log has the first state of `past`, or is between it and the next
    /// one: attributes and settings too, and whatever a clear has deleted.
    fn check_opened(&self, disk: &SimFs, past: &[(Position, State)], what: &str) {
        let options = Options {
            dir: Some(DIR.into()),
            segment_size: 64 << 10,
            fs: World::fs(&disk.crash_image(Crash::KeepAll)),
            ..Options::default()
        };
        let mut engine = Engine::open(&options, self.now).unwrap();
        let found = state_of(&engine, &self.given, self.now);
        let known = &past[0].1;
        let is_amid = past.len() > 1 && self.lies_between(&past[..2], &found);
        if !is_amid && let Some(difference) = known.difference(&found, self.now, false) {
            panic!("{what}: {difference}");
        }
        assert_beats(&found, BEAT_SECONDS, what);
        let client = engine.connect();
        for (id, job) in &found.jobs {
            let mut read = Body::default();
            let peek = Request::Command(Command::Peek(JobId(*id)));
            engine.run(client, peek, self.now, &mut read);
            let is_right = read.0 == body(*id, job.size) || is_scheduled(&read.0);
            assert!(is_right, "{what}: the body of job {id}");
        }
    }

    /// The history of which this is a part.
    fn past_of(&self, restored: &Restored) -> &[(Position, State)] {
        self.past_at(restored.wall_ns)
    }

    /// The history that the archive had at this time.
    pub(super) fn past_at(&self, wall_ns: u64) -> &[(Position, State)] {
        let mut earlier = self.earlier.iter();
        let of = earlier.find(|(until, _)| wall_ns < *until);
        of.map_or(&self.past, |(_, past)| past)
    }

    /// The last restore is the disk now, and the history goes on from there.
    pub(super) fn go_on_from(&mut self, restored: &Restored, disk: SimFs) {
        let past = self.past_of(restored);
        let index = past.iter().rposition(|(at, _)| *at <= restored.end);
        // The second, if a start finishes a kick that was interrupted there.
        let known = past.iter().skip(index.unwrap()).take(2);
        let known = known.map(|(_, state)| (restored.end, state.clone()));
        let past: Vec<_> = known.collect();
        (self.engine, self.writer) = (None, None);
        self.disk = disk;
        self.is_replaced = true;
        self.pass(1);
        let past = std::mem::replace(&mut self.past, past);
        self.earlier.push((self.now.wall_ns, past));
        // Its positions are greater than those of the lost machine, and nothing of that is lost again.
        self.archived = Some(restored.end);
    }
}

/// What an expiry keeps.
pub(super) fn any_keep(random: &mut Random) -> Keep {
    Keep {
        age_ns: random.below(1000 * MS_NS),
        bases: random.below(3) as usize,
        days: random.below(3),
        weeks: random.below(3),
    }
}

/// Join some links of an archive: the store may fail, or go away in between.
pub(super) fn join_some(store: &SimStore, wall_ns: u64, random: &mut Random) {
    let levels = Levels {
        fine_ns: random.below(300 * MS_NS),
        few: 2 + random.below(4),
        many: 4 + random.below(20),
        size_max: 1000 + random.below(20_000),
        objects_max: 1 + random.below(8) as usize,
    };
    let calls = random.percent(40).then(|| random.below(60));
    store.set_calls_left(calls);
    let done = pass(&store.reader(), LOG, levels, wall_ns, &mut |_, _| true);
    store.set_calls_left(None);
    if let Ok(pass) = done {
        assert_eq!(pass.bad, [], "links are as they were put");
    }
}

/// Two keys of archives.
pub(super) fn keys() -> [Key; 2] {
    [Key::new([1; 32]), Key::new([2; 32])]
}

/// The random numbers for [`any_codec`] in one history: apart, so that they change nothing else in it.
pub(super) fn codecs(seed: u64) -> Random {
    Random::new(seed ^ 0x5ea1)
}

/// Compressed or not, and encrypted for none, one or two keys. What was put before can be read.
pub(super) fn any_codec(random: &mut Random) -> Codec {
    let recipients = keys().into_iter().filter(|_| random.percent(40)).collect();
    let codec = Codec::default().compressing(random.percent(40).then_some(1));
    codec
        .encrypting_for(recipients)
        .opening_with(keys().to_vec())
}

/// One history.
fn history(seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let (mut world, mut codecs) = (World::new(seed), codecs(seed));
    let mut bases = Random::new(seed ^ 0xba5e);
    world.is_extended = seed % 4 == 3;
    world.sync = match random.below(3) {
        0 => SyncPolicy::Interval(50),
        _ => SyncPolicy::Always,
    };
    world.sizes.frames_max = 200 + random.below(4000) as u32;
    world.hold_max = match random.below(4) {
        0 => random.below(100_000),
        _ => 1 << 20,
    };
    // A start takes some fifteen calls that all succeed.
    let faults = random.below(2) * random.below(25);
    world.store.set_faults(faults);
    let (mut restores, mut refused) = (0, 0);
    for _ in 0..1 + random.below(3) {
        world.store = world.store.with_codec(any_codec(&mut codecs));
        world.start();
        for nth in 0..random.below(30) {
            if world.is_extended && nth == 9 && seed % 100 == 7 {
                world.clear_many();
            }
            world.any_command(&mut random);
            world.pass(random.below(40));
            if random.percent(2) {
                world.expire(&mut random);
            }
            if random.percent(10) {
                world.compact(&mut random);
            }
            if bases.percent(6) {
                world.ask_for_base(&mut bases);
            }
            if bases.percent(1) {
                world.unpin(&mut bases);
            }
            if bases.percent(3) {
                world.expire(&mut bases);
            }
            if bases.percent(4) && !world.is_extended {
                world.pass(bases.below(4 * 86_400_000));
            }
            if random.percent(3) {
                world.store.set_away(random.percent(60));
            }
            world.try_steps(random.below(4));
        }
        world.store.set_away(false);
        if random.percent(50) {
            world.archive();
            let writer = world.writer.as_ref().unwrap();
            assert_eq!(
                writer.archived(),
                Some(world.engine().log().unwrap().durable())
            );
        }
        let archived = world.archived;
        match random.below(4) {
            0 => {
                let now = world.now;
                world.engine.take().unwrap().close(now).unwrap();
                world.crash(Crash::DropUnsynced);
            }
            1 => world.crash(Crash::KeepAll),
            _ => world.crash(Crash::Random { seed }),
        }
        // Restored before the server comes back: its disk is lost.
        let until = match random.below(3) {
            0 => Until::End,
            1 => Until::Wall(world.now.wall_ns - random.below(600 * MS_NS)),
            _ => {
                let index = random.below(world.past.len() as u64) as usize;
                Until::Position(world.past[index].0)
            }
        };
        world.check_promises(&mut bases);
        let whole = world.check(Until::End);
        match &whole {
            Some((restored, _)) => {
                // A link may end inside a frame.
                let said = |past: &&(Position, State)| archived.is_some_and(|end| past.0 <= end);
                if let Some((least, wanted)) = world.past.iter().rfind(said) {
                    // A crash may have lost changes that cancelled each other: the server came back
                    // with the same jobs, and nothing tells that those positions are gone.
                    let past = world.past_of(restored).iter();
                    let found = past.rev().find(|(at, _)| *at <= restored.end);
                    let is_same = found.is_some_and(|(_, it)| is_same(wanted, it, world.now));
                    assert!(
                        restored.end >= *least || is_same,
                        "{} is too old",
                        restored.end
                    );
                }
            }
            None => assert!(archived.is_none(), "what was archived is not there"),
        }
        if random.percent(20) {
            let store = world.store.copy();
            let all = survey(&store.reader(), LOG, Depth::Everything, &mut |_, _| ()).unwrap();
            assert_eq!(all.bad, []);
        }
        let part = world.check(until);
        restores += u64::from(whole.is_some()) + u64::from(part.is_some());
        refused += u64::from(whole.is_none()) + u64::from(part.is_none());
        if let (Until::Position(position), Some((restored, _))) = (until, &part) {
            assert!(restored.end <= position);
            let past = world.past_of(restored);
            let wanted = past.iter().rfind(|(at, _)| *at <= position);
            let found = past.iter().rfind(|(at, _)| *at <= restored.end);
            let (Some((_, wanted)), Some((_, found))) = (wanted, found) else {
                panic!("there is no such prefix");
            };
            let difference = wanted.difference(found, world.now, false);
            assert_eq!(difference, None, "exactly that prefix");
        }
        if let Some((restored, disk)) = whole.filter(|_| random.percent(25)) {
            world.go_on_from(&restored, disk);
        }
    }
    KEPT.fetch_add(world.promises.borrow().checked, Ordering::Relaxed);
    (restores, refused)
}

/// Two figures of a history, of which each is added up.
#[derive(Default)]
struct Sums(u64, u64);

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Sums) {
        self.0 += other.0;
        self.1 += other.1;
    }
}

/// Run a history for each seed, as many as `variable` or else `runs` says, and add up what they
/// return. `None`: one seed was repeated.
pub(super) fn each_seed(
    module: &str,
    (variable, runs): (&str, u64),
    history: impl Fn(u64) -> (u64, u64) + Sync,
) -> Option<(u64, u64)> {
    let repeated = number("BSD_ARCHIVE_SEED");
    let seeds = repeated.map_or_else(
        || {
            let first = volume("BSD_ARCHIVE_FIRST", 0);
            first..first + volume(variable, volume("BSD_ARCHIVE_ALL_RUNS", runs))
        },
        |seed| seed..seed + 1,
    );
    let repeat = |seed| format!("BSD_ARCHIVE_SEED={seed} cargo test -p bsd-archive --lib {module}");
    let run = |seed| {
        let (one, other) = history(seed);
        Sums(one, other)
    };
    let Sums(one, other) = run_each(seeds, repeat, run);
    repeated.is_none().then_some((one, other))
}

#[test]
fn any_restore_is_a_prefix_of_history_and_not_older_than_what_was_archived() {
    let Some((restores, refused)) = each_seed("histories", ("BSD_ARCHIVE_RUNS", RUNS), history)
    else {
        return;
    };
    let kept = KEPT.load(Ordering::Relaxed);
    println!("{restores} restores, {refused} refused, {kept} of states that were to be kept");
    assert!(restores > refused, "{restores} restores, {refused} refused");
    assert!(kept > 0 || restores < 1000, "nothing was to be kept");
}

/// The clients of the lost machine still hold ids of jobs that are in no archive.
#[test]
fn g18_a_restored_log_gives_out_no_id_of_the_lost_end() {
    let mut world = World::new(18);
    world.start();
    for loss in 1..=3 {
        world.put(10);
        world.archive();
        // `put` asserts that an id is new.
        let lost: Vec<u64> = (0..5).map(|_| world.put(10)).collect();
        world.crash(Crash::KeepAll);
        let (restored, disk) = world.check(Until::End).unwrap();
        world.go_on_from(&restored, disk);
        world.start();
        assert!(world.next_id > loss * IDS_SKIPPED, "{lost:?}");
        // The next id survives a crash at once.
        world.crash(Crash::DropUnsynced);
        world.start();
        assert!(world.next_id > loss * IDS_SKIPPED);
    }
}

/// One machine after another is lost, every other one before it has archived anything: the next one is
/// made of the same history, and of ids that are ahead of the clock.
#[test]
fn g18_what_is_made_twice_of_the_same_end_gives_out_other_ids_each_time() {
    let mut world = World::new(18);
    world.start();
    for _ in 0..4 {
        world.put(10);
        world.archive();
        for _ in 0..2 {
            world.crash(Crash::KeepAll);
            let (restored, disk) = world.check(Until::End).unwrap();
            world.go_on_from(&restored, disk);
            world.start();
            // `put` asserts that an id is new.
            world.put(10);
        }
    }
}
