//! beanstalkd's log: reading, importing, and writing it for the way back.
//!
//! | where | what |
//! |---|---|
//! | `binlog` | the bytes of `binlog.N`, versions 5 and 7: the only place that knows an offset |
//! | `walk` | one file from end to end: its records, how it ends, what is damaged |
//! | `jobs` | the state of each job according to all records |
//! | `read` | a directory: which files, in which order, what is missing |
//! | `import` | from them to a log of bsd in a new directory |
//! | `take_over` | the same in place, when a server starts on beanstalkd's directory |
//! | `export` | from a log of bsd to a directory on which beanstalkd starts |
//!
//! beanstalkd's records have no checksums, so only impossible content can be noticed: lengths that
//! lead nowhere, fields that beanstalkd never writes, bodies without their end, records that
//! contradict earlier ones, missing files. A flipped bit inside a body, a priority or a time, or
//! zeros from the end of one record to the end of the file, cannot be told from what beanstalkd
//! wrote.
//!
//! Invariants: beanstalkd's files are opened for reading only, and facts about a job come only from
//! whole records. Memory grows with the jobs, not with their bodies or the log.

mod binlog;
pub mod export;
pub mod import;
mod jobs;
mod read;
mod take_over;
mod walk;

pub use self::read::Binlogs;
pub use self::take_over::TakenOver;
pub(crate) use self::take_over::take_over;

/// The prefix of the names of beanstalkd's files; a number follows.
const NAME_PREFIX: &str = "binlog.";

/// The number of one of beanstalkd's files; `None` for any other name, even for one that beanstalkd
/// would read but never writes, such as `binlog.007`.
pub(in crate::storage) fn parse_binlog_name(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(NAME_PREFIX)?;
    let number = digits.parse().ok()?;
    (binlog_name(number) == name).then_some(number)
}

fn binlog_name(number: u32) -> String {
    format!("{NAME_PREFIX}{number}")
}
