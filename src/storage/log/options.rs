//! How a log is opened.

use std::path::PathBuf;

use crate::storage::format::LogId;
use crate::storage::log::sync::{SyncPolicy, Waker};

/// How a log is opened.
#[derive(Clone)]
pub struct LogOptions {
    /// The data directory; created when missing.
    pub dir: PathBuf,
    /// When records become durable.
    pub sync: SyncPolicy,
    /// Bytes of a segment file; a record that is larger gets a segment that fits it.
    pub segment_size: u32,
    /// Bytes of recently written records that are kept in memory.
    pub cache_size: usize,
    /// The identity of a new log; `None` for a random one.
    pub log_id: Option<LogId>,
    /// Start a new epoch of the existing log, in a segment of its own: for a copy that continues in
    /// place of the original.
    pub new_epoch: bool,
    /// The log is the copy of a standby, and stays one. Otherwise it takes the place of what it is the
    /// copy of: ids are left out, and then the marker that it is a copy is removed.
    pub standby: bool,
    /// The log may be one of several with the same jobs: there may be a ledger beside it, whose owner
    /// this is. Otherwise such a directory is refused.
    pub member: bool,
    /// How to wake the loop. `None`: no background threads; everything happens inside the calls, in
    /// an order that depends only on them.
    pub waker: Option<Waker>,
}

impl std::fmt::Debug for LogOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogOptions")
            .field("dir", &self.dir)
            .field("sync", &self.sync)
            .field("segment_size", &self.segment_size)
            .finish_non_exhaustive()
    }
}
