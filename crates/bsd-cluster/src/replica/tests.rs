//! Histories of three whole members: the real queue, log, ledger and node, each on its own simulated
//! disk, which may be full for a while, over a network that drops, delays and cuts, one way or both.
//! Ledgers keep little, so that who was away gets a copy of a log (`copies`); addresses of members change.
//!
//! The oracle is what clients were told. At the end, when everything works again, on every member: each
//! job whose put was acknowledged is there, with its body, unless its delete was asked for; none is
//! there whose delete was acknowledged; no id was given to two bodies. In between, once the leader of a
//! term has answered anyone, no leader of an earlier term answers what it is asked from then on.
//!
//! Now and then two of three are lost in thought, and a server is made of the third (`survivors`).
//!
//! `BSD_MEMBER_RUNS` histories, from `BSD_MEMBER_FIRST` on; a failure names its seed.

mod copies;
mod leads;
mod room;
mod scripts;
mod survivors;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Replica, Standing, log_options};
use crate::install;
use crate::ledger::{Base, Identity, Ledger, Sizes};
use crate::ledger_dir;
use crate::member::{ClusterId, Member, Members, NodeId, Votes};
use crate::node::{self, Change, Mark, Node, Role, Settings};
use bsd::check::volume::{run_each, volume};
use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request, encode};
use bsd::random::Random;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::Stamp;
use bsd::storage::{OpenError, SimFs};
use bsd::types::{ClientId, JobId, Now, Ticket, Time};

const DIR: &str = "/data";
const MS: i64 = 1_000_000;
/// The wall clock when a history begins.
const WALL_NS: u64 = 1_800_000_000_000_000_000;
/// Small, so that a history has many files, of which few are kept.
const SIZES: Sizes = Sizes {
    file: 32 << 10,
    recent: 32 << 10,
    frame: 8 << 10,
};
const RUNS: u64 = 60;
const SETTINGS: Settings = Settings {
    promote: true,
    keep_bytes: 64 << 10,
    handed_bytes: 8 << 20,
};

struct Replies(Vec<(ClientId, Ticket, Told)>);

#[derive(Debug, Clone)]
enum Told {
    Inserted(JobId),
    Reserved(JobId, Vec<u8>),
    Deleted,
    /// The bytes of the reply.
    Other(Vec<u8>),
}

impl ReplySink for Replies {
    fn reply(&mut self, client: ClientId, after: Ticket, reply: Reply<'_>) {
        let told = match reply {
            Reply::Inserted(id) => Told::Inserted(id),
            Reply::Reserved(id, body) => Told::Reserved(id, body.to_vec()),
            Reply::Deleted => Told::Deleted,
            other => {
                let mut bytes = Vec::new();
                encode(&other, &mut bytes);
                Told::Other(bytes)
            }
        };
        self.0.push((client, after, told));
    }
}

/// A request, in the order of replies.
#[derive(Debug, Clone)]
enum Asked {
    Put(Vec<u8>),
    Delete(JobId),
    Other,
}

/// A reply that has not left.
struct Waiting {
    after: Ticket,
    told: Told,
    asked: Asked,
    /// The term in which it was decided, and the newest one of which anyone had been told before.
    term: u64,
    newest: u64,
}

struct Site {
    disk: SimFs,
    is_full: bool,
    life: Option<Life>,
    /// Counts starts.
    lives: u64,
    /// Its wall clock is ahead by this, nanoseconds.
    ahead: i64,
}

impl Site {
    fn new(disk: SimFs) -> Site {
        Site {
            disk,
            is_full: false,
            life: None,
            lives: 0,
            ahead: 0,
        }
    }

    /// From now on its disk has so much room, or all that it wants.
    fn set_room(&mut self, room: Option<u64>) {
        self.disk
            .set_quota(room.map(|room| self.disk.used() + room));
        self.is_full = room.is_some();
    }
}

struct Life {
    replica: Replica,
    engine: Engine,
    client: Option<ClientId>,
    asked: Vec<Asked>,
    waiting: Vec<Waiting>,
    reserved: Option<JobId>,
}

#[derive(Default)]
struct Oracle {
    /// Bodies of acknowledged puts.
    put: BTreeMap<JobId, Vec<u8>>,
    delete_asked: BTreeSet<JobId>,
    deleted: BTreeSet<JobId>,
    /// The newest term in which anyone was told anything.
    newest: u64,
}

