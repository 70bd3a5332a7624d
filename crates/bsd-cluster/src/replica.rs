//! A member's replica: it joins the node, which knows what is committed, and the queue, which knows what
//! that means.
//!
//! A turn of the owner's loop, with `engine` in its hands:
//!
//! 1. [`Replica::begin`]: time; messages of peers went to [`Replica::step`] before;
//! 2. requests of clients, if the replica [`Standing::Serves`] and no quiet moment is due;
//! 3. [`Replica::decide`]: the queue's own work, and what was decided becomes an entry;
//! 4. [`Replica::outbox`]: to be sent before the own disk syncs;
//! 5. [`Replica::persist`]: one write, one sync of the ledger; more to be sent;
//! 6. [`Replica::advance`]: committed entries go to the log;
//! 7. [`Replica::acknowledge`] says which replies may leave.
//!
//! # What must stay true
//!
//! * A queue leads only in one term, which its engine knows: [`Engine::leads_in`]. When that is over,
//!   or the others have not heard of the member for too long because its ledger had no room, it is
//!   dropped with what it held, and the log is opened again: [`Standing::LostLeadership`] asks for that.
//! * A reply waits for its turn: until a majority has every entry that was decided in that turn and
//!   before, and has confirmed since then that this node still led. A leader that was replaced hands
//!   out nothing.
//! * An entry is applied once: what the log has, by its stamp, is passed over.

mod error;
mod room;

use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::Message;

pub use self::error::ReplicaError;
use self::room::Room;
use super::ledger::{Base, LedgerError};
use super::member::{Members, NodeId};
use super::node::{Change, Committed, Node, Out, Refused, Role, SnapshotWanted, Status};
use bsd::ErrorClass;
use bsd::engine::{ApplyError, Engine, Follower, Options, ReplySink};
use bsd::storage::format::Stamp;
use bsd::storage::{Log, OpenError};
use bsd::types::{Now, Ticket, Time};

/// Bytes of entries that a follower applies in one turn, more or less by one entry.
const APPLIED_A_TURN: usize = 512 << 10;
/// A follower that has this many bytes of committed entries to apply takes no more for now.
const PENDING_MAX: usize = 64 << 20;
/// Cost of an entry beside its bytes.
const ENTRY_COST: usize = 64;

/// Rights of a member in this turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It follows: no client is served here.
    Follows,
    /// It leads, and clients are served.
    Serves,
    /// It leads, and the log needs a moment without requests.
    Pauses,
    /// It led, and does not any more: close all clients, then call [`Replica::step_down`].
    LostLeadership,
}

/// Until when the replies of a turn wait, beside those of the turns before it.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// This entry is committed. Anyone who could commit it still led after all questions up to this one.
    Committed(u64, u64),
    /// This question is answered, and this entry is committed: the last one that was decided before.
    Confirmed(u64, u64),
}

#[derive(Debug)]
struct Barrier {
    /// The turn.
    turn: u64,
    until: Until,
}

