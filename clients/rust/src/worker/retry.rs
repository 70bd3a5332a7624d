//! Retries where the server has none.

use std::time::Duration;

/// What a worker does with a job that has failed at a server that does not know `fail`: beanstalkd, or
/// bsd with `--protocol beanstalkd`. A server with `fail` never sees this: there the policy of the tube
/// says when a job is tried again, and how often.
///
/// The worker asks `stats-job` how often the job was released, and releases it with the next delay. When
/// it has failed [`Retry::limit`] times it is buried. A job that ends its worker, or whose time to run is
/// over, is not counted: only the policy of a server can do that.
///
/// ```
/// use bsd_client::worker::Retry;
/// use std::time::Duration;
///
/// let retry = Retry::default();
/// assert_eq!(retry.delay(0), Some(Duration::from_secs(5)));
/// assert_eq!(retry.delay(2), Some(Duration::from_secs(20)));
/// assert_eq!(retry.delay(7), None);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Deliveries that may fail.
    pub limit: u32,
    /// The delay after the first one.
    pub min: Duration,
    /// Each further delay is the one before times this.
    pub multiplier: f64,
    /// The longest delay.
    pub max: Duration,
}

impl Default for Retry {
    /// 8 deliveries; 5 seconds, doubled each time, an hour at most.
    fn default() -> Retry {
        Retry {
            limit: 8,
            min: Duration::from_secs(5),
            multiplier: 2.0,
            max: Duration::from_secs(3600),
        }
    }
}

impl Retry {
    /// How long a job waits that was released this many times before it failed again; `None`: it is
    /// buried.
    #[must_use]
    pub fn delay(&self, releases: u32) -> Option<Duration> {
        if releases.saturating_add(1) >= self.limit {
            return None;
        }
        let factor = self
            .multiplier
            .max(1.0)
            .powi(i32::try_from(releases).unwrap_or(i32::MAX));
        let seconds = self.min.as_secs_f64() * factor;
        let delay = Duration::try_from_secs_f64(seconds).unwrap_or(self.max);
        Some(delay.min(self.max))
    }
}
