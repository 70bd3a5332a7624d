//! Histories of three members with one archive: real queues, logs and writers, each member on its own
//! simulated disk. What raft does is done here in a few lines: one member leads in a term; what it decides
//! is committed, and then every other member gets it sooner or later; or it is not, and goes with the
//! lead.
//!
//! A member that was replaced may not know that for a while, and its writer works on, in the middle of
//! anything. A member may crash, and the store may fail in all of its ways.
//!
//! Each member that leads compresses and encrypts what it archives, or not. Links are joined, days pass, and
//! what is old expires but for states of days and weeks. Bases are asked for, with names and pins. When a
//! new cluster begins with what was restored, a member of the one before may still write.
//!
//! The oracle is what was committed. A restore must give the jobs after one of the entries, none of what
//! was decided and not committed, and nothing older than what any writer has said to be archived. Each
//! pinned base, and each state that an expiry has left apart, is restored exactly.
//!
//! `BSD_ARCHIVE_MEMBER_RUNS` says how many histories there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::apart::states;
use super::expire::plan;
use super::format::BaseName;
use super::histories::{LOG, MS_NS, any_codec, any_keep, codecs, each_seed, join_some};
use super::labels::unpin;
use super::lead::Lead;
use super::order::Order;
use super::restore::restore;
use super::sim::SimStore;
use super::survey::{Depth, survey};
use super::writer::{Done, Failure, Sizes, Writer};
use super::{RestoreError, Until};
use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::random::Random;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::Stamp;
use bsd::storage::{SimFs, SyncPolicy, Trail};
use bsd::types::{ClientId, JobId, Now, Position, SECOND_NS, Ticket, Time};

const RUNS: u64 = 2_000;
/// States that were said to be kept, and were restored.
static KEPT: AtomicU64 = AtomicU64::new(0);
/// Members of a cluster before that have found the one after it.
static REPLACED: AtomicU64 = AtomicU64::new(0);
const DAY_MS: u64 = 86_400_000;
const DIR: &str = "/data";
const WALL_NS: u64 = 1_800_000_000_000_000_000;

/// Bodies of the jobs, by id. No two jobs have the same body.
type Jobs = BTreeMap<u64, Vec<u8>>;

#[derive(Default)]
struct Replies {
    inserted: Option<u64>,
}

impl ReplySink for Replies {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        if let Reply::Inserted(id) = reply {
            self.inserted = Some(id.0);
        }
    }
}

/// A writer, and what it may say.
struct Turn {
    lead: Lead,
    trail: Arc<Trail>,
    writer: Writer,
    /// Where its log ended, after how many entries.
    ends: Vec<(Position, usize)>,
    /// A base was asked for, and whether it is to be pinned.
    asked: Option<bool>,
}

struct Site {
    disk: SimFs,
    engine: Option<Engine>,
    client: ClientId,
    turn: Option<Turn>,
}

struct World {
    store: SimStore,
    sizes: Sizes,
    hold_max: u64,
    now: Now,
    cluster: u8,
    term: u64,
    leader: Option<usize>,
    sites: Vec<Site>,
    /// The index of the entry before the first one.
    before: u64,
    entries: Vec<(Stamp, Vec<u8>)>,
    /// The jobs before the first entry, and after each.
    states: Vec<Jobs>,
    /// Those of the clusters before this one, from the one on that was restored.
    earlier: Vec<Jobs>,
    /// Those that a base may still have.
    gone: Vec<Jobs>,
    /// Ids that anyone was told.
    given: BTreeSet<u64>,
    bodies: u64,
    /// How many entries were said to be archived.
    archived: Option<usize>,
    /// How each next leader seals what it puts; `None`: as it is.
    codecs: Option<Random>,
    /// Bases that were asked for.
    asked: u64,
    /// Jobs of the bases that are pinned.
    pinned: BTreeMap<u64, Jobs>,
    /// Bases that the last expiry has left apart.
    apart: BTreeSet<u64>,
    /// Jobs of bases that were restored.
    restored: BTreeMap<u64, Jobs>,
    kept: u64,
    /// A member of the cluster before that writes on, and its disk.
    rival: Option<(Turn, SimFs)>,
}

