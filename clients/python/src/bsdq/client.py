"""The client with blocking calls."""

from __future__ import annotations

import ssl
import threading
import time
from types import TracebackType
from typing import Any, List, Optional, Sequence, Type, TypeVar, Union, cast

from . import commands
from .address import Addresses, Backoff, Patience, Settings, parse_all
from .errors import BsdError, ConnectionLost, Refused, Timeout
from .link import Link
from .methods import Methods
from .session import Session, may_go_on, windows
from .steps import Call, Steps
from .wire import BODY_MAX, Request

T = TypeVar("T")

#: A connection that was not used for this number of seconds is looked at before it is used.
IDLE = 0.5


class Client(Methods):
    """A connection to a server, or to a cluster if several addresses are given. It is made when it
    is needed, and made again when it was lost.

    Several threads may use a client; its calls are done one after the other. While one thread waits
    in a reserve the others wait too: only `abort` does not.
    """

    def __init__(
        self,
        addresses: Addresses = "127.0.0.1:11300",
        *,
        token: Optional[str] = None,
        tls: Optional[ssl.SSLContext] = None,
        tls_name: Optional[str] = None,
        connect_timeout: float = 5.0,
        timeout: float = 10.0,
        retry_for: float = 10.0,
        body_max: int = BODY_MAX,
    ) -> None:
        self._settings = Settings(
            parse_all(addresses),
            token,
            tls,
            tls_name,
            connect_timeout,
            timeout,
            retry_for,
            body_max,
        )
        self._session = Session(token, body_max)
        self._link: Optional[Link] = None
        #: The address that is tried first.
        self._at = 0
        self._used_at = 0.0
        self._is_closed = False
        self._lock = threading.Lock()
        #: Guards the two below, which `abort` uses from another thread.
        self._waits = threading.Lock()
        self._is_waiting = False
        self._aborts = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Connects, if there is no connection."""
        with self._lock:
            self._connected()

    def close(self) -> None:
        """Ends the connection, also while another thread waits for an answer. The server gives the
        jobs of this client to others."""
        self._is_closed = True
        link = self._link
        if link is not None:
            link.shut()
        with self._lock:
            self._drop()

    def disconnect(self) -> None:
        """Ends the connection; the next call makes another one."""
        with self._lock:
            self._drop()

    def abort(self) -> bool:
        """Ends the wait of another thread in `reserve` or `reserve_batch`, which raises `TimedOut`
        there; or returns a job that was on its way. False: no one waits."""
        with self._waits:
            if not self._is_waiting:
                return False
            request = commands.abort()
            self._session.check(request)
            if not self._aborts and self._link is not None:
                self._link.abort(request.data)
                self._aborts = 1
            return True

    # The connection.

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connected(self, give_up_at: Optional[float] = None) -> Link:
        if self._link is not None:
            if time.monotonic() - self._used_at < IDLE or not self._link.is_closed():
                return self._link
            self._drop()
        if give_up_at is None:
            give_up_at = time.monotonic() + self._settings.retry_for
        return self._connect(Backoff(), give_up_at)

    def _connect(self, backoff: Backoff, give_up_at: float) -> Link:
        while True:
            last: Optional[BsdError] = None
            for _ in self._settings.addresses:
                self._check_open()
                try:
                    link = self._open()
                except (ConnectionLost, Timeout) as error:
                    last = error
                    self._at = (self._at + 1) % len(self._settings.addresses)
                    continue
                # `close` shuts the connection that it sees: this one may have come later.
                self._check_open()
                return link
            self._check_open()
            self._pause(backoff, give_up_at, cast(BsdError, last))

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost("the client was closed")

    def _pause(self, backoff: Backoff, give_up_at: float, error: BsdError) -> None:
        delay = backoff.delay()
        if time.monotonic() + delay > give_up_at:
            raise error
        time.sleep(delay)

    def _open(self) -> Link:
        settings = self._settings
        deadline = time.monotonic() + settings.connect_timeout
        link = Link(settings.addresses[self._at], settings, self._session)
        try:
            requests = self._session.opening()
            link.send(b"".join(request.data for request in requests), deadline)
            results = []
            for request in requests:
                results.append(link.result(request, deadline))
                if isinstance(results[-1], Refused) and request.word == "auth":
                    self._session.opened(requests, results)
            self._session.opened(requests, results)
            link.ready()
        except ConnectionLost as error:
            link.close()
            error.sent = False
            raise
        except BaseException:
            link.close()
            raise
        self._link = link
        self._used_at = time.monotonic()
        return link

    # Calls.

    def _call(self, call: Call[T]) -> T:
        with self._lock:
            if isinstance(call, Request):
                link = self._link
                now = time.monotonic()
                if (
                    link is None
                    or call.waits != 0
                    or call.kind.needs
                    or now - self._used_at >= IDLE
                ):
                    return self._one(call)
                # The same as `_one`, for the most usual case, and in as few steps as may be.
                self._used_at = now
                result: Any
                try:
                    result = link.ask(call, now + self._settings.timeout)
                except BaseException as error:
                    return self._asked(call, error)
                if result is not None:
                    if call.tube is not None:
                        self._session.note(call, result)
                    if isinstance(result, Refused):
                        raise result
                return result  # type: ignore[no-any-return]
            self._connected()
            if call.plain is not None and self._session.has(call.plain.word):
                return self._one(call.plain)
            return self._steps(call)

    def _asked(self, request: Request[T], error: BaseException) -> T:
        """Asks once more, or raises the error."""
        self._drop()
        is_lost = isinstance(error, ConnectionLost) and may_go_on(error, 0, [request])
        if not is_lost or not self._settings.retry_for or self._is_closed:
            raise error
        return self._one(request)

    def _one(self, request: Request[T]) -> T:
        (result,) = self._sent([request])
        if isinstance(result, Refused):
            raise result
        return cast(T, result)

    def _steps(self, call: Steps[T]) -> T:
        run = call.begin(self._session)
        try:
            requests = next(run)
            may_connect = True
            while True:
                results = self._sent(requests, may_connect)
                may_connect = False
                requests = run.send(results)
        except StopIteration as stop:
            return cast(T, stop.value)

    def _exchange(self, requests: Sequence[Request[Any]]) -> List[Any]:
        with self._lock:
            return self._sent(requests)

    def _sent(self, requests: Sequence[Request[Any]], may_connect: bool = True) -> List[Any]:
        """The results of requests, over as many connections as it takes and as are safe."""
        patience = Patience(self._settings.retry_for)
        results: List[Any] = []
        while True:
            begun: Optional[float] = None
            try:
                if not may_connect and self._link is None:
                    raise ConnectionLost("the connection is lost")
                give_up_at = patience.give_up_at
                link = self._connected(give_up_at) if may_connect else cast(Link, self._link)
                begun = time.monotonic()
                for request in requests:
                    self._session.check(request)
                for window in windows(requests[len(results) :]):
                    self._window(link, window, results)
                return results
            except ConnectionLost as error:
                error.results = results
                rest = requests[len(results) :]
                can = may_connect and self._settings.retry_for > 0 and not self._is_closed
                # Without a connection, connecting has taken all the time that there is.
                if not can or begun is None or not may_go_on(error, len(results), rest):
                    raise
                now = time.monotonic()
                waited = now - begun if any(it.waits != 0 for it in rest) else 0.0
                self._pause(patience.backoff, patience.lost(now, waited), error)

    def _window(self, link: Link, window: Sequence[Request[Any]], results: List[Any]) -> None:
        timeout = self._settings.timeout
        try:
            if len(window) == 1 and window[0].waits != 0.0:
                self._noted(window[0], self._waited(link, window[0]), results)
            else:
                link.send(b"".join(it.data for it in window), time.monotonic() + timeout)
                for request in window:
                    limit = _limit(request, timeout)
                    self._noted(request, link.result(request, limit), results)
            self._used_at = time.monotonic()
        except BaseException:
            # Answers that come late must not be taken for those of other requests.
            self._drop()
            raise

    def _noted(self, request: Request[Any], result: Any, results: List[Any]) -> None:
        self._session.note(request, result)
        results.append(result)

    def _waited(self, link: Link, request: Request[Any]) -> Any:
        """The result of a request that waits, and that another thread may abort."""
        timeout = self._settings.timeout
        with self._waits:
            # From here on an abort is sent behind it.
            link.send(request.data, time.monotonic() + timeout)
            self._is_waiting = True
        try:
            result = link.result(request, _limit(request, timeout))
        finally:
            with self._waits:
                self._is_waiting = False
                aborts, self._aborts = self._aborts, 0
                if link.take_back_abort():
                    # The result came first: no answer to the abort is to come.
                    aborts = 0
        for _ in range(aborts):
            link.result(commands.abort(), time.monotonic() + timeout)
        return result


def _limit(request: Request[Any], timeout: float) -> Optional[float]:
    waits = request.waits
    return None if waits is None else time.monotonic() + waits + timeout
