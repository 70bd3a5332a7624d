//! Parsing the lines of extended commands, which beanstalkd does not know.
//!
//! [`super::parse`] reads each line first: only what it takes for no command, or for another one that
//! is misspelt, comes here. So nothing here can change what a command of beanstalkd does.
//!
//! The rules are those of beanstalkd, and stricter where it is lax: a word, then blanks and
//! arguments, and nothing after the last one.

use std::time::Duration;

use super::number::{last_u32, last_u64, take_u32, take_u64};
use super::parse::CRLF;
use super::parse::TIMEOUT_MAX;
use super::{
    BATCH_MAX, Capabilities, Command, Conflict, Cursor, JobKey, ListJobs, OnEach, Op, PAGE_MAX,
    PutWith, Refusal, Request, SetPolicy, SetSchedule,
};
use crate::attributes::{Unique, is_word};
use crate::clearing::ClearedStates;
use crate::policy;
use crate::schedule;
use crate::types::{JobId, JobState, SETTING_SIZE_MAX, is_tube_name};

/// Reads the rest of the line after the word. `None`: `BAD_FORMAT`, uncounted.
type Reader = for<'a> fn(&'a [u8]) -> Option<Request<'a>>;

/// The beginning of a line, and the reader of the rest. No word begins with another.
const COMMANDS: [(&[u8], Reader); 18] = [
    (b"abort", |rest| alone(rest, Command::Abort)),
    (b"capabilities", |rest| {
        alone(rest, Command::Capabilities(Capabilities::ALL))
    }),
    (b"list-jobs ", list_jobs),
    (b"reserve-batch ", reserve_batch),
    (b"move-job ", move_job),
    (b"clear-tube ", clear_tube),
    (b"stats-job-extended ", |rest| {
        let id = JobId(last_u64(rest)?);
        Some(Request::Command(Command::StatsJobExtended(id)))
    }),
    (b"stats-policy ", |rest| {
        let tube = tube_of(rest)?.into();
        Some(Request::Command(Command::StatsPolicy(tube)))
    }),
    (b"set-policy ", set_policy),
    (b"schedule-delete ", |rest| {
        let name = tube_of(rest)?.into();
        Some(Request::Command(Command::ScheduleDelete(name)))
    }),
    (b"stats-schedule ", |rest| {
        let name = tube_of(rest)?.into();
        Some(Request::Command(Command::StatsSchedule(name)))
    }),
    // Every line of these whose size can be read has gone to `announced` before.
    (PUT_WITH, |_| None),
    (DELETE_BATCH, |_| None),
    (TOUCH_BATCH, |_| None),
    (RELEASE_BATCH, |_| None),
    (FAIL, |_| None),
    (BURY_WITH_REASON, |_| None),
    (SCHEDULE_SET, |_| None),
];

const PUT_WITH: &[u8] = b"put-with ";
const DELETE_BATCH: &[u8] = b"delete-batch ";
const TOUCH_BATCH: &[u8] = b"touch-batch ";
const RELEASE_BATCH: &[u8] = b"release-batch ";
const FAIL: &[u8] = b"fail ";
const BURY_WITH_REASON: &[u8] = b"bury-with-reason ";
const SCHEDULE_SET: &[u8] = b"schedule-set ";

/// Bytes of the longest word, its blank included.
pub(super) const WORD_SIZE_MAX: usize = 19;

/// Whether a line that begins so may be longer than one of beanstalkd.
pub(super) fn may_be_long(head: &[u8]) -> bool {
    let begins = |(word, _): &(&[u8], Reader)| word.ends_with(b" ") && head.starts_with(word);
    COMMANDS.iter().any(begins)
}

/// Bytes of the largest body with the ids of a batch: more than the longest ids with a blank between
/// them have.
pub(super) const IDS_SIZE_MAX: u32 = 32 << 10;

/// A line with a body to come.
#[derive(Debug)]
pub(super) struct Announced {
    /// The command, for its counter.
    pub(super) op: Op,
    /// Bytes of the body, its trailing CR LF not counted.
    pub(super) body_size: u32,
    /// What the line says. `None`: that cannot be read. The body is skipped, and then the command is
    /// refused.
    pub(super) head: Option<Head>,
}

