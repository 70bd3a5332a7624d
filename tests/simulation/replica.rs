//! One queue on several disks: what a leader holds back, what followers make of its entries, and
//! what is on the disks at any moment.
//!
//! There is no network and no voting: a list stands for the replicated log. What the leader forms is
//! appended to it; chance says how much of it is committed, and who has applied how much. A leader
//! is dropped with what it holds, and another node leads on: entries that were not committed are
//! then lost, or not.
//!
//! For each entry the state of the leader when it was formed is written down. The other engines come
//! to it from records alone; so it is a second opinion.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use bsd::engine::{Alteration, Altered, Apart, Engine, Flow, Options, ReplySink};
use bsd::protocol::{Command, Op, Reply, Request};
use bsd::random::Random;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::Stamp;
use bsd::storage::{SimFs, StoreError, SyncPolicy};
use bsd::types::{ClientId, Counters, JobId, JobState, Now, Position};

use super::driver::{DIR, MS_NS, TUBES, beginning, disk_bytes};
use super::oracle::body;

const WORKERS: usize = 3;
/// So many turns may pass, with all that was formed committed, until a request is run.
const STALL_MAX: u32 = 12;

/// A job as a restart has to show it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    tube: String,
    pri: u32,
    delay: u32,
    ttr: u32,
    created: u64,
    size: u32,
    /// Ready if it has passed, or if there is none and it is not buried.
    until: Option<u64>,
    is_buried: bool,
    counters: Counters,
}

/// What an entry leaves.
#[derive(Debug, Clone, Default)]
struct State {
    jobs: BTreeMap<u64, Kept>,
    buried: BTreeMap<&'static str, Vec<u64>>,
    pauses: BTreeMap<&'static str, (u64, u32)>,
    kicks: usize,
    next_id: u64,
}

impl State {
    fn of(engine: &Engine, now: Now) -> State {
        let queue = engine.queue();
        let next_id = queue.next_id().0;
        let jobs = (1..next_id).filter_map(|id| queue.job(JobId(id)));
        let kept = |job: &bsd::queue::JobView<'_>| Kept {
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
        };
        State {
            jobs: jobs.map(|job| (job.id.0, kept(&job))).collect(),
            buried: TUBES
                .map(|tube| (tube, buried(engine, tube)))
                .into_iter()
                .filter(|(_, ids)| !ids.is_empty())
                .collect(),
            pauses: TUBES
                .iter()
                .filter_map(|tube| {
                    let stats = queue.tube_stats(tube, now.mono)?;
                    let until = now.wall_ns + u64::try_from(stats.pause_left_ns).ok()?;
                    (stats.pause_left_ns > 0).then_some((*tube, (until, stats.pause)))
                })
                .collect(),
            kicks: engine.log().map_or(0, |log| log.kicks_under_way().len()),
            next_id,
        }
    }

    /// The leader's state, and what `found` has of it: `None` if it is the same.
    fn difference(&self, found: &State, now: Now, exact: bool) -> Option<String> {
        let settled = |job: &Kept| Kept {
            until: job.until.filter(|until| *until > now.wall_ns),
            counters: Counters {
                reserves: 0,
                timeouts: 0,
                ..job.counters
            },
            ..job.clone()
        };
        for (id, job) in &self.jobs {
            let Some(other) = found.jobs.get(id) else {
                return Some(format!("job {id} is lost: {job:?}"));
            };
            if settled(job) != settled(other) {
                return Some(format!("job {id} is {other:?}, not {job:?}"));
            }
            let counts = |job: &Kept| (job.counters.reserves, job.counters.timeouts);
            let (most, has) = (counts(job), counts(other));
            if has.0 > most.0 || has.1 > most.1 || exact && has != most {
                return Some(format!("job {id} has counted {has:?}, not {most:?}"));
            }
        }
        if let Some((id, job)) = found
            .jobs
            .iter()
            .find(|(id, _)| !self.jobs.contains_key(id))
        {
            return Some(format!("job {id} should not be there: {job:?}"));
        }
        if self.buried != found.buried {
            return Some(format!("buried {:?}, not {:?}", found.buried, self.buried));
        }
        let on = |state: &State| {
            let mut pauses = state.pauses.clone();
            pauses.retain(|_, (until, _)| *until > now.wall_ns);
            pauses
        };
        if on(self) != on(found) {
            return Some(format!("pauses {:?}, not {:?}", on(found), on(self)));
        }
        if self.kicks != found.kicks {
            return Some(format!("{} kicks, not {}", found.kicks, self.kicks));
        }
        let last = self.jobs.keys().last().copied().unwrap_or_default();
        (found.next_id <= last).then(|| format!("id {} would be given again", found.next_id))
    }

    fn live_bytes(&self) -> u64 {
        let records = |job: &Kept| 40 + 52 + job.tube.len() as u64 + u64::from(job.size);
        self.jobs.values().map(records).sum()
    }
}

fn buried(engine: &Engine, tube: &str) -> Vec<u64> {
    let (mut ids, mut mark) = (Vec::new(), None);
    while let Ok(Some(next)) = engine.queue().job_behind(tube, JobState::Buried, mark) {
        ids.push(next.id.0);
        mark = Some(next);
    }
    ids
}

/// An entry of the replicated log.
struct Entry {
    term: u64,
    data: Vec<u8>,
    /// What it leaves, if that is known: of the last one of a turn.
    state: Option<Rc<State>>,
}

struct Node {
    fs: SimFs,
    engine: Option<Engine>,
    /// The next entry does not fit.
    is_full: bool,
}

impl Node {
    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("it is open")
    }
}

