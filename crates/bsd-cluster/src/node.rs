//! One node of a cluster: raft over the ledger. Pure: no sockets, no clock, no threads.
//!
//! A turn of the owner, in this order:
//!
//! 1. [`tick`](Node::tick) with the time, then [`step`](Node::step) for each message that came, and
//!    whatever is to be proposed, read or changed;
//! 2. [`outbox`](Node::outbox): a leader's messages, which may leave while its own disk syncs;
//! 3. [`persist`](Node::persist): one write, one sync; then the messages that say that something is
//!    durable here, and the entries that are committed;
//! 4. again from 2 while [`has_work`](Node::has_work).
//!
//! # What must stay true
//!
//! * No message leaves before its claims are durable: the vote, the term, the entries. Only a
//!   leader's entries may be ahead of its disk, and not in the turn in which its term is new.
//! * A change of the membership is durable before anything that follows from it leaves the node.
//! * Entries are handed out once each between two starts, in order, without gaps.
//! * No message makes the node panic, no matter who sends it: `guard.rs`.
//! * A ledger that fails makes the node silent for ever: nothing is sent, nothing handed out. One
//!   that is full makes it silent until a later `persist` succeeds.

mod change;
mod clock;
mod guard;
mod membership;
mod owner;
mod raft_logger;
mod refusals;
mod room;
mod set_back;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod timer;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{ProgressState, RawNode, Ready, StateRole};

use self::change::is_joint;
pub use self::change::{Change, Refused};
use self::clock::LeaderClock;
pub use self::owner::{Committed, Mark, NodeError, NotLeader, Out, Role, Settings, SnapshotWanted};
use self::refusals::Refusals;
use self::set_back::SetBack;
pub use self::start::install;
use self::start::{can_begin, start};
pub use self::status::{Peer, Reach, Status};
use self::timer::Timer;
use self::view::View;
use super::ledger::{Base, HardState, Ledger, LedgerError};
use super::member::{Members, NodeId};
use bsd::types::{Now, SECOND_NS, Time};

/// The most bytes that one proposal may have.
pub const DATA_SIZE_MAX: usize = 16 << 20;
/// Messages with entries that a follower need not have answered before it gets the next one.
const IN_FLIGHT_MAX: usize = 8;
/// Bytes of entries in a message, or a single larger one.
const MESSAGE_SIZE: u64 = 1 << 20;
/// Confirmations of reads under way; more wait, and share one.
const READS_MAX: usize = 8;
/// Who lacks no more entries than this has caught up.
const LAG_MAX: u64 = 1_000;
/// Who answered within this time can be reached.
const REACHED_NS: i64 = SECOND_NS;

/// How far the work on what raft wants done has come.
enum Held {
    Nothing,
    /// To be written to the ledger; nothing is stepped before that is durable.
    Ready {
        ready: Box<Ready>,
        is_appended: bool,
    },
    /// Done, but the ledger has to remember a new membership first.
    Out(Out),
    /// A snapshot is being installed.
    Install,
}

/// Reads that wait for a confirmation, by number.
#[derive(Default)]
struct Reads {
    /// The last one wanted.
    wanted: u64,
    /// The last one that was asked for.
    asked: u64,
}

/// One node. See the [module](self).
pub struct Node {
    raft: RawNode<View>,
    id: NodeId,
    settings: Settings,
    timer: Timer,
    held: Held,
    /// The last entry that was handed out.
    handed: Mark,
    /// The role that the owner knows.
    told: Role,
    is_removed: bool,
    reads: Reads,
    /// When a peer last answered this leader.
    heard: BTreeMap<NodeId, Time>,
    /// When a peer last said anything that was taken.
    heard_of: BTreeMap<NodeId, Time>,
    refusals: Refusals,
    set_back: SetBack,
    /// This node can take what a put needs.
    has_room: bool,
    /// Who answered last that it cannot.
    short: BTreeSet<NodeId>,
    /// Whose connection broke after that.
    lost: BTreeSet<NodeId>,
    snapshots: Vec<SnapshotWanted>,
    /// Time of the clocks in this turn.
    clock: Now,
    leader_clock: LeaderClock,
}