/// What is kept of a line until its body is complete.
#[derive(Debug)]
pub(super) enum Head {
    /// `put-with`, without a body.
    PutWith(Box<PutWith<'static>>),
    /// A batch, whose body has its ids.
    Batch(OnEach),
    /// `fail`, whose body says what went wrong.
    Fail(JobId),
    /// `bury-with-reason`, with a priority; its body is the reason.
    Bury(JobId, u32),
    /// `schedule-set`, without the body of its jobs.
    Schedule(Box<SetSchedule>),
}

impl Head {
    /// Its body is small by itself, and no job's.
    pub(super) fn is_small(&self) -> bool {
        !matches!(self, Head::PutWith(_) | Head::Schedule(_))
    }

    /// Its body is that of a job, which is put when it is complete.
    pub(super) fn is_put(&self) -> bool {
        matches!(self, Head::PutWith(_))
    }

    /// The command, for its counter.
    pub(super) fn op(&self) -> Op {
        match self {
            Head::PutWith(_) => Op::PutWith,
            Head::Batch(on_each) => on_each.op(),
            Head::Fail(_) => Op::Fail,
            Head::Bury(..) => Op::BuryWithReason,
            Head::Schedule(_) => Op::ScheduleSet,
        }
    }

    /// The request of the line and the bytes after it, or the last of them, which end with a CR LF, or
    /// should. Not inlined: a `put` takes the same way, and has no head.
    #[inline(never)]
    pub(super) fn with(self, bytes: &[u8]) -> Request<'_> {
        let Some(body) = bytes.strip_suffix(CRLF) else {
            return Request::refused(Refusal::ExpectedCrlf, Some(self.op()));
        };
        match self {
            Head::PutWith(head) => {
                let mut put: Box<PutWith<'_>> = head;
                put.body = body.into();
                Request::Command(Command::PutWith(put))
            }
            Head::Fail(id) => {
                let text = body.into();
                Request::Command(Command::Fail { id, text })
            }
            Head::Bury(id, pri) => {
                let text = body.into();
                Request::Command(Command::BuryWithReason { id, pri, text })
            }
            Head::Schedule(mut set) => {
                set.schedule.body = body.to_vec();
                Request::Command(Command::ScheduleSet(set))
            }
            Head::Batch(on_each) => match ids(body) {
                Some(ids) => Request::Command(Command::Batch { on_each, ids }),
                None => Request::refused(Refusal::BadFormat, Some(on_each.op())),
            },
        }
    }
}

/// Ids with blanks between them, [`BATCH_MAX`] at most.
fn ids(mut body: &[u8]) -> Option<Vec<JobId>> {
    let mut ids = Vec::new();
    while !body.is_empty() {
        let is_apart = ids.is_empty() || body.starts_with(b" ");
        if !is_apart || ids.len() == BATCH_MAX {
            return None;
        }
        ids.push(JobId(take_u64(&mut body)?));
    }
    Some(ids)
}

/// Reads a line that announces a body, without its CR LF. `None`: it does not, or its numbers cannot be
/// read.
pub(super) fn announced(line: &[u8]) -> Option<Announced> {
    if let Some(rest) = line.strip_prefix(PUT_WITH) {
        put_with(rest)
    } else if let Some(rest) = line.strip_prefix(DELETE_BATCH) {
        batch(rest, OnEach::Delete)
    } else if let Some(rest) = line.strip_prefix(TOUCH_BATCH) {
        batch(rest, OnEach::Touch)
    } else if let Some(rest) = line.strip_prefix(RELEASE_BATCH) {
        release_batch(rest)
    } else if let Some(rest) = line.strip_prefix(FAIL) {
        fail(rest)
    } else if let Some(rest) = line.strip_prefix(SCHEDULE_SET) {
        schedule_set(rest)
    } else {
        bury_with_reason(line.strip_prefix(BURY_WITH_REASON)?)
    }
}

fn fail(mut rest: &[u8]) -> Option<Announced> {
    let id = JobId(take_u64(&mut rest)?);
    announced_by(rest, Head::Fail(id))
}

fn bury_with_reason(mut rest: &[u8]) -> Option<Announced> {
    let id = JobId(take_u64(&mut rest)?);
    let pri = take_u32(&mut rest)?;
    announced_by(rest, Head::Bury(id, pri))
}

