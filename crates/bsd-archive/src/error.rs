//! Reasons why a restore, or a read for one, failed.

use std::fmt;

use super::chain::Bad;
use super::store::Trouble;
use bsd::ErrorClass;
use bsd::storage::OpenError;
use bsd::types::Position;

/// Why nothing was restored.
#[derive(Debug)]
pub enum RestoreError {
    /// The store did not answer.
    Store(Trouble),
    /// The directory could not be made.
    Disk(OpenError),
    /// An object is not as it was put.
    Bad {
        /// Its place and fault.
        bad: Bad,
        /// Up to where the archive is sound; `None`: nowhere.
        sound: Option<Position>,
    },
    /// The archive does not have what was asked for.
    Refused(String),
    /// There is no archive here, or nothing in it that could be restored yet.
    Nothing(String),
}

impl RestoreError {
    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            RestoreError::Disk(error) => error.class(),
            RestoreError::Bad { .. } => ErrorClass::Damaged,
            RestoreError::Store(trouble) if trouble.is_damage => ErrorClass::Damaged,
            _ => ErrorClass::Setup,
        }
    }
}

impl From<Trouble> for RestoreError {
    fn from(trouble: Trouble) -> RestoreError {
        RestoreError::Store(trouble)
    }
}

impl From<OpenError> for RestoreError {
    fn from(error: OpenError) -> RestoreError {
        RestoreError::Disk(error)
    }
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Store(trouble) => {
                write!(
                    f,
                    "the archive cannot be read: {trouble}; nothing was restored"
                )
            }
            RestoreError::Disk(error) => error.fmt(f),
            RestoreError::Refused(why) | RestoreError::Nothing(why) => f.write_str(why),
            RestoreError::Bad { bad, sound } => {
                write!(f, "the archive is damaged: {bad}; nothing was restored; ")?;
                match sound {
                    Some(at) => write!(f, "up to {at} it is sound: --until {at} restores that"),
                    None => write!(f, "`bsd-wal archive verify` says what can be"),
                }
            }
        }
    }
}

impl std::error::Error for RestoreError {}