/// What chance may do.
#[derive(Debug, Clone, Copy)]
struct Mood {
    nodes: usize,
    sync: SyncPolicy,
    segment_size: u32,
    size_max: usize,
    jobs_max: usize,
    /// Requests in a turn, at most.
    turn: usize,
    /// Hundredths of the turns in which something is committed.
    commits: usize,
    /// … and of the turns after which there is an image of a disk, and another leader.
    images: usize,
    changes: usize,
    crashes: usize,
    /// So many small jobs are there from the beginning, and buried.
    buried: usize,
    /// There are bodies larger than a segment.
    large: bool,
    /// Bytes of the disks: which nodes have no more, and how many.
    short: Option<(Short, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Short {
    All,
    First,
    Others,
}

impl Mood {
    fn any(random: &mut Random) -> Mood {
        Mood {
            nodes: 2 + random.below(2usize),
            sync: random.pick(&[
                SyncPolicy::Always,
                SyncPolicy::Interval(50),
                SyncPolicy::Never,
            ]),
            segment_size: random.pick(&[
                64 << 10,
                64 << 10,
                128 << 10,
                256 << 10,
                1 << 20,
                4 << 20,
            ]),
            size_max: random.pick(&[60, 1500, 9000]),
            jobs_max: random.pick(&[20, 100, 400]),
            turn: 1 + random.below(10usize),
            commits: random.pick(&[30, 60, 100]),
            images: 4,
            changes: 1,
            crashes: 1,
            buried: random.pick(&[0, 0, 700]),
            large: true,
            short: None,
        }
    }
}

fn options(fs: &SimFs, mood: Mood) -> Options {
    Options {
        dir: Some(DIR.into()),
        sync: mood.sync,
        segment_size: mood.segment_size,
        job_size_max: 1 << 20,
        fs: Arc::new(fs.clone()),
        member: true,
        ..Options::default()
    }
}

#[derive(Default)]
struct Replies(Vec<(ClientId, Position, Said)>);

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Inserted(u64),
    Job(u64, Vec<u8>),
    Kicked(u64),
    OutOfMemory,
    Failed,
    Deleted,
    Other,
}

impl ReplySink for Replies {
    fn reply(&mut self, client: ClientId, after: Position, reply: Reply<'_>) {
        let said = match reply {
            Reply::Inserted(id) => Said::Inserted(id.0),
            Reply::Reserved(id, body) | Reply::Found(id, body) => Said::Job(id.0, body.to_vec()),
            Reply::KickedCount(count) => Said::Kicked(count),
            Reply::OutOfMemory => Said::OutOfMemory,
            Reply::InternalError => Said::Failed,
            Reply::Deleted => Said::Deleted,
            _ => Said::Other,
        };
        self.0.push((client, after, said));
    }
}

/// The disk has crashed.
struct Crashed;

struct Cluster {
    mood: Mood,
    random: Random,
    now: Now,
    nodes: Vec<Node>,
    leader: usize,
    term: u64,
    /// The entry with index `n` is at `n - 1`.
    entries: Vec<Entry>,
    committed: u64,
    /// The last one that the leader was told of.
    released: u64,
    boss: ClientId,
    workers: Vec<ClientId>,
    /// Who waits for a kick, and how many it has to find, if nothing interferes.
    kicker: Option<(ClientId, Option<u64>)>,
    reserved: Vec<(u64, usize)>,
    /// Whose bodies the jobs have, that of a copy is its original's.
    bodies: BTreeMap<u64, (u64, usize)>,
    /// Replies of this turn, and of earlier ones with the first and the last entry of their turn.
    new_acks: Vec<Position>,
    acks: VecDeque<(Position, u64, u64)>,
    /// A disk may be full.
    is_short: bool,
    is_limited: bool,
    /// A disk was made larger, and may have been made smaller again.
    is_lifted: bool,
    refused: u64,
    stalled: u32,
    figures: Figures,
}

#[derive(Debug, Default, Clone, Copy)]
struct Figures {
    requests: u64,
    images: u64,
    changes: u64,
    crashes: u64,
    fulls: u64,
    kicks: u64,
    quiet: u64,
    stall_most: u32,
    rotations: u32,
    compactions: u64,
}

/// Starting, and who leads.
impl Cluster {
    fn begin(seed: u64, mood: Mood) -> Cluster {
        let now = beginning();
        let nodes = (0..mood.nodes).map(|nth| {
            let fs = SimFs::new(seed * 10 + nth as u64);
            let engine = Engine::follow(&options(&fs, mood), now).unwrap();
            Node {
                fs,
                engine: Some(engine),
                is_full: false,
            }
        });
        let mut cluster = Cluster {
            mood,
            random: Random::new(seed),
            now,
            nodes: nodes.collect(),
            leader: 0,
            term: 0,
            entries: Vec::new(),
            committed: 0,
            released: 0,
            boss: ClientId(0),
            workers: Vec::new(),
            kicker: None,
            reserved: Vec::new(),
            bodies: BTreeMap::new(),
            new_acks: Vec::new(),
            acks: VecDeque::new(),
            is_short: false,
            is_limited: false,
            is_lifted: false,
            refused: 0,
            stalled: 0,
            figures: Figures::default(),
        };
        cluster.elect(0);
        cluster
    }

    fn followers(&self) -> Vec<usize> {
        let leader = self.leader;
        (0..self.nodes.len())
            .filter(|node| *node != leader)
            .collect()
    }

    fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    fn stamp(&self, index: u64) -> Stamp {
        let term = match index {
            0 => 0,
            index => self.entries[index as usize - 1].term,
        };
        Stamp { index, term }
    }

    fn state(&self, index: u64) -> Option<Rc<State>> {
        match index {
            0 => Some(Rc::default()),
            index => self.entries[index as usize - 1].state.clone(),
        }
    }

    fn lead(&mut self) -> &mut Engine {
        self.nodes[self.leader].engine()
    }

    fn leader(&self) -> &Engine {
        self.nodes[self.leader].engine.as_ref().expect("it is open")
    }

    /// `node` leads. What is not committed may survive in its ledger, or not.
    fn elect(&mut self, node: usize) {
        self.disarm();
        let kept = self.committed + self.random.below(self.last() - self.committed + 1);
        self.entries.truncate(kept as usize);
        // An entry of its own, which changes nothing.
        self.term += 1;
        self.push(Vec::new());
        let last = self.last();
        (self.leader, self.released) = (node, last);
        self.committed = last;
        while !self.catch_up(node, last) {
            // Somebody makes room, and takes it later: then no room is promised.
            self.nodes[node].fs.set_quota(None);
            self.is_lifted = true;
            self.pass(200);
        }
        self.check_state(node, last, false);
        let (now, stamp) = (self.now, self.stamp(last));
        self.lead().lead(stamp, now).unwrap();
        self.boss = self.connect();
        self.workers = (0..WORKERS).map(|_| self.connect()).collect();
        (self.kicker, self.reserved) = (None, Vec::new());
        (self.new_acks, self.acks) = (Vec::new(), VecDeque::new());
    }

    /// Append an entry that is no frame, or the one that was formed.
    fn push(&mut self, data: Vec<u8>) {
        let state = match data.is_empty() {
            true => self.state(self.last()),
            false => None,
        };
        self.entries.push(Entry {
            term: self.term,
            data,
            state,
        });
    }

    fn connect(&mut self) -> ClientId {
        let (client, now) = (self.lead().connect(), self.now);
        for tube in TUBES {
            let watch = Request::Command(Command::Watch(tube));
            self.lead().run(client, watch, now, &mut Replies::default());
        }
        client
    }

    /// Another leader; the old one is dropped with what it holds, and follows.
    fn change_leader(&mut self) {
        self.figures.changes += 1;
        let old = self.leader;
        self.disarm();
        self.note_log(old);
        if self.random.percent(30) {
            let (engine, now) = (self.nodes[old].engine.take().unwrap(), self.now);
            engine.leave(now).unwrap();
        }
        self.nodes[old].engine = None;
        self.reopen(old, self.released);
        let new = self.random.below(self.nodes.len());
        self.elect(new);
    }

    /// No disk crashes that has not yet.
    fn disarm(&self) {
        self.nodes
            .iter()
            .for_each(|node| node.fs.crash_at(u64::MAX));
    }

    fn note_log(&mut self, node: usize) {
        if let Some(log) = self.nodes[node].engine.as_ref().and_then(Engine::log) {
            self.figures.compactions += log.compactions();
            self.figures.rotations = self.figures.rotations.max(log.segments().1.0);
        }
    }

    /// Some disks are small, until they are made larger.
    fn limit_all(&mut self, on: bool) {
        (self.is_limited, self.is_short) = (on, self.is_short || self.mood.short.is_some());
        (0..self.nodes.len()).for_each(|node| self.limit(node, on));
    }

    fn limit(&mut self, node: usize, on: bool) {
        let small = self.mood.short.filter(|(who, _)| match who {
            Short::All => true,
            Short::First => node == 0,
            Short::Others => node > 0,
        });
        let fs = &self.nodes[node].fs;
        let most = small.map(|(_, size)| size.max(fs.used()));
        fs.set_quota(most.filter(|_| on));
    }

