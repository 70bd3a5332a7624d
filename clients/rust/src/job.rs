//! Jobs, and what is said of them in commands and replies.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// The number of a job. A server gives each one once.
pub type JobId = u64;

/// The priority of a job that is put without one. Smaller is more urgent, and below 1,024 is urgent.
pub const PRIORITY_DEFAULT: u32 = 65_536;
/// How long a worker may take for a job that is put without a time to run.
pub const TTR_DEFAULT: Duration = Duration::from_secs(120);
/// The most ids in a batch.
pub const BATCH_IDS_MAX: usize = 1000;
/// The longest text of [`fail`](crate::Client::fail), bytes.
pub const TEXT_MAX: usize = 4096;

/// A job that was reserved or looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its tube, if the server said it: `reserve-batch` does, and beanstalkd's commands do not.
    pub tube: Option<String>,
    /// Its body.
    pub body: Vec<u8>,
}

/// A job to be put, with its options.
///
/// ```
/// use bsd_client::Put;
/// use std::time::Duration;
///
/// let mail = Put::new("to: you").tube("mail").delay(Duration::from_secs(60)).key("user-17");
/// # let _ = mail;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Put {
    pub(crate) body: Vec<u8>,
    pub(crate) tube: Option<String>,
    pub(crate) pri: u32,
    pub(crate) delay: Duration,
    pub(crate) ttr: Duration,
    pub(crate) at: Option<u32>,
    pub(crate) key: Option<String>,
    pub(crate) unique: Unique,
    pub(crate) conflict: Conflict,
    pub(crate) group: Option<String>,
}

/// How long a key is a job's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unique {
    /// Until the job is deleted.
    #[default]
    Exists,
    /// Until the job is reserved for the first time.
    Waiting,
}

/// What is done if another job has the key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Conflict {
    /// Nothing is put: [`Inserted::Exists`] names the other job.
    #[default]
    Keep,
    /// The other job is deleted and this one is put, unless the other one is reserved.
    Replace,
}

impl Put {
    /// A job with this body: priority 65,536, no delay, 120 seconds to run, for the tube that the
    /// connection uses.
    pub fn new(body: impl Into<Vec<u8>>) -> Put {
        Put {
            body: body.into(),
            tube: None,
            pri: PRIORITY_DEFAULT,
            delay: Duration::ZERO,
            ttr: TTR_DEFAULT,
            at: None,
            key: None,
            unique: Unique::Exists,
            conflict: Conflict::Keep,
            group: None,
        }
    }

    /// Put it into this tube. A server without `put-with` is told to `use` the tube first, which then
    /// stays the one that the connection uses.
    pub fn tube(mut self, tube: impl Into<String>) -> Put {
        self.tube = Some(tube.into());
        self
    }

    /// Its priority: smaller is more urgent.
    pub fn pri(mut self, pri: u32) -> Put {
        self.pri = pri;
        self
    }

    /// It is ready after this time, in whole seconds, rounded up.
    pub fn delay(mut self, delay: Duration) -> Put {
        self.delay = delay;
        self
    }

    /// A worker may take so long before the job is ready again: whole seconds, rounded up, 1 at least.
    pub fn ttr(mut self, ttr: Duration) -> Put {
        self.ttr = ttr;
        self
    }

    /// It is ready at this Unix time, in seconds; a delay is not possible then. For a server without
    /// `put-with` the delay is counted by the clock of this machine.
    pub fn at(mut self, at: u32) -> Put {
        self.at = Some(at);
        self
    }

    /// At most one job with this key is in its tube: 1 to 200 of the characters of tube names. A server
    /// without `put-with` cannot do this, and the put is refused as
    /// [`Unsupported`](ErrorKind::Unsupported).
    pub fn key(mut self, key: impl Into<String>) -> Put {
        self.key = Some(key.into());
        self
    }

    /// How long the key is the job's own.
    pub fn unique(mut self, unique: Unique) -> Put {
        self.unique = unique;
        self
    }

    /// What is done if another job has the key.
    pub fn conflict(mut self, conflict: Conflict) -> Put {
        self.conflict = conflict;
        self
    }

    /// The group that takes its turn in a tube whose policy says `fair`. A server without `put-with`
    /// has none: [`Unsupported`](ErrorKind::Unsupported).
    pub fn group(mut self, group: impl Into<String>) -> Put {
        self.group = Some(group.into());
        self
    }

