"""A client and a worker for the job queue bsd, and for beanstalkd."""

from __future__ import annotations

from . import commands
from .address import Address
from .aio import AsyncClient
from .client import Client
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
