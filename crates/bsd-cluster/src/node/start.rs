//! From a ledger and a log to a node: at a start, and after a snapshot.
//!
//! | the log ends with | the ledger has | so |
//! |---|---|---|
//! | an entry that the ledger has, or its base | | go on after it; it is committed |
//! | an entry before the ledger's base | no entries between | the log is an older one: refused |
//! | an entry that the ledger does not have, or another one at its index, and began with a snapshot | | the ledger was not told of the snapshot yet: it is now |
//! | the same, without a snapshot | | the ledger is an older one: refused |

use raft::eraftpb::ConfState;
use raft::{Config, RawNode, ReadOnlyOption};

use super::change::conf_state;
use super::guard::NUMBER_MAX;
use super::timer::{ELECTION_TICKS, HEARTBEAT_TICKS};
use super::view::View;
use super::{Held, IN_FLIGHT_MAX, MESSAGE_SIZE, Mark, Node, NodeError, Settings, raft_logger};
use crate::ledger::{Base, HardState, Ledger};

/// State that raft starts with, if the ledger matches a log that ends with `applied`.
fn sound(ledger: &Ledger, applied: Mark) -> Result<(HardState, ConfState), NodeError> {
    let (last, base) = (ledger.last_index(), ledger.first_index().saturating_sub(1));
    if applied.index < base {
        return Err(NodeError::LogBehind {
            log: applied,
            ledger: base,
        });
    }
    if ledger.term(applied.index) != Some(applied.term) {
        return Err(NodeError::LedgerBehind {
            log: applied,
            ledger: last,
        });
    }
    let unsound = |what: &str| Err(NodeError::Unsound(what.to_owned()));
    if (applied.index == 0) != (applied.term == 0) {
        return unsound("an entry has no term");
    }
    let hard = hard_state(ledger, applied.index);
    if hard.commit > last {
        return unsound("more is committed than it has");
    }
    match conf_state(ledger.members().1) {
        Some(conf) => Ok((hard, conf)),
        None => unsound("its membership cannot be"),
    }
}

/// State at a start. Everything in the log is committed, though the ledger may not have synced
/// that; and no term is older than an entry's. Terms begin with 1, because raft cannot refuse a
/// vote in term 0.
pub(super) fn hard_state(ledger: &Ledger, applied: u64) -> HardState {
    let hard = ledger.hard_state();
    let last_term = ledger.term(ledger.last_index()).unwrap_or(0);
    let term = hard.term.max(last_term).max(1);
    HardState {
        term,
        vote: if term == hard.term { hard.vote } else { 0 },
        commit: hard.commit.max(applied),
    }
}

/// Whether a ledger may begin with a snapshot: the snapshot is not of another history, nor of none.
pub(super) fn can_begin(ledger: &Ledger, base: &Base) -> bool {
    let Base {
        index,
        term,
        members,
    } = base;
    let is_numbered = (1..NUMBER_MAX).contains(index) && (1..NUMBER_MAX).contains(term);
    let is_same = ledger.term(*index) == Some(*term);
    let is_after = *index > ledger.hard_state().commit;
    is_numbered && (is_same || is_after) && conf_state(members).is_some()
}

/// The ledger begins at `base`, or has it already. Durable on return.
///
/// # Errors
/// It contradicts what the ledger has, or the disk failed.
pub fn install(ledger: &mut Ledger, base: &Base) -> Result<(), NodeError> {
    if base.index + 1 < ledger.first_index() {
        return Ok(());
    }
    if !can_begin(ledger, base) {
        let what = format!("it contradicts the snapshot of entry {}", base.index);
        return Err(NodeError::Unsound(what));
    }
    // A ledger that has the snapshot's last entry has the right ones after it, too, and may have
    // answered for them: they stay.
    if ledger.term(base.index) != Some(base.term) {
        ledger.reset(base.clone()).map_err(NodeError::Store)?;
    }
    ledger.set_hard_state(hard_state(ledger, base.index));
    if ledger.members().0 < base.index {
        ledger.members_applied(base.index, base.members.clone());
    }
    ledger.commit().map_err(NodeError::Store)
}

fn build(
    ledger: Ledger,
    applied: Mark,
    (hard, conf): (HardState, ConfState),
    settings: Settings,
) -> Result<RawNode<View>, NodeError> {
    let config = Config {
        id: ledger.identity().node.0,
        applied: applied.index,
        heartbeat_tick: HEARTBEAT_TICKS,
        election_tick: ELECTION_TICKS,
        max_size_per_msg: MESSAGE_SIZE,
        max_inflight_msgs: IN_FLIGHT_MAX,
        max_committed_size_per_ready: settings.handed_bytes,
        check_quorum: true,
        pre_vote: true,
        read_only_option: ReadOnlyOption::Safe,
        // Followers hear of it with the next entries, or with a heartbeat.
        skip_bcast_commit: true,
        ..Config::default()
    };
    let view = View::new(ledger, applied, hard, conf);
    RawNode::new(&config, view, &raft_logger::logger())
        .map_err(|error| NodeError::Unsound(error.to_string()))
}

pub(super) fn start(
    ledger: Ledger,
    applied: Mark,
    settings: Settings,
) -> Result<RawNode<View>, NodeError> {
    let begin = sound(&ledger, applied)?;
    build(ledger, applied, begin, settings)
}

impl Node {
    /// A new life after a snapshot, as after a start: raft knows no other way to skip entries.
    pub(super) fn restart(&mut self, applied: Mark) -> Result<(), NodeError> {
        let begin = sound(self.ledger(), applied)?;
        if let Some(ledger) = self.raft.mut_store().take_ledger() {
            self.raft = build(ledger, applied, begin, self.settings)?;
        }
        self.handed = applied;
        self.is_removed = self.members().1.get(self.id).is_none();
        self.snapshots.clear();
        self.heard.clear();
        self.held = Held::Nothing;
        Ok(())
    }
}
