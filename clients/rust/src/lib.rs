//! Client and worker for bsd, a durable job queue server, and for beanstalkd, whose protocol it
//! speaks.
//!
//! | you want | use | feature |
//! |---|---|---|
//! | a connection, for one thread | [`Client`] | |
//! | connections for many threads | [`Pool`] | |
//! | the same for tasks of tokio | `AsyncClient`, `AsyncPool` | `tokio` |
//! | TLS | `Tls`, and an address that begins with `tls:` | `tls` |
//! | several servers, among which tubes are shared out | [`Servers`] | |
//! | the same for tasks of tokio | `Servers::async_client` | `tokio` |
//! | a cluster | one [`Config`] with the addresses of its members | |
//! | a worker with typed jobs, retries and a graceful stop | `worker::Worker` | `worker` |
//! | the same worker on a queue inside this process | `bsd::Queue` as its source | `embedded` |
//!
//! ```no_run
//! use bsd_client::{Client, Put};
//! use std::time::Duration;
//!
//! let mut client = Client::connect("127.0.0.1:11300")?;
//! let id = client.put(Put::new("to: you").tube("mail"))?.id();
//!
//! client.watch("mail")?;
//! while let Some(job) = client.reserve(Duration::ZERO)? {
//!     client.delete(job.id)?;
//! }
//! # let _ = id;
//! # Ok::<(), bsd_client::Error>(())
//! ```
//!
//! # Which server it is
//!
//! Each connection begins with `capabilities`, and an extended command is sent only if the answer lists
//! it. beanstalkd does not know these commands and would execute their bodies, so it never gets one. What
//! has a fallback there says so in its own description: `put` with a tube or a time, `reserve_batch`,
//! `delete_batch`, `touch_batch`, `release_batch`, and the worker. Everything else is refused as
//! [`ErrorKind::Unsupported`].
//!
//! # What is sent once more
//!
//! If a connection ends before a reply has come, the client does not know whether the command was run.
//!
//! | command | what the client does |
//! |---|---|
//! | all that ask: `peek…`, `stats…`, `list-…`, `capabilities` | sends it again |
//! | `use`, `watch`, `ignore`, `pause-tube`, `set-policy`, `schedule-set` | sends it again: twice is the same as once |
//! | `reserve`, `reserve-with-timeout`, `reserve-job`, `reserve-batch` | sends it again: with the connection its reservations ended. Where a policy counts deliveries, one has failed |
//! | `put-with` with a key and `unique=exists` | sends it again: while the first job is there it is the only one. If that was done and deleted meanwhile, there is a second one |
//! | `delete` | sends it again; `NOT_FOUND` to that is [`ErrorKind::Unanswered`] |
//! | `put`, other `put-with`, `release`, `bury`, `touch`, `fail`, `kick`, batches, `move-job`, `clear-tube`, `schedule-delete` | [`ErrorKind::Unanswered`] |
//!
//! A command that was not sent as a whole is sent again in any case, since it was not run. After a
//! reconnect the connection uses and watches the same tubes; jobs that were reserved are not any more.
//!
//! # What is not here
//!
//! * The parts `request`, `reply`, `calls` and `link` open no socket and read no clock but that of a put
//!   with a time: both clients, and the tests, drive them.
//! * No bytes from a server make it panic, or hold more memory than [`Config::body_max`] allows.

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod calls;
mod config;
mod document;
mod error;
mod job;
mod link;
mod methods;
mod policy;
mod reply;
mod request;
mod schedule;
mod servers;
mod stats;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncClient, AsyncPool, AsyncPooled};
pub use blocking::{Client, Pool, Pooled};
pub use config::Config;
pub use error::{Error, ErrorKind, Result};
pub use job::{
    BATCH_IDS_MAX, Clear, Conflict, Failed, Inserted, Job, JobId, PRIORITY_DEFAULT, Page, Put,
    State, TEXT_MAX, TTR_DEFAULT, Unique,
};
pub use policy::{DeadLetter, Policy};
pub use schedule::{Missed, Schedule};
#[cfg(feature = "tokio")]
pub use servers::AsyncServersClient;
pub use servers::{ServerJob, Servers, ServersClient, score};
pub use stats::{ExtendedJobStats, JobStats, PolicyStats, ScheduleStats, ServerStats, TubeStats};
#[cfg(feature = "tls")]
pub use tls::Tls;

/// The protocol alone: replies, and how they are found in bytes.
pub mod wire {
    pub use crate::reply::{BATCH_MAX, BatchJob, LINE_MAX, Parser, Reply, Word};
}

/// A check of the fuzz target `replies`: whatever comes from a server, and however it is cut into pieces,
/// the replies are the same.
///
/// # Panics
/// If they are not.
#[doc(hidden)]
pub fn any_replies(bytes: &[u8]) {
    let in_pieces = |size: usize| {
        let mut parser = wire::Parser::new(4096);
        let mut replies = Vec::new();
        for piece in bytes.chunks(size.max(1)) {
            parser.push(piece);
            loop {
                match parser.next_reply() {
                    Ok(Some(reply)) => replies.push(reply),
                    Ok(None) => break,
                    Err(_) => return (replies, true),
                }
            }
        }
        (replies, false)
    };
    let whole = in_pieces(bytes.len());
    for size in [1, 2, 7, 64] {
        assert_eq!(in_pieces(size), whole, "in pieces of {size}");
    }
    whole.0.iter().for_each(calls::any_document);
}
