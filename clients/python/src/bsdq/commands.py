"""The commands: one function for each, which checks the arguments and makes a `Request`.

Nothing here is sent. A wrong argument is an `InvalidArgument`: a number that the server could not
read would make it take the body for commands.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Iterable, List, Mapping, Optional, Union

from . import documents
from .errors import Buried, DeadlineSoon, InvalidArgument, NotIgnored, Refused, TimedOut
from .model import (
    Batch,
    Failed,
    Job,
    JobDetails,
    JobStats,
    Page,
    Put,
    ScheduleStats,
    Stats,
    TubeStats,
)
from .wire import BATCH_MAX, BODY, JOBS, LINE, LINE_MAX, NUMBER_MAX, Convert, Kind, Replies, Request
from .wire import exactly, number, with_job, with_number

#: Priority, delay and time to run of a job, unless they are given. Smaller is more urgent.
PRIORITY, DELAY, TTR = 65536, 0, 60
#: Bytes of the text of `fail` at most.
TEXT_MAX = 4096
U32 = (1 << 32) - 1
#: Timeouts are shorter than that.
TIMEOUT_MAX = (1 << 31) - 1

Bytes = Union[bytes, bytearray, memoryview, str]
JobId = Union[int, Job]

_NAME = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9\-+/;.$_()]{0,199}")
_KEY = re.compile(r"[A-Za-z0-9\-+/;.$_()]{1,200}")
_PATTERN = re.compile(r"[A-Za-z0-9\-+/;.$_()*?]{1,200}")
_VALUE = re.compile(r"[!-~]{1,500}")


def bytes_of(body: Bytes) -> bytes:
    """A body: text is sent as UTF-8."""
    if type(body) is bytes:
        return body
    try:
        return body.encode("utf-8") if isinstance(body, str) else bytes(body)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the text is not Unicode: {error}") from None


@lru_cache(maxsize=1024)
def tube_name(name: str) -> bytes:
    """A name of a tube."""
    return _matching(_NAME, name, "name of a tube")


def _matching(pattern: "re.Pattern[str]", text: str, what: str) -> bytes:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise InvalidArgument(f"{text!r} is no {what}")
    return text.encode("ascii")


def _within(value: int, least: int, most: int, what: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{what} is a whole number from {least} to {most}, not {value!r}")
    return value


def job_id(job: JobId) -> int:
    """The id of a job."""
    if type(job) is Job:
        job = job.id
    if type(job) is int and 0 <= job <= NUMBER_MAX:
        return job
    return _within(job.id if isinstance(job, Job) else job, 0, NUMBER_MAX, "an id")


def _checked(pri: int, delay: int, ttr: int) -> None:
    if not (type(pri) is type(delay) is type(ttr) is int) or not (
        0 <= pri <= U32 and 0 <= delay <= U32 and 0 <= ttr <= U32
    ):
        raise InvalidArgument(
            f"pri, delay and ttr are whole numbers of 32 bits: {pri!r}, {delay!r}, {ttr!r}"
        )


# What is made of the words and of the body of a reply.


def _nothing(args: List[bytes], _: Any) -> None:
    if args:
        raise ValueError("words behind the end")


def _number(args: List[bytes], _: Any) -> int:
    (value,) = args
    return number(value)


def _text(args: List[bytes], _: Any) -> str:
    (value,) = args
    return value.decode("ascii")


def _job(args: List[bytes], body: bytes) -> Job:
    ident, _ = args
    return Job(number(ident), body)


def _jobs(_: List[bytes], jobs: List[Job]) -> List[Job]:
    return jobs


def _refusal(error: Refused) -> Convert:
    def convert(args: List[bytes], _: Any) -> Refused:
        _nothing(args, None)
        return type(error)(error.command)

    return convert


def _buried(word: str) -> Convert:
    def convert(args: List[bytes], _: Any) -> Refused:
        return Buried(word, number(args[0]) if args else None)

    return convert


def _mapping(args: List[bytes], body: bytes) -> Stats:
    (_,) = args
    return documents.mapping(body)


def _texts(args: List[bytes], body: bytes) -> List[str]:
    (_,) = args
    return documents.texts(body)


def _page(args: List[bytes], body: bytes) -> Page:
    (_,) = args
    return documents.page(body)


def _batch(args: List[bytes], body: bytes) -> Batch:
    count, _ = args
    return Batch(number(count), tuple(documents.numbers(body)))


def _outcome(outcome: str) -> Convert:
    def convert(args: List[bytes], _: Any) -> Failed:
        if outcome == "dead_lettered":
            return Failed(outcome, _text(args, None))
        _nothing(args, None)
        return Failed(outcome)

    return convert


_DOCUMENT: Replies = {b"OK": (BODY, _mapping)}
_TEXTS: Replies = {b"OK": (BODY, _texts)}
_PUT: Replies = {b"INSERTED": (LINE, _number), b"BURIED": (LINE, _buried("put"))}
_PUT_WITH: Replies = {
    b"INSERTED": (LINE, lambda args, _: Put(_number(args, None), False)),
    b"EXISTS": (LINE, lambda args, _: Put(_number(args, None), True)),
}
_USING: Replies = {b"USING": (LINE, _text)}
_WATCHING: Replies = {
    b"WATCHING": (LINE, _number),
    b"NOT_IGNORED": (LINE, _refusal(NotIgnored("ignore"))),
}
_ENDED: Replies = {
    b"TIMED_OUT": (LINE, _refusal(TimedOut("reserve"))),
    b"DEADLINE_SOON": (LINE, _refusal(DeadlineSoon("reserve"))),
}
_RESERVED: Replies = {b"RESERVED": (BODY, _job), **_ENDED}
_RESERVED_BATCH: Replies = {b"RESERVED_BATCH": (JOBS, _jobs), **_ENDED}
_FOUND: Replies = {b"FOUND": (BODY, _job)}
_RELEASED: Replies = {b"RELEASED": (LINE, _nothing), b"BURIED": (LINE, _buried("release"))}
_FAILED: Replies = {
    b"RELEASED": (LINE, _outcome("released")),
    b"BURIED": (LINE, _outcome("buried")),
    b"DELETED": (LINE, _outcome("deleted")),
    b"DEAD_LETTERED": (LINE, _outcome("dead_lettered")),
}


def _only(word: str, convert: Convert = _nothing, shape: int = LINE) -> Replies:
    return {word.encode(): (shape, convert)}


_DELETED, _BURIED, _TOUCHED = _only("DELETED"), _only("BURIED"), _only("TOUCHED")
_KICKED, _KICKED_JOB = _only("KICKED", _number), _only("KICKED")
_PAUSED, _MOVED = _only("PAUSED"), _only("MOVED")
_CLEARED = _only("CLEARED", _number)
_POLICY_SET, _SCHEDULE_SET = _only("POLICY_SET"), _only("SCHEDULE_SET")
_ABORTED, _AUTHENTICATED = _only("ABORTED"), _only("AUTHENTICATED")
_PAGE = _only("OK", _page, BODY)
_BATCHES = {
    word: _only(f"{reply}_BATCH", _batch, BODY)
    for word, reply in (("delete", "DELETED"), ("touch", "TOUCHED"), ("release", "RELEASED"))
}


# What the requests of each command have in common.

_K_PUT = Kind("put", _PUT, quick=with_number(b"INSERTED "))
_K_USE = Kind("use", _USING, True)
_K_LIST_TUBE_USED = Kind("list-tube-used", _USING, True)
_K_WATCH = Kind("watch", _WATCHING, True)
_K_IGNORE = Kind("ignore", _WATCHING, True)
_K_LIST_TUBES_WATCHED = Kind("list-tubes-watched", _TEXTS, True)
_K_LIST_TUBES = Kind("list-tubes", _TEXTS, True)
_K_RESERVE = Kind("reserve", _RESERVED, True, quick=with_job(b"RESERVED"))
_K_RESERVE_WITH_TIMEOUT = Kind("reserve-with-timeout", _RESERVED, True, quick=with_job(b"RESERVED"))
_K_RESERVE_JOB = Kind("reserve-job", _RESERVED, True)
_K_DELETE = Kind("delete", _DELETED, quick=exactly(b"DELETED\r\n"))
_K_RELEASE = Kind("release", _RELEASED, quick=exactly(b"RELEASED\r\n"))
_K_BURY = Kind("bury", _BURIED)
_K_TOUCH = Kind("touch", _TOUCHED, quick=exactly(b"TOUCHED\r\n"))
_K_PEEK = Kind("peek", _FOUND, True)
_K_PEEK_READY = Kind("peek-ready", _FOUND, True)
_K_PEEK_DELAYED = Kind("peek-delayed", _FOUND, True)
_K_PEEK_BURIED = Kind("peek-buried", _FOUND, True)
_K_KICK = Kind("kick", _KICKED)
_K_KICK_JOB = Kind("kick-job", _KICKED_JOB)
_K_PAUSE_TUBE = Kind("pause-tube", _PAUSED, True)
_K_STATS = Kind("stats", _DOCUMENT, True)
_K_STATS_TUBE = Kind("stats-tube", _DOCUMENT, True)
_K_STATS_JOB = Kind("stats-job", _DOCUMENT, True)
_K_AUTH = Kind("auth", _AUTHENTICATED)
_K_CAPABILITIES = Kind("capabilities", _TEXTS, True)
_K_PUT_WITH = Kind("put-with", _PUT_WITH, False, "put-with")
_K_PUT_WITH_KEY = Kind("put-with", _PUT_WITH, True, "put-with")
_K_RESERVE_BATCH = Kind("reserve-batch", _RESERVED_BATCH, True, "reserve-batch")
_K_ABORT = Kind("abort", _ABORTED, False, "abort")
_K_DELETE_BATCH = Kind("delete-batch", _BATCHES["delete"], False, "delete-batch")
_K_TOUCH_BATCH = Kind("touch-batch", _BATCHES["touch"], False, "touch-batch")
_K_RELEASE_BATCH = Kind("release-batch", _BATCHES["release"], False, "release-batch")
_K_FAIL = Kind("fail", _FAILED, False, "fail")
_K_BURY_WITH_REASON = Kind("bury-with-reason", _BURIED, False, "bury-with-reason")
_K_LIST_JOBS = Kind("list-jobs", _PAGE, True, "list-jobs")
_K_MOVE_JOB = Kind("move-job", _MOVED, False, "move-job")
_K_CLEAR_TUBE = Kind("clear-tube", _CLEARED, False, "clear-tube")
_K_STATS_JOB_EXTENDED = Kind("stats-job-extended", _DOCUMENT, True, "stats-job-extended")
_K_SET_POLICY = Kind("set-policy", _POLICY_SET, True, "set-policy")
_K_STATS_POLICY = Kind("stats-policy", _DOCUMENT, True, "stats-policy")
_K_SCHEDULE_SET = Kind("schedule-set", _SCHEDULE_SET, True, "schedule-set")
_K_SCHEDULE_DELETE = Kind("schedule-delete", _DELETED, False, "schedule-delete")
_K_STATS_SCHEDULE = Kind("stats-schedule", _DOCUMENT, True, "stats-schedule")


# beanstalkd's commands.


def put(body: Bytes, pri: int = PRIORITY, delay: int = DELAY, ttr: int = TTR) -> Request[int]:
    """Puts a job into the used tube."""
    if type(body) is str:
        body = body.encode("utf-8", "strict") if body.isascii() else bytes_of(body)
    elif type(body) is not bytes:
        body = bytes_of(body)
    _checked(pri, delay, ttr)
    line = b"put %d %d %d %d\r\n%b\r\n" % (pri, delay, ttr, len(body), body)
    return Request(_K_PUT, line)


def use(tube: str) -> Request[str]:
    """Jobs are put into this tube from now on."""
    return Request(_K_USE, b"use %b\r\n" % tube_name(tube), tube=tube)


def list_tube_used() -> Request[str]:
    """The tube that is used."""
    return Request(_K_LIST_TUBE_USED, b"list-tube-used\r\n")


def watch(tube: str) -> Request[int]:
    """Jobs are reserved from this tube, too."""
    return Request(_K_WATCH, b"watch %b\r\n" % tube_name(tube), tube=tube)


def ignore(tube: str) -> Request[int]:
    """Jobs are no longer reserved from this tube."""
    return Request(_K_IGNORE, b"ignore %b\r\n" % tube_name(tube), tube=tube)


def list_tubes_watched() -> Request[List[str]]:
    """The tubes that are watched."""
    return Request(_K_LIST_TUBES_WATCHED, b"list-tubes-watched\r\n")


def list_tubes() -> Request[List[str]]:
    """All tubes."""
    return Request(_K_LIST_TUBES, b"list-tubes\r\n")


def reserve(timeout: Optional[int] = None) -> Request[Job]:
    """Waits for a job, for this number of seconds at most."""
    if timeout is None:
        return Request(_K_RESERVE, b"reserve\r\n", waits=None)
    _within(timeout, 0, TIMEOUT_MAX, "a timeout")
    line = b"reserve-with-timeout %d\r\n" % timeout
    return Request(_K_RESERVE_WITH_TIMEOUT, line, waits=timeout)


def reserve_job(job: JobId) -> Request[Job]:
    """Reserves this job."""
    return Request(_K_RESERVE_JOB, b"reserve-job %d\r\n" % job_id(job))


def delete(job: JobId) -> Request[None]:
    """Deletes a job."""
    return Request(_K_DELETE, b"delete %d\r\n" % job_id(job))


def release(job: JobId, pri: int = PRIORITY, delay: int = DELAY) -> Request[None]:
    """Gives a job back."""
    _checked(pri, delay, 0)
    return Request(_K_RELEASE, b"release %d %d %d\r\n" % (job_id(job), pri, delay))


def bury(job: JobId, pri: int = PRIORITY) -> Request[None]:
    """Sets a job aside."""
    _checked(pri, 0, 0)
    return Request(_K_BURY, b"bury %d %d\r\n" % (job_id(job), pri))


def touch(job: JobId) -> Request[None]:
    """Begins the job's time to run again."""
    return Request(_K_TOUCH, b"touch %d\r\n" % job_id(job))


