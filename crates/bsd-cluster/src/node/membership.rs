//! How the membership changes: what a leader begins, and what an entry does on every node.
//!
//! One change at a time, each an entry. It holds from when the entry is handed out, which is when it
//! is committed; the ledger remembers it with the entry's index, so that an entry that is handed out
//! again after a start changes nothing again.

use raft::StateRole;
use raft::eraftpb::{Entry, EntryType};

use super::change::{Change, Refused, Step, is_joint};
use super::{LAG_MAX, Node, REACHED_NS};
use crate::member::{MEMBERS_MAX, Member, Members, NodeId, Votes};
use bsd::types::Time;

impl Node {
    /// A change, or a leadership transfer, is under way.
    pub(super) fn is_changing(&self) -> bool {
        let raft = &self.raft.raft;
        self.is_elected() && (raft.has_pending_conf() || raft.lead_transferee.is_some())
    }

    pub(super) fn votes(&self, id: NodeId) -> bool {
        let member = self.members().1.get(id);
        member.is_some_and(|member| member.votes.incoming)
    }

    /// The entry that a change needs, if it may be.
    pub(super) fn plan(&mut self, change: Change) -> Result<Step, Refused> {
        let (_, members) = self.members();
        let member = |id| members.get(id).cloned().ok_or(Refused::NoSuchMember);
        let learner = |id| member(id).and_then(|it| self.has_caught_up(&it).map(|()| it));
        match change {
            Change::Add { id, .. } if members.get(id).is_some() => Err(Refused::IsMember),
            Change::Add { .. } if members.list.len() >= MEMBERS_MAX => Err(Refused::TooMany),
            Change::Add { id, .. } if id.0 == 0 => Err(Refused::NoSuchMember),
            Change::Add { id, peer, client } => Ok(Step::Learner(Member {
                id,
                peer,
                client,
                votes: Votes::default(),
            })),
            Change::Promote(id) => Ok(Step::Voter(learner(id)?)),
            Change::Move { id, peer, client } => {
                let is_voter = member(id)?.votes.incoming;
                let member = Member {
                    peer,
                    client,
                    ..member(id)?
                };
                Ok(match is_voter {
                    true => Step::Voter(member),
                    false => Step::Learner(member),
                })
            }
            Change::Remove(id) => {
                let votes = member(id)?.votes.incoming;
                if votes {
                    self.goes_on_without(id, None)?;
                }
                self.hand_over_if_self(id)?;
                Ok(Step::Remove(id))
            }
            Change::Replace { old, new } => {
                if !member(old)?.votes.incoming {
                    return Err(Refused::NoSuchMember);
                }
                learner(new)?;
                self.goes_on_without(old, Some(new))?;
                self.hand_over_if_self(old)?;
                Ok(Step::Replace(old, new))
            }
        }
    }

    pub(super) fn is_reached(&self, id: NodeId) -> bool {
        let is_recent = |heard: &Time| self.timer.now.since(*heard) <= REACHED_NS;
        let answers = !self.lost.contains(&id) && self.heard.get(&id).is_some_and(is_recent);
        id == self.id || answers
    }

    /// It is a learner that may vote.
    fn has_caught_up(&self, member: &Member) -> Result<(), Refused> {
        if member.votes != Votes::default() {
            return Err(Refused::NoSuchMember);
        }
        match self.is_close(member.id) {
            true => Ok(()),
            false => Err(Refused::NotCaughtUp),
        }
    }

    /// Whether it answers, and has nearly all entries.
    fn is_close(&self, id: NodeId) -> bool {
        let (matched, last) = (self.matched(id), self.raft.raft.raft_log.last_index());
        let lag = last.saturating_sub(matched);
        matched > 0 && lag <= LAG_MAX && self.is_reached(id)
    }

    fn matched(&self, id: NodeId) -> u64 {
        self.raft.raft.prs().get(id.0).map_or(0, |it| it.matched)
    }

    /// Of those who vote afterwards a majority can be reached now.
    fn goes_on_without(&self, old: NodeId, new: Option<NodeId>) -> Result<(), Refused> {
        let list = self.members().1.list.iter();
        let voters = list
            .filter(|member| member.votes.incoming)
            .map(|member| member.id);
        let voters: Vec<_> = voters.filter(|id| *id != old).chain(new).collect();
        let reached = voters.iter().filter(|id| self.is_reached(**id)).count();
        match reached > voters.len() / 2 {
            true => Ok(()),
            false => Err(Refused::NoMajority),
        }
    }

