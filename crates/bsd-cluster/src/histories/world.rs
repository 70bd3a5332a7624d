//! Machines, the network between them, and what befalls them.

mod agenda;
mod machines;
mod network;
mod peace;
mod storm;

use std::collections::BTreeMap;

use raft::eraftpb::Message;

use self::agenda::Agenda;
use self::machines::Machines;
use super::counts::Counts;
use super::disk::Disk;
use super::oracle::Oracle;
use crate::ledger::{Base, Identity};
use crate::member::{ClusterId, Member, Members, NodeId, Votes};
use crate::node::{Mark, Node, NodeError, Out, Role, Settings};
use bsd::random::Random;
use bsd::types::Time;

const MS: i64 = 1_000_000;
/// The toy state machine's log: numbers, and the last entry that it knows of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Log {
    numbers: Vec<(u64, u64)>,
    mark: Mark,
    /// The snapshot that it began with.
    base: Option<Base>,
}

struct Read {
    question: u64,
    /// The state that it shows.
    view: u64,
    /// Entries acknowledged before it began.
    floor: u64,
}

struct Process {
    node: Node,
    log: Log,
    role: Role,
    proposals: BTreeMap<u64, u64>,
    reads: Vec<Read>,
    confirmed: u64,
}

struct Machine {
    disk: Disk,
    /// The durable part of the log.
    log: Log,
    is_lost: bool,
    up: Option<Process>,
    /// Counts starts, so that events meant for an earlier life are dropped.
    life: u64,
    paused_until: i64,
    is_syncing: bool,
    inbox: Vec<Message>,
    /// When its node has to be woken, if nothing happens before.
    deadline: i64,
    /// For when that is planned, if it is: not after the deadline.
    wake_at: Option<i64>,
}

enum Event {
    Wake(NodeId),
    Resume(NodeId),
    Deliver(Box<Message>),
    Synced(NodeId, u64),
    Restart(NodeId),
    Snapshot {
        from: NodeId,
        life: u64,
        to: NodeId,
        log: Box<Log>,
    },
    Notice {
        to: NodeId,
        index: u64,
    },
    Link(NodeId, NodeId),
    Space(NodeId),
    Client,
    Admin,
    Fault,
    Join(NodeId),
    Hello,
    /// A client of this machine reads, with this number of reads to follow.
    Read(NodeId, u32),
}

