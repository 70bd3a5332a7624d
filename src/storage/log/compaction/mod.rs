//! Compaction: which files are rewritten, and how their live records are copied.
//!
//! Nothing here knows the log: a plan is made from numbers, and the copying is told which records
//! are alive. `maintain` decides when a plan is made, `switch` applies a finished copy, and
//! `room` keeps the room for it.
//!
//! | file | question |
//! |---|---|
//! | `plan` | which files are rewritten next, if any? |
//! | `rewrite` | how is a file rewritten so that only live records are left? |
//! | `compactor` | what takes the next step of the copying: the loop itself, or its thread? |
//! | `subject` | what does the copying ask the queue? |
//! | `thread` | which messages do the loop and the thread exchange? |

mod compactor;
pub(in crate::storage) mod plan;
mod rewrite;
mod subject;
mod thread;

pub(crate) use self::compactor::{Compactor, Step};
pub(in crate::storage) use self::plan::{FileStat, Need, Plan, Space, plan};
pub(crate) use self::rewrite::{Compaction, CompactionError, Copied, DamagedInput, Moved, Outcome};
pub(crate) use self::subject::Asked;
pub use self::subject::{Index, Subject};
use crate::types::Position;

/// The state of the log's maintenance.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    pub(in crate::storage::log) stage: Stage,
    /// Look again when the log has grown or shrunk by a step since this look.
    pub(in crate::storage::log) looked_at: Option<(Position, u64)>,
    /// Files whose compaction failed; they are left alone until the next start.
    pub(in crate::storage::log) failed: Vec<u32>,
    /// Records copied.
    pub(crate) records_migrated: u64,
    /// Compactions that took effect.
    pub(crate) compactions: u64,
}

impl Maintenance {
    /// Look again at once, because something has changed.
    pub(crate) fn look_again(&mut self) {
        self.looked_at = None;
    }
}

/// The stage of a compaction.
#[derive(Debug, Default)]
pub(in crate::storage::log) enum Stage {
    #[default]
    Idle,
    /// Records are being copied.
    Copying(Compactor),
    /// The copy is complete, or failed; the switch waits until nothing is held.
    Copied(Vec<u32>, Box<Copied>),
    /// The switch is being made.
    Switching,
    /// The switch is durable; records get their new places.
    Moving {
        output: Option<u32>,
        inputs: Vec<u32>,
        moved: std::vec::IntoIter<Moved>,
    },
}
