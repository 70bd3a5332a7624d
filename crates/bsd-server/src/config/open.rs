//! The warning of a start about open access: what is open, and to whom.

use std::net::{IpAddr, SocketAddr};

use super::Config;
use bsd_net::{Address, Layers, Port};

impl Config {
    /// The access that others have without showing an identity, or the traffic that they can read;
    /// `None`: clients are of this machine alone, or are authenticated and encrypted. `listeners`
    /// are as the server names them. Proxies are trusted with the clients that they let in.
    #[must_use]
    pub fn open_to(&self, listeners: &[String], http: Option<SocketAddr>) -> Option<String> {
        let mut found = Vec::new();
        let reached: Vec<(&String, Layers)> = listeners
            .iter()
            .filter_map(|name| Some((name, reached_by_others(name)?)))
            .collect();
        let names = |is_it: &dyn Fn(Layers) -> bool| {
            let names = reached.iter().filter(|(_, layers)| is_it(*layers));
            let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
            (!names.is_empty()).then(|| names.join(" and "))
        };
        let is_asked = |layers: Layers| self.auth_file.is_some() || self.checks_clients(layers.tls);
        if let Some(names) = names(&|layers| !is_asked(layers)) {
            found.push(format!(
                "anyone who reaches {names} may put, reserve and delete every job, as none asks for \
                 a token (--auth-file) or a certificate (-l tls:ADDR with --tls-client-ca)"
            ));
        }
        if let Some(names) = names(&|layers| is_asked(layers) && !layers.tls) {
            found.push(format!(
                "tokens and jobs pass {names} unencrypted (-l tls:ADDR encrypts)"
            ));
        }
        found.extend(http.and_then(|address| self.http_open_to(address, listeners)));
        (!found.is_empty()).then(|| format!("open to others: {}", found.join("; ")))
    }

    /// The same, of HTTP. Without tokens it is served on this machine alone. Where all listeners are
    /// Unix sockets, the mode of their files says which users of it are clients.
    fn http_open_to(&self, address: SocketAddr, listeners: &[String]) -> Option<String> {
        let setup = self.http.as_ref()?;
        let is_here = address.ip().to_canonical().is_loopback();
        if setup.tokens.is_some() {
            return (!is_here && !setup.has_tls).then(|| {
                format!(
                    "tokens and jobs pass HTTP on {address} unencrypted (--http tls:ADDR encrypts)"
                )
            });
        }
        let has_modes = listeners.iter().all(|name| name.starts_with("unix:"));
        let asks_clients = self.auth_file.is_some() || self.checks_clients(true) || has_modes;
        let asks_here = self.checks_clients(setup.has_tls);
        (asks_clients && !asks_here).then(|| {
            format!(
                "everyone on this machine may see and change every job over HTTP on {address}, \
                 which asks for no token (--http-tokens FILE asks; --http off serves none)"
            )
        })
    }

    /// Where there is TLS, clients must show a certificate.
    fn checks_clients(&self, has_tls: bool) -> bool {
        let files = self.tls.as_ref().filter(|_| has_tls);
        files.is_some_and(|files| files.client_ca.is_some())
    }
}

/// The layers of a listener that other machines reach without a proxy.
fn reached_by_others(name: &str) -> Option<Layers> {
    let Ok(Address::Tcp { host, layers, .. }) = Address::parse(name, &Port::Number(0)) else {
        return None;
    };
    let is_here = |ip: IpAddr| ip.to_canonical().is_loopback();
    let is_reached = !layers.proxy && !host.parse().is_ok_and(is_here);
    is_reached.then_some(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str, listeners: &[&str], http: &str) -> String {
        let words = format!("bsd-server {line}");
        let config = Config::parse(words.split_whitespace()).expect("flags");
        let listeners: Vec<String> = listeners.iter().map(|it| (*it).to_owned()).collect();
        let http = http.parse().ok();
        config.open_to(&listeners, http).unwrap_or_default()
    }

    #[test]
    fn g32_what_is_open_to_whom_is_one_sentence_and_nothing_where_nothing_is() {
        const FILES: &str = "-l tls:h --tls-cert c --tls-key k";
        const ANYONE: &str = "may put, reserve and delete every job";
        const PLAIN: &str = "unencrypted";
        const HERE: &str = "everyone on this machine";
        let with_ca = format!("{FILES} --tls-client-ca a");
        let here = "127.0.0.1:11380";
        let table: [(&str, &[&str], &str, &[&str]); 20] = [
            ("", &["unix:/s"], here, &[HERE]),
            ("", &["unix:/s"], "", &[]),
            ("--http-tokens t", &["unix:/s"], here, &[]),
            ("", &["127.0.0.1:1", "[::1]:1", "unix:/s"], here, &[]),
            ("", &["[::ffff:127.0.0.1]:1", "127.8.0.1:1"], here, &[]),
            ("", &["0.0.0.0:1"], here, &[ANYONE]),
            ("", &["[::]:1"], "", &[ANYONE]),
            ("", &["10.0.0.1:1"], here, &[ANYONE]),
            (FILES, &["tls:0.0.0.0:1"], "", &[ANYONE]),
            (&with_ca, &["tls:0.0.0.0:1"], "", &[]),
            (&with_ca, &["tls:0.0.0.0:1"], here, &[HERE]),
            (&with_ca, &["tls:0.0.0.0:1", "0.0.0.0:2"], "", &[ANYONE]),
            ("--auth-file f", &["127.0.0.1:1"], "", &[]),
            ("--auth-file f", &["127.0.0.1:1"], here, &[HERE]),
            ("--auth-file f --http-tokens t", &["127.0.0.1:1"], here, &[]),
            (
                "--auth-file f --http-tokens t",
                &["0.0.0.0:1"],
                here,
                &[PLAIN],
            ),
            ("--http-tokens t", &["127.0.0.1:1"], "10.0.0.1:2", &[PLAIN]),
            (
                "--http-tokens t",
                &["0.0.0.0:1"],
                "10.0.0.1:2",
                &[ANYONE, PLAIN],
            ),
            ("--auth-file f", &["0.0.0.0:1"], here, &[PLAIN, HERE]),
            ("", &["proxy:0.0.0.0:1", "proxy+tls:0.0.0.0:2"], here, &[]),
        ];
        for (line, listeners, http, expected) in table {
            let said = said(line, listeners, http);
            for part in [ANYONE, PLAIN, HERE] {
                let is_expected = expected.contains(&part);
                assert_eq!(
                    said.contains(part),
                    is_expected,
                    "{line} {listeners:?}: {said}"
                );
            }
            assert_eq!(said.is_empty(), expected.is_empty(), "{line}: {said}");
            assert!(!said.contains('\n'));
        }
        let both = said("", &["10.0.0.1:1", "tls:0.0.0.0:2", "127.0.0.1:3"], "");
        assert!(
            both.contains("anyone who reaches 10.0.0.1:1 and tls:0.0.0.0:2 may"),
            "{both}"
        );
        let tls = format!("{with_ca} --http tls:127.0.0.1:4");
        assert_eq!(said(&tls, &["tls:0.0.0.0:1"], "127.0.0.1:4"), "");
    }
}
