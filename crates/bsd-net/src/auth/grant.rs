//! A line of the file of tokens: the commands that it allows, and of which tubes.
//!
//! | a command asks for | roles that have it |
//! |---|---|
//! | nothing: `quit`, `use`, `stats`, `list-tube-used`, `list-tubes-watched`, `capabilities`, `abort` | all of them |
//! | [`Right::Put`]: `put`, `put-with` | `all`, `put` |
//! | [`Right::Work`]: `watch`, `ignore`, `reserve…`, `delete`, `release`, `bury`, `touch`, `kick…`, `delete-batch`, `touch-batch`, `release-batch`, `fail`, `bury-with-reason`, `move-job` | `all`, `work` |
//! | [`Right::Read`]: `peek…`, `stats-job`, `stats-tube`, `list-tubes`, `list-jobs`, `stats-job-extended`, `stats-policy`, `stats-schedule` | `all`, `work`, `read` |
//! | [`Right::All`]: `pause-tube`, `set-policy`, `schedule-set`, `schedule-delete` | `all` |
//!
//! With a pattern, the tube that the command is about must match: the one that it names, the one
//! that the client uses, that of the job, or of each job of a batch, each one that the client watches.
//! `list-tubes` is about all tubes.
//!
//! Over HTTP nothing is of one tube alone, so a token with a pattern opens nothing there. Without
//! one, a token with [`Right::Read`] may look at everything, and one with [`Right::All`] change it.

use std::fmt;

use crate::pattern::Pattern;
use crate::secrets;
use bsd::UsageError;
use bsd::policy::DeadLetter;
use bsd::protocol::{Capabilities, Command, Op};
use bsd::queue::Queue;
use bsd::types::{ClientId, JobId, shown_name};

/// Which commands a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Every command. `admin` is another word for it.
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
    Jobs(&'a [JobId]),
    JobAndTube(JobId, &'a str),
    TwoTubes(&'a str, &'a str),
    Watched,
    AllTubes,
}

/// Role and tubes, as `ROLE` or `ROLE:PATTERN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    role: Role,
    tubes: Option<Pattern>,
}

/// Characters that a salt must have.
const SALT_LEN_MIN: usize = 8;

/// A line of the file of tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its number.
    pub line: usize,
    /// What it allows.
    pub scope: Scope,
    /// Empty but for lines that were written for HTTP when it had a file of its own.
    pub(super) salt: String,
    /// SHA-256 of the salt and the token.
    pub(super) digest: [u8; 32],
    /// Whose it is, for the log and the list of clients.
    pub(super) name: Option<String>,
}

