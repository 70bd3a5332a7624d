"""The worker: takes jobs, runs their tasks, and tells the server what has become of them.

It has a number of slots. Each has its own connections, and runs one job at a time: a function in a
thread, a coroutine on the event loop. While a job runs, it is touched. A slot that waits for a job
has nothing reserved, so a worker that ends gives back only what it runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import signal
import threading
import time
import traceback
from typing import Any, Awaitable, Callable, Dict, List, Optional, Sequence

from . import codec
from .app import AnyTask, App, Bury, Event, Retry
from .commands import TEXT_MAX
from .errors import BsdError, NotFound, OutOfMemory, Refused, TimedOut, Unauthorized, Unsupported
from .servers import AsyncServerSet, SetJob

log = logging.getLogger("bsdq")

#: A job that takes longer than this is touched from then on. Shorter jobs cost nothing.
TOUCH_AFTER = 0.3
#: A job is touched this number of times in its time to run.
TOUCHES = 3
#: After the grace time: to give back what did not end.
LAST_WORDS = 5.0


class _Threads:
    """Threads that run functions, and that do not keep the process from ending."""

    def __init__(self) -> None:
        self._work: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Runs it in a thread; the future has what it returns or raises."""
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[Any]" = loop.create_future()

        def tell(result: Any, error: Optional[BaseException]) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                # A future cannot have this one.
                is_stop = isinstance(raised, StopIteration)
                error = RuntimeError("the task raised StopIteration") if is_stop else raised
            try:
                loop.call_soon_threadsafe(tell, result, error)
            except RuntimeError:
                pass  # The loop has ended, and no one waits.

        with self._lock:
            self._idle -= 1
            if self._idle < 0:
                self._idle += 1
                threading.Thread(target=self._serve, name="bsdq-task", daemon=True).start()
        self._work.put(work)
        return future

    def _serve(self) -> None:
        while True:
            self._work.get()()
            with self._lock:
                self._idle += 1


