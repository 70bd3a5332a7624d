//! The member's part of a turn of the server.

use mio::event::Event;

use super::Member;
use crate::connection::Ending;
use crate::{RunError, Server};
use bsd::types::{Now, Time};
use bsd_cluster::replica::{ReplicaError, Standing};

impl From<ReplicaError> for RunError {
    fn from(error: ReplicaError) -> RunError {
        match error {
            ReplicaError::Store(error) => RunError::Store(error),
            other => RunError::Replica(other),
        }
    }
}

impl Server {
    /// Be a member of a cluster from now on.
    #[must_use]
    pub fn one_of_several(mut self, mut member: Member) -> Server {
        member.show(self.pulse.clone(), self.manager.heart(self.clock));
        self.forward
            .leader_is(member.leader(&self.core.engine), self.clock.now().mono);
        self.member = Some(Box::new(member));
        self.certify_links();
        self.show_certificates();
        self
    }

    /// Clients that are passed on to another member, and those that others pass on, are encrypted with the
    /// certificates of the members.
    pub(crate) fn certify_links(&mut self) {
        if let Some(member) = &self.member
            && let Some(tls) = member.tls()
        {
            self.forward.set_tls(tls.clone());
            member.desk.certify(tls.forwarder());
            if let Some(of_clients) = self.gate.tls() {
                of_clients.show_to_members(tls.signed());
            }
        }
    }

    pub(crate) fn is_of_peer(&mut self, event: &Event) -> bool {
        let member = self.member.as_mut();
        member.is_some_and(|member| member.on_event(event))
    }

    /// The member's turn begins; whether requests of clients may be run in it.
    pub(crate) fn begin_member_turn(&mut self) -> Result<bool, RunError> {
        let now = self.core.now;
        let Some(member) = &mut self.member else {
            return Ok(true);
        };
        let mut standing = member.begin_turn(&mut self.core.engine, now)?;
        if standing == Standing::LostLeadership {
            self.close_all();
            standing = Standing::Follows;
            if let Some(member) = &mut self.member {
                member.step_down(&mut self.core.engine, now)?;
            }
        }
        if matches!(standing, Standing::Serves | Standing::Pauses)
            && let Some(member) = &self.member
        {
            self.core.acknowledge(member.acknowledged());
            self.send();
        }
        if let Some(member) = &mut self.member {
            self.forward
                .leader_is(member.leader(&self.core.engine), now.mono);
            member.note_forwarded(self.forward.count());
        }
        Ok(standing == Standing::Serves)
    }

    /// Whether the server stops at once: another member leads, and there is no queue that follows.
    pub(crate) fn is_over(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.is_over())
    }

    /// All clients at once, with what they have not been told: it may not have happened.
    fn close_all(&mut self) {
        self.closes_left = usize::MAX;
        let clients = 0..self.connections.len();
        for client in clients.map(|at| bsd::types::ClientId(at as u32)) {
            if self.connections[client.0 as usize].is_some() {
                self.core.outputs.discard(client);
                self.end(client, Ending::NoLead);
            }
        }
        self.depart();
        self.core.desk.start_over();
    }

    /// Whether a stop that was asked for, now or before, may be now.
    pub(crate) fn may_stop(&mut self, is_asked: bool) -> bool {
        match &mut self.member {
            Some(member) => member.may_stop(is_asked, &self.core.engine, self.core.now.mono),
            None => is_asked,
        }
    }

    pub(crate) fn may_serve(&self) -> bool {
        let member = self.member.as_ref();
        member.is_none_or(|member| member.serves())
    }

    /// A queue that follows has no time of its own, and one that waits for a quiet moment waits for
    /// others.
    pub(crate) fn deadline_of_engine(&self, now: Now) -> Option<Time> {
        self.core
            .engine
            .next_deadline(now)
            .filter(|_| self.may_serve())
    }

    pub(crate) fn tick_and_commit(&mut self) -> Result<(), RunError> {
        let Some(member) = &mut self.member else {
            return Ok(self.core.tick_and_commit(&self.clock, &self.pulse)?);
        };
        member.tick_and_commit(&mut self.core)?;
        self.core.acknowledge(member.acknowledged());
        Ok(())
    }
}
