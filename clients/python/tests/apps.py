"""Tasks of the tests of the worker. Their server, and where they note what they do, come from the
environment."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Dict, List, Optional

from bsdq import App, Bury, Event, Retry

NOTES = os.environ["BSDQ_NOTES"]
ADDRESS = os.environ["BSDQ_ADDRESS"]

app = App(ADDRESS, retry_for=10.0)


def note(*words: object) -> None:
    """Adds a line to the notes, in one write."""
    with open(NOTES, "ab", buffering=0) as file:
        file.write((" ".join(map(str, words)) + "\n").encode())


@app.observe
def seen(event: Event) -> None:
    note("event", event.kind, event.job)


@app.task(tube="sync", ttr=2)
def add(number: int, names: Optional[List[str]] = None) -> None:
    note("add", number, *(names or []))


@app.task(tube="async")
async def later(seconds: float, mark: str) -> None:
    note("begin", mark)
    await asyncio.sleep(seconds)
    note("end", mark)


@app.task(tube="async")
async def exits(kind: str) -> None:
    note("exits", kind)
    if kind == "interrupt":
        raise KeyboardInterrupt
    sys.exit(kind)


@app.task(tube="sync", ttr=1)
def sleeps(seconds: float, mark: str) -> None:
    note("begin", mark)
    time.sleep(seconds)
    note("end", mark)


@app.task(tube="sync")
def fails(kind: str, options: Dict[str, int]) -> None:
    note("fails", kind)
    if kind == "retry":
        raise Retry(options["delay"])
    if kind == "bury":
        raise Bury("not ours")
    raise RuntimeError("no route to host")


@app.task(tube="raw", raw=True)
def raw(body: bytes) -> None:
    note("raw", body.hex())