def peek(job: JobId) -> Request[Job]:
    """Looks at a job."""
    return Request(_K_PEEK, b"peek %d\r\n" % job_id(job))


def peek_ready() -> Request[Job]:
    """Looks at the next ready job of the used tube."""
    return Request(_K_PEEK_READY, b"peek-ready\r\n")


def peek_delayed() -> Request[Job]:
    """Looks at the delayed job of the used tube that is ready first."""
    return Request(_K_PEEK_DELAYED, b"peek-delayed\r\n")


def peek_buried() -> Request[Job]:
    """Looks at the first buried job of the used tube."""
    return Request(_K_PEEK_BURIED, b"peek-buried\r\n")


def kick(bound: int) -> Request[int]:
    """Makes up to `bound` buried jobs of the used tube ready, or else delayed ones."""
    _within(bound, 0, U32, "a bound")
    return Request(_K_KICK, b"kick %d\r\n" % bound)


def kick_job(job: JobId) -> Request[None]:
    """Makes a buried or delayed job ready."""
    return Request(_K_KICK_JOB, b"kick-job %d\r\n" % job_id(job))


def pause_tube(tube: str, delay: int) -> Request[None]:
    """No job of the tube is reserved for this number of seconds."""
    _within(delay, 0, U32, "a delay")
    return Request(_K_PAUSE_TUBE, b"pause-tube %b %d\r\n" % (tube_name(tube), delay))