fn options(disk: &SimFs) -> Options {
    Options {
        dir: Some(DIR.into()),
        segment_size: 64 << 10,
        sync: SyncPolicy::Interval(10),
        fs: Arc::new(disk.clone()),
        log_id: Some(LOG),
        ..Options::default()
    }
}

fn jobs_of(engine: &mut Engine) -> Jobs {
    let ids: Vec<JobId> = engine.queue().ids().collect();
    let mut jobs = Jobs::new();
    for id in ids {
        let body = engine.look_at_body(id).unwrap().unwrap();
        jobs.insert(id.0, body.to_vec());
    }
    jobs
}

impl World {
    fn new(seed: u64) -> World {
        let now = Now {
            mono: Time(5 * SECOND_NS),
            wall_ns: WALL_NS,
        };
        let site = |number: u64| Site {
            disk: SimFs::new(3 * seed + number),
            engine: None,
            client: ClientId(0),
            turn: None,
        };
        let mut world = World {
            store: SimStore::new(seed),
            sizes: Sizes {
                base_min: 4000,
                base_ratio: 2,
                links_max: 30,
                frames_max: 1500,
                part_max: 3000,
            },
            hold_max: 1 << 20,
            now,
            cluster: 1,
            term: 0,
            leader: None,
            sites: (0..3).map(site).collect(),
            before: 0,
            entries: Vec::new(),
            states: vec![Jobs::new()],
            earlier: Vec::new(),
            gone: Vec::new(),
            given: BTreeSet::new(),
            bodies: 0,
            archived: None,
            codecs: None,
            asked: 0,
            pinned: BTreeMap::new(),
            apart: BTreeSet::new(),
            restored: BTreeMap::new(),
            kept: 0,
            rival: None,
        };
        (0..3).for_each(|at| world.follow(at));
        world
    }

    fn pass(&mut self, ms: u64) {
        self.now.mono = Time(self.now.mono.0 + (ms * MS_NS) as i64);
        self.now.wall_ns += ms * MS_NS;
    }

    /// The member opens its log, and follows.
    fn follow(&mut self, at: usize) {
        let site = &mut self.sites[at];
        site.engine = None;
        site.engine = Some(Engine::follow(&options(&site.disk), self.now).unwrap());
    }

    fn engine(&mut self, at: usize) -> &mut Engine {
        self.sites[at].engine.as_mut().unwrap()
    }

    fn last(&self) -> u64 {
        self.before + self.entries.len() as u64
    }

    /// A member that follows gets up to `count` of the entries that it lacks.
    fn catch_up(&mut self, at: usize, count: usize) {
        let now = self.now;
        let (before, entries) = (self.before, self.entries.clone());
        let engine = self.engine(at);
        let has = engine.stamp().index.saturating_sub(before) as usize;
        for (stamp, data) in entries.iter().skip(has).take(count) {
            let mut follower = engine.as_follower().unwrap();
            follower.apply_entry(*stamp, data, now).unwrap();
        }
        engine.follow_on(now).unwrap();
    }

    /// A member that has everything leads in the next term.
    fn elect(&mut self, at: usize) {
        if self.engine(at).is_one_of_several() && !self.engine(at).is_following() {
            self.step_down(at);
        }
        self.catch_up(at, usize::MAX);
        self.term += 1;
        self.leader = Some(at);
        if let Some(codecs) = &mut self.codecs {
            self.store = self.store.with_codec(any_codec(codecs));
        }
        let (now, count, last) = (self.now, self.entries.len(), self.last());
        let lead = Lead {
            cluster: [self.cluster; 16],
            member: at as u64 + 1,
            term: self.term,
        };
        let trail = Arc::new(Trail::new(self.hold_max));
        let stamp = Stamp {
            index: last,
            term: self.term,
        };
        let engine = self.engine(at);
        engine.as_follower().unwrap().lead(stamp, now).unwrap();
        engine.publish_to([trail.clone()]);
        let written = engine.log().unwrap().written();
        let client = engine.connect();
        self.sites[at].client = client;
        self.sites[at].turn = Some(Turn {
            lead,
            trail: trail.clone(),
            writer: self.writer(at, lead, trail),
            ends: vec![(written, count)],
            asked: None,
        });
    }

