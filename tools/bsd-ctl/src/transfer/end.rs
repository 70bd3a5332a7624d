//! A server that jobs are moved from or to, and what is said of its errors.

use std::path::PathBuf;

use bsd_client::{Client, Config, Error, ErrorKind};

use crate::api::read_token;
use crate::{Context, Failure};

/// Whether the answer is missing, in contrast to one that refuses.
pub(super) fn is_lost(error: &Error) -> bool {
    use ErrorKind::{Buried, Closed, Connect, Protocol, TimedOut, Unanswered};
    matches!(
        error.kind(),
        Buried | Closed | Connect | Protocol | TimedOut | Unanswered
    )
}

/// A server, and how it was named.
pub(super) struct End {
    pub(super) client: Client,
    pub(super) name: String,
    /// The flag with its token.
    token_flag: &'static str,
}

impl End {
    /// # Errors
    /// There is no server, or it does not take the token.
    pub(super) fn open(
        name: &str,
        token_flag: &'static str,
        config: Config,
    ) -> Result<End, Failure> {
        match Client::connect(config) {
            Ok(client) => Ok(End {
                client,
                name: name.to_owned(),
                token_flag,
            }),
            Err(error) => Err(failure(name, token_flag, &error)),
        }
    }

    pub(super) fn failure(&self, error: &Error) -> Failure {
        failure(&self.name, self.token_flag, error)
    }

    pub(super) fn config(
        name: &str,
        token: Option<&PathBuf>,
        tls: Option<bsd_client::Tls>,
        context: &Context<'_>,
    ) -> Result<Config, Failure> {
        let config = name.parse::<Config>();
        let config = config.map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
        let timeout = context.global.timeout;
        let mut config = config.timeout(timeout).connect_timeout(timeout);
        // A body is as large as the server lets it be.
        config = config.body_max(u32::MAX as usize);
        if let Some(path) = token {
            config = config.token(read_token(path)?);
        }
        match tls {
            Some(tls) => Ok(config.tls(tls)),
            None if name.contains("tls:") => Err(Failure::Usage(format!(
                "{name}: over TLS the authority of its certificate is needed: --tls-ca or --to-tls-ca"
            ))),
            None => Ok(config),
        }
    }
}

/// What went wrong at a server, and what to do.
fn failure(name: &str, token_flag: &str, error: &Error) -> Failure {
    let advice = match error.kind() {
        ErrorKind::Draining => {
            "; end that there with `bsd-ctl undrain`, or choose another server".to_owned()
        }
        ErrorKind::OutOfMemory => "; see its log, and max-jobs and max-bytes of the tube with \
            `bsd-ctl policy show` there"
            .to_owned(),
        ErrorKind::NotAuthorized => format!("; give a token of the role all with {token_flag}"),
        _ => String::new(),
    };
    let said = format!("{name}: {error}{advice}");
    match is_lost(error) {
        true => Failure::Input(said),
        false => Failure::NotDone(said),
    }
}
