//! Access to the engine for callers that are not sockets: threads of this process.
//!
//! The engine belongs to one thread. A [`Door`] sends calls to it from any other thread. The
//! engine's thread has the [`Desk`]: it runs the calls that have arrived once in each turn of its
//! loop, and gives each answer when the log has caught up with it. `server` has a desk beside its
//! clients; `library` has only a desk.
//!
//! | where | what |
//! |---|---|
//! | `bell` | what a thread sleeps on |
//! | `handover` | a bounded channel of calls, and a slot for one answer |
//! | `call` | which commands are taken, and what are the answers? |
//! | `message` | what goes through the channel |
//! | `session` | the caller's side: sessions, and futures of answers |
//! | `desk` | the loop's side: which call runs when, who waits, which answer may be given |
//! | `seats` | what the desk knows of each session, and the answers that are parked |
//! | `work` | long work, in steps |
//! | `task` | the caller's side of long work |
//! | `scan` | going through jobs, a look at a time |
//! | `search` | searches of the library, page by page |
//!
//! Nothing here opens a socket, starts a thread or reads a clock. The loop is woken by a closure.
//!
//! Invariants:
//! * A call takes the same steps as a client's command: decide, log, apply, commit, release. No
//!   answer is given before [`Engine::acknowledged`](crate::engine::Engine::acknowledged) has
//!   reached its ticket.
//! * What calls occupy is bounded: [`Bounds`]. A call that waits for a job or for a long kick is
//!   not counted, so waiting calls never keep out the put that they wait for.
//! * Each call is answered once, or its caller is told why there will be no answer: the disk
//!   failed, or the engine was closed.
//! * If a job was reserved for a caller that is gone, the job is ready again at once.

mod bell;
mod call;
mod desk;
mod handover;
mod message;
#[cfg(test)]
mod model;
mod scan;
mod search;
mod seats;
mod session;
mod sync;
mod task;
#[cfg(test)]
mod tests;
mod work;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) use self::bell::Bell;
pub use self::call::{
    Answer, Delivered, Inserted, Job, JobError, PutAttributes, PutOptions, SearchCursor,
    SearchPage, put,
};
pub(crate) use self::call::{Outcome, put_with, release, whole_seconds};
pub use self::desk::Desk;
use self::handover::{Channel, Load};
use self::message::{Call, Note};
pub use self::scan::{COST_MAX, Looked, Scan, Sought};
pub use self::search::Search;
pub(crate) use self::search::Searching;
pub use self::seats::Replies;
pub(crate) use self::session::Keeper;
pub use self::session::{Pending, Session, block_on};
pub use self::task::Task;
pub use self::work::{Peeked, Slice, Step, Work};
use crate::storage::{StoreError, Waker};

/// Bounds on calls that were sent and are not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The number of calls.
    pub calls_max: usize,
    /// Their bytes: bodies, names, answers. A single call may exceed it.
    pub bytes_max: usize,
}

impl Default for Bounds {
    /// 1,024 calls, 16 MiB.
    fn default() -> Bounds {
        Bounds {
            calls_max: 1024,
            bytes_max: 16 << 20,
        }
    }
}

/// Shared state of both sides.
struct Shared {
    channel: Channel<Call, Note>,
    /// Why no call is answered any more, if the reason is that the disk failed.
    failed: OnceLock<StoreError>,
    sessions: AtomicU64,
}

impl Shared {
    /// For a new session.
    fn next_token(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// The error for a caller whose call will not be answered.
    fn end(&self) -> JobError {
        match self.failed.get() {
            Some(error) => JobError::Store(error.clone()),
            None => JobError::Closed,
        }
    }
}

/// The callers' side. It is a handle: its clones send to the same engine, from any thread.
#[derive(Clone)]
pub struct Door {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door")
            .field("load", &self.shared.channel.load())
            .finish_non_exhaustive()
    }
}

impl Door {
    /// Both sides. `waker` is called from the callers' threads when the desk has something to take.
    #[must_use]
    pub fn new(bounds: Bounds, waker: Waker) -> (Door, Desk) {
        let bound = Load {
            calls: bounds.calls_max,
            bytes: bounds.bytes_max,
        };
        let shared = Arc::new(Shared {
            channel: Channel::new(bound, Box::new(move || waker())),
            failed: OnceLock::new(),
            sessions: AtomicU64::new(0),
        });
        let door = Door {
            shared: shared.clone(),
        };
        (door, Desk::new(shared))
    }

    /// A new session, which watches the tube `default`. The engine learns of it with its first
    /// call.
    #[must_use]
    pub fn session(&self) -> Session {
        self.session_with(None)
    }

    /// A session that keeps another object alive.
    pub(crate) fn session_with(&self, keeper: Option<Keeper>) -> Session {
        Session::new(self.shared.clone(), self.shared.next_token(), keeper)
    }

    /// Run long work, one step at a time.
    pub fn start<W: Work>(&self, work: W) -> Task<W> {
        Task::new(self.session(), work)
    }

    /// Wake the loop, although there is no call.
    pub(crate) fn ring(&self) {
        self.shared.channel.ring();
    }

    /// Calls that were sent and are not answered, and their bytes.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        let Load { calls, bytes } = self.shared.channel.load();
        (calls, bytes)
    }
}
