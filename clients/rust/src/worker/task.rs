//! What a handler gets, and what it answers.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use super::stop::Stopper;
use crate::job::JobId;

/// A job, as its handler gets it. It dereferences to the body.
#[derive(Debug, Clone)]
pub struct Task<T> {
    /// Its id.
    pub id: JobId,
    /// Its tube, if it is known: of a server without `reserve-batch` it is when the worker has one tube.
    pub tube: Option<String>,
    /// Its body.
    pub body: T,
    pub(super) lease: Arc<Lease>,
    pub(super) stopper: Stopper,
}

impl<T> Task<T> {
    /// True if the worker stops: a handler with long work may end it early, with an error, and the job is
    /// tried again elsewhere.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopper.is_stopped()
    }

    /// True if the job is not reserved any more, because the connection was lost or its time was over.
    /// Another worker may have it.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lease.is_lost()
    }

    pub(super) fn with<U>(self, body: U) -> (Task<U>, T) {
        let task = Task {
            id: self.id,
            tube: self.tube,
            body,
            lease: self.lease,
            stopper: self.stopper,
        };
        (task, self.body)
    }
}

impl<T> Deref for Task<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.body
    }
}

/// Why a handler could not do its job. Every error becomes one by `?`, with the texts of its sources; the
/// text is what the server keeps.
///
/// ```
/// use bsd_client::worker::Failure;
///
/// fn port(text: &str) -> Result<u16, Failure> {
///     match text.parse()? {
///         0 => Err(Failure::new("the port is 0").never_again()),
///         port => Ok(port),
///     }
/// }
/// assert_eq!(port("x").unwrap_err().to_string(), "invalid digit found in string");
/// assert_eq!(port("0").unwrap_err().to_string(), "the port is 0");
/// ```
pub struct Failure {
    pub(super) text: String,
    pub(super) then: Then,
}

/// What the handler wants of a job that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// What the policy says.
    Policy,
    After(Duration),
    Never,
}

impl Failure {
    /// With this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Failure {
        let text = text.into();
        let then = Then::Policy;
        Failure { text, then }
    }

    /// It is no use to try again: the job is buried, with the text as its reason.
    #[must_use]
    pub fn never_again(mut self) -> Failure {
        self.then = Then::Never;
        self
    }

    /// Try again after this time, and not when the policy says: the job is released with this delay. The
    /// delivery counts, and the text is only in the log lines of the worker.
    #[must_use]
    pub fn again_after(mut self, delay: Duration) -> Failure {
        self.then = Then::After(delay);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("text", &self.text)
            .field("then", &self.then)
            .finish()
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        Failure::new(text)
    }
}
