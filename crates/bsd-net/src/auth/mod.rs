//! Tokens: who may do what over the protocol, and over HTTP.
//!
//! The file has one a line, `ROLE[:PATTERN] SHA256 [NAME]`. A token itself is written nowhere. Its
//! digest needs neither salt nor a slow hash: a token of [`new_token`] is 256 random bits, so there
//! is nothing to guess and nothing that two of them have in common.
//!
//! A wrong token is answered late, the later the more of them the same address has sent, and then
//! the connection is closed. This keeps a client that is set up wrongly from filling the log and
//! the loop; it does not keep anyone from guessing, which is hopeless anyway. A right token is
//! never late.

mod grant;
mod guesses;
mod tokens;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use self::grant::{Grant, Scope};
pub use self::guesses::Guesses;
pub use self::tokens::Tokens;
use super::bounds::{Since, StalledClients};
use crate::secrets;
use bsd::SetupError;
use bsd::engine::Engine;
use bsd::protocol::{Command, Request};
use bsd::types::{ClientId, Time};

/// The tokens of a server, and the clients that are to be told that theirs is wrong.
#[derive(Debug)]
pub struct Auth {
    path: PathBuf,
    tokens: Tokens,
    /// Clients that have shown a wrong token, ordered by when they are to be told.
    awaiting: StalledClients,
}

/// How far a client has come.
#[derive(Debug, Default)]
pub(super) enum Pass {
    /// Its listener asks for no token.
    #[default]
    Open,
    /// It has to show one.
    Asked,
    /// It has shown this one. The second is `is_clear` of [`Scope::allows`].
    Shown(Arc<Grant>, bool),
}

impl Pass {
    /// True if no token is asked for.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Pass::Open)
    }

    /// True until a token has been shown that is needed.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self, Pass::Asked)
    }

    /// Whether the request may be run now. To one that is no command the answer is the same for
    /// everyone who has come in. `capabilities` is left with those that the token allows.
    pub(super) fn allows(
        &mut self,
        request: &mut Request<'_>,
        client: ClientId,
        engine: &Engine,
    ) -> bool {
        match (self, request) {
            (Pass::Open, _) => true,
            (Pass::Asked, _) => false,
            (Pass::Shown(grant, _), Request::Command(Command::Capabilities(capabilities))) => {
                grant.scope.narrow(capabilities);
                true
            }
            (Pass::Shown(grant, is_clear), Request::Command(command)) => {
                let queue = engine.queue();
                grant.scope.allows(command, client, queue, is_clear)
                    && tube_of_schedule(command, engine)
                        .is_none_or(|tube| grant.scope.covers_schedule(tube))
            }
            (Pass::Shown(..), Request::Auth(_) | Request::Quit | Request::Refused { .. }) => true,
        }
    }
}

/// The tube of the schedule that a command is about. Of one that is not there it may be told.
fn tube_of_schedule<'a>(command: &Command<'_>, engine: &'a Engine) -> Option<&'a str> {
    let name = match command {
        Command::ScheduleSet(set) => &set.name,
        Command::ScheduleDelete(name) | Command::StatsSchedule(name) => &**name,
        _ => return None,
    };
    Some(&engine.schedule(name)?.schedule.tube)
}

impl Auth {
    /// Read the file of tokens.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn read(path: PathBuf) -> Result<Auth, SetupError> {
        Ok(Auth {
            tokens: Tokens::read(&path)?,
            path,
            awaiting: StalledClients::default(),
        })
    }

    /// Read the file again. [`Auth::still_holds`] says whose token is still in it.
    ///
    /// # Errors
    /// The fault of the file; then everything stays as it was.
    pub(super) fn reload(&mut self) -> Result<(), SetupError> {
        self.tokens = Tokens::read(&self.path)?;
        Ok(())
    }

    /// Whether a client may go on after the file was read again: it has shown no token, or one that
    /// allows what it did before.
    pub(super) fn still_holds(&self, pass: &Pass) -> bool {
        match pass {
            Pass::Open | Pass::Asked => true,
            Pass::Shown(old, _) => self.tokens.still_has(old),
        }
    }

    /// The client's pass, if that is a right token, with the name of its holder.
    pub(super) fn check(&self, token: &[u8]) -> Option<(Pass, Option<Arc<str>>)> {
        let grant = self.tokens.find(token)?;
        let pass = Pass::Shown(Arc::clone(grant), false);
        Some((pass, grant.name.as_deref().map(Arc::from)))
    }

    /// A client has shown a wrong token: it is told when that is `due`, and nothing of it runs
    /// before. `told_at` is when.
    pub(super) fn put_off(&mut self, client: ClientId, told_at: &mut Since, due: Time) {
        self.awaiting.replace(client, told_at, Some(due));
    }

    /// It is told, or gone.
    pub(super) fn forget(&mut self, client: ClientId, told_at: &mut Since) {
        self.awaiting.replace(client, told_at, None);
    }

    /// When the next client is to be told.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.awaiting.longest().map(|(due, _)| due)
    }

    /// A client that is to be told now.
    pub(super) fn next_due(&self, now: Time) -> Option<ClientId> {
        let (due, client) = self.awaiting.longest()?;
        (due <= now).then_some(client)
    }
}

/// A new token, and the line of the file that lets it in.
///
/// # Errors
/// The system has no random bytes.
pub fn new_token(scope: &Scope, name: Option<&str>) -> io::Result<(String, String)> {
    let token = secrets::random_word()?;
    let digest = secrets::hex(&Sha256::digest(&token));
    let name = name.map_or_else(String::new, |name| format!(" {name}"));
    Ok((token, format!("{scope} {digest}{name}")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn auth(lines: &[String]) -> (Auth, tempfile::NamedTempFile) {
        // The rights of a temporary file are its owner's alone.
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "# tokens\n\n{}", lines.join("\n")).unwrap();
        (Auth::read(file.path().to_owned()).unwrap(), file)
    }

    #[test]
    fn a_new_token_is_let_in_by_its_line_and_by_no_other() {
        let (one, line) = new_token(&"put:a*".parse().unwrap(), Some("Ann")).unwrap();
        let (two, other) = new_token(&"all".parse().unwrap(), None).unwrap();
        assert_ne!(one, two);
        let (auth, _file) = auth(&[line, other]);
        let (_, name) = auth.check(one.as_bytes()).unwrap();
        assert_eq!(name.as_deref(), Some("Ann"));
        assert!(matches!(
            auth.check(two.as_bytes()),
            Some((Pass::Shown(..), None))
        ));
        for wrong in ["", &one[1..], &one.to_uppercase(), &format!("{one} ")] {
            assert!(auth.check(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }

    #[test]
    fn after_a_reload_a_token_holds_only_if_it_allows_the_same() {
        let (token, line) = new_token(&"put".parse().unwrap(), None).unwrap();
        let (mut auth, file) = auth(std::slice::from_ref(&line));
        let (pass, _) = auth.check(token.as_bytes()).unwrap();
        let mut write = |text: &str| {
            #[allow(clippy::disallowed_methods)]
            std::fs::write(file.path(), text).unwrap();
            let read = auth.reload().is_ok();
            (
                read,
                auth.still_holds(&pass),
                auth.still_holds(&Pass::Asked),
            )
        };
        assert_eq!(write(&format!("{line} Ann")), (true, true, true));
        assert_eq!(write("nonsense"), (false, true, true));
        assert_eq!(write(""), (false, true, true));
        assert_eq!(write(&line.replace("put", "all")), (true, false, true));
    }
}
