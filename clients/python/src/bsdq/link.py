"""One connection with blocking calls, each of which ends in time."""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from typing import Any, Optional

from .address import Address, Settings
from .errors import BsdError, ConnectionLost, Timeout
from .session import Session
from .wire import INCOMPLETE, Request

#: Bytes that are read at one time.
CHUNK = 64 << 10
#: How often a reserve over TLS looks whether it is to be aborted: only one thread may use TLS.
LOOK_EVERY = 0.05
#: A machine that answers nothing is given up after about 120 s: the same times as the server's.
KEEP_IDLE, KEEP_BETWEEN, KEEP_PROBES = 60, 15, 4
#: The kernel ends calls on sockets in time by itself, without a call to ask first.
_KERNEL_TIMES = sys.platform != "win32" and struct.calcsize("l") == 8


class Link:
    """A connection. Whatever it raises, it is of no use afterwards."""

    def __init__(self, address: Address, settings: Settings, session: Session) -> None:
        self._timeout = settings.timeout
        self._abort: Optional[bytes] = None
        self._reader = session.reader()
        self._is_tls = address.tls and address.path is None
        self._by_kernel = _KERNEL_TIMES and not self._is_tls
        self._kernel_time = 0.0
        try:
            self._socket = self._connected(address, settings)
        except socket.timeout:
            raise Timeout(f"no connection to {address} in time") from None
        except OSError as error:
            raise ConnectionLost(f"no connection to {address}: {error}") from error

    def _connected(self, address: Address, settings: Settings) -> socket.socket:
        timeout = settings.connect_timeout
        if address.path is not None:
            it = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            it = socket.create_connection((address.host, address.port), timeout)
        try:
            it.settimeout(timeout)
            if address.path is not None:
                it.connect(address.path)
            else:
                it.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keep_alive(it)
            if self._is_tls:
                name = settings.tls_name or address.host
                it = settings.context().wrap_socket(it, server_hostname=name)
            if self._by_kernel:
                it.settimeout(None)
                self._kernel_time = timeout
                _set_times(it, timeout)
            return it
        except BaseException:
            it.close()
            raise

    def close(self) -> None:
        """Ends the connection."""
        try:
            self._socket.close()
        except OSError:
            pass

    def shut(self) -> None:
        """Wakes a thread that waits for bytes: there are no more."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def is_closed(self) -> bool:
        """Whether the server has closed it, or has said something unasked."""
        if self._reader.buffered:
            return True
        try:
            return _is_readable(self._socket, 0)
        except (OSError, ValueError):
            return True

    def send(self, data: bytes, deadline: float) -> None:
        """Sends all of it."""
        try:
            self._rest(data, self._socket.send(data), deadline)
        except BsdError:
            raise
        except (socket.timeout, BlockingIOError):
            raise Timeout("the server does not read what it is sent") from None
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"the connection is lost: {error}", sent=True) from error

    def ask(self, request: Request[Any], deadline: float) -> Any:
        """Sends one request, and returns its result: `send` and `result` for the most usual case,
        where the socket takes all of it at once and the answer comes in one piece."""
        quick = request.kind.quick
        if quick is None or not self._by_kernel or self._kernel_time > self._timeout:
            self.send(request.data, deadline)
            return self.result(request, deadline)
        try:
            sent = self._socket.send(request.data)
            if sent == len(request.data):
                data = self._socket.recv(CHUNK)
                result = quick(data)
                # Bytes that came before it was sent are no answer to it.
                if result is not INCOMPLETE and not self._reader.buffered:
                    return result
                if not data:
                    raise ConnectionLost("the server has closed the connection", sent=True)
                self._reader.feed(data)
            else:
                self._rest(request.data, sent, deadline)
        except BsdError:
            raise
        except BlockingIOError:
            raise Timeout(f"{request.word}: no answer in time") from None
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"the connection is lost: {error}", sent=True) from error
        return self.result(request, deadline)

    def _rest(self, data: bytes, sent: int, deadline: float) -> None:
        while sent < len(data):
            self._limit(deadline)
            sent += self._socket.send(memoryview(data)[sent:])

    def result(self, request: Request[Any], deadline: Optional[float]) -> Any:
        """The result of the next request that was sent."""
        reader = self._reader
        result = reader.next(request)
        is_first = True
        while result is INCOMPLETE:
            if not is_first or not self._by_kernel or self._kernel_time > self._timeout:
                self._limit(deadline)
            is_first = False
            try:
                if self._is_tls and request.waits != 0.0:
                    self._wait(deadline)
                data = self._socket.recv(CHUNK)
            except (socket.timeout, BlockingIOError):
                if deadline is None or time.monotonic() < deadline:
                    continue
                raise Timeout(f"{request.word}: no answer in time") from None
            except (OSError, ValueError) as error:
                raise ConnectionLost(f"the connection is lost: {error}", sent=True) from error
            if not data:
                raise ConnectionLost("the server has closed the connection", sent=True)
            reader.feed(data)
            result = reader.next(request)
        return result

    def abort(self, data: bytes) -> None:
        """Sends this while another thread waits for a result."""
        if self._is_tls:
            self._abort = data
        else:
            self.send(data, time.monotonic() + self._timeout)

    def take_back_abort(self) -> bool:
        """Whether an abort was asked for and not sent: it is not sent any more. For the thread that
        has waited, when no other one can abort."""
        data, self._abort = self._abort, None
        return data is not None

    def ready(self) -> None:
        """Sets the times of the kernel for calls."""
        self._limit(time.monotonic() + self._timeout)

    def _limit(self, deadline: Optional[float]) -> None:
        """The next call on the socket ends at this time."""
        left = self._timeout if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise Timeout("no answer in time")
        if not self._by_kernel:
            self._socket.settimeout(left)
        elif left > self._kernel_time or left < 0.9 * self._kernel_time:
            _set_times(self._socket, left)
            self._kernel_time = left

    def _wait(self, deadline: Optional[float]) -> None:
        """Until there is something to read over TLS, while another thread may want to abort."""
        pending = getattr(self._socket, "pending")
        while not pending() and not _is_readable(self._socket, LOOK_EVERY):
            # Nothing is written before there is one: another thread may leave one just then.
            if self._abort is not None:
                data, self._abort = self._abort, None
                self._socket.sendall(data)
            if deadline is not None and time.monotonic() >= deadline:
                raise socket.timeout()


def _is_readable(it: socket.socket, seconds: float) -> bool:
    """Whether there is something to read, within this time."""
    # `select` refuses descriptors of 1024 and more; Windows has no `poll`.
    if not hasattr(select, "poll"):
        return bool(select.select([it], [], [], seconds)[0])
    poll = select.poll()
    poll.register(it, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def keep_alive(it: socket.socket) -> None:
    """Has the kernel probe a connection over TCP on which nothing comes. Otherwise a reserve would
    wait without end for a machine that has lost its power."""
    it.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for names, value in (
        # The second name is that of macOS.
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), KEEP_IDLE),
        (("TCP_KEEPINTVL",), KEEP_BETWEEN),
        (("TCP_KEEPCNT",), KEEP_PROBES),
    ):
        options = [getattr(socket, name) for name in names if hasattr(socket, name)]
        if options:
            it.setsockopt(socket.IPPROTO_TCP, options[0], value)


def _set_times(it: socket.socket, seconds: float) -> None:
    time_value = struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        it.setsockopt(socket.SOL_SOCKET, option, time_value)
