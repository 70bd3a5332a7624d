"""The protocol without sockets and clocks: a request knows its bytes and its replies, and a
`ReplyReader` makes results of the bytes that arrive, in whatever pieces.

A reply is a line. Behind some lines follows a body, behind `RESERVED_BATCH` jobs. Memory is
bounded: a line by `LINE_MAX`, a body by what the reader was told, and nothing is reserved before it
arrives.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Generic, List, Optional, Tuple, TypeVar

from .errors import REFUSALS, ProtocolError
from .model import Job

T = TypeVar("T")

#: The longest line of a reply, with its CR LF.
LINE_MAX = 1024
#: Jobs of one `RESERVED_BATCH` at most.
BATCH_MAX = 1000
#: Bytes of a body at most, unless the client is told otherwise.
BODY_MAX = 64 << 20
#: The largest number of the protocol: ids have 64 bits.
NUMBER_MAX = (1 << 64) - 1

#: What follows the line of a reply.
LINE, BODY, JOBS = 0, 1, 2
#: Makes the result of the words behind the first one, and of the body or the jobs.
Convert = Callable[[List[bytes], Any], Any]
#: The replies of a command that are no refusals of every command.
Replies = Dict[bytes, Tuple[int, Convert]]


#: The result, if these bytes are the whole of the usual reply and nothing else; otherwise
#: `INCOMPLETE`, and a `ReplyReader` judges them. It is for commands that are sent often.
Quick = Callable[[bytes], Any]


class _Incomplete:
    """More bytes are needed."""


INCOMPLETE = _Incomplete()


class Kind:
    """What all requests of one command have in common."""

    __slots__ = ("word", "replies", "repeats", "needs", "quick")

    def __init__(
        self,
        word: str,
        replies: Replies,
        repeats: bool = False,
        needs: Optional[str] = None,
        quick: Optional[Quick] = None,
    ) -> None:
        #: The command's word.
        self.word = word
        self.replies = replies
        #: Whether it may be sent once more if the connection was lost before its reply.
        self.repeats = repeats
        #: The word that `capabilities` must have.
        self.needs = needs
        self.quick = quick


class Request(Generic[T]):
    """A command, as bytes, with what is known of it. `T` is its result."""

    __slots__ = ("kind", "data", "waits", "tube")

    def __init__(
        self,
        kind: Kind,
        data: bytes,
        waits: Optional[float] = 0,
        tube: Optional[str] = None,
    ) -> None:
        self.kind = kind
        self.data = data
        #: Seconds that the server may wait by itself; None: without end.
        self.waits = waits
        #: The tube of `use`, `watch` and `ignore`.
        self.tube = tube

    @property
    def word(self) -> str:
        """The command's word."""
        return self.kind.word

    @property
    def repeats(self) -> bool:
        """Whether it may be sent once more."""
        return self.kind.repeats

    @property
    def needs(self) -> Optional[str]:
        """The word that `capabilities` must have."""
        return self.kind.needs


def number(word: bytes) -> int:
    """A number of the protocol: digits only."""
    if not word.isdigit() or len(word) > 20:
        raise ValueError("a number is expected")
    value = int(word)
    if value > NUMBER_MAX:
        raise ValueError("a number has 64 bits")
    return value


def exactly(reply: bytes) -> Quick:
    """A reply without words behind the first one."""
    return lambda data: None if data == reply else INCOMPLETE


def with_number(start: bytes) -> Quick:
    """A reply with a number."""
    size = len(start)

    def quick(data: bytes) -> Any:
        digits = data[size:-2]
        if digits.isdigit() and len(digits) < 20 and data == start + digits + b"\r\n":
            return int(digits)
        return INCOMPLETE

    return quick


