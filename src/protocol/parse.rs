//! Parsing one complete line of the protocol into a request.
//!
//! This is only the grammar: [`super::decode`] decides where a line ends, what happens to a body
//! and how much may be kept. The rules are the behaviour of beanstalkd 1.13, not only
//! `protocol.txt`, which leaves most errors open; `table` in the tests below lists them.
//!
//! * A command is recognised by the beginning of its line, by the first matching row of
//!   [`COMMANDS`]: `quitting` quits, `reserve-jobs 1` is a misspelt `reserve`, `delete` without a
//!   blank is unknown.
//! * A command whose arguments cannot be read is refused and not counted. The exceptions (trailing
//!   bytes after `put`, a bad name in `pause-tube`) are counted, because beanstalkd counts before
//!   it checks those.

use std::borrow::Cow;
use std::time::Duration;

use memchr::memchr;

use super::number::{c_unsigned_long, last_u32, last_u64, take_u32, take_u64};
use super::{Command, Op, Refusal, Request};
use crate::types::{JobId, is_tube_name, is_tube_name_byte};

/// The end of a line, and of a body.
pub(super) const CRLF: &[u8] = b"\r\n";

/// Reads the rest of the line after the word. `None`: `BAD_FORMAT`, uncounted.
type Reader = for<'a> fn(&'a [u8]) -> Option<Request<'a>>;

/// The beginning of a line, and the reader of the rest. The order matters if one word begins with
/// another; else those that are sent most come first.
const COMMANDS: [(&[u8], Reader); 26] = [
    (b"reserve-with-timeout ", reserve_with_timeout),
    (b"reserve-job ", |rest| id(rest, Command::ReserveJob)),
    (b"reserve", |rest| alone(rest, Command::reserve(None))),
    (b"delete ", |rest| id(rest, Command::Delete)),
    (b"release ", release),
    (b"bury ", bury),
    (b"kick ", kick),
    (b"kick-job ", |rest| id(rest, Command::KickJob)),
    (b"touch ", |rest| id(rest, Command::Touch)),
    (b"peek ", |rest| id(rest, Command::Peek)),
    (b"peek-ready", |rest| alone(rest, Command::PeekReady(None))),
    (b"peek-delayed", |rest| {
        alone(rest, Command::PeekDelayed(None))
    }),
    (b"peek-buried", |rest| {
        alone(rest, Command::PeekBuried(None))
    }),
    (b"stats-job ", |rest| id(rest, Command::StatsJob)),
    (b"stats-tube ", |rest| tube(rest, Command::StatsTube)),
    (b"stats", |rest| alone(rest, Command::Stats)),
    (b"use ", |rest| tube(rest, Command::Use)),
    (b"watch ", |rest| tube(rest, Command::Watch)),
    (b"ignore ", |rest| tube(rest, Command::Ignore)),
    (b"list-tubes-watched", |rest| {
        alone(rest, Command::ListTubesWatched)
    }),
    (b"list-tube-used", |rest| alone(rest, Command::ListTubeUsed)),
    (b"list-tubes", |rest| alone(rest, Command::ListTubes)),
    (b"quit", |_| Some(Request::Quit)),
    (b"pause-tube", pause_tube),
    (b"auth ", |token| Some(Request::Auth(token))),
    (b"put ", |_| None), // Every line that is a `put` has gone to `put` before.
];

/// Seconds that a client may ask to wait for a job at most.
pub(super) const TIMEOUT_MAX: u32 = i32::MAX as u32;

/// Content of a `put` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PutLine {
    /// Smaller is more urgent.
    pub(super) pri: u32,
    /// Seconds.
    pub(super) delay: u32,
    /// Seconds, at least 1.
    pub(super) ttr: u32,
    /// Bytes of the body, its trailing CR LF not counted.
    pub(super) body_size: u32,
    /// There are bytes after the last number. That is an error, but a body that is too big takes
    /// precedence, so the line alone cannot tell which error it is.
    pub(super) trailing: bool,
}

/// Reads a `put` line, without its CR LF. `None`: it is not one, or its numbers cannot be read;
/// then [`line()`] says what is wrong.
#[inline(always)]
pub(super) fn put(line: &[u8]) -> Option<PutLine> {
    put_numbers(line.strip_prefix(b"put ")?)
}

#[inline(always)]
fn put_numbers(mut rest: &[u8]) -> Option<PutLine> {
    let put = PutLine {
        pri: take_u32(&mut rest)?,
        delay: take_u32(&mut rest)?,
        ttr: take_u32(&mut rest)?.max(1),
        body_size: take_u32(&mut rest)?,
        trailing: !rest.is_empty(),
    };
    // Everything read so far is digits and blanks: only the rest could contain a NUL.
    (rest.is_empty() || !has_nul(rest)).then_some(put)
}

