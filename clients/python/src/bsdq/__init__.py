"""A client and a worker for the job queue bsd, and for beanstalkd."""

from __future__ import annotations

from . import commands
from .address import Address
from .aio import AsyncClient
from .app import App, Bury, Event, Retry, Task
from .client import Client
from .codec import WrongArgument
from .errors import (
    BadFormat,
    BsdError,
    Buried,
    ConnectionLost,
    DeadlineSoon,
    Draining,
    ExpectedCrlf,
    InternalError,
    InvalidArgument,
    JobTooBig,
    NotFound,
    NotIgnored,
    OutOfMemory,
    ProtocolError,
    Refused,
    TimedOut,
    Timeout,
    Unauthorized,
    UnknownCommand,
    Unsupported,
)
from .model import Batch, Failed, Job, JobDetails, JobStats, Listed, Page, Put, PutResult
from .model import ScheduleStats, Stats, TubeStats
from .servers import AsyncServerSet, ServerSet, SetJob, place
from .worker import Worker

__all__ = [
    "Address",
    "App",
    "AsyncClient",
    "AsyncServerSet",
    "BadFormat",
    "Batch",
    "BsdError",
    "Buried",
    "Bury",
    "Client",
    "ConnectionLost",
    "DeadlineSoon",
    "Draining",
    "Event",
    "ExpectedCrlf",
    "Failed",
    "InternalError",
    "InvalidArgument",
    "Job",
    "JobDetails",
    "JobStats",
    "JobTooBig",
    "Listed",
    "NotFound",
    "NotIgnored",
    "OutOfMemory",
    "Page",
    "ProtocolError",
    "Put",
    "PutResult",
    "Refused",
    "Retry",
    "ScheduleStats",
    "ServerSet",
    "SetJob",
    "Stats",
    "Task",
    "TimedOut",
    "Timeout",
    "TubeStats",
    "Unauthorized",
    "UnknownCommand",
    "Unsupported",
    "Worker",
    "WrongArgument",
    "commands",
    "place",
]
