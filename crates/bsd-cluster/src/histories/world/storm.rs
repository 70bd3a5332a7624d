//! Actions of operators, and faults of machines.

use bytes::Bytes;

use super::{Event, MS, Machine, Process, Read, World};
use crate::member::{Member, NodeId};
use crate::node::{Change, Role};

impl Machine {
    fn leads(&self) -> bool {
        let process = self.up.as_ref();
        process.is_some_and(|it| matches!(it.role, Role::Leads(_)))
    }
}

impl World {
    // ---- people ----

    fn leads(&self, id: NodeId) -> bool {
        self.machines.get(id).is_some_and(Machine::leads)
    }

    /// A node that leads, or believes so, and can be reached.
    pub(super) fn a_leader(&mut self) -> Option<NodeId> {
        let can_be_talked_to = |it: &Machine| !it.is_syncing && it.paused_until <= self.now;
        let leaders = self.machines.iter();
        let leaders = leaders.filter(|(_, it)| it.leads() && can_be_talked_to(it));
        let leaders: Vec<_> = leaders.map(|(id, _)| id).collect();
        (!leaders.is_empty()).then(|| self.random.pick(&leaders))
    }

    /// Numbers go to the leader of the newest term, as a rule; reads to anyone who believes to
    /// lead.
    pub(super) fn client(&mut self) {
        let after = self.ms(1, 40);
        self.later(after, Event::Client);
        match self.random.one_in(2) {
            true => self.read(),
            false => self.write(),
        }
    }

    fn write(&mut self) {
        let count = self.random.below(4);
        let Some(id) = self.a_leader() else { return };
        let now = self.now;
        if self.only_reads.is_some_and(|it| it.0 == id && now < it.1) {
            return;
        }
        let term = |world: &World, id| match world.machines.get(id).and_then(|it| it.up.as_ref()) {
            Some(Process {
                role: Role::Leads(term),
                ..
            }) => *term,
            _ => 0,
        };
        let newest = self.live().into_iter().map(|id| term(self, id)).max();
        if newest > Some(term(self, id)) && !self.random.one_in(4) {
            return;
        }
        let mut number = self.next_number;
        let Some(process) = self.process(id) else {
            return;
        };
        for _ in 0..count {
            let data = Bytes::copy_from_slice(&number.to_le_bytes());
            if let Ok(index) = process.node.propose(data) {
                process.proposals.insert(index, number);
                number += 1;
            }
        }
        self.next_number = number;
        self.turn(id);
    }

    fn read(&mut self) {
        if let Some(id) = self.a_leader() {
            self.read_at(id);
        }
    }

    pub(super) fn read_again(&mut self, id: NodeId, more: u32) {
        if more > 0 {
            self.later(20 * MS, Event::Read(id, more - 1));
        }
        if self.leads(id) && !self.machine(id).is_syncing {
            self.read_at(id);
        }
    }

    fn read_at(&mut self, id: NodeId) {
        let floor = self.oracle.floor();
        let Some(process) = self.process(id) else {
            return;
        };
        let question = process.node.confirm_read();
        let proposed = process.proposals.keys().next_back().copied();
        let view = proposed.unwrap_or(0).max(process.log.mark.index);
        process.reads.push(Read {
            question,
            view,
            floor,
        });
        self.turn(id);
    }

    /// Keeps the cluster at its size, and changes it without need now and then.
    pub(super) fn admin(&mut self) {
        let after = self.ms(50, 400);
        self.later(after, Event::Admin);
        let members = self.oracle.newest_members().clone();
        let lost: Vec<_> = members
            .list
            .iter()
            .map(|it| it.id)
            .filter(|id| self.is_lost(*id))
            .collect();
        let list = members.list.iter().filter(|it| !lost.contains(&it.id));
        let ids: Vec<_> = list.clone().map(|it| it.id).collect();
        let voters: Vec<_> = list
            .clone()
            .filter(|it| it.votes.incoming)
            .map(|it| it.id)
            .collect();
        let learners: Vec<_> = ids
            .iter()
            .copied()
            .filter(|id| !voters.contains(id))
            .collect();
        let Some(leader) = self.a_leader() else {
            return;
        };
        let dice = self.random.below(8);
        let is_due = self.is_stormy && self.random.one_in(3);
        let change = match (lost.first(), learners.first()) {
            (Some(lost), Some(new)) if dice < 4 => Change::Replace {
                old: *lost,
                new: *new,
            },
            (_, Some(new)) if dice < 5 && !self.promotes => Change::Promote(*new),
            (Some(lost), _) if dice < 6 => Change::Remove(*lost),
            (_, None) if ids.len() < self.size => self.add(),
            _ if !is_due => return,
            (None, Some(new)) if dice > 5 && voters.len() >= 3 => Change::Replace {
                old: self.random.pick(&voters),
                new: *new,
            },
            (None, None) if dice < 3 && ids.len() <= self.size => self.add(),
            (None, _) if dice < 6 && voters.len() > 3 => Change::Remove(self.random.pick(&voters)),
            _ => {
                let id = self.random.pick(&ids);
                Change::Move {
                    id,
                    peer: format!("moved-{}", self.now),
                    client: String::new(),
                }
            }
        };
        let Some(process) = self.process(leader) else {
            return;
        };
        if process.node.change(change.clone()).is_ok() {
            self.counts.changes += 1;
            if let Change::Add { id, .. } = change {
                self.later(50 * MS, Event::Join(id));
            }
        }
        self.turn(leader);
    }