pub(super) struct World {
    random: Random,
    now: i64,
    agenda: Agenda<Event>,
    machines: Machines,
    /// From whom to whom nothing gets, with how many reasons.
    cut: BTreeMap<(NodeId, NodeId), u32>,
    drops: u64,
    /// Clients of this one read only, until then.
    only_reads: Option<(NodeId, i64)>,
    is_stormy: bool,
    oracle: Oracle,
    counts: Counts,
    trace: u64,
    next_id: u64,
    next_number: u64,
    size: usize,
    /// Learners vote by themselves.
    promotes: bool,
    /// The log is synced once in this number of turns.
    lazy: u64,
    /// After healing: what must be committed.
    last_number: Option<u64>,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let (size, promotes) = (random.pick(&[3, 3, 5]), random.one_in(2));
        let lazy = random.pick(&[2, 4, 60]);
        let mut world = World {
            now: random.below(1_000_000_000),
            random,
            agenda: Agenda::new(),
            machines: Machines::default(),
            cut: BTreeMap::new(),
            drops: 0,
            only_reads: None,
            is_stormy: true,
            oracle: Oracle::default(),
            counts: Counts::default(),
            trace: seed,
            next_id: 1,
            next_number: 1,
            size,
            promotes,
            lazy,
            last_number: None,
        };
        let first = if world.random.one_in(4) { 1 } else { size };
        let mut members = Members::default();
        for _ in 0..first {
            let mut member = world.fresh();
            member.votes.incoming = true;
            members.put(member);
        }
        world.oracle.has_members(NodeId(0), 0, &members);
        for member in members.list.clone() {
            let base = Base {
                index: 0,
                term: 0,
                members: members.clone(),
            };
            world.create(member.id, base, Log::default());
        }
        for event in [Event::Client, Event::Admin, Event::Fault, Event::Hello] {
            world.later(10 * MS, event);
        }
        world
    }

    fn fresh(&mut self) -> Member {
        let id = NodeId(self.next_id);
        self.next_id += 1;
        Member {
            id,
            peer: format!("peer-{}", id.0),
            client: String::new(),
            votes: Votes::default(),
        }
    }

    fn create(&mut self, id: NodeId, base: Base, log: Log) {
        let identity = Identity {
            cluster: ClusterId([7; 16]),
            node: id,
        };
        let disk = Disk::new(self.random.next(), identity, base);
        let machine = Machine {
            disk,
            log,
            is_lost: false,
            up: None,
            life: 0,
            paused_until: 0,
            is_syncing: false,
            inbox: Vec::new(),
            deadline: 0,
            wake_at: None,
        };
        self.machines.insert(id, machine);
        self.start(id);
    }

    fn later(&mut self, after: i64, event: Event) {
        self.agenda.put(self.now + after, event);
    }

    fn ms(&mut self, from: i64, to: i64) -> i64 {
        from * MS + self.random.below((to - from) * MS)
    }

    fn machine(&mut self, id: NodeId) -> &mut Machine {
        self.machines.get_mut(id).unwrap()
    }

    fn process(&mut self, id: NodeId) -> Option<&mut Process> {
        self.machines.get_mut(id)?.up.as_mut()
    }

    fn live(&self) -> Vec<NodeId> {
        let up = self.machines.iter().filter(|(_, it)| it.up.is_some());
        up.map(|(id, _)| id).collect()
    }

    pub(super) fn storm(&mut self) {
        let until = self.now + self.ms(2000, 8000);
        self.go_on(until, |_| false);
    }

    fn go_on(&mut self, until: i64, is_over: impl Fn(&World) -> bool) -> bool {
        while let Some((at, event)) = self.agenda.take(until) {
            self.now = at;
            self.happens(event);
            if is_over(self) {
                return true;
            }
        }
        false
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Wake(id) => self.wake(id),
            Event::Resume(id) => self.turn(id),
            Event::Deliver(message) => self.deliver(*message),
            Event::Synced(id, life) => self.synced(id, life),
            Event::Restart(id) => self.start(id),
            Event::Snapshot {
                from,
                life,
                to,
                log,
            } => self.snapshot_arrives(from, life, to, *log),
            Event::Notice { to, index } => {
                if let Some(process) = self.process(to) {
                    process.node.left_out(index);
                    self.turn(to);
                }
            }
            Event::Link(from, to) => *self.cut.entry((from, to)).or_default() -= 1,
            Event::Space(id) => self.machine(id).disk.set_full(false),
            Event::Client => self.client(),
            Event::Admin => self.admin(),
            Event::Fault => self.fault(),
            Event::Join(id) => self.join(id),
            Event::Hello => self.hello(),
            Event::Read(id, more) => self.read_again(id, more),
        }
    }

    // ---- machines ----

    fn start(&mut self, id: NodeId) {
        let (now, seed) = (Time(self.now), self.random.next());
        let keep_bytes = self.random.below(4_u64) << 10;
        let handed_bytes = self.random.pick(&[1, 200, 8 << 20]);
        let settings = Settings {
            promote: self.promotes,
            keep_bytes,
            handed_bytes,
        };
        let machine = self.machine(id);
        if machine.up.is_some() || machine.is_lost {
            return;
        }
        let Some(ledger) = machine.disk.start() else {
            return self.later(100 * MS, Event::Restart(id));
        };
        let log = machine.log.clone();
        let node = match Node::open(ledger, log.mark, log.base.as_ref(), seed, now, settings) {
            Ok(node) => node,
            Err(NodeError::Store(_)) => return self.later(100 * MS, Event::Restart(id)),
            Err(error) => panic!("{id:?} does not start: {error}"),
        };
        let status = node.status();
        assert!(
            status.members_index <= status.commit,
            "{id:?} has a change that it does not know to be committed: {status:?}"
        );
        machine.life += 1;
        machine.is_syncing = false;
        machine.inbox.clear();
        machine.up = Some(Process {
            node,
            log,
            role: Role::Follows(None),
            proposals: BTreeMap::new(),
            reads: Vec::new(),
            confirmed: 0,
        });
        self.turn(id);
    }

    fn crash(&mut self, id: NodeId) {
        let down = match self.random.one_in(2) {
            true => self.ms(1, 50),
            false => self.ms(1, 1500),
        };
        let machine = self.machine(id);
        machine.disk.crash_now();
        machine.up = None;
        machine.paused_until = 0;
        self.counts.crashes += 1;
        self.later(down, Event::Restart(id));
    }

    /// Messages in; a leader's out; then the disk is busy.
    fn turn(&mut self, id: NodeId) {
        let now = self.now;
        let sync = match self.random.below(20) {
            0 => self.ms(5, 60),
            _ => self.ms(0, 2),
        };
        let machine = self.machine(id);
        let Some(process) = &mut machine.up else {
            return;
        };
        if machine.is_syncing || machine.paused_until > now {
            return;
        }
        process.node.tick(Time(now));
        machine
            .inbox
            .drain(..)
            .for_each(|message| process.node.step(message));
        if process.node.has_work() {
            let messages = process.node.outbox();
            machine.is_syncing = true;
            let life = machine.life;
            self.later(sync, Event::Synced(id, life));
            self.send(messages);
        } else {
            let next = process.node.next_deadline().0;
            assert!(next > now, "{id:?} has to be woken in the past");
            self.wake_at(id, next);
        }
    }

    fn wake_at(&mut self, id: NodeId, deadline: i64) {
        let machine = self.machine(id);
        machine.deadline = deadline;
        if machine.wake_at.is_none_or(|planned| planned > deadline) {
            machine.wake_at = Some(deadline);
            self.later(deadline - self.now, Event::Wake(id));
        }
    }

    fn wake(&mut self, id: NodeId) {
        let now = self.now;
        let machine = self.machine(id);
        if machine.wake_at != Some(now) {
            // Another was planned for an earlier time.
            return;
        }
        machine.wake_at = None;
        match machine.deadline {
            later if later > now => self.wake_at(id, later),
            _ => self.turn(id),
        }
    }

    fn synced(&mut self, id: NodeId, life: u64) {
        let now = self.now;
        let machine = self.machine(id);
        if machine.life != life || machine.up.is_none() {
            return;
        }
        if machine.paused_until > now {
            let rest = machine.paused_until - now;
            return self.later(rest, Event::Synced(id, life));
        }
        let Some(process) = &mut machine.up else {
            return;
        };
        match process.node.persist() {
            Ok(out) => {
                machine.is_syncing = false;
                self.act(id, out);
                self.turn(id);
            }
            Err(_) if machine.disk.is_crashed() => {
                self.counts.crashes_at_sync += 1;
                self.crash(id);
            }
            Err(error) => {
                assert!(error.is_full(), "{id:?} fails without a crash: {error}");
                self.counts.full += 1;
                self.later(50 * MS, Event::Synced(id, life));
            }
        }
    }

    fn act(&mut self, id: NodeId, mut out: Out) {
        if self.is_stormy && self.random.one_in(400) {
            // Lost between the sync and the network.
            out.messages.truncate(self.random.below(3));
            self.send(out.messages);
            return self.crash(id);
        }
        self.send(out.messages);
        let World {
            machines,
            oracle,
            counts,
            trace,
            ..
        } = self;
        let Some(process) = machines.get_mut(id).and_then(|it| it.up.as_mut()) else {
            return;
        };
        let mut has_changed = false;
        for committed in out.committed {
            let mark = committed.mark;
            assert_eq!(
                mark.index,
                process.log.mark.index + 1,
                "{id:?} skips entries"
            );
            let number = committed
                .data
                .as_ref()
                .try_into()
                .map_or(0, u64::from_le_bytes);
            has_changed |= number == 0;
            oracle.handed_out(id, mark, number);
            *trace = Random::new(*trace ^ mark.index ^ number << 32 ^ id.0 << 50).next();
            process.log.mark = mark;
            if number > 0 {
                process.log.numbers.push((mark.index, number));
            }
            match process.proposals.remove(&mark.index) {
                Some(mine) if process.role == Role::Leads(mark.term) => {
                    assert_eq!(mine, number, "{id:?} would acknowledge another's entry");
                    oracle.acknowledged(mark.index, number);
                    counts.acknowledged += 1;
                }
                // Another's entry in its place: who proposed it hears that its lead is over.
                Some(_) => assert!(out.role.is_some(), "{id:?} believes to lead on"),
                None => {}
            }
        }
        process.node.applied(process.log.mark.index);
        if has_changed {
            assert!(
                process.node.is_as_remembered(),
                "{id:?} works with another membership"
            );
            let (index, members) = process.node.members();
            oracle.has_members(id, index, members);
            let joint = members.list.iter().any(|member| member.votes.outgoing);
            counts.joint += u64::from(joint);
        }
        process.confirmed = process.confirmed.max(out.reads_confirmed.unwrap_or(0));
        let (confirmed, applied) = (process.confirmed, process.log.mark.index);
        process.reads.retain(|read| {
            let is_done = read.question <= confirmed && read.view <= applied;
            if is_done {
                oracle.read(id, read.floor, read.view);
                counts.reads += 1;
            }
            !is_done
        });
        if let Some(role) = out.role {
            process.role = role;
            process.proposals.clear();
            process.reads.clear();
            counts.leads += u64::from(matches!(role, Role::Leads(_)));
            counts.removed += u64::from(role == Role::Removed);
        }
        if self.random.one_in(self.lazy) {
            self.sync_log(id);
        }
        for wanted in out.snapshots {
            self.send_snapshot(id, wanted.to, wanted.index);
        }
    }

    /// The log's own sync, and then the ledger may forget.
    fn sync_log(&mut self, id: NodeId) {
        let machine = self.machine(id);
        let Some(process) = &mut machine.up else {
            return;
        };
        machine.log = process.log.clone();
        let mark = process.log.mark;
        if process.node.durable_applied(mark.index).is_err() && machine.disk.is_crashed() {
            self.counts.crashes_at_sync += 1;
            self.crash(id);
        }
    }

    fn send_snapshot(&mut self, from: NodeId, to: NodeId, least: u64) {
        let after = self.ms(5, 300);
        let machine = self.machine(from);
        let Some(process) = &mut machine.up else {
            return;
        };
        let mut log = Box::new(machine.log.clone());
        log.base = process.node.base_at(log.mark.index);
        let life = machine.life;
        if log.base.is_some() {
            assert!(log.mark.index >= least);
            self.later(
                after,
                Event::Snapshot {
                    from,
                    life,
                    to,
                    log,
                },
            );
        } else {
            process.node.snapshot_sent(to, None);
        }
    }

    fn snapshot_arrives(&mut self, from: NodeId, life: u64, to: NodeId, log: Log) {
        let index = log.mark.index;
        let is_there = !self.is_cut(from, to) && self.install(to, log);
        let sender = self.machine(from);
        if let Some(process) = sender.up.as_mut().filter(|_| sender.life == life) {
            process.node.snapshot_sent(to, is_there.then_some(index));
            self.turn(from);
        }
    }

    fn install(&mut self, id: NodeId, log: Log) -> bool {
        let is_cut_short = self.is_stormy && self.random.one_in(6);
        let now = self.now;
        let Some(machine) = self.machines.get_mut(id) else {
            return false;
        };
        let Some(process) = &mut machine.up else {
            return false;
        };
        let Some(base) = log.base.clone() else {
            return false;
        };
        if machine.is_syncing || machine.paused_until > now {
            return false;
        }
        if base.index <= process.log.mark.index {
            return true;
        }
        // First the log, then the ledger.
        machine.log = log.clone();
        if is_cut_short {
            self.counts.cut_installs += 1;
            self.crash(id);
            return false;
        }
        let is_there = process.node.snapshot_installed(&base).is_ok();
        if is_there {
            process.log = log;
            process.proposals.clear();
            process.reads.clear();
            self.counts.snapshots += 1;
            let (index, members) = process.node.members();
            self.oracle.has_members(id, index, members);
            self.turn(id);
        } else {
            // Full, or lost: a start does the rest.
            self.crash(id);
        }
        is_there
    }
}
