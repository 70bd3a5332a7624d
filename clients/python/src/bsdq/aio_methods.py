"""The calls of an asyncio client: made of `methods.py` by `make_aio.py`, not to be edited."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Optional, Sequence, TypeVar, Union

from . import commands, steps
from .commands import DELAY, PRIORITY, TTR, Bytes, JobId
from .model import (
    Batch,
    Failed,
    Job,
    JobDetails,
    JobStats,
    Page,
    Put,
    PutResult,
    ScheduleStats,
    Stats,
    TubeStats,
)
from .steps import Call
from .wire import Request

T = TypeVar("T")


class AsyncMethods:
    """What a client can do. `job` is a `Job` or an id."""

    async def _call(self, call: Call[T]) -> T:
        raise NotImplementedError

    async def _exchange(self, requests: Sequence[Request[Any]]) -> List[Any]:
        raise NotImplementedError

    async def pipeline(self, requests: Sequence[Request[Any]]) -> List[Any]:
        """Sends requests of `bsdq.commands` without waiting for each answer. Returns the results,
        in their order; one that the server refused is a `Refused` among them."""
        return await self._exchange(requests)

    # Producers.

    async def put(
        self,
        body: Bytes,
        pri: int = PRIORITY,
        delay: int = DELAY,
        ttr: int = TTR,
    ) -> int:
        """Puts a job into the used tube; returns its id."""
        return await self._call(commands.put(body, pri, delay, ttr))

    async def put_many(
        self,
        bodies: Iterable[Bytes],
        pri: int = PRIORITY,
        delay: int = DELAY,
        ttr: int = TTR,
    ) -> List[PutResult]:
        """Puts many jobs, pipelined. If the connection is lost, `ConnectionLost.results` has the
        ids of those that were answered."""
        return await self._call(steps.put_many(bodies, pri, delay, ttr))

    async def put_with(
        self,
        body: Bytes,
        pri: int = PRIORITY,
        delay: int = DELAY,
        ttr: int = TTR,
        *,
        tube: Optional[str] = None,
        at: Optional[int] = None,
        key: Optional[str] = None,
        unique: Optional[str] = None,
        conflict: Optional[str] = None,
        group: Optional[str] = None,
    ) -> Put:
        """Puts a job with attributes. On beanstalkd `tube` and `at` work, and the others are
        `Unsupported`."""
        return await self._call(
            steps.put_with(
                body,
                pri,
                delay,
                ttr,
                tube=tube,
                at=at,
                key=key,
                unique=unique,
                conflict=conflict,
                group=group,
            )
        )

    async def use(self, tube: str) -> str:
        """Puts go into this tube from now on."""
        return await self._call(commands.use(tube))

    async def list_tube_used(self) -> str:
        """The tube that puts go into."""
        return await self._call(commands.list_tube_used())

    # Workers.

    async def watch(self, tube: str) -> int:
        """Reserves take jobs of this tube, too; returns the number of watched tubes."""
        return await self._call(commands.watch(tube))

    async def ignore(self, tube: str) -> int:
        """Reserves take no more jobs of this tube; returns the number of watched tubes."""
        return await self._call(commands.ignore(tube))

    async def list_tubes_watched(self) -> List[str]:
        """The tubes that jobs are reserved from."""
        return await self._call(commands.list_tubes_watched())

    async def reserve(self, timeout: Optional[int] = None) -> Job:
        """Waits for a job, without end or for this number of seconds: then it is `TimedOut`."""
        return await self._call(commands.reserve(timeout))

    async def reserve_job(self, job: JobId) -> Job:
        """Reserves this job, whatever its state, unless it is reserved."""
        return await self._call(commands.reserve_job(job))

    async def reserve_batch(self, max: int, timeout: int = 0) -> List[Job]:
        """Waits for a job, and takes up to `max` that are ready. On beanstalkd: single reserves."""
        return await self._call(steps.reserve_batch(max, timeout))

    async def delete(self, job: JobId) -> None:
        """Deletes a job: it is done."""
        return await self._call(commands.delete(job))

    async def release(self, job: JobId, pri: Optional[int] = None, delay: int = DELAY) -> None:
        """Gives a job back. Without `pri` it keeps its priority, which takes a `stats-job`."""
        if pri is None:
            return await self._call(steps.release(job, delay))
        return await self._call(commands.release(job, pri, delay))

    async def bury(self, job: JobId, pri: Optional[int] = None) -> None:
        """Sets a job aside. Without `pri` it keeps its priority, which takes a `stats-job`."""
        if pri is None:
            return await self._call(steps.bury(job))
        return await self._call(commands.bury(job, pri))

    async def touch(self, job: JobId) -> None:
        """Has the time to run of a job begin again."""
        return await self._call(commands.touch(job))

    async def fail(self, job: JobId, text: Bytes = b"") -> Failed:
        """Says that a job could not be done, and why, in 4096 bytes at most. What becomes of it is
        up to the policy of its tube."""
        return await self._call(commands.fail(job, text))

    async def bury_with_reason(self, job: JobId, text: Bytes, pri: Optional[int] = None) -> None:
        """Sets a job aside, and says why. Without `pri` it keeps its priority."""
        if pri is None:
            return await self._call(steps.bury_with_reason(job, text))
        return await self._call(commands.bury_with_reason(job, text, pri))

    async def delete_batch(self, jobs: Iterable[JobId]) -> Batch:
        """Deletes up to 1,000 jobs in one frame. On beanstalkd: single deletes, pipelined."""
        return await self._call(steps.delete_batch(jobs))

    async def touch_batch(self, jobs: Iterable[JobId]) -> Batch:
        """Touches up to 1,000 jobs. On beanstalkd: single touches, pipelined."""
        return await self._call(steps.touch_batch(jobs))

    async def release_batch(
        self, jobs: Iterable[JobId], pri: int = PRIORITY, delay: int = DELAY
    ) -> Batch:
        """Gives up to 1,000 jobs back. On beanstalkd: single releases, pipelined."""
        return await self._call(steps.release_batch(jobs, pri, delay))

    # Everyone.

    async def peek(self, job: JobId) -> Job:
        """Looks at a job."""
        return await self._call(commands.peek(job))

    async def peek_ready(self) -> Job:
        """Looks at the next ready job of the used tube."""
        return await self._call(commands.peek_ready())

    async def peek_delayed(self) -> Job:
        """Looks at the delayed job of the used tube that is ready first."""
        return await self._call(commands.peek_delayed())

    async def peek_buried(self) -> Job:
        """Looks at the first buried job of the used tube."""
        return await self._call(commands.peek_buried())

    async def kick(self, bound: int) -> int:
        """Makes up to `bound` buried jobs of the used tube ready, or else delayed ones."""
        return await self._call(commands.kick(bound))

    async def kick_job(self, job: JobId) -> None:
        """Makes a buried or delayed job ready."""
        return await self._call(commands.kick_job(job))

    async def pause_tube(self, tube: str, delay: int) -> None:
        """Has no job of the tube reserved for this number of seconds."""
        return await self._call(commands.pause_tube(tube, delay))

    async def move_job(self, job: JobId, tube: str) -> None:
        """Moves a job to another tube."""
        return await self._call(commands.move_job(job, tube))

    async def clear_tube(self, tube: str, state: str = "all") -> int:
        """Deletes the jobs of a tube that are `ready`, `delayed`, `buried`, or `all` of these."""
        return await self._call(commands.clear_tube(tube, state))

    async def list_jobs(self, tube: str, state: str, cursor: str = "0", limit: int = 100) -> Page:
        """A page of ids and sizes of jobs that are `ready`, `delayed`, `reserved` or `buried`."""
        return await self._call(commands.list_jobs(tube, state, cursor, limit))

    async def list_tubes(self) -> List[str]:
        """The names of all tubes."""
        return await self._call(commands.list_tubes())

    async def stats(self) -> Stats:
        """Figures of the server."""
        return await self._call(commands.stats())

    async def stats_tube(self, tube: str) -> TubeStats:
        """Figures of a tube."""
        return await self._call(commands.stats_tube(tube))

    async def stats_job(self, job: JobId) -> JobStats:
        """Figures of a job."""
        return await self._call(commands.stats_job(job))

    async def stats_job_extended(self, job: JobId) -> JobDetails:
        """What else is known of a job: deliveries, reason, text, key and so on."""
        return await self._call(commands.stats_job_extended(job))

    # The server.

    async def auth(self, token: str) -> bool:
        """Shows a token, also on later connections. False: the server asks for none."""
        return await self._call(steps.auth(token))

    async def capabilities(self) -> List[str]:
        """The extended commands that the server has, as it has answered when the connection was
        made. beanstalkd has none."""
        return await self._call(steps.capabilities())

    async def set_policy(self, tubes: str, values: Mapping[str, Union[str, int, float]]) -> None:
        """Sets the policy of a tube or a pattern of tubes, as a whole."""
        return await self._call(commands.set_policy(tubes, values))

    async def stats_policy(self, tube: str) -> Stats:
        """The policy of a tube, and what it has done."""
        return await self._call(commands.stats_policy(tube))

    async def schedule_set(
        self,
        name: str,
        body: Bytes,
        cron: str,
        tube: str,
        values: Optional[Mapping[str, Union[str, int]]] = None,
    ) -> None:
        """Sets a schedule as a whole. `values` are `tz`, `pri`, `ttr`, `key`, `missed`, and
        `paused`."""
        return await self._call(commands.schedule_set(name, body, cron, tube, values))

    async def schedule_delete(self, name: str) -> None:
        """Removes a schedule."""
        return await self._call(commands.schedule_delete(name))

    async def stats_schedule(self, name: str) -> ScheduleStats:
        """A schedule, and when it fires next."""
        return await self._call(commands.stats_schedule(name))
