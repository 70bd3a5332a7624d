//! Calls: a request, and how its reply is read.

use std::time::Duration;

use crate::document;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Clear, Failed, Inserted, Job, JobId, Page, Put, State};
use crate::policy::Policy;
use crate::reply::{BatchJob, Reply, Word};
use crate::request::{self, Request};
use crate::schedule::Schedule;
use crate::stats::{
    ExtendedJobStats, JobStats, PolicyStats, ScheduleStats, ServerStats, TubeStats,
};

/// A request, and what its reply means.
#[derive(Debug)]
pub(crate) struct Call<T> {
    pub(crate) request: Request,
    pub(crate) read: fn(Reply) -> Result<T>,
}

impl<T> Call<T> {
    fn new(request: Request, read: fn(Reply) -> Result<T>) -> Call<T> {
        Call { request, read }
    }
}

/// The error that a reply means which is not the one that was hoped for.
pub(crate) fn refused(reply: &Reply) -> Error {
    let Reply::Word(word) = reply else {
        return Error::protocol(format!("the reply {} is to something else", name(reply)));
    };
    let (kind, text) = match word {
        Word::NotFound => (
            ErrorKind::NotFound,
            "no such job, tube, policy or schedule, or not in a state that allows this",
        ),
        Word::OutOfMemory => (
            ErrorKind::OutOfMemory,
            "the server has no room, or the policy of the tube allows no more",
        ),
        Word::Draining => (
            ErrorKind::Draining,
            "the server is draining and takes no jobs",
        ),
        Word::JobTooBig => (
            ErrorKind::JobTooBig,
            "the body is larger than the server takes",
        ),
        Word::DeadlineSoon => (
            ErrorKind::DeadlineSoon,
            "a job that this connection has reserved must be finished or touched within a second",
        ),
        Word::NotIgnored => (
            ErrorKind::NotIgnored,
            "the last watched tube cannot be ignored",
        ),
        Word::NotAuthorized => (
            ErrorKind::NotAuthorized,
            "the token is wrong or missing, or does not allow this",
        ),
        Word::BadFormat => (
            ErrorKind::BadFormat,
            "the server cannot read the request, or a value of it is not right",
        ),
        Word::ExpectedCrlf => (
            ErrorKind::ExpectedCrlf,
            "the body does not end where the request says",
        ),
        Word::UnknownCommand => (
            ErrorKind::UnknownCommand,
            "the server does not know the command",
        ),
        Word::InternalError => (ErrorKind::Internal, "the server has failed"),
        Word::TimedOut => (ErrorKind::TimedOut, "no job came within the time"),
        _ => {
            let text = format!("the reply {} is to something else", word.text());
            return Error::protocol(text);
        }
    };
    Error::new(kind, format!("{}: {text}", word.text()))
}

/// The first word of a reply.
fn name(reply: &Reply) -> &'static str {
    match reply {
        Reply::Word(word) => word.text(),
        Reply::Inserted(_) => "INSERTED",
        Reply::Exists(_) => "EXISTS",
        Reply::BuriedPut(_) => "BURIED",
        Reply::Reserved(..) => "RESERVED",
        Reply::Found(..) => "FOUND",
        Reply::Batch(_) => "RESERVED_BATCH",
        Reply::Document(_) => "OK",
        Reply::Using(_) => "USING",
        Reply::Watching(_) => "WATCHING",
        Reply::Kicked(_) => "KICKED",
        Reply::Cleared(_) => "CLEARED",
        Reply::DeadLettered(_) => "DEAD_LETTERED",
        Reply::Each(..) => "a batch",
    }
}

fn inserted(reply: Reply) -> Result<Inserted> {
    match reply {
        Reply::Inserted(id) => Ok(Inserted::New(id)),
        Reply::Exists(id) => Ok(Inserted::Exists(id)),
        Reply::BuriedPut(id) => Err(Error::new(
            ErrorKind::Buried,
            format!("BURIED {id}: the server had no memory for the job, and has buried it"),
        )),
        other => Err(refused(&other)),
    }
}