impl Node {
    /// A node that begins where the log ends: `applied` is the last entry that is durable in it.
    ///
    /// `installed` is the base of the snapshot that the log began with, if it did; a crash may have
    /// come before [`snapshot_installed`](Self::snapshot_installed) had told the ledger of it.
    /// `seed` determines the times that the node waits for a leader. The membership that the ledger
    /// begins with must have the node itself. Durable on return, if anything changed.
    pub fn open(
        mut ledger: Ledger,
        applied: Mark,
        installed: Option<&Base>,
        seed: u64,
        now: Time,
        settings: Settings,
    ) -> Result<Node, NodeError> {
        let id = ledger.identity().node;
        if let Some(base) = installed {
            install(&mut ledger, base)?;
        }
        let is_removed = ledger.members().1.get(id).is_none();
        Ok(Node {
            raft: start(ledger, applied, settings)?,
            id,
            settings,
            timer: Timer::new(seed, now),
            held: Held::Nothing,
            handed: applied,
            told: Role::Follows(None),
            is_removed,
            reads: Reads::default(),
            heard: BTreeMap::new(),
            heard_of: BTreeMap::new(),
            refusals: Refusals::default(),
            set_back: SetBack::default(),
            has_room: true,
            short: BTreeSet::new(),
            lost: BTreeSet::new(),
            snapshots: Vec::new(),
            clock: Now::new(now, 0),
            leader_clock: LeaderClock::default(),
        })
    }

    /// Takes a message of a peer. What could not be true is refused, and counted. While something
    /// could not be persisted, all are: raft repeats them.
    pub fn step(&mut self, message: Message) {
        let calls_removed = self.is_removed && message.get_msg_type() == MessageType::MsgTimeoutNow;
        if self.is_silent() || calls_removed {
            return;
        }
        let raft = &mut self.raft.raft;
        let (from, now) = (NodeId(message.from), self.timer.now);
        if let Err(why) = guard::check(raft, &message) {
            self.refusals.note_refused(from, &why, now);
            return;
        }
        self.refusals.note_taken(from, now);
        self.set_back.note(raft, &message);
        self.note_clock(&message);
        let raft = &mut self.raft.raft;
        self.heard_of.insert(from, now);
        let is_answer = matches!(
            message.get_msg_type(),
            MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse
        );
        if is_answer && message.term == raft.term {
            self.heard.insert(from, now);
            self.lost.remove(&from);
            room::take(&message, &mut self.short);
        }
        // An error says that raft had no use for it.
        let _ = self.raft.step(message);
    }

    /// Lets time pass. To be called first in each turn, and at [`next_deadline`](Self::next_deadline).
    pub fn tick(&mut self, now: Time) {
        let raft = &mut self.raft.raft;
        let ticks = self.timer.take(now, raft.state);
        if self.is_silent() {
            return;
        }
        if self.is_removed {
            // It asks for no vote, but gives its own: members that do not know yet that it is none may
            // need it. Its leader leads others, and is nothing to wait for.
            self.raft.raft.leader_id = raft::INVALID_ID;
            return;
        }
        for _ in 0..ticks {
            self.timer.tick(&mut self.raft.raft);
        }
        self.go_on_changing();
    }

