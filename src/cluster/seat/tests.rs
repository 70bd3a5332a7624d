//! Histories of three whole members: the real queue, log, ledger and node, each on its own simulated
//! disk, over a network that drops, delays and cuts.
//!
//! The oracle is what clients were told. At the end, when everything works again, on every member: each
//! job whose put was acknowledged is there, with its body, unless its delete was asked for; none is
//! there whose delete was acknowledged; no id was given to two bodies. In between, no two clients of
//! two leaders hold the same job without its time being over or its member having fallen.
//!
//! `BSD_SEAT_RUNS` histories, from `BSD_SEAT_FIRST` on; a failure names its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::{Seat, Standing, log_options};
use crate::cluster::ledger::{Base, Identity, Ledger};
use crate::cluster::ledger_dir;
use crate::cluster::member::{ClusterId, Member, Members, NodeId, Votes};
use crate::cluster::node::{Mark, Node, Role, Settings};
use crate::engine::{Engine, Options, ReplySink};
use crate::protocol::{Command, Op, Reply, Request};
use crate::random::Random;
use crate::storage::SimFs;
use crate::storage::disk::Fs;
use crate::storage::disk::sim::Crash;
use crate::storage::format::Stamp;
use crate::types::{ClientId, JobId, Now, Position, Time};

const DIR: &str = "/data";
const MS: i64 = 1_000_000;
/// The wall clock when a history begins.
const WALL_NS: u64 = 1_800_000_000_000_000_000;

struct Replies(Vec<(ClientId, Position, Told)>);

#[derive(Debug, Clone)]
enum Told {
    Inserted(JobId),
    Reserved(JobId, Vec<u8>),
    Deleted,
    Other,
}

impl ReplySink for Replies {
    fn reply(&mut self, client: ClientId, after: Position, reply: Reply<'_>) {
        let told = match reply {
            Reply::Inserted(id) => Told::Inserted(id),
            Reply::Reserved(id, body) => Told::Reserved(id, body.to_vec()),
            Reply::Deleted => Told::Deleted,
            _ => Told::Other,
        };
        self.0.push((client, after, told));
    }
}

/// What was asked for, in the order of replies.
#[derive(Debug, Clone)]
enum Asked {
    Put(Vec<u8>),
    Delete(JobId),
    Other,
}

struct Site {
    disk: SimFs,
    life: Option<Life>,
}

struct Life {
    seat: Seat,
    engine: Engine,
    client: Option<ClientId>,
    asked: Vec<Asked>,
    /// Replies that are not acknowledged, with what was asked for.
    waiting: Vec<(Position, Told, Asked)>,
    reserved: Option<JobId>,
}

#[derive(Default)]
struct Oracle {
    /// Bodies of acknowledged puts.
    put: BTreeMap<JobId, Vec<u8>>,
    delete_asked: BTreeSet<JobId>,
    deleted: BTreeSet<JobId>,
}

struct World {
    random: Random,
    now: Now,
    sites: Vec<Site>,
    /// Messages under way: when they come, to whom, from whom.
    wires: Vec<(Time, usize, raft::eraftpb::Message)>,
    /// Pairs between which nothing passes.
    cut: BTreeSet<(usize, usize)>,
    oracle: Oracle,
    bodies: u64,
    acknowledged: u64,
}

fn options(disk: &SimFs) -> Options {
    log_options(Options {
        dir: Some(DIR.into()),
        fs: Arc::new(disk.clone()),
        segment_size: 1 << 20,
        ..Options::default()
    })
}