    fn writer(&self, at: usize, lead: Lead, trail: Arc<Trail>) -> Writer {
        self.writer_on(&self.sites[at].disk, at, lead, trail)
    }

    fn writer_on(&self, disk: &SimFs, at: usize, lead: Lead, trail: Arc<Trail>) -> Writer {
        let (store, fs) = (self.store.clone(), disk.clone());
        let node = format!("node {at}");
        Writer::new(
            Arc::new(store),
            trail,
            Arc::new(fs),
            DIR.into(),
            node,
            self.sizes,
        )
        .led(lead)
    }

    /// The member knows that it leads no more.
    fn step_down(&mut self, at: usize) {
        if let Some(turn) = self.sites[at].turn.take() {
            turn.trail.end();
        }
        if self.leader == Some(at) {
            self.leader = None;
        }
        self.follow(at);
    }

    /// The leader decides something, which is committed or is not. If not, it leads no more.
    fn decide(&mut self, is_committed: bool, random: &mut Random) {
        let Some(at) = self.leader else { return };
        let (now, client, index) = (self.now, self.sites[at].client, self.last() + 1);
        let term = self.term;
        let mut jobs = self.states.last().unwrap().clone();
        let nth = random.below(jobs.len() as u64 + 1) as usize;
        let gone = jobs.keys().nth(nth).copied().filter(|_| random.percent(40));
        self.bodies += 1;
        let mut body = format!("{}-", self.bodies).into_bytes();
        body.resize(20 + random.below(300) as usize, b'x');
        let command = match gone {
            Some(id) => Command::Delete(JobId(id)),
            None => Command::Put {
                tube: None,
                pri: 0,
                delay: 0,
                ttr: 1000,
                body: body.clone().into(),
            },
        };
        let engine = self.engine(at);
        engine.as_leader().unwrap().skip_to(Stamp { index, term });
        let mut replies = Replies::default();
        engine.run(client, Request::Command(command), now, &mut replies);
        engine.tick(now, &mut replies).unwrap();
        engine.commit(now).unwrap();
        let mut leader = engine.as_leader().unwrap();
        let formed: Vec<_> = std::iter::from_fn(|| leader.take_formed()).collect();
        match (gone, replies.inserted) {
            (Some(id), _) => drop(jobs.remove(&id)),
            (None, Some(id)) => drop(jobs.insert(id, body)),
            (None, None) => panic!("the put was refused"),
        }
        if !is_committed {
            // It may know that, or run on for a while.
            self.leader = None;
            return;
        }
        if let Some(id) = replies.inserted {
            assert!(self.given.insert(id), "id {id} was told twice");
        }
        let last = formed.last().unwrap().stamp;
        let count = formed.len();
        for (nth, entry) in formed.into_iter().enumerate() {
            self.entries.push((entry.stamp, entry.data.to_vec()));
            let is_last = nth + 1 == count;
            let state = if is_last {
                jobs.clone()
            } else {
                self.states.last().unwrap().clone()
            };
            self.states.push(state);
        }
        assert_eq!(self.last(), last.index);
        let entries = self.entries.len();
        let engine = self.engine(at);
        engine.release(last, now).unwrap();
        let written = engine.log().unwrap().written();
        let turn = self.sites[at].turn.as_mut().unwrap();
        turn.ends.push((written, entries));
    }

