"""Runs scripts of the kit (`clients/kit`) with either client."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple

from harness import KIT, TOKENS, Server

import bsdq

#: A step takes no more than this, in seconds.
STEP = 10.0
#: Numbers of scripts that were run.
COUNT = itertools.count()
Vars = Dict[str, Any]
Script = Dict[str, Any]


def scripts(folder: str) -> List[Tuple[str, Script]]:
    """All scripts of a folder, by name."""
    files = sorted((KIT / folder).glob("*.json"))
    assert files, f"there are no scripts in {KIT / folder}"
    return [(file.stem, json.loads(file.read_text("utf-8"))) for file in files]


def fill(value: Any, variables: Vars) -> Any:
    """The value with its variables, and bytes in place of what stands for them."""
    if isinstance(value, str):
        whole = re.fullmatch(r"\$\{([a-z_0-9]+)\}", value)
        if whole:
            return variables[whole.group(1)]
        return re.sub(r"\$\{([a-z_0-9]+)\}", lambda it: str(variables[it.group(1)]), value)
    if isinstance(value, list):
        return [fill(it, variables) for it in value]
    if isinstance(value, dict):
        if set(value) == {"hex"}:
            return bytes.fromhex(value["hex"])
        if set(value) == {"repeat", "times"}:
            return (value["repeat"] * value["times"]).encode()
        return {key: fill(it, variables) for key, it in value.items()}
    return value


def matches(expected: Any, found: Any) -> bool:
    """Whether a result is as the script has it."""
    if isinstance(found, bytes):
        return found == (expected.encode() if isinstance(expected, str) else expected)
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(matches(one, other) for one, other in zip(expected, found))
        )
    if not isinstance(expected, dict):
        return type(expected) is type(found) and bool(expected == found)
    if len(expected) == 1:
        ((word, value),) = expected.items()
        if word == "any":
            return found is not None
        if word in ("at_least", "at_most"):
            if not isinstance(found, (int, float)):
                return False
            return bool(found >= value if word == "at_least" else found <= value)
        if word == "length":
            return bool(len(found) == value)
        if word == "has":
            return any(matches(value, it) for it in found)
        if word == "has_not":
            return not any(matches(value, it) for it in found)
    if not isinstance(found, dict):
        return False
    return all(
        found.get(key) is None if it == {"absent": True} else matches(it, found.get(key))
        for key, it in expected.items()
    )


def result(call: str, found: Any, args: Dict[str, Any]) -> Dict[str, Any]:
    """The result of a call as the kit has it."""
    if isinstance(found, bsdq.Job):
        return {"id": found.id, "body": found.body}
    if isinstance(found, (bsdq.Put, bsdq.Failed)):
        return dict(found._asdict())
    if isinstance(found, bsdq.Batch):
        return {"count": found.done, "missing": list(found.missing)}
    if isinstance(found, bsdq.Page):
        return {"next": found.next, "jobs": [dict(it._asdict()) for it in found.jobs]}
    if isinstance(found, dict):
        return dict(found)
    if call == "put_many":
        return {
            "results": [
                {"id": it.id} if it.error is None else {"error": it.error.kind} for it in found
            ]
        }
    names = {
        "auth": "accepted",
        "capabilities": "words",
        "put": "id",
        "use": "tube",
        "list_tube_used": "tube",
        "watch": "count",
        "ignore": "count",
        "kick": "count",
        "clear_tube": "count",
        "list_tubes": "tubes",
        "list_tubes_watched": "tubes",
    }
    if call == "reserve_batch":
        return {"jobs": [dict(job._asdict()) for job in found]}
    return {names[call]: found} if call in names else {}


#: Arguments that the client has no default for, or another one.
DEFAULTS: Dict[str, Dict[str, Any]] = {
    "release": {"pri": 65536},
    "bury": {"pri": 65536},
    "bury_with_reason": {"pri": 65536},
}


#: Arguments that have other names in Python.
NAMES = {"id": "job", "ids": "jobs"}


def arguments(call: str, args: Dict[str, Any], variables: Vars) -> Dict[str, Any]:
    """The arguments of a call, as the client has them."""
    filled = {**DEFAULTS.get(call, {}), **fill(args, variables)}
    return {NAMES.get(name, name): value for name, value in filled.items()}


class SyncPeer:
    """A connection of a script, with blocking calls."""

    def __init__(self, make: Callable[..., bsdq.Client]) -> None:
        self._make = make
        self._client: Optional[bsdq.Client] = None

    @property
    def client(self) -> bsdq.Client:
        if self._client is None:
            self._client = self._make()
        return self._client

    def call(self, call: str, args: Dict[str, Any]) -> Any:
        if call == "open":
            self.close()
            self._client = self._make(**args)
            return self._client.connect()
        if call == "close":
            return self.client.disconnect()
        return getattr(self.client, call)(**args)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class AsyncPeer:
    """The same with an asyncio client, on an event loop in a thread."""

    def __init__(
        self, make: Callable[..., bsdq.AsyncClient], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._make = make
        self._loop = loop
        self._client: Optional[bsdq.AsyncClient] = None
        self._waits: Optional["asyncio.Task[Any]"] = None

    def _run(self, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(STEP)

    async def _do(self, call: str, args: Dict[str, Any]) -> Any:
        if call == "open":
            if self._client is not None:
                await self._client.close()
            self._client = self._make(**args)
            return await self._client.connect()
        if self._client is None:
            self._client = self._make()
        if call == "close":
            return await self._client.disconnect()
        if call == "abort":
            if self._waits is not None:
                self._waits.cancel()
            return None
        work = getattr(self._client, call)(**args)
        if not call.startswith("reserve"):
            return await work
        self._waits = asyncio.ensure_future(work)
        try:
            return await self._waits
        except asyncio.CancelledError:
            raise bsdq.TimedOut("reserve") from None
        finally:
            self._waits = None

    def call(self, call: str, args: Dict[str, Any]) -> Any:
        return self._run(self._do(call, args))

    def close(self) -> None:
        if self._client is not None:
            self._run(self._client.close())


class Spawned:
    """A call of a script that runs beside it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._found: Any = None
        self._error: Optional[BaseException] = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error

    def join(self) -> Any:
        self._thread.join(STEP)
        assert not self._thread.is_alive(), "a call does not end"
        if self._error is not None:
            raise self._error
        return self._found