    /// Open a disk, to follow; it has the state after some entry up to `most`.
    fn reopen(&mut self, node: usize, most: u64) {
        self.nodes[node].fs.crash_at(u64::MAX);
        self.nodes[node].engine = None;
        let fs = self.nodes[node].fs.clone();
        let opened = Engine::follow(&options(&fs, self.mood), self.now);
        let engine = opened.unwrap_or_else(|error| panic!("node {node}: {error}"));
        let stamp = engine.stamp();
        assert!(stamp.index <= most, "{stamp:?} was not committed: {most}");
        assert_eq!(stamp, self.stamp(stamp.index));
        assert_eq!(engine.durable_stamp(), stamp);
        self.nodes[node].engine = Some(engine);
        self.nodes[node].is_full = false;
        self.check_state(node, stamp.index, false);
    }

    /// The node has exactly what the entry leaves.
    fn check_state(&self, node: usize, index: u64, exact: bool) {
        let engine = self.nodes[node].engine.as_ref().unwrap();
        self.check_engine(engine, index, exact, &format!("node {node}"));
    }

    fn check_engine(&self, engine: &Engine, index: u64, exact: bool, who: &str) {
        let Some(state) = self.state(index) else {
            return;
        };
        let found = State::of(engine, self.now);
        if let Some(difference) = state.difference(&found, self.now, exact) {
            panic!("{who} after entry {index}: {difference}");
        }
    }

    /// An engine that follows, and is of no further use, leads: all bodies can be read.
    fn check_bodies(&self, mut engine: Engine) {
        let stamp = Stamp {
            term: self.term + 1,
            ..engine.stamp()
        };
        engine.lead(stamp, self.now).unwrap();
        let client = engine.connect();
        let ids = 1..engine.queue().next_id().0;
        for id in ids.map(JobId) {
            if engine.queue().job(id).is_none() {
                continue;
            }
            let mut replies = Replies::default();
            let peek = Request::Command(Command::Peek(id));
            engine.run(client, peek, self.now, &mut replies);
            let (_, _, said) = replies.0.pop().unwrap();
            let Said::Job(found, bytes) = said else {
                panic!("the body of job {id} is not to be had: {said:?}");
            };
            self.check_body(found, &bytes);
        }
    }

    fn check_body(&self, id: u64, bytes: &[u8]) {
        let (of, size) = self.bodies[&id];
        assert!(
            body(JobId(of), size)[..] == *bytes,
            "job {id}: another body"
        );
    }

    /// Apply entries up to `upto`; `false` if the disk is full.
    fn catch_up(&mut self, node: usize, upto: u64) -> bool {
        loop {
            let at = self.nodes[node].engine().stamp().index;
            if at >= upto {
                return true;
            }
            let (stamp, now) = (self.stamp(at + 1), self.now);
            let data = std::mem::take(&mut self.entries[at as usize].data);
            let applied = self.nodes[node].engine().apply_entry(stamp, &data, now);
            self.entries[at as usize].data = data;
            match applied {
                Ok(()) => {}
                _ if self.nodes[node].fs.is_crashed() => return true,
                Err(Apart::Full) => {
                    assert!(self.is_short, "node {node} has room");
                    self.figures.fulls += 1;
                    // Nothing has changed: the queue is as good as one that is opened again.
                    self.check_state(node, at, false);
                    if self.random.percent(50) {
                        self.reopen(node, at);
                    }
                    self.nodes[node].is_full = true;
                    return false;
                }
                Err(apart) => panic!("node {node}, entry {}: {apart}", at + 1),
            }
            assert_eq!(self.nodes[node].engine().stamp(), stamp);
        }
    }
}

/// Turns.
impl Cluster {
    fn crashed(&self, node: usize) -> Result<(), Crashed> {
        match self.nodes[node].fs.is_crashed() {
            true => Err(Crashed),
            false => Ok(()),
        }
    }

    /// What the leader may return: an error only if its disk has crashed.
    fn sound<T>(&self, result: Result<T, StoreError>) -> Result<T, Crashed> {
        self.crashed(self.leader)?;
        Ok(result.unwrap_or_else(|error| panic!("{error}")))
    }

    fn turn(&mut self, ms: u32) {
        let is_over = self.lead_on();
        if is_over.is_err() {
            self.leader_crashed();
        }
        for node in self.followers() {
            self.follow_on(node);
        }
        self.pass(ms);
    }

    fn pass(&mut self, ms: u32) {
        later(&mut self.now, ms);
    }

    fn lead_on(&mut self) -> Result<(), Crashed> {
        let run = self.run_requests()?;
        self.end_turn()?;
        self.stalled = match run {
            0 => self.stalled + 1,
            _ => 0,
        };
        self.figures.stall_most = self.figures.stall_most.max(self.stalled);
        let all = self.stalled > 1;
        assert!(
            self.stalled < STALL_MAX,
            "nothing is run: quiet {}, holding {}, room {}, {} of {}, unwritten {}",
            self.leader().wants_quiet(),
            self.leader().is_holding(),
            self.leader().has_room_for(1),
            self.released,
            self.last(),
            self.leader().log().unwrap().has_unwritten(),
        );
        if all || self.random.percent(self.mood.commits) {
            let open = self.last() - self.committed;
            let more = if all {
                open
            } else {
                self.random.below(open + 1)
            };
            self.release(self.committed + more)?;
        }
        self.check_acks();
        Ok(())
    }

    fn release(&mut self, upto: u64) -> Result<(), Crashed> {
        self.committed = upto;
        self.released = upto;
        let (stamp, now) = (self.stamp(upto), self.now);
        let before = self.leader().stamp();
        let released = self.lead().release(stamp, now);
        self.sound(released)?;
        let found = self.leader().stamp();
        assert!(found <= stamp);
        if self.kicker.is_some() && found > before {
            let due = self.leader().next_deadline(now);
            assert!(due.is_some_and(|due| due <= now.mono), "a kick goes on");
        }
        Ok(())
    }

    /// The end of the leader's turn, without requests.
    fn end_turn(&mut self) -> Result<(), Crashed> {
        let (now, mut replies) = (self.now, Replies::default());
        let done = if self.leader().wants_quiet() {
            self.figures.quiet += 1;
            self.lead().use_quiet(now)
        } else {
            self.lead().tick(now, &mut replies)
        };
        self.sound(done)?;
        self.take_replies(replies);
        let done = self.lead().commit(now);
        self.sound(done)?;
        let first = self.last() + 1;
        while let Some(formed) = self.lead().take_formed() {
            let term = self.term;
            let index = self.last() + 1;
            assert_eq!(formed.stamp, Stamp { index, term });
            self.push(formed.data);
        }
        let last = self.last();
        if last >= first {
            let state = Rc::new(State::of(self.leader(), now));
            self.entries[last as usize - 1].state = Some(state);
            let new = self.new_acks.drain(..);
            self.acks.extend(new.map(|after| (after, first, last)));
        } else if !self.leader().log().unwrap().has_unwritten() {
            assert!(
                self.new_acks.is_empty(),
                "they wait for what was not formed"
            );
        }
        if self.random.percent(2) && !self.leader().log().unwrap().has_unwritten() {
            self.push(Vec::new());
            let (index, term) = (self.last() + 1, self.term);
            self.lead().skip_to(Stamp { index, term });
        }
        let log = self.leader().log().unwrap();
        log.assert_accounts();
        Ok(())
    }

    /// A reply may leave when its entry is committed, and leaves when that is written.
    fn check_acks(&mut self) {
        let (engine, released) = (self.nodes[self.leader].engine.as_ref(), self.released);
        let acknowledged = engine.unwrap().acknowledged();
        let is_synced = !engine.unwrap().log().unwrap().has_unsynced();
        self.acks.retain(|(after, first, last)| {
            let may_leave = *after <= acknowledged;
            assert!(!may_leave || *first <= released, "not committed: {first}");
            let has_to = *last <= released && is_synced;
            assert!(!has_to || may_leave, "entry {last} is committed");
            !may_leave
        });
    }

