"""Errors: one class for each thing that a caller does differently.

All are a `BsdError`. A `Refused` is the server's own answer: the connection goes on.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Type


class BsdError(Exception):
    """Whatever this package raises by itself."""

    #: The name of the kind in the test kit.
    kind = "error"


class ConnectionLost(BsdError, ConnectionError):
    """The connection could not be made, or has ended."""

    kind = "connection"

    def __init__(self, message: str, sent: bool = False) -> None:
        super().__init__(message)
        #: Whether a command was on its way: the server may or may not have done it.
        self.sent = sent
        #: Of commands that were sent together: the results that had arrived.
        self.results: List[Any] = []


class Timeout(BsdError, TimeoutError):
    """No answer came in time. The connection was closed: a late answer would be taken for the
    next one. The server may or may not have done the command."""

    kind = "timeout"


class ProtocolError(BsdError):
    """The bytes of the server are not the protocol. The connection was closed."""

    kind = "protocol"


class InvalidArgument(BsdError, ValueError):
    """An argument that cannot be sent. Nothing was sent."""

    kind = "invalid"


class Unsupported(BsdError):
    """The server does not list the command in its `capabilities`. Nothing was sent."""

    kind = "unsupported"

    def __init__(self, command: str) -> None:
        super().__init__(f"the server does not have the command {command}")
        self.command = command


class Refused(BsdError):
    """The server has answered, and has not done it."""

    kind = "refused"
    #: The reply, as the protocol has it.
    reply = ""

    def __init__(self, command: str = "") -> None:
        super().__init__(f"{command}: {self.reply}" if command else self.reply)
        self.command = command


class BadFormat(Refused):
    """The server cannot read the command."""

    kind, reply = "bad_format", "BAD_FORMAT"


class UnknownCommand(Refused):
    """The server has no such command."""

    kind, reply = "unknown_command", "UNKNOWN_COMMAND"


class NotFound(Refused):
    """There is no such job, tube or schedule; or this client has not reserved the job."""

    kind, reply = "not_found", "NOT_FOUND"


class NotIgnored(Refused):
    """It is the only tube that the client watches."""

    kind, reply = "not_ignored", "NOT_IGNORED"


class Draining(Refused):
    """The server takes no jobs for now."""

    kind, reply = "draining", "DRAINING"


class OutOfMemory(Refused):
    """There is no room, or a policy allows no more."""

    kind, reply = "out_of_memory", "OUT_OF_MEMORY"


class InternalError(Refused):
    """The server has a fault."""

    kind, reply = "internal_error", "INTERNAL_ERROR"


class JobTooBig(Refused):
    """The body or the text is larger than the server takes."""

    kind, reply = "job_too_big", "JOB_TOO_BIG"


class ExpectedCrlf(Refused):
    """The body was not followed by CR LF."""

    kind, reply = "expected_crlf", "EXPECTED_CRLF"


class Unauthorized(Refused):
    """The token is wrong, or does not allow the command."""

    kind, reply = "not_authorized", "NOT_AUTHORIZED"


class Buried(Refused):
    """The server had no room to queue the job, and has buried it: it is there."""

    kind, reply = "buried", "BURIED"

    def __init__(self, command: str = "", job: Optional[int] = None) -> None:
        super().__init__(command)
        self.job = job


class TimedOut(Refused):
    """A reserve has waited as long as it was told to, and there was no job."""

    kind, reply = "timed_out", "TIMED_OUT"


class DeadlineSoon(Refused):
    """A reserve waits no longer: a job that this client has is in its last second."""

    kind, reply = "deadline_soon", "DEADLINE_SOON"


#: Replies that any command may get.
REFUSALS: Dict[bytes, Type[Refused]] = {
    error.reply.encode(): error
    for error in (
        BadFormat,
        UnknownCommand,
        NotFound,
        Draining,
        OutOfMemory,
        InternalError,
        JobTooBig,
        ExpectedCrlf,
        Unauthorized,
    )
}
