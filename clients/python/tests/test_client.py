"""Connections that end, what is sent once more, threads, tasks and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import sys
import tempfile
import threading
import time
import unittest

from concurrent.futures import Future
from typing import Any, Callable, List, Optional
from unittest import mock

from harness import HERE, HOST, PATIENCE, SOURCE, Server, certificates, free_port, until

import bsdq
from bsdq import commands
from bsdq.address import Address, Backoff, parse, parse_all
from bsdq import link as link_of
from bsdq.documents import mapping

sys.path.insert(0, str(HERE.parent))
import make_aio  # noqa: E402


class PartsTest(unittest.TestCase):
    """Parts that need no server."""

    def test_the_methods_for_asyncio_are_made_of_the_others(self) -> None:
        source = (SOURCE / "bsdq/methods.py").read_text()
        made = (SOURCE / "bsdq/aio_methods.py").read_text()
        self.assertEqual(made, make_aio.made(source), "run make_aio.py")

    def test_each_method_of_a_client_is_one_of_the_other(self) -> None:
        def names(of: type) -> "set[str]":
            return {name for name in vars(of) if not name.startswith("_")}

        self.assertEqual(names(bsdq.Client.__mro__[1]), names(bsdq.AsyncClient.__mro__[1]))
        self.assertGreater(len(names(bsdq.Client.__mro__[1])), 40)

    def test_addresses(self) -> None:
        for text, address in (
            ("queue", Address("queue")),
            ("queue:1", Address("queue", 1)),
            ("tls:10.0.0.1:11301", Address("10.0.0.1", 11301, True)),
            ("[::1]:7", Address("::1", 7)),
            ("[::1]", Address("::1")),
            ("unix:/run/bsd", Address("", path="/run/bsd")),
        ):
            self.assertEqual(parse(text), address)
        self.assertEqual(len(parse_all("a,b:1")), 2)
        for text in ("", ":1", "a:b", "a:99999"):
            with self.assertRaises(bsdq.InvalidArgument):
                parse(text)

    def test_times_between_attempts_grow_and_differ(self) -> None:
        times = [[it.delay() for _ in range(12)] for it in (Backoff(), Backoff())]
        self.assertNotEqual(times[0], times[1])
        for delays in times:
            self.assertTrue(all(delay <= Backoff.LIMIT for delay in delays))
            self.assertGreater(delays[-1], delays[0])

    def test_a_document_with_half_a_surrogate_is_text(self) -> None:
        self.assertEqual(mapping(b'---\ntext: "\\uD800"\n')["text"], "\ufffd")

    def test_errors_have_kinds_of_their_own(self) -> None:
        kinds: List[str] = []
        classes: List[Any] = [bsdq.BsdError]
        while classes:
            one = classes.pop()
            classes.extend(one.__subclasses__())
            if "kind" in vars(one):
                kinds.append(one.kind)
        self.assertEqual(len(kinds), len(set(kinds)))


class Played:
    """A server that closes each connection after the first command that is no question."""

    def __init__(self, answer_from: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.commands: List[bytes] = []
        self._answer_from = answer_from
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while True:
                    data = connection.recv(4096)
                    if not data:
                        break
                    if data == b"capabilities\r\n":
                        connection.sendall(b"OK 19\r\n---\n- put-with\n- x\n\r\n")
                        continue
                    self.commands.append(data)
                    if len(self.commands) < self._answer_from:
                        break
                    reply = (
                        b"EXISTS 7\r\n" if data.startswith(b"put-with") else b"USING default\r\n"
                    )
                    connection.sendall(reply)

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class RepeatTest(unittest.TestCase):
    """What is sent once more when its answer was lost, and what is not."""

    def played(self, answer_from: int) -> Played:
        played = Played(answer_from)
        self.addCleanup(played.end)
        return played

    def both(self, answer_from: int, call: Any) -> Any:
        """The call with both clients: what each sent, and its result or error."""
        outcomes = []
        played = self.played(answer_from)
        with bsdq.Client(played.address) as client:
            try:
                outcomes.append((call(client), len(played.commands)))
            except bsdq.ConnectionLost as error:
                outcomes.append((error.sent, len(played.commands)))
        other = self.played(answer_from)

        async def run() -> Any:
            async with bsdq.AsyncClient(other.address) as client:
                return await call(client)

        try:
            outcomes.append((asyncio.run(run()), len(other.commands)))
        except bsdq.ConnectionLost as error:
            outcomes.append((error.sent, len(other.commands)))
        self.assertEqual(outcomes[0], outcomes[1])
        return outcomes[0]

    def test_a_question_is_repeated(self) -> None:
        self.assertEqual(self.both(3, lambda it: it.list_tube_used()), ("default", 3))

    def test_a_put_is_not(self) -> None:
        self.assertEqual(self.both(3, lambda it: it.put(b"x")), (True, 1))
        self.assertEqual(self.both(3, lambda it: it.put_with(b"x", group="g")), (True, 1))

    def test_a_put_with_a_key_is(self) -> None:
        found = self.both(2, lambda it: it.put_with(b"x", key="k"))
        self.assertEqual(found, (bsdq.Put(7, True), 2))
        waiting = self.both(2, lambda it: it.put_with(b"x", key="k", unique="waiting"))
        self.assertEqual(waiting, (True, 1))

    def test_other_commands_are_not(self) -> None:
        for call in (
            lambda it: it.delete(1),
            lambda it: it.release(1, 1),
            lambda it: it.touch(1),
            lambda it: it.kick(1),
            lambda it: it.put_many([b"a", b"b"]),
        ):
            self.assertEqual(self.both(3, call), (True, 1))

    def test_the_page_names_what_is_repeated(self) -> None:
        page = (HERE.parents[2] / "docs/clients.md").read_text()
        _, _, rest = page.partition("### What is sent once more")
        row = next(line for line in rest.splitlines() if line.startswith("| yes |"))
        named = set(row.replace("`", "").split("|")[2].replace(" ", "").split(","))
        repeated = {
            request.word
            for request in (
                commands.use("t"),
                commands.watch("t"),
                commands.ignore("t"),
                commands.list_tube_used(),
                commands.list_tubes_watched(),
                commands.list_tubes(),
                commands.reserve(),
                commands.reserve(1),
                commands.reserve_job(1),
                commands.reserve_batch(1),
                commands.peek(1),
                commands.peek_ready(),
                commands.peek_delayed(),
                commands.peek_buried(),
                commands.pause_tube("t", 1),
                commands.stats(),
                commands.stats_tube("t"),
                commands.stats_job(1),
                commands.stats_job_extended(1),
                commands.stats_policy("t"),
                commands.stats_schedule("t"),
                commands.list_jobs("t", "ready"),
                commands.capabilities(),
                commands.set_policy("t", {}),
                commands.schedule_set("s", b"", "* * * * *", "t"),
                commands.put(b""),
                commands.delete(1),
                commands.release(1),
                commands.bury(1),
                commands.touch(1),
                commands.kick(1),
                commands.kick_job(1),
                commands.auth("t"),
                commands.abort(),
                commands.delete_batch([]),
                commands.touch_batch([]),
                commands.release_batch([]),
                commands.fail(1),
                commands.bury_with_reason(1, b""),
                commands.move_job(1, "t"),
                commands.clear_tube("t"),
                commands.schedule_delete("s"),
            )
            if request.repeats
        }
        self.assertEqual(named, repeated)


class Held:
    """A server without extended commands, whose first answer on each connection comes when the test
    says so. For each later command `closes` says whether it closes the connection."""

    def __init__(self, closes: Optional[Callable[[], bool]] = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.commands: List[bytes] = []
        self._closes = closes
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        while True:
            data = connection.recv(4096)
            if not data:
                return
            if data == b"capabilities\r\n":
                self.asked.set()
                self.may_answer.wait(PATIENCE)
                connection.sendall(b"UNKNOWN_COMMAND\r\n")
                continue
            self.commands.append(data)
            if self._closes is not None and self._closes():
                return
            if data.startswith(b"reserve"):
                connection.sendall(b"RESERVED 7 1\r\nx\r\n")

    def end(self) -> None:
        self.may_answer.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """What this returns or raises, in a thread that holds up no test that fails."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except bsdq.BsdError as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class LostTest(unittest.TestCase):
    """Waits that are longer than `retry_for`, and clients that are closed while they connect."""

    def held(self, closes: Optional[Callable[[], bool]] = None) -> Held:
        held = Held(closes)
        self.addCleanup(held.end)
        return held

    def test_a_reserve_that_waited_longer_than_retry_for_waits_again(self) -> None:
        """Two hours pass before each of two losses; the clock of the test says so."""
        for of_loop in (False, True):
            late = [0.0]
            losses = [0]

            def closes() -> bool:
                losses[0] += 1
                late[0] += 7200
                return losses[0] <= 2

            held = self.held(closes)
            held.may_answer.set()
            job = self.reserved_by_task(held, late) if of_loop else self.reserved(held, late)
            self.assertEqual((job.id, job.body), (7, b"x"))
            self.assertEqual(held.commands, [b"reserve\r\n"] * 3)

    def reserved(self, held: Held, late: List[float]) -> bsdq.Job:
        clock = mock.Mock(monotonic=lambda: time.monotonic() + late[0], sleep=time.sleep)
        with mock.patch("bsdq.client.time", clock), bsdq.Client(held.address) as client:
            return client.reserve()

    def reserved_by_task(self, held: Held, late: List[float]) -> bsdq.Job:
        async def run() -> bsdq.Job:
            loop = asyncio.get_running_loop()
            now = loop.time
            with mock.patch.object(loop, "time", lambda: now() + late[0]):
                async with bsdq.AsyncClient(held.address) as client:
                    return await client.reserve()

        return asyncio.run(run())

    def test_a_server_that_always_closes_is_given_up(self) -> None:
        late = [0.0]

        def closes() -> bool:
            late[0] += 4.0
            return True

        for of_loop in (False, True):
            held = self.held(closes)
            held.may_answer.set()
            with self.assertRaises(bsdq.ConnectionLost):
                if of_loop:
                    self.reserved_by_task(held, late)
                else:
                    self.reserved(held, late)
            self.assertGreater(len(held.commands), 1)

    def test_a_client_that_is_closed_while_it_connects_has_no_connection(self) -> None:
        held = self.held()
        client = bsdq.Client(held.address, connect_timeout=PATIENCE)
        reserve = in_thread(client.reserve)
        self.assertTrue(held.asked.wait(PATIENCE))
        close = in_thread(client.close)
        until("it is being closed", lambda: client._is_closed)
        held.may_answer.set()
        self.assertIsInstance(reserve.exception(PATIENCE), bsdq.ConnectionLost)
        close.result(PATIENCE)
        self.assertEqual(held.commands, [])

    def test_a_task_that_connects_has_no_connection_after_close(self) -> None:
        held = self.held()

        async def run() -> None:
            client = bsdq.AsyncClient(held.address, connect_timeout=PATIENCE)
            reserve = asyncio.ensure_future(client.reserve())
            await asyncio.get_running_loop().run_in_executor(None, held.asked.wait, PATIENCE)
            await client.close()
            held.may_answer.set()
            with self.assertRaises(bsdq.ConnectionLost):
                await reserve
            self.assertFalse(client.is_connected)

        asyncio.run(run())
        self.assertEqual(held.commands, [])

    def test_a_client_that_is_closed_while_no_server_is_there_tries_no_more(self) -> None:
        client = bsdq.Client(f"{HOST}:{free_port()}", retry_for=1e6)
        stats = in_thread(client.stats)
        until("it connects", client._lock.locked)
        close = in_thread(client.close)
        self.assertIsInstance(stats.exception(PATIENCE), bsdq.ConnectionLost)
        close.result(PATIENCE)