    fn follow_on(&mut self, node: usize) {
        if self.nodes[node].is_full && !self.random.percent(20) {
            return;
        }
        let at = self.nodes[node].engine().stamp().index;
        let upto = match self.random.below(4) {
            0 => at,
            1 => at + self.random.below(self.committed - at + 1),
            _ => self.committed,
        };
        self.catch_up(node, upto);
        let now = self.now;
        for _ in 0..1 + self.random.below(4) {
            let more = self.nodes[node].engine().follow_on(now);
            if self.nodes[node].fs.is_crashed() {
                return self.follower_crashed(node, upto);
            }
            if !more.unwrap_or_else(|error| panic!("node {node}: {error}")) {
                break;
            }
        }
        if self.random.percent(self.mood.images) {
            let upto = self.nodes[node].engine().stamp().index;
            self.check_images(node, upto);
        }
    }

    /// Whatever a crash leaves now is the state after an entry.
    fn check_images(&mut self, node: usize, most: u64) {
        self.figures.images += 1;
        let seed = self.random.next();
        let durable = self.nodes[node].engine().durable_stamp();
        for how in [
            Crash::KeepAll,
            Crash::DropUnsynced,
            Crash::Random { seed },
            Crash::Random { seed: seed ^ 1 },
        ] {
            let image = self.nodes[node].fs.crash_image(how);
            let stamp = self.check_image(&image, most, durable);
            if how == Crash::KeepAll && !self.nodes[node].fs.is_crashed() {
                let has = (stamp.index..most).all(|at| self.entries[at as usize].data.is_empty());
                assert!(has, "{stamp:?} is all that is written of {most} entries");
            }
        }
    }

    fn check_image(&mut self, image: &SimFs, most: u64, durable: Stamp) -> Stamp {
        image.set_quota(None);
        let opened = Engine::follow(&options(image, self.mood), self.now);
        let mut engine = opened.unwrap_or_else(|error| panic!("{error}"));
        let stamp = engine.stamp();
        assert!(
            stamp >= durable,
            "{stamp:?} is left, {durable:?} was durable"
        );
        assert!(stamp.index <= most, "{stamp:?} was not committed: {most}");
        assert_eq!(stamp, self.stamp(stamp.index));
        self.check_engine(&engine, stamp.index, false, "an image");
        for index in stamp.index + 1..=self.committed {
            let entry = &self.entries[index as usize - 1];
            let stamp = self.stamp(index);
            let applied = engine.apply_entry(stamp, &entry.data, self.now);
            applied.unwrap_or_else(|apart| panic!("entry {index}: {apart}"));
        }
        self.check_engine(&engine, self.committed, false, "an image that went on");
        self.check_bodies(engine);
        stamp
    }

    fn leader_crashed(&mut self) {
        self.figures.crashes += 1;
        let node = self.leader;
        self.note_log(node);
        self.check_images(node, self.released);
        self.replace_disk(node);
        self.reopen(node, self.released);
        let new = self.random.below(self.nodes.len());
        self.elect(new);
    }

    fn follower_crashed(&mut self, node: usize, upto: u64) {
        self.figures.crashes += 1;
        self.check_images(node, upto);
        self.replace_disk(node);
        self.reopen(node, upto);
    }

    fn replace_disk(&mut self, node: usize) {
        let seed = self.random.next();
        let how = self
            .random
            .pick(&[Crash::KeepAll, Crash::DropUnsynced, Crash::Random { seed }]);
        self.nodes[node].engine = None;
        self.nodes[node].fs = self.nodes[node].fs.crash_image(how);
        self.limit(node, self.is_limited);
    }

    /// Everything is committed, applied and idle: all have the same.
    fn settle(&mut self) {
        self.limit_all(false);
        // All reservations run out.
        self.pass(6000);
        self.disarm();
        for _ in 0..60 {
            self.pass(60);
            let done = self.end_turn().and_then(|()| self.release(self.last()));
            if done.is_err() {
                return self.leader_crashed();
            }
            self.check_acks();
            for node in self.followers() {
                if self.catch_up(node, self.committed) {
                    let (upto, now) = (self.committed, self.now);
                    let more = self.nodes[node].engine().follow_on(now);
                    if self.nodes[node].fs.is_crashed() {
                        self.follower_crashed(node, upto);
                    } else {
                        more.unwrap();
                    }
                }
            }
        }
    }

    fn check_all_same(&mut self) {
        let state = State::of(self.leader(), self.now);
        for node in 0..self.nodes.len() {
            assert_eq!(self.nodes[node].engine().stamp().index, self.committed);
            let found = State::of(self.nodes[node].engine(), self.now);
            // On a full disk counters go without.
            if let Some(difference) = state.difference(&found, self.now, !self.is_short) {
                panic!("node {node} is apart: {difference}");
            }
        }
    }
}

/// Requests.
impl Cluster {
    fn run_requests(&mut self) -> Result<u64, Crashed> {
        let count = 1 + self.random.below(self.mood.turn);
        let mut run = 0;
        for _ in 0..count {
            if !self.request()? {
                break;
            }
            run += 1;
        }
        self.figures.requests += run;
        Ok(run)
    }

    /// Run a request if that may be; `false` if not.
    fn request(&mut self) -> Result<bool, Crashed> {
        let jobs = self.leader().queue().stats().jobs.total() as usize;
        let worker = self.random.below(WORKERS);
        let client = self.workers[worker];
        let (pri, delay) = (
            self.random.below(4u32) * 700,
            self.random.pick(&[0, 0, 0, 1, 2, 40]),
        );
        let nth = self.random.below(1usize << 20);
        let tube = self.random.pick(&TUBES);
        let choice = match jobs > self.mood.jobs_max + 2 * self.mood.buried {
            true => 40 + self.random.below(20),
            false => self.random.below(100),
        };
        match choice {
            0..40 => self.put(tube, pri, delay),
            40..52 => self.delete_any(nth),
            52..60 => match self.nth_reserved(nth) {
                Some((id, worker)) => self.delete(self.workers[worker], id),
                None => self.delete_any(nth),
            },
            60..72 => {
                let command = Command::Reserve {
                    timeout: Some(0),
                    op: Op::ReserveWithTimeout,
                };
                self.reserve(worker, command)
            }
            72..74 => match self.nth_id(nth) {
                Some(id) => self.reserve(worker, Command::ReserveJob(JobId(id))),
                None => Ok(true),
            },
            74..79 => match self.nth_reserved(nth) {
                Some((id, worker)) => {
                    let id = JobId(id);
                    self.let_go(worker, id, Command::Release { id, pri, delay })
                }
                None => Ok(true),
            },
            79..85 => match self.nth_reserved(nth) {
                Some((id, worker)) => {
                    let id = JobId(id);
                    self.let_go(worker, id, Command::Bury { id, pri })
                }
                None => Ok(true),
            },
            85 => match self.nth_reserved(nth) {
                Some((id, worker)) => {
                    let touch = Command::Touch(JobId(id));
                    Ok(self.ask(self.workers[worker], 0, touch)?.is_some())
                }
                None => Ok(true),
            },
            86..88 => self.kick(tube),
            88..90 => match self.nth_id(nth) {
                Some(id) => {
                    let kick = Command::KickJob(JobId(id));
                    Ok(self.ask(self.boss, 0, kick)?.is_some())
                }
                None => Ok(true),
            },
            90 => {
                let delay = self.random.below(4);
                let pause = Command::PauseTube { tube, delay };
                Ok(self.ask(self.boss, 0, pause)?.is_some())
            }
            91 => {
                let now = self.now;
                self.lead().disconnect(client, now);
                self.reserved.retain(|(_, holder)| *holder != worker);
                self.workers[worker] = self.connect();
                Ok(true)
            }
            92 => self.bury_many(),
            93..96 => self.alter(nth),
            _ => self.peek(nth),
        }
    }

