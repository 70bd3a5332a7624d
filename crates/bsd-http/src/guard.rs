//! Whether a request may be served. A browser on this machine is a way in for every page it shows:
//! so a request has to name this server as its host, which a page under a name that was bound to
//! this address again (DNS rebinding) cannot, and one that changes something has to come from this
//! server's own pages (no forgery across sites), or from no page at all.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use hyper::{Method, StatusCode};

use super::answer::Problem;
use super::holder::Holder;
use super::route::{Role, Route, Shape};
use super::sessions::Sessions;
use bsd_net::{Guesses, Tokens};

/// Access to HTTP.
#[derive(Debug)]
pub(super) struct Access {
    /// `None`: everyone that can connect may do everything.
    tokens: Option<Tokens>,
    names: Vec<String>,
    /// Addresses that sent wrong tokens, here or over the protocol.
    pub(super) guesses: Guesses,
    /// Of browsers that have shown a token.
    pub(super) sessions: Sessions,
}

/// The asker, for the audit line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// No token is needed.
    Local,
    /// The holder of a token.
    Token(Holder),
}

impl std::fmt::Display for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Asker::Local => write!(f, "anyone here"),
            Asker::Token(holder) => write!(f, "the token in line {}", holder.line),
        }
    }
}

impl Asker {
    /// A task may be ended by its owner, and by an admin.
    pub(super) fn check_may_end(self, owner: Asker) -> Result<(), Problem> {
        match self == owner || self.role() == Role::Admin {
            true => Ok(()),
            false => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "someone else has begun this; only they and holders of the role admin may end it",
            )),
        }
    }

    /// Role of the asker.
    pub(super) fn role(self) -> Role {
        match self {
            Asker::Local => Role::Admin,
            Asker::Token(holder) => holder.role,
        }
    }
}

impl Access {
    /// Of a server on this port, over TLS or not.
    pub(super) fn new(
        tokens: Option<Tokens>,
        names: Vec<String>,
        (port, has_tls): (u16, bool),
    ) -> Access {
        Access {
            tokens,
            names,
            guesses: Guesses::default(),
            sessions: Sessions::new(port, has_tls),
        }
    }

    /// Only holders of tokens are let in.
    pub(super) fn has_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// The token of a request, if it has brought one or its session was begun with one.
    pub(super) fn token(&self, headers: &HeaderMap) -> Option<String> {
        let sent = single(headers, &AUTHORIZATION).and_then(bearer);
        match sent.filter(|token| self.holder(token).is_some()) {
            Some(token) => Some(token.to_owned()),
            None => self.sessions.token(headers),
        }
    }

    /// What browsers send comes over TLS.
    pub(super) fn is_over_tls(&self) -> bool {
        self.sessions.is_secure()
    }

    /// Whose token this is.
    pub(super) fn holder(&self, token: &str) -> Option<Holder> {
        let grant = self.tokens.as_ref()?.find(token.as_bytes())?;
        Some(Holder::of(grant))
    }

    /// The request names this server as its host. An address is no name that could be bound again.
    pub(super) fn check_host(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = single(headers, &HOST).and_then(host_of).ok_or_else(|| {
            Problem::new(StatusCode::BAD_REQUEST, "a request needs one Host field")
        })?;
        let is_ours = |name: &str| name.eq_ignore_ascii_case(host);
        if is_ours("localhost") || is_address(host) || self.names.iter().any(|name| is_ours(name)) {
            return Ok(());
        }
        Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            format!("this server is not called {host:?}; --http-name lets it be called so"),
        ))
    }

    /// Check that the asker may use this route, from where the request comes.
    pub(super) fn check(&self, route: &Route, headers: &HeaderMap) -> Result<Asker, Problem> {
        let asker = self.check_role(route, headers)?;
        match route.method == Method::GET {
            true => check_look(route, headers)?,
            false => check_origin(headers)?,
        }
        Ok(asker)
    }

    /// A program sends its token each time. A browser has a session, which opens pages alone.
    fn check_role(&self, route: &Route, headers: &HeaderMap) -> Result<Asker, Problem> {
        if !self.has_tokens() || route.role == Role::Anyone {
            return Ok(Asker::Local);
        }
        let found = single(headers, &AUTHORIZATION).and_then(bearer);
        let of_session = || match route.shape {
            Shape::Page => self.sessions.find(headers),
            _ => None,
        };
        let of_token = found.and_then(|token| self.holder(token));
        let Some(holder) = of_token.or_else(of_session) else {
            let why = "this needs a token: send `Authorization: Bearer TOKEN`";
            return Err(Problem {
                is_guess: found.is_some(),
                ..Problem::new(StatusCode::UNAUTHORIZED, why)
            });
        };
        match holder.role >= route.role {
            true => Ok(Asker::Token(holder)),
            false => Err(Problem::new(
                StatusCode::FORBIDDEN,
                match route.role {
                    Role::Admin => "this needs a token with the role admin",
                    _ => "this needs a token with the role read, for all tubes",
                },
            )),
        }
    }
}

