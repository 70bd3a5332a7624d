//! Where a server is, and how it is talked to.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::job::check_word;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// The port of an address that names none.
const PORT_DEFAULT: u16 = 11_300;

/// One server, or the members of one cluster: where they are, and how they are talked to.
///
/// As text it is one address, or several with commas between them: `HOST`, `HOST:PORT`,
/// `tls:HOST:PORT` or `unix:PATH`. Several addresses are members of one cluster: any of them that
/// answers will do, because a follower passes its clients on to the leader. When the leader changes all
/// connections end, and the next call connects to the same member or the next one in the list.
///
/// ```
/// use bsd_client::Config;
/// use std::time::Duration;
///
/// let config: Config = "10.0.0.1:11300,10.0.0.2:11300,10.0.0.3:11300".parse()?;
/// let config = config.token("4dd7").timeout(Duration::from_secs(5));
/// # let _ = config;
/// # Ok::<(), bsd_client::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    pub(crate) addresses: Vec<Address>,
    pub(crate) token: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) backoff_min: Duration,
    pub(crate) backoff_max: Duration,
    pub(crate) body_max: usize,
    pub(crate) repeats: bool,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

impl fmt::Debug for Config {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("addresses", &self.addresses)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp {
        host: String,
        port: u16,
        is_tls: bool,
    },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port, is_tls } => {
                let tls = if *is_tls { "tls:" } else { "" };
                match host.contains(':') {
                    true => write!(f, "{tls}[{host}]:{port}"),
                    false => write!(f, "{tls}{host}:{port}"),
                }
            }
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        let wrong = || {
            Error::usage(format!(
                "{text:?} is no address: HOST, HOST:PORT, [IPV6]:PORT, tls:HOST:PORT or unix:PATH"
            ))
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(path.into()));
        }
        let (rest, is_tls) = match text.strip_prefix("tls:") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        if is_tls && !cfg!(feature = "tls") {
            return Err(Error::usage(
                "this program was built without the feature tls",
            ));
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
                (host, rest.strip_prefix(':'))
            }
            None if rest.matches(':').count() > 1 => (rest, None),
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let port = port.map_or(Ok(PORT_DEFAULT), |port| port.parse().map_err(|_| wrong()))?;
        if check_word(host).is_err() {
            return Err(wrong());
        }
        let host = host.to_owned();
        Ok(Address::Tcp { host, port, is_tls })
    }
}

impl Config {
    /// The members of one cluster, or the one server that there is.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): no address, or one that cannot be read.
    pub fn new<A: AsRef<str>>(addresses: impl IntoIterator<Item = A>) -> Result<Config> {
        let addresses = addresses.into_iter();
        let addresses: Result<Vec<Address>> = addresses.map(|it| it.as_ref().parse()).collect();
        let addresses = addresses?;
        if addresses.is_empty() {
            return Err(Error::usage("a server needs an address"));
        }
        Ok(Config {
            addresses,
            token: None,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(3),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            body_max: 64 * 1024 * 1024,
            repeats: true,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// The token that each connection sends first.
    pub fn token(mut self, token: impl Into<String>) -> Config {
        self.token = Some(token.into());
        self
    }

    /// How long a call may take from its begin, or from the last answer of several, with all attempts to
    /// connect again. Time that a reserve waits for a job is not counted. 10 seconds.
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout;
        self
    }

    /// How long one attempt to connect may take, with the greeting. 3 seconds. Looking up the name of a
    /// host takes as long as the system lets it.
    pub fn connect_timeout(mut self, timeout: Duration) -> Config {
        self.connect_timeout = timeout;
        self
    }

    /// The first and the longest pause between attempts to connect. Each is twice the one before, and a
    /// half of it is by chance. 50 milliseconds and 5 seconds.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Config {
        self.backoff_min = min;
        self.backoff_max = max.max(min);
        self
    }

    /// The largest body and the largest document that are taken from the server, bytes. 64 MiB.
    pub fn body_max(mut self, bytes: usize) -> Config {
        self.body_max = bytes;
        self
    }

    /// Whether what was sent and not answered is sent once more where that is safe. If not, it is
    /// [`Unanswered`](crate::ErrorKind::Unanswered), whatever it was. `true`.
    pub fn repeats(mut self, repeats: bool) -> Config {
        self.repeats = repeats;
        self
    }

    /// Authorities and certificates for addresses that begin with `tls:`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Config {
        self.tls = Some(tls);
        self
    }
}

impl FromStr for Config {
    type Err = Error;

    fn from_str(text: &str) -> Result<Config> {
        Config::new(text.split(','))
    }
}

impl TryFrom<&str> for Config {
    type Error = Error;

    fn try_from(text: &str) -> Result<Config> {
        text.parse()
    }
}

impl TryFrom<&String> for Config {
    type Error = Error;

    fn try_from(text: &String) -> Result<Config> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_port() {
        for (text, shown) in [
            ("localhost", "localhost:11300"),
            ("10.0.0.1:1", "10.0.0.1:1"),
            ("[::1]:1", "[::1]:1"),
            ("::1", "[::1]:11300"),
            ("unix:/run/bsd", "unix:/run/bsd"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in ["", ":1", "a:b", "[::1", "a b"] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
        assert_eq!("a,b".parse::<Config>().unwrap().addresses.len(), 2);
        let shown = format!("{:?}", "a".parse::<Config>().unwrap().token("secret"));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