    fn nth_id(&self, nth: usize) -> Option<u64> {
        let queue = self.leader().queue();
        let ids = (1..queue.next_id().0).filter(|id| queue.job(JobId(*id)).is_some());
        let ids: Vec<u64> = ids.collect();
        ids.get(nth % ids.len().max(1)).copied()
    }

    fn nth_reserved(&self, nth: usize) -> Option<(u64, usize)> {
        self.reserved.get(nth % self.reserved.len().max(1)).copied()
    }

    fn interfere(&mut self) {
        if let Some((_, expected)) = &mut self.kicker {
            *expected = None;
        }
    }

    /// `None`: not now. Otherwise what was said, unless the client has to wait.
    fn ask(
        &mut self,
        client: ClientId,
        size: usize,
        command: Command<'_>,
    ) -> Result<Option<Option<Said>>, Crashed> {
        if self.leader().wants_quiet() || !self.leader().has_room_for(size) {
            return Ok(None);
        }
        let (now, mut replies) = (self.now, Replies::default());
        let awaited = self.leader().after();
        let flow = self
            .lead()
            .run(client, Request::Command(command), now, &mut replies);
        self.crashed(self.leader)?;
        let said = (flow == Flow::Next).then(|| {
            let (_, after, said) = replies.0.pop().unwrap();
            if after > awaited {
                self.new_acks.push(after);
            }
            said
        });
        if said == Some(Said::OutOfMemory) {
            assert!(self.is_short, "{command:?} is refused on a disk with room");
            self.refused += 1;
        }
        assert_ne!(said, Some(Said::Failed), "{command:?}");
        Ok(Some(said))
    }

    fn put(&mut self, tube: &'static str, pri: u32, delay: u32) -> Result<bool, Crashed> {
        let choice = match self.mood.large {
            true => self.random.below(400),
            false => 400,
        };
        let size = match choice {
            // Larger than a segment.
            0 => self.mood.segment_size as usize + 1000,
            1..5 => 60_000,
            5..20 => 0,
            _ => self.random.below(self.mood.size_max),
        };
        let size = size.min(1 << 20);
        if self.ask(self.boss, 0, Command::Use(tube))?.is_none() {
            return Ok(false);
        }
        let id = self.leader().queue().next_id();
        let (body, ttr) = (body(id, size), 1 + self.random.below(4u32));
        let put = Command::Put {
            pri,
            delay,
            ttr,
            body: &body,
        };
        match self.ask(self.boss, size, put)? {
            Some(Some(Said::Inserted(found))) => {
                assert_eq!(found, id.0);
                self.bodies.insert(found, (found, size));
                Ok(true)
            }
            other => Ok(other.is_some()),
        }
    }

    fn delete_any(&mut self, nth: usize) -> Result<bool, Crashed> {
        let is_free = |id: &u64| {
            let job = self.leader().queue().job(JobId(*id));
            job.is_some_and(|job| job.state != JobState::Reserved)
        };
        match self.nth_id(nth).filter(is_free) {
            Some(id) => self.delete(self.boss, id),
            None => Ok(true),
        }
    }

    fn delete(&mut self, client: ClientId, id: u64) -> Result<bool, Crashed> {
        self.interfere();
        let is_known = {
            let job = self.leader().queue().job(JobId(id));
            job.is_some_and(|job| client == self.boss || job.state == JobState::Reserved)
        };
        let before = self.refused;
        let said = self.ask(client, 0, Command::Delete(JobId(id)))?;
        // P6
        assert!(
            self.refused == before || self.is_lifted,
            "a delete is refused"
        );
        let is_refused = said == Some(Some(Said::OutOfMemory));
        if said.is_some() && !is_refused {
            assert!(!is_known || said == Some(Some(Said::Deleted)), "{said:?}");
            self.reserved.retain(|(job, _)| *job != id);
        }
        Ok(said.is_some())
    }

    fn reserve(&mut self, worker: usize, command: Command<'_>) -> Result<bool, Crashed> {
        self.interfere();
        let said = self.ask(self.workers[worker], 0, command)?;
        if let Some(Some(Said::Job(id, bytes))) = &said {
            self.check_body(*id, bytes);
            self.reserved.retain(|(job, _)| job != id);
            self.reserved.push((*id, worker));
        }
        Ok(said.is_some())
    }

    fn let_go(&mut self, worker: usize, id: JobId, command: Command<'_>) -> Result<bool, Crashed> {
        let before = self.refused;
        let said = self.ask(self.workers[worker], 0, command)?;
        if said.is_some() && self.refused == before {
            self.reserved.retain(|(job, _)| *job != id.0);
        }
        Ok(said.is_some())
    }

    fn kick(&mut self, tube: &'static str) -> Result<bool, Crashed> {
        if self.kicker.is_some() {
            return Ok(true);
        }
        let client = self.lead().connect();
        if self.ask(client, 0, Command::Use(tube))?.is_none() {
            let now = self.now;
            self.lead().disconnect(client, now);
            return Ok(false);
        }
        let bound = self.random.pick(&[1, 3, 50, 1000]);
        let stats = self.leader().queue().tube_stats(tube, self.now.mono);
        let jobs = stats.map(|stats| stats.jobs).unwrap_or_default();
        let there = match jobs.buried {
            0 => jobs.delayed,
            buried => buried,
        };
        let expected = there.min(bound.into());
        let said = self.ask(client, 0, Command::Kick { bound })?;
        match &said {
            None => {
                let now = self.now;
                self.lead().disconnect(client, now);
            }
            Some(None) => self.kicker = Some((client, (jobs.buried > 0).then_some(expected))),
            Some(Some(said)) => {
                if !self.is_short {
                    assert_eq!(*said, Said::Kicked(expected));
                }
                let now = self.now;
                self.lead().disconnect(client, now);
            }
        }
        Ok(said.is_some())
    }

    /// What a tick has said: to whom a kick was of so many.
    fn take_replies(&mut self, replies: Replies) {
        for (client, after, said) in replies.0 {
            let (Said::Kicked(count), Some((kicker, expected))) = (&said, self.kicker) else {
                continue;
            };
            assert_eq!(client, kicker);
            if let Some(expected) = expected.filter(|_| !self.is_short) {
                assert_eq!(*count, expected, "a kick is done whole");
            }
            self.figures.kicks += 1;
            if self.leader().log().unwrap().has_unwritten() {
                self.new_acks.push(after);
            }
            let now = self.now;
            self.lead().disconnect(client, now);
            self.kicker = None;
        }
    }

    fn bury_many(&mut self) -> Result<bool, Crashed> {
        for nth in 0..self.leader().queue().next_id().0 {
            let (id, now) = (JobId(nth), self.now);
            if self.leader().queue().job(id).is_none() || self.random.percent(20) {
                continue;
            }
            if self.leader().wants_quiet() || !self.leader().has_room_for(0) {
                return Ok(nth > 0);
            }
            self.interfere();
            let awaited = self.leader().after();
            let done = self
                .lead()
                .alter(id, Alteration::Bury, now, &mut Replies::default());
            let done = self.sound(done)?;
            self.altered(awaited, done);
        }
        Ok(true)
    }