/// One member. See the [module](self).
pub struct Replica {
    node: Node,
    options: Options,
    role: Role,
    /// Committed, and not applied by the queue that follows.
    pending: VecDeque<Committed>,
    pending_bytes: usize,
    /// See [`PENDING_MAX`].
    pending_max: usize,
    /// Turns whose replies have not left, in order.
    barriers: VecDeque<Barrier>,
    /// The present turn, and up to which one replies may leave. They grow as long as the process runs.
    turn: u64,
    acknowledged: u64,
    /// The last question, whether this node still leads.
    asked: u64,
    /// The last entry that the queue has decided in this lead, or that it began with.
    decided: u64,
    /// The last stamp that was known to be committed, the last one of these that a leading queue has
    /// decided, and the last question that was answered.
    committed: Stamp,
    own: Stamp,
    confirmed: u64,
    /// The log needs a moment without requests.
    is_quieting: bool,
    /// Where the disk is full.
    room: Room,
    snapshots: Vec<SnapshotWanted>,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl Replica {
    /// The replica of `node`, whose queue follows and was opened with `options`.
    pub fn new(node: Node, options: Options, engine: &Engine) -> Replica {
        Replica {
            node,
            options,
            role: Role::Follows(None),
            pending: VecDeque::new(),
            pending_bytes: 0,
            pending_max: PENDING_MAX,
            barriers: VecDeque::new(),
            turn: 0,
            acknowledged: 0,
            asked: 0,
            decided: 0,
            committed: engine.stamp(),
            own: engine.stamp(),
            confirmed: 0,
            is_quieting: false,
            room: Room::default(),
            snapshots: Vec::new(),
        }
    }

    /// A message of a peer. A member that has too much to apply takes no entries.
    pub fn step(&mut self, message: Message) {
        if self.pending_bytes > self.pending_max && !message.entries.is_empty() {
            return;
        }
        self.node.step(message);
    }

    /// A turn begins.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn begin(&mut self, engine: &mut Engine, now: Now) -> Result<Standing, ReplicaError> {
        self.node.tick(now.mono);
        let term = match self.role {
            Role::Leads(term) => Some(term),
            _ => None,
        };
        let leading = engine.leads_in();
        let is_over = leading != term || self.room.has_been_silent(now.mono);
        if leading.is_some() && is_over {
            return Ok(Standing::LostLeadership);
        }
        if let Some(term) = self.may_lead(engine)
            && let Some(follower) = engine.as_follower()
        {
            let index = self.node.last_index();
            follower.lead(Stamp { index, term }, now)?;
            (self.decided, self.own) = (index, self.committed);
            // What happened just now, as the rest of a kick, waits for this turn, even if the turn may
            // propose nothing.
            self.turn += 1;
            if let Some(mut leader) = engine.as_leader() {
                leader.begin_turn(self.turn);
            }
        }
        self.make_way(engine, now)?;
        let (Some(term), Some(mut leader)) = (engine.leads_in(), engine.as_leader()) else {
            return Ok(Standing::Follows);
        };
        if !self.node.takes_proposals() {
            // Leadership is being transferred, or the ledger's disk is full.
            self.is_quieting = false;
            return Ok(Standing::Pauses);
        }
        let index = self.node.last_index() + 1;
        leader.skip_to(Stamp { index, term });
        self.turn += 1;
        leader.begin_turn(self.turn);
        self.is_quieting = engine.wants_quiet();
        Ok(if self.is_quieting {
            Standing::Pauses
        } else {
            Standing::Serves
        })
    }

    /// The term in which the queue is to lead from now on. Whatever was decided before is applied: also
    /// in the same term, if it has led in it and fell because its disk was full.
    fn may_lead(&self, engine: &Engine) -> Option<u64> {
        let Role::Leads(term) = self.role else {
            return None;
        };
        let is_ready = engine.leads_in().is_none() && self.pending.is_empty();
        let has_all = self.node.last_index() == self.committed.index;
        (is_ready && has_all && !self.room.is_ledger_full()).then_some(term)
    }

    /// If the log has no room, the ledger gives up what it can, and a leader transfers leadership.
    fn make_way(&mut self, engine: &mut Engine, now: Now) -> Result<(), ReplicaError> {
        let mut has_room = engine.has_room_to_follow(now)?;
        while !has_room && self.node.give_room(engine.durable_stamp().index)? {
            engine.note_freed();
            has_room = engine.has_room_to_follow(now)?;
        }
        if self.node.lacks_spare() && self.room.may_try_spare(now.mono) {
            self.node.try_spare();
            while self.node.lacks_spare() && engine.squeeze()? {
                self.node.try_spare();
            }
        }
        self.node.set_has_room(has_room);
        if let Some(mut leader) = engine.as_leader() {
            leader.set_others_full(self.node.lacks_room());
        }
        let is_short = engine.log().is_some_and(Log::is_disk_full);
        let is_due = match (self.role, engine.leads_in()) {
            (Role::Leads(_), Some(_)) => {
                let has_heir = is_short && self.node.has_fit_successor();
                self.room.leads_in_vain(is_short, has_heir, now.mono)
            }
            (Role::Leads(_), None) => self.room.is_unfit(now.mono),
            _ => false,
        };
        if is_due && let Some(heir) = self.node.hand_over() {
            let class = engine.log().map_or(ErrorClass::Full, Log::lacking);
            tracing::warn!(
                "{}: leadership is transferred to member {heir}",
                class.lack()
            );
            self.room.asked(now.mono);
        }
        Ok(())
    }