/// Reads any other line, without its CR LF.
pub(super) fn line(line: &[u8]) -> Request<'_> {
    if is_http(line) {
        return Request::refused(Refusal::Http, None);
    }
    let bad = Request::refused(Refusal::BadFormat, None);
    let fits = |(word, _): &&(&[u8], Reader)| line.starts_with(word);
    let request = match COMMANDS.iter().find(fits) {
        Some((word, read)) => read(&line[word.len()..]).unwrap_or(bad),
        None => Request::refused(Refusal::UnknownCommand, None),
    };
    match is_all_read(&request) || !has_nul(line) {
        true => request,
        false => Request::refused(Refusal::BadFormat, None),
    }
}

/// Whether each byte of the line was compared: the words, blanks and digits of such a command are all
/// there is. In other lines a NUL may be where any byte is allowed.
fn is_all_read(request: &Request<'_>) -> bool {
    use Command::{Bury, Delete, KickJob, Peek, Release, Reserve, ReserveJob, StatsJob, Touch};
    let Request::Command(command) = request else {
        return false;
    };
    match command {
        Reserve { timeout, .. } => timeout.is_none(),
        Delete(_) | Touch(_) | Release { .. } | Bury { .. } => true,
        ReserveJob(_) | KickJob(_) | Peek(_) | StatsJob(_) => true,
        _ => false,
    }
}

/// The methods of HTTP that a web page, or a server that is made to ask for addresses of others, can
/// be made to send. No command begins with a capital letter.
const METHODS: [&[u8]; 9] = [
    b"GET ",
    b"POST ",
    b"PUT ",
    b"HEAD ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
];
/// End of such a line, without its last digit.
const VERSION: &[u8] = b" HTTP/1.";
/// Bytes of the longest method.
pub(super) const METHOD_SIZE_MAX: usize = 8;

/// Whether a line that is too long, of which this is the beginning, is taken for one of HTTP.
pub(super) fn begins_as_http(line: &[u8]) -> bool {
    METHODS.iter().any(|method| line.starts_with(method))
}

/// Whether it is the first line of a request of HTTP: its body could have lines that are commands.
fn is_http(line: &[u8]) -> bool {
    line.first().is_some_and(u8::is_ascii_uppercase)
        && begins_as_http(line)
        && line.windows(VERSION.len()).any(|part| part == VERSION)
}

/// beanstalkd keeps lines as C strings: a NUL would end one early.
fn has_nul(line: &[u8]) -> bool {
    memchr(0, line).is_some()
}

fn command(command: Command<'_>) -> Option<Request<'_>> {
    Some(Request::Command(command))
}

/// A command without arguments: the word is the whole line.
fn alone<'a>(rest: &[u8], this: Command<'a>) -> Option<Request<'a>> {
    if rest.is_empty() { command(this) } else { None }
}

/// A command whose only argument is a job id.
fn id<'a>(rest: &'a [u8], this: fn(JobId) -> Command<'a>) -> Option<Request<'a>> {
    command(this(JobId(last_u64(rest)?)))
}

/// A command whose only argument is a tube name: all the rest of the line, blanks included.
fn tube<'a>(rest: &'a [u8], this: fn(Cow<'a, str>) -> Command<'a>) -> Option<Request<'a>> {
    command(this(tube_name(rest)?.into()))
}

fn tube_name(name: &[u8]) -> Option<&str> {
    is_tube_name(name)
        .then(|| std::str::from_utf8(name).ok())
        .flatten()
}

/// Blanks, then a number of seconds below 2^31. Bytes after its digits are ignored, as in
/// beanstalkd 1.13; 1.12 also accepted signs and cut larger numbers to 32 bits.
fn reserve_with_timeout(mut rest: &[u8]) -> Option<Request<'_>> {
    let seconds = take_u32(&mut rest).filter(|seconds| *seconds <= TIMEOUT_MAX)?;
    command(Command::reserve(Some(Duration::from_secs(seconds.into()))))
}

fn release(mut rest: &[u8]) -> Option<Request<'_>> {
    let id = JobId(take_u64(&mut rest)?);
    let pri = take_u32(&mut rest)?;
    command(Command::Release {
        id,
        pri,
        delay: last_u32(rest)?,
    })
}

fn bury(mut rest: &[u8]) -> Option<Request<'_>> {
    let id = JobId(take_u64(&mut rest)?);
    command(Command::Bury {
        id,
        pri: last_u32(rest)?,
    })
}

