//! Where a server listens, in words: `-l`, `-p` and lists of listeners.

use std::fmt;
use std::io;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use crate::layers::Layers;
use bsd::UsageError;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// A name, or an address of either family without brackets.
        host: String,
        /// The port of that host.
        port: Port,
        /// Layers between the socket and the protocol.
        layers: Layers,
    },
    /// A Unix socket.
    Unix {
        /// The path of its file.
        path: PathBuf,
        /// The permissions of that file; `None`: what the process's umask leaves.
        mode: Option<u32>,
    },
}

/// A TCP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// Its number; 0 lets the kernel choose.
    Number(u16),
    /// The name of a service, which [`Bound::bind`](super::Bound::bind) looks up in `/etc/services`.
    Service(String),
}

impl std::str::FromStr for Port {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Port, UsageError> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-+.".contains(&byte);
        match text.parse() {
            Ok(number) => Ok(Port::Number(number)),
            Err(_)
                if text.bytes().all(is_of_name)
                    && text.bytes().any(|byte| byte.is_ascii_alphabetic()) =>
            {
                Ok(Port::Service(text.to_owned()))
            }
            Err(_) => Err(format!("'{}' is not a port", text.escape_debug()).into()),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Number(number) => number.fmt(f),
            Port::Service(name) => f.write_str(name),
        }
    }
}

impl Port {
    pub(super) fn number(&self) -> io::Result<u16> {
        const SERVICES: &str = "/etc/services";
        match self {
            Port::Number(number) => Ok(*number),
            Port::Service(name) => service(name, &std::fs::read_to_string(SERVICES)?)
                .ok_or_else(|| io::Error::other(format!("{SERVICES} names no {name}/tcp"))),
        }
    }
}

/// The TCP port of a service in a text like `/etc/services`: `NAME PORT/PROTOCOL ALIAS… # …`.
fn service(name: &str, services: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let first = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?;
        let is_it = first == name || words.any(|alias| alias == name);
        is_it.then(|| port.parse().ok())?
    })
}

impl Address {
    /// Parse `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT`, a bare IPv6 address, each perhaps with
    /// `tls:`, `proxy:` or `proxy+tls:` before it, `unix:PATH`, or `unix:PATH,mode=OCTAL`. If the text names no port, `port`
    /// is used. Names are not looked up here.
    ///
    /// # Errors
    /// The fault of the text, as a message for the user.
    pub fn parse(text: &str, port: &Port) -> Result<Address, UsageError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_address(path);
        }
        let (layers, text) = Layers::split(text);
        let (host, own_port) = split_port(text)?;
        if host.is_empty() {
            return Err("no host is named".into());
        }
        let port = own_port.map_or(Ok(port.clone()), str::parse)?;
        Ok(Address::Tcp {
            host: host.into(),
            port,
            layers,
        })
    }

    /// Layers between the socket and the protocol.
    #[must_use]
    pub fn layers(&self) -> Layers {
        match self {
            Address::Tcp { layers, .. } => *layers,
            Address::Unix { .. } => Layers::NONE,
        }
    }
}

fn unix_address(text: &str) -> Result<Address, UsageError> {
    let (path, mode) = match text.rsplit_once(",mode=") {
        Some((path, mode)) => (path, Some(parse_mode(mode)?)),
        None => (text, None),
    };
    if path.is_empty() {
        return Err("no path follows unix:".into());
    }
    Ok(Address::Unix {
        path: path.into(),
        mode,
    })
}

/// Read and write for owner, group and others; the other bits have no meaning for a socket.
fn parse_mode(text: &str) -> Result<u32, UsageError> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777 && text.bytes().all(|byte| byte.is_ascii_digit()))
        .ok_or_else(|| {
            UsageError::new(format_args!(
                "'{}' is no mode: three octal digits, such as 0660, are expected",
                text.escape_debug()
            ))
        })
}

