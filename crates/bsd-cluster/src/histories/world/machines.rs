//! The machines, by the ids of their nodes.

use super::Machine;
use crate::member::NodeId;

/// The ids are small numbers, and some have no machine.
#[derive(Default)]
pub(super) struct Machines(Vec<Option<Machine>>);

impl Machines {
    pub(super) fn insert(&mut self, id: NodeId, machine: Machine) {
        let at = id.0 as usize;
        self.0.resize_with(self.0.len().max(at + 1), || None);
        self.0[at] = Some(machine);
    }

    pub(super) fn get(&self, id: NodeId) -> Option<&Machine> {
        self.0.get(id.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> Option<&mut Machine> {
        self.0.get_mut(id.0 as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Machine)> {
        let ids = (0..).map(NodeId);
        let machines = ids.zip(&self.0);
        machines.filter_map(|(id, machine)| Some((id, machine.as_ref()?)))
    }

    pub(super) fn ids(&self) -> Vec<NodeId> {
        self.iter().map(|(id, _)| id).collect()
    }
}