/// beanstalkd may have no memory for a job that comes back: then it is buried.
fn released(reply: Reply) -> Result<()> {
    match reply {
        Reply::Word(Word::Released) => Ok(()),
        Reply::Word(Word::Buried) => Err(Error::new(
            ErrorKind::Buried,
            "BURIED: the server had no memory to release the job, and has buried it",
        )),
        other => Err(refused(&other)),
    }
}

/// Readers of replies that are one certain word.
macro_rules! done {
    ($($name:ident = $word:ident),*) => {
        $(fn $name(reply: Reply) -> Result<()> {
            match reply {
                Reply::Word(Word::$word) => Ok(()),
                other => Err(refused(&other)),
            }
        })*
    };
}

done!(
    deleted = Deleted,
    buried = Buried,
    touched = Touched,
    moved = Moved,
    kicked_job = Kicked,
    paused = Paused,
    policy_set = PolicySet,
    schedule_set = ScheduleSet,
    aborted = Aborted
);

fn reserved(reply: Reply) -> Result<Option<Job>> {
    match reply {
        Reply::Reserved(id, body) => {
            let tube = None;
            Ok(Some(Job { id, tube, body }))
        }
        Reply::Word(Word::TimedOut) => Ok(None),
        other => Err(refused(&other)),
    }
}

fn reserved_job(reply: Reply) -> Result<Job> {
    match reserved(reply)? {
        Some(job) => Ok(job),
        None => Err(refused(&Reply::Word(Word::TimedOut))),
    }
}

fn batch(reply: Reply) -> Result<Vec<Job>> {
    let job = |BatchJob { id, tube, body }| {
        let tube = Some(tube);
        Job { id, tube, body }
    };
    match reply {
        Reply::Batch(jobs) => Ok(jobs.into_iter().map(job).collect()),
        Reply::Word(Word::TimedOut) => Ok(Vec::new()),
        other => Err(refused(&other)),
    }
}

fn found(reply: Reply) -> Result<Job> {
    match reply {
        Reply::Found(id, body) => {
            let tube = None;
            Ok(Job { id, tube, body })
        }
        other => Err(refused(&other)),
    }
}

fn failed(reply: Reply) -> Result<Failed> {
    match reply {
        Reply::Word(Word::Released) => Ok(Failed::Released),
        Reply::Word(Word::Buried) => Ok(Failed::Buried),
        Reply::Word(Word::Deleted) => Ok(Failed::Deleted),
        Reply::DeadLettered(tube) => Ok(Failed::DeadLettered(tube)),
        other => Err(refused(&other)),
    }
}

fn missing(reply: Reply) -> Result<Vec<JobId>> {
    match reply {
        Reply::Each(_, document) => document::ids(&document),
        other => Err(refused(&other)),
    }
}

fn count(reply: Reply) -> Result<u64> {
    match reply {
        Reply::Kicked(count) | Reply::Cleared(count) | Reply::Watching(count) => Ok(count),
        other => Err(refused(&other)),
    }
}

fn using(reply: Reply) -> Result<String> {
    match reply {
        Reply::Using(tube) => Ok(tube),
        other => Err(refused(&other)),
    }
}

fn document(reply: Reply) -> Result<Vec<u8>> {
    match reply {
        Reply::Document(document) => Ok(document),
        other => Err(refused(&other)),
    }
}

fn list(reply: Reply) -> Result<Vec<String>> {
    document::list(&document(reply)?)
}

/// The words of `capabilities`, none where the server does not know it.
pub(crate) fn read_capabilities(reply: Reply) -> Result<Vec<String>> {
    match reply {
        Reply::Word(Word::UnknownCommand | Word::BadFormat) => Ok(Vec::new()),
        other => list(other),
    }
}

/// Whether the server took the token. One that asks for none does not know the command: a client may
/// always send it.
pub(crate) fn authenticated(reply: Reply) -> Result<bool> {
    match reply {
        Reply::Word(Word::Authenticated) => Ok(true),
        Reply::Word(Word::UnknownCommand) => Ok(false),
        other => Err(refused(&other)),
    }
}

