//! Replies, and how they are found in a stream of bytes.
//!
//! A reply says itself how long it is, so the parser needs not know what was asked. It takes bytes in
//! pieces of any size. What it holds is bounded: a line by [`LINE_MAX`], a body by the limit that it was
//! made with, a batch by [`BATCH_MAX`] jobs. Room for a body is taken as the body arrives and not when
//! its length is announced. No bytes make it panic.

use crate::error::{Error, Result};

/// The longest line of a reply, bytes. The longest that servers send has 200 for a tube's name.
pub const LINE_MAX: usize = 1024;
/// The most jobs in a batch.
pub const BATCH_MAX: usize = 1000;

/// A reply of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// A line that is one word, such as `DELETED` or `NOT_FOUND`.
    Word(Word),
    /// `INSERTED <id>`.
    Inserted(u64),
    /// `EXISTS <id>`.
    Exists(u64),
    /// `BURIED <id>`: a put for which beanstalkd had no memory.
    BuriedPut(u64),
    /// `RESERVED <id> <bytes>`, with the body.
    Reserved(u64, Vec<u8>),
    /// `FOUND <id> <bytes>`, with the body.
    Found(u64, Vec<u8>),
    /// `RESERVED_BATCH <n>`, with its jobs.
    Batch(Vec<BatchJob>),
    /// `OK <bytes>`, with the document.
    Document(Vec<u8>),
    /// `USING <tube>`.
    Using(String),
    /// `WATCHING <count>`.
    Watching(u64),
    /// `KICKED <count>`.
    Kicked(u64),
    /// `CLEARED <count>`.
    Cleared(u64),
    /// `DEAD_LETTERED <tube>`.
    DeadLettered(String),
    /// `DELETED_BATCH`, `TOUCHED_BATCH` or `RELEASED_BATCH`: how many jobs it was done to, and the
    /// document with the others.
    Each(u64, Vec<u8>),
}

/// A job of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchJob {
    /// Its id.
    pub id: u64,
    /// Its tube.
    pub tube: String,
    /// Its body.
    pub body: Vec<u8>,
}

macro_rules! words {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// A reply of one word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Word {
            $(#[doc = concat!("`", $text, "`.")] $name,)*
        }

        impl Word {
            fn parse(word: &[u8]) -> Option<Word> {
                $(if word == $text.as_bytes() {
                    return Some(Word::$name);
                })*
                None
            }

            /// As it stands in the protocol.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self {
                    $(Word::$name => $text,)*
                }
            }
        }
    };
}

words! {
    Aborted = "ABORTED",
    Authenticated = "AUTHENTICATED",
    BadFormat = "BAD_FORMAT",
    Buried = "BURIED",
    DeadlineSoon = "DEADLINE_SOON",
    Deleted = "DELETED",
    Draining = "DRAINING",
    ExpectedCrlf = "EXPECTED_CRLF",
    InternalError = "INTERNAL_ERROR",
    JobTooBig = "JOB_TOO_BIG",
    Kicked = "KICKED",
    Moved = "MOVED",
    NotAuthorized = "NOT_AUTHORIZED",
    NotFound = "NOT_FOUND",
    NotIgnored = "NOT_IGNORED",
    OutOfMemory = "OUT_OF_MEMORY",
    Paused = "PAUSED",
    PolicySet = "POLICY_SET",
    Released = "RELEASED",
    ScheduleSet = "SCHEDULE_SET",
    TimedOut = "TIMED_OUT",
    Touched = "TOUCHED",
    UnknownCommand = "UNKNOWN_COMMAND",
}

/// What the line of a reply says about the body behind it.
enum Line {
    Whole(Reply),
    Body(usize, BodyOf),
    Batch(usize),
    Job(u64, String, usize),
}

enum BodyOf {
    Reserved(u64),
    Found(u64),
    Document,
    Each(u64),
    Job(u64, String),
}

/// Where the parser is.
#[derive(Default)]
enum At {
    #[default]
    Line,
    Body {
        size: usize,
        of: BodyOf,
    },
}

