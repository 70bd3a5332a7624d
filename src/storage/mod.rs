//! The log: where the bytes are, when they are durable, what a crash leaves.
//!
//! | where | what |
//! |---|---|
//! | `format` | the bytes: the only place that knows an offset |
//! | `scan` | the one reader of segments, and what the end of one means |
//! | `recover` | opening a log: what a crash may have left, and going on from there |
//! | `log` | the open log: append, commit, sync, read back |
//! | `budget` | how much has to stay free behind a record, and where it comes from |
//! | `rotate` | going on in a new segment |
//! | `sync` | when what was written becomes durable |
//! | `files` | the files of an open log, and how much of each is alive |
//! | `compact` | rewriting files so that only what is alive is left |
//! | `maintain` | when to compact what, and space for the next segment |
//! | `space` | files of reserved space |
//! | `zeros` | zeros written over them before they are needed |
//! | `kicks` | kicks that a crash would leave half-done |
//! | `hot` | the last frames written, kept in memory |
//! | `inspect` | looking at a log without changing it, and writing what survives into a new one |
//! | `snapshot` | a log that a server is writing, held still |
//! | `backup` | a copy of a log in use, and the way back |
//! | `offline` | compaction of a log that nobody uses |
//! | `build` | a new log in a new directory, all or nothing |
//! | `load` | a new log of jobs that are described one by one |
//! | `beanstalkd` | beanstalkd's log: imported from, and exported to |
//! | `descriptors` | few open files for any number of segments |
//! | `fs` | the only door to files; `lock`: one process a directory |
//! | `sim` | a simulated disk that crashes as real ones do |
//! | `plant` | mistakes that a test can have made; nothing in a release build |
//! | `error` | what can go wrong, in words |
//!
//! `storage-format.md` describes the format and what is assumed of the disk.

pub mod backup;
pub mod beanstalkd;
mod budget;
pub mod build;
mod compact;
mod descriptors;
mod error;
mod files;
pub mod format;
pub mod fs;
mod hot;
pub mod inspect;
mod kicks;
pub mod load;
mod lock;
mod log;
mod maintain;
pub mod offline;
#[doc(hidden)]
pub mod plant;
mod recover;
mod rotate;
pub mod scan;
pub mod sim;
mod snapshot;
mod space;
mod sync;
mod zeros;

pub use compact::{Index, Subject};
pub use error::{OpenError, StoreError};
pub use files::Files;
pub use fs::RealFs;
pub use kicks::{KICKS_MAX, KickUnderWay, Kicked, NO_KICK};
pub use log::{AppendError, BodyError, Log, LogOptions, Purpose};
pub use recover::{Progress, Recovery, Replay};
pub use sim::SimFs;
pub use space::{SEGMENT_SIZE_DEFAULT, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN};
pub use sync::{SyncPolicy, Waker};
