//! The log: where the bytes are, when they are durable, what a crash leaves.
//!
//! | room | what it answers |
//! |---|---|
//! | `disk` | files: the only door to them, the real one and a simulated one; one process a directory |
//! | `format` | which bytes stand for what, and what a file of which name is |
//! | `read` | what is in a directory, which of it is the log, where it ends, what is damaged: reading only |
//! | `log` | the open log: append, commit, sync, rotate, compact, and the space for all that |
//! | `recover` | from what was read to an open log: the only step of a start that writes |
//! | `inspect` | reports on a log: damage, losses, the history of a job; and a repair |
//! | `convert` | logs made of other things: dumps, backups, beanstalkd's files, a log without its garbage |
//!
//! Each room knows those above it: `disk`, `format`, `read` and the open `log` know nothing of how
//! a start, a report or a copy uses them. `storage-format.md` describes the format and what is
//! assumed of the disk.

pub mod convert;
pub mod disk;
mod error;
pub mod format;
pub mod inspect;
mod log;
#[doc(hidden)]
pub mod read;
mod recover;

pub use disk::RealFs;
#[cfg(any(test, fuzzing, feature = "sim"))]
pub use disk::sim::SimFs;
pub use error::{OpenError, StoreError};
pub use log::compaction::{Index, Subject};
pub use log::files::Files;
pub use log::kicks::{KICKS_MAX, KickUnderWay, Kicked, NO_KICK};
pub use log::spares::{SEGMENT_SIZE_DEFAULT, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN};
pub use log::sync::{SyncPolicy, Waker};
pub use log::{AppendError, BodyError, Log, LogOptions, Purpose};
pub use recover::{Progress, Recovery, Replay};
