//! bsd ("beanstalk, durable"): a job queue that keeps every acknowledged job.
//!
//! `bsd-server` speaks beanstalkd's protocol to every client of beanstalkd; this library implements
//! it. A program that wants the queue without the sockets uses [`Queue`].
//!
//! # Where is the thing that does X?
//!
//! | module | question it answers |
//! |---|---|
//! | [`types`] | the words that every layer shares: ids, times, positions, states |
//! | [`protocol`] | what do these bytes ask for, and which bytes answer? |
//! | [`queue`] | which job is next, who waits for it, what is due when? |
//! | [`storage`] | where are the bytes, when are they durable, what does a crash leave? |
//! | [`engine`] | what does each command do, and when may its reply leave? |
//! | [`archive`] | how does the log get into an object store, and back? |
//! | `cluster` | several servers as one: what is committed, and what does it mean for the queue? |
//! | [`door`] | how do other threads call the engine? |
//! | `library` | the faces for programs that embed the queue |
//! | [`server`] | sockets, signals, the loop |
//! | `http` | health and the like over HTTP: who may ask what, and what is the answer? |
//! | [`config`] | what do the flags mean? |
//! | [`ErrorClass`] | what kind of trouble is an error? |
//! | [`histogram`] | how long do things take? |
//! | [`clock`] | what time is it? |
//! | [`rlimit`] | how many files may be open? |
//! | `random` | numbers from a seed, for tests and the simulated disk |
//! | `sys` | what differs between operating systems? |
//!
//! # What is not here
//!
//! * `protocol` and `queue` open nothing, read no clock, start no thread and draw no random number.
//! * `queue` does not know `storage`, and `storage` does not know `queue`; `engine` joins them.
//! * Files are opened only through [`storage::disk`], sockets only in [`server`] and `http`.
//!   Clocks are read only by the owners of a [`clock::Clock`]: the server, the library's
//!   interfaces, and the log, to measure syncs.
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

#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub mod check;
pub mod clock;
pub mod door;
pub mod engine;
mod error_class;
pub mod histogram;
mod library;
pub mod protocol;
pub mod queue;
pub mod random;
pub mod rlimit;
mod shortage;
pub mod storage;
#[doc(hidden)]
pub mod sys;
pub mod types;

pub use door::{Bounds, Job, JobError, Pending, PutOptions, block_on};
pub use engine::Options;
pub use error_class::ErrorClass;
pub use library::{Finish, JobQueue, Queue, Reserved, Session};
pub use storage::{OpenError, StoreError, SyncPolicy};