struct World {
    random: Random,
    now: Now,
    sites: Vec<Site>,
    /// Messages under way: when they come, to whom, from whom.
    wires: Vec<(Time, usize, raft::eraftpb::Message)>,
    /// From whom to whom nothing passes.
    cut: BTreeSet<(usize, usize)>,
    copies: Vec<copies::Copy>,
    is_stormy: bool,
    /// When everything passes again.
    heals_at: i64,
    /// In this many hundredths of the turns there is something to do; this many hundredths of it are puts.
    busy: u64,
    puts: u64,
    /// While something does not pass, clients read only: what they had changed would keep back all
    /// that a leader answers that was replaced.
    only_reads: bool,
    /// Requests for the next turn of the leader, or of this member, in place of random ones; and the
    /// replies to all clients since this was emptied.
    script: Vec<room::Ask>,
    script_at: Option<usize>,
    told: Vec<Told>,
    /// No message is lost by chance, and each takes a millisecond. A script also prints the notes.
    is_scripted: bool,
    notes: Vec<String>,
    oracle: Oracle,
    bodies: u64,
    seen: Seen,
}

fn options(disk: &SimFs) -> Options {
    let options = Options {
        dir: Some(DIR.into()),
        fs: Arc::new(disk.clone()),
        segment_size: 1 << 20,
        ..Options::default()
    };
    log_options(options, false)
}

fn members() -> Members {
    let mut members = Members::default();
    for id in 1..=3 {
        members.put(Member {
            id: NodeId(id),
            peer: format!("127.0.0.1:{id}"),
            client: String::new(),
            votes: Votes::VOTER,
        });
    }
    members
}

impl Life {
    fn leads(&self) -> bool {
        self.replica.leads(&self.engine)
    }

    fn role(&self) -> Role {
        self.replica.role(&self.engine)
    }

    fn may_lead(&self) -> bool {
        self.replica.may_lead(&self.engine).is_some()
    }

    /// A start, as a server's.
    fn begin(disk: &SimFs, seed: u64, now: Now) -> Result<Life, OpenError> {
        let (fs, dir): (Arc<dyn Fs>, _) = (Arc::new(disk.clone()), Path::new(DIR));
        install::discard(&fs, &ledger_dir(dir))?;
        let mut ledger = Ledger::open_with(&fs, dir, SIZES)?.expect("a ledger");
        install::finish(&fs, dir, &ledger_dir(dir), &mut |base| {
            node::install(&mut ledger, &base).map_err(|error| copies::refused(&error))
        })?;
        let engine = Engine::follow(&options(disk), now)?;
        let Stamp { index, term } = engine.stamp();
        let node = Node::open(ledger, Mark { index, term }, None, seed, now.mono, SETTINGS);
        let node = node.map_err(|error| copies::refused(&error))?;
        Ok(Life {
            replica: Replica::new(node, options(disk), &engine),
            engine,
            client: None,
            asked: Vec::new(),
            waiting: Vec::new(),
            reserved: None,
        })
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let now = Now::new(Time(0), WALL_NS);
        let sites = (1..=3).map(|id| {
            let disk = SimFs::new(random.next());
            let mut engine = Engine::follow(&options(&disk), now).unwrap();
            engine.stamp_as(Stamp { index: 1, term: 1 }, now).unwrap();
            let fs: Arc<dyn Fs> = Arc::new(disk.clone());
            fs.create_dir(&ledger_dir(Path::new(DIR))).unwrap();
            let identity = Identity {
                cluster: ClusterId([7; 16]),
                node: NodeId(id),
            };
            let base = Base {
                index: 1,
                term: 1,
                members: members(),
            };
            Ledger::create_with(&fs, Path::new(DIR), identity, base, SIZES).unwrap();
            engine.close(now).unwrap();
            Site::new(disk)
        });
        let sites = sites.collect();
        let (busy, puts) = (random.pick(&[100, 20, 4]), random.pick(&[90, 20]));
        let only_reads = random.one_in(2);
        let mut world = World {
            random,
            now,
            sites,
            wires: Vec::new(),
            cut: BTreeSet::new(),
            copies: Vec::new(),
            is_stormy: false,
            heals_at: 0,
            busy,
            puts,
            only_reads,
            script: Vec::new(),
            script_at: None,
            told: Vec::new(),
            is_scripted: false,
            notes: Vec::new(),
            oracle: Oracle::default(),
            bodies: 0,
            seen: Seen::default(),
        };
        (0..3).for_each(|site| world.boot(site));
        world
    }

    fn boot(&mut self, site: usize) {
        let seed = self.random.next();
        let site = &mut self.sites[site];
        match Life::begin(&site.disk, seed, self.now) {
            Ok(life) => site.life = Some(life),
            // It is started again.
            Err(OpenError::Io(_)) if site.is_full => return,
            Err(error) => panic!("it does not start: {error}"),
        }
        site.lives += 1;
    }

