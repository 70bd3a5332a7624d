//! Rights of a token: its commands, and its tubes.
//!
//! | a command asks for | roles that have it |
//! |---|---|
//! | nothing: `quit`, `use`, `stats`, `list-tube-used`, `list-tubes-watched` | all of them |
//! | [`Right::Put`]: `put` | `all`, `put` |
//! | [`Right::Work`]: `watch`, `ignore`, `reserve…`, `delete`, `release`, `bury`, `touch`, `kick…` | `all`, `work` |
//! | [`Right::Read`]: `peek…`, `stats-job`, `stats-tube`, `list-tubes` | `all`, `work`, `read` |
//! | [`Right::All`]: `pause-tube` | `all` |
//!
//! With a pattern, the tube that the command is about must match: the one that it names, the one
//! that the client uses, that of the job, each one that the client watches. `list-tubes` is about
//! all tubes.

use std::fmt;

use crate::pattern::Pattern;
use crate::secrets;
use bsd::UsageError;
use bsd::protocol::Command;
use bsd::queue::Queue;
use bsd::types::{ClientId, JobId, shown_name};

/// Which commands a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Every command.
    All,
    /// Producers.
    Put,
    /// Workers.
    Work,
    /// Who only looks.
    Read,
}

/// The right that a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    None,
    Put,
    Work,
    Read,
    All,
}

/// The tubes that a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About<'a> {
    Nothing,
    Tube(&'a str),
    Used,
    Job(JobId),
    Watched,
    AllTubes,
}

/// Role and tubes, as `ROLE` or `ROLE:PATTERN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    role: Role,
    tubes: Option<Pattern>,
}

/// A line of the file of tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(super) scope: Scope,
    /// SHA-256 of the token.
    pub(super) digest: [u8; 32],
    /// Whose it is, for the log and the list of clients.
    pub(super) name: Option<String>,
}

