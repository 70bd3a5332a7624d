//! Requests: their bytes, and what must be known of each to send it.
//!
//! This is the one place in which commands are written. Every name that goes into a line is checked
//! before, so that no name carries a second command.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::job::{
    BATCH_IDS_MAX, Conflict, JobId, Put, Unique, check_count, check_key, check_text, check_tube,
    check_word, seconds, wait_seconds,
};

/// Whether a request is sent once more when the connection ended before its reply came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Yes: it changes nothing, or twice is the same as once.
    Always,
    /// Yes, but `NOT_FOUND` to the second one may mean that the first one was done.
    Check,
    /// No: the caller is told that it is not known.
    Never,
}

/// What a reply changes in what is known of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    Use(String),
    Watch(String),
    Ignore(String),
    Finish(Vec<JobId>),
    Token(String),
    Capabilities,
}

/// A request: its bytes, and how it is to be treated.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    /// The extended command that it is. It is never sent to a server that does not list it.
    pub(crate) needs: Option<&'static str>,
    pub(crate) repeat: Repeat,
    /// How long the server may wait before it answers.
    pub(crate) wait: Duration,
    pub(crate) effect: Effect,
    /// Whether its reply has a body: few of these are under way at a time.
    pub(crate) has_document: bool,
}

impl Request {
    fn line(line: impl Into<Vec<u8>>) -> Request {
        let mut bytes = line.into();
        bytes.extend_from_slice(b"\r\n");
        Request {
            bytes,
            needs: None,
            repeat: Repeat::Never,
            wait: Duration::ZERO,
            effect: Effect::None,
            has_document: false,
        }
    }

    fn body(mut self, body: &[u8]) -> Request {
        self.bytes.reserve(body.len() + 2);
        self.bytes.extend_from_slice(body);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    fn needs(mut self, command: &'static str) -> Request {
        self.needs = Some(command);
        self
    }

    fn repeated(mut self, repeat: Repeat) -> Request {
        self.repeat = repeat;
        self
    }

    fn effect(mut self, effect: Effect) -> Request {
        self.effect = effect;
        self
    }

    /// A question: it changes nothing, and its reply has a body.
    fn question(line: impl Into<Vec<u8>>) -> Request {
        let mut request = Request::line(line).repeated(Repeat::Always);
        request.has_document = true;
        request
    }

    fn reserving(line: String, wait: Duration) -> Request {
        let mut request = Request::question(line);
        request.wait = wait;
        request
    }
}

pub(crate) fn capabilities() -> Request {
    Request::question("capabilities").effect(Effect::Capabilities)
}

pub(crate) fn auth(token: &str) -> Result<Request> {
    check_word(token)?;
    let request = Request::line(format!("auth {token}")).repeated(Repeat::Always);
    Ok(request.effect(Effect::Token(token.to_owned())))
}

/// A plain put, into the tube that the connection uses.
pub(crate) fn put(put: &Put, now: SystemTime) -> Result<Request> {
    let delay = match put.at {
        None => put.delay,
        Some(_) if !put.delay.is_zero() => return Err(both_times()),
        Some(at) => {
            let at = UNIX_EPOCH + Duration::from_secs(u64::from(at));
            at.duration_since(now).unwrap_or_default()
        }
    };
    let (delay, ttr) = (seconds(delay)?, seconds(put.ttr)?.max(1));
    let line = format!("put {} {delay} {ttr} {}", put.pri, put.body.len());
    Ok(Request::line(line).body(&put.body))
}

fn both_times() -> Error {
    Error::usage("a put has a delay or a time, and not both")
}

pub(crate) fn put_with(put: &Put) -> Result<Request> {
    if put.at.is_some() && !put.delay.is_zero() {
        return Err(both_times());
    }
    let (delay, ttr) = (seconds(put.delay)?, seconds(put.ttr)?.max(1));
    let mut line = format!("put-with {} {delay} {ttr} {}", put.pri, put.body.len());
    let mut say = |name: &str, value: &str| _ = write!(line, " {name}={value}");
    let is_default = put.unique == Unique::Exists && put.conflict == Conflict::Keep;
    if put.key.is_none() && !is_default {
        return Err(Error::usage("how long a key is kept is said, and no key"));
    }
    if let Some(tube) = &put.tube {
        check_tube(tube)?;
        say("tube", tube);
    }
    if let Some(at) = put.at {
        say("at", &at.to_string());
    }
    if let Some(key) = &put.key {
        check_key(key)?;
        say("key", key);
        if put.unique == Unique::Waiting {
            say("unique", "waiting");
        }
        if put.conflict == Conflict::Replace {
            say("conflict", "replace");
        }
    }
    if let Some(group) = &put.group {
        check_key(group)?;
        say("group", group);
    }
    // With a key that lasts until the delete, the second put finds the job of the first one.
    let is_safe = put.key.is_some() && put.unique == Unique::Exists;
    let repeat = if is_safe {
        Repeat::Always
    } else {
        Repeat::Never
    };
    Ok(Request::line(line)
        .body(&put.body)
        .needs("put-with")
        .repeated(repeat))
}

pub(crate) fn use_tube(tube: &str) -> Result<Request> {
    check_tube(tube)?;
    let request = Request::line(format!("use {tube}")).repeated(Repeat::Always);
    Ok(request.effect(Effect::Use(tube.to_owned())))
}

pub(crate) fn watch(tube: &str) -> Result<Request> {
    check_tube(tube)?;
    let request = Request::line(format!("watch {tube}")).repeated(Repeat::Always);
    Ok(request.effect(Effect::Watch(tube.to_owned())))
}

pub(crate) fn ignore(tube: &str) -> Result<Request> {
    check_tube(tube)?;
    let request = Request::line(format!("ignore {tube}")).repeated(Repeat::Always);
    Ok(request.effect(Effect::Ignore(tube.to_owned())))
}

pub(crate) fn reserve(wait: Duration) -> Result<Request> {
    let seconds = wait_seconds(wait)?;
    let wait = Duration::from_secs(u64::from(seconds));
    Ok(Request::reserving(
        format!("reserve-with-timeout {seconds}"),
        wait,
    ))
}

/// As long as any clock can count from now.
const ENDLESS: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) fn reserve_endlessly() -> Request {
    Request::reserving("reserve".to_owned(), ENDLESS)
}

