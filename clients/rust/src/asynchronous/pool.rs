//! A pool of asynchronous clients.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::AsyncClient;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};

/// The same as [`Pool`](crate::Pool), for tasks of tokio.
#[derive(Debug, Clone)]
pub struct AsyncPool {
    config: Config,
    idle: Arc<Mutex<Vec<AsyncClient>>>,
    permits: Arc<Semaphore>,
}

/// A client of an [`AsyncPool`], which gets it back when this is dropped.
#[derive(Debug)]
pub struct AsyncPooled {
    client: Option<AsyncClient>,
    idle: Arc<Mutex<Vec<AsyncClient>>>,
    // Dropped last: the client is back before another task is let in.
    _permit: OwnedSemaphorePermit,
}

impl AsyncPool {
    /// A pool of at most `size` connections, 1 at least. Each is made when it is first used.
    #[must_use]
    pub fn new(config: Config, size: usize) -> AsyncPool {
        AsyncPool {
            config,
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(size.max(1))),
        }
    }

    /// A client: one that is idle, or a new one, or the first that comes back, for which it waits no
    /// longer than [`Config::timeout`].
    ///
    /// # Errors
    /// [`TimedOut`](ErrorKind::TimedOut): all of them are in use.
    pub async fn get(&self) -> Result<AsyncPooled> {
        let permit = timeout(self.config.timeout, self.permits.clone().acquire_owned()).await;
        let late = || Error::new(ErrorKind::TimedOut, "all clients of the pool are in use");
        let closed = |_| Error::new(ErrorKind::Closed, "the pool is closed");
        let permit = permit.map_err(|_| late())?.map_err(closed)?;
        let client = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let client = client.unwrap_or_else(|| AsyncClient::new(self.config.clone()));
        Ok(AsyncPooled {
            client: Some(client),
            idle: self.idle.clone(),
            _permit: permit,
        })
    }
}

impl Deref for AsyncPooled {
    type Target = AsyncClient;

    fn deref(&self) -> &AsyncClient {
        self.client.as_ref().expect("taken only when dropped")
    }
}

impl DerefMut for AsyncPooled {
    fn deref_mut(&mut self) -> &mut AsyncClient {
        self.client.as_mut().expect("taken only when dropped")
    }
}

impl Drop for AsyncPooled {
    fn drop(&mut self) {
        if let Some(mut client) = self.client.take() {
            client.reset();
            self.idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::calls;
    use crate::link::Step;

    #[tokio::test]
    async fn a_timeout_that_one_user_sets_is_not_that_of_the_next_one() {
        let timeout = Duration::from_secs(1);
        let config: Config = "host".parse().unwrap();
        let pool = AsyncPool::new(config.timeout(timeout), 1);
        pool.get()
            .await
            .unwrap()
            .set_timeout(Duration::from_millis(1));
        let (mut client, now) = (pool.get().await.unwrap(), Instant::now());
        let call = calls::capabilities();
        client.link.begin(vec![call.request], now, true);
        let Step::Connect(_, until) = client.link.next(now) else {
            panic!("it does not connect");
        };
        assert_eq!(until, now + timeout);
    }
}