/// The value of a field that is there once.
fn single<'a>(headers: &'a HeaderMap, name: &hyper::header::HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    value.to_str().ok()
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The host of `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`, brackets kept.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.rfind([':', ']']) {
        Some(at) if authority.as_bytes()[at] == b':' => (&authority[..at], &authority[at + 1..]),
        _ => (authority, ""),
    };
    let is_port = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_port && !host.is_empty()).then_some(host)
}

fn is_address(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        Some(v6) => v6.parse().is_ok_and(|address: IpAddr| address.is_ipv6()),
        None => host.parse().is_ok_and(|address: IpAddr| address.is_ipv4()),
    }
}

/// A page of another site may lead to a page of ours, as a link does, and have nothing else:
/// embedded content would take places here, and its sound, size or time could tell something.
/// Programs do not send these fields.
fn check_look(route: &Route, headers: &HeaderMap) -> Result<(), Problem> {
    let field = |name: &str| headers.get(name).map(|value| value.as_bytes());
    let is_of_another = matches!(field("sec-fetch-site"), Some(b"cross-site" | b"same-site"));
    let is_link = field("sec-fetch-mode") == Some(b"navigate")
        && field("sec-fetch-dest") == Some(b"document")
        && !route.is_stream();
    match is_of_another && !is_link {
        false => Ok(()),
        true => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "a page of another site may lead here and embed nothing",
        )),
    }
}

/// No page of another site sent it. Programs send neither field; browsers cannot leave them out.
fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
    let is_same_site = site.is_none_or(|site| site == b"same-origin" || site == b"none");
    let is_same_origin = !headers.contains_key(ORIGIN) || origin_is_host(headers);
    match is_same_site && is_same_origin {
        true => Ok(()),
        false => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "a page of another site may change nothing here",
        )),
    }
}

fn origin_is_host(headers: &HeaderMap) -> bool {
    let host = single(headers, &HOST);
    let origin = single(headers, &ORIGIN).and_then(|origin| origin.split_once("://"));
    matches!((origin, host), (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_host_is_an_address_localhost_or_a_name_that_was_given() {
        let access = Access::new(None, vec!["queue.example".into()], (80, false));
        for (host, is_let_in) in [
            ("127.0.0.1", true),
            ("127.0.0.1:11380", true),
            ("10.1.2.3:1", true),
            ("[::1]:11380", true),
            ("[::1]", true),
            ("LocalHost:1", true),
            ("Queue.Example", true),
            ("evil.example", false),
            ("evil.example:11380", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("127.0.0.1:80:80", false),
            ("127.0.0.1@evil", false),
            ("[127.0.0.1]", false),
            ("::1", false),
            ("localhost:http", false),
            ("", false),
            (":80", false),
        ] {
            let checked = access.check_host(&headers(&[("host", host)]));
            assert_eq!(checked.is_ok(), is_let_in, "{host}");
        }
        assert!(access.check_host(&headers(&[])).is_err());
        let twice = headers(&[("host", "localhost"), ("host", "evil.example")]);
        assert!(access.check_host(&twice).is_err());
    }

    #[test]
    fn g34_a_page_of_another_site_may_lead_here_and_embeds_nothing() {
        let route = |path: &str| match crate::routes::find(&Method::GET, path) {
            crate::routes::Found::Route(route) => route,
            found => panic!("{found:?}"),
        };
        let [cross, same, ours] =
            ["cross-site", "same-site", "same-origin"].map(|site| ("sec-fetch-site", site));
        let link = [
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        let source = [("sec-fetch-mode", "cors"), ("sec-fetch-dest", "empty")];
        for (path, is_stream) in [
            ("/", false),
            ("/tubes/default", false),
            ("/metrics", false),
            ("/events", true),
            ("/api/v1/events", true),
        ] {
            for (site, kind, is_let_in) in [
                (cross, link, !is_stream),
                (same, link, !is_stream),
                (cross, frame, false),
                (cross, source, false),
                (same, source, false),
                (ours, source, true),
                (("sec-fetch-site", "none"), link, true),
                (("host", "localhost"), [("accept", "*/*"); 2], true),
            ] {
                let fields = headers(&[site, kind[0], kind[1]]);
                let checked = check_look(route(path), &fields);
                assert_eq!(checked.is_ok(), is_let_in, "{path} {site:?} {kind:?}");
            }
        }
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let host = ("host", "localhost:11380");
        for (fields, is_let_in) in [
            (&[host][..], true),
            (&[host, ("origin", "http://localhost:11380")], true),
            (&[host, ("sec-fetch-site", "same-origin")], true),
            (&[host, ("sec-fetch-site", "none")], true),
            (&[host, ("sec-fetch-site", "same-site")], false),
            (&[host, ("sec-fetch-site", "cross-site")], false),
            (&[host, ("origin", "http://localhost:80")], false),
            (&[host, ("origin", "http://evil.example")], false),
            (&[host, ("origin", "null")], false),
        ] {
            let checked = check_origin(&headers(fields));
            assert_eq!(checked.is_ok(), is_let_in, "{fields:?}");
        }
    }
}