class Runner:
    """Runs one script."""

    def __init__(self, script: Script, peer: Callable[[], Any]) -> None:
        self._script = script
        self._peer = peer
        self._peers: Dict[str, Any] = {}
        self._spawned: Dict[str, Tuple[str, Spawned]] = {}
        self._vars: Vars = {"tube": f"kit-{os.getpid()}-{next(COUNT)}", "now": int(time.time())}
        self._vars.update((f"token_{name}", f"kit-{name}") for name in TOKENS)

    def run(self) -> None:
        try:
            for number, step in enumerate(self._script["steps"], 1):
                try:
                    self.step(step)
                except BaseException as error:
                    raise AssertionError(f"step {number}, {json.dumps(step)}: {error!r}") from error
        finally:
            for peer in self._peers.values():
                peer.close()

    def step(self, step: Dict[str, Any]) -> None:
        end = time.monotonic() + STEP
        while True:
            found = self.outcome(step)
            if "until" not in step or matches(fill(step["until"], self._vars), found):
                return
            assert time.monotonic() < end, f"it stays {found!r}"
            time.sleep(0.01)

    def outcome(self, step: Dict[str, Any]) -> Any:
        if "join" in step:
            call, spawned = self._spawned.pop(step["join"])
            return self.judge(step, call, {}, spawned.join)
        call = step["call"]
        args = arguments(call, step.get("args", {}), self._vars)
        name = step.get("client", "main")
        if name not in self._peers:
            self._peers[name] = self._peer()
        peer = self._peers[name]

        def work() -> Any:
            return peer.call(call, args)

        if "spawn" in step:
            self._spawned[step["spawn"]] = (call, Spawned(work))
            return None
        return self.judge(step, call, args, work)

    def judge(
        self, step: Dict[str, Any], call: str, args: Dict[str, Any], work: Callable[[], Any]
    ) -> Any:
        error = step.get("error", [])
        allowed = [error] if isinstance(error, str) else error
        try:
            found = result(call, work(), args)
        except bsdq.BsdError as refused:
            if "until" in step:
                return None
            assert refused.kind in allowed, f"{refused.kind}: {refused}"
            return None
        assert not allowed, f"{found!r}, but {allowed} is expected"
        if "expect" in step:
            expected = fill(step["expect"], self._vars)
            assert matches(expected, found), f"{found!r} is not {expected!r}"
        for key, variable in step.get("save", {}).items():
            self._vars[variable] = found[key]
        return found


def words_of(server: Server) -> List[str]:
    """The capabilities of a server."""
    with server.client() as client:
        return client.capabilities()