    fn altered(&mut self, awaited: Position, done: Altered) {
        if self.leader().after() > awaited {
            self.new_acks.push(self.leader().after());
        }
        assert!(done != Altered::NoRoom || self.is_short, "there is room");
        assert_ne!(done, Altered::Damaged);
        self.refused += u64::from(done == Altered::NoRoom);
    }

    fn alter(&mut self, nth: usize) -> Result<bool, Crashed> {
        let Some(id) = self.nth_id(nth) else {
            return Ok(true);
        };
        let size = self.leader().queue().job(JobId(id)).unwrap().body_size as usize;
        if self.leader().wants_quiet() || !self.leader().has_room_for(size) {
            return Ok(false);
        }
        self.interfere();
        let alteration = match self.random.below(6) {
            0 => Alteration::Priority(self.random.below(4)),
            1 => Alteration::Delay(1 + self.random.below(3u32)),
            2 => Alteration::Bury,
            _ => Alteration::Move {
                tube: self.random.pick(&TUBES),
                kick: self.random.percent(30),
            },
        };
        let (now, awaited) = (self.now, self.leader().after());
        let done = self
            .lead()
            .alter(JobId(id), alteration, now, &mut Replies::default());
        let done = self.sound(done)?;
        if let Altered::Done(copy) = done {
            let of = self.bodies[&id];
            self.bodies.insert(copy.0, of);
        }
        self.altered(awaited, done);
        Ok(true)
    }

    fn peek(&mut self, nth: usize) -> Result<bool, Crashed> {
        // Of the newest: they are held.
        let newest = self.leader().queue().next_id().0.saturating_sub(1);
        let there = self.leader().queue().job(JobId(newest)).is_some();
        let id = match there && self.random.percent(50) {
            true => Some(newest),
            false => self.nth_id(nth),
        };
        let Some(id) = id else { return Ok(true) };
        let said = self.ask(self.boss, 0, Command::Peek(JobId(id)))?;
        if let Some(Some(said)) = &said {
            let Said::Job(found, bytes) = said else {
                panic!("job {id} cannot be read: {said:?}");
            };
            self.check_body(*found, bytes);
        }
        Ok(said.is_some())
    }
}

/// Runs.
impl Cluster {
    /// Many jobs to kick.
    fn prefill(&mut self) {
        while self.leader().queue().stats().jobs.buried < self.mood.buried as u64 {
            let tube = self.random.pick(&TUBES[..2]);
            let id = self.leader().queue().next_id();
            let (now, mut replies) = (self.now, Replies::default());
            if self.put_small(tube).unwrap_or(false) {
                while self.leader().wants_quiet() || !self.leader().has_room_for(0) {
                    self.commit_all();
                }
                let bury = self.lead().alter(id, Alteration::Bury, now, &mut replies);
                bury.unwrap();
            }
            if self.random.percent(10) || self.leader().wants_quiet() {
                self.commit_all();
            }
        }
    }

    fn commit_all(&mut self) {
        let _ = self.end_turn();
        let last = self.last();
        let _ = self.release(last);
    }

    fn put_small(&mut self, tube: &'static str) -> Result<bool, Crashed> {
        let was = std::mem::replace(&mut self.mood.large, false);
        let size = std::mem::replace(&mut self.mood.size_max, 9);
        let done = self.put(tube, 700, 0);
        (self.mood.large, self.mood.size_max) = (was, size);
        done
    }

    fn run(&mut self, turns: usize) {
        self.limit_all(true);
        self.prefill();
        for _ in 0..turns {
            if self.random.one_in(200 / (1 + self.mood.crashes as u64)) && self.mood.crashes > 0 {
                let node = self.random.below(self.nodes.len());
                let fs = &self.nodes[node].fs;
                let at = fs.operations() + 1 + self.random.below(40u64);
                fs.crash_at(at);
            }
            let ms = self.random.pick(&[0, 0, 1, 1, 5, 30, 120, 700]);
            self.turn(ms);
            if self.random.percent(self.mood.images) {
                self.check_images(self.leader, self.released);
            }
            if self.random.percent(self.mood.changes) {
                self.change_leader();
            }
            for node in &self.nodes {
                node.fs.clear_trace();
            }
        }
        self.settle();
        self.check_all_same();
        self.note_log(self.leader);
    }
}

#[test]
fn random_runs_leave_all_disks_with_the_same_jobs_and_no_uncommitted_one() {
    for seed in runs(12) {
        let mut random = Random::new(seed ^ 0x5eed);
        let mood = Mood::any(&mut random);
        println!("seed {seed}: {mood:?}");
        let mut cluster = Cluster::begin(seed, mood);
        cluster.run(600);
        println!("    {:?}, {} entries", cluster.figures, cluster.last());
    }
}

#[test]
fn random_runs_on_disks_that_fill_up_lose_nothing_and_refuse_no_delete() {
    for seed in runs(12) {
        let mut random = Random::new(seed ^ 0xf011);
        let who = random.pick(&[Short::All, Short::First, Short::Others]);
        let size = 120_000 + random.below(400_000u64);
        let mood = Mood {
            short: Some((who, size)),
            jobs_max: 4000,
            size_max: random.pick(&[60, 3000, 9000]),
            buried: 0,
            ..Mood::any(&mut random)
        };
        println!("seed {seed}: {mood:?}");
        let mut cluster = Cluster::begin(seed, mood);
        cluster.run(600);
        let refused = cluster.refused;
        println!("    {refused} refused, {:?}", cluster.figures);
    }
}

/// P9, although something is held nearly always.
#[test]
fn the_logs_of_leader_and_followers_stay_bounded() {
    for (segment_size, size_max, turn, commits) in [
        (64 << 10, 1500, 3, 60),
        (256 << 10, 4000, 3, 60),
        (1 << 20, 16_000, 6, 30),
    ] {
        let mood = Mood {
            nodes: 2,
            sync: SyncPolicy::Interval(50),
            segment_size,
            size_max,
            jobs_max: 60,
            turn,
            commits,
            images: 0,
            changes: 0,
            crashes: 0,
            buried: 0,
            large: false,
            short: None,
        };
        let mut cluster = Cluster::begin(7, mood);
        let mut most = [0; 2];
        for _ in 0..2500 {
            let ms = cluster.random.pick(&[0, 1, 5]);
            cluster.turn(ms);
            cluster.forget();
            for (nth, node) in cluster.nodes.iter().enumerate() {
                node.fs.clear_trace();
                let live = State::of(node.engine.as_ref().unwrap(), cluster.now).live_bytes();
                let beyond = disk_bytes(&node.fs).saturating_sub(2 * live);
                most[nth] = beyond.max(most[nth]);
            }
        }
        let segment = u64::from(segment_size);
        let [leader, follower] = most.map(|most| most * 100 / segment);
        cluster.note_log(0);
        assert!(leader <= 300 && follower <= 300, "{leader} and {follower}");
        println!(
            "{segment_size}, {size_max}: {leader} and {follower} hundredths, {:?}",
            cluster.figures
        );
    }
}

impl Cluster {
    /// The data of entries that all have.
    fn forget(&mut self) {
        let least = self.nodes.iter().filter_map(|node| node.engine.as_ref());
        let least = least.map(|engine| engine.stamp().index).min().unwrap_or(0);
        let from = least.saturating_sub(64) as usize;
        for entry in &mut self.entries[from..least as usize] {
            entry.data = Vec::new();
            entry.state = None;
        }
    }
}

/// A leader without followers.
fn alone(fs: &SimFs, segment_size: u32) -> (Engine, Mood) {
    let mood = Mood {
        nodes: 1,
        sync: SyncPolicy::Always,
        segment_size,
        size_max: 0,
        jobs_max: 0,
        turn: 0,
        commits: 0,
        images: 0,
        changes: 0,
        crashes: 0,
        buried: 0,
        large: false,
        short: None,
    };
    let mut engine = Engine::follow(&options(fs, mood), beginning()).unwrap();
    engine.lead(engine.stamp(), beginning()).unwrap();
    (engine, mood)
}

fn run(engine: &mut Engine, client: ClientId, command: Command<'_>, now: Now) -> Option<Said> {
    let mut replies = Replies::default();
    engine.run(client, Request::Command(command), now, &mut replies);
    replies.0.pop().map(|(_, _, said)| said)
}

fn put_command(body: &[u8]) -> Command<'_> {
    Command::Put {
        pri: 1,
        delay: 0,
        ttr: 1000,
        body,
    }
}

