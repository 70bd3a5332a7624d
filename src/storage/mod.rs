//! The log: where the bytes are, when they are durable, what a crash leaves.
//!
//! | room | what it answers |
//! |---|---|
//! | `disk` | access to files, on the real disk and a simulated one; one process per directory |
//! | `format` | the bytes of the log, and the names of its files |
//! | `error` | what is damaged, why a log is not opened, why it is not written |
//! | `marker_file` | what do the small files say that are no part of the log? |
//! | `standby` | is this directory the copy of a standby, and up to where? |
//! | `incomplete` | a directory that gets its name when it is complete |
//! | `read` | what a directory holds: the log, its end, its damage; read only |
//! | `log` | the open log: append, commit, sync, rotate, compact, and the space for all that |
//! | `recover` | from what was read to an open log; the only step of a start that writes |
//! | `inspect` | reports on a log: damage, losses, the history of a job; and a repair |
//! | `convert` | logs from other data, and back: dumps, backups, beanstalkd; compaction offline |
//!
//! Each room knows only the rooms above it: `disk`, `format`, `read` and the open `log` do not know
//! how a start, a report or a copy uses them. Three exceptions: `read` counts in the log's list of
//! files (`log::files`); `inspect` reads a backup as a log (`convert::backup`), and its repair writes
//! with `convert::build`. A test of `tests/it/tidy.rs` holds the rooms to this.
//! `storage-format.md` describes the format and the assumptions about the disk.

pub mod convert;
pub mod disk;
mod error;
pub mod format;
mod incomplete;
pub mod inspect;
mod log;
pub mod marker_file;
#[doc(hidden)]
pub mod read;
mod recover;
pub mod standby;

pub use disk::RealFs;
#[cfg(any(test, feature = "sim"))]
pub use disk::sim::SimFs;
pub use error::{Damage, OpenError, ReplayError, StoreError};
pub use format::names::is_log_file;
pub use format::names::{CLUSTER_NAME, LEDGER_PREFIX};
pub use format::{SEGMENT_SIZE_DEFAULT, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN};
pub use incomplete::settle;
pub use log::body::{Body, BodyCheck, Bytes, Loan, Loans, PIECE};
pub use log::compaction::{Index, Subject};
pub use log::files::Files;
pub use log::held::{Formed, Held, JOINED_SIZE_MAX};
pub use log::kicks::{KICKS_MAX, KickUnderWay, Kicked, NO_KICK};
pub use log::skip::{IDS_SKIPPED, Life};
pub use log::spool::Begun;
pub use log::sync::{SyncPolicy, Waker};
pub use log::trail::{HELD_SEGMENTS_MAX, Stretch, Trail};
pub use log::{AppendError, BodyError, Log, LogOptions, Purpose};
pub use recover::make_data_dir;
pub use recover::{Progress, Recovery, Replay};
