"""Calls that take more than one request: puts that are pipelined, and what stands in for an
extended command where the server does not have it. Both clients run them.

A call is a generator: it yields requests that are sent together, and gets their results, refusals
among them. Only before its first requests may a new connection be made: what follows relies on the
state of the one that it began on.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Generator, Generic, Iterable, List, Optional, TypeVar, Union, cast

from . import commands
from .commands import DELAY, PRIORITY, TTR, Bytes, JobId
from .errors import NotFound, Refused, UnknownCommand, Unsupported
from .model import Batch, Job, Put, PutResult
from .session import Session
from .wire import Request

T = TypeVar("T")
Run = Generator[List[Request[Any]], List[Any], T]

#: Bytes of bodies of a batch that is reserved job by job: after them no further job is taken.
BATCH_BYTES = 1 << 20
#: Jobs that are asked for at one time where a batch is reserved job by job.
BATCH_STEP = 16


class Steps(Generic[T]):
    """A call that takes more than one request."""

    __slots__ = ("begin", "plain")

    def __init__(
        self, begin: Callable[[Session], Run[T]], plain: Optional[Request[T]] = None
    ) -> None:
        self.begin = begin
        #: The one request that does it, where the server has that command.
        self.plain = plain


#: What a client can be asked to do.
Call = Union[Request[T], Steps[T]]


def _value(result: Any) -> Any:
    if isinstance(result, Refused):
        raise result
    return result


def auth(token: str) -> Steps[bool]:
    """Shows a token; false if the server asks for none."""
    request = commands.auth(token)

    def run(session: Session) -> Run[bool]:
        (result,) = yield [request]
        if isinstance(result, UnknownCommand):
            return False
        _value(result)
        session.token = token
        # What the server has depends on the role.
        (words,) = yield [commands.capabilities()]
        session.capabilities = frozenset(_value(words))
        return True

    return Steps(run)


def capabilities() -> Steps[List[str]]:
    """The extended commands that the server has: none if it does not know the question."""

    def run(session: Session) -> Run[List[str]]:
        return sorted(session.capabilities)
        yield []

    return Steps(run)


def put_many(bodies: Iterable[Bytes], pri: int, delay: int, ttr: int) -> Steps[List[PutResult]]:
    """Puts one job after the other, without waiting for each answer."""
    requests = [commands.put(body, pri, delay, ttr) for body in bodies]

    def run(_: Session) -> Run[List[PutResult]]:
        results = yield cast("List[Request[Any]]", requests)
        is_error = [isinstance(it, Refused) for it in results]
        return [
            PutResult(None, it) if error else PutResult(it, None)
            for it, error in zip(results, is_error)
        ]

    return Steps(run)


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
) -> Steps[Put]:
    """`put-with`; for `tube` and `at` alone there is another way without it."""
    request = commands.put_with(
        body,
        pri,
        delay,
        ttr,
        tube=tube,
        at=at,
        key=key,
        unique=unique,
        conflict=conflict,
        group=group,
    )

    def run(session: Session) -> Run[Put]:
        if key is not None or group is not None:
            raise Unsupported("put-with")
        wait = delay if at is None else max(0, at - int(time.time()))
        plain = commands.put(body, pri, wait, ttr)
        if tube is None or tube == session.used:
            (result,) = yield [plain]
        else:
            (used,) = yield [passing(tube)]
            _value(used)
            result, _ = yield [plain, passing(session.used)]
        return Put(_value(result), False)

    return Steps(run, request)


def passing(tube: str) -> Request[str]:
    """A `use` that is taken back at once: a new connection begins without it."""
    request = commands.use(tube)
    request.tube = None
    return request


def is_passing(request: Request[Any]) -> bool:
    """Whether it is a `use` that must be taken back, or that takes one back."""
    return request.word == "use" and request.tube is None


def release(job: JobId, delay: int) -> Steps[None]:
    """Gives a job back with the priority that it has, which takes a look at the job."""
    ident = commands.job_id(job)
    commands.release(ident, 0, delay)

    def run(_: Session) -> Run[None]:
        (stats,) = yield [commands.stats_job(ident)]
        (result,) = yield [commands.release(ident, _priority(stats), delay)]
        _value(result)

    return Steps(run)


def bury(job: JobId) -> Steps[None]:
    """Sets a job aside with the priority that it has."""
    ident = commands.job_id(job)

    def run(_: Session) -> Run[None]:
        (stats,) = yield [commands.stats_job(ident)]
        (result,) = yield [commands.bury(ident, _priority(stats))]
        _value(result)

    return Steps(run)


def bury_with_reason(job: JobId, text: Bytes) -> Steps[None]:
    """The same with a reason."""
    ident = commands.job_id(job)
    commands.bury_with_reason(ident, text)

    def run(session: Session) -> Run[None]:
        if not session.has("bury-with-reason"):
            raise Unsupported("bury-with-reason")
        (stats,) = yield [commands.stats_job(ident)]
        (result,) = yield [commands.bury_with_reason(ident, text, _priority(stats))]
        _value(result)

    return Steps(run)


def _priority(stats: Any) -> int:
    return int(_value(stats).get("pri", PRIORITY))


def delete_batch(jobs: Iterable[JobId]) -> Steps[Batch]:
    """`delete-batch`, or else single deletes."""
    return _batch(commands.delete_batch, commands.delete, jobs)


def touch_batch(jobs: Iterable[JobId]) -> Steps[Batch]:
    """`touch-batch`, or else single touches."""
    return _batch(commands.touch_batch, commands.touch, jobs)


def release_batch(jobs: Iterable[JobId], pri: int, delay: int) -> Steps[Batch]:
    """`release-batch`, or else single releases."""

    def many(ids: Iterable[JobId]) -> Request[Batch]:
        return commands.release_batch(ids, pri, delay)

    def single(ident: JobId) -> Request[None]:
        return commands.release(ident, pri, delay)

    return _batch(many, single, jobs)


def _batch(
    many: Callable[[Iterable[JobId]], Request[Batch]],
    single: Callable[[JobId], Request[None]],
    jobs: Iterable[JobId],
) -> Steps[Batch]:
    ids = [commands.job_id(job) for job in jobs]
    request = many(ids)

    def run(_: Session) -> Run[Batch]:
        results = yield [single(ident) for ident in ids]
        missing = []
        for ident, result in zip(ids, results):
            if isinstance(result, NotFound):
                missing.append(ident)
            else:
                _value(result)
        return Batch(len(ids) - len(missing), tuple(missing))

    return Steps(run, request)


def reserve_batch(max: int, timeout: int) -> Steps[List[Job]]:
    """`reserve-batch`, or else single reserves that do not wait behind the first."""
    request = commands.reserve_batch(max, timeout)

    def run(_: Session) -> Run[List[Job]]:
        (result,) = yield [commands.reserve(timeout)]
        jobs: List[Job] = [_value(result)]
        while len(jobs) < max and sum(len(job.body) for job in jobs) < BATCH_BYTES:
            count = min(BATCH_STEP, max - len(jobs))
            results = yield [commands.reserve(0) for _ in range(count)]
            found = [it for it in results if isinstance(it, Job)]
            jobs.extend(found)
            if len(found) < count:
                break
        return jobs

    return Steps(run, request)