def stats() -> Request[Stats]:
    """Figures of the server."""
    return Request(_K_STATS, b"stats\r\n")


def stats_tube(tube: str) -> Request[TubeStats]:
    """Figures of a tube."""
    return Request(_K_STATS_TUBE, b"stats-tube %b\r\n" % tube_name(tube))


def stats_job(job: JobId) -> Request[JobStats]:
    """Figures of a job."""
    return Request(_K_STATS_JOB, b"stats-job %d\r\n" % job_id(job))


def auth(token: Union[str, bytes]) -> Request[None]:
    """Shows a token."""
    word = token.encode("utf-8") if isinstance(token, str) else token
    if not word or len(word) > 200 or not all(33 <= byte < 127 for byte in word):
        raise InvalidArgument("a token has 1 to 200 letters that can be seen")
    return Request(_K_AUTH, b"auth %b\r\n" % word)


# The extended commands.


def capabilities() -> Request[List[str]]:
    """The extended commands that the server has for this client."""
    return Request(_K_CAPABILITIES, b"capabilities\r\n")


def put_with(
    body: Bytes,
    pri: int = PRIORITY,
    delay: int = DELAY,
    ttr: int = TTR,
    *,
    tube: Optional[str] = None,
    at: Optional[int] = None,
    key: Optional[str] = None,
    unique: Optional[str] = None,
    conflict: Optional[str] = None,
    group: Optional[str] = None,
) -> Request[Put]:
    """Puts a job with attributes."""
    body = bytes_of(body)
    _checked(pri, delay, ttr)
    words = b"put-with %d %d %d %d" % (pri, delay, ttr, len(body))
    if tube is not None:
        words += b" tube=" + tube_name(tube)
    if at is not None:
        if delay:
            raise InvalidArgument("at and delay exclude each other")
        words += b" at=%d" % _within(at, 0, U32, "a time")
    if key is not None:
        words += b" key=" + _matching(_KEY, key, "key")
    for name, value, allowed in (
        ("unique", unique, ("exists", "waiting")),
        ("conflict", conflict, ("keep", "replace")),
    ):
        if value is None:
            continue
        if value not in allowed or key is None:
            raise InvalidArgument(f"{name} is {allowed[0]} or {allowed[1]}, beside a key")
        words += f" {name}={value}".encode()
    if group is not None:
        words += b" group=" + _matching(_KEY, group, "group")
    # A second one finds the first by its key, as long as that is there.
    repeats = key is not None and unique != "waiting" and conflict != "replace"
    line = words + b"\r\n" + body + b"\r\n"
    return Request(_K_PUT_WITH_KEY if repeats else _K_PUT_WITH, line)


