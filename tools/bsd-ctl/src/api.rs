//! The server's API over HTTP: for what the protocol has no command for. beanstalkd has none.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bsd_client::Tls;
use clap::Args;
use serde_json::Value;
use ureq::http::{Method, Request, Response};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use crate::tls::TlsArgs;
use crate::{Context, Failure};

/// Address of the API, and the identity of the caller.
#[derive(Args)]
pub(crate) struct ApiArgs {
    /// The server's HTTP: HOST:PORT, or https://HOST:PORT over TLS
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "BSD_CTL_HTTP",
        hide_env_values = true,
        default_value = "127.0.0.1:11380"
    )]
    http: String,
    /// The file whose first line is the token, where the server wants one
    #[arg(
        long,
        value_name = "FILE",
        env = "BSD_CTL_TOKEN_FILE",
        hide_env_values = true
    )]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// The longest wait for an API that is only asked for more than the protocol tells.
const EXTRA_TIME: Duration = Duration::from_secs(2);

impl ApiArgs {
    /// The API of the server that has this `id` in its `stats`, and its answer to `/server`, if it is
    /// there and may be asked. beanstalkd has none.
    pub(crate) fn of_server(&self, id: &str, context: &Context<'_>) -> Option<(Api, Value)> {
        let api = self.open_hurried(context).ok()?;
        let server = api.get("/server").ok()?;
        (!id.is_empty() && server["id"] == *id).then_some((api, server))
    }

    /// The API, for what is asked of it beside the protocol: it is not waited for as long.
    ///
    /// # Errors
    /// As of [`ApiArgs::open`].
    pub(crate) fn open_hurried(&self, context: &Context<'_>) -> Result<Api, Failure> {
        let mut api = self.open(context)?;
        api.hurry(EXTRA_TIME);
        Ok(api)
    }

    /// The file with the token, and TLS, for a connection of the protocol.
    ///
    /// # Errors
    /// One of the files for TLS cannot be read.
    pub(crate) fn for_protocol(&self) -> Result<(Option<&PathBuf>, Option<Tls>), Failure> {
        Ok((self.token_file.as_ref(), self.tls.for_protocol()?))
    }

    /// # Errors
    /// The file with the token, or one of those for TLS, cannot be read.
    pub(crate) fn open(&self, context: &Context<'_>) -> Result<Api, Failure> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let tls = self.tls.read()?;
        let config = Agent::config_builder()
            .timeout_global(Some(context.global.timeout))
            .http_status_as_error(false)
            .tls_config(tls.clone())
            .build();
        Ok(Api {
            agent: config.new_agent(),
            site: self.http.clone(),
            tls,
            token,
            timeout: context.global.timeout,
            has_answered: Cell::new(false),
        })
    }
}

impl ApiArgs {
    /// The API of the server to which the commands go; `None`: it has none, or it cannot be found there,
    /// or does not answer this caller.
    ///
    /// # Errors
    /// As of [`ApiArgs::open`]; or that server does not answer.
    pub(crate) fn of_same_server(&self, context: &Context<'_>) -> Result<Option<Api>, Failure> {
        let api = self.open(context)?;
        let id = context.connect()?.stats()?.text("id");
        let is_it = api.get("/server").is_ok_and(|server| server["id"] == *id);
        Ok((is_it && !id.is_empty()).then_some(api))
    }

    /// The same, for what only the API can do: another server has other jobs under the same ids.
    ///
    /// # Errors
    /// As of [`ApiArgs::of_same_server`]; or that server has none, or it cannot be found.
    pub(crate) fn for_undo(&self, context: &Context<'_>) -> Result<Api, Failure> {
        self.of_same_server(context)?.ok_or_else(|| {
            Failure::Usage(
                "--undo needs the API of the server to which the command goes, and it was not found: \
                 --http ADDRESS names where it is, --token-file who asks"
                    .to_owned(),
            )
        })
    }
}