    /// The newest term that this node knows.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.raft.raft.term
    }

    /// When [`tick`](Self::tick) has to be called, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        self.timer.next(&self.raft.raft)
    }

    /// Whether proposals are taken now: the node leads, transfers its leadership to no other, and is not
    /// silent.
    #[must_use]
    pub fn takes_proposals(&self) -> bool {
        self.is_leading() && self.raft.raft.lead_transferee.is_none() && !self.is_silent()
    }

    /// Appends an entry, and returns its index. Not durable, not sent. `data` is not empty and has
    /// at most [`DATA_SIZE_MAX`] bytes; an error if not [`takes_proposals`](Self::takes_proposals).
    pub fn propose(&mut self, data: Bytes) -> Result<u64, NotLeader> {
        if !self.takes_proposals() || data.is_empty() || data.len() > DATA_SIZE_MAX {
            return Err(NotLeader);
        }
        let entry = Entry {
            data,
            ..Entry::default()
        };
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.id.0;
        message.set_entries(vec![entry].into());
        self.raft.step(message).map_err(|_| NotLeader)?;
        Ok(self.raft.raft.raft_log.last_index())
    }

    /// The last entry that this node has, committed or not.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.raft.raft.raft_log.last_index()
    }

    /// Asks whether this node still led when it was asked, and returns the number of the question.
    ///
    /// [`Out::reads_confirmed`] tells when it is known: a majority was asked after this call, and
    /// no one led in a later term. A change of the role before that is a no.
    pub fn confirm_read(&mut self) -> u64 {
        self.reads.wanted += 1;
        self.reads.wanted
    }

    /// Begins a change of the membership. It is over when [`status`](Self::status) shows it.
    pub fn change(&mut self, change: Change) -> Result<(), Refused> {
        if !self.is_leading() {
            return Err(Refused::NotLeader(known(self.raft.raft.leader_id)));
        }
        if self.is_changing() || self.is_silent() || is_joint(self.members().1) {
            return Err(Refused::Busy);
        }
        let step = self.plan(change)?;
        self.propose_step(&step)
    }

    /// Transfer leadership to another voter that was heard of within the last second, if this node
    /// leads. `false`: nothing was begun. May fail later: the node leads on then.
    pub fn transfer(&mut self, to: NodeId) -> bool {
        let is_heir = to != self.id && self.votes(to) && self.is_reached(to);
        let may = is_heir && self.takes_proposals();
        if may {
            self.raft.transfer_leader(to.0);
        }
        may
    }

    /// Transfer leadership to a voter that answers: to one that has room for puts and nearly all
    /// entries, or else to the one that has most of them. `None`: no voter answers, or this node does not
    /// lead, or already transfers it.
    pub fn hand_over(&mut self) -> Option<NodeId> {
        let to = self.successor()?;
        self.transfer(to).then_some(to)
    }

    /// Messages that may leave before the node's own disk has synced. [`persist`](Self::persist)
    /// must follow, with nothing between them.
    pub fn outbox(&mut self) -> Vec<Message> {
        if self.is_silent() {
            return Vec::new();
        }
        self.take_ready();
        let HardState { term, vote, .. } = self.ledger().hard_state();
        let Held::Ready { ready, .. } = &mut self.held else {
            return Vec::new();
        };
        // The only voter leads without asking anyone: its term may not be durable yet, and if it
        // was lost, other entries would be made in the same one.
        let is_durable = ready
            .hs()
            .is_none_or(|hs| (hs.term, hs.vote) == (term, vote));
        let messages = match is_durable {
            true => ready.take_messages(),
            false => Vec::new(),
        };
        self.sort_out(messages)
    }

    /// Makes durable what raft wants to be, then gives out what follows from it. Durable on return.
    ///
    /// After an error nothing was given out; of a full disk, it may be called again.
    pub fn persist(&mut self) -> Result<Out, LedgerError> {
        self.take_ready();
        if let Some(failure) = self.raft.store().failure() {
            return Err(LedgerError::Failed(failure));
        }
        let mut out = self.finish()?;
        if let Some(role) = Some(self.role()).filter(|role| *role != self.told) {
            self.told = role;
            out.role = Some(role);
        }
        out.snapshots = std::mem::take(&mut self.snapshots);
        Ok(out)
    }

    /// Whether [`outbox`](Self::outbox) and [`persist`](Self::persist) have something to do, or to
    /// say: an error.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.is_silent() || self.raft.has_ready() || self.may_ask() || self.role() != self.told
    }

    /// The owner has applied the entries up to this one.
    pub fn applied(&mut self, index: u64) {
        let index = index.min(self.handed.index);
        if index > self.raft.raft.raft_log.applied {
            self.raft.advance_apply_to(index);
        }
    }

    /// The owner's log has the entries up to this one, durably, and would say so after a start: the
    /// ledger may forget them.
    pub fn durable_applied(&mut self, index: u64) -> Result<(), LedgerError> {
        let index = index.min(self.raft.raft.raft_log.applied);
        if self.is_silent() || index <= self.raft.store().durable.index {
            return Ok(());
        }
        let keep_bytes = self.settings.keep_bytes;
        let view = self.raft.mut_store();
        if let Some(term) = view.ledger().term(index) {
            view.durable = Mark { index, term };
            return match view.ledger_mut().discard(index, keep_bytes) {
                // It goes with the next one.
                Err(LedgerError::Full(_)) => Ok(()),
                discarded => discarded,
            };
        }
        Ok(())
    }

    /// The disk is full: the ledger gives up a file that it keeps for followers that are behind, if it
    /// has one, for they get a snapshot; or most of what is set aside for its next file. The owner's
    /// log has the entries up to `index`, durably. Returns whether there is more room. It may be called
    /// whatever `persist` has returned.
    pub(crate) fn give_room(&mut self, index: u64) -> Result<bool, LedgerError> {
        let index = index.min(self.raft.raft.raft_log.applied);
        let view = self.raft.mut_store();
        if index > view.durable.index
            && let Some(term) = view.ledger().term(index)
        {
            view.durable = Mark { index, term };
        }
        let durable = view.durable.index;
        match view.ledger_mut().give_up_oldest(durable) {
            Ok(false) | Err(LedgerError::Full(_)) => Ok(view.ledger_mut().cut_spare()),
            gone => gone,
        }
    }

    /// True if the ledger has no space set aside for its next file, because the disk is full.
    #[must_use]
    pub(crate) fn lacks_spare(&self) -> bool {
        self.ledger().lacks_spare()
    }

    /// There may be room again for the ledger's next file.
    pub(crate) fn try_spare(&mut self) {
        self.ledger_mut().try_spare();
    }

    /// Base of a snapshot that has the log up to this entry. `None`: no snapshot can be made there,
    /// because the membership is newer; make one of a longer log.
    #[must_use]
    pub fn base_at(&self, index: u64) -> Option<Base> {
        let (changed, members) = self.ledger().members();
        let is_known = changed <= index && index <= self.handed.index;
        let term = self.ledger().term(index).filter(|_| is_known)?;
        Some(Base {
            index,
            term,
            members: members.clone(),
        })
    }

    /// How the snapshot that a member wanted has fared: it has everything up to this entry now,
    /// also if it said that it had that much before; or it failed. Must follow each
    /// [`SnapshotWanted`]: nothing is sent to the member before. If it needs another, that is asked
    /// for again.
    pub fn snapshot_sent(&mut self, to: NodeId, installed: Option<u64>) {
        let raft = &mut self.raft.raft;
        let committed = raft.raft_log.committed;
        let Some(progress) = raft.mut_prs().get_mut(to.0) else {
            return;
        };
        if progress.state == ProgressState::Snapshot {
            match installed {
                Some(index) => {
                    let most = progress.pending_snapshot.max(index.min(committed));
                    progress.pending_snapshot = most;
                }
                None => progress.snapshot_failure(),
            }
            progress.become_probe();
            // Wait for a sign of life before anything is sent to it.
            progress.pause();
        }
    }

    /// Whether a snapshot with this base may be installed: it is of use, and does not contradict
    /// what this node knows. To be asked before anything is done with a snapshot.
    #[must_use]
    pub(crate) fn accepts_snapshot(&self, base: &Base) -> bool {
        base.index > self.handed.index && can_begin(self.ledger(), base)
    }

    /// A snapshot is in the log, durably: go on from there. Does nothing if it is not
    /// accepted.
    ///
    /// Durable on return. After an error it must be called again, or the node stays silent.
    pub fn snapshot_installed(&mut self, base: &Base) -> Result<(), NodeError> {
        if !self.accepts_snapshot(base) {
            return Ok(());
        }
        self.held = Held::Install;
        install(self.ledger_mut(), base)?;
        self.restart(Mark {
            index: base.index,
            term: base.term,
        })
    }

    /// A snapshot is about to be installed, which needs room in the ledger: have it now.
    pub(crate) fn prepare_install(&mut self) -> Result<(), LedgerError> {
        self.ledger_mut().set_aside()
    }

    /// A peer says that its membership, of this entry, does not have this node. If that is the newer
    /// one, the node has been removed: ids never come back. A start forgets it, and is told again; so
    /// does a snapshot that has it as a member, of one that is being added while two believe to lead.
    pub fn left_out(&mut self, members_index: u64) {
        if members_index > self.ledger().members().0 && !self.is_elected() {
            self.is_removed = true;
        }
    }

    /// A message from this peer, or to it, is under way and moves. The peer lives, but is heard of
    /// only when the message has arrived: on a slow network a large one takes longer than an
    /// election. It only puts off elections; the choice of the leader, and of the committed
    /// entries, does not depend on it.
    pub fn moves(&mut self, peer: NodeId) {
        let raft = &mut self.raft.raft;
        match raft.state {
            StateRole::Leader => {
                if let Some(progress) = raft.mut_prs().get_mut(peer.0) {
                    progress.recent_active = true;
                }
            }
            StateRole::Follower if raft.leader_id == peer.0 => raft.election_elapsed = 0,
            _ => {}
        }
    }

    /// This peer cannot be reached: messages sent to it are probably lost. It counts as reached
    /// when it answers again.
    pub fn unreachable(&mut self, peer: NodeId) {
        self.lost.insert(peer);
        let progress = self.raft.raft.mut_prs().get_mut(peer.0);
        if let Some(progress) = progress.filter(|it| it.state == ProgressState::Replicate) {
            progress.become_probe();
        }
    }

    /// The members, and the entry that made them so: the last change that was handed out.
    #[must_use]
    pub fn members(&self) -> (u64, &Members) {
        self.ledger().members()
    }

    fn ledger(&self) -> &Ledger {
        self.raft.store().ledger()
    }

    fn ledger_mut(&mut self) -> &mut Ledger {
        self.raft.mut_store().ledger_mut()
    }

    /// Something is not durable that raft believes to be under way.
    fn is_silent(&self) -> bool {
        !matches!(self.held, Held::Nothing) || self.raft.store().has_failed()
    }

    fn is_elected(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    /// Elected, and an entry of this term was handed out: so was everything before it.
    fn is_leading(&self) -> bool {
        self.is_elected() && self.handed.term == self.raft.raft.term
    }

    fn role(&self) -> Role {
        let raft = &self.raft.raft;
        match self.is_leading() {
            true => Role::Leads(raft.term),
            false if self.is_removed => Role::Removed,
            false => Role::Follows(known(raft.leader_id).filter(|id| *id != self.id)),
        }
    }

    fn take_ready(&mut self) {
        if self.is_silent() {
            return;
        }
        self.ask();
        if self.raft.has_ready() {
            let ready = Box::new(self.raft.ready());
            let is_appended = false;
            self.held = Held::Ready { ready, is_appended };
        }
    }

    fn may_ask(&self) -> bool {
        let is_wanted = self.reads.wanted > self.reads.asked;
        is_wanted && self.is_leading() && self.raft.raft.pending_read_count() < READS_MAX
    }

    /// All reads that wait share the next question.
    fn ask(&mut self) {
        if self.may_ask() {
            self.reads.asked = self.reads.wanted;
            self.raft
                .read_index(self.reads.asked.to_le_bytes().to_vec());
        }
    }

    fn finish(&mut self) -> Result<Out, LedgerError> {
        if let Held::Ready { ready, is_appended } = &mut self.held {
            let ledger = self.raft.mut_store().ledger_mut();
            if !*is_appended {
                ledger.append(ready.entries());
                if let Some(hs) = ready.hs() {
                    let (term, vote, commit) = (hs.term, hs.vote, hs.commit);
                    ledger.set_hard_state(HardState { term, vote, commit });
                }
                *is_appended = true;
            }
            ledger.commit()?;
        }
        match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Ready { ready, .. } => {
                let (changed, _) = self.members();
                let out = self.release(*ready);
                if self.members().0 == changed {
                    return Ok(out);
                }
                self.held = Held::Out(out);
            }
            held => self.held = held,
        }
        if let Held::Out(_) = self.held {
            self.ledger_mut().commit()?;
        }
        match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Out(out) => Ok(out),
            held => {
                self.held = held;
                Ok(Out::default())
            }
        }
    }

    /// Output of a Ready that is durable.
    fn release(&mut self, mut ready: Ready) -> Out {
        let mut messages = ready.take_messages();
        messages.extend(ready.take_persisted_messages());
        let mut committed = ready.take_committed_entries();
        let reads = ready.take_read_states().into_iter();
        let numbers = reads.filter_map(|read| read.request_ctx.try_into().ok());
        let reads_confirmed = numbers.map(u64::from_le_bytes).max();
        let mut light = self.raft.advance_append(ready);
        messages.extend(light.take_messages());
        committed.extend(light.take_committed_entries());
        let hs = self.raft.raft.hard_state();
        let (term, vote, commit) = (hs.term, hs.vote, hs.commit);
        self.ledger_mut()
            .set_hard_state(HardState { term, vote, commit });
        Out {
            messages: self.sort_out(messages),
            committed: committed
                .into_iter()
                .map(|entry| self.hand_out(entry))
                .collect(),
            reads_confirmed,
            ..Out::default()
        }
    }

    fn hand_out(&mut self, entry: Entry) -> Committed {
        let (index, term) = (entry.index, entry.term);
        self.handed = Mark { index, term };
        let data = match entry.get_entry_type() {
            EntryType::EntryNormal => entry.data,
            _ => {
                self.apply_step(&entry);
                Bytes::new()
            }
        };
        let mark = self.handed;
        Committed { mark, data }
    }

    /// raft's message of a snapshot is for the owner: the snapshot is streamed beside.
    fn sort_out(&mut self, mut messages: Vec<Message>) -> Vec<Message> {
        messages.retain_mut(|message| {
            room::put(message, self.has_room);
            clock::put(message, self.clock.wall_ns);
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            if is_snapshot {
                self.snapshots.push(SnapshotWanted {
                    to: NodeId(message.to),
                    index: message.get_snapshot().get_metadata().index,
                });
            }
            !is_snapshot
        });
        messages
    }
}

/// raft's way to say no one is 0.
fn known(id: u64) -> Option<NodeId> {
    (id != raft::INVALID_ID).then_some(NodeId(id))
}