fn members() -> Members {
    let mut members = Members::default();
    for id in 1..=3 {
        members.put(Member {
            id: NodeId(id),
            peer: format!("127.0.0.1:{id}"),
            client: String::new(),
            votes: Votes {
                incoming: true,
                ..Votes::default()
            },
        });
    }
    members
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let now = Now {
            mono: Time(0),
            wall_ns: WALL_NS,
        };
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
            Ledger::create(&fs, Path::new(DIR), identity, base).unwrap();
            engine.leave(now).unwrap();
            Site { disk, life: None }
        });
        let sites = sites.collect();
        let mut world = World {
            random,
            now,
            sites,
            wires: Vec::new(),
            cut: BTreeSet::new(),
            oracle: Oracle::default(),
            bodies: 0,
            acknowledged: 0,
        };
        (0..3).for_each(|site| world.boot(site));
        world
    }

    fn boot(&mut self, site: usize) {
        let seed = self.random.next();
        let (site, now) = (&mut self.sites[site], self.now);
        let fs: Arc<dyn Fs> = Arc::new(site.disk.clone());
        let ledger = Ledger::open(&fs, Path::new(DIR)).unwrap().unwrap();
        let engine = Engine::follow(&options(&site.disk), now).unwrap();
        let Stamp { index, term } = engine.stamp();
        let node = Node::open(
            ledger,
            Mark { index, term },
            None,
            seed,
            now.mono,
            Settings::default(),
        );
        let seat = Seat::new(node.unwrap(), options(&site.disk), &engine);
        site.life = Some(Life {
            seat,
            engine,
            client: None,
            asked: Vec::new(),
            waiting: Vec::new(),
            reserved: None,
        });
    }

    fn crash(&mut self, site: usize) {
        let how = match self.random.below(3) {
            0 => Crash::KeepAll,
            1 => Crash::DropUnsynced,
            _ => Crash::Random {
                seed: self.random.next(),
            },
        };
        let site = &mut self.sites[site];
        site.life = None;
        site.disk = site.disk.crash_image(how);
    }

    /// One turn of a member, as its server's loop has it.
    fn turn(&mut self, at: usize, has_work: bool) {
        let (now, mut random) = (
            self.now,
            self.random.fork(at as u64 + self.now.mono.0 as u64),
        );
        let due: Vec<_> = {
            let is_due = |(when, to, _): &(Time, usize, _)| *to == at && *when <= now.mono;
            let (due, rest) = std::mem::take(&mut self.wires)
                .into_iter()
                .partition(is_due);
            self.wires = rest;
            due
        };
        let Some(life) = &mut self.sites[at].life else {
            return;
        };
        for (_, _, message) in due {
            life.seat.step(message);
        }
        let mut standing = life.seat.begin(&mut life.engine, now).unwrap();
        if standing == Standing::Falls {
            // The clients are gone with what they were not told.
            (life.client, life.reserved) = (None, None);
            life.waiting.clear();
            life.seat.fall(&mut life.engine, now).unwrap();
            standing = Standing::Follows;
        }
        let mut replies = Replies(Vec::new());
        if standing == Standing::Serves && has_work {
            let client = *life.client.get_or_insert_with(|| life.engine.connect());
            for _ in 0..random.below(6) {
                if !life.engine.has_room_for(4096) {
                    break;
                }
                let body;
                let (asked, command) = match (random.below(4), life.reserved) {
                    (0, Some(id)) => (Asked::Delete(id), Command::Delete(id)),
                    (1, None) => {
                        let reserve = Command::Reserve {
                            timeout: Some(0),
                            op: Op::ReserveWithTimeout,
                        };
                        (Asked::Other, reserve)
                    }
                    _ => {
                        self.bodies += 1;
                        let size = random.below(2000);
                        body = format!("{} {}", self.bodies, "x".repeat(size)).into_bytes();
                        let put = Command::Put {
                            pri: random.below(3),
                            delay: 0,
                            ttr: 60,
                            body: &body,
                        };
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
        life.seat
            .decide(&mut life.engine, &mut replies, now)
            .unwrap();
        let has_replied = !replies.0.is_empty();
        life.seat.propose(&mut life.engine, has_replied).unwrap();
        let mut asked = std::mem::take(&mut life.asked).into_iter();
        for (_, after, told) in replies.0 {
            let asked = asked.next().unwrap_or(Asked::Other);
            life.waiting.push((after, told, asked));
        }
        let mut sent = life.seat.outbox();
        sent.extend(life.seat.persist().unwrap());
        life.seat.advance(&mut life.engine, now).unwrap();
        let acknowledged = life.seat.acknowledge(&mut life.engine);
        let waiting = std::mem::take(&mut life.waiting);
        for (after, told, asked) in waiting {
            if after > acknowledged {
                life.waiting.push((after, told, asked));
                continue;
            }
            self.acknowledged += 1;
            match (told, asked) {
                (Told::Inserted(id), Asked::Put(body)) => {
                    let other = self.oracle.put.insert(id, body);
                    assert!(other.is_none(), "job {id} was put twice");
                }
                (Told::Reserved(id, body), _) => {
                    if let Some(put) = self.oracle.put.get(&id) {
                        assert_eq!(*put, body, "the body of job {id}");
                    }
                    let is_gone = self.oracle.deleted.contains(&id);
                    assert!(!is_gone, "job {id} was deleted, and is handed out");
                }
                (Told::Deleted, Asked::Delete(id)) => _ = self.oracle.deleted.insert(id),
                _ => {}
            }
        }
        for wanted in life.seat.take_snapshots() {
            life.seat.snapshot_sent(wanted.to, None);
        }
        for message in sent {
            let to = message.to as usize - 1;
            let is_lost = self.cut.contains(&(at, to)) || self.random.below(50) == 0;
            if !is_lost && self.sites[to].life.is_some() {
                let delay = MS / 4 + self.random.below(2 * MS);
                self.wires.push((Time(now.mono.0 + delay), to, message));
            }
        }
    }

    fn pass_time(&mut self) {
        self.now.mono.0 += MS;
        self.now.wall_ns += MS as u64;
    }

    fn storm(&mut self) {
        for _ in 0..1500 + self.random.below(2500) {
            self.pass_time();
            match self.random.below(400) {
                0 => {
                    let site = self.random.below(3);
                    if self.sites[site].life.is_some() {
                        self.crash(site);
                    }
                }
                1..=4 => {
                    let site = self.random.below(3);
                    if self.sites[site].life.is_none() {
                        self.boot(site);
                    }
                }
                5 => {
                    _ = self
                        .cut
                        .insert((self.random.below(3), self.random.below(3)))
                }
                6 => {
                    let site = self.random.below(3);
                    (0..3).for_each(|other| {
                        self.cut.insert((site, other));
                        self.cut.insert((other, site));
                    });
                }
                7..=10 => self.cut.clear(),
                _ => {}
            }
            (0..3).for_each(|site| self.turn(site, true));
        }
    }

    /// Everything works: within ten seconds there is a leader, and all have the same.
    fn peace(&mut self) {
        self.cut.clear();
        for site in 0..3 {
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
        let statuses: Vec<_> = lives.clone().map(|life| life.seat.status()).collect();
        let leads = lives.clone().filter(|life| life.seat.leads()).count() == 1;
        let commit = statuses[0].commit;
        let same = statuses
            .iter()
            .all(|it| it.commit == commit && it.last == commit && it.applied == commit);
        let written = lives
            .clone()
            .all(|life| life.engine.stamp().index == commit);
        let is_role =
            |life: &Life| matches!(life.seat.role(), Role::Leads(_) | Role::Follows(Some(_)));
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

fn history(seed: u64) -> u64 {
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
    world.acknowledged
}

#[test]
fn no_acknowledged_job_is_lost_whatever_happens_to_members_and_their_network() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("BSD_SEAT_FIRST").unwrap_or(0);
    let runs: u64 = number("BSD_SEAT_RUNS").unwrap_or(20);
    let mut acknowledged = 0;
    for seed in first..first + runs {
        let told = std::panic::catch_unwind(|| history(seed));
        acknowledged += told.unwrap_or_else(|panic| {
            eprintln!(
                "to repeat: BSD_SEAT_FIRST={seed} BSD_SEAT_RUNS=1 cargo test --features cluster --lib \
                 cluster::seat"
            );
            std::panic::resume_unwind(panic)
        });
    }
    assert!(
        acknowledged > runs * 20,
        "only {acknowledged} replies were told"
    );
}