def reserve_batch(max: int, timeout: int = 0) -> Request[List[Job]]:
    """Waits for a job, and takes those that are ready then."""
    _within(max, 1, BATCH_MAX, "the jobs of a batch")
    _within(timeout, 0, TIMEOUT_MAX, "a timeout")
    line = b"reserve-batch %d %d\r\n" % (max, timeout)
    return Request(_K_RESERVE_BATCH, line, waits=timeout)


def abort() -> Request[None]:
    """Ends the wait of the reserve before it."""
    return Request(_K_ABORT, b"abort\r\n")


def _ids(jobs: Iterable[JobId]) -> bytes:
    ids = [b"%d" % job_id(job) for job in jobs]
    if len(ids) > BATCH_MAX:
        raise InvalidArgument(f"a batch has at most {BATCH_MAX} jobs")
    return b" ".join(ids)


def delete_batch(jobs: Iterable[JobId]) -> Request[Batch]:
    """Deletes many jobs at once."""
    ids = _ids(jobs)
    line = b"delete-batch %d\r\n%b\r\n" % (len(ids), ids)
    return Request(_K_DELETE_BATCH, line)


def touch_batch(jobs: Iterable[JobId]) -> Request[Batch]:
    """Touches many jobs at once."""
    ids = _ids(jobs)
    line = b"touch-batch %d\r\n%b\r\n" % (len(ids), ids)
    return Request(_K_TOUCH_BATCH, line)


