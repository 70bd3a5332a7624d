//! Whether the cluster drains. The leader decides it, all members know it, and the next leader goes on
//! with it.
//!
//! It is no part of the log. Each member tells all others what it knows, and believes its leader. So it
//! outlives a leader, as soon as its successor has heard of it; it ends with the last member, as it ends
//! with a server that is alone.

use std::collections::BTreeMap;

use crate::peers::Peers;
use bsd::engine::Engine;
use bsd_cluster::member::{Members, NodeId};
use bsd_cluster::node::Role;
use bsd_cluster::replica::Replica;

/// This member's knowledge of the draining.
#[derive(Debug, Default)]
pub(super) struct Draining {
    /// No jobs are taken; `None`: no one has led since this member started, as far as it has heard.
    known: Option<bool>,
    /// Last word of each member.
    said: BTreeMap<NodeId, bool>,
}

impl Draining {
    /// A peer says what it knows.
    pub(super) fn hear(&mut self, from: NodeId, drains: bool, members: &Members) {
        self.said.retain(|peer, _| members.get(*peer).is_some());
        if members.get(from).is_some() {
            self.said.insert(from, drains);
        }
    }

    /// A queue that leads says how it is; one that follows is as its leader says, and so is what it
    /// begins to lead with.
    pub(super) fn agree(&mut self, replica: &Replica, peers: &mut Peers, engine: &mut Engine) {
        self.known = match replica.role(engine) {
            Role::Leads(_) if replica.leads(engine) => Some(engine.is_draining()),
            // It was not here when its predecessor said so.
            Role::Leads(_) => self
                .known
                .or(Some(self.said.values().any(|drains| *drains))),
            Role::Follows(Some(leader)) => self.said.get(&leader).copied().or(self.known),
            Role::Follows(None) | Role::Removed => self.known,
        };
        let drains = self.known.unwrap_or(false);
        if engine.is_following() && engine.is_draining() != drains {
            match drains {
                true => engine.drain(),
                false => engine.undrain(),
            }
        }
        peers.set_drains(drains);
    }
}