    fn crash(&mut self, site: usize) {
        let how = match self.random.below(3) {
            0 => Crash::KeepAll,
            1 => Crash::DropUnsynced,
            _ => Crash::Random {
                seed: self.random.next(),
            },
        };
        let room = self.random.below(100_000);
        let site = &mut self.sites[site];
        site.life = None;
        site.disk = site.disk.crash_image(how);
        site.set_room(site.is_full.then_some(room));
    }

    /// One turn of a member, as its server's loop has it.
    fn turn(&mut self, at: usize, has_work: bool) {
        let wall_ns = self.now.wall_ns.saturating_add_signed(self.sites[at].ahead);
        let (now, mut random) = (
            Now {
                wall_ns,
                ..self.now
            },
            self.random.fork(at as u64 + self.now.mono.0 as u64),
        );
        let is_due = |wire: &mut (Time, usize, _)| wire.1 == at && wire.0 <= now.mono;
        let due: Vec<_> = self.wires.extract_if(.., is_due).collect();
        let Some(life) = &mut self.sites[at].life else {
            return;
        };
        life.replica.set_clock(now);
        for (_, _, message) in due {
            life.replica.step(message);
        }
        let mut standing = life.replica.begin(&mut life.engine, now).unwrap();
        assert!(
            !life.leads() || life.engine.after() == Ticket::turn(life.replica.turn),
            "what happens waits for this turn"
        );
        if standing == Standing::LostLeadership {
            // The clients are gone with what they were not told.
            (life.client, life.reserved) = (None, None);
            if !life.waiting.is_empty() {
                let count = life.waiting.len();
                let note = format!("{} closes its clients; replies lost: {count}", at + 1);
                self.notes.push(note);
            }
            life.waiting.clear();
            self.seen.fell += 1;
            life.replica.step_down(&mut life.engine, now).unwrap();
            standing = Standing::Follows;
        }
        let mut replies = Replies(Vec::new());
        let is_asked = self.script_at.is_none_or(|asked| asked == at);
        if standing == Standing::Serves && is_asked && !self.script.is_empty() {
            life.serve(std::mem::take(&mut self.script), now, &mut replies);
        }
        if standing == Standing::Serves && has_work && random.percent(self.busy) {
            let client = *life.client.get_or_insert_with(|| life.engine.connect());
            let puts = match self.only_reads && !self.cut.is_empty() {
                true => 0,
                false => self.puts,
            };
            for _ in 0..random.below(6) {
                if !life.engine.has_room_for(4096) {
                    break;
                }
                let body;
                let (asked, command) = match life.reserved {
                    Some(id) if puts > 0 && random.one_in(4) => {
                        (Asked::Delete(id), Command::Delete(id))
                    }
                    None if !random.percent(puts) => {
                        let reserve = Command::reserve(Some(Duration::ZERO));
                        (Asked::Other, reserve)
                    }
                    Some(id) if !random.percent(puts) => (Asked::Other, Command::Peek(id)),
                    _ => {
                        self.bodies += 1;
                        let size = random.below(2000);
                        body = format!("{} {}", self.bodies, "x".repeat(size)).into_bytes();
                        let put = Command::put(random.below(3), 0, 60, &body);
                        (Asked::Put(body.clone()), put)
                    }
                };
                if let Asked::Delete(id) = asked {
                    self.oracle.delete_asked.insert(id);
                    life.reserved = None;
                }
                let before = replies.0.len();
                life.engine
                    .run(client, Request::Command(command), now, &mut replies);
                if let Some((_, _, Told::Reserved(id, _))) = replies.0.get(before) {
                    life.reserved = Some(*id);
                }
                if replies.0.len() > before {
                    life.asked.push(asked);
                }
            }
        }
        life.replica
            .decide(&mut life.engine, &mut replies, now)
            .unwrap();
        let has_replied = !replies.0.is_empty();
        life.replica.propose(&mut life.engine, has_replied).unwrap();
        let mut asked = std::mem::take(&mut life.asked).into_iter();
        let term = match life.role() {
            Role::Leads(term) => term,
            _ => 0,
        };
        for (_, after, told) in replies.0 {
            life.waiting.push(Waiting {
                after,
                told,
                asked: asked.next().unwrap_or(Asked::Other),
                term,
                newest: self.oracle.newest,
            });
        }
        let mut sent = life.replica.outbox();
        sent.extend(life.replica.persist(&mut life.engine, now).unwrap());
        life.replica.advance(&mut life.engine, now).unwrap();
        self.seen.full_ledgers += u64::from(life.replica.ledger_lacks().is_some());
        self.seen.full_logs += u64::from(life.replica.room.is_log_full());
        let acknowledged = life.replica.acknowledge(&mut life.engine);
        let may_leave = |it: &Waiting| it.after <= acknowledged;
        for it in life.waiting.extract_if(.., |it| may_leave(it)) {
            self.seen.replies += 1;
            self.told.push(it.told.clone());
            self.oracle.told(at, it);
        }
        for wanted in life.replica.take_snapshots() {
            self.send_copy(at, wanted.to);
        }
        for message in sent {
            let to = message.to as usize - 1;
            let is_lost =
                self.cut.contains(&(at, to)) || (!self.is_scripted && self.random.below(50) == 0);
            if !is_lost && self.sites.get(to).is_some_and(|it| it.life.is_some()) {
                let delay = match self.is_scripted {
                    true => MS,
                    false => MS / 4 + self.random.below(2 * MS),
                };
                self.wires.push((Time(now.mono.0 + delay), to, message));
            }
        }
    }

