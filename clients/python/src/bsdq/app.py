"""Functions as tasks: a call is put as a job, and a worker runs it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import threading
import typing
import weakref
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Generic,
    List,
    Mapping,
    Optional,
    TypeVar,
    Union,
    cast,
)

from . import codec
from .address import Addresses
from .commands import PRIORITY, TTR, tube_name
from .errors import InvalidArgument
from .model import Put
from .servers import AsyncServerSet, ServerSet

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
else:
    P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Event:
    """What a worker tells its observers, for metrics."""

    #: `started`, `done`, `failed` (it comes again, or was set aside), `retried`, `buried`,
    #: `released` (the worker stops) or `lost` (the reservation had ended: it comes again).
    kind: str
    task: str
    server: str
    job: int
    #: Seconds that the handler took.
    seconds: float = 0.0
    error: Optional[BaseException] = None


class Retry(Exception):
    """Raised by a task: not now, but after this number of seconds."""

    def __init__(self, delay: int = 0) -> None:
        super().__init__(f"again in {delay} s")
        self.delay = delay


class Bury(Exception):
    """Raised by a task: the job is set aside, for this reason."""


class Task(Generic[P, R]):
    """A function whose calls can be put as jobs. It can be called as before."""

    def __init__(
        self,
        app: "App",
        function: Callable[P, R],
        name: str,
        options: Dict[str, Any],
        is_raw: bool,
    ) -> None:
        self.app = app
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.is_raw = is_raw
        self._options = options
        self._signature = inspect.signature(function)
        for it in self._signature.parameters.values():
            if it.kind in (it.VAR_POSITIONAL, it.VAR_KEYWORD, it.POSITIONAL_ONLY):
                raise InvalidArgument(f"{name}: {it} cannot be an argument of a task")
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)

    @property
    def tube(self) -> str:
        """The tube that its jobs are put into."""
        return str(self._options["tube"])

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def options(self, **options: Any) -> "Task[P, R]":
        """The same task, put otherwise: `pri`, `delay`, `ttr`, `tube`, and the attributes of
        `put_with`: `at`, `key`, `unique`, `conflict`, `group`."""
        return Task(self.app, self.function, self.name, {**self._options, **options}, self.is_raw)

    def put(self, *args: P.args, **kwargs: P.kwargs) -> Put:
        """Puts a job that calls it."""
        return self.app.servers().put(body=self.body(*args, **kwargs), **self._options)

    async def aput(self, *args: P.args, **kwargs: P.kwargs) -> Put:
        """The same for asyncio."""
        servers = self.app.async_servers()
        return await servers.put(body=self.body(*args, **kwargs), **self._options)

    def body(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """The body of a job that calls it. The arguments are checked as a worker will do."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise codec.WrongArgument(f"{self.name}: {error}") from None
        if self.is_raw:
            (body,) = bound.values()
            return bytes(body)
        body = codec.dumps(self.name, bound)
        self.arguments(json.loads(body)["args"])
        return bytes(body)

    def raw_arguments(self, body: bytes) -> Dict[str, Any]:
        """The one argument of a raw task."""
        (name,) = self._signature.parameters
        return {name: body}

    def arguments(self, args: Any) -> Dict[str, Any]:
        """The arguments of a job, checked."""
        if not isinstance(args, dict):
            raise codec.WrongArgument(f"{self.name}: arguments have names")
        hints = typing.get_type_hints(self.function)
        try:
            self._signature.bind(**args)
        except TypeError as error:
            raise codec.WrongArgument(f"{self.name}: {error}") from None
        return {
            name: codec.decode(it, hints.get(name, Any), f"{self.name}: {name}")
            for name, it in args.items()
        }


AnyTask = Task[Any, Any]


class App:
    """Tasks, and the servers that hold their jobs: an address, or a map of names and addresses. The
    other arguments are those of `Client`; `pins` says which server has which tube."""

    def __init__(
        self,
        servers: Union[Addresses, Mapping[str, Addresses]] = "127.0.0.1:11300",
        *,
        pins: Optional[Mapping[str, str]] = None,
        **settings: Any,
    ) -> None:
        is_map = isinstance(servers, Mapping)
        self._servers = (
            dict(cast("Mapping[str, Addresses]", servers))
            if is_map
            else {"bsd": cast(Addresses, servers)}
        )
        self._pins = pins
        self._settings = settings
        self.tasks: Dict[str, AnyTask] = {}
        #: Tasks that take the body as it is, by tube.
        self.raw_tasks: Dict[str, AnyTask] = {}
        self.observers: List[Callable[[Event], None]] = []
        self._lock = threading.Lock()
        self._set: Optional[ServerSet] = None
        #: The process that has made it: threads do not outlive a fork.
        self._pid = 0
        self._async_sets: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncServerSet]" = (
            weakref.WeakKeyDictionary()
        )

    def task(
        self,
        *,
        tube: str = "default",
        name: Optional[str] = None,
        pri: int = PRIORITY,
        ttr: int = TTR,
        raw: bool = False,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Makes a task of a function. `raw`: it takes the body of each job of the tube as bytes,
        whatever that is."""
        tube_name(tube)

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            own = name or f"{function.__module__}.{getattr(function, '__qualname__', '')}"
            task = Task(self, function, own, {"tube": tube, "pri": pri, "ttr": ttr}, raw)
            if own in self.tasks or (raw and tube in self.raw_tasks):
                raise InvalidArgument(f"there is a task {own}, or another raw one for its tube")
            self.tasks[own] = task
            if raw:
                self.raw_tasks[tube] = task
            return task

        return decorate

    def observe(self, observer: Callable[[Event], None]) -> Callable[[Event], None]:
        """Has the worker call this for each event; may be used as a decorator."""
        self.observers.append(observer)
        return observer

    def tubes(self) -> List[str]:
        """The tubes of all tasks."""
        return sorted({task.tube for task in self.tasks.values()})

    def servers(self) -> ServerSet:
        """The servers, for blocking calls."""
        with self._lock:
            if self._set is None or self._pid != os.getpid():
                self._set = ServerSet(self._servers, pins=self._pins, **self._settings)
                self._pid = os.getpid()
            return self._set

    def new_async_servers(self, **settings: Any) -> AsyncServerSet:
        """New connections to the servers, for asyncio."""
        return AsyncServerSet(self._servers, pins=self._pins, **{**self._settings, **settings})

    def async_servers(self) -> AsyncServerSet:
        """The servers, for tasks of the event loop that runs."""
        loop = asyncio.get_running_loop()
        found = self._async_sets.get(loop)
        if found is None:
            found = self._async_sets[loop] = self.new_async_servers()
        return found

    def close(self) -> None:
        """Ends the connections that `put` has made."""
        with self._lock:
            if self._set is not None and self._pid == os.getpid():
                self._set.close()
            self._set = None
