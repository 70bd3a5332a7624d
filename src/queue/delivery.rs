//! What a worker in this process is told of a job that it gets, beyond what the protocol says.

use std::sync::Arc;

use super::Queue;
use crate::types::{JobId, JobState, Time};

/// What is known of a job when it is handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The tube that it is in.
    pub tube: Arc<str>,
    /// Its priority.
    pub pri: u32,
    /// Seconds that the worker may take.
    pub ttr: u32,
    /// How often it was handed out, this time included.
    pub count: u32,
    /// Nanoseconds since it was put.
    pub age_ns: u64,
}

impl Queue {
    /// What is known of a job that is handed out now, before or after [`Queue::reserve`]. Copies nothing.
    ///
    /// # Panics
    /// If the job does not exist.
    #[must_use]
    pub fn delivery(&self, id: JobId, now: Time) -> Delivery {
        let Some(handle) = self.jobs.find(id) else {
            panic!("job {id}, to be handed out, is gone")
        };
        let (job, extra) = (&self.jobs[handle], self.jobs.extra(handle));
        let is_to_come = u32::from(job.state != JobState::Reserved);
        Delivery {
            tube: self.tubes[job.tube].name.clone(),
            pri: job.pri,
            ttr: job.ttr,
            count: extra.counters.reserves.saturating_add(is_to_come),
            age_ns: u64::try_from(now.since(job.created)).unwrap_or(0),
        }
    }
}
