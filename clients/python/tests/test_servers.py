"""Several servers as one: places of tubes, turns of servers, servers that are away, clusters."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
import unittest
import urllib.request
from typing import Any, Dict, List, Set

from harness import HOST, KIT, PATIENCE, Server, beanstalkd, free_port, skip, until

import bsdq
from bsdq.servers import AsyncServerSet, ServerSet, place, score


class PlaceTest(unittest.TestCase):
    """Where a tube is."""

    def test_the_examples_of_the_kit(self) -> None:
        rows = json.loads((KIT / "placement.json").read_text())
        self.assertGreater(len(rows), 10)
        for row in rows:
            scores = {name: str(score(name, row["tube"])) for name in row["servers"]}
            self.assertEqual(scores, row["scores"])
            self.assertEqual(place(row["servers"], row["tube"]), row["server"])

    def test_a_server_that_goes_moves_only_its_own_tubes(self) -> None:
        names = ["a", "b", "c", "d"]
        tubes = [f"tube-{number}" for number in range(400)]
        before = {tube: place(names, tube) for tube in tubes}
        for name in names:
            share = sum(1 for it in before.values() if it == name)
            self.assertTrue(60 <= share <= 140, before)
        after = {tube: place(names[:3], tube) for tube in tubes}
        moved = {tube for tube in tubes if before[tube] != after[tube]}
        self.assertEqual(moved, {tube for tube in tubes if before[tube] == "d"})


class SetTest(unittest.TestCase):
    """Sets of real servers."""

    def server(self, *args: Any, **more: Any) -> Server:
        server = Server(*args, **more)
        self.addCleanup(server.end)
        return server

    def two(self) -> Dict[str, Server]:
        return {"a": self.server(), "b": self.server()}

    def set_of(self, servers: Dict[str, Server], **settings: Any) -> ServerSet:
        addresses = {name: server.address for name, server in servers.items()}
        it = ServerSet(addresses, **settings)
        self.addCleanup(it.close)
        return it

    def tubes(self, names: List[str]) -> Dict[str, str]:
        """A tube for each server."""
        found: Dict[str, str] = {}
        for number in range(1000):
            found.setdefault(place(names, f"t{number}"), f"t{number}")
        return found

    def test_a_tube_is_on_one_server_and_a_pin_says_which(self) -> None:
        servers = self.two()
        tubes = self.tubes(["a", "b"])
        servers_set = self.set_of(servers, pins={"pinned": "b"})
        for name, tube in [*tubes.items(), ("b", "pinned")]:
            put = servers_set.put(tube, b"x", ttr=9)
            self.assertEqual(servers_set.server_of(tube), name)
            with servers[name].client() as client:
                stats = client.stats_job(put.id)
                self.assertEqual((stats["tube"], stats["ttr"]), (tube, 9))
        with self.assertRaises(bsdq.InvalidArgument):
            self.set_of(servers, pins={"pinned": "none"})

    def test_each_server_has_its_turn(self) -> None:
        servers = self.two()
        tubes = self.tubes(["a", "b"])
        servers_set = self.set_of(servers)
        servers_set.watch(*tubes.values())
        for tube in tubes.values():
            for _ in range(10):
                servers_set.put(tube, b"x")

        def take() -> str:
            job = servers_set.reserve(5)
            servers_set.touch(job)
            servers_set.delete(job)
            return job.server

        # Neither is without jobs while the other one is being connected.
        served = set()
        for _ in range(10_000):
            name = take()
            servers_set.put(tubes[name], b"x")
            served.add(name)
            if len(served) == 2:
                break
        self.assertEqual(served, {"a", "b"})
        took = [take() for _ in range(10)]
        self.assertTrue(4 <= took.count("a") <= 6, took)
        for _ in range(10):
            servers_set.delete(servers_set.reserve(5))
        with self.assertRaises(bsdq.TimedOut):
            servers_set.reserve(0)
        servers_set.put(tubes["b"], b"x", delay=1)
        self.assertEqual(servers_set.reserve(2).server, "b")

    def test_a_server_that_is_away_holds_up_no_other(self) -> None:
        servers = self.two()
        tubes = self.tubes(["a", "b"])
        servers_set = self.set_of(servers, retry_for=0.2)
        servers_set.watch(*tubes.values())
        for tube in tubes.values():
            servers_set.put(tube, b"x")
        servers["b"].kill()
        for _ in range(3):
            servers_set.put(tubes["a"], b"y")
        with self.assertRaises(bsdq.ConnectionLost):
            servers_set.put(tubes["b"], b"y")
        for _ in range(4):
            job = servers_set.reserve(5)
            self.assertEqual(job.server, "a")
            servers_set.delete(job)
        stats = servers_set.stats()
        self.assertIsNone(stats["b"])
        self.assertIsNotNone(stats["a"])
        with self.assertRaises(bsdq.TimedOut):
            servers_set.reserve(0)
        # It comes back: its tube works again, also for a reserve that has begun before.
        servers["b"].start()
        until("it takes a put", lambda: self.takes(servers_set, tubes["b"]))
        self.assertEqual(servers_set.reserve(20).server, "b")
        # The same while the other one always has a job.
        servers["b"].kill()
        self.assertEqual(self.served(servers_set, tubes["a"]), "a")
        servers["b"].start()
        until("it takes a put", lambda: self.takes(servers_set, tubes["b"]))
        until("it has its turn", lambda: self.served(servers_set, tubes["a"]) == "b")

    def served(self, servers_set: ServerSet, tube: str) -> str:
        """The server of the next job, with one in this tube."""
        servers_set.put(tube, b"x")
        job = servers_set.reserve(5)
        servers_set.delete(job)
        return job.server

    def takes(self, servers_set: ServerSet, tube: str) -> bool:
        try:
            servers_set.put(tube, b"z")
            return True
        except bsdq.ConnectionLost:
            return False

    def test_a_reserve_waits_at_all_of_them_with_and_without_abort(self) -> None:
        program = beanstalkd()
        old = self.server(program if program is not None else skip("there is no beanstalkd"))
        servers = {"a": self.server(), "b": old}
        tubes = self.tubes(["a", "b"])

        async def run() -> None:
            addresses: Dict[str, Any] = {name: it.address for name, it in servers.items()}
            async with AsyncServerSet(addresses) as worker, AsyncServerSet(addresses) as producer:
                worker.watch(*tubes.values())
                for name in ("a", "b", "b", "a"):
                    reserve = asyncio.ensure_future(worker.reserve(20))
                    while (await self.waiting(producer)) < 2:
                        await asyncio.sleep(0.005)
                    await producer.put(tubes[name], name.encode())
                    job = await reserve
                    self.assertEqual((job.server, job.body), (name, name.encode()))
                    await worker.delete(job)

        asyncio.run(run())

    async def waiting(self, servers: AsyncServerSet) -> int:
        stats = await servers.stats()
        return sum(int(str(it["current-waiting"])) for it in stats.values() if it is not None)

    def test_a_job_is_deleted_while_another_thread_waits_for_one(self) -> None:
        for args in ([], ["--protocol", "beanstalkd"]):
            server = self.server(args=args)
            servers_set = self.set_of({"a": server})
            servers_set.put("default", b"first")
            first = servers_set.reserve(5)
            found: List[bsdq.SetJob] = []
            threads = [
                threading.Thread(target=lambda: found.append(servers_set.reserve()), daemon=True)
                for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            with server.client() as client:
                until("one waits", lambda: client.stats()["current-waiting"] == 1)
                servers_set.touch(first)
                servers_set.delete(first)
                with self.assertRaises(bsdq.TimedOut):
                    servers_set.reserve(0)
                until("one waits", lambda: client.stats()["current-waiting"] == 1)
                for body in (b"second", b"third"):
                    servers_set.put("default", body)
                for thread in threads:
                    thread.join(PATIENCE)
                self.assertEqual(sorted(job.body for job in found), [b"second", b"third"])
                for job in found:
                    servers_set.delete(job)
                self.assertEqual(client.stats()["current-jobs-reserved"], 0)

    def test_a_set_for_asyncio_speaks_tls_and_shows_its_token(self) -> None:
        servers = {name: self.server(tls=True, tokens=True) for name in ("a", "b")}
        tubes = self.tubes(["a", "b"])
        addresses: Dict[str, Any] = {name: it.address for name, it in servers.items()}
        settings = servers["a"].settings()
        large = b"x" * 60_000

        async def run() -> None:
            async with AsyncServerSet(addresses, **settings) as worker, AsyncServerSet(
                addresses, **settings
            ) as producer:
                worker.watch(*tubes.values())
                for tube in tubes.values():
                    for _ in range(10):
                        await producer.put(tube, large)
                took = []
                for _ in range(20):
                    job = await worker.reserve(5)
                    self.assertEqual(job.body, large)
                    await worker.touch(job)
                    await worker.delete(job)
                    took.append(job.server)
                self.assertEqual((took.count("a"), took.count("b")), (10, 10))
                with self.assertRaises(bsdq.TimedOut):
                    await worker.reserve(0)
                for name in ("a", "b", "a"):
                    reserve = asyncio.ensure_future(worker.reserve(20))
                    while (await self.waiting(producer)) < 2:
                        await asyncio.sleep(0.005)
                    await producer.put(tubes[name], name.encode())
                    job = await reserve
                    self.assertEqual((job.server, job.body), (name, name.encode()))
                    await worker.delete(job)
                # One that is cancelled while it waits keeps no job from the next.
                reserve = asyncio.ensure_future(worker.reserve(20))
                while (await self.waiting(producer)) < 2:
                    await asyncio.sleep(0.005)
                reserve.cancel()
                for tube in tubes.values():
                    await producer.put(tube, b"after")
                with self.assertRaises(asyncio.CancelledError):
                    await reserve
                await worker.settle()
                kept = list(worker.held())
                while len(kept) < 2:
                    kept.append(await worker.reserve(5))
                self.assertEqual({job.server for job in kept}, {"a", "b"})

        asyncio.run(run())

    def test_a_set_for_asyncio_refuses_another_authority_and_a_wrong_token(self) -> None:
        servers = {name: self.server(tls=True, tokens=True) for name in ("a", "b")}
        addresses: Dict[str, Any] = {name: it.address for name, it in servers.items()}
        settings = servers["a"].settings(retry_for=0)

        async def run() -> None:
            async with AsyncServerSet(addresses, **{**settings, "tls": None}) as stranger:
                with self.assertRaises(bsdq.ConnectionLost) as lost:
                    await stranger.put("t", b"x")
                self.assertIn("certificate", str(lost.exception))
            async with AsyncServerSet(addresses, **{**settings, "token": "wrong"}) as unknown:
                with self.assertRaises(bsdq.Unauthorized):
                    await unknown.put("t", b"x")

        asyncio.run(run())

    def test_members_of_a_cluster_may_be_given_by_the_names_of_their_hosts(self) -> None:
        server = self.server(host="127.0.0.1")
        # No one listens at the first.
        members = ["localhost:1", f"localhost:{server.port}"]
        with bsdq.Client(members) as client:
            put = client.put(b"x")

        async def run() -> None:
            async with AsyncServerSet({"cluster": members}) as servers_set:
                job = await servers_set.reserve(5)
                self.assertEqual(job.id, put)

        asyncio.run(run())

    def test_a_cluster_is_one_of_the_servers_and_its_leader_may_change(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="bsdq-cluster-")
        self.addCleanup(folder.cleanup)
        peers = [f"{HOST}:{free_port()}" for _ in range(3)]
        members = []
        for number, peer in enumerate(peers):
            args = ["-b", os.path.join(folder.name, str(number)), "--cluster", peer]
            args += ["--cluster-join", peers[0]] if number else ["--cluster-init"]
            args += ["--http", f"{HOST}:{free_port()}"]
            members.append(self.server(args=args, is_member=True))
        servers: Dict[str, Any] = {
            "cluster": [member.address for member in members],
            "alone": self.server().address,
        }
        tubes = self.tubes(list(servers))
        servers_set = ServerSet(servers, retry_for=30.0, connect_timeout=2.0, timeout=5.0)
        self.addCleanup(servers_set.close)
        servers_set.watch(*tubes.values())
        first = servers_set.put(tubes["cluster"], b"1", key="first")
        http = members[0].args[-1]
        until("all three vote", lambda: self.voters(http) == 3)
        members[0].kill()
        second = servers_set.put(tubes["cluster"], b"2", key="second")
        self.assertNotEqual(first.id, second.id)
        bodies: Set[bytes] = set()
        while len(bodies) < 2:
            job = servers_set.reserve(30)
            self.assertEqual(job.server, "cluster")
            bodies.add(job.body)
            servers_set.delete(job)
        servers_set.put(tubes["alone"], b"3")
        self.assertEqual(servers_set.reserve(5).server, "alone")

    def voters(self, http: str) -> int:
        with urllib.request.urlopen(f"http://{http}/api/v1/cluster", timeout=10) as answer:
            members = json.load(answer)["members"]
        return sum(1 for member in members if member["votes"] and member["connected"] is not False)


if __name__ == "__main__":
    unittest.main()