/// Split at the colon before the port. More than one colon outside brackets means an IPv6 address
/// without a port.
fn split_port(text: &str) -> Result<(&str, Option<&str>), UsageError> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or("a closing ] is missing")?;
        return match (rest, rest.strip_prefix(':')) {
            ("", _) => Ok((host, None)),
            (_, Some(port)) => Ok((host, Some(port))),
            _ => Err("a port is written :PORT after the ]".into()),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => {
            // What follows a % is the interface of a link-local address.
            let ip = text.split_once('%').map_or(text, |(ip, _)| ip);
            let _: Ipv6Addr = ip.parse().map_err(|_| {
                "this is no IPv6 address; before HOST:PORT there may be tls:, proxy: or proxy+tls:"
            })?;
            Ok((text, None))
        }
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port, layers } if host.contains(':') => {
                write!(f, "{layers}[{host}]:{port}")
            }
            Address::Tcp { host, port, layers } => write!(f, "{layers}{host}:{port}"),
            Address::Unix { path, mode } => {
                write!(f, "unix:{}", path.display())?;
                mode.map_or(Ok(()), |mode| write!(f, ",mode={mode:04o}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_a_port_or_a_path() {
        let tcp = |host: &str, port| {
            Ok(Address::Tcp {
                host: host.into(),
                port: Port::Number(port),
                layers: Layers::NONE,
            })
        };
        let unix = |path: &str, mode| {
            Ok(Address::Unix {
                path: path.into(),
                mode,
            })
        };
        let table = [
            ("127.0.0.1", tcp("127.0.0.1", 9)),
            ("localhost", tcp("localhost", 9)),
            ("localhost:80", tcp("localhost", 80)),
            ("0.0.0.0:0", tcp("0.0.0.0", 0)),
            ("::1", tcp("::1", 9)),
            ("fe80::1%eth0", tcp("fe80::1%eth0", 9)),
            ("[::1]", tcp("::1", 9)),
            ("[::1]:80", tcp("::1", 80)),
            ("unix:/run/q", unix("/run/q", None)),
            ("unix:q:1", unix("q:1", None)),
            ("unix:q,mode=0660", unix("q", Some(0o660))),
            ("unix:q,mode=7", unix("q", Some(7))),
            ("unix:a,b,mode=666", unix("a,b", Some(0o666))),
            ("unix:a,b", unix("a,b", None)),
        ];
        for (text, expected) in table {
            assert_eq!(Address::parse(text, &Port::Number(9)), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            ":80",
            "unix:",
            "host:",
            "host:x_y",
            "host:65536",
            "unix:q,mode=",
            "unix:q,mode=8",
            "unix:q,mode=+7",
            "unix:q,mode=1777",
            "unix:,mode=7",
            "tls:",
            "tls:unix:/run/q",
            "proxy:unix:/run/q",
            "tls+proxy:a:80",
            "TLS:a:80",
            "http:a:80",
            "[::1",
            "[::1]80",
            "[]:1",
        ] {
            assert!(Address::parse(text, &Port::Number(9)).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_reads_back_as_it_is_shown() {
        for text in [
            "127.0.0.1:80",
            "[::1]:http-alt",
            "tls:[::1]:80",
            "tls:a:80",
            "proxy:a:80",
            "proxy+tls:[::1]:80",
            "unix:/run/q",
            "unix:q,mode=0660",
        ] {
            let parse = |text: &str| Address::parse(text, &Port::Number(9));
            let address = parse(text).unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(parse(&address.to_string()), Ok(address));
        }
    }

    #[test]
    fn f45_services_are_found_by_name_and_by_alias() {
        let services = "# NAME PORT\nssh 22/tcp\nntp 123/udp\nhttp-alt\t8080/tcp webcache # x y\n";
        for (name, port) in [
            ("ssh", Some(22)),
            ("http-alt", Some(8080)),
            ("webcache", Some(8080)),
            ("ntp", None),
            ("x", None),
            ("#", None),
            ("22/tcp", None),
        ] {
            assert_eq!(service(name, services), port, "{name}");
        }
        let error = Port::Service("no-such-service".into())
            .number()
            .unwrap_err();
        assert!(error.to_string().contains("no-such-service"), "{error}");
    }
}
