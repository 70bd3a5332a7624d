//! What becomes of a message.

use raft::eraftpb::Message;

use super::{Event, MS, World};
use crate::cluster::member::NodeId;
use crate::cluster::node::Role;

impl World {
    pub(super) fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cut
            .get(&(from, to))
            .is_some_and(|reasons| *reasons > 0)
    }

    pub(super) fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            self.oracle.sent(&message);
            let is_cut = self.is_cut(NodeId(message.from), NodeId(message.to));
            if is_cut || self.random.percent(self.drops) {
                continue;
            }
            if self.is_stormy && self.random.one_in(30) {
                let after = self.ms(0, 400);
                self.later(after, Event::Deliver(Box::new(message.clone())));
            }
            let after = match self.is_stormy && self.random.one_in(50) {
                true => self.ms(1, 800),
                false => self.ms(0, 3),
            };
            self.later(after, Event::Deliver(Box::new(message)));
        }
    }

    pub(super) fn deliver(&mut self, message: Message) {
        let (from, to) = (NodeId(message.from), NodeId(message.to));
        if self.is_cut(from, to) || self.machines.get(to).is_none() {
            return;
        }
        let waits = self.random.one_in(3);
        let machine = self.machine(to);
        let Some(process) = &mut machine.up else {
            return;
        };
        let leads = matches!(process.role, Role::Leads(_));
        let (index, members) = process.node.members();
        let is_stranger = leads && members.get(from).is_none();
        machine.inbox.push(message);
        if machine.inbox.len() > 1000 {
            machine.inbox.clear();
        }
        if is_stranger {
            self.later(MS, Event::Notice { to: from, index });
        }
        // Some wait for the next, so that a turn has several.
        if waits {
            self.later(MS, Event::Resume(to));
        } else {
            self.turn(to);
        }
    }

    /// Now and then a node dials all others, and one that leads tells it that it is none any more: a
    /// learner says nothing else.
    pub(super) fn hello(&mut self) {
        let after = self.ms(100, 500);
        self.later(after, Event::Hello);
        let live = self.live();
        if live.is_empty() {
            return;
        }
        let from = self.random.pick(&live);
        let Some(to) = self.a_leader() else {
            return;
        };
        let Some(process) = self.process(to) else {
            return;
        };
        let (index, members) = process.node.members();
        let is_stranger = members.get(from).is_none();
        if is_stranger && !self.is_cut(from, to) && !self.is_cut(to, from) {
            self.later(MS, Event::Notice { to: from, index });
        }
    }
}
