"""Any bytes from a server: only the documented errors come out, in bounded memory and time.

`BSDQ_SEED` repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import tracemalloc
import unittest
from typing import Any, Callable, List

from harness import PATIENCE
from kit import scripts

import bsdq
from bsdq import commands
from bsdq.wire import INCOMPLETE, LINE_MAX, ReplyReader, Request

SEED = int(os.environ.get("BSDQ_SEED", random.SystemRandom().randrange(1 << 32)))
CASES = int(os.environ.get("BSDQ_CASES", "6000"))

REQUESTS: List[Callable[[], Request[Any]]] = [
    lambda: commands.put(b"x"),
    lambda: commands.put_with(b"x", key="k"),
    lambda: commands.use("t"),
    lambda: commands.ignore("t"),
    lambda: commands.reserve(0),
    lambda: commands.reserve_batch(3, 0),
    lambda: commands.delete(1),
    lambda: commands.delete_batch([1, 2]),
    lambda: commands.release(1),
    lambda: commands.fail(1, b"x"),
    lambda: commands.peek(1),
    lambda: commands.kick(1),
    lambda: commands.clear_tube("t"),
    lambda: commands.list_jobs("t", "ready"),
    lambda: commands.stats(),
    lambda: commands.stats_job(1),
    lambda: commands.stats_schedule("t"),
    lambda: commands.list_tubes(),
    lambda: commands.capabilities(),
]
#: Parts that replies are made of.
PIECES = [
    b"INSERTED", b"EXISTS", b"BURIED", b"RESERVED", b"RESERVED_BATCH", b"JOB", b"FOUND", b"OK",
    b"DELETED", b"DELETED_BATCH", b"RELEASED", b"DEAD_LETTERED", b"KICKED", b"USING", b"WATCHING",
    b"NOT_FOUND", b"TIMED_OUT", b" ", b" ", b" ", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"0",
    b"1", b"3", b"7", b"1001", b"18446744073709551616", b"-1", b"1.5", b"99999999", b"t",
    b"---\n", b"--- []\n", b"- ", b"- 1\n", b"a: 1\n", b'a: "\\u00', b'"\\ud800"', b"next: 0\n",
    b"jobs:\n", b"- id: 1\n", b"  size: 2\n", b":", b"\x00", b"\xff\xfe", b"\xc3",
]  # fmt: skip


class Bytes:
    """A generator of what a server might send."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        #: True replies, to be damaged.
        self.replies = [
            step["reply"].encode()
            for _, script in scripts("wire")
            for step in script["steps"]
            if isinstance(step["reply"], str)
        ]

    def next(self) -> bytes:
        pick = self.random
        kind = pick.randrange(4)
        if kind == 0:
            return bytes(pick.randrange(256) for _ in range(pick.randrange(60)))
        if kind == 1:
            return b"".join(pick.choice(PIECES) for _ in range(pick.randrange(16)))
        reply = bytearray(pick.choice(self.replies) + pick.choice(self.replies))
        for _ in range(pick.randrange(4)):
            if reply:
                at = pick.randrange(len(reply))
                what = pick.randrange(3)
                if what == 0:
                    reply[at] = pick.randrange(256)
                elif what == 1:
                    del reply[at]
                else:
                    reply[at:at] = pick.choice(PIECES)
        return bytes(reply)


class HostileTest(unittest.TestCase):
    """A server that says anything."""

    @classmethod
    def setUpClass(cls) -> None:
        print(f"BSDQ_SEED={SEED}")

    def test_the_reader_takes_any_bytes_in_any_pieces(self) -> None:
        for case in range(CASES):
            seed = SEED + case
            source = Bytes.__new__(Bytes)
            source.random, source.replies = random.Random(seed), self.replies()
            data, request = source.next(), source.random.choice(REQUESTS)()
            with self.subTest(seed=seed, data=data, command=request.word):
                whole = self.results(request, [data])
                at = source.random.randrange(len(data) + 1)
                self.assertEqual(self.results(request, [data[:at], data[at:]]), whole)
                quick = request.kind.quick
                if quick is not None and quick(data) is not INCOMPLETE:
                    self.assertEqual([repr(quick(data))], whole)
                bytewise = [data[at : at + 1] for at in range(len(data))]
                self.assertEqual(self.results(request, bytewise), whole)

    _replies: List[bytes] = []

    def replies(self) -> List[bytes]:
        if not self._replies:
            self._replies.extend(Bytes(0).replies)
        return self._replies

    def results(self, request: Request[Any], pieces: List[bytes]) -> List[str]:
        """All that comes out, as text: the pieces make no difference."""
        reader = ReplyReader(body_max=1 << 20)
        found: List[str] = []
        for piece in pieces:
            reader.feed(piece)
            try:
                while True:
                    result = reader.next(request)
                    if result is INCOMPLETE:
                        break
                    found.append(repr(result))
            except bsdq.ProtocolError:
                return found + ["protocol"]
        return found

    def test_memory_is_bounded_by_what_arrives(self) -> None:
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for data in (
            b"OK 99999999999\r\n",
            b"RESERVED_BATCH 1000\r\nJOB 1 t 67108864\r\n",
            b"x" * 4096,
            b"RESERVED_BATCH 99999999999999999999\r\n",
        ):
            reader = ReplyReader()
            request: Request[Any] = commands.reserve_batch(1)
            if data.startswith(b"OK"):
                request = commands.stats()
            reader.feed(data)
            try:
                self.assertIs(reader.next(request), INCOMPLETE)
            except bsdq.ProtocolError:
                pass
        _, peak = tracemalloc.get_traced_memory()
        self.assertLess(peak, 1 << 20)

    def test_a_line_without_end_is_refused(self) -> None:
        reader = ReplyReader()
        for _ in range(LINE_MAX - 1):
            reader.feed(b"x")
            self.assertIs(reader.next(commands.delete(1)), INCOMPLETE)
        reader.feed(b"x")
        with self.assertRaises(bsdq.ProtocolError):
            reader.next(commands.delete(1))

    def test_clients_survive_a_server_that_says_anything(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        source = Bytes(SEED)
        thread = threading.Thread(target=self.serve, args=(listener, source), daemon=True)
        thread.start()
        settings = {"retry_for": 0, "timeout": 5.0, "connect_timeout": 5.0, "body_max": 1 << 16}

        async def ask() -> None:
            async with bsdq.AsyncClient(address, **settings) as client:  # type: ignore[arg-type]
                for call in (client.put(b"x"), client.reserve_batch(2), client.stats()):
                    try:
                        await call
                    except bsdq.BsdError:
                        pass

        for _ in range(60):
            with bsdq.Client(address, **settings) as client:  # type: ignore[arg-type]
                for call in (lambda: client.put(b"x"), lambda: client.reserve(0), client.stats):
                    try:
                        call()
                    except bsdq.BsdError:
                        pass
            asyncio.run(ask())
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)

    def serve(self, listener: socket.socket, source: Bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    if connection.recv(1 << 16):
                        # The questions of the beginning are answered, or they are not.
                        if source.random.randrange(4):
                            connection.sendall(b"UNKNOWN_COMMAND\r\n")
                            connection.recv(1 << 16)
                        connection.sendall(source.next())
                except OSError:
                    pass


if __name__ == "__main__":
    unittest.main()
