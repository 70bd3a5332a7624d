//! The client of another system, as a load needs it, and its counts.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;

use crate::latency::Latency;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// A client of one queue. Each call is over when all of its commands are done.
pub(crate) trait Client: Sized + 'static {
    /// Make a queue of three replicas, led by the node at `leader`. Returns what the node is.
    async fn make_queue(leader: &str, queue: &str) -> Result<String>;
    async fn remove_queue(leader: &str, queue: &str) -> Result<()>;
    /// `pipeline`: how many jobs it may have at a time; 0: it only puts.
    async fn connect(address: &str, queue: &str, pipeline: usize) -> Result<Self>;
    async fn put(&mut self, bodies: Vec<Bytes>, meter: &Meter) -> Result<()>;
    async fn reserve(&mut self, count: usize, meter: &Meter) -> Result<()>;
    /// Delete all jobs that are reserved.
    async fn delete(&mut self, meter: &Meter) -> Result<()>;
}

/// Counts what is done in the time that is measured. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Meter(pub(crate) Rc<RefCell<Tally>>);

#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) is_measuring: bool,
    pub(crate) commands: u64,
    pub(crate) latency: Latency,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter(Rc::new(RefCell::new(Tally {
            is_measuring: false,
            commands: 0,
            latency: Latency::new(),
        })))
    }

    /// A command that was sent at `sent` has its answer.
    pub(crate) fn answered(&self, sent: Instant) {
        self.done(1);
        let mut tally = self.0.borrow_mut();
        if tally.is_measuring {
            tally.latency.record(sent.elapsed().as_nanos() as u64, 1);
        }
    }

    /// Commands without answers of their own.
    pub(crate) fn done(&self, count: u64) {
        let mut tally = self.0.borrow_mut();
        if tally.is_measuring {
            tally.commands += count;
        }
    }
}
