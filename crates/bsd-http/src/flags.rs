//! Flags of HTTP.

use std::path::PathBuf;

use clap::Args;

use super::{HTTP_PORT_DEFAULT, Setup, TUBES_MAX_DEFAULT};
use bsd::UsageError;
use bsd_net::{Address, Port};

/// The flags, as they were said.
#[derive(Debug, Clone, Args)]
pub struct HttpArgs {
    /// Serve HTTP on ADDR: HOST, HOST:PORT or [IPV6]:PORT, with `tls:` before it over TLS; `off`:
    /// nowhere [default: 127.0.0.1:11380]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,

    /// Serve HTTP to callers with a token of FILE, and so also elsewhere than on this machine; it has
    /// lines as that of --auth-file, and may be the same
    #[arg(long, value_name = "FILE")]
    http_tokens: Option<PathBuf>,

    /// Serve HTTP also to who calls this server NAME; may be repeated
    #[arg(long, value_name = "NAME")]
    http_name: Vec<String>,

    /// Give N tubes metrics of their own, and sum up the others
    #[arg(long, value_name = "N", default_value_t = TUBES_MAX_DEFAULT)]
    http_tubes_max: usize,
}

impl HttpArgs {
    /// The setup of HTTP; `None`: HTTP is off.
    ///
    /// # Errors
    /// The fault of the address.
    pub fn setup(&self) -> Result<Option<Setup>, UsageError> {
        let setup = Setup {
            tokens: self.http_tokens.clone(),
            names: self.http_name.clone(),
            tubes_max: self.http_tubes_max,
            ..Setup::default()
        };
        let text = match self.http.as_deref() {
            None => return Ok(Some(setup)),
            Some("off") => return Ok(None),
            Some(text) => text,
        };
        match Address::parse(text, &Port::Number(HTTP_PORT_DEFAULT))? {
            Address::Tcp {
                host,
                port: Port::Number(port),
                layers,
            } if !layers.proxy => Ok(Some(Setup {
                host,
                port,
                is_default: false,
                has_tls: layers.tls,
                ..setup
            })),
            Address::Tcp { layers, .. } if layers.proxy => {
                Err("HTTP is served without the PROXY protocol".into())
            }
            Address::Tcp { .. } => Err("the port is a number".into()),
            Address::Unix { .. } => Err("HTTP is served on TCP alone".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        http: HttpArgs,
    }

    fn setup(line: &str) -> Result<Option<Setup>, UsageError> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().http.setup()
    }

    #[test]
    fn http_is_on_at_loopback_unless_told_otherwise() {
        assert_eq!(setup("").unwrap(), Some(Setup::default()));
        assert_eq!(setup("--http off").unwrap(), None);
    }

    #[test]
    fn an_address_may_leave_the_port_out() {
        for (line, host, port) in [
            ("--http localhost", "localhost", 11380),
            ("--http [::1]:80", "::1", 80),
            ("--http 10.0.0.1:0", "10.0.0.1", 0),
        ] {
            let setup = setup(line).unwrap().unwrap();
            assert_eq!((&*setup.host, setup.port), (host, port), "{line}");
            assert!(!setup.is_default);
        }
    }

    #[test]
    fn tls_is_asked_for_before_the_address() {
        let setup = setup("--http tls:[::1]:443").unwrap().unwrap();
        assert_eq!(
            (&*setup.host, setup.port, setup.has_tls),
            ("::1", 443, true)
        );
        assert_eq!(setup.to_string(), "tls:[::1]:443");
    }

    #[test]
    fn what_is_no_tcp_address_is_refused() {
        for line in [
            "--http unix:/x",
            "--http a:http",
            "--http :1",
            "--http proxy:a",
            "--http proxy+tls:a",
        ] {
            assert!(setup(line).is_err(), "{line}");
        }
    }

    #[test]
    fn tokens_and_names_are_taken_as_given() {
        let line = "--http-tokens /t --http-name a.example --http-name b.example";
        let setup = setup(line).unwrap().unwrap();
        assert_eq!(setup.tokens, Some("/t".into()));
        assert_eq!(setup.names, ["a.example", "b.example"]);
    }
}