class Worker:
    """Runs the tasks of an app. `run` returns 0 if all jobs that were begun have ended."""

    def __init__(
        self,
        app: App,
        *,
        concurrency: int = 4,
        grace: float = 30.0,
        prefetch: int = 1,
        tubes: Optional[List[str]] = None,
        max_attempts: int = 10,
        retry_delay: int = 5,
        retry_max: int = 3600,
    ) -> None:
        self._app = app
        self._concurrency = concurrency
        self._grace = grace
        #: Jobs that a slot may have reserved at one time.
        self._prefetch = prefetch
        self._tubes = tubes or app.tubes() or ["default"]
        # For servers that have no `fail`.
        self._max_attempts = max_attempts
        self._retry_delay = retry_delay
        self._retry_max = retry_max
        self._threads = _Threads()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._stopping: Optional[asyncio.Event] = None
        self._is_stopped = False
        #: Whether SIGINT comes here, and not as a `KeyboardInterrupt`.
        self._has_signals = False
        #: What runs, to be ended after the grace time.
        self._running: Dict["asyncio.Future[Any]", SetJob] = {}
        self._abandoned = 0

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT. A second one ends it without waiting."""
        return asyncio.run(self.serve(signals=True))

    def stop(self) -> None:
        """Has it take no more jobs, and end when those that run have ended. From any thread."""
        self._is_stopped = True
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self, signals: bool = False) -> int:
        """Serves until it is told to stop."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        if self._is_stopped:
            self._stopping.set()
        hurry = asyncio.Event()
        if signals:
            self._listen(self._loop, hurry)
            self._has_signals = True
        log.info("a worker begins: %d slots, tubes %s", self._concurrency, ", ".join(self._tubes))
        slots = [asyncio.ensure_future(self._slot()) for _ in range(self._concurrency)]
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([stop, *slots], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        self._stopping.set()
        await self._end(slots, hurry)
        for slot in slots:
            if slot.done() and not slot.cancelled():
                slot.result()
        log.info("the worker ends; jobs that did not end in time: %d", self._abandoned)
        return 1 if self._abandoned else 0

    def _listen(self, loop: asyncio.AbstractEventLoop, hurry: asyncio.Event) -> None:
        stopping = self._stopping
        assert stopping is not None

        def told(name: str) -> None:
            if stopping.is_set():
                hurry.set()
            log.info("%s: no more jobs are taken", name)
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, told, number.name)
            except NotImplementedError:  # Windows has no such thing.
                signal.signal(number, lambda *_: self.stop())

    async def _end(self, slots: Sequence["asyncio.Future[None]"], hurry: asyncio.Event) -> None:
        hurried: "asyncio.Future[Any]" = asyncio.ensure_future(hurry.wait())
        ended: "asyncio.Future[Any]" = asyncio.gather(*slots, return_exceptions=True)
        await asyncio.wait(
            [hurried, ended], timeout=self._grace, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        self._abandoned = len(self._running)
        for future, job in list(self._running.items()):
            log.warning("job %d did not end in time", job.id)
            future.cancel()
        await asyncio.wait([ended], timeout=LAST_WORDS)
        ended.cancel()

    # A slot.

    async def _slot(self) -> None:
        assert self._stopping is not None
        stop = asyncio.ensure_future(self._stopping.wait())
        async with self._app.new_async_servers() as servers:
            servers.watch(*self._tubes)
            try:
                while not self._stopping.is_set():
                    for job in await self._next(servers, stop):
                        await self._job(servers, job)
            finally:
                stop.cancel()

    async def _next(self, servers: AsyncServerSet, stop: "asyncio.Future[Any]") -> List["_Kept"]:
        """The next jobs, each touched from now on; none if the worker stops."""
        reserve = asyncio.ensure_future(servers.reserve())
        await asyncio.wait([reserve, stop], return_when=asyncio.FIRST_COMPLETED)
        if not reserve.done():
            reserve.cancel()
            await asyncio.wait([reserve])
            # The answer to the abort may come with a job.
            await servers.settle()
        jobs: List[SetJob] = []
        try:
            jobs.append(reserve.result())
            jobs.extend(await self._more(servers, jobs[0]))
        except asyncio.CancelledError:
            pass
        except Unauthorized:
            log.error("the token does not allow to reserve from %s", ", ".join(self._tubes))
            raise
        except Refused as error:
            if not isinstance(error, TimedOut):
                log.warning("no job could be reserved: %s", error)
                await asyncio.sleep(1)
        jobs.extend(servers.held())
        return [_Kept(servers, job) for job in jobs]

    async def _more(self, servers: AsyncServerSet, job: SetJob) -> List[SetJob]:
        if self._prefetch < 2 or (self._stopping is not None and self._stopping.is_set()):
            return []
        try:
            jobs = await servers.client_of(job).reserve_batch(self._prefetch - 1, 0)
        except BsdError:
            return []
        return [SetJob(job.server, it) for it in jobs]

    async def _job(self, servers: AsyncServerSet, kept: "_Kept") -> None:
        assert self._stopping is not None
        job = kept.job
        try:
            if self._stopping.is_set():
                await self._given_back(servers, job, "", 0.0)
            else:
                await self._work(servers, job)
        except BsdError as error:
            log.warning("job %d is lost, and comes again: %s", job.id, error)
            self._tell(Event("lost", "", job.server, job.id, error=error))
        finally:
            kept.end()

    async def _work(self, servers: AsyncServerSet, job: SetJob) -> None:
        begun = time.monotonic()
        name = ""
        try:
            task, arguments = await self._task(servers, job)
            name = task.name
            self._tell(Event("started", name, job.server, job.id))
            await self._run(task, arguments, job)
        except Retry as retry:
            await servers.release(job, None, retry.delay)
            kind, error = "retried", None
        except Bury as bury:
            await self._bury(servers, job, str(bury))
            kind, error = "buried", None
        except asyncio.CancelledError:
            return await self._given_back(servers, job, name, time.monotonic() - begun)
        except (Exception, SystemExit, KeyboardInterrupt) as raised:
            log.warning("%s, job %d has failed: %r", name or "a task", job.id, raised)
            await self._fail(servers, job, raised)
            kind, error = "failed", raised
        else:
            await servers.delete(job)
            kind, error = "done", None
        self._tell(Event(kind, name, job.server, job.id, time.monotonic() - begun, error))

    async def _run(self, task: AnyTask, arguments: Dict[str, Any], job: SetJob) -> None:
        function = task.function
        future: "asyncio.Future[Any]"
        if task.is_async:
            future = asyncio.ensure_future(self._guarded(function, arguments))
        else:
            future = self._threads.run(lambda: function(**arguments))
        self._running[future] = job
        try:
            await future
        finally:
            del self._running[future]

    async def _guarded(
        self, function: Callable[..., Awaitable[Any]], arguments: Dict[str, Any]
    ) -> Any:
        """The result of a coroutine. asyncio would end its loop, and the worker, for an exit."""
        try:
            return await function(**arguments)
        except KeyboardInterrupt as error:
            if not self._has_signals:
                raise  # It may be from the operator.
            raise RuntimeError("the task raised KeyboardInterrupt") from error
        except SystemExit as error:
            raise RuntimeError(f"the task raised {error!r}") from error

    async def _task(self, servers: AsyncServerSet, job: SetJob) -> Any:
        """The task of a job, and its arguments."""
        raw = self._app.raw_tasks
        if raw:
            tube = self._tubes[0]
            if len(self._tubes) > 1:
                tube = (await servers.stats_job(job))["tube"]
            if tube in raw:
                return raw[tube], raw[tube].raw_arguments(job.body)
        try:
            content = json.loads(job.body)
            task = self._app.tasks[content["task"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise codec.WrongArgument(f"the job names no task of this worker: {error!r}") from None
        return task, task.arguments(content.get("args"))

    # What becomes of a job.

    async def _given_back(
        self, servers: AsyncServerSet, job: SetJob, name: str, seconds: float
    ) -> None:
        await servers.release(job)
        self._tell(Event("released", name, job.server, job.id, seconds))

    async def _bury(self, servers: AsyncServerSet, job: SetJob, reason: str) -> None:
        try:
            await servers.client_of(job).bury_with_reason(job.id, _end_of(reason))
        except Unsupported:
            await servers.bury(job)

    async def _fail(self, servers: AsyncServerSet, job: SetJob, raised: BaseException) -> None:
        lines = traceback.format_exception(type(raised), raised, raised.__traceback__)
        try:
            await servers.fail(job, _end_of("".join(lines)))
        except (Unsupported, OutOfMemory, Unauthorized):
            await self._retry(servers, job)

    async def _retry(self, servers: AsyncServerSet, job: SetJob) -> None:
        """What `fail` does under a policy, by the client."""
        stats = await servers.stats_job(job)
        attempts = stats["reserves"]
        if attempts >= self._max_attempts:
            return await servers.bury(job, stats["pri"])
        delay = min(self._retry_max, self._retry_delay * 2 ** min(attempts - 1, 30))
        await servers.release(job, stats["pri"], delay)

    def _tell(self, event: Event) -> None:
        for observer in self._app.observers:
            try:
                observer(event)
            except Exception:
                log.exception("an observer has failed")


class _Kept:
    """A reserved job that is touched until it ends."""

    def __init__(self, servers: AsyncServerSet, job: SetJob) -> None:
        self.job = job
        self._servers = servers
        self._task: Optional["asyncio.Task[None]"] = None
        self._timer = asyncio.get_running_loop().call_later(TOUCH_AFTER, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._keep())

    async def _keep(self) -> None:
        try:
            ttr = (await self._servers.stats_job(self.job))["ttr"]
            while True:
                await self._servers.touch(self.job)
                await asyncio.sleep(max(1, ttr) / TOUCHES)
        except NotFound:
            log.warning("job %d is no longer reserved by this worker", self.job.id)
        except BsdError as error:
            log.warning("job %d cannot be touched: %s", self.job.id, error)

    def end(self) -> None:
        """It is touched no more."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


def _end_of(text: str) -> bytes:
    """The end of a text, where a traceback says what has happened."""
    return text.encode("utf-8", "replace")[-TEXT_MAX:]