class LiveTest(unittest.TestCase):
    """A server that stops and starts, threads and tasks."""

    def server(self, *args: Any, **more: Any) -> Server:
        server = Server(*args, **more)
        self.addCleanup(server.end)
        return server

    def test_a_restart_is_not_seen_by_a_client_that_rests(self) -> None:
        server = self.server()
        with server.client() as client:
            client.use("t")
            client.put(b"1")
            server.kill()
            server.start()
            until("the connection is idle", lambda: time.monotonic() - client._used_at > 0.6)
            client.put(b"2")
            self.assertEqual(client.list_tube_used(), "t")

    def test_a_server_that_is_not_there_is_an_error_in_time(self) -> None:
        address = f"{HOST}:{free_port()}"
        with self.assertRaises(bsdq.ConnectionLost) as lost:
            bsdq.Client(address, retry_for=0.3).stats()
        self.assertFalse(lost.exception.sent)

        async def run() -> None:
            with self.assertRaises(bsdq.ConnectionLost):
                await bsdq.AsyncClient(address, retry_for=0.3).stats()

        asyncio.run(run())

    def test_the_next_address_is_tried(self) -> None:
        server = self.server()
        # A listener that accepts nothing answers nothing: as a member without a leader.
        silent = socket.create_server(("127.0.0.1", 0), backlog=1)
        self.addCleanup(silent.close)
        addresses = [f"127.0.0.1:{silent.getsockname()[1]}", server.address]
        with bsdq.Client(addresses, connect_timeout=0.2) as client:
            self.assertEqual(client.stats()["pid"], server.pid)

        async def run() -> None:
            async with bsdq.AsyncClient(addresses, connect_timeout=0.2) as client:
                self.assertEqual((await client.stats())["pid"], server.pid)

        asyncio.run(run())

    def test_a_unix_socket(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="bsdq-unix-")
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "socket")
        server = self.server(args=["-l", f"unix:{path}"])
        with bsdq.Client(f"unix:{path}") as client:
            self.assertEqual(client.stats()["pid"], server.pid)

        async def run() -> None:
            async with bsdq.AsyncClient(f"unix:{path}") as client:
                self.assertEqual((await client.stats())["pid"], server.pid)

        asyncio.run(run())

    def test_a_certificate_of_another_authority_is_refused(self) -> None:
        server = self.server(tls=True)
        with self.assertRaises(bsdq.ConnectionLost) as lost:
            bsdq.Client(server.address, retry_for=0).stats()
        self.assertIn("certificate", str(lost.exception))
        self.assertTrue(certificates())

    @unittest.skipUnless(hasattr(select, "poll"), "there is only select, with its limit")
    def test_a_descriptor_that_select_refuses_is_as_any_other(self) -> None:
        for tls in (False, True):
            server = self.server(tls=tls)
            refuses = mock.patch.object(select, "select", side_effect=ValueError("out of range"))
            with server.client() as client, refuses:
                client.put(b"x")
                # Over TLS it waits for something to read.
                job = client.reserve(int(PATIENCE))
                client._used_at -= 1.0
                # The connection is looked at, and the job is still its own.
                client.delete(job)

    def test_an_abort_over_tls_that_comes_after_the_job_is_taken_back(self) -> None:
        server = self.server(tls=True)
        jobs: List[bsdq.Job] = []
        # The waiting thread looks at the abort only when the job is there.
        with mock.patch.object(link_of, "LOOK_EVERY", PATIENCE), server.client(
            timeout=1.0
        ) as client, server.client() as producer:
            client.connect()
            thread = threading.Thread(target=lambda: jobs.append(client.reserve()))
            thread.start()
            until("it waits", client.abort)
            put = producer.put(b"x")
            thread.join(PATIENCE)
            self.assertEqual([job.id for job in jobs], [put])
            client.delete(jobs[0])

    @unittest.skipUnless(hasattr(socket, "TCP_KEEPIDLE"), "the system has no such times")
    def test_a_machine_that_answers_nothing_is_given_up(self) -> None:
        def times(it: Any) -> List[int]:
            tcp = socket.IPPROTO_TCP
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            is_on = it.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            return [int(bool(is_on)), *(it.getsockopt(tcp, option) for option in options)]

        for tls in (False, True):
            server = self.server(tls=tls)
            with server.client() as client:
                client.connect()
                assert client._link is not None
                self.assertEqual(times(client._link._socket), [1, 60, 15, 4])

            async def run() -> None:
                async with bsdq.AsyncClient(server.address, **server.settings()) as client:
                    await client.connect()
                    assert client._link is not None and client._link._transport is not None
                    it = client._link._transport.get_extra_info("socket")
                    self.assertEqual(times(it), [1, 60, 15, 4])

            asyncio.run(run())

    def test_threads_share_a_client(self) -> None:
        server = self.server()
        with server.client() as client:
            ids: List[int] = []

            def put() -> None:
                for _ in range(50):
                    ids.append(client.put(b"x"))

            threads = [threading.Thread(target=put) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            self.assertEqual(len(set(ids)), 200)

    def test_a_client_that_is_closed_ends_a_reserve_of_another_thread(self) -> None:
        server = self.server()
        client = server.client()
        reserve = in_thread(client.reserve)
        with server.client() as other:
            until("it waits", lambda: other.stats()["current-waiting"] == 1)
        client.close()
        self.assertIsInstance(reserve.exception(PATIENCE), bsdq.ConnectionLost)

    def test_tasks_share_a_client_and_their_puts_are_pipelined(self) -> None:
        server = self.server()

        async def run() -> None:
            async with bsdq.AsyncClient(server.address) as client:
                ids = await asyncio.gather(*(client.put(b"x") for _ in range(300)))
                self.assertEqual(len(set(ids)), 300)

        asyncio.run(run())

    def test_no_job_is_lost_where_a_reserve_is_cancelled(self) -> None:
        server = self.server()

        async def run() -> None:
            async with bsdq.AsyncClient(server.address) as worker:
                async with bsdq.AsyncClient(server.address) as producer:
                    for number in range(60):
                        reserve = asyncio.ensure_future(worker.reserve())
                        for _ in range(number % 6):
                            await asyncio.sleep(0)
                        put = asyncio.ensure_future(producer.put(b"%d" % number))
                        for _ in range(number % 11):
                            await asyncio.sleep(0.0005)
                        reserve.cancel()
                        await asyncio.wait([reserve])
                        job = await worker.reserve(10) if reserve.cancelled() else reserve.result()
                        self.assertEqual(job.body, b"%d" % number)
                        await worker.delete(job)
                        await put

        asyncio.run(run())

    def test_a_reserve_gets_the_job_of_one_that_was_cancelled_before(self) -> None:
        # Without `abort` the cancelled reserve still waits at the server, before the next one.
        for args in ([], ["--protocol", "beanstalkd"]):
            server = self.server(args=args)

            async def run() -> None:
                async with bsdq.AsyncClient(server.address) as worker:
                    for number in range(20):
                        await worker.connect()
                        first = asyncio.ensure_future(worker.reserve())
                        await asyncio.sleep(0)
                        first.cancel()
                        second = asyncio.ensure_future(worker.reserve(int(PATIENCE)))
                        await asyncio.sleep(0)
                        with server.client() as producer:
                            producer.put(b"%d" % number)
                        job = await second
                        self.assertEqual(job.body, b"%d" % number)
                        await worker.disconnect()
                        with server.client() as other:
                            other.delete(other.reserve(int(PATIENCE)))

            asyncio.run(run())

    def test_a_batch_has_no_more_jobs_than_were_asked_for_if_some_are_kept(self) -> None:
        server = self.server()

        async def run() -> None:
            async with bsdq.AsyncClient(server.address) as worker:
                await worker.connect()
                with server.client() as producer:
                    for _ in range(5):
                        producer.put(b"x")
                first = asyncio.ensure_future(worker.reserve_batch(5, 1))
                await asyncio.sleep(0)
                first.cancel()
                await asyncio.wait([first])
                await worker.settle()
                sizes = [len(await worker.reserve_batch(3, 1)) for _ in range(2)]
                self.assertEqual(sizes, [3, 2])

        asyncio.run(run())

    def test_a_put_into_another_tube_leaves_the_used_one_without_put_with(self) -> None:
        server = self.server(args=["--protocol", "beanstalkd"])

        async def run() -> None:
            async with bsdq.AsyncClient(server.address) as client:
                await client.use("own")
                work = [client.put_with(b"x", tube=f"t{number}") for number in range(20)]
                await asyncio.gather(*work, *(client.put(b"y") for _ in range(20)))
                stats = await client.stats_tube("own")
                self.assertEqual(stats["current-jobs-ready"], 20)
                for number in range(20):
                    stats = await client.stats_tube(f"t{number}")
                    self.assertEqual(stats["current-jobs-ready"], 1)

        asyncio.run(run())

    def test_other_requests_wait_for_a_put_into_another_tube_without_put_with(self) -> None:
        server = self.server(args=["--protocol", "beanstalkd"])

        async def run() -> None:
            for other in ("put", "pipeline"):
                async with bsdq.AsyncClient(server.address) as client:
                    # Both begin without a connection.
                    plain = client.put(b"plain") if other == "put" else self.piped(client)
                    await asyncio.gather(client.put_with(b"X", tube=other), plain)
                    stats = await client.stats_tube(other)
                    self.assertEqual(stats["current-jobs-ready"], 1)

            async with bsdq.AsyncClient(server.address) as client:
                self.assertEqual((await client.stats_tube("default"))["current-jobs-ready"], 2)

        asyncio.run(run())

    async def piped(self, client: bsdq.AsyncClient) -> Any:
        return await client.pipeline([commands.put(b"plain")])

    def test_a_put_into_another_tube_that_is_cancelled_leaves_the_used_one(self) -> None:
        server = self.server(args=["--protocol", "beanstalkd"])

        async def run() -> None:
            async with bsdq.AsyncClient(server.address) as client:
                await client.use("own")
                for tube in ("own", "new"):
                    # The second time the client's own `use` is on its way, too.
                    use = asyncio.ensure_future(client.use(tube))
                    if tube == "own":
                        await use
                    put = asyncio.ensure_future(client.put_with(b"X", tube="x"))
                    # Its `use` is sent; the answer is read in a later turn of the loop.
                    await asyncio.sleep(0)
                    put.cancel()
                    await asyncio.wait([put])
                    self.assertTrue(put.cancelled())
                    await use
                    self.assertEqual(await client.list_tube_used(), tube)
                    await client.put(b"plain")
                    stats = await client.stats_tube(tube)
                    self.assertEqual(stats["current-jobs-ready"], 1)

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