fn release_batch(mut rest: &[u8]) -> Option<Announced> {
    let pri = take_u32(&mut rest)?;
    let delay = take_u32(&mut rest)?;
    batch(rest, OnEach::Release { pri, delay })
}

fn batch(rest: &[u8], on_each: OnEach) -> Option<Announced> {
    announced_by(rest, Head::Batch(on_each))
}

/// A line whose last argument is the size of the body. If anything follows it the line is refused, and
/// its body skipped.
fn announced_by(mut rest: &[u8], head: Head) -> Option<Announced> {
    let body_size = take_u32(&mut rest)?;
    Some(Announced {
        op: head.op(),
        body_size,
        head: rest.is_empty().then_some(head),
    })
}

/// The largest body of a schedule: the record that has it has its words, too, about as long as the line.
pub(super) fn schedule_size_max(set: &SetSchedule) -> u32 {
    let words = set.schedule.to_string();
    (SETTING_SIZE_MAX - 1 - words.len()) as u32
}

/// A name, the size of the body, and what the schedule says.
fn schedule_set(rest: &[u8]) -> Option<Announced> {
    let rest = &rest[rest.iter().take_while(|byte| **byte == b' ').count()..];
    let end = rest.iter().position(|byte| *byte == b' ')?;
    let (name, mut rest) = rest.split_at(end);
    let body_size = take_u32(&mut rest)?;
    let read = || {
        let is_apart = rest.starts_with(b" ") && !rest.ends_with(b" ");
        let name = std::str::from_utf8(name).ok()?;
        schedule::check_name(name).ok().filter(|()| is_apart)?;
        let words = std::str::from_utf8(rest).ok()?;
        Some(SetSchedule {
            name: name.to_owned(),
            schedule: words.parse().ok()?,
            keeps_pause: !words.split(' ').any(|word| word.starts_with("paused=")),
        })
    };
    Some(Announced {
        op: Op::ScheduleSet,
        body_size,
        head: read().map(|set| Head::Schedule(Box::new(set))),
    })
}

fn put_with(mut rest: &[u8]) -> Option<Announced> {
    let mut put = PutWith {
        tube: None,
        pri: take_u32(&mut rest)?,
        delay: take_u32(&mut rest)?,
        ttr: take_u32(&mut rest)?.max(1),
        at: None,
        key: None,
        group: None,
        body: Default::default(),
    };
    let body_size = take_u32(&mut rest)?;
    let is_read = read_attributes(rest, &mut put).is_some();
    Some(Announced {
        op: Op::PutWith,
        body_size,
        head: is_read.then(|| Head::PutWith(Box::new(put))),
    })
}

/// Reads `name=value`, any number of them, each after one blank or more. `None`: one is not known, is
/// there twice, has no such value, or contradicts another one.
fn read_attributes(mut rest: &[u8], put: &mut PutWith<'static>) -> Option<()> {
    let mut of_key = OfKey::default();
    while !rest.is_empty() {
        let blanks = rest.iter().take_while(|byte| **byte == b' ').count();
        let (blank, attribute) = rest.split_at(blanks);
        let end = attribute.iter().position(|byte| *byte == b' ');
        let (attribute, behind) = attribute.split_at(end.unwrap_or(attribute.len()));
        if blank.is_empty() {
            return None;
        }
        read_attribute(std::str::from_utf8(attribute).ok()?, put, &mut of_key)?;
        rest = behind;
    }
    put.key = of_key.whole()?;
    (put.at.is_none() || put.delay == 0).then_some(())
}

/// The attributes of a line that are about its key.
#[derive(Default)]
struct OfKey<'a> {
    name: Option<&'a str>,
    unique: Option<Unique>,
    conflict: Option<Conflict>,
}

impl OfKey<'_> {
    /// `None`: they are about a key that the line does not have.
    #[allow(
        clippy::option_option,
        reason = "a line has a key, has none, or cannot be read"
    )]
    fn whole(self) -> Option<Option<JobKey<'static>>> {
        let Some(name) = self.name else {
            let is_plain = self.unique.is_none() && self.conflict.is_none();
            return is_plain.then_some(None);
        };
        Some(Some(JobKey {
            name: name.to_owned().into(),
            unique: self.unique.unwrap_or(Unique::Exists),
            conflict: self.conflict.unwrap_or_default(),
        }))
    }
}

