//! How far the log is, and what it has done: nothing here changes it.

use std::path::Path;

use crate::storage::log::Log;
use crate::storage::log::files::Files;
use crate::storage::log::sync::{SyncPolicy, SyncThread};
use crate::types::{JobId, SegmentId};

impl Log {
    /// Bytes of files that are gone and still read.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.files.loans.bytes()
    }

    /// The files, and how much of each is alive.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The same, to record which records live and die.
    pub(crate) fn files_mut(&mut self) -> &mut Files {
        &mut self.files
    }

    /// The data directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// No job with this id or a greater one is in the log.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        self.next_id
    }

    /// True if something was written that is not known to be durable.
    #[must_use]
    pub fn has_unsynced(&self) -> bool {
        self.durable < self.written
    }

    /// True while the thread syncs.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        self.sync_thread.as_ref().is_some_and(SyncThread::is_busy)
    }

    /// True if the next commit waits for the disk.
    #[must_use]
    pub fn will_wait(&self) -> bool {
        let is_awaited = self.awaited > self.written;
        is_awaited && self.options.sync == SyncPolicy::Always && !self.pace.is_slow()
    }

    /// True if appended records have not been written.
    #[must_use]
    pub fn has_unwritten(&self) -> bool {
        !self.frame.is_empty()
    }

    /// The first and the last segment's number, for `stats`.
    #[must_use]
    pub fn segments(&self) -> (SegmentId, SegmentId) {
        let number = |handle: Option<u32>| {
            handle
                .map(|handle| self.files.get(handle).entry.first)
                .unwrap_or_default()
        };
        (
            number(self.files.in_order().next()),
            number(self.files.in_order().next_back()),
        )
    }

    /// Records that this process appended.
    #[must_use]
    pub fn records_written(&self) -> u64 {
        self.records_written
    }

    /// How many compactions have taken effect since this process started.
    #[must_use]
    pub fn compactions(&self) -> u64 {
        self.maintenance.compactions
    }

    /// Records that compaction copied since this process started.
    #[must_use]
    pub fn records_migrated(&self) -> u64 {
        self.maintenance.records_migrated
    }

    /// The largest size of a segment, bytes.
    #[must_use]
    pub fn segment_size(&self) -> u32 {
        self.options.segment_size
    }
}