    /// A leader does not remove itself: the voter that has most takes over.
    fn hand_over_if_self(&mut self, id: NodeId) -> Result<(), Refused> {
        if id != self.id {
            return Ok(());
        }
        let to = self.hand_over().ok_or(Refused::NoMajority)?;
        Err(Refused::HandsOver(to))
    }

    /// The voter that has most of the entries, of those that answer; first, one that has room.
    pub(super) fn successor(&self) -> Option<NodeId> {
        let list = self.members().1.list.iter();
        let others = list.filter(|it| it.votes.incoming && it.id != self.id);
        let reached = others.map(|it| it.id).filter(|id| self.is_reached(*id));
        reached.max_by_key(|id| (self.is_fit(*id), self.matched(*id)))
    }

    /// Whether another voter could lead at once, and has room for puts.
    pub(crate) fn has_fit_successor(&self) -> bool {
        self.successor().is_some_and(|id| self.is_fit(id))
    }

    fn is_fit(&self, id: NodeId) -> bool {
        self.is_close(id) && !self.is_short(id)
    }

    pub(super) fn propose_step(&mut self, step: &Step) -> Result<(), Refused> {
        let proposed = self.raft.propose_conf_change(step.encode(), step.to_raft());
        // raft puts an empty entry in the place of a change that it does not want.
        let entries = self.raft.raft.raft_log.unstable_entries();
        let is_there = entries
            .last()
            .is_some_and(|entry| entry.get_entry_type() == EntryType::EntryConfChangeV2);
        match proposed.is_ok() && is_there {
            true => Ok(()),
            false => Err(Refused::Busy),
        }
    }

    /// A leader ends what a leader has begun, itself or one before it: a joint membership is left,
    /// and a learner that has caught up votes.
    pub(super) fn go_on_changing(&mut self) {
        if !self.is_leading() || self.is_changing() || self.is_silent() {
            return;
        }
        let members = self.members().1;
        let step = match is_joint(members) {
            true => Some(Step::Leave),
            false if !self.settings.promote => None,
            false => {
                let mut list = members.list.iter();
                let learner = list.find(|it| self.has_caught_up(it).is_ok());
                learner.cloned().map(Step::Voter)
            }
        };
        if let Some(step) = step {
            let _ = self.propose_step(&step);
        }
    }

    /// Does what a committed entry says about the membership, once.
    pub(super) fn apply_step(&mut self, entry: &Entry) {
        let (changed, before) = self.ledger().members();
        if entry.index <= changed {
            return;
        }
        let before = before.clone();
        let Some(step) = Step::decode(&entry.context) else {
            // Refused when it came, and never proposed here.
            tracing::error!("entry {} has a change that is none", entry.index);
            return;
        };
        let after = match self.raft.apply_conf_change(&step.to_raft()) {
            Ok(conf) => step.members(&before, &conf),
            Err(error) => {
                // All nodes have the same membership before this entry, and refuse it alike.
                tracing::warn!("the change of entry {} was not done: {error}", entry.index);
                before
            }
        };
        self.take_part(&after);
        self.ledger_mut().members_applied(entry.index, after);
    }

    /// raft has the membership that the ledger remembers.
    #[cfg(test)]
    pub(crate) fn is_as_remembered(&self) -> bool {
        let sorted = |mut conf: raft::eraftpb::ConfState| {
            for ids in [
                &mut conf.voters,
                &mut conf.learners,
                &mut conf.voters_outgoing,
                &mut conf.learners_next,
            ] {
                ids.sort_unstable();
            }
            conf
        };
        let known = super::change::conf_state(self.members().1).map(sorted);
        known == Some(sorted(self.raft.raft.prs().conf().to_conf_state()))
    }

    /// Who votes no longer does not lead: raft would go on, and then panic.
    fn take_part(&mut self, members: &Members) {
        self.is_removed = members.get(self.id).is_none();
        self.heard.retain(|id, _| members.get(*id).is_some());
        self.lost.retain(|id| members.get(*id).is_some());
        self.heard_of.retain(|id, _| members.get(*id).is_some());
        let raft = &mut self.raft.raft;
        if !raft.promotable() && raft.state != StateRole::Follower {
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
    }
}