fn read_attribute<'a>(
    attribute: &'a str,
    put: &mut PutWith<'static>,
    of_key: &mut OfKey<'a>,
) -> Option<()> {
    let (name, value) = attribute.split_once('=')?;
    let is_new = match name {
        "tube" if is_tube_name(value.as_bytes()) => {
            put.tube.replace(value.to_owned().into()).is_none()
        }
        "at" => put.at.replace(last_u32(value.as_bytes())?).is_none(),
        "key" if is_word(value.as_bytes()) => of_key.name.replace(value).is_none(),
        "unique" => of_key.unique.replace(Unique::parse(value)?).is_none(),
        "conflict" => of_key.conflict.replace(Conflict::parse(value)?).is_none(),
        "group" if is_word(value.as_bytes()) => {
            put.group.replace(value.to_owned().into()).is_none()
        }
        _ => false,
    };
    is_new.then_some(())
}

/// Reads a line, without its CR LF. `None`: it is no extended command either.
pub(super) fn request(line: &[u8]) -> Option<Request<'_>> {
    let bad = Request::refused(Refusal::BadFormat, None);
    let (word, read) = COMMANDS.iter().find(|(word, _)| line.starts_with(word))?;
    Some(read(&line[word.len()..]).unwrap_or(bad))
}

/// The largest number of jobs, and a timeout as that of `reserve-with-timeout`.
fn reserve_batch(mut rest: &[u8]) -> Option<Request<'_>> {
    let most = usize::try_from(take_u32(&mut rest)?).ok()?;
    let seconds = last_u32(rest).filter(|seconds| *seconds <= TIMEOUT_MAX)?;
    let is_right = (1..=BATCH_MAX).contains(&most);
    is_right.then(|| {
        Request::Command(Command::ReserveBatch {
            most: most as u16,
            timeout: Some(Duration::from_secs(seconds.into())),
        })
    })
}

/// A job and a tube.
fn move_job(mut rest: &[u8]) -> Option<Request<'_>> {
    let id = JobId(take_u64(&mut rest)?);
    let tube = tube_of(rest)?.into();
    Some(Request::Command(Command::MoveJob { id, tube }))
}

/// A tube, and the states whose jobs are deleted.
fn clear_tube(rest: &[u8]) -> Option<Request<'_>> {
    let text = std::str::from_utf8(rest).ok()?;
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let tube = words.next().filter(|it| is_tube_name(it.as_bytes()))?;
    let states = ClearedStates::parse(words.next()?)?;
    let is_whole = words.next().is_none() && !text.ends_with(' ');
    is_whole.then(|| {
        Request::Command(Command::ClearTube {
            tube: tube.into(),
            states,
        })
    })
}

/// The name of a tube as the last argument, after any blanks.
fn tube_of(rest: &[u8]) -> Option<&str> {
    let name = rest.trim_ascii_start();
    std::str::from_utf8(name)
        .ok()
        .filter(|_| is_tube_name(name))
}

/// A tube or a pattern of tubes, and what its policy says; nothing removes it.
fn set_policy(rest: &[u8]) -> Option<Request<'_>> {
    let text = std::str::from_utf8(rest).ok()?.trim_start_matches(' ');
    let (tubes, values) = text.split_once(' ').unwrap_or((text, ""));
    if rest.ends_with(b" ") {
        return None;
    }
    let set = SetPolicy {
        tubes: policy::tubes(tubes).ok()?,
        policy: values.parse().ok()?,
    };
    Some(Request::Command(Command::SetPolicy(Box::new(set))))
}

/// Tube, state, cursor and limit, with blanks between them.
fn list_jobs(rest: &[u8]) -> Option<Request<'_>> {
    let text = std::str::from_utf8(rest).ok()?;
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let list = ListJobs {
        tube: words
            .next()
            .filter(|it| is_tube_name(it.as_bytes()))?
            .into(),
        state: state(words.next()?)?,
        after: match words.next()? {
            "0" => None,
            text => Some(cursor(text)?),
        },
        limit: u16::try_from(last_u32(words.next()?.as_bytes())?).ok()?,
    };
    let is_whole = words.next().is_none() && !text.ends_with(' ');
    let is_right = is_whole && (1..=PAGE_MAX).contains(&list.limit);
    is_right.then(|| Request::Command(Command::ListJobs(Box::new(list))))
}

