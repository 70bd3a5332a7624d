"""Several servers that know nothing of each other, each alone or a cluster, which hold tubes
between them.

A tube is on one server: the one with the highest score, which is the first 8 bytes, big-endian, of
the SHA-256 of the server's name, a byte 0, and the tube's name; of two with the same score, the one
whose name comes first. A map of pins says otherwise for some tubes.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from types import TracebackType
from typing import (
    Any,
    Awaitable,
    Callable,
    Coroutine,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Type,
    TypeVar,
)

from .address import Addresses, Backoff
from .aio import AsyncClient
from .commands import DELAY, PRIORITY, TTR, Bytes
from .errors import ConnectionLost, InvalidArgument, ProtocolError, Refused, TimedOut, Timeout
from .model import Failed, Job, JobStats, Put, Stats

T = TypeVar("T")

#: A reserve that cannot be aborted is asked for again after this number of seconds.
SLICE = 1
#: Where there is no end of waiting, a reserve is asked for again after this number of seconds.
LONG = 3600
#: What a server is that does not work at the moment.
AWAY = (ConnectionLost, Timeout, ProtocolError)


def score(server: str, tube: str) -> int:
    """The score of a server for a tube."""
    digest = hashlib.sha256(server.encode() + b"\0" + tube.encode()).digest()
    return int.from_bytes(digest[:8], "big")


def place(servers: Iterable[str], tube: str) -> str:
    """The server that has this tube."""
    return min(servers, key=lambda name: (-score(name, tube), name.encode()))


class SetJob(NamedTuple):
    """A job that was reserved from one of several servers."""

    server: str
    job: Job

    @property
    def id(self) -> int:
        """The id, which is unique on its server only."""
        return self.job.id

    @property
    def body(self) -> bytes:
        """The body."""
        return self.job.body


class _Server:
    """One server of a set: a connection for reserves, which wait, and one for everything else."""

    def __init__(self, name: str, addresses: Addresses, settings: Dict[str, Any]) -> None:
        self.name = name
        self.worker = AsyncClient(addresses, **{**settings, "retry_for": 0.0})
        self.producer = AsyncClient(addresses, **settings)
        self._backoff = Backoff()
        #: It was away, and is left alone until then.
        self._rests_until = 0.0
        self._connecting: Optional["asyncio.Task[None]"] = None
        self._watched: List[str] = []

    def begin_connecting(self) -> None:
        """Has the connection for reserves made, unless it is there or the server was away a moment
        ago. A reserve that ends does not end this: else a server that is slower than another one,
        which always has jobs, would never be connected."""
        is_under_way = self._connecting is not None and not self._connecting.done()
        rests = asyncio.get_running_loop().time() < self._rests_until
        if not (self.worker.is_connected or is_under_way or rests):
            self._connecting = asyncio.ensure_future(self.worker.connect())
            self._connecting.add_done_callback(self._tried)

    async def _connect(self) -> None:
        self.begin_connecting()
        if self.worker.is_connected or self._connecting is None:
            return
        await asyncio.wait([self._connecting])
        if self._connecting.cancelled():
            raise ConnectionLost("the client was closed")
        self._connecting.result()

    def _tried(self, connecting: "asyncio.Task[None]") -> None:
        if not connecting.cancelled() and connecting.exception() is not None:
            self._rest()

    def _rest(self) -> float:
        """How long the server is left alone, which is away: seconds."""
        now = asyncio.get_running_loop().time()
        if self._rests_until <= now:
            self._rests_until = now + self._backoff.delay()
        return self._rests_until - now

    async def reserve(self, tubes: List[str], end: float) -> Job:
        """Waits for a job until then. While the server is away it waits for the server."""
        loop = asyncio.get_running_loop()
        while True:
            left = end - loop.time()
            try:
                await self._connect()
                await self._watch(tubes)
                can_abort = "abort" in await self.worker.capabilities()
                timeout = max(0, min(LONG if can_abort else SLICE, math.ceil(left)))
                job = await self.worker.reserve(timeout)
                self._backoff = Backoff()
                return job
            except TimedOut:
                self._backoff = Backoff()
                if loop.time() >= end:
                    raise
            except AWAY as error:
                delay = self._rest()
                if delay > end - loop.time():
                    raise TimedOut("reserve") from error
                await asyncio.sleep(delay)

    async def _watch(self, tubes: List[str]) -> None:
        if self._watched == tubes:
            return
        for tube in tubes:
            await self.worker.watch(tube)
        for tube in await self.worker.list_tubes_watched():
            if tube not in tubes:
                await self.worker.ignore(tube)
        self._watched = list(tubes)

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self.worker.close()
        await self.producer.close()


class AsyncServerSet:
    """Several servers as one, for asyncio. `servers` has their names, which decide where tubes are,
    and their addresses; several addresses of one server are the members of a cluster.

    A task uses a set for reserves alone: it has one connection for them to each server.
    """

    def __init__(
        self,
        servers: Mapping[str, Addresses],
        *,
        pins: Optional[Mapping[str, str]] = None,
        **settings: Any,
    ) -> None:
        if not servers:
            raise InvalidArgument("a server is needed")
        self._servers = {
            name: _Server(name, addresses, settings) for name, addresses in servers.items()
        }
        self._pins = dict(pins or {})
        for name in self._pins.values():
            self._server(name)
        self._tubes = ["default"]
        #: The server that is asked first.
        self._first = 0
        self._held: List[SetJob] = []

    async def __aenter__(self) -> "AsyncServerSet":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all connections."""
        for server in self._servers.values():
            await server.close()

    def _server(self, name: str) -> _Server:
        if name not in self._servers:
            raise InvalidArgument(f"no server has the name {name!r}")
        return self._servers[name]

    def server_of(self, tube: str) -> str:
        """The name of the server that has this tube."""
        return self._pins.get(tube) or place(self._servers, tube)

    def client(self, name: str) -> AsyncClient:
        """The connection to this server that is not for reserves."""
        return self._server(name).producer

    def client_of(self, job: SetJob) -> AsyncClient:
        """The connection that has reserved this job."""
        return self._server(job.server).worker

    async def put(
        self,
        tube: str,
        body: Bytes,
        pri: int = PRIORITY,
        delay: int = DELAY,
        ttr: int = TTR,
        **attributes: Any,
    ) -> Put:
        """Puts a job into this tube, at the server that has it; `attributes` are those of
        `put_with`. While that server is away it waits as long as `retry_for` says."""
        client = self.client(self.server_of(tube))
        return await client.put_with(body, pri, delay, ttr, tube=tube, **attributes)

    def watch(self, *tubes: str) -> None:
        """Reserves take jobs of these tubes from now on, at all servers, and of no others: a tube
        that was moved by another map is still worked off where it was."""
        if not tubes:
            raise InvalidArgument("a tube is needed")
        self._tubes = list(tubes)

    async def reserve(self, timeout: Optional[int] = None) -> SetJob:
        """Waits for a job of any server. Each has its turn; one that is away is not waited for."""
        held = self.held()
        if held:
            self._held = held[1:]
            return held[0]
        names = list(self._servers)
        self._first = (self._first + 1) % len(names)
        names = names[self._first :] + names[: self._first]
        end = asyncio.get_running_loop().time() + (LONG * 1e6 if timeout is None else timeout)
        if len(names) > 1:
            for name in names:
                job = await self._ready(name)
                if job is not None:
                    return job
        return await self._first_of(names, end)

    async def _ready(self, name: str) -> Optional[SetJob]:
        """A job that is ready at this server, if that is there."""
        server = self._servers[name]
        if not server.worker.is_connected:
            server.begin_connecting()
            return None
        try:
            end = asyncio.get_running_loop().time()
            return SetJob(name, await server.reserve(self._tubes, end))
        except TimedOut:
            return None

    async def _first_of(self, names: List[str], end: float) -> SetJob:
        """The first job of any of these."""
        tasks = {
            asyncio.ensure_future(self._servers[name].reserve(self._tubes, end)): name
            for name in names
        }
        pending = set(tasks)
        late: Optional[Refused] = None
        try:
            while pending and not self._held:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        self._held.append(SetJob(tasks[task], task.result()))
                    except TimedOut as error:
                        late = error
        finally:
            for task in pending:
                task.cancel()
            # They end at once: a job that is on its way is held by its client.
            await asyncio.gather(*pending, return_exceptions=True)
            for task in pending:
                if not task.cancelled() and task.exception() is None:
                    self._held.append(SetJob(tasks[task], task.result()))
        if self._held:
            return self._held.pop(0)
        raise late or TimedOut("reserve")

    def held(self) -> List[SetJob]:
        """Takes the jobs that have arrived, and that no one has asked for yet: where two servers
        had one at the same time, or a reserve was cancelled."""
        jobs, self._held = self._held, []
        for name, server in self._servers.items():
            jobs.extend(SetJob(name, job) for job in server.worker.held())
        return jobs

    async def settle(self) -> None:
        """Waits until the answers to all aborts of reserves are there: no job is on its way."""
        for server in self._servers.values():
            await server.worker.settle()

    async def delete(self, job: SetJob) -> None:
        """Deletes a job: it is done."""
        await self.client_of(job).delete(job.id)

    async def release(self, job: SetJob, pri: Optional[int] = None, delay: int = DELAY) -> None:
        """Gives a job back."""
        await self.client_of(job).release(job.id, pri, delay)

    async def bury(self, job: SetJob, pri: Optional[int] = None) -> None:
        """Sets a job aside."""
        await self.client_of(job).bury(job.id, pri)

    async def touch(self, job: SetJob) -> None:
        """Has the time to run of a job begin again."""
        await self.client_of(job).touch(job.id)

    async def fail(self, job: SetJob, text: Bytes = b"") -> Failed:
        """Says that a job could not be done, and why."""
        return await self.client_of(job).fail(job.id, text)

    async def stats_job(self, job: SetJob) -> JobStats:
        """Figures of a job."""
        return await self.client_of(job).stats_job(job.id)

    async def stats(self) -> Dict[str, Optional[Stats]]:
        """Figures of each server; None for one that is away."""
        names = list(self._servers)
        found = await asyncio.gather(
            *(self.client(name).stats() for name in names), return_exceptions=True
        )
        stats: Dict[str, Optional[Stats]] = {}
        for name, it in zip(names, found):
            if isinstance(it, BaseException) and not isinstance(it, AWAY):
                raise it
            stats[name] = None if isinstance(it, BaseException) else it
        return stats