/// The bound is read by C's rules and cut to 32 bits.
fn kick(rest: &[u8]) -> Option<Request<'_>> {
    command(Command::Kick {
        tube: None,
        bound: c_unsigned_long(rest)? as u32,
    })
}

/// Optional blanks, then the longest run of name bytes, then the delay. The whole name is checked
/// only after that, when the command already counts.
fn pause_tube(rest: &[u8]) -> Option<Request<'_>> {
    let blanks = rest.iter().take_while(|byte| **byte == b' ').count();
    let name_size = rest[blanks..]
        .iter()
        .take_while(|byte| is_tube_name_byte(**byte))
        .count();
    if name_size == 0 {
        return None;
    }
    let (name, rest) = rest[blanks..].split_at(name_size);
    let delay = last_u32(rest)?;
    match tube_name(name) {
        Some(tube) => command(Command::pause_tube(tube, delay)),
        None => Some(Request::refused(Refusal::BadFormat, Some(Op::PauseTube))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD_FORMAT: Request<'_> = Request::refused(Refusal::BadFormat, None);
    const BAD_FORMAT_COUNTED: Request<'_> =
        Request::refused(Refusal::BadFormat, Some(Op::PauseTube));
    const UNKNOWN: Request<'_> = Request::refused(Refusal::UnknownCommand, None);

    fn table() -> Vec<(&'static [u8], Request<'static>)> {
        use Command::*;
        let run = Request::Command;
        let id = JobId(1);
        let wait = |seconds| {
            run(Reserve {
                timeout: Some(Duration::from_secs(seconds)),
                op: Op::ReserveWithTimeout,
            })
        };
        vec![
            // Job ids: blanks, digits, and nothing after them.
            (b"peek 1", run(Peek(id))),
            (b"peek    1", run(Peek(id))),
            (b"peek 000000000000000000000000001", run(Peek(id))),
            (b"peek 18446744073709551615", run(Peek(JobId(u64::MAX)))),
            (b"peek 18446744073709551616", BAD_FORMAT),
            (b"peek 1 ", BAD_FORMAT),
            (b"peek 1x", BAD_FORMAT),
            (b"peek -1", BAD_FORMAT),
            (b"peek +1", BAD_FORMAT),
            (b"peek \t1", BAD_FORMAT),
            (b"peek ", BAD_FORMAT),
            (b"peek\t1", UNKNOWN),
            (b"peek", UNKNOWN),
            (b"delete 1", run(Delete(id))),
            (b"delete ", BAD_FORMAT),
            (b"delete 1 ", BAD_FORMAT),
            (b"delete", UNKNOWN),
            (b"touch 1", run(Touch(id))),
            (b"touch x", BAD_FORMAT),
            (b"touch", UNKNOWN),
            (b"reserve-job 1", run(ReserveJob(id))),
            (b"reserve-job 1x", BAD_FORMAT),
            (b"kick-job 1", run(KickJob(id))),
            (b"kick-job", UNKNOWN),
            (b"kick-jobs 1", UNKNOWN),
            (b"stats-job 1", run(StatsJob(id))),
            (b"stats-job -1", BAD_FORMAT),
            // Words that stand alone.
            (b"peek-ready", run(PeekReady(None))),
            (b"peek-delayed", run(PeekDelayed(None))),
            (b"peek-buried", run(PeekBuried(None))),
            (
                b"reserve",
                run(Reserve {
                    timeout: None,
                    op: Op::Reserve,
                }),
            ),
            (b"stats", run(Stats)),
            (b"list-tubes", run(ListTubes)),
            (b"list-tube-used", run(ListTubeUsed)),
            (b"list-tubes-watched", run(ListTubesWatched)),
            (b"peek-ready ", BAD_FORMAT),
            (b"peek-readyx", BAD_FORMAT),
            (b"peek-delayed 1", BAD_FORMAT),
            (b"peek-buried\r", BAD_FORMAT),
            (b"reserve 1", BAD_FORMAT),
            (b"stats x", BAD_FORMAT),
            (b"list-tubes ", BAD_FORMAT),
            (b"list-tube-used x", BAD_FORMAT),
            (b"list-tubes-watched\nx", BAD_FORMAT),
            (b"list-tube", UNKNOWN),
            // The beginning of the line decides: a truncated long word counts as a misspelt shorter
            // one.
            (b"reserve-with-timeout", BAD_FORMAT),
            (b"reserve-job", BAD_FORMAT),
            (b"reserve-jobs 1", BAD_FORMAT),
            (b"stats-job", BAD_FORMAT),
            (b"stats-tube", BAD_FORMAT),
            (b"quit", Request::Quit),
            (b"quitting 1 2", Request::Quit),
            // All bytes that follow are the token.
            (b"auth secret", Request::Auth(b"secret")),
            (b"auth  a b\xff", Request::Auth(b" a b\xff")),
            (b"auth ", Request::Auth(b"")),
            (b"auth", UNKNOWN),
            (b"auth \0", BAD_FORMAT),
            (b"authx y", UNKNOWN),
            // A timeout: blanks, digits, and any bytes after them.
            (b"reserve-with-timeout 0", wait(0)),
            (b"reserve-with-timeout 10", wait(10)),
            (b"reserve-with-timeout   10 x", wait(10)),
            (b"reserve-with-timeout 0x10", wait(0)),
            (b"reserve-with-timeout 2147483647", wait(i32::MAX as u64)),
            (b"reserve-with-timeout 2147483648", BAD_FORMAT),
            (b"reserve-with-timeout 4294967295", BAD_FORMAT),
            (b"reserve-with-timeout 4294967296", BAD_FORMAT),
            (b"reserve-with-timeout 18446744073709551616", BAD_FORMAT),
            (b"reserve-with-timeout ", BAD_FORMAT),
            (b"reserve-with-timeout x", BAD_FORMAT),
            (b"reserve-with-timeout \t1", BAD_FORMAT),
            (b"reserve-with-timeout +1", BAD_FORMAT),
            (b"reserve-with-timeout -1", BAD_FORMAT),
            // Several numbers.
            (
                b"release 1 2 3",
                run(Release {
                    id,
                    pri: 2,
                    delay: 3,
                }),
            ),
            (
                b"release  1  2  3",
                run(Release {
                    id,
                    pri: 2,
                    delay: 3,
                }),
            ),
            (b"release 1 4294967295 4294967295", {
                run(Release {
                    id,
                    pri: u32::MAX,
                    delay: u32::MAX,
                })
            }),
            (b"release 1 4294967296 3", BAD_FORMAT),
            (b"release 1 2 4294967296", BAD_FORMAT),
            (b"release 1 2 3 ", BAD_FORMAT),
            (b"release 1 2", BAD_FORMAT),
            (b"release 1x2x3", BAD_FORMAT),
            (b"release", UNKNOWN),
            (b"bury 1 2", run(Bury { id, pri: 2 })),
            (b"bury 1 2 3", BAD_FORMAT),
            (b"bury 1 4294967296", BAD_FORMAT),
            (b"bury 1", BAD_FORMAT),
            (b"bury", UNKNOWN),
            // A bound as strtoul reads it, cut to 32 bits.
            (
                b"kick 3",
                run(Kick {
                    tube: None,
                    bound: 3,
                }),
            ),
            (
                b"kick  \t+3 x",
                run(Kick {
                    tube: None,
                    bound: 3,
                }),
            ),
            (
                b"kick -1",
                run(Kick {
                    tube: None,
                    bound: u32::MAX,
                }),
            ),
            (
                b"kick 4294967297",
                run(Kick {
                    tube: None,
                    bound: 1,
                }),
            ),
            (
                b"kick 18446744073709551615",
                run(Kick {
                    tube: None,
                    bound: u32::MAX,
                }),
            ),
            (b"kick 18446744073709551616", BAD_FORMAT),
            (b"kick ", BAD_FORMAT),
            (b"kick x", BAD_FORMAT),
            (b"kick - 1", BAD_FORMAT),
            (b"kick", UNKNOWN),
            // Names: all the rest of the line.
            (b"use a", run(Use("a".into()))),
            (b"use default", run(Use("default".into()))),
            (b"use aZ09-+/;.$_()", run(Use("aZ09-+/;.$_()".into()))),
            (b"watch a", run(Watch("a".into()))),
            (b"ignore a", run(Ignore("a".into()))),
            (b"stats-tube a", run(StatsTube("a".into()))),
            (b"use ", BAD_FORMAT),
            (b"use  a", BAD_FORMAT),
            (b"use a ", BAD_FORMAT),
            (b"use a b", BAD_FORMAT),
            (b"use -a", BAD_FORMAT),
            (b"use a\r", BAD_FORMAT),
            (b"use \xc3\xa4", BAD_FORMAT),
            (b"watch *", BAD_FORMAT),
            (b"ignore -", BAD_FORMAT),
            (b"stats-tube ", BAD_FORMAT),
            (b"use", UNKNOWN),
            (b"watch", UNKNOWN),
            (b"ignore", UNKNOWN),
            // A name, then a number; any number of blanks before the name, even none.
            (
                b"pause-tube a 1",
                run(PauseTube {
                    tube: "a".into(),
                    delay: 1,
                }),
            ),
            (
                b"pause-tubea 1",
                run(PauseTube {
                    tube: "a".into(),
                    delay: 1,
                }),
            ),
            (
                b"pause-tube   a   1",
                run(PauseTube {
                    tube: "a".into(),
                    delay: 1,
                }),
            ),
            (
                b"pause-tube a 4294967295",
                run(PauseTube {
                    tube: "a".into(),
                    delay: u32::MAX,
                }),
            ),
            (b"pause-tube a 4294967296", BAD_FORMAT),
            (b"pause-tube a 1 ", BAD_FORMAT),
            (b"pause-tube a", BAD_FORMAT),
            (b"pause-tube a1", BAD_FORMAT),
            (b"pause-tube *a 1", BAD_FORMAT),
            (b"pause-tube a*1", BAD_FORMAT),
            (b"pause-tube ", BAD_FORMAT),
            (b"pause-tube", BAD_FORMAT),
            (b"pause-tube -a 1", BAD_FORMAT_COUNTED),
            // A NUL makes a line invalid before anything else is checked; other bytes do not.
            (b"\0", BAD_FORMAT),
            (b"stats\0", BAD_FORMAT),
            (b"quit\0", BAD_FORMAT),
            (b"nonsense\0", BAD_FORMAT),
            (b"put 1 2 3 4\0", BAD_FORMAT),
            (b"\xff", UNKNOWN),
            (b"", UNKNOWN),
            (b" stats", UNKNOWN),
            (b"STATS", UNKNOWN),
            (b"put", UNKNOWN),
            // `put` with numbers that cannot be read.
            (b"put ", BAD_FORMAT),
            (b"put 1 2 3", BAD_FORMAT),
            (b"put -1 2 3 4", BAD_FORMAT),
            (b"put 1 2 3 x", BAD_FORMAT),
            (b"put 4294967296 2 3 4", BAD_FORMAT),
            (b"put 1 4294967296 3 4", BAD_FORMAT),
            (b"put 1 2 4294967296 4", BAD_FORMAT),
            (b"put 1 2 3 4294967296", BAD_FORMAT),
        ]
    }

    #[test]
    fn every_line_says_what_beanstalkd_takes_it_to_say() {
        for (bytes, request) in table() {
            assert_eq!(put(bytes), None, "{}", bytes.escape_ascii());
            assert_eq!(line(bytes), request, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_put_line_announces_a_body() {
        let plain = PutLine {
            pri: 1,
            delay: 2,
            ttr: 3,
            body_size: 4,
            trailing: false,
        };
        let max = u32::MAX;
        for (line, expected) in [
            ("put 1 2 3 4", plain),
            ("put   1   2   3   4", plain),
            ("put 1 2 3 00000000000000000000000000000004", plain),
            ("put 1 2 0 4", PutLine { ttr: 1, ..plain }),
            (
                "put 1 2 3 4 ",
                PutLine {
                    trailing: true,
                    ..plain
                },
            ),
            (
                "put 1 2 3 4x",
                PutLine {
                    trailing: true,
                    ..plain
                },
            ),
            ("put 4294967295 4294967295 4294967295 4294967295", {
                PutLine {
                    pri: max,
                    delay: max,
                    ttr: max,
                    body_size: max,
                    trailing: false,
                }
            }),
        ] {
            assert_eq!(put(line.as_bytes()), Some(expected), "{line}");
        }
    }

    #[test]
    fn a_name_has_at_most_200_bytes() {
        let name = "n".repeat(200);
        let [longest, too_long] = [&name[..], &format!("{name}n")]
            .map(|name| [format!("use {name}"), format!("pause-tube {name} 1")]);
        assert_eq!(
            line(longest[0].as_bytes()),
            Request::Command(Command::Use((&name).into()))
        );
        let pause = Request::Command(Command::pause_tube(&name, 1));
        assert_eq!(line(longest[1].as_bytes()), pause);
        assert_eq!(line(too_long[0].as_bytes()), BAD_FORMAT);
        assert_eq!(line(too_long[1].as_bytes()), BAD_FORMAT_COUNTED);
    }

    #[test]
    fn no_row_hides_a_later_one() {
        for (at, (word, _)) in COMMANDS.iter().enumerate() {
            let hidden = |(later, _): &(&[u8], Reader)| later.starts_with(word);
            assert!(
                !COMMANDS[at + 1..].iter().any(hidden),
                "{}",
                word.escape_ascii()
            );
        }
    }
}
