//! Who archives the log of the member that leads, and when that is told to begin and to end.
//!
//! Only committed changes are in a log, so what is archived is never taken back when another member
//! leads. Logs of members have the same jobs and other bytes: who leads next writes a part of the archive
//! of its own, which begins with all that there is.

use std::sync::Arc;

use tracing::{info, warn};

use super::Member;
use super::desk::Unarchived;
use bsd::engine::Engine;
use bsd::storage::Trail;
use bsd_cluster::member::{ClusterId, NodeId};
use bsd_cluster::node::Role;

/// Archives the log of a member while that leads. It is told by the loop, which it must not hold up.
pub trait Archivist: Send {
    /// This member of this cluster leads in this term: the trails to which its log is to be published, one
    /// of each archive.
    fn lead(&self, cluster: ClusterId, member: NodeId, term: u64) -> Vec<Arc<Trail>>;

    /// It leads no more, and lets its log go now.
    fn rest(&self);
}

/// The archivist of a member, and what it was told last.
#[derive(Default)]
pub(super) struct Archiving {
    archivist: Option<Box<dyn Archivist>>,
    /// The term in which it archives.
    term: Option<u64>,
    /// It was told that nothing is archived.
    told: Option<Unarchived>,
}

impl Archiving {
    pub(super) fn by(archivist: Option<Box<dyn Archivist>>) -> Archiving {
        Archiving {
            archivist,
            ..Archiving::default()
        }
    }

    /// Say once that nothing is archived because of who leads, and once that this is over.
    pub(super) fn tell(&mut self, unarchived: Option<Unarchived>) {
        let told = std::mem::replace(&mut self.told, unarchived);
        match unarchived {
            Some(Unarchived { leader, other }) if told != unarchived => warn!(
                "nothing is archived: member {leader}, which leads, was started without --archive, and \
                 member {other} has one; start all members with the same --archive"
            ),
            None if told.is_some() => {
                info!("the member that leads has an archive, or none has one")
            }
            _ => {}
        }
    }

    /// The member leads in this term, or does not lead.
    fn follow(&mut self, term: Option<u64>, me: (ClusterId, NodeId), engine: &mut Engine) {
        let Some(archivist) = self.archivist.as_ref().filter(|_| self.term != term) else {
            return;
        };
        self.term = term;
        match term {
            Some(term) => engine.publish_to(archivist.lead(me.0, me.1, term)),
            None => archivist.rest(),
        }
    }
}

impl Member {
    /// Tell the archivist whether this member leads. Before requests of clients are run in a turn.
    pub(super) fn tell_archivist(&mut self, engine: &mut Engine) {
        let role = self
            .replica
            .as_ref()
            .map(|it| (it.leads(engine), it.role(engine)));
        let term = match role {
            Some((true, Role::Leads(term))) => Some(term),
            _ => None,
        };
        let me = (self.me.cluster, self.me.node);
        self.archiving.follow(term, me, engine);
    }

    /// Its log is about to be let go.
    pub(super) fn rest_archivist(&mut self, engine: &mut Engine) {
        let me = (self.me.cluster, self.me.node);
        self.archiving.follow(None, me, engine);
    }
}