    fn pass_time(&mut self) {
        self.now.mono.0 += MS;
        self.now.wall_ns += MS as u64;
        self.copies_come();
    }

    fn leader(&self) -> Option<usize> {
        let leads = |site: &Site| site.life.as_ref().is_some_and(Life::leads);
        self.sites.iter().position(leads)
    }

    /// For a while nothing passes from one to the others, or from them to it, or neither.
    fn isolate(&mut self) {
        let leader = self.leader();
        let (any, is_any) = (self.random.below(3), self.random.one_in(3));
        let site = leader.filter(|_| !is_any).unwrap_or(any);
        let ways = [(false, false), (false, false), (true, false), (false, true)];
        let (hears, speaks) = self.random.pick(&ways);
        for other in (0..3).filter(|other| *other != site) {
            if !speaks {
                self.cut.insert((site, other));
            }
            if !hears {
                self.cut.insert((other, site));
            }
        }
        self.heals_at = self.now.mono.0 + self.random.below(1500 * MS);
    }

    /// The leader tells all where clients find one of them.
    fn move_member(&mut self) {
        let (id, client) = (NodeId(1 + self.random.below(3_u64)), self.now.mono.0);
        for life in self.sites.iter_mut().filter_map(|site| site.life.as_mut()) {
            if life.leads() {
                // Another change may be under way.
                let _ = life.replica.change(Change::Move {
                    id,
                    peer: format!("127.0.0.1:{}", id.0),
                    client: format!("client:{client}"),
                });
            }
        }
    }

    fn storm(&mut self) {
        self.is_stormy = true;
        for _ in 0..1500 + self.random.below(2500) {
            self.pass_time();
            self.befall();
            (0..3).for_each(|site| self.turn(site, true));
            if self.random.below(1000) == 0 {
                self.judge_survivors();
            }
        }
    }

    fn befall(&mut self) {
        if self.now.mono.0 >= self.heals_at {
            self.cut.clear();
        }
        let site = self.random.below(3);
        let is_up = self.sites[site].life.is_some();
        match self.random.below(800) {
            0 if is_up => self.crash(site),
            1..=8 if !is_up => self.boot(site),
            9..=13 if self.cut.is_empty() => self.isolate(),
            14 | 15 => self.move_member(),
            16 | 17 => {
                // Half of them have nothing that is kept back.
                if self.random.one_in(2)
                    && let Some(life) = &mut self.sites[site].life
                {
                    life.engine.spend_kept();
                }
                let room = self.random.below(300_000);
                self.sites[site].set_room(Some(room));
            }
            18..=23 => self.sites[site].set_room(None),
            _ => {}
        }
    }

    /// Everything works: within ten seconds there is a leader, and all have the same.
    fn peace(&mut self) {
        self.is_stormy = false;
        self.cut.clear();
        for site in 0..3 {
            self.sites[site].set_room(None);
            if self.sites[site].life.is_none() {
                self.boot(site);
            }
        }
        for _ in 0..10_000 {
            self.pass_time();
            (0..3).for_each(|site| self.turn(site, false));
            if self.is_settled() {
                return;
            }
        }
        panic!("no progress after everything works again");
    }

    fn is_settled(&self) -> bool {
        let lives = self.sites.iter().filter_map(|site| site.life.as_ref());
        let statuses: Vec<_> = lives.clone().map(|life| life.replica.status()).collect();
        let leads = lives.clone().filter(|life| life.leads()).count() == 1;
        let commit = statuses[0].commit;
        let same = statuses
            .iter()
            .all(|it| it.commit == commit && it.last == commit && it.applied == commit);
        let written = lives
            .clone()
            .all(|life| life.engine.stamp().index == commit);
        let is_role = |life: &Life| matches!(life.role(), Role::Leads(_) | Role::Follows(Some(_)));
        leads && same && written && lives.clone().all(is_role) && lives.count() == 3
    }

