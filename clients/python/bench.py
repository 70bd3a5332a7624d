"""Throughput beside greenstalk, against one server, in turns: medians of rounds.

    python bench.py [--server PROGRAM] [--rounds N] [--jobs N]

Single calls are put, reserve, delete, one after the other. Batches are pipelined puts,
`reserve_batch` and `delete_batch` of 100 jobs; greenstalk has single calls alone for them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "src"), str(HERE / "tests")]

import greenstalk  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: E402

import bsdq  # noqa: E402
from harness import Server  # noqa: E402

BATCH = 100
BODY = "x" * 100


class Rate:
    """Calls a second, by the clock on the wall and by the time of this process."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._wall, self._own = time.perf_counter(), time.process_time()

    def end(self) -> "tuple[float, float]":
        wall, own = time.perf_counter() - self._wall, time.process_time() - self._own
        return self._calls / wall, self._calls / own


def single(client: Any, jobs: int) -> "tuple[float, float]":
    """Single calls of either client."""
    rate = Rate(3 * jobs)
    for _ in range(jobs):
        client.put(BODY)
        client.delete(client.reserve(0))
    return rate.end()


def batches(client: bsdq.Client, jobs: int) -> "tuple[float, float]":
    """The same in batches."""
    rate = Rate(3 * jobs)
    for _ in range(0, jobs, BATCH):
        client.put_many([BODY] * BATCH)
        client.delete_batch(client.reserve_batch(BATCH))
    return rate.end()


async def tasks(address: str, jobs: int) -> "tuple[float, float]":
    """Puts of 100 tasks that share an asyncio client, and the rest in batches."""
    async with bsdq.AsyncClient(address) as client:
        await client.use("tasks")
        await client.watch("tasks")
        rate = Rate(3 * jobs)
        for _ in range(0, jobs, BATCH):
            await asyncio.gather(*(client.put(BODY) for _ in range(BATCH)))
            await client.delete_batch(await client.reserve_batch(BATCH))
        return rate.end()


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2000)
    args = parser.parse_args()
    server = Server(args.server) if args.server else Server()
    try:
        old = greenstalk.Client(("127.0.0.1", server.port))
        new = server.client()
        runs: Dict[str, Callable[[], "tuple[float, float]"]] = {
            "greenstalk": lambda: single(old, args.jobs),
            "bsdq, single calls": lambda: single(new, args.jobs),
            "bsdq, batches": lambda: batches(new, args.jobs),
            "bsdq, 100 tasks": lambda: asyncio.run(tasks(server.address, args.jobs)),
        }
        found: Dict[str, List["tuple[float, float]"]] = {name: [] for name in runs}
        for _ in range(args.rounds):
            for name, run in runs.items():
                found[name].append(run())
        print(f"{args.rounds} rounds of {args.jobs} jobs; medians of calls a second, and ratios")
        for name, rates in found.items():
            pairs = list(zip(rates, found["greenstalk"]))
            wall = statistics.median(rate[0] for rate in rates)
            times = statistics.median(rate[0] / base[0] for rate, base in pairs)
            own = statistics.median(rate[1] / base[1] for rate, base in pairs)
            print(f"{name:20} {wall:8.0f}/s  {times:5.2f} x; by processor time {own:5.2f} x")
    finally:
        server.end()


if __name__ == "__main__":
    main()