pub(crate) fn reserve_job(id: JobId) -> Request {
    Request::question(format!("reserve-job {id}"))
}

pub(crate) fn reserve_batch(most: u16, wait: Duration) -> Result<Request> {
    check_count(most)?;
    let seconds = wait_seconds(wait)?;
    let wait = Duration::from_secs(u64::from(seconds));
    let line = format!("reserve-batch {most} {seconds}");
    Ok(Request::reserving(line, wait).needs("reserve-batch"))
}

pub(crate) fn abort() -> Request {
    Request::line("abort")
        .needs("abort")
        .repeated(Repeat::Always)
}

pub(crate) fn delete(id: JobId) -> Request {
    let request = Request::line(format!("delete {id}")).repeated(Repeat::Check);
    request.effect(Effect::Finish(vec![id]))
}

pub(crate) fn release(id: JobId, pri: u32, delay: Duration) -> Result<Request> {
    let request = Request::line(format!("release {id} {pri} {}", seconds(delay)?));
    Ok(request.effect(Effect::Finish(vec![id])))
}

pub(crate) fn bury(id: JobId, pri: u32) -> Request {
    Request::line(format!("bury {id} {pri}")).effect(Effect::Finish(vec![id]))
}

pub(crate) fn touch(id: JobId) -> Request {
    Request::line(format!("touch {id}"))
}

fn batch(line: &str, ids: &[JobId]) -> Result<Request> {
    if ids.len() > BATCH_IDS_MAX {
        let text = format!("{} ids are more than {BATCH_IDS_MAX}, the limit", ids.len());
        return Err(Error::usage(text));
    }
    let mut body = String::with_capacity(ids.len() * 8);
    for id in ids {
        let blank = if body.is_empty() { "" } else { " " };
        _ = write!(body, "{blank}{id}");
    }
    let mut request = Request::line(format!("{line} {}", body.len())).body(body.as_bytes());
    request.has_document = true;
    Ok(request)
}

pub(crate) fn delete_batch(ids: &[JobId]) -> Result<Request> {
    let request = batch("delete-batch", ids)?.needs("delete-batch");
    Ok(request.effect(Effect::Finish(ids.to_vec())))
}

pub(crate) fn touch_batch(ids: &[JobId]) -> Result<Request> {
    Ok(batch("touch-batch", ids)?.needs("touch-batch"))
}

pub(crate) fn release_batch(ids: &[JobId], pri: u32, delay: Duration) -> Result<Request> {
    let request = batch(&format!("release-batch {pri} {}", seconds(delay)?), ids)?;
    Ok(request
        .needs("release-batch")
        .effect(Effect::Finish(ids.to_vec())))
}

pub(crate) fn fail(id: JobId, text: &[u8]) -> Result<Request> {
    check_text(text)?;
    let request = Request::line(format!("fail {id} {}", text.len())).body(text);
    Ok(request.needs("fail").effect(Effect::Finish(vec![id])))
}

pub(crate) fn bury_with_reason(id: JobId, pri: u32, text: &[u8]) -> Result<Request> {
    check_text(text)?;
    let line = format!("bury-with-reason {id} {pri} {}", text.len());
    let request = Request::line(line).body(text).needs("bury-with-reason");
    Ok(request.effect(Effect::Finish(vec![id])))
}