impl Role {
    const WORDS: [(Role, &'static str); 4] = [
        (Role::All, "all"),
        (Role::Put, "put"),
        (Role::Work, "work"),
        (Role::Read, "read"),
    ];

    fn has(self, right: Right) -> bool {
        match right {
            Right::None => true,
            Right::Put => matches!(self, Role::All | Role::Put),
            Right::Work => matches!(self, Role::All | Role::Work),
            Right::Read => matches!(self, Role::All | Role::Work | Role::Read),
            Right::All => self == Role::All,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Role::WORDS.iter().find(|(role, _)| *role == self.role);
        f.write_str(found.map_or("", |(_, word)| word))?;
        match &self.tubes {
            Some(tubes) => write!(f, ":{tubes}"),
            None => Ok(()),
        }
    }
}

impl std::str::FromStr for Scope {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Scope, UsageError> {
        let (role, tubes) = match text.split_once(':') {
            Some((role, tubes)) => (role, Some(tubes)),
            None => (text, None),
        };
        let found = Role::WORDS.iter().find(|(_, word)| *word == role);
        let (role, _) = found.ok_or_else(|| {
            format!(
                "'{}' is not one of all, put, work and read",
                role.escape_debug()
            )
        })?;
        Ok(Scope {
            role: *role,
            tubes: tubes.map(Pattern::parse).transpose()?,
        })
    }
}

impl Grant {
    /// Parse `ROLE[:PATTERN] SHA256 [NAME]`.
    pub(super) fn parse(line: &str) -> Result<Grant, UsageError> {
        let mut words = line.splitn(3, ' ');
        let scope = words.next().unwrap_or_default().parse()?;
        let digest = words.next().and_then(secrets::parse_digest);
        let digest = digest.ok_or("64 hexadecimal digits must follow the role")?;
        let name = words.next().map(str::trim).filter(|name| !name.is_empty());
        Ok(Grant {
            scope,
            digest,
            name: name.map(shown_name),
        })
    }
}

impl Scope {
    /// Whether a client may have this command run now. `is_clear` remembers that all tubes that it
    /// watches match. At first one does not, perhaps: `default`, or one of a token before.
    pub(super) fn allows(
        &self,
        command: &Command<'_>,
        client: ClientId,
        queue: &Queue,
        is_clear: &mut bool,
    ) -> bool {
        let (right, about) = asked(command);
        self.role.has(right)
            && self
                .tubes
                .as_ref()
                .is_none_or(|tubes| covers(tubes, about, client, queue, is_clear))
    }
}

fn covers(
    tubes: &Pattern,
    about: About<'_>,
    client: ClientId,
    queue: &Queue,
    is_clear: &mut bool,
) -> bool {
    match about {
        About::Nothing => true,
        About::AllTubes => false,
        About::Tube(name) => tubes.matches(name),
        About::Used => {
            let view = queue.client_view(client);
            view.is_some_and(|view| tubes.matches(view.used))
        }
        // Of a job that is not there it may be told.
        About::Job(id) => queue.job(id).is_none_or(|job| tubes.matches(job.tube)),
        // Once all match, so does what it begins to watch later.
        About::Watched => {
            let matches = |name: &str| {
                queue.visit(1);
                tubes.matches(name)
            };
            *is_clear = *is_clear || queue.watched(client).all(matches);
            *is_clear
        }
    }
}

fn asked<'a>(command: &'a Command<'_>) -> (Right, About<'a>) {
    use Command as C;
    // The tube that it names, or the one that the client uses.
    let tube = command.tube().map_or(About::Used, About::Tube);
    match command {
        C::Put { .. } => (Right::Put, tube),
        C::Use(_) => (Right::None, tube),
        C::Watch(_) | C::Kick { .. } => (Right::Work, tube),
        C::Ignore(_) => (Right::Work, About::Nothing),
        C::Reserve { .. } => (Right::Work, About::Watched),
        C::ReserveJob(id)
        | C::Delete(id)
        | C::Release { id, .. }
        | C::Bury { id, .. }
        | C::Touch(id)
        | C::KickJob(id) => (Right::Work, About::Job(*id)),
        C::Peek(id) | C::StatsJob(id) => (Right::Read, About::Job(*id)),
        C::PeekReady(_) | C::PeekDelayed(_) | C::PeekBuried(_) | C::StatsTube(_) => {
            (Right::Read, tube)
        }
        C::ListTubes => (Right::Read, About::AllTubes),
        C::PauseTube { .. } => (Right::All, tube),
        C::Stats | C::ListTubeUsed | C::ListTubesWatched => (Right::None, About::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bsd::protocol::Op;
    use bsd::types::Time;

    fn scope(text: &str) -> Scope {
        text.parse().unwrap()
    }

    #[test]
    fn a_scope_reads_back_as_it_is_shown() {
        for text in ["all", "put", "work", "read", "put:mail-*", "work:a?"] {
            assert_eq!(scope(text).to_string(), text);
        }
    }

    #[test]
    fn f21_to_look_through_what_is_watched_is_counted() {
        const COUNT: usize = 1000;
        let mut queue = Queue::new();
        queue.finish_replay(Time(0));
        let client = queue.connect();
        (0..COUNT).for_each(|n| _ = queue.watch(client, &format!("mail-{n}")));
        queue.ignore(client, "default", Time(0));
        queue.watch(client, "news");
        queue.take_visits();
        let (mail, all) = (scope("work:mail-*"), scope("work:*"));
        let reserve = Command::Reserve {
            timeout: None,
            op: Op::Reserve,
        };
        let mut is_clear = false;
        for _ in 0..2 {
            assert!(!mail.allows(&reserve, client, &queue, &mut is_clear));
            assert_eq!(queue.take_visits(), COUNT + 1, "each time");
        }
        assert!(all.allows(&reserve, client, &queue, &mut is_clear));
        assert_eq!(queue.take_visits(), COUNT + 1);
        assert!(all.allows(&reserve, client, &queue, &mut is_clear));
        assert_eq!(queue.take_visits(), 0, "once");
    }

    #[test]
    fn lines_that_let_no_one_in_are_refused() {
        let digest = "ab".repeat(32);
        assert!(Grant::parse(&format!("put:mail-* {digest}")).is_ok());
        let named = Grant::parse(&format!("all {digest}  the mailer of Ann ")).unwrap();
        assert_eq!(named.name.as_deref(), Some("the mailer of Ann"));
        for line in [
            digest.clone(),
            "all".to_owned(),
            format!("root {digest}"),
            format!("all:{digest}"),
            format!("all: {digest}"),
            format!("all:a\u{e4} {digest}"),
            format!("all {}", &digest[1..]),
            format!("all  {digest}"),
            format!("All {digest}"),
        ] {
            assert!(Grant::parse(&line).is_err(), "{line}");
        }
    }
}