/// Finds replies in a stream of bytes.
///
/// ```
/// use bsd_client::wire::{Parser, Reply};
///
/// let mut parser = Parser::new(1024);
/// parser.push(b"INSERTED 7\r\nRESERVED 7 2\r\nh");
/// assert_eq!(parser.next_reply()?, Some(Reply::Inserted(7)));
/// assert_eq!(parser.next_reply()?, None); // the rest has not come yet
/// parser.push(b"i\r\n");
/// assert_eq!(parser.next_reply()?, Some(Reply::Reserved(7, b"hi".to_vec())));
/// # Ok::<(), bsd_client::Error>(())
/// ```
pub struct Parser {
    bytes: Vec<u8>,
    /// Bytes before this were taken.
    start: usize,
    /// Bytes before this have no line end, counted from `start`.
    searched: usize,
    at: At,
    /// The jobs of a batch that have come, and how many it has.
    batch: Option<(Vec<BatchJob>, usize)>,
    batch_bytes: usize,
    body_max: usize,
}

impl std::fmt::Debug for Parser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parser")
            .field("buffered", &(self.bytes.len() - self.start))
            .field("body_max", &self.body_max)
            .finish_non_exhaustive()
    }
}

impl Parser {
    /// Of bodies and documents up to this size, bytes. The bodies of a batch together may have 1 MiB
    /// more.
    #[must_use]
    pub fn new(body_max: usize) -> Parser {
        Parser {
            bytes: Vec::new(),
            start: 0,
            searched: 0,
            at: At::Line,
            batch: None,
            batch_bytes: 0,
            body_max,
        }
    }

    /// Take bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > 64 * 1024 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Forget everything, for another connection.
    pub fn reset(&mut self) {
        *self = Parser::new(self.body_max);
    }

    /// True if no part of a reply is held.
    #[must_use]
    pub fn is_between_replies(&self) -> bool {
        self.start == self.bytes.len() && matches!(self.at, At::Line) && self.batch.is_none()
    }

    /// The next reply, if it has arrived as a whole.
    ///
    /// # Errors
    /// [`Protocol`](crate::ErrorKind::Protocol): the bytes are no reply, or larger than allowed. The
    /// connection cannot be used any more.
    pub fn next_reply(&mut self) -> Result<Option<Reply>> {
        loop {
            let reply = match std::mem::take(&mut self.at) {
                At::Line => match self.take_line()? {
                    None => return Ok(None),
                    Some(Line::Whole(reply)) => Some(reply),
                    Some(Line::Body(size, of)) => {
                        self.begin_body(size, of)?;
                        None
                    }
                    Some(Line::Batch(count)) => {
                        self.batch = Some((Vec::new(), count));
                        self.batch_bytes = 0;
                        None
                    }
                    Some(Line::Job(id, tube, size)) => {
                        self.begin_body(size, BodyOf::Job(id, tube))?;
                        None
                    }
                },
                At::Body { size, of } => match self.take_body(size)? {
                    None => {
                        self.at = At::Body { size, of };
                        return Ok(None);
                    }
                    Some(body) => self.with_body(of, body),
                },
            };
            if reply.is_some() {
                return Ok(reply);
            }
        }
    }

    fn begin_body(&mut self, size: usize, of: BodyOf) -> Result<()> {
        let mut max = self.body_max;
        if self.batch.is_some() {
            max = self.body_max.saturating_add(1024 * 1024);
            self.batch_bytes = self.batch_bytes.saturating_add(size);
        }
        if size > self.body_max || self.batch_bytes > max {
            let text = format!("a body of {size} bytes is larger than {max}, the limit here");
            return Err(Error::protocol(text));
        }
        self.at = At::Body { size, of };
        Ok(())
    }

    /// A line without its end.
    fn take_line(&mut self) -> Result<Option<Line>> {
        let unread = &self.bytes[self.start..];
        let found = unread[self.searched..].iter().position(|&it| it == b'\n');
        let Some(end) = found.map(|at| at + self.searched) else {
            self.searched = unread.len();
            return match self.searched > LINE_MAX {
                true => Err(Error::protocol("a line of the reply has no end")),
                false => Ok(None),
            };
        };
        let line = unread[..end].strip_suffix(b"\r");
        let line = line.filter(|line| line.len() <= LINE_MAX);
        let line = line.and_then(|line| match self.batch {
            None => read_line(line),
            Some(_) => read_job(line),
        });
        let shown = String::from_utf8_lossy(&unread[..end.min(100)]).into_owned();
        self.start += end + 1;
        self.searched = 0;
        let unknown = || Error::protocol(format!("the peer sent {shown:?}, which is no reply"));
        line.ok_or_else(unknown).map(Some)
    }