impl Role {
    /// The first word of a role is the one that is shown.
    const WORDS: [(Role, &'static str); 5] = [
        (Role::All, "all"),
        (Role::All, "admin"),
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
                "'{}' is not one of all, admin, put, work and read",
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
    /// Parse `ROLE[:PATTERN] SHA256 [NAME]`, or `ROLE:SALT:SHA256` as [`salted`] has it.
    pub(super) fn parse(number: usize, line: &str) -> Result<Grant, UsageError> {
        let mut words = line.splitn(3, ' ');
        let role = words.next().unwrap_or_default();
        let (role, salt, digest) = match words.next().and_then(secrets::parse_digest) {
            Some(digest) => (role, "", digest),
            None => salted(line).ok_or_else(|| not_a_token(number, &"it has no digest"))?,
        };
        let name = words.next().map(str::trim).filter(|name| !name.is_empty());
        Ok(Grant {
            line: number,
            scope: role.parse().map_err(|why| not_a_token(number, &why))?,
            salt: salt.to_owned(),
            digest,
            name: name.filter(|_| salt.is_empty()).map(shown_name),
        })
    }
}

/// The parts of a line that was written for HTTP when it had a file of its own: its roles were read
/// and admin.
fn salted(line: &str) -> Option<(&str, &str, [u8; 32])> {
    let parts: Vec<_> = line.split(':').collect();
    let &[role @ ("read" | "admin"), salt, digest] = &parts[..] else {
        return None;
    };
    let digest = secrets::parse_digest(digest)?;
    (salt.len() >= SALT_LEN_MIN).then_some((role, salt, digest))
}

fn not_a_token(number: usize, why: &dyn fmt::Display) -> UsageError {
    UsageError::new(format_args!(
        "line {number} is not ROLE SHA256 or ROLE:TUBES SHA256, perhaps with a name behind, nor \
         read:SALT:SHA256 or admin:SALT:SHA256 with a salt of {SALT_LEN_MIN} characters or more: \
         {why}; `bsd-server --new-token ROLE` makes such a line"
    ))
}

impl Scope {
    /// Whether it allows to look at everything.
    pub fn shows_all(&self) -> bool {
        self.tubes.is_none() && self.role.has(Right::Read)
    }

    /// Whether it allows to change everything.
    pub fn changes_all(&self) -> bool {
        self.tubes.is_none() && self.role.has(Right::All)
    }

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

    /// Whether a schedule that puts into this tube may be looked at, changed or removed.
    pub(super) fn covers_schedule(&self, tube: &str) -> bool {
        let tubes = self.tubes.as_ref();
        tubes.is_none_or(|tubes| tubes.matches(tube))
    }

    /// Leave out the extended commands that the role does not have. Which tubes it is for makes no
    /// difference: the tube of such a command may be one of them.
    pub(super) fn narrow(&self, capabilities: &mut Capabilities) {
        capabilities.retain(|op| self.role.has(extended(op)));
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
        About::TwoTubes(tube, other) => tubes.matches(tube) && tubes.matches(other),
        About::JobAndTube(id, tube) => {
            let job = queue.job(id);
            tubes.matches(tube) && job.is_none_or(|job| tubes.matches(job.tube))
        }
        About::Jobs(ids) => {
            queue.visit(ids.len());
            let matches = |id: &JobId| queue.job(*id).is_none_or(|job| tubes.matches(job.tube));
            ids.iter().all(matches)
        }
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
        C::ReserveBatch { .. } => (extended(Op::ReserveBatch), About::Watched),
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
        C::Fail { id, .. } => (extended(Op::Fail), About::Job(*id)),
        C::BuryWithReason { id, .. } => (extended(Op::BuryWithReason), About::Job(*id)),
        C::StatsJobExtended(id) => (extended(Op::StatsJobExtended), About::Job(*id)),
        C::MoveJob { id, tube } => (extended(Op::MoveJob), About::JobAndTube(*id, tube)),
        C::ClearTube { .. } => (extended(Op::ClearTube), tube),
        C::StatsPolicy(_) => (extended(Op::StatsPolicy), tube),
        // A pattern may stand for tubes that that of the token does not.
        C::SetPolicy(set) => {
            let about = match (set.tubes.name(), &set.policy.dead_letter) {
                (None, _) => About::AllTubes,
                (Some(tube), DeadLetter::Tube(dead)) => About::TwoTubes(tube, dead),
                (Some(tube), _) => About::Tube(tube),
            };
            (extended(Op::SetPolicy), about)
        }
        C::ScheduleSet(_) => (extended(Op::ScheduleSet), tube),
        // Of the tube of a schedule that is there: `covers_schedule`.
        C::ScheduleDelete(_) => (extended(Op::ScheduleDelete), About::Nothing),
        C::StatsSchedule(_) => (extended(Op::StatsSchedule), About::Nothing),
        C::Abort => (extended(Op::Abort), About::Nothing),
        C::Capabilities(_) => (extended(Op::Capabilities), About::Nothing),
        C::PutWith(_) => (extended(Op::PutWith), tube),
        C::ListJobs(_) => (extended(Op::ListJobs), tube),
        C::Batch { on_each, ids } => (extended(on_each.op()), About::Jobs(ids)),
    }
}

/// The right that an extended command needs.
fn extended(op: Op) -> Right {
    match op {
        Op::Abort | Op::Capabilities => Right::None,
        Op::PutWith => Right::Put,
        Op::ListJobs | Op::StatsJobExtended => Right::Read,
        Op::StatsPolicy | Op::StatsSchedule => Right::Read,
        Op::DeleteBatch | Op::TouchBatch | Op::ReleaseBatch | Op::ReserveBatch => Right::Work,
        Op::Fail | Op::BuryWithReason | Op::MoveJob => Right::Work,
        _ => Right::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bsd::types::Time;

    fn scope(text: &str) -> Scope {
        text.parse().unwrap()
    }

    #[test]
    fn a_scope_reads_back_as_it_is_shown() {
        for text in ["all", "put", "work", "read", "put:mail-*", "work:a?"] {
            assert_eq!(scope(text).to_string(), text);
        }
        assert_eq!(scope("admin:a?").to_string(), "all:a?");
    }

    #[test]
    fn what_is_about_all_tubes_needs_a_token_without_a_pattern() {
        for (text, shows, changes) in [
            ("all", true, true),
            ("admin", true, true),
            ("work", true, false),
            ("read", true, false),
            ("put", false, false),
            ("all:*", false, false),
            ("read:mail-*", false, false),
        ] {
            let scope = scope(text);
            assert_eq!(
                (scope.shows_all(), scope.changes_all()),
                (shows, changes),
                "{text}"
            );
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
        let reserve = Command::reserve(None);
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
        let parse = |line: &str| Grant::parse(1, line);
        assert!(parse(&format!("put:mail-* {digest}")).is_ok());
        let named = parse(&format!("all {digest}  the mailer of Ann ")).unwrap();
        assert_eq!(named.name.as_deref(), Some("the mailer of Ann"));
        let salted = parse(&format!("admin:a long salt:{digest}")).unwrap();
        assert_eq!((&*salted.salt, salted.name), ("a long salt", None));
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
            "admin:token".to_owned(),
            format!("read:{digest}"),
            format!("read:salt:{digest}"),
            format!("put:saltsalt:{digest}"),
            format!("root:saltsalt:{digest}"),
            format!("read:saltsalt:{digest}0"),
            format!("read:saltsalt:{digest}:"),
            format!("read:saltsalt:{}", &digest[1..]),
            format!("read:saltsalt:{}", "g".repeat(64)),
            format!("read:saltsalt:{}", "\u{e4}".repeat(32)),
        ] {
            assert!(parse(&line).is_err(), "{line}");
        }
    }
}
