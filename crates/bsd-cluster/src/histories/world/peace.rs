//! After the storm: everything heals, and the cluster must go on.

use super::super::counts::Counts;
use super::{Event, MS, Machine, Process, World};
use crate::member::{Member, NodeId};
use crate::node::Role;

/// After healing everything must be well within this time.
const HEALED_WITHIN: i64 = 30_000 * MS;

impl World {
    pub(in crate::histories) fn heal(&mut self) {
        self.is_stormy = false;
        self.drops = 0;
        self.cut.clear();
        self.agenda
            .retain(|event| !matches!(event, Event::Link(..) | Event::Fault));
        for id in self.machines.ids() {
            let machine = self.machine(id);
            machine.disk.set_full(false);
            machine.disk.no_crash();
            machine.paused_until = 0;
            self.later(0, Event::Restart(id));
            self.later(0, Event::Resume(id));
        }
        self.last_number = Some(self.next_number);
        let until = self.now + HEALED_WITHIN;
        let is_well = self.go_on(until, World::is_well);
        assert!(is_well, "the cluster does not go on: {}", self.describe());
    }

    /// A number from after the storm has reached all members, and each removed server knows that it
    /// is removed, unless none of the members that it knew is left to tell it.
    fn is_well(&self) -> bool {
        let Some(number) = self.last_number else {
            return false;
        };
        let members = self.oracle.newest_members();
        let is_member_well = |member: &Member| {
            let machine = self.machines.get(member.id);
            let process = machine.and_then(|machine| machine.up.as_ref());
            let has = |it: &Process| it.log.numbers.last().is_some_and(|last| last.1 >= number);
            !member.votes.incoming && self.is_lost(member.id) || process.is_some_and(has)
        };
        let is_removed_well = |(id, machine): (NodeId, &Machine)| {
            let is_removed = |it: &Process| it.role == Role::Removed;
            let is_alone = || {
                let known = self.known_to(id);
                known.iter().all(|it| members.get(*it).is_none())
            };
            members.get(id).is_some() || machine.up.as_ref().is_none_or(is_removed) || is_alone()
        };
        members.list.iter().all(is_member_well) && self.machines.iter().all(is_removed_well)
    }

    fn describe(&self) -> String {
        let mut text = format!("members {:?}", self.oracle.newest_members());
        for (id, machine) in self.machines.iter() {
            text += &format!("\n{id:?} lost {}", machine.is_lost);
            if let Some(process) = &machine.up {
                let mut status = process.node.status();
                let reach = status
                    .members
                    .drain(..)
                    .map(|it| (it.member.id.0, it.progress));
                let reach: Vec<_> = reach.collect();
                text += &format!(" told {:?}: {status:?} {reach:?}", process.role);
            }
        }
        text
    }

    pub(in crate::histories) fn end(mut self) -> (u64, Counts) {
        self.oracle.end();
        for id in self.live() {
            let history = &self.oracle.history;
            let Some(process) = self.machines.get(id).and_then(|it| it.up.as_ref()) else {
                continue;
            };
            let numbered = history
                .iter()
                .zip(1..)
                .filter(|((_, number), _)| *number > 0);
            let upto = numbered.map(|((_, number), index)| (index, *number));
            let upto: Vec<_> = upto
                .take_while(|it| it.0 <= process.log.mark.index)
                .collect();
            assert_eq!(process.log.numbers, upto, "{id:?} has another log");
            self.counts.refused += process.node.status().refused;
        }
        (self.trace, self.counts)
    }
}