fn page(reply: Reply) -> Result<Page> {
    let mut page = Page::default();
    let wrong = |line: &str| Error::protocol(format!("{line:?} is not of a list of jobs"));
    for (name, value) in document::map(&document(reply)?)? {
        match (&*name, value) {
            ("next", document::Value::Word(next)) => page.next = Some(next).filter(|it| it != "0"),
            ("jobs", document::Value::List(lines)) => {
                for line in lines {
                    let number = |text: &str| text.trim().parse().ok();
                    match line.split_once(": ") {
                        Some(("id", id)) => {
                            page.jobs.push((number(id).ok_or_else(|| wrong(&line))?, 0));
                        }
                        Some(("size", size)) => {
                            let size = number(size).ok_or_else(|| wrong(&line))?;
                            page.jobs.last_mut().ok_or_else(|| wrong(&line))?.1 = size;
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(page)
}

/// Read the document of a reply in all ways: no bytes make that panic.
pub(crate) fn any_document(reply: &Reply) {
    if let Reply::Document(document) | Reply::Each(_, document) = reply {
        _ = document::list(document);
        _ = document::ids(document);
        _ = ServerStats::read(document);
        _ = TubeStats::read(document);
        _ = JobStats::read(document);
        _ = ExtendedJobStats::read(document);
        _ = PolicyStats::read(document);
        _ = ScheduleStats::read(document);
        _ = page(Reply::Document(document.clone()));
    }
}

pub(crate) fn capabilities() -> Call<Vec<String>> {
    Call::new(request::capabilities(), read_capabilities)
}

pub(crate) fn auth(token: &str) -> Result<Call<bool>> {
    Ok(Call::new(request::auth(token)?, authenticated))
}

pub(crate) fn put(put: &Put) -> Result<Call<Inserted>> {
    let now = std::time::SystemTime::now();
    Ok(Call::new(request::put(put, now)?, inserted))
}

pub(crate) fn put_with(put: &Put) -> Result<Call<Inserted>> {
    Ok(Call::new(request::put_with(put)?, inserted))
}

pub(crate) fn use_tube(tube: &str) -> Result<Call<String>> {
    Ok(Call::new(request::use_tube(tube)?, using))
}

pub(crate) fn watch(tube: &str) -> Result<Call<u64>> {
    Ok(Call::new(request::watch(tube)?, count))
}

pub(crate) fn ignore(tube: &str) -> Result<Call<u64>> {
    Ok(Call::new(request::ignore(tube)?, count))
}

pub(crate) fn reserve(wait: Duration) -> Result<Call<Option<Job>>> {
    Ok(Call::new(request::reserve(wait)?, reserved))
}

/// Wait for a job without an end.
pub(crate) fn reserve_endlessly() -> Call<Job> {
    Call::new(request::reserve_endlessly(), reserved_job)
}

pub(crate) fn reserve_job(id: JobId) -> Call<Job> {
    Call::new(request::reserve_job(id), reserved_job)
}

pub(crate) fn reserve_batch(most: u16, wait: Duration) -> Result<Call<Vec<Job>>> {
    Ok(Call::new(request::reserve_batch(most, wait)?, batch))
}

pub(crate) fn abort() -> Call<()> {
    Call::new(request::abort(), aborted)
}

pub(crate) fn delete(id: JobId) -> Call<()> {
    Call::new(request::delete(id), deleted)
}

pub(crate) fn release(id: JobId, pri: u32, delay: Duration) -> Result<Call<()>> {
    Ok(Call::new(request::release(id, pri, delay)?, released))
}

pub(crate) fn bury(id: JobId, pri: u32) -> Call<()> {
    Call::new(request::bury(id, pri), buried)
}

pub(crate) fn touch(id: JobId) -> Call<()> {
    Call::new(request::touch(id), touched)
}

pub(crate) fn delete_batch(ids: &[JobId]) -> Result<Call<Vec<JobId>>> {
    Ok(Call::new(request::delete_batch(ids)?, missing))
}

pub(crate) fn touch_batch(ids: &[JobId]) -> Result<Call<Vec<JobId>>> {
    Ok(Call::new(request::touch_batch(ids)?, missing))
}

pub(crate) fn release_batch(ids: &[JobId], pri: u32, delay: Duration) -> Result<Call<Vec<JobId>>> {
    Ok(Call::new(request::release_batch(ids, pri, delay)?, missing))
}

pub(crate) fn fail(id: JobId, text: &[u8]) -> Result<Call<Failed>> {
    Ok(Call::new(request::fail(id, text)?, failed))
}

pub(crate) fn bury_with_reason(id: JobId, pri: u32, text: &[u8]) -> Result<Call<()>> {
    Ok(Call::new(request::bury_with_reason(id, pri, text)?, buried))
}

pub(crate) fn kick(bound: u32) -> Call<u64> {
    Call::new(request::kick(bound), count)
}

pub(crate) fn kick_job(id: JobId) -> Call<()> {
    Call::new(request::kick_job(id), kicked_job)
}

pub(crate) fn pause(tube: &str, time: Duration) -> Result<Call<()>> {
    Ok(Call::new(request::pause(tube, time)?, paused))
}

pub(crate) fn peek(id: JobId) -> Call<Job> {
    Call::new(request::peek(id), found)
}

pub(crate) fn peek_next(state: State) -> Call<Job> {
    let word = match state {
        State::Delayed => "peek-delayed",
        State::Buried => "peek-buried",
        _ => "peek-ready",
    };
    Call::new(request::ask(word), found)
}

pub(crate) fn used_tube() -> Call<String> {
    Call::new(request::ask("list-tube-used"), using)
}

pub(crate) fn watched_tubes() -> Call<Vec<String>> {
    Call::new(request::ask("list-tubes-watched"), list)
}

pub(crate) fn tubes() -> Call<Vec<String>> {
    Call::new(request::ask("list-tubes"), list)
}

pub(crate) fn stats() -> Call<ServerStats> {
    let read = |reply| ServerStats::read(&document(reply)?);
    Call::new(request::ask("stats"), read)
}

pub(crate) fn stats_tube(tube: &str) -> Result<Call<TubeStats>> {
    let read = |reply| TubeStats::read(&document(reply)?);
    Ok(Call::new(
        request::ask_tube("stats-tube", tube, false)?,
        read,
    ))
}

pub(crate) fn stats_job(id: JobId) -> Call<JobStats> {
    let read = |reply| JobStats::read(&document(reply)?);
    Call::new(request::ask_job("stats-job", id, false), read)
}

pub(crate) fn stats_job_extended(id: JobId) -> Call<ExtendedJobStats> {
    let read = |reply| ExtendedJobStats::read(&document(reply)?);
    Call::new(request::ask_job("stats-job-extended", id, true), read)
}

pub(crate) fn stats_policy(tube: &str) -> Result<Call<PolicyStats>> {
    let read = |reply| PolicyStats::read(&document(reply)?);
    Ok(Call::new(
        request::ask_tube("stats-policy", tube, true)?,
        read,
    ))
}

pub(crate) fn stats_schedule(name: &str) -> Result<Call<ScheduleStats>> {
    let read = |reply| ScheduleStats::read(&document(reply)?);
    Ok(Call::new(
        request::ask_tube("stats-schedule", name, true)?,
        read,
    ))
}

pub(crate) fn clear(tube: &str, states: Clear) -> Result<Call<u64>> {
    Ok(Call::new(request::clear(tube, states.word())?, count))
}

pub(crate) fn list_jobs(tube: &str, state: State, after: &str, limit: u16) -> Result<Call<Page>> {
    Ok(Call::new(
        request::list_jobs(tube, state.word(), after, limit)?,
        page,
    ))
}

pub(crate) fn move_job(id: JobId, tube: &str) -> Result<Call<()>> {
    Ok(Call::new(request::move_job(id, tube)?, moved))
}

pub(crate) fn set_policy(tubes: &str, policy: &Policy) -> Result<Call<()>> {
    Ok(Call::new(
        request::set_policy(tubes, &policy.values()?)?,
        policy_set,
    ))
}

pub(crate) fn set_schedule(name: &str, schedule: &Schedule) -> Result<Call<()>> {
    let request = request::set_schedule(name, &schedule.values()?, &schedule.body)?;
    Ok(Call::new(request, schedule_set))
}

pub(crate) fn delete_schedule(name: &str) -> Result<Call<()>> {
    Ok(Call::new(request::delete_schedule(name)?, deleted))
}