    /// The queue does its own work, and what was decided in this turn is formed.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn decide(
        &mut self,
        engine: &mut Engine,
        sink: &mut dyn ReplySink,
        now: Now,
    ) -> Result<(), ReplicaError> {
        if engine.leads_in().is_none() {
            engine.follow_on(now)?;
            return Ok(());
        }
        if !self.node.takes_proposals() {
            // What has happened meanwhile, as the end of a connection, is formed later, or never.
            return Ok(());
        }
        if self.is_quieting {
            engine.use_quiet(now)?;
        } else {
            engine.tick(now, sink)?;
        }
        engine.commit(now)?;
        Ok(())
    }

    /// Propose what was decided in this turn, in which there were replies or not.
    ///
    /// # Errors
    /// If an entry is not taken as it was decided: a bug. Nothing of it was acknowledged.
    pub fn propose(&mut self, engine: &mut Engine, has_replied: bool) -> Result<(), ReplicaError> {
        let Some(mut leader) = engine.as_leader() else {
            return Ok(());
        };
        let mut last = None;
        while let Some(formed) = leader.take_formed() {
            let (decided, size) = (formed.stamp, formed.data.len());
            match self.node.propose(Bytes::from(formed.data)) {
                Ok(index) if index == decided.index => last = Some(index),
                other => {
                    return Err(ReplicaError::Contradiction(format!(
                        "entry {} of {size} bytes was decided, and proposed as {other:?}",
                        decided.index
                    )));
                }
            }
        }
        self.decided = last.unwrap_or(self.decided);
        if has_replied {
            let until = match last {
                Some(index) => Until::Committed(index, self.asked),
                None => {
                    self.asked = self.node.confirm_read();
                    Until::Confirmed(self.asked, self.decided)
                }
            };
            let turn = self.turn;
            self.barriers.push_back(Barrier { turn, until });
        }
        Ok(())
    }

    /// Messages that may leave before the own disk has synced.
    pub fn outbox(&mut self) -> Vec<Message> {
        self.node.outbox()
    }

    /// Make durable what has to be. Returns messages to be sent, before [`Replica::advance`] is called:
    /// a leader waits for them.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn persist(&mut self, engine: &mut Engine, now: Now) -> Result<Vec<Message>, ReplicaError> {
        if !self.room.may_persist(now.mono) {
            return Ok(Vec::new());
        }
        let Out {
            messages,
            committed,
            reads_confirmed,
            snapshots,
            role,
        } = loop {
            match self.node.persist() {
                Err(error) if error.is_full() => {
                    let durable = engine.durable_stamp().index;
                    let has_given = self.node.give_room(durable)?;
                    if !has_given && !engine.squeeze()? && !engine.spend_kept() {
                        self.room.refused_by_ledger(&error, now.mono);
                        return Ok(Vec::new());
                    }
                }
                out => break out?,
            }
        };
        self.room.ledger_goes_on();
        self.confirmed = self.confirmed.max(reads_confirmed.unwrap_or(0));
        self.snapshots.extend(snapshots);
        let (leading, is_falling) = (engine.leads_in(), self.is_falling(engine));
        for entry in committed {
            self.committed = Stamp {
                index: entry.mark.index,
                term: entry.mark.term,
            };
            // What was decided in an earlier lead is applied by the queue that follows.
            if leading.is_none_or(|term| entry.mark.term != term) || is_falling {
                self.pending_bytes += cost(&entry);
                self.pending.push_back(entry);
            } else {
                self.own = self.committed;
            }
        }
        if let Some(role) = role {
            self.role = role;
        }
        Ok(messages)
    }

    /// Bring the log as far as is committed. While the ledger has no room nothing is applied.
    ///
    /// # Errors
    /// When the disk failed, or the copy is not what the others have.
    pub fn advance(&mut self, engine: &mut Engine, now: Now) -> Result<(), ReplicaError> {
        if self.room.is_ledger_full() {
            return Ok(());
        }
        if engine.leads_in().is_some() {
            // What another leader has decided since comes behind what this queue has, once it follows.
            engine.release(self.own, now)?;
            self.node.applied(self.own.index);
        } else if let Some(follower) = engine.as_follower() {
            self.apply(follower, now)?;
        }
        self.node.durable_applied(engine.durable_stamp().index)?;
        Ok(())
    }

    fn is_falling(&self, engine: &Engine) -> bool {
        match (engine.leads_in(), self.role) {
            (Some(term), Role::Leads(of)) => term != of,
            (Some(_), _) => true,
            (None, _) => false,
        }
    }

    /// Apply committed entries, as many as a turn may.
    fn apply(&mut self, mut follower: Follower<'_>, now: Now) -> Result<(), ReplicaError> {
        if !self.room.may_apply(now.mono) {
            return Ok(());
        }
        let mut left = APPLIED_A_TURN;
        while left > 0
            && let Some(entry) = self.pending.front()
        {
            let stamp = Stamp {
                index: entry.mark.index,
                term: entry.mark.term,
            };
            if stamp.index > follower.stamp().index {
                follower.set_clock_ahead(self.node.clock_ahead(stamp.term));
                let mut applied = follower.apply_entry(stamp, &entry.data, now);
                if matches!(applied, Err(ApplyError::NoRoom(_))) && follower.spend_kept() {
                    applied = follower.apply_entry(stamp, &entry.data, now);
                }
                match applied {
                    Ok(()) => {}
                    Err(ApplyError::NoRoom(class)) => {
                        self.room.refused_by_log(class, now.mono);
                        return Ok(());
                    }
                    Err(ApplyError::Failed(error)) => return Err(error.into()),
                    Err(ApplyError::Contradiction(what)) => {
                        return Err(ReplicaError::Contradiction(what));
                    }
                }
            }
            let size = cost(entry);
            left = left.saturating_sub(size);
            self.pending_bytes -= size;
            self.node.applied(stamp.index);
            self.pending.pop_front();
        }
        if self.pending.is_empty() {
            self.room.log_goes_on();
        }
        Ok(())
    }

    /// The clients are gone: drop the queue with what it held, and follow.
    ///
    /// # Errors
    /// If the log cannot be opened again.
    pub fn step_down(&mut self, engine: &mut Engine, now: Now) -> Result<(), ReplicaError> {
        self.room.fell(now.mono);
        self.is_quieting = false;
        self.barriers.clear();
        self.reopen(engine, now)
    }

    /// Open the log again.
    fn reopen(&mut self, engine: &mut Engine, now: Now) -> Result<(), ReplicaError> {
        // The directory has to be let go before it can be opened again.
        *engine = Engine::follow(&Options::default(), now)?;
        *engine = Engine::follow(&self.options, now)?;
        Ok(())
    }

    /// Replies that wait for a turn up to this one may leave. The queue is told, too.
    pub fn acknowledge(&mut self, engine: &mut Engine) -> Ticket {
        // What is committed when another one leads may be that one's, under the numbers of what was
        // decided here.
        if self.leads(engine) {
            for barrier in &self.barriers {
                if let Until::Committed(index, asked) = barrier.until
                    && index <= self.committed.index
                {
                    self.confirmed = self.confirmed.max(asked);
                }
            }
            while let Some(Barrier { turn, until }) = self.barriers.front()
                && match until {
                    Until::Committed(index, _) => *index <= self.committed.index,
                    Until::Confirmed(number, index) => {
                        *number <= self.confirmed && *index <= self.committed.index
                    }
                }
            {
                self.acknowledged = *turn;
                self.barriers.pop_front();
            }
            if let Some(mut leader) = engine.as_leader() {
                leader.acknowledge_turn(self.acknowledged);
            }
        }
        match engine.leads_in() {
            Some(_) => Ticket::turn(self.acknowledged),
            None => Ticket::NONE,
        }
    }

    /// True if [`Replica::outbox`] and [`Replica::persist`] have something to do.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.node.has_work() && !self.room.is_ledger_full()
    }

    /// True if the next turn should come at once.
    #[must_use]
    pub fn has_work(&self, engine: &Engine) -> bool {
        self.has_ready()
            || self.is_falling(engine)
            || !self.pending.is_empty() && self.room.next_deadline().is_none()
            || self.may_lead(engine).is_some()
    }

    /// When the next turn has to begin, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        let node = self.node.next_deadline();
        self.room.next_deadline().map_or(node, |at| at.min(node))
    }

    /// Snapshots that members want.
    pub fn take_snapshots(&mut self) -> Vec<SnapshotWanted> {
        std::mem::take(&mut self.snapshots)
    }

    /// The snapshot of a log that goes up to this stamp; `None`: not now.
    #[must_use]
    pub fn base_at(&self, stamp: Stamp) -> Option<Base> {
        self.node.base_at(stamp.index)
    }

    /// How a snapshot has fared: installed up to this entry, or not.
    pub fn snapshot_sent(&mut self, to: NodeId, installed: Option<u64>) {
        self.node.snapshot_sent(to, installed);
    }

    /// Set the time of the clocks in this turn. Must precede the messages of peers.
    pub fn set_clock(&mut self, now: Now) {
        self.node.set_clock(now);
    }

    /// A message from this peer, or to it, is under way and moves.
    pub fn moves(&mut self, peer: NodeId) {
        self.node.moves(peer);
    }

    /// A peer cannot be reached.
    pub fn unreachable(&mut self, peer: NodeId) {
        self.node.unreachable(peer);
    }

    /// A peer says that the membership of this entry does not have this node.
    pub fn left_out(&mut self, members_index: u64) {
        self.node.left_out(members_index);
    }

    /// Change the membership.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn change(&mut self, change: Change) -> Result<(), Refused> {
        self.node.change(change)
    }

    /// Transfer leadership to another voter that answers. `false`: nothing was begun.
    pub fn transfer(&mut self, to: NodeId) -> bool {
        self.node.transfer(to)
    }

    /// Transfer leadership to the best of those that answer. `None`: nothing was begun.
    pub fn hand_over(&mut self) -> Option<NodeId> {
        self.node.hand_over()
    }

    /// The node's view of the cluster.
    #[must_use]
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Who is in the cluster.
    #[must_use]
    pub fn members(&self) -> &Members {
        self.node.members().1
    }

    /// The entry that made them so.
    #[must_use]
    pub fn members_changed(&self) -> u64 {
        self.node.members().0
    }

    /// Role of the node, as far as it knows: a member that has been elected and cannot lead yet
    /// does not know the leader.
    #[must_use]
    pub fn role(&self, engine: &Engine) -> Role {
        match self.role {
            Role::Leads(_) if engine.leads_in().is_none() => Role::Follows(None),
            role => role,
        }
    }

    /// Which room the ledger lacks, if it lacks any.
    #[must_use]
    pub fn ledger_lacks(&self) -> Option<ErrorClass> {
        self.room.ledger_lacks()
    }

    /// True while clients are served here.
    #[must_use]
    pub fn leads(&self, engine: &Engine) -> bool {
        engine.leads_in().is_some() && !self.is_falling(engine)
    }

    /// True if everything up to this entry is known to be committed, and is here.
    #[must_use]
    pub fn has(&self, index: u64) -> bool {
        self.committed.index >= index
    }

    /// Whether a copy of a log with this base would take the place of this one now.
    #[must_use]
    pub fn wants(&self, base: &Base, engine: &Engine) -> bool {
        engine.leads_in().is_none() && self.node.accepts_snapshot(base)
    }

    /// A copy of the log of another member has come and is complete under `cluster/incoming`: it takes
    /// the place of this one, unless this one has come as far meanwhile.
    ///
    /// # Errors
    /// If the disk fails; then the process must end, and the next start goes on.
    pub fn install(
        &mut self,
        engine: &mut Engine,
        base: Base,
        now: Now,
    ) -> Result<bool, ReplicaError> {
        let Some(dir) = self.options.dir.clone() else {
            return Ok(false);
        };
        let fs = self.options.fs.clone();
        let ledger_dir = super::ledger_dir(&dir);
        // If it cannot be removed, the next copy or start does it.
        let discard = || _ = super::install::discard(&fs, &ledger_dir);
        if !self.wants(&base, engine) {
            discard();
            return Ok(false);
        }
        let prepared = self.node.prepare_install();
        match prepared.and_then(|()| super::install::begin(&fs, &ledger_dir, &base)) {
            Err(LedgerError::Full(error)) => {
                let lack = error.class().lack();
                let error = OpenError::Io(error);
                tracing::warn!(
                    "{lack}: a copy of the log is not installed: {error}; it is sent again"
                );
                discard();
                return Ok(false);
            }
            begun => begun?,
        }
        *engine = Engine::follow(&Options::default(), now)?;
        let node = &mut self.node;
        super::install::finish(&fs, &dir, &ledger_dir, &mut |base| {
            Ok::<_, ReplicaError>(node.snapshot_installed(&base)?)
        })?;
        self.pending.clear();
        self.pending_bytes = 0;
        self.room.log_goes_on();
        self.committed = Stamp {
            index: base.index,
            term: base.term,
        };
        *engine = Engine::follow(&self.options, now)?;
        Ok(true)
    }
}

/// Bytes that a committed entry takes until it is applied.
fn cost(entry: &Committed) -> usize {
    entry.data.len() + ENTRY_COST
}

/// Options of a member's log, whatever was asked for a single server: its syncs are not urgent,
/// because the ledger has everything that they would lose. An archive has only what is durable in the
/// log, so they are more urgent with one.
#[must_use]
pub fn log_options(options: Options, is_archived: bool) -> Options {
    let sync_ms = match is_archived {
        true => ARCHIVED_LOG_SYNC_MS,
        false => LOG_SYNC_MS,
    };
    Options {
        sync: bsd::storage::SyncPolicy::Interval(sync_ms),
        import: false,
        ..options
    }
}

/// The log is synced this many milliseconds after it was written to.
const LOG_SYNC_MS: u32 = 500;
/// The same, if it is archived while it leads: so much may be lost beside the interval of the archive.
const ARCHIVED_LOG_SYNC_MS: u32 = 100;

#[cfg(test)]
mod tests;
