//! Why a member cannot go on.

use crate::cluster::ledger::LedgerError;
use crate::cluster::node::NodeError;
use crate::storage::{OpenError, StoreError};

/// Why a member cannot go on.
#[derive(Debug)]
pub enum SeatError {
    /// The disk failed.
    Store(StoreError),
    /// The log could not be opened again.
    Open(OpenError),
    /// What is committed contradicts what is here: this copy is not what the others have.
    Contradiction(String),
}

impl std::fmt::Display for SeatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SeatError::Store(error) => error.fmt(f),
            SeatError::Open(error) => error.fmt(f),
            SeatError::Contradiction(what) => write!(
                f,
                "{what}: the log of this member is not what the others have; remove the member \
                 (`bsd-ctl cluster remove`), empty its directory and add it again. Please report it"
            ),
        }
    }
}

impl std::error::Error for SeatError {}

impl From<LedgerError> for SeatError {
    fn from(error: LedgerError) -> SeatError {
        SeatError::Store(error.into())
    }
}

impl From<NodeError> for SeatError {
    fn from(error: NodeError) -> SeatError {
        SeatError::Contradiction(error.to_string())
    }
}

impl From<StoreError> for SeatError {
    fn from(error: StoreError) -> SeatError {
        SeatError::Store(error)
    }
}

impl From<OpenError> for SeatError {
    fn from(error: OpenError) -> SeatError {
        SeatError::Open(error)
    }
}
