"""The scripts of the kit against servers, and with a server that the test plays."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import unittest
from typing import Any, Callable, ClassVar, Dict, List, Optional, Tuple

from harness import KIT, PATIENCE, Server, beanstalkd, drain, skip
from kit import AsyncPeer, Runner, Script, SyncPeer, arguments, fill, matches
from kit import result, scripts, words_of

import bsdq


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


class KitTest(unittest.TestCase):
    """Scripts against servers."""

    loop: ClassVar[Loop]

    @classmethod
    def setUpClass(cls) -> None:
        cls.loop = Loop()
        cls.addClassCleanup(cls.loop.end)

    def run_on(self, server: Server, profile: str, brief: bool = False) -> None:
        """All scripts of this kind of server, with both clients; `brief`: with one, in turn."""
        skipped: List[str] = []
        count = 0
        words = words_of(server)
        for name, script in scripts("scripts"):
            if script.get("server", "plain") != profile:
                continue
            if not set(script.get("needs", [])) <= set(words):
                skipped.append(name)
                continue
            peers = self.peers(server)
            # A server that is built for tests takes its time over TLS.
            for peer in peers[count % 2 :][:1] if brief else peers:
                with self.subTest(script=name, server=profile):
                    Runner(script, peer).run()
                    count += 1
        said = f"; skipped, because the server has not what they need: {skipped}" if skipped else ""
        print(f"{self.id().split('.')[-1]}: {count} runs of scripts{said}")
        self.assertGreater(count, 0)

    def peers(self, server: Server) -> List[Callable[[], Any]]:
        def settings(more: Dict[str, Any]) -> Dict[str, Any]:
            return {**server.settings(), "retry_for": 2.0, **more}

        def sync(**more: Any) -> bsdq.Client:
            return bsdq.Client(server.address, **settings(more))

        def aio(**more: Any) -> bsdq.AsyncClient:
            return bsdq.AsyncClient(server.address, **settings(more))

        return [lambda: SyncPeer(sync), lambda: AsyncPeer(aio, self.loop.loop)]

    def server(self, *args: Any, **more: Any) -> Server:
        server = Server(*args, **more)
        self.addCleanup(server.end)
        return server

    def old(self) -> str:
        program = beanstalkd()
        return program if program is not None else str(skip("there is no beanstalkd"))

    def test_bsd(self) -> None:
        self.run_on(self.server(), "plain")

    def test_bsd_over_tls(self) -> None:
        self.run_on(self.server(tls=True), "plain", brief=True)

    def test_bsd_with_tokens(self) -> None:
        server = self.server(tokens=True)
        self.run_on(server, "tokens")
        self.run_on(server, "plain", brief=True)

    def test_bsd_with_small_jobs(self) -> None:
        self.run_on(self.server(args=["-z", "100"]), "small")

    def test_bsd_that_drains(self) -> None:
        server = self.server()
        drain(server)
        self.run_on(server, "draining")

    def test_bsd_as_beanstalkd(self) -> None:
        server = self.server(args=["--protocol", "beanstalkd"])
        self.run_on(server, "plain")
        self.run_on(server, "old")

    def test_beanstalkd(self) -> None:
        server = self.server(self.old())
        self.run_on(server, "plain")
        self.run_on(server, "old")

    def test_beanstalkd_with_small_jobs(self) -> None:
        self.run_on(self.server(self.old(), args=["-z", "100"]), "small")

    def test_beanstalkd_that_drains(self) -> None:
        server = self.server(self.old())
        drain(server)
        self.run_on(server, "draining")


class Played:
    """The server of a wire script: one thread that reads, and answers what is expected."""

    def __init__(self, script: Script) -> None:
        self._words = script["words"]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connection: Optional[socket.socket] = None
        self._lock = threading.Condition()
        self._expected: Optional[Tuple[int, bytes, bool]] = None
        self._got = b""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def expect(self, sends: bytes, reply: bytes, closes: bool) -> None:
        """Bytes of this length are answered so."""
        with self._lock:
            self._got = b""
            self._expected = (len(sends), reply, closes) if sends else None

    def got(self) -> bytes:
        """What has arrived since then."""
        with self._lock:
            return self._got

    def _run(self) -> None:
        while True:
            try:
                self._connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                self._serve(self._connection)
            except OSError:
                pass
            finally:
                self._connection.close()

    def _serve(self, connection: socket.socket) -> None:
        while True:
            data = connection.recv(1 << 20)
            if not data:
                return
            line = b"capabilities\r\n"
            while line in data:
                data = data.replace(line, b"", 1)
                connection.sendall(self._capabilities())
            with self._lock:
                self._got += data
                if self._expected is None or len(self._got) < self._expected[0]:
                    continue
                _, reply, closes = self._expected
                self._expected = None
            connection.sendall(reply)
            if closes:
                return

    def _capabilities(self) -> bytes:
        if self._words is None:
            return b"UNKNOWN_COMMAND\r\n"
        lines = "".join(f"- {word}\n" for word in self._words)
        text = ("---\n" + lines if lines else "--- []\n").encode()
        return b"OK %d\r\n%b\r\n" % (len(text), text)

    def end(self) -> None:
        # Only this wakes a thread in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
        self._thread.join(PATIENCE)


class WireTest(unittest.TestCase):
    """Exact bytes, and answers that a healthy server never gives."""

    def as_bytes(self, value: Any) -> bytes:
        filled = fill(value, {})
        return filled.encode() if isinstance(filled, str) else bytes(filled)

    def play(self, script: Script, make: Callable[[str], Any]) -> None:
        played = Played(script)
        peer = make(played.address)
        try:
            for number, step in enumerate(script["steps"], 1):
                with self.subTest(step=number, what=json.dumps(step)):
                    self.step(played, peer, step)
        finally:
            peer.close()
            played.end()

    def step(self, played: Played, peer: Any, step: Dict[str, Any]) -> None:
        sends = self.as_bytes(step["sends"])
        call = step["call"]
        args = arguments(call, step.get("args", {}), {})
        played.expect(sends, self.as_bytes(step["reply"]), step.get("closes", False))
        try:
            found = result(call, peer.call(call, args), args)
        except bsdq.BsdError as error:
            allowed = step.get("error")
            allowed = [allowed] if isinstance(allowed, str) else allowed or []
            self.assertIn(error.kind, allowed, str(error))
        else:
            self.assertNotIn("error", step, found)
            expected = fill(step.get("expect", {}), {})
            self.assertTrue(matches(expected, found), f"{found!r} is not {expected!r}")
        self.assertEqual(played.got(), sends)

    def test_the_exact_bytes(self) -> None:
        loop = Loop()
        self.addCleanup(loop.end)
        for name, script in scripts("wire"):
            timeout = min(step.get("timeout", 10.0) for step in script["steps"])

            def sync(address: str) -> SyncPeer:
                return SyncPeer(lambda: bsdq.Client(address, retry_for=0, timeout=timeout))

            def aio(address: str) -> AsyncPeer:
                return AsyncPeer(
                    lambda: bsdq.AsyncClient(address, retry_for=0, timeout=timeout), loop.loop
                )

            for make in (sync, aio):
                with self.subTest(script=name):
                    self.play(script, make)


if __name__ == "__main__":
    unittest.main()
