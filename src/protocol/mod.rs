//! beanstalkd's protocol as pure functions: bytes in, requests out; replies in, bytes out.
//!
//! | where | what |
//! |---|---|
//! | `request` | the vocabulary: [`Command`], [`Refusal`], [`Reply`] |
//! | `decode` | where a request ends, however its bytes arrive: [`Decoder`] |
//! | `parse` | what one line says |
//! | `extended` | what one line says that beanstalkd does not know |
//! | `encode` | the bytes of a reply: [`encode()`] |
//! | `stats` | what `stats` and its kin say, as types |
//! | `yaml` | the documents of that, and the lists |
//! | `extended_yaml` | those that beanstalkd does not have |
//! | `number` | decimal digits, both ways |
//!
//! Nothing here knows a socket, a queue or a clock. Nothing that a client sends is an error in
//! Rust's sense: a mistake is a [`Request::Refused`], which has a reply of its own.

mod decode;
mod encode;
mod extended;
mod extended_yaml;
mod number;
mod parse;
mod request;
mod stats;
mod yaml;

#[cfg(any(test, feature = "sim"))]
pub mod any_bytes;

pub use decode::{Decoder, Limits};
pub use encode::{encode, encode_body_begin, encode_document_begin, encode_document_end};
pub use request::{
    BATCH_MAX, BatchJob, Batched, Capabilities, Command, Conflict, Cursor, JobKey, JobPage,
    ListJobs, OnEach, Op, PAGE_MAX, Protocol, PutWith, Refusal, Reply, Request, SetPolicy,
    SetSchedule, Shown,
};
pub(crate) use stats::ShownTimes;
pub use stats::{ExtendedJobStats, JobStats, PolicyStats, Report, ScheduleStats, Stats, TubeStats};
pub use yaml::{write_listed_tube, write_tube_list};
