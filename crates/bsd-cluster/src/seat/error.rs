//! Why a member cannot go on.

use crate::ledger::LedgerError;
use crate::node::NodeError;
use bsd::ErrorClass;
use bsd::storage::{OpenError, StoreError};

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
                "{what}: the log of this member is not what the others have; {}. Please report it",
                self.class().advice()
            ),
        }
    }
}

impl SeatError {
    /// What kind of trouble it is.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            SeatError::Store(error) | SeatError::Open(OpenError::Io(error)) => {
                error.class().while_running()
            }
            SeatError::Open(error) => error.class(),
            SeatError::Contradiction(_) => ErrorClass::Diverged,
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
        match error {
            NodeError::Store(error) => error.into(),
            other => SeatError::Contradiction(other.to_string()),
        }
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