    /// A step of the writer of a member, if it has one.
    fn step(&mut self, at: usize) -> Option<Done> {
        let (now, wall_ns) = (self.now, self.now.wall_ns);
        let site = &mut self.sites[at];
        if let Some(engine) = &mut site.engine
            && engine.is_following()
        {
            engine.follow_on(now).unwrap();
        } else if let Some(engine) = &mut site.engine {
            engine.commit(now).unwrap();
        }
        let turn = site.turn.as_mut()?;
        let done = turn.writer.step(wall_ns, true);
        if let Some(end) = turn.writer.archived() {
            let said = turn.ends.iter().rfind(|(at, _)| *at <= end);
            self.archived = self.archived.max(said.map(|it| it.1));
        }
        if let Some(answer) = turn.writer.answer() {
            let made = answer.unwrap();
            let of = turn.ends.iter().rfind(|(at, _)| *at <= made.end).unwrap();
            if turn.asked.take() == Some(true) {
                self.pinned.insert(made.base, self.states[of.1].clone());
            }
        }
        match done {
            Ok(done) => return Some(done),
            Err(Failure::Trouble(_)) => {}
            // As the thread does: who has the chain, and does this member still lead?
            Err(Failure::Fenced(_)) if turn.writer.epoch().is_some() => {
                let (lead, trail) = (turn.lead, turn.trail.clone());
                let writer = self.writer(at, lead, trail);
                let turn = self.sites[at].turn.as_mut().unwrap();
                (turn.writer, turn.asked) = (writer, None);
            }
            Err(failure) => panic!("there is no one else: {failure}"),
        }
        None
    }

    /// Have a member that leads, or thinks so, make a base: with a name or without, pinned or not.
    fn ask_for_base(&mut self, at: usize, random: &mut Random) {
        let turn = self.sites[at].turn.as_mut();
        let Some(turn) = turn.filter(|it| it.asked.is_none()) else {
            return;
        };
        self.asked += 1;
        let name = random.percent(50).then(|| format!("b{}", self.asked));
        let is_pinned = random.percent(50);
        turn.asked = Some(is_pinned);
        turn.writer.ask_for_base(Order {
            name: name.and_then(|name| BaseName::parse(&name)),
            is_pinned,
        });
    }

    /// Some pin is removed.
    fn unpin(&mut self, random: &mut Random) {
        let nth = random.below(self.pinned.len() as u64 + 1) as usize;
        if let Some(base) = self.pinned.keys().nth(nth).copied() {
            self.pinned.remove(&base);
            let _ = unpin(&self.store.reader(), LOG, base);
        }
    }

    /// Expire something, or a part of it: the store may fail.
    fn expire(&mut self, random: &mut Random) {
        let (keep, wall_ns) = (any_keep(random), self.now.wall_ns);
        let found = plan(&self.store.reader(), LOG, keep, wall_ns, &mut |_, _| ());
        let Some(plan) = found.ok().and_then(|found| found.plan) else {
            return;
        };
        // After an error an archive is left.
        let done = plan.carry_out(&self.store, &mut |_, _| ());
        let apart: BTreeSet<u64> = plan.apart.iter().map(|it| it.base).collect();
        let mut pinned = self.pinned.keys();
        assert!(pinned.all(|it| *it >= plan.base || apart.contains(it)));
        match done {
            Ok(()) => self.apart = apart,
            Err(_) => self.apart.retain(|it| apart.contains(it)),
        }
    }

    /// One of the states that were to be kept is what it was.
    fn check_kept(&mut self, random: &mut Random) {
        let all: Vec<u64> = self.pinned.keys().chain(&self.apart).copied().collect();
        if all.is_empty() {
            return;
        }
        let base = random.pick(&all);
        let restored = self.restored_until(Until::Base(base));
        let (jobs, _) = restored.unwrap_or_else(|| panic!("base {base} was to be kept"));
        if let Some(known) = self.pinned.get(&base) {
            assert_eq!(known, &jobs, "base {base} is pinned");
        }
        if self.apart.contains(&base) {
            // Without its mark it would go with the next expiry.
            let store = self.store.copy();
            let marked = states(&store.reader(), LOG, u64::MAX).unwrap();
            let is_marked = marked.iter().any(|it| it.base == base);
            assert!(is_marked, "base {base} was to be kept, and has no mark");
        }
        let known = self.restored.entry(base).or_insert_with(|| jobs.clone());
        assert_eq!(known, &jobs, "base {base} was something else before");
        let mut all = [&self.states, &self.earlier, &self.gone].into_iter();
        let was = all.any(|states| states.contains(&jobs));
        assert!(was, "the jobs of base {base} were never committed");
        self.kept += 1;
    }

