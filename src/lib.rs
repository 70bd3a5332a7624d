//! bsd ("beanstalk, durable"): a job queue that keeps every acknowledged job.
//!
//! `bsd-server` speaks beanstalkd's protocol to every client of beanstalkd; this library is what it
//! stands on. A program that wants the queue without the sockets uses [`Queue`].
//!
//! # Where is the thing that does X?
//!
//! | module | question it answers |
//! |---|---|
//! | [`types`] | the words that every layer shares: ids, times, positions, states |
//! | [`attributes`] | what does a job have beyond a plain job? |
//! | [`policy`] | what does a tube do of itself for its jobs? |
//! | [`schedule`] | which jobs are put by themselves, and when? |
//! | [`pattern`] | which names of tubes are meant? |
//! | [`protocol`] | what do these bytes ask for, and which bytes answer? |
//! | [`queue`] | which job is next, who waits for it, what is due when? |
//! | [`storage`] | where are the bytes, when are they durable, what does a crash leave? |
//! | [`engine`] | what does each command do, and when may its reply leave? |
//! | [`door`] | how do other threads call the engine? |
//! | `library` | the interfaces for programs that embed the queue |
//! | [`ErrorClass`] | what kind of trouble is an error? |
//! | [`histogram`] | how long do things take? |
//! | [`human`] | how are bytes and times written for people? |
//! | [`clock`] | what time is it? |
//! | [`rlimit`] | how many files may be open? |
//! | [`random`] | numbers from a seed, for tests and the simulated disk |
//! | `sys` | what differs between operating systems? |
//!
//! The packages above this one are in `crates/`: `bsd-archive` (the log in an object store),
//! `bsd-cluster` (several servers as one), `bsd-net` (sockets, signals, the loop), `bsd-http` (health,
//! metrics, the API and the console), `bsd-server` (flags and the program).
//!
//! # What this package promises
//!
//! Semantic versioning is promised for what is exported here at the root ([`Queue`], [`JobQueue`] and
//! others) and the types that their signatures name; `tests/it/front.txt` of the workspace lists all of
//! it. All other public items are for the packages of this workspace and follow the server.
//!
//! # What is not here
//!
//! * `protocol` and `queue` open nothing, read no clock, start no thread and draw no random number.
//! * `queue` does not know `storage`, and `storage` does not know `queue`; `engine` joins them.
//! * Files are opened only through [`storage::disk`]; there are no sockets. Clocks are read only by
//!   the owners of a [`clock::Clock`]: the server, the library's interfaces, and the log, to measure
//!   syncs.
//! * Nothing is global: two servers fit into one process.
//!
//! # What must stay true
//!
//! * A reply is sent only when everything logged before it is durable, as the policy says:
//!   [`engine::Engine::acknowledged`].
//! * Durable state changes only through [`queue::Queue::apply`], which live operation and replay
//!   share.
//! * After the first failed write or sync nothing is acknowledged any more.
//! * A file is removed only if the log's own list of files no longer needs it.

pub mod attributes;
#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub mod check;
pub mod clearing;
pub mod clock;
pub mod door;
pub mod engine;
mod error_class;
pub mod histogram;
pub mod human;
mod library;
pub mod pattern;
pub mod policy;
pub mod protocol;
pub mod queue;
pub mod random;
pub mod rlimit;
pub mod schedule;
mod shortage;
pub mod storage;
#[doc(hidden)]
pub mod sys;
pub mod types;

pub use attributes::{Reason, Unique};
pub use clearing::ClearedStates;
pub use door::{
    Bounds, Inserted, Job, JobError, Pending, PutAttributes, PutOptions, Search, SearchCursor,
    SearchPage, block_on,
};
pub use engine::Options;
pub use error_class::{ErrorClass, SetupError, UsageError};
pub use library::{Finish, JobQueue, Queue, Reserved, Session};
pub use protocol::{
    Conflict, Cursor, ExtendedJobStats, JobPage, JobStats, PolicyStats, ScheduleStats, Stats,
    TubeStats,
};
pub use schedule::{Missed, Schedule};
pub use storage::{OpenError, StoreError, SyncPolicy};
pub use types::{JobCounts, JobId, JobState};