/// Everything that was formed is committed at once. Returns it.
fn commit_all(engine: &mut Engine, now: Now) -> Vec<bsd::storage::Formed> {
    engine.commit(now).unwrap();
    let formed: Vec<_> = std::iter::from_fn(|| engine.take_formed()).collect();
    if let Some(last) = formed.last() {
        engine.release(last.stamp, now).unwrap();
    }
    engine.commit(now).unwrap();
    formed
}

fn later(now: &mut Now, ms: u32) {
    now.mono.0 += i64::from(ms) * MS_NS;
    now.wall_ns += u64::from(ms) * MS_NS as u64;
}

/// Turns without requests, until there is nothing to do.
fn rest(engine: &mut Engine, now: Now) -> Vec<bsd::storage::Formed> {
    let mut all = Vec::new();
    for _ in 0..1000 {
        if engine.wants_quiet() {
            engine.use_quiet(now).unwrap();
        } else {
            engine.tick(now, &mut Replies::default()).unwrap();
        }
        let formed = commit_all(engine, now);
        let is_idle = formed.is_empty() && !engine.wants_quiet();
        all.extend(formed);
        if is_idle && engine.next_deadline(now).is_none_or(|due| due > now.mono) {
            return all;
        }
    }
    panic!("there is always more to do at once");
}

#[test]
fn counters_for_which_no_reply_waits_do_not_keep_the_log_from_a_quiet_moment() {
    let (mut engine, _) = alone(&SimFs::new(1), 64 << 10);
    let (client, mut now) = (engine.connect(), beginning());
    run(&mut engine, client, put_command(b"counted"), now);
    rest(&mut engine, now);
    let reserve = Command::Reserve {
        timeout: Some(0),
        op: Op::ReserveWithTimeout,
    };
    run(&mut engine, client, reserve, now);
    engine.tick(now, &mut Replies::default()).unwrap();
    later(&mut now, 60);
    run(&mut engine, client, put_command(&[7; 10_000]), now);
    engine.commit(now).unwrap();
    engine.tick(now, &mut Replies::default()).unwrap();
    assert!(engine.log().unwrap().has_unwritten(), "the counters");
    let held = engine.take_formed().unwrap();
    engine.release(held.stamp, now).unwrap();
    assert!(engine.wants_quiet() && engine.is_holding());
    for _ in 0..3 {
        engine.use_quiet(now).unwrap();
        commit_all(&mut engine, now);
    }
    assert!(!engine.wants_quiet() && !engine.is_holding());
}

/// Whoever asks without looking for room gets what there is: no segment ends with what is held.
#[test]
fn requests_for_which_the_open_segment_has_no_room_are_refused_while_something_is_held() {
    let now = beginning();
    for is_move in [false, true] {
        let fs = SimFs::new(1);
        let (mut engine, mood) = alone(&fs, 64 << 10);
        let client = engine.connect();
        run(&mut engine, client, put_command(&[1; 5000]), now);
        rest(&mut engine, now);
        let before = State::of(&engine, now);
        let stamp = engine.stamp();
        let mut kept = 0;
        for nth in 0.. {
            let is_done = match is_move {
                true => {
                    let id = JobId(engine.queue().next_id().0 - 1);
                    let tube = TUBES[1 + nth % 2];
                    let to = Alteration::Move { tube, kick: false };
                    let done = engine.alter(id, to, now, &mut Replies::default());
                    done.unwrap() != Altered::NoRoom
                }
                false => {
                    let said = run(&mut engine, client, put_command(&[2; 5000]), now);
                    said != Some(Said::OutOfMemory)
                }
            };
            if !is_done {
                break;
            }
            kept += 1;
            assert!(nth < 100, "it is not held");
            engine.commit(now).unwrap();
            engine.tick(now, &mut Replies::default()).unwrap();
        }
        assert!(kept > 2 && !engine.has_room_for(5000));
        let opened = Engine::follow(&options(&fs.crash_image(Crash::KeepAll), mood), now);
        let opened = opened.unwrap();
        assert_eq!(opened.stamp(), stamp);
        assert_eq!(
            before.difference(&State::of(&opened, now), now, false),
            None
        );
        rest(&mut engine, now);
        let said = run(&mut engine, client, put_command(&[3; 5000]), now);
        assert!(matches!(said, Some(Said::Inserted(_))), "{said:?}");
    }
}

/// Compaction waits, and with it what only it can make room for.
#[test]
fn a_full_disk_is_not_compacted_while_something_is_held() {
    let now = beginning();
    let quotas = [200_000, 300_000, 500_000].into_iter();
    for (quota, size) in quotas.flat_map(|quota| [(quota, 20), (quota, 3000)]) {
        let fs = SimFs::new(1);
        let (mut engine, mood) = alone(&fs, 64 << 10);
        fs.set_quota(Some(quota));
        let (client, body) = (engine.connect(), vec![1; size]);
        while let Some(Said::Inserted(_)) = run(&mut engine, client, put_command(&body), now) {
            rest(&mut engine, now);
        }
        let (before, stamp) = (State::of(&engine, now), engine.stamp());
        for id in before.jobs.keys() {
            let delete = Command::Delete(JobId(*id));
            run(&mut engine, client, delete, now);
            engine.commit(now).unwrap();
            engine.tick(now, &mut Replies::default()).unwrap();
        }
        let image = fs.crash_image(Crash::KeepAll);
        let opened = Engine::follow(&options(&image, mood), now).unwrap();
        assert_eq!(opened.stamp(), stamp);
        assert_eq!(
            before.difference(&State::of(&opened, now), now, false),
            None
        );
        rest(&mut engine, now);
        for id in before.jobs.keys() {
            run(&mut engine, client, Command::Delete(JobId(*id)), now);
            rest(&mut engine, now);
        }
        assert_eq!(engine.queue().stats().jobs.total(), 0);
    }
}

/// The last frames that say so may be in files that compaction drops.
#[test]
fn stamps_outlive_rotation_compaction_and_clean_stops() {
    let mut bare = 0;
    for jobs in 1..30 {
        let fs = SimFs::new(1);
        let (mut engine, mood) = alone(&fs, 64 << 10);
        let (client, mut now) = (engine.connect(), beginning());
        for _ in 0..jobs {
            run(&mut engine, client, put_command(&[1; 4000]), now);
            rest(&mut engine, now);
        }
        for id in (1..=jobs).map(JobId) {
            run(&mut engine, client, Command::Delete(id), now);
            rest(&mut engine, now);
        }
        for _ in 0..5 {
            later(&mut now, 200);
            rest(&mut engine, now);
            let image = fs.crash_image(Crash::DropUnsynced);
            let opened = Engine::follow(&options(&image, mood), now).unwrap();
            assert_eq!(opened.stamp(), engine.stamp(), "{jobs} jobs");
        }
        let segments = engine.log().unwrap().segments();
        bare += u32::from(segments.0 == segments.1 && segments.0.0 > 1);
        let stamp = engine.stamp();
        engine.leave(now).unwrap();
        for _ in 0..2 {
            let opened = Engine::follow(&options(&fs, mood), now).unwrap();
            assert_eq!(opened.stamp(), stamp, "{jobs} jobs");
            opened.leave(now).unwrap();
        }
    }
    assert!(bare > 0, "all that was there was dropped, now and then");
}