def release_batch(jobs: Iterable[JobId], pri: int = PRIORITY, delay: int = DELAY) -> Request[Batch]:
    """Gives many jobs back at once."""
    ids = _ids(jobs)
    _checked(pri, delay, 0)
    line = b"release-batch %d %d %d\r\n%b\r\n" % (pri, delay, len(ids), ids)
    return Request(_K_RELEASE_BATCH, line)


def _cut(text: Bytes) -> bytes:
    data = bytes_of(text)
    if len(data) > TEXT_MAX:
        raise InvalidArgument(f"a text has at most {TEXT_MAX} bytes")
    return data


def fail(job: JobId, text: Bytes = b"") -> Request[Failed]:
    """Says that a job could not be done, and why."""
    data = _cut(text)
    line = b"fail %d %d\r\n%b\r\n" % (job_id(job), len(data), data)
    return Request(_K_FAIL, line)


def bury_with_reason(job: JobId, text: Bytes, pri: int = PRIORITY) -> Request[None]:
    """Sets a job aside, and says why."""
    data = _cut(text)
    _checked(pri, 0, 0)
    line = b"bury-with-reason %d %d %d\r\n%b\r\n" % (job_id(job), pri, len(data), data)
    return Request(_K_BURY_WITH_REASON, line)


def list_jobs(tube: str, state: str, cursor: str = "0", limit: int = 100) -> Request[Page]:
    """A page of the jobs of a tube in this state."""
    if state not in ("ready", "delayed", "reserved", "buried"):
        raise InvalidArgument(f"{state!r} is no state of jobs")
    word = _matching(_VALUE, cursor, "cursor")
    _within(limit, 1, 1000, "a limit")
    line = b"list-jobs %b %b %b %d\r\n" % (tube_name(tube), state.encode(), word, limit)
    return Request(_K_LIST_JOBS, line)


