"""Results of calls."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple, TypedDict, Union

from .errors import Refused

#: A value of a document of the server.
Value = Union[bool, int, float, str, List[str], None]
#: A document: keys as the server writes them, with `-`. Later versions of the server have more.
Stats = Dict[str, Value]


class Job(NamedTuple):
    """A job, as `reserve` and `peek` find it."""

    id: int
    body: bytes
    #: The tube, if the server has told it: `reserve_batch` does.
    tube: Optional[str] = None

    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode("utf-8")


class Put(NamedTuple):
    """Outcome of `put_with`."""

    id: int
    #: Another job has the key: `id` is that one, and nothing was put.
    exists: bool


class PutResult(NamedTuple):
    """Outcome of one put of `put_many`: an id or an error."""

    id: Optional[int]
    error: Optional[Refused]


class Batch(NamedTuple):
    """Outcome of `delete_batch` and its kin."""

    #: Jobs that it was done to.
    done: int
    #: Ids of the others: not there, or not reserved by this client.
    missing: Tuple[int, ...]


class Failed(NamedTuple):
    """What has become of a job after `fail`."""

    #: `released`, `buried`, `dead_lettered` or `deleted`.
    outcome: str
    #: The tube of the dead letter.
    tube: Optional[str] = None


class Listed(NamedTuple):
    """A job of a page of `list_jobs`."""

    id: int
    size: int


class Page(NamedTuple):
    """A page of `list_jobs`."""

    #: The cursor of the next page, or `0`: there are no more jobs.
    next: str
    jobs: Tuple[Listed, ...]


JobStats = TypedDict(
    "JobStats",
    {
        "id": int,
        "tube": str,
        "state": str,
        "pri": int,
        "age": int,
        "delay": int,
        "ttr": int,
        "time-left": int,
        "file": int,
        "reserves": int,
        "timeouts": int,
        "releases": int,
        "buries": int,
        "kicks": int,
    },
)

JobDetails = TypedDict(
    "JobDetails",
    {
        "id": int,
        "tube": str,
        "state": str,
        "deliveries": int,
        "key": str,
        "unique": str,
        "group": str,
        "reason": str,
        "text": str,
        "dead-lettered-from": str,
        "dead-lettered-at": int,
        "failures": int,
        "due-at": int,
        "expires-at": int,
    },
    total=False,
)

TubeStats = TypedDict(
    "TubeStats",
    {
        "name": str,
        "current-jobs-urgent": int,
        "current-jobs-ready": int,
        "current-jobs-reserved": int,
        "current-jobs-delayed": int,
        "current-jobs-buried": int,
        "total-jobs": int,
        "current-using": int,
        "current-waiting": int,
        "current-watching": int,
        "pause": int,
        "cmd-delete": int,
        "cmd-pause-tube": int,
        "pause-time-left": int,
    },
)

ScheduleStats = TypedDict(
    "ScheduleStats",
    {
        "name": str,
        "cron": str,
        "tz": str,
        "tube": str,
        "pri": int,
        "ttr": int,
        "key": str,
        "missed": str,
        "paused": bool,
        "bytes": int,
        "fired-up-to": str,
        "waiting": int,
        "next": List[str],
    },
    total=False,
)
