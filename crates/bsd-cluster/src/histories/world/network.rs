//! The network: delays, losses and repetitions of messages.

use raft::eraftpb::Message;

use super::{Event, MS, World};
use crate::member::NodeId;
use crate::node::Role;

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
        // Who is refused gets nothing through; some of it was under way.
        if self.turns_away(to, from) && self.random.one_in(2) {
            return;
        }
        let machine = self.machine(to);
        if machine.up.is_none() {
            return;
        }
        machine.inbox.push(message);
        if machine.inbox.len() > 1000 {
            machine.inbox.clear();
        }
        // Some wait for the next, so that a turn has several.
        if waits {
            self.later(MS, Event::Resume(to));
        } else {
            self.turn(to);
        }
    }

    /// The others of the membership that it knows.
    pub(super) fn known_to(&self, id: NodeId) -> Vec<NodeId> {
        let process = self.machines.get(id).and_then(|it| it.up.as_ref());
        let members = process.map(|it| it.node.members().1.list.iter());
        let ids = members.into_iter().flatten().map(|it| it.id);
        ids.filter(|it| *it != id).collect()
    }

    /// Whether `to` tells who calls it that it is no member any more: a leader does, and one that knows a
    /// newer membership.
    fn turns_away(&mut self, to: NodeId, from: NodeId) -> bool {
        let known = self.process(from).map(|it| it.node.members().0);
        let Some(process) = self.process(to) else {
            return false;
        };
        let leads = matches!(process.role, Role::Leads(_));
        let (index, members) = process.node.members();
        let is_newer = leads || known.is_some_and(|known| known < index);
        let tells = is_newer && members.get(from).is_none();
        if tells {
            self.later(MS, Event::Notice { to: from, index });
        }
        tells
    }

    /// Now and then a node dials the members that it knows: a learner says nothing else.
    pub(super) fn hello(&mut self) {
        let after = self.ms(100, 500);
        self.later(after, Event::Hello);
        let live = self.live();
        if live.is_empty() {
            return;
        }
        let from = self.random.pick(&live);
        for to in self.known_to(from) {
            if !self.is_cut(from, to) && !self.is_cut(to, from) {
                self.turns_away(to, from);
            }
        }
    }
}
