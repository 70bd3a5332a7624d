//! Why a member cannot go on.

use crate::ledger::LedgerError;
use crate::node::NodeError;
use bsd::storage::{OpenError, StoreError};
use bsd::{ErrorClass, SetupError};

/// Why a member cannot go on.
#[derive(Debug)]
pub enum ReplicaError {
    /// The disk failed.
    Store(StoreError),
    /// The log could not be opened again.
    Open(OpenError),
    /// The server cannot be a member as it is set up.
    Setup(SetupError),
    /// The committed entries contradict this copy: it is not what the others have.
    Contradiction(String),
}

impl std::fmt::Display for ReplicaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReplicaError::Store(error) => error.fmt(f),
            ReplicaError::Open(error) => error.fmt(f),
            ReplicaError::Setup(error) => error.fmt(f),
            ReplicaError::Contradiction(what) => write!(
                f,
                "{what}: the log of this member is not what the others have; {}. Please report it",
                self.class().advice()
            ),
        }
    }
}

impl ReplicaError {
    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            ReplicaError::Store(error) | ReplicaError::Open(OpenError::Io(error)) => {
                error.class().while_running()
            }
            ReplicaError::Open(error) => error.class(),
            ReplicaError::Setup(error) => error.class(),
            ReplicaError::Contradiction(_) => ErrorClass::Diverged,
        }
    }
}

impl std::error::Error for ReplicaError {}

impl From<LedgerError> for ReplicaError {
    fn from(error: LedgerError) -> ReplicaError {
        ReplicaError::Store(error.into())
    }
}

impl From<NodeError> for ReplicaError {
    fn from(error: NodeError) -> ReplicaError {
        match error {
            NodeError::Store(error) => error.into(),
            other => ReplicaError::Contradiction(other.to_string()),
        }
    }
}

impl From<StoreError> for ReplicaError {
    fn from(error: StoreError) -> ReplicaError {
        ReplicaError::Store(error)
    }
}

impl From<OpenError> for ReplicaError {
    fn from(error: OpenError) -> ReplicaError {
        ReplicaError::Open(error)
    }
}
