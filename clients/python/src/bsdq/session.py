"""What a client knows of its connection, without the connection: both clients use it.

It says what is sent when a connection begins, so that a new one is as the old one was: token, used
tube, watched tubes. It knows what the server can, and which requests may be sent once more.
"""

from __future__ import annotations

from typing import Any, FrozenSet, Iterator, List, Optional, Sequence

from . import commands
from .errors import BadFormat, ConnectionLost, Refused, UnknownCommand, Unsupported
from .wire import BODY_MAX, ReplyReader, Request

#: What is sent before the answers are read, at most: a server that waits for its answers to be read
#: reads no more.
WINDOW_REQUESTS = 256
WINDOW_BYTES = 64 << 10


class Session:
    """The state of a client that outlives its connections."""

    def __init__(self, token: Optional[str] = None, body_max: int = BODY_MAX) -> None:
        self.token = token
        self.used = "default"
        self.watched: List[str] = ["default"]
        #: The extended commands that the server has.
        self.capabilities: FrozenSet[str] = frozenset()
        self._body_max = body_max

    def reader(self) -> ReplyReader:
        """A reader for a new connection."""
        return ReplyReader(self._body_max)

    def opening(self) -> List[Request[Any]]:
        """What a new connection begins with. All of it may be sent at once."""
        requests: List[Request[Any]] = []
        if self.token is not None:
            requests.append(commands.auth(self.token))
        requests.append(commands.capabilities())
        if self.used != "default":
            requests.append(commands.use(self.used))
        others = [tube for tube in self.watched if tube != "default"]
        requests.extend(commands.watch(tube) for tube in others)
        if "default" not in self.watched:
            requests.append(commands.ignore("default"))
        return requests

    def opened(self, requests: Sequence[Request[Any]], results: Sequence[Any]) -> None:
        """Takes the answers to `opening`; raises the first refusal that matters."""
        for request, result in zip(requests, results):
            if request.word == "auth" and isinstance(result, UnknownCommand):
                continue  # The server asks for no token.
            if request.word == "capabilities":
                if isinstance(result, (UnknownCommand, BadFormat)):
                    result = []
                if not isinstance(result, Refused):
                    self.capabilities = frozenset(result)
            if isinstance(result, Refused):
                raise result

    def note(self, request: Request[Any], result: Any) -> None:
        """Remembers what `use`, `watch` and `ignore` have done."""
        tube = request.tube
        if tube is None or isinstance(result, Refused):
            return
        if request.word == "use":
            self.used = tube
        elif request.word == "watch":
            if tube not in self.watched:
                self.watched.append(tube)
        elif tube in self.watched:
            self.watched.remove(tube)

    def has(self, word: str) -> bool:
        """Whether the server has this extended command."""
        return word in self.capabilities

    def check(self, request: Request[Any]) -> None:
        """Raises `Unsupported` if the server does not have the command."""
        if request.needs is not None and request.needs not in self.capabilities:
            raise Unsupported(request.needs)


def may_go_on(error: ConnectionLost, answered: int, rest: Sequence[Request[Any]]) -> bool:
    """Whether the rest of some requests, of which this number was answered, may be sent on another
    connection: nothing of them was sent on this one, or each of them may be sent once more."""
    return (not error.sent and not answered) or all(request.repeats for request in rest)


def windows(requests: Sequence[Request[Any]]) -> Iterator[Sequence[Request[Any]]]:
    """Parts of the requests, each small enough to be sent before its answers are read."""
    start = size = 0
    for at, request in enumerate(requests):
        size += len(request.data)
        if at > start and (size > WINDOW_BYTES or at - start >= WINDOW_REQUESTS):
            yield requests[start:at]
            start, size = at, len(request.data)
    if start < len(requests):
        yield requests[start:]