    fn add(&mut self) -> Change {
        let Member {
            id, peer, client, ..
        } = self.fresh();
        Change::Add { id, peer, client }
    }

    pub(super) fn is_lost(&self, id: NodeId) -> bool {
        self.machines.get(id).is_some_and(|machine| machine.is_lost)
    }

    /// A new member begins with a snapshot of any that knows of it.
    pub(super) fn join(&mut self, id: NodeId) {
        let knows = |machine: &Machine| {
            let process = machine.up.as_ref()?;
            let base = process.node.base_at(machine.log.mark.index)?;
            base.members
                .get(id)
                .map(|_| (machine.log.clone(), base.clone()))
        };
        let found = self.machines.iter().find_map(|(_, it)| knows(it));
        match found {
            Some((mut log, base)) => {
                log.base = Some(base.clone());
                self.create(id, base, log);
            }
            None => self.later(100 * MS, Event::Join(id)),
        }
    }

    // ---- what befalls them ----

    pub(super) fn fault(&mut self) {
        if !self.is_stormy {
            return;
        }
        let after = self.ms(20, 500);
        self.later(after, Event::Fault);
        let ids = self.machines.ids();
        let (id, other) = (self.random.pick(&ids), self.random.pick(&ids));
        let long = self.ms(20, 2500);
        match self.random.below(19) {
            0 | 1 => self.crash_if_up(id),
            2..=5 => {
                let operations = self.random.below(20) + 1;
                self.machine(id).disk.crash_in(operations);
            }
            6 | 7 => {
                self.machine(id).paused_until = self.now + long;
                self.later(long, Event::Resume(id));
            }
            8 => self.cut(id, other, long),
            9 => self.isolate(&[id], &ids, long),
            10 => {
                let of_leader = self.a_leader().unwrap_or(id);
                self.isolate(&[of_leader], &ids, long);
                // Its clients do not know that it is alone. What they had written would keep back all
                // answers to what they read.
                self.only_reads = Some((of_leader, self.now + long));
                self.later(0, Event::Read(of_leader, 50));
            }
            11 => {
                let mut half = ids.clone();
                self.random.shuffle(&mut half);
                half.truncate(ids.len() / 2);
                self.isolate(&half, &ids, long);
            }
            12 => {
                self.machine(id).disk.set_full(true);
                self.later(long, Event::Space(id));
            }
            13 => self.drops = self.random.pick(&[0, 0, 5, 30]),
            14 => {
                if let Some(process) = self.process(id) {
                    process.node.transfer(other);
                    self.turn(id);
                }
            }
            15 => self.lose(id),
            // The power fails, for all of them or for some.
            16 => ids.iter().for_each(|id| self.crash_if_up(*id)),
            _ => {
                let of_leader = self.a_leader().unwrap_or(other);
                self.crash_if_up(of_leader);
                self.crash_if_up(id);
            }
        }
    }

    pub(super) fn crash_if_up(&mut self, id: NodeId) {
        if self.machine(id).up.is_some() {
            self.crash(id);
        }
    }

    fn cut(&mut self, from: NodeId, to: NodeId, long: i64) {
        *self.cut.entry((from, to)).or_default() += 1;
        self.later(long, Event::Link(from, to));
    }

    fn isolate(&mut self, some: &[NodeId], all: &[NodeId], long: i64) {
        for (one, other) in some
            .iter()
            .flat_map(|one| all.iter().map(move |other| (one, other)))
        {
            if !some.contains(other) {
                self.cut(*one, *other, long);
                self.cut(*other, *one, long);
            }
        }
    }

    /// A disk is lost, if the cluster can bear that: no other is, three vote, and of the others so
    /// many know it that they are a majority. A change holds for a node when it knows that it is
    /// committed: if only the leader knows, and is lost, the others still are the smaller cluster.
    fn lose(&mut self, id: NodeId) {
        let Some((newest, members)) = self.oracle.members.last_key_value() else {
            return;
        };
        let list = members.list.iter();
        let is_bearable = list
            .clone()
            .all(|it| !self.is_lost(it.id) && !it.votes.outgoing);
        let voters: Vec<_> = list
            .filter(|it| it.votes.incoming)
            .map(|it| it.id)
            .collect();
        let knows = |it: &&NodeId| {
            let process = self
                .machines
                .get(**it)
                .and_then(|machine| machine.up.as_ref());
            **it != id && process.is_some_and(|process| process.node.members().0 >= *newest)
        };
        let knowing = voters.iter().filter(knows).count();
        let is_majority = knowing > voters.len() / 2;
        if !is_bearable || !is_majority || voters.len() < 3 || self.is_lost(id) {
            return;
        }
        let machine = self.machine(id);
        machine.up = None;
        machine.is_lost = true;
        self.counts.lost_disks += 1;
    }
}
