"""The client for asyncio. Protocol, state and calls are those of the other client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from types import TracebackType
from typing import Any, Deque, List, Optional, Sequence, Type, TypeVar, cast

from . import commands, steps
from .address import Address, Addresses, Backoff, Patience, Settings, parse_all
from .aio_methods import AsyncMethods
from .errors import BsdError, ConnectionLost, ProtocolError, Refused, Timeout
from .link import keep_alive
from .model import Job
from .session import Session, may_go_on, windows
from .steps import Call, Steps
from .wire import BODY_MAX, INCOMPLETE, Request

T = TypeVar("T")

#: Requests that take any job.
_TAKES = frozenset({"reserve", "reserve-with-timeout", "reserve-batch"})


class _Entry:
    """Requests that were sent together, and who waits for their results."""

    __slots__ = ("requests", "results", "future", "deadline", "is_reserve", "takes")

    def __init__(
        self,
        requests: Sequence[Request[Any]],
        future: "asyncio.Future[List[Any]]",
        deadline: Optional[float],
    ) -> None:
        self.requests = requests
        self.results: List[Any] = []
        self.future = future
        self.deadline = deadline
        self.is_reserve = requests[0].waits != 0.0
        self.takes = len(requests) == 1 and requests[0].word in _TAKES


class _Link(asyncio.Protocol):
    """One connection. Requests are answered in their order."""

    def __init__(self, session: Session, timeout: float) -> None:
        self._reader = session.reader()
        self._session = session
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._entries: Deque[_Entry] = deque()
        self._transport: Optional[asyncio.Transport] = None
        self._timer: Optional[asyncio.TimerHandle] = None
        #: Why the connection is of no use any more.
        self.lost: Optional[BsdError] = None
        #: Jobs that arrived when their reserve had been cancelled.
        self.held: List[Job] = []

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        it = transport.get_extra_info("socket")
        if it is not None and it.family in (socket.AF_INET, socket.AF_INET6):
            # A connection that was lost at once is told later.
            with contextlib.suppress(OSError):
                keep_alive(it)

    def connection_lost(self, error: Optional[Exception]) -> None:
        said = f"the connection is lost: {error}" if error else "the server has closed it"
        self.fail(ConnectionLost(said, sent=True))

    def data_received(self, data: bytes) -> None:
        reader, entries = self._reader, self._entries
        reader.feed(data)
        try:
            while entries:
                entry = entries[0]
                request = entry.requests[len(entry.results)]
                result = reader.next(request)
                if result is INCOMPLETE:
                    return
                self._session.note(request, result)
                entry.results.append(result)
                if len(entry.results) == len(entry.requests):
                    entries.popleft()
                    self._done(entry)
            if reader.buffered:
                raise ProtocolError("the server has said something unasked")
        except ProtocolError as error:
            self.fail(error)

    def _done(self, entry: _Entry) -> None:
        if not entry.future.done():
            entry.future.set_result(entry.results)
        else:
            self._hold(entry.requests, entry.results)
            self._serve()

    def _serve(self) -> None:
        """Gives the kept jobs to reserves that were sent since. Their own answers are for those that
        come later."""
        for entry in list(self._entries):
            if not self.held:
                return
            if entry.takes and not entry.future.done():
                entry.future.set_result([self.take(entry.requests[0])])
                self._abort(entry)

    def take(self, request: Request[Any]) -> Any:
        """The result of a reserve from the jobs that are kept, of which there is one at least."""
        if request.word == "reserve-batch":
            most = int(request.data.split()[1])
            jobs, self.held = self.held[:most], self.held[most:]
            return jobs
        return self.held.pop(0)

    def _hold(self, requests: Sequence[Request[Any]], results: Sequence[Any]) -> None:
        """Keeps the jobs of reserves whose caller has left."""
        for request, result in zip(requests, results):
            if request.word.startswith("reserve") and isinstance(result, Job):
                self.held.append(result)
            elif request.word == "reserve-batch" and isinstance(result, list):
                self.held.extend(result)

    # What the client calls.

    def send(self, requests: Sequence[Request[Any]], timeout: float) -> "asyncio.Future[List[Any]]":
        """Sends requests; the future has their results."""
        future: "asyncio.Future[List[Any]]" = self._loop.create_future()
        if self.lost is not None or self._transport is None:
            future.set_exception(ConnectionLost("the connection is lost"))
            return future
        waits = [request.waits for request in requests]
        deadline = None
        if None not in waits:
            deadline = self._loop.time() + timeout + sum(cast("List[float]", waits))
        self._entries.append(_Entry(requests, future, deadline))
        if deadline is not None and (self._timer is None or deadline < self._timer.when()):
            self._arm(deadline)
        first = requests[0].data
        data = first if len(requests) == 1 else b"".join(it.data for it in requests)
        self._transport.write(data)
        return future

    def cancel(
        self, requests: Sequence[Request[Any]], future: "asyncio.Future[List[Any]]"
    ) -> None:
        """The caller has left. A reserve of its own is ended, if the server can do that."""
        if not future.cancelled():
            # The answer has arrived, and the caller does not get it.
            if future.exception() is None:
                self._hold(requests, future.result())
        elif self._entries and self._entries[-1].future is future:
            self._abort(self._entries[-1])

    def _abort(self, entry: _Entry) -> None:
        """Ends a reserve that waits, if it is the last request and the server can do that."""
        is_last = bool(self._entries) and self._entries[-1] is entry
        if is_last and entry.is_reserve and self.lost is None and self._session.has("abort"):
            self.send([commands.abort()], self._timeout).add_done_callback(_ignored)

    def use_again(self) -> None:
        """Uses the client's tube again, where a passing `use` was sent and not taken back."""
        if self.lost is not None:
            return
        # A `use` of the client may still be on its way, before the passing one.
        sent = [request for entry in self._entries for request in entry.requests]
        tubes = [it.tube for it in sent if it.word == "use" and it.tube is not None]
        request = steps.passing(tubes[-1] if tubes else self._session.used)

        def check(future: "asyncio.Future[List[Any]]") -> None:
            if future.cancelled() or future.exception() is not None:
                return
            if isinstance(future.result()[0], Refused):
                self.fail(ConnectionLost("the server does not use the client's tube again"))

        self.send([request], self._timeout).add_done_callback(check)

    def fail(self, error: BsdError) -> None:
        """Ends the connection; all who wait are told so."""
        if self.lost is not None:
            return
        self.lost = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        while self._entries:
            entry = self._entries.popleft()
            if entry.future.done():
                continue
            if isinstance(error, ConnectionLost):
                own: BsdError = ConnectionLost(str(error), sent=True)
                cast(ConnectionLost, own).results = entry.results
            else:
                own = error
            entry.future.set_exception(own)
            # The first one is why; the others have only lost their connection.
            if not isinstance(error, ConnectionLost):
                error = ConnectionLost(f"the connection is lost: {error}", sent=True)

    @property
    def is_idle(self) -> bool:
        """Whether no request is on its way."""
        return not self._entries

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._late)

    def _late(self) -> None:
        self._timer = None
        now = self._loop.time()
        deadlines = [it.deadline for it in self._entries if it.deadline is not None]
        if not deadlines:
            return
        first = min(deadlines)
        if first > now:
            return self._arm(first)
        # Others than the first may be late because that one is: the error is theirs.
        late = next(it for it in self._entries if it.deadline == first)
        self._entries.remove(late)
        self._entries.appendleft(late)
        self.fail(Timeout(f"{late.requests[0].word}: no answer in time"))