    fn judge(&mut self) {
        let mut first: Option<BTreeSet<JobId>> = None;
        for at in 0..3 {
            let Some(life) = &mut self.sites[at].life else {
                unreachable!("all are up")
            };
            let queue = life.engine.queue();
            let mut jobs = BTreeSet::new();
            for (id, body) in &self.oracle.put {
                let Some(job) = queue.job(*id) else {
                    let may_be_gone = self.oracle.delete_asked.contains(id);
                    assert!(may_be_gone, "member {at} has lost job {id}");
                    continue;
                };
                let is_back = self.oracle.deleted.contains(id);
                assert!(!is_back, "member {at} has job {id}, which was deleted");
                assert_eq!(job.body_size as usize, body.len(), "job {id}");
                jobs.insert(*id);
            }
            let total = queue.stats().jobs.total();
            assert!(total >= jobs.len() as u64);
            match &first {
                None => first = Some(jobs),
                Some(first) => assert_eq!(*first, jobs, "member {at} has other jobs"),
            }
        }
    }
}

impl Oracle {
    /// The reply has left.
    fn told(&mut self, by: usize, it: Waiting) {
        let Waiting { term, newest, .. } = it;
        assert!(
            newest <= term,
            "member {by} led in term {term}, and answers what it was asked after the leader of term \
             {newest} had answered"
        );
        self.newest = self.newest.max(term);
        match (it.told, it.asked) {
            (Told::Inserted(id), Asked::Put(body)) => {
                let other = self.put.insert(id, body);
                assert!(other.is_none(), "job {id} was put twice");
            }
            (Told::Reserved(id, body), _) => {
                if let Some(put) = self.put.get(&id) {
                    assert_eq!(*put, body, "the body of job {id}");
                }
                let is_gone = self.deleted.contains(&id);
                assert!(!is_gone, "job {id} was deleted, and is handed out");
            }
            (Told::Deleted, Asked::Delete(id)) => _ = self.deleted.insert(id),
            _ => {}
        }
    }
}

/// Counts of events, to see that each happens.
#[derive(Debug, Default)]
struct Seen {
    /// Replies that were told.
    replies: u64,
    /// Copies of a log that were installed.
    installed: u64,
    /// Leaders that noticed that they led no more.
    fell: u64,
    /// Turns of a member whose ledger had no room.
    full_ledgers: u64,
    /// And whose log had none for what is committed.
    full_logs: u64,
    /// Servers that were made of one member, of those the ones whose ledger had more than the log, and
    /// the ones with entries of which it was not known whether they were committed.
    survivors: u64,
    ledgers_ahead: u64,
    uncertain: u64,
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Seen) {
        self.replies += other.replies;
        self.installed += other.installed;
        self.fell += other.fell;
        self.full_ledgers += other.full_ledgers;
        self.full_logs += other.full_logs;
        self.survivors += other.survivors;
        self.ledgers_ahead += other.ledgers_ahead;
        self.uncertain += other.uncertain;
    }
}

fn history(seed: u64) -> Seen {
    let mut world = World::new(seed);
    for _ in 0..1 + world.random.below(3) {
        world.storm();
        world.peace();
        world.judge();
    }
    // What is on the disks is the same after a power cut of all of them.
    for site in 0..3 {
        world.sites[site].life = None;
        world.sites[site].disk = world.sites[site].disk.crash_image(Crash::DropUnsynced);
    }
    world.wires.clear();
    world.peace();
    world.judge();
    world.seen
}

#[test]
fn no_acknowledged_job_is_lost_whatever_happens_to_members_and_their_network() {
    let first = volume("BSD_MEMBER_FIRST", 0);
    let runs = volume("BSD_MEMBER_RUNS", RUNS);
    let repeat = |seed| {
        format!(
            "BSD_MEMBER_FIRST={seed} BSD_MEMBER_RUNS=1 cargo test -p bsd-cluster --lib \
             replica::tests::no_acknowledged"
        )
    };
    let seen = run_each(first..first + runs, repeat, history);
    eprintln!("{runs} histories: {seen:?}");
    let is_much = seen.replies > runs * 20
        && seen.installed > runs / 10
        && seen.fell > runs / 2
        && seen.full_ledgers > 0
        && seen.full_logs > 0
        && seen.survivors > runs
        && seen.ledgers_ahead > 0
        && seen.uncertain > 0;
    assert!(is_much || runs < RUNS, "only {seen:?}");
}