/// A file that others may read or write is refused, as the server refuses its own.
pub(crate) fn read_token(path: &Path) -> Result<String, Failure> {
    let unusable = |why: &dyn std::fmt::Display| {
        Failure::Input(format!(
            "the token cannot be read from {}: {why}",
            path.display()
        ))
    };
    let mut file = std::fs::File::options()
        .read(true)
        .open(path)
        .map_err(|error| unusable(&error))?;
    let found = file.metadata().map_err(|error| unusable(&error))?;
    let mode = found.permissions().mode() & 0o777;
    if found.is_file() && mode & 0o077 != 0 {
        let why = format!("its rights are {mode:04o}; make them 0600 (chmod 600)");
        return Err(unusable(&why));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)
        .map_err(|error| unusable(&error))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// A server's API.
pub(crate) struct Api {
    agent: Agent,
    site: String,
    tls: TlsConfig,
    token: Option<String>,
    pub(crate) timeout: Duration,
    /// It has answered something.
    has_answered: Cell<bool>,
}

impl Api {
    /// Wait no longer than this for an answer.
    fn hurry(&mut self, most: Duration) {
        self.timeout = self.timeout.min(most);
        let config = Agent::config_builder()
            .timeout_global(Some(self.timeout))
            .http_status_as_error(false)
            .tls_config(self.tls.clone())
            .build();
        self.agent = config.new_agent();
    }

    /// # Errors
    /// As of [`Api::ask`].
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::GET, path, None)
    }

    /// # Errors
    /// As of [`Api::ask`].
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, Some(body))
    }

    /// # Errors
    /// As of [`Api::ask`].
    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.ask(Method::PUT, path, Some(body))
    }

    /// # Errors
    /// As of [`Api::ask`].
    pub(crate) fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::DELETE, path, None)
    }

    /// One request below `/api/v1`, and its answer.
    ///
    /// # Errors
    /// No one answers there, or it is no API of bsd's; or the server refuses, with its reason.
    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let request = self.request(method, path, body)?;
        let answer = self.agent.run(request);
        self.value(answer.map_err(|error| self.unreachable(&error))?)
    }

    /// Read a stream from a path, line by line, until it ends. The timeout is for each line, not
    /// for the whole.
    ///
    /// # Errors
    /// As of [`Api::ask`].
    pub(crate) fn listen(&self, path: &str) -> Result<impl BufRead + Send + 'static, Failure> {
        let config = Agent::config_builder()
            .timeout_connect(Some(self.timeout))
            .timeout_recv_response(Some(self.timeout))
            .http_status_as_error(false)
            .tls_config(self.tls.clone())
            .build();
        let answer = config
            .new_agent()
            .run(self.request(Method::GET, path, None)?);
        let answer = answer.map_err(|error| self.unreachable(&error))?;
        match answer.status().is_success() {
            true => Ok(BufReader::new(answer.into_body().into_reader())),
            false => Err(match self.value(answer) {
                Ok(_) => self.broken(&"it answered nothing that can be listened to"),
                Err(failure) => failure,
            }),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Request<String>, Failure> {
        let scheme = if self.site.contains("://") {
            ""
        } else {
            "http://"
        };
        let site = self.site.trim_end_matches('/');
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{scheme}{site}/api/v1{path}"));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header("Content-Type", "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        request.body(body).map_err(|error| self.broken(&error))
    }

    fn value(&self, mut answer: Response<Body>) -> Result<Value, Failure> {
        self.has_answered.set(true);
        let status = answer.status().as_u16();
        let text = answer.body_mut().read_to_vec();
        let text = text.map_err(|error| self.unreachable(&error))?;
        let value: Value = serde_json::from_slice(&text).map_err(|error| self.broken(&error))?;
        match (status, value["detail"].as_str()) {
            (200..=299, _) => Ok(value),
            (401, Some(detail)) => Err(Failure::NotDone(format!(
                "{}: {detail}; give the token with --token-file",
                self.site
            ))),
            (_, Some(detail)) => Err(Failure::NotDone(format!("{}: {detail}", self.site))),
            (_, None) => Err(self.broken(&format_args!("it answered {status}"))),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let reason = match error {
            ureq::Error::Timeout(_) => format!("no answer in {} s", self.timeout.as_secs_f64()),
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                "no one listens there".to_owned()
            }
            other => other.to_string(),
        };
        let was_reached = matches!(error, ureq::Error::Io(error) if is_of_an_end(error.kind()));
        Failure::Input(no_answer(
            &self.site,
            &reason,
            self.has_answered.get(),
            was_reached,
        ))
    }

    pub(crate) fn broken(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::Input(format!(
            "{} does not answer as bsd's API: {error}; is it another program, or another version?",
            self.site
        ))
    }
}

/// A connection stood, and ended.
fn is_of_an_end(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
    )
}

/// Why nothing came, and what helps: that depends on whether a server was there.
fn no_answer(site: &str, reason: &str, has_answered: bool, was_reached: bool) -> String {
    if reason.contains("peer certificate") {
        return format!(
            "{site} does not answer over HTTP: {reason}; name the server as its certificate does, and \
             with --tls-ca who has signed that"
        );
    }
    if has_answered {
        return format!(
            "{site} has answered, and does not any more: {reason}; look at the lines of that server: \
             it may have ended"
        );
    }
    if was_reached {
        return format!(
            "{site} ended the connection without an answer: {reason}; look at the lines of that \
             server: it may have ended, or it is not HTTP that listens there"
        );
    }
    format!(
        "{site} does not answer over HTTP: {reason}; start bsd-server with --http, or name another \
         address with --http or BSD_CTL_HTTP, https://HOST:PORT over TLS"
    )
}

/// A part of a path: everything but letters, digits, `-`, `.` and `_` is escaped.
pub(crate) fn escaped(part: &str) -> String {
    let byte = |byte: u8| match byte {
        b'-' | b'.' | b'_' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    part.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g01_a_server_that_was_there_is_not_to_be_started_with_http() {
        for (has_answered, was_reached) in [(true, false), (true, true), (false, true)] {
            let said = no_answer("here", "broken", has_answered, was_reached);
            assert!(said.contains("look at the lines"), "{said}");
            assert!(!said.contains("with --http"), "{said}");
        }
        let said = no_answer("here", "no one listens there", false, false);
        assert!(said.contains("start bsd-server with --http"), "{said}");
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert_eq!(escaped("a-b/c;d?e f+g"), "a-b%2Fc%3Bd%3Fe%20f%2Bg");
    }
}