pub(crate) fn kick(bound: u32) -> Request {
    Request::line(format!("kick {bound}"))
}

pub(crate) fn kick_job(id: JobId) -> Request {
    Request::line(format!("kick-job {id}"))
}

pub(crate) fn pause(tube: &str, time: Duration) -> Result<Request> {
    check_tube(tube)?;
    let line = format!("pause-tube {tube} {}", seconds(time)?);
    Ok(Request::line(line).repeated(Repeat::Always))
}

pub(crate) fn peek(id: JobId) -> Request {
    Request::question(format!("peek {id}"))
}

/// A question of one word: `peek-ready`, `list-tubes`, `stats`.
pub(crate) fn ask(word: &'static str) -> Request {
    Request::question(word)
}

pub(crate) fn ask_tube(word: &'static str, tube: &str, is_extended: bool) -> Result<Request> {
    check_key(tube)?;
    let request = Request::question(format!("{word} {tube}"));
    Ok(if is_extended {
        request.needs(word)
    } else {
        request
    })
}

pub(crate) fn ask_job(word: &'static str, id: JobId, is_extended: bool) -> Request {
    let request = Request::question(format!("{word} {id}"));
    if is_extended {
        request.needs(word)
    } else {
        request
    }
}

pub(crate) fn clear(tube: &str, states: &str) -> Result<Request> {
    check_tube(tube)?;
    Ok(Request::line(format!("clear-tube {tube} {states}")).needs("clear-tube"))
}

pub(crate) fn list_jobs(tube: &str, state: &str, after: &str, limit: u16) -> Result<Request> {
    check_tube(tube)?;
    check_word(after)?;
    check_count(limit)?;
    let line = format!("list-jobs {tube} {state} {after} {limit}");
    Ok(Request::question(line).needs("list-jobs"))
}

pub(crate) fn move_job(id: JobId, tube: &str) -> Result<Request> {
    check_tube(tube)?;
    Ok(Request::line(format!("move-job {id} {tube}")).needs("move-job"))
}

pub(crate) fn set_policy(tubes: &str, values: &str) -> Result<Request> {
    check_word(tubes)?;
    let line = format!("set-policy {tubes} {values}");
    let request = Request::line(line.trim_end()).needs("set-policy");
    Ok(request.repeated(Repeat::Always))
}

pub(crate) fn set_schedule(name: &str, values: &str, body: &[u8]) -> Result<Request> {
    check_key(name)?;
    let line = format!("schedule-set {name} {} {values}", body.len());
    let request = Request::line(line).body(body).needs("schedule-set");
    Ok(request.repeated(Repeat::Always))
}

pub(crate) fn delete_schedule(name: &str) -> Result<Request> {
    check_key(name)?;
    Ok(Request::line(format!("schedule-delete {name}")).needs("schedule-delete"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &Request) -> &str {
        std::str::from_utf8(&request.bytes).unwrap()
    }

    #[test]
    fn an_attribute_is_said_only_where_it_is_set() {
        let plain = Put::new("hi").pri(5).ttr(Duration::from_millis(1500));
        assert_eq!(
            text(&put(&plain, UNIX_EPOCH).unwrap()),
            "put 5 0 2 2\r\nhi\r\n"
        );
        let with = plain
            .tube("mail")
            .key("-k")
            .unique(Unique::Waiting)
            .group("g");
        assert_eq!(
            text(&put_with(&with).unwrap()),
            "put-with 5 0 2 2 tube=mail key=-k unique=waiting group=g\r\nhi\r\n"
        );
        let at = Put::new("").at(100);
        assert_eq!(
            text(&put(&at, UNIX_EPOCH).unwrap()),
            "put 65536 100 120 0\r\n\r\n"
        );
        assert!(put_with(&at.delay(Duration::from_secs(1))).is_err());
    }

    #[test]
    fn no_name_carries_a_second_command() {
        for name in ["", "a b", "a\r\nquit", "-a", &"a".repeat(201)] {
            assert!(use_tube(name).is_err(), "{name:?}");
        }
        assert!(auth("a\r\nput").is_err());
        assert!(set_policy("a b", "").is_err());
        assert!(list_jobs("a", "ready", "0 1", 1).is_err());
    }

    #[test]
    fn a_put_is_repeated_only_with_a_key_that_lasts_until_the_delete() {
        let repeat = |put: Put| put_with(&put.tube("t")).unwrap().repeat;
        assert_eq!(repeat(Put::new("")), Repeat::Never);
        assert_eq!(repeat(Put::new("").key("k")), Repeat::Always);
        assert_eq!(
            repeat(Put::new("").key("k").unique(Unique::Waiting)),
            Repeat::Never
        );
    }
}
