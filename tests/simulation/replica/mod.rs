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

mod alone;
mod extended;
mod requests;
mod runs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bsd::check::whole::Whole;
use bsd::engine::{Altered, ApplyError, Engine, Flow, JobAction, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::random::Random;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::Stamp;
use bsd::storage::{SimFs, StoreError, SyncPolicy};
use bsd::types::{ClientId, JobId, JobState, Now, Ticket};

use super::driver::{DIR, MS_NS, TUBES, beginning};
use super::oracle::body;

const WORKERS: usize = 3;
/// This many turns may pass, with all that was formed committed, until a request is run.
const STALL_MAX: u32 = 12;

/// An entry of the replicated log.
struct Entry {
    term: u64,
    data: Vec<u8>,
    /// State after it, if that is known: of the last one of a turn.
    state: Option<Rc<Whole>>,
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

/// Probabilities of random events.
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
    /// This many small jobs are there from the beginning, and buried.
    buried: usize,
    /// There are bodies larger than a segment.
    large: bool,
    /// Bytes of the disks: which nodes have no more, and how many.
    short: Option<(Short, u64)>,
    /// Hundredths of the requests that are extended commands.
    extended: usize,
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
            extended: 0,
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
        ..Options::default()
    }
}

#[derive(Default)]
struct Replies(Vec<(ClientId, Ticket, Said)>);

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
    fn reply(&mut self, client: ClientId, after: Ticket, reply: Reply<'_>) {
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
    /// For extended commands, so that they change nothing for seeds that once failed.
    extending: Random,
    /// How often clients were given jobs where that counts.
    counted: BTreeMap<u64, u32>,
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
    new_acks: Vec<Ticket>,
    acks: VecDeque<(Ticket, u64, u64)>,
    /// A disk may be full.
    is_short: bool,
    is_limited: bool,
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
            extending: Random::new(!seed),
            counted: BTreeMap::new(),
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

    fn state(&self, index: u64) -> Option<Rc<Whole>> {
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
            // Someone makes room, and takes it later.
            self.nodes[node].fs.set_quota(None);
            self.pass(200);
        }
        self.check_state(node, last, false);
        self.forget_uncommitted(node);
        let (now, stamp) = (self.now, self.stamp(last));
        self.lead().as_follower().unwrap().lead(stamp, now).unwrap();
        // It has finished what was under way, and no client has come yet.
        self.check_state(node, last, false);
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
            let watch = Request::Command(Command::Watch(tube.into()));
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
            engine.close(now).unwrap();
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
        let mut found = state_of(engine, self.now);
        if engine.is_following() && state.has_clear() {
            found = found.without_others(&state);
        }
        if let Some(difference) = state.difference(&found, self.now, exact) {
            panic!("{who} after entry {index}: {difference}");
        }
        self.check_beats(&found, who);
    }

    /// An engine that follows, and is of no further use, leads: all bodies can be read.
    fn check_bodies(&self, mut engine: Engine) {
        let stamp = Stamp {
            term: self.term + 1,
            ..engine.stamp()
        };
        engine.as_follower().unwrap().lead(stamp, self.now).unwrap();
        let client = engine.connect();
        let queue = engine.queue();
        // Those of a clear that is not over are not found.
        let ids = queue.ids().filter(|id| queue.job(*id).is_some());
        let ids: BTreeSet<JobId> = ids.collect();
        for id in ids {
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
        let Some((of, size)) = self.bodies.get(&id).copied() else {
            return self.check_scheduled(id, bytes);
        };
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
            let applied = self.nodes[node]
                .engine()
                .as_follower()
                .unwrap()
                .apply_entry(stamp, &data, now);
            self.entries[at as usize].data = data;
            match applied {
                Ok(()) => {}
                _ if self.nodes[node].fs.is_crashed() => return true,
                Err(ApplyError::NoRoom(_)) => {
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

    /// Check a result of the leader: an error only if its disk has crashed.
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
        while let Some(formed) = self.lead().as_leader().unwrap().take_formed() {
            let term = self.term;
            let index = self.last() + 1;
            assert_eq!(formed.stamp, Stamp { index, term });
            self.push(formed.data);
        }
        let last = self.last();
        if last >= first {
            let mut state = state_of(self.leader(), now);
            state.note_reserved(&self.counted);
            let state = Rc::new(state);
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
            self.lead()
                .as_leader()
                .unwrap()
                .skip_to(Stamp { index, term });
        }
        let log = self.leader().log().unwrap();
        log.assert_accounts();
        self.leader().queue().assert_claims();
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
            let applied = engine
                .as_follower()
                .unwrap()
                .apply_entry(stamp, &entry.data, self.now);
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
        let state = state_of(self.leader(), self.now);
        for node in 0..self.nodes.len() {
            assert_eq!(self.nodes[node].engine().stamp().index, self.committed);
            let found = state_of(self.nodes[node].engine(), self.now);
            // On a full disk counters go without.
            if let Some(difference) = state.difference(&found, self.now, !self.is_short) {
                panic!("node {node} is apart: {difference}");
            }
        }
    }
}

fn state_of(engine: &Engine, now: Now) -> Whole {
    Whole::of(engine, &TUBES, now)
}

fn later(now: &mut Now, ms: u32) {
    now.mono.0 += i64::from(ms) * MS_NS;
    now.wall_ns += u64::from(ms) * MS_NS as u64;
}
