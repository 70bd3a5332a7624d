"""Servers as child processes, on ports of their own, ended by their id.

A port is chosen by binding it. Where all tests share one address, another process may take it before
the server does: so a server is up when `stats` answers with its process id, and otherwise the next
port is tried.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Set

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SOURCE = HERE.parent / "src"
KIT = HERE.parents[1] / "kit"
sys.path.insert(0, str(SOURCE))

import bsdq  # noqa: E402

#: An address of this machine: on Linux one that no other process uses, so that a port which is free
#: once is free until a test takes it.
HOST = "127.0.0.1"
if sys.platform.startswith("linux"):
    HOST = ".".join(["127", *(str(random.randrange(1, 255)) for _ in range(3))])
#: How long anything that must happen may take before a test fails, in seconds.
PATIENCE = 30.0
TOKENS = {"all": "all", "put": "put", "work": "work", "read": "read", "tube": "all:kit-tube-*"}


def bsd_server() -> str:
    """The program to test."""
    default = ROOT / "target/debug/bsd-server"
    return os.environ.get("BSD_SERVER_UNDER_TEST", str(default))


def beanstalkd() -> Optional[str]:
    """Debian's beanstalkd."""
    return shutil.which("beanstalkd") or shutil.which("/usr/bin/beanstalkd")


def skip(why: str) -> Any:
    """Ends a test that cannot run here; where peers are required it fails."""
    if os.environ.get("BSD_REQUIRE_PEERS") == "1":
        raise AssertionError(f"a peer is required but {why}")
    raise unittest.SkipTest(why)


_GIVEN: Set[int] = set()


def free_port(host: str = HOST) -> int:
    """A port that no one has at the moment, and that no other test of this process was given."""
    while True:
        with socket.socket() as it:
            it.bind((host, 0))
            port = int(it.getsockname()[1])
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port


def until(what: str, done: Callable[[], Any]) -> Any:
    """Polls until it returns something true, and returns that."""
    end = time.monotonic() + PATIENCE
    while True:
        found = done()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE} s in vain until {what}")
        time.sleep(0.005)


class Server:
    """A server that runs. `tls` and `tokens` are for bsd."""

    def __init__(
        self,
        program: Optional[str] = None,
        args: Sequence[str] = (),
        *,
        tls: bool = False,
        tokens: bool = False,
        is_member: bool = False,
        host: str = HOST,
    ) -> None:
        self.program = program or bsd_server()
        self.dir = tempfile.mkdtemp(prefix="bsdq-")
        self.is_bsd = program is None
        self.tls = tls
        self.token = "kit-all" if tokens else None
        self.args = list(args)
        if tokens:
            self.args += ["--auth-file", self._token_file()]
        self._process: Optional["subprocess.Popen[bytes]"] = None
        #: Members of a cluster pass `stats` on to the leader.
        self._is_member = is_member
        self.host = host
        self.port = free_port(host)
        try:
            self.start(may_move=True)
        except BaseException:
            self.end()
            raise

    def _token_file(self) -> str:
        path = os.path.join(self.dir, "tokens")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            for name, role in TOKENS.items():
                digest = hashlib.sha256(f"kit-{name}".encode()).hexdigest()
                file.write(f"{role} {digest}\n")
        return path

    def start(self, may_move: bool = False) -> None:
        """Starts it, and waits until it serves."""
        for _ in range(5):
            if self._serves():
                return
            if not may_move:
                break
            self.port = free_port(self.host)
        raise AssertionError(f"{self.program} did not start: {self.said()}")

    def _serves(self) -> bool:
        words = [self.program, "-p", str(self.port)]
        words += ["-l", f"tls:{self.host}" if self.tls else self.host]
        if self.is_bsd:
            if "--http" not in self.args:
                words += ["--http", "off"]
            if "-b" not in self.args:
                words += ["--memory"]
        if self.tls:
            cert, key, _ = certificates()
            words += ["--tls-cert", cert, "--tls-key", key]
        with open(os.path.join(self.dir, "stderr"), "ab") as log:
            self._process = subprocess.Popen(
                words + self.args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir
            )
        process = self._process

        def up() -> Optional[bool]:
            if process.poll() is not None:
                return True
            try:
                with self.client(retry_for=0) as client:
                    return client.stats()["pid"] == process.pid or self._is_member
            except (bsdq.ConnectionLost, bsdq.Timeout):
                return None

        until("the server serves", up)
        return process.poll() is None

    def said(self) -> str:
        """Its standard error."""
        return Path(self.dir, "stderr").read_text(errors="replace")

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{'tls:' if self.tls else ''}{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def settings(self, **more: Any) -> Any:
        """What a client needs to connect."""
        context = None
        if self.tls:
            import ssl

            context = ssl.create_default_context(cafile=certificates()[2])
        return {"token": self.token, "tls": context, **more}

    def client(self, **more: Any) -> bsdq.Client:
        """A client of it."""
        return bsdq.Client(self.address, **self.settings(**more))

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it as a power switch does."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Ends it, and removes what it has written."""
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


_CERTIFICATES: List[str] = []


def certificates() -> Sequence[str]:
    """A certificate, its key, and the authority's certificate, made once."""
    if not _CERTIFICATES:
        if shutil.which("openssl") is None:
            skip("there is no openssl")
        folder = tempfile.mkdtemp(prefix="bsdq-tls-")
        unittest.addModuleCleanup(shutil.rmtree, folder, True)
        _make(folder)
        names = ("localhost.pem", "localhost.key", "ca.pem")
        _CERTIFICATES.extend(os.path.join(folder, name) for name in names)
        unittest.addModuleCleanup(_CERTIFICATES.clear)
    return _CERTIFICATES


def _make(folder: str) -> None:
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    # Python 3.13 and later ask for both: what the authority may do, and whose the other one is.
    usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
    extensions = f"subjectAltName=IP:{HOST}\nauthorityKeyIdentifier=keyid\n"
    Path(folder, "extensions").write_text(extensions)
    for words in (
        f"req -x509 {curve} {usage} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        f"req {curve} -subj /CN=localhost -keyout localhost.key -out localhost.csr",
        "x509 -req -in localhost.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
        "-extfile extensions -out localhost.pem",
    ):
        done = subprocess.run(["openssl", *words.split()], cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()


def drain(server: Server) -> None:
    """Has it take no more jobs, and waits until that is so."""
    server.signal(signal.SIGUSR1)
    with server.client() as client:

        def drains() -> bool:
            try:
                client.delete(client.put(b"x"))
                return False
            except bsdq.Draining:
                return True

        until("it drains", drains)
