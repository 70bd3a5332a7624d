//! Counts: the number of jobs in each state, and the values of `stats` and `stats-tube`.
//!
//! They are updated at every change, never counted afterwards, so they are exact at all times.

use super::policed::TubeFailures;
use crate::types::JobCounts;

/// The queue's values in `stats`. Totals are cumulative since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Jobs by state.
    pub jobs: JobCounts,
    /// Tubes that exist.
    pub tubes: u64,
    /// Connected clients.
    pub connections: u64,
    /// Connected clients that have ever put a job.
    pub producers: u64,
    /// Connected clients that have ever reserved a job, or tried to.
    pub workers: u64,
    /// Connected clients that wait for a job now.
    pub waiting: u64,
    /// Clients ever connected.
    pub total_connections: u64,
    /// Jobs ever put.
    pub total_jobs: u64,
    /// Reservations that ever ran out of time.
    pub timeouts: u64,
    /// What has failed in all tubes, those that are gone included, since the start.
    pub failures: TubeFailures,
}

/// The values of `stats-tube`. Totals are cumulative since the tube was created, or the process
/// started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TubeStats {
    /// Jobs by state.
    pub jobs: JobCounts,
    /// Clients that put into it.
    pub using: u32,
    /// Clients that watch it.
    pub watching: u32,
    /// Clients that watch it and wait for a job.
    pub waiting: u64,
    /// Jobs ever put.
    pub total_jobs: u64,
    /// Jobs ever deleted.
    pub deletes: u64,
    /// Times paused.
    pub pauses: u64,
    /// The length of the current pause, in seconds; 0 without a pause.
    pub pause: u32,
    /// The rest of the current pause, in nanoseconds; 0 without a pause.
    pub pause_left_ns: i64,
}

#[cfg(test)]
mod tests {
    use crate::types::{JobCounts, JobState};

    #[test]
    fn only_ready_jobs_below_1024_are_urgent() {
        let mut counts = JobCounts::default();
        counts.enter(JobState::Ready, 1023);
        counts.enter(JobState::Ready, 1024);
        counts.enter(JobState::Delayed, 0);
        assert_eq!((counts.urgent, counts.ready, counts.total()), (1, 2, 3));
        counts.leave(JobState::Ready, 1023);
        assert_eq!((counts.urgent, counts.ready, counts.total()), (0, 1, 2));
    }

    #[test]
    #[should_panic(expected = "no job is in")]
    fn a_count_never_goes_below_zero() {
        JobCounts::default().leave(JobState::Buried, 0);
    }
}