    fn take_body(&mut self, size: usize) -> Result<Option<Vec<u8>>> {
        let unread = &self.bytes[self.start..];
        if unread.len() < size + 2 {
            return Ok(None);
        }
        if &unread[size..size + 2] != b"\r\n" {
            return Err(Error::protocol(
                "the body of a reply does not end where it should",
            ));
        }
        let body = unread[..size].to_vec();
        self.start += size + 2;
        if self.start == self.bytes.len() && self.bytes.capacity() > 1024 * 1024 {
            // A large body came: give its room back.
            self.bytes = Vec::new();
            self.start = 0;
        }
        Ok(Some(body))
    }

    /// The reply that this body is a part of, if it is whole with it.
    fn with_body(&mut self, of: BodyOf, body: Vec<u8>) -> Option<Reply> {
        let (id, tube) = match of {
            BodyOf::Reserved(id) => return Some(Reply::Reserved(id, body)),
            BodyOf::Found(id) => return Some(Reply::Found(id, body)),
            BodyOf::Document => return Some(Reply::Document(body)),
            BodyOf::Each(count) => return Some(Reply::Each(count, body)),
            BodyOf::Job(id, tube) => (id, tube),
        };
        let (jobs, count) = self.batch.as_mut()?;
        jobs.push(BatchJob { id, tube, body });
        if jobs.len() < *count {
            return None;
        }
        self.batch_bytes = 0;
        self.batch.take().map(|(jobs, _)| Reply::Batch(jobs))
    }
}

/// A number of decimal digits.
fn number(word: &str) -> Option<u64> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| word.parse().ok()).flatten()
}

fn size(word: &str) -> Option<usize> {
    // A line end is added to it.
    usize::try_from(number(word)?)
        .ok()
        .filter(|size| *size < usize::MAX - 2)
}

fn read_line(line: &[u8]) -> Option<Line> {
    if let Some(word) = Word::parse(line) {
        return Some(Line::Whole(Reply::Word(word)));
    }
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split(' ');
    let first = words.next()?;
    let (second, third, more) = (words.next()?, words.next(), words.next());
    if more.is_some() {
        return None;
    }
    let whole = |reply| Some(Line::Whole(reply));
    match (first, third) {
        ("INSERTED", None) => whole(Reply::Inserted(number(second)?)),
        ("EXISTS", None) => whole(Reply::Exists(number(second)?)),
        ("BURIED", None) => whole(Reply::BuriedPut(number(second)?)),
        ("USING", None) => whole(Reply::Using(second.to_owned())),
        ("WATCHING", None) => whole(Reply::Watching(number(second)?)),
        ("KICKED", None) => whole(Reply::Kicked(number(second)?)),
        ("CLEARED", None) => whole(Reply::Cleared(number(second)?)),
        ("DEAD_LETTERED", None) => whole(Reply::DeadLettered(second.to_owned())),
        ("OK", None) => Some(Line::Body(size(second)?, BodyOf::Document)),
        ("RESERVED_BATCH", None) => {
            let count = size(second)?;
            (1..=BATCH_MAX)
                .contains(&count)
                .then_some(Line::Batch(count))
        }
        ("RESERVED", Some(bytes)) => {
            Some(Line::Body(size(bytes)?, BodyOf::Reserved(number(second)?)))
        }
        ("FOUND", Some(bytes)) => Some(Line::Body(size(bytes)?, BodyOf::Found(number(second)?))),
        ("DELETED_BATCH" | "TOUCHED_BATCH" | "RELEASED_BATCH", Some(bytes)) => {
            Some(Line::Body(size(bytes)?, BodyOf::Each(number(second)?)))
        }
        _ => None,
    }
}

fn read_job(line: &[u8]) -> Option<Line> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.strip_prefix("JOB ")?.split(' ');
    let (id, tube, bytes) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || tube.is_empty() {
        return None;
    }
    Some(Line::Job(number(id)?, tube.to_owned(), size(bytes)?))
}