fn state(word: &str) -> Option<JobState> {
    use JobState::{Buried, Delayed, Ready, Reserved};
    let states = [Ready, Delayed, Reserved, Buried];
    states.into_iter().find(|state| state.word() == word)
}

/// A cursor, as a page has it. The key may begin with a dash of its own.
fn cursor(text: &str) -> Option<Cursor> {
    let (id, rest) = text.split_once('-')?;
    let (key, client) = rest.rsplit_once('-')?;
    Some(Cursor {
        id: JobId(id.parse().ok()?),
        key: key.parse().ok()?,
        client: client.parse().ok()?,
    })
}

/// A command without arguments: the word is the whole line.
fn alone<'a>(rest: &[u8], this: Command<'a>) -> Option<Request<'a>> {
    rest.is_empty().then_some(Request::Command(this))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD_FORMAT: Option<Request<'_>> = Some(Request::refused(Refusal::BadFormat, None));

    fn table() -> Vec<(&'static [u8], Option<Request<'static>>)> {
        use Command as C;
        use JobState::{Buried, Delayed, Ready, Reserved};
        let run = |command| Some(Request::Command(command));
        let reserve = |most, seconds| {
            let timeout = Some(Duration::from_secs(seconds));
            run(C::ReserveBatch { most, timeout })
        };
        let list = |tube: &'static str, state, after: Option<(u64, i64, u32)>, limit| {
            let after = after.map(|(id, key, client)| Cursor {
                id: JobId(id),
                key,
                client,
            });
            let tube = tube.into();
            run(C::ListJobs(Box::new(ListJobs {
                tube,
                state,
                after,
                limit,
            })))
        };
        vec![
            (b"abort", run(C::Abort)),
            (b"abort ", BAD_FORMAT),
            (b"aborted", BAD_FORMAT),
            (b"capabilities", run(C::Capabilities(Capabilities::ALL))),
            (b"capabilities ", BAD_FORMAT),
            (b"capabilities\0", BAD_FORMAT),
            (b"capabilitiesx", BAD_FORMAT),
            (b"put-with ", BAD_FORMAT),
            (b"put-with 1 2 3", BAD_FORMAT),
            (b"put-with 1 2 3 x", BAD_FORMAT),
            (b"put-with 1 2 3 4294967296 tube=a", BAD_FORMAT),
            (b"put-with -1 2 3 4", BAD_FORMAT),
            (b"reserve-batch 1 0", reserve(1, 0)),
            (
                b"reserve-batch  1000  2147483647",
                reserve(1000, i32::MAX as u64),
            ),
            (b"reserve-batch 0 0", BAD_FORMAT),
            (b"reserve-batch 1001 0", BAD_FORMAT),
            (b"reserve-batch 65537 0", BAD_FORMAT),
            (b"reserve-batch 1 2147483648", BAD_FORMAT),
            (b"reserve-batch 1 -1", BAD_FORMAT),
            (b"reserve-batch 1 0 ", BAD_FORMAT),
            (b"reserve-batch 1 0x", BAD_FORMAT),
            (b"reserve-batch 1", BAD_FORMAT),
            (b"reserve-batch ", BAD_FORMAT),
            (b"reserve-batch", None),
            (b"list-jobs a ready 0 1", list("a", Ready, None, 1)),
            (
                b"list-jobs  a  buried  8-7-0  1000",
                list("a", Buried, Some((8, 7, 0)), 1000),
            ),
            (
                b"list-jobs a delayed 8--7-0 10",
                list("a", Delayed, Some((8, -7, 0)), 10),
            ),
            (
                b"list-jobs a reserved 8-7-4294967295 10",
                list("a", Reserved, Some((8, 7, u32::MAX)), 10),
            ),
            (b"list-jobs a ready 0", BAD_FORMAT),
            (b"list-jobs a ready 0 1 ", BAD_FORMAT),
            (b"list-jobs a ready 0 1 2", BAD_FORMAT),
            (b"list-jobs a ready 0 0", BAD_FORMAT),
            (b"list-jobs a ready 0 1001", BAD_FORMAT),
            (b"list-jobs a ready 0 +1", BAD_FORMAT),
            (b"list-jobs a ready x 1", BAD_FORMAT),
            (b"list-jobs a ready 8 1", BAD_FORMAT),
            (b"list-jobs a ready 8-7 1", BAD_FORMAT),
            (b"list-jobs a ready 8-x-0 1", BAD_FORMAT),
            (b"list-jobs a urgent 0 1", BAD_FORMAT),
            (b"list-jobs -a ready 0 1", BAD_FORMAT),
            (b"list-jobs a ready 0 1\0", BAD_FORMAT),
            (b"list-jobs", None),
            (b"put-with", None),
            (b"delete-batch ", BAD_FORMAT),
            (b"delete-batch 1 ", BAD_FORMAT),
            (b"delete-batch 1 2", BAD_FORMAT),
            (b"delete-batch x", BAD_FORMAT),
            (b"delete-batch", None),
            (b"touch-batch 4294967296", BAD_FORMAT),
            (b"release-batch 1", BAD_FORMAT),
            (b"release-batch 1 2", BAD_FORMAT),
            (b"release-batch 1 2 3 4", BAD_FORMAT),
            (b"release-batch -1 2 3", BAD_FORMAT),
            (b"capability", None),
            (b" capabilities", None),
            (b"CAPABILITIES", None),
            (b"", None),
            (b"nonsense", None),
            (b"reserve", None),
        ]
    }

    #[test]
    fn every_line_says_what_the_specification_says() {
        for (line, expected) in table() {
            assert_eq!(request(line), expected, "{}", line.escape_ascii());
        }
    }

    /// A `put-with` line that can be read, as the request that it makes with its body.
    fn put_with_of(line: &str) -> Option<PutWith<'static>> {
        let announced = announced(line.as_bytes()).expect(line);
        assert_eq!((announced.op, announced.body_size), (Op::PutWith, 5));
        match announced.head?.with(b"hello\r\n") {
            Request::Command(Command::PutWith(put)) => Some(*put),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_put_with_has_attributes_in_any_order_each_once() {
        let plain = PutWith {
            tube: None,
            pri: 1,
            delay: 0,
            ttr: 3,
            at: None,
            key: None,
            group: None,
            body: b"hello"[..].into(),
        };
        let with = |tube: Option<&'static str>, at| PutWith {
            tube: tube.map(Into::into),
            at,
            ..plain.clone()
        };
        for (rest, expected) in [
            ("", plain.clone()),
            (" tube=a", with(Some("a"), None)),
            ("  at=7   tube=a", with(Some("a"), Some(7))),
            (" tube=a at=007", with(Some("a"), Some(7))),
            (" at=4294967295", with(None, Some(u32::MAX))),
        ] {
            let line = format!("put-with 1 0 3 5{rest}");
            assert_eq!(put_with_of(&line), Some(expected), "{line}");
        }
        let late = put_with_of("put-with 1 2 0 5").unwrap();
        assert_eq!((late.delay, late.ttr), (2, 1));
        for rest in [
            " ",
            "x",
            "tube=a",
            " tube=a ",
            " tube=",
            " tube=-a",
            " tube=a=b",
            " tube=a tube=a",
            " at=1 at=1",
            " at=",
            " at=-1",
            " at=+1",
            " at=1.5",
            " at=4294967296",
            " at",
            " =",
            " Tube=a",
            " tube=\u{e4}",
            " tube=a\0",
            "\ttube=a",
        ] {
            let line = format!("put-with 1 0 3 5{rest}");
            assert_eq!(put_with_of(&line), None, "{line}");
        }
        assert_eq!(put_with_of("put-with 1 2 3 5 at=1"), None, "a delay, too");
        assert_eq!(put_with_of("put-with 1 0 3 5 tube=\u{ff}"), None);
    }

    #[test]
    fn a_key_has_options_of_its_own_and_a_group_stands_alone() {
        use Conflict::{Keep, Replace};
        let key = |name: &str, unique, conflict| {
            let name = name.to_owned().into();
            Some(JobKey {
                name,
                unique,
                conflict,
            })
        };
        let longest = "k".repeat(200);
        let exists = key("a", Unique::Exists, Keep);
        for (rest, expected) in [
            (" key=a".into(), exists.clone()),
            (" key=-5".into(), key("-5", Unique::Exists, Keep)),
            (
                format!(" key={longest}"),
                key(&longest, Unique::Exists, Keep),
            ),
            (" unique=exists key=a conflict=keep".into(), exists),
            (
                " unique=waiting  conflict=replace key=a".into(),
                key("a", Unique::Waiting, Replace),
            ),
        ] {
            let line = format!("put-with 1 0 3 5 {rest} group=g tube=t");
            let put = put_with_of(&line).expect(&line);
            assert_eq!(put.key, expected, "{line}");
            assert_eq!(put.group.as_deref(), Some("g"));
        }
        let too_long = format!(" key={longest}k");
        for rest in [
            " unique=exists",
            " conflict=keep",
            " group=g unique=waiting",
            " key=",
            " key=a=b",
            " key=a*",
            " key=\u{e4}",
            &too_long,
            " key=a key=a",
            " key=a key=b",
            " key=a unique=",
            " key=a unique=ready",
            " key=a unique=Exists",
            " key=a unique=exists unique=exists",
            " key=a conflict=",
            " key=a conflict=fail",
            " key=a conflict=keep conflict=keep",
            " group=",
            " group=a=b",
            " group=g group=g",
            " Key=a",
        ] {
            let line = format!("put-with 1 0 3 5{rest}");
            assert_eq!(put_with_of(&line), None, "{line}");
        }
    }

    #[test]
    fn a_batch_has_ids_with_blanks_between_them() {
        let pri_and_delay = OnEach::Release { pri: 1, delay: 2 };
        for (line, on_each) in [
            ("delete-batch 5", OnEach::Delete),
            ("touch-batch   5", OnEach::Touch),
            ("release-batch 1 2 5", pri_and_delay),
        ] {
            let announced = announced(line.as_bytes()).expect(line);
            assert_eq!((announced.op, announced.body_size), (on_each.op(), 5));
            let ids = vec![JobId(1), JobId(22)];
            let request = announced.head.expect(line).with(b"1  22\r\n");
            assert_eq!(request, Request::Command(Command::Batch { on_each, ids }));
        }
        let max = u64::MAX.to_string();
        for (body, expected) in [
            ("", Some(vec![])),
            ("7", Some(vec![7])),
            ("  7 7", Some(vec![7, 7])),
            (&max, Some(vec![u64::MAX])),
            ("7 ", None),
            (" ", None),
            ("7,8", None),
            ("7 x", None),
            ("7x", None),
            ("-7", None),
            ("7\r\n8", None),
            ("7\08", None),
            ("18446744073709551616", None),
        ] {
            let expected = expected.map(|ids| ids.into_iter().map(JobId).collect());
            assert_eq!(ids(body.as_bytes()), expected, "{body:?}");
        }
        let many = |count: usize| vec!["7"; count].join(" ");
        assert_eq!(ids(many(1000).as_bytes()).map(|ids| ids.len()), Some(1000));
        assert_eq!(ids(many(1001).as_bytes()), None);
        let longest = vec![&*max; 1000].join(" ");
        assert!(longest.len() <= IDS_SIZE_MAX as usize);
    }

    #[test]
    fn a_body_without_its_end_is_refused() {
        let head = announced(b"put-with 1 0 3 5")
            .and_then(|it| it.head)
            .unwrap();
        let refused = Request::refused(Refusal::ExpectedCrlf, Some(Op::PutWith));
        assert_eq!(head.with(b"hello!!"), refused);
    }

    #[test]
    fn no_word_begins_with_another_and_none_is_longer_than_what_is_compared() {
        for (word, _) in COMMANDS {
            let begun = |(other, _): &&(&[u8], Reader)| other.starts_with(word);
            assert_eq!(COMMANDS.iter().filter(begun).count(), 1);
            assert!(word.len() <= WORD_SIZE_MAX);
        }
    }

    #[test]
    fn each_command_is_among_the_capabilities_by_its_word() {
        let mut words = COMMANDS.map(|(word, _)| word.trim_ascii_end().to_vec());
        words.sort_unstable();
        let listed: Vec<_> = Capabilities::ALL.words().map(str::as_bytes).collect();
        assert_eq!(listed, words.to_vec());
        let mut allowed = Capabilities::ALL;
        allowed.retain(|_| false);
        assert_eq!(allowed.words().count(), 0);
    }
}
