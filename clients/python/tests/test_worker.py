"""The worker, as a process of its own."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import Any, List, Optional

from harness import HERE, PATIENCE, SOURCE, Server, beanstalkd, skip, until

import bsdq
from bsdq.codec import WrongArgument


class WorkerTest(unittest.TestCase):
    """Each test has a server, notes of what the tasks do, and workers."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="bsdq-worker-")
        self.addCleanup(self.folder.cleanup)
        self.notes_file = os.path.join(self.folder.name, "notes")
        open(self.notes_file, "w").close()

    def use(self, server: Server) -> None:
        """The server of this test, and the app."""
        self.server = server
        self.addCleanup(server.end)
        os.environ["BSDQ_NOTES"] = self.notes_file
        os.environ["BSDQ_ADDRESS"] = server.address
        sys.modules.pop("apps", None)
        self.apps: Any = importlib.import_module("apps")
        self.addCleanup(self.apps.app.close)
        self.client = server.client()
        self.addCleanup(self.client.close)

    def start(self, *args: str) -> "subprocess.Popen[bytes]":
        """A worker."""
        log = open(os.path.join(self.folder.name, "log"), "ab")
        self.addCleanup(log.close)
        worker = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "bsdq", "worker", "apps:app", *args],
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

        def end() -> None:
            if worker.poll() is None:
                worker.kill()
            worker.wait()

        self.addCleanup(end)
        return worker

    def log(self) -> str:
        with open(os.path.join(self.folder.name, "log"), errors="replace") as file:
            return file.read()

    def notes(self, word: Optional[str] = None) -> List[str]:
        with open(self.notes_file) as file:
            lines = file.read().splitlines()
        return [line for line in lines if word is None or line.startswith(word)]

    def noted(self, *lines: str) -> None:
        """Waits until these were noted."""
        try:
            until(f"{lines} are noted", lambda: set(lines) <= set(self.notes()))
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.notes()}; {self.log()}") from None

    def gone(self, job: int) -> None:
        """Waits until a job was deleted."""

        def is_gone() -> bool:
            try:
                self.client.peek(job)
                return False
            except bsdq.NotFound:
                return True

        until(f"job {job} is gone", is_gone)

    def test_tasks_are_run_in_threads_and_on_the_event_loop(self) -> None:
        self.use(Server())
        app = self.apps
        jobs = [
            app.add.put(1, ["a", "b"]).id,
            app.add.put(number=2).id,
            app.later.put(0.0, mark="x").id,
            app.raw.put(b"\x00\xff").id,
        ]
        worker = self.start("--concurrency", "2")
        self.noted("add 1 a b", "add 2", "begin x", "end x", "raw 00ff")
        for job in jobs:
            self.gone(job)
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE), 0, self.log())
        self.assertEqual(len(self.notes("event done")), 4)

    def test_arguments_are_checked_on_both_sides(self) -> None:
        self.use(Server())
        app = self.apps
        for args in ({"number": "1"}, {"number": True}, {"number": 1, "names": [2]}, {"no": 1}, {}):
            with self.assertRaises(WrongArgument):
                app.add.put(**args)
        job = self.client.put_with(b'{"task":"apps.add","args":{"number":"1"}}', tube="sync").id
        other = self.client.put_with(b"[" * 3000, tube="sync").id
        unknown = self.client.put_with(b'{"task":"none","args":{}}', tube="sync").id
        self.client.set_policy("sync", {"delivery-limit": 1})
        self.start()
        for ident, said in ((job, "'1' is not int"), (other, "names no task"), (unknown, "none")):
            until("it is buried", lambda: self.client.stats_job(ident)["state"] == "buried")
            self.assertIn(said, self.client.stats_job_extended(ident)["text"])
        self.assertEqual(self.notes("add"), [])

    def test_a_failure_is_told_with_its_traceback_and_the_policy_acts(self) -> None:
        self.use(Server())
        self.client.set_policy("sync", {"delivery-limit": 2, "dead-letter": "dead"})
        app = self.apps
        job = app.fails.put("error", {}).id
        buried = app.fails.put("bury", {}).id
        again = app.fails.put("retry", {"delay": 100}).id
        self.start("--concurrency", "1")
        until("it is a dead letter", lambda: self.client.stats_job(job)["tube"] == "dead")
        details = self.client.stats_job_extended(job)
        self.assertEqual((details["failures"], details["reason"]), (2, "failed"))
        self.assertIn("apps.py", details["text"])
        self.assertTrue(details["text"].endswith("RuntimeError: no route to host\n"))
        until("it is buried", lambda: self.client.stats_job(buried)["state"] == "buried")
        self.assertEqual(self.client.stats_job_extended(buried)["text"], "not ours")
        until("it is delayed", lambda: self.client.stats_job(again)["state"] == "delayed")
        self.assertEqual(self.client.stats_job(again)["delay"], 100)

    def test_a_coroutine_that_exits_has_failed_and_the_next_job_is_done(self) -> None:
        self.use(Server())
        self.client.set_policy("async", {"delivery-limit": 1})
        app = self.apps
        jobs = [app.exits.put("exit").id, app.exits.put("interrupt").id]
        app.later.put(0.0, "after")
        worker = self.start("--concurrency", "1")
        self.noted("end after")
        for job, said in zip(jobs, ("SystemExit: exit", "KeyboardInterrupt")):
            self.assertEqual(self.client.stats_job(job)["state"], "buried")
            self.assertIn(said, self.client.stats_job_extended(job)["text"])
        # The operator's interrupt still ends it, also while a coroutine runs.
        app.later.put(0.5, "runs")
        self.noted("begin runs")
        worker.send_signal(signal.SIGINT)
        self.assertEqual(worker.wait(PATIENCE), 0, self.log())
        self.noted("end runs")

    def test_a_job_that_takes_longer_than_its_time_is_touched(self) -> None:
        self.use(Server())
        # In a slot that has two, the second one waits behind the first, and is touched too.
        self.apps.sleeps.put(2.5, "long")
        self.apps.sleeps.put(0.0, "behind")
        worker = self.start("--concurrency", "1", "--prefetch", "2")
        self.noted("end long", "end behind")
        until("both are done", lambda: len(self.notes("event done")) == 2)
        self.assertEqual(self.notes("begin"), ["begin long", "begin behind"])
        worker.terminate()
        self.assertEqual(worker.wait(PATIENCE), 0)

    def test_sigterm_finishes_what_runs_and_releases_what_has_not_begun(self) -> None:
        self.use(Server())
        app = self.apps
        running = app.sleeps.put(1.0, "runs").id
        waiting = [app.sleeps.options(pri=70000).put(0.0, "not").id for _ in range(3)]
        worker = self.start("--concurrency", "1", "--prefetch", "3", "--grace", "20")
        self.noted("begin runs")
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE), 0, self.log())
        self.gone(running)
        self.assertEqual(self.notes("begin"), ["begin runs"])
        for job in waiting:
            stats = self.client.stats_job(job)
            self.assertEqual((stats["state"], stats["pri"]), ("ready", 70000))
        self.assertEqual(len(self.notes("event released")), 2)

    def test_after_the_grace_time_what_runs_is_given_back(self) -> None:
        self.use(Server())
        jobs = [self.apps.sleeps.put(600.0, "thread").id, self.apps.later.put(600.0, "loop").id]
        worker = self.start("--grace", "0.2")
        self.noted("begin thread", "begin loop")
        worker.send_signal(signal.SIGINT)
        self.assertEqual(worker.wait(PATIENCE), 1, self.log())
        for job in jobs:
            self.assertEqual(self.client.stats_job(job)["state"], "ready")

    def test_a_worker_that_waits_ends_at_once(self) -> None:
        self.use(Server())
        worker = self.start("--grace", "600")
        until("it waits", lambda: self.client.stats()["current-waiting"] == 4)
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE), 0)

    def test_killed_workers_and_a_killed_server_lose_no_job(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="bsdq-data-")
        self.addCleanup(folder.cleanup)
        self.use(Server(args=["-b", folder.name]))
        app = self.apps
        numbers = range(120)
        for number in numbers[:60]:
            app.later.put(0.02, f"{number}")
        workers = [self.start("--concurrency", "4") for _ in range(2)]
        until("some are done", lambda: len(self.notes("end")) > 10)
        workers[0].kill()
        self.server.kill()
        self.server.start()
        for number in numbers[60:]:
            app.later.put(0.02, f"{number}")
        self.noted(*(f"end {number}" for number in numbers))
        tube = self.client
        until(
            "the tube is empty",
            lambda: tube.stats_tube("async")["current-jobs-ready"]
            + tube.stats_tube("async")["current-jobs-reserved"]
            == 0,
        )
        workers[1].terminate()
        self.assertEqual(workers[1].wait(PATIENCE), 0, self.log())

    def test_at_beanstalkd_a_failure_is_a_release_with_a_delay(self) -> None:
        program = beanstalkd()
        self.use(Server(program if program is not None else skip("there is no beanstalkd")))
        app = self.apps
        job = app.fails.put("error", {}).id
        buried = app.fails.put("bury", {}).id
        done = app.add.put(1).id
        worker = self.start("--concurrency", "1")
        until("it is delayed", lambda: self.client.stats_job(job)["state"] == "delayed")
        self.assertEqual(self.client.stats_job(job)["delay"], 5)
        until("it is buried", lambda: self.client.stats_job(buried)["state"] == "buried")
        self.gone(done)
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE), 0, self.log())
        self.assertEqual(self.client.list_tubes_watched(), ["default"])


if __name__ == "__main__":
    unittest.main()