def move_job(job: JobId, tube: str) -> Request[None]:
    """Moves a job to another tube."""
    line = b"move-job %d %b\r\n" % (job_id(job), tube_name(tube))
    return Request(_K_MOVE_JOB, line)


def clear_tube(tube: str, state: str = "all") -> Request[int]:
    """Deletes all jobs of a tube that are not reserved, or those in one state."""
    if state not in ("ready", "delayed", "buried", "all"):
        raise InvalidArgument(f"{state!r} is no state that can be cleared")
    line = b"clear-tube %b %b\r\n" % (tube_name(tube), state.encode())
    return Request(_K_CLEAR_TUBE, line)


def stats_job_extended(job: JobId) -> Request[JobDetails]:
    """All that is known of a job."""
    line = b"stats-job-extended %d\r\n" % job_id(job)
    return Request(_K_STATS_JOB_EXTENDED, line)


def _values(values: Mapping[str, Union[str, int, float]]) -> bytes:
    words = b""
    for name, value in values.items():
        _matching(_KEY, name, "name of a value")
        words += b" %b=%b" % (name.encode(), _matching(_VALUE, str(value), f"value of {name}"))
    return words


def _fits(line: bytes) -> bytes:
    if len(line) + 2 > LINE_MAX:
        raise InvalidArgument(f"the line has more than {LINE_MAX} bytes")
    return line


def set_policy(tubes: str, values: Mapping[str, Union[str, int, float]]) -> Request[None]:
    """Sets the policy of a tube, or of all that match a pattern, as a whole."""
    line = b"set-policy %b%b" % (_matching(_PATTERN, tubes, "pattern of tubes"), _values(values))
    return Request(_K_SET_POLICY, _fits(line) + b"\r\n")


def stats_policy(tube: str) -> Request[Stats]:
    """The policy of a tube, and what it has done."""
    line = b"stats-policy %b\r\n" % tube_name(tube)
    return Request(_K_STATS_POLICY, line)


def schedule_set(
    name: str,
    body: Bytes,
    cron: str,
    tube: str,
    values: Optional[Mapping[str, Union[str, int]]] = None,
) -> Request[None]:
    """Sets a schedule as a whole."""
    body = bytes_of(body)
    expression = _matching(_VALUE, cron.strip().replace(" ", "_"), "cron expression")
    line = b"schedule-set %b %d cron=%b tube=%b%b" % (
        tube_name(name),
        len(body),
        expression,
        tube_name(tube),
        _values(values or {}),
    )
    data = _fits(line) + b"\r\n" + body + b"\r\n"
    return Request(_K_SCHEDULE_SET, data)


def schedule_delete(name: str) -> Request[None]:
    """Removes a schedule."""
    line = b"schedule-delete %b\r\n" % tube_name(name)
    return Request(_K_SCHEDULE_DELETE, line)


def stats_schedule(name: str) -> Request[ScheduleStats]:
    """A schedule, and when it fires next."""
    line = b"stats-schedule %b\r\n" % tube_name(name)
    return Request(_K_STATS_SCHEDULE, line)