/// Of more counters than there is room for beside what is held, the rest waits.
#[test]
fn no_counters_are_lost_for_want_of_room_beside_what_is_held() {
    let fs = SimFs::new(1);
    let (mut engine, mood) = alone(&fs, 64 << 10);
    let (client, mut now) = (engine.connect(), beginning());
    for _ in 0..600 {
        run(&mut engine, client, put_command(b""), now);
        rest(&mut engine, now);
    }
    let reserve = Command::Reserve {
        timeout: Some(0),
        op: Op::ReserveWithTimeout,
    };
    for _ in 0..600 {
        run(&mut engine, client, reserve, now);
    }
    engine.tick(now, &mut Replies::default()).unwrap();
    later(&mut now, 60);
    while engine.has_room_for(1000) {
        run(&mut engine, client, put_command(&[1; 1000]), now);
        engine.commit(now).unwrap();
    }
    engine.tick(now, &mut Replies::default()).unwrap();
    for _ in 0..5 {
        rest(&mut engine, now);
        later(&mut now, 200);
    }
    rest(&mut engine, now);
    let state = State::of(&engine, now);
    drop(engine);
    let opened = Engine::follow(&options(&fs, mood), now).unwrap();
    assert_eq!(state.difference(&State::of(&opened, now), now, true), None);
}

/// Whatever is left of the segment that the follower has.
#[test]
fn a_follower_that_leads_finishes_the_kick_that_the_last_leader_had_begun() {
    let now = beginning();
    for fill in (0..60_000).step_by(7_000) {
        let (mut engine, mood) = alone(&SimFs::new(1), 64 << 10);
        let fs = SimFs::new(2);
        let mut follower = Engine::follow(&options(&fs, mood), now).unwrap();
        let client = engine.connect();
        let mut entries = Vec::new();
        let filler = vec![7; fill];
        for nth in 0..800 {
            let body: &[u8] = if nth == 799 { &filler } else { &[] };
            run(&mut engine, client, put_command(body), now);
            entries.extend(commit_all(&mut engine, now));
            entries.extend(rest(&mut engine, now));
            let id = JobId(nth + 1);
            let done = engine.alter(id, Alteration::Bury, now, &mut Replies::default());
            assert_eq!(done.unwrap(), Altered::Done(id));
            entries.extend(commit_all(&mut engine, now));
            entries.extend(rest(&mut engine, now));
        }
        let said = run(&mut engine, client, Command::Kick { bound: 790 }, now);
        assert_eq!(said, None, "it takes several turns");
        entries.extend(commit_all(&mut engine, now));
        for entry in &entries {
            follower.apply_entry(entry.stamp, &entry.data, now).unwrap();
            follower.follow_on(now).unwrap();
        }
        let stamp = follower.stamp();
        follower.lead(stamp, now).unwrap();
        rest(&mut follower, now);
        let jobs = follower.queue().stats().jobs;
        assert_eq!((jobs.buried, jobs.ready), (10, 790), "{fill}");
        assert!(follower.log().unwrap().kicks_under_way().is_empty());
    }
}

/// The leader's deletes need what is set aside for them; so do the followers'.
#[test]
fn followers_on_disks_as_full_as_the_leaders_apply_its_deletes() {
    let sizes = [20, 100, 700, 3000, 9000];
    for (quota, size) in [200_000, 300_000, 600_000, 1_000_000]
        .into_iter()
        .flat_map(|quota| sizes.map(|size| (quota, size)))
    {
        let mut now = beginning();
        let disks = [SimFs::new(1), SimFs::new(2)];
        let (mut engine, mood) = alone(&disks[0], 64 << 10);
        let mut follower = Engine::follow(&options(&disks[1], mood), now).unwrap();
        disks.iter().for_each(|disk| disk.set_quota(Some(quota)));
        let client = engine.connect();
        let mut fulls = [0, 0];
        let mut apply = |entries: Vec<bsd::storage::Formed>, now: &mut Now, what: usize| {
            for entry in entries {
                let mut applied = follower.apply_entry(entry.stamp, &entry.data, *now);
                if matches!(applied, Err(Apart::Full)) {
                    // As the owner of the disk does.
                    fulls[what] += 1;
                    disks[1].set_quota(None);
                    later(now, 200);
                    applied = follower.apply_entry(entry.stamp, &entry.data, *now);
                    disks[1].set_quota(Some(quota.max(disks[1].used())));
                }
                applied.unwrap();
                while follower.follow_on(*now).unwrap() {}
            }
        };
        let mut jobs = 0;
        let body = vec![7; size];
        while let Some(Said::Inserted(id)) = run(&mut engine, client, put_command(&body), now) {
            jobs = id;
            apply(commit_all(&mut engine, now), &mut now, 0);
            apply(rest(&mut engine, now), &mut now, 0);
        }
        assert!(jobs > 3);
        for id in (1..=jobs).map(JobId) {
            let said = run(&mut engine, client, Command::Delete(id), now);
            assert_eq!(said, Some(Said::Deleted));
            apply(commit_all(&mut engine, now), &mut now, 1);
            apply(rest(&mut engine, now), &mut now, 1);
        }
        println!("{quota}, {size}: {jobs} jobs, {fulls:?} times full");
        assert_eq!(fulls[1], 0, "deletes make room");
    }
}

#[test]
fn the_directory_of_a_member_is_left_alone_unless_its_ledger_is_kept() {
    use bsd::storage::disk::Fs;
    let fs = SimFs::new(1);
    let (engine, mood) = alone(&fs, 64 << 10);
    engine.leave(beginning()).unwrap();
    let plain = Options {
        member: false,
        ..options(&fs, mood)
    };
    drop(Engine::open(&plain, beginning()).unwrap());
    fs.create_dir(std::path::Path::new("/data/cluster"))
        .unwrap();
    let before = (fs.names(DIR).unwrap(), fs.used());
    let error = Engine::open(&plain, beginning()).unwrap_err();
    assert!(error.to_string().contains("cluster"), "{error}");
    assert_eq!((fs.names(DIR).unwrap(), fs.used()), before);
    drop(Engine::follow(&options(&fs, mood), beginning()).unwrap());

    // A file of that name is a stranger's, and a directory elsewhere nobody's.
    let fs = SimFs::new(2);
    drop(alone(&fs, 64 << 10));
    fs.write("/data/cluster", b"a file").unwrap();
    let plain = Options {
        fs: Arc::new(fs.clone()),
        ..plain
    };
    drop(Engine::open(&plain, beginning()).unwrap());
    assert_eq!(fs.read("/data/cluster").unwrap(), b"a file");
}

/// `BSD_REPLICA_SEED` repeats one run; `BSD_REPLICA_RUNS` says how many there are.
fn runs(count: u64) -> std::ops::Range<u64> {
    let of = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    match of("BSD_REPLICA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..of("BSD_REPLICA_RUNS").unwrap_or(count),
    }
}