    /// A step of the member of the cluster before, which does not know of this one.
    fn step_rival(&mut self) {
        let Some((mut turn, disk)) = self.rival.take() else {
            return;
        };
        let done = match turn.writer.step(self.now.wall_ns, true) {
            Ok(Done::Nothing) => turn.writer.check_owner(),
            other => other.map(drop),
        };
        match done {
            Ok(()) | Err(Failure::Trouble(_)) => {}
            Err(Failure::Fenced(_)) if turn.writer.epoch().is_some() => {
                let (lead, trail) = (turn.lead, turn.trail.clone());
                turn.writer = self.writer_on(&disk, 9, lead, trail);
            }
            Err(failure) => {
                let why = failure.to_string();
                assert!(why.contains("has taken over from this cluster"), "{why}");
                REPLACED.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        self.rival = Some((turn, disk));
    }

    /// The leader archives all that there is.
    fn archive(&mut self) {
        let at = self.leader.unwrap();
        for nth in 0..10_000 {
            self.store.note_tries(nth);
            self.pass(60);
            let now = self.now;
            let engine = self.engine(at);
            engine.tick(now, &mut Replies::default()).unwrap();
            engine.commit(now).unwrap();
            if self.step(at) == Some(Done::Nothing) {
                return;
            }
        }
        panic!("the writer does not come to an end");
    }

    fn crash(&mut self, at: usize, how: Crash) {
        if self.leader == Some(at) {
            self.leader = None;
        }
        let site = &mut self.sites[at];
        (site.engine, site.turn) = (None, None);
        site.disk = site.disk.crash_image(how);
        self.follow(at);
    }

    /// The jobs of a restore; `None`: the archive says that it has none.
    fn restored(&self) -> Option<(Jobs, SimFs)> {
        self.restored_until(Until::End)
    }

    fn restored_until(&self, until: Until) -> Option<(Jobs, SimFs)> {
        let disk = SimFs::new(1);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let store = self.store.copy();
        let place = (&fs, Path::new(DIR));
        let reader = store.reader();
        match restore(&reader, LOG, until, place, self.now, &mut |_, _| ()) {
            Err(RestoreError::Refused(_) | RestoreError::Nothing(_)) => return None,
            done => drop(done.unwrap()),
        }
        let mut engine =
            Engine::open(&options(&disk.crash_image(Crash::KeepAll)), self.now).unwrap();
        Some((jobs_of(&mut engine), disk))
    }

    /// Hold a restore against the history.
    fn check(&self) -> bool {
        let Some((jobs, _)) = self.restored() else {
            assert_eq!(self.archived, None, "what was archived is not there");
            return false;
        };
        let found = self.states.iter().rposition(|state| *state == jobs);
        let Some(found) = found else {
            // A put of a cluster before may come late, as long as this one has put nothing.
            let has_put = self.archived.is_some_and(|count| count > 0);
            let is_earlier = !has_put && self.earlier.contains(&jobs);
            if is_earlier {
                return true;
            }
            panic!("these jobs were never committed: {:?}", jobs.keys());
        };
        let least = self.archived.unwrap_or(0);
        assert!(found >= least, "{found} entries are there, not {least}");
        true
    }

    /// All three are lost; the first member of a new cluster has what was restored, and the others a copy
    /// of its log.
    fn begin_again(&mut self) {
        let (jobs, disk) = self.restored().unwrap();
        self.cluster += 1;
        self.term = 0;
        self.leader = None;
        for site in &mut self.sites {
            site.engine = None;
            // One that has claimed nothing would be one more that was restored.
            let turn = site.turn.take().filter(|it| it.writer.epoch().is_some());
            self.rival = turn
                .map(|turn| (turn, site.disk.clone()))
                .or(self.rival.take());
        }
        self.sites[0].disk = disk;
        self.follow(0);
        let now = self.now;
        let engine = self.engine(0);
        let was = engine.stamp();
        let stamp = Stamp {
            index: was.index.max(1),
            term: was.term.max(1),
        };
        engine.stamp_as(stamp, now).unwrap();
        self.before = stamp.index;
        self.term = stamp.term;
        for at in 1..3 {
            let copied = self.sites[0].disk.crash_image(Crash::DropUnsynced);
            self.sites[at].disk = copied;
            // A copy of a log does not bring the claims of another directory.
            let marker = Path::new(DIR).join(bsd::storage::marker_file::ARCHIVE_MARKER);
            let _ = Fs::remove_file(&self.sites[at].disk, &marker);
            self.follow(at);
        }
        self.entries.clear();
        // `None`: a member of the cluster before has put more of its own meanwhile.
        // Of several moments with these jobs it may be the first one.
        let least = self.archived.unwrap_or(0);
        let from = (least..self.states.len()).find(|at| self.states[*at] == jobs);
        self.earlier
            .extend(self.states.split_off(from.unwrap_or(0)));
        self.gone.append(&mut self.states);
        self.states = vec![jobs];
        self.archived = self.archived.map(|_| 0);
    }
}

/// One history.
fn history(seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let mut world = World::new(seed);
    world.hold_max = match random.below(4) {
        0 => random.below(100_000),
        _ => 1 << 20,
    };
    world.sizes.frames_max = 200 + random.below(4000) as u32;
    let faults = random.below(2) * random.below(25);
    world.store.set_faults(faults);
    let (mut checks, mut refused) = (0, 0);
    let mut bases = Random::new(seed ^ 0xba5e);
    world.codecs = Some(codecs(seed));
    for _ in 0..40 + random.below(100) {
        world.pass(random.below(30));
        let at = random.below(3) as usize;
        match random.below(100) {
            0..8 => world.elect(at),
            8..12 => {
                let how = match random.below(3) {
                    0 => Crash::DropUnsynced,
                    1 => Crash::KeepAll,
                    _ => Crash::Random { seed },
                };
                world.crash(at, how);
            }
            12..16 if world.leader != Some(at) => world.step_down(at),
            16..20 => world.decide(false, &mut random),
            20..50 => world.decide(true, &mut random),
            50..60 if world.leader != Some(at) && world.engine(at).is_following() => {
                world.catch_up(at, 1 + random.below(8) as usize);
            }
            60..62 => world.store.set_away(random.percent(60)),
            62 => world.expire(&mut random),
            63 if random.percent(30) && world.restored().is_some() => {
                assert!(world.check());
                world.begin_again();
            }
            _ => {
                // A member that was replaced goes on in its own time.
                for _ in 0..random.below(12) {
                    let _ = world.step(random.below(3) as usize);
                }
            }
        }
        match bases.below(100) {
            0..5 => world.ask_for_base(bases.below(3) as usize, &mut bases),
            5 => world.unpin(&mut bases),
            6..9 => world.expire(&mut bases),
            9..12 => world.pass(bases.below(4 * DAY_MS)),
            12..18 => join_some(&world.store, world.now.wall_ns, &mut bases),
            18..24 => world.check_kept(&mut bases),
            24..40 => (0..bases.below(8)).for_each(|_| world.step_rival()),
            _ => {}
        }
        if random.percent(10) {
            match world.check() {
                true => checks += 1,
                false => refused += 1,
            }
        }
    }
    world.store.set_away(false);
    world.store.set_faults(0);
    world.elect(random.below(3) as usize);
    world.archive();
    assert_eq!(world.archived, Some(world.entries.len()), "it has all");
    assert!(world.check());
    (0..4).for_each(|_| world.check_kept(&mut bases));
    KEPT.fetch_add(world.kept, Ordering::Relaxed);
    let store = world.store.copy();
    let all = survey(&store.reader(), LOG, Depth::Everything, &mut |_, _| ()).unwrap();
    assert_eq!(all.bad, []);
    (checks + 1, refused)
}

#[test]
fn any_restore_has_what_was_committed_and_said_to_be_archived_no_matter_who_led() {
    let runs = ("BSD_ARCHIVE_MEMBER_RUNS", RUNS);
    let Some((checks, refused)) = each_seed("member_histories", runs, history) else {
        return;
    };
    let (kept, replaced): (u64, u64) = [&KEPT, &REPLACED]
        .map(|it| it.load(Ordering::Relaxed))
        .into();
    println!(
        "{checks} restores, {refused} refused, {kept} of states that were to be kept; {replaced} members \
         found another cluster"
    );
    // Before the first base there is nothing to restore.
    assert!(2 * checks > refused, "{checks} restores, {refused} refused");
    let is_enough = kept > 0 && replaced > 0;
    assert!(
        is_enough || checks < 1000,
        "{kept} states kept, {replaced} replaced"
    );
}

/// A member that leads, with some jobs in the archive.
fn led() -> (World, Random) {
    let (mut world, mut random) = (World::new(1), Random::new(1));
    world.elect(0);
    (0..5).for_each(|_| world.decide(true, &mut random));
    world.archive();
    assert_eq!(world.archived, Some(world.entries.len()));
    (world, random)
}

#[test]
fn the_next_leader_takes_the_chain_and_the_one_before_puts_nothing_more() {
    let (mut world, mut random) = led();
    // The first does not know yet.
    world.elect(1);
    world.decide(true, &mut random);
    world.archive();
    assert_eq!(world.archived, Some(world.entries.len()));
    let names = world.store.names();
    for _ in 0..50 {
        world.pass(1000);
        let _ = world.step(0);
    }
    assert_eq!(world.store.names(), names);
    // It leads again, and has the chain again.
    world.elect(0);
    world.decide(true, &mut random);
    world.archive();
    assert_eq!(world.archived, Some(world.entries.len()));
    assert!(world.check());
}

#[test]
fn what_was_decided_and_not_committed_is_never_archived() {
    let (mut world, mut random) = led();
    let names = world.store.names();
    world.decide(false, &mut random);
    for _ in 0..50 {
        world.pass(1000);
        let _ = world.step(0);
    }
    assert_eq!(world.store.names(), names, "there is nothing to put");
    assert!(world.check());
}

#[test]
fn a_member_that_leads_again_without_another_writer_between_makes_no_base() {
    let (mut world, mut random) = led();
    let bases = |world: &World| {
        let names = world.store.names();
        names.iter().filter(|it| it.contains("/bases/")).count()
    };
    // By a link with bytes the log is known again.
    world.decide(true, &mut random);
    world.archive();
    assert_eq!(bases(&world), 1);
    // The one between never reaches the store.
    world.elect(1);
    world.decide(true, &mut random);
    world.elect(0);
    world.decide(true, &mut random);
    world.archive();
    assert_eq!(bases(&world), 1);
    assert_eq!(world.archived, Some(world.entries.len()));
    assert!(world.check());
}

#[test]
fn a_cluster_whose_archive_another_one_has_taken_over_does_not_take_it_back() {
    let (mut world, mut random) = led();
    let (lead, trail) = (world.sites[0].turn.as_ref().unwrap().lead, Trail::new(1));
    let disk = world.sites[0].disk.crash_image(Crash::KeepAll);
    world.begin_again();
    world.elect(0);
    world.decide(true, &mut random);
    world.archive();
    // A member of the earlier cluster comes to lead, and another one, which has never led.
    let mut engine = Engine::follow(&options(&disk), world.now).unwrap();
    let trail = Arc::new(trail);
    engine.publish_to([trail.clone()]);
    for (member, place) in [(1, DIR), (2, "/elsewhere")] {
        let lead = Lead {
            member,
            term: lead.term + 9,
            ..lead
        };
        let store = Arc::new(world.store.clone());
        let fs = Arc::new(disk.clone());
        if place != DIR {
            Fs::create_dir(&*fs, place.as_ref()).unwrap();
        }
        let writer = Writer::new(
            store,
            trail.clone(),
            fs,
            place.into(),
            "node".to_owned(),
            world.sizes,
        );
        let failed = writer.led(lead).step(world.now.wall_ns, true);
        let Err(Failure::Fenced(why)) = failed else {
            panic!("{failed:?}");
        };
        assert!(why.contains("has taken over from this cluster"), "{why}");
    }
    assert!(world.check());
}
