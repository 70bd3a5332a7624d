//! Several servers as one: an acknowledged job is on a majority of them.
//!
//! The leader, the committed entries and the membership are decided by the crate `raft`, which has
//! no I/O, no clock and no threads. Here is everything around it: where its entries are kept, how
//! its messages look on the wire, what an entry does to the queue, and how a server that lacks too
//! much gets all of it. Nothing here opens a socket; files are reached through `storage::disk`.
//!
//! Each member has two things on its disk: the *ledger*, with raft's entries and votes, and bsd's
//! ordinary *log*, which has committed changes only. An entry is the records of one frame.
//!
//! | file | question |
//! |---|---|
//! | `member` | who is in the cluster? |
//! | `ledger` | where are the entries, and when are they durable? |
//! | `node` | what does raft want, and when may it have it? |
//! | `wire` | which bytes are a message of a peer? |
//! | `replica` | what does an entry mean for the queue, and when may a reply leave? |
//! | `install` | how does the log of another member take the place of this one's? |
//! | `survivor` | what jobs has the last member that is left, and how does it become a server? |

#[cfg(test)]
mod histories;
pub mod install;
pub mod ledger;
pub mod member;
pub mod node;
pub mod replica;
pub mod survivor;
pub mod wire;

use std::path::{Path, PathBuf};

use bsd::storage::JOINED_SIZE_MAX;

/// The largest body that a job of a cluster may have, bytes: an entry has to fit into a message.
pub const JOB_SIZE_MAX: u32 = 8 << 20;

// The frame of what stays together may have begun, with less than the 1 MiB of one that is full.
const _: () = assert!(JOINED_SIZE_MAX + (2 << 20) <= node::DATA_SIZE_MAX as u64);

/// Where the ledger is, in a data directory.
#[must_use]
pub fn ledger_dir(dir: &Path) -> PathBuf {
    dir.join(bsd::storage::CLUSTER_NAME)
}