class _Turns:
    """Shares the connections for reserves among threads.

    A connection answers in order, so that a call about a job would wait as long as a reserve before
    it. The call ends that wait, which goes on afterwards. Reserves take turns.
    """

    def __init__(self, servers: AsyncServerSet) -> None:
        self._set = servers
        #: Held by the one whose turn it is; the others wait in their order.
        self._lock = asyncio.Lock()
        #: Calls and reserves that wait for their turn.
        self._calls = 0
        self._reserves = 0
        self._waiting: Optional["asyncio.Task[SetJob]"] = None

    def _interrupt(self) -> None:
        # Once only: a second one would cut short how the first one keeps a job that has arrived.
        task, self._waiting = self._waiting, None
        if task is not None:
            task.cancel()

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does this at once: it does not wait for a job."""
        self._interrupt()
        self._calls += 1
        try:
            await self._lock.acquire()
        finally:
            self._calls -= 1
        try:
            return await work()
        finally:
            self._lock.release()

    async def reserve(self, timeout: Optional[int]) -> SetJob:
        """Waits for a job, in several turns if others want theirs."""
        loop = asyncio.get_running_loop()
        end = loop.time() + (LONG * 1e6 if timeout is None else timeout)
        self._interrupt()
        while True:
            self._reserves += 1
            try:
                await self._lock.acquire()
            finally:
                self._reserves -= 1
            try:
                job = await self._one_turn(end - loop.time())
                if job is not None:
                    return job
            except TimedOut:
                if loop.time() >= end:
                    raise
            finally:
                self._lock.release()

    async def _one_turn(self, left: float) -> Optional[SetJob]:
        """A job; None if another one wants its turn."""
        is_wanted = self._calls > 0 or self._reserves > 0
        if self._calls:
            left = 0
        task = asyncio.ensure_future(self._set.reserve(max(0, math.ceil(left))))
        self._waiting = task
        try:
            done, _ = await asyncio.wait([task], timeout=SLICE if is_wanted else None)
            if not done:
                self._interrupt()
                await asyncio.wait([task])
        except asyncio.CancelledError:
            # The thread has left. The next reserve returns a job that was on its way.
            self._interrupt()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                self._set._held.append(task.result())
            raise
        finally:
            self._waiting = None
        return None if task.cancelled() else task.result()


class ServerSet:
    """Several servers as one, with blocking calls, which may be made from several threads. The work
    is done by an `AsyncServerSet` in a thread.

    Calls about jobs do not wait for a reserve of another thread. Threads that reserve at the same
    time take turns, of a second at most."""

    def __init__(
        self,
        servers: Mapping[str, Addresses],
        *,
        pins: Optional[Mapping[str, str]] = None,
        **settings: Any,
    ) -> None:
        self._set = AsyncServerSet(servers, pins=pins, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="bsdq-servers", daemon=True
        )
        self._thread.start()
        self._turns = self._run(self._begin())

    async def _begin(self) -> _Turns:
        # Before Python 3.10 a lock belongs to the loop that it is made in.
        return _Turns(self._set)

    def __enter__(self) -> "ServerSet":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all connections."""
        if self._thread.is_alive():
            self._run(self._set.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def server_of(self, tube: str) -> str:
        """The name of the server that has this tube."""
        return self._set.server_of(tube)

    def put(
        self,
        tube: str,
        body: Bytes,
        pri: int = PRIORITY,
        delay: int = DELAY,
        ttr: int = TTR,
        **attributes: Any,
    ) -> Put:
        """As `AsyncServerSet.put`."""
        return self._run(self._set.put(tube, body, pri, delay, ttr, **attributes))

    def watch(self, *tubes: str) -> None:
        """As `AsyncServerSet.watch`."""
        self._set.watch(*tubes)

    def reserve(self, timeout: Optional[int] = None) -> SetJob:
        """As `AsyncServerSet.reserve`."""
        return self._run(self._turns.reserve(timeout))

    def delete(self, job: SetJob) -> None:
        """Deletes a job: it is done."""
        self._run(self._turns.call(lambda: self._set.delete(job)))

    def release(self, job: SetJob, pri: Optional[int] = None, delay: int = DELAY) -> None:
        """Gives a job back."""
        self._run(self._turns.call(lambda: self._set.release(job, pri, delay)))

    def bury(self, job: SetJob, pri: Optional[int] = None) -> None:
        """Sets a job aside."""
        self._run(self._turns.call(lambda: self._set.bury(job, pri)))

    def touch(self, job: SetJob) -> None:
        """Has the time to run of a job begin again."""
        self._run(self._turns.call(lambda: self._set.touch(job)))

    def fail(self, job: SetJob, text: Bytes = b"") -> Failed:
        """Says that a job could not be done, and why."""
        return self._run(self._turns.call(lambda: self._set.fail(job, text)))

    def stats(self) -> Dict[str, Optional[Stats]]:
        """Figures of each server; None for one that is away."""
        return self._run(self._set.stats())
