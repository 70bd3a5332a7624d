//! A list of servers: each tube is on one of them, and jobs come from all of them.

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod member;
mod methods;
mod placement;
mod round;
#[cfg(test)]
mod virtual_time;

use std::collections::BTreeMap;

#[cfg(feature = "tokio")]
pub use self::asynchronous::AsyncServersClient;
pub use self::blocking::ServersClient;
pub use self::placement::score;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::job::{Job, check_tube};

/// Servers, each alone or a cluster, among which tubes are shared out.
///
/// A tube is on the server with the highest [`score`], unless it is pinned to another. Every client that
/// has the same names and pins finds a tube at the same server. If a server is away the jobs of its tubes
/// wait there, and puts into them are refused; all other tubes work on.
///
/// ```
/// use bsd_client::{Config, Servers};
///
/// let one: Config = "10.0.0.1:11300".parse()?;
/// let cluster: Config = "10.0.1.1:11300,10.0.1.2:11300,10.0.1.3:11300".parse()?;
/// let servers = Servers::new([("one", one), ("cluster", cluster)])?.pin("billing", "cluster")?;
/// assert_eq!(servers.place("billing"), "cluster");
/// # Ok::<(), bsd_client::Error>(())
/// ```
///
/// [`client`](Servers::client) gives a blocking client of all of them, `async_client` one for tasks of
/// tokio (feature `tokio`).
#[derive(Debug, Clone)]
pub struct Servers {
    list: Vec<(String, Config)>,
    pins: BTreeMap<String, usize>,
}

impl Servers {
    /// These servers, by their names. A name is what places tubes: an address may change, and a name may
    /// not.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): the list is empty, or two have the same name.
    pub fn new<N: Into<String>>(list: impl IntoIterator<Item = (N, Config)>) -> Result<Servers> {
        let list = list.into_iter().map(|(name, config)| (name.into(), config));
        let list: Vec<(String, Config)> = list.collect();
        let mut names: Vec<_> = list.iter().map(|(name, _)| name).collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::usage(format!("two servers are called {}", pair[0])));
        }
        if list.is_empty() {
            return Err(Error::usage("the list has no server"));
        }
        let pins = BTreeMap::new();
        Ok(Servers { list, pins })
    }

    /// Have a tube on this server, whatever its score is.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): there is no such server, or it is no name of a tube.
    pub fn pin(mut self, tube: &str, server: &str) -> Result<Servers> {
        check_tube(tube)?;
        let found = self.list.iter().position(|(name, _)| name == server);
        let unknown = || Error::usage(format!("no server is called {server}"));
        self.pins
            .insert(tube.to_owned(), found.ok_or_else(unknown)?);
        Ok(self)
    }

    /// The name of the server on which a tube is.
    #[must_use]
    pub fn place(&self, tube: &str) -> &str {
        &self.list[self.index_of(tube)].0
    }

    fn index_of(&self, tube: &str) -> usize {
        let pinned = self.pins.get(tube).copied();
        let names = self.list.iter().map(|(name, _)| name.as_str());
        pinned
            .or_else(|| placement::place(names, tube))
            .unwrap_or(0)
    }
}

/// A job, and the server that it is on: ids of different servers may be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerJob {
    /// The job.
    pub job: Job,
    server: usize,
}