    /// Whether only `put-with` says all of it.
    pub(crate) fn has_key_or_group(&self) -> bool {
        self.key.is_some() || self.group.is_some()
    }
}

/// The result of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// The job was put.
    New(JobId),
    /// Nothing was done: this job has the key.
    Exists(JobId),
}

impl Inserted {
    /// The job that is there now, whichever put it.
    #[must_use]
    pub fn id(self) -> JobId {
        match self {
            Inserted::New(id) | Inserted::Exists(id) => id,
        }
    }
}

/// What became of a job whose delivery failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failed {
    /// It is ready again, or delayed as the policy says.
    Released,
    /// The limit of its tube is reached, and it is buried.
    Buried,
    /// The limit is reached, and it is ready in this tube.
    DeadLettered(String),
    /// The limit is reached, and it is deleted, as the policy says.
    Deleted,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It can be reserved.
    Ready,
    /// It becomes ready later.
    Delayed,
    /// A client works on it.
    Reserved,
    /// It waits for a kick.
    Buried,
    /// The server does not say it.
    #[default]
    Unknown,
}

impl State {
    /// As it stands in the protocol.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Delayed => "delayed",
            State::Reserved => "reserved",
            State::Buried => "buried",
            State::Unknown => "unknown",
        }
    }
}

impl std::str::FromStr for State {
    type Err = Error;

    fn from_str(word: &str) -> Result<State> {
        let all = [State::Ready, State::Delayed, State::Reserved, State::Buried];
        let found = all.into_iter().find(|state| state.word() == word);
        found.ok_or_else(|| Error::protocol(format!("{word:?} is no state of a job")))
    }
}

/// Which jobs of a tube a clear deletes. It never deletes reserved ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// Ready ones.
    Ready,
    /// Delayed ones.
    Delayed,
    /// Buried ones.
    Buried,
    /// All of these.
    All,
}

impl Clear {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Clear::Ready => "ready",
            Clear::Delayed => "delayed",
            Clear::Buried => "buried",
            Clear::All => "all",
        }
    }
}

/// A page of the jobs of a tube.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Ids, and the sizes of the bodies in bytes.
    pub jobs: Vec<(JobId, u64)>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// Whole seconds, rounded up.
pub(crate) fn seconds(time: Duration) -> Result<u32> {
    let rounded = time
        .as_secs()
        .saturating_add(u64::from(time.subsec_nanos() > 0));
    u32::try_from(rounded).map_err(|_| Error::usage(format!("{time:?} is too long a time")))
}

/// Seconds to wait: the protocol has 31 bits for it.
pub(crate) fn wait_seconds(time: Duration) -> Result<u32> {
    seconds(time).map(|seconds| seconds.min(i32::MAX as u32))
}

/// A number of jobs that one command may name.
pub(crate) fn check_count(count: u16) -> Result<()> {
    match (1..=BATCH_IDS_MAX).contains(&usize::from(count)) {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "{count} is no number of jobs: 1 to {BATCH_IDS_MAX}"
        ))),
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&byte);
    (1..=200).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The name of a tube, so that no name carries another command.
pub(crate) fn check_tube(name: &str) -> Result<()> {
    match is_name(name) && !name.starts_with('-') {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "{name:?} is no name of a tube: 1 to 200 of the letters, digits and -+/;.$_(), not \
             beginning with -"
        ))),
    }
}

/// A key, a group or the name of a schedule.
pub(crate) fn check_key(name: &str) -> Result<()> {
    match is_name(name) {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "{name:?} is no key, group or name: 1 to 200 of the letters, digits and -+/;.$_()"
        ))),
    }
}

/// A word of a line: something without blanks and control characters.
pub(crate) fn check_word(word: &str) -> Result<()> {
    let is_fine = |char: char| !char.is_whitespace() && !char.is_control();
    match !word.is_empty() && word.chars().all(is_fine) {
        true => Ok(()),
        false => Err(Error::usage(format!("{word:?} is not one word"))),
    }
}

pub(crate) fn check_text(text: &[u8]) -> Result<()> {
    match text.len() <= TEXT_MAX {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::JobTooBig,
            format!("the text has {} bytes, the limit is {TEXT_MAX}", text.len()),
        )),
    }
}

/// At most [`TEXT_MAX`] bytes of a text, cut between characters.
#[cfg(feature = "worker")]
pub(crate) fn cut_text(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
