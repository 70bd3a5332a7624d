//! beanstalkd's log: read, imported, and written for the way back.
//!
//! | where | what |
//! |---|---|
//! | `format` | the bytes of `binlog.N`, versions 5 and 7: the only place that knows an offset |
//! | `walk` | one file from end to end: its records, how it ends, what is damaged |
//! | `jobs` | what all records together say of each job |
//! | `read` | a directory: which files, in which order, what is missing |
//! | `import` | from there to a log of bsd's in a new directory |
//! | `take_over` | the same in place, for a server that is started on beanstalkd's directory |
//! | `export` | from a log of bsd's to a directory that beanstalkd starts on |
//!
//! beanstalkd's records have no checksums, so what can be noticed is what cannot be: lengths that
//! lead nowhere, fields that beanstalkd never writes, bodies without their end, records that
//! contradict earlier ones, files that are missing. A bit that flips inside a body, a priority or a
//! time, or zeros from the end of one record up to the end of the file, cannot be told from what
//! beanstalkd wrote.
//!
//! Invariants: beanstalkd's files are opened for reading only, and what is said of a job comes from
//! records that are whole. Memory grows with the jobs, not with their bodies nor with the log.

pub mod export;
mod format;
pub mod import;
mod jobs;
mod read;
mod take_over;
mod walk;

pub use self::read::Binlogs;
pub use self::take_over::TakenOver;
pub(crate) use self::take_over::take_over;

/// The beginning of the names of beanstalkd's files; a number follows.
const NAME_PREFIX: &str = "binlog.";

/// The number of one of beanstalkd's files; `None` for any other name, also for one that beanstalkd
/// would read and never writes, such as `binlog.007`.
pub(in crate::storage) fn parse_binlog_name(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(NAME_PREFIX)?;
    let number = digits.parse().ok()?;
    (binlog_name(number) == name).then_some(number)
}

fn binlog_name(number: u32) -> String {
    format!("{NAME_PREFIX}{number}")
}