def _ignored(future: "asyncio.Future[List[Any]]") -> None:
    if not future.cancelled():
        future.exception()


class AsyncClient(AsyncMethods):
    """A connection to a server, or to a cluster if several addresses are given. It is made when it
    is needed, and made again when it was lost.

    Many tasks may use a client: their requests are pipelined. While one waits in a reserve the
    answers to the others wait too, so workers have a client of their own.

    A task that waits in a reserve may be cancelled. If a job was on its way then, the next reserve
    returns it.
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
        self._link: Optional[_Link] = None
        self._at = 0
        self._is_closed = False
        #: One task at a time connects.
        self._connecting: Optional[asyncio.Lock] = None
        #: Held by a call of several steps: nothing else is sent between them.
        self._stepping: Optional[asyncio.Lock] = None

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connects, if there is no connection."""
        await self._connected()

    async def close(self) -> None:
        """Ends the connection. The server gives the jobs of this client to others."""
        self._is_closed = True
        await self.disconnect()

    async def disconnect(self) -> None:
        """Ends the connection; the next call makes another one."""
        link, self._link = self._link, None
        if link is not None:
            link.fail(ConnectionLost("the client has ended the connection", sent=True))
            # The transport closes its socket in the next turn of the loop.
            await asyncio.sleep(0)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._link is not None and self._link.lost is None

    def held(self) -> List[Job]:
        """Takes the jobs that arrived when their reserve had been cancelled."""
        if self._link is None or self._link.lost is not None:
            return []
        jobs, self._link.held = self._link.held, []
        return jobs

    async def settle(self) -> None:
        """Waits until each request that was sent has its answer, also those of tasks that were
        cancelled."""
        link = self._link
        if link is None or link.lost is not None or link.is_idle:
            return
        try:
            # Its answer comes behind all others.
            await link.send([commands.list_tube_used()], self._settings.timeout)
        except (ConnectionLost, Timeout, ProtocolError):
            pass

    # The connection.

    async def _connected(self, give_up_at: Optional[float] = None) -> _Link:
        if self._link is not None and self._link.lost is None:
            return self._link
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._link is not None and self._link.lost is None:
                return self._link
            if give_up_at is None:
                give_up_at = asyncio.get_running_loop().time() + self._settings.retry_for
            return await self._connect(give_up_at)

    async def _connect(self, give_up_at: float) -> _Link:
        backoff = Backoff()
        while True:
            last: Optional[BsdError] = None
            for _ in self._settings.addresses:
                self._check_open()
                try:
                    link = await self._open(self._settings.addresses[self._at])
                except (ConnectionLost, Timeout) as error:
                    last = error
                    self._at = (self._at + 1) % len(self._settings.addresses)
                    continue
                if self._is_closed:
                    # `close` has ended the connection that it saw: this one came later.
                    await self.disconnect()
                self._check_open()
                return link
            self._check_open()
            await _pause(backoff, give_up_at, cast(BsdError, last))

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost("the client was closed")

    async def _open(self, address: Address) -> _Link:
        timeout = self._settings.connect_timeout
        link: Optional[_Link] = None
        try:
            link = await asyncio.wait_for(self._dial(address), timeout)
            requests = self._session.opening()
            # `wait_for` is not needed: the link has its own times.
            results = await link.send(requests, timeout)
            self._session.opened(requests, results)
        except ConnectionLost as error:
            if error.results:  # The server refuses the token, and closes.
                self._session.opened(requests, error.results)
            error.sent = False
            raise
        except (BsdError, asyncio.CancelledError):
            if link is not None:
                link.fail(ConnectionLost("the connection was not begun"))
            raise
        except asyncio.TimeoutError:
            raise Timeout(f"no connection to {address} in time") from None
        except OSError as error:
            raise ConnectionLost(f"no connection to {address}: {error}") from error
        self._link = link
        return link

    async def _dial(self, address: Address) -> _Link:
        loop = asyncio.get_running_loop()
        settings = self._settings

        def make() -> _Link:
            return _Link(self._session, settings.timeout)

        if address.path is not None:
            _, link = await loop.create_unix_connection(make, address.path)
        elif address.tls:
            _, link = await loop.create_connection(
                make,
                address.host,
                address.port,
                ssl=settings.context(),
                server_hostname=settings.tls_name or address.host,
            )
        else:
            _, link = await loop.create_connection(make, address.host, address.port)
        return link

    # Calls.

    async def _call(self, call: Call[T]) -> T:
        if isinstance(call, Request):
            return await self._one(call)
        await self._connected()
        if call.plain is not None and self._session.has(call.plain.word):
            return await self._one(call.plain)
        if self._stepping is None:
            self._stepping = asyncio.Lock()
        async with self._stepping:
            return await self._steps(call)

    async def _turn(self) -> None:
        """Waits until no call of several steps is under way. What is sent right after this, with no
        `await` between, does not come between such steps."""
        while self._stepping is not None and self._stepping.locked():
            async with self._stepping:
                pass

    async def _one(self, request: Request[T]) -> T:
        link = self._link
        if request.word in _TAKES and link is not None and link.lost is None and link.held:
            return cast(T, link.take(request))
        (result,) = await self._exchange([request])
        if isinstance(result, Refused):
            raise result
        return cast(T, result)

    async def _steps(self, call: Steps[T]) -> T:
        run = call.begin(self._session)
        try:
            requests = next(run)
            may_connect = True
            while True:
                results = await self._exchange(requests, may_connect, is_step=True)
                may_connect = False
                requests = run.send(results)
        except StopIteration as stop:
            return cast(T, stop.value)
        except asyncio.CancelledError:
            # The lock is still held: no other request has come behind the passing `use`.
            if any(steps.is_passing(request) for request in requests) and self._link is not None:
                self._link.use_again()
            raise

    async def _exchange(
        self, requests: Sequence[Request[Any]], may_connect: bool = True, is_step: bool = False
    ) -> List[Any]:
        loop = asyncio.get_running_loop()
        patience = Patience(self._settings.retry_for)
        results: List[Any] = []
        while True:
            begun: Optional[float] = None
            try:
                if not may_connect and self._link is None:
                    raise ConnectionLost("the connection is lost")
                give_up_at = patience.give_up_at
                link = await self._connected(give_up_at) if may_connect else cast(_Link, self._link)
                begun = loop.time()
                for request in requests:
                    self._session.check(request)
                for window in windows(requests[len(results) :]):
                    if not is_step:
                        await self._turn()
                    await self._window(link, window, results)
                return results
            except ConnectionLost as error:
                error.results = results
                rest = requests[len(results) :]
                can = may_connect and self._settings.retry_for > 0 and not self._is_closed
                # Without a connection, connecting has taken all the time that there is.
                if not can or begun is None or not may_go_on(error, len(results), rest):
                    raise
                waited = loop.time() - begun if any(it.waits != 0 for it in rest) else 0.0
                give_up_at = patience.lost(loop.time(), waited)
                await _pause(patience.backoff, give_up_at, error)

    async def _window(
        self, link: _Link, window: Sequence[Request[Any]], results: List[Any]
    ) -> None:
        future = link.send(window, self._settings.timeout)
        try:
            results.extend(await future)
        except asyncio.CancelledError:
            link.cancel(window, future)
            raise
        except ConnectionLost as error:
            results.extend(error.results)
            raise


async def _pause(backoff: Backoff, give_up_at: float, error: BsdError) -> None:
    delay = backoff.delay()
    if asyncio.get_running_loop().time() + delay > give_up_at:
        raise error
    await asyncio.sleep(delay)