def with_job(word: bytes) -> Quick:
    """A reply with a job."""

    def quick(data: bytes) -> Any:
        line, _, rest = data.partition(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or words[0] != word or rest[-2:] != b"\r\n":
            return INCOMPLETE
        _, ident, size = words
        if not (ident.isdigit() and size.isdigit()) or len(ident) > 19 or len(size) > 19:
            return INCOMPLETE
        if int(size) != len(rest) - 2:
            return INCOMPLETE
        return Job(int(ident), rest[:-2])

    return quick


class ReplyReader:
    """Makes results of bytes. It does not know which request is the next one: the caller does."""

    __slots__ = ("_buffer", "_body_max", "_args", "_convert", "_size", "_jobs", "_left", "_total")

    def __init__(self, body_max: int = BODY_MAX) -> None:
        self._buffer = bytearray()
        self._body_max = body_max
        #: The words of the line whose body is awaited.
        self._args: List[bytes] = []
        self._convert: Optional[Convert] = None
        #: The size of the body that is awaited, or -1.
        self._size = -1
        #: The jobs of a batch so far, how many are left, and the bytes of their bodies.
        self._jobs: Optional[List[Job]] = None
        self._left = 0
        self._total = 0

    def feed(self, data: bytes) -> None:
        """Takes bytes that have arrived."""
        self._buffer += data

    @property
    def buffered(self) -> int:
        """Bytes that have arrived and belong to no result yet."""
        return len(self._buffer)

    def next(self, request: Request[Any]) -> Any:
        """The result of this request, a `Refused` among them, or `INCOMPLETE`.

        Raises `ProtocolError` if the bytes are no reply to it; the reader is of no use afterwards.
        """
        try:
            if self._convert is None:
                line = self._line()
                if line is None:
                    return INCOMPLETE
                done = self._begin(line, request)
                if done is not INCOMPLETE:
                    return done
            if self._jobs is not None:
                return self._next_jobs()
            return self._next_body()
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise ProtocolError(f"{request.word}: a reply cannot be read: {error}") from None

    def _line(self) -> Optional[bytes]:
        buffer = self._buffer
        end = buffer.find(b"\r\n", 0, LINE_MAX)
        if end < 0:
            if len(buffer) >= LINE_MAX:
                raise ValueError("the line is too long")
            return None
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        return line

    def _begin(self, line: bytes, request: Request[Any]) -> Any:
        args = line.split(b" ")
        word = args[0]
        reply = request.kind.replies.get(word)
        if reply is None:
            refusal = REFUSALS.get(word)
            if refusal is None or len(args) > 1:
                raise ValueError(f"it begins with {line[:40]!r}")
            return refusal(request.word)
        del args[0]
        shape, convert = reply
        if shape == LINE:
            return convert(args, None)
        self._args = args
        self._convert = convert
        if shape == JOBS:
            self._left = number(args[0])
            if not 1 <= self._left <= BATCH_MAX or len(args) > 1:
                raise ValueError("a batch has 1 to 1000 jobs")
            self._jobs = []
            self._total = 0
        else:
            self._size = self._checked(number(args[-1]))
        return INCOMPLETE

    def _checked(self, size: int) -> int:
        if size > self._body_max:
            raise ValueError(f"{size} bytes are more than body_max ({self._body_max})")
        return size

    def _body(self) -> Optional[bytes]:
        buffer, size = self._buffer, self._size
        if len(buffer) < size + 2:
            return None
        if buffer[size : size + 2] != b"\r\n":
            raise ValueError("a body does not end with CR LF")
        body = bytes(buffer[:size])
        del buffer[: size + 2]
        self._size = -1
        return body

    def _next_body(self) -> Any:
        body = self._body()
        if body is None:
            return INCOMPLETE
        return self._end(body)

    def _next_jobs(self) -> Any:
        jobs = self._jobs
        assert jobs is not None
        while self._left:
            if self._size < 0:
                line = self._line()
                if line is None:
                    return INCOMPLETE
                words = line.split(b" ")
                if len(words) != 4 or words[0] != b"JOB":
                    raise ValueError("a job of a batch is expected")
                self._args = words
                self._size = self._checked(number(words[3]))
                self._total = self._checked(self._total + self._size)
            body = self._body()
            if body is None:
                return INCOMPLETE
            _, ident, tube, _ = self._args
            jobs.append(Job(number(ident), body, tube.decode("ascii")))
            self._left -= 1
        self._jobs = None
        return self._end(jobs)

    def _end(self, content: Any) -> Any:
        convert, args = self._convert, self._args
        assert convert is not None
        self._convert = None
        return convert(args, content)
