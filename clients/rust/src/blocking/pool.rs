//! A pool of blocking clients.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Client;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};

/// A pool of connections to one server or cluster, for many threads.
///
/// A client that is taken uses and watches `default`, and has the token and the timeout of the pool's
/// configuration. When it is dropped it goes back; jobs that it has reserved and not finished are ready
/// again.
///
/// ```no_run
/// use bsd_client::{Pool, Put};
///
/// let pool = Pool::new("127.0.0.1:11300".parse()?, 8);
/// pool.get()?.put(Put::new("to: you").tube("mail"))?;
/// # Ok::<(), bsd_client::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<Client>,
    /// Clients that may still be taken, idle ones among them.
    left: usize,
}

/// A client of a [`Pool`], which gets it back when this is dropped.
#[derive(Debug)]
pub struct Pooled {
    client: Option<Client>,
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool of at most `size` connections, 1 at least. Each is made when it is first used.
    #[must_use]
    pub fn new(config: Config, size: usize) -> Pool {
        let state = State {
            idle: Vec::new(),
            left: size.max(1),
        };
        let shared = Shared {
            config,
            state: Mutex::new(state),
            returned: Condvar::new(),
        };
        let shared = Arc::new(shared);
        Pool { shared }
    }

    /// A client: one that is idle, or a new one, or the first that comes back, for which it waits no
    /// longer than [`Config::timeout`].
    ///
    /// # Errors
    /// [`TimedOut`](ErrorKind::TimedOut): all of them are in use.
    pub fn get(&self) -> Result<Pooled> {
        self.get_within(self.shared.config.timeout)
    }

    /// The same, with a limit of its own.
    ///
    /// # Errors
    /// [`TimedOut`](ErrorKind::TimedOut): all of them are in use.
    pub fn get_within(&self, time: Duration) -> Result<Pooled> {
        let until = Instant::now() + time;
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while state.left == 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = "all clients of the pool are in use";
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            let waited = self.shared.returned.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.left -= 1;
        let client = state.idle.pop();
        drop(state);
        let client = client.unwrap_or_else(|| Client::new(self.shared.config.clone()));
        let client = Some(client);
        let shared = self.shared.clone();
        Ok(Pooled { client, shared })
    }
}

impl Deref for Pooled {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("taken only when dropped")
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("taken only when dropped")
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.left += 1;
        if let Some(mut client) = self.client.take() {
            client.reset();
            state.idle.push(client);
        }
        drop(state);
        self.shared.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::calls;
    use crate::link::Step;

    #[test]
    fn a_timeout_that_one_user_sets_is_not_that_of_the_next_one() {
        let timeout = Duration::from_secs(1);
        let config: Config = "host".parse().unwrap();
        let pool = Pool::new(config.timeout(timeout), 1);
        pool.get().unwrap().set_timeout(Duration::from_millis(1));
        let (mut client, now) = (pool.get().unwrap(), Instant::now());
        let call = calls::capabilities();
        client.link.begin(vec![call.request], now, true);
        let Step::Connect(_, until) = client.link.next(now) else {
            panic!("it does not connect");
        };
        assert_eq!(until, now + timeout);
    }
}
