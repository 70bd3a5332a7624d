//! The ledger as raft wants to see it.
//!
//! raft panics when its storage fails, so this never fails: what could not be read is remembered as
//! [`View::failure`], the answer is empty, and the node says nothing any more to anyone.

use std::cell::RefCell;

use raft::eraftpb::{self, ConfState, Entry, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::Mark;
use crate::ledger::{HardState, Ledger};
use bsd::storage::StoreError;

pub(super) struct View {
    /// There but while a new life begins.
    ledger: Option<Ledger>,
    /// Up to here entries are durable in the log: the least that a snapshot has.
    pub(super) durable: Mark,
    /// With what raft begins.
    pub(super) hard: HardState,
    pub(super) conf: ConfState,
    failure: RefCell<Option<StoreError>>,
}

impl View {
    pub(super) fn new(ledger: Ledger, durable: Mark, hard: HardState, conf: ConfState) -> View {
        View {
            ledger: Some(ledger),
            durable,
            hard,
            conf,
            failure: RefCell::new(None),
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        match &self.ledger {
            Some(ledger) => ledger,
            None => unreachable!("the next life has the ledger, and this one is over"),
        }
    }

    pub(super) fn ledger_mut(&mut self) -> &mut Ledger {
        match &mut self.ledger {
            Some(ledger) => ledger,
            None => unreachable!("the next life has the ledger, and this one is over"),
        }
    }

    /// The ledger for the next life.
    pub(super) fn take_ledger(&mut self) -> Option<Ledger> {
        self.ledger.take()
    }

    /// Something could not be read.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Error of a failed read.
    pub(super) fn failure(&self) -> Option<StoreError> {
        self.failure.borrow().clone()
    }
}

impl Storage for View {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut hard = eraftpb::HardState::default();
        hard.term = self.hard.term;
        hard.vote = self.hard.vote;
        hard.commit = self.hard.commit;
        Ok(RaftState::new(hard, self.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.ledger().first_index() {
            return Err(StorageError::Compacted.into());
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        self.ledger()
            .entries(low, high, bytes_max)
            .or_else(|error| {
                *self.failure.borrow_mut() = Some(error);
                match context.can_async() {
                    true => Err(StorageError::LogTemporarilyUnavailable.into()),
                    false => Ok(Vec::new()),
                }
            })
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let is_gone = index + 1 < self.ledger().first_index();
        self.ledger().term(index).ok_or(match is_gone {
            true => StorageError::Compacted.into(),
            false => StorageError::Unavailable.into(),
        })
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.ledger().first_index())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.ledger().last_index())
    }

    /// Not the snapshot: what it has at least. It is streamed beside raft, and raft's message of
    /// it never leaves the node.
    fn snapshot(&self, _: u64, _: u64) -> raft::Result<Snapshot> {
        if self.durable.index == 0 {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.durable.index;
        metadata.term = self.durable.term;
        Ok(snapshot)
    }
}
