"""The examples of the pages are run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Dict, List

from harness import PATIENCE, ROOT, SOURCE, Server, certificates, until

PAGES = ["docs/clients.md", "clients/python/README.md"]


def examples() -> Dict[str, str]:
    """The blocks of Python of the pages, by the names in their first lines."""
    found: Dict[str, str] = {}
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
            name = re.match(r"# (\w+\.py)\n", block)
            assert name is not None and name.group(1) not in found, block
            found[name.group(1)] = block
    return found


class ExamplesTest(unittest.TestCase):
    """One server, and all examples in the order of the pages."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="bsdq-docs-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.server = Server()
        self.addCleanup(self.server.end)
        self.other = Server()
        self.addCleanup(self.other.end)

    def write(self, name: str, text: str) -> None:
        for port, server in (("11300", self.server), ("11301", self.other), ("11302", self.other)):
            text = text.replace(f"127.0.0.1:{port}", server.address)
        # The address that is the default, too.
        text = text.replace("AsyncClient()", f'AsyncClient("{self.server.address}")')
        (self.folder / name).write_text(text, "utf-8")

    def start(self, *words: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

        def end() -> None:
            if process.poll() is None:
                process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def said(self, name: str) -> List[str]:
        process = self.start(name)
        said, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, f"{name}: {said}")
        return said.splitlines()

    def test_each_example_does_what_the_page_says(self) -> None:
        found = examples()
        for name, text in found.items():
            self.write(name, text)
        (self.folder / "ca.pem").write_text(Path(certificates()[2]).read_text())
        client = self.server.client()
        self.addCleanup(client.close)
        client.set_policy("mail", {"delivery-limit": 8, "dead-letter": "mail-dead", "retry-min": 5})

        worker = self.start("-m", "bsdq", "worker", "tasks:app")
        self.said("put_mail.py")
        until("two are sent", lambda: client.stats_tube("mail")["cmd-delete"] == 2)
        until("the third has failed", lambda: client.stats_job(3)["state"] == "delayed")
        self.assertEqual(client.stats_job(3)["delay"], 5)
        details = client.stats_job_extended(3)
        self.assertTrue(details["text"].endswith("ValueError: no address is no address\n"))
        worker.terminate()
        said, _ = worker.communicate(timeout=PATIENCE)
        self.assertEqual(worker.returncode, 0, said)
        self.assertIn("sent report to ann@example.org", said)
        client.clear_tube("mail")

        calls = self.said("calls.py")
        self.assertRegex(calls[0], r"^\d+ daily reserved$")
        self.assertEqual(calls[1:], ["it is gone", "no job is ready"])
        batches = self.said("batches.py")
        self.assertEqual(batches[:2], ["500 of 500 deleted", "True"])
        self.assertRegex(batches[2], r"T03:00:00\+0[12]:00$")
        self.assertEqual(self.said("with_asyncio.py"), ["done: 0"])
        self.assertEqual(self.said("connect.py"), [])
        self.assertEqual(self.said("servers.py"), ["north b'to ann' north"])
        self.assertEqual(self.said("first.py"), ["hello"])

        self.assertEqual(self.said("shop.py"), [])
        worker = self.start("-m", "bsdq", "worker", "shop:app")
        client.put_with('{"task":"shop.order","args":{"items":[{"name":"tea"}]}}', tube="orders")
        bury = client.put_with('{"task":"shop.order","args":{"items":[]}}', tube="orders").id
        retry = client.put_with('{"task":"shop.restock","args":{"name":"tea"}}', tube="stock").id
        client.put_with(b"123", tube="old")
        until("it is buried", lambda: client.stats_job(bury)["state"] == "buried")
        until("it is delayed", lambda: client.stats_job(retry)["state"] == "delayed")
        until("it is done", lambda: "old" not in client.list_tubes() or self.is_empty(client))
        worker.terminate()
        said, _ = worker.communicate(timeout=PATIENCE)
        self.assertEqual(worker.returncode, 0, said)
        for line in ("done shop.order", "buried shop.order", "retried shop.restock", "3\n"):
            self.assertIn(line, said)
        known = {"tasks.py", "put_mail.py", "calls.py", "batches.py", "with_asyncio.py"}
        known |= {"connect.py", "shop.py", "servers.py", "first.py"}
        self.assertEqual(set(found), known, "each example is run above")

    def is_empty(self, client: "object") -> bool:
        stats = getattr(client, "stats_tube")("old")
        return bool(stats["current-jobs-ready"] + stats["current-jobs-reserved"] == 0)


if __name__ == "__main__":
    unittest.main()
