"""Addresses of servers, settings of connections, and the time between two attempts."""

from __future__ import annotations

import random
import ssl
from dataclasses import dataclass
from typing import Iterable, List, NamedTuple, Optional, Tuple, Union

from .errors import InvalidArgument
from .wire import BODY_MAX

#: The port, unless another one is given.
PORT = 11300


class Address(NamedTuple):
    """Where a server listens: a host and a port, with or without TLS, or a Unix socket."""

    host: str
    port: int = PORT
    tls: bool = False
    #: The path of a Unix socket; the others count for nothing then.
    path: Optional[str] = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls:' if self.tls else ''}{host}:{self.port}"


#: `HOST`, `HOST:PORT`, `[IPV6]:PORT`, each with `tls:` before it, or `unix:PATH`.
AnyAddress = Union[str, Tuple[str, int], Address]
#: One address, or those of all members of a cluster.
Addresses = Union[AnyAddress, List[AnyAddress], List[str]]


def parse(address: AnyAddress) -> Address:
    """Reads one address."""
    if isinstance(address, Address):
        return address
    if isinstance(address, tuple):
        return Address(*address)
    if address.startswith("unix:"):
        return Address("", path=address[5:])
    text, tls = (address[4:], True) if address.startswith("tls:") else (address, False)
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(f"{address!r} is no address")
    return Address(host, int(port), tls)


def parse_all(addresses: Addresses) -> Tuple[Address, ...]:
    """Reads one address or several. Several may also be in one text, with commas between."""
    if isinstance(addresses, str):
        found: Iterable[AnyAddress] = addresses.split(",")
    elif isinstance(addresses, list):
        found = addresses
    else:
        found = [addresses]
    parsed = tuple(parse(it) for it in found)
    if not parsed:
        raise InvalidArgument("an address is needed")
    return parsed


@dataclass
class Settings:
    """How a client connects. All times are in seconds."""

    addresses: Tuple[Address, ...]
    token: Optional[str] = None
    #: The context of TLS. Without it the system's authorities are trusted.
    tls: Optional[ssl.SSLContext] = None
    #: The name that the server's certificate must have, if it is not the host.
    tls_name: Optional[str] = None
    #: To connect to one address, with TLS, token and `capabilities`.
    connect_timeout: float = 5.0
    #: From a command to its answer, beside what the server itself waits.
    timeout: float = 10.0
    #: For how long a call tries to connect, and to do again what is safe. 0: it tries each address
    #: once, and does nothing again.
    retry_for: float = 10.0
    #: Bytes of one body of a reply at most.
    body_max: int = BODY_MAX

    def context(self) -> ssl.SSLContext:
        """The context of TLS."""
        if self.tls is None:
            self.tls = ssl.create_default_context()
        return self.tls


class Backoff:
    """Times between attempts: each about twice the one before, with a part of chance."""

    FIRST, LIMIT = 0.05, 2.0

    def __init__(self) -> None:
        self._next = self.FIRST

    def delay(self) -> float:
        """The time before the next attempt."""
        longest, self._next = self._next, min(2 * self._next, self.LIMIT)
        return longest * random.uniform(0.5, 1.0)


class Patience:
    """How long a call goes on trying. The time counts from the loss of a connection, not from the
    start of the call: a reserve may have waited for hours before."""

    def __init__(self, retry_for: float) -> None:
        self._retry_for = retry_for
        self.backoff = Backoff()
        #: None: no connection was lost yet.
        self.give_up_at: Optional[float] = None

    def lost(self, now: float, waited: float) -> float:
        """A connection was lost on which the call has waited for a job for this number of seconds.
        Returns when to give up. A wait longer than `retry_for` begins the count again."""
        if self.give_up_at is None or waited > self._retry_for:
            self.give_up_at = now + self._retry_for
            self.backoff = Backoff()
        return self.give_up_at
